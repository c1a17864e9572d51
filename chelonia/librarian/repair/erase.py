"""The erasure outboxes: order each Shepherd to erase, and strike off the orders that it has confirmed.

Only orders in an outbox erase. The order is the tombstone: it goes, with the Shepherd's `file` record, in one transact,
when the Shepherd has confirmed. Only the repair leader dispatches. A surplus copy, or one not reported in time, is
given up for others. When these are gone after all, its order is taken back (`sorted_out`). Newer metadata, since
replaced by a backup, may have had them erased. Or they were lost while its Shepherd was away.

Invariants:
- An order is of the same generation of the metadata as its outbox: a backup restored since may name the blob again.
- An order struck off still stands. Its copy is gone from the disk of the reporting start. Or that start has yet to
  compare its inventory: its disk may be an old image.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from chelonia.core import bounds
from chelonia.core.cluster.position import Position
from chelonia.core.cluster.replicas import Location, ReplicaState
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import SHEPHERD_PREFIX, BlobId, Ms, ServiceId, blob_object, shepherd_object
from chelonia.core.metadata import Needed, StoredObject
from chelonia.core.ports.ahash import ChangeType, Element
from chelonia.core.ports.shepherd import Authority
from chelonia.core.timing.clock import within
from chelonia.librarian.metadata.blobs import blob_of, locations_of
from chelonia.librarian.metadata.elements import drop, isset, on_version, outbox_reference, put
from chelonia.librarian.metadata.records import LibrarianIdentity, PlannedTransact, Records
from chelonia.librarian.presence import reports
from chelonia.librarian.presence.nodes import NodeTable
from chelonia.librarian.repair.guard import Backoffs
from chelonia.librarian.repair.plan.decide import EXPIRED, SURPLUS
from chelonia.librarian.world import World

_LOG = logging.getLogger(__name__)

DELETED = "deleted"
"""Status of a confirmed erasure."""
SPARED: Final = (SURPLUS, EXPIRED, ReplicaState.STALLED.value)
"""Reasons to erase what may be a good copy: the order stands as long as there are others."""


class Erasers:
    """Dispatches the outboxes of all Shepherds."""

    def __init__(self, records: Records, nodes: NodeTable, identity: LibrarianIdentity, world: World) -> None:
        self._records = records
        self._nodes = nodes
        self._call = identity.call().strongly()  # a Shepherd would obey a stale order like a fresh one
        self._world = world
        self._due: dict[ServiceId, Ms] = {}
        self._after: dict[ServiceId, str] = {}
        self._found: dict[ServiceId, int] = {}
        pauses = (world.settings.backoff_ms, world.settings.backoff_max_ms)
        self._backoffs = Backoffs(*pauses)
        self._stuck = Backoffs(*pauses)
        """Of single orders: one that cannot be carried out holds up no other."""

    @property
    def waiting(self) -> int:
        """Erasures in the outboxes of registered Shepherds when they were last read."""
        return sum(self._found.get(shepherd, 0) for shepherd in self._nodes.table.shepherds())

    def flag(self, elements: Iterable[Element]) -> None:
        """Look soon at the outboxes that a transact has filled."""
        for element in elements:
            if element.section == "erase" and element.change is ChangeType.SET:
                self.wake(ServiceId(element.object.removeprefix(SHEPHERD_PREFIX)))

    def wake(self, shepherd: ServiceId) -> None:
        """Look at this Shepherd's outbox soon."""
        self._due[shepherd] = Ms(0)
        self._backoffs.worked(shepherd)

    async def dispatch(self, now: Ms, lease: Element) -> None:
        """Send one batch to each Shepherd that is present and due."""
        due = [
            shepherd
            for shepherd in self._nodes.table.shepherds()
            if self._nodes.present(shepherd)
            and now >= self._due.get(shepherd, Ms(0))
            and not self._backoffs.active(shepherd, now)
        ]
        await asyncio.gather(*(self._dispatch_one(shepherd, now, lease) for shepherd in due))

    async def _dispatch_one(self, shepherd: ServiceId, now: Ms, lease: Element) -> None:
        self._due[shepherd] = Ms(now + self._world.settings.outbox_interval_ms)
        after, generation = self._after.get(shepherd, ""), self._records.position.generation
        obj = shepherd_object(shepherd)
        page = await self._records.scan(self._call, obj, "erase", after, bounds.ERASURES_PER_CALL_MAX)
        self._found[shepherd] = len(page.items)
        self._after[shepherd] = page.after
        if page.more:
            self._due[shepherd] = Ms(0)
        if not page.items:
            return
        blobs = await self._records.get(self._call, [blob_object(blob) for blob in spared_blobs(page.items)])
        keys, to_relist = sorted_out(page.items, {blob_of(blob): blob for blob in blobs}, self._nodes.proven)
        keys = [key for key in keys if not self._stuck.active(f"{shepherd} {key}", now)]
        boot = reports.reached(await self._records.one(self._call, obj, (Needed("report", "boot"),))).boot
        position = await self._records.refresh_position(self._call)
        if position.generation != generation:
            self._after[shepherd] = ""
            return
        try:
            absent = await self._take_back(shepherd, to_relist, lease)
            confirmed = await self._erase(shepherd, keys, position) if keys else []
            self._remember(shepherd, keys, confirmed, now)
        except CheloniaError as error:
            _LOG.info("shepherd %s erases nothing now: %s", shepherd, error)
            self._backoffs.failed(shepherd, now)
            self._after[shepherd] = ""
            return
        elements = [lease, *struck_off(shepherd, boot, [*confirmed, *absent])]
        if confirmed:
            elements.append(reports.has_obeyed(shepherd, position))
        if (confirmed or absent) and (await self._records.attempt(self._call, PlannedTransact(elements))).applied:
            self._found[shepherd] -= len(confirmed) + len(absent)

    async def _take_back(self, shepherd: ServiceId, to_relist: Mapping[str, StoredObject], lease: Element) -> list[str]:
        """List copies again that their Shepherd still has; returns the keys of those that it lacks. These were erased
        before older metadata were restored. Orders wait meanwhile, for they may lie in quarantine."""
        if not to_relist:
            return []
        queries = tuple((key, outbox_reference(key)) for key in to_relist)
        stat = self._world.directory.shepherd(shepherd).stat(self._call, queries)
        outcomes = await within(self._world.clock, self._world.settings.claim_ms, stat)
        for outcome in outcomes:
            blob = to_relist.get(outcome.request_id)
            if blob is not None and outcome.found and outcome.state == ReplicaState.ALIVE.value:
                elements = [lease, *listed_again(shepherd, outcome.request_id, blob)]
                if (await self._records.attempt(self._call, PlannedTransact(elements))).applied:
                    _LOG.warning("the last copy of %s stays, on %s: its erasure is called off", blob.id, shepherd)
        return [o.request_id for o in outcomes if o.request_id in to_relist and not o.found]

    async def _erase(self, shepherd: ServiceId, keys: list[str], position: Position) -> list[str]:
        """Order the erasures; returns the outbox keys that the Shepherd confirmed, or can never confirm."""
        wanted = tuple((key, outbox_reference(key)) for key in keys)
        order = self._world.directory.shepherd(shepherd).delete(self._call, wanted, Authority(position))
        outcomes = await within(self._world.clock, self._world.settings.claim_ms, order)
        sent = dict.fromkeys(keys)
        confirmed = [o.request_id for o in outcomes if o.status == DELETED and o.request_id in sent]
        for outcome in outcomes:
            if outcome.status == DELETED or outcome.request_id not in sent:
                continue
            if outcome.kind == Kind.BAD_REQUEST.value:  # no replica can have this name: the order would stay for ever
                self._world.limits.met("erasures_void", shepherd, "an order was dropped")
                _LOG.warning("shepherd %s: order %r is void: %s", shepherd, outcome.request_id, outcome.status)
                confirmed.append(outcome.request_id)
            else:
                _LOG.info("shepherd %s did not erase %s: %s", shepherd, outcome.request_id, outcome.status)
        return confirmed

    def _remember(self, shepherd: ServiceId, keys: list[str], confirmed: list[str], now: Ms) -> None:
        """Spare for a while, ever longer, orders that failed, and a Shepherd that erases nothing at all."""
        done = dict.fromkeys(confirmed)
        if keys and not done:
            self._backoffs.failed(shepherd, now)
        for key in keys:
            self._stuck.worked(f"{shepherd} {key}") if key in done else self._stuck.failed(f"{shepherd} {key}", now)


