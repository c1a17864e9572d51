"""The simulated network: calls between processes that get lost, delayed, doubled, cut off or carried out late.

`Network.port(...)` wraps a service of one node for use by another; each call draws its fate from the run's one random
source. A loss is one of two things that the caller cannot tell apart. Either the request never arrived, or it was
carried out and the answer was lost. A partition does the same to all calls of one direction.

Every event goes into `trace`, whose digest is the run's fingerprint. `flying` says whether anything that a request has
caused is still under way. A user must know that before he can count the request as failed for good.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec import structs

from chelonia.core.caller import Call
from chelonia.core.cluster.position import Position, later
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import RequestKey
from chelonia.core.operations.rows import Retry
from chelonia.core.operations.tables import TABLES
from chelonia.hosting.net.rpc_client import AGAIN
from tests.sim.process import Node, SimIds, check_alive
from tests.sim.skew import Versions
from tests.sim.virtual_loop import this_loop

ANSWER_MS = 10_000
"""How long a caller waits for an answer."""
LONG_ANSWER_MS = 120_000
"""The same for calls that move bytes."""
HEARD = ("heartbeat", "prove")
"""The calls that show a Librarian that a Shepherd is there: the one it makes, and the one it answers."""
BODIES = ("PUT", "GET")
REPORTS_LATE = 6
"""Reports are few, and late ones must change nothing: they are late so many times as often as others."""
LONG = ("copy", "scrub", *BODIES)
FOLLOWED = ("op", "admin")
"""Beginnings of request ids that `flying` may be called with: services' own are UUIDs."""
ECHO_MS_MAX = 60_000


@dataclass(frozen=True, slots=True)
class Faults:
    """Faults of the network: probabilities per call, delays in ms.

    `late`: a call between services arrives long after its caller has given up, at most `late_ms_max` after.
    `duplicate`: a call is carried out a second time, at most `double_ms_max` after.
    `cut`: a body breaks off on its way.
    `echo`: a report comes a second time, at most `ECHO_MS_MAX` after.
    `orders_late`: as `late`, of orders to erase.
    """

    loss: float = 0.0
    duplicate: float = 0.0
    late: float = 0.0
    cut: float = 0.0
    echo: float = 0.0
    orders_late: float = 0.0
    late_ms_max: int = 20_000
    double_ms_max: int = 0
    delay_ms_max: int = 5
    timeout_ms: int = 1500


