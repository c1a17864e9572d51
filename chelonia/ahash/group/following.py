"""The state of a follower: its master, whether it makes progress, and frames that came early. Pure.

Berkeley DB requests missing records again, but not from every state it can get into. So this decides when to rouse the
engine of a follower that stands still, and never what the engine does then.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from chelonia.ahash.group.effects import GroupStatus, PeerRole
from chelonia.ahash.group.log_vouching import TermMark
from chelonia.ahash.group.peer_messages import EngineFrame
from chelonia.core import bounds

LOOK_MS: Final = 1000
"""Pause between two looks."""
STILL_MS: Final = 10_000
"""Time without an acknowledgement, though the master has more, after which to rouse the engine, again and again. It is
longer than any pause of a busy machine that a term outlives."""


@dataclass(slots=True)
class Following:
    """The master that we follow, in one term.

    Attributes:
        mark: the mark in the first commit of the term.
        durable, head: sequences up to which the master announced that the group, and itself, has the log.
        need: the sequence that we must hold before this replica counts again; None: unknown.
        announce_ms: when to announce ourselves again, while not synchronised.
        key: term and master, which identify their messages and events.
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
class Standstill:
    """Whether a follower that hears its master acknowledges the commits of that. `look_ms`: when to look next."""

    look_ms: int = 0
    _seen: tuple[int, int | None, int] | None = None
    _since_ms: int = 0
    _due_ms: int = 0

    def look(self, found: GroupStatus, now_ms: int) -> int:
        """Return for how long the follower has stood still if its engine should be roused now; else 0."""
        self.look_ms = now_ms + LOOK_MS
        behind = found.role is PeerRole.FOLLOWER and found.acked < found.head
        seen = (found.term, found.master, found.acked) if behind else None
        if seen is None or seen != self._seen:
            self._seen, self._since_ms, self._due_ms = seen, now_ms, now_ms + STILL_MS
            return 0
        if now_ms < self._due_ms:
            return 0
        self._due_ms = now_ms + STILL_MS
        return now_ms - self._since_ms


@dataclass(slots=True)
class _FramesOfPeer:
    """Frames held back from one peer, all of one term; `size`: their bytes."""

    term: int
    frames: list[EngineFrame] = field(default_factory=list)
    size: int = 0


class HeldFrames:
    """Frames of masters that we may not follow yet."""

    def __init__(self) -> None:
        self._of: dict[int, _FramesOfPeer] = {}

    def hold(self, peer: int, frame: EngineFrame) -> None:
        """Keep a frame, or drop all of `peer` when there are too many: the library asks again."""
        assert frame.master, "what a follower sends is passed on or dropped"
        held = self._of.get(peer)
        if held is None or held.term != frame.term:
            held = self._of[peer] = _FramesOfPeer(frame.term)
        held.frames.append(frame)
        held.size += len(frame.control) + len(frame.record)
        if len(held.frames) > bounds.HELD_FRAMES_MAX or held.size > bounds.HELD_BYTES_MAX:
            del self._of[peer]

    def drop(self, peer: int) -> None:
        """Drop the frames of `peer`."""
        self._of.pop(peer, None)

    def release(self, peer: int, term: int) -> list[EngineFrame]:
        """Return the frames of `peer`, whom we follow in this term; drop all others."""
        held, self._of = self._of.get(peer), {}
        if held is None or held.term != term:
            return []
        assert all(frame.term == term for frame in held.frames), "frames of one term are held together"
        return held.frames
