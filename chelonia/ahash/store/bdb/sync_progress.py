"""The progress of a follower towards its master: whether anything moves, and when it announces itself. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from chelonia.core.timing.pacing import Backoff

ANNOUNCE_MS: Final = 100
"""First pause before a follower without frames announces itself again, while unsynchronised or newly connected. The
pauses grow: all others answer each time, perhaps on busy hosts."""
ANNOUNCE_MS_MAX: Final = 1600
"""Longest pause."""
ANNOUNCED_MS: Final = 1000
"""How long a connection is new. A master answers an announcement with the end of its log, which the library compares
with its own only now and then. Frames lost with a connection would stay lost until there are more."""


@dataclass(slots=True)
class SyncProgress:
    """The progress of one environment. `description`: its last state, as text for the log."""

    description: str = ""
    _mark: tuple[Any, ...] = ()

    def is_still(self, found: Mapping[str, Any], *values: object) -> bool:
        """Return whether nothing moved since the last call: the engine's state and, while the library synchronises, the
        log and pages copied.

        Args: `found`: of `rep_stat`. The others: the engine's master, term, last commit, and whether it is ready.
        """
        done = bool(found["startup_complete"])
        copied = () if done else (found["next_lsn"], found["pg_records"], found["next_pg"])
        names = ("master", "term", "commit", "ready")
        state = ", ".join(f"{name} {value}" for name, value in zip(names, values, strict=True))
        self.description = f"{state}; library: master {found['master']}, term {found['gen']}, synchronised {done}"
        before, self._mark = self._mark, (*values, *copied)
        return self._mark == before


@dataclass(slots=True)
class Announcements:
    """When to announce itself again, by monotonic time."""

    _backoff: Backoff = field(default_factory=lambda: Backoff(ANNOUNCE_MS, ANNOUNCE_MS_MAX))
    _new_until_ms: int = 0
    _after_ms: int = 0

    def connected(self, now_ms: int, *, ready: bool) -> None:
        """Note a new connection. A follower that is being synchronised goes on with its longer pauses."""
        self._new_until_ms = now_ms + ANNOUNCED_MS
        if ready:
            self.begin_anew()

    def begin_anew(self) -> None:
        """Begin with the shortest pause: there is another master, or a synchronisation has ended."""
        self._backoff.worked()
        self._after_ms = 0

    def are_due(self, now_ms: int, *, ready: bool) -> bool:
        """Return whether to announce itself now, as no frame came. `ready`: it is synchronised."""
        if now_ms < self._after_ms or (ready and now_ms >= self._new_until_ms):
            return False
        self._after_ms = now_ms + self._backoff.failed()
        return True
