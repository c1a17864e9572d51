"""A group of replica processes, and writers outside of them: start, kill, stop, and check acknowledged writes.

`Writers` note an acknowledgement only when its answer has reached them. They repeat an unanswered write with the same
request key at another replica, until an answer comes. `verify` compares all replicas record by record, and with the
notes.
"""

import asyncio
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec

from chelonia.ahash.store import layout, meta
from chelonia.ahash.store.bdb.store import BdbStore
from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError
from chelonia.core.ids import ObjectId, RequestKey
from chelonia.core.ports.ahash import AHash
from tests.support.ahash import no_panic
from tests.support.far_links import FarLinks
from tests.support.polling import patience, poll_async
from tests.support.ports import free_ports
from tests.support.replica_grid import ReplicaGrid, replica_dn
from tests.support.replica_process import SETTINGS, turn_of

ROOT = Path(__file__).parents[2]
ASK_S = 12.0
"""Longer than the shell holds a request: a later answer is not coming."""
WRITE_S = 2.5
"""Longer than an election: a writer turns to another replica when one is silent for so long."""


_OF_TERMS = re.compile(r"replica \d+(: term \d+ ended| is master:| steps down| lost its link)")


class Control:
    """One connection to the control socket of one replica."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, *request: Any, patience_s: float = ASK_S) -> Any:
        """Send a request; returns the answer. Raises: OSError when none came, ValueError when it was a refusal."""
        try:
            async with asyncio.timeout(patience_s):
                if self._streams is None:
                    self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 30)
                reader, writer = self._streams
                writer.write(json.dumps(request).encode() + b"\n")
                line = await reader.readline()
        except (OSError, TimeoutError) as error:
            self.close()
            raise ConnectionError(f"no answer: {error!r}") from error
        except BaseException:
            self.close()
            raise
        if not line:
            self.close()
            raise ConnectionError("the replica is gone")
        good, value = json.loads(line)
        if not good:
            raise ValueError(value)
        return value

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


class Door(Protocol):
    """A way to one replica."""

    async def ask(self, *request: Any, patience_s: float) -> Any:
        """Send a request; returns the answer. Raises: OSError when none came, ValueError when it was a refusal."""
        ...

    def close(self) -> None: ...


class DaemonDoor:
    """A way to the replica of one daemon. `at`: its A-Hash, which answers once, within so many milliseconds."""

    def __init__(self, at: Callable[[int], AHash]) -> None:
        self._at = at

    async def ask(self, *request: Any, patience_s: float) -> Any:
        """Carry out `("write", writer, turn, size)`. Raises: ValueError for anything but success."""
        _, writer, turn, size = request
        ahash = self._at(int(patience_s * 1000))
        try:
            outcome = await ahash.transact(Call(), RequestKey(f"{writer}.{turn}"), turn_of(writer, turn, size))
        except CheloniaError as error:
            raise ValueError(str(error)) from error
        assert outcome.applied, outcome
        return outcome.position.sequence

    def close(self) -> None:
        """Nothing: all doors share the connections."""


@dataclass
class Writers:
    """Writers that go on until `end`, each with a pause after each write. `acked[writer]`: turns acknowledged. `at`:
    the times of all acknowledgements, in order."""

    ports: dict[int, int]
    count: int = 8
    size: int = 100
    first: int = 0
    pause_s: float = 0.0
    acked: dict[int, list[int]] = field(default_factory=dict)
    begun: dict[int, int] = field(default_factory=dict)
    at: list[float] = field(default_factory=list)
    refusals: dict[str, int] = field(default_factory=dict)
    ending: bool = False
    door: Callable[[int], Door] = Control
    _tasks: list["asyncio.Task[None]"] = field(default_factory=list)

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._write(writer)) for writer in range(self.first, self.first + self.count)
        ]

    async def end(self) -> None:
        """Wait for every write under way."""
        self.ending = True
        await asyncio.gather(*self._tasks)

    async def abandon(self) -> None:
        """End at once: the outcome of writes under way stays unknown."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def more(self, count: int = 50, deadline: float = 60.0) -> None:
        """Wait for so many more acknowledgements."""
        have = len(self.at)
        await poll_async(lambda: len(self.at) >= have + count, deadline, what=f"writes go on; {self.refusals}")

    def outage_ms(self, since: float, until: float | None = None) -> float:
        """The longest time without any acknowledgement after `since` (monotonic)."""
        before = [at for at in self.at if at <= since][-1:]
        times = [*before, *(at for at in self.at if since < at <= (until or 1e18))]
        return max((b - a for a, b in itertools.pairwise(times)), default=float("inf")) * 1000

    async def _write(self, writer: int) -> None:
        doors = [self.door(port) for port in self.ports.values()]
        self.acked[writer] = []
        try:
            while not self.ending:
                turn = self.begun[writer] = len(self.acked[writer])
                await self._until_told(doors, writer, turn)
                self.acked[writer].append(turn)
                self.at.append(time.monotonic())
                if self.pause_s:
                    await asyncio.sleep(self.pause_s)
        finally:
            for door in doors:
                door.close()

    async def _until_told(self, doors: list[Door], writer: int, turn: int) -> None:
        where = writer  # each has a replica of its own, so that never all are with the same one
        while True:
            try:
                await doors[where % len(doors)].ask("write", writer, turn, self.size, patience_s=WRITE_S)
                return
            except (OSError, ValueError) as error:
                text = str(error)[-80:]
                self.refusals[text] = self.refusals.get(text, 0) + 1
                where += 1
                await asyncio.sleep(0.01)


