"""Foreign programs and suites on a mount of a real cluster, some while its nodes die. `make mounted` runs them, as
root.

Each proof is one function: it raises, or returns its result. One whose program is not installed is skipped and
reported. The environment names checkouts of suites: PJDFSTEST (its directory, built), FSX (the binary: as in xfstests).
CHELONIA_CONFORM_PYTHON is a Python with uproot.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chelonia.core.names import parse_ln
from chelonia.core.ports.files import Content, Failure, Splice
from chelonia_clients import connect
from chelonia_clients.settings import Wish
from chelonia_fuse.xattrs import STATUS
from tests.cluster.harness import Cluster
from tests.cluster.mounts import Mount
from tests.conform.clients import PYTHON, UPROOT_READS, UPROOT_WRITES
from tests.support.polling import poll

KNOWN = {"rename/24": {4, 5, 8, 9}, "ftruncate/00": {19}, "truncate/00": {19}, "rename/00": {96}}
"""Checks of pjdfstest that fail, or may. Link counts of directories are not kept; the change time of an empty file that
was made among many moves was wrong once (docs/operate/mount.md)."""
FREEZE_S, BETWEEN_S = 5.0, 20.0
LARGE = 4 << 20
PROJECT = Path(__file__).parents[2]


class Skipped(Exception):
    """A program or suite of a proof is missing."""


@dataclass
class Desk:
    """Two mounts of one collection of a cluster, and a local directory. `minutes`: of the proofs that run for a time.
    `calm`: no node dies meanwhile."""

    cluster: Cluster
    one: Mount
    two: Mount
    scratch: Path
    minutes: float
    entries: int
    calm: bool = False
    faults: list[str] = field(default_factory=list)

    def new(self, name: str) -> Path:
        path = self.one.path / name
        path.mkdir()
        return path

    def run(self, *argv: str | Path, cwd: Path | None = None, timeout: float = 1800.0) -> str:
        """Run a command; returns its output. Raises: AssertionError when it fails, Skipped."""
        words = [str(word) for word in argv]
        if shutil.which(words[0]) is None:
            raise Skipped(f"no {words[0]}")
        done = subprocess.run(words, cwd=cwd or self.scratch, capture_output=True, timeout=timeout, check=False)
        said = (done.stdout + done.stderr).decode("utf-8", "replace")
        assert done.returncode == 0, f"{' '.join(words)[:200]}: {done.returncode}\n{said[-3000:]}"
        return said

    @contextlib.contextmanager
    def dying(self) -> Iterator[None]:
        """Nodes are killed and frozen, one after another, each whole again before the next."""
        if self.calm:
            yield
            return
        over, chosen = threading.Event(), random.Random(1)
        thread = threading.Thread(target=self._faults, args=(over, chosen))
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _faults(self, over: threading.Event, chosen: random.Random) -> None:
        while not over.wait(BETWEEN_S):
            name = chosen.choice([*self.cluster.core_names, *self.cluster.shepherd_names])
            freeze = name in self.cluster.shepherd_names and chosen.random() < 0.5
            self.faults.append(f"{'freeze' if freeze else 'kill'} {name}")
            print(f"    {time.strftime('%H:%M:%S')} {self.faults[-1]}", flush=True)
            if freeze:
                self.cluster.signal(name, signal.SIGSTOP)
                over.wait(FREEZE_S)
                self.cluster.signal(name, signal.SIGCONT)
            else:
                self.cluster.wait_restarted(name, self.cluster.kill(name))


def pjdfstest(desk: Desk) -> str:
    """The POSIX test suite: all checks but those in `KNOWN`."""
    suite = Path(os.environ.get("PJDFSTEST", "/nowhere"))
    if not (suite / "pjdfstest").exists():
        raise Skipped("PJDFSTEST names no built checkout of pjdfstest")
    argv = ["prove", "-r", str(suite / "tests")]
    done = subprocess.run(argv, cwd=desk.new("pjd"), capture_output=True, text=True, timeout=3600, check=False)
    failed = re.findall(r"/(\w+/\d+)\.t +\(Wstat.*Failed: [1-9]\d*\)\n +Failed tests?: +([\d, -]+)", done.stdout)
    found = re.search(r"Files=(\d+), Tests=(\d+)", done.stdout)
    assert found, done.stdout[-2000:]
    wrong = {name: numbers(told) for name, told in failed}
    assert all(checks <= KNOWN.get(name, set()) for name, checks in wrong.items()), wrong
    return f"{found[1]} files, {found[2]} checks, {sum(map(len, wrong.values()))} fail: {sorted(wrong)}"


def numbers(told: str) -> set[int]:
    """`4-5, 8` as a set."""
    spans = [word.split("-") for word in told.replace(" ", "").split(",") if word]
    return {n for span in spans for n in range(int(span[0]), int(span[-1]) + 1)}


def fsx(desk: Desk) -> str:
    """Random reads, writes, truncations, closing and opening, while nodes die (not when calm): no byte may be wrong."""
    binary, top = os.environ.get("FSX", ""), desk.new("fsx")
    if not Path(binary).is_file():
        raise Skipped("FSX names no binary")
    begun, done = time.monotonic(), 0
    with desk.dying():
        while time.monotonic() < begun + 60 * desk.minutes:
            seed = int(begun) + done
            words = ("-q", "-c", "20", "-N", "500", "-l", "1500000", "-S", str(seed), "-P", str(desk.scratch))
            desk.run(binary, *words, f"f{done // 500 % 5}", cwd=top)
            done += 500
    return f"{done} operations in {time.monotonic() - begun:.0f} s, none wrong; {len(desk.faults)} faults"


def fio(desk: Desk) -> str:
    """Writes with checksums, read back."""
    top = desk.new("fio")
    for how in ("randwrite", "write"):
        words = (f"--name={how}", f"--rw={how}", "--bs=16k", "--size=24m", "--verify=crc32c", "--do_verify=1")
        said = desk.run("fio", *words, "--verify_fatal=1", "--fsync=256", f"--directory={top}", "--numjobs=2")
        assert said.count("err= 0") >= 2, said[-2000:]
    return "random and sequential, 2 jobs of 24 MiB each: nothing wrong"


def bonnie(desk: Desk) -> str:
    """bonnie++: characters, blocks, seeks, and files by the hundred."""
    words = ("-f", "-s", "64m", "-r", "32", "-n", "0:65536:16:4", "-u", "root", "-q")
    said = desk.run("bonnie++", "-d", desk.new("bonnie"), *words)
    return said.strip().splitlines()[-1][:120]


def dbench(desk: Desk) -> str:
    """dbench: the load of a file server's clients."""
    load = next((p for p in map(Path, ("/usr/share/dbench/client.txt",)) if p.exists()), None)
    if load is None:
        raise Skipped("no client.txt of dbench")
    seconds = str(max(20, int(20 * desk.minutes)))
    said = desk.run("dbench", "-t", seconds, "-c", load, "-D", desk.new("dbench"), "2")
    assert "ERROR" not in said, said[-2000:]
    return next(line for line in reversed(said.splitlines()) if line.startswith("Throughput"))


