"""Uploads of large files in parts: one that breaks off continues when the same file is sent there again.

A note on this machine names the upload of a file, by inode, target, cluster and user. It has the file's state, too:
size, times and wish. An upload of another state is given up. The cluster knows which parts have arrived. Nothing has
the target's name before all of them have; then the whole file gets it at once.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import os
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TextIO, cast

from chelonia.core import bounds
from chelonia.core.contents.parts import UploadId
from chelonia.core.errors import CheloniaError, Kind
from chelonia.hosting.transfer.upload import FileAim, Source, UploadOptions, UploadResult
from chelonia_clients.client import Client
from chelonia_clients.local_sources import span_source
from chelonia_clients.output import human_size
from chelonia_clients.parted import PART_BYTES, ArrivedParts, PartedUpload

MIB: Final = 1 << 20
PARTED_BYTES: Final = 256 * MIB
"""Size from which files are sent in parts: at a few MB/s a minute would be lost."""
FRESH: Final = (Kind.NOT_FOUND, Kind.DENIED, Kind.EXPIRED)
"""Answers for an upload that cannot be continued: it is over, or another user's."""

_OVER: Final = (Kind.INCOMPLETE, Kind.EXISTS)
"""Failures that end an upload for good: a part is not there any more, or another file has the name."""


