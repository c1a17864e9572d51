"""Namespace snapshots: what the metadata say of names, as pages that change only where the namespace has changed.

The objects, in an order that stays, are cut into pages after ids that a digest picks, so that one change touches one
page and the same objects give the same bytes. A snapshot is a *manifest* that lists its pages; pages lie in *segments*,
blobs of some MiB that later snapshots refer to again. The manifest is authenticated with the cluster's record key,
pages by their digests in it.

Page: `CHLP`, zlib of version byte (1) and msgpack `[[id, {section: {property: value}}], ...]`. Manifest: `CHLM`,
32 bytes HMAC-SHA256 of the rest, zlib of version byte (1) and a msgpack map of `Manifest`. Layout and golden bytes:
`docs/formats/snapshots.md`.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BlobId, Ms, ObjectId
from chelonia.core.metadata import StoredObject
from chelonia.wire.records import Format

PAGE_MAGIC: Final = b"CHLP"
MANIFEST_MAGIC: Final = b"CHLM"
MAC_BYTES: Final = 32
CUT_MASK: Final = 0x3F
"""A page ends after about one id in 64."""
PAGE_OBJECTS_MAX: Final = 512
"""Objects of one page, whatever the digests say."""

Objects = list[tuple[str, dict[str, dict[str, str]]]]


@dataclass(frozen=True, slots=True)
class PageLocation:
    """Where a page is: its digest (hex), the segment by number, and the bytes in it."""

    digest: str
    segment: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """A whole snapshot. `begun_ms`: before anything was read of it; `objects`: how many there are."""

    cluster: str
    generation: int
    begun_ms: int
    objects: int
    segments: tuple[BlobId, ...]
    pages: tuple[PageLocation, ...]


@dataclass(frozen=True, slots=True)
class SnapshotPage:
    """Some objects as bytes, and the digest that stands for them."""

    digest: str
    body: bytes


class Pager:
    """Cuts a stream of objects, in an order that stays, into pages."""

    def __init__(self) -> None:
        self._held: Objects = []
        self.objects = 0

    def take(self, obj: StoredObject) -> SnapshotPage | None:
        """Add an object; returns the page that it completes."""
        self._held.append((obj.id, {name: dict(props) for name, props in obj.sections.items()}))
        self.objects += 1
        ends = hashlib.sha256(obj.id.encode()).digest()[0] & CUT_MASK == 0
        return self.rest() if ends or len(self._held) >= PAGE_OBJECTS_MAX else None

    def rest(self) -> SnapshotPage | None:
        """What is left, as the last page."""
        held, self._held = self._held, []
        return encode_page(held) if held else None


def encode_page(objects: Objects) -> SnapshotPage:
    """Equal objects give equal bytes."""
    body = PAGE_MAGIC + zlib.compress(bytes((_PAGES.version,)) + _ENCODER.encode(objects), 6)
    return SnapshotPage(page_digest(body), body)


def page_digest(body: bytes) -> str:
    """What stands for a page in a manifest. Source: BLAKE2b (RFC 7693)."""
    return hashlib.blake2b(body, digest_size=20).hexdigest()


def decode_page(body: bytes, digest: str) -> Iterator[StoredObject]:
    """The objects of a page; versions are 1. Raises: CHECKSUM, NOT_SUPPORTED."""
    if page_digest(body) != digest or body[:4] != PAGE_MAGIC:
        raise CheloniaError(Kind.CHECKSUM, "snapshot", digest, "the page is not the one that the manifest names")
    for object_id, sections in _PAGES.decode(_inflate(body[4:], "page")):
        yield StoredObject(ObjectId(object_id), 1, sections)


def encode_manifest(manifest: Manifest, record_key: str) -> bytes:
    """The bytes of a manifest blob."""
    body = zlib.compress(_MANIFESTS.encode(manifest), 6)
    return MANIFEST_MAGIC + _mac(record_key, body) + body


def decode_manifest(raw: bytes, record_key: str) -> Manifest:
    """Read a manifest. Raises: CHECKSUM when it was not made with this key or is damaged; NOT_SUPPORTED."""
    head = len(MANIFEST_MAGIC) + MAC_BYTES
    body = raw[head:]
    if raw[:4] != MANIFEST_MAGIC or not hmac.compare_digest(raw[4:head], _mac(record_key, body)):
        raise CheloniaError(Kind.CHECKSUM, "snapshot", "manifest", "it was not made with this cluster's record key")
    return _MANIFESTS.decode(_inflate(body, "manifest"))


@dataclass(slots=True)
class Segments:
    """Pages gathered into segments. `add` says when one is full; `seal` takes it."""

    body: bytearray
    places: list[tuple[str, int, int]]

    @classmethod
    def empty(cls) -> Segments:
        """Nothing gathered yet."""
        return cls(bytearray(), [])

    def add(self, page: SnapshotPage) -> bool:
        """Append a page; returns whether the segment is to be stored now."""
        self.places.append((page.digest, len(self.body), len(page.body)))
        self.body += page.body
        return len(self.body) >= bounds.SNAPSHOT_SEGMENT_BYTES

    def seal(self, number: int) -> tuple[bytes, list[PageLocation]]:
        """The bytes of the segment and the places in it; another begins."""
        places = [PageLocation(digest, number, offset, length) for digest, offset, length in self.places]
        body, self.body, self.places = bytes(self.body), bytearray(), []
        return body, places


def kept_places(manifest: Manifest, used: Iterable[int]) -> dict[str, PageLocation]:
    """Pages of an earlier snapshot, by digest, in those of its segments that may be used again."""
    segments = frozenset(used)
    return {place.digest: place for place in manifest.pages if place.segment in segments}


def same_pages(manifest: Manifest, others: Iterable[Manifest]) -> dict[str, list[tuple[BlobId, PageLocation]]]:
    """Where else pages of a snapshot are: by digest the segments, and the places in them, of other snapshots."""
    at = {place.digest: manifest.segments[place.segment] for place in manifest.pages}
    found: dict[str, list[tuple[BlobId, PageLocation]]] = {}
    for other in others:
        for place in other.pages:
            segment = other.segments[place.segment]
            if at.get(place.digest, segment) != segment:
                found.setdefault(place.digest, []).append((segment, place))
    return found


def live_share(manifest: Manifest, sizes: dict[int, int]) -> dict[int, float]:
    """For each segment, how much of its bytes the manifest's pages are (`sizes`: bytes of each segment)."""
    live: dict[int, int] = {}
    for place in manifest.pages:
        live[place.segment] = live.get(place.segment, 0) + place.length
    return {segment: live.get(segment, 0) / size if size else 0.0 for segment, size in sizes.items()}


