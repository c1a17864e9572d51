"""Ports to time and randomness. Services take them; only `hosting` and the simulator implement them."""

from __future__ import annotations

from typing import Protocol

from chelonia.core.ids import Ms


class Clock(Protocol):
    """Time as a service sees it."""

    def now_ms(self) -> Ms:
        """Wall-clock milliseconds since the Unix epoch: for records and tickets. May step."""
        ...

    def monotonic_ms(self) -> Ms:
        """Milliseconds that never go back: for leases, intervals and deadlines within this process."""
        ...

    async def sleep(self, duration_ms: int) -> None:
        """Return after `duration_ms` milliseconds."""
        ...


class Ids(Protocol):
    """Source of fresh identifiers and of random choices."""

    def uuid(self) -> str:
        """A fresh random UUID (version 4, lower case)."""
        ...

    def token(self, n_bytes: int) -> bytes:
        """`n_bytes` unpredictable bytes, for secrets and nonces."""
        ...

    def uniform(self) -> float:
        """A number in [0, 1), for jitter and placement."""
        ...
