"""The stored layout: golden bytes taken from docs/formats/store.md, and what damage does."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chelonia.ahash.store import layout
from chelonia.ahash.store.bdb.files import format_slot
from chelonia.ahash.store.layout import KeptOutcome, StoreState
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Ms, ObjectId, RequestKey
from tests.support.failing import fails

DOCUMENT = Path(__file__).parents[4] / "docs" / "formats" / "store.md"
OBJECT = ObjectId("0")
DIGEST = layout.request_digest("librarian", RequestKey("put/1"))

GOLDEN = {
    "header key": layout.header_key(OBJECT),
    "header": layout.encode_header(3, {"states": {"closed": "no"}, "entry": {"type": "collection", "GUID": "0"}}),
    "wide key": layout.wide_key(OBJECT, "entries", "é/"),
    "wide value": layout.encode_value("b5e0"),
    "outcome key": layout.outcome_key(DIGEST),
    "outcome": layout.encode_outcome(KeptOutcome(1, 258, Ms(1_700_000_000_000), "note")),
    "expiry key": layout.expiry_key(Ms(1_700_000_000_000), DIGEST),
    "format": layout.encode_value(str(layout.FORMAT)),
    "state": layout.encode_state(StoreState(258, 7)),
    "counter slot": format_slot(1, 258),
}


def documented() -> dict[str, bytes]:
    rows = re.findall(r"^\| ([a-z ]+) \| `([0-9a-f ]+)` \|", DOCUMENT.read_text(), re.MULTILINE)
    return {name: bytes.fromhex(text) for name, text in rows}


def test_the_document_gives_every_golden_record() -> None:
    assert documented().keys() == GOLDEN.keys()


@pytest.mark.parametrize("name", GOLDEN)
def test_records_are_byte_for_byte_as_documented(name: str) -> None:
    assert GOLDEN[name].hex(" ") == documented()[name].hex(" ")


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=8)
SECTIONS = st.dictionaries(TEXT, st.dictionaries(TEXT, TEXT, min_size=1), max_size=4)


@given(version=st.integers(1, 2**60), sections=SECTIONS)
def test_headers_come_back(version: int, sections: layout.MutableSections) -> None:
    assert layout.decode_header(layout.encode_header(version, sections)) == (version, sections)


@given(names=st.lists(st.tuples(TEXT, TEXT, TEXT)))
def test_wide_keys_sort_by_object_section_and_utf8_of_the_property(names: list[tuple[str, str, str]]) -> None:
    keys = [layout.wide_key(ObjectId(object_id), section, prop) for object_id, section, prop in names]
    by_name = sorted(names, key=lambda name: tuple(part.encode() for part in name))
    assert sorted(keys) == [layout.wide_key(ObjectId(o), s, p) for o, s, p in by_name]
    assert [layout.wide_name(key) for key in keys] == [(section, prop) for _, section, prop in names]


@given(object_id=TEXT, section=TEXT, other=st.tuples(TEXT, TEXT), prop=TEXT)
def test_a_range_holds_exactly_its_section(object_id: str, section: str, other: tuple[str, str], prop: str) -> None:
    key = layout.wide_key(ObjectId(other[0]), other[1], prop)
    start, end = layout.wide_range(ObjectId(object_id), section)
    assert (start <= key < end) == (other == (object_id, section))
    start, end = layout.wide_range(ObjectId(object_id))
    assert (start <= key < end) == (other[0] == object_id)


NOT_UTF_8 = b"\x01\x92\x01\x81\xa1\xff\x80"


@pytest.mark.parametrize("data", [b"", b"\x02\x92\x01\x80", b"\x01", b"\x01\xc1", b"\x01\x93\x01\x80\x80", NOT_UTF_8])
def test_a_record_that_is_damaged_or_newer_is_refused(data: bytes) -> None:
    for decode in (layout.decode_header, layout.decode_state, layout.decode_outcome):
        with fails(Kind.INTERNAL):
            decode(data)


def test_a_value_of_a_newer_format_is_refused() -> None:
    with pytest.raises(CheloniaError, match="newer format"):
        layout.decode_value(b"\x02abc")
