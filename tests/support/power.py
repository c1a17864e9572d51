"""A real mount that can lose its power, hang, or be read-only: `PowerDisk` starts a process that serves a `Forgetful`
through FUSE.

A cut ends the connection at once, with all unwritten data of the kernel, forgets, and mounts anew at the same place. A
process with open files there has errors from then on: stop it before, kill it after. It needs `NEEDS` of the machine.
"""

from __future__ import annotations

import copy
import errno
import json
import os
import random
import stat
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support import fuse_wire as wire
from tests.support.capabilities import capability
from tests.support.forgetful import Forgetful, Loss, Node

_MODE, _SIZE, _MTIME = 1, 8, 32
_DIRECT_IO, _KEEP_CACHE = 1, 2
HANGS = {
    "fsync": (wire.FSYNC, wire.FSYNCDIR),
    "write": (wire.WRITE, wire.FSYNC, wire.FSYNCDIR),
    "read": (wire.READ,),
    "all": (
        wire.LOOKUP, wire.GETATTR, wire.SETATTR, wire.MKDIR, wire.UNLINK, wire.RMDIR, wire.RENAME, wire.RENAME2,
        wire.LINK, wire.OPEN, wire.CREATE, wire.READ, wire.WRITE, wire.FSYNC, wire.FSYNCDIR, wire.OPENDIR,
        wire.READDIR, wire.STATFS,
    ),
}  # fmt: skip
"""Calls that hang, by kind: syncs, writes and syncs, reads that the kernel has not cached, all."""
_CHANGES = (
    wire.SETATTR, wire.MKDIR, wire.UNLINK, wire.RMDIR, wire.RENAME, wire.RENAME2, wire.LINK, wire.CREATE, wire.WRITE,
    wire.FSYNC,
)  # fmt: skip
NEEDS = ("root", "fuse")
"""Capabilities of a machine that can mount such a disk."""
BYTES_MAX = 1 << 34
"""The disk's size as `statfs` reports it."""


@contextmanager
def powered(point: Path, *, journal: bool = False) -> Iterator[PowerDisk]:
    """A disk for a test. Where nothing can be mounted, the test fails under CI and is skipped elsewhere."""
    for name in NEEDS:
        capability(name)
    with PowerDisk(point, journal=journal) as disk:
        yield disk


class PowerDisk:
    """A file system at `point` whose power can be cut. Use as a context manager.

    Args: `cached`: the kernel caches reads and writes, as of any disk; without it, all of them come here.
    """

    def __init__(self, point: Path, *, journal: bool = False, cached: bool = True) -> None:
        self.point = point
        point.mkdir(parents=True, exist_ok=True)
        options = [*(["--journal"] if journal else []), *([] if cached else ["--uncached"])]
        argv = [sys.executable, "-m", "tests.support.power", str(point), *options]
        self._server = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self._answer()

    def __enter__(self) -> PowerDisk:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def cut(self, seed: int = 0, loss: Loss = Loss.ALL) -> int:
        """Cut the power and mount the rest. Returns: how many unsynced changes there were."""
        return int(self._ask("cut", seed, loss.value)["unsynced"])

    def image(self, target: Path, seed: int = 0, loss: Loss = Loss.ALL) -> Path:
        """Write to `target` the disk after a cut now; nothing is disturbed."""
        self._ask("image", str(target), seed, loss.value)
        return target

    def fail_syncs(self, count: int) -> None:
        """Let the next syncs fail, and lose their data."""
        self._ask("fail", count)

    def hang(self, how: str) -> None:
        """From now on let these calls hang (see `HANGS`), in any process, until `go_on`."""
        self._ask("hang", how)

    def waiting(self) -> int:
        """How many calls hang now."""
        return int(self._ask("waiting")["waiting"])

    def go_on(self) -> None:
        """Hang no more."""
        self._ask("go on")

    def read_only(self, read_only: bool) -> None:
        """Refuse every change from now on, or no more, as a file system does after an error."""
        self._ask("read-only", read_only)

    def syncs(self) -> int:
        """How many syncs have come."""
        return int(self._ask("syncs")["syncs"])

    def close(self) -> None:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        try:
            self._server.wait(30)
        finally:
            self._server.kill()
            self._server.wait()
            self._server.stdout.close()
            wire.unmount(self.point)

    def _ask(self, *words: object) -> dict[str, Any]:
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(words) + "\n")
        self._server.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._server.stdout is not None
        line = self._server.stdout.readline()
        assert line, f"the file system at {self.point} has ended: {self._server.wait()}"
        answer: dict[str, Any] = json.loads(line)
        return answer


