"""A group of A-Hash replicas on virtual time: the real protocol over a model of engine, disks and network, one seed.

Phase 1: clients write and read through any replica under faults. Processes crash, freeze (at chosen points too), and
lose unsynced tails or whole disks. Links are cut in one or both directions, frames are late, doubled or out of order,
and members come and go. Phase 2: faults stop, and within a bounded time all must work and be equal.

Checked throughout:
- The master of every term that opens holds every acknowledged write.
- It also holds all of the log that an earlier term reported as durable.
- No two masters may answer at the same moment.

Checked at the end, against the log that all replicas agree on:
- Every acknowledged write is in it, once.
- Strong reads and writes keep real time.
- Local reads never go back.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from chelonia.ahash.group.effects import (
    Announce,
    AskElection,
    Durable,
    Effects,
    FollowerSees,
    OpenTerm,
    Promises,
    ProveTerm,
    Send,
    StepDown,
    TermEnded,
    TermOpened,
    Trusted,
    WritePages,
)
from chelonia.ahash.group.effects import Process as ProcessFrame
from chelonia.ahash.group.lease import NEVER_MS, ProtocolPeriods
from chelonia.ahash.group.membership import Member, Membership
from chelonia.ahash.group.peer_messages import EngineFrame, Message
from chelonia.ahash.group.protocol import GroupPeer, Remembers
from chelonia.ahash.store.replicated_port import Demoted, Event, Failed, Flushed, MasterHere, Ready
from chelonia.core.errors import CheloniaError
from chelonia.core.ids import Dn
from tests.sim.replication_engine import Disk, Engine, Op, Record

DRIFT_PER_MILLE = 20
"""How far a clock's rate may be off; the protocol promises to stand 25."""
OF_MASTERS = ("NEWMASTER", "LOG", "SYNC")


class Broken(AssertionError):
    """A promise was broken."""


@dataclass(slots=True)
class _Waiter:
    term: int
    sequence: int
    done: Callable[[bool], None]


