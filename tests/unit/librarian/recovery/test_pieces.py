"""Which pieces without a snapshot are laid over their file: those that surely follow on it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chelonia.core import bounds
from chelonia.core.contents.extents import ByteRange, Extent, laid
from chelonia.core.contents.uploads import NO_PLACE, PiecePlace, parse_part_name, parse_piece_name, parse_place
from chelonia.core.ids import BlobId, Ms
from chelonia.core.values import replace
from chelonia.librarian.recovery.rebuild.decide import COMMIT_SLACK_MS
from chelonia.librarian.recovery.rebuild.pieces.decide import FoundBase, FoundPiece, following

BASE = FoundBase(10, frozenset({BlobId("base")}), Ms(1_000), -1)


def piece(name: str, created_ms: int, version: int, size: int, *spans: tuple[int, int], **more: Any) -> FoundPiece:
    """A piece of these bytes (offset and end) of a file that had `size` bytes."""
    place = PiecePlace(version, size, tuple(ByteRange(at, end - at) for at, end in spans))
    return FoundPiece(BlobId(name), Ms(created_ms), place, more.pop("sure", True), **more)


FIRST = piece("first", 1_000, 3, 10, (10, 15))
SECOND = piece("second", 1_001, 4, 15, (15, 20))
THIRD = piece("third", 1_002, 5, 20, (20, 25))


def names(pieces: list[FoundPiece], base: FoundBase = BASE) -> list[str]:
    return [each.blob for each in following(base, pieces)]


CASES = [
    ("in order, whatever order they are found in", [THIRD, FIRST, SECOND], ["first", "second", "third"]),
    ("a missing middle piece", [FIRST, THIRD], ["first"]),
    ("a missing first piece", [SECOND, THIRD], []),
    ("a piece without a place", [FIRST, replace(SECOND, place=NO_PLACE), THIRD], ["first"]),
    ("one that may not be committed", [FIRST, replace(SECOND, sure=False)], ["first"]),
    ("the next one has found it committed", [FIRST, replace(SECOND, sure=False), THIRD], ["first", "second", "third"]),
    ("none of the last was heard of", [replace(each, sure=False) for each in (FIRST, SECOND, THIRD)],
     ["first", "second"]),
    ("a write before the end that may not be committed",
     [piece("unsure", 1_000, 3, 10, (0, 5), sure=False), piece("later", 1_001, 4, 10, (10, 15))], []),
    ("one of which no Shepherd has heard, sent again",
     [replace(FIRST, blob=BlobId("a"), sha256="0f", sure=False), replace(FIRST, sha256="0f", sure=False), SECOND],
     ["first", "second"]),
    ("the same, with other bytes",
     [replace(FIRST, blob=BlobId("a"), sha256="0f", sure=False), replace(FIRST, sha256="f0", sure=False), SECOND], []),
    ("a try that came late", [FIRST, replace(FIRST, blob=BlobId("later"), sure=False), SECOND], ["first", "second"]),
    ("one that was sent again", [replace(FIRST, blob=BlobId("a"), sure=False), FIRST, SECOND], ["first", "second"]),
    ("one that another file has", [FIRST, replace(SECOND, free=False), THIRD], ["first"]),
    ("one of which no whole replica was found", [FIRST, replace(THIRD, created_ms=Ms(0))], []),
    ("the file was cut in between", [FIRST, piece("cut", 1_001, 5, 12, (12, 20))], ["first"]),
    ("a tail written anew, whose first piece is erased", [piece("tail", 1_001, 4, 15, (10, 20))], ["tail"]),
    ("a tail, a write before it", [piece("a", 1_001, 4, 15, (0, 3)), piece("b", 1_002, 5, 15, (10, 20))], ["a", "b"]),
    ("a write before a tail that is missing", [piece("a", 1_001, 4, 15, (0, 3))], []),
    ("a hole that the writer left", [piece("far", 1_001, 4, 10, (50, 60))], ["far"]),
    ("versions against the dates", [FIRST, piece("over", 1_001, 2, 10, (1, 2))], []),
    ("the last two dated by clocks that differ",
     [FIRST, piece("after", 1_001, 5, 15, (10, 12)), piece("before", 1_002, 4, 15, (11, 13))], ["first"]),
    ("what is left may have covered an erased piece from before", [FIRST, piece("u", 1_001, 4, 15, (0, 5), sure=False)],
     []),
    ("the same, after the last that is laid", [FIRST, piece("u", 1_001, 5, 15, (10, 20), sure=False)], ["first"]),
    ("the same from between",
     [FIRST, piece("second", 1_001, 5, 15, (15, 20)), piece("u", 1_002, 6, 20, (10, 20), sure=False)], []),
    ("nothing was between", [FIRST, SECOND, piece("u", 1_002, 5, 20, (10, 20), sure=False)], ["first", "second"]),
    ("versions counted anew by a rebuild", [FIRST, piece("anew", 1_001 + COMMIT_SLACK_MS, 2, 15, (15, 20))], ["first"]),
    ("equal dates: by version", [piece("b", 1_001, 5, 15, (0, 5)), piece("a", 1_001, 4, 15, (0, 5)), FIRST],
     ["first", "a", "b"]),
    ("two at once, apart", [piece("a", 1_000, 3, 10, (0, 5)), piece("b", 1_001, 3, 10, (5, 9))], ["a", "b"]),
    ("two at once, over each other", [piece("a", 1_000, 3, 10, (0, 5)), piece("b", 1_001, 3, 10, (4, 9))], []),
    ("older than the file", [piece("old", 900, 3, 9, (0, 5)), FIRST], ["first"]),
    ("a little older than the file, and fitting it", [piece("old", 999, 3, 10, (0, 5)), FIRST], []),
    ("long older than the file, though fitting it", [piece("old", 999 - COMMIT_SLACK_MS, 3, 10, (0, 5)), FIRST],
     ["first"]),
    ("what the file has already", [piece("base", 1_000, 1, 0, (0, 10), free=False), FIRST], ["first"]),
]  # fmt: skip


@pytest.mark.parametrize(("found", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_pieces_are_laid_up_to_the_first_doubt(found: list[FoundPiece], expected: list[str]) -> None:
    assert names(found) == expected


def test_a_file_that_states_a_version_takes_what_is_later_by_that_too() -> None:
    base = replace(BASE, version=3)
    assert names([SECOND], replace(base, size=15)) == ["second"]
    assert names([replace(SECOND, place=replace(SECOND.place, version=3))], replace(base, size=15)) == []
    earlier_by_its_clock = replace(SECOND, created_ms=Ms(999))
    assert names([earlier_by_its_clock, THIRD], replace(base, size=20)) == []
    assert names([replace(earlier_by_its_clock, place=replace(SECOND.place, version=2))], base) == []


def test_nothing_was_between_a_file_and_the_piece_that_states_its_version() -> None:
    unsure = piece("u", 1_001, 4, 15, (0, 5), sure=False)
    assert names([FIRST, unsure], replace(BASE, version=2)) == ["first"]
    assert names([FIRST, unsure], replace(BASE, version=1)) == []


writes = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12), st.booleans()), max_size=12)


@given(writes, st.randoms(use_true_random=False), st.sets(st.integers(0, 11)))
def test_the_pieces_of_one_writer_make_the_file_as_he_left_it(
    written: list[tuple[int, int, bool]], random: Any, erased: set[int]
) -> None:
    base: tuple[Extent, ...] = (Extent(0, 10, BlobId("base")),)
    extents, size, pieces = base, 10, list[FoundPiece]()
    for number, (at, length, rewrites) in enumerate(written):
        start = max(0, size - at) if rewrites else min(at, size) if erased else at  # else a hole may be a loss
        end = max(size, start + length) if rewrites else start + length
        pieces.append(piece(f"{number:02}", 1_000 + number, 3 + 2 * number, size, (start, end)))
        size = max(size, end)
        extents = laid(extents, pieces[-1].extents, size)
    alive = {extent.blob for extent in extents}
    found = [each for number, each in enumerate(pieces) if each.blob in alive or number not in erased]
    random.shuffle(found)
    again, chosen = base, following(BASE, found)
    assert {each.blob for each in chosen} == {each.blob for each in found}
    for each in chosen:
        again = laid(again, each.extents, max(size, each.place.spans[-1].end))
    assert again == extents


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=40), st.integers(0, 2**63 - 1))
def test_a_place_is_read_as_it_was_written(steps: list[tuple[int, int]], version: int) -> None:
    spans, at = [], 0
    for gap, length in steps:
        spans.append(ByteRange(at + gap, length))
        at += gap + length
    place = PiecePlace(version, 7, tuple(spans))
    expected = place if len(spans) <= bounds.PLACED_SPANS_MAX else None
    assert parse_place(place.text) == expected
    assert parse_piece_name(f"piece of {place.text}: /a/b: c") == expected
    assert parse_part_name(f"piece of {place.text}: /a/b") is None
    assert sum(each.length for each in place.extents(BlobId("b"))) == place.length


@pytest.mark.parametrize(
    "name",
    ["/a/b", "piece of /a/b", "piece of /version 1 of 2 bytes at 0+1: x", "version 1 of 2 bytes at 0+1: /f",
     "piece of version 1 of 2 bytes at 0+0: /f", "piece of version 1 of 2 bytes at 5+2,6+1: /f",
     "piece of version 1 of 2 bytes at 9223372036854775807+1: /f", "piece of version 1 of 2 bytes at 0+1",
     "piece of part 7 of 1700000000000.0f1e2d3c-4b5a-4978-8796-a5b4c3d2e1f7: /f"],
)  # fmt: skip
def test_no_other_name_states_a_place(name: str) -> None:
    assert parse_piece_name(name) is None
