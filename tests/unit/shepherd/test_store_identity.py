"""The identity of a store's disk: made once, known again, missed when it is gone."""

from collections.abc import Callable

import pytest

from chelonia.core.cluster.replicas import ReplicaState
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ReferenceId, ServiceId
from chelonia.core.ports.librarian import REFUSED_STORE, REFUSED_TWIN, InventoryItem
from chelonia.core.ports.shepherd import Authority, StoreIdentity
from chelonia.core.values import replace
from tests.sim.virtual_loop import virtual
from tests.support.failing import fails
from tests.support.memory_blobs import MemoryBlobs
from tests.support.shepherd import ADMINISTRATOR, CLUSTER, JOE, LIBRARIAN, World, request, running, served

DATA = b"x" * 1000


@virtual
async def test_a_fresh_disk_gets_an_id_once_and_takes_no_bytes_before_a_cluster_knows_it() -> None:
    world = World()
    world.blobs = MemoryBlobs(1 << 30)
    await world.restart(crash=True)
    made = await world.blobs.identity()
    assert made is not None
    assert (made.service, made.cluster) == (world.settings.service_id, "")
    refused = await world.put(request(DATA))
    assert (refused.turl, refused.kind) == ("", Kind.UNAVAILABLE.value)
    await world.service.beat()
    assert [(beat.store, beat.accepting) for beat in world.librarian.beats] == [(made.store, False), (made.store, True)]
    assert (await world.put(request(DATA))).turl
    await world.restart(crash=True)
    assert await world.blobs.identity() == replace(made, cluster=CLUSTER)


@virtual
async def test_another_shepherds_disk_is_refused_at_the_start() -> None:
    world = World()
    await world.blobs.identify(StoreIdentity("s", ServiceId("https://other/Shepherd"), CLUSTER))
    with fails(Kind.BAD_CONFIG, match="accept-store"):
        await world.start()


@virtual
async def test_a_disk_of_another_cluster_is_not_ready(expect_log: Callable[..., None]) -> None:
    world = World()
    await world.blobs.identify(StoreIdentity("s", world.settings.service_id, "another"))
    world.state.state = None
    await world.start()
    expect_log("a Librarian of another cluster answered")
    await world.service.beat()
    assert "cluster" in (await world.service.status(ADMINISTRATOR)).trouble
    assert (await world.put(request(DATA))).turl == ""


@served
async def test_a_store_the_cluster_does_not_expect_ends_the_shepherd_naming_the_cure(world: World) -> None:
    world.librarian.refused = REFUSED_STORE
    with fails(Kind.BAD_CONFIG, match=r"somebody else; .*accept-store"):
        await world.service.run()


@served
async def test_a_second_process_takes_and_reports_nothing_until_the_first_is_gone(
    world: World,
    expect_log: Callable[..., None],
) -> None:
    expect_log("refused by the cluster: it is somebody else")
    world.librarian.refused = REFUSED_TWIN
    await world.service.beat()
    await world.service.beat()
    assert (await world.put(request(DATA))).turl == ""
    assert (await world.service.status(ADMINISTRATOR)).trouble == "it is somebody else"
    assert not world.librarian.beats[-1].accepting
    world.librarian.refused = ""
    await world.service.beat()
    assert (await world.service.status(ADMINISTRATOR)).trouble == ""
    assert (await world.put(request(DATA))).turl


@served
async def test_each_start_remembers_those_before_it(world: World) -> None:
    boots = []
    for _ in range(10):
        await world.pass_ms(3000)
        await world.restart()
        await world.service.beat()
        boots.append(world.librarian.beats[-1].boot)
        assert list(world.librarian.beats[-1].boots)[:8][: len(boots) - 1] == boots[-2::-1][:8]
    assert len(world.librarian.beats[-1].boots) == 8


@running
async def test_a_disk_that_goes_away_is_told_and_nothing_is_concluded(
    world: World, expect_log: Callable[..., None]
) -> None:
    reference = await world.store(DATA)
    await world.pass_ms(1000)
    told = len(world.librarian.sent)
    expect_log("the store is not there any more: its directory is empty")
    world.blobs.vanish()
    await world.pass_ms(120_000)  # several rounds of the scrub
    assert world.librarian.beats[-1].trouble == "its directory is empty"
    assert (await world.service.status(ADMINISTRATOR)).trouble
    assert len(world.librarian.sent) == told, "it has reported of what it cannot see"
    assert (await world.put(request(DATA, 2))).turl == ""
    with fails(Kind.UNAVAILABLE):
        await world.service.delete(LIBRARIAN, (("r", reference),), Authority(world.librarian.position))
    world.blobs.come_back()
    await world.pass_ms(60_000)
    assert world.librarian.beats[-1].trouble == ""
    assert await world.state_of(reference) == "alive"
    assert (await world.put(request(DATA, 3))).turl


