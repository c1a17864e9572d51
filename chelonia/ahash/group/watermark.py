"""The durable commits of one term: the only place where a commit turns into an acknowledgement.

One `Watermark` lives as long as one mastership. It knows only commits registered in this term: it raises for older ones
and ignores tokens of other terms.
Invariants:
- The watermark only rises.
- A replica, ourselves included, counts at most once in each set of voters.
- Durable means that a majority of every set holds the commit on stable storage.
"""

from __future__ import annotations

from collections import deque

from chelonia.ahash.group.membership import Quorum
from chelonia.ahash.store.replicated_port import LogPosition
from chelonia.core.errors import CheloniaError, Kind


class Watermark:
    """Commits of one term, and how far each voter has them. `own` is the master; `first` its first sequence."""

    def __init__(self, own: int, term: int, first: int, quorum: Quorum) -> None:
        assert first >= 1, "0 says that nothing is durable"
        self._own = own
        self._term = term
        self._first = first
        self._quorum = quorum
        self._held: dict[int, tuple[int, int]] = {}
        self._pending: deque[tuple[int, tuple[int, int], int]] = deque()
        self._last = first - 1
        self._durable = 0

    @property
    def durable(self) -> int:
        """Sequence up to which commits of this term are durable; 0: not even the first."""
        return self._durable

    @property
    def last(self) -> int:
        """Sequence of the last commit registered; one less than the first: none yet."""
        return self._last

    def committed(self, sequence: int, token: LogPosition, now_ms: int) -> None:
        """Register a commit of ours that is synced here. Sequences come without gaps."""
        assert token.term == self._term, f"a commit of term {token.term} in term {self._term}"
        assert sequence == self._last + 1, f"commit {sequence} after {self._last}"
        place = (token.file, token.offset)
        assert self._held.get(self._own, place) <= place, "a log grows"
        self._last = sequence
        self._pending.append((sequence, place, now_ms))
        self._held[self._own] = place
        self._advance()

    def acked(self, replica: int, token: LogPosition) -> None:
        """Register how far `replica` has the log on stable storage. Ignore a token of another term."""
        place = (token.file, token.offset)
        if token.term != self._term or replica == self._own or self._held.get(replica, (0, 0)) >= place:
            return
        self._held[replica] = place
        self._advance()

    def forget(self, replica: int) -> None:
        """Drop the acknowledgements of `replica`: its connection is new, and its disk may be."""
        if replica != self._own:
            self._held.pop(replica, None)

    def decide_by(self, quorum: Quorum) -> None:
        """Count by another quorum from now on."""
        self._quorum = quorum
        self._advance()

    def covers(self, sequence: int) -> bool:
        """Return whether the commit `sequence` of this term is durable; False also when it is not registered yet.

        Raises: OUTCOME_UNKNOWN for a commit before this term: this cannot know, so nobody may wait.
        """
        if sequence < self._first:
            cause = f"commit {sequence} stood before term {self._term}, which begins with {self._first}: ask again"
            raise CheloniaError(Kind.OUTCOME_UNKNOWN, "ahash", str(sequence), cause)
        return sequence <= self._durable

    def waiting_since(self) -> int | None:
        """Return when the oldest commit that is not durable was registered; None: all are durable."""
        return self._pending[0][2] if self._pending else None

    def _advance(self) -> None:
        if not self._pending:
            return
        agreed = self._quorum.agreed(self._held)
        while agreed is not None and self._pending and self._pending[0][1] <= agreed:
            self._durable = self._pending.popleft()[0]
        assert self._durable <= self._last, "what is not committed is not durable"
        assert len(self._pending) == self._last - max(self._durable, self._first - 1), "what is not durable waits"
