"""Decides which connection of a listener ends when there are too many; the HTTP server carries it out.

A stranger (no certificate) counts for its address, a user for its DN. An owner that exceeds its share loses its own
oldest idle connection. On a full listener the oldest idle stranger goes; if none is idle, the oldest idle user, though
never for a stranger. A reserve is left to approved services and administrators, who have no share. Idle: no request is
being answered. It never looks at a clock or a socket, and never cuts a connection at work: it refuses the new one.
Invariant: no owner holds more than its share, and all together no more than the listener's.
"""

from __future__ import annotations

import enum
import ipaddress
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

from chelonia.core.ids import ANONYMOUS, Dn

NETWORK_BITS: Final = 64
"""Prefix of an IPv6 address that counts: a subscriber has at least a /64, and may choose the rest freely."""


class Rank(enum.IntEnum):
    """Ranks of owners: connections of the lowest go first."""

    STRANGER = 0
    USER = 1
    KNOWN = 2


@dataclass(frozen=True, slots=True)
class Shares:
    """Numbers of connections: of the listener, of these only for known services, of an address, of a DN."""

    total: int
    reserve: int
    address: int
    dn: int


@dataclass(frozen=True, slots=True)
class ConnectionDecision:
    """The decision on a new connection: `taken`, in place of `cut` if given, or refused. `limit`: the bound it met."""

    taken: bool = True
    cut: Hashable | None = None
    limit: str = ""


TAKEN: Final = ConnectionDecision()


@dataclass(slots=True)
class _OwnerShare:
    """One address or DN: its number of connections, and the idle ones, oldest first."""

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
        """Judge a new connection. Unless refused it counts, as idle; one that is `cut` counts no more."""
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
        """Count a connection as at work: it is not cut."""
        owner = self._share_of(connection)
        if owner is not None:
            owner.idle.pop(connection, None)
            self._idle[owner.rank].pop(connection, None)

    def idle(self, connection: Hashable) -> None:
        """Count a connection as idle, the newest of them."""
        owner = self._share_of(connection)
        if owner is not None:
            owner.idle[connection] = self._idle[owner.rank][connection] = None

    def _share_of(self, connection: Hashable) -> _OwnerShare | None:
        name = self._owner_of.get(connection)
        return None if name is None else self._owners[name]

    def gone(self, connection: Hashable) -> None:
        """Forget a connection that has ended, or was cut."""
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
    """Return the owner of a connection: its DN, without one its address (of IPv6 the network)."""
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
