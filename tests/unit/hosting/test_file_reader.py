"""Reading a file of extents: unwritten bytes are zeros, and these hold no other reader up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import cast

import pytest

from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.contents.extents import ByteRange, Extent
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BlobId, Dn, Guid
from chelonia.core.names import parse_ln
from chelonia.core.ports.files import Attributes, Look, Looked
from chelonia.hosting.transfer.file_reader import FileReader
from tests.support.failing import fails

HOLE = Looked(Attributes(Guid("g"), "file", 1, Dn("/CN=a"), bounds.FILE_BYTES_MAX), told=bounds.FILE_BYTES_MAX)


class NoBytes:
    """Any request to a Shepherd is an error."""

    def get(self, sources: tuple[str, ...], *spans: ByteRange) -> AsyncIterator[bytes]:
        raise AssertionError("a hole is read from nobody")


async def test_others_have_their_turns_while_a_hole_is_read() -> None:
    """One command makes a file of 8 EiB: its checksum at a door held up all others for good."""
    reader = FileReader(None, NoBytes(), Call(), parse_ln("/f"))  # type: ignore[arg-type]
    turns, came, pieces = 0, 0, 0

    async def other() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    task = asyncio.create_task(other())
    async for piece in reader.get(HOLE, ByteRange(2**40, 8 * 1024 * 1024 + 1)):
        assert not any(piece)
        came, pieces = came + len(piece), pieces + 1
    task.cancel()
    assert came == 8 * 1024 * 1024 + 1
    assert turns >= pieces - 1, "one after each piece"


@dataclass
class Tickets:
    """Files and bytes: a file of pieces of 4 bytes, whose TURLs are good for `lasts` pieces.

    `one`: its TURLs are good for 5 bytes of it.
    `changes`: looks left before it is another file.
    `gone`: no Shepherd has any bytes.
    """

    lasts: int = 2
    changes: int = 99
    gone: bool = False
    one: bool = False
    closed: int = 0
    looks: int = 0
    reads: int = 0

    async def look(self, call: Call, asks: tuple[Look, ...]) -> tuple[Looked, ...]:
        self.looks, self.reads = self.looks + 1, 0
        (ask,) = asks
        assert ask.span is not None
        return (self.told(ask.span.offset),)

    def told(self, at: int) -> Looked:
        extents = tuple(Extent(at, 4, BlobId(str(at))) for at in range(at // 4 * 4, 40, 4))
        etag = "same" if self.looks < self.changes else "other"
        known = Attributes(Guid("g"), "file", 1, Dn("/CN=a"), 40, etag)
        if self.one:
            return Looked(known, sources=("turl",), told=40)
        return Looked(known, extents=extents, told=40, blobs={each.blob: ("turl",) for each in extents})

    async def get(self, sources: tuple[str, ...], *spans: ByteRange) -> AsyncIterator[bytes]:
        self.reads += 1
        if self.gone:
            raise CheloniaError(Kind.NO_REPLICA)
        if self.reads > self.lasts:
            raise CheloniaError(Kind.EXPIRED)
        (span,) = spans
        try:
            for sent in range(span.length):
                if self.one and sent == 5:
                    raise CheloniaError(Kind.EXPIRED)
                yield b"x"
        finally:
            self.closed += 1


async def read(tickets: Tickets, span: ByteRange) -> bytes:
    reader = FileReader(tickets, tickets, Call(), parse_ln("/f"))  # type: ignore[arg-type]
    return b"".join([piece async for piece in reader.get(tickets.told(0), span)])


async def test_who_reads_for_longer_than_tickets_are_good_is_given_others() -> None:
    """A door broke a slow client off after ten minutes, where the file had several blobs."""
    tickets = Tickets()
    assert await read(tickets, ByteRange(2, 37)) == b"x" * 37
    assert tickets.looks == 4
    with fails(Kind.INCOMPLETE):
        await read(Tickets(changes=1), ByteRange(0, 40))
    with fails(Kind.NO_REPLICA):
        await read(Tickets(gone=True), ByteRange(0, 40))


async def test_a_file_of_one_blob_whose_shepherd_dies_late_is_read_on_by_other_tickets() -> None:
    tickets = Tickets(one=True)
    assert await read(tickets, ByteRange(3, 37)) == b"x" * 37
    assert tickets.looks == 7


@pytest.mark.parametrize("one", [True, False])
async def test_who_stops_reading_lets_go_of_the_shepherd_at_once(one: bool) -> None:
    tickets = Tickets(one=one)
    reader = FileReader(tickets, tickets, Call(), parse_ln("/f"))  # type: ignore[arg-type]
    async with aclosing(cast(AsyncGenerator[bytes, None], reader.get(tickets.told(0), ByteRange(0, 40)))) as chunks:
        await anext(chunks)
        assert tickets.closed == 0
    assert tickets.closed == 1


async def test_tickets_that_are_good_for_nothing_are_asked_for_once() -> None:
    tickets = Tickets(lasts=0)
    with fails(Kind.EXPIRED):
        await read(tickets, ByteRange(0, 40))
    assert tickets.looks == 1
