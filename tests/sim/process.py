"""Simulated processes: tasks that die with their process, clocks of their own, and freezing.

Every task belongs to the life of the node in whose context it was made. A crash cancels them all and marks the life as
over. Then a cancelled task that unwinds reaches neither disk nor network, as after a real kill. A frozen process stops
at its next wait; its clocks go on.

The ends of tasks are checked many at a time (`Life.look`): before a crash, before a check for errors, and now and then.
A mere sleep is no task: a `Nap` takes the same turns of the loop.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable, Coroutine, Generator
from types import CoroutineType
from typing import Any

from chelonia.core.cluster.position import Horizon
from chelonia.core.errors import CheloniaError
from chelonia.core.ids import Ms
from chelonia.core.timing import jobs
from tests.sim.virtual_loop import Timer, VirtualLoop, this_loop

LOGGED = jobs.log_bug
EPOCH_MS = 1_700_000_000_000

ENDED_MAX = 8
"""Ended tasks that a life holds, beside a quarter of the living ones, before it checks them."""

Unexpected = Callable[[str, BaseException], None]
"""Called with an error that no service may raise: the process, the error."""


_WAIT = asyncio.Event.wait.__code__

_LIFE: contextvars.ContextVar[Life | None] = contextvars.ContextVar("life", default=None)


class Life:
    """One run of a process, from its start to its crash."""

    def __init__(self, name: str, unexpected: Unexpected) -> None:
        self.name = name
        self.over = False
        self.tasks: dict[asyncio.Future[Any], None] = {}
        self.full = ENDED_MAX
        self._living = this_loop().living
        self.context = contextvars.copy_context()
        self.context.run(_LIFE.set, self)
        self.unexpected = unexpected

    def look(self) -> None:
        """Check the ends of tasks, and drop those."""
        ended = [task for task in self.tasks if task.done()]
        for task in ended:
            del self.tasks[task]
            if task.cancelled():
                continue
            error = task.exception()
            if error is not None and not self.over and not isinstance(error, CheloniaError):
                self.unexpected(self.name, error)
        self._living.difference_update(ended)
        self.full = len(self.tasks) * 5 // 4 + ENDED_MAX


def bug(job: jobs.Job, error: Exception) -> None:
    """Let a job of a simulated process go on after a bug, as everywhere; the run has failed."""
    life = _LIFE.get()
    if life is None:
        LOGGED(job, error)
    elif not life.over:
        life.unexpected(life.name, error)


jobs.log_bug = bug


def check_alive() -> None:
    """Stop the code that goes on after its process's crash."""
    life = _LIFE.get()
    if life is not None and life.over:
        raise asyncio.CancelledError


def make_task(
    loop: VirtualLoop, work: Any, *, name: str | None = None, context: contextvars.Context | None = None
) -> asyncio.Future[Any]:
    """Make a task of the process in whose context it runs: the `make_task` of a loop with processes."""
    del name
    task: asyncio.Future[Any]
    kind = type(work)
    if kind is Sleep:
        task = Nap(loop=loop)
        task.lie_down(work)
    elif kind is CoroutineType and work.cr_code is _WAIT:
        task = Waiter(loop=loop)
        task.attend(work)
    else:
        task = asyncio.Task(work, loop=loop, name="", context=context)
        loop.living.add(task)
    life = _LIFE.get() if context is None else context.get(_LIFE)
    if life is None:
        task.add_done_callback(loop.living.discard)
        return task
    life.tasks[task] = None
    if len(life.tasks) >= life.full:
        life.look()
    return task


