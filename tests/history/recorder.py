"""Concurrent clients of an A-Hash that record their requests, the times, and the answers.

Each client does one thing at a time: a read, a write, or a conditional change of one of a few keys. It behaves as a
real client. It repeats a failed call with the same request key, elsewhere if it can. After a while it gives up, and
then the outcome is unknown; at the end it queries the store for those outcomes by request key.

A record never claims more than is known. An "unmet" answer after a try without an answer counts as unknown: that try
may still be under way. A read that fails is left out: it changed nothing.

Keys are used for a bounded number of operations and then replaced by fresh ones, which bounds the check's work.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from chelonia.core.caller import Call
from chelonia.core.cluster.position import Position
from chelonia.core.errors import CheloniaError
from chelonia.core.ids import ObjectId, RequestKey
from chelonia.core.metadata import Filter, Needed, StoredObject
from chelonia.core.ports.ahash import ChangeType, Condition, ConditionType, Element, TransactOutcome
from chelonia.core.timing.clock import Clock
from chelonia.core.values import replace
from tests.history.records import Level, Model, Op, Operation, Outcome

T = TypeVar("T")

SECTION, PROPERTY = "register", "value"
VALUE: Final[Filter] = (Needed(SECTION, PROPERTY),)
SHARES: Final = {
    Model.REGISTER: ((Op.READ, 50), (Op.WRITE, 50)),
    Model.CAS: ((Op.READ, 20), (Op.WRITE, 25), (Op.CAS, 55)),
}
"""How often each operation is drawn, of a hundred."""
LOOK_FIRST_SHARE: Final = 0.7
"""How often a client reads a key just before it changes it on condition."""
GUESSED_SHARE: Final = 0.1
"""How often it bases such a change on another value than the last one it saw."""


class Registers(Protocol):
    """The part of `core.ports.ahash.AHash` that is used here."""

    async def get(self, call: Call, ids: tuple[ObjectId, ...], needed: Filter = ()) -> tuple[StoredObject, ...]: ...

    async def transact(
        self, call: Call, key: RequestKey, elements: tuple[Element, ...], memo: str = ""
    ) -> TransactOutcome: ...

    async def recall(self, call: Call, key: RequestKey) -> TransactOutcome | None: ...


@dataclass(frozen=True, slots=True)
class Ports:
    """Ways to one A-Hash, one per instance; each makes one attempt per call, since this module counts them. `local`:
    ways whose reads promise no more than a session's order; clients then use both kinds of reads in turn."""

    strong: Sequence[Registers]
    local: Sequence[Registers] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """The clients' behaviour.

    Args:
        run: part of every key and request key, so that runs do not meet.
        keys: how many are in use at a time, half of each model.
        key_operations: after so many a key is replaced.
        patience_ms: for how long an operation is tried; clients take these in turn.
        pause_ms: before a further try.
    """

    run: str
    seed: int = 1
    clients: int = 8
    keys: int = 4
    key_operations: int = 300
    patience_ms: tuple[int, ...] = (10_000, 400)
    pause_ms: int = 50


@dataclass(frozen=True, slots=True)
class Times:
    """`clock` for patience and pauses; `now_ns` stamps, never twice the same if two things have an order."""

    clock: Clock
    now_ns: Callable[[], int]


@dataclass(slots=True)
class _Key:
    name: str
    model: Model
    left: int


@dataclass(slots=True)
class _Client:
    number: int
    random: random.Random
    patience_ms: int
    saw: dict[str, str | None] = field(default_factory=dict)
    current: int = 0


@dataclass(frozen=True, slots=True)
class _Change:
    """A change about to be made: all of its record that is known beforehand."""

    asked: Operation
    elements: tuple[Element, ...]


