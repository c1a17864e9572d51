"""State that the parts of one Shepherd share: its ports, its durable state, its index and its reports to come.

Only bookkeeping that several parts need lives here; the parts themselves decide.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from chelonia.core import bounds
from chelonia.core.caller import Call, Role
from chelonia.core.cluster.replicas import Location, Receipt, ReplicaState
from chelonia.core.ids import ReferenceId, RequestKey
from chelonia.core.limits import LimitCounts
from chelonia.core.ports.librarian import Librarian, ReportedReplica
from chelonia.core.ports.shepherd import BlobStore, ShepherdState, ShepherdStateFile, Signer, Transfers
from chelonia.core.timing.clock import Clock, Ids
from chelonia.core.timing.pacing import Pace
from chelonia.core.values import replace
from chelonia.shepherd.rules.journal import Journal
from chelonia.shepherd.rules.places import SlotPool, places_of
from chelonia.shepherd.rules.reconciling import Reconciling
from chelonia.shepherd.rules.scrub import ScrubRound
from chelonia.shepherd.settings import ShepherdSettings
from chelonia.shepherd.store import lifecycle
from chelonia.shepherd.store.checksums import Worker
from chelonia.shepherd.store.disk import Disk
from chelonia.shepherd.store.index import Index
from chelonia.shepherd.store.lifecycle import KeptReplica
from chelonia.shepherd.waiting import Background
from chelonia.wire import receipts

log = logging.getLogger(__name__)

CURSOR = "scrub_cursor"
"""Key in `ShepherdState.extra` of how far the scrub's round has come."""
REPORTED = "reported_boot"
"""Key in `ShepherdState.extra` of the boot that reports are numbered by, where it is not that of a start."""
BOOTS = "boots"
"""Key in `ShepherdState.extra` of the boots before this one, newest first, separated by blanks."""
LOGGED_TOGETHER = 30
"""Replicas that one log line names: some 4 KiB."""


@dataclass(frozen=True, slots=True)
class ShepherdPorts:
    """Ports of a Shepherd. `librarians`: one port that fails over among several. `each_librarian`: all present ones by
    name, for heartbeats (None: only `librarians`). `moved`: counts bytes of small files, "in" or "out"."""

    blobs: BlobStore
    state_file: ShepherdStateFile
    librarians: Librarian
    transfers: Transfers
    signer: Signer
    worker: Worker
    clock: Clock
    ids: Ids
    each_librarian: Callable[[], Mapping[str, Librarian]] | None = None
    limits: LimitCounts = field(default_factory=LimitCounts)
    moved: Callable[[str, int], None] = lambda direction, size: None


