"""The replicated A-Hash on virtual time: seeds under which everything breaks, and mistakes that must not pass."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from _pytest.outcomes import Failed

from chelonia.ahash.group import membership
from chelonia.ahash.group.lease import ProtocolPeriods
from chelonia.core import bounds
from tests.sim.replication import Broken, Node, World
from tests.sim.replication_mistakes import MISTAKES, Plant
from tests.sim.replication_scenario import STALE_US, Done, Scenario, check_history, run_seed

SMOKE = 15
"""How many of the scenario's seeds one `seed` of the test stands for: they are short."""


def _name(value: object) -> str:
    return getattr(value, "__name__", "seeds")


def test_nothing_acknowledged_is_lost_whatever_breaks(seed: int) -> None:
    """Replay one: `make sim SEEDS=<seed> ARGS=replication`."""
    for each in range((seed - 1) * SMOKE + 1, seed * SMOKE + 1):
        outcome = run_seed(each)
        assert outcome.terms >= 1
        assert outcome.written >= 5, "so much broke that nothing was tested"


@pytest.mark.parametrize(
    ("round_trip_ms", "far_us"), [(300, None), (1000, None), (300, (100_000, 150_000)), (1000, (300_000, 500_000))]
)
def test_nor_with_leases_made_for_a_distance(round_trip_ms: int, far_us: tuple[int, int] | None) -> None:
    """Whether the replicas are that far from each other or not."""
    for seed in range(1, 13):
        outcome = Scenario(seed, round_trip_ms, far_us).run()
        assert outcome.terms >= 1
        assert outcome.written >= 3, "so much broke that nothing was tested"


def test_nothing_acknowledged_is_lost_whatever_clocks_show() -> None:
    """Strong reads rest on leases, and so on clocks. Acknowledged writes do not, even where a clock jumps by an hour or
    stops with its machine."""
    for seed in range(1, 61):
        outcome = Scenario(seed, true_clocks=False).run()
        assert outcome.terms >= 1
        assert outcome.written >= 5, "so much broke that nothing was tested"


@pytest.mark.parametrize("both_crash", [False, True])
def test_a_new_voter_that_has_more_than_who_began_the_group_becomes_master(*, both_crash: bool) -> None:
    """A fresh group had no master for 8 minutes. Its founder had lost a commit that the first other voter had
    acknowledged, and that voter did not know yet that it votes."""
    named = 0
    for seed in range(1, 13):
        world = World(seed, 1, 2)
        world.calm = True
        first, other = world.nodes[1], world.nodes[3]
        world.run(3_000_000)
        assert first.process is not None
        first.process.change_members(partial(membership.promote, replica=3))
        while first.disk.synced >= other.disk.synced:
            if first.process.replica.membership.number == 3:
                first.process.write(((f"{world.now_us}", "a", ""),), lambda answer: None)
            world.run(world.now_us + 100)
        first.crash()
        named += any(op[1] == "members" and op[2].number > 1 for record in first.disk.log for op in record.ops)
        if both_crash:
            other.crash()
            other.start()
        first.start()
        world.run(world.now_us + 3_000_000)
        _write(world, _master(world), "after")
    assert named >= 6, "who began the group goes by a record with two voters"


def test_a_seed_is_one_history() -> None:
    assert _story(7) == _story(7)
    assert _story(7) != _story(8)


def _story(seed: int) -> list[tuple[object, ...]]:
    scenario = Scenario(seed)
    scenario.run()
    return [(done.kind, done.key, done.value, done.call_us, done.return_us) for done in scenario.history]


@pytest.mark.parametrize(("plant", "seeds"), [(plant, seeds) for plant, seeds, _ in MISTAKES if seeds], ids=_name)
def test_a_planted_mistake_is_caught(plant: Plant, seeds: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """At least one of the seeds that show it does so again; without it none of them fails."""
    for seed in seeds:
        run_seed(seed)
    plant(monkeypatch)
    caught = []
    for seed in seeds:
        try:
            run_seed(seed)
        except (Broken, AssertionError) as found:
            caught.append(str(found))
    assert caught, "the simulator has gone blind to this mistake: look for other seeds that show it"


@pytest.mark.parametrize(
    ("plant", "rule"), [(plant, rule) for plant, _, rules in MISTAKES for rule in rules], ids=_name
)
def test_a_planted_mistake_fails_a_unit_test(
    plant: Plant, rule: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, Failed)):
        rule()


def test_every_planted_mistake_is_caught_by_something() -> None:
    assert [plant.__name__ for plant, seeds, rules in MISTAKES if not seeds and not rules] == []


