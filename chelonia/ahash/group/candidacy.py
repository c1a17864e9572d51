"""Whether and when a replica asks for an election, and with how many replicas and votes and how much time. Pure.

An election is a proposal, so its only aim is a master whom the others may follow. Berkeley DB elects the log with the
newest term in it, proven or not. A replica with an unproven term that vouches for less than another could win, but the
others would refuse it: it takes no part. Why: docs/design/009-replication.md.
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
"""Waits without an event of the engine after which an election counts as lost: it takes four at most."""
STAND_BEATS: Final = 3
"""Beats for which the notice of a replica that stands for election counts."""
SLOWER_MAX: Final = 4
"""Longest wait of an election, as a multiple of the first one's."""


class CandidacyNotices:
    """The recent notices of replicas that stand for election."""

    def __init__(self, beat_ms: int) -> None:
        self._counts_ms = STAND_BEATS * beat_ms
        self._notices: dict[int, tuple[int, Stand]] = {}

    def note(self, peer: int, word: Stand, now_ms: int) -> bool:
        """Note that `peer` stands. Returns: whether it did not before."""
        at_ms, _ = self._notices.get(peer, (now_ms - self._counts_ms, word))
        self._notices[peer] = (now_ms, word)
        return at_ms <= now_ms - self._counts_ms

    def drop(self, peer: int) -> None:
        """Forget the notice of `peer`, whose connection is gone."""
        self._notices.pop(peer, None)

    def words(self, among: Set[int], now_ms: int) -> dict[int, Stand]:
        """Return the notices of replicas that stand now, by replica."""
        since_ms = now_ms - self._counts_ms
        return {peer: word for peer, (at_ms, word) in self._notices.items() if at_ms > since_ms and peer in among}


@dataclass(slots=True)
class ElectionTurn:
    """When an election of ours may begin, and how long it waits for the others.

    Attributes:
        after_ms: earliest time of the next one.
        lost_ms: when the present one counts as lost; None: there is none.
        failures: failed elections since a term was last open. They lengthen the wait: others may answer more slowly.
    """

    own: int
    pace: ProtocolPeriods
    after_ms: int
    run: int = 0
    lost_ms: int | None = None
    failures: int = 0

    @property
    def _slower(self) -> int:
        """Factor of the wait: the second election is as quick as the first."""
        return min(1 << max(0, self.failures - 1), SLOWER_MAX)

    def has_come(self, now_ms: int) -> bool:
        """Return whether we may ask for an election now."""
        return now_ms >= self.after_ms and (self.lost_ms is None or now_ms >= self.lost_ms)

    def take(self, sites: int, votes: int, now_ms: int, extra_ms: int) -> AskElection:
        """Ask for an election. `extra_ms`: extra time of leases, while processes wait for a processor."""
        assert 1 <= votes <= sites, (votes, sites)
        self.failures += self.lost_ms is not None
        wait_ms = self.pace.vote_ms * self._slower + extra_ms // 4
        self.lost_ms = now_ms + LOST_WAITS * wait_ms
        self._rest(now_ms)
        return AskElection(sites, votes, self.pace.mandate_ms + extra_ms, wait_ms)

    def over(self) -> None:
        """End the election: there is a master, whoever it is."""
        self.lost_ms = None

    def failed(self, now_ms: int, *, newer: bool = False) -> None:
        """Note that the election failed. `newer`: others hold a newer one."""
        self.lost_ms = None
        self.failures += 1
        self._rest(now_ms, joins=newer)

    def _rest(self, now_ms: int, *, joins: bool = False) -> None:
        """Rest briefly after one failure, and for a random bounded time after more: candidates that fail together must
        not begin again together. A replica that `joins` a newer election rests briefly: its vote may be needed there.
        """
        self.after_ms = now_ms + self.pace.backoff_ms * (1 + self.own)
        if self._slower > 1 and not joins:
            longest_ms = bounds.ELECTION_REST_MS_MAX * self._slower // SLOWER_MAX
            self.after_ms += crc32(f"{self.run} {self.own} {now_ms}".encode()) % longest_ms
        rests_ms = self.after_ms - now_ms - self.pace.backoff_ms * (1 + self.own)
        assert 0 <= rests_ms < bounds.ELECTION_REST_MS_MAX, "nobody rests for ever"


def ballot(own: int, words: Mapping[int, Stand], quorum: Quorum, *, joining: bool) -> tuple[int, int] | None:
    """Return (sites, votes) with which the engine holds an election among those who stand; None: hold none.

    Args: `words`: of each voter that stands, ours included; `joining`: another replica holds an election. We join it
        even without a quorum in sight: its membership record may be newer than ours.
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
