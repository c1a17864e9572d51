"""The local life of a replica on one Shepherd: what it is now, what an event makes of it, and what is to be told.

An upload is *open* (a ticket is out), *receiving*, *kept* (interrupted, may be resumed), *stored* (bytes durable,
purpose not yet fulfilled) or *done*. Stored bytes are a `KeptReplica`: `alive` or `invalid`, committed (a transact has
named its blob) or not. States change only by `core.cluster.replicas.TRANSITIONS`.
Invariants: bytes a transact has named are never erased by the Shepherd's own decision, only set aside; bytes nobody
acknowledged are set aside after ticket and grace, and only when a Librarian, asked after that, does not know them.
Pure. Reasoning: docs/design/002-protocols.md, "Uncommitted replicas".
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from chelonia.core.cluster.replicas import PROVEN, Cause, Checksums, ReplicaFacts, ReplicaState, next_state
from chelonia.core.ids import BlobId, Guid, Ms, ReferenceId
from chelonia.core.ports.librarian import ReportedReplica
from chelonia.core.ports.shepherd import StoredReplica
from chelonia.core.values import replace
from chelonia.shepherd.settings import ShepherdSettings

ASK_AGAIN_TIMES_MAX: Final = 64
"""Bytes that nobody commits are asked for at most so many `unknown_retry_ms` apart: half an hour by default."""


@dataclass(frozen=True, slots=True)
class KeptReplica:
    """A replica whose bytes are on this Shepherd's stable storage.

    Args:
        blob, guid, size, checksums, created_ms: from its record; empty, -1 and 0 when the record is unreadable.
        state: `ALIVE` or `INVALID`.
        committed: a transact is known to have named the blob.
        keep_until_ms: monotonic; an uncommitted replica is expected to be unknown until then.
        unknown_since_ms: monotonic; since when Librarians have called it unknown, -1 when they have not.
        checked_ms: wall clock of the last full check in this boot, 0 for none.
        listed: the namespace is known to list it as alive, as it is.
    """

    reference: ReferenceId
    blob: BlobId
    guid: Guid
    size: int
    checksums: Checksums
    created_ms: Ms
    state: ReplicaState
    committed: bool
    keep_until_ms: int = 0
    unknown_since_ms: int = -1
    checked_ms: Ms = Ms(0)
    listed: bool = False

    @property
    def alive(self) -> bool:
        """Whether its bytes may be handed out."""
        return self.state is ReplicaState.ALIVE


class Phase(enum.Enum):
    """Where an upload stands."""

    OPEN = "open"
    RECEIVING = "receiving"
    KEPT = "kept"
    FINISHING = "finishing"
    STORED = "stored"
    DONE = "done"


class Fate(enum.Enum):
    """What becomes of a replica that the namespace does not know."""

    ASK_AGAIN = "ask again"
    SET_ASIDE = "set aside"


def arrived(reference: ReferenceId, facts: ReplicaFacts, keep_until_ms: int, now_ms: Ms) -> KeptReplica:
    """The replica that a verified upload leaves: alive, uncommitted, just checked."""
    state = next_state(ReplicaState.CREATING, Cause.VERIFIED)
    assert state is ReplicaState.ALIVE
    return KeptReplica(
        reference, facts.blob, facts.guid, facts.size, facts.checksums.noted, facts.created_ms, state, False,
        keep_until_ms=keep_until_ms, checked_ms=now_ms,
    )  # fmt: skip


def found(stored: StoredReplica, keep_until_ms: int) -> KeptReplica:
    """The replica that a start finds on disk: invalid when its record or some of its bytes are missing."""
    facts = stored.facts
    if facts is None:
        return KeptReplica(
            stored.reference, BlobId(""), Guid(""), stored.size, Checksums(), Ms(0), ReplicaState.INVALID, True
        )
    whole = stored.size == facts.size
    return KeptReplica(
        stored.reference, facts.blob, facts.guid, facts.size, facts.checksums.noted, facts.created_ms,
        ReplicaState.ALIVE if whole else ReplicaState.INVALID, stored.committed, keep_until_ms=keep_until_ms,
    )  # fmt: skip


def left_ms(facts: ReplicaFacts, now_ms: Ms, settings: ShepherdSettings) -> int:
    """For how much longer an uncommitted replica that a start finds is expected to be unknown: no start prolongs it.

    Args:
        now_ms: wall clock. One that was set back keeps a replica no longer than a ticket of now would.
    """
    grace_ms = settings.unknown_grace_ms
    left = facts.created_ms + facts.commit_within_ms + grace_ms - now_ms
    return min(max(left, 0), settings.ticket_lifetime_max_ms + grace_ms)


def unproven(held: KeptReplica) -> KeptReplica:
    """A replica that nobody may have before it is checked."""
    return replace(held, state=ReplicaState.INVALID, listed=False)


def checked(held: KeptReplica, intact: bool, now_ms: Ms) -> KeptReplica:
    """The replica after a full check of bytes and record."""
    state = next_state(held.state, Cause.VERIFIED if intact else Cause.DAMAGED) or held.state
    return replace(held, state=state, checked_ms=now_ms, listed=held.listed and state is held.state)


def acknowledged(held: KeptReplica, believed: ReplicaState | None) -> KeptReplica:
    """The replica once a Librarian knows its blob, and believes this of it (None: not known)."""
    return replace(held, committed=True, unknown_since_ms=-1, listed=held.alive and believed in PROVEN)


def is_named(held: KeptReplica) -> bool:
    """Whether a replica is committed by the word of whoever stored it. That comes late, perhaps after the erasure of
    bytes that an old image has brought back: of what a start found, or a Librarian called unknown, it says nothing."""
    return held.alive and not held.committed and held.checked_ms > 0 and held.unknown_since_ms < 0


def unknown(held: KeptReplica, now_ms: int, grace_ms: int) -> tuple[KeptReplica, Fate]:
    """Decide about a replica that a Librarian has just called unknown.

    Args:
        now_ms: monotonic; grace_ms: how long a committed replica may be unknown before it is set aside.

    Returns: the replica with the time noted, and its fate. Nothing is ever erased here.
    """
    since = held.unknown_since_ms if held.unknown_since_ms >= 0 else now_ms
    limit = since + grace_ms if held.committed else max(held.keep_until_ms, 0)
    fate = Fate.SET_ASIDE if now_ms >= limit else Fate.ASK_AGAIN
    return replace(held, unknown_since_ms=since, listed=False), fate


def ask_again_ms(held: KeptReplica, now_ms: int, retry_ms: int) -> int:
    """How long until a replica that was called unknown (`unknown`) is reported again.

    Bytes that nobody has committed yet wait for that as long as their ticket is good, and mostly it never comes. They
    are asked for ever more rarely, at moments that all share (so that many cost one report), and when their time ends.
    """
    if held.committed:
        return retry_ms
    span, longest = retry_ms, min(now_ms - held.unknown_since_ms, ASK_AGAIN_TIMES_MAX * retry_ms)
    while 2 * span <= longest:
        span *= 2
    shared_ms = (now_ms + span // 2) // span * span + span
    return min(shared_ms, max(held.keep_until_ms, now_ms + retry_ms)) - now_ms


def reported(held: KeptReplica) -> ReportedReplica:
    """What a report says of a replica: size and checksums only while they are vouched for."""
    if not held.alive:
        return ReportedReplica(held.guid, held.reference, held.state, held.blob)
    return ReportedReplica(held.guid, held.reference, held.state, held.blob, held.size, held.checksums)


def gone(reference: ReferenceId, blob: BlobId) -> ReportedReplica:
    """What a report says of a replica that the namespace expects here and that is not."""
    return ReportedReplica("", reference, ReplicaState.DELETED, blob)
