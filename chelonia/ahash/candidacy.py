"""Whether a replica asks for an election, and how many replicas and votes that takes. Pure.

An election is a proposal, so its only aim is a master whom the others may follow. Berkeley DB elects the log with the
newest term in it, proven or not. A replica with an unproven term that vouches for less than another could win and would
be refused: it stays away, and its vote is not asked for. Why: docs/design/009-replication.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from chelonia.ahash.membership import Quorum, majority
from chelonia.ahash.peer_messages import Stand


@dataclass(slots=True)
class Stood:
    """When a peer last said that it stands, and what it said."""

    at_ms: int
    word: Stand


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
