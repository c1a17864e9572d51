"""Files that changed while the snapshot was taken by which a namespace comes back.

A snapshot reads most entries first, then blobs, then contents (docs/design/013-rebuild.md). So of a file that was
overwritten in between it has the entry of before and the bytes of after, which name the file; what the entry names may
be gone. What is read later is newer: the file gets it. A file of whose bytes nothing is known keeps its name: it was
removed in between, or overwritten.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from chelonia.core import bounds
from chelonia.core.ids import BLOB_PREFIX, CONTENT_PREFIX, ObjectId, content_id, content_object
from chelonia.core.metadata import TYPE_FILE, Needed, StoredObject
from chelonia.core.ports.ahash import Element
from chelonia.librarian.context import LibrarianContext
from chelonia.librarian.metadata.blobs import (
    A_FILE,
    FIRST_ORDINAL,
    OWNERS,
    NewBlob,
    blob_of,
    facts_of,
    file_states,
    known_checksum_type,
    owners_of,
)
from chelonia.librarian.metadata.contents import SEALED, content_of
from chelonia.librarian.metadata.elements import check, drop, put_all, version
from chelonia.librarian.namespace.summaries import dropped
from chelonia.librarian.namespace.tree import blobs_of, type_of
from chelonia.librarian.recovery.rebuild.decide import blobs_known

_CLAIMS: Final = (Needed("blob"), Needed(OWNERS), Needed("content"))
_FILE: Final = (Needed("entry"), Needed("parents"), Needed("states"), Needed("blobs"), Needed("content"))


async def settle(on: LibrarianContext, attempt: Callable[[Sequence[Element]], Awaitable[bool]]) -> int:
    """Go through all blobs and contents; returns how many files got newer bytes. Again, it changes nothing."""
    changed = 0
    for prefix in (BLOB_PREFIX, CONTENT_PREFIX):
        async for ids in on.records.object_pages(on.call, prefix, bounds.PAGE_ENTRIES_MAX):
            claims = [(each, file) for each in await on.records.get(on.call, ids, _CLAIMS) for file in claimed(each)]
            files = await on.records.get(on.call, [file for _, file in claims], _FILE)
            for (new, _), file in zip(claims, files, strict=True):
                if type_of(file) == TYPE_FILE and not names(file, new):
                    had = await on.records.get(on.call, [*blobs_known(file), content_object(content_of(file))])
                    elements = newer(file, new, had)
                    changed += bool(elements) and await attempt(elements)
    return changed


def claimed(stored: StoredObject) -> list[ObjectId]:
    """The files that a blob or content says it is of."""
    if stored.id.startswith(BLOB_PREFIX):
        return [ObjectId(owner) for owner, kind in owners_of(stored).items() if kind == A_FILE and owner]
    is_sealed = stored.value("content", "state") == SEALED
    return [ObjectId(file)] if is_sealed and (file := stored.value("content", "file")) else []


def names(file: StoredObject, stored: StoredObject) -> bool:
    """Whether a file has this blob or content."""
    if stored.id.startswith(BLOB_PREFIX):
        return blob_of(stored) in blobs_of(file)
    return content_of(file) == content_id(stored.id)


def newer(file: StoredObject, new: StoredObject, had: Sequence[StoredObject]) -> list[Element]:
    """Give a file the bytes that say they are its own, unless it has later ones: a rebuild that is begun again finds
    what has been written since the snapshot. `had`: the blobs and the content that it names, there or not."""
    elements = [check(file.id, version(file.version)), *dropped(file)]
    elements += [drop(file.id, "blobs", ordinal) for ordinal in file.sections.get("blobs", {})]
    if new.id.startswith(CONTENT_PREFIX):
        gone = [drop(file.id, "states", fact) for fact in ("checksum", "checksumType", "etag")]
        own = {"id": content_id(new.id), "splices": new.value("content", "splices")}
        states = {"size": new.value("content", "size")}
        return [*elements, *gone, *put_all(file.id, {"states": states, "content": own})]
    facts = facts_of(new)
    if any(each.exists and (not each.id.startswith(BLOB_PREFIX) or _later(each, new)) for each in had):
        return []
    states = file_states({"checksumType": known_checksum_type(facts.checksums)}, NewBlob(facts, ()))
    elements += [drop(file.id, "content", fact) for fact in file.sections.get("content", {})]
    return [*elements, *put_all(file.id, {"states": states, "blobs": {FIRST_ORDINAL: facts.blob}})]


def _later(blob: StoredObject, other: StoredObject) -> bool:
    return facts_of(blob).created_ms >= facts_of(other).created_ms
