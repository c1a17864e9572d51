"""Plan: the CPU of the repair planner for one file, with 9 nodes and with 1 000.

No cluster is started. Files are planned in batches as a Librarian plans them; each block measures every case with both
numbers of nodes in turn. The cost of making the nodes ready, once a batch at most, is measured apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from experiment import Outcome, Setup
from intervals import check, median_interval

from chelonia.core.cluster.replicas import Location, ReplicaState
from chelonia.core.ids import BlobId, Dn, Ms, ReferenceId, ServiceId
from chelonia.core.ports.librarian import NodeView
from chelonia.librarian.repair.plan.decide import (
    ApprovedShepherds,
    BlobView,
    NodeHealth,
    RepairPolicy,
    ReplicaOnRecord,
    plan,
)

BAR_US = 50.0
BAR_RATIO = 2.0
BATCH = 100
"""As `plan_batch`."""
SITES, RACKS = 5, 10
NOW = Ms(1_000_000)
POLICY = RepairPolicy(repair_delay_ms=0, trim_grace_ms=3_000, claim_ms=3_600_000)
CASES = {"whole": 3, "one copy short": 2, "one copy left": 1, "one copy too many": 4}
"""Replicas of each file, of which three are wanted."""


async def run(setup: Setup) -> Outcome:
    """Measure every case with few and with many nodes."""
    fleets = {number: _nodes(number) for number in (9, 1000)}
    batches = 5 if setup.quick else 50
    costs: dict[str, dict[int, list[float]]] = {case: {number: [] for number in fleets} for case in CASES}
    ready: dict[int, list[float]] = {number: [] for number in fleets}
    for _ in range(setup.blocks):
        for number, nodes in fleets.items():
            ready[number].append(_us(lambda nodes=nodes: ApprovedShepherds.of(nodes.health), 5))  # type: ignore[misc]
            for case, copies in CASES.items():
                costs[case][number].append(_planning_us(_files(copies, number), nodes, batches))
    checks, results = [], {}
    for case, by_number in costs.items():
        few, many = by_number[9], by_number[1000]
        per = [above / below for above, below in zip(many, few, strict=True)]
        checks.append(check(f"CPU us of plan for a file, 9 nodes, {case}", "at most", BAR_US, few))
        checks.append(check(f"CPU of plan with 1000 nodes over 9, {case}", "at most", BAR_RATIO, per))
        results[case] = {str(number): str(median_interval(values)) for number, values in by_number.items()}
        setup.say(f"  {case}: {median_interval(few)} us with 9 nodes, {median_interval(many)} us with 1000")
    made: dict[str, Any] = {str(number): str(median_interval(values)) for number, values in ready.items()}
    setup.say(f"  making the nodes ready: {made['9']} us for 9, {made['1000']} us for 1000")
    return Outcome({"us_per_file": results, "us_per_snapshot": made}, checks)


def _planning_us(files: list[BlobView], nodes: ApprovedShepherds, batches: int) -> float:
    """CPU microseconds for one file. Raises: AssertionError when the plans are not what the case asks for."""
    made = plan(files, nodes, POLICY, NOW)
    assert len(made) == len(files)
    assert all(len(p.copies) == max(0, 3 - p.live) and len(p.marks) == max(0, p.live - 3) for p in made)
    return _us(lambda: plan(files, nodes, POLICY, NOW), batches) / len(files)


def _us(act: Callable[[], object], times: int) -> float:
    began = time.process_time()
    for _ in range(times):
        act()
    return (time.process_time() - began) / times * 1e6


def _nodes(number: int) -> ApprovedShepherds:
    """Healthy nodes, spread evenly over sites and racks."""
    made = {}
    for n in range(number):
        shepherd = _shepherd(n)
        domain = f"site{n % SITES}/rack{n // SITES % RACKS}"
        view = NodeView(shepherd, Dn("/CN=s"), "alive", Ms(0), 1, 10**12 + n, 2 * 10**12, 0, True, domain)
        made[shepherd] = NodeHealth(view, True)
    return ApprovedShepherds.of(made)


def _shepherd(number: int) -> ServiceId:
    return ServiceId(f"https://s{number:04d}.example.org:60003/Shepherd")


def _files(copies: int, nodes: int) -> list[BlobView]:
    """A batch of files, their copies spread over all nodes."""
    files = []
    for n in range(BATCH):
        at = [Location(_shepherd((n * 7 + i) % nodes), ReferenceId(f"r{n:08d}{i}")) for i in range(copies)]
        replicas = tuple(ReplicaOnRecord(location, ReplicaState.ALIVE) for location in at)
        files.append(BlobView(BlobId(f"b{n:08d}"), 1, 3, 10_000, Ms(n), replicas))
    return files
