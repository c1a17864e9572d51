"""The CvmFS publish pattern by the S3 door: small objects put on condition, older ones deleted in bulk beside them.

The ROOT and CvmFS paper (section 5, Fig. 16) has this pattern. A day's release is 162 000 new files of 7.45 GB. The
garbage collection deletes older ones by 400 requests at once while files are uploaded at full speed. It prints no rate:
the deletions lower that of the uploads "only slightly". Fig. 15, the growth over 110 such days to 18 million files of
880 GB, is not run.

Here boto3 in threads puts a release with `If-None-Match: *`. Names are hashes in 256 directories. Every tenth file has
the content of an earlier one and is refused. Then it puts another release and deletes the first beside it, key for key.
Afterwards every expected file is listed and read (of many a sample), and the listing shows no other. The rest is
deleted at full speed.

The plot is the paper's Fig. 16: the rate of uploads over time, alone and beside deletions. `--full`: the paper's size,
some hours; CHELONIA_BENCH_PUBLISH: files of a release. Needs boto3 (`make install-test`).
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
import random
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import cluster
import s3
from experiment import Outcome, Setup
from intervals import check
from machine import Cost, load, meter
from plot import Chart, Point, Series

BUCKET, BAR = "publish", 0.8
PAPER = {"days": 110, "files_a_day": 162_000, "gb_a_day": 7.45, "files": 18_000_000, "gb": 880, "deleting_at_once": 400}
"""The paper's values of Figs. 15 and 16. `files` and `gb` are those at the end."""
FULL_FILES, QUICK_FILES, FILES = 162_000, 125, 400
MEAN_BYTES, SPREAD = 46_000, 1.9
"""7.45 GB in 162 000 files; most are far smaller: log-normal, its sigma SPREAD, scaled to the mean."""
THREADS, DELETERS = 16, 2
BULK_SHARE = 400
"""Requests that delete one release, of the paper's size; at most 1 000 keys and at least 25 go in one."""
AGAIN = 10
"""Every so many files have the content, and so the name, of an earlier one of the release."""
READ_BACK_MAX = 500
SLICES = 20
"""Of an upload in the plot, each with a rate of its own."""


