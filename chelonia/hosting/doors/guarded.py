"""The node's side of the guard that cuts clients' connections when this process stands still (`connection_guard.py`).

It keeps a duplicate of each connection: a number always means the same one, and a new guard gets them all. A connection
that ends here ends for the client, whatever the guard does. It never waits for the guard: messages that its queue does
not take go with the next sign of life. Without a guard the node serves on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

from chelonia.core.timing.freezes import SIGNS, sign_ms
from chelonia.core.timing.pacing import Backoff
from chelonia.hosting.doors.connection_guard import BEAT, FORGET, HOLD, message

log = logging.getLogger("chelonia.guard")

START: Final = (
    "import sys; sys.path.append(sys.argv[1]); from chelonia.hosting.doors.connection_guard import main; main()"
)
"""The guard's program, which runs without the packages that are installed beside Chelonia."""
PAUSE_MS: Final = 500
PAUSE_MAX_MS: Final = 60_000
STEADY_MS: Final = 10_000
"""A guard that lived this long is started again after the shortest pause."""
DEAF_SIGNS: Final = 2 * SIGNS
"""Signs of life in a row that a guard's queue did not take, after which another guard takes its place."""


@dataclass(frozen=True, slots=True)
class GuardParts:
    """Parts of a guard. `limit_ms`: longest silence of the event loop, read at each sign of life. `cut`: called with
    the number of cut connections. `node`, `log_format`: of the guard's log lines."""

    limit_ms: Callable[[], int]
    cut: Callable[[int], None] = lambda number: None
    node: str = "node"
    log_format: str = "text"


class Guarded:
    """The connections that are cut when this process stands still; `run` keeps their guard."""

    def __init__(self, parts: GuardParts) -> None:
        self._parts = parts
        self._numbers = count(1)
        self._open: dict[int, socket.socket] = {}
        self._held: set[int] = set()
        self._due: dict[int, None] = {}
        self._channel: socket.socket | None = None
        self._missed = 0
        self._served_ms = 0
        self.pid = 0

    def hold(self, sock: socket.socket | None) -> int:
        """Guard a connection, or a listening socket; return its number, 0 when it cannot be guarded."""
        if sock is None:
            return 0
        try:
            descriptor = os.dup(sock.fileno())
        except OSError as error:
            log.info("a connection is not guarded error=%s", error)
            return 0
        number = next(self._numbers)
        self._open[number] = socket.socket(sock.family, sock.type, sock.proto, fileno=descriptor)
        self._due[number] = None
        self._send_due()
        return number

    def release(self, number: int, *, end: bool = True) -> None:
        """Guard a connection no more, as this process has closed it; with `end` it ends for the client. 0 is none."""
        own = self._open.pop(number, None)
        if own is None:
            return
        if number in self._held:
            self._due[number] = None
            self._send_due()
        else:
            self._due.pop(number, None)
        with contextlib.suppress(OSError):  # the client has gone already
            if end:
                own.shutdown(socket.SHUT_RDWR)
        own.close()

    def served(self, now_ms: int) -> None:
        """Note that something was served: the loop is alive, however many requests one turn serves."""
        if self._channel is not None and now_ms - self._served_ms >= sign_ms(self._parts.limit_ms()):
            self._served_ms = now_ms
            self._sign()

    async def run(self) -> None:
        """Keep a guard until cancelled. One that ends is started again, less and less often when it ends soon."""
        loop = asyncio.get_running_loop()
        backoff, last_reason = Backoff(PAUSE_MS, PAUSE_MAX_MS), ""
        while True:
            started = loop.time()
            try:
                reason = await self._once()
            except Exception as error:  # whatever it is: the node serves without a guard
                reason = f"it could not be started: {error!r}"
            if (loop.time() - started) * 1000 >= STEADY_MS:
                backoff.worked()
                last_reason = ""
            pause_ms = backoff.failed()
            if reason != last_reason:
                log.warning(
                    "nothing cuts clients' connections should this process stand still: the guard has gone, %s; "
                    "it is tried again in %d ms, and then less and less often", reason, pause_ms,
                )  # fmt: skip
            last_reason = reason
            await asyncio.sleep(pause_ms / 1000)

    async def _once(self) -> str:
        """Run one guard to its end; return the reason of that."""
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        near.setblocking(False)
        root = str(Path(__file__).parents[3])
        args = (root, self._parts.log_format, self._parts.node)
        with near:
            with far:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-I", "-S", "-c", START, *args, stdin=far.fileno(), start_new_session=True
                )
            try:
                return await self._watch(process, near)
            finally:
                self._channel, self.pid = None, 0
                asyncio.get_running_loop().remove_reader(near.fileno())
                near.close()
                if process.returncode is None:
                    with contextlib.suppress(ProcessLookupError):
                        # Not by the process object: it would look for the end itself, and the watcher would miss it.
                        os.kill(process.pid, signal.SIGKILL)
                await process.wait()

    async def _watch(self, process: asyncio.subprocess.Process, channel: socket.socket) -> str:
        self._held, self._due, self._missed = set(), dict.fromkeys(self._open), 0
        self._channel, self.pid = channel, process.pid
        asyncio.get_running_loop().add_reader(channel.fileno(), self._receive, channel)
        ended = asyncio.ensure_future(process.wait())
        try:
            while not ended.done():
                self._sign()
                if self._missed >= DEAF_SIGNS:
                    return "it took nothing in"
                await asyncio.wait((ended,), timeout=sign_ms(self._parts.limit_ms()) / 1000)
            return f"it ended with {ended.result()}"
        finally:
            ended.cancel()

    def _sign(self) -> None:
        """Send a sign of life, and messages that the guard's queue did not take before."""
        sent = self._send(message(BEAT, self._parts.limit_ms()))
        self._missed = 0 if sent else self._missed + 1
        self._send_due()

    def _send_due(self) -> None:
        """Send the guard new and ended connections, as far as its queue takes them."""
        if self._channel is None:
            self._due.clear()
            return
        while self._due:
            number = next(iter(self._due))
            own = self._open.get(number)
            if own is not None and number not in self._held:
                if not self._send(message(HOLD, number), own.fileno()):
                    return
                self._held.add(number)
            elif own is None and number in self._held:
                if not self._send(message(FORGET, number)):
                    return
                self._held.discard(number)
            del self._due[number]

    def _send(self, data: bytes, *descriptors: int) -> bool:
        """Send without waiting; return whether the queue took it. `run` notices a guard that has gone."""
        assert self._channel is not None
        try:
            if descriptors:
                socket.send_fds(self._channel, [data], list(descriptors))
            else:
                self._channel.send(data)
        except OSError:
            return False
        return True

    def _receive(self, channel: socket.socket) -> None:
        try:
            data = channel.recv(8)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(channel.fileno())
            return
        self._parts.cut(int.from_bytes(data, "big"))
