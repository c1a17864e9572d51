"""Reads of small blobs from Shepherds: the requests to one Shepherd in one turn of the event loop share one message.

Each request has its own answer; if the call fails, each has that failure as its answer. After `hedge_ms` of silence,
one timer for all, each gets a promise instead, so that its caller can try another Shepherd beside. A caller that stops
waiting cancels the promise: the call goes on for the others, and the Shepherd is noted to be silent.
The call has no request key, as each of its requests would have its own; its request id is that of the first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from chelonia.bartender.shepherds import Shepherds
from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ReferenceId, RequestKey, ServiceId
from chelonia.core.ports.shepherd import FetchOutcome
from chelonia.core.timing.clock import Clock

FetchAnswer = FetchOutcome | asyncio.Future[FetchOutcome]
"""A Shepherd's answer, or a promise of one."""


@dataclass(slots=True)
class _Group:
    """Requests that leave together. `size`: bytes that travel with them or with their answers."""

    call: Call
    questions: list[ReferenceId] = field(default_factory=list)
    answers: list[asyncio.Future[FetchAnswer]] = field(default_factory=list)
    late: dict[int, asyncio.Future[FetchOutcome]] = field(default_factory=dict)
    """The promised answers, by the index of their requests."""
    size: int = 0

    def has_room(self, size: int) -> bool:
        return len(self.questions) < bounds.BULK_ELEMENTS_MAX and self.size + size <= bounds.STORED_CALL_BYTES_MAX

    def promise(self, noted: Callable[[asyncio.Future[FetchOutcome]], None]) -> None:
        """Answer the callers that wait with a promise; `noted` is called when one stops waiting for it."""
        for number, answer in enumerate(self.answers):
            if not answer.done():
                late = self.late[number] = asyncio.get_running_loop().create_future()
                late.add_done_callback(noted)
                answer.set_result(late)

    def open(self) -> dict[int, asyncio.Future[Any]]:
        """Return the answers that callers wait for, by the index of their requests."""
        answers: dict[int, asyncio.Future[Any]] = {**dict(enumerate(self.answers)), **self.late}
        return {number: each for number, each in answers.items() if not each.done()}


class GroupedCalls:
    """Reads of small blobs from all Shepherds."""

    def __init__(self, shepherds: Shepherds, clock: Clock, hedge_ms: int) -> None:
        self._shepherds = shepherds
        self._clock = clock
        self._hedge_ms = hedge_ms
        self.leaving: dict[ServiceId, _Group] = {}
        """The requests of this turn by Shepherd: one more costs little there."""
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, call: Call, shepherd: ServiceId, question: ReferenceId, size: int) -> asyncio.Future[FetchAnswer]:
        """Send a request with the others of this turn to the same Shepherd; `call` is the Bartender's own."""
        loop, group = asyncio.get_running_loop(), self.leaving.get(shepherd)
        if group is None or not group.has_room(size):
            group = self.leaving[shepherd] = _Group(call.keyed(RequestKey("")))
            loop.call_soon(self._begin, shepherd, group)
        answer: asyncio.Future[FetchAnswer] = loop.create_future()
        group.questions.append(question)
        group.answers.append(answer)
        group.size += size
        return answer

    def _begin(self, shepherd: ServiceId, group: _Group) -> None:
        if self.leaving.get(shepherd) is group:
            del self.leaving[shepherd]
        task = asyncio.get_running_loop().create_task(self._answer(shepherd, group))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, shepherd: ServiceId, group: _Group) -> None:
        noted = self._shepherds.silence_noted(shepherd)
        timer = self._clock.call_later(self._hedge_ms, partial(group.promise, noted))
        try:
            request = self._shepherds.port(shepherd).fetch(group.call, tuple(group.questions))
            given = await self._shepherds.await_answer(shepherd, request)
            if len(given) != len(group.answers):
                cause = f"{len(given)} answers to {len(group.answers)} questions"
                raise CheloniaError(Kind.NETWORK, subject=shepherd, cause=cause)
        except CheloniaError as error:
            given = (FetchOutcome(error=str(error), kind=error.kind.value),) * len(group.answers)
        except BaseException as error:  # a mistake of ours, or the end of the process: nobody waits on
            for waiting in group.open().values():
                waiting.set_exception(error)
            raise
        finally:
            timer.cancel()
        for number, waiting in group.open().items():
            waiting.set_result(given[number])
