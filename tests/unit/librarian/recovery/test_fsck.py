"""Break one invariant behind the services' back, find it, mend it, and find nothing; and faults that no command may
mend."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import pytest

from chelonia.core.caller import Call
from chelonia.core.cluster.replicas import Checksums
from chelonia.core.contents.parts import parse_upload
from chelonia.core.contents.uploads import CommitFile, CopyFile, OpenUpload, PutPart
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import (
    PENDING_OBJECT,
    ROOT,
    TRASH_OBJECT,
    BlobId,
    Guid,
    Ms,
    ObjectId,
    RequestKey,
    content_object,
    shepherd_object,
)
from chelonia.core.metadata import StoredObject
from chelonia.core.ports.ahash import Element
from chelonia.core.ports.librarian import Delete, Finding, Mended, MoveEntry, Severity, Unmake
from chelonia.core.values import replace
from chelonia.librarian.metadata.contents import content_of
from chelonia.librarian.metadata.elements import drop, erase, put
from chelonia.librarian.namespace.quotas.act import Quotas
from chelonia.librarian.namespace.trash import discard_content, due_key, forget
from chelonia.librarian.recovery import fsck, invariants
from chelonia.librarian.recovery.mends import LOST_FOUND
from chelonia.librarian.settings import LibrarianSettings
from tests.support.ahash import LIBRARIAN
from tests.support.failing import fails
from tests.support.librarian import ADMIN, BARTENDER, HOUR, JOE, Bench, bench, spliced

STRAY = "11111111-1111-4111-8111-111111111111"


@dataclass
class Stage:
    """A cluster with a collection, files in it and in the root, and an upload that is not complete."""

    bench: Bench
    data: Guid
    file: Guid
    blob: BlobId
    pending: Guid

    async def write(self, *elements: Element) -> None:
        """Change the A-Hash as no service would."""
        assert (await self.bench.ahash.transact(LIBRARIAN, RequestKey(""), elements)).applied

    async def stored(self, object_id: str) -> StoredObject:
        return await self.bench.stored(object_id)

    async def trash(self) -> None:
        """Delete the file, which is kept."""
        await self.bench.service.delete(BARTENDER, Delete(self.file))

    @property
    def blob_object(self) -> ObjectId:
        return ObjectId(f"blob:{self.blob}")

    @property
    def shepherd(self) -> ObjectId:
        return shepherd_object(self.bench.shepherds[0])

    async def location(self) -> str:
        return min((await self.stored(self.blob_object)).sections["locations"])


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with bench(settings=replace(LibrarianSettings.dev(ADMIN.dn), trash_keep_ms=HOUR)) as made:
        data = await made.collection("data")
        await made.collection("deeper", data)
        file, blob = await made.file("f", data)
        await made.file("other")
        begun = await made.service.begin_put(BARTENDER, made.begin("coming", named=True))
        yield Stage(made, data, file, blob, begun.guid)


async def findings(bench: Bench, below: str = "") -> list[Finding]:
    """All findings of fsck, page by page."""
    found: list[Finding] = []
    cursor = ""
    while True:
        page = await bench.service.fsck(ADMIN, Guid(below), cursor)
        found += page.findings
        cursor = page.cursor
        if not cursor:
            return found


async def faults(bench: Bench, below: str = "") -> list[Finding]:
    """All findings but work in hand."""
    return [finding for finding in await findings(bench, below) if finding.severity is not Severity.WORK]


async def mended(bench: Bench, found: list[Finding]) -> list[Mended]:
    return list(await bench.service.mend(ADMIN, tuple(found)))


# --- break, detect, repair, clean -----------------------------------------------------------------------------------


async def _name_dangling(s: Stage) -> None:
    await s.write(put(ObjectId(s.data), "entries", "ghost", STRAY))


async def _name_unknown(s: Stage) -> None:
    await s.write(put(ObjectId(ROOT), "entries", "second", s.file))


async def _name_unknown_collection(s: Stage) -> None:
    await s.write(put(ObjectId(ROOT), "entries", "second/", s.data))


async def _name_form(s: Stage) -> None:
    await s.write(drop(ObjectId(s.data), "entries", "f"), put(ObjectId(s.data), "entries", "f/", s.file))


async def _summary_wrong(s: Stage) -> None:
    told = (await s.stored(s.data)).sections["summaries"]["f"]
    await s.write(put(ObjectId(s.data), "summaries", "f", told.replace(" f ", " f 1", 1)))


async def _summary_stale(s: Stage) -> None:
    await s.write(put(ObjectId(s.data), "summaries", "ghost", (await s.stored(s.data)).sections["summaries"]["f"]))


async def _name_twice(s: Stage) -> None:
    file, _ = await s.bench.file("double")
    twin = await s.bench.collection("twin")
    await s.write(
        drop(ObjectId(ROOT), "entries", "twin/"),
        drop(ObjectId(twin), "parents", "0/twin"),
        put(ObjectId(ROOT), "entries", "double/", twin),
        put(ObjectId(twin), "parents", "0/double", "parent"),
    )
    assert file


async def _parent_dangling(s: Stage) -> None:
    await s.write(put(ObjectId(s.file), "parents", f"{ROOT}/gone", "parent"))


async def _root_named(s: Stage) -> None:
    await s.write(put(ObjectId(ROOT), "parents", f"{s.data}/x", "parent"))


async def _root_below(s: Stage) -> None:
    await _root_named(s)
    await s.write(put(ObjectId(s.data), "entries", "x/", ROOT))


async def _only_parent_dangling(s: Stage) -> None:
    await s.write(drop(ObjectId(s.data), "entries", "f"))


async def _parent_without_collection(s: Stage) -> None:
    await s.write(
        drop(ObjectId(s.data), "entries", "f"),
        drop(ObjectId(s.file), "parents", f"{s.data}/f"),
        put(ObjectId(s.file), "parents", f"{STRAY}/f", "parent"),
    )


async def _orphan(s: Stage) -> None:
    await s.write(drop(ObjectId(s.data), "entries", "f"), drop(ObjectId(s.file), "parents", f"{s.data}/f"))


async def _orphan_collection(s: Stage) -> None:
    await s.write(drop(ObjectId(ROOT), "entries", "data/"), drop(ObjectId(s.data), "parents", "0/data"))


async def _circle(s: Stage) -> None:
    deeper = (await s.stored(s.data)).sections["entries"]["deeper/"]
    await s.write(
        drop(ObjectId(ROOT), "entries", "data/"),
        drop(ObjectId(s.data), "parents", "0/data"),
        put(ObjectId(deeper), "entries", "data/", s.data),
        put(ObjectId(s.data), "parents", f"{deeper}/data", "parent"),
    )


async def _shelter(s: Stage) -> ObjectId:
    """Have `/lost+found`, with a file in it."""
    await _orphan(s)
    await mended(s.bench, await faults(s.bench))
    return ObjectId(LOST_FOUND)


async def _shelter_dangling(s: Stage) -> None:
    assert await _shelter(s)
    await s.write(drop(ObjectId(ROOT), "entries", "lost+found/"))


async def _shelter_orphan(s: Stage) -> None:
    shelter = await _shelter(s)
    await s.write(drop(ObjectId(ROOT), "entries", "lost+found/"), drop(shelter, "parents", "0/lost+found"))


async def _shelter_circle(s: Stage) -> None:
    shelter = await _shelter(s)
    await _shelter_orphan(s)
    await s.write(
        put(shelter, "entries", "lost+found/", shelter), put(shelter, "parents", f"{shelter}/lost+found", "parent")
    )


async def _shelter_typeless(s: Stage) -> None:
    shelter = await _shelter(s)
    facts = [*((("entry", prop)) for prop in ("type", "GUID", "owner")), ("states", "closed")]
    await s.write(*(drop(shelter, section, prop) for section, prop in facts))


async def _reservation_dangling(s: Stage) -> None:
    await s.write(put(ObjectId(s.data), "pending", "ghost", f"{STRAY} {s.bench.clock.now_ms() + HOUR}"))


async def _unreserved(s: Stage) -> None:
    await s.write(drop(ObjectId(ROOT), "pending", "coming"))


async def _wanted_differs(s: Stage) -> None:
    await s.write(put(s.blob_object, "blob", "wanted", "1"))


async def _blob_unowned(s: Stage) -> None:
    await s.write(drop(ObjectId(s.file), "blobs", "00000000"))


async def _blob_without_bytes_unowned(s: Stage) -> None:
    await s.write(put(ObjectId("blob:" + STRAY), "blob", "file", s.file))


async def _sheltered_blob_of_another(s: Stage) -> None:
    await _blob_unowned(s)
    await mended(s.bench, await faults(s.bench))
    await s.write(put(s.blob_object, "blob", "file", STRAY))


async def _location_unrecorded(s: Stage) -> None:
    await s.write(drop(s.shepherd, "file", (await s.location()).split(" ")[1]))


async def _claim_missing(s: Stage) -> None:
    await s.write(put(s.blob_object, "locations", await s.location(), "thirdwheel"))


async def _claim_stray(s: Stage) -> None:
    await s.write(put(s.blob_object, "claims", await s.location(), "5"))


async def _claim_without_location(s: Stage) -> None:
    await s.write(put(s.blob_object, "claims", f"https://s9/Shepherd {STRAY}", "5"))


async def _record_orphan(s: Stage) -> None:
    await s.write(drop(s.blob_object, "locations", await s.location()))


async def _record_of_no_blob(s: Stage) -> None:
    await s.write(put(s.shepherd, "file", STRAY, STRAY))


async def _erase_listed(s: Stage) -> None:
    await s.write(put(s.shepherd, "erase", f"0000000000001 {(await s.location()).split(' ')[1]}", f"{s.blob} deleted"))


async def _erase_other(s: Stage) -> None:
    await s.write(put(s.shepherd, "file", STRAY, STRAY), put(s.shepherd, "erase", f"0000000000001 {STRAY}", "b x"))


async def _due_missing(s: Stage) -> None:
    [(key, _)] = (await s.bench.ahash.scan(LIBRARIAN, PENDING_OBJECT, "due")).items
    await s.write(drop(PENDING_OBJECT, "due", key))


async def _trash_due_missing(s: Stage) -> None:
    await s.trash()
    [(key, _)] = (await s.bench.ahash.scan(LIBRARIAN, TRASH_OBJECT, "due")).items
    await s.write(drop(TRASH_OBJECT, "due", key))


async def _due_dangling(s: Stage) -> None:
    await s.write(
        put(TRASH_OBJECT, "due", f"9999999999999 {s.file}", "-"),
        put(TRASH_OBJECT, "formerly", f"0/f/0000000000001 {STRAY}", STRAY),
        put(PENDING_OBJECT, "due", f"9999999999999 {STRAY}", "-"),
    )


async def _name_of_the_trashed(s: Stage) -> None:
    await s.trash()
    await s.write(put(ObjectId(s.data), "entries", "f", s.file))


async def _content(s: Stage) -> ObjectId:
    """A file of three extents; its content."""
    guid = await spliced(s.bench, "pieces", Guid(""), 0, 7, 20)
    assert await faults(s.bench) == []
    return content_object(content_of(await s.stored(guid)))


async def _piece(s: Stage, content: ObjectId) -> str:
    return min((await s.stored(content)).sections["named"])


async def _content_unowned(s: Stage) -> None:
    content = await _content(s)
    file = (await s.stored(content)).value("content", "file")
    await s.write(drop(ObjectId(file), "content", "id"), drop(ObjectId(file), "content", "splices"))


async def _content_differs(s: Stage) -> None:
    content = await _content(s)
    await s.write(put(ObjectId((await s.stored(content)).value("content", "file")), "states", "size", "5"))


async def _content_not_due(s: Stage) -> None:
    content = await _content(s)
    guid = Guid((await s.stored(content)).value("content", "file"))
    await s.bench.service.delete(BARTENDER, Delete(guid))
    trashed = await s.stored(guid)
    await s.write(*discard_content(trashed, Ms(5)), *forget(trashed), erase(ObjectId(guid)))
    assert await faults(s.bench) == []
    await s.write(drop(PENDING_OBJECT, "due", due_key(5, content)))


async def _content_not_discarded(s: Stage) -> None:
    await s.write(put(PENDING_OBJECT, "due", due_key(HOUR * 10**6, await _content(s)), s.file))


async def _piece_wants_less(s: Stage) -> None:
    await s.write(put(ObjectId(f"blob:{await _piece(s, await _content(s))}"), "blob", "wanted", "1"))


async def _upload(s: Stage) -> ObjectId:
    """An open upload in parts, with one part."""
    begin = s.bench.begin("up", piece=True)
    upload = await s.bench.service.open_upload(BARTENDER, OpenUpload(replace(begin, piece=False), ROOT, "up"))
    begun = await s.bench.service.begin_put(BARTENDER, begin)
    held = (s.bench.receipt(begun.blob, s.bench.shepherds[0]), s.bench.receipt(begun.blob, s.bench.shepherds[1]))
    held = tuple(replace(each, checksums=Checksums("ab" * 32, "cd" * 16)) for each in held)
    await s.bench.service.put_part(BARTENDER, PutPart(upload, 1, CommitFile(begin, begun, held)))
    assert await faults(s.bench) == []
    return content_object(parse_upload(upload)[1])


async def _upload_unlisted(s: Stage) -> None:
    content = await s.stored(await _upload(s))
    await s.write(drop(ObjectId(ROOT), "uploads", content.value("content", "listed")))


async def _upload_dangling(s: Stage) -> None:
    await s.write(put(ObjectId(ROOT), "uploads", f"key\x011700000000000.{STRAY}", "-"))


async def _upload_not_due(s: Stage) -> None:
    content = await s.stored(await _upload(s))
    await s.write(drop(PENDING_OBJECT, "due", due_key(int(content.value("content", "due_ms")), content.id)))


async def _part_unnamed(s: Stage) -> None:
    content = await _upload(s)
    page = await s.bench.ahash.scan(LIBRARIAN, content, "named", "", 1)
    await s.write(drop(content, "named", page.items[0][0]))


async def _piece_unnamed(s: Stage) -> None:
    content = await _content(s)
    first = min((await s.stored(content)).sections["extents"])
    blob = (await s.stored(content)).value("extents", first).split(" ")[0]
    await s.write(drop(content, "extents", first), drop(content, "named", blob))


async def _copied(s: Stage) -> Guid:
    """A copy by reference of the file."""
    guid = await s.bench.service.copy_file(BARTENDER, CopyFile(s.file, s.bench.begin("copy")))
    assert await faults(s.bench) == []
    return guid


async def _owner_stray(s: Stage) -> None:
    await _copied(s)
    await s.write(put(s.blob_object, "owners", STRAY, "file"))


async def _content_stray(s: Stage) -> None:
    await _copied(s)
    await s.write(put(s.blob_object, "owners", STRAY, "content"))


async def _owner_missing(s: Stage) -> None:
    copy = await _copied(s)
    await s.write(drop(s.blob_object, "owners", copy), drop(s.blob_object, "owners", s.file))


async def _content_missing_among(s: Stage) -> None:
    content = await _content(s)
    file = Guid((await s.stored(content)).value("content", "file"))
    copy = await s.bench.service.copy_file(BARTENDER, CopyFile(file, s.bench.begin("copy")))
    assert await faults(s.bench) == []
    own = (await s.stored(ObjectId(copy))).value("content", "id")
    blob = ObjectId(f"blob:{await _piece(s, ObjectId(f'content:{own}'))}")
    await s.write(drop(blob, "owners", own))


async def _no_owner(s: Stage) -> None:
    copy = await _copied(s)
    await s.write(drop(s.blob_object, "owners", copy), drop(s.blob_object, "owners", s.file))
    await s.write(put(s.blob_object, "owners", STRAY, "file"), drop(ObjectId(copy), "blobs", "00000000"))
    await s.write(drop(ObjectId(s.file), "blobs", "00000000"))


async def _copy_wants_more(s: Stage) -> None:
    await s.write(put(ObjectId(await _copied(s)), "states", "neededReplicas", "3"))


BREAKS: dict[str, tuple[Callable[[Stage], Awaitable[None]], set[str]]] = {
    "a name leads to nothing": (_name_dangling, {invariants.NAME_DANGLING}),
    "a file does not know its name": (_name_unknown, {invariants.NAME_UNKNOWN}),
    "a collection does not know its second name": (_name_unknown_collection, {invariants.NAME_UNKNOWN}),
    "a listing tells another size": (_summary_wrong, {invariants.SUMMARY_WRONG}),
    "a listing tells of what is gone": (_summary_stale, {invariants.SUMMARY_WRONG}),
    "a file is stored as a collection": (_name_form, {invariants.NAME_FORM, invariants.PARENT_DANGLING}),
    "a name is taken twice": (_name_twice, {invariants.NAME_TWICE}),
    "a parent does not know one of two names": (_parent_dangling, {invariants.PARENT_DANGLING}),
    "a parent does not know the only name": (_only_parent_dangling, {invariants.PARENT_DANGLING}),
    "the root is said to have a name": (_root_named, {invariants.PARENT_DANGLING}),
    "the root has a name": (_root_below, {invariants.PARENT_DANGLING}),
    "the parent is gone": (_parent_without_collection, {invariants.PARENT_DANGLING}),
    "a file has no name": (_orphan, {invariants.ORPHAN}),
    "a collection has no name": (_orphan_collection, {invariants.ORPHAN, invariants.UNREACHABLE}),
    "collections are in a circle": (_circle, {invariants.UNREACHABLE}),
    "a reservation is nobody's": (_reservation_dangling, {invariants.RESERVATION_DANGLING}),
    "an upload has no reservation": (_unreserved, {invariants.UNRESERVED}),
    "file and blob want different numbers": (_wanted_differs, {invariants.WANTED_DIFFERS}),
    "no file names a blob": (_blob_unowned, {invariants.BLOB_UNOWNED}),
    "a blob says another file than the one in /lost+found": (
        _sheltered_blob_of_another, {invariants.BLOB_UNOWNED, invariants.OWNERS_WRONG}
    ),
    "a blob is said to be a file's that does not name it": (_owner_stray, {invariants.OWNERS_WRONG}),
    "a blob is said to be a content's that does not name it": (_content_stray, {invariants.OWNERS_WRONG}),
    "a file has a blob that is another's alone": (_owner_missing, {invariants.OWNERS_WRONG}),
    "a content has blobs that are another's alone": (_content_missing_among, {invariants.OWNERS_WRONG}),
    "none of the owners of a blob names it": (_no_owner, {invariants.BLOB_UNOWNED}),
    "a copy wants more than its blob": (_copy_wants_more, {invariants.WANTED_DIFFERS}),
    "no file names a blob that has no bytes": (
        _blob_without_bytes_unowned, {invariants.BLOB_UNOWNED, invariants.BLOB_LOST}
    ),
    "a location is not recorded": (_location_unrecorded, {invariants.LOCATION_UNRECORDED}),
    "a claim is missing": (_claim_missing, {invariants.CLAIM_MISSING}),
    "a claim is too much": (_claim_stray, {invariants.CLAIM_STRAY}),
    "a claim is for no location": (_claim_without_location, {invariants.CLAIM_STRAY}),
    "a record is no location": (_record_orphan, {invariants.RECORD_ORPHAN}),
    "a record is of no blob": (_record_of_no_blob, {invariants.RECORD_ORPHAN}),
    "what is to be erased is listed": (_erase_listed, {invariants.ERASE_LISTED}),
    "the name of lost+found is gone": (_shelter_dangling, {invariants.PARENT_DANGLING}),
    "no name leads to lost+found": (_shelter_orphan, {invariants.ORPHAN}),
    "lost+found is in itself": (_shelter_circle, {invariants.UNREACHABLE}),
    "lost+found has no type": (
        _shelter_typeless, {invariants.TYPELESS, invariants.NAME_DANGLING, invariants.PARENT_DANGLING}
    ),
    "what is to be erased is another's": (_erase_other, {invariants.ERASE_OTHER}),
    "nothing says when an upload expires": (_due_missing, {invariants.DUE_MISSING}),
    "nothing says when a deleted file goes": (_trash_due_missing, {invariants.DUE_MISSING}),
    "an index leads to what is not kept": (_due_dangling, {invariants.DUE_DANGLING}),
    "no file names a content": (_content_unowned, {invariants.CONTENT_UNOWNED}),
    "a file has another size than its content": (_content_differs, {invariants.CONTENT_DIFFERS}),
    "nothing says that a content is discarded": (_content_not_due, {invariants.DUE_MISSING}),
    "an index leads to a content that is somebody's": (_content_not_discarded, {invariants.DUE_DANGLING}),
    "a piece wants less than its file": (_piece_wants_less, {invariants.WANTED_DIFFERS}),
    "a content does not name its piece": (_piece_unnamed, {invariants.BLOB_UNOWNED}),
    "an upload is not listed": (_upload_unlisted, {invariants.UPLOAD_UNLISTED}),
    "what is listed as an upload is none": (_upload_dangling, {invariants.UPLOAD_DANGLING}),
    "nothing says when an upload goes": (_upload_not_due, {invariants.DUE_MISSING}),
    "a name leads to a deleted file": (_name_of_the_trashed, {invariants.NAME_DANGLING}),
}  # fmt: skip


@pytest.mark.parametrize("what", BREAKS)
async def test_broken_found_mended_clean(stage: Stage, what: str) -> None:
    damage, rules = BREAKS[what]
    assert await faults(stage.bench) == []
    await damage(stage)
    found = await faults(stage.bench)
    summary = {invariants.SUMMARY_WRONG}  # broken by most of what breaks a file
    assert {finding.rule for finding in found} - summary == rules - summary
    assert {finding.rule for finding in found} >= rules
    for _ in range(4):  # mending one may uncover or settle the next
        await mended(stage.bench, [finding for finding in found if finding.mendable])
        found = await faults(stage.bench)
    assert found == []
    assert not (await stage.stored(ROOT)).sections.get("parents"), "a walk down would come to it again"


# --- what is left to a person ---------------------------------------------------------------------------------------


async def _blob_missing(s: Stage) -> None:
    await s.write(erase(s.blob_object))


async def _blob_lost(s: Stage) -> None:
    for location in (await s.stored(s.blob_object)).sections["locations"]:
        await s.write(put(s.blob_object, "locations", location, "invalid"))


async def _never_copied(s: Stage) -> None:
    """Every copy is damaged, and repair has tried in vain to make others."""
    await _blob_lost(s)
    for state in ("stalled", "creating"):
        await s.write(put(s.blob_object, "locations", f"{s.bench.shepherds[0]} {state}", state))


async def _typeless(s: Stage) -> None:
    await s.write(drop(ObjectId(s.file), "entry", "type"))


async def _malformed(s: Stage) -> None:
    await s.write(put(s.blob_object, "locations", await s.location(), "marvellous"))


async def _strange(s: Stage) -> None:
    await s.write(put(ObjectId("what is this"), "s", "p", "v"))


async def _claimed_by_two(s: Stage) -> None:
    await s.write(put(s.shepherd, "file", (await s.location()).split(" ")[1], STRAY))


async def _content_missing(s: Stage) -> None:
    await s.write(put(ObjectId(s.file), "content", "id", STRAY))


async def _extents_overlap(s: Stage) -> None:
    content = await _content(s)
    blob = await _piece(s, content)
    await s.write(put(content, "extents", f"{15:016x}", f"{blob} 0 7"))


async def _piece_missing(s: Stage) -> None:
    await s.write(erase(ObjectId(f"blob:{await _piece(s, await _content(s))}")))


async def _named_less(s: Stage) -> None:
    content = await _content(s)
    await s.write(put(content, "named", await _piece(s, content), "0"))


LEFT = {
    "a content is gone": (_content_missing, invariants.CONTENT_MISSING),
    "extents overlap": (_extents_overlap, invariants.EXTENT_WRONG),
    "a piece is gone": (_piece_missing, invariants.BLOB_MISSING),
    "a part is not counted": (_part_unnamed, invariants.PART_WRONG),
    "a piece is said not to be named": (_named_less, invariants.NAMED_WRONG),
    "a blob is gone": (_blob_missing, invariants.BLOB_MISSING),
    "no copy can be good": (_blob_lost, invariants.BLOB_LOST),
    "tries of repair are no copies": (_never_copied, invariants.BLOB_LOST),
    "an entry has no type": (_typeless, invariants.TYPELESS),
    "a state does not exist": (_malformed, invariants.MALFORMED),
    "an object is nothing": (_strange, invariants.STRANGE),
    "two blobs claim one replica": (_claimed_by_two, invariants.LOCATION_UNRECORDED),
}


@pytest.mark.parametrize("what", LEFT)
async def test_what_needs_a_person_is_found_and_left(stage: Stage, what: str) -> None:
    damage, rule = LEFT[what]
    await damage(stage)
    [found] = [finding for finding in await faults(stage.bench) if finding.rule == rule]
    assert not found.mendable
    before = await stage.bench.everything()
    [answer] = await mended(stage.bench, [found])
    assert not answer.done
    assert "person" in answer.what
    assert await stage.bench.everything() == before


def test_every_rule_is_broken_by_a_test() -> None:
    broken = {rule for _, rules in BREAKS.values() for rule in rules} | {rule for _, rule in LEFT.values()}
    work = {rule for rule, severity in invariants.SEVERITY.items() if severity is Severity.WORK}
    assert broken | work == set(invariants.SEVERITY)


# --- what a repair may not do ---------------------------------------------------------------------------------------


async def test_nobody_takes_all_names_of_lost_and_found_away(stage: Stage) -> None:
    """A user with the right to write in the root could take a hundred; then each repair that needed it broke off."""
    for name in ("lost+found", *(f"lost+found.{number}" for number in range(1, 100))):
        await stage.bench.collection(name)
    await _orphan(stage)
    await mended(stage.bench, await faults(stage.bench))
    (name,) = (name for name, guid in (await stage.bench.names()).items() if guid == LOST_FOUND)
    assert name.startswith("lost+found.")


async def test_lost_and_found_belongs_to_the_owner_of_the_root(stage: Stage) -> None:
    await stage.bench.collection("lost+found")
    await _orphan(stage)
    await mended(stage.bench, await faults(stage.bench))
    shelter = await stage.stored(LOST_FOUND)
    assert shelter.sections["entry"]["owner"] == ADMIN.dn
    assert "policy" not in shelter.sections
    assert shelter.sections["entries"] == {stage.file: stage.file}
    assert (await stage.bench.names())["lost+found.1"] == LOST_FOUND
    assert (await stage.stored(stage.file)).sections["entry"]["owner"] == JOE


@pytest.mark.parametrize("damage", [_blob_unowned, _orphan])
async def test_lost_and_found_is_whole_from_its_beginning(
    stage: Stage, damage: Callable[[Stage], Awaitable[None]]
) -> None:
    """It had no name record of its own when it was made for a file: it was a lost entry like any other."""
    await damage(stage)
    await mended(stage.bench, await faults(stage.bench))
    assert (await stage.stored(LOST_FOUND)).sections["parents"] == {f"{ROOT}/lost+found": "parent"}
    assert await faults(stage.bench) == []


async def test_bytes_without_a_file_say_what_they_were(stage: Stage) -> None:
    await _blob_unowned(stage)
    await mended(stage.bench, await faults(stage.bench))
    made = await stage.stored(stage.blob)
    assert made.sections["metadata"] == {"was": f"{stage.data}/f", "wasOwnedBy": JOE}
    assert made.sections["states"]["size"] == "7"
    assert (await stage.stored(stage.blob_object)).value("blob", "file") == stage.blob


async def test_a_file_in_lost_and_found_keeps_its_bytes_when_their_blob_says_another(stage: Stage) -> None:
    await _sheltered_blob_of_another(stage)
    before = await stage.stored(stage.blob)
    await mended(stage.bench, await faults(stage.bench))
    assert await faults(stage.bench) == []
    assert (await stage.stored(stage.blob_object)).sections["owners"] == {stage.blob: "file"}
    assert await stage.stored(stage.blob) == before


async def test_a_record_comes_back_unproven_and_no_erasure_is_ever_ordered(stage: Stage) -> None:
    location = await stage.location()
    await _record_orphan(stage)
    await mended(stage.bench, await faults(stage.bench))
    assert (await stage.stored(stage.blob_object)).value("locations", location) == "stalled"
    assert all(not kept for key, kept in (await stage.bench.everything()).items() if key.endswith("erase"))


async def test_the_larger_number_of_copies_counts(stage: Stage) -> None:
    await _wanted_differs(stage)
    await mended(stage.bench, await faults(stage.bench))
    assert (await stage.stored(stage.blob_object)).value("blob", "wanted") == "2"


async def test_what_is_right_meanwhile_is_left_alone(stage: Stage) -> None:
    await _only_parent_dangling(stage)
    found = [finding for finding in await faults(stage.bench) if finding.rule == invariants.PARENT_DANGLING]
    await stage.write(put(ObjectId(stage.data), "entries", "f", stage.file))
    assert await mended(stage.bench, found) == [Mended(False, "it is not so any more")]


async def test_a_finding_made_up_is_not_mended(stage: Stage) -> None:
    forged = Finding(ObjectId(stage.data), invariants.NAME_DANGLING, "f", Severity.DISAGREEMENT, "", True)
    assert not (await mended(stage.bench, [forged]))[0].done
    assert (await stage.bench.names(stage.data))["f"] == stage.file


async def test_each_finding_of_a_keyed_call_is_mended(stage: Stage) -> None:
    """A request key answers for one transact; a repair of several findings makes several."""
    for name in ("ghost", "phantom"):
        await stage.write(put(ObjectId(stage.data), "entries", name, STRAY))
    answers = await stage.bench.service.mend(ADMIN.keyed(RequestKey("k1")), tuple(await faults(stage.bench)))
    assert [answer.done for answer in answers] == [True, True]
    assert await faults(stage.bench) == []


async def test_a_repair_that_is_repeated_has_quotas_counted_all_the_same(
    monkeypatch: pytest.MonkeyPatch, stage: Stage
) -> None:
    """The first try broke off between the repair and the order to count. The next one found nothing to repair, and
    counted nothing: quotas were wrong from then on."""
    counts, recount = list[Call](), Quotas.recount

    async def troubled(quotas: Quotas, call: Call) -> None:
        counts.append(call)
        if len(counts) == 1:
            raise CheloniaError(Kind.UNAVAILABLE, "recount")
        await recount(quotas, call)

    await _name_dangling(stage)
    found = await faults(stage.bench)
    monkeypatch.setattr(Quotas, "recount", troubled)
    with fails(Kind.UNAVAILABLE):
        await mended(stage.bench, found)
    assert await mended(stage.bench, found) == [Mended(False, "it is not so any more")]
    assert len(counts) == 2


# --- a live cluster -------------------------------------------------------------------------------------------------


async def test_what_is_seen_once_is_not_reported(monkeypatch: pytest.MonkeyPatch, stage: Stage) -> None:
    """Between the reads of one look a file is moved: the second look sees it whole."""
    looks = 0
    rules = invariants.object_rules

    def moving(look: invariants.RuleContext, obj: StoredObject) -> tuple[Finding, ...]:
        nonlocal looks
        looks += obj.id == stage.file
        torn = Finding(obj.id, invariants.ORPHAN, "", Severity.DISAGREEMENT, "torn")
        return (torn,) if obj.id == stage.file and looks == 1 else rules(look, obj)

    monkeypatch.setattr(invariants, "object_rules", moving)
    assert await faults(stage.bench) == []


async def test_pieces_are_small_and_cover_everything(monkeypatch: pytest.MonkeyPatch, stage: Stage) -> None:
    monkeypatch.setattr(fsck, "OBJECTS_MIN", 1)
    monkeypatch.setattr(fsck, "PAGE", 2)
    monkeypatch.setattr(fsck, "RECORDS_PER_OUTBOX_PASS", 1)
    for number in range(5):
        await stage.bench.file(f"more{number}", stage.data)
    await _record_of_no_blob(stage)
    await _name_dangling(stage)
    await _orphan(stage)
    rules = {finding.rule for finding in await faults(stage.bench)} - {invariants.SUMMARY_WRONG}
    assert sorted(rules) == [invariants.NAME_DANGLING, invariants.ORPHAN, invariants.RECORD_ORPHAN]


async def test_below_a_collection_only_what_is_there_is_checked(monkeypatch: pytest.MonkeyPatch, stage: Stage) -> None:
    monkeypatch.setattr(fsck, "OBJECTS_MIN", 1)
    monkeypatch.setattr(fsck, "PAGE", 2)
    deeper = Guid((await stage.stored(stage.data)).sections["entries"]["deeper/"])
    _, blob = await stage.bench.file("low", deeper)
    await stage.write(put(ObjectId(f"blob:{blob}"), "blob", "wanted", "1"))
    await stage.write(put(ObjectId(ROOT), "entries", "ghost", STRAY))
    assert [finding.rule for finding in await faults(stage.bench, stage.data)] == [invariants.WANTED_DIFFERS]
    assert [finding.rule for finding in await faults(stage.bench, deeper)] == [invariants.WANTED_DIFFERS]
    assert await faults(stage.bench, stage.file) == []
    with fails(Kind.NOT_FOUND):
        await faults(stage.bench, STRAY)


async def test_below_a_collection_all_that_it_lists_is_checked(monkeypatch: pytest.MonkeyPatch, stage: Stage) -> None:
    monkeypatch.setattr(fsck, "PAGE", 2)
    obj = ObjectId(stage.data)
    reserved = [put(obj, "pending", f"up{number}", f"{STRAY} 1700000000000") for number in range(3)]
    await stage.write(put(obj, "uploads", f"key\x011700000000000.{STRAY}", "-"), *reserved)
    found = Counter(finding.rule for finding in await faults(stage.bench, stage.data))
    assert found == {invariants.UPLOAD_DANGLING: 1, invariants.RESERVATION_DANGLING: 3}


async def test_a_circle_below_ends(stage: Stage) -> None:
    await _circle(stage)
    assert [finding.rule for finding in await faults(stage.bench, stage.data)] != []


async def test_work_in_hand_is_no_fault(stage: Stage) -> None:
    await stage.write(put(s := stage.blob_object, "locations", await stage.location(), "invalid"))
    stage.bench.clock.advance(2 * HOUR)
    await stage.bench.beat_all()
    found = await findings(stage.bench)
    assert {(f.rule, f.severity, f.object) for f in found} == {
        (invariants.COPIES, Severity.WORK, s), (invariants.EXPIRED, Severity.WORK, ObjectId(ROOT)),
        (invariants.EXPIRED, Severity.WORK, PENDING_OBJECT),
    }  # fmt: skip


async def test_a_cursor_of_somebody_else_is_refused(stage: Stage) -> None:
    for cursor in ("x", "[]", '["a","entry","",[]]', '["a","entries","",[["x"]]]'):
        with pytest.raises(CheloniaError, match="start again"):
            await stage.bench.service.fsck(ADMIN, Guid(""), cursor)


async def test_only_administrators_may(stage: Stage) -> None:
    with fails(Kind.DENIED):
        await stage.bench.service.fsck(BARTENDER, Guid(""), "")


async def test_what_has_no_name_is_sheltered_though_the_shelter_was_removed(stage: Stage) -> None:
    """An administrator removed it when it was empty: it waits in the trash."""
    for removed in (True, False):
        await _orphan(stage)
        assert all(answer.done for answer in await mended(stage.bench, await faults(stage.bench)))
        assert await stage.bench.names(Guid(LOST_FOUND)) == {stage.file: stage.file}
        if removed:
            back = MoveEntry(Guid(stage.file), LOST_FOUND, stage.file, stage.data, "f", keep=False)
            await stage.bench.service.move(BARTENDER, back)
            await stage.bench.service.unmake(BARTENDER, Unmake(LOST_FOUND))
    assert await faults(stage.bench) == []
