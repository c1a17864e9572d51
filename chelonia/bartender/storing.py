"""Storage of small bytes from messages on Shepherds, without tickets.

All wanted copies are stored at once. A blob with enough durable copies is answered after a short grace for the rest,
which repair makes otherwise. If a Shepherd refuses or is silent, the next one replaces it. If too few of the chosen
ones have stored the blob, others are chosen.
The blobs of one turn of the event loop go to the same Shepherds, in one call to each, if these have room for all.
Each blob is answered once it is durable itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from chelonia.bartender.settings import BartenderSettings
from chelonia.bartender.shepherds import Shepherds, taken, too_few
from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.cluster.placement import Demand
from chelonia.core.cluster.replicas import Receipt
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ReferenceId, RequestKey, ServiceId
from chelonia.core.ports.librarian import NodeView
from chelonia.core.ports.shepherd import SmallBlob, StoreOutcome
from chelonia.core.timing.clock import Clock
from chelonia.core.timing.racing import Race
from chelonia.core.values import replace


@dataclass(slots=True, eq=False)
class _BlobOnItsWay:
    """A blob in storage, and the future of its receipts. `until_ms`: time of its answer, -1 until it is durable."""

    blob: SmallBlob
    waiting: asyncio.Future[tuple[Receipt, ...]]
    given: dict[ServiceId, Receipt] = field(default_factory=dict)
    refused: list[StoreOutcome] = field(default_factory=list)
    until_ms: int = -1

    def answer(self) -> None:
        if not self.waiting.done():
            if self.until_ms < 0:
                self.waiting.set_exception(too_few([outcome.kind for outcome in self.refused]))
            else:
                self.waiting.set_result(tuple(self.given.values()))


@dataclass(slots=True)
class _Together:
    """Blobs that are stored together. `size`: bytes of all."""

    call: Call
    wanted: int
    durable: int
    blobs: list[_BlobOnItsWay] = field(default_factory=list)
    size: int = 0

    def add(self, stored: _BlobOnItsWay) -> None:
        self.blobs.append(stored)
        self.size += len(stored.blob.data)

    def has_room(self, size: int) -> bool:
        return len(self.blobs) < bounds.BULK_ELEMENTS_MAX and self.size + size <= bounds.STORED_CALL_BYTES_MAX

    def halves(self) -> list[_Together]:
        both, middle = [_Together(self.call, self.wanted, self.durable) for _ in range(2)], len(self.blobs) // 2
        for number, stored in enumerate(self.blobs):
            both[number >= middle].add(stored)
        return both

    def lacking(self, count: int) -> list[_BlobOnItsWay]:
        """Return blobs with fewer than `count` receipts that a caller still waits for."""
        return [each for each in self.blobs if len(each.given) < count and not each.waiting.done()]

    def due_ms(self, later_ms: int) -> int:
        """Return when the next durable one is to be answered, `later_ms` at the latest."""
        return min([later_ms, *(each.until_ms for each in self.lacking(self.wanted) if each.until_ms >= 0)])

    def answer_due(self, now_ms: int, grace_ms: int) -> None:
        """Answer those that have all copies, or have been durable for `grace_ms`."""
        for each in self.blobs:
            if each.until_ms < 0 and len(each.given) >= self.durable:
                each.until_ms = now_ms + grace_ms
            if len(each.given) >= self.wanted or 0 <= each.until_ms <= now_ms:
                each.answer()

    def fail(self, error: BaseException) -> None:
        for each in self.blobs:
            if each.waiting.done():
                continue
            if isinstance(error, CheloniaError):  # a traceback must not grow over a shared error
                error = CheloniaError(error.kind, error.op, error.subject, error.cause)
            each.waiting.set_exception(error)


def _note_answers(
    shepherd: ServiceId, blobs: Sequence[_BlobOnItsWay], outcomes: Sequence[StoreOutcome]
) -> list[_BlobOnItsWay]:
    """Note a Shepherd's answers, and return the blobs that it did not store."""
    for each, outcome in zip(blobs, outcomes, strict=True):
        if outcome.receipt is None:
            each.refused.append(outcome)
        else:
            each.given[shepherd] = outcome.receipt
    return [each for each, outcome in zip(blobs, outcomes, strict=True) if outcome.receipt is None]


