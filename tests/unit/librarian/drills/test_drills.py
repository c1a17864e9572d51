"""Drills: when one may begin, its targets, its course and end, and its record."""

import asyncio
from typing import Any

import pytest
from msgspec import structs

from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.cluster.drills import Drill, DrillAction, DrillOrder, DrillStage, DrillStatus, looked, looks_at
from chelonia.core.cluster.healing import HealAction, HealControl, HealOrder
from chelonia.core.cluster.replicas import ReplicaState
from chelonia.core.contents.extents import Extent
from chelonia.core.contents.uploads import SpliceFile
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BlobId, Dn, Guid, Ms, ReferenceId, RequestKey, ServiceId
from chelonia.core.metadata import StoredObject
from chelonia.core.ports.ahash import AHash, Element, Position, TransactOutcome, Unmet
from chelonia.core.ports.librarian import NodeView
from chelonia.core.values import replace
from chelonia.librarian.drills import decide as drills
from chelonia.librarian.drills.decide import DrillView, Holding, Scene
from chelonia.librarian.metadata.elements import LEASE
from chelonia.librarian.repair.plan.decide import NodeHealth
from chelonia.librarian.service import LibrarianService
from chelonia.librarian.settings import LibrarianSettings
from tests.sim.virtual_loop import virtual
from tests.support.failing import fails
from tests.support.librarian import ADMIN, BARTENDER, keyed, pieced
from tests.support.paper import Paper, paper
from tests.unit.librarian.repair.test_progress import leads, successor

PROD, DEV = LibrarianSettings(), LibrarianSettings.dev(ADMIN.dn)
SILENCE, CORRUPT = DrillOrder(DrillAction.SILENCE), DrillOrder(DrillAction.CORRUPT)
ONE = ServiceId("s0")
FREE = HealControl(0, 4)


def node(number: int, mark: str = "+") -> NodeHealth:
    """`+` as it should be, `-` away, `m` in maintenance, `d` draining, `!` coming and going, `?` unproven, `f` full."""
    state = {"-": "offline", "m": "maintenance"}.get(mark, "alive")
    view = NodeView(
        ServiceId(f"s{number}"), Dn("/CN=s"), state, Ms(0), 1, 1000, 2000, 5, mark not in "fd", f"site{number}"
    )
    return NodeHealth(view, mark not in "-m", mark not in "-m?", mark != "!", mark == "d")


def scene(marks: str = "+++++", **changed: object) -> Scene:
    found = {n.view.shepherd: n for n in (node(number, mark) for number, mark in enumerate(marks))}
    return replace(Scene(found, FREE, 0), **changed)  # type: ignore[arg-type]


def held(number: int = 1, **changed: object) -> Holding:
    """A file of ten bytes with three copies as wanted, one of them here."""
    names = (BlobId(f"b{number}"), ReferenceId(f"r{number}"), Guid(f"g{number}"), f"/f{number}")
    return replace(Holding(*names, 10, 3, 2, True, True), **changed)  # type: ignore[arg-type]


# --- whether it may begin ---------------------------------------------------------------------------------------------


def test_a_whole_cluster_is_ready() -> None:
    assert drills.unready(scene()) == []


@pytest.mark.parametrize(
    ("what", "reason", "cure"),
    [
        (scene("++-++"), "s2 is away", "node forget"),
        (scene("++m++"), "s2 is in maintenance", "--end"),
        (scene("++d++"), "s2 is being drained", "undrain"),
        (scene("++!++"), "s2 comes and goes", "steady"),
        (scene("++?++"), "s2 has not compared", "wait"),
        (scene(control=replace(FREE, paused_by="/CN=admin")), "paused by /CN=admin", "heal resume"),
        (scene(exposed=2), "fewer verified copies than wanted of 2 files: ", "heal status"),
        (scene(exposed=1), "fewer verified copies than wanted of 1 file: ", "ask for fewer"),
        (scene(held_back=3), "held back", "admin status"),
        (scene(running="d1"), "drill d1 is running", "drill stop"),
    ],
)
def test_what_is_not_whole_is_named_with_its_cure(what: Scene, reason: str, cure: str) -> None:
    [said] = drills.unready(what)
    assert reason in said
    assert cure in said


