"""The repair plan of a blob's replicas: current + wanted -> plan. Pure, one blob at a time, any order.

Decides copies, expired claims, marks and removals of surplus, removals of damaged replicas. Never reads, calls or
waits. Reasoning: docs/design/002-protocols.md, Healing.

Invariants:
- The last verified copy is never removed.
- Nothing is removed while verified copies on proven Shepherds are fewer than wanted.
- There is one `thirdwheel` at a time; it is removed only after its grace and a fresh count.
- A node never gets two copies.
- A node in maintenance, or away for less than the delay, is waited for, unless one live copy is all there is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from chelonia.core.cluster.fleet import Fleet
from chelonia.core.cluster.placement import NODE_MAINTENANCE, Crowding, Demand, crowding
from chelonia.core.cluster.replicas import PROVEN, Location, Readable, ReplicaState, may_become, readable
from chelonia.core.ids import BlobId, Dn, Ms, ReferenceId, ServiceId
from chelonia.core.metadata import StoredObject
from chelonia.core.ports.librarian import NodeView
from chelonia.core.values import replace
from chelonia.librarian.metadata.blobs import blob_of, locations_of

_S = ReplicaState

EXPIRED = "expired"
"""Reason to remove a location whose copy never came: one good copy elsewhere is enough."""
SURPLUS = "surplus"
"""Reason to remove a good copy: there are more than wanted."""


class ReplicaOnRecord(msgspec.Struct, frozen=True):
    """One replica as stored. `claimed_until_ms`: end of a `creating` claim; `since_ms`: beginning of `thirdwheel` or
    `invalid`. Both are 0 in other states."""

    location: Location
    state: ReplicaState
    claimed_until_ms: Ms = Ms(0)
    since_ms: Ms = Ms(0)


class BlobView(msgspec.Struct, frozen=True):
    """A blob as read, with the version that every change of it is conditional on."""

    blob: BlobId
    version: int
    wanted: int
    size: int
    created_ms: Ms
    replicas: tuple[ReplicaOnRecord, ...]

    @property
    def lost(self) -> bool:
        """Whether no verified copy is left anywhere."""
        return readable((replica.state, True) for replica in self.replicas) is Readable.LOST


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """A Shepherd as views show it, and whether it can be reached (it may be while in maintenance).

    - `proven`: heard within its lease, with its disk compared with the metadata in this boot. Replicas of others are
      read and copied from, but no other copies are given up for them.
    - `steady`: it does not come and go all the time. The copies of others are replaced as if they were away, though
      they are read and copied from while they are there.
    - `draining`: it is being emptied: of surplus copies its own go first
    - `starting`: it may be starting just now, as this Librarian is, whatever is stored: it is waited for
    """

    view: NodeView
    present: bool
    proven: bool = True
    steady: bool = True
    draining: bool = False
    starting: bool = False


@dataclass(frozen=True, slots=True)
class ApprovedShepherds:
    """Every approved Shepherd at the moment of planning; one that is missing here is away for good.

    `fleet`: the same, ready for the choice of targets.
    """

    health: Mapping[ServiceId, NodeHealth]
    fleet: Fleet

    @classmethod
    def of(cls, health: Mapping[ServiceId, NodeHealth]) -> ApprovedShepherds:
        """Return these Shepherds with their fleet."""
        return cls(health, Fleet(node.view for node in health.values()))


@dataclass(frozen=True, slots=True)
class RepairPolicy:
    """The patience of repair, in milliseconds.

    Stored instants are of some wall clock, perhaps of another Librarian's, and clocks step. So no wait lasts more than
    twice as long as meant: an instant farther in the future is from a wrong clock. `claim_ms`: term of a claim that is
    not renewed (`claims.decide`).
    """

    repair_delay_ms: int
    trim_grace_ms: int
    claim_ms: int

    def ripe(self, since: Ms, now: Ms) -> bool:
        """Return whether the trim grace of a replica in this state since then is over."""
        return not -self.trim_grace_ms <= now - since < self.trim_grace_ms


class Copy(msgspec.Struct, frozen=True):
    """Make a copy on `target` from any of `sources` (verified and reachable, best first)."""

    sources: tuple[Location, ...]
    target: ServiceId

    def __post_init__(self) -> None:
        assert self.sources, "a copy is made of a verified one"
        assert self.target not in [source.shepherd for source in self.sources], "no copy where there is one"


class Removal(msgspec.Struct, frozen=True):
    """Take a location away and order its bytes erased. `reason`: `invalid`, `stalled`, `expired`, `surplus`."""

    location: Location
    reason: str


class SetState(msgspec.Struct, frozen=True):
    """Give a replica another stored state."""

    location: Location
    state: ReplicaState


class BlobPlan(msgspec.Struct, frozen=True):
    """The work for one blob, all in one transact on `version`.

    - `live`: verified copies within reach
    - `short`: copies still lacking after this plan (no source or no target)
    - `witnesses`: the copies that removals rest on, none of them removed; each must answer before anything is removed
      (`vouched`)
    - `homes`: all copies, if every one of them is verified and its Shepherd proven
    - `revisit_ms`: time to plan again without an event, 0 for never
    - `waited`: copies on Shepherds expected back
    - `ripening`: whether the repair leader has something to mark or remove, now or later, or knows better which absent
      Shepherds may be starting
    """

    blob: BlobId
    version: int
    live: int
    wanted: int
    created_ms: Ms
    copies: tuple[Copy, ...] = ()
    removals: tuple[Removal, ...] = ()
    marks: tuple[SetState, ...] = ()
    witnesses: tuple[Location, ...] = ()
    homes: tuple[Location, ...] = ()
    short: int = 0
    revisit_ms: Ms = Ms(0)
    size: int = 0
    waited: int = 0
    ripening: bool = False

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do now."""
        return not (self.copies or self.removals or self.marks)

    @property
    def quiet(self) -> bool:
        """Whether nothing is to do, under way or waited for."""
        return self.idle and bool(self.homes)

    @property
    def danger(self) -> tuple[int, Ms, BlobId]:
        """Sort key: fewest verified copies first, then oldest."""
        return self.live, self.created_ms, self.blob


