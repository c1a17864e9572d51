"""A scrub leaves nothing out: not the end of large replicas, the last replica of a page, nor one that it failed to
read."""

from collections.abc import Callable
from typing import NoReturn

import pytest

from chelonia.core import bounds
from chelonia.core.cluster.position import Position
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ReferenceId
from chelonia.core.ports.shepherd import Authority, ScrubOrder
from chelonia.core.values import replace
from chelonia.shepherd import scrubber
from tests.sim.virtual_loop import virtual
from tests.support.shepherd import ADMINISTRATOR, CLUSTER, LIBRARIAN, World, served


async def paged(world: World) -> list[ReferenceId]:
    """The damaged replicas of a scrub of everything, page by page."""
    page = await world.service.scrub_page(ADMINISTRATOR, ScrubOrder())
    found = [damaged.reference for damaged in page.damaged]
    while page.after:
        page = await world.service.scrub_page(ADMINISTRATOR, replace(ScrubOrder(), after=page.after))
        found += [damaged.reference for damaged in page.damaged]
    return found


@pytest.mark.parametrize("at", [0, bounds.CHUNK_BYTES - 1, bounds.CHUNK_BYTES, 3 * bounds.CHUNK_BYTES + 4])
@virtual
async def test_rot_anywhere_in_a_large_replica_is_found(at: int, expect_log: Callable[..., None]) -> None:
    expect_log("replica is invalid")
    world = await World().start()
    reference = await world.store(b"x" * (3 * bounds.CHUNK_BYTES + 5))
    world.blobs.flip(reference, at)
    assert await world.service.scrub(ADMINISTRATOR, ()) == 1


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
@virtual
async def test_every_replica_of_every_page_is_read(
    count: int, expect_log: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    expect_log("replica is invalid")
    monkeypatch.setattr(scrubber, "PAGE_REPLICAS", 2)
    world = await World().start()
    references = sorted([await world.store(b"x", number) for number in range(count)])
    for reference in references:
        world.blobs.flip(reference)
    assert await paged(world) == references


@pytest.mark.parametrize("size", [5, bounds.CHECKED_BLOCK_BYTES, 3 * bounds.CHUNK_BYTES + 5])
@served
async def test_a_record_by_which_no_part_can_be_read_is_damage(
    world: World, size: int, expect_log: Callable[..., None]
) -> None:
    """The bytes are right, but readers fail by the CRCs of their blocks: another copy must be made."""
    reference = await world.store(b"x" * size)
    assert await world.service.scrub(ADMINISTRATOR, ()) == 0
    facts, crcs = world.blobs.record(reference), bytearray(await world.blobs.blocks(reference))
    assert facts is not None
    crcs[-1] ^= 1
    if size <= bounds.CHECKED_BLOCK_BYTES:
        facts = replace(facts, checksums=replace(facts.checksums, crc32c=crcs.hex()))
    world.blobs.publish(reference, b"x" * size, facts, bytes(crcs))
    expect_log("replica is invalid")
    assert await world.service.scrub(ADMINISTRATOR, ()) == 1


@pytest.mark.expect_log("check impossible|erasure failed")
@virtual
async def test_a_suspicious_replica_whose_check_was_impossible_is_checked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A Shepherd may lack descriptors for a moment. Until its check such a replica is out of use."""
    world = await World(scrub_period_ms=14 * 24 * 3_600_000).start(run=True)
    reference = await world.store(b"x" * 1000)
    await world.pass_ms(1100)

    async def fails(*_: ReferenceId) -> NoReturn:
        raise CheloniaError(Kind.UNAVAILABLE, "disk", cause="Too many open files")

    with monkeypatch.context() as broken:
        broken.setattr(world.blobs, "erase", fails)
        broken.setattr(world.blobs, "facts", fails)
        order = Authority(Position(CLUSTER, 1, 5))
        await world.service.delete(LIBRARIAN, (("r", reference),), order)
        await world.pass_ms(1000)
        assert await world.state_of(reference) == "invalid"
    await world.pass_ms(2 * 60_000)
    assert await world.state_of(reference) == "alive"
