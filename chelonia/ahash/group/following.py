"""What a replica remembers of the master it follows, and of frames that came before they may be taken. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from chelonia.ahash.group.log_vouching import Vouched
from chelonia.ahash.group.peer_messages import EngineFrame


@dataclass(slots=True)
class Following:
    """The master that is followed, in one term.

    Attributes:
        first, base: the first sequence of the term, and what it began with.
        durable, head: up to which sequence it has told that the group has it, and that it has itself.
        need: what has to be held here before this replica counts again; None: that is not known.
        announce_ms: when to announce ourselves again, while not synchronised.
        key: term and master, by which messages and events are told from those of others.
    """

    master: int
    term: int
    first: int
    base: Vouched
    durable: int = 0
    head: int = 0
    need: int | None = None
    announce_ms: int = 0
    key: tuple[int, int] = field(init=False)

    def __post_init__(self) -> None:
        self.key = (self.term, self.master)


@dataclass(slots=True)
class Held:
    """Frames held back from one peer, all of one term; `size`: their bytes."""

    term: int
    frames: list[EngineFrame] = field(default_factory=list)
    size: int = 0
