"""The floor under `--only ahash`: the cost of the same bytes without an A-Hash, in as many processes of the same
Python.

A writer's request goes to a first process over mutual TLS. That process appends and syncs it in a thread and sends it
to two others, which append, sync and acknowledge it likewise. The answer goes out when the first and one other have it.
There is no B-tree, no log record, no election, and nothing is decoded. TLS, the event loop, one thread and the disk are
left. A read is answered at once. Requests that wait travel together, as in a commit of many.
"""

from __future__ import annotations

import asyncio
import os
import queue
import ssl
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import plain_copy
import uvloop
from experiment import Outcome, Setup
from slices import Sample, medians, sampled

from chelonia.hosting.config import load_config
from chelonia.hosting.setup.dev import DevCluster, DevOptions

AT_ONCE = (1, 8, 64)
REQUEST, ANSWER, ACK = b"w" + bytes(699), b"a" + bytes(119), b"k" + bytes(39)
READ, FOUND = b"r" + bytes(119), b"f" + bytes(619)
"""About the size of the A-Hash's messages for a 500-byte value. A request has the size of one writer's log records."""
SIZES = {message[0]: len(message) for message in (REQUEST, ANSWER, ACK, READ, FOUND)}
SLICE_S, QUICK_SLICE_S = 0.3, 0.1