@pytest.mark.parametrize(
    ("order", "holds", "marks", "reason"),
    [
        (SILENCE, [], "+++++", "holds nothing"),
        (replace(SILENCE, files_max=1), [held(1), held(2)], "+++++", "more than 1 files"),
        (SILENCE, [held(elsewhere=0)], "+++++", "1 files could not be read meanwhile, /f1"),
        (replace(SILENCE, one_left_max=9), [held(elsewhere=0)], "+++++", "could not be read"),
        (SILENCE, [held(elsewhere=1)], "+++++", "1 files would be left with one copy, /f1"),
        (SILENCE, [held()], "+++", "2 other Shepherds take copies, files want up to 3"),
        (SILENCE, [held()], "+++f", "2 other Shepherds take copies"),
        (SILENCE, [held(size=2001)], "++++", "2001 bytes would be copied"),
        (CORRUPT, [], "+++++", "no copy that can be spared"),
        (CORRUPT, [held(elsewhere=1, wanted=2)], "+++++", "no copy that can be spared"),
        (CORRUPT, [held(elsewhere=2, wanted=4)], "+++++", "no copy that can be spared"),
        (CORRUPT, [held(sound=False)], "+++++", "no copy that can be spared"),
        (CORRUPT, [held(spare=False)], "+++++", "no copy that can be spared"),
        (CORRUPT, [held(size=0)], "+++++", "no copy that can be spared"),
        (CORRUPT, [held(guid="sys:snapshots")], "+++++", "no copy that can be spared"),
        (CORRUPT, [held()], "+++", "no copy that can be spared"),
        (CORRUPT, [held(size=501)], "++++", "no copy that can be spared"),
    ],
)
def test_what_would_not_be_safe_is_refused(order: DrillOrder, holds: list[Holding], marks: str, reason: str) -> None:
    [said] = drills.unsafe(order, ONE, holds, scene(marks))
    assert reason in said


def test_what_is_safe_is_not_refused() -> None:
    assert drills.unsafe(SILENCE, ONE, [held(1), held(2, wanted=1, elsewhere=2)], scene("++++")) == []
    assert drills.unsafe(replace(SILENCE, one_left_max=1), ONE, [held(elsewhere=1)], scene("++++")) == []
    assert drills.unsafe(CORRUPT, ONE, [held(), held(2, elsewhere=0)], scene("++++")) == []
    assert drills.spare_copies([held(2), held(1), held(3, elsewhere=0)], scene("++++"), ONE) == [held(1), held(2)]


def test_others_in_one_domain_are_too_few() -> None:
    crowd = scene("+++")
    together = {s: replace(n, view=replace(n.view, domain="site1")) for s, n in crowd.nodes.items()}
    [said] = drills.unsafe(SILENCE, ONE, [held(wanted=2)], replace(crowd, nodes=together))
    assert "1 failure domain" in said


def test_the_shepherd_with_the_fewest_replicas_comes_first_unless_one_is_named() -> None:
    found = scene()
    fewest = replace(found.nodes[ServiceId("s3")], view=replace(found.nodes[ServiceId("s3")].view, replicas=1))
    some = replace(found, nodes={**found.nodes, ServiceId("s3"): fewest})
    assert drills.candidates(SILENCE, some) == ("s3", "s0", "s1", "s2", "s4")
    assert drills.candidates(replace(SILENCE, shepherd=ServiceId("s1")), some) == ("s1",)
    with pytest.raises(CheloniaError, match="known: s0, s1"):
        drills.candidates(replace(SILENCE, shepherd=ServiceId("s9")), some)


@pytest.mark.parametrize(
    "order",
    [
        replace(SILENCE, duration_ms=2 * PROD.lease_ms - 1),
        replace(SILENCE, duration_ms=3_600_001),
        replace(SILENCE, within_ms=0),
        replace(SILENCE, files_max=0),
        replace(SILENCE, files_max=10_001),
        replace(SILENCE, one_left_max=-1),
    ],
)
def test_an_order_that_cannot_be_is_refused(order: DrillOrder) -> None:
    with fails(Kind.BAD_REQUEST):
        drills.check_order(order, PROD)


def test_a_silence_of_no_particular_length_outlasts_the_delay_of_repair() -> None:
    assert drills.duration_ms(SILENCE, PROD) == PROD.repair_delay_ms + 10_000 + 60_000
    assert drills.duration_ms(SILENCE, replace(PROD, repair_delay_ms=10**8)) == 3_600_000
    assert drills.duration_ms(CORRUPT, PROD) == 0
    drills.check_order(SILENCE, PROD)


# --- how it goes on ---------------------------------------------------------------------------------------------------

RUNNING = Drill(
    "d1", 1, DrillAction.SILENCE, DrillStage.RUNNING, ONE, files=9, began_ms=Ms(1_000), until_ms=Ms(11_000),
    deadline_ms=Ms(20_000),
)  # fmt: skip
DAMAGED = replace(RUNNING, action=DrillAction.CORRUPT, until_ms=Ms(1_000), blob=BlobId("b"), files=1)
HERE, GONE = DrillView(True, {}, answered_ms=2_000), DrillView(False, {2: 9}, 9)
WORSE = replace(GONE, others_away=(ServiceId("s4"),))
MUTE = replace(HERE, answered_ms=0)


