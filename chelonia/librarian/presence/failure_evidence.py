"""Evidence for and against a Shepherd beside its heartbeats: its address refuses, it has left, others hear it.

A state machine with time passed in, one per Librarian. Its facts last until the next heartbeat, a conclusion at most a
lease: by then the stored state, or silence, says the same. `quorum_verdict` combines the words of several Librarians.
"""

from __future__ import annotations

from collections.abc import Mapping

from chelonia.core.ids import Ms, ServiceId


class FailureEvidence:
    """The evidence on all Shepherds. `lease_ms`: time for which another Librarian's word, and a conclusion, counts."""

    def __init__(self, lease_ms: int) -> None:
        assert lease_ms > 0, "a conclusion counts for a while"
        self._lease_ms = lease_ms
        self._gone: set[ServiceId] = set()
        self._away: dict[ServiceId, Ms] = {}
        self._vouched: dict[ServiceId, Ms] = {}

    def heartbeat(self, shepherd: ServiceId) -> None:
        """Note a heartbeat, which ends all doubt."""
        self._gone.discard(shepherd)
        self._away.pop(shepherd, None)
        self._vouched.pop(shepherd, None)

    def left(self, shepherd: ServiceId, now: Ms) -> None:
        """Note that it has announced its end."""
        self._gone.add(shepherd)
        self.away(shepherd, now)

    def refused(self, shepherd: ServiceId) -> None:
        """Note that its address refuses connections."""
        self._gone.add(shepherd)

    def away(self, shepherd: ServiceId, now: Ms) -> None:
        """Note the conclusion that it is away."""
        self._away[shepherd] = now
        self._vouched.pop(shepherd, None)

    def vouched(self, shepherd: ServiceId, now: Ms) -> None:
        """Note that another Librarian hears it."""
        self._away.pop(shepherd, None)
        self._vouched[shepherd] = now

    def unvouched(self, shepherd: ServiceId) -> None:
        """Note that no other Librarian hears it any more, by the answers of all."""
        self._vouched.pop(shepherd, None)

    def is_gone(self, shepherd: ServiceId) -> bool:
        """Return whether this Librarian found it gone."""
        return shepherd in self._gone

    def is_away(self, shepherd: ServiceId, now: Ms) -> bool:
        """Return whether it is known to be away, whatever was heard before."""
        return self._lately(self._away, shepherd, now)

    def is_vouched(self, shepherd: ServiceId, now: Ms) -> bool:
        """Return whether another Librarian has lately heard it."""
        assert shepherd not in self._away or shepherd not in self._vouched, "the later conclusion ends the other"
        return self._lately(self._vouched, shepherd, now)

    def _lately(self, when: Mapping[ServiceId, Ms], shepherd: ServiceId, now: Ms) -> bool:
        return shepherd in when and now - when[shepherd] < self._lease_ms
