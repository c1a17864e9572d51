"""Splices as pure decisions: from a file as read and the extents laid over it to one transact.

Decides which extents change, which blobs come and which go. Never reads or writes. Conditions work as in `tree`.
Invariants:
- A splice rests on the version of its file, so two never interleave.
- A blob goes in the transact after which no extent names it; `named` sums up the extents.
- A file has `blobs` or a `content`, never both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from chelonia.core import bounds
from chelonia.core.contents.extents import Extent, are_apart, check_extents, laid
from chelonia.core.contents.uploads import BeginPut, SpliceFile
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BlobId, ContentId, Guid, Ms, ObjectId, content_object
from chelonia.core.metadata import StoredObject
from chelonia.core.ports.ahash import Element
from chelonia.core.ports.files import MARK
from chelonia.librarian.metadata.blobs import SUMS, NewBlob, blob_of, facts_of, hand_over, is_shared, leave_blob
from chelonia.librarian.metadata.contents import SEALED, content_of, extent_record
from chelonia.librarian.metadata.elements import check, drop, is_, put, put_all, version
from chelonia.librarian.namespace import trash
from chelonia.librarian.namespace.summaries import dropped
from chelonia.librarian.namespace.tree import Slot, given_anew, given_sections, left_over, make_file, rewrite
from chelonia.librarian.namespace.uploads.decide import taken_blob


@dataclass(frozen=True, slots=True)
class Span:
    """The range of a splice: it changes bytes [`at`, `end`) of the file as read, which has `size` bytes after it."""

    at: int
    end: int
    size: int


@dataclass(frozen=True, slots=True)
class FileContent:
    """A file of `size` bytes as read. `extents`: those that meet the span of a change; `blobs`: their objects, or
    its only blob. `content`: the header of its content, with `named` for these blobs."""

    file: StoredObject
    content: StoredObject
    size: int = 0
    extents: tuple[Extent, ...] = ()
    blobs: tuple[StoredObject, ...] = ()


@dataclass(frozen=True, slots=True)
class Laid:
    """A change of the extents of a content: records to unset and to set, and the bytes named of each blob touched."""

    removed: tuple[str, ...]
    made: Mapping[str, str]
    named: Mapping[BlobId, int]
    extents: int
    """Number of extents that the content has afterwards."""


def span_of(request: SpliceFile, size: int) -> Span:
    """Return the span of a splice of a file of `size` bytes. Raises: BAD_REQUEST, TOO_LARGE."""
    check_extents(request.extents, request.size)
    starts, ends = [e.at for e in request.extents], [e.end for e in request.extents]
    after = request.size if request.size >= 0 else max([0 if request.whole else size, *ends])
    if after < size:
        starts, ends = [*starts, after], [*ends, size]
    span = Span(min(starts, default=0), max(ends, default=0), after)
    assert 0 <= span.at <= span.end, "what changes has a beginning, and ends behind it"
    assert not request.extents or request.extents[-1].end <= after, "what is laid is within the size that comes of it"
    return span


def begins_anew(request: SpliceFile, span: Span) -> bool:
    """Return whether a splice leaves nothing of the file as read, which then gets a new content."""
    return request.whole or (span.size == 0 and not request.extents)


def extents_of(blobs: Iterable[StoredObject]) -> tuple[Extent, ...]:
    """Return the content of a file that names its blobs itself, as extents."""
    out, at = [], 0
    for blob in blobs:
        size = facts_of(blob).size
        if size > 0:
            out.append(Extent(at, size, blob_of(blob)))
            at += size
    return tuple(out)


def check_pieces(request: SpliceFile, new: Sequence[NewBlob]) -> None:
    """Refuse extents outside the blobs that come with a splice. Raises: BAD_REQUEST, TOO_LARGE."""
    if len(new) > bounds.SPLICE_BLOBS_MAX:
        cause = f"at most {bounds.SPLICE_BLOBS_MAX} blobs in one change; write in several"
        raise CheloniaError(Kind.TOO_LARGE, subject="blobs", cause=cause)
    sizes = {each.facts.blob: each.facts.size for each in new}
    for extent in request.extents:
        if extent.blob not in sizes:
            cause = "an extent names a blob that does not come with this change; place it and send its receipts along"
            raise CheloniaError(Kind.BAD_REQUEST, subject=extent.blob, cause=cause)
        if extent.skip + extent.length > sizes[extent.blob]:
            cause = f"{extent} is beyond the blob's {sizes[extent.blob]} bytes"
            raise CheloniaError(Kind.BAD_REQUEST, subject=extent.blob, cause=cause)
    unused = sorted(sizes.keys() - {extent.blob for extent in request.extents})
    if unused or len(sizes) != len(new):
        cause = "every blob that comes is named by an extent, and comes once"
        raise CheloniaError(Kind.BAD_REQUEST, subject=unused[0] if unused else "blobs", cause=cause)


def is_of_one_state(current: FileContent) -> bool:
    """Return whether the records read of a content are of one state: no splice came in between, and none is damaged."""
    named = current.content.sections.get("named", {})
    counted = all(count <= int(named.get(blob, "0")) for blob, count in _bytes_named(current.extents).items())
    return counted and are_apart(current.extents)


def lay(current: FileContent, request: SpliceFile, span: Span, *, first: bool) -> Laid:
    """Return the change of a content's records. `first`: the content is new, nothing of it is stored yet."""
    assert first or all(e.at < span.end and span.at < e.end for e in current.extents), (
        "nothing is read but what changes"
    )
    after = laid(current.extents, request.extents, span.size)
    before = {} if first else dict(map(extent_record, current.extents))
    records = dict(map(extent_record, after))
    old, new = _bytes_named(current.extents), _bytes_named(after)
    stored = old if first else {blob: int(current.content.value("named", blob, "0")) for blob in old}
    named = {blob: stored.get(blob, 0) - old.get(blob, 0) + new.get(blob, 0) for blob in sorted({*old, *new})}
    assert all(count >= 0 for count in named.values()), "`is_of_one_state` has seen them"
    counted = 0 if first else int(current.content.value("content", "extents", "0"))
    return Laid(
        removed=tuple(key for key in sorted(before) if key not in records),
        made={key: value for key, value in sorted(records.items()) if before.get(key) != value},
        named=named,
        extents=counted - len(before) + len(after),
    )