class Trace:
    """The events of a run, in order; `digest` identifies it."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(self, now_ms: int, text: str) -> None:
        self._lines.append(f"{str(now_ms).rjust(8)} {text}")

    def tail(self, count: int) -> str:
        return "\n".join(self._lines[-count:])

    def digest(self) -> str:
        """SHA-256 over all lines."""
        return hashlib.sha256("".join(self._lines).encode()).hexdigest()


class Refused(CheloniaError):
    """Nothing listens there: the call has certainly not been carried out."""


Target = Callable[[], Any]
Work = Callable[[], Coroutine[Any, Any, Any]]


class Network:
    """Carries calls between nodes, with faults."""

    def __init__(self, rng: random.Random, trace: Trace) -> None:
        self.faults = Faults()
        self.long_answer_ms = LONG_ANSWER_MS
        self.trace = trace
        self.heard_ms: dict[str, int] = {}
        """The time of each Shepherd's last heartbeat that reached a Librarian, or of its last proof of a copy."""
        self.versions: Versions | None = None
        """The nodes of the version before, where there are any."""
        self._rng = rng
        self._loop = this_loop()
        self._cuts: dict[tuple[str, str], int] = {}
        self._flying: dict[str, int] = {}

    # --- partitions -------------------------------------------------------------------------------------------------

    def cut(self, sources: Sequence[str], targets: Sequence[str]) -> None:
        """Let nothing through from `sources` to `targets`; the other direction stays as it is."""
        for pair in _pairs(sources, targets):
            self._cuts[pair] = self._cuts.get(pair, 0) + 1

    def mend(self, sources: Sequence[str], targets: Sequence[str]) -> None:
        """End one `cut` of the same names."""
        for pair in _pairs(sources, targets):
            self._cuts[pair] -= 1
            if not self._cuts[pair]:
                del self._cuts[pair]

    def reaches(self, source: Node, target: Node) -> bool:
        """Whether anything gets through from one to the other."""
        return (source.name, target.name) not in self._cuts

    async def knock(self, source: Node, target: Node) -> bool:
        """Whether certainly nothing listens at an address."""
        check_alive()
        await self._loop.sleep(self._rng.randint(0, self.faults.delay_ms_max) / 1000)
        return not target.up and self.reaches(source, target) and self.reaches(target, source)

    def within(self, node: Node, service: Any) -> Any:
        """A service as its own process reaches it."""
        return service if self.versions is None else self.versions.within(node, service)

    # --- calls ------------------------------------------------------------------------------------------------------

    def flying(self, request_id: str) -> bool:
        """Whether any call of this request is still under way, its late and doubled copies included."""
        assert request_id.startswith(FOLLOWED), request_id
        return request_id in self._flying

    def port(self, target: Target, node: Node, caller: Call, source: Node) -> Any:
        """Return a stand-in for the service `target()` on `node`, as called by `source` with `caller`'s identity. The
        identity replaces the one in the caller's `Call`, as a certificate would; request id and key travel."""
        return _Port(self, target, node, caller, source)

    def carry(self, source: Node, node: Node, what: str, work: Work, request_id: str = "") -> Coroutine[Any, Any, Any]:
        """Carry one call: `work` runs on `node`. Raises: NETWORK or TIMEOUT when it or its answer does not arrive."""
        check_alive()
        if request_id.startswith(FOLLOWED):
            return self._followed(source, node, what, work, request_id)
        return self._carry(source, node, what, work, "")

    async def _followed(self, source: Node, node: Node, what: str, work: Work, request_id: str) -> Any:
        self._take_off(request_id)
        try:
            return await self._carry(source, node, what, work, request_id)
        finally:
            self._land(request_id)

    async def _carry(self, source: Node, node: Node, what: str, work: Work, request_id: str) -> Any:
        faults, rng = self.faults, self._rng
        if source.thawed is not None:
            await source.awake()
        await self._loop.sleep(below(rng, faults.delay_ms_max + 1) / 1000)
        fate = rng.random()
        if (source.name, node.name) in self._cuts:
            return await self._lost(source, node, what, "cut off")
        whole = what not in BODIES  # a body is sent once
        chance = faults.late * (REPORTS_LATE if what == "report" else 1)
        chance = max(chance, faults.orders_late) if what == "delete" and node.name[0] == "s" else chance
        late = chance and whole and not source.name.startswith("user") and rng.random() < chance
        if node.up and (node.frozen or late):
            self._fly(node, self._late(source, node, what, work, faults.late_ms_max), request_id)
            return await self._lost(source, node, what, "late")
        if not node.up:
            self._note(source, node, what, "refused")
            raise Refused(Kind.NETWORK, what, node.name, "connection refused")
        if fate < faults.loss / 2:
            return await self._lost(source, node, what, "request lost")
        if faults.duplicate and whole and rng.random() < faults.duplicate:
            self._note(source, node, what, "duplicated")
            self._fly(node, self._late(source, node, what, work, faults.double_ms_max), request_id)
        if what == "report" and faults.echo and rng.random() < faults.echo:
            self._note(source, node, what, "comes again")
            self._fly(node, self._late(source, node, what, work, ECHO_MS_MAX), "")
        result = await self._perform(source, node, what, work, request_id)
        if source.thawed is not None:
            await source.awake()
        if fate < faults.loss or (node.name, source.name) in self._cuts:
            return await self._lost(source, node, what, "answer lost")
        return result

    async def _late(self, source: Node, node: Node, what: str, work: Work, late_ms_max: int) -> None:
        await node.awake()
        await self._loop.sleep(self._rng.randint(0, late_ms_max) / 1000)
        await node.awake()
        try:
            await work()
        except CheloniaError:
            return
        self._heard(source, node, what)

    def _heard(self, source: Node, node: Node, what: str) -> None:
        if what in HEARD:
            self.heard_ms[(source if what == "heartbeat" else node).name] = self._loop.now_ms

    async def _perform(self, source: Node, node: Node, what: str, work: Work, request_id: str) -> Any:
        task = self._fly(node, work(), request_id)
        if not await self._loop.finished(task, (self.long_answer_ms if what in LONG else ANSWER_MS) / 1000):
            self._note(source, node, what, "no answer")
            raise CheloniaError(Kind.TIMEOUT, what, node.name, "no answer")
        if task.cancelled():
            self._note(source, node, what, "connection lost")
            raise CheloniaError(Kind.NETWORK, what, node.name, "connection lost")
        error = task.exception()
        self._note(source, node, what, f"error {error!s}" if error else "ok")
        if error is None:
            self._heard(source, node, what)
            return task.result()
        try:
            if isinstance(error, CheloniaError):
                raise error
            raise CheloniaError(Kind.INTERNAL, what, node.name, repr(error))
        finally:
            del error, task

    async def _lost(self, source: Node, node: Node, what: str, how: str) -> Any:
        self._note(source, node, what, how)
        await self._loop.sleep(self.faults.timeout_ms / 1000)
        raise CheloniaError(Kind.TIMEOUT, what, node.name, how)

    def _note(self, source: Node, node: Node, what: str, outcome: str) -> None:
        self.trace.add(self._loop.now_ms, f"{source.name} -> {node.name} {what}: {outcome}")

    # --- what is under way ------------------------------------------------------------------------------------------

    def _fly(self, node: Node, work: Any, request_id: str) -> asyncio.Future[Any]:
        task = node.spawn(work)
        if request_id:
            self._take_off(request_id)
            task.add_done_callback(lambda _: self._land(request_id))
        return task

    def _take_off(self, request_id: str) -> None:
        self._flying[request_id] = self._flying.get(request_id, 0) + 1

    def _land(self, request_id: str) -> None:
        self._flying[request_id] -= 1
        if not self._flying[request_id]:
            del self._flying[request_id]


