"""Coroutines that begin at once: one that never waits costs no task and no turn of the event loop.

They are like the eager tasks of Python 3.12. Until its first wait the coroutine runs within the caller's task. There it
must not use the current task (`asyncio.timeout` does), nor wait for a future that others begin to wait for (`shield`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Sequence
from typing import Any, cast


def begin(work: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
    """Run `work` up to its first wait. Returns: a task for the rest, None when nothing is left.

    Raises: what `work` raises before it waits.
    """
    try:
        waited = work.send(None)
    except StopIteration:
        return None
    return asyncio.get_running_loop().create_task(cast("Coroutine[Any, Any, None]", _Rest(work, waited)))


async def side_by_side(works: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run all to their ends. A single one runs without a task. Raises: as `gather`."""
    if len(works) == 1:
        return await works[0]
    tasks = [task for work in works if (task := begin(work)) is not None]
    if tasks:
        await asyncio.gather(*tasks)


class Turn:
    """Awaitable that lets one turn of the event loop pass, so that bytes written to connections in this one leave."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        yield


@Coroutine.register
class _Rest:
    """A coroutine that already waits, for a task to go on with. It also serves a task that is cancelled before its
    first turn, which would never enter a coroutine that has not begun."""

    __slots__ = ("_handed_on", "_waited", "_work")

    def __init__(self, work: Coroutine[Any, Any, None], waited: Any) -> None:
        self._work = work
        self._waited = waited
        self._handed_on = False

    def send(self, value: Any) -> Any:
        """Return, the first time, the future that the work waits for."""
        if self._handed_on:
            return self._work.send(value)
        self._handed_on = True
        return self._waited

    def throw(self, *error: Any) -> Any:
        """Pass the error to the work. At first a cancellation reaches it through the future it waits for, as usual."""
        if not self._handed_on and isinstance(self._waited, asyncio.Future) and self._waited.cancel():
            return self.send(None)
        self._handed_on = True
        return self._work.throw(*error)

    def close(self) -> None:
        self._work.close()