def postmark(desk: Desk) -> str:
    """postmark: small files made, appended to, read and removed."""
    script = desk.scratch / "postmark"
    wish = ("number 200", "transactions 300", "size 500 20000", "run", "quit")
    lines = (f"set location {desk.new('postmark')}", *(f"set {word}" if " " in word else word for word in wish))
    script.write_text("\n".join(lines))
    said = desk.run("postmark", script)
    assert "Error" not in said, said[-1000:]
    return "; ".join(re.findall(r"\d+ (?:created|read|appended|deleted) \([^)]*\)", said)) or said[-200:]


def building(desk: Desk) -> str:
    """A project of C cloned and built on the mount, from a repository on it."""
    suite, top = Path(os.environ.get("PJDFSTEST", "/nowhere")), desk.new("built")
    if not (suite / ".git").exists():
        raise Skipped("PJDFSTEST names no checkout")
    desk.run("git", "clone", "-q", "--bare", "--no-local", suite, top / "bare")
    desk.run("git", "clone", "-q", top / "bare", top / "checkout")
    desk.run("git", "fsck", "--full", cwd=top / "checkout")
    desk.run("autoreconf", "-ifs", cwd=top / "checkout")
    desk.run(top / "checkout/configure", cwd=top / "checkout")
    desk.run("make", cwd=top / "checkout")
    assert (desk.two.path / "built/checkout/pjdfstest").stat().st_size > 10_000
    changed = desk.run("git", "status", "--porcelain", "--untracked-files=no", cwd=top / "checkout")
    assert not changed, changed
    return "cloned twice, fsck, autoreconf, configure, make; nothing that git knows has changed"


