"""The effects of a drill on a Shepherd: silence that ends by itself, and one byte of one copy."""

import asyncio
from collections.abc import Callable

import pytest

from chelonia.core import bounds
from chelonia.core.cluster.drills import DrillAction, ShepherdDrill
from chelonia.core.cluster.position import Position
from chelonia.core.contents.extents import ByteRange
from chelonia.core.errors import Kind
from chelonia.core.ids import BlobId, Ms
from chelonia.core.ports.shepherd import GetRequest, ScrubOrder
from chelonia.core.values import replace
from tests.sim.virtual_loop import virtual
from tests.support.failing import kind_of
from tests.support.shepherd import (
    ADMINISTRATOR,
    BARTENDER,
    CLUSTER,
    JOE,
    LIBRARIAN,
    World,
    numbered,
    read_all,
    restored_within,
    running,
    served,
    within,
)
from tests.support.turls import parse_turl

DATA = b"x" * 100_000
SILENCE = ShepherdDrill(DrillAction.SILENCE, "d1", Position(CLUSTER, 1, 5), 10_000)
STOP = replace(SILENCE, action=DrillAction.STOP)


@virtual
async def test_a_silent_shepherd_answers_nobody_and_is_back_by_itself(expect_log: Callable[..., None]) -> None:
    expect_log("DRILL d1")
    world = await World().start(run=True)
    reference = await world.store(DATA)
    wish = GetRequest("r", reference, ("http",), JOE.dn)
    [offer] = await world.service.get(BARTENDER, (wish,))
    ticket = parse_turl(offer.turl)
    await world.pass_ms(1_000)
    assert await world.service.drill(LIBRARIAN, SILENCE) == 10_000
    beats = len(world.librarian.beats)
    await world.pass_ms(9_900)
    assert len(world.librarian.beats) == beats
    for work in (
        world.service.get(BARTENDER, (wish,)),
        world.service.stat(LIBRARIAN, (("r", reference),)),
        world.service.status(ADMINISTRATOR),
        world.service.scrub_page(ADMINISTRATOR, ScrubOrder()),
        world.service.open(JOE, ticket),
    ):
        assert await kind_of(work) is Kind.UNAVAILABLE
    assert await kind_of(world.service.status(JOE)) is Kind.DENIED, "who may not call learns nothing"
    await world.pass_ms(1_000)
    assert len(world.librarian.beats) > beats
    assert await world.state_of(reference) == "alive"
    assert await read_all(world, ticket) == DATA


@virtual
async def test_nothing_stands_before_a_call_but_while_a_drill_runs(expect_log: Callable[..., None]) -> None:
    expect_log("DRILL")
    world = await World().start()
    methods = vars(type(world.service))
    assert not methods.keys() & vars(world.service).keys()
    for drill in ("d1", "d2"):
        await world.service.drill(LIBRARIAN, replace(SILENCE, drill=drill))
        assert "status" in vars(world.service)
        await world.pass_ms(11_000)
    assert (await world.service.status(ADMINISTRATOR)).boot
    assert not methods.keys() & vars(world.service).keys()


@virtual
async def test_transfers_that_had_begun_go_on(expect_log: Callable[..., None]) -> None:
    expect_log("DRILL d1")
    world = await World().start()
    reference = await world.store(DATA)
    [offer] = await world.service.get(BARTENDER, (GetRequest("r", reference, ("http",), JOE.dn),))
    download = await world.service.open(JOE, parse_turl(offer.turl))
    await world.service.drill(LIBRARIAN, SILENCE)
    chunks = [chunk async for chunk in download.reader.read(ByteRange(0, download.size))]
    assert b"".join(chunks) == DATA


@virtual
async def test_silence_ends_by_order_with_the_process_and_never_outlasts_its_bound(
    expect_log: Callable[..., None],
) -> None:
    expect_log("DRILL d")
    world = await World().start()
    assert await world.service.drill(LIBRARIAN, replace(SILENCE, duration_ms=10**9)) == bounds.DRILL_MS_MAX
    assert await world.service.drill(LIBRARIAN, SILENCE) == bounds.DRILL_MS_MAX, "a repeat changes nothing"
    other = replace(SILENCE, drill="d2")
    assert await kind_of(world.service.drill(LIBRARIAN, other)) is Kind.CONFLICT
    assert await world.service.drill(LIBRARIAN, replace(other, action=DrillAction.STOP)) > 0, "that is another drill"
    assert await world.service.drill(LIBRARIAN, STOP) == 0
    await world.service.status(ADMINISTRATOR)
    assert await world.service.drill(LIBRARIAN, other) == 10_000
    await world.restart()
    await world.service.status(ADMINISTRATOR)


