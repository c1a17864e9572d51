"""What of a follower's environment moves while it is brought up to its master: whether it stands still. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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
