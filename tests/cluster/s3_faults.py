"""boto3 at two front ends of the S3 door while processes die and freeze. `make s3-faults`; not part of CI.

Threads put, get, list and delete small objects, large ones and uploads in parts. Each request goes to one front end,
and when that fails once more to the other. No client has to do more. Afterwards everything acknowledged is read and
listed, and nothing deleted is there. A frozen front end that goes on may carry out a request that its client has given
up: that change then follows all acknowledged since.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, EndpointConnectionError

from chelonia.core.caller import Call
from tests.cluster.harness import Away, Cluster
from tests.support.polling import poll, poll_async

BUCKET = "faults"
SMALL, LARGE, PART = 4096, 2_000_000, 5 * 1024 * 1024
FROZEN_S = 4.0
READ_TIMEOUT_S = 20
REFUSED = (ClientError, BotoCoreError)


@dataclass
class Tally:
    """The common results of all threads."""

    acknowledged: dict[str, str] = field(default_factory=dict)
    """Key to MD5; "": deleted. A key whose last request failed is in neither state for sure, and not in it."""
    late: dict[str, set[str]] = field(default_factory=dict)
    """Key to the states that a request which broke off, and was repeated, may still give it."""
    done: list[tuple[float, float, str]] = field(default_factory=list)
    """When each request had begun, how long it took with its retry, and which it was."""
    retried: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    """Answers that are wrong; where a worker itself broke, its error."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def stalls(self, since: float) -> dict[str, float]:
        """Seconds: the longest request of each kind, and the longest time in which nobody was answered."""
        took = [(begun, lasted, what) for begun, lasted, what in list(self.done) if begun + lasted >= since]
        ends = sorted(begun + lasted for begun, lasted, _ in took)
        worst: dict[str, float] = {}
        for _, lasted, what in took:
            worst[what] = max(worst.get(what, 0.0), lasted)
        worst["nobody answered"] = max((b - a for a, b in zip([since, *ends], ends, strict=False)), default=0.0)
        return {what: round(seconds, 2) for what, seconds in worst.items()}


