"""Checksums put together from those of pieces."""

from __future__ import annotations

import zlib

from hypothesis import given
from hypothesis import strategies as st

from chelonia.core.combining import combined_adler32


def adler(data: bytes) -> str:
    return f"{zlib.adler32(data):08x}"


@given(st.lists(st.binary(max_size=300) | st.integers(0, 70_000).map(lambda n: b"\xff" * n), max_size=5))
def test_the_sum_of_pieces_is_that_of_the_whole(pieces: list[bytes]) -> None:
    assert combined_adler32((adler(piece), len(piece)) for piece in pieces) == adler(b"".join(pieces))


def test_nothing_is_said_where_one_piece_is_not_known() -> None:
    assert combined_adler32([("00620062", 1), ("", 2)]) == ""
