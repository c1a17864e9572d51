"""A cluster of hosts as the operator's page sets it up, and networks that fail under writers. `make hosts`: at length.

Each scenario cuts the network somewhere, checks which services go on, and heals it. Then it compares all replicas,
record by record, with the writers' answers. `noted` has histories judged instead (`tests/history`).
"""

import argparse
import asyncio
import contextlib
import json
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chelonia.ahash.store import layout
from chelonia.ahash.store.bdb.store import BdbStore
from tests.history import porcupine
from tests.history import run as history
from tests.support.ahash import no_panic
from tests.support.hosts import HOME, ROOT, Host, Hosts, Typist, copy_out, prompts
from tests.support.polling import patience, poll_async
from tests.support.replica_group import Writers, verify
from tests.support.replica_process import SETTINGS

PAGE = ROOT / "docs" / "operate" / "first-cluster.md"
THREE = ("one", "two", "three")
FIVE = (*THREE, "four", "five")
USER = "user"
CORE = "chelonia@core"
LEASE_S = 0.4
"""How long a master may answer alone (`lease_ms` in `ahash/lease.py`)."""
SLACK_S = 1.5
"""Allowance of a bound for a busy machine. The figure itself is printed."""
ANSWER_S = 60.0
SETTLED_S = 120.0
"""A replica that loses its master during its first synchronisation ends and has to start again; a busy machine is
slow."""


class Agent:
    """`hosts_agent` in the namespace of a host."""

    def __init__(self, host: Host, names: Iterable[str], certs: Path) -> None:
        config = {
            "urls": {name: f"https://{name}.example.org:60001/AHash" for name in names},
            "cert": str(certs / "cert.pem"), "key": str(certs / "key.pem"), "ca_dir": str(certs / "ca"),
        }  # fmt: skip
        self._host, self._config = host, config
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    async def ask(self, *request: Any) -> Any:
        """The answer to one request."""
        async with self._turn, asyncio.timeout(ANSWER_S):
            if self._process is None:
                argv = [sys.executable, "-P", "-m", "tests.support.hosts_agent", json.dumps(self._config)]
                environ = f"PYTHONPATH={ROOT}:{ROOT / 'clients'}"
                self._process = await asyncio.create_subprocess_exec(
                    "setpriv", "--pdeathsig", "KILL", *self._host.argv("env", environ, *argv),
                    stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=1 << 24,
                )  # fmt: skip
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            line = await self._process.stdout.readline()
            assert line, f"the agent on {self._host.name} ended"
            return json.loads(line)

    async def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            await self._process.wait()


