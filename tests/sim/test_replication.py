"""The replicated A-Hash on virtual time: seeds under which everything breaks, and mistakes that must not pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from _pytest.outcomes import Failed

from chelonia.ahash.group.lease import Pace
from tests.sim.replication import Broken, Node, World
from tests.sim.replication_mistakes import MISTAKES, Plant
from tests.sim.replication_scenario import STALE_US, Done, Scenario, check_history, run_seed

SMOKE = 25
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
        assert outcome.written >= 5, "so much broke that nothing was tested"


def test_nothing_acknowledged_is_lost_whatever_clocks_show() -> None:
    """Strong reads rest on leases, and so on clocks; acknowledged writes do not: not where a clock jumps by an hour,
    nor where it stands still with its machine."""
    for seed in range(1, 101):
        outcome = Scenario(seed, true_clocks=False).run()
        assert outcome.terms >= 1
        assert outcome.written >= 5, "so much broke that nothing was tested"


def test_a_seed_is_one_history() -> None:
    """Nothing but the seed is drawn from."""
    assert _story(7) == _story(7)
    assert _story(7) != _story(8)


def _story(seed: int) -> list[tuple[object, ...]]:
    scenario = Scenario(seed)
    scenario.run()
    return [(done.kind, done.key, done.value, done.call_us, done.return_us) for done in scenario.history]


@pytest.mark.parametrize(("plant", "seeds"), [(plant, seeds) for plant, seeds, _ in MISTAKES if seeds], ids=_name)
def test_a_planted_mistake_is_caught(plant: Plant, seeds: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Under at least one of the seeds that were found to show it; none of them is broken without it."""
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
    """Nobody is gone, all have the processor for a moment now and then: a master is not given up for that."""
    for seed in range(1, 7):
        world = World(seed, voters)
        world.calm = True
        world.starve(200_000, 500_000)
        world.run(20_000_000)
        assert world.terms_opened >= 1
        assert world.terms_begun <= 3


def test_a_copy_that_stood_still_shows_nothing_old() -> None:
    """While one is frozen its master dies and the others go on; then it reads what the dead one told it long ago."""
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
    for seed in range(1, 7):
        world = World(seed, voters, pace=Pace.over(round_trip_ms))
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
    """A write that stands before one answered earlier; a read of what is older or gone; a session that goes back; an
    old copy."""
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