def plan(blobs: Iterable[BlobView], nodes: ApprovedShepherds, policy: RepairPolicy, now: Ms) -> tuple[BlobPlan, ...]:
    """Plan repair, most endangered blob first.

    Args:
        now: wall-clock milliseconds.
    Returns: a plan for each blob, independent of the others and of any order.
    """
    plans = (plan_blob(blob, nodes, policy, now) for blob in blobs)
    return tuple(sorted(plans, key=lambda plan: plan.danger))


def vouched(plan: BlobPlan, answered: Container[Location]) -> BlobPlan:
    """Return a plan with only its removals that stand by the answers of its witnesses.

    Args:
        answered: the copies that their Shepherds have just reported to have whole. One that died a moment ago, within
            its lease, is not among them.
    """
    assert plan.witnesses or not plan.removals, "what is removed rests on a verified copy"
    sure = {location.shepherd for location in plan.witnesses if location in answered}
    enough = len(sure) >= max(plan.wanted, 1)
    confirmed = tuple(r for r in plan.removals if enough or (sure and r.reason == EXPIRED))
    assert sure or not confirmed, "nothing goes for copies of which none has answered"
    return replace(plan, copies=(), marks=(), removals=confirmed)


def view_of(stored: StoredObject) -> BlobView:
    """Return a blob object as the planner reads it."""
    facts, claims = stored.sections.get("blob", {}), stored.sections.get("claims", {})
    noted = [(loc, state, claims.get(str(loc), "0") if claims else "0") for loc, state in locations_of(stored)]
    replicas = tuple([_replica(loc, state, Ms(int(text))) for loc, state, text in noted])
    return BlobView(
        blob=blob_of(stored),
        version=stored.version,
        wanted=int(facts.get("wanted", "0")),
        size=int(facts.get("size", "-1")),
        created_ms=Ms(int(facts.get("created_ms", "0"))),
        replicas=replicas,
    )


