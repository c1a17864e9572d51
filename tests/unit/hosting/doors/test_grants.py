"""Roles: from the configuration always, from the cluster while it can be read, from callers never."""

from __future__ import annotations

import asyncio

import pytest

from chelonia.core.caller import Call, Role
from chelonia.core.cluster.position import Position
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ANONYMOUS, Dn, RequestKey, ServiceId
from chelonia.core.ports.librarian import ServiceRecord
from chelonia.core.timing.jobs import Wait
from chelonia.core.values import replace
from chelonia.hosting.doors import grants
from chelonia.hosting.doors.calls import caller
from chelonia.hosting.doors.grants import UNSURE, RegistryPace, RoleGrant, RoleRegistry
from chelonia.hosting.net.http_messages import Peer
from tests.support.clocks import QuickClock
from tests.support.failing import fails

ADMIN, HOST, NEW, EVE = Dn("/CN=admin"), Dn("/CN=host"), Dn("/CN=new"), Dn("/CN=eve")
FIRST, SECOND = ServiceId("https://h:1/Shepherd"), ServiceId("https://h:2/Shepherd")
CONFIGURED = (ServiceRecord(Role.ADMINISTRATOR, ADMIN, ServiceId(""), True),)
PACE = RegistryPace(refresh_ms=1000, miss_ms=500, keep_ms=10_000)


class Cluster:
    """The cluster's registry as a source; counts its reads."""

    def __init__(self, *records: ServiceRecord) -> None:
        self.records = records
        self.reachable = True
        self.refusal = Kind.NETWORK
        self.reads = 0

    async def read(self) -> tuple[ServiceRecord, ...]:
        self.reads += 1
        if not self.reachable:
            raise CheloniaError(self.refusal)
        return self.records


def shepherd(dn: Dn, service: ServiceId, approved: bool = True) -> ServiceRecord:
    return ServiceRecord(Role.SHEPHERD, dn, service, approved)


async def test_configured_identities_are_known_without_any_registry() -> None:
    registry = RoleRegistry(CONFIGURED, None, QuickClock(), PACE)
    assert (await registry.grant(ADMIN)).roles == (Role.ADMINISTRATOR,)
    assert await registry.grant(EVE) == RoleGrant()
    assert await registry.grant(ANONYMOUS) == RoleGrant()


async def test_an_unknown_caller_makes_the_registry_be_read_but_not_at_any_pace() -> None:
    clock, cluster = QuickClock(), Cluster(shepherd(HOST, FIRST))
    registry = RoleRegistry(CONFIGURED, cluster.read, clock, PACE)
    assert await registry.grant(HOST) == RoleGrant((Role.SHEPHERD,), FIRST)
    for _ in range(10):
        assert await registry.grant(EVE) == RoleGrant()
    assert cluster.reads == 1
    cluster.records = (*cluster.records, shepherd(NEW, SECOND))
    clock.ms += PACE.miss_ms
    assert (await registry.grant(NEW)).roles == (Role.SHEPHERD,)
    assert cluster.reads == 2


async def test_callers_at_the_same_time_share_one_read_and_all_get_their_roles() -> None:
    go_on = asyncio.Event()
    cluster = Cluster(shepherd(HOST, FIRST), shepherd(NEW, SECOND))

    async def slow() -> tuple[ServiceRecord, ...]:
        await go_on.wait()
        return await cluster.read()

    registry = RoleRegistry(CONFIGURED, slow, QuickClock(), PACE)
    asked = [asyncio.create_task(registry.grant(dn)) for dn in (HOST, NEW, HOST)]
    await asyncio.sleep(0)
    go_on.set()
    assert [bool((await grant).roles) for grant in asked] == [True, True, True]
    assert cluster.reads == 1


async def test_a_user_who_calls_often_costs_one_read_per_interval() -> None:
    clock, cluster = QuickClock(), Cluster()
    registry = RoleRegistry(CONFIGURED, cluster.read, clock, PACE)
    for _ in range(PACE.refresh_ms):
        clock.ms += 1
        assert await registry.grant(EVE) == RoleGrant()
    assert cluster.reads == 1


async def test_nobody_waits_for_a_registry_that_is_away() -> None:
    cluster = Cluster()
    cluster.reachable = False
    clock = QuickClock()
    registry = RoleRegistry(CONFIGURED, cluster.read, clock, PACE)
    for dn in (EVE, NEW, HOST):
        clock.ms += PACE.miss_ms
        assert await registry.grant(dn) == UNSURE
    assert cluster.reads == 1
    assert await registry.grant(ANONYMOUS) == RoleGrant()


