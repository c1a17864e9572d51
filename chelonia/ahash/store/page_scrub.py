"""The scrub of a replica's pages and logs: it reads all of them once a period, at a bounded rate, beside the engine.

It finds damage before a backup, a reader or a recovery does; recovery takes a damaged log for a short one.
It changes nothing and ends nothing: the engine may have the page whole in its cache, and writes it again if it changes.
A flaw counts only if it outlasts the write of a page, which a read may meet halfway. Reasons: `docs/design/003`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from chelonia.core.ids import Ms
from chelonia.core.ports.ahash import PagesSeen
from chelonia.core.timing.clock import Clock

_LOG = logging.getLogger(__name__)

STEP_PAGES: Final = 8
"""Pages read and checked together: some 3 ms of a thread."""
AGAIN_MS: Final = 250
AGAIN_MAX: Final = 8
"""Repeated looks at pages with flaws, two seconds in all: writing a page takes less."""
SPREAD: Final = 24
"""Divisor of the interval within which the first round begins: replicas that start together scrub apart."""
LOGGED_MAX: Final = 10
"""Damaged pages that a round names in the log."""


@dataclass(frozen=True, slots=True)
class PageCheck:
    """The result for some pages: number of pages in the file, and flaws by page number."""

    pages: int
    flaws: dict[int, str]


@dataclass(frozen=True, slots=True)
class LogLook:
    """The result for a part of a log file: offset of the next part (None: at its end), and the flaw or empty."""

    then: int | None
    flaw: str


class Pages(Protocol):
    """A file of pages of `page_bytes`. Its calls may take as long as a disk."""

    @property
    def page_bytes(self) -> int: ...

    def look(self, first: int, count: int) -> PageCheck:
        """Check some pages. Raises: OSError when they cannot be read now."""


class Logs(Protocol):
    """Log files, read some `step_bytes` at a time. Its calls may take as long as a disk."""

    @property
    def step_bytes(self) -> int: ...

    def names(self) -> tuple[str, ...]:
        """Return the names of the log files. Raises: OSError."""

    def look(self, name: str, at: int) -> LogLook:
        """Check some records. Raises: OSError when they cannot be read now."""


@dataclass(frozen=True, slots=True)
class ScrubPace:
    """How often to read all pages, and the highest rate (bytes/s); 0: never."""

    interval_ms: int
    bytes_per_s_max: int


class PageScrub:
    """Reads all pages, and then all logs, again and again.

    Args: `off_loop` runs a look off the event loop.
    """

    def __init__(
        self, pages: Pages, logs: Logs, clock: Clock, pace: ScrubPace, off_loop: Callable[..., Awaitable[Any]]
    ) -> None:
        self._pages = pages
        self._logs = logs
        self._clock = clock
        self._pace = pace
        self._off_loop = off_loop
        self._total, self._checked, self._ended_ms = 0, 0, Ms(0)
        self._damaged: dict[int, str] = {}
        self._damaged_logs = 0

    @property
    def on(self) -> bool:
        """Whether it reads anything at all."""
        return self._pace.interval_ms > 0 and self._pace.bytes_per_s_max > 0

    def seen(self) -> PagesSeen | None:
        """Return the progress of the present or last round; None when the scrub is off."""
        damaged = len(self._damaged) + self._damaged_logs
        return PagesSeen(self._total, self._checked, self._ended_ms, damaged) if self.on else None

    async def run(self, cure: str, begin: float) -> None:
        """Scrub for ever. Args: `cure`: advice for the log; `begin`: delay of the first round, 0 to 1 of the spread."""
        interval_ms = self._pace.interval_ms
        await self._clock.sleep(int(interval_ms / SPREAD * begin))
        while True:
            began_ms = self._clock.monotonic_ms()
            try:
                await self._round(cure)
            except OSError as error:  # a synchronisation has just replaced the file, or its rights were taken away
                _LOG.warning("the pages of the A-Hash cannot be read, another round begins later: %s", error)
            await self._clock.sleep(max(0, interval_ms - (self._clock.monotonic_ms() - began_ms)))

    async def _round(self, cure: str) -> None:
        await self._read_pages(cure)
        self._damaged_logs = await self._read_logs(cure)
        self._ended_ms = self._clock.now_ms()
        damaged = (len(self._damaged), self._damaged_logs)
        _LOG.info("the A-Hash's store was read: %d pages, %d damaged; of its logs %d damaged", self._total, *damaged)

    async def _read_pages(self, cure: str) -> None:
        first, count = 0, 0
        while True:
            look: PageCheck = await self._off_loop(self._pages.look, first, STEP_PAGES)
            flaws = await self._lasting(first, look.flaws)
            for number in range(first, first + STEP_PAGES):
                self._damaged.pop(number, None)
            self._damaged |= flaws
            for number, wrong in flaws.items():
                count += 1
                if count <= LOGGED_MAX:
                    _LOG.error("page %d of the A-Hash's store is damaged: %s. %s", number, wrong, cure)
            first += STEP_PAGES
            self._total, self._checked = look.pages, min(first, look.pages)
            if first >= look.pages:
                break
            await self._clock.sleep(self._pause_ms(STEP_PAGES * self._pages.page_bytes))
        self._damaged = {number: wrong for number, wrong in self._damaged.items() if number < self._total}

    async def _lasting(self, first: int, flaws: dict[int, str]) -> dict[int, str]:
        for _ in range(AGAIN_MAX if flaws else 0):
            await self._clock.sleep(AGAIN_MS)
            again = (await self._off_loop(self._pages.look, first, STEP_PAGES)).flaws
            flaws = {number: again[number] for number in flaws if number in again}
            if not flaws:
                break
        return flaws

    async def _read_logs(self, cure: str) -> int:
        """Read all logs; return how many are damaged."""
        damaged = 0
        for name in await self._off_loop(self._logs.names):
            if wrong := await self._read_log(name):
                damaged += 1
                _LOG.error("%s of the A-Hash's store is damaged: %s. %s", name, wrong, cure)
        return damaged

    async def _read_log(self, name: str) -> str:
        """The first flaw of a log file; records after it have no meaning."""
        at: int | None = 0
        while at is not None:
            look: LogLook = await self._off_loop(self._logs.look, name, at)
            if look.flaw:
                return await self._lasting_in_log(name, at, look.flaw)
            at = look.then
            await self._clock.sleep(self._pause_ms(self._logs.step_bytes))
        return ""

    def _pause_ms(self, size: int) -> int:
        return size * 1000 // self._pace.bytes_per_s_max

    async def _lasting_in_log(self, name: str, at: int, flaw: str) -> str:
        for _ in range(AGAIN_MAX):
            await self._clock.sleep(AGAIN_MS)
            flaw = (await self._off_loop(self._logs.look, name, at)).flaw
            if not flaw:
                break
        return flaw
