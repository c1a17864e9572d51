"""The verdict on a cluster, in one word, with a reason and a cure for all that is not well. Pure."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Final

from chelonia.core.cluster.healing import HealStatus, doubt
from chelonia.core.cluster.placement import NODE_ALIVE, NODE_MAINTENANCE, NODE_OFFLINE
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ports.ahash import AHashStatus, PeerView
from chelonia.core.ports.librarian import HealthSummary, NodeView
from chelonia.core.timing.clock import stamp
from chelonia.core.timing.jobs import FAILING, NodeJobs
from chelonia_clients.output import counted, human_size

DAYS_WARN: Final = 14
"""Days before its end at which a certificate should be renewed."""
CRL_DAYS_WARN: Final = 5
"""The same of a CRL: grid CAs sign them for 30 days, and the next one a week before the end."""
ENDING: Final = {"certificate": "the certificate", "ca": "a CA", "crl": "a CRL"}
"""Words for what ends, by its name in the metric."""
CLOCK_S_MAX: Final = 30.0
"""Difference of clocks at which tickets and proxies begin to fail."""
FREE_WARN: Final = 0.15
"""Share of free space at which one should act."""
FREE_BAD: Final = 0.05
"""Share of free space at which one has to."""
AHASH_FREE_WARN: Final = 512 << 20
"""Free bytes at which an A-Hash needs more room: it keeps 128 MiB by default, and stops on a full disk."""
FEW: Final = 2
"""Shepherds alive below which Bartenders refuse uploads of several copies, by default."""
KNOWN_MS: Final = 3_600_000
"""Least uptime of a node whose figures show how fast space fills."""
_IN: Final = re.compile(r'^chelonia_data_bytes_total\{direction="in"\} ([0-9.e+]+)$', re.MULTILINE)
_STARTED: Final = re.compile(r"^process_start_time_seconds ([0-9.e+]+)$", re.MULTILINE)
_DAYS: Final = re.compile(r'^chelonia_certificate_days_left\{what="([^"]*)"\} (-?[0-9.e+]+)$', re.MULTILINE)


class Level(enum.IntEnum):
    """Severity of a point."""

    OK = 0
    WARN = 1
    BAD = 2


@dataclass(frozen=True, slots=True)
class HealthPoint:
    """A problem and its cure."""

    level: Level
    problem: str
    cure: str


@dataclass(frozen=True, slots=True)
class Arrival:
    """File bytes that a node has received since it started, `ms` milliseconds ago, those of copies too."""

    size: float
    ms: float


@dataclass(frozen=True, slots=True)
class Seen:
    """State of a cluster as its services report it.

    Args:
        ahashes, silent: the status of each A-Hash, and why the others do not answer, by URL.
        jobs: of the nodes that answer; mute: why the others do not, by URL.
        days: days until the first certificate, CA and CRL of a node ends, by URL of the node and name of the metric.
        clocks: how many seconds a node's clock is ahead of this machine's, by URL of the node.
        waiting: services that wait to be approved.
        arrived: for each node with metrics.
    """

    health: HealthSummary
    healing: HealStatus
    nodes: Sequence[NodeView] = ()
    ahashes: Mapping[str, AHashStatus] = field(default_factory=dict)
    silent: Mapping[str, CheloniaError] = field(default_factory=dict)
    jobs: Sequence[NodeJobs] = ()
    mute: Mapping[str, CheloniaError] = field(default_factory=dict)
    days: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    clocks: Mapping[str, float] = field(default_factory=dict)
    waiting: Sequence[str] = ()
    arrived: Sequence[Arrival] = ()


def days_left(metrics: str) -> dict[str, float]:
    """Return the days until the first certificate, CA and CRL of a node ends, as its metrics name them."""
    return {what: float(value) for what, value in _DAYS.findall(metrics)}


def ahead_s(headers: Mapping[str, str], now_ms: int) -> float | None:
    """Return how many seconds the clock of an answer's sender is ahead, to a second; None where it sends no time."""
    try:
        return parsedate_to_datetime(headers["Date"]).timestamp() - now_ms / 1000
    except (KeyError, ValueError):
        return None


def arrived(metrics: str, now_ms: int) -> Arrival | None:
    """Return the bytes that a node has received, from its metrics; None where they lack them."""
    size, started = _IN.search(metrics), _STARTED.search(metrics)
    if size is None or started is None:
        return None
    return Arrival(float(size[1]), max(now_ms - float(started[1]) * 1000, 1))


def full_in_ms(seen: Seen) -> int:
    """Return how many ms until space is full, if bytes go on to come and none go; -1 when too little is known."""
    free, total = space(seen.nodes)
    timed = [each for each in seen.arrived if each.ms >= KNOWN_MS]
    rate = sum(each.size / each.ms for each in timed)
    complete = len(timed) == len(seen.arrived) and not seen.mute
    return int(free / rate) if total and rate and complete else -1


def judge(seen: Seen) -> list[HealthPoint]:
    """Return all problems, the worst first."""
    rules = (_files, _metadata, _shepherds, _space, _certificates, _clocks, _work)
    return sorted((point for rule in rules for point in rule(seen)), key=lambda point: -point.level)


