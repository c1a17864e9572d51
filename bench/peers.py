"""MinIO and SeaweedFS as peers at an S3 door: each that is on PATH, on loopback, on the disk to be measured.

MinIO: one process, four directories, erasure code 2 + 2, each write synced. SeaweedFS: a master, three volume servers
in three racks, a filer and the S3 gateway; three copies, none of them synced. Both speak plain HTTP.

CHELONIA_BENCH_S3_PEER: `<name> <url> <key> <secret> <pid>...` of a server that runs already, its processes counted. It
takes the place of the peer of its name.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from machine import NoPeer, free_port

HOST, READY_S = "127.0.0.1", 60.0
RACKS = 3


@dataclass(frozen=True, slots=True)
class S3Server:
    """A server to measure: its URL, the user's keys, and its processes."""

    name: str
    url: str
    key: str
    secret: str
    pids: Callable[[], tuple[int, ...]]
    dn: str = ""
    settled: Callable[[], Awaitable[None]] | None = None
    """Returns when all copies of earlier puts are made; None: the answer to a put waits for all."""


@contextmanager
def peers(scratch: Path) -> Iterator[tuple[list[S3Server], list[str]]]:
    """The peers that serve, until the end; and of each other one why it does not."""
    found, skipped = _named(), list[str]()
    names = {each.name.lower() for each in found}
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=scratch, prefix="peers-")))
        for name, program, begin in (("MinIO", "minio", _minio), ("SeaweedFS", "weed", _seaweedfs)):
            if name.lower() not in names:
                try:
                    found.append(begin(_Daemons(stack, place / program, program)))
                except NoPeer as error:
                    skipped.append(f"{name}: NOT COMPARED: {error}")
        yield found, skipped


def _named() -> list[S3Server]:
    told = os.environ.get("CHELONIA_BENCH_S3_PEER", "").split()
    if not told:
        return []
    name, url, key, secret, *pids = told
    return [S3Server(name, url, key, secret, lambda: tuple(map(int, pids)))]


class _Daemons:
    """The processes of one peer, with their logs in its directory. Raises: NoPeer when the program is not on PATH."""

    def __init__(self, stack: ExitStack, place: Path, program: str) -> None:
        path = shutil.which(program)
        if path is None:
            raise NoPeer(f"no `{program}` on PATH")
        self._stack, self.place, self._path = stack, place, path
        self._processes: list[subprocess.Popen[bytes]] = []
        place.mkdir()

    def directory(self, name: str) -> str:
        (self.place / name).mkdir()
        return str(self.place / name)

    def start(self, words: list[str], answers: str, settings: Mapping[str, str] | None = None) -> None:
        """Start one, and wait until it answers at the URL with 200. Raises: NoPeer."""
        log = self.place / f"log{len(self._processes)}"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [self._path, *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=os.environ | (settings or {}),
            )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)  # an orderly end takes SeaweedFS 10 s, for data that nobody wants
        self._processes.append(process)
        give_up = time.monotonic() + READY_S
        while not _answers(answers):
            if process.poll() is not None or time.monotonic() > give_up:
                raise NoPeer(f"the server did not start: {log.read_text('utf-8', 'replace')[-300:]}")
            time.sleep(0.1)

    def pids(self) -> tuple[int, ...]:
        return tuple(process.pid for process in self._processes)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:  # nobody listens, or it is not ready
        return False


def _minio(daemons: _Daemons) -> S3Server:
    address, key, secret = f"{HOST}:{free_port()}", secrets.token_hex(8), secrets.token_hex(16)
    # without the first it takes no directories of the root disk
    settings = {"MINIO_CI_CD": "1", "MINIO_BROWSER": "off", "MINIO_ROOT_USER": key, "MINIO_ROOT_PASSWORD": secret}
    words = ["server", "--address", address, *(daemons.directory(f"d{n}") for n in range(4))]
    daemons.start(words, f"http://{address}/minio/health/cluster", settings)
    return S3Server("MinIO", f"http://{address}", key, secret, daemons.pids)


def _seaweedfs(daemons: _Daemons) -> S3Server:
    key, secret = secrets.token_hex(8), secrets.token_hex(16)
    own = {"name": "bench", "credentials": [{"accessKey": key, "secretKey": secret}], "actions": ["Admin"]}
    identities = daemons.place / "identities.json"
    identities.write_text(json.dumps({"identities": [own]}))
    copies = "-defaultReplication=020"  # two more, in other racks
    master = _weed(daemons, "master", f"-mdir={daemons.directory('master')}", "-peers=none", copies)
    for n in range(RACKS):
        folder = f"-dir={daemons.directory(f'rack{n}')}"
        _weed(daemons, "volume", f"-master={master}", f"-rack=rack{n}", "-max=100", folder)
    folder = f"-defaultStoreDir={daemons.directory('filer')}"
    filer = _weed(daemons, "filer", f"-master={master}", folder, f"-localSocket={daemons.place}/filer.sock")
    options = f"-config={identities}", f"-localSocket={daemons.place}/s3.sock", "-port.iceberg=0"
    address = _weed(daemons, "s3", f"-filer={filer}", *options)
    return S3Server("SeaweedFS", f"http://{address.rpartition('.')[0]}", key, secret, daemons.pids)


def _weed(daemons: _Daemons, kind: str, *options: str) -> str:
    """Start a process of SeaweedFS; returns its address, `<host>:<port>.<port of gRPC>`."""
    port, grpc = free_port(), free_port()
    places = [f"-ip={HOST}", f"-ip.bind={HOST}", f"-port={port}", f"-port.grpc={grpc}"]
    path = {"master": "cluster/status", "filer": ""}.get(kind, "status")
    daemons.start([kind, *places, *options], f"http://{HOST}:{port}/{path}")
    return f"{HOST}:{port}.{grpc}"
