"""Three replicas of the A-Hash among simulated processes: the shell of production over the model of its engine.

Service, mastership and protocol of `chelonia.ahash.group` run as they are. Under them is `replication_engine.Engine`
with the store's contents as its state. Beside them are links that carry messages in order, hold them while a way is
cut, and break when that lasts.

`SimGroup.decided` follows the log. Every record that a master reports as durable is applied to the world's own store,
which the checks read, and never changes again. A term that opens without it is a lost write.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from unittest.mock import patch

from msgspec.structs import astuple

from chelonia.ahash.group import log_vouching, membership
from chelonia.ahash.group import membership_steps as keeping
from chelonia.ahash.group import service as replicated
from chelonia.ahash.group.effects import PeerRole
from chelonia.ahash.group.lease import ProtocolPeriods
from chelonia.ahash.group.log_vouching import LogEnd, VouchedCommit
from chelonia.ahash.group.mastership import Mastership
from chelonia.ahash.group.membership import Member, Membership
from chelonia.ahash.group.service import PeerParts, ReplicatedAHash
from chelonia.ahash.settings import AHashSettings
from chelonia.ahash.store import layout, meta
from chelonia.ahash.store.layout import StoreState
from chelonia.ahash.store.port import StoredState
from chelonia.ahash.store.replicated_port import Event, Failed, LogPosition, Send, SyncedCommit
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn
from chelonia.core.values import replace
from tests.sim import page_rot
from tests.sim.network import Network
from tests.sim.page_rot import EnginePanicked
from tests.sim.process import Node
from tests.sim.replication_engine import Disk, Engine, Record
from tests.sim.virtual_loop import this_loop
from tests.support.memory_store import MemoryStore, SortedRecords, done_at_once

T = TypeVar("T")

REPLICAS = 3
PACE = ProtocolPeriods(
    beat_ms=500, dead_ms=3_000, lease_ms=4_000, stale_ms=10_000, mandate_ms=2_000, backoff_ms=10, tell_ms=5,
    stuck_ms=30_000, announce_ms=20_000,
)  # fmt: skip
"""Ten times slower than production, as every heartbeat costs real time. Elections stay fast: the model holds them
so."""
SYNC_MS_MAX = 3
CONNECT_MS = 500
TIMED_OUT_MS = 3_000
"""A connection over which nothing passes breaks after this time."""
LARGE = 1 << 40
_OF_MASTERS = ("NEWMASTER", "LOG", "SYNC")
_MASTERS_KIND, _OTHER_KIND = 12, 1
"""Kinds of frame as Berkeley DB numbers them: one that only a master sends, and one that any replica does."""


@contextmanager
def slower() -> Iterator[None]:
    """While held, the shell's periodic work is slower by the same factor as the pace."""
    with patch.object(replicated, "RETRY_MS", 500), patch.object(keeping, "LOOK_MS", 2_000):
        yield


class Contents(SortedRecords):
    """The store: the sum of the records of a log."""

    def __init__(self) -> None:
        super().__init__()
        self.sequence = 0
        self.disk: Disk | None = None  # on which its pages are, once it is open

    def apply(self, record: Record) -> None:
        """Take over a record; one without operations changes nothing. Raises: EnginePanicked."""
        for puts, deletes, _ in record.ops if self.disk is not None and self.disk.rot else ():
            page_rot.write(self.disk, (*puts, *deletes))  # type: ignore[arg-type]
        self.sequence = record.sequence
        for puts, deletes, _ in record.ops:
            self.write(puts, deletes)


