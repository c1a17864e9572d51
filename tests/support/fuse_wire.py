"""FUSE's kernel protocol, as far as a file system for tests needs it: no library, only `/dev/fuse` and `mount(2)`.

It knows nothing of files: `serve` reads requests and calls a `Handlers` for answers. Needs root. One thread serves one
mount. Layouts: linux/fuse.h, protocol 7.31.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

DEVICE: Final = Path("/dev/fuse")
WRITE_MAX: Final = 1024 * 1024
_REQUEST: Final = struct.Struct("<IIQQIIII")
_REPLY: Final = struct.Struct("<IiQ")
_ATTR: Final = struct.Struct("<QQQQQQIIIIIIIIII")
_ENTRY: Final = struct.Struct("<QQQQII")
ROOT: Final = 1

LOOKUP, FORGET, GETATTR, SETATTR, SYMLINK, MKNOD, MKDIR = 1, 2, 3, 4, 6, 8, 9
UNLINK, RMDIR, RENAME, LINK, OPEN, READ, WRITE, STATFS, RELEASE = 10, 11, 12, 13, 14, 15, 16, 17, 18
FSYNC, FLUSH, INIT, OPENDIR, READDIR, RELEASEDIR, FSYNCDIR = 20, 25, 26, 27, 28, 29, 30
ACCESS, CREATE, INTERRUPT, DESTROY, BATCH_FORGET, FALLOCATE, RENAME2 = 34, 35, 36, 38, 42, 43, 45
_FORCE, _DETACH = 1, 2
_SILENT: Final = (FORGET, BATCH_FORGET, INTERRUPT)
_BIG_WRITES, _MAX_PAGES, _PARALLEL_DIROPS = 1 << 5, 1 << 22, 1 << 18

Handler = Callable[[int, memoryview], bytes]
"""Takes the node and the request's body; returns the reply's body. Raises: OSError."""


class Handlers(Protocol):
    """A file system that answers requests, one at a time; no request changes its state while `lock` is held. `hung`:
    operations without an answer until `go_on`; `waiting`: their requests."""

    lock: threading.Lock
    hung: frozenset[int]
    waiting: list[bytes]

    def handler(self, operation: int) -> Handler | None:
        """The handler of this operation, None when there is none."""


def attributes(node: int, mode: int, size: int, links: int, time_ns: int) -> bytes:
    """A `fuse_attr`."""
    s, ns = divmod(time_ns, 10**9)
    blocks = -(-size // 512)
    return _ATTR.pack(node, size, blocks, s, s, s, ns, ns, ns, mode, links, os.getuid(), os.getgid(), 0, 4096, 0)


def entry(node: int, attr: bytes) -> bytes:
    """A `fuse_entry_out` that may be cached for long: nothing else changes this file system."""
    return _ENTRY.pack(node, 0, 3600, 3600, 0, 0) + attr


def attr_reply(attr: bytes) -> bytes:
    """A `fuse_attr_out`."""
    return struct.pack("<QII", 3600, 0, 0) + attr


def mount(point: Path) -> int:
    """Mount at `point`; the descriptor of the connection. Raises: OSError."""
    device = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    options = (
        f"fd={device},rootmode=40700,user_id={os.getuid()},group_id={os.getgid()},allow_other,max_read={WRITE_MAX}"
    )
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"powercut", bytes(point), b"fuse", 0x2 | 0x4, options.encode()) != 0:
        code = ctypes.get_errno()
        os.close(device)
        raise OSError(code, os.strerror(code), str(point))
    return device


def unmount(point: Path) -> None:
    """Remove the mount, even in use, with all unwritten data of the kernel."""
    ctypes.CDLL(None).umount2(bytes(point), _FORCE | _DETACH)


def serve(device: int, handlers: Handlers) -> None:
    """Answer requests until the connection ends."""
    buffer = bytearray(WRITE_MAX + 4096)
    view = memoryview(buffer)
    while True:
        try:
            length = os.readv(device, [buffer])
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN):
                continue  # the request was taken back
            return
        _, operation, *_ = _REQUEST.unpack_from(buffer)
        if operation in _SILENT:
            continue
        with handlers.lock:
            if operation in handlers.hung:
                handlers.waiting.append(bytes(view[:length]))
                continue
            if not _answered(device, handlers, view[:length]):
                return


def go_on(device: int, handlers: Handlers) -> None:
    """Answer waiting requests, and hang no more."""
    with handlers.lock:
        waiting, handlers.waiting, handlers.hung = handlers.waiting, [], frozenset()
        for request in waiting:
            _answered(device, handlers, memoryview(request))


def _answered(device: int, handlers: Handlers, request: memoryview) -> bool:
    """Answer a request; False when the connection has ended."""
    _, operation, unique, node, *_ = _REQUEST.unpack_from(request)
    error_code, reply = _answer(handlers, operation, node, request[_REQUEST.size :])
    try:
        os.writev(device, [_REPLY.pack(_REPLY.size + len(reply), -error_code, unique), reply])
    except OSError as error:
        return error.errno == errno.ENOENT  # the request was taken back
    return True


def _answer(handlers: Handlers, operation: int, node: int, body: memoryview) -> tuple[int, bytes]:
    if operation == INIT:
        return 0, _init(body)
    handler = handlers.handler(operation)
    if handler is None:
        return errno.ENOSYS, b""
    try:
        return 0, handler(node, body)
    except OSError as error:
        return error.errno or errno.EIO, b""


def _init(body: memoryview) -> bytes:
    _, _, readahead, flags = struct.unpack_from("<IIII", body)
    flags &= _BIG_WRITES | _MAX_PAGES | _PARALLEL_DIROPS
    head = struct.pack("<IIIIHHIIHHI", 7, 31, readahead, flags, 16, 12, WRITE_MAX, 1, WRITE_MAX // 4096, 0, 0)
    return head + bytes(28)