def told(drill: Drill, *looks: tuple[DrillView, int]) -> Drill:
    for seen, now in looks:
        drill = drills.progressed(drill, seen, Ms(now))
    return drill


def test_a_silence_is_noticed_healed_away_and_the_shepherd_called_back() -> None:
    noticed = told(RUNNING, (HERE, 1_100), (GONE, 2_000))
    assert (noticed.noticed_ms, noticed.touched, noticed.recalled_ms) == (2_000, 9, 0)
    searching = told(noticed, (replace(GONE, exposed={}, searching=True), 2_500))
    assert not searching.whole_ms, "what is not known yet may be exposed too"
    whole = told(searching, (replace(GONE, exposed={}), 3_000))
    assert (whole.whole_ms, whole.recalled_ms, whole.stage) == (3_000, 3_000, DrillStage.RUNNING)
    ended = told(whole, (replace(GONE, exposed={}), 3_100), (HERE, 3_500))
    assert (ended.stage, ended.whole_ms, ended.ended_ms, ended.why) == (DrillStage.HEALED, 3_000, 3_500, "")


def test_each_look_that_differs_is_kept_for_the_curve() -> None:
    drill = told(RUNNING, (HERE, 1_100), (GONE, 2_000), (GONE, 2_500), (replace(GONE, exposed={1: 1, 2: 3}), 3_000))
    assert drill.looks == "1000:2=9 2000:1=1,2=3"
    assert looks_at(told(drill, (replace(GONE, exposed={}), 4_000)))[-1] == (3_000, {})
    for number in range(1_000):
        drill = replace(drill, looks=looked(drill, {2: number}, Ms(5_000 + number)))
    assert len(looks_at(drill)) <= bounds.DRILL_LOOKS_MAX
    assert looks_at(drill)[-1] == (4_999, {2: 999})
    assert looks_at(drill)[0][0] < 4_999 - 2 * bounds.DRILL_LOOKS_MAX, "of earlier looks fewer are kept, and not none"


def test_a_silence_shorter_than_repair_waits_is_healed_by_the_return() -> None:
    ended = told(RUNNING, (GONE, 2_000), (GONE, 11_100), (HERE, 12_000))
    assert (ended.stage, ended.whole_ms, ended.recalled_ms) == (DrillStage.HEALED, 12_000, 11_100)


@pytest.mark.parametrize(
    ("looks", "stage", "why"),
    [
        ([(GONE, 2_000), (WORSE, 2_100), (HERE, 2_500)], DrillStage.CALLED_OFF, "s4 went away meanwhile"),
        (
            [(HERE, 11_100), (MUTE, 11_200), (HERE, 11_300)],
            DrillStage.CALLED_OFF,
            "the Shepherd was never found silent",
        ),
        ([(GONE, 2_000), (GONE, 20_001)], DrillStage.LATE, "9 files are not whole yet"),
        ([(GONE, 2_000), (replace(GONE, exposed={}), 20_001)], DrillStage.LATE, "the Shepherd is not back yet"),
        ([(GONE, 2_000), (WORSE, 2_100), (WORSE, 20_001)], DrillStage.LATE, "s4 went away meanwhile"),
        (
            [(GONE, 2_000), (WORSE, 2_100), (MUTE, 2_500), (HERE, 3_000)],
            DrillStage.CALLED_OFF,
            "s4 went away meanwhile",
        ),
        ([(GONE, 2_000), (WORSE, 2_100), (MUTE, 20_001)], DrillStage.LATE, "s4 went away meanwhile"),
    ],
)
def test_what_goes_wrong_is_told(looks: list[tuple[DrillView, int]], stage: DrillStage, why: str) -> None:
    ended = told(RUNNING, *looks)
    assert (ended.stage, ended.why, ended.ended_ms) == (stage, why, looks[-1][1])


def test_damage_is_noticed_replaced_and_told_when_it_is_not() -> None:
    alive = DrillView(True, {}, state=ReplicaState.ALIVE, good=2, wanted=3)
    damaged = replace(alive, exposed={2: 1}, state=ReplicaState.INVALID)
    ended = told(DAMAGED, (alive, 1_100), (damaged, 1_500), (replace(damaged, exposed={}, good=3), 2_000))
    assert (ended.noticed_ms, ended.whole_ms, ended.stage) == (1_500, 2_000, DrillStage.HEALED)
    unseen = told(DAMAGED, (replace(alive, good=3), 1_100))
    assert unseen.running, "damage that nobody has noticed is not healed"
    assert told(DAMAGED, (damaged, 2_000), (damaged, 20_001)).stage is DrillStage.LATE
    assert told(DAMAGED, (alive, 20_001)).why == "no damage was found", "its Shepherd was never away"
    found = told(DAMAGED, (damaged, 2_000), (replace(damaged, exposed={}), 20_001))
    assert found.why == "1 files are not whole yet", "a copy elsewhere does not count yet"
    assert told(DAMAGED, (replace(alive, wanted=0), 2_000)).why == "the file was deleted meanwhile"


