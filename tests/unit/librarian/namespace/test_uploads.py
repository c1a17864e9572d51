"""Uploads: pending names, receipts, commits that apply once, overwriting in place."""

import asyncio
from typing import Any

import pytest

from chelonia.core import bounds
from chelonia.core.caller import Call, Role
from chelonia.core.cluster.replicas import Checksums
from chelonia.core.contents.extents import Extent
from chelonia.core.contents.uploads import CommitFile, SpliceFile
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import REBUILD_OBJECT, ROOT, Dn, Guid, ReferenceId, RequestKey, ServiceId
from chelonia.core.names import parse_ln
from chelonia.core.ports.ahash import TransactOutcome
from chelonia.core.ports.librarian import Delete, MakeEntry, ModifyEntry, MoveEntry, SetWanted, Unlink
from chelonia.core.ports.shepherd import ReplicaStatOutcome
from chelonia.core.values import replace
from chelonia.librarian.metadata.elements import put
from chelonia.librarian.metadata.rebuild_record import EVERY_BOOT, REPORTED
from chelonia.librarian.metadata.seal import seal
from chelonia.librarian.presence.receipt_audit import LATE_MS, TRIES_MAX
from tests.support.ahash import LIBRARIAN
from tests.support.failing import fails
from tests.support.librarian import BARTENDER, EVE, HOUR, JOE, SUMS, Bench, bench, keyed, shepherd_call

STATES = {"states": {"size": "7", "checksum": SUMS.md5, "checksumType": "md5", "neededReplicas": "2"}}


async def traverses(b: Bench, ln: str) -> bool:
    return (await b.service.traverse(BARTENDER, (parse_ln(ln),)))[0].complete


async def commit(b: Bench, guid: Guid, blob, *shepherds: ServiceId, key: str = ""):  # type: ignore[no-untyped-def]
    used = shepherds or b.shepherds[:2]
    receipts = tuple(b.receipt(blob, shepherd) for shepherd in used)
    call = shepherd_call(used[0])
    return await b.service.commit_put(keyed(key, call) if key else call, guid, receipts)


async def test_a_pending_name_is_invisible_until_its_bytes_are_durable() -> None:
    """changed: the original leaves a zombie name when nothing is ever uploaded."""
    async with bench() as b:
        begun = await b.service.begin_put(BARTENDER, b.begin("f", named=True, sections=STATES))
        assert not await traverses(b, "/f")
        assert await b.names() == {}
        root, pending = await b.service.get(BARTENDER, (ROOT, begun.guid))
        assert not pending.exists
        assert "pending" not in root.sections
        done = await commit(b, begun.guid, begun.blob)
        assert (done.guid, done.blob) == (begun.guid, begun.blob)
        assert await b.names() == {"f": begun.guid}
        file = (await b.service.get(BARTENDER, (begun.guid,)))[0]
        assert file.sections["states"] == STATES["states"]
        assert file.sections["parents"] == {"0/f": "parent"}
        assert file.sections["locations"] == {f"{s} {begun.blob}@{s}": "alive" for s in b.shepherds[:2]}
        stored = await b.stored(begun.guid)
        assert "put" not in stored.sections
        assert (await b.everything())[f"{b.shepherds[0]} file"] == {f"{begun.blob}@{b.shepherds[0]}": begun.blob}


async def test_the_same_user_supersedes_his_pending_name_another_does_not() -> None:
    async with bench() as b:
        first = await b.service.begin_put(BARTENDER, b.begin("f", named=True))
        second = await b.service.begin_put(BARTENDER, b.begin("f", named=True))
        with fails(Kind.EXISTS):
            await b.service.begin_put(BARTENDER, b.begin("f", named=True, owner=EVE))
        with fails(Kind.EXISTS):
            await b.service.make_entry(BARTENDER, MakeEntry(ROOT, "f", "collection", EVE, {}))
        with fails(Kind.NOT_FOUND):
            await commit(b, first.guid, first.blob)
        await commit(b, second.guid, second.blob)
        assert await b.names() == {"f": second.guid}
        assert not (await b.stored(first.guid)).exists


