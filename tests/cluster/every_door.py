"""Every door at once on the same names, while nodes die and freeze. `make doors`; not part of CI.

Each worker has a collection of its own, and a model of it. It writes by one door and reads by another, moves, copies,
overwrites ranges, lists and removes. A name whose change broke off is in no sure state, and is not used again.

Racers of all doors share one collection. A name is made once and moved away by one, and a counter changed under its
etag keeps every acknowledged change. Afterwards everything is read and listed again, fsck finds nothing, and counting
quotas anew changes nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urlsplit

import requests
from botocore.exceptions import BotoCoreError, ClientError
from lxml import etree

from chelonia.core.contents.extents import Extent
from chelonia.core.errors import CheloniaError
from chelonia.core.names import parse_ln
from chelonia.core.ports.files import INLINED, Change, Clone, Content, Failure, Inline, Move, Over, Splice
from chelonia_clients.client import Client
from tests.cluster.harness import Cluster
from tests.cluster.load import fetch, put
from tests.cluster.mounts import Mount
from tests.cluster.s3_faults import BUCKET, Trial, fronts_of

TOP = f"/{BUCKET}"
PART = 5 * 1024 * 1024
SIZES = (0, 1, 300, 4096, 4096, 4096, 60_000, 70_000, 300_000, 2_500_000)
ODD = ("", "", "", " sp", "é", "+p", "%41", "'q", "#h", "&a")
COLLECTIONS = 4
STALE_S = 1.2
"""A mount may know attributes for a second."""
BROKEN_OFF = frozenset({errno.EIO, errno.EAGAIN, errno.ETIMEDOUT, errno.EINTR, errno.ENOTCONN})
T = TypeVar("T")


class BrokenOff(Exception):
    """Nobody knows whether it was done."""


class Refused(Exception):
    """It was not done."""


class S3Door:
    """boto3 at either front end."""

    def __init__(self, fronts: list[Any], chance: random.Random) -> None:
        self.front: Callable[[], Any] = lambda: chance.choice(fronts)
        self._pages = lambda: chance.choice((7, 50, 1000))

    def ask(self, what: str, name: str, **more: Any) -> Any:
        """One request. Raises: BrokenOff, Refused."""
        try:
            return getattr(self.front(), what)(Bucket=BUCKET, **({"Key": name} if name else {}), **more)
        except ClientError as error:
            status = error.response["ResponseMetadata"]["HTTPStatusCode"]
            raise (BrokenOff if status >= 500 else Refused)(f"{status} {error}") from error
        except BotoCoreError as error:
            raise BrokenOff(str(error)) from error

    def write(self, name: str, data: bytes) -> None:
        self.ask("put_object", name, Body=data)

    def read(self, name: str, first: int, last: int) -> bytes:
        more = {"Range": f"bytes={first}-{last}"} if last >= 0 else {}
        try:
            return bytes(self.ask("get_object", name, **more)["Body"].read())
        except BotoCoreError as error:
            raise BrokenOff(str(error)) from error

    def sizes(self, collection: str) -> dict[str, int]:
        found, more = dict[str, int](), dict[str, str]()
        while True:
            page = self.ask("list_objects_v2", "", Prefix=f"{collection}/", MaxKeys=self._pages(), **more)
            found |= {each["Key"]: each["Size"] for each in page.get("Contents", ())}
            if not page["IsTruncated"]:
                return {key: size for key, size in found.items() if not key.endswith("/")}
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def remove(self, name: str) -> None:
        self.ask("delete_object", name)

    def copy(self, source: str, target: str) -> None:
        self.ask("copy_object", target, CopySource={"Bucket": BUCKET, "Key": source})

    def in_parts(self, name: str, parts: list[bytes]) -> None:
        upload = {"UploadId": self.ask("create_multipart_upload", name)["UploadId"]}
        told = []
        for number, data in enumerate(parts, 1):
            etag = self.ask("upload_part", name, PartNumber=number, Body=data, **upload)["ETag"]
            told.append({"PartNumber": number, "ETag": etag})
        self.ask("complete_multipart_upload", name, MultipartUpload={"Parts": told}, **upload)

    def remove_all(self, names: list[str]) -> None:
        answer = self.ask("delete_objects", "", Delete={"Objects": [{"Key": name} for name in names]})
        if answer.get("Errors"):
            raise BrokenOff(str(answer["Errors"][0]))


class PlainDoor:
    """WebDAV at either front end, with the user's certificate."""

    def __init__(self, cluster: Cluster, ca: Path, chance: random.Random) -> None:
        files = cluster.files("user")
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.cert, self._session.verify = (str(files.cert), str(files.key)), str(ca)
        self._front = lambda: f"{chance.choice(cluster.info['files']).rstrip('/')}{TOP}/"

    def ask(self, method: str, name: str, *good: int, to: str = "", **more: Any) -> requests.Response:
        """One request. Raises: BrokenOff, Refused."""
        front = self._front()
        headers = more.pop("headers", {}) | ({"Destination": front + quote(to)} if to else {})
        try:
            answer = self._session.request(method, front + quote(name), headers=headers, timeout=60, **more)
        except requests.RequestException as error:
            raise BrokenOff(repr(error)) from error
        if answer.status_code not in good:
            told = f"{method} {answer.status_code} {answer.text[:150]}"
            raise (BrokenOff if answer.status_code >= 500 and answer.status_code != 507 else Refused)(told)
        return answer

    def write(self, name: str, data: bytes) -> None:
        self.ask("PUT", name, 201, 204, data=data)

    def read(self, name: str, first: int, last: int) -> bytes:
        return self.ask("GET", name, 200, 206, headers=_span(first, last)).content

    def sizes(self, collection: str) -> dict[str, int]:
        answer = self.ask("PROPFIND", collection, 207, headers={"Depth": "1"})
        found = {}
        for entry in etree.fromstring(answer.content).iterfind("{DAV:}response"):
            name = unquote(urlsplit(entry.findtext("{DAV:}href") or "").path).removeprefix(f"{TOP}/").rstrip("/")
            found[name] = int(entry.findtext(".//{DAV:}getcontentlength") or 0)
        found.pop(collection)
        return found

    def remove(self, name: str) -> None:
        self.ask("DELETE", name, 204)

    def copy(self, source: str, target: str) -> None:
        self.ask("COPY", source, 201, 204, to=target)

    def move(self, source: str, target: str) -> None:
        self.ask("MOVE", source, 201, 204, to=target)

    def lay(self, name: str, at: int, data: bytes) -> None:
        span = {"Content-Range": f"bytes {at}-{at + len(data) - 1}/*"}
        self.ask("PUT", name, 200, 201, 204, data=data, headers=span)

    def remove_collection(self, name: str) -> None:
        self.ask("DELETE", name, 204)

    def make_collection(self, name: str) -> None:
        self.ask("MKCOL", name, 201, 405)


