"""The Librarian: one service behind `core.ports.librarian.Librarian`.

This file passes each operation on to the part that knows it - `names`, `uploads.act`, `nodes`, `healer` - and keeps the
background work going. When older metadata were restored, it begins anew. Every namespace operation is one transact;
pure modules decide it (`tree`, `uploads.decide`, `blobs`, `reports`, `health`, `repair`).

A memo (`recall`) is the GUID that the operation made or changed. A change of bytes adds a blank and their etag (of an
upload its blob).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from chelonia.core.caller import Call, Role
from chelonia.core.cluster.drills import DrillStatus
from chelonia.core.cluster.healing import ForgetPage, HealingWord, HealStatus
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import CLUSTER_OBJECT, REBUILD_OBJECT, ROOT, BlobId, Guid, ServiceId
from chelonia.core.metadata import TYPE_COLLECTION
from chelonia.core.operations.librarian import LIBRARIAN
from chelonia.core.operations.rows import PortMethod
from chelonia.core.ports.ahash import AHash
from chelonia.core.ports.librarian import (
    NOBODY,
    Finding,
    HealthSummary,
    Heartbeat,
    HeartbeatAnswer,
    InventoryPage,
    MakeEntry,
    Mended,
    ModifyEntry,
    ModifyOutcome,
    NewOutcome,
    NewRequest,
    NodeView,
    RebuildStatus,
    RemoveOutcome,
    Report,
    ReportAnswer,
    ServiceRecord,
)
from chelonia.core.rights.access import admit, guarded, own_shepherd
from chelonia.core.timing.jobs import Jobs
from chelonia.core.values import replace
from chelonia.librarian.context import LibrarianContext
from chelonia.librarian.healer import Healer
from chelonia.librarian.metadata.elements import check, put_all, version
from chelonia.librarian.metadata.rebuild_record import awaited, late_command, to_be_made, to_begin, under_way
from chelonia.librarian.metadata.records import LibrarianIdentity, PlannedTransact, Records, RetryContext
from chelonia.librarian.namespace.contents.act import Contents
from chelonia.librarian.namespace.names import Names, numbered
from chelonia.librarian.namespace.parts.act import PartUploads
from chelonia.librarian.namespace.sharing.act import Sharing
from chelonia.librarian.namespace.uploads.act import FileUploads
from chelonia.librarian.presence.access_keys import StoredKeys
from chelonia.librarian.presence.nodes import NodeTable
from chelonia.librarian.presence.receipt_audit import ReceiptAudit
from chelonia.librarian.recovery.fsck import Fsck
from chelonia.librarian.recovery.rebuild.act import Rebuilding, Tools
from chelonia.librarian.world import World

_LOG = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")

RECORD_KEY_BYTES = 32


def _in(
    room: Callable[[_Parts], Callable[P, Coroutine[Any, Any, T]]],
) -> Callable[Concatenate[LibrarianService, P], Coroutine[Any, Any, T]]:
    """The operation of the port that a method of a part carries out."""

    def handler(self: LibrarianService, /, *args: P.args, **named: P.kwargs) -> Coroutine[Any, Any, T]:
        return room(self._parts)(*args, **named)

    return handler


ABOUT_NODES: Final = frozenset({"nodes", "services", "heal_status", "drill_status", "health"})
"""Methods that serve Bartenders also while the namespace is rebuilt."""


def _whole(service: LibrarianService, call: Call, row: PortMethod) -> None:
    """Refuse users' operations on half a namespace: an entry not yet restored is not gone, and its name is not free.

    Shepherds and Librarians, which may have the certificate of a Bartender on their host, go on: without heartbeats
    every Shepherd would count as away. Raises: DENIED; UNAVAILABLE.
    """
    admit(call, row)
    if not service.rebuilding:
        return
    for_users = Role.BARTENDER in row.roles and Role.SHEPHERD not in row.roles
    if for_users and call.has(Role.BARTENDER) and row.method not in ABOUT_NODES:
        cause = "the namespace is being rebuilt: `chelonia admin status` tells how far it is"
        raise CheloniaError(Kind.UNAVAILABLE, f"librarian.{row.name}", cause=cause)


@guarded(LIBRARIAN, _whole)
class LibrarianService:
    """The namespace service. `start` before use, `run` beside it, `stop` at the end.

    Args:
        ahash: the metadata store.
        identity: this Librarian's DN and service id.
    """

    def __init__(self, ahash: AHash, identity: LibrarianIdentity, world: World) -> None:
        self._ahash = ahash
        self._identity = identity
        self._world = world
        self._parts = self._new_parts()
        self._healing: asyncio.Task[None] | None = None
        self._stopped = False

    def _new_parts(self) -> _Parts:
        return _Parts(self._ahash, self._identity, self._world)

    # --- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Make the cluster record, the root and the configured identities unless they exist.

        Raises: BAD_CONFIG without a root owner; UNAVAILABLE while the A-Hash does not answer (start again).
        """
        await self._start(self._parts)

    async def _start(self, parts: _Parts) -> None:
        call = self._identity.call()
        await parts.records.refresh_position(call)
        await self._ensure_cluster(parts, call)
        await self._ensure_root(parts.names, call)
        await parts.nodes.bootstrap(call, self._world.settings.bootstrap)
        await parts.nodes.refresh(call)
        await parts.names.quotas.table(call)
        marker = await parts.records.one(call, REBUILD_OBJECT)
        parts.records.heed(marker)
        if to_begin(marker):
            _LOG.info("the metadata of this cluster were lost: nobody is served before `chelonia admin rebuild`")
        elif under_way(marker):
            _LOG.warning(
                "a rebuild is not through: `chelonia admin rebuild` begins it again, if it has broken off; until then "
                "nothing is repaired"
            )
        for shepherd in awaited(marker):
            _LOG.warning(
                "the namespace was rebuilt without %s: when it is back, `%s`", shepherd, late_command(shepherd)
            )

    @property
    def jobs(self) -> Jobs:
        """The background work of this Librarian."""
        return self._parts.healer.jobs

    @property
    def rebuilding(self) -> bool:
        """Whether the namespace is being rebuilt, as last read."""
        return self._parts.records.rebuilding

    @property
    def written(self) -> Mapping[str, int]:
        """Number of transacts that applied, by the job or operation that made them."""
        return self._parts.records.written

    @property
    def record_key(self) -> str:
        """The cluster's record key (hex): the host keeps it where it outlives the A-Hash."""
        return self._parts.uploads.record_key

    async def run(self) -> None:
        """Heal until cancelled or stopped; begin anew whenever older metadata were restored."""
        self._stopped = False
        try:
            while not self._stopped and await self._heal():
                await self._begin_anew()
        finally:
            await self.stop()

    async def _heal(self) -> bool:
        """Heal until the jobs end or older metadata were restored; returns whether they were."""
        healing = self._healing = asyncio.create_task(self._parts.healer.run())
        restored = asyncio.create_task(self._parts.records.restored.wait())
        try:
            await asyncio.wait((healing, restored), return_when=asyncio.FIRST_COMPLETED)
        finally:
            restored.cancel()
        if healing.done() and not healing.cancelled():
            healing.result()
        return not healing.done()

    async def _begin_anew(self) -> None:
        """Read everything again, as a restart would; requests get answers from the old state until that is done."""
        _LOG.info("the metadata have been restored from a backup: all that was read before is read again")
        await self._end_work()
        fresh = self._new_parts()
        while not self._stopped:
            try:
                await self._start(fresh)
            except CheloniaError as error:
                if not error.meaning.retryable:
                    raise
                _LOG.info("the restored metadata cannot be read yet: %s", error)
                await self._world.clock.sleep(self._world.settings.tick_ms)
            else:
                self._parts = fresh
                return

    async def stop(self) -> None:
        """End the background work. The service still answers requests. Safe to call twice."""
        self._stopped = True
        await self._end_work()

    async def _end_work(self) -> None:
        if self._parts.rebuilding is not None:
            await self._parts.rebuilding.stop()
        healing, self._healing = self._healing, None
        if healing is not None:
            healing.cancel()
            await asyncio.wait((healing,))

    async def _ensure_cluster(self, parts: _Parts, call: Call) -> None:
        kept = self._world.settings.record_key or self.record_key
        found = await parts.records.one(call, CLUSTER_OBJECT)
        if not found.exists:
            position = parts.records.position
            sections = {
                "cluster": {
                    "id": position.cluster or self._world.ids.uuid(),
                    "generation": str(position.generation),
                    "created_ms": str(self._world.clock.now_ms()),
                    "record_key": kept or self._world.ids.token(RECORD_KEY_BYTES).hex(),
                }
            }
            elements = [check(CLUSTER_OBJECT, version(0)), *put_all(CLUSTER_OBJECT, sections)]
            if position.generation > 1:  # the metadata are lost: users get an error, not an empty namespace
                elements.append(to_be_made())
            await parts.records.attempt(call, PlannedTransact(elements))
            found = await parts.records.one(call, CLUSTER_OBJECT)
        key = found.value("cluster", "record_key")
        if kept not in ("", key):
            cause = "the file holds the record key of another cluster: name the right one in record_key_file"
            raise CheloniaError(Kind.BAD_CONFIG, "start", "record key", cause)
        parts.uploads.record_key = key

    async def _ensure_root(self, names: Names, call: Call) -> None:
        settings = self._world.settings
        if (await names.get(call, (ROOT,), ()))[0].exists:
            return
        if not settings.root_owner:
            cause = "the root needs an owner at the first start: set root_owner to an administrator's DN"
            raise CheloniaError(Kind.BAD_CONFIG, "start", "/", cause)
        sections = {"policy": settings.root_policy, "defaultPolicy": settings.root_default_policy}
        try:
            root = MakeEntry(Guid(""), "", TYPE_COLLECTION, settings.root_owner, sections)
            await names.make_entry(call, root)
        except CheloniaError as error:
            if error.kind is not Kind.EXISTS:
                raise

    # --- the original's operations ----------------------------------------------------------------------------------

    async def new(self, call: Call, requests: tuple[NewRequest, ...]) -> tuple[NewOutcome, ...]:
        total = len(requests)
        return tuple([await self._parts.names.new(numbered(call, i, total), r) for i, r in enumerate(requests)])

    get = _in(lambda parts: parts.names.get)
    traverse = _in(lambda parts: parts.names.traverse)

    async def modify_metadata(self, call: Call, requests: tuple[ModifyEntry, ...]) -> tuple[ModifyOutcome, ...]:
        total = len(requests)
        return tuple([await self._parts.names.modify(numbered(call, i, total), r) for i, r in enumerate(requests)])

    async def remove(self, call: Call, requests: tuple[tuple[str, Guid], ...]) -> tuple[RemoveOutcome, ...]:
        total = len(requests)
        return tuple([await self._parts.names.remove(numbered(call, i, total), *r) for i, r in enumerate(requests)])

    async def report(self, call: Call, report: Report) -> ReportAnswer:
        own_shepherd(call, report.shepherd, "report")
        return await self._parts.nodes.report(call, report)

    # --- the transactional namespace --------------------------------------------------------------------------------

    make_entry = _in(lambda parts: parts.names.make_entry)
    begin_put = _in(lambda parts: parts.uploads.begin_put)
    commit_put = _in(lambda parts: parts.uploads.commit_put)
    commit_file = _in(lambda parts: parts.uploads.commit_file)
    splice = _in(lambda parts: parts.contents.splice)
    extents = _in(lambda parts: parts.contents.extents)
    open_upload = _in(lambda parts: parts.part_uploads.open)
    put_part = _in(lambda parts: parts.part_uploads.put)
    seal_upload = _in(lambda parts: parts.part_uploads.seal)
    copy_file = _in(lambda parts: parts.copying.copy)
    drop_upload = _in(lambda parts: parts.part_uploads.drop)
    uploads = _in(lambda parts: parts.part_uploads.uploads)
    parts = _in(lambda parts: parts.part_uploads.parts)
    unlink = _in(lambda parts: parts.names.unlink)
    unlink_all = _in(lambda parts: parts.names.unlink_all)
    delete = _in(lambda parts: parts.names.delete)
    unmake = _in(lambda parts: parts.names.unmake)
    move = _in(lambda parts: parts.names.move)
    undelete = _in(lambda parts: parts.names.undelete)
    trash = _in(lambda parts: parts.names.trash)
    set_wanted = _in(lambda parts: parts.contents.set_wanted)
    change_entry = _in(lambda parts: parts.names.change_entry)
    below = _in(lambda parts: parts.names.below)

    access_key = _in(lambda parts: parts.keys.find)
    access_keys = _in(lambda parts: parts.keys.all)
    keep_access_key = _in(lambda parts: parts.keys.keep)
    drop_access_key = _in(lambda parts: parts.keys.drop)

    quotas = _in(lambda parts: parts.names.quotas.listed)
    set_quota = _in(lambda parts: parts.names.quotas.set)
    recount_quotas = _in(lambda parts: parts.names.quotas.recount)

    async def recall(self, call: Call) -> str | None:
        outcome = await self._parts.records.recall(call)
        return outcome.memo if outcome is not None and outcome.applied else None

    # --- nodes ------------------------------------------------------------------------------------------------------

    async def heartbeat(self, call: Call, beat: Heartbeat) -> HeartbeatAnswer:
        """Note that a Shepherd lives; record an unknown identity as waiting."""
        answer = await self._parts.nodes.heartbeat(call, beat)
        control = self._parts.healer.control
        return replace(answer, copy_bytes_per_s_max=control.bytes_per_s, copies_at_once_max=control.copies_per_node)

    def suspect(self, shepherd: ServiceId) -> None:
        """Note that the connection of a Shepherd's heartbeats has closed. The HTTP server calls this."""
        self._parts.healer.detecting.suspect(shepherd)

    async def hearing(self, call: Call, shepherds: tuple[ServiceId, ...]) -> tuple[HealingWord, ...]:
        return await self._parts.healer.detecting.words(shepherds)

    async def consider(self, call: Call, blobs: tuple[BlobId, ...]) -> None:
        self._parts.healer.consider(blobs)

    async def inventory(self, call: Call, shepherd: ServiceId, after: str, limit: int) -> InventoryPage:
        own_shepherd(call, shepherd, "inventory")
        return await self._parts.nodes.inventory(call, shepherd, after, limit)

    async def nodes(self, call: Call) -> tuple[NodeView, ...]:
        views = self._parts.nodes.views()
        return await self._parts.life.mark_drained(call, views) if call.has(Role.ADMINISTRATOR) else views

    async def services(self, call: Call) -> tuple[ServiceRecord, ...]:
        await self._parts.nodes.refresh(call)
        return self._parts.nodes.services()

    approve = _in(lambda parts: parts.nodes.approve)
    maintenance = _in(lambda parts: parts.nodes.maintenance)

    async def drain(self, call: Call, shepherd: ServiceId, on: bool) -> None:
        await self._parts.life.drain(call, shepherd, on=on)

    async def forget(
        self, call: Call, shepherd: ServiceId, after: str, check_only: bool, accept_loss: bool
    ) -> ForgetPage:
        return await self._parts.life.forget(call, shepherd, after, check_only=check_only, accept_loss=accept_loss)

    async def heal_status(self, call: Call) -> HealStatus:
        if call.has(Role.LIBRARIAN):
            return self._parts.healer.own_status()
        return await self._parts.healer.status()

    heal_order = _in(lambda parts: parts.healer.order)
    drill = _in(lambda parts: parts.healer.drilling.order)

    async def drill_status(self, call: Call) -> DrillStatus:
        drilling = self._parts.healer.drilling
        return drilling.own_status() if call.has(Role.LIBRARIAN) else await drilling.status()

    async def health(self, call: Call) -> HealthSummary:
        return self._parts.healer.summary()

    fsck = _in(lambda parts: parts.fsck.check)

    async def rebuild(self, call: Call, begin: bool, late: ServiceId = NOBODY) -> RebuildStatus:
        if self._parts.rebuilding is None:
            raise CheloniaError(Kind.NOT_SUPPORTED, "rebuild", cause="this Librarian cannot read from Shepherds")
        if begin:
            await self._parts.rebuilding.begin(call.dn, late)
        return await self._parts.rebuilding.status()

    async def mend(self, call: Call, findings: tuple[Finding, ...]) -> tuple[Mended, ...]:
        """Repair findings of fsck. Raises: CONFLICT during a rebuild, when an entry may only be not restored yet."""
        if under_way(await self._parts.records.one(call.strongly(), REBUILD_OBJECT)):
            cause = "a rebuild is under way; repair when `chelonia admin rebuild` has ended"
            raise CheloniaError(Kind.CONFLICT, "fsck", cause=cause)
        mended = await self._parts.fsck.mend(call, findings)
        if findings:  # a mend changes names and sizes without counting; if this is a repeat, the first try made them
            await self._parts.names.quotas.recount(call)
        return mended


