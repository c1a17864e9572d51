"""Downloads: verified, resumed on another replica when one fails, and never left half-written under their name.

A file's checksum comes from the Bartender, its bytes from any Shepherd that holds it. Arriving bytes are written to a
hidden file beside the target (`part_file`), which is renamed when it is whole and right. A connection that breaks or
stalls continues by Range on the next replica (`hedging`); the next download continues one that broke off. Large blobs
come in slices, several at once (`slices`), until one fails. After wrong bytes the download starts over on the next
replica and avoids that Shepherd. It fails with CHECKSUM when no other is named for a while.

A file of several blobs has no TURL of its own: it is read by its extents (`file_reader`). Its size is checked, and its
checksum where one of the whole is known.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import stat
from collections.abc import AsyncGenerator, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec

from chelonia.core import bounds
from chelonia.core.contents.extents import ByteRange
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.metadata import TYPE_FILE
from chelonia.core.names import parse_ln
from chelonia.core.ports.files import Look, Looked, Want, good
from chelonia.core.timing.pacing import Backoff
from chelonia.hosting.net.http_client import target_of
from chelonia.hosting.transfer.hedging import PATIENCE_MS, ReplicaChoice, opened
from chelonia.hosting.transfer.held_bytes import HeldBytes
from chelonia.hosting.transfer.landing import Landing
from chelonia.hosting.transfer.part_file import KEPT_BYTES, PartFile
from chelonia.hosting.transfer.requester import Progress, Requester
from chelonia.hosting.transfer.slices import SLICE_BYTES, Reads, in_slices
from chelonia.wire.web.ranges import range_of

if TYPE_CHECKING:
    from chelonia.core.timing.clock import Clock
    from chelonia.hosting.transfer.file_reader import FileReader
    from chelonia.wire.crcs import Hash


class Downloaded(msgspec.Struct, frozen=True):
    """A completed download: size in bytes, and the verified checksum. `had`: bytes that an earlier try had left."""

    ln: str
    size: int
    checksum_type: str
    checksum: str
    had: int = 0


class _ExpectedBytes(msgspec.Struct, frozen=True):
    """Facts that a file's bytes must match (`size` -1, checksum "": not known). `etag`: of bytes in several blobs."""

    size: int
    checksum_type: str = ""
    checksum: str = ""
    etag: str = ""


class _OnceChoice(msgspec.Struct):
    """A source that is read once, from the end of the bytes fetched so far. `turls` is empty once it was begun."""

    read: Callable[[_Fetched], AsyncGenerator[bytes, None]]
    turls: list[str]
    given: str = ""


_Choice = ReplicaChoice | _OnceChoice


def new_hash(kind: str) -> Hash:
    """Return a new hash of this kind. Raises: NOT_SUPPORTED for a kind that is not known here."""
    try:
        if kind in hashlib.algorithms_available:
            return hashlib.new(kind, usedforsecurity=False)
        from chelonia.wire.crcs import hash_named  # not above: few files have another checksum

        return hash_named(kind)
    except ValueError as error:
        cause = f"checksum type {kind!r} is not known here, so the bytes could not be verified"
        raise CheloniaError(Kind.NOT_SUPPORTED, "get", cause=cause) from error


async def read(client: Requester, ln: str, progress: Progress | None = None) -> AsyncGenerator[bytes, None]:
    """Yield a file's bytes as they come, the last `bounds.READ_HELD_BYTES` of them only when all are verified.

    Guarantee: an iterator that ends has yielded the file's bytes and no others. After wrong bytes of one replica,
    another is read from its start. It continues where the consumer is, if it begins with the bytes yielded.
    CHECKSUM is raised only where wrong bytes were yielded already, or no replica has right ones. So a file of at most
    the bytes held back never yields a wrong one. For a larger one, a consumer that cannot take bytes back must wait for
    the end: only its Shepherd has checksums of parts.
    Raises: NOT_FOUND, DENIED, NOT_A_FILE, NO_REPLICA, NETWORK, and CHECKSUM.
    """
    search, held = _Search(client, ln), None
    async for fetched, choice in search.replicas():
        held = held or HeldBytes(ln, bounds.READ_HELD_BYTES, fetched.digest_of_given(), progress)
        try:
            async with contextlib.aclosing(_from(client, choice, fetched)) as chunks:
                async for chunk in chunks:
                    await fetched.add(chunk)
                    for piece in held.take(chunk):
                        yield piece
            fetched.check(held.digest())
        except CheloniaError as error:
            search.failed(choice, error)
            if error.kind is Kind.CHECKSUM:
                held.start_over()
            continue
        for piece in held.rest():
            yield piece
        return
    raise search.failure


