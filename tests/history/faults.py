"""Faults of real A-Hash processes while a history is recorded: killed, frozen, or frozen and then killed.

Another is a kill with loss of the disk while a second process is frozen: the rest hold nothing, or less than was
acknowledged. Every instance in cluster.json may be hit. The faults and their times go into the history.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from chelonia.ahash.store.bdb.files import last_counted
from chelonia.hosting.config import load_config
from tests.cluster.harness import Cluster, parent_of, runs
from tests.history.records import Fault
from tests.support.polling import poll_async

FREEZE_S = (0.3, 1.8)
RESTART_S = 60.0


@dataclass(frozen=True, slots=True)
class Watch:
    """A tormentor's view of the clients: whether they still work, and how many answers they have had."""

    go_on: Callable[[], bool]
    answers: Callable[[], int]


@dataclass(slots=True)
class Torment:
    """Hits the A-Hash of one cluster; `done` has its faults.

    Args:
        every_s: how long it is left in peace between two faults.
    """

    cluster: Cluster
    watch: Watch
    now_ns: Callable[[], int]
    seed: int = 1
    every_s: float = 2.0
    done: list[Fault] = field(default_factory=list)

    async def run(self) -> None:
        """Hit in turn, each time until clients get answers again, in each way at least once; ends with a whole
        A-Hash."""
        chance = random.Random(self.seed)
        acts = (self._kill, self._freeze, self._freeze_and_kill, self._lose_disk)
        acts = acts if len(self._instances()) > 1 else acts[:-1]
        for what in itertools.cycle(acts):
            await asyncio.sleep(self.every_s * (0.5 + chance.random()))
            if not self.watch.go_on() and len(self.done) >= len(acts):
                return
            [victim] = chance.sample(range(len(self._instances())), 1)
            begin = self.now_ns()
            name = await what(victim, chance.uniform(*FREEZE_S))
            before = self.watch.answers()
            await poll_async(lambda b=before: self.watch.answers() > b, RESTART_S, what="answers again")  # type: ignore[misc]
            self.done.append(Fault(f"{name} A-Hash {victim + 1}", begin, self.now_ns()))

    async def _kill(self, victim: int, _duration_s: float) -> str:
        pid = self._signal(victim, signal.SIGKILL)
        await poll_async(lambda: not runs(pid), 10.0, what=f"{pid} is dead")
        await poll_async(lambda: self._pid(victim) != pid, RESTART_S, what=f"A-Hash {victim + 1} is started again")
        return "killed"

    async def _freeze(self, victim: int, duration_s: float) -> str:
        with self._frozen(victim):
            await asyncio.sleep(duration_s)
        return "froze"

    async def _freeze_and_kill(self, victim: int, duration_s: float) -> str:
        with self._frozen(victim):
            await asyncio.sleep(duration_s)
            await self._kill(victim, 0.0)
        return "froze and killed"

    async def _lose_disk(self, victim: int, duration_s: float) -> str:
        """Freeze another one meanwhile: of three, only one awake holds any data, and it may be behind."""
        directory = self._directory(victim)
        with self._frozen((victim + 1) % len(self._instances())):
            with self._frozen(victim):
                directory.rename(directory.with_name(f"{directory.name}.lost-{self.now_ns()}"))
                await self._kill(victim, 0.0)
            await asyncio.sleep(duration_s)
        # two disks lost at once are a majority: it holds again what it may have acknowledged when it vouches for it
        await poll_async(lambda: _has_vouched(directory), RESTART_S, what=f"A-Hash {victim + 1} is filled again")
        return "lost the disk of"

    @contextlib.contextmanager
    def _frozen(self, victim: int) -> Iterator[None]:
        pid = self._signal(victim, signal.SIGSTOP)
        try:
            yield
        finally:
            if runs(pid) and self._pid(victim) == pid:
                self._signal(victim, signal.SIGCONT)

    def _instances(self) -> list[dict[str, object]]:
        found: list[dict[str, object]] = self.cluster.info["ahash"]
        return found

    def _directory(self, victim: int) -> Path:
        section = load_config(self.cluster.root / "conf" / f"core{victim + 1}.toml").ahash
        assert section is not None
        return Path(section.data_dir)

    def _pid(self, victim: int) -> int:
        return int(str(self._instances()[victim]["pid"]))

    def _signal(self, victim: int, number: signal.Signals) -> int:
        pid, supervisor = self._pid(victim), self.cluster.process
        assert supervisor is not None, "the cluster is not running"
        assert parent_of(pid) == supervisor.pid, f"{pid} is not a child of this cluster"
        os.kill(pid, number)
        return pid


def _has_vouched(directory: Path) -> bool:
    return (directory / "acked").exists() and last_counted(directory / "acked") > (0, 0)
