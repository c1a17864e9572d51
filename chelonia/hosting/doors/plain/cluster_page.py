"""The page of the cluster, for administrators: Shepherds, files in danger, healing, the last drill, jobs.

The browser loads it again every few seconds, unless the reader holds it still. It has no script, and changes nothing.
Only an administrator's certificate opens it; a token never does. It needs neither the A-Hash nor a Librarian: a part
that is not known says so, and the others stand beside it.
"""

from __future__ import annotations

import asyncio
import html
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from chelonia.core.caller import Call, Role
from chelonia.core.cluster.drills import Drill, DrillAction, DrillStage
from chelonia.core.cluster.healing import HealStatus, doubt, forecast
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ports.librarian import Librarian, NodeView
from chelonia.core.timing.clock import stamp
from chelonia.core.timing.jobs import NodeJobs
from chelonia.hosting.doors.grants import RoleRegistry
from chelonia.hosting.doors.plain import frame
from chelonia.hosting.doors.plain.parts import DoorParts, Exchange
from chelonia.hosting.net.http_client import HttpClient
from chelonia.hosting.net.http_messages import HttpResponse
from chelonia.hosting.net.node_jobs import by_version, jobs_of_all, node_urls
from chelonia.wire.web import curve

CLUSTER: Final = "cluster"
"""`/?cluster`: a query, because every path is a name."""
NO_DRILL: Final = Drill()
AGAIN_S: Final = 5
"""Seconds between two loads by the browser."""
REFRESH: Final = f'<meta http-equiv="refresh" content="{AGAIN_S}">'
STILL: Final = "still"
"""`/?cluster&still`: no reload, for readers who are slow, listen, or use a keyboard (WCAG 2.2.2)."""
STYLE: Final = f"""{frame.TABLES}
caption{{text-align:left;font-weight:bold}}td{{overflow-wrap:anywhere}}figure{{margin:1rem 0}}
.bad{{color:#c30;font-weight:bold}}@media(prefers-color-scheme:dark){{.bad{{color:#f76}}}}
"""
POLICY: Final = frame.policy(STYLE)
PART_S: Final = 15.0
"""Longest wait for a part. A Librarian without an A-Hash may answer with what it knows only when its tries end."""

T = TypeVar("T")
Jobs = Mapping[str, NodeJobs | CheloniaError]


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The cluster for its page, as this node's Bartender sees it in its own name."""

    librarian: Librarian
    call: Call
    http: HttpClient
    registry: RoleRegistry

    async def nodes(self) -> tuple[NodeView, ...]:
        return await self.librarian.nodes(self.call)

    async def healing(self) -> HealStatus:
        return await self.librarian.heal_status(self.call)

    async def drill(self) -> Drill:
        return (await self.librarian.drill_status(self.call)).drill

    async def jobs(self) -> Jobs:
        known = [service for role in Role for service in self.registry.registered(role)]  # also while it is away
        return await jobs_of_all(self.http, node_urls(known))


def may_see(call: Call) -> bool:
    """Return whether a caller may see the page."""
    return call.has(Role.ADMINISTRATOR) and not call.via


async def answer(parts: DoorParts, exchange: Exchange) -> HttpResponse:
    """Answer GET and HEAD of the page. Raises: DENIED."""
    if not may_see(exchange.call):
        cause = f"{exchange.call.dn} is no administrator by certificate; the page of the cluster is for those"
        raise CheloniaError(Kind.DENIED, "look", "/?cluster", cause)
    seen = parts.cluster
    found = await asyncio.gather(
        _known(seen.nodes()), _known(seen.healing()), _known(seen.jobs()), _known(seen.drill())
    )  # fmt: skip
    body = page(*found)
    is_still = STILL in exchange.request.query
    return frame.answer(exchange, frame.headers(POLICY), _whole(body, exchange.call.dn, is_still=is_still))


async def _known(part: Awaitable[T]) -> T | CheloniaError:
    """Return a part of the page, or the reason why it is not known."""
    try:
        async with asyncio.timeout(PART_S):
            return await part
    except CheloniaError as error:
        return error
    except TimeoutError:
        return CheloniaError(Kind.TIMEOUT, cause=f"no answer within {PART_S:g} s")


def page(
    nodes: Iterable[NodeView] | CheloniaError,
    healing: HealStatus | CheloniaError,
    jobs: Jobs | CheloniaError,
    drill: Drill | CheloniaError = NO_DRILL,
) -> str:
    """Return the main part of the page; an error stands for a part that is not known."""
    return (
        f"<main><h1>The cluster</h1>{_part('Healing', healing, _healing)}{_part('Shepherds', nodes, _shepherds)}"
        f"{'' if isinstance(healing, CheloniaError) else _queue(healing)}{_part('The last drill', drill, _drill)}"
        f"{_part('Background work', jobs, lambda found: _versions(found) + _jobs(found))}</main>"
    )


def _part(title: str, found: T | CheloniaError, shown: Callable[[T], str]) -> str:
    return _facts(title, [("Not known", str(found), True)]) if isinstance(found, CheloniaError) else shown(found)


def _whole(body: str, reader: str, *, is_still: bool) -> str:
    again = f'<a href="/?{CLUSTER}">read it again by itself</a>'
    if not is_still:
        again = f'read again every {AGAIN_S} s; <a href="/?{CLUSTER}&amp;{STILL}">hold it still</a>'
    return (
        f'{frame.head("The cluster", STYLE, "" if is_still else REFRESH)}<nav aria-label="path">'
        f'<a href="/">Chelonia</a></nav>{body}<footer>{html.escape(reader)}; {again}</footer></body></html>\n'
    )