async def test_an_expired_reservation_gives_way_to_anybody_and_its_commit_has_lost_the_name() -> None:
    async with bench() as b:
        begun = await b.service.begin_put(BARTENDER, b.begin("f", named=True))
        b.clock.advance(HOUR)
        made = await b.service.make_entry(BARTENDER, MakeEntry(ROOT, "f", "collection", EVE, {}))
        with fails(Kind.NOT_FOUND):
            await commit(b, begun.guid, begun.blob)
        assert await b.names() == {"f": made}


async def test_a_late_upload_that_still_holds_its_name_is_taken() -> None:
    async with bench() as b:
        begun = await b.service.begin_put(BARTENDER, b.begin("f", named=True))
        b.clock.advance(2 * HOUR)
        await commit(b, begun.guid, begun.blob)
        assert await b.names() == {"f": begun.guid}


async def test_a_commit_asked_again_answers_the_same_with_and_without_a_key() -> None:
    async with bench() as b:
        begun = await b.service.begin_put(BARTENDER, b.begin("f", named=True))
        first = await commit(b, begun.guid, begun.blob, key="commit/1")
        again = await commit(b, begun.guid, begun.blob, key="commit/1")
        unkeyed = await commit(b, begun.guid, begun.blob)
        assert first == again == unkeyed
        assert len(await b.locations(begun.blob)) == 2
        assert await b.names() == {"f": begun.guid}


async def test_a_commit_whose_answer_was_lost_is_answered_even_when_the_file_is_gone_since() -> None:
    """Else its sender would believe it failed, send the bytes again and overwrite others' changes."""
    async with bench() as b:
        begun = await b.service.begin_put(BARTENDER, b.begin("f", named=True))
        await commit(b, begun.guid, begun.blob, key="k")
        await b.service.delete(BARTENDER, Delete(begun.guid))
        again = await commit(b, begun.guid, begun.blob, key="k")
        assert (again.guid, again.blob) == (begun.guid, begun.blob)
        with fails(Kind.NOT_FOUND):
            await commit(b, begun.guid, begun.blob, key="other")


async def test_other_bytes_for_an_upload_that_is_committed_are_not_acknowledged() -> None:
    """A putFile repeated under one key gives two TURLs for one blob: only the bytes that came first are the file."""
    async with bench() as b:
        begun = await b.service.begin_put(BARTENDER, b.begin("f", named=True))
        await commit(b, begun.guid, begun.blob)
        three = b.shepherds[2]
        other = replace(b.receipt(begun.blob, three), checksums=Checksums(sha256="00" * 32))
        with fails(Kind.CHECKSUM):
            await b.service.commit_put(shepherd_call(three), begun.guid, (other,))


async def test_an_overwrite_repeated_without_a_key_is_done_already() -> None:
    async with bench() as b:
        file, _ = await b.file("f")
        begin = b.begin("f", replaces=file)
        begun = await b.service.begin_put(BARTENDER, begin)
        request = CommitFile(begin, begun, tuple(b.receipt(begun.blob, s) for s in b.shepherds[:2]))
        first = await b.service.commit_file(BARTENDER, request)
        again = await b.service.commit_file(BARTENDER, request)
        assert (again.guid, again.blob) == (first.guid, first.blob)


async def test_an_earlier_upload_that_comes_late_does_not_overwrite_newer_bytes() -> None:
    async with bench() as b:
        file, _ = await b.file("f")
        late = await b.service.begin_put(BARTENDER, b.begin("f", named=True, replaces=file))
        begin = b.begin("f", replaces=file)
        begun = await b.service.begin_put(BARTENDER, begin)
        receipts = tuple(b.receipt(begun.blob, s) for s in b.shepherds[:2])
        await b.service.commit_file(BARTENDER, CommitFile(begin, begun, receipts))
        with fails(Kind.NOT_FOUND):
            await commit(b, late.guid, late.blob)
        assert (await b.stored(file)).sections["blobs"] == {"00000000": begun.blob}
        assert not (await b.stored(late.guid)).exists


