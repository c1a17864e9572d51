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
from chelonia.librarian.recovery.rebuild.pieces.decide import HEARD_MS, FoundBase, FoundPiece, following

BASE = FoundBase(10, frozenset({BlobId("base")}), Ms(1_000), "base")


def piece(name: str, created_ms: int, splices: int, size: int, *spans: tuple[int, int], **more: Any) -> FoundPiece:
    """A piece of these bytes (offset and end) of a file that had `size` bytes."""
    of = more.pop("of", "content" if splices else "base")
    place = PiecePlace(of, splices, size, tuple(ByteRange(at, end - at) for at, end in spans))
    return FoundPiece(BlobId(name), Ms(created_ms), place, more.pop("sure", True), **more)


FIRST = piece("first", 1_000, 0, 10, (10, 15))
SECOND = piece("second", 1_001, 1, 15, (15, 20))
THIRD = piece("third", 1_002, 2, 20, (20, 25))
LONG = COMMIT_SLACK_MS
C = "0f1e2d3c-4b5a-4978-8796-a5b4c3d2e1f7"


def names(pieces: list[FoundPiece], base: FoundBase = BASE) -> list[str]:
    return [each.blob for each in following(base, pieces)]


CASES = [
    ("in order, whatever order they are found in", [THIRD, FIRST, SECOND], ["first", "second", "third"]),
    ("a missing middle piece", [FIRST, THIRD], ["first"]),
    ("a missing first piece", [SECOND, THIRD], []),
    ("a piece without a place", [FIRST, replace(SECOND, place=NO_PLACE), THIRD], ["first"]),
    ("the same, never committed, where numbers leave no room for it",
     [FIRST, SECOND, replace(THIRD, blob=BlobId("junk"), place=NO_PLACE, sure=False), THIRD],
     ["first", "second", "third"]),
    ("the same, where one is missing",
     [FIRST, SECOND, replace(THIRD, blob=BlobId("junk"), place=NO_PLACE, sure=False),
      piece("later", 1_002, 3, 20, (0, 5))], ["first", "second"]),
    ("the same, before the first that was laid on what came of the file",
     [FIRST, replace(SECOND, blob=BlobId("junk"), place=NO_PLACE, sure=False), SECOND], ["first"]),
    ("one that may not be committed", [FIRST, replace(SECOND, sure=False)], ["first"]),
    ("the next one has found it committed", [FIRST, replace(SECOND, sure=False), THIRD], ["first", "second", "third"]),
    ("the one that has found it so long comes two splices later",
     [replace(FIRST, sure=False), piece("later", 1_001, 2, 15, (0, 5))], []),
    ("none of the last was heard of", [replace(each, sure=False) for each in (FIRST, SECOND, THIRD)],
     ["first", "second"]),
    ("a write before the end that may not be committed",
     [piece("unsure", 1_000, 0, 10, (0, 5), sure=False), piece("later", 1_001, 1, 10, (10, 15))], []),
    ("one of which no Shepherd has heard, sent again",
     [replace(FIRST, blob=BlobId("a"), sha256="0f", sure=False), replace(FIRST, sha256="0f", sure=False), SECOND],
     ["first", "second"]),
    ("the same, with other bytes",
     [replace(FIRST, blob=BlobId("a"), sha256="0f", sure=False), replace(FIRST, sha256="f0", sure=False), SECOND], []),
    ("a try that came late", [FIRST, replace(FIRST, blob=BlobId("later"), sure=False), SECOND], ["first", "second"]),
    ("one that was sent again", [replace(FIRST, blob=BlobId("a"), sure=False), FIRST, SECOND], ["first", "second"]),
    ("one that was sent again after its commit",
     [replace(FIRST, sha256="0f"), piece("again", 1_001, 1, 15, (10, 15), sha256="0f", sure=False), SECOND],
     ["first", "second"]),
    ("the same, with a write over it before that",
     [replace(FIRST, sha256="0f"), piece("over", 1_001, 1, 15, (11, 12)),
      piece("again", 1_002, 2, 15, (10, 15), sha256="0f", sure=False), piece("last", 1_003, 2, 15, (15, 20))],
     ["first", "over"]),
    ("one before which another's was committed",
     [FIRST, piece("lost", 1_001, 1, 15, (12, 17), sure=False), piece("won", 1_002, 1, 15, (15, 20)), THIRD],
     ["first", "won", "third"]),
    ("the same, and nothing tells that no more were", [FIRST, piece("lost", 1_001, 1, 15, (12, 17), sure=False),
     piece("won", 1_002, 1, 15, (15, 20)), piece("later", 1_003, 3, 20, (20, 25))], ["first"]),
    ("one that may not be committed, and that later ones cover",
     [FIRST, piece("u", 1_001, 1, 15, (12, 14), sure=False), piece("over", 1_002, 2, 15, (10, 20)),
      piece("next", 1_003, 3, 20, (20, 25))], ["first", "over", "next"]),
    ("the same, which was longer than the file then",
     [FIRST, piece("u", 1_001, 1, 15, (12, 19), sure=False), piece("over", 1_002, 2, 17, (10, 17))],
     ["first", "over"]),
    ("one that found the file longer", [FIRST, piece("u", 1_001, 1, 12, (12, 17), sure=False),
     piece("over", 1_002, 2, 17, (10, 20))], ["first"]),
    ("one whose commit would have been heard of",
     [replace(FIRST, sure=False), SECOND, replace(THIRD, created_ms=Ms(1_002 + HEARD_MS))], []),
    ("what covers a missing piece has one beside it that may not be committed",
     [piece("a", 1_000, 0, 10, (3, 4)), piece("b", 1_002, 2, 20, (9, 10)), piece("tail", 1_003, 3, 20, (10, 25)),
      piece("u", 1_003, 3, 20, (24, 26), sure=False)], ["a"]),
    ("one that another file has", [FIRST, replace(SECOND, free=False), THIRD], ["first"]),
    ("one of which no whole replica was found", [FIRST, replace(THIRD, created_ms=Ms(0))], []),
    ("the file was cut in between", [FIRST, piece("cut", 1_001, 2, 12, (12, 20))], ["first"]),
    ("a tail written anew, whose first piece is erased", [piece("tail", 1_001, 1, 15, (10, 20))], ["tail"]),
    ("a tail, a write before it", [piece("a", 1_001, 1, 15, (0, 3)), piece("b", 1_002, 2, 15, (10, 20))], ["a", "b"]),
    ("a write before a tail that is missing", [piece("a", 1_001, 1, 15, (0, 3))], []),
    ("a hole that the writer left", [piece("far", 1_001, 1, 10, (50, 60))], ["far"]),
    ("dated by clocks that differ: by splices",
     [FIRST, piece("after", 1_001, 2, 15, (10, 12)), piece("before", 1_002, 1, 15, (11, 13))],
     ["first", "before", "after"]),
    ("equal dates: by splices", [piece("b", 1_001, 2, 15, (0, 5)), piece("a", 1_001, 1, 15, (0, 5)), FIRST],
     ["first", "a", "b"]),
    ("dated long before what it follows on", [FIRST, replace(SECOND, created_ms=Ms(1_003 + LONG)), THIRD],
     ["first", "second"]),
    ("what is left may have covered an erased piece from before",
     [piece("first", 1_000, 1, 10, (10, 15)), piece("u", 1_001, 2, 15, (0, 5), sure=False)], []),
    ("nothing was before", [FIRST, piece("u", 1_001, 1, 15, (0, 5), sure=False)], ["first"]),
    ("the same, after the last that is laid", [FIRST, piece("u", 1_001, 2, 15, (10, 20), sure=False)], ["first"]),
    ("the same from between",
     [FIRST, piece("second", 1_001, 2, 15, (15, 20)), piece("u", 1_002, 3, 20, (10, 20), sure=False)], []),
    ("nothing was between", [FIRST, SECOND, piece("u", 1_002, 2, 20, (10, 20), sure=False)], ["first", "second"]),
    ("two at once, apart", [piece("a", 1_000, 0, 10, (0, 5)), piece("b", 1_001, 0, 10, (5, 9))], ["a", "b"]),
    ("two at once, over each other", [piece("a", 1_000, 0, 10, (0, 5)), piece("b", 1_001, 0, 10, (4, 9))], []),
    ("two at once, one of which may not be committed",
     [FIRST, piece("a", 1_000, 1, 15, (0, 5)), piece("b", 1_001, 1, 15, (5, 9), sure=False)], ["first"]),
    ("of another content before", [piece("old", 900, 3, 9, (0, 5), of="past"), FIRST], ["first"]),
    ("of the file, though it looks a little older", [piece("old", 999, 0, 10, (0, 5)), FIRST], ["old", "first"]),
    ("the same, long older", [piece("old", 999 - LONG, 0, 10, (0, 5)), FIRST], []),
    ("of what came of the file, though it looks a little older", [FIRST, replace(SECOND, created_ms=Ms(999)), THIRD],
     ["first", "second", "third"]),
    ("of two contents since, one of which is of another life", [FIRST, SECOND,
     piece("other", 1_002, 2, 20, (0, 5), of="other"), THIRD], ["first"]),
    ("of other whole bytes since", [piece("other", 1_000, 0, 10, (0, 5), of="whole"), FIRST], []),
    ("what the file has already", [piece("base", 1_000, 0, 0, (0, 10), of="past", free=False), FIRST], ["first"]),
]  # fmt: skip


