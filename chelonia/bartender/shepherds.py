"""The Shepherds as a Bartender uses them: the list of them, and tickets to read and write.

If a Shepherd does not answer, or refuses, the Bartender tries the next. Only when too few are left does the caller get
`NO_SHEPHERD` or `NO_REPLICA`. A silent one delays nobody: the next is tried beside it after `hedge_ms`, and for a while
it comes last. The list of nodes is kept for a moment only: nothing here outlives a restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any, Final, TypeVar

from chelonia.bartender.settings import BartenderSettings
from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.cluster.fleet import Fleet
from chelonia.core.cluster.placement import NODE_ALIVE, NODE_OFFLINE, Demand, lacks_room, shared
from chelonia.core.cluster.replicas import PROTOCOL_HTTP, Location, ReplicaFacts
from chelonia.core.contents.extents import ByteRange
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ANONYMOUS, Dn, Ms, ServiceId
from chelonia.core.ports.librarian import Librarian, NodeView
from chelonia.core.ports.shepherd import Directory, GetRequest, Purpose, PutRequest, Shepherd, TurlOutcome
from chelonia.core.timing.clock import Clock, Ids, ended_within, within
from chelonia.core.timing.racing import Race, many
from chelonia.core.values import replace

_log = logging.getLogger(__name__)
Read = Callable[[], Coroutine[Any, Any, TurlOutcome]]
T = TypeVar("T")
UNHEARD_MS, LOOK_MS = 500, 50
"""Longest wait of new bytes for Shepherds that are unheard of, when there are too few, and the pause between looks."""
AWAY_MS: Final = 10 * 60_000
"""Longest absence of a Shepherd worth waiting for: longer than a host takes to start."""
_RANK: Final = itemgetter(0, 1, 2)


@dataclass(frozen=True, slots=True)
class UploadPlan:
    """An upload to ticket: facts, its sender, and the copies that must be durable. `until_ms`: as in `Call`."""

    facts: ReplicaFacts
    purpose: Purpose
    dn: Dn
    durable: int
    spares: int
    until_ms: Ms = Ms(0)


@dataclass(frozen=True, slots=True)
class _Pool:
    """Shepherds to try for one upload, best first, and those that have refused it. `patience_ms`: longest wait for
    each; `kinds`: of the refusals."""

    nodes: list[NodeView]
    refused: list[NodeView]
    patience_ms: int
    kinds: list[str]


class Shepherds:
    """Requests to Shepherds for tickets."""

    def __init__(
        self, librarian: Librarian, directory: Directory, clock: Clock, ids: Ids, settings: BartenderSettings
    ) -> None:
        self._librarian = librarian
        self._directory = directory
        self._clock = clock
        self._ids = ids
        self._settings = settings
        self._nodes: tuple[NodeView, ...] = ()
        self._holders = bounds.REPLICAS_WANTED_MAX
        """Shepherds that may hold copies for long; as many as anybody may want, until they are known."""
        self._fleet = Fleet(())
        self._distances: dict[ServiceId, tuple[bool, int]] = {}
        self._fetched_ms = -1
        self._silent: dict[ServiceId, int] = {}

    async def nodes(self, call: Call) -> tuple[NodeView, ...]:
        """Return all known Shepherds, at most `nodes_cache_ms` old."""
        now_ms = self._clock.monotonic_ms()
        if self._fetched_ms < 0 or now_ms - self._fetched_ms >= self._settings.nodes_cache_ms:
            self._nodes = await self._librarian.nodes(call)
            self._holders = sum(node.state != "waiting" and not node.drain for node in self._nodes)
            self._fleet = Fleet(self._nodes)
            self._distances = {node.shepherd: self._distance(node) for node in self._nodes}
            self._fetched_ms = now_ms
        return self._nodes

    async def shortage(self, call: Call, wanted: int) -> str:
        """Return a note if more copies are wanted than there are Shepherds to hold them, else ""."""
        with suppress(CheloniaError):  # what it is noted of is done
            await self.nodes(call)
        nodes = self._holders
        if wanted <= nodes:
            return ""
        present = "is 1 Shepherd" if nodes == 1 else f"are {nodes} Shepherds"
        return f"{wanted} copies are wanted, and there {present}: more are made when there are more"

    async def candidates(self, call: Call, demand: Demand, at_least: int) -> tuple[NodeView, ...]:
        """Choose Shepherds for new bytes, best first. If there are too few, it waits a little for unheard ones, as
        after the start of a Librarian. Raises: NO_SHEPHERD when fewer than `at_least` can take them, NO_SPACE when they
        lack only room."""
        chosen, give_up_ms = await self._chosen(call, demand), self._clock.monotonic_ms() + UNHEARD_MS
        while len(chosen) < at_least:
            self._fetched_ms = -1  # one may have come up since
            chosen = await self._chosen(call, demand)
            unheard = [node for node in self._nodes if _is_unheard(node, self._clock.now_ms())]
            is_over = self._clock.monotonic_ms() >= give_up_ms or not unheard
            if is_over or len(chosen) >= at_least:
                break
            await self._clock.sleep(LOOK_MS)
        if len(chosen) < at_least:
            able = f"{len(chosen)} of {at_least} Shepherds that are needed can take it now"
            cause = (
                f"{able}; start or approve more, or free space"
                + ", or ask for one copy (`chelonia put --replicas 1`)" * (len(chosen) == 1)
            )
            full = sum(lacks_room(node, demand.size) for node in self._nodes)
            raise CheloniaError(Kind.NO_SPACE if len(chosen) + full >= at_least else Kind.NO_SHEPHERD, cause=cause)
        return tuple(sorted(chosen, key=lambda node: self.is_silent(node.shepherd)))

    async def others(self, call: Call, demand: Demand, asked: Sequence[ServiceId]) -> tuple[NodeView, ...]:
        """Choose further Shepherds when too few of those `asked` take the bytes: one that is cut off counts as alive
        until the Librarians have noticed."""
        with suppress(CheloniaError):
            return await self.candidates(call, replace(demand, holders=tuple(asked)), 0)
        return ()

    async def _chosen(self, call: Call, demand: Demand) -> tuple[NodeView, ...]:
        by_id = {node.shepherd: node for node in await self.nodes(call)}
        return tuple(by_id[shepherd] for shepherd in self._fleet.choose(demand, self._ids.uniform))

    def port(self, shepherd: ServiceId) -> Shepherd:
        """Return the control port of a Shepherd."""
        return self._directory.shepherd(shepherd)

    def is_silent(self, shepherd: ServiceId) -> bool:
        """Whether a Shepherd has lately kept a caller waiting in vain."""
        return self._clock.monotonic_ms() < self._silent.get(shepherd, 0)

    async def upload_turl(self, call: Call, plan: UploadPlan, demand: Demand, candidates: Sequence[NodeView]) -> str:
        """Get write tickets: forwards and spares first, bound to the first Shepherd's DN, then the first one's own.

        The first try has little patience for each of the `candidates`. A second one, without those that refused and
        with `others`, has all there is.
        Returns: the TURL for the user. Raises: NO_SHEPHERD, NO_SPACE when too few Shepherds give tickets.
        """
        kinds: list[str] = []

        async def attempt(nodes: Sequence[NodeView], patience_ms: int) -> tuple[str, list[NodeView]]:
            refused, by_silence = list[NodeView](), sorted(nodes, key=lambda node: self.is_silent(node.shepherd))
            turl = await self._upload_turl(call, plan, _Pool(by_silence, refused, patience_ms, kinds))
            return turl, [node for node in nodes if node not in refused]

        turl, left = await attempt(candidates, 2 * self._settings.hedge_ms)
        if not turl:
            left += await self.others(call, demand, [node.shepherd for node in candidates])
            turl, _ = await attempt(left, self._settings.shepherd_timeout_ms)
        if not turl:
            raise too_few(kinds)
        return turl

    async def _upload_turl(self, call: Call, plan: UploadPlan, pool: _Pool) -> str:
        while len(pool.nodes) >= plan.durable:
            first = pool.nodes.pop(0)
            turls = await self._turls_for(call, plan, first, pool)
            if len(turls) < plan.durable - 1:
                break
            request = replace(
                self._put_request(plan, plan.dn),
                purpose=plan.purpose,
                lifetime_ms=self._lifetime_ms(self._settings.put_lifetime_ms, plan.dn, plan.until_ms),
                forward=tuple(turls[: plan.durable - 1]),
                spare=tuple(turls[plan.durable - 1 :]),
                durable=plan.durable,
            )
            outcome = await self._put(call, first, request, pool)
            if outcome.turl:
                return outcome.turl
        return ""

    async def _put(self, call: Call, node: NodeView, request: PutRequest, pool: _Pool) -> TurlOutcome:
        """Request a write ticket from one Shepherd of the pool, and note its refusal."""
        port = self._directory.shepherd(node.shepherd)
        outcome = await self._ask(node.shepherd, lambda: port.put(call, (request,)), pool.patience_ms)
        if not outcome.turl and outcome.kind != Kind.TIMEOUT.value:
            pool.refused.append(node)
            pool.kinds.append(outcome.kind)
        return outcome

    async def replica_turl(self, call: Call, plan: UploadPlan, candidates: Sequence[NodeView]) -> str:
        """Get one write ticket from the first candidate that gives one. Raises: NO_SHEPHERD."""
        for node in candidates:
            turl = await self.put(call, node.shepherd, self._put_request(plan, plan.dn))
            if turl:
                return turl
        raise CheloniaError(Kind.NO_SHEPHERD, cause="no Shepherd answered; try again in a moment")

    async def put(self, call: Call, shepherd: ServiceId, request: PutRequest) -> str:
        """Request a write ticket from one Shepherd. Returns: the TURL, or "" when it gives none."""
        return (await self._ask(shepherd, lambda: self._directory.shepherd(shepherd).put(call, (request,)))).turl

    async def read_turls(
        self, call: Call, locations: Sequence[Location], user: Call, spans: tuple[ByteRange, ...] = ()
    ) -> tuple[TurlOutcome, ...]:
        """Get read tickets for replicas, nearest first, bound to the carrier of the bytes, for `spans` of them (empty:
        all). Tickets for `ANONYMOUS` alone are for one full body.

        Returns: the first Shepherd's answer and up to `fallback_turls` more that came soon enough.
        Raises: NO_REPLICA when no Shepherd gives one.
        """
        order = await self.nearest(call, locations)
        width = 1 + self._settings.fallback_turls
        responsive = sum(not self.is_silent(location.shepherd) for location in order)
        reads = [partial(self._read, call, location, user, spans) for location in order]
        answers = tuple(answer for answer in await self._soon(reads, min(responsive or width, width)) if answer.turl)
        if answers:
            return answers[:width]
        raise CheloniaError(Kind.NO_REPLICA, cause="no Shepherd with a whole copy answers now; try again in a moment")

    async def in_trouble(self, call: Call, locations: Sequence[Location]) -> list[Location]:
        """Return the offline replicas whose Shepherds are heard, but in trouble. A replica on a disk that is read-only,
        or vouches for nothing else, is whole as long as its checksum is."""
        troubled = {node.shepherd for node in await self.nodes(call) if node.trouble}
        return [location for location in locations if location.shepherd in troubled]

    async def nearest(
        self, call: Call, locations: Sequence[Location], asked: Container[ServiceId] = ()
    ) -> list[Location]:
        """Return locations on live Shepherds first, those that share most of this node's domain before others. Among
        equals those `asked` anyway come first, then chance decides. Silent Shepherds come last."""
        await self.nodes(call)
        ranked = [
            (self._distances.get(each.shepherd, (True, 0)), each.shepherd not in asked, self._ids.uniform(), each)
            for each in locations
        ]
        ranked.sort(key=_RANK)
        order = [location for _, _, _, location in ranked]
        if self._silent:
            order.sort(key=lambda location: self.is_silent(location.shepherd))
        return order

    def _distance(self, node: NodeView) -> tuple[bool, int]:
        return node.state != NODE_ALIVE, -shared(self._settings.domain, node.domain)

    async def _turls_for(self, call: Call, plan: UploadPlan, first: NodeView, pool: _Pool) -> list[str]:
        """Ticket the other durable Shepherds and spares for `first`; those that refuse leave the pool.

        It asks as many at once as it wants, and one more for each that refuses or is silent for `hedge_ms`. Once nobody
        is left to ask, it waits no longer for spares; it asks silent Shepherds only if it needs them.
        """
        request = self._put_request(plan, first.dn)
        needed, wanted = plan.durable - 1, plan.durable - 1 + plan.spares
        waiting, given = sorted(pool.nodes, key=lambda node: self.is_silent(node.shepherd)), dict[ServiceId, str]()
        more = max(needed, min(wanted, sum(not self.is_silent(node.shepherd) for node in waiting)))
        async with Race[NodeView, TurlOutcome](self._clock) as race:
            while len(given) < wanted and (race.running or waiting):
                for node in taken(waiting, more):
                    race.begin(node, self._put(call, node, request, pool))
                ended = await race.ended(self._settings.hedge_ms)
                turl = ended[1].result().turl if ended else ""
                if ended and turl:
                    given[ended[0].shepherd] = turl
                elif ended:
                    pool.nodes.remove(ended[0])
                more = many(silent=ended is None, of_use=bool(turl))
                spent = not waiting or self.is_silent(waiting[0].shepherd)
                if len(given) >= needed and spent and not (ended and race.running):
                    break
        return [given[node.shepherd] for node in pool.nodes if node.shepherd in given][:wanted]

    def _put_request(self, plan: UploadPlan, dn: Dn) -> PutRequest:
        return PutRequest(
            request_id="put",
            facts=plan.facts,
            purpose=Purpose.REPLICA,
            protocols=(PROTOCOL_HTTP,),
            dn="" if dn == ANONYMOUS else dn,
            lifetime_ms=self._settings.put_lifetime_ms,
        )

    def _lifetime_ms(self, most_ms: int, dn: Dn, until_ms: Ms) -> int:
        """Return a ticket's lifetime; an unbound one ends with the token that it was given for."""
        unbound = dn == ANONYMOUS and until_ms
        return max(min(most_ms, until_ms - self._clock.now_ms()), 1) if unbound else most_ms

    async def _read(self, call: Call, location: Location, user: Call, spans: tuple[ByteRange, ...]) -> TurlOutcome:
        dn = user.carrier or user.dn
        request = GetRequest(
            request_id="get",
            reference=location.reference,
            protocols=(PROTOCOL_HTTP,),
            dn="" if dn == ANONYMOUS else dn,
            lifetime_ms=self._lifetime_ms(self._settings.get_lifetime_ms, dn, user.until_ms),
            ranges=user.carrier == ANONYMOUS,
            spans=spans,
        )
        return await self._ask(
            location.shepherd, lambda: self._directory.shepherd(location.shepherd).get(call, (request,))
        )

    async def _ask(
        self, shepherd: ServiceId, ask: Callable[[], Coroutine[Any, Any, tuple[TurlOutcome, ...]]], patience_ms: int = 0
    ) -> TurlOutcome:
        """Return one Shepherd's answer within the timeout; without a TURL when it gives none, for whatever reason."""
        limit_ms = patience_ms or self._settings.shepherd_timeout_ms
        try:
            (answer,) = await self._observe(shepherd, within(self._clock, limit_ms, ask()))
        except CheloniaError as error:
            return TurlOutcome("", error=str(error), kind=error.kind.value)
        if not answer.turl:
            _log.info("shepherd passed over shepherd=%s error=%s", shepherd, answer.error)
        return answer

    async def await_answer(self, shepherd: ServiceId, request: Coroutine[Any, Any, T]) -> T:
        """Return a Shepherd's answer in time, in a task that does nothing else. Raises: its error, NETWORK, TIMEOUT."""
        return await self._observe(shepherd, ended_within(self._clock, self._settings.shepherd_timeout_ms, request))

    async def _observe(self, shepherd: ServiceId, request: Coroutine[Any, Any, T]) -> T:
        sent_ms = self._clock.monotonic_ms()
        try:
            answer = await request
        except asyncio.CancelledError:
            self._note_silence(shepherd, sent_ms)
            raise
        except CheloniaError as error:
            self._note_silence(shepherd, sent_ms)
            _log.info("shepherd passed over shepherd=%s error=%s", shepherd, error)
            raise
        self._silent.pop(shepherd, None)
        return answer

    def _note_silence(self, shepherd: ServiceId, sent_ms: int) -> None:
        """Put a Shepherd that did not answer last for a while, if it had the time to answer."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - sent_ms >= min(self._settings.hedge_ms, self._settings.fallback_grace_ms):
            self._silent[shepherd] = now_ms + self._settings.silent_ms

    def silence_noted(self, shepherd: ServiceId) -> Callable[[asyncio.Future[T]], None]:
        """Return a callback for a future answer: its cancellation, by a caller that stops waiting, notes a silence."""
        sent_ms = self._clock.monotonic_ms()

        def note(answer: asyncio.Future[T]) -> None:
            if answer.cancelled():
                self._note_silence(shepherd, sent_ms)

        return note

    async def _soon(self, reads: Sequence[Read], width: int) -> list[TurlOutcome]:
        """Return answers in the order of `reads`: all up to the first with a TURL, then those within the grace.

        `width` run at once, one more for each that gives none, and `width` more when all are silent for `hedge_ms`.
        """
        waiting, answers = list(enumerate(reads)), dict[int, TurlOutcome]()
        more, give_up_ms = width, -1
        async with Race[int, TurlOutcome](self._clock) as race:
            while race.running or (waiting and give_up_ms < 0):
                for number, read in taken(waiting, more):
                    race.begin(number, read())
                now_ms = self._clock.monotonic_ms()
                ended = await race.ended(self._settings.hedge_ms if give_up_ms < 0 else max(0, give_up_ms - now_ms))
                if ended:
                    answers[ended[0]] = ended[1].result()
                elif give_up_ms >= 0:
                    break
                if give_up_ms < 0 and ended and ended[1].result().turl:
                    give_up_ms = self._clock.monotonic_ms() + self._settings.fallback_grace_ms
                more = many(silent=ended is None, of_use=give_up_ms >= 0, at_once=width)
        return [answers[number] for number in sorted(answers)]


def too_few(kinds: Sequence[str]) -> CheloniaError:
    """Return the error when too few Shepherds take new bytes; `kinds`: of their refusals."""
    full = kinds.count(Kind.NO_SPACE.value)
    reason = f"no space: {full} Shepherds have not enough for it" if full else "too few Shepherds answered"
    if full == len(kinds) > 0:
        return CheloniaError(Kind.NO_SPACE, cause=f"{reason}; free space or add Shepherds")
    return CheloniaError(Kind.NO_SHEPHERD, cause=f"{reason}; try again in a moment")


def _is_unheard(node: NodeView, now_ms: Ms) -> bool:
    """Whether a Shepherd may be there in a moment that the Librarian has not heard yet, or not lately."""
    is_lately_gone = node.state == NODE_OFFLINE and (not node.since_ms or now_ms - node.since_ms < AWAY_MS)
    return is_lately_gone or (node.state == NODE_ALIVE and not node.boot)


def taken(waiting: list[T], count: int) -> list[T]:
    """Take the first `count` off the list, and return them."""
    taken, waiting[:] = waiting[:count], waiting[count:]
    return taken