# --- the serving process ----------------------------------------------------------------------------------------------


class Served:
    """Answers the kernel's requests from a `Forgetful`."""

    def __init__(self, disk: Forgetful, *, cached: bool = True) -> None:
        self.disk = disk
        self.lock = threading.Lock()
        self.hung = frozenset[int]()
        self.waiting: list[bytes] = []
        self.read_only = False
        self._flags = _KEEP_CACHE if cached else _DIRECT_IO
        self._listings: dict[int, list[tuple[str, int]]] = {}
        self._next = 1
        self._handlers: dict[int, wire.Handler] = {
            wire.LOOKUP: lambda node, body: self._entry(disk.find(node, _name(body))),
            wire.GETATTR: lambda node, _: wire.attr_reply(_attributes(disk.node(node))),
            wire.SETATTR: self._setattr,
            wire.MKDIR: self._mkdir,
            wire.UNLINK: lambda node, body: _done(disk.unlink(node, _name(body), directory=False)),
            wire.RMDIR: lambda node, body: _done(disk.unlink(node, _name(body), directory=True)),
            wire.RENAME: lambda node, body: self._rename(node, body, 8),
            wire.RENAME2: lambda node, body: self._rename(node, body, 16),
            wire.LINK: self._link,
            wire.OPEN: self._open,
            wire.CREATE: self._create,
            wire.READ: self._read,
            wire.WRITE: self._write,
            wire.RELEASE: lambda node, _: _done(disk.release(node)),
            wire.FSYNC: lambda node, _: _done(disk.sync(node)),
            wire.FSYNCDIR: lambda node, _: _done(disk.sync(node)),
            wire.OPENDIR: self._opendir,
            wire.READDIR: self._readdir,
            wire.RELEASEDIR: lambda _, body: _done(self._listings.pop(*struct.unpack_from("<Q", body), None)),
            wire.STATFS: self._statfs,
        }

    def handler(self, operation: int) -> wire.Handler | None:
        return _refused if self.read_only and operation in _CHANGES else self._handlers.get(operation)

    def _entry(self, node: Node) -> bytes:
        return wire.entry(node.number, _attributes(node))

    def _setattr(self, number: int, body: memoryview) -> bytes:
        valid, _, _, size = struct.unpack_from("<IIQQ", body)
        node = self.disk.node(number)
        if valid & _SIZE and size != len(node.data):
            self.disk.resize(number, size)
        if valid & _MODE:
            node.mode = stat.S_IFMT(node.mode) | stat.S_IMODE(struct.unpack_from("<I", body, 68)[0])
        if valid & _MTIME:
            node.time_ns = struct.unpack_from("<Q", body, 40)[0] * 10**9 + struct.unpack_from("<I", body, 60)[0]
        return wire.attr_reply(_attributes(node))

    def _mkdir(self, parent: int, body: memoryview) -> bytes:
        mode, umask = struct.unpack_from("<II", body)
        return self._entry(self.disk.make(parent, _name(body[8:]), stat.S_IFDIR | mode & ~umask))

    def _rename(self, parent: int, body: memoryview, head: int) -> bytes:
        if head == 16 and struct.unpack_from("<I", body, 8)[0]:
            raise OSError(errno.EINVAL, "flags of rename")
        name, new = (os.fsdecode(part) for part in bytes(body[head:]).split(b"\0")[:2])
        return _done(self.disk.rename(parent, name, *struct.unpack_from("<Q", body), new))

    def _link(self, parent: int, body: memoryview) -> bytes:
        (number,) = struct.unpack_from("<Q", body)
        return self._entry(self.disk.link(number, parent, _name(body[8:])))

    def _open(self, number: int, body: memoryview) -> bytes:
        if self.read_only and struct.unpack_from("<I", body)[0] & os.O_ACCMODE != os.O_RDONLY:
            return _refused(number, body)
        self.disk.node(number).opens += 1
        return struct.pack("<QII", 0, self._flags, 0)

    def _create(self, parent: int, body: memoryview) -> bytes:
        _, mode, umask = struct.unpack_from("<III", body)
        made = self.disk.make(parent, _name(body[16:]), stat.S_IFREG | stat.S_IMODE(mode) & ~umask)
        return self._entry(made) + self._open(made.number, body)

    def _read(self, number: int, body: memoryview) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        return self.disk.read(number, offset, size)

    def _write(self, number: int, body: memoryview) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        self.disk.write(number, offset, body[40 : 40 + size])
        return struct.pack("<II", size, 0)

    def _opendir(self, number: int, _: memoryview) -> bytes:
        handle, self._next = self._next, self._next + 1
        self._listings[handle] = list(self.disk.node(number).names.items())
        return struct.pack("<QII", handle, 0, 0)

    def _readdir(self, _: int, body: memoryview) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", body)
        reply = bytearray()
        for place, (name, number) in enumerate(self._listings[handle][offset:], start=offset + 1):
            raw = os.fsencode(name)
            node = self.disk.nodes.get(number)
            kind = (node.mode if node is not None else stat.S_IFREG) >> 12
            row = struct.pack("<QQII", number, place, len(raw), kind) + raw
            row += bytes(-len(row) % 8)
            if len(reply) + len(row) > size:
                break
            reply += row
        return bytes(reply)

    def _statfs(self, _: int, __: memoryview) -> bytes:
        blocks, inodes = BYTES_MAX // 4096, 1 << 20
        free = blocks // 2
        return struct.pack("<QQQQQIIII", blocks, free, free, inodes, inodes, 4096, 255, 4096, 0) + bytes(24)


