"""The node half of the Librarian: heartbeats, numbered reports, inventories, the registry, maintenance.

`health`, `reports` and `registry` decide. Heartbeats stay in memory; only a Shepherd's domain and key are written, when
they change.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import msgspec

from chelonia.core import bounds
from chelonia.core.caller import Call, Role
from chelonia.core.cluster.replicas import Location, ReplicaState
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import (
    ANONYMOUS,
    REBUILD_OBJECT,
    SERVICES_OBJECT,
    BlobId,
    Ms,
    ReferenceId,
    ServiceId,
    blob_object,
    shepherd_object,
)
from chelonia.core.metadata import Needed, StoredObject
from chelonia.core.ports.librarian import (
    REFUSED_FORGOTTEN,
    REFUSED_STORE,
    Heartbeat,
    HeartbeatAnswer,
    InventoryItem,
    InventoryPage,
    NodeView,
    Report,
    ReportAnswer,
    ServiceRecord,
)
from chelonia.core.values import replace
from chelonia.librarian.metadata.elements import put
from chelonia.librarian.metadata.rebuild_record import REPORTED, may_have_named, still_named, under_way
from chelonia.librarian.metadata.records import PlannedTransact, Records
from chelonia.librarian.presence import identity, registry, reports
from chelonia.librarian.presence.health import FlapRule, HealthTable, RecordedHealth, StoredNode, Transition
from chelonia.librarian.presence.identity import BURNT, Recorded, Voices
from chelonia.librarian.presence.registry import IdentityRegistry
from chelonia.librarian.presence.reports import ReportContext, ReportPosition
from chelonia.librarian.world import World

_LOG = logging.getLogger(__name__)

SERVICE_ID_BYTES_MAX = 1000
"""A service id is a URL; with a DN it must fit into one property name."""
ASK_RECONCILIATION = -1
"""`next_report_ms` that asks a Shepherd for its differences, as in the original."""

OUTLIVED = (
    "it has seen metadata of generation {seen}, and these are of generation {own}: it erases nothing that they order; "
    "raise the generation as docs/operate/all-metadata-lost.md says (step 3), unless newer metadata are still there"
)

Changed = Callable[[ServiceId], None]
"""Listener that gets each Shepherd whose replicas must be planned again."""


class NodeTable:
    """The Shepherds and all registered services, as this Librarian knows them."""

    def __init__(self, records: Records, world: World, started_ms: Ms) -> None:
        self._records = records
        self._world = world
        rule = FlapRule(world.settings.flap_returns_max, world.settings.flap_window_ms)
        grace_ms = world.settings.start_grace_ms
        self.table = HealthTable(world.settings.lease_ms, started_ms, rule, start_grace_ms=grace_ms)
        self._voices = Voices(world.settings.lease_ms)
        self.registry = IdentityRegistry()
        """The registry as last read."""
        self._reached: dict[ServiceId, ReportPosition] = {}
        self._listeners: list[Changed] = []

    def listen(self, listener: Changed) -> None:
        """Call `listener` with each Shepherd whose replicas must be planned again."""
        self._listeners.append(listener)

    def present(self, shepherd: ServiceId) -> bool:
        """Return whether a Shepherd can be expected to answer now."""
        return self.table.present(shepherd, self._world.clock.monotonic_ms())

    def proven(self, shepherd: ServiceId) -> bool:
        """Return whether the recorded replicas of a Shepherd are reliable enough to give up other copies for them."""
        generation = self._records.position.generation
        return self.table.proven(shepherd, self._world.clock.monotonic_ms(), generation)

    def views(self) -> tuple[NodeView, ...]:
        """Return all Shepherds, ordered by service id."""
        now, voices = self._world.clock.monotonic_ms(), self._voices

        def recorded(shepherd: ServiceId) -> RecordedHealth:
            trouble = voices.trouble(shepherd, now) or self._disobeys(shepherd)
            return RecordedHealth(voices.recorded(shepherd).store, trouble)

        return self.table.views(now, self._world.clock.now_ms(), recorded)

    def _disobeys(self, shepherd: ServiceId) -> str:
        """The reason why a Shepherd erases nothing that these metadata order, "" while it does."""
        seen, own = self.table.last_beat(shepherd).compared, self._records.position.generation
        return OUTLIVED.format(seen=seen, own=own) if seen > own else ""

    # --- the registry -----------------------------------------------------------------------------------------------

    async def refresh(self, call: Call, records: Records | None = None) -> None:
        """Read the registry and the stored state of every Shepherd again, by these records or its own."""
        records = records or self._records
        self.registry = registry.read(await records.one(call, SERVICES_OBJECT))
        shepherds = self.registry.shepherds()
        ids = [shepherd_object(shepherd) for shepherd in shepherds]
        stored = await records.get(call, ids, (Needed("node"),))
        for shepherd, obj in zip(shepherds, stored, strict=True):
            self._voices.record(shepherd, identity.read(obj))
        before = self.table.shepherds()
        self.table.load(
            {s: _stored_node(record, obj) for (s, record), obj in zip(shepherds.items(), stored, strict=True)}
        )
        for shepherd in self.table.shepherds():
            if shepherd not in before:
                self._changed(shepherd)

    def services(self) -> tuple[ServiceRecord, ...]:
        """Return all registered identities, ordered by role and id."""
        return self.registry.records

    def librarians(self) -> tuple[ServiceId, ...]:
        """Return all approved Librarians."""
        approved = (r.service_id for r in self.registry.records if r.role is Role.LIBRARIAN and r.approved)
        return tuple(dict.fromkeys(approved))

    async def approve(self, call: Call, record: ServiceRecord) -> None:
        _check_identity(record)

        async def build() -> PlannedTransact:
            await self.refresh(call)
            registered = self.registry.find(record.role, record.service_id, record.dn)
            if registered is not None and registered.forgotten:
                raise CheloniaError(Kind.DENIED, "approve", record.service_id, BURNT)
            return PlannedTransact((registry.set_record(record),), memo=record.service_id)

        await self._records.apply(call, build)
        word = "approved" if record.approved else "withdrawn"
        _LOG.info("service %s role=%s id=%s dn=%s", word, record.role.value, record.service_id, record.dn)
        await self.refresh(call)

    async def bootstrap(self, call: Call, records: tuple[ServiceRecord, ...]) -> None:
        """Register the identities of the configuration that are not registered yet."""
        for record in records:
            _check_identity(record)
            await self._records.attempt(call, PlannedTransact((registry.add_record(record),)))

    async def _wait_for_approval(self, call: Call, shepherd: ServiceId) -> None:
        """Record an unknown identity as waiting, once."""
        record = ServiceRecord(Role.SHEPHERD, call.dn, shepherd, approved=False)
        if call.dn == ANONYMOUS or self.registry.find(Role.SHEPHERD, shepherd, call.dn):
            return
        _check_identity(record)
        _check_url(shepherd)
        settings, limits, elements = self._world.settings, self._world.limits, [registry.add_record(record)]
        if self.registry.refused(call.dn) >= settings.waiting_per_dn_max:
            limits.met("waiting_per_dn", call.dn, f"{shepherd} was refused")
            cause = f"{settings.waiting_per_dn_max} services of {call.dn} wait or were withdrawn; approve them first"
            raise CheloniaError(Kind.DENIED, "heartbeat", shepherd, cause)
        if len(self.registry.waiting) >= settings.waiting_max:
            other = self.registry.gives_way(call.dn)
            limits.met("waiting", call.dn, f"{other.service_id if other else shepherd} does not wait")
            if other is None:
                cause = "too many services wait for approval; approve or withdraw some"
                raise CheloniaError(Kind.DENIED, "heartbeat", shepherd, cause)
            _LOG.info("service waits no longer id=%s dn=%s: most that wait are of it", other.service_id, other.dn)
            elements.append(registry.drop_waiting(other))
        if (await self._records.attempt(call, PlannedTransact(elements))).applied:
            _LOG.info("service waiting role=shepherd id=%s dn=%s", shepherd, call.dn)
        await self.refresh(call)

    # --- heartbeats -------------------------------------------------------------------------------------------------

    async def heartbeat(self, call: Call, beat: Heartbeat) -> HeartbeatAnswer:
        """Note that a Shepherd lives; record an unknown identity as waiting. Raises: BAD_REQUEST, DENIED, CONFLICT."""
        _check_beat(beat)
        found = self.registry.find(Role.SHEPHERD, beat.shepherd, call.dn)
        if found is not None and found.approved:
            self._voices.arrives(beat)
        if found is None:
            await self._wait_for_approval(call, beat.shepherd)
        elif found.approved and self.table.comes_back(beat, self._world.clock.monotonic_ms()):
            found = await self._still_approved(call, found)
        if found is not None and found.forgotten:
            lease_ms, position = self._world.settings.lease_ms, self._records.position
            return HeartbeatAnswer(lease_ms, False, 0, position, REFUSED_FORGOTTEN, BURNT)
        if found is None or not found.approved:
            return HeartbeatAnswer(self._world.settings.lease_ms, False, 0, self._records.position)
        turned_away = await self._identified(call, beat)
        if turned_away is not None:
            return turned_away
        news = self.table.beat(beat, self._world.clock.monotonic_ms()) if not beat.trouble else None
        if news is not None:
            if beat.leaving:
                _LOG.info("shepherd says goodbye id=%s boot=%d", beat.shepherd, beat.boot)
                self.table.excuse(beat.shepherd, self.left_until_ms())
                self._changed(beat.shepherd)
            elif news.returned or news.new_boot or news.compared:
                _LOG.info("shepherd heard again id=%s boot=%d", beat.shepherd, beat.boot)
                self._changed(beat.shepherd)
            if news.changed:
                await self._announce(call, beat)
        return HeartbeatAnswer(self._world.settings.lease_ms, True, self._accepted(beat), self._records.position)

    async def _still_approved(self, call: Call, record: ServiceRecord) -> ServiceRecord | None:
        """The record of an approved identity that comes back: another Librarian may have burnt it while it was away."""
        stored = await self._records.one(call.strongly(), SERVICES_OBJECT, registry.needed(record))
        if registry.is_approved(stored, record):
            return record
        await self.refresh(call.strongly())
        return self.registry.find(record.role, record.service_id, record.dn)

    async def _identified(self, call: Call, beat: Heartbeat) -> HeartbeatAnswer | None:
        """None when it is this Shepherd that speaks, otherwise the answer to the impostor."""
        if beat.replaces:  # sent only until it is taken: older metadata may have been restored since we read
            await self._read_stores(call.strongly(), beat.shepherd)
        now = self._world.clock.monotonic_ms()  # a heartbeat that waited for the metadata is older than those since
        judged = self._voices.judge(beat, now)
        if judged.refused == REFUSED_STORE and await self._store_of(call, beat.shepherd, beat.store) == beat.store:
            judged = self._voices.judge(beat, now)
        if judged.refused:
            level = logging.WARNING if self._voices.refused(beat, judged, now) else logging.INFO
            _LOG.log(level, "heartbeat refused dn=%s: %s", call.dn, judged.cause)
            lease_ms, position = self._world.settings.lease_ms, self._records.position
            return HeartbeatAnswer(lease_ms, True, 0, position, judged.refused, judged.cause)
        if judged.record:
            if self._voices.is_overtaken(beat):
                cause = "another start spoke while this heartbeat waited; send the next"
                raise CheloniaError(Kind.CONFLICT, "heartbeat", beat.shepherd, cause)
            await self._record_store(call, beat, self._voices.recorded(beat.shepherd))
        if self._voices.accept(beat, now) and beat.trouble:
            _LOG.warning(
                "shepherd %s cannot tell anything of its replicas, it counts as away: %s", beat.shepherd, beat.trouble
            )
        return None

    async def _store_of(self, call: Call, shepherd: ServiceId, named: str) -> str:
        """The store on record; read again when it is not the one `named`: another Librarian may have taken it."""
        recorded = self._voices.recorded(shepherd)
        if named and recorded.store and named != recorded.store:
            recorded = await self._read_stores(call, shepherd)
        return recorded.store

    async def _read_stores(self, call: Call, shepherd: ServiceId) -> Recorded:
        obj = await self._records.one(call, shepherd_object(shepherd), (Needed("node"),))
        self._voices.record(shepherd, recorded := identity.read(obj))
        return recorded

    async def _record_store(self, call: Call, beat: Heartbeat, before: Recorded) -> None:
        """Record this Shepherd's store, on condition that the record is as `before`.

        Raises: CONFLICT when another store has just been recorded.
        """
        reported = await self._records.one(call.strongly(), shepherd_object(beat.shepherd), (Needed("report"),))
        last_boot = max(reports.reached(reported).boot, self._voices.boot(beat.shepherd, before.store))
        recorded, elements = identity.recording(beat, before, last_boot)
        if not (await self._records.attempt(call, PlannedTransact(elements))).applied:
            await self.refresh(call)
            raise CheloniaError(Kind.CONFLICT, "heartbeat", beat.shepherd, "its store is being recorded; try again")
        self._voices.record(beat.shepherd, recorded)
        self._reached.pop(beat.shepherd, None)
        if before.store:
            _LOG.warning(
                "shepherd %s has store %s in the place of %s, as an administrator said; what the old one held is lost",
                beat.shepherd, beat.store, before.store,
            )  # fmt: skip
        else:
            _LOG.info("shepherd %s has store %s", beat.shepherd, beat.store)

    async def _announce(self, call: Call, beat: Heartbeat) -> None:
        """Store a Shepherd's domain and key, so that they outlive this process."""
        obj = shepherd_object(beat.shepherd)
        elements = [put(obj, "node", "domain", beat.domain), put(obj, "node", "verify_key", beat.verify_key)]
        await self._records.attempt(call, PlannedTransact(elements))
        self.table.note(beat.shepherd, domain=beat.domain, verify_key=beat.verify_key)

    def _accepted(self, beat: Heartbeat) -> int:
        """The last report applied for this boot, as far as known here. No heartbeat waits for the A-Hash: its Shepherd
        sends no other meanwhile, and would count as away before there is a new master."""
        reached = self._reached.get(beat.shepherd)
        return reached.number if reached is not None and reached.boot == beat.boot else 0

    def _changed(self, shepherd: ServiceId) -> None:
        for listener in self._listeners:
            listener(shepherd)

    # --- transitions ------------------------------------------------------------------------------------------------

    def left_until_ms(self) -> Ms:
        """Return the time until which to wait for a Shepherd that announces its end now: a restart starts no copies."""
        return Ms(self._world.clock.now_ms() + self._world.settings.repair_delay_ms)

    def written(self, transition: Transition, since_ms: Ms, left_until_ms: Ms) -> None:
        """Note that this Librarian has written a transition."""
        self.decided(transition.shepherd, state=transition.state, since_ms=since_ms, left_until_ms=left_until_ms)

    async def maintenance(self, call: Call, shepherd: ServiceId, until_ms: Ms) -> None:
        """Announce or end planned absence."""
        self.require("maintenance", shepherd)

        async def build() -> PlannedTransact:
            element = put(shepherd_object(shepherd), "node", "maintenance_until_ms", str(until_ms))
            return PlannedTransact((element,), memo=shepherd)

        await self._records.apply(call, build)
        self.decided(shepherd, maintenance_until_ms=until_ms)

    def decided(self, shepherd: ServiceId, **written: Any) -> None:
        """Note a decision about a Shepherd that has been written."""
        self.table.note(shepherd, **written)
        self._changed(shepherd)

    def require(self, op: str, shepherd: ServiceId) -> StoredNode:
        """Return the stored state of a Shepherd. Raises: NOT_FOUND."""
        stored = self.table.stored(shepherd)
        if stored is None:
            raise CheloniaError(Kind.NOT_FOUND, op, shepherd, "no such Shepherd is registered")
        return stored

    # --- reports ----------------------------------------------------------------------------------------------------

    async def report(self, call: Call, report: Report) -> ReportAnswer:
        """Apply a report in its turn; otherwise return which one is next. Raises: DENIED, UNAVAILABLE."""
        record = self.registry.find(Role.SHEPHERD, report.shepherd, call.dn)
        if record is not None and record.forgotten:
            raise CheloniaError(Kind.DENIED, "report", report.shepherd, BURNT)
        if report.number == 0:
            return await self._old_report(call, report)
        recorded = await self._store_of(call, report.shepherd, report.store)
        if report.store and recorded and report.store != recorded:
            cause = f"the cluster knows it with store {recorded}, this report is of store {report.store}"
            raise CheloniaError(Kind.DENIED, "report", report.shepherd, cause)
        call = call.strongly()  # the Shepherd sets unknown bytes aside
        obj, of_rebuild = shepherd_object(report.shepherd), (Needed("rebuild"), Needed(REPORTED, report.shepherd))
        needed = (*reports.records_needed(report), *of_rebuild)
        answer = ReportAnswer(0, self._world.settings.lease_ms)

        async def build() -> PlannedTransact:
            nonlocal answer
            stored, marker = await self._records.get(call, (obj, REBUILD_OBJECT), needed)
            _require_whole("report", report.shepherd, marker)
            last = self._reached[report.shepherd] = reports.reached(stored)
            earlier, obeyed = reports.before(report, stored, self._records.position.generation)
            answer = replace(answer, before_boot=earlier.boot, before_number=earlier.number, obeyed=obeyed)
            if report.number == 1 and may_have_named(marker, report.shepherd, earlier.boot):
                answer = replace(answer, next_report_ms=ASK_RECONCILIATION)
            if not reports.is_next(report, last):
                answer = replace(answer, accepted=reports.accepted(report, last), unknown=())
            if not reports.is_next(report, last) and last != ReportPosition(report.boot, report.number):
                return PlannedTransact(())
            context = await self._report_context(call, report, stored)
            judged = reports.judge(report, context, self._world.clock.now_ms())
            if not reports.is_next(report, last):  # a repeat gets the unknown ones again: silence would mean "known"
                answer = replace(answer, unknown=(*judged.unknown, *judged.unlisted))
                return PlannedTransact(())
            for note in judged.notes:
                _LOG.info("report %s", note)
            for why in judged.refused:
                self._world.limits.met("report_entries", report.shepherd, "an entry was refused")
                _LOG.warning("report %d of %s: an entry is refused: %s", report.number, report.shepherd, why)
            answer = replace(answer, accepted=report.number, unknown=tuple(judged.unknown))
            still = [still_named(marker, report.shepherd)] if report.number == 1 else []
            return PlannedTransact([*judged.elements, *still])

        await self._records.apply(call, build)
        if answer.accepted == report.number:
            self._reached[report.shepherd] = ReportPosition(report.boot, report.number)
        return answer

    async def _report_context(self, call: Call, report: Report, stored: StoredObject) -> ReportContext:
        context = ReportContext(stored, {})
        ids = list(dict.fromkeys(blob for r in report.replicas if (blob := context.blob_of(r))))
        found = await self._records.get(call, [blob_object(blob) for blob in ids])
        return ReportContext(stored, dict(zip(ids, found, strict=True)))

    async def _old_report(self, call: Call, report: Report) -> ReportAnswer:
        """Take a report of the original's form as a sign of life. It has no number, so nothing in it can be applied
        safely. One that names replicas is answered with the known files, and a request for reconciliation."""
        if not report.replicas and self.present(report.shepherd):
            return ReportAnswer(0, self._world.settings.lease_ms)
        page = await self._records.scan(call, shepherd_object(report.shepherd), "file", "", bounds.SECTION_WHOLE_MAX)
        ids = dict.fromkeys(blob_object(BlobId(blob)) for _, blob in page.items)
        found = await self._records.get(call, list(ids), (Needed("blob", "file"),))
        files = dict.fromkeys(guid for blob in found if (guid := blob.value("blob", "file")))
        return ReportAnswer(0, ASK_RECONCILIATION, all_files=tuple(files))

    async def inventory(self, call: Call, shepherd: ServiceId, after: str, limit: int) -> InventoryPage:
        """Return a page of the replicas that the metadata has for a Shepherd. Raises: UNAVAILABLE amid a rebuild."""
        limit = min(limit if limit > 0 else bounds.PAGE_ENTRIES_MAX, bounds.PAGE_ENTRIES_MAX)
        call = call.strongly()  # the Shepherd sets aside what the page lacks
        _require_whole("inventory", shepherd, await self._records.one(call, REBUILD_OBJECT, (Needed("rebuild"),)))
        page = await self._records.scan(call, shepherd_object(shepherd), "file", after, limit)
        ids = list(dict.fromkeys(blob_object(BlobId(blob)) for _, blob in page.items))
        found = {obj.id: obj for obj in await self._records.get(call, ids, (Needed("locations"),))}
        items = []
        for reference, blob in page.items:
            location = Location(shepherd, ReferenceId(reference))
            state = found[blob_object(BlobId(blob))].value("locations", str(location))
            items.append(InventoryItem(location.reference, BlobId(blob), ReplicaState(state) if state else None))
        return InventoryPage(tuple(items), page.after)


