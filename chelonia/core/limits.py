"""How often each bound was reached, by its name: what an operator sees of an attack, or of a bound that is too low."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class LimitCounts:
    """The counts of one node. Whoever refuses says so in the log; the node shows them as
    `chelonia_limits_reached`."""

    reached: dict[str, int] = field(default_factory=dict)

    def hit(self, name: str) -> None:
        """The bound called `name` has refused, cut or ended something."""
        self.reached[name] = self.reached.get(name, 0) + 1
