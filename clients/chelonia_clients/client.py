"""The SDK: everything a user can do with Chelonia, as awaitable methods of one `Client` (administrators: see
`administrator`).

It speaks to the Bartender in the compact encoding and to Shepherds over plain HTTPS under tickets. Every change
carries a request key and is repeated after passing failures, so it applies once. Uploads put bytes first: a name
appears only when its bytes are durable, and overwriting is atomic. Downloads are verified, and appear under their name
only when whole. Failures are `CheloniaError`; `error.meaning.exit_code` is the command line's exit code.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from functools import cached_property, partial
from itertools import count
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError, Kind, kind_from_wire
from chelonia.core.ids import RequestKey
from chelonia.core.metadata import TYPE_COLLECTION, TYPE_FILE, Filter, Needed, Triple, from_triples
from chelonia.core.names import parse_ln
from chelonia.core.ports.bartender import (
    Bartender,
    DeletedEntry,
    ListDeletedOutcome,
    ListedEntry,
    ListOutcome,
    ListRequest,
    MakeRequest,
    ModifyRequest,
    MoveRequest,
    NameRequest,
    Outcome,
    StatOutcome,
    UndeleteRequest,
)
from chelonia.core.timing.clock import Clock
from chelonia.core.timing.pacing import Backoff
from chelonia.core.values import replace
from chelonia.hosting.net.clock import SystemClock
from chelonia.hosting.net.http_client import HttpClient
from chelonia.hosting.transfer.call_batches import PASSING, PAUSE_MS, PAUSE_MS_MAX, CallBatches
from chelonia_clients.waiting import keep_quiet

if TYPE_CHECKING:
    from chelonia.core.ports.files import Change, Done, Failure, Files, Look, Looked, Named, Space
    from chelonia.core.rights.scopes import Shared
    from chelonia.hosting.transfer.requester import A, R, Trouble

Metadata = Mapping[str, Mapping[str, str]]
"""`{section: {property: value}}` as the user may see it."""

RETRY_MS = 10_000
"""How long an operation is repeated under the same request key while the cluster is busy with itself."""


class DirectoryEntry(msgspec.Struct, frozen=True, gc=False):
    """One entry of a listing.

    Args:
        name: relative to the listed collection.
        type: file, collection or mountpoint.
        size: bytes of a file; -1 for anything else.
        modified_s: Unix seconds of the last change of the bytes, as the user kept them; None when not known.
        closed: it is a collection that the user may not read: its content is not listed.
        metadata: other metadata that was requested.
        links: number of its names, as far as the listing shows it.
    """

    name: str
    guid: str = ""
    type: str = ""
    size: int = -1
    modified_s: float | None = None
    closed: bool = False
    metadata: Metadata = {}
    links: int = 1

    @property
    def is_shared(self) -> bool:
        """Whether it is a collection that has other names: what is in it does not go with this one."""
        return self.type == "collection" and self.links > 1


def described(name: str, guid: str, metadata: Metadata) -> DirectoryEntry:
    """Return an entry by its metadata, as far as the user may see them."""
    own, size = metadata.get("entry", {}), metadata.get("states", {}).get("size", "")
    kind, is_number = own.get("type", ""), size.isascii() and size.isdigit()
    closed = kind == TYPE_COLLECTION and "GUID" not in own
    size_, links = int(size) if is_number else -1, max(1, len(metadata.get("parents", {})))
    return DirectoryEntry(name, guid, kind, size_, _modified_s(metadata), closed, metadata, links)


class Client:
    """A user's connection to a Chelonia cluster. Use as an async context manager, inside one event loop."""

    def __init__(
        self,
        bartender: Bartender,
        files: Files,
        http: HttpClient,
        *,
        retry_ms: int = RETRY_MS,
        trouble: Trouble = keep_quiet,
    ) -> None:
        """Bind to ports; `chelonia_clients.connect` makes these from files, the environment and URLs.

        Args: `retry_ms`: how long an operation is repeated; `trouble`: called for each failure before a repeat.
        """
        self.bartender = bartender
        self.http = http
        self.clock: Clock = SystemClock()
        self.files = files
        self._stats = CallBatches(bartender.stat, self.clock, again_ms=0)
        most = bounds.REMOVED_TOGETHER_MAX
        self._deletions = CallBatches(bartender.del_file, self.clock, again_ms=retry_ms, most=most)
        self._unlinkings = CallBatches(bartender.unlink, self.clock, again_ms=retry_ms, most=most)
        self._numbers = count()
        self._retry_ms = retry_ms
        self.trouble = trouble
        self.remark: Callable[[str], None] = lambda note: None
        """Called with a note of the cluster to the user about a change that was made."""
        self.account = ""
        """The cluster and the user, for notes on this machine; "" when not known."""

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.close()

    @cached_property
    def writes(self) -> CallBatches[Change, Done | Failure]:
        """Batches that send small files, many in one call."""
        # A file that no Shepherd takes is sent again under its key: an earlier call at another Bartender may still
        # store it, and a new key would meet it as somebody else's.
        passing = PASSING | {Kind.NO_SHEPHERD}
        return CallBatches(self.files.apply, self.clock, again_ms=self._retry_ms, passing=passing)

    @cached_property
    def looks(self) -> CallBatches[Look, Looked | Failure]:
        """Batches of looks, many in one call: they bring small files, and the places of others."""
        most, bytes_max = bounds.LOOKED_TOGETHER_MAX, bounds.INLINE_CALL_BYTES_MAX
        return CallBatches(self.files.look, self.clock, again_ms=self._retry_ms, most=most, bytes_max=bytes_max)

    @cached_property
    def _restorings(self) -> CallBatches[UndeleteRequest, Outcome]:
        return CallBatches(self.bartender.undelete, self.clock, again_ms=self._retry_ms)

    def new_call(self) -> Call:
        """Return the context of one request of this user."""
        return new_call()

    async def settled(self, ask: Callable[[Call, tuple[R, ...]], Awaitable[tuple[A, ...]]], request: R) -> A:
        """Make a request of one element, and repeat it under the same key while its answer is a passing failure."""
        call = new_call()
        give_up = self.clock.monotonic_ms() + self._retry_ms
        backoff = Backoff(PAUSE_MS, PAUSE_MS_MAX)
        while True:
            [answer] = await ask(call, (request,))
            pause = backoff.failed()
            late = self.clock.monotonic_ms() + pause > give_up
            kind = getattr(answer, "kind", "")
            if kind not in PASSING or late:
                return answer
            self.trouble("the Bartender", getattr(answer, "cause", "") or str(kind))
            await self.clock.sleep(int(pause * random.uniform(0.5, 1)))

    async def stat(self, ln: str) -> Metadata:
        """Return all metadata of an entry. Raises: NOT_FOUND, DENIED."""
        answer = await self.settled(self._stat, NameRequest(str(next(self._numbers)), ln))
        if answer.kind == Kind.TOO_LARGE.value:  # together with other answers: alone it fits into one message
            answer = await self.settled(self.bartender.stat, NameRequest("0", ln))
        if answer.kind:
            raise CheloniaError(kind_from_wire(answer.kind), "stat", ln, answer.cause)
        return from_triples(answer.metadata)

    async def _stat(self, call: Call, requests: tuple[NameRequest, ...]) -> tuple[StatOutcome]:
        return (await self._stats.send(call, requests[0]),)

    async def exists(self, ln: str) -> str:
        """Return the type of the entry, or "" when there is none. Raises: DENIED."""
        try:
            return (await self.stat(ln)).get("entry", {}).get("type", "")
        except CheloniaError as error:
            if error.kind is Kind.NOT_FOUND:
                return ""
            raise

    async def list(
        self, ln: str, *, recursive: bool = False, needed: Filter = (), page: int = bounds.PAGE_ENTRIES_MAX
    ) -> AsyncGenerator[DirectoryEntry, None]:
        """Yield the entries of a collection in order, page by page. Raises: NOT_FOUND, NOT_A_COLLECTION, DENIED."""
        ask = partial(self.bartender.list, needed=needed, recursive=recursive)
        async for answer in _pages(lambda after: self.settled(ask, ListRequest("0", ln, after, page))):
            if answer.status != "found":
                raise _error("list", ln, answer)
            for entry in answer.entries:
                yield _listed(entry)

    async def names(self, ln: str, *, recursive: bool = False) -> AsyncGenerator[DirectoryEntry, None]:
        """As `list`, but only names, types, sizes (bytes) and times of change, which need no read of each file.

        Raises: NOT_FOUND, NOT_A_COLLECTION, DENIED.
        """
        from chelonia.core.ports.files import Listing  # not above: other listings need none of it

        first, ask = Listing(parse_ln(ln), below=recursive), self.files.list
        async for page in _pages(lambda after: ask(self.new_call(), replace(first, after=after))):
            for each in page.entries:
                yield _named(each)

    async def make_collection(self, ln: str, metadata: Sequence[Triple] = ()) -> str:
        """Make a collection; return the server's status word. Raises: EXISTS, NO_PARENT, DENIED."""
        request = MakeRequest("0", ln, (*metadata, Triple("states", "closed", "no")))
        return _done("makeCollection", ln, await self.settled(self.bartender.make_collection, request))

    async def make_collections(self, ln: str) -> None:
        """Make a collection and missing ones above it; do nothing when it exists."""
        try:
            await self.make_collection(ln)
        except CheloniaError as error:
            parent, _, name = ln.rstrip("/").rpartition("/")
            if error.kind is Kind.NO_PARENT and name and parent:
                await self.make_collections(parent)
                await self.make_collections(ln)
            elif error.kind is not Kind.EXISTS or await self.exists(ln) != "collection":
                raise

    async def unmake_collection(self, ln: str) -> str:
        """Remove an empty collection. Raises: NOT_FOUND, NOT_EMPTY, DENIED."""
        answer = await self.settled(self.bartender.unmake_collection, NameRequest("0", ln))
        return _done("unmakeCollection", ln, answer)

    async def make_mountpoint(self, ln: str, url: str) -> str:
        """Make a mount point. Raises: EXISTS, NO_PARENT, DENIED."""
        answer = await self.settled(self.bartender.make_mountpoint, MakeRequest("0", ln, (), url))
        return _done("makeMountpoint", ln, answer)

    async def unmake_mountpoint(self, ln: str) -> str:
        """Remove a mount point. Raises: NOT_FOUND, DENIED."""
        answer = await self.settled(self.bartender.unmake_mountpoint, NameRequest("0", ln))
        return _done("unmakeMountpoint", ln, answer)

    async def move(self, source: str, target: str, *, preserve: bool = False) -> str:
        """Rename or move an entry; `preserve` keeps the old name too (hard link). Raises: NOT_FOUND, EXISTS, ..."""
        answer = await self.settled(self.bartender.move, MoveRequest("0", source, target, preserve))
        return _done("move", source, answer)

    async def del_file(self, ln: str) -> str:
        """Remove a file under all its names; `undelete` brings it back for a while. Raises: NOT_FOUND, DENIED."""
        answer = await self._deletions.send(new_call(), NameRequest(str(next(self._numbers)), ln))
        return _done("delFile", ln, answer)

    async def unlink(self, ln: str) -> str:
        """Drop one name; the last one takes the file with it, as `del_file` does. Raises: NOT_FOUND, DENIED."""
        answer = await self._unlinkings.send(new_call(), NameRequest(str(next(self._numbers)), ln))
        return _done("unlink", ln, answer)

    async def undelete(self, ln: str, target: str = "") -> str:
        """Bring a deleted file back under the name it had, or as `target`. Raises: NOT_FOUND, EXISTS, DENIED."""
        answer = await self._restorings.send(new_call(), UndeleteRequest(str(next(self._numbers)), ln, target))
        return _done("undelete", ln, answer)

    async def list_deleted(self, ln: str = "") -> AsyncGenerator[DeletedEntry, None]:
        """Yield the user's deleted entries that are kept: those of one collection, or all. Raises: NOT_FOUND."""
        ask, first = self.bartender.list_deleted, ListRequest("0", ln, "", bounds.PAGE_ENTRIES_MAX)
        async for answer in _pages(lambda after: self.settled(ask, replace(first, after=after))):
            if answer.status != "found":
                raise _error("listDeleted", ln, answer)
            for entry in answer.entries:
                yield entry

    async def modify(self, ln: str, change_type: str, triple: Triple) -> str:
        """Change one property (`set unset add setifvalue=<v>`). Raises: NOT_FOUND, DENIED, CONFLICT."""
        request = ModifyRequest("0", ln, change_type, triple.section, triple.property, triple.value)
        answer = await self.settled(self.bartender.modify, request)
        if answer.cause and not answer.kind:
            self.remark(answer.cause)
        return _done("modify", ln, answer)

    async def share(self, ln: str, lifetime_ms: int, *, upload: bool = False, write: bool = False) -> Shared:
        """Make a link to read an entry and all below it without a certificate.

        Args: `upload`: the link may add to it too; `write`: it may add, replace and remove.
        Raises: DENIED, NOT_FOUND, NOT_SUPPORTED, BAD_REQUEST for a lifetime that the cluster does not grant.
        """
        from chelonia.core.rights.scopes import ADDING, CHANGING, READING, Share

        actions = (*READING, *(CHANGING if write else ADDING if upload else ()))
        return await self.files.share(new_call(), Share(parse_ln(ln), actions, lifetime_ms))

    async def space(self, ln: str = "/") -> Space:
        """Return the space of the cluster, and the quotas that apply to the user below a name. Raises: BAD_NAME."""
        return await self.files.space(new_call(), parse_ln(ln))

    async def policy(self, ln: str, identity: str, change: Callable[[str], str]) -> str:
        """Rewrite one identity's action list through `change` (old list in, new list out); return the new list.

        Raises: NOT_FOUND, DENIED, BAD_REQUEST for words that are no actions; CONFLICT when it changed meanwhile.
        """
        stored = (await self.stat(ln)).get("policy", {})
        current = stored.get(identity, "")
        wanted = change(current)
        action = f"setifvalue={current}" if identity in stored else "add"
        await self.modify(ln, action, Triple("policy", identity, wanted))
        return wanted

    async def set_policy(self, ln: str, identity: str, actions: str) -> str:
        """Replace one identity's action list. Raises: as `policy`."""
        await self.modify(ln, "set", Triple("policy", identity, actions))
        return actions

    async def change_policy(self, ln: str, identity: str, actions: str) -> str:
        """Merge `actions` (`+read -delete`) into the stored list; return the new list. Raises: as `policy`."""
        return await self.policy(ln, identity, lambda stored: merge_actions(stored, actions))

    async def clear_policy(self, ln: str, identity: str) -> str:
        """Write an empty list, which allows and denies nothing. Raises: as `policy`."""
        return await self.set_policy(ln, identity, "")


