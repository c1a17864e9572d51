"""Foreign clients at the S3 door of a real cluster. `make s3-clients` runs them and writes their table into
`docs/conform.md`.

Each client that is installed goes through the same steps, as far as it has the verb. Clients that `chelonia s3
configure` knows are set up by what it prints. The plain door must have the bytes that a client has written, and the
access log the right code of a refusal.

From apt: davix faketime rclone restic s3cmd s3fs. From pip: awscli, and boto3, minio and uproot for `PYTHON`. From Go:
github.com/peak/s5cmd/v2. A mount needs root.
"""

from __future__ import annotations

import filecmp
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import boto3
from botocore.config import Config

from tests.cluster.harness import Cluster
from tests.conform.clients import MULTI_RANGE, PYTHON, UPROOT, UPROOT_WRITES, Bench, ca_file, serves, told, write_part
from tests.conform.s3_tools import TOOLS, Tool
from tests.support.polling import poll
from tests.support.stalling import stalling

COMMAND = str(Path(sys.executable).parent / "chelonia")
MIB = 1 << 20
SIZES = {"0 B": 0, "1 B": 1, "5 MiB + 1": 5 * MIB + 1, "200 MiB": 200 * MIB}
SENT_MAX = 40 * MIB
"""Bytes of an upload of 200 MiB that pass before its client is killed."""
ENV = "env -u SSL_CERT_FILE URL={url} HOST={host} CA={ca} BUCKET={bucket} ID={id} SECRET={secret}"
TREE_READ = "GET '/uproot/tree.root' status=206"
MINE, FAILED, VERSION = "mine-7.dat", "**failed**", r"\d+\.\d+(?:\.\d+)?"
ODD = ("a b+c%41 #1 &2=3; ü€𝄞", 'it\'s "q" (x) {y} ,!$@^`~|<>')
STEPS = ("put", "get", "list", "delete", *SIZES, "odd names", "wrong key", "wrong clock", "killed")
HEAD = f"""\
# Clients at the S3 door

Unmodified clients against a real cluster; `make s3-clients` writes this table.
`aws`, boto3, rclone, s3cmd and s5cmd are set up by what `chelonia s3 configure` prints, without any other setting.

- yes: the client says that it went well, and the bytes or names are what they should be. The plain door has read what
  `put` wrote, and written what `get` read. Of 200 MiB: the number of parts that the client sent.
- wrong key, wrong clock (an hour ahead): the client fails, and the door has refused with the code for it.
- killed: SIGKILL ends the client after {SENT_MAX // MIB} of 200 MiB; the key is not there (of restic, no snapshot).
- -: the client does not offer it. Go: its programs read the clock past `faketime`.
- restic: a backup of the file into a repository of that name, read by its own `check` and `dump`.
- uproot: a tree by a presigned URL; one request for each group of baskets, with all its ranges.

| client | version | {" | ".join(STEPS)} |
|---|---|{"---|" * len(STEPS)}
"""


@dataclass
class Door:
    """The S3 door with a user's key; `said`: what `chelonia s3 configure` printed, by client."""

    bench: Bench
    log: Path
    key: dict[str, str] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)
    ca: str = ""

    def __post_init__(self) -> None:
        bench = self.bench
        command = (COMMAND, "--cluster", str(bench.cluster.root / "cluster.json"), "--as", "user")
        names = re.findall(r"AWS_\w+=\S+", bench.run(*command, "s3", "key", "create")[1])
        self.key = dict(zip(("id", "secret"), (each.partition("=")[2] for each in names), strict=True))
        first, *blocks = bench.run("env", *names, *command, "s3", "configure")[1].strip().split("\n\n")
        assert bench.run("sh", "-c", first.removeprefix("# first: "))[0]
        self.ca = first.rpartition("> ")[2]
        for head, _, text in (block.partition("\n") for block in blocks):
            self.said[head.removeprefix("# ").partition(":")[0]] = text
        self.s3 = self.signing(self.key["secret"])

    def signing(self, secret: str) -> Any:
        """A client of our own that signs with this secret: a witness."""
        return boto3.client(
            "s3", endpoint_url=self.bench.cluster.s3_url, verify=str(ca_file(self.bench)), region_name="us-east-1",
            aws_access_key_id=self.key["id"], aws_secret_access_key=secret,
            config=Config(signature_version="s3v4", s3={"addressing_style": "path"}),
        )  # fmt: skip

    def refuses(self, code: str, act: Callable[[], bool]) -> bool:
        """Whether the act fails, and the door has refused it with this code."""
        before = self.log.stat().st_size

        def logged() -> bool:
            return f"error={code}" in self.log.read_bytes()[before:].decode()

        return not act() and poll(logged, 5, what=f"the door refuses with {code}")


