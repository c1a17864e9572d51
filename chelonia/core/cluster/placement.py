"""The place of a Shepherd, the distance of two, and the test whether one takes new bytes. `fleet` makes the choice.

Decides by what nodes announced; it never calls one. The place of a Shepherd is its failure domain, a path like
`site/rack`, and below it its node: the host in its service id. The more leading components two places share, the closer
they are: another site is better than another rack, and another rack better than another host.
A Shepherd without a domain stands for itself: only Shepherds on its own host are close to it.
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
"""The place of a Shepherd, coarsest first: the components of its domain, then its host."""
Crowding = tuple[int, ...]
"""The closeness of a place to others, for comparison: first the most components that it shares with any. Then the
number of others that share as many, of those that share at least one fewer, and so on down to one."""


class Demand(msgspec.Struct, frozen=True):
    """A demand for places: `count` copies of `size` bytes (-1: unknown).

    `holders` have a copy (or will) and are not chosen again, but their places count; `exclude` are never chosen.
    `avoid` (nodes with a damaged copy) are chosen only when no other is left.
    """

    count: int
    size: int
    holders: tuple[ServiceId, ...] = ()
    avoid: tuple[ServiceId, ...] = ()
    exclude: tuple[ServiceId, ...] = ()


def takes(node: NodeView, size: int) -> bool:
    """Whether a node can take a new copy of `size` bytes (-1: unknown, then any free space will do)."""
    return node.state == NODE_ALIVE and node.accepting and node.free_bytes > max(size, 0)


def lacks_room(node: NodeView, size: int) -> bool:
    """Whether a live node lacks room for a new copy. `accepting` does not count: a full node accepts none."""
    return node.state == NODE_ALIVE and node.free_bytes <= max(size, 0)


def shared(one: str, other: str) -> int:
    """Return how many leading components two failure domains share; an empty domain shares none."""
    return _shared(_parts(one), _parts(other))


def place_of(node: NodeView) -> Place:
    """Return the place of a Shepherd."""
    return (*_parts(node.domain), host_of(node.shepherd))


def host_of(shepherd: ServiceId) -> str:
    """Return the host in a service id; an id that is no URL is a host of its own."""
    _, slashes, rest = shepherd.partition("//")
    if not slashes:
        return shepherd
    authority = rest.partition("/")[0]
    host, colon, port = authority.rpartition(":")
    return host if colon and port.isdecimal() else authority


def crowding(place: Place, held: Iterable[Place]) -> Crowding:
    """Return how close a place is to those held."""
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
