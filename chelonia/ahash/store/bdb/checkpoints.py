"""When a Berkeley DB store makes a checkpoint, and the thread that writes changed pages to their file before it.

A checkpoint writes every changed page while nobody commits: with many changes all over a large store a tenth of a
second and more. So a thread writes changed pages shortly before, beside commits, and leaves the checkpoint only those
that changed meanwhile. Followers do so when their master announces a checkpoint: its record has them write their own,
and until then they acknowledge nothing.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from berkeleydb import db as bdb

from chelonia.ahash.store.bdb.environment import BdbSettings

_LOG = logging.getLogger(__name__)

SLICES: Final = 50
"""Slices in which pages are written; between them a thread that needs the library alone gets in. 9 000 pages take
0.1 s in all, 4 ms for the longest slice; in 10 slices hardly less, and 15 ms."""
OVERDUE: Final = 2
"""Multiple of the bytes after which a checkpoint is due that forces it, whatever is written yet."""


class CheckpointPace:
    """When a checkpoint is due: after so many bytes of changes, or so long after a change. Pure; a steady clock's s."""

    def __init__(self, settings: BdbSettings, now_s: float) -> None:
        self._bytes_max = settings.checkpoint_log_bytes
        self._interval_s = settings.checkpoint_interval_ms / 1000
        self._bytes = 0
        self._made_s = now_s

    def changed(self, puts: Mapping[bytes, bytes]) -> None:
        """Count the bytes of a commit."""
        self._bytes += sum(map(len, puts)) + sum(map(len, puts.values()))

    def is_due(self, now_s: float) -> bool:
        if not self._bytes:
            return False
        return self._bytes >= self._bytes_max or now_s - self._made_s >= self._interval_s

    @property
    def is_overdue(self) -> bool:
        """Whether the checkpoint waits no longer for pages to be written."""
        return self._bytes >= OVERDUE * self._bytes_max

    def made(self, now_s: float) -> None:
        """One is being made."""
        self._bytes, self._made_s = 0, now_s


class PageWriter:
    """Writes changed pages to their file on request, on a thread of its own. `close` it before the environment.

    Args: `file`: of the tree. `gate`: held while using the environment. `env`: returns it; None while there is none.
    """

    def __init__(self, file: Path, gate: AbstractContextManager[Any], env: Callable[[], Any]) -> None:
        self._file = file
        self._gate = gate
        self._env = env
        self._changed = threading.Condition()
        self._requested = self._done = 0
        self._closed = False
        self._thread: threading.Thread | None = None

    def request(self) -> int:
        """Have pages written; return the number for `has_done`. A request during a run shares that run."""
        with self._changed:
            if self._requested == self._done and not self._closed:
                self._requested += 1
                self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ahash-pages", daemon=True)
                self._thread.start()
            return self._requested

    def has_done(self, number: int) -> bool:
        """Return whether run `number` has ended, even in failure: the checkpoint then meets the same error."""
        return self._done >= number

    def close(self) -> None:
        """End the thread, after a slice that is being written."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while self._wait():
            try:
                self._write()
            except (bdb.DBError, OSError, MemoryError) as error:
                _LOG.info("changed pages were not written before a checkpoint: %s", error)
            self._done = self._requested

    def _wait(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._requested > self._done)
            return not self._closed

    def _write(self) -> None:
        written = 0
        for part in range(1, SLICES + 1):
            with self._gate:
                env = self._env()
                if self._closed or env is None:
                    return
                written += env.memp_trickle(100 * part // SLICES)  # that many per cent of what is cached are clean then
        if written:
            tree = os.open(self._file, os.O_RDONLY)
            try:
                os.fdatasync(tree)
            finally:
                os.close(tree)


class Checkpoints:
    """The checkpoints of one store. It calls `announce` when it begins to write changed pages."""

    def __init__(self, settings: BdbSettings, pages: PageWriter, announce: Callable[[], None] = lambda: None) -> None:
        self._pace = CheckpointPace(settings, time.monotonic())
        self._pages = pages
        self._announce = announce
        self._requested = 0
        self.changed = self._pace.changed

    def is_due(self) -> bool:
        """Return whether to make a checkpoint now. When one becomes due, the page writer goes first."""
        if not self._pace.is_due(time.monotonic()):
            return False
        if not self._requested:
            self._requested = self._pages.request()
            self._announce()
        return self._pages.has_done(self._requested) or self._pace.is_overdue

    def made(self) -> None:
        """One is being made."""
        self._pace.made(time.monotonic())
        self._requested = 0
