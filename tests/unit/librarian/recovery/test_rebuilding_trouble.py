"""A rebuild whose A-Hash does not answer for a while, or whose Shepherds report their records without an end."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from chelonia.core.caller import Call, Role
from chelonia.core.cluster.replicas import Checksums
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ROOT, SNAPSHOTS_OBJECT, BlobId, Dn, ObjectId, ReferenceId, ServiceId
from chelonia.core.ports.librarian import RebuildStatus
from chelonia.core.ports.shepherd import RecordPage, ShepherdStatus
from chelonia.core.values import replace
from chelonia.librarian.metadata.elements import put
from chelonia.librarian.metadata.records import LibrarianIdentity, PlannedTransact, Records, RetryContext
from chelonia.librarian.recovery.rebuild import listing as recounts
from tests.sim.virtual_loop import run_virtual, virtual
from tests.support.ahash import LIBRARIAN
from tests.support.clocks import VirtualClock
from tests.support.failing import fails
from tests.support.librarian import ADMIN, BARTENDER, EVE, SequentialIds
from tests.unit.librarian.keepers import Keeper, Keepers, Kept, checksums, keepers
from tests.unit.librarian.recovery.test_rebuilding import (
    BEFORE,
    NO_SNAPSHOTS,
    facts_data,
    held,
    next_snapshot,
    over,
    rebuilt,
    written,
)
from tests.unit.librarian.recovery.test_rebuilding_snapshot import without_the_snapshot

# --- the A-Hash -----------------------------------------------------------------------------------------------------


def every(number: int, what: str) -> Callable[[str], bool]:
    """Lose every `number`th answer to one method."""
    calls = [0]

    def lost(method: str) -> bool:
        calls[0] += method == what
        return method == what and calls[0] % number == 0

    return lost


@asynccontextmanager
async def rebuilt_with(k: Keepers, lost: Callable[[str], bool]) -> AsyncIterator[RebuildStatus]:
    """A rebuild with these answers of the A-Hash lost."""
    async with k.running(BEFORE, generation=2):
        await asyncio.sleep(20)
        await k.bench.service.rebuild(ADMIN, True)
        k.unanswered = lost
        status = await ended(k)
        k.unanswered = answered
        assert (status.stage, status.cause) == ("done", "")
        yield status


def answered(method: str) -> bool:
    """Lose none."""
    return False


@pytest.mark.parametrize("number", [3, 5])
@virtual
async def test_a_change_whose_answer_is_lost_is_asked_for_again_and_applies_once(number: int) -> None:
    """As a new change it would find its own name taken, and put the file into /lost+found."""

    k = await written()
    async with rebuilt_with(k, every(number, "transact")) as status:
        assert set(await k.paths()) == {"/f", "/alone"}
        assert status.counts["files written since the snapshot"] == 1
        assert "objects there already" not in status.counts
        assert "blobs in /lost+found" not in status.counts


@virtual
async def test_a_read_that_is_not_answered_is_made_again() -> None:
    k = await written()
    async with rebuilt_with(k, every(2, "get")):
        assert set(await k.paths()) == {"/f", "/alone"}


@virtual
async def test_a_rebuild_whose_ahash_stays_away_stops_in_bounded_time_and_names_the_cure(expect_log) -> None:  # type: ignore[no-untyped-def]
    expect_log("the rebuild has stopped")

    k = await written()
    async with k.running(BEFORE, generation=2):
        await asyncio.sleep(20)
        service = k.bench.service
        await service.rebuild(ADMIN, True)
        k.unanswered = lambda method: True
        begun = k.clock.monotonic_ms()
        status = await ended(k)
        assert k.clock.monotonic_ms() - begun < 60_000
        assert (status.stage, "admin ahash status" in status.cause) == ("failed", True)
        k.unanswered = answered
        await service.rebuild(ADMIN, True)
        assert (await ended(k)).stage == "done"
        assert set(await k.paths()) == {"/f", "/alone"}


def test_a_rebuild_that_is_begun_twice_at_once_runs_once(caplog: pytest.LogCaptureFixture) -> None:
    """A command whose answer is late is repeated while the first still runs."""
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        k = await written()
        async with k.running(BEFORE, generation=2):
            await asyncio.sleep(20)
            service = k.bench.service
            await asyncio.gather(service.rebuild(ADMIN, True), service.rebuild(ADMIN, True))
            assert (await ended(k)).stage == "done"

    run_virtual(scenario())
    assert sum("the namespace is rebuilt" in record.message for record in caplog.records) == 1


@virtual
async def test_who_listens_hears_of_a_change_that_may_have_applied_before_the_ahash_became_read_only() -> None:
    class LosesItsMajority:
        """An A-Hash whose first answer is lost, and which has no master after that."""

        asked = 0

        async def transact(self, *_: object) -> None:
            self.asked += 1
            kind = Kind.OUTCOME_UNKNOWN if self.asked == 1 else Kind.READ_ONLY
            raise CheloniaError(kind, "transact", cause="there is no majority")

    told: list[object] = []
    hasty = Records(LosesItsMajority(), LibrarianIdentity(LIBRARIAN.dn, ServiceId("l")))  # type: ignore[arg-type]
    hasty.listen(told.append)
    elements = (put(ObjectId("o"), "s", "p", "v"),)
    with pytest.raises(CheloniaError, match="admin ahash status"):
        await hasty.patiently(RetryContext(VirtualClock(), SequentialIds())).attempt(Call(), PlannedTransact(elements))
    assert told == [elements]


async def ended(k: Keepers) -> RebuildStatus:
    await k.until(lambda: over(k), 200_000)
    return await k.bench.service.rebuild(ADMIN, False)


# --- Shepherds ------------------------------------------------------------------------------------------------------


def repeating(keeper: Keeper) -> None:
    """Have it repeat its first page for ever, each with a next one."""
    answer, pages = keeper.records, [0]

    async def records(call: Call, after: str, limit: int) -> RecordPage:
        pages[0] += 1
        page = await answer(call, "", limit)
        return RecordPage(page.items, f"here {pages[0]}")

    keeper.records = records  # type: ignore[method-assign]


def standing(keeper: Keeper) -> None:
    """Have it answer that the next page begins where this one began."""

    async def records(call: Call, after: str, limit: int) -> RecordPage:
        return RecordPage((), "here 1")

    keeper.records = records  # type: ignore[method-assign]


def hanging(keeper: Keeper) -> None:
    """Have it never answer."""

    async def records(call: Call, after: str, limit: int) -> RecordPage:
        await asyncio.sleep(10_000_000)
        raise AssertionError

    keeper.records = records  # type: ignore[method-assign]


@pytest.mark.parametrize("lies", [repeating, standing, hanging])
@virtual
async def test_a_shepherd_whose_records_do_not_end_is_named_and_holds_nobody_up(lies: Callable[[Keeper], None]) -> None:
    k = await written()
    liar = list(k.shepherds.values())[3]
    lies(liar)
    async with k.running(BEFORE, generation=2):
        await asyncio.sleep(20)
        await k.bench.service.rebuild(ADMIN, True)
        await k.until(lambda: over(k), 3_600_000)
        status = await k.bench.service.rebuild(ADMIN, False)
        assert (status.stage, set(await k.paths())) == ("done", {"/f", "/alone"})
        told, later = dict.fromkeys(note for note in status.notes if liar.id in note)
        assert "what only it holds is not found" in told
        assert f"rebuild --late {liar.id}" in later


@pytest.mark.parametrize(("starts_s", "told"), [(70, False), (200, True)])
@virtual
async def test_a_shepherd_that_says_that_it_is_starting_is_waited_for_but_not_for_ever(
    starts_s: int, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recounts, "START_MS", 60_000)

    k = await written()
    slow = list(k.shepherds.values())[3]
    slow.up = False

    async def starting() -> None:
        for _ in range(starts_s * 3):
            await k.bench.beat(slow.id, compared=0, starting=True)
            await asyncio.sleep(0.33)
        slow.up = True

    async with k.running(BEFORE, generation=2):
        start = asyncio.create_task(starting())
        await asyncio.sleep(20)
        await k.bench.service.rebuild(ADMIN, True)
        status = await ended(k)
        assert (status.stage, set(await k.paths())) == ("done", {"/f", "/alone"})
        assert any(slow.id in note and "not found" in note for note in status.notes) is told
        assert f"{slow.id} is starting: it is waited for" in status.notes
        start.cancel()


@virtual
async def test_a_rebuild_stops_while_its_snapshot_may_be_on_a_shepherd_that_does_not_end_its_records(
    expect_log,
) -> None:  # type: ignore[no-untyped-def]
    expect_log("the rebuild has stopped")

    k = keepers()
    true: list[object] = []

    def lies(keeper: Keeper) -> None:
        true.append(keeper.records)
        standing(keeper)

    async with without_the_snapshot(k, lies) as homes:
        status = await ended(k)
        assert (status.stage, homes[0].id in status.cause, "withdraw" in status.cause) == ("failed", True, True)
        for keeper, records in zip(homes, true, strict=True):
            keeper.records = records  # type: ignore[assignment]
        await k.bench.service.rebuild(ADMIN, True)
        assert (await ended(k)).stage == "done"
        assert (await k.bench.stored((await k.paths())["/old"])).sections["policy"] == {EVE: "+read"}


@virtual
async def test_a_shepherd_may_be_withdrawn_while_it_tells_its_records() -> None:
    """Its claims may be lies, too, and long to read."""

    k = await written()
    liar = list(k.shepherds.values())[3]
    repeating(liar)
    pages = liar.records

    async def boasting(call: Call) -> ShepherdStatus:
        return ShepherdStatus(liar.id, 1, 10**9, 0, 0, reporting=True, quarantined=0)

    async def slowly(call: Call, after: str, limit: int) -> RecordPage:
        await asyncio.sleep(1)
        return await pages(call, after, limit)

    liar.status, liar.records = boasting, slowly  # type: ignore[method-assign]
    async with k.running(NO_SNAPSHOTS, generation=2):
        await asyncio.sleep(20)
        await k.bench.service.rebuild(ADMIN, True)
        await asyncio.sleep(60)
        assert (await k.bench.service.rebuild(ADMIN, False)).stage == "looking for snapshots"
        [record] = [each for each in k.bench.settings.bootstrap if each.service_id == liar.id]
        await k.bench.service.approve(ADMIN, replace(record, approved=False))
        status = await ended(k)
        assert (status.stage, {"/f", "/alone"} <= set(await k.paths())) == ("done", True)
        assert any("was withdrawn" in note for note in status.notes)


@virtual
async def test_a_shepherd_that_tells_what_can_be_no_replica_harms_no_file() -> None:
    """A location with such a reference would make its blob unreadable, and a blob with such an id would be a system
    object."""
    k = keepers()
    async with k.running(BEFORE):
        _, blob = await k.upload("/mine")
        await next_snapshot(k)
        facts = held(k, blob)[0].facts
    liar, data = list(k.shepherds.values())[3], facts_data(k, blob)
    liar.disk[ReferenceId("two words")] = Kept(facts, data)
    liar.plant(1, replace(facts, blob=BlobId("sys:mine")), data)
    liar.plant(2, replace(facts, blob=BlobId(f"00000000-0000-4000-9000-b{1:011d}"), size=-7), data)
    async with rebuilt(k) as (k, status):
        assert set(await k.paths()) == {"/mine"}
        assert len(await k.bench.locations(blob)) == 2
        assert not (await k.bench.stored("sys:mine")).exists
        assert status.counts["damaged replicas or records"] == 3


@pytest.mark.parametrize("lie", [{"size": 3}, {"checksums": checksums(b"another")}], ids=["size", "checksum"])
@virtual
async def test_a_shepherd_that_tells_another_size_or_checksum_of_a_snapshot_costs_nobody_the_snapshot(
    lie: dict[str, object],
) -> None:
    """The lie comes first, but its seal is the true one's."""
    k = keepers()
    async with k.running(BEFORE):
        guid, _ = await k.upload("/f", sections={"policy": {EVE: "-read"}})
        await next_snapshot(k)
    every = [kept for keeper in k.shepherds.values() for kept in keeper.disk.values()]
    snapshots = {kept.facts.blob: kept for kept in every if kept.facts.guid == SNAPSHOTS_OBJECT}
    for number, kept in enumerate(snapshots.values()):
        next(iter(k.shepherds.values())).plant(number, replace(kept.facts, **lie), b"")  # type: ignore[arg-type]
    async with rebuilt(k) as (k, status):
        assert (await k.bench.stored(guid)).sections["policy"] == {EVE: "-read"}
        assert status.counts["replicas that contradict another record"] == len(snapshots)


