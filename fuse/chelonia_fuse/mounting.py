"""One mount from beginning to end: connection, cache directory, journal, kernel, and status."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.metadata import TYPE_COLLECTION
from chelonia.core.names import LogicalName, parse_ln
from chelonia.core.timing.jobs import Job, Jobs, Wait, every
from chelonia.hosting.net.clock import SystemClock, SystemIds
from chelonia.hosting.net.http_client import HttpClient
from chelonia.hosting.net.rpc_client import Link, RetryLimits, remote_files
from chelonia.hosting.transfer.front import HttpBytes
from chelonia_fuse import kernel
from chelonia_fuse.cluster import MountedCluster
from chelonia_fuse.committing import FileCommitter
from chelonia_fuse.copies import Cache, make_directory
from chelonia_fuse.errors import AGAIN
from chelonia_fuse.filesystem import FileSystem
from chelonia_fuse.inodes import Inodes
from chelonia_fuse.journal import StagingJournal, count_waiting
from chelonia_fuse.options import Options
from chelonia_fuse.reading import CopyReader
from chelonia_fuse.xattrs import Xattrs

READ_MS, RETRY_MS = 15_000, 10_000
"""Time limit of a call to one Bartender, and time for which a request is repeated."""
DRAIN_S: Final = 30.0
"""How long the end of a mount waits for commits from its journal; the next mount does the rest."""
RENEW_MS: Final = 10_000
"""Interval of checks for renewed certificates: a proxy lasts some hours, a CRL some days, a mount longer."""
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MountConnection:
    """The connection to the cluster: Bartenders, an HTTP client with the user's certificate, copies of new files."""

    bartenders: Sequence[str]
    http: HttpClient
    wanted: int


class Mount:
    """A mount of `place` at `mountpoint`."""

    def __init__(self, connection: MountConnection, place: LogicalName, mountpoint: Path, options: Options) -> None:
        self._place = place
        self._mountpoint = mountpoint
        self._options = options
        self._http = http = connection.http
        link = Link(http, SystemClock(), SystemIds(), compact=http.compact)
        files = remote_files(link, connection.bartenders, RetryLimits(retry_ms=RETRY_MS, read_ms=READ_MS))
        self._cluster = MountedCluster(files, HttpBytes(http, SystemClock()), connection.wanted)
        self._owner = _owner(place, mountpoint)
        self._directory = cache_directory(options, place, mountpoint)
        self._began_s = time.time()

    async def run(self, ready: Callable[[], None], report: Callable[[str], None] | None = None) -> None:
        """Mount, and return when it was unmounted. `ready` is called once it can be used; `report` is called with a
        line of activity each second.

        Raises: NOT_FOUND, NOT_A_COLLECTION, BAD_CONFIG, and other failures of the cluster.
        """
        attributes = (await self._cluster.look(self._place)).attributes
        if attributes.type != TYPE_COLLECTION:
            raise CheloniaError(Kind.NOT_A_COLLECTION, "mount", str(self._place), f"it is a {attributes.type}")
        with _locked(self._directory, self._owner):
            self._bind(Inodes(attributes, self._place, self._options.inodes))
            if waits := await self._committer.replay(await self._identity()):
                _LOG.warning("%d files were closed before and not committed; they are committed now", waits)
            await self._serve(ready, report)

    async def _identity(self) -> str:
        """Text that identifies the cluster: when its root was made; "" where the user may not see that."""
        try:
            made_ns = (await self._cluster.look(parse_ln("/"))).attributes.created_ns
        except CheloniaError as error:
            if error.kind in AGAIN:
                raise
            made_ns = 0
        return str(made_ns) if made_ns else ""

    def _bind(self, inodes: Inodes) -> None:
        self._cache = Cache(self._directory / "data", self._options.cache_bytes)
        reader = CopyReader(self._cluster, self._cache)
        journal = StagingJournal(self._directory / "journal")
        self._committer = FileCommitter(
            self._cluster, inodes, self._cache, reader, journal, strict=self._options.strict
        )
        system = FileSystem(self._cluster, inodes, self._cache, self._committer, reader)
        self._inodes = inodes
        self._binding = kernel.Binding(system, Xattrs(self._cluster, self.status), self._options)

    async def _serve(self, ready: Callable[[], None], report: Callable[[str], None] | None) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, kernel.stop)
        renewing = Job("certificates", every(RENEW_MS, self._renew), Wait(RENEW_MS), loud=True)
        jobs = Jobs(SystemClock(), [self._committer.job(), renewing])
        working = [asyncio.create_task(each) for each in (jobs.run(), self._binding.requests.watch())]
        if report is not None:
            working.append(asyncio.create_task(self._report(report)))
        try:
            await kernel.serve(self._binding, (str(self._place), str(self._mountpoint)), self._options, ready)
        finally:
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)
            await self._drain()

    async def _renew(self) -> None:
        """Load renewed certificates, proxies and CRLs. Raises: the failure, after which the old ones stay."""
        if await asyncio.to_thread(self._http.renew):
            if self._http.compact is not None:
                self._http.compact.anew()
            self._cluster.is_away = False
            _LOG.info("certificates were renewed, and are shown from now on")

    async def _drain(self) -> None:
        """Commit local changes, for at most `DRAIN_S`."""
        await self._committer.drain(DRAIN_S)
        if waits := self._waits():
            _LOG.warning("%d files wait in %s; the next mount commits them", waits, self._directory)
        for inode in self._cache.inodes():
            if inode.copy is not None and not inode.copy.queued:
                self._cache.drop(inode)

    def _waits(self) -> int:
        return len(self._committer.waiting) + len(self._committer.behind)

    def status(self) -> dict[str, Any]:
        """Return the status of this mount."""
        counts = self._binding.counts
        return {
            "place": str(self._place), "mountpoint": str(self._mountpoint), "pid": os.getpid(),
            "seconds": int(time.time() - self._began_s), "inodes": len(self._inodes), "copies": len(self._cache),
            "cache": str(self._directory), "cache_bytes": self._cache.bytes,
            "cache_bytes_max": self._options.cache_bytes, "waiting": self._waits(),
            "conflicts": self._committer.conflicts, "requests": sum(counts.values()),
            "read_bytes": self._binding.read_bytes, "written_bytes": self._binding.written_bytes,
        }  # fmt: skip

    async def _report(self, report: Callable[[str], None]) -> None:
        before = self.status()
        while True:
            await asyncio.sleep(1)
            now = self.status()
            rates = {name: now[name] - before[name] for name in ("requests", "read_bytes", "written_bytes")}
            before = now
            report(
                f"{rates['requests']}/s, {rates['read_bytes'] / 1e6:.1f} MB/s read, "
                f"{rates['written_bytes'] / 1e6:.1f} MB/s written, {now['waiting']} waiting, "
                f"{now['conflicts']} conflicts"
            )


