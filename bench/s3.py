"""The S3 door beside a peer: 4 KiB objects put, got, headed, listed and deleted, one by one and in bulk; large ones.

Three Shepherds, three copies wanted, two of them durable before the answer, TLS, intervals as in production. Requests
are signed (Version 4, payload unsigned) and go over connections that are kept. Blocks alternate between the servers.
After a put, the next operation waits for the copies that its answer did not wait for; `PUT ..., with copies` counts
their CPU too.

Peers: MinIO and SeaweedFS as far as they are on PATH, and the server of CHELONIA_BENCH_S3_PEER (`peers`). The output
names those that are missing.
CHELONIA_BENCH_OBJECTS: small objects a block (by default 20 times as many as are at once, at least 200).
CHELONIA_BENCH_S3_LISTED: keys that are listed (here made as records alone, in place of uploads).
CHELONIA_BENCH_S3_MIB: the size of large objects.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import aiohttp
import cluster
import listing
from ahash_group import Doors, urls
from experiment import Outcome, Setup
from machine import Cost, load, medians, meter, resident_mib, side_by_side
from peers import S3Server, peers
from yarl import URL

from chelonia.core.ids import Dn
from chelonia.wire.s3 import sigv4

SIZE = 4096
LARGE = int(os.environ.get("CHELONIA_BENCH_S3_MIB", "64")) * 1024 * 1024
AT_ONCE, LARGE_AT_ONCE = (16, 64), 4
BLOCKS_MAX = 5
AGAIN_MAX = 8
OWN, BUCKET, LISTED = "chelonia", f"bench-s3-{os.getpid()}", f"bench-s3-listed-{os.getpid()}"
DAY = "us-east-1/s3/aws4_request"


@dataclass(slots=True)
class S3Session:
    """Signed requests to one server over kept connections."""

    server: S3Server
    http: aiohttp.ClientSession
    again: int = 0
    """Requests sent once more, because the answer was 503."""

    async def ask(self, method: str, path: str, query: str = "", body: bytes = b"", **more: str) -> bytes:
        """One request; the answer's body. An error ends the bench."""
        parts = urlsplit(self.server.url)
        stamp = time.strftime(sigv4.STAMP, time.gmtime())
        fields = {"host": parts.netloc, "x-amz-content-sha256": sigv4.UNSIGNED, "x-amz-date": stamp, **more}
        scope, signed = f"{stamp[:8]}/{DAY}", tuple(sorted(fields))
        claim = sigv4.Claim(self.server.key, scope, stamp, signed, "", sigv4.UNSIGNED)
        request = sigv4.Signable(method, path, query, tuple(fields.items()))
        digest = hashlib.sha256(sigv4.canonical_request(request, claim, path).encode()).hexdigest()
        signature = sigv4.sign(
            sigv4.signing_key(self.server.secret, scope), f"{sigv4.ALGORITHM}\n{stamp}\n{scope}\n{digest}"
        )
        fields["authorization"] = (
            f"{sigv4.ALGORITHM} Credential={self.server.key}/{scope}, SignedHeaders={';'.join(signed)}, "
            f"Signature={signature}"
        )
        url = f"{self.server.url}{path}{'?' if query else ''}{query}"
        target = URL(url, encoded=True)
        for left in range(AGAIN_MAX, -1, -1):
            # unverified: the servers are the bench's own or named by whoever runs it, and all bytes are random
            async with self.http.request(method, target, data=body or None, headers=fields, ssl=False) as answer:
                got = await answer.read()
                if answer.status < 300:
                    return got
                if answer.status != 503 or not left:
                    raise SystemExit(f"{self.server.name}: {method} {path}: {answer.status} {got[:300]!r}")
                self.again += 1
        raise AssertionError("the last try returns or raises")


Costs = dict[str, dict[str, list[Cost]]]
"""By server, then by operation."""


async def run(setup: Setup) -> Outcome:
    """Measure, in turn."""
    blocks = 1 if setup.quick else min(setup.blocks, BLOCKS_MAX)
    costs: Costs = {}
    async with AsyncExitStack() as stack:
        named, skipped = stack.enter_context(peers(setup.scratch))
        running = await stack.enter_async_context(cluster.dev(setup.scratch, 3, steady=True))
        asking = await stack.enter_async_context(running.administrator())
        servers = [replace(own(running), settled=lambda: cluster.all_copied(asking)), *named]
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            sessions = [S3Session(each, http) for each in servers]
            for session in sessions:
                await session.ask("PUT", f"/{BUCKET}")
                await small(session, {}, 4, "warm")
            for block in range(blocks):
                for session in sessions if block % 2 else sessions[::-1]:
                    seen = costs.setdefault(session.server.name, {})
                    for at_once in AT_ONCE:
                        await small(session, seen, at_once, f"{at_once}-{block}")
                    await _large(session, seen, block)
            for session in sessions:
                count = int(os.environ.get("CHELONIA_BENCH_S3_LISTED", "0")) or (2_000 if setup.quick else 100_000)
                await _filled(session, running, count)
                memory = list[float]()
                for _ in range(blocks + 1):
                    await _listed(session, costs[session.server.name], count)
                    memory.append(resident_mib(session.server.pids()))
                setup.say(f"  {session.server.name}: MiB resident after each listing: {memory}")
    results: dict[str, Any] = {"load_average": load(), "again": {each.server.name: each.again for each in sessions}}
    for name, told_of in costs.items():
        setup.say(f"  {name}: {results['again'][name]} requests were sent once more")
        results[name] = {what: medians(seen) for what, seen in told_of.items()}
        for what, figures in results[name].items():
            setup.say(f"  {name:10} {what:24} {figures['per_s']:9.1f}/s, CPU s per 1000: servers "
                      f"{figures['server_cpu']:.3f}, client {figures['client_cpu']:.3f}")  # fmt: skip
    setup.say(f"  load average {load()}")
    return Outcome(results, skipped=skipped)