# --- before and beside it -------------------------------------------------------------------------------------------


@virtual
async def test_who_comes_before_a_rebuild_was_asked_for_finds_no_empty_namespace() -> None:
    """Users would take their files for gone, and the names for free."""
    k = keepers()
    async with k.running(BEFORE, generation=2):
        with fails(Kind.UNAVAILABLE):
            await k.bench.service.get(BARTENDER, (ROOT,), ())
        await asyncio.sleep(20)
        assert "admin rebuild" in (await k.bench.service.heal_status(ADMIN)).waits_for
    async with rebuilt(k):
        await k.bench.service.get(BARTENDER, (ROOT,), ())


@virtual
async def test_shepherds_that_have_the_certificate_of_a_bartender_are_heard_during_a_rebuild(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A host set up by `cheloniad init` or `join` has one certificate for all its services."""
    k = keepers()
    async with k.running(BEFORE):
        await k.upload("/f", copies=2)
        await next_snapshot(k)
    roles = (Role.SHEPHERD, Role.BARTENDER, Role.LIBRARIAN)
    monkeypatch.setattr("tests.support.librarian.shepherd_call", lambda each: Call(Dn(f"/CN={each}"), roles, each))
    async with rebuilt(k) as (_, status):
        assert not [note for note in status.notes if "is away" in note]


@pytest.mark.parametrize(
    "wrong",
    [
        {"wanted": 1 << 62},
        {"wanted": -1},
        {"created_ms": -1},
        {"created_ms": (1 << 63) - 1},
        {"owner": ""},
        {"guid": "a\0b"},
        {"guid": "g" * 5000},
        {"guid": ""},
        {"guid": "blob:x"},
        {"guid": "sys:cluster"},
        {"checksums": Checksums(md5="no\nhex")},
        {"commit_within_ms": -(1 << 63)},
    ],
    ids=lambda wrong: str(wrong)[:40],
)
@virtual
async def test_no_record_keeps_a_rebuild_from_its_end(wrong: dict[str, object]) -> None:
    """A Shepherd may state what it likes, without a seal."""
    k = keepers()
    async with k.running(BEFORE):
        _, blob = await k.upload("/f", b"bytes")
    copy = held(k, blob)[0]
    forged = replace(copy.facts, blob=BlobId(str(uuid.UUID(int=77))), seal="", **wrong)  # type: ignore[arg-type]
    next(iter(k.shepherds.values())).plant(1, forged, copy.data)
    async with rebuilt(k) as (k, _):
        assert set(await k.paths()) == {"/f", "/lost+found", f"/lost+found/{forged.blob}"}
