"""Which calls only read: their work ends when the client goes. A change that has begun is finished, for its effects."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, Final

from chelonia.core.errors import CheloniaError, Kind
from chelonia.hosting.net.http_messages import WhenClosed

READING: Final[Mapping[str, frozenset[str]]] = {
    "bartender": frozenset({"list", "list_deleted", "stat"}),
    "librarian": frozenset({"entries", "get", "traverse", "trash"}),
}
"""Methods by service. Reads that are short by themselves are left alone."""


def is_reading(service: str, method: str) -> bool:
    """Whether a method only reads, for long enough to be ended."""
    return method in READING.get(service, ())


async def while_connected(work: Coroutine[Any, Any, Any], when_closed: WhenClosed) -> Any:
    """The result of `work`, which ends when the connection does. Raises: CANCELLED then, and what `work` raises."""
    task = asyncio.ensure_future(work)

    def gone() -> None:
        task.cancel()

    when_closed(while_connected, gone)
    try:
        return await task
    except asyncio.CancelledError:
        if not task.cancelled():
            task.cancel()
            raise
        raise CheloniaError(Kind.CANCELLED, cause="the client has gone") from None
    finally:
        when_closed(while_connected, _nothing)


def _nothing() -> None:
    """Nobody waits any more."""
