"""Berkeley DB's elections, held in a thread of their own, and the mandate that a winner gets.

The election thread keeps the replication thread out until our vote has left. From then on the library itself locks out
changes of the log it voted with. Only the replication thread acts on a mandate. A mandate is void when another master
appeared since, or when it is too old. The protocol decides whether the result of an election counts.
Berkeley DB: `rep_elect`, DB_EVENT_REP_ELECTED.
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
"""Priority of a voter that just stepped down as master: among equals another is to follow it."""
OUTCOME_WAITS: Final = 2
"""Waits of an election after our vote without a result, after which it counts as failed."""


@dataclass(frozen=True, slots=True)
class Order:
    """An election to hold, as in `ReplicatedEngine.elect`. Each phase looks for votes every tenth of `wait_ms`."""

    sites: int
    votes: int
    valid_ms: int
    wait_ms: int


class Elections:
    """Holds elections on `env`, one at a time.

    Args:
        refusal: called before each election; returns why this replica must not vote now, or empty.
        failed: called with the reason when an election fails.
    """

    def __init__(self, env: Any, refusal: Callable[[], str], failed: Callable[[ElectionFailed], None]) -> None:
        self.turn = threading.Lock()
        """Held during the work of replication in the library: a frame, or an election up to its vote."""
        self.ballot = Ballot()
        """Decides which votes reach the library. The caller has `turn`."""
        self.voter = False
        self.inside = False
        """Whether an election is being held. Only the holder of `turn` begins one."""
        self._retiring = False
        self._env = env
        self._refusal = refusal
        self._failed = failed
        self._orders: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
        self._holding = False
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
        """End the thread; elections asked for from now on are not held."""
        self._orders.put(None)
        self._decided.set()
        if self._thread.is_alive():
            self._thread.join()

    def request(self, order: Order) -> None:
        """Hold an election, unless one is being held or has just been won."""
        if not self._busy and self._mandate is None:
            self._busy = True
            self._orders.put(order)

    # --- the replication thread's: who is elected -------------------------------------------------------------------

    def retire(self, *, retiring: bool) -> None:
        """Set whether this replica just stepped down as master."""
        if self._retiring != retiring:
            self._retiring = retiring
            self.set_priority()

    def set_priority(self) -> None:
        """Set the library's priority from `voter` and from `retire`."""
        electable = RETIRING if self._retiring else ELECTABLE
        self._env.rep_set_priority(electable if self.voter else 0)

    # --- called by the library's callbacks -------------------------------------------------------------------------

    def won(self) -> None:
        """Take the mandate: we were elected."""
        self._mandate = (time.monotonic(), self._valid_ms)
        self._decided.set()

    def overtaken(self) -> None:
        """Drop our mandate: another is master."""
        self._mandate = None
        self._decided.set()

    def superseded(self) -> None:
        """End our election: a vote of a newer one came, which needs our vote soon."""
        self._superseded = True
        self._decided.set()

    def frame_sent(self) -> None:
        """Let the replication thread in if this thread holds an election: with this frame its vote has left."""
        if self._holding and threading.current_thread() is self._thread:
            self._holding = False
            self.turn.release()

    # --- the replication thread's ------------------------------------------------------------------------------------

    def take_mandate(self) -> bool:
        """Use up our mandate; return whether it was still valid."""
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
        """Hold the election; return why it failed, None when there is a master."""
        self._decided.clear()
        self._superseded = False
        self._valid_ms = order.valid_ms
        self.turn.acquire()
        self._holding = self.inside = True
        try:
            if refusal := self._refusal():  # not earlier: the holder of `turn` before may have lost our trust
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
