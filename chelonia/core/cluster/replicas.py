"""Blobs, replicas and their states: the vocabulary of the byte side, and the one table of transitions.

A blob is an immutable sequence of bytes with its own id. A replica is a copy of a blob on one Shepherd, called
`<ServiceId> <ReferenceId>`. `offline` is never stored: readers see it for a replica whose Shepherd is away.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final

import msgspec

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BlobId, Dn, Guid, Ms, ReferenceId, ServiceId

PROTOCOL_HTTP = "http"
"""The protocol name of every TURL we hand out, as in the original also for https."""


class ReplicaState(enum.Enum):
    """State of one replica; the values are the original's strings."""

    CREATING = "creating"
    ALIVE = "alive"
    STALLED = "stalled"
    INVALID = "invalid"
    DELETED = "deleted"
    THIRDWHEEL = "thirdwheel"
    OFFLINE = "offline"


PROVEN: Final = (ReplicaState.ALIVE, ReplicaState.THIRDWHEEL)
"""States of a copy that was verified, and not found damaged since."""
_STATES = {state.value: state for state in ReplicaState}


class Readable(enum.Enum):
    """Whether a blob can be read, judged by the states of all its copies."""

    YES = "yes"
    AWAY = "unreachable"
    """It has verified copies, all on Shepherds that are away now."""
    LOST = "lost"
    """No verified copy is known anywhere. One that comes back verified ends this state."""


def readable(copies: Iterable[tuple[ReplicaState, bool]]) -> Readable:
    """Judge a blob by the stored state of each copy, and whether its Shepherd is within reach."""
    here = [within_reach for state, within_reach in copies if state in PROVEN]
    return Readable.YES if any(here) else Readable.AWAY if here else Readable.LOST


def state_of(text: str) -> ReplicaState:
    """Return the state called `text`. Raises: ValueError when there is none."""
    return _STATES.get(text) or ReplicaState(text)  # a dictionary, for it is called for each replica of each plan


class Cause(enum.Enum):
    """An event in the life of a replica; the columns of `TRANSITIONS`."""

    VERIFIED = "verified"
    """All bytes are on stable storage and their checksum is right."""
    DAMAGED = "damaged"
    """Bytes missing, unreadable or with the wrong checksum."""
    LATE = "late"
    """The creation outlived its claim."""
    SURPLUS = "surplus"
    """The planner counted more verified copies than wanted."""
    MISSED = "missed"
    """The planner needs this copy again."""
    ERASED = "erased"
    """The Shepherd confirmed that the bytes are gone, or lost them."""


_S, _E = ReplicaState, Cause

TRANSITIONS: dict[tuple[ReplicaState, Cause], ReplicaState] = {
    (_S.CREATING, _E.VERIFIED): _S.ALIVE,
    (_S.CREATING, _E.DAMAGED): _S.INVALID,
    (_S.CREATING, _E.LATE): _S.STALLED,
    (_S.CREATING, _E.ERASED): _S.DELETED,
    (_S.STALLED, _E.VERIFIED): _S.ALIVE,
    (_S.STALLED, _E.DAMAGED): _S.INVALID,
    (_S.STALLED, _E.ERASED): _S.DELETED,
    (_S.INVALID, _E.VERIFIED): _S.ALIVE,
    (_S.INVALID, _E.ERASED): _S.DELETED,
    (_S.ALIVE, _E.VERIFIED): _S.ALIVE,
    (_S.ALIVE, _E.DAMAGED): _S.INVALID,
    (_S.ALIVE, _E.SURPLUS): _S.THIRDWHEEL,
    (_S.ALIVE, _E.ERASED): _S.DELETED,
    (_S.THIRDWHEEL, _E.VERIFIED): _S.THIRDWHEEL,
    (_S.THIRDWHEEL, _E.DAMAGED): _S.INVALID,
    (_S.THIRDWHEEL, _E.MISSED): _S.ALIVE,
    (_S.THIRDWHEEL, _E.ERASED): _S.DELETED,
}
"""Every legal change of a stored state. `offline` is a view and `deleted` is final, so neither has a row."""

