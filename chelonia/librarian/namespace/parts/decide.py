"""Uploads in parts as pure decisions: an open content, its parts, and how it becomes the content of a file.

Decides the elements of one transact. Never reads or writes. Conditions work as in `tree`.
Invariants:
- No file names an open content.
- A content names a part's blob from its arrival, with 0 bytes while no extent does: whatever ends the upload finds it.
- Extents are laid for one `order`, and only that order can be sealed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from chelonia.core import bounds
from chelonia.core.combining import combined_adler32
from chelonia.core.contents.extents import Extent
from chelonia.core.contents.parts import UploadedPart, UploadId, etag_of, listing_mark, parse_upload, part_etag
from chelonia.core.contents.uploads import BeginPut, OpenUpload, PutPart, SealUpload
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import PENDING_OBJECT, BlobId, ContentId, Guid, Ms, ObjectId, content_id, content_object
from chelonia.core.metadata import TYPE_COLLECTION, Sections, StoredObject
from chelonia.core.ports.ahash import Condition, Element
from chelonia.core.values import replace
from chelonia.librarian.metadata.blobs import SUMS, NewBlob, blob_of, leave_blob
from chelonia.librarian.metadata.contents import DISCARDED, LEFT, OPEN, SEALED, extent_record
from chelonia.librarian.metadata.elements import (
    add,
    as_read,
    check,
    drop,
    empty,
    expectations,
    is_,
    put,
    put_all,
    seconds,
    unset,
    version,
)
from chelonia.librarian.namespace import trash
from chelonia.librarian.namespace.tree import (
    Slot,
    check_collection,
    given_sections,
    left_over,
    make_file,
    rewrite,
    ruled,
)
from chelonia.librarian.namespace.uploads.decide import Overwritten, taken_blob

KEPT_FOR_FILE = ("metadata", "posix", "timestamps")
"""Sections that an upload keeps for its file."""
_WHILE_OPEN = ("owner", "ln", "wanted", "within", "listed", "opened_ms", "fresh")
_CHECKSUM = re.compile(r"[a-z0-9]{1,16}:[0-9a-f]{8,64}")
_ETAG = re.compile(r"[0-9a-f]{32}")
NO_UPLOAD = "there is no such upload; it was sealed, given up, or has expired"


@dataclass(frozen=True, slots=True)
class Stored:
    """A part as stored."""

    part: UploadedPart
    blob: BlobId
    adler32: str = ""

    @property
    def record(self) -> tuple[str, str]:
        """Property and value of the part."""
        part = self.part
        assert 1 <= part.number <= bounds.PARTS_MAX < 10**5, "5 digits keep parts in order"
        words = (self.blob, part.size, part.arrived_ms, part.etag, self.adler32 or "-", part.checksum)
        key, value = part_key(part.number), " ".join(map(str, words if part.checksum else words[:-1]))
        assert parse_part(key, value) == self, "a part is read as it was written"
        return key, value


def part_key(number: int) -> str:
    """Return the property of a part."""
    return f"{number:05d}"


def parse_part(key: str, value: str) -> Stored:
    """Read a part. Raises: ValueError when malformed."""
    blob, size, arrived, etag, adler32, *more = value.split(" ")
    (checksum,) = more or ("",)
    part = UploadedPart(int(key), int(size), etag, Ms(int(arrived)), checksum)
    return Stored(part, BlobId(blob), "" if adler32 == "-" else adler32)


@dataclass(frozen=True, slots=True)
class Opened:
    """An open upload as read: the header of its content."""

    content: StoredObject

    def __post_init__(self) -> None:
        """`opened` refuses any other content."""
        assert self.fact("state") == OPEN, "an upload is open"

    def fact(self, name: str) -> str:
        """Return one fact of the header, "" when it is unset."""
        return self.content.value("content", name)

    @property
    def id(self) -> ContentId:
        """Id of the content that it will be."""
        return content_id(self.content.id)

    @property
    def file(self) -> Guid:
        """GUID of the file that its blobs are sealed for."""
        return Guid(self.fact("file"))

    @property
    def fresh(self) -> Guid:
        """GUID for a new file made of it; "" for an upload that was opened over a file. With the GUID of a former file,
        versions would begin anew: a client that holds an old one would mistake the file."""
        return self.file if self.fact("fresh") else Guid("")

    @property
    def wanted(self) -> int:
        """Wanted copies of each blob."""
        return int(self.fact("wanted"))


def opened(content: StoredObject, begin: BeginPut | None = None, *, any_name: bool = False) -> Opened:
    """Return an open upload, of `begin`'s owner and (unless `any_name`) for its name. Raises: NOT_FOUND."""
    owner, ln = content.value("content", "owner"), content.value("content", "ln")
    matches = begin is None or (owner == begin.owner and (any_name or ln == str(begin.ln)))
    if content.value("content", "state") != OPEN or not matches:
        raise CheloniaError(Kind.NOT_FOUND, subject="upload", cause=NO_UPLOAD)
    return Opened(content)


