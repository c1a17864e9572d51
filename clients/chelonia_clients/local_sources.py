"""Bytes on this machine as sources of uploads: files, pipes, devices, stdin."""

from __future__ import annotations

import asyncio
import errno
import os
import queue
import select
import stat
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import ExitStack, aclosing, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

from chelonia.core import bounds
from chelonia.hosting.transfer.upload import Source, bytes_source

Stream = Callable[[], AsyncGenerator[bytes, None]]
"""A source that can be read once, to its end, and may be slow: a pipe, a device, stdin."""


def file_source(path: Path) -> Source | Stream:
    """Return the source of a local file, a small one read at once; a pipe or a device is a stream. Blocks.

    Raises: OSError when it cannot be read; the source raises it when the file has become shorter meanwhile.
    """
    size = expected_size(path)
    if not path.is_file():
        return stream_of(lambda: path.open("rb"))
    if 0 <= size <= bounds.INLINE_BYTES_MAX:
        data = path.read_bytes()
        if len(data) >= size:
            return bytes_source(data)
    return _reading(path, 0, size, sys.maxsize if size < 0 else size)  # one that grows: as it was at first


def span_source(path: Path, start: int, size: int) -> Source:
    """Return a source of `size` bytes of a local file, from `start` on; it raises as that of `file_source`."""
    return _reading(path, start, size, size)


def _reading(path: Path, start: int, size: int, most: int) -> Source:
    """A source of bytes from `start` on: `size` are expected, at most `most` are read."""

    def opened() -> BinaryIO:
        file = path.open("rb", buffering=0)
        file.seek(start)
        return file

    async def chunks() -> AsyncIterator[bytes]:
        came = 0
        async with aclosing(_read_apart(opened, most, is_ahead=True)) as pieces:
            async for chunk in pieces:
                came += len(chunk)
                yield chunk
        if came < size:
            cause = f"it ended after {came} of {size} bytes: cut off meanwhile? Upload it again, or from stdin"
            raise OSError(errno.EIO, cause, str(path))

    return Source(chunks, size)


def expected_size(path: Path) -> int:
    """Return how many bytes a local file has, -1 if only reading it to its end shows that. Raises: OSError."""
    # Files that the kernel generates have a size of 0 (/proc) or of a page (/sys), and no blocks. A file that is one
    # hole has no blocks either, but its last byte can be read.
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        return -1
    if found.st_size and found.st_blocks:
        return found.st_size
    with path.open("rb", buffering=0) as file:
        if not found.st_size:
            return -1 if file.read(1) else 0
        return found.st_size if os.pread(file.fileno(), 1, found.st_size - 1) else -1


def stream_of(open_: Callable[[], BinaryIO]) -> Stream:
    """Return a stream of the file that `open_` opens; the stream closes it.

    Nothing is read ahead, and an abandoned read is not waited for: its writer may never write.
    """
    return partial(_read_apart, open_, sys.maxsize, is_ahead=False)


async def _read_apart(open_: Callable[[], BinaryIO], most: int, *, is_ahead: bool) -> AsyncGenerator[bytes, None]:
    """Yield at most `most` bytes of a file, which a thread of its own opens, reads and closes."""
    loop, wanted = asyncio.get_running_loop(), queue.SimpleQueue[asyncio.Future[bytes] | None]()
    threading.Thread(target=_read_wanted, args=(open_, most, wanted, loop), name="source", daemon=True).start()

    def coming() -> asyncio.Future[bytes]:
        wanted.put(future := loop.create_future())
        return future

    following = coming()
    try:
        while chunk := await following:
            if is_ahead:
                following = coming()
            yield chunk
            if not is_ahead:
                following = coming()
    finally:
        wanted.put(None)
        if not following.cancel() and not following.cancelled():
            following.exception()  # retrieved, so that asyncio does not log it


def _read_wanted(
    open_: Callable[[], BinaryIO],
    left: int,
    wanted: queue.SimpleQueue[asyncio.Future[bytes] | None],
    loop: asyncio.AbstractEventLoop,
) -> None:
    """Read a chunk for each future, until None. Runs in a daemon thread: unlike an executor's it holds up no exit."""
    with ExitStack() as stack:
        file: BinaryIO | None = None
        while (future := wanted.get()) is not None:
            settle = partial(_settle, future)
            try:
                file = file or stack.enter_context(open_())
                chunk = _read_some(file, min(left, bounds.CHUNK_BYTES))
                left -= len(chunk)
                settle = partial(settle, chunk)
            except Exception as error:  # noqa: BLE001 - raised at the consumer of the chunk
                settle = partial(settle, error)
            with suppress(RuntimeError):  # the loop is closed: there is no consumer any more
                loop.call_soon_threadsafe(settle)


def _settle(future: asyncio.Future[bytes], found: bytes | Exception) -> None:
    if future.done():
        return
    if isinstance(found, Exception):
        future.set_exception(found)
    else:
        future.set_result(found)


def _read_some(file: BinaryIO, most: int) -> bytes:
    """Read at most `most` bytes; b"" only at the end, also of a non-blocking file (as stdin may be)."""
    read: Callable[[int], bytes | None] = file.read  # None: nothing is there now
    while (chunk := read(most)) is None:
        readable = select.poll()  # select.select refuses numbers from 1024 on
        readable.register(file, select.POLLIN)
        readable.poll()
    return chunk
