"""The faults of a replicated group under one seed, and the checks of its clients' answers."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from chelonia.ahash.group import membership as records
from chelonia.ahash.group.effects import PeerRole
from chelonia.ahash.group.lease import ProtocolPeriods
from chelonia.ahash.group.membership import Membership
from chelonia.core.errors import CheloniaError, Kind
from tests.sim.replication import Broken, Node, Process, Trap, World

STORM_US = 5_000_000
"""How long everything breaks."""
CALM_US = 10_000_000
"""Time after the last fault within which all must be well; 20 ms more for each ms of distance. A term that
cannot open, for a frame that was lost, ends after 3 s, or 6 s after a failed term (`PeerLateness.stuck_ms`)."""
LOOK_US = 700_000
"""How often that is checked."""
STALE_US = 1_300_000
"""The greatest age of a local answer: a second without a heartbeat, the next one, the way, and the clocks'
difference."""
CLIENTS = 3
KEYS = ("a", "b")
TRY_US = 350_000
"""A client waits this long for one answer."""
TRIES = 8
POINTS = ("vote", "vote2", "elected", "open", "prove", "commit", "sync", "flush", "demoted", "copy")


@dataclass(slots=True)
class Done:
    """An operation that was answered."""

    kind: str
    client: int
    key: str
    value: str | None
    call_us: int
    return_us: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one seed."""

    seed: int
    written: int
    read: int
    terms: int
    steps: int


class Client:
    """A client of any replica, with one operation after the other. It retries under the same request key; it gives up
    in the end."""

    def __init__(self, scenario: Scenario, number: int) -> None:
        self._scenario, self._world, self._number = scenario, scenario.world, number
        self._count = 0
        self._attempt = 0
        self._token = 0
        self._next()

    def _next(self) -> None:
        pause_us = self._world.random.randrange(5_000, 90_000)
        self._world.at(self._world.now_us + pause_us, None, 0, self._begin)

    def _begin(self) -> None:
        if self._scenario.over:
            return
        self._count += 1
        rnd = self._world.random
        kind = rnd.choice(("write", "write", "strong", "local"))
        value = f"c{self._number}.{self._count}" if kind == "write" else None
        done = Done(kind, self._number, rnd.choice(KEYS), value, self._world.now_us, 0)
        self._try(done, TRIES)

    def _try(self, done: Done, tries: int) -> None:
        world = self._world
        self._attempt += 1
        attempt = self._attempt
        node = world.random.choice(tuple(world.nodes.values()))
        if done.kind != "write":
            done.call_us = world.now_us
        if node.process is not None:
            at_us = world.now_us + world.random.randrange(100, 900)
            world.at(at_us, node, node.epoch, self._ask, node.process, done, attempt)
        world.at(world.now_us + TRY_US, None, 0, self._answered, done, attempt, tries, None)
        self._tries = tries

    def _ask(self, process: Process, done: Done, attempt: int) -> None:
        world, tries = self._world, self._tries

        def answer(result: Any) -> None:
            at_us = world.now_us + world.random.randrange(100, 900)
            world.at(at_us, None, 0, self._answered, done, attempt, tries, result)

        if done.kind == "write":
            assert done.value is not None
            process.write(((done.value, done.key, done.value),), answer)
        elif done.kind == "strong":
            process.read_strong(done.key, answer)
        else:
            process.read_local(done.key, self._token, answer)

    def _answered(self, done: Done, attempt: int, tries: int, result: Any) -> None:
        if attempt != self._attempt:
            return
        if result is None:
            self._attempt += 1
            if tries > 1:
                pause_us = self._world.random.randrange(5_000, 60_000)
                self._world.at(self._world.now_us + pause_us, None, 0, self._try, done, tries - 1)
            else:
                self._next()
            return
        self._attempt += 1
        done.return_us = self._world.now_us
        if done.kind == "write":
            assert done.value is not None
            self._world.acknowledged.add(done.value)
            self._token = max(self._token, result)
        else:
            done.value, sequence = result
            self._token = max(self._token, sequence)
        self._scenario.history.append(done)
        self._next()


