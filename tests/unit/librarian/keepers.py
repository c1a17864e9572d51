"""Shepherds that keep bytes and records in memory, and the Librarian over them: for snapshots and rebuilds."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from chelonia.ahash.service import AHashService
from chelonia.core.caller import Call
from chelonia.core.cluster.replicas import Checksums, Location, Receipt, ReplicaFacts, ReplicaState
from chelonia.core.contents.attributes import laid_on
from chelonia.core.contents.extents import ByteRange, Extent
from chelonia.core.contents.uploads import NO_PLACE, BeginPut, CommitFile, PiecePlace, SpliceFile
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ROOT, BlobId, Guid, ReferenceId, ServiceId
from chelonia.core.names import LogicalName, parse_ln
from chelonia.core.ports.ahash import AHash, Position
from chelonia.core.ports.shepherd import (
    Authority,
    CopyOrder,
    DeleteOutcome,
    GetRequest,
    PutRequest,
    RecordPage,
    ReplicaRecord,
    ShepherdStatus,
    TurlOutcome,
)
from chelonia.core.values import replace
from chelonia.librarian.metadata.records import LibrarianIdentity
from chelonia.librarian.metadata.seal import seal
from chelonia.librarian.service import LibrarianService
from chelonia.librarian.settings import LibrarianSettings
from chelonia.librarian.world import World
from tests.support.ahash import LIBRARIAN, serving
from tests.support.clocks import VirtualClock
from tests.support.librarian import (
    ADMIN,
    BARTENDER,
    HOUR,
    JOE,
    Bench,
    PaperVerifier,
    SequentialIds,
    approved,
    shepherd_id,
)
from tests.support.memory_store import MemoryStore


@dataclass
class Kept:
    """A replica on a disk."""

    facts: ReplicaFacts
    data: bytes
    committed: bool = True
    state: ReplicaState = ReplicaState.ALIVE


KEY = "5a" * 32
"""The cluster's record key."""


def resealed(facts: ReplicaFacts, **changes: object) -> ReplicaFacts:
    """These facts with changes, under the cluster's seal."""
    made = replace(facts, **changes)  # type: ignore[arg-type]
    return replace(made, seal=seal(KEY, made.blob, made.guid, name=made.name, owner=made.owner, wanted=made.wanted))


@dataclass
class Keeper:
    """A Shepherd's control port over a dictionary."""

    cluster: Keepers
    id: ServiceId
    disk: dict[ReferenceId, Kept] = field(default_factory=dict)
    up: bool = True
    starting: bool = False
    """It answers that it starts, and refuses requests (not `up`)."""

    def _check(self) -> None:
        if not self.up:
            raise CheloniaError(Kind.NETWORK, "shepherd", self.id, "connection refused")

    def plant(self, number: int, facts: ReplicaFacts, data: bytes, **state: object) -> None:
        """Put a replica on the disk without an upload; the lower its number, the earlier it is reported."""
        self.disk[ReferenceId(f"00000000-0000-4000-9000-{number:012d}")] = Kept(facts, data, **state)  # type: ignore[arg-type]

    async def put(self, call: Call, requests: tuple[PutRequest, ...]) -> tuple[TurlOutcome, ...]:
        self._check()
        out = []
        for request in requests:
            reference = request.reference or ReferenceId(self.cluster.ids.uuid())
            turl = f"{self.id} {reference}"
            self.cluster.turls[turl] = request.facts
            out.append(TurlOutcome(request.request_id, turl, "http", reference))
        return tuple(out)

    async def get(self, call: Call, requests: tuple[GetRequest, ...]) -> tuple[TurlOutcome, ...]:
        self._check()
        return tuple(
            TurlOutcome(r.request_id, f"{self.id} {r.reference}" if r.reference in self.disk else "", "http")
            for r in requests
        )

    async def copy(self, call: Call, order: CopyOrder) -> Receipt:
        self._check()
        [receipt] = await self.cluster.put(order.turl, self.disk[order.reference].data)
        return receipt

    async def delete(
        self, call: Call, references: tuple[tuple[str, ReferenceId], ...], authority: Authority | None
    ) -> tuple[DeleteOutcome, ...]:
        self._check()
        for _, reference in references:
            self.disk.pop(reference, None)
        return tuple(DeleteOutcome(name, "deleted") for name, _ in references)

    async def status(self, call: Call) -> ShepherdStatus:
        self._check()
        return ShepherdStatus(self.id, 1, len(self.disk), 0, 0, reporting=True, quarantined=0)

    async def records(self, call: Call, after: str, limit: int) -> RecordPage:
        self._check()
        later = sorted(reference for reference in self.disk if reference > after)
        items = tuple(
            ReplicaRecord(each, kept.state, kept.committed, False, kept.facts)
            for each in later[:limit]
            for kept in (self.disk[each],)
        )
        return RecordPage(items, later[limit - 1] if len(later) > limit else "")