def own(running: cluster.Running) -> S3Server:
    """This cluster, with a fresh key of its user."""
    command = [str(Path(sys.executable).parent / "chelonia"), "--cluster", str(running.description), "--json"]
    told = subprocess.run([*command, "s3", "key", "create"], capture_output=True, check=True)
    (key,) = json.loads(told.stdout)["results"]
    url = json.loads(running.description.read_text())["s3"][0]
    return S3Server(OWN, url, key["id"], key["secret"], running.pids, key["dn"])


def bundle(running: cluster.Running) -> Path:
    """A file with the certificates of the cluster's CAs, for clients of others."""
    file = running.description.with_name("bundle.pem")
    authorities = sorted((running.description.parent / "certs" / "certificates").glob("*.0"))
    file.write_bytes(b"".join(each.read_bytes() for each in authorities))
    return file


def _count(at_once: int) -> int:
    return int(os.environ.get("CHELONIA_BENCH_OBJECTS", "0")) or max(200, 20 * at_once)


async def small(session: S3Session, seen: dict[str, list[Cost]], at_once: int, name: str) -> None:
    """Put, get, head and delete 4 KiB objects one by one; put as many again and delete them in bulk."""
    keys = [f"/{BUCKET}/{name}/{n:06d}" for n in range(_count(at_once))]
    data = os.urandom(SIZE)

    async def put(key: str) -> None:
        await session.ask("PUT", key, body=data)

    async def get(key: str) -> None:
        assert await session.ask("GET", key) == data, f"{key} is not what was put"

    acts: tuple[tuple[str, Callable[[str], Awaitable[Any]]], ...] = (
        ("PUT", put), ("GET", get), ("HEAD", lambda key: session.ask("HEAD", key)),
        ("DELETE", lambda key: session.ask("DELETE", key)),
    )  # fmt: skip
    for what, act in acts:
        await _measured(session, seen, f"{what} at {at_once}", len(keys), side_by_side(keys, at_once, act))
    await side_by_side(keys, at_once, put)
    await _settled(session)
    stop = meter(session.server.pids)
    await _bulk(session, keys)
    seen.setdefault(f"bulk after {at_once}", []).append(stop(len(keys)))


async def _measured(
    session: S3Session, seen: dict[str, list[Cost]], what: str, count: int, work: Awaitable[Any]
) -> None:
    """Note the cost of an operation, and that of the copies it left to make."""
    stop, settled = meter(session.server.pids), meter(session.server.pids)
    await work
    seen.setdefault(what, []).append(stop(count))
    if what.startswith("PUT"):
        await _settled(session)
        seen.setdefault(f"{what}, with copies", []).append(settled(count))


async def _settled(session: S3Session) -> None:
    if session.server.settled is not None:
        await session.server.settled()


async def _bulk(session: S3Session, keys: Sequence[str]) -> None:
    for start in range(0, len(keys), 1000):
        doomed = "".join(
            f"<Object><Key>{key.removeprefix(f'/{BUCKET}/')}</Key></Object>" for key in keys[start : start + 1000]
        )
        body = f"<Delete><Quiet>true</Quiet>{doomed}</Delete>".encode()
        digest = base64.b64encode(hashlib.md5(body).digest()).decode()
        more = {"content-md5": digest}
        answer = await session.ask("POST", f"/{BUCKET}", "delete=", body, **more)
        assert b"<Error>" not in answer, answer[:300]


async def _large(session: S3Session, seen: dict[str, list[Cost]], block: int) -> None:
    """Put and get 64 MiB objects; rates are of MiB."""
    keys = [f"/{BUCKET}/large-{block}-{n}" for n in range(LARGE_AT_ONCE)]
    data = os.urandom(LARGE)
    total = LARGE * len(keys) // 2**20

    async def get(key: str) -> None:
        assert await session.ask("GET", key) == data, f"{key} is not what was put"

    acts: tuple[tuple[str, Callable[[str], Awaitable[Any]]], ...] = (
        ("PUT MiB", lambda key: session.ask("PUT", key, body=data)), ("GET MiB", get),
    )  # fmt: skip
    for what, act in acts:
        await _measured(session, seen, what, total, side_by_side(keys, LARGE_AT_ONCE, act))
    for key in keys:
        await session.ask("DELETE", key)


async def _filled(session: S3Session, running: cluster.Running, count: int) -> None:
    """Make the keys to be listed: of this cluster their records alone, of a peer objects of one byte."""
    if session.server.name == OWN:
        async with Doors(running) as doors:
            await listing.fill(doors.at(urls(running)[0]), LISTED, count, owner=Dn(session.server.dn))
        return
    await session.ask("PUT", f"/{LISTED}")
    keys = [f"/{LISTED}/file-{n:06d}" for n in range(count)]
    await side_by_side(keys, 64, lambda key: session.ask("PUT", key, body=b"x"))


async def _listed(session: S3Session, seen: dict[str, list[Cost]], count: int) -> None:
    """Pages of 1 000 keys."""
    stop, listed, token = meter(session.server.pids), 0, ""
    while True:
        query = f"continuation-token={quote(token, safe='')}&list-type=2" if token else "list-type=2"
        page = await session.ask("GET", f"/{LISTED}", query)
        listed += page.count(b"<Key>")
        found = re.search(b"<NextContinuationToken>([^<]*)<", page)
        if not found:
            break
        token = found[1].decode()
    seen.setdefault("LIST keys", []).append(stop(listed))
    assert listed == count, f"{listed} of {count} keys are listed"
