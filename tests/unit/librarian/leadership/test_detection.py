"""Away Shepherds, and the time to detect them: heartbeats, evidence, and several Librarians that receive different
ones."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from chelonia.core.caller import Call, Role
from chelonia.core.cluster.healing import HealingWord
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn, Ms, ServiceId
from chelonia.core.ports.librarian import Heartbeat, Librarian, ServiceRecord
from chelonia.core.values import replace
from chelonia.librarian.metadata.records import LibrarianIdentity
from chelonia.librarian.presence.health import HealthTable, StoredNode, Transition
from chelonia.librarian.presence.quorum_verdict import PresenceVerdict, verdict
from chelonia.librarian.service import LibrarianService
from chelonia.librarian.settings import LibrarianSettings
from chelonia.librarian.world import World
from tests.sim.virtual_loop import virtual
from tests.support.ahash import LIBRARIAN, serving
from tests.support.clocks import VirtualClock
from tests.support.librarian import (
    ADMIN,
    BARTENDER,
    NoShepherds,
    PaperVerifier,
    SequentialIds,
    approved,
    shepherd_call,
    shepherd_id,
)
from tests.support.memory_store import MemoryStore
from tests.support.paper import paper

A, B = shepherd_id(1), shepherd_id(2)
H, S, G, U = HealingWord.HEARD, HealingWord.SILENT, HealingWord.GONE, HealingWord.UNKNOWN
LEASE = 1_000


# --- the verdict ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "others", "expected"),
    [
        (H, [], PresenceVerdict.HERE),
        (H, [G, G], PresenceVerdict.HERE),
        (G, [H], PresenceVerdict.HERE),
        (S, [None, H], PresenceVerdict.HERE),
        (U, [H], PresenceVerdict.HERE),
        (G, [], PresenceVerdict.AWAY),
        (G, [G], PresenceVerdict.AWAY),
        (G, [S], PresenceVerdict.AWAY),
        (G, [U], PresenceVerdict.OPEN),
        (G, [None], PresenceVerdict.OPEN),
        (G, [G, None], PresenceVerdict.AWAY),
        (G, [None, U], PresenceVerdict.OPEN),
        (G, [G, U, None], PresenceVerdict.OPEN),
        (S, [], PresenceVerdict.AWAY),
        (S, [None, U], PresenceVerdict.AWAY),
        (U, [G, G], PresenceVerdict.OPEN),
    ],
)
def test_whoever_hears_a_shepherd_speaks_for_it_and_before_the_lease_is_over_only_a_majority_buries_it(
    own: HealingWord, others: Sequence[HealingWord | None], expected: PresenceVerdict
) -> None:
    assert verdict(own, others) is expected


# --- one Librarian's table --------------------------------------------------------------------------------------------


def beat(shepherd: ServiceId = A, boot: int = 1, *, leaving: bool = False) -> Heartbeat:
    return Heartbeat(shepherd, boot, 0, 100, 200, 3, True, "d", "k", compared=7, leaving=leaving)


def table() -> HealthTable:
    made = HealthTable(LEASE, Ms(0))
    stored = StoredNode(Dn("/CN=a"), "alive", Ms(5), domain="d", verify_key="k")
    made.load({A: stored})
    made.lead(Ms(0))
    made.beat(beat(), Ms(100))
    return made


def test_an_address_that_refuses_is_a_word_and_not_yet_a_state() -> None:
    made = table()
    made.evidence.refused(A)
    assert made.word(A, Ms(110)) is G
    assert made.present(A, Ms(110))
    assert not made.proven(A, Ms(110), 7), "nothing is given up for it"
    assert made.transitions(Ms(110)) == ()
    made.evidence.away(A, Ms(120))
    assert not made.present(A, Ms(120))
    assert made.transitions(Ms(120)) == (Transition(A, "offline", "alive"),)
    made.beat(beat(boot=2), Ms(130))
    assert made.present(A, Ms(130))
    assert made.word(A, Ms(130)) is H
    assert made.transitions(Ms(130)) == ()


def test_a_conclusion_lasts_a_lease_at_most() -> None:
    made = HealthTable(LEASE, Ms(0))
    made.load({A: StoredNode(Dn("/CN=a"), "alive")})
    made.evidence.away(A, Ms(100))
    assert not made.present(A, Ms(1_099))
    assert made.present(A, Ms(1_100)), "who does not lead believes what is stored"


def test_who_is_vouched_for_is_here_but_not_proven() -> None:
    made = table()
    assert made.missed(Ms(1_000), 50) == ()
    assert made.missed(Ms(1_050), 50) == (A,), "others are asked before the lease is over"
    made.evidence.vouched(A, Ms(1_050))
    assert made.present(A, Ms(1_500))
    assert made.transitions(Ms(1_500)) == ()
    assert not made.proven(A, Ms(1_500), 7)
    assert made.word(A, Ms(1_500)) is S, "it does not pass on what it has from others"
    assert made.transitions(Ms(2_050)) == (Transition(A, "offline", "alive"),)


def test_a_goodbye_counts_at_once_and_is_the_last_word_of_its_boot() -> None:
    made = table()
    made.beat(beat(leaving=True), Ms(200))
    assert not made.present(A, Ms(200))
    assert made.word(A, Ms(200)) is G
    assert made.transitions(Ms(200)) == (Transition(A, "offline", "alive", left=True),)
    assert made.beat(beat(), Ms(210)) is None, "overtaken on its way"
    assert not made.present(A, Ms(210))
    heard = made.beat(beat(boot=2), Ms(300))
    assert heard is not None
    assert heard.returned
    assert made.present(A, Ms(300))


def test_who_said_goodbye_is_waited_for_as_in_maintenance() -> None:
    made = table()
    made.excuse(A, Ms(5_000))
    made.beat(beat(leaving=True), Ms(200))
    assert [(v.state, v.maintenance_until_ms) for v in made.views(Ms(200), Ms(4_999))] == [("maintenance", 5_000)]
    assert [v.state for v in made.views(Ms(200), Ms(5_000))] == ["offline"]


# --- several Librarians -----------------------------------------------------------------------------------------------


@dataclass
class Pair:
    """Two Librarians on one A-Hash, and their connections."""

    librarians: dict[ServiceId, LibrarianService] = field(default_factory=dict)
    empty: set[ServiceId] = field(default_factory=set)
    """Addresses that refuse."""
    silent: set[ServiceId] = field(default_factory=set)
    """Librarians that do not answer others."""
    deaf: set[tuple[ServiceId, ServiceId]] = field(default_factory=set)
    """(Librarian, Shepherd) pairs between which nothing passes."""
    up: set[ServiceId] = field(default_factory=lambda: {A, B})
    starting: set[ServiceId] = field(default_factory=set)
    knocks: list[ServiceId] = field(default_factory=list)

    def heard_by(self, librarian: ServiceId) -> list[ServiceId]:
        return [s for s in sorted(self.up) if (librarian, s) not in self.deaf]

    async def hearts(self) -> None:
        while True:
            for name, librarian in self.librarians.items():
                for shepherd in self.heard_by(name):
                    beat = replace(said(shepherd), starting=shepherd in self.starting)
                    await librarian.heartbeat(shepherd_call(shepherd), beat)
            await asyncio.sleep(0.25)

    @property
    def leader(self) -> ServiceId:
        return next(n for n, one in self.librarians.items() if one._parts.healer.summary().is_leader)

    @property
    def other(self) -> ServiceId:
        return next(n for n in self.librarians if n != self.leader)

    async def state(self, librarian: ServiceId, shepherd: ServiceId = A) -> str:
        return next(v.state for v in await self.librarians[librarian].nodes(ADMIN) if v.shepherd == shepherd)


def said(shepherd: ServiceId) -> Heartbeat:
    return replace(beat(shepherd), domain="", compared=1, verify_key=f"key of {shepherd}")


@dataclass
class Reach:
    """One Librarian's neighbours."""

    pair: Pair
    me: ServiceId

    def librarian(self, service: ServiceId) -> Librarian:
        return Remote(self.pair, service)  # type: ignore[return-value]

    async def refused(self, service: ServiceId) -> bool:
        self.pair.knocks.append(service)
        await asyncio.sleep(0.001)
        return service in self.pair.empty or (self.me, service) in self.pair.deaf