class ReplicaGroup:
    """Replica processes by id, all in one directory."""

    def __init__(
        self,
        directory: Path,
        count: int = 3,
        apart_ms: tuple[int, int] = (0, 0),
        round_trip_ms: int = bounds.ROUND_TRIP_MS,
    ) -> None:
        """`apart_ms`: the least and greatest delay of a message between two replicas.

        `round_trip_ms`: the configured one.
        """
        self.directory = directory
        self.replicas = tuple(range(1, count + 1))
        ports = free_ports(3 * count)
        self.control = dict(zip(self.replicas, ports[:count], strict=True))
        self.listen = dict(zip(self.replicas, ports[count : 2 * count], strict=True))
        self._far = FarLinks(*apart_ms) if any(apart_ms) else None
        self.doors = dict(zip(self.replicas, ports[2 * count :], strict=True)) if self._far else self.listen
        self.addresses = {n: f"127.0.0.1:{port}" for n, port in self.doors.items()}
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.exits: list[tuple[int, int]] = []
        self._grid = ReplicaGrid(directory / "grid")
        self._controls = {n: Control(port) for n, port in self.control.items()}
        self._watch: asyncio.Task[None] | None = None
        for replica in self.replicas:
            self._grid.replica(replica)
            self.configure(replica, round_trip_ms)
        founder = BdbStore(directory / "1", SETTINGS, no_panic)
        meta.prepare(founder, "test")
        founder.close()

    def configure(self, replica: int, round_trip_ms: int) -> None:
        """Write the configuration for a replica's next start."""
        config = {
            "replica": replica, "directory": str(self.directory / str(replica)), "grid": str(self.directory / "grid"),
            "members": [[n, replica_dn(n), self.addresses[n], n == 1] for n in self.replicas],
            "control": self.control[replica], "listen": self.listen[replica],
            "round_trip_ms": round_trip_ms, "trace": bool(os.environ.get("TRACE_REPLICAS")),
        }  # fmt: skip
        (self.directory / f"{replica}.json").write_text(json.dumps(config))

    async def start(self) -> None:
        """Start all, wait until they are a settled group of voters, and from now on restart those that end by
        themselves."""
        if self._far is not None:
            for replica in self.replicas:
                await self._far.relay(self.doors[replica], self.listen[replica])
        for replica in self.replicas:
            self.launch(replica)
        await self.settled()
        self._watch = asyncio.create_task(self._restart_the_ended())

    def launch(self, replica: int) -> None:
        with (self.directory / f"{replica}.log").open("ab") as log:
            self.processes[replica] = subprocess.Popen(
                [sys.executable, "-P", "-m", "tests.support.replica_process", str(self.directory / f"{replica}.json")],
                cwd=ROOT, env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'clients'}"}, stdout=log, stderr=log,
            )  # fmt: skip

    def kill(self, replica: int, how: signal.Signals = signal.SIGKILL) -> float:
        """Send a signal; with one that ends, wait for the end. Returns: when the signal went."""
        process = self.processes[replica]
        if how is signal.SIGKILL:
            del self.processes[replica]
        sent = time.monotonic()
        process.send_signal(how)
        if how is signal.SIGKILL:
            process.wait()
        return sent

    async def terminate(self, replica: int) -> None:
        process = self.processes.pop(replica)
        process.terminate()
        await asyncio.to_thread(process.wait, 30 * patience())

    async def status(self, replica: int) -> dict[str, Any]:
        """The status of a replica; empty: no answer."""
        try:
            found: dict[str, Any] = await self._controls[replica].ask("status", patience_s=2 * patience())
        except (OSError, ValueError):
            return {}
        return found

    async def freeze_before_office(self, replica: int, *, wanted: bool) -> None:
        """Have the replica freeze itself, or not, when it has won an election and is about to become master."""

        async def told() -> bool:
            await self._controls[replica].ask("freeze", wanted)
            return True

        await poll_async(told, tolerate=OSError, what="a replica that listens")

    async def master(self, deadline: float = 60) -> int:
        """The master that serves now."""

        async def look() -> int:
            found = {n: await self.status(n) for n in self.replicas}
            return next((n for n, each in found.items() if each.get("serving")), 0)

        return await poll_async(look, deadline, what="a master that serves")

    async def settled(self, deadline: float = 90) -> int:
        """Wait until one serves, all others follow it with whole contents, all vote. Returns: the master."""
        seen: dict[int, dict[str, Any]] = {}

        async def look() -> int:
            for replica in self.replicas:
                seen[replica] = await self.status(replica)
            serving = [n for n, each in seen.items() if each.get("serving")]
            whole = all(
                each.get("ready") and each.get("trusted") and each["master"] in serving
                and len(each["voters"]) == len(self.replicas) and not each["former"]
                for each in seen.values()
            )  # fmt: skip
            return serving[0] if whole and len(serving) == 1 else 0

        try:
            return await poll_async(look, deadline, what="a settled group")
        except AssertionError as error:
            raise AssertionError(f"{error}: {seen}") from error

    async def same(self, deadline: float = 90) -> tuple[object, ...]:
        """Wait until all have the same commit as their last, all of it durable. Returns: which."""

        async def look() -> tuple[object, ...]:
            found = [await self.status(replica) for replica in self.replicas]
            stand = {tuple(each.get(key) for key in ("sequence", "durable", "term")) for each in found}
            return stand.pop() if all(found) and len(stand) == 1 else ()

        return await poll_async(look, deadline, what="the same commit everywhere")

    async def load(self, replica: int, writers: int, duration_s: float) -> dict[str, float]:
        """Writers within the process of a replica: rate and times."""
        found: dict[str, float] = await self._controls[replica].ask("load", writers, duration_s, patience_s=60)
        return found

    async def records(self) -> dict[int, dict[bytes, bytes]]:
        """All records of each replica, of one and the same commit."""

        async def look() -> dict[int, dict[bytes, bytes]]:
            before = await self.same()
            held = {replica: await self._dump(replica) for replica in self.replicas}
            return held if before == await self.same() else {}

        # One that falls behind on a busy machine refuses while it is being synchronised.
        return await poll_async(look, 120, tolerate=ValueError, what="all records of one commit")

    async def _dump(self, replica: int) -> dict[bytes, bytes]:
        path = self.directory / f"{replica}.dump"
        await self._controls[replica].ask("dump", str(path), patience_s=120)
        return dict(msgspec.msgpack.decode(path.read_bytes(), type=list[tuple[bytes, bytes]]))

    def wipe(self, replica: int) -> None:
        shutil.rmtree(self.directory / str(replica))

    def terms(self) -> list[str]:
        """The logs' lines about terms that opened, ended, or were given up, in order of time."""
        lines = (line for n in self.replicas for line in (self.directory / f"{n}.log").read_text().splitlines())
        return sorted(line for line in lines if _OF_TERMS.search(line))

    async def show_threads(self) -> None:
        """Have every process write the stacks of its threads to its log."""
        for process in self.processes.values():
            process.send_signal(signal.SIGUSR1)
        await asyncio.sleep(1)

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            with suppress(asyncio.CancelledError):
                await self._watch
        for control in self._controls.values():
            control.close()
        for process in self.processes.values():
            process.kill()
            process.wait()
        if self._far is not None:
            await self._far.close()

    async def _restart_the_ended(self) -> None:
        """Restart a replica that ended by itself, as a supervisor does."""
        while True:
            for replica, process in list(self.processes.items()):
                code = process.poll()
                if code is not None and self.processes.get(replica) is process:
                    self.exits.append((replica, code))
                    self.launch(replica)
            await asyncio.sleep(0.05)


