"""Small blobs in messages, on one Shepherd: stored durably or refused, read back checked."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import pytest

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ReferenceId
from chelonia.core.ports.shepherd import SmallBlob, SmallReplica, StoreOutcome
from chelonia.core.values import replace
from chelonia.shepherd.store.checksums import Hasher
from tests.sim.virtual_loop import virtual
from tests.support.failing import fails
from tests.support.shepherd import BARTENDER, LIBRARIAN, World, checksums, numbered, request, running, served

DATA = b"small bytes"
T = TypeVar("T")


def small(number: int = 1, data: bytes = DATA, **how: object) -> SmallBlob:
    return SmallBlob(request(data, number, **how).facts, data)


async def store(world: World, *blobs: SmallBlob) -> tuple[StoreOutcome, ...]:
    return await world.service.store(BARTENDER, blobs or (small(),))


async def kept(world: World) -> ReferenceId:
    (outcome,) = await store(world)
    assert outcome.receipt is not None, outcome
    return outcome.receipt.location.reference


async def fetch(world: World, reference: ReferenceId) -> bytes | str:
    (outcome,) = await world.service.fetch(BARTENDER, (reference,))
    return outcome.kind if outcome.data is None else outcome.data


@served
async def test_a_receipt_is_given_for_what_is_on_stable_storage(world: World) -> None:
    (outcome,) = await store(world)
    assert outcome.receipt is not None
    assert (outcome.receipt.size, outcome.receipt.checksums) == (len(DATA), checksums(DATA))
    reference = outcome.receipt.location.reference
    world.blobs.crash()
    await world.restart()
    assert world.blobs.data(reference) == DATA
    assert await fetch(world, reference) == DATA
    assert world.moved == [("in", len(DATA)), ("out", len(DATA))]


@virtual
async def test_what_is_many_bytes_leaves_turns_of_the_event_loop_to_others() -> None:
    world, size = await World().start(), bounds.INLINE_BYTES_MAX
    turns = list[int]()

    async def counted(work: Coroutine[Any, Any, tuple[T, ...]]) -> tuple[T, ...]:
        task, count = asyncio.ensure_future(work), 0
        while not task.done():
            await asyncio.sleep(0)
            count += 1
        turns.append(count)
        return task.result()

    few = await counted(store(world, *(small(n, bytes(10)) for n in range(60))))
    many = await counted(store(world, *(small(n, bytes(size)) for n in range(100, 160))))
    for stored in (few, many):
        held = tuple(each.receipt.location.reference for each in stored if each.receipt is not None)
        assert all(each.data is not None for each in await counted(world.service.fetch(BARTENDER, held)))
    assert turns[1] - turns[0] > 10 < turns[3] - turns[2]


@served
async def test_what_was_measured_is_told_as_long_as_the_bytes_are_held_for_whole(world: World) -> None:
    reference, hasher = await kept(world), Hasher()
    hasher.update(DATA)
    for _ in range(2):
        here, elsewhere = await world.service.sums(BARTENDER, (reference, ReferenceId(numbered("a", 9))))
        assert (here.size, here.checksums) == (len(DATA), hasher.checksums())
        assert elsewhere.size < 0
        await world.restart()


@served
async def test_each_of_several_is_answered_by_itself(world: World) -> None:
    wrong = SmallBlob(request(DATA, 2).facts, DATA[::-1])
    many = SmallBlob(request(bytes(bounds.INLINE_BYTES_MAX + 1), 3).facts, bytes(bounds.INLINE_BYTES_MAX + 1))
    short = SmallBlob(request(DATA, 4).facts, DATA[1:])
    outcomes = await store(world, small(1), wrong, many, short, small(5, b""))
    assert [each.kind for each in outcomes] == ["", "checksum", "bad-request", "bad-request", ""]
    assert len(world.blobs.references()) == 2


@served
async def test_a_blob_is_kept_here_once(world: World) -> None:
    await kept(world)
    assert [each.kind for each in await store(world)] == ["exists"]
    assert len(world.blobs.references()) == 1


@pytest.mark.expect_log("the store is not there any more")
@served
async def test_a_disk_that_is_full_or_fails_has_nothing_of_it(world: World) -> None:
    world.blobs.capacity = 5
    assert [each.kind for each in await store(world)] == ["no-space"]
    world.blobs.capacity = 1 << 30
    await world.pass_ms(2_000)
    world.blobs.broken = True
    assert [each.kind for each in await store(world)] == ["unavailable"]
    assert world.blobs.references() == ()


@served
async def test_space_that_is_promised_to_an_upload_is_not_given_again(world: World) -> None:
    world.blobs.capacity = 100
    await world.service.put(BARTENDER, (request(bytes(60), 9),))
    for number, kind in ((1, ""), (2, "no-space")):  # within the second in which free bytes are counted once
        assert [each.kind for each in await store(world, small(number, bytes(25)))] == [kind]


@served
async def test_damaged_bytes_are_not_given(world: World) -> None:
    reference = await kept(world)
    world.blobs.flip(reference)
    assert await fetch(world, reference) == "not-alive"
    assert await fetch(world, ReferenceId(numbered("e", 7))) == "not-alive"


@pytest.mark.expect_log("replica is invalid")
@running
async def test_what_was_named_is_not_reported_unless_it_is_damaged(world: World) -> None:
    await world.pass_ms(20_000)  # until inventories are compared
    good, bad, silent = [await _stored(world, number) for number in (1, 2, 3)]
    world.blobs.flip(bad)
    await world.service.scrub(LIBRARIAN, (bad,))
    elsewhere = ReferenceId(numbered("e", 7))
    (outcome,) = await store(world, replace(small(4), named=(good, bad, elsewhere)))
    assert outcome.receipt is not None
    await world.pass_ms(20_000)
    told = [reference for reference, _ in world.librarian.states()]
    assert good not in told
    assert dict(world.librarian.states())[bad] == "invalid"
    assert silent in told


@running
async def test_what_a_librarian_has_called_unknown_is_told_of_again_whoever_says_that_it_was_named(
    world: World,
) -> None:
    back = await kept(world)
    await world.pass_ms(20_000)
    told = [reference for reference, _ in world.librarian.states()].count(back)
    await store(world, replace(small(2), named=(back,)))
    await world.pass_ms(80_000)
    assert [reference for reference, _ in world.librarian.states()].count(back) > told > 0


async def _stored(world: World, number: int) -> ReferenceId:
    blob = small(number)
    world.librarian.known[blob.facts.blob] = None
    (outcome,) = await store(world, blob)
    assert outcome.receipt is not None, outcome
    return outcome.receipt.location.reference


@served
async def test_only_bartenders_may(world: World) -> None:
    for ask in (world.service.store(LIBRARIAN, (small(),)), world.service.fetch(LIBRARIAN, ())):
        with fails(Kind.DENIED):
            await ask


@served
async def test_what_comes_together_is_written_together_and_fails_alone(world: World) -> None:
    whole, sizes = world.blobs.store_whole, list[int]()

    async def slowly(replicas: Sequence[SmallReplica]) -> None:
        sizes.append(len(replicas))
        await world.pass_ms(10)
        await whole(replicas)

    world.blobs.store_whole = slowly  # type: ignore[method-assign]
    await store(world, small(9))  # free bytes are counted now, and not at once again
    world.blobs.capacity = 6 * len(DATA)
    large = small(20, bytes(9 * len(DATA)))
    outcomes = await asyncio.gather(*(store(world, small(number)) for number in range(1, 5)), store(world, large))
    assert [each.kind for (each,) in outcomes] == ["", "", "", "", "no-space"]
    assert sizes == [1, 5, 1, 1, 1, 1, 1]
    assert len(world.blobs.references()) == 5


@served
async def test_what_nobody_waits_for_any_more_is_not_written(world: World) -> None:
    whole, written = world.blobs.store_whole, list[int]()

    async def slowly(replicas: Sequence[SmallReplica]) -> None:
        written.append(len(replicas))
        await world.pass_ms(10)
        await whole(replicas)

    world.blobs.store_whole = slowly  # type: ignore[method-assign]
    tasks = []
    for number in range(1, 5):  # two are written at once, the others wait
        tasks.append(asyncio.create_task(store(world, small(number))))
        await world.pass_ms(1)
    tasks.pop().cancel()
    await asyncio.gather(*tasks)
    assert sum(written) == len(world.blobs.references()) == 3


@pytest.mark.parametrize("fails", [True, False])
@served
async def test_who_goes_away_while_a_write_goes_on_takes_nobody_along(world: World, fails: bool) -> None:
    whole = world.blobs.store_whole

    async def slowly(replicas: Sequence[SmallReplica]) -> None:
        await world.pass_ms(10)
        if fails:
            raise CheloniaError(Kind.NO_SPACE)
        await whole(replicas)

    world.blobs.store_whole = slowly  # type: ignore[method-assign]
    gone, stays = (asyncio.create_task(store(world, small(number))) for number in (1, 2))
    await world.pass_ms(5)
    gone.cancel()
    assert [each.kind for each in await stays] == ["no-space" if fails else ""]


@served
async def test_no_more_is_written_at_once_than_one_call_may_have(world: World) -> None:
    whole, sizes = world.blobs.store_whole, list[int]()

    async def noted(replicas: Sequence[SmallReplica]) -> None:
        sizes.append(sum(len(each.data) for each in replicas))
        await world.pass_ms(1_000)  # others wait together meanwhile
        await whole(replicas)

    world.blobs.store_whole = noted  # type: ignore[method-assign]
    largest, count = bytes(bounds.INLINE_BYTES_MAX), bounds.STORED_CALL_BYTES_MAX // bounds.INLINE_BYTES_MAX
    calls = ([small(1 + call * count + n, largest) for n in range(count)] for call in range(5))
    await asyncio.gather(*(store(world, *call) for call in calls))
    assert sum(sizes) == 5 * count * len(largest)
    assert max(sizes) <= bounds.STORED_CALL_BYTES_MAX
