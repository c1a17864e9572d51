"""Receipts of durable copies: the bytes that a Shepherd signs, and their form in a header field.

Signed bytes: `chelonia receipt 1` newline, then the msgpack array of the receipt's facts (`_Signed`, in order).
Receipts given together may share one signature, over `chelonia receipts 2` newline and the root of a hash tree of their
signed bytes. Each then carries its way to the root, and can be checked alone.
Text: base64url of version byte (1) | msgpack array of the same facts and the signature. It has no comma, blank or
quote, so commas join receipts in `Chelonia-Receipts`. Golden text: `docs/formats/tickets.md`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from chelonia.core import bounds
from chelonia.core.cluster.replicas import Checksums, Location, Receipt
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BlobId, Ms, ReferenceId, ServiceId
from chelonia.core.values import replace
from chelonia.wire import armour
from chelonia.wire.records import Format

RECEIPT_TEXT_MAX: Final = 4096
"""Characters of one receipt: an RSA signature of 4 096 bits, two ids and a long service URL."""
_TITLE: Final = b"chelonia receipt 1\n"
_TREE_TITLE: Final = b"chelonia receipts 2\n"
_TREE: Final = "tree:"
"""Beginning of a shared signature; no signature of one receipt has a colon there."""
_STEP_BYTES: Final = 33
"""Bytes of a step to the root: the side of the other node (1: right), and its digest."""
_WAY_BYTES_MAX: Final = 32 * _STEP_BYTES


class _Signed(msgspec.Struct, frozen=True, array_like=True):
    """The facts that a Shepherd vouches for; the order of the fields is the format."""

    blob: BlobId
    shepherd: ServiceId
    reference: ReferenceId
    size: int
    sha256: str
    md5: str
    adler32: str
    boot: int
    issued_ms: Ms


class _SignedReceipt(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    facts: _Signed
    signature: str


_FORMAT: Final = Format("receipt", _SignedReceipt, 1)


def signed_bytes(receipt: Receipt) -> bytes:
    """Return the bytes that a receipt's own signature covers: everything but the signature, in one spelling."""
    return _TITLE + msgspec.msgpack.encode(_signed(receipt))


def sign_all(unsigned: Sequence[Receipt], sign: Callable[[bytes], str]) -> tuple[Receipt, ...]:
    """Return the receipts signed, with one signature for all of them."""
    if len(unsigned) == 1:
        return (replace(unsigned[0], signature=sign(signed_bytes(unsigned[0]))),)
    ways = [b""] * len(unsigned)
    level = [(_leaf(receipt), range(n, n + 1)) for n, receipt in enumerate(unsigned)]
    while len(level) > 1:
        above = list[tuple[bytes, range]]()
        for (left, lefts), (right, rights) in zip(level[::2], level[1::2], strict=False):
            for n in lefts:
                ways[n] += b"\1" + right
            for n in rights:
                ways[n] += b"\0" + left
            above.append((_node(left, right), range(lefts.start, rights.stop)))
        level = above + level[2 * len(above) :]  # an odd last one goes up as it is
    if not level:
        return ()
    shared = sign(_TREE_TITLE + level[0][0])
    return tuple(
        replace(receipt, signature=f"{_TREE}{armour.to_text(way)}:{shared}")
        for receipt, way in zip(unsigned, ways, strict=True)
    )


def vouched(receipt: Receipt) -> tuple[bytes, str]:
    """Return the bytes that a receipt's signature must cover, and the signature itself."""
    if not receipt.signature.startswith(_TREE):
        return signed_bytes(receipt), receipt.signature
    text, _, shared = receipt.signature.removeprefix(_TREE).partition(":")
    way, at = (armour.from_text(text) or b"")[:_WAY_BYTES_MAX], _leaf(receipt)
    for start in range(0, len(way), _STEP_BYTES):
        other = way[start + 1 : start + _STEP_BYTES]
        at = _node(at, other) if way[start] == 1 else _node(other, at)
    return _TREE_TITLE + at, shared


def _leaf(receipt: Receipt) -> bytes:
    return hashlib.sha256(b"\0" + signed_bytes(receipt)).digest()


def _node(left: bytes, right: bytes) -> bytes:
    """Hash a node otherwise than a leaf (RFC 6962, section 2.1), so that no node passes for a receipt."""
    return hashlib.sha256(b"\1" + left + right).digest()


def to_text(receipt: Receipt) -> str:
    """Encode a receipt for a header field or SOAP element. Raises: TOO_LARGE beyond `RECEIPT_TEXT_MAX` characters."""
    text = armour.to_text(_FORMAT.encode(_SignedReceipt(_signed(receipt), receipt.signature)))
    if len(text) > RECEIPT_TEXT_MAX:
        raise CheloniaError(Kind.TOO_LARGE, "receipt", "", f"a receipt has at most {RECEIPT_TEXT_MAX} characters")
    return text


def from_text(text: str) -> Receipt:
    """Read a receipt, without checking its signature. Raises: BAD_REQUEST."""
    raw = armour.from_text(text) if len(text) <= RECEIPT_TEXT_MAX else None
    if raw is None:
        raise CheloniaError(Kind.BAD_REQUEST, "receipt", "", "it is not the text of a receipt")
    try:
        whole = _FORMAT.decode(raw)
    except CheloniaError as error:
        raise CheloniaError(Kind.BAD_REQUEST, "receipt", "", error.cause) from None
    facts = whole.facts
    location = Location(facts.shepherd, facts.reference)
    sums = Checksums(facts.sha256, facts.md5, facts.adler32)
    return Receipt(facts.blob, location, facts.size, sums, facts.boot, facts.issued_ms, whole.signature)


def to_header(receipts: tuple[Receipt, ...]) -> str:
    """Return the value of `Chelonia-Receipts`."""
    return ",".join(to_text(receipt) for receipt in receipts)


def from_header(value: str) -> tuple[Receipt, ...]:
    """Read the value of `Chelonia-Receipts`. Raises: BAD_REQUEST; TOO_LARGE beyond `bounds.RECEIPTS_MAX`."""
    texts = [text.strip() for text in value.split(",") if text.strip()]
    if len(texts) > bounds.RECEIPTS_MAX:
        raise CheloniaError(Kind.TOO_LARGE, "receipt", "", f"at most {bounds.RECEIPTS_MAX} receipts are taken")
    return tuple(from_text(text) for text in texts)


def _signed(receipt: Receipt) -> _Signed:
    location, sums = receipt.location, receipt.checksums
    return _Signed(
        receipt.blob,
        location.shepherd,
        location.reference,
        receipt.size,
        sums.sha256,
        sums.md5,
        sums.adler32,
        receipt.boot,
        receipt.issued_ms,
    )
