"""One Shepherd in a world that a test controls: memory stores, virtual time, a Librarian and peers that do as the test
says."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from chelonia.core.caller import Call, Role
from chelonia.core.cluster.position import Position
from chelonia.core.cluster.replicas import Checksums, Receipt, ReplicaFacts, ReplicaState
from chelonia.core.contents.extents import ByteRange
from chelonia.core.contents.uploads import Committed
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BlobId, Dn, Guid, Ms, ReferenceId, ServiceId
from chelonia.core.limits import LimitCounts
from chelonia.core.ports.librarian import (
    Heartbeat,
    HeartbeatAnswer,
    InventoryItem,
    InventoryPage,
    Librarian,
    Report,
    ReportAnswer,
)
from chelonia.core.ports.shepherd import Purpose, PutRequest, StoreIdentity, Turl, TurlOutcome, Upload, Uploaded
from chelonia.core.values import replace
from chelonia.shepherd.node import ShepherdPorts
from chelonia.shepherd.service import ShepherdService
from chelonia.shepherd.settings import ShepherdSettings, dev
from chelonia.shepherd.store.checksums import Hasher
from tests.sim.process import SimIds
from tests.sim.virtual_loop import supplied, this_loop
from tests.support.clocks import EPOCH_MS, VirtualClock
from tests.support.memory_blobs import MemoryBlobs, MemoryState
from tests.support.turls import parse_turl

T = TypeVar("T")

JOE = Call(dn=Dn("/CN=joe"), address="10.0.0.1")
EVE = Call(dn=Dn("/CN=eve"), address="10.0.0.2")
BARTENDER = Call(dn=Dn("/CN=bartender"), roles=(Role.BARTENDER,))
LIBRARIAN = Call(dn=Dn("/CN=librarian"), roles=(Role.LIBRARIAN,))
ADMINISTRATOR = Call(dn=Dn("/CN=admin"), roles=(Role.ADMINISTRATOR,))
PEER = Call(dn=Dn("/CN=shepherd"), roles=(Role.SHEPHERD,))
CLUSTER = "cluster-1"


class InlineWorker:
    """Runs work at once."""

    async def run(self, fn: Callable[[], T]) -> T:
        return fn()


class NamedSigner:
    """Signs with a name, so that a test sees the signer."""

    def __init__(self, name: str) -> None:
        self.name = name

    def sign(self, message: bytes) -> str:
        return f"{self.name}:{len(message)}"

    def verify_key(self) -> str:
        return f"key of {self.name}"


@dataclass
class FakeLibrarian:
    """A Librarian for one Shepherd. `known`: blobs that a transact has named.

    `failures`: raised by the next calls, by operation.
    `lose_answers`: calls applied whose answer never arrives, by operation.
    """

    position: Position = Position(CLUSTER, 1, 1)
    approved: bool = True
    known: dict[BlobId, None] = field(default_factory=dict)
    items: dict[ReferenceId, InventoryItem] = field(default_factory=dict)
    failures: dict[str, list[Kind]] = field(default_factory=dict)
    lose_answers: dict[str, int] = field(default_factory=dict)
    beats: list[Heartbeat] = field(default_factory=list)
    sent: list[Report] = field(default_factory=list)
    applied: list[Report] = field(default_factory=list)
    commits: list[tuple[Call, Guid, tuple[Receipt, ...]]] = field(default_factory=list)
    pages: list[str] = field(default_factory=list)
    page_size: int = 1000
    boot: int = 0
    number: int = 0
    before: tuple[int, int] = (0, 0)
    obeyed: int = 0
    next_report_ms: int = 1000
    refused: str = ""
    copy_bytes_per_s_max: int = 0
    copies_at_once_max: int = 0

    async def heartbeat(self, call: Call, beat: Heartbeat) -> HeartbeatAnswer:
        self._fail("heartbeat")
        assert call.has(Role.SHEPHERD)
        assert call.service_id == beat.shepherd
        self.beats.append(beat)
        if self.refused:
            return HeartbeatAnswer(1000, True, 0, self.position, self.refused, "it is somebody else")
        limits = {"copy_bytes_per_s_max": self.copy_bytes_per_s_max, "copies_at_once_max": self.copies_at_once_max}
        return HeartbeatAnswer(1000, self.approved, self.number, self.position, **limits)

    async def report(self, call: Call, report: Report) -> ReportAnswer:
        self._fail("report")
        self.sent.append(report)
        if report.boot > self.boot and report.number == 1:
            if self.number > 1:
                self.before = (self.boot, self.number)
            self.boot, self.number = report.boot, 0
        fresh = report.boot == self.boot and report.number == self.number + 1
        unknown: tuple[ReferenceId, ...] = ()
        if fresh:
            self.number += 1
            self.applied.append(report)
            unknown = tuple(r.reference for r in report.replicas if r.blob not in self.known)
        if self.lose_answers.get("report"):
            self.lose_answers["report"] -= 1
            raise CheloniaError(Kind.TIMEOUT, "report")
        if report.boot < self.boot:
            return ReportAnswer(0, self.next_report_ms, before_boot=self.boot if report.number == 1 else 0)
        before = (*self.before, self.obeyed) if report.number == 1 else (0, 0, 0)
        return ReportAnswer(self.number, self.next_report_ms, unknown, (), *before)

    async def commit_put(self, call: Call, guid: Guid, receipts: tuple[Receipt, ...]) -> Committed:
        self._fail("commit_put")
        self.commits.append((call, guid, receipts))
        self.known[receipts[0].blob] = None
        if self.lose_answers.get("commit_put"):
            self.lose_answers["commit_put"] -= 1
            raise CheloniaError(Kind.OUTCOME_UNKNOWN, "commit_put")
        return Committed(guid, receipts[0].blob)

    async def inventory(self, call: Call, shepherd: ServiceId, after: str, limit: int) -> InventoryPage:
        self._fail("inventory")
        self.pages.append(after)
        rest = [reference for reference in sorted(self.items) if reference > after]
        page = rest[: self.page_size]
        return InventoryPage(tuple(self.items[r] for r in page), page[-1] if len(rest) > len(page) else "")

    def forget(self) -> None:
        """Forget earlier reports: a start has to compare the whole inventory."""
        self.boot, self.number, self.before = 0, 0, (0, 0)

    def states(self) -> list[tuple[str, str]]:
        """The applied reports, in order: (reference, state)."""
        return [(r.reference, r.state.value) for report in self.applied for r in report.replicas]

    def _fail(self, operation: str) -> None:
        if self.failures.get(operation):
            raise CheloniaError(self.failures[operation].pop(0), operation)


@dataclass
class FakeTransfers:
    """Carries pushes to other Shepherds of the test. The fields have faults by base URL.

    `down`: refuse.
    `frozen`: read no byte and answer nothing.
    `slow`: answer a push so many ms later.
    `refused`: the error of a call of `offset`.
    `cut_after`: the next push breaks after so many bytes.
    `lose_answer`: the next answer is lost.
    """

    peers: dict[str, ShepherdService] = field(default_factory=dict)
    down: list[str] = field(default_factory=list)
    frozen: list[str] = field(default_factory=list)
    slow: dict[str, int] = field(default_factory=dict)
    refused: dict[str, CheloniaError] = field(default_factory=dict)
    cut_after: dict[str, int] = field(default_factory=dict)
    lose_answer: list[str] = field(default_factory=list)
    pushes: list[tuple[str, int]] = field(default_factory=list)
    carried: list[tuple[float, int]] = field(default_factory=list)
    """The bytes of each piece, with its time (seconds of the loop)."""

    async def push(
        self, turl: str, body: AsyncIterator[bytes], length: int, offset: int = 0, *, patient: bool = False
    ) -> Uploaded:
        parts = parse_turl(turl)
        self.pushes.append((parts.base, offset))
        if parts.base in self.down:
            raise CheloniaError(Kind.NETWORK, "push", parts.base)
        if parts.base in self.frozen:
            await asyncio.Event().wait()
        total = offset + length if offset else -1
        upload = Upload(parts, self._wire(parts.base, body), length, offset, total)
        answer = await self.peers[parts.base].receive(PEER, upload)
        await asyncio.sleep(self.slow.get(parts.base, 0) / 1000)
        if parts.base in self.lose_answer:
            self.lose_answer.remove(parts.base)
            raise CheloniaError(Kind.NETWORK, "push", "answer lost")
        return answer

    async def offset(self, turl: str) -> int:
        parts = parse_turl(turl)
        if parts.base in self.down:
            raise CheloniaError(Kind.NETWORK, "offset", parts.base)
        if parts.base in self.frozen:
            await asyncio.sleep(60)
            raise CheloniaError(Kind.TIMEOUT, "offset", parts.base)
        if parts.base in self.refused:
            raise self.refused[parts.base]
        return await self.peers[parts.base].offset(PEER, parts)

    async def _wire(self, base: str, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        left = self.cut_after.pop(base, -1)
        async for chunk in body:
            if 0 <= left < len(chunk):
                yield chunk[:left]
                raise CheloniaError(Kind.NETWORK, "push", "connection lost")
            left -= len(chunk) if left >= 0 else 0
            self.carried.append((asyncio.get_running_loop().time(), len(chunk)))
            yield chunk


class World:
    """A Shepherd and its dependencies; `restart` keeps the disk. The end of the test stops it."""

    def __init__(self, name: str = "s1", **settings: Any) -> None:
        base = f"https://{name}:6000"
        self.settings: ShepherdSettings = replace(dev(ServiceId(f"{base}/Shepherd"), base), **settings)
        self.base = base
        self.clock = VirtualClock()
        self.ids = SimIds(random.Random(sum(name.encode())))
        self.blobs = MemoryBlobs(1 << 30, StoreIdentity(f"store of {name}", self.settings.service_id, CLUSTER))
        self.state = MemoryState()
        self.librarian = FakeLibrarian()
        self.transfers = FakeTransfers()
        self.signer = NamedSigner(name)
        self.loops: asyncio.Task[None] | None = None
        self.moved: list[tuple[str, int]] = []
        self.limits = LimitCounts()
        self.service = self._service()

    def _service(self) -> ShepherdService:
        ports = ShepherdPorts(
            blobs=self.blobs,
            state_file=self.state,
            librarians=cast("Librarian", self.librarian),
            transfers=self.transfers,
            signer=self.signer,
            worker=InlineWorker(),
            clock=self.clock,
            ids=self.ids,
            limits=self.limits,
            moved=lambda direction, size: self.moved.append((direction, size)),
        )
        return ShepherdService(ports, self.settings)

    async def start(self, *, run: bool = False) -> "World":
        await self.service.start()
        if run:
            self.loops = asyncio.ensure_future(self.service.run())
            this_loop().endings.append(self._ended)
        return self

    async def _ended(self) -> None:
        """Stop it with the test, unless it was stopped before."""
        if self.loops is not None:
            await self.stop()

    async def stop(self) -> None:
        if self.loops is not None:
            self.loops.cancel()
            await asyncio.wait((self.loops,))
            self.loops = None
        await self.service.stop()

    async def stop_hard(self) -> None:
        """Kill it: nothing is written any more."""
        assert self.loops is not None
        self.loops.cancel()
        await asyncio.wait((self.loops,))
        self.loops = None

    async def restart(self, *, run: bool = False, crash: bool = True) -> None:
        if not crash or self.loops is not None:
            await self.stop()
        if crash:
            self.blobs.crash()
        self.service = self._service()
        await self.start(run=run)

    async def pass_ms(self, duration_ms: int) -> None:
        await self.clock.sleep(duration_ms)

    # --- shorthand ------------------------------------------------------------------------------------------------

    async def put(self, request: PutRequest) -> TurlOutcome:
        (outcome,) = await self.service.put(BARTENDER, (request,))
        return outcome

    async def ticket(self, request: PutRequest) -> Turl:
        outcome = await self.put(request)
        assert outcome.turl, outcome
        return parse_turl(outcome.turl)

    async def send(self, ticket: Turl, data: bytes, call: Call = JOE, **how: Any) -> Uploaded:
        how.setdefault("length", len(data))
        return await self.service.receive(call, Upload(ticket, body(data), **how))

    async def store(self, data: bytes, number: int = 1, **how: Any) -> ReferenceId:
        """Upload a replica whose blob the namespace has at once; returns its reference."""
        wanted = request(data, number, **how)
        self.librarian.known[wanted.facts.blob] = None
        outcome = await self.put(wanted)
        assert outcome.turl, outcome
        await self.send(parse_turl(outcome.turl), data)
        return outcome.reference

    def listed(self, *references: ReferenceId) -> None:
        """Have the namespace list these as alive, and the Shepherd know it."""
        for reference in references:
            self.service._node.known(reference, ReplicaState.ALIVE)

    async def state_of(self, reference: ReferenceId) -> str:
        (outcome,) = await self.service.stat(LIBRARIAN, (("r", reference),))
        return outcome.state if outcome.found else "none"

    async def quarantined(self) -> int:
        return (await self.service.status(ADMINISTRATOR)).quarantined


def numbered(kind: str, number: int) -> str:
    """A recognisable UUID."""
    return f"{kind * 8}-0000-4000-8000-{number:012d}"


def request(data: bytes, number: int = 1, **how: Any) -> PutRequest:
    """A PutRequest for `data` with everything announced; `facts` fields and request fields may be overridden."""
    facts = ReplicaFacts(
        blob=BlobId(numbered("b", number)),
        guid=Guid(numbered("f", number)),
        name=how.pop("name", f"/file{number}"),
        owner=how.pop("owner", JOE.dn),
        size=how.pop("size", len(data)),
        checksums=how.pop("checksums", checksums(data)),
        wanted=2,
        created_ms=Ms(EPOCH_MS),
        seal="seal",
    )
    how = {"purpose": Purpose.REPLICA, "protocols": ("http",), **how}
    return PutRequest(request_id="r", facts=facts, **how)


def checksums(data: bytes) -> Checksums:
    hasher = Hasher()
    hasher.update(data)
    return hasher.checksums().noted


async def body(data: bytes, piece: int = 100_000) -> AsyncIterator[bytes]:
    """A body in pieces, as a connection delivers it."""
    for start in range(0, len(data), piece):
        yield data[start : start + piece]


async def broken_body(data: bytes) -> AsyncIterator[bytes]:
    """A body whose connection breaks at its end."""
    yield data
    raise CheloniaError(Kind.NETWORK, "PUT", "", "connection lost")


async def read_all(world: World, ticket: Turl, call: Call = JOE) -> bytes:
    """One whole GET."""
    download = await world.service.open(call, ticket)
    chunks = [chunk async for chunk in download.reader.read(ByteRange(0, download.size))]
    await download.reader.close(complete=True)
    return b"".join(chunks)


def within(world: World, operation: str, meanwhile: Callable[[], Coroutine[Any, Any, object]], after: int = 0) -> None:
    """Do something during a call of an operation of the disk: the next one, or after so many more."""
    inner, calls = getattr(world.blobs, operation), itertools.count()

    async def hears(*args: Any) -> Any:
        if next(calls) == after:
            setattr(world.blobs, operation, inner)
            await meanwhile()
        return await inner(*args)

    setattr(world.blobs, operation, hears)


def restored_within(world: World, operation: str, after: int = 0) -> None:
    """Put older metadata back, and have a heartbeat learn it, during a call of an operation of the disk."""

    async def restored() -> None:
        world.librarian.position = Position(CLUSTER, 2, 1)
        await world.service.beat()

    within(world, operation, restored, after)


async def two(**settings: Any) -> tuple[World, World]:
    """A Shepherd with these settings, and a peer it can push to."""
    first, second = World("s1", **settings), World("s2")
    first.transfers.peers[second.base] = second.service
    return await first.start(), await second.start()


def served(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Turns `async def test(world, ...)` into a test on virtual time, with a Shepherd that serves."""
    return _on_world(test, run=False)


def running(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """As `served`; the Shepherd does its background work as well."""
    return _on_world(test, run=True)


def _on_world(test: Callable[..., Awaitable[None]], *, run: bool) -> Callable[..., None]:
    async def play(**named: Any) -> None:
        await test(world=await World().start(run=run), **named)

    return supplied(test, "world", play)
