"""The Bartender on one user's connection, and the bytes behind its TURLs, for tests of clients: easy to break.

`failures` are kinds to answer first; the store's `faults` break transfers. Unless it is `new`, it lacks small files in
messages and copies by reference, as older ones do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from msgspec import structs

from chelonia.bartender.listing import stat_refused
from chelonia.bartender.settings import BartenderSettings
from chelonia.core import status
from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.metadata import TYPE_COLLECTION, Triple, from_triples, to_triples
from chelonia.core.names import parse_ln
from chelonia.core.operations.bartender import BARTENDER
from chelonia.core.ports import bartender as port
from chelonia.core.ports.files import (
    Change,
    Done,
    Failure,
    Files,
    Listed,
    Listing,
    Look,
    Looked,
    Make,
    Move,
    Placed,
    Placing,
    Remove,
    Setting,
    Want,
    Write,
)
from chelonia.core.values import replace
from chelonia.hosting.net.http_client import Received, RoundTrips, Sending
from chelonia.wire.web.headers import ERROR_HEADER, RECEIPTS_HEADER
from chelonia_clients.client import Metadata
from tests.support.cluster import MemoryCluster
from tests.support.stage import ADMIN, BARTENDER_DN, BARTENDER_ID, JOE, KEY

Method = Callable[..., Coroutine[Any, Any, Any]]
OUTCOMES: dict[str, type[Any]] = {
    "list": port.ListOutcome, "listDeleted": port.ListDeletedOutcome, "getFile": port.TransferOutcome
}  # fmt: skip
WISH = "as the test wants it"
PIECE = 1000
"""Bytes of one chunk that the store sends."""
NO_RIGHT = " ".join(f"-{action}" for action in ("read", "delete", "addEntry", "removeEntry", "modifyMetadata"))


@dataclass(slots=True)
class Fault:
    """A fault of one request to the store: after `after` bytes it fails with `kind`, or `flip` changes bytes. `stall`:
    its answer comes after `stall_s`; of an upload, when `after` bytes have been read."""

    after: int = 0
    kind: Kind | None = None
    flip: bool = False
    stall: bool = False
    stall_s: float = 3600.0


class FakeStore:
    """PUT and GET on TURLs of a cluster; stands in for the HTTP client."""

    def __init__(self, cluster: MemoryCluster | None = None) -> None:
        self._cluster = cluster
        self.faults: list[Fault] = []
        self.frozen: list[str] = []
        self.stuck: list[str] = []
        """Hosts that answer that their disks do not respond."""
        self.rotten: list[str] = []
        """Hosts that always send wrong bytes, from `rotten_from` on."""
        self.rotten_from = 0
        self.asked: list[tuple[str, str, str]] = []
        self.closed = False
        self.round_trips = RoundTrips()

    async def close(self) -> None:
        self.closed = True

    async def request(self, sending: Sending) -> Received:
        host = host_of(sending.url)
        if sending.method == "HEAD":
            self.asked.append(("HEAD", host, ""))
            if host in self.frozen:
                await asyncio.Event().wait()
            if host in self.stuck:
                return Received(503, {ERROR_HEADER: Kind.UNAVAILABLE.value}, b"")
            return Received(200, {}, b"")
        assert sending.method == "PUT"
        self.asked.append(("PUT", host, ""))
        fault = self.faults.pop(0) if self.faults else Fault()
        data = b""
        assert sending.body is not None
        assert not isinstance(sending.body, bytes)
        async for chunk in sending.body:
            data += chunk
            if fault.kind is not None and len(data) >= fault.after:
                raise CheloniaError(fault.kind, cause=f"{host} broke the connection")
            if fault.stall and len(data) >= fault.after:
                await asyncio.sleep(fault.stall_s)
        assert sending.length in (-1, len(data))
        assert self._cluster is not None
        arrived = self._cluster.arrive(Placed(sending.url, ""), data + b"!" * fault.flip)
        return Received(201, {RECEIPTS_HEADER: ",".join(arrived.receipts)}, b"")

    @asynccontextmanager
    async def stream(self, sending: Sending) -> AsyncIterator[FakeAnswer]:
        host = host_of(sending.url)
        wanted = (sending.headers or {}).get("Range", "")
        self.asked.append(("GET", host, wanted))
        fault = self.faults.pop(0) if self.faults else Fault()
        if fault.stall:
            await asyncio.sleep(fault.stall_s)
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        part = slice(int(first or 0), int(last) + 1 if last else None)
        assert self._cluster is not None
        data = self._cluster.bytes_of(sending.url)
        if fault.flip or host in self.rotten:
            start = 0 if fault.flip else self.rotten_from
            data = data[:start] + bytes(byte ^ 1 for byte in data[start:])
        yield FakeAnswer(206 if wanted else 200, data[part], fault)


class FakeAnswer:
    """The part of `Streaming` that downloads use."""

    def __init__(self, code: int, data: bytes, fault: Fault) -> None:
        self.status = code
        self.headers: Mapping[str, str] = {}
        self._data = data
        self._fault = fault

    async def chunks(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self._data), PIECE):
            if self._fault.kind is not None and start >= self._fault.after:
                raise CheloniaError(self._fault.kind, cause="the connection broke")
            yield self._data[start : start + PIECE]

    async def read(self, limit: int) -> bytes:
        return self._data[:limit]


class FakeBartender:
    """`core.ports.bartender.Bartender`, as joe's connection has it."""

    def __init__(self) -> None:
        settings = BartenderSettings(BARTENDER_DN, BARTENDER_ID, KEY, durable_copies=3)
        self.cluster = MemoryCluster(JOE.dn, settings)
        self.store = FakeStore(self.cluster)
        self.files = cast(Files, FakeFiles(self))
        self.calls: list[tuple[str, Call]] = []
        self.failures: list[Kind] = []
        self.offered: list[tuple[int, ...]] = []
        """The hosts, of three, that each answer names to read from; all when none is left."""
        self.told: dict[str, Metadata] = {}
        """Sections to answer for names in place of the real ones."""
        self.new = False
        for method, row in BARTENDER.by_method.items():
            serve = partial(self.cluster.ask, lambda stage: stage.bartender, method)
            setattr(self, method, partial(self._serve, row.name, serve))

    async def _serve(
        self, op: str, serve: Method, call: Call, requests: tuple[Any, ...], *more: Any, **named: Any
    ) -> Any:
        def refused(request: Any, kind: Kind) -> Any:
            words, error = status.failure(op, kind), CheloniaError(kind, cause=WISH)
            if op == "stat":
                return stat_refused(request, words, error)
            number = getattr(request, "change_id", "") or request.request_id
            return OUTCOMES.get(op, port.Outcome)(number, words, kind=kind.value, cause=WISH)

        told = await self.each(op, partial(serve, **named), call, requests, refused, *more)
        return tuple([self._with_told(each, answer) for each, answer in zip(requests, told, strict=True)])

    async def each(
        self, op: str, serve: Method, call: Call, elements: tuple[Any, ...], refused: Callable[[Any, Kind], Any],
        *more: Any,
    ) -> list[Any]:  # fmt: skip
        """Answer each element, with a failure while there are some."""
        self.calls += [(op, call)] * len(elements)
        kinds = [self.failures.pop(0) if self.failures else None for _ in elements]
        left = tuple([each for each, kind in zip(elements, kinds, strict=True) if kind is None])
        answers = iter(await serve(structs.replace(call, dn=JOE.dn), left, *more) if left else ())
        return [refused(each, kind) if kind else next(answers) for each, kind in zip(elements, kinds, strict=True)]

    def _with_told(self, request: Any, answer: Any) -> Any:
        def shown(ln: str, triples: tuple[Triple, ...]) -> tuple[Triple, ...]:
            return to_triples({**from_triples(triples), **self.told[ln]}) if ln in self.told else triples

        if isinstance(answer, port.ListOutcome):
            below = request.ln.rstrip("/")
            entries = [replace(each, metadata=shown(f"{below}/{each.name}", each.metadata)) for each in answer.entries]
            return replace(answer, entries=tuple(entries))
        return (
            replace(answer, metadata=shown(request.ln, answer.metadata))
            if isinstance(answer, port.StatOutcome)
            else answer
        )

    # --- what tests look at and set up ------------------------------------------------------------------------------

    def add_file(self, ln: str, data: bytes, modified: str = "", *, wanted: int = 3, **user: str) -> None:
        """Add a file, and its missing parents; it replaces one of the same name."""
        setting = Setting(modified_ns=round(float(modified) * 1e9) if modified else None)
        self.cluster.write(Write(parse_ln(ln), setting=setting, user=user, parents=True), data, wanted)

    def add_collection(self, ln: str) -> None:
        self.cluster.change(Make(parse_ln(ln), TYPE_COLLECTION, parents=True), JOE)

    def remove(self, ln: str) -> None:
        self.cluster.change(Remove(parse_ln(ln)))

    def link(self, source: str, target: str) -> None:
        self.cluster.change(Move(parse_ln(source), parse_ln(target), keep=True))

    def deny(self, ln: str) -> None:
        """Nobody may do anything with an entry."""
        self.cluster.allow(ln, ALL=NO_RIGHT)

    def data(self, ln: str) -> bytes:
        return self.cluster.data(ln)

    def names(self) -> list[str]:
        return self.cluster.names()

    def found(self, ln: str) -> Metadata:
        return self.cluster.run(self.cluster.stage.stat(ln, ADMIN))


