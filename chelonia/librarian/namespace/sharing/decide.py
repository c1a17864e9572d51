"""Copies by reference as pure decisions: a file gets the blobs of another, and each blob one more owner.

Decides the elements of one transact. Never reads or writes. Conditions work as in `tree`.
Invariants:
- A blob is shared on the version, or the state, of its owner, so that nobody's last blob is discarded meanwhile.
- A content that is copied page by page has no name before its last transact; the sweep finds one that broke off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from chelonia.core import bounds
from chelonia.core.contents.extents import Extent
from chelonia.core.contents.uploads import CopyFile
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import PENDING_OBJECT, BlobId, ContentId, Guid, Ms, content_id, content_object
from chelonia.core.metadata import TYPE_FILE, StoredObject
from chelonia.core.ports.ahash import Element
from chelonia.librarian.metadata.blobs import A_CONTENT, A_FILE, Owner, blob_of, owners_of, share_blob
from chelonia.librarian.metadata.contents import COPYING, DISCARDED, SEALED, content_of, extent_record
from chelonia.librarian.metadata.elements import EXPECT, check, drop, is_, put, put_all, version
from chelonia.librarian.namespace import trash
from chelonia.librarian.namespace.tree import (
    Slot,
    check_file,
    given_anew,
    given_sections,
    make_file,
    rewrite,
    ruled,
)
from chelonia.librarian.namespace.uploads.decide import Overwritten

_INHERITED = ("size", "checksum", "checksumType", "neededReplicas")
"""Facts about the bytes of a file that its copy takes over."""


def check_source(request: CopyFile, source: StoredObject) -> None:
    """Refuse a source that is no file, or the target itself. Raises: NOT_FOUND, NOT_A_FILE, BAD_REQUEST."""
    name = str(request.begin.ln)
    check_file(source, "copyFile", name, "copy")
    if request.begin.replaces == Guid(source.id):
        raise CheloniaError(Kind.BAD_REQUEST, "copyFile", name, "it is the file itself; copy it to another name")


def is_full(blob: StoredObject) -> bool:
    """Return whether a blob has as many owners as it may have."""
    return len(owners_of(blob)) >= bounds.BLOB_OWNERS_MAX


def shared(blobs: Sequence[StoredObject], owner: Owner, other: Owner, kind: str) -> list[Element]:
    """Add `other` as an owner of blobs. Raises: NO_REPLICA, TOO_LARGE."""
    assert owner != other, "nobody shares with himself"
    elements: list[Element] = []
    for blob in blobs:
        if not blob.exists:
            cause = "bytes of it are not known to the metadata: `chelonia admin fsck` says more"
            raise CheloniaError(Kind.NO_REPLICA, "copyFile", blob.id, cause)
        if is_full(blob):
            cause = f"{bounds.BLOB_OWNERS_MAX} files have these bytes by reference already; copy the bytes"
            raise CheloniaError(Kind.TOO_LARGE, "copyFile", blob_of(blob), cause)
        elements += share_blob(blob, owner, other, kind)
    return elements


def at_once(source: StoredObject, blobs: Sequence[StoredObject], guid: Guid) -> list[Element]:
    """Make a file an owner of the blobs of a file that names them itself."""
    still = check(source.id, is_("entry", "type", TYPE_FILE), version(source.version))
    return [still, *shared(blobs, Guid(source.id), guid, A_FILE)]


def new_file(
    request: CopyFile, source: StoredObject, content: ContentId, *, slot: Slot, guid: Guid, now: Ms
) -> list[Element]:
    """Make the entry and name of a copy. `content`: its own, "" for a file that names its blobs itself.

    Raises: EXISTS, NO_PARENT, NOT_A_COLLECTION, BAD_NAME.
    """
    return make_file(request.begin, guid, slot, _bytes(source, content), now)


def over_file(request: CopyFile, source: StoredObject, content: ContentId, over: Overwritten, now: Ms) -> list[Element]:
    """Replace the bytes of a file by those of the copy; it keeps its GUID, names and policy. Raises: CONFLICT."""
    file = over.file
    assert file.id != source.id, "`check_source` has seen it"
    elements = rewrite(request.begin, file, "copyFile")
    kept = {} if content else source.sections.get("blobs", {})
    elements += trash.leave_bytes(file, over.blobs, "replaced", now, kept.values())
    after = given_anew(given_sections(request.begin.sections), now) | _bytes(source, content)
    assert ("blobs" in after) is not ("content" in after), "a file has blobs of its own or a content, never both"
    for section in ("states", "metadata", "blobs", "content"):
        elements += [drop(file.id, section, prop) for prop in sorted(file.sections.get(section, {}))
                     if prop not in after.get(section, {})]  # fmt: skip
    return elements + ruled(file, request.policy) + put_all(file.id, after)


def _bytes(source: StoredObject, content: ContentId) -> dict[str, Mapping[str, str]]:
    """The facts of a copy about its bytes, as its source has them."""
    states = source.sections.get("states", {})
    inherited = {name: states[name] for name in _INHERITED if name in states}
    tag, _, of = states.get("etag", "").partition(" ")
    own = f"{content_of(source)}-{source.value('content', 'splices')}"
    if not content:
        return {
            "states": {**inherited, **({"etag": f"{tag} {of}"} if of else {})},
            "blobs": source.sections.get("blobs", {}),
        }
    etag = {"etag": f"{tag} {content}-1"} if of == own else {}
    return {"states": {**inherited, **etag}, "content": {"id": content, "splices": "1"}}


# --- page by page ---------------------------------------------------------------------------------------------------


def open_copy(source: StoredObject, content: ContentId, guid: Guid, now: Ms) -> list[Element]:
    """Begin a content that takes the extents of another, page by page."""
    obj, due = content_object(content), Ms(now + bounds.COPY_OPEN_MS)
    facts = {
        "state": COPYING,
        "file": guid,
        "size": source.value("states", "size"),
        "splices": "1",
        "extents": "0",
        "wanted": source.value("states", "neededReplicas"),
        "due_ms": str(due),
    }
    elements = [check(obj, version(0)), *put_all(obj, {"content": facts})]
    return [*elements, put(PENDING_OBJECT, "due", trash.due_key(due, obj), guid)]


def copy_page(
    source: StoredObject,
    content: ContentId,
    extents: Sequence[Extent],
    blobs: Sequence[StoredObject],
    named: Mapping[BlobId, int],
) -> list[Element]:
    """Lay a page of the extents of another content, on condition that its file has not changed since the copy began.

    Args:
        named: bytes of each blob that the copy names, this page included.
    """
    assert {extent.blob for extent in extents} == {*map(blob_of, blobs)}, (
        "what a page names is shared, and nothing else"
    )
    assert all(extent.length <= named[extent.blob] for extent in extents), "what is named sums up the extents"
    source_content, obj = content_of(source), content_object(content)
    elements = [check(source.id, version(source.version), change_id=EXPECT)]
    elements += [check(obj, is_("content", "state", COPYING))]
    elements += [put(obj, "extents", *extent_record(extent)) for extent in extents]
    elements += [put(obj, "named", blob, str(named[blob])) for blob in map(blob_of, blobs)]
    return elements + shared(blobs, source_content, content, A_CONTENT)


def seal_copy(copied: StoredObject, guid: Guid, extents: int) -> list[Element]:
    """Seal the content of a copy for its file."""
    obj = copied.id
    facts = {"state": SEALED, "file": guid, "extents": str(extents)}
    elements = [check(obj, is_("content", "state", COPYING), version(copied.version))]
    elements += put_all(obj, {"content": facts})
    elements += [drop(obj, "content", fact) for fact in ("wanted", "due_ms")]
    return [*elements, drop(PENDING_OBJECT, "due", _due(copied))]


def break_off(copied: StoredObject, now: Ms) -> list[Element]:
    """Give up an unfinished copy: it becomes a discarded content."""
    obj = copied.id
    elements = [put(obj, "content", "state", DISCARDED, is_("content", "state", COPYING))]
    elements += [put(obj, "content", "due_ms", str(now)), drop(PENDING_OBJECT, "due", _due(copied))]
    return [*elements, put(PENDING_OBJECT, "due", trash.due_key(now, obj), content_id(obj))]


def _due(copied: StoredObject) -> str:
    return trash.due_key(int(copied.value("content", "due_ms")), copied.id)
