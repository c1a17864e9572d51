"""Numbered reports, inventories, heartbeats and the registry."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from chelonia.core.caller import Call, Role
from chelonia.core.cluster.placement import NODE_WAITING
from chelonia.core.cluster.replicas import Checksums, Location, ReplicaState
from chelonia.core.contents.uploads import CommitFile
from chelonia.core.errors import Kind
from chelonia.core.ids import (
    REBUILD_OBJECT,
    BlobId,
    Dn,
    Ms,
    ReferenceId,
    RequestKey,
    ServiceId,
    blob_object,
    shepherd_object,
)
from chelonia.core.ports.ahash import TransactOutcome
from chelonia.core.ports.librarian import Delete, Heartbeat, Report, ReportedReplica, ServiceRecord
from chelonia.core.values import replace
from chelonia.librarian.metadata import rebuild_record
from chelonia.librarian.metadata.elements import drop, outbox_key, outbox_record, put
from chelonia.librarian.presence import reports
from chelonia.librarian.repair.erase import struck_off
from tests.support.ahash import LIBRARIAN
from tests.support.failing import fails
from tests.support.librarian import ADMIN, BARTENDER, SUMS, Bench, bench, shepherd_call, shepherd_id

S = ReplicaState
EXTRA, LOST, NEW = (f"{n * 8}-0000-4000-8000-000000000000" for n in "abc")
STRANGER = BlobId("77777777-0000-4000-8000-000000000000")


def ref(blob: BlobId, shepherd: ServiceId) -> str:
    return f"{blob}@{shepherd}"


async def believed(b: Bench, shepherd: ServiceId) -> dict[str, ReplicaState | None]:
    page = await b.service.inventory(shepherd_call(shepherd), shepherd, "", 0)
    return {item.reference: item.state for item in page.items}


# --- states -----------------------------------------------------------------------------------------------------------


async def test_a_report_changes_states_along_the_table_only() -> None:
    async with bench() as b:
        _, blob = await b.file("f")
        one = b.shepherds[0]
        assert (await b.report(one, (blob, ref(blob, one), S.INVALID))).accepted == 1
        assert (await b.locations(blob))[one] == "invalid"
        await b.report(one, (blob, ref(blob, one), S.STALLED))
        assert (await b.locations(blob))[one] == "invalid"
        await b.report(one, (blob, ref(blob, one), S.ALIVE))
        assert (await b.locations(blob))[one] == "alive"
        await b.report(one, (blob, ref(blob, one), S.CREATING))
        assert (await b.locations(blob))[one] == "alive"


async def test_deleted_takes_location_and_record_away_golden() -> None:
    """kept: `report` of a replica that is not there removes the location."""
    async with bench() as b:
        _, blob = await b.file("f")
        one = b.shepherds[0]
        await b.report(one, (blob, ref(blob, one), S.DELETED))
        assert list(await b.locations(blob)) == [b.shepherds[1]]
        assert await believed(b, one) == {}


async def test_alive_of_a_known_blob_adds_a_location_and_unknown_bytes_are_only_listed() -> None:
    async with bench() as b:
        _, blob = await b.file("f")
        three = b.shepherds[2]
        answer = await b.report(three, (blob, EXTRA, S.ALIVE), (STRANGER, LOST, S.ALIVE))
        assert answer.unknown == (ReferenceId(LOST),)
        assert (await b.locations(blob))[three] == "alive"
        assert await believed(b, three) == {EXTRA: S.ALIVE}
        assert await b.outbox(three) == {}


async def test_a_repeat_is_told_again_what_is_unknown() -> None:
    """Else a doubled message would make the Shepherd count unnamed bytes as committed."""
    async with bench() as b:
        _, blob = await b.file("f")
        three = b.shepherds[2]
        replicas = (
            ReportedReplica("", ReferenceId(EXTRA), S.ALIVE, blob, 7, SUMS),
            ReportedReplica("", ReferenceId(LOST), S.ALIVE, STRANGER, 7, SUMS),
        )
        told = [await b.service.report(shepherd_call(three), Report(three, 1, 1, replicas)) for _ in range(3)]
        assert [(answer.accepted, answer.unknown) for answer in told] == [(1, (LOST,))] * 3
        assert await believed(b, three) == {EXTRA: S.ALIVE}


async def test_a_repeat_does_not_hide_that_a_blob_was_committed_since_without_this_copy() -> None:
    """Else the Shepherd would count its copy as listed, until inventories are compared."""
    async with bench() as b:
        three = b.shepherds[2]
        begin = b.begin("f", wanted=2)
        begun = await b.service.begin_put(BARTENDER, begin)
        copy = ReportedReplica("", ReferenceId(EXTRA), S.ALIVE, begun.blob, 7, SUMS)
        answer = await b.service.report(shepherd_call(three), Report(three, 1, 1, (copy,)))
        assert answer.unknown == (EXTRA,)
        receipts = tuple(b.receipt(begun.blob, shepherd) for shepherd in b.shepherds[:2])
        await b.service.commit_file(BARTENDER, CommitFile(begin, begun, receipts))
        again = await b.service.report(shepherd_call(three), Report(three, 1, 1, (copy,)))
        assert (again.accepted, again.unknown) == (1, (EXTRA,))
        last = await b.service.report(shepherd_call(three), Report(three, 1, 2, (copy,)))
        assert (last.accepted, last.unknown) == (2, ())
        assert await believed(b, three) == {EXTRA: S.ALIVE}


async def test_what_cannot_be_is_refused_and_holds_up_nothing_that_can(expect_log: Callable[..., None]) -> None:
    """A Shepherd had three copies of one blob listed, without size and checksum, one of them `not-a-uuid`."""
    expect_log("an entry is refused")
    async with bench() as b:
        _, blob = await b.file("f", copies=1)
        _, other = await b.file("g", copies=1)
        three = b.shepherds[2]
        good = ReportedReplica("", ReferenceId(NEW), S.ALIVE, other, 7, SUMS)
        bare = replace(good, reference=ReferenceId(EXTRA), blob=blob)
        wrong = (
            replace(bare, reference=ReferenceId("not-a-uuid")),
            replace(bare, blob=BlobId("blob:x")),
            replace(bare, reference=ReferenceId(EXTRA[:-1] + "1"), size=-1),
            replace(bare, reference=ReferenceId(EXTRA[:-1] + "2"), checksums=Checksums()),
        )
        answer = await b.service.report(shepherd_call(three), Report(three, 1, 1, (good, *wrong)))
        assert (answer.accepted, answer.unknown) == (1, ())
        assert await believed(b, three) == {NEW: S.ALIVE}
        assert three not in await b.locations(blob)
        assert b.limits.reached == {"report_entries": 4}


async def test_a_second_copy_on_one_shepherd_is_not_listed_and_no_lie() -> None:
    """A frozen Shepherd stored an upload that its Bartender had given up, beside a repair's copy. Each report of it
    logged a warning, which by the handbook means a Shepherd that lies."""
    async with bench() as b:
        _, blob = await b.file("f", copies=1)
        one, three = b.shepherds[0], b.shepherds[2]
        answer = await b.report(three, (blob, NEW, S.ALIVE), (blob, LOST, S.ALIVE))
        assert (answer.accepted, answer.unknown) == (1, (LOST,))
        assert (await b.report(three, (blob, EXTRA, S.ALIVE))).unknown == (EXTRA,)
        assert await believed(b, three) == {NEW: S.ALIVE}
        await b.report(one, (blob, ref(blob, one), S.INVALID))
        assert (await b.report(one, (blob, EXTRA, S.ALIVE))).accepted == 2, "in the place of a damaged one"
        assert (await believed(b, one))[EXTRA] is S.ALIVE  # type: ignore[index]
        assert b.limits.reached == {}


@pytest.mark.parametrize("first", [0, 1])
async def test_a_copy_that_came_in_the_place_of_a_lost_one_is_listed_at_once(first: int) -> None:
    """Restored metadata listed an erased copy. The one report of its loss also had another copy, whose time was over.
    The answer called that one unknown again, and it went as well (versions, seed 9857685)."""
    async with bench() as b:
        _, blob = await b.file("f", copies=1)
        one = b.shepherds[0]
        told = ((blob, ref(blob, one), S.DELETED), (blob, EXTRA, S.ALIVE))
        assert (await b.report(one, told[first], told[1 - first])).unknown == ()
        assert await believed(b, one) == {EXTRA: S.ALIVE}


async def test_alive_with_other_bytes_is_not_alive() -> None:
    async with bench() as b:
        _, blob = await b.file("f")
        one, three = b.shepherds[0], b.shepherds[2]
        wrong = ReportedReplica("", ReferenceId(ref(blob, one)), S.ALIVE, blob, 7, Checksums(sha256="00" * 32))
        await b.service.report(shepherd_call(one), Report(one, 1, 1, (wrong,)))
        assert (await b.locations(blob))[one] == "invalid"
        short = replace(wrong, reference=ReferenceId(NEW), size=6, checksums=SUMS)
        answer = await b.service.report(shepherd_call(three), Report(three, 1, 1, (short,)))
        assert answer.unknown == (NEW,)
        assert three not in await b.locations(blob)


async def test_a_replica_ordered_erased_does_not_come_back() -> None:
    async with bench() as b:
        file, blob = await b.file("f")
        one = b.shepherds[0]
        await b.service.delete(BARTENDER, Delete(file))
        answer = await b.report(one, (blob, ref(blob, one), S.ALIVE))
        assert answer.unknown == ()
        assert not (await b.stored(f"blob:{blob}")).exists
        assert await b.outbox(one) == {ref(blob, one): "deleted"}
        assert await believed(b, one) == {ref(blob, one): None}


async def test_a_trimmed_replica_does_not_come_back_while_its_blob_lives() -> None:
    async with bench() as b:
        _, blob = await b.file("f")
        one = b.shepherds[0]
        location = Location(one, ReferenceId(ref(blob, one)))
        trim = (drop(blob_object(blob), "locations", str(location)), outbox_record(location, blob, "surplus", Ms(5)))
        assert (await b.ahash.transact(LIBRARIAN, RequestKey(""), trim)).applied
        answer = await b.report(one, (blob, location.reference, S.ALIVE))
        assert (answer.accepted, answer.unknown) == (1, ())
        assert list(await b.locations(blob)) == [b.shepherds[1]]
        assert await believed(b, one) == {location.reference: None}


async def test_an_empty_store_erases_nothing() -> None:
    async with bench() as b:
        answer = await b.report(b.shepherds[0], *((STRANGER, f"{EXTRA[:-3]}{n:03}", S.ALIVE) for n in range(100)))
        assert len(answer.unknown) == 100
        assert all(not found for found in (await b.everything()).values())


async def test_shepherd_is_not_shepherd2() -> None:
    """changed: the original finds its own locations by prefix, and so takes another Shepherd's replica for its own."""
    async with bench() as b:
        one, two = ServiceId("https://h/Shepherd"), ServiceId("https://h/Shepherd2")
        for shepherd in (one, two):
            record = ServiceRecord(Role.SHEPHERD, Dn(f"/CN={shepherd}"), shepherd, approved=True)
            await b.service.approve(ADMIN, record)
            await b.beat(shepherd)
        _, blob = await b.file("f")
        await b.report(one, (blob, EXTRA, S.ALIVE))
        await b.report(two, (blob, NEW, S.ALIVE))
        await b.report(one, (blob, EXTRA, S.DELETED))
        assert (await b.locations(blob)).get(two) == "alive"
        assert one not in await b.locations(blob)
        assert await believed(b, two) == {NEW: S.ALIVE}
        with fails(Kind.DENIED):
            await b.service.report(shepherd_call(one), Report(two, 1, 2, ()))
        with fails(Kind.DENIED):
            await b.service.inventory(shepherd_call(one), two, "", 0)