@dataclass
class Trial:
    """A client with a bucket of its own, set up for a door, or for another URL or secret."""

    door: Door
    tool: Tool
    bucket: str
    url: str = ""
    secret: str = ""

    def __post_init__(self) -> None:
        door, own = self.door, self.door.bench.cluster.s3_url
        self.url, self.secret = self.url or own, self.secret or door.key["secret"]
        self.home = Path(tempfile.mkdtemp(dir=door.bench.scratch))
        for path, (snippet, more) in self.tool.files.items():
            text = door.said.get(snippet, "").replace(door.key["secret"], self.secret)
            (self.home / path).parent.mkdir(parents=True, exist_ok=True)
            (self.home / path).write_text(text.replace(urlsplit(own).netloc, urlsplit(self.url).netloc) + more)

    def argv(self, verb: str, file: Path | str, key: str, *before: str) -> tuple[str, ...]:
        values = {
            "url": self.url, "host": urlsplit(self.url).netloc, "id": self.door.key["id"], "secret": self.secret,
            "ca": self.door.ca, "capath": str(self.door.bench.cluster.ca_dir), "home": str(self.home),
            "bucket": self.bucket, "file": str(file), "key": key, "quoted": quote(key),
        }  # fmt: skip
        words = (*ENV.split(), *self.tool.environment.split(), *before, *getattr(self.tool, verb).split())
        return tuple(word.format(**values) for word in words)

    def did(self, verb: str, file: Path | str, key: str, *before: str, check: str = "") -> bool:
        words = self.argv(verb, file, key, *before)
        return told(self.door.bench, *words, check=lambda said: check in said, home=self.home)

    def there(self, key: str) -> bool:
        found = self.door.s3.list_objects_v2(Bucket=self.bucket, Prefix=self.tool.visible.format(key=key))
        return bool(found["KeyCount"])

    def put(self) -> bool:
        bench, other = self.door.bench, self.tool.visible != "{key}"
        good = self.did("put", bench.source, MINE) and self.there(MINE)
        return good and (other or bench.holds(f"/{self.bucket}/{MINE}"))

    def get(self) -> bool:
        bench, key = self.door.bench, MINE
        if self.tool.visible == "{key}":
            key = "others-7.dat"
            bench.cluster.request("PUT", f"{bench.https}/{self.bucket}/{key}", body=bench.data)
        return self.did("get", bench.got, key) and bench.fetched()

    def sized(self, name: str) -> str:
        """The number of parts of a large object."""
        file, got, key = self.door.bench.scratch / name, self.home / "got", name.replace(" ", "")
        good = self.did("put", file, key) and self.there(key) and self.did("get", got, key)
        good = good and filecmp.cmp(file, got, shallow=False)
        got.unlink(missing_ok=True)
        parts = ""
        if good and name == "200 MiB" and self.tool.visible == "{key}":
            tag = self.door.s3.head_object(Bucket=self.bucket, Key=key)["ETag"].strip('"')
            parts = f"{tag.partition('-')[2] or '1'} parts".replace("1 parts", "in one")
        return (parts or "yes") if self.did("delete", "-", key) and good and not self.there(key) else ""

    def odd(self) -> bool:
        file, got = self.door.bench.source, self.door.bench.got
        return all(
            self.did("put", file, key)
            and self.did("get", got, key)
            and self.door.bench.fetched()
            and self.did("list", "-", key, check=key)
            and self.did("delete", "-", key)
            and not self.there(key)
            for key in ODD
        )

    def wrong_key(self) -> bool:
        wrong = Trial(self.door, self.tool, self.bucket, secret="x" * 40)
        act = lambda: wrong.did("put", self.door.bench.source, "refused")  # noqa: E731
        return self.door.refuses("SignatureDoesNotMatch", act) and not self.there("refused")

    def wrong_clock(self) -> str:
        program = shutil.which(self.tool.version.split()[0]) or ""
        if not shutil.which("faketime"):
            return "no faketime"
        if b"Go buildinf:" in Path(program).read_bytes():
            return "Go"
        act = lambda: self.did("put", self.door.bench.source, "late", "faketime", "-f", "+1h")  # noqa: E731
        return "yes" if self.door.refuses(self.tool.late, act) and not self.there("late") else ""

    def killed(self) -> bool:
        bench = self.door.bench
        with stalling(self.url, SENT_MAX) as (url, full):
            other = Trial(self.door, self.tool, self.bucket, url=url)
            words, silent = other.argv("put", bench.scratch / "200 MiB", "killed"), subprocess.DEVNULL
            sender = subprocess.Popen(
                words, env=bench.environment(other.home), stdout=silent, stderr=silent, start_new_session=True
            )
            try:
                poll(lambda: full.is_set() or sender.poll() is not None, 120, what="the client sends")
            finally:
                if running := sender.poll() is None:
                    os.killpg(sender.pid, signal.SIGKILL)
                sender.wait()
        if self.tool.version.startswith("s3fs"):
            bench.run("fusermount", "-uz", str(other.home / "at"))
        return running and full.is_set() and not self.there("killed")

    def steps(self) -> dict[str, Callable[[], bool | str]]:
        sizes = {name: lambda name=name: self.sized(name) for name in SIZES}  # type: ignore[misc]
        first = {"put": self.put, "get": self.get, "list": lambda: self.did("list", "-", MINE, check=MINE)}
        removed = {"delete": lambda: self.did("delete", "-", MINE) and not self.there(MINE)}
        last = {"wrong key": self.wrong_key, "wrong clock": self.wrong_clock, "killed": self.killed}
        return {**first, **removed, **sizes, "odd names": self.odd, **last}


