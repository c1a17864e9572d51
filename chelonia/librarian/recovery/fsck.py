"""fsck on a live cluster: checks the invariants piece by piece while users go on, and repairs findings.

`invariants` and `mends` decide; this shell reads. Memory is bounded by the piece, whatever the size of the namespace:
only the cursor outlives a piece, and the caller keeps it. Several reads are several moments, so fsck reports a finding
only when repeated looks, all of it read anew, still show it. A repair looks again, and applies only on its conditions.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, TypeVar

from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.contents.summaries import SUMMARISED
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import (
    BLOB_PREFIX,
    CONTENT_PREFIX,
    PENDING_OBJECT,
    SHEPHERD_PREFIX,
    TRASH_OBJECT,
    BlobId,
    Guid,
    ObjectId,
    RequestKey,
    ServiceId,
    blob_object,
    content_object,
    is_guid,
)
from chelonia.core.metadata import TYPE_COLLECTION, TYPE_FILE, WIDE_SECTIONS, Filter, Needed, StoredObject
from chelonia.core.ports.ahash import Element, Walk
from chelonia.core.ports.librarian import Finding, FsckPage, Mended
from chelonia.core.values import replace
from chelonia.librarian.metadata.contents import content_of, last_byte_key
from chelonia.librarian.metadata.elements import check, outbox_reference, version
from chelonia.librarian.metadata.records import PlannedTransact, Records
from chelonia.librarian.namespace.names import entry_id
from chelonia.librarian.namespace.summaries import dropped, missed, touched
from chelonia.librarian.namespace.tree import blobs_of, type_of
from chelonia.librarian.recovery import invariants
from chelonia.librarian.recovery.invariants import Item
from chelonia.librarian.recovery.mends import Mend, mend
from chelonia.librarian.world import World

T = TypeVar("T")
_LOG = logging.getLogger(__name__)

NARROW: Final[Filter] = (
    *map(Needed, ("entry", "parents", "blobs", "states", "put", "trashed")),
    *map(Needed, ("blob", "owners", "locations", "claims")),
    Needed("content"),
)
"""Sections of an object itself that the rules read: an entry, a blob, a content."""
OBJECTS_MIN: Final = 1000
"""Objects or names that one piece looks at, before at most one further page."""
PAGE: Final = 500
"""Objects, names or records read at once."""
RECORDS_PER_OUTBOX_PASS: Final = 20
"""Pages of a Shepherd's records compared with its outbox together: the outbox has no look-up by reference."""
LOOKS: Final = 3
"""Looks that must all show a finding before it is reported."""
_OWN: Final[Filter] = (Needed("entry"), Needed("blobs"), Needed("content"))
"""Sections of an entry that lead to its bytes."""
_NO_SECTION: Final[Filter] = (Needed("-"),)


class LiveLook:
    """A `RuleContext` on a live cluster: it fetches the records that a rule misses, and runs the rule again.

    Rules are pure, so a repetition costs nothing but time; each round fetches everything that the last one missed.
    """

    def __init__(self, records: Records, call: Call) -> None:
        self._records = records
        self._call = call
        self._sections: dict[tuple[ObjectId, str], Mapping[str, str]] = {}
        self._values: dict[tuple[ObjectId, str, str], str] = {}
        self._absent_sections: dict[tuple[ObjectId, str], None] = {}
        self._absent_values: dict[tuple[ObjectId, str, str], None] = {}

    def section(self, object_id: ObjectId, section: str) -> Mapping[str, str]:
        key = (object_id, section)
        if object_id and key not in self._sections:
            self._absent_sections[key] = None
        return self._sections.get(key, {})

    def value(self, object_id: ObjectId, section: str, prop: str) -> str:
        key = (object_id, section, prop)
        if object_id and prop and key not in self._values:
            self._absent_values[key] = None
        return self._values.get(key, "")

    async def settle(self, rules: Callable[[], T]) -> T:
        """Return the result of `rules` once they find everything that they ask for."""
        while True:
            result = rules()
            if not self._absent_sections and not self._absent_values:
                return result
            await self._fetch()

    async def _fetch(self) -> None:
        sections, self._absent_sections = list(self._absent_sections), {}
        values, self._absent_values = list(self._absent_values), {}
        for section in dict.fromkeys(section for _, section in sections):
            ids = [object_id for object_id, other in sections if other == section]
            for obj in await self._records.get(self._call, ids, (Needed(section),)):
                self._sections[(obj.id, section)] = obj.sections.get(section, {})
        for start in range(0, len(values), bounds.BULK_ELEMENTS_MAX):
            batch = values[start : start + bounds.BULK_ELEMENTS_MAX]
            walks = tuple(Walk(object_id, ((prop,),), section) for object_id, section, prop in batch)
            for key, found in zip(batch, await self._records.walk(self._call, walks, _NO_SECTION), strict=True):
                self._values[key] = found.taken[0].object if found.taken else ""