class Process:
    """One run of one replica: protocol, engine, and the smallest possible shell."""

    def __init__(self, node: Node, *, founder: bool = False) -> None:
        self.node, self.world, self.own = node, node.world, node.own
        self.epoch = node.epoch
        self._stalled: list[tuple[Callable[..., None], tuple[Any, ...]]] | None = None
        self.engine = Engine(self, node.disk)
        known = self.engine.state.values.get("members", node.world.first_members)
        trusted = founder or self.engine.trusted()
        self.world.runs += 1
        remembers = Remembers(trusted, self.world.runs, node.disk.known, node.disk.gen, node.disk.promised_ms)
        self.replica = GroupPeer(
            self.own, known, self.world.pace, node.clock_ms(), end=self.engine.end(), remembers=remembers
        )
        self._waiters: list[_Waiter] = []
        self._wake_at: int | None = None
        self._owed = (0, 0)
        self.opened: int | None = None
        self._carrying = 0
        if founder:
            self.engine.found()
        self.carry_out(self.replica.tick(node.clock_ms()))

    # -------------------------------------------------------------------------------------------------------- the shell

    def on_event(self, event: Event) -> None:
        now_ms = self.node.clock_ms()
        if isinstance(event, Flushed | Ready | MasterHere):
            self.go_by_log(event.members)
        if isinstance(event, MasterHere):
            self.carry_out(self.replica.mastered(event.term, self.engine.end(), now_ms))
        else:
            self.carry_out(self.replica.event(event, now_ms))
        if isinstance(event, Demoted):
            self.go_by_log(event.members)
        if isinstance(event, Failed):
            self.world.at(self.world.now_us, None, 0, self.node.fail, self.epoch)

    def go_by_log(self, found: Any) -> None:
        """As `Mastership` does."""
        if found not in (None, self.replica.membership):
            self.carry_out(self.replica.adopt(found, self.node.clock_ms()))

    def on_message(self, peer: int, message: Message) -> None:
        self.carry_out(self.replica.received(peer, message, self.node.clock_ms()))

    def on_link(self, peer: int, up: bool) -> None:
        change = self.replica.connected if up else self.replica.disconnected
        self.carry_out(change(peer, self.node.clock_ms()))

    def carry_out(self, effects: Effects) -> None:
        self._carrying += 1
        for effect in effects:
            match effect:
                case Send(peer, message):
                    self.world.send(self.own, peer, message)
                case ProcessFrame(peer, control, _):
                    self._to_engine(self.engine.process, peer, control)
                case AskElection(sites, votes, _, wait_ms):
                    self._to_engine(self.engine.elect, sites, votes, wait_ms)
                case StepDown():
                    self._to_engine(self.engine.step_down)
                case Announce(peer):
                    self._to_engine(self.engine.peer_up, peer)
                case OpenTerm(mark):
                    self.world.terms_begun += 1
                    self.world.point("open", self)
                    self.engine.commit(mark.term, ((f"mark {mark.term}.{mark.replica}", "mark", mark),), _nothing)
                case ProveTerm(term, _):
                    self.world.point("prove", self)
                    self.engine.commit(term, ((f"proof {term}.{self.own}", "proof", term),), _nothing)
                case TermOpened(term):
                    self.opened = term
                    self.world.opened(self, term)
                    self._go_on_with_change()
                case TermEnded():
                    self.opened = None
                    self._wake_waiters()
                case Durable(_, sequence):
                    self.world.decided(self, sequence)
                    self._wake_waiters()
                case FollowerSees(_, sequence):
                    self._owe(sequence)
                    self._wake_waiters()
                case Promises(lease_ms):
                    self.node.disk.promised_ms = lease_ms
                case Trusted() | WritePages():
                    pass
        self._carrying -= 1
        if not self._carrying:
            self._settle()

    def _settle(self) -> None:
        """After every step: note what is known to be acknowledged, and set the next timer."""
        replica = self.replica
        self.node.disk.known = replica.histories.known
        if replica.histories.parted and self.world.whole:
            raise Broken(f"replica {self.own} is parted from {replica.histories.parted}, and no disk was put back")
        if self.opened is not None:
            self.world.check_leases(self)
        wake_ms = replica.next_wake(self.node.clock_ms())
        if wake_ms < NEVER_MS:
            at_us = self.node.real_us(wake_ms)
            if self._wake_at is None or at_us < self._wake_at:
                self._wake_at = at_us
                self.world.at(at_us, self.node, self.epoch, self._wake, at_us)

    def _wake(self, at_us: int) -> None:
        if self._wake_at == at_us:
            self._wake_at = None
        self.look()

    def look(self) -> None:
        """Act on the time."""
        self.carry_out(self.replica.tick(self.node.clock_ms()))

    def _wait(self, term: int, sequence: int, done: Callable[[bool], None]) -> None:
        waiter = _Waiter(term, sequence, done)
        if not self._look(waiter):
            self._waiters.append(waiter)

    def _look(self, waiter: _Waiter) -> bool:
        try:
            covered = self.replica.covers(waiter.term, waiter.sequence)
        except CheloniaError:
            waiter.done(False)
            return True
        if covered:
            waiter.done(True)
        return covered

    def _wake_waiters(self) -> None:
        waiters, self._waiters = self._waiters, []
        self._waiters += [waiter for waiter in waiters if not self._look(waiter)]

    # -------------------------------------------------------------------------------------------------------- requests

    def write(self, ops: tuple[Op, ...], answer: Callable[[Any], None], hops: int = 1) -> None:
        """Call `answer` with the sequence at which all this was applied, or None: unknown, or not now."""
        replica, term = self.replica, self.opened
        if term is None:
            self._forward(Process.write, ops, answer, hops)
            return

        def committed(sequence: int) -> None:
            self._wait(term, sequence, lambda good: answer(sequence if good else None))

        if not replica.may_write(self.node.clock_ms()) or not self.engine.commit(term, ops, committed):
            answer(None)

    def read_strong(self, key: str, answer: Callable[[Any], None], hops: int = 1) -> None:
        """Call `answer` with (value, sequence), or None."""
        if self.opened is None:
            self._forward(Process.read_strong, key, answer, hops)
            return
        value, sequence = self.engine.state.values.get(key), self.engine.state.sequence

        def covered(good: bool) -> None:
            good = good and self.replica.may_answer_strong(self.node.clock_ms())
            answer((value, sequence) if good else None)

        self._wait(self.opened, sequence, covered)

    def read_local(self, key: str, token: int, answer: Callable[[Any], None]) -> None:
        """Call `answer` with (value, sequence) no older than `token`, or None."""
        behind = self._is_behind() or self.engine.state.sequence < token
        if not self.replica.may_read_here(self.node.clock_ms()) or behind:
            answer(None)
            return
        value, sequence = self.engine.state.values.get(key), self.engine.state.sequence
        self._wait(self.replica.term, sequence, lambda good: answer((value, sequence) if good else None))

    def _owe(self, sequence: int) -> None:
        """As `Mastership` does."""
        if self.engine.state.sequence >= self._owed[0]:
            self._owed = (sequence, self.node.clock_ms())

    def _is_behind(self) -> bool:
        owed, since_ms = self._owed
        lacks = self.opened is None and self.engine.state.sequence < owed
        return lacks and self.node.clock_ms() - since_ms >= self.world.pace.stale_ms

    def _forward(self, method: Callable[..., None], what: Any, answer: Callable[[Any], None], hops: int) -> None:
        master = self.replica.master
        if not hops or master is None or master == self.own:
            answer(None)
            return
        back = self.world.carrier(master, self.own, answer)
        self.world.carry(self.own, master, lambda process: method(process, what, back, 0))

    # ------------------------------------------------------------------------------------------------------ membership

    def change_members(self, change: Callable[[Membership], Membership]) -> None:
        """Change membership by one step, as an administrator does; a refusal is final."""
        try:
            record = change(self.replica.membership)
            self.replica.propose(record)
        except CheloniaError:
            return
        self._commit_record(record)

    def _commit_record(self, record: Membership) -> None:
        term = self.opened
        assert term is not None

        def durable(sequence: int, good: bool) -> None:
            if not good or self.opened != term:
                return
            if record.former:
                self._commit_record(self.replica.finish(sequence))
            elif self.own not in record.voters:
                self.carry_out(self.replica.resign("this replica votes no more", self.node.clock_ms()))

        def committed(sequence: int) -> None:
            self._wait(term, sequence, lambda good: durable(sequence, good))

        if not self.engine.commit(term, ((f"members {record.number} {term}", "members", record),), committed):
            self.carry_out(self.replica.resign("a membership record could not be committed", self.node.clock_ms()))

    def _go_on_with_change(self) -> None:
        if self.replica.membership.former:
            self._commit_record(self.replica.finish(self.engine.end().mark.first))  # type: ignore[union-attr]

    # ------------------------------------------------------------------------------------------- around the engine

    def send_frame(self, peer: int | None, frame: tuple[Any, ...]) -> None:
        message = EngineFrame(frame[0] in OF_MASTERS, frame[1], frame, b"")  # type: ignore[arg-type]
        for each in self.world.nodes if peer is None else (peer,):
            if each != self.own:
                self.world.send(self.own, each, message)

    def engine_later(self, delay_us: int, step: Callable[..., None], *arguments: Any) -> None:
        at_us = self.world.now_us + delay_us
        self.world.at(at_us, self.node, self.epoch, self._to_engine, step, *arguments)

    def _to_engine(self, step: Callable[..., None], *arguments: Any) -> None:
        if self._stalled is not None:
            self._stalled.append((step, arguments))
        else:
            step(*arguments)

    def stall(self, for_us: int) -> None:
        """Stop the engine's threads for a while; the event loop goes on."""
        if self._stalled is None:
            self._stalled = []
            self.world.at(self.world.now_us + for_us, self.node, self.epoch, self._unstall)

    def _unstall(self) -> None:
        steps, self._stalled = self._stalled or [], None
        for number, (step, arguments) in enumerate(steps):
            if self._stalled is not None:
                self._stalled.extend(steps[number:])
                return
            step(*arguments)


