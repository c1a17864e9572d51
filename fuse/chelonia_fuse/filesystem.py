"""The operations of the file system on inodes and open files, in terms of the cluster. The binding translates them.

Decides the cluster requests of each operation, and which effects programs on this machine see at once: their own
writes, and open files after removal. Failures are `CheloniaError`, or OSError for those that only POSIX knows.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.metadata import TYPE_COLLECTION, TYPE_FILE, TYPE_SPECIAL, TYPE_SYMLINK
from chelonia.core.names import LogicalName, check_name
from chelonia.core.ports.files import (
    ANY,
    LEAVE,
    Attributes,
    Done,
    Looked,
    Make,
    Move,
    Named,
    Over,
    Remove,
    Removing,
    Set,
    Setting,
    Want,
    When,
)
from chelonia_fuse.cluster import MountedCluster
from chelonia_fuse.committing import FileCommitter
from chelonia_fuse.copies import AHEAD_BYTES, Cache
from chelonia_fuse.directories import OpenDirectory
from chelonia_fuse.errors import AGAIN
from chelonia_fuse.inodes import AWAITED_S, UNWRITTEN_NS, Inode, Inodes, is_unwritten
from chelonia_fuse.lookups import VALID_S, Lookups
from chelonia_fuse.reading import READABLE, WINDOW_MIN, CopyReader
from chelonia_fuse.staging import Staged
from chelonia_fuse.stats import mode_of

FETCHED_FOR_REMOVAL_BYTES_MAX: Final = 1 << 30
"""Size up to which an open file is fetched before it is removed."""


@dataclass(slots=True, eq=False)
class Handle:
    """An open file. `at`: offset of the next sequential read; `run`: bytes read sequentially so far. `beside`: as in
    `Inode`, when it was opened, or `fsync` last told of it."""

    inode: Inode
    flags: int
    beside: int
    at: int = 0
    run: int = 0


@dataclass(frozen=True, slots=True)
class Owner:
    """Owner and group of a process that makes an entry."""

    uid: int
    gid: int


class FileSystem:
    """One mount."""

    def __init__(
        self,
        cluster: MountedCluster,
        inodes: Inodes,
        cache: Cache,
        committer: FileCommitter,
        reader: CopyReader,
    ) -> None:
        self._cluster = cluster
        self.inodes = inodes
        self.cache = cache
        self.committer = committer
        self.lookups = Lookups(cluster, inodes, committer.behind)
        self._reader = reader

    # --- names ------------------------------------------------------------------------------------------------------

    async def refresh(self, inode: Inode) -> float:
        """Look up attributes, unless they are young; while the cluster is away the known ones stand. Returns: their age
        in s. Raises: NOT_FOUND, DENIED."""
        # Young ones are requested often: the kernel forgets them with each change, also in a directory.
        answered_ns = max(inode.learned_ns, inode.listed_ns)  # 0: never
        age_s = (time.monotonic_ns() - answered_ns) / 1e9
        if inode.gone or (answered_ns and age_s < VALID_S):
            return 0.0 if inode.gone else age_s
        try:
            inode.learn((await self._cluster.look(LogicalName(inode.guid, ()), spare=True)).attributes)
        except CheloniaError as error:
            if error.kind not in AGAIN:
                raise
        return 0.0

    async def make(self, parent: Inode, name: str, mode: int, device: int, owner: Owner) -> Inode:
        """Make a file or special file (mknod)."""
        if stat.S_ISREG(mode) or not stat.S_IFMT(mode):
            return await self._made_file(parent, name, mode, owner, marked=False)
        kind = Setting(mode=mode & 0o177777, uid=owner.uid, gid=self._group(parent, owner), device=device)
        return await self._made(parent, name, Make(self._inside(parent, name), TYPE_SPECIAL, kind, when=_NEW))

    async def make_directory(self, parent: Inode, name: str, mode: int, owner: Owner) -> Inode:
        mode = stat.S_IMODE(mode) | (mode_of(parent.attributes) & stat.S_ISGID)
        setting, asked_ns = Setting(mode=mode, uid=owner.uid, gid=self._group(parent, owner)), time.monotonic_ns()
        made = await self._made(parent, name, Make(self._inside(parent, name), TYPE_COLLECTION, setting, when=_NEW))
        made.children.made(asked_ns)
        return made

    async def make_symlink(self, parent: Inode, name: str, target: str, owner: Owner) -> Inode:
        setting = Setting(uid=owner.uid, gid=self._group(parent, owner))
        place = self._inside(parent, name)
        return await self._made(parent, name, Make(place, TYPE_SYMLINK, setting, target=target, when=_NEW))

    async def _made(self, parent: Inode, name: str, change: Make) -> Inode:
        return self._new(parent, name, await self._cluster.change(change))

    async def _made_file(self, parent: Inode, name: str, mode: int, owner: Owner, *, marked: bool) -> Inode:
        setting = Setting(
            stat.S_IMODE(mode), owner.uid, self._group(parent, owner), accessed_ns=UNWRITTEN_NS if marked else None
        )
        asked_ns = time.monotonic_ns()
        inode = self._new(parent, name, await self._cluster.make_file(self._inside(parent, name), setting))
        inode.made_ns = asked_ns
        return inode

    def _new(self, parent: Inode, name: str, done: Done) -> Inode:
        if done.attributes is None:
            raise CheloniaError(Kind.NOT_FOUND, "make", name, "it was removed as soon as it was made")
        _touch(parent, name)
        return self.inodes.seen(done.attributes, parent.number, name)

    def _inside(self, parent: Inode, name: str) -> LogicalName:
        if parent.gone:
            raise OSError(errno.ENOENT, "the directory was removed")
        # Not by its path: a directory that has been renamed may have left that to another one.
        return LogicalName(parent.guid, (check_name(name),))

    def _group(self, parent: Inode, owner: Owner) -> int:
        handed = mode_of(parent.attributes) & stat.S_ISGID and parent.attributes.gid >= 0
        return parent.attributes.gid if handed else owner.gid

    async def remove(self, parent: Inode, name: str, *, directory: bool) -> None:
        """Remove a name (unlink, rmdir)."""
        removing = Removing.COLLECTION if directory else Removing.NAME
        while True:
            inode = self.inodes.named(parent.number, name)
            try:
                async with self._kept(inode), self._settled(inode):
                    await self._cluster.change(Remove(self._inside(parent, name), removing, _still(inode)))
                    last = inode is not None and (inode.attributes.links <= 1 or directory)
                    self._removed(parent, name, inode, gone=last)
                return
            except CheloniaError as error:
                await self._led_elsewhere(parent, name, inode, error)

    async def _led_elsewhere(self, parent: Inode, name: str, known: Inode | None, error: CheloniaError) -> None:
        """Look a name up after a failed condition. Raises: `error`, unless it leads to another entry by now."""
        if known is None or error.kind is not Kind.PRECONDITION:
            raise error
        parent.children.change(name, time.monotonic_ns())
        if await self.lookups.lookup(parent, name) is known:
            raise error

    @contextlib.asynccontextmanager
    async def _kept(self, inode: Inode | None, *, replaced: bool = False) -> AsyncIterator[None]:
        """Hold while a name is removed: the bytes of an open file stay here until it fails, or the file is gone."""
        try:
            await (self._before_replacing(inode) if replaced else self._before_removal(inode))
            yield
        finally:
            if inode is not None and inode.copy is not None:
                inode.copy.pinned &= inode.gone

    async def _before_removal(self, inode: Inode | None) -> None:
        """Fetch the bytes of an open file before its last name goes, so that it can still be read."""
        if inode is not None:
            await self._written(inode)
            await self._recounted(inode)
        last = inode is not None and inode.attributes.links <= 1
        if inode is None or not last or not inode.opens or inode.attributes.type != TYPE_FILE:
            return
        copy = self.cache.of(inode)
        if copy.staged.size <= FETCHED_FOR_REMOVAL_BYTES_MAX:
            copy.pinned = True
            await self._reader.ensure(inode, 0, copy.staged.size)

    async def _recounted(self, inode: Inode) -> None:
        """Count the names of a file with local bytes anew: others may have given it one more."""
        if inode.attributes.type == TYPE_FILE and (inode.opens or (inode.copy is not None and inode.copy.owned)):
            with contextlib.suppress(CheloniaError):  # the removal itself reports failures
                inode.learn((await self._cluster.look(LogicalName(inode.guid, ()))).attributes)

    async def _before_replacing(self, inode: Inode | None) -> None:
        try:
            await self._before_removal(inode)
        except CheloniaError as error:
            if error.kind is not Kind.NOT_FOUND:  # somebody else has just removed it
                raise

    async def _written(self, inode: Inode) -> None:
        """Wait until the mount that has made a file, and closed it a moment ago, has committed its bytes."""
        if _is_awaited(inode, inode.attributes):
            inode.learn((await self._looked_written(inode, Want.NOTHING, spare=False)).attributes)

    def _removed(self, parent: Inode, name: str, inode: Inode | None, *, gone: bool) -> None:
        _touch(parent, name)
        self.inodes.unname(parent.number, name)
        if inode is None:
            return
        _touch(inode)
        self.inodes.doubt(inode)  # if it has other names left, their count is looked up, by whatever name
        if gone:
            inode.gone = True
            self.committer.let_go(inode)
            if not inode.opens:
                self.cache.drop(inode)

    async def _replaced(self, parent: Inode, name: str, inode: Inode | None) -> None:
        """Note that a name was given to another entry. The change had no condition on the replaced entry, so its state
        is looked up where it matters."""
        if inode is None or inode.opens or (inode.copy is not None and inode.copy.owned):
            self._removed(parent, name, inode, gone=inode is not None and await self._is_no_more(inode))
            return
        self._removed(parent, name, inode, gone=False)
        if inode.attributes.links <= 1:
            self.cache.drop(inode)

    async def _is_no_more(self, inode: Inode) -> bool:
        try:
            inode.learn((await self._cluster.look(LogicalName(inode.guid, ()))).attributes)
        except CheloniaError as error:
            return error.kind is Kind.NOT_FOUND  # else its bytes are not to be lost
        return False

    async def rename(self, source: tuple[Inode, str], target: tuple[Inode, str], over: Over) -> None:
        while True:
            known = self.inodes.named(source[0].number, source[1])
            try:
                await self._rename(source, target, over)
                return
            except CheloniaError as error:
                await self._led_elsewhere(*source, known, error)

    async def _rename(self, source: tuple[Inode, str], target: tuple[Inode, str], over: Over) -> None:
        (old, old_name), (new, new_name) = source, target
        inode, existing = self.inodes.named(old.number, old_name), self.inodes.named(new.number, new_name)
        if inode is not None and inode is not existing:
            await self.committer.settle(inode, replaces=existing is not None)
            if existing is not None and over is Over.EXCHANGE:
                await self.committer.settle(existing, replaces=True)
        replaced = existing if over is Over.REPLACE and existing is not inode else None
        places = self._inside(old, old_name), self._inside(new, new_name)
        async with self._kept(replaced, replaced=True), self._settled(existing):
            done = await self._cluster.change(Move(*places, over, when=_still(inode)))
            if inode is not None and inode is existing:
                return
            if over is Over.REPLACE:
                await self._replaced(new, new_name, existing)
        _touch(old, old_name)
        _touch(new, new_name)
        self.inodes.unname(old.number, old_name)
        if inode is not None:
            _touch(inode)
            self.inodes.name(inode, new.number, new_name)
            _learn(inode, done)
        else:
            self.inodes.unname(new.number, new_name)
        if over is Over.EXCHANGE and existing is not None:
            existing.learned_ns = existing.listed_ns = 0
            self.inodes.name(existing, old.number, old_name)

    @contextlib.asynccontextmanager
    async def _settled(self, inode: Inode | None) -> AsyncIterator[None]:
        """Hold while a name is removed: no commit of its file is on its way then, which would change a file that is
        gone."""
        copy = inode.copy if inode is not None else None
        if copy is None or not copy.queued:
            yield
            return
        async with copy.lock:
            yield
        await self.committer.settled()

    async def link(self, inode: Inode, parent: Inode, name: str) -> None:
        """Give a file one more name."""
        if inode.gone:
            raise OSError(errno.ENOENT, "it was removed")
        await self.committer.settle(inode)
        source = self.inodes.entry(inode)
        try:
            done = await self._cluster.change(Move(source, self._inside(parent, name), keep=True, when=_still(inode)))
        except CheloniaError as error:
            if error.kind is Kind.TOO_LARGE:
                raise OSError(errno.EMLINK, error.cause) from error  # EFBIG is of files
            raise
        _touch(parent, name)
        _touch(inode)
        self.inodes.name(inode, parent.number, name)
        _learn(inode, done)

    async def space(self) -> tuple[int, int]:
        """Return (total, free) bytes of files, each with its copies; the narrowest quota may leave less."""
        return (await self._cluster.space(self.inodes.place(self.inodes.root))).of_files(self._cluster.wanted)

    # --- attributes -------------------------------------------------------------------------------------------------

    async def set(self, inode: Inode, setting: Setting) -> None:
        """Set mode, owner, times; for a file that was changed here they are committed with its bytes."""
        copy = inode.copy
        if setting.mode is not None and inode.attributes.type == TYPE_SPECIAL:
            mode = stat.S_IFMT(inode.attributes.mode) | stat.S_IMODE(setting.mode)
            setting = Setting(mode, setting.uid, setting.gid, None, setting.modified_ns, setting.accessed_ns)
        if copy is not None:
            async with copy.lock:
                if copy.changed or inode.gone:
                    copy.set(setting)
                    return
        if inode.gone:
            return
        done = await self._cluster.change(Set(LogicalName(inode.guid, ()), setting))
        _learn(inode, done)
        if setting.modified_ns is not None:
            inode.touched_ns = 0

    async def resize(self, inode: Inode, size: int, *, by_name: bool) -> None:
        """Truncate a file, or lengthen it by zeros; by name: in its present version, and committed at once."""
        if by_name and not inode.gone:
            await self._look_anew(inode, os.O_WRONLY if size else os.O_WRONLY | os.O_TRUNC)
        alone = not inode.opens and (inode.copy is None or not inode.copy.changed)
        seen = inode.beside
        await self._resize(inode, size)
        if by_name:
            try:
                await self.committer.commit(inode)
                if self.committer.strict and seen != inode.beside:
                    raise self._went_beside(inode, "truncate")
            except BaseException:  # also when the program is interrupted
                if alone and not inode.opens and inode.copy is not None:  # else the next `close` would truncate it
                    inode.copy.restart(Staged.of(inode.attributes.etag, inode.attributes.size))
                raise

    async def _resize(self, inode: Inode, size: int) -> None:
        copy = self.cache.of(inode)
        inode.opens += 1  # else a `close` meanwhile drops this copy
        try:
            async with copy.lock:
                if copy.queued and copy.held is None and 0 < size < copy.staged.size:
                    await copy.sync()  # the record, which is written anew, promises what stays
                copy.resize(size, partial(self.committer.cutting, inode, copy))
            if not copy.changed:  # then no commit follows that carries the attributes
                await self.set(inode, copy.settled())
                if not (inode.gone or copy.changed):
                    copy.setting = LEAVE
        finally:
            inode.opens -= 1

    # --- open files -------------------------------------------------------------------------------------------------

    async def create(self, parent: Inode, name: str, flags: int, mode: int, owner: Owner) -> Handle:
        """Make a file and open it; open an existing one, unless `O_EXCL` forbids it."""
        try:
            inode = await self._made_file(parent, name, mode, owner, marked=self.committer.makes_many())
        except CheloniaError as error:
            if error.kind not in (Kind.PRECONDITION, Kind.EXISTS):
                raise
            parent.children.change(name, time.monotonic_ns())
            if flags & os.O_EXCL:
                raise OSError(errno.EEXIST, "it is there") from error
            inode = await self.lookups.lookup(parent, name)
            return await self.open(inode, flags)
        return self._opened(inode, flags)

    async def open(self, inode: Inode, flags: int) -> Handle:
        """Open a file in its present version."""
        if not inode.gone:
            await self._look_anew(inode, flags)
        if flags & os.O_TRUNC and flags & os.O_ACCMODE != os.O_RDONLY:
            await self._resize(inode, 0)
        return self._opened(inode, flags)

    def _opened(self, inode: Inode, flags: int) -> Handle:
        inode.opens += 1
        self.cache.of(inode)
        return Handle(inode, flags, inode.beside)

    async def _look_anew(self, inode: Inode, flags: int) -> None:
        copy = inode.copy
        here = copy is not None and not copy.staged.missing(0, copy.staged.size)
        try:
            looked = await self._looked_written(inode, _wanted(flags, here=here), spare=here)
        except CheloniaError as error:
            if error.kind not in AGAIN or not here:
                raise
            return  # the cluster is away; what is here can be read
        inode.learn(looked.attributes)
        if looked.attributes.version < inode.attributes.version:
            return  # a commit from here came after the request
        copy = inode.copy  # it may be another one by now
        if copy is not None and copy.staged.etag != looked.attributes.etag and not copy.changed:
            self._reader.changed(inode, copy, looked)
        if looked.data is not None or looked.sources or (looked.blobs and looked.told >= looked.attributes.size):
            copy = self.cache.of(inode)
            if copy.staged.etag == looked.attributes.etag:  # local changes may be of another version
                copy.source, copy.source_ms = looked, time.monotonic_ns() // 1_000_000

    async def _looked_written(self, inode: Inode, want: Want, *, spare: bool) -> Looked:
        """Look a file up, once its bytes are there."""
        looked = await self._looked(LogicalName(inode.guid, ()), want, spare=spare)
        for _ in range(_LOOKS_MAX):
            if not _is_awaited(inode, looked.attributes):
                break
            await asyncio.sleep(_PAUSE_S)
            looked = await self._looked(LogicalName(inode.guid, ()), want, spare=spare)
        return looked

    async def _looked(self, place: LogicalName, want: Want, *, spare: bool) -> Looked:
        try:
            return await self._cluster.look(place, want, spare=spare)
        except CheloniaError as error:
            if error.kind is not Kind.NO_REPLICA:
                raise
            return await self._cluster.look(place)

    async def read(self, handle: Handle, offset: int, size: int) -> bytes:
        """Read bytes of an open file; fewer at its end."""
        inode = handle.inode
        copy = self.cache.of(inode)
        handle.run = handle.run + size if offset == handle.at else 0
        handle.at = offset + size
        copy.read_at = offset
        if copy.staged.etag != inode.attributes.etag:
            self._reader.follow(inode, copy)
        if handle.run and copy.staged.base > WINDOW_MIN and not inode.gone:
            self._reader.ahead(inode, copy, offset, min(max(WINDOW_MIN, 4 * handle.run), AHEAD_BYTES))
        if copy.staged.missing(offset, offset + size):
            await self._reader.ensure(inode, offset, offset + size)
        return copy.read(offset, size)

    async def write(self, handle: Handle, offset: int, data: bytes) -> int:
        """Change bytes of an open file in its local copy. Returns: how many; fewer than given where the disk is full.
        Raises: OSError when it takes none."""
        copy, done = self.cache.of(handle.inode), 0
        async with copy.lock:
            append = bool(handle.flags & os.O_APPEND)
            if append:
                offset = copy.staged.size  # the kernel's is too low if others have appended meanwhile
            while done < len(data):
                part = partial(copy.write, offset + done, memoryview(data)[done:], append=append)
                try:
                    done += self.cache.with_room(part)
                except OSError:
                    if not done:
                        raise
                    break
        self.cache.took(done)
        return done

    async def flush(self, handle: Handle) -> None:
        """Commit as `close` does (`FileCommitter.close`). Raises: PRECONDITION too, as `sync`, to a writer on a strict
        mount."""
        await self.committer.close(handle.inode)
        if self.committer.strict and handle.flags & os.O_ACCMODE != os.O_RDONLY:
            self._check_beside(handle, "close")

    async def sync(self, handle: Handle) -> None:
        """Commit as `fsync` does: fail when that is not possible now.

        Raises: PRECONDITION too, once for each open file, when bytes went beside it since: by whomever committed."""
        await self.committer.commit(handle.inode)
        self._check_beside(handle, "fsync")

    def _check_beside(self, handle: Handle, op: str) -> None:
        if handle.beside != handle.inode.beside:
            handle.beside = handle.inode.beside
            raise self._went_beside(handle.inode, op)

    def _went_beside(self, inode: Inode, op: str) -> CheloniaError:
        cause = "somebody else has changed it meanwhile; what was written here is kept beside it"
        return CheloniaError(Kind.PRECONDITION, op, str(self.inodes.place(inode)), cause)

    async def release(self, handle: Handle) -> None:
        """Close an open file after its last `close`."""
        inode = handle.inode
        try:
            await self.committer.part(inode)
        finally:
            inode.opens -= 1
            if not inode.opens and self.committer.is_marked(inode):
                await self.committer.behind.add(inode)
            if inode.gone and not inode.opens:
                self.cache.drop(inode)
            self.forgotten(self.inodes.drop(inode))
            self.cache.took(0)

    def forget(self, number: int, count: int) -> None:
        """Lower the kernel's count of an inode, which it forgets."""
        self.forgotten(self.inodes.forget(number, count))

    def forgotten(self, inode: Inode | None) -> None:
        """Drop the bytes of an inode that is no longer known."""
        if inode is not None:
            self.cache.drop(inode)

    # --- directories ------------------------------------------------------------------------------------------------

    async def entries(
        self, directory: OpenDirectory, start: int, accept: Callable[[Named, Inode | None, int], bool]
    ) -> None:
        """Hand entries from the `start`th on to `accept`, until it takes no more."""
        directory.scratch = self.cache.scratch
        await directory.entries(self._cluster, self.inodes, start, accept)