def _bytes_named(extents: Iterable[Extent]) -> dict[BlobId, int]:
    out = Counter[BlobId]()
    for extent in extents:
        out[extent.blob] += extent.length
    return dict(out)


def splice(
    request: SpliceFile, current: FileContent, new: Sequence[NewBlob], content: ContentId, now: Ms
) -> list[Element]:
    """Lay extents over a file; `content`: id of the content to make where there is none to change.

    Raises: CONFLICT, BAD_REQUEST, TOO_LARGE.
    """
    file = current.file
    elements = rewrite(request.begin, file, "splice")
    check_pieces(request, new)
    span = span_of(request, current.size)
    first = begins_anew(request, span) or not content_of(file)
    if begins_anew(request, span):
        current = FileContent(file, current.content, blobs=current.blobs if not content_of(file) else ())
    change = lay(current, request, span, first=first)
    elements += trash.discard_content(file, now) if first else []
    id_ = content if first else content_of(file)
    splices = 1 if first else int(file.value("content", "splices", "0")) + 1
    elements += _content(change, id_, _facts(file.id, span.size, splices), first=first)
    for blob in current.blobs:
        elements += _blob_change(blob, change, id_, now, once=Guid(file.id) if first else None)
    elements += _pieces(new, id_, Guid(file.id), request.mark)
    elements += left_over(file, request.begin.sections, anew=request.begin.anew)
    return _bounded([*elements, *_file(request, file, {"id": id_, "splices": str(splices)}, span.size, now)], span)


def lay_found(
    request: SpliceFile, current: FileContent, found: Sequence[StoredObject], state: tuple[ContentId, int], made_ms: Ms
) -> list[Element]:
    """Lay extents of blobs that a rebuild has found, and that nothing has, over a file. As `splice`, but it orders no
    erasure: bytes that no extent names any more are left without a file. `state`: the content to make where there is
    none to change, and the number of its splices then, those included whose bytes are erased.

    Raises: CONFLICT, TOO_LARGE.
    """
    file, span = current.file, span_of(request, current.size)
    first = not content_of(file)
    change, id_ = lay(current, request, span, first=first), state[0] if first else content_of(file)
    splices = max(state[1], int(file.value("content", "splices", "0")) + 1)
    elements = rewrite(request.begin, file, "splice")
    elements += _content(change, id_, _facts(file.id, span.size, splices), first=first)
    for blob in current.blobs:
        if not change.named.get(blob_of(blob)):
            elements += leave_blob(blob, Guid(file.id) if first else id_, "", made_ms) if is_shared(blob) else []
        elif first:
            elements += hand_over(blob, Guid(file.id), id_)
    elements += [put(blob.id, "blob", "content", id_, version(blob.version)) for blob in found]
    assert all(element.section != "erase" for element in elements), "a rebuild orders nothing to be erased"
    facts = {"id": id_, "splices": str(splices)}
    return _bounded([*elements, *dropped(file), *_file(request, file, facts, span.size, made_ms)], span)