class FakeFiles:
    """`core.ports.files.Files`, as joe's connection has it."""

    def __init__(self, fake: FakeBartender) -> None:
        self._fake = fake

    def __getattr__(self, method: str) -> Method:
        async def ask(call: Call, *args: Any) -> Any:
            return await getattr(self._fake.cluster, method)(structs.replace(call, dn=JOE.dn), *args)

        return ask

    async def look(self, call: Call, asks: tuple[Look, ...]) -> list[Looked | Failure]:
        some = asks if self._fake.new else tuple([replace(ask, want=ask.want & ~Want.BYTES) for ask in asks])
        answers = await self._fake.each("look", self._fake.cluster.look, call, some, _failed)
        return [self._offered(each) for each in answers]

    def _offered(self, answer: Looked | Failure) -> Looked | Failure:
        if isinstance(answer, Failure) or not (answer.sources and self._fake.offered):
            return answer
        hosts = [f"s{n}" for n in self._fake.offered.pop(0)]
        return replace(answer, sources=tuple([each for each in answer.sources if host_of(each) in hosts]))

    async def list(self, call: Call, ask: Listing) -> Listed:
        fake = self._fake
        fake.calls.append(("list", call))
        if fake.failures:
            raise CheloniaError(fake.failures.pop(0), "list", str(ask.place), WISH)
        return await fake.cluster.list(structs.replace(call, dn=JOE.dn), ask)

    async def place(self, call: Call, asks: tuple[Placing, ...]) -> list[Placed | Failure]:
        return await self._fake.each("place", self._fake.cluster.place, call, asks, _failed)

    async def apply(self, call: Call, changes: tuple[Change, ...]) -> list[Done | Failure]:
        fake = self._fake
        (change, *_) = changes
        if not fake.new and not isinstance(change, Write):
            return [Failure(Kind.NOT_SUPPORTED, cause="only bytes are taken here")] * len(changes)
        if not fake.new and cast(Write, change).inline is not None:
            return [Failure(Kind.BAD_TICKET, cause="no bytes are taken in a message")] * len(changes)
        return await fake.each("write", fake.cluster.apply, call, changes, _failed)


def _failed(element: Any, kind: Kind) -> Failure:
    return Failure(kind, str(element.place), WISH)


def host_of(turl: str) -> str:
    return turl.removeprefix("https://").partition(":")[0]
