"""The registry of service identities (`sys:services`): those approved, waiting, withdrawn or forgotten. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from chelonia.core.caller import Role
from chelonia.core.ids import SERVICES_OBJECT, Dn, ServiceId
from chelonia.core.metadata import Filter, Needed, StoredObject
from chelonia.core.ports.ahash import Element
from chelonia.core.ports.librarian import ServiceRecord
from chelonia.librarian.metadata.elements import drop, is_, isnot, put, unset

APPROVED = "approved"
WAITING = "waiting"
WITHDRAWN = "withdrawn"
"""An administrator refused it: it stays registered, so that neither configuration nor heartbeat brings it back."""
FORGOTTEN = "forgotten"
"""Declared lost for good: never accepted again, whatever an administrator or the configuration says."""
NO_SERVICE = "-"
"""Stands for the service id of an administrator, who is a person."""


def property_of(record: ServiceRecord) -> str:
    """Return the property of a registered identity: `<service id> <DN>`."""
    assert " " not in record.service_id, "the first blank ends the service id"
    return f"{record.service_id or NO_SERVICE} {record.dn}"


def parse(stored: StoredObject) -> tuple[ServiceRecord, ...]:
    """Return all registered identities, ordered by role and property; malformed sections and lines are skipped."""
    out = []
    for role in sorted(Role, key=lambda role: role.value):
        for prop, value in sorted(stored.sections.get(role.value, {}).items()):
            service, blank, dn = prop.partition(" ")
            if blank:
                service_id = ServiceId("" if service == NO_SERVICE else service)
                states = value == APPROVED, value == FORGOTTEN, value == WITHDRAWN
                out.append(ServiceRecord(role, Dn(dn), service_id, *states))
    return tuple(out)


def needed(record: ServiceRecord) -> Filter:
    """Return the filter of the registry that shows whether an identity still `is_approved`."""
    return (Needed(record.role.value, property_of(record)),)


def is_approved(stored: StoredObject, record: ServiceRecord) -> bool:
    """Return whether the registry as stored has this identity as approved."""
    return stored.value(record.role.value, property_of(record)) == APPROVED


def set_record(record: ServiceRecord) -> Element:
    """Write an identity as approved or withdrawn, unless it was forgotten."""
    role, prop = record.role.value, property_of(record)
    return put(SERVICES_OBJECT, role, prop, APPROVED if record.approved else WITHDRAWN, isnot(role, prop, FORGOTTEN))


def forget_record(record: ServiceRecord) -> Element:
    """Burn an identity."""
    assert record.service_id, "a service is burnt, never a person"
    return put(SERVICES_OBJECT, record.role.value, property_of(record), FORGOTTEN)


def add_record(record: ServiceRecord) -> Element:
    """Write an identity unless it is registered in any state."""
    prop = property_of(record)
    value = APPROVED if record.approved else WAITING
    return put(SERVICES_OBJECT, record.role.value, prop, value, unset(record.role.value, prop))


def drop_waiting(record: ServiceRecord) -> Element:
    """Drop an identity that still waits."""
    assert not record.approved, "only who waits gives way"
    role, prop = record.role.value, property_of(record)
    return drop(SERVICES_OBJECT, role, prop, is_(role, prop, WAITING))


@dataclass(frozen=True, slots=True)
class IdentityRegistry:
    """The identities as last read."""

    records: tuple[ServiceRecord, ...] = ()
    waiting: tuple[ServiceRecord, ...] = ()
    """Identities that wait for an administrator's approval."""

    def find(self, role: Role, service_id: ServiceId, dn: Dn) -> ServiceRecord | None:
        """Return the record of exactly this identity."""
        for record in self.records:
            if record.service_id == service_id and record.dn == dn and record.role is role:
                return record
        return None

    def shepherds(self) -> Mapping[ServiceId, ServiceRecord]:
        """Return the Shepherds by service id, without forgotten ones; an approved record goes before a waiting one."""
        out: dict[ServiceId, ServiceRecord] = {}
        for record in self.records:
            if record.role is not Role.SHEPHERD or record.forgotten:
                continue
            if record.service_id not in out or record.approved:
                out[record.service_id] = record
        return dict(sorted(out.items()))

    def forgotten(self) -> tuple[ServiceId, ...]:
        """Return the forgotten Shepherds whose service id nobody has been registered under since."""
        registered = self.shepherds()
        burnt = (r.service_id for r in self.records if r.role is Role.SHEPHERD and r.forgotten)
        return tuple(dict.fromkeys(shepherd for shepherd in burnt if shepherd not in registered))

    def gives_way(self, dn: Dn) -> ServiceRecord | None:
        """Return the waiting identity that gives its place to a new one of `dn`: one of the DN with most of them. None
        when that DN has no more than `dn` then would: to shut newcomers out takes as many certificates as places."""
        counts = Counter(record.dn for record in self.waiting)
        crowd = max(counts, key=lambda other: (counts[other], other), default=dn)
        if counts[crowd] <= counts[dn] + 1:
            return None
        assert crowd != dn, "nobody gains a place by giving one up"
        return max((record for record in self.waiting if record.dn == crowd), key=property_of)

    def refused(self, dn: Dn) -> int:
        """Return how many identities of this DN wait or were withdrawn."""
        return sum(record.dn == dn and not record.approved and not record.forgotten for record in self.records)


def read(stored: StoredObject) -> IdentityRegistry:
    """Return the registry as stored."""
    assert stored.id == SERVICES_OBJECT, "the registry was read"
    records = parse(stored)
    waiting = tuple(r for r in records if stored.value(r.role.value, property_of(r)) == WAITING)
    return IdentityRegistry(records, waiting)
