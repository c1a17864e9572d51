"""Checksums in HTTP header fields: `Digest` (RFC 3230), `Repr-Digest` (RFC 9530) and `Content-MD5` (RFC 1864).

`Digest` spells adler32 and crc32c as 8 hex digits (RFC 5843; grid tools send and expect them so), md5 and sha-256 as
base64. `Repr-Digest` has crc64nvme too, which no registry knows: other clients ignore it.
"""

from __future__ import annotations

import base64
import binascii
import re

from chelonia.core.cluster.replicas import Checksums
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.values import replace

_HEX = re.compile(r"[0-9a-f]{1,8}")
_BYTES = {"sha256": 32, "md5": 16, "adler32": 4, "crc32c": 4, "crc64nvme": 8}
_DIGEST = {"adler32": "adler32", "crc32c": "crc32c", "md5": "md5", "sha-256": "sha256"}
_REPR = {"sha-256": "sha256", "md5": "md5", "adler": "adler32", "crc32c": "crc32c", "crc64nvme": "crc64nvme"}
_IN_HEX = ("adler32", "crc32c")


def digest_headers(sums: Checksums) -> tuple[tuple[str, str], ...]:
    """Return the header fields with the known checksums: `Digest` and `Repr-Digest`, or none."""
    old = [f"{name}={value}" for name in _IN_HEX if (value := getattr(sums, name))]
    new = []
    for name in ("crc64nvme", "crc32c", "md5", "sha-256"):
        if known := getattr(sums, _REPR[name]):
            text = base64.b64encode(bytes.fromhex(known)).decode("ascii")
            old += [f"{name}={text}"] if name in _DIGEST and name not in _IN_HEX else []
            new.append(f"{name}=:{text}:")
    headers = [("Digest", ",".join(old))] if old else []
    return tuple(headers + ([("Repr-Digest", ", ".join(reversed(new)))] if new else []))


def wanted(want_digest: str, want_repr_digest: str) -> tuple[str, ...]:
    """Return the names of our checksums that a request asks for, without those of weight 0.

    Source: RFC 3230 section 4.3.1, RFC 9530 section 4.
    """
    names: list[str] = []
    for header, known in ((want_digest, _DIGEST), (want_repr_digest, _REPR)):
        for part in header.split(","):
            name, _, weight = part.strip().replace("=", ";").partition(";")
            field = known.get(name.strip().lower(), "")
            if field and weight.strip().removeprefix("q;") not in ("0", "0.0", "0.00", "0.000"):
                names.append(field)
    return tuple(dict.fromkeys(names))


def parse_digests(*, content_md5: str = "", digest: str = "", repr_digest: str = "") -> Checksums:
    """Return the checksums that a client states for its bytes; ignore algorithms that are not ours.

    Raises: BAD_REQUEST when a value is malformed or two fields contradict each other.
    """
    sums = Checksums()
    if content_md5.strip():
        sums = Checksums(md5=_from_base64("Content-MD5", content_md5, "md5"))
    for header, text, names in (("Digest", digest, _DIGEST), ("Repr-Digest", repr_digest, _REPR)):
        for part in text.split(","):
            name, _, value = part.strip().partition("=")
            field = names.get(name.strip().lower(), "")
            if field:
                sums = _joined(sums, field, _value(header, field, value.partition(";")[0].strip()), header)
    return sums


def _value(header: str, field: str, value: str) -> str:
    if header == "Repr-Digest":
        if len(value) < 2 or value[0] != ":" or value[-1] != ":":
            raise _malformed(header, value)
        return _from_base64(header, value[1:-1], field)
    if field not in _IN_HEX:
        return _from_base64(header, value, field)
    if not _HEX.fullmatch(value.lower()):
        raise _malformed(header, value)
    return value.lower().rjust(8, "0")


def _from_base64(header: str, text: str, field: str) -> str:
    try:
        raw = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        raise _malformed(header, text) from None
    if len(raw) != _BYTES[field]:
        raise _malformed(header, text)
    return raw.hex()


def _joined(sums: Checksums, field: str, value: str, header: str) -> Checksums:
    known = getattr(sums, field)
    if known and known != value:
        raise CheloniaError(Kind.BAD_REQUEST, "", header, f"two different values for {field}")
    return replace(sums, **{field: value})


def _malformed(header: str, text: str) -> CheloniaError:
    return CheloniaError(Kind.BAD_REQUEST, "", header, f"malformed checksum {text[:80]!a}")
