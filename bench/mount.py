"""The mount beside `sshfs` and GlusterFS, in turn: small files written and synced, stat, listing, unlink, archives.
Also a stream and random reads, of which the SDK too, on the cluster of the mount.

Three Shepherds, three copies wanted, two of them durable before `fsync` returns, mutual TLS, the intervals of
production. `sshfs` (OpenSSH, a server of its own on loopback) keeps one copy, durable at the same `fsync`. GlusterFS
keeps three, each durable at `fsync`, without TLS; it also answers reads with what came with the lookup. The same
threads of this process work on all: their CPU is the client's, that of mount, transport and servers is the servers'.
Cold is after the mount was begun anew; the page cache of the servers' disk is warm for all.

CHELONIA_BENCH_MOUNT: how many small files a block (150 by default); CHELONIA_BENCH_MOUNT_MIB: MiB of the stream, by
default one for ten of them. Appends, each synced, go to a file of 1 MiB and to the stream.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import cluster
from experiment import Outcome, Setup
from machine import Cost, NoPeer, medians, meter
from scp import Sshd, sshd

from chelonia.core.contents.extents import ByteRange
from chelonia.core.names import parse_ln
from chelonia.core.ports.files import Look, Looked, Want
from chelonia.hosting.transfer import download as downloads
from chelonia.hosting.transfer import upload as uploads
from chelonia.hosting.transfer.front import HttpBytes
from chelonia_clients.client import new_call

SIZE = 4096
MIB = 1 << 20
AT_ONCE = 16
BLOCKS_MAX, APPENDS = 5, 50
MOUNTED_S = 30.0
Costs = dict[str, list[Cost]]
"""Costs by operation."""


class Side:
    """One of those measured: a command that mounts and stays, how to end it, and the processes that serve it."""

    def __init__(
        self, command: Sequence[str], path: Path, servers: Callable[[], Sequence[int]], umount: Sequence[str] = ()
    ) -> None:
        self._command = command
        self._servers = servers
        self._umount = umount or ("fusermount3", "-u", str(path))
        self._process: subprocess.Popen[bytes] | None = None
        self.path = path

    def pids(self) -> tuple[int, ...]:
        """All processes that belong to it, but this one."""
        assert self._process is not None
        roots = (self._process.pid, *self._servers())
        return tuple(dict.fromkeys(pid for root in roots for pid in (root, *_below(root))))

    def begin(self) -> None:
        """Mount, and wait until it is."""
        self.path.mkdir(exist_ok=True)
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        give_up = time.monotonic() + MOUNTED_S
        while not os.path.ismount(self.path):
            if self._process.poll() is not None or time.monotonic() > give_up:
                raise SystemExit(f"this did not mount: {' '.join(self._command)}")
            time.sleep(0.05)

    def end(self) -> None:
        subprocess.run(self._umount, check=False)
        if self._process is not None:
            self._process.wait(MOUNTED_S)

    def anew(self) -> None:
        self.end()
        self.begin()


def _below(pid: int) -> tuple[int, ...]:
    try:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return ()
    return tuple(found for child in children for found in (child, *_below(child)))


async def run(setup: Setup) -> Outcome:
    """Measure all, a block of each in turn."""
    blocks = 1 if setup.quick else min(setup.blocks, BLOCKS_MAX)
    skipped: list[str] = []
    costs: dict[str, Costs] = {}
    async with cluster.dev(setup.scratch, 3, steady=True) as running:
        async with running.client() as client:
            await client.make_collection("/mount")
        with ExitStack() as stack:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=setup.scratch, prefix="mount-")))
            chelonia = (sys.executable, "-m", "chelonia_clients.cli", "--cluster", str(running.description.parent))
            options = ("-o", f"cache={scratch / 'cache'}", "/mount", str(scratch / "m"))
            sides = {"chelonia": Side((*chelonia, "mount", *options), scratch / "m", running.pids)}
            try:
                sides["sshfs"] = _sshfs(stack.enter_context(_server(setup.scratch)), scratch)
            except NoPeer as error:
                skipped.append(f"sshfs: {error}")
            try:
                sides["gluster"] = stack.enter_context(_gluster(scratch))
            except NoPeer as error:
                skipped.append(f"gluster: {error}")
            for side in sides.values():
                side.begin()
                stack.callback(side.end)
            for block in range(blocks):
                for name, side in list(sides.items())[:: 1 if block % 2 == 0 else -1]:
                    for work, cost in (await asyncio.to_thread(_block, side, str(block))).items():
                        costs.setdefault(name, {}).setdefault(work, []).append(cost)
                for work, cost in (await _sdk(running, f"/mount/sdk{block}")).items():
                    costs.setdefault("sdk", {}).setdefault(work, []).append(cost)
    return Outcome(_told(setup, costs), skipped=skipped)


@contextmanager
def _server(scratch: Path) -> Iterator[Sshd]:
    if shutil.which("sshfs") is None:
        raise NoPeer("no `sshfs` on the PATH")
    with sshd(scratch) as server:
        yield server


def _sshfs(server: Sshd, scratch: Path) -> Side:
    (scratch / "exported").mkdir()
    options = (
        f"IdentityFile={server.directory / 'user'},UserKnownHostsFile={server.directory / 'known'},"
        "IdentitiesOnly=yes,StrictHostKeyChecking=yes"
    )
    where = server.remote(scratch / "exported")
    command = ("sshfs", "-f", "-p", str(server.port), "-F", "none", "-o", options, where, str(scratch / "s"))
    return Side(command, scratch / "s", lambda: (server.pid,))


GLUSTER = """
cd {at}
ip link set lo up
ip address add 10.77.0.1/32 dev lo
mount -t tmpfs tmpfs /run
mkdir -p /run/gluster lib log m b1 b2 b3
mount --bind lib /var/lib/glusterd
mount --bind log /var/log/glusterfs
glusterd -N &
for n in $(seq 100); do gluster --mode=script volume list && break; sleep 0.2; done
gluster --mode=script volume create g replica 3 10.77.0.1:{at}/b1 10.77.0.1:{at}/b2 10.77.0.1:{at}/b3 force
gluster --mode=script volume start g
touch started
wait
"""
"""GlusterFS with three copies in namespaces of its own: it wants an address beside loopback, and places below /var."""


@contextmanager
def _gluster(scratch: Path) -> Iterator[Side]:
    if os.geteuid() or not all(map(shutil.which, ("glusterd", "gluster", "glusterfs"))):
        raise NoPeer("it needs root, and `glusterfs-server`")
    at = scratch / "gluster"
    at.mkdir()
    spaces = ("--mount", "--net", "--pid", "--fork", "--kill-child=KILL", "--mount-proc", "--propagation", "private")
    with (at / "out").open("wb") as out:
        argv = ["unshare", *spaces, "sh", "-euc", GLUSTER.format(at=at)]
        process = subprocess.Popen(argv, stdout=out, stderr=out)
    try:
        give_up = time.monotonic() + MOUNTED_S
        while not (at / "started").exists():
            if process.poll() is not None or time.monotonic() > give_up:
                raise NoPeer(f"it did not start: {(at / 'out').read_text()[-500:]}")
            time.sleep(0.1)
        (first,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        inside = ("nsenter", "-t", first, "-m", "-n")
        command = (*inside, "glusterfs", "-N", "--volfile-server=10.77.0.1", "--volfile-id=g", str(at / "m"))
        path = Path(f"/proc/{first}/root{at}/m")
        yield Side(command, path, lambda: (process.pid,), (*inside, "umount", str(at / "m")))
    finally:
        process.kill()
        process.wait()


# --- a block --------------------------------------------------------------------------------------------------------


def _block(side: Side, name: str) -> dict[str, Cost]:
    count = _count()
    costs: dict[str, Cost] = {}

    def measured(work: str, act: Callable[[], float]) -> None:
        stop = meter(side.pids)
        costs[work] = stop(act())

    top, data = side.path / name, os.urandom(SIZE)
    top.mkdir()
    few, many = ([top / f"{kind}{n:06d}" for n in range(count)] for kind in "fm")
    measured("create, 1", lambda: _each(few, lambda path: _written(path, data)))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        measured("create, 16", lambda: len(list(pool.map(lambda path: _written(path, data), many))))
    side.anew()
    measured("stat, cold", lambda: _each(few, os.stat))
    measured("stat, warm", lambda: _each(few[:20] * 50, os.stat))
    measured("ls -l", lambda: sum(entry.stat().st_size == SIZE for entry in os.scandir(top)))
    measured("read, cold", lambda: _each(few, lambda path: path.read_bytes()))
    measured("unlink", lambda: _each(few + many, os.unlink))
    measured("untar, a file", lambda: _untarred(top / "tree", count))
    _stream(side, top / "stream", _mib(), measured)
    return costs


def _count() -> int:
    return int(os.environ.get("CHELONIA_BENCH_MOUNT", "150"))


def _mib() -> int:
    return int(os.environ.get("CHELONIA_BENCH_MOUNT_MIB", "0")) or max(8, _count() // 10)


def _untarred(top: Path, count: int) -> int:
    """The first files of this project out of an archive, as `tar` does it."""
    top.mkdir()
    project = Path(__file__).parents[1]
    files = [str(path.relative_to(project)) for path in sorted((project / "chelonia").rglob("*.py"))[:count]]
    packed = subprocess.run(["tar", "-C", str(project), "-cf", "-", *files], capture_output=True, check=True)
    subprocess.run(["tar", "-C", str(top), "-xf", "-"], input=packed.stdout, check=True)
    return len(files)


async def _sdk(running: cluster.Running, ln: str) -> dict[str, Cost]:
    """A stream and random reads by the SDK, the measure for the mount."""
    data, costs = os.urandom(_mib() * MIB), dict[str, Cost]()
    async with running.client() as client:
        stop = meter(running.pids)
        await uploads.upload(client, uploads.bytes_source(data), ln)
        costs["stream: write, MiB"] = stop(_mib())
        stop = meter(running.pids)
        size = sum([len(chunk) async for chunk in downloads.read(client, ln)])
        costs["stream: read cold, MiB"] = stop(size / MIB)
        assert client.files is not None
        (there,) = await client.files.look(new_call(), (Look(parse_ln(ln), Want.SOURCES),))
        assert isinstance(there, Looked)
        transfers, places = HttpBytes(client.http, client.clock), iter(_places(_mib()))

        async def read() -> int:
            return len([[chunk async for chunk in transfers.get(there.sources, ByteRange(at, SIZE))] for at in places])

        stop = meter(running.pids)
        costs["random reads, 16"] = stop(sum(await asyncio.gather(*(read() for _ in range(AT_ONCE)))))
    return costs


def _places(mib: int) -> list[int]:
    chosen = random.Random(1)
    return [chosen.randrange(mib * MIB // SIZE) * SIZE for _ in range(8 * mib)]


def _stream(side: Side, path: Path, mib: int, measured: Callable[[str, Callable[[], float]], None]) -> None:
    """A large file; operations are MiB, and for random reads 4 KiB."""
    piece = os.urandom(MIB)
    measured("stream: write, MiB", lambda: _written(path, piece, mib))
    side.anew()
    measured("stream: read cold, MiB", lambda: _read(path) / MIB)
    measured("stream: read again, MiB", lambda: _read(path) / MIB)
    side.anew()
    places = _places(mib)
    with path.open("rb", buffering=0) as file, ThreadPoolExecutor(AT_ONCE) as pool:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        measured("random reads, 16", lambda: len(list(pool.map(lambda at: os.pread(file.fileno(), SIZE, at), places))))
    _written(small := path.with_name("small"), piece)
    measured("append, to 1 MiB", lambda: _each([small] * APPENDS, lambda each: _written(each, piece[:SIZE], mode="ab")))
    measured("append, large", lambda: _each([path] * APPENDS, lambda each: _written(each, piece[:SIZE], mode="ab")))
    path.unlink()


def _each(paths: Sequence[Path], act: Callable[[Path], Any]) -> int:
    for path in paths:
        act(path)
    return len(paths)


def _written(path: Path, data: bytes, times: int = 1, mode: str = "xb") -> int:
    with path.open(mode, buffering=0) as file:
        for _ in range(times):
            file.write(data)
        os.fsync(file.fileno())
    return times


def _read(path: Path) -> int:
    size = 0
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(MIB):
            size += len(chunk)
    return size


# --- the report -------------------------------------------------------------------------------------------------------


def _told(setup: Setup, costs: dict[str, Costs]) -> dict[str, Any]:
    told: dict[str, Any] = {
        name: {work: medians(seen) for work, seen in works.items()} for name, works in costs.items()
    }
    told["sizes"] = {"files": _count(), "entries": 2 * _count(), "stream_mib": _mib(), "bytes": SIZE}
    setup.say(f"  {_count()} files of {SIZE} bytes, {2 * _count()} entries listed, a stream of {_mib()} MiB")
    for work, own in told["chelonia"].items():
        line = f"  {work:24} {own['per_s']:8.0f}/s, CPU s per 1000: {own['server_cpu']:.2f} + {own['client_cpu']:.2f}"
        for peer, ratio in (("sshfs", "ratio"), ("gluster", "ratio_gluster")):
            if (beside := told.get(peer, {}).get(work)) is not None:
                own[ratio] = own["per_s"] / beside["per_s"]
                line += f"; {peer} {beside['per_s']:8.0f}/s, {beside['server_cpu']:.2f}; ratio {own[ratio]:.2f}"
        if (sdk := told["sdk"].get(work)) is not None:
            own["ratio_sdk"] = own["per_s"] / sdk["per_s"]
            cpu = sdk["server_cpu"] + sdk["client_cpu"]
            line += f"; SDK {sdk['per_s']:8.0f}/s, {cpu:.2f}; ratio {own['ratio_sdk']:.2f}"
        setup.say(line)
    return told