def spared_blobs(orders: Iterable[tuple[str, str]]) -> tuple[BlobId, ...]:
    """Return the blobs of which spared copies are to be erased. Args: `orders`: keys and values of an
    outbox."""
    parted = (value.partition(" ") for _, value in orders)
    return tuple(dict.fromkeys(BlobId(blob) for blob, _, reason in parted if reason in SPARED))


def sorted_out(
    orders: Iterable[tuple[str, str]], blobs: Mapping[BlobId, StoredObject], proven: Callable[[ServiceId], bool]
) -> tuple[list[str], dict[str, StoredObject]]:
    """Return the orders of an outbox to send now, and those to take back, with their blobs.

    A spared copy goes when another is listed on a proven Shepherd, waits while others are only listed, and stays when
    none is.
    """
    out: list[str] = []
    back: dict[str, StoredObject] = {}
    for key, value in orders:
        blob = next((blobs[named] for named in spared_blobs([(key, value)]) if named in blobs), None)
        if blob is None or not blob.exists:
            out.append(key)
            continue
        homes = [place.shepherd for place, state in locations_of(blob) if state is ReplicaState.ALIVE]
        if any(map(proven, homes)):
            out.append(key)
        elif not homes:
            back[key] = blob
    return out, back


def listed_again(shepherd: ServiceId, key: str, blob: StoredObject) -> list[Element]:
    """Take an order back, on condition that it still stands and the blob is as read."""
    still = isset("erase", key)
    place = Location(shepherd, outbox_reference(key))
    alive = put(blob.id, "locations", str(place), ReplicaState.ALIVE.value)
    return [drop(shepherd_object(shepherd), "erase", key, still), *on_version([alive], blob)]


def struck_off(shepherd: ServiceId, boot: int, keys: Iterable[str]) -> list[Element]:
    """Strike obeyed or void orders off a Shepherd's outbox, on condition that all of them still stand.

    Args:
        boot: the start that reported when they went out.
        keys: of the outbox, as confirmed.
    """
    obj = shepherd_object(shepherd)
    elements = [reports.still_of(shepherd, boot)]
    for key in keys:
        elements += [drop(obj, "erase", key, isset("erase", key)), drop(obj, "file", outbox_reference(key))]
    return elements
