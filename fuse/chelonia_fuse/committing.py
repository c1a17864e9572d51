"""Commits of local changes to the cluster, on the version that they were made on.

Decides what a refusal means: an earlier try that applied, a file that has another name by now, or another writer's
commit. In the last case appends go behind the other's bytes, and other changes are kept under a name beside the file:
no bytes are lost. Changes that cannot be committed because the cluster is away wait in the journal.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Iterator
from functools import partial
from typing import Final

from chelonia.core import bounds
from chelonia.core.contents.attributes import is_spliced
from chelonia.core.contents.extents import ByteRange
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ANONYMOUS, Guid
from chelonia.core.metadata import TYPE_FILE
from chelonia.core.names import LogicalName, parse_ln
from chelonia.core.ports.files import LEAVE, MARK, Attributes, Looked, Set, Setting, Want, When
from chelonia.core.timing.jobs import Job, Wait, every
from chelonia.core.timing.pacing import Backoff
from chelonia.core.values import replace
from chelonia_fuse.behind import WriteBehind
from chelonia_fuse.cluster import MountedCluster, Saving, new_etag
from chelonia_fuse.copies import Cache, CachedCopy, SentState
from chelonia_fuse.errors import AGAIN
from chelonia_fuse.inodes import UNWRITTEN_NS, Inode, Inodes, is_unwritten
from chelonia_fuse.journal import JournalRecord, StagingJournal, record_of
from chelonia_fuse.reading import CopyReader
from chelonia_fuse.staging import Plan, Staged

TRIES: Final = 9
PAUSE_MS: Final = 200
PAUSE_MS_MAX: Final = 2_000
"""Pause between two tries; together they cover the time until dead Shepherds are back, or known to be dead."""
GIVE_UP_S: Final = 15.0
"""Time without a Bartender after which no further try is begun."""
AGAIN_MS: Final = 3_000
"""Pause between two tries of changes in the journal."""
REFUSED_S: Final = 60.0
"""Pause between two tries of refused changes: quotas are raised, and rights given back."""
_LOG = logging.getLogger(__name__)
_REFUSED: Final = (
    Kind.PRECONDITION, Kind.NOT_FOUND, Kind.NO_PARENT, Kind.NOT_A_COLLECTION, Kind.EXISTS, Kind.NOT_A_FILE,
    Kind.INVALID_TARGET,
)  # fmt: skip


class FileCommitter:
    """Commits copies, and works off the journal. `waiting`: files in it, by GUID."""

    def __init__(
        self,
        cluster: MountedCluster,
        inodes: Inodes,
        cache: Cache,
        reader: CopyReader,
        journal: StagingJournal,
        *,
        strict: bool,
    ) -> None:
        self._cluster = cluster
        self._inodes = inodes
        self._cache = cache
        self._reader = reader
        self._journal = journal
        self._packed = journal.packed
        self.strict = strict
        self.behind = WriteBehind(self._behind)
        self.waiting: dict[Guid, Inode] = {}
        self.conflicts = 0

    # --- close and fsync ---

    async def close(self, inode: Inode) -> None:
        """Commit as `close` does: changes that cannot be committed now wait in the journal, unless the mount is strict.

        Raises: failures that waiting cannot cure; for a strict mount all failures.
        """
        copy = inode.copy
        if copy is not None and copy.changed and not inode.gone and not self.strict:
            if copy.kept:
                return
            if self._cluster.is_away:
                with contextlib.suppress(OSError):  # a full disk: then it is tried all the same
                    await self._keep(inode)
                    _LOG.info("close %s: the cluster is away: %s", self._inodes.place(inode), _kept_in(copy))
                    return
            if (not copy.queued or inode.guid in self._packed) and self.behind.takes(inode, copy):
                try:
                    await self._pack(inode, copy)
                except OSError as error:
                    _LOG.warning("the cache directory: %s: files are committed without it (-o cache=)", error)
                else:
                    await self.behind.add(inode)
                    return
        try:
            await self.commit(inode)
        except CheloniaError as error:
            if error.kind not in AGAIN or self.strict:
                raise
            await self._later(inode, error)

    async def part(self, inode: Inode) -> None:
        """Commit where no program gets the result: behind the last close, and at the end of the mount. A change that
        cannot be committed is logged, and waits. Raises: as `close`, where the mount is strict."""
        try:
            await self.close(inode)
        except (CheloniaError, OSError) as error:
            if self.strict:
                raise
            await self._unsent(inode, error)

    async def drain(self, limit_s: float) -> None:
        """Commit all changes at the end of the mount, for at most so long. The others wait in the journal, unless the
        mount is strict."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self.behind.drained()
                for inode in self._unkept():
                    with contextlib.suppress(CheloniaError, OSError):
                        await self.part(inode)
                if self.waiting:
                    await self.work_off()
        for inode in () if self.strict else self._unkept():
            try:
                await self._keep(inode)
            except OSError as error:
                _LOG.error("%s: its last changes are lost: the cache directory: %s", self._inodes.place(inode), error)

    def _unkept(self) -> list[Inode]:
        """Files with changes that the journal does not have."""
        changed = [each for each in self._cache.inodes() if each.copy is not None and each.copy.changed]
        return [each for each in changed if each.copy is not None and not each.copy.kept and not each.gone]

    async def commit(self, inode: Inode) -> None:
        """Return once the changes are durable in the cluster. Raises: its failures."""
        copy = inode.copy
        if inode.gone:
            self.let_go(inode)  # it may have been removed while it was written to the journal
        if copy is None or inode.gone or not (copy.changed or copy.queued):
            return
        async with copy.lock:
            queued, kept = copy.queued, copy.kept
            try:
                await self._commit(inode, copy)
            except BaseException:
                copy.kept &= kept  # a `close` that was not answered yet tries again
                raise
            self.let_go(inode)
        if queued:
            await self._journal.settled()

    async def _unmark(self, inode: Inode) -> None:
        """Remove the mark of a file that stays empty. If that fails, other mounts wait `AWAITED_S` for its bytes."""
        attributes = inode.attributes
        if self.is_marked(inode):
            place, setting = LogicalName(inode.guid, ()), Setting(accessed_ns=attributes.modified_ns)
            change = Set(place, setting, when=When(etags=(attributes.etag,)))
            with contextlib.suppress(CheloniaError):
                if (after := (await self._cluster.change(change)).attributes) is not None:
                    inode.learn(after)

    def is_marked(self, inode: Inode) -> bool:
        """Whether other mounts wait for bytes that will not come: it was made here, and nothing was written."""
        written = inode.copy is not None and (inode.copy.changed or inode.copy.queued)
        attributes = inode.attributes
        return inode.made_ns > 0 and not inode.gone and not written and is_unwritten(attributes, attributes.created_ns)

    def makes_many(self) -> bool:
        """Note that a file is made. Returns: whether its `close` will not wait for the commit."""
        return self.behind.makes_many() and not self.strict

    async def settled(self) -> None:
        """Return once removals from the journal are durable."""
        await self._journal.settled()

    async def settle(self, inode: Inode, *, replaces: bool = False) -> None:
        """Commit now a closed file that is to have another name: others are to find it whole.

        One of the journal that is refused may go where there is room, unless it `replaces` another file.
        Raises: failures of the commit otherwise.
        """
        if inode.copy is None or not inode.copy.queued:
            return
        waits = inode.guid in self.waiting
        try:
            await self.commit(inode)
        except CheloniaError as error:
            if replaces or not waits or error.kind in AGAIN:
                raise

    def let_go(self, inode: Inode) -> None:
        """Remove a change from the journal: it is committed, or its file is no more."""
        self.waiting.pop(inode.guid, None)  # also what a full disk has kept out of the journal
        if inode.copy is not None and inode.copy.queued:
            inode.copy.queued = inode.copy.kept = False
            self._packed.done(inode.guid)
            self._journal.remove(inode.guid)
            inode.copy.renewed()

    # --- the journal ---

    async def _keep(self, inode: Inode) -> None:
        copy = inode.copy
        assert copy is not None, "what is kept was changed here"
        async with copy.lock:
            if not inode.gone:  # else it was removed while this waited
                await self._write_record(inode, copy)

    async def _write_record(self, inode: Inode, copy: CachedCopy) -> None:
        self._cache.with_room(copy.file)
        record = self._record(inode, copy)  # without bytes that come meanwhile
        await copy.sync()
        self._cache.with_room(lambda: self._journal.write(record))
        copy.queued = copy.kept = True
        copy.renewed()
        self.waiting[inode.guid] = inode
        self._packed.done(inode.guid)

    async def _renew_record(self, inode: Inode, copy: CachedCopy) -> None:
        """Before a commit, replace a record of an earlier state: by that one, the next mount would not know it."""
        if copy.queued and not copy.kept:
            try:
                await self._write_record(inode, copy)
            except OSError as error:
                _LOG.info("the cache directory: %s: %s is committed without a record", error, inode.guid)

    def _record(self, inode: Inode, copy: CachedCopy) -> JournalRecord:
        """The record of a change, by which the next mount recognises a commit."""
        copy.commit = copy.commit or new_etag()
        return record_of(inode.guid, str(self._place(inode, copy)), copy)

    def cutting(self, inode: Inode, copy: CachedCopy) -> None:
        """Write a record anew before bytes that it promises are cut: for these the next mount would commit zeros."""
        if copy.queued and inode.guid not in self._packed:
            try:
                copy.sync_now()  # also what came since `sync`
                self._journal.write(self._record(inode, copy))
            except OSError as error:
                _LOG.error("the cache directory: %s: if the mount dies, zeros stand for what was cut", error)

    async def _later(self, inode: Inode, error: CheloniaError | OSError) -> None:
        await self._keep(inode)
        if inode.gone:
            return
        path = self._inodes.place(inode)
        _LOG.warning("close %s: %s: %s", path, error, _kept_in(inode.copy))

    async def _pack(self, inode: Inode, copy: CachedCopy) -> None:
        """Keep a small file for a commit that begins at once."""
        async with copy.lock:
            record = self._record(inode, copy)
            try:
                await self._packed.keep(record, copy.read(0, copy.staged.size))
                copy.kept = True
            finally:
                copy.queued = True  # also when it failed: it may be on the disk

    async def _behind(self, inode: Inode) -> bool:
        """Commit a closed file. Returns: whether others may be committed like it."""
        queued = inode.copy is not None and inode.copy.queued
        try:
            await (self.commit(inode) if queued else self._unmark(inode))
        except (CheloniaError, OSError) as error:
            await self._unsent(inode, error)
            return False
        self._forget(inode)
        return True

    def _forget(self, inode: Inode) -> None:
        """Drop a committed file that neither the kernel nor a program needs, and the bytes of one that is no more."""
        if inode.gone and not inode.opens:
            self._cache.drop(inode)
        if (dropped := self._inodes.drop(inode)) is not None:
            self._cache.drop(dropped)

    async def _unsent(self, inode: Inode, error: CheloniaError | OSError) -> None:
        """Keep a change in the journal, as while the cluster is away. Where even that fails it is tried again all the
        same, and a packed record stays."""
        if inode.copy is None:
            return
        passing = isinstance(error, CheloniaError) and error.kind in AGAIN
        try:
            await (self._later(inode, error) if passing else self._keep(inode))
        except OSError as trouble:
            _LOG.error("the cache directory: %s (make room, or choose another by -o cache=)", trouble)
            self.waiting[inode.guid] = inode
        if not (passing or inode.gone):
            self._refused(inode, error)

    def _refused(self, inode: Inode, error: CheloniaError | OSError) -> None:
        """Have a refused change tried again, each minute; log it once."""
        copy = inode.copy
        assert copy is not None, "what waits has bytes here"
        if not copy.due_s:
            place, remark = self._place(inode, copy), "its bytes stay in %s, and are tried again each minute"
            _LOG.error(f"%s was closed here and cannot be committed: %s: {remark}", place, error, copy.path)
        copy.due_s = time.monotonic() + REFUSED_S
        self.waiting[inode.guid] = inode

    async def replay(self, cluster: str = "") -> int:
        """Load the changes that an earlier mount left in the journal; all else in the cache goes. `cluster`: its
        identity, "" if unknown. Returns: how many. Raises: BAD_CONFIG when they are another cluster's; as a look does.
        """
        records = {record.guid: record for record in self._journal.records()}
        packed = list(self._packed.records())
        self._journal.claim(cluster, is_free=not (records or packed))
        self._cache.clear({record.data for record in records.values()}, self._journal.unreadable)
        left = [each for each in packed if each[0].guid not in records]  # else that record is later: of another close
        for record, data in left:
            self._cache.keep(record.guid, data)
        self._journal.begin()
        for record, _ in left:
            self._journal.write(record)
            records[record.guid] = record
        self._packed.clear()
        for record in records.values():
            guid = Guid(record.guid)
            try:
                attributes = (await self._cluster.look(LogicalName(guid, ()))).attributes
            except CheloniaError as error:
                if error.kind in AGAIN:
                    raise
                attributes = Attributes(guid, TYPE_FILE, 0, ANONYMOUS)  # gone, or not visible: its commit will fail
            inode = self._inodes.seen(attributes)
            staged = record.staged()
            inode.copy = CachedCopy(self._cache.path(record.data), staged, queued=True, named=record.data)
            inode.copy.cut(record.size)  # what was not closed may be behind, and would be there once it is longer
            inode.copy.set(record.setting())
            inode.copy.commit, inode.copy.earlier = record.commit, record.sent(staged)
            inode.copy.kept, inode.copy.sent = True, bool(record.commit)
            inode.copy.place = parse_ln(record.path)
            self._cache.of(inode)
            self.waiting[guid] = inode
        return len(records)

    def job(self) -> Job:
        """Return the job that commits waiting changes."""
        return Job("commit", every(AGAIN_MS, self.work_off), Wait(AGAIN_MS))

    async def work_off(self) -> None:
        """Try once to commit waiting changes, when the cluster answers; find out whether one that was away does."""
        now_s = time.monotonic()
        due = [guid for guid, inode in self.waiting.items() if inode.copy is not None and inode.copy.due_s <= now_s]
        if due or self._cluster.is_away:
            try:
                await self._cluster.look(LogicalName(self._inodes.root.guid, ()))
            except CheloniaError as error:
                if error.kind in AGAIN:
                    return
        for guid in due:
            if (inode := self.waiting.pop(guid, None)) is None:
                continue  # it was committed meanwhile
            self.waiting[guid] = inode  # now the last: if it cannot be committed, others come first
            assert inode.copy is not None, "what waits has bytes here"
            path = self._place(inode, inode.copy)
            try:
                await self.commit(inode)
            except CheloniaError as error:
                if error.kind in AGAIN:
                    _LOG.info("%s waits still: %s", path, error)
                    with contextlib.suppress(OSError):
                        if not inode.copy.kept:  # its bytes may have moved behind others' just now
                            await self._keep(inode)
                    return
                self._refused(inode, error)
                continue
            except OSError as error:  # of this machine's disk: the others go on
                _LOG.warning("%s waits still: the cache directory: %s", path, error)
                continue
            self._forget(inode)
            _LOG.warning("%s is committed now", path)

    # --- one commit ---

    async def _commit(self, inode: Inode, copy: CachedCopy) -> None:
        tried, etag = copy.tried, copy.commit or new_etag()
        copy.commit = etag  # a later try recognises by it that this one has applied
        by_guid = anew = False
        ends, backoff = time.monotonic() + GIVE_UP_S, Backoff(PAUSE_MS, PAUSE_MS_MAX)
        if copy.source is not None and copy.source.data is not None:  # then a small file can go as one message
            with contextlib.suppress(CheloniaError, OSError):  # a full disk: then what was changed goes alone
                await self._reader.ensure(inode, 0, copy.staged.kept)
        for left in range(TRIES - 1, -1, -1):
            if inode.gone or not copy.changed:
                return
            plan, sent = copy.staged.plan(anew=anew), len(tried)
            try:
                try:
                    for start, end in plan.ranges:  # not under `_saving`, which reading waits for
                        await self._reader.ensure(inode, start, end)
                    await self._renew_record(inode, copy)
                    with _saving(copy):
                        saving, copy.sent = self._saving(inode, copy, plan, etag, by_guid=by_guid), True
                        self._done(inode, copy, plan, await self._cluster.save(saving, tried))
                        return
                except CheloniaError as error:
                    if error.kind not in _REFUSED:
                        raise
                    with _saving(copy):
                        by_guid = await self._judge(inode, copy, plan, {*tried, etag})
                continue
            except CheloniaError as error:
                if error.kind is Kind.TOO_LARGE and not anew:
                    anew = True  # it has as many extents as a file may have
                    continue
                away = len(tried) == sent and time.monotonic() > ends
                if error.kind not in AGAIN or not left or away:
                    raise
            await asyncio.sleep(backoff.failed() / 1000)
        if copy.changed:
            cause = "others change it all the time; close it again"
            raise CheloniaError(Kind.CONFLICT, "close", str(self._inodes.place(inode)), cause)

    def _saving(self, inode: Inode, copy: CachedCopy, plan: Plan, etag: str, *, by_guid: bool) -> Saving:
        setting = copy.settled()
        if inode.attributes.accessed_ns == UNWRITTEN_NS and setting.accessed_ns is None:
            setting = replace(setting, accessed_ns=setting.modified_ns)
        return Saving(
            place=LogicalName(inode.guid, ()) if by_guid else self._inodes.place(inode),
            plan=plan,
            body=partial(copy.chunks, plan.ranges),
            wanted=self._wanted(inode.attributes),
            setting=setting,
            when=When(etags=(copy.staged.etag,), guid=inode.guid),
            etag=etag,
        )

    def _wanted(self, stored: Attributes) -> int:
        """Return the copies wanted of a file. One that was made empty has the cluster's number until it has bytes."""
        is_chosen = stored.size > 0 or stored.wanted != bounds.REPLICAS_DEFAULT
        return stored.wanted if stored.wanted and is_chosen else self._cluster.wanted

    def _done(self, inode: Inode, copy: CachedCopy, plan: Plan, attributes: Attributes) -> None:
        if copy.place is not None and not copy.pinned:  # of an earlier mount: what was not closed may be in its file
            copy.place = None
            self._follow(inode, copy, attributes)
            return
        copy.staged.committed(plan, attributes.etag)
        copy.settle()
        inode.learn(attributes)
        inode.shown = attributes.etag

    async def _judge(self, inode: Inode, copy: CachedCopy, plan: Plan, names: set[str]) -> bool:
        """Find out why a commit was refused, and resolve it. `names`: of the tries. Returns: whether to try again by
        GUID."""
        current = await self._look(inode, copy, plan)
        if current is None:
            if not inode.gone and await self._is_new(inode, copy):
                await self._beside(inode, copy, None)  # else it was removed here, or since
            inode.gone = True
        elif current.attributes.etag in names:
            self._done(inode, copy, plan, current.attributes)  # an earlier try has applied
        elif _names(current) & names:
            if not plan.plain and is_spliced(current.attributes.etag, copy.staged.etag):
                self._done(inode, copy, plan, current.attributes)  # the same
            else:
                self._follow(inode, copy, current.attributes)  # others have changed it since
        elif current.attributes.size == plan.size and not plan.ranges:
            if copy.setting == LEAVE:
                self._follow(inode, copy, current.attributes)  # the same, or another writer has cut it
            else:
                await self._follow_with_attributes(inode, copy)
        elif current.attributes.etag == copy.staged.etag:
            return True  # it has another name
        elif await self._cluster.has_applied(inode.guid, copy.commit):
            self._follow(inode, copy, current.attributes)  # others have changed it since
        else:
            await self._rebase(inode, copy, current)
        return False

    async def _is_new(self, inode: Inode, copy: CachedCopy) -> bool:
        """Whether bytes are here that the cluster never had."""
        if not copy.staged.changed or await self._cluster.has_applied(inode.guid, copy.commit):
            return False
        sent = await self._applied(inode, copy, set())
        return sent is None or sent.staged.changed

    async def _applied(self, inode: Inode, copy: CachedCopy, found: set[str]) -> SentState | None:
        """The earlier state that has applied: there is one at most, as each was conditional on the same version."""
        for each in copy.earlier:
            if each.commit in found:
                return each
        for each in copy.earlier:
            if await self._cluster.has_applied(inode.guid, each.commit):
                return each
        return None

    async def _rebase(self, inode: Inode, copy: CachedCopy, current: Looked) -> None:
        """Put the changes on another version: another writer's, or an earlier state of the same bytes."""
        etag, size, found = current.attributes.etag, current.attributes.size, _names(current)
        sent = await self._applied(inode, copy, found)
        if sent is None and not copy.staged.changed and copy.setting == LEAVE:  # it is as it was
            self._follow(inode, copy, current.attributes)
            return
        if not (copy.staged if sent is None else sent.staged).changed:  # attributes alone were set since
            await self._follow_with_attributes(inode, copy)
            return
        if sent is not None:
            is_last = sent.commit in found or (sent.bare and size == sent.staged.base)
            is_same = is_last and is_spliced(etag, copy.staged.etag)
            copy.staged, copy.source, copy.earlier, copy.kept = sent.staged, None, [], False
            copy.staged.etag = etag if is_same else sent.commit
        staged = copy.staged
        if etag == staged.etag:
            return
        if size == staged.base == 0:
            staged.etag = etag
        elif staged.appended and staged.size > staged.base:
            self._cache.with_room(partial(copy.move_on, etag, size))
            inode.shown = ""
        else:
            await self._beside(inode, copy, current)
            self._follow(inode, copy, current.attributes)

    def _follow(self, inode: Inode, copy: CachedCopy, attributes: Attributes) -> None:
        """Go on with the present version, of which no byte is here."""
        inode.learn(attributes)
        inode.shown = ""
        copy.restart(Staged.of(attributes.etag, attributes.size))

    async def _follow_with_attributes(self, inode: Inode, copy: CachedCopy) -> None:
        """Follow, where attributes alone were set here."""
        attributes = (await self._cluster.change(Set(LogicalName(inode.guid, ()), copy.settled()))).attributes
        if attributes is not None:  # else it is gone by now, which the next try finds out
            self._follow(inode, copy, attributes)

    async def _look(self, inode: Inode, copy: CachedCopy, plan: Plan) -> Looked | None:
        """Look at the pieces that tries may have left: also beyond the file's end, where it was cut since."""
        start, end = (plan.ranges[0][0], plan.ranges[-1][1]) if plan.ranges else (plan.size, plan.size)
        end = max(end, *(each.staged.base for each in copy.earlier), 0)
        try:
            return await self._cluster.look(
                LogicalName(inode.guid, ()), Want.EXTENTS | Want.CHECKSUMS, ByteRange(start, end - start)
            )
        except CheloniaError as error:
            if error.kind is not Kind.NOT_FOUND:
                raise
            return None

    async def _beside(self, inode: Inode, copy: CachedCopy, current: Looked | None) -> None:
        """Keep the local version under another name beside the file. Without a known name, or a collection that is
        there, it goes to the top of the mount.

        Old bytes that are not here are read from the present version, as far as it reaches; the rest is zeros."""
        staged, place, beside = copy.staged, self._place(inode, copy), self._inodes.entry(inode)
        for start, end in staged.missing(0, staged.size):
            if current is not None:
                await self._fill(inode, copy, start, min(end, current.attributes.size))
        whole = Plan(staged.size, ((0, staged.size),) if staged.size else (), whole=True)
        copy.sent = True  # so what is written later has an etag of its own, also where this answer is lost
        top = self._inodes.place(self._inodes.root)
        shown = place.parent if place.parts else top
        above = beside.parent if beside.parts else shown  # by its path others may have another collection
        body = partial(copy.chunks, whole.ranges)
        setting = copy.settled()
        if setting.mode is None and inode.attributes.mode >= 0:
            setting = replace(setting, mode=inode.attributes.mode)
        saving = Saving(above, whole, body, self._cluster.wanted, setting, When(absent=True), copy.commit)
        of = place.name or inode.guid
        try:
            name = await self._save_once(saving, of)
        except CheloniaError as error:
            if error.kind not in (Kind.NO_PARENT, Kind.NOT_A_COLLECTION):
                raise
            shown = top  # its collection is gone, too
            name = await self._save_once(replace(saving, place=top), of)
        self.conflicts += 1
        inode.beside += 1
        reason, kept = "was changed by somebody else" if current else "was removed by somebody else", shown.child(name)
        _LOG.warning("%s %s while it was changed here: what was written here is kept as %s", place, reason, kept)

    async def _save_once(self, saving: Saving, of: str) -> str:
        """Keep a version of the file `of` in a collection, unless an earlier try has, whose answer was lost. Returns:
        its name."""
        host = socket.gethostname()
        name = conflict_name(of, host, (saving.setting.modified_ns or time.time_ns()) / 1e9)  # the same in each try
        target = saving.place.child(name)
        try:
            await self._cluster.save(replace(saving, place=target), [])
        except CheloniaError as error:
            if error.kind is not Kind.PRECONDITION:
                raise
            if (await self._cluster.look(target)).attributes.etag != saving.etag:  # a program has set the same time
                name = conflict_name(of, host, time.time())
                await self._cluster.save(replace(saving, place=saving.place.child(name)), [])
        return name

    async def _fill(self, inode: Inode, copy: CachedCopy, start: int, end: int) -> None:
        if start >= end:
            return
        place, span = LogicalName(inode.guid, ()), ByteRange(start, end - start)
        looked = await self._cluster.look(place, Want.SOURCES, span)
        async with contextlib.aclosing(self._cluster.read(place, looked, span)) as chunks:
            async for chunk in chunks:
                self._cache.with_room(partial(copy.store, start, chunk))
                start += len(chunk)

    def _place(self, inode: Inode, copy: CachedCopy) -> LogicalName:
        """The place of a file, or its place when it was closed."""
        place = self._inodes.place(inode)
        return place if place.parts or copy.place is None else copy.place


def _kept_in(copy: CachedCopy | None) -> str:
    return f"it is kept in {copy.path if copy is not None else ''} and will be committed later"


def _names(current: Looked) -> set[str]:
    """Names of a version: its etag, and of its pieces the blobs, and the marks that they were sent with."""
    blobs = {extent.blob for extent in current.extents}
    return {current.attributes.etag, *blobs, *(current.sums.get(blob, {}).get(MARK, "") for blob in blobs)} - {""}


@contextlib.contextmanager
def _saving(copy: CachedCopy) -> Iterator[None]:
    """Have readers that see another version meanwhile wait until it is known whose it is."""
    copy.saving = asyncio.get_running_loop().create_future()
    try:
        yield
    finally:
        copy.saving.set_result(None)
        copy.saving = None


def conflict_name(name: str, host: str, now_s: float) -> str:
    """Return the name for one of two writers' versions: the file's name, cut to the name law, host and time."""
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(now_s)) + f"{int(now_s * 1000) % 1000:03d}"
    tail = f".conflict-{host[:32]}-{stamp}"
    kept = name.encode()[: bounds.NAME_BYTES_MAX - len(tail.encode())].decode("utf-8", "ignore")
    return kept + tail