class Scenario:
    """One seed: a group, its clients, its faults. `round_trip_ms` is the distance that its leases are made for,
    `far_us` the real time of messages if not local. Without `true_clocks` clocks jump and stop as well."""

    def __init__(
        self, seed: int, round_trip_ms: int = 100, far_us: tuple[int, int] | None = None, *, true_clocks: bool = True
    ) -> None:
        draw = random.Random(seed)
        self.seed = seed
        self.history: list[Done] = []
        self.over = False
        voters, spare = draw.choice((3, 3, 3, 5)), draw.choice((0, 0, 1))
        self.world = World(seed, voters, spare, ProtocolPeriods.over(round_trip_ms))
        self.world.far_us = far_us
        self.world.true_clocks = true_clocks
        self.calm_us = CALM_US + 20_000 * (round_trip_ms - 100)
        for number in range(CLIENTS):
            Client(self, number)
        for _ in range(draw.randint(4, 10)):
            self.world.at(draw.randrange(STORM_US), None, 0, self._fault)
        for _ in range(0 if true_clocks else draw.randint(3, 8)):
            self.world.at(draw.randrange(STORM_US), None, 0, draw.choice((self._step_clock, self._pause)))

    def run(self) -> Outcome:
        """Run the storm and the calm after it. Raises: Broken."""
        world = self.world
        world.run(STORM_US)
        self._calm_down()
        self._heal()
        order = self._order()
        if self.world.true_clocks:
            check_history(self.history, order)
        else:
            check_history([done for done in self.history if done.kind == "write"], order)
        written = sum(done.kind == "write" for done in self.history)
        return Outcome(self.seed, written, len(self.history) - written, world.terms_opened, world.steps)

    # ---------------------------------------------------------------------------------------------------------- faults

    def _fault(self) -> None:
        if self.world.calm:
            return
        faults = (
            self._crash, self._crash, self._freeze, self._stall, self._wipe, self._cut_off, self._cut_off,
            self._split, self._one_way, self._trap, self._trap, self._trap, self._all_at_once, self._members,
        )  # fmt: skip
        self.world.random.choice(faults)()

    def _victim(self) -> Node:
        """A replica for a fault: half of the time the master."""
        world = self.world
        nodes = tuple(world.nodes.values())
        masters = [node for node in nodes if node.process is not None and node.process.opened is not None]
        return masters[0] if masters and world.random.random() < 0.5 else world.random.choice(nodes)

    def _after(self, low_us: int, high_us: int, step: Callable[..., None], *arguments: Any) -> None:
        world = self.world
        world.at(world.now_us + world.random.randrange(low_us, high_us), None, 0, step, *arguments)

    def _crash(self, node: Node | None = None) -> None:
        node = node or self._victim()
        node.crash()
        self._after(50_000, 2_000_000, node.restart)

    def _freeze(self, node: Node | None = None) -> None:
        node = node or self._victim()
        node.freeze()
        self._after(50_000, 3_000_000, node.thaw)

    def _step_clock(self) -> None:
        """Step a clock, half of the time by less than a lease or two."""
        self._victim().step_clock(self.world.random.choice((self.world.random.randrange(1_000), 3_600_000)))

    def _pause(self) -> None:
        """Pause a virtual machine, its clock with it."""
        node = self._victim()
        node.freeze(clock=True)
        self._after(50_000, 3_000_000, node.thaw)

    def _stall(self) -> None:
        node = self._victim()
        if node.process is not None:
            node.process.stall(self.world.random.randrange(50_000, 3_000_000))

    def _wipe(self) -> None:
        """Wipe a disk while a majority of disks is whole without it."""
        node = self._victim()
        if self.world.may_lose(node.own):
            node.wipe()
            self._after(50_000, 1_000_000, node.restart)

    def _whole(self) -> set[int]:
        return {node.own for node in self.world.nodes.values() if _trusted(node)}

    def _cut_off(self) -> None:
        node = self._victim()
        others = [other for other in self.world.nodes if other != node.own]
        self._block({(node.own, other) for other in others} | {(other, node.own) for other in others})

    def _one_way(self) -> None:
        node = self._victim()
        others = [other for other in self.world.nodes if other != node.own]
        lost = self.world.random.sample(others, self.world.random.randint(1, len(others)))
        outwards = self.world.random.random() < 0.5
        self._block({(node.own, other) if outwards else (other, node.own) for other in lost})

    def _split(self) -> None:
        owns = list(self.world.nodes)
        self.world.random.shuffle(owns)
        half = self.world.random.randint(1, len(owns) - 1)
        self._block({way for a in owns[:half] for b in owns[half:] for way in ((a, b), (b, a))})

    def _block(self, ways: set[tuple[int, int]]) -> None:
        self.world.block(ways)
        self._after(100_000, 2_500_000, self.world.unblock)

    def _trap(self) -> None:
        """Set a trap at a point, and remove the master, so that some replica reaches it."""
        rnd = self.world.random
        action = rnd.choice((self._freeze_long, self._freeze_long, self._stall_long, self._crash_process))
        self.world.traps.append(Trap(rnd.choice((*POINTS, "elected", "elected")), rnd.randint(1, 4), action))
        if rnd.random() < 0.7:
            self._crash()

    def _freeze_long(self, process: Process) -> None:
        process.node.freeze()
        self._after(2_900_000, 3_100_000, process.node.thaw)

    def _stall_long(self, process: Process) -> None:
        process.stall(3_000_000)

    def _crash_process(self, process: Process) -> None:
        self.world.at(self.world.now_us, None, 0, self._crash, process.node)

    def _all_at_once(self) -> None:
        for node in self.world.nodes.values():
            self._crash(node)

    def _members(self) -> None:
        """Change membership by one step, at the master; without a master it is dropped."""
        if self.world.calm:
            return
        rnd = self.world.random
        masters = [node for node in self.world.nodes.values() if node.process is not None and node.process.opened]
        if not masters or masters[0].process is None or masters[0].frozen is not None:
            return
        target = rnd.choice(tuple(self.world.nodes))
        if self._whole() != set(self.world.nodes):
            return

        def change(record: Membership) -> Membership:
            member = record.member(target)
            if member is None:
                raise CheloniaError(Kind.NOT_FOUND)
            if member.voter:
                return records.demote(record, target)
            return records.promote(record, target) if self._may_vote(target) else records.remove(record, target)

        masters[0].process.change_members(change)
        self._after(50_000, 400_000, self._members)

    def _may_vote(self, target: int) -> bool:
        return _trusted(self.world.nodes[target])

    def _calm_down(self) -> None:
        world = self.world
        world.calm = True
        world.traps.clear()
        world.unblock()
        for node in world.nodes.values():
            node.thaw()
            node.restart()

    # ---------------------------------------------------------------------------------------------------------- checks

    def _heal(self) -> None:
        """Let the group become well while clients go on; then wait for their last operations."""
        world, until_us = self.world, STORM_US + self.calm_us
        while world.now_us < until_us:
            world.run(world.now_us + LOOK_US)
            late = [done for done in self.history if done.kind == "write" and done.call_us > STORM_US]
            if {done.client for done in late} == set(range(CLIENTS)) and not self._ill():
                break
        self.over = True
        while self._ill():
            if world.now_us >= until_us:
                raise Broken(f"not well after the calm: {self._ill()}")
            world.run(world.now_us + LOOK_US)
        world.run(world.now_us + TRY_US)
        if self._ill():
            raise Broken(f"ill again: {self._ill()}")

    def _ill(self) -> str:
        """The fault that is left; "" when there is one open master and all others are synchronised with it and
        serve."""
        processes = [node.process for node in self.world.nodes.values()]
        masters = [process for process in processes if process is not None and process.replica.role is PeerRole.MASTER]
        if len(masters) != 1:
            return f"{len(masters)} masters: {[each and each.replica.role.value for each in processes]}"
        for own in masters[0].replica.membership.replicas:
            process = self.world.nodes[own].process
            if process is None:
                return f"replica {own} is down"
            now_ms = process.node.clock_ms()
            reads = process.replica.may_read_here(now_ms) or not self.world.true_clocks  # else the master answers
            if not process.replica.trusted or not reads:
                return f"replica {own} does not serve: {process.replica.status(now_ms)}"
            if self.over and process.engine.state.values != masters[0].engine.state.values:
                return f"replica {own} differs from the master"
        return ""

    def _order(self) -> dict[str, int]:
        """Every value ever written, and its place in the order that the group agrees on."""
        master = next(
            node.process for node in self.world.nodes.values() if node.process and node.process.opened is not None
        )
        order: dict[str, int] = {}
        for record in master.node.disk.log:
            for request, key, value in record.ops:
                if key in KEYS:
                    if request in order:
                        raise Broken(f"{request} was applied twice")
                    order[value] = len(order) + 1
        lost = self.world.acknowledged - set(order)
        if lost:
            raise Broken(f"acknowledged, but gone: {sorted(lost)}")
        return order