_NEW: Final = When(absent=True)
_PAUSE_S: Final = 0.03
"""Pause between two looks at a file whose bytes are to come."""
_LOOKS_MAX: Final = round(AWAITED_S / _PAUSE_S)
"""Limit of these looks: this machine's clock may be slow, and no bytes may come."""


def _wanted(flags: int, *, here: bool) -> Want:
    """The look for a file to open; for writing also at the right to, as few programs check the result of `close`."""
    reads = READABLE if flags & os.O_ACCMODE != os.O_WRONLY else Want.BYTES
    want = Want.NOTHING if here or flags & os.O_TRUNC else reads
    return want if flags & os.O_ACCMODE == os.O_RDONLY else want | Want.WRITE


def _is_awaited(inode: Inode, known: Attributes) -> bool:
    return not inode.made_ns and is_unwritten(known, time.time_ns())


def _touch(inode: Inode, name: str = "") -> None:
    """Note a change of its names or, under `name`, of its content: the cluster does not report the times of these."""
    inode.touched_ns = time.time_ns()
    if name:
        inode.children.change(name, time.monotonic_ns())


def _still(inode: Inode | None) -> When:
    """The condition that a name still leads to the known entry: another machine may have changed it."""
    return When(guid=inode.guid) if inode is not None else ANY


def _learn(inode: Inode, done: Done) -> None:
    if done.attributes is not None:
        inode.learn(done.attributes)