def sqlite(desk: Desk) -> str:
    """Transactions by rollback journal and by WAL: of two processes on one mount, and of two mounts in turn. Of two
    mounts at a time the second one must fail."""
    tops = [desk.new("sqlite"), desk.two.path / "sqlite"]
    for mode in ("delete", "wal"):
        path = tops[0] / mode
        with contextlib.closing(sqlite3.connect(path, timeout=60)) as one:
            assert one.execute(f"pragma journal_mode={mode}").fetchone() == (mode,)
            one.execute("create table t (n integer primary key, what text)")
            with subprocess.Popen(insertion(path, 0, 10), cwd=PROJECT) as other:
                insert(str(path), 10, 10)
            assert other.returncode == 0
        for turn in range(4):
            desk.run(*insertion(tops[turn % 2] / mode, 20 + turn, 1), cwd=PROJECT)
        for top in tops:
            with contextlib.closing(sqlite3.connect(top / mode)) as reader:
                assert reader.execute("pragma integrity_check").fetchone() == ("ok",), mode
                assert reader.execute("select count(*) from t").fetchone() == (24,)
        assert at_a_time([top / mode for top in tops]) == 1, mode
    return "rollback journal and WAL: two processes, and two mounts in turn: integrity ok; at a time: one of two fails"


def insertion(path: Path, first: int, count: int) -> list[str]:
    """The command that inserts rows in a process of its own."""
    act = f"from tests.conform.mounted import insert; insert({str(path)!r}, {first}, {count})"
    return [sys.executable, "-c", act]


def insert(path: str, first: int, count: int) -> None:
    with contextlib.closing(sqlite3.connect(path, timeout=60)) as base:
        for n in range(first, first + count):
            with base:
                base.execute("insert into t values (?, ?)", (n, "x" * 1000))


def at_a_time(paths: Sequence[Path]) -> int:
    """Insert a row by each path in overlapping transactions. Returns: how many were acknowledged."""
    with contextlib.ExitStack() as stack:
        bases = [stack.enter_context(contextlib.closing(sqlite3.connect(path, isolation_level=None))) for path in paths]
        for each in bases:
            each.execute("begin immediate")  # each mount has its own locks
        for n, each in enumerate(bases):
            each.execute("insert into t values (?, 'at a time')", (100 + n,))
        acknowledged = 0
        for each in bases:
            with contextlib.suppress(sqlite3.OperationalError):
                each.execute("commit")
                acknowledged += 1
        return acknowledged


def rsync(desk: Desk) -> str:
    """A tree twice: the second time nothing moves."""
    source, top = PROJECT / "chelonia" / "core", desk.new("rsync")
    desk.run("rsync", "-a", "--exclude=__pycache__", f"{source}/", f"{top}/")
    again = desk.run("rsync", "-ai", "--exclude=__pycache__", f"{source}/", f"{top}/")
    assert not again.strip(), again
    desk.run("diff", "-r", "-x", "__pycache__", source, desk.two.path / "rsync")
    return f"{sum(1 for _ in top.rglob('*'))} entries; the second moves nothing; the other mount has the same"


