"""What the Librarian is told of bytes on their way to a name: uploads begun and committed, pieces of files, parts.

Value types alone. The operations that take them are in `core.ports.librarian`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from chelonia.core import bounds
from chelonia.core.cluster.replicas import Checksums, Receipt, ReplicaFacts
from chelonia.core.contents.extents import Extent
from chelonia.core.contents.parts import NO_PART, PartPlace, UploadId
from chelonia.core.ids import BlobId, Dn, Guid, Ms
from chelonia.core.metadata import Sections, StoredObject
from chelonia.core.names import LogicalName

Expect = Annotated[tuple[tuple[Guid, int], ...], Meta(max_length=bounds.BULK_ELEMENTS_MAX)]
"""(entry, version) pairs a decision was based on; the transact fails with CONFLICT if one has changed."""

PIECE_OF = "piece of "
"""Begins the recorded name of bytes that are only part of a file."""
_PART_NAME = re.compile(rf"{PIECE_OF}part ([0-9]{{1,5}}) of ([0-9]{{13}}\.[0-9a-f-]{{36}}): (.*)", re.DOTALL)


class BeginPut(msgspec.Struct, frozen=True):
    """Prepare an upload.

    `named` True reserves the name as pending until `expires_ms` (the original's putFile); False writes nothing and
    only makes ids (bytes first). `replaces`: the file to overwrite, "" for a new one. `size` -1 and empty
    `checksums` when not known before. `ln` is recorded beside the bytes for rebuilds. `piece`: the bytes will be
    part of a file: a rebuild must not take them for the whole. `part`: of which upload in parts it will be which.
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

    @property
    def recorded(self) -> str:
        """The name that is sealed and recorded beside the bytes; a piece's is no Logical Name."""
        return f"{PIECE_OF}{self.ln}" if self.piece else str(self.ln)

    @property
    def recorded_part(self) -> str:
        """The same of a part, with its place: what `parse_part_name` reads."""
        return f"{PIECE_OF}part {self.part.number} of {self.part.upload}: {self.ln}"


def parse_part_name(recorded: str) -> tuple[PartPlace, str] | None:
    """The place of a part by its recorded name, and the Logical Name; None for the name of anything else."""
    found = _PART_NAME.fullmatch(recorded)
    if found is None or not 1 <= int(found[1]) <= bounds.PARTS_MAX:
        return None
    return PartPlace(UploadId(found[2]), int(found[1])), found[3]


class Begun(msgspec.Struct, frozen=True):
    """Ids of the upload and the cluster's seal over the facts known now; of a part a second one, over its place too,
    for its record: a Librarian of the version before, which gives none, takes what is sealed by the first."""

    guid: Guid
    blob: BlobId
    seal: str
    part_seal: str = ""

    def facts(self, begin: BeginPut, created_ms: Ms) -> ReplicaFacts:
        """What the replicas of the upload are to be, as far as it was known when it was begun."""
        name, seal = (begin.recorded_part, self.part_seal) if self.part_seal else (begin.recorded, self.seal)
        owner, size = begin.owner, begin.size
        return ReplicaFacts(self.blob, self.guid, name, owner, size, begin.checksums, begin.wanted, created_ms, seal)


class CommitFile(msgspec.Struct, frozen=True):
    """Turn bytes that are durable into a file, in one transact: the Bartender's half of bytes-first.

    `begin.replaces` is the file that has the name now, whatever had it when the upload began; `renew`: the file for
    which it began is gone, so the new one gets a GUID of its own. `policy`: rules for a file that is there, in place
    of all that it has but those of groups; None: it keeps them.
    """

    begin: BeginPut
    begun: Begun
    receipts: Annotated[tuple[Receipt, ...], Meta(max_length=bounds.RECEIPTS_MAX)]
    renew: bool = False
    policy: Mapping[str, str] | None = None


class Committed(msgspec.Struct, frozen=True):
    """The file as committed. `entry`: as the transact has left it; None where that is not known, as after a retry."""

    guid: Guid
    blob: BlobId
    entry: StoredObject | None = None


class SpliceFile(msgspec.Struct, frozen=True):
    """Lay extents of new blobs over what a file has (`whole`: in place of it), in one transact.

    `begin` says which file (`replaces`, or a new one under `parent` and `name`), as of `CommitFile`. `size` -1: as far
    as it reaches. `described`: the answer is the file after it, and not its GUID alone. `mark`: stays with the blobs.
    """

    begin: BeginPut
    pieces: tuple[CommitFile, ...]
    extents: tuple[Extent, ...]
    size: int = -1
    whole: bool = False
    described: bool = False
    mark: str = ""


class CopyFile(msgspec.Struct, frozen=True):
    """Give a file the bytes of another (`source`), by reference: both have the same blobs, and want as many copies.
    `begin` and `policy` say which file, as of `CommitFile`; its `sections` are all that it gets beside the bytes."""

    source: Guid
    begin: BeginPut
    policy: Mapping[str, str] | None = None


class OpenUpload(msgspec.Struct, frozen=True):
    """Open an upload in parts for `begin.ln`, listed in the collection `within` as `key`. `begin.sections`: what the
    file will have of attributes and user metadata; `begin.expires_ms`: when it is given up, unless it is sealed."""

    begin: BeginPut
    within: Guid
    key: str


class PutPart(msgspec.Struct, frozen=True):
    """A piece that has arrived becomes a part, in place of one of that number. `checksum`: as of `UploadedPart`;
    `etag`: what it is to be called, "" for `part_etag`."""

    upload: UploadId
    number: int
    piece: CommitFile
    checksum: str = ""
    etag: str = ""


class SealUpload(msgspec.Struct, frozen=True):
    """Make parts the content of a file, in this order. `begin` and `policy` say which file, as of `CommitFile`.

    `order`: number and etag of each part; `least`: bytes that each has, but the last.
    """

    upload: UploadId
    begin: BeginPut
    order: tuple[tuple[int, str], ...]
    least: int = 0
    policy: Mapping[str, str] | None = None