async def download(
    client: Requester,
    ln: str,
    target: Path,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
    mtime_s: float | None = None,
    landing: Landing | None = None,
    size: int = -1,
) -> Downloaded:
    """Fetch a file to `target`, which appears only when it is whole, verified and on stable storage.

    Args:
        target: where it goes; a symbolic link leads to its target.
        mtime_s: the modification time it gets.
        landing: shared by downloads that run together.
        size: in bytes, from a listing, -1: not known; small files share calls by it.
    Raises: EXISTS when the target is there and `overwrite` is False, FileExistsError when it comes meanwhile.
        NOT_A_FILE for a device, a pipe or a directory; as `read`, and OSError.
    """
    target = _replaceable(target, overwrite)
    with contextlib.ExitStack() as stack:

        def opened(whole: str) -> PartFile:
            return stack.enter_context(PartFile(target, whole, replaces=overwrite))

        fetched, part = await _fetch(client, ln, opened, progress, size)
        await (landing or Landing()).land(part, mtime_s)
    return Downloaded(ln, fetched.size, fetched.checksum_type, fetched.checksum, fetched.had)


def _replaceable(target: Path, overwrite: bool) -> Path:
    """The target, links followed. Raises: EXISTS; NOT_A_FILE for a device, a pipe or a directory."""
    if not os.path.lexists(target):
        return target
    if not overwrite:
        raise CheloniaError(Kind.EXISTS, "get", str(target), "the local file exists; -f overwrites it")
    with contextlib.suppress(FileNotFoundError):
        mode = target.stat().st_mode
        if stat.S_ISDIR(mode):
            raise CheloniaError(Kind.NOT_A_FILE, "get", str(target), "it is a local directory; give another name")
        if not stat.S_ISREG(mode):
            cause = "it is a device or a pipe, which no file may replace; - in its place writes to stdout"
            raise CheloniaError(Kind.NOT_A_FILE, "get", str(target), cause)
    return Path(os.path.realpath(target)) if target.is_symlink() else target


async def _fetch(
    client: Requester, ln: str, open_part: Callable[[str], PartFile], progress: Progress | None, size: int
) -> tuple[_Fetched, PartFile]:
    """Write a file's bytes to a part file, from as many replicas as it takes. Raises: as `read`."""
    search, part = _Search(client, ln, size), None
    async for fetched, choice in search.replicas():
        part = part or await _taken_up(search, fetched, open_part, progress)
        try:
            await _append(client, choice, part, fetched, progress)
            fetched.check()
            return fetched, part
        except CheloniaError as error:
            search.failed(choice, error)
            if error.kind is Kind.CHECKSUM:
                part.start_over()
                if progress is not None:
                    progress(-fetched.size)
    raise search.failure


async def _taken_up(
    search: _Search, fetched: _Fetched, open_part: Callable[[str], PartFile], progress: Progress | None
) -> PartFile:
    """The file to write to; bytes that an earlier download has left in it count as fetched."""
    if not fetched.whole:
        return open_part("")
    part = await asyncio.to_thread(open_part, fetched.whole)
    if had := await asyncio.to_thread(fetched.take_up, part):
        search.is_mixed()
        if progress is not None:
            progress(had)
    return part


