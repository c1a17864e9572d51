"""The verdict on a Shepherd's presence, from the words of several Librarians. Pure.

Each Librarian hears heartbeats for itself (`health`). A process that is gone shows at once: its connections break and
its address refuses new ones. One that is frozen, or behind a broken network, shows when its lease has run out. A
connection cut to one Librarian alone is neither: any Librarian that hears the Shepherd speaks for it.

Invariants: a Shepherd that any Librarian hears is here; before the lease has run out only a majority calls it away.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from chelonia.core.cluster.healing import HealingWord


class PresenceVerdict(enum.Enum):
    """The conclusion on a Shepherd."""

    HERE = "here"
    AWAY = "away"
    OPEN = "open"
    """Undecided: the end of the lease, or another query, will show."""


def verdict(own: HealingWord, others: Sequence[HealingWord | None]) -> PresenceVerdict:
    """Combine the words of the Librarians.

    Args:
        own: this Librarian's word.
        others: words of the other Librarians that run, None for one that did not answer. A Librarian whose process is
            gone does not count: with it a loss of both would wait for the lease.
    """
    if HealingWord.HEARD in (own, *others):
        return PresenceVerdict.HERE
    match own:
        case HealingWord.SILENT:
            return PresenceVerdict.AWAY
        case HealingWord.GONE:
            agreed = 1 + sum(word in (HealingWord.GONE, HealingWord.SILENT) for word in others)
            assert 1 <= agreed <= 1 + len(others), "each Librarian has one word"
            return PresenceVerdict.AWAY if 2 * agreed > 1 + len(others) else PresenceVerdict.OPEN
        case _:
            return PresenceVerdict.OPEN
