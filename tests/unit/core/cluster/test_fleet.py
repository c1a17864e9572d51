"""The fleet: which Shepherds take new bytes."""

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chelonia.core.cluster.fleet import Fleet
from chelonia.core.cluster.placement import Demand, crowding, place_of, takes
from chelonia.core.ids import Dn, Ms, ServiceId
from chelonia.core.ports.librarian import NodeView

GIB = 1 << 30


def node(name: str, domain: str = "", *, free: int = GIB, state: str = "alive", accepting: bool = True) -> NodeView:
    return NodeView(
        ServiceId(name), Dn("/CN=" + name), state, Ms(0), free_bytes=free, total_bytes=4 * GIB, accepting=accepting,
        domain=domain,
    )  # fmt: skip


def choose(nodes: Iterable[NodeView], demand: Demand, uniform: Callable[[], float]) -> tuple[ServiceId, ...]:
    return Fleet(nodes).choose(demand, uniform)


def ids(*names: str) -> tuple[ServiceId, ...]:
    return tuple(ServiceId(name) for name in names)


def fixed(value: float = 0.0) -> Callable[[], float]:
    return lambda: value


@pytest.mark.parametrize(
    "bad",
    [
        node("b", free=99),
        node("b", free=100),
        node("b", accepting=False),
        node("b", state="offline"),
        node("b", state="maintenance"),
        node("b", state="waiting"),
    ],
    ids=["full", "exactly full", "not accepting", "offline", "maintenance", "waiting"],
)
def test_unfit_nodes_are_never_chosen(bad: NodeView) -> None:
    assert not takes(bad, 100)
    assert choose((node("a", free=101), bad), Demand(2, 100), fixed(0.99)) == ids("a")


def test_an_unknown_size_needs_only_some_space() -> None:
    assert choose((node("a", free=1), node("b", free=0)), Demand(2, -1), fixed()) == ids("a")


def test_the_farthest_domain_comes_first() -> None:
    nodes = (node("a", "s1/r1/n1"), node("b", "s1/r1/n2"), node("c", "s1/r2/n3"), node("d", "s2/r1/n4"))
    demand = Demand(3, 1, holders=ids("a"))
    assert choose(nodes, demand, fixed(0.999)) == ids("d", "c", "b")


def test_nodes_without_a_domain_do_not_crowd_each_other() -> None:
    nodes = tuple(node(name) for name in "abc")
    assert set(choose(nodes, Demand(3, 1), fixed())) == set(ids("a", "b", "c"))


def test_a_node_to_avoid_is_the_last_resort_even_in_a_better_domain() -> None:
    nodes = (node("a", "s1/r1"), node("b", "s1/r2"), node("c", "s2/r1"))
    demand = Demand(2, 1, holders=ids("a"), avoid=ids("c"))
    assert choose(nodes, demand, fixed()) == ids("b", "c")


def test_an_excluded_node_is_never_chosen() -> None:
    assert choose((node("a"), node("b")), Demand(2, 1, exclude=ids("b")), fixed(0.99)) == ids("a")


def test_names_are_compared_exactly_not_by_prefix() -> None:
    nodes = (node("https://h/Shepherd"), node("https://h/Shepherd2"))
    assert choose(nodes, Demand(2, 1, holders=ids("https://h/Shepherd")), fixed()) == ids("https://h/Shepherd2")


def test_free_space_weighs() -> None:
    source = random.Random(7)
    nodes = (node("a", free=1 * GIB), node("b", free=3 * GIB))
    first = Counter(choose(nodes, Demand(1, 1), source.random)[0] for _ in range(2000))
    assert 0.70 < first[ServiceId("b")] / 2000 < 0.80


def test_a_second_shepherd_of_the_same_host_comes_last() -> None:
    nodes = (node("https://h1:1/S"), node("https://h1:2/S"), node("https://h2:1/S"))
    for chance in (0.0, 0.5, 0.999):
        assert set(choose(nodes, Demand(2, 1), fixed(chance))) != set(ids("https://h1:1/S", "https://h1:2/S"))
    assert choose(nodes, Demand(2, 1, holders=ids("https://h1:1/S")), fixed(0.999))[0] == "https://h2:1/S"


def test_among_equally_close_places_the_one_with_fewer_copies_around_is_taken() -> None:
    """All racks are used: the second copy of a rack goes where its site has fewer, however much is free elsewhere."""
    nodes = (
        node("a1", "a/r1"), node("a2", "a/r2"), node("b1", "b/r1"),
        node("a9", "a/r1", free=999 * GIB), node("b9", "b/r1"),
    )  # fmt: skip
    assert choose(nodes, Demand(1, 1, holders=ids("a1", "a2", "b1")), fixed()) == ids("b9")


def test_a_copy_on_an_absent_node_still_counts_for_its_place() -> None:
    nodes = (node("a", "s1", state="offline"), node("b", "s1"), node("c", "s2"))
    for chance in (0.0, 0.999):
        assert choose(nodes, Demand(1, 1, holders=ids("a")), fixed(chance)) == ids("c")


def test_draws_follow_the_weights_across_the_tree() -> None:
    """Nodes other than holders, barred and too full ones are drawn in proportion to free space."""
    source = random.Random(11)
    nodes = (
        node("held", "s1/r1", free=9 * GIB), node("a", "s2/r1", free=1 * GIB), node("b", "s2/r2", free=2 * GIB),
        node("barred", "s2/r2", free=9 * GIB), node("c", "s3", free=3 * GIB), node("d", free=4 * GIB),
        node("small", "s3", free=10),
    )  # fmt: skip
    demand = Demand(1, 10, holders=ids("held"), exclude=ids("barred"))
    fleet = Fleet(nodes)
    drawn = Counter(fleet.choose(demand, source.random)[0] for _ in range(10_000))
    assert set(drawn) == set(ids("a", "b", "c", "d"))
    for name, share in (("a", 0.1), ("b", 0.2), ("c", 0.3), ("d", 0.4)):
        assert abs(drawn[ServiceId(name)] / 10_000 - share) < 0.02


domains = st.sampled_from(["", "s1/r1/n1", "s1/r1/n2", "s1/r2/n3", "s2/r1/n4", "s2", "s1"])
anything = st.builds(
    node,
    st.text("abcdef", min_size=1, max_size=3),
    domains,
    free=st.integers(0, 10),
    state=st.sampled_from(["alive", "alive", "offline", "maintenance"]),
    accepting=st.booleans(),
)
clusters = st.lists(anything, max_size=10, unique_by=lambda n: n.shepherd)


@given(clusters, st.integers(0, 6), st.integers(-1, 10), st.integers(0, 3), st.integers(0, 2**32))
def test_a_choice_keeps_the_rules(nodes: list[NodeView], count: int, size: int, held: int, seed: int) -> None:
    holders = tuple(n.shepherd for n in nodes[:held])
    demand = Demand(count, size, holders=holders)
    chosen = choose(nodes, demand, random.Random(seed).random)
    fit = {n.shepherd: n for n in nodes if takes(n, size) and n.shepherd not in holders}
    assert len(set(chosen)) == len(chosen) == min(count, len(fit))
    assert all(service in fit for service in chosen)
    assert choose(list(reversed(nodes)), demand, random.Random(seed).random) == chosen
    known = {n.shepherd: place_of(n) for n in nodes}
    for step, service in enumerate(chosen):
        before = [known[s] for s in itertools.chain(holders, chosen[:step])]
        left = [n for n in fit.values() if n.shepherd not in chosen[:step]]
        assert crowding(known[service], before) == min(crowding(place_of(n), before) for n in left)
