"""The end of a Shepherd by an administrator's order: emptied first (`drain`), or declared lost for good (`forget`).

Forgetting goes page by page, each in bounded transacts on what was read, so that it can be interrupted and begun again.
The identity is burnt last, when nothing in the metadata names the Shepherd any more. Blobs that would be lost keep
their locations, and the Shepherd its identity, until that loss is accepted.

A Librarian that has not heard of it may still write of the Shepherd, so the repair leader looks again, and `sweep`s. It
loses nothing either: it logs blobs that only the forgotten Shepherd has. They go when an administrator orders
forgetting once more and accepts the loss.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from chelonia.core import bounds
from chelonia.core.caller import Call, Role
from chelonia.core.cluster.healing import ForgetPage, Loss
from chelonia.core.cluster.placement import DRAINED
from chelonia.core.cluster.replicas import Location
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import (
    REBUILD_OBJECT,
    SERVICES_OBJECT,
    BlobId,
    Dn,
    Ms,
    ReferenceId,
    RequestKey,
    ServiceId,
    blob_object,
    shepherd_object,
)
from chelonia.core.metadata import Needed, StoredObject
from chelonia.core.ports.ahash import Element
from chelonia.core.ports.librarian import NodeView
from chelonia.core.timing.pacing import Backoff
from chelonia.core.values import replace
from chelonia.librarian.metadata import rebuild_record
from chelonia.librarian.metadata.blobs import blob_of, locations_of
from chelonia.librarian.metadata.elements import check, drop, empty, erase, outbox_reference, put, unset, version
from chelonia.librarian.metadata.records import PlannedTransact, Records
from chelonia.librarian.presence import registry
from chelonia.librarian.presence.nodes import NodeTable
from chelonia.librarian.recovery.removal.decide import part, records_dropped
from chelonia.librarian.world import World

_LOG = logging.getLogger(__name__)

PART = 100
"""Blobs whose locations go in one transact: few enough that others seldom get in between."""


@dataclass(frozen=True, slots=True)
class _Leave:
    """Terms of a removal: whether to change anything, whether losses are accepted, conditions (`still`)."""

    shepherd: ServiceId
    change: bool
    accept_loss: bool
    still: tuple[Element, ...] = ()


@dataclass(frozen=True, slots=True)
class _Left:
    """Files that sweeps have to leave of a forgotten Shepherd; `due_ms` (monotonic): time of the next look."""

    files: int
    due_ms: Ms
    backoff: Backoff


class NodeLife:
    """Drains and forgets Shepherds."""

    def __init__(self, records: Records, nodes: NodeTable, world: World) -> None:
        self._records = records
        self._nodes = nodes
        self._world = world
        self._left: dict[ServiceId, _Left] = {}

    # --- draining ---------------------------------------------------------------------------------------------------

    async def drain(self, call: Call, shepherd: ServiceId, *, on: bool) -> None:
        """Begin or end draining a Shepherd. Raises: NOT_FOUND."""
        stored = self._nodes.require("drain", shepherd)
        since = (stored.drain_ms or self._world.clock.now_ms()) if on else Ms(0)

        async def build() -> PlannedTransact:
            return PlannedTransact((put(shepherd_object(shepherd), "node", "drain_ms", str(since)),), memo=shepherd)

        await self._records.apply(call, build)
        _LOG.info("shepherd %s: %s", shepherd, "is drained from now on" if on else "is no longer drained")
        self._nodes.decided(shepherd, drain_ms=since)

    async def mark_drained(self, call: Call, views: tuple[NodeView, ...]) -> tuple[NodeView, ...]:
        """Return the views, with drained Shepherds that are empty marked so."""
        empty = {view.shepherd for view in views if view.drain and await self._empty(call, view.shepherd)}
        return tuple(replace(view, drain=DRAINED) if view.shepherd in empty else view for view in views)

    async def _empty(self, call: Call, shepherd: ServiceId) -> bool:
        """Whether the metadata names neither replicas nor pending erasures of a Shepherd."""
        obj = shepherd_object(shepherd)
        pages = [await self._records.scan(call, obj, section, "", 1) for section in ("file", "erase")]
        return not any(page.items for page in pages)

    # --- forgetting -------------------------------------------------------------------------------------------------

    async def forget(
        self, call: Call, shepherd: ServiceId, after: str, *, check_only: bool, accept_loss: bool
    ) -> ForgetPage:
        """Forget a page of a Shepherd, or of late records of it. Raises: NOT_FOUND; CONFLICT while it is alive."""
        call = call.keyed(RequestKey(""))  # several transacts; a repeated step does no harm
        still = await self._forgotten(call.strongly(), shepherd) if self._nodes.table.stored(shepherd) is None else ()
        if still:
            leave = _Leave(shepherd, change=not check_only, accept_loss=accept_loss, still=still)
            page = await self._page(call.strongly(), leave, after)
            forgotten = not page.after and not check_only and await self._end(call, shepherd, still, ())
            return replace(page, forgotten=forgotten)
        node = self._nodes.require("forget", shepherd)
        if self._nodes.present(shepherd):
            cause = "it is alive; stop it first, and to lose nothing drain it before (admin node drain)"
            raise CheloniaError(Kind.CONFLICT, "forget", shepherd, cause)
        leave = _Leave(shepherd, change=not check_only, accept_loss=accept_loss)
        page = await self._page(call, leave, after)
        forgotten = not page.after and not check_only and await self._burn(call, shepherd, node.dn)
        return replace(page, forgotten=forgotten)

    async def sweep(self, call: Call, lease: Element) -> None:
        """Remove late records of forgotten Shepherds, by Librarians that had not heard of it.

        An identity that restored metadata know as approved is left alone.
        """
        now, left = self._world.clock.monotonic_ms(), self._left
        due = [s for s in self._nodes.registry.forgotten() if s not in left or left[s].due_ms <= now]
        stored = await self._records.get(call, [shepherd_object(shepherd) for shepherd in due], (Needed("node"),))
        for shepherd in (shepherd for shepherd, obj in zip(due, stored, strict=True) if obj.exists):
            await self._sweep_one(call.strongly(), shepherd, lease)

    def look_again(self) -> None:
        """Let the next sweep look at everything: a Shepherd came, went or changed, and may have other copies."""
        self._left = {shepherd: replace(left, due_ms=Ms(0)) for shepherd, left in self._left.items()}

    async def _forgotten(self, call: Call, shepherd: ServiceId) -> tuple[Element, ...]:
        """The conditions for removing records of a forgotten Shepherd; empty when it is not forgotten."""
        services = await self._records.one(call, SERVICES_OBJECT)
        if shepherd not in registry.read(services).forgotten():
            return ()
        return (check(SERVICES_OBJECT, version(services.version)),)

    async def _sweep_one(self, call: Call, shepherd: ServiceId, lease: Element) -> None:
        still = await self._forgotten(call, shepherd)
        if not still:
            return
        leave = _Leave(shepherd, change=True, accept_loss=False, still=(lease, *still))
        page = await self._page(call, leave, "")
        files, example = len(page.losses), page.losses[:1]
        while page.after:
            page = await self._page(call, leave, page.after)
            files, example = files + len(page.losses), example or page.losses[:1]
        self._leave(shepherd, files, example)
        if await self._end(call, shepherd, leave.still, ()):
            _LOG.info("shepherd %s: what was written of it after it was forgotten is gone", shepherd)

    def _leave(self, shepherd: ServiceId, files: int, example: Sequence[Loss]) -> None:
        """Warn of files that a sweep must leave whenever their number changes; otherwise look again ever later."""
        before, settings = self._left.pop(shepherd, None), self._world.settings
        if not files:
            return
        if before is not None and files == before.files:
            backoff = before.backoff
        else:
            backoff = Backoff(settings.services_interval_ms, settings.survey_interval_ms)
            _LOG.warning(
                "shepherd %s is forgotten, and there is no other verified copy within reach of %d files that were "
                "listed there since, such as %s: bring others back that have one, or give them up: "
                "chelonia admin node forget %s --accept-loss",
                shepherd, files, example[0].name, shepherd,
            )  # fmt: skip
        self._left[shepherd] = _Left(files, Ms(self._world.clock.monotonic_ms() + backoff.failed()), backoff)

    async def _page(self, call: Call, leave: _Leave, after: str) -> ForgetPage:
        """Part the Shepherd from a page of its blobs; from fewer where names of lost files fill an answer."""
        page = await self._records.scan(call, shepherd_object(leave.shepherd), "file", after, bounds.REFERENCES_PAGE)
        losses: list[Loss] = []
        done = 0
        while done < len(page.items) and _name_bytes(losses) < bounds.LOSS_NAMES_BYTES_MAX:
            items = page.items[done : done + PART]
            losses += await self._part(call, leave, items)
            done += len(items)
        last = page.items[done - 1][0] if done < len(page.items) else page.after
        return ForgetPage(done, tuple(losses), last, forgotten=False)

    async def _part(self, call: Call, leave: _Leave, items: Sequence[tuple[str, str]]) -> list[Loss]:
        """Part the Shepherd from some of its blobs. Returns: actual or possible losses.

        Until it is burnt, a replica to be erased there keeps its record: should the Shepherd come back, its report must
        not list it again.
        """
        shepherd = leave.shepherd
        losses: list[Loss] = []

        async def build() -> PlannedTransact:
            losses.clear()
            elements: list[Element] = []
            kept: set[BlobId] = set()
            listed: set[str] = set()
            ids = dict.fromkeys(blob_object(BlobId(blob)) for _, blob in items)
            for blob in await self._records.get(call, list(ids)):
                parting = part(blob, shepherd, self._nodes.proven)
                listed.update(location.reference for location in _listed(blob, shepherd))
                if parting.loss is not None:
                    losses.append(parting.loss)
                if parting.loss is not None and not leave.accept_loss:
                    kept.add(blob_of(blob))
                else:
                    elements += parting.elements
            gone = [
                ReferenceId(reference)
                for reference, blob in items
                if BlobId(blob) not in kept and (leave.still or reference in listed)
            ]
            elements += records_dropped(shepherd, gone)
            return PlannedTransact([*elements, *leave.still] if leave.change and elements else ())

        await self._records.apply(call, build)
        for loss in losses if leave.change and leave.accept_loss else ():
            _LOG.warning("file %s (%s) is lost with %s", loss.name, loss.guid, shepherd)
        return losses

    async def _burn(self, call: Call, shepherd: ServiceId, dn: Dn) -> bool:
        """Burn the identity, if nothing is listed there. Returns: whether it is burnt. The Shepherd keeps its outbox as
        long as anything stays: it may come back, and is to erase deleted replicas then."""
        if await self._stays(call, shepherd):
            return False
        burnt = [
            registry.forget_record(record)
            for record in self._nodes.registry.records
            if record.role is Role.SHEPHERD and record.service_id == shepherd and (record.approved or record.dn == dn)
        ]
        burnt += [
            drop(REBUILD_OBJECT, section, shepherd) for section in (rebuild_record.SHEPHERDS, rebuild_record.REPORTED)
        ]
        if not await self._end(call, shepherd, (), burnt):
            return False
        _LOG.info("shepherd %s is forgotten; its identity is never accepted again", shepherd)
        await self._nodes.refresh(call)
        return True

    async def _stays(self, call: Call, shepherd: ServiceId) -> bool:
        """Whether any blob is listed on a Shepherd."""
        async for items in self._records.pages(call, shepherd_object(shepherd), "file", bounds.REFERENCES_PAGE):
            ids = dict.fromkeys(blob_object(BlobId(blob)) for _, blob in items)
            found = await self._records.get(call, list(ids), (Needed("locations"),))
            if any(_listed(blob, shepherd) for blob in found):
                return True
        return False

    async def _end(self, call: Call, shepherd: ServiceId, still: Sequence[Element], burnt: Sequence[Element]) -> bool:
        """Empty the Shepherd's outbox, then erase its object along with `burnt` elements, if nothing names it. With
        `burnt` its records of unlisted replicas go too; without, they have gone before."""
        obj = shepherd_object(shepherd)
        while (page := await self._records.scan(call, obj, "erase", "", bounds.REFERENCES_PAGE)).items:
            dropped = [drop(obj, "erase", key) for key, _ in page.items]
            dropped += [drop(obj, "file", outbox_reference(key)) for key, _ in page.items]
            if not (await self._records.attempt(call, PlannedTransact([*dropped, *still]))).applied:
                return False
        while burnt and (page := await self._records.scan(call, obj, "file", "", bounds.REFERENCES_PAGE)).items:
            places = {Location(shepherd, ReferenceId(reference)): BlobId(blob) for reference, blob in page.items}
            unlisted = [check(blob_object(blob), unset("locations", str(place))) for place, blob in places.items()]
            dropped = records_dropped(shepherd, [place.reference for place in places])
            if not (await self._records.attempt(call, PlannedTransact([*unlisted, *dropped, *still]))).applied:
                return False
        draft = PlannedTransact([check(obj, empty("file"), empty("erase")), erase(obj), *burnt, *still])
        return (await self._records.attempt(call, draft)).applied


def _name_bytes(losses: Sequence[Loss]) -> int:
    """Bytes of these names in an answer."""
    return sum(len(loss.name.encode("utf-8", "surrogatepass")) for loss in losses)


def _listed(blob: StoredObject, shepherd: ServiceId) -> list[Location]:
    return [location for location, _ in locations_of(blob) if location.shepherd == shepherd]