def test_a_damage_that_was_called_off_and_never_noticed_was_not_done() -> None:
    whole = replace(HERE, answered_ms=2_000, state=ReplicaState.ALIVE, good=2, wanted=3)
    mute, damaged = replace(whole, answered_ms=0), replace(whole, exposed={2: 1}, state=ReplicaState.INVALID)
    off = drills.called_off(replace(DAMAGED, deadline_ms=Ms(600_000)), "no answer", Ms(2_000))
    later = 2_000 + drills.NOTICED_MS
    assert told(off, (whole, later - 1)).running, "it may be noticed yet"
    assert told(off, (mute, later)).running, "it may be done yet"
    assert told(off, (mute, later), (replace(whole, answered_ms=later), later)).running, "it was cut off until now"
    ended = told(off, (whole, later))
    assert (ended.stage, ended.why, ended.ended_ms) == (DrillStage.CALLED_OFF, "no answer", later)
    assert told(off, (damaged, 3_000), (damaged, later)).running, "it is repaired first"


def test_a_drill_is_stored_and_read_as_it_was() -> None:
    full = replace(
        RUNNING, reference=ReferenceId("r"), blob=BlobId("b"), name="/a", by="/CN=admin", noticed_ms=Ms(1), touched=2,
        whole_ms=Ms(3), recalled_ms=Ms(4), ended_ms=Ms(5), why="because",
    )  # fmt: skip
    for drill in (full, RUNNING, Drill()):
        sections: dict[str, str] = {}
        for element in drills.storing(drill):
            if element.value:
                sections[element.property] = element.value
        assert drills.stored_drill(StoredObject("sys:repair", 1, {"drill": sections})) == drill  # type: ignore[arg-type]


# --- all of it --------------------------------------------------------------------------------------------------------


async def status(p: Paper) -> DrillStatus:
    return await p.b.service.drill_status(ADMIN)


async def over(p: Paper) -> bool:
    return not (await status(p)).drill.running


@pytest.mark.expect_log("DRILL")
@virtual
async def test_a_silent_shepherd_is_healed_away_and_comes_back() -> None:
    async with paper(shepherds=5) as p:
        await asyncio.sleep(1)
        blobs = [(await p.upload(f"f{n}", copies=3))[1] for n in range(19)]
        blobs += await of_two_blobs(p, "f19")
        one = p.shepherds[p.b.shepherds[0]]
        order = replace(SILENCE, shepherd=one.id, duration_ms=60_000)
        may = await p.b.service.drill(ADMIN, replace(order, check_only=True))
        assert (may.drill.stage, may.drill.files, one.drilled) == (DrillStage.NONE, len(blobs), [])
        begun = (await p.b.service.drill(ADMIN, order)).drill
        assert (begun.running, begun.by, begun.files, one.silent) == (True, "/CN=admin", len(blobs), True)
        with pytest.raises(CheloniaError, match="is running"):
            await p.b.service.drill(ADMIN, order)
        await p.until(lambda: exposed(p))
        await p.until(lambda: over(p))
        ended = (await status(p)).drill
        assert (ended.stage, ended.why, ended.number) == (DrillStage.HEALED, "", 1)
        assert begun.began_ms < ended.noticed_ms < ended.whole_ms <= ended.recalled_ms <= ended.ended_ms
        assert ended.touched > 0
        assert [order.action for order in one.drilled] == [DrillAction.SILENCE, DrillAction.STOP]
        await p.until(lambda: p.settled(*blobs, copies=3))


async def of_two_blobs(p: Paper, name: str) -> list[BlobId]:
    """A file with a piece laid behind its first bytes; each of its two blobs has three copies."""
    guid, first = await p.upload(name, copies=3)
    begin, piece = await pieced(p.b, name, guid, wanted=3)
    laid = SpliceFile(begin, (piece,), (Extent(7, 7, piece.begun.blob),), -1)
    await p.b.service.splice(BARTENDER, laid)
    for shepherd in p.b.shepherds[:2]:
        p.shepherds[shepherd].replicas[ReferenceId(f"{piece.begun.blob}@{shepherd}")] = piece.begun.blob
    await p.until(lambda: p.settled(first, piece.begun.blob, copies=3))
    return [first, piece.begun.blob]


