"""Who calls, and under which request: the first argument of every port method.

Roles are granted by the registry of approved services (`ids.SERVICES_OBJECT`), never by what a caller says of itself.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from chelonia.core.cluster.position import Position
from chelonia.core.ids import ANONYMOUS, Dn, Ms, RequestKey, ServiceId
from chelonia.core.rights.scopes import Scopes

BY_LINK: Final = "link "
"""What `Call.via` begins with of a share link."""


class Role(enum.Enum):
    """What an approved identity may act as. The value is the section name in the registry."""

    AHASH = "ahash"
    LIBRARIAN = "librarian"
    BARTENDER = "bartender"
    SHEPHERD = "shepherd"
    ADMINISTRATOR = "administrator"


class Call(msgspec.Struct, frozen=True):
    """The context of one call. A struct, as one is made for every call: a tenth of the time of a frozen dataclass.

    Args:
        dn: end-entity subject in slash form, or `ANONYMOUS`.
        roles: what the registry grants this DN here; empty for users.
        service_id: the registered id when a service calls; a Shepherd may only speak of its own.
        attributes: verified groups and roles, as VOMS writes them (`/vo/group`, `/vo/group/Role=x`).
        address: peer address for the audit log and for bound tickets.
        request_id: correlates log lines end to end; never authorises anything.
        request_key: makes a change apply once; empty when the caller gave none.
        is_first: nothing has been asked under this request key before; never from a message.
        read_after: what is read for this call is at least as new as this; a caller's claim, counting for him alone.
        strong: what is read for this call is the newest acknowledged, whatever replica is asked.
        carrier: who moves the bytes for this caller: the node of a door that carries them itself, or `ANONYMOUS`:
            whoever has the ticket; never from a message.
        scopes: what a token leaves of the caller's rights; empty: all of them. Never from a message.
        credential: serial number and issuer of the caller's certificate, for the tokens that he gives; never from a
            message.
        via: the token that stands for the caller, for the audit log; empty: his certificate, or nothing.
        until_ms: when what `via` names ends, 0 where it does not; a ticket for whoever has it ends then too.
        unsure: it may be a service, and who is approved as what cannot be read now: a refusal for want of a role would
            be taken as final.
    """

    dn: Dn = ANONYMOUS
    roles: tuple[Role, ...] = ()
    service_id: ServiceId = ServiceId("")
    attributes: tuple[str, ...] = ()
    address: str = ""
    request_id: str = ""
    request_key: RequestKey = RequestKey("")
    read_after: Position | None = None
    strong: bool = False
    carrier: Dn = Dn("")
    scopes: Scopes = ()
    via: str = ""
    credential: str = ""
    is_first: bool = False
    unsure: bool = False
    until_ms: Ms = Ms(0)

    @property
    def waits_as(self) -> str:
        """In whose turn it waits: a DN's, or an address's. Whoever has a link is not its giver."""
        return self.address if self.dn == ANONYMOUS or self.via.startswith(BY_LINK) else self.dn

    def has(self, role: Role) -> bool:
        """Whether the registry grants `role` to this caller."""
        return role in self.roles

    def key_scope(self, shared: Role) -> str:
        """Who shares this caller's request keys at a service: all that hold `shared` there, so that a retry may come
        through another instance of them; any other caller is alone with his."""
        return shared.value if self.has(shared) else f"{self.service_id} {self.dn}"

    def as_service(self, dn: Dn, role: Role, service_id: ServiceId) -> Call:
        """This request carried on by a service of ours in its own name, ids and key kept."""
        own = self.service_id == service_id and self.dn == dn and self.roles == (role,)
        if own and not (self.attributes or self.address):
            return self
        return Call(
            dn=dn, roles=(role,), service_id=service_id, request_id=self.request_id, request_key=self.request_key,
            read_after=self.read_after, strong=self.strong,
        )  # fmt: skip

    def keyed(self, key: RequestKey) -> Call:
        """This call under another request key."""
        return self if key == self.request_key else msgspec.structs.replace(self, request_key=key)

    def strongly(self) -> Call:
        """This call, reading nothing but the newest acknowledged: for what cannot be taken back."""
        return self if self.strong else msgspec.structs.replace(self, strong=True)