@pytest.mark.parametrize(("found", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_pieces_are_laid_up_to_the_first_doubt(found: list[FoundPiece], expected: list[str]) -> None:
    assert names(found) == expected


def test_a_file_of_several_blobs_takes_what_was_laid_on_its_content_since() -> None:
    base = replace(BASE, size=15, of="content", splices=1)
    assert names([SECOND, THIRD], base) == ["second", "third"]
    assert names([replace(SECOND, created_ms=Ms(999)), THIRD], base) == ["second", "third"]
    assert names([SECOND, THIRD], replace(base, of="other")) == []
    later = replace(base, size=20, splices=2)
    assert names([THIRD], later) == ["third"]
    assert names([SECOND, THIRD], later) == [], "what was on its way when the snapshot was taken may have come after it"


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
        pieces.append(piece(f"{number:02}", 1_000 + number, number, size, (start, end)))
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


@given(writes, st.sets(st.integers(0, 11)), st.sets(st.integers(0, 11)), st.booleans())
def test_in_doubt_a_file_is_as_it_was_at_some_time(
    written: list[tuple[int, int, bool]], erased: set[int], unsure: set[int], last: bool
) -> None:
    """One writer; what was covered may be erased, the last may not be committed, and of others nobody has heard."""
    states, size, pieces = [["base"] * 10], 10, list[FoundPiece]()
    for number, (at, length, rewrites) in enumerate(written):
        start = max(0, size - at) if rewrites else min(at, size)
        end = max(size, start + length) if rewrites else start + length
        pieces.append(piece(f"{number:02}", 1_000 + number, number, size, (start, end), sure=number not in unsure))
        states.append([*states[-1][:start], *[f"{number:02}"] * (end - start), *states[-1][end:]])
        size = max(size, end)
    alive = set(states[-1 if last else -2]) if written else set[str]()
    found = [each for number, each in enumerate(pieces) if each.blob in alive or number not in erased]
    if pieces and not last:
        found = [each for each in found if each.blob != pieces[-1].blob] + [replace(pieces[-1], sure=False)]
    again = states[0]
    for each in following(BASE, found):
        for extent in each.extents:
            gap = [""] * (extent.at - len(again))
            again = [*again, *gap][: extent.at] + [each.blob] * extent.length + again[extent.end :]
    assert again in states


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=40), st.integers(0, 2**63 - 1))
def test_a_place_is_read_as_it_was_written(steps: list[tuple[int, int]], splices: int) -> None:
    spans, at = [], 0
    for gap, length in steps:
        spans.append(ByteRange(at + gap, length))
        at += gap + length
    place = PiecePlace(C, splices, 7, tuple(spans))
    expected = place if len(spans) <= bounds.PLACED_SPANS_MAX else None
    assert parse_place(place.text) == expected
    assert parse_piece_name(f"piece of {place.text}: /a/b: c") == expected
    assert parse_part_name(f"piece of {place.text}: /a/b") is None
    assert sum(each.length for each in place.extents(BlobId("b"))) == place.length


@pytest.mark.parametrize(
    "name",
    ["/a/b", "piece of /a/b", f"piece of /{C}-1 of 2 bytes at 0+1: x", f"{C}-1 of 2 bytes at 0+1: /f",
     f"piece of {C}-1 of 2 bytes at 0+0: /f", f"piece of {C}-1 of 2 bytes at 5+2,6+1: /f",
     f"piece of {C}-1 of 2 bytes at 9223372036854775807+1: /f", f"piece of {C}-1 of 2 bytes at 0+1",
     "piece of version 17 of 2 bytes at 0+1: /f",
     "piece of part 7 of 1700000000000.0f1e2d3c-4b5a-4978-8796-a5b4c3d2e1f7: /f"],
)  # fmt: skip
def test_no_other_name_states_a_place(name: str) -> None:
    assert parse_piece_name(name) is None
