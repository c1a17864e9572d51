"""The parts of the plain door's handlers, and the few steps that all of them take."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from chelonia.core import bounds
from chelonia.core.caller import Call, Role
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
from chelonia.core.values import replace
from chelonia.hosting.net.http_messages import HttpRequest
from chelonia.hosting.transfer.file_reader import FileReader
from chelonia.wire.web.conditions import when_of

if TYPE_CHECKING:
    from chelonia.hosting.doors.plain.cluster_page import ClusterView
    from chelonia.hosting.doors.plain.third_party import ThirdParty


@dataclass(slots=True)
class KeptRoom:
    """Memory for bodies that are kept while they are sent on. `free`: bytes."""

    free: int = bounds.KEPT_AT_DOORS_BYTES_MAX

    @contextmanager
    def kept(self, size: int) -> Iterator[bool]:
        """Take room for a body of this size (-1: not known) while the context lasts; yield whether there is room."""
        is_kept = 0 <= size <= min(bounds.KEPT_AT_DOORS_BYTES, self.free)
        self.free -= size if is_kept else 0
        try:
            yield is_kept
        finally:
            self.free += size if is_kept else 0


@dataclass(frozen=True, slots=True)
class DoorParts:
    """The ports, and this node's `dn`, to which tickets for bytes that it carries are bound.

    - `copies`: of a new file
    - `bartender`: for deleted entries
    - `third`: for copies from and to other servers
    - `cluster`: for the administrators' page
    - `measuring`: held by a request that reads a file for its checksum alone
    - `room`: for bodies on their way
    """

    files: Files
    bytes: Bytes
    dn: Dn
    copies: int
    bartender: Bartender
    third: ThirdParty
    cluster: ClusterView
    measuring: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    room: KeptRoom = field(default_factory=KeptRoom)


class Exchange(msgspec.Struct, frozen=True):
    """One request: as it came, its call, and the entry that its path names. Of its `If`: the lock tokens that it shows,
    and the etag that it wants of the entry ("": any)."""

    request: HttpRequest
    call: Call
    place: LogicalName
    tokens: tuple[str, ...] = ()
    etag: str = ""

    @property
    def when(self) -> When:
        """Conditions of a change of the entry: its header fields, and no lock of others. Raises: BAD_REQUEST."""
        when = when_of(self.request.headers)
        if self.etag and (not when.etags or self.etag in when.etags):  # else If-Match refuses what is there
            when = replace(when, etags=(self.etag,))
        return replace(when, tokens=self.tokens)

    @property
    def free(self) -> When:
        """Conditions of a change of another entry than the one named: no lock of others."""
        return When(tokens=self.tokens)

    @property
    def keeps_target(self) -> bool:
        """Whether an entry of the target's name is to stay (RFC 4918, section 10.6)."""
        return self.header("Overwrite").upper() == "F"

    def header(self, name: str) -> str:
        """Return one header field, "" when it is not there."""
        return self.request.headers.get(name, "")


def carrying(parts: DoorParts, call: Call) -> Call:
    """Return the call with this node as the carrier of its bytes."""
    return msgspec.structs.replace(call, carrier=parts.dn)


def own_call(parts: DoorParts, call: Call) -> Call:
    """Return a call in this node's own name, on behalf of another, whose turn it waits for. It may learn what the
    caller may not see."""
    return msgspec.structs.replace(
        call, dn=parts.dn, roles=(Role.ADMINISTRATOR,), attributes=(), scopes=(), turn=call.waits_as
    )


def reader(parts: DoorParts, call: Call, place: LogicalName) -> FileReader:
    """Return a reader of a file, whose bytes this node carries."""
    return FileReader(parts.files, parts.bytes, carrying(parts, call), place)


async def look(parts: DoorParts, call: Call, place: LogicalName, want: Want = Want.NOTHING) -> Looked:
    """Look at one entry. Raises: as `Files.look` fails."""
    (answer,) = await parts.files.look(call, (Look(place, want),))
    return good(answer, "look")