class Worker(threading.Thread):
    """One user's thread, with keys of its own."""

    def __init__(self, number: int, fronts: list[Any], tally: Tally) -> None:
        super().__init__(daemon=True)
        self._number, self._fronts, self._tally = number, fronts, tally
        self._chance = random.Random(number)
        self._turn = number
        self._mine: dict[str, str] = {}
        self.stopping = False

    def run(self) -> None:
        try:
            while not self.stopping:
                self._turn += 1
                kinds = ("put", "get", "list", "delete", "large", "parts")
                getattr(self, f"_{self._chance.choices(kinds, (40, 30, 8, 12, 7, 3))[0]}")()
        except Exception as error:
            self._wrong(f"worker {self._number} broke: {error!r}")
            raise

    def _wrong(self, text: str) -> None:
        with self._tally.lock:
            self._tally.wrong.append(text)

    def _asked(self, what: str, request: Callable[[Any], Any], makes: tuple[str, str] | None = None) -> Any:
        """Make one request, and once more at the other front end. Returns: the answer; None: refused twice.

        Args: `makes`: the key it changes, and its new state.
        """
        begun, answer = time.monotonic(), None
        for attempt in range(2):
            try:
                answer = request(self._fronts[(self._turn + attempt) % len(self._fronts)])
                break
            except REFUSED as error:
                seen = self._tally.failed if attempt else self._tally.retried
                with self._tally.lock:
                    seen[f"{what}: {str(error)[:150]}"] += 1
                    if makes and not isinstance(error, EndpointConnectionError):
                        self._tally.late.setdefault(makes[0], set()).add(makes[1])
        with self._tally.lock:
            self._tally.done.append((begun, time.monotonic() - begun, what))
        return answer

    def _known(self, key: str, state: str | None) -> None:
        """Note a key's state; None: unsure."""
        for known in (self._mine, self._tally.acknowledged):
            if state is None:
                known.pop(key, None)
            else:
                known[key] = state

    def _stored(self, what: str, data: bytes) -> None:
        key = f"w{self._number}/{self._turn % 400}"
        digest = hashlib.md5(data).hexdigest()
        answer = self._asked(what, lambda front: front.put_object(Bucket=BUCKET, Key=key, Body=data), (key, digest))
        self._known(key, digest if answer else None)

    def _put(self) -> None:
        self._stored("put", self._chance.randbytes(SMALL))

    def _large(self) -> None:
        self._stored("large", self._chance.randbytes(LARGE))

    def _get(self) -> None:
        key = self._chance.choice(list(self._mine) or [""])
        if not self._mine.get(key):
            return
        answer = self._asked("get", lambda front: front.get_object(Bucket=BUCKET, Key=key)["Body"].read())
        allowed = {self._mine[key], *self._tally.late.get(key, ())}
        if answer is not None and hashlib.md5(answer).hexdigest() not in allowed:
            self._wrong(f"{key} is not what was acknowledged")

    def _list(self) -> None:
        answer = self._asked("list", lambda front: front.list_objects_v2(Bucket=BUCKET, Prefix=f"w{self._number}/"))
        if answer is not None and not answer["IsTruncated"]:
            named = {each["Key"] for each in answer.get("Contents", ())}
            missing = {key for key, digest in self._mine.items() if digest} - named
            missing -= {key for key, states in self._tally.late.items() if "" in states}
            if missing:
                self._wrong(f"a listing lacks {sorted(missing)[:5]}")

    def _delete(self) -> None:
        key = self._chance.choice(list(self._mine) or [""])
        if key:
            answer = self._asked("delete", lambda front: front.delete_object(Bucket=BUCKET, Key=key), (key, ""))
            self._known(key, "" if answer else None)

    def _parts(self) -> None:
        key = f"w{self._number}/parts"
        target = {"Bucket": BUCKET, "Key": key}
        first, last = self._chance.randbytes(PART), self._chance.randbytes(SMALL)
        opened = self._asked("open", lambda front: front.create_multipart_upload(**target))
        if opened is None:
            return
        target["UploadId"] = opened["UploadId"]
        told = []
        for number, data in enumerate((first, last), 1):
            part = self._asked(
                "part", lambda front, n=number, d=data: front.upload_part(**target, PartNumber=n, Body=d)
            )
            if part is None:
                return
            told.append({"PartNumber": number, "ETag": part["ETag"]})
        digest, parts = hashlib.md5(first + last).hexdigest(), {"Parts": told}
        done = self._asked(
            "complete", lambda front: front.complete_multipart_upload(**target, MultipartUpload=parts), (key, digest)
        )
        self._known(key, digest if done else None)


@dataclass
class Trial:
    """A cluster with two front ends, and its users."""

    cluster: Cluster
    fronts: list[Any]
    tally: Tally = field(default_factory=Tally)
    workers: list[Worker] = field(default_factory=list)

    def more(self, requests: int = 60, deadline: float = 120.0) -> None:
        """Wait until so many more requests have been answered."""
        goal = len(self.tally.done) + requests
        poll(lambda: len(self.tally.done) >= goal, deadline, what=f"{requests} more requests")

    async def master(self) -> str:
        """The node whose A-Hash is master."""

        async def look() -> str:
            async with self.cluster.ports("admin") as ports:
                status = await ports.ahash.status(Call().strongly())
                return f"core{status.replica}" if status.role == "master" else ""

        return await poll_async(look, 60.0, tolerate=Away, what="a master")

    async def until_whole(self) -> None:
        """Wait until every replica follows and every Shepherd is alive."""

        async def look() -> bool:
            async with self.cluster.ports("admin") as ports:
                status = await ports.ahash.status(Call().strongly())
                return all(view.role in ("master", "follower") and view.lag >= 0 for view in status.replicas)

        await poll_async(look, 60.0, tolerate=Away, what="every replica follows")
        await self.cluster.until_alive()

    async def fault(self, how: str, whom: str) -> bool:
        """Cause a fault under load. Returns: whether no request failed."""
        await self.until_whole()
        master = await self.master()
        victims = {"shepherd": "shepherd2", "master": master, "front": "core2" if master == "core1" else "core1"}
        name, failed = victims[whom], sum(self.tally.failed.values())
        await asyncio.to_thread(self.more)
        since = time.monotonic()
        if how == "kill":
            old = await asyncio.to_thread(self.cluster.kill, name)
            await asyncio.to_thread(self.cluster.wait_restarted, name, old)
        else:
            self.cluster.signal(name, signal.SIGSTOP)
            await asyncio.sleep(FROZEN_S)
            self.cluster.signal(name, signal.SIGCONT)
        await asyncio.to_thread(self.more)
        stalls, failed = self.tally.stalls(since), sum(self.tally.failed.values()) - failed
        load = round(os.getloadavg()[0], 1)
        told = {"fault": f"{how} {whom} ({name})", "load": load, "failed": failed, "longest_s": stalls}
        print(json.dumps(told), flush=True)
        return not failed

    def judge(self) -> list[str]:
        """Return differences from the acknowledged state."""
        front, wrong, listed = self.fronts[0], list[str](), set[str]()
        for page in front.get_paginator("list_objects_v2").paginate(Bucket=BUCKET):
            listed |= {each["Key"] for each in page.get("Contents", ())}
        for key, digest in self.tally.acknowledged.items():
            got = ""
            if key in listed:
                got = hashlib.md5(front.get_object(Bucket=BUCKET, Key=key)["Body"].read()).hexdigest()
            if got not in {digest, *self.tally.late.get(key, ())}:
                wrong.append(f"{key}: {got or 'nothing'} in place of {digest or 'nothing'}")
        return wrong


