"""One mastership, from its first commit to its end: what its master keeps of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from chelonia.ahash.group.lease import NEVER_MS, Lease
from chelonia.ahash.group.log_vouching import TermMark
from chelonia.ahash.group.peer_messages import Beat
from chelonia.ahash.group.watermark import Watermark


@dataclass(slots=True)
class Reign:
    """Our own term. From `may_tell_ms` on what is durable is told by a message of its own, if no frame took it."""

    mark: TermMark
    watermark: Watermark
    lease: Lease
    began_ms: int
    joined: bool = False
    opened_ms: int | None = None
    beat_due_ms: int = 0
    may_tell_ms: int = 0
    told: int = 0
    announced: int = 0
    told_with_frames: bool = False
    refused: set[int] = field(default_factory=set)
    acked: dict[int, int] = field(default_factory=dict)

    @property
    def term(self) -> int:
        return self.mark.term

    @property
    def key(self) -> tuple[int, int]:
        return (self.mark.term, self.mark.replica)

    def look_due_ms(self, now_ms: int) -> int:
        """When that is looked at; once more after frames took it along, so that what follows them need wake nobody."""
        due = now_ms < self.may_tell_ms and (self.told_with_frames or self.announced < self.told)
        return self.may_tell_ms if due else NEVER_MS

    def may_tell(self, now_ms: int, tell_ms: int) -> bool:
        """Whether something became durable, and a message of its own about it is half due."""
        assert self.announced <= self.told, "nothing is announced that was not told here first"
        return self.announced < self.told and 2 * (self.may_tell_ms - now_ms) <= tell_ms

    def waiting_since(self) -> int | None:
        """Since when the oldest commit waits to be durable, or the term to be opened; None: neither."""
        return self.began_ms if self.opened_ms is None else self.watermark.waiting_since()

    def beat(self, sent_ms: int, lease_ms: int) -> Beat:
        """A word of its master; with `sent_ms` 0 it only tells what is durable."""
        mark = self.mark
        assert self.told <= self.watermark.durable, "nothing is told to be durable that is not"
        assert self.opened_ms is not None or not self.told, "of a term that is not open nothing is durable"
        assert not self.told or mark.first < self.told, "a term is open once its second commit is durable"
        return Beat(sent_ms, mark.term, mark.first, mark.base, self.told, self.watermark.last, lease_ms)
