"""`admin scrub` and `admin quarantine`: requests of administrators to the Shepherds themselves, each over its own port.

Decides nothing: a Shepherd checks and reports as always. A scrub goes on from page to page, on all Shepherds at once,
so that it can be watched, and broken off without harm.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field

from chelonia.core import bounds
from chelonia.core.cluster.placement import NODE_ALIVE, NODE_WAITING
from chelonia.core.cluster.replicas import ReplicaState, parse_location
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Ms, ReferenceId, ServiceId
from chelonia.core.ports.shepherd import RECORDS_ASIDE, Damaged, ReplicaRecord, ScrubOrder
from chelonia.core.values import replace
from chelonia_clients.administrator import Administrator
from chelonia_clients.arguments import Arguments, UsageError, parse_duration
from chelonia_clients.client import new_call
from chelonia_clients.output import human_size, table
from chelonia_clients.progress import Bar
from chelonia_clients.session import Session

DAMAGE_FOUND = 1
"""Exit code of a scrub that has found damage, though it is being repaired."""
_WHOLE = tuple(state.value for state in (ReplicaState.ALIVE, ReplicaState.THIRDWHEEL, ReplicaState.INVALID))
Away = Mapping[ServiceId, str]
"""States of Shepherds that are concerned and away."""


@dataclass(slots=True)
class _Scrubbed:
    """The result of one Shepherd's scrub. `left`: replicas still to be checked; `failure`: why it was broken off."""

    checked: int = 0
    bytes: int = 0
    left: int = 0
    damaged: list[Damaged] = field(default_factory=list)
    failure: CheloniaError | None = None


# --- scrub -----------------------------------------------------------------------------------------------------------


async def scrub(session: Session, arguments: Arguments) -> None:
    """Have replicas checked now, and print damage (`admin scrub`)."""
    administrator = session.administrator()
    before = arguments.value("--older-than")
    before_ms = Ms(administrator.clock.now_ms() - parse_duration(before)) if before else Ms(0)
    order = ScrubOrder(before_ms=before_ms, suspicious=arguments.has("--suspicion"))
    orders, away = await _orders(session, arguments, order)
    found = {shepherd: _Scrubbed() for shepherd in (*orders, *away)}
    for shepherd, state in away.items():
        found[shepherd].failure = _left_out(shepherd, f"not checked: it is {state}")
    with Bar("checking", beside=session.bars, unit="replicas") as bar:
        works = (_scrub_one(administrator, shepherd, orders[shepherd], found, bar) for shepherd in orders)
        await asyncio.gather(*works)
    _report(session, found)


async def _orders(
    session: Session, arguments: Arguments, order: ScrubOrder
) -> tuple[dict[ServiceId, list[ScrubOrder]], Away]:
    """The orders for each Shepherd, and the concerned ones that are away."""
    node, path = ServiceId(arguments.value("--node")), arguments.value("--path")
    if arguments.has("--recursive") and not path:
        raise UsageError("admin scrub takes -r together with --path LN")
    if not path:
        alive, away = await _shepherds(session.administrator(), node)
        return {shepherd: [order] for shepherd in alive}, away
    orders: dict[ServiceId, list[ScrubOrder]] = {}
    places, away = await _places(session, session.ln(path), recursive=arguments.has("--recursive"))
    for shepherd, references in places.items():
        if node in ("", shepherd):
            step = bounds.BULK_ELEMENTS_MAX
            starts = range(0, len(references), step)
            orders[shepherd] = [replace(order, references=tuple(references[at : at + step])) for at in starts]
    return orders, {shepherd: state for shepherd, state in away.items() if node in ("", shepherd)}


async def _shepherds(administrator: Administrator, node: ServiceId) -> tuple[list[ServiceId], Away]:
    """The Shepherds that are alive, or the one named, and those that are away."""
    nodes = await administrator.nodes()
    if node and node not in {each.shepherd for each in nodes}:
        cause = f"no such Shepherd; known: {', '.join(each.shepherd for each in nodes) or 'none'}"
        raise CheloniaError(Kind.NOT_FOUND, "admin", node, cause)
    if node:
        return [node], {}
    alive = [each.shepherd for each in nodes if each.state == NODE_ALIVE]
    return alive, {each.shepherd: each.state for each in nodes if each.state not in (NODE_ALIVE, NODE_WAITING)}


def _left_out(shepherd: ServiceId, cause: str) -> CheloniaError:
    return CheloniaError(Kind.UNAVAILABLE, "admin", shepherd, cause)


def _broken_off(error: CheloniaError, shepherd: ServiceId, outcome: str) -> CheloniaError:
    return CheloniaError(error.kind, "admin", shepherd, f"{outcome}: {error.cause or error.kind.value}")


async def _places(session: Session, ln: str, *, recursive: bool) -> tuple[dict[ServiceId, list[ReferenceId]], Away]:
    """The replicas of a file, or of all files below a collection, and the Shepherds that are away with some."""
    client = session.client()
    names = [ln]
    if await client.exists(ln) == "collection":
        if not recursive:
            raise UsageError(f"{ln} is a collection; -r checks all below it")
        base = ln.rstrip("/")
        entries = session.below(ln, client.names(ln, recursive=True))
        names = [f"{base}/{entry.name}" async for entry in entries if entry.type == "file"]
    places, away = dict[ServiceId, list[ReferenceId]](), dict[ServiceId, str]()
    for name in names:
        for text, state in (await client.stat(name)).get("locations", {}).items():
            location = parse_location(text)
            if state in _WHOLE:
                places.setdefault(location.shepherd, []).append(location.reference)
            elif state == ReplicaState.OFFLINE.value:
                away[location.shepherd] = state
    return places, away