class SdkDoor:
    """The SDK, in an event loop of its own."""

    def __init__(self, client: Client, loop: asyncio.AbstractEventLoop) -> None:
        self._client, self._loop = client, loop

    def _done(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result(120)
        except CheloniaError as error:
            raise (BrokenOff if error.meaning.retryable else Refused)(str(error)) from error

    def _changed(self, change: Change) -> None:
        async def change_it() -> None:
            assert self._client.files is not None
            [answer] = await self._client.files.apply(self._client.new_call(), (change,))
            if isinstance(answer, Failure):
                raise answer.error("apply")

        self._done(change_it())

    def write(self, name: str, data: bytes) -> None:
        self._done(put(self._client, f"{TOP}/{name}", data, replace=True))

    def read(self, name: str, first: int, last: int) -> bytes:
        data = self._done(fetch(self._client, f"{TOP}/{name}"))
        return data[first : last + 1] if last >= 0 else data

    def sizes(self, collection: str) -> dict[str, int]:
        async def listed() -> dict[str, int]:
            return {f"{collection}/{e.name}": e.size async for e in self._client.names(f"{TOP}/{collection}")}

        return self._done(listed())

    def remove(self, name: str) -> None:
        self._done(self._client.del_file(f"{TOP}/{name}"))

    def copy(self, source: str, target: str) -> None:
        self._changed(Clone(_at(target), _at(source)))

    def move(self, source: str, target: str) -> None:
        self._changed(Move(_at(source), _at(target), over=Over.REPLACE))

    def exchange(self, one: str, other: str) -> None:
        self._changed(Move(_at(one), _at(other), over=Over.EXCHANGE))

    def lay(self, name: str, at: int, data: bytes) -> None:
        self._changed(Splice(_at(name), Content((Extent(at, len(data), INLINED),), inline=Inline(data))))


class MountDoor:
    """A mount; what it knows of others' changes may be a second old."""

    def __init__(self, mount: Mount) -> None:
        self._mount = mount

    @contextlib.contextmanager
    def _at(self, name: str) -> Iterator[str]:
        time.sleep(STALE_S)
        try:
            yield f"{self._mount.path}/{name}"
        except OSError as error:
            raise (BrokenOff if error.errno in BROKEN_OFF else Refused)(f"mount: {error}") from error

    def write(self, name: str, data: bytes) -> None:
        with self._at(name) as path, open(path, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def read(self, name: str, first: int, last: int) -> bytes:
        with self._at(name) as path, open(path, "rb") as file:
            file.seek(max(first, 0))
            return file.read(last + 1 - first if last >= 0 else -1)

    def sizes(self, collection: str) -> dict[str, int]:
        with self._at(collection) as path:
            return {f"{collection}/{each.name}": each.stat().st_size for each in os.scandir(path)}

    def remove(self, name: str) -> None:
        with self._at(name) as path:
            os.unlink(path)

    def move(self, source: str, target: str) -> None:
        with self._at(source) as path:
            os.rename(path, f"{self._mount.path}/{target}")

    def lay(self, name: str, at: int, data: bytes) -> None:
        with self._at(name) as path, open(path, "r+b") as file:
            file.seek(at)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())


def _at(name: str) -> Any:
    return parse_ln(f"{TOP}/{name}")


def _span(first: int, last: int) -> dict[str, str]:
    return {"Range": f"bytes={first}-{last}"} if last >= 0 else {}


@dataclass
class Findings:
    """The common results of all threads."""

    wrong: list[str] = field(default_factory=list)
    broken_off: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)

    def add(self, text: str) -> None:
        self.wrong.append(f"{time.strftime('%H:%M:%S')} {text}")
        print("wrong:", self.wrong[-1], flush=True)


