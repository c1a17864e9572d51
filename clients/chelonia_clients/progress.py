"""A progress bar on stderr: only at a terminal, and only for work that is not over at once.

Of a tree, the whole is counted beside the work (`counting`), so that the work need not wait for it.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Final

from chelonia.core.errors import CheloniaError
from chelonia_clients.output import counted

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from chelonia_clients.output import Output
    from chelonia_clients.steps import TransferResult

AFTER_S: Final = 0.5
"""Time after which a bar is shown."""
AGAIN_S: Final = 0.1
"""Least time between two drawings of a bar."""
Sizes = AsyncGenerator[tuple[int, int], None]
"""For parts of a tree: number of files, and their bytes."""
ERASE: Final = "\r\x1b[2K"
"""Text that takes a bar off its line."""


class Bar:
    """A bar that counts bytes, or another `unit`; use as a context manager, with `advance` as the progress callback.

    Counting draws it, not a thread of its own, so that other output can clear its line first.
    """

    def __init__(self, title: str, total: int = -1, *, beside: Output | None = None, unit: str = "bytes") -> None:
        """`beside`: output whose lines come between; None: nothing is drawn."""
        self._title = title
        self._unit = unit
        self._total = total
        self._beside = beside
        self.enabled = beside is not None and sys.stderr.isatty()
        """Whether it may be drawn."""
        self._ended = self._files = 0
        self._started = self._drawn = time.monotonic()
        self._moved = 0
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def advance(self, moved: int) -> None:
        """Count `moved` bytes; negative when something starts over."""
        self._moved += moved
        if not self.enabled:
            return
        now = time.monotonic()
        if self._bar is None and now - self._started >= AFTER_S:
            self._draw()
        if self._bar is not None and self._task is not None:
            title = f"{self._title}: {self._ended} of {counted(self._files, 'file')}" if self._files else self._title
            again = now - self._drawn >= AGAIN_S
            self._bar.update(self._task, description=title, completed=self._moved, refresh=again)
            self._drawn = now if again else self._drawn

    def expect(self, total: int, files: int = 0) -> None:
        """Set the total, when it becomes known; `files`: those of a tree."""
        self._total, self._files = total, files
        if self._bar is not None and self._task is not None and total >= 0:
            self._bar.update(self._task, total=total)

    async def tally(self, results: AsyncGenerator[TransferResult, None]) -> AsyncGenerator[TransferResult, None]:
        """Yield the results, and count the files of a tree that are done."""
        async for done in results:
            self._ended += done.type == "file" and done.target != ""  # a removed one has no target
            yield done

    def _draw(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn
        from rich.progress import TimeRemainingColumn as Remaining
        from rich.progress import TransferSpeedColumn as Speed
        from rich.table import Column

        line = Column(no_wrap=True)  # a bar is one line, however narrow the terminal is
        shown: tuple[ProgressColumn, ...] = (DownloadColumn(table_column=line), Speed(line))
        if self._unit != "bytes":
            shown = (MofNCompleteColumn(table_column=line), TextColumn(self._unit, table_column=line))
        titled = TextColumn("{task.description}", markup=False, table_column=line)  # a name may look like rich's markup
        self._bar = Progress(
            titled, BarColumn(table_column=line), *shown, Remaining(table_column=line), console=Console(stderr=True),
            transient=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False,
        )  # fmt: skip
        self._task = self._bar.add_task(self._title, total=self._total if self._total >= 0 else None)
        self._bar.start()
        if self._beside is not None:
            self._beside.before = self._aside

    def _aside(self) -> None:
        sys.stderr.write(ERASE)
        sys.stderr.flush()

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._beside is not None:
            self._beside.before = None
        if self._bar is not None:
            self._bar.stop()


@asynccontextmanager
async def counting(bar: Bar, sizes: Sizes) -> AsyncIterator[None]:
    """Add `sizes` up for the bar while the body works, if the bar may be drawn."""
    adding = asyncio.create_task(add_up(bar, sizes)) if bar.enabled else None
    try:
        yield
    finally:
        if adding is not None:
            adding.cancel()
            await asyncio.gather(adding, return_exceptions=True)


async def add_up(bar: Bar, sizes: Sizes) -> None:
    """Set the bar's total to the sum of `sizes`; leave it unset after an error, which the work itself will report."""
    total = files = 0
    try:
        async with aclosing(sizes):
            async for count, size in sizes:
                total, files = total + max(0, size), files + count
    except (CheloniaError, OSError):
        return
    bar.expect(total, files)