class _Model(Engine):
    """The model, with the store's contents as state. The executor of the shell makes commits one by one, or the shell
    makes them in the event loop, to be synced later. A role may change between the two."""

    MARK, MEMBERS, STATE = layout.META_TERM, layout.META_MEMBERS, layout.META_STATE

    def __init__(self, process: Any, disk: Disk) -> None:
        self._untold: list[tuple[int, int, int]] = []
        super().__init__(process, disk)

    def _rebuild(self) -> None:
        self.state: Any = Contents()
        for record in self._disk.log:
            self.state.apply(record)
        if not self._disk.log:
            self._disk.rot.clear()  # it is going to be copied anew
        self.state.disk = self._disk

    def end(self) -> LogEnd:
        """Mark and sequence as the store shows them."""
        mark = self.state.values.get(self.MARK)
        return LogEnd(None if mark is None else log_vouching.decode_mark(mark), self.state.sequence)

    def write(self, term: int, puts: Mapping[bytes, bytes], deletes: Iterable[bytes], *, late: bool) -> None:
        """Append a record and send it; `synced` ends this commit. `late`: the sync begins later."""
        if not self.is_master or (term and term != self.gen) or self._demote_due:
            raise CheloniaError(Kind.UNAVAILABLE, "commit", "ahash", "not the master of this term")
        ops = ((dict(puts), tuple(deletes), ""),)
        record = Record(self.gen, self.state.sequence + 1, ops, this_loop().now_ms)  # type: ignore[arg-type]
        self._disk.log.append(record)
        self.state.apply(record)
        self._busy = self._busy or not late
        self._untold.append((self.gen, record.sequence, len(self._disk.log)))
        self._send(None, "LOG", len(self._disk.log) - 1, record)

    def sync(self) -> None:
        """Begin to sync what was committed in the event loop: until `synced` no role changes."""
        self._busy = self.unsynced

    @property
    def unsynced(self) -> bool:
        """Whether there is a commit that has not been reported."""
        return bool(self._untold)

    @property
    def at_rest(self) -> bool:
        """Whether a master neither commits nor leaves its office."""
        return self.is_master and not self._busy and not self._demote_due

    @property
    def busy(self) -> bool:
        """Whether a commit is being synced."""
        return self._busy

    def synced(self) -> None:
        """Note that all commits are on stable storage. Those of a term that has ended are not reported."""
        self._disk.synced = len(self._disk.log)
        untold, self._untold, self._busy = self._untold, [], False
        for term, sequence, place in untold:
            if self.is_master and term == self.gen:
                self._disk.witness = self.reach()
                self._post(SyncedCommit(sequence, LogPosition(term, 1, place)))
        if self._demote_due:
            self._demote()


class _Notes:
    """`Notes`, on the disk of the model."""

    def __init__(self, disk: Disk, run: int) -> None:
        self._disk, self.run = disk, run

    @property
    def known(self) -> tuple[int, ...]:
        return astuple(self._disk.known)

    def note_known(self, known: tuple[int, ...]) -> None:
        self._disk.known = VouchedCommit(*known)

    @property
    def promised_ms(self) -> int:
        return self._disk.promised_ms

    def promise(self, lease_ms: int) -> None:
        self._disk.promised_ms = lease_ms


