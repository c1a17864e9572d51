"""The choice of Shepherds for new copies and for repair, over a tree of the domains of all nodes. Pure.

Invariants:
- A Shepherd gets no second copy; one that is full, not accepting, away or in maintenance gets none.
- It chooses no place while a farther one is free.
- Of equally far places it chooses those with the fewest copies around; chance decides, weighted by free space.

The cost of a choice grows with the number of copies, not of nodes. It visits only domains that hold copies:
all Shepherds beyond the same domain are equally far. A draw among them is a search in prefix sums.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence

from chelonia.core.cluster.placement import Crowding, Demand, Place, host_of, place_of, takes
from chelonia.core.ids import ServiceId
from chelonia.core.ports.librarian import NodeView


class Fleet:
    """All nodes of one moment, prepared for many choices."""

    __slots__ = ("_leaves", "_nodes", "_places", "_root")

    def __init__(self, nodes: Iterable[NodeView]) -> None:
        self._nodes = sorted(nodes, key=lambda node: node.shepherd)
        self._places = {node.shepherd: place_of(node) for node in self._nodes}
        self._leaves: dict[ServiceId, _ShepherdLeaf] = {}
        self._root: _Domain | None = None  # most fleets are out of date before anything is chosen

    def _tree(self) -> _Domain:
        if self._root is None:
            self._root = _Domain(0, None)
            for node in self._nodes:
                leaf = self._leaves[node.shepherd] = _ShepherdLeaf(
                    node.shepherd, node.free_bytes if takes(node, 0) else 0
                )
                self._root.plant(self._places[node.shepherd], leaf)
            self._root.grow()
        return self._root

    def place(self, shepherd: ServiceId) -> Place:
        """Return the place of a Shepherd. The place of an unknown one is its host."""
        return self._places.get(shepherd) or (host_of(shepherd),)

    def choose(self, demand: Demand, uniform: Callable[[], float]) -> tuple[ServiceId, ...]:
        """Choose Shepherds for a demand, best first.

        Args:
            uniform: source of numbers in [0, 1).
        Returns: at most `demand.count` distinct Shepherds; fewer when there are not enough. The result does not depend
            on the order in which nodes, or the Shepherds of the demand, are named.
        """
        chosen: list[ServiceId] = []
        self._fill(demand, (*demand.exclude, *demand.avoid), chosen, uniform)
        if demand.avoid:
            self._fill(demand, demand.exclude, chosen, uniform)
        assert len({*chosen}) == len(chosen) <= max(demand.count, 0), "distinct, and no more than asked for"
        assert not {*chosen} & {*demand.exclude, *demand.holders}, "never two copies on one Shepherd"
        return tuple(chosen)

    def _fill(
        self, demand: Demand, barred: Sequence[ServiceId], chosen: list[ServiceId], uniform: Callable[[], float]
    ) -> None:
        """Choose until there are enough, or no Shepherd is left."""
        if len(chosen) >= demand.count:
            return
        taken = _Taken(self._tree())
        holders = {*demand.holders, *chosen}
        for shepherd in sorted(holders):
            if shepherd in self._leaves:
                taken.hold(self._leaves[shepherd])
        for shepherd in {*barred} - holders:
            if shepherd in self._leaves:
                taken.bar(self._leaves[shepherd])
        while len(chosen) < demand.count:
            leaf = taken.draw(uniform)
            if leaf is None:
                return
            if leaf.weight > demand.size:
                chosen.append(leaf.shepherd)
                taken.hold(leaf)
            else:
                taken.bar(leaf)


class _ShepherdLeaf:
    """A Shepherd: its weight in a draw (0: takes nothing), and the way to it from the root: (domain, place in it)."""

    __slots__ = ("shepherd", "way", "weight")

    def __init__(self, shepherd: ServiceId, weight: int) -> None:
        self.shepherd = shepherd
        self.weight = weight
        self.way: tuple[tuple[_Domain, int], ...] = ()


class _Domain:
    """A failure domain: its children in order, and the sums of their weights up to each."""

    __slots__ = ("above", "below", "depth", "index", "upto", "weight")

    def __init__(self, depth: int, above: _Domain | None) -> None:
        self.depth = depth
        self.above = above
        self.below: list[_Domain | _ShepherdLeaf] = []
        self.index: dict[str, int] = {}
        self.upto: list[int] = [0]
        self.weight = 0

    def plant(self, place: Place, leaf: _ShepherdLeaf) -> None:
        """Add a Shepherd at its place. Called on the root."""
        domain, way = self, []
        for part in place:
            at = domain.index.setdefault(part, len(domain.below))
            if at == len(domain.below):
                domain.below.append(_Domain(domain.depth + 1, domain))
            way.append((domain, at))
            under = domain.below[at]
            assert isinstance(under, _Domain), "a component of a place is no Shepherd"
            domain = under
        way.append((domain, domain.index.setdefault(f"/{leaf.shepherd}", len(domain.below))))
        domain.below.append(leaf)
        leaf.way = tuple(way)

    def grow(self) -> None:
        """Weigh the tree, once all Shepherds are in it."""
        assert len(self.upto) == 1, "weighed once"
        for under in self.below:
            if isinstance(under, _Domain):
                under.grow()
            self.weight += under.weight
            self.upto.append(self.weight)


class _Taken:
    """Places that one demand cannot have: domains with copies, and barred Shepherds, as weights taken off the tree."""

    __slots__ = ("_gone", "_held")

    def __init__(self, root: _Domain) -> None:
        self._held: dict[_Domain, int] = {root: 0}
        self._gone: dict[_Domain, dict[int, int]] = {}

    def hold(self, leaf: _ShepherdLeaf) -> None:
        """Count a copy at `leaf`: its domains are used, and it is not chosen again."""
        for domain, _ in leaf.way:
            self._held[domain] = self._held.get(domain, 0) + 1
        self.bar(leaf)

    def bar(self, leaf: _ShepherdLeaf) -> None:
        for domain, at in leaf.way:
            gone = self._gone.setdefault(domain, {})
            gone[at] = gone.get(at, 0) + leaf.weight
            assert gone[at] <= domain.below[at].weight, "nobody is taken off twice"

    def draw(self, uniform: Callable[[], float]) -> _ShepherdLeaf | None:
        """Draw one of those farthest from all copies, by chance and weight; None when nothing is left."""
        best: Crowding | None = None
        exits: list[tuple[_Domain, int]] = []
        for domain in self._held:
            rank = self._rank(domain)
            if best is not None and rank > best:
                continue
            room = domain.weight - sum([off for _, off in self._off(domain)])
            if room:
                exits = [*exits, (domain, room)] if rank == best else [(domain, room)]
                best = rank
        total = sum([room for _, room in exits])
        assert all(room > 0 for _, room in exits), "who takes nothing is not drawn"
        mark = min(int(uniform() * total), total - 1)
        for domain, room in exits:
            if mark < room:
                return self._descend(domain, mark)
            mark -= room
        return None

    def _rank(self, domain: _Domain) -> Crowding:
        """Return the crowding of the places that leave the used part of the tree at `domain`."""
        counts = []
        at: _Domain | None = domain
        while at is not None and at.depth:
            counts.append(self._held[at])
            at = at.above
        return (domain.depth, *counts)

    def _off(self, domain: _Domain) -> list[tuple[int, int]]:
        """Return the weights to take off below a domain: (place, weight), in order; all of one that holds a copy."""
        gone, below, held = self._gone.get(domain), domain.below, self._held
        if not gone:
            return []
        return sorted([(at, below[at].weight if below[at] in held else off) for at, off in gone.items()])

    def _descend(self, domain: _Domain, mark: int) -> _ShepherdLeaf:
        """Return the Shepherd at `mark` among the weights left below a domain."""
        while True:
            at, mark = _locate(domain.upto, self._off(domain), mark)
            under = domain.below[at]
            assert 0 <= mark < under.weight, "who takes nothing is not drawn"
            if isinstance(under, _ShepherdLeaf):
                return under
            domain = under


def _locate(upto: Sequence[int], off: Sequence[tuple[int, int]], mark: int) -> tuple[int, int]:
    """Return where `mark` falls among weights with the sums `upto`, reduced by `off`: (place, rest)."""
    shift = 0
    for at, less in off:
        start = upto[at] - shift
        if mark < start:
            break
        if mark < upto[at + 1] - shift - less:
            return at, mark - start
        shift += less
    at = bisect_right(upto, mark + shift) - 1
    return at, mark + shift - upto[at]
