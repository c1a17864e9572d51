"""How a Librarian is set up: every interval and limit that is not a bound of the system.

Defaults are for production; `dev` gives the quick ones of a local cluster and of the simulator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from chelonia.core.ids import Dn
from chelonia.core.ports.librarian import ServiceRecord

_NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class LibrarianSettings:
    """Settings of one Librarian; durations in milliseconds.

    Args:
        root_owner: DN that owns the root when it is made at the first start.
        root_policy, root_default_policy: its `policy` and `defaultPolicy` at that moment.
        bootstrap: identities that are approved from the first start; withdrawing one later stays in force.
        lease_ms: a Shepherd not heard of for so long is away; one whose process has ended is at once.
        start_grace_ms: how long after its own start a Librarian waits for Shepherds that it has not heard since: when a
            site starts anew, they start too.
        leader_lease_ms: a repair leader that cannot renew for so long is replaced.
        tick_ms: how often background work looks up (heartbeats late, lease, erasures, timers).
        repair_delay_ms: how long a Shepherd may be away before its copies are replaced (a blob down to one copy
            does not wait).
        flap_returns_max, flap_window_ms: a Shepherd that came back so often within the window takes no new copies, and
            its own are replaced, until it has been steady for the window.
        trim_grace_ms: how long a surplus (`thirdwheel`) or damaged (`invalid`) copy is kept before it is erased.
        claim_ms: how long a copy may take to begin, and to go on when its bytes stop arriving.
        claim_bytes_per_s_min: a copy that makes less on average is given up, unless `heal rate` leaves it no more.
        trash_keep_ms: how long a deleted file can be brought back before its bytes are erased; 0: not at all.
        sweep_interval_ms: how often what has expired is looked for (trash, uploads that were never completed).
        record_key: the cluster's record key (hex) as an earlier start has kept it; "": the A-Hash knows, or a new one.
        snapshot_interval_ms: how often the namespace is stored on the Shepherds, for a rebuild; 0: never.
        snapshot_copies: on how many of them.
        outbox_interval_ms: how often every Shepherd's erasure outbox is looked at without being asked.
        survey_interval_ms: one slow pass over all known blobs (the survey) starts this often.
        survey_page_ms: pause between two pages of that pass.
        backoff_ms: pause after a Shepherd refused or failed, doubled up to `backoff_max_ms`.
        services_interval_ms: how often the registry and the stored node states are read again, and restored
            metadata noticed at the latest.
        plan_batch: blobs read and planned together; copies_max: copies this Librarian runs at once.
        copies_per_node_max: repair copies one Shepherd sends, and as many that it takes, at once: it keeps to that
            itself, whichever Librarians order them. One Librarian plans no more for both together.
        copy_bytes_per_s_max: of repair copies one Shepherd sends, and as many that it takes; 0: no limit. An
            administrator's `heal rate` goes before both.
        balance_bytes_per_s_max: how fast uneven disks are evened out and copies moved to better domains; 0: never.
        balance_hysteresis_percent: disks count as uneven when their used shares differ by more.
        drain_bytes_per_s_max: how fast copies leave Shepherds that are being drained.
        waiting_max: unknown identities recorded for approval; a newcomer takes a place of the DN that has most.
        waiting_per_dn_max: of one DN, those withdrawn included: one stranger cannot take up all the room.
    """

    root_owner: Dn = Dn("")
    root_policy: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    root_default_policy: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    bootstrap: tuple[ServiceRecord, ...] = ()
    lease_ms: int = 5_000
    start_grace_ms: int = 60_000
    leader_lease_ms: int = 15_000
    tick_ms: int = 1_000
    repair_delay_ms: int = 300_000
    flap_returns_max: int = 3
    flap_window_ms: int = 600_000
    trim_grace_ms: int = 300_000
    claim_ms: int = 120_000
    claim_bytes_per_s_min: int = 10_000
    trash_keep_ms: int = 24 * 3_600_000
    sweep_interval_ms: int = 10_000
    record_key: str = ""
    snapshot_interval_ms: int = 15 * 60_000
    snapshot_copies: int = 3
    outbox_interval_ms: int = 30_000
    survey_interval_ms: int = 6 * 3_600_000
    survey_page_ms: int = 500
    backoff_ms: int = 1_000
    backoff_max_ms: int = 60_000
    services_interval_ms: int = 5_000
    plan_batch: int = 100
    copies_max: int = 32
    copies_per_node_max: int = 4
    copy_bytes_per_s_max: int = 0
    balance_bytes_per_s_max: int = 20 * 1024 * 1024
    balance_hysteresis_percent: int = 10
    drain_bytes_per_s_max: int = 50 * 1024 * 1024
    waiting_max: int = 100
    waiting_per_dn_max: int = 8

    @classmethod
    def dev(cls, root_owner: Dn, bootstrap: tuple[ServiceRecord, ...] = ()) -> LibrarianSettings:
        """Quick settings for a local cluster: a dead node is noticed within about a second."""
        return cls(
            root_owner=root_owner,
            root_policy={"ALL": "+read +addEntry"},
            bootstrap=bootstrap,
            lease_ms=1_000,
            start_grace_ms=0,
            leader_lease_ms=3_500,
            tick_ms=200,
            repair_delay_ms=0,
            flap_window_ms=10_000,
            trim_grace_ms=3_000,
            claim_ms=15_000,
            trash_keep_ms=0,
            sweep_interval_ms=1_000,
            snapshot_interval_ms=0,
            outbox_interval_ms=1_000,
            survey_interval_ms=10_000,
            survey_page_ms=50,
            backoff_ms=200,
            backoff_max_ms=3_000,
            services_interval_ms=1_000,
        )
