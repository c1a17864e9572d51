"""The cost of an attacker without a certificate to a user: p99 of `stat`, quiet and under attack in turn, and CPU.

The attacker has 64 connections, of one kind at a time, and opens each again as soon as it is closed. It is a process of
its own on the same machine, so it takes CPU from user and server too. The user has one connection. The control is the
last attack on a sink, which refuses as the server does and reads no more: the cost of the machine itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, cast
from urllib.parse import urlsplit

import cluster
import uvloop
from experiment import Outcome, Setup
from intervals import Check, check
from machine import Cost, added, free_port, meter

from chelonia.core.ports.bartender import NameRequest
from chelonia.hosting.doors.http_server import HttpLimits
from chelonia.wire import soap
from chelonia.wire.operations.bartender import BARTENDER
from chelonia_clients.client import Client

BAR: Final = 3.0
CONNECTIONS: Final = 64
WARM_S, BLOCK_S, QUICK_BLOCK_S = 1.0, 3.0, 0.5
CONTROL: Final = "escaped text, to a sink"
BLOCKS: Final = 12
"""Of each kind: quiet and under attack in turn, a p99 of some thousand calls each."""
STAT = soap.encode_request(BARTENDER, "stat", ((NameRequest("0", "/"),),))
GARBAGE = b"<e" + b"<a b='c'>" * 7_000 + b"&&&"
ESCAPED = STAT.replace(b"<bar:LN>/", b'<bar:LN escaped="1">' + b"\\u0041" * 1_300_000)

Wire = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def run(setup: Setup) -> Outcome:
    """Every kind of attack, each in turn with quiet."""
    results: dict[str, Any] = {}
    checks: list[Check] = []
    seconds = QUICK_BLOCK_S if setup.quick else BLOCK_S
    async with cluster.dev(setup.scratch, 0) as running, running.client() as user:
        target = json.loads(running.description.read_text())["bartender"][0]["url"]
        sink = f"https://localhost:{free_port()}/"
        for kind in (*ATTACKS, CONTROL):
            quiet, attacked = [], []
            for _ in range(1 if setup.quick else BLOCKS):
                quiet.append(await _stats(running, user, seconds))
                with _attack(kind, target) if kind != CONTROL else _control(running, sink):
                    await asyncio.sleep(WARM_S)
                    attacked.append(await _stats(running, user, seconds))
                await asyncio.sleep(WARM_S)
            ratios = [_p99(a) / _p99(q) for (a, _), (q, _) in zip(attacked, quiet, strict=True)]
            results[kind] = {"quiet": _figures(quiet), "attacked": _figures(attacked), "p99_ratios": ratios}
            held = check(f"p99 of stat under {CONNECTIONS} connections: {kind} / quiet", "at most", BAR, ratios)
            checks.append(held if kind != CONTROL else dataclasses.replace(held, counts=False))
            told = ", ".join(
                f"{name}: p50 {found['p50_ms']:.2f} ms, p99 {found['p99_ms']:.2f} ms, {found['server_cores']:.2f} cores"
                for name, found in results[kind].items() if isinstance(found, dict)
            )  # fmt: skip
            setup.say(f"  {kind}: {told}")
    return Outcome(results, checks)


async def _stats(running: cluster.Running, user: Client, seconds: float) -> tuple[list[float], Cost]:
    """How long each of a user's calls took, in ms; one call after another."""
    stop, took, until = meter(running.pids), list[float](), time.perf_counter() + seconds
    while (began := time.perf_counter()) < until:
        await user.exists("/")
        took.append(1000 * (time.perf_counter() - began))
    return took, stop(len(took))


def _p99(took: list[float]) -> float:
    return sorted(took)[int(0.99 * (len(took) - 1))]


def _figures(blocks: list[tuple[list[float], Cost]]) -> dict[str, float]:
    took, cost = sorted(ms for one, _ in blocks for ms in one), added(cost for _, cost in blocks)
    return {
        "calls": len(took),
        "p50_ms": took[len(took) // 2],
        "p99_ms": _p99(took),
        "longest_ms": took[-1],
        "server_cores": cost.server_s / cost.wall_s,
        "server_cpu_s_per_1000": cost.server_cpu,
    }


@contextlib.contextmanager
def _attack(kind: str, target: str) -> Iterator[None]:
    with subprocess.Popen((sys.executable, __file__, kind, target)) as process:
        try:
            yield
        finally:
            process.send_signal(signal.SIGKILL)


@contextlib.contextmanager
def _control(running: cluster.Running, target: str) -> Iterator[None]:
    certs = running.description.parent / "certs"
    of_core = (next(certs.glob(f"core*-{each}.pem")) for each in ("cert", "key"))
    command = (sys.executable, __file__, CONTROL, *map(str, of_core), str(urlsplit(target).port))
    with subprocess.Popen(command) as process:
        try:
            with _attack("escaped text", target):
                yield
        finally:
            process.send_signal(signal.SIGKILL)


async def _sink(cert: str, key: str, port: str) -> None:
    """Refuse whatever comes first on a connection, and read nothing more of it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)

    class Refusing(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = cast("asyncio.Transport", transport)  # uvloop's over TLS is none by its class
            asyncio.get_running_loop().call_later(HttpLimits().linger_ms / 1000, transport.abort)

        def data_received(self, data: bytes) -> None:
            self.transport.pause_reading()
            self.transport.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")

    listening = await asyncio.get_running_loop().create_server(Refusing, "127.0.0.1", int(port), ssl=context)
    await listening.serve_forever()


# --- the attacker ---


async def _idle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> None:
    del writer, path
    await reader.read(-1)


async def _half_sent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> None:
    writer.write(_head(path, 1_000_000) + b" " * 70_000)
    await reader.read(-1)


async def _slow_headers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> None:
    writer.write(f"POST {path} HTTP/1.1\r\nHost: a\r\n".encode())
    while not reader.at_eof():
        writer.write(b"X: y\r\n")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.2)


async def _handshakes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> None:
    del reader, writer, path


def _sending(body: bytes) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter, str], Awaitable[None]]:
    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> None:
        while not reader.at_eof():
            writer.write(_head(path, len(body)) + body)
            await writer.drain()
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(int(length.partition(b":")[2]))

    return send


def _head(path: str, length: int) -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: text/xml\r\nContent-Length: {length}\r\n\r\n".encode()


ATTACKS = {
    "idle": _idle,
    "half-sent bodies": _half_sent,
    "slow headers": _slow_headers,
    "handshakes only": _handshakes,
    "garbage XML": _sending(GARBAGE),
    "escaped text": _sending(ESCAPED),
}


async def _attacker(kind: str, target: str) -> None:
    parts = urlsplit(target)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    async def one() -> None:
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, StopIteration):
                reader, writer = await asyncio.open_connection("127.0.0.1", parts.port, ssl=context)
                try:
                    await ATTACKS[kind](reader, writer, parts.path)
                finally:
                    writer.transport.abort()

    await asyncio.gather(*(one() for _ in range(CONNECTIONS)))


if __name__ == "__main__":
    if sys.argv[1] == CONTROL:
        uvloop.run(_sink(*sys.argv[2:]))
    else:
        asyncio.run(_attacker(*sys.argv[1:]))
