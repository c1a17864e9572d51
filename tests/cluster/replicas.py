"""Faults on a group of replica processes under writers, and what must hold afterwards. `make replicas` runs it long.

Every scenario leaves the group whole. `hunt` mixes them at random; its seed is printed, and the directories and logs of
a run that failed are kept.
"""

import argparse
import asyncio
import json
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster import daemons
from tests.cluster.old_copies import put_back_old_copies
from tests.support.polling import poll_async
from tests.support.replica_group import ReplicaGroup, Writers, verify

FREEZE_S = 3.0
"""Longer than any lease and mandate."""
TURN_MS = (5, 25)
"""How long a starved replica runs when its turn has come."""


@dataclass
class Trial:
    """A group, its writers, and what was measured on the way."""

    group: ReplicaGroup
    chance: random.Random
    writers: Writers = field(init=False)
    killed_ms: list[float] = field(default_factory=list)
    frozen_ms: list[float] = field(default_factory=list)
    acknowledged: int = 0
    faults: int = 0
    series: int = 0
    count: int = 8
    """Writers at a time."""

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Fresh writers, with numbers of their own in each series."""
        self.writers = Writers(self.group.control, self.count, first=self.count * self.series)
        self.series += 1
        self.writers.start()

    async def judge(self) -> None:
        """Let the writers end, and compare all with all."""
        await self.writers.end()
        self.acknowledged += await verify(self.group, self.writers)

    async def pause(self, longest_s: float = 0.5) -> None:
        """Any time: faults must not come in step with the group."""
        await asyncio.sleep(self.chance.random() * longest_s)


Scenario = Callable[[Trial], Awaitable[None]]


async def kill_master(trial: Trial) -> None:
    """kill -9 of the master; it comes back while the others go on."""
    group = trial.group
    await trial.writers.more(20)
    await trial.pause()
    master = await group.master()
    at = group.kill(master)
    await trial.writers.more(100)
    trial.killed_ms.append(trial.writers.outage_ms(at))
    group.launch(master)
    await group.settled()


async def kill_in_haste(trial: Trial) -> None:
    """kill -9 of one master after the other, while those before are still coming back."""
    group = trial.group
    for _ in range(3):
        master = await group.master()
        await trial.pause(0.1)
        group.kill(master)
        await trial.pause(1.0)
        group.launch(master)
        await trial.writers.more(1, 40)
    await group.settled()


async def freeze_master(trial: Trial) -> None:
    """SIGSTOP of the master for one to three seconds: what it held back arrives late."""
    group = trial.group
    await trial.writers.more(20)
    await trial.pause()
    master = await group.master()
    at = group.kill(master, signal.SIGSTOP)
    await asyncio.sleep(1 + 2 * trial.chance.random())
    group.kill(master, signal.SIGCONT)
    await trial.writers.more(100)
    trial.frozen_ms.append(trial.writers.outage_ms(at))
    await group.settled()


async def freeze_follower(trial: Trial) -> None:
    """SIGSTOP of a follower: its clients go on to the next, and the others notice nothing."""
    group = trial.group
    master = await group.master()
    follower = trial.chance.choice([n for n in group.replicas if n != master])
    group.kill(follower, signal.SIGSTOP)
    await asyncio.sleep(1 + 2 * trial.chance.random())
    await trial.writers.more(20)
    group.kill(follower, signal.SIGCONT)
    await group.settled()


async def kill_follower(trial: Trial) -> None:
    """kill -9 of a follower, and of the master before the follower is back."""
    group = trial.group
    master = await group.master()
    follower = trial.chance.choice([n for n in group.replicas if n != master])
    group.kill(follower)
    await trial.writers.more(50)
    group.launch(follower)
    await trial.pause(1.0)
    group.kill(master)
    await trial.pause(1.0)
    group.launch(master)
    await trial.writers.more(20, 40)
    await group.settled()


async def kill_all(trial: Trial) -> None:
    """Everything at once: what is acknowledged stood on disks."""
    group = trial.group
    await trial.writers.more(20)
    await trial.pause()
    for replica in group.replicas:
        group.kill(replica)
    for replica in group.replicas:
        group.launch(replica)
    await trial.writers.more(20, 40)
    await group.settled()


async def roll(trial: Trial) -> None:
    """A rolling restart in order: clients of the one that ends go on to the next; nothing is lost."""
    for replica in trial.group.replicas:
        await trial.writers.more(20)
        await trial.group.terminate(replica)
        trial.group.launch(replica)
        await trial.group.settled()


async def freeze_the_elected(trial: Trial) -> None:
    """The winner of an election is frozen just before it becomes master, and goes on when another has been for long."""
    group = trial.group
    await trial.writers.more(20)
    master = await group.master()
    others = [n for n in group.replicas if n != master]
    for replica in others:
        await group.freeze_before_office(replica, wanted=True)
    group.kill(master)
    frozen = await poll_async(
        lambda: next((n for n in others if _is_stopped(group, n)), 0), what="the winner is frozen"
    )
    since = time.monotonic()
    group.launch(master)
    (third,) = (n for n in others if n != frozen)
    have = len(trial.writers.at)

    def another_is_master() -> bool:
        _wake_up(group, third)
        return len(trial.writers.at) > have + 200 and time.monotonic() - since > FREEZE_S

    await poll_async(another_is_master, 60, what="another is master")
    group.kill(frozen, signal.SIGCONT)
    await trial.writers.more(200, 30)
    _wake_up(group, third)
    for replica in others:
        await group.freeze_before_office(replica, wanted=False)
    await group.settled()


async def lose_a_disk(trial: Trial) -> None:
    """Two acknowledge, one of them loses its disk, the other is away: the third must not become master without them."""
    group = trial.group
    await trial.writers.more(20)
    master = await group.settled()
    wiped, behind = (n for n in group.replicas if n != master)
    group.kill(behind, signal.SIGSTOP)
    await trial.writers.more(200)
    group.kill(wiped)
    group.kill(master, signal.SIGSTOP)
    await trial.writers.abandon()
    group.wipe(wiped)
    group.kill(behind, signal.SIGCONT)
    group.launch(wiped)
    until, answered = time.monotonic() + FREEZE_S, set[int]()
    while time.monotonic() < until or answered != {wiped, behind}:
        for replica in (wiped, behind):
            status = await group.status(replica)
            answered |= {replica} if status else set()
            assert not status.get("serving"), f"replica {replica} is master without the others"
        await asyncio.sleep(0.05)
    group.kill(master, signal.SIGCONT)
    await group.settled(60)
    trial.acknowledged += await verify(group, trial.writers)
    trial.begin()


async def crash(trial: Trial) -> None:
    """kill -9 of one replica or of all at any moment, recovery, and everything compared with the writers' answers."""
    group = trial.group
    await trial.writers.more(10)
    await trial.pause()
    one = trial.chance.choice(group.replicas)
    struck = group.replicas if trial.chance.random() < 0.5 else (one,)
    for replica in struck:
        group.kill(replica)
    await trial.pause()
    for replica in struck:
        group.launch(replica)
    await trial.writers.more(10, 40)
    await trial.judge()
    trial.begin()


