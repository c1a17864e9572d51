"""The right to speak for a Shepherd: its store, its restart, and no other process while it lives."""

import asyncio
import random
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import pytest
from msgspec import structs

from chelonia.core.caller import Call
from chelonia.core.cluster.fleet import Fleet
from chelonia.core.cluster.placement import Demand
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn, Ms, RequestKey, ServiceId, shepherd_object
from chelonia.core.metadata import Needed
from chelonia.core.ports.librarian import REFUSED_STORE, REFUSED_TWIN, Heartbeat, NodeView, Report
from chelonia.core.values import replace
from chelonia.librarian.metadata.elements import put
from chelonia.librarian.metadata.records import LibrarianIdentity
from chelonia.librarian.presence.identity import ALARM_KEEP_MS, Recorded, Voices, judge
from chelonia.librarian.service import LibrarianService
from chelonia.librarian.world import World
from tests.support.ahash import LIBRARIAN
from tests.support.failing import fails
from tests.support.librarian import ADMIN, Bench, NoShepherds, PaperVerifier, SequentialIds, bench, shepherd_call

A = ServiceId("https://a/Shepherd")
LEASE_MS = 1000


def beat(boot: int = 5, store: str = "old", boots: tuple[int, ...] = (), *, replaces: bool = False) -> Heartbeat:
    return Heartbeat(A, boot, 0, 1, 2, 3, True, "", "k", store=store, boots=boots, replaces=replaces)


@pytest.mark.parametrize(
    ("said", "recorded", "living", "refused"),
    [
        (beat(), "", None, ""),
        (beat(), "old", None, ""),
        (beat(), "old", beat(), ""),
        (beat(store="new"), "old", None, REFUSED_STORE),
        (beat(store="new", replaces=True), "old", None, ""),
        (beat(6, boots=(5, 4)), "old", beat(), ""),  # a restart remembers its earlier boots
        (beat(7, boots=(6, 5)), "old", beat(), ""),  # one without any heartbeat in between
        (beat(6, boots=(4,)), "old", beat(), REFUSED_TWIN),  # a copy of the disk from before the living one began
        (beat(6), "old", beat(), REFUSED_TWIN),  # its state was removed: when the lease is over, it is taken
        (beat(6), "old", None, ""),
        (beat(6, "new"), "old", beat(), REFUSED_TWIN),
        (beat(6, "new", (5,), replaces=True), "old", beat(), REFUSED_TWIN),
        (beat(4), "old", beat(boots=(4,)), REFUSED_TWIN),
        (beat(5, "new", replaces=True), "old", beat(), REFUSED_TWIN),  # two disks that began in the same moment
        (beat(6, ""), "old", beat(), ""),  # software from before stores had names
    ],
)
def test_who_is_taken_for_the_shepherd(said: Heartbeat, recorded: str, living: Heartbeat | None, refused: str) -> None:
    assert judge(said, Recorded(recorded), living, settled=False).refused == refused


def test_a_late_message_of_the_past_self_is_no_alarm_but_a_past_self_that_goes_on_is() -> None:
    living = beat(6, boots=(5,))
    old = Recorded("old")
    assert not judge(beat(5), old, living, settled=False).alarm
    assert judge(beat(5), old, living, settled=True).alarm
    assert judge(beat(3), old, living, settled=False).alarm


def test_a_twin_is_told_once_and_shown_for_a_while() -> None:
    voices = Voices(LEASE_MS)
    voices.record(A, Recorded("old"))
    voices.accept(beat(), Ms(0))
    judged = voices.judge(beat(9), Ms(100))
    assert voices.refused(beat(9), judged, Ms(100))
    assert not voices.refused(beat(9), judged, Ms(200))
    voices.accept(beat(), Ms(300))
    assert "another process" in voices.trouble(A, Ms(400))
    assert voices.trouble(A, Ms(200 + ALARM_KEEP_MS)) == ""
    assert voices.judge(beat(9), Ms(300 + LEASE_MS)).refused == "", "the other one is gone"