class Thread(threading.Thread):
    """One user's thread, which repeats its `step` until it is stopped."""

    step: Callable[[], None]

    def __init__(self, seed: int, doors: Callable[[random.Random], list[Any]], findings: Findings) -> None:
        super().__init__(daemon=True)
        self.chance = random.Random(seed)
        self.doors = doors(self.chance)
        self.findings = findings
        self.stopping = False

    def run(self) -> None:
        while not self.stopping:
            try:
                self.step()
            except BrokenOff as error:
                self.findings.broken_off[str(error)[:80]] += 1
            except Exception as error:
                traceback.print_exc()
                self.findings.add(f"{self.name} broke: {error!r}")

    def door(self, ability: str) -> Any:
        """A door that has this ability: the method, bound."""
        return getattr(self.chance.choice([door for door in self.doors if hasattr(door, ability)]), ability)


STEPS: Mapping[str, int] = {
    "write": 26, "overwrite": 8, "read": 28, "listed": 6, "move": 8, "copy": 8, "remove": 10, "lay": 11, "exchange": 3,
    "in_parts": 1, "remove_all": 2, "remove_collection": 1,
}  # fmt: skip


class Worker(Thread):
    """Has a collection of its own, and knows what is in it."""

    def __init__(self, number: int, seed: int, doors: Callable[[random.Random], list[Any]], findings: Findings) -> None:
        super().__init__(seed, doors, findings)
        self.collections = [f"w{number}/{each}" for each in range(COLLECTIONS)]
        self.model: dict[str, bytes] = {}
        self.unsure: set[str] = set()
        self._made = 0

    def step(self) -> None:
        what = self.chance.choices(list(STEPS), list(STEPS.values()))[0]
        if self.model or what == "write":
            getattr(self, f"_{what}")()
            self.findings.done[what] += 1

    def _new(self) -> str:
        self._made += 1
        return f"{self.chance.choice(self.collections)}/{self._made}{self.chance.choice(ODD)}"

    def _some(self) -> str:
        return self.chance.choice(list(self.model))

    def _data(self, *sizes: int) -> bytes:
        return self.chance.randbytes(self.chance.choice(sizes))

    def _changing(self, after: dict[str, bytes | None], change: Callable[[], None]) -> None:
        """Make a change and note the content of the names `after` it (None: nothing). One that breaks off leaves them
        unsure."""
        before = {name: self.model.pop(name) for name in after if name in self.model}
        try:
            change()
        except BrokenOff:
            self.unsure |= set(after)
            raise
        except Refused as error:
            self.model |= before
            self.findings.add(f"{self.name}: {sorted(after)} refused: {error}")
        else:
            self.model |= {name: data for name, data in after.items() if data is not None}

    def _write(self, name: str = "") -> None:
        name, data, write = name or self._new(), self._data(*SIZES), self.door("write")
        self._changing({name: data}, lambda: write(name, data))

    def _overwrite(self) -> None:
        self._write(self._some())

    def _read(self) -> None:
        name = self._some()
        data, first, last = self.model[name], 0, -1
        if len(data) > 10 and self.chance.random() < 0.3:
            first = self.chance.randrange(len(data) - 5)
            last = min(len(data) - 1, first + self.chance.randrange(1, 100_000))
        self.compare(name, first, last)

    def compare(self, name: str, first: int = 0, last: int = -1) -> None:
        """Read a file, or a span of it, by any door."""
        read, wanted = self.door("read"), self.model[name]
        wanted = wanted[first : last + 1] if last >= 0 else wanted
        try:
            got = read(name, first, last)
        except Refused as error:
            self.findings.add(f"{name} cannot be read: {error}")
            return
        if got != wanted:
            self.findings.add(f"{name} [{first}, {last}] by {read.__qualname__}: {len(got)} bytes, not {len(wanted)}")

    def _listed(self) -> None:
        self.compare_names(self.chance.choice(self.collections))

    def compare_names(self, collection: str) -> None:
        """List a collection by any door."""
        sizes = self.door("sizes")
        got = {name: size for name, size in sizes(collection).items() if name not in self.unsure}
        wanted = {name: len(data) for name, data in self.model.items() if name.startswith(f"{collection}/")}
        if got != wanted:
            differs = sorted(set(got.items()) ^ set(wanted.items()))[:6]
            self.findings.add(f"{collection} by {sizes.__qualname__} differs: {differs}")

    def _elsewhere(self, source: str) -> str:
        target = self._new() if self.chance.random() < 0.7 else self._some()
        return target if target != source else self._new()

    def _move(self) -> None:
        source, move = self._some(), self.door("move")
        target = self._elsewhere(source)
        self._changing({source: None, target: self.model[source]}, lambda: move(source, target))

    def _copy(self) -> None:
        source, copy = self._some(), self.door("copy")
        target = self._elsewhere(source)
        self._changing({target: self.model[source]}, lambda: copy(source, target))

    def _exchange(self) -> None:
        one, other, exchange = self._some(), self._some(), self.door("exchange")
        if one != other:
            self._changing({one: self.model[other], other: self.model[one]}, lambda: exchange(one, other))

    def _remove(self) -> None:
        name, remove = self._some(), self.door("remove")
        self._changing({name: None}, lambda: remove(name))

    def _lay(self) -> None:
        """Append, write in the middle, or beyond the end."""
        name, more, lay = self._some(), self._data(1, 500, 4096, 50_000), self.door("lay")
        old = self.model[name]
        at = len(old) if self.chance.random() < 0.6 else self.chance.randrange(len(old) + 1000)
        after = old[:at].ljust(at, b"\0") + more + old[at + len(more) :]
        self._changing({name: after}, lambda: lay(name, at, more))

    def _in_parts(self) -> None:
        name, parts, in_parts = self._new(), [self._data(PART), self._data(70_000)], self.door("in_parts")
        self._changing({name: b"".join(parts)}, lambda: in_parts(name, parts))

    def _remove_all(self) -> None:
        names, remove_all = self.chance.sample(list(self.model), min(len(self.model), 12)), self.door("remove_all")
        self._changing(dict.fromkeys(names), lambda: remove_all(names))

    def _remove_collection(self) -> None:
        collection = self.chance.choice(self.collections)
        names, remove = (
            [name for name in self.model if name.startswith(f"{collection}/")],
            self.door("remove_collection"),
        )
        try:
            self._changing(dict.fromkeys(names), lambda: remove(collection))
        finally:
            self.make_collection(collection)

    def make_collection(self, name: str) -> None:
        """Repeat until it is there: most doors make no collection above a file."""
        while not self.stopping:
            with contextlib.suppress(BrokenOff):
                return self.door("make_collection")(name)  # type: ignore[no-any-return]
            time.sleep(0.5)