async def exposed(p: Paper) -> bool:
    return bool((await status(p)).exposed)


@pytest.mark.expect_log("DRILL")
@virtual
async def test_a_silence_is_called_off_when_another_shepherd_goes_away() -> None:
    settings = replace(DEV, repair_delay_ms=30_000)
    async with paper(5, settings) as p:
        await asyncio.sleep(1)
        blobs = [(await p.upload(f"f{n}", copies=3))[1] for n in range(5)]
        one, two = (p.shepherds[s] for s in p.b.shepherds[:2])
        await p.b.service.drill(ADMIN, replace(SILENCE, shepherd=one.id, duration_ms=600_000))
        await p.b.service.heal_order(ADMIN, HealOrder(HealAction.RATE, 7, 1))
        await asyncio.sleep(3)
        two.up = False

        async def back() -> bool:
            return not one.silent

        assert await p.until(back) < 3_000
        two.up = True
        await p.until(lambda: over(p))
        ended = (await status(p)).drill
        assert (ended.stage, ended.why) == (DrillStage.CALLED_OFF, f"{two.id} went away meanwhile")
        await p.until(lambda: p.settled(*blobs, copies=3))


@pytest.mark.expect_log("DRILL")
@virtual
async def test_one_spare_copy_is_damaged_and_replaced() -> None:
    async with paper(shepherds=4) as p:
        await asyncio.sleep(1)
        blob = (await p.upload("three", copies=3))[1]
        await p.upload("two", copies=2)
        one = p.shepherds[p.b.shepherds[0]]
        begun = (await p.b.service.drill(ADMIN, replace(CORRUPT, shepherd=one.id))).drill
        assert (begun.blob, begun.reference, begun.files) == (blob, f"{blob}@{one.id}", 1)
        await p.until(lambda: over(p))
        assert (await status(p)).drill.stage is DrillStage.HEALED
        assert p.holding(blob)[-1] == p.b.shepherds[3], "there is a copy where none was"


@pytest.mark.expect_log("DRILL")
@virtual
async def test_a_shepherd_that_holds_nothing_to_be_spared_is_passed_over() -> None:
    async with paper(shepherds=4) as p:
        await asyncio.sleep(1)
        for name in ("one", "two"):
            await p.upload(name, copies=3)
        over = p.shepherds[p.b.shepherds[3]]
        over.replicas = {ReferenceId("left"): BlobId("over")}  # what the metadata do not know is soon erased
        await asyncio.sleep(1)
        begun = (await p.b.service.drill(ADMIN, CORRUPT)).drill
        assert begun.shepherd in p.b.shepherds[:3]


@pytest.mark.expect_log("DRILL")
@virtual
async def test_a_shepherd_may_take_a_while_to_obey_and_an_order_of_unknown_outcome_is_not_asked_again_unseen() -> None:
    async with paper(shepherds=5) as p:
        await asyncio.sleep(1)
        await p.upload("f", copies=3)
        one = p.shepherds[p.b.shepherds[0]]
        one.obeys_s = 8.0
        assert (await p.b.service.drill(ADMIN, replace(SILENCE, shepherd=one.id))).drill.running
        await p.until(lambda: over(p))
        one.obeys_s = 20.0
        with fails(Kind.CONFLICT, match=r"is called off.*no answer in 10000 ms"):
            await p.b.service.drill(ADMIN, replace(SILENCE, shepherd=one.id))
        assert (await status(p)).drill.running, "the Shepherd may obey yet"
        one.obeys_s = 0.0
        await p.until(lambda: over(p))
        ended = (await status(p)).drill
        assert ended.stage is DrillStage.CALLED_OFF
        assert "no answer in 10000 ms" in ended.why
        assert one.drilled[-1].action is DrillAction.STOP


@pytest.mark.expect_log("DRILL")
@virtual
async def test_a_drill_lasts_until_its_shepherd_has_confirmed_that_it_answers() -> None:
    """Its answer was lost: the drill was over, and the Shepherd silent for half an hour."""
    async with paper(5, replace(DEV, repair_delay_ms=600_000)) as p:
        await asyncio.sleep(1)
        await p.upload("f", copies=3)
        one = p.shepherds[p.b.shepherds[0]]
        order = replace(SILENCE, shepherd=one.id, duration_ms=1_800_000)
        one.broken = "answer of a drill"
        with fails(Kind.CONFLICT, match=r"is called off.*the connection broke"):
            await p.b.service.drill(keyed("k", ADMIN), order)
        assert one.silent
        one.broken = "order of a drill"
        await asyncio.sleep(5)
        assert one.silent
        with fails(Kind.CONFLICT, match="is running"):
            await p.b.service.drill(ADMIN, order)
        assert (await p.b.service.drill(keyed("k", ADMIN), order)).drill.recalled_ms, "its outcome: it is called off"
        one.broken = ""
        await p.until(lambda: over(p))
        assert not one.silent
        ended = (await status(p)).drill
        assert (ended.stage, ended.why.endswith("the connection broke")) == (DrillStage.CALLED_OFF, True)


