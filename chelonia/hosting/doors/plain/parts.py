"""What the handlers of the plain door work with, and the few things that all of them do."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.cluster.drills import Drill
from chelonia.core.cluster.healing import HealStatus
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn, RequestKey
from chelonia.core.names import LogicalName, parse_ln
from chelonia.core.ports.bartender import Bartender
from chelonia.core.ports.bytes import Bytes
from chelonia.core.ports.files import (
    UNSHARED,
    Change,
    Clone,
    Done,
    Failure,
    Files,
    Listed,
    Listing,
    Look,
    Looked,
    Want,
    When,
    good,
)
from chelonia.core.ports.librarian import NodeView
from chelonia.core.timing.jobs import NodeJobs
from chelonia.core.values import replace
from chelonia.hosting.net.http_messages import HttpRequest
from chelonia.hosting.transfer.file_reader import FileReader
from chelonia.wire.web.conditions import when_of

if TYPE_CHECKING:
    from chelonia.hosting.doors.plain.third_party import ThirdParty


class AdminView(Protocol):
    """How the cluster is, as this node's Bartender may ask for it."""

    async def nodes(self) -> tuple[NodeView, ...]:
        """All Shepherds."""

    async def healing(self) -> HealStatus:
        """Healing as the leader sees it."""

    async def drill(self) -> Drill:
        """The present or last drill."""

    async def jobs(self) -> Mapping[str, NodeJobs | CheloniaError]:
        """The background work of each node by its URL, or why it does not tell."""


@dataclass(slots=True)
class KeptRoom:
    """For bodies that are kept while they are sent on. `free`: bytes."""

    free: int = bounds.KEPT_AT_DOORS_BYTES_MAX

    @contextmanager
    def kept(self, size: int) -> Iterator[bool]:
        """Room for a body of that size (-1: not known) for as long as this lasts; whether there is."""
        is_kept = 0 <= size <= min(bounds.KEPT_AT_DOORS_BYTES, self.free)
        self.free -= size if is_kept else 0
        try:
            yield is_kept
        finally:
            self.free += size if is_kept else 0


@dataclass(frozen=True, slots=True)
class DoorParts:
    """The ports, and who this node is: tickets for bytes that it carries are bound to `dn`.

    - `copies`: of a new file
    - `bartender`: gives what was deleted, None: nothing
    - `third`: what copies from and to other servers, None: nothing
    - `measuring`: who may read a file for its checksum alone
    - `cluster`: what administrators may look at, None: nothing
    - `room`: for bodies on their way
    """

    files: Files
    bytes: Bytes
    dn: Dn
    copies: int
    bartender: Bartender | None = None
    third: ThirdParty | None = None
    measuring: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    cluster: AdminView | None = None
    room: KeptRoom = field(default_factory=KeptRoom)


class Exchange(msgspec.Struct, frozen=True):
    """One request: as it came, who calls, the entry that its path names, and the lock tokens that it shows."""

    request: HttpRequest
    call: Call
    place: LogicalName
    tokens: tuple[str, ...] = ()

    @property
    def when(self) -> When:
        """What a change of the entry must hold by its header fields; no lock of others. Raises: BAD_REQUEST."""
        return replace(when_of(self.request.headers), tokens=self.tokens)

    @property
    def free(self) -> When:
        """What a change of another entry than the one named must hold: no lock of others."""
        return When(tokens=self.tokens)

    @property
    def spares(self) -> bool:
        """Whether what has the target's name is to stay (RFC 4918, section 10.6)."""
        return self.header("Overwrite").upper() == "F"

    def header(self, name: str) -> str:
        """One header field, "" when it is not there."""
        return self.request.headers.get(name, "")


def carrying(parts: DoorParts, call: Call) -> Call:
    """The caller's request, whose bytes this node carries."""
    return msgspec.structs.replace(call, carrier=parts.dn)


def reader(parts: DoorParts, call: Call, place: LogicalName) -> FileReader:
    """What reads a file, carried by this node."""
    return FileReader(parts.files, parts.bytes, carrying(parts, call), place)


async def look(parts: DoorParts, call: Call, place: LogicalName, want: Want = Want.NOTHING) -> Looked:
    """Look at one entry. Raises: as `Files.look` fails."""
    (answer,) = await parts.files.look(call, (Look(place, want),))
    return good(answer, "look")