def _files(seen: Seen) -> Iterator[HealthPoint]:
    healing = seen.healing
    if healing.lost:
        lost = f"no good copy of {counted(healing.lost, 'file')}"
        yield HealthPoint(Level.BAD, lost, "docs/operate/what-was-lost.md")
    if healing.unreachable:
        cure = "bring their Shepherds back: `admin node list`"
        yield HealthPoint(Level.BAD, f"{counted(healing.unreachable, 'file')} cannot be read now", cure)
    exposed = sum(found.blobs for found in healing.exposed)
    if healing.control.paused_by:
        yield HealthPoint(Level.WARN, "healing is paused", "`chelonia admin heal resume`")
    elif healing.waits_for or seen.health.waits_for:
        cure = "`chelonia admin rebuild` shows how far it is, or goes on with one that has stopped"
        yield HealthPoint(Level.WARN, f"healing waits: {healing.waits_for or seen.health.waits_for}", cure)
    elif (why := doubt(healing)) and not (healing.is_leader and exposed):
        yield HealthPoint(
            Level.WARN, f"not known whether all files are whole: {why}", "`chelonia admin heal status` in a moment"
        )
    elif healing.at_rest and healing.stuck:
        cure = (
            "start or approve Shepherds, have each report to every Librarian (`librarians` in its configuration), or "
            "ask for fewer copies: `chelonia admin fsck -v` names the files"
        )
        stuck = f"more copies of {counted(healing.stuck, 'file')} are wanted than can be made now"
        yield HealthPoint(Level.WARN, stuck, cure)
    elif exposed:
        cure = "`chelonia admin heal status --watch`"
        yield HealthPoint(Level.WARN, f"too few copies of {counted(exposed, 'file')}: being healed", cure)
    if seen.health.held_back:
        cure = "docs/operate/when-a-shepherd-dies.md"
        yield HealthPoint(Level.WARN, "erasures are held back: too many at once that nobody asked for", cure)


def _metadata(seen: Seen) -> Iterator[HealthPoint]:
    for url, error in seen.silent.items():
        cure = _cure_of(error, "start its node; if it is no more, take it out of what names it here (`ahash`)")
        yield HealthPoint(Level.WARN, f"the A-Hash {url} does not answer: {error.cause}", cure)
    statuses = list(seen.ahashes.values())
    if not statuses:
        return
    master = next((found for found in statuses if found.role == "master"), None)
    if statuses[0].replica and master is None:
        if (elsewhere := master_elsewhere(statuses)) is None:
            cure = "docs/operate/ahash-replicas.md"
            yield HealthPoint(Level.BAD, "the A-Hash has no master: nothing can be written", cure)
        else:
            silent = f"replica {elsewhere.replica} at {elsewhere.address}, is not among those that answer here"
            yield HealthPoint(Level.WARN, f"the A-Hash's master, {silent}", "name each in `ahash` of client.toml")
    best = master or statuses[0]
    roles = [view.role for found in statuses for view in found.replicas]
    if "parted" in roles:
        cure = "choose one: docs/operate/ahash-replicas.md, Two histories"
        yield HealthPoint(Level.BAD, "replicas of the A-Hash have two histories", cure)
    voting = sum(view.role in ("master", "follower") for view in best.replicas)
    if best.replica and voting < len(best.replicas):
        cure = "`chelonia admin ahash status`, docs/operate/ahash-replicas.md"
        yield HealthPoint(Level.WARN, f"{voting} of {len(best.replicas)} replicas of the A-Hash are there", cure)
    if best.replica and len(best.replicas) in (1, 2):
        few = (
            "one replica: its loss stops all" if len(best.replicas) == 1 else "two replicas: either lost stops changes"
        )
        cure = "`cheloniad join` on a further host; for one that is set up, `chelonia admin ahash add`"
        yield HealthPoint(Level.WARN, f"the A-Hash has {few}", cure)
    for url, found in seen.ahashes.items():
        if found.pages is not None and found.pages.damaged:
            cure = "`chelonia admin ahash status`, docs/operate/ahash-replicas.md"
            yield HealthPoint(Level.BAD, f"the store of {url} is damaged", cure)
        if found.free_bytes < AHASH_FREE_WARN:
            cure = "free some space: docs/operate/ahash-replicas.md"
            yield HealthPoint(Level.WARN, f"{human_size(found.free_bytes)} are left on the disk of {url}", cure)
        if found.lease_stretch > 1:
            cure = "less load on its host, or a faster one"
            yield HealthPoint(Level.WARN, f"{url} waits for its processor: leases are stretched", cure)


def master_elsewhere(statuses: Iterable[AHashStatus]) -> PeerView | None:
    """Return the master as seen by a replica that follows it; None where none does."""
    views = (view for found in statuses if found.role == "client" for view in found.replicas)
    return next((view for view in views if view.role == "master"), None)