def _state(group: ReplicaGroup, replica: int) -> str:
    process = group.processes.get(replica)
    try:
        return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] if process else ""
    except OSError:
        return ""


def _is_stopped(group: ReplicaGroup, replica: int) -> bool:
    return _state(group, replica) == "T"


def _wake_up(group: ReplicaGroup, replica: int) -> None:
    """The other one may have won after the first, and have frozen itself as well."""
    if _is_stopped(group, replica):
        group.kill(replica, signal.SIGCONT)


MIX: tuple[Scenario, ...] = (
    kill_master, kill_master, kill_master, kill_in_haste, kill_in_haste, freeze_master, freeze_follower, kill_follower,
    kill_follower, kill_all, roll, freeze_the_elected, lose_a_disk,
)  # fmt: skip


async def run(trial: Trial, scenarios: list[Scenario], judge_every: int = 1) -> None:
    """Run scenarios one after the other; judge after each `judge_every`, and at the end."""
    for number, scenario in enumerate(scenarios, start=1):
        begun, writers = time.monotonic(), trial.writers
        await scenario(trial)
        crashed = [f"replica {replica}: {code}" for replica, code in trial.group.exits if code < 0]
        assert not crashed, f"a process crashed: {crashed}"
        trial.faults += 1
        outage = max(writers.outage_ms(begun), 0)
        took_s = time.monotonic() - begun
        print(f"{number:4} {scenario.__name__:20} {took_s:5.1f} s, writers waited {outage:6.0f} ms at most", flush=True)
        if number % judge_every == 0 and number < len(scenarios):
            await trial.judge()
            trial.begin()
    await trial.judge()


