"""Keeps a few child processes alive: forks them, forks them again when they died, stops them.

Children are forks without exec, which saves the memory and time of the supervisor's imports. Threads do not come along,
and no child returns into its supervisor's code. Children die with their supervisor (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from chelonia.core.timing.pacing import Backoff

log = logging.getLogger("chelonia.supervisor")

PR_SET_PDEATHSIG: Final = 1
PR_SET_NAME: Final = 15
BACKOFF_MS: Final = 200
BACKOFF_MAX_MS: Final = 5_000
STEADY_MS: Final = 10_000
"""A child that lived this long starts again without a pause."""
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals whose handlers a child must not inherit."""
LIBC: Final = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Program:
    """A child: `main` runs in it and returns its exit code; its output is appended to `log_file`."""

    name: str
    main: Callable[[], int]
    log_file: Path


class ChildProcess:
    """One supervised process."""

    def __init__(self, program: Program, *, restart: bool, changed: Callable[[], None]) -> None:
        """Take the program; the child calls `changed` whenever its pid changes."""
        self.program = program
        self.pid = 0
        self._restart = restart
        self._changed = changed
        self._ended = asyncio.Event()
        self._ended.set()
        self._stopping = False

    @property
    def alive(self) -> bool:
        return not self._ended.is_set()

    async def run(self) -> None:
        """Start the process and keep it alive; return when it has ended and shall not start again."""
        loop = asyncio.get_running_loop()
        backoff = Backoff(BACKOFF_MS, BACKOFF_MAX_MS)
        while not self._must_stop():
            started = loop.time()
            code = await self._once()
            lived_ms = (loop.time() - started) * 1000
            if self._must_stop() or not self._restart:
                level = logging.INFO if self._must_stop() else logging.WARNING
                log.log(level, "ended name=%s code=%d", self.program.name, code)
                return
            if lived_ms >= STEADY_MS:
                backoff.worked()
            pause_ms = 0 if lived_ms >= STEADY_MS else backoff.failed()
            log.info("died, is started again name=%s code=%d pause_ms=%d", self.program.name, code, pause_ms)
            await asyncio.sleep(pause_ms / 1000)

    def _must_stop(self) -> bool:
        return self._stopping

    async def _once(self) -> int:
        """Fork and wait for the end; return the exit code, or minus the signal that ended the child."""
        self.pid = _fork(self.program)
        self._ended.clear()
        self._changed()
        loop, handle = asyncio.get_running_loop(), os.pidfd_open(self.pid)
        loop.add_reader(handle, self._ended.set)
        try:
            await self._ended.wait()
        finally:
            loop.remove_reader(handle)
            os.close(handle)
        return _exit_code(self.pid)

    async def stop(self, deadline_ms: int) -> None:
        """Send SIGTERM, and SIGKILL to a process that has not ended within `deadline_ms`."""
        self._stopping = True
        if not self.alive:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
            os.kill(self.pid, signal.SIGCONT)  # a frozen child would never see the other
        try:
            async with asyncio.timeout(deadline_ms / 1000):
                await self._ended.wait()
        except TimeoutError:
            log.warning("killed after %d ms without an end name=%s", deadline_ms, self.program.name)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            await self._ended.wait()


async def stop_all(children: Sequence[ChildProcess], deadline_ms: int) -> None:
    """Stop children at the same time."""
    await asyncio.gather(*(child.stop(deadline_ms) for child in children))


def _exit_code(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _fork(program: Program) -> int:
    parent = os.getpid()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    held = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until the child has no handler of the parent's
    pid = os.fork()
    if not pid:
        _be_child(program, parent)
    signal.pthread_sigmask(signal.SIG_SETMASK, held)
    return pid


def _be_child(program: Program, parent: int) -> NoReturn:
    code = 1
    try:
        gc.freeze()  # the collector never looks through memory shared with the parent
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        LIBC.prctl(PR_SET_NAME, program.name.encode())
        if os.getppid() != parent:
            os._exit(code)
        os.setpgid(0, 0)  # Ctrl-C in a terminal is for the supervisor, which stops its children in order
        _let_go(program.log_file)
        code = program.main()
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _let_go(log_file: Path) -> None:
    """Give up the parent's files, connections and signal handlers."""
    signal.set_wakeup_fd(-1)
    for number in SIGNALS:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    out = os.open(log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for source, target in ((os.open(os.devnull, os.O_RDONLY), 0), (out, 1), (out, 2)):
        os.dup2(source, target)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
