"""Coroutines that begin at once: what never has to wait costs no task and no turn of the event loop.

As the eager tasks of Python 3.12. Until it first waits the coroutine runs on behalf of the caller: it must not ask for
the present task there (`asyncio.timeout` does), nor wait for the very future that others begin to wait for (`shield`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Sequence
from typing import Any, TypeVar, cast

T = TypeVar("T")


def begin(work: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
    """Run `work` up to where it first waits; the rest is the task returned, None when nothing is left.

    Raises: what `work` raises before it waits.
    """
    try:
        waited = work.send(None)
    except StopIteration:
        return None
    return asyncio.get_running_loop().create_task(cast("Coroutine[Any, Any, None]", _Rest(work, waited)))


async def side_by_side(works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all; returns what they return, in their order. Of one alone nothing is a task. Raises: as `gather`."""
    if len(works) == 1:
        return [await works[0]]
    returned: list[Any] = [None] * len(works)

    async def run(number: int) -> None:
        returned[number] = await works[number]

    tasks = [task for number in range(len(works)) if (task := begin(run(number))) is not None]
    if tasks:
        await asyncio.gather(*tasks)
    return returned


class Turn:
    """Awaited, it lets one turn of the event loop pass: what was written to connections in this one has left."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        yield


@Coroutine.register
class _Rest:
    """A coroutine that waits for something already, for a task to go on with: also one that is cancelled before its
    first turn, which never enters what has not begun."""

    __slots__ = ("_handed_on", "_waited", "_work")

    def __init__(self, work: Coroutine[Any, Any, None], waited: Any) -> None:
        self._work = work
        self._waited = waited
        self._handed_on = False

    def send(self, value: Any) -> Any:
        """The first time: what is waited for."""
        if self._handed_on:
            return self._work.send(value)
        self._handed_on = True
        return self._waited

    def throw(self, *error: Any) -> Any:
        """Hand it to the work, which is told of a cancellation by what it waits for, as ever."""
        if not self._handed_on and isinstance(self._waited, asyncio.Future) and self._waited.cancel():
            return self.send(None)
        self._handed_on = True
        return self._work.throw(*error)

    def close(self) -> None:
        """End the work."""
        self._work.close()