@pytest.mark.parametrize(
    "cured", [beat(7, boots=(5,)), beat(7, "new", replaces=True)], ids=["the right disk was mounted", "accept-store"]
)
def test_another_store_is_shown_until_the_shepherd_begins_anew(cured: Heartbeat) -> None:
    voices = Voices(LEASE_MS)
    voices.record(A, Recorded("old"))
    voices.accept(beat(), Ms(0))
    wrong, later = beat(6, "new"), Ms(5 * LEASE_MS)
    assert voices.refused(wrong, voices.judge(wrong, later), later)
    assert "this is store new" in voices.trouble(A, later)
    now = Ms(later + 1)
    assert voices.judge(cured, now).refused == ""
    voices.accept(cured, now)
    assert voices.trouble(A, now) == ""
    again = voices.judge(beat(6, "new"), now)
    assert voices.refused(beat(6, "new"), again, now), "who is still there is told again"
    voices.accept(cured, Ms(now + 1))
    assert voices.trouble(A, Ms(now + 1)) == again.cause


def test_who_has_claimed_the_place_of_one_store_claims_that_of_the_next_anew() -> None:
    """Delayed heartbeats of an ended start claimed for a lease to replace the recorded one. In between another
    Librarian had recorded a later start."""
    voices, late = Voices(LEASE_MS), beat(40, "two", replaces=True)
    voices.record(A, Recorded("one", 50))
    assert [voices.judge(late, Ms(now)).record for now in (0, LEASE_MS)] == [False, True]
    voices.record(A, Recorded("three", 60))
    said = [voices.judge(late, Ms(LEASE_MS + now)).record for now in (1, LEASE_MS, LEASE_MS + 1)]
    assert said == [False, False, True]


