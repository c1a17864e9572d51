"""Three real replicas lose a master with data that it alone had: the history is linearizable, and every session is
kept.

Replicas with a mistake must be caught: a check that cannot fail proves nothing.
"""

import asyncio
import itertools
import signal
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.history import porcupine, records, run, session
from tests.history.faults import Watch
from tests.history.porcupine import Judgement
from tests.history.recorder import Plan
from tests.history.records import Fault, History, Level
from tests.history.run import Target
from tests.support.ahash_daemons import AHashDaemons, Launch

pytestmark = pytest.mark.slow

PLAN = partial(Plan, clients=6, keys=6, patience_ms=(10_000,))
"""Patient clients: each that gives up leaves an operation open, and many of those cannot be decided in time."""
ALONE_S = 0.25
"""How long a master is left alone: less than its lease, in which it may answer by its own clock."""

LAG_S, LAGS = 0.25, 6
"""How long, and how often, a follower is frozen: less than a lease, so that it goes on answering from its copy."""


@asynccontextmanager
async def group_of(root: Path, mistake: str = "") -> AsyncIterator[tuple[AHashDaemons, Launch]]:
    """A settled group, and how its daemons are started."""
    careless = Launch(program=(sys.executable, "-P", "-m", "tests.history.careless"), environ={"CARELESS": mistake})
    how, group = careless if mistake else Launch(), AHashDaemons(root)
    try:
        group.found(1, (1, 2, 3))
        for replica in (2, 3):
            group.configure(replica, (1, 2, 3))
        for replica in (1, 2, 3):
            group.launch(replica, how)
        group.replicas = (1, 2, 3)
        await group.settled()
        yield group, how
    finally:
        await group.close()


Strike = Callable[[AHashDaemons, Launch, list[Fault]], Awaitable[None]]


async def leave_alone(group: AHashDaemons, how: Launch, done: list[Fault]) -> None:
    """Cut a master off from the others, then kill it, until they have a master of their own."""
    begin = time.monotonic_ns()
    master = await group.settled()
    others = [replica for replica in group.replicas if replica != master]
    for replica in others:
        group.kill(replica)
    await asyncio.sleep(ALONE_S)
    group.kill(master)
    for replica in others:
        group.launch(replica, how)
    await group.master(60)
    done.append(Fault(f"replica {master} was master alone, and died", begin, time.monotonic_ns()))
    group.launch(master, how)
    await group.settled()


async def make_lag(group: AHashDaemons, how: Launch, done: list[Fault]) -> None:
    """Freeze followers for a moment: awake, they have requests to answer and commits to apply."""
    del how
    begin = time.monotonic_ns()
    master = await group.settled()
    others = [replica for replica in group.replicas if replica != master]
    for replica, _ in itertools.product(others, range(LAGS)):
        group.kill(replica, signal.SIGSTOP)
        await asyncio.sleep(LAG_S)
        group.kill(replica, signal.SIGCONT)
        await asyncio.sleep(LAG_S)
    done.append(Fault("copies lagged", begin, time.monotonic_ns()))


async def recorded(group: AHashDaemons, how: Launch, path: Path, strike: Strike, strikes: int) -> History:
    """Record clients during so many strikes, and keep the history in `path` too."""

    async def faults(watch: Watch, done: list[Fault]) -> None:
        for _ in range(strikes):
            await asyncio.sleep(1)
            await strike(group, how, done)

    target = Target(tuple(group.url(replica) for replica in group.replicas), group.files("librarian"), faults)
    history = await run.record(target, PLAN(uuid.uuid4().hex[:12]), 2.0)
    records.write(path, history)
    return history


async def test_a_master_that_dies_with_what_it_alone_had_breaks_no_promise(checker: Path, tmp_path: Path) -> None:
    async with group_of(tmp_path) as (group, how):
        history = await recorded(group, how, tmp_path / "h.jsonl", leave_alone, 1)
    code, words = run.judge(checker, tmp_path / "h.jsonl", faults=True)
    assert code == 0, words
    assert any(operation.level is Level.LOCAL for operation in history.operations), "nobody read locally"


async def test_acknowledging_before_the_watermark_is_caught(checker: Path, tmp_path: Path) -> None:
    """A master's own acknowledgements go with it. On a busy machine it may have made none, so the test repeats."""
    async with group_of(tmp_path, "early") as (group, how):
        for turn in range(6):
            await recorded(group, how, tmp_path / f"{turn}.jsonl", leave_alone, 1)
            verdict = await asyncio.to_thread(porcupine.check, checker, tmp_path / f"{turn}.jsonl")
            if verdict.judgement is Judgement.NOT_LINEARIZABLE:
                return
    pytest.fail(f"not caught: {verdict.words}")


@pytest.mark.long
async def test_reads_of_copies_that_lag_keep_every_session(tmp_path: Path) -> None:
    async with group_of(tmp_path) as (group, how):
        history = await recorded(group, how, tmp_path / "h.jsonl", make_lag, 1)
    assert sum(operation.level is Level.LOCAL for operation in history.operations) > 20
    assert session.check(history) == []


@pytest.mark.long
async def test_reading_a_copy_that_is_behind_is_caught_by_the_sessions(tmp_path: Path) -> None:
    async with group_of(tmp_path, "behind") as (group, how):
        for turn in range(4):
            if session.check(await recorded(group, how, tmp_path / f"{turn}.jsonl", make_lag, 1)):
                return
    pytest.fail("local reads went backwards, or missed a client's own writes, and nobody noticed")
