"""Verbs for administrators, and the small ones about the program itself."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from importlib import metadata, resources
from typing import Final

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.librarian import NodeView, ServiceRecord
from chelonia_clients.arguments import Arguments, UsageError
from chelonia_clients.output import human_size, table
from chelonia_clients.session import Session
from chelonia_clients.verbs import VERBS
from chelonia_clients.verbs_fsck import fsck

_UNIT_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


async def admin(session: Session, arguments: Arguments) -> None:
    """The verb `admin`."""
    session.as_administrator()
    match tuple(arguments.operands):
        case ("status",):
            await _status(session)
        case ("node" | "nodes", "list") | ("nodes",):
            await _nodes(session)
        case ("node", "maintenance", shepherd):
            await _maintenance(session, arguments, shepherd)
        case ("service" | "services", "list") | ("services",):
            await _services(session)
        case ("service" | "node", "approve" | "withdraw" as what, service_id):
            await _approve(session, service_id, approved=what == "approve")
        case ("fsck",) | ("fsck", _):
            await fsck(session, arguments, "".join(arguments.operands[1:]))
        case words:
            raise UsageError(f"admin does not know {' '.join(words)!r}")


async def _status(session: Session) -> None:
    client, out = session.client(), session.out
    health, nodes = await client.health(), await client.nodes()
    states: dict[str, int] = {}
    for node in nodes:
        states[node.state] = states.get(node.state, 0) + 1
    out.say(f"repair is led by   {health.leader or 'nobody'}")
    out.say(f"metadata position  {health.position.generation}.{health.position.sequence}")
    out.say(f"Shepherds          {_counts(states)}")
    out.say(f"replicas           {_counts(dict(health.replicas))}")
    out.say(f"too few copies     {health.exposed}")
    out.say(f"repair             {health.queued} queued, {health.copying} copying, {health.erasing} erasing")
    out.result(
        leader=health.leader,
        position={
            "cluster": health.position.cluster,
            "generation": health.position.generation,
            "sequence": health.position.sequence,
        },
        nodes=states,
        replicas=dict(health.replicas),
        exposed=health.exposed,
        queued=health.queued,
        copying=health.copying,
        erasing=health.erasing,
    )


def _counts(numbers: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(numbers.items())) or "none"


async def _nodes(session: Session) -> None:
    nodes = await session.client().nodes()
    rows = [("SHEPHERD", "STATE", "SINCE", "REPLICAS", "FREE", "TOTAL", "DOMAIN")]
    for node in nodes:
        size = (human_size(node.free_bytes), human_size(node.total_bytes))
        rows.append((node.shepherd, _state(node), _stamp(node.since_ms), str(node.replicas), *size, node.domain))
        session.out.result(
            shepherd=node.shepherd,
            dn=node.dn,
            state=node.state,
            since_ms=node.since_ms,
            replicas=node.replicas,
            free_bytes=node.free_bytes,
            total_bytes=node.total_bytes,
            accepting=node.accepting,
            domain=node.domain,
            maintenance_until_ms=node.maintenance_until_ms,
            store=node.store,
            reclaimable_bytes=node.reclaimable_bytes,
            trouble=node.trouble,
        )
    for line in table(rows, frozenset({3, 4, 5})):
        session.out.say(line)
    for node in nodes:
        if node.trouble:
            session.out.say(f"{node.shepherd}: {node.trouble}")


def _state(node: NodeView) -> str:
    if node.state == "maintenance":
        return f"maintenance until {_stamp(node.maintenance_until_ms)}"
    return node.state if node.accepting or node.state != "alive" else "alive, full"


def _stamp(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ") if ms else "-"


async def _maintenance(session: Session, arguments: Arguments, shepherd: str) -> None:
    if arguments.has("--end") == arguments.has("--for"):
        raise UsageError("admin node maintenance takes --for TIME or --end")
    duration = 0 if arguments.has("--end") else parse_duration(arguments.value("--for"))
    known = {node.shepherd for node in await session.client().nodes()}
    if shepherd not in known:
        cause = f"no such Shepherd; known: {', '.join(sorted(known)) or 'none'}"
        raise CheloniaError(Kind.NOT_FOUND, "maintenance", shepherd, cause)
    until = await session.client().maintenance(shepherd, duration)
    session.out.say(f"{shepherd}: in maintenance until {_stamp(until)}" if until else f"{shepherd}: back in service")
    session.out.result(shepherd=shepherd, maintenance_until_ms=until)


def parse_duration(text: str) -> int:
    """Milliseconds of `90s`, `30m`, `2h`, `3d`. Raises: UsageError."""
    match = re.fullmatch(r"([0-9]{1,9})([smhd])", text)
    if match is None:
        raise UsageError(f"--for takes a time like 90s, 30m, 2h or 3d, not {text!r}")
    return int(match[1]) * _UNIT_MS[match[2]]


async def _services(session: Session) -> None:
    rows = [("ROLE", "SERVICE", "STATE", "DN")]
    for record in await session.client().services():
        state = "approved" if record.approved else "waiting"
        rows.append((record.role.value, record.service_id, state, record.dn))
        session.out.result(role=record.role.value, service_id=record.service_id, dn=record.dn, approved=record.approved)
    for line in table(rows):
        session.out.say(line)


async def _approve(session: Session, service_id: str, *, approved: bool) -> None:
    client = session.client()
    records = [record for record in await client.services() if record.service_id == service_id]
    if not records:
        cause = "no such service has asked to be approved; `chelonia admin service list` shows them"
        raise CheloniaError(Kind.NOT_FOUND, "approve", service_id, cause)
    word = "approved" if approved else "withdrawn"
    for record in records:
        await client.approve(ServiceRecord(record.role, record.dn, record.service_id, approved))
        session.out.say(f"{record.role.value} {service_id} ({record.dn}): {word}")
        session.out.result(role=record.role.value, service_id=service_id, dn=record.dn, approved=approved)


async def delegation(_session: Session, _arguments: Arguments) -> None:
    """The verbs `credentialsDelegation` and `removeCredentials`."""
    cause = "not supported by this cluster: none of its services acts in a user's name, so nothing is delegated"
    raise CheloniaError(Kind.NOT_SUPPORTED, "credentialsDelegation", cause=cause)


async def version(session: Session, _arguments: Arguments) -> None:
    """The verb `version`."""
    number = metadata.version("chelonia")
    session.out.say(f"chelonia {number}")
    session.out.result(version=number)


async def completion(session: Session, arguments: Arguments) -> None:
    """The verb `completion`: the script of a shell; `names <prefix>` and `verbs` are what the scripts call."""
    match tuple(arguments.operands):
        case ("bash",):
            session.out.say(script("chelonia.bash").rstrip("\n"))
        case ("zsh",):
            session.out.say(script("_chelonia").rstrip("\n"))
        case ("verbs",):
            for verb in VERBS:
                session.out.say(verb.name)
        case ("names", prefix):
            await _names(session, prefix)
        case _:
            raise UsageError("completion is there for bash and zsh")


def script(name: str) -> str:
    """A completion script as shipped."""
    return (resources.files("chelonia_clients") / "completion" / name).read_text("utf-8")


async def _names(session: Session, prefix: str) -> None:
    """Names that begin with `prefix`, one a line, collections with a slash: nothing at all when anything is wrong."""
    parent, slash, start = prefix.rpartition("/")
    try:
        async for entry in session.client().list(session.ln((parent + slash) or "/")):
            if entry.name.startswith(start):
                session.out.say(f"{parent}{slash}{entry.name}" + ("/" if entry.type == "collection" else ""))
    except CheloniaError:
        return