@dataclass(frozen=True, slots=True)
class Release:
    """Files of one publication: names in the order of their coming, some twice, and how large each is."""

    seed: int
    files: int

    def keys(self) -> list[str]:
        return [self._key(n - AGAIN // 2 if n % AGAIN == AGAIN - 1 else n) for n in range(self.files)]

    def sizes(self) -> dict[str, int]:
        """How many bytes each name has."""
        law = statistics.NormalDist()
        raw = [math.exp(SPREAD * law.inv_cdf((n + 0.5) / self.files)) for n in range(self.files)]
        random.Random(self.seed).shuffle(raw)
        scale = MEAN_BYTES * self.files / sum(raw)
        return {key: max(1, int(size * scale)) for key, size in zip(self.keys(), raw, strict=True)}

    def _key(self, number: int) -> str:
        name = hashlib.sha1(f"{self.seed}/{number}".encode(), usedforsecurity=False).hexdigest()
        return f"data/{name[:2]}/{name[2:]}"


def bytes_of(key: str, size: int) -> bytes:
    """The bytes of a file: other ones for each name."""
    return random.Random(key).randbytes(size)


@dataclass
class Publisher:
    """Threads of boto3 at one cluster, and their common results."""

    client: Any
    refusal: type[Exception]
    pids: Callable[[], tuple[int, ...]]
    put: dict[str, int] = field(default_factory=dict)
    """Names that were put and are not deleted, with their sizes."""
    stored: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)
    answered: list[float] = field(default_factory=list)
    """When each file of the last release was answered, in s since its upload began."""

    def upload(self, release: Release, doomed: Sequence[str] = ()) -> Cost:
        """Put a release at full speed; beside it delete `doomed`, as many as were put."""
        sizes, done = release.sizes(), 0
        batches = _batches(doomed, max(25, min(1000, len(doomed) // BULK_SHARE)))
        stop, begun, self.answered = meter(self.pids), time.monotonic(), []
        with ThreadPoolExecutor(THREADS) as uploads, ThreadPoolExecutor(DELETERS) as deletions:
            running, asked = list[Future[None]](), 0
            for _ in uploads.map(lambda key: self._put(key, sizes[key]), release.keys()):
                done += 1
                if done > asked and (batch := next(batches, None)):
                    asked += len(batch)
                    running.append(deletions.submit(self.delete, batch))
            cost = stop(done)
            self.answered = sorted(at - begun for at in self.answered)
            for each in running:
                each.result()
        for batch in batches:
            self.delete(batch)
        return cost

    def _put(self, key: str, size: int) -> None:
        try:
            self.client.put_object(Bucket=BUCKET, Key=key, Body=bytes_of(key, size), IfNoneMatch="*")
        except self.refusal as error:
            if error.response["Error"]["Code"] != "PreconditionFailed":  # type: ignore[attr-defined]
                raise
            self.answered.append(time.monotonic())
            return
        self.answered.append(time.monotonic())
        with self.lock:
            self.stored[key] += 1
            self.put[key] = size

    def delete(self, keys: Sequence[str]) -> None:
        named = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
        answer = self.client.delete_objects(Bucket=BUCKET, Delete=named)
        if answer.get("Errors"):
            raise SystemExit(f"a bulk deletion failed: {answer['Errors'][:3]}")
        with self.lock:
            for key in keys:
                del self.put[key]

    def judge(self) -> dict[str, int]:
        """Count the keys that are not as they were acknowledged, by kind."""
        listed: dict[str, int] = {}
        for page in self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET):
            listed |= {each["Key"]: each["Size"] for each in page.get("Contents", ())}
        sample = random.Random(0).sample(sorted(self.put), min(READ_BACK_MAX, len(self.put)))
        with ThreadPoolExecutor(THREADS) as readers:
            whole = sum(readers.map(self._is_whole, sample))
        return {
            "lost": len(self.put.keys() - listed.keys()),
            "deleted_but_listed": len(listed.keys() - self.put.keys()),
            "of_other_size": sum(listed[key] != size for key, size in self.put.items() if key in listed),
            "put_twice": sum(count > 1 for count in self.stored.values()),
            "read_back": len(sample),
            "read_wrong": len(sample) - whole,
        }

    def _is_whole(self, key: str) -> bool:
        data = self.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        return bool(data == bytes_of(key, self.put[key]))


async def run(setup: Setup) -> Outcome:
    """Publish, and publish beside deletions, in turn."""
    try:
        import boto3  # noqa: F401 - only tests need it otherwise
    except ImportError:
        return Outcome({}, skipped=["publish: no boto3 here (make install-test)"])
    files = int(os.environ.get("CHELONIA_BENCH_PUBLISH", "0")) or (
        FULL_FILES if setup.full else QUICK_FILES if setup.quick else FILES
    )
    async with cluster.dev(setup.scratch, 3, steady=True) as running:
        publisher = Publisher(*_client(running), running.pids)
        await asyncio.to_thread(publisher.client.create_bucket, Bucket=BUCKET)
        await asyncio.to_thread(publisher.upload, Release(-1, 32))
        blocks = 1 if setup.full else 2 if setup.quick else setup.blocks
        return await asyncio.to_thread(_measured, setup, publisher, files, blocks)


def _measured(setup: Setup, publisher: Publisher, files: int, blocks: int) -> Outcome:
    before, beside, lines = list[Cost](), list[Cost](), list[Series]()
    for block in range(blocks):
        release = Release(2 * block, files)
        before.append(publisher.upload(release))
        lines = [_line("before the deletions", publisher.answered)]
        beside.append(publisher.upload(Release(2 * block + 1, files), sorted(set(release.keys()))))
        lines.append(_line("beside them", publisher.answered))
        for what, cost in (("before", before[-1]), ("beside", beside[-1])):
            setup.say(f"  {what} the deletions: {_told(cost)}")
    judged = publisher.judge()
    setup.say(f"  {judged}")
    left, stop = list(publisher.put), meter(publisher.pids)
    for batch in _batches(left, 1000):
        publisher.delete(batch)
    bulk = stop(len(left))
    setup.say(f"  deletions alone, by 1 000: {_told(bulk)}; load average {load()}")
    results = {"files_of_a_release": files, "before": _figures(before), "beside": _figures(beside),
               "bulk": _figures([bulk]), "judged": judged, "paper": PAPER, "load_average": load()}  # fmt: skip
    rates = [b.per_s / a.per_s for a, b in zip(before, beside, strict=True)]
    wrong = [name for name, count in judged.items() if count and name != "read_back"]
    if wrong:
        raise SystemExit(f"not as it was acknowledged: {judged}")
    chart = Chart("The CvmFS publish pattern: uploads while an older release is deleted", "s", "files/s", lines)
    bars = [check("upload rate beside deletions / before", "at least", BAR, rates)]
    return Outcome(results, bars, {"publish": chart})


def _line(name: str, answered: Sequence[float]) -> Series:
    """The rate of an upload over time. `answered`: when each file was, in s since it began."""
    width = answered[-1] / SLICES
    counts = Counter(min(int(at / width), SLICES - 1) for at in answered)
    rates = [counts[number] / width for number in range(SLICES)]
    points = [Point((number + 0.5) * width, rate, rate, rate) for number, rate in enumerate(rates)]
    return Series(name, points, colour=int(name != "before the deletions"))


def _batches(keys: Iterable[str], size: int) -> Iterator[list[str]]:
    left = iter(keys)
    while batch := list(islice(left, size)):
        yield batch


def _told(cost: Cost) -> str:
    return (f"{cost.per_s:.1f} files/s, CPU s per 1000: servers {cost.server_cpu:.2f}, "
            f"client {cost.client_cpu:.2f}")  # fmt: skip


def _figures(costs: Sequence[Cost]) -> list[dict[str, Any]]:
    return [cost.figures() for cost in costs]


def _client(running: cluster.Running) -> tuple[Any, type[Exception]]:
    """boto3 at a cluster, with a fresh key of its user, and as the door's manual would have it set."""
    import boto3
    from botocore.config import Config
    from botocore.exceptions import ClientError

    server = s3.own(running)
    config = Config(s3={"addressing_style": "path"}, retries={"mode": "standard", "total_max_attempts": 3},
                    connect_timeout=2, max_pool_connections=THREADS + DELETERS)  # fmt: skip
    client = boto3.client(
        "s3", endpoint_url=server.url, verify=str(s3.bundle(running)), region_name="us-east-1", config=config,
        aws_access_key_id=server.key, aws_secret_access_key=server.secret,
    )  # fmt: skip
    return client, ClientError