def _stored_node(record: ServiceRecord, obj: StoredObject) -> StoredNode:
    own = {"dn": record.dn, "approved": record.approved}
    return msgspec.convert({**obj.sections.get("node", {}), **own}, StoredNode, strict=False)


def _require_whole(operation: str, shepherd: ServiceId, marker: StoredObject) -> None:
    """Raises: UNAVAILABLE amid a rebuild: a replica not restored yet is not unknown."""
    if under_way(marker):
        cause = "a rebuild of the namespace is not through: what it does not know yet is not unknown"
        raise CheloniaError(Kind.UNAVAILABLE, operation, shepherd, cause)


def _check_identity(record: ServiceRecord) -> None:
    """Refuse an identity that could not be written as `<service id> <DN>`. Raises: BAD_REQUEST."""
    service = record.service_id
    if " " in service or len(service.encode()) > SERVICE_ID_BYTES_MAX or not record.dn.startswith("/"):
        cause = f"a service id has no blanks and at most {SERVICE_ID_BYTES_MAX} bytes; a DN starts with /"
        raise CheloniaError(Kind.BAD_REQUEST, "approve", service[:80], cause)
    if not service and record.role is not Role.ADMINISTRATOR:
        raise CheloniaError(Kind.BAD_REQUEST, "approve", record.dn[:80], "only administrators have no service id")


