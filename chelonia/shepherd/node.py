"""What the parts of one Shepherd share: its ports, its durable state, its index and what is to be reported.

Only bookkeeping that several parts need lives here; what to do is decided by the parts themselves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from chelonia.core import bounds
from chelonia.core.caller import Call, Role
from chelonia.core.cluster.replicas import Location, Receipt, ReplicaState
from chelonia.core.errors import CheloniaError
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
"""Where `ShepherdState.extra` keeps how far the scrub's round has come."""
REPORTED = "reported_boot"
"""Where `ShepherdState.extra` keeps the boot that reports are numbered by, where it is not that of a start."""
BOOTS = "boots"
"""Where `ShepherdState.extra` keeps the boots before this one, newest first, with blanks between."""
TOLD_TOGETHER = 30
"""Replicas that one log line tells of: some 4 KiB."""


@dataclass(frozen=True, slots=True)
class ShepherdPorts:
    """What a Shepherd needs from the world. `librarians`: one port that fails over among several; `each_librarian`: all
    of the moment, each by itself and by name, for heartbeats (None: there is but that one port); `moved`: counts bytes
    of small files, "in" or "out"."""

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
        """As it is, as this start found it, and as the disk has it."""
        self.journal = Journal(self.id, 0)
        self.round = ScrubRound()
        self.background = Background()
        self.news = asyncio.Event()
        self.suspicion = asyncio.Event()
        self.reconciling = Reconciling()
        self.ready = False
        """Whether the index is what is on the disk: before, nothing is taken."""
        self.measured = False
        """Whether the bytes of everything found at the start were looked at."""
        self.reclaimable_bytes = 0
        self.sending_pace, self.taking_pace = Pace(settings.copy_bytes_per_s_max), Pace(settings.copy_bytes_per_s_max)
        """Of all repair copies that are sent together, and of all that are taken; 0: as fast as it goes."""
        self.sending, self.taking = (SlotPool(ports.clock, self.id, self.copies_at_once_max) for _ in range(2))
        self.silent_until_ms = 0
        self._saving = asyncio.Lock()
        self._to_settle: dict[ReferenceId, None] = {}

    # --- durable state --------------------------------------------------------------------------------------------

    async def boot(self) -> None:
        """Raise the boot number, durably, before anything is served. Raises: BAD_CONFIG on another Shepherd's store.

        It follows the clock, in ms, where that is ahead: a Shepherd whose disk was replaced must not be taken for its
        past self, nor an old disk that was put back for one from the past.
        """
        await self.disk.open(self.id, self.ports.ids)
        old = await self.ports.worker.run(self.ports.state_file.load)
        if old is None:
            old = ShepherdState(boot=0, ticket_secret=self.ports.ids.token(32))
        if self.disk.identity.replaces:  # an administrator's word: whatever answers now is its cluster
            old = replace(old, cluster="", generation=0, sequence=0)
        elif not old.cluster:
            old = replace(old, cluster=self.disk.identity.cluster)
        self.found = old
        last = max(old.boot, int(old.extra.get(REPORTED, "0")))
        await self.save(lambda _: _booted(old, max(last + 1, self.ports.clock.now_ms())))
        self.journal = Journal(self.id, self.state.boot)
        self.round = ScrubRound(self.state.extra.get(CURSOR, ""))

    async def follow(self, later: int) -> None:
        """Be a start after this one, which this disk knows nothing of, durably: tickets of until now end. Raises: as
        `save`."""
        await self.save(lambda now: _booted(now, later + 1))
        self.journal.begin_anew(self.state.boot)

    async def number_anew(self) -> None:
        """Number reports as of a later boot, durably: what was sent before can follow nothing any more. Raises: as
        `save`."""
        boot = self.journal.boot + 1
        await self.save(lambda now: replace(now, extra={**now.extra, REPORTED: str(boot)}))
        self.journal.begin_anew(boot)

    @property
    def boots(self) -> tuple[int, ...]:
        """The boots before this one on this disk, newest first."""
        return tuple(int(text) for text in self.state.extra.get(BOOTS, "").split())

    async def save(self, change: Callable[[ShepherdState], ShepherdState]) -> None:
        """Change the state, durably: as it is by then, for others learn while the disk is looked at. Raises:
        UNAVAILABLE when the disk is gone or fails."""
        await self.disk.require()  # never into the directory below a disk that is not mounted
        self.state = change(self.state)
        async with self._saving:
            latest = self.state  # whoever waited for the lock writes what is newest
            await self.ports.worker.run(lambda: self.ports.state_file.save(latest))
            self.kept = latest

    # --- repair copies --------------------------------------------------------------------------------------------

    @property
    def copies_at_once_max(self) -> int:
        """Repair copies that are sent, and as many that are taken, at once by the configuration of this Shepherd."""
        return places_of(self.settings.copies_at_once_max, 0)

    def ordered(self, bytes_per_s_max: int, copies_at_once_max: int) -> None:
        """Put in force what the cluster orders for repair copies, where the configuration does not allow less."""
        rates = [rate for rate in (self.settings.copy_bytes_per_s_max, bytes_per_s_max) if rate]
        self.sending_pace.per_s_max = self.taking_pace.per_s_max = min(rates, default=0)
        for places in (self.sending, self.taking):
            places.limit(places_of(self.copies_at_once_max, copies_at_once_max))

    # --- who we are -----------------------------------------------------------------------------------------------

    def own_call(self, request_id: str = "", key: str = "") -> Call:
        """The context of a call in this Shepherd's own name."""
        return Call(
            dn=self.settings.dn,
            roles=(Role.SHEPHERD,),
            service_id=self.id,
            request_id=request_id or self.ports.ids.uuid(),
            request_key=RequestKey(key),
        )

    def receipts(self, kept: Sequence[KeptReplica]) -> tuple[Receipt, ...]:
        """This Shepherd's signed word for its own copies."""
        now_ms, boot = self.ports.clock.now_ms(), self.state.boot
        unsigned = [
            Receipt(held.blob, Location(self.id, held.reference), held.size, held.checksums, boot, now_ms)
            for held in kept
        ]
        return receipts.sign_all(unsigned, self.ports.signer.sign)

    # --- what others must hear ------------------------------------------------------------------------------------

    def report(self, reference: ReferenceId, delay_ms: int = 0) -> None:
        """Have the state of a replica reported."""
        self.journal.note(reference, self.ports.clock.monotonic_ms() + delay_ms)
        self.news.set()

    def took(self, kept: Sequence[KeptReplica], delay_ms: int) -> None:
        """New replicas are on stable storage; they are reported after `delay_ms`."""
        for held in kept:
            self.index.put(held)
            self.report(held.reference, delay_ms)
        self.journal.outdated(self.ports.clock.monotonic_ms(), self.settings.uncommitted_report_ms)
        for start in range(0, len(kept), TOLD_TOGETHER):
            some = kept[start : start + TOLD_TOGETHER]
            told = ", ".join([f"reference={held.reference} blob={held.blob} size={held.size}" for held in some])
            log.info("stored %s", told)

    def describe(self, reference: ReferenceId) -> ReportedReplica | None:
        """What a report says of a replica now."""
        held = self.index.get(reference)
        return lifecycle.reported(held) if held else None

    def doubt(self, reference: ReferenceId) -> None:
        """Somebody relied on this replica: when it is not here, what is believed of this Shepherd is compared anew, and
        when it is damaged, that is told again."""
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
        """For how many more milliseconds a drill keeps this Shepherd silent, 0 when none does."""
        return max(self.silent_until_ms - self.ports.clock.monotonic_ms(), 0)

    # --- custody --------------------------------------------------------------------------------------------------

    def known(self, reference: ReferenceId, believed: ReplicaState | None) -> None:
        """Note that a Librarian knows this replica's blob, and believes this of it (None: not known): from now on it is
        committed."""
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
        """Have the store note what `known` noted. Losing it in a crash is harmless: it is told again."""
        references, self._to_settle = tuple(self._to_settle), {}
        if references:
            await self.ports.blobs.settle(references)

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
        """Erase a replica by order, wherever it is. Raises: UNAVAILABLE: then it may be here still, and is checked."""
        held = self.index.remove(reference)
        if held is not None and self.journal.may_be_told(reference):
            self.index.miss(reference)
        try:
            await self.ports.blobs.erase(reference)
        except CheloniaError:
            if held is not None and reference not in self.index:
                self.index.put(lifecycle.unproven(held))
                self.suspect(reference)
                self.report(reference)
            raise
        if held is not None:
            if not self.journal.erased(reference, held.blob, self.ports.clock.monotonic_ms()):
                self.index.told_missing(reference)
            self.news.set()
            log.info("replica erased reference=%s blob=%s size=%d", reference, held.blob, held.size)


def _booted(old: ShepherdState, boot: int) -> ShepherdState:
    """The state of a start after the one that this is of."""
    boots = [str(old.boot), *old.extra.get(BOOTS, "").split()] if old.boot else []
    return replace(old, boot=boot, extra={**old.extra, BOOTS: " ".join(boots[: bounds.BOOTS_KEPT])})
