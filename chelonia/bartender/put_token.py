"""The token of a bytes-first upload: everything its commit needs, authenticated, so that Bartenders keep nothing.

Layout: `<payload>.<mac>`, both base64url without padding. The payload is a JSON object, the mac HMAC-SHA256 over
`chelonia put 1` NUL payload under the cluster's token key. Any Bartender of the cluster accepts another's token.
Golden text: `docs/formats/put-token.md`.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import dataclass
from typing import Final

import msgspec

from chelonia.core.cluster.replicas import Checksums
from chelonia.core.contents.parts import PartPlace, UploadId
from chelonia.core.contents.uploads import BeginPut, Begun
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BlobId, Dn, Guid, Ms
from chelonia.core.names import parse_ln
from chelonia.wire import armour

TOKEN_BYTES_MAX = 64 * 1024
"""Room for the longest Logical Name, escaped and encoded."""
_CONTEXT = b"chelonia put 1\0"


@dataclass(frozen=True, slots=True)
class PutToken:
    """An upload begun for `begin.owner`. `begin` lacks sections and versions: its commit decides them."""

    begin: BeginPut
    begun: Begun
    checksum_type: str


class _Fields(msgspec.Struct, frozen=True, omit_defaults=True):
    """The payload of a token."""

    parent: Guid
    name: str
    ln: str
    owner: Dn
    wanted: int
    size: int
    sha256: str
    md5: str
    adler32: str
    expires_ms: Ms
    replaces: Guid
    guid: Guid
    blob: BlobId
    seal: str
    checksum_type: str
    piece: bool = False
    upload: UploadId = UploadId("")
    number: int = 0


_READER: Final = msgspec.json.Decoder(_Fields)


def encode(token: PutToken, key: bytes) -> str:
    """Return the token as opaque text."""
    begin, begun, sums = token.begin, token.begun, token.begin.checksums
    fields = _Fields(
        parent=begin.parent,
        name=begin.name,
        ln=str(begin.ln),
        owner=begin.owner,
        wanted=begin.wanted,
        size=begin.size,
        sha256=sums.sha256,
        md5=sums.md5,
        adler32=sums.adler32,
        expires_ms=begin.expires_ms,
        replaces=begin.replaces,
        guid=begun.guid,
        blob=begun.blob,
        seal=begun.seal,
        checksum_type=token.checksum_type,
        piece=begin.piece,
        upload=begin.part.upload,
        number=begin.part.number,
    )
    payload = armour.to_text(json.dumps(msgspec.to_builtins(fields), separators=(",", ":")).encode("ascii"))
    return f"{payload}.{armour.to_text(_mac(payload, key))}"


def decode(text: str, key: bytes) -> PutToken:
    """Check and read a token. Raises: BAD_TICKET when no Bartender of this cluster made it."""
    payload, dot, mac = text.partition(".")
    if len(text) > TOKEN_BYTES_MAX or not dot or not text.isascii():
        raise _forged()
    if not hmac.compare_digest(mac, armour.to_text(_mac(payload, key))):
        raise _forged()
    try:
        fields = _READER.decode(armour.from_text(payload) or b"")
        ln = parse_ln(fields.ln)
    except (ValueError, CheloniaError):  # signed by a version of ours with another payload
        raise _forged() from None
    begin = BeginPut(
        parent=fields.parent,
        name=fields.name,
        ln=ln,
        owner=fields.owner,
        sections={},
        wanted=fields.wanted,
        size=fields.size,
        checksums=Checksums(fields.sha256, fields.md5, fields.adler32),
        expires_ms=fields.expires_ms,
        named=False,
        replaces=fields.replaces,
        piece=fields.piece,
        part=PartPlace(fields.upload, fields.number),
    )
    return PutToken(begin, Begun(fields.guid, fields.blob, fields.seal), fields.checksum_type)


def _mac(payload: str, key: bytes) -> bytes:
    return hmac.digest(key, _CONTEXT + payload.encode("ascii"), hashlib.sha256)


def _forged() -> CheloniaError:
    return CheloniaError(Kind.BAD_TICKET, subject="put", cause="not a token of this cluster; start again")