class ShepherdNode:
    """The shared state of one Shepherd; everything happens on one event loop."""

    def __init__(self, ports: ShepherdPorts, settings: ShepherdSettings) -> None:
        self.ports = ports
        self.settings = settings
        self.id = settings.service_id
        self.index = Index()
        self.disk = Disk(ports.blobs)
        self.state = self.found = self.kept = ShepherdState(boot=0, ticket_secret=b"")
        """The state now, as this start found it, and as it was last saved."""
        self.journal = Journal(self.id, 0)
        self.round = ScrubRound()
        self.background = Background()
        self.news = asyncio.Event()
        self.suspicion = asyncio.Event()
        self.reconciling = Reconciling()
        self.ready = False
        """Whether the index agrees with the disk; until then this Shepherd accepts no bytes."""
        self.measured = False
        """Whether the sizes of all replicas found at the start have been checked."""
        self.reclaimable_bytes = 0
        self.sending_pace, self.taking_pace = Pace(settings.copy_bytes_per_s_max), Pace(settings.copy_bytes_per_s_max)
        """Rates of all repair copies sent together, and of all received together; 0: as fast as it goes."""
        self.sending, self.taking = (SlotPool(ports.clock, self.id, self.copies_at_once_max) for _ in range(2))
        self.silent_until_ms = 0
        self._saving = asyncio.Lock()
        self._to_settle: dict[ReferenceId, None] = {}

    # --- durable state --------------------------------------------------------------------------------------------

    async def boot(self) -> None:
        """Raise the boot number, durably, before anything is served. Raises: BAD_CONFIG on another Shepherd's store.

        The boot number is the wall clock in ms, or one above the last boot where that is higher.
        """
        # So neither a Shepherd with a replaced disk nor an old disk put back is taken for one of the past.
        await self.disk.open(self.id, self.ports.ids)
        old = await self.ports.worker.run(self.ports.state_file.load)
        if old is None:
            old = ShepherdState(boot=0, ticket_secret=self.ports.ids.token(32))
        if self.disk.identity.replaces:  # an administrator has said so: the cluster that answers now is its cluster
            old = replace(old, cluster="", generation=0, sequence=0)
        elif not old.cluster:
            old = replace(old, cluster=self.disk.identity.cluster)
        self.found = old
        last = max(old.boot, int(old.extra.get(REPORTED, "0")))
        await self.save(lambda _: _booted(old, max(last + 1, self.ports.clock.now_ms())))
        self.journal = Journal(self.id, self.state.boot)
        self.round = ScrubRound(self.state.extra.get(CURSOR, ""))

    async def follow(self, later: int) -> None:
        """Take, durably, the boot number after `later`, a boot this disk knows nothing of: earlier tickets end.
        Raises: as `save`."""
        await self.save(lambda now: _booted(now, later + 1))
        self.journal.begin_anew(self.state.boot)

    async def number_anew(self) -> None:
        """Number reports as of a later boot, durably, so that none sent before is accepted any more. Raises: as
        `save`."""
        boot = self.journal.boot + 1
        await self.save(lambda now: replace(now, extra={**now.extra, REPORTED: str(boot)}))
        self.journal.begin_anew(boot)

    @property
    def boots(self) -> tuple[int, ...]:
        """The boots before this one on this disk, newest first."""
        return tuple(int(text) for text in self.state.extra.get(BOOTS, "").split())

    async def save(self, change: Callable[[ShepherdState], ShepherdState]) -> None:
        """Apply `change` to the state and save it durably. Raises: UNAVAILABLE when the disk is gone or fails."""
        await self.disk.require()  # never into the directory below a disk that is not mounted
        self.state = change(self.state)  # read only now: it may have changed while the disk was checked
        async with self._saving:
            latest = self.state  # the newest, after a wait for the lock
            await self.ports.worker.run(lambda: self.ports.state_file.save(latest))
            self.kept = latest

    # --- repair copies --------------------------------------------------------------------------------------------

    @property
    def copies_at_once_max(self) -> int:
        """Repair copies that the configuration lets this Shepherd send at once; it receives as many."""
        return places_of(self.settings.copies_at_once_max, 0)

    def ordered(self, bytes_per_s_max: int, copies_at_once_max: int) -> None:
        """Apply the cluster's limits of repair copies (0: none); a lower limit of the configuration wins."""
        rates = [rate for rate in (self.settings.copy_bytes_per_s_max, bytes_per_s_max) if rate]
        self.sending_pace.per_s_max = self.taking_pace.per_s_max = min(rates, default=0)
        for places in (self.sending, self.taking):
            places.limit(places_of(self.copies_at_once_max, copies_at_once_max))

    # --- identity -------------------------------------------------------------------------------------------------

    def own_call(self, request_id: str = "", key: str = "") -> Call:
        """Return the context of a call in this Shepherd's own name."""
        return Call(
            dn=self.settings.dn,
            roles=(Role.SHEPHERD,),
            service_id=self.id,
            request_id=request_id or self.ports.ids.uuid(),
            request_key=RequestKey(key),
        )

    def receipts(self, kept: Sequence[KeptReplica]) -> tuple[Receipt, ...]:
        """Sign receipts for copies of this Shepherd, in their order."""
        now_ms, boot = self.ports.clock.now_ms(), self.state.boot
        unsigned = [
            Receipt(held.blob, Location(self.id, held.reference), held.size, held.checksums, boot, now_ms)
            for held in kept
        ]
        return receipts.sign_all(unsigned, self.ports.signer.sign)

    # --- reports --------------------------------------------------------------------------------------------------

    def report(self, reference: ReferenceId, delay_ms: int = 0) -> None:
        """Have the state of a replica reported."""
        self.journal.note(reference, self.ports.clock.monotonic_ms() + delay_ms)
        self.news.set()

    def took(self, kept: Sequence[KeptReplica], delay_ms: int) -> None:
        """Index new replicas that are on stable storage, and report them after `delay_ms`."""
        for held in kept:
            self.index.put(held)
            self.report(held.reference, delay_ms)
        self.journal.outdated(self.ports.clock.monotonic_ms(), self.settings.uncommitted_report_ms)
        for start in range(0, len(kept), LOGGED_TOGETHER):
            batch = kept[start : start + LOGGED_TOGETHER]
            described = ", ".join([f"reference={held.reference} blob={held.blob} size={held.size}" for held in batch])
            log.info("stored %s", described)

    def describe(self, reference: ReferenceId) -> ReportedReplica | None:
        """Return a replica as a report describes it now, None when it is not here."""
        held = self.index.get(reference)
        return lifecycle.reported(held) if held else None

    def doubt(self, reference: ReferenceId) -> None:
        """Note that somebody relied on this replica: one that is missing has the inventory compared anew, a damaged one
        is reported again."""
        held = self.index.get(reference)
        if held is None:
            self.reconciling.in_doubt = True
            self.news.set()
        elif not held.alive:
            self.report(reference)

    def suspect(self, reference: ReferenceId) -> None:
        """Have a replica checked at once."""
        self.round.suspect(reference)
        self.suspicion.set()

    @property
    def silent_ms(self) -> int:
        """Milliseconds for which a drill still keeps this Shepherd silent, 0 when none does."""
        return max(self.silent_until_ms - self.ports.clock.monotonic_ms(), 0)

    # --- custody --------------------------------------------------------------------------------------------------

    def known(self, reference: ReferenceId, believed: ReplicaState | None) -> None:
        """Note that a Librarian knows this replica's blob, so it is committed. `believed`: its state in the namespace,
        None when not known."""
        held = self.index.get(reference)
        if held is None:
            return
        if not held.committed:
            self._to_settle[reference] = None
        self.index.put(lifecycle.acknowledged(held, believed))

    def unlisted(self, reference: ReferenceId) -> None:
        """Note that the namespace does not have this replica listed."""
        held = self.index.get(reference)
        if held is not None and held.listed:
            self.index.put(replace(held, listed=False))

    def listed(self, reference: ReferenceId) -> None:
        """Note that the namespace has listed this replica as alive in another way than by a report."""
        held = self.index.get(reference)
        self.known(reference, ReplicaState.ALIVE)
        if held is not None and held.alive:
            self.journal.forget(reference)
        else:
            self.doubt(reference)  # a receipt of before it was damaged says so

    async def settle(self) -> None:
        """Have the store note which replicas are committed. A crash may lose that: the next start reports them.
        Raises: UNAVAILABLE; the next call notes them then."""
        references, self._to_settle = self._to_settle, {}
        if references:
            try:
                await self.ports.blobs.settle(tuple(references))
            except BaseException:  # one set aside as uncommitted would be erased by its age
                self._to_settle = references | self._to_settle
                raise

    async def set_aside(self, held: KeptReplica) -> None:
        """Quarantine a replica that the namespace does not know."""
        await self.ports.blobs.quarantine(held.reference)
        self.index.remove(held.reference)
        if held.committed:
            log.warning(
                "replica set aside: the namespace does not know a committed blob reference=%s blob=%s size=%d; "
                "it is kept in quarantine until a person decides",
                held.reference, held.blob, held.size,
            )  # fmt: skip
        else:
            log.info("upload set aside: nobody committed it reference=%s blob=%s", held.reference, held.blob)

    async def erase(self, reference: ReferenceId) -> None:
        """Erase a replica by order, wherever it is. Raises: UNAVAILABLE; a replica that may be left, as after a
        cancelled call, is checked."""
        held = self._let_go(reference)
        try:
            await self.ports.blobs.erase(reference)
        except BaseException:
            if held is not None and reference not in self.index:
                self.index.put(lifecycle.unproven(held))
                self.suspect(reference)
                self.report(reference)
            raise
        held = self._let_go(reference) or held  # it may have come back from quarantine just before
        if held is not None:
            if not self.journal.erased(reference, held.blob, self.ports.clock.monotonic_ms()):
                self.index.confirm_missing(reference)
            self.news.set()
            log.info("replica erased reference=%s blob=%s size=%d", reference, held.blob, held.size)

    def _let_go(self, reference: ReferenceId) -> KeptReplica | None:
        """Take a replica that is to be erased out of the index, noted as missing where a report may still list it."""
        held = self.index.remove(reference)
        if held is not None and self.journal.may_be_reported(reference):
            self.index.miss(reference)
        return held


def _booted(old: ShepherdState, boot: int) -> ShepherdState:
    """The state of a start `boot` after the one of `old`."""
    boots = [str(old.boot), *old.extra.get(BOOTS, "").split()] if old.boot else []
    return replace(old, boot=boot, extra={**old.extra, BOOTS: " ".join(boots[: bounds.BOOTS_KEPT])})
