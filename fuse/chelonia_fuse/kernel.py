"""The binding to the kernel, by pyfuse3: no other module here imports it. Requests in, answers out; decides nothing.

Invalidations, which notify the kernel, would stop the event loop for good when called in it, so they go to a thread.
Locks of `flock` and `fcntl`, and `fallocate`, do not reach a file system through this binding.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import logging
import os
import re
import select
import stat
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import wraps
from itertools import pairwise
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import pyfuse3
import pyfuse3.asyncio

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.metadata import TYPE_MOUNTPOINT, TYPE_SYMLINK
from chelonia.core.ports.files import Named, Over, Setting
from chelonia_fuse.directories import OpenDirectory
from chelonia_fuse.errors import errno_of, line_of
from chelonia_fuse.filesystem import FileSystem, Handle, Owner
from chelonia_fuse.inodes import ROOT, Inode, number_of
from chelonia_fuse.interrupts import RequestWatch
from chelonia_fuse.lookups import VALID_S
from chelonia_fuse.options import Options
from chelonia_fuse.stats import BLOCK, Shown, mode_of, shown
from chelonia_fuse.xattrs import Xattrs

TASKS_MAX: Final = 128
"""Requests under way at once."""
IN_VAIN_MAX: Final = 2
"""Times that the session may be readable while no task waits, as the next is about to; after more all are busy."""
PREFERRED_BYTES: Final = 128 * 1024
DOTS: Final = 2
"""Entries before all others of a listing: `.` and `..`, as programs that count entries expect."""
_BLOCK_BYTES: Final = 4096
_FILES: Final = 1 << 40
"""Free entries for `statfs`: there is no limit."""
_OF_INODES: Final = frozenset(
    {
        "getattr", "setattr", "open", "read", "write", "flush", "fsync", "release", "opendir", "readdir",
        "getxattr", "setxattr", "removexattr", "listxattr",
    }
)  # fmt: skip
"""Requests about a known entry: when it is gone the kernel has to look its name up anew (ESTALE)."""
_OF_NAMES: Final = frozenset({"create", "mknod", "mkdir", "symlink", "link", "rename", "unlink", "rmdir"})
"""Requests about names in known directories, for which the same holds."""
_UNAWAITED: Final = frozenset({"release", "releasedir"})
"""Requests that no program waits for, and on which bytes depend: they are not interrupted."""
_OF_DISK: Final = {errno.ENOSPC: errno.ENOSPC, errno.EDQUOT: errno.EDQUOT} | dict.fromkeys(
    (errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE), errno.EIO
)
"""Errors of this machine, and the errno for programs: the last ones are not true of the mount."""
_LOG = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


def _answering(
    act: Callable[Concatenate[Binding, P], Awaitable[R]],
) -> Callable[Concatenate[Binding, P], Coroutine[Any, Any, R]]:
    """Count a request, and turn its failure into an errno and a line in the log."""
    op = act.__name__
    is_unawaited = op in _UNAWAITED

    @wraps(act)
    async def answer(self: Binding, /, *args: P.args, **kwargs: P.kwargs) -> R:
        self.counts[op] += 1
        task = self.requests.begin(0 if is_unawaited else self._pid(args[0], args[-1]))
        try:
            return await act(self, *args, **kwargs)
        except asyncio.CancelledError:
            if not self.requests.is_given_up():
                raise
            raise pyfuse3.FUSEError(errno.EINTR) from None
        except CheloniaError as error:
            line = line_of(error, op, self.path(args[0] if args else 0))
            if line:
                _LOG.warning("%s", line)
            names = args if op in _OF_NAMES else ()
            gone = error.kind in (Kind.NOT_FOUND, Kind.NO_PARENT) and (op in _OF_INODES or op in _OF_NAMES)
            if gone:
                self._doubt(args[0], *names)
            raise pyfuse3.FUSEError(errno.ESTALE if gone else errno_of(error)) from None
        except OSError as error:
            number = error.errno or errno.EIO
            if number in _OF_DISK:
                path = self.path(args[0] if args else 0)
                _LOG.error(
                    "%s %s: the cache directory: %s (make room, or choose another by -o cache=)", op, path, error
                )
            raise pyfuse3.FUSEError(_OF_DISK.get(number, number)) from None
        except KeyError:
            raise pyfuse3.FUSEError(errno.ESTALE) from None
        except pyfuse3.FUSEError:
            raise
        except Exception:
            _LOG.exception("%s: an error of this program, please report it", op)
            raise pyfuse3.FUSEError(errno.EIO) from None
        finally:
            self.requests.end(task)

    return answer


class Binding(pyfuse3.Operations):
    """The operations that pyfuse3 calls."""

    supports_dot_lookup = False
    enable_writeback_cache = False

    def __init__(self, system: FileSystem, xattrs: Xattrs, options: Options) -> None:
        super().__init__()
        self._system = system
        self._xattrs = xattrs
        self._options = options
        self._uid, self._gid = os.getuid(), os.getgid()
        self._files: dict[int, Handle] = {}
        self._directories: dict[int, OpenDirectory] = {}
        self._pids: dict[int, int] = {}
        self._next = 1
        self.requests = RequestWatch()
        self.counts = Counter[str]()
        self.read_bytes = self.written_bytes = 0

    def path(self, at: object) -> str:
        """Return a path for the log."""
        inode = self._at(at)
        return str(self._system.inodes.place(inode)) if inode is not None else "?"

    def _at(self, at: object) -> Inode | None:
        """The inode of a request by its first argument: an open file or directory, or a number."""
        try:
            number = int(at)  # type: ignore[call-overload]
            opened = self._files.get(number) or self._directories.get(number)
            return opened.inode if opened is not None else self._inode(number)
        except (KeyError, TypeError, ValueError):
            return None

    def _doubt(self, *entries: object) -> None:
        """Have entries, by number, or by number and name, looked up anew: no listing serves for them."""
        inodes = self._system.inodes
        named = (inodes.named(at, name.decode()) for at, name in pairwise(entries) if isinstance(name, bytes))  # type: ignore[arg-type]
        for inode in (*map(self._at, entries), *named):
            if inode is not None:
                inodes.doubt(inode)

    def _inode(self, number: int) -> Inode:
        return self._system.inodes.get(number)

    def _entry(self, inode: Inode) -> pyfuse3.EntryAttributes:
        view = shown(inode, self._options, uid=self._uid, gid=self._gid)
        inode.kernel_size = view.size
        return _filled(view)

    def _counted(self, inode: Inode) -> pyfuse3.EntryAttributes:
        inode.lookups += 1
        self._trim_inodes()
        return self._entry(inode)

    def _trim_inodes(self) -> None:
        """Have the kernel forget old entries, by a thread of pyfuse3, so that memory stays flat."""
        for parent, name in self._system.inodes.too_many():
            pyfuse3.invalidate_entry_async(pyfuse3.InodeT(parent), name.encode(), ignore_enoent=True)

    def _handle(self, store: dict[int, Any], value: object) -> int:
        self._next += 1
        store[self._next] = value
        self._pids[self._next] = self.requests.pid
        return self._next

    def _pid(self, at: Any, context: object) -> int:
        """The process that makes a request, or that has opened its file."""
        return int(context.pid) if isinstance(context, pyfuse3.RequestContext) else self._pids.get(at, 0)

    # --- names ---

    @_answering
    async def lookup(self, parent: int, name: bytes, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        above, text = self._inode(parent), _text(name)
        try:
            entry = self._counted(await self._system.lookups.lookup(above, text))
        except CheloniaError as error:
            if error.kind is not Kind.NOT_FOUND:
                raise
            entry = pyfuse3.EntryAttributes()
            entry.st_ino = pyfuse3.InodeT(0)
        entry.entry_timeout = entry.attr_timeout = max(0.0, VALID_S - self._system.lookups.age_s(above, text))
        return entry

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        for number, count in inode_list:
            self._system.forget(number, count)

    @_answering
    async def readlink(self, inode: int, ctx: pyfuse3.RequestContext) -> bytes:
        attributes = self._inode(inode).attributes
        if attributes.type not in (TYPE_SYMLINK, TYPE_MOUNTPOINT):
            raise OSError(errno.EINVAL, "no link")
        return attributes.target.encode()

    @_answering
    async def mknod(
        self, parent: int, name: bytes, mode: int, rdev: int, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        return self._counted(await self._system.make(self._inode(parent), _text(name), mode, rdev, _owner(ctx)))

    @_answering
    async def mkdir(self, parent: int, name: bytes, mode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        return self._counted(await self._system.make_directory(self._inode(parent), _text(name), mode, _owner(ctx)))

    @_answering
    async def symlink(
        self, parent: int, name: bytes, target: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        made = await self._system.make_symlink(self._inode(parent), _text(name), _text(target), _owner(ctx))
        return self._counted(made)

    @_answering
    async def unlink(self, parent: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        await self._system.remove(self._inode(parent), _text(name), directory=False)

    @_answering
    async def rmdir(self, parent: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        await self._system.remove(self._inode(parent), _text(name), directory=True)

    @_answering
    async def rename(
        self, old: int, old_name: bytes, new: int, new_name: bytes, flags: int, ctx: pyfuse3.RequestContext
    ) -> None:
        over = {0: Over.REPLACE, pyfuse3.RENAME_NOREPLACE: Over.REFUSE, pyfuse3.RENAME_EXCHANGE: Over.EXCHANGE}.get(
            flags
        )
        if over is None:
            raise OSError(errno.EINVAL, "no such rename")
        source, target = (self._inode(old), _text(old_name)), (self._inode(new), _text(new_name))
        await self._system.rename(source, target, over)

    @_answering
    async def link(self, inode: int, parent: int, name: bytes, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        linked = self._inode(inode)
        await self._system.link(linked, self._inode(parent), _text(name))
        return self._counted(linked)

    # --- attributes ---

    @_answering
    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        known = self._inode(inode)
        age_s = await self._system.refresh(known)
        entry = self._entry(known)
        entry.attr_timeout = VALID_S - age_s
        return entry

    @_answering
    async def setattr(
        self,
        inode: int,
        attr: pyfuse3.EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: int | None,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        known = self._inode(inode)
        if fields.update_size:
            await self._system.resize(known, attr.st_size, by_name=fh is None)
        setting = Setting(
            mode=stat.S_IMODE(attr.st_mode) if fields.update_mode else None,
            uid=attr.st_uid if fields.update_uid else None,
            gid=attr.st_gid if fields.update_gid else None,
            modified_ns=_time(attr.st_mtime_ns) if fields.update_mtime else None,
            accessed_ns=_time(attr.st_atime_ns) if fields.update_atime else None,
        )
        if setting != Setting():
            await self._system.set(known, setting)
        return self._entry(known)

    @_answering
    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        data = pyfuse3.StatvfsData()
        total, free = await self._system.space()
        data.f_bsize = data.f_frsize = _BLOCK_BYTES
        data.f_blocks, data.f_bfree = total // _BLOCK_BYTES, free // _BLOCK_BYTES
        data.f_bavail = data.f_bfree
        data.f_files = data.f_ffree = data.f_favail = _FILES
        data.f_namemax = 255
        return data

    @_answering
    async def getxattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> bytes:
        return await self._xattrs.get(self._inode(inode), _text(name))

    @_answering
    async def setxattr(self, inode: int, name: bytes, value: bytes, ctx: pyfuse3.RequestContext) -> None:
        await self._xattrs.set(self._inode(inode), _text(name), value)

    @_answering
    async def removexattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        await self._xattrs.set(self._inode(inode), _text(name), None)

    @_answering
    async def listxattr(self, inode: int, ctx: pyfuse3.RequestContext) -> Sequence[bytes]:
        return [name.encode() for name in await self._xattrs.names(self._inode(inode))]

    # --- files ---

    @_answering
    async def create(
        self, parent: int, name: bytes, mode: int, flags: int, ctx: pyfuse3.RequestContext
    ) -> tuple[pyfuse3.FileInfo, pyfuse3.EntryAttributes]:
        handle = await self._system.create(self._inode(parent), _text(name), flags, mode, _owner(ctx))
        return self._opened(handle), self._counted(handle.inode)

    @_answering
    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        handle = await self._system.open(self._inode(inode), flags)
        kernel_size = handle.inode.kernel_size
        if kernel_size != self._entry(handle.inode).st_size:  # else the kernel would read up to its old size
            with contextlib.suppress(OSError):
                await asyncio.to_thread(pyfuse3.invalidate_inode, pyfuse3.InodeT(inode), attr_only=True)
        return self._opened(handle)

    def _opened(self, handle: Handle) -> pyfuse3.FileInfo:
        inode = handle.inode
        keep = inode.shown == inode.attributes.etag
        inode.shown = inode.attributes.etag
        # A page of a shared mapping, written through a handle that appends, would land at the end of the file.
        unmapped = handle.flags & (os.O_APPEND | os.O_RDWR) == os.O_APPEND | os.O_RDWR
        fh = pyfuse3.FileHandleT(self._handle(self._files, handle))
        return pyfuse3.FileInfo(fh=fh, keep_cache=keep, direct_io=unmapped)

    @_answering
    async def read(self, fh: int, off: int, size: int) -> bytes:
        data = await self._system.read(self._files[fh], off, size)
        self.read_bytes += len(data)
        return data

    @_answering
    async def write(self, fh: int, off: int, buf: bytes) -> int:
        self.written_bytes += len(buf)
        return await self._system.write(self._files[fh], off, buf)

    @_answering
    async def flush(self, fh: int) -> None:
        await self._system.flush(self._files[fh])

    @_answering
    async def fsync(self, fh: int, datasync: bool) -> None:
        await self._system.sync(self._files[fh])

    @_answering
    async def release(self, fh: int) -> None:
        self._pids.pop(fh, None)
        try:
            await self._system.release(self._files[fh])
        finally:
            asyncio.get_running_loop().call_soon(self._files.pop, fh, None)  # a line about a failure names the file

    # --- directories ---

    @_answering
    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        return self._handle(self._directories, OpenDirectory(self._inode(inode)))

    @_answering
    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        directory = self._directories[fh]
        inode = directory.inode
        dots = () if inode.gone else ((b".", inode.number), (b"..", next((above for above, _ in inode.names), ROOT)))
        for at, (name, number) in enumerate(dots):
            if start_id <= at and not pyfuse3.readdir_reply(token, name, _numbered(number, stat.S_IFDIR), at + 1):
                return
        if start_id == DOTS and directory.is_empty:
            return  # the cluster has answered already

        def accept(entry: Named, inode: Inode | None, following: int) -> bool:
            if inode is None and UNLOOKED:
                attributes = _numbered(number_of(entry.attributes.guid), mode_of(entry.attributes))
                return bool(pyfuse3.readdir_reply(token, entry.name.encode(), attributes, DOTS + following))
            inode = inode or self._system.inodes.listed(
                entry.attributes, directory.inode.number, entry.name, directory.asked_ns
            )
            attributes = self._entry(inode)
            attributes.entry_timeout = attributes.attr_timeout = max(
                0.0, VALID_S - directory.age_s
            )  # a page may be old by now
            taken = pyfuse3.readdir_reply(token, entry.name.encode(), attributes, DOTS + following)
            inode.lookups += taken
            return taken

        await self._system.entries(directory, max(0, start_id - DOTS), accept)
        self._trim_inodes()

    @_answering
    async def releasedir(self, fh: int) -> None:
        self._pids.pop(fh, None)
        self._directories.pop(fh).close()

    @_answering
    async def fsyncdir(self, fh: int, datasync: bool) -> None:
        return  # every change of a name is durable when it is answered


def _time(ns: int) -> int:
    """The nearest time that the cluster can keep."""
    return min(max(0, ns), bounds.TIME_S_MAX * 10**9)


def _filled(view: Shown) -> pyfuse3.EntryAttributes:
    entry = pyfuse3.EntryAttributes()
    entry.st_ino = pyfuse3.InodeT(view.number)
    entry.entry_timeout = entry.attr_timeout = VALID_S
    entry.st_mode = pyfuse3.ModeT(view.mode)
    entry.st_nlink = view.links
    entry.st_uid, entry.st_gid, entry.st_rdev = view.uid, view.gid, view.device
    entry.st_size = view.size
    entry.st_blksize = PREFERRED_BYTES
    entry.st_blocks = -(-view.size // BLOCK)
    entry.st_atime_ns, entry.st_mtime_ns, entry.st_ctime_ns = view.accessed_ns, view.modified_ns, view.changed_ns
    return entry


def _numbered(number: int, mode: int) -> pyfuse3.EntryAttributes:
    """An entry of a listing with number and type alone, which the kernel does not keep."""
    entry = pyfuse3.EntryAttributes()
    entry.st_ino, entry.st_mode = pyfuse3.InodeT(number), pyfuse3.ModeT(mode)
    if UNLOOKED:
        _node(entry).value = 0
    return entry


def _node(entry: pyfuse3.EntryAttributes) -> ctypes.c_uint64:
    """The number by which the kernel would keep an entry. pyfuse3 sets it together with the visible one."""
    return ctypes.c_uint64.from_address(id(entry) + object.__basicsize__)


def _is_found(number: int) -> bool:
    entry = pyfuse3.EntryAttributes()
    entry.st_ino = pyfuse3.InodeT(number)
    return _node(entry).value == number


UNLOOKED: Final = _is_found(0x5EED_1234_5678) and _is_found(0x1234_5EED_0001)
"""Whether this pyfuse3 has that number at the expected address. If not, the kernel keeps all listed entries, however
many."""


def _text(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise OSError(errno.EILSEQ, "names are UTF-8") from None


def _owner(ctx: pyfuse3.RequestContext) -> Owner:
    return Owner(ctx.uid, ctx.gid)


class NoLock:
    """A replacement of the lock on which pyfuse3's tasks wait: `SessionWatch` wakes one of them for each request.
    Passing a lock on costs a turn of the event loop each time."""

    async def __aenter__(self) -> None:
        return

    async def __aexit__(self, *error: object) -> None:
        return


class SessionWatch:
    """A permanent watch of the session, which wakes one waiting task for each request of the kernel. pyfuse3 by itself
    begins and ends a watch for each, which costs ten system calls."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd = -1
        self._session = select.poll()
        self._waiters: list[asyncio.Future[None]] = []
        self._woken = False
        self._in_vain = 0

    @property
    def watches(self) -> bool:
        return self._fd >= 0

    async def readable(self, fd: int) -> None:
        """Return when there is a request; the caller reads it in the same step."""
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        self._in_vain = 0
        if not self.watches:
            self._fd = fd
            self._session = select.poll()
            self._session.register(fd, select.POLLIN)
            self._loop.add_reader(fd, self._ready)
        try:
            await waiter
        finally:
            self._woken = False
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def _ready(self) -> None:
        if self._woken:
            return  # the woken task reads it next
        events = self._session.poll(0)  # the loop's event may be of a request that was read since
        has_ended = any(event & ~select.POLLIN for _, event in events)
        while self._waiters and events:
            waiter = self._waiters.pop()
            if waiter.done():
                continue  # its task was cancelled
            self._woken = True
            waiter.set_result(None)
            if has_ended:  # uvloop reports the end once, and watches no more
                self.closing(self._fd)
            return
        self._in_vain += 1
        if has_ended or self._in_vain > IN_VAIN_MAX:
            self.end()  # the next waiting task begins another watch

    def closing(self, fd: int) -> None:
        """Have all waiting tasks give up."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(pyfuse3.asyncio.ClosedResourceError())

    def end(self) -> None:
        """Watch no more, until a task waits again."""
        if self.watches:
            self._loop.remove_reader(self._fd)
            self._fd = -1


async def serve(binding: Binding, place: tuple[str, str], options: Options, mounted: Callable[[], None]) -> None:
    """Mount, answer requests until it is unmounted, and clean up. `place`: source and directory, as in fstab.

    Raises: OSError, RuntimeError from mounting.
    """
    pyfuse3.asyncio.enable()
    watch = SessionWatch()
    pyfuse3.asyncio.wait_readable, pyfuse3.asyncio.notify_closing = watch.readable, watch.closing
    pyfuse3.asyncio.Lock = NoLock  # type: ignore[assignment]
    source, mountpoint = place
    # As in fstab: by source and directory together `mount -a` sees what is mounted already. pyfuse3 takes ASCII alone;
    # libfuse reads octal numbers of bytes.
    name = re.sub(rb"[^ -~]|[,\\]", lambda found: b"\\%03o" % found[0][0], source.encode()).decode()
    flags = set(pyfuse3.default_options) | {f"fsname={name}", "subtype=chelonia"}
    wished = {"ro": options.read_only, "allow_other": options.allow_other, "noexec": options.noexec}
    flags |= {name for name, is_wished in wished.items() if is_wished}
    pyfuse3.init(binding, mountpoint, flags)
    try:
        mounted()
        await pyfuse3.main(max_tasks=TASKS_MAX)
    finally:
        watch.end()
        await asyncio.to_thread(pyfuse3.close)


def stop() -> None:
    """End `serve`. Call it in the thread of the event loop."""
    pyfuse3.terminate()
