"""Groups of replicated A-Hashes in one process: real engines or twins, in-memory links that can be cut."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from chelonia.ahash.group.lease import ProtocolPeriods
from chelonia.ahash.group.mastership import Mastership
from chelonia.ahash.group.membership import Member, Membership
from chelonia.ahash.group.service import PeerParts, ReplicatedAHash
from chelonia.ahash.settings import AHashSettings
from chelonia.ahash.store import meta
from chelonia.ahash.store.bdb.files import PeerIdentity
from chelonia.ahash.store.bdb.replicated import ReplicatedStore
from chelonia.ahash.store.bdb.store import BdbStore
from chelonia.ahash.store.replicated_port import ReplicatedEngine
from chelonia.ahash.store.store_threads import ThreadExecutor
from chelonia.core.caller import Call
from chelonia.core.cluster.position import Horizon
from chelonia.core.errors import CheloniaError
from chelonia.core.ids import Dn, Ms, RequestKey
from chelonia.core.metadata import WIDE_SECTIONS
from chelonia.core.ports.ahash import AHash
from chelonia.core.timing.clock import Clock
from chelonia.hosting.net.clock import SystemClock
from tests.support.ahash import LIBRARIAN, SMALL, HandClock, delete, no_panic, unset
from tests.support.polling import NotReached, poll_async
from tests.support.replicas import LoopThread

T = TypeVar("T")

PACE = ProtocolPeriods(dead_ms=1000, lease_ms=1200)
"""Slower than in production: test machines are busy, and nothing here measures an outage."""
LASTING = ProtocolPeriods(dead_ms=2_500, lease_ms=3_000, stale_ms=30_000, stuck_ms=60_000)
"""For a group whose tests repeat no request: none of them is about a master that is lost."""


class Switch:
    """Delivers messages between the replicas of one process in order; cut wires lose them."""

    def __init__(self) -> None:
        self.masterships: dict[int, Mastership] = {}
        self.cut: set[frozenset[int]] = set()
        self.frozen: set[int] = set()
        """Replicas whose messages, to them and from them, vanish while every connection stands."""

    def links(self, own: int) -> "Wire":
        return Wire(self, own)

    def connected(self, one: int, two: int) -> bool:
        return {one, two} <= self.masterships.keys() and frozenset((one, two)) not in self.cut

    def deliver(self, sender: int, peer: int, data: bytes) -> None:
        if self.connected(sender, peer) and not {sender, peer} & self.frozen:
            self.masterships[peer].message(sender, data)

    def join(self, replica: int, mastership: Mastership) -> None:
        others = list(self.masterships)
        self.masterships[replica] = mastership
        for other in others:
            self._tell(replica, other, up=True)

    def leave(self, replica: int) -> None:
        gone = self.masterships.pop(replica)
        for other, mastership in self.masterships.items():
            if frozenset((replica, other)) not in self.cut:
                mastership.down(replica)
                gone.down(other)

    def isolate(self, replica: int) -> None:
        """Cut a replica off from all others."""
        for other in list(self.masterships):
            if other != replica and self.connected(replica, other):
                self._tell(replica, other, up=False)
                self.cut.add(frozenset((replica, other)))

    def heal(self) -> None:
        cut, self.cut = self.cut, set()
        for pair in cut:
            one, two = sorted(pair)
            if self.connected(one, two):
                self._tell(one, two, up=True)

    def _tell(self, one: int, two: int, *, up: bool) -> None:
        for here, there in ((one, two), (two, one)):
            mastership = self.masterships[here]
            (mastership.up if up else mastership.down)(there)


@dataclass
class Wire:
    """The links of one replica."""

    switch: Switch
    own: int

    def send(self, peer: int, data: bytes) -> bool:
        if not self.switch.connected(self.own, peer):
            return False
        asyncio.get_running_loop().call_soon(self.switch.deliver, self.own, peer, data)
        return True

    def set_membership(self, membership: Membership) -> None:
        """Do nothing: every replica is on the switch."""

    def round_trip_ms(self, peer: int) -> int | None:
        """Return 0 for a connected peer, None for another: all are in one process."""
        return 0 if self.switch.connected(self.own, peer) else None


class AheadClock(SystemClock):
    """A monotonic clock that a test puts ahead."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def monotonic_ms(self) -> Ms:
        return Ms(super().monotonic_ms() + self.ahead_ms)


