"""Work that comes while other work like it is being done is done together with what else comes meanwhile.

Work of many costs little more than work of one: a walk, a transact, a message. The first goes at once. What comes
meanwhile goes in the next batch; another is begun beside it when it would be full, and when something has waited for
`wait_ms`, so that slow work holds nothing up for long. Nobody waits for company.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from msgspec import Struct

from chelonia.core.timing.clock import Clock, Timer

Q = TypeVar("Q")
A = TypeVar("A")


class Pending(Struct, Generic[Q, A], frozen=True):
    """What is to be done, and the answer that somebody waits for."""

    asked: Q
    answer: asyncio.Future[A]


class BatchLimits(Struct, Generic[Q], frozen=True):
    """How much goes together: `most` of them, with a `weight` of together no more than `weight_max` (one alone: any);
    `at_once`: batches beside each other; `wait_ms`: how long what could go waits for those at work."""

    most: int
    at_once: int
    wait_ms: int
    weight: Callable[[Q], int] = lambda _: 0
    weight_max: int = 0


class Gathering(Generic[Q, A]):
    """What is asked of one operation by whoever comes."""

    def __init__(
        self, work: Callable[[list[Pending[Q, A]]], Coroutine[Any, Any, None]], clock: Clock, limits: BatchLimits[Q]
    ) -> None:
        """`work` gives each of a batch its answer, or its failure; with what it raises itself the whole batch fails."""
        self._work = work
        self._clock = clock
        self._limits = limits
        self._waiting: list[Pending[Q, A]] = []
        self._at_work = 0
        self._overdue: Timer | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def ask(self, asked: Q) -> A:
        """Have it done, with what else comes in this turn of the event loop or waits. Raises: what it failed with."""
        return await self.submit(asked)

    def submit(self, asked: Q) -> asyncio.Future[A]:
        """As `ask`, for who asks for many at once: the answer to come. Cancelled, it is not done if it waits still."""
        answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting.append(Pending(asked, answer))
        if not self._at_work or len(self._waiting) >= self._limits.most:
            self._begin()
        elif self._overdue is None:
            self._overdue = self._clock.call_later(self._limits.wait_ms, self._late)
        return answer

    def _late(self) -> None:
        self._overdue = None
        self._begin()

    def _begin(self) -> None:
        """Begin a batch beside those at work, unless they are as many as may be."""
        if self._at_work < self._limits.at_once:
            self._at_work += 1
            task = asyncio.create_task(self._until_none_waits())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _until_none_waits(self) -> None:
        batch: list[Pending[Q, A]] = []
        try:
            while batch := self._next():
                await self._done(batch)
        except BaseException:  # the end of the process
            for each in (*batch, *self._waiting):
                each.answer.cancel()
            raise
        finally:
            self._at_work -= 1  # in the step that saw that nothing waits: who comes after it begins another

    async def _done(self, batch: list[Pending[Q, A]]) -> None:
        try:
            await self._work(batch)
        except Exception as error:  # noqa: BLE001 - a mistake of ours: whoever asked meets it, and others are served
            for each in still_wanted(batch):
                each.answer.set_exception(error)

    def _next(self) -> list[Pending[Q, A]]:
        """As many of those that wait as go together, in their order; what nobody waits for any more is not done."""
        limits, count, weight = self._limits, 0, 0
        self._waiting = still_wanted(self._waiting)
        for each in self._waiting[: limits.most]:
            weight += limits.weight(each.asked)
            if count and weight > limits.weight_max:
                break
            count += 1
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        if self._overdue is not None and not self._waiting:
            self._overdue.cancel()
            self._overdue = None
        return batch


def still_wanted(batch: list[Pending[Q, A]]) -> list[Pending[Q, A]]:
    """Those that somebody still waits for."""
    return [each for each in batch if not each.answer.done()]
