"""Who votes: asked when nobody else is at work in the library."""

import queue
from unittest.mock import MagicMock

from chelonia.ahash.store.bdb.elections import Elections, Order
from tests.support.polling import poll


def test_who_lost_its_trust_while_it_waited_for_its_turn_does_not_vote() -> None:
    env, refusal, failed = MagicMock(), [""], queue.SimpleQueue[str]()
    elections = Elections(env, lambda: refusal[0], failed.put)
    elections.start()
    try:
        with elections.turn:
            elections.ask(Order(sites=3, votes=2, wait_ms=10, valid_ms=77))
            poll(lambda: elections._valid_ms == 77, what="it waits")
            refusal[0] = "opened again, and not trusted"
        assert failed.get(timeout=20) == refusal[0]
        env.rep_elect.assert_not_called()
        assert not elections.turn.locked()
    finally:
        elections.stop()