@virtual
async def test_an_order_that_comes_after_it_was_called_off_begins_nothing(expect_log: Callable[..., None]) -> None:
    """The repair leader had no answer to it, called the drill off, and ends it once that is confirmed."""
    expect_log("DRILL d2")
    world = await World().start()
    assert await world.service.drill(LIBRARIAN, STOP) == 0
    assert await world.service.drill(LIBRARIAN, SILENCE) == 0
    await world.service.status(ADMINISTRATOR)
    assert await world.service.drill(LIBRARIAN, replace(SILENCE, drill="d2")) == 10_000
    assert await world.service.drill(LIBRARIAN, STOP) > 0
    assert await world.service.drill(LIBRARIAN, replace(STOP, drill="d2")) == 0, "it is still the one that is silent"


@virtual
async def test_one_byte_of_the_named_copy_is_changed_found_and_reported(expect_log: Callable[..., None]) -> None:
    expect_log("DRILL d1")
    expect_log("replica is invalid")
    world = await World().start(run=True)
    reference, other = await world.store(DATA, 1), await world.store(DATA, 2)
    await world.pass_ms(2_000)
    order = replace(SILENCE, action=DrillAction.CORRUPT, reference=reference, blob=BlobId(numbered("b", 1)))
    assert await world.service.drill(LIBRARIAN, order) == 0
    await world.service.drill(LIBRARIAN, order)
    changed = [at for at, (old, new) in enumerate(zip(DATA, world.blobs.data(reference), strict=True)) if old != new]
    assert changed == [len(DATA) // 2], "a repeat would have changed it back"
    assert world.blobs.data(other) == DATA
    await world.pass_ms(2_000)
    assert await world.state_of(reference) == "invalid"
    assert world.librarian.states()[-1] == (reference, "invalid")


@running
async def test_only_a_whole_committed_copy_of_the_named_blob_is_damaged(world: World) -> None:
    reference = await world.store(DATA)
    order = replace(SILENCE, action=DrillAction.CORRUPT, reference=reference, blob=BlobId(numbered("b", 9)))
    await world.pass_ms(2_000)
    assert await kind_of(world.service.drill(LIBRARIAN, order)) is Kind.NOT_ALIVE
    assert world.blobs.data(reference) == DATA


CORRUPT = replace(SILENCE, action=DrillAction.CORRUPT, blob=BlobId(numbered("b", 1)))


@pytest.mark.expect_log("drill refused")
@pytest.mark.parametrize("after", [0, 1])
def test_an_order_of_older_metadata_damages_nothing_once_newer_are_heard_of(after: int) -> None:
    """They may come while the disk is read, or while the obeyed generation is written down."""

    @virtual
    async def scenario() -> None:
        world = await World().start(run=True)
        reference = await world.store(DATA)
        await world.pass_ms(2_000)
        await world.stop()
        restored_within(world, "identity", after)
        assert await kind_of(world.service.drill(LIBRARIAN, replace(CORRUPT, reference=reference))) is Kind.DENIED
        assert world.blobs.data(reference) == DATA
        assert world.state.state is not None
        assert world.state.state.generation == 2

    scenario()


@running
async def test_a_damage_that_was_called_off_before_is_not_done(world: World) -> None:
    reference = await world.store(DATA)
    await world.pass_ms(2_000)
    assert await world.service.drill(LIBRARIAN, STOP) == 0
    assert await world.service.drill(LIBRARIAN, replace(CORRUPT, reference=reference)) == 0
    assert world.blobs.data(reference) == DATA


@pytest.mark.parametrize("done", [False, pytest.param(True, marks=pytest.mark.expect_log("replica is invalid"))])
def test_a_damage_is_called_off_once_its_copy_was_checked(done: bool) -> None:
    """A Shepherd that died when it had damaged a copy had forgotten the suspicion after its start. Others may check a
    large copy for longer than the leader waits for the report."""

    @running
    async def scenario(world: World) -> None:
        reference = await world.store(DATA)
        await world.pass_ms(2_000)
        if done:
            await world.blobs.spoil(reference)
            await world.restart(run=True)
        await world.pass_ms(2_000)
        assert await world.state_of(reference) == "alive"
        stop = replace(STOP, reference=reference)
        assert await kind_of(world.service.drill(LIBRARIAN, stop)) is Kind.BUSY
        assert await kind_of(world.service.drill(LIBRARIAN, stop)) is Kind.BUSY
        await world.pass_ms(2_000)
        assert await world.service.drill(LIBRARIAN, stop) == 0
        assert await world.state_of(reference) == ("invalid" if done else "alive")

    scenario()


@virtual
async def test_a_check_that_began_before_a_damage_was_called_off_does_not_count() -> None:
    """It may have read the bytes before they were changed."""
    world = await World(scrub_bytes_per_s_max=len(DATA)).start()
    reference = await world.store(DATA)
    stop = replace(STOP, reference=reference)
    checking = asyncio.ensure_future(world.service.scrub_page(ADMINISTRATOR, ScrubOrder((reference,))))
    await world.pass_ms(100)
    assert await kind_of(world.service.drill(LIBRARIAN, stop)) is Kind.BUSY
    assert (await checking).checked == 1
    assert await kind_of(world.service.drill(LIBRARIAN, stop)) is Kind.BUSY
    await world.service.scrub(LIBRARIAN, (reference,))
    assert await world.service.drill(LIBRARIAN, stop) == 0


@running
async def test_an_order_that_comes_after_its_drill_is_over_is_not_obeyed(world: World) -> None:
    """A connection that was cut off, or a process that stood still, brings it when nobody watches any more."""
    reference = await world.store(DATA)
    await world.pass_ms(2_000)
    over = Ms(world.clock.now_ms())
    assert await kind_of(world.service.drill(LIBRARIAN, replace(SILENCE, ends_ms=over))) is Kind.CONFLICT
    late = replace(CORRUPT, reference=reference, ends_ms=Ms(over + 1_000))
    await world.stop()
    within(world, "identity", lambda: world.pass_ms(1_000))
    assert await kind_of(world.service.drill(LIBRARIAN, late)) is Kind.CONFLICT
    assert world.blobs.data(reference) == DATA
    await world.service.status(ADMINISTRATOR)


@pytest.mark.expect_log("DRILL d1")
@running
async def test_an_order_that_comes_twice_at_once_is_obeyed_once(world: World) -> None:
    reference = await world.store(DATA)
    await world.pass_ms(2_000)
    await world.stop()
    order = replace(CORRUPT, reference=reference)
    within(world, "identity", lambda: world.service.drill(LIBRARIAN, order))
    await world.service.drill(LIBRARIAN, order)
    assert world.blobs.data(reference) != DATA


@pytest.mark.expect_log("DRILL d1")
@pytest.mark.expect_log("drill refused")
@running
async def test_what_was_damaged_by_order_is_not_damaged_by_an_older_order(world: World) -> None:
    first, second = await world.store(DATA, 1), await world.store(DATA, 2)
    await world.pass_ms(2_000)
    await world.stop()
    await world.service.drill(LIBRARIAN, replace(CORRUPT, reference=first))
    older = replace(CORRUPT, drill="d0", position=Position(CLUSTER, 1, 4), reference=second)
    older = replace(older, blob=BlobId(numbered("b", 2)))
    await world.restart()
    assert await kind_of(world.service.drill(LIBRARIAN, older)) is Kind.DENIED
    assert world.blobs.data(second) == DATA


@pytest.mark.parametrize("position", [Position("other", 1, 5), Position(CLUSTER, 0, 5), Position("", 0, 0)])
def test_an_order_without_authority_is_not_obeyed(position: Position, expect_log: Callable[..., None]) -> None:
    expect_log("drill refused")

    @virtual
    async def scenario() -> None:
        world = await World().start()
        await world.service.beat()
        for action in (DrillAction.SILENCE, DrillAction.CORRUPT):
            order = replace(SILENCE, action=action, position=position)
            assert await kind_of(world.service.drill(LIBRARIAN, order)) is Kind.DENIED
        await world.service.status(ADMINISTRATOR)

    scenario()


@served
async def test_only_librarians_order_it(world: World) -> None:
    for call in (ADMINISTRATOR, BARTENDER, JOE):
        assert await kind_of(world.service.drill(call, SILENCE)) is Kind.DENIED
