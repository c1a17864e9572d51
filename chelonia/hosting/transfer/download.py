"""Downloads: verified, resumed on another replica when one fails, and never left half-written under their name.

A file's checksum comes from the Bartender, its bytes from any Shepherd that holds it. What arrives is written to a
temporary file beside the target and renamed when it is whole and right; a connection that breaks or stalls continues by
Range on the next replica (`hedging`). Wrong bytes start over on the next replica, and whoever gave them is not asked
again; they are reported as CHECKSUM when nobody else is named for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import stat
import tempfile
import zlib
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from chelonia.core import bounds
from chelonia.core.bartender import GetFileRequest, TransferOutcome
from chelonia.core.errors import CheloniaError, Kind, kind_from_wire
from chelonia.core.shepherd import PROTOCOL_HTTP
from chelonia.hosting.net.http_client import target_of
from chelonia.hosting.transfer.hedging import PATIENCE_MS, Choice, opened
from chelonia.hosting.transfer.requester import Progress, Requester


@dataclass(frozen=True, slots=True)
class Downloaded:
    """What was fetched: size in bytes, and the checksum that was verified."""

    ln: str
    size: int
    checksum_type: str
    checksum: str


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...
    def hexdigest(self) -> str: ...


class _Adler32:
    def __init__(self) -> None:
        self._value = 1

    def update(self, data: bytes, /) -> None:
        self._value = zlib.adler32(data, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


def _new_hash(kind: str) -> _Hash:
    if kind == "adler32":
        return _Adler32()
    try:
        return hashlib.new(kind, usedforsecurity=False)
    except ValueError as error:
        cause = f"checksum type {kind!r} is not known here, so the bytes could not be verified"
        raise CheloniaError(Kind.NOT_SUPPORTED, "get", cause=cause) from error


async def read(client: Requester, ln: str, progress: Progress | None = None) -> AsyncGenerator[bytes, None]:
    """Yield a file's bytes as they come.

    They are verified at the end, so a consumer that cannot take bytes back must wait for the iterator to end.
    Raises: NOT_FOUND, DENIED, NOT_A_FILE, NO_REPLICA, NETWORK, and CHECKSUM after the last byte.
    """
    fetched: _Fetched | None = None
    failure: CheloniaError | None = None
    search = _Search(client, ln)
    async for answer, choice in search.replicas():
        fetched = fetched or _Fetched(ln, answer)
        fetched.check_same(answer)
        try:
            async with contextlib.aclosing(_from(client, choice, fetched.size)) as chunks:
                async for chunk in chunks:
                    await fetched.add(chunk)
                    if progress is not None:
                        progress(len(chunk))
                    yield chunk
            fetched.check()
            return
        except CheloniaError as error:
            if error.kind is Kind.CHECKSUM:
                raise
            failure = error
            search.arrived = fetched.size
            client.trouble(ln, error.cause)
    raise failure or CheloniaError(Kind.NO_REPLICA, "get", ln, "no Shepherd was named to read it from")


async def download(
    client: Requester, ln: str, target: Path, *, overwrite: bool = False, progress: Progress | None = None
) -> Downloaded:
    """Fetch a file to `target`, which appears only when it is whole and verified; a symbolic link leads to its target.

    Raises: EXISTS when the target is there and `overwrite` is False, NOT_A_FILE when it is a device, a pipe or a
        directory, and as `read`; OSError from the local disk.
    """
    _check_free(target, overwrite)
    target = _replaceable(target)
    with _temporary(target) as (file, path):
        fetched = await _fetch(client, ln, file, progress)
        await asyncio.to_thread(_finish, file, path, target)
    return Downloaded(ln, fetched.size, fetched.checksum_type, fetched.checksum)


def _check_free(target: Path, overwrite: bool) -> None:
    if not overwrite and os.path.lexists(target):
        raise CheloniaError(Kind.EXISTS, "get", str(target), "the local file exists; -f overwrites it")


def _replaceable(target: Path) -> Path:
    """Where the file goes, links followed. Raises: NOT_A_FILE where it would take the place of a device or the like."""
    with contextlib.suppress(FileNotFoundError):
        mode = target.stat().st_mode
        if stat.S_ISDIR(mode):
            raise CheloniaError(Kind.NOT_A_FILE, "get", str(target), "it is a local directory; give another name")
        if not stat.S_ISREG(mode):
            cause = "it is a device or a pipe, which no file may replace; - in its place writes to stdout"
            raise CheloniaError(Kind.NOT_A_FILE, "get", str(target), cause)
    return Path(os.path.realpath(target)) if target.is_symlink() else target


async def _fetch(client: Requester, ln: str, file: BinaryIO, progress: Progress | None) -> _Fetched:
    """Write a file's bytes to `file`, from as many replicas as it takes. Raises: as `read`."""
    fetched: _Fetched | None = None
    failure: CheloniaError | None = None
    search = _Search(client, ln)
    async for answer, choice in search.replicas():
        fetched = fetched or _Fetched(ln, answer)
        fetched.check_same(answer)
        from_one = not fetched.size
        try:
            await _append(client, choice, file, fetched, progress)
            fetched.check()
            return fetched
        except CheloniaError as error:
            failure = error
            search.arrived = fetched.size
            client.trouble(ln, error.cause)
        if failure.kind is Kind.CHECKSUM:
            fetched = _start_over(file, fetched, ln, answer, progress)
            if from_one:
                search.wrong.add(target_of(choice.given))
    raise failure or CheloniaError(Kind.NO_REPLICA, "get", ln, "no Shepherd was named to read it from")


ROUNDS = 4
"""How often in a row without a byte the Bartender is asked for TURLs: those of a long download may have expired, a node
may be back."""
PAUSE_MS = 250
"""Before the second round; doubled for each further one."""


