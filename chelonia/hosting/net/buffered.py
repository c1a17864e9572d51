"""Reads TLS into one buffer for all connections, on both ends: what the event loop speaks to instead of aiohttp itself.

It is faster by a second of CPU per GiB and knows nothing of HTTP (docs/performance-history.md).
"""

from __future__ import annotations

import asyncio

SLICE_BYTES = 256 * 1024
"""Most that one step of the event loop takes in."""


class Buffered(asyncio.BufferedProtocol):
    """Hands a connection's bytes on from a buffer that is used again and again.

    TLS is read into such a buffer for 0.55 CPU seconds per GiB; for protocols that are given bytes uvloop needs 1.5
    (docs/performance-history.md). Filling and emptying it is one step of the event loop, so all connections share one.
    """

    def __init__(self, handler: asyncio.Protocol, buffer: bytearray) -> None:
        self._handler = handler
        self._view = memoryview(buffer)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As the handler."""
        self._handler.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """As the handler."""
        self._handler.connection_lost(exc)

    def pause_writing(self) -> None:
        """As the handler."""
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        """As the handler."""
        self._handler.resume_writing()

    def eof_received(self) -> bool | None:
        """As the handler."""
        return self._handler.eof_received()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        """Pass them on."""
        self._handler.data_received(bytes(self._view[:nbytes]))