async def names_now(records: Records, call: Call, blobs: Sequence[BlobId]) -> list[str]:
    """Return a present Logical Name of each blob's file; "" for one without any."""
    look = LiveLook(records, call)

    def name(blob: BlobId) -> str:
        return invariants.path_of_blob(look, blob)

    return await look.settle(lambda: [name(blob) for blob in blobs])


@dataclass(frozen=True, slots=True)
class Cursor:
    """The position of fsck: after an object, and (with `section`) inside one of its wide sections, after `at`.

    Below a collection: `stack` holds the collections entered, each with the name after which it goes on.
    """

    after: str = ""
    section: str = ""
    at: str = ""
    stack: tuple[tuple[str, str], ...] = ()

    def text(self) -> str:
        """Return the text that callers keep."""
        return json.dumps([self.after, self.section, self.at, self.stack])


def parse_cursor(text: str) -> Cursor:
    """Read a cursor that a caller has kept. Raises: BAD_REQUEST."""
    try:
        after, section, at, stack = json.loads(text)
        pairs = tuple((str(guid), str(name)) for guid, name in stack)
    except (ValueError, TypeError) as error:
        raise CheloniaError(Kind.BAD_REQUEST, "fsck", text[:80], "not a cursor of fsck: start again") from error
    if section not in ("", *WIDE_SECTIONS) or len(pairs) > bounds.LN_DEPTH_MAX:
        raise CheloniaError(Kind.BAD_REQUEST, "fsck", text[:80], "not a cursor of fsck: start again")
    return Cursor(str(after), section, str(at), pairs)


@dataclass(slots=True)
class Piece:
    """The results of a piece so far; `cursor` None at the end. `looked`: objects, names and records."""

    cursor: Cursor | None
    examined: int = 0
    looked: int = 0
    findings: list[Finding] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SectionPage:
    """A look at a page of a wide section: the position after it ("" at the end), its length, its findings."""

    after: str
    count: int
    findings: tuple[Finding, ...]


