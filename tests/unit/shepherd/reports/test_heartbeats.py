"""Heartbeats to every Librarian: none waits for another, and one Librarian's answers count."""

import asyncio
from dataclasses import dataclass, field

import pytest

from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ServiceId
from chelonia.core.ports.ahash import Position
from chelonia.core.ports.librarian import Heartbeat, HeartbeatAnswer
from chelonia.shepherd.reports.heartbeats import HeartbeatSender
from tests.sim.virtual_loop import virtual
from tests.support.clocks import VirtualClock
from tests.support.failing import fails

BEAT = Heartbeat(ServiceId("https://s1/Shepherd"), 1, 0, 1, 1, 0, True, "", "")


@dataclass
class Ear:
    """A Librarian that answers with its number, fails, or does not answer for a while."""

    number: int
    heard: list[Heartbeat] = field(default_factory=list)
    fails: bool = False
    takes_s: float = 0.01

    async def heartbeat(self, call: Call, beat: Heartbeat) -> HeartbeatAnswer:
        self.heard.append(beat)
        await asyncio.sleep(self.takes_s)
        if self.fails:
            raise CheloniaError(Kind.NETWORK, "heartbeat", str(self.number))
        return HeartbeatAnswer(1_000, True, self.number, Position("c", 1, 1))


def beats(*ears: Ear) -> HeartbeatSender:
    return HeartbeatSender(lambda: {str(ear.number): ear for ear in ears}, VirtualClock(), 250)  # type: ignore[arg-type,misc]


@virtual
async def test_each_hears_every_beat_and_the_same_one_is_listened_to() -> None:
    one, two = Ear(1), Ear(2)
    sent = beats(one, two)
    for _ in range(5):
        assert (await sent.send(Call(), BEAT)).accepted == 1
        await asyncio.sleep(0.25)
    assert [len(one.heard), len(two.heard)] == [5, 5]
    one.fails = True
    assert (await sent.send(Call(), BEAT)).accepted == 2
    one.fails = False
    assert (await sent.send(Call(), BEAT)).accepted == 2, "it stays with who answers"


@virtual
async def test_who_is_farther_away_is_heard_when_the_nearest_refuses_at_once() -> None:
    begun = asyncio.get_running_loop().time()
    sent = beats(Ear(1, fails=True, takes_s=0.001), Ear(2, takes_s=0.2))
    assert (await sent.send(Call(), BEAT)).accepted == 2
    with pytest.raises(CheloniaError):
        await beats(Ear(1, fails=True, takes_s=0.001), Ear(2, takes_s=60)).send(Call(), BEAT)
    assert asyncio.get_running_loop().time() - begun == pytest.approx(0.45, abs=0.01), "no longer than an interval"


@virtual
async def test_a_frozen_librarian_delays_no_heartbeat_to_the_other_beyond_an_interval() -> None:
    one, two = Ear(1, takes_s=3600), Ear(2)
    sent, begun = beats(one, two), asyncio.get_running_loop().time()
    for _ in range(8):
        await sent.send(Call(), BEAT)
        await asyncio.sleep(0.25)
    assert len(two.heard) == 8
    assert asyncio.get_running_loop().time() - begun < 8 * 0.25 + 0.5
    assert len(one.heard) == 2, "one at a time, given up after two seconds"
    await sent.stop()


@virtual
async def test_a_failure_is_told_when_nobody_answers() -> None:
    one, two = Ear(1, fails=True), Ear(2, fails=True)
    with fails(Kind.NETWORK):
        await beats(one, two).send(Call(), BEAT)
    with fails(Kind.TIMEOUT):
        await beats(Ear(1, takes_s=60)).send(Call(), BEAT)


@virtual
async def test_who_is_given_up_while_its_answer_is_waited_for_counts_as_silent() -> None:
    """With heartbeats rarer than the time limit of an answer both end in the same moment."""
    with fails(Kind.TIMEOUT):
        await HeartbeatSender(lambda: {"1": Ear(1, takes_s=60)}, VirtualClock(), 3_000).send(Call(), BEAT)  # type: ignore[arg-type,dict-item]
    ears = {"1": Ear(1, takes_s=60), "2": Ear(2)}
    sent = HeartbeatSender(lambda: ears, VirtualClock(), 3_000)  # type: ignore[arg-type]
    assert (await sent.send(Call(), BEAT)).accepted == 2


@virtual
async def test_a_goodbye_reaches_all_that_can_be_reached() -> None:
    one, two, three = Ear(1, fails=True), Ear(2), Ear(3, takes_s=3600)
    await beats(one, two, three).send_all(Call(), BEAT)
    assert [len(ear.heard) for ear in (one, two, three)] == [1, 1, 1]


@virtual
async def test_librarians_come_and_go_between_two_heartbeats() -> None:
    one, two, known = Ear(1), Ear(2), dict[str, Ear]()
    sent = HeartbeatSender(lambda: known, VirtualClock(), 250)  # type: ignore[arg-type,return-value]
    known["1"] = one
    await sent.send(Call(), BEAT)
    known["2"] = two
    assert (await sent.send(Call(), BEAT)).accepted == 1
    del known["1"]
    assert (await sent.send(Call(), BEAT)).accepted == 2
    await sent.stop()
    assert [len(one.heard), len(two.heard)] == [2, 2]
