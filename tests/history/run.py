"""`make check-history`: record a history of an A-Hash under faults, have it checked, and say the verdict.

Without URLs it starts a cluster of its own (`cheloniad dev`) and kills and freezes its A-Hash meanwhile. With `--url`
(once per instance) it records against those and leaves faults to `--fault COMMAND`, each run in turn by the shell.

Exit codes: 0 as promised, 1 a promise was broken, 2 it could not be done, 3 undecided or too little happened.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import shutil
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError
from chelonia.core.ids import ObjectId
from chelonia.core.metadata import Filter, StoredObject
from chelonia.core.ports.ahash import AHash
from chelonia.hosting.net.clock import SystemClock
from chelonia.hosting.net.http_client import ClientLimits
from chelonia.hosting.net.rpc_client import RetryLimits, open_link, remote_ahash
from chelonia.hosting.net.tls import TlsSettings, TlsStore
from tests.cluster.harness import Cluster
from tests.history import porcupine, records, session
from tests.history.faults import Torment, Watch
from tests.history.porcupine import Judgement
from tests.history.recorder import Plan, Ports, Recorder, Times
from tests.history.records import Fault, History, Operation, Outcome
from tests.support.polling import NotReached

READ_MS = 1_000
CONNECT_MS = 500
ENOUGH_ANSWERED = 200
"""Below so many answered operations a history proves nothing."""

Faults = Callable[[Watch, list[Fault]], Coroutine[Any, Any, None]]
"""Causes faults while the clients go on, and appends them."""


@dataclass(frozen=True, slots=True)
class Target:
    """An A-Hash's addresses, the identity for it, and its faults."""

    urls: tuple[str, ...]
    tls: TlsSettings
    faults: Faults


def target_of(cluster: Cluster, *, seed: int, every_s: float = 2.0) -> Target:
    """A running cluster of ours under faults, as its second Librarian."""
    files = cluster.files("service")

    async def torment(watch: Watch, done: list[Fault]) -> None:
        await Torment(cluster, watch, time.monotonic_ns, seed, every_s, done).run()

    urls = tuple(entry["url"] for entry in cluster.info["ahash"])
    return Target(urls, TlsSettings(cert=files.cert, key=files.key, ca_dir=cluster.ca_dir), torment)


async def record(target: Target, plan: Plan, seconds: float, *, clean: bool = False) -> History:
    """Record for so many seconds. `clean`: delete the keys afterwards."""
    end = time.monotonic() + seconds
    done: list[Fault] = []

    def go_on() -> bool:
        return not tormented.done() or time.monotonic() < end

    async with ports_of(target, plan) as ports:
        recorder = Recorder(ports, plan, Times(SystemClock(), time.monotonic_ns))
        async with asyncio.TaskGroup() as group:
            watch = Watch(lambda: time.monotonic() < end, lambda: recorder.answers)
            tormented = group.create_task(target.faults(watch, done))
            group.create_task(recorder.run(go_on))
        if clean:
            await recorder.forget()
    return History(tuple(recorder.operations), tuple(done))


@contextlib.asynccontextmanager
async def ports_of(target: Target, plan: Plan) -> AsyncIterator[Ports]:
    """One port per instance. Only the recorder repeats calls, and each waits only so long for an answer."""
    link = open_link(TlsStore(target.tls, SystemClock().now_ms), ClientLimits(connect_ms=CONNECT_MS))
    async with link.client:
        patience = RetryLimits(retry_ms=0, read_ms=READ_MS)
        ways = tuple(remote_ahash(link, (url,), patience) for url in target.urls)
        yield Ports(tuple(map(Strong, ways)), ways) if len(ways) > 1 else Ports(ways)


class Strong:
    """A way to an A-Hash whose reads are strong. Only these are linearizable."""

    def __init__(self, way: AHash) -> None:
        self._way = way
        self.transact = way.transact
        self.recall = way.recall

    async def get(self, call: Call, ids: tuple[ObjectId, ...], needed: Filter = ()) -> tuple[StoredObject, ...]:
        """Read the newest acknowledged state."""
        return await self._way.get(call.strongly(), ids, needed)


# --------------------------------------------------------------------------------------------------------- the verdict


def summary(history: History) -> list[str]:
    operations = history.operations
    span = max(o.back or o.call for o in operations) - min(o.call for o in operations)
    outcomes = Counter(f"{o.op.value} {o.outcome.value}" for o in operations)
    again = sum(1 for o in operations if o.tries > 1)
    keys = len({o.key for o in operations})
    lines = [f"{len(operations)} operations on {keys} keys in {span / 1e9:.1f} s; {again} needed more than one try"]
    lines += [", ".join(f"{count} {what}" for what, count in sorted(outcomes.items()))]
    lines += [f"{fault.what} for {(fault.end - fault.begin) / 1e9:.1f} s" for fault in history.faults]
    return lines


