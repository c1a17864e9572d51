"""Reading a file of extents: what nobody wrote is zeros, and these keep nobody from his turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.contents.extents import ByteRange
from chelonia.core.ids import Dn, Guid
from chelonia.core.names import parse_ln
from chelonia.core.ports.files import Attributes, Looked
from chelonia.hosting.transfer.file_reader import FileReader

HOLE = Looked(Attributes(Guid("g"), "file", 1, Dn("/CN=a"), bounds.FILE_BYTES_MAX), told=bounds.FILE_BYTES_MAX)


class NoBytes:
    """Nothing is asked of Shepherds."""

    def get(self, sources: tuple[str, ...], *spans: ByteRange) -> AsyncIterator[bytes]:
        raise AssertionError("a hole is read from nobody")


async def test_others_have_their_turns_while_a_hole_is_read() -> None:
    """A file of 8 EiB is made by a word: whoever summed it up at a door held up all others for good."""
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
