"""The second scenario: a few names written, overwritten, moved and deleted by several users while everything breaks.

Messages get lost, doubled and come late; Shepherds crash, freeze, lose bits or their whole disk; the core process
crashes; clocks step. Throughout, `namespace_snapshot.broken` must find nothing. When the faults have stopped, within a
bounded virtual time, every name must hold what was acknowledged last, deleted names must be gone, every blob must have
exactly the wanted number of live replicas on distinct Shepherds, every disk must hold nothing else, and no claim,
erasure or reservation that has expired may be left.

Every user has names of its own, which it uses one operation after the other, so what they must hold is known; an
operation whose outcome the user never learned leaves several possibilities. One name is shared by all.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from msgspec import structs

from chelonia.core.caller import Call
from chelonia.core.errors import TABLE, CheloniaError, Kind
from chelonia.core.ids import RequestKey
from chelonia.core.metadata import Triple
from chelonia.core.names import parse_ln
from chelonia.core.ports.bartender import (
    GetFileRequest,
    ModifyRequest,
    MoveRequest,
    NameRequest,
    PutFileRequest,
)
from chelonia.core.ports.files import Arrived, Failure, Placing, Write
from chelonia.librarian.metadata.blobs import facts_of, locations_of
from chelonia.wire import receipts
from tests.sim.dump import snapshot
from tests.sim.network import Faults
from tests.sim.scenario import CALM, Outcome, Violation
from tests.sim.world import USER, SimShepherd, World
from tests.support import namespace_snapshot

USERS = 3
NAMES_EACH = 4
ROUNDS = 9
STORM = Faults(loss=0.05, duplicate=0.04, late=0.03, delay_ms_max=30)
HEAL_WITHIN_MS = 400_000
TRIES = 40
"""Repeats of one request before its user gives up and never learns what became of it."""

Content = bytes | None


@dataclass(slots=True)
class Expected:
    """What a name may hold: one content (None: nothing) when its user knows. `late`: what may still arrive."""

    now: list[Content] = field(default_factory=lambda: [None])
    late: list[Content] = field(default_factory=list)

    def becomes(self, content: Content, *, certain: bool) -> None:
        """An operation that makes it `content` was acknowledged, or nobody knows."""
        self.now = [content] if certain else [*self.now, content]

    @property
    def known(self) -> bool:
        """Whether there is no doubt."""
        return len(self.now) == 1 and not self.late

    def allows(self, content: Content) -> bool:
        """Whether the name may hold this."""
        return content in self.now or content in self.late


async def churn(seed: int) -> Outcome:
    """Run the scenario. Raises: Violation."""
    run = Churn(seed)
    world = run.world
    world.network.faults = CALM
    await world.start()
    world.network.faults = STORM
    watching = asyncio.ensure_future(run.watch())
    users = [asyncio.ensure_future(run.user(number)) for number in range(USERS)]
    breaking = asyncio.ensure_future(run.break_things())
    await _all((*users, breaking, watching), until=users)
    breaking.cancel()
    await run.repair_everything()
    world.network.faults = CALM
    calm_since = world.clock.monotonic_ms()
    await run.until_whole(calm_since, watching)
    healed = world.clock.monotonic_ms() - calm_since
    watching.cancel()
    await run.check_contents()
    return Outcome(run.acknowledged, healed, world.trace.digest())


async def _all(tasks: tuple[asyncio.Task[None], ...], until: list[asyncio.Task[None]]) -> None:
    """Wait for `until`; a failure of any of `tasks` is a failure of the run."""
    waiting = set(until)
    while waiting:
        done, _ = await asyncio.wait([*tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task in done:
                task.result()
        tasks = tuple(task for task in tasks if task not in done)
        waiting -= done


class Churn:
    """One run: the world, what is expected of it, and who works on it."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.rng = random.Random(seed * 7919)
        self.files: dict[str, Expected] = {}
        self.shared: list[bytes] = []
        self.acknowledged = 0
        self.victim = self.rng.choice(self.world.shepherds)
        self._contents = 0
        self.core = self.world.hosts[0]

    # --- users ------------------------------------------------------------------------------------------------------

    async def user(self, number: int) -> None:
        """One operation after the other."""
        names = [f"/u{number}{name}" for name in range(NAMES_EACH)]
        for name in names:
            self.files[name] = Expected()
        rng = random.Random(self.rng.random())
        for _ in range(ROUNDS):
            await self._operate(rng, names)
            await self.world.clock.sleep(rng.randint(0, 3_000))

    async def _operate(self, rng: random.Random, names: list[str]) -> None:
        name, other = rng.sample(names, 2)
        dice = rng.random()
        if dice < 0.1:
            await self._put_shared(rng)
        elif dice < 0.45:
            await self._put(name, rng.randint(2, 3))
        elif dice < 0.6:
            await self._put_file(name, rng.randint(2, 3))
        elif dice < 0.75:
            await self._delete(name)
        elif dice < 0.9:
            await self._move(name, other)
        else:
            await self._set_wanted(name, rng.randint(2, 4))

    def _content(self) -> bytes:
        self._contents += 1
        return f"content {self._contents} ".encode() * 8

    async def _put_shared(self, rng: random.Random) -> None:
        data = self._content()
        self.shared.append(data)
        await self._upload("/shared", data, 2)

    async def _put(self, name: str, wanted: int) -> None:
        data = self._content()
        answer = await self._upload(name, data, wanted)
        if answer != "refused":
            self.files[name].becomes(data, certain=answer == "done")
            self.acknowledged += answer == "done"

    async def _upload(self, name: str, data: bytes, wanted: int) -> str:
        """Bytes first, as the SDK does it: `done`, `unknown`, or `refused` when nothing can have happened."""
        place = parse_ln(name)
        for _ in range(TRIES):
            try:
                [start] = await self._files.place(self._call(), (Placing(place, len(data), wanted=wanted),))
                if isinstance(start, Failure):
                    await self.world.clock.sleep(400)
                    continue
                uploaded = await self.world.put(start.turl, data)
            except CheloniaError:
                await self.world.clock.sleep(400)
                continue
            words = tuple(receipts.to_text(receipt) for receipt in uploaded.receipts)
            write = Write(place, Arrived(start.put, words))
            return await self._ask(lambda call, write=write: self._files.apply(call, (write,)))
        return "refused"

    async def _put_file(self, name: str, wanted: int) -> None:
        """The original's way."""
        data = self._content()
        states = {
            "size": str(len(data)), "checksum": hashlib.md5(data).hexdigest(), "checksumType": "md5",
            "neededReplicas": str(wanted),
        }  # fmt: skip
        metadata = tuple(Triple("states", prop, value) for prop, value in states.items())
        request = PutFileRequest("0", name, metadata, ("http",), replace=True)
        call = self._call()
        try:
            [answer] = await self._bartender.put_file(call, (request,))
        except CheloniaError:
            return
        if answer.kind:
            return
        try:
            await self.world.put(answer.turl, data)
        except CheloniaError:
            self.files[name].late.append(data)
            return
        self.files[name].becomes(data, certain=True)
        self.acknowledged += 1

    async def _delete(self, name: str) -> None:
        request = NameRequest("0", name)
        answer = await self._ask(lambda call: self._bartender.del_file(call, (request,)), fine=("not-found",))
        if answer != "refused":
            self.files[name].becomes(None, certain=answer == "done")

    async def _move(self, name: str, other: str) -> None:
        """To a name that is free; where a file may be, nothing happens."""
        source, target = self.files[name], self.files[other]
        if not (source.known and target.known) or source.now[0] is None or target.now[0] is not None:
            return
        request = MoveRequest("0", name, other)
        answer = await self._ask(lambda call: self._bartender.move(call, (request,)))
        if answer != "refused":
            target.becomes(source.now[0], certain=answer == "done")
            source.becomes(None, certain=answer == "done")

    async def _set_wanted(self, name: str, wanted: int) -> None:
        request = ModifyRequest("0", name, "set", "states", "neededReplicas", str(wanted))
        await self._ask(lambda call: self._bartender.modify(call, (request,)))

    async def _ask(self, send: Callable[[Call], Awaitable[Any]], fine: tuple[str, ...] = ()) -> str:
        """Repeat one request under one key until it is answered: `done`, `unknown`, or `refused` at the first try."""
        call = self._call()
        for attempt in range(TRIES):
            try:
                [answer] = await send(call)
            except CheloniaError:
                await self.world.clock.sleep(400)
                continue
            kind = getattr(answer, "kind", "")
            if not kind or kind in fine:
                return "done"
            if not TABLE[Kind(kind)].retryable:
                return "refused" if attempt == 0 else "unknown"
            await self.world.clock.sleep(400)
        return "unknown"

    @property
    def _bartender(self) -> Any:
        return self.world.bartender_port()

    @property
    def _files(self) -> Any:
        return self.world.bartender_port(door="files")

    def _call(self) -> Call:
        key = self.world.ids.uuid()
        return structs.replace(USER, request_id=key[:8], request_key=RequestKey(key))

    # --- what breaks ------------------------------------------------------------------------------------------------

    async def break_things(self) -> None:
        """One misfortune after the other; only one Shepherd, the victim, ever loses what was on its disk."""
        world, rng = self.world, self.rng
        misfortunes = (self._crash, self._crash, self._freeze, self._core, self._clock_step, self._rot, self._empty)
        while True:
            await world.clock.sleep(rng.randint(500, 6_000))
            await rng.choice(misfortunes)()

    async def _crash(self) -> None:
        shepherd = self.rng.choice(self.world.shepherds)
        if shepherd.node.up:
            await self.world.crash(shepherd)
            await self.world.clock.sleep(self.rng.choice((200, 3_000, 15_000)))
            await self.world.restart(shepherd)

    async def _freeze(self) -> None:
        node = self.rng.choice(self.world.shepherds).node
        node.freeze()
        await self.world.clock.sleep(self.rng.choice((1_000, 10_000)))
        node.thaw()

    async def _core(self) -> None:
        await self.world.crash_host(self.core)
        await self.world.clock.sleep(self.rng.choice((100, 3_000)))
        await self.world.restart_host(self.core)

    async def _clock_step(self) -> None:
        clocks = [self.core.node.clock, *(shepherd.clock for shepherd in self.world.shepherds)]
        self.rng.choice(clocks).offset_ms += self.rng.choice((-86_400_000, -5_000, 5_000, 60_000, 86_400_000))

    async def _rot(self) -> None:
        held = self.victim.disk.platter.references()
        if held:
            reference = self.rng.choice(held)
            fault = self.rng.choice(("flip", "lose", "truncate", "record"))
            match fault:
                case "flip" if self.victim.disk.platter.data(reference):
                    self.victim.disk.platter.flip(reference)
                case "truncate":
                    self.victim.disk.platter.truncate(reference, 3)
                case "record":
                    self.victim.disk.platter.damage_record(reference)
                case _:
                    self.victim.disk.platter.lose(reference)

    async def _empty(self) -> None:
        if self.victim.node.up and self.rng.random() < 0.5:
            await self.world.crash(self.victim)
            await self.world.clock.sleep(self.rng.choice((200, 10_000)))
            await self.world.empty_disk(self.victim, state_too=self.rng.random() < 0.7)
            await self.world.restart(self.victim)

    async def repair_everything(self) -> None:
        """Every process runs and is awake."""
        for shepherd in self.world.shepherds:
            shepherd.node.thaw()
        if not self.core.node.up:
            await self.world.restart_host(self.core)
        for shepherd in self.world.shepherds:
            if not shepherd.node.up:
                await self.world.restart(shepherd)

    # --- what must hold ---------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Look at the invariants again and again. Raises: Violation."""
        while True:
            await self.world.clock.sleep(4_000)
            if self.core.node.up:
                self.check_invariants()

    def check_invariants(self) -> None:
        """Raises: Violation."""
        broken = namespace_snapshot.broken(snapshot(self.world.store))
        if broken:
            raise Violation(f"at {self.world.clock.monotonic_ms()}: {'; '.join(map(str, broken[:4]))}")

    async def until_whole(self, since_ms: int, watching: asyncio.Task[None]) -> None:
        """Wait until nothing is left to be done. Raises: Violation."""
        while True:
            await self.world.clock.sleep(8_000)
            if watching.done():
                watching.result()
            wrong = self._left()
            if not wrong:
                return
            if self.world.clock.monotonic_ms() - since_ms > HEAL_WITHIN_MS:
                raise Violation(f"not whole after {HEAL_WITHIN_MS} ms: {wrong}")

    def _left(self) -> str:
        seen = snapshot(self.world.store)
        findings = namespace_snapshot.unsettled(seen)
        if findings:
            return "; ".join(map(str, findings[:4]))
        return "; ".join(filter(None, (self._disk_left(shepherd, seen) for shepherd in self.world.shepherds)))

    def _disk_left(self, shepherd: SimShepherd, seen: namespace_snapshot.NamespaceSnapshot) -> str:
        """What a disk holds besides its locations, or lacks of them."""
        wanted = {
            location.reference: facts_of(blob).checksums.sha256
            for blob in seen.blobs()
            for location, _ in locations_of(blob)
            if location.shepherd == shepherd.service_id
        }
        held = {
            ref: hashlib.sha256(shepherd.disk.platter.data(ref)).hexdigest()
            for ref in shepherd.disk.platter.references()
        }
        odd = [ref for ref in sorted({*wanted, *held}) if wanted.get(ref) != held.get(ref)]
        left = shepherd.disk.platter.leftover()
        return f"{shepherd.node.name}: {odd} differ, {left} left over" if odd or left else ""

    async def check_contents(self) -> None:
        """Every name holds what it must, readable by its user. Raises: Violation."""
        self.check_invariants()
        for name in sorted(self.files):
            content = await self._read(name)
            if not self.files[name].allows(content):
                raise Violation(f"{name} holds {_short(content)}, not {[_short(c) for c in self.files[name].now]}")
        content = await self._read("/shared")
        if content is not None and content not in self.shared:
            raise Violation(f"/shared holds {_short(content)}, which nobody wrote")

    async def _read(self, name: str) -> Content:
        [answer] = await self.world.bartender.get_file(USER, (GetFileRequest("0", name, ("http",)),))
        if answer.kind == "not-found":
            return None
        if answer.kind:
            raise Violation(f"{name} cannot be read: {answer.kind} {answer.cause}")
        return await self.world.get(answer.turl)


def _short(content: Content) -> str:
    return "nothing" if content is None else content[:12].decode()