class Thawing:
    """The tasks that wait for a frozen process to go on, in order."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._waiting: list[asyncio.Future[None]] = []

    def waiter(self, told: Callable[[Any], object] | None = None) -> asyncio.Future[None]:
        """A future that is done when the process goes on; the callback is called then, in the next turn."""
        future = self._loop.create_future()
        if told is not None:
            future.add_done_callback(told)
        self._waiting.append(future)
        return future

    def set(self) -> None:
        """Everything that waited goes on."""
        for future in self._waiting:
            if not future.done():
                future.set_result(None)


class Node:
    """One simulated process, which can be started, frozen and killed again and again."""

    def __init__(self, name: str, unexpected: Unexpected) -> None:
        self.name = name
        self.up = False
        self.thawed: Thawing | None = None
        self.clock = SimClock(self)
        self.horizon = Horizon()
        self._unexpected = unexpected
        self._loop = this_loop()
        self._life = Life(name, unexpected)

    def look(self) -> None:
        """Check for ends of tasks that no service may have."""
        self._life.look()

    def begin(self) -> None:
        """Start a new life, which has seen nothing yet."""
        self._life.look()
        self._life = Life(self.name, self._unexpected)
        self.horizon = Horizon()
        self.up = True

    def context(self) -> contextvars.Context:
        """The context of the process's present life."""
        return self._life.context.copy()

    def over(self, context: contextvars.Context) -> bool:
        """Whether the life that this context belongs to has ended."""
        life = context.get(_LIFE)
        return life is None or life.over

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Future[Any]:
        """Run `work` as part of this process."""
        return make_task(self._loop, work, context=self.context())

    async def crash(self) -> None:
        """Kill the process: every task is cancelled, nothing is flushed."""
        self.up = False
        self.thaw()
        self._life.look()
        self._life.over = True
        tasks = list(self._life.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def freeze(self) -> None:
        """Stop the process without its knowledge: its work and its requests wait."""
        if self.thawed is None:
            self.thawed = Thawing(self._loop)

    def thaw(self) -> None:
        """Let it go on: everything that waited happens now."""
        thawed, self.thawed = self.thawed, None
        if thawed is not None:
            thawed.set()

    @property
    def frozen(self) -> bool:
        return self.thawed is not None

    async def awake(self) -> None:
        """Wait while it is frozen."""
        while self.thawed is not None:
            await self.thawed.waiter()


class SimClock:
    """A process's clocks: virtual time, its own offset (wall clock) and its own pace (both clocks)."""

    def __init__(self, node: Node | None = None) -> None:
        self.offset_ms = 0
        self._pace = 1.0
        self._origin_ms = 0.0
        self._even = True  # goes as the loop does
        self.node = node
        self.loop = this_loop()

    @property
    def pace(self) -> float:
        return self._pace

    @pace.setter
    def pace(self, pace: float) -> None:
        self._pace = pace
        self._even = pace == 1.0 and not self._origin_ms

    def drift(self, pace: float) -> None:
        """Go at another pace from now on."""
        self._origin_ms += self.loop.now_s * 1000 * (self._pace - pace)
        self.pace = pace

    def now_ms(self) -> Ms:
        return Ms(EPOCH_MS + self.offset_ms + self.monotonic_ms())

    def monotonic_ms(self) -> Ms:
        """Milliseconds since the start of the run, as this process counts them."""
        if self._even:
            return self.loop.now_ms  # type: ignore[return-value]
        return Ms(round(self._origin_ms + self.loop.now_s * 1000 * self._pace))

    def sleep(self, duration_ms: int) -> Sleep:
        """Let virtual time pass; a frozen process wakes when it is thawed."""
        return Sleep(self, duration_ms)

    def call_later(self, duration_ms: int, callback: Callable[[], object]) -> Ring:
        """Call `callback` when so much time has passed; in a frozen process, when it is thawed."""
        return Ring(self, duration_ms, callback)

    def delay_s(self, duration_ms: int) -> float:
        """How long the loop waits while so much time passes for this process."""
        return duration_ms / 1000 if self._even else duration_ms / 1000 / self._pace


class Ring:
    """The result of `SimClock.call_later`."""

    __slots__ = ("_callback", "_node", "_timer")

    def __init__(self, clock: SimClock, duration_ms: int, callback: Callable[[], object]) -> None:
        self._callback: Callable[[], object] | None = callback  # None: cancelled, and nothing is held any more
        self._node = clock.node
        self._timer: Timer | None = clock.loop.ring_after(clock.delay_s(duration_ms), self._ring)

    def cancel(self) -> None:
        """See `core.clock.Timer`; also in the turn in which it is due, when the loop has let go of its timer."""
        timer, self._timer, self._callback = self._timer, None, None
        if timer is not None:
            timer.gone = True

    def _ring(self, _: object = None) -> None:
        self._timer = None  # it holds this
        if self._callback is None:
            return
        node = self._node
        if node is not None and node.thawed is not None:
            node.thawed.waiter(self._ring)
        else:
            self._callback()


class Sleep:
    """The result of `SimClock.sleep`, to be awaited, or made a task of."""

    __slots__ = ("clock", "duration_ms")

    def __init__(self, clock: SimClock, duration_ms: int) -> None:
        self.clock = clock
        self.duration_ms = duration_ms

    def __await__(self) -> Generator[Any, None, None]:
        clock = self.clock
        loop, delay, node = clock.loop, clock.delay_s(self.duration_ms), clock.node
        if delay > 0:
            future = loop.create_future()
            timer = loop.wake_after(delay, future)
            try:
                yield from future
            finally:
                timer.gone = True
        else:
            yield
        if node is not None and node.thawed is not None:
            yield from node.awake().__await__()


class Nap(asyncio.Future[None]):
    """A task that only sleeps, without coroutine and context. It takes as many turns of the loop as the task would, and
    sets the same timer in the same turn. Else every seed would become another run."""

    __slots__ = ("_asked", "_asleep", "_sleep", "_thawing", "_timer")

    def lie_down(self, sleep: Sleep) -> None:
        """Begin to sleep in the next turn."""
        self._sleep = sleep
        self._asked = self._asleep = False
        self._timer: Timer | None = None
        self._thawing: asyncio.Future[Any] | None = None
        sleep.clock.loop.next_turn(self._begin)

    def cancel(self, msg: Any = None) -> bool:
        if self.done():
            return False
        self._asked = True
        if self._asleep:
            self._wake()
        elif self._thawing is not None:
            self._thawing.cancel()
        return True

    def _begin(self) -> None:
        clock = self._sleep.clock
        delay = clock.delay_s(self._sleep.duration_ms)
        if self._asked:
            asyncio.Future.cancel(self)
        elif delay > 0:
            self._asleep = True
            self._timer = clock.loop.ring_after(delay, self._wake)
        else:
            clock.loop.next_turn(self._rise)

    def _wake(self) -> None:
        if self._asleep:
            self._asleep = False
            self._sleep.clock.loop.next_turn(self._rise)

    def _rise(self, _: object = None) -> None:
        node, timer = self._sleep.clock.node, self._timer
        if timer is not None:
            timer.gone = True
        self._timer = self._thawing = None
        if self._asked:
            asyncio.Future.cancel(self)
        elif node is not None and node.thawed is not None:
            self._thawing = node.thawed.waiter(self._rise)
        else:
            self.set_result(None)


class Waiter(asyncio.Future[bool]):
    """A task that waits for an `asyncio.Event` and does nothing else: as `Nap`."""

    __slots__ = ("_asked", "_event", "_news", "_vloop")

    def attend(self, work: Coroutine[Any, Any, bool]) -> None:
        """Begin to wait in the next turn, as `work` would, which never begins."""
        frame = work.cr_frame  # type: ignore[attr-defined]
        self._event: asyncio.Event = frame.f_locals["self"]
        work.close()
        self._asked = False
        self._news: asyncio.Future[bool] | None = None
        self._vloop = this_loop()
        self._vloop.next_turn(self._begin)

    def cancel(self, msg: Any = None) -> bool:
        if self.done():
            return False
        self._asked = True
        if self._news is None:
            return True
        if self._callbacks is None:  # type: ignore[attr-defined]
            self._told(self._news)
        else:
            self._news.cancel()
        return True

    def _begin(self) -> None:
        if self._asked:
            asyncio.Future.cancel(self)
        elif self._event.is_set():
            self.set_result(True)
        else:
            self._news = self._vloop.create_future()
            self._event._waiters.append(self._news)  # type: ignore[attr-defined]
            self._news.add_done_callback(self._told)

    def _told(self, news: asyncio.Future[bool]) -> None:
        if self._news is None:
            return
        self._event._waiters.remove(news)  # type: ignore[attr-defined]
        self._news = None
        if self._asked:
            asyncio.Future.cancel(self)
        else:
            self.set_result(True)


class SimIds:
    """Identifiers and choices drawn from the run's seed."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def uuid(self) -> str:
        text = f"{self._rng.getrandbits(128):032x}"
        return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-a{text[17:20]}-{text[20:]}"

    def token(self, n_bytes: int) -> bytes:
        return self._rng.randbytes(n_bytes)

    def uniform(self) -> float:
        """A seeded number in [0, 1)."""
        return self._rng.random()
