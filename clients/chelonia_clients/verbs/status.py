"""`admin status`: the verdict on the cluster first, then its figures on one screen; `admin top`: the same, live."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from chelonia.core.cluster.healing import forecast
from chelonia.core.errors import CheloniaError
from chelonia.core.timing.clock import stamp
from chelonia.core.timing.jobs import NodeJobs
from chelonia.core.values import replace
from chelonia.hosting.net.http_client import Sending
from chelonia.hosting.net.node_jobs import JOBS_MS, by_version
from chelonia_clients.administrator import Administrator
from chelonia_clients.arguments import Arguments, parse_duration
from chelonia_clients.output import human_size, record_facts
from chelonia_clients.session import Session
from chelonia_clients.verbs.ahash import ask_all, parted
from chelonia_clients.verbs.heal import dangers
from chelonia_clients.verdict import (
    Level,
    Seen,
    ahead_s,
    arrived,
    days_left,
    full_in_ms,
    judge,
    master_elsewhere,
    space,
)

EVERY_MS: Final = 2_000
"""Interval of `admin top`."""
CLEAR: Final = "\x1b[H\x1b[J"


async def status(session: Session) -> None:
    """Print the verdict on the cluster, and its figures (`admin status`)."""
    seen = await look(session.administrator())
    session.out.write(*verdict_lines(seen), "")
    await _figures(session, seen)


async def top(session: Session, arguments: Arguments) -> None:
    """Print the status again and again until it is interrupted, or --for is over (`admin top`)."""
    ends = parse_duration(arguments.value("--for")) if arguments.has("--for") else 0
    administrator, out = session.administrator(), session.out
    began = administrator.clock.monotonic_ms()
    while True:
        seen = await look(administrator)
        out.emit(CLEAR if sys.stdout.isatty() else "")
        out.write(
            f"{stamp(administrator.clock.now_ms())}  every {EVERY_MS // 1000} s, Ctrl-C ends", *verdict_lines(seen)
        )
        out.write("", *_work_lines(seen), "", *_node_lines(seen))
        out.stdout.flush()
        if ends and administrator.clock.monotonic_ms() - began >= ends:
            return
        await administrator.clock.sleep(EVERY_MS)


# --- queries ---


async def look(administrator: Administrator) -> Seen:
    """Query the Librarian, every A-Hash and every node, and note those that do not answer. Raises: as `nodes`."""
    health, healing = await administrator.health(), await administrator.heal_status()
    nodes, records = await administrator.nodes(), await administrator.services()
    try:
        statuses, silent = await ask_all(administrator.ahashes)
    except CheloniaError:  # none is known here: the rest is still worth showing
        statuses, silent = {}, {}
    away = {node.shepherd for node in nodes if node.state != "alive"}
    urls = administrator.node_urls([record for record in records if record.service_id not in away])
    now = administrator.clock.now_ms()
    answers = await asyncio.gather(*(_node(administrator, url) for url in urls))
    told = dict(zip(urls, answers, strict=True))
    waiting = [each.service_id for each in records if not (each.approved or each.forgotten or each.withdrawn)]
    job_lists = ((url, each.jobs) for url, each in told.items() if isinstance(each.jobs, NodeJobs))
    jobs = {found.process: replace(found, node=url) for url, found in job_lists}  # nodes of an `init` are called alike
    facts = {url: (days_left(each.metrics), arrived(each.metrics, now)) for url, each in told.items()}
    return Seen(
        health,
        healing,
        nodes,
        statuses,
        silent,
        tuple(jobs.values()),
        {url: each.jobs for url, each in told.items() if isinstance(each.jobs, CheloniaError)},
        {url: days for url, (days, _) in facts.items() if days},
        {url: each.ahead_s for url, each in told.items() if each.ahead_s is not None},
        waiting,
        [taken for _, taken in facts.values() if taken is not None],
    )


@dataclass(frozen=True, slots=True)
class _Told:
    """The answers of a node.

    - `jobs`, or why it does not answer
    - `metrics`: "" where it serves none
    - `ahead_s`: how many seconds its clock is ahead; None: not known
    """

    jobs: NodeJobs | CheloniaError
    metrics: str = ""
    ahead_s: float | None = None


async def _node(administrator: Administrator, url: str) -> _Told:
    try:
        jobs = await administrator.jobs(url)
    except CheloniaError as error:
        return _Told(error)
    try:
        answer = await administrator.http.request(Sending("GET", f"{url}/metrics", read_idle_ms=JOBS_MS))
    except CheloniaError:
        return _Told(jobs)
    metrics = answer.body.decode("utf-8", "replace") if answer.status == 200 else ""
    return _Told(jobs, metrics, ahead_s(answer.headers, administrator.clock.now_ms()))


# --- output ---


def verdict_lines(seen: Seen) -> list[str]:
    """Return the verdict, and a line with its cure for each point."""
    points = judge(seen)
    if not points:
        return ["OK: all files are whole, all services are there"]
    head = "BAD" if points[0].level is Level.BAD else "WARNING"
    lines = [f"{head}: {points[0].problem}" + (f", and {len(points) - 1} more" if len(points) > 1 else "")]
    return lines + [f"  {point.level.name:<5} {point.problem}: {point.cure}" for point in points]


async def _figures(session: Session, seen: Seen) -> None:
    out, health = session.out, seen.health
    out.write(*_ahash_lines(seen))
    out.write(f"repair is led by   {health.leader or 'nobody'}")
    out.write(f"metadata position  {health.position.generation}.{health.position.sequence}")
    states = Counter(node.state for node in seen.nodes)
    out.write(f"Shepherds          {_counts(states)}")
    out.write(f"space              {_space(seen)}")
    out.write(f"certificates       {_certificates(seen)}")
    out.write(f"jobs               {_counts(Counter(job.state for node in seen.jobs for job in node.jobs))}")
    out.write(*_versions(seen))
    out.write(*_repair_lines(seen))
    if health.held_back:
        out.write(f"erasures           HELD BACK for {health.held_back} blobs: too many that nobody has asked for")
    out.notify(*parted(seen.ahashes.values()))
    if health.paused_by:
        out.write(f"healing            PAUSED since {stamp(health.paused_ms)} by {health.paused_by}")
        out.notify("warning: healing is paused, lost copies are not replaced; `chelonia admin heal resume` ends that")
    if health.waits_for:
        out.write(f"healing            WAITS: {health.waits_for}")
    found = (await session.administrator().drill_status()).drill
    if found.running:
        since = f"since {stamp(found.began_ms)} by {found.by}"
        out.write(f"drill              {found.action.value} of {found.shepherd} {since}")
    _result(session, seen, states, found.id if found.running else "")


def _result(session: Session, seen: Seen, states: Mapping[str, int], drill: str) -> None:
    health, healing, points = seen.health, seen.healing, judge(seen)
    free, total = space(seen.nodes)
    session.out.result(
        verdict=points[0].level.name if points else "OK",
        points=[{"level": point.level.name, "what": point.problem, "cure": point.cure} for point in points],
        free_bytes=free,
        total_bytes=total,
        full_in_ms=full_in_ms(seen),
        certificate_days=_first_ends(seen),
        versions={node.node: node.version for node in seen.jobs},
        nodes=dict(states),
        lost=healing.lost,
        unreachable=healing.unreachable,
        drill=drill,
        **record_facts(health),
    )


def _ahash_lines(seen: Seen) -> list[str]:
    if not seen.ahashes:
        unknown = "none is known here: give --ahash URL, or set CHELONIA_AHASH_URL"
        return [f"A-Hash             {f'{len(seen.silent)} do not answer' if seen.silent else unknown}"]
    best = next((found for found in seen.ahashes.values() if found.role == "master"), next(iter(seen.ahashes.values())))
    free = f"{human_size(best.free_bytes)} free on its disk"
    if not best.replica:
        return [f"A-Hash             alone, {best.objects_estimate} objects, {free}"]
    voting = sum(view.role in ("master", "follower") for view in best.replicas)
    lag = max((view.lag for view in best.replicas), default=0)
    behind = f", the slowest {lag} commits behind" if lag > 0 else ""
    leads = best if best.role == "master" else master_elsewhere(seen.ahashes.values())
    master = f"master is replica {leads.replica}" if leads else "NO MASTER"
    return [f"A-Hash             {voting} of {len(best.replicas)} replicas, {master}{behind}, {free}"]


def _space(seen: Seen) -> str:
    free, total = space(seen.nodes)
    if not total:
        return "not known"
    return f"{human_size(free)} of {human_size(total)} free ({free * 100 // total} %), each copy counted; {_full(seen)}"


def _full(seen: Seen) -> str:
    """When space is full, in words: each node counts the bytes that it has received since it started."""
    left_ms = full_in_ms(seen)
    if left_ms >= 0:
        since = min(each.ms for each in seen.arrived)
        return f"full in about {_long(left_ms)}, if as much comes as in the last {_long(since)} and none goes"
    if not seen.arrived:
        return "not known when it will be full: no node that serves metrics was reached"
    if not any(each.size for each in seen.arrived):
        return "nothing has come since the nodes started"
    return "too early to say when it will be full"


def _long(ms: float) -> str:
    days, hours = ms / 86_400_000, ms / 3_600_000
    return f"{days:.0f} days" if days >= 2 else f"{hours:.0f} hours" if hours >= 2 else f"{ms / 60_000:.0f} minutes"


def _first_ends(seen: Seen) -> dict[str, float]:
    """The days until the first certificate, CA or CRL of each node ends."""
    return {url: min(ends.values()) for url, ends in seen.days.items()}


def _certificates(seen: Seen) -> str:
    if not seen.days:
        return "not known: no node that serves metrics was reached"
    url, days = min(_first_ends(seen).items(), key=lambda item: item[1])
    return f"the first of them, or of their CRLs, ends in {int(days)} days ({url})"


def _versions(seen: Seen) -> list[str]:
    """The software of the nodes that answer; while they differ, as in an upgrade, which node has which."""
    found = by_version({node.node: node.version for node in seen.jobs})
    lines = [f"{version}: {', '.join(urls)}" for version, urls in found]
    if len(found) == 1:
        lines = [f"{found[0][0]} on all nodes that answer"]
    return [f"{'' if n else 'versions':<18} {line}" for n, line in enumerate(lines or ["not known"])]


def _repair_lines(seen: Seen) -> list[str]:
    """Copies and repair: as the Librarian counts them where it leads, else as the leader has reported."""
    health, healing = seen.health, seen.healing
    if health.is_leader:
        counts = f"{_counts(health.replicas)} at the last survey" if health.replicas else "not surveyed yet"
        replicas, exposed = counts, str(health.exposed)
        work = f"{health.queued} queued, {health.copying} copying, {health.erasing} erasing"
    else:
        replicas = f"{sum(node.replicas for node in seen.nodes)} on the Shepherds"
        exposed = str(sum(found.blobs for found in healing.exposed)) if healing.is_leader else "not known"
        work = f"{healing.copies_to_go} copies to go, {healing.copying} copying"
    lines = [f"replicas           {replicas}", f"too few copies     {exposed}", *_by_danger(seen), *dangers(healing)]
    return [*lines, f"repair             {work}"]


def _by_danger(seen: Seen) -> list[str]:
    left = [f"{found.blobs} with {found.live} left" for found in seen.healing.exposed if found.blobs]
    return [f"                   {', '.join(left)}"] if left else []


def _work_lines(seen: Seen) -> list[str]:
    healing, health = seen.healing, seen.health
    rate = f"{healing.copying} copies under way, {human_size(healing.bytes_per_s)}/s, {healing.copies_per_min} a minute"
    return [
        *_ahash_lines(seen),
        f"metadata position  {health.position.generation}.{health.position.sequence}",
        f"space              {_space(seen)}",
        f"too few copies     {health.exposed}",
        *_by_danger(seen),
        f"repair             {rate}; {forecast(healing)}",
    ]


def _node_lines(seen: Seen) -> list[str]:
    lines = []
    for node in sorted(seen.nodes, key=lambda node: node.shepherd):
        used = 1 - node.free_bytes / node.total_bytes if node.total_bytes else 0
        bar = "#" * round(used * 20)
        lines.append(f"{bar:<20} {used:4.0%}  {node.state:<11} {node.replicas:>9} replicas  {node.shepherd}")
    return lines


def _counts(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(numbers.items())) or "none"
