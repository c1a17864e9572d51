"""Repair copies that a Shepherd sends and receives at once: no more than configured, from any number of Librarians."""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from chelonia.core.bounds import CHUNK_BYTES, COPIES_IN_FLIGHT_PER_NODE_MAX
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ReferenceId
from chelonia.core.ports.shepherd import CopyOrder, Upload
from chelonia.shepherd.rules.places import MOMENT_MS, STALL_MS, SlotPool
from chelonia.shepherd.transfers.forwarding import ASK_MS
from tests.sim.virtual_loop import virtual
from tests.support.clocks import VirtualClock
from tests.support.failing import fails
from tests.support.shepherd import LIBRARIAN, PEER, FakeTransfers, World, numbered, request, two

DATA = b"0123456789" * 100
LARGE = bytes(4 * CHUNK_BYTES)
SLOW = 100_000


async def order(source: World, target: World, number: int, data: bytes = LARGE) -> CopyOrder:
    """A copy that a Librarian has claimed."""
    reference = await source.store(data, number)
    wanted = request(data, number, reference=ReferenceId(numbered("c", number)))
    return CopyOrder(reference, (await target.put(wanted)).turl)


async def told(world: World, copies: int, rate: int = 0) -> None:
    world.librarian.copies_at_once_max, world.librarian.copy_bytes_per_s_max = copies, rate
    await world.service.beat()


async def refused(world: World, order: CopyOrder) -> CheloniaError:
    with pytest.raises(CheloniaError) as error:
        await asyncio.wait_for(world.service.copy(LIBRARIAN, order), 2 * MOMENT_MS / 1000)
    return error.value


@virtual
async def test_no_more_are_sent_at_once_than_it_was_told_and_who_waits_in_vain_is_told_that_it_is_busy() -> None:
    """Two Librarians, or a new leader after another, may order them: each keeps to the limit only by itself."""
    first, second = await two()
    await told(first, 2, SLOW)
    orders = [await order(first, second, number) for number in range(1, 4)]
    under_way = [asyncio.ensure_future(first.service.copy(LIBRARIAN, each)) for each in orders[:2]]
    await first.pass_ms(100)
    error = await refused(first, orders[2])
    assert (error.kind, error.subject) == (Kind.BUSY, first.settings.service_id)
    assert len(first.transfers.pushes) == 2
    await asyncio.gather(*under_way)
    assert (await first.service.copy(LIBRARIAN, orders[2])).location.shepherd == second.settings.service_id


@virtual
async def test_short_copies_wait_a_moment_for_one_another_and_all_are_made() -> None:
    first, second = await two()
    await told(first, 1, 100 * len(DATA))
    orders = [await order(first, second, number, DATA) for number in range(1, 9)]
    await asyncio.gather(*(first.service.copy(LIBRARIAN, each) for each in orders))
    assert len(second.blobs.references()) == 8


@virtual
async def test_no_more_are_taken_at_once_whoever_sends_them_and_users_do_not_wait() -> None:
    first, second = await two()
    await told(first, 16, SLOW)
    await told(second, 1)
    one, other = [await order(first, second, number) for number in (1, 2)]
    under_way = asyncio.ensure_future(first.service.copy(LIBRARIAN, one))
    await first.pass_ms(100)
    error = await refused(first, other)
    assert (error.kind, error.subject == first.settings.service_id) == (Kind.BUSY, False)
    assert await second.service.offset(LIBRARIAN, await second.ticket(request(DATA, 7))) == 0
    assert (await second.send(await second.ticket(request(DATA, 8)), DATA)).complete
    full = request(DATA, 9, reference=ReferenceId(numbered("c", 9)))
    with pytest.raises(CheloniaError) as refusal:
        await second.put(full)
    assert (refusal.value.kind, refusal.value.subject) == (Kind.BUSY, second.settings.service_id)
    await under_way
    await first.service.copy(LIBRARIAN, other)


@virtual
async def test_two_that_copy_to_each_other_do_not_wait_for_one_another() -> None:
    first, second = await two()
    for world in (first, second):
        await told(world, 1, 100 * len(DATA))
    orders = [(first, await order(first, second, n, DATA)) for n in (1, 2)]
    orders += [(second, await order(second, first, n, DATA)) for n in (3, 4)]
    second.transfers.peers[first.base] = first.service
    await asyncio.gather(*(world.service.copy(LIBRARIAN, each) for world, each in orders))