@dataclass
class Remote:
    pair: Pair
    service: ServiceId

    async def hearing(self, call: Call, shepherds: tuple[ServiceId, ...]) -> tuple[HealingWord, ...]:
        assert call.roles == (Role.LIBRARIAN,)
        if self.service in self.pair.silent:
            await asyncio.sleep(3600)
        if self.service in self.pair.empty:
            raise CheloniaError(Kind.NETWORK, "hearing", self.service, "refused")
        return await self.pair.librarians[self.service].hearing(call, shepherds)


@asynccontextmanager
async def two_librarians(repair_delay_ms: int = 0) -> AsyncIterator[Pair]:
    pair = Pair()
    names = [ServiceId(f"https://l{n}/Librarian") for n in (1, 2)]
    records = [ServiceRecord(Role.LIBRARIAN, LIBRARIAN.dn, name, approved=True) for name in names]
    quick = LibrarianSettings.dev(ADMIN.dn, (*records, *approved(A, B)))
    settings = replace(quick, repair_delay_ms=repair_delay_ms)
    async with serving(MemoryStore(), VirtualClock()) as ahash:  # type: ignore[arg-type]
        for name in names:
            world = World(NoShepherds(), PaperVerifier(), VirtualClock(), SequentialIds(), settings, Reach(pair, name))
            service = LibrarianService(ahash, LibrarianIdentity(LIBRARIAN.dn, name), world)
            await service.start()
            pair.librarians[name] = service
        tasks = [asyncio.create_task(work) for work in (*(o.run() for o in pair.librarians.values()), pair.hearts())]
        try:
            await asyncio.sleep(5)
            assert [await pair.state(name) for name in names] == ["alive", "alive"]
            yield pair
        finally:
            for service in pair.librarians.values():
                await service.stop()
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            assert [e for e in ended if e is not None and not isinstance(e, asyncio.CancelledError)] == []