def cache_directory(options: Options, place: LogicalName, mountpoint: Path) -> Path:
    """Return the directory of a mount's bytes and journal: the same for each mount of a collection at one place."""
    name = hashlib.sha256(_owner(place, mountpoint).encode()).hexdigest()[:16]
    return _caches(options) / f"mount-{name}"


def _owner(place: LogicalName, mountpoint: Path) -> str:
    return f"{place}\n{mountpoint}\n{os.getuid()}"


def _caches(options: Options) -> Path:
    return Path(options.cache).expanduser() if options.cache else cache_home()


def cache_home() -> Path:
    """Return the default directory for caches of this user's mounts."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "chelonia"


@dataclass(frozen=True, slots=True)
class Stranded:
    """Files that wait where no mount is. `place`, `mountpoint`: of the mount that has left them."""

    place: str
    mountpoint: str
    cache: str
    waiting: int

    def __str__(self) -> str:
        many = f"{self.waiting} files wait" if self.waiting > 1 else "1 file waits"
        return f"{many} in {self.cache}; the next mount of {self.place} at {self.mountpoint} commits what waits"


def find_stranded(options: Options) -> list[Stranded]:
    """Return what waits in cache directories of this user that no mount uses: in `-o cache=`, or the default place."""
    out = []
    for path in sorted(_caches(options).glob("mount-*/lock")):
        with path.open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                continue  # its mount is there, or still commits
            place, _, rest = lock.read().partition("\n")
        with contextlib.suppress(FileNotFoundError):  # that mount got no further than its lock
            if waiting := count_waiting(path.parent):
                out.append(Stranded(place, rest.rpartition("\n")[0], str(path.parent), waiting))
    return out


@contextlib.contextmanager
def _locked(directory: Path, owner: str) -> Iterator[None]:
    """Keep a cache directory from a second mount. Raises: BAD_CONFIG."""
    make_directory(directory)
    with (directory / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            cause = "another mount uses this cache directory; unmount it, or give -o cache=DIR"
            raise CheloniaError(Kind.BAD_CONFIG, "mount", str(directory), cause) from error
        lock.truncate(0)
        lock.write(owner)
        lock.flush()
        yield