# --- opening and giving up ------------------------------------------------------------------------------------------


def open_upload(
    request: OpenUpload, upload: UploadId, obj: ObjectId, *, guid: Guid, within: StoredObject, now: Ms
) -> list[Element]:
    """Open an upload; `guid`: the file that it is opened over, or a fresh one. Raises: NO_PARENT, NOT_A_COLLECTION,
    BAD_REQUEST, TOO_LARGE."""
    begin = request.begin
    assert content_object(parse_upload(upload)[1]) == obj, "an upload is called by the content that it will be"
    check_collection(within, request.key)
    sections = given_sections(begin.sections)
    if sum(len(props) for props in sections.values()) > bounds.UPLOAD_USER_METADATA_MAX:
        cause = f"an upload in parts keeps at most {bounds.UPLOAD_USER_METADATA_MAX} properties for its file"
        raise CheloniaError(Kind.TOO_LARGE, subject=str(begin.ln), cause=cause)
    if not set(sections) <= set(KEPT_FOR_FILE):
        cause = f"an upload in parts keeps {', '.join(KEPT_FOR_FILE)} for its file"
        raise CheloniaError(Kind.BAD_REQUEST, subject=str(begin.ln), cause=cause)
    facts = {
        "state": OPEN,
        "file": guid,
        "owner": begin.owner,
        "ln": str(begin.ln),
        "wanted": str(begin.wanted),
        "within": within.id,
        "listed": listing_mark(request.key, upload),
        "opened_ms": str(now),
        "due_ms": str(begin.expires_ms),
        **({} if begin.replaces else {"fresh": "1"}),
    }
    elements = [*expectations(begin.expect), check(within.id, is_("entry", "type", TYPE_COLLECTION))]
    elements += [check(obj, version(0)), *put_all(obj, {"content": facts, **sections})]
    elements.append(put(within.id, "uploads", facts["listed"], str(now)))
    return [*elements, put(PENDING_OBJECT, "due", trash.due_key(begin.expires_ms, obj), guid)]


def give_up(upload: Opened, now: Ms) -> list[Element]:
    """Give an upload up: it becomes a discarded content, which the sweep erases page by page."""
    obj = upload.content.id
    elements = [put(obj, "content", "state", DISCARDED, is_("content", "state", OPEN)), *_uncounted(upload)]
    return [*elements, *_unlisted(upload), *_due(upload, now)]


def _uncounted(upload: Opened) -> list[Element]:
    """Its parts no longer count as those of an open upload."""
    size = upload.content.value("tally", "bytes")
    return [drop(upload.content.id, "tally", "bytes", as_read("tally", "bytes", size))]


def _unlisted(upload: Opened) -> list[Element]:
    return [drop(ObjectId(upload.fact("within")), "uploads", upload.fact("listed"))]


def _due(upload: Opened, now: Ms) -> list[Element]:
    """Put the rest on the sweep's list, due now."""
    obj = upload.content.id
    old, new = trash.due_key(int(upload.fact("due_ms")), obj), trash.due_key(now, obj)
    moved = [drop(PENDING_OBJECT, "due", old)] if old != new else []
    return [*moved, put(PENDING_OBJECT, "due", new, upload.file), put(obj, "content", "due_ms", str(now))]


# --- parts ----------------------------------------------------------------------------------------------------------


