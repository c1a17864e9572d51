"""An in-memory Bartender and the byte store behind its TURLs, for tests of clients: simple, whole, and easy to break.

Rights are not modelled but by `deny`; `failures` are outcomes to answer first; the store's `faults` break transfers.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from chelonia.core import status
from chelonia.core.caller import Call
from chelonia.core.cluster.replicas import Checksums, Location, Receipt
from chelonia.core.errors import CheloniaError, Kind, kind_from_wire
from chelonia.core.ids import BlobId, Dn, Guid, Ms, ReferenceId, ServiceId
from chelonia.core.metadata import Filter, Triple, from_triples, selects, to_triples
from chelonia.core.names import LogicalName, parse_ln
from chelonia.core.ports import bartender as port
from chelonia.core.ports.files import (
    Attributes,
    Change,
    Done,
    Failure,
    Listed,
    Listing,
    Look,
    Looked,
    Named,
    Placed,
    Placing,
    When,
    Write,
)
from chelonia.hosting.net.http_client import Received, RoundTrips, Sending
from chelonia.wire import receipts
from chelonia.wire.web.headers import RECEIPTS_HEADER

Q = TypeVar("Q")
A = TypeVar("A")
Path = tuple[str, ...]
PIECE = 1000
"""Bytes of one chunk that the store sends."""


@dataclass(slots=True)
class Entry:
    type: str
    guid: str
    blob: str = ""
    metadata: dict[str, dict[str, str]] = field(default_factory=dict)


@dataclass(slots=True)
class Fault:
    """How one request to the store goes wrong: after `after` bytes with `kind`, with `flip` changed bytes, or it is
    answered after `stall_s` (`stall`; of an upload, when `after` bytes have been taken)."""

    after: int = 0
    kind: Kind | None = None
    flip: bool = False
    stall: bool = False
    stall_s: float = 3600.0


class FakeStore:
    """PUT and GET on TURLs like `https://s1/turl/<blob>`; stands in for the HTTP client."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.faults: list[Fault] = []
        self.frozen: list[str] = []
        self.rotten: list[str] = []
        """Hosts that give wrong bytes, always, from `rotten_from` on."""
        self.rotten_from = 0
        self.asked: list[tuple[str, str, str]] = []
        self.closed = False
        self.round_trips = RoundTrips()

    async def close(self) -> None:
        self.closed = True

    async def request(self, sending: Sending) -> Received:
        host, blob = _parts(sending.url)
        if sending.method == "HEAD":
            self.asked.append(("HEAD", host, ""))
            if host in self.frozen:
                await asyncio.Event().wait()
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
        self.blobs[blob] = data
        told = data + b"!" if fault.flip else data
        return Received(201, {RECEIPTS_HEADER: receipts.to_text(_receipt(host, blob, told))}, b"")

    @asynccontextmanager
    async def stream(self, sending: Sending) -> AsyncIterator[FakeAnswer]:
        host, blob = _parts(sending.url)
        wanted = (sending.headers or {}).get("Range", "")
        self.asked.append(("GET", host, wanted))
        fault = self.faults.pop(0) if self.faults else Fault()
        if fault.stall:
            await asyncio.sleep(fault.stall_s)
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        part = slice(int(first or 0), int(last) + 1 if last else None)
        data = self.blobs[blob]
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
    """`core.ports.bartender.Bartender` over a dictionary of paths."""

    def __init__(self, store: FakeStore | None = None) -> None:
        self.store = store or FakeStore()
        self.entries: dict[Path, Entry] = {(): Entry("collection", "0")}
        self.calls: list[tuple[str, Call]] = []
        self.failures: list[Kind] = []
        self.offered: list[tuple[int, ...]] = []
        """Which of the three hosts are named to read from, answer by answer; all when none is left."""
        self.deny: set[str] = set()
        self.note = ""
        """What is told with every upload that succeeds."""
        self.trash: list[tuple[Path, Entry]] = []
        self._numbers = itertools.count(1)

    # --- reading ---

    async def stat(self, call: Call, requests: tuple[port.NameRequest, ...]) -> tuple[port.StatOutcome, ...]:
        return tuple([self._stat(call, request) for request in requests])

    def _stat(self, call: Call, request: port.NameRequest) -> port.StatOutcome:
        try:
            path = self._begin("stat", call, request.ln)
            return port.StatOutcome(request.request_id, to_triples(self._shown(path)))
        except CheloniaError as error:
            triples = (Triple("error", "x", "not allowed"),) if error.kind is Kind.DENIED else ()
            return port.StatOutcome(request.request_id, triples, error.kind.value, error.cause)

    async def list(
        self, call: Call, requests: tuple[port.ListRequest, ...], needed: Filter, recursive: bool
    ) -> tuple[port.ListOutcome, ...]:
        return tuple([self._list(call, request, needed, recursive) for request in requests])

    def _list(self, call: Call, request: port.ListRequest, needed: Filter, recursive: bool) -> port.ListOutcome:
        try:
            top = self._begin("list", call, request.ln)
            if self.entries[top].type == "mountpoint":
                raise CheloniaError(Kind.IN_MOUNTPOINT, cause="it is a mount point, which stands for ...")
            if self.entries[top].type != "collection":
                raise CheloniaError(Kind.NOT_A_COLLECTION, cause="it is a file")
        except CheloniaError as error:
            words = status.failure("list", error.kind, error.subject, error.cause)
            return port.ListOutcome(request.request_id, words, (), "", error.kind.value, error.cause)
        below = sorted(p for p in self.entries if p[: len(top)] == top and len(p) > len(top))
        names = [p for p in below if (recursive and not self._is_hidden(p[:-1])) or len(p) == len(top) + 1]
        shown = [p for p in names if not request.after or "/".join(p[len(top) :]) > request.after]
        if request.after:
            shown = names[[("/".join(p[len(top) :])) for p in names].index(request.after) + 1 :]
        page = shown[: request.limit or len(shown)]
        after = "/".join(page[-1][len(top) :]) if len(page) < len(shown) else ""
        entries = tuple(self._entry(p, top, needed) for p in page)
        return port.ListOutcome(request.request_id, "found", entries, after)

    def _entry(self, path: Path, top: Path, needed: Filter) -> port.ListedEntry:
        shown = {"entry": {"type": self.entries[path].type}} if self._is_hidden(path) else self._shown(path)
        triples = tuple(t for t in to_triples(shown) if selects(needed, t.section, t.property))
        return port.ListedEntry("/".join(path[len(top) :]), self.entries[path].guid, triples)

    def _is_hidden(self, path: Path) -> bool:
        """Whether an entry, or a collection above it, may not be read."""
        return any("/" + "/".join(path[:n]) in self.deny for n in range(1, len(path) + 1))

    async def get_file(self, call: Call, requests: tuple[port.GetFileRequest, ...]) -> tuple[port.TransferOutcome, ...]:
        return tuple([self._get(call, request) for request in requests])

    def _get(self, call: Call, request: port.GetFileRequest) -> port.TransferOutcome:
        try:
            path = self._begin("getFile", call, request.ln)
            entry = self.entries[path]
            if entry.type != "file":
                raise CheloniaError(Kind.NOT_A_FILE, cause=f"it is a {entry.type}")
        except CheloniaError as error:
            words = status.failure("getFile", error.kind)
            return port.TransferOutcome(request.request_id, words, kind=error.kind.value, cause=error.cause)
        hosts = self.offered.pop(0) if self.offered else (1, 2, 3)
        turls = tuple(f"https://s{n}/turl/{entry.blob}" for n in hosts)
        states = self._shown(path)["states"]
        size, checksum = int(states["size"]), states["checksum"]
        return port.TransferOutcome(request.request_id, "done", turls[0], "http", turls[1:], size, checksum, "sha256")

    # --- writing ---

    async def make_collection(self, call: Call, requests: tuple[port.MakeRequest, ...]) -> tuple[port.Outcome, ...]:
        return tuple([self._make("makeCollection", call, request, "collection") for request in requests])

    async def make_mountpoint(self, call: Call, requests: tuple[port.MakeRequest, ...]) -> tuple[port.Outcome, ...]:
        return tuple([self._make("makeMountpoint", call, request, "mountpoint") for request in requests])

    def _make(self, op: str, call: Call, request: port.MakeRequest, entry_type: str) -> port.Outcome:
        def act() -> None:
            self._new(op, call, request.ln, Entry(entry_type, self._guid()))

        return _outcome(op, request.request_id, act)

    async def unmake_collection(self, call: Call, requests: tuple[port.NameRequest, ...]) -> tuple[port.Outcome, ...]:
        return tuple([self._drop("unmakeCollection", call, request) for request in requests])

    async def unmake_mountpoint(self, call: Call, requests: tuple[port.NameRequest, ...]) -> tuple[port.Outcome, ...]:
        return tuple([self._drop("unmakeMountpoint", call, request) for request in requests])

    async def unlink(self, call: Call, requests: tuple[port.NameRequest, ...]) -> tuple[port.Outcome, ...]:
        return tuple([self._drop("unlink", call, request) for request in requests])

    async def del_file(self, call: Call, requests: tuple[port.NameRequest, ...]) -> tuple[port.Outcome, ...]:
        return tuple([self._drop("delFile", call, request) for request in requests])

    def _drop(self, op: str, call: Call, request: port.NameRequest) -> port.Outcome:
        def act() -> None:
            path = self._begin(op, call, request.ln)
            if any(p[: len(path)] == path and p != path for p in self.entries):
                raise CheloniaError(Kind.NOT_EMPTY, cause="it is not empty")
            if self.entries[path].type != "mountpoint":
                self.trash.append((path, self.entries[path]))
            guid = self.entries.pop(path).guid
            for other in [p for p, entry in self.entries.items() if entry.guid == guid and op == "delFile"]:
                del self.entries[other]

        return _outcome(op, request.request_id, act)

    async def undelete(self, call: Call, requests: tuple[port.UndeleteRequest, ...]) -> tuple[port.Outcome, ...]:
        return tuple([self._undelete(call, request) for request in requests])

    def _undelete(self, call: Call, request: port.UndeleteRequest) -> port.Outcome:
        def act() -> None:
            self._note("undelete", call)
            ln = parse_ln(request.ln)
            kept = [each for each in self.trash if each[0] == ln.parts or (not ln.parts and each[1].guid == ln.start)]
            if ln.parts and ln.parts[:-1] not in self.entries:
                kept = []
            if not kept:
                raise CheloniaError(Kind.NOT_FOUND, cause="nothing of that name is kept")
            path, entry = kept[-1]
            if request.target_ln in self.deny:
                raise CheloniaError(Kind.DENIED, cause="no rule allows it")
            self.entries[self._free(request.target_ln or "/" + "/".join(path), replace=False)] = entry
            self.trash.remove(kept[-1])

        return _outcome("undelete", request.request_id, act)

    async def list_deleted(
        self, call: Call, requests: tuple[port.ListRequest, ...]
    ) -> tuple[port.ListDeletedOutcome, ...]:
        self._note("listDeleted", call)
        return tuple([self._list_deleted(request) for request in requests])

    def _list_deleted(self, request: port.ListRequest) -> port.ListDeletedOutcome:
        gone = next((path for path, entry in self.trash if entry.guid == request.ln), None)
        if request.ln and gone is None and self._path(request.ln) not in self.entries:
            return port.ListDeletedOutcome(request.request_id, "not found", kind="not-found", cause="no such name")
        where = (gone or self._path(request.ln)) if request.ln else None
        kept = [(path, entry) for path, entry in self.trash if where is None or path[:-1] == where]
        start = int(request.after or 0)
        page = [
            port.DeletedEntry(
                "/" + "/".join(path) if where is None else path[-1], entry.guid, "/CN=Owner", 3, 1, 2, entry.type
            )
            for path, entry in kept[start : start + 1]
        ]
        after = str(start + 1) if start + 1 < len(kept) else ""
        return port.ListDeletedOutcome(request.request_id, "found", tuple(page), after)

    async def move(self, call: Call, requests: tuple[port.MoveRequest, ...]) -> tuple[port.Outcome, ...]:
        return tuple([self._move(call, request) for request in requests])

    def _move(self, call: Call, request: port.MoveRequest) -> port.Outcome:
        def act() -> None:
            source, target = self._begin("move", call, request.source_ln), parse_ln(request.target_ln)
            path = (*target.parts, source[-1]) if target.into else target.parts
            if path in self.entries:
                raise CheloniaError(Kind.EXISTS, cause="the target is there")
            for old in [p for p in self.entries if p[: len(source)] == source]:
                new = (*path, *old[len(source) :])
                self.entries[new] = self.entries[old] if request.preserve_original else self.entries.pop(old)

        return _outcome("move", request.request_id, act)

    async def modify(self, call: Call, requests: tuple[port.ModifyRequest, ...]) -> tuple[port.Outcome, ...]:
        return tuple([self._modify(call, request) for request in requests])

    def _modify(self, call: Call, request: port.ModifyRequest) -> port.Outcome:
        def act() -> None:
            entry = self.entries[self._begin("modify", call, request.ln)]
            section = entry.metadata.setdefault(request.section, {})
            how, _, expected = request.change_type.partition("=")
            if how == "setifvalue" and section.get(request.property, "") != expected:
                raise CheloniaError(Kind.CONFLICT, cause="it has another value")
            section[request.property] = request.value

        return _outcome("modify", request.change_id, act)

    async def put_file(self, call: Call, requests: tuple[port.PutFileRequest, ...]) -> tuple[port.TransferOutcome, ...]:
        raise AssertionError("our own clients put bytes first")

    async def add_replica(
        self, call: Call, requests: tuple[port.AddReplicaRequest, ...], protocols: tuple[str, ...]
    ) -> tuple[port.TransferOutcome, ...]:
        raise AssertionError("only Shepherds add replicas")

    # --- what tests look at and set up ---

    def add_file(self, ln: str, data: bytes, modified: str = "") -> None:
        path = parse_ln(ln).parts
        blob = self._guid()
        self.store.blobs[blob] = data
        metadata = {"states": {"neededReplicas": "2"}} | ({"timestamps": {"modified": modified}} if modified else {})
        self.entries[path] = Entry("file", self._guid(), blob, metadata)

    def add_collection(self, ln: str) -> None:
        self.entries[parse_ln(ln).parts] = Entry("collection", self._guid())

    def data(self, ln: str) -> bytes:
        return self.store.blobs[self.entries[parse_ln(ln).parts].blob]

    def names(self) -> Sequence[str]:
        return sorted("/" + "/".join(path) for path in self.entries if path)

    def _guid(self) -> str:
        return f"00000000-0000-4000-8000-{next(self._numbers):012d}"

    def _note(self, op: str, call: Call) -> None:
        self.calls.append((op, call))
        if self.failures:
            raise CheloniaError(self.failures.pop(0), cause="as the test wants it")

    def _begin(self, op: str, call: Call, ln: str) -> Path:
        self._note(op, call)
        path = self._path(ln)
        if ln in self.deny:
            raise CheloniaError(Kind.DENIED, cause="nobody may")
        if path not in self.entries:
            raise CheloniaError(Kind.NOT_FOUND, cause="there is no such name")
        return path

    def _path(self, ln: str) -> Path:
        """Where a name leads that may begin with a GUID."""
        name = parse_ln(ln)
        start = next((path for path, entry in self.entries.items() if entry.guid == name.start), (name.start,))
        return (*start, *name.parts)

    def _new(self, op: str, call: Call, ln: str, entry: Entry) -> None:
        self._note(op, call)
        self.entries[self._free(ln, replace=False)] = entry

    def _free(self, ln: str, *, replace: bool) -> Path:
        path = parse_ln(ln).parts
        taken = self.entries.get(path)
        if taken is not None and not (replace and taken.type == "file"):
            raise CheloniaError(Kind.EXISTS, cause="there is already an entry of this name")
        if path[:-1] not in self.entries:
            raise CheloniaError(Kind.NO_PARENT, cause="its collection is not there")
        if self.entries[path[:-1]].type != "collection":
            raise CheloniaError(Kind.NOT_A_COLLECTION, cause="what is above it is a file")
        return path

    def _shown(self, path: Path) -> dict[str, dict[str, str]]:
        entry = self.entries[path]
        shown = {section: dict(properties) for section, properties in entry.metadata.items()}
        shown["entry"] = {"type": entry.type, "GUID": entry.guid, "owner": "/CN=Owner"}
        names = [name for name, other in self.entries.items() if other is entry and name]
        shown["parents"] = {f"{self.entries[name[:-1]].guid}/{name[-1]}": "parent" for name in names}
        if entry.type == "file":
            data = self.store.blobs[entry.blob]
            facts = {"size": str(len(data)), "checksum": hashlib.sha256(data).hexdigest(), "checksumType": "sha256"}
            shown["states"] = facts | shown.get("states", {})
        return shown