async def test_begin_put_asked_again_gives_the_same_ids() -> None:
    async with bench() as b:
        request = b.begin("f", named=True)
        first = await b.service.begin_put(keyed("k"), request)
        assert await b.service.begin_put(keyed("k"), request) == first
        assert await b.service.recall(keyed("k")) == f"{first.guid} {first.blob}"


# --- receipts ---------------------------------------------------------------------------------------------------------


async def test_receipts_must_agree_with_each_other_and_with_what_was_declared() -> None:
    async with bench() as b:
        declared = b.begin("f", named=True, size=7, checksums=Checksums(md5=SUMS.md5))
        begun = await b.service.begin_put(BARTENDER, declared)
        good = b.receipt(begun.blob, b.shepherds[0])
        call = shepherd_call(b.shepherds[0])
        bad_second = replace(b.receipt(begun.blob, b.shepherds[1]), checksums=replace(SUMS, sha256="00" * 32))
        for receipts in (
            (replace(good, size=8),),
            (replace(good, checksums=replace(SUMS, md5="00" * 16)),),
            (good, bad_second),
            (good, replace(b.receipt(begun.blob, b.shepherds[1]), size=6)),
        ):
            with fails(Kind.CHECKSUM):
                await b.service.commit_put(call, begun.guid, receipts)
        with fails(Kind.INCOMPLETE):
            await b.service.commit_put(call, begun.guid, ())
        assert await b.names() == {}


async def test_a_receipt_counts_only_with_its_own_shepherds_signature_and_once() -> None:
    async with bench() as b:
        begun = await b.service.begin_put(BARTENDER, b.begin("f", named=True))
        good = b.receipt(begun.blob, b.shepherds[0])
        forged = replace(b.receipt(begun.blob, b.shepherds[1]), signature=good.signature)
        stranger = b.receipt(begun.blob, ServiceId("https://x/Shepherd"))
        call = shepherd_call(b.shepherds[0])
        for receipts, kind in (((good, forged), Kind.UNTRUSTED), ((good, stranger), Kind.NO_SHEPHERD)):
            with fails(kind):
                await b.service.commit_put(call, begun.guid, receipts)
        with fails(Kind.DENIED):
            await b.service.commit_put(shepherd_call(b.shepherds[2]), begun.guid, (good,))
        with fails(Kind.DENIED):
            await b.service.commit_put(BARTENDER, begun.guid, (good,))
        twice = b.receipt(begun.blob, b.shepherds[0], "another-reference")
        await b.service.commit_put(call, begun.guid, (good, twice))
        assert await b.locations(begun.blob) == {good.location.shepherd: "alive"}


async def test_a_declared_checksum_in_the_states_is_checked_as_well() -> None:
    async with bench() as b:
        wrong = {"states": {"checksum": "00" * 16, "checksumType": "md5"}}
        begin = b.begin("f", sections=wrong)
        begun = await b.service.begin_put(BARTENDER, begin)
        with fails(Kind.CHECKSUM):
            await b.service.commit_file(BARTENDER, CommitFile(begin, begun, (b.receipt(begun.blob, b.shepherds[0]),)))
        assert await b.names() == {}


# --- bytes first ------------------------------------------------------------------------------------------------------


async def test_bytes_first_writes_nothing_before_the_commit() -> None:
    async with bench() as b:
        before = await b.ahash.status(Call(Dn("/CN=l"), (Role.LIBRARIAN,)))
        begin = b.begin("f")
        begun = await b.service.begin_put(BARTENDER, begin)
        assert (await b.ahash.status(Call(Dn("/CN=l"), (Role.LIBRARIAN,)))).position == before.position
        receipts = tuple(b.receipt(begun.blob, s) for s in b.shepherds[:2])
        done = await b.service.commit_file(keyed("k"), CommitFile(begin, begun, receipts))
        file = (await b.service.get(BARTENDER, (done.guid,)))[0]
        assert file.value("states", "size") == "7"
        assert file.value("states", "checksum") == SUMS.md5
        assert file.value("entry", "owner") == JOE
        blob = await b.stored(f"blob:{done.blob}")
        assert blob.value("blob", "file") == done.guid
        assert blob.value("blob", "name") == "/f"


