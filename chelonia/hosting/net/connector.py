"""aiohttp's connections, read as ours are. Loaded with the first request over HTTP: aiohttp takes long to load."""

from __future__ import annotations

import asyncio
import socket
from contextvars import ContextVar
from typing import Any, Final

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.helpers import set_result

from chelonia.hosting.net.buffered import SLICE_BYTES, Buffered
from chelonia.hosting.net.http_client import RoundTrips, target_of

_SOCKETS: Final[ContextVar[list[socket.socket]]] = ContextVar("sockets made for the connection under way")


def _noted_socket(info: tuple[Any, ...]) -> socket.socket:
    made = socket.socket(*info[:3])
    _SOCKETS.get().append(made)
    return made


class _Handler(ResponseHandler):
    """aiohttp's handler, whose timeout of reading ends once the answer has come whole. Else it would fire later, and
    fail the next request on the connection."""

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Read on; the bytes parsed meanwhile may have been the last."""
        super().resume_reading(resume_parser)
        if self._payload is not None and self._payload.is_eof():
            self._drop_timeout()


class Connector(aiohttp.TCPConnector):
    """aiohttp's connector, with every connection read through one `Buffered`."""

    def __init__(self, round_trips: RoundTrips, **options: Any) -> None:
        super().__init__(socket_factory=_noted_socket, **options)
        self._round_trips = round_trips
        self._buffer = bytearray(SLICE_BYTES)

    async def _wrap_create_connection(self, *args: Any, **options: Any) -> tuple[asyncio.Transport, ResponseHandler]:
        _, *rest = args
        made: list[ResponseHandler] = []
        sockets: list[socket.socket] = []

        def buffered() -> Buffered:
            made.append(_Handler(self._loop))
            return Buffered(made[-1], self._buffer)

        token = _SOCKETS.set(sockets)
        try:
            transport, _ = await super()._wrap_create_connection(buffered, *rest, **options)
        except BaseException:
            if made and not isinstance(self._loop, asyncio.BaseEventLoop):
                for each in sockets:  # uvloop closes the number; closed here too, it might be a file's by then
                    each.detach()
            raise
        finally:
            _SOCKETS.reset(token)
        self._round_trips.note(target_of(str(options["req"].url)), transport)
        return transport, made[-1]


def impatient(continue_ms: int) -> type[aiohttp.ClientRequest]:
    """Return aiohttp's request, whose body goes without `100 Continue` after this time (RFC 9110, section 10.1.1)."""

    class Impatient(aiohttp.ClientRequest):
        async def write_bytes(
            self, writer: AbstractStreamWriter, conn: Connection, content_length: int | None = None
        ) -> None:
            waits = self._continue or self.loop.create_future()
            timer = self.loop.call_later(continue_ms / 1000, set_result, waits, False)
            try:
                await super().write_bytes(writer, conn, content_length)
            finally:
                timer.cancel()

    return Impatient