@dataclass
class Trial:
    """A cluster of hosts, its writers, and what was measured."""

    directory: Path
    hosts: Hosts
    names: tuple[str, ...]
    agents: dict[str, Agent] = field(default_factory=dict)
    figures: dict[str, list[float]] = field(default_factory=dict)
    acknowledged: int = 0
    series: int = 0
    odd: Writers = field(default_factory=lambda: Writers({}))
    _supervising: "asyncio.Task[None] | None" = None

    # --- setting up -------------------------------------------------------------------------------------------------

    def set_up(self) -> Typist:
        """Type the page; hosts beyond its three in the same way."""
        typist = Typist(self.hosts, self.names)
        later: list[tuple[str, str]] = []
        for number, (where, command) in enumerate(typed := prompts(PAGE)):
            if command.startswith("chelonia admin ahash status"):
                later = typed[number:]
                break
            typist.type(where, command)
        for name in self.names[3:]:
            typist.type("one", f"cheloniad admit {name}.example.org")
            typist.type(name, f"cheloniad join one.example.org:60005 --as {name}.example.org --token TOKEN")
            typist.type(name, "systemctl enable --now chelonia@core chelonia@shepherd")
        for where, command in later:
            typist.type(where, command)
        return typist

    async def begin(self) -> None:
        """Give the agents a Librarian's certificate, and wait until the group is whole."""
        certs = self.directory / "certs"
        certs.mkdir()
        copy_out(self.hosts["one"], "/etc/grid-security/hostcert.pem", certs / "cert.pem")
        copy_out(self.hosts["one"], "/etc/grid-security/hostkey.pem", certs / "key.pem")
        shutil.copytree(self.hosts["one"].path("/etc/grid-security/certificates"), certs / "ca")
        self._make_user()
        self.agents = {name: Agent(self.hosts[name], self.names, certs) for name in (*self.names, USER)}
        self._supervising = asyncio.create_task(self.hosts.supervise())
        await self.settled()

    def _make_user(self) -> None:
        """Give the user's host the administrator's identity and the cluster's address, from the first host."""
        one, user = self.hosts["one"], self.hosts[USER]
        for folder in (f"{HOME}/.globus", f"{HOME}/.config", "/etc/grid-security/certificates"):
            shutil.copytree(one.path(folder), user.path(folder))
        user.run("ln", "-s", str(ROOT / ".venv" / "bin" / "chelonia"), "/usr/local/bin/chelonia")

    async def use(self, when: str) -> None:
        """A user stores a file, and reads it back: no command may fail, whatever is cut off."""
        name, said = f"/atlas/{time.monotonic():.3f}", ""
        for command in (f"put README.md {name} 2", f"get {name} {HOME}{name.replace('/', '-')}", "ls /atlas"):
            begun = time.monotonic()
            said = await asyncio.to_thread(self.hosts[USER].run, "sh", "-euc", f"chelonia {command}")
            self.note(f"chelonia {command[:3]} {when}, s", time.monotonic() - begun)
        assert name.rpartition("/")[2] in said
        got = self.hosts[USER].path(f"{HOME}{name.replace('/', '-')}").read_bytes()
        assert got == (ROOT / "README.md").read_bytes()

    async def close(self) -> None:
        if self._supervising is not None:
            self._supervising.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervising
        for agent in self.agents.values():
            await agent.close()
        self.hosts.close()

    # --- looking ----------------------------------------------------------------------------------------------------

    async def ask(self, *request: Any) -> Any:
        """The user's agent."""
        return await self.agents[USER].ask(*request)

    async def status(self, name: str) -> dict[str, Any]:
        """Return the status of a host's replica, from an agent on that host."""
        found: dict[str, Any] = await self.agents[name].ask("status", name)
        return found

    async def master(self, among: Iterable[str] = ()) -> str:
        """The host whose replica takes changes."""
        names = tuple(among) or self.names

        async def look() -> str:
            found = {name: await self.status(name) for name in names}
            return next((name for name, each in found.items() if each.get("role") == "master" and each["writable"]), "")

        return await poll_async(look, 40, interval=0.05, what=f"a master among {names}")

    async def settled(self) -> int:
        """Wait until all vote and follow one master. Returns: its replica."""
        seen: dict[str, dict[str, Any]] = {}

        async def look() -> int:
            for name in self.names:
                seen[name] = await self.status(name)
            masters = [each for each in seen.values() if each.get("role") == "master"]
            if len(masters) != 1 or len({each.get("term") for each in seen.values()}) != 1:
                return 0
            views = masters[0]["views"].values()
            whole = len(views) == len(self.names) and all(role in ("master", "follower") for role, _ in views)
            return int(masters[0]["replica"]) if whole and all(lag >= 0 for _, lag in views) else 0

        try:
            return await poll_async(look, SETTLED_S, interval=0.1, what="a settled group")
        except AssertionError as error:
            raise AssertionError(f"{error}: {seen}") from error

    # --- writers and judgement --------------------------------------------------------------------------------------

    @property
    def replicas(self) -> tuple[int, ...]:
        """Of `tests.support.replica_group.Judged`: hosts join in the order of their replicas' ids."""
        return tuple(range(1, len(self.names) + 1))

    async def start_writers(self, count: int = 4) -> None:
        """Fresh writers on the user's host."""
        self.odd = Writers({})
        await self.ask("start", count, 100 * self.series)
        self.series += 1
        await self.more(20)

    async def more(self, count: int, deadline: float = 40) -> None:
        """Wait for so many more acknowledgements."""
        have = (await self.ask("written"))["count"]

        async def look() -> bool:
            seen = await self.ask("written")
            return bool(seen["count"] >= have + count)

        await poll_async(look, deadline, interval=0.05, what="writes go on")

    async def odd_write(self, name: str) -> dict[str, Any]:
        """Write once at one host, by a writer that does not repeat."""
        writer = 100 * self.series + 50 + len(self.odd.begun)
        self.odd.begun[writer] = 0
        found: dict[str, Any] = await self.agents[name].ask("write", name, writer, 0)
        self.odd.acked[writer] = [0] if found.get("applied") else []
        return found

    async def judge(self, what: str) -> None:
        """End the writers; hold all replicas against each other and against what was acknowledged."""
        told = await self.ask("end")
        known = Writers({})
        known.acked = {int(writer): list(range(count)) for writer, count in told["acked"].items()} | self.odd.acked
        known.begun = {int(writer): turn for writer, turn in told["begun"].items()} | self.odd.begun
        gaps = [after - before for before, after in zip(told["at"], told["at"][1:], strict=False)]
        self.figures.setdefault(f"{what}: writers waited, s", []).append(max(gaps))
        self.acknowledged += await verify(self, known)

    async def records(self) -> dict[int, dict[bytes, bytes]]:
        """All records of each replica, of one and the same commit, from their disks: what a crash of all would leave.

        All are frozen for as long as their files are copied.
        """
        for _ in range(20):
            await self._same()
            for name in self.names:
                self.hosts[name].kill(CORE, signal.SIGSTOP)
            try:
                held = await asyncio.to_thread(self._records)
            finally:
                for name in self.names:
                    self.hosts[name].kill(CORE, signal.SIGCONT)
            await self.settled()
            if len({each[layout.META_STATE] for each in held.values()}) == 1:
                return held
        raise AssertionError("the replicas never stand at the same commit")

    async def _same(self) -> None:
        async def look() -> bool:
            found = [await self.status(name) for name in self.names]
            return all("at" in each for each in found) and len({(*each["at"], each["term"]) for each in found}) == 1

        await poll_async(look, 40, interval=0.01, what="the same commit everywhere")

    def _records(self) -> dict[int, dict[bytes, bytes]]:
        return {n: _recovered(self.hosts[name]) for n, name in enumerate(self.names, start=1)}

    def note(self, what: str, seconds: float) -> None:
        self.figures.setdefault(what, []).append(seconds)