@pytest.mark.expect_log("DRILL")
@virtual
async def test_a_damage_that_a_shepherd_never_heard_of_keeps_no_other_drill_waiting() -> None:
    """Nobody could stop it, and it lasted to its deadline."""
    async with paper(4, replace(DEV, repair_delay_ms=600_000)) as p:
        await asyncio.sleep(1)
        await p.upload("f", copies=3)
        one = p.shepherds[p.b.shepherds[0]]
        order = replace(CORRUPT, shepherd=one.id, within_ms=3_600_000)
        one.broken = "order of a drill"
        with fails(Kind.CONFLICT, match=r"is called off.*the connection broke"):
            await p.b.service.drill(ADMIN, order)
        await asyncio.sleep(1)
        one.broken = ""
        await p.until(lambda: over(p), 2 * drills.NOTICED_MS)
        assert (await status(p)).drill.stage is DrillStage.CALLED_OFF
        assert one.drilled[-1].action is DrillAction.STOP
        begun = (await p.b.service.drill(ADMIN, order)).drill
        assert (begun.running, one.drilled[-1].ends_ms) == (True, begun.deadline_ms)


@pytest.mark.expect_log("DRILL")
@virtual
async def test_a_drill_that_is_stopped_at_once_lasts_until_its_shepherd_is_heard() -> None:
    """Its lease had not run out, so that it was taken for back."""
    async with paper(shepherds=5) as p:
        await asyncio.sleep(1)
        await p.upload("f", copies=3)
        one = p.shepherds[p.b.shepherds[0]]
        await p.b.service.drill(ADMIN, replace(SILENCE, shepherd=one.id, duration_ms=1_800_000))
        one.broken = "order of a drill"
        await p.b.service.drill(ADMIN, DrillOrder(DrillAction.STOP))
        await asyncio.sleep(DEV.tick_ms / 1000 * 2)
        assert one.silent
        assert (await status(p)).drill.running
        one.broken = ""
        await p.until(lambda: over(p))
        assert not one.silent


@virtual
async def test_no_copy_is_damaged_whose_fellows_do_not_answer() -> None:
    async with paper(shepherds=4) as p:
        await asyncio.sleep(1)
        await p.upload("three", copies=3)
        one, two = (p.shepherds[s] for s in p.b.shepherds[:2])
        two.broken = "rot"
        with pytest.raises(CheloniaError, match="do not answer"):
            await p.b.service.drill(ADMIN, replace(CORRUPT, shepherd=one.id))
        assert one.drilled == []


@pytest.mark.expect_log("DRILL")
@pytest.mark.expect_log("healing is paused")
@virtual
async def test_a_drill_is_refused_while_something_is_wrong_and_when_its_shepherd_does_not_obey() -> None:
    async with paper(shepherds=5) as p:
        await asyncio.sleep(1)
        await p.upload("f", copies=3)
        one = p.shepherds[p.b.shepherds[0]]
        order = replace(SILENCE, shepherd=one.id)
        await p.b.service.heal_order(ADMIN, HealOrder(HealAction.PAUSE))
        await p.b.service.maintenance(ADMIN, p.b.shepherds[4], Ms(p.b.clock.now_ms() + 60_000))
        await asyncio.sleep(1)
        with fails(Kind.CONFLICT, match=r"heal resume.*is in maintenance"):
            await p.b.service.drill(ADMIN, order)
        await p.b.service.heal_order(ADMIN, HealOrder(HealAction.RESUME))
        await p.b.service.maintenance(ADMIN, p.b.shepherds[4], Ms(0))
        await asyncio.sleep(1)
        one.broken = "drill"
        with pytest.raises(CheloniaError, match="not sound"):
            await p.b.service.drill(ADMIN, order)
        assert (await status(p)).drill.stage is DrillStage.CALLED_OFF
        with pytest.raises(CheloniaError, match="no drill is running"):
            await p.b.service.drill(ADMIN, DrillOrder(DrillAction.STOP))
        with fails(Kind.DENIED):
            await p.b.service.drill(BARTENDER, order)