@dataclass
class Keepers:
    """A cluster of keepers; also the carrier between Librarian and Shepherds."""

    clock: VirtualClock = field(default_factory=VirtualClock)
    ids: SequentialIds = field(default_factory=SequentialIds)
    shepherds: dict[ServiceId, Keeper] = field(default_factory=dict)
    turls: dict[str, ReplicaFacts] = field(default_factory=dict)
    unanswered: Callable[[str], bool] = field(default=lambda method: False)
    """Whether the A-Hash's answer to this call is lost, though it was carried out."""
    bench: Bench = field(init=False)
    cluster: str = "test"

    def shepherd(self, service: ServiceId) -> Keeper:
        return self.shepherds[service]

    # --- the carrier ---

    async def put(self, turl: str, body: bytes) -> tuple[Receipt, ...]:
        shepherd, reference = turl.split(" ")
        keeper = self.shepherds[ServiceId(shepherd)]
        keeper._check()
        facts = self.turls.pop(turl)
        sums = checksums(body)
        keeper.disk[ReferenceId(reference)] = Kept(replace(facts, size=len(body), checksums=sums), body)
        location = Location(keeper.id, ReferenceId(reference))
        return (Receipt(facts.blob, location, len(body), sums, 1, self.clock.now_ms(), f"signed by key of {shepherd}"),)

    async def get(self, turl: str, size_max: int) -> bytes:
        shepherd, reference = turl.split(" ")
        self.shepherds[ServiceId(shepherd)]._check()
        return self.shepherds[ServiceId(shepherd)].disk[ReferenceId(reference)].data

    # --- what users do ---

    async def upload(self, ln: str, data: bytes = b"1234567", copies: int = 2, **facts: object) -> tuple[Guid, BlobId]:
        """Upload a file to a Logical Name, bytes first; its parent is there."""
        done = await self.bench.service.commit_file(BARTENDER, await self.arrived(ln, data, copies, **facts))
        return done.guid, done.blob

    async def lay(self, ln: str, file: Guid, at: int, data: bytes, *, copies: int = 2) -> BlobId:
        """Splice bytes whose records say where they are."""
        entry = await self.bench.stored(file)
        place = PiecePlace(*laid_on(entry), int(entry.value("states", "size")), (ByteRange(at, len(data)),))
        return await self.splice(ln, file, at, data, copies=copies, place=place)

    async def splice(
        self, ln: str, file: Guid, at: int, data: bytes, *, copies: int = 2, place: PiecePlace = NO_PLACE
    ) -> BlobId:
        piece = await self.arrived(ln, data, copies, piece=True, replaces=file, at=place)
        blob = piece.begun.blob
        await self.bench.service.splice(BARTENDER, SpliceFile(piece.begin, (piece,), (Extent(at, len(data), blob),)))
        return blob

    async def arrived(self, ln: str, data: bytes, copies: int = 2, **facts: object) -> CommitFile:
        """An upload whose bytes have arrived."""
        name = parse_ln(ln)
        parent = await self.parent(name)
        begin = BeginPut(
            parent, name.name, name, JOE, {}, copies, len(data), Checksums(), self.clock.now_ms() + HOUR, named=False  # type: ignore[arg-type]
        )  # fmt: skip
        begin = replace(begin, **facts)  # type: ignore[arg-type]
        begun = await self.bench.service.begin_put(BARTENDER, begin)
        sealed = replace(begun.facts(begin, self.clock.now_ms()), size=len(data), checksums=checksums(data))
        receipts = []
        for shepherd in list(self.shepherds)[:copies]:
            turl = f"{shepherd} {self.ids.uuid()}"
            self.turls[turl] = sealed
            receipts += await self.put(turl, data)
        return CommitFile(begin, begun, tuple(receipts))

    async def parent(self, name: LogicalName) -> Guid:
        [walk] = await self.bench.service.traverse(BARTENDER, (name.parent,))
        assert walk.complete, name
        return walk.guid

    async def paths(self, guid: Guid = ROOT, path: str = "") -> dict[str, str]:
        """Every path of the namespace and its target."""
        found = {}
        for name, child in (await self.bench.names(guid)).items():
            found[f"{path}/{name}"] = child
            stored = await self.bench.stored(child)
            if stored.value("entry", "type") == "collection":
                found.update(await self.paths(Guid(child), f"{path}/{name}"))
        return found

    async def until(self, what, limit_ms: int = 60_000) -> None:  # type: ignore[no-untyped-def]
        begun = self.clock.monotonic_ms()
        while not await what():
            assert self.clock.monotonic_ms() - begun < limit_ms
            await asyncio.sleep(0.05)

    async def hearts(self) -> None:
        while True:
            for keeper in self.shepherds.values():
                if keeper.up or keeper.starting:
                    with suppress(CheloniaError):  # it beats again, as Shepherds do
                        await self.bench.beat(keeper.id, compared=9 if keeper.up else 0, starting=keeper.starting)
            await asyncio.sleep(0.3)

    @asynccontextmanager
    async def running(self, settings: LibrarianSettings, generation: int = 1) -> AsyncIterator[Keepers]:
        """A Librarian over a fresh A-Hash of some generation, healing; the Shepherds' disks stay."""
        async with (
            serving(MemoryStore(), self.clock) as ahash,  # type: ignore[arg-type]
            self._librarian(ahash, settings, generation),
        ):
            yield self

    @asynccontextmanager
    async def another(self, settings: LibrarianSettings, generation: int = 1) -> AsyncIterator[Keepers]:
        """Another Librarian over the present A-Hash, in the place of the ended one."""
        async with self._librarian(self.bench.ahash, settings, generation):
            yield self

    @asynccontextmanager
    async def _librarian(
        self, ahash: AHashService, settings: LibrarianSettings, generation: int
    ) -> AsyncIterator[None]:
        chosen = replace(settings, bootstrap=settings.bootstrap or approved(*self.shepherds))
        raised = Generation(ahash, generation, self)
        world = World(self, PaperVerifier(), self.clock, self.ids, chosen, carrier=self)  # type: ignore[arg-type]
        service = LibrarianService(raised, LibrarianIdentity(LIBRARIAN.dn, ServiceId("https://l/Librarian")), world)  # type: ignore[arg-type]
        self.bench = Bench(service, ahash, self.clock, tuple(self.shepherds), chosen, self)  # type: ignore[arg-type]
        await service.start()
        await self.bench.beat_all()
        tasks = [asyncio.create_task(service.run()), asyncio.create_task(self.hearts())]
        try:
            yield
        finally:
            await service.stop()
            for task in tasks:
                task.cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
            assert [e for e in done if e is not None and not isinstance(e, asyncio.CancelledError)] == []


