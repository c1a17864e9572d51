"""Whether a follower that hears its master gets on: that it acknowledges what its master has. Pure.

Berkeley DB asks again for what it lacks, but not from every state that it can get into, and nobody else would notice.
Decides: when the engine is to be roused, and for how long it has stood still. Never: what the engine does then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from chelonia.ahash.group.effects import ReplicaRole, ReplicaStatus

LOOK_MS: Final = 1000
"""How often it is looked at."""
STILL_MS: Final = 10_000
"""A follower that acknowledges nothing for so long, though its master has more, has its engine roused, and again after
as long: longer than any pause of a busy machine that a term outlives."""


@dataclass(slots=True)
class Standstill:
    """Of one replica. `look_ms`: when to look next."""

    look_ms: int = 0
    _seen: tuple[int, int | None, int] | None = None
    _since_ms: int = 0
    _due_ms: int = 0

    def look(self, found: ReplicaStatus, now_ms: int) -> int:
        """Returns: for how long it has stood still, when its engine is to be roused now; else 0."""
        self.look_ms = now_ms + LOOK_MS
        behind = found.role is ReplicaRole.FOLLOWER and found.acked < found.head
        seen = (found.term, found.master, found.acked) if behind else None
        if seen is None or seen != self._seen:
            self._seen, self._since_ms, self._due_ms = seen, now_ms, now_ms + STILL_MS
            return 0
        if now_ms < self._due_ms:
            return 0
        self._due_ms = now_ms + STILL_MS
        return now_ms - self._since_ms