@pytest.mark.expect_log("DRILL")
@virtual
async def test_a_drill_is_stopped_by_an_administrator() -> None:
    async with paper(5, replace(DEV, repair_delay_ms=600_000)) as p:
        await asyncio.sleep(1)
        await p.upload("f", copies=3)
        one = p.shepherds[p.b.shepherds[0]]
        await p.b.service.drill(ADMIN, replace(SILENCE, shepherd=one.id, duration_ms=600_000))
        await p.until(lambda: exposed(p))
        await p.b.service.drill(ADMIN, DrillOrder(DrillAction.STOP))
        assert not one.silent
        await p.until(lambda: over(p))
        ended = (await status(p)).drill
        assert (ended.stage, ended.why) == (DrillStage.CALLED_OFF, "stopped by /CN=admin")


@pytest.mark.expect_log("DRILL")
@virtual
async def test_an_order_asked_again_is_answered_with_the_drill_it_began() -> None:
    async with paper(5, replace(DEV, repair_delay_ms=600_000)) as p:
        await asyncio.sleep(1)
        await p.upload("f", copies=3)
        one = p.shepherds[p.b.shepherds[0]]
        other = successor(p, p.b.settings, lambda ahash: ahash, beside=p.b.service)
        await other.start()
        running = asyncio.create_task(other.run())
        await asyncio.sleep(1)
        order, mine = replace(SILENCE, shepherd=one.id, duration_ms=600_000), keyed("k1", ADMIN)
        tries = (p.b.service.drill(mine, order), p.b.service.drill(mine, order), other.drill(mine, order))
        first, *again = await asyncio.gather(*tries)
        assert first.drill.running
        assert [status.drill.id for status in again] == [first.drill.id] * 2
        for stranger in (keyed("k2", ADMIN), structs.replace(mine, dn=Dn("/CN=eve")), ADMIN):
            with pytest.raises(CheloniaError, match="is running"):
                await other.drill(stranger, order)
        await p.b.service.drill(keyed("k3", ADMIN), DrillOrder(DrillAction.STOP))
        await p.until(lambda: over(p))
        for key, action in (("k1", SILENCE), ("k3", DrillOrder(DrillAction.STOP))):
            assert (await p.b.service.drill(keyed(key, ADMIN), action)).drill == (await status(p)).drill
        assert [order.action for order in one.drilled] == [DrillAction.SILENCE, DrillAction.STOP]
        assert (await p.b.service.drill(keyed("k4", ADMIN), order)).drill.running
        assert (await p.b.service.drill(keyed("k3", ADMIN), DrillOrder(DrillAction.STOP))).drill.recalled_ms == 0
        await p.b.service.drill(keyed("k5", ADMIN), DrillOrder(DrillAction.STOP))
        await p.until(lambda: over(p))
        await other.stop()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.expect_log("DRILL")
@virtual
async def test_a_new_leader_goes_on_watching_a_drill() -> None:
    async with paper(5, replace(DEV, repair_delay_ms=20_000)) as p:
        await asyncio.sleep(1)
        await p.upload("f", copies=3)
        one = p.shepherds[p.b.shepherds[0]]
        order = replace(SILENCE, shepherd=one.id, duration_ms=60_000)
        begun = (await p.b.service.drill(keyed("k", ADMIN), order)).drill
        await p.until(lambda: exposed(p))
        await p.b.service.stop()
        other: LibrarianService = successor(p, p.b.settings, lambda ahash: ahash)
        await other.start()
        p.b.service = other
        running = asyncio.create_task(other.run())
        await p.until(lambda: leads(other))
        assert (await other.drill(keyed("k", ADMIN), order)).drill.id == begun.id
        assert (await status(p)).drill.running
        await p.until(lambda: over(p), 60_000)
        ended = (await status(p)).drill
        assert (ended.stage, ended.files) == (DrillStage.HEALED, 1)
        await other.stop()
        await asyncio.gather(running, return_exceptions=True)


class Cut:
    """An A-Hash in front of another: the next change to a `stage` of a drill fails, carried out or not.

    `led_elsewhere`: it finds another leader.
    """

    def __init__(self, inner: AHash) -> None:
        self._inner = inner
        self.stage = ""
        self.carried_out = self.led_elsewhere = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def transact(
        self, call: Call, key: RequestKey, elements: tuple[Element, ...], memo: str = ""
    ) -> TransactOutcome:
        if not self.stage or ("stage", self.stage) not in [(each.property, each.value) for each in elements]:
            return await self._inner.transact(call, key, elements, memo)
        self.stage = ""
        if self.led_elsewhere:
            return TransactOutcome(False, Position("", 0, 0), Unmet(LEASE, ""))
        if self.carried_out:
            await self._inner.transact(call, key, elements, memo)
        raise CheloniaError(Kind.OUTCOME_UNKNOWN, "transact")


