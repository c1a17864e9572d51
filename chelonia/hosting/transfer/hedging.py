"""Hedged reads of one of several replicas: the first to answer is read, and none that is silent for long.

The request goes to the nearest; when it has not answered after `HEDGE_MS`, to the next as well, and so on. A replica
that stops in the middle of its bytes is given up after the patience of the round; another sends the rest. The patience
grows from round to round, so that a link that is merely slow gets its bytes in the end. The round trips of a new
connection are added to both times.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import msgspec

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.timing.racing import Race
from chelonia.hosting.net.clock import SystemClock
from chelonia.hosting.net.http_client import ROUND_TRIPS, HttpClient, Sending, Streaming, raise_for_status, target_of

HEDGE_MS: Final = 150
"""Several times what a healthy Shepherd takes to begin an answer, and short for a user."""
PATIENCE_MS: Final = (500, 2_000, 8_000, 60_000)
"""How long a replica may be silent, round by round; the last counts for all further rounds."""


class ReplicaChoice(msgspec.Struct):
    """Replicas still to be tried in this round, nearest first. `patience_ms`: how long each may be silent; `given`: the
    last one whose answer was returned."""

    turls: list[str]
    patience_ms: int
    given: str = ""


class _OpenRead(msgspec.Struct, frozen=True):
    answer: Streaming
    holding: AsyncExitStack


@asynccontextmanager
async def opened(http: HttpClient, choice: ReplicaChoice, headers: Mapping[str, str]) -> AsyncIterator[Streaming]:
    """Yield the first answer of a replica of `choice` to a GET with `headers`.

    Those that failed, and the one yielded, are removed from `choice`; slower ones move to its end.
    Raises: the error of the last to fail, TIMEOUT when none has answered.
    """
    async with Race[str, _OpenRead](SystemClock()) as race:
        try:
            choice.given, won = await _first(http, choice, headers, race)
            choice.turls += race.running.values()
        finally:
            await _dropped(race.running)
    async with won.holding:
        yield won.answer


async def _first(
    http: HttpClient, choice: ReplicaChoice, headers: Mapping[str, str], race: Race[str, _OpenRead]
) -> tuple[str, _OpenRead]:
    away_ms, patience_ms = 0.0, choice.patience_ms
    while True:
        if choice.turls:
            turl = choice.turls.pop(0)
            away_ms = ROUND_TRIPS * http.round_trips.to(turl)
            patience_ms = round(choice.patience_ms + away_ms)
            race.begin(turl, _open(http, turl, headers, patience_ms))
        ended = await race.ended(round(HEDGE_MS + away_ms) if choice.turls else patience_ms)
        if ended is not None and ended[1].exception() is None:
            return ended[0], ended[1].result()
        if not choice.turls and not (ended and race.running):
            raise _failure(ended[1].exception() if ended else None, race.running.values())


def _failure(error: BaseException | None, silent: Collection[str]) -> BaseException:
    if error is not None:
        return error
    names = ", ".join(dict.fromkeys(target_of(turl) for turl in silent))
    return CheloniaError(Kind.TIMEOUT, "get", cause=f"{names} did not answer in time")


async def _open(http: HttpClient, turl: str, headers: Mapping[str, str], patience_ms: int) -> _OpenRead:
    async with AsyncExitStack() as stack:
        sending = Sending("GET", turl, headers, read_idle_ms=patience_ms)
        answer = await stack.enter_async_context(http.stream(sending))
        if answer.status >= 400 and not (answer.status == 416 and "Range" in headers):
            raise_for_status(answer.status, answer.headers, await answer.read(4096), "get")
        return _OpenRead(answer, stack.pop_all())
    raise AssertionError("the block above returns or raises")


async def _dropped(tasks: Collection[asyncio.Future[_OpenRead]]) -> None:
    """Cancel the requests still under way, and release answers that came too late."""
    for task in tasks:
        task.cancel()
    for late in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(late, _OpenRead):
            await late.holding.aclose()
