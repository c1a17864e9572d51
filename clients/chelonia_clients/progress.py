"""A progress bar on stderr: only at a terminal, and only for work that is not over at once."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

AFTER_S: Final = 0.5
"""Work that is over sooner shows no bar."""


class Bar:
    """Counts bytes; use as a context manager and pass `advance` as the progress callback."""

    def __init__(self, title: str, total: int = -1, *, enabled: bool = True) -> None:
        self._title = title
        self._total = total
        self._enabled = enabled and sys.stderr.isatty()
        self._started = time.monotonic()
        self._moved = 0
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def advance(self, moved: int) -> None:
        """Count `moved` bytes; negative when something starts over."""
        self._moved += moved
        if not self._enabled:
            return
        if self._bar is None and time.monotonic() - self._started >= AFTER_S:
            self._draw()
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self._moved)

    def expect(self, total: int) -> None:
        """The whole, when it becomes known."""
        self._total = total
        if self._bar is not None and self._task is not None and total >= 0:
            self._bar.update(self._task, total=total)

    def _draw(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.progress import TransferSpeedColumn as Speed

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), Speed(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task(self._title, total=self._total if self._total >= 0 else None)
        self._bar.start()

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