def make(
    request: SpliceFile, slot: Slot, new: Sequence[NewBlob], content: ContentId, guid: Guid, now: Ms
) -> list[Element]:
    """Make a file of extents: entry, name, content and blobs at once; without bytes it needs no content.

    Raises: EXISTS, NO_PARENT, NOT_A_COLLECTION, BAD_NAME, BAD_REQUEST, TOO_LARGE.
    """
    begin, nothing = request.begin, StoredObject(ObjectId(guid), 0)
    check_pieces(request, new)
    span = span_of(request, 0)
    change = lay(FileContent(nothing, nothing), request, span, first=True)
    states = {"size": str(span.size), "neededReplicas": str(begin.wanted)}
    if not span.size:
        assert not new, "`check_pieces` has seen them: each has bytes, and a place"
        return make_file(begin, guid, slot, {"states": states}, now)
    facts = {"states": states, "content": {"id": content, "splices": "1"}}
    elements = make_file(begin, guid, slot, facts, now)
    elements += _content(change, content, _facts(guid, span.size, 1), first=True)
    return _bounded(elements + _pieces(new, content, guid, request.mark), span)


def _facts(file: str, size: int, splices: int) -> dict[str, str]:
    return {"state": SEALED, "file": file, "size": str(size), "splices": str(splices)}


def _content(change: Laid, content: ContentId, facts: Mapping[str, str], *, first: bool) -> list[Element]:
    if change.extents > bounds.CONTENT_EXTENTS_MAX:
        cause = f"a file has at most {bounds.CONTENT_EXTENTS_MAX} extents; write it anew in one piece"
        raise CheloniaError(Kind.TOO_LARGE, subject=facts["file"], cause=cause)
    assert not (first and change.removed), "of a new content nothing is taken away"
    obj = content_object(content)
    elements = [check(obj, version(0)) if first else check(obj, is_("content", "state", SEALED))]
    elements += put_all(obj, {"content": {**facts, "extents": str(change.extents)}, "extents": change.made})
    elements += [drop(obj, "extents", key) for key in change.removed]
    named = {blob: str(count) for blob, count in change.named.items() if count}
    elements += [put(obj, "named", blob, count) for blob, count in named.items()]
    return (
        elements if first else [*elements, *(drop(obj, "named", b) for b, count in change.named.items() if not count)]
    )


def _blob_change(blob: StoredObject, change: Laid, content: ContentId, now: Ms, *, once: Guid | None) -> list[Element]:
    """Drop a blob that no extent names any more, or hand it over to the first content of its file (`once` its own)."""
    if not change.named.get(blob_of(blob)):
        return leave_blob(blob, once or content, "replaced", now)
    return hand_over(blob, once, content) if once else []


def _pieces(new: Sequence[NewBlob], content: ContentId, file: Guid, mark: str) -> list[Element]:
    assert all(each.facts.guid == file for each in new), "a piece is sealed for the file that it comes to"
    elements: list[Element] = []
    for each in new:
        elements += [*taken_blob(each), put(each.object, "blob", "content", content)]
        elements += [put(each.object, "blob", SUMS, f"{MARK}:{mark}")] if mark else []
    return elements


def _file(request: SpliceFile, file: StoredObject, content: Mapping[str, str], size: int, now: Ms) -> list[Element]:
    """The file's own facts, without a checksum: nobody has measured one of the whole."""
    elements = [drop(file.id, "blobs", ordinal) for ordinal in sorted(file.sections.get("blobs", {}))]
    elements += [
        drop(file.id, "states", fact) for fact in ("checksum", "checksumType", "etag") if file.value("states", fact)
    ]
    sections: dict[str, Mapping[str, str]] = {
        "states": {"size": str(size), "neededReplicas": str(wanted_of(file, request.begin))},
        **given_anew(given_sections(request.begin.sections), now),
        "content": content,
    }
    return elements + put_all(file.id, sections)


def wanted_of(file: StoredObject, begin: BeginPut) -> int:
    """Return how many copies the blobs of a file want: its own count, or the request's before it has bytes."""
    return int(file.value("states", "neededReplicas") or "0") or begin.wanted


def _bounded(elements: list[Element], span: Span) -> list[Element]:
    if len(elements) > bounds.TRANSACT_ELEMENTS_MAX:
        cause = f"the bytes {span.at} to {span.end} have too many extents for one change; change less of them at once"
        raise CheloniaError(Kind.TOO_LARGE, subject="extents", cause=cause)
    return elements
