"""TURL tickets: the right of one bearer to use one replica, signed by its Shepherd alone.

A ticket is base64url of version byte (1) | msgpack array of the fields of `Ticket`, in order | HMAC-SHA256. The HMAC,
under the Shepherd's secret, covers `chelonia ticket` and all before it. Any altered character is refused; comparison is
in constant time. Byte layout and golden text: `docs/formats/tickets.md`.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

import msgspec

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BlobId, Dn, Ms, ReferenceId
from chelonia.wire import armour
from chelonia.wire.records import Format

MAC_BYTES: Final = 32
TURL_PATH: Final = "/turl/"
NAME: Final = "name"
"""Query field of a TURL with the file name for a browser that saves it; anybody may add it."""
METHODS: Final = ("GET", "PUT")


class Ticket(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The content of a ticket. The order of the fields is the format.

    Args:
        method: `GET` or `PUT`.
        reference, blob: the replica.
        boot: the Shepherd's boot number when it was issued.
        expires_ms: not valid at this instant and after.
        nonce: makes two tickets for the same thing differ; the Shepherd remembers used single-use tickets by it.
        purpose: of a PUT, the effect of its last byte (`core.ports.shepherd.Purpose` value).
        dn: the only identity that may use it; empty: any bearer.
        address: the only peer address that may use it; empty: any.
        size: declared size, -1 if unknown; checksums: declared, empty if unknown.
        single_use: valid for one completed use.
        spans: of a GET, offset and length of each allowed range; empty: any.
    """

    method: str
    reference: ReferenceId
    blob: BlobId
    boot: int
    expires_ms: Ms
    nonce: str
    purpose: str = ""
    dn: Dn = Dn("")
    address: str = ""
    size: int = -1
    sha256: str = ""
    md5: str = ""
    adler32: str = ""
    single_use: bool = False
    spans: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Use:
    """A use of a ticket. `boot`: the Shepherd's present boot; it refuses single-use tickets of earlier boots, as it
    remembers uses in memory."""

    method: str
    reference: str
    dn: str
    address: str
    boot: int


_FORMAT: Final = Format("ticket", Ticket, 1)


def issue(secret: bytes, ticket: Ticket) -> str:
    """Sign a ticket.

    Returns: URL-safe text of at most `bounds.TICKET_BYTES_MAX` characters.
    Raises: TOO_LARGE when the fields do not fit.
    """
    assert len(secret) >= 16, "a ticket secret has at least 16 bytes"
    assert ticket.method in METHODS, f"a ticket is for one of {METHODS}"
    body = _FORMAT.encode(ticket)
    text = armour.to_text(body + _mac(secret, body))
    if len(text) > bounds.TICKET_BYTES_MAX:
        raise CheloniaError(Kind.TOO_LARGE, "ticket", "", f"a ticket has at most {bounds.TICKET_BYTES_MAX} characters")
    return text


def verify(secret: bytes, text: str, now_ms: int, use: Use) -> Ticket:
    """Check a ticket against its signature and its use.

    Raises: BAD_TICKET (altered, another method, replica, user, address or boot), EXPIRED.
    """
    ticket = _open(secret, text)
    if ticket.method != use.method:
        raise _refused(f"it allows {ticket.method}, not {use.method[:16]!a}")
    if ticket.reference != use.reference:
        raise _refused("it is for another replica")
    if ticket.dn and ticket.dn != use.dn:
        raise _refused(f"it was given to another user: use the credentials it was asked for with, not {use.dn[:256]}")
    if ticket.address and ticket.address != use.address:
        raise _refused(f"it was given to another address than {use.address[:64]}")
    if ticket.single_use and ticket.boot != use.boot:
        raise _refused("the Shepherd has restarted since: ask for a new TURL")
    if now_ms >= ticket.expires_ms:
        late = now_ms - ticket.expires_ms
        raise CheloniaError(Kind.EXPIRED, "ticket", use.reference[:64], f"expired {late} ms ago: ask for a new TURL")
    return ticket


def _open(secret: bytes, text: str) -> Ticket:
    """Check only the signature and read the ticket. Raises: BAD_TICKET."""
    raw = armour.from_text(text) if len(text) <= bounds.TICKET_BYTES_MAX else None
    if raw is None or len(raw) <= MAC_BYTES:
        raise _refused("it is not a ticket: copy the TURL whole, with its query")
    body, mac = raw[:-MAC_BYTES], raw[-MAC_BYTES:]
    if not hmac.compare_digest(mac, _mac(secret, body)):
        raise _refused("its signature is wrong: altered, or not from this Shepherd")
    try:
        return _FORMAT.decode(body)
    except CheloniaError as error:
        raise _refused(error.cause) from None


# --- TURLs ---------------------------------------------------------------------------------------------------------


def turl(base: str, reference: str, ticket: str) -> str:
    """Compose `<base>/turl/<reference>?ticket=<ticket>`; `base` is `https://host:port`, with or without a slash."""
    return f"{base.rstrip('/')}{TURL_PATH}{quote(reference, safe='')}?ticket={ticket}"


def _mac(secret: bytes, body: bytes) -> bytes:
    return hmac.new(secret, b"chelonia ticket" + body, hashlib.sha256).digest()


def _refused(cause: str) -> CheloniaError:
    return CheloniaError(Kind.BAD_TICKET, "ticket", "", cause)
