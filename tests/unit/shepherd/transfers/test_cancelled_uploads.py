"""PUT that breaks off: it goes on with the bytes that are kept, or begins anew when the disk keeps none. One whose
answer was lost is repeated."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from chelonia.core.bounds import CHUNK_BYTES
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ReferenceId
from chelonia.core.ports.shepherd import Authority, Upload
from tests.sim.virtual_loop import virtual
from tests.support.failing import kind_of
from tests.support.memory_blobs import MemoryBlobs, MemoryWriter
from tests.support.shepherd import JOE, LIBRARIAN, World, body, broken_body, numbered, request, served

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


@pytest.mark.parametrize("ended_by", ["its connection", "its checksum"])
@served
async def test_an_upload_ends_though_its_bytes_cannot_be_removed(
    world: World, monkeypatch: pytest.MonkeyPatch, ended_by: str
) -> None:
    """As on a disk that the kernel has made read-only, until a person mends it."""
    ticket = await world.ticket(request(DATA))
    sent = broken_body(DATA[:500]) if ended_by == "its connection" else body(b"!" * len(DATA))

    async def refuses(_: MemoryWriter) -> None:
        raise CheloniaError(Kind.READ_ONLY, "write", cause="the disk of this Shepherd is mounted read-only")

    with monkeypatch.context() as broken:
        broken.setattr(MemoryWriter, "suspend", refuses)
        broken.setattr(MemoryWriter, "abort", refuses)
        assert await kind_of(world.service.receive(JOE, Upload(ticket, sent, len(DATA)))) is Kind.READ_ONLY
    assert (await world.send(ticket, DATA)).complete


@pytest.mark.parametrize("late", ["suspend", "commit"])
@virtual
async def test_what_comes_behind_an_erasure_goes_though_the_disk_refuses_at_first(
    monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    """The order was confirmed, so it is not repeated."""
    world, reference = await World().start(), ReferenceId(numbered("c", 1))
    ticket = await world.ticket(request(DATA, reference=reference))
    write, erase, refusals = getattr(MemoryWriter, late), MemoryBlobs.erase, [1]

    async def refuses(blobs: MemoryBlobs, reference: ReferenceId) -> bool:
        if refusals:
            refusals.pop()
            raise CheloniaError(Kind.UNAVAILABLE, "disk")
        return await erase(blobs, reference)

    async def overtaken(writer: MemoryWriter, *arguments: object) -> None:
        await world.service.delete(LIBRARIAN, (("r", reference),), Authority(world.librarian.position))
        monkeypatch.setattr(MemoryBlobs, "erase", refuses)
        await write(writer, *arguments)

    monkeypatch.setattr(MemoryWriter, late, overtaken)
    sent = broken_body(DATA[:10]) if late == "suspend" else body(DATA)
    assert await kind_of(world.service.receive(JOE, Upload(ticket, sent, len(DATA)))) is Kind.UNAVAILABLE
    assert world.blobs.used_bytes() > 0
    await world.service.tidy()
    assert world.blobs.used_bytes() == 0


@served
async def test_a_last_part_that_comes_again_gets_the_same_answer_and_other_bytes_do_not(world: World) -> None:
    ticket = await world.ticket(request(DATA))
    await world.send(ticket, DATA[:600], total=len(DATA))
    last = {"offset": 600, "total": len(DATA)}
    answer = await world.send(ticket, DATA[600:], **last)
    assert await world.send(ticket, DATA[600:], **last) == answer
    for wrong in (DATA[600:-1] + b"!", DATA[600:-1], DATA[600:] + b"!"):
        assert await kind_of(world.send(ticket, wrong, **last)) is Kind.ALREADY_DONE