def merge_actions(stored: str, changes: str) -> str:
    """Merge the words of `changes` into those of `stored`: of one action the last sign counts, order is kept."""
    words = {word[1:]: word for word in stored.split()}
    words.update({word[1:]: word for word in changes.split()})
    return " ".join(words.values())


def _modified_s(metadata: Metadata) -> float | None:
    """The modification time of an entry, in Unix seconds; None when there is none."""
    try:
        return float(metadata.get("timestamps", {}).get("modified", ""))
    except ValueError:
        return None


def unlisted(op: str, ln: str) -> CheloniaError:
    """Return the failure for a collection that the user may not read: an empty listing does not mean it is empty."""
    return CheloniaError(Kind.DENIED, op, ln, "you may not read it, so its contents stay unknown")


def new_call() -> Call:
    """Return the context of one user request: a fresh id, and a fresh key under which a change applies once."""
    key = str(uuid.uuid4())
    return Call(request_id=key[:8], request_key=RequestKey(key))


SHORT: Filter = (Needed("entry"), Needed("states"), Needed("timestamps"))
"""Metadata that a long listing shows."""


class _ListedPage(Protocol):
    @property
    def after(self) -> str: ...


_AnyPage = TypeVar("_AnyPage", bound=_ListedPage)


async def _pages(ask: Callable[[str], Awaitable[_AnyPage]]) -> AsyncGenerator[_AnyPage, None]:
    """Yield the pages of a listing; `ask` takes the mark of the page before. The next one is fetched while one is used.

    Raises: as `ask`, once the pages before it have been used.
    """
    page = await ask("")
    while page.after:
        coming = asyncio.ensure_future(ask(page.after))
        try:
            await asyncio.sleep(0)  # sends it now, even if the consumer never waits for anything
            yield page
            page = await coming
        finally:
            coming.cancel()
    yield page


def _named(entry: Named) -> DirectoryEntry:
    attributes = entry.attributes
    size = attributes.size if attributes.type == TYPE_FILE else -1
    modified = attributes.modified_ns / 1_000_000_000 if attributes.modified_ns else None
    closed = attributes.type == TYPE_COLLECTION and not attributes.etag
    return DirectoryEntry(entry.name, attributes.guid, attributes.type, size, modified, closed, links=attributes.links)


def _listed(entry: ListedEntry) -> DirectoryEntry:
    return described(entry.name, entry.guid, from_triples(entry.metadata))


def _done(op: str, ln: str, outcome: Outcome) -> str:
    if outcome.kind:
        raise _error(op, ln, outcome)
    return outcome.status


def _error(op: str, ln: str, outcome: Outcome | ListOutcome | ListDeletedOutcome) -> CheloniaError:
    return CheloniaError(kind_from_wire(outcome.kind), op, ln, outcome.cause or outcome.status)
