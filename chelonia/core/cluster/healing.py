"""Status of healing, and administrators' orders to it: values of the Librarian port, and their state in words.

The command line and the page of the cluster use the same words.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from chelonia.core.ids import BlobId, Guid, Ms, ServiceId


class HealingWord(enum.Enum):
    """The observation of a Shepherd by one Librarian."""

    HEARD = "heard"
    """Heard within its lease."""
    SILENT = "silent"
    """The Librarian listened for a whole lease and heard nothing."""
    GONE = "gone"
    """No process listens at its address any more, or it has said goodbye."""
    UNKNOWN = "unknown"
    """The Librarian has not listened for a whole lease yet, or does not know this Shepherd."""


class HealAction(enum.Enum):
    """An administrator's order to healing."""

    PAUSE = "pause"
    RESUME = "resume"
    RATE = "rate"


KEEP: Final = -1
"""In an order: leaves this limit unchanged."""


class HealOrder(msgspec.Struct, frozen=True):
    """An order to all Librarians. The limits belong to `RATE`; `KEEP` leaves one unchanged.

    Args:
        bytes_per_s: of repair copies that one Shepherd sends, and as many that it takes; 0: no limit.
        copies_per_node: repair copies that one Shepherd sends, and as many that it takes, at once, from 1.
    """

    action: HealAction
    bytes_per_s: int = KEEP
    copies_per_node: int = KEEP


class HealControl(msgspec.Struct, frozen=True):
    """The controls in force for all Librarians. `paused_by` is empty while healing goes on."""

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
    """The number of blobs that have `live` verified copies left, fewer than wanted."""

    live: int
    blobs: int


class NodeCursor(msgspec.Struct, frozen=True):
    """Progress through the replicas of one Shepherd: all before `after` are as wanted, or wait for a copy that is not
    possible now. `read`: the round has seen all of them, and no possible copy of them is missing."""

    shepherd: ServiceId
    after: str
    read: bool


class NodeCopies(msgspec.Struct, frozen=True):
    """The copies that one Librarian has under way at a Shepherd, sent and taken together, and how many it may have."""

    shepherd: ServiceId
    copies: int
    copies_max: int


class HeldDrain(msgspec.Struct, frozen=True):
    """Blobs that keep a Shepherd from being drained. They want more copies than other Shepherds can take, or are lost
    (`live` 0) and have a damaged copy there.

    `blobs`: as many as the last whole look at the Shepherd found; `examples`: the first of them, at most
    `bounds.DRAIN_EXAMPLES_SHOWN`.
    """

    shepherd: ServiceId
    blobs: int
    examples: tuple[Endangered, ...] = ()


class HealStatus(msgspec.Struct, frozen=True):
    """Healing as one Librarian sees it; the leader's view is complete.

    Args:
        exposed: blobs with fewer verified copies than wanted, by copies left, fewest first.
        delayed: of these, blobs whose missing copies may come back (maintenance, repair delay).
        stuck: of these, blobs that no Shepherd can take or give a copy of.
        copies_to_go, bytes_to_go: left to copy for all blobs known to be exposed, copies under way included.
        copies_done, bytes_done: since the last time that nothing was exposed.
        copying: copies under way.
        copies_per_min, bytes_per_s: recent rate of copies.
        forecast_ms: from now until nothing is exposed; -1 when unknown: paused, `at_rest`, nothing copied yet.
        queue: blobs that wait, the most endangered first: the first `bounds.HEAL_QUEUE_SHOWN`.
        cursors: of every Shepherd in a round.
        waits_for: reason why all of it waits though nobody has paused it, in words; else "".
        nodes: of the Shepherds that have copies under way, or may by configuration have fewer at once than others.
        drains: of the drained Shepherds within reach, those that some blob cannot leave.
        lost: blobs without a verified copy anywhere, of which `lost_named` are the first `bounds.LOST_NAMES_SHOWN`.
        unreachable: blobs whose verified copies are all on Shepherds that are away now.
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
        """Whether no exposed blob can be copied now: each is waited for, or has no place or source."""
        return not self.copying and self.delayed + self.stuck >= sum(found.blobs for found in self.exposed) > 0


class Loss(msgspec.Struct, frozen=True):
    """A file whose only certain, reachable copy is on a Shepherd that is to be forgotten.

    `name`: its Logical Name when it was written. `elsewhere`: Shepherds listed with a verified copy that are away, or
    not yet compared with the metadata. The file is lost if there are none, or none of them has it.
    """

    guid: Guid
    name: str
    blob: BlobId
    elsewhere: tuple[ServiceId, ...] = ()


class ForgetPage(msgspec.Struct, frozen=True):
    """One step of forgetting a Shepherd.

    - `looked_at`: replicas in this step
    - `losses`: files that would be lost or, once that was accepted, are
    - `after`: continues it, "" at the end
    - `forgotten`: the Shepherd is forgotten
    """

    looked_at: int
    losses: tuple[Loss, ...]
    after: str
    forgotten: bool


def doubt(status: HealStatus) -> str:
    """Return why more may be exposed than these figures show; "" when they are complete."""
    if not status.leader:
        return "nobody leads repair"
    if not status.is_leader:
        return "the repair leader does not answer"
    if status.waits_for:
        return status.waits_for
    return "" if all(cursor.read for cursor in status.cursors) else "the repair leader is still looking"


def is_whole(status: HealStatus) -> bool:
    """Whether it is certain that nothing is exposed."""
    return not (status.exposed or status.lost or doubt(status))


def nothing_to_mend(status: HealStatus) -> bool:
    """Whether it is certain that nothing is exposed but lost blobs."""
    others = status.unreachable or any(found.live for found in status.exposed)
    return not others and sum(found.blobs for found in status.exposed) <= status.lost and not doubt(status)


def forecast(status: HealStatus) -> str:
    """Return the time to full health, in words."""
    if is_whole(status):
        return "it is whole"
    if status.lost and nothing_to_mend(status):
        return "never: what is lost is lost, unless a disk with it comes back; all else is whole"
    if status.control.paused:
        return "never, while it is paused"
    if not status.exposed or not status.is_leader or status.waits_for:
        return f"not known: {doubt(status)}"
    if status.at_rest:
        return "not known: nothing can be copied now"
    if status.forecast_ms < 0:
        return "not known yet: too little has been looked at or copied"
    seconds = status.forecast_ms / 1000
    if seconds < 100:
        return f"about {seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"about {minutes} min" if minutes < 100 else f"about {minutes // 60} h {minutes % 60} min"