def _shepherds(seen: Seen) -> Iterator[HealthPoint]:
    for node in seen.nodes:
        shepherd = f"{node.shepherd} is offline" if node.state == NODE_OFFLINE else node.shepherd
        if node.trouble:
            yield HealthPoint(Level.WARN, f"{shepherd}: {node.trouble}", "docs/operate/when-a-disk-dies.md")
        elif node.state == NODE_OFFLINE:
            yield HealthPoint(Level.WARN, shepherd, "docs/operate/when-a-shepherd-dies.md")
        elif node.state == NODE_MAINTENANCE:
            until = f"is away or in maintenance, waited for until {stamp(node.maintenance_until_ms)}"
            cure = "start it; if it runs, `chelonia admin node maintenance <id> --end`"
            yield HealthPoint(Level.WARN, f"{shepherd} {until}", cure)
        elif is_full(node):
            cure = "docs/operate/when-a-disk-dies.md#the-disk-is-full"
            yield HealthPoint(Level.WARN, f"{shepherd} is full: it takes nothing new", cure)
    alive = [node for node in seen.nodes if node.state == NODE_ALIVE]
    yield from _domains(alive)
    if len(alive) < FEW:
        problem = "no Shepherd is alive: nothing can be stored"
        if alive:
            problem = "one Shepherd is alive: uploads that want more copies are refused (`durable_copies`)"
        yield HealthPoint(Level.WARN, problem, "start a Shepherd, or `cheloniad join` on a further host")
    if seen.waiting:
        cure = "`chelonia admin service list`, then `approve`"
        yield HealthPoint(Level.WARN, f"{counted(len(seen.waiting), 'service')} to be approved", cure)


def _domains(alive: Sequence[NodeView]) -> Iterator[HealthPoint]:
    """Shepherds without a domain, or with a shorter one, beside others: copies spread over named domains alone."""
    parts = {node.domain.count("/") + bool(node.domain): node for node in alive}
    if len(parts) > 1:
        odd = parts[min(parts)]
        problem = f"{odd.shepherd} has the domain {odd.domain or '(none)'}, others longer ones: copies may share a site"
        cure = "`chelonia admin node list` shows all; `domain` below [shepherd.tuning], and a restart"
        yield HealthPoint(Level.WARN, problem, cure)


def _space(seen: Seen) -> Iterator[HealthPoint]:
    free, total = space(seen.nodes)
    if not total or free / total > FREE_WARN:
        return
    level = Level.BAD if free / total <= FREE_BAD else Level.WARN
    yield HealthPoint(
        level, f"{free * 100 // total} % of the space is free", "add a Shepherd, or delete what nobody needs"
    )


def is_full(node: NodeView) -> bool:
    """Whether a sound Shepherd accepts nothing new for want of room; False before this Librarian has heard it."""
    return node.state == NODE_ALIVE and node.total_bytes > 0 and not (node.accepting or node.drain or node.trouble)


def space(nodes: Sequence[NodeView]) -> tuple[int, int]:
    """Return (free, total) bytes of the Shepherds that may take new ones; none in maintenance may."""
    used = [node for node in nodes if node.state == NODE_ALIVE and not node.drain]
    return sum(node.free_bytes for node in used), sum(node.total_bytes for node in used)


def _certificates(seen: Seen) -> Iterator[HealthPoint]:
    for url, ends in seen.days.items():
        for what, days in ends.items():
            if days < (CRL_DAYS_WARN if what == "crl" else DAYS_WARN):
                level = Level.BAD if days < 1 else Level.WARN
                cure = "renew it: docs/operate/certificates.md"
                told = f"{ENDING.get(what, what)} of {url} ends in {max(0, int(days))} days"
                yield HealthPoint(level, told, cure)


def _clocks(seen: Seen) -> Iterator[HealthPoint]:
    for url, ahead in seen.clocks.items():
        if abs(ahead) > CLOCK_S_MAX:
            way = "ahead of" if ahead > 0 else "behind"
            told = f"the clock of {url} is {abs(ahead):.0f} s {way} this machine's"
            yield HealthPoint(Level.WARN, told, "run an NTP service on both")


def _work(seen: Seen) -> Iterator[HealthPoint]:
    silent = tuple(seen.silent)
    for url, error in seen.mute.items():
        if any(each.startswith(f"{url}/") for each in silent):
            continue  # its A-Hash stands in this list already
        cure = _cure_of(error, "start it; if it is gone for good, `chelonia admin service withdraw` its services")
        yield HealthPoint(Level.WARN, f"{url} does not answer: {error.cause}", cure)
    failing = [f"{job.name} on {node.node}" for node in seen.jobs for job in node.jobs if job.state == FAILING]
    if failing:
        yield HealthPoint(Level.WARN, f"background work fails: {', '.join(failing[:3])}", "`chelonia admin jobs`")


def _cure_of(silence: CheloniaError, otherwise: str) -> str:
    """The cure for a node that does not answer; `otherwise` for one that may have to be started."""
    if silence.kind in (Kind.UNTRUSTED, Kind.EXPIRED):
        return "mend what it names, here or on that host: docs/operate/certificates.md"
    if silence.kind is Kind.TIMEOUT:
        return f"look whether its host stands still, or a firewall is in between; else {otherwise}"
    return otherwise
