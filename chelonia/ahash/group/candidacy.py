"""Whether and when a replica asks for an election, and how many replicas, votes and how much time that takes. Pure.

An election is a proposal, so its only aim is a master whom the others may follow. Berkeley DB elects the log with the
newest term in it, proven or not. A replica with an unproven term that vouches for less than another could win and would
be refused: it stays away, and its vote is not asked for. Why: docs/design/009-replication.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from chelonia.ahash.group.effects import AskElection
from chelonia.ahash.group.lease import ProtocolPeriods
from chelonia.ahash.group.membership import Quorum, majority
from chelonia.ahash.group.peer_messages import Stand
from chelonia.core import bounds

LOST_WAITS: Final = 10
"""An election that the engine tells nothing about for so many waits is taken for lost: it takes four at most."""
STAND_BEATS: Final = 3
"""For how many beats the word of a replica that stands for election counts."""
SLOWER_MAX: Final = 4
"""An election waits so many times longer than the first one at most."""


class CandidacyNotices:
    """Who said of late that it stands, and what it said."""

    def __init__(self, beat_ms: int) -> None:
        self._counts_ms = STAND_BEATS * beat_ms
        self._said: dict[int, tuple[int, Stand]] = {}

    def said(self, peer: int, word: Stand, now_ms: int) -> bool:
        """`peer` stands. Returns: whether it did not before."""
        at_ms, _ = self._said.get(peer, (now_ms - self._counts_ms, word))
        self._said[peer] = (now_ms, word)
        return at_ms <= now_ms - self._counts_ms

    def drop(self, peer: int) -> None:
        """Its connection is gone."""
        self._said.pop(peer, None)

    def words(self, among: Set[int], now_ms: int) -> dict[int, Stand]:
        """What those said who stand now."""
        since_ms = now_ms - self._counts_ms
        return {peer: word for peer, (at_ms, word) in self._said.items() if at_ms > since_ms and peer in among}


@dataclass(slots=True)
class ElectionTurn:
    """When an election of ours may begin, and how long it waits for the others.

    Attributes:
        after_ms: not before.
        lost_ms: when the one that is held is taken for lost; None: none is held.
        failures: elections that came to nothing since a term was last open. Who answers more slowly than was waited for
            must not be tried the same way for ever.
    """

    own: int
    pace: ProtocolPeriods
    after_ms: int
    run: int = 0
    lost_ms: int | None = None
    failures: int = 0

    @property
    def _slower(self) -> int:
        """By how many times: the second is as quick as the first."""
        return min(1 << max(0, self.failures - 1), SLOWER_MAX)

    def has_come(self, now_ms: int) -> bool:
        """Whether one may be asked for."""
        return now_ms >= self.after_ms and (self.lost_ms is None or now_ms >= self.lost_ms)

    def take(self, sites: int, votes: int, now_ms: int, extra_ms: int) -> AskElection:
        """Ask for one. `extra_ms`: by how much leases are longer than usual, as processes wait for a processor."""
        assert 1 <= votes <= sites, (votes, sites)
        self.failures += self.lost_ms is not None
        wait_ms = self.pace.vote_ms * self._slower + extra_ms // 4
        self.lost_ms = now_ms + LOST_WAITS * wait_ms
        self._rest(now_ms)
        return AskElection(sites, votes, self.pace.mandate_ms + extra_ms, wait_ms)

    def over(self) -> None:
        """A master came of it, whoever it is."""
        self.lost_ms = None

    def failed(self, now_ms: int, *, newer: bool = False) -> None:
        """Nothing came of it. `newer`: others hold a newer one."""
        self.lost_ms = None
        self.failures += 1
        self._rest(now_ms, joins=newer)

    def _rest(self, now_ms: int, *, joins: bool = False) -> None:
        """After one failure as short as ever; after more for a time by chance, up to a bound: candidates that come to
        nothing together must not begin again together, nor for ever. Who `joins` a newer one must not be late for it:
        where no vote may be missing that comes to nothing, and the next begins without those who rest from this."""
        self.after_ms = now_ms + self.pace.backoff_ms * (1 + self.own)
        if self._slower > 1 and not joins:
            longest_ms = bounds.ELECTION_REST_MS_MAX * self._slower // SLOWER_MAX
            self.after_ms += crc32(f"{self.run} {self.own} {now_ms}".encode()) % longest_ms
        rests_ms = self.after_ms - now_ms - self.pace.backoff_ms * (1 + self.own)
        assert 0 <= rests_ms < bounds.ELECTION_REST_MS_MAX, "nobody rests for ever"


def ballot(own: int, words: Mapping[int, Stand], quorum: Quorum, *, joining: bool) -> tuple[int, int] | None:
    """What an election among those who stand is held with.

    Args: `words`: of each voter that stands, ours included; `joining`: somebody else holds an election. It is joined
        without a quorum in sight: his record may be newer than ours.
    Returns: (sites, votes) as the engine is to count them; None: we hold none.
    """
    assert own in words, "we stand ourselves"
    enough = quorum.reached(words)
    if not enough and (words[own].unproven or not joining):
        return None
    best = max(word.vouched for word in words.values())
    taking_part = [peer for peer, word in words.items() if word.voter and (not word.unproven or word.vouched == best)]
    if own not in taking_part:
        return None
    votes = max(majority(len(voters)) for voters in quorum.sets)
    if enough:
        votes = min(votes, len(taking_part))
    return max(votes, len(taking_part)), votes