class Racer(Thread):
    """A thread whose acts can succeed for only one of several."""

    def __init__(self, number: int, seed: int, doors: Callable[[random.Random], list[Any]], findings: Findings) -> None:
        super().__init__(seed, doors, findings)
        self._number, self._turn = number, 0
        self._s3 = next(door for door in self.doors if isinstance(door, S3Door))
        self._plain = next(door for door in self.doors if isinstance(door, PlainDoor))
        self.won: set[str] = set()
        self.unsure: set[str] = set()

    def step(self) -> None:
        self._turn += 1
        me, name = f"{self._turn}.{self._number}", f"races/{self._turn}"
        only, s3, plain = {"If-None-Match": "*"}, self._s3, self._plain
        if self.chance.random() < 0.5:
            self._once(f"made {name}", lambda: s3.ask("put_object", name, Body=me.encode(), IfNoneMatch="*"))
        else:
            self._once(f"made {name}", lambda: plain.ask("PUT", name, 201, data=me.encode(), headers=only))
        self._once(f"counted {me}", lambda: self._count(me))
        moved = f"races/moved-{me}"
        self._once(f"moved {name}", lambda: plain.ask("MOVE", name, 201, to=moved, headers={"Overwrite": "F"}))

    def _once(self, what: str, attempt: Callable[[], object]) -> None:
        try:
            attempt()
        except BrokenOff as error:
            self.unsure.add(what)
            self.findings.broken_off[str(error)[:80]] += 1
        except Refused as error:
            if not any(f"{status} " in str(error) for status in (404, 409, 412)):
                self.findings.add(f"{what} refused: {error}")
        else:
            self.won.add(what)

    def _count(self, me: str) -> None:
        found = self._s3.ask("get_object", "races/count")
        try:
            told = found["Body"].read()
        except BotoCoreError as error:
            raise BrokenOff(str(error)) from error
        self._s3.ask("put_object", "races/count", Body=told + f"{me}\n".encode(), IfMatch=found["ETag"])


