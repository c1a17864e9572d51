"""One replica of the A-Hash as a process of its own, for tests: the real shell, engine and links, and a control socket.

Its argument is the path of a JSON file: replica, directory, members, certificates, control (the socket's port).
Requests on the control socket are one line of JSON each, answers too. Its client is another process, so that a received
answer has left this one. It ends by itself when the shell says so (`Mastership.run`).
"""

import asyncio
import faulthandler
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from chelonia.ahash.group.lease import ProtocolPeriods
from chelonia.ahash.group.mastership import Mastership
from chelonia.ahash.group.membership import Member, Membership
from chelonia.ahash.group.service import PeerParts, ReplicatedAHash
from chelonia.ahash.group.transport_replication import LinkIdentity, ReplicationLinks
from chelonia.ahash.settings import AHashSettings
from chelonia.ahash.store import meta
from chelonia.ahash.store.bdb.environment import BdbSettings
from chelonia.ahash.store.bdb.files import PeerIdentity
from chelonia.ahash.store.bdb.frames import frame_kind
from chelonia.ahash.store.bdb.replicated import ReplicatedStore
from chelonia.ahash.store.replicated_port import Flushed, SyncedCommit, frame_term
from chelonia.ahash.store.store_threads import ThreadExecutor
from chelonia.core import bounds
from chelonia.core.caller import Call, Role
from chelonia.core.cluster.position import Horizon
from chelonia.core.errors import CheloniaError
from chelonia.core.ids import Dn, ObjectId, RequestKey
from chelonia.core.ports.ahash import ChangeType, Element
from chelonia.hosting.ahash_replica import outlive_grants
from chelonia.hosting.net.clock import SystemClock
from tests.support.replica_grid import ReplicaGrid, link_trust, replica_dn

_LOG = logging.getLogger("replica")
SETTINGS = BdbSettings(
    cache_bytes=32 << 20, log_file_bytes=4 << 20, log_buffer_bytes=1 << 20, checkpoint_log_bytes=2 << 20,
    checkpoint_interval_ms=2000, log_kept_bytes=32 << 20,
)  # fmt: skip
CALL = Call(Dn("/O=Grid/CN=librarian"), (Role.LIBRARIAN, Role.ADMINISTRATOR))


