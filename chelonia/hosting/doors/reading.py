"""Ends the work of a call that only reads when its client goes; a change that has begun finishes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.operations.tables import TABLES
from chelonia.hosting.net.http_messages import WhenClosed


def is_reading(service: str, method: str) -> bool:
    """Return whether the work of a method ends with its caller's connection."""
    table = TABLES.get(service)
    row = table.by_method.get(method) if table is not None else None
    return row is not None and row.ends


async def while_connected(work: Coroutine[Any, Any, Any], when_closed: WhenClosed) -> Any:
    """Return the result of `work`, which ends with the connection. Raises: CANCELLED then, and what `work` raises."""
    task = asyncio.ensure_future(work)

    def cancel() -> None:
        task.cancel()

    when_closed(while_connected, cancel)
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
    """Do nothing: the work is over."""
