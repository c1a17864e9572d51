"""Simulated processes: tasks that die with their process, clocks of their own, and freezing.

Every task belongs to the life of the node in whose context it was made, whoever made it: a crash cancels them all and
marks the life as over, so that what a cancelled task still does while it unwinds reaches neither disk nor network, as
nothing of a killed process does. A frozen process stands still at its next wait; its clocks go on.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable, Coroutine
from typing import Any

from chelonia.core.errors import CheloniaError
from chelonia.core.ids import Ms
from chelonia.core.position import Horizon
from tests.sim.virtual_loop import VirtualLoop, this_loop

EPOCH_MS = 1_700_000_000_000

Unexpected = Callable[[str, BaseException], None]
"""Told of an error that no service of ours may raise: which process, what."""


_LIFE: contextvars.ContextVar[Life | None] = contextvars.ContextVar("life", default=None)


class Life:
    """One run of a process, from its start to its crash."""

    def __init__(self, name: str, unexpected: Unexpected) -> None:
        self.name = name
        self.over = False
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self._living = this_loop().living
        self.context = contextvars.copy_context()
        self.context.run(_LIFE.set, self)
        self._unexpected = unexpected

    def ended(self, task: asyncio.Task[Any]) -> None:
        """Look at how a task has ended, which is no part of this life any more."""
        self.tasks.pop(task, None)
        self._living.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not self.over and not isinstance(error, CheloniaError):
            self._unexpected(self.name, error)


def check_alive() -> None:
    """Stop whoever goes on after the crash of his process."""
    life = _LIFE.get()
    if life is not None and life.over:
        raise asyncio.CancelledError


def make_task(loop: VirtualLoop, work: Any, context: contextvars.Context | None) -> asyncio.Task[Any]:
    """Make a task of the process in whose context it runs: the `make_task` of a loop with processes."""
    task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, name="", context=context)
    life = _LIFE.get() if context is None else context.get(_LIFE)
    if life is not None:
        life.tasks[task] = None
        task.add_done_callback(life.ended)
    else:
        task.add_done_callback(loop.living.discard)
    return task


class Node:
    """One simulated process, which can be started, frozen and killed again and again."""

    def __init__(self, name: str, unexpected: Unexpected) -> None:
        self.name = name
        self.up = False
        self.thawed: asyncio.Event | None = None
        self.clock = SimClock(self)
        self.horizon = Horizon()
        self._unexpected = unexpected
        self._loop = this_loop()
        self._life = Life(name, unexpected)

    def begin(self) -> None:
        """Start a new life, which has seen nothing yet."""
        self._life = Life(self.name, self._unexpected)
        self.horizon = Horizon()
        self.up = True

    def context(self) -> contextvars.Context:
        """The context of what belongs to the present life of this process."""
        return self._life.context.copy()

    def over(self, context: contextvars.Context) -> bool:
        """Whether the life that this context belongs to has ended."""
        life = context.get(_LIFE)
        return life is None or life.over

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run `work` as part of this process."""
        return self._loop.create_task(work, context=self.context())

    async def crash(self) -> None:
        """Kill the process: every task is cancelled, nothing is flushed."""
        self.up = False
        self.thaw()
        self._life.over = True
        tasks = list(self._life.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def freeze(self) -> None:
        """Stop the process, which does not know: what it does and what is asked of it waits."""
        if self.thawed is None:
            self.thawed = asyncio.Event()

    def thaw(self) -> None:
        """Let it go on: everything that waited happens now."""
        thawed, self.thawed = self.thawed, None
        if thawed is not None:
            thawed.set()

    @property
    def frozen(self) -> bool:
        """Whether it stands still."""
        return self.thawed is not None

    async def awake(self) -> None:
        """Wait while it is frozen."""
        while self.thawed is not None:
            await self.thawed.wait()


class SimClock:
    """A process's clocks: virtual time, its own offset (wall clock) and its own pace (both clocks)."""

    def __init__(self, node: Node | None = None) -> None:
        self.offset_ms = 0
        self._pace = 1.0
        self._origin_ms = 0.0
        self._even = True  # goes as the loop does
        self._node = node
        self._loop = this_loop()

    @property
    def pace(self) -> float:
        """How fast both clocks go."""
        return self._pace

    @pace.setter
    def pace(self, pace: float) -> None:
        self._pace = pace
        self._even = pace == 1.0 and not self._origin_ms

    def drift(self, pace: float) -> None:
        """Go at another pace from now on."""
        self._origin_ms += self._loop.now_s * 1000 * (self._pace - pace)
        self.pace = pace

    def now_ms(self) -> Ms:
        """Wall clock of this process."""
        return Ms(EPOCH_MS + self.offset_ms + self.monotonic_ms())

    def monotonic_ms(self) -> Ms:
        """Milliseconds since the start of the run, as this process counts them."""
        if self._even:
            return self._loop.now_ms  # type: ignore[return-value]
        return Ms(round(self._origin_ms + self._loop.now_s * 1000 * self._pace))

    async def sleep(self, duration_ms: int) -> None:
        """Let virtual time pass; a frozen process wakes when it is thawed."""
        await self._loop.sleep(duration_ms / 1000 if self._even else duration_ms / 1000 / self._pace)
        if self._node is not None and self._node.thawed is not None:
            await self._node.awake()


class SimIds:
    """Identifiers and choices drawn from the run's seed."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def uuid(self) -> str:
        """A version-4-shaped UUID."""
        text = f"{self._rng.getrandbits(128):032x}"
        return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-a{text[17:20]}-{text[20:]}"

    def token(self, n_bytes: int) -> bytes:
        """Seeded bytes."""
        return self._rng.randbytes(n_bytes)

    def uniform(self) -> float:
        """A seeded number in [0, 1)."""
        return self._rng.random()
