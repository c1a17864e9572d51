"""Keys and records of the metadata store: one ordered map of bytes, five kinds of key.

`H\\0<id>` the header of an object: version and narrow sections. `W\\0<id>\\0<section>\\0<property>` one property of a
wide section. `R\\0<digest>` the outcome kept under a request key. `X\\0<expiry><digest>` those of one commit, by
expiry. `M\\0<name>` facts about the store itself. Every record but `X` begins with a one-byte format tag; older tags
stay readable.
Invariants: ids, sections and properties hold no NUL, so keys sort by id, section, then UTF-8 bytes of the property.
A wide record never exists without the header of its object. Golden bytes: `docs/formats/store.md`.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Ms, ObjectId, RequestKey

FORMAT: Final = 2
"""Number of this layout, kept in the store; `meta` refuses a newer one and migrates an older one. In format 2
`extents`, `named`, `summaries` and `tally` are wide sections, which a program of format 1 would write into headers."""
TAG: Final = b"\x01"
"""First byte of every record written today, but those of the expiry index."""

META_FORMAT: Final = b"M\0format"
META_CLUSTER: Final = b"M\0cluster"
META_GENERATION: Final = b"M\0generation"
META_STATE: Final = b"M\0state"
META_TERM: Final = b"M\0term"
"""The mark of the newest term in this log (`log_vouching.TermMark`); only in a store that is one of a group."""
META_MEMBERS: Final = b"M\0members"
"""The newest membership record in this log (`membership.Membership`); only in a store that is one of a group."""
EXPIRY_PREFIX: Final = b"X\0"
DIGEST_BYTES: Final = 32
HEADERS: Final = (b"H\0", b"H\1")
"""Range [start, end) of the headers of all objects."""

T = TypeVar("T")
MutableSections = dict[str, dict[str, str]]


class StoreState(msgspec.Struct, frozen=True):
    """Counts that every commit rewrites: the commits of this generation, and the objects."""

    sequence: int
    objects: int


class KeptOutcome(msgspec.Struct, frozen=True):
    """The outcome of an applied transact, kept under its request key until `expires_ms`."""

    generation: int
    sequence: int
    expires_ms: Ms
    memo: str


def header_key(object_id: ObjectId) -> bytes:
    """Return the key of an object's header."""
    return b"H\0" + object_id.encode()


def header_id(key: bytes) -> ObjectId:
    """Return the object id in the key of a header."""
    return ObjectId(key[2:].decode())


def wide_key(object_id: ObjectId, section: str, prop: str) -> bytes:
    """Return the key of one property of a wide section."""
    return f"W\0{object_id}\0{section}\0{prop}".encode()


def wide_range(object_id: ObjectId, section: str = "") -> tuple[bytes, bytes]:
    """Return the range [start, end) of the records of one wide section, or of all when `section` is empty."""
    head = f"W\0{object_id}\0{section}".encode()
    return (head + b"\0", head + b"\1") if section else (head, head[:-1] + b"\1")


def wide_name(key: bytes) -> tuple[str, str]:
    """Return the (section, property) in a wide key."""
    _, _, section, prop = key.split(b"\0", 3)
    return section.decode(), prop.decode()


@functools.lru_cache(maxsize=bounds.COMMIT_BATCH_MAX)  # a batch asks three times for each
def request_digest(scope: str, key: RequestKey) -> bytes:
    """Return 32 bytes that stand for this key in its scope. Source: SHA-256 (FIPS 180-4)."""
    return hashlib.sha256(f"{scope}\0{key}".encode()).digest()


def outcome_key(digest: bytes) -> bytes:
    """Return the key of the outcome kept for a request."""
    return b"R\0" + digest


def expiry_key(expires_ms: Ms, digest: bytes) -> bytes:
    """Return a key of the expiry index, which sorts by time."""
    return EXPIRY_PREFIX + expires_ms.to_bytes(8, "big") + digest


def expiry_record(expires_ms: Ms, digests: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Return the expiry index's (key, value) for at least one digest: the key has the first, the value the others."""
    return expiry_key(expires_ms, digests[0]), b"".join(digests[1:])


def expiry_digests(key: bytes, value: bytes) -> list[bytes]:
    """Return the request digests in a record of the expiry index."""
    found = key[len(EXPIRY_PREFIX) + 8 :] + value
    return [found[at : at + DIGEST_BYTES] for at in range(0, len(found), DIGEST_BYTES)]


def encode_header(version: int, sections: MutableSections) -> bytes:
    """Encode version and narrow sections; equal headers give equal bytes."""
    return TAG + _ENCODER.encode((version, sections))


def decode_header(data: bytes) -> tuple[int, MutableSections]:
    """Decode a header into (version, fresh sections). Raises: INTERNAL when it is damaged or of a newer format."""
    return _decode(_HEADER, data)


def encode_value(value: str) -> bytes:
    """Encode the value of a wide property."""
    return TAG + value.encode()


def decode_value(data: bytes) -> str:
    """Decode the value of a wide property. Raises: INTERNAL."""
    if data[:1] != TAG:
        raise _damaged(data)
    return data[1:].decode()


def encode_state(state: StoreState) -> bytes:
    """Encode the record that every commit rewrites."""
    return TAG + _ENCODER.encode((state.sequence, state.objects))


def decode_state(data: bytes) -> StoreState:
    """Decode the record that every commit rewrites. Raises: INTERNAL."""
    sequence, objects = _decode(_STATE, data)
    return StoreState(sequence, objects)


def encode_outcome(kept: KeptOutcome) -> bytes:
    """Encode the outcome kept under a request key."""
    return TAG + _ENCODER.encode((kept.generation, kept.sequence, kept.expires_ms, kept.memo))


def decode_outcome(data: bytes) -> KeptOutcome:
    """Decode the outcome kept under a request key. Raises: INTERNAL."""
    generation, sequence, expires_ms, memo = _decode(_OUTCOME, data)
    return KeptOutcome(generation, sequence, Ms(expires_ms), memo)


_ENCODER: Final = msgspec.msgpack.Encoder(order="deterministic")
_HEADER: Final = msgspec.msgpack.Decoder(tuple[int, dict[str, dict[str, str]]])
_STATE: Final = msgspec.msgpack.Decoder(tuple[int, int])
_OUTCOME: Final = msgspec.msgpack.Decoder(tuple[int, int, int, str])


def _decode(decoder: msgspec.msgpack.Decoder[T], data: bytes) -> T:
    if not data.startswith(TAG):
        raise _damaged(data)
    try:
        return decoder.decode(memoryview(data)[1:])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _damaged(data) from error


def _damaged(data: bytes) -> CheloniaError:
    cause = f"a record of {len(data)} bytes with tag {data[:1].hex() or 'none'} is damaged or of a newer format"
    return CheloniaError(Kind.INTERNAL, "ahash", "store", cause)
