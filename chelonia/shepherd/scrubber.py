"""The scrub: re-reads every replica within a period, suspicious ones at once, and believes nothing but the bytes.

A replica is intact when its record can be read and names the blob of the index. Its bytes must have the record's size
and checksums, also block by block. Otherwise it is `invalid` and reported, until a later check finds it intact.
The scrub erases nothing but bytes behind the end of an intact replica: no record covers them, and nobody can read them.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

from chelonia.core import bounds
from chelonia.core.contents.extents import ByteRange
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BlobId, Ms, ReferenceId
from chelonia.core.ports.shepherd import Damaged, ScrubOrder, ScrubPage
from chelonia.core.timing.jobs import BUSY, Job, Next, Wait
from chelonia.core.values import replace
from chelonia.shepherd.node import CURSOR, ShepherdNode
from chelonia.shepherd.rules import scrub
from chelonia.shepherd.rules.scrub import RoundPace
from chelonia.shepherd.store import lifecycle
from chelonia.shepherd.store.checksums import Hasher
from chelonia.shepherd.store.lifecycle import KeptReplica
from chelonia.shepherd.store.verified import verified

log = logging.getLogger(__name__)

PAGE_REPLICAS: Final = 10_000
"""Replicas considered for one page of a requested scrub, which bounds the time spent on those not wanted."""


class Scrubber:
    """The scrub of one Shepherd. `scrubbed` counts checks since the start, `damaged` those that found damage."""

    def __init__(self, node: ShepherdNode) -> None:
        self._node = node
        self._pace = RoundPace(node.settings.scrub_period_ms, node.settings.scrub_bytes_per_s_max)
        self._last_ms = Ms(0)
        self.scrubbed = 0
        self.damaged = 0

    def job(self) -> Job:
        """Return the job that checks suspicious replicas at once, and the others in their turn."""
        node, pause = self._node, Wait(scrub.nap_ms(self._pace))
        self._last_ms = node.ports.clock.monotonic_ms()
        return Job("scrub", self._step, pause, news=node.suspicion, held=lambda: node.disk.trouble)

    async def _step(self) -> Next:
        clock, node = self._node.ports.clock, self._node
        due_ms = self._last_ms + self._slot_ms()  # anew each time: replicas come and go
        suspect = node.round.next_suspect(node.index)
        if suspect is not None:
            await self._try(suspect, paced=False)
        elif clock.monotonic_ms() >= due_ms:
            self._last_ms = clock.monotonic_ms()
            held = node.round.next_in_turn(node.index)
            if held is not None:
                await self._try(held, paced=True)
        else:
            return Wait(min(due_ms - clock.monotonic_ms(), scrub.nap_ms(self._pace)))
        return BUSY

    async def check_now(self, references: tuple[ReferenceId, ...]) -> int:
        """Check these replicas (all when empty) and return how many are damaged."""
        wanted = references or self._node.index.references("", "")
        damaged = 0
        for reference in wanted:
            held = await self.check(reference)
            damaged += held is not None and not held.alive
        return damaged

    async def page(self, order: ScrubOrder) -> ScrubPage:
        """Check replicas of an order, at the rate of the scrub, for `bounds.SCRUB_PAGE_MS`. Raises: UNAVAILABLE."""
        node, clock = self._node, self._node.ports.clock
        await node.disk.require()
        until_ms = clock.monotonic_ms() + bounds.SCRUB_PAGE_MS
        checked, size, after, damaged = 0, 0, order.after, list[Damaged]()
        for reference in self._ordered(order):
            if clock.monotonic_ms() >= until_ms:
                break
            after = reference
            held = node.index.get(reference)
            if held is not None and not self._is_wanted(held, order):
                continue
            found, damage = await self._checked(reference, paced=True)
            checked, size = checked + 1, size + max(held.size if held else 0, 0)
            if found is None:
                node.doubt(reference)
            if damage or found is None:
                blob = found.blob if found else BlobId("")
                damaged.append(Damaged(reference, blob, damage or "it is not here"))
        left = self._left(order, after)
        return ScrubPage(checked, size, tuple(damaged), after if left else "", left)

    def _ordered(self, order: ScrubOrder) -> tuple[ReferenceId, ...]:
        if order.references:
            return tuple(sorted(reference for reference in order.references if reference > order.after))
        return tuple(held.reference for held in self._node.index.following(order.after, PAGE_REPLICAS))

    def _left(self, order: ScrubOrder, after: str) -> int:
        if order.references:
            return sum(reference > after for reference in order.references)
        return self._node.index.count_after(after)

    def _is_wanted(self, held: KeptReplica, order: ScrubOrder) -> bool:
        suspicious = not held.alive or self._node.round.is_suspect(held.reference)
        young = order.before_ms and held.checked_ms >= order.before_ms
        return not young and (suspicious or not order.suspicious)

    async def check(self, reference: ReferenceId, *, paced: bool = False) -> KeptReplica | None:
        """Read a replica whole and note its state; returns it, None when it is not (or no longer) here."""
        return (await self._checked(reference, paced=paced))[0]

    async def _checked(self, reference: ReferenceId, *, paced: bool) -> tuple[KeptReplica | None, str]:
        """The replica after its check, and its damage ("" for none)."""
        before, began_ms = self._node.index.get(reference), self._node.ports.clock.now_ms()
        if before is None:
            return None, ""
        damage = await self._damage(before, paced)
        if damage and not await self._node.disk.look(hard=True):
            raise CheloniaError(Kind.UNAVAILABLE, "check", reference, self._node.disk.trouble)
        held = self._node.index.get(reference)
        if held is None:
            return None, ""
        self.scrubbed += 1
        if not (damage or held.alive) and lifecycle.was_judged(before, held):
            self._node.suspect(reference)  # this check may have read the bytes before they rotted
            return held, "another check has found it damaged meanwhile"
        self.damaged += bool(damage)
        after = lifecycle.checked(held, not damage, began_ms)
        self._node.index.put(after)
        if after.state is not held.state:
            level = logging.WARNING if damage else logging.INFO
            log.log(level, "replica is %s reference=%s blob=%s %s", after.state.value, reference, held.blob, damage)
            self._node.report(reference)
        elif not held.checked_ms and damage:
            self._node.report(reference)
        return after, damage

    async def save_cursor(self) -> None:
        """Save durably how far the round has come."""
        cursor = self._node.round.cursor
        if self._node.state.extra.get(CURSOR, "") != cursor:
            await self._node.save(lambda now: replace(now, extra={**now.extra, CURSOR: cursor}))

    async def _try(self, held: KeptReplica, *, paced: bool) -> None:
        """Check a replica; an error that says nothing about its bytes (no descriptors, no rights) leaves its state, and
        its suspicion for a while later."""
        try:
            await self.check(held.reference, paced=paced)
        except CheloniaError as error:
            if self._node.disk.trouble:  # the disk logs that, once
                self._node.round.suspect(held.reference)
                return
            log.warning("check impossible reference=%s error=%s", held.reference, error)
            if not paced:  # it may be out of use until it is checked, and the round takes days
                self._node.ports.clock.call_later(scrub.nap_ms(self._pace), partial(self._node.suspect, held.reference))

    def _slot_ms(self) -> int:
        if not len(self._node.index):
            return scrub.nap_ms(self._pace)
        held = self._node.index.after(self._node.round.cursor)
        return scrub.slot_ms(max(held.size, 0) if held else 0, self._node.index, self._pace)

    async def _damage(self, held: KeptReplica, paced: bool) -> str:
        blobs = self._node.ports.blobs
        facts = await blobs.facts(held.reference)
        if facts is None:
            return "its record is missing or unreadable"
        if held.blob and facts.blob != held.blob:
            return f"its record names blob {facts.blob}"
        old, one_block = not facts.checksums.sha256, facts.size <= bounds.CHECKED_BLOCK_BYTES
        hasher, whole = Hasher(md5=old, combining=old or one_block), ByteRange(0, facts.size)
        crcs = b"" if one_block else await blobs.blocks(held.reference)
        try:
            async for chunk in verified(blobs, held.reference, whole, facts.size, crcs):
                await hasher.feed(self._node.ports.worker, chunk)
                if paced:
                    await self._node.ports.clock.sleep(scrub.read_ms(len(chunk), self._pace))
        except CheloniaError as error:
            if error.kind is not Kind.NOT_ALIVE:
                raise
            return error.cause
        if not hasher.checksums().agrees(facts.checksums):
            return "its checksum differs from its record"
        return await self._trimmed(held.reference, facts.size)

    async def _trimmed(self, reference: ReferenceId, size: int) -> str:
        """Have a replica whose bytes were verified end where its record says; its damage, "" for none."""
        (actual,) = await self._node.ports.blobs.sizes((reference,))
        if actual < size:
            return "its bytes are missing"
        if actual > size:
            await self._node.ports.blobs.trim(reference, size)
            self.damaged += 1
            text = "bytes behind the end of a replica cut off: its own are right reference=%s size=%d cut=%d"
            log.warning(text, reference, size, actual - size)
        return ""
