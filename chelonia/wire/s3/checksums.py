"""The checksums that clients send beside a body, and those that the door measures as it passes. Pure.

A checksum of an object in parts is of the whole body, combined from those of the parts without reading. Or it is
composite: of the parts' checksums one after the other, with the number of parts behind a dash.
Source: "Checking object integrity", Amazon S3 User Guide; ETag of a body in one piece: its MD5 (RFC 1864 in hex).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from chelonia.wire.crcs import NAMES, Crc, Hash, combined
from chelonia.wire.s3.errors import S3Error

PREFIX: Final = "x-amz-checksum-"


ALGORITHMS: Final[Mapping[str, Callable[[], Hash]]] = {
    "crc32": lambda: Crc("crc32"),
    "crc32c": lambda: Crc("crc32c"),
    "crc64nvme": lambda: Crc("crc64nvme"),
    "sha1": lambda: hashlib.sha1(usedforsecurity=False),
    "sha256": hashlib.sha256,
}
"""Algorithms that clients may name, in `x-amz-checksum-<name>`."""

_ABOUT: Final = tuple(f"{PREFIX}{name}" for name in ("algorithm", "mode", "type"))
_ANY: Final = f"one of {PREFIX}{', -'.join(ALGORITHMS)}"
_WHOLE_ALONE: Final = ("crc64nvme",)
_COMPOSITE: Final = "-"


@dataclass(frozen=True, slots=True)
class InParts:
    """The kind of checksum of an object in parts, chosen when its upload was opened. `asked`: the client named it."""

    name: str = "crc64nvme"
    composite: bool = False
    asked: bool = False

    @property
    def kept(self) -> tuple[str, str]:
        """The form that an open upload stores in place of a checksum; empty unless the client named one."""
        return (self.name, _COMPOSITE if self.composite else "") if self.asked else ("", "")

    @property
    def kind(self) -> str:
        """The value of `x-amz-checksum-type`."""
        return kind_of(_COMPOSITE if self.composite else "")

    def joined(self, pieces: Sequence[tuple[str, int]]) -> str:
        """Return the checksum of joined pieces. `pieces`: of each its checksum (hex) and its length in bytes."""
        if self.composite:
            hashed = ALGORITHMS[self.name]()
            hashed.update(b"".join(bytes.fromhex(value) for value, _ in pieces))
            return f"{base64.b64encode(hashed.digest()).decode()}{_COMPOSITE}{len(pieces)}"
        return to_base64(combined(self.name, pieces))


def in_parts(name: str, kind: str) -> InParts:
    """Return the kind of checksum that the header fields of a new upload ask for. Raises: S3Error."""
    lower, upper = name.lower(), kind.upper()
    if not lower and not upper:
        return InParts()
    if lower not in ALGORITHMS or upper not in ("", "COMPOSITE", "FULL_OBJECT"):
        raise S3Error("InvalidRequest", "Checksum algorithm provided is unsupported. Please try again with any of the "
                                        f"valid types: {[each.upper() for each in ALGORITHMS]}")  # fmt: skip
    composite = upper == "COMPOSITE" or (not upper and lower not in _WHOLE_ALONE)
    if (lower not in NAMES and not composite) or (lower in _WHOLE_ALONE and composite):
        cause = f"The {upper} checksum type cannot be used with the {lower} checksum algorithm."
        raise S3Error("InvalidRequest", cause)
    return InParts(lower, composite, asked=True)


def of_upload(kept: tuple[str, str]) -> InParts:
    """Return the kind of checksum stored with an open upload; the default unless this door stored it."""
    name, value = kept
    return InParts(name, value == _COMPOSITE, asked=True) if name in ALGORITHMS else InParts()


def kind_of(value: str) -> str:
    """Return the type of a checksum in base64."""
    return "COMPOSITE" if _COMPOSITE in value else "FULL_OBJECT"


def to_base64(digits: str) -> str:
    """Return a checksum in hex as S3 spells it."""
    return base64.b64encode(bytes.fromhex(digits)).decode()


def named(fields: Mapping[str, str]) -> dict[str, str]:
    """Return the checksum in header fields, by name. Raises: S3Error (several, unknown or malformed)."""
    lower = {name.lower(): value for name, value in fields.items() if value}
    given = {name.removeprefix(PREFIX): lower[name] for name in lower if name.startswith(PREFIX) and name not in _ABOUT}
    if unknown := given.keys() - ALGORITHMS.keys():
        raise S3Error("InvalidRequest", f"{PREFIX}{min(unknown)[:20]} is not measured by this door: {_ANY}")
    if len(given) > 1:
        raise S3Error("InvalidRequest", "Expecting a single x-amz-checksum- header")
    for name, value in given.items():
        decoded(value, len(ALGORITHMS[name]().digest()), f"x-amz-checksum-{name}")
    return given


def decoded(text: str, size: int, header: str, code: str = "BadDigest") -> bytes:
    """Decode a digest of `size` bytes in base64. Raises: S3Error."""
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != size:
        raise S3Error(code, f"Value for {header} header is invalid: {size} bytes in base64 are wanted")
    return raw


def asked_for(field: str, name: str) -> str:
    """Return the checksum to measure when the client only names it; "": none. Raises: S3Error."""
    lower = name.lower()
    if lower and lower not in ALGORITHMS:
        raise S3Error("InvalidRequest", f"the value of {field} is one of {', '.join(map(str.upper, ALGORITHMS))}")
    return lower


def announced(trailer: str) -> str:
    """Return the name of the checksum that `x-amz-trailer` announces; "": none. Raises: S3Error for anything else."""
    names = [name.strip().lower() for name in trailer.split(",") if name.strip()]
    if not names:
        return ""
    name = names[0].removeprefix(PREFIX)
    if len(names) > 1 or name not in ALGORITHMS or not names[0].startswith(PREFIX):
        raise S3Error("InvalidRequest", f"the value of x-amz-trailer is {_ANY}")
    return name


class Measured:
    """The sums of one body: its MD5, its SHA-256 if the client states one, and a checksum of the client's choice."""

    def __init__(self, *, md5: bytes = b"", sha256: str = "", checksum: str = "", value: str = "") -> None:
        """Args: `md5`, `sha256` (hex), `value` (base64): the required sums; empty: none (`value`: none yet)."""
        self._md5, self._sha256, self.checksum, self._value = md5, sha256, checksum, value
        self._hashes: dict[str, Hash] = {"md5": hashlib.md5(usedforsecurity=False)}
        if sha256 or checksum == "sha256":
            self._hashes["sha256"] = hashlib.sha256()
        if checksum:
            self._hashes.setdefault(checksum, ALGORITHMS[checksum]())
        self.size = 0

    def update(self, data: bytes) -> None:
        self.size += len(data)
        for each in self._hashes.values():
            each.update(data)

    def want(self, name: str) -> None:
        """Measure one more checksum; call it before the body comes."""
        if name not in self._hashes:
            self._hashes[name] = ALGORITHMS[name]()

    def hex(self, name: str) -> str:
        """Return one of the measured checksums in hexadecimal digits."""
        return self._hashes[name].digest().hex()

    @property
    def etag(self) -> str:
        """The MD5 in hexadecimal digits."""
        return self.hex("md5")

    @property
    def value(self) -> str:
        """The client's checksum in base64; "" without one."""
        return to_base64(self.hex(self.checksum)) if self.checksum else ""

    def check(self, trailers: Mapping[str, str]) -> None:
        """Compare with the required sums, also those in trailing fields. Raises: S3Error."""
        if self._md5 and self._md5 != self._hashes["md5"].digest():
            raise S3Error("BadDigest", "The Content-MD5 you specified did not match what we received")
        if self._sha256 and self._sha256 != self._hashes["sha256"].digest().hex():
            cause = "The provided 'x-amz-content-sha256' header does not match what was computed"
            raise S3Error("XAmzContentSHA256Mismatch", cause)
        expected = self._value or (trailers.get(PREFIX + self.checksum, "") if self.checksum else "")
        if expected and expected != self.value:
            cause = f"The {self.checksum.upper()} you specified did not match the calculated checksum"
            raise S3Error("BadDigest", cause)