@running
async def test_a_disk_that_fails_under_a_cache_condemns_no_replica(
    world: World, expect_log: Callable[..., None]
) -> None:
    reference = await world.store(DATA)
    await world.pass_ms(1000)
    expect_log("the store is not there any more: its disk fails")
    world.blobs.broken = True
    await world.pass_ms(120_000)
    assert "its disk fails" in world.librarian.beats[-1].trouble
    world.blobs.broken = False
    await world.pass_ms(60_000)
    assert world.librarian.beats[-1].trouble == ""
    assert await world.state_of(reference) == "alive"


@served
async def test_nobody_is_told_that_a_copy_is_whole_when_its_disk_is_not_there(
    world: World, expect_log: Callable[..., None]
) -> None:
    reference = await world.store(DATA)
    expect_log("the store is not there any more")
    world.blobs.vanish()
    with fails(Kind.UNAVAILABLE, match="its directory is empty"):
        await world.state_of(reference)
    world.blobs.come_back()
    assert await world.state_of(reference) == "alive"
    world.blobs.broken = True  # what is read still comes from a cache
    with fails(Kind.UNAVAILABLE, match="its disk fails"):
        await world.state_of(reference)


@served
async def test_who_asks_how_far_an_upload_is_hears_that_the_disk_fails(
    world: World, expect_log: Callable[..., None]
) -> None:
    ticket, done = await world.ticket(request(DATA)), await world.ticket(request(DATA, 2))
    await world.send(done, DATA)
    expect_log("the store is not there any more: its disk fails")
    world.blobs.broken = True
    with fails(Kind.UNAVAILABLE):
        await world.state_of(*world.blobs.references())
    with fails(Kind.UNAVAILABLE, match="its disk fails"):
        await world.service.offset(JOE, ticket)
    assert await world.service.offset(JOE, done) == -1
    world.blobs.broken = False
    await world.service.beat()
    assert await world.service.offset(JOE, ticket) == 0


@served
async def test_erasures_are_not_confirmed_when_the_disk_goes_meanwhile(
    world: World, expect_log: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    references = [await world.store(DATA, number) for number in range(1, 4)]
    order = tuple((str(number), reference) for number, reference in enumerate(references))
    authority = Authority(world.librarian.position)
    erase = world.blobs.erase

    async def unmounted_after_the_first(reference: ReferenceId) -> bool:
        if reference == references[1]:
            world.blobs.vanish()
        return await erase(reference)

    expect_log("the store is not there any more")
    with monkeypatch.context() as patched:
        patched.setattr(world.blobs, "erase", unmounted_after_the_first)
        with pytest.raises(CheloniaError) as caught:
            await world.service.delete(LIBRARIAN, order, authority)
    assert caught.value.kind is Kind.UNAVAILABLE
    world.blobs.come_back()
    assert world.blobs.references() == tuple(sorted(references[1:]))
    outcomes = await world.service.delete(LIBRARIAN, order, authority)
    assert [outcome.status for outcome in outcomes] == ["deleted"] * 3
    assert world.blobs.references() == ()


@running
async def test_replicas_of_a_replaced_store_are_reported_lost_as_one_event(
    world: World, expect_log: Callable[..., None]
) -> None:
    references = [await world.store(DATA, number) for number in range(1, 6)]
    await world.pass_ms(1000)
    await world.stop()
    for number, reference in enumerate(references, 1):
        blob = request(DATA, number).facts.blob
        world.librarian.items[reference] = InventoryItem(reference, blob, ReplicaState.ALIVE)
    world.blobs = MemoryBlobs(1 << 30, StoreIdentity("new", world.settings.service_id, replaces=True))
    world.state.state = None
    expect_log("takes the place of an earlier one: 5 replicas it held are reported lost")
    await world.restart(run=True, crash=True)
    await world.pass_ms(1000)
    assert [beat.replaces for beat in world.librarian.beats if beat.store == "new"][:2] == [True, False]
    assert sorted(world.librarian.states()[-5:]) == sorted((reference, "deleted") for reference in references)