@pytest.mark.parametrize("carried_out", [False, True])
@pytest.mark.expect_log("DRILL")
@virtual
async def test_a_drill_whose_end_could_not_be_stored_at_once_ends_all_the_same(carried_out: bool) -> None:
    """It had ended for the leader alone, who refused all others: by the record another one was running."""
    cut = list[Cut]()

    def front(ahash: AHash) -> AHash:
        cut.append(Cut(ahash))
        return cut[0]  # type: ignore[return-value]

    async with paper(5, replace(DEV, repair_delay_ms=600_000), wrap=front) as p:
        await asyncio.sleep(1)
        await p.upload("f", copies=3)
        order = replace(SILENCE, shepherd=p.b.shepherds[0], duration_ms=3 * DEV.lease_ms)
        for number in (1, 2):
            begun = (await p.b.service.drill(ADMIN, order)).drill
            assert (begun.number, begun.running) == (number, True)
            cut[0].stage, cut[0].carried_out = DrillStage.HEALED.value, carried_out
            await p.until(lambda: over(p))
            assert (await status(p)).drill.stage is DrillStage.HEALED
            await asyncio.sleep(DEV.tick_ms / 1000 * 2)


@pytest.mark.expect_log("DRILL")
@virtual
async def test_who_leads_no_more_says_of_no_drill_that_it_is_called_off() -> None:
    cut = list[Cut]()

    def front(ahash: AHash) -> AHash:
        cut.append(Cut(ahash))
        return cut[0]  # type: ignore[return-value]

    async with paper(5, replace(DEV, repair_delay_ms=600_000), wrap=front) as p:
        await asyncio.sleep(1)
        await p.upload("f", copies=3)
        order = replace(SILENCE, shepherd=p.b.shepherds[0], duration_ms=600_000)
        await p.b.service.drill(ADMIN, order)
        cut[0].stage, cut[0].led_elsewhere = DrillStage.RUNNING.value, True
        with fails(Kind.UNAVAILABLE):
            await p.b.service.drill(keyed("k", ADMIN), DrillOrder(DrillAction.STOP))
        await p.until(lambda: leads(p.b.service), 60_000)
        assert (await p.b.service.drill(keyed("k", ADMIN), DrillOrder(DrillAction.STOP))).drill.recalled_ms
        await p.until(lambda: over(p))
        p.shepherds[p.b.shepherds[0]].broken = "drill"
        cut[0].stage = DrillStage.CALLED_OFF.value
        with fails(Kind.CONFLICT, match=r"another Librarian leads repair.*it is not sound"):
            await p.b.service.drill(ADMIN, order)


@pytest.mark.expect_log("DRILL")
@virtual
async def test_a_drill_that_was_stored_although_its_beginning_failed_is_watched() -> None:
    """The leader knew only the one before, and refused all others: another one was running."""
    cut = list[Cut]()

    def front(ahash: AHash) -> AHash:
        cut.append(Cut(ahash))
        return cut[0]  # type: ignore[return-value]

    async with paper(5, replace(DEV, repair_delay_ms=600_000), wrap=front) as p:
        await asyncio.sleep(1)
        await p.upload("f", copies=3)
        order = replace(SILENCE, shepherd=p.b.shepherds[0], duration_ms=3 * DEV.lease_ms)
        await p.b.service.drill(ADMIN, order)
        await p.until(lambda: over(p))
        cut[0].stage, cut[0].carried_out = DrillStage.RUNNING.value, True
        with fails(Kind.OUTCOME_UNKNOWN):
            await p.b.service.drill(ADMIN, order)
        await asyncio.sleep(DEV.tick_ms / 1000 * 2)
        assert ((await status(p)).drill.number, (await status(p)).drill.running) == (2, True)
        await p.until(lambda: over(p))
        assert (await p.b.service.drill(ADMIN, order)).drill.number == 3


@pytest.mark.expect_log("DRILL")
@virtual
async def test_a_silence_that_begins_late_is_not_over_before_its_shepherd_answers() -> None:
    """It had not been missed yet when the time was over: another drill could begin beside it."""
    async with paper(5, replace(DEV, repair_delay_ms=600_000)) as p:
        await asyncio.sleep(1)
        await p.upload("f", copies=3)
        one = p.shepherds[p.b.shepherds[0]]
        one.obeys_s = 2 * DEV.lease_ms / 1000 - 0.5
        await p.b.service.drill(ADMIN, replace(SILENCE, shepherd=one.id, duration_ms=2 * DEV.lease_ms))
        one.obeys_s = 0.0
        await p.until(lambda: over(p))
        assert not one.silent
