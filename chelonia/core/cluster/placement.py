"""Where bytes go: what a place is, how close two are, who takes new bytes. The choice itself stands in `fleet`.

Decides by what nodes announced; it never calls one. The place of a Shepherd is its failure domain, a
path like `site/rack`, and below it its node: the host its service id names. Two Shepherds are as close as the leading
components their places share, so another site is better than another rack, and another rack better than another host.
A Shepherd without a domain stands for itself: only what is on its own host is close to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from chelonia.core.ids import ServiceId
from chelonia.core.ports.librarian import NodeView

NODE_ALIVE = "alive"
NODE_OFFLINE = "offline"
NODE_MAINTENANCE = "maintenance"
NODE_WAITING = "waiting"
"""The states of `NodeView.state`."""
DRAINING = "draining"
DRAINED = "drained"
"""The words of `NodeView.drain`."""

Place = tuple[str, ...]
"""Where a Shepherd stands, coarsest first: the components of its domain, then its host."""
Crowding = tuple[int, ...]
"""How close a place is to others, to be compared: how many components it shares at most, how many of the others share
as many, how many share at least one fewer, and so on to those that share one."""


class Demand(msgspec.Struct, frozen=True):
    """What is to be placed: `count` copies of `size` bytes (-1: not known).

    `holders` have a copy (or will) and are not chosen again, but their places count; `avoid` are taken only when
    nothing else is left (a node with a damaged copy); `exclude` never.
    """

    count: int
    size: int
    holders: tuple[ServiceId, ...] = ()
    avoid: tuple[ServiceId, ...] = ()
    exclude: tuple[ServiceId, ...] = ()


def takes(node: NodeView, size: int) -> bool:
    """Whether a node can take a new copy of `size` bytes (-1: not known, then any free space will do)."""
    return node.state == NODE_ALIVE and node.accepting and node.free_bytes > max(size, 0)


def lacks_room(node: NodeView, size: int) -> bool:
    """Whether room is all that a node lacks to take a new copy. A full one accepts none."""
    return node.state == NODE_ALIVE and node.free_bytes <= max(size, 0)


def shared(one: str, other: str) -> int:
    """How many leading components two failure domains share; an empty domain shares none."""
    return _shared(_parts(one), _parts(other))


def place_of(node: NodeView) -> Place:
    """Where a Shepherd stands."""
    return (*_parts(node.domain), host_of(node.shepherd))


def host_of(shepherd: ServiceId) -> str:
    """The host a service id names; an id that is no URL is a host of its own."""
    _, slashes, rest = shepherd.partition("//")
    if not slashes:
        return shepherd
    authority = rest.partition("/")[0]
    host, colon, port = authority.rpartition(":")
    return host if colon and port.isdecimal() else authority


def crowding(place: Place, held: Iterable[Place]) -> Crowding:
    """How close a place is to those held."""
    depths = [_shared(place, other) for other in held]
    closest = max(depths, default=0)
    return (closest, *(sum(depth >= level for depth in depths) for level in range(closest, 0, -1)))


def _shared(one: Sequence[str], other: Sequence[str]) -> int:
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count


def _parts(domain: str) -> list[str]:
    return [part for part in domain.split("/") if part]