@pytest.mark.parametrize("voters", [3, 5])
def test_starved_replicas_keep_their_master(voters: int) -> None:
    """Each replica has the processor for a moment now and then: that must not cost a master its office."""
    for seed in range(1, 7):
        world = World(seed, voters)
        world.calm = True
        world.starve(200_000, 500_000)
        world.run(20_000_000)
        assert world.terms_opened >= 1
        assert world.terms_begun <= 3


@pytest.mark.parametrize("all_up", [True, False])
def test_where_nobody_has_the_processor_for_long_a_master_stays_and_changes_go_through(all_up: bool) -> None:
    """Each is stopped for longer than any usual lease, over and over: leases last longer, and afterwards as usual."""
    for seed in range(1, 5):
        world = World(seed, 3)
        world.calm = True
        world.run(2_000_000)
        if not all_up:
            world.nodes[seed % 3 + 1].crash()
        begun, done = world.terms_begun, list[object]()
        world.starve(400_000, 900_000)
        for second in range(40):
            for node in world.nodes.values():
                if node.process is not None:
                    node.process.write(((f"{second}.{node.own}", "a", "x"),), done.append)
            world.run(world.now_us + 1_000_000)
        assert world.terms_begun <= begun + 3
        assert sum(each is not None for each in done) >= 4
        stretches = [
            node.process.replica.status(node.clock_ms()).stretch for node in world.nodes.values() if node.process
        ]
        assert 1 < max(stretches) <= bounds.LEASE_STRETCH_MAX
        world.feed()
        world.run(world.now_us + 25_000_000)
        stretches = [
            node.process.replica.status(node.clock_ms()).stretch for node in world.nodes.values() if node.process
        ]
        assert set(stretches) == {1}


def test_nothing_acknowledged_is_lost_while_leases_of_different_length_are_granted() -> None:
    """Each starved replica asks for leases of its own length, and is killed and frozen on top."""
    for seed in range(1, 41):
        scenario = Scenario(seed)
        world = scenario.world
        world.at(500_000, None, 0, world.starve, 150_000, 500_000)
        world.at(4_900_000, None, 0, world.feed)
        outcome = scenario.run()
        assert outcome.terms >= 1


def test_a_copy_that_stood_still_shows_nothing_old() -> None:
    """While it is frozen its master dies and the others go on. Then it reads the dead master's old messages."""
    for seed in range(1, 7):
        world = World(seed, 3)
        world.calm = True
        world.run(4_000_000)
        master, frozen = _master(world), world.nodes[1]
        if master is frozen:
            frozen = world.nodes[2]
        _write(world, master, "old")
        frozen.freeze()
        world.run(world.now_us + 200_000)
        master.crash()
        world.run(world.now_us + 300_000)
        master.restart()
        world.run(world.now_us + 3_000_000)
        _write(world, _master(world), "new")
        world.run(world.now_us + 2_000_000)
        frozen.thaw()
        shown: list[str] = []
        for _ in range(100):
            assert frozen.process is not None
            frozen.process.read_local("a", 0, lambda found, told=shown: told.append(found[0]) if found else None)
            world.run(world.now_us + 10_000)
        assert set(shown) == {"new"}


def _master(world: World) -> Node:
    return next(node for node in world.nodes.values() if node.process is not None and node.process.opened is not None)


def _write(world: World, node: Node, value: str) -> None:
    done: list[object] = []
    assert node.process is not None
    node.process.write(((value, "a", value),), done.append)
    world.run(world.now_us + 200_000)
    assert done
    assert done[0] is not None


@pytest.mark.parametrize("voters", [3, 5])
@pytest.mark.parametrize(
    ("round_trip_ms", "far_us"),
    [
        (100, (50_000, 60_000)),
        (100, (50_000, 100_000)),
        (100, (90_000, 110_000)),
        (200, (90_000, 110_000)),
        (300, (100_000, 150_000)),
        (300, (140_000, 160_000)),
        (600, (290_000, 310_000)),
        (1000, (450_000, 510_000)),
        (1000, (200, 900)),
    ],
)
def test_replicas_that_are_far_apart_elect_a_master_and_keep_it(
    voters: int, round_trip_ms: int, far_us: tuple[int, int]
) -> None:
    for seed in range(1, 4):
        world = World(seed, voters, pace=ProtocolPeriods.over(round_trip_ms))
        world.calm = True
        world.far_us = far_us
        world.run(6_000_000 + 10_000 * round_trip_ms)
        assert world.terms_opened == 1
        world.run(world.now_us + 24_000_000)
        assert world.terms_begun == world.terms_opened == 1, "nobody gives his master up for the distance"
        next(node for node in world.nodes.values() if node.process and node.process.opened).crash()
        world.run(world.now_us + 6_000_000 + 10_000 * round_trip_ms)
        assert world.terms_opened == 2


