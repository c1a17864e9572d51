"""Reads one of several replicas: whichever answers first, and none that says nothing for long.

The nearest is asked; when it has not answered after `HEDGE_MS` the next is asked as well, and so on. One that stops in
the middle of its bytes is given up after the patience of the round, and what is missing comes from another. The
patience grows from round to round, so that a link that is merely slow gets its bytes in the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

from chelonia.core.errors import CheloniaError, Kind
from chelonia.hosting.http_client import HttpClient, Sending, Streaming, raise_for_status, target_of

HEDGE_MS: Final = 150
"""Several times what a healthy Shepherd takes to begin an answer; so little that nobody minds waiting for it."""
PATIENCE_MS: Final = (500, 2_000, 8_000, 60_000)
"""How long a replica may be silent, round by round; the last counts for all further rounds."""


@dataclass(slots=True)
class Choice:
    """Replicas still to be tried in this round, nearest first, and how long each may be silent."""

    turls: list[str]
    patience_ms: int


@dataclass(frozen=True, slots=True)
class _Opened:
    answer: Streaming
    holding: AsyncExitStack


@asynccontextmanager
async def opened(http: HttpClient, choice: Choice, offset: int) -> AsyncIterator[Streaming]:
    """Give the first answer of a replica of `choice`, asked for the bytes from `offset` on.

    Those that failed, and the one given, are no longer in `choice` afterwards; those that were slower are its last.
    Raises: what the last of them failed with, TIMEOUT when none has answered.
    """
    won = await _race(http, choice, offset)
    async with won.holding:
        yield won.answer


async def _race(http: HttpClient, choice: Choice, offset: int) -> _Opened:
    running: dict[asyncio.Task[_Opened], str] = {}
    won: asyncio.Task[_Opened] | None = None
    try:
        while True:
            if choice.turls:
                turl = choice.turls.pop(0)
                running[asyncio.ensure_future(_open(http, turl, offset, choice.patience_ms))] = turl
            pause_ms = HEDGE_MS if choice.turls else choice.patience_ms
            await asyncio.wait(running, timeout=pause_ms / 1000, return_when=asyncio.FIRST_COMPLETED)
            ended = [task for task in running if task.done()]
            won = next((task for task in ended if task.exception() is None), None)
            if won is not None:
                return won.result()
            for task in ended:
                del running[task]
            if not choice.turls and not (ended and running):
                raise _failure(ended, running)
    finally:
        if won is not None:
            del running[won]
            choice.turls += running.values()
        await _dropped(running)


def _failure(ended: list[asyncio.Task[_Opened]], silent: dict[asyncio.Task[_Opened], str]) -> BaseException:
    """What there is to say when nobody has answered."""
    for task in reversed(ended):
        error = task.exception()
        assert error is not None
        return error
    names = ", ".join(dict.fromkeys(target_of(turl) for turl in silent.values()))
    return CheloniaError(Kind.TIMEOUT, "get", cause=f"{names} did not answer in time")


async def _open(http: HttpClient, turl: str, offset: int, patience_ms: int) -> _Opened:
    headers = {"Range": f"bytes={offset}-"} if offset else {}
    async with AsyncExitStack() as stack:
        sending = Sending("GET", turl, headers, read_idle_ms=patience_ms)
        answer = await stack.enter_async_context(http.stream(sending))
        if answer.status >= 400 and not (answer.status == 416 and offset):
            raise_for_status(answer.status, answer.headers, await answer.read(4096), "get")
        return _Opened(answer, stack.pop_all())
    raise AssertionError("the block above returns or raises")


async def _dropped(tasks: dict[asyncio.Task[_Opened], str]) -> None:
    """End what is still asked, and let go of what has answered too late."""
    for task in tasks:
        task.cancel()
    for late in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(late, _Opened):
            await late.holding.aclose()