class Recorder:
    """Runs the clients and keeps their records in `operations`."""

    def __init__(self, ports: Ports, plan: Plan, times: Times) -> None:
        self._ports = ports
        self._plan = plan
        self._times = times
        self._names = itertools.count(1)
        self._values = itertools.count(1)
        self._keys = [self._fresh(model) for _, model in zip(range(plan.keys), itertools.cycle(Model), strict=False)]
        self.operations: list[Operation] = []
        self.keys: list[str] = [key.name for key in self._keys]

    async def run(self, go_on: Callable[[], bool]) -> None:
        """Let all clients work while `go_on()`, then look up the outcomes of the operations without an answer. Raises:
        errors that no client should meet, such as DENIED or BAD_REQUEST."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._plan.clients):
                group.create_task(self._work(number, go_on))
        await self._settle()

    @property
    def answers(self) -> int:
        """How many operations have an answer so far."""
        return sum(operation.outcome is not Outcome.UNKNOWN for operation in self.operations)

    async def forget(self) -> None:
        """Delete every key that was used."""
        for name in self.keys:
            request = RequestKey(f"{self._plan.run}-delete-{name.rpartition(':')[2]}")
            delete = (Element(ObjectId(name), ChangeType.DELETE),)
            await self._patiently(lambda port, r=request, d=delete: port.transact(Call(request_id=r), r, d))  # type: ignore[misc]

    # --- one client ---

    async def _work(self, number: int, go_on: Callable[[], bool]) -> None:
        patience = self._plan.patience_ms[number % len(self._plan.patience_ms)]
        client = _Client(number, random.Random(f"{self._plan.seed}/{number}"), patience, current=number)
        while go_on():
            key = self._take(client.random.randrange(len(self._keys)))
            ops, weights = zip(*SHARES[key.model], strict=True)
            [op] = client.random.choices(ops, weights)
            if op is Op.READ or (op is Op.CAS and client.random.random() < LOOK_FIRST_SHARE):
                await self._read(client, key)
            if op is not Op.READ:
                await self._change(client, self._prepare(client, key, op))

    def _take(self, slot: int) -> _Key:
        """The key in this slot; one that is used up is replaced."""
        key = self._keys[slot]
        if key.left == 0:
            key = self._keys[slot] = self._fresh(key.model)
            self.keys.append(key.name)
        key.left -= 1
        return key

    def _fresh(self, model: Model) -> _Key:
        return _Key(f"sys:history:{self._plan.run}:{next(self._names)}", model, self._plan.key_operations)

    async def _read(self, client: _Client, key: _Key) -> None:
        local = bool(self._ports.local) and client.random.random() < 0.5
        ports = self._ports.local if local else self._ports.strong
        call = Call(request_id=f"{self._plan.run}-c{client.number}")
        give_up = self._times.clock.monotonic_ms() + client.patience_ms
        tries, cause = 0, ""
        while True:
            tries += 1
            begin = self._times.now_ns()
            try:
                # A copy is not read where the client writes, but anywhere: there it has to be waited for.
                at = client.random.randrange(len(ports)) if local else client.current % len(ports)
                [found] = await ports[at].get(call, (ObjectId(key.name),), VALUE)
            except CheloniaError as error:
                cause = await self._again(client, error)
                if self._times.clock.monotonic_ms() < give_up:
                    continue
                return
            break
        value = found.sections.get(SECTION, {}).get(PROPERTY)
        client.saw[key.name] = value
        noted = Operation(client.number, key.name, key.model, Op.READ, begin, self._times.now_ns(), value=value)
        level = Level.LOCAL if local else Level.STRONG
        self.operations.append(replace(noted, level=level, object_version=found.version, tries=tries, cause=cause))

    def _prepare(self, client: _Client, key: _Key, op: Op) -> _Change:
        value = f"{client.number}.{next(self._values)}"
        expected = None
        conditions: tuple[Condition, ...] = ()
        if op is Op.CAS:
            expected = client.saw.get(key.name)
            if client.random.random() < GUESSED_SHARE:
                expected = client.random.choice([None, *client.saw.values()])
            kind = ConditionType.UNSET if expected is None else ConditionType.IS
            conditions = (Condition(kind, SECTION, PROPERTY, expected or "", "held"),)
        elements = (Element(ObjectId(key.name), ChangeType.SET, SECTION, PROPERTY, value, conditions),)
        request = f"{self._plan.run}-{value}"
        begin = self._times.now_ns()
        asked = Operation(client.number, key.name, key.model, op, begin, None, Outcome.UNKNOWN, value, expected)
        return _Change(replace(asked, request=request), elements)

    async def _change(self, client: _Client, change: _Change) -> None:
        asked, ports = change.asked, self._ports.strong
        give_up = self._times.clock.monotonic_ms() + client.patience_ms
        tries, cause = 0, ""
        while True:
            tries += 1
            try:
                port = ports[client.current % len(ports)]
                request = RequestKey(asked.request)
                answer = await port.transact(Call(request_id=asked.request), request, change.elements)
            except CheloniaError as error:
                cause = await self._again(client, error)
                if self._times.clock.monotonic_ms() < give_up:
                    continue
                self.operations.append(replace(asked, tries=tries, cause=cause))
                return
            if answer.applied:
                client.saw[asked.key] = asked.value
            self.operations.append(_answered(replace(asked, tries=tries, cause=cause), answer, self._times.now_ns()))
            return

    async def _again(self, client: _Client, error: CheloniaError) -> str:
        """Go on to the next instance after a pause; returns the error's name. Raises: errors that no retry can cure."""
        if not error.meaning.retryable:
            raise error
        client.current += 1
        await self._times.clock.sleep(self._plan.pause_ms)
        return error.kind.value

    # --- the end ---

    async def _settle(self) -> None:
        """Query the outcomes of operations without an answer. Not found means nothing: one may still be under way."""
        for index, operation in enumerate(self.operations):
            if operation.outcome is not Outcome.UNKNOWN:
                continue
            key = RequestKey(operation.request)
            answer = await self._patiently(lambda port, k=key: port.recall(Call(request_id=k), k))  # type: ignore[misc]
            if answer is not None and answer.applied:
                self.operations[index] = _answered(operation, answer, self._times.now_ns())

    async def _patiently(self, ask: Callable[[Registers], Awaitable[T]]) -> T:
        """Make a call at any instance, over and over for the longest patience."""
        client = _Client(-1, random.Random(0), max(self._plan.patience_ms))
        give_up = self._times.clock.monotonic_ms() + client.patience_ms
        while True:
            try:
                return await ask(self._ports.strong[client.current % len(self._ports.strong)])
            except CheloniaError as error:
                await self._again(client, error)
                if self._times.clock.monotonic_ms() >= give_up:
                    raise


def _answered(asked: Operation, answer: TransactOutcome, now_ns: int) -> Operation:
    position: Position = answer.position
    if answer.applied:
        return replace(asked, outcome=Outcome.OK, back=now_ns, position=position)
    if asked.tries > 1:
        return replace(asked, cause=f"unmet after {asked.cause}")
    return replace(asked, outcome=Outcome.UNMET, back=now_ns, position=position)
