"""Whether a replica had time to listen: on a starved host the messages of others may be waiting. And the age of a
master's heartbeat that waited, here or in a network. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from chelonia.ahash.group.lease import MARGIN_PER_MILLE, NEVER_MS


@dataclass(slots=True)
class Attention:
    """Of one replica, in its monotonic milliseconds; `beat_ms` is that of its `Pace`.

    Attributes:
        due_ms: its next timer.
        look_ms: next planned call of `comes`, perhaps earlier than any timer.
        grace_until_ms: until then it reads waiting messages before it calls anybody silent.
    """

    beat_ms: int
    due_ms: int
    grace_until_ms: int
    look_ms: int = NEVER_MS

    def comes(self, now_ms: int) -> int:
        """Note a timer or a message. More than a beat late, the replica was starved, and listens for one more beat.

        Returns: the delay.
        """
        late_ms = now_ms - min(self.due_ms, self.look_ms)
        if late_ms > self.beat_ms:
            self.grace_until_ms = now_ms + self.beat_ms
        return late_ms


@dataclass(slots=True)
class MasterWord:
    """The newest heartbeat from the master of one term: it counts from when it left, however late it arrives.

    The two clocks share only their rate. So a beat that took longer than the quickest one counts as sent that much
    earlier. Before `listening_ms` all beats may have waited: they only give the quickest time.
    """

    listening_ms: int
    left_ms: int = -NEVER_MS
    _quickest_ms: int = NEVER_MS
    _observed_ms: int = 0

    def observe(self, stamp_ms: int, now_ms: int) -> None:
        """Note a beat, which the master stamped with its own clock."""
        drift_ms = -(-(now_ms - self._observed_ms) * MARGIN_PER_MILLE // 1000)
        took_ms = now_ms - stamp_ms
        self._quickest_ms, self._observed_ms = min(self._quickest_ms + drift_ms, took_ms), now_ms
        if now_ms >= self.listening_ms:
            self.left_ms = max(self.left_ms, now_ms - (took_ms - self._quickest_ms))
        assert self.left_ms <= now_ms, "no word is heard before it has left"
