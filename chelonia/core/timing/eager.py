"""Coroutines that begin at once: what never has to wait costs no task and no turn of the event loop.

As the eager tasks of Python 3.12. Until it first waits the coroutine runs on behalf of the caller: it must not ask for
the present task there (`asyncio.timeout` does).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def begin(work: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
    """Run `work` up to where it first waits; the rest is the task returned, None when nothing is left.

    Raises: what `work` raises before it waits.
    """
    try:
        waited = work.send(None)
    except StopIteration:
        return None
    return asyncio.get_running_loop().create_task(_finish(_Rest(work, waited)))


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


async def _finish(rest: _Rest) -> None:
    await rest


class Turn:
    """Awaited, it lets one turn of the event loop pass: what was written to connections in this one has left."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        yield


class _Rest:
    """A coroutine that waits for something already, as something to be awaited."""

    __slots__ = ("_waited", "_work")

    def __init__(self, work: Coroutine[Any, Any, None], waited: Any) -> None:
        self._work = work
        self._waited = waited

    def __await__(self) -> Generator[Any, Any, None]:
        waited = self._waited
        try:
            while True:
                try:
                    sent = yield waited
                except BaseException as error:  # noqa: BLE001 - a cancellation, for the work to see
                    waited = self._work.throw(error)
                else:
                    waited = self._work.send(sent)
        except StopIteration:
            return
