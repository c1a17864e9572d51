"""A Bartender on the real Librarian and the A-Hash's memory twin, with Shepherds that remember requests and bytes.

`scene` turns `async def test(stage, ...)` into a test on virtual time. joe owns the root and nobody else has any right,
as with the original when joe made it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from chelonia.ahash.service import AHashService
from chelonia.ahash.settings import AHashSettings
from chelonia.bartender.service import BartenderService
from chelonia.bartender.settings import BartenderSettings
from chelonia.core.caller import Call, Role
from chelonia.core.cluster.replicas import Checksums, Location, Receipt
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ANONYMOUS, BlobId, Dn, Guid, ReferenceId, RequestKey, ServiceId
from chelonia.core.metadata import Filter, Triple, from_triples
from chelonia.core.ports.bartender import (
    GetFileRequest,
    ListedEntry,
    ListRequest,
    MakeRequest,
    ModifyRequest,
    MoveRequest,
    NameRequest,
    Outcome,
    PutFileRequest,
    TransferOutcome,
)
from chelonia.core.ports.files import Arrived, Placed
from chelonia.core.ports.librarian import Heartbeat, ServiceRecord
from chelonia.core.ports.shepherd import (
    FetchOutcome,
    GetRequest,
    MeasuredOutcome,
    Purpose,
    PutRequest,
    ReplicaStatOutcome,
    SmallBlob,
    StoreOutcome,
    TurlOutcome,
)
from chelonia.librarian.metadata.records import LibrarianIdentity
from chelonia.librarian.service import LibrarianService
from chelonia.librarian.settings import LibrarianSettings
from chelonia.librarian.world import World
from chelonia.shepherd.store.checksums import Hasher
from chelonia.wire.receipts import to_text
from tests.sim.process import SimIds
from tests.sim.virtual_loop import supplied
from tests.support.clocks import VirtualClock
from tests.support.memory_store import InlineExecutor, MemoryStore

GIB = 1 << 30
KEY = b"token key of the test cluster"
JOE, EVE = Call(Dn("/O=Grid/CN=joe"), request_id="r"), Call(Dn("/O=Grid/CN=eve"), request_id="r")
NOBODY = Call(ANONYMOUS)
ADMIN = Call(Dn("/O=Grid/CN=admin"), (Role.ADMINISTRATOR,))
BARTENDER_DN, BARTENDER_ID = Dn("/O=Grid/CN=bartender"), ServiceId("https://b:1/Bartender")
LIBRARIAN_DN, LIBRARIAN_ID = Dn("/O=Grid/CN=librarian"), ServiceId("https://l:1/Librarian")
HTTP = ("http",)


class AnyVerifier:
    """Accepts every string that has the form of a signature."""

    def verify(self, verify_key: str, message: bytes, signature: str) -> bool:
        return bool(verify_key and signature)


@dataclass
class StageShepherd:
    """A Shepherd's control port that remembers requests. `refuses`: its error. `down`: no answer. `slow_ms`: delay of
    an answer."""

    service: ServiceId
    dn: Dn
    refuses: str = ""
    down: bool = False
    slow_ms: int = 0
    puts: dict[str, PutRequest] = field(default_factory=dict)
    stores: int = 0
    small: dict[ReferenceId, SmallBlob] = field(default_factory=dict)
    held: dict[ReferenceId, bytes] = field(default_factory=dict)
    gets: list[GetRequest] = field(default_factory=list)
    callers: list[Call] = field(default_factory=list)

    async def _answer(self, call: Call) -> None:
        self.callers.append(call)
        if self.slow_ms:
            await asyncio.sleep(self.slow_ms / 1000)
        if self.down:
            raise CheloniaError(Kind.NETWORK, "shepherd", self.service, "connection refused")

    async def put(self, call: Call, requests: tuple[PutRequest, ...]) -> tuple[TurlOutcome, ...]:
        await self._answer(call)
        if self.refuses:
            return tuple(TurlOutcome(r.request_id, error=self.refuses, kind="no-space") for r in requests)
        (request,) = requests
        turl = f"{self.service}/turl/{len(self.puts)}"
        self.puts[turl] = request
        return (TurlOutcome(request.request_id, turl, "http", ReferenceId(f"ref-{turl[-1]}")),)

    async def get(self, call: Call, requests: tuple[GetRequest, ...]) -> tuple[TurlOutcome, ...]:
        await self._answer(call)
        if self.refuses:
            return tuple(TurlOutcome(r.request_id, error=self.refuses, kind="not-alive") for r in requests)
        self.gets.extend(requests)
        return tuple(TurlOutcome(r.request_id, f"{self.service}/get/{r.reference}", "http") for r in requests)

    async def store(self, call: Call, blobs: tuple[SmallBlob, ...]) -> tuple[StoreOutcome, ...]:
        self.stores += 1
        await self._answer(call)
        if self.refuses:
            return tuple(StoreOutcome(error=self.refuses, kind="no-space") for _ in blobs)
        return tuple(StoreOutcome(self._kept(blob)) for blob in blobs)

    def _kept(self, blob: SmallBlob) -> Receipt:
        reference = ReferenceId(f"small-{blob.facts.blob[:8]}-{len(self.small)}")
        self.small[reference] = blob
        location, facts = Location(self.service, reference), blob.facts
        return Receipt(facts.blob, location, facts.size, facts.checksums, 1, VirtualClock().now_ms(), "signature")

    async def fetch(self, call: Call, references: tuple[ReferenceId, ...]) -> tuple[FetchOutcome, ...]:
        await self._answer(call)
        found = [None if self.refuses else self.small.get(reference) for reference in references]
        return tuple(FetchOutcome(blob.data) if blob else FetchOutcome(kind="not-alive") for blob in found)

    async def stat(self, call: Call, references: tuple[tuple[str, ReferenceId], ...]) -> tuple[ReplicaStatOutcome, ...]:
        await self._answer(call)
        return tuple(ReplicaStatOutcome(number, reference, found=True) for number, reference in references)

    async def sums(self, call: Call, references: tuple[ReferenceId, ...]) -> tuple[MeasuredOutcome, ...]:
        await self._answer(call)
        return tuple([self._measured(self.held.get(reference)) for reference in references])

    def _measured(self, data: bytes | None) -> MeasuredOutcome:
        return MeasuredOutcome() if data is None else MeasuredOutcome(len(data), all_sums(data))

    def data(self, reference: str) -> bytes:
        small = self.small.get(ReferenceId(reference))
        return small.data if small is not None else self.held[ReferenceId(reference)]


class Between:
    """Stands between Bartender and Librarian: counts calls, and lets a test act before one or make it fail."""

    def __init__(self, librarian: LibrarianService) -> None:
        self._librarian = librarian
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.before: dict[str, Callable[[], Awaitable[None]]] = {}
        self.after: dict[str, CheloniaError] = {}
        """Errors raised once, after the call has done its work, as when an answer is lost."""

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        method = getattr(self._librarian, name)

        async def call(*args: Any) -> Any:
            self.calls.append((name, args))
            if name in self.before:
                await self.before.pop(name)()
            answer = await method(*args)
            if name in self.after:
                raise self.after.pop(name)
            return answer

        return call

    def named(self, name: str) -> list[tuple[Any, ...]]:
        return [args for called, args in self.calls if called == name]


class Stage:
    """The cluster of one test."""

    def __init__(
        self, settings: BartenderSettings | None = None, *, owner: Dn = JOE.dn, clock: VirtualClock | None = None
    ) -> None:
        self.clock, self.ids = clock or VirtualClock(), SimIds(random.Random(1))
        self.shepherds: dict[ServiceId, StageShepherd] = {}
        self.ahash = AHashService(MemoryStore(), InlineExecutor(), self.clock, AHashSettings(cluster="test"))
        world = World(
            self, AnyVerifier(), self.clock, self.ids, LibrarianSettings(root_owner=owner, lease_ms=10**9)
        )  # fmt: skip
        self.limits = world.limits
        """The Librarian's counters of limits."""
        self.librarian = LibrarianService(self.ahash, LibrarianIdentity(LIBRARIAN_DN, LIBRARIAN_ID), world)
        self.between = Between(self.librarian)
        self.settings = settings or BartenderSettings(BARTENDER_DN, BARTENDER_ID, KEY, files_url="https://door:1/")
        self.bartender = self.another_bartender(self.settings)

    def another_bartender(self, settings: BartenderSettings) -> BartenderService:
        return BartenderService(self.between, self, self.clock, self.ids, settings)

    def shepherd(self, service: ServiceId) -> Any:
        return self.shepherds[service]

    async def start(self) -> None:
        await self.ahash.start()
        await self.librarian.start()

    async def add_shepherds(self, *names: str, free: int = GIB, accepting: bool = True) -> None:
        """Register and approve Shepherds, with a first heartbeat; each in a domain of its name."""
        for name in names:
            service = await self.approve_shepherd(name)
            beat = Heartbeat(service, 1, 0, free, 4 * GIB, 0, accepting, name, "key of " + name)
            await self.librarian.heartbeat(self.as_shepherd(name), beat)

    async def approve_shepherd(self, name: str) -> ServiceId:
        """Register and approve a Shepherd that has sent no heartbeat yet."""
        service, dn = ServiceId(f"https://{name}:1/Shepherd"), Dn(f"/O=Grid/CN={name}")
        await self.librarian.approve(ADMIN, ServiceRecord(Role.SHEPHERD, dn, service, approved=True))
        self.shepherds[service] = StageShepherd(service, dn)
        return service

    def as_shepherd(self, name: str) -> Call:
        return Call(Dn(f"/O=Grid/CN={name}"), (Role.SHEPHERD,), ServiceId(f"https://{name}:1/Shepherd"))

    def named(self, name: str) -> StageShepherd:
        return self.shepherds[ServiceId(f"https://{name}:1/Shepherd")]

    # --- what users do, one element at a time -----------------------------------------------------------------------

    async def make(self, ln: str, call: Call = JOE, metadata: tuple[Triple, ...] = ()) -> Outcome:
        return (await self.bartender.make_collection(call, (MakeRequest("1", ln, metadata),)))[0]

    async def mount(self, ln: str, url: str = "gsiftp://se.example.org/data", call: Call = JOE) -> Outcome:
        return (await self.bartender.make_mountpoint(call, (MakeRequest("1", ln, (), url),)))[0]

    async def name_op(self, op: str, ln: str, call: Call = JOE) -> str:
        """The answer of delFile, unlink, unmakeCollection or unmakeMountpoint."""
        methods = {
            "delFile": self.bartender.del_file,
            "unlink": self.bartender.unlink,
            "unmakeCollection": self.bartender.unmake_collection,
            "unmakeMountpoint": self.bartender.unmake_mountpoint,
        }
        return (await methods[op](call, (NameRequest("1", ln),)))[0].status

    async def move(self, source: str, target: str, call: Call = JOE, *, link: bool = False) -> str:
        return (await self.bartender.move(call, (MoveRequest("1", source, target, link),)))[0].status

    async def modify(self, ln: str, change: str, section: str, prop: str, value: str = "", call: Call = JOE) -> str:
        request = ModifyRequest("1", ln, change, section, prop, value)
        return (await self.bartender.modify(call, (request,)))[0].status

    async def stat(self, ln: str, call: Call = JOE) -> dict[str, dict[str, str]]:
        return from_triples((await self.bartender.stat(call, (NameRequest("1", ln),)))[0].metadata)

    async def exists(self, ln: str) -> bool:
        return "entry" in await self.stat(ln, ADMIN)

    async def list(self, ln: str, call: Call = JOE, needed: Filter = ()) -> tuple[str, list[str]]:
        (outcome,) = await self.bartender.list(call, (ListRequest("1", ln),), needed, False)
        return outcome.status, [entry.name for entry in outcome.entries]

    async def listed(self, ln: str, call: Call = JOE, needed: Filter = ()) -> dict[str, ListedEntry]:
        (outcome,) = await self.bartender.list(call, (ListRequest("1", ln),), needed, False)
        return {entry.name: entry for entry in outcome.entries}

    async def put_file(
        self,
        ln: str,
        call: Call = JOE,
        *,
        needed: int = 2,
        size: int = 5,
        more: tuple[Triple, ...] = (),
        replace: bool = False,
    ) -> TransferOutcome:
        request = PutFileRequest("1", ln, (*facts(size=size, needed=needed), *more), HTTP, replace)
        return (await self.bartender.put_file(call, (request,)))[0]

    async def get_file(self, ln: str, call: Call = JOE) -> TransferOutcome:
        return (await self.bartender.get_file(call, (GetFileRequest("1", ln, HTTP),)))[0]

    async def upload(self, turl: str, *, size: int = 5, checksums: Checksums | None = None) -> tuple[Receipt, ...]:
        """PUT to a TURL as its first Shepherd would complete it: returns receipts of all copies, and commits."""
        first, request = self.put_request(turl)
        sums = checksums or Checksums(sha256="5" * 64, md5="5" * 32, adler32="5" * 8)
        turls = (turl, *request.forward)
        receipts = tuple(self._receipt(each, request.facts.blob, size, sums) for each in turls)
        if request.purpose is Purpose.PENDING:
            call = self.as_shepherd(first.dn.rpartition("=")[2])
            await self.librarian.commit_put(call, request.facts.guid, receipts)
        return receipts

    async def arrive(self, placed: Placed, data: bytes) -> Arrived:
        """Deliver bytes to the place that a Bartender chose, and on to the others that make them durable."""
        _, request = self.put_request(placed.turl)
        sums = all_sums(data, md5=bool(request.facts.checksums.md5))
        held = await self.upload(placed.turl, size=len(data), checksums=sums)
        for receipt in held:
            self.shepherds[receipt.location.shepherd].held[receipt.location.reference] = data
        return Arrived(placed.put, tuple(map(to_text, held)))

    def put_request(self, turl: str) -> tuple[StageShepherd, PutRequest]:
        for shepherd in self.shepherds.values():
            if turl in shepherd.puts:
                return shepherd, shepherd.puts[turl]
        raise AssertionError(f"no Shepherd gave out {turl}")

    def _receipt(self, turl: str, blob: BlobId, size: int, sums: Checksums) -> Receipt:
        shepherd, _ = self.put_request(turl)
        location = Location(shepherd.service, ReferenceId(f"ref-{blob[:8]}-{turl[-1]}"))
        return Receipt(blob, location, size, sums, 1, self.clock.now_ms(), "signature")

    async def file(self, ln: str, call: Call = JOE, *, needed: int = 2, more: tuple[Triple, ...] = ()) -> None:
        """A whole file, uploaded the original's way."""
        begun = await self.put_file(ln, call, needed=needed, more=more)
        assert begun.status == "done", begun
        await self.upload(begun.turl)

    async def guid(self, ln: str) -> Guid:
        return Guid((await self.stat(ln, ADMIN))["entry"]["GUID"])


def all_sums(data: bytes, *, md5: bool = False) -> Checksums:
    """The checksums that a Shepherd computes of bytes."""
    hasher = Hasher(md5=md5)
    hasher.update(data)
    return hasher.checksums()


def facts(*, size: int = 5, needed: int = 2, checksum: str = "", checksum_type: str = "md5") -> tuple[Triple, ...]:
    values = {"size": str(size), "checksum": checksum, "checksumType": checksum_type, "neededReplicas": str(needed)}
    return tuple(Triple("states", name, value) for name, value in values.items())


def keyed(call: Call, key: str) -> Call:
    return call.keyed(RequestKey(key))


def scene(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test with a fresh `stage` on virtual time."""

    async def play(**arguments: Any) -> None:
        stage = Stage()
        await stage.start()
        try:
            await test(stage=stage, **arguments)
        finally:
            await stage.ahash.close()

    return supplied(test, "stage", play)
