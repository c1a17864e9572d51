"""Bundles: the log records of a commit as one frame."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chelonia.ahash.store.bdb.frames import Bundle, FrameKind, frame_kind, is_whole
from chelonia.ahash.store.replicated_port import frame_of_master, frame_term

PERM, FLUSH, ESTABLISHED = 0x20, 0x02, 0x04


def control(offset: int, flags: int = ESTABLISHED) -> bytes:
    return struct.pack(">9I", 7, 19, 1, offset, FrameKind.LOG, 5, 8, 9, flags)


def bundled(records: list[bytes]) -> tuple[bytes, bytes]:
    gathered = Bundle()
    for offset, record in enumerate(records[:-1]):
        gathered.add(control(offset), record)
    gathered.add(control(len(records) - 1, PERM | FLUSH | ESTABLISHED), records[-1])
    assert gathered.size == sum(map(len, records))
    frame = gathered.take()
    assert frame is not None
    assert (gathered.take(), gathered.size) == (None, 0)
    return frame


def test_a_bundle_is_a_frame_that_the_library_reads() -> None:
    outer, record = bundled([b"one", b"", b"three"])
    assert struct.unpack(">9I", outer) == (7, 19, 1, 0, 4, 5, 8, 9, PERM | ESTABLISHED)  # the library syncs at none
    heads = [(3, 1, 0, 3), (0, 1, 1, 0), (5, 1, 2, 5)]
    one, two, three = (struct.pack(">4I", *head) for head in heads)
    assert record == one + b"one" + two + three + b"three"
    assert (frame_kind(outer), frame_term(outer), frame_of_master(outer)) == (FrameKind.BULK_LOG, 5, True)


def test_a_frame_alone_travels_as_it_is() -> None:
    assert bundled([b"x"]) == (control(0, PERM | FLUSH | ESTABLISHED), b"x")


records = st.lists(st.binary(max_size=90), min_size=2, max_size=9)


@given(records, st.data())
def test_half_a_bundle_is_told_from_a_whole_one(parts: list[bytes], data: st.DataObject) -> None:
    outer, record = bundled(parts)
    assert is_whole(outer, record)
    ends = {0}
    for part in parts:
        ends.add(max(ends) + 16 + len(part))
    cut = data.draw(st.integers(1, len(record) - 1).filter(lambda at: at not in ends))
    assert not is_whole(outer, record[:cut])


@pytest.mark.parametrize("head", [(2**32 - 1, 1, 0, 2**32 - 1), (1, 1, 0, 0), (0, 1, 0, 1)])
def test_lengths_that_do_not_add_up_are_no_bundle(head: tuple[int, ...]) -> None:
    outer, _ = bundled([b"a", b"b"])
    assert not is_whole(outer, struct.pack(">4I", *head) + b"a")
