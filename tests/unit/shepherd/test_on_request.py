"""Administrators' requests to a Shepherd: a scrub of some replicas, and orders about its quarantine."""

import asyncio
from collections.abc import Callable

import pytest

from chelonia.core import bounds
from chelonia.core.cluster.replicas import ReplicaFacts
from chelonia.core.errors import Kind
from chelonia.core.ids import SNAPSHOTS_OBJECT, Guid, Ms, ReferenceId
from chelonia.core.ports.shepherd import Authority, ScrubOrder, ScrubPage, StoredReplica
from chelonia.core.timing.clock import within
from chelonia.core.values import replace
from chelonia.shepherd import service
from tests.sim.virtual_loop import virtual
from tests.support.failing import fails, kind_of
from tests.support.shepherd import ADMINISTRATOR, JOE, LIBRARIAN, World, numbered, request, served
from tests.support.turls import parse_turl

DATA = b"x" * 100_000


async def scrub(world: World, order: ScrubOrder) -> tuple[list[ScrubPage], list[ReferenceId]]:
    """All pages of a scrub, and the damaged replicas in them."""
    pages = [await world.service.scrub_page(ADMINISTRATOR, order)]
    while pages[-1].after:
        pages.append(await world.service.scrub_page(ADMINISTRATOR, replace(order, after=pages[-1].after)))
    return pages, [found.reference for page in pages for found in page.damaged]


@virtual
async def test_a_requested_scrub_goes_through_all_in_pages_and_says_what_is_wrong(
    expect_log: Callable[..., None],
) -> None:
    world = await World(scrub_bytes_per_s_max=200_000).start()
    references = sorted([await world.store(DATA, number) for number in range(1, 9)])
    expect_log("replica is invalid")
    world.blobs.flip(references[1])
    world.blobs.truncate(references[3], 10)
    world.blobs.lose(references[5])
    world.blobs.damage_record(references[7])
    before_ms = world.clock.monotonic_ms()
    pages, damaged = await scrub(world, ScrubOrder())
    assert damaged == [references[n] for n in (1, 3, 5, 7)]
    assert sum(page.checked for page in pages) == 8
    assert len(pages) > 1
    assert [page.left for page in pages] == sorted((page.left for page in pages), reverse=True)
    assert pages[-1].left == 0
    took_ms = world.clock.monotonic_ms() - before_ms
    assert took_ms >= 1000 * 4 * len(DATA) // 200_000, "faster than it may read"
    reasons = [found.damage for page in pages for found in page.damaged]
    assert reasons[0] == "the bytes from 0 on are not those that were stored"
    assert "record is missing" in reasons[3]


@served
async def test_a_scrub_may_be_of_some_of_the_unchecked_or_of_suspicion(
    world: World, expect_log: Callable[..., None]
) -> None:
    references = sorted([await world.store(DATA, number) for number in range(1, 5)])
    gone = ReferenceId(numbered("9", 9))
    pages, damaged = await scrub(world, ScrubOrder((references[2], gone)))
    assert (pages[0].checked, damaged) == (2, [gone])
    world.clock.step_ms += 60_000
    now = Ms(world.clock.now_ms() - 1)
    await scrub(world, ScrubOrder((references[0],)))
    pages, _ = await scrub(world, ScrubOrder(before_ms=now))
    assert sum(page.checked for page in pages) == 3
    expect_log("replica is invalid")
    world.blobs.flip(references[1])
    assert await scrub(world, ScrubOrder(suspicious=True)) == ([ScrubPage(0, 0, (), "", 0)], [])
    await world.service.scrub(LIBRARIAN, (references[1],))
    _, damaged = await scrub(world, ScrubOrder(suspicious=True))
    assert damaged == [references[1]]