def _mac(record_key: str, body: bytes) -> bytes:
    return hmac.new(bytes.fromhex(record_key), b"chelonia snapshot 1\n" + body, hashlib.sha256).digest()


def _inflate(body: bytes, what: str) -> bytes:
    engine = zlib.decompressobj()
    try:
        raw = engine.decompress(body, bounds.SNAPSHOT_INFLATED_BYTES_MAX)
    except zlib.error as error:
        raise CheloniaError(Kind.CHECKSUM, "snapshot", what, f"cannot be inflated: {error}") from None
    if not engine.eof:
        raise CheloniaError(Kind.TOO_LARGE, "snapshot", what, "inflates to more than any of ours, or is torn")
    return raw


_ENCODER: Final = msgspec.msgpack.Encoder(order="deterministic")
_PAGES: Final = Format("snapshot page", Objects, 1)
_MANIFESTS: Final = Format("snapshot manifest", Manifest, 1)


def snapshot_name(kind: str, number: Ms | int) -> str:
    """What the record beside a snapshot's bytes calls them: it is sealed, so a rebuild can trust it. The number is when
    they were begun, of a manifest later than that of the one before, wherever the clock has been set."""
    return f"snapshot {kind} {number:013d}"


def measured_name(name: str, size: int, sha256: str) -> str:
    """The same name with what its bytes are, so that the seal over it covers that, too."""
    return f"{name} {size} {sha256}"


def parse_snapshot_name(name: str) -> tuple[str, Ms] | None:
    """Kind (`manifest`, `segment`) and number of a snapshot's blob, None for another name."""
    found = _NAME.fullmatch(name)
    return (found[1], Ms(int(found[2]))) if found else None


def named_measure(name: str) -> tuple[int, str] | None:
    """Size and SHA-256 of a snapshot's blob as its name tells them, None where it does not: older software made it."""
    found = _NAME.fullmatch(name)
    return (int(found[3]), found[4]) if found and found[3] else None


_NAME: Final = re.compile(r"snapshot (manifest|segment) ([0-9]+)(?: ([0-9]+) ([0-9a-f]{64}))?")