class Fsck:
    """Checks and repairs on behalf of administrators."""

    def __init__(self, records: Records, world: World, present: Callable[[ServiceId], bool]) -> None:
        self._records = records
        self._world = world
        self._present = present

    # --- checking ---------------------------------------------------------------------------------------------------

    async def check(self, call: Call, below: Guid, cursor: str) -> FsckPage:
        """Check a piece of everything, or of what is below an entry."""
        piece = Piece(parse_cursor(cursor) if cursor else Cursor())
        if below and not cursor:
            await self._entry(call, below, piece)
        step = self._step_below if below else self._step
        while piece.cursor is not None and piece.looked < OBJECTS_MIN:
            await step(call, piece, piece.cursor)
        findings = [await self._with_cure(call, finding) for finding in piece.findings]
        objects = 0 if below else await self._records.count(call)
        return FsckPage(tuple(findings), piece.cursor.text() if piece.cursor else "", piece.examined, objects)

    async def of(self, call: Call, ids: Sequence[ObjectId]) -> list[Finding]:
        """Return the findings about some objects themselves."""
        return [await self._with_cure(call, each) for each in await self._confirmed(lambda: self._objects(call, ids))]

    async def _with_cure(self, call: Call, finding: Finding) -> Finding:
        look = LiveLook(self._records, call)
        return replace(finding, mendable=await look.settle(lambda: self._mend(look, finding)) is not None)

    def _mend(self, look: LiveLook, finding: Finding) -> Mend | None:
        return mend(finding, look, self._world.clock.now_ms())

    async def _confirmed(self, look: Callable[[], Awaitable[Iterable[Finding]]]) -> list[Finding]:
        """The findings that all of several looks show."""
        found = list(await look())
        for _ in range(LOOKS - 1):
            if found:
                again = {(finding.object, finding.rule, finding.subject) for finding in await look()}
                found = [finding for finding in found if (finding.object, finding.rule, finding.subject) in again]
        return found

    # --- everything -------------------------------------------------------------------------------------------------

    async def _step(self, call: Call, piece: Piece, cursor: Cursor) -> None:
        if cursor.section:
            await self._wide_page(call, piece, cursor)
            return
        page = await self._records.objects(call, cursor.after, PAGE)
        wide, ids = "", list(page.ids)
        kinds = await self._records.get(call, ids, (Needed("entry", "type"),))
        for number, obj in enumerate(kinds):
            wide = _first_section(obj)
            if wide:
                ids = ids[: number + 1]
                break
        piece.findings += await self._confirmed(lambda: self._objects(call, ids))
        piece.examined += len(ids)
        piece.looked += len(ids)
        if wide:
            piece.cursor = Cursor(ids[-1], wide)
        else:
            piece.cursor = Cursor(page.after) if page.after else None

    async def _objects(self, call: Call, ids: Sequence[ObjectId]) -> list[Finding]:
        """Findings about objects themselves, those that still exist."""
        look = LiveLook(self._records, call)
        found = [obj for obj in await self._records.get(call, ids, NARROW) if obj.exists]
        return await look.settle(lambda: [finding for obj in found for finding in self._rules(look, obj)])

    def _rules(self, look: LiveLook, obj: StoredObject) -> Iterator[Finding]:
        """Findings about one object, those included that healing has still to work on."""
        yield from invariants.object_rules(look, obj)
        yield from invariants.object_work(obj)
        if obj.id.startswith(BLOB_PREFIX):
            away = invariants.guarded(obj.id, lambda: invariants.unreachable(look, obj, self._present))
            yield from (finding for finding in away if finding.rule == invariants.BLOB_UNREACHABLE)

    async def _wide_page(self, call: Call, piece: Piece, cursor: Cursor) -> None:
        """A page of one wide section; then its next page, the object's next section, or the next object."""
        page = SectionPage("", 0, ())

        async def look() -> Iterable[Finding]:
            nonlocal page
            page = await self._wide_rules(call, ObjectId(cursor.after), cursor)
            return page.findings

        piece.findings += await self._confirmed(look)
        piece.looked += page.count
        section = cursor.section if page.after else _NEXT_SECTION.get(cursor.section, "")
        piece.cursor = replace(cursor, section=section, at=page.after)

    async def _wide_rules(self, call: Call, obj: ObjectId, cursor: Cursor) -> SectionPage:
        if cursor.section == "file":
            return await self._record_pages(call, obj, cursor.at)
        page = await self._records.scan(call, obj, cursor.section, cursor.at, PAGE)
        found = await self._item_rules(call, obj, cursor.section, page.items, cursor.at)
        return SectionPage(page.after, len(page.items), found)

    async def _item_rules(
        self, call: Call, obj: ObjectId, section: str, items: Sequence[Item], after: str = ""
    ) -> tuple[Finding, ...]:
        look, now = LiveLook(self._records, call), self._world.clock.now_ms()
        shepherd = ServiceId(obj.removeprefix(SHEPHERD_PREFIX))

        def rules() -> Iterable[Finding]:
            match section:
                case "entries":
                    return invariants.name_rules(look, obj, items)
                case "summaries":
                    return invariants.summary_rules(look, obj, items)
                case "pending":
                    reserved = invariants.reservation_rules(look, obj, items)
                    return (*reserved, *invariants.reservation_work(obj, items, now))
                case "extents":
                    return invariants.extent_rules(look, obj, items, after)
                case "named":
                    return invariants.named_rules(look, obj, items)
                case "parts":
                    return invariants.part_rules(look, obj, items)
                case "uploads":
                    return invariants.upload_rules(look, obj, [mark for mark, _ in items])
                case "due" | "formerly":
                    keys = [key for key, _ in items]
                    return (*invariants.index_rules(look, obj, keys), *invariants.index_work(obj, keys, now))
                case _:
                    return (*invariants.order_rules(look, shepherd, items), *invariants.order_work(shepherd, items))

        return await look.settle(lambda: invariants.guarded(obj, rules))

    async def _record_pages(self, call: Call, obj: ObjectId, after: str) -> SectionPage:
        """Some pages of a Shepherd's records: the outbox, read through once, must have those that no blob lists."""
        shepherd, unlisted, count = ServiceId(obj.removeprefix(SHEPHERD_PREFIX)), list[Item](), 0
        for _ in range(RECORDS_PER_OUTBOX_PASS):
            page = await self._records.scan(call, obj, "file", after, PAGE)
            unlisted += await self._unlisted(call, shepherd, page.items)
            count, after = count + len(page.items), page.after
            if not after:
                break
        ordered = await self._ordered(call, obj, {reference for reference, _ in unlisted})
        return SectionPage(after, count, tuple(invariants.record_rules(shepherd, unlisted, ordered)))

    async def _unlisted(self, call: Call, shepherd: ServiceId, items: Sequence[Item]) -> tuple[Item, ...]:
        look = LiveLook(self._records, call)
        return await look.settle(lambda: invariants.unlisted(look, shepherd, items))

    async def _ordered(self, call: Call, obj: ObjectId, references: set[str]) -> set[str]:
        """Those of some references that a Shepherd's outbox names."""
        if not references:
            return set()
        pages = self._records.pages(call, obj, "erase", bounds.PAGE_ENTRIES_MAX)
        return {ref async for items in pages for key, _ in items if (ref := outbox_reference(key)) in references}

    # --- below a collection -----------------------------------------------------------------------------------------

    async def _entry(self, call: Call, guid: Guid, piece: Piece) -> None:
        """Begin with one entry. Raises: NOT_FOUND."""
        entry = await self._records.one(call, entry_id(guid), _OWN)
        if not type_of(entry):
            raise CheloniaError(Kind.NOT_FOUND, "fsck", guid, "no such entry")
        await self._entries(call, (entry,), piece)
        piece.cursor = Cursor(stack=((guid, ""),)) if type_of(entry) == TYPE_COLLECTION else None

    async def _entries(self, call: Call, entries: Sequence[StoredObject], piece: Piece) -> None:
        """Check entries and the blobs of files."""
        files = (entry for entry in entries if type_of(entry) == TYPE_FILE)
        ids = [*(entry.id for entry in entries), *(blob_object(blob) for file in files for blob in blobs_of(file))]
        piece.findings += await self._confirmed(lambda: self._objects(call, ids))
        piece.examined += len(ids)
        piece.looked += len(ids)
        for content in [content_object(own) for entry in entries if (own := content_of(entry))]:
            await self._content(call, content, piece)

    async def _content(self, call: Call, content: ObjectId, piece: Piece) -> None:
        """Check a whole content, and its blobs."""
        await self._wide(call, Cursor(content, "extents"), piece)
        async for items in self._records.pages(call, content, "named", PAGE):
            ids = [blob_object(BlobId(blob)) for blob, _ in items]
            piece.findings += await self._confirmed(lambda ids=ids: self._objects(call, ids))  # type: ignore[misc]
            piece.examined += len(ids)
        piece.findings += await self._confirmed(lambda: self._objects(call, (content,)))

    async def _wide(self, call: Call, begin: Cursor, piece: Piece) -> None:
        """Check the wide sections of an object, from one on."""
        pages = Piece(begin, findings=piece.findings)
        while pages.cursor is not None and pages.cursor.section:
            await self._wide_page(call, pages, pages.cursor)
        piece.looked += pages.looked

    async def _step_below(self, call: Call, piece: Piece, cursor: Cursor) -> None:
        """A page of names up to the first collection, which is gone into before the rest."""
        if not cursor.stack:
            piece.cursor = None
            return
        *above, (guid, after) = cursor.stack
        obj = entry_id(Guid(guid))
        page = await self._records.scan(call, obj, "entries", after, PAGE)
        first = next((n for n, (key, _) in enumerate(page.items) if key.endswith("/")), len(page.items) - 1)
        items = page.items[: first + 1]
        piece.findings += await self._confirmed(lambda: self._item_rules(call, obj, "entries", items))
        await self._children(call, items, piece)
        stack = list(above)
        if len(items) < len(page.items) or page.more:
            stack.append((guid, items[-1][0]))
        inside = items[-1][1] if items and items[-1][0].endswith("/") else ""
        if inside and is_guid(inside) and all(inside != other for other, _ in cursor.stack):
            stack.append((inside, ""))
        if not page.more and len(items) == len(page.items):
            await self._wide(call, Cursor(obj, "summaries"), piece)
        piece.cursor = Cursor(stack=tuple(stack))

    async def _children(self, call: Call, items: Sequence[Item], piece: Piece) -> None:
        ids = [ObjectId(guid) for _, guid in items if is_guid(guid)]
        await self._entries(call, await self._records.get(call, ids, _OWN), piece)

    # --- repairing --------------------------------------------------------------------------------------------------

    async def mend(self, call: Call, findings: Sequence[Finding]) -> tuple[Mended, ...]:
        """Repair findings, one transact each."""
        call = call.keyed(RequestKey(""))  # under the call's key each would get the outcome of the first
        return tuple([await self._mend_one(call, finding) for finding in findings])

    async def _mend_one(self, call: Call, finding: Finding) -> Mended:
        if not await self._confirmed(lambda: self._again(call, finding)):
            return Mended(done=False, what="it is not so any more")
        look = LiveLook(self._records, call)
        found = await look.settle(lambda: self._mend(look, finding))
        if found is None:
            return Mended(done=False, what="no safe repair is known; a person has to decide")
        outcome = await self._records.attempt(
            call, PlannedTransact([*found.elements, *await self._unsummed(call, found)])
        )
        if outcome.applied:
            _LOG.info("mended %s: %s by=%s", finding, found.text, call.dn)
        return Mended(outcome.applied, found.text if outcome.applied else "it has changed meanwhile")

    async def _unsummed(self, call: Call, found: Mend) -> list[Element]:
        """The change that drops the summaries of the entries that a repair changes."""
        ids = [e for e in dict.fromkeys(e.object for e in found.elements) if is_guid(e) and touched(found.elements, e)]
        entries = await self._records.get(call, ids, SUMMARISED)
        files = [entry for entry in entries if type_of(entry) == TYPE_FILE]
        lets_go = [element for file in files for element in (check(file.id, version(file.version)), *dropped(file))]
        return [*lets_go, missed()] if lets_go else []

    async def _again(self, call: Call, finding: Finding) -> list[Finding]:
        """The finding itself, if one more look still shows it."""
        obj, section = finding.object, _section_of(finding)
        found: Iterable[Finding]
        if not section:
            found = await self._objects(call, (obj,))
        elif section == "extents":  # an overlap with the next one shows in both
            before = last_byte_key(int(finding.subject, 16) - 1)
            found = await self._item_rules(
                call, obj, section, (await self._records.scan(call, obj, section, before, 2)).items
            )
        else:
            look = LiveLook(self._records, call)
            value = await look.settle(lambda: look.value(obj, section, finding.subject))
            items = ((finding.subject, value),) if value else ()
            found = await self._item_findings(call, obj, section, items)
        return [other for other in found if (other.rule, other.subject) == (finding.rule, finding.subject)]

    async def _item_findings(self, call: Call, obj: ObjectId, section: str, items: Sequence[Item]) -> Iterable[Finding]:
        if section != "file":
            return await self._item_rules(call, obj, section, items)
        shepherd = ServiceId(obj.removeprefix(SHEPHERD_PREFIX))
        unlisted = await self._unlisted(call, shepherd, items)
        return invariants.record_rules(shepherd, unlisted, await self._ordered(call, obj, {ref for ref, _ in unlisted}))


