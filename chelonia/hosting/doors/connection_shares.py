"""Which connection of a listener goes when there are too many: decided here, carried out by the HTTP server.

A stranger (no certificate) counts for his address, a user for his DN; each has a share, and whoever exceeds it loses
his own oldest idle connection. When the listener is full, the oldest idle stranger goes, then the oldest idle user.
A reserve is left to approved services and administrators, who have no share. Idle: no request is being answered.
Never looks at a clock or a socket; never cuts a connection that is at work: then the new one is refused.
Invariant: no owner holds more than his share, and all of them together no more than the listener's.
"""

from __future__ import annotations

import enum
import ipaddress
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

from chelonia.core.ids import ANONYMOUS, Dn

NETWORK_BITS: Final = 64
"""Of an IPv6 address, what one subscriber holds at least: he may choose the rest for each connection."""


class Rank(enum.IntEnum):
    """Who goes first when there are too many."""

    STRANGER = 0
    USER = 1
    KNOWN = 2


@dataclass(frozen=True, slots=True)
class Shares:
    """How many connections: of the listener, of these only for known services, of an address, of a DN."""

    total: int
    reserve: int
    address: int
    dn: int


@dataclass(frozen=True, slots=True)
class ConnectionDecision:
    """What becomes of a new connection: taken, in place of `cut` if that is given; else `refused`. `limit` says why."""

    taken: bool = True
    cut: Hashable | None = None
    limit: str = ""


TAKEN: Final = ConnectionDecision()


@dataclass(slots=True)
class _OwnerShare:
    """One address or DN: how many connections, and which of them are idle, the oldest first."""

    rank: Rank
    open: int = 0
    idle: dict[Hashable, None] = field(default_factory=dict)


class ConnectionTable:
    """The connections of one listener, by owner."""

    def __init__(self, shares: Shares) -> None:
        assert 0 <= shares.reserve < shares.total, "a listener has room for others than known services"
        self._shares = shares
        self._owner_of: dict[Hashable, str] = {}
        self._owners: dict[str, _OwnerShare] = {}
        self._idle: tuple[dict[Hashable, None], ...] = ({}, {}, {})

    def __len__(self) -> int:
        return len(self._owner_of)

    def came(self, connection: Hashable, owner: str, rank: Rank) -> ConnectionDecision:
        """Judge a new connection. Unless refused it is counted, idle; whoever was `cut` is no longer."""
        assert connection not in self._owner_of, "a connection comes once"
        own = self._owners.get(owner) or _OwnerShare(rank)
        verdict = self._judge(own, rank)
        if verdict.cut is not None:
            self.gone(verdict.cut)
        if verdict.taken:
            self._owners[owner] = own
            self._owner_of[connection] = owner
            own.open += 1
            self.idle(connection)
            assert len(self) <= self._shares.total
        return verdict

    def _judge(self, own: _OwnerShare, rank: Rank) -> ConnectionDecision:
        shares = self._shares
        share = (shares.address, shares.dn, shares.total)[rank]
        if own.open >= share:
            return _instead(own.idle, ("connections of one address", "connections of one DN", "connections")[rank])
        if len(self) < shares.total - (0 if rank is Rank.KNOWN else shares.reserve):
            return TAKEN
        return _instead(self._idle[Rank.STRANGER] or (self._idle[Rank.USER] if rank else {}), "connections")

    def busy(self, connection: Hashable) -> None:
        """A request of it is being answered: it is not cut."""
        owner = self._owners.get(self._owner_of.get(connection, ""))
        if owner is not None:
            owner.idle.pop(connection, None)
            self._idle[owner.rank].pop(connection, None)

    def idle(self, connection: Hashable) -> None:
        """It is being answered no more."""
        owner = self._owners.get(self._owner_of.get(connection, ""))
        if owner is not None:
            owner.idle[connection] = self._idle[owner.rank][connection] = None

    def gone(self, connection: Hashable) -> None:
        """It has ended, or was cut."""
        self.busy(connection)
        name = self._owner_of.pop(connection, None)
        if name is not None:
            self._owners[name].open -= 1
            if not self._owners[name].open:
                del self._owners[name]


def _instead(idle: dict[Hashable, None], limit: str) -> ConnectionDecision:
    """Take a connection in place of the oldest idle one; refuse it when none is idle."""
    oldest = next(iter(idle), None)
    return ConnectionDecision(taken=oldest is not None, cut=oldest, limit=limit)


def owner_of(dn: Dn, address: str) -> str:
    """Whose share a connection counts in: the DN's, or the address's (of IPv6 its network's)."""
    if dn != ANONYMOUS:
        return dn
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, NETWORK_BITS), strict=False))
    return str(parsed)