class Judged(Protocol):
    """A group that can be compared with the writers' notes."""

    @property
    def replicas(self) -> tuple[int, ...]:
        """Its members."""
        ...

    async def settled(self) -> int:
        """Wait until it is whole."""
        ...

    async def records(self) -> dict[int, dict[bytes, bytes]]:
        """All records of each replica, of one and the same commit."""
        ...


async def verify(group: Judged, writers: Writers) -> int:
    """Compare a quiet group; returns how many writes were acknowledged. Raises: AssertionError with the differences."""
    await group.settled()
    held = await group.records()
    first = held[group.replicas[0]]
    problems: list[str] = []
    for replica, records in held.items():
        odd = sorted(key for key in first.keys() | records.keys() if first.get(key) != records.get(key))
        problems += [f"replica {replica} differs from replica 1 in {len(odd)} records: {odd[:5]!r}"] if odd else []
        problems += _lost(replica, records, writers)
    assert not problems, "\n".join(problems)
    return sum(map(len, writers.acked.values()))


def _lost(replica: int, records: dict[bytes, bytes], writers: Writers) -> list[str]:
    problems = []
    for writer, turns in writers.acked.items():
        halves = [_turns_of(records, f"{half}{writer}") for half in "ab"]
        lost = sorted(set(turns) - (halves[0] & halves[1]))
        problems += (
            [f"replica {replica}, writer {writer}: {len(lost)} acknowledged are lost: {lost[:5]}"] if lost else []
        )
        if halves[0] != halves[1]:
            problems.append(f"replica {replica}, writer {writer}: half a write: {halves[0] ^ halves[1]}")
        unknown = halves[0] - set(turns) - {writers.begun.get(writer, -1)}
        problems += [f"replica {replica}, writer {writer}: writes that nobody made: {unknown}"] if unknown else []
        header = records.get(layout.header_key(ObjectId(f"c{writer}")))
        count = int(layout.decode_header(header)[1]["s"]["n"]) if header else 0
        if count != len(halves[0]):
            problems.append(f"replica {replica}, writer {writer}: {len(halves[0])} writes were applied {count} times")
    return problems


def _turns_of(records: dict[bytes, bytes], name: str) -> set[int]:
    prefix = layout.wide_range(ObjectId(name), "entries")[0]
    return {int(key[len(prefix) :]) for key in records if key.startswith(prefix)}
