"""A ticket allows exactly its operation, to its holder, until its end; no altered one passes."""

from __future__ import annotations

import re
import string
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BlobId, Dn, Ms, ReferenceId
from chelonia.wire import armour, tickets
from chelonia.wire.tickets import Ticket, Use
from tests.support.failing import fails

ALPHABET = string.ascii_letters + string.digits + "-_"
SECRET = bytes(range(32))
REFERENCE = ReferenceId("5d9b7a52-0c7c-4c3e-9a3f-0b8f6f0e7f11")
TICKET = Ticket(
    method="PUT",
    reference=REFERENCE,
    blob=BlobId("0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"),
    boot=3,
    expires_ms=Ms(1_700_000_060_000),
    nonce="n1",
    purpose="pending",
    dn=Dn("/O=Grid/CN=joe"),
    address="192.0.2.7",
    size=5,
    md5="5d41402abc4b2a76b9719d911017c592",
    single_use=True,
)
USE = Use("PUT", REFERENCE, "/O=Grid/CN=joe", "192.0.2.7", boot=3)
NOW = 1_700_000_000_000
DOCUMENT = (Path(__file__).parents[3] / "docs/formats/tickets.md").read_text(encoding="utf-8")


def refusal(text: str, use: Use = USE, now_ms: int = NOW, secret: bytes = SECRET) -> CheloniaError:
    with pytest.raises(CheloniaError) as caught:
        tickets.verify(secret, text, now_ms, use)
    return caught.value


def test_a_ticket_is_accepted_for_what_it_says() -> None:
    ticket = tickets.verify(SECRET, tickets.issue(SECRET, TICKET), NOW, USE)
    assert ticket == TICKET


def test_a_ticket_has_the_text_of_the_document() -> None:
    blocks = dict(re.findall(r"^```text (\w+)\n(.+?)\n```", DOCUMENT, re.MULTILINE | re.DOTALL))
    assert tickets.issue(SECRET, TICKET) == blocks["ticket"].replace("\n", "")


def test_a_ticket_of_software_before_is_for_all_bytes() -> None:
    *fields, spans = msgspec.to_builtins(TICKET)
    assert spans == ()
    body = b"\x01" + msgspec.msgpack.encode(fields)
    text = armour.to_text(body + tickets._mac(SECRET, body))
    assert tickets.verify(SECRET, text, NOW, USE) == TICKET


def test_every_altered_character_is_refused() -> None:
    text = tickets.issue(SECRET, TICKET)
    for at, char in enumerate(text):
        for other in ALPHABET if at == len(text) - 1 else ALPHABET[:3]:
            if other != char:
                assert refusal(text[:at] + other + text[at + 1 :]).kind is Kind.BAD_TICKET


def test_every_altered_bit_is_refused() -> None:
    raw = armour.from_text(tickets.issue(SECRET, TICKET))
    assert raw is not None
    for at in range(len(raw) * 8):
        changed = bytearray(raw)
        changed[at // 8] ^= 1 << at % 8
        assert refusal(armour.to_text(bytes(changed))).kind is Kind.BAD_TICKET


def test_a_ticket_cut_short_or_prolonged_is_refused() -> None:
    text = tickets.issue(SECRET, TICKET)
    for length in range(len(text)):
        assert refusal(text[:length]).kind is Kind.BAD_TICKET
    for tail in ("=", "A", "AA", "AAAA", "\n", " ", "é"):
        assert refusal(text + tail).kind is Kind.BAD_TICKET


@given(st.text() | st.binary().map(armour.to_text))
def test_what_is_not_a_ticket_is_refused(text: str) -> None:
    assert refusal(text).kind is Kind.BAD_TICKET


@pytest.mark.parametrize(
    ("use", "says"),
    [
        (Use("GET", REFERENCE, USE.dn, USE.address, 3), "allows PUT"),
        (Use("DELETE", REFERENCE, USE.dn, USE.address, 3), "allows PUT"),
        (Use("PUT", "other", USE.dn, USE.address, 3), "another replica"),
        (Use("PUT", REFERENCE, "/O=Grid/CN=eve", USE.address, 3), "another user"),
        (Use("PUT", REFERENCE, "ANONYMOUS", USE.address, 3), "another user"),
        (Use("PUT", REFERENCE, "", USE.address, 3), "another user"),
        (Use("PUT", REFERENCE, USE.dn, "192.0.2.8", 3), "another address"),
        (Use("PUT", REFERENCE, USE.dn, USE.address, 4), "restarted"),
    ],
)
def test_another_use_than_allowed_is_refused(use: Use, says: str) -> None:
    error = refusal(tickets.issue(SECRET, TICKET), use)
    assert error.kind is Kind.BAD_TICKET
    assert says in error.cause


def test_a_ticket_of_another_shepherd_is_refused() -> None:
    assert refusal(tickets.issue(SECRET, TICKET), secret=bytes(32)).kind is Kind.BAD_TICKET


def test_expiry_is_exact_and_is_told_only_to_the_right_bearer() -> None:
    text = tickets.issue(SECRET, TICKET)
    assert tickets.verify(SECRET, text, TICKET.expires_ms - 1, USE) == TICKET
    assert refusal(text, now_ms=TICKET.expires_ms).kind is Kind.EXPIRED
    assert refusal(text, Use("PUT", REFERENCE, "/CN=eve", USE.address, 3), TICKET.expires_ms).kind is Kind.BAD_TICKET


def test_boot_and_binding_matter_only_when_asked_for() -> None:
    free = Ticket("GET", REFERENCE, TICKET.blob, 3, TICKET.expires_ms, "n2")
    text = tickets.issue(SECRET, free)
    assert tickets.verify(SECRET, text, NOW, Use("GET", REFERENCE, "ANONYMOUS", "198.51.100.1", boot=9)) == free


def test_a_newer_format_is_refused_though_rightly_signed() -> None:
    body = b"\x02" + msgspec.msgpack.encode(TICKET)
    text = armour.to_text(body + tickets._mac(SECRET, body))
    assert "upgrade" in refusal(text).cause


@pytest.mark.parametrize("body", [b"", b"\x01", b"\x01\x90", b"\x01\xc1", b"\x01\x93\xa3GET\x01\x02", b"\x00\x90"])
def test_a_rightly_signed_body_that_is_no_ticket_is_refused(body: bytes) -> None:
    assert refusal(armour.to_text(body + tickets._mac(SECRET, body))).kind is Kind.BAD_TICKET


def test_a_ticket_that_would_not_fit_a_url_is_not_issued() -> None:
    with fails(Kind.TOO_LARGE):
        tickets.issue(SECRET, msgspec.structs.replace(TICKET, dn=Dn("/CN=" + "x" * bounds.TICKET_BYTES_MAX)))


@given(
    st.builds(
        Ticket, method=st.sampled_from(["GET", "PUT"]), boot=st.integers(0, 2**63), expires_ms=st.integers(1, 2**63)
    )
)
def test_tickets_round_trip(ticket: Ticket) -> None:
    use = Use(ticket.method, ticket.reference, ticket.dn, ticket.address, ticket.boot)
    assert tickets.verify(SECRET, tickets.issue(SECRET, ticket), 0, use) == ticket


# --- TURLs ---------------------------------------------------------------------------------------------------------


def test_a_turl_names_the_replica_and_shows_the_ticket() -> None:
    assert tickets.turl("https://h:7000/", REFERENCE, "abc-_1") == f"https://h:7000/turl/{REFERENCE}?ticket=abc-_1"
