"""How long a replica is bound to its master: what it grants with each echo, and what outlives its process. Pure.

Invariants: a grant is never shortened; that there may be longer ones than usual is written down before one is given,
so that a process that starts, which remembers none, is bound for as long as any that may have been given.
"""

from __future__ import annotations

from chelonia.ahash.group.lease import ProtocolPeriods


class TermGrant:
    """Of one replica. `until_ms`: it helps nobody else to a term before; its master may free it.

    Args:
        promised_ms: how long the grants of earlier processes may last, as written down; 0: as usual.
        alone: nobody else was ever in the group.
    """

    def __init__(self, pace: ProtocolPeriods, promised_ms: int, now_ms: int, *, alone: bool) -> None:
        self._pace = pace
        self._promised_ms = max(pace.lease_ms, promised_ms)
        self.until_ms = self._long_until_ms = now_ms if alone else now_ms + self._promised_ms

    def bind(self, lease_ms: int, now_ms: int) -> None:
        """Be bound for so long at least."""
        self.until_ms = max(self.until_ms, now_ms + lease_ms)

    def asked(self, lease_ms: int, now_ms: int) -> tuple[int, int]:
        """A master asks for a grant of `lease_ms` (0: as usual). Returns: for how long it is given; what has to be
        written down first, 0 for nothing: at once the longest, as a busy replica is asked for other ones again and
        again, and its disk may be what keeps it busy."""
        usual_ms = self._pace.lease_ms
        lease_ms = min(max(lease_ms, usual_ms), self._pace.longest_ms)
        promise_ms = usual_ms
        if lease_ms > usual_ms:
            promise_ms = self._pace.longest_ms
            self._long_until_ms = max(self._long_until_ms, now_ms + lease_ms)
        self.bind(lease_ms, now_ms)
        told = promise_ms > self._promised_ms or (promise_ms < self._promised_ms and now_ms >= self._long_until_ms)
        if told:
            self._promised_ms = promise_ms
        assert lease_ms <= self._promised_ms, "nothing is granted for longer than is written down"
        assert self._long_until_ms <= now_ms + self._promised_ms, "who starts anew is bound for as long as any grant"
        return lease_ms, promise_ms if told else 0
