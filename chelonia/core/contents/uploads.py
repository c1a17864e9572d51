"""Values that tell the Librarian of bytes on their way to a name: uploads begun and committed, pieces of files, parts.

The operations that take them are in `core.ports.librarian`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Annotated

import msgspec
from msgspec import Meta

from chelonia.core import bounds
from chelonia.core.cluster.replicas import Checksums, Receipt, ReplicaFacts
from chelonia.core.contents.extents import ByteRange, Extent, are_ordered
from chelonia.core.contents.parts import NO_PART, PartPlace, UploadId
from chelonia.core.ids import BlobId, Dn, Guid, Ms
from chelonia.core.metadata import Sections, StoredObject
from chelonia.core.names import LogicalName

Expect = Annotated[tuple[tuple[Guid, int], ...], Meta(max_length=bounds.BULK_ELEMENTS_MAX)]
"""(entry, version) pairs a decision was based on; the transact fails with CONFLICT if one has changed."""

PIECE_OF = "piece of "
"""Start of the recorded name of bytes that are only part of a file."""
_PLACE = re.compile(r"([0-9a-f-]{36})-([0-9]{1,19}) of ([0-9]{1,19}) bytes at ((?:[0-9]{1,19}\+[0-9]{1,19},?)+)")
_PART_NAME = re.compile(rf"{PIECE_OF}part ([0-9]{{1,5}}) of ([0-9]{{13}}\.[0-9a-f-]{{36}}): (.*)", re.DOTALL)


class PiecePlace(msgspec.Struct, frozen=True):
    """The place of a piece: `spans` of its file get its bytes, in order. The rest is of the file when the piece was
    placed: `of` and `splices` as in `laid_on`, and its size. It tells a rebuild what was written before."""

    of: str = ""
    splices: int = 0
    size: int = 0
    spans: tuple[ByteRange, ...] = ()

    @property
    def text(self) -> str:
        """The place as `parse_place` reads it."""
        spans = ",".join(f"{each.offset}+{each.length}" for each in self.spans)
        return f"{self.of}-{self.splices} of {self.size} bytes at {spans}"

    @property
    def length(self) -> int:
        """The bytes of the piece."""
        return sum(each.length for each in self.spans)

    def extents(self, blob: BlobId) -> tuple[Extent, ...]:
        """Return the extents of the piece, as the blob of these bytes."""
        skips = accumulate((each.length for each in self.spans), initial=0)
        return tuple(
            Extent(each.offset, each.length, blob, skip) for each, skip in zip(self.spans, skips, strict=False)
        )


NO_PLACE = PiecePlace()
"""In place of an unknown one, and of any bytes but a piece's."""


def parse_place(text: str) -> PiecePlace | None:
    """Read a place; None for any other text."""
    found = _PLACE.fullmatch(text)
    if found is None:
        return None
    pairs = [each.split("+") for each in found[4].split(",") if each]
    spans = tuple(ByteRange(int(offset), int(length)) for offset, length in pairs)
    return PiecePlace(found[1], int(found[2]), int(found[3]), spans) if are_placed(spans) else None


def are_placed(spans: Sequence[ByteRange]) -> bool:
    """Whether spans of a file can be the place of a piece."""
    return 0 < len(spans) <= bounds.PLACED_SPANS_MAX and are_ordered(spans)


class BeginPut(msgspec.Struct, frozen=True):
    """An upload to prepare.

    `named` True reserves the name as pending until `expires_ms` (the original's putFile); False writes nothing and
    only makes ids (bytes first). `replaces`: the file to overwrite, "" for a new one. `size` -1 and empty
    `checksums`: not known yet. The Shepherds record `ln` beside the bytes for rebuilds. `piece`: the bytes will be
    part of a file: a rebuild must not take them for the whole. `part`: their place in an upload in parts; `at`: of
    another piece, its place in its file. `anew`: of a file to overwrite, the users' metadata that `sections` lack go.
    """

    parent: Guid
    name: str
    ln: LogicalName
    owner: Dn
    sections: Sections
    wanted: int
    size: int
    checksums: Checksums
    expires_ms: Ms
    named: bool
    replaces: Guid = Guid("")
    expect: Expect = ()
    piece: bool = False
    part: PartPlace = NO_PART
    anew: bool = False
    at: PiecePlace = NO_PLACE

    @property
    def recorded(self) -> str:
        """The name that is sealed and recorded beside the bytes. That of a piece is no Logical Name."""
        return f"{PIECE_OF}{self.ln}" if self.piece else str(self.ln)

    @property
    def recorded_place(self) -> str:
        """The same with the place, as `parse_part_name` or `parse_piece_name` reads it; "" when none is known."""
        if self.part != NO_PART:
            return f"{PIECE_OF}part {self.part.number} of {self.part.upload}: {self.ln}"
        return f"{PIECE_OF}{self.at.text}: {self.ln}" if self.at.spans else ""