# --- numbers ----------------------------------------------------------------------------------------------------------


async def test_repeated_and_reordered_reports_are_harmless() -> None:
    async with bench() as b:
        _, blob = await b.file("f")
        one = b.shepherds[0]
        bad, good = (blob, ref(blob, one), S.INVALID), (blob, ref(blob, one), S.ALIVE)
        assert (await b.report(one, bad, number=1)).accepted == 1
        assert (await b.report(one, good, number=2)).accepted == 2
        assert (await b.report(one, bad, number=1)).accepted == 2
        assert (await b.report(one, bad, number=2)).accepted == 2
        assert (await b.locations(blob))[one] == "alive"


async def test_a_lost_report_is_asked_for_again() -> None:
    async with bench() as b:
        _, blob = await b.file("f")
        one = b.shepherds[0]
        bad = (blob, ref(blob, one), S.INVALID)
        assert (await b.report(one, bad, number=3)).accepted == 0
        assert (await b.locations(blob))[one] == "alive"
        assert (await b.report(one, number=1)).accepted == 1
        assert (await b.report(one, bad, number=3)).accepted == 1
        assert (await b.report(one, bad, number=2)).accepted == 2
        assert (await b.locations(blob))[one] == "invalid"


async def test_a_new_boot_starts_at_one_and_silences_the_old() -> None:
    async with bench() as b:
        _, blob = await b.file("f")
        one = b.shepherds[0]
        bad = (blob, ref(blob, one), S.INVALID)
        await b.report(one, number=1)
        assert (await b.report(one, number=2, boot=2)).accepted == 0
        assert (await b.report(one, number=1, boot=2)).accepted == 1
        assert (await b.report(one, bad, number=2, boot=1)).accepted == 0
        assert (await b.locations(blob))[one] == "alive"


