"""Notes on waits of a command: one line when requests to a target have failed for a second.

No second line follows for that target, nor for others that wait for the same reason. The line reports no failure of the
command: the requests are tried again, and most succeed. A target that was well for a while and fails again gets a new
line. A missing answer counts as a failure after `SILENCE_MS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from chelonia.core.timing.clock import Clock
from chelonia_clients.watch import SILENCE_MS

AFTER_MS: Final = 1_000
"""Time of failures after which they are worth a line."""
WELL_MS: Final = 15_000
"""Pause after which a failure counts as new; longer than any pause between two tries."""


def keep_quiet(target: str, reason: str) -> None:
    """Ignore a failure: the `Trouble` of programs that want no notes."""


class _Spell(msgspec.Struct):
    since_ms: int
    last_ms: int
    noted: bool = False


class WaitingNotes:
    """A `Trouble` that writes notes through `notify`."""

    def __init__(self, clock: Clock, notify: Callable[[str], None]) -> None:
        self._clock = clock
        self._notify = notify
        self._spells: dict[str, _Spell] = {}
        self._reasons: dict[str, int] = {}  # when each was last given

    def __call__(self, target: str, reason: str) -> None:
        """Note a failure at `target` that will be tried again."""
        now = self._clock.monotonic_ms()
        spell = self._spells.get(target)
        if spell is None or now - spell.last_ms > WELL_MS:
            spell = self._spells[target] = _Spell(now, now)
        spell.last_ms = now
        if now - spell.since_ms >= AFTER_MS:
            self._note(spell, target, reason)

    def silent(self, target: str) -> None:
        """Note that `target` has owed an answer for `SILENCE_MS`."""
        now = self._clock.monotonic_ms()
        spell = self._spells.setdefault(target, _Spell(now, now))
        spell.last_ms = now
        self._note(spell, target, f"{target}: no answer for {SILENCE_MS // 1000} s")

    def _note(self, spell: _Spell, target: str, reason: str) -> None:
        if spell.noted:
            return
        spell.noted = True
        now, last_ms = spell.last_ms, self._reasons.get(reason)
        self._reasons[reason] = now
        if last_ms is not None and now - last_ms <= WELL_MS:
            return  # sixteen files of a tree that wait for one Shepherd get one line
        text = reason if target in reason else f"{target}: {reason}"
        self._notify(f"chelonia: {text}; still trying")