def parse_part_name(recorded: str) -> tuple[PartPlace, str] | None:
    """Return place and Logical Name of a part by its recorded name; None for any other name."""
    found = _PART_NAME.fullmatch(recorded)
    if found is None or not 1 <= int(found[1]) <= bounds.PARTS_MAX:
        return None
    return PartPlace(UploadId(found[2]), int(found[1])), found[3]


def parse_piece_name(recorded: str) -> PiecePlace | None:
    """Return the place of a piece in its file by its recorded name; None for any other name."""
    place, colon, _ = recorded.removeprefix(PIECE_OF).partition(": ")
    return parse_place(place) if colon and recorded.startswith(PIECE_OF) else None


class Begun(msgspec.Struct, frozen=True):
    """Ids of the upload, and the cluster's seal over the facts known now. `part_seal`: of a part or a piece, a second
    seal for its record, over its place too. A Librarian of the previous version gives none, and accepts bytes sealed by
    the first.
    """

    guid: Guid
    blob: BlobId
    seal: str
    part_seal: str = ""

    def facts(self, begin: BeginPut, created_ms: Ms) -> ReplicaFacts:
        """Return the facts of the upload's replicas that are known when it begins."""
        name, seal = (begin.recorded_place, self.part_seal) if self.part_seal else (begin.recorded, self.seal)
        owner, size = begin.owner, begin.size
        return ReplicaFacts(self.blob, self.guid, name, owner, size, begin.checksums, begin.wanted, created_ms, seal)


class CommitFile(msgspec.Struct, frozen=True):
    """A commit of durable bytes as a file, in one transact: the Bartender's half of bytes-first.

    `begin.replaces` is the file that has the name now, whatever had it when the upload began. `renew`: the file for
    which it began is gone, so the new one gets a GUID of its own. `policy`: rules for a file that is there, in place
    of all its rules but those of groups; None: it keeps them.
    """

    begin: BeginPut
    begun: Begun
    receipts: Annotated[tuple[Receipt, ...], Meta(max_length=bounds.RECEIPTS_MAX)]
    renew: bool = False
    policy: Mapping[str, str] | None = None


class Committed(msgspec.Struct, frozen=True):
    """The file as committed. `entry`: as the transact left it; None when unknown, as after a retry."""

    guid: Guid
    blob: BlobId
    entry: StoredObject | None = None


class SpliceFile(msgspec.Struct, frozen=True):
    """Extents of new blobs to lay over a file's (`whole`: in place of them), in one transact.

    `begin` names the file (`replaces`, or a new one under `parent` and `name`), as in `CommitFile`. `size` -1: up to
    its end. `described`: the answer is the changed file, not its GUID alone. `mark`: stays with the blobs.
    """

    begin: BeginPut
    pieces: tuple[CommitFile, ...]
    extents: tuple[Extent, ...]
    size: int = -1
    whole: bool = False
    described: bool = False
    mark: str = ""


class CopyFile(msgspec.Struct, frozen=True):
    """A copy by reference: a file gets the bytes of `source`. Both have the same blobs, and want as many copies.
    `begin` and `policy` name the file, as in `CommitFile`; its `sections` are all that it gets beside the bytes.
    `described`: as in `SpliceFile`."""

    source: Guid
    begin: BeginPut
    policy: Mapping[str, str] | None = None
    described: bool = False


class OpenUpload(msgspec.Struct, frozen=True):
    """An upload in parts to open for `begin.ln`, listed in the collection `within` as `key`. `begin.sections`:
    attributes and user metadata for the file; `begin.expires_ms`: when the upload is dropped unless it is sealed."""

    begin: BeginPut
    within: Guid
    key: str


class PutPart(msgspec.Struct, frozen=True):
    """An arrived piece that becomes a part, in place of one of that number. `checksum`: as in `UploadedPart`;
    `etag`: its etag, "" for `part_etag`."""

    upload: UploadId
    number: int
    piece: CommitFile
    checksum: str = ""
    etag: str = ""


class SealUpload(msgspec.Struct, frozen=True):
    """Parts to make the content of a file, in this order. `begin` and `policy` name the file, as in `CommitFile`.

    `order`: number and etag of each part; `least`: least bytes of each part but the last. `described`: as in
    `SpliceFile`.
    """

    upload: UploadId
    begin: BeginPut
    order: tuple[tuple[int, str], ...]
    least: int = 0
    policy: Mapping[str, str] | None = None
    described: bool = False
