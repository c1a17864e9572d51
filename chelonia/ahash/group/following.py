"""What a replica remembers of the master it follows, and of frames that came before they may be taken. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from chelonia.ahash.group.log_vouching import TermMark
from chelonia.ahash.group.peer_messages import EngineFrame
from chelonia.core import bounds


@dataclass(slots=True)
class Following:
    """The master that is followed, in one term.

    Attributes:
        mark: what the first commit of the term writes.
        durable, head: up to which sequence it has told that the group has it, and that it has itself.
        need: what has to be held here before this replica counts again; None: that is not known.
        announce_ms: when to announce ourselves again, while not synchronised.
        key: term and master, by which messages and events are told from those of others.
    """

    mark: TermMark
    durable: int = 0
    head: int = 0
    need: int | None = None
    announce_ms: int = 0
    master: int = field(init=False)
    term: int = field(init=False)
    first: int = field(init=False)
    key: tuple[int, int] = field(init=False)

    def __post_init__(self) -> None:
        self.master, self.term, self.first = self.mark.replica, self.mark.term, self.mark.first
        self.key = (self.term, self.master)


@dataclass(slots=True)
class _HeldFrames:
    """Frames held back from one peer, all of one term; `size`: their bytes."""

    term: int
    frames: list[EngineFrame] = field(default_factory=list)
    size: int = 0


class HeldFrames:
    """Frames of those who may not be followed yet."""

    def __init__(self) -> None:
        self._of: dict[int, _HeldFrames] = {}

    def hold(self, peer: int, frame: EngineFrame) -> None:
        """Keep one; of too many none is kept, the library asks again."""
        held = self._of.get(peer)
        if held is None or held.term != frame.term:
            held = self._of[peer] = _HeldFrames(frame.term)
        held.frames.append(frame)
        held.size += len(frame.control) + len(frame.record)
        if len(held.frames) > bounds.HELD_FRAMES_MAX or held.size > bounds.HELD_BYTES_MAX:
            del self._of[peer]

    def drop(self, peer: int) -> None:
        """Those of `peer` count no more."""
        self._of.pop(peer, None)

    def release(self, peer: int, term: int) -> list[EngineFrame]:
        """`peer` is followed in this term: hand its frames out, drop all others."""
        held, self._of = self._of.get(peer), {}
        return held.frames if held is not None and held.term == term else []