def _replica(location: Location, state: ReplicaState, noted: Ms) -> ReplicaOnRecord:
    """`noted`: end of the claim for `creating` (`claims.decide`), beginning of the state for others."""
    if state is _S.CREATING:
        return ReplicaOnRecord(location, state, claimed_until_ms=noted)
    return ReplicaOnRecord(location, state, since_ms=noted)


def plan_blob(blob: BlobView, nodes: ApprovedShepherds, policy: RepairPolicy, now: Ms) -> BlobPlan:
    """Return the plan for one blob."""
    count = _count(blob, nodes, policy, now)
    missing = blob.wanted - count.promised
    recalled = _recalled(blob, count, nodes, missing)
    missing -= len(recalled)
    copies = _copies(blob, count, nodes, missing) if missing > 0 else ()
    removals, stalled = _expired(count)
    marks = [SetState(replica.location, _S.ALIVE) for replica in recalled] + stalled
    if len(_nodes(count.sure)) >= max(blob.wanted, 1):
        removals += [Removal(r.location, r.state.value) for r in count.broken if policy.ripe(r.since_ms, now)]
        removals += [Removal(r.location, SURPLUS) for r in count.wheels if policy.ripe(r.since_ms, now)]
        marks += _surplus(blob, count, nodes)
    starting = any(nodes.health[replica.location.shepherd].starting for replica in count.waited_for)
    planned = BlobPlan(
        blob=blob.blob,
        version=blob.version,
        live=len(count.live),
        wanted=blob.wanted,
        created_ms=blob.created_ms,
        copies=copies,
        removals=tuple(removals),
        marks=tuple(marks),
        witnesses=tuple(replica.location for replica in count.sure or count.sure_wheels) if removals else (),
        homes=tuple(replica.location for replica in count.sure) if len(count.sure) == len(blob.replicas) else (),
        short=max(missing, 0) - len(copies),
        revisit_ms=_revisit(count, policy, now),
        size=blob.size,
        waited=len(_nodes(count.waited_for)),
        ripening=bool(removals or marks or count.wheels or count.broken or starting),
    )
    _check_plan(planned, blob)
    return planned


def _check_plan(planned: BlobPlan, blob: BlobView) -> None:
    """Assert the invariants of a plan, however it came about."""
    assert planned.short >= 0, "no more copies are made than lack"
    leaving = {removal.location for removal in planned.removals}
    if planned.copies:
        targets = [copy.target for copy in planned.copies]
        occupied = {replica.location.shepherd for replica in blob.replicas if replica.state in PROVEN}
        assert len({*targets}) == len(targets), "one copy on a Shepherd"
        assert occupied.isdisjoint(targets), "no copy where there is one"
    if leaving:
        assert planned.witnesses, "what is removed rests on a verified copy"
        assert leaving.isdisjoint(planned.witnesses), "what a removal rests on stays"
    if leaving - {removal.location for removal in planned.removals if removal.reason == EXPIRED}:
        assert len(nodes_of(planned.witnesses)) >= max(planned.wanted, 1), "what has come goes only while enough stay"
    if planned.marks:
        assert sum(mark.state is _S.THIRDWHEEL for mark in planned.marks) <= 1, "one surplus copy at a time"
        states = {replica.location: replica.state for replica in blob.replicas}
        assert all(may_become(states[mark.location], mark.state) for mark in planned.marks), "along the one table"
        assert leaving.isdisjoint(mark.location for mark in planned.marks), "what is marked stays for now"


