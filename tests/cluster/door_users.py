"""Users of the S3 door and of a mount, who go on during every fault and keep a record of acknowledged changes.

boto3 sends a failed request once to another front end (`s3_faults`). A user of the mount repeats nothing: the mount
does. Afterwards everything acknowledged is read.
"""

from __future__ import annotations

import hashlib
import os
import random
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.harness import Cluster
from tests.cluster.mounts import Mount
from tests.cluster.s3_faults import BUCKET, Tally, Trial, Worker, fronts_of
from tests.support.polling import patience, poll

HOME = "/mounted"
SIZES = (300, 4096, 4096, 60_000, 300_000, 2_500_000)
KEPT = 200
"""Names that one user of the mount writes to, again and again."""


class MountUser(threading.Thread):
    """A user who writes, reads, renames and removes files of its own, and counts failures in `tally.failed`."""

    def __init__(self, number: int, mount: Mount, tally: Tally) -> None:
        super().__init__(daemon=True)
        self._home = mount.path / f"m{number}"
        self._tally = tally
        self._chance = random.Random(1000 + number)
        self.files: dict[str, str] = {}
        """Name to MD5; a name is missing while a call that broke off leaves its state unsure."""
        self.doing = ""
        self.stopping = False
        self._home.mkdir(exist_ok=True)

    def run(self) -> None:
        while not self.stopping:
            what = self._chance.choices(("write", "read", "rename", "remove", "list"), (45, 35, 8, 7, 5))[0]
            begun, self.doing = time.monotonic(), what
            try:
                getattr(self, f"_{what}")()
            except OSError as error:
                with self._tally.lock:
                    self._tally.failed[f"mount {what}: {error.strerror}"] += 1
            with self._tally.lock:
                self._tally.done.append((begun, time.monotonic() - begun, f"mount {what}"))

    def _some(self) -> str:
        return self._chance.choice(list(self.files) or [""])

    def _write(self) -> None:
        name, data = f"f{self._chance.randrange(KEPT)}", self._chance.randbytes(self._chance.choice(SIZES))
        self.files.pop(name, None)
        with (self._home / name).open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self.files[name] = hashlib.md5(data).hexdigest()

    def _read(self) -> None:
        if name := self._some():
            self.compare(name)

    def compare(self, name: str) -> None:
        """Read a file. Raises: OSError."""
        if hashlib.md5((self._home / name).read_bytes()).hexdigest() != self.files[name]:
            with self._tally.lock:
                self._tally.wrong.append(f"mount: {name} is not what was synced")

    def _rename(self) -> None:
        if name := self._some():
            digest, target = self.files.pop(name), f"f{self._chance.randrange(KEPT)}"
            self.files.pop(target, None)
            (self._home / name).rename(self._home / target)
            self.files[target] = digest

    def _remove(self) -> None:
        if name := self._some():
            del self.files[name]
            (self._home / name).unlink()

    def _list(self) -> None:
        missing = set(self.files) - set(os.listdir(self._home))
        if missing:
            with self._tally.lock:
                self._tally.wrong.append(f"mount: a listing lacks {sorted(missing)[:5]}")


@dataclass
class DoorUsers:
    """All of them, from `start` to `judge`."""

    cluster: Cluster
    root: Path
    tally: Tally = field(default_factory=Tally)
    users: list[Worker | MountUser] = field(default_factory=list)
    mount: Mount | None = None

    def start(self, threads: int = 1) -> DoorUsers:
        """So many at each door. There is no mount where nothing can be mounted."""
        self.fronts = fronts_of(self.cluster, self.root / "ca.pem")
        self.fronts[0].create_bucket(Bucket=BUCKET)
        self.users += [Worker(number, self.fronts, self.tally) for number in range(threads)]
        if Path("/dev/fuse").exists():
            self.cluster.request("MKCOL", f"{self.cluster.files_url}{HOME}")
            self.mount = Mount(self.cluster, HOME, self.root / "mount", self.root / "cache").start()
            self.users += [MountUser(number, self.mount, self.tally) for number in range(threads)]
        for each in self.users:
            each.start()
        return self

    def more(self, calls: int = 40, deadline: float = 120.0) -> None:
        """Wait until so many more calls have been answered, at each door."""
        goal = {mounted: self._answered(mounted) + calls for mounted in (False, self.mount is not None)}
        poll(
            lambda: all(self._answered(mounted) >= wanted for mounted, wanted in goal.items()), deadline,
            what=f"{calls} more answers at each door",
        )  # fmt: skip

    def _answered(self, mounted: bool) -> int:
        return sum(what.startswith("mount") == mounted for _, _, what in list(self.tally.done))

    def told(self, since: float) -> str:
        """Return the longest calls since then, by kind, seconds, and all retries and failures so far."""
        longest = {what: seconds for what, seconds in self.tally.stalls(since).items() if seconds >= 0.5}
        again, failed = (seen.most_common(3) for seen in (self.tally.retried, self.tally.failed))
        return f"longest {longest} s, {os.getloadavg()[0]:.0f} load; asked again in all {again}; failed {failed}"

    def stop(self) -> None:
        """Let all end. Raises: AssertionError when one hangs."""
        for each in self.users:
            each.stopping = True
        for each in self.users:
            each.join(120 * patience())
            assert not each.is_alive(), f"{each.name} hangs: {getattr(each, 'doing', 'S3')}"

    def judge(self) -> list[str]:
        """Return differences from acknowledged changes, and tracebacks of the mount. Failed calls may come of the
        load."""
        for user in self.users:
            for name in user.files if isinstance(user, MountUser) else ():
                user.compare(name)
        wrong = [*self.tally.wrong, *Trial(self.cluster, self.fronts, self.tally).judge()]
        if self.mount is not None:
            self.mount.end()
            wrong += [line for line in self.mount.log().splitlines() if "Traceback" in line]
        return wrong

    def abandon(self) -> None:
        """Stop all, in whatever state they are."""
        for each in self.users:
            each.stopping = True
        if self.mount is not None:
            self.mount.abandon()
