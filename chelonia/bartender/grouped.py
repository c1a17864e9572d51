"""Small blobs are read from Shepherds: what is asked of one in one turn of the event loop goes in one message.

Each question has an answer of its own; where the call fails, each has that failure as its answer. Whoever waits no
longer cancels his answer: the call goes on for the others, and the Shepherd is noted to be silent if it had its time.
The call has no request key, as each of its questions would have its own; its request id is that of the first.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from chelonia.bartender.shepherds import Shepherds
from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ReferenceId, RequestKey, ServiceId
from chelonia.core.ports.shepherd import FetchOutcome


@dataclass(slots=True)
class _Group:
    """Questions that leave together. `size`: bytes that travel with them or with their answers."""

    call: Call
    questions: list[ReferenceId] = field(default_factory=list)
    answers: list[asyncio.Future[FetchOutcome]] = field(default_factory=list)
    size: int = 0

    def has_room(self, size: int) -> bool:
        """Whether one more fits into the call."""
        return len(self.questions) < bounds.BULK_ELEMENTS_MAX and self.size + size <= bounds.STORED_CALL_BYTES_MAX


class GroupedCalls:
    """Reads small blobs from all Shepherds."""

    def __init__(self, shepherds: Shepherds) -> None:
        self._shepherds = shepherds
        self._leaving: dict[ServiceId, _Group] = {}
        self._asked: set[asyncio.Task[None]] = set()

    def ask(self, call: Call, shepherd: ServiceId, question: ReferenceId, size: int) -> asyncio.Future[FetchOutcome]:
        """Ask with what else is asked of this Shepherd in this turn; `call` is the Bartender's own."""
        loop, group = asyncio.get_running_loop(), self._leaving.get(shepherd)
        if group is None or not group.has_room(size):
            group = self._leaving[shepherd] = _Group(call.keyed(RequestKey("")))
            loop.call_soon(self._begin, shepherd, group)
        answer: asyncio.Future[FetchOutcome] = loop.create_future()
        group.questions.append(question)
        group.answers.append(answer)
        group.size += size
        return answer

    def _begin(self, shepherd: ServiceId, group: _Group) -> None:
        if self._leaving.get(shepherd) is group:
            del self._leaving[shepherd]
        task = asyncio.get_running_loop().create_task(self._answer(shepherd, group))
        self._asked.add(task)
        task.add_done_callback(self._asked.discard)

    async def _answer(self, shepherd: ServiceId, group: _Group) -> None:
        noted = self._shepherds.silence_noted(shepherd)
        for answer in group.answers:
            answer.add_done_callback(noted)
        try:
            asking = self._shepherds.port(shepherd).fetch(group.call, tuple(group.questions))
            given = await self._shepherds.heard(shepherd, asking)
            if len(given) != len(group.answers):
                cause = f"{len(given)} answers to {len(group.answers)} questions"
                raise CheloniaError(Kind.NETWORK, subject=shepherd, cause=cause)
        except CheloniaError as error:
            given = (FetchOutcome(error=str(error), kind=error.kind.value),) * len(group.answers)
        except BaseException as error:  # a mistake of ours, or the end of the process: nobody waits on
            for answer in group.answers:
                if not answer.done():
                    answer.set_exception(error)
            raise
        for answer, one in zip(group.answers, given, strict=True):
            if not answer.done():
                answer.set_result(one)
