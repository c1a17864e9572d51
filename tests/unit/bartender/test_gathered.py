"""Calls of several callers served as one: each with its caller's rights, each with its own answer, each once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from chelonia.bartender.bulk import BulkOperation, ElementCall, answer_calls
from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.limits import LimitCounts
from chelonia.core.names import parse_ln
from chelonia.core.ports.files import Change, Done, Failure, Inline, Look, Remove, Removing, Write
from chelonia.core.timing.gathering import Pending
from chelonia.core.timing.turns import Turns
from chelonia.core.values import replace
from tests.support.stage import ADMIN, EVE, JOE, Stage, keyed, scene

LOST = CheloniaError(Kind.OUTCOME_UNKNOWN, "transact", "", "the answer was lost")


def told(answers: Sequence[Any]) -> list[str]:
    """The kind in each call's answer about its one element; "" for success."""
    return [answer.kind.value if isinstance(answer, Failure) else "" for (answer,) in answers]


def first(call: Call, key: str) -> Call:
    """A call that is the first under its key, as a door of this node makes it."""
    return replace(keyed(call, key), is_first=True)


async def changed(stage: Stage, *calls: tuple[Call, Change]) -> list[str]:
    """The answers to changes that come in the same turn of the event loop."""
    asked = (stage.bartender.files.apply(first(call, f"k{n}"), (change,)) for n, (call, change) in enumerate(calls))
    return told(await asyncio.gather(*asked))


@scene
async def test_looks_of_several_callers_share_a_walk_and_are_judged_each_in_its_callers_name(stage: Stage) -> None:
    for name in ("/a", "/b"):
        await stage.make(name)
    await stage.modify("/b", "set", "policy", EVE.dn, "+read")
    before = len(stage.between.named("traverse"))
    looks = [(EVE, "/a"), (JOE, "/a"), (EVE, "/b"), (JOE, "/none")]
    answers = await asyncio.gather(*(stage.bartender.files.look(call, (Look(parse_ln(ln)),)) for call, ln in looks))
    assert told(answers) == ["denied", "", "", "not-found"]
    assert len(stage.between.named("traverse")) == before + 1


@scene
async def test_who_asks_nothing_is_answered_nothing(stage: Stage) -> None:
    assert await stage.bartender.files.look(JOE, ()) == ()
    assert await stage.bartender.files.apply(first(JOE, "k"), ()) == ()