@dataclass
class Group:
    """Replicas of one process by id. Requests go to `services`; `engines` and `masterships` are for tests of the
    inside."""

    directory: Path
    count: int
    clock: Clock
    pace: ProtocolPeriods = PACE
    switch: Switch = field(default_factory=Switch)
    services: dict[int, ReplicatedAHash] = field(default_factory=dict)
    masterships: dict[int, Mastership] = field(default_factory=dict)
    engines: dict[int, ReplicatedEngine] = field(default_factory=dict)
    running: dict[int, "asyncio.Task[None]"] = field(default_factory=dict)

    @property
    def members(self) -> Membership:
        members = tuple(Member(n, Dn(f"/CN={n}"), f"h{n}:1", n == 1) for n in range(1, self.count + 1))
        return Membership(1, members, self.count + 1)

    async def open(self, replica: int, waited_ms: int = 0) -> ReplicatedAHash:
        """Start one replica on its directory; it meets the others when `waited_ms` have passed by its clock."""
        identity = PeerIdentity(replica, "test", Dn(f"/CN={replica}"))
        engine = await asyncio.to_thread(ReplicatedStore, self.directory / str(replica), SMALL, identity)
        executor, own_clock = ThreadExecutor(), AheadClock()
        mastership = Mastership(replica, engine, executor, own_clock, self.pace)
        parts = PeerParts(engine, executor, self.clock, AHashSettings(cluster="test"), Horizon())
        service = ReplicatedAHash(mastership, parts)
        try:
            await service.start(self.switch.links(replica), self.members)
        except CheloniaError:  # else its threads and its directory would stay this process's
            await service.close()
            raise
        own_clock.ahead_ms = waited_ms
        self.services[replica], self.masterships[replica], self.engines[replica] = service, mastership, engine
        self.running[replica] = asyncio.create_task(service.run())
        self.switch.join(replica, mastership)
        return service

    async def close(self, replica: int) -> None:
        self.switch.leave(replica)
        task = self.running.pop(replica)
        await self.services.pop(replica).close()
        del self.masterships[replica], self.engines[replica]
        await asyncio.wait((task,))
        task.exception()

    def master(self) -> int:
        """The replica that serves as master now, 0 when there is none."""
        return next((replica for replica, service in self.services.items() if service.serving), 0)

    def followers(self) -> list[int]:
        return [n for n, mastership in self.masterships.items() if n != self.master() and mastership.may_read()]

    async def settled(self, voters: int = 0, beside: int = 0) -> int:
        """Wait until a master (other than `beside`) serves, every replica votes, and all of them answer reads."""
        wanted = voters or self.count

        def look() -> bool:
            master = self.master()
            if master in (0, beside):
                return False
            record = self.masterships[master].replica.membership
            live = [n for n in self.masterships if n != master and self.switch.connected(master, n)]
            if any(self.masterships[n].replica.membership != record for n in live):
                return False  # the master goes by a record before it is written
            return len(record.voters) == wanted and not record.former and set(live) <= set(self.followers())

        try:
            await poll_async(look, 30, what="a settled group")
        except NotReached as error:
            raise NotReached(f"{error}: {self.describe()}") from None
        return self.master()

    def describe(self) -> str:
        return "; ".join(f"{n}: {m.replica.status(m._clock.monotonic_ms())}" for n, m in self.masterships.items())


@asynccontextmanager
async def group_of(
    directory: Path, count: int = 3, clock: Clock | None = None, pace: ProtocolPeriods = PACE
) -> AsyncIterator[Group]:
    """A settled group of replicas on Berkeley DB; the first one founded it on a store made before."""
    founder = await asyncio.to_thread(BdbStore, directory / "1", SMALL, no_panic)
    meta.prepare(founder, "test")
    founder.close()
    group = Group(directory, count, clock or SystemClock(), pace)
    try:
        for replica in range(1, count + 1):
            await group.open(replica, pace.longest_ms)  # no lease was ever granted here
        await group.settled()
        yield group
    finally:
        for replica in list(group.services):
            await group.close(replica)


class GroupClock(SystemClock):
    """A clock whose time a test sets, but which goes on by itself for intervals."""

    def __init__(self) -> None:
        self.hand = HandClock()
        self._first_ms = self.hand.now

    def now_ms(self) -> Ms:
        return self.hand.now_ms()

    def monotonic_ms(self) -> Ms:
        return Ms(super().monotonic_ms() + self.hand.now - self._first_ms)


class LastingGroup:
    """A group that many tests share, in a loop of its own; they leave nothing behind for each other."""

    def __init__(self, directory: Path) -> None:
        self._host = LoopThread()
        self._clock = GroupClock()
        self._context = group_of(directory, clock=self._clock, pace=LASTING)
        self._tests = 0
        self.group = self.do(self._context.__aenter__())

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work in the group's loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._host.loop).result(60)

    def close(self) -> None:
        self.do(self._context.__aexit__(None, None, None))
        self._host.close()

    def fresh(self, *, at_master: bool, clock: HandClock) -> AHash:
        """The A-Hash as if new: emptied, no request key used before, its time held by `clock`."""
        self._tests += 1
        clock.now = self._clock.hand.now + 1
        self._clock.hand = clock
        replica = self.group.master() if at_master else self.group.followers()[0]
        service = self.group.services[replica]
        self.do(_wipe(service))
        return cast(AHash, _Fresh(service, self._host.loop, self._tests))


class _Fresh:
    """An A-Hash in another loop, called from this one; its request keys are those of one test."""

    def __init__(self, ahash: ReplicatedAHash, loop: asyncio.AbstractEventLoop, test: int) -> None:
        self._ahash = ahash
        self._loop = loop
        self._test = test

    def __getattr__(self, name: str) -> Any:
        async def asked(call: Call, *args: Any, **named: Any) -> Any:
            if name in ("transact", "recall") and args[0]:
                args = (RequestKey(f"{self._test}-{args[0]}"), *args[1:])
            work = getattr(self._ahash, name)(call, *args, **named)
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

        return asked


async def _wipe(ahash: ReplicatedAHash) -> None:
    call = LIBRARIAN.strongly()
    while ids := (await ahash.objects(call, "", 100)).ids:
        for object_id in ids:
            for section in sorted(WIDE_SECTIONS):
                while items := (await ahash.scan(call, object_id, section, "", 1000)).items:
                    gone = tuple(unset(object_id, section, prop) for prop, _ in items)
                    await ahash.transact(call, RequestKey(""), gone)
            await ahash.transact(call, RequestKey(""), (delete(object_id),))