def uproot(door: Door) -> dict[str, Callable[[], bool | str]]:
    """A tree by a presigned URL: each group of baskets comes by one request for all its ranges."""
    bench, local = door.bench, door.bench.scratch / "tree.root"

    def presigned(secret: str) -> str:
        url = door.signing(secret).generate_presigned_url("get_object", {"Bucket": "uproot", "Key": local.name})
        return str(url)

    def forged() -> bool:
        return told(bench, PYTHON, "-c", UPROOT + MULTI_RANGE, presigned("x" * 40))

    def ranges() -> bool:
        if told(bench, PYTHON, "-c", UPROOT_WRITES, str(local)):
            door.s3.upload_file(str(local), "uproot", local.name)
        good, said = bench.run(PYTHON, "-c", UPROOT + MULTI_RANGE, presigned(door.key["secret"]))
        print(f"    {said.strip()}", file=sys.stderr)

        def answered() -> bool:
            return said.startswith(f"{door.log.read_text().count(TREE_READ)} requests")

        return good and poll(answered, 5, what="the door has answered each request of uproot once")

    return {"get": ranges, "wrong key": lambda: door.refuses("SignatureDoesNotMatch", forged)}


def row(door: Door, name: str) -> str:
    """Take a client through the steps; returns its line of the table."""
    version = TOOLS[name].version if name in TOOLS else f"{PYTHON} -c print(__import__('uproot').__version__)"
    there, said = door.bench.run(*version.split()) if shutil.which(version.split()[0]) else (False, "")
    if not there:
        return f"| {name} | not found |{' |' * len(STEPS)}\n"
    bucket = re.sub(r"\W+", "-", name.lower()).strip("-")
    door.s3.create_bucket(Bucket=bucket)
    steps = Trial(door, TOOLS[name], bucket).steps() if name in TOOLS else uproot(door)
    cells = []
    for step in STEPS:
        print(f"{name}: {step}", flush=True)
        cells.append(cell(steps[step]) if step in steps else "-")
    door.bench.failed |= FAILED in cells
    return f"| {name} | {re.findall(VERSION, said)[0]} | {' | '.join(cells)} |\n"


def cell(act: Callable[[], bool | str]) -> str:
    try:
        done = act()
    except (OSError, AssertionError, subprocess.TimeoutExpired) as error:
        print(f"    {error!r}", file=sys.stderr)
        return FAILED
    return (done if isinstance(done, str) else "yes") if done else FAILED


def main() -> int:
    """1 when a step failed."""
    names = [*TOOLS, "uproot"]
    asked = sys.argv[1:] or names
    if unknown := [name for name in asked if name not in names]:
        sys.exit(f"no client is called {', '.join(unknown)}; there are: {', '.join(names)}")
    for name in [each for each in os.environ if re.match(r"AWS_|.*_CA_BUNDLE|SSL_CERT_", each)]:
        del os.environ[name]  # the clients' settings are those of the page alone
    root = Path(tempfile.mkdtemp(prefix="chelonia-conform-"))
    cluster = Cluster(root / "cluster")
    try:
        cluster.start()
        log = root / "access.log"
        cluster.reconfigure("core", log={"access_file": str(log)})
        poll(lambda: serves(cluster), 60.0, what="the door serves again")
        (root / "scratch").mkdir()
        door = Door(Bench(cluster, cluster, root / "scratch"), log)
        for name, size in SIZES.items():
            (root / "scratch" / name).write_bytes(os.urandom(size))
        rows = [row(door, name) for name in asked]
    finally:
        cluster.stop()
        shutil.rmtree(root, ignore_errors=True)
    if asked == names:
        write_part(HEAD + "".join(rows))
    print("".join(rows))
    return int(door.bench.failed)


if __name__ == "__main__":
    sys.exit(main())
