"""Child processes: started again when they die, left dead on request, stopped in time, never left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from chelonia.hosting.supervisor import ChildProcess, Program, stop_all
from tests.support.polling import poll, poll_async


def program(tmp_path: Path, main: Callable[[], int]) -> Program:
    return Program("child", main, tmp_path / "child.log")


def sleeping() -> int:
    print("up", flush=True)
    time.sleep(60)
    return 0


def stubborn() -> int:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return sleeping()


async def up(child: ChildProcess, count: int = 1) -> None:
    await poll_async(lambda: child.program.log_file.read_text().count("up") >= count, tolerate=FileNotFoundError)


async def test_a_killed_child_is_started_again_with_a_new_pid(tmp_path: Path) -> None:
    changes: list[int] = []
    child = ChildProcess(program(tmp_path, sleeping), restart=True, changed=lambda: changes.append(1))
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
    child = ChildProcess(program(tmp_path, sleeping), restart=False, changed=lambda: None)
    running = asyncio.create_task(child.run())
    await up(child)
    os.kill(child.pid, signal.SIGKILL)
    await running
    assert not child.alive
    await child.stop(1000)


@pytest.mark.expect_log("killed after 50 ms")
async def test_a_child_that_does_not_end_is_killed(tmp_path: Path) -> None:
    child = ChildProcess(program(tmp_path, stubborn), restart=True, changed=lambda: None)
    running = asyncio.create_task(child.run())
    await up(child)
    await child.stop(50)
    await running
    assert not child.alive


async def test_a_frozen_child_is_stopped_too(tmp_path: Path) -> None:
    child = ChildProcess(program(tmp_path, sleeping), restart=True, changed=lambda: None)
    running = asyncio.create_task(child.run())
    await up(child)
    os.kill(child.pid, signal.SIGSTOP)
    await child.stop(5000)
    await running


async def test_a_child_that_is_stopped_at_once_ends(tmp_path: Path) -> None:
    child = ChildProcess(program(tmp_path, sleeping), restart=True, changed=lambda: None)
    running = asyncio.create_task(child.run())
    await asyncio.sleep(0)
    assert child.alive
    await stop_all([child], 60_000)
    async with asyncio.timeout(60):
        await running
    assert not child.alive


async def test_a_child_has_nothing_of_its_supervisor_but_what_was_imported(tmp_path: Path) -> None:
    """The supervisor's handler reported signals of a child to the supervisor; a child's loop found another one
    running."""
    told: list[int] = []
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, told.append, 1)

    def looking() -> int:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
        print(sorted(map(int, os.listdir("/proc/self/fd")))[:-1], os.getpgrp() == os.getpid(), flush=True)
        print(
            Path("/proc/self/comm").read_text().strip(), asyncio.run(asyncio.sleep(0, "a loop of its own")), flush=True
        )
        return 7

    with socket.socket():
        child = ChildProcess(program(tmp_path, looking), restart=False, changed=lambda: None)
        assert await child._once() == 7
    assert child.program.log_file.read_text() == "[0, 1, 2] True\nchild a loop of its own\n"
    child = ChildProcess(program(tmp_path, sleeping), restart=True, changed=lambda: None)
    running = asyncio.create_task(child.run())
    await asyncio.sleep(0)
    await child.stop(60_000)
    await running
    loop.remove_signal_handler(signal.SIGTERM)
    assert not told


@pytest.mark.expect_log("ended name=child code=1")
async def test_a_child_that_breaks_says_so_in_its_log(tmp_path: Path) -> None:
    def breaking() -> int:
        raise ValueError("it broke")

    child = ChildProcess(program(tmp_path, breaking), restart=False, changed=lambda: None)
    await child.run()
    assert child.program.log_file.read_text().endswith("ValueError: it broke\n")


def test_children_die_with_their_supervisor(tmp_path: Path) -> None:
    code = f"""
import asyncio, pathlib, sys, time
from chelonia.hosting.supervisor import ChildProcess, Program
program = Program("c", lambda: time.sleep(60), pathlib.Path({str(tmp_path / "c.log")!r}))
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
