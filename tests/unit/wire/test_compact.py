"""The compact encoding: every message arrives as it left, however the stream is cut; anything else is refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from chelonia.core.cluster.position import Position
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ROOT, Dn
from chelonia.core.names import LogicalName
from chelonia.core.operations.ahash import AHASH
from chelonia.core.operations.files import FILES
from chelonia.core.operations.rows import PortMethod
from chelonia.core.operations.tables import TABLES
from chelonia.core.ports.files import Attributes, Listed, Named, Remove, Removing
from chelonia.wire import compact
from tests.support.failing import fails
from tests.unit.wire import messages

CASES = [(row, method) for port in TABLES.values() for row in port.by_method.values()
         if (method := compact.methods(port).get(row.method)) is not None]  # fmt: skip
IDS = [f"{row.service}.{row.method}" for row, _ in CASES]
DOCUMENT = (Path(__file__).parents[3] / "docs/formats/compact.md").read_text(encoding="utf-8")
HERE = Position("grid/ä", 2, 1046)
ASKED = compact.IncomingCall(7, "ahash", "status", "r1", "", "", None, True, compact.encode_args(()))


def body(frame: bytes) -> bytes:
    return frame[compact.LENGTH_BYTES :]


@pytest.mark.parametrize(("row", "method"), CASES, ids=IDS)
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_arguments_and_answer_arrive_as_they_left(row: PortMethod, method: compact.Method, data: st.DataObject) -> None:
    args = data.draw(messages.arguments(row.function))
    packed = compact.encode_args(method.packed(args))
    asked = compact.IncomingCall(1, row.service, method.name, "r", "k", "s", HERE, False, packed)
    read = compact.decode_asked(body(compact.encode_asked(asked)))
    assert (read.read_after, read.strong) == (HERE, False)
    assert compact.decode_args(method, read.args) == args

    result = data.draw(messages.results(row.function))
    answered = compact.decode_answered(body(compact.encode_result(1, method.packed_result(result), HERE)))
    assert answered.position == HERE
    assert compact.decode_result(method, answered) == result


def test_a_call_has_the_bytes_of_the_document() -> None:
    [golden] = [line for line in DOCUMENT.splitlines() if line.startswith("    0000")]
    assert compact.encode_asked(ASKED) == bytes.fromhex(golden)


def test_an_error_arrives_as_the_same_error() -> None:
    error = CheloniaError(Kind.CONFLICT, "transact", "obj", "it changed meanwhile")
    answered = compact.decode_answered(body(compact.encode_failure(3, error, None)))
    with pytest.raises(CheloniaError) as caught:
        compact.decode_result(compact.methods(AHASH)["status"], answered)
    assert repr(caught.value) == repr(error)


@given(st.lists(st.binary(max_size=40), max_size=6), st.lists(st.integers(1, 9), max_size=30))
def test_frames_come_out_whole_however_the_stream_is_cut(bodies: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(len(part).to_bytes(4) + part for part in bodies)
    splitter, found = compact.Splitter(compact.CALL_BYTES_MAX), []
    for cut in cuts:
        found += splitter.feed(stream[:cut])
        stream = stream[cut:]
    found += splitter.feed(stream)
    assert found == bodies


def test_a_frame_beyond_the_bound_is_refused_before_it_has_arrived() -> None:
    with fails(Kind.TOO_LARGE):
        list(compact.Splitter(100).feed((101).to_bytes(4)))


@given(st.integers(1, 2**64 - 1), st.integers(50, 90), st.lists(st.integers(1, 30), max_size=30))
def test_a_call_beyond_what_its_caller_may_is_passed_over_and_its_number_told(
    number: int, size: int, cuts: list[int]
) -> None:
    large = msgspec.msgpack.encode([number, "x" * size])
    stream = b"".join(len(part).to_bytes(4) + part for part in (b"one", large, large, b"two"))
    splitter, found = compact.Splitter(40, 200), []
    for cut in cuts:
        found += splitter.feed(stream[:cut])
        stream = stream[cut:]
    found += splitter.feed(stream)
    assert (found, splitter.passed, splitter.amid) == ([b"one", b"two"], [number, number], False)


DEEP = b"\x91" * 100_000
NO_TEXT = body(compact.encode_asked(ASKED)).replace(b"status", b"stat\xff\xff")
NOT_UTF_8 = b"\x99\x01\xa1\xff"


@pytest.mark.parametrize(
    "junk", [b"", b"\xc1", b"GET / HTTP/1.1\r\n", b"\x92\x01\x02", DEEP, NO_TEXT, b"\x99" + b"\x01" * 9, NOT_UTF_8]
)
def test_what_is_no_call_is_refused(junk: bytes) -> None:
    with fails(Kind.BAD_REQUEST):
        compact.decode_asked(junk)


@pytest.mark.parametrize("args", [[], [1], ["id"], [["id"], "filter", 3], {"ids": []}])
def test_arguments_of_other_types_are_refused(args: object) -> None:
    with fails(Kind.BAD_REQUEST):
        compact.decode_args(compact.methods(AHASH)["get"], msgspec.Raw(msgspec.msgpack.encode(args)))


def test_arguments_that_are_not_utf_8_are_refused() -> None:
    encoded = msgspec.msgpack.encode([["id"], None]).replace(b"id", b"\xffd")
    with fails(Kind.BAD_REQUEST):
        compact.decode_args(compact.methods(AHASH)["get"], msgspec.Raw(encoded))


def test_fields_of_a_later_version_are_passed_over() -> None:
    newer = msgspec.msgpack.encode([7, None, None, {"cluster": "c", "generation": 1, "sequence": 2, "more": 3}, "new"])
    assert compact.decode_answered(newer).position == Position("c", 1, 2)


def test_an_entry_of_a_listing_leaves_out_what_has_its_default() -> None:
    told = Attributes(ROOT, "file", 0, Dn("/CN=x"), size=3)
    frame = compact.encode_result(1, Listed((Named("a", told),)), None)
    assert not [name for name in (b"user", b"locks", b"mode", b"target") if name in frame]
    listing = compact.methods(FILES)["list"]
    assert compact.decode_result(listing, compact.decode_answered(body(frame))) == Listed((Named("a", told),))
    spelled = {"name": "a", "attributes": structs.asdict(told), "user": {}, "locks": []}  # by a version before
    frame = compact.encode_result(1, {"entries": [spelled]}, None)
    assert compact.decode_result(listing, compact.decode_answered(body(frame))) == Listed((Named("a", told),))


@pytest.mark.parametrize("element", [{}, {"Make": None}, {"Remove": {"place": ["0", []]}}, {"Sing": {}}, 7])
def test_an_element_of_no_type_that_may_be_there_is_refused(element: object) -> None:
    with fails(Kind.BAD_REQUEST):
        compact.decode_args(compact.methods(FILES)["apply"], msgspec.Raw(msgspec.msgpack.encode([[element]])))


def test_a_change_has_the_bytes_of_the_document() -> None:
    [golden] = [line for line in DOCUMENT.splitlines() if line.startswith("    9191")]
    removed = (Remove(LogicalName(ROOT, ("a",)), Removing.FILE),)
    packed = compact.methods(FILES)["apply"].packed((removed,))
    assert bytes(compact.encode_args(packed)) == bytes.fromhex(golden)
