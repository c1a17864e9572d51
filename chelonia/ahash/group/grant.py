"""How long a replica is bound to its master: the grant of each echo, and the promise that outlives its process. Pure.

Invariants: a grant is never shortened. Before it gives longer grants than usual a replica writes that down. So a new
process, which remembers no grant, is bound for as long as any that an earlier one may have given.
"""

from __future__ import annotations

from chelonia.ahash.group.lease import ProtocolPeriods


class TermGrant:
    """The grant of one replica. Before `until_ms` it helps nobody else to a term; its master may free it.

    Args:
        promised_ms: how long the grants of earlier processes may last, as written down; 0: as usual.
        alone: whether the group never had another member.
    """

    def __init__(self, pace: ProtocolPeriods, promised_ms: int, now_ms: int, *, alone: bool) -> None:
        self._pace = pace
        self._promised_ms = max(pace.lease_ms, promised_ms)
        self.until_ms = self._long_until_ms = now_ms if alone else now_ms + self._promised_ms

    def bind(self, lease_ms: int, now_ms: int) -> None:
        """Bind the replica for at least `lease_ms`."""
        self.until_ms = max(self.until_ms, now_ms + lease_ms)

    def extend(self, lease_ms: int, now_ms: int) -> tuple[int, int]:
        """Grant a master `lease_ms` (0: as usual). Returns: time granted; promise to write down first, 0: none."""
        usual_ms = self._pace.lease_ms
        lease_ms = min(max(lease_ms, usual_ms), self._pace.longest_ms)
        promise_ms = usual_ms
        if lease_ms > usual_ms:  # promise the longest at once: requests vary, and the disk may be what is slow
            promise_ms = self._pace.longest_ms
            self._long_until_ms = max(self._long_until_ms, now_ms + lease_ms)
        self.bind(lease_ms, now_ms)
        changes = promise_ms > self._promised_ms or (promise_ms < self._promised_ms and now_ms >= self._long_until_ms)
        if changes:
            self._promised_ms = promise_ms
        assert lease_ms <= self._promised_ms, "nothing is granted for longer than is written down"
        assert self._long_until_ms <= now_ms + self._promised_ms, "who starts anew is bound for as long as any grant"
        return lease_ms, promise_ms if changes else 0