@virtual
async def test_an_interrupted_copy_whose_place_was_taken_goes_on_where_it_left_off() -> None:
    first, second = await two()
    await told(second, 1)
    one, other = [await order(first, second, number) for number in (1, 2)]
    first.transfers.cut_after[second.base] = CHUNK_BYTES
    interrupted = asyncio.ensure_future(first.service.copy(LIBRARIAN, one))
    await first.pass_ms(1)
    await told(first, 16, len(LARGE) // 2)
    between = asyncio.ensure_future(first.service.copy(LIBRARIAN, other))
    await between
    await interrupted
    assert first.transfers.pushes[-1] == (second.base, CHUNK_BYTES)


@virtual
async def test_what_is_taken_of_several_senders_together_keeps_within_the_rate_and_users_are_not_slowed_down() -> None:
    first, second = await two()
    third = await World("s3").start()
    third.transfers.peers[second.base] = second.service
    for world in (first, second, third):
        await told(world, 4, SLOW)
    orders = [(first, await order(first, second, 1)), (third, await order(third, second, 2))]
    begun_ms = second.clock.monotonic_ms()
    copies = [asyncio.ensure_future(world.service.copy(LIBRARIAN, each)) for world, each in orders]
    whole_s = len(LARGE) / SLOW
    await second.pass_ms(round(1000 * whole_s))
    await second.service.beat()
    here = [copy.here for copy in second.librarian.beats[-1].arriving]
    assert len(here) == 2
    assert sum(here) == pytest.approx(SLOW * whole_s, rel=0.05)
    user_ms = second.clock.monotonic_ms()
    assert (await second.send(await second.ticket(request(LARGE, 8)), LARGE)).complete
    assert second.clock.monotonic_ms() == user_ms
    await asyncio.gather(*copies)
    assert second.clock.monotonic_ms() - begun_ms == pytest.approx(2_000 * whole_s, rel=0.05)


@pytest.mark.parametrize("taken", [False, True], ids=["the place is free again", "others have the place"])
@virtual
async def test_a_copy_whose_sender_stands_still_gives_its_place_back_and_goes_on_where_it_was(taken: bool) -> None:
    world = await World(copies_at_once_max=1).start()
    wakes = asyncio.Event()

    async def freezes() -> AsyncIterator[bytes]:
        for step in range(10):  # slow, but alive: it keeps its place
            yield LARGE[step * 1000 : (step + 1) * 1000]
            await world.pass_ms(STALL_MS - 100)
        await wakes.wait()
        yield LARGE[10_000:]

    wanted = request(LARGE, 1, reference=ReferenceId(numbered("c", 1)))
    ticket = await world.ticket(wanted)
    frozen = asyncio.ensure_future(world.service.receive(PEER, Upload(ticket, freezes(), len(LARGE))))
    other = request(DATA, 2, reference=ReferenceId(numbered("c", 2)))
    await world.pass_ms(9 * STALL_MS)
    with fails(Kind.BUSY):
        await world.put(other)
    await world.pass_ms(4 * STALL_MS)
    assert (await world.send(await world.ticket(other), DATA, PEER)).complete
    held = asyncio.ensure_future(hold(world, 3)) if taken else None
    await world.pass_ms(100)
    wakes.set()
    if held is None:
        assert (await frozen).complete
        return
    with pytest.raises(CheloniaError) as interrupted:
        await frozen
    assert interrupted.value.kind is Kind.TIMEOUT, "a sender goes on after that"
    await held
    assert await world.service.offset(PEER, ticket) == 10_000
    rest = await world.send(ticket, LARGE[10_000:], PEER, offset=10_000, total=len(LARGE))
    assert rest.complete


@virtual
async def test_a_copy_to_a_shepherd_that_answers_nothing_any_more_is_given_up_and_a_slow_one_is_not() -> None:
    first, second = await two(copies_at_once_max=1)
    lost = await order(first, second, 1)
    first.transfers.frozen.append(second.base)
    with fails(Kind.TIMEOUT):
        await asyncio.wait_for(first.service.copy(LIBRARIAN, lost), 300)
    first.transfers.frozen.clear()
    await told(second, 1, len(LARGE) // 1_000)
    slow = await order(first, second, 2)
    begun_ms = first.clock.monotonic_ms()
    assert (await first.service.copy(LIBRARIAN, slow)).location.shepherd == second.settings.service_id
    assert first.clock.monotonic_ms() - begun_ms == pytest.approx(1_000_000, rel=0.05)
    assert len(first.transfers.pushes) == 2


@pytest.mark.parametrize(("back", "kind"), [(False, Kind.NETWORK), (True, Kind.BAD_TICKET)])
@virtual
async def test_a_copy_to_a_shepherd_whose_machine_died_gives_its_place_back_though_no_connection_broke(
    back: bool, kind: Kind
) -> None:
    first, second = await two(copies_at_once_max=1)
    lost = await order(first, second, 1)
    first.transfers.frozen.append(second.base)
    copy = asyncio.ensure_future(first.service.copy(LIBRARIAN, lost))
    await first.pass_ms(1_000)
    first.transfers.frozen.clear()
    if back:
        await second.restart()
        first.transfers.peers[second.base] = second.service
    else:
        first.transfers.down.append(second.base)
    with fails(kind):
        await asyncio.wait_for(copy, 60)
    first.transfers.down.clear()
    other = await order(first, second, 2)
    assert (await first.service.copy(LIBRARIAN, other)).location.shepherd == second.settings.service_id


@virtual
async def test_a_copy_that_is_cancelled_leaves_no_question_to_the_other_side_behind() -> None:
    """Its answer would be an error that nobody awaits, which the event loop logs as one of this process."""
    first, second = await two()
    lost = await order(first, second, 1)
    first.transfers.frozen.append(second.base)
    questions: list[str] = []

    async def asked(turl: str) -> int:
        questions.append("asked")
        try:
            return await FakeTransfers.offset(first.transfers, turl)
        finally:
            questions.append("ended")

    first.transfers.offset = asked  # type: ignore[method-assign]
    copy = asyncio.ensure_future(first.service.copy(LIBRARIAN, lost))
    await first.pass_ms(ASK_MS + 1_000)
    assert questions == ["asked"]
    copy.cancel()
    await asyncio.wait((copy,))
    assert questions == ["asked", "ended"]


@virtual
async def test_why_a_copy_is_waited_for_no_longer_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    first, second = await two()
    lost = await order(first, second, 1)
    first.transfers.frozen.append(second.base)
    copy = asyncio.ensure_future(first.service.copy(LIBRARIAN, lost))
    await first.pass_ms(1_000)
    first.transfers.frozen.clear()
    first.transfers.refused[second.base] = CheloniaError(Kind.UNTRUSTED, "connect", "s2", "its certificate is revoked")
    with fails(Kind.UNTRUSTED):
        await asyncio.wait_for(copy, 60)
    [told] = [record.getMessage() for record in caplog.records if "push interrupted" in record.getMessage()]
    assert "its certificate is revoked" in told


async def hold(world: World, number: int) -> None:
    """Begin a copy that takes long."""

    async def slow() -> AsyncIterator[bytes]:
        yield DATA[:1]
        await world.pass_ms(2 * MOMENT_MS)
        yield DATA[1:]

    ticket = await world.ticket(request(DATA, number, reference=ReferenceId(numbered("c", number))))
    await world.service.receive(PEER, Upload(ticket, slow(), len(DATA)))


@pytest.mark.parametrize(("own", "ordered", "holds"), [(1, 3, 1), (16, 3, 3), (2, 0, 2), (0, 0, 1), (99, 99, 16)])
@virtual
async def test_the_least_of_what_is_configured_and_what_is_ordered_holds(own: int, ordered: int, holds: int) -> None:
    world = await World(copies_at_once_max=own).start()
    await told(world, ordered)
    assert COPIES_IN_FLIGHT_PER_NODE_MAX == 16
    assert world.service._node.sending.most == holds
    assert world.librarian.beats[-1].copies_at_once_max == min(max(own, 1), 16)


@pytest.mark.parametrize(
    ("own", "ordered", "holds"), [(0, 0, 0), (0, 3_000, 3_000), (2_000, 0, 2_000), (2_000, 3_000, 2_000), (9, 3, 3)]
)
@virtual
async def test_the_least_rate_that_is_configured_or_ordered_holds(own: int, ordered: int, holds: int) -> None:
    world = World(copy_bytes_per_s_max=own)
    assert world.service._node.sending_pace.per_s_max == own, "also before a Librarian has answered"
    await world.start()
    await told(world, 0, ordered)
    assert world.service._node.sending_pace.per_s_max == holds


@virtual
async def test_by_its_own_limit_a_shepherd_takes_copies_no_faster_than_it_bears() -> None:
    first, second = await two()
    slow = await World("s3", copy_bytes_per_s_max=len(LARGE) // 10).start()
    first.transfers.peers[slow.base] = slow.service
    for target, at_least_ms in ((second, 0), (slow, 8_000)):
        began_ms = first.clock.monotonic_ms()
        await first.service.copy(LIBRARIAN, await order(first, target, 1 + at_least_ms))
        took_ms = first.clock.monotonic_ms() - began_ms
        assert at_least_ms <= took_ms <= at_least_ms + 4_000


@virtual
async def test_places_go_to_who_came_first_and_those_who_gave_up_take_none() -> None:
    places, order, clock = SlotPool(VirtualClock(), "shepherd", 1), [], VirtualClock()

    async def stay(name: str, ms: int) -> None:
        async with places.one("copy"):
            order.append(name)
            await clock.sleep(ms)

    async def late(name: str) -> asyncio.Task[None]:
        task = asyncio.ensure_future(stay(name, 300))
        await clock.sleep(1)
        return task

    tasks = [await late(name) for name in "abcd"]
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == ["a", "c", "d"]
    assert places.taken == 0
    held = [await late(name) for name in "efghij"]
    outcome = await asyncio.gather(*held, return_exceptions=True)
    assert [isinstance(each, CheloniaError) for each in outcome] == [False] * 4 + [True] * 2
    tasks = [await late(name) for name in "kl"]
    places.limit(2)
    assert places.taken == 2, "who waits has the place that there is now"
    await asyncio.gather(*tasks)
