"""Whether a Shepherd is away: the words of several Librarians put together. Pure.

Each Librarian hears heartbeats for itself (`health`). A process that is gone is known at once, for its connections
break and its address refuses new ones; one that is frozen, or behind a broken network, is known when its lease has run
out. A connection cut to one Librarian alone is neither: whoever hears the Shepherd speaks for it.

Invariants: a Shepherd that any Librarian hears is here; before the lease has run out only a majority calls it away.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from chelonia.core.cluster.healing import HealingWord


class PresenceVerdict(enum.Enum):
    """What follows for a Shepherd."""

    HERE = "here"
    AWAY = "away"
    OPEN = "open"
    """Not to be said yet: the lease, or another question, will tell."""


def verdict(own: HealingWord, others: Sequence[HealingWord | None]) -> PresenceVerdict:
    """Put together what is known.

    Args:
        own: this Librarian's word.
        others: those of the other Librarians that run; None of one that did not answer. One whose process is gone has
            no say: with it a loss of both would wait for the lease.
    """
    if HealingWord.HEARD in (own, *others):
        return PresenceVerdict.HERE
    match own:
        case HealingWord.SILENT:
            return PresenceVerdict.AWAY
        case HealingWord.GONE:
            agreed = 1 + sum(word in (HealingWord.GONE, HealingWord.SILENT) for word in others)
            return PresenceVerdict.AWAY if 2 * agreed > 1 + len(others) else PresenceVerdict.OPEN
        case _:
            return PresenceVerdict.OPEN
