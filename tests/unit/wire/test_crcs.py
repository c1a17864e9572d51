"""CRCs of the blocks of a stream, however it comes, and of parts of it."""

from itertools import pairwise

import pytest
from awscrt import checksums as crt
from hypothesis import given
from hypothesis import strategies as st

from chelonia.core import bounds
from chelonia.core.contents.extents import ByteRange
from chelonia.wire.crcs import BlockCrcs, block_count, combined, hash_named, whole_blocks, wrong_block

BLOCK = bounds.CHECKED_BLOCK_BYTES
DATA = bytes(range(251)) * (3 * BLOCK // 251 + 20)
DATA = DATA[: 3 * BLOCK + 777]


def crcs_of(data: bytes) -> bytes:
    crcs = BlockCrcs()
    crcs.update(data)
    return crcs.blocks()


@given(st.lists(st.integers(0, len(DATA)), max_size=6))
def test_the_cuts_of_a_stream_change_nothing(cuts: list[int]) -> None:
    crcs, places = BlockCrcs(), sorted([0, *cuts, len(DATA)])
    for start, end in pairwise(places):
        crcs.update(DATA[start:end])
    blocks = [DATA[start : start + BLOCK] for start in range(0, len(DATA), BLOCK)]
    assert crcs.blocks() == b"".join([crt.crc32c(block).to_bytes(4, "big") for block in blocks])
    assert crcs.digest() == crt.crc32c(DATA).to_bytes(4, "big")


@pytest.mark.parametrize(
    ("name", "of_digits"),  # of b"123456789", as catalogues of these sums have it
    [("crc32", "cbf43926"), ("crc32c", "e3069283"), ("crc64nvme", "ae8b14860a799888"), ("adler32", "091e01de")],
)
@given(cut=st.integers(0, 9))
def test_sums_are_those_of_the_catalogues_also_of_pieces(name: str, of_digits: str, cut: int) -> None:
    pieces = [b"123456789"[:cut], b"123456789"[cut:]]
    whole, each = hash_named(name), [hash_named(name) for _ in pieces]
    for one, piece in zip(each, pieces, strict=True):
        whole.update(piece)
        one.update(piece)
    assert whole.hexdigest() == of_digits
    told = ((one.hexdigest(), len(piece)) for one, piece in zip(each, pieces, strict=True))
    assert combined(name, told) == of_digits


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK])
def test_each_block_counts_also_the_last_short_one(size: int) -> None:
    assert len(crcs_of(DATA[:size])) == 4 * block_count(size) == 4 * -(-size // BLOCK)


@given(st.integers(0, len(DATA)), st.integers(0, len(DATA)))
def test_the_blocks_of_a_span_hold_it_and_begin_and_end_where_blocks_do(one: int, other: int) -> None:
    span = ByteRange(min(one, other), abs(one - other))
    found = whole_blocks(span, len(DATA))
    end = found.offset + found.length
    assert found.offset <= span.offset <= span.offset + span.length <= max(end, span.offset)
    assert found.offset % BLOCK == 0
    assert end % BLOCK == 0 or end == len(DATA)
    assert found.length < span.length + 2 * BLOCK


@given(st.integers(0, len(DATA) - 1), st.integers(0, 7))
def test_a_flipped_bit_shows_in_its_block_alone(at: int, bit: int) -> None:
    data = bytearray(DATA)
    data[at] ^= 1 << bit
    crcs = crcs_of(DATA)
    assert wrong_block(bytes(data), 0, crcs) == at // BLOCK
    for number in range(block_count(len(DATA))):
        block = bytes(data[number * BLOCK : (number + 1) * BLOCK])
        assert wrong_block(block, number, crcs) == (number if number == at // BLOCK else -1)