class _Parts:
    """The parts of one Librarian, with all that they remember of the metadata."""

    def __init__(self, ahash: AHash, identity: LibrarianIdentity, world: World) -> None:
        records = self.records = Records(ahash, identity)
        nodes: NodeTable = NodeTable(records, world, world.clock.monotonic_ms())
        self.nodes: NodeTable = nodes
        self.names: Names = Names(records, world, nodes.present)
        receipt_audit = ReceiptAudit(records, world, identity.call(), nodes.table)
        nodes.listen(receipt_audit.audit)
        self.uploads: FileUploads = FileUploads(records, world, self.names, nodes.table.verify_key, receipt_audit)
        self.part_uploads: PartUploads = PartUploads(records, world, self.names, self.uploads)
        self.copying: Sharing = Sharing(records, world, self.names)
        self.contents: Contents = Contents(records, world, self.names, self.uploads, nodes.present)
        self.healer: Healer = Healer(records, nodes, self.uploads, identity, world)
        self.life = self.healer.life
        self.keys: StoredKeys = StoredKeys(records, world.limits)
        self.fsck: Fsck = Fsck(records, world, nodes.present)
        self.rebuilding: Rebuilding | None = None
        if self.healer.internal_blobs is not None:
            patient = records.patiently(RetryContext(world.clock, world.ids))
            names, fsck = Names(patient, world, nodes.present), Fsck(patient, world, nodes.present)
            contents = Contents(patient, world, names, self.uploads, nodes.present)
            tools = Tools(names, contents, fsck, self.healer.internal_blobs, self.healer.heed, records)
            self.rebuilding = Rebuilding(LibrarianContext(patient, nodes, world, identity.call()), tools)
