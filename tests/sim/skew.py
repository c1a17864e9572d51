"""Nodes of the version before beside those of this one, which are replaced one by one.

A node of the version before drops the fields that it lacks from every value that crosses its border, as the compact
encoding does. It refuses operations that it lacks as not supported. All else it does with the code of now. So the
scenario shows that nobody needs newer fields or operations. It does not show the behaviour of older code, nor its
records on disk; `make upgrade` runs that. Order: docs/operate/upgrade.md.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.values import replace
from tests.sim.process import Node

if TYPE_CHECKING:
    from tests.sim.chaos import Chaos
    from tests.sim.world import World

LATER: dict[str, tuple[str, ...]] = {
    "BeginPut": ("part", "anew", "at"),
    "Begun": ("part_seal",),
    "CommitFile": ("policy",),
    "CopyFile": ("policy", "described"),
    "SealUpload": ("policy", "described"),
    "SpliceFile": ("mark",),
    "Make": ("default_of", "within"),
    "Write": ("policy", "default_of", "within", "mark"),
    "Clone": ("policy", "default_of", "within"),
    "Seal": ("policy", "default_of", "within"),
    "QuotaUse": ("implied",),
    "Placing": ("when", "within", "at"),
    "GetRequest": ("spans",),
    "Placed": ("note",),
}
"""Fields that came last, by the type that has them."""
MUCH_LATER: dict[str, tuple[str, ...]] = {
    "Heartbeat": ("store", "boots", "reclaimable_bytes", "arriving", "copies_at_once_max"),
    "Report": ("store",),
    "ReportAnswer": ("before_boot", "before_number", "obeyed"),
}
"""Fields of Shepherds' reports about themselves whose defaults the code explains by "older software"."""
LATER_METHODS: frozenset[str] = frozenset()
"""Operations that came last. The version before has all of them now."""
MUCH = 0.5
"""The share of seeds whose version before is so old."""
MIXED = 0.5
"""The share of seeds in which some Shepherds stay old until everything is whole."""
NEXT_MS_MAX = 8_000
PATIENCE_MS = 30_000
"""A node that is away for longer is replaced after the others."""


@dataclass(slots=True)
class Versions:
    """The nodes of the version before, and the fields and operations it lacks. `stay`: Shepherds that are replaced last
    of all."""

    old: set[Node]
    unknown: dict[str, tuple[str, ...]]
    rng: random.Random
    stay: list[Node] = field(default_factory=list)

    @property
    def knows_no_stores(self) -> bool:
        """Whether Shepherds of the version before report no store ids."""
        return "Heartbeat" in self.unknown

    def crossing(self, one: Node, other: Node, value: Any) -> Any:
        """A value as it arrives at the other end."""
        return self._known(value) if one in self.old or other in self.old else value

    def refuse(self, node: Node, method: str) -> None:
        """Raises: NOT_SUPPORTED for an operation that a node of the version before lacks."""
        if method in LATER_METHODS and node in self.old:
            raise CheloniaError(Kind.NOT_SUPPORTED, method, node.name, "no such method here in this encoding")

    def within(self, node: Node, service: Any) -> Any:
        """A service as its own process reaches it."""
        return _Inside(self, node, service) if node in self.old else service

    def _known(self, value: Any) -> Any:
        if isinstance(value, tuple | list):
            found = [self._known(each) for each in value]
            return value if all(map(_same, found, value)) else type(value)(found)
        if not isinstance(value, msgspec.Struct):
            return value
        changed = {name: default for name, default in self._later(type(value)) if getattr(value, name) != default}
        for name in value.__struct_fields__:
            before = getattr(value, name)
            if name not in changed and isinstance(before, tuple | list | msgspec.Struct):
                after = self._known(before)
                changed |= {} if after is before else {name: after}
        return replace(value, **changed) if changed else value

    def _later(self, kind: type[msgspec.Struct]) -> Iterable[tuple[str, Any]]:
        return ((name, _default(kind, name)) for name in self.unknown.get(kind.__name__, ()))


class _Inside:
    """A service within an old process."""

    def __init__(self, versions: Versions, node: Node, service: Any) -> None:
        self._versions, self._node, self._service = versions, node, service

    def __getattr__(self, method: str) -> Any:
        return functools.partial(self._call, method)

    async def _call(self, method: str, call: Any, *args: Any, **named: Any) -> Any:
        versions, node = self._versions, self._node
        versions.refuse(node, method)
        answer = await getattr(self._service, method)(call, *versions.crossing(node, node, args), **named)
        return versions.crossing(node, node, answer)


def begin(world: World, rng: random.Random) -> Versions:
    """Make all nodes ones of the version before."""
    unknown = LATER | MUCH_LATER if rng.random() < MUCH else LATER
    versions = world.network.versions = Versions(set(world.nodes()), unknown, rng)
    if rng.random() < MIXED:
        shepherds = [shepherd.node for shepherd in world.shepherds]
        versions.stay = rng.sample(shepherds, rng.randint(1, len(shepherds) - 1))
    return versions


async def upgrade(world: World, versions: Versions, chaos: Chaos) -> None:
    """Replace one node after the other, during all other faults."""
    for node, renew in _in_order(world):
        await world.clock.sleep(versions.rng.randint(500, NEXT_MS_MAX))
        if node in versions.old and node not in versions.stay and await chaos.take(node, PATIENCE_MS):
            await _renewed(world, versions, node, renew)
            chaos.put_back(node)


async def finish(world: World, versions: Versions, *, all_of_them: bool) -> None:
    """Replace those that are left, when faults have stopped."""
    for node, renew in _in_order(world):
        if node in versions.old and (all_of_them or node not in versions.stay):
            await _renewed(world, versions, node, renew)


async def _renewed(world: World, versions: Versions, node: Node, renew: Callable[[Callable[[], None]], Any]) -> None:
    world.note(f"UPGRADE {node.name}")
    await renew(lambda: versions.old.discard(node))


def _in_order(world: World) -> list[tuple[Node, Callable[[Callable[[], None]], Any]]]:
    """Nodes with Librarians and the A-Hash, then lone Bartenders, then Shepherds; and how each is replaced."""

    async def host_anew(host: Any, meanwhile: Callable[[], None]) -> None:
        await world.crash_host(host)
        meanwhile()
        await world.clock.sleep(500)
        await world.restart_host(host)

    async def shepherd_anew(shepherd: Any, meanwhile: Callable[[], None]) -> None:
        await world.stop(shepherd)
        meanwhile()
        await world.clock.sleep(500)
        while True:
            try:
                return await world.restart(shepherd)
            except CheloniaError as error:
                if error.kind is not Kind.UNAVAILABLE:
                    raise
                await world.crash(shepherd)
                await world.clock.sleep(500)

    hosts = sorted(world.hosts, key=lambda host: host.services == "b")
    found = [(host.node, functools.partial(host_anew, host)) for host in hosts]
    return found + [(each.node, functools.partial(shepherd_anew, each)) for each in world.shepherds]


def _same(one: Any, other: Any) -> bool:
    return one is other


@functools.cache
def _default(kind: type[msgspec.Struct], name: str) -> Any:
    """The default of a field that was left out."""
    [found] = [each for each in msgspec.structs.fields(kind) if each.name == name]
    assert not found.required, f"{kind.__name__}.{name} is a field that cannot be left out"
    return found.default if found.default_factory is msgspec.NODEFAULT else found.default_factory()