async def test_what_has_waited_for_the_metadata_is_no_word_of_then(monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench() as b:
        lease_ms, one = b.settings.lease_ms, b.ahash.get
        assert await heard_after(b, "one", 50, 2 * lease_ms) == ""
        slow, waiting = asyncio.Event(), list[bool]()

        async def waits(*args: object) -> object:
            if (Needed("node"),) in args:
                waiting.append(True)
                await slow.wait()
            return await one(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(b.ahash, "get", waits)
        beats = [heard_after(b, "two", 40, lease_ms // 2, replaces=True) for _ in range(4)]
        saying = asyncio.gather(*beats)
        while len(waiting) < len(beats):
            await asyncio.sleep(0)
        slow.set()
        assert await saying == [REFUSED_TWIN] * 4


async def test_what_has_waited_takes_no_place_from_a_start_that_spoke_since(
    monkeypatch: pytest.MonkeyPatch, expect_log: Callable[..., None]
) -> None:
    """The later start's clock had been set back, and it had just been recorded. A message of the earlier one had waited
    for the metadata. It took the later one's place, and the Shepherd's real disk was refused."""
    expect_log("has store three in the place of one")
    async with bench() as b:
        lease_ms, one = b.settings.lease_ms, b.ahash.get
        assert await heard_after(b, "one", 50, 2 * lease_ms) == ""
        slow, waiting = asyncio.Event(), list[bool]()

        async def waits_once(*args: object) -> object:
            if not waiting:
                waiting.append(True)
                await slow.wait()
            return await one(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(b.ahash, "get", waits_once)
        over = asyncio.ensure_future(heard_after(b, "two", 60, 2 * lease_ms, replaces=True))
        while not waiting:
            await asyncio.sleep(0)
        recorded = b.service._parts.nodes._record_store

        async def recorded_late(call: Call, said: Heartbeat, before: Recorded) -> None:
            await recorded(call, said, before)
            if not slow.is_set():  # until then nobody knows that it is on record
                slow.set()
                await asyncio.wait((over,))

        monkeypatch.setattr(b.service._parts.nodes, "_record_store", recorded_late)
        assert await heard_after(b, "three", 55, 1, replaces=True) == ""
        with fails(Kind.CONFLICT):
            await over
        assert await heard_after(b, "three", 55, 1) == ""


async def test_who_is_not_approved_takes_no_word_from_the_shepherd(
    monkeypatch: pytest.MonkeyPatch, expect_log: Callable[..., None]
) -> None:
    """With heartbeats of any certificate, sent all the time, a new disk would never get its place."""
    expect_log("has store two in the place of one")
    async with bench() as b:
        lease_ms, one = b.settings.lease_ms, b.ahash.get
        stranger = structs.replace(shepherd_call(A), dn=Dn("/CN=stranger"), roles=(), service_id=ServiceId(""))
        forged = replace(beat(99, "none"), shepherd=b.shepherds[0])
        assert await heard_after(b, "one", 50, 2 * lease_ms) == ""
        assert not (await b.service.heartbeat(stranger, forged)).known

        async def crossed(*args: object) -> object:
            monkeypatch.setattr(b.ahash, "get", one)
            assert not (await b.service.heartbeat(stranger, forged)).known
            return await one(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(b.ahash, "get", crossed)
        assert await heard_after(b, "two", 60, 2 * lease_ms, replaces=True) == ""


def test_trouble_is_news_when_it_begins_and_when_it_ends() -> None:
    voices = Voices(LEASE_MS)
    sick = replace(beat(), trouble="its disk is gone")
    assert [voices.accept(each, Ms(0)) for each in (beat(), sick, sick, beat(), beat())] == [
        False, True, False, True, False,
    ]  # fmt: skip


async def test_the_first_store_heard_is_recorded_and_another_needs_an_administrators_word(
    expect_log: Callable[..., None],
) -> None:
    async with bench() as b:
        shepherd = b.shepherds[0]
        call = shepherd_call(shepherd)

        async def said(store: str, boot: int, *, replaces: bool = False) -> str:
            b.clock.now += 2 * b.settings.lease_ms
            spoken = Heartbeat(shepherd, boot, 0, 1, 2, 3, True, "", "k", store=store, replaces=replaces)
            return (await b.service.heartbeat(call, spoken)).refused

        async def view() -> NodeView:
            return next(view for view in await b.service.nodes(ADMIN) if view.shepherd == shepherd)

        assert await said("one", 1) == ""
        expect_log("heartbeat refused .* with store one, this is store two")
        assert await said("two", 2) == REFUSED_STORE
        assert (await view()).store == "one"
        assert "store one" in (await view()).trouble
        with fails(Kind.DENIED):
            await b.service.report(call, Report(shepherd, 2, 1, (), "two"))
        expect_log("has store two in the place of one")
        assert await said("two", 3, replaces=True) == ""
        expect_log("heartbeat refused .* with store two, this is store one")
        assert await said("one", 4) == REFUSED_STORE
        assert (await view()).store == "two"
        assert (await b.stored(shepherd_object(shepherd))).value("node", "store") == "two"


async def test_a_shepherd_that_has_seen_newer_metadata_is_told_to_obey_none_of_these() -> None:
    """A file `restored` may name too small a generation."""
    async with bench() as b:
        await b.beat(b.shepherds[0], compared=5)
        await b.beat(b.shepherds[1], compared=1)
        troubles = [view.trouble for view in (await b.service.nodes(ADMIN))[:2]]
        assert "generation 5" in troubles[0]
        assert troubles[1] == ""


async def test_a_shepherd_without_its_disk_counts_as_away_and_says_why(expect_log: Callable[..., None]) -> None:
    async with bench() as b:
        expect_log("cannot tell anything of its replicas")
        b.clock.now += b.settings.lease_ms
        for _ in range(3):
            b.clock.now += b.settings.lease_ms // 2
            await b.beat(b.shepherds[0], trouble="its disk is gone", store="one")
            await b.beat(b.shepherds[1])
        views = await b.service.nodes(ADMIN)
        assert [(view.state, view.trouble) for view in views[:2]] == [("offline", "its disk is gone"), ("alive", "")]
        await b.beat(b.shepherds[0], store="one")
        assert [(view.state, view.trouble) for view in (await b.service.nodes(ADMIN))[:1]] == [("alive", "")]


async def test_a_store_that_another_librarian_has_taken_is_not_refused(expect_log: Callable[..., None]) -> None:
    async with bench() as b:
        shepherd = b.shepherds[0]
        call = shepherd_call(shepherd)
        world = World(NoShepherds(), PaperVerifier(), b.clock, SequentialIds(7), b.settings)
        other = LibrarianService(b.ahash, LibrarianIdentity(LIBRARIAN.dn, ServiceId("https://other/Librarian")), world)

        async def said(service: LibrarianService, store: str, *, replaces: bool = False) -> str:
            b.clock.now += 2 * b.settings.lease_ms
            boot = ("one", "two", "three").index(store) + 1
            spoken = Heartbeat(shepherd, boot, 0, 1, 2, 3, True, "", "k", store=store, replaces=replaces)
            return (await service.heartbeat(call, spoken)).refused

        assert await said(b.service, "one") == ""
        await other.start()
        expect_log("has store two in the place of one")
        assert await said(b.service, "two", replaces=True) == ""
        assert (await other.report(call, Report(shepherd, 2, 1, (), "two"))).accepted == 1
        expect_log("has store three in the place of two")
        assert await said(b.service, "three", replaces=True) == ""
        assert await said(other, "three") == ""


@pytest.mark.parametrize("store", ["of two words", "a\nb", " ", "\N{NO-BREAK SPACE}"])
async def test_a_store_that_cannot_be_recorded_harms_no_other_shepherd(store: str) -> None:
    """Its record could not be read again, and with it that of no Shepherd."""
    async with bench() as b:
        shepherd = b.shepherds[0]
        for boot, each in enumerate((store, "next"), 1):
            b.clock.now += 2 * b.settings.lease_ms
            spoken = Heartbeat(shepherd, boot, 0, 1, 2, 3, True, "", "k", store=each, replaces=True)
            with nullcontext() if each == "next" else fails(Kind.BAD_REQUEST):
                await b.service.heartbeat(shepherd_call(shepherd), spoken)
        await b.service.services(ADMIN)
        assert {view.shepherd for view in await b.service.nodes(ADMIN)} == {*b.shepherds}


async def test_a_domain_that_is_deeper_than_any_keeps_no_other_shepherd_from_being_chosen() -> None:
    async with bench() as b:
        with fails(Kind.BAD_REQUEST):
            await b.beat(b.shepherds[0], domain="deep/" * 1000)
        fleet = Fleet(await b.service.nodes(ADMIN))
        assert len(fleet.choose(Demand(3, 1), random.Random(1).random)) == 3


async def test_an_administrators_word_for_a_store_is_held_against_what_is_stored_now(
    expect_log: Callable[..., None],
) -> None:
    """Metadata put back from before it know the former store; the Librarian that remembers it knows the new one."""
    async with bench() as b:
        shepherd = b.shepherds[0]

        async def said(store: str, boot: int) -> str:
            b.clock.now += 2 * b.settings.lease_ms
            spoken = Heartbeat(shepherd, boot, 0, 1, 2, 3, True, "", "k", store=store, replaces=True)
            return (await b.service.heartbeat(shepherd_call(shepherd), spoken)).refused

        assert await said("one", 1) == ""
        expect_log("has store two in the place of one")
        assert await said("two", 2) == ""
        back = (put(shepherd_object(shepherd), "node", "store", "one"),)
        await b.ahash.transact(LIBRARIAN, RequestKey(""), back)
        assert await said("two", 3) == ""
        assert (await b.stored(shepherd_object(shepherd))).value("node", "store") == "two"


async def test_a_new_store_is_heard_though_its_clock_is_behind_that_of_the_old_one(
    expect_log: Callable[..., None],
) -> None:
    """Boots follow the clock: where all was lost, state file too, a lower one is no old message."""
    async with bench() as b:
        shepherd = b.shepherds[0]
        call = shepherd_call(shepherd)

        async def said(store: str, boot: int, *, replaces: bool = False) -> NodeView:
            b.clock.now += 2 * b.settings.lease_ms
            spoken = Heartbeat(shepherd, boot, 0, 1, 2, 3, True, "", "k", store=store, replaces=replaces)
            assert not (await b.service.heartbeat(call, spoken)).refused
            return next(view for view in await b.service.nodes(ADMIN) if view.shepherd == shepherd)

        assert (await said("one", 900)).boot == 900
        assert (await b.service.report(call, Report(shepherd, 900, 1, (), "one"))).accepted == 1
        expect_log("has store two in the place of one")
        held = Heartbeat(shepherd, 100, 0, 1, 2, 3, True, "", "k", store="two", replaces=True)
        b.clock.now += 2 * b.settings.lease_ms
        assert (await b.service.heartbeat(call, held)).refused == REFUSED_TWIN, "it may be from the past"
        b.clock.now += b.settings.lease_ms
        assert not (await b.service.heartbeat(call, held)).refused, "it has said so for a lease"
        assert (await said("two", 100)).boot == 100
        assert (await b.service.report(call, Report(shepherd, 100, 1, (), "two"))).accepted == 1
        assert (await said("two", 100)).state == "alive"


@pytest.mark.parametrize("boots", [(100, 200), (200, 100)])
async def test_a_late_message_of_a_store_that_was_replaced_does_not_displace_the_one_after_it(
    boots: tuple[int, int], expect_log: Callable[..., None]
) -> None:
    """A Librarian that was frozen meanwhile handles it, after a lease without heartbeats; clocks may be wrong."""
    async with bench() as b:
        shepherd = b.shepherds[0]
        call = shepherd_call(shepherd)
        world = World(NoShepherds(), PaperVerifier(), b.clock, SequentialIds(7), b.settings)
        frozen = LibrarianService(b.ahash, LibrarianIdentity(LIBRARIAN.dn, ServiceId("https://other/Librarian")), world)
        await frozen.start()

        async def said(service: LibrarianService, store: str, boot: int, *, replaces: bool = False) -> str:
            b.clock.now += 2 * b.settings.lease_ms
            spoken = Heartbeat(shepherd, boot, 0, 1, 2, 3, True, "", "k", store=store, replaces=replaces)
            refused = (await service.heartbeat(call, spoken)).refused
            if refused == REFUSED_TWIN:  # older than the store on record, by the clock: it has to insist
                b.clock.now += b.settings.lease_ms
                refused = (await service.heartbeat(call, spoken)).refused
            return refused

        assert await said(b.service, "one", 50) == ""
        expect_log("has store two in the place of one")
        assert await said(b.service, "two", boots[0], replaces=True) == ""
        assert (await b.service.report(call, Report(shepherd, boots[0] + 1, 1, (), "two"))).accepted == 1
        expect_log("has store three in the place of two")
        assert await said(b.service, "three", boots[1], replaces=True) == ""
        await frozen.start()
        assert await said(frozen, "two", boots[0], replaces=True) == REFUSED_STORE
        assert await said(frozen, "two", boots[0] + 1, replaces=True) == REFUSED_STORE, "the last start it reported in"
        assert await said(frozen, "three", boots[1]) == ""
        assert await said(b.service, "three", boots[1]) == ""
        expect_log("has store two in the place of three")
        assert await said(frozen, "two", boots[0] + 2, replaces=True) == "", "its disk was put back, and that was meant"


async def heard_after(b: Bench, store: str, boot: int, after_ms: int, *, replaces: bool = False) -> str:
    """Send a heartbeat of the first Shepherd; returns the reason of a refusal, "" without one."""
    b.clock.now += after_ms
    shepherd = b.shepherds[0]
    spoken = Heartbeat(shepherd, boot, 0, 1, 2, 3, True, "", "k", store=store, replaces=replaces)
    return (await b.service.heartbeat(shepherd_call(shepherd), spoken)).refused


async def test_a_late_message_of_a_store_that_was_never_recorded_displaces_none(
    expect_log: Callable[..., None],
) -> None:
    """Two disks one after the other: only a frozen Librarian got the first one's heartbeat."""
    async with bench() as b:
        said = partial(heard_after, b)
        lease_ms = b.settings.lease_ms
        assert await said("one", 50, 2 * lease_ms) == ""
        expect_log("has store three in the place of one")
        assert await said("three", 100, 2 * lease_ms, replaces=True) == ""
        assert await said("two", 90, 2 * lease_ms, replaces=True) == REFUSED_TWIN
        assert await said("two", 90, lease_ms // 2, replaces=True) == REFUSED_TWIN, "another that was late"
        assert await said("three", 100, 0) == ""
        assert await said("two", 90, 2 * lease_ms, replaces=True) == REFUSED_TWIN, "somebody else was heard meanwhile"
        assert await said("two", 90, 2 * lease_ms, replaces=True) == REFUSED_TWIN, "it does not insist: it was silent"
        assert await said("three", 100, 0) == ""


@pytest.mark.parametrize("recorded_boot", [100, 90])
async def test_a_boot_is_that_of_one_store_alone(recorded_boot: int, expect_log: Callable[..., None]) -> None:
    """Of two disks with the same boot number one was never recorded. Its late message replaces neither, even if it
    insists. The next start has another number."""
    async with bench() as b:
        said = partial(heard_after, b)
        lease_ms = b.settings.lease_ms
        assert await said("one", 50, 2 * lease_ms) == ""
        expect_log("has store three in the place of one")
        assert await said("three", recorded_boot, 2 * lease_ms, replaces=True) == ""
        assert await said("three", 100, 2 * lease_ms) == ""
        expect_log("another process is alive")
        assert await said("two", 100, 0, replaces=True) == REFUSED_TWIN
        assert await said("three", 100, 0) == ""
        for store, boot in (("two", recorded_boot), ("four", 50)):
            assert await said(store, boot, 2 * lease_ms, replaces=True) == REFUSED_TWIN
            for _ in range(3):
                assert await said(store, boot, lease_ms, replaces=True) == REFUSED_TWIN, "insisting does not help"
        assert await said("three", 100, 0) == ""
        expect_log("has store two in the place of three")
        assert await said("two", 101, 2 * lease_ms, replaces=True) == ""


async def test_of_two_stores_that_replace_one_at_once_only_one_is_recorded(expect_log: Callable[..., None]) -> None:
    async with bench() as b:
        shepherd = b.shepherds[0]
        call = shepherd_call(shepherd)

        def said(store: str, boot: int) -> Heartbeat:
            return Heartbeat(shepherd, boot, 0, 1, 2, 3, True, "", "k", store=store, replaces=True)

        b.clock.now += 2 * b.settings.lease_ms
        assert not (await b.service.heartbeat(call, said("one", 50))).refused
        b.clock.now += 2 * b.settings.lease_ms
        expect_log("in the place of one")
        both = (b.service.heartbeat(call, said("three", 100)), b.service.heartbeat(call, said("two", 90)))
        answers = await asyncio.gather(*both, return_exceptions=True)
        [error] = [answer for answer in answers if isinstance(answer, BaseException)]
        assert isinstance(error, CheloniaError)
        assert error.kind is Kind.CONFLICT


async def test_an_earlier_start_that_names_no_store_is_known_and_changes_nothing() -> None:
    """Software without store ids is treated as before: a message of an older boot is an old one."""
    async with bench() as b:
        shepherd = b.shepherds[0]
        call = shepherd_call(shepherd)

        async def said(boot: int, store: str, total_bytes: int) -> int:
            b.clock.now += b.settings.lease_ms // 4
            spoken = Heartbeat(shepherd, boot, 0, 1, total_bytes, 3, True, "", "k", store=store)
            answer = await b.service.heartbeat(call, spoken)
            assert answer.known
            assert not answer.refused
            views = await b.service.nodes(ADMIN)
            return next(view.total_bytes for view in views if view.shepherd == shepherd)

        b.clock.now += b.settings.lease_ms
        assert await said(900, "one", 1000) == 1000
        assert await said(1, "", 5) == 1000
        assert await said(900, "one", 2000) == 2000
        assert await said(901, "", 3000) == 3000, "older software was put back"
