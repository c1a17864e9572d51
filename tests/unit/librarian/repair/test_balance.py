"""Moves off a draining node, a full disk, a shared domain: they end, and never cost a file a copy."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chelonia.core.cluster.replicas import Location, ReplicaState
from chelonia.core.ids import BlobId, Dn, Ms, ReferenceId, ServiceId
from chelonia.core.ports.librarian import NodeView
from chelonia.core.values import replace
from chelonia.librarian.repair.balance.decide import Balance, BalanceMove, held, move, sources
from chelonia.librarian.repair.guard import Relief
from chelonia.librarian.repair.plan.decide import (
    ApprovedShepherds,
    BlobView,
    NodeHealth,
    RepairPolicy,
    ReplicaOnRecord,
    plan_blob,
)

NOW = Ms(1_000_000)
POLICY = RepairPolicy(repair_delay_ms=600_000, trim_grace_ms=3_000, claim_ms=3_600_000)
EVEN = Balance(0.1, even_out=True, relieved={})
OFF = replace(EVEN, even_out=False)
TOTAL = 1_000


def node(shepherd: ServiceId, spec: str) -> NodeHealth:
    """`<domain>:<used percent>`, then `d` draining, `-` away, `?` not proven, `f` not accepting."""
    domain, _, rest = spec.partition(":")
    used, marks = int(rest.rstrip("d-?f")), rest.lstrip("0123456789")
    view = NodeView(
        shepherd, Dn("/CN=s"), "offline" if "-" in marks else "alive", Ms(0), free_bytes=TOTAL - used * TOTAL // 100,
        total_bytes=TOTAL, accepting="f" not in marks and "d" not in marks, domain=domain,
    )  # fmt: skip
    return NodeHealth(view, "-" not in marks, "-" not in marks and "?" not in marks, draining="d" in marks)


def cluster(specs: str) -> ApprovedShepherds:
    """`s0`, `s1`, ... in the order given."""
    named = ((ServiceId(f"s{number}"), spec) for number, spec in enumerate(specs.split()))
    return ApprovedShepherds.of({shepherd: node(shepherd, spec) for shepherd, spec in named})


LETTERS = {"W": ReplicaState.THIRDWHEEL, "I": ReplicaState.INVALID, "T": ReplicaState.STALLED}


def file(on: str, wanted: int = 2, size: int = 10, name: str = "b") -> BlobView:
    """Verified copies on these nodes; `W` behind a number: surplus, `I`: damaged, `T`: never completed."""
    held = tuple(
        ReplicaOnRecord(
            Location(ServiceId(f"s{where.rstrip('WIT')}"), ReferenceId(f"{name}r{i}")),
            LETTERS.get(where[-1], ReplicaState.ALIVE),
            since_ms=NOW if where.endswith("W") else Ms(0),
        )
        for i, where in enumerate(on.split())
    )
    return BlobView(BlobId(name), 1, wanted, size, Ms(0), held)


def moved(blob: BlobView, nodes: ApprovedShepherds, balance: Balance = EVEN) -> BalanceMove | None:
    return move(blob, plan_blob(blob, nodes, POLICY, NOW), nodes, balance)


@pytest.mark.parametrize(
    ("nodes", "on", "expected"),
    [
        # even enough: nothing
        (":50 :50 :45", "0 1", ""),
        (":50 :50 :40", "0 1", ""),
        # emptier by more than the hysteresis: the copy on the fullest goes
        (":50 :55 :39", "0 1", "s1 s2"),
        (":90 :10 :10", "0 1", "s0 s2"),
        # the emptier one has a copy already, takes nothing, is away
        (":90 :10", "0 1", ""),
        (":90 :50 :10f", "0 1", ""),
        (":90 :50 :10-", "0 1", ""),
        # nothing moves to where copies would be closer
        ("a:90 b:50 b:10", "0 1", ""),
        ("a:90 b:50 a:10", "0 1", "s0 s2"),
        # two copies in one site while another is free: the fuller one goes there, however full that is
        ("a:50 a:60 b:80", "0 1", "s1 s2"),
        ("a/1:50 a/1:60 a/2:80", "0 1", "s1 s2"),
        ("a:50 b:60 c:50", "0 1", ""),
        # a draining node is left for any other, and the last resort is as good as none
        (":50d :50 :90", "0 1", "s0 s2"),
        ("a:50d b:50 b:90", "0 1", "s0 s2"),
        (":50d :50", "0 1", ""),
        (":50d :50d :50", "0 1", "s0 s2|s1 s2"),
        # only whole and quiet files move
        (":90 :50- :10", "0 1", ""),
        (":90 :50? :10", "0 1", ""),
        (":90 :50 :10", "0", ""),
        (":90 :50 :10 :10", "0 1 2W", ""),
        (":90 :50 :10 :10", "0 1 2", ""),
    ],
)
def test_moves(nodes: str, on: str, expected: str) -> None:
    made = moved(file(on), cluster(nodes))
    told = f"{made.leaving} {made.copy.target}" if made else ""
    assert told in expected.split("|")


@pytest.mark.parametrize(
    ("nodes", "on", "wanted", "stays"),
    [
        # on as many as want it, and nobody else takes it: away, not accepting, too small for it, or drained as well
        (":50d :50", "0 1", 2, True),
        (":50d :50 :50-", "0 1", 2, True),
        (":50d :50 :50f", "0 1", 2, True),
        (":50d :50 :100", "0 1", 2, True),
        (":50d :50 :50d", "0 1", 2, True),
        # short, and nobody else takes it
        (":50d :50", "0 1", 3, True),
        (":50d", "0", 2, True),
        # lost: a damaged copy is all there is
        (":50d :50", "0I", 2, True),
        (":50d :50 :50", "0I 1I 2T", 2, True),
        (":50d :50 :50", "0I 1", 2, False),
        (":50d :50 :50", "1I 2T", 2, False),
        # it can move, or does not stay for that reason
        (":50d :50 :50", "0 1", 2, False),
        (":50d :50", "0", 1, False),
        (":50d :50 :50", "0 1", 3, False),
        (":50d :50 :50", "0 1 2W", 2, False),
        (":50d :50?", "0 1", 2, False),
        (":50d- :50", "0 1", 2, False),
        # not drained, or not there
        (":50 :50", "0 1", 2, False),
        (":50 :50", "0 1", 3, False),
        (":50d :50 :50", "1 2", 2, False),
        (":50d :50 :50", "1 2", 3, False),
    ],
)
@pytest.mark.parametrize("balance", [EVEN, OFF])
def test_what_holds_a_drain_up(nodes: str, on: str, wanted: int, stays: bool, balance: Balance) -> None:
    there, blob = cluster(nodes), file(on, wanted)
    plan = plan_blob(blob, there, POLICY, NOW)
    assert (move(blob, plan, there, balance) is None and held(blob, plan, there, ServiceId("s0"))) is stays


def test_the_off_switch_leaves_only_drains() -> None:
    assert moved(file("0 1"), cluster(":90 :10 :10"), OFF) is None
    assert moved(file("0 1"), cluster("a:50 a:60 b:80"), OFF) is None
    assert moved(file("0 1"), cluster(":50d :50 :90"), OFF) is not None


def test_what_is_on_its_way_off_a_disk_no_longer_weighs() -> None:
    nodes = cluster(":60 :45 :45")
    assert moved(file("0 1"), nodes) is not None
    assert moved(file("0 1"), nodes, replace(EVEN, relieved={ServiceId("s0"): 100})) is None


@pytest.mark.parametrize(
    ("nodes", "expected", "off"),
    [
        (":50 :50 :50", "", ""),
        (":50 :50 :39", "s0 s1", ""),
        (":50 :70 :39", "s1 s0", ""),
        (":50 :70d :39f", "s1", "s1"),
        (":50 :70d :39", "s1 s0", "s1"),
        (":50d- :50 :50", "", ""),
        (":90 :10f", "", ""),
    ],
)
def test_sources(nodes: str, expected: str, off: str) -> None:
    assert sources(cluster(nodes), EVEN) == tuple(expected.split())
    assert sources(cluster(nodes), OFF) == tuple(off.split())


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32))
def test_moving_ends_and_no_file_ever_has_fewer_copies(seed: int) -> None:
    """New nodes beside full ones: copies move until nothing more should; domains are apart, a drained node is empty."""
    chance = random.Random(seed)
    count, wanted = chance.randint(4, 8), chance.randint(1, 3)
    domains = [chance.choice(("a/1", "a/2", "b/1", "b/2", "c")) for _ in range(count)]
    draining = chance.choice((None, 0))
    used = [0] * count
    files = []
    for n in range(30):
        on = chance.sample(range(max(wanted, count // 2)), wanted)
        files.append(file(" ".join(map(str, on)), wanted, chance.randint(1, 10), f"b{n}"))
        for where in on:
            used[where] += files[-1].size

    def nodes_now() -> ApprovedShepherds:
        made = {}
        for n in range(count):
            view = NodeView(ServiceId(f"s{n}"), Dn("/"), "alive", Ms(0), 1, TOTAL - used[n], TOTAL, 0, n != draining)
            made[view.shepherd] = NodeHealth(replace(view, domain=domains[n]), True, draining=n == draining)
        return ApprovedShepherds.of(made)

    for step in range(2_000):
        nodes = nodes_now()
        found = next(((i, m) for i, f in enumerate(files) if (m := moved(f, nodes)) is not None), None)
        if found is None:
            break
        index, made = found
        location = Location(made.copy.target, ReferenceId(f"n{step}"))
        more = (*files[index].replicas, ReplicaOnRecord(location, ReplicaState.ALIVE))
        used[int(location.shepherd[1:])] += files[index].size
        files[index] = replace(files[index], version=step + 2, replicas=more)
        nodes = nodes_now()
        (mark,) = plan_blob(files[index], nodes, POLICY, NOW).marks
        kept = tuple(r for r in files[index].replicas if r.location != mark.location)
        assert mark.location != location, "the new copy goes, the worse one stays"
        assert len({r.location.shepherd for r in kept}) == wanted
        used[int(mark.location.shepherd[1:])] -= files[index].size
        files[index] = replace(files[index], replicas=kept)
    else:
        raise AssertionError("it does not end")
    nodes = nodes_now()
    if draining is not None:
        assert used[draining] == 0
    sites = {domain[0] for n, domain in enumerate(domains) if n != draining}
    for f in files:
        homes = {domains[int(r.location.shepherd[1:])][0] for r in f.replicas}
        assert len(homes) == min(wanted, len(sites))


def test_relief_is_counted_for_its_time() -> None:
    one, two = ServiceId("s1"), ServiceId("s2")
    relief = Relief(1_000)
    relief.add(one, 5, Ms(0))
    relief.add(one, 7, Ms(500))
    relief.add(two, 1, Ms(500))
    assert relief.bytes(Ms(999)) == {one: 12, two: 1}
    assert relief.bytes(Ms(1_000)) == {one: 7, two: 1}
    assert relief.bytes(Ms(1_500)) == {}
