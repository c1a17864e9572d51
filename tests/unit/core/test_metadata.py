"""Sections, triples and filters."""

from hypothesis import given
from hypothesis import strategies as st

from chelonia.core.ids import ObjectId
from chelonia.core.metadata import Needed, StoredObject, Triple, from_triples, selects, to_triples

WORD = st.text(min_size=1, max_size=5)
SECTIONS = st.dictionaries(WORD, st.dictionaries(WORD, st.text(max_size=5), min_size=1, max_size=3), max_size=4)


@given(SECTIONS)
def test_triples_and_sections_are_one(sections: dict[str, dict[str, str]]) -> None:
    triples = to_triples(sections)
    assert from_triples(triples) == sections
    assert list(triples) == sorted(triples)


def test_of_two_alike_the_last_wins() -> None:
    assert from_triples((Triple("m", "k", "1"), Triple("m", "k", "2"))) == {"m": {"k": "2"}}


def test_filters() -> None:
    assert selects((), "any", "thing")
    whole, one = (Needed("entry"),), (Needed("states", "size"),)
    assert selects(whole, "entry", "type")
    assert not selects(whole, "entries", "type")
    assert selects(one, "states", "size")
    assert not selects(one, "states", "checksum")
    assert selects(whole + one, "states", "size")


def test_an_object_never_made() -> None:
    nothing = StoredObject(ObjectId("x"), 0)
    assert not nothing.exists
    assert nothing.value("entry", "type") == ""
    assert nothing.value("entry", "type", "none") == "none"
    assert StoredObject(ObjectId("x"), 1, {"entry": {"type": "file"}}).value("entry", "type") == "file"
