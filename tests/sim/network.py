"""The simulated network: nodes that crash, and ports whose calls get lost, delayed or doubled.

A `Node` owns tasks; crashing it cancels them all, as a killed process loses its memory. `Network.port(...)` wraps a
service of one node for use by another: each call draws its fate from the run's one random source. Lost means one of
two things the caller cannot tell apart: the request never arrived, or it was carried out and the answer was lost.
Everything that happens goes into `trace`, whose digest is the run's fingerprint.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Ms

EPOCH_MS = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class Faults:
    """How badly the network behaves: probabilities per call, delays in ms. `late`: a call between services that arrives
    long after its caller has given up, at most `late_ms_max` after."""

    loss: float = 0.0
    duplicate: float = 0.0
    late: float = 0.0
    late_ms_max: int = 20_000
    delay_ms_max: int = 5
    timeout_ms: int = 1500


@dataclass(slots=True)
class Trace:
    """What happened, in order, as lines; `digest` identifies the run."""

    lines: list[str] = field(default_factory=list)

    def add(self, now_ms: int, text: str) -> None:
        """Append one event."""
        self.lines.append(f"{now_ms:>8} {text}")

    def digest(self) -> str:
        """SHA-256 over all lines."""
        return hashlib.sha256("\n".join(self.lines).encode()).hexdigest()


class SimClock:
    """A node's clock: virtual time plus its own offset."""

    def __init__(self, offset_ms: int = 0) -> None:
        self.offset_ms = offset_ms

    def now_ms(self) -> Ms:
        """Wall clock of this node."""
        return Ms(EPOCH_MS + self.offset_ms + self.monotonic_ms())

    def monotonic_ms(self) -> Ms:
        """Virtual milliseconds since the start of the run."""
        return Ms(round(asyncio.get_running_loop().time() * 1000))

    async def sleep(self, duration_ms: int) -> None:
        """Let virtual time pass."""
        await asyncio.sleep(duration_ms / 1000)


class SimIds:
    """Identifiers and choices drawn from the run's seed."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def uuid(self) -> str:
        """A version-4-shaped UUID."""
        text = f"{self._rng.getrandbits(128):032x}"
        return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-a{text[17:20]}-{text[20:]}"

    def token(self, n_bytes: int) -> bytes:
        """Seeded bytes."""
        return self._rng.randbytes(n_bytes)

    def uniform(self) -> float:
        """A seeded number in [0, 1)."""
        return self._rng.random()


class Node:
    """One simulated process: its tasks die with it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.up = False
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run `work` as part of this process."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        return task

    async def crash(self) -> None:
        """Kill the process: every task is cancelled, nothing is flushed."""
        self.up = False
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Network:
    """Carries calls between nodes, with faults."""

    def __init__(self, rng: random.Random, trace: Trace) -> None:
        self.faults = Faults()
        self.trace = trace
        self._rng = rng
        self._clock = SimClock()
        self._frozen: dict[str, asyncio.Event] = {}

    def freeze(self, name: str) -> None:
        """Stop a process: what it sends and what is sent to it waits until it is thawed. It does not know."""
        self._frozen[name] = asyncio.Event()

    def thaw(self, name: str) -> None:
        """Let a frozen process go on: everything that waited happens now."""
        self._frozen.pop(name).set()

    @property
    def frozen(self) -> tuple[str, ...]:
        """The processes that are frozen."""
        return tuple(self._frozen)

    async def _awake(self, name: str) -> None:
        while name in self._frozen:
            await self._frozen[name].wait()

    def port(self, target: Callable[[], Any], node: Node, caller: Call, source: str) -> Any:
        """Return a stand-in for the service `target()` on `node`, as called by `source` with `caller`'s identity.

        The identity replaces what the caller puts into its `Call`, as a certificate would; request id and key travel.
        """
        return _Port(self, target, node, caller, source)

    async def carry(self, source: str, node: Node, what: str, work: Callable[[], Awaitable[Any]]) -> Any:
        """Carry one call: `work` runs on `node`. Raises NETWORK or TIMEOUT when it or its answer does not arrive."""
        faults = self.faults
        await self._awake(source)
        await self._clock.sleep(self._rng.randint(0, faults.delay_ms_max))
        fate = self._rng.random()
        if node.name in self._frozen or (faults.late and source != "user" and self._rng.random() < faults.late):
            node.spawn(self._late(node, work))
            return await self._lost(source, node, what, "late")
        if not node.up:
            self._note(source, node, what, "refused")
            raise CheloniaError(Kind.NETWORK, what, node.name, "connection refused")
        if fate < faults.loss / 2:
            return await self._lost(source, node, what, "request lost")
        if self._rng.random() < faults.duplicate:
            self._note(source, node, what, "duplicated")
            node.spawn(_quiet(work()))
        result = await self._perform(source, node, what, work)
        await self._awake(source)
        if fate < faults.loss:
            return await self._lost(source, node, what, "answer lost")
        return result

    async def _late(self, node: Node, work: Callable[[], Awaitable[Any]]) -> None:
        await self._awake(node.name)
        await self._clock.sleep(self._rng.randint(0, self.faults.late_ms_max))
        await _quiet(work())

    async def _perform(self, source: str, node: Node, what: str, work: Callable[[], Awaitable[Any]]) -> Any:
        task = node.spawn(_as_coroutine(work))
        await asyncio.wait((task,))
        if task.cancelled():
            self._note(source, node, what, "connection lost")
            raise CheloniaError(Kind.NETWORK, what, node.name, "connection lost")
        error = task.exception()
        self._note(source, node, what, f"error {error}" if error else "ok")
        if error:
            raise error
        return task.result()

    async def _lost(self, source: str, node: Node, what: str, how: str) -> Any:
        self._note(source, node, what, how)
        await self._clock.sleep(self.faults.timeout_ms)
        raise CheloniaError(Kind.TIMEOUT, what, node.name, how)

    def _note(self, source: str, node: Node, what: str, outcome: str) -> None:
        self.trace.add(self._clock.monotonic_ms(), f"{source} -> {node.name} {what}: {outcome}")


class _Port:
    """Forwards every method call of a port through the network."""

    def __init__(self, network: Network, target: Callable[[], Any], node: Node, caller: Call, source: str) -> None:
        self._network, self._target, self._node = network, target, node
        self._caller, self._source = caller, source

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        async def call(context: Call, *args: Any, **kwargs: Any) -> Any:
            arriving = Call(
                dn=self._caller.dn, roles=self._caller.roles, service_id=self._caller.service_id,
                request_id=context.request_id, request_key=context.request_key, address=self._source,
            )  # fmt: skip

            def work() -> Awaitable[Any]:
                return getattr(self._target(), method)(arriving, *args, **kwargs)

            return await self._network.carry(self._source, self._node, method, work)

        return call


async def _as_coroutine(work: Callable[[], Awaitable[Any]]) -> Any:
    return await work()


async def _quiet(work: Awaitable[Any]) -> None:
    try:
        await work
    except CheloniaError:
        return
