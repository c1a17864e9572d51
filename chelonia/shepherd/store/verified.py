"""Verified reads: no byte leaves the store that differs from the stored one."""

from __future__ import annotations

from collections.abc import AsyncIterator

from chelonia.core import bounds
from chelonia.core.contents.extents import ByteRange
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ReferenceId
from chelonia.core.ports.shepherd import BlobStore, unchecked
from chelonia.wire.crcs import whole_blocks, wrong_block


async def verified(
    blobs: BlobStore, reference: ReferenceId, span: ByteRange, size: int, crcs: bytes
) -> AsyncIterator[bytes]:
    """Yield the bytes of `span`, as `BlobStore.read`.

    Args:
        size: of the replica.
        crcs: of its blocks (`BlobStore.blocks`); b"": nothing is verified.

    Raises: NOT_ALIVE before a block that is missing bytes or has changed.
    """
    aligned = whole_blocks(span, size) if crcs and span.length else span
    at, end = aligned.offset, span.offset + span.length

    def check(start: int, data: bytes) -> None:
        wrong = wrong_block(data, start // bounds.CHECKED_BLOCK_BYTES, crcs)
        if wrong >= 0:
            cause = f"the bytes from {wrong * bounds.CHECKED_BLOCK_BYTES} on are not those that were stored"
            raise CheloniaError(Kind.NOT_ALIVE, "read", reference, cause)

    async for chunk in blobs.read(reference, aligned, check if crcs else unchecked):
        first, last = max(span.offset - at, 0), min(end - at, len(chunk))
        yield chunk if last - first == len(chunk) else chunk[first:last]
        at += len(chunk)
