"""Calls carried to the master: the messages, and the result when an answer does not come."""

import asyncio
import inspect

import pytest

from chelonia.ahash.group import forwarding
from chelonia.ahash.group.forwarding import ForwardedCall, Forwarder, NotCarriedOut
from chelonia.core import bounds
from chelonia.core.caller import Call, Role
from chelonia.core.cluster.position import Position
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn, ObjectId, RequestKey
from chelonia.core.limits import LimitCounts
from chelonia.core.metadata import Needed, StoredObject
from chelonia.core.ports.ahash import AHash, Page, TransactOutcome, Unmet, Walk
from tests.support.ahash import HandClock, check, put, version_is
from tests.support.failing import fails

CALL = Call(Dn("/CN=ä"), (Role.LIBRARIAN,), request_id="r", read_after=Position("c", 1, 7), strong=True)
HERE = Position("c", 1, 9)
KEY = RequestKey("k")


def test_the_whole_port_is_forwarded() -> None:
    port = {name for name, _ in inspect.getmembers(AHash, inspect.isfunction) if not name.startswith("_")}
    assert port - {"backup"} == set(forwarding.METHODS)


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("get", ((ObjectId("a"),), (Needed("s", "p"),))),
        ("transact", (KEY, (put("o", "s", "p", "ä\0"), check("o", version_is(3))), "memo")),
        ("change", ((put("o", "s", "p", "v"),),)),
        ("recall", (KEY,)),
        ("walk", ((Walk(ObjectId("0"), (("a/", "a"), ("b",))),), ())),
        ("scan", (ObjectId("0"), "entries", "after", 10)),
        ("status", ()),
    ],
)
def test_requests_arrive_as_they_left(method: str, arguments: tuple[object, ...]) -> None:
    asked = ForwardedCall(method, CALL, arguments)
    assert forwarding.decode_request(forwarding.encode_request(asked)) == asked


@pytest.mark.parametrize(
    ("method", "result"),
    [
        ("get", (StoredObject(ObjectId("a"), 3, {"s": {"p": "v"}}, {"entries": 1001}),)),
        ("transact", TransactOutcome(False, HERE, Unmet("c", "d"))),
        ("recall", None),
        ("recall", TransactOutcome(True, HERE, memo="m", recalled=True)),
        ("scan", Page((("p", "v"),), True)),
    ],
)
def test_results_arrive_as_they_left(method: str, result: object) -> None:
    assert forwarding.decode_answer(method, forwarding.encode_result(result, HERE)) == (result, HERE)


def test_a_call_or_a_result_that_would_cost_the_link_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "FORWARDED_BYTES_MAX", 1000)
    assert forwarding.encode_result("x" * 900, None)
    with fails(Kind.TOO_LARGE):
        forwarding.encode_result("x" * 1000, None)
    with fails(Kind.TOO_LARGE):
        forwarding.encode_request(ForwardedCall("get", CALL, ((ObjectId("x" * 1000),), ())))


def test_errors_arrive_as_they_left() -> None:
    error = CheloniaError(Kind.TOO_LARGE, "get", "o", "read it page by page")
    with pytest.raises(CheloniaError) as caught:
        forwarding.decode_answer("get", forwarding.encode_error(error, HERE))
    assert (caught.value.kind, *caught.value.args) == (Kind.TOO_LARGE, *error.args)


DEEP = b"\x91" * 100_000


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\xc1", b"\x90", forwarding.encode_request(ForwardedCall("get", CALL, ()))[:-1],
        DEEP, b"\x93\xa6recall\x80" + DEEP, b"\x93\xa6recall\x81\xa3new" + DEEP,
    ],
)  # fmt: skip
def test_what_is_no_request_is_refused(data: bytes) -> None:
    with fails(Kind.BAD_REQUEST):
        forwarding.decode_request(data)


@pytest.mark.parametrize("data", [b"", b"\x91\xc3", b"\x92\xc3\xa1x", b"\x92\xc3" + DEEP])
def test_an_answer_that_cannot_be_read_is_no_fault_of_the_call(data: bytes) -> None:
    with fails(Kind.INTERNAL):
        forwarding.decode_answer("get", data)


