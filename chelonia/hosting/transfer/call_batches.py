"""Small files on their way up or down, and other changes, in as few calls as they come together.

The first goes at once. What comes while its call is on its way goes in the next one, for a call of many costs little
more than one of one. Another is begun beside it when it would be full, and when something has waited for `WAIT_MS`, so
that a slow call holds nothing up. Each has an answer of its own. A call of which some answers are of a passing trouble
is made again under its key, so that what has applied is not done twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, TypeVar

from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError
from chelonia.core.ids import RequestKey
from chelonia.core.timing.clock import Clock, Timer
from chelonia.core.timing.pacing import Backoff
from chelonia.hosting.net.rpc_client import AGAIN

CALLS_AT_ONCE: Final = 3
"""Calls on their way, at most: so that there is always one at work."""
WAIT_MS: Final = 50
"""How long what could be sent waits for a call on its way: several times what one takes on a machine at rest."""
CALL_FILES_MAX: Final = 16
"""Elements of one call: as many as a Bartender has in work at once. A call that takes long is asked of the next one
beside it, and all its bytes are stored twice."""
CALL_BYTES_MAX: Final = bounds.INLINE_CALL_BYTES_MAX // 2
"""Bytes of the files in one call: with their names and metadata it stays below what a user may send."""
AGAIN_MS: Final = 10_000
PAUSE_MS, PAUSE_MS_MAX = 100, 2_000
_PASSING: Final = frozenset({*AGAIN, *(kind.value for kind in AGAIN)})
"""As `Files` answers it, and as the Bartender's operations do."""

Q = TypeVar("Q")
A = TypeVar("A")
_Batch = list[tuple[Q, "asyncio.Future[A]"]]


class CallBatches(Generic[Q, A]):
    """What one client asks of one operation of many elements: the changes of `apply`, looks, `stat`, deletions."""

    def __init__(
        self,
        ask: Callable[[Call, tuple[Q, ...]], Awaitable[tuple[A, ...]]],
        clock: Clock,
        *,
        again_ms: int = AGAIN_MS,
        most: int = CALL_FILES_MAX,
    ) -> None:
        """`again_ms`: for how long a passing trouble of an element is tried again; 0: its owner tries. `most`: elements
        of one call."""
        self._ask = ask
        self._clock = clock
        self._again_ms = again_ms
        self._most = most
        self._waiting: _Batch[Q, A] = []
        self._sending = 0
        self._overdue: Timer | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def send(self, call: Call, element: Q) -> A:
        """Send an element with what else waits; `call`: its context, if it is the first. Raises: as the operation."""
        answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting.append((element, answer))
        if not self._sending or len(self._waiting) >= self._most:
            self._begin(call)
        elif self._overdue is None:
            self._overdue = self._clock.call_later(WAIT_MS, lambda: self._late(call))
        return await answer

    def _late(self, call: Call) -> None:
        self._overdue = None
        self._begin(call)

    def _begin(self, call: Call) -> None:
        """Begin a call beside those on their way, unless they are as many as may be."""
        if self._sending < CALLS_AT_ONCE:
            self._sending += 1
            task = asyncio.create_task(self._send_waiting(call))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send_waiting(self, call: Call) -> None:
        """Call by call until nothing waits."""
        number = 0
        try:
            while batch := self._next():
                number += 1
                await self._send(call.keyed(RequestKey(f"{call.request_key}/{number}")), batch)
        finally:
            self._sending -= 1  # in the step that saw that nothing waits: who comes after it is sent by another

    async def _send(self, call: Call, batch: _Batch[Q, A]) -> None:
        try:
            await self._settle(call, batch)
        except BaseException:
            for _, answer in (*batch, *self._waiting):
                answer.cancel()
            raise

    def _next(self) -> _Batch[Q, A]:
        """As many of those that wait as one call takes, in their order; who has gone away sends nothing."""
        self._waiting = _open(self._waiting)
        count = size = 0
        for element, _ in self._waiting[: self._most]:
            size += inline_bytes(element)
            if count and size > CALL_BYTES_MAX:
                break
            count += 1
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        if self._overdue is not None and not self._waiting:
            self._overdue.cancel()
            self._overdue = None
        return batch

    async def _settle(self, call: Call, batch: _Batch[Q, A]) -> None:
        """Give each that went well its answer when it comes; ask again while some have none; a call that fails later
        fails only those. What was refused is tried anew with them, so it is answered when nothing is asked again: else
        its owner could have made what the next try removes."""
        elements = tuple(element for element, _ in batch)
        give_up_ms, backoff = self._clock.monotonic_ms() + self._again_ms, Backoff(PAUSE_MS, PAUSE_MS_MAX)
        while True:
            try:
                answers = await self._ask(call, elements)
            except CheloniaError as error:
                for _, waiting in _open(batch):
                    waiting.set_exception(error)
                return
            pause_ms = backoff.failed()
            kinds = [getattr(told, "kind", None) for told in answers]
            passing = [each for each, kind in zip(batch, kinds, strict=True) if kind in _PASSING]
            over = self._clock.monotonic_ms() + pause_ms > give_up_ms or not _open(passing)
            for (_, waiting), told, refused in zip(batch, answers, kinds, strict=True):
                if not waiting.done() and (over or not refused):
                    waiting.set_result(told)
            if not _open(batch):
                return
            await self._clock.sleep(pause_ms)


def inline_bytes(element: Any) -> int:
    """Bytes that travel with it: what a `Write` or a `Splice` brings along. (No port's types are loaded for a lone
    `stat`.)"""
    inline = getattr(element, "inline", None) or getattr(getattr(element, "content", None), "inline", None)
    return len(inline.data) if inline is not None else 0


def _open(batch: _Batch[Q, A]) -> _Batch[Q, A]:
    """Those that somebody still waits for."""
    return [each for each in batch if not each[1].done()]
