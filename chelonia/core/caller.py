"""Who calls, and under which request: the first argument of every port method.

Roles are granted by the registry of approved services (`ids.SERVICES_OBJECT`), never by what a caller says of itself.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from chelonia.core.ids import ANONYMOUS, Dn, RequestKey, ServiceId


class Role(enum.Enum):
    """What an approved identity may act as. The value is the section name in the registry."""

    AHASH = "ahash"
    LIBRARIAN = "librarian"
    BARTENDER = "bartender"
    SHEPHERD = "shepherd"
    ADMINISTRATOR = "administrator"


@dataclass(frozen=True, slots=True)
class Call:
    """The context of one call.

    Args:
        dn: end-entity subject in slash form, or `ANONYMOUS`.
        roles: what the registry grants this DN here; empty for users.
        service_id: the registered id when a service calls; a Shepherd may only speak of its own.
        attributes: verified VOMS attributes; always empty until their verification exists (fail-closed).
        address: peer address for the audit log and for bound tickets.
        request_id: correlates log lines end to end; never authorises anything.
        request_key: makes a change apply once; empty when the caller gave none.
    """

    dn: Dn = ANONYMOUS
    roles: tuple[Role, ...] = ()
    service_id: ServiceId = ServiceId("")
    attributes: tuple[str, ...] = ()
    address: str = ""
    request_id: str = ""
    request_key: RequestKey = RequestKey("")

    def has(self, role: Role) -> bool:
        """Whether the registry grants `role` to this caller."""
        return role in self.roles

    def as_service(self, dn: Dn, role: Role, service_id: ServiceId) -> Call:
        """This request carried on by a service of ours in its own name, ids and key kept."""
        return replace(self, dn=dn, roles=(role,), service_id=service_id, attributes=(), address="")
