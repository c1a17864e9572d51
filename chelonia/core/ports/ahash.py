"""The A-Hash port: the contract of a metadata store, whichever implementation it has.

The A-Hash decides nothing about meaning: it stores objects and applies conditional changes atomically. `get` and
`change` are the original's operations; `transact`, `walk`, `scan`, `below`, `recall` and `status` serve a
transactional, paged namespace. One contract suite (`tests/contract/`) runs against every implementation.

Invariants:
- A transact applies wholly or not at all, across objects; the same request key applies once.
- A condition reads the state just before its transact.
- An answer comes only when the change is durable.

Callers state how fresh a read must be (`Call.read_after`, `Call.strong`). Implementations report the position of each
answer to the process's `Horizon`.
"""

from __future__ import annotations

import enum
from typing import Protocol

import msgspec

from chelonia.core.caller import Call
from chelonia.core.cluster.position import Position
from chelonia.core.contents.below import Below, BelowPage
from chelonia.core.ids import Dn, Ms, ObjectId, RequestKey
from chelonia.core.metadata import Filter, StoredObject


class ChangeType(enum.Enum):
    """The effect of an element. `ADD` and `CHECK` exist in `transact` only."""

    SET = "set"
    UNSET = "unset"
    DELETE = "delete"
    ADD = "add"
    """Add the integer `value` to the property (unset counts as 0)."""
    CHECK = "check"
    """Change nothing; the element is there for its conditions."""


class ConditionType(enum.Enum):
    """A condition on the element's object. `EMPTY`, `VERSION` and `AT_MOST` exist in `transact` only."""

    IS = "is"
    ISNOT = "isnot"
    """The value differs or is unset."""
    ISSET = "isset"
    UNSET = "unset"
    EMPTY = "empty"
    """The section holds no property."""
    VERSION = "version"
    """The object's hidden version equals the integer `value` (0: the object does not exist)."""
    AT_MOST = "at most"
    """The integer that the property holds (unset counts as 0) is no larger than the integer `value`."""


class Condition(msgspec.Struct, frozen=True, gc=False):
    """One condition on the object that its element names; unused fields are empty."""

    type: ConditionType
    section: str = ""
    property: str = ""
    value: str = ""
    id: str = ""


class Element(msgspec.Struct, frozen=True, gc=False):  # a put makes forty: the collector need not look at them
    """One change with its conditions. `change_id` is the caller's, echoed in answers."""

    object: ObjectId
    change: ChangeType
    section: str = ""
    property: str = ""
    value: str = ""
    conditions: tuple[Condition, ...] = ()
    change_id: str = ""


class ChangeStatus(enum.Enum):
    """`success` of one element of the old `change` operation."""

    SET = "set"
    UNSET = "unset"
    DELETED = "deleted"
    FAILED = "failed"
    CONDITION_NOT_MET = "condition not met"
    INVALID = "invalid change type"
    UNKNOWN = "unknown"


class ChangeOutcome(msgspec.Struct, frozen=True):
    """Answer to one element of `change`; `condition_id` is the first condition unmet."""

    change_id: str
    status: ChangeStatus
    condition_id: str = ""


class Unmet(msgspec.Struct, frozen=True):
    """The first condition of a transact that did not hold, and its element."""

    change_id: str
    condition_id: str


class TransactOutcome(msgspec.Struct, frozen=True):
    """Answer to a transact, stored under its request key in the same transaction when it applied.

    `applied` False means nothing was changed and `unmet` says why. `memo` is the caller's own note, returned as it
    was stored, so that a retry gets the answer of the first try. `recalled` marks an answer that was stored.
    """

    applied: bool
    position: Position
    unmet: Unmet | None = None
    memo: str = ""
    recalled: bool = False


class Linked(msgspec.Struct, frozen=True):
    """Objects that an object names: values of its narrow `section`, behind `prefix`, are ids. `needed` filters them."""

    section: str
    prefix: str
    needed: Filter = ()