async def test_the_first_report_of_a_boot_hears_what_told_something_last() -> None:
    """First reports have no contents: a start that died before its answer leaves no trace in it."""
    async with bench() as b:
        one = b.shepherds[0]

        async def told(number: int, boot: int) -> tuple[int, int]:
            answer = await b.report(one, number=number, boot=boot)
            return answer.before_boot, answer.before_number

        assert await told(1, 1) == (0, 0)
        assert [await told(number, 1) for number in (2, 3, 3)] == [(0, 0)] * 3
        assert await told(1, 5) == (1, 3)
        assert await told(1, 5) == (1, 3), "its answer was lost"
        assert await told(2, 5) == (0, 0)
        assert await told(1, 3) == (5, 0), "a late one, or a clock is behind: it hears which boot has reported"
        assert await told(2, 3) == (0, 0)
        assert [(await told(1, boot)) for boot in (6, 7, 8, 8)] == [(5, 2)] * 4
        assert [await told(number, 8) for number in (2, 1)] == [(0, 0)] * 2, "a first one that comes late is no repeat"
        assert await told(1, 9) == (8, 2)
        older = put(shepherd_object(one), "report", "boot", "10")  # took a first report and kept nothing
        assert (
            await b.ahash.transact(LIBRARIAN, RequestKey(""), (older, put(older.object, "report", "number", "1")))
        ).applied
        assert await told(1, 11) == (0, 0)


