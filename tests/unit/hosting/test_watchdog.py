"""Watchdog messages to systemd: as often as it requests, and only when it does."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from chelonia.hosting.watchdog import pause_s, watched


@pytest.mark.parametrize(
    ("environ", "pause"),
    [
        ({}, 0.0),
        ({"WATCHDOG_USEC": "3000000"}, 0.0),
        ({"NOTIFY_SOCKET": "/s"}, 0.0),
        ({"NOTIFY_SOCKET": "/s", "WATCHDOG_USEC": "3000000"}, 1.0),
        ({"NOTIFY_SOCKET": "/s", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "7"}, 1.0),
        ({"NOTIFY_SOCKET": "/s", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "8"}, 0.0),
        ({"NOTIFY_SOCKET": "/s", "WATCHDOG_USEC": "soon"}, 0.0),
    ],
)
def test_signs_come_only_when_systemd_waits_for_this_process(environ: dict[str, str], pause: float) -> None:
    assert pause_s(environ, 7) == pause


@pytest.mark.parametrize("abstract", [False, True])
async def test_signs_come_while_the_loop_turns_and_then_no_more(tmp_path: Path, abstract: bool) -> None:
    name = f"@chelonia-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind("\0" + name[1:] if abstract else name)
        receiver.setblocking(False)
        loop = asyncio.get_running_loop()
        async with watched({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "30000"}):
            for _ in range(3):
                sign = await loop.sock_recv(receiver, 100)
                assert sign.splitlines() == [b"READY=1", b"WATCHDOG=1"], "the time for a sign begins with the first"
        late = drained(receiver)
        await asyncio.sleep(0.05)
        assert late <= 3
        assert drained(receiver) == 0


async def test_a_start_is_told_where_no_watchdog_waits(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.setblocking(False)
        async with watched({"NOTIFY_SOCKET": str(tmp_path / "notify")}):
            assert b"READY=1" in await asyncio.get_running_loop().sock_recv(receiver, 100)


def drained(receiver: socket.socket) -> int:
    """The number of messages that have come."""
    count = 0
    while True:
        try:
            receiver.recv(100)
        except BlockingIOError:
            return count
        count += 1