class Walk(msgspec.Struct, frozen=True):
    """A path to follow: `steps` from `start` through `section`.

    Each step lists candidate properties; the walk follows the first that is set. `linked`: objects that the last one
    names, read with it to save a second call.
    """

    start: ObjectId
    steps: tuple[tuple[str, ...], ...]
    section: str = "entries"
    linked: Linked | None = None


class WalkStep(msgspec.Struct, frozen=True):
    """One step taken: the property that matched and the object it leads to."""

    property: str
    object: ObjectId


class WalkOutcome(msgspec.Struct, frozen=True):
    """The steps that the walk could take, in order, and the object where it ended (the start if it could take none).

    `linked`: the objects that this one names, at most `bounds.LINKED_MAX`, the lowest properties first.
    """

    taken: tuple[WalkStep, ...]
    last: StoredObject
    linked: tuple[StoredObject, ...] = ()


class Page(msgspec.Struct, frozen=True):
    """An ordered page of one section: (property, value) in byte order of property, and whether more follow."""

    items: tuple[tuple[str, str], ...]
    more: bool

    @property
    def after(self) -> str:
        """The property that the next page follows, "" when there is none."""
        return self.items[-1][0] if self.more and self.items else ""


class ObjectPage(msgspec.Struct, frozen=True):
    """An ordered page of the ids of all objects, in byte order, and whether more follow."""

    ids: tuple[ObjectId, ...]
    more: bool

    @property
    def after(self) -> str:
        """The id that the next page follows, "" when there is none."""
        return self.ids[-1] if self.more and self.ids else ""


class PeerView(msgspec.Struct, frozen=True):
    """One replica of a group as another sees it.

    `role`: `master`, `follower`, `learner` (without a vote), `away`, or `parted`: each of the two lacks changes that
    the other acknowledged, so neither follows the other. `lag`: commits that it has yet to acknowledge, -1 if unknown:
    only the master knows. `round_trip_ms`: least time of its answers; -1 if unknown, or for the reporter itself.
    """

    replica: int
    dn: Dn
    address: str
    role: str
    lag: int
    round_trip_ms: int = -1


class PagesSeen(msgspec.Struct, frozen=True):
    """The scrub of a store's pages. `checked`: by the present or last round; `ended_ms`: of the last whole round (0:
    none yet). `damaged` pages, and log files."""

    pages: int
    checked: int
    ended_ms: Ms
    damaged: int


class AHashStatus(msgspec.Struct, frozen=True):
    """The state of one A-Hash.

    `role`: `master`, `client` (it follows a master), `opening` (elected, not yet joined by a majority) or `alone` (it
    knows of no master). `writable`: it is master, sure of its majority, and the disk is not nearly full.
    Of a group: `replica` its id, `term` of mastership, `lease_ms` left of a master's lease. `elected_ms`: when this
    replica last became master (0: never in this process). `membership`: the number of the record in force.
    `pages`: the scrub of its own pages; None when there is none. `round_trip_ms`: configured longest round trip between
    replicas; 0: not reported. `vouched_term`, `vouched_sequence`: the newest commit on this disk of a term that a
    majority is known to have joined. Of two disks of one generation the one with the larger pair has all acknowledged
    changes of the other. `terms_begun`: masterships of this process. `lease_stretch`: length of its leases in usual
    leases, longer while processes wait for the processor (0: it is in no group).
    """

    position: Position
    role: str
    writable: bool
    objects_estimate: int
    free_bytes: int
    replica: int = 0
    term: int = 0
    lease_ms: int = 0
    elected_ms: Ms = Ms(0)
    membership: int = 0
    replicas: tuple[PeerView, ...] = ()
    pages: PagesSeen | None = None
    round_trip_ms: int = 0
    vouched_term: int = 0
    vouched_sequence: int = 0
    terms_begun: int = 0
    lease_stretch: int = 0


