"""Whether a replica had time to listen: on a starved host others may have spoken, and what they said waits. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from chelonia.ahash.lease import NEVER_MS


@dataclass(slots=True)
class Attention:
    """Of one replica, in its monotonic milliseconds; `beat_ms` is that of its `Pace`.

    Attributes:
        due_ms: its next timer.
        look_ms: when who keeps time means to come, earlier perhaps than any timer.
        grace_until_ms: until then it reads what waits before it calls anybody silent.
    """

    beat_ms: int
    due_ms: int
    grace_until_ms: int
    look_ms: int = NEVER_MS

    def comes(self, now_ms: int) -> None:
        """Somebody comes, a timer or a message: more than a beat late it was starved, and listens for one more."""
        if now_ms - min(self.due_ms, self.look_ms) > self.beat_ms:
            self.grace_until_ms = now_ms + self.beat_ms
