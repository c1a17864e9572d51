"""Jobs: the times of their steps, and the cost of a mistake in one. Waits for news with a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.timing.jobs import BUSY, FAILING, IDLE, Job, Jobs, Next, Wait, wake_or_sleep
from chelonia.core.timing.pacing import Backoff
from tests.sim.virtual_loop import virtual
from tests.support.clocks import VirtualClock


def _now() -> float:
    return asyncio.get_running_loop().time()


@virtual
async def test_news_end_a_wait_and_are_over_then() -> None:
    news = asyncio.Event()
    asyncio.get_running_loop().call_later(2, news.set)
    await wake_or_sleep(VirtualClock(), news, 5_000)
    assert (_now(), news.is_set()) == (2, False)
    await wake_or_sleep(VirtualClock(), news, 5_000)
    assert _now() == 7, "the first deadline would have been at 5"


@virtual
async def test_a_deadline_is_no_news_for_the_next_wait() -> None:
    news = asyncio.Event()
    for number in (1, 2, 3):
        await wake_or_sleep(VirtualClock(), news, 1_000)
        assert (_now(), news.is_set()) == (number, False)


@virtual
async def test_who_stops_waiting_leaves_no_deadline_behind() -> None:
    news = asyncio.Event()
    waiting = asyncio.create_task(wake_or_sleep(VirtualClock(), news, 1_000))
    await asyncio.sleep(0.5)
    waiting.cancel()
    await asyncio.wait((waiting,))
    await asyncio.sleep(1)
    assert not news.is_set()


# --- jobs -------------------------------------------------------------------------------------------------------------


class Script:
    """A job's steps: their results or errors, the last one repeated; `at`: when each began."""

    def __init__(self, *steps: Next | Exception) -> None:
        self._steps = list(steps)
        self.at: list[float] = []

    async def __call__(self) -> Next:
        self.at.append(_now())
        step = self._steps.pop(0) if len(self._steps) > 1 else self._steps[0]
        if isinstance(step, Exception):
            raise type(step)(*step.args)
        return step


async def run_for(seconds: float, *jobs: Job) -> Jobs:
    """Run jobs for so long, and end them."""
    running = Jobs(VirtualClock(), jobs)
    task = asyncio.create_task(running.run())
    await asyncio.sleep(seconds)
    assert not task.done(), "jobs end by themselves for what is fatal alone"
    task.cancel()
    await asyncio.wait((task,))
    return running


@virtual
async def test_a_step_says_when_the_next_one_is() -> None:
    script = Script(BUSY, Wait(2_000), BUSY, Wait(100_000))
    await run_for(10, Job("a", script, Wait(1_000)))
    assert script.at == [0, 0, 2, 2]


@virtual
async def test_news_wake_a_job_that_is_idle_or_waits() -> None:
    news, script = asyncio.Event(), Script(IDLE, Wait(50_000), IDLE)
    for second in (3, 7):
        asyncio.get_running_loop().call_later(second, news.set)
    await run_for(20, Job("a", script, IDLE, news=news))
    assert script.at == [0, 3, 7]


@virtual
async def test_what_services_may_raise_is_tried_again_at_the_jobs_own_pace() -> None:
    away = CheloniaError(Kind.NETWORK, "a", "b", "gone")
    script, slow = Script(away, away, Wait(50_000)), Script(away)
    first, second = Job("a", script, Wait(1_000)), Job("b", slow, Wait(1_000), Wait(4_000))
    await run_for(10, first, second)
    assert (script.at, slow.at) == ([0, 1, 2], [0, 4, 8])
    assert (first.bugs, first.last_error) == (0, str(away))


@pytest.mark.expect_log("job failed: broken")
@virtual
async def test_a_bug_is_counted_kept_and_tried_again_ever_later_while_the_others_go_on() -> None:
    news = asyncio.Event()
    asyncio.get_running_loop().call_later(0.5, news.set)
    script, other = Script(KeyError("X")), Script(Wait(10_000))
    broken, whole = Job("broken", script, IDLE, news=news), Job("whole", other, Wait(1))
    jobs = await run_for(3_600, broken, whole)
    assert script.at[:8] == [0, 1, 3, 7, 15, 31, 63, 123], "no news hasten it"
    assert len(other.at) == 361
    view, well = jobs.views("librarian")
    assert (view.state, view.last_error, view.bugs) == (FAILING, "KeyError('X')", len(script.at))
    assert (well.state, well.last_error, well.bugs) == ("waiting", "", 0)


@pytest.mark.expect_log("job failed: a")
@virtual
async def test_a_job_that_works_again_has_forgotten_its_pauses_and_keeps_its_last_error() -> None:
    script = Script(KeyError("X"), KeyError("Y"), Wait(1_000), KeyError("Z"), Wait(500_000))
    job = Job("a", script, Wait(1))
    await run_for(100, job)
    assert script.at == [0, 1, 3, 4, 5]
    assert (job.state, job.last_error, job.bugs) == ("waiting", "KeyError('Z')", 3)


@virtual
async def test_a_job_that_is_held_back_takes_no_step_and_says_why() -> None:
    script = Script(Wait(1_000))
    job = Job("a", script, Wait(2_000), held=lambda: "another leads" if _now() < 5 else "", needs_lease=True)
    jobs = await run_for(5, job)
    (view,) = jobs.views("librarian")
    assert (script.at, view.state, view.why, view.needs_lease) == ([], "held", "another leads", True)


@virtual
async def test_a_job_that_is_dropped_ends_in_the_middle_of_its_step_and_the_others_go_on() -> None:
    ended = list[str]()

    async def endless() -> Next:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("dropped")
        return BUSY

    script, dropped = Script(Wait(1_000)), Job("a", endless, Wait(1))
    jobs = Jobs(VirtualClock(), [dropped, Job("b", script, Wait(1))])
    task = asyncio.create_task(jobs.run())
    await asyncio.sleep(1.5)
    jobs.drop(dropped)
    await asyncio.sleep(2)
    assert ended == ["dropped"]
    assert [job.name for job in jobs] == ["b"]
    assert len(script.at) == 4
    jobs.add(Job("a", Script(Wait(1)), Wait(1)))
    task.cancel()
    await asyncio.wait((task,))


@virtual
async def test_an_error_that_is_fatal_ends_all_and_is_raised_as_it_is() -> None:
    end = CheloniaError(Kind.BAD_CONFIG, "open store", "x", "another's")
    jobs = Jobs(VirtualClock(), [Job("a", Script(Wait(1_000)), Wait(1))])
    task = asyncio.create_task(jobs.run())
    await asyncio.sleep(3)
    jobs.add(Job("b", Script(end), Wait(1), fatal=(Kind.BAD_CONFIG,)))
    await asyncio.wait((task,))
    assert str(task.exception()) == str(end)


@given(st.lists(st.booleans(), max_size=40), st.integers(0, 5_000), st.integers(0, 60_000))
def test_pauses_double_to_their_limit_and_begin_anew_after_a_success(
    outcomes: Sequence[bool], first: int, most: int
) -> None:
    backoff, row = Backoff(first, most), 0
    for worked in outcomes:
        if worked:
            backoff.worked()
            row = 0
        else:
            assert backoff.failed() == min(first << row, most)
            row += 1
