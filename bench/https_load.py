"""HTTPS clients that send one request after another, in a process of its own: as little work a request as possible.

Usage: https_load.py JSON. Keys: `host`, `port`, `requests` (whole ones, taken in turn), `connections`, `seconds`,
`addresses` (of loopback, the clients' own) and `cert` (PEM file, or "").

Prints JSON: requests, bytes, wall_s, cpu_s, p50_ms, p99_ms, and how many answers each status had. A connection that
ended early counts as status 000.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import time
from collections import Counter
from itertools import cycle
from typing import Any, cast

import uvloop

AT_ONCE = 8
"""Handshakes under way."""
PATIENCE_S = 10.0
LAST_CHUNK = b"0\r\n\r\n"


class _Load:
    """State that all clients share."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.requests = cycle([each.encode() for each in told["requests"]])
        self.seconds = float(told["seconds"])
        self.until = 0.0
        self.took: list[float] = []
        self.bytes = 0
        self.statuses: Counter[str] = Counter()
        self.waiting: list[_Client] = []


class _Client(asyncio.Protocol):
    """A request, its answer, the next."""

    def __init__(self, load: _Load, done: asyncio.Future[None]) -> None:
        self._load, self._done = load, done
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._left, self._tail, self._asked = 0, b"", time.perf_counter()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(next(self._load.requests))  # a server may not wait long for a stranger's first request

    def ask(self) -> None:
        """Send the next request, or end."""
        assert self._transport is not None
        self._asked = time.perf_counter()
        if self._asked < self._load.until:
            self._transport.write(next(self._load.requests))
        else:
            self._done.cancel()
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._load.bytes += len(data)
        if not self._left:
            self._buffer += data
            head, found, data = self._buffer.partition(b"\r\n\r\n")
            if not found:
                return
            self._load.statuses[head[9:12].decode()] += 1
            length = head.lower().partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0]
            self._left = int(length) if length else -1
            self._buffer = self._tail = b""
        if self._left < 0:
            self._tail = (self._tail + data)[-len(LAST_CHUNK) :]
            whole = self._tail == LAST_CHUNK
        else:
            self._left -= len(data)
            whole = not self._left
        if whole:
            self._left = 0
            if not self._load.until:
                self._load.waiting.append(self)
                return
            self._load.took.append(time.perf_counter() - self._asked)
            self.ask()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._load.statuses["000"] += 1
            self._done.cancel()


async def run(told: dict[str, Any]) -> dict[str, Any]:
    """Open all connections, each with a first request, then let all send for so long."""
    load, loop, turns = _Load(told), asyncio.get_running_loop(), asyncio.Semaphore(AT_ONCE)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if told["cert"]:
        context.load_cert_chain(told["cert"])

    async def opened(number: int) -> tuple[_Client, asyncio.Future[None]]:
        done = loop.create_future()
        source = (f"127.0.1.{1 + number % told['addresses']}", 0)
        async with turns:
            _, client = await loop.create_connection(
                lambda: _Client(load, done), told["host"], told["port"], ssl=context, local_addr=source
            )
        return client, done

    clients = await asyncio.gather(*map(opened, range(told["connections"])))
    began, cpu = time.perf_counter(), time.process_time()
    load.until = began + load.seconds
    load.statuses = Counter({"000": load.statuses["000"]})
    print("open", flush=True)
    for client in load.waiting:
        client.ask()
    _, unanswered = await asyncio.wait([done for _, done in clients], timeout=load.seconds + PATIENCE_S)
    load.statuses["000"] += len(unanswered)
    wall_s, took = time.perf_counter() - began, sorted(load.took)
    at = [1000 * took[int(len(took) * share)] for share in (0.5, 0.99)] if took else [0.0, 0.0]
    return {
        "requests": len(took), "bytes": load.bytes, "wall_s": wall_s, "cpu_s": time.process_time() - cpu,
        "p50_ms": at[0], "p99_ms": at[1], "statuses": dict(load.statuses),
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(uvloop.run(run(json.loads(sys.argv[1])))))
