"""A scrub leaves nothing out: not the end of large replicas, nor the last replica of a page."""

from collections.abc import Callable

import pytest

from chelonia.core import bounds
from chelonia.core.ids import ReferenceId
from chelonia.core.ports.shepherd import ScrubOrder
from chelonia.core.values import replace
from chelonia.shepherd import scrubber
from tests.sim.virtual_loop import virtual
from tests.support.shepherd import ADMINISTRATOR, World, served


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