class Node:
    """A host: its disk outlives processes, its clock has a reading and a rate of its own."""

    def __init__(self, world: World, own: int) -> None:
        self.world, self.own = world, own
        self.disk = Disk(whole=False)
        self.epoch = 0
        self.process: Process | None = None
        self.frozen: list[tuple[int, Callable[..., None], tuple[Any, ...]]] | None = None
        self._stopped_ms: int | None = None
        self._set_clock()

    def _set_clock(self) -> None:
        rnd = self.world.random
        self._origin_ms = rnd.randrange(10**9)
        self._from_us = self.world.now_us
        self._rate = 1000 + rnd.randint(-DRIFT_PER_MILLE, DRIFT_PER_MILLE)

    def clock_ms(self) -> int:
        return self._origin_ms + (self.world.now_us - self._from_us) * self._rate // 1_000_000

    def real_us(self, clock_ms: int) -> int:
        """The first moment at which the clock shows `clock_ms`."""
        return max(self.world.now_us, self._from_us - (self._origin_ms - clock_ms) * 1_000_000 // self._rate + 1)

    def start(self, *, founder: bool = False) -> None:
        assert self.process is None
        self._set_clock()
        self.epoch += 1
        self.process = Process(self, founder=founder)

    def crash(self) -> None:
        """kill -9, or a power cut: unsynced data may be gone."""
        if self.process is None:
            return
        self.process = None
        self.frozen = None
        self.epoch += 1
        disk = self.disk
        kept = (
            self.world.random.randint(disk.synced, len(disk.log)) if self.world.random.random() < 0.3 else disk.synced
        )
        del disk.log[kept:]
        disk.synced = kept
        self.world.broke(self.own)

    def fail(self, epoch: int) -> None:
        """The process gives up; its supervisor starts another."""
        if epoch == self.epoch:
            self.crash()
            self.world.at(self.world.now_us + 300_000, None, 0, self.restart)

    def restart(self) -> None:
        if self.process is None:
            self.start()

    def wipe(self) -> None:
        self.crash()
        self.disk = Disk(whole=False)

    def freeze(self, *, clock: bool = False) -> None:
        """Stop everything here until `thaw`; with `clock` its clock stops as well, as a paused machine's."""
        if self.process is not None and self.frozen is None:
            self.frozen = []
            self._stopped_ms = self.clock_ms() if clock else None

    def step_clock(self, ms: int) -> None:
        """Let the clock jump forth; its timers become due."""
        self._origin_ms += ms
        if self.process is not None:
            self.world.at(self.world.now_us, self, self.epoch, self.process.look)

    def thaw(self) -> None:
        if self.frozen is not None and self._stopped_ms is not None:
            self._origin_ms -= self.clock_ms() - self._stopped_ms
        steps, self.frozen = self.frozen or [], None
        for number, (epoch, step, arguments) in enumerate(steps):
            if self.frozen is not None:
                self.frozen.extend(steps[number:])
                return
            if epoch == self.epoch:
                step(*arguments)

    def run(self, epoch: int, step: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if epoch != self.epoch:
            return
        if self.frozen is not None:
            self.frozen.append((epoch, step, arguments))
        else:
            step(*arguments)


@dataclass(slots=True)
class Link:
    """A connection between two processes: messages arrive in order, or not at all."""

    number: int
    last_us: dict[int, int] = field(default_factory=dict)
    stuck: dict[int, list[Message]] = field(default_factory=dict)


@dataclass(slots=True)
class Trap:
    """A fault of the process that reaches a point for the `count`-th time from now."""

    point: str
    count: int
    action: Callable[[Process], None]


class World:
    """Time, network, nodes, and the invariants of every moment. Members and strangers share links and calls."""

    def __init__(self, seed: int, voters: int, spare: int = 0, pace: ProtocolPeriods | None = None) -> None:
        self.random = random.Random(seed)
        self.pace = pace or ProtocolPeriods()
        self.now_us = 0
        self.steps = 0
        self.newest_gen = 0
        self.calm = False
        self.true_clocks = True
        """Whether clocks are as leases assume; where not, only checks that do not rest on leases are made."""
        self.blocked: set[tuple[int, int]] = set()
        self.traps: list[Trap] = []
        self.acknowledged: set[str] = set()
        self.far_us: tuple[int, int] | None = None
        self.runs = 0
        self.starving = False
        self.whole = True
        """False once disks were put back from old copies: then nothing is certain about the records of a group."""
        self.terms_begun = self.terms_opened = self._newest_opened = 0
        self._decided: list[Record] = []
        self._queue: list[tuple[int, int, Node | None, int, Callable[..., None], tuple[Any, ...]]] = []
        self._links: dict[tuple[int, int], Link] = {}
        self._parting: dict[tuple[int, int], int] = {}
        members = tuple(Member(i, Dn(f"/CN={i}"), f"h{i}:1", i <= voters) for i in range(1, voters + spare + 1))
        self.first_members = Membership(1, members, voters + spare + 1)
        first = Record(0, 1, (("members 1", "members", self.first_members),))
        self.nodes = {i: Node(self, i) for i in range(1, voters + spare + 1)}
        for node in self.nodes.values():
            if node.own <= voters:  # they begin with the same record, as after a restore; spares begin with nothing
                node.disk = Disk(log=[first], synced=1)
            node.start()
        self._connect()

    # ------------------------------------------------------------------------------------------------------------ time

    def at(self, at_us: int, node: Node | None, epoch: int, step: Callable[..., None], *arguments: Any) -> None:
        """Have `step` happen on `node` (in this epoch of it), or in the world."""
        self.steps += 1
        heapq.heappush(self._queue, (at_us, self.steps, node, epoch, step, arguments))

    def run(self, until_us: int) -> None:
        """Let everything happen up to a moment."""
        queue = self._queue
        while queue and queue[0][0] <= until_us:
            self.now_us, _, node, epoch, step, arguments = heapq.heappop(queue)
            if node is None:
                step(*arguments)
            else:
                node.run(epoch, step, arguments)
        self.now_us = until_us

    def starve(self, low_us: int, high_us: int) -> None:
        """From now on stop every process for so long over and over; it has the processor only in between."""
        self.starving = True
        for node in self.nodes.values():
            self._deny(node, low_us, high_us)

    def feed(self) -> None:
        """Give all the processor again."""
        self.starving = False

    def _deny(self, node: Node, low_us: int, high_us: int) -> None:
        if not self.starving:
            return
        node.freeze()
        self.at(self.now_us + self.random.randrange(low_us, high_us), None, 0, self._grant, node, low_us, high_us)

    def _grant(self, node: Node, low_us: int, high_us: int) -> None:
        node.thaw()
        until_us = self.now_us + self.random.randrange(5_000, 60_000)
        self.at(until_us, None, 0, self._deny, node, low_us, high_us)

    # --------------------------------------------------------------------------------------------------------- network

    def send(self, sender: int, receiver: int, message: Message) -> None:
        """Send over the link, if there is one."""
        link = self._links.get((min(sender, receiver), max(sender, receiver)))
        if link is None:
            return
        if (sender, receiver) in self.blocked:
            link.stuck.setdefault(sender, []).append(message)
            return
        rnd = self.random
        travels_us = rnd.randrange(*self.far_us) if self.far_us else rnd.randrange(100, 800)
        at_us = max(self.now_us + travels_us, link.last_us.get(sender, 0) + 1)
        if not self.calm and rnd.random() < 0.01:
            if isinstance(message, EngineFrame) and rnd.random() < 0.3:
                return  # lost between transport and engine
            at_us += rnd.randrange(30_000)
            number = -1 if isinstance(message, EngineFrame) else link.number
            again_us = at_us + rnd.randrange(1_000_000)
            self.at(again_us, None, 0, self._deliver, number, sender, receiver, message)
        link.last_us[sender] = at_us
        self.at(at_us, None, 0, self._deliver, link.number, sender, receiver, message)

    def _deliver(self, number: int, sender: int, receiver: int, message: Message) -> None:
        link = self._links.get((min(sender, receiver), max(sender, receiver)))
        if link is not None and number in (link.number, -1):
            node = self.nodes[receiver]
            if node.process is not None:
                node.run(node.epoch, node.process.on_message, (sender, message))

    def carry(self, sender: int, receiver: int, step: Callable[[Process], None]) -> None:
        """A forwarded call: lost where there is no way."""
        pair = (min(sender, receiver), max(sender, receiver))
        node = self.nodes[receiver]
        if pair in self._links and (sender, receiver) not in self.blocked and node.process is not None:
            at_us = self.now_us + self.random.randrange(100, 800)
            self.at(at_us, node, node.epoch, step, node.process)

    def carrier(self, sender: int, receiver: int, answer: Callable[[Any], None]) -> Callable[[Any], None]:
        """A callback that carries the answer of a call back."""

        def back(result: Any) -> None:
            if (sender, receiver) not in self.blocked:
                self.at(self.now_us + self.random.randrange(100, 800), None, 0, answer, result)

        return back

    def block(self, ways: set[tuple[int, int]]) -> None:
        """Let nothing pass these ways any more; connections notice after a while."""
        self.blocked |= ways
        for sender, receiver in sorted(ways):
            pair = (min(sender, receiver), max(sender, receiver))
            link = self._links.get(pair)
            if link is not None:
                self.at(self.now_us + self.random.randrange(700_000, 2_500_000), None, 0, self._time_out, pair, link)

    def unblock(self) -> None:
        """Free all ways again: delayed messages arrive late."""
        self.blocked.clear()
        for (low, high), link in sorted(self._links.items()):
            for sender, messages in link.stuck.items():
                for message in messages:
                    self.send(sender, high if sender == low else low, message)
            link.stuck.clear()

    def _time_out(self, pair: tuple[int, int], link: Link) -> None:
        low, high = pair
        if self._links.get(pair) is link and ((low, high) in self.blocked or (high, low) in self.blocked):
            self._part(pair, (low, high))

    def broke(self, own: int) -> None:
        """Note that the process of a node is gone: its peers notice."""
        for pair in sorted(self._links):
            if own in pair:
                other = pair[0] if pair[1] == own else pair[1]
                self._part(pair, (other,))

    def _part(self, pair: tuple[int, int], told: tuple[int, ...]) -> None:
        del self._links[pair]
        for own in told:
            node, peer = self.nodes[own], pair[0] if pair[1] == own else pair[1]
            if node.process is not None:
                self._parting[pair] = self._parting.get(pair, 0) + 1
                at_us = self.now_us + self.random.randrange(100, 3000)
                if (peer, own) in self.blocked:
                    at_us += 1_000_000
                self.at(at_us, None, 0, self._tell_parted, pair, node, node.epoch, peer)

    def _tell_parted(self, pair: tuple[int, int], node: Node, epoch: int, peer: int) -> None:
        self._parting[pair] -= 1
        if node.process is not None:
            node.run(epoch, node.process.on_link, (peer, False))

    def _connect(self) -> None:
        """Replicas that can reach each other connect."""
        self.at(self.now_us + 40_000, None, 0, self._connect)
        up = [own for own, node in self.nodes.items() if node.process is not None and node.frozen is None]
        for low in up:
            for high in up:
                pair = (low, high)
                if low >= high or pair in self._links or self._parting.get(pair):
                    continue
                if pair not in self.blocked and (high, low) not in self.blocked:
                    self._links[pair] = Link(self.steps)
                    for own, peer in ((low, high), (high, low)):
                        node = self.nodes[own]
                        assert node.process is not None
                        node.run(node.epoch, node.process.on_link, (peer, True))

    # ---------------------------------------------------------------------------------------------------------- checks

    def put_back(self) -> None:
        """Put a majority of disks back from old copies: acknowledged writes may be gone."""
        self.whole = False
        self.acknowledged.clear()
        self._decided.clear()

    def point(self, name: str, process: Process) -> None:
        """Spring the trap at a point that a process has reached."""
        for trap in self.traps:
            if trap.point == name:
                trap.count -= 1
                if trap.count == 0:
                    self.traps.remove(trap)
                    trap.action(process)
                    return

    def may_lose(self, own: int) -> bool:
        """Whether the disk of `own` may be lost: a majority is whole without it, by every membership record in use."""
        nodes = self.nodes.values()
        whole = {node.own for node in nodes if node.own != own and node.process and node.process.replica.trusted}
        held = [op[2] for node in nodes for record in node.disk.log for op in record.ops if op[1] == "members"]
        running = [node.process for node in nodes if node.process is not None]
        held += [process.replica.membership for process in running]
        held += [op[2] for process in running for op in process.engine.queued if op[1] == "members"]
        return all(record.quorum.reached(whole) for record in held)

    def opened(self, process: Process, term: int) -> None:
        """Check a term that opened: its master must hold everything ever acknowledged. A machine whose clock stopped
        with it may open a term late, after another: no replica follows it."""
        self.terms_opened += 1
        succeeded, self._newest_opened = term < self._newest_opened, max(term, self._newest_opened)
        if succeeded and not self.true_clocks:
            return
        lost = self.acknowledged - process.engine.state.requests
        if lost:
            raise Broken(f"term {term} of replica {process.own} opened without {sorted(lost)[:3]} ({len(lost)} lost)")

    def decided(self, process: Process, sequence: int) -> None:
        """Take what an open term reported as durable. Answers rest on it, also those that changed nothing, so it
        stays."""
        log = process.node.disk.log
        told = next((place for place, record in enumerate(log) if record.sequence > sequence), len(log))
        known = min(told, len(self._decided))
        if log[:known] != self._decided[:known]:
            raise Broken(f"replica {process.own} is master without what was told before")
        self._decided[known:told] = log[known:told]

    def check_leases(self, process: Process) -> None:
        """Check that no two masters may answer at the same moment, while clocks are right."""
        if sum(node.process is not None and node.process.opened is not None for node in self.nodes.values()) < 2:
            return
        if not self.true_clocks:
            return
        if not process.replica.may_answer_strong(process.node.clock_ms()):
            return
        for node in self.nodes.values():
            other = node.process
            if other is None or other is process or other.opened is None or node.frozen is not None:
                continue
            if other.replica.may_answer_strong(node.clock_ms()):
                raise Broken(f"replicas {process.own} and {other.own} may both answer")


def _nothing(_: int) -> None:
    pass