async def seen(parts: DoorParts, call: Call, place: LogicalName, want: Want = Want.NOTHING) -> Looked | None:
    """The entry, None where there is none. Raises: as `look`, but for NOT_FOUND."""
    (answer,) = await parts.files.look(call, (Look(place, want),))
    if isinstance(answer, Failure) and answer.kind is Kind.NOT_FOUND:
        return None
    return good(answer, "look")


async def seen_or_hidden(
    parts: DoorParts, call: Call, place: LogicalName, want: Want = Want.NOTHING
) -> tuple[Looked | None, bool]:
    """What is there, as far as the caller may see it, who may have a right to write and none to look; whether it is
    hidden from him. Raises: as `seen`, but for DENIED."""
    try:
        return await seen(parts, call, place, want), False
    except CheloniaError as error:
        if error.kind is not Kind.DENIED:
            raise
        return None, True


async def list_pages(parts: DoorParts, call: Call, ask: Listing) -> AsyncIterator[Listed]:
    """The pages of a listing from `ask` on, each as it is when it is read. Raises: as `Files.list` fails."""
    while True:
        page = await parts.files.list(call, ask)
        yield page
        if not page.after:
            return
        ask = replace(ask, after=page.after)


async def apply(parts: DoorParts, call: Call, change: Change) -> Done:
    """Apply one change. Raises: as it fails."""
    (answer,) = await apply_all(parts, call, (change,))
    return good(answer, type(change).__name__.lower())


async def apply_all(parts: DoorParts, call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
    """Apply changes, each as `Files.apply`, under a request key."""
    return await parts.files.apply(call if call.request_key else keyed(call), changes)


def keyed(call: Call) -> Call:
    """The call with a request key of its own, so that each change is carried out once whatever becomes of the A-Hash's
    master meanwhile. Without one, nobody could ask again, and the client would hear that the outcome is unknown."""
    return msgspec.structs.replace(call, request_key=RequestKey(secrets.token_hex(16)), is_first=True)


async def cloned(parts: DoorParts, call: Call, change: Clone) -> Done | None:
    """Copy by reference; None where the bytes have to be copied, because too many files have them that way already.
    Raises: as it fails."""
    try:
        return await apply(parts, call, change)
    except CheloniaError as error:
        if error.kind not in UNSHARED:
            raise
        return None


def split_url(text: str) -> SplitResult:
    """The parts of a URL that a client gives. Raises: BAD_REQUEST for what is none."""
    try:
        return urlsplit(text)
    except ValueError as error:
        raise CheloniaError(Kind.BAD_REQUEST, cause=f"{text[:80]!a} is no URL ({error})") from None


def elsewhere(exchange: Exchange) -> bool:
    """Whether `Destination` is on another server than the one that is asked."""
    url = split_url(exchange.header("Destination"))
    return bool(url.netloc) and not is_here(url, exchange.header("Host"))


def is_here(url: SplitResult, host: str) -> bool:
    """Whether a URL is of the server that `Host` names; a default port may be said or not."""
    default = ":80" if url.scheme in ("http", "dav") else ":443"
    return url.netloc.lower().removesuffix(default) == host.lower().removesuffix(":443")


def destination(exchange: Exchange) -> LogicalName:
    """The name that `Destination` gives. Raises: BAD_REQUEST when it is missing or on another server."""
    text = exchange.header("Destination")
    parsed = split_url(text)
    if not text or parsed.query or parsed.fragment:
        raise CheloniaError(Kind.BAD_REQUEST, exchange.request.method, cause="a Destination is needed: the new URL")
    if elsewhere(exchange):
        cause = (
            f"Destination is on {parsed.netloc}, this is {exchange.header('Host')}; copy it there, and remove it here"
        )
        raise CheloniaError(Kind.INVALID_TARGET, exchange.request.method, cause=cause)
    return place_of(_decoded(parsed.path, "Destination"))


def requested(request: HttpRequest) -> LogicalName:
    """The entry that a request is about. Raises: BAD_NAME."""
    _decoded(request.target.partition("?")[0], "the path")  # the server leaves standing what is no text: `%ff`
    return place_of(request.path)


def _decoded(path: str, what: str) -> str:
    try:
        return unquote(path, errors="strict")
    except UnicodeDecodeError as error:
        raise CheloniaError(Kind.BAD_NAME, cause=f"{what} is not UTF-8") from error


def place_of(path: str) -> LogicalName:
    """The entry that a decoded path names; a path never begins with a GUID, and a slash at its end says nothing.

    Raises: BAD_NAME.
    """
    named = parse_ln(path if path.startswith("/") else f"/{path}")
    return LogicalName(named.start, named.parts)
