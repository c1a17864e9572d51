"""The bytes of their blobs that extents name, against sets of single bytes."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from chelonia.core.contents.extents import ByteRange, Extent, named_spans, within
from chelonia.core.ids import BlobId

SPANS = st.builds(ByteRange, st.integers(0, 20), st.integers(1, 6))
EXTENTS = st.builds(
    Extent, st.integers(0, 99), st.integers(1, 6), st.sampled_from([BlobId("a"), BlobId("b")]), st.integers(0, 20)
)


def bytes_of(*spans: ByteRange) -> set[int]:
    return {at for span in spans for at in range(span.offset, span.end)}


@given(st.lists(EXTENTS, max_size=8), SPANS)
def test_named_spans_are_the_bytes_that_extents_name(extents: list[Extent], asked: ByteRange) -> None:
    named = named_spans(extents)
    assert named.keys() == {each.blob for each in extents}
    for blob, spans in named.items():
        own = [ByteRange(each.skip, each.length) for each in extents if each.blob == blob]
        assert bytes_of(*spans) == bytes_of(*own)
        assert all(one.end < other.offset for one, other in pairwise(spans))
        assert within(asked, spans) == (bytes_of(asked) <= bytes_of(*spans))