def die(pair: Pair, shepherd: ServiceId = A) -> None:
    """The process ends: every Librarian that runs sees its connection close."""
    pair.up.discard(shepherd)
    pair.empty.add(shepherd)
    for name, librarian in pair.librarians.items():
        if name not in pair.empty:
            librarian.suspect(shepherd)


@virtual
async def test_a_process_that_ends_is_away_at_once_for_all() -> None:
    async with two_librarians() as pair:
        die(pair)
        await asyncio.sleep(0.05)
        assert [await pair.state(name) for name in pair.librarians] == ["offline", "offline"]
        assert await pair.state(pair.leader, B) == "alive"


@virtual
async def test_a_connection_cut_to_the_leader_alone_is_not_a_dead_node() -> None:
    async with two_librarians() as pair:
        pair.deaf.add((pair.leader, A))
        pair.librarians[pair.leader].suspect(A)
        for _ in range(60):
            await asyncio.sleep(0.1)
            assert await pair.state(pair.leader) == "alive"
        pair.up.discard(A)
        await asyncio.sleep(3.5)
        assert await pair.state(pair.leader) == "offline"
        pair.up.add(A)
        await asyncio.sleep(2)
        assert await pair.state(pair.leader) == "alive", "back, and heard by the other alone"


@virtual
async def test_nobody_knocks_where_a_stranger_says() -> None:
    async with two_librarians() as pair:
        stranger, one = ServiceId("https://10.0.0.1:22/Shepherd"), pair.librarians[pair.leader]
        call = Call(Dn("/CN=somebody"))
        assert not (await one.heartbeat(call, replace(said(A), shepherd=stranger))).known
        one.suspect(stranger)
        await one.hearing(LIBRARIAN, (stranger, A))
        await asyncio.sleep(5)
        assert set(pair.knocks) == {A}


