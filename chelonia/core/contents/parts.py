"""Uploads in parts: how one is called, and what is told of it and of its parts.

An upload is called `<13-digit ms of its opening>.<ContentId>`, so that those of one key are listed in the order in
which they were opened; to callers this is opaque text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import NewType

import msgspec

from chelonia.core.cluster.replicas import Checksums
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ContentId, Dn, Guid, Ms, is_uuid
from chelonia.core.names import LogicalName

UploadId = NewType("UploadId", str)
"""Names an upload in parts."""
AFTER_KEY = "\x02"
"""`<key>` and this stands behind all uploads of the key, in the order of a listing."""
_BETWEEN = "\x01"


class PartPlace(msgspec.Struct, frozen=True):
    """Which part of which upload."""

    upload: UploadId
    number: int


NO_PART = PartPlace(UploadId(""), 0)
"""Of what is no part, or none that says which."""


def upload_id(opened: Ms, content: ContentId) -> UploadId:
    """The name of an upload."""
    assert 0 <= opened < 10**13, "13 digits keep the order of opening"
    upload = UploadId(f"{opened:013d}.{content}")
    assert parse_upload(upload) == (opened, content), "an upload is found by its name"
    return upload


def parse_upload(upload: str) -> tuple[Ms, ContentId]:
    """When an upload was opened, and the content that it will be. Raises: NOT_FOUND for what is no such name."""
    opened, _, content = upload.partition(".")
    if not (len(opened) == 13 and opened.isascii() and opened.isdigit() and is_uuid(content)):
        raise CheloniaError(Kind.NOT_FOUND, subject=upload[:80], cause="there is no such upload")
    return Ms(int(opened)), ContentId(content)


def listing_mark(key: str, upload: str) -> str:
    """Where an upload stands in the listing of a collection: also what `after` continues from."""
    return f"{key}{_BETWEEN}{upload}"


def parse_mark(mark: str) -> tuple[str, UploadId]:
    """Key and upload of a place in a listing."""
    key, _, upload = mark.rpartition(_BETWEEN)
    return key, UploadId(upload)


def part_etag(sums: Checksums) -> str:
    """The etag of a part whose sender gives it none, 32 hexadecimal digits: its MD5 where a Shepherd was told it, else
    the first half of its SHA-256, as MD5 costs more than all other checksums."""
    return sums.md5 or sums.sha256[:32]


def etag_of(etags: Iterable[str]) -> str:
    """The etag of a file of parts: the MD5 of their etags, and how many they are; "" of what are none."""
    try:
        digests = [bytes.fromhex(etag.strip('"')) for etag in etags]
    except ValueError:
        return ""
    return f"{hashlib.md5(b''.join(digests), usedforsecurity=False).hexdigest()}-{len(digests)}"


class PartsUpload(msgspec.Struct, frozen=True):
    """An open upload: of which key below the collection that lists it, by whom, since when."""

    key: str
    upload: UploadId
    owner: Dn
    opened_ms: Ms


class UploadPage(msgspec.Struct, frozen=True):
    """Open uploads by key, of one key in the order of their opening. `after` continues the listing, "": it ends."""

    uploads: tuple[PartsUpload, ...]
    after: str = ""


class UploadedPart(msgspec.Struct, frozen=True):
    """A part that has arrived. `etag`: `part_etag`; `checksum`: what else its sender keeps with it, `<name>:<hex>`."""

    number: int
    size: int
    etag: str
    arrived_ms: Ms
    checksum: str = ""


class PartPage(msgspec.Struct, frozen=True):
    """Parts of one open upload by number. `after` continues the listing, 0: it ends.

    - `place`: what the upload is for
    - `owner`: who opened it
    - `within`: the collection that lists it
    - `user`: the user metadata that it keeps for its file
    """

    parts: tuple[UploadedPart, ...]
    after: int
    place: LogicalName
    owner: Dn
    within: Guid
    user: Mapping[str, str] = msgspec.field(default_factory=dict)
