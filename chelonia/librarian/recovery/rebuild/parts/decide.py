"""Parts of an upload that no snapshot knows become one content, which `mends` gives a file in `/lost+found`. Pure.

A record states the upload and number of a part; nothing states whether the upload was sealed, and of which parts. So
the parts are put together by number, and the file names them; none gets the name that it was written for.

Invariants: no extents of a content count while it gathers parts. A laid content takes no more parts. Of two records of
one number the newer is taken; the other's bytes get a file of their own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

from chelonia.core.cluster.replicas import Location, ReplicaFacts
from chelonia.core.contents.extents import Extent
from chelonia.core.contents.parts import PartPlace, UploadedPart, parse_upload, part_etag
from chelonia.core.contents.uploads import parse_part_name
from chelonia.core.ids import BlobId, ContentId, Dn, ObjectId, blob_object, content_id, content_object, is_uuid
from chelonia.core.metadata import StoredObject
from chelonia.core.ports.ahash import Element
from chelonia.librarian.metadata.blobs import OWNERS, NewBlob, blob_of, facts_of, make_blob
from chelonia.librarian.metadata.contents import FOUND_PARTS, SEALED, extent_record
from chelonia.librarian.metadata.elements import as_read, check, drop, empty, is_, isset, put, put_all, unset, version
from chelonia.librarian.namespace.parts.decide import Chosen, Stored, part_key

GATHERED: Final = "gathered"
"""Order of a content whose parts still come; no upload's order has this name."""
LAID: Final = "laid"
"""Order of a content whose extents count, and which still has records of parts."""
RUNS_MAX: Final = 8
"""Runs of numbers in the name of a file, at most."""


def place_of(facts: ReplicaFacts) -> PartPlace | None:
    """Return the place of a part that can be put together with others, by its record; None for any other blob."""
    named = parse_part_name(facts.name)
    return named[0] if named is not None and facts.size > 0 else None


def opened_as(place: PartPlace) -> ObjectId:
    """Return the content that an upload was to be. Nothing is gathered in it: a file may name it, and drop it."""
    return content_object(parse_upload(place.upload)[1])


def place_of_known(blob: StoredObject) -> PartPlace | None:
    """Return the place of a part that a snapshot has as its upload's, and of which bytes were found; else None."""
    place = place_of(facts_of(blob)) if blob.sections.get("locations") else None
    content = ContentId(blob.value("blob", "content"))
    return place if place and content and opened_as(place) == content_object(content) else None


def gathering(place: PartPlace, owner: Dn) -> ObjectId:
    """Return the content that gathers the parts which one user has sent of an upload: the same in each run."""
    hexed = hashlib.sha256(f"{place.upload} {owner}".encode()).hexdigest()
    made = f"{hexed[:8]}-{hexed[8:12]}-4{hexed[13:16]}-8{hexed[17:20]}-{hexed[20:32]}"
    assert is_uuid(made), "contents are called so"
    return content_object(ContentId(made))


def is_gathering(content: StoredObject) -> bool:
    """Return whether a content may take more parts."""
    return content.value("content", "order") == GATHERED


def as_new(facts: ReplicaFacts, at: Location) -> list[Element]:
    """Make the blob of a part that only its record knows."""
    return make_blob(NewBlob(facts, (at,)))


def as_known(blob: StoredObject) -> list[Element]:
    """Require the blob of a part that a snapshot knows to be as read."""
    return [check(blob.id, version(blob.version), empty(OWNERS))]


def gather(
    facts: ReplicaFacts,
    blob: Sequence[Element],
    content: StoredObject,
    before: StoredObject | None,
    *,
    surely: bool,
) -> list[Element]:
    """Take a blob in as a part; returns nothing where that cannot be.

    Args:
    - `blob`: `as_new` or `as_known`
    - `content`: its header, and its record of the number
    - `before`: the blob of that record
    - `surely`: a transact has named the bytes, so they may replace older ones
    """
    named = parse_part_name(facts.name)
    assert named is not None, "`place_of` has seen it"
    obj, key = content.id, part_key(named[0].number)
    record, older = content.value("parts", key), before is not None and facts_of(before).created_ms < facts.created_ms
    if (content.exists and not is_gathering(content)) or (record and not (surely and older)):
        return []
    part = UploadedPart(named[0].number, facts.size, part_etag(facts.checksums), facts.created_ms)
    header = {
        "state": SEALED, "file": content_id(obj), "size": "0", "splices": "1", "extents": "0", "order": GATHERED,
        "owner": facts.owner, "ln": named[1], "wanted": str(facts.wanted),
    }  # fmt: skip
    fresh = [check(obj, version(0)), *put_all(obj, {"content": header})]
    elements = [check(obj, is_("content", "order", GATHERED))] if content.exists else fresh
    elements += [*blob, put(blob_object(facts.blob), "blob", "content", content_id(obj))]
    value = Stored(part, facts.blob, facts.checksums.adler32).record[1]
    elements += [put(obj, "parts", key, value, as_read("parts", key, record)), put(obj, "named", facts.blob, "0")]
    if before is not None:
        is_of_it = is_("blob", "content", content_id(obj))
        elements += [drop(obj, "named", blob_of(before)), drop(before.id, "blob", "content", is_of_it)]
    return elements


def lay(obj: ObjectId, extents: Mapping[BlobId, Extent], page: Sequence[Stored]) -> list[Element]:
    """Lay the extents of a page of all parts."""
    elements = [check(obj, is_("content", "order", GATHERED))]
    for each in page:
        extent = extents[each.blob]
        elements += [put(obj, "extents", *extent_record(extent)), put(obj, "named", each.blob, str(extent.length))]
    return elements


def clear(obj: ObjectId, keys: Iterable[str]) -> list[Element]:
    """Remove extents that an earlier run has laid, which broke off."""
    return [check(obj, is_("content", "order", GATHERED)), *(drop(obj, "extents", key) for key in keys)]


def laid(content: StoredObject, chosen: Chosen) -> list[Element]:
    """Close a content: its extents count from now on, and no more parts come."""
    header = {"size": str(chosen.size), "extents": str(len(chosen.extents)), FOUND_PARTS: numbers_of(chosen.parts)}
    obj, still = content.id, (isset("content", "splices"), unset("content", FOUND_PARTS))
    order = put(obj, "content", "order", LAID, is_("content", "order", GATHERED), *still)
    return [order, *put_all(obj, {"content": header})]


def forget(obj: ObjectId, keys: Iterable[str]) -> list[Element]:
    """Drop the records of parts that are laid."""
    return [check(obj, is_("content", "order", LAID)), *(drop(obj, "parts", key) for key in keys)]


def finished(obj: ObjectId) -> list[Element]:
    """Finish a content: from now on it is one like any other that has lost its file."""
    return [drop(obj, "content", "order", is_("content", "order", LAID))]


def numbers_of(parts: Sequence[Stored]) -> str:
    """Return the numbers of parts, in order: `1-3,5`; of many runs, the first ones and the last."""
    numbers = [each.part.number for each in parts]
    assert numbers, "a content gathers parts"
    starts = [numbers[0], *(after for before, after in pairwise(numbers) if after != before + 1)]
    ends = [*(before for before, after in pairwise(numbers) if after != before + 1), numbers[-1]]
    runs = [str(start) if start == end else f"{start}-{end}" for start, end in zip(starts, ends, strict=True)]
    return ",".join(runs if len(runs) <= RUNS_MAX else [*runs[: RUNS_MAX - 1], "...", runs[-1]])