def too_little(history: History, *, faults: bool) -> str:
    """Why a history proves nothing, "" when it does."""
    answered = [o for o in history.operations if o.outcome is not Outcome.UNKNOWN]
    if len(answered) < ENOUGH_ANSWERED:
        return f"only {len(answered)} operations were answered, at least {ENOUGH_ANSWERED} are needed"
    if faults and not history.faults:
        return "no fault happened"
    missed = [f.what for f in history.faults if not any(_during(o, f) for o in history.operations)]
    return f"no operation was under way while: {missed[0]}" if missed else ""


def _during(operation: Operation, fault: Fault) -> bool:
    return operation.call < fault.end and (operation.back is None or operation.back > fault.begin)


def judge(program: Path, path: Path, *, faults: bool) -> tuple[int, str]:
    """Check a written history in every way; returns the exit code and the words."""
    history = records.read(path)
    verdict = porcupine.check(program, path, path.with_suffix(".html"))
    violations = session.check(history)
    words = [verdict.words]
    words += [f"SESSION: {violation}" for violation in violations[:10]]
    words += [f"SESSIONS: {len(violations)} promises broken" if violations else "SESSIONS: every promise kept"]
    if verdict.judgement is Judgement.NOT_LINEARIZABLE or violations:
        return 1, "\n".join(words)
    if verdict.judgement is Judgement.UNUSABLE:
        return 2, "\n".join(words)
    weak = too_little(history, faults=faults)
    words += [f"TOO LITTLE HAPPENED: {weak}"] if weak else []
    return (3 if weak or verdict.judgement is Judgement.UNDECIDED else 0), "\n".join(words)


# -------------------------------------------------------------------------------------------------------- command line


def main(argv: Sequence[str]) -> int:
    options = _parser().parse_args(argv)
    if options.url and not (options.cert and options.key and options.ca_dir):
        print("--url needs --cert, --key and --ca-dir of somebody who may change the A-Hash", file=sys.stderr)
        return 2
    try:
        program = porcupine.build(options.out)
    except porcupine.Missing as error:
        print(f"the checker cannot be built: {error}", file=sys.stderr)
        return 2
    path: Path = options.out / "history.jsonl"
    path.with_suffix(".html").unlink(missing_ok=True)
    try:
        history = asyncio.run(_recorded(options))
    except ExceptionGroup as group:
        known, unknown = group.split((CheloniaError, NotReached))
        if unknown is not None or known is None:
            raise
        print("recording broke off:", *known.exceptions, f"see the logs in {options.out / 'cluster'}", sep="\n")
        return 2
    records.write(path, history)
    print(*summary(history), sep="\n")
    code, words = judge(program, path, faults=bool(options.fault) or not options.url)
    print(words, f"The history is in {path}", sep="\n")
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make check-history ARGS=...", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--keys", type=int, default=4, help="in use at a time")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--every", type=float, default=2.0, help="seconds of peace between two faults")
    parser.add_argument("--replicas", type=int, default=3, help="of the A-Hash of a cluster of ours")
    parser.add_argument("--out", type=Path, default=Path("build/history"), help="for the history and the drawing")
    parser.add_argument("--url", action="append", default=[], help="an A-Hash instance; repeat for a group")
    parser.add_argument("--fault", action="append", default=[], help="with --url: a command that does harm; repeat")
    for name in ("--cert", "--key", "--ca-dir"):
        parser.add_argument(name, type=Path)
    return parser


async def _recorded(options: argparse.Namespace) -> History:
    plan = Plan(uuid.uuid4().hex[:12], options.seed, options.clients, options.keys)
    print(f"seed {options.seed}, {options.clients} clients, {options.seconds:g} s", flush=True)
    if options.url:
        tls = TlsSettings(cert=options.cert, key=options.key, ca_dir=options.ca_dir)
        target = Target(tuple(options.url), tls, _commands(options.fault, options.every))
        return await record(target, plan, options.seconds, clean=True)
    root = options.out / "cluster"
    shutil.rmtree(root, ignore_errors=True)
    cluster = Cluster(root, shepherds=0, replicas=options.replicas)
    try:
        await asyncio.to_thread(cluster.start)
        return await record(target_of(cluster, seed=options.seed, every_s=options.every), plan, options.seconds)
    finally:
        await asyncio.to_thread(cluster.stop)


def _commands(commands: Sequence[str], every_s: float) -> Faults:
    """Run these commands in turn; each undoes its own fault."""

    async def faults(watch: Watch, done: list[Fault]) -> None:
        for command in itertools.cycle(commands):
            await asyncio.sleep(every_s)
            if not watch.go_on():
                return
            begin = time.monotonic_ns()
            await asyncio.to_thread(subprocess.run, command, shell=True, check=True)
            done.append(Fault(command, begin, time.monotonic_ns()))

    return faults


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
