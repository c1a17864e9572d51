"""Receipts: one spelling to sign, one text to carry."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chelonia.core import bounds
from chelonia.core.cluster.replicas import Checksums, Location, Receipt
from chelonia.core.errors import Kind
from chelonia.core.ids import BlobId, Ms, ReferenceId, ServiceId
from chelonia.core.values import replace
from chelonia.wire import armour, receipts
from tests.support.failing import fails

INT = st.integers(-1, 2**63 - 1)
SUMS = st.builds(Checksums, st.text(), st.text(), st.text())
RECEIPT = Receipt(
    BlobId("0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"),
    Location(ServiceId("https://h:7000/Shepherd"), ReferenceId("5d9b7a52-0c7c-4c3e-9a3f-0b8f6f0e7f11")),
    5,
    Checksums(md5="5d41402abc4b2a76b9719d911017c592"),
    3,
    Ms(1_700_000_000_000),
    "c2lnbmF0dXJl",
)
DOCUMENT = (Path(__file__).parents[3] / "docs/formats/tickets.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"^```text (\w+)\n(.+?)\n```", DOCUMENT, re.MULTILINE | re.DOTALL))


def test_text_and_signed_bytes_are_those_of_the_document() -> None:
    assert receipts.to_text(RECEIPT) == BLOCKS["receipt"].replace("\n", "")
    assert receipts.signed_bytes(RECEIPT).hex() == BLOCKS["signed"].replace("\n", "")


def test_the_signature_covers_everything_but_itself() -> None:
    signed = receipts.signed_bytes(RECEIPT)
    assert receipts.signed_bytes(replace(RECEIPT, signature="other")) == signed
    others = [
        replace(RECEIPT, blob=BlobId("other")),
        replace(RECEIPT, location=Location(ServiceId("x"), RECEIPT.location.reference)),
        replace(RECEIPT, location=Location(RECEIPT.location.shepherd, ReferenceId("x"))),
        replace(RECEIPT, size=6),
        replace(RECEIPT, checksums=Checksums(sha256="00")),
        replace(RECEIPT, boot=4),
        replace(RECEIPT, issued_ms=Ms(0)),
    ]
    assert len({receipts.signed_bytes(other) for other in others} | {signed}) == len(others) + 1


@pytest.mark.parametrize("count", range(1, 18))
def test_receipts_given_together_share_one_signature_and_each_stands_for_itself(count: int) -> None:
    unsigned = [replace(RECEIPT, size=n, signature="") for n in range(count)]
    messages = list[bytes]()
    signed = receipts.sign_all(unsigned, lambda message: f"of {messages.append(message) or len(messages)}")
    assert len(messages) == 1
    assert [replace(each, signature="") for each in signed] == unsigned
    carried = [receipts.from_text(receipts.to_text(each)) for each in signed]
    assert {receipts.vouched(each) for each in carried} == {(messages[0], "of 1")}
    for each in carried:
        other = replace(each, size=99)
        assert receipts.vouched(other)[0] != messages[0]


def test_a_shared_signature_is_that_of_the_document() -> None:
    unsigned = [replace(RECEIPT, size=n, signature="") for n in (5, 6, 7)]
    messages = list[bytes]()
    signed = receipts.sign_all(unsigned, lambda message: messages.append(message) or "c2lnbmF0dXJl")
    assert messages[0].hex() == BLOCKS["shared"].replace("\n", "")
    assert signed[0].signature == BLOCKS["tree"].replace("\n", "")


@pytest.mark.parametrize("way", ["", "x", "A", "AQ", "AQID", "-" * 10_000])
def test_a_way_that_leads_nowhere_vouches_for_nothing(way: str) -> None:
    first, _ = receipts.sign_all([RECEIPT, replace(RECEIPT, size=6)], lambda message: "s")
    root, _ = receipts.vouched(first)
    assert receipts.vouched(replace(first, signature=f"tree:{way}:s"))[0] != root


@given(st.lists(st.builds(Receipt, size=INT, boot=INT, issued_ms=INT, checksums=SUMS), max_size=4).map(tuple))
def test_receipts_round_trip_through_a_header(given_receipts: tuple[Receipt, ...]) -> None:
    header = receipts.to_header(given_receipts)
    assert re.fullmatch(r"[A-Za-z0-9_,-]*", header)
    assert receipts.from_header(header) == given_receipts


@given(st.text() | st.binary().map(armour.to_text))
def test_what_is_not_a_receipt_is_a_bad_request(text: str) -> None:
    with fails(Kind.BAD_REQUEST):
        receipts.from_text(text)


def test_receipts_are_bounded_in_size_and_number() -> None:
    with fails(Kind.TOO_LARGE):
        receipts.to_text(replace(RECEIPT, signature="x" * receipts.RECEIPT_TEXT_MAX))
    with fails(Kind.TOO_LARGE):
        receipts.from_header(receipts.to_header((RECEIPT,) * (bounds.RECEIPTS_MAX + 1)))
