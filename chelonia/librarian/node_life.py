"""The end of a Shepherd, decided by an administrator: emptied first (`drain`), or declared lost for good (`forget`).

Forgetting goes page by page, each in bounded transacts on what was read, so it can be interrupted and begun again; the
identity is burnt last, when nothing in the metadata names the Shepherd any more. What would be lost by it stays,
and the Shepherd with it, unless that was accepted.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from chelonia.core import bounds
from chelonia.core.ahash import Element
from chelonia.core.caller import Call, Role
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.healing import ForgetPage, Loss
from chelonia.core.ids import BlobId, Dn, Ms, ReferenceId, RequestKey, ServiceId, blob_object, shepherd_object
from chelonia.core.librarian import NodeView
from chelonia.core.placement import DRAINED
from chelonia.librarian import registry
from chelonia.librarian.blobs import blob_of
from chelonia.librarian.elements import check, drop, empty, erase, put
from chelonia.librarian.forgetting import part, records_dropped
from chelonia.librarian.health import StoredNode
from chelonia.librarian.records import Draft, Records
from chelonia.librarian.service_nodes import Nodes
from chelonia.librarian.world import World

_LOG = logging.getLogger(__name__)

PART = 100
"""Blobs whose locations go in one transact: few enough that others seldom get in between."""


class NodeLife:
    """Drains and forgets Shepherds."""

    def __init__(self, records: Records, nodes: Nodes, world: World) -> None:
        self._records = records
        self._nodes = nodes
        self._world = world

    # --- draining ---------------------------------------------------------------------------------------------------

    async def drain(self, call: Call, shepherd: ServiceId, *, on: bool) -> None:
        """Have a Shepherd emptied, or no longer. Raises: NOT_FOUND."""
        stored = self._known("drain", shepherd)
        since = (stored.drain_ms or self._world.clock.now_ms()) if on else Ms(0)

        async def build() -> Draft:
            return Draft((put(shepherd_object(shepherd), "node", "drain_ms", str(since)),), memo=shepherd)

        await self._records.apply(call, build)
        _LOG.info("shepherd %s: %s", shepherd, "is drained from now on" if on else "is no longer drained")
        self._nodes.decided(shepherd, replace(stored, drain_ms=since))

    async def told(self, call: Call, views: tuple[NodeView, ...]) -> tuple[NodeView, ...]:
        """The same, those that are drained and empty called so."""
        empty = {view.shepherd for view in views if view.drain and await self._empty(call, view.shepherd)}
        return tuple(replace(view, drain=DRAINED) if view.shepherd in empty else view for view in views)

    async def _empty(self, call: Call, shepherd: ServiceId) -> bool:
        """Whether the metadata names nothing on a Shepherd any more, nor anything it has still to erase."""
        obj = shepherd_object(shepherd)
        pages = [await self._records.scan(call, obj, section, "", 1) for section in ("file", "erase")]
        return not any(page.items for page in pages)

    # --- forgetting -------------------------------------------------------------------------------------------------

    async def forget(
        self, call: Call, shepherd: ServiceId, after: str, *, check_only: bool, accept_loss: bool
    ) -> ForgetPage:
        """One page of forgetting a Shepherd. Raises: NOT_FOUND; CONFLICT while it is alive."""
        known = self._known("forget", shepherd)
        call = replace(call, request_key=RequestKey(""))  # several transacts; a repeated step does no harm
        if self._nodes.present(shepherd):
            cause = "it is alive; stop it first, and to lose nothing drain it before (admin node drain)"
            raise CheloniaError(Kind.CONFLICT, "forget", shepherd, cause)
        page = await self._records.scan(call, shepherd_object(shepherd), "file", after, bounds.REFERENCES_PAGE)
        losses: list[Loss] = []
        for start in range(0, len(page.items), PART):
            items = page.items[start : start + PART]
            losses += await self._part(call, shepherd, items, change=not check_only, accept_loss=accept_loss)
        forgotten = False
        if not page.more and not check_only:
            forgotten = await self._burn(call, shepherd, known.dn)
        last = page.items[-1][0] if page.more and page.items else ""
        return ForgetPage(len(page.items), tuple(losses), last, forgotten)

    async def _part(
        self, call: Call, shepherd: ServiceId, items: Sequence[tuple[str, str]], *, change: bool, accept_loss: bool
    ) -> list[Loss]:
        """Part the Shepherd from some of its blobs. Returns what is or would be lost."""
        losses: list[Loss] = []

        async def build() -> Draft:
            losses.clear()
            elements: list[Element] = []
            kept: set[BlobId] = set()
            ids = dict.fromkeys(blob_object(BlobId(blob)) for _, blob in items)
            for blob in await self._records.get(call, list(ids)):
                parting = part(blob, shepherd, self._nodes.present)
                if parting.loss is not None:
                    losses.append(parting.loss)
                if parting.loss is not None and not accept_loss:
                    kept.add(blob_of(blob))
                else:
                    elements += parting.elements
            gone = [ReferenceId(reference) for reference, blob in items if BlobId(blob) not in kept]
            return Draft([*elements, *records_dropped(shepherd, gone)] if change else ())

        await self._records.apply(call, build)
        for loss in losses if change and accept_loss else ():
            _LOG.warning("file %s (%s) is lost with %s", loss.name, loss.guid, shepherd)
        return losses

    async def _burn(self, call: Call, shepherd: ServiceId, dn: Dn) -> bool:
        """The Shepherd is no more, if nothing names it: its outbox, its object, its identity. Returns whether it is."""
        obj = shepherd_object(shepherd)
        while True:
            page = await self._records.scan(call, obj, "erase", "", bounds.REFERENCES_PAGE)
            if not page.items:
                break
            dropped = [drop(obj, "erase", key) for key, _ in page.items]
            await self._records.attempt(call, Draft(dropped))
        burnt = [
            registry.forget_record(record)
            for record in self._nodes.registry.records
            if record.role is Role.SHEPHERD and record.service_id == shepherd and (record.approved or record.dn == dn)
        ]
        draft = Draft([check(obj, empty("file"), empty("erase")), erase(obj), *burnt])
        if not (await self._records.attempt(call, draft)).applied:
            return False
        _LOG.info("shepherd %s is forgotten; its identity is never accepted again", shepherd)
        await self._nodes.refresh(call)
        return True

    def _known(self, op: str, shepherd: ServiceId) -> StoredNode:
        stored = self._nodes.table.stored(shepherd)
        if stored is None:
            raise CheloniaError(Kind.NOT_FOUND, op, shepherd, "no such Shepherd is registered")
        return stored