def tar(desk: Desk) -> str:
    """A tree out of and into an archive."""
    top, archive = desk.new("tar"), desk.scratch / "tree.tar"
    desk.run("tar", "-C", PROJECT, "--exclude=__pycache__", "-cf", archive, "chelonia", "docs")
    begun = time.monotonic()
    desk.run("tar", "-C", top, "-xf", archive)
    took, count = time.monotonic() - begun, sum(1 for _ in top.rglob("*"))
    desk.run("tar", "-C", top, "-df", archive)
    desk.run("tar", "-C", desk.two.path / "tar", "-cf", desk.scratch / "again.tar", ".")
    return f"{count} entries out in {took:.0f} s ({count / took:.0f}/s), equal; archived again by the other mount"


def uproot(desk: Desk) -> str:
    """A tree of ROOT, written in pieces on one mount and read on the other."""
    if subprocess.run([PYTHON, "-c", "import uproot"], capture_output=True, check=False).returncode:
        raise Skipped("CHELONIA_CONFORM_PYTHON has no uproot")
    path = desk.new("uproot") / "tree.root"
    desk.run(PYTHON, "-c", UPROOT_WRITES, path)
    for each in (path, desk.two.path / "uproot/tree.root"):
        desk.run(PYTHON, "-c", UPROOT_READS, each)
    return f"300000 entries in 30 pieces, {path.stat().st_size} bytes, right on both mounts"


def coherence(desk: Desk) -> str:
    """Two processes on two mounts: appended lines, names exchanged, lock files: nothing lost, nothing twice."""
    desk.new("both")
    tops, rounds = [mount.path / "both" for mount in (desk.one, desk.two)], 30
    argv = [sys.executable, "-c", "from tests.conform import mounted; mounted.play()"]
    who = [subprocess.Popen([*argv, str(n), str(rounds), top], cwd=PROJECT) for n, top in enumerate(tops)]
    assert [each.wait(600) for each in who] == [0, 0]
    lines = (tops[0] / "log").read_text().splitlines()
    assert sorted(lines) == sorted(f"{who} {n}" for who in (0, 1) for n in range(rounds)), lines
    assert (tops[1] / "count").read_text() == str(2 * rounds)
    left = sorted(path.name for path in tops[0].iterdir())
    assert left == ["count", "holder", "log"], left
    return f"{rounds} rounds each: {len(lines)} appended lines, a counter under a lock file right, no conflict"


def play() -> None:
    """One process of `coherence`: its number, how many rounds, and its directory are its arguments."""
    who, top = sys.argv[1], Path(sys.argv[3])
    for n in range(int(sys.argv[2])):
        held = lock(top / "lock")
        (top / "holder").write_text(who)
        assert (top / "holder").read_text() == who
        count = int((top / "count").read_text()) if (top / "count").exists() else 0
        (top / f"count.{who}").write_text(str(count + 1))
        (top / f"count.{who}").rename(top / "count")
        held()
        with (top / "log").open("a") as log:
            log.write(f"{who} {n}\n")


def lock(path: Path) -> Callable[[], None]:
    """Hold a lock file; returns how to give it up."""
    give_up = time.monotonic() + 120
    while True:
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            return path.unlink
        assert time.monotonic() < give_up, "the lock is never free"
        time.sleep(0.05)