@scene
async def test_removals_of_several_callers_go_in_one_transact_each_with_its_callers_right(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("/a", "/b", "/c"):
        await stage.put_file(name, needed=0)
    await stage.modify("/b", "set", "policy", EVE.dn, "+delete")
    caplog.set_level("INFO", "chelonia.audit")
    gone = [Remove(parse_ln(name), Removing.FILE) for name in ("/a", "/b", "/c")]
    assert await changed(stage, (JOE, gone[0]), (EVE, gone[1]), (EVE, gone[2])) == ["", "", "denied"]
    assert len(stage.between.named("unlink_all")) == 1
    assert (await stage.list("/"))[1] == ["c"]
    lines = [record.getMessage() for record in caplog.records if 'op="remove"' in record.getMessage()]
    assert [line.partition(" op=")[0] for line in lines] == [f'who="{who.dn}"' for who in (JOE, EVE, EVE)]


@scene
async def test_who_is_refused_a_turn_is_refused_it_alone(stage: Stage) -> None:
    for name in ("/a", "/b"):
        await stage.put_file(name, needed=0)
        await stage.modify(name, "set", "policy", "ALL", "+delete")
    places = stage.bartender._ports.places
    places._turns = Turns(1, 1)
    taken, waits = (places.one(call, LimitCounts(), stage.clock) for call in (ADMIN, JOE))
    await taken.__aenter__()
    waiting = asyncio.create_task(waits.__aenter__())
    await asyncio.sleep(0)
    gone = [Remove(parse_ln(name), Removing.FILE) for name in ("/a", "/b")]
    asked = asyncio.create_task(changed(stage, (JOE, gone[0]), (EVE, gone[1])))
    while EVE.waits_as not in places._turns._waiting:
        await asyncio.sleep(0)
    await taken.__aexit__(None, None, None)
    await waiting
    await waits.__aexit__(None, None, None)
    assert await asked == ["busy", ""]


@scene
async def test_nobody_waits_for_the_turn_of_another_caller(stage: Stage) -> None:
    """A removal that had come together with one of a caller with much to do waited as long as that."""
    for name in ("/a", "/b"):
        await stage.put_file(name, needed=0)
        await stage.modify(name, "set", "policy", "ALL", "+delete")
    places = stage.bartender._ports.places
    places._turns = Turns(1, 10)

    async def work() -> None:
        async with places.one(EVE, LimitCounts(), stage.clock):
            await stage.clock.sleep(1000)

    works = [asyncio.create_task(work()) for _ in range(5)]
    await asyncio.sleep(0)
    start, removals = stage.clock.now_ms(), zip((EVE, JOE), ("/a", "/b"), strict=True)
    asked = [
        asyncio.create_task(changed(stage, (call, Remove(parse_ln(name), Removing.FILE)))) for call, name in removals
    ]
    assert await asked[1] == [""]
    assert stage.clock.now_ms() - start <= 2000
    assert await asked[0] == [""]
    await asyncio.gather(*works)


@pytest.mark.parametrize("hers", ["/", "/b", "/b/below"])
@scene
async def test_nobody_waits_for_the_turn_of_who_writes_a_related_name(stage: Stage, hers: str) -> None:
    """It came together with one of a caller with much to do, and waited for its name until that was done."""
    await stage.add_shepherds("s1", "s2")
    places = stage.bartender._ports.places
    places._turns = Turns(1, 10)

    async def work() -> None:
        async with places.one(EVE, LimitCounts(), stage.clock):
            await stage.clock.sleep(1000)

    works = [asyncio.create_task(work()) for _ in range(5)]
    await asyncio.sleep(0)
    start, writes = stage.clock.now_ms(), ((EVE, hers), (JOE, "/b"))
    asked = [
        asyncio.create_task(changed(stage, (call, Write(parse_ln(name), inline=Inline(b"bytes", 1)))))
        for call, name in writes
    ]
    assert await asked[1] == [""]
    assert stage.clock.now_ms() - start <= 2000
    assert await asked[0] != [""]
    await asyncio.gather(*works)


@scene
async def test_a_write_that_went_with_others_is_done_once_when_it_is_asked_for_again_alone(stage: Stage) -> None:
    await stage.add_shepherds("s1", "s2")
    writes = [Write(parse_ln(name), inline=Inline(name.encode(), 1)) for name in ("/a", "/b")]
    assert await changed(stage, *((JOE, write) for write in writes)) == ["", ""]
    await stage.name_op("delFile", "/b")
    (again,) = await stage.bartender.files.apply(keyed(JOE, "k1"), (writes[1],))
    assert isinstance(again, Done)
    assert not await stage.exists("/b")


@scene
async def test_what_failed_for_one_callers_elements_fails_his_call_alone(stage: Stage) -> None:
    slow, answer = asyncio.Event(), asyncio.get_running_loop().create_future

    async def act(turn: ElementCall, request: str) -> str:
        if request == "slow":
            await slow.wait()
        if request == "lost":
            raise LOST
        return f"{request} for {turn.user.dn}"

    def fail(request: str, text: str, error: CheloniaError) -> str:
        return error.kind.value

    operation: BulkOperation[str, str] = BulkOperation("act", act, fail, str, keyed=False)
    calls = [(JOE, ("slow", "lost")), (EVE, ("lost",)), (EVE, ("b", "c")), (JOE, ())]
    waiting: list[Pending[Any, Any]] = [Pending(call, answer()) for call in calls]
    serving = asyncio.create_task(answer_calls(stage.bartender._ports, operation, waiting))
    assert await waiting[3].answer == (), "who asks for nothing has it"
    assert await waiting[2].answer == (f"b for {EVE.dn}", f"c for {EVE.dn}")
    with pytest.raises(CheloniaError, match="lost"):
        await waiting[1].answer
    assert not waiting[0].answer.done(), "it has not all been answered"
    slow.set()
    await serving
    assert waiting[0].answer.result() == (f"slow for {JOE.dn}", "outcome-unknown")