def test_the_checks_of_histories_can_fail() -> None:
    """Each bad history breaks one check:
    - a write ordered before one answered earlier
    - a read of an older or lost value
    - a session that goes back
    - an old copy
    """
    order = {"x": 1, "y": 2}
    written = [Done("write", 0, "a", "x", 0, 10), Done("write", 1, "a", "y", 20, 30)]
    check_history([*written, Done("strong", 0, "a", "y", 40, 50), Done("local", 2, "a", "x", 60, 70)], order)
    late = STALE_US + 50
    for bad in (
        Done("local", 2, "a", "x", late, late + 10),
        Done("strong", 0, "a", "x", 40, 50),
        Done("strong", 0, "a", None, 40, 50),
        Done("strong", 0, "a", "z", 40, 50),
        Done("local", 1, "a", "x", 40, 50),
        Done("write", 2, "a", "x", 40, 50),
    ):
        with pytest.raises(Broken):
            check_history([*written, bad], order)


@pytest.mark.parametrize("order", ["old first", "new first", "all at once", "new and one old"])
def test_an_old_copy_of_a_majority_does_not_cut_the_newer_replica_back(order: str) -> None:
    """Two of three disks are put back by mistake: the third's acknowledged changes stay, and the replicas log it."""
    for seed in range(1, 13):  # each of the three is the newer one four times
        world, newer, old = _with_old_disks(seed)
        first = {
            "old first": old,
            "new first": [newer],
            "all at once": [*old, newer],
            "new and one old": [newer, old[0]],
        }
        for node in first[order]:
            node.restart()
        world.run(world.now_us + 5_000_000)
        if order == "old first":
            _write(world, _master(world), "twin")
        for node in world.nodes.values():
            node.restart()
        world.run(world.now_us + 8_000_000)
        assert "late" in newer.process.engine.state.requests, f"seed {seed}: the newer replica was cut back"
        master = _master(world)
        _write(world, master, f"after {seed}")
        world.run(world.now_us + 1_000_000)
        told = {node.own: node.process.replica.status(node.clock_ms()).parted for node in world.nodes.values()}
        if master.process.engine.state.requests >= {"late"}:
            assert order != "old first"
            assert not any(told.values()), f"seed {seed}: {told}"
        else:
            assert order in ("old first", "all at once"), f"seed {seed}: the newer one should have won"
            assert told[newer.own] == tuple(sorted(each.own for each in old)), f"seed {seed}: {told}"
            assert all(newer.own in told[each.own] for each in old), f"seed {seed}: {told}"


def test_two_histories_have_no_master_together() -> None:
    """One old disk with later acknowledged changes meets the newer one, without the third: neither gives way."""
    for seed in range(1, 7):
        world, newer, old = _with_old_disks(seed)
        for node in old:
            node.restart()
        world.run(world.now_us + 5_000_000)
        _write(world, _master(world), "twin")
        world.run(world.now_us + 500_000)
        old[1].crash()
        newer.restart()
        begun = world.terms_begun
        world.run(world.now_us + 8_000_000)
        assert "late" in newer.process.engine.state.requests
        assert "twin" in old[0].process.engine.state.requests
        assert world.terms_begun <= begun + 1
        assert newer.process.replica.status(newer.clock_ms()).parted == (old[0].own,)
        old[1].restart()
        world.run(world.now_us + 4_000_000)
        assert _master(world) is not newer


def _with_old_disks(seed: int) -> tuple[World, Node, list[Node]]:
    """Three replicas that are down: one with the acknowledged write `late`, two with older copies of their disks."""
    world = World(seed, 3)
    world.calm = True
    nodes = list(world.nodes.values())
    world.run(4_000_000)
    _write(world, _master(world), "early")
    world.run(world.now_us + 500_000)
    for node in nodes:
        node.crash()
    newer = nodes[seed % 3]
    old = [node for node in nodes if node is not newer]
    images = [node.disk.copy() for node in old]
    for node in nodes:
        node.restart()
    world.run(world.now_us + 5_000_000)
    _write(world, _master(world), "late")
    world.run(world.now_us + 500_000)
    assert all("late" in node.process.engine.state.requests for node in nodes)
    for node in nodes:
        node.crash()
    for node, image in zip(old, images, strict=True):
        node.disk = image
    world.put_back()
    return world, newer, old
