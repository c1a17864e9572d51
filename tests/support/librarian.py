"""A Librarian for tests: on the memory A-Hash, with ids in sequence, a clock that the test sets, and fake Shepherds."""

import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from chelonia.core.caller import Call, Role
from chelonia.core.cluster.replicas import Checksums, Location, Receipt, ReplicaState
from chelonia.core.contents.below import Below
from chelonia.core.contents.extents import Extent
from chelonia.core.contents.uploads import BeginPut, CommitFile, SpliceFile
from chelonia.core.ids import ROOT, BlobId, Dn, Guid, Ms, ReferenceId, RequestKey, ServiceId
from chelonia.core.limits import LimitCounts
from chelonia.core.metadata import TYPE_COLLECTION, StoredObject
from chelonia.core.names import entry_name, parse_ln
from chelonia.core.ports.ahash import AHash
from chelonia.core.ports.librarian import Heartbeat, MakeEntry, Report, ReportAnswer, ReportedReplica, ServiceRecord
from chelonia.core.timing.clock import Clock
from chelonia.core.values import replace
from chelonia.librarian.metadata.records import LibrarianIdentity
from chelonia.librarian.service import LibrarianService
from chelonia.librarian.settings import LibrarianSettings
from chelonia.librarian.world import World
from tests.support.ahash import LIBRARIAN, HandClock, serving
from tests.support.memory_store import MemoryStore
from tests.support.namespace_snapshot import NamespaceSnapshot, broken

ADMIN = Call(Dn("/CN=admin"), (Role.ADMINISTRATOR,))
BARTENDER = Call(Dn("/CN=bartender"), (Role.BARTENDER,), ServiceId("https://b/Bartender"))
JOE, EVE = Dn("/CN=joe"), Dn("/CN=eve")
SUMS = Checksums("5a" * 32, "3b" * 16, "0c" * 4)
HOUR = 3_600_000


class SequentialIds:
    """Ids in sequence; randomness with a seed."""

    def __init__(self, seed: int = 0) -> None:
        self._count = 0
        self._random = random.Random(seed)
        self.first = "0"
        """The first digits of ids from now on."""

    def uuid(self) -> str:
        self._count += 1
        return f"{self.first}0000000-0000-4000-8000-{self._count:012x}"

    def token(self, n_bytes: int) -> bytes:
        return self._random.randbytes(n_bytes)

    def uniform(self) -> float:
        return self._random.random()


class PaperVerifier:
    """A signature is right when it is `signed by <key>`."""

    def verify(self, verify_key: str, message: bytes, signature: str) -> bool:
        return bool(message) and signature == f"signed by {verify_key}"


class NoShepherds:
    """A directory without Shepherds."""

    def shepherd(self, service: ServiceId):  # type: ignore[no-untyped-def]
        raise AssertionError(f"nobody should call {service} here")


def shepherd_id(number: int) -> ServiceId:
    return ServiceId(f"https://s{number}/Shepherd")


def shepherd_call(shepherd: ServiceId) -> Call:
    return Call(Dn(f"/CN={shepherd}"), (Role.SHEPHERD,), shepherd)


def approved(*shepherds: ServiceId) -> tuple[ServiceRecord, ...]:
    return tuple(ServiceRecord(Role.SHEPHERD, Dn(f"/CN={s}"), s, approved=True) for s in shepherds)