class ReplicaProcess:
    """The replica of one process."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config
        self._replica = int(config["replica"])
        self._freeze = False
        self._engine: ReplicatedStore
        self._mastership: Mastership
        self._service: ReplicatedAHash

    async def run(self) -> None:
        config, own = self._config, self._replica
        members = tuple(Member(int(n), Dn(dn), at, bool(votes)) for n, dn, at, votes in config["members"])
        membership = Membership(1, members, len(members) + 1)
        identity = PeerIdentity(own, "test", replica_dn(own))
        store = TracedStore if config.get("trace") else ReplicatedStore
        self._engine = store(Path(config["directory"]), SETTINGS, identity, self._before_office)
        executor = ThreadExecutor()
        round_trip_ms = int(config.get("round_trip_ms", bounds.ROUND_TRIP_MS))
        pace = ProtocolPeriods.over(round_trip_ms)
        await outlive_grants(Path(config["directory"]) / "lease", pace, SystemClock())
        self._mastership = Mastership(own, self._engine, executor, SystemClock(), pace)
        settings = AHashSettings(cluster="test", round_trip_ms=round_trip_ms)
        parts = PeerParts(self._engine, executor, SystemClock(), settings, Horizon())
        self._service = ReplicatedAHash(self._mastership, parts)
        trust = link_trust(ReplicaGrid(Path(config["grid"])).replica(own))
        links = ReplicationLinks(
            LinkIdentity(own, config.get("cluster", "test"), os.urandom(16), round_trip_ms),
            membership,
            trust,
            self._mastership,
            SystemClock(),
        )
        await self._service.start(links, membership)
        await links.start("127.0.0.1", int(config["listen"]))
        control = await asyncio.start_server(self._control, "127.0.0.1", int(config["control"]), limit=1 << 20)
        running = asyncio.ensure_future(self._service.run())
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
        try:
            await running
        except asyncio.CancelledError:
            _LOG.info("asked to stop")
        finally:
            control.close()
            await self._service.close()
            await links.close()

    def _before_office(self) -> None:
        if self._freeze:
            self._freeze = False
            os.kill(os.getpid(), signal.SIGSTOP)

    async def _control(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while line := await reader.readline():
                answer = await self._answer(json.loads(line))
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        writer.close()

    async def _answer(self, asked: list[Any]) -> list[Any]:
        operations: dict[str, Callable[..., Any]] = {
            "write": self._write, "status": self._status, "freeze": self._freeze_at_office, "dump": self._dump,
            "load": self._load,
        }  # fmt: skip
        try:
            return [True, await operations[asked[0]](*asked[1:])]
        except CheloniaError as error:
            return [False, str(error)]

    async def _write(self, writer: int, turn: int, size: int) -> int:
        """Write once: `turn_of`."""
        outcome = await self._service.transact(CALL, RequestKey(f"{writer}.{turn}"), turn_of(writer, turn, size))
        assert outcome.applied
        return outcome.position.sequence

    async def _status(self) -> dict[str, Any]:
        clock = SystemClock().monotonic_ms()
        found = self._mastership.replica.status(clock)
        try:  # never in the loop: a synchronisation would hold it up, and leases with it
            sequence = (await asyncio.to_thread(meta.read_state, self._engine)).sequence
        except CheloniaError:
            sequence = -1
        return {
            "role": found.role.value, "master": found.master, "term": found.term, "durable": found.durable,
            "trusted": found.trusted, "ready": found.ready, "sequence": sequence,
            "voters": list(self._mastership.replica.membership.voters), "serving": self._service.serving,
            "former": list(self._mastership.replica.membership.former),
            "round_trip_ms": {n: self._mastership.round_trip_ms(n) for n in self._mastership.replica.membership.voters},
        }  # fmt: skip

    async def _freeze_at_office(self, wanted: bool) -> None:
        self._freeze = wanted

    async def _load(self, writers: int, duration_s: float) -> dict[str, float]:
        """Run writers in this process, each with one write at a time: writes a second, and their times."""
        took_s: list[float] = []
        end = time.monotonic() + duration_s

        async def write(writer: int) -> None:
            while (begun := time.monotonic()) < end:
                element = Element(ObjectId(f"load{writer}"), ChangeType.SET, "s", "p", "x" * 500)
                await self._service.transact(CALL, RequestKey(""), (element,))
                took_s.append(time.monotonic() - begun)

        await asyncio.gather(*map(write, range(writers)))
        took_s.sort()
        at = {name: took_s[int(len(took_s) * share)] * 1000 for name, share in (("p50_ms", 0.5), ("p99_ms", 0.99))}
        return {"per_s": len(took_s) / duration_s, **at}

    async def _dump(self, path: str) -> None:
        """Write every record of this replica's store to a file; in a thread, and quickly: leases go on."""
        await asyncio.to_thread(self._write_records, Path(path))

    def _write_records(self, path: Path) -> None:
        found: list[tuple[bytes, bytes]] = []
        start = b""
        with self._engine.reading():
            while page := self._engine.scan(start, b"\xff" * 64, 1000):
                found += page
                start = page[-1][0] + b"\0"
        path.write_bytes(msgspec.msgpack.encode(found))


def turn_of(writer: int, turn: int, size: int) -> tuple[Element, ...]:
    """One write: two objects of the writer have the same turn, or neither; and its counter rises by one."""
    name = f"{turn:08}"
    halves = (Element(ObjectId(f"{half}{writer}"), ChangeType.SET, "entries", name, "x" * size) for half in "ab")
    return (*halves, Element(ObjectId(f"c{writer}"), ChangeType.ADD, "s", "n", "1"))


class TracedStore(ReplicatedStore):
    """An engine that writes every frame but log records to the log."""

    def _apply(self, frame: Any) -> tuple[Any, Any]:
        answer = super()._apply(frame)
        kind, term = frame_kind(frame.control), frame_term(frame.control)
        if kind not in (11, 16):
            _LOG.info("frame %d of %d, term %d: %s", kind, frame.sender, term, answer)
        return answer

    def _transport(self, env: Any, control: bytes, record: bytes, lsn: Any, peer: int, flags: int) -> int:
        kind, term = frame_kind(control), frame_term(control)
        if kind not in (11, 16):
            _LOG.info("frame %d to %d, term %d, %s", kind, peer, term, lsn)
        return super()._transport(env, control, record, lsn, peer, flags)

    def elect(self, sites: int, votes: int, valid_ms: int, wait_ms: int) -> None:
        _LOG.info("elect %d %d", sites, votes)
        super().elect(sites, votes, valid_ms, wait_ms)

    def start(self, events: Callable[[Any], None], send: Any) -> None:
        def told(event: Any) -> None:
            if not isinstance(event, SyncedCommit | Flushed):
                _LOG.info("%s", event)
            events(event)

        super().start(told, send)


def main() -> None:
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s.%(msecs)03d %(message)s", datefmt="%H:%M:%S")
    config = json.loads(Path(sys.argv[1]).read_text())
    try:
        uvloop.run(ReplicaProcess(config).run())
    except CheloniaError as error:
        _LOG.info("the process ends: %s", error)
        sys.exit(3)


if __name__ == "__main__":
    main()
