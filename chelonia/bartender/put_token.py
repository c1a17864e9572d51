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
from msgspec.structs import asdict

from chelonia.core.cluster.replicas import Checksums
from chelonia.core.contents.parts import PartPlace, UploadId
from chelonia.core.contents.uploads import NO_PLACE, BeginPut, Begun, parse_place
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
    at: str = ""


_READER: Final = msgspec.json.Decoder(_Fields)


def encode(token: PutToken, key: bytes) -> str:
    """Return the token as opaque text."""
    begin = token.begin
    at = begin.at.text if begin.at.spans else ""
    own = {"ln": str(begin.ln), "checksum_type": token.checksum_type, "at": at}
    values = asdict(begin) | asdict(begin.checksums) | asdict(begin.part) | asdict(token.begun) | own
    fields = msgspec.convert(values, _Fields)
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
    values = asdict(fields)
    sums, part = msgspec.convert(values, Checksums), msgspec.convert(values, PartPlace)
    at = parse_place(fields.at) or NO_PLACE
    own = {"ln": ln, "sections": {}, "checksums": sums, "named": False, "part": part, "at": at}
    begin, begun = msgspec.convert(values | own, BeginPut), msgspec.convert(values, Begun)
    return PutToken(begin, begun, fields.checksum_type)


def _mac(payload: str, key: bytes) -> bytes:
    return hmac.digest(key, _CONTEXT + payload.encode("ascii"), hashlib.sha256)


def _forged() -> CheloniaError:
    return CheloniaError(Kind.BAD_TICKET, subject="put", cause="not a token of this cluster; start again")