def check_number(number: int) -> None:
    """Refuse a part number out of range. Raises: BAD_REQUEST."""
    if not 1 <= number <= bounds.PARTS_MAX:
        cause = f"parts have the numbers 1 to {bounds.PARTS_MAX}, not {number}"
        raise CheloniaError(Kind.BAD_REQUEST, subject=f"part {number}", cause=cause)


@dataclass(frozen=True, slots=True)
class Before:
    """The part that a new one replaces: its record, "" when there is none, and its blob."""

    record: str = ""
    blob: StoredObject | None = None

    def __post_init__(self) -> None:
        assert bool(self.record) is (self.blob is not None), "a record and its blob come together"


def check_sums(request: PutPart) -> None:
    """Refuse a malformed checksum or etag of a part. Raises: BAD_REQUEST."""
    cause = ""
    if request.checksum and not _CHECKSUM.fullmatch(request.checksum):
        cause = f"the checksum of a part is <name>:<hex>, not {request.checksum[:40]!r}"
    if request.etag and not _ETAG.fullmatch(request.etag):
        cause = f"the etag of a part is 32 hexadecimal digits, not {request.etag[:40]!r}"
    if cause:
        raise CheloniaError(Kind.BAD_REQUEST, subject=f"part {request.number}", cause=cause)


def etag_of_part(request: PutPart, new: NewBlob) -> str:
    """Return the etag of a part: the given one, else one made of its checksums."""
    return request.etag or part_etag(new.facts.checksums)


def put_part(upload: Opened, request: PutPart, new: NewBlob, before: Before, now: Ms) -> list[Element]:
    """Add a part, in place of one of its number; extents laid before no longer count. Raises: TOO_LARGE."""
    number = request.number
    etag = etag_of_part(request, new)
    obj = upload.content.id
    part = UploadedPart(number, new.facts.size, etag, now, request.checksum)
    key, value = Stored(part, new.facts.blob, new.facts.checksums.adler32).record
    order = upload.fact("order")
    still = (is_("content", "state", OPEN), as_read("content", "order", order))
    # The new version shows that a part went: nobody begins an order of parts that he read before.
    elements = [put(obj, "content", "state", OPEN, *still) if before.record else check(obj, *still)]
    elements += [drop(obj, "content", "order")] if order else []
    elements += [put(obj, "parts", key, value, as_read("parts", key, before.record))]
    elements += [
        *taken_blob(new),
        put(new.object, "blob", "content", upload.id),
        put(obj, "named", new.facts.blob, "0"),
    ]
    if request.checksum:
        elements.append(put(new.object, "blob", SUMS, request.checksum))
    if before.blob is not None:
        elements += [drop(obj, "named", blob_of(before.blob)), *leave_blob(before.blob, upload.id, "replaced", now)]
    replaced = parse_part(key, before.record).part.size if before.record else 0
    total = int(upload.content.value("tally", "bytes", "0"))
    more = max(part.size - replaced, -total)  # parts that came before sizes were counted are not in it
    if total + more > bounds.FILE_BYTES_MAX:
        cause = f"together the parts have more than the {bounds.FILE_BYTES_MAX} bytes that a file may have"
        raise CheloniaError(Kind.TOO_LARGE, subject=f"part {number}", cause=cause)
    return [*elements, add(obj, "tally", "bytes", more)]


# --- sealing --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Chosen:
    """The parts that become a content, in order; `digest` identifies them."""

    parts: tuple[Stored, ...]
    digest: str

    def is_in(self, order: str) -> bool:
        """Return whether an order is of these parts."""
        return order.partition(" ")[0] == self.digest

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        return sum(each.part.size for each in self.parts)

    @property
    def etag(self) -> str:
        """Etag of the file."""
        return etag_of(each.part.etag for each in self.parts)

    @property
    def adler32(self) -> str:
        """Adler-32 of all bytes, "" when that of a part is not known."""
        return combined_adler32((each.adler32, each.part.size) for each in self.parts)

    @property
    def extents(self) -> Mapping[BlobId, Extent]:
        """Extent of each part by its blob; a part without bytes has none."""
        out, at = dict[BlobId, Extent](), 0
        for each in self.parts:
            if each.part.size:
                out[each.blob] = Extent(at, each.part.size, each.blob)
                at += each.part.size
        assert sum(extent.length for extent in out.values()) == self.size, "every part has its place, and one only"
        return out