async def test_who_was_approved_while_the_registry_is_away_is_not_refused_for_good() -> None:
    """This node knows the services of before: a new one was called unregistered, as if nobody had approved it."""
    clock, cluster = QuickClock(), Cluster(shepherd(HOST, FIRST))
    registry = RoleRegistry(CONFIGURED, cluster.read, clock, PACE)
    assert (await registry.grant(HOST)).roles
    cluster.reachable, cluster.records = False, (*cluster.records, shepherd(NEW, SECOND))
    clock.ms += PACE.miss_ms
    assert await registry.grant(NEW) == UNSURE
    assert (await registry.grant(HOST)).roles, "who was known goes on"
    clock.ms += PACE.miss_ms
    assert await registry.grant(NEW) == UNSURE
    cluster.reachable = True
    paused = await registry.step()
    assert (await registry.grant(NEW)).roles, "at once when the registry is back"
    assert paused == Wait(PACE.refresh_ms)
    assert await registry.grant(EVE) == RoleGrant()


async def test_a_read_of_the_registry_that_hangs_holds_up_nobody_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """An A-Hash of this process, on a disk that hangs, never answers."""
    monkeypatch.setattr(grants, "READ_S_MAX", 0.05)
    registry = RoleRegistry(CONFIGURED, asyncio.Event().wait, QuickClock(), PACE)  # type: ignore[arg-type]
    async with asyncio.timeout(10):
        assert await registry.grant(NEW) == UNSURE
    assert await registry.step() == Wait(PACE.miss_ms)


async def test_who_calls_while_the_registry_is_read_waits_for_that_read() -> None:
    """A core that has just started reads it for the first time when the first services call."""
    go_on = asyncio.Event()
    cluster = Cluster(shepherd(HOST, FIRST))

    async def slow() -> tuple[ServiceRecord, ...]:
        await go_on.wait()
        return await cluster.read()

    registry = RoleRegistry(CONFIGURED, slow, QuickClock(), PACE)
    step = asyncio.create_task(registry.step())
    await asyncio.sleep(0)
    asked = asyncio.create_task(registry.grant(HOST))
    await asyncio.sleep(0)
    go_on.set()
    assert (await asked).roles
    assert await step == Wait(PACE.refresh_ms)
    assert cluster.reads == 1


async def test_who_only_waits_for_approval_has_no_role() -> None:
    registry = RoleRegistry(CONFIGURED, Cluster(shepherd(NEW, FIRST, approved=False)).read, QuickClock(), PACE)
    assert await registry.grant(NEW) == RoleGrant()


async def test_the_services_of_a_role_are_those_configured_and_those_approved(expect_log) -> None:  # type: ignore[no-untyped-def]
    expect_log("registry unreachable")
    other = ServiceRecord(Role.LIBRARIAN, HOST, ServiceId("https://l2/Librarian"), True)
    waiting = ServiceRecord(Role.LIBRARIAN, HOST, ServiceId("https://l3/Librarian"), False)
    cluster, clock = Cluster(other, waiting, shepherd(NEW, FIRST)), QuickClock()
    registry = RoleRegistry(CONFIGURED, cluster.read, clock, PACE)
    assert registry.registered(Role.LIBRARIAN) == ()
    await registry.refresh()
    assert registry.registered(Role.LIBRARIAN) == (other.service_id,)
    cluster.reachable = False
    clock.ms += 2 * PACE.keep_ms
    await registry.step()
    assert registry.registered(Role.LIBRARIAN) == (other.service_id,), "it may be the only one that is left"
    cluster.reachable, cluster.records = True, ()
    await registry.refresh()
    assert registry.registered(Role.LIBRARIAN) == ()


async def test_a_withdrawn_identity_loses_its_role_at_the_next_read() -> None:
    cluster = Cluster(shepherd(HOST, FIRST))
    registry = RoleRegistry(CONFIGURED, cluster.read, QuickClock(), PACE)
    assert (await registry.grant(HOST)).roles
    cluster.records = ()
    await registry.refresh()
    assert await registry.grant(HOST) == RoleGrant()


@pytest.mark.parametrize("word", ["withdrawn", "forgotten"])
@pytest.mark.expect_log("only configured identities have roles")
async def test_a_withdrawn_identity_stays_withdrawn_where_the_configuration_names_it(word: str) -> None:
    named, clock = shepherd(HOST, FIRST), QuickClock()
    cluster = Cluster(named)
    registry = RoleRegistry((*CONFIGURED, named), cluster.read, clock, PACE)
    assert (await registry.grant(HOST)).roles, "as the configuration says, before anything was read"
    cluster.records = tuple(replace(each, approved=False, **{word: True}) for each in (named, CONFIGURED[0]))
    await registry.refresh()
    assert await registry.grant(HOST) == RoleGrant()
    assert registry.registered(Role.SHEPHERD) == ()
    assert (await registry.grant(ADMIN)).roles, "an administrator of the configuration gets in, whatever was said"
    cluster.reachable = False
    clock.ms += PACE.keep_ms + 1
    assert await registry.grant(HOST) == UNSURE, "the last word counts on, when nothing newer is to be had"
    cluster.reachable, cluster.records = True, (named,)
    clock.ms += PACE.miss_ms + 1
    await registry.refresh()
    assert (await registry.grant(HOST)).roles, "approved again"


