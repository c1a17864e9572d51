"""The settings of one Shepherd, with production defaults."""

from __future__ import annotations

from dataclasses import dataclass

from chelonia.core.bounds import COPIES_IN_FLIGHT_PER_NODE_MAX, INLINE_BYTES_MAX
from chelonia.core.ids import ANONYMOUS, Dn, ServiceId

_SECOND = 1000
_MINUTE = 60 * _SECOND
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ShepherdSettings:
    """One Shepherd's settings. Every duration is in milliseconds.

    Args:
        service_id: its public URL, `https://host:port/Shepherd`.
        base_url: start of its TURLs, `https://host:port`.
        dn: the name on its certificate, for calls to Librarians in the same process.
        domain: failure domain announced in heartbeats; two copies of a file avoid sharing one.
        version: software version announced in heartbeats.
        heartbeat_ms: between two heartbeats.
        report_ms: least time between two reports, so that many changes share one.
        report_retry_ms: pause after a report or heartbeat that failed.
        uncommitted_report_ms: how long a copy whose commit is under way waits before it is reported; two empty reports
            are as far apart.
        unknown_retry_ms: how soon a replica that the namespace does not know is reported again
            (`lifecycle.ask_again_ms`).
        unknown_grace_ms: how long a ticket's bytes are kept after its expiry, and how long a committed replica may
            be unknown before it is set aside.
        quarantine_keep_ms: how long set-aside bytes that nobody ever acknowledged are kept before they are erased.
        ticket_lifetime_ms, ticket_lifetime_max_ms: of a TURL whose request names no lifetime, and the longest allowed.
        reserve_ms: how long space is kept for an upload that does not begin; its ticket may still be used later.
        forward_stall_ms: how long a forwarded copy may take no byte before it is dropped and replaced.
        forward_finish_ms: how long the last byte's confirmation may take.
        forward_queue_chunks: chunks of `bounds.CHUNK_BYTES` waiting for one such copy at most.
        commit_retry_ms, commit_deadline_ms: pause between repeats of a commit whose answer was lost, and their end.
        copy_tries, copy_retry_ms: attempts of one push, each resuming where the last left off, and the pause between.
        copies_at_once_max: repair copies sent at once, and as many received, unless the cluster orders less; from 1 to
            `bounds.COPIES_IN_FLIGHT_PER_NODE_MAX`.
        copy_bytes_per_s_max: bytes of repair copies sent a second, and as many received, unless the cluster orders
            less. At least `bounds.COPY_BYTES_PER_S_MIN`; 0 for the cluster's rate.
        scrub_period_ms, scrub_bytes_per_s_max: every replica is re-read within the period, at this rate at most.
        compare_ms: the whole inventory is compared with the namespace at least this often, over restarts too.
        tidy_ms: between two clean-ups of expired uploads and tickets.
        min_free_bytes: never used, so that the node stays manageable; announced as not free.
        segment_replica_bytes_max: largest replica kept in a segment, from 0 to `bounds.INLINE_BYTES_MAX`. Smaller ones
            that are files move there; with 0 none do, and segments keep theirs.
        accepting: whether new replicas are taken at all.
    """

    service_id: ServiceId
    base_url: str
    dn: Dn = ANONYMOUS
    domain: str = ""
    version: str = ""
    heartbeat_ms: int = 2 * _SECOND
    report_ms: int = 200
    report_retry_ms: int = _SECOND
    uncommitted_report_ms: int = 5 * _SECOND
    unknown_retry_ms: int = 30 * _SECOND
    unknown_grace_ms: int = 10 * _MINUTE
    quarantine_keep_ms: int = 7 * _DAY
    ticket_lifetime_ms: int = _HOUR
    ticket_lifetime_max_ms: int = _DAY
    reserve_ms: int = 2 * _MINUTE
    forward_stall_ms: int = 500
    forward_finish_ms: int = 5 * _SECOND
    forward_queue_chunks: int = 2
    commit_retry_ms: int = 200
    commit_deadline_ms: int = 30 * _SECOND
    copy_tries: int = 4
    copy_retry_ms: int = 500
    copies_at_once_max: int = COPIES_IN_FLIGHT_PER_NODE_MAX
    copy_bytes_per_s_max: int = 0
    scrub_period_ms: int = 14 * _DAY
    scrub_bytes_per_s_max: int = 50 * _MIB
    compare_ms: int = _DAY
    tidy_ms: int = 10 * _SECOND
    min_free_bytes: int = 256 * _MIB
    segment_replica_bytes_max: int = INLINE_BYTES_MAX
    accepting: bool = True


def dev(service_id: ServiceId, base_url: str) -> ShepherdSettings:
    """Return settings for a local cluster that people watch and tests wait for: everything happens within seconds."""
    return ShepherdSettings(
        service_id=service_id,
        base_url=base_url,
        heartbeat_ms=250,
        report_ms=20,
        report_retry_ms=250,
        copy_retry_ms=200,
        uncommitted_report_ms=_SECOND,
        unknown_retry_ms=_SECOND,
        unknown_grace_ms=_MINUTE,
        quarantine_keep_ms=_HOUR,
        scrub_period_ms=30 * _SECOND,
        scrub_bytes_per_s_max=200 * _MIB,
        tidy_ms=_SECOND,
        min_free_bytes=16 * _MIB,
    )
