"""The bytes of a file, whatever it is made of: one blob, or extents of several with zeros between them.

Decides which blob each byte comes from, a page of extents at a time, and requests new tickets when its own have
expired. Never mixes two states of a file: when it changes while it is read, the read fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, cast

from chelonia.core.caller import Call
from chelonia.core.contents.extents import ByteRange, Extent
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BlobId
from chelonia.core.names import LogicalName
from chelonia.core.ports.bytes import Bytes
from chelonia.core.ports.files import Files, Look, Looked, Want, good

SPANS_AT_ONCE: Final = 256
"""Spans of one request: as text they stay below the header size that a Shepherd reads."""
_ZEROS: Final = bytes(64 * 1024)


@dataclass(frozen=True, slots=True)
class FileReader:
    """Reads one file for one caller, as it was looked at."""

    files: Files
    transfers: Bytes
    call: Call
    place: LogicalName

    def get(self, looked: Looked, span: ByteRange) -> AsyncIterator[bytes]:
        """Yield the bytes of `span` of a file looked at with SOURCES. Raises: as `Bytes.get`; INCOMPLETE when the file
        has changed meanwhile."""
        return self._read(looked, span) if looked.data is None else _once(_part(looked.data, span))

    async def several(self, looked: Looked, spans: tuple[ByteRange, ...]) -> AsyncIterator[bytes]:
        """Yield the bytes of `spans` one after another, of one blob by as few requests as can be. Raises: as `get`."""
        at_once = SPANS_AT_ONCE if looked.sources and looked.data is None else 1
        for first in range(0, len(spans), at_once):
            batch = spans[first : first + at_once]
            chunks = self.transfers.get(looked.sources, *batch) if at_once > 1 else self.get(looked, *batch)
            async for chunk in chunks:
                yield chunk

    def body(self, looked: Looked, span: ByteRange) -> bytes | AsyncIterator[bytes]:
        """Return the bytes of `span`: themselves where they came with the look, else as `get` yields them."""
        if looked.data is not None or not span.length:
            return _part(looked.data or b"", span)
        return self.get(looked, span)

    async def _read(self, looked: Looked, span: ByteRange) -> AsyncIterator[bytes]:
        at, end, refused_at = span.offset, span.end, -1
        while at < end:
            if at >= _known_until(looked) or at == refused_at:
                looked = await self._again(looked, ByteRange(at, end - at))
            try:
                async with aclosing(
                    self._read_extents(looked, ByteRange(at, min(end, _known_until(looked)) - at))
                ) as chunks:
                    async for chunk in chunks:
                        yield chunk
                        at += len(chunk)
            except CheloniaError as error:
                if error.kind is not Kind.EXPIRED or at == refused_at:
                    raise
                refused_at = at  # the reader is slower than tickets last

    async def _read_extents(self, looked: Looked, span: ByteRange) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of `span`, whose extents `looked` has."""
        at, whole = span.offset, (Extent(0, span.end, BlobId("")),)
        for extent in whole if looked.sources else looked.extents:
            if extent.end > at and extent.at < span.end:
                async for zeros in _zeros(extent.at - at):
                    yield zeros
                part = extent.part(at, span.end)
                async with aclosing(self._part(looked, part)) as chunks:
                    async for chunk in chunks:
                        yield chunk
                at = part.end
        async for zeros in _zeros(span.end - at):
            yield zeros

    def _part(self, looked: Looked, part: Extent) -> AsyncGenerator[bytes, None]:
        sources = looked.sources or looked.blobs.get(part.blob, ())
        return cast(AsyncGenerator[bytes, None], self.transfers.get(sources, ByteRange(part.skip, part.length)))

    async def _again(self, looked: Looked, span: ByteRange) -> Looked:
        (outcome,) = await self.files.look(self.call, (Look(self.place, Want.SOURCES, span),))
        answer = good(outcome, "get")
        if answer.attributes.etag != looked.attributes.etag or _known_until(answer) <= span.offset:
            cause = "the file has changed while it was read; read it again"
            raise CheloniaError(Kind.INCOMPLETE, "get", str(self.place), cause)
        return answer


def _known_until(looked: Looked) -> int:
    """The byte up to which the look says where bytes are."""
    return looked.attributes.size if looked.sources else looked.told


def _part(data: bytes, span: ByteRange) -> bytes:
    return data[span.offset : span.offset + span.length]


async def _once(data: bytes) -> AsyncIterator[bytes]:
    if data:
        yield data


async def _zeros(count: int) -> AsyncIterator[bytes]:
    while count > 0:
        yield _ZEROS[:count]
        count -= len(_ZEROS)
        await asyncio.sleep(0)  # neither this nor a caller that only measures them waits for anything
