"""Names for downloaded files: bytes go to stable storage first, with one sync for files that come together.

Files that come while the disk is busy wait, and are written, synced and named in one go. Each is synced by itself where
there are few, or where a sync of the whole file system is not known to report failed writes.
Invariant: no name leads to bytes that a power cut could take; a file that the cut takes has no name.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from chelonia.hosting.transfer.part_file import PartFile

T = TypeVar("T")

FEW: Final = 3
"""Files up to which each is synced by itself: a sync of the file system writes others' bytes, too."""
MOST: Final = 256
"""Files open at once: a process may have 1024."""
_SYNCED_WHOLE: Final = ("ext3", "ext4", "xfs")
_REPORTS_SINCE: Final = (5, 8)
"""The first Linux whose `syncfs` fails when bytes could not be written."""

_Waiting = tuple[PartFile, float | None, "asyncio.Future[None]"]


class Landing:
    """Gives the files of some downloads their names, one batch after another."""

    def __init__(self) -> None:
        self._waiting: list[_Waiting] = []
        self._work: asyncio.Task[None] | None = None

    async def land(self, part: PartFile, mtime_s: float | None) -> None:
        """Give a file its name, with a modification time. Raises: OSError from the local disk."""
        landed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((part, mtime_s, landed))
        if self._work is None:
            self._work = asyncio.create_task(self._land_waiting())
        try:
            await asyncio.shield(landed)
        except asyncio.CancelledError:
            waits = len(self._waiting)
            self._waiting = [each for each in self._waiting if each[2] is not landed]
            is_written = len(self._waiting) == waits
            while is_written and not landed.done():  # its file must stay open, however often this is cancelled
                with suppress(asyncio.CancelledError):
                    await asyncio.wait((landed,))
            raise

    async def _land_waiting(self) -> None:
        batch: list[_Waiting] = []
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
                files = [(part, mtime_s) for part, mtime_s, _ in batch]
                errors = await _finished(asyncio.get_running_loop().run_in_executor(None, _landed, files))
                for (_, _, landed), error in zip(batch, errors, strict=True):
                    if not landed.done():
                        landed.set_result(None) if error is None else landed.set_exception(error)
        finally:
            self._work = None
            for _, _, landed in (*batch, *self._waiting):
                landed.cancel()


async def _finished(work: asyncio.Future[T]) -> T:
    """The result of a thread; a cancelled caller waits for its end too."""
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():  # the thread goes on with the files
            with suppress(asyncio.CancelledError):
                await asyncio.wait((work,))
        raise


def _landed(files: Sequence[tuple[PartFile, float | None]]) -> list[Exception | None]:
    """Write, sync and name files. Blocks. Returns: the error of each, None for success."""
    errors = [_error(partial(part.write_out, mtime_s)) for part, mtime_s in files]
    written = [part for (part, _), error in zip(files, errors, strict=True) if error is None]
    is_synced = len(written) > FEW and _sync_all(written)
    for number, (part, _) in enumerate(files):
        if errors[number] is None and not is_synced:
            errors[number] = _error(part.sync)
        if errors[number] is None:
            errors[number] = _error(part.name)
    return errors


def _error(step: Callable[[], object]) -> Exception | None:
    try:
        step()
    except (OSError, OverflowError, ValueError) as error:  # the last two: a time out of range, a closed file
        return error
    return None


def _sync_all(parts: Sequence[PartFile]) -> bool:
    """Sync the file systems of files; whether all were synced and reported no lost bytes."""
    one_of = {os.fstat(part.fileno()).st_dev: part.fileno() for part in parts}
    return all(_knows(device) and _syncfs(descriptor) for device, descriptor in one_of.items())


def _knows(device: int) -> bool:
    """Whether a sync of this file system reports every failed write."""
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    if not sys.platform.startswith("linux") or release is None or (int(release[1]), int(release[2])) < _REPORTS_SINCE:
        return False
    mounted = f" {os.major(device)}:{os.minor(device)} "
    try:
        lines = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return False
    kinds = {line.partition(" - ")[2].partition(" ")[0] for line in lines if mounted in line}
    return bool(kinds) and kinds.issubset(_SYNCED_WHOLE)


def _syncfs(descriptor: int) -> bool:
    import ctypes  # not above: few programs download many files

    syncfs = getattr(ctypes.CDLL(None), "syncfs", None)
    return syncfs is not None and syncfs(descriptor) == 0
