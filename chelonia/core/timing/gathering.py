"""Batching: requests that arrive while others like them are at work are served together.

A batch costs little more than one request: a walk, a transact, a message. The first request goes at once. Later ones
form the next batch. Another batch begins beside it when that one would be full, or a request has waited for `wait_ms`:
slow work delays nothing for long. No request waits for company.
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
    """A request, and the answer that its caller waits for."""

    asked: Q
    answer: asyncio.Future[A]


class BatchLimits(Struct, Generic[Q], frozen=True):
    """Limits of a batch: `most` requests, of a total `weight` up to `weight_max` (a single one may exceed it).
    `at_once`: batches beside each other; `wait_ms`: longest wait for those at work before another one begins."""

    most: int
    at_once: int
    wait_ms: int
    weight: Callable[[Q], int] = lambda _: 0
    weight_max: int = 0

    def __post_init__(self) -> None:
        assert self.most > 0, "a batch has room for a request"
        assert self.at_once > 0, "some batch is at work"


class Gathering(Generic[Q, A]):
    """The requests for one operation, from all callers."""

    def __init__(
        self, work: Callable[[list[Pending[Q, A]]], Coroutine[Any, Any, None]], clock: Clock, limits: BatchLimits[Q]
    ) -> None:
        """Args: `work`: gives each of a batch its answer or its error; if it raises, all of them fail with that."""
        self._work = work
        self._clock = clock
        self._limits = limits
        self._waiting: list[Pending[Q, A]] = []
        self._at_work = 0
        self._overdue: Timer | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, asked: Q) -> asyncio.Future[A]:
        """Have `asked` done in a batch; returns the future answer. If cancelled while it waits, it is not done."""
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
            self._at_work -= 1  # in the step that saw none waiting: a later request begins another batch
            assert self._at_work >= 0, "what ends has begun"

    async def _done(self, batch: list[Pending[Q, A]]) -> None:
        try:
            await self._work(batch)
        except Exception as error:  # noqa: BLE001 - a mistake of ours: its callers get it, and others are served
            for each in still_wanted(batch):
                each.answer.set_exception(error)

    def _next(self) -> list[Pending[Q, A]]:
        """Take the next batch from those that wait, in order, without those that nobody waits for any more."""
        limits, count, weight = self._limits, 0, 0
        self._waiting = still_wanted(self._waiting)
        for each in self._waiting[: limits.most]:
            weight += limits.weight(each.asked)
            if count and weight > limits.weight_max:
                break
            count += 1
        assert count or not self._waiting, "a request too heavy for any batch goes alone"
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        if self._overdue is not None and not self._waiting:
            self._overdue.cancel()
            self._overdue = None
        return batch


def still_wanted(batch: list[Pending[Q, A]]) -> list[Pending[Q, A]]:
    """Return the requests that somebody still waits for."""
    return [each for each in batch if not each.answer.done()]