ROUNDS = 4
"""Requests for TURLs in a row without a byte: those of a long download may have expired, a node may be back."""
_CHECKSUMS = ("sha256", "md5", "adler32")
PAUSE_MS, PAUSE_MS_MAX = 250, 1_000
"""Pause before the second round; doubled for each further one."""


class _Search:
    """The replicas of a file to try, and the bytes fetched so far; `failure`: the error of the last one tried."""

    def __init__(self, client: Requester, ln: str, size: int = -1) -> None:
        """`size`: expected bytes, -1: not known."""
        self._client = client
        self._ln = ln
        self._brings = bounds.INLINE_BYTES_MAX if size < 0 else min(size, bounds.INLINE_BYTES_MAX)
        self.failure = CheloniaError(Kind.NO_REPLICA, "get", ln, "no Shepherd was named to read it from")
        self._fetched: _Fetched | None = None
        self._from_one = True
        self._arrived = 0
        self._asked = False
        self._wrong: set[str] = set()
        self._sliced = True
        """Whether bytes come in slices: until a read breaks off, after which one connection brings the rest."""

    def failed(self, choice: _Choice, error: CheloniaError) -> None:
        """Note that a read has failed: its bytes are kept, unless they are wrong. A Shepherd that sent all of the wrong
        bytes is avoided."""
        assert self._fetched is not None, "a replica failed that was not handed out"
        self.failure, self._arrived = error, self._fetched.size
        self._sliced = self._sliced and not self._arrived
        self._client.trouble(self._ln, error.cause)
        if error.kind is Kind.CHECKSUM:
            self._fetched = None
            if self._from_one:
                self._wrong.add(target_of(choice.given))

    def is_mixed(self) -> None:
        """Note that the bytes are not all from one replica."""
        self._from_one = False

    async def replicas(self) -> AsyncGenerator[tuple[_Fetched, _Choice], None]:
        """Yield the bytes fetched so far and a choice of replicas; when all have been tried, with fresh TURLs.

        Raises: CONFLICT where the file is another by now; as `_ask`.
        """
        client = self._client
        number, barren, backoff = 0, 0, Backoff(PAUSE_MS, PAUSE_MS_MAX)
        while barren < ROUNDS:
            if number:
                await client.clock.sleep(backoff.failed())
            before = self._arrived
            try:
                facts, choice = await self._ask(PATIENCE_MS[min(number, len(PATIENCE_MS) - 1)])
            except CheloniaError as error:
                passing = number or error.kind in (Kind.NO_REPLICA, Kind.NOT_ALIVE)
                if not passing or barren == ROUNDS - 1:
                    raise
                client.trouble(self._ln, error.cause)
            else:
                while choice.turls:
                    fetched = self._fetched = self._fetched or _Fetched(self._ln, facts)
                    fetched.check_same(facts)
                    self._from_one, fetched.sliced = not fetched.size, self._sliced
                    yield fetched, choice
            number += 1
            barren += 1
            if self._arrived > before:
                barren = 0
                backoff.worked()

    async def _ask(self, patience_ms: int) -> tuple[_ExpectedBytes, _Choice]:
        """Look the file up; the choice is its bytes, for a small one at first, or where to read them."""
        client, place = self._client, parse_ln(self._ln)
        want = Want.SOURCES | Want.CHECKSUMS | (Want.NOTHING if self._asked else Want.BYTES)
        self._asked = True
        brings = self._brings if Want.BYTES in want else 0
        looked = good(await client.looks.send(client.new_call(), Look(place, want), brings), "get")
        attributes = looked.attributes
        if attributes.type != TYPE_FILE:
            raise CheloniaError(Kind.NOT_A_FILE, "get", self._ln, f"it is a {attributes.type}")
        several = looked.data is None and not looked.sources
        kind = next((name for name in _CHECKSUMS if getattr(looked.checksums, name)), "")
        checksum = getattr(looked.checksums, kind).lower() if kind else ""
        facts = _ExpectedBytes(attributes.size, kind, checksum, attributes.etag if several else "")
        if (data := looked.data) is not None:
            return facts, _OnceChoice(lambda fetched: _all(data[fetched.size :]), [self._ln])
        if looked.sources:
            turls = [turl for turl in dict.fromkeys(looked.sources) if target_of(turl) not in self._wrong]
            return facts, ReplicaChoice(turls, patience_ms)
        from chelonia.hosting.transfer.file_reader import FileReader  # not above: few files are of several blobs
        from chelonia.hosting.transfer.front import HttpBytes

        reader = FileReader(client.files, HttpBytes(client.http, client.clock), client.new_call(), place)
        read = partial(_from_extents, reader, looked, client.clock)
        return facts, _OnceChoice(read, [self._ln])