def _refused(_: int, __: memoryview) -> bytes:
    raise OSError(errno.EROFS, "read-only")


def _name(body: memoryview) -> str:
    return os.fsdecode(bytes(body).split(b"\0", 1)[0])


def _done(_: object) -> bytes:
    return b""


def _attributes(node: Node) -> bytes:
    links = 2 if node.is_directory else node.links
    return wire.attributes(node.number, node.mode, len(node.data), links, node.time_ns)


class _Mount:
    """A mount and the thread that serves it."""

    def __init__(self, point: Path, disk: Forgetful, *, cached: bool) -> None:
        self._point = point
        self._device = wire.mount(point)
        self.served = Served(disk, cached=cached)
        self.lock = self.served.lock
        self._thread = threading.Thread(target=wire.serve, args=(self._device, self.served))
        self._thread.start()

    def go_on(self) -> None:
        """Answer waiting requests, and hang no more."""
        wire.go_on(self._device, self.served)

    def end(self) -> None:
        """Stop the thread: it answers no request after this returns."""
        wire.unmount(self._point)
        self._thread.join()
        os.close(self._device)


def _write_image(left: Forgetful, target: Path, chance: random.Random, loss: Loss) -> None:
    left.cut(chance, loss)
    waiting = [(1, target)]
    while waiting:
        number, path = waiting.pop()
        node = left.nodes[number]
        if node.is_directory:
            path.mkdir(exist_ok=True)
            waiting += [(child, path / name) for name, child in node.names.items()]
        else:
            path.write_bytes(node.data)
        path.chmod(stat.S_IMODE(node.mode))


def main(arguments: list[str]) -> None:
    """Serve at a place until standard input ends."""
    point, disk, cached = Path(arguments[0]), Forgetful(journal="--journal" in arguments), "--uncached" not in arguments
    mount = _Mount(point, disk, cached=cached)
    print("{}", flush=True)
    try:
        for line in sys.stdin:
            answer: dict[str, int] = {}
            match json.loads(line):
                case ["cut", seed, loss]:
                    mount.end()
                    answer["unsynced"] = disk.cut(random.Random(seed), Loss(loss))
                    mount = _Mount(point, disk, cached=cached)
                case ["image", target, seed, loss]:
                    with mount.lock:
                        left = copy.deepcopy(disk)
                    _write_image(left, Path(target), random.Random(seed), Loss(loss))
                case ["fail", count]:
                    disk.fail_syncs = count
                case ["hang", how]:
                    with mount.lock:
                        mount.served.hung = frozenset(HANGS[how])
                case ["waiting"]:
                    answer["waiting"] = len(mount.served.waiting)
                case ["go on"]:
                    mount.go_on()
                case ["read-only", read_only]:
                    mount.served.read_only = read_only
                case ["syncs"]:
                    answer["syncs"] = disk.syncs
            print(json.dumps(answer), flush=True)
    finally:
        mount.end()


if __name__ == "__main__":
    main(sys.argv[1:])
