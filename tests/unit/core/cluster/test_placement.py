"""Placement: the meaning of a place, and the distance of two."""

import pytest

from chelonia.core.cluster.placement import crowding, host_of, place_of, shared
from chelonia.core.ids import Dn, Ms, ServiceId
from chelonia.core.ports.librarian import NodeView


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
    ("service", "host"),
    [
        ("https://she1.example.org:60003/Shepherd", "she1.example.org"),
        ("https://she1.example.org/Shepherd", "she1.example.org"),
        ("https://[2001:db8::1]:60003/Shepherd", "[2001:db8::1]"),
        ("https://[2001:db8::1]/Shepherd", "[2001:db8::1]"),
        ("she1", "she1"),
    ],
)
def test_the_node_is_the_host_of_the_service_id(service: str, host: str) -> None:
    assert host_of(ServiceId(service)) == host


@pytest.mark.parametrize(
    ("domain", "place"),
    [
        ("", ("h",)),
        ("site", ("site", "h")),
        ("site/rack", ("site", "rack", "h")),
        ("/site//rack/", ("site", "rack", "h")),
    ],
)
def test_a_place_is_the_domain_and_below_it_the_node(domain: str, place: tuple[str, ...]) -> None:
    assert place_of(NodeView(ServiceId("https://h:1/S"), Dn("/CN=s"), "alive", Ms(0), domain=domain)) == place


@pytest.mark.parametrize(
    ("place", "held", "crowded"),
    [
        ("c/r1/h9", "a/r1/h1 b/r1/h2", (0,)),
        ("a/r2/h9", "a/r1/h1 b/r1/h2", (1, 1)),
        ("a/r2/h9", "a/r1/h1 a/r3/h2", (1, 2)),
        ("a/r1/h9", "a/r1/h1 a/r3/h2", (2, 1, 2)),
        ("a/r1/h1", "a/r1/h1 a/r1/h2 a/r3/h3", (3, 1, 2, 3)),
        ("h1", "h2 h3", (0,)),
        ("h1", "h1 h1", (1, 2)),
    ],
)
def test_crowding_counts_from_the_closest_outwards(place: str, held: str, crowded: tuple[int, ...]) -> None:
    assert crowding(tuple(place.split("/")), [tuple(other.split("/")) for other in held.split()]) == crowded