class Generation:
    """An A-Hash that states another generation, and some of whose answers are lost."""

    def __init__(self, ahash: AHashService, generation: int, cluster: Keepers) -> None:
        self._ahash: AHash = ahash
        self._generation = generation
        self._cluster = cluster

    def __getattr__(self, name: str):  # type: ignore[no-untyped-def]
        method = getattr(self._ahash, name)

        async def call(*args: object) -> object:
            answer = await method(*args)
            if self._cluster.unanswered(name):
                raise CheloniaError(Kind.OUTCOME_UNKNOWN, name, cause="its master has changed")
            position = getattr(answer, "position", None)
            if not isinstance(position, Position):
                return answer
            return replace(answer, position=replace(position, generation=self._generation))

        return call


def keepers(count: int = 4) -> Keepers:
    cluster = Keepers()
    cluster.shepherds = {shepherd_id(n): Keeper(cluster, shepherd_id(n)) for n in range(1, count + 1)}
    return cluster


def checksums(data: bytes) -> Checksums:
    return Checksums(hashlib.sha256(data).hexdigest(), hashlib.md5(data).hexdigest())


SETTINGS = replace(LibrarianSettings.dev(ADMIN.dn), snapshot_interval_ms=5_000, survey_page_ms=0, tick_ms=500)
