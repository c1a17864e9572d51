"""Interrupts of requests whose program has a signal to end: the kernel holds it until they are answered.

The binding does not pass the kernel's interrupts on. So the program of a long request is checked for such signals.
`pid` is the process that makes the request, or that has opened its file. Changes are committed behind the last close.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

LONG_S: Final = 1.0
LOOK_S: Final = 0.5
_ENDING: Final = sum(
    1 << number - 1 for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGKILL, signal.SIGTERM)
)


def is_to_end(status: str) -> bool:
    """Whether a signal to end is pending and not blocked in a process, by its `status` (proc(5))."""
    sets = dict(line.split(":\t", 1) for line in status.splitlines() if line.startswith(("Sig", "Shd")))
    sent, blocked = (int(sets[name], 16) for name in ("SigPnd", "SigBlk"))
    return bool((sent | int(sets["ShdPnd"], 16)) & ~blocked & _ENDING)


@dataclass(slots=True)
class RequestWatch:
    """The requests under way: since when, and for which process (0: not known)."""

    _since: dict[asyncio.Task[Any] | None, tuple[float, int]] = field(default_factory=dict)
    _given_up: set[asyncio.Task[Any] | None] = field(default_factory=set)

    def begin(self, pid: int) -> asyncio.Task[Any] | None:
        """Begin a request of this task. Returns: the argument for `end`."""
        task = asyncio.current_task()
        self._since[task] = time.monotonic(), pid
        return task

    @property
    def pid(self) -> int:
        """The process that the request of this task is for."""
        return self._since.get(asyncio.current_task(), (0.0, 0))[1]

    def is_given_up(self) -> bool:
        """Whether this task was cancelled for the sake of its program."""
        return asyncio.current_task() in self._given_up

    def end(self, task: asyncio.Task[Any] | None) -> None:
        """End the request of a task, which goes on to the next one."""
        self._since.pop(task, None)
        if task is not None and task in self._given_up:
            self._given_up.discard(task)
            task.uncancel()

    async def watch(self) -> None:
        """Look every `LOOK_S` until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look(time.monotonic())

    def look(self, now_s: float) -> None:
        """Cancel long requests whose program has a signal to end."""
        for task, (since_s, pid) in list(self._since.items()):
            if now_s - since_s < LONG_S or not pid or task is None or task in self._given_up:
                continue
            with contextlib.suppress(OSError):
                if is_to_end(Path(f"/proc/{pid}/status").read_text()):
                    self._given_up.add(task)
                    task.cancel()
