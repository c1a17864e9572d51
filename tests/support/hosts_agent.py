"""A process in the namespace of a host, with a Librarian's connections to the A-Hash.

It has writers, strong reads, status, and clients that record a history of their answers. Started with JSON: `urls` of
the A-Hashes by host, `cert`, `key`, `ca_dir`. Each line on standard input is a request, each on standard output its
answer, in order. An acknowledgement here has passed whatever drops packets.
"""

import asyncio
import json
import sys
import time
import uuid
from functools import partial
from pathlib import Path
from typing import Any

from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError
from chelonia.core.ids import ObjectId, RequestKey
from chelonia.core.ports.ahash import AHash
from chelonia.hosting.net.clock import SystemClock
from chelonia.hosting.net.http_client import ClientLimits
from chelonia.hosting.net.rpc_client import RetryLimits, open_link, remote_ahash
from chelonia.hosting.net.tls import TlsSettings, TlsStore
from tests.history import records, run
from tests.history.faults import Watch
from tests.history.recorder import Plan
from tests.history.records import Fault, History
from tests.support.replica_group import DaemonDoor, Writers
from tests.support.replica_process import turn_of

LOOK_MS = 1_000
SIZE = 100
CERTAIN_S = 3.0
"""Time of nothing but refusals after which it has stopped."""


class Agent:
    """Answers requests until its input ends."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._urls: dict[str, str] = config["urls"]
        files = TlsSettings(Path(config["cert"]), Path(config["key"]), ca_dir=Path(config["ca_dir"]))
        self._target = run.Target(tuple(self._urls.values()), files, self._until_told)
        self._told = asyncio.Event()
        self._watch: Watch | None = None
        self._noting: asyncio.Task[History] | None = None
        self._link = open_link(TlsStore(files, SystemClock().now_ms), ClientLimits(connect_ms=1_000))
        self._writers: Writers | None = None

    def at(self, host: str, read_ms: int = LOOK_MS) -> AHash:
        """The A-Hash of a host; a call tries it once."""
        return remote_ahash(self._link, (self._urls[host],), RetryLimits(retry_ms=0, read_ms=read_ms))

    async def answer(self, request: list[Any]) -> Any:
        """Carry out one request; an error of the A-Hash is an answer."""
        try:
            return await getattr(self, f"do_{request[0]}")(*request[1:])
        except CheloniaError as error:
            return {"error": error.kind.value, "cause": str(error)}

    async def do_status(self, host: str) -> dict[str, Any]:
        found = await self.at(host).status(Call())
        return {
            "replica": found.replica, "role": found.role, "writable": found.writable, "term": found.term,
            "at": [found.position.generation, found.position.sequence], "lease_ms": found.lease_ms,
            "views": {str(view.replica): [view.role, view.lag] for view in found.replicas},
        }  # fmt: skip

    async def do_strong(self, host: str) -> dict[str, Any]:
        """A strong read of writer 0's object."""
        (found,) = await self.at(host).get(Call().strongly(), (ObjectId("c0"),))
        return {"n": int(found.sections.get("s", {}).get("n", "0"))}

    async def do_write(self, host: str, writer: int, turn: int) -> dict[str, Any]:
        """One write, at one host only."""
        ahash = self.at(host, 5_000)
        outcome = await ahash.transact(Call(), RequestKey(f"{writer}.{turn}"), turn_of(writer, turn, SIZE))
        return {"applied": outcome.applied}

    async def do_outlast(self, host: str, deadline_s: float) -> dict[str, Any]:
        """Read strongly until that is refused; returns the time of the last success and the refusal (monotonic s)."""
        last, end = 0.0, time.monotonic() + deadline_s
        while time.monotonic() < end:
            try:
                await self.do_strong(host)
                last = time.monotonic()
            except CheloniaError as error:
                if last and time.monotonic() - last > CERTAIN_S:
                    return {"last": last, "error": error.kind.value}
            await asyncio.sleep(0.005)
        return {"last": last, "error": ""}

    async def do_start(self, writers: int, first: int) -> dict[str, Any]:
        """Begin to write at all hosts."""
        self._writers = Writers({n: n for n in range(len(self._urls))}, writers, first=first, door=self._door)
        self._writers.start()
        return {}

    def _door(self, number: int) -> DaemonDoor:
        return DaemonDoor(partial(self.at, list(self._urls)[number]))

    async def do_written(self) -> dict[str, Any]:
        """The number of acknowledged writes, and their times (monotonic s)."""
        assert self._writers is not None
        return {"count": len(self._writers.at), "at": self._writers.at[-1:], "refusals": self._writers.refusals}

    async def do_end(self) -> dict[str, Any]:
        """End the writers; returns their notes."""
        writers = self._writers
        assert writers is not None
        await writers.end()
        acked = {str(writer): len(turns) for writer, turns in writers.acked.items()}
        begun = {str(writer): turn for writer, turn in writers.begun.items()}
        return {"acked": acked, "begun": begun, "at": writers.at, "refusals": writers.refusals}

    async def do_note(self) -> dict[str, Any]:
        """Start concurrent clients of all hosts that record their answers. They are patient, as an operation whose
        outcome stays unknown makes a history hard to decide."""
        plan = Plan(uuid.uuid4().hex[:12], clients=6, keys=6, patience_ms=(10_000,))
        self._told.clear()
        self._noting = asyncio.create_task(run.record(self._target, plan, 0.0, clean=True))
        return {}

    async def _until_told(self, watch: Watch, done: list[Fault]) -> None:
        del done  # the faults come from outside
        self._watch = watch
        await self._told.wait()

    async def do_answers(self) -> dict[str, Any]:
        """How many answers these clients have had."""
        return {"count": self._watch.answers() if self._watch is not None else 0}

    async def do_noted(self, path: str, hits: list[tuple[str, int, int]]) -> dict[str, Any]:
        """End these clients, and write their history and the faults meanwhile (what, from and to, ns)."""
        assert self._noting is not None
        self._told.set()
        history = await self._noting
        records.write(Path(path), History(history.operations, tuple(Fault(*hit) for hit in hits)))
        return {"count": len(history.operations)}


async def main() -> None:
    agent = Agent(json.loads(sys.argv[1]))
    reader = asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        answer = await agent.answer(json.loads(line))
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