class _Port:
    """Forwards every method call of a port through the network. It keeps nothing of a failed call: an error that refers
    to its own frames is memory that only a collection frees."""

    def __init__(self, network: Network, target: Target, node: Node, caller: Call, source: Node) -> None:
        self._way = network, target, node, caller, source  # one attribute: setting several is slow with `__getattr__`

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        return partial(self.call, method)

    async def call(self, method: str, context: Call, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the service."""
        network, target, node, caller, source = self._way
        mine = source.horizon
        arriving = Call(
            caller.dn, caller.roles, caller.service_id, (), source.name, context.request_id, context.request_key,
            later(context.read_after, mine.newest), context.strong,
        )  # fmt: skip
        said: list[tuple[CheloniaError | None, Position | None]] = []

        async def work() -> Any:
            service = target()
            if service is None:
                raise CheloniaError(Kind.UNAVAILABLE, method, node.name, "it is starting")
            theirs, versions = node.horizon, network.versions
            try:
                if versions is not None:
                    versions.refuse(node, method)
                    sent = versions.crossing(source, node, args)
                    answer = versions.crossing(source, node, await getattr(service, method)(arriving, *sent, **kwargs))
                else:
                    answer = await getattr(service, method)(arriving, *args, **kwargs)
            except CheloniaError as error:
                said.append((error, theirs.newest))
                raise
            said.append((None, theirs.newest))
            return answer

        failed: CheloniaError | None = None
        try:
            return await network.carry(source, node, method, work, context.request_id)
        except CheloniaError as error:
            failed = error
            raise
        finally:
            for error, position in said:
                if error is failed and position is not None:
                    mine.saw(position)
            said.clear()
            failed = error = None


class Channel:
    """Several instances of one service as one port: `hosting.rpc_client.Channel` without HTTP. It stays with one while
    that answers, and goes on to the next when it does not. It repeats a call for `retry_ms` under one request key."""

    def __init__(
        self, service: str, ports: Sequence[_Port], source: Node, ids: SimIds, *, retry_ms: int = 10_000
    ) -> None:
        self._table = TABLES[service]
        self._ports = ports
        self._source = source
        self._ids = ids
        self._retry_ms = retry_ms
        self._current = int(ids.uniform() * len(ports))

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        called = self.__dict__[method] = partial(self._repeat, method)
        return called

    async def _repeat(self, method: str, context: Call, *args: Any) -> Any:
        retry = self._table.by_method[method].retry
        if retry is Retry.KEYED and not context.request_key:
            context = structs.replace(context, request_key=RequestKey(self._ids.uuid()))
        if retry is Retry.KEY_ARGUMENT and not args[0]:
            args = (RequestKey(self._ids.uuid()), *args[1:])
        clock, count = self._source.clock, len(self._ports)
        give_up = clock.monotonic_ms() + self._retry_ms
        tried = hopeless = 0
        while True:
            current = self._current
            try:
                return await self._ports[current].call(method, context, *args)
            except CheloniaError as error:
                tried += 1
                hopeless += isinstance(error, Refused)
                last = tried >= count and clock.monotonic_ms() + 200 >= give_up
                if hopeless == tried >= count or retry is Retry.ONCE or error.kind not in AGAIN or last:
                    raise
            if self._current == current:
                self._current = (current + 1) % count
            if tried % count == 0:
                await clock.sleep(200)


def below(rng: random.Random, end: int) -> int:
    """Draw the same number as `rng.randrange(end)`, in less time."""
    bits = end.bit_length()
    drawn = rng.getrandbits(bits)
    while drawn >= end:
        drawn = rng.getrandbits(bits)
    return drawn


def _pairs(sources: Sequence[str], targets: Sequence[str]) -> list[tuple[str, str]]:
    return [(source, target) for source in sources for target in targets if source != target]
