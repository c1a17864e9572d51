"""Whether and when a replica asks for an election, and how many replicas, votes and how much time that takes. Pure.

An election is a proposal, so its only aim is a master whom the others may follow. Berkeley DB elects the log with the
newest term in it, proven or not. A replica with an unproven term that vouches for less than another could win and would
be refused: it stays away, and its vote is not asked for. Why: docs/design/009-replication.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from chelonia.ahash.group.effects import AskElection
from chelonia.ahash.group.lease import Pace
from chelonia.ahash.group.membership import Quorum, majority
from chelonia.ahash.group.peer_messages import Stand

LOST_WAITS: Final = 10
"""An election that the engine tells nothing about for so many waits is taken for lost: it takes four at most."""
SLOWER_MAX: Final = 4
"""An election waits so many times longer than the first one at most."""


@dataclass(slots=True)
class Stood:
    """When a peer last said that it stands, and what it said."""

    at_ms: int
    word: Stand


@dataclass(slots=True)
class Turn:
    """When an election of ours may begin, and how long it waits for the others.

    Attributes:
        after_ms: not before.
        lost_ms: when the one that is held is taken for lost; None: none is held.
        failures: elections that came to nothing since a term was last open. Who answers more slowly than was waited for
            must not be tried the same way for ever.
    """

    own: int
    pace: Pace
    after_ms: int
    lost_ms: int | None = None
    failures: int = 0

    @property
    def wait_ms(self) -> int:
        """How long the next one waits for words and for votes. The second is as quick as the first."""
        return self.pace.vote_ms * min(1 << max(0, self.failures - 1), SLOWER_MAX)

    def has_come(self, now_ms: int) -> bool:
        """Whether one may be asked for."""
        return now_ms >= self.after_ms and (self.lost_ms is None or now_ms >= self.lost_ms)

    def take(self, sites: int, votes: int, now_ms: int) -> AskElection:
        """Ask for one."""
        self.failures += self.lost_ms is not None
        self.lost_ms = now_ms + LOST_WAITS * self.wait_ms
        self._rest(now_ms)
        return AskElection(sites, votes, self.pace.mandate_ms, self.wait_ms)

    def over(self) -> None:
        """A master came of it, whoever it is."""
        self.lost_ms = None

    def failed(self, now_ms: int) -> None:
        """Nothing came of it."""
        self.lost_ms = None
        self.failures += 1
        self._rest(now_ms)

    def _rest(self, now_ms: int) -> None:
        self.after_ms = now_ms + self.pace.backoff_ms * (1 + self.own)


def ballot(own: int, words: Mapping[int, Stand], quorum: Quorum, *, joining: bool) -> tuple[int, int] | None:
    """What an election among those who stand is held with.

    Args: `words`: of each voter that stands, ours included; `joining`: somebody else holds an election. It is joined
        without a quorum in sight: his record may be newer than ours.
    Returns: (sites, votes) as the engine is to count them; None: we hold none.
    """
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