def _check_beat(beat: Heartbeat) -> None:
    """Refuse facts that would harm other Shepherds: a store that could not be recorded in a list with blanks between, a
    domain deeper than any. Raises: BAD_REQUEST."""
    cause = ""
    if beat.store and beat.store.split() != [beat.store]:
        cause = f"a store is called by one word, not {beat.store[:80]!a}"
    elif len(beat.domain) > bounds.DOMAIN_CHARACTERS_MAX:
        cause = f"a failure domain has at most {bounds.DOMAIN_CHARACTERS_MAX} characters"
    if cause:
        raise CheloniaError(Kind.BAD_REQUEST, "heartbeat", beat.shepherd[:80], cause)


def _check_url(service: ServiceId) -> None:
    """Refuse an id that is no address, or not printable ASCII: strangers choose theirs. Raises: BAD_REQUEST."""
    try:
        parts = urlsplit(service)
        sound = parts.scheme == "https" and bool(parts.hostname) and parts.port != 0 and "@" not in parts.netloc
    except ValueError:
        sound = False
    if not (sound and service.isascii() and service.isprintable()):
        cause = "a service id is its address, https://host:port/Shepherd, in printable ASCII"
        raise CheloniaError(Kind.BAD_REQUEST, "heartbeat", ascii(service[:80]), cause)
