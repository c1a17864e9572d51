"""Verbs for administrators: approvals, and dispatch to the modules of the others."""

from __future__ import annotations

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ports.librarian import ServiceRecord
from chelonia_clients.arguments import Arguments, UsageError
from chelonia_clients.output import table
from chelonia_clients.session import Session
from chelonia_clients.verbs import ahash as verbs_ahash
from chelonia_clients.verbs import nodes as verbs_nodes
from chelonia_clients.verbs import rebuild as verbs_rebuild
from chelonia_clients.verbs import shepherds as verbs_shepherds
from chelonia_clients.verbs import status as verbs_status
from chelonia_clients.verbs.drill import drill
from chelonia_clients.verbs.fsck import fsck
from chelonia_clients.verbs.heal import heal
from chelonia_clients.verbs.jobs import jobs
from chelonia_clients.verbs.quota import admin_quota
from chelonia_clients.verbs.s3 import s3_keys


async def admin(session: Session, arguments: Arguments) -> None:
    """Run a verb for administrators (`admin ...`)."""
    session.as_administrator()
    try:
        await _run(session, arguments)
    except CheloniaError as error:
        if error.kind is not Kind.DENIED:
            raise
        cause = f"{error.cause}; `admin` needs an administrator's certificate, `chelonia whoami` shows yours"
        raise CheloniaError(error.kind, error.op, error.subject, cause) from error


async def _run(session: Session, arguments: Arguments) -> None:
    match tuple(arguments.operands):
        case ("status",):
            await verbs_status.status(session)
        case ("top",):
            await verbs_status.top(session, arguments)
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
        case ("service" | "node", "approve" | "withdraw" as action, service_id, *dn) if len(dn) <= 1:
            await _approve(session, service_id, "".join(dn), approved=action == "approve")
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
        case ("quota" | "quotas", *words):
            await admin_quota(session, arguments, words)
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
            raise UsageError(f"admin {' '.join(words)}: no such command, or the wrong number of arguments")


async def _services(session: Session) -> None:
    rows = [("ROLE", "SERVICE", "STATE", "DN")]
    for record in await session.administrator().services():
        states = {"approved": record.approved, "forgotten": record.forgotten, "withdrawn": record.withdrawn}
        state = next((word for word, so in states.items() if so), "waiting")
        rows.append((record.role.value, record.service_id, state, record.dn))
        session.out.result(role=record.role.value, service_id=record.service_id, dn=record.dn, **states)
    session.out.write(*table(rows))


async def _approve(session: Session, service_id: str, dn: str, *, approved: bool) -> None:
    administrator = session.administrator()
    services = await administrator.services()
    claims = [record for record in services if record.service_id == service_id and dn in ("", record.dn)]
    if not claims:
        cause = "no such service has asked to be approved; `chelonia admin service list` shows them"
        raise CheloniaError(Kind.NOT_FOUND, "approve", service_id, cause)
    records = [record for record in claims if not record.forgotten] or claims
    if approved and len(names := sorted({record.dn for record in records})) > 1:  # whoever has a certificate may ask
        cause = f"{len(names)} identities ask to be this service: {', '.join(names)}. Give the right DN after the id"
        raise CheloniaError(Kind.CONFLICT, "approve", service_id, cause)
    for record in records:
        await administrator.approve(ServiceRecord(record.role, record.dn, record.service_id, approved))
        session.out.write(f"{record.role.value} {service_id} ({record.dn}): {'approved' if approved else 'withdrawn'}")
        session.out.result(role=record.role.value, service_id=service_id, dn=record.dn, approved=approved)
    holders = {record.dn for record in records}
    others = [each.service_id for each in services if each.approved and each.dn in holders and each not in records]
    if others and not approved:  # its process may go on in the name of its other services
        cure = "where its host is lost, withdraw these as well"
        session.out.notify(f"the same certificate stands for {', '.join(others)}: {cure}")