@pytest.mark.parametrize("phase", [0.0, 0.05, 0.1, 0.15])
@virtual
async def test_a_frozen_shepherd_is_away_within_a_lease_though_the_others_had_heard_it_when_they_were_asked(
    phase: float,
) -> None:
    async with two_librarians() as pair:
        await asyncio.sleep(phase)
        pair.up.discard(A)
        await asyncio.sleep(0.7)
        assert await pair.state(pair.leader) == "alive"
        await asyncio.sleep(0.5)
        assert await pair.state(pair.leader) == "offline", "a lease and a tick of 200 ms after it was last heard"
        assert await pair.state(pair.leader, B) == "alive"


@virtual
async def test_a_librarian_that_does_not_answer_takes_back_nothing_it_said() -> None:
    async with two_librarians() as pair:
        pair.deaf.add((pair.leader, A))
        await asyncio.sleep(1.5)
        pair.silent.add(pair.other)
        await asyncio.sleep(0.5)
        assert await pair.state(pair.leader) == "alive", "its word counts for a lease"
        await asyncio.sleep(1.5)
        assert await pair.state(pair.leader) == "offline"


@virtual
async def test_a_librarian_that_is_gone_has_no_say_and_one_that_is_silent_has() -> None:
    async with two_librarians() as pair:
        leader, other = pair.leader, pair.other
        pair.silent.add(other)
        die(pair)
        await asyncio.sleep(0.6)
        assert await pair.state(leader) == "alive", "no majority, and the lease is not over"
        await asyncio.sleep(1.2)
        assert await pair.state(leader) == "offline"
        pair.silent.clear()
        pair.empty.add(other)
        die(pair, B)
        await asyncio.sleep(0.05)
        assert await pair.state(leader, B) == "offline"


@virtual
async def test_one_that_is_still_starting_is_not_called_dead_for_its_port_that_is_not_open_yet() -> None:
    async with two_librarians() as pair:
        pair.starting.add(A)
        await asyncio.sleep(0.5)
        die(pair)
        await asyncio.sleep(0.4)
        assert [await pair.state(name) for name in pair.librarians] == ["alive", "alive"]
        await asyncio.sleep(2)
        assert await pair.state(pair.leader) == "offline", "a lease decides"


@virtual
async def test_a_connection_that_closes_for_another_reason_is_looked_into_and_forgotten() -> None:
    async with two_librarians() as pair:
        pair.knocks.clear()
        pair.librarians[pair.leader].suspect(A)
        await asyncio.sleep(1)
        assert pair.knocks.count(A) == 3
        assert await pair.state(pair.leader) == "alive"


@virtual
async def test_a_goodbye_is_written_at_once_and_a_planned_restart_is_waited_for() -> None:
    async with two_librarians(repair_delay_ms=60_000) as pair:
        pair.up.discard(A)
        for librarian in pair.librarians.values():
            await librarian.heartbeat(shepherd_call(A), replace(said(A), leaving=True))
        await asyncio.sleep(0.02)
        found = [await pair.state(name) for name in pair.librarians]
        assert found == ["maintenance", "maintenance"]
        await asyncio.sleep(3)
        await pair.librarians[pair.leader].heartbeat(shepherd_call(A), replace(said(A), boot=2))
        await asyncio.sleep(0.5)
        node = next(v for v in await pair.librarians[pair.leader].nodes(ADMIN) if v.shepherd == A)
        assert (node.state, node.maintenance_until_ms) == ("alive", 0)


@virtual
async def test_a_leader_that_stood_still_calls_nobody_away_whose_heartbeats_wait_to_be_read() -> None:
    async with paper(shepherds=3) as p:
        await p.upload("f", copies=2)
        await asyncio.sleep(2)
        dead = p.shepherds[p.b.shepherds[2]]
        dead.up = False
        clock = p.b.clock
        assert isinstance(clock, VirtualClock)
        clock.stood_still_ms += 1_000  # longer than a lease, shorter than a leader's
        woke, away = asyncio.get_running_loop().time(), dict[str, float]()
        while len(away) < 1:
            await asyncio.sleep(0.01)
            assert (await p.b.service.health(ADMIN)).is_leader
            away = {v.shepherd: v.state for v in await p.b.service.nodes(BARTENDER) if v.state != "alive"}
        assert list(away) == [dead.id]
        assert asyncio.get_running_loop().time() - woke < 1.5, "a lease, and what it takes to notice that it is over"
