"""Placement: which Shepherds take new bytes."""

import itertools
import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chelonia.core.ids import Dn, Ms, ServiceId
from chelonia.core.librarian import NodeView
from chelonia.core.placement import Demand, choose, crowding, shared, takes

GIB = 1 << 30


def node(name: str, domain: str = "", *, free: int = GIB, state: str = "alive", accepting: bool = True) -> NodeView:
    return NodeView(
        ServiceId(name), Dn("/CN=" + name), state, Ms(0), free_bytes=free, total_bytes=4 * GIB, accepting=accepting,
        domain=domain,
    )  # fmt: skip


def ids(*names: str) -> tuple[ServiceId, ...]:
    return tuple(ServiceId(name) for name in names)


def fixed(value: float = 0.0) -> Callable[[], float]:
    return lambda: value


@pytest.mark.parametrize(
    ("one", "other", "depth"),
    [
        ("", "", 0),
        ("", "s", 0),
        ("s", "s", 1),
        ("s/r1/n1", "s/r2/n1", 1),
        ("s/r1/n1", "s/r1/n2", 2),
        ("s/r1/n1", "s/r1/n1", 3),
        ("s1/r/n", "s2/r/n", 0),
        ("site", "site2", 0),
    ],
)
def test_domains_are_compared_by_whole_leading_components(one: str, other: str, depth: int) -> None:
    assert shared(one, other) == depth
    assert shared(other, one) == depth


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
    assert crowding("", ["", ""]) == (0, 0)


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
    known = {n.shepherd: n.domain for n in nodes}
    for step, service in enumerate(chosen):
        before = [known[s] for s in itertools.chain(holders, chosen[:step])]
        left = [n for n in fit.values() if n.shepherd not in chosen[:step]]
        assert crowding(known[service], before) == min(crowding(n.domain, before) for n in left)
