"""Batches of small uploads, looks and other changes: elements that come together share a call (`Gathering`).

Each element has an answer of its own. A call with some answers of a passing trouble is made again under its key, so
that no change applies twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, TypeVar

from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import RequestKey
from chelonia.core.timing.clock import Clock
from chelonia.core.timing.gathering import BatchLimits, Gathering, Pending, still_wanted
from chelonia.core.timing.pacing import Backoff
from chelonia.hosting.net.rpc_client import AGAIN

CALLS_AT_ONCE: Final = 3
"""Calls under way at most, so that one is always at work."""
WAIT_MS: Final = 50
"""How long an element waits for a call under way: several times what one takes on a machine at rest."""
CALL_FILES_MAX: Final = 16
"""Elements of one call: as many as a Bartender works on at once. A call that takes long is sent to another Bartender
too, and then all its bytes are stored twice."""
CALL_BYTES_MAX: Final = bounds.INLINE_CALL_BYTES_MAX // 2
"""Bytes of the files in one call: with their names and metadata it stays below the limit of a user's message."""
AGAIN_MS: Final = 10_000
PAUSE_MS, PAUSE_MS_MAX = 100, 2_000
PASSING: Final = frozenset({*AGAIN, *(kind.value for kind in AGAIN)})
"""Failures that pass, as `Files` answers them, and as the Bartender's operations do."""

Q = TypeVar("Q")
A = TypeVar("A")
_Asked = tuple[Call, Q, int]
_Batch = list[Pending[_Asked[Q], A]]


class CallBatches(Generic[Q, A]):
    """The calls of one client to one operation of many elements: the changes of `apply`, looks, `stat`, deletions."""

    def __init__(
        self,
        ask: Callable[[Call, tuple[Q, ...]], Awaitable[tuple[A, ...]]],
        clock: Clock,
        *,
        again_ms: int = AGAIN_MS,
        most: int = CALL_FILES_MAX,
        bytes_max: int = CALL_BYTES_MAX,
        passing: frozenset[Kind | str] = PASSING,
    ) -> None:
        """`again_ms`: how long elements with a `passing` failure are tried again; 0: their callers try. `most`,
        `bytes_max`: elements of one call, and bytes of files with them, or with its answer."""
        self._ask = ask
        self._clock = clock
        self._again_ms = again_ms
        self._passing = passing
        self._calls = 0
        limits: BatchLimits[_Asked[Q]] = BatchLimits(most, CALLS_AT_ONCE, WAIT_MS, _bytes, bytes_max)
        self._gathering: Gathering[_Asked[Q], A] = Gathering(self._settle, clock, limits)

    async def send(self, call: Call, element: Q, answer_bytes: int = 0) -> A:
        """Send an element in a batch with others that wait. `call`: the context of the batch, if it is the first;
        `answer_bytes`: bytes of the file in its answer. Raises: as the operation."""
        return await self._gathering.ask((call, element, answer_bytes))

    async def _settle(self, batch: _Batch[Q, A]) -> None:
        """Call until each element has its answer; a call that fails later fails only those without one."""
        # A refused element is sent again with the others, so its answer waits for the last call: else its caller could
        # already have made an entry that the next try removes.
        call = batch[0].asked[0]
        self._calls += 1
        call, elements = call.keyed(RequestKey(f"{call.request_key}/{self._calls}")), tuple(e.asked[1] for e in batch)
        give_up_ms, backoff = self._clock.monotonic_ms() + self._again_ms, Backoff(PAUSE_MS, PAUSE_MS_MAX)
        while True:
            try:
                answers = await self._ask(call, elements)
            except CheloniaError as error:
                for each in still_wanted(batch):
                    each.answer.set_exception(error)
                return
            pause_ms = backoff.failed()
            kinds = [getattr(answer, "kind", None) for answer in answers]
            passing = [each for each, kind in zip(batch, kinds, strict=True) if kind in self._passing]
            over = self._clock.monotonic_ms() + pause_ms > give_up_ms or not still_wanted(passing)
            for each, answer, refused in zip(batch, answers, kinds, strict=True):
                if not each.answer.done() and (over or not refused):
                    each.answer.set_result(answer)
            if not still_wanted(batch):
                return
            await self._clock.sleep(pause_ms)


def inline_bytes(element: Any) -> int:
    """Return how many bytes a `Write` or a `Splice` carries inline, 0 for other elements."""
    inline = getattr(element, "inline", None) or getattr(getattr(element, "content", None), "inline", None)
    return len(inline.data) if inline is not None else 0  # no `isinstance`: a lone `stat` loads no port's types


def _bytes(asked: _Asked[Any]) -> int:
    return asked[2] + inline_bytes(asked[1])
