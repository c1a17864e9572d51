"""Heartbeats to every Librarian, each by itself: one that does not answer delays none of the others.

One Librarian's answer counts, the same one's as long as it answers. Two may differ for a moment, and a Shepherd that
followed both would waver.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ports.librarian import Heartbeat, HeartbeatAnswer, Librarian
from chelonia.core.timing.clock import Clock, Timer, done_within
from chelonia.shepherd import waiting

log = logging.getLogger(__name__)


GIVE_UP_MS: Final = 2_000
"""Time limit of one heartbeat, where the interval is not longer; a fresh connection is tried after it."""
WARN_MS: Final = 60_000
"""How long no Librarian may answer before a WARNING: a start of one takes seconds."""


class Silence:
    """The log of failing heartbeats: each new reason, one WARNING after `WARN_MS`, and the first answer after it. Never
    a line for each heartbeat."""

    def __init__(self) -> None:
        self._since_ms: int | None = None
        self._reason = ""
        self._warned = False

    @property
    def lasting(self) -> bool:
        """Whether no heartbeat has been answered since one failed."""
        return self._since_ms is not None

    def failed(self, now_ms: int, error: CheloniaError) -> None:
        """Note that nobody has answered the last heartbeat."""
        reason, self._reason, before = str(error), str(error), self._reason
        if self._since_ms is None:
            self._since_ms = now_ms
        if reason != before:
            log.info("heartbeat failed error=%s", reason)
        if not self._warned and now_ms - self._since_ms >= WARN_MS:
            self._warned = True
            text = (
                "no Librarian has answered a heartbeat for %d s, so this Shepherd counts as offline: start one, name "
                "it in `librarians` of [shepherd], or mend what the error says error=%s"
            )
            log.warning(text, (now_ms - self._since_ms) // 1000, reason)

    def answered(self, now_ms: int) -> None:
        """Note that the last heartbeat was answered."""
        if self._since_ms is not None:
            log.info("heartbeats are answered again after %d s", (now_ms - self._since_ms) // 1000)
            self._since_ms, self._reason, self._warned = None, "", False


class HeartbeatSender:
    """The heartbeats of one Shepherd, `interval_ms` apart, to the `librarians` of the moment, by name."""

    def __init__(self, librarians: Callable[[], Mapping[str, Librarian]], clock: Clock, interval_ms: int) -> None:
        self._librarians = librarians
        self._clock = clock
        self._interval_ms = interval_ms
        self._running: dict[str, asyncio.Task[HeartbeatAnswer]] = {}
        self._current = ""

    async def send(self, call: Call, beat: Heartbeat) -> HeartbeatAnswer:
        """Send one to each Librarian that has none under way, and return the answer of the one that counts.

        Raises: the error of the last one tried; TIMEOUT when none has answered in an interval.
        """
        names = self._start_all(call, beat)
        at = names.index(self._current) if self._current in names else 0
        error = CheloniaError(Kind.TIMEOUT, "heartbeat", cause="no Librarian has answered yet")
        until_ms = self._clock.monotonic_ms() + self._interval_ms
        for name in (*names[at:], *names[:at]):
            left_ms = max(0, until_ms - self._clock.monotonic_ms())
            ended = await done_within(self._clock, self._running[name], left_ms)
            if not ended or self._running[name].cancelled():  # given up
                continue
            try:
                answer = self._running[name].result()
            except CheloniaError as failed:
                error = failed.with_traceback(None)  # else it holds this frame, which holds it
                continue
            self._current = name
            return answer
        try:
            raise error
        finally:
            del error

    async def send_all(self, call: Call, beat: Heartbeat) -> None:
        """Send one to each Librarian, and wait for all answers or timeouts. Never raises CheloniaError."""
        await self.stop()
        self._start_all(call, beat)
        await asyncio.wait(self._running.values())

    async def stop(self) -> None:
        """Cancel the heartbeats under way."""
        for task in self._running.values():
            await waiting.settled(task)

    def _start_all(self, call: Call, beat: Heartbeat) -> list[str]:
        each = self._librarians()
        assert each, "there is a Librarian"
        self._running = {name: task for name, task in self._running.items() if name in each or not task.done()}
        for name, librarian in each.items():
            before = self._running.get(name)
            if before is None or before.done():
                limit_ms = max(self._interval_ms, GIVE_UP_MS)
                task = self._running[name] = asyncio.create_task(librarian.heartbeat(call, beat))
                task.add_done_callback(partial(_ended, self._clock.call_later(limit_ms, task.cancel)))
        return list(each)


def _ended(timer: Timer, task: asyncio.Task[HeartbeatAnswer]) -> None:
    timer.cancel()
    error = None if task.cancelled() else task.exception()
    if error is not None:  # no news while another Librarian answers
        log.debug("a heartbeat was not answered error=%s", error)
