"""Berkeley DB's elections, held in a thread of their own, and the mandate that comes of one.

An election is held while the replication thread stands still, until our vote is on its way: the library then locks out
what would change the log that was voted with. What comes of it is told to the replication thread, which alone acts on a
mandate; a mandate is void when another master was heard of since, or when it is too old.
Berkeley DB: `rep_elect`, DB_EVENT_REP_ELECTED. Whether an election means anything is the protocol's to say.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from berkeleydb import db as bdb

from chelonia.ahash.store.bdb.votes import Ballot
from chelonia.ahash.store.replicated_port import ElectionFailed
from chelonia.core.errors import CheloniaError

ELECTABLE: Final = 100
"""Berkeley DB's priority of a voter; contents decide first, so all voters have the same."""
RETIRING: Final = ELECTABLE // 2
"""That of a voter which just gave up its office: among equals another is to follow it."""
OUTCOME_WAITS: Final = 2
"""For how many waits of an election the winner may take to say so, after our vote, before it counts as failed."""


@dataclass(frozen=True, slots=True)
class Order:
    """An election asked for, as in `ReplicatedEngine.elect`. Each phase looks for votes every tenth of `wait_ms`."""

    sites: int
    votes: int
    valid_ms: int
    wait_ms: int


class _ThreadTurn(threading.local):
    """Whether this thread keeps the replication thread out."""

    turn = False


class Elections:
    """Holds elections on `env`, one at a time.

    Args:
        refusal: asked before each: why this replica must not vote now; empty: it may.
        failed: told why nothing came of one.
    """

    def __init__(self, env: Any, refusal: Callable[[], str], failed: Callable[[ElectionFailed], None]) -> None:
        self.turn = threading.Lock()
        """Held by whoever is at work in the library for replication: a frame, or an election up to its vote."""
        self.ballot = Ballot()
        """Which votes the library is told of. The caller has `turn`."""
        self.voter = False
        self.inside = False
        """Whether an election is being held. It begins only by who has `turn`."""
        self._retiring = False
        self._env = env
        self._refusal = refusal
        self._failed = failed
        self._orders: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
        self._holding = _ThreadTurn()
        self._busy = False
        self._decided = threading.Event()
        self._superseded = False
        self._mandate: tuple[float, int] | None = None
        self._valid_ms = 0
        self._thread = threading.Thread(target=self._run, name="ahash-election", daemon=True)

    def start(self) -> None:
        """Begin to take orders."""
        self._thread.start()

    def serve(self, env: Any) -> None:
        """Hold elections on another environment from now on. The caller has `turn`."""
        self._env = env
        self.ballot = Ballot()
        self.set_priority()

    def stop(self) -> None:
        """End; what is asked for from now on is not held."""
        self._orders.put(None)
        self._decided.set()
        if self._thread.is_alive():
            self._thread.join()

    def ask(self, order: Order) -> None:
        """Hold an election, unless one is being held or has just been won."""
        if not self._busy and self._mandate is None:
            self._busy = True
            self._orders.put(order)

    # --- the replication thread's: who is elected -------------------------------------------------------------------

    def retire(self, *, retiring: bool) -> None:
        """Whether this replica just gave up its office."""
        if self._retiring != retiring:
            self._retiring = retiring
            self.set_priority()

    def set_priority(self) -> None:
        """Have the library go by it."""
        electable = RETIRING if self._retiring else ELECTABLE
        self._env.rep_set_priority(electable if self.voter else 0)

    # --- told by the library's callbacks ---------------------------------------------------------------------------

    def won(self) -> None:
        """We were elected."""
        self._mandate = (time.monotonic(), self._valid_ms)
        self._decided.set()

    def overtaken(self) -> None:
        """Another is master: a mandate of ours is void."""
        self._mandate = None
        self._decided.set()

    def superseded(self) -> None:
        """A vote of a newer election came: ours is over, and the newer one needs our vote soon."""
        self._superseded = True
        self._decided.set()

    def frame_sent(self) -> None:
        """A frame leaves on this thread: if it holds an election, its vote is out."""
        if self._holding.turn:
            self._holding.turn = False
            self.turn.release()

    # --- the replication thread's ------------------------------------------------------------------------------------

    def take_mandate(self) -> bool:
        """Whether there is a mandate that is still good; it is used up."""
        mandate, self._mandate = self._mandate, None
        if mandate is None:
            return False
        won_s, valid_ms = mandate
        age_ms = (time.monotonic() - won_s) * 1000
        if age_ms > valid_ms:
            self._failed(ElectionFailed(f"it was won {age_ms:.0f} ms ago: too late to become master"))
        return age_ms <= valid_ms

    # --- the election thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            try:
                failure = self._hold(order)
            except (bdb.DBError, CheloniaError, OSError) as error:  # without this thread no election is held any more
                failure = ElectionFailed(f"it broke off: {error!r}")
            self._busy = False
            if failure is not None:
                self._failed(failure)

    def _hold(self, order: Order) -> ElectionFailed | None:
        """Hold the election; returns why nothing came of it, None when a master did."""
        self._decided.clear()
        self._superseded = False
        self._valid_ms = order.valid_ms
        self.turn.acquire()
        self._holding.turn = self.inside = True
        try:
            if refusal := self._refusal():  # asked here: trust may be lost by whoever had `turn` before
                return ElectionFailed(refusal)
            self._env.rep_set_timeout(bdb.DB_REP_ELECTION_TIMEOUT, order.wait_ms * 1000)
            self._env.rep_elect(order.sites, order.votes)
        except bdb.DBError as error:
            few = isinstance(error, bdb.DBRepUnavailError)
            return ElectionFailed("not enough votes" if few else f"Berkeley DB: {error}")
        finally:
            self.inside = False
            self.frame_sent()
        if not self._decided.wait(OUTCOME_WAITS * order.wait_ms / 1000):
            return ElectionFailed("no master came of it")
        return ElectionFailed("a newer election is held", newer=True) if self._superseded else None