async def test_two_uploads_race_for_one_name_and_one_wins() -> None:
    async with bench() as b:
        begins = [b.begin("f", owner=owner) for owner in (JOE, EVE)]
        begun = [await b.service.begin_put(BARTENDER, begin) for begin in begins]
        done = await asyncio.gather(
            *(
                b.service.commit_file(BARTENDER, CommitFile(x, y, (b.receipt(y.blob, b.shepherds[0]),)))
                for x, y in zip(begins, begun, strict=True)
            ),
            return_exceptions=True,
        )
        lost = [error.kind for error in done if isinstance(error, CheloniaError)]
        assert lost == [Kind.EXISTS]
        assert list(await b.names()) == ["f"]


async def test_ids_that_were_not_begun_here_are_refused() -> None:
    async with bench() as b:
        begin = b.begin("f")
        begun = await b.service.begin_put(BARTENDER, begin)
        receipts = (b.receipt(begun.blob, b.shepherds[0]),)
        for request in (
            CommitFile(begin, replace(begun, seal="0" * 64), receipts),
            CommitFile(replace(begin, owner=EVE), begun, receipts),
            CommitFile(replace(begin, wanted=32), begun, receipts),
        ):
            with fails(Kind.BAD_REQUEST):
                await b.service.commit_file(BARTENDER, request)


def test_the_seal_has_golden_bytes() -> None:
    made = seal("00" * 32, "b", "g", name="/ä", owner=Dn("/CN=x"), wanted=2)  # type: ignore[arg-type]
    assert made == "b623607de468a5873f828d79fa99f384bc8a2d60e2f262f389579809d25f9551"


# --- overwriting ------------------------------------------------------------------------------------------------------


async def test_overwriting_swaps_the_bytes_and_keeps_everything_else() -> None:
    async with bench() as b:
        file, old = await b.file("f", sections={"policy": {"ALL": "+read"}})
        await b.service.move(BARTENDER, MoveEntry(file, ROOT, "f", ROOT, "link", True))
        created = (await b.service.get(BARTENDER, (file,)))[0].value("timestamps", "created")
        b.clock.advance(5_000)
        same, new = await b.file("f", replaces=file)
        assert same == file
        assert new != old
        after = (await b.service.get(BARTENDER, (file,)))[0]
        assert sorted(after.sections["parents"]) == ["0/f", "0/link"]
        assert after.sections["policy"] == {"ALL": "+read"}
        assert after.value("timestamps", "created") == created
        assert after.value("timestamps", "modified") == "1700000005.000"
        assert set(after.sections["locations"]) == {f"{s} {new}@{s}" for s in b.shepherds[:2]}
        assert not (await b.stored(f"blob:{old}")).exists
        assert await b.outbox(b.shepherds[0]) == {f"{old}@{b.shepherds[0]}": "replaced"}


async def test_overwriting_the_originals_way() -> None:
    async with bench() as b:
        file, old = await b.file("f")
        begun = await b.service.begin_put(BARTENDER, b.begin("f", named=True, replaces=file))
        assert begun.guid != file
        assert await traverses(b, "/f")
        done = await commit(b, begun.guid, begun.blob)
        assert (done.guid, done.blob) == (file, begun.blob)
        assert await b.names() == {"f": file}
        assert not (await b.stored(begun.guid)).exists
        assert (await b.stored(f"blob:{begun.blob}")).value("blob", "file") == file
        assert await commit(b, begun.guid, begun.blob) == done
        assert list(await b.outbox(b.shepherds[1])) == [f"{old}@{b.shepherds[1]}"]


