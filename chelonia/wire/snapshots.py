"""Namespace snapshots: the metadata of names, as pages that change only where the namespace has changed.

The pager cuts the objects, in a stable order, into pages after ids that a digest picks. So one change touches one page,
and equal objects give equal bytes. A snapshot is a *manifest* that lists its pages; pages are in *segments*, blobs of
some MiB that later snapshots use again. The cluster's record key authenticates the manifest, and that its pages, by
their digests.

Page: `CHLP`, zlib of version byte (1) and msgpack `[[id, {section: {property: value}}], ...]`.
Manifest: `CHLM`, 32 bytes HMAC-SHA256 of `chelonia snapshot 1` newline and the rest, zlib of version byte (1) and a
msgpack map of `Manifest`. Layout and golden bytes: `docs/formats/snapshots.md`.
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
"""Mask of a digest's first byte: a page ends after about one id in 64."""
PAGE_OBJECTS_MAX: Final = 512
"""Most objects of one page, whatever the digests."""

Objects = list[tuple[str, dict[str, dict[str, str]]]]


@dataclass(frozen=True, slots=True)
class PageLocation:
    """The place of a page: its digest (hex), the segment by number, and the bytes in it."""

    digest: str
    segment: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """A whole snapshot. `begun_ms`: a time before its first object was read; `objects`: their number."""

    cluster: str
    generation: int
    begun_ms: int
    objects: int
    segments: tuple[BlobId, ...]
    pages: tuple[PageLocation, ...]


@dataclass(frozen=True, slots=True)
class SnapshotPage:
    """Some objects as bytes, and the digest that identifies them."""

    digest: str
    body: bytes


class Pager:
    """Cuts a stream of objects, in a stable order, into pages."""

    def __init__(self) -> None:
        self._held: Objects = []
        self.objects = 0

    def take(self, obj: StoredObject) -> SnapshotPage | None:
        """Add an object. Return the page that it completes, or None."""
        self._held.append((obj.id, {name: dict(props) for name, props in obj.sections.items()}))
        self.objects += 1
        ends = hashlib.sha256(obj.id.encode()).digest()[0] & CUT_MASK == 0
        return self.rest() if ends or len(self._held) >= PAGE_OBJECTS_MAX else None

    def rest(self) -> SnapshotPage | None:
        """Return the remaining objects as the last page; None without any."""
        held, self._held = self._held, []
        return encode_page(held) if held else None


def encode_page(objects: Objects) -> SnapshotPage:
    """Encode a page; equal objects give equal bytes."""
    body = PAGE_MAGIC + zlib.compress(bytes((_PAGES.version,)) + _ENCODER.encode(objects), 6)
    return SnapshotPage(page_digest(body), body)


def page_digest(body: bytes) -> str:
    """Return the digest of a page in a manifest: 20 bytes of BLAKE2b (RFC 7693) in hex."""
    return hashlib.blake2b(body, digest_size=20).hexdigest()


def decode_page(body: bytes, digest: str) -> Iterator[StoredObject]:
    """Yield the objects of a page, all with version 1. Raises: CHECKSUM, NOT_SUPPORTED, TOO_LARGE."""
    if page_digest(body) != digest or body[:4] != PAGE_MAGIC:
        raise CheloniaError(Kind.CHECKSUM, "snapshot", digest, "the page is not the one that the manifest names")
    for object_id, sections in _PAGES.decode(_inflate(body[4:], "page")):
        yield StoredObject(ObjectId(object_id), 1, sections)


def encode_manifest(manifest: Manifest, record_key: str) -> bytes:
    """Return the bytes of a manifest blob."""
    body = zlib.compress(_MANIFESTS.encode(manifest), 6)
    return MANIFEST_MAGIC + _mac(record_key, body) + body


def decode_manifest(raw: bytes, record_key: str) -> Manifest:
    """Read a manifest. Raises: CHECKSUM (made with another key, or damaged), NOT_SUPPORTED, TOO_LARGE."""
    head = len(MANIFEST_MAGIC) + MAC_BYTES
    body = raw[head:]
    if raw[:4] != MANIFEST_MAGIC or not hmac.compare_digest(raw[4:head], _mac(record_key, body)):
        raise CheloniaError(Kind.CHECKSUM, "snapshot", "manifest", "it was not made with this cluster's record key")
    return _MANIFESTS.decode(_inflate(body, "manifest"))