def report(trial: Trial) -> dict[str, object]:
    def summary(found: list[float]) -> dict[str, float]:
        return {"count": len(found), "median_ms": round(statistics.median(found)), "worst_ms": round(max(found))}

    return {
        "faults": trial.faults,
        "acknowledged_and_found": trial.acknowledged,
        "kill": summary(trial.killed_ms) if trial.killed_ms else {},
        "freeze": summary(trial.frozen_ms) if trial.frozen_ms else {},
        "ended_by_themselves": len(trial.group.exits),
        "refusals": trial.writers.refusals,
    }


async def load(group: ReplicaGroup) -> None:
    """Print the figures of 1, 8 and 64 writers within the master's process and within a follower's."""
    master = await group.settled()
    for where in (master, next(n for n in group.replicas if n != master)):
        for writers in (1, 8, 64):
            found = {name: round(value, 2) for name, value in (await group.load(where, writers, 3.0)).items()}
            print("master  " if where == master else "follower", f"{writers:3}", json.dumps(found), flush=True)


@contextmanager
def spinning(count: int) -> Iterator[None]:
    """Keep so many processes busy beside the group; they end with it, by their ids."""
    spinners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
        for spinner in spinners:
            spinner.wait()


@asynccontextmanager
async def starving(group: ReplicaGroup, waits_ms: tuple[int, int] | None, chance: random.Random) -> AsyncIterator[None]:
    """Stop each replica again and again for a random time, as on a machine with far more work than processors. It costs
    the machine nothing."""

    async def starve(replica: int) -> None:
        while waits_ms:
            group.kill(replica, signal.SIGSTOP)
            await asyncio.sleep(chance.uniform(*waits_ms) / 1000)
            group.kill(replica, signal.SIGCONT)
            await asyncio.sleep(chance.uniform(*TURN_MS) / 1000)

    turns = [asyncio.create_task(starve(replica)) for replica in group.replicas]
    try:
        yield
    finally:
        for turn in turns:
            turn.cancel()
        await asyncio.gather(*turns, return_exceptions=True)
        for replica in group.replicas:
            group.kill(replica, signal.SIGCONT)


async def soak(
    group: ReplicaGroup, minutes: float, per_s: float, hardship: AbstractAsyncContextManager[None]
) -> dict[str, float]:
    """Write slowly without faults but a `hardship`: every end of a term is needless. Prints a summary of terms from the
    logs."""
    await group.settled()
    began, known = time.monotonic(), len(group.terms())
    told = known
    writers = Writers(group.control, count=4, pause_s=4 / per_s)
    writers.start()
    async with hardship:
        while time.monotonic() - began < minutes * 60:
            await asyncio.sleep(min(10.0, minutes * 60))
            lines = group.terms()
            for line in lines[told:]:
                print(line, flush=True)
            told = len(lines)
    await writers.end()
    acknowledged = await verify(group, writers)
    return {
        "minutes": round((time.monotonic() - began) / 60, 1),
        "acknowledged_and_found": acknowledged,
        "terms_opened": sum(" is master:" in line for line in group.terms()[known:]),
        "writers_waited_at_most_ms": round(writers.outage_ms(began)),
        "refusals": writers.refusals,
    }


