"""Detection: a Shepherd whose process is gone is away at once, and one that only this Librarian cannot hear is not.

When the connection of a Shepherd's heartbeats closes, the Librarian tries the Shepherd's address. If the address
refuses, it asks the other Librarians, as it does before a lease runs out. `quorum_verdict` decides; only the repair
leader writes the result. A Librarian that answers another tries the address itself, so that it vouches for what it saw.

Invariant: a Shepherd heard after its connection closed is not gone, whatever a try at its address found.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from chelonia.core.cluster.healing import HealingWord
from chelonia.core.errors import CheloniaError
from chelonia.core.ids import Ms, ServiceId
from chelonia.core.timing.clock import within
from chelonia.core.timing.jobs import IDLE, Next
from chelonia.librarian.context import LibrarianContext
from chelonia.librarian.leadership.lease.act import Leading
from chelonia.librarian.presence.quorum_verdict import PresenceVerdict, verdict

_LOG = logging.getLogger(__name__)

KNOCKS_MS = (0, 50, 200)
"""Pauses before the tries at an address: a process that ends closes its connections before or after its listener."""
ASK_MS_MAX = 1_000
"""Time to wait for other Librarians' words, at most; half a lease if that is shorter."""


class Detecting:
    """One Librarian's detection. `suspect` and `step` handle closed connections, `look` handles silence."""

    def __init__(self, context: LibrarianContext, me: ServiceId, leading: Leading) -> None:
        self._on = context
        self._table = context.nodes.table
        self._neighbours = context.world.neighbours
        self._me = me
        self._leading = leading
        self._suspects: dict[ServiceId, Ms] = {}
        self.news = asyncio.Event()
        """Set when there is something for `step`."""
        self._asked_all_ms = Ms(0)
        context.nodes.listen(self._changed)

    # --- events -------------------------------------------------------------------------------------------------------

    def suspect(self, shepherd: ServiceId) -> None:
        """Note that the connection of this Shepherd's heartbeats has closed."""
        if self._neighbours is not None and shepherd in self._table.shepherds():
            self._suspects[shepherd] = self._on.now
            self.news.set()

    def _changed(self, shepherd: ServiceId) -> None:
        if self._table.evidence.is_away(shepherd, self._on.now):
            self.news.set()

    # --- actions ------------------------------------------------------------------------------------------------------

    async def step(self) -> Next:
        """Examine the suspects; the leader's `look` finds again what cannot be written now."""
        suspects, self._suspects = self._suspects, {}
        await self._examine(suspects)
        return IDLE

    async def look(self, now: Ms) -> None:
        """Ask the other Librarians about unheard Shepherds before their leases run out; only the leader does."""
        settings = self._on.settings
        missed = self._table.missed(now, settings.tick_ms)
        if now - self._asked_all_ms >= settings.lease_ms:  # another may hear again a Shepherd that is written as away
            self._asked_all_ms = now
            missed = tuple(dict.fromkeys((*missed, *self._table.unheard(now))))
        await self._consult(missed)

    async def words(self, shepherds: Sequence[ServiceId]) -> tuple[HealingWord, ...]:
        """Return what this Librarian knows of each, after trying its address now: the answer to another Librarian."""
        now = self._on.now
        await self._knock(dict.fromkeys(shepherds, now))
        return tuple(self._table.word(shepherd, self._on.now) for shepherd in shepherds)

    async def _examine(self, suspects: dict[ServiceId, Ms]) -> None:
        remaining = suspects
        for pause in KNOCKS_MS:
            if remaining and pause:
                await self._on.world.clock.sleep(pause)
            found = await self._knock(remaining)
            await self._consult(found)
            remaining = {s: at for s, at in remaining.items() if s not in found and not self._heard_since(s, at)}
        if self._leading.now:
            await self._leading.write_transitions(self._on.now)

    async def _knock(self, suspects: dict[ServiceId, Ms]) -> tuple[ServiceId, ...]:
        """Try the addresses; returns the Shepherds whose process is certainly gone.

        Only approved ones are tried: an id that waits for approval is an address that a stranger chose.
        """
        if self._neighbours is None:
            return ()
        approved = self._table.shepherds()
        suspects = {shepherd: at for shepherd, at in suspects.items() if shepherd in approved}
        refused = await asyncio.gather(*map(self._neighbours.refused, suspects))
        pairs = zip(suspects.items(), refused, strict=True)
        refusing = tuple(s for (s, at), refuses in pairs if refuses and not self._heard_since(s, at))
        found = tuple(s for s in refusing if not self._table.last_beat(s).starting)  # then a lease decides
        for shepherd in found:
            if not self._table.evidence.is_gone(shepherd):
                _LOG.info("shepherd %s: its connections have closed and its address refuses", shepherd)
            self._table.evidence.refused(shepherd)
        return found

    def _heard_since(self, shepherd: ServiceId, at: Ms) -> bool:
        heard_ms = self._table.heard_ms(shepherd)
        return heard_ms is not None and heard_ms > at

    async def _consult(self, shepherds: Sequence[ServiceId]) -> None:
        """Ask the other Librarians about them, and note the evidence."""
        if not shepherds:
            return
        answers = await self._ask(shepherds)
        now = self._on.now
        for index, shepherd in enumerate(shepherds):
            own, others = self._table.word(shepherd, now), [words[index] if words else None for words in answers]
            found = verdict(own, others)
            if HealingWord.HEARD in others:
                self._table.evidence.vouched(shepherd, now)
                continue
            if None not in others:
                self._table.evidence.unvouched(shepherd)
            if own is HealingWord.GONE and found is PresenceVerdict.AWAY:
                self._table.evidence.away(shepherd, now)

    async def _ask(self, shepherds: Sequence[ServiceId]) -> list[tuple[HealingWord, ...] | None]:
        """The words of each other Librarian that runs; None for one that does not answer."""
        others = [librarian for librarian in self._on.nodes.librarians() if librarian != self._me]
        if self._neighbours is None or not others:
            return []
        answers = await asyncio.gather(*(self._answer(librarian, shepherds) for librarian in others))
        return [words for words in answers if words != ()]

    async def _answer(self, librarian: ServiceId, shepherds: Sequence[ServiceId]) -> tuple[HealingWord, ...] | None:
        """One Librarian's words; () when its process is gone, None when it does not answer."""
        assert self._neighbours is not None
        limit = min(ASK_MS_MAX, self._on.settings.lease_ms // 2)
        request = self._neighbours.librarian(librarian).hearing(self._on.call, tuple(shepherds))
        try:
            words = await within(self._on.world.clock, limit, request)
        except CheloniaError:
            return () if await self._neighbours.refused(librarian) else None
        return words if len(words) == len(shepherds) else None
