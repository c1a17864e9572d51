"""Keeps a few child processes alive: starts them, starts them again when they died, stops them in order.

Children die with their supervisor (PR_SET_PDEATHSIG), so nothing is left behind whatever happens to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chelonia.core.timing.pacing import Backoff

log = logging.getLogger("chelonia.supervisor")

PR_SET_PDEATHSIG: Final = 1
BACKOFF_MS: Final = 200
BACKOFF_MAX_MS: Final = 5_000
STEADY_MS: Final = 10_000
"""A child that has lived so long starts again without a pause when it dies."""


@dataclass(frozen=True, slots=True)
class Program:
    """A child: what to run, and where its output goes (appended)."""

    name: str
    argv: tuple[str, ...]
    log_file: Path


class ChildProcess:
    """One supervised process."""

    def __init__(self, program: Program, *, restart: bool, changed: Callable[[], None]) -> None:
        """Take the program; `changed` is called whenever the pid changes."""
        self.program = program
        self.pid = 0
        self._restart = restart
        self._changed = changed
        self._process: asyncio.subprocess.Process | None = None
        self._started = asyncio.Event()
        """Clear while a process is being started: it has no number yet that a signal could go to."""
        self._started.set()
        self._stopping = False

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def run(self) -> None:
        """Start the process and keep it alive; returns when it ended and is not to be started again."""
        loop = asyncio.get_running_loop()
        backoff = Backoff(BACKOFF_MS, BACKOFF_MAX_MS)
        while not self._told_to_stop():
            started = loop.time()
            code = await self._once()
            lived_ms = (loop.time() - started) * 1000
            if self._told_to_stop() or not self._restart:
                level = logging.INFO if self._told_to_stop() else logging.WARNING
                log.log(level, "ended name=%s code=%d", self.program.name, code)
                return
            if lived_ms >= STEADY_MS:
                backoff.worked()
            pause_ms = 0 if lived_ms >= STEADY_MS else backoff.failed()
            log.info("died, is started again name=%s code=%d pause_ms=%d", self.program.name, code, pause_ms)
            await asyncio.sleep(pause_ms / 1000)

    def _told_to_stop(self) -> bool:
        return self._stopping

    async def _once(self) -> int:
        self._started.clear()
        try:
            with self.program.log_file.open("ab") as out:
                self._process = await asyncio.create_subprocess_exec(
                    *self.program.argv,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    preexec_fn=_die_with(os.getpid()),
                    # Ctrl-C in a terminal is for the supervisor, which stops its children in order.
                    process_group=0,
                )
        finally:
            self._started.set()
        self.pid = self._process.pid
        self._changed()
        return await self._process.wait()

    async def stop(self, deadline_ms: int) -> None:
        """SIGTERM, and SIGKILL when it has not ended within `deadline_ms`."""
        self._stopping = True
        await self._started.wait()
        process = self._process
        if process is None or process.returncode is not None:
            return
        # Not by the process object: it would look for the child's end itself, and the watcher would miss it.
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)
            os.kill(process.pid, signal.SIGCONT)  # a frozen child would never see the other
        try:
            async with asyncio.timeout(deadline_ms / 1000):
                await process.wait()
        except TimeoutError:
            log.warning("killed after %d ms without an end name=%s", deadline_ms, self.program.name)
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            await process.wait()


async def stop_all(children: Sequence[ChildProcess], deadline_ms: int) -> None:
    """Stop children at the same time."""
    await asyncio.gather(*(child.stop(deadline_ms) for child in children))


def _die_with(parent: int) -> Callable[[], None]:
    """What a child does between fork and exec: ask the kernel to be killed when its parent ends."""
    libc = ctypes.CDLL(None, use_errno=True)

    def prepare() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return prepare