async def on_daemons(directory: Path, names: list[str]) -> None:
    """Run scenarios on whole daemons, all where none is named; the directory of a failed run stays."""
    known = {scenario.__name__: scenario for scenario in (*daemons.SCENARIOS, put_back_old_copies)}
    if unknown := sorted(set(names) - known.keys() - {"grow_and_shrink"}):
        raise SystemExit(f"there is no {', '.join(unknown)}: grow_and_shrink, {', '.join(known)}")
    writes = 0
    if not names or "grow_and_shrink" in names:
        begun = time.monotonic()
        writes += await daemons.grow_and_shrink(directory / "alone")
        print(f"     {'grow_and_shrink':26} {time.monotonic() - begun:5.1f} s", flush=True)
    if wanted := [scenario for name, scenario in known.items() if not names or name in names]:
        writes += await daemons.run(directory / "group", wanted)
    print(json.dumps({"acknowledged_and_found": writes}))


async def main(options: argparse.Namespace) -> None:
    directory = Path(tempfile.mkdtemp(prefix="replicas-", dir=options.directory))
    chance = random.Random(options.seed)
    print(f"seed {options.seed}, directory {directory}", flush=True)
    if options.daemons is not None:
        await on_daemons(directory, options.daemons)
        shutil.rmtree(directory)
        return
    scenarios: list[Scenario] = [kill_master] * options.kills + [freeze_master] * options.stops
    scenarios += [kill_all, roll, freeze_the_elected, lose_a_disk] if options.others else []
    scenarios += [chance.choice(MIX) for _ in range(options.hunt)]
    scenarios = [crash] * options.crashes or scenarios
    group = ReplicaGroup(directory)
    try:
        await group.start()
        if options.load:
            await load(group)
            return
        if options.soak:
            with spinning(options.spin):
                found = await soak(group, options.soak, options.rate, starving(group, options.starve, chance))
            print(json.dumps(found, indent=2))
            if options.changes_max is not None and found["terms_opened"] > options.changes_max:
                raise SystemExit(f"{found['terms_opened']} changes of master, {options.changes_max} are allowed")
            if options.waited_max is not None and found["writers_waited_at_most_ms"] > 1000 * options.waited_max:
                raise SystemExit(f"no write for {found['writers_waited_at_most_ms']} ms")
            return
        trial = Trial(group, chance, count=4 if options.crashes else 8)
        await run(trial, scenarios, options.judge_every)
        print(json.dumps(report(trial), indent=2))
    except Exception:
        await group.show_threads()
        raise
    finally:
        await group.close()
    if not options.keep:
        shutil.rmtree(directory)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make replicas ARGS=...", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20, help="kill -9 of the master")
    parser.add_argument("--stops", type=int, default=10, help="SIGSTOP of the master for 1 to 3 s")
    parser.add_argument("--hunt", type=int, default=0, help="scenarios at random after that")
    parser.add_argument("--crashes", type=int, default=0, help="rounds of kill -9, recovery and comparison, only these")
    parser.add_argument(
        "--daemons",
        nargs="*",
        metavar="SCENARIO",
        help="whole daemons: growing, disks, clocks, identities",
    )
    parser.add_argument("--judge-every", type=int, default=1, help="scenarios after which all is compared")
    parser.add_argument("--no-others", dest="others", action="store_false", help="leave the other scenarios out")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--directory", type=Path, default=None, help="where to keep the replicas")
    parser.add_argument("--load", action="store_true", help="no faults: measure 1, 8 and 64 writers in process")
    parser.add_argument("--soak", type=float, default=0, metavar="MINUTES", help="no faults: count needless elections")
    parser.add_argument("--spin", type=int, default=0, help="processes that spin beside a soak: the load it bears")
    parser.add_argument(
        "--starve",
        type=int,
        nargs=2,
        metavar="MS",
        help="a soak in which each replica waits so long, at least and at most, for each turn at a processor",
    )
    parser.add_argument("--waited-max", type=float, metavar="S", help="fail a soak whose writers all waited longer")
    parser.add_argument("--changes-max", type=int, help="fail a soak with more changes of master than this")
    parser.add_argument("--rate", type=float, default=10, help="writes a second of a soak")
    parser.add_argument("--keep", action="store_true", help="keep directory and logs when all went well, too")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    asyncio.run(main(parse(sys.argv[1:])))