async def test_overwriting_a_file_that_has_gone_makes_nothing() -> None:
    async with bench() as b:
        file, _ = await b.file("f")
        begin = b.begin("f", replaces=file)
        begun = await b.service.begin_put(BARTENDER, begin)
        named = await b.service.begin_put(BARTENDER, b.begin("f", named=True, replaces=file))
        await b.service.delete(BARTENDER, Delete(file))
        with fails(Kind.NOT_FOUND):
            await b.service.commit_file(BARTENDER, CommitFile(begin, begun, (b.receipt(begun.blob, b.shepherds[0]),)))
        with fails(Kind.NOT_FOUND):
            await commit(b, named.guid, named.blob)
        with fails(Kind.NOT_FOUND):
            await b.service.begin_put(BARTENDER, b.begin("f", named=True, replaces=file))
        assert await b.names() == {}


async def test_concurrent_overwrites_leave_one_blob_and_erase_the_others() -> None:
    async with bench() as b:
        file, first = await b.file("f")
        blobs = [blob for _, blob in await asyncio.gather(*(b.file("f", replaces=file) for _ in range(5)))]
        left = (await b.stored(file)).sections["blobs"]
        assert list(left) == ["00000000"]
        assert left["00000000"] in blobs
        gone = {first, *blobs} - {left["00000000"]}
        assert set(await b.outbox(b.shepherds[0])) == {f"{blob}@{b.shepherds[0]}" for blob in gone}


async def test_a_changed_policy_makes_a_decided_commit_a_conflict() -> None:
    async with bench() as b:
        version = (await b.service.get(BARTENDER, (ROOT,)))[0].version
        await b.service.modify_metadata(BARTENDER, (ModifyEntry("m", ROOT, "set", "policy", "ALL", "-addEntry"),))
        with fails(Kind.CONFLICT):
            await b.file("f", expect=((ROOT, version),))
        assert await b.names() == {}


async def test_a_new_count_reaches_a_file_made_by_upload() -> None:
    async with bench() as b:
        file, blob = await b.file("f")
        await b.service.set_wanted(BARTENDER, SetWanted(file, 5))
        assert (await b.stored(f"blob:{blob}")).value("blob", "wanted") == "5"
        await b.service.unlink(BARTENDER, Unlink(ROOT, "f", file))
        with fails(Kind.NOT_FOUND):
            await b.service.set_wanted(BARTENDER, SetWanted(file, 1))


class Asked:
    """Shepherds that answer only `stat`, with a record of it; the next `lost` calls have no answer. `lacks`: they have
    none of the copies."""

    def __init__(self) -> None:
        self.references: list[str] = []
        self.calls = 0
        self.lost = 0
        self.lacks = False

    def shepherd(self, _: ServiceId) -> "Asked":
        return self

    async def stat(self, _: Call, references: tuple[tuple[str, ReferenceId], ...]) -> tuple[ReplicaStatOutcome, ...]:
        self.references += [reference for _, reference in references]
        self.calls += 1
        if self.lost:
            self.lost -= 1
            raise CheloniaError(Kind.NETWORK, "stat")
        return tuple(ReplicaStatOutcome(*each, found=not self.lacks) for each in references)


async def reported(b: Bench) -> ServiceId:
    """A Shepherd that has reported in boot 2. The copies of `Bench.file` are of an earlier one, so they are audited."""
    one = b.shepherds[1]
    for number in (1, 2):
        await b.report(one, number=number, boot=2)
    await b.beat(one, boot=2)
    await settled()
    return one