class _Search:
    """The replicas of a file to try. As the user of it tells, `arrived`: how many bytes have come; `wrong`: Shepherds
    whose copy is damaged."""

    def __init__(self, client: Requester, ln: str) -> None:
        self._client = client
        self._ln = ln
        self.arrived = 0
        self.wrong: set[str] = set()

    async def replicas(self) -> AsyncGenerator[tuple[TransferOutcome, Choice], None]:
        """Yield what there is to choose from until nothing of it is left, then fresh TURLs; Raises: as `_ask`."""
        client = self._client
        number = barren = 0
        while barren < ROUNDS:
            if number:
                await client.clock.sleep(PAUSE_MS * 2 ** max(barren - 1, 0))
            before = self.arrived
            try:
                answer = await _ask(client, self._ln)
            except CheloniaError as error:
                passing = number or error.kind in (Kind.NO_REPLICA, Kind.NOT_ALIVE)
                if not passing or barren == ROUNDS - 1:
                    raise
                client.trouble(self._ln, error.cause)
            else:
                turls = [turl for turl in _turls(answer) if target_of(turl) not in self.wrong]
                choice = Choice(turls, PATIENCE_MS[min(number, len(PATIENCE_MS) - 1)])
                while choice.turls:
                    yield answer, choice
            number += 1
            barren = 0 if self.arrived > before else barren + 1


def _turls(answer: TransferOutcome) -> list[str]:
    return list(dict.fromkeys(turl for turl in (answer.turl, *answer.turls) if turl))


async def _ask(client: Requester, ln: str) -> TransferOutcome:
    request = (GetFileRequest("0", ln, (PROTOCOL_HTTP,)),)
    answer = await client.settled(lambda call: client.bartender.get_file(call, request))
    if answer.kind:
        raise CheloniaError(kind_from_wire(answer.kind), "get", ln, answer.cause or answer.status)
    return answer


async def _from(client: Requester, choice: Choice, offset: int) -> AsyncGenerator[bytes, None]:
    """Yield a replica's bytes from `offset` on; a TURL that knows no ranges is read from its start and skipped."""
    async with opened(client.http, choice, offset) as answer:
        if answer.status == 416:
            return  # nothing is left: what came before was whole
        skip = offset if answer.status != 206 else 0
        async for chunk in answer.chunks():
            if len(chunk) > skip:
                yield chunk[skip:] if skip else chunk
            skip = max(0, skip - len(chunk))


async def _append(
    client: Requester, choice: Choice, file: BinaryIO, fetched: _Fetched, progress: Progress | None
) -> None:
    keeper = _Keeper(file, fetched)
    try:
        async with contextlib.aclosing(_from(client, choice, fetched.size)) as chunks:
            async for chunk in chunks:
                await keeper.take(chunk)
                if progress is not None:
                    progress(len(chunk))
    finally:  # what has come is kept, also when the rest must come from elsewhere
        await keeper.flush()


def _start_over(
    file: BinaryIO, fetched: _Fetched, ln: str, answer: TransferOutcome, progress: Progress | None
) -> _Fetched:
    file.seek(0)
    file.truncate()
    if progress is not None:
        progress(-fetched.size)
    return _Fetched(ln, answer)


@contextlib.contextmanager
def _temporary(target: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """A file beside the target that is gone at the end unless it was renamed."""
    descriptor, name = tempfile.mkstemp(prefix=".chelonia.", suffix=".part", dir=target.parent)
    path = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file, path
    finally:
        path.unlink(missing_ok=True)


def _finish(file: BinaryIO, path: Path, target: Path) -> None:
    file.flush()
    os.fsync(file.fileno())
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)
    path.replace(target)


class _Keeper:
    """Hashes and writes what has come in a thread while more is received."""

    def __init__(self, file: BinaryIO, fetched: _Fetched) -> None:
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
        work, self._work = self._work, None
        if work is not None:
            await work


class _Fetched:
    """What has arrived so far, and whether it is right."""

    def __init__(self, ln: str, answer: TransferOutcome) -> None:
        self.checksum_type = answer.checksum_type if answer.checksum else ""
        self.checksum = answer.checksum.lower()
        self.size = 0
        self._hash = _new_hash(self.checksum_type) if self.checksum_type else None
        self._wanted = answer.size
        self._ln = ln

    async def add(self, chunk: bytes) -> None:
        self.size += len(chunk)
        if self._hash is None:
            return
        if len(chunk) > 256 * 1024:
            await asyncio.to_thread(self._hash.update, chunk)
        else:
            self._hash.update(chunk)

    def keep(self, file: BinaryIO, pieces: list[bytes]) -> None:
        """Hash and write; blocks."""
        for piece in pieces:
            file.write(piece)
            if self._hash is not None:
                self._hash.update(piece)
            self.size += len(piece)

    def check_same(self, answer: TransferOutcome) -> None:
        """Raises: CONFLICT when the name means other bytes now than those that have come."""
        if self.size and (answer.checksum.lower(), answer.size) != (self.checksum, self._wanted):
            raise CheloniaError(Kind.CONFLICT, "get", self._ln, "it was overwritten meanwhile; start again")

    def check(self) -> None:
        """Raises: INCOMPLETE when not whole; CHECKSUM when whole but wrong."""
        if self._wanted >= 0 and self.size < self._wanted:
            raise CheloniaError(Kind.INCOMPLETE, "get", self._ln, f"only {self.size} of {self._wanted} bytes came")
        right = self._hash is None or self._hash.hexdigest() == self.checksum
        if not right or 0 <= self._wanted < self.size:
            cause = f"the bytes do not have the {self.checksum_type} checksum on record"
            raise CheloniaError(Kind.CHECKSUM, "get", self._ln, cause)