@dataclass
class Bench:
    """A started Librarian, the services below it, and short ways to use it."""

    service: LibrarianService
    ahash: AHash
    clock: HandClock
    shepherds: tuple[ServiceId, ...]
    settings: LibrarianSettings
    directory: object
    reported: dict[ServiceId, int] = field(default_factory=dict)
    limits: LimitCounts = field(default_factory=LimitCounts)

    async def beat(self, shepherd: ServiceId, **facts: object) -> None:
        beat = Heartbeat(shepherd, 1, 0, 1 << 40, 1 << 41, 0, True, "", f"key of {shepherd}", compared=1)
        await self.service.heartbeat(shepherd_call(shepherd), replace(beat, **facts))  # type: ignore[arg-type]

    async def beat_all(self) -> None:
        for shepherd in self.shepherds:
            await self.beat(shepherd)

    async def stored(self, object_id: str) -> StoredObject:
        return (await self.ahash.get(LIBRARIAN, (object_id,)))[0]  # type: ignore[arg-type]

    async def everything(self) -> dict[str, Mapping[str, str]]:
        """All stored sections of a cluster's Shepherds: outboxes and file records."""
        out: dict[str, Mapping[str, str]] = {}
        for shepherd in self.shepherds:
            for section in ("file", "erase"):
                page = await self.ahash.scan(LIBRARIAN, f"sys:shepherd:{shepherd}", section)  # type: ignore[arg-type]
                out[f"{shepherd} {section}"] = dict(page.items)
        return out

    async def outbox(self, shepherd: ServiceId) -> dict[str, str]:
        """Reference -> reason of the erasures ordered from a Shepherd."""
        found = (await self.everything())[f"{shepherd} erase"]
        return {key.split(" ")[1]: value.split(" ")[1] for key, value in found.items()}

    async def collection(self, name: str, parent: Guid = ROOT, call: Call = BARTENDER) -> Guid:
        return await self.service.make_entry(call, MakeEntry(parent, name, TYPE_COLLECTION, JOE, {}))

    def begin(self, name: str, parent: Guid = ROOT, **facts: object) -> BeginPut:
        ln = parse_ln(f"{parent}/{name}")
        request = BeginPut(parent, name, ln, JOE, {}, 2, -1, Checksums(), Ms(self.clock.now_ms() + HOUR), named=False)
        return replace(request, **facts)  # type: ignore[arg-type]

    def receipt(self, blob: BlobId, shepherd: ServiceId, reference: str = "", size: int = 7) -> Receipt:
        location = Location(shepherd, ReferenceId(reference or f"{blob}@{shepherd}"))
        return Receipt(blob, location, size, SUMS, 1, self.clock.now_ms(), f"signed by key of {shepherd}")

    async def file(self, name: str, parent: Guid = ROOT, copies: int = 2, **facts: object) -> tuple[Guid, BlobId]:
        """Make a file, bytes first, with copies on the first Shepherds."""
        begin = self.begin(name, parent, **{"wanted": copies, **facts})
        begun = await self.service.begin_put(BARTENDER, begin)
        receipts = tuple(self.receipt(begun.blob, s) for s in self.shepherds[:copies])
        done = await self.service.commit_file(BARTENDER, CommitFile(begin, begun, receipts))
        return done.guid, done.blob

    async def report(
        self, shepherd: ServiceId, *replicas: tuple[BlobId, str, ReplicaState], boot: int = 1, number: int = 0
    ) -> ReportAnswer:
        number = number or self.reported.get(shepherd, 0) + 1
        self.reported[shepherd] = number
        told = tuple(ReportedReplica("", ReferenceId(ref), state, blob, 7, SUMS) for blob, ref, state in replicas)
        return await self.service.report(shepherd_call(shepherd), Report(shepherd, boot, number, told))

    async def locations(self, blob: BlobId) -> dict[str, str]:
        """Shepherd -> stored state."""
        found = (await self.stored(f"blob:{blob}")).sections.get("locations", {})
        return {key.split(" ")[0]: state for key, state in found.items()}

    async def names(self, guid: Guid = ROOT) -> dict[str, str]:
        page = await self.service.below(ADMIN, Below(guid, deep=False))
        return {entry_name(leaf.path): Guid(leaf.object.id) for leaf in page.leaves if leaf.object}


def keyed(key: str, call: Call = BARTENDER) -> Call:
    return call.keyed(RequestKey(key))


async def pieced(b: Bench, name: str, file: Guid, **more: object) -> tuple[BeginPut, CommitFile]:
    """A piece of 7 bytes that has arrived, and the requests for it."""
    begin = b.begin(name, replaces=file, piece=True, **more)
    begun = await b.service.begin_put(BARTENDER, begin)
    return begin, CommitFile(begin, begun, tuple(b.receipt(begun.blob, s) for s in b.shepherds[:2]))


async def spliced(b: Bench, name: str, file: Guid, *ats: int, size: int = -1, key: str = "") -> Guid:
    """Lay a piece at each of these offsets."""
    found = [await pieced(b, name, file) for _ in ats]
    extents = tuple(Extent(at, 7, piece.begun.blob) for at, (_, piece) in zip(ats, found, strict=True))
    request = SpliceFile(b.begin(name, replaces=file), tuple(piece for _, piece in found), extents, size)
    call = keyed(key) if key else BARTENDER
    guid = await b.service.splice(call, request)
    assert not isinstance(guid, StoredObject), "it is told only when asked for"
    if key:
        assert await b.service.splice(call, request) == guid
    return guid


@asynccontextmanager
async def bench(
    shepherds: int = 3,
    settings: LibrarianSettings | None = None,
    clock: Clock | None = None,
    directory: object = None,
    wrap: Callable[[AHash], AHash] | None = None,
) -> AsyncIterator[Bench]:
    """A Librarian with some approved Shepherds whose heartbeats have just come."""
    ids = tuple(shepherd_id(n) for n in range(1, shepherds + 1))
    hand = clock or HandClock()
    chosen = replace(settings or LibrarianSettings.dev(ADMIN.dn), bootstrap=approved(*ids))
    async with serving(MemoryStore(), hand) as ahash:  # type: ignore[arg-type]
        world = World(directory or NoShepherds(), PaperVerifier(), hand, SequentialIds(), chosen)  # type: ignore[arg-type]
        service = LibrarianService(
            wrap(ahash) if wrap else ahash, LibrarianIdentity(LIBRARIAN.dn, ServiceId("https://l/Librarian")), world
        )
        await service.start()
        out = Bench(service, ahash, hand, ids, chosen, directory, limits=world.limits)  # type: ignore[arg-type]
        await out.beat_all()
        yield out


async def everything(b: Bench) -> NamespaceSnapshot:
    """All stored objects."""
    return NamespaceSnapshot(await b.ahash.get(LIBRARIAN, (await b.ahash.objects(LIBRARIAN)).ids))


async def sound(b: Bench) -> NamespaceSnapshot:
    """All stored objects, after a check that nothing is broken."""
    seen = await everything(b)
    assert broken(seen) == ()
    return seen
