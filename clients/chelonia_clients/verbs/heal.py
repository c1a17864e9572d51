"""`chelonia admin heal`: how far healing is and when all will be whole; pausing, resuming and limiting it.

The figures are the repair leader's, whichever Librarian answers.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from chelonia.core.cluster.healing import (
    KEEP,
    HealAction,
    HealControl,
    HealOrder,
    HealStatus,
    HeldDrain,
    doubt,
    forecast,
    is_whole,
    nothing_to_mend,
)
from chelonia.core.timing.clock import stamp
from chelonia.wire.snapshots import parse_snapshot_name
from chelonia_clients.arguments import Arguments, UsageError, parse_count, parse_rate
from chelonia_clients.output import counted, human_size, record_facts, table
from chelonia_clients.progress import Bar
from chelonia_clients.session import Session

WATCH_S: Final = 0.5
"""Pause between two looks of `--watch`."""


async def heal(session: Session, arguments: Arguments, words: list[str]) -> None:
    """Print the status of healing, pause, resume or limit it (`admin heal ...`)."""
    match words:
        case ["status"] | []:
            await _status(session, watch=arguments.has("--watch"))
        case ["pause" | "resume" as action]:
            _write_status(session, await session.administrator().heal_order(HealOrder(HealAction(action))))
        case ["rate", *rate] if len(rate) <= 1:
            await _rate(session, arguments, rate)
        case _:
            raise UsageError("admin heal takes status, pause, resume, or rate [<bytes/s>] [--copies N]")


async def _rate(session: Session, arguments: Arguments, rate: list[str]) -> None:
    if not rate and not arguments.has("--copies"):
        raise UsageError("admin heal rate takes a rate like 50M (bytes per second; 0: no limit), --copies N, or both")
    copies = parse_count(arguments.value("--copies"), "--copies") if arguments.value("--copies") else KEEP
    order = HealOrder(HealAction.RATE, parse_rate(rate[0]) if rate else KEEP, copies)
    _write_status(session, await session.administrator().heal_order(order))


def _write_status(session: Session, status: HealStatus) -> None:
    session.out.write(_state(status))
    session.out.write(f"limits: {limits(status.control)}")
    session.out.result(**facts(status))


def limits(control: HealControl) -> str:
    """Return the limits of repair copies for one Shepherd, in words."""
    rate = f"{human_size(control.bytes_per_s)}/s" if control.bytes_per_s else "no limit on bytes/s"
    return f"{rate}, {control.copies_per_node} copies at once, for each Shepherd"


def _state(status: HealStatus) -> str:
    control = status.control
    if control.paused:
        return (
            f"healing is PAUSED since {stamp(control.paused_ms)} by {control.paused_by}; nothing is copied or trimmed"
        )
    return (
        f"healing WAITS: {status.waits_for}"
        if status.waits_for
        else "all is whole, healing is not paused"
        if is_whole(status)
        else "healing is not paused; nothing can be copied now"
        if status.at_rest
        else "healing goes on"
    )


async def _status(session: Session, *, watch: bool) -> None:
    status = await session.administrator().heal_status()
    if watch:
        status = await _watch(session, status)
    session.out.write(*lines(status))
    session.out.result(**facts(status))


async def _watch(session: Session, status: HealStatus) -> HealStatus:
    """Watch until the leader reports that nothing is exposed, or healing is paused."""
    shown, reported = 0, ""
    with Bar("copies", beside=session.bars, unit="copies") as bar:
        while not (nothing_to_mend(status) or status.control.paused):
            why = _held_up(status)
            if why and why != reported:
                session.out.notify(f"{why}; waiting")
            reported = why
            bar.expect(status.copies_done + status.copies_to_go)
            bar.advance(status.copies_done - shown)
            shown = status.copies_done
            await asyncio.sleep(WATCH_S)
            status = await session.administrator().heal_status()
    return status


def _held_up(status: HealStatus) -> str:
    """Why the watch may take long, in words; "" while copies are made."""
    if why := doubt(status):
        return f"not known whether all is whole: {why}"
    return f"nothing can be copied now: {_waiting(status)}" if status.at_rest else ""


def _waiting(status: HealStatus) -> str:
    return f"{status.delayed} for a Shepherd expected back, {status.stuck} for a place or a source"


def lines(status: HealStatus) -> list[str]:
    """Return the status, for people."""
    deaf = " (which does not answer)" if status.leader and not status.is_leader else ""
    out = [
        _state(status),
        f"repair is led by   {status.leader or 'nobody'}{deaf}",
        f"limits             {limits(status.control)}",
        f"too few copies     {_exposed(status)}",
    ]
    out += dangers(status)
    if status.delayed or status.stuck:
        out.append(f"of these wait      {_waiting(status)}")
    out += [
        f"to go              {status.copies_to_go} copies, {human_size(status.bytes_to_go)}",
        f"done               {status.copies_done} copies, {human_size(status.bytes_done)}; {status.copying} under way",
        f"rate               {human_size(status.bytes_per_s)}/s, {status.copies_per_min} copies/min",
        "all whole          yes" if is_whole(status) else f"all whole in       {forecast(status)}",
    ]
    if status.nodes:
        loads = [(load.shepherd, str(load.copies), str(load.copies_max)) for load in status.nodes]
        out += ["", *table([("SHEPHERD", "COPIES", "AT MOST"), *loads], frozenset({1, 2}))]
    if status.drains:
        out += ["", *(f"{drain.shepherd}: {held_drain(drain)}" for drain in status.drains)]
    if status.queue:
        rows = [("NEXT", "LEFT", "SIZE", "SINCE")]
        rows += [
            (found.name, f"{found.live}/{found.wanted}", human_size(found.size), stamp(found.created_ms))
            for found in status.queue
        ]
        out += ["", *table(rows, frozenset({2}))]
    return out


def dangers(status: HealStatus) -> list[str]:
    """Return lines about files that nobody can read: lost ones with their names, and those only unreachable."""
    out = []
    if status.lost:
        names = ", ".join(found.name or found.blob for found in status.lost_named)
        more = " and others" if status.lost > len(status.lost_named) else ""
        out.append(f"LOST               {status.lost} without a verified copy anywhere: {names}{more}")
        out.append("                   what to do: docs/operate/what-was-lost.md; all of them: `chelonia admin fsck`")
    if status.unreachable:
        out.append(f"unreachable now    {status.unreachable}, not lost: all Shepherds with a good copy are away")
    return out


def held_drain(drain: HeldDrain) -> str:
    """Return what keeps a drain from its end, and the cure, in words."""
    names = [f"{found.name or found.blob} (wants {found.wanted})" for found in drain.examples if found.live]
    lost = [str(found.name or found.blob) for found in drain.examples if not found.live]
    such = ": " if drain.blobs == len(drain.examples) else ", such as "
    text = f"{counted(drain.blobs, 'file')} cannot leave it"
    if names or not lost:
        text += f", for more copies are wanted than other Shepherds with room can take{such if names else ''}"
        text += f"{', '.join(names)}; add a Shepherd, or ask for fewer copies: "
        text += "`chelonia modify <LN> set states neededReplicas <n>`"
    if lost:
        text += f"; no good copy is left anywhere of {', '.join(lost)}: delete it, or stop the Shepherd and forget it"
    if any(parse_snapshot_name(found.name) for found in drain.examples):
        text += " (snapshots of the namespace: `snapshot_copies` of the Librarians, for what is written from then on)"
    return text


def _exposed(status: HealStatus) -> str:
    text = ", ".join(f"{found.blobs} with {found.live} left" for found in status.exposed)
    if doubt(status):
        return f"{text}, that is known of" if text else "not known"
    return text or "none"


def facts(status: HealStatus) -> dict[str, Any]:
    """Return the status, for programs."""
    fields = record_facts(status)
    control = fields.pop("control")
    return {
        **fields,
        "paused_by": control["paused_by"],
        "paused_ms": control["paused_ms"],
        "bytes_per_s_max": control["bytes_per_s"],
        "copies_per_node_max": control["copies_per_node"],
        "whole": is_whole(status),
        "exposed": {str(found.live): found.blobs for found in status.exposed},
    }


def held_facts(drain: HeldDrain) -> dict[str, Any]:
    """Return what keeps a drain from its end, for programs."""
    return {"blobs": drain.blobs, "examples": [record_facts(found) for found in drain.examples]}
