"""Figures 9 to 14 of the ROOT and CvmFS paper: vector reads of a ROOT file by more and more clients at the S3 door.

Figs. 9 to 11: all the file, every second basket, every hundredth, as a selection of branches reads them; Figs. 12 to
14: all entries, 12 and 1 of 11 918, with the calls and volumes of the paper's Table 2. Each call is one GET with many
ranges (`multipart/byteranges`). All clients read one file in one bucket, or there are several buckets with a file each.
Clients are tasks of this process, on the same cores as the servers; each reads until the deadline, and the throughput
is that of all. The first reading of each kind is compared byte for byte. A file of 32 MiB, 8 buckets; `--full`: the
paper's 758 MB and 64 buckets. (The pattern of Fig. 15, and Fig. 16: `publish`.)

The paper prints no rates of these figures. All readings but the smallest (1 % of the volume, 0.001 % of the entries)
fill its network of 20 Gb/s.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import cluster
import s3
from experiment import Outcome, Setup
from machine import load, meter
from plot import Chart, Point, Series

MIB = 1024 * 1024
PIECE, BASKET = 8 * MIB, 32 * 1024
RANGES_MAX = 1000
"""Ranges that one request has; the door takes 1 024."""
TABLE_2 = {"all entries": (23, 1.0), "0.1 % of entries": (12, 320.92 / 758.42), "0.001 %": (5, 42.08 / 758.42)}
"""By which part of the entries is read: calls, and the part of the volume."""
EVERY = {"all the volume": 1, "50 %": 2, "1 %": 100}
PAPER_MB_PER_S = 2_500
"""The paper's network, which all but the smallest readings fill."""
POINT_S, QUICK_POINT_S, FULL_POINT_S = 3.0, 0.5, 20.0


@dataclass(frozen=True, slots=True)
class Reading:
    """One client's repeated reads: for each call its ranges, as offset and length in bytes."""

    calls: Sequence[Sequence[tuple[int, int]]]

    @property
    def bytes(self) -> int:
        """Bytes of one reading."""
        return sum(length for call in self.calls for _, length in call)


def by_volume(size: int, every: int) -> Reading:
    """Every so many baskets, so many of them in a call that they have 8 MiB."""
    if every == 1:  # neighbours are one range, as readers join them
        return Reading([[(at, min(PIECE, size - at))] for at in range(0, size, PIECE)])
    baskets = [(at, min(BASKET, size - at)) for at in range(0, size, BASKET * every)]
    per_call = PIECE // BASKET
    return Reading([baskets[at : at + per_call] for at in range(0, len(baskets), per_call)])