def _healing(status: HealStatus) -> str:
    doubted = doubt(status)
    exposed = ", ".join(f"{found.blobs} with {found.live} left" for found in status.exposed)
    lost = ", ".join(found.name or found.blob for found in status.lost_named)
    paused = f"since {stamp(status.control.paused_ms)} by {status.control.paused_by}" if status.control.paused else ""
    rows = [
        ("All whole in", forecast(status), bool(status.lost)),
        ("Too few copies", exposed or ("not known" if doubted else "none"), bool(exposed)),
        ("Lost", f"{status.lost}: {lost}" if status.lost else "", True),
        ("Unreachable now", str(status.unreachable or ""), True),
        ("Paused", paused, True),
        ("Waits for", status.waits_for, True),
        ("Of these wait", f"{status.delayed} for a Shepherd, {status.stuck} for a place or a source"
         if status.delayed or status.stuck else "", False),
        ("To go", f"{status.copies_to_go} copies, {_size(status.bytes_to_go)}", False),
        ("Done", f"{status.copies_done} copies, {_size(status.bytes_done)}; {status.copying} under way", False),
        ("Rate", f"{_size(status.bytes_per_s)}/s, {status.copies_per_min} copies/min", False),
        ("Led by", status.leader or "nobody", not status.leader),
    ]  # fmt: skip
    return _facts("Healing", rows)


def _drill(drill: Drill) -> str:
    """Return the cluster's recovery from the last drill: its times, counted from the drill's beginning."""
    if not drill.id:
        return ""
    subject = (
        f"the silence of {drill.shepherd}" if drill.action is DrillAction.SILENCE else f"a damaged copy of {drill.name}"
    )
    rows = [
        ("What", f"{subject}, {stamp(drill.began_ms)}", False),
        ("Noticed after", _after(drill, drill.noticed_ms), False),
        ("Found exposed", f"{drill.touched} of {drill.files}" if drill.noticed_ms else "", False),
        ("All whole after", _after(drill, drill.whole_ms), False),
        ("Result", f"{drill.stage.value} {drill.why}".strip(), drill.stage in (DrillStage.LATE, DrillStage.CALLED_OFF)),
    ]
    figure = f"<figure>{curve.as_svg(curve.of_drill(drill))}</figure>" if drill.looks else ""
    return _facts("The last drill", rows) + figure


def _after(drill: Drill, at_ms: int) -> str:
    return f"{(at_ms - drill.began_ms) / 1000:.1f} s" if at_ms else ""


def _facts(title: str, rows: Iterable[tuple[str, str, bool]]) -> str:
    """Return a table of names and known values; a value that is not known has no row."""
    lines = "".join(
        f'<tr><th scope="row">{name}</th><td{_bad(bad)}>{html.escape(text)}</td></tr>'
        for name, text, bad in rows
        if text
    )
    return f"<table><caption>{title}</caption><tbody>{lines}</tbody></table>"


def _shepherds(nodes: Iterable[NodeView]) -> str:
    rows = [
        (
            (node.shepherd, False),
            (f"{node.state} {node.drain}".strip(), node.state != "alive"),
            (stamp(node.since_ms), False),
            (f"{_size(node.free_bytes)} of {_size(node.total_bytes)}", False),
            (str(node.replicas), False),
            (node.domain, False),
            (node.trouble, True),
        )
        for node in nodes
    ]
    return _table("Shepherds", ("Shepherd", "State", "Since", "Free", "Replicas", "Domain", "Trouble"), rows)


def _queue(status: HealStatus) -> str:
    rows = [
        (
            (found.name or found.blob, False),
            (f"{found.live} of {found.wanted}", found.live < 2),
            (_size(found.size), False),
        )
        for found in status.queue
    ]
    return _table("Files in danger, the most endangered first", ("File", "Copies", "Size"), rows) if rows else ""


def _versions(nodes: Jobs) -> str:
    found = by_version({url: node.version for url, node in nodes.items() if isinstance(node, NodeJobs)})
    return _facts("Versions", [(html.escape(version), ", ".join(urls), False) for version, urls in found])


def _jobs(nodes: Jobs) -> str:
    """Return the jobs of all nodes, those with errors first."""
    rows = [
        (url, job.service, job.name, f"{job.state} {job.why}".strip(), job.last_error)
        for url, node in nodes.items()
        if isinstance(node, NodeJobs)
        for job in node.jobs
    ]
    rows += [(url, "", "", "", str(node)) for url, node in nodes.items() if isinstance(node, CheloniaError)]
    cells = [tuple((text, n == 4) for n, text in enumerate(row)) for row in sorted(rows, key=lambda row: not row[4])]
    return _table("Background work", ("Node", "Service", "Job", "State", "Last error"), cells)


def _table(title: str, head: tuple[str, ...], rows: Iterable[tuple[tuple[str, bool], ...]]) -> str:
    """Return a table; each cell's flag says that its text, if there is any, is bad news."""
    names = "".join(f'<th scope="col">{name}</th>' for name in head)
    body = "".join(
        "<tr>" + "".join(f"<td{_bad(bad and bool(text))}>{html.escape(text)}</td>" for text, bad in row) + "</tr>\n"
        for row in rows
    )
    return f"<table><caption>{title}</caption><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table>\n"


def _bad(bad: bool) -> str:
    return ' class="bad"' if bad else ""


def _size(size: int) -> str:
    value, units = float(size), ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{size} B" if units[0] == "B" else f"{value:.1f} {units[0]}"