def fronts_of(cluster: Cluster, bundle: Path, attempts: int = 1) -> list[Any]:
    """A client of each front end, with a fresh key."""
    command = [str(Path(sys.executable).parent / "chelonia"), "--cluster", str(cluster.root / "cluster.json")]
    told = subprocess.run([*command, "--as", "user", "--json", "s3", "key", "create"], capture_output=True, check=True)
    (key,) = json.loads(told.stdout)["results"]
    bundle.write_bytes(b"".join(each.read_bytes() for each in sorted(cluster.ca_dir.glob("*.0"))))
    config = Config(
        s3={"addressing_style": "path"}, signature_version="s3v4",
        retries={"total_max_attempts": attempts, "mode": "standard"},
        connect_timeout=2, read_timeout=READ_TIMEOUT_S, max_pool_connections=32,
    )  # fmt: skip
    return [
        boto3.client(
            "s3", endpoint_url=url, verify=str(bundle), region_name="us-east-1", config=config,
            aws_access_key_id=key["id"], aws_secret_access_key=key["secret"],
        )
        for url in cluster.info["s3"]
    ]  # fmt: skip


FAULTS = [(how, whom) for whom in ("shepherd", "front", "master") for how in ("kill", "freeze")]


async def run(root: Path, rounds: int, threads: int) -> int:
    """Run all faults, so many times; returns 1 when a request failed or an acknowledged state is not there."""
    cluster = Cluster(root / "cluster", replicas=3)
    await asyncio.to_thread(cluster.start)
    try:
        trial = Trial(cluster, await asyncio.to_thread(fronts_of, cluster, root / "ca.pem"))
        trial.fronts[0].create_bucket(Bucket=BUCKET)
        trial.workers = [Worker(number, trial.fronts, trial.tally) for number in range(threads)]
        for worker in trial.workers:
            worker.start()
        good = [await trial.fault(how, whom) for _ in range(rounds) for how, whom in FAULTS]
        for worker in trial.workers:
            worker.stopping = True
        for worker in trial.workers:
            await asyncio.to_thread(worker.join, 120)
            assert not worker.is_alive(), f"{worker.name} does not end"
        await trial.until_whole()
        wrong = [*trial.tally.wrong, *await asyncio.to_thread(trial.judge)]
    finally:
        await asyncio.to_thread(cluster.stop)
    tally = trial.tally
    for name, seen in (("asked again", tally.retried), ("failed", tally.failed), ("wrong", Counter(wrong))):
        for text, count in seen.most_common(12):
            print(f"{name}, {count} times: {text}")
    again, failed = sum(tally.retried.values()), sum(tally.failed.values())
    print(f"{len(tally.done)} requests, {again} asked again, {failed} failed, {len(wrong)} answers were "
          f"wrong; {len(tally.acknowledged)} keys are acknowledged; load {os.getloadavg()[0]:.1f}")  # fmt: skip
    return 0 if all(good) and not wrong and not tally.failed else 1


def main() -> int:
    """Run it; it prints how long users waited."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=6)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="s3-faults-") as scratch:
        return asyncio.run(run(Path(scratch), asked.rounds, asked.threads))


if __name__ == "__main__":
    sys.exit(main())
