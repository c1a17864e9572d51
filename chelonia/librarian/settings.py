"""The settings of a Librarian: every interval and limit that is not a bound of the system.

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
        lease_ms: a Shepherd not heard for so long is away; one whose process has ended is away at once.
        start_grace_ms: time after its own start for which a Librarian waits for Shepherds that it has not heard since.
            When a site starts anew, they start too.
        leader_lease_ms: a repair leader that cannot renew for so long is replaced.
        tick_ms: interval of background work (late heartbeats, lease, erasures, timers).
        repair_delay_ms: time that a Shepherd may be away before its copies are replaced; a blob down to one copy does
            not wait.
        flap_returns_max, flap_window_ms: a Shepherd that came back so often within the window takes no new copies. Its
            own are replaced, until it has been steady for the window.
        trim_grace_ms: time that a surplus (`thirdwheel`) or damaged (`invalid`) copy is kept before it is erased.
        claim_ms: time that a copy gets to begin, and to go on when its bytes stop arriving.
        claim_bytes_per_s_min: a copy with a lower average is given up, unless `heal rate` leaves it no more.
        trash_keep_ms: time that a deleted file can be brought back before its bytes are erased; 0: not at all.
        sweep_interval_ms: interval of the search for what has expired (trash, uploads that were never completed).
        record_key: the cluster's record key (hex) as an earlier start kept it; "": the A-Hash's, or a new one.
        snapshot_interval_ms: interval of snapshots of the namespace on the Shepherds, for a rebuild; 0: never.
        snapshot_copies: number of Shepherds that get a snapshot.
        outbox_interval_ms: interval at which every Shepherd's erasure outbox is read without a cause.
        survey_interval_ms: interval of surveys, the slow passes over all known blobs.
        survey_page_ms: pause between two pages of a survey.
        backoff_ms: pause after a Shepherd refused or failed, doubled up to `backoff_max_ms`.
        services_interval_ms: interval at which the registry and the stored node states are read again, and restored
            metadata noticed at the latest.
        plan_batch: blobs read and planned together; copies_max: copies this Librarian runs at once.
        copies_per_node_max: repair copies one Shepherd sends at once, and as many that it takes. It keeps to that
            itself, whichever Librarians order them; one Librarian plans no more for both together.
        copy_bytes_per_s_max: rate of the repair copies one Shepherd sends, and of those it takes; 0: no limit. An
            administrator's `heal rate` goes before both.
        balance_bytes_per_s_max: rate at which copies even out disks and move to better domains; 0: never.
        balance_hysteresis_percent: disks count as uneven when their used shares differ by more.
        drain_bytes_per_s_max: rate at which copies leave Shepherds that are drained.
        waiting_max: unknown identities recorded for approval; a newcomer takes a place of the DN that has most.
        waiting_per_dn_max: of one DN, withdrawn ones included: one stranger cannot take up all the room.
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
        """Return quick settings for a local cluster: it notices a dead node within about a second."""
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