def unmounting(desk: Desk) -> str:
    """Writers at work while it is unmounted: a new mount has everything closed without an error."""
    mount = Mount(desk.cluster, desk.one.place, desk.scratch / "third", desk.scratch / "third-cache").start()
    top, closed, over = mount.path / "unmounted", list[str](), threading.Event()
    top.mkdir()

    def write(who: int) -> None:
        for n in range(10_000):
            try:
                (top / f"{who}-{n}").write_bytes(f"{who}-{n}".encode() * 100)
            except OSError:
                return
            closed.append(f"{who}-{n}")
            if over.is_set():
                return

    threads = [threading.Thread(target=write, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    poll(lambda: len(closed) > 40, 120.0, what="some are written")
    subprocess.run(["fusermount3", "-u", "-z", str(mount.path)], check=True)
    over.set()
    for thread in threads:
        thread.join()
    assert mount.process is not None
    assert mount.process.wait(90) == 0, mount.log()
    there = desk.two.path / "unmounted"
    lost = [name for name in closed if (there / name).read_bytes() != name.encode() * 100]
    assert not lost, lost
    return f"{len(closed)} files were closed, all are there"


def killing(desk: Desk) -> str:
    """`kill -9` of the mount under writers, over and over: everything closed or synced is there."""
    mount = Mount(desk.cluster, desk.one.place, desk.scratch / "fourth", desk.scratch / "fourth-cache")
    kept, rounds = dict[str, bytes](), 4
    for turn in range(rounds):
        mount.start()
        top = mount.path / "killed"
        top.mkdir(exist_ok=True)
        over = threading.Timer(4.0, mount.kill)
        over.start()
        with contextlib.suppress(OSError):
            for n in range(10_000):
                data = os.urandom(3000)
                with (top / f"{turn}-{n}").open("wb", buffering=0) as file:  # else `fsync` comes before the bytes
                    file.write(data)
                    if n % 2:
                        os.fsync(file.fileno())
                        kept[f"{turn}-{n}"] = data
                kept[f"{turn}-{n}"] = data
        over.join()
    mount.start()
    lost = [name for name, data in kept.items() if (mount.path / "killed" / name).read_bytes() != data]
    mount.end()
    assert not lost, lost
    return f"{rounds} deaths, {len(kept)} files closed or synced, none lost"


def leaks(desk: Desk) -> str:
    """Files opened, written, read, renamed and removed on a mount with a small cache, for `minutes`, beside more bytes
    read than the cache takes. Descriptors and memory stay the same, and the cache keeps its size."""
    top, large = desk.new("leaks"), [f"large{n}" for n in range(12)]
    for name in large:
        (top / name).write_bytes(os.urandom(LARGE))
    mount = Mount(desk.cluster, desk.one.place, desk.scratch / "fifth", desk.scratch / "fifth-cache", "cache_size=32M")
    mount.start()
    assert mount.process is not None
    seen, caches, begun, own = list[tuple[int, int]](), list[int](), time.monotonic(), mount.path / "leaks"
    while len(seen) < 6 or time.monotonic() < begun + 60 * desk.minutes:
        for n in range(60):
            path = own / f"{len(seen)}-{n}"
            path.write_bytes(os.urandom(20_000))
            path.read_bytes()
            path.rename(own / "moved")
            (own / "moved").unlink()
        for name in large:
            assert len((own / name).read_bytes()) == LARGE
        seen.append(used(mount.process.pid))
        status = json.loads(os.getxattr(mount.path, STATUS))
        files = [path for path in (Path(status["cache"]) / "data").iterdir() if path.exists()]
        caches.append(max(status["cache_bytes"], sum(512 * path.stat().st_blocks for path in files)))
    mount.end()
    assert seen[-1][0] <= seen[1][0] + 20, seen  # a descriptor lost with each file would be 60 in each turn
    assert seen[-1][1] <= seen[1][1] + 8 * 1024, seen
    assert LARGE < max(caches) <= (32 << 20) + LARGE, caches
    fds, memory = ((at[0], at[1], at[-1]) for at in ([fds for fds, _ in seen], [kib // 1024 for _, kib in seen]))
    many, most = 60 * len(seen), max(caches) / (1 << 20)
    return f"{many} files; first, second, last: descriptors {fds}, memory {memory} MiB; cache at most {most:.1f} MiB"


def used(pid: int) -> tuple[int, int]:
    """Open files, and resident memory in KiB, of a command's mount process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return len(os.listdir(f"/proc/{pid}/fd")), int(re.findall(r"VmRSS:\s+(\d+)", status)[0])


def many(desk: Desk) -> str:
    """A directory with many entries: listed whole with attributes, by readdir and stat."""
    process = desk.one.process
    assert process is not None
    top, before = desk.new("many"), used(process.pid)[1]
    asyncio.run(made(desk, "many"))
    rates = []
    for mount in (desk.two, desk.one):
        begun, count = time.monotonic(), 0
        for entry in os.scandir(mount.path / "many"):
            entry.stat()
            count += 1
        rates.append(count / (time.monotonic() - begun))
        assert count == desk.entries, count
    begun = time.monotonic()
    desk.run("find", desk.two.path / "many", "-size", "+0")
    rates.append(desk.entries / (time.monotonic() - begun))
    after = used(process.pid)[1]
    assert top.is_dir()
    told = ", ".join(f"{rate:.0f}/s" for rate in rates)
    return f"{desk.entries} entries: {told} (scandir twice, find); memory {before // 1024} -> {after // 1024} MiB"


async def made(desk: Desk, name: str) -> None:
    """Empty files, many in a message."""
    async with connect.from_environment(Wish(cluster=desk.cluster.root / "cluster.json")) as client:
        assert client.files is not None
        for start in range(0, desk.entries, 100):
            places = [
                parse_ln(f"{desk.one.place}/{name}/f{n:07d}") for n in range(start, min(start + 100, desk.entries))
            ]
            changes = tuple(Splice(place, Content(size=0, whole=True)) for place in places)
            wrong = [each for each in await client.files.apply(client.new_call(), changes) if isinstance(each, Failure)]
            assert not wrong, wrong[0]


PROOFS: dict[str, Callable[[Desk], str]] = {
    each.__name__: each
    for each in (
        coherence, sqlite, rsync, tar, uproot, building, fio, postmark, dbench, bonnie, unmounting, killing, leaks,
        many, pjdfstest, fsx,
    )
}  # fmt: skip


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make mounted")
    parser.add_argument("names", nargs="*", help=" ".join(PROOFS))
    parser.add_argument("--minutes", type=float, default=10.0, help="of fsx and leaks")
    parser.add_argument("--calm", action="store_true", help="no node dies under fsx")
    parser.add_argument("--entries", type=int, default=20_000, help="of the large directory")
    parser.add_argument("--replicas", type=int, default=3, help="of the A-Hash")
    wish = parser.parse_args(argv)
    root, failed = Path(tempfile.mkdtemp(prefix="chelonia-mounted-")), list[str]()
    cluster = Cluster(root / "cluster", shepherds=3, replicas=wish.replicas)
    mounts = [Mount(cluster, "/desk", root / name, root / f"cache-{name}", "allow_other") for name in ("one", "two")]
    try:
        cluster.start()
        cluster.request("MKCOL", f"{cluster.files_url}/desk")
        for mount in mounts:
            mount.start()
        (root / "scratch").mkdir()
        desk = Desk(cluster, *mounts, root / "scratch", wish.minutes, wish.entries, wish.calm)
        for name in wish.names or PROOFS:
            failed += [] if attempted(name, desk) else [name]
        for mount in mounts:
            mount.end()
            assert "Traceback" not in mount.log(), mount.log()
    finally:
        for mount in mounts:
            mount.abandon()
        cluster.stop()
        if not failed:
            shutil.rmtree(root, ignore_errors=True)
    print(f"failed: {' '.join(failed)}; all is kept in {root}" if failed else "all well")
    return len(failed)


def attempted(name: str, desk: Desk) -> bool:
    begun = time.monotonic()
    try:
        said, good = PROOFS[name](desk), "ok"
    except Skipped as reason:
        said, good = str(reason), "skipped"
    except (OSError, AssertionError, subprocess.SubprocessError) as error:
        said, good = repr(error) if not str(error) else str(error), "FAILED"
    print(f"{name}: {good}, {time.monotonic() - begun:.0f} s: {said}", flush=True)
    return good != "FAILED"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
