"""What speaks for and against a Shepherd beside its heartbeats: its address refuses, it has left, others hear it.

A state machine with time passed in, one per Librarian. What it keeps lasts until the next heartbeat, a conclusion no
longer than a lease: by then what was written, or silence, says the same. How the words of several Librarians are put
together stands in `quorum_verdict`.
"""

from __future__ import annotations

from collections.abc import Mapping

from chelonia.core.ids import Ms, ServiceId


class FailureEvidence:
    """Of all Shepherds. `lease_ms`: for how long another Librarian's word, and a conclusion, counts."""

    def __init__(self, lease_ms: int) -> None:
        self._lease_ms = lease_ms
        self._gone: set[ServiceId] = set()
        self._away: dict[ServiceId, Ms] = {}
        self._vouched: dict[ServiceId, Ms] = {}

    def heard(self, shepherd: ServiceId) -> None:
        """A heartbeat has come: there is no doubt."""
        self._gone.discard(shepherd)
        self._away.pop(shepherd, None)
        self._vouched.pop(shepherd, None)

    def left(self, shepherd: ServiceId, now: Ms) -> None:
        """It has said itself that it ends."""
        self._gone.add(shepherd)
        self.away(shepherd, now)

    def refused(self, shepherd: ServiceId) -> None:
        """Nobody listens at its address any more."""
        self._gone.add(shepherd)

    def away(self, shepherd: ServiceId, now: Ms) -> None:
        """It is agreed that it is away."""
        self._away[shepherd] = now
        self._vouched.pop(shepherd, None)

    def vouched(self, shepherd: ServiceId, now: Ms) -> None:
        """Another Librarian hears it."""
        self._away.pop(shepherd, None)
        self._vouched[shepherd] = now

    def unvouched(self, shepherd: ServiceId) -> None:
        """No other Librarian hears it any more: all have said so."""
        self._vouched.pop(shepherd, None)

    def is_gone(self, shepherd: ServiceId) -> bool:
        """Whether it was found gone here."""
        return shepherd in self._gone

    def is_away(self, shepherd: ServiceId, now: Ms) -> bool:
        """Whether it is known to be away, whatever was heard before."""
        return self._lately(self._away, shepherd, now)

    def is_vouched(self, shepherd: ServiceId, now: Ms) -> bool:
        """Whether another Librarian has lately heard it."""
        return self._lately(self._vouched, shepherd, now)

    def _lately(self, when: Mapping[ServiceId, Ms], shepherd: ServiceId, now: Ms) -> bool:
        return shepherd in when and now - when[shepherd] < self._lease_ms
