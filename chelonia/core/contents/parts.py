"""Uploads in parts: their ids, and the values that describe them and their parts.

An id is `<13-digit ms of its opening>.<ContentId>`, so that a listing has the uploads of one key in the order of their
opening. To callers it is opaque text.
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
"""Id of an upload in parts."""
AFTER_KEY = "\x02"
"""`<key>` with this suffix sorts behind all uploads of the key in a listing."""
_BETWEEN = "\x01"


class PartPlace(msgspec.Struct, frozen=True):
    """A part: its upload, and its number there."""

    upload: UploadId
    number: int


NO_PART = PartPlace(UploadId(""), 0)
"""In place of a part where there is none, or an unknown one."""


def upload_id(opened: Ms, content: ContentId) -> UploadId:
    """Return the id of an upload."""
    assert 0 <= opened < 10**13, "13 digits keep the order of opening"
    upload = UploadId(f"{opened:013d}.{content}")
    assert parse_upload(upload) == (opened, content), "an upload is found by its name"
    return upload


def parse_upload(upload: str) -> tuple[Ms, ContentId]:
    """Return when an upload was opened, and the content it will be. Raises: NOT_FOUND for an invalid id."""
    opened, _, content = upload.partition(".")
    if not (len(opened) == 13 and opened.isascii() and opened.isdigit() and is_uuid(content)):
        raise CheloniaError(Kind.NOT_FOUND, subject=upload[:80], cause="there is no such upload")
    return Ms(int(opened)), ContentId(content)


def listing_mark(key: str, upload: str) -> str:
    """Return the mark of an upload in a collection's listing, from which `after` continues."""
    return f"{key}{_BETWEEN}{upload}"


def parse_mark(mark: str) -> tuple[str, UploadId]:
    """Return key and upload of a mark."""
    key, _, upload = mark.rpartition(_BETWEEN)
    return key, UploadId(upload)


def part_etag(sums: Checksums) -> str:
    """Return the etag of a part whose sender gives none, 32 hexadecimal digits. It is the MD5 if the Shepherd has it,
    else the first half of the SHA-256."""
    return sums.md5 or sums.sha256[:32]  # MD5 costs more than all other checksums


def etag_of(etags: Iterable[str]) -> str:
    """Return the etag of a file of parts: the MD5 of their etags, and their number; "" if one is not hexadecimal."""
    try:
        digests = [bytes.fromhex(etag.strip('"')) for etag in etags]
    except ValueError:
        return ""
    return f"{hashlib.md5(b''.join(digests), usedforsecurity=False).hexdigest()}-{len(digests)}"


class PartsUpload(msgspec.Struct, frozen=True):
    """An open upload: its key below the collection that lists it, its owner and its time of opening."""

    key: str
    upload: UploadId
    owner: Dn
    opened_ms: Ms


class UploadPage(msgspec.Struct, frozen=True):
    """Open uploads by key, of one key in the order of their opening. `after` continues the listing, "" at its end."""

    uploads: tuple[PartsUpload, ...]
    after: str = ""


class UploadedPart(msgspec.Struct, frozen=True):
    """An uploaded part. `etag`: `part_etag`; `checksum`: another one that its sender keeps with it, `<name>:<hex>`."""

    number: int
    size: int
    etag: str
    arrived_ms: Ms
    checksum: str = ""


class PartPage(msgspec.Struct, frozen=True):
    """Parts of one open upload by number. `after` continues the listing, 0 at its end.

    - `place`: the name that the upload is for
    - `owner`: the DN that opened it
    - `within`: the collection that lists it
    - `user`: the user metadata that it keeps for its file
    """

    parts: tuple[UploadedPart, ...]
    after: int
    place: LogicalName
    owner: Dn
    within: Guid
    user: Mapping[str, str] = msgspec.field(default_factory=dict)
