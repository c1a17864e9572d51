"""The local life of a replica on one Shepherd: its state, the changes that events make, and its reports.

An upload is *open* (a ticket is out), *receiving*, *kept* (interrupted, may be resumed), *finishing*, *stored* (bytes
durable, purpose not yet fulfilled) or *done*. Stored bytes are a `KeptReplica`: `alive` or `invalid`, committed (a
transact has named its blob) or not. States change only by `core.cluster.replicas.TRANSITIONS`.
Invariants: a Shepherd never erases bytes that a transact has named by its own decision; it only sets them aside. It
sets unacknowledged bytes aside after ticket and grace, once a Librarian has answered that it does not know them.
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
"""Longest pause between two reports of uncommitted bytes, in `unknown_retry_ms`: half an hour by default."""


@dataclass(frozen=True, slots=True)
class KeptReplica:
    """A replica whose bytes are on this Shepherd's stable storage.

    Args:
        blob, guid, size, checksums, created_ms: from its record; empty, -1 and 0 when the record is unreadable.
        state: `ALIVE` or `INVALID`.
        committed: a transact is known to have named the blob.
        keep_until_ms: monotonic; an uncommitted replica may be unknown until then.
        unknown_since_ms: monotonic; when a Librarian first answered that it is unknown, -1 when none has.
        checked_ms: wall clock when the last full check in this boot began, 0 for none.
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
    """The phase of an upload."""

    OPEN = "open"
    RECEIVING = "receiving"
    KEPT = "kept"
    FINISHING = "finishing"
    STORED = "stored"
    DONE = "done"


class Fate(enum.Enum):
    """The decision about a replica that the namespace does not know."""

    ASK_AGAIN = "ask again"
    SET_ASIDE = "set aside"


def arrived(reference: ReferenceId, facts: ReplicaFacts, keep_until_ms: int, now_ms: Ms) -> KeptReplica:
    """Return the replica of a verified upload: alive, uncommitted, just checked."""
    state = next_state(ReplicaState.CREATING, Cause.VERIFIED)
    assert state is ReplicaState.ALIVE
    return KeptReplica(
        reference, facts.blob, facts.guid, facts.size, facts.checksums.noted, facts.created_ms, state, False,
        keep_until_ms=keep_until_ms, checked_ms=now_ms,
    )  # fmt: skip


def found(stored: StoredReplica, keep_until_ms: int) -> KeptReplica:
    """Return a replica as a start finds it on disk: invalid when its record or some of its bytes are missing."""
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
    """Return for how many more ms a found uncommitted replica may be unknown; starts do not prolong that.

    Args:
        now_ms: wall clock. One that was set back keeps a replica no longer than a ticket of now would.
    """
    grace_ms = settings.unknown_grace_ms
    assert grace_ms >= 0, "a grace only prolongs"
    left = facts.created_ms + facts.commit_within_ms + grace_ms - now_ms
    return min(max(left, 0), settings.ticket_lifetime_max_ms + grace_ms)


def unproven(held: KeptReplica) -> KeptReplica:
    """Return the replica as invalid, until it is checked."""
    return replace(held, state=ReplicaState.INVALID, listed=False)


def was_judged(before: KeptReplica, held: KeptReplica) -> bool:
    """Return whether something has judged the bytes of a replica anew since it was as `before`."""
    return (before.state, before.checked_ms) != (held.state, held.checked_ms)


def checked(held: KeptReplica, intact: bool, began_ms: Ms) -> KeptReplica:
    """Return the replica after a full check of bytes and record, which began at `began_ms`."""
    state = next_state(held.state, Cause.VERIFIED if intact else Cause.DAMAGED) or held.state
    assert state in (ReplicaState.ALIVE, ReplicaState.INVALID), "a check decides whether the bytes may be handed out"
    return replace(held, state=state, checked_ms=began_ms, listed=held.listed and state is held.state)


def acknowledged(held: KeptReplica, believed: ReplicaState | None) -> KeptReplica:
    """Return the replica once a Librarian knows its blob. `believed`: its state in the namespace, None: not known."""
    return replace(held, committed=True, unknown_since_ms=-1, listed=held.alive and believed in PROVEN)


def is_named(held: KeptReplica) -> bool:
    """Whether a Bartender's word that the replica it stored is committed counts."""
    # That word may come late, after the erasure of bytes that an old disk image has brought back. So it does not count
    # for replicas that a start found, or that a Librarian called unknown.
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
    """Return how many ms later a replica that is unknown (`unknown`) is reported again.

    Uncommitted bytes are reported ever more rarely, and once more when their time ends. The moments are the same for
    all, so that many share one report.
    """
    assert retry_ms > 0, "answers take time"
    if held.committed:
        return retry_ms
    span, longest = retry_ms, min(now_ms - held.unknown_since_ms, ASK_AGAIN_TIMES_MAX * retry_ms)
    while 2 * span <= longest:
        span *= 2
    shared_ms = (now_ms + span // 2) // span * span + span
    pause_ms = min(shared_ms, max(held.keep_until_ms, now_ms + retry_ms)) - now_ms
    assert pause_ms > 0, "what was just asked is not asked again at once"
    return pause_ms


def reported(held: KeptReplica) -> ReportedReplica:
    """Return a replica as a report describes it: with size and checksums only while it is alive."""
    if not held.alive:
        return ReportedReplica(held.guid, held.reference, held.state, held.blob)
    return ReportedReplica(held.guid, held.reference, held.state, held.blob, held.size, held.checksums)


def gone(reference: ReferenceId, blob: BlobId) -> ReportedReplica:
    """Return the report's entry for a replica that the namespace expects here and that is missing."""
    return ReportedReplica("", reference, ReplicaState.DELETED, blob)
