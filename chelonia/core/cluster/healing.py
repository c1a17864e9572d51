"""What healing says of itself and is told by administrators: values of the Librarian port, nothing decided here."""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from chelonia.core.ids import BlobId, Guid, Ms, ServiceId


class HealingWord(enum.Enum):
    """What one Librarian knows of a Shepherd by itself."""

    HEARD = "heard"
    """Heard within its lease."""
    SILENT = "silent"
    """Listened for a whole lease and heard nothing."""
    GONE = "gone"
    """Nobody listens at its address any more, or it has said goodbye."""
    UNKNOWN = "unknown"
    """Not listened for a whole lease yet, or not a Shepherd known here."""


class HealAction(enum.Enum):
    """What an administrator tells healing."""

    PAUSE = "pause"
    RESUME = "resume"
    RATE = "rate"


KEEP: Final = -1
"""In an order: leave this limit as it is."""


class HealOrder(msgspec.Struct, frozen=True):
    """An order to all Librarians. The limits belong to `RATE`; `KEEP` leaves one as it is.

    Args:
        bytes_per_s: of repair copies that one Shepherd sends, and as many that it takes; 0: no limit.
        copies_per_node: repair copies that one Shepherd sends, and as many that it takes, at once, from 1.
    """

    action: HealAction
    bytes_per_s: int = KEEP
    copies_per_node: int = KEEP


class HealControl(msgspec.Struct, frozen=True):
    """What is in force for all Librarians. `paused_by` is empty while healing goes on."""

    bytes_per_s: int
    copies_per_node: int
    paused_by: str = ""
    paused_ms: Ms = Ms(0)

    @property
    def paused(self) -> bool:
        """Whether no copy begins and nothing is trimmed."""
        return bool(self.paused_by)


class Endangered(msgspec.Struct, frozen=True):
    """A blob that waits for a copy. `name`: of its file when it was made."""

    blob: BlobId
    name: str
    live: int
    wanted: int
    size: int
    created_ms: Ms


class Exposed(msgspec.Struct, frozen=True):
    """So many blobs have so many verified copies left, and fewer than wanted."""

    live: int
    blobs: int


class NodeCursor(msgspec.Struct, frozen=True):
    """How far the replicas of one Shepherd have been gone through: all before `after` are as wanted, or waiting for
    what cannot be had. `read`: all of them have been looked at, and of none a copy is still to be made that can be."""

    shepherd: ServiceId
    after: str
    read: bool


class NodeCopies(msgspec.Struct, frozen=True):
    """The copies that one Librarian has under way at a Shepherd, sent and taken together, and how many it may have."""

    shepherd: ServiceId
    copies: int
    copies_max: int


class HeldDrain(msgspec.Struct, frozen=True):
    """What a drained Shepherd cannot be rid of: blobs that want more copies than other Shepherds can take, and lost
    ones (`live` 0) of which it has a damaged copy.

    `blobs`: as many as the last whole look at the Shepherd found; `examples`: the first of them, at most
    `bounds.DRAIN_EXAMPLES_SHOWN`.
    """

    shepherd: ServiceId
    blobs: int
    examples: tuple[Endangered, ...] = ()


class HealStatus(msgspec.Struct, frozen=True):
    """Healing as one Librarian sees it; that of the leader is the whole picture.

    Args:
        exposed: blobs with fewer verified copies than wanted, by copies left, fewest first.
        delayed: of these, blobs whose missing copies are waited for (maintenance, repair delay).
        stuck: of these, blobs that no Shepherd can take or give a copy of.
        copies_to_go, bytes_to_go: what is to be copied for all that are known to be exposed, those under way included.
        copies_done, bytes_done: since something was last exposed where nothing was before.
        copying: copies under way.
        copies_per_min, bytes_per_s: what was lately copied.
        forecast_ms: from now until nothing is exposed; -1 when that cannot be told: paused, `at_rest`, nothing copied
            yet.
        queue: those that wait, the most endangered first: the first `bounds.HEAL_QUEUE_SHOWN`.
        cursors: of every Shepherd that is being gone through.
        waits_for: what all of it waits for though nobody has paused it, in words, "" when it does not.
        nodes: of the Shepherds that have copies under way, or are configured to bear fewer at once than others.
        drains: of the Shepherds that are drained and are there, those that something cannot leave.
        lost: blobs without a verified copy anywhere, of which `lost_named` are the first `bounds.LOST_NAMES_SHOWN`.
        unreachable: blobs that have one, on Shepherds that are all away now.
    """

    leader: str
    is_leader: bool
    control: HealControl
    exposed: tuple[Exposed, ...]
    delayed: int
    stuck: int
    copies_to_go: int
    bytes_to_go: int
    copies_done: int
    bytes_done: int
    copying: int
    copies_per_min: int
    bytes_per_s: int
    forecast_ms: int
    queue: tuple[Endangered, ...] = ()
    cursors: tuple[NodeCursor, ...] = ()
    waits_for: str = ""
    nodes: tuple[NodeCopies, ...] = ()
    drains: tuple[HeldDrain, ...] = ()
    lost: int = 0
    lost_named: tuple[Endangered, ...] = ()
    unreachable: int = 0

    @property
    def at_rest(self) -> bool:
        """Whether nothing of what is exposed can be copied now: all of it is waited for, or has no place or source."""
        return not self.copying and self.delayed + self.stuck >= sum(found.blobs for found in self.exposed) > 0


class Loss(msgspec.Struct, frozen=True):
    """A file of which nobody but a Shepherd that is to be forgotten certainly has a verified copy within reach.

    `name`: its Logical Name when it was written; `elsewhere`: Shepherds that are listed with a verified copy, and are
    away or not compared with the metadata yet, so that it is lost only if they turn out not to have it; none: it is
    lost.
    """

    guid: Guid
    name: str
    blob: BlobId
    elsewhere: tuple[ServiceId, ...] = ()


class ForgetPage(msgspec.Struct, frozen=True):
    """One step of forgetting a Shepherd.

    - `looked_at`: replicas in this step
    - `losses`: what would be lost, or, once that was accepted, is
    - `after`: continues it, "" when all was looked at
    - `forgotten`: the Shepherd is no more
    """

    looked_at: int
    losses: tuple[Loss, ...]
    after: str
    forgotten: bool
