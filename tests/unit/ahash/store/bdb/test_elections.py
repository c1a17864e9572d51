"""Votes, taken while no other thread is at work in the library."""

import queue
from pathlib import Path
from unittest.mock import MagicMock

from berkeleydb import db as bdb

from chelonia.ahash.store.bdb.elections import Elections, Order
from chelonia.ahash.store.replicated_port import Demoted, ElectionFailed, MasterHere
from tests.support.ahash import SMALL
from tests.support.polling import poll
from tests.support.replicas import Wired


def test_who_lost_its_trust_while_it_waited_for_its_turn_does_not_vote() -> None:
    env, refusal, failed = MagicMock(), [""], queue.SimpleQueue[ElectionFailed]()
    elections = Elections(env, lambda: refusal[0], failed.put)
    elections.start()
    try:
        with elections.turn:
            elections.request(Order(sites=3, votes=2, wait_ms=10, valid_ms=77))
            poll(lambda: elections._valid_ms == 77, what="it waits")
            refusal[0] = "opened again, and not trusted"
        assert failed.get(timeout=20) == ElectionFailed(refusal[0])
        env.rep_elect.assert_not_called()
        assert not elections.turn.locked()
    finally:
        elections.stop()


def test_who_founds_a_group_and_is_elected_meanwhile_takes_one_office(tmp_path: Path) -> None:
    """Its protocol stood for election before it had heard of its office: on a busy machine an assertion ended it."""
    group = Wired(tmp_path, SMALL, count=1)
    engine = group.engines[1]
    engine.found()
    group.wait(1, MasterHere)
    engine._elections._valid_ms = 60_000
    engine._on_event(None, bdb.DB_EVENT_REP_ELECTED, None)
    poll(lambda: engine._elections._mandate is None, what="its mandate is used up")
    engine.step_down()
    group.wait(1, Demoted)
    group.close_all()
    assert [type(event) for event in group.seen[1]].count(MasterHere) == 1
