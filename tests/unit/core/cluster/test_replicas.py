"""Replica states (the one table, written out a second time), checksums and locations."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chelonia.core.cluster.replicas import (
    TRANSITIONS,
    Cause,
    Checksums,
    Location,
    ReplicaState,
    next_state,
    parse_location,
)
from chelonia.core.errors import Kind
from chelonia.core.ids import ReferenceId, ServiceId
from tests.support.failing import fails

EXPECTED = """
creating    verified alive
creating    damaged  invalid
creating    late     stalled
creating    erased   deleted
stalled     verified alive
stalled     damaged  invalid
stalled     erased   deleted
invalid     verified alive
invalid     erased   deleted
alive       verified alive
alive       damaged  invalid
alive       surplus  thirdwheel
alive       erased   deleted
thirdwheel  verified thirdwheel
thirdwheel  damaged  invalid
thirdwheel  missed   alive
thirdwheel  erased   deleted
"""
ROWS = {(state, cause): after for state, cause, after in (line.split() for line in EXPECTED.split("\n") if line)}


@pytest.mark.parametrize("state", list(ReplicaState))
@pytest.mark.parametrize("cause", list(Cause))
def test_cell(state: ReplicaState, cause: Cause) -> None:
    after = next_state(state, cause)
    assert (after.value if after else None) == ROWS.get((state.value, cause.value))


def test_the_strings_of_the_original() -> None:
    words = "alive creating stalled invalid deleted thirdwheel offline"
    assert sorted(state.value for state in ReplicaState) == sorted(words.split())


def test_what_is_deleted_stays_deleted_and_offline_is_never_stored() -> None:
    assert not [key for key in TRANSITIONS if key[0] in (ReplicaState.DELETED, ReplicaState.OFFLINE)]
    assert ReplicaState.OFFLINE not in TRANSITIONS.values()


def test_only_an_erasure_deletes() -> None:
    assert {cause for (_, cause), after in TRANSITIONS.items() if after is ReplicaState.DELETED} == {Cause.ERASED}


HEX = st.sampled_from(["", "aa", "bb"])
SUMS = st.builds(Checksums, HEX, HEX, HEX)


def test_only_what_was_never_whole_stalls() -> None:
    """A Shepherd without a `stalled` replica has lost nothing: it logs that quietly."""
    assert [key for key, after in TRANSITIONS.items() if after is ReplicaState.STALLED] == [
        (ReplicaState.CREATING, Cause.LATE)
    ]


@given(SUMS, SUMS)
def test_agreeing_is_symmetric_and_excludes_conflict(one: Checksums, other: Checksums) -> None:
    assert one.agrees(other) == other.agrees(one)
    assert one.conflicts(other) == other.conflicts(one)
    assert not (one.agrees(other) and one.conflicts(other))


def test_nothing_known_is_neither_agreement_nor_conflict() -> None:
    assert not Checksums().agrees(Checksums(md5="aa"))
    assert not Checksums().conflicts(Checksums(md5="aa"))
    assert not Checksums(md5="aa").agrees(Checksums(sha256="aa"))
    assert Checksums(sha256="bb", md5="aa").conflicts(Checksums(sha256="bb", md5="ab"))


def test_what_is_known_of_checksums_is_added_to_and_not_replaced() -> None:
    assert Checksums("a", crc32c="d").with_more(Checksums("b", "c")) == Checksums("a", "c", crc32c="d")


def test_locations_have_one_blank() -> None:
    location = Location(ServiceId("https://a:1/Shepherd"), ReferenceId("r1"))
    assert str(location) == "https://a:1/Shepherd r1"
    assert parse_location(str(location)) == location


@pytest.mark.parametrize("text", ["", " ", "a", "a ", " b", "a b c", "a  b"])
def test_what_is_no_location(text: str) -> None:
    with fails(Kind.BAD_REQUEST):
        parse_location(text)


def test_a_shepherd_is_not_the_one_its_name_begins() -> None:
    one, two = parse_location("https://a/Shepherd r"), parse_location("https://a/Shepherd2 r")
    assert one.shepherd != two.shepherd
    assert one != two