@dataclass(slots=True)
class Segments:
    """Pages gathered into segments. `add` reports a full one; `seal` takes it."""

    body: bytearray
    places: list[tuple[str, int, int]]

    @classmethod
    def empty(cls) -> Segments:
        """Return segments without a page."""
        return cls(bytearray(), [])

    def add(self, page: SnapshotPage) -> bool:
        """Append a page. Return whether the segment is full."""
        self.places.append((page.digest, len(self.body), len(page.body)))
        self.body += page.body
        return len(self.body) >= bounds.SNAPSHOT_SEGMENT_BYTES

    def seal(self, number: int) -> tuple[bytes, list[PageLocation]]:
        """Return the bytes of the segment and the places in it; begin another."""
        places = [PageLocation(digest, number, offset, length) for digest, offset, length in self.places]
        body, self.body, self.places = bytes(self.body), bytearray(), []
        return body, places


def kept_places(manifest: Manifest, used: Iterable[int]) -> dict[str, PageLocation]:
    """Return the pages of an earlier snapshot, by digest, in the segments `used` again."""
    segments = frozenset(used)
    return {place.digest: place for place in manifest.pages if place.segment in segments}


def same_pages(manifest: Manifest, others: Iterable[Manifest]) -> dict[str, list[tuple[BlobId, PageLocation]]]:
    """Return further copies of a snapshot's pages, by digest: segments of other snapshots, and the places in them."""
    at = {place.digest: manifest.segments[place.segment] for place in manifest.pages}
    found: dict[str, list[tuple[BlobId, PageLocation]]] = {}
    for other in others:
        for place in other.pages:
            segment = other.segments[place.segment]
            if at.get(place.digest, segment) != segment:
                found.setdefault(place.digest, []).append((segment, place))
    return found


def live_share(manifest: Manifest, sizes: dict[int, int]) -> dict[int, float]:
    """Return for each segment the share of its bytes in the manifest's pages (`sizes`: bytes of each segment)."""
    live: dict[int, int] = {}
    for place in manifest.pages:
        live[place.segment] = live.get(place.segment, 0) + place.length
    return {segment: live.get(segment, 0) / size if size else 0.0 for segment, size in sizes.items()}


def _mac(record_key: str, body: bytes) -> bytes:
    return hmac.new(bytes.fromhex(record_key), b"chelonia snapshot 1\n" + body, hashlib.sha256).digest()


def _inflate(body: bytes, name: str) -> bytes:
    engine = zlib.decompressobj()
    try:
        raw = engine.decompress(body, bounds.SNAPSHOT_INFLATED_BYTES_MAX)
    except zlib.error as error:
        raise CheloniaError(Kind.CHECKSUM, "snapshot", name, f"cannot be inflated: {error}") from None
    if not engine.eof:
        raise CheloniaError(Kind.TOO_LARGE, "snapshot", name, "inflates to more than any of ours, or is torn")
    return raw


_ENCODER: Final = msgspec.msgpack.Encoder(order="deterministic")
_PAGES: Final = Format("snapshot page", Objects, 1)
_MANIFESTS: Final = Format("snapshot manifest", Manifest, 1)


def snapshot_name(kind: str, number: Ms | int) -> str:
    """Return the name in the record beside a snapshot's bytes; the record is sealed, so a rebuild can trust it.

    Args: `number`: when the bytes were begun; a manifest's is above the one before, even if the clock was set back.
    """
    return f"snapshot {kind} {number:013d}"


def measured_name(name: str, size: int, sha256: str) -> str:
    """Return the name with size and SHA-256 of its bytes, so that the seal over it covers these, too."""
    return f"{name} {size} {sha256}"


def parse_snapshot_name(name: str) -> tuple[str, Ms] | None:
    """Return kind (`manifest`, `segment`) and number of a snapshot's blob; None for another name."""
    found = _NAME.fullmatch(name)
    return (found[1], Ms(int(found[2]))) if found else None


def named_measure(name: str) -> tuple[int, str] | None:
    """Return size and SHA-256 of a snapshot's blob from its name; None if older software made it without them."""
    found = _NAME.fullmatch(name)
    return (int(found[3]), found[4]) if found and found[3] else None


_NAME: Final = re.compile(r"snapshot (manifest|segment) ([0-9]+)(?: ([0-9]+) ([0-9a-f]{64}))?")
