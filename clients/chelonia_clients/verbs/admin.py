"""Verbs for administrators: the health of the cluster and approvals; the others lie beside this."""

from __future__ import annotations

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.librarian import ServiceRecord
from chelonia.core.timing.clock import stamp
from chelonia_clients.arguments import Arguments, UsageError
from chelonia_clients.output import table
from chelonia_clients.session import Session
from chelonia_clients.verbs import ahash as verbs_ahash
from chelonia_clients.verbs import nodes as verbs_nodes
from chelonia_clients.verbs import rebuild as verbs_rebuild
from chelonia_clients.verbs import shepherds as verbs_shepherds
from chelonia_clients.verbs.drill import drill
from chelonia_clients.verbs.fsck import fsck
from chelonia_clients.verbs.heal import dangers, heal
from chelonia_clients.verbs.jobs import jobs
from chelonia_clients.verbs.s3 import s3_keys


async def admin(session: Session, arguments: Arguments) -> None:
    """The verb `admin`."""
    session.as_administrator()
    match tuple(arguments.operands):
        case ("status",):
            await _status(session)
        case ("heal", *words):
            await heal(session, arguments, words)
        case ("drill", *words):
            await drill(session, arguments, words)
        case ("node" | "nodes", "list") | ("nodes",):
            await verbs_nodes.nodes(session)
        case ("node", "maintenance", shepherd):
            await verbs_nodes.maintenance(session, arguments, shepherd)
        case ("node", "drain", shepherd):
            await verbs_nodes.drain(session, arguments, shepherd)
        case ("node", "undrain", shepherd):
            await verbs_nodes.undrain(session, shepherd)
        case ("node", "forget", shepherd):
            await verbs_nodes.forget(session, arguments, shepherd)
        case ("service" | "services", "list") | ("services",):
            await _services(session)
        case ("service" | "node", "approve" | "withdraw" as what, service_id):
            await _approve(session, service_id, approved=what == "approve")
        case ("ahash", "status"):
            await verbs_ahash.status(session)
        case ("ahash", "backup", name):
            await verbs_ahash.backup(session, name)
        case ("ahash", "add", dn, address):
            await verbs_ahash.add(session, dn, address)
        case ("ahash", "remove", replica):
            await verbs_ahash.remove(session, replica)
        case ("ahash", "replace", replica, dn, address):
            await verbs_ahash.replace(session, replica, dn, address)
        case ("s3", *words):
            await s3_keys(session, arguments, words)
        case ("jobs",):
            await jobs(session)
        case ("scrub",):
            await verbs_shepherds.scrub(session, arguments)
        case ("quarantine", *words):
            await verbs_shepherds.quarantine(session, words)
        case ("rebuild",):
            await verbs_rebuild.rebuild(session, arguments)
        case ("fsck",) | ("fsck", _):
            await fsck(session, arguments, "".join(arguments.operands[1:]))
        case words:
            raise UsageError(f"admin does not know {' '.join(words)!r}")


async def _status(session: Session) -> None:
    administrator, out = session.administrator(), session.out
    health, nodes = await administrator.health(), await administrator.nodes()
    states: dict[str, int] = {}
    for node in nodes:
        states[node.state] = states.get(node.state, 0) + 1
    out.say(f"repair is led by   {health.leader or 'nobody'}")
    out.say(f"metadata position  {health.position.generation}.{health.position.sequence}")
    out.say(f"Shepherds          {_counts(states)}")
    out.say(f"replicas           {_counts(dict(health.replicas))}")
    known = "" if health.is_leader else " that the Librarian asked knows of; ask `chelonia admin heal status`"
    out.say(f"too few copies     {health.exposed}{known}")
    healing = await administrator.heal_status()
    for line in dangers(healing):
        out.say(line)
    out.say(f"repair             {health.queued} queued, {health.copying} copying, {health.erasing} erasing")
    if health.held_back:
        out.say(f"erasures           HELD BACK for {health.held_back} blobs: too many that nobody has asked for")
    await verbs_ahash.tell_parted(session)
    if health.paused_by:
        out.say(f"healing            PAUSED since {stamp(health.paused_ms)} by {health.paused_by}")
        out.tell("warning: healing is paused, lost copies are not replaced; `chelonia admin heal resume` ends that")
    if health.waits_for:
        out.say(f"healing            WAITS: {health.waits_for}")
    found = (await administrator.drill_status()).drill
    if found.running:
        out.say(
            f"drill              {found.action.value} of {found.shepherd} since {stamp(found.began_ms)} by {found.by}"
        )
    out.result(
        leader=health.leader,
        is_leader=health.is_leader,
        position={
            "cluster": health.position.cluster,
            "generation": health.position.generation,
            "sequence": health.position.sequence,
        },
        nodes=states,
        replicas=dict(health.replicas),
        exposed=health.exposed,
        lost=healing.lost,
        unreachable=healing.unreachable,
        queued=health.queued,
        copying=health.copying,
        erasing=health.erasing,
        held_back=health.held_back,
        paused_by=health.paused_by,
        paused_ms=health.paused_ms,
        waits_for=health.waits_for,
        drill=found.id if found.running else "",
    )


def _counts(numbers: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(numbers.items())) or "none"


async def _services(session: Session) -> None:
    rows = [("ROLE", "SERVICE", "STATE", "DN")]
    for record in await session.administrator().services():
        state = "approved" if record.approved else "forgotten" if record.forgotten else "waiting"
        rows.append((record.role.value, record.service_id, state, record.dn))
        facts = {"dn": record.dn, "approved": record.approved, "forgotten": record.forgotten}
        session.out.result(role=record.role.value, service_id=record.service_id, **facts)
    for line in table(rows):
        session.out.say(line)


async def _approve(session: Session, service_id: str, *, approved: bool) -> None:
    administrator = session.administrator()
    records = [record for record in await administrator.services() if record.service_id == service_id]
    if not records:
        cause = "no such service has asked to be approved; `chelonia admin service list` shows them"
        raise CheloniaError(Kind.NOT_FOUND, "approve", service_id, cause)
    word = "approved" if approved else "withdrawn"
    for record in records:
        await administrator.approve(ServiceRecord(record.role, record.dn, record.service_id, approved))
        session.out.say(f"{record.role.value} {service_id} ({record.dn}): {word}")
        session.out.result(role=record.role.value, service_id=service_id, dn=record.dn, approved=approved)