def check_order(request: SealUpload) -> None:
    """Refuse an order that is empty, too long or not rising. Raises: BAD_REQUEST, TOO_LARGE."""
    numbers = [number for number, _ in request.order]
    if len(numbers) > bounds.PARTS_MAX:
        cause = f"a file is sealed of at most {bounds.PARTS_MAX} parts, not {len(numbers)}"
        raise CheloniaError(Kind.TOO_LARGE, subject=str(request.begin.ln), cause=cause)
    if not numbers:
        raise CheloniaError(
            Kind.BAD_REQUEST, subject=str(request.begin.ln), cause="a file is sealed of parts: name some"
        )
    for before, number in zip([0, *numbers], numbers, strict=False):
        check_number(number)
        if number <= before:
            cause = f"the numbers of parts rise; {number} comes after {before}"
            raise CheloniaError(Kind.BAD_REQUEST, subject=f"part {number}", cause=cause)


def choose(request: SealUpload, stored: Mapping[int, Stored]) -> Chosen:
    """Return the parts that a request names. Raises: INCOMPLETE, BAD_REQUEST (too small), TOO_LARGE."""
    parts = []
    for place, (number, etag) in enumerate(request.order):
        found = stored.get(number)
        if found is None or found.part.etag != etag.strip('"').lower():
            has = f"has the etag {found.part.etag}" if found else "has not arrived"
            raise CheloniaError(
                Kind.INCOMPLETE, subject=f"part {number}", cause=f"part {number} {has}; upload it again"
            )
        if found.part.size < request.least and place < len(request.order) - 1:
            cause = f"part {number} has {found.part.size} bytes; all but the last have at least {request.least}"
            raise CheloniaError(Kind.BAD_REQUEST, subject=f"part {number}", cause=cause)
        parts.append(found)
    assert all(one.part.number < other.part.number for one, other in pairwise(parts)), "`check_order` has seen them"
    text = " ".join(f"{each.part.number} {each.blob}" for each in parts)
    chosen = Chosen(tuple(parts), hashlib.sha256(text.encode()).hexdigest())
    if chosen.size > bounds.FILE_BYTES_MAX:
        cause = f"together the parts have {chosen.size} bytes, a file at most {bounds.FILE_BYTES_MAX}"
        raise CheloniaError(Kind.TOO_LARGE, subject=str(request.begin.ln), cause=cause)
    return chosen


def no_order(obj: ObjectId, order: str) -> list[Element]:
    """Drop the order: extents are laid for none from now on."""
    return [drop(obj, "content", "order", *_is_open(order))]


def clear_extents(obj: ObjectId, keys: Iterable[str]) -> list[Element]:
    """Remove extents that were laid for an order that has been dropped."""
    return [check(obj, *_is_open(), unset("content", "order")), *(drop(obj, "extents", key) for key in keys)]


def order_of(upload: Opened, chosen: Chosen) -> str:
    """Return the name of an order that begins now; the same parts get another name when they are ordered anew."""
    order = f"{chosen.digest} {upload.content.version}"
    assert chosen.is_in(order), "an order is known by its parts"
    return order


def begin_order(upload: Opened, order: str) -> list[Element]:
    """Begin an order where no extents are laid."""
    assert not upload.fact("order"), "what was laid for another order is taken away first"
    free = (*_is_open(), unset("content", "order"), empty("extents"), version(upload.content.version))
    return [put(upload.content.id, "content", "order", order, *free)]


def lay_page(obj: ObjectId, order: str, extents: Mapping[BlobId, Extent], page: Sequence[Stored]) -> list[Element]:
    """Lay the extents of a page of all parts; a part that is not chosen has no extent and names 0 bytes."""
    elements = [check(obj, *_is_open(order))]
    for each in page:
        extent = extents.get(each.blob)
        assert extent is None or extent.length == each.part.size, "a part is laid as a whole"
        if extent is not None:
            elements.append(put(obj, "extents", *extent_record(extent)))
        elements.append(put(obj, "named", each.blob, str(extent.length if extent else 0)))
    return elements