class FakeFiles:
    """The part of `core.ports.files.Files` that transfers use, over the entries of a `FakeBartender`. No bytes come in
    a message, and nothing is copied by reference."""

    def __init__(self, fake: FakeBartender) -> None:
        self._fake = fake
        self._placed: dict[str, Placing] = {}

    async def look(self, call: Call, asks: tuple[Look, ...]) -> tuple[Looked | Failure, ...]:
        return tuple([_answer(self._look, call, ask) for ask in asks])

    def _look(self, call: Call, ask: Look) -> Looked:
        fake = self._fake
        path = fake._begin("look", call, str(ask.place))
        entry, shown = fake.entries[path], fake._shown(path)
        if entry.type != "file":
            return Looked(_attributes(shown))
        hosts = fake.offered.pop(0) if fake.offered else (1, 2, 3)
        states = shown["states"]
        sources = tuple(f"https://s{n}/turl/{entry.blob}" for n in hosts)
        return Looked(
            _attributes(shown), checksums=Checksums(**{states["checksumType"]: states["checksum"]}), sources=sources
        )

    async def list(self, call: Call, ask: Listing) -> Listed:
        request = port.ListRequest("0", str(ask.place), ask.after, ask.limit)
        told = self._fake._list(call, request, (), ask.below)
        if told.kind:
            raise CheloniaError(kind_from_wire(told.kind), "list", str(ask.place), told.cause)
        entries = tuple(Named(each.name, _attributes(from_triples(each.metadata))) for each in told.entries)
        return Listed(entries, told.after)

    async def place(self, call: Call, asks: tuple[Placing, ...]) -> tuple[Placed | Failure, ...]:
        return tuple([_answer(self._place, call, ask) for ask in asks])

    def _place(self, call: Call, ask: Placing) -> Placed:
        self._fake._note("place", call)
        self._free(ask.place, ask.when)
        token = self._fake._guid()
        self._placed[token] = ask
        return Placed(f"https://s1/turl/{token}", token, note=self._fake.note)

    async def apply(self, call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        return tuple([_answer(self._apply, call, change) for change in changes])

    def _apply(self, call: Call, change: Change) -> Done:
        if not isinstance(change, Write):
            raise CheloniaError(Kind.NOT_SUPPORTED, cause="only bytes are taken here")
        if change.inline is not None:
            raise CheloniaError(Kind.BAD_TICKET, cause="no bytes are taken in a message")
        self._fake._note("write", call)
        path, placed = self._free(change.place, change.when), self._placed[change.content.put]
        metadata = {"states": {"neededReplicas": str(placed.wanted)}, "metadata": dict(change.user or {})}
        if change.setting.modified_ns is not None:
            metadata["timestamps"] = {"modified": f"{change.setting.modified_ns / 1e9:.3f}"}
        self._fake.entries[path] = Entry("file", self._fake._guid(), change.content.put, metadata)
        return Done()

    def _free(self, place: LogicalName, when: When) -> Path:
        if when.absent and place.parts in self._fake.entries:
            raise CheloniaError(Kind.PRECONDITION, cause="there is an entry of this name")
        return self._fake._free(str(place), replace=True)


def _answer(ask: Callable[[Call, Q], A], call: Call, element: Q) -> A | Failure:
    try:
        return ask(call, element)
    except CheloniaError as error:
        return Failure(error.kind, error.subject or str(element.place), error.cause)


def _attributes(shown: Mapping[str, Mapping[str, str]]) -> Attributes:
    entry, states = shown["entry"], shown.get("states", {})
    modified_ns = round(float(shown.get("timestamps", {}).get("modified", 0)) * 1e9)
    guid = entry.get("GUID", "")
    return Attributes(
        Guid(guid), entry["type"], 1, Dn("/CN=Owner"), int(states.get("size", 0)), guid, modified_ns=modified_ns
    )


def _outcome(op: str, request_id: str, act: object) -> port.Outcome:
    assert callable(act)
    try:
        act()
    except CheloniaError as error:
        return port.Outcome(request_id, status.failure(op, error.kind), error.kind.value, error.cause)
    return port.Outcome(request_id, status.success(op))


def _parts(url: str) -> tuple[str, str]:
    host, _, blob = url.removeprefix("https://").partition("/turl/")
    return host, blob


def _receipt(host: str, blob: str, data: bytes) -> Receipt:
    where = Location(ServiceId(f"https://{host}/Shepherd"), ReferenceId(blob))
    return Receipt(BlobId(blob), where, len(data), Checksums(hashlib.sha256(data).hexdigest()), 1, Ms(1), "signed")