def _section_of(finding: Finding) -> str:
    """The wide section that has the finding's subject as a property, "" for a finding about the object itself."""
    if finding.object in _INDEXES:
        return "formerly" if "/" in finding.subject else "due"
    if finding.object.startswith(CONTENT_PREFIX) and finding.rule in _OF_NAMED:
        return "named"
    return _SECTION_OF.get(finding.rule, "")


def _first_section(obj: StoredObject) -> str:
    if obj.id in _INDEXES:
        return "due"
    if obj.id.startswith(SHEPHERD_PREFIX):
        return "file"
    if obj.id.startswith(CONTENT_PREFIX):
        return "extents"
    return "entries" if type_of(obj) == TYPE_COLLECTION else ""


_OF_NAMED: Final = (
    invariants.WANTED_DIFFERS, invariants.BLOB_MISSING, invariants.NAMED_WRONG, invariants.OWNERS_WRONG
)  # fmt: skip
_INDEXES: Final = (TRASH_OBJECT, PENDING_OBJECT)
_NEXT_SECTION: Final = {
    **dict(pairwise(("entries", "summaries", "pending", "uploads"))),
    **dict(pairwise(("extents", "named", "parts"))),
    "file": "erase",
    "due": "formerly",
}
_SECTION_OF: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        (invariants.NAME_DANGLING, invariants.NAME_FORM, invariants.NAME_TWICE, invariants.NAME_UNKNOWN), "entries"
    ),
    **dict.fromkeys((invariants.RESERVATION_DANGLING, invariants.EXPIRED), "pending"),
    invariants.SUMMARY_WRONG: "summaries",
    invariants.RECORD_ORPHAN: "file",
    invariants.EXTENT_WRONG: "extents",
    invariants.PART_WRONG: "parts",
    invariants.UPLOAD_DANGLING: "uploads",
    **dict.fromkeys((invariants.ERASE_LISTED, invariants.ERASE_OTHER), "erase"),
}
"""Wide section of the subject, by rule."""
