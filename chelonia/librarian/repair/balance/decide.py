"""Moves of copies though none is missing: for drains, uneven disks, and domains that share. Pure.

A move is a copy too many: once it is verified, trimming removes the copy that can best be spared
(`plan.decide.weariness`), with all its safety. So a move never lowers the copies of a file. The only decision here is
where one more copy would let a worse one go.

Invariants:
- A file is moved only when it is whole and nothing else happens to it.
- From a draining node it goes to any that takes it.
- Else it goes only where it shares less with the other copies, or as much on a node emptier by more than the
  hysteresis. So a move and its reverse are never both wanted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from chelonia.core.cluster.placement import Demand, crowding, takes
from chelonia.core.cluster.replicas import ReplicaState
from chelonia.core.ids import ServiceId
from chelonia.librarian.repair.plan.decide import (
    ApprovedShepherds,
    BlobPlan,
    BlobView,
    Chance,
    Copy,
    NodeHealth,
    fullness,
    nodes_of,
    weariness,
)

_BAD: Final = frozenset({ReplicaState.INVALID, ReplicaState.STALLED})
"""States of copies that are no sources, and that no returning Shepherd makes good."""


@dataclass(frozen=True, slots=True)
class BalanceMove:
    """One copy more, so that the one on `leaving` can go."""

    copy: Copy
    leaving: ServiceId


@dataclass(frozen=True, slots=True)
class Balance:
    """The rules of balance: disks count as uneven when their used shares differ by more than `hysteresis` (0 to 1).

    `even_out` False: only draining nodes are emptied. `relieved`: bytes on their way off a Shepherd, whose copies were
    moved and are not erased yet.
    """

    hysteresis: float
    even_out: bool
    relieved: Mapping[ServiceId, int]

    def __post_init__(self) -> None:
        assert self.hysteresis >= 0, "disks that are equally full are even"

    def fullness(self, node: NodeHealth) -> float:
        """Return the used share of a node's space once all moved bytes are off it."""
        total = node.view.total_bytes
        return fullness(node.view) - (self.relieved.get(node.view.shepherd, 0) / total if total else 0.0)


def sources(nodes: ApprovedShepherds, balance: Balance) -> tuple[ServiceId, ...]:
    """Return the Shepherds that copies should leave: draining ones, then those fuller than another by more than the
    hysteresis, each fullest first."""
    present = [(balance.fullness(node), shepherd, node) for shepherd, node in nodes.health.items() if node.present]
    draining = [shepherd for _, shepherd, node in sorted(present, key=_fullest) if node.draining]
    free = [full for full, _, node in present if takes(node.view, 0)]
    if not free or not balance.even_out:
        return tuple(draining)
    bar = min(free) + balance.hysteresis
    full = [shepherd for full, shepherd, node in sorted(present, key=_fullest) if full > bar and not node.draining]
    assert set(draining).isdisjoint(full), "a Shepherd is left for one reason"
    return (*draining, *full)


def move(blob: BlobView, plan: BlobPlan, nodes: ApprovedShepherds, balance: Balance) -> BalanceMove | None:
    """Return the copy to make so that a worse one can go, None when all are well where they are.

    Args:
        plan: repair's plan for the blob: a move waits until it is empty.
    """
    homes = nodes_of(plan.homes)
    if not _movable(blob, plan, nodes):
        return None
    worst = max(plan.homes, key=lambda location: weariness(location, homes, nodes))
    own = nodes.health[worst.shepherd]
    if not (own.draining or balance.even_out):
        return None
    others = tuple(home for home in homes if home != worst.shepherd)
    occupied = tuple(dict.fromkeys(replica.location.shepherd for replica in blob.replicas))
    demand = Demand(1, blob.size, holders=others, exclude=occupied)
    for target in nodes.fleet.choose(demand, Chance(blob).uniform):
        assert target not in occupied, "two copies on one Shepherd are one"
        if own.draining or _better(worst.shepherd, target, others, nodes, balance):
            back = not own.draining and _better(target, worst.shepherd, others, nodes, balance)
            assert not back, "a move and its reverse are never both wanted"
            return BalanceMove(Copy(plan.homes, target), worst.shepherd)
    return None


def held(blob: BlobView, plan: BlobPlan, nodes: ApprovedShepherds, shepherd: ServiceId) -> bool:
    """Return whether a copy is stuck on a drained Shepherd: too few others can take one, or no good one is left. Called
    for a blob without a `move`. A new Shepherd, room on another, a lower `wanted` or its deletion would free it."""
    own = nodes.health.get(shepherd)
    if own is None or not (own.draining and own.present):
        return False
    here = {replica.state for replica in blob.replicas if replica.location.shepherd == shepherd}
    if ReplicaState.ALIVE in here:
        return plan.short > 0 or _movable(blob, plan, nodes)
    return bool(here) and all(replica.state in _BAD for replica in blob.replicas)


def _movable(blob: BlobView, plan: BlobPlan, nodes: ApprovedShepherds) -> bool:
    """Whether a blob is whole, without surplus, and nothing else happens to it."""
    homes = nodes_of(plan.homes)
    return plan.quiet and len(homes) == max(blob.wanted, 1) and all(home in nodes.health for home in homes)


def _better(
    own: ServiceId, target: ServiceId, others: tuple[ServiceId, ...], nodes: ApprovedShepherds, balance: Balance
) -> bool:
    fleet, beside = nodes.fleet, [nodes.fleet.place(other) for other in others]
    here, there = (crowding(fleet.place(shepherd), beside) for shepherd in (own, target))
    if there != here:
        return there < here
    return balance.fullness(nodes.health[own]) > balance.fullness(nodes.health[target]) + balance.hysteresis


def _fullest(entry: tuple[float, ServiceId, NodeHealth]) -> tuple[float, ServiceId]:
    return -entry[0], entry[1]
