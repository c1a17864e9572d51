"""Messages between replicas, term marks and membership records: golden bytes of the document, and only exact ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chelonia.ahash.group import log_vouching, membership
from chelonia.ahash.group.log_vouching import OPEN_END, TermMark, Vouched, VouchedCommit
from chelonia.ahash.group.membership import Membership
from chelonia.ahash.group.peer_messages import (
    VERSION,
    Ack,
    AnswerFrame,
    Beat,
    CallFrame,
    CheckpointNear,
    Echo,
    EngineFrame,
    Goodbye,
    Hello,
    Message,
    Past,
    Ping,
    Pong,
    Resign,
    Stand,
    decode,
    encode,
    refuse_hello,
)
from chelonia.ahash.store.replicated_port import LogPosition
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn

DOCUMENT = Path(__file__).parents[4] / "docs" / "formats" / "replication.md"
ACK = Ack(LogPosition(5, 1, 2048), 43)
HELLO = Hello(VERSION, "c1", 2, bytes(range(16)), 7)
EXAMPLES: tuple[Message, ...] = (
    HELLO,
    EngineFrame(True, 5, b"ctl", b"rec"),
    Beat(1000, 5, 42, Vouched(4, 1, 41), 43, 44, 680),
    ACK,
    Echo(1000, 5, True, ACK, 680),
    Stand(Vouched(4, 1, 41), (5, 3), True, True),
    Resign(5),
    CallFrame(9, b"body"),
    AnswerFrame(9, b"body"),
    Goodbye("bye"),
    Ping(2_000_000),
    Pong(2_000_000),
    CheckpointNear(5),
    Past(3, VouchedCommit(4, 1, 8, 40), (VouchedCommit(4, 1, 8, 41), VouchedCommit(5, 2, 9, OPEN_END))),
)
MARK = TermMark(5, 2, 42, Vouched(4, 1, 41), 9, (VouchedCommit(4, 1, 8, 41),))
FIRST_MARK = bytes.fromhex("019605022a040129")
"""The bytes of earlier releases."""


def golden(name: str) -> list[str]:
    match = re.search(rf"^```text {name}\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    assert match is not None
    return match[1].split()


def example_record() -> Membership:
    return membership.promote(membership.found(((Dn("/CN=a"), "a:1"), (Dn("/CN=b"), "b:1"))), 2)


u16 = st.integers(0, 2**16 - 1)
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
vouched = st.builds(Vouched, u32, u32, u64)
reached = st.builds(VouchedCommit, u32, u32, u32, u64)
acks = st.builds(Ack, st.builds(LogPosition, u32, u32, u32), u64)
messages = st.one_of(
    st.builds(Hello, u16, st.text(), u32, st.binary(min_size=16, max_size=16), u64, u16),
    st.builds(EngineFrame, st.booleans(), u32, st.binary(), st.binary()),
    st.builds(Beat, u64, u32, u64, vouched, u64, u64, u16),
    acks,
    st.builds(Echo, u64, u32, st.booleans(), st.none() | acks, u16),
    st.builds(Stand, vouched, st.tuples(u32, u32), st.booleans(), st.booleans()),
    st.builds(Resign, u32),
    st.builds(CallFrame, u64, st.binary()),
    st.builds(AnswerFrame, u64, st.binary()),
    st.builds(Goodbye, st.text()),
    st.builds(Ping, u64),
    st.builds(Pong, u64),
    st.builds(CheckpointNear, u32),
    st.builds(Past, u32, reached, st.lists(reached, max_size=9).map(tuple)),
)


def test_golden_messages() -> None:
    lines = golden("messages")
    assert [encode(message).hex() for message in EXAMPLES] == lines
    assert tuple(decode(bytes.fromhex(line)) for line in lines) == EXAMPLES


def test_golden_records() -> None:
    assert [log_vouching.encode_mark(MARK).hex()] == golden("mark")
    assert log_vouching.decode_mark(bytes.fromhex(golden("mark")[0])) == MARK
    assert log_vouching.decode_mark(FIRST_MARK) == TermMark(5, 2, 42, Vouched(4, 1, 41))
    assert [membership.encode(example_record()).hex()] == golden("record")
    assert membership.decode(bytes.fromhex(golden("record")[0])) == example_record()


@given(messages)
def test_every_message_arrives_as_it_left(message: Message) -> None:
    assert decode(encode(message)) == message


@given(st.binary(max_size=80))
def test_bytes_are_one_message_or_refused(data: bytes) -> None:
    """Accepted bytes are the only encoding of their message."""
    try:
        again = encode(decode(data))
    except CheloniaError as error:
        again = data if error.kind is Kind.BAD_REQUEST else b""
    assert again == data


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_a_message_cut_short_is_refused(message: Message) -> None:
    open_ended = {Hello: 33, EngineFrame: 13, CallFrame: 9, AnswerFrame: 9, Goodbye: 1}
    data = encode(message)
    for length in range(open_ended.get(type(message), len(data))):
        with pytest.raises(CheloniaError, match="bad-request"):
            decode(data[:length])


def test_fixed_messages_take_no_tail_and_no_unknown_flag() -> None:
    for message in EXAMPLES:
        if not isinstance(message, Hello | EngineFrame | CallFrame | AnswerFrame | Goodbye):
            with pytest.raises(CheloniaError, match="bad-request"):
                decode(encode(message) + b"\0")
    for data in (encode(EXAMPLES[1]), encode(EXAMPLES[5])):
        with pytest.raises(CheloniaError, match="flags"):
            decode(data[:1] + b"\x81" + data[2:])


def test_a_damaged_record_is_internal() -> None:
    for data in (b"", b"\x02\x90", b"\x01\xff", membership.encode(example_record())[:-1]):
        with pytest.raises(CheloniaError, match="internal"):
            membership.decode(data)
        with pytest.raises(CheloniaError, match="internal"):
            log_vouching.decode_mark(data)


def test_a_stranger_is_told_why() -> None:
    def told(cluster: str, replica: int, hello: Hello = HELLO, round_trip_ms: int = 100) -> str:
        return refuse_hello(hello, cluster, replica, round_trip_ms=round_trip_ms)

    assert told("c1", 2) == ""
    assert "cluster c1, not to c2" in told("c2", 2)
    assert "replica 3" in told("c1", 3)
    assert "version" in told("c1", 2, Hello(VERSION + 1, "c1", 2, bytes(16), 0))
    assert "its ahash.tuning.round_trip_ms is 100, here it is 300" in told("c1", 2, round_trip_ms=300)
