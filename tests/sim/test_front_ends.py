"""The check of a blob's bytes by a simulated front end."""

from __future__ import annotations

from msgspec import structs

from chelonia.core.contents.extents import ByteRange
from chelonia.core.errors import Kind
from chelonia.core.ids import RequestKey
from chelonia.core.names import parse_ln
from chelonia.core.ports.bartender import GetFileRequest
from chelonia.core.ports.files import Arrived, Placing, Write
from chelonia.wire import receipts
from tests.sim.chaos import CALM
from tests.sim.front_ends import BytesFrom
from tests.sim.users import User
from tests.sim.virtual_loop import run_virtual
from tests.sim.world import USER, World
from tests.support.failing import fails


async def _rotten_without_crcs() -> None:
    """Read a blob whose only copies have rotted, with records that have no CRCs, as those of older software."""
    world = World(1)
    world.network.faults = CALM
    await world.start()
    bartender, call = world.bartender_port(), structs.replace(USER, request_key=RequestKey(world.ids.uuid()))
    files, place = world.bartender_port(door="files"), parse_ln("/f")
    [start] = await files.place(call, (Placing(place, 5, wanted=2),))
    uploaded = await world.put(start.turl, b"bytes")
    words = tuple(receipts.to_text(receipt) for receipt in uploaded.receipts)
    await files.apply(call, (Write(place, Arrived(start.put, words)),))
    [told] = await bartender.get_file(call, (GetFileRequest("0", "/f", ("http",)),))
    door = BytesFrom(world, User(0, world.user), USER)
    kept = [(each.disk.platter, reference) for each in world.shepherds for reference in each.disk.platter.references()]
    for platter, reference in kept:
        facts = platter.record(reference)
        assert facts is not None
        platter.publish(reference, platter.data(reference), structs.replace(facts, checksums=facts.checksums.noted))
    assert [piece async for piece in door.get((told.turl,), ByteRange(0, 5))] == [b"bytes"]
    for platter, reference in kept:
        platter.flip(reference)
    with fails(Kind.CHECKSUM):
        [_ async for _ in door.get((told.turl,), ByteRange(0, 5))]


def test_bytes_are_held_against_the_checksum_that_their_shepherd_tells_whatever_its_disk_says() -> None:
    run_virtual(_rotten_without_crcs())