async def test_an_erasure_that_is_confirmed_while_a_first_report_is_applied_is_told_by_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else that report would trust an image of the disk from before the erasure, put back meanwhile."""
    async with bench() as b:
        _, blob = await b.file("f")
        one, now = b.shepherds[0], b.clock.now_ms()
        for number in (1, 2):
            await b.report(one, number=number)
        place, position = Location(one, ReferenceId(ref(blob, one))), (await b.ahash.status(LIBRARIAN)).position
        transact = b.ahash.transact
        assert (await transact(LIBRARIAN, RequestKey(""), (outbox_record(place, blob, "deleted", now),))).applied
        confirmed = (*struck_off(one, 1, [outbox_key(place, now)]), reports.has_obeyed(one, position))

        async def just_before(*args: Any) -> TransactOutcome:
            monkeypatch.setattr(b.ahash, "transact", transact)
            assert (await transact(LIBRARIAN, RequestKey(""), confirmed)).applied
            return await transact(*args)

        monkeypatch.setattr(b.ahash, "transact", just_before)
        answer = await b.report(one, number=1, boot=2)
        assert (answer.accepted, answer.before_boot, answer.before_number) == (1, 1, 2)
        assert answer.obeyed == position.sequence > 0


async def test_a_late_rebuild_that_begins_while_a_first_report_is_applied_is_told_by_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with bench() as b:
        one = b.shepherds[0]
        for number in (1, 2):
            await b.report(one, number=number)
        transact = b.ahash.transact
        begun = put(REBUILD_OBJECT, rebuild_record.REPORTED, one, rebuild_record.EVERY_BOOT)

        async def just_before(*args: Any) -> TransactOutcome:
            monkeypatch.setattr(b.ahash, "transact", transact)
            assert (await transact(LIBRARIAN, RequestKey(""), (begun,))).applied
            return await transact(*args)

        monkeypatch.setattr(b.ahash, "transact", just_before)
        answer = await b.report(one, number=1, boot=2)
        assert (answer.accepted, answer.next_report_ms < 0) == (1, True)


@pytest.mark.parametrize(("boot", "asked"), [(5, True), (6, True), (4, False)])
async def test_who_has_told_nothing_since_a_rebuild_is_asked_to_compare_all_when_it_comes_back(
    boot: int, asked: bool
) -> None:
    """A rebuild also names replicas in quarantine, and differences do not include those."""
    async with bench() as b:
        one, other = b.shepherds[:2]
        for number in (1, 2):
            await b.report(one, number=number, boot=5)
        reported = put(REBUILD_OBJECT, rebuild_record.REPORTED, one, str(boot))
        await b.ahash.transact(LIBRARIAN, RequestKey(""), (reported,))
        answers = [await b.report(one, number=number, boot=7) for number in (1, 1, 2)]
        assert [answer.next_report_ms < 0 for answer in answers] == [asked, asked, False]
        assert (await b.report(one, number=1, boot=8)).next_report_ms > 0, "it has told something since"
        assert (await b.report(other, number=1, boot=8)).next_report_ms > 0


async def test_a_report_of_the_old_form_is_a_sign_of_life_golden() -> None:
    """changed: unnumbered reports could be lost or overtake, so none of their contents is applied. The answer -1
    requests a reconciliation and names the files believed to be there, as the original did."""
    async with bench() as b:
        file, blob = await b.file("f")
        one = b.shepherds[0]
        told = ReportedReplica(file, ReferenceId(ref(blob, one)), S.DELETED)
        answer = await b.service.report(shepherd_call(one), Report(one, 0, 0, (told,)))
        assert (answer.next_report_ms, answer.all_files) == (-1, (file,))
        assert one in await b.locations(blob)
        quiet = await b.service.report(shepherd_call(one), Report(one, 0, 0, ()))
        assert (quiet.next_report_ms, quiet.all_files) == (b.settings.lease_ms, ())


async def test_inventories_page() -> None:
    async with bench(shepherds=1) as b:
        blobs = [(await b.file(f"f{n}", copies=1))[1] for n in range(5)]
        one = b.shepherds[0]
        first = await b.service.inventory(shepherd_call(one), one, "", 3)
        rest = await b.service.inventory(shepherd_call(one), one, first.after, 3)
        assert rest.after == ""
        assert sorted(item.blob for item in (*first.items, *rest.items)) == sorted(blobs)


# --- heartbeats and the registry -------------------------------------------------------------------------------------


async def test_amid_a_rebuild_nobody_compares_or_reports() -> None:
    """A listed copy may then give way to newer bytes found later."""
    async with bench(shepherds=1) as b:
        await b.file("f", copies=1)
        one = b.shepherds[0]
        begun = put(REBUILD_OBJECT, "rebuild", "state", rebuild_record.RUNNING)
        await b.ahash.transact(LIBRARIAN, RequestKey(""), (begun,))
        with fails(Kind.UNAVAILABLE):
            await believed(b, one)
        with fails(Kind.UNAVAILABLE):
            await b.report(one, number=1)
        await b.ahash.transact(LIBRARIAN, RequestKey(""), (drop(REBUILD_OBJECT, "rebuild", "state"),))
        assert len(await believed(b, one)) == 1


async def test_an_unknown_shepherd_waits_for_approval_and_is_nothing_until_then() -> None:
    async with bench(shepherds=1) as b:
        new = shepherd_id(9)
        caller = structs.replace(shepherd_call(new), roles=(), service_id=ServiceId(""))
        beat = Heartbeat(new, 1, 0, 10, 20, 0, True, "", "key")
        for _ in range(3):
            assert not (await b.service.heartbeat(caller, beat)).known
        waiting = [record for record in await b.service.services(ADMIN) if not record.approved]
        assert [(record.service_id, record.dn) for record in waiting] == [(new, caller.dn)]
        assert {n.shepherd: n.state for n in await b.service.nodes(BARTENDER)}[new] == NODE_WAITING
        await b.service.approve(ADMIN, replace(waiting[0], approved=True))
        assert (await b.service.heartbeat(caller, beat)).known
        assert {n.shepherd: n.state for n in await b.service.nodes(BARTENDER)}[new] == "alive"
        await b.service.approve(ADMIN, waiting[0])
        assert not (await b.service.heartbeat(caller, beat)).known
        await b.service.start()
        assert not (await b.service.heartbeat(caller, beat)).known


async def test_another_dn_cannot_beat_for_a_shepherd() -> None:
    async with bench() as b:
        thief = Call(Dn("/CN=thief"), (Role.SHEPHERD,), b.shepherds[0])
        beat = Heartbeat(b.shepherds[0], 9, 0, 10, 20, 0, True, "", "stolen")
        assert not (await b.service.heartbeat(thief, beat)).known
        node = (await b.service.nodes(BARTENDER))[0]
        assert node.boot == 1
        nobody = await b.service.heartbeat(Call(), beat)
        assert not nobody.known
        assert all(record.dn != "ANONYMOUS" for record in await b.service.services(ADMIN))


async def test_only_so_many_strangers_are_recorded() -> None:
    async with bench() as b:
        for n in range(b.settings.waiting_max):
            shepherd = shepherd_id(1000 + n)
            await b.service.heartbeat(
                structs.replace(shepherd_call(shepherd), roles=()), Heartbeat(shepherd, 1, 0, 1, 1, 0, True, "", "")
            )
        with fails(Kind.DENIED):
            shepherd = shepherd_id(9999)
            await b.service.heartbeat(shepherd_call(shepherd), Heartbeat(shepherd, 1, 0, 1, 1, 0, True, "", ""))


async def test_one_stranger_cannot_take_up_the_room_of_all_who_wait() -> None:
    async with bench() as b:
        stranger = Call(Dn("/CN=stranger"))
        for n in range(b.settings.waiting_per_dn_max):
            await b.service.heartbeat(stranger, Heartbeat(shepherd_id(1000 + n), 1, 0, 1, 1, 0, True, "", ""))
        with fails(Kind.DENIED):
            await b.service.heartbeat(stranger, Heartbeat(shepherd_id(2000), 1, 0, 1, 1, 0, True, "", ""))
        await b.service.heartbeat(Call(Dn("/CN=other")), Heartbeat(shepherd_id(2000), 1, 0, 1, 1, 0, True, "", ""))
        assert any(record.dn == "/CN=other" for record in await b.service.services(ADMIN))


@pytest.mark.parametrize(
    "odd",
    ["", "-", "a", "file:///etc/passwd", "https://[::1", "https://h:1/Shepherd\n", "http://h:1/Shepherd", "https:///x",
     "https://h:x/", "https://h:0/", "https://u@h:1/", "https://h:1/Ѕhepherd", "https://h:1/\x1b[2J"],
)  # fmt: skip
async def test_a_stranger_waits_under_an_address_that_shows_as_it_is(odd: str) -> None:
    async with bench() as b:
        before = await b.service.services(ADMIN)
        with fails(Kind.BAD_REQUEST):
            await b.service.heartbeat(Call(Dn("/CN=x")), Heartbeat(ServiceId(odd), 1, 0, 1, 1, 0, True, "", ""))
        assert await b.service.services(ADMIN) == before


async def test_a_few_strangers_do_not_shut_newcomers_out() -> None:
    """13 DNs with 8 services each took every place."""
    async with bench() as b:
        most = b.settings.waiting_per_dn_max
        for n in range(b.settings.waiting_max):
            beat = Heartbeat(shepherd_id(1000 + n), 1, 0, 1, 1, 0, True, "", "")
            await b.service.heartbeat(Call(Dn(f"/CN=stranger{n // most}")), beat)
        for n in range(3):
            await b.service.heartbeat(Call(Dn("/CN=new")), Heartbeat(shepherd_id(n + 20), 1, 0, 1, 1, 0, True, "", ""))
        waiting = [record.dn for record in await b.service.services(ADMIN) if not record.approved]
        assert len(waiting) == b.settings.waiting_max
        assert waiting.count(Dn("/CN=new")) == 3
        assert b.limits.reached == {"waiting": 3}
        await b.service.start()
        assert len([r for r in await b.service.services(ADMIN) if not r.approved]) == b.settings.waiting_max


async def test_withdrawing_strangers_makes_room_for_others() -> None:
    async with bench() as b:
        for n in range(b.settings.waiting_max):
            shepherd = shepherd_id(1000 + n)
            await b.service.heartbeat(
                structs.replace(shepherd_call(shepherd), roles=()), Heartbeat(shepherd, 1, 0, 1, 1, 0, True, "", "")
            )
        first = next(record for record in await b.service.services(ADMIN) if not record.approved)
        await b.service.approve(ADMIN, first)
        shepherd = shepherd_id(9999)
        await b.service.heartbeat(shepherd_call(shepherd), Heartbeat(shepherd, 1, 0, 1, 1, 0, True, "", ""))
        assert any(record.service_id == shepherd for record in await b.service.services(ADMIN))


async def test_a_withdrawn_identity_of_the_configuration_stays_withdrawn() -> None:
    async with bench() as b:
        record = next(r for r in await b.service.services(ADMIN) if r.service_id == b.shepherds[0])
        await b.service.approve(ADMIN, replace(record, approved=False))
        await b.service.start()
        found = next(r for r in await b.service.services(ADMIN) if r.service_id == b.shepherds[0])
        assert (found.approved, found.withdrawn) == (False, True)


async def test_readers_see_offline_for_shepherds_away_and_nothing_is_rewritten() -> None:
    async with bench() as b:
        file, blob = await b.file("f")
        record = next(r for r in await b.service.services(ADMIN) if r.service_id == b.shepherds[0])
        await b.service.approve(ADMIN, replace(record, approved=False))
        shown = (await b.service.get(BARTENDER, (file,)))[0].sections["locations"]
        assert sorted(shown.values()) == ["alive", "offline"]
        assert set((await b.locations(blob)).values()) == {"alive"}


async def test_no_heartbeat_waits_for_the_ahash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a master nobody is called away for that: a Shepherd sends no other before the answer."""
    async with bench() as b:
        one = b.shepherds[0]

        async def asked(*_: object) -> None:
            raise AssertionError("it is asked")

        monkeypatch.setattr(b.ahash, "get", asked)
        monkeypatch.setattr(b.ahash, "transact", asked)
        b.clock.advance(b.settings.lease_ms - 1)
        await b.beat(one, reported=5)
        b.clock.advance(b.settings.lease_ms - 1)
        await b.beat(one, reported=6)
        assert next(node for node in await b.service.nodes(BARTENDER) if node.shepherd == one).state == "alive"


async def test_heartbeats_tell_the_last_report_applied() -> None:
    async with bench() as b:
        one = b.shepherds[0]
        await b.report(one)
        await b.report(one)
        beat = Heartbeat(one, 1, 5, 1, 1, 0, True, "", f"key of {one}")
        answer = await b.service.heartbeat(shepherd_call(one), beat)
        assert (answer.known, answer.accepted, answer.lease_ms) == (True, 2, b.settings.lease_ms)
        assert answer.position.sequence > 0
        assert (await b.service.heartbeat(shepherd_call(one), replace(beat, boot=2))).accepted == 0