class SimReplica:
    """`ReplicatedEngine` of one process."""

    def __init__(self, group: SimGroup, own: int, node: Node, disk: Disk) -> None:
        self.world, self.own, self.node = group, own, node
        self.disk = disk
        self.context = node.context()
        self.stalled: deque[Callable[[], None]] | None = None
        self._events: Callable[[Event], None] | None = None
        self._sends: Send | None = None
        self.number = 0
        self._late = False
        self.panicked = False
        self._model = _Model(self, disk)  # type: ignore[arg-type]
        self.notes = _Notes(disk, group.random.randrange(1, 1 << 32))
        self.newest_term = disk.gen

    # --- what the model asks of its process -------------------------------------------------------------------------

    def on_event(self, event: Event) -> None:
        """Pass an event on, and note what it made durable."""
        if self._events is not None:
            self._events(event)
            self.world.look(self.own)
            if isinstance(event, Failed):
                self.world.note(f"replica {self.own} fails: {event.reason}")

    def send_frame(self, peer: int | None, frame: tuple[Any, ...]) -> None:
        """Send a frame of the model as its index in the group's list of parcels."""
        kind = _MASTERS_KIND if frame[0] in _OF_MASTERS else _OTHER_KIND
        control = bytes(16) + kind.to_bytes(4, "big") + int(frame[1]).to_bytes(4, "big")
        if self._sends is not None:
            self._sends(peer, control, self.world.parcel(frame))

    def engine_later(self, delay_us: int, step: Callable[..., None], *arguments: Any) -> None:
        """Have the engine's thread do this."""
        self.world.loop.call_later(delay_us / 1e6, self._to_engine, lambda: step(*arguments), context=self.context)

    def _to_engine(self, step: Callable[[], None]) -> None:
        if self.node.over(self.context):
            return
        if self.stalled is not None:
            self.stalled.append(step)
        elif self.node.frozen:
            self.stalled = deque((step,))
            self.node.spawn(self._go_on())
        else:
            self._step(step)

    def stall(self, duration_ms: int) -> None:
        """Stop the engine's thread for a while; the event loop goes on."""
        if self.stalled is None:
            self.stalled = deque()
            self.node.spawn(self._go_on(duration_ms))

    async def _go_on(self, after_ms: int = 0) -> None:
        await self.node.clock.sleep(after_ms)
        await self.node.awake()
        steps, self.stalled = self.stalled or deque(), None
        while steps and self.stalled is None:
            self._step(steps.popleft())
        if self.stalled is not None:
            self.stalled.extendleft(reversed(steps))

    def _step(self, step: Callable[[], None]) -> None:
        if self.panicked:
            return
        try:
            step()
        except EnginePanicked:
            self._panic()
        except Exception as error:
            self.world.unexpected(self.node.name, error)

    # --- the port ---------------------------------------------------------------------------------------------------

    def start(self, events: Callable[[Event], None], send: Send) -> None:
        self._events, self._sends = events, send
        if self.panicked:
            self.on_event(Failed("the engine panicked at a damaged page"))

    def found(self) -> None:
        self._model.found()

    def process(self, sender: int, control: bytes, record: bytes) -> None:
        frame = self.world.parcels[int.from_bytes(record, "big")]
        self._to_engine(lambda: self._model.process(sender, frame))

    def peer_up(self, peer: int) -> None:
        self._to_engine(lambda: self._model.peer_up(peer))

    def elect(self, sites: int, votes: int, valid_ms: int, wait_ms: int) -> None:
        """See `ReplicatedEngine`; the model bounds no mandate."""
        del valid_ms
        self._to_engine(lambda: self._model.elect(sites, votes, wait_ms))

    def step_down(self) -> None:
        self._to_engine(self._model.step_down)

    def write_pages(self) -> None:
        """Nothing: the model has no pages."""

    def rouse(self, still_ms: int) -> None:
        """Nothing: the model repeats its requests until an answer comes."""

    def set_voter(self, voter: bool) -> None:
        """See `ReplicatedEngine`."""

    def commit(self, puts: Mapping[bytes, bytes], deletes: Iterable[bytes], term: int | None = None) -> None:
        """See `ReplicatedEngine`; the executor waits for the disk."""
        self._read(b"", b"")
        deletes = tuple(deletes)
        if self.disk.rot:
            try:
                page_rot.write(self.disk, (*puts, *deletes))
            except EnginePanicked:
                self._panic()
                raise
        self._model.write(term or 0, puts, deletes, late=self._late)

    # --- damage -----------------------------------------------------------------------------------------------------

    def _panic(self) -> None:
        """Refuse everything until the process has begun anew: the engine came to a damaged page."""
        if not self.panicked:
            self.panicked = self.disk.suspect = True
            self.on_event(Failed("the engine panicked at a damaged page"))
            self.world.loop.call_later(page_rot.ENDS_WITHIN_S, page_rot.must_have_ended, self, context=self.context)

    def _read(self, start: bytes, end: bytes) -> None:
        if self.panicked or (self.disk.rot and page_rot.reaches(self.disk, start, end) is not None):
            self._panic()
            raise EnginePanicked

    def contents(self) -> dict[bytes, bytes]:
        """The records it holds, for checks."""
        return dict(self._model.state.values)

    @property
    def busy(self) -> bool:
        """Whether a commit is being synced."""
        return self._model.busy

    def synced(self) -> None:
        """Note that the disk has it."""
        self._step(self._model.synced)

    def applied(self) -> int:
        return int(self._model.state.sequence)

    def trusted(self) -> bool:
        return self._model.trusted()

    @property
    def _held(self) -> Contents:
        if not self._model.state.values:
            raise CheloniaError(Kind.UNAVAILABLE, "ahash", "store", "it is being replaced by a copy")
        contents: Contents = self._model.state
        return contents

    def get(self, key: bytes) -> bytes | None:
        self._read(key, key)
        return self._held.values.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.get(key) for key in keys]

    def scan(self, start: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        rows = self._held.scan(start, end, limit)
        self._read(start, rows[-1][0] if len(rows) == limit else end)
        return rows

    @contextmanager
    def reading(self) -> Iterator[None]:
        yield

    def write_at_once(self, work: Callable[[], T]) -> T | None:
        """Do half of the writes that could be, where the group does that at all."""
        if not (self._is_awake() and self._model.at_rest):
            return None
        self._late = True
        try:
            return work()
        finally:
            self._late = False

    def sync_at_once(self) -> bool:
        """Half of them."""
        if not self._is_awake() or self.busy:
            return False
        self.synced()
        return True

    def _is_awake(self) -> bool:
        chance = self.world.at_once
        return chance is not None and not self.node.frozen and self.stalled is None and chance.random() < 0.5

    def sync(self) -> None:
        """Begin: the executor waits for the disk."""
        self._model.sync()

    @property
    def unsynced(self) -> bool:
        """Whether there is a commit that has not been reported."""
        return self._model.unsynced

    def at_once(self, work: Callable[[StoredState], T]) -> T | None:
        self.number += 1  # what is rolled back is no commit: a state is never taken for an earlier one
        return work(self)

    def upkeep_due(self) -> bool:
        return False

    def upkeep(self) -> None:
        """Nothing."""

    def backup(self, target: str) -> None:
        """Refuse. Raises: NOT_SUPPORTED."""
        raise CheloniaError(Kind.NOT_SUPPORTED, "backup", target)

    def free_bytes(self) -> int:
        return self.world.free

    def close(self) -> None:
        """Nothing."""


class SimExecutor:
    """Reads at once; writes one after the other, each done when the disk has synced its commits."""

    def __init__(self, engine: SimReplica, rng: random.Random) -> None:
        self._engine = engine
        self._rng = rng
        self._last: asyncio.Task[None] | None = None
        self._handed: deque[Callable[[], None]] = deque()

    def run_read(self, work: Callable[[], T]) -> asyncio.Future[T]:
        return done_at_once(work)

    def run_write(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run `work` when all earlier work is done; a caller that stops waiting does not stop it."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._last = asyncio.ensure_future(self._write(work, self._last, future))
        return future

    async def _write(self, work: Callable[[], T], before: asyncio.Task[None] | None, future: asyncio.Future[T]) -> None:
        if before is not None and not before.done():
            await asyncio.wait((before,))
        if self._engine.unsynced:
            await asyncio.sleep(self._rng.randint(0, SYNC_MS_MAX) / 1000)
        await self._engine.node.awake()
        try:
            result = work()
        except CheloniaError as error:
            if not future.done():
                future.set_exception(error)
            return
        if self._engine.busy:
            await asyncio.sleep(self._rng.randint(0, SYNC_MS_MAX) / 1000)
            await self._engine.node.awake()
            self._engine.synced()
        if not future.done():
            future.set_result(result)

    def catch_up(self) -> None:
        while self._handed:
            self._handed.popleft()()

    def hand_back(self, work: Callable[[], None], *, at_once: bool = True) -> None:
        """Do it in the next turn of the loop."""
        del at_once
        self._handed.append(work)
        asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        if self._handed:
            self._handed.popleft()()

    def waited(self) -> bool:
        return False

    async def close(self) -> None:
        """Nothing."""


@dataclass(slots=True)
class _Link:
    """A connection: messages arrive in order, or not at all."""

    last_s: dict[int, float] = field(default_factory=dict)
    stuck: deque[tuple[int, int, bytes]] = field(default_factory=deque)


class _Links:
    """`mastership.Links` of one replica."""

    def __init__(self, group: SimGroup, own: int) -> None:
        self._group, self._own = group, own

    def send(self, peer: int, data: bytes) -> bool:
        return self._group.send(self._own, peer, data)

    def set_membership(self, membership: Membership) -> None:
        """See `Links`; members do not change here."""

    def round_trip_ms(self, peer: int) -> int | None:
        """See `Links`; nobody measures here."""
        return None


@dataclass(slots=True)
class Place:
    """One replica: the parts that outlive its process, and the process while there is one."""

    node: Node
    disk: Disk
    engine: SimReplica | None = None
    mastership: Mastership | None = None
    ahash: ReplicatedAHash | None = None
    held: deque[tuple[int, bytes]] = field(default_factory=deque)


class SimGroup:
    """The replicas of one world. `truth` receives every decided record, in order."""

    def __init__(
        self,
        nodes: Sequence[Node],
        rng: random.Random,
        network: Network,
        truth: Callable[[Mapping[bytes, bytes], Iterable[bytes]], None],
        unexpected: Callable[[str, BaseException], None],
    ) -> None:
        self.loop = this_loop()
        self.random = rng
        self.free = LARGE
        self.newest_gen = 0
        self.unexpected = unexpected
        self.parcels: list[tuple[Any, ...]] = []
        self.distance_s: dict[int, float] = {}
        """How much longer messages of replicas far away take."""
        self.at_once: random.Random | None = None
        """Decides which commits of masters happen in the event loop; None: none do."""
        self._network = network
        self._truth = truth
        self._links: dict[tuple[int, int], _Link] = {}
        self._broken: dict[tuple[int, int], float] = {}
        members = tuple(Member(own, Dn(f"/CN={own}"), f"a{own}:1", True) for own in range(1, REPLICAS + 1))
        self.members = Membership(1, members, REPLICAS + 1)
        self._members_decided = self.members
        first = _first_record(self.members)
        self.places = {own: Place(node, Disk([first], 1)) for own, node in enumerate(nodes, start=1)}
        self.decided = first
        self._decide(first)

    # --- for the model ----------------------------------------------------------------------------------------------

    @property
    def now_us(self) -> int:
        return round(self.loop.now_s * 1e6)

    def point(self, name: str, process: Any) -> None:
        """Do nothing: only the scenario `replication` waits at points."""

    def parcel(self, frame: tuple[Any, ...]) -> bytes:
        """Keep a frame; only its number travels."""
        self.parcels.append(frame)
        return (len(self.parcels) - 1).to_bytes(8, "big")

    def may_lose(self, own: int) -> bool:
        """Whether the disk of `own` may be lost: a majority is whole without it, by every membership record in use.
        While a change of voters is under way, so is a majority of the earlier ones."""
        running = {other: place.mastership.replica for other, place in self.places.items() if place.mastership}
        whole = {
            other
            for other, replica in running.items()
            if other != own and replica.trusted and _whole(self.places[other].disk)
        }
        held = [self._members_decided, *(replica.membership for replica in running.values())]
        return all(record.quorum.reached(whole) for record in held)

    def may_rot(self, own: int) -> bool:
        """Whether pages of a replica may rot: it is whole, and so is a majority without it. One without a vote might
        soon have one that would then be lost."""
        engine, votes = self.places[own].engine, own in self._members_decided.voters
        return votes and engine is not None and engine.disk.whole and engine.trusted() and self.may_lose(own)

    def spoil(self, own: int, rng: random.Random) -> str:
        """Damage a page of a running replica, or the end of its log. Returns: the kind of damage."""
        engine = self.places[own].engine
        assert engine is not None
        return page_rot.spoil(engine.disk, sorted(engine.contents()), rng)

    def note(self, text: str) -> None:
        self._network.trace.add(round(self.loop.now_s * 1000), text)

    # --- processes --------------------------------------------------------------------------------------------------

    async def open(self, own: int, horizon: Any) -> ReplicatedAHash:
        """Start a replica on its disk."""
        place = self.places[own]
        place.disk, wrong = page_rot.start(place.disk)
        if wrong:
            self.note(f"replica {own}: {wrong}")
        engine = place.engine = SimReplica(self, own, place.node, place.disk)
        executor = SimExecutor(engine, self.random)
        mastership = Mastership(own, engine, executor, place.node.clock, PACE)
        parts = PeerParts(engine, executor, place.node.clock, AHashSettings(cluster="sim"), horizon)
        ahash = ReplicatedAHash(mastership, parts)
        await ahash.start(_Links(self, own), self.members)
        place.mastership, place.ahash = mastership, ahash
        place.held.clear()
        return ahash

    def crashed(self, own: int) -> None:
        """Note that the process of a replica is gone: unsynced writes may be lost, and its peers notice."""
        place = self.places[own]
        place.engine = place.mastership = place.ahash = None
        place.held.clear()
        disk = place.disk
        kept = self.random.randint(disk.synced, len(disk.log)) if self.random.random() < 0.3 else disk.synced
        del disk.log[kept:]
        disk.synced = kept
        for pair in [pair for pair in self._links if own in pair]:
            self._part(pair)

    def wipe(self, own: int) -> None:
        """Empty the disk of a replica that is down."""
        self.places[own].disk = Disk(whole=False)

    def restore(self, contents: Mapping[bytes, bytes]) -> None:
        """Give the first replica a store that belongs to no group, and empty the disks of the others, while none runs.
        The first founds a group, as in `hosting.ahash_replica.configured`; the others get their votes when they have
        filled up."""
        members = tuple(replace(member, voter=member.replica == 1) for member in self.members.members)
        self.members = self._members_decided = Membership(1, members, REPLICAS + 1)
        sequence = layout.decode_state(contents[layout.META_STATE]).sequence
        self.decided = Record(0, sequence, ((dict(contents), (), ""),))  # type: ignore[arg-type]
        for own, place in self.places.items():
            place.disk = Disk([self.decided], 1) if own == 1 else Disk(whole=False)

    # --- links ------------------------------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Keep connecting all replicas that can reach each other."""
        while True:
            for low in self.places:
                for high in self.places:
                    if low < high and (low, high) not in self._links and self._can_meet(low, high):
                        self._links[low, high] = _Link()
                        self._tell(low, lambda shell, peer=high: shell.up(peer))
                        self._tell(high, lambda shell, peer=low: shell.up(peer))
            await asyncio.sleep(CONNECT_MS / 1000)

    def _can_meet(self, low: int, high: int) -> bool:
        one, other = self.places[low], self.places[high]
        if self.loop.now_s < self._broken.get((low, high), 0):
            return False
        up = all(place.mastership is not None and not place.node.frozen for place in (one, other))
        return up and self._network.reaches(one.node, other.node) and self._network.reaches(other.node, one.node)

    def send(self, sender: int, receiver: int, data: bytes) -> bool:
        """Send over the link, if there is one."""
        pair = (min(sender, receiver), max(sender, receiver))
        link = self._links.get(pair)
        if link is None:
            return False
        if link.stuck or not self._reaches(sender, receiver):
            if not link.stuck:
                self.loop.call_later(TIMED_OUT_MS / 1000, self._look_at, pair, link)
            link.stuck.append((sender, receiver, data))
            return True
        self._carry(pair, link, (sender, receiver, data))
        return True

    def _reaches(self, sender: int, receiver: int) -> bool:
        return self._network.reaches(self.places[sender].node, self.places[receiver].node)

    def _carry(self, pair: tuple[int, int], link: _Link, message: tuple[int, int, bytes]) -> None:
        loop, sender = self.loop, message[0]
        away_s = sum(self.distance_s.get(own, 0.0) for own in pair)
        at_s = max(loop.now_s + self.random.uniform(0.0002, 0.003) + away_s, link.last_s.get(sender, 0.0) + 1e-6)
        link.last_s[sender] = at_s
        if (receiver := self.places[message[1]].engine) is not None:
            loop.call_at(at_s, self._deliver, pair, link, message, context=receiver.context)

    def _look_at(self, pair: tuple[int, int], link: _Link) -> None:
        """After a cut of a while, either deliver the waiting messages or end the connection."""
        if self._links.get(pair) is not link or not link.stuck:
            return
        if all(self._reaches(sender, receiver) for sender, receiver, _ in link.stuck):
            stuck, link.stuck = link.stuck, deque()
            for message in stuck:
                self._carry(pair, link, message)
        else:
            self._part(pair)

    def _deliver(self, pair: tuple[int, int], link: _Link, message: tuple[int, int, bytes]) -> None:
        place = self.places[message[1]]
        if self._links.get(pair) is not link or place.mastership is None:
            return
        place.held.append((message[0], message[2]))
        if len(place.held) > 1:
            return
        if place.node.frozen:
            place.node.spawn(self._when_awake(place))
        else:
            self._take(place)

    async def _when_awake(self, place: Place) -> None:
        await place.node.awake()
        self._take(place)

    def _take(self, place: Place) -> None:
        while place.held and place.mastership is not None:
            sender, data = place.held[0]
            try:
                place.mastership.message(sender, data)
            except Exception as error:
                self.unexpected(place.node.name, error)
            if place.held:
                place.held.popleft()
        self.look_all()

    def _part(self, pair: tuple[int, int]) -> None:
        del self._links[pair]
        self._broken[pair] = self.loop.now_s + 0.2
        for own, peer in (pair, pair[::-1]):
            self._tell(own, lambda shell, peer=peer: shell.down(peer))

    def _tell(self, own: int, what: Callable[[Mastership], None]) -> None:
        """Notify a replica, in its process, once it is awake."""
        place = self.places[own]
        mastership = place.mastership
        if mastership is None:
            return

        async def telling() -> None:
            await place.node.awake()
            what(mastership)
            self.look(own)

        place.node.spawn(telling())

    # --- what was decided -------------------------------------------------------------------------------------------

    def look_all(self) -> None:
        for own in self.places:
            self.look(own)

    def look(self, own: int) -> None:
        """Apply what this replica, as the master of an open term, knows to be durable."""
        place = self.places[own]
        if place.mastership is None or place.mastership.replica.role is not PeerRole.MASTER:
            return
        durable = place.mastership.replica.durable_sequence
        if durable <= self.decided.sequence:
            return
        fresh: deque[Record] = deque()
        for record in reversed(place.disk.log):
            if record.sequence <= self.decided.sequence and record.ops:
                break
            if record.ops and record.sequence <= durable:
                fresh.appendleft(record)
        if record is not self.decided:
            self.unexpected(
                place.node.name, AssertionError(f"term {place.mastership.replica.term} lacks what was told")
            )
        for record in fresh:
            self._decide(record)

    def _decide(self, record: Record) -> None:
        self.decided = record
        puts, deletes, _ = record.ops[0]
        if layout.META_MEMBERS in puts:
            self._members_decided = membership.decode(puts[layout.META_MEMBERS])  # type: ignore[index]
        self._truth(puts, deletes)  # type: ignore[arg-type]

    def master(self) -> int:
        """The replica that serves now, 0 when there is none."""
        return next((own for own, place in self.places.items() if place.ahash is not None and place.ahash.serving), 0)


def _whole(disk: Disk) -> bool:
    return disk.whole and not disk.rot and not disk.ends_at


def _first_record(members: Membership) -> Record:
    """The first record of every replica: an empty store that belongs to this group."""
    store = MemoryStore()
    meta.prepare(store, "sim")
    store.commit(
        {layout.META_MEMBERS: membership.encode(members), layout.META_STATE: layout.encode_state(StoreState(1, 0))}, ()
    )
    return Record(0, 1, ((dict(store.scan(b"", b"\xff", LARGE)), (), ""),))  # type: ignore[arg-type]