@pytest.mark.expect_log("replica is invalid")
@virtual
async def test_a_slow_check_that_read_the_bytes_before_they_rotted_does_not_call_them_sound_again() -> None:
    """A copy that was found damaged meanwhile counted as verified again, until the next round two weeks later."""
    world = await World(scrub_bytes_per_s_max=len(DATA)).start()
    reference = await world.store(DATA)
    checking = asyncio.ensure_future(world.service.scrub_page(ADMINISTRATOR, ScrubOrder((reference,))))
    await world.pass_ms(100)
    world.blobs.flip(reference)
    assert await world.service.scrub(LIBRARIAN, (reference,)) == 1
    assert (await checking).checked == 1
    assert await world.state_of(reference) == "invalid"
    world.blobs.flip(reference)
    assert await world.service.scrub(LIBRARIAN, (reference,)) == 0
    assert await world.state_of(reference) == "alive"


@served
async def test_only_administrators_may(world: World) -> None:
    for call in (JOE, LIBRARIAN):
        with fails(Kind.DENIED):
            await world.service.scrub_page(call, ScrubOrder())
        with fails(Kind.DENIED):
            await world.service.discard(call, ())


async def forgotten(world: World, count: int) -> list[ReferenceId]:
    """Committed replicas that the namespace has forgotten, set aside."""
    references = [await world.store(DATA, number) for number in range(1, count + 1)]
    await world.pass_ms(2000)
    world.librarian.known.clear()
    world.librarian.forget()
    await world.restart(run=True)
    await world.pass_ms(2 * world.settings.unknown_grace_ms)
    assert await world.quarantined() == count
    return references


@virtual
async def test_quarantine_is_counted_and_discarded_only_by_an_administrators_word(
    expect_log: Callable[..., None],
) -> None:
    expect_log("replica set aside")
    world = await World(quarantine_keep_ms=60_000).start(run=True)
    first, second = await forgotten(world, 2)
    assert (await world.service.status(ADMINISTRATOR)).quarantined_bytes == 2 * len(DATA)
    assert world.librarian.beats[-1].reclaimable_bytes == 2 * len(DATA)
    await world.pass_ms(2 * world.settings.quarantine_keep_ms)
    assert await world.quarantined() == 2
    held = await world.store(DATA, 7)
    assert await world.service.discard(ADMINISTRATOR, (first, held, first)) == 1
    assert await world.state_of(held) == "alive", "it is not in quarantine"
    assert [stored.reference for stored in await world.blobs.quarantined()] == [second]
    assert (await world.service.status(ADMINISTRATOR)).quarantined_bytes == len(DATA)


