"""`admin node ...`: the Shepherds, their maintenance, drains and removal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from chelonia.core.cluster.healing import HeldDrain, Loss
from chelonia.core.cluster.placement import DRAINED, NODE_ALIVE, NODE_MAINTENANCE
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ServiceId
from chelonia.core.ports.librarian import NodeView
from chelonia.core.timing.clock import stamp
from chelonia_clients.arguments import Arguments, UsageError, parse_duration
from chelonia_clients.output import counted, human_size, record_facts, table
from chelonia_clients.session import Session
from chelonia_clients.verbs import removing
from chelonia_clients.verbs.heal import held_drain, held_facts
from chelonia_clients.verdict import is_full

_LOOK_MS: Final = 1_000
"""Pause between two looks at a drain."""
_STILL_MS: Final = 600_000
"""Time without progress after which a drain may never end, and a note says so. Longer than the default `trim_grace_ms`,
after which copied replicas go."""


async def nodes(session: Session) -> None:
    """Print all Shepherds (`admin node list`)."""
    found = await session.administrator().nodes()
    held = await _held(session, found)
    rows = [("SHEPHERD", "STATE", "SINCE", "REPLICAS", "FREE", "TOTAL", "DOMAIN", "RECLAIMABLE")]
    for node in found:
        size = (human_size(node.free_bytes), human_size(node.total_bytes))
        state = (_state(node), stamp(node.since_ms), str(node.replicas))
        reclaimable = human_size(node.reclaimable_bytes) if node.reclaimable_bytes else ""
        rows.append((node.shepherd, *state, *size, node.domain, reclaimable))
        session.out.result(
            **record_facts(node), held_up=held_facts(held.get(node.shepherd, HeldDrain(node.shepherd, 0)))
        )
    session.out.write(*table(rows, frozenset({3, 4, 5, 7})))
    for node in found:
        if node.trouble:
            session.out.write(f"{node.shepherd}: {node.trouble}")
        if node.shepherd in held:
            session.out.write(f"{node.shepherd}: {held_drain(held[node.shepherd])}")


def _state(node: NodeView) -> str:
    if node.state == NODE_MAINTENANCE:
        word = f"maintenance until {stamp(node.maintenance_until_ms)}"
    elif is_full(node):
        word = "alive, full"
    else:
        word = node.state
    if not node.drain:
        return word
    return f"{word}, drained: it may go" if node.drain == DRAINED else f"{word}, draining"


async def maintenance(session: Session, arguments: Arguments, shepherd: str) -> None:
    """Announce or end a Shepherd's maintenance (`admin node maintenance`)."""
    if arguments.has("--end") == arguments.has("--for"):
        raise UsageError("admin node maintenance takes --for TIME or --end")
    duration = 0 if arguments.has("--end") else parse_duration(arguments.value("--for"))
    await _known(session, "maintenance", shepherd)
    until = await session.administrator().maintenance(shepherd, duration)
    session.out.write(f"{shepherd}: in maintenance until {stamp(until)}" if until else f"{shepherd}: back in service")
    session.out.result(shepherd=shepherd, maintenance_until_ms=until)


async def _known(session: Session, op: str, shepherd: str) -> NodeView:
    """The Shepherd as it is now. Raises: NOT_FOUND, naming the known ones."""
    views = {node.shepherd: node for node in await session.administrator().nodes()}
    if (node := views.get(ServiceId(shepherd))) is not None:
        return node
    raise CheloniaError(Kind.NOT_FOUND, op, shepherd, f"no such Shepherd; known: {', '.join(sorted(views)) or 'none'}")


# --- draining ---------------------------------------------------------------------------------------------------------


async def drain(session: Session, arguments: Arguments, shepherd: str) -> None:
    """Begin a drain, with `--wait` until the Shepherd may go (`admin node drain`)."""
    await _known(session, "drain", shepherd)
    await session.administrator().drain(shepherd, on=True)
    node = await _drained(session, shepherd) if arguments.has("--wait") else await _known(session, "drain", shepherd)
    held = (await _held(session, (node,))).get(node.shepherd, HeldDrain(node.shepherd, 0))
    if node.drain == DRAINED:
        session.out.write(f"{shepherd}: drained, it may go")
    else:
        session.out.write(
            f"{shepherd}: draining, {node.replicas} replicas to go; `admin node list` shows when it may go"
        )
    if held.blobs:
        session.out.write(f"{shepherd}: {held_drain(held)}")
    session.out.result(shepherd=shepherd, drain=node.drain, replicas=node.replicas, held_up=held_facts(held))


