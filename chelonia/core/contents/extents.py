"""Extents: a file's content as an ordered list of ranges of immutable blobs. Pure arithmetic, shared by all.

Decides how a list of extents looks after others are laid over it. Never reads bytes.
Invariants: the extents of a content are ordered, do not overlap, and end at or before its size; gaps read as zeros.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BlobId
from chelonia.core.values import replace


class ByteRange(msgspec.Struct, frozen=True):
    """`length` bytes from `offset`."""

    offset: int
    length: int

    @property
    def end(self) -> int:
        """The offset after its last byte."""
        return self.offset + self.length


class Extent(msgspec.Struct, frozen=True, order=True):
    """The bytes [`at`, `at` + `length`) of a file are the bytes [`skip`, `skip` + `length`) of a blob."""

    at: int
    length: int
    blob: BlobId
    skip: int = 0

    @property
    def end(self) -> int:
        """The offset after its last byte."""
        return self.at + self.length

    def part(self, at: int, end: int) -> Extent:
        """Return its part in [`at`, `end`), which it meets."""
        first, last = max(at, self.at), min(end, self.end)
        assert first < last, "the part of an extent has bytes"
        return replace(self, at=first, length=last - first, skip=self.skip + first - self.at)


class Placement(msgspec.Struct, frozen=True):
    """The replicas of one blob as readers see them: location -> state. `sums`: checksums for readers, name -> hex."""

    blob: BlobId
    locations: Mapping[str, str]
    sums: Mapping[str, str] = msgspec.field(default_factory=dict)


class ExtentPage(msgspec.Struct, frozen=True):
    """The extents of a file in a span, up to the offset `until`, and their blobs. `etag`: of the file
    that was read; "" for a file of one blob or none, which has no extents."""

    etag: str
    size: int
    until: int
    extents: tuple[Extent, ...]
    blobs: tuple[Placement, ...]


def check_extents(extents: Sequence[Extent], size: int) -> None:
    """Refuse extents that are no content of `size` bytes (-1: up to their end). Raises: BAD_REQUEST, TOO_LARGE."""
    if len(extents) > bounds.SPLICE_EXTENTS_MAX:
        cause = f"at most {bounds.SPLICE_EXTENTS_MAX} extents in one change, not {len(extents)}; write in several"
        raise CheloniaError(Kind.TOO_LARGE, subject="extents", cause=cause)
    if not -1 <= size <= bounds.FILE_BYTES_MAX:
        cause = f"a file has 0 to {bounds.FILE_BYTES_MAX} bytes, not {size}"
        raise CheloniaError(Kind.BAD_REQUEST, subject="size", cause=cause)
    end, most = 0, bounds.FILE_BYTES_MAX if size < 0 else size
    for extent in extents:
        if extent.at < 0 or extent.length <= 0 or extent.skip < 0:
            cause = f"an extent has a length, and no negative offsets: {extent}"
            raise CheloniaError(Kind.BAD_REQUEST, subject="extents", cause=cause)
        if extent.at < end:
            cause = f"extents are ordered and do not overlap; {extent} begins before {end}"
            raise CheloniaError(Kind.BAD_REQUEST, subject="extents", cause=cause)
        if extent.end > most:
            cause = f"{extent} ends beyond the file's {most} bytes"
            raise CheloniaError(Kind.BAD_REQUEST, subject="extents", cause=cause)
        end = extent.end
    assert are_apart(extents), "what is accepted can be laid over what is there"


def are_ordered(spans: Iterable[ByteRange]) -> bool:
    """Whether spans of a file have bytes, are ordered and do not overlap."""
    end = 0
    for span in spans:
        if span.offset < end or span.length <= 0 or span.end > bounds.FILE_BYTES_MAX:
            return False
        end = span.end
    return True


def are_apart(extents: Iterable[Extent]) -> bool:
    """Whether extents are ordered and do not overlap."""
    return all(one.end <= other.at for one, other in pairwise(extents))


def named_spans(extents: Iterable[Extent]) -> dict[BlobId, tuple[ByteRange, ...]]:
    """Return the bytes of each blob that the extents name, in order; touching or overlapping spans are one."""
    out = dict[BlobId, list[ByteRange]]()
    for extent in sorted(extents, key=lambda each: each.skip):
        spans, end = out.setdefault(extent.blob, []), extent.skip + extent.length
        if spans and extent.skip <= spans[-1].end:
            end = max(end, spans[-1].end)
            spans[-1] = ByteRange(spans[-1].offset, end - spans[-1].offset)
        else:
            spans.append(ByteRange(extent.skip, extent.length))
    return {blob: tuple(spans) for blob, spans in out.items()}


def within(span: ByteRange, spans: Iterable[ByteRange]) -> bool:
    """Whether one of the spans contains `span`."""
    return any(each.offset <= span.offset and span.end <= each.end for each in spans)


def laid(base: Iterable[Extent], over: Sequence[Extent], size: int) -> tuple[Extent, ...]:
    """Return the extents of a content of `size` bytes after laying `over` on `base`."""
    assert are_apart(over), "`check_extents` has seen them"
    left = [extent.part(0, size) for extent in base if extent.at < size]
    for new in over:
        left = [piece for old in left for piece in _around(old, new)]
    out = tuple(sorted([*left, *over]))
    assert are_apart(out), "extents do not overlap"
    assert not out or out[-1].end <= size, "extents end before the size"
    return out


def _around(old: Extent, new: Extent) -> tuple[Extent, ...]:
    """Return the parts of `old` that `new` does not cover."""
    if new.end <= old.at or old.end <= new.at:
        return (old,)
    before = (old.part(old.at, new.at),) if old.at < new.at else ()
    return (*before, old.part(new.end, old.end)) if new.end < old.end else before