def part_bytes(size: int) -> int:
    """Return the size of the parts of a file, other than the last."""
    least = -(-size // bounds.PARTS_MAX)
    return max(PART_BYTES, -(-least // MIB) * MIB)


def notes_directory(environ: Mapping[str, str]) -> Path:
    """Return the directory of upload notes."""
    state = environ.get("XDG_STATE_HOME") or Path(environ.get("HOME", "/")) / ".local" / "state"
    return Path(state) / "chelonia" / "uploads"


class UploadNote:
    """The note of one file's upload. `facts`: of the file, when its upload was begun."""

    def __init__(self, file: TextIO | None) -> None:
        """`file`: None where none can be written; then the upload cannot be resumed."""
        self._file = file
        upload, _, self.facts = file.read().partition("\n") if file is not None else ("", "", "")
        self.upload = UploadId(upload)

    def keep(self, upload: UploadId, facts: str = "") -> None:
        """Write down the upload; "": none any more."""
        self.upload, self.facts = upload, facts
        if self._file is not None:
            with suppress(OSError):  # a full disk
                self._file.seek(0)
                self._file.truncate()
                self._file.write(f"{upload}\n{facts}" if upload else "")
                self._file.flush()


@contextmanager
def noted(directory: Path, key: str) -> Iterator[UploadNote]:
    """Yield the note of `key`, for one process at a time; remove it when it names no upload any more."""
    path = directory / hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for other in directory.iterdir():
            _tidy(other)
        file = _locked(path)
        while file is None:
            file = _locked(path)
    except OSError:
        yield UploadNote(None)
        return
    with file:
        file.seek(0)
        note = UploadNote(file)
        try:
            yield note
        finally:
            if not note.upload:
                path.unlink(missing_ok=True)


def _locked(path: Path, mode: str = "a+") -> TextIO | None:
    """A note, opened and locked; None when another process has removed it. Raises: OSError when one has it locked."""
    file = path.open(mode, encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(file.fileno()), path.stat()):
            return cast(TextIO, file)
    except FileNotFoundError:
        pass
    except OSError:
        file.close()
        raise
    file.close()
    return None


def _tidy(path: Path) -> None:
    """Remove the note of an upload that the cluster has given up by now, unless another process uses it."""
    with suppress(OSError):
        if time.time() - path.stat().st_mtime > bounds.UPLOAD_OPEN_MS / 1000 and (file := _locked(path, "r+")):
            with file:
                path.unlink()


async def upload_in_parts(client: Client, path: Path, ln: str, wish: UploadOptions) -> UploadResult:
    """Store a large local file under `ln`; continue an upload of it that broke off.

    Raises: as `upload`; OSError when the file changes meanwhile.
    """
    found = await asyncio.to_thread(os.stat, path)
    with noted(notes_directory(os.environ), f"{client.account} {ln} {found.st_dev} {found.st_ino}") as note:
        upload = _FileUpload(client, path, ln, found, wish)
        arrived = await upload.resumed(note)
        goes_on = note.upload != ""
        missing = found.st_size - sum(size for size, _ in arrived.values())
        begun = await FileAim(client, ln, wish).start(missing)  # fails now rather than at the end
        try:
            return await upload.run(note, arrived, begun.note)
        except CheloniaError as error:
            if error.kind not in FRESH or not goes_on:
                raise
            upload.take_back()
        note.keep(UploadId(""))
        return await upload.run(note, {}, begun.note)


class _FileUpload:
    def __init__(self, client: Client, path: Path, ln: str, found: os.stat_result, wish: UploadOptions) -> None:
        modified_ns = min(max(0, found.st_mtime_ns), bounds.TIME_S_MAX * 10**9)  # as `comparing.kept_time`
        self._parted = PartedUpload(client, ln, wish, modified_ns)
        self._path = path
        self._found = found
        self._counted = 0

    async def resumed(self, note: UploadNote) -> ArrivedParts:
        """Return the parts that have arrived before; an upload of an earlier state of the file is given up."""
        if not note.upload:
            return {}
        if note.facts != self._facts:
            await self._give_up(note)
            return {}
        parted = self._parted
        try:
            arrived = await parted.arrived(note.upload)
        except CheloniaError as error:
            if error.kind not in FRESH:
                raise
            note.keep(UploadId(""))
            return {}
        received, size = sum(length for length, _ in arrived.values()), self._found.st_size
        if arrived:
            parted.client.remark(
                f"{parted.ln}: {human_size(received)} of {human_size(size)} had arrived; the upload goes on"
            )
        return arrived

    async def run(self, note: UploadNote, arrived: ArrivedParts, remark: str) -> UploadResult:
        """Send the missing parts, and give the file its name."""
        size, parted = self._found.st_size, self._parted
        if not note.upload:
            note.keep(await parted.open(), self._facts)
        sent = dict(await parted.send_each(note.upload, self._missing(arrived), self._count))
        order = [(number, sent.get(number) or arrived[number][1]) for number, _, _ in self._parts()]
        await self._require_unchanged(note)
        try:
            await parted.seal(note.upload, order)
        except CheloniaError as error:
            if error.kind in _OVER:
                await self._give_up(note)
            raise
        note.keep(UploadId(""))
        return UploadResult(parted.ln, size, "", remark)

    def _parts(self) -> Iterator[tuple[int, int, int]]:
        """Number, start and length of each part."""
        size, step = self._found.st_size, part_bytes(self._found.st_size)
        for number, start in enumerate(range(0, size, step), 1):
            yield number, start, min(step, size - start)

    async def _missing(self, arrived: ArrivedParts) -> AsyncGenerator[tuple[int, Source], None]:
        """The parts that have not arrived; the others count as sent."""
        for number, start, length in self._parts():
            if number in arrived and arrived[number][0] == length:
                self._count(length)
            else:
                yield number, span_source(self._path, start, length)

    @property
    def _facts(self) -> str:
        """Text that identifies this state of the file, and this wish."""
        found = self._found
        return f"{found.st_size} {found.st_mtime_ns} {found.st_ctime_ns} {self._parted.wish.replicas}"

    async def _give_up(self, note: UploadNote) -> None:
        upload = note.upload
        note.keep(UploadId(""))
        await self._parted.drop(upload)

    def take_back(self) -> None:
        """Count nothing of it as sent any more."""
        self._count(-self._counted)

    def _count(self, moved: int) -> None:
        self._counted += moved
        progress = self._parted.wish.progress
        if progress is not None and moved:
            progress(moved)

    async def _require_unchanged(self, note: UploadNote) -> None:
        now = await asyncio.to_thread(os.stat, self._path)
        if (now.st_size, now.st_mtime_ns) != (self._found.st_size, self._found.st_mtime_ns):
            await self._give_up(note)
            cause = "it was changed while it was sent, so nothing has its name; upload it again"
            raise OSError(errno.EIO, cause, str(self._path))