@dataclass(slots=True)
class _Count:
    """A blob's replicas sorted by their present worth, each list in order of location."""

    verified: list[ReplicaOnRecord]
    """`alive` on a Shepherd within reach."""
    steady: list[ReplicaOnRecord]
    """Those of `verified` whose Shepherd does not come and go."""
    sure: list[ReplicaOnRecord]
    """Those of `steady` whose Shepherd is proven: a removal may rest on these."""
    wheels: list[ReplicaOnRecord]
    """`thirdwheel` on a Shepherd within reach."""
    sure_wheels: list[ReplicaOnRecord]
    """Those of `wheels` whose Shepherd is steady and proven."""
    coming: list[ReplicaOnRecord]
    """`creating`, the claim still running, the Shepherd within reach."""
    waited_for: list[ReplicaOnRecord]
    """`alive` on a Shepherd that is away but expected back."""
    expired: list[ReplicaOnRecord]
    """`creating`, the claim over."""
    broken: list[ReplicaOnRecord]
    """`invalid` and `stalled`."""

    @property
    def secure(self) -> bool:
        """Whether a copy, perhaps a surplus one, certainly exists."""
        return bool(self.sure or self.sure_wheels)

    @property
    def homes(self) -> tuple[ServiceId, ...]:
        """Shepherds with a verified copy that counts."""
        return _nodes(self.steady)

    @property
    def live(self) -> tuple[ServiceId, ...]:
        """Shepherds that a copy can be read from."""
        return _nodes((*self.verified, *self.wheels))

    @property
    def promised(self) -> int:
        """Copies that exist or will, counted by Shepherd."""
        return len(_nodes((*self.steady, *self.coming, *self.waited_for)))


_NOBODY = NodeHealth(NodeView(ServiceId(""), Dn(""), "", Ms(0)), present=False, proven=False)


def _count(blob: BlobView, nodes: ApprovedShepherds, policy: RepairPolicy, now: Ms) -> _Count:
    count = _Count([], [], [], [], [], [], [], [], [])
    away: list[tuple[ReplicaOnRecord, NodeHealth]] = []
    last = now + 2 * policy.claim_ms
    for replica in sorted(blob.replicas, key=_by_location):
        node = nodes.health.get(replica.location.shepherd, _NOBODY)
        match replica.state:
            case _S.ALIVE if node.present:
                _count_alive(count, replica, node)
            case _S.ALIVE:
                away.append((replica, node))
            case _S.CREATING if not now < replica.claimed_until_ms <= last:
                count.expired.append(replica)
            case _S.CREATING if node.present:
                count.coming.append(replica)
            case _S.THIRDWHEEL if node.present:
                count.wheels.append(replica)
                if node.proven and node.steady:
                    count.sure_wheels.append(replica)
            case _S.INVALID | _S.STALLED:
                count.broken.append(replica)
            case _:
                pass  # coming to, or surplus on, a Shepherd out of reach: it neither counts nor is given up
    if away:
        alone = len(count.homes) <= 1
        count.waited_for = [replica for replica, node in away if _expected(node, policy, now, alone)]
    return count


def _count_alive(count: _Count, replica: ReplicaOnRecord, node: NodeHealth) -> None:
    count.verified.append(replica)
    if node.steady:
        count.steady.append(replica)
        if node.proven:
            count.sure.append(replica)


def _by_location(replica: ReplicaOnRecord) -> tuple[ServiceId, ReferenceId]:
    return replica.location.shepherd, replica.location.reference


def _expected(node: NodeHealth, policy: RepairPolicy, now: Ms, alone: bool) -> bool:
    """Whether an absent Shepherd is worth waiting for: in maintenance, perhaps starting, or away for a short time. The
    latter does not hold when only one live copy is left, or when it comes and goes all the time."""
    if node is _NOBODY:
        return False
    if node.starting or node.view.state == NODE_MAINTENANCE:
        return True
    return not alone and node.steady and abs(now - node.view.since_ms) < policy.repair_delay_ms


def nodes_of(locations: Iterable[Location]) -> tuple[ServiceId, ...]:
    """Return the Shepherds of these, each once, in order."""
    return tuple(dict.fromkeys([location.shepherd for location in locations]))


def _nodes(replicas: Iterable[ReplicaOnRecord]) -> tuple[ServiceId, ...]:
    return nodes_of([replica.location for replica in replicas])


def _recalled(blob: BlobView, count: _Count, nodes: ApprovedShepherds, missing: int) -> list[ReplicaOnRecord]:
    """Surplus copies to take back: as many as lack, or all when too few are verified."""
    homes = count.homes
    short = max(missing, blob.wanted - len(homes))
    if short <= 0 or not count.wheels:
        return []
    steady = [r for r in count.wheels if nodes.health[r.location.shepherd].steady]
    return [r for r in steady if r.location.shepherd not in homes][:short]


