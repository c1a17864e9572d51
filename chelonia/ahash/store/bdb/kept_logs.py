"""The log files that a replica keeps for others that were away, beyond those its recovery needs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from berkeleydb import db as bdb

from chelonia.ahash.store.bdb import environment
from chelonia.ahash.store.bdb.environment import BdbSettings
from chelonia.ahash.store.bdb.gate import Gate


class KeptLogs:
    """The log files of the environment that `env` returns, in `directory`. `lock`: held while all are needed."""

    def __init__(self, directory: Path, settings: BdbSettings, gate: Gate, env: Callable[[], Any]) -> None:
        self.lock = threading.Lock()
        self._directory = directory
        self._interval_s = settings.checkpoint_interval_ms / 1000
        self._kept = max(1, settings.log_kept_bytes // settings.log_file_bytes)
        self._gate = gate
        self._env = env
        self._seen_s = time.monotonic()

    def is_due(self) -> bool:
        """Return whether a follower should `remove` now; a master does so at each checkpoint."""
        due = time.monotonic() - self._seen_s >= self._interval_s
        if due:
            self._seen_s = time.monotonic()
        return due

    def remove(self) -> None:
        """Remove log files that recovery does not need, except those kept. Raises: UNAVAILABLE, as `env` does."""
        with self._gate:
            names = []
            with suppress(bdb.DBError):  # while it synchronises, the library keeps all
                names = sorted(os.fsdecode(name) for name in self._env().log_archive())
        if names[: -self._kept] and self.lock.acquire(blocking=False):  # a backup in progress still needs them
            try:
                environment.remove_logs(self._directory, names[: -self._kept])
            finally:
                self.lock.release()
