"""aiohttp's connections, read as ours are. Loaded with the first request over HTTP: aiohttp takes long to load."""

from __future__ import annotations

import asyncio
import errno
import os
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler

from chelonia.hosting.net.buffered import SLICE_BYTES, Buffered


class _Handler(ResponseHandler):
    """aiohttp's, whose clock for the next bytes stands still when the answer has come whole: it would go off later, and
    fail what is sent next over the connection."""

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Read on; what was parsed meanwhile may have been the last of it."""
        super().resume_reading(resume_parser)
        if self._payload is not None and self._payload.is_eof():
            self._drop_timeout()


class Connector(aiohttp.TCPConnector):
    """aiohttp's connector, with every connection read through one `Buffered`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._buffer = bytearray(SLICE_BYTES)

    async def _wrap_create_connection(self, *args: Any, **options: Any) -> tuple[asyncio.Transport, ResponseHandler]:
        _, *rest = args
        made: list[ResponseHandler] = []

        def buffered() -> Buffered:
            made.append(_Handler(self._loop))
            return Buffered(made[-1], self._buffer)

        try:
            transport, _ = await super()._wrap_create_connection(buffered, *rest, **options)
        except RuntimeError as error:
            # uvloop has not yet closed a connection whose handshake was given up, and its number is a new one's already
            if "used by transport" not in str(error):
                raise
            raise ConnectionAbortedError(errno.ECONNABORTED, os.strerror(errno.ECONNABORTED)) from error
        return transport, made[-1]
