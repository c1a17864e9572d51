"""Bundles: the log records of a commit as one frame."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chelonia.ahash.engine_port import BUNDLE, frame_of_master, frame_term
from chelonia.ahash.store_bdb_frames import FrameKind, bundle, frame_kind, unbundle


def control(kind: int = FrameKind.LOG, term: int = 7) -> bytes:
    return struct.pack(">9I", 6, 19, 1, 4711, kind, term, 0, 0, 0)


frames = st.lists(
    st.tuples(st.sampled_from([control(), control(FrameKind.NEWFILE)]), st.binary(max_size=90)), min_size=1, max_size=9
)


@given(frames)
def test_what_is_bundled_comes_out_again(parts: list[tuple[bytes, bytes]]) -> None:
    outer = bundle(parts)
    assert list(unbundle(*outer)) == parts
    assert frame_term(outer[0]) == 7
    assert frame_of_master(outer[0])


def test_a_frame_alone_travels_as_it_is() -> None:
    assert bundle([(control(), b"x")]) == (control(), b"x")


@given(frames.filter(lambda parts: len(parts) > 1), st.data())
def test_half_a_bundle_is_refused(parts: list[tuple[bytes, bytes]], data: st.DataObject) -> None:
    outer, record = bundle(parts)
    ends = {0}
    for inner, body in parts:
        ends.add(max(ends) + 8 + len(inner) + len(body))
    cut = data.draw(st.integers(1, len(record) - 1).filter(lambda at: at not in ends))
    with pytest.raises(ValueError, match="bundle"):
        list(unbundle(outer, record[:cut]))


@pytest.mark.parametrize("inner", [control(FrameKind.VOTE1), control(term=8), b"short"])
def test_only_records_of_its_term_are_in_a_bundle(inner: bytes) -> None:
    outer, record = bundle([(control(), b"a"), (inner, b"b")])
    with pytest.raises(ValueError, match="bundle"):
        list(unbundle(outer, record))
    assert frame_kind(outer) == BUNDLE