def _copies(blob: BlobView, count: _Count, nodes: ApprovedShepherds, missing: int) -> tuple[Copy, ...]:
    sources = tuple(replica.location for replica in (*count.verified, *count.wheels))
    if not sources:
        return ()
    demand = Demand(
        count=missing,
        size=blob.size,
        holders=_nodes((*count.verified, *count.wheels, *count.coming, *count.waited_for)),
        avoid=_nodes((*count.broken, *count.expired)),
        exclude=_nodes(r for r in blob.replicas if r.state in PROVEN),
    )
    chance = Chance(blob)
    start = int(chance.uniform() * len(sources))
    turned = sources[start:] + sources[:start]
    return tuple(Copy(turned, target) for target in nodes.fleet.choose(demand, chance.uniform))


def _expired(count: _Count) -> tuple[list[Removal], list[SetState]]:
    """Expired claims. They are removed while a verified copy certainly exists, and kept as `stalled` when none does,
    for those bytes may be the last. While that is uncertain they stay as they are."""
    if count.secure:
        return [Removal(r.location, EXPIRED) for r in count.expired], []
    if count.live:
        return [], []
    return [], [SetState(r.location, _S.STALLED) for r in count.expired]


def _surplus(blob: BlobView, count: _Count, nodes: ApprovedShepherds) -> list[SetState]:
    """The one replica to mark as surplus: a second copy on one node, else the one that can best be spared."""
    if any(replica.state is _S.THIRDWHEEL for replica in blob.replicas):
        return []
    homes = _nodes(count.sure)
    if len(count.sure) > len(homes):
        seen: list[ServiceId] = []
        for replica in count.sure:
            if replica.location.shepherd in seen:
                return [SetState(replica.location, _S.THIRDWHEEL)]
            seen.append(replica.location.shepherd)
    if len(homes) <= max(blob.wanted, 1):
        return []
    return [SetState(max(count.sure, key=lambda r: weariness(r.location, homes, nodes)).location, _S.THIRDWHEEL)]


def weariness(
    location: Location, homes: Sequence[ServiceId], nodes: ApprovedShepherds
) -> tuple[bool, Crowding, float, ReferenceId]:
    """Return the order in which copies can be spared, the best one last.

    1. It is on a draining node.
    2. Copies are closest there: those left are in as many domains as can be.
    3. Its node is fuller, to the percent, as Shepherds may share a disk.
    4. By reference, which is random: many blobs planned on one stale count must not all empty one node.
    """
    own, fleet = location.shepherd, nodes.fleet
    node = nodes.health[own]
    others = [fleet.place(home) for home in homes if home != own]
    return node.draining, crowding(fleet.place(own), others), round(fullness(node.view), 2), location.reference


def fullness(view: NodeView) -> float:
    """Return the used share of a node's space, 0 when it is unknown."""
    return 1 - view.free_bytes / view.total_bytes if view.total_bytes else 0.0


def _revisit(count: _Count, policy: RepairPolicy, now: Ms) -> Ms:
    ripening = (*count.wheels, *count.broken)
    if not (ripening or count.coming):
        return Ms(0)
    times = [r.claimed_until_ms for r in count.coming] + [r.since_ms + policy.trim_grace_ms for r in ripening]
    assert all(r.claimed_until_ms > now for r in count.coming), "a claim that is over is not waited for"
    return Ms(min((time for time in times if time > now), default=0))


class Chance:
    """Numbers in [0, 1) that depend on the blob alone, so that a plan does not depend on the order of planning."""

    def __init__(self, blob: BlobView) -> None:
        seed = f"{blob.blob} {blob.version}".encode()
        self._state = hashlib.sha256(seed).digest()

    def uniform(self) -> float:
        """Return the next number."""
        self._state = hashlib.sha256(self._state).digest()
        return int.from_bytes(self._state[:6], "big") / (1 << 48)
