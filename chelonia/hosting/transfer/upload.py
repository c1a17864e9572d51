"""Uploads: bytes first, then the name.

`upload` has the Bartender place the bytes, streams them there while hashing, and compares the Shepherds' receipts with
the bytes sent. Only then it commits the name. Trouble with one Shepherd costs a new start, at once when it has gone
silent (`stall_watch`). Until the name is committed, nothing is visible, and an overwritten file stays as it was.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Protocol, cast

import msgspec

from chelonia.core import bounds
from chelonia.core.cluster.replicas import Checksums
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.names import parse_ln
from chelonia.core.ports.files import ANY, Arrived, Failure, Inline, Placing, Setting, When, Write
from chelonia.core.timing.pacing import Backoff
from chelonia.core.values import replace
from chelonia.hosting.net.http_client import Sending, raise_for_status
from chelonia.hosting.transfer.requester import A, Progress, Requester
from chelonia.hosting.transfer.stall_watch import StallWatch
from chelonia.wire import receipts
from chelonia.wire.web.headers import RECEIPTS_HEADER

TRIES = 6
"""Fresh starts of one upload: each may be sent to other Shepherds."""
PAUSE_MS, PAUSE_MS_MAX = 200, 3_200
"""Pause before the second start; doubled for each further one, so that a lost node has been noticed by the last."""


class UploadOptions(msgspec.Struct, frozen=True):
    """Options for storing a file. `mtime_s`: modification time to keep. `user`: the user's own attributes; they and
    `policy` as of `Write`."""

    replicas: int = bounds.REPLICAS_DEFAULT
    replace: bool = False
    mtime_s: float | None = None
    user: Mapping[str, str] | None = None
    policy: Mapping[str, str] | None = None
    progress: Progress | None = None

    @property
    def when(self) -> When:
        """Condition on the name."""
        return ANY if self.replace else When(absent=True)


class UploadResult(msgspec.Struct, frozen=True):
    """A stored file: its size in bytes and SHA-256 (hex), as confirmed by the Shepherds. `note`: for the user, such as
    that there are fewer Shepherds than copies wanted."""

    ln: str
    size: int
    sha256: str
    note: str = ""


class Source(msgspec.Struct, frozen=True):
    """A source of `size` bytes (-1: not known). `open` returns an iterator over them, anew for each try."""

    open: Callable[[], AsyncIterator[bytes]]
    size: int


def bytes_source(data: bytes) -> Source:
    """Return a source of bytes in memory."""
    step = bounds.CHUNK_BYTES
    return chunks_source([data[start : start + step] for start in range(0, len(data), step)])


def chunks_source(chunks: Sequence[bytes]) -> Source:
    """Return a source of chunks in memory."""

    async def each() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    return Source(each, sum(map(len, chunks)))


class BegunUpload(msgspec.Struct, frozen=True):
    """A place for bytes: `turl`, and the token `put` that names them afterwards. `note`: for the user."""

    turl: str
    put: str
    note: str = ""


class Aim(Protocol):
    """The aim of sent bytes: a file, or a part of one. `starts`: fresh starts that other parts of it have taken."""

    starts: int

    async def start(self, size: int) -> BegunUpload:
        """Have the bytes placed. Raises: NO_SHEPHERD, and errors that a fresh start does not cure."""

    async def commit(self, begun: BegunUpload, words: Sequence[str]) -> None:
        """Commit the arrived bytes, with the receipts of the Shepherds that hold them."""


async def upload(client: Requester, source: Source, ln: str, options: UploadOptions | None = None) -> UploadResult:
    """Store `source` under `ln`.

    Raises: EXISTS (without `replace`), NO_PARENT, DENIED, NO_SHEPHERD, NO_SPACE, CHECKSUM, NETWORK; OSError from the
    source. After these the name is as it was before. Only after OUTCOME_UNKNOWN or NETWORK in the commit it may already
    name the new bytes.
    """
    wish = options or UploadOptions()
    if 0 <= source.size <= bounds.INLINE_BYTES_MAX:
        stored = await _inline(client, source, ln, wish)
        if stored is not None:
            return stored
    return await send(client, source, ln, FileAim(client, ln, wish), wish.progress)


async def send(
    client: Requester, source: Source, ln: str, aim: Aim, progress: Progress | None = None
) -> UploadResult:  # fmt: skip
    """Send `source`, bytes of the file `ln`, with at most `TRIES` fresh starts. Raises: as `upload`."""
    backoff = Backoff(PAUSE_MS, PAUSE_MS_MAX)
    for left in range(TRIES - 1, -1, -1):
        try:
            return await _try_upload(client, source, ln, _Try(aim, progress, TRIES - 1 - left))
        except _Again as again:
            if not left:
                raise again.error from None
            client.trouble(ln, again.error.cause)
            pause_ms = backoff.failed()
            if again.at_once and left == TRIES - 1:
                continue
        await client.clock.sleep(pause_ms)
    raise AssertionError("the last try either returns or raises")


async def _inline(client: Requester, source: Source, ln: str, wish: UploadOptions) -> UploadResult | None:
    """Send a small file in the message that names it; None where it has to go the long way, as when it has grown."""
    data = b""
    async with aclosing(cast(AsyncGenerator[bytes, None], source.open())) as chunks:
        async for chunk in chunks:
            data += chunk
            if len(data) > bounds.INLINE_BYTES_MAX:
                return None
    sha256 = hashlib.sha256(data).hexdigest()
    write = replace(_write(ln, wish), inline=Inline(data, wish.replicas, Checksums(sha256)))
    done = await client.writes.send(client.new_call(), write)
    if isinstance(done, Failure) and done.kind in _LONG_WAY:
        return None
    note = good("put", ln, done).note
    if wish.progress is not None:
        wish.progress(len(data))
    return UploadResult(ln, len(data), sha256, note)


def _write(ln: str, wish: UploadOptions) -> Write:
    """The change that names the bytes, without them. Raises: BAD_NAME."""
    modified_ns = None if wish.mtime_s is None else round(wish.mtime_s * 1000) * 1_000_000
    user = None if wish.user is None else dict(wish.user)
    return Write(parse_ln(ln), setting=Setting(modified_ns=modified_ns), user=user, when=wish.when, policy=wish.policy)


def good(op: str, ln: str, answer: A | Failure) -> A:
    """Return the answer, or raise its failure. Raises: that failure; EXISTS where the name has to be free."""
    if not isinstance(answer, Failure):
        return answer
    if answer.kind is Kind.PRECONDITION:
        raise CheloniaError(Kind.EXISTS, op, ln, "there is an entry of this name; -f overwrites it")
    raise CheloniaError(answer.kind, op, ln, answer.cause)


_LONG_WAY = (Kind.CHECKSUM, Kind.BAD_TICKET)
"""Failures after which the long way is tried: no name has been made, and older Bartenders know no other."""


class _Again(Exception):
    """A failure after which a fresh start makes sense: no name has been made. `at_once`: without a pause."""

    def __init__(self, error: CheloniaError) -> None:
        super().__init__(error)
        self.error = error
        self.at_once = error.kind is Kind.TIMEOUT


_START_AGAIN = (
    Kind.BAD_TICKET, Kind.EXPIRED, Kind.ALREADY_DONE, Kind.INCOMPLETE, Kind.CHECKSUM, Kind.NO_SHEPHERD,
)  # fmt: skip
"""Failures of a commit, or of a PUT, that a fresh start may cure although the same request would not."""


class _Try(msgspec.Struct, frozen=True):
    aim: Aim
    progress: Progress | None
    number: int


async def _try_upload(client: Requester, source: Source, ln: str, this: _Try) -> UploadResult:
    try:
        begun = await this.aim.start(source.size)
    except CheloniaError as error:
        if error.kind is Kind.NO_SHEPHERD:
            raise _Again(error) from error
        raise
    sent = _Counted(source.open(), this.progress)
    try:
        watch = StallWatch(client.http, client.clock, this.aim.starts + this.number, lambda: sent.size)
        sending = Sending("PUT", begun.turl, {}, sent, source.size, bounds.COPY_ANSWER_MS)
        words = await _put(client, ln, sending, watch)
        _compare(ln, sent, words)
        await this.aim.commit(begun, words)
    except CheloniaError as error:
        sent.take_back()
        if error.kind in _START_AGAIN or (error.meaning.retryable and error.op == "put"):
            raise _Again(error) from error
        raise
    except BaseException:
        sent.take_back()
        raise
    finally:
        await sent.aclose()
    return UploadResult(ln, sent.size, sent.sha256, begun.note)


class FileAim:
    """The aim of a whole file, under `ln`."""

    starts = 0

    def __init__(self, client: Requester, ln: str, wish: UploadOptions) -> None:
        self._client = client
        self._ln = ln
        self._wish = wish

    async def start(self, size: int) -> BegunUpload:
        """As `Aim.start`. Raises: EXISTS, NO_PARENT, DENIED, NO_SHEPHERD, NO_SPACE."""
        ask = Placing(parse_ln(self._ln), size, wanted=self._wish.replicas, when=self._wish.when)
        placed = good("put", self._ln, await self._client.settled(self._client.files.place, ask))
        return BegunUpload(placed.turl, placed.put, placed.note)

    async def commit(self, begun: BegunUpload, words: Sequence[str]) -> None:
        write = replace(_write(self._ln, self._wish), content=Arrived(begun.put, tuple(words)))
        good("commitPut", self._ln, await self._client.settled(self._client.files.apply, write))


async def _put(client: Requester, ln: str, sending: Sending, watch: StallWatch) -> list[str]:
    try:
        answer = await watch.settled(asyncio.ensure_future(client.http.request(sending)), sending.url)
        raise_for_status(answer.status, answer.headers, answer.body, "put")
    except CheloniaError as error:
        raise CheloniaError(error.kind, "put", error.subject or ln, error.cause) from error
    return [word for word in answer.headers.get(RECEIPTS_HEADER, "").replace(" ", "").split(",") if word]


def _compare(ln: str, sent: _Counted, words: Sequence[str]) -> None:
    """Check end to end that the receipts are for the bytes read here. Raises: CHECKSUM, INTERNAL."""
    stored = [receipts.from_text(word) for word in words]
    if not stored:
        raise CheloniaError(Kind.INTERNAL, "put", ln, "the Shepherd answered without a receipt")
    for receipt in stored:
        if receipt.size != sent.size or receipt.checksums.sha256 != sent.sha256:
            cause = f"{receipt.location.shepherd} stored other bytes than were sent; nothing was named, try again"
            raise CheloniaError(Kind.CHECKSUM, "put", ln, cause)


class _Counted:
    """Passes chunks on, counting and hashing them. Its maker closes it, also while another task reads it."""

    def __init__(self, source: AsyncIterator[bytes], progress: Progress | None) -> None:
        self._source = source
        self._progress = progress
        self._hash = hashlib.sha256()
        self._hashing: asyncio.Task[None] | None = None
        self._step = asyncio.Lock()
        self._closed = False
        self.size = 0

    @property
    def sha256(self) -> str:
        """SHA-256 of the chunks passed on; whole once the source has ended."""
        return self._hash.hexdigest()

    def __aiter__(self) -> _Counted:
        return self

    async def __anext__(self) -> bytes:
        async with self._step:
            if self._closed:
                raise ConnectionAbortedError("the upload was given up")
            chunk = await anext(self._source, None)
            await self._hashed()
            if chunk is None:
                raise StopAsyncIteration
            if len(chunk) > 256 * 1024:  # hashed while it is sent
                self._hashing = asyncio.ensure_future(asyncio.to_thread(self._hash.update, chunk))
            else:
                self._hash.update(chunk)
            self.size += len(chunk)
            if self._progress is not None:
                self._progress(len(chunk))
            return chunk

    async def aclose(self) -> None:
        """Close the source, once a step under way has ended."""
        self._closed = True
        async with self._step:  # a cancelled sender may be in a step, and a running generator cannot be closed
            await self._hashed()
            close = getattr(self._source, "aclose", None)
            if close is not None:
                await close()

    async def _hashed(self) -> None:
        hashing, self._hashing = self._hashing, None
        if hashing is not None:
            await hashing

    def take_back(self) -> None:
        if self._progress is not None and self.size:
            self._progress(-self.size)