assert not {_S.OFFLINE, _S.DELETED} & {state for state, _ in TRANSITIONS}, "a view is not stored, and an end is one"
assert _S.OFFLINE not in TRANSITIONS.values(), "a view is not stored"
assert all(after in PROVEN for (_, cause), after in TRANSITIONS.items() if cause is _E.VERIFIED), "verified is proven"
assert all(after not in PROVEN for (_, cause), after in TRANSITIONS.items() if cause is _E.DAMAGED), "damaged is not"
assert {state for state, cause in TRANSITIONS if cause is _E.ERASED} == {*_S} - {_S.OFFLINE, _S.DELETED}, "all may go"
assert all(after is _S.DELETED for (_, cause), after in TRANSITIONS.items() if cause is _E.ERASED), "gone is gone"
_CHANGES: Final = frozenset((state, after) for (state, _), after in TRANSITIONS.items())


def next_state(state: ReplicaState, cause: Cause) -> ReplicaState | None:
    """Return the state after `cause`, or None when that cannot happen to a replica in `state`."""
    return TRANSITIONS.get((state, cause))


def may_become(state: ReplicaState, after: ReplicaState) -> bool:
    """Whether some cause takes a replica from `state` to `after`."""
    return (state, after) in _CHANGES


class Checksums(msgspec.Struct, frozen=True):
    """Checksums of one blob, lower-case hex; `""` where unknown. SHA-256 is the one of record.

    Only the records beside the bytes have the two CRCs: neither metadata nor receipts have them.
    """

    sha256: str = ""
    md5: str = ""
    adler32: str = ""
    crc32c: str = ""
    crc64nvme: str = ""

    def conflicts(self, other: Checksums) -> bool:
        """Whether any checksum known to both differs."""
        return self != other and any(a and b and a != b for a, b in zip(self._all(), other._all(), strict=True))

    def agrees(self, other: Checksums) -> bool:
        """Whether at least one checksum is known to both and none differs."""
        return any(a and a == b for a, b in zip(self._all(), other._all(), strict=True)) and not self.conflicts(other)

    def with_more(self, other: Checksums) -> Checksums:
        """Return these, and the other's where one is unknown here."""
        return Checksums(*(own or more for own, more in zip(self._all(), other._all(), strict=True)))

    @property
    def noted(self) -> Checksums:
        """The checksums that indexes, receipts and metadata have."""
        return Checksums(self.sha256, self.md5, self.adler32)

    def _all(self) -> tuple[str, ...]:
        return self.sha256, self.md5, self.adler32, self.crc32c, self.crc64nvme


class Location(msgspec.Struct, frozen=True, order=True):
    """The place of a replica: its Shepherd, and its reference there."""

    shepherd: ServiceId
    reference: ReferenceId

    def __str__(self) -> str:
        """The property of `locations`: `<ServiceId> <ReferenceId>` with a single blank."""
        return f"{self.shepherd} {self.reference}"


def parse_location(text: str) -> Location:
    """Parse a property of `locations`. Raises: BAD_REQUEST unless it is two words separated by one blank."""
    shepherd, blank, reference = text.partition(" ")
    if not (shepherd and blank and reference) or " " in reference:
        raise CheloniaError(Kind.BAD_REQUEST, subject=text[:80], cause="a location is '<Shepherd> <referenceID>'")
    return Location(ServiceId(shepherd), ReferenceId(reference))


class ReplicaFacts(msgspec.Struct, frozen=True):
    """The facts of a replica that never change, kept beside its bytes so that bytes alone can rebuild the namespace.

    Args:
        blob, guid: the bytes, and their file when they were written.
        name: the Logical Name at the time, for rebuild only.
        owner: DN of the file's owner.
        size: bytes; checksums: as measured by the Shepherd that holds it.
        wanted: copies wanted at the time.
        created_ms: time when the file was put.
        seal: the cluster's signature over the facts it knew (opaque to the Shepherd).
        commit_within_ms: lifetime of the ticket: for so long after `created_ms` a transact may name the blob by these
            bytes. 0: unknown, as for a claimed copy of a blob that was named before.
    """

    blob: BlobId
    guid: Guid
    name: str
    owner: Dn
    size: int
    checksums: Checksums
    wanted: int
    created_ms: Ms
    seal: str = ""
    commit_within_ms: int = 0


class Receipt(msgspec.Struct, frozen=True):
    """A Shepherd's signed word that its own copy is complete, checked and on stable storage.

    `signature` is over `wire.receipts.signed_bytes`. No Shepherd vouches for another's copy.
    """

    blob: BlobId
    location: Location
    size: int
    checksums: Checksums
    boot: int
    issued_ms: Ms
    signature: str = ""
