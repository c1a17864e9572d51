"""Small bytes that came in messages are stored on Shepherds, without a ticket.

All copies that are wanted are stored at once; what is durable often enough is answered after a short grace for the
rest, which repair makes then. A Shepherd that refuses or keeps silent has the next one asked in its place.
What is to be stored in one turn of the event loop goes to the same Shepherds, in one call to each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from chelonia.bartender.settings import BartenderSettings
from chelonia.bartender.shepherds import Shepherds, taken
from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.cluster.placement import Demand
from chelonia.core.cluster.replicas import Receipt
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ReferenceId, RequestKey, ServiceId
from chelonia.core.ports.shepherd import SmallBlob, StoreOutcome
from chelonia.core.timing.clock import Clock
from chelonia.core.timing.racing import Race, many
from chelonia.core.values import replace


@dataclass(slots=True)
class _Together:
    """Blobs that are stored together, each with who waits for its receipts. `size`: bytes of all."""

    call: Call
    wanted: int
    durable: int
    blobs: list[SmallBlob] = field(default_factory=list)
    waiting: list[asyncio.Future[tuple[Receipt, ...]]] = field(default_factory=list)
    given: list[dict[ServiceId, Receipt]] = field(default_factory=list)
    refused: list[list[StoreOutcome]] = field(default_factory=list)
    size: int = 0

    def add(self, blob: SmallBlob) -> asyncio.Future[tuple[Receipt, ...]]:
        """One more."""
        self.blobs.append(blob)
        self.waiting.append(asyncio.get_running_loop().create_future())
        self.given.append({})
        self.refused.append([])
        self.size += len(blob.data)
        return self.waiting[-1]

    def has_room(self, size: int) -> bool:
        """Whether one more fits into the calls."""
        return len(self.blobs) < bounds.BULK_ELEMENTS_MAX and self.size + size <= bounds.STORED_CALL_BYTES_MAX

    def lacking(self, count: int) -> list[int]:
        """Which have fewer receipts than that."""
        return [n for n, given in enumerate(self.given) if len(given) < count]

    def heard(self, shepherd: ServiceId, which: Sequence[int], outcomes: Sequence[StoreOutcome]) -> list[int]:
        """Take in what a Shepherd has answered; which it did not store."""
        for n, outcome in zip(which, outcomes, strict=True):
            if outcome.receipt is None:
                self.refused[n].append(outcome)
            else:
                self.given[n][shepherd] = outcome.receipt
        return [n for n, outcome in zip(which, outcomes, strict=True) if outcome.receipt is None]

    def tell(self) -> None:
        """Let those know who wait: some may have gone away."""
        for waiting, given, refused in zip(self.waiting, self.given, self.refused, strict=True):
            if waiting.done():
                continue
            if len(given) < self.durable:
                waiting.set_exception(_too_few(refused))
            else:
                waiting.set_result(tuple(given.values()))

    def fail(self, error: BaseException) -> None:
        """Nobody waits on."""
        for waiting in self.waiting:
            if waiting.done():
                continue
            if isinstance(error, CheloniaError):  # a traceback must not grow over a shared error
                error = CheloniaError(error.kind, error.op, error.subject, error.cause)
            waiting.set_exception(error)


class Storing:
    """Stores small blobs."""

    def __init__(self, shepherds: Shepherds, clock: Clock, settings: BartenderSettings) -> None:
        self._shepherds = shepherds
        self._clock = clock
        self._settings = settings
        self._leaving: dict[int, _Together] = {}
        """By how many copies are wanted."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._named: dict[ServiceId, list[ReferenceId]] = {}

    def store(self, call: Call, blob: SmallBlob) -> asyncio.Future[tuple[Receipt, ...]]:
        """Store a blob on as many Shepherds as copies are wanted; `call` is the Bartender's own.

        Returns: receipts of enough Shepherds for it to be durable. Raises, when awaited: NO_SHEPHERD.
        """
        wanted = blob.facts.wanted
        together = self._leaving.get(wanted)
        if together is None or not together.has_room(len(blob.data)):
            durable = min(self._settings.durable_copies, wanted)
            together = self._leaving[wanted] = _Together(call.keyed(RequestKey("")), wanted, durable)
            asyncio.get_running_loop().call_soon(self._begin, together)
        return together.add(blob)

    def named(self, receipts: Iterable[Receipt]) -> None:
        """A transact has named these copies: their Shepherds hear of it with what they are given next."""
        for receipt in receipts:
            told = self._named.setdefault(receipt.location.shepherd, [])
            if len(told) < bounds.BULK_ELEMENTS_MAX:  # else it learns by its report
                told.append(receipt.location.reference)

    def _begin(self, together: _Together) -> None:
        if self._leaving.get(together.wanted) is together:
            del self._leaving[together.wanted]
        task = asyncio.get_running_loop().create_task(self._answer(together))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, together: _Together) -> None:
        try:
            await self._store(together)
        except CheloniaError as error:
            together.fail(error)
        except BaseException as error:  # a mistake of ours, or the end of the process
            together.fail(error)
            raise
        else:
            together.tell()

    async def _store(self, together: _Together) -> None:
        wanted, durable, settings, shepherds = together.wanted, together.durable, self._settings, self._shepherds
        demand = Demand(count=max(durable + settings.spares, wanted), size=together.size)
        waiting = list(await shepherds.candidates(together.call, demand, durable))
        more = max(durable, min(wanted, sum(not shepherds.is_silent(node.shepherd) for node in waiting)))
        which = list(range(len(together.blobs)))
        begun_ms, give_up_ms = self._clock.monotonic_ms(), -1
        async with Race[tuple[ServiceId, list[int]], tuple[StoreOutcome, ...]](self._clock) as race:
            while together.lacking(wanted) and (race.running or (waiting and together.lacking(durable))):
                for node in taken(waiting, more):
                    race.begin((node.shepherd, which), self._ask(together, node.shepherd, which))
                now_ms = self._clock.monotonic_ms()
                ended = await race.ended(settings.hedge_ms if give_up_ms < 0 else max(0, give_up_ms - now_ms))
                if ended is None and give_up_ms >= 0:
                    break
                which = together.heard(*ended[0], ended[1].result()) if ended else together.lacking(wanted)
                if give_up_ms < 0 and not together.lacking(durable):
                    now_ms = self._clock.monotonic_ms()
                    give_up_ms = now_ms + 2 * max(settings.fallback_grace_ms, now_ms - begun_ms)  # the rest is as busy
                more = 0 if give_up_ms >= 0 else many(silent=ended is None, of_use=not which)

    async def _ask(self, together: _Together, shepherd: ServiceId, which: list[int]) -> tuple[StoreOutcome, ...]:
        """What one Shepherd answers; where the call fails, each blob has that failure as its answer."""
        blobs, port = [together.blobs[n] for n in which], self._shepherds.port(shepherd)
        blobs[0] = replace(blobs[0], named=tuple(self._named.pop(shepherd, ())))
        try:
            given = await self._shepherds.heard(shepherd, port.store(together.call, tuple(blobs)))
            if len(given) != len(blobs):
                cause = f"{len(given)} answers to {len(blobs)} questions"
                raise CheloniaError(Kind.NETWORK, subject=shepherd, cause=cause)
        except CheloniaError as error:
            return (StoreOutcome(error=str(error), kind=error.kind.value),) * len(blobs)
        return given


def _too_few(refused: Sequence[StoreOutcome]) -> CheloniaError:
    full = sum(outcome.kind == Kind.NO_SPACE.value for outcome in refused)
    why = f"no space: {full} Shepherds have not enough for it" if full else "too few Shepherds answered"
    return CheloniaError(Kind.NO_SHEPHERD, cause=f"{why}; try again in a moment")