async def _scrub_one(
    administrator: Administrator,
    shepherd: ServiceId,
    orders: Sequence[ScrubOrder],
    found: Mapping[ServiceId, _Scrubbed],
    bar: Bar,
) -> None:
    own, port = found[shepherd], administrator.shepherd(shepherd)
    try:
        for order in orders:
            while True:
                page = await port.scrub_page(new_call(), order)
                own.checked, own.bytes, own.left = own.checked + page.checked, own.bytes + page.bytes, page.left
                own.damaged += page.damaged
                bar.expect(sum(each.checked + each.left for each in found.values()))
                bar.advance(page.checked)
                if not page.after:
                    break
                order = replace(order, after=page.after)
    except CheloniaError as error:
        own.failure = _broken_off(error, shepherd, "not checked to its end")


def _report(session: Session, found: Mapping[ServiceId, _Scrubbed]) -> None:
    out = session.out
    rows = [("SHEPHERD", "CHECKED", "READ", "DAMAGED")]
    for shepherd, own in found.items():
        for each in own.damaged:
            out.write(f"{shepherd} {each.reference}: {each.damage}")
            out.result(shepherd=shepherd, reference=each.reference, blob=each.blob, damage=each.damage)
        if own.failure is not None:
            out.failure(own.failure, shepherd=shepherd, checked=own.checked)
        rows.append((shepherd, str(own.checked), human_size(own.bytes), str(len(own.damaged))))
    out.write(*table(rows, frozenset({1, 2, 3})))
    damaged = sum(len(own.damaged) for own in found.values())
    if damaged:
        out.write(f"{damaged} damaged: they are reported, and replaced from good copies")
        out.exit_code = out.exit_code or DAMAGE_FOUND
    checked, size = sum(own.checked for own in found.values()), sum(own.bytes for own in found.values())
    figures = [
        {
            "shepherd": shepherd,
            "checked": own.checked,
            "bytes": own.bytes,
            "damaged": len(own.damaged),
            "left": own.left,
        }
        for shepherd, own in found.items()
    ]
    out.document.update(checked=checked, bytes=size, damaged=damaged, shepherds=figures)


# --- quarantine ------------------------------------------------------------------------------------------------------


async def quarantine(session: Session, words: Sequence[str]) -> None:
    """Run `quarantine list [<id>]`, `quarantine discard <id> <reference>...|all` or `quarantine readmit <id>`."""
    match tuple(words):
        case ("list",):
            await _list(session, ServiceId(""))
        case ("list", node):
            await _list(session, ServiceId(node))
        case ("discard", node, *references) if references:
            await _discard(session, ServiceId(node), references)
        case ("readmit", node):
            count = await session.administrator().shepherd(ServiceId(node)).readmit(new_call())
            session.out.write(f"{node}: {count} are asked for again; what the namespace knows stays")
            session.out.result(shepherd=node, readmitted=count)
        case _:
            raise UsageError("admin quarantine takes list [<id>], discard <id> <reference>...|all, or readmit <id>")


async def _list(session: Session, node: ServiceId) -> None:
    rows: list[tuple[str, ...]] = [("SHEPHERD", "REFERENCE", "SIZE", "STATE", "NAME THEN", "OWNER")]
    alive, away = await _shepherds(session.administrator(), node)
    failures = {shepherd: _left_out(shepherd, f"not asked: it is {state}") for shepherd, state in away.items()}
    for shepherd in alive:
        try:
            async for item in _aside(session.administrator(), shepherd):
                rows.append(_row(session, shepherd, item))
        except CheloniaError as error:
            failures[shepherd] = _broken_off(error, shepherd, "not asked to its end")
    session.out.write(*table(rows, frozenset({2})))
    session.out.write(f"{len(rows) - 1} in quarantine")
    for shepherd, failure in failures.items():
        session.out.failure(failure, shepherd=shepherd)


def _row(session: Session, shepherd: ServiceId, item: ReplicaRecord) -> tuple[str, ...]:
    """The row of one replica in quarantine, for people; adds a result for programs."""
    facts = item.facts
    size, name, owner = (facts.size, facts.name, facts.owner) if facts else (-1, "", "")
    state = "was part of a file" if item.committed else "never acknowledged"
    if item.state is not ReplicaState.ALIVE:
        state = "damaged"
    session.out.result(
        shepherd=shepherd, reference=item.reference, blob=facts.blob if facts else "", size=size, name=name,
        owner=owner, committed=item.committed, whole=item.state is ReplicaState.ALIVE,
    )  # fmt: skip
    return (shepherd, item.reference, human_size(max(size, 0)), state, name, owner)


async def _aside(administrator: Administrator, shepherd: ServiceId) -> AsyncGenerator[ReplicaRecord, None]:
    after = RECORDS_ASIDE
    while after:
        page = await administrator.shepherd(shepherd).records(new_call(), after, bounds.REFERENCES_PAGE)
        for item in page.items:
            yield item
        after = page.after


async def _discard(session: Session, shepherd: ServiceId, words: Sequence[str]) -> None:
    administrator = session.administrator()
    references = [ReferenceId(word) for word in words]
    if list(words) == ["all"]:
        references = [item.reference async for item in _aside(administrator, shepherd)]
    count, step = 0, bounds.BULK_ELEMENTS_MAX
    for at in range(0, len(references), step):
        count += await administrator.shepherd(shepherd).discard(new_call(), tuple(references[at : at + step]))
    session.out.write(f"{shepherd}: {count} discarded for good")
    session.out.result(shepherd=shepherd, discarded=count)
    if count < len(references):
        cause = f"{len(references) - count} of {len(references)} are not in quarantine there"
        raise CheloniaError(Kind.NOT_FOUND, "quarantine", shepherd, cause)