@virtual
async def test_what_is_brought_back_while_the_quarantine_is_discarded_stays(
    expect_log: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    expect_log("replica set aside")
    world = await World().start(run=True)
    references = await forgotten(world, 3)
    discard, brought = world.blobs.discard, list[int]()

    async def meanwhile(reference: ReferenceId) -> bool:
        gone = await discard(reference)
        if not brought:
            brought.append(await world.service.readmit(ADMINISTRATOR))
        return gone

    monkeypatch.setattr(world.blobs, "discard", meanwhile)
    assert await world.service.discard(ADMINISTRATOR, tuple(references)) == 1
    assert brought == [2]
    assert [await world.state_of(reference) for reference in references] == ["none", "alive", "alive"]
    assert world.blobs.references() == tuple(sorted(references[1:]))


@virtual
async def test_a_large_quarantine_is_read_twice_at_most_however_often_it_is_asked_for_again(
    expect_log: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds also where much of it stays: unacknowledged replicas, and damaged ones."""
    expect_log("replica set aside|replica damaged|replica is invalid")
    monkeypatch.setattr(bounds, "READMITTED_MAX", 5)
    monkeypatch.setattr(service, "ASIDE_PAGE", 4)
    world = await World().start(run=True)
    references = await forgotten(world, 20)
    for reference in references[:4]:
        await world.blobs.reinstate(reference)
        world.blobs.flip(reference)
        await world.blobs.quarantine(reference)
    read, quarantined = list[int](), world.blobs.quarantined

    async def counted(after: str = "", limit: int = 0) -> tuple[StoredReplica, ...]:
        found = await quarantined(ReferenceId(after), limit)
        read.append(len(found))
        return found

    monkeypatch.setattr(world.blobs, "quarantined", counted)
    brought = [await world.service.readmit(ADMINISTRATOR) for _ in range(4)]
    assert brought == [5, 5, 5, 1]
    assert sum(read) <= 2 * 20
    assert (await world.service.status(ADMINISTRATOR)).quarantined_bytes == 4 * len(DATA)
    assert await world.quarantined() == 4
    await world.blobs.reinstate(references[0])
    world.blobs.flip(references[0])
    await world.blobs.quarantine(references[0])
    assert await world.service.readmit(ADMINISTRATOR) == 1, "it is begun anew"


@virtual
async def test_what_came_back_from_quarantine_is_reported_though_its_check_was_given_up(
    expect_log: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a large replica, when a Librarian of the same process leads the rebuild no more."""
    expect_log("replica set aside")
    world = await World(scrub_period_ms=14 * 24 * 3_600_000).start(run=True)
    (reference,) = await forgotten(world, 1)

    async def hangs(_: ReferenceId) -> ReplicaFacts | None:
        await asyncio.Event().wait()
        return None

    with monkeypatch.context() as slow:
        slow.setattr(world.blobs, "facts", hangs)
        assert await kind_of(within(world.clock, 1000, world.service.readmit(LIBRARIAN))) is Kind.TIMEOUT
    world.librarian.applied.clear()
    await world.pass_ms(5000)
    assert (reference, "alive") in world.librarian.states()


@virtual
async def test_what_is_brought_back_while_it_is_erased_is_gone(
    expect_log: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was in the index, as damaged, until it was set aside as unknown."""
    expect_log("replica set aside")
    world = await World().start(run=True)
    [reference] = await forgotten(world, 1)
    erase = world.blobs.erase

    async def late(reference: ReferenceId) -> bool:
        assert await world.service.readmit(ADMINISTRATOR) == 1
        return await erase(reference)

    monkeypatch.setattr(world.blobs, "erase", late)
    order = (("r", reference),), Authority(world.librarian.position)
    assert [outcome.status for outcome in await world.service.delete(LIBRARIAN, *order)] == ["deleted"]
    assert await world.state_of(reference) == "none"


@served
async def test_of_what_nobody_is_known_to_have_named_bytes_of_snapshots_alone_come_back(world: World) -> None:
    references = []
    for number, guid in ((1, Guid(SNAPSHOTS_OBJECT)), (2, Guid(numbered("f", 2)))):
        wanted = request(DATA, number)
        outcome = await world.put(replace(wanted, facts=replace(wanted.facts, guid=guid)))
        await world.send(parse_turl(outcome.turl), DATA)
        references.append(outcome.reference)
        await world.blobs.quarantine(outcome.reference)
    await world.restart()
    assert [stored.committed for stored in await world.blobs.quarantined()] == [False, False]
    assert await world.service.readmit(ADMINISTRATOR) == 1
    assert [await world.state_of(reference) for reference in references] == ["alive", "none"]
    await world.stop()


@virtual
async def test_under_restored_metadata_the_quarantine_is_asked_for_again_and_checked_first(
    expect_log: Callable[..., None],
) -> None:
    expect_log("replica set aside")
    world = await World().start(run=True)
    known, unknown, rotten = await forgotten(world, 3)
    expect_log("replica damaged|replica is invalid", optional=True)
    await world.blobs.reinstate(rotten)
    world.blobs.flip(rotten)
    await world.blobs.quarantine(rotten)
    told = len(world.librarian.states())
    world.librarian.known[request(DATA, 1).facts.blob] = None
    world.librarian.known[request(DATA, 3).facts.blob] = None
    position = world.librarian.position
    world.librarian.position = replace(position, generation=position.generation + 1)
    await world.pass_ms(10_000)
    assert await world.state_of(known) == "alive"
    assert (known, "alive") in world.librarian.states()[told:]
    assert (rotten, "alive") not in world.librarian.states()[told:]
    await world.pass_ms(2 * world.settings.unknown_grace_ms)
    assert sorted(stored.reference for stored in await world.blobs.quarantined()) == sorted((unknown, rotten))