def _from(client: Requester, choice: _Choice, fetched: _Fetched) -> AsyncGenerator[bytes, None]:
    if isinstance(choice, ReplicaChoice):
        return _from_replica(client, choice, fetched.size, fetched.sliced_to)
    choice.turls.clear()
    return choice.read(fetched)


def _from_extents(reader: FileReader, looked: Looked, clock: Clock, fetched: _Fetched) -> AsyncGenerator[bytes, None]:
    span = ByteRange(fetched.size, looked.attributes.size - fetched.size)
    read = cast(Reads, partial(reader.get, looked))
    return in_slices(read, span, clock) if fetched.sliced_to else read(span)


async def _all(data: bytes) -> AsyncGenerator[bytes, None]:
    if data:
        yield data


async def _from_replica(
    client: Requester, choice: ReplicaChoice, offset: int, sliced_to: int
) -> AsyncGenerator[bytes, None]:
    """Yield a file's bytes from `offset` on, in slices up to `sliced_to` (0: as one). An answer without ranges is read
    from its start, and skipped up to `offset`."""
    first = offset + SLICE_BYTES if sliced_to else 0
    wanted = {"Range": f"bytes={offset}-{first - 1 if first else ''}"} if offset or first else {}
    async with opened(client.http, choice, wanted) as answer:
        if answer.status == 416:
            return  # nothing is left: the bytes fetched so far are whole
        ranged = answer.status == 206
        skip = 0 if ranged else offset
        async for chunk in answer.chunks():
            if len(chunk) > skip:
                yield chunk[skip:] if skip else chunk
            skip = max(0, skip - len(chunk))
    if not (ranged and sliced_to > first > 0):
        return
    read = partial(_slice, client, choice.given, choice.patience_ms)
    async with contextlib.aclosing(in_slices(read, ByteRange(first, sliced_to - first), client.clock)) as chunks:
        async for chunk in chunks:
            yield chunk


async def _slice(client: Requester, turl: str, patience_ms: int, span: ByteRange) -> AsyncGenerator[bytes, None]:
    async with opened(client.http, ReplicaChoice([turl], patience_ms), {"Range": range_of((span,))}) as answer:
        if answer.status != 206:
            raise CheloniaError(Kind.INCOMPLETE, "get", cause="it answers a part of the file with all of it")
        async for chunk in answer.chunks():
            yield chunk


async def _append(
    client: Requester, choice: _Choice, file: PartFile, fetched: _Fetched, progress: Progress | None
) -> None:
    keeper = _Keeper(file, fetched)
    try:
        async with contextlib.aclosing(_from(client, choice, fetched)) as chunks:
            async for chunk in chunks:
                await keeper.take(chunk)
                if progress is not None:
                    progress(len(chunk))
    finally:  # arrived bytes are kept, also when the rest must come from elsewhere
        await keeper.flush()