def _recovered(host: Host) -> dict[bytes, bytes]:
    """The records that recovery finds in a copy of a frozen replica's store."""
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch) / "db"
        shutil.copytree(host.path("/var/lib/chelonia/core/ahash/db"), target, ignore=shutil.ignore_patterns("__db*"))
        store = BdbStore(Path(scratch), SETTINGS, no_panic)
        try:
            return dict(store.scan(b"", b"\xff" * 64, 1 << 30))
        finally:
            store.close()


# --- scenarios ------------------------------------------------------------------------------------------------------

Scenario = Callable[[Trial], Awaitable[None]]


async def master_alone(trial: Trial) -> None:
    """Cut off from everybody, the master stops within its lease; the others go on under another."""
    await trial.start_writers()
    master = await trial.master()
    others = [name for name in trial.names if name != master]
    asking = asyncio.create_task(trial.agents[master].ask("outlast", master, 30))
    await trial.more(20)
    begun = time.monotonic()
    trial.hosts.split([master], [*others, USER])
    cut = time.monotonic()
    told = await asking
    assert told["error"], "a master that is alone goes on answering strong reads"
    served = told["last"] - begun
    assert served < cut - begun + LEASE_S + SLACK_S * patience(), f"strong reads for {served:.2f} s after the cut"
    assert "applied" not in await trial.odd_write(master), "a write was acknowledged by a master that is alone"
    trial.note("master alone: answered strong reads after the cut, s", max(served, 0.0))
    another = await trial.master(others)
    assert another != master
    await trial.more(100)
    trial.hosts.heal()
    await trial.settled()
    await trial.more(20)
    await trial.judge("master alone")


async def client_alone(trial: Trial) -> None:
    """The user's network is cut: nobody else notices, and he goes on where he was."""
    await trial.start_writers()
    master = await trial.master()
    before = await trial.status(master)
    trial.hosts.split([USER], trial.names)
    have = (await trial.ask("written"))["count"]
    await asyncio.sleep(3)  # longer than any lease, so that the group would have had to notice
    assert (await trial.ask("written"))["count"] <= have + 8, "writes were acknowledged through a cut network"
    after = await trial.status(master)
    assert (after["role"], after["term"]) == ("master", before["term"])
    trial.hosts.heal()
    await trial.more(100)
    await trial.judge("client alone")


async def master_deaf(trial: Trial) -> None:
    """The master sends but receives nothing: it cannot know that it has a majority, so another takes over."""
    await trial.start_writers()
    master = await trial.master()
    others = [name for name in trial.names if name != master]
    trial.hosts.cut([master], others)
    await trial.master(others)
    await trial.more(100)
    trial.hosts.heal()
    await trial.settled()
    await trial.judge("master deaf")