def judge_races(racers: list[Racer], count: list[str], findings: Findings) -> None:
    """Check that no name was made while it was there or moved while it was not, and that each count is there once."""
    won = Counter(what for racer in racers for what in racer.won)
    unsure = Counter(what for racer in racers for what in racer.unsure)
    for name in {what.split()[1] for what in won if not what.startswith("counted ")}:
        made, moved = f"made {name}", f"moved {name}"
        if won[made] > won[moved] + unsure[moved] + 1 or won[moved] > won[made] + unsure[made]:
            findings.add(
                f"{name} was made {won[made]} times and moved {won[moved]}; {unsure[made]}, {unsure[moved]} unsure"
            )
    told = Counter(f"counted {each}" for each in count)
    sure = {what for what in won if what.startswith("counted ")}
    findings.wrong += [f"{what} is there {told[what]} times" for what in sure if told[what] != 1]
    findings.wrong += [f"{what} by nobody" for what in told if what not in sure | set(unsure)]


def command(cluster: Cluster, *words: str) -> tuple[int, str, str]:
    """Run `chelonia --json` as an administrator; returns its exit code, stdout and stderr."""
    chelonia = str(Path(sys.executable).parent / "chelonia")
    argv = [chelonia, "--cluster", str(cluster.root / "cluster.json"), "--as", "admin", "--json", *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def disturb(cluster: Cluster, seconds: float, chance: random.Random, findings: Findings) -> None:
    """Kill or freeze a node every few seconds."""
    end, names = time.monotonic() + seconds, [*cluster.core_names, *cluster.shepherd_names]
    while time.monotonic() < end:
        time.sleep(chance.uniform(4, 9))
        name, kills = chance.choice(names), chance.random() < 0.5
        so_far = {"done": findings.done.total(), "broken off": findings.broken_off.total()}
        print(json.dumps({"fault": f"{'kill' if kills else 'freeze'} {name}", **so_far}), flush=True)
        if kills:
            cluster.wait_restarted(name, cluster.kill(name))
        else:
            cluster.signal(name, signal.SIGSTOP)
            time.sleep(chance.uniform(1, 5))
            cluster.signal(name, signal.SIGCONT)


def _at_rest(look: Callable[[], None]) -> None:
    """Look with all nodes there; a pooled connection to one that was killed may fail first. Raises: BrokenOff."""
    for _ in range(3):
        with contextlib.suppress(BrokenOff):
            return look()
    return look()


def judge(cluster: Cluster, workers: list[Worker], racers: list[Racer], findings: Findings) -> None:
    """Look at everything once more, when all nodes are back."""
    for worker in workers:
        looks = [partial(worker.compare_names, collection) for collection in worker.collections * 4]
        for look in (*looks, *(partial(worker.compare, name) for name in worker.model)):
            try:
                _at_rest(look)
            except BrokenOff as error:
                findings.add(f"{worker.name}, with all nodes there: {error}")
    count = S3Door.read(racers[0]._s3, "races/count", 0, -1).decode().split()
    judge_races(racers, count, findings)
    code, told, beside = command(cluster, "admin", "fsck")
    findings.wrong += [f"fsck: {told}{beside}"] if code else []
    before = command(cluster, "admin", "quota", "list")[1]
    assert command(cluster, "admin", "quota", "recount")[0] == 0
    end = time.monotonic() + 60
    while '"counting": true' in (after := command(cluster, "admin", "quota", "list")[1]) and time.monotonic() < end:
        time.sleep(1)
    if before != after or "quota-wrong" in cluster.logs():
        findings.add(f"the quota was {before}, and is {after}")
    findings.wrong += cluster.complaints()


def run(root: Path, seconds: float, threads: int, seed: int) -> int:
    """Run all of it; returns 1 when something is not as it was acknowledged."""
    cluster, findings, chance = Cluster(root / "cluster", shepherds=4, replicas=3), Findings(), random.Random(seed)
    cluster.start()
    mounts = list[Mount]()
    try:
        fronts = fronts_of(cluster, root / "ca.pem", attempts=2)
        fronts[0].create_bucket(Bucket=BUCKET)
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()
        session = cluster.client("user", retry_ms=20_000)  # kept: what nobody holds any more is closed
        client = asyncio.run_coroutine_threadsafe(session.__aenter__(), loop).result()
        if Path("/dev/fuse").exists():
            mounts = [Mount(cluster, TOP, root / f"mount{n}", root / f"cache{n}").start() for n in range(2)]

        def doors(own: random.Random) -> list[Any]:
            here = [S3Door(fronts, own), PlainDoor(cluster, root / "ca.pem", own), SdkDoor(client, loop)]
            return [*here, *([MountDoor(own.choice(mounts))] if mounts else [])]

        workers = [Worker(n, seed * 1000 + n, doors, findings) for n in range(threads)]
        racers = [Racer(n, seed * 1000 + 500 + n, doors, findings) for n in range(2)]
        first = racers[0]
        for name in ("races", *(name for w in workers for name in (w.collections[0].split("/")[0], *w.collections))):
            first.door("make_collection")(name)
        first._s3.write("races/count", b"")
        assert command(cluster, "admin", "quota", "set", TOP, "--bytes", "1T")[0] == 0
        everybody: list[Thread] = [*workers, *racers]
        for each in everybody:
            each.start()
        disturb(cluster, seconds, chance, findings)
        for each in everybody:
            each.stopping = True
        for each in everybody:
            each.join(240)
            if each.is_alive():
                findings.add(f"{each.name} does not end")
        asyncio.run(Trial(cluster, fronts).until_whole())
        judge(cluster, workers, racers, findings)
        asyncio.run_coroutine_threadsafe(session.__aexit__(None, None, None), loop).result()
        for mount in mounts:
            mount.end()
    finally:
        for mount in mounts:
            mount.abandon()
        cluster.stop()
    for text, times in findings.broken_off.most_common(12):
        print(f"broken off, {times} times: {text}")
    print("\n".join(f"wrong: {text}" for text in findings.wrong[:40]))
    told = {
        "steps": findings.done.total(),
        "races won": sum(len(racer.won) for racer in racers),
        "broken off": findings.broken_off.total(),
        "wrong": len(findings.wrong),
        "files": sum(len(worker.model) for worker in workers),
        "names unsure": sum(len(worker.unsure) for worker in workers),
        "load": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(told))
    return 1 if findings.wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--threads", type=int, default=5)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="every-door-") as scratch:
        return run(Path(scratch), asked.seconds, asked.threads, asked.seed)


if __name__ == "__main__":
    sys.exit(main())