def contexts(directory: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of a server and of a client: each shows a certificate and demands one."""
    tls = load_config(directory / "conf" / "core.toml").tls
    paths = str(tls.cert), str(tls.key), str(tls.ca_dir)
    return plain_copy.context(ssl.Purpose.CLIENT_AUTH, *paths), plain_copy.context(ssl.Purpose.SERVER_AUTH, *paths)


class Peer(asyncio.Protocol):
    """A connection that hands on each message as it comes; the first byte of a message gives its length."""

    def __init__(self, took: Callable[[Peer, list[bytes]], None]) -> None:
        self._took = took
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.write = transport.write  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        data, at, found = self._rest + data, 0, []
        while at < len(data) and at + SIZES[data[at]] <= len(data):
            found.append(data[at : at + SIZES[data[at]]])
            at += len(found[-1])
        self._rest = data[at:]
        if found:
            self._took(self, found)


class Disk:
    """Appends and syncs in a thread of its own, and notifies the event loop."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        self._work: queue.SimpleQueue[tuple[bytes, Callable[[], None]]] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._run, daemon=True).start()

    def append(self, data: bytes, done: Callable[[], None]) -> None:
        self._work.put((data, done))

    def _run(self) -> None:
        while True:
            data, done = self._work.get()
            os.write(self._file, data)
            os.fdatasync(self._file)
            self._loop.call_soon_threadsafe(done)


class First:
    """The first process: takes requests, which `others` have to hold too."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.others: list[Peer] = []
        self._waiting: deque[Peer] = deque()
        self._batch: list[Peer] = []
        self._sent, self._here = 0, False
        self._there: dict[Peer, int] = {}

    def took(self, peer: Peer, messages: list[bytes]) -> None:
        reads = sum(message[0] == READ[0] for message in messages)
        if reads:
            peer.write(FOUND * reads)
        self._waiting.extend([peer] * (len(messages) - reads))
        self._begin()

    def _begin(self) -> None:
        if self._batch or not self._waiting:
            return
        self._batch, self._here = list(self._waiting), False
        self._waiting.clear()
        self._sent += len(self._batch)
        data = REQUEST * len(self._batch)
        self._disk.append(data, self._synced)
        for other in self.others:
            other.write(data)

    def acknowledged(self, peer: Peer, messages: list[bytes]) -> None:
        """Note that one of the others holds so many more requests."""
        self._there[peer] = self._there.get(peer, 0) + len(messages)
        self._answer()

    def _synced(self) -> None:
        self._here = True
        self._answer()

    def _answer(self) -> None:
        if not (self._batch and self._here and (not self.others or max(self._there.values(), default=0) >= self._sent)):
            return
        batch, self._batch = self._batch, []
        for peer in dict.fromkeys(batch):
            peer.write(ANSWER * batch.count(peer))
        self._begin()


async def serve(directory: Path, name: str, others: list[int]) -> None:
    """Serve as one process until it is ended; it prints its port first."""
    server, client = contexts(directory)
    loop, disk = asyncio.get_running_loop(), Disk(directory / name)
    first = First(disk)

    def follow(peer: Peer, messages: list[bytes]) -> None:
        disk.append(b"".join(messages), lambda: peer.write(ACK * len(messages)))

    for port in others:
        _, peer = await loop.create_connection(lambda: Peer(first.acknowledged), "127.0.0.1", port, ssl=client)
        first.others.append(peer)
    took = follow if name.startswith("other") else first.took
    listener = await loop.create_server(lambda: Peer(took), "127.0.0.1", 0, ssl=server)
    print(listener.sockets[0].getsockname()[1], flush=True)
    await loop.create_future()


async def run(setup: Setup) -> Outcome:
    """Rates and medians of both operations, alone and with two others."""
    with tempfile.TemporaryDirectory(dir=setup.scratch, prefix="floor-") as name, ExitStack() as stack:
        directory = Path(name)
        DevCluster(DevOptions(directory, 0)).prepare()

        def start(name: str, *others: int) -> tuple[int, int]:
            command = (sys.executable, __file__, str(directory), name, *map(str, others))
            process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            stack.callback(process.terminate)
            assert process.stdout is not None
            return int(process.stdout.readline()), process.pid

        ports = [start("other-1"), start("other-2")]
        alone, three = start("alone"), start("three", ports[0][0], ports[1][0])
        systems = {"alone": (alone[0], (alone[1],)), "three": (three[0], (three[1], ports[0][1], ports[1][1]))}
        return Outcome({"floor": await _measure(setup, directory, systems)})


async def _measure(setup: Setup, directory: Path, systems: dict[str, tuple[int, tuple[int, ...]]]) -> dict[str, object]:
    loop, (_, tls) = asyncio.get_running_loop(), contexts(directory)
    waiting: dict[str, deque[asyncio.Future[None]]] = {name: deque() for name in systems}
    samples: dict[tuple[str, str, int], list[Sample]] = {}
    doors = {}
    for name, (port, _) in systems.items():

        def took(peer: Peer, messages: list[bytes], name: str = name) -> None:
            for _ in messages:
                waiting[name].popleft().set_result(None)

        _, doors[name] = await loop.create_connection(lambda took=took: Peer(took), "127.0.0.1", port, ssl=tls)  # type: ignore[misc]
    for _ in range(setup.blocks):
        for name, (_, pids) in systems.items():
            for what, message in (("write", REQUEST), ("read", READ)):
                for at_once in AT_ONCE:

                    async def ask(_: str, name: str = name, message: bytes = message) -> None:
                        answer: asyncio.Future[None] = loop.create_future()
                        waiting[name].append(answer)
                        doors[name].write(message)
                        await answer

                    seconds = QUICK_SLICE_S if setup.quick else SLICE_S
                    samples.setdefault((name, what, at_once), []).append(await sampled(ask, pids, at_once, seconds))
    told = {}
    for (name, what, at_once), rows in samples.items():
        rate, p50, server, client = medians(rows).values()
        line = f"{name}, {what}, {at_once} at once"
        told[line] = [str(rate), str(p50), str(server), str(client)]
        setup.say(
            f"  {line}: {rate.median:.0f}/s, p50 {p50} ms, CPU s per 1000 {server.median:.3f} + {client.median:.3f}"
        )
    return told


if __name__ == "__main__":
    uvloop.run(serve(Path(sys.argv[1]), sys.argv[2], [int(port) for port in sys.argv[3:]]))