async def master_mute(trial: Trial) -> None:
    """The master receives everything, but nothing that it sends arrives."""
    await trial.start_writers()
    master = await trial.master()
    others = [name for name in trial.names if name != master]
    trial.hosts.cut(others, [master])
    await trial.master(others)
    await trial.more(100)
    trial.hosts.heal()
    await trial.settled()
    await trial.judge("master mute")


async def follower_deaf(trial: Trial) -> None:
    """One follower does not hear the master: the others are a majority, and nobody waits."""
    await trial.start_writers()
    master = await trial.master()
    follower = next(name for name in trial.names if name != master)
    trial.hosts.cut([follower], [master])
    await trial.more(200)
    trial.hosts.heal()
    await trial.settled()
    await trial.judge("follower deaf")


async def minority_with_master(trial: Trial) -> None:
    """The master is on the smaller side of a split: the larger goes on."""
    await trial.start_writers()
    master = await trial.master()
    size = (len(trial.names) - 1) // 2
    few = [master, *[name for name in trial.names if name != master][: size - 1]]
    many = [name for name in trial.names if name not in few]
    trial.hosts.split(few, [*many, USER])
    await trial.master(many)
    for name in few:
        assert "applied" not in await trial.odd_write(name), f"{name} acknowledged a write in a minority"
        assert "error" in await trial.agents[name].ask("strong", name), f"{name} read strongly in a minority"
    await trial.use("with a host cut off")
    await trial.more(100)
    trial.hosts.heal()
    await trial.settled()
    await trial.judge("minority with master")


async def majority_with_master(trial: Trial) -> None:
    """The master is on the larger side of a split: nobody but the smaller side notices."""
    await trial.start_writers()
    master = await trial.master()
    size = (len(trial.names) - 1) // 2
    few = [name for name in trial.names if name != master][:size]
    many = [name for name in trial.names if name not in few]
    term = (await trial.status(master))["term"]
    await trial.use("with all hosts")
    trial.hosts.split(few, [*many, USER])
    await trial.more(100)
    for name in few:
        assert "applied" not in await trial.odd_write(name), f"{name} acknowledged a write in a minority"
    await trial.use("with a host cut off")
    assert (await trial.status(master))["term"] == term, "a minority took the office from a master with a majority"
    trial.hosts.heal()
    await trial.settled()
    await trial.judge("majority with master")


# --- histories ------------------------------------------------------------------------------------------------------

Strike = Callable[[Trial, str, list[str]], Awaitable[None]]
"""Does harm, given the master and the others, and returns when another way is found."""


async def _cut_off(trial: Trial, master: str, others: list[str]) -> None:
    trial.hosts.split([master], [*others, USER])
    await trial.master(others)


async def _deafen(trial: Trial, master: str, others: list[str]) -> None:
    trial.hosts.cut([master], others)
    await trial.master(others)


async def _mute(trial: Trial, master: str, others: list[str]) -> None:
    trial.hosts.cut(others, [master])
    await trial.master(others)


async def _cut_off_for_users(trial: Trial, master: str, others: list[str]) -> None:
    """The master reaches the others, but no users: it goes on, and clients turn to the next replica, which forwards."""
    del others
    trial.hosts.split([master], [USER])