async def seen(parts: DoorParts, call: Call, place: LogicalName, want: Want = Want.NOTHING) -> Looked | None:
    """Return the entry, None where there is none. Raises: as `look`, but for NOT_FOUND."""
    (answer,) = await parts.files.look(call, (Look(place, want),))
    if isinstance(answer, Failure) and answer.kind is Kind.NOT_FOUND:
        return None
    return good(answer, "look")


async def seen_or_hidden(
    parts: DoorParts, call: Call, place: LogicalName, want: Want = Want.NOTHING
) -> tuple[Looked | None, bool]:
    """Return the entry as `seen`, and whether it is hidden: the caller may have a right to write and none to look.
    Raises: as `seen`, but for DENIED."""
    try:
        return await seen(parts, call, place, want), False
    except CheloniaError as error:
        if error.kind is not Kind.DENIED:
            raise
        return None, True


async def list_pages(parts: DoorParts, call: Call, ask: Listing) -> AsyncIterator[Listed]:
    """Yield the pages of a listing from `ask` on, each as of its read. Raises: as `Files.list` fails."""
    while True:
        page = await parts.files.list(call, ask)
        yield page
        if not page.after:
            return
        ask = replace(ask, after=page.after)


@contextmanager
def gone_since() -> Iterator[None]:
    """Pass over an entry that others have removed since it was listed: a 404 would say so of the whole tree."""
    try:
        yield
    except CheloniaError as error:
        if error.kind is not Kind.NOT_FOUND:
            raise


async def apply(parts: DoorParts, call: Call, change: Change) -> Done:
    """Apply one change. Raises: as it fails."""
    (answer,) = await apply_all(parts, call, (change,))
    return good(answer, type(change).__name__.lower())


async def apply_all(parts: DoorParts, call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
    """Apply changes, each as `Files.apply`, under a request key."""
    return await parts.files.apply(call if call.request_key else keyed(call), changes)


def keyed(call: Call) -> Call:
    """Return the call with a request key of its own, so that each change applies once, even across a new master."""
    # Without a key no retry is possible, and the client would get an unknown outcome.
    return msgspec.structs.replace(call, request_key=RequestKey(secrets.token_hex(16)), is_first=True)


async def cloned(parts: DoorParts, call: Call, change: Clone) -> Done | None:
    """Copy by reference; return None where the bytes have to be copied, as too many files share them. Raises: as it
    fails."""
    try:
        return await apply(parts, call, change)
    except CheloniaError as error:
        if error.kind not in UNSHARED:
            raise
        return None


def split_url(text: str) -> SplitResult:
    """Return the parts of a client's URL. Raises: BAD_REQUEST for a text that is none."""
    try:
        return urlsplit(text)
    except ValueError as error:
        raise CheloniaError(Kind.BAD_REQUEST, cause=f"{text[:80]!a} is no URL ({error})") from None


def elsewhere(exchange: Exchange) -> bool:
    """Return whether `Destination` is on another server than this."""
    url = split_url(exchange.header("Destination"))
    return bool(url.netloc) and not is_here(url, exchange.header("Host"))


def is_here(url: SplitResult, host: str) -> bool:
    """Return whether a URL is of the server that `Host` names; a default port may be given or not."""
    default = ":80" if url.scheme in ("http", "dav") else ":443"
    return url.netloc.lower().removesuffix(default) == host.lower().removesuffix(":443")


def destination(exchange: Exchange) -> LogicalName:
    """Return the name in `Destination`. Raises: BAD_REQUEST when it is missing, INVALID_TARGET on another server."""
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
    """Return the entry that a request names. Raises: BAD_NAME."""
    _decoded(request.target.partition("?")[0], "the path")  # the server does not decode bytes that are no text: `%ff`
    return place_of(request.path)


def _decoded(path: str, label: str) -> str:
    try:
        return unquote(path, errors="strict")
    except UnicodeDecodeError as error:
        raise CheloniaError(Kind.BAD_NAME, cause=f"{label} is not UTF-8") from error


def place_of(path: str) -> LogicalName:
    """Return the entry that a decoded path names. A path never begins with a GUID; a slash at its end has no meaning.

    Raises: BAD_NAME.
    """
    named = parse_ln(path if path.startswith("/") else f"/{path}")
    return LogicalName(named.start, named.parts)
