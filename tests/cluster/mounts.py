"""A mount of a real cluster: `chelonia mount` in a process of its own, to be killed or ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.harness import Cluster
from tests.support.polling import patience


@dataclass
class Mount:
    """One `chelonia mount` in a process of its own."""

    cluster: Cluster
    place: str
    path: Path
    cache: Path
    options: str = ""
    proxy: Path | None = None
    """Proxy file of its user; None: the cluster's user."""
    terminal: int | None = None
    """Where it writes messages for a person's terminal; None: to the log."""
    process: subprocess.Popen[str] | None = None
    lines: list[str] = field(default_factory=list)

    def chelonia(self, *words: str) -> list[str]:
        who = ["--proxy", str(self.proxy)] if self.proxy else []
        return [sys.executable, "-m", "chelonia_clients.cli", "--cluster", str(self.cluster.root), *who, *words]

    def start(self) -> Mount:
        self.path.mkdir(exist_ok=True)
        options = ",".join(filter(None, (f"cache={self.cache}", self.options)))
        with (self.path.parent / f"{self.path.name}.log").open("ab") as log:
            argv = self.chelonia("mount", "-o", options, self.place, str(self.path))
            stacks = os.environ | {"PYTHONFAULTHANDLER": "1"}  # prints stacks when it is aborted
            errors = log if self.terminal is None else self.terminal
            self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=errors, text=True, env=stacks)
        assert self.process.stdout is not None
        with self.process.stdout as out:
            assert out.readline().startswith("mounted"), self.log()
        return self

    def log(self) -> str:
        return (self.path.parent / f"{self.path.name}.log").read_text()

    def kill(self) -> None:
        """kill -9, as if the machine's power went: all that it had in memory is gone."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        subprocess.run(["fusermount3", "-u", "-z", str(self.path)], check=True)

    def end(self) -> None:
        argv = self.chelonia("umount", str(self.path))
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60 * patience())
        assert done.returncode == 0, done.stderr
        assert self.process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            assert self.process.wait(30 * patience()) == 0, self.log()
            return
        self.process.send_signal(signal.SIGABRT)
        self.process.wait()
        raise AssertionError(f"it does not end; mount namespaces with a copy: {self.copies()}\n{self.log()}")

    def copies(self) -> list[str]:
        """Processes in whose mount namespaces it is: it ends when the last lets go."""
        found = []
        for table in Path("/proc").glob("[0-9]*/mountinfo"):
            with contextlib.suppress(OSError):
                found += [table.parent.name] if f" {self.path} " in table.read_text() else []
        return found

    def abandon(self) -> None:
        if self.process is not None and self.process.poll() is None:
            subprocess.run(["fusermount3", "-u", "-z", str(self.path)], check=False)
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()


@contextlib.contextmanager
def two_mounts(cluster: Cluster, base: Path) -> Iterator[tuple[Mount, Mount]]:
    """Make a collection named as a folder, and mount it twice below that."""
    assert cluster.request("MKCOL", f"{cluster.files_url}/{base.name}").status == 201
    first, other = (Mount(cluster, f"/{base.name}", base / name, base / f"cache-{name}") for name in "ab")
    try:
        for each in (first, other):
            each.start()
        yield first, other
        for each in (first, other):
            each.end()
            assert "Traceback" not in each.log()
    finally:
        for each in (first, other):
            each.abandon()
