"""The plain door beside nginx and Apache, as Debian has them, on the same machine over TLS, in turn.

Small GET: 100 files of 1 KiB, 16 clients. PROPFIND: one client, depth 1 of many empty files. Large: GET and PUT by
curl, sent on to a Shepherd, beside `chelonia get` and `put`. The door itself sends the file of several blobs that `put`
made. Many: 1 000 clients at once, from 20 addresses of loopback with a share each, because each shows no certificate.
CPU is the servers'; each is one process, the large streams' four.

The door asks for its user's certificate, decides his rights and writes an audit line; its peers let everybody in.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import cluster
import web_peers
from experiment import Outcome, Setup
from intervals import Check, check, median_interval
from machine import cpu_s, load

from chelonia.core.names import parse_ln
from chelonia.core.ports.files import Failure, Inline, Write
from chelonia_clients.client import Client, new_call

SMALL, SIZE, LISTED = 100, 1024, "listed"
AT_ONCE, MANY, ADDRESSES = 16, 1000, 20
BATCH = 100
MIB, GIB = 1024**2, 1024**3
LOAD = Path(__file__).with_name("https_load.py")


@dataclass(frozen=True, slots=True)
class _Server:
    """One that serves: its port, its processes, and the certificate that its clients show ("": none)."""

    port: int
    pids: Callable[[], Sequence[int]]
    cert: str = ""

    def get(self) -> list[str]:
        return [f"GET /small/f{n:06d} HTTP/1.1\r\nHost: localhost:{self.port}\r\n\r\n" for n in range(SMALL)]

    def propfind(self) -> list[str]:
        """The request for a large collection."""
        head = f"PROPFIND /{LISTED}/ HTTP/1.1\r\nHost: localhost:{self.port}\r\nDepth: 1\r\nContent-Length: 0\r\n\r\n"
        return [head]


@dataclass(frozen=True, slots=True)
class _Told:
    """One slice: requests a second, CPU seconds of the servers per 1000, ms of the median and of the 99th
    percentile."""

    per_s: float
    cpu: float
    p50_ms: float
    p99_ms: float
    refused: int
    load: float


async def run(setup: Setup) -> Outcome:
    """Fill all three alike, then measure in turn."""
    if absent := web_peers.missing():
        return Outcome({}, skipped=[f"https: not installed: {absent} (nginx-light, dav-ext, apache2-bin)"])
    entries = 1_000 if setup.quick else 10_000
    size = int(os.environ.get("CHELONIA_BENCH_STREAM_MIB", "64" if setup.quick else "1024")) * MIB
    async with cluster.dev(setup.scratch, 3, steady=True) as running, running.administrator() as asking:
        certs = running.description.parent / "certs"
        own = json.loads(running.description.read_text())
        port, pid = urlsplit(own["files"][0]).port, own["bartender"][0]["pid"]
        assert port is not None
        door = _Server(port, lambda: [pid], str(certs / "user-proxy.pem"))
        async with running.client() as client:
            await client.make_collection("/small")
            await client.make_collection(f"/{LISTED}")
            await _fill(client, "/small", SMALL, b"x" * SIZE)
            await _fill(client, f"/{LISTED}", entries, b"")
            link = (await client.share("/small", 3_600_000)).link
        with (
            tempfile.TemporaryDirectory(dir=setup.scratch, prefix="peers-") as place,
            tempfile.TemporaryDirectory(dir="/dev/shm", prefix="chelonia-bench-") as near,
            web_peers.peers(Path(place), certs / "core-cert.pem", certs / "core-key.pem") as others,
        ):
            servers = {"door": door}
            for name, peer in others.items():
                _write(peer.root, entries)
                servers[name] = _Server(peer.port, peer.pids)
            told = await asyncio.to_thread(_blocks, setup, servers, entries)
            many = await asyncio.to_thread(_many, servers, link)
            loop = asyncio.get_running_loop()

            def settled() -> None:
                asyncio.run_coroutine_threadsafe(cluster.all_copied(asking), loop).result()

            streams = await asyncio.to_thread(_streams, setup, running, Path(near), size, settled)
    return _outcome(setup, told, many, streams, {"entries": entries, "stream_bytes": size})


async def _fill(client: Client, collection: str, count: int, data: bytes) -> None:
    assert client.files is not None
    for start in range(0, count, BATCH):
        numbers = range(start, min(start + BATCH, count))
        changes = tuple(Write(parse_ln(f"{collection}/f{n:06d}"), inline=Inline(data, 3)) for n in numbers)
        for answer in await client.files.apply(new_call(), changes):
            if isinstance(answer, Failure):
                raise answer.error("fill")


def _write(root: Path, entries: int) -> None:
    for name, count, data in (("small", SMALL, b"x" * SIZE), (LISTED, entries, b"")):
        (root / name).mkdir()
        for number in range(count):
            (root / name / f"f{number:06d}").write_bytes(data)


def _blocks(setup: Setup, servers: Mapping[str, _Server], entries: int) -> dict[str, list[_Told]]:
    told: dict[str, list[_Told]] = {}
    for block in range(setup.blocks):
        for name in list(servers)[:: 1 if block % 2 == 0 else -1]:
            server = servers[name]
            told.setdefault(f"get {name}", []).append(_loaded(server, server.get(), AT_ONCE, 2.0))
            told.setdefault(f"propfind {name}", []).append(_loaded(server, server.propfind(), 1, 2.0))
        setup.say(f"  block {block + 1}: " + ", ".join(
            f"{name} {each[-1].per_s:.0f}/s {each[-1].cpu:.2f}" for name, each in told.items()
        ) + f"; load {load()[0]}")  # fmt: skip
    return told


def _loaded(
    server: _Server, requests: list[str], connections: int, seconds: float, addresses: int = 1, cert: str | None = None
) -> _Told:
    """One slice against one server."""
    asked = {
        "host": "127.0.0.1", "port": server.port, "requests": requests, "connections": connections,
        "seconds": seconds, "addresses": addresses, "cert": server.cert if cert is None else cert,
    }  # fmt: skip
    process = subprocess.Popen([sys.executable, str(LOAD), json.dumps(asked)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    if process.stdout.readline().strip() != "open":
        raise SystemExit(f"the clients of port {server.port} could not connect")
    pids = server.pids()
    before = cpu_s(pids)
    told = json.loads(process.stdout.read())
    used = cpu_s(pids) - before
    process.wait()
    good = sum(count for status, count in told["statuses"].items() if status in ("200", "207"))
    if not good:
        raise SystemExit(f"port {server.port} answers {told['statuses']}")
    refused = sum(told["statuses"].values()) - good
    return _Told(good / told["wall_s"], 1000 * used / good, told["p50_ms"], told["p99_ms"], refused, load()[0])


def _many(servers: Mapping[str, _Server], link: str) -> dict[str, _Told]:
    """All at once, without certificates: at the door by a share link."""
    path = urlsplit(link)
    head = f"GET {path.path}f000000?{path.query} HTTP/1.1\r\nHost: localhost\r\n\r\n"
    told = {"many door": _loaded(servers["door"], [head], MANY, 5.0, ADDRESSES, "")}
    told["many nginx"] = _loaded(servers["nginx"], servers["nginx"].get()[:1], MANY, 5.0, ADDRESSES)
    return told  # Apache keeps a thread for each connection that has not sent a request yet


def _streams(
    setup: Setup, running: cluster.Running, near: Path, size: int, settled: Callable[[], None]
) -> dict[str, list[float]]:
    """Seconds of whole processes: curl by the door, which sends it on, and the SDK. Each waits for the third copy of
    the last put before it begins; that wait counts for none."""
    own = json.loads(running.description.read_text())
    source, fetched, url = near / "source", near / "fetched", own["files"][0].rstrip("/")
    with source.open("wb") as file:
        for _ in range(size // MIB):
            file.write(os.urandom(MIB))
    proxy = own["user_proxy"]
    curl = ["curl", "-sfL", "--capath", own["ca_dir"], "--cert", proxy, "--key", proxy]
    chelonia = [str(Path(sys.executable).with_name("chelonia")), "--cluster", str(running.description)]
    took: dict[str, list[float]] = {}
    for block in range(min(setup.blocks, 4)):
        steps = {
            "put door": [*curl, "-T", str(source), f"{url}/door{block}?redirect"],
            "put sdk": [*chelonia, "put", "--replicas", "3", str(source), f"/sdk{block}"],
            "get door": [*curl, "-o", str(fetched), f"{url}/door{block}?redirect"],
            "get carried": [*curl, "-o", str(fetched), f"{url}/sdk{block}?proxy"],  # quick: of one blob
            "get sdk": [*chelonia, "get", "-f", f"/sdk{block}", str(fetched)],
        }
        for name, command in steps.items():
            settled()
            os.sync()
            began, used = time.perf_counter(), cpu_s(running.pids())
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            took.setdefault(name, []).append(time.perf_counter() - began)
            took.setdefault(f"{name} cpu", []).append((cpu_s(running.pids()) - used) * GIB / size)
        assert fetched.stat().st_size == size
        for name in (f"/door{block}", f"/sdk{block}"):
            subprocess.run([*chelonia, "rm", name], check=True, stdout=subprocess.DEVNULL)
        setup.say(
            f"  streams {block + 1}: " + ", ".join(f"{k} {v[-1]:.2f}" for k, v in took.items()) + f"; load {load()[0]}"
        )
    return took


def _outcome(
    setup: Setup,
    told: Mapping[str, Sequence[_Told]],
    many: Mapping[str, _Told],
    streams: Mapping[str, Sequence[float]],
    results: dict[str, Any],
) -> Outcome:
    for name, each in (*told.items(), *((name, [one]) for name, one in many.items())):
        results[name] = {
            "per_s": statistics.median(one.per_s for one in each),
            "cpu_s_per_1000": statistics.median(one.cpu for one in each),
            "p50_ms": statistics.median(one.p50_ms for one in each),
            "p99_ms": statistics.median(one.p99_ms for one in each),
            "refused": sum(one.refused for one in each),
            "load": statistics.median(one.load for one in each),
        }
        setup.say(f"  {name}: {json.dumps({key: round(value, 3) for key, value in results[name].items()})}")
    for name, took in streams.items():
        results[name] = median_interval(took).median
    checks = [
        _per_cpu("small GET, door / Apache, per CPU second", 1.0, told["get door"], told["get apache"]),
        _per_cpu("small GET, door / nginx, per CPU second", 0.5, told["get door"], told["get nginx"]),
        _per_cpu("PROPFIND, door / Apache, per CPU second", 5.0, told["propfind door"], told["propfind apache"]),
        check("1 000 clients at once, refused or broken", "at most", 0, [float(many["many door"].refused)]),
    ]
    for verb in ("put", "get"):
        ratio = [sdk / door for door, sdk in zip(streams[f"{verb} door"], streams[f"{verb} sdk"], strict=True)]
        checks.append(check(f"large {verb}, door / SDK, rate", "at least", 0.9, ratio))
    return Outcome(results, checks)


def _per_cpu(name: str, bar: float, ours: Sequence[_Told], theirs: Sequence[_Told]) -> Check:
    """Answers for a second of the server's CPU: each takes one core, whatever else runs on it."""
    return check(name, "at least", bar, [b.cpu / a.cpu for a, b in zip(ours, theirs, strict=True)])