def _trusted(node: Node) -> bool:
    return node.process is not None and node.process.replica.trusted


def check_history(history: list[Done], order: dict[str, int]) -> None:
    """Judge what clients saw by the order of all writes: real time for strong operations, sessions for local reads."""
    for key in KEYS:
        strong = [done for done in history if done.key == key and done.kind != "local"]
        _check_real_time(strong, order)
        _check_age(strong, [done for done in history if done.key == key and done.kind == "local"], order)
        for client in range(CLIENTS):
            _check_session([done for done in history if done.key == key and done.client == client], order)


def _check_real_time(history: list[Done], order: dict[str, int]) -> None:
    ends = sorted(history, key=lambda done: done.return_us)
    newest, next_end = 0, 0
    for done in sorted(history, key=lambda done: done.call_us):
        while next_end < len(ends) and ends[next_end].return_us < done.call_us:
            newest = max(newest, _place(ends[next_end], order))
            next_end += 1
        place = _place(done, order)
        if place < newest or (done.kind == "write" and place <= newest):
            raise Broken(f"{done} came after one at {newest} had been answered, but stands at {place}")


def _check_age(strong: list[Done], local: list[Done], order: dict[str, int]) -> None:
    """Check that a local read shows every write answered long enough before it."""
    ends = sorted(strong, key=lambda done: done.return_us)
    newest, next_end = 0, 0
    for done in sorted(local, key=lambda done: done.call_us):
        while next_end < len(ends) and ends[next_end].return_us < done.call_us - STALE_US:
            newest = max(newest, _place(ends[next_end], order))
            next_end += 1
        if _place(done, order) < newest:
            raise Broken(f"{done} shows {_place(done, order)}, and {newest} had been answered long before")


def _check_session(history: list[Done], order: dict[str, int]) -> None:
    newest = 0
    for done in history:
        place = _place(done, order)
        if done.kind == "local" and place < newest:
            raise Broken(f"{done} shows {place} to one who knew {newest}")
        newest = max(newest, place)


def _place(done: Done, order: dict[str, int]) -> int:
    if done.value is None:
        return 0
    if done.value not in order:
        raise Broken(f"{done} shows what was rolled back")
    return order[done.value]


def run_seed(seed: int) -> Outcome:
    """One seed, from beginning to end. Raises: Broken."""
    return Scenario(seed).run()


async def replication(seed: int) -> Outcome:
    """The same as one of a campaign's scenarios; it keeps a time of its own."""
    return run_seed(seed)