async def _held(session: Session, nodes: Sequence[NodeView]) -> dict[ServiceId, HeldDrain]:
    """Replicas that cannot leave, by draining Shepherd, as the repair leader knows them."""
    draining = {node.shepherd for node in nodes if node.drain and node.drain != DRAINED}
    if not draining:
        return {}
    status = await session.administrator().heal_status()
    return {held.shepherd: held for held in status.drains if held.shepherd in draining}


async def _drained(session: Session, shepherd: str) -> NodeView:
    """Wait until it is drained, and print its progress. Raises: CANCELLED when somebody calls it off."""
    clock = session.administrator().clock
    replicas, since, why = -1, clock.monotonic_ms(), ""
    while (node := await _known(session, "drain", shepherd)).drain != DRAINED:
        if not node.drain:
            raise CheloniaError(Kind.CANCELLED, "drain", shepherd, "somebody has called it off (admin node undrain)")
        before, held = why, (await _held(session, (node,))).get(node.shepherd)
        why = held_drain(held) if held else ""
        if why and why != before:
            session.out.notify(f"chelonia: {shepherd}: {why}")
        if node.replicas != replicas:
            replicas, grace = node.replicas, _GRACE if replicas < 0 else ""
            since = clock.monotonic_ms()
            session.out.notify(f"chelonia: {shepherd}: {replicas} replicas to go" + (_hindrance(node) or grace))
        elif clock.monotonic_ms() - since >= _STILL_MS:
            since = clock.monotonic_ms()
            still = f"nothing has left it for {_STILL_MS // 60_000} min"
            session.out.notify(f"chelonia: {shepherd}: {still}" + (_hindrance(node) or f"; {why or _STUCK}"))
        await clock.sleep(_LOOK_MS)
    return node


_GRACE: Final = "; each goes when it has been elsewhere for a while (`trim_grace_ms`, 5 minutes by default)"
_STUCK: Final = (
    "what stays may wait for others that have copies of the same files (`chelonia admin node list`), or for repair "
    "(`chelonia admin heal status`)"
)


def _hindrance(node: NodeView) -> str:
    return "" if node.state == NODE_ALIVE else f"; it is {node.state}, and nothing leaves it until it is back"


async def undrain(session: Session, shepherd: str) -> None:
    """Call a drain off (`admin node undrain`)."""
    await _known(session, "undrain", shepherd)
    await session.administrator().drain(shepherd, on=False)
    session.out.write(f"{shepherd}: back in service")
    session.out.result(shepherd=shepherd, drain="")


# --- forgetting -------------------------------------------------------------------------------------------------------


async def forget(session: Session, arguments: Arguments, shepherd: str) -> None:
    """Forget a Shepherd, unless a check of all files finds one that would be lost (`admin node forget`)."""
    administrator, accepted = session.administrator(), arguments.has("--accept-loss")
    if not any(record.service_id == shepherd and record.forgotten for record in await administrator.services()):
        await _known(session, "forget", shepherd)
    losses: list[Loss] = []
    async for page in administrator.forget(shepherd, check_only=True, accept_loss=accepted):
        losses += page.losses
    replicas, forgotten = 0, False
    if accepted or not losses:
        confirmed = arguments.has("--yes") or session.out.as_json or not removing.at_a_terminal()
        if not confirmed and not await removing.agreed(
            f"Forget {shepherd} for good, and never accept this identity again?"
        ):
            raise CheloniaError(Kind.CANCELLED, "forget", shepherd, "nothing was done")
        losses.clear()
        async for page in administrator.forget(shepherd, check_only=False, accept_loss=accepted):
            losses += page.losses
            replicas, forgotten = replicas + page.looked_at, page.forgotten
    for loss in losses:
        session.out.write(f"{loss.name} ({loss.guid}): {_fate(loss)}")
    facts: dict[str, Any] = {"shepherd": shepherd, "forgotten": forgotten, "replicas": replicas}
    facts["losses"] = [{"ln": x.name, "guid": x.guid, "blob": x.blob, "elsewhere": list(x.elsewhere)} for x in losses]
    if not forgotten:
        session.out.failure(CheloniaError(Kind.CONFLICT, "forget", shepherd, _refusal(len(losses))), **facts)
        return
    session.out.write(f"{shepherd}: forgotten, with {replicas} replicas; this identity is never accepted again")
    session.out.result(**facts)


def _fate(loss: Loss) -> str:
    if not loss.elsewhere:
        return "no other verified copy"
    return f"other verified copies only on what is away, or not yet compared: {', '.join(loss.elsewhere)}"


def _refusal(losses: int) -> str:
    if not losses:
        return "it has got new replicas meanwhile; try again"
    return (
        f"no other verified copy of {counted(losses, 'file')} is within reach; bring it, or the others, back - "
        "or give them up for lost with --accept-loss"
    )
