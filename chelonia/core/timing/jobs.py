"""Background work: named jobs that take one step after another, and show their state.

Decides: when a job takes its next step. Never: lets a mistake in one job reach another, or end the process.
Invariants: a step runs only while nothing holds its job back. After an error that a service may raise, the job retries
at its own pace. Any other error is a bug: logged with the job's name, counted, kept, and retried ever more slowly.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final

import msgspec

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Ms
from chelonia.core.timing.clock import Clock
from chelonia.core.timing.pacing import Backoff

_LOG = logging.getLogger(__name__)

CAUSE: Final[ContextVar[str]] = ContextVar("cause", default="other")
"""The job or operation that the present work is for; transacts are counted by it."""


@dataclass(frozen=True, slots=True)
class Busy:
    """The job has more to do now."""


@dataclass(frozen=True, slots=True)
class Idle:
    """The job has nothing to do until somebody sets its `news`."""


@dataclass(frozen=True, slots=True)
class Wait:
    """The job has nothing to do for `ms` milliseconds, unless somebody sets its `news`."""

    ms: int


Next = Busy | Idle | Wait
FAILING: Final = "failing"
BUSY: Final = Busy()
IDLE: Final = Idle()


@dataclass(slots=True, eq=False)
class Job:
    """One piece of background work.

    Args:
        name: unique in its service; also the label of its metrics and of its transacts.
        step: does a bounded piece of work and returns when to go on.
        rest: when to go on after a step that was held back.
        retry: when to go on after an error that a service may raise; by default as `rest`.
        news: set when there is work for the job; a job without it is never `Idle`.
        held: reason why it may not take a step now, "" when it may.
        needs_lease: whether only the repair leader does this; `held` sees to it.
        fatal: the kinds of error that end all jobs beside it: the process cannot go on.
        loud: whether a failure is a WARNING, for want of another part of the service that reports it.
    """

    name: str
    step: Callable[[], Awaitable[Next]]
    rest: Next
    retry: Next | None = None
    news: asyncio.Event | None = None
    held: Callable[[], str] = str  # nothing holds it back
    needs_lease: bool = False
    fatal: tuple[Kind, ...] = ()
    loud: bool = False
    state: str = "new"
    why: str = ""
    last_error: str = ""
    bugs: int = 0
    next_ms: Ms | None = None
    backoff: Backoff = field(default_factory=lambda: Backoff(bounds.JOB_PAUSE_MS, bounds.JOB_PAUSE_MS_MAX))


class JobView(msgspec.Struct, frozen=True):
    """A job as administrators see it. `state`: running, waiting, idle, held (`why`) or failing. `bugs`: steps that
    ended with an unexpected error since the start. `next_in_ms`: until its next step, None when unknown."""

    service: str
    name: str
    state: str
    why: str
    last_error: str
    bugs: int
    next_in_ms: int | None
    needs_lease: bool


class NodeJobs(msgspec.Struct, frozen=True):
    """All jobs of a process. `process`: a name of its own, the same at each of its addresses. `version`: of its
    software, "" from older software that does not report it."""

    node: str
    process: str
    jobs: tuple[JobView, ...]
    version: str = ""


class Jobs:
    """The jobs of one service. `run` keeps them going; `add` and `drop` work before and during it."""

    def __init__(self, clock: Clock, jobs: Iterable[Job] = ()) -> None:
        self._clock = clock
        self._jobs: dict[Job, asyncio.Task[None] | None] = {}
        self._group: asyncio.TaskGroup | None = None
        for job in jobs:
            self.add(job)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs)

    def add(self, job: Job) -> None:
        """Add a job, and start it if `run` is running."""
        assert all(job.name != other.name for other in self._jobs), f"another job is called {job.name}"
        self._jobs[job] = None if self._group is None else self._group.create_task(self._keep(job))

    def drop(self, job: Job) -> None:
        """Remove a job, and cancel its step."""
        task = self._jobs.pop(job)
        if task is not None:
            task.cancel()

    def views(self, service: str) -> tuple[JobView, ...]:
        """Return the state of each job."""
        now = self._clock.monotonic_ms()
        return tuple(
            JobView(
                service, job.name, job.state, job.why, job.last_error, job.bugs,
                None if job.next_ms is None else max(0, job.next_ms - now), job.needs_lease,
            )
            for job in self._jobs
        )  # fmt: skip

    async def run(self) -> None:
        """Keep all jobs going until cancelled. Raises: CheloniaError of a kind that is `fatal` for a job."""
        assert self._group is None, "each job is kept going once"
        try:
            async with asyncio.TaskGroup() as self._group:
                for job in self._jobs:
                    self._jobs[job] = self._group.create_task(self._keep(job))
                await asyncio.Event().wait()  # until cancelled, or a fatal error
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        finally:
            self._group = None

    async def _keep(self, job: Job) -> None:
        CAUSE.set(job.name)
        while True:
            after, news = await self._step(job), job.news
            if isinstance(after, Idle):
                assert news is not None, f"nobody could wake {job.name}"
                await news.wait()
                news.clear()
            elif isinstance(after, Wait):
                await self._sleep(job, after.ms, news)

    async def _step(self, job: Job) -> Next:
        job.why = job.held()
        if job.why:
            job.state = "held"
            return job.rest
        job.state = "running"
        try:
            after = await job.step()
        except CheloniaError as error:
            if error.kind in job.fatal:
                raise
            _LOG.log(logging.WARNING if job.loud else logging.INFO, "%s is tried again: %s", job.name, error)
            job.state, job.last_error = "waiting", str(error)
            return job.retry or job.rest
        except Exception as error:  # noqa: BLE001 - a bug in one job leaves the others and the users alone
            job.state, job.last_error, job.bugs = FAILING, repr(error), job.bugs + 1
            log_bug(job, error)
            await self._sleep(job, job.backoff.failed())  # `news` does not shorten it
            return BUSY
        job.backoff.worked()
        job.state = "idle" if after == IDLE else "waiting"
        return after

    async def _sleep(self, job: Job, ms: int, news: asyncio.Event | None = None) -> None:
        job.next_ms = Ms(self._clock.monotonic_ms() + ms)
        if news is None:
            await self._clock.sleep(ms)
        else:
            await wake_or_sleep(self._clock, news, ms)
        job.next_ms = None


def every(ms: int, work: Callable[[], Awaitable[object]]) -> Callable[[], Awaitable[Next]]:
    """Return the step of a job that does `work` and then waits for `ms`."""
    pause = Wait(ms)

    async def step() -> Next:
        await work()
        return pause

    return step


async def wake_or_sleep(clock: Clock, wake: asyncio.Event, limit_ms: int) -> None:
    """Return when `wake` is set, or after `limit_ms`, and clear it. No other task may wait for it."""
    timer = clock.call_later(limit_ms, wake.set)
    try:
        await wake.wait()
    finally:
        timer.cancel()
    wake.clear()


def log_bug(job: Job, error: Exception) -> None:
    """Log a step's unexpected error. The simulator replaces this function."""
    _LOG.error("job failed: %s; it is tried again, all else goes on", job.name, exc_info=error)
