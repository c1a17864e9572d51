"""Positions in header fields: the documented bytes, and invalid ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chelonia.core.cluster.position import Position
from chelonia.core.errors import CheloniaError, Kind
from chelonia.wire import positions

GOLDEN = Position("grid/ä", 2, 1046)


def test_golden() -> None:
    assert positions.to_header(GOLDEN) == "2.1046.grid%2F%C3%A4"
    assert positions.from_header("2.1046.grid%2F%C3%A4") == GOLDEN


@given(
    cluster=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
    generation=st.integers(0, 10**18 - 1),
    sequence=st.integers(0, 10**18 - 1),
)
def test_positions_come_back(cluster: str, generation: int, sequence: int) -> None:
    position = Position(cluster, generation, sequence)
    assert positions.from_header(positions.to_header(position)) == position


@pytest.mark.parametrize("text", ["", "1", "1.2", "1.2.", "-1.2.c", "1.2.c d", "1.2.c\n", "x.2.c", "1" * 19 + ".2.c"])
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(CheloniaError, check=lambda error: error.kind is Kind.BAD_REQUEST):
        positions.from_header(text)


def test_a_field_without_measure_is_refused() -> None:
    with pytest.raises(CheloniaError):
        positions.from_header("1.2." + "c" * 300)
