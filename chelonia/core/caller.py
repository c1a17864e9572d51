"""The caller and context of a request: the first argument of every port method.

The registry of approved services grants roles (`ids.SERVICES_OBJECT`), never the caller's own claim.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from chelonia.core.cluster.position import Position
from chelonia.core.ids import ANONYMOUS, Dn, Ms, RequestKey, ServiceId
from chelonia.core.rights.scopes import Scopes

BY_LINK: Final = "link "
"""Start of `Call.via` for a share link."""


class Role(enum.Enum):
    """A role of an approved identity. The value is the section name in the registry."""

    AHASH = "ahash"
    LIBRARIAN = "librarian"
    BARTENDER = "bartender"
    SHEPHERD = "shepherd"
    ADMINISTRATOR = "administrator"


class Call(msgspec.Struct, frozen=True):  # made for each call: a struct takes a tenth of a dataclass's time
    """The context of one call.

    Args:
        dn: end-entity subject in slash form, or `ANONYMOUS`.
        roles: those that the registry grants this DN here; empty for users.
        service_id: the registered id when a service calls; a Shepherd may only speak of its own.
        attributes: verified groups and roles, as VOMS writes them (`/vo/group`, `/vo/group/Role=x`).
        address: peer address for the audit log and for bound tickets.
        request_id: correlates log lines end to end; never authorises anything.
        request_key: makes a change apply once; empty when the caller gave none.
        is_first: this is the first request under its key; never from a message.
        read_after: reads for this call are at least as new as this; a caller's claim, which counts for it alone.
        strong: reads for this call return the newest acknowledged state, whichever replica answers.
        carrier: the mover of the bytes: the node of a door that carries them itself, or `ANONYMOUS` for any holder of
            the ticket. Never from a message.
        scopes: the part of the caller's rights that a token leaves; empty: all of them. Never from a message.
        credential: serial number and issuer of the caller's certificate, for tokens he gives. Never from a message.
        via: the token that stands for the caller, for the audit log; empty: his certificate, or nothing.
        until_ms: end of the credential that `via` names, 0 if it has none. A ticket for any holder ends then too.
        turn: whose turn it waits for, of a call that a door makes in its own name for a caller. Never from a message.
        unsure: it may be a service, but the registry cannot be read now: a refusal for want of a role would look final.
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
    turn: str = ""

    @property
    def waits_as(self) -> str:
        """The DN or address whose turn this call waits for. The holder of a share link does not wait as its giver."""
        if self.turn:
            return self.turn
        return self.address if self.dn == ANONYMOUS or self.via.startswith(BY_LINK) else self.dn

    def has(self, role: Role) -> bool:
        """Return whether the registry grants `role` to this caller."""
        return role in self.roles

    def key_scope(self, shared: Role) -> str:
        """Return the scope of this caller's request keys at a service. All that hold `shared` there have one scope, so
        that a retry may come through another instance of them; any other caller has its own."""
        return shared.value if self.has(shared) else f"{self.service_id} {self.dn}"

    def as_service(self, dn: Dn, role: Role, service_id: ServiceId) -> Call:
        """Return this call as a service of ours carries it on in its own name, with the same ids and key."""
        own = self.service_id == service_id and self.dn == dn and self.roles == (role,)
        if own and not (self.attributes or self.address):
            return self
        return Call(
            dn=dn, roles=(role,), service_id=service_id, request_id=self.request_id, request_key=self.request_key,
            read_after=self.read_after, strong=self.strong,
        )  # fmt: skip

    def keyed(self, key: RequestKey) -> Call:
        """Return this call under another request key."""
        return self if key == self.request_key else msgspec.structs.replace(self, request_key=key)

    def strongly(self) -> Call:
        """Return this call with strong reads, for what cannot be taken back."""
        return self if self.strong else msgspec.structs.replace(self, strong=True)
