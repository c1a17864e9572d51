"""Records at rest: damage is detected, newer is refused, older is migrated."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chelonia.core import bounds
from chelonia.core.cluster.replicas import Checksums, ReplicaFacts
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BlobId, Dn, Guid, Ms
from chelonia.core.values import replace
from chelonia.wire import records
from chelonia.wire.crcs import BlockCrcs
from chelonia.wire.records import Format
from tests.support.failing import fails

FACTS = ReplicaFacts(
    BlobId("0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"),
    Guid("c0ffee00-1111-2222-3333-444455556666"),
    "/a/f",
    Dn("/O=Grid/CN=joe"),
    5,
    Checksums(md5="5d41402abc4b2a76b9719d911017c592"),
    2,
    Ms(1_700_000_000_000),
    "00ff",
    3_600_000,
)
DOCUMENT = (Path(__file__).parents[3] / "docs/formats/tickets.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"^```text (\w+)\n(.+?)\n```", DOCUMENT, re.MULTILINE | re.DOTALL))


def refusal(raw: bytes) -> CheloniaError:
    with pytest.raises(CheloniaError) as caught:
        records.decode_facts(raw)
    return caught.value


def test_a_replica_record_has_the_bytes_of_the_document() -> None:
    assert records.encode_facts(FACTS).hex() == BLOCKS["record"].replace("\n", "")


def test_the_crcs_of_several_blocks_stand_in_the_record_and_disturb_no_older_software() -> None:
    data = bytes(bounds.CHECKED_BLOCK_BYTES + 1)
    facts, crcs = replace(FACTS, size=len(data)), BlockCrcs()
    crcs.update(data)
    raw = records.encode_facts(facts, crcs.blocks())
    assert raw == records.record_of(facts, data)
    assert records.decode_blocks(raw) == crcs.blocks() != b""
    assert records.decode_facts(raw) == facts
    assert records.decode_blocks(records.encode_facts(facts)) == b""


def test_the_crc_of_one_block_is_that_of_the_whole() -> None:
    facts = replace(FACTS, checksums=Checksums(crc32c="9a71bb4c"))
    assert records.decode_blocks(records.record_of(facts, b"hello")).hex() == "9a71bb4c"
    assert records.record_of(facts, b"hello") == records.encode_facts(facts)
    assert records.decode_blocks(records.encode_facts(FACTS)) == b""


@pytest.mark.parametrize("blocks", [b"", b"1", b"1234", b"123456789abc"])
def test_crcs_that_are_not_one_of_each_block_are_none(blocks: bytes) -> None:
    body = {**msgspec.to_builtins(replace(FACTS, size=bounds.CHECKED_BLOCK_BYTES + 1)), "blocks": blocks}
    assert records.decode_blocks(records.check_in(b"CHLR", b"\x01" + msgspec.msgpack.encode(body))) == b""


def test_a_record_of_software_before_says_not_for_how_long_it_may_be_named() -> None:
    body = msgspec.to_builtins(FACTS)
    body.pop("commit_within_ms")
    raw = records.check_in(b"CHLR", b"\x01" + msgspec.msgpack.encode(body))
    assert records.decode_facts(raw) == replace(FACTS, commit_within_ms=0)


def test_what_later_software_adds_to_a_record_is_passed_over() -> None:
    body = {**msgspec.to_builtins(FACTS), "later": 1}
    assert records.decode_facts(records.check_in(b"CHLR", b"\x01" + msgspec.msgpack.encode(body))) == FACTS


@given(
    st.builds(ReplicaFacts, size=st.integers(-1, 2**62), wanted=st.integers(0, 99), created_ms=st.integers(0, 2**62))
)
def test_facts_round_trip(facts: ReplicaFacts) -> None:
    assert records.decode_facts(records.encode_facts(facts)) == facts


def test_every_flipped_bit_and_every_cut_shows() -> None:
    raw = records.encode_facts(FACTS)
    for at in range(len(raw) * 8):
        changed = bytearray(raw)
        changed[at // 8] ^= 1 << at % 8
        assert refusal(bytes(changed)).kind is Kind.CHECKSUM
    for length in range(len(raw)):
        assert refusal(raw[:length]).kind is Kind.CHECKSUM
    assert refusal(raw + b"\x00").kind is Kind.CHECKSUM


def test_a_record_of_newer_software_is_refused_with_the_cure() -> None:
    error = refusal(records.check_in(b"CHLR", b"\x02\x80"))
    assert error.kind is Kind.NOT_SUPPORTED
    assert "upgrade" in error.cause


@pytest.mark.parametrize(
    "body", [b"", b"\x01", b"\x00\x80", b"\x01\x80", b"\x01\xc1", b"\x01\xa1\xff", b"\x01" + b"\x91" * 5000]
)
def test_a_rightly_checked_record_that_says_nothing_sensible_is_damage(body: bytes) -> None:
    assert refusal(records.check_in(b"CHLR", body)).kind is Kind.CHECKSUM


@dataclass(frozen=True)
class Point:
    """A record in its third version."""

    x: int
    y: int
    label: str


def _with_y(old: Any) -> Any:
    return {**old, "y": 0}


def _with_label(old: Any) -> Any:
    return {**old, "label": f"{old['x']},{old['y']}"}


POINT = Format("point", Point, 3, {1: _with_y, 2: _with_label})


@pytest.mark.parametrize(
    ("version", "body", "value"),
    [
        (1, {"x": 7}, Point(7, 0, "7,0")),
        (2, {"x": 7, "y": 8}, Point(7, 8, "7,8")),
        (3, {"x": 7, "y": 8, "label": "p"}, Point(7, 8, "p")),
    ],
)
def test_older_records_are_migrated_step_by_step(version: int, body: Any, value: Point) -> None:
    assert POINT.decode(bytes((version,)) + msgspec.msgpack.encode(body)) == value
    assert POINT.decode(POINT.encode(value)) == value


def test_an_older_record_that_cannot_be_migrated_is_damage() -> None:
    with fails(Kind.CHECKSUM):
        POINT.decode(b"\x02" + msgspec.msgpack.encode({"z": 1}))


def test_a_format_without_a_migration_for_each_older_version_cannot_be_made() -> None:
    with pytest.raises(AssertionError):
        Format("point", Point, 3, {2: _with_label})