async def _split(trial: Trial, master: str, others: list[str]) -> None:
    few = [master, *others[: (len(others) - 2) // 2]]
    many = [name for name in others if name not in few]
    trial.hosts.split(few, [*many, USER])
    await trial.master(many)


async def _kill_all(trial: Trial, master: str, others: list[str]) -> None:
    for name in (master, *others):
        trial.hosts[name].kill(CORE)
    for name in (master, *others):
        trial.hosts[name].launch(CORE)
    await trial.settled()


async def _roll(trial: Trial, master: str, others: list[str]) -> None:
    for name in (master, *others):
        await asyncio.to_thread(trial.hosts[name].kill, CORE, signal.SIGTERM)
        trial.hosts[name].launch(CORE)
        await trial.settled()


STRIKES: tuple[Strike, ...] = (_cut_off, _deafen, _mute, _cut_off_for_users, _split, _kill_all, _roll)


async def noted(trial: Trial, strikes: Iterable[Strike] = STRIKES) -> None:
    """Histories of clients while networks fail and hosts go are linearizable, and every session is kept. Needs Go."""
    program = await asyncio.to_thread(porcupine.build, trial.directory)
    await trial.ask("note")
    hits: list[tuple[str, int, int]] = []
    for strike in strikes:
        await _answers(trial)
        master = await trial.master()
        begin = time.monotonic_ns()
        await strike(trial, master, [name for name in trial.names if name != master])
        await _answers(trial)
        trial.hosts.heal()
        hits.append((f"{strike.__name__.strip('_')}, {master} was master", begin, time.monotonic_ns()))
        await trial.settled()
    await _answers(trial)
    path = trial.directory / "history.jsonl"
    await trial.ask("noted", str(path), hits)
    code, words = await asyncio.to_thread(history.judge, program, path, faults=True)
    assert code == 0, words


async def _answers(trial: Trial, count: int = 50) -> None:
    """Wait for so many more answers to the clients that record histories."""
    have = (await trial.ask("answers"))["count"]

    async def look() -> bool:
        return bool((await trial.ask("answers"))["count"] >= have + count)

    await poll_async(look, 40, interval=0.05, what="those who note are answered")


SCENARIOS: tuple[Scenario, ...] = (
    master_alone, client_alone, master_deaf, master_mute, follower_deaf, minority_with_master, majority_with_master,
    noted,
)  # fmt: skip


@contextlib.asynccontextmanager
async def cluster(directory: Path, names: tuple[str, ...], far_ms: int = 0) -> AsyncIterator[Trial]:
    """A cluster of hosts, set up by the page; its logs are shown when what is done with it fails."""
    trial = Trial(directory, Hosts(directory, (*names, USER), far_ms), names)
    try:
        await asyncio.to_thread(trial.set_up)
        await trial.begin()
        yield trial
    except BaseException:
        print(trial.hosts.logs(), file=sys.stderr)
        raise
    finally:
        await trial.close()


async def run(trial: Trial, scenarios: Iterable[Scenario]) -> None:
    for scenario in scenarios:
        begun = time.monotonic()
        await scenario(trial)
        crashed = [f"{host.name}: {host.ended}" for host in trial.hosts.hosts.values() if host.crashed]
        assert not crashed, f"a daemon crashed: {crashed}"
        took = time.monotonic() - begun
        print(f"{len(trial.names)} hosts  {scenario.__name__:22} {took:5.1f} s", flush=True)


def report(trial: Trial) -> dict[str, Any]:
    figures = {
        what: {"count": len(found), "median": round(statistics.median(found), 2), "worst": round(max(found), 2)}
        for what, found in sorted(trial.figures.items())
    }
    ended = {host.name: host.ended for host in trial.hosts.hosts.values() if host.ended}
    return {"acknowledged_and_found": trial.acknowledged, "ended_by_themselves": ended, **figures}


def _can_judge() -> bool:
    """Whether histories can be judged here; says what is missing."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            porcupine.build(Path(scratch))
        except porcupine.Missing as error:
            print(f"noted is left out, the checker cannot be built: {error}", flush=True)
            return False
    return True


async def main(options: argparse.Namespace) -> None:
    chance = random.Random(options.seed)
    print(f"seed {options.seed}", flush=True)
    scenarios = [each for each in SCENARIOS if each.__name__ in (options.only or [each.__name__])]
    if noted in scenarios and not _can_judge():
        scenarios.remove(noted)
    for names in (THREE, FIVE) if not options.hosts else ((FIVE[: options.hosts]),):
        directory = Path(tempfile.mkdtemp(prefix="hosts-"))
        async with cluster(directory, names, options.far) as trial:
            chosen = scenarios * options.rounds
            chance.shuffle(chosen)
            await run(trial, chosen)
            print(json.dumps(report(trial), indent=2))
        shutil.rmtree(directory)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make hosts ARGS=...", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2, help="how often each scenario, on each cluster")
    parser.add_argument("--hosts", type=int, choices=(3, 5), default=0, help="one cluster only, of so many hosts")
    parser.add_argument("--far", type=int, default=0, metavar="MS", help="each way between any two hosts; 50 at most")
    parser.add_argument("--only", action="append", choices=[each.__name__ for each in SCENARIOS], help="repeat")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    return parser.parse_args(arguments)


if __name__ == "__main__":
    asyncio.run(main(parse(sys.argv[1:])))