class _Keeper:
    """Hashes and writes arrived bytes in a thread while more are received."""

    def __init__(self, file: PartFile, fetched: _Fetched) -> None:
        self._file = file
        self._fetched = fetched
        self._pieces: list[bytes] = []
        self._gathered = 0
        self._work: asyncio.Task[None] | None = None

    async def take(self, chunk: bytes) -> None:
        """Take the next bytes. Raises: OSError from the local disk."""
        self._pieces.append(chunk)
        self._gathered += len(chunk)
        if self._gathered >= bounds.CHUNK_BYTES:
            await self._settled()
            pieces, self._pieces, self._gathered = self._pieces, [], 0
            self._work = asyncio.ensure_future(asyncio.to_thread(self._fetched.keep, self._file, pieces))

    async def flush(self) -> None:
        """Return when everything taken is written. Raises: OSError from the local disk."""
        await self._settled()
        pieces, self._pieces, self._gathered = self._pieces, [], 0
        self._fetched.keep(self._file, pieces)

    async def _settled(self) -> None:
        work = self._work
        if work is not None:
            try:
                await asyncio.shield(work)  # the thread goes on writing after a cancellation; `flush` waits for it
            finally:
                if work.done():
                    self._work = None


class _Fetched:
    """The bytes that have arrived so far: how many, and whether they are right."""

    def __init__(self, ln: str, facts: _ExpectedBytes) -> None:
        self.checksum_type = facts.checksum_type
        self.checksum = facts.checksum
        self.size = 0
        self.had = 0
        self.sliced = False
        self._hash = new_hash(self.checksum_type) if self.checksum_type else None
        self._facts = facts
        self._wanted = facts.size
        self._ln = ln

    @property
    def sliced_to(self) -> int:
        """The file's end where the missing bytes may come in slices, else 0."""
        return self._wanted if self.sliced and self._wanted - self.size > 2 * SLICE_BYTES else 0

    @property
    def whole(self) -> str:
        """Text that identifies large bytes among all others; "" for small ones, and without a checksum."""
        return str(self._facts) if self.checksum and self._wanted >= KEPT_BYTES else ""

    def take_up(self, file: PartFile) -> int:
        """Begin with the bytes that an earlier download has left; returns how many. Blocks."""
        for chunk in file.left():
            if self._hash is not None:
                self._hash.update(chunk)
            self.size += len(chunk)
        self.had = self.size
        return self.had

    def digest_of_given(self) -> Hash:
        """Return a hash to recognise bytes handed over."""
        if self.checksum_type == "sha256":  # compared in the end too: it is computed once
            return hashlib.sha256()
        from chelonia.wire.crcs import Crc  # not above: few files are of several blobs

        return Crc("crc64nvme")

    async def add(self, chunk: bytes) -> None:
        """Count and hash bytes; a SHA-256 is left to the caller (`check`)."""
        self.size += len(chunk)
        if self._hash is None or self.checksum_type == "sha256":
            return
        if len(chunk) > 256 * 1024:
            await asyncio.to_thread(self._hash.update, chunk)
        else:
            self._hash.update(chunk)

    def keep(self, file: PartFile, pieces: list[bytes]) -> None:
        """Hash and write bytes. Blocks."""
        for piece in pieces:
            file.write(piece)
            if self._hash is not None:
                self._hash.update(piece)
            self.size += len(piece)

    def check_same(self, facts: _ExpectedBytes) -> None:
        """Check that the name still stands for the bytes that have come. Raises: CONFLICT."""
        if self.size and facts != self._facts:
            raise CheloniaError(Kind.CONFLICT, "get", self._ln, "it was overwritten meanwhile; start again")

    def check(self, sha256: str = "") -> None:
        """Check size and checksum. `sha256`: of the bytes of `add`. Raises: INCOMPLETE; CHECKSUM for wrong bytes."""
        if self._wanted >= 0 and self.size < self._wanted:
            raise CheloniaError(Kind.INCOMPLETE, "get", self._ln, f"only {self.size} of {self._wanted} bytes came")
        added = sha256 if self.checksum_type == "sha256" else ""
        right = self._hash is None or (added or self._hash.hexdigest()) == self.checksum
        if not right or 0 <= self._wanted < self.size:
            cause = f"the bytes do not have the {self.checksum_type} checksum on record"
            raise CheloniaError(Kind.CHECKSUM, "get", self._ln, cause)
