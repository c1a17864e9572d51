"""A follower that is brought up to its master: what of its environment moves, and when it announces itself. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from chelonia.core.timing.pacing import Backoff

ANNOUNCE_MS: Final = 100
"""A follower that no frame comes to announces itself again after so long, while it is not synchronised or newly
connected, then less and less often: all others answer each time, and they and it may have little of a processor."""
ANNOUNCE_MS_MAX: Final = 1600
"""It does at least so often."""
ANNOUNCED_MS: Final = 1000
"""How long a connection is new. A master answers an announcement with where its log ends, but the library compares that
with its own log only now and then; what a broken connection lost would not be asked for until there is more."""


@dataclass(slots=True)
class SyncProgress:
    """Of one environment. `said`: what it looked like last, for the log."""

    said: str = ""
    _mark: tuple[Any, ...] = ()

    def is_still(self, found: Mapping[str, Any], *told: object) -> bool:
        """Whether nothing moved since this was last asked: neither what the engine `told`, nor, while the library
        synchronises, the log and pages that are copied. Args: `found`: of `rep_stat`.
        """
        done = bool(found["startup_complete"])
        copied = () if done else (found["next_lsn"], found["pg_records"], found["next_pg"])
        here = ("master", "term", "commit", "ready")
        state = ", ".join(f"{name} {value}" for name, value in zip(here, told, strict=True))
        self.said = f"{state}; library: master {found['master']}, term {found['gen']}, synchronised {done}"
        before, self._mark = self._mark, (*told, *copied)
        return self._mark == before


@dataclass(slots=True)
class Announcements:
    """When to announce itself again, by monotonic time."""

    _backoff: Backoff = field(default_factory=lambda: Backoff(ANNOUNCE_MS, ANNOUNCE_MS_MAX))
    _new_until_ms: int = 0
    _after_ms: int = 0

    def connected(self, now_ms: int, *, ready: bool) -> None:
        """A connection is new; who is being synchronised is asked for more again and again, and does not begin anew."""
        self._new_until_ms = now_ms + ANNOUNCED_MS
        if ready:
            self.begin_anew()

    def begin_anew(self) -> None:
        """Another master is there, or a synchronisation has come to its end."""
        self._backoff.worked()
        self._after_ms = 0

    def are_due(self, now_ms: int, *, ready: bool) -> bool:
        """No frame comes: whether to announce itself now; then the next time is later. `ready`: it is synchronised."""
        if now_ms < self._after_ms or (ready and now_ms >= self._new_until_ms):
            return False
        self._after_ms = now_ms + self._backoff.failed()
        return True
