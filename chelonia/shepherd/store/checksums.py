"""The checksums of a stream in one pass, large pieces off the event loop.

- SHA-256 is always computed: it is the checksum of record.
- Adler-32, CRC32C and CRC64NVME are computed of arriving bytes: they cost little, and combine over a file's extents.
- MD5 costs more than all of them. It is computed where a door needs it: uploads the original's way, parts of S3, and
  bytes announced with an MD5.

`Worker` is the port through which heavy, pure computation leaves the loop. Hosting binds it to threads (hashlib and
zlib-ng release the interpreter lock), the simulator runs it inline.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from chelonia.core.cluster.replicas import Checksums
from chelonia.wire.crcs import BlockCrcs, Crc

T = TypeVar("T")

OFF_LOOP_BYTES_MIN: Final = 256 * 1024
"""Smaller pieces are hashed in the event loop: a thread hop costs more."""


class Worker(Protocol):
    """Runs a blocking or heavy function without holding up the event loop."""

    async def run(self, fn: Callable[[], T]) -> T:
        """Return `fn()`, or raise its error."""


class Hasher:
    """SHA-256 of one stream; with `combining` its Adler-32 and CRCs too, with `md5` its MD5."""

    def __init__(self, *, md5: bool = True, combining: bool = True) -> None:
        self._sha256 = hashlib.sha256()
        self.md5 = md5
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._blocks = BlockCrcs()
        self._combining = (Crc("adler32"), self._blocks, Crc("crc64nvme")) if combining else ()
        self.size = 0

    def update(self, chunk: bytes) -> None:
        """Add the next bytes; blocks for about 2 ms per MiB."""
        self._update_most(chunk)
        if self.md5:
            self._md5.update(chunk)
        self.size += len(chunk)

    async def feed(self, worker: Worker, chunk: bytes) -> None:
        """Add the next bytes, through `worker` when they are many, MD5 beside the others. One call at a time."""
        if len(chunk) < OFF_LOOP_BYTES_MIN:
            self.update(chunk)
            return
        most = worker.run(lambda: self._update_most(chunk))
        if self.md5:
            await asyncio.gather(most, worker.run(lambda: self._md5.update(chunk)))
        else:
            await most
        self.size += len(chunk)

    def _update_most(self, chunk: bytes) -> None:
        self._sha256.update(chunk)
        for each in self._combining:
            each.update(chunk)

    def checksums(self) -> Checksums:
        """Return the checksums of the bytes added so far."""
        md5 = self._md5.hexdigest() if self.md5 else ""
        return Checksums(self._sha256.hexdigest(), md5, *(each.digest().hex() for each in self._combining))

    def blocks(self) -> bytes:
        """Return, with `combining`, the CRC of each block of the bytes added so far; else b""."""
        return self._blocks.blocks()
