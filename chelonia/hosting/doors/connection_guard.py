"""The guard: a small process beside a node, which cuts users' connections when the node stands still.

A frozen process holds its connections, its kernel acknowledges for it, and nobody outside can cut them. The guard has
a duplicate of each, from the node (`guarded.py`). When signs of life stop (`core.timing.freezes`) it shuts all down, so
that clients fail at once and can ask elsewhere. Listening sockets go too, so that the kernel refuses new connections.
The guard kills nothing: a node that goes on finds its clients gone, and listens again. The guard ends with its node.

Messages come on standard input (SOCK_SEQPACKET): a letter and a number of 8 bytes, big-endian. Each is a sign of life.
- `b`: the event loop turns; the number is the silence in ms that counts as standing still
- `h`, with a file descriptor: hold this connection under the number; `f`: forget it

The guard sends back 8 bytes: the number of connections that it has cut.
"""

from __future__ import annotations

import _socket  # not `socket`, which loads 1 MiB that a guard does not need; nor is `contextlib` used
import os
import select
import sys
import time

from chelonia.core.timing.freezes import FreezeDetector

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

LOGGER = "chelonia.guard"
BEAT, HOLD, FORGET = b"b", b"h", b"f"
MESSAGE_BYTES = 9
INT_BYTES = 4
"""Size of a file descriptor beside a message."""
CPUCLOCK_SCHED = 2
"""Low bits of a process's CPU clock: nanoseconds that it ran, all threads (linux/posix-timers.h)."""
TURN_MESSAGES = 1024
"""Messages taken in before the guard reads the clock."""
DRAIN_BYTES = 1 << 20
"""Bytes discarded in one call."""
DRAIN_BYTES_MAX = 1 << 30
"""Bytes discarded at most: more than a kernel keeps for a connection (net.ipv4.tcp_rmem)."""


def message(kind: bytes, number: int) -> bytes:
    """Return a message to the guard."""
    return kind + number.to_bytes(8, "big")


def main() -> None:
    """Guard until the node's end of standard input is closed."""
    _, _, log_format, node = sys.argv

    def log(text: str) -> None:
        sys.stderr.write(log_line(text, node, time.time_ns() // 1_000_000, as_json=log_format == "json") + "\n")
        sys.stderr.flush()

    Guard(_socket.socket(fileno=0), log, os.getppid()).run()


def log_line(text: str, node: str, at_ms: int, *, as_json: bool) -> str:
    """Return a line as `logging_setup` formats it; that module is too large to import here."""
    now = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at_ms // 1000)) + f".{at_ms % 1000:03d}Z"
    if as_json:
        import json

        return json.dumps({"time": now, "level": "INFO", "node": node, "at": LOGGER, "message": text})
    return f"time={now} level=INFO node={node} at={LOGGER} {text}"


class Guard:
    """Holds connections, and cuts them when the process `watched`, at the other end of `channel`, is silent for too
    long and does not work either."""

    def __init__(self, channel: _socket.socket, log: Callable[[str], None], watched: int) -> None:
        channel.setblocking(False)
        self._channel = channel
        self._watched = watched
        self._log = log
        self._held: dict[int, int] = {}
        self._freezes = FreezeDetector()
        self._limit_ms = 0

    def run(self) -> None:
        """Guard until the other end is closed."""
        poller = select.poll()
        poller.register(self._channel, select.POLLIN)
        while True:
            if poller.poll(self._freezes.wait_ms(_now_ms())):
                if not self._take():
                    break
            elif self._freezes.stopped(_now_ms(), worked_ns(self._watched)) and not poller.poll(0):
                self._cut()
        while self._held:
            os.close(self._held.popitem()[1])

    def _take(self) -> bool:
        """Take in the messages that have come; return whether the other end is still there."""
        for _ in range(TURN_MESSAGES):
            try:
                data, beside, _flags, _from = self._channel.recvmsg(MESSAGE_BYTES, _socket.CMSG_SPACE(INT_BYTES))
            except BlockingIOError:
                break
            except OSError:
                return False
            if not data:
                return False
            descriptors = [int.from_bytes(item[:INT_BYTES], sys.byteorder) for _level, _type, item in beside]
            self._obey(data[:1], int.from_bytes(data[1:], "big"), descriptors)
        if self._limit_ms:
            self._freezes.heard(_now_ms(), self._limit_ms)
        return True

    def _obey(self, kind: bytes, number: int, descriptors: list[int]) -> None:
        if kind == BEAT:
            self._limit_ms = number
        elif kind == HOLD and descriptors:
            self._held[number] = descriptors[0]
        elif kind == FORGET and number in self._held:
            os.close(self._held.pop(number))

    def _cut(self) -> None:
        silent_ms, count = _now_ms() - self._freezes.heard_ms, 0
        while self._held:
            connection = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM, fileno=self._held.popitem()[1])
            try:
                if connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_ACCEPTCONN):
                    # Not both ways, so that it can listen again; the node may go on by now and have closed it.
                    _attempt(connection.shutdown, _socket.SHUT_RD)
                else:
                    cut(connection)
                    count += 1
            finally:
                connection.close()
        if count:
            self._log(f"the event loop has stood still for {silent_ms} ms: {count} clients' connections were cut")
            # The send may fail: the node has ended, or has read nothing for very long.
            _attempt(self._channel.send, count.to_bytes(8, "big"))


def worked_ns(pid: int) -> int | None:
    """Return a process's CPU time, or the time of now while it runs or waits for a CPU, in nanoseconds. Two looks
    differ unless the process stands still. 0: it has ended; None: a signal has stopped it. Source: proc_pid_stat(5)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            state = stat.read().rpartition(b") ")[2][:1]
        if state == b"T":
            return None
        return time.monotonic_ns() if state == b"R" else time.clock_gettime_ns((~pid << 3) | CPUCLOCK_SCHED)
    except OSError:
        return 0


def cut(connection: _socket.socket) -> None:
    """End a TCP connection both ways, though other processes have it open.

    A client that reads gets what is on its way, then the end. One that waits for room to send would not see the end, so
    the guard discards what it has sent. The end then announces room, and a reset answers what it sends into that. A
    second drain discards what arrived before the end, so that no process reads bytes with a gap.
    """
    for end in (_socket.SHUT_RD, _socket.SHUT_WR):
        _attempt(connection.shutdown, end)
        for _ in range(DRAIN_BYTES_MAX // DRAIN_BYTES):
            if not _attempt(connection.recv, DRAIN_BYTES, _socket.MSG_DONTWAIT | _socket.MSG_TRUNC):
                break


def _attempt(call: Callable[..., Any], *words: object) -> Any:
    """Return the result of a call on a socket; None when it fails: nothing is there, or the peer has gone."""
    try:
        return call(*words)
    except OSError:
        return None


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