async def settled() -> None:
    """Let every ready task run as far as it can."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_copy_whose_receipt_is_of_an_earlier_start_is_asked_for_once_it_is_written() -> None:
    """Its Shepherd may have lost it and compared before the commit: nobody else would miss it for a day."""
    directory = Asked()
    async with bench(directory=directory) as b:
        await b.file("a")
        assert directory.references == []
        await b.beat(b.shepherds[1], boot=2)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        directory.references.clear()
        _, blob = await b.file("b")
        assert directory.references == [f"{blob}@{b.shepherds[1]}"]
        begun = await b.service.begin_put(BARTENDER, b.begin("c", named=True, sections=STATES))
        await commit(b, begun.guid, begun.blob)
        assert directory.references[1:] == [f"{begun.blob}@{b.shepherds[1]}"]


async def test_copies_whose_receipts_are_old_are_asked_for_together_once_they_are_written() -> None:
    """Their Shepherd may have set them aside as unowned before the commit. A Bartender whose clock had gone back by a
    day accepted the receipts all the same, and nobody missed the copies for a day."""
    directory = Asked()
    async with bench(directory=directory) as b:
        begin = replace(b.begin("a"), piece=True, size=7)
        begun = [await b.service.begin_put(BARTENDER, begin) for _ in range(2)]
        pieces = tuple(CommitFile(begin, each, (b.receipt(each.blob, b.shepherds[1]),)) for each in begun)
        b.clock.advance(LATE_MS)
        await b.beat(b.shepherds[1])
        extents = tuple(Extent(7 * n, 7, each.blob) for n, each in enumerate(begun))
        await b.service.splice(BARTENDER, SpliceFile(b.begin("a"), pieces, extents))
        assert directory.references == [f"{each.blob}@{b.shepherds[1]}" for each in begun]
        assert directory.calls == 1


async def test_a_copy_written_down_before_the_new_start_is_heard_is_asked_for_then() -> None:
    """Its Shepherd has compared with another Librarian meanwhile."""
    directory = Asked()
    async with bench(directory=directory) as b:
        one = b.shepherds[1]
        await b.file("a")
        b.clock.advance(b.settings.lease_ms + 1)
        await b.beat(one)
        b.clock.advance(1)
        _, late = await b.file("b")
        await b.beat(one)
        await b.beat(one, boot=2)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert directory.references == [f"{late}@{one}"]
        await b.beat(one, boot=3)
        await asyncio.sleep(0)
        assert directory.references == [f"{late}@{one}"]


async def test_a_copy_is_asked_for_again_when_the_question_was_lost() -> None:
    """Its Shepherd runs, has compared, and would not compare again for a day."""
    directory = Asked()
    async with bench(directory=directory) as b:
        one = b.shepherds[1]
        await b.beat(one, boot=2)
        await settled()
        directory.lost = 2
        _, blob = await b.file("a")
        assert directory.references == [f"{blob}@{one}"], "the upload is acknowledged all the same"
        await settled()
        for asked in (2, 3, 3):
            b.clock.advance(b.settings.lease_ms)
            await settled()
            assert directory.references == asked * [f"{blob}@{one}"]


async def test_a_shepherd_that_never_answers_is_not_asked_for_ever() -> None:
    directory = Asked()
    async with bench(directory=directory) as b:
        await b.beat(b.shepherds[1], boot=2)
        await settled()
        directory.lost = 100
        await b.file("a")
        for _ in range(2 * TRIES_MAX):
            b.clock.advance(b.settings.lease_ms)
            await settled()
        assert directory.calls == TRIES_MAX


@pytest.mark.parametrize("lost", [0, 1])
async def test_a_shepherd_that_does_not_answer_for_a_copy_compares_everything_at_its_next_start(lost: int) -> None:
    """It had set the copy aside, and compared before the commit: differences would not name it. The Librarian that
    asked may be gone by then."""
    directory = Asked()
    async with bench(directory=directory) as b:
        one = await reported(b)
        directory.lost = lost
        await b.file("a")
        await settled()
        answers = [await b.report(one, number=number, boot=3) for number in (1, 2)]
        assert [answer.next_report_ms < 0 for answer in answers] == [lost > 0, False]
        assert (await b.report(one, number=1, boot=4)).next_report_ms > 0, "it has compared since"


async def test_a_shepherd_that_lacks_a_copy_compares_everything_at_its_next_start_if_not_before() -> None:
    """It compares soon. One that died before it had noted why told differences when it started, and did not miss it."""
    directory = Asked()
    async with bench(directory=directory) as b:
        one = await reported(b)
        directory.lacks = True
        await b.file("a")
        await settled()
        assert directory.calls == 1, "it has answered"
        assert (await b.report(one, number=1, boot=3)).next_report_ms < 0


async def test_nothing_is_noted_of_who_has_never_reported() -> None:
    """It compares everything at its first start. So is one that was forgotten meanwhile: a note of it would stay."""
    directory = Asked()
    async with bench(directory=directory) as b:
        await b.beat(b.shepherds[1], boot=2)
        await settled()
        directory.lost = 1
        await b.file("a")
        await settled()
        assert directory.lost == 0
        assert not (await b.stored(REBUILD_OBJECT)).value(REPORTED, b.shepherds[1])


async def test_what_a_late_rebuild_asks_of_a_shepherd_stays_when_that_does_not_answer_for_a_copy() -> None:
    directory = Asked()
    async with bench(directory=directory) as b:
        one = b.shepherds[1]
        every = put(REBUILD_OBJECT, REPORTED, one, EVERY_BOOT)
        await b.ahash.transact(LIBRARIAN, RequestKey(""), (every,))
        await b.beat(one, boot=2)
        await settled()
        directory.lost = 1
        await b.file("a")
        await settled()
        assert (await b.stored(REBUILD_OBJECT)).value(REPORTED, one) == EVERY_BOOT


async def test_who_starts_while_it_is_noted_that_it_did_not_answer_compares_everything_at_the_start_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    directory = Asked()
    async with bench(directory=directory) as b:
        one, transact = await reported(b), b.ahash.transact
        directory.lost = 1

        async def just_before(*args: Any) -> TransactOutcome:
            if all(element.object != REBUILD_OBJECT for element in args[2]):
                return await transact(*args)
            monkeypatch.setattr(b.ahash, "transact", transact)
            for number in (1, 2):
                await b.report(one, number=number, boot=3)
            return await transact(*args)

        monkeypatch.setattr(b.ahash, "transact", just_before)
        await b.file("a")
        await settled()
        await settled()
        assert (await b.report(one, number=1, boot=4)).next_report_ms < 0


@pytest.mark.parametrize("lacks", [False, True])
async def test_that_a_shepherd_lacks_a_copy_or_did_not_answer_is_noted_once_the_metadata_take_it(
    monkeypatch: pytest.MonkeyPatch, lacks: bool
) -> None:
    """No try is spent on it: the next would be the last word."""
    directory = Asked()
    async with bench(directory=directory) as b:
        one, transact, refusals = await reported(b), b.ahash.transact, 2 * TRIES_MAX
        directory.lost, directory.lacks = 0 if lacks else 100, lacks

        async def refuses(*args: Any) -> TransactOutcome:
            nonlocal refusals
            if refusals and any(element.object == REBUILD_OBJECT for element in args[2]):
                refusals -= 1
                raise CheloniaError(Kind.UNAVAILABLE, "transact")
            return await transact(*args)

        monkeypatch.setattr(b.ahash, "transact", refuses)
        await b.file("a")
        for _ in range(4 * TRIES_MAX):
            b.clock.advance(b.settings.lease_ms)
            await settled()
        assert refusals == 0
        assert (await b.report(one, number=1, boot=3)).next_report_ms < 0


async def test_of_a_shepherd_that_is_not_heard_here_all_copies_are_asked_for_few_of_them_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other Librarians get its heartbeats, or it would receive no copies: a connection is cut in one direction."""
    monkeypatch.setattr(bounds, "BULK_ELEMENTS_MAX", 10)
    directory = Asked()
    async with bench(directory=directory) as b:
        one = b.shepherds[1]
        written = [(await b.file(f"f{number}"))[1] for number in range(25)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        copies = [f"{blob}@{one}" for blob in written]
        asked = [reference for reference in directory.references if reference.endswith(f"@{one}")]
        assert asked == copies[:20], "what would be too much to remember is asked for at once"
        directory.references.clear()
        directory.calls = 0
        await b.beat(one, boot=2)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (directory.references, directory.calls) == (copies[20:], 1)