class GroupStep(enum.Enum):
    """A change of membership: `ADD` a replica (it votes once it has the group's data), `REMOVE` one."""

    ADD = "add"
    REMOVE = "remove"


class GroupChange(msgspec.Struct, frozen=True):
    """One change of a group. `ADD` names `dn` and `address` (`host:port`) of the new replica, `REMOVE` its id."""

    step: GroupStep
    replica: int = 0
    dn: Dn = Dn("")
    address: str = ""


class AHash(Protocol):
    """A metadata store. Every method may raise UNAVAILABLE (retry), OUTCOME_UNKNOWN (retry with the same key)."""

    async def get(self, call: Call, ids: tuple[ObjectId, ...], needed: Filter = ()) -> tuple[StoredObject, ...]:
        """Return the objects in the order of `ids`; unknown ids come back with version 0 and no sections.

        Raises: DENIED; TOO_LARGE when the filter names, whole, a wide section of more than `bounds.SECTION_WHOLE_MAX`.
        An empty filter leaves such a section out and counts it instead.
        """

    async def change(self, call: Call, elements: tuple[Element, ...]) -> tuple[ChangeOutcome, ...]:
        """Apply the elements one by one, each atomic by itself, in order; later ones see earlier ones."""

    async def transact(
        self, call: Call, key: RequestKey, elements: tuple[Element, ...], memo: str = ""
    ) -> TransactOutcome:
        """Apply all elements or none. With a key used before by any Librarian, answer as then, changing nothing.

        All conditions are evaluated before the first change. An unmet condition is an answer, not an error, and is
        not stored under the key. An empty key stores nothing. `memo`: at most `bounds.MEMO_BYTES_MAX` bytes.
        Raises: DENIED, BAD_REQUEST, READ_ONLY, UNAVAILABLE, OUTCOME_UNKNOWN.
        """

    async def recall(self, call: Call, key: RequestKey) -> TransactOutcome | None:
        """Return the stored outcome of a transact under `key` by any Librarian (`Call.key_scope`), or None."""

    async def walk(self, call: Call, walks: tuple[Walk, ...], needed: Filter = ()) -> tuple[WalkOutcome, ...]:
        """Follow many paths in one call; `needed` filters the sections of each `last`."""

    async def scan(self, call: Call, object_id: ObjectId, section: str, after: str = "", limit: int = 1000) -> Page:
        """Return the page of `section` that follows the property `after` (exclusive; empty: from the start)."""

    async def below(self, call: Call, ask: Below) -> BelowPage:
        """Return a page of the names below an object, in byte order of path, all of one state."""

    async def objects(self, call: Call, after: str = "", limit: int = 1000) -> ObjectPage:
        """Return the page of all ids that follows the id `after` (exclusive; empty: from the start).

        For audits and snapshots. An object made or deleted meanwhile may or may not be in a later page; one that exists
        throughout is in exactly one.
        """

    async def backup(self, call: Call, name: str) -> str:
        """Write a complete copy of this A-Hash's store while it serves; returns its path there.

        Args: `name`: of a new directory among the backups: letters, digits, `.`, `-` and `_`.
        Raises: DENIED, BAD_REQUEST, EXISTS, NO_SPACE, NOT_SUPPORTED, UNAVAILABLE (its store is not up to date).
        """

    async def regroup(self, call: Call, change: GroupChange) -> AHashStatus:
        """Change the group's members, one replica at a time; returns the master's status after it.

        Raises: DENIED, NOT_SUPPORTED (an A-Hash alone), EXISTS, NOT_FOUND, UNAVAILABLE, OUTCOME_UNKNOWN (look at the
        status before trying again). CONFLICT: another change is under way, or the change would remove the last voter or
        leave too few that answer.
        """

    async def status(self, call: Call) -> AHashStatus:
        """Report role, position and health of this replica, or (a strong call) of the master."""
