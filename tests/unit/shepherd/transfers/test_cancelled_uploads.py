"""PUT whose sender is cancelled: the bytes so far are kept, and the upload goes on."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from chelonia.core.bounds import CHUNK_BYTES
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ports.shepherd import Upload
from tests.sim.virtual_loop import virtual
from tests.support.memory_blobs import MemoryWriter
from tests.support.shepherd import JOE, World, request

DATA = bytes(range(256)) * 1000
LARGE = bytes(range(256)) * (CHUNK_BYTES * 3 // 256) + b"tail"


@virtual
async def test_a_cancelled_request_keeps_what_came() -> None:
    world = await World().start()
    ticket = await world.ticket(request(LARGE))

    async def hanging() -> AsyncIterator[bytes]:
        yield LARGE[: CHUNK_BYTES + 7]
        await asyncio.Event().wait()

    sending = asyncio.ensure_future(world.service.receive(JOE, Upload(ticket, hanging(), len(LARGE))))
    await world.pass_ms(100)
    sending.cancel()
    await asyncio.wait((sending,))
    assert sending.cancelled()
    kept = await world.service.offset(JOE, ticket)
    assert kept == CHUNK_BYTES + 7
    assert (await world.send(ticket, LARGE[kept:], offset=kept, total=len(LARGE))).complete


@pytest.mark.parametrize("ended", [True, False], ids=["a part", "a part that breaks off"])
@virtual
async def test_a_request_that_is_cancelled_while_what_came_is_kept_leaves_it_for_the_next(
    ended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The upload counted as still being received for the life of the process. No part of it could follow, and neither
    its space nor its owner's place came free."""
    world, suspending, on = await World().start(), asyncio.Event(), asyncio.Event()
    ticket, suspend = await world.ticket(request(DATA)), MemoryWriter.suspend

    async def slow(writer: MemoryWriter) -> None:
        suspending.set()
        await on.wait()
        await suspend(writer)

    async def body() -> AsyncIterator[bytes]:
        yield DATA[:600]
        if not ended:
            raise CheloniaError(Kind.NETWORK)

    monkeypatch.setattr(MemoryWriter, "suspend", slow)
    part = Upload(ticket, body(), 600, total=len(DATA))
    sending = asyncio.ensure_future(world.service.receive(JOE, part))
    await suspending.wait()
    sending.cancel()
    await asyncio.wait((sending,))
    on.set()
    await world.pass_ms(1)
    assert await world.service.offset(JOE, ticket) == 600
    assert (await world.send(ticket, DATA[600:], offset=600, total=len(DATA))).complete
