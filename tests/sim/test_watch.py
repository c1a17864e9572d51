"""Violations in the eyes of the watch of a simulated cluster, and states that are none."""

from __future__ import annotations

from msgspec import structs

from chelonia.core.ids import RequestKey
from chelonia.core.names import parse_ln
from chelonia.core.ports.bartender import GetFileRequest
from chelonia.core.ports.files import Arrived, Done, Placing, Write
from chelonia.wire import receipts
from tests.sim.chaos import CALM
from tests.sim.virtual_loop import run_virtual
from tests.sim.watch import Watch
from tests.sim.world import USER, World

A_DAY_MS = 86_400_000


async def _committed_when_set_aside() -> None:
    """Store a file whose commit comes after its Shepherds have set the bytes aside: the core's clock was set back."""
    world = World(1)
    world.network.faults = CALM
    watch = Watch(world)
    await world.start()
    bartender, call = world.bartender_port(), structs.replace(USER, request_key=RequestKey(world.ids.uuid()))
    files, place = world.bartender_port(door="files"), parse_ln("/f")
    [start] = await files.place(call, (Placing(place, 5, wanted=2),))
    uploaded = await world.put(start.turl, b"bytes")
    homes = [shepherd for shepherd in world.shepherds if shepherd.disk.platter.references()]
    assert len(homes) == 2
    while any(shepherd.disk.platter.references() for shepherd in homes):
        await world.clock.sleep(1_000)
    [core] = world.hosts
    core.node.clock.offset_ms -= A_DAY_MS
    words = tuple(receipts.to_text(receipt) for receipt in uploaded.receipts)
    [done] = await files.apply(call, (Write(place, Arrived(start.put, words)),))
    assert isinstance(done, Done), done
    watch.check()
    await bartender.get_file(call, (GetFileRequest("0", "/f", ("http",)),))  # a Shepherd compares on a request for it
    while watch.left():
        await world.clock.sleep(1_000)
        watch.check()


def test_shepherds_that_have_set_bytes_aside_are_given_time_to_hear_of_their_commit() -> None:
    run_virtual(_committed_when_set_aside())
