"""Notifies systemd that this process still runs, so that systemd kills a frozen one and starts it again.

`WatchdogSec=` of the unit says how soon, from the first sign on: a start may take longer. Until then the guard of a
Shepherd (`connection_guard.py`) cuts off its clients. Without `NOTIFY_SOCKET` in the environment nothing is sent.
Source: sd_notify(3), sd_watchdog_enabled(3).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

SIGNS: Final = 3
"""Signs of life within `WatchdogSec=`: one may come late."""
UNWATCHED_S: Final = 10.0
"""Pause between two signs without a watchdog: `Type=notify` waits for the first that arrives."""


def pause_s(environ: Mapping[str, str], pid: int) -> float:
    """Return the seconds between two signs of life; 0 when no watchdog waits for this process."""
    wanted, addressee = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not wanted.isdigit() or not environ.get("NOTIFY_SOCKET") or addressee not in ("", str(pid)):
        return 0.0
    return int(wanted) / 1e6 / SIGNS


@asynccontextmanager
async def watched(environ: Mapping[str, str] | None = None) -> AsyncIterator[None]:
    """Send signs of life to systemd while the body runs."""
    around = os.environ if environ is None else environ
    address = around.get("NOTIFY_SOCKET", "")
    if not address:
        yield
        return
    pause = pause_s(around, os.getpid()) or UNWATCHED_S
    task = asyncio.create_task(_give_signs("\0" + address[1:] if address.startswith("@") else address, pause))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _give_signs(address: str, pause: float) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as sender:
        while True:
            with contextlib.suppress(OSError):  # systemd is busy: the next sign will do
                sender.sendto(b"READY=1\nWATCHDOG=1", address)
            await asyncio.sleep(pause)