def _is_open(order: str = "") -> tuple[Condition, ...]:
    return (is_("content", "state", OPEN), *((is_("content", "order", order),) if order else ()))


def seal_new(request: SealUpload, upload: Opened, chosen: Chosen, *, slot: Slot, guid: Guid, now: Ms) -> list[Element]:
    """Make a file of an upload whose extents are laid. Raises: EXISTS, NO_PARENT, NOT_A_COLLECTION, BAD_NAME."""
    begin = replace(request.begin, sections=_for_file(upload, request.begin))
    return make_file(begin, guid, slot, _file(upload, chosen, now), now) + _sealed(upload, chosen, guid, now)


def seal_over(request: SealUpload, upload: Opened, chosen: Chosen, over: Overwritten, now: Ms) -> list[Element]:
    """Replace the bytes of a file by the parts; it keeps its GUID, names and policy. Raises: CONFLICT."""
    file, kept = over.file, _for_file(upload, request.begin)
    assert file.id == ObjectId(request.begin.replaces), "no other file is overwritten than the one that was read"
    elements = rewrite(request.begin, file, "seal")
    elements += trash.leave_bytes(over.file, over.blobs, "replaced", now)
    elements += left_over(file, kept, anew=request.begin.anew or bool(kept.get("metadata")))
    stale = {"blobs": (), "states": ("checksum", "checksumType")}
    for section, names in stale.items():
        stored = file.sections.get(section, {})
        elements += [drop(file.id, section, name) for name in sorted(stored) if name in names or not names]
    times = {"modified": seconds(now), **kept.get("timestamps", {})}
    elements += put_all(file.id, {**kept, "timestamps": times, **_file(upload, chosen, now)})
    return elements + ruled(file, request.policy) + _sealed(upload, chosen, Guid(file.id), now)


def _kept(upload: Opened) -> dict[str, Mapping[str, str]]:
    sections = upload.content.sections
    return {section: sections[section] for section in KEPT_FOR_FILE if section in sections}


def _for_file(upload: Opened, begin: BeginPut) -> dict[str, Mapping[str, str]]:
    """Sections for the file: those that the upload keeps, overridden by those given with its sealing."""
    kept = _kept(upload)
    return kept | {section: {**kept.get(section, {}), **given} for section, given in begin.sections.items()}


def _file(upload: Opened, chosen: Chosen, now: Ms) -> Sections:
    """The file's own facts about its bytes."""
    states = {"size": str(chosen.size), "neededReplicas": str(upload.wanted)}
    if adler32 := chosen.adler32:
        states |= {"checksum": adler32, "checksumType": "adler32"}
    states["etag"] = f"{chosen.etag} {upload.id}-1"
    return {"states": states, "content": {"id": upload.id, "splices": "1", LEFT: str(now)}}


def _sealed(upload: Opened, chosen: Chosen, guid: Guid, now: Ms) -> list[Element]:
    """Seal the content for the file; its parts, and the blobs that no extent names, are left to the sweep."""
    obj, order = upload.content.id, upload.fact("order")
    assert chosen.is_in(order), "what is sealed is what was laid"
    facts = {
        "state": SEALED,
        "file": guid,
        "size": str(chosen.size),
        "splices": "1",
        "extents": str(len(chosen.extents)),
    }
    elements = [check(obj, *_is_open(order), version(upload.content.version)), *put_all(obj, {"content": facts})]
    elements += [drop(obj, "content", fact) for fact in _WHILE_OPEN]
    elements += [drop(obj, section, prop) for section, props in _kept(upload).items() for prop in sorted(props)]
    return [*elements, *_uncounted(upload), *_unlisted(upload), *_due(upload, now)]


# --- after sealing ----------------------------------------------------------------------------------------------------


def clear_parts(
    content: StoredObject, records: Iterable[str], unnamed: Sequence[StoredObject], now: Ms
) -> list[Element]:
    """Drop parts of a sealed content, and those of their blobs that no extent names."""
    elements = [check(content.id, version(content.version))]
    for blob in unnamed:
        elements += [drop(content.id, "named", blob_of(blob), is_("named", blob_of(blob), "0"))]
        elements += leave_blob(blob, content_id(content.id), "replaced", now)
    return elements + [drop(content.id, "parts", key) for key in records]