@pytest.mark.expect_log("only configured identities have roles")
async def test_an_unreachable_registry_grants_nothing_once_its_word_is_old() -> None:
    clock, cluster = QuickClock(), Cluster(shepherd(HOST, FIRST))
    registry = RoleRegistry(CONFIGURED, cluster.read, clock, PACE)
    assert (await registry.grant(HOST)).roles
    cluster.reachable = False
    clock.ms += PACE.keep_ms
    assert (await registry.grant(HOST)).roles
    clock.ms += 1
    assert await registry.grant(HOST) == UNSURE
    assert (await registry.grant(ADMIN)).roles


async def test_one_certificate_for_two_services_speaks_as_the_one_it_names() -> None:
    registry = RoleRegistry((), Cluster(shepherd(HOST, FIRST), shepherd(HOST, SECOND)).read, QuickClock(), PACE)
    assert (await registry.grant(HOST, SECOND)).service_id == SECOND
    assert (await registry.grant(HOST, FIRST)).service_id == FIRST
    assert (await registry.grant(HOST, "https://elsewhere/Shepherd")).service_id == FIRST


async def test_a_node_with_several_roles_has_them_all() -> None:
    records = (
        ServiceRecord(Role.BARTENDER, HOST, ServiceId("b"), True),
        ServiceRecord(Role.LIBRARIAN, HOST, ServiceId("l"), True),
    )
    grant = await RoleRegistry(records, None, QuickClock(), PACE).grant(HOST)
    assert grant == RoleGrant((Role.LIBRARIAN, Role.BARTENDER), ServiceId("b"))


async def test_each_step_reads_and_says_when_to_read_again() -> None:
    cluster = Cluster()
    registry = RoleRegistry((), cluster.read, QuickClock(), PACE)
    assert [await registry.step() for _ in range(3)] == [Wait(PACE.refresh_ms)] * 3
    cluster.reachable = False
    assert await registry.step() == Wait(PACE.miss_ms)
    cluster.refusal = Kind.DENIED
    waits = [await registry.step() for _ in range(2)]
    assert waits == [Wait(PACE.refresh_ms)] * 2, "who waits for approval fills nobody's log"
    assert cluster.reads == 6


async def test_a_registry_that_stays_away_is_asked_less_and_less_often() -> None:
    cluster = Cluster()
    registry = RoleRegistry((), cluster.read, QuickClock(), PACE)
    for _ in range(2):
        cluster.reachable = False
        waits = [await registry.step() for _ in range(5)]
        assert waits == [Wait(PACE.miss_ms * times) for times in (1, 2, 4, 4, 4)]
        cluster.reachable = True
        assert await registry.step() == Wait(PACE.refresh_ms)


async def test_a_name_with_roles_counts_only_under_the_cas_that_may_vouch_for_it() -> None:
    registry = RoleRegistry(CONFIGURED, Cluster(shepherd(HOST, FIRST)).read, QuickClock(), PACE, ["/CN=CA", "/CN=CA 2"])
    for issuer in ("/CN=CA", "/CN=CA 2"):
        assert (await registry.grant(HOST, issuer=issuer)).roles
        assert (await registry.grant(ADMIN, issuer=issuer)).roles
    for dn in (HOST, ADMIN):
        with fails(Kind.UNTRUSTED, match="which \\[trust\\] issuers does not name"):
            await registry.grant(dn, issuer="/CN=Users' CA")
    assert await registry.grant(EVE, issuer="/CN=Users' CA") == RoleGrant(), "a user needs no role"


def test_a_call_tells_all_that_is_known_of_who_asks() -> None:
    who = Peer(HOST, "192.0.2.1", Dn("/CN=ca"), "1f", ("/vo",), host=True)
    grant, after = RoleGrant((Role.SHEPHERD,), FIRST, unsure=True), Position("c", 1, 2)
    wanted = Call(
        dn=HOST,
        roles=(Role.SHEPHERD,),
        service_id=FIRST,
        attributes=("/vo",),
        address="192.0.2.1",
        request_id="id",
        request_key=RequestKey("key"),
        read_after=after,
        strong=True,
        credential="1f /CN=ca",
        unsure=True,
    )
    assert caller(who, grant, ("id", "key"), after, strong=True) == wanted
