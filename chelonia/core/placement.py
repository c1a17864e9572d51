"""Where bytes go: the choice of Shepherds for new copies and for repair, pure and replayable.

Decides among nodes only by what they announced; it never calls one. A failure domain is a path like
`site/rack/node`: two nodes are as close as the components their domains share from the left, so another site is
better than another rack, and another rack better than another node. An empty domain is a domain of its own.

Invariants: never two copies on one node; never a node that is full, not accepting, away or in maintenance; never a
closer domain while a farther one is free. Among equally far nodes chance decides, weighted by free space.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from chelonia.core.ids import ServiceId
from chelonia.core.librarian import NodeView

NODE_ALIVE = "alive"
NODE_OFFLINE = "offline"
NODE_MAINTENANCE = "maintenance"
NODE_WAITING = "waiting"
"""The states of `NodeView.state`."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What is to be placed: `count` copies of `size` bytes (-1: not known).

    `holders` have a copy (or will) and are not chosen again, but their domains count; `avoid` are taken only when
    nothing else is left (a node with a damaged copy); `exclude` never.
    """

    count: int
    size: int
    holders: tuple[ServiceId, ...] = ()
    avoid: tuple[ServiceId, ...] = ()
    exclude: tuple[ServiceId, ...] = ()


def choose(nodes: Sequence[NodeView], demand: Demand, uniform: Callable[[], float]) -> tuple[ServiceId, ...]:
    """Choose Shepherds for a demand, best first.

    Args:
        nodes: every node known, in any order (the result does not depend on it).
        uniform: source of numbers in [0, 1).
    Returns: at most `demand.count` distinct Shepherds; fewer when there are not enough.
    """
    ordered = sorted(nodes, key=lambda node: node.shepherd)
    barred = {*demand.holders, *demand.exclude}
    free = [node for node in ordered if takes(node, demand.size) and node.shepherd not in barred]
    held = [node.domain for node in ordered if node.shepherd in demand.holders]
    chosen: list[ServiceId] = []
    while free and len(chosen) < demand.count:
        node = _best(free, held, demand.avoid, uniform)
        chosen.append(node.shepherd)
        held.append(node.domain)
        free.remove(node)
    return tuple(chosen)


def takes(node: NodeView, size: int) -> bool:
    """Whether a node can take a new copy of `size` bytes (-1: not known, then any free space will do)."""
    return node.state == NODE_ALIVE and node.accepting and node.free_bytes > max(size, 0)


def shared(one: str, other: str) -> int:
    """How many leading components two failure domains share; an empty domain shares none."""
    count = 0
    for left, right in zip(_parts(one), _parts(other), strict=False):
        if left != right:
            break
        count += 1
    return count


def crowding(domain: str, held: Iterable[str]) -> tuple[int, int]:
    """How close `domain` is to those held: (most components shared with any, how many share that many)."""
    depths = [shared(domain, other) for other in held]
    closest = max(depths, default=0)
    return closest, depths.count(closest) if closest else 0


def _parts(domain: str) -> list[str]:
    return [part for part in domain.split("/") if part]


def _best(
    free: Sequence[NodeView], held: Sequence[str], avoid: Sequence[ServiceId], uniform: Callable[[], float]
) -> NodeView:
    ranked = [((node.shepherd in avoid, *crowding(node.domain, held)), node) for node in free]
    least = min(rank for rank, _ in ranked)
    return _weighted([node for rank, node in ranked if rank == least], uniform)


def _weighted(nodes: Sequence[NodeView], uniform: Callable[[], float]) -> NodeView:
    mark = uniform() * sum(node.free_bytes for node in nodes)
    for node in nodes:
        mark -= node.free_bytes
        if mark < 0:
            return node
    return nodes[-1]