def by_entries(size: int, calls: int, part: float) -> Reading:
    """So many calls that read a part of the file, evenly over it."""
    count = max(calls, int(size * part) // BASKET)
    step = size // count
    baskets = [(n * step, min(BASKET, step)) for n in range(count)]
    return Reading([_joined(baskets[n * count // calls : (n + 1) * count // calls]) for n in range(calls)])


def _joined(baskets: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Neighbours as one range."""
    joined = list[tuple[int, int]]()
    for at, length in baskets:
        if joined and sum(joined[-1]) == at:
            joined[-1] = (joined[-1][0], joined[-1][1] + length)
        else:
            joined.append((at, length))
    assert len(joined) <= RANGES_MAX, f"{len(joined)} ranges"
    return joined


@dataclass(slots=True)
class _Readers:
    """Clients of one server and the file that they read."""

    session: s3.S3Session
    data: bytes
    buckets: int

    async def fill(self) -> None:
        """Put the file into the one bucket and into each of the others."""
        for bucket in ("root-one", *(f"root-{n}" for n in range(self.buckets))):
            await self.session.ask("PUT", f"/{bucket}")
            await self.session.ask("PUT", f"/{bucket}/atlas.root", body=self.data)

    async def compare(self, reading: Reading) -> None:
        """Read once, and compare every byte."""
        for call in reading.calls:
            got = await self._call("root-one", call)
            assert got == [self.data[at : at + length] for at, length in call], "wrong bytes were read"

    async def throughput(self, reading: Reading, clients: int, *, one: bool, seconds: float) -> float:
        """MB/s of so many clients together until the deadline."""
        deadline, read = time.perf_counter() + seconds, 0

        async def client(number: int) -> None:
            nonlocal read
            bucket = "root-one" if one else f"root-{number % self.buckets}"
            while True:
                for call in reading.calls:
                    answer = await self._ask(bucket, call)
                    if time.perf_counter() > deadline:
                        return
                    wanted = sum(length for _, length in call)
                    assert len(answer) >= wanted, f"{len(answer)} bytes where {wanted} were asked for"
                    read += wanted

        began = time.perf_counter()
        await asyncio.gather(*(client(n) for n in range(clients)))
        return read / 1e6 / (time.perf_counter() - began)

    async def _ask(self, bucket: str, call: Sequence[tuple[int, int]]) -> bytes:
        ranges = ",".join(f"{at}-{at + length - 1}" for at, length in call)
        return await self.session.ask("GET", f"/{bucket}/atlas.root", range=f"bytes={ranges}")

    async def _call(self, bucket: str, call: Sequence[tuple[int, int]]) -> list[bytes]:
        body = await self._ask(bucket, call)
        if len(call) == 1:
            return [body]
        parts, at = list[bytes](), 0
        for head in re.finditer(rb"content-range: bytes (\d+)-(\d+)/\d+\r\n(?:[^\r\n]+\r\n)*\r\n", body, re.IGNORECASE):
            if head.start() < at:
                continue  # it looks like a head, but lies within the bytes of the part before
            at = head.end() + int(head[2]) - int(head[1]) + 1
            parts.append(body[head.end() : at])
        return parts


async def run(setup: Setup) -> Outcome:
    """Measure both kinds of readings in one bucket and in many."""
    size, buckets = (4 * MIB, 2) if setup.quick else (758_420_000, 64) if setup.full else (32 * MIB, 8)
    counts = (1, 4) if setup.quick else (1, 4, 16, 64, 256) if setup.full else (1, 2, 4, 8, 16)
    seconds = QUICK_POINT_S if setup.quick else FULL_POINT_S if setup.full else POINT_S
    kinds = {
        "root-volume": {name: by_volume(size, every) for name, every in EVERY.items()},
        "root-entries": {name: by_entries(size, *row) for name, row in TABLE_2.items()},
    }
    paper = {"mb_per_s_of_all_but_the_smallest": PAPER_MB_PER_S}
    results: dict[str, Any] = {"bytes": size, "buckets": buckets, "paper": paper, "load_average": load()}
    charts = {}
    async with (
        cluster.dev(setup.scratch, 3, steady=True) as running,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http,
    ):
        readers = _Readers(s3.S3Session(s3.own(running), http), os.urandom(size), buckets)
        await readers.fill()
        for figure, readings in kinds.items():
            series = list[Series]()
            for colour, (name, reading) in enumerate(readings.items()):
                await readers.compare(reading)
                for one in (True, False):
                    label = f"{name}, {'one bucket' if one else f'{buckets} buckets'}"
                    stop, rates = meter(running.pids), dict[int, float]()
                    for clients in counts:
                        rates[clients] = await readers.throughput(reading, clients, one=one, seconds=seconds)
                    cost = stop(1)
                    results[f"{figure}: {label}"] = {"mb_per_s": rates, "server_cpu_s": cost.server_s}
                    told = ", ".join(f"{clients}: {rate:.0f}" for clients, rate in rates.items())
                    setup.say(f"  {label} ({len(reading.calls)} calls, {reading.bytes / 1e6:.1f} MB): {told} MB/s")
                    points = [Point(n, rate, rate, rate) for n, rate in rates.items()]
                    series.append(Series(label, points, dashed=not one, colour=colour))
            title = "by volume" if figure == "root-volume" else "by entries"
            title = f"Vector reads {title} (in the paper up to {PAPER_MB_PER_S:,} MB/s)"
            charts[figure] = Chart(title, "clients", "MB/s together", series, log_x=True)
    setup.say(f"  load average {load()}")
    return Outcome(results, (), charts)