class Storing:
    """The storage of small blobs."""

    def __init__(self, shepherds: Shepherds, clock: Clock, settings: BartenderSettings) -> None:
        self._shepherds = shepherds
        self._clock = clock
        self._settings = settings
        self._leaving: dict[int, _Together] = {}
        """Blobs of this turn, by the number of wanted copies."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._named: dict[ServiceId, list[ReferenceId]] = {}

    def store(self, call: Call, blob: SmallBlob) -> asyncio.Future[tuple[Receipt, ...]]:
        """Store a blob on as many Shepherds as copies are wanted; `call` is the Bartender's own.

        Returns: receipts of enough Shepherds for it to be durable. Raises, when awaited: NO_SHEPHERD, NO_SPACE.
        """
        wanted = blob.facts.wanted
        together = self._leaving.get(wanted)
        if together is None or not together.has_room(len(blob.data)):
            durable = min(self._settings.durable_copies, wanted)
            together = self._leaving[wanted] = _Together(call.keyed(RequestKey("")), wanted, durable)
            asyncio.get_running_loop().call_soon(self._begin, together)
        stored = _BlobOnItsWay(blob, asyncio.get_running_loop().create_future())
        together.add(stored)
        return stored.waiting

    def named(self, receipts: Iterable[Receipt]) -> None:
        """Note that a transact has named these copies: the next call to their Shepherds says so."""
        for receipt in receipts:
            references = self._named.setdefault(receipt.location.shepherd, [])
            if len(references) < bounds.BULK_ELEMENTS_MAX:  # it learns of the others by its report
                references.append(receipt.location.reference)

    def _begin(self, together: _Together) -> None:
        if self._leaving.get(together.wanted) is together:
            del self._leaving[together.wanted]
        task = asyncio.get_running_loop().create_task(self._answer(together))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, together: _Together) -> None:
        try:
            nodes = await self._candidates(together)
            if nodes:
                await self._store(together, list(nodes))
            else:
                await asyncio.gather(*map(self._answer, together.halves()))
        except CheloniaError as error:
            together.fail(error)
        except BaseException as error:  # a mistake of ours, or the end of the process
            together.fail(error)
            raise

    async def _candidates(self, together: _Together) -> tuple[NodeView, ...]:
        """Return Shepherds with room for all blobs; none if only one of them fits. Raises: NO_SHEPHERD, NO_SPACE."""
        needed = max(together.durable + self._settings.spares, together.wanted)
        try:
            demand = Demand(count=needed, size=together.size)
            return await self._shepherds.candidates(together.call, demand, together.durable)
        except CheloniaError as error:
            if error.kind not in (Kind.NO_SHEPHERD, Kind.NO_SPACE) or len(together.blobs) == 1:
                raise
        demand = Demand(count=needed, size=min(len(each.blob.data) for each in together.blobs))
        await self._shepherds.candidates(together.call, demand, together.durable)
        return ()

    async def _store(self, together: _Together, waiting: list[NodeView]) -> None:
        wanted, durable, settings, shepherds = together.wanted, together.durable, self._settings, self._shepherds
        more = max(durable, min(wanted, sum(not shepherds.is_silent(node.shepherd) for node in waiting)))
        blobs, start_ms = together.blobs, self._clock.monotonic_ms()
        chosen, asked = len(waiting), list[ServiceId]()
        now_ms, silent_ms = start_ms, start_ms + settings.hedge_ms
        async with Race[tuple[ServiceId, list[_BlobOnItsWay]], tuple[StoreOutcome, ...]](self._clock) as race:
            while together.lacking(wanted) and (race.running or (waiting and together.lacking(durable))):
                for node in taken(waiting, more):
                    asked.append(node.shepherd)
                    race.begin((node.shepherd, blobs), self._ask(together, node.shepherd, blobs))
                ended = await race.ended(max(0, together.due_ms(silent_ms) - now_ms))
                refused = _note_answers(*ended[0], ended[1].result()) if ended else []
                now_ms = self._clock.monotonic_ms()
                together.answer_due(now_ms, 2 * max(settings.fallback_grace_ms, now_ms - start_ms))  # all are as busy
                short, silent = together.lacking(durable), ended is None and now_ms >= silent_ms
                blobs = [each for each in short if silent or each in refused]
                more = 1 if blobs else 0
                if refused and blobs and not waiting and len(asked) <= chosen:  # where all are slow, all would store it
                    demand = Demand(count=wanted, size=together.size)
                    waiting += await shepherds.others(together.call, demand, asked)
                silent_ms = now_ms + settings.hedge_ms if ended or silent else silent_ms
        for each in together.blobs:
            each.answer()

    async def _ask(
        self, together: _Together, shepherd: ServiceId, blobs: list[_BlobOnItsWay]
    ) -> tuple[StoreOutcome, ...]:
        """Return one Shepherd's answers; where the call fails, each blob has that failure as its answer."""
        small, port = [each.blob for each in blobs], self._shepherds.port(shepherd)
        small[0] = replace(small[0], named=tuple(self._named.pop(shepherd, ())))
        try:
            given = await self._shepherds.await_answer(shepherd, port.store(together.call, tuple(small)))
            if len(given) != len(small):
                cause = f"{len(given)} answers to {len(small)} questions"
                raise CheloniaError(Kind.NETWORK, subject=shepherd, cause=cause)
        except CheloniaError as error:
            return (StoreOutcome(error=str(error), kind=error.kind.value),) * len(small)
        return given
