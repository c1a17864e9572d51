"""The state of one mastership, from its first commit to its end. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from chelonia.ahash.group.lease import NEVER_MS, Lease
from chelonia.ahash.group.log_vouching import TermMark
from chelonia.ahash.group.peer_messages import Beat
from chelonia.ahash.group.watermark import Watermark

OPENINGS_WAITED: Final = 2
"""Longest wait of a commit, in openings of the term, each of which waits for two syncs."""


@dataclass(slots=True)
class Reign:
    """Our own term. From `announce_after_ms` on a message of its own announces what is durable, if no frame has."""

    mark: TermMark
    watermark: Watermark
    lease: Lease
    began_ms: int
    joined: bool = False
    opened_ms: int | None = None
    beat_due_ms: int = 0
    announce_after_ms: int = 0
    reported: int = 0
    announced: int = 0
    with_frames: bool = False
    refused: set[int] = field(default_factory=set)
    acked: dict[int, int] = field(default_factory=dict)

    @property
    def term(self) -> int:
        return self.mark.term

    @property
    def key(self) -> tuple[int, int]:
        return (self.mark.term, self.mark.replica)

    def look_due_ms(self, now_ms: int) -> int:
        """Return when to look at that; once more after frames announced it, so that later commits need no wake-up."""
        due = now_ms < self.announce_after_ms and (self.with_frames or self.announced < self.reported)
        return self.announce_after_ms if due else NEVER_MS

    def may_announce(self, now_ms: int, tell_ms: int) -> bool:
        """Return whether something became durable, and a message of its own about it is half due."""
        assert self.announced <= self.reported, "nothing is announced that was not told here first"
        return self.announced < self.reported and 2 * (self.announce_after_ms - now_ms) <= tell_ms

    def waits_ms(self, now_ms: int) -> int:
        """Return how long the term has waited to open, or its oldest commit to be durable.

        0 while a commit waits no longer than `OPENINGS_WAITED` openings of the term: the others' disks are so slow.
        """
        if self.opened_ms is None:
            return now_ms - self.began_ms
        since_ms = self.watermark.waiting_since()
        waits_ms = 0 if since_ms is None else now_ms - since_ms
        return waits_ms if waits_ms >= OPENINGS_WAITED * (self.opened_ms - self.began_ms) else 0

    def beat(self, sent_ms: int, lease_ms: int) -> Beat:
        """Return a beat of this term; with `sent_ms` 0 it only announces what is durable."""
        mark = self.mark
        assert self.reported <= self.watermark.durable, "nothing is told to be durable that is not"
        assert self.opened_ms is not None or not self.reported, "of a term that is not open nothing is durable"
        assert not self.reported or mark.first < self.reported, "a term is open once its second commit is durable"
        return Beat(sent_ms, mark.term, mark.first, mark.base, self.reported, self.watermark.last, lease_ms)
