"""One arriving body: gathered to chunks, which are hashed and written at once, then forwarded.

While one chunk is hashed and written the next is received. The last chunk is held back from the forwards until the
caller has verified the checksum and calls `release`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ports.shepherd import BlobWriter
from chelonia.shepherd.store.checksums import OFF_LOOP_BYTES_MIN, Hasher, Worker
from chelonia.shepherd.transfers.forwarding import Fanout


class Intake:
    """Takes one body.

    Args:
        writer, hasher: at the same offset.
        fanout: copies to write along.
        limit: total bytes the replica may have, -1 when unknown.
    """

    def __init__(self, worker: Worker, writer: BlobWriter, hasher: Hasher, fanout: Fanout, limit: int) -> None:
        self._worker = worker
        self.writer = writer
        self.hasher = hasher
        self.fanout = fanout
        self._limit = limit
        self.arrived = writer.offset
        """Bytes of the replica that are here, written or not."""
        self._pieces: list[bytes] = []
        self._gathered = 0
        self._stage: asyncio.Task[Any] | None = None
        self._last: bytes | None = None
        self.write_failed = False

    async def take(self, body: AsyncIterator[bytes]) -> None:
        """Consume `body` to its end. Raises: TOO_LARGE beyond the limit; errors of the disk and of the body."""
        async for piece in body:
            self.arrived += len(piece)
            if 0 <= self._limit < self.arrived:
                raise CheloniaError(Kind.TOO_LARGE, "PUT", "", f"more than the {self._limit} bytes that were announced")
            self._pieces.append(piece)
            self._gathered += len(piece)
            if self._gathered >= bounds.CHUNK_BYTES:
                await self._flush()
        await self.drain()

    async def drain(self) -> None:
        """Write all bytes that have arrived."""
        await self._flush()
        await self._staged()

    async def release(self) -> None:
        """Let the forwards have the last chunk and the end."""
        if self._last:
            await self.fanout.offer(self._last)
        self._last = None
        await self.fanout.offer(None)

    async def give_up(self) -> None:
        """Discard the written bytes, here and at the forwards."""
        await self._quiet()
        await self.fanout.cancel()
        await self.writer.abort()

    async def keep(self) -> int:
        """Keep the arrived bytes for a resume; returns how many."""
        await self.fanout.cancel()
        try:
            await self.drain()
            if self.writer.offset > 0:
                await self.writer.suspend()
                return self.writer.offset
        except CheloniaError:
            pass  # a disk that fails keeps nothing; the first call to meet that has raised its cause
        await self._quiet()
        await self.writer.abort()
        return 0

    async def _flush(self) -> None:
        data = b"".join(self._pieces) if len(self._pieces) != 1 else self._pieces[0]
        self._pieces.clear()
        self._gathered = 0
        # A short rest would be a chunk of its own, hashed on the event loop: it goes with the bytes before it.
        step = len(data) if len(data) < 2 * bounds.CHUNK_BYTES else bounds.CHUNK_BYTES
        for start in range(0, len(data), step or 1):
            chunk = data if step == len(data) else data[start : start + step]
            await self._staged()
            self._stage = asyncio.ensure_future(self._store(chunk))

    async def _staged(self) -> None:
        """Wait for the running stage. A cancelled caller leaves it running, so that offset and bytes stay in step."""
        if self._stage is not None:
            await asyncio.wait((self._stage,))
            stage, self._stage = self._stage, None
            stage.result()

    async def _quiet(self) -> None:
        if self._stage is not None:
            await asyncio.wait((self._stage,))
            stage, self._stage = self._stage, None
            if not stage.cancelled():
                stage.exception()

    async def _store(self, chunk: bytes) -> None:
        if len(chunk) < OFF_LOOP_BYTES_MIN:
            self.hasher.update(chunk)
            await self._write(chunk)
        else:
            hashing = asyncio.ensure_future(self.hasher.feed(self._worker, chunk))
            try:
                await self._write(chunk)
            finally:
                await asyncio.wait((hashing,))
            hashing.result()
        if self._last is not None:
            await self.fanout.offer(self._last)
        self._last = chunk

    async def _write(self, chunk: bytes) -> None:
        try:
            await self.writer.write(chunk)
        except CheloniaError:
            self.write_failed = True
            raise
