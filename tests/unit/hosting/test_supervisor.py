"""Child processes: started again when they die, left dead on request, stopped in time, never left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from chelonia.hosting.supervisor import ChildProcess, Program, stop_all
from tests.support.polling import poll, poll_async


def program(tmp_path: Path, code: str) -> Program:
    return Program("child", (sys.executable, "-c", code), tmp_path / "child.log")


SLEEP = "import time; print('up', flush=True); time.sleep(60)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"


async def up(child: ChildProcess, count: int = 1) -> None:
    await poll_async(lambda: child.program.log_file.read_text().count("up") >= count, tolerate=FileNotFoundError)


async def test_a_killed_child_is_started_again_with_a_new_pid(tmp_path: Path) -> None:
    changes: list[int] = []
    child = ChildProcess(program(tmp_path, SLEEP), restart=True, changed=lambda: changes.append(1))
    running = asyncio.create_task(child.run())
    await up(child)
    first = child.pid
    os.kill(first, signal.SIGKILL)
    await up(child, 2)
    assert child.pid != first
    assert len(changes) == 2
    await stop_all([child], 5000)
    await running
    assert not child.alive


@pytest.mark.expect_log("ended name=child code=-9")
async def test_a_killed_child_stays_dead_when_asked_to(tmp_path: Path) -> None:
    child = ChildProcess(program(tmp_path, SLEEP), restart=False, changed=lambda: None)
    running = asyncio.create_task(child.run())
    await up(child)
    os.kill(child.pid, signal.SIGKILL)
    await running
    assert not child.alive
    await child.stop(1000)


@pytest.mark.expect_log("killed after 50 ms")
async def test_a_child_that_does_not_end_is_killed(tmp_path: Path) -> None:
    child = ChildProcess(program(tmp_path, STUBBORN), restart=True, changed=lambda: None)
    running = asyncio.create_task(child.run())
    await up(child)
    await child.stop(50)
    await running
    assert not child.alive


async def test_a_frozen_child_is_stopped_too(tmp_path: Path) -> None:
    child = ChildProcess(program(tmp_path, SLEEP), restart=True, changed=lambda: None)
    running = asyncio.create_task(child.run())
    await up(child)
    os.kill(child.pid, signal.SIGSTOP)
    await child.stop(5000)
    await running


async def test_a_stop_while_a_child_is_being_started_ends_that_child_too(tmp_path: Path) -> None:
    child = ChildProcess(program(tmp_path, SLEEP), restart=True, changed=lambda: None)
    running = asyncio.create_task(child.run())
    await asyncio.sleep(0)  # it has begun to start the process and is not through
    await stop_all([child], 5000)
    async with asyncio.timeout(60):
        await running
    assert not child.alive


async def test_a_stop_while_a_dead_child_is_started_again_ends_the_new_one_too(tmp_path: Path) -> None:
    waiting = asyncio.Event()
    child = ChildProcess(program(tmp_path, SLEEP), restart=True, changed=lambda: None)
    starting = asyncio.create_subprocess_exec

    async def slow(*argv: object, **options: object) -> asyncio.subprocess.Process:
        if child.pid:  # the second start: whoever stops it comes in the middle of that
            waiting.set()
            await stopping.wait()
        return await starting(*argv, **options)  # type: ignore[arg-type]

    stopping = asyncio.Event()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "create_subprocess_exec", slow)
        running = asyncio.create_task(child.run())
        await up(child)
        os.kill(child.pid, signal.SIGKILL)
        async with asyncio.timeout(60):
            await waiting.wait()
        stopped = asyncio.create_task(stop_all([child], 5000))
        await asyncio.sleep(0)
        stopping.set()
        async with asyncio.timeout(60):
            await stopped
            await running
    assert not child.alive


def test_children_die_with_their_supervisor(tmp_path: Path) -> None:
    import subprocess

    code = f"""
import asyncio, pathlib, sys
from chelonia.hosting.supervisor import ChildProcess, Program
program = Program("c", (sys.executable, "-c", {SLEEP!r}), pathlib.Path({str(tmp_path / "c.log")!r}))
child = ChildProcess(program, restart=True, changed=lambda: print(child.pid, flush=True))
asyncio.run(child.run())
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        pid = int(supervisor.stdout.readline())
        supervisor.kill()
    poll(lambda: not _alive(pid), what="the child's end")


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