def test_an_unknown_method_and_text_that_is_none_are_refused() -> None:
    with fails(Kind.BAD_REQUEST):
        forwarding.decode_request(forwarding.encode_request(ForwardedCall("close", CALL, ())))
    with fails(Kind.BAD_REQUEST):
        forwarding.encode_request(ForwardedCall("recall", CALL, ("\ud800",)))


# --- outstanding calls ------------------------------------------------------------------------------------------------


class Line:
    """A link that notes its messages."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int, bytes]] = []
        self.up = True

    def __call__(self, peer: int, number: int, data: bytes) -> bool:
        if self.up:
            self.sent.append((peer, number, data))
        return self.up


@pytest.fixture
def line() -> Line:
    return Line()


ASKED = ForwardedCall("recall", CALL, (KEY,))
NOTHING = forwarding.encode_result(None, HERE)


async def asking(forwarder: Forwarder, line: Line) -> "asyncio.Task[object]":
    before = len(line.sent)
    task = asyncio.create_task(forwarder.forward(2, ASKED, 1000))
    while len(line.sent) == before:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    return task


async def test_each_caller_gets_his_own_answer(line: Line) -> None:
    forwarder = Forwarder(line, HandClock())
    first, second = await asking(forwarder, line), await asking(forwarder, line)
    (_, one, _), (_, two, _) = line.sent
    forwarder.answered(2, two, forwarding.encode_result(TransactOutcome(True, HERE, memo="second"), HERE))
    forwarder.answered(2, one, NOTHING)
    assert (await first, await second) == ((None, HERE), (TransactOutcome(True, HERE, memo="second"), HERE))


async def test_an_answer_counts_from_who_was_asked_and_once(line: Line) -> None:
    forwarder = Forwarder(line, HandClock())
    task = await asking(forwarder, line)
    ((_, number, _),) = line.sent
    forwarder.answered(3, number, NOTHING)
    forwarder.answered(2, number + 1, NOTHING)
    assert not task.done()
    forwarder.answered(2, number, NOTHING)
    forwarder.answered(2, number, forwarding.NOT_MASTER)
    assert await task == (None, HERE)
    forwarder.answered(2, number, NOTHING)


async def test_a_lost_master_leaves_the_outcome_unknown(line: Line) -> None:
    forwarder = Forwarder(line, HandClock())
    task = await asking(forwarder, line)
    forwarder.lost(3)
    assert not task.done()
    forwarder.lost(2)
    with fails(Kind.OUTCOME_UNKNOWN):
        await task


async def test_a_silent_master_leaves_the_outcome_unknown(line: Line) -> None:
    clock = HandClock()
    task = await asking(Forwarder(line, clock), line)
    clock.advance(1001)
    with fails(Kind.OUTCOME_UNKNOWN):
        await task


async def test_what_was_certainly_not_carried_out_says_so(line: Line) -> None:
    forwarder = Forwarder(line, HandClock())
    task = await asking(forwarder, line)
    forwarder.answered(2, line.sent[0][1], forwarding.NOT_MASTER)
    with pytest.raises(NotCarriedOut):
        await task
    line.up = False
    with pytest.raises(NotCarriedOut):
        await forwarder.forward(2, ASKED, 1000)


async def test_too_many_calls_are_refused_before_they_are_sent(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "FORWARDED_MAX", 1)
    limits = LimitCounts()
    forwarder = Forwarder(line, HandClock(), limits)
    task = await asking(forwarder, line)
    with pytest.raises(NotCarriedOut):
        await forwarder.forward(2, ASKED, 1000)
    assert limits.reached == {"calls_forwarded": 1}
    forwarder.answered(2, line.sent[0][1], NOTHING)
    assert len(line.sent) == 1
    await task
    again = await asking(forwarder, line)
    forwarder.answered(2, line.sent[1][1], NOTHING)
    assert await again == (None, HERE)
