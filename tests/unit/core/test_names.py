"""The one name law, and the grammar of Logical Names."""

from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ROOT, Guid, is_guid, parse_guid, parse_request_key
from chelonia.core.names import LogicalName, check_ln, check_name, entry_key, entry_name, parse_ln
from tests.support.failing import fails

GUID = "1234abcd-0000-4000-8000-00000000beef"

LEGAL = st.text(st.characters(exclude_categories=("Cc", "Cs"), exclude_characters="/"), min_size=1, max_size=60).filter(
    lambda name: name not in (".", "..") and len(name.encode()) <= bounds.NAME_BYTES_MAX
)


@pytest.mark.parametrize(
    "name", ["a", "a b", "...", ".hidden", "ä", "名前", "a" * 255, "a:b?c=d", "é" * 127, "\u00a0", "-rf"]
)
def test_lawful_names(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    ("name", "clause"),
    [
        ("", "has 0"),
        ("a" * 256, "has 256"),
        ("é" * 128, "has 256"),
        (".", "not names"),
        ("..", "not names"),
        ("a/b", "no '/'"),
        ("a\0b", "control"),
        ("a\nb", "control"),
        ("\x7f", "control"),
        ("\x85", "control"),
        ("\udcff", "UTF-8"),
    ],
)
def test_unlawful_names_are_told_the_clause(name: str, clause: str) -> None:
    with fails(Kind.BAD_NAME) as caught:
        check_name(name)
    assert clause in caught.value.cause
    assert caught.value.subject.isascii()
    assert caught.value.subject.endswith("...") is (len(name) > 80)


@pytest.mark.parametrize(
    ("text", "start", "parts", "into"),
    [
        ("", ROOT, (), False),
        ("/", ROOT, (), True),
        ("/a", ROOT, ("a",), False),
        ("/a/b", ROOT, ("a", "b"), False),
        ("/a/b/", ROOT, ("a", "b"), True),
        ("//a///b", ROOT, ("a", "b"), False),
        ("/./a/./b", ROOT, ("a", "b"), False),
        ("0", ROOT, (), False),
        ("0/a", ROOT, ("a",), False),
        (GUID, GUID, (), False),
        (f"{GUID}/green/orange", GUID, ("green", "orange"), False),
        (f"{GUID}/", GUID, (), True),
    ],
)
def test_grammar(text: str, start: str, parts: tuple[str, ...], into: bool) -> None:
    assert parse_ln(text) == LogicalName(parse_guid(start), parts, into)


@pytest.mark.parametrize(
    "text",
    ["a", "a/b", "1", "2/x", "3", "sys:services", "sys:tree/x", "blob:" + GUID, GUID.upper(), GUID + "x", "/a/../b",
     "/..", "/a\0", "/" + "x" * 256, "/" + "a/" * 257, "/" + "a" * bounds.LN_BYTES_MAX, "/\ud800"],
)  # fmt: skip
def test_what_no_logical_name_can_spell(text: str) -> None:
    with fails(Kind.BAD_NAME):
        parse_ln(text)


@given(st.lists(LEGAL, max_size=8))
def test_text_and_name_are_one(parts: list[str]) -> None:
    name = LogicalName(ROOT, tuple(parts))
    assert str(name).startswith("/")
    parsed = parse_ln(str(name))
    assert (parsed.start, parsed.parts) == (name.start, name.parts)


@given(st.text(max_size=40))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        parsed = parse_ln(text)
    except CheloniaError as error:
        outcome = error.kind
        parsed = parse_ln("/")
    else:
        outcome = Kind.BAD_NAME
    assert outcome is Kind.BAD_NAME
    assert is_guid(parsed.start)
    for part in parsed.parts:
        assert check_name(part) == part


def test_parts_of_a_name() -> None:
    name = parse_ln("/a/b")
    assert (name.name, str(name.parent), str(name.child("c"))) == ("b", "/a", "/a/b/c")
    assert (parse_ln("/").name, str(parse_ln("/").parent), str(parse_ln("/"))) == ("", "/", "/")
    assert str(parse_ln(f"{GUID}/x/")) == f"{GUID}/x"


@given(LEGAL, st.booleans())
def test_stored_key_and_name(name: str, is_collection: bool) -> None:
    assert entry_name(entry_key(name, is_collection)) == name


def test_request_keys() -> None:
    assert parse_request_key("k" * 128)
    for text in ("", "k" * 129, "a b", "ä", "a\n"):
        with pytest.raises(CheloniaError):
            parse_request_key(text)


PARTS = st.lists(
    st.one_of(
        st.sampled_from(["", ".", "..", "a", "a/b", "/", "a b", "\n", "a" * 255, "a" * 256, "ä"]), st.text(max_size=3)
    ),
    max_size=4,
)


@given(st.sampled_from([ROOT, GUID, "", "1", "/", "sys:tree"]), PARTS)
def test_a_name_of_values_is_lawful_if_its_own_text_parses_to_it(start: str, parts: list[str]) -> None:
    name = LogicalName(Guid(start), tuple(parts))
    try:
        parsed = parse_ln(str(name))
        lawful = (parsed.start, parsed.parts) == (name.start, name.parts)
    except CheloniaError:
        lawful = False
    with nullcontext() if lawful else fails(Kind.BAD_NAME):
        check_ln(name)


@pytest.mark.parametrize(
    ("parts", "lawful"),
    [
        (("a",) * bounds.LN_DEPTH_MAX, True),
        (("a",) * (bounds.LN_DEPTH_MAX + 1), False),
        (("a" * 255,) * (bounds.LN_BYTES_MAX // 256), True),
        (("a" * 255,) * (bounds.LN_BYTES_MAX // 256) + ("a",), False),
    ],
)
def test_a_name_of_values_has_the_bounds_of_a_text(parts: tuple[str, ...], lawful: bool) -> None:
    if lawful:
        check_ln(LogicalName(ROOT, parts))
    else:
        with fails(Kind.BAD_NAME):
            check_ln(LogicalName(ROOT, parts))
