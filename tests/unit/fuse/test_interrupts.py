"""A process with a signal to end stops waiting for a mount."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from chelonia_fuse import interrupts
from chelonia_fuse.interrupts import is_to_end
from tests.unit.fuse.mounts import Trial
from tests.unit.fuse.test_filesystem import bound

TOLD = "SigQ:\t1/9\nSigPnd:\t{}\nShdPnd:\t{}\nSigBlk:\t{}\nSigIgn:\t0000000000000000\n"
NONE, INT, WINCH, KILL = "0000000000000000", "0000000000000002", "0000000008000000", "0000000000000100"


@pytest.fixture
def ending() -> Iterator[int]:
    """A process with a pending signal to end."""
    with subprocess.Popen(["sleep", "600"]) as process:
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        process.send_signal(signal.SIGTERM)
        yield process.pid
        process.kill()


def test_a_signal_that_ends_a_program_counts_once_it_was_sent_and_is_not_blocked() -> None:
    for sent, shared, blocked, expected in (
        (NONE, INT, NONE, True), (KILL, NONE, INT, True), (NONE, WINCH, NONE, False), (NONE, INT, INT, False),
    ):  # fmt: skip
        assert is_to_end(TOLD.format(sent, shared, blocked)) is expected
    assert not is_to_end(Path("/proc/self/status").read_text())


async def test_a_request_of_a_program_that_is_to_end_is_given_up_and_others_go_on(
    mount: Trial, ending: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyfuse3, binding = pytest.importorskip("pyfuse3"), bound(mount)
    monkeypatch.setattr(interrupts, "LONG_S", 0.0)
    hers, his = [binding._opened(await mount.open(name, os.O_RDWR | os.O_CREAT)).fh for name in ("hers", "his")]
    binding._pids.update({hers: os.getpid(), his: ending})
    late = mount.network.late["apply"] = asyncio.Event()
    for fh in (hers, his):
        await binding.write(fh, 0, b"bytes")

    async def given_up() -> int:
        """How often its task, which goes on to other requests, is cancelled."""
        with pytest.raises(pyfuse3.FUSEError) as caught:
            await binding.flush(his)
        assert caught.value.errno == errno.EINTR
        task = asyncio.current_task()
        return -1 if task is None else task.cancelling()

    going_on, ended = asyncio.create_task(binding.flush(hers)), asyncio.create_task(given_up())
    await asyncio.sleep(0)
    binding.requests.look(float("inf"))
    assert await ended == 0
    late.set()
    await going_on
    await binding.release(his)  # its bytes go to the cluster all the same
    assert not mount.committer.waiting
    assert (await mount.find("his")).attributes.size == 5
    assert not binding.requests._since
    assert not binding.requests._given_up


async def test_what_is_closed_for_good_is_not_given_up(mount: Trial, ending: int) -> None:
    binding = bound(mount)
    fh = binding._opened(await mount.open("f", os.O_RDWR | os.O_CREAT)).fh
    binding._pids[fh] = ending
    await binding.write(fh, 0, b"bytes")
    late = mount.network.late["apply"] = asyncio.Event()
    released = asyncio.create_task(binding.release(fh))
    await asyncio.sleep(0)
    binding.requests.look(float("inf"))
    late.set()
    await released
    assert (await mount.find("f")).attributes.size == 5
