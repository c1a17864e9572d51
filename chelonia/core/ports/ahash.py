"""The A-Hash port: what a metadata store promises, whoever implements it.

The A-Hash decides nothing about meaning: it stores objects and applies conditional changes atomically. `get` and
`change` are the original's operations; `transact`, `walk`, `scan`, `below`, `recall` and `status` are what a
transactional, paged namespace needs. One contract suite (`tests/contract/`) runs against every implementation.

Invariants:
- A transact applies wholly or not at all, across objects; the same request key applies once.
- A condition reads the state just before its transact.
- An answer is given only when the change is durable.

Reads say how fresh they must be (`Call.read_after`, `Call.strong`); implementations tell the process's `Horizon` where
each of their answers stands.
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
    """What an element does. `ADD` and `CHECK` exist in `transact` only."""

    SET = "set"
    UNSET = "unset"
    DELETE = "delete"
    ADD = "add"
    """Add the integer `value` to the property (unset counts as 0)."""
    CHECK = "check"
    """Change nothing; the element is there for its conditions."""


class ConditionType(enum.Enum):
    """What must hold of the element's object. `EMPTY`, `VERSION` and `AT_MOST` exist in `transact` only."""

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


class Condition(msgspec.Struct, frozen=True):
    """One condition on the object that its element names; unused fields are empty."""

    type: ConditionType
    section: str = ""
    property: str = ""
    value: str = ""
    id: str = ""


class Element(msgspec.Struct, frozen=True):
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
    """The first condition of a transact that did not hold: which element, which condition."""

    change_id: str
    condition_id: str


class TransactOutcome(msgspec.Struct, frozen=True):
    """Answer to a transact, stored under its request key in the same transaction when it applied.

    `applied` False means nothing was changed and `unmet` says why. `memo` is the caller's own note, returned as it
    was stored, so that a retry can be answered as the first try was. `recalled` tells a stored answer from a new one.
    """

    applied: bool
    position: Position
    unmet: Unmet | None = None
    memo: str = ""
    recalled: bool = False


class Linked(msgspec.Struct, frozen=True):
    """The objects that an object names: each value of its narrow `section` behind `prefix` is an id; `needed` filters
    them."""

    section: str
    prefix: str
    needed: Filter = ()


class Walk(msgspec.Struct, frozen=True):
    """Follow `steps` from `start` through `section`.

    Each step lists candidate properties; the first that is set is followed. `linked`: what the last object names is
    read with it, which saves its reader a second call.
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
    """The steps that could be taken, in order, and the object where the walk ended (the start when none could).

    `linked`: what that one names, at most `bounds.LINKED_MAX`, the lowest properties first.
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
        """Where the next page begins, "" when there is none."""
        return self.items[-1][0] if self.more and self.items else ""


class ObjectPage(msgspec.Struct, frozen=True):
    """An ordered page of the ids of all objects, in byte order, and whether more follow."""

    ids: tuple[ObjectId, ...]
    more: bool

    @property
    def after(self) -> str:
        """Where the next page begins, "" when there is none."""
        return self.ids[-1] if self.more and self.ids else ""


class ReplicaView(msgspec.Struct, frozen=True):
    """One replica of a group as another sees it.

    `role`: `master`, `follower`, `learner` (it has no vote), `away`, or `parted`: changes that it acknowledged are not
    here, nor changes that were acknowledged here there, so neither follows the other. `lag`: commits that it has
    yet to acknowledge, -1 where that is not known: only the master is told. `round_trip_ms`: how long an answer of it
    takes at least; -1: not known, or the one that tells.
    """

    replica: int
    dn: Dn
    address: str
    role: str
    lag: int
    round_trip_ms: int = -1


class PagesSeen(msgspec.Struct, frozen=True):
    """The scrub of a store's pages: how many there are, how many the present or last round has checked, when the last
    whole round ended (0: none yet), and how many are damaged, log files among them."""

    pages: int
    checked: int
    ended_ms: Ms
    damaged: int


class AHashStatus(msgspec.Struct, frozen=True):
    """The state of one A-Hash.

    `role`: `master`, `client` (it follows a master), `opening` (elected, not yet joined by a majority) or `alone` (it
    knows of no master); `writable`: it is master, sure of its majority, and the disk is not nearly full.
    Of a group: `replica` its id, `term` of mastership, `lease_ms` left of a master's lease, `elected_ms` when this
    replica last became master (0: never in this process), `membership` the number of the record in force.
    `pages`: the scrub of this one's pages; None when there is none. `round_trip_ms`: how far apart replicas may be, as
    configured; 0: not told. `vouched_term`, `vouched_sequence`: the newest commit on this disk of a term that is known
    to have been joined; of two disks of one generation the one with the larger pair holds all that the other has of
    what was acknowledged. `terms_begun`: masterships of this process; `lease_stretch`: how many times as long as usual
    its leases are to last, as processes wait for the processor (0: it is none of a group).
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
    replicas: tuple[ReplicaView, ...] = ()
    pages: PagesSeen | None = None
    round_trip_ms: int = 0
    vouched_term: int = 0
    vouched_sequence: int = 0
    terms_begun: int = 0
    lease_stretch: int = 0


class GroupStep(enum.Enum):
    """What is done to a group: `ADD` a replica (it votes once it holds what the group has), `REMOVE` one."""

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

        Raises: DENIED; TOO_LARGE when a wide section asked for whole holds more than `bounds.SECTION_WHOLE_MAX`
        and the filter names that section (with an empty filter the section is left out and counted instead).
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
        """The stored outcome of an earlier transact under `key` by any Librarian (`Call.key_scope`), or None."""

    async def walk(self, call: Call, walks: tuple[Walk, ...], needed: Filter = ()) -> tuple[WalkOutcome, ...]:
        """Follow many paths in one call; `needed` filters the sections of each `last`."""

    async def scan(self, call: Call, object_id: ObjectId, section: str, after: str = "", limit: int = 1000) -> Page:
        """Return the page of `section` that follows the property `after` (exclusive; empty: from the start)."""

    async def below(self, call: Call, ask: Below) -> BelowPage:
        """Return a page of what is named below an object, in byte order of path, all of one state."""

    async def objects(self, call: Call, after: str = "", limit: int = 1000) -> ObjectPage:
        """Return the page of all ids that follows the id `after` (exclusive; empty: from the start).

        For audits and snapshots. What is made or deleted meanwhile may or may not be in a later page; what exists
        throughout is in exactly one.
        """

    async def backup(self, call: Call, name: str) -> str:
        """Write a complete copy of the store of the A-Hash that is asked, while it serves; returns where it is, there.

        Args: `name`: of a new directory where backups are kept: letters, digits, `.`, `-` and `_`.
        Raises: DENIED, BAD_REQUEST, EXISTS, NO_SPACE, NOT_SUPPORTED, UNAVAILABLE (what it has is not up to date).
        """

    async def regroup(self, call: Call, change: GroupChange) -> AHashStatus:
        """Change who belongs to the group, one replica at a time; returns the master's status after it.

        Raises: DENIED, NOT_SUPPORTED (an A-Hash alone), EXISTS, NOT_FOUND, CONFLICT (another change is under way, the
        last voter, one without whom too few would answer), UNAVAILABLE, OUTCOME_UNKNOWN (look at the status before
        trying again).
        """

    async def status(self, call: Call) -> AHashStatus:
        """Report role, position and health of this replica, or (a strong call) of the master."""
