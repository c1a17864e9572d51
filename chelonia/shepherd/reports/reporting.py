"""Heartbeats, numbered reports, and the comparison of inventories with the namespace.

Heartbeats say that this Shepherd lives; reports say what changed, one in flight, repeated until accepted (`journal`).
The answer to the first report of a start names the last report taken from an earlier boot. Where the notes go just as
far (`note_mark`), only their differences from the disk are reported. Otherwise the whole inventory is compared with the
namespace, page by page. The same happens from time to time, when a Librarian requests it, and when the sides disagree.
Heartbeats say whether that is done (`reconciling`); until then nobody relies on the inventory.
Nothing is reported to a Librarian of another cluster: replicas it does not know would look like bytes to set aside.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from chelonia.core import bounds
from chelonia.core.cluster.replicas import ReplicaState
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BlobId, ReferenceId
from chelonia.core.ports.librarian import REFUSED_STORE, Heartbeat, HeartbeatAnswer, InventoryItem, Report, ReportAnswer
from chelonia.core.timing.jobs import BUSY, Job, Next, Wait, every
from chelonia.core.values import replace
from chelonia.shepherd.node import ShepherdNode
from chelonia.shepherd.reports.heartbeats import HeartbeatSender, Silence
from chelonia.shepherd.reports.stock import Stock
from chelonia.shepherd.rules import authority
from chelonia.shepherd.store import compact_rows as rows
from chelonia.shepherd.store import lifecycle
from chelonia.shepherd.store import note_mark as marks
from chelonia.shepherd.store.disk import CURE
from chelonia.shepherd.store.lifecycle import Fate, KeptReplica
from chelonia.shepherd.store.note_mark import AcceptedReport, Believed, NoteMark
from chelonia.shepherd.transfers.uploads import ShepherdUploads

log = logging.getLogger(__name__)

REJECTED_MAX: Final = 20
"""Answers in a row that do not accept a report before a WARNING."""
STRANGERS_MIN: Final = 100
"""Committed replicas that may be unknown before they are a sign that the metadata were lost."""
_SAME = {
    (ReplicaState.ALIVE, ReplicaState.ALIVE),
    (ReplicaState.ALIVE, ReplicaState.THIRDWHEEL),
    (ReplicaState.INVALID, ReplicaState.INVALID),
}
"""(here, there) pairs that agree: a surplus copy is alive here."""


class Reporting:
    """The reporting side of one Shepherd."""

    def __init__(self, node: ShepherdNode, uploads: ShepherdUploads, stock: Stock) -> None:
        self._node = node
        self._uploads = uploads
        self._stock = stock
        self.on = True
        self.reconciled = ""
        """How this start was last reconciled with the namespace, and why so; "" before."""
        self.pages = 0
        """Pages of inventories compared since the start."""
        self._linked = False
        self._foreign = False
        self._how = node.reconciling
        self._earlier = AcceptedReport()  # the last report of an earlier boot, by the answer to the first of this one
        self._differences = 0
        self._alarmed = False
        self._whole = (0, -1)  # when the whole inventory was compared: wall clock, and monotonic (-1: not for long)
        self._numbered = 0  # the generation whose reports are numbered
        self._replaced = False
        self._missing = 0
        self._leaving = False
        self.lease_ms = 0
        self._answered_ms: int | None = None  # the last heartbeat (monotonic)
        each = node.ports.each_librarian or (lambda: {"": node.ports.librarians})
        self._heartbeats = HeartbeatSender(each, node.ports.clock, node.settings.heartbeat_ms)
        self._silence = Silence()
        self._failure = ""
        """Reason why the last report failed: logged once, however often it is repeated, as amid a rebuild."""

    @property
    def agrees(self) -> bool:
        """Whether the inventory has been compared with metadata that were in force within the last lease."""
        now_ms, last_ms = self._node.ports.clock.monotonic_ms(), self._answered_ms
        return last_ms is not None and now_ms - last_ms < self.lease_ms and self._proven_generation() > 0

    async def leave(self) -> None:
        """Announce to every Librarian that this process ends; no heartbeat of this boot follows."""
        self._leaving = True
        if self.on and self._linked:
            await self._heartbeats.send_all(self._node.own_call(), await self._beat())

    async def stop(self) -> None:
        """Cancel the heartbeats under way."""
        await self._heartbeats.stop()

    def jobs(self) -> tuple[Job, ...]:
        """Return the jobs that send heartbeats and reports.

        BAD_CONFIG is fatal: the cluster knows this Shepherd with another store, or a later start of it has reported.
        """
        pause = self._node.settings.heartbeat_ms
        heartbeat = Job("heartbeat", every(pause, self._beat_if_on), Wait(pause), fatal=(Kind.BAD_CONFIG,))
        report = Job(
            "report", self._report, Wait(self._node.settings.report_ms), news=self._node.news, fatal=heartbeat.fatal
        )
        return heartbeat, report

    async def starting_loop(self) -> None:
        """Send heartbeats while a start takes longer than their interval. Raises: as `beat`."""
        while True:
            await self._node.ports.clock.sleep(self._node.settings.heartbeat_ms)
            await self._beat_if_on()

    async def _beat_if_on(self) -> None:
        if self.on and not self._leaving and not self._node.silent_ms:
            await self.beat()

    async def _report(self) -> Next:
        ready = self.on and self._linked and not self._node.disk.trouble and not self._node.silent_ms
        if ready and await self.report_once():
            await self._node.ports.clock.sleep(self._node.settings.report_ms)  # changes meanwhile share the next one
            return BUSY
        return Wait(self._pause_ms(ready))

    async def beat(self) -> None:
        """Send one heartbeat and learn from the answer; a failure is logged, and the next one tries again.

        Raises: BAD_CONFIG when the cluster knows this Shepherd with another store.
        """
        node, unready = self._node, self._node.disk.unready
        try:
            answer = await self._heartbeats.send(node.own_call(), await self._beat())
            self._silence.answered(node.ports.clock.monotonic_ms())
            if answer.refused:
                return self._take_refusal(answer)
            self.lease_ms = answer.lease_ms
            await self._learn(answer)
            if unready and not node.disk.unready:
                await self.beat()  # from now on it takes bytes, and nobody knows yet
        except CheloniaError as error:
            if error.kind is Kind.BAD_CONFIG:
                raise
            self._silence.failed(node.ports.clock.monotonic_ms(), error)

    def _take_refusal(self, answer: HeartbeatAnswer) -> None:
        """Handle a refusal by the cluster. Raises: BAD_CONFIG when it knows this Shepherd with another store."""
        self._linked = False
        if answer.refused == REFUSED_STORE:
            cause = f"{answer.cause}; {CURE}"
            raise CheloniaError(Kind.BAD_CONFIG, "open store", self._node.disk.identity.store, cause)
        if not self._node.disk.refused:
            log.error(
                "refused by the cluster: %s; it is asked again, nothing is taken or reported until then", answer.cause
            )
        self._node.disk.refused = answer.cause

    async def _beat(self) -> Heartbeat:
        node = self._node
        here = await node.disk.look()
        free, total = await node.ports.blobs.space() if here else (0, 0)
        return Heartbeat(
            shepherd=node.id,
            boot=node.state.boot,
            reported=node.journal.accepted,
            free_bytes=free,
            total_bytes=total,
            replicas=len(node.index),
            accepting=node.ready and node.settings.accepting and free > 0 and not node.disk.unready,
            domain=node.settings.domain,
            verify_key=node.ports.signer.verify_key(),
            version=node.settings.version,
            compared=self._proven_generation(),
            store=node.disk.identity.store,
            boots=node.boots,
            replaces=node.disk.identity.replaces,
            trouble=node.disk.trouble,
            reclaimable_bytes=node.reclaimable_bytes,
            leaving=self._leaving,
            starting=not node.ready,
            arriving=self._uploads.arriving(),
            copies_at_once_max=node.copies_at_once_max,
        )

    def _proven_generation(self) -> int:
        """The generation under which every difference has been reported and accepted, 0 when there is none."""
        generation = self._node.state.generation
        return generation if self._how.proven(generation) and self._node.journal.all_accepted(self._how.at_ms) else 0

    async def report_once(self) -> bool:
        """Compare the inventory if need be and send one report; returns whether there may be more to do at once."""
        node = self._node
        try:
            await self._number()
            self._reconcile_differences()
            why = self._why_compare()
            if why:
                await self._compare_inventory(why)
            report = node.journal.take(node.ports.clock.monotonic_ms(), bounds.REPORT_ENTRIES_MAX, node.describe)
            await self._keep_mark()
            if report is None:
                self._note_success()
                return False
            spoken = replace(report, store=node.disk.identity.store)
            answer = await node.ports.librarians.report(node.own_call(), spoken)
        except CheloniaError as error:
            repeated, self._failure = self._silence.lasting or str(error) == self._failure, str(error)
            log.log(logging.DEBUG if repeated else logging.INFO, "report failed, it will be repeated error=%s", error)
            await node.ports.clock.sleep(node.settings.report_retry_ms)
            return True
        self._note_success()
        await self._take_answer(answer)
        return True

    def _note_success(self) -> None:
        if self._failure:
            self._failure = ""
            log.info("reports are answered again")

    async def _number(self) -> None:
        generation = self._node.state.generation  # metadata put back from a backup go on from older numbers
        if self._numbered not in (0, generation):
            await self._node.number_anew()
        self._numbered = generation

    def _begin(self, obeyed: int) -> None:
        """Choose, once the first report is accepted, between differences and the whole inventory."""
        node, stock = self._node, self._stock
        now_ms = node.ports.clock.now_ms()
        age_ms = marks.age_ms(stock.mark, now_ms)
        if stock.mark is not None and age_ms >= 0:
            self._whole = (stock.mark.compared_ms, node.ports.clock.monotonic_ms() - age_ms)
        replaced = "this store takes the place of another" if self._replaced else ""
        generation = node.state.generation
        believed = Believed(self._earlier, obeyed, generation)
        why = marks.why_whole(stock.mark, believed, node.disk.identity.store, node.found)
        differences = self._how.begin(replaced or why, generation)
        lost, stock.lost = stock.lost, {}
        if not differences:
            return
        self._differences = len(stock.unreported) + len(node.index.missing)
        for reference in stock.unreported:
            node.report(reference)
        self._report_missing(lost, ordered=marks.may_have_erased(believed, node.found))

    def _report_missing(self, lost: Mapping[ReferenceId, bytes], *, ordered: bool) -> None:
        """Report noted replicas that are missing. `lost`: rows of listed ones; `ordered`: some may have been erased."""
        node = self._node
        unordered = "it was damaged, or it was not settled that the namespace lists it"
        why = "it may have been erased by order just before" if ordered else unordered
        for reference in node.index.missing:
            if reference in lost and not ordered:
                text = (
                    "replica missing reference=%s blob=%s; it was listed, and nobody ordered its erasure: reported as "
                    "deleted, so that repair copies it from where it is whole"
                )
                log.warning(text, reference, rows.blob_id_of(lost[reference]))
            else:
                log.info("replica missing reference=%s; reported as deleted: %s", reference, why)
            node.journal.note_gone(reference, BlobId(""), node.ports.clock.monotonic_ms())

    def _reconcile_differences(self) -> None:
        node = self._node  # once all sizes are checked, the differences from the notes are all there is to report
        if not node.measured or not self._how.looked_at(node.ports.clock.monotonic_ms()):
            return
        self.reconciled, self._stock.unreported = f"differences={self._differences}", {}
        log.info("inventory compared by %s replicas=%d", self.reconciled, len(node.index))

    def _why_compare(self) -> str:
        """Reason to compare the whole inventory now: one of `reconciling`, or `compare_ms` have passed; else ""."""
        node = self._node
        # Before all sizes are checked, a start would claim bytes that it has not seen. Before its first report is
        # accepted, reports and erasures of an earlier start may still change what the namespace has of it. Before its
        # second, an earlier start is believed where its disk replaces this one.
        if not node.measured or node.journal.accepted < 2 or not self._how.begun:
            return ""
        now_ms = node.ports.clock.monotonic_ms()
        wall_ms, whole_ms = self._whole
        long = not wall_ms or now_ms - whole_ms >= node.settings.compare_ms
        why = self._how.why_whole(node.state.generation, now_ms, node.settings.unknown_retry_ms)
        return why or ("it was not compared for long" if long else "")

    async def _keep_mark(self) -> None:
        """Note the mark durably before the next report goes out; without it a start compares the whole inventory."""
        mark = self._mark()
        if mark is None or mark == self._stock.mark:
            return
        try:
            await self._node.disk.require()  # never into the directory below a disk that is not mounted
            await self._stock.keep(mark)
        except CheloniaError as error:
            log.info("the notes could not be marked, a start would compare the whole inventory error=%s", error)

    def _mark(self) -> NoteMark | None:
        if not self._how.begun:
            return None  # the mark that this start found stays good, for no report has named a replica since
        node = self._node
        generation, journal = node.state.generation, node.journal
        sent = AcceptedReport(journal.boot, journal.sent) if journal.sent > 1 else self._earlier
        store, (wall_ms, _) = node.disk.identity.store, self._whole
        return NoteMark(store, generation, sent, self._earlier, self._how.settled(generation), wall_ms)

    def _pause_ms(self, ready: bool) -> int:
        due_ms = self._node.journal.next_due()
        if not ready or due_ms is None:
            return self._node.settings.heartbeat_ms
        now_ms = self._node.ports.clock.monotonic_ms()
        return max(1, min(due_ms - now_ms, self._node.settings.heartbeat_ms))

    async def _learn(self, answer: HeartbeatAnswer) -> None:
        node = self._node
        state = authority.seen(node.state, answer.position)
        if state is None:
            if not self._foreign:
                log.warning(
                    "a Librarian of another cluster answered cluster=%s own=%s; nothing is reported to it; "
                    "correct the Librarians in this Shepherd's configuration",
                    answer.position.cluster, node.state.cluster,
                )  # fmt: skip
            self._linked, self._how.why, self._foreign = False, "", True
            node.disk.refused = f"cluster {answer.position.cluster} answers, this store belongs to {node.state.cluster}"
            return
        node.disk.refused, self._foreign = "", False
        self._answered_ms = node.ports.clock.monotonic_ms()
        node.ordered(answer.copy_bytes_per_s_max, answer.copies_at_once_max)
        if not answer.known and self._linked:
            log.info("this Shepherd is not approved (any more); an administrator approves it as %s", node.id)
        fresh = answer.known and not self._linked
        if answer.known and not node.disk.trouble:
            self._replaced = self._replaced or node.disk.identity.replaces
            await node.disk.admit(answer.position.cluster)
        restored = state.generation != node.state.generation
        if self._how.begun and (fresh or restored):
            self._how.ask("other metadata were put back" if restored else "it was not known for a while")
        self._linked = answer.known
        if state != node.kept:
            await node.save(lambda now: authority.seen(now, answer.position) or now)
        if fresh:
            node.news.set()

    async def _take_answer(self, answer: ReportAnswer) -> None:
        settled = self._node.journal.answered(answer.accepted)
        if settled.diverged:
            log.info("reports diverged accepted=%d; the inventory is compared again", answer.accepted)
            self._how.ask("its reports and the cluster's count of them differ")
        if answer.next_report_ms < 0:
            self._how.ask("a Librarian has asked for it")
        if self._node.journal.rejected == REJECTED_MAX:
            await self._take_rejection(answer.before_boot)
        if settled.done is None:
            if not settled.diverged:
                await self._node.ports.clock.sleep(self._node.settings.report_retry_ms)
            return
        if settled.done.number == 1:
            self._earlier = AcceptedReport(answer.before_boot, answer.before_number)
        if not self._how.begun:
            self._begin(answer.obeyed)
        for replica in settled.done.replicas:
            if replica.state is ReplicaState.DELETED:
                self._node.index.confirm_missing(replica.reference)
        if settled.first_try:
            await self._judge(settled.done, dict.fromkeys(answer.unknown))
        else:
            self._ask_again(settled.done)

    async def _take_rejection(self, later: int) -> None:
        """Handle reports that are answered, again and again, and not accepted. `later`: a boot that has reported, 0
        when the answer names none. Raises: BAD_CONFIG when two processes run as this Shepherd."""
        boot = self._node.journal.boot
        # A start none of whose reports was accepted follows the later boot, which has ended. One whose reports were
        # accepted before ends itself: of two processes of one name, one has to.
        if later > boot and self._how.begun:
            cause = (
                f"a later start of it (boot {later}, this is boot {boot}) has reported: two processes ran as it, as "
            )
            cause += "of a copy of its disk; see that only one does, and start it again"
            raise CheloniaError(Kind.BAD_CONFIG, "report", self._node.id, cause)
        if later > boot:
            log.warning(
                "a later start has reported boot=%d own=%d: an older state file was put back, and a clock is or was "
                "wrong; this start follows it from now on",
                later, boot,
            )  # fmt: skip
            await self._node.follow(later)
            return
        log.warning("reports are answered but not taken boot=%d; if a second process runs as it, stop one", boot)

    async def _judge(self, report: Report, unknown: dict[ReferenceId, None]) -> None:
        """Note which of the reported replicas the namespace knows; set unknown ones aside when their time is over."""
        node = self._node
        now_ms = node.ports.clock.monotonic_ms()
        for replica in report.replicas:
            held = node.index.get(replica.reference)
            if held is None or replica.reference not in unknown:
                node.index.strangers.pop(replica.reference, None)
                node.known(replica.reference, replica.state)
                continue
            held, fate = lifecycle.unknown(held, now_ms, node.settings.unknown_grace_ms)
            node.index.put(held)
            if held.committed:
                node.index.strangers[held.reference] = None
            if fate is Fate.ASK_AGAIN or self._metadata_lost(held) or not await self._set_aside(held):
                node.report(held.reference, lifecycle.ask_again_ms(held, now_ms, node.settings.unknown_retry_ms))

    def _metadata_lost(self, held: KeptReplica) -> bool:
        """Whether so many replicas are unknown that lost metadata are the likelier cause: then committed ones stay."""
        index = self._node.index
        lost = len(index.strangers) > max(STRANGERS_MIN, len(index) // 2)
        if lost and not self._alarmed:
            log.error(
                "the namespace does not know %d of %d replicas; nothing is set aside until it does or a person erases "
                "them; if an empty or old A-Hash was started, stop it and restore the newest backup",
                len(index.strangers), len(index),
            )  # fmt: skip
        self._alarmed = lost
        return lost and held.committed

    async def _set_aside(self, held: KeptReplica) -> bool:
        try:
            await self._node.set_aside(held)
        except CheloniaError as error:
            log.warning(
                "replica could not be set aside, it is tried again reference=%s error=%s", held.reference, error
            )
            return False
        return True

    def _ask_again(self, report: Report) -> None:
        """Report the replicas of a repeated report once more: the answer to a repeat does not name unknown ones."""
        for replica in report.replicas:  # committed ones too: nobody may know those of an old disk image any more
            if replica.reference in self._node.index:
                self._node.report(replica.reference)

    # --- inventory ------------------------------------------------------------------------------------------------

    async def _compare_inventory(self, why: str) -> None:
        """Page through the replicas that the namespace has of this Shepherd, and report every difference."""
        node = self._node
        await node.disk.require()
        self._missing = 0
        generation, missing = node.state.generation, tuple(node.index.missing)
        with self._how.whole():
            await self._keep_mark()
            await self._compare_pages()
        for reference in missing:
            if not node.journal.reports_gone(reference):
                node.index.confirm_missing(reference)  # nobody has it listed
        if self._replaced and self._missing:
            text = "this store takes the place of an earlier one: %d replicas it held are reported lost"
            log.warning(text, self._missing)
        self._replaced = False
        now_ms = node.ports.clock.monotonic_ms()
        self._how.compared(generation, now_ms)
        self._whole = (node.ports.clock.now_ms(), now_ms)
        self.reconciled, self._stock.unreported = f"whole: {why}", {}
        text = "inventory compared whole replicas=%d to_report=%d because=%s"
        log.info(text, len(node.index), len(node.journal), why)

    async def _compare_pages(self) -> None:
        node = self._node
        after = ""
        while True:
            page = await node.ports.librarians.inventory(node.own_call(), node.id, after, bounds.PAGE_ENTRIES_MAX)
            await self._compare_page(after, page.after, {item.reference: item for item in page.items})
            self.pages += 1
            if not page.after:
                break
            if page.after <= after:
                raise CheloniaError(Kind.INTERNAL, "inventory", page.after, "pages do not advance")
            after = page.after

    async def _compare_page(self, after: str, upto: str, items: dict[ReferenceId, InventoryItem]) -> None:
        node = self._node
        for item in items.values():
            if await self._reinstated(item) or item.reference in node.index:
                self._compare_one(item)
            elif (
                item.state and item.state is not ReplicaState.CREATING and self._uploads.pending(item.reference) is None
            ):
                # `creating` is a claim whose bytes may be on their way here; it expires by itself.
                # A `stalled` one was never whole (`core.cluster.replicas.TRANSITIONS`): nothing is lost with it.
                quiet = self._replaced or item.state is ReplicaState.STALLED
                level = logging.INFO if quiet else logging.WARNING
                self._missing += 1
                text = "replica missing reference=%s blob=%s state=%s; reported as deleted"
                log.log(level, text, item.reference, item.blob, item.state.value)
                node.journal.note_gone(item.reference, item.blob, node.ports.clock.monotonic_ms())
                node.index.miss(item.reference)
        for reference in node.index.references(after, upto):
            if reference not in items:
                node.unlisted(reference)
                node.report(reference)

    async def _reinstated(self, item: InventoryItem) -> bool:
        """Bring back from quarantine a replica that the namespace names: committed late, or by restored metadata."""
        node = self._node
        held = node.index.get(item.reference)
        if item.state in (None, ReplicaState.CREATING) or (held is not None and held.size >= 0):
            return False
        stored = await node.ports.blobs.reinstate(item.reference)
        if stored is None:
            return False
        node.index.put(lifecycle.found(stored, 0))
        node.suspect(item.reference)
        log.info("replica brought back from quarantine reference=%s blob=%s", item.reference, item.blob)
        return True

    def _compare_one(self, item: InventoryItem) -> None:
        node = self._node
        held = node.index.get(item.reference)
        assert held is not None
        if item.state is None:
            return  # the blob is gone: its erasure is in the outbox
        node.known(item.reference, item.state)
        if held.alive and item.state is ReplicaState.INVALID and not held.checked_ms:
            node.index.put(lifecycle.unproven(held))  # found damaged before: check it before reporting it alive
            node.suspect(held.reference)
        elif (held.state, item.state) not in _SAME:
            node.report(held.reference)
