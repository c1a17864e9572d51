"""Reads TLS into one buffer for all connections, on both ends, between the event loop and aiohttp.

It saves a second of CPU per GiB, and knows nothing of HTTP (docs/performance-history.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl

SLICE_BYTES = 256 * 1024
"""Most bytes that one step of the event loop takes in."""


class Buffered(asyncio.BufferedProtocol):
    """Hands a connection's bytes on from a reused buffer.

    uvloop reads TLS into such a buffer in 0.55 CPU seconds per GiB, for protocols that get bytes in 1.5
    (docs/performance-history.md). Filling and emptying it is one step of the event loop, so all connections share one.
    `first_bytes`: most that a step takes until `widen`.
    """

    def __init__(self, handler: asyncio.Protocol, buffer: bytearray, first_bytes: int = SLICE_BYTES) -> None:
        self._handler = handler
        self._whole = memoryview(buffer)
        self._view = self._whole[:first_bytes]
        self._transport: asyncio.BaseTransport | None = None
        self._tls: ssl.SSLObject | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self._tls = transport, transport.get_extra_info("ssl_object")
        self._take_at_once(self._view)
        self._handler.connection_made(transport)

    def widen(self) -> None:
        """Take as much in a step as the buffer has room for."""
        if len(self._view) < len(self._whole):
            self._take_at_once(self._whole)

    def _take_at_once(self, view: memoryview) -> None:
        self._view, transport = view, self._transport
        if transport is not None and self._tls is not None:
            # else TLS takes in twice 256 KiB in a step, however little of it is decrypted
            transport.set_read_buffer_limits(len(view))  # type: ignore[attr-defined]

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None  # uvloop's holds `get_buffer`: a ring, and a megabyte until a full collection
        tls, self._tls = self._tls, None
        # Nor does uvloop hand on what came before the end while its reader was busy or paused.
        with contextlib.suppress(ssl.SSLError):
            while tls is not None and (rest := tls.read(len(self._whole))):
                self._handler.data_received(rest)
        self._handler.connection_lost(exc)

    def pause_writing(self) -> None:
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        self._handler.resume_writing()

    def eof_received(self) -> bool | None:
        return self._handler.eof_received()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the place of the next bytes."""
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        self._handler.data_received(bytes(self._view[:nbytes]))
