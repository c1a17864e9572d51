"""`chelonia admin drill`: a safe exercise on the live cluster, watched, with the curve of its recovery.

The repair leader decides whether a drill may begin, watches it and ends it; this command only requests, watches and
draws. When the command is ended, or its host dies, the drill ends all the same.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Final

from chelonia.core.cluster.drills import Drill, DrillAction, DrillOrder, DrillStage, DrillStatus
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ServiceId
from chelonia.core.timing.clock import stamp
from chelonia.core.values import replace
from chelonia.wire.web import curve
from chelonia.wire.web.curve import Curve, CurvePoint
from chelonia_clients.administrator import Administrator
from chelonia_clients.arguments import Arguments, UsageError, parse_count, parse_duration
from chelonia_clients.output import record_facts
from chelonia_clients.progress import Bar
from chelonia_clients.session import Session
from chelonia_clients.verbs.removing import agreed

LOOK_MS: Final = 200
"""First pause between two looks at a drill; it grows with the time of the drill, so that the curve stays small."""
LOOKS: Final = 500
PATIENCE_MS: Final = 30_000
"""Time after a drill's deadline at which this command gives up if no Librarian answers."""
NOT_HEALED: Final = 1
"""Exit code of a drill that was called off, or after which not all was whole in time."""


async def drill(session: Session, arguments: Arguments, words: list[str]) -> None:
    """Run, show or stop a drill (`admin drill ...`)."""
    match words:
        case ["silence" | "corrupt" as action, *shepherd] if len(shepherd) <= 1:
            await _exercise(session, arguments, order_of(arguments, DrillAction(action), "".join(shepherd)))
        case ["status"]:
            status = await session.administrator().drill_status()
            _write_drill(session, status.drill)
            session.out.result(**record_facts(status.drill))
        case ["stop"]:
            status = await session.administrator().drill(DrillOrder(DrillAction.STOP))
            session.out.write(
                f"drill {status.drill.id} is called off; it ends when {status.drill.shepherd} answers again"
            )
            session.out.result(**record_facts(status.drill))
        case _:
            raise UsageError("admin drill takes silence [<id>], corrupt [<id>], status, or stop")


def order_of(arguments: Arguments, action: DrillAction, shepherd: str) -> DrillOrder:
    """Return the order of a command line. Raises: UsageError."""
    order = DrillOrder(action, ServiceId(shepherd))
    if arguments.has("--for"):
        if action is not DrillAction.SILENCE:
            raise UsageError("--for is how long a Shepherd is silent: it goes with `admin drill silence`")
        order = replace(order, duration_ms=parse_duration(arguments.value("--for")))
    if arguments.has("--within"):
        order = replace(order, within_ms=parse_duration(arguments.value("--within"), "--within"))
    files = parse_count(arguments.value("--files", str(order.files_max)), "--files")
    return replace(order, files_max=files, one_left_max=parse_count(arguments.value("--one-left", "0"), "--one-left"))


async def _exercise(session: Session, arguments: Arguments, order: DrillOrder) -> None:
    names = arguments.flags.get("--curve", ())
    for name in names:
        _check_curve(name)
    administrator = session.administrator()
    planned = (await administrator.drill(replace(order, check_only=True))).drill
    session.out.write(_plan(planned))
    if arguments.has("--dry-run"):
        session.out.write("nothing was done: --dry-run")
        session.out.result(**record_facts(planned))
        return
    await _confirm(session, arguments)
    started = await administrator.drill(replace(order, shepherd=planned.shepherd))
    drawn = await _watch(session, administrator, started)
    for name in names:
        text = curve.write(drawn[1], name)
        await asyncio.to_thread(Path(name).write_text, text, "utf-8")
        session.out.write(f"curve written to {name}")
    _report(session, *drawn)


def _check_curve(name: str) -> None:
    """Check before the drill that its curve can be written. Raises: UsageError."""
    if not name.endswith(curve.SUFFIXES):
        raise UsageError(f"--curve takes a file called {', '.join(curve.SUFFIXES)}, not {name!r}")
    path = Path(name)
    where = path if path.exists() else path.parent
    if path.is_dir() or not path.parent.is_dir() or not os.access(where, os.W_OK):
        raise UsageError(f"--curve takes a file that can be written, which {name!r} cannot: is its directory there?")


def _plan(planned: Drill) -> str:
    if planned.action is DrillAction.CORRUPT:
        return (
            f"one byte of the copy of {planned.name} on {planned.shepherd} will be changed; it has others, all verified"
        )
    seconds = (planned.until_ms - planned.began_ms) / 1000
    return (
        f"{planned.shepherd} will answer nobody for at most {seconds:g} s; it holds copies of {planned.files} files, "
        "all of which can be read elsewhere"
    )


async def _confirm(session: Session, arguments: Arguments) -> None:
    """Confirm at the terminal. Raises: UsageError without a terminal, CANCELLED for a no."""
    if arguments.has("--yes"):
        return
    if session.out.as_json or not sys.stdin.isatty():
        raise UsageError("a drill does harm that heals; --yes begins it without a question")
    if not await agreed("Begin?"):
        raise CheloniaError(Kind.CANCELLED, "drill", cause="nothing was done")


async def _watch(session: Session, administrator: Administrator, status: DrillStatus) -> tuple[Drill, Curve]:
    """Watch until it is over. Raises: the Librarians' error, `PATIENCE_MS` after the drill has to be over."""
    points = [CurvePoint(0, {})]
    give_up_ms = administrator.clock.monotonic_ms() + status.drill.deadline_ms - status.drill.began_ms + PATIENCE_MS
    with Bar("whole", status.drill.files, beside=session.bars, unit="files") as bar:
        shown = 0
        while True:
            at = max(status.now_ms - status.drill.began_ms, points[-1].ms)
            points.append(CurvePoint(at, {each.live: each.blobs for each in status.exposed}))
            whole = status.drill.files - sum(points[-1].left.values())
            bar.advance(whole - shown)
            shown = whole
            if not status.drill.running:
                return status.drill, curve.of_drill(status.drill, points)
            await administrator.clock.sleep(max(LOOK_MS, at // LOOKS))
            try:
                status = await administrator.drill_status()
            except CheloniaError:
                if administrator.clock.monotonic_ms() > give_up_ms:
                    raise


def _report(session: Session, ended: Drill, drawn: Curve) -> None:
    out = session.out
    out.write(*curve.as_text(drawn))
    _write_drill(session, ended)
    out.result(**record_facts(ended), curve=curve.facts(drawn))
    if ended.stage is not DrillStage.HEALED:
        out.exit_code = out.exit_code or NOT_HEALED


def _write_drill(session: Session, ended: Drill) -> None:
    if ended.stage is DrillStage.NONE:
        session.out.write("there has been no drill")
        return
    why = f" ({ended.why})" if ended.why else ""
    summary = f"{ended.action.value} of {ended.shepherd}, {ended.files} files, by {ended.by}"
    session.out.write(f"drill {ended.id}: {ended.stage.value}{why}: {summary}")
    noticed, whole, over = (_after(ended, at) for at in (ended.noticed_ms, ended.whole_ms, ended.ended_ms))
    session.out.write(
        f"began {stamp(ended.began_ms)}; noticed after {noticed}, {ended.touched} files exposed, whole after {whole}, "
        f"over after {over}"
    )


def _after(ended: Drill, at_ms: int) -> str:
    return f"{(at_ms - ended.began_ms) / 1000:.1f} s" if at_ms else "-"
