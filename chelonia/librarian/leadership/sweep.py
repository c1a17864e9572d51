"""The sweep: erases what was kept only for a while - deleted files, uploads that were never completed.

Only the repair leader sweeps, each transact under its lease. Two indexes ordered by time name what expires: the cost of
a sweep depends on that alone, not on the size of the namespace. Erasure goes through the outboxes, with a user's
deletion behind it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError
from chelonia.core.ids import (
    CONTENT_PREFIX,
    OVERWRITTEN_OBJECT,
    PENDING_OBJECT,
    REBUILD_OBJECT,
    SHEPHERD_PREFIX,
    TRASH_OBJECT,
    BlobId,
    Guid,
    ObjectId,
    blob_object,
    is_guid,
)
from chelonia.core.metadata import TYPE_PENDING, TYPE_TRASHED, Needed, StoredObject
from chelonia.core.ports.ahash import Element
from chelonia.librarian.context import LibrarianContext
from chelonia.librarian.leadership.lease.act import Leading
from chelonia.librarian.metadata import contents, rebuild_record
from chelonia.librarian.metadata.elements import as_read, check, drop, erase, is_
from chelonia.librarian.namespace import trash
from chelonia.librarian.namespace.parts.decide import Opened, clear_parts, give_up, parse_part
from chelonia.librarian.namespace.quotas.act import Quotas
from chelonia.librarian.namespace.sharing.decide import break_off
from chelonia.librarian.namespace.summaries import changes
from chelonia.librarian.namespace.tree import blobs_of, type_of

_LOG = logging.getLogger(__name__)

PAGE = 200
"""Keys of expired things that are read together."""
TOGETHER = 20
"""Deleted files erased in one transact: some hundreds of changes. An abandoned upload has one of its own."""


class Expiring:
    """The sweep of one Librarian."""

    def __init__(self, context: LibrarianContext, leading: Leading, quotas: Quotas) -> None:
        self._on = context
        self._leading = leading
        self._quotas = quotas

    async def sweep(self) -> None:
        """Erase everything that has expired, while this Librarian leads."""
        for index, decide in ((TRASH_OBJECT, self._trashed), (PENDING_OBJECT, self._pending)):
            due = await self._due(index)
            while due and self._leading.now:
                erased = 0
                some = TOGETHER if index == TRASH_OBJECT else 1
                for start in range(0, len(due), some):
                    erased += await self._let_go(due[start : start + some], decide)
                due = await self._due(index) if erased == len(due) else ()
        if (still := self._leading.litter) is not None:
            await self._forget_deleted(still)

    async def _let_go(self, keys: Sequence[str], decide: Callable[[str], Awaitable[Sequence[Element]]]) -> int:
        """Erase these in one transact, or one by one where two of them share an object; returns how many went."""
        decided = [await decide(key) for key in keys]
        shared = Counter(obj for each in decided for obj in {element.object for element in each})
        others = [obj for obj, count in shared.items() if count > 1 and not obj.startswith(SHEPHERD_PREFIX)]
        together = [element for each in decided for element in each]
        fits = len(together) < bounds.TRANSACT_ELEMENTS_MAX and {TRASH_OBJECT}.issuperset(others)
        if (fits or len(keys) == 1) and await self._leading.apply(together):
            return len(keys)
        # Each is decided anew: the one before it may have changed what they share.
        return sum([await self._let_go((key,), decide) for key in keys]) if len(keys) > 1 else 0

    async def _forget_deleted(self, still: Element) -> None:
        """Drop the records of deletions since a rebuild: every Shepherd that it lacked is back or forgotten."""
        obj = OVERWRITTEN_OBJECT
        while (page := await self._on.records.scan(self._on.call, obj, "formerly", "", bounds.REFERENCES_PAGE)).items:
            if not await self._leading.apply([still, *(drop(obj, "formerly", blob) for blob, _ in page.items)]):
                return
        await self._leading.apply([still, drop(REBUILD_OBJECT, "rebuild", rebuild_record.KEPT)])

    async def _due(self, index: ObjectId) -> Sequence[str]:
        """The next keys that have expired."""
        page = await self._on.records.scan(self._on.call, index, "due", "", PAGE)
        now = trash.due_key(self._on.wall, "~")
        return tuple(key for key, _ in page.items if key <= now)

    async def _trashed(self, key: str) -> list[Element]:
        """Erase a deleted file for good; strike off a key that leads to none."""
        guid = _guid(key)
        file = await self._on.records.one(self._on.call, ObjectId(guid)) if guid else None
        if file is None or type_of(file) != TYPE_TRASHED:
            still = [check(ObjectId(guid), as_read("entry", "type", type_of(file)))] if file else []
            return [drop(TRASH_OBJECT, "due", key), *still]
        blobs = await self._on.records.get(self._on.call, [blob_object(blob) for blob in blobs_of(file)])
        _LOG.info("deleted file %s is erased: its time in the trash is over", guid)
        return [drop(TRASH_OBJECT, "due", key), *trash.expire(file, blobs, self._on.wall)]

    async def _pending(self, key: str) -> list[Element]:
        """Give up an upload that was never completed, with its name; strike off a key that leads to none."""
        if CONTENT_PREFIX in key:
            return await self._content(key)
        guid = _guid(key)
        elements = [drop(PENDING_OBJECT, "due", key)]
        needed = (Needed("entry"), Needed("put"))
        found = await self._on.records.one(self._on.call, ObjectId(guid), needed) if guid else None
        if found is None or type_of(found) != TYPE_PENDING:
            return elements
        parent, name = ObjectId(found.value("put", "parent")), found.value("put", "name")
        reserved = await self._on.records.one(self._on.call, parent, (Needed("pending", name),)) if parent else None
        reservation = reserved.value("pending", name) if reserved else ""
        if reservation.partition(" ")[0] == guid and trash.reserved_key(reservation) != key:
            return elements
        if reservation.partition(" ")[0] == guid:
            elements += trash.drop_reservation(parent, name, reservation)
        return [*elements, erase(found.id, is_("entry", "type", TYPE_PENDING))]

    async def _content(self, key: str) -> list[Element]:
        """Give up an upload or copy that has expired, clear the parts of a sealed content, erase a discarded one."""
        records, call, obj = self._on.records, self._on.call, ObjectId(key.partition(" ")[2])
        header = await records.one(call, obj, (Needed("content"), Needed("tally")))
        state, due = header.value("content", "state"), header.value("content", "due_ms")
        if due and trash.due_key(int(due), obj) == key:
            match state:
                case contents.OPEN:
                    _LOG.info("upload %s of %s is given up: its time is over", obj, header.value("content", "ln"))
                    elements = give_up(Opened(header), self._on.wall)
                    await self._quotas.table(call)
                    return [*elements, *await self._quotas.counted(call, changes(elements, (header,)))]
                case contents.SEALED:
                    return await self._parts_left(key, header)
                case contents.COPYING:
                    _LOG.info("a copy in %s is given up: its time is over", obj)
                    return break_off(header, self._on.wall)
                case contents.DISCARDED:
                    return await self._discarded(key, obj)
                case _:
                    pass
        struck_off = drop(PENDING_OBJECT, "due", key)
        return [struck_off, check(obj, as_read("content", "state", state), as_read("content", "due_ms", due))]

    async def _discarded(self, key: str, obj: ObjectId) -> list[Element]:
        """Erase a page of a discarded content: first its blobs, then its extents and parts, at last the content."""
        records, call = self._on.records, self._on.call
        named = await records.scan(call, obj, "named", "", bounds.BLOBS_PAGE)
        if named.items:
            blobs = await records.get(call, [blob_object(BlobId(blob)) for blob, _ in named.items])
            return trash.let_go(obj, blobs, self._on.wall)
        still = check(obj, is_("content", "state", contents.DISCARDED))  # a backup put back has it sealed
        for section in ("parts", "extents"):
            left = await records.scan(call, obj, section, "", bounds.DELETE_WIDE_MAX)
            if left.items:
                return [still, *(drop(obj, section, item) for item, _ in left.items)]
        return [drop(PENDING_OBJECT, "due", key), erase(obj, is_("content", "state", contents.DISCARDED))]

    async def _parts_left(self, key: str, content: StoredObject) -> list[Element]:
        """Clear what is left of the parts of a sealed content: their records, and the blobs that no extent names."""
        records, call, obj = self._on.records, self._on.call, content.id
        page = await records.scan(call, obj, "parts", "", bounds.FILTER_MAX)
        if not page.items:
            still = check(obj, is_("content", "state", contents.SEALED))
            return [drop(PENDING_OBJECT, "due", key), drop(obj, "content", "due_ms"), still]
        parts = [parse_part(*item) for item in page.items]
        named = await records.one(call, obj, tuple(Needed("named", part.blob) for part in parts))
        unnamed = [blob_object(part.blob) for part in parts if named.value("named", part.blob) == "0"]
        blobs = await records.get(call, unnamed)
        return clear_parts(content, [item for item, _ in page.items], blobs, self._on.wall)


def _guid(key: str) -> Guid:
    """The GUID that a key names; "" for a malformed key."""
    try:
        guid = trash.parse_due(key)[1]
    except (ValueError, CheloniaError):
        return Guid("")
    return guid if is_guid(guid) else Guid("")
