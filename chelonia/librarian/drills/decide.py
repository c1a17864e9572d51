"""The rules of drills: whether one may begin, on which Shepherd or copy, and how far it is. Pure.

Invariants:
- A drill begins only while all is whole, every Shepherd is present, healing goes on, and the loss can be replaced.
- Every file keeps a verified copy elsewhere; a damaged copy leaves two.
- A drill is called off as soon as something else goes wrong. Every refusal names its cure.

Reasoning: docs/design/016-drills-and-proofs.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from chelonia.core import bounds
from chelonia.core.cluster.drills import Drill, DrillAction, DrillOrder, DrillStage, looked
from chelonia.core.cluster.healing import HealControl
from chelonia.core.cluster.placement import NODE_MAINTENANCE
from chelonia.core.cluster.replicas import ReplicaState
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import REPAIR_OBJECT, BlobId, Guid, Ms, ReferenceId, RequestKey, ServiceId
from chelonia.core.metadata import StoredObject
from chelonia.core.ports.ahash import Element
from chelonia.core.values import replace
from chelonia.librarian.metadata.blobs import facts_of, locations_of
from chelonia.librarian.metadata.elements import drop, put
from chelonia.librarian.repair.plan.decide import NodeHealth
from chelonia.librarian.settings import LibrarianSettings

DRILL: Final = "drill"
"""Section of the repair record that holds the present or last drill."""
MARGIN_MS: Final = 60_000
"""Time for copies, after the repair delay, that a silence of default length includes."""
LEFT_MIN: Final = 2
"""Fewest verified copies that a damaged one leaves, and fewest failure domains that a silent Shepherd leaves."""
NOTICED_MS: Final = 60_000
"""Time within which a damage is reported. Its Shepherd has checked the copy before it confirms that it does no more."""
NAMES_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Holding:
    """A blob with a copy on the Shepherd. `elsewhere`: other Shepherds with verified copies, all proven and steady.
    `sound`: the copy here is verified too. `spare`: all copies are verified, and as many as wanted."""

    blob: BlobId
    reference: ReferenceId
    guid: Guid
    name: str
    size: int
    wanted: int
    elsewhere: int
    sound: bool
    spare: bool


@dataclass(frozen=True, slots=True)
class Scene:
    """The cluster before a drill. `exposed`, `held_back`: files, as healing counts; `running`: a drill's id or ""."""

    nodes: Mapping[ServiceId, NodeHealth]
    control: HealControl
    exposed: int
    held_back: int = 0
    running: str = ""


def duration_ms(order: DrillOrder, settings: LibrarianSettings) -> int:
    """Return how long a Shepherd is to be silent; 0 for other drills."""
    if order.action is not DrillAction.SILENCE:
        return 0
    usual = settings.repair_delay_ms + 2 * settings.lease_ms + MARGIN_MS
    return order.duration_ms or min(usual, bounds.DRILL_MS_MAX)


def order_id(by: str, key: RequestKey) -> str:
    """Return the id of an order and its drill, the same when the same person repeats it; "" without a request key."""
    return hashlib.sha256(f"{by}\0{key}".encode("utf-8", "surrogatepass")).hexdigest()[:32] if key else ""


# --- conditions -------------------------------------------------------------------------------------------------------


def check_order(order: DrillOrder, settings: LibrarianSettings) -> None:
    """Refuse an order with times or counts out of range. Raises: BAD_REQUEST."""
    shortest, silence = 2 * settings.lease_ms, duration_ms(order, settings)
    cause = ""
    if order.action is DrillAction.SILENCE and not shortest <= silence <= bounds.DRILL_MS_MAX:
        cause = (
            f"a silence lasts from {shortest / 1000:g} s (two leases: a shorter one is not noticed) to "
            f"{bounds.DRILL_MS_MAX // 60_000} min"
        )
    elif not 0 < order.within_ms <= bounds.DRILL_MS_MAX:
        cause = f"all has to be whole within 1 to {bounds.DRILL_MS_MAX} ms"
    elif not 0 < order.files_max <= bounds.DRILL_FILES_MAX or order.one_left_max < 0:
        cause = f"a drill exposes 1 to {bounds.DRILL_FILES_MAX} files"
    if cause:
        raise CheloniaError(Kind.BAD_REQUEST, "drill", cause=cause)


def unready(scene: Scene) -> list[str]:
    """Return the reasons why no drill at all may begin now, each with its cure."""
    found = []
    if scene.running:
        found.append(f"drill {scene.running} is running: wait for it, or `chelonia admin drill stop`")
    if scene.control.paused:
        found.append(f"healing is paused by {scene.control.paused_by}: `chelonia admin heal resume`")
    if scene.exposed:
        cure = "wait until `chelonia admin heal status` shows none; where more copies are wanted than can be made, "
        cure += "ask for fewer (`chelonia admin fsck -v` names these files)"
        found.append(f"fewer verified copies than wanted of {scene.exposed} file{'s' * (scene.exposed != 1)}: {cure}")
    if scene.held_back:
        found.append(f"erasures of {scene.held_back} files are held back: see `chelonia admin status`")
    return found + [reason for shepherd, node in scene.nodes.items() if (reason := _unfit(shepherd, node))]


def _unfit(shepherd: ServiceId, node: NodeHealth) -> str:
    """The reason why a Shepherd is not fit for a drill, with its cure; "" when it is."""
    if node.draining:
        return f"{shepherd} is being drained: wait, then `chelonia admin node forget`, or `node undrain`"
    if node.view.state == NODE_MAINTENANCE:
        return f"{shepherd} is in maintenance: `chelonia admin node maintenance {shepherd} --end` when it is back"
    if not node.present:
        return f"{shepherd} is away: bring it back, or `chelonia admin node forget` it"
    if not node.steady:
        return f"{shepherd} comes and goes: find out why, and wait until it has been steady"
    if not node.proven:
        return f"{shepherd} has not compared its disk with the metadata since its start: wait a moment"
    return f"{shepherd}: {node.view.trouble}" if node.view.trouble else ""


def candidates(order: DrillOrder, scene: Scene) -> tuple[ServiceId, ...]:
    """Return the Shepherds to try for a drill, in order: the named one, else all with replicas, fewest first.

    Raises: NOT_FOUND when there is none.
    """
    if order.shepherd:
        if order.shepherd in scene.nodes:
            return (order.shepherd,)
        cause = f"no such Shepherd is approved; known: {', '.join(scene.nodes) or 'none'}"
        raise CheloniaError(Kind.NOT_FOUND, "drill", order.shepherd, cause)
    holders = [(node.view.replicas, shepherd) for shepherd, node in scene.nodes.items() if node.view.replicas]
    if not holders:
        raise CheloniaError(Kind.NOT_FOUND, "drill", cause="no Shepherd holds anything: store some files first")
    return tuple(shepherd for _, shepherd in sorted(holders))


def unsafe(order: DrillOrder, shepherd: ServiceId, holdings: Sequence[Holding], scene: Scene) -> list[str]:
    """Return the reasons why this Shepherd may not have this drill, each with its cure.

    Args:
        holdings: blobs of the Shepherd, at most one more than `order.files_max`.
    """
    if order.action is DrillAction.CORRUPT:
        if spare_copies(holdings, scene, shepherd):
            return []
        return [
            f"{shepherd} holds no copy that can be spared: of a file with at least {LEFT_MIN + 1} verified copies, as "
            "many as it should have, and room for another on a Shepherd that has none: name another Shepherd, or store "
            "such a file (chelonia put --replicas 3)"
        ]
    found = [*_too_exposed(order, shepherd, holdings), *_too_small(shepherd, holdings, scene)]
    assert found or all(item.elsewhere for item in holdings), "no file is left without a verified copy elsewhere"
    assert found or len(holdings) <= order.files_max, "no more is exposed than was allowed"
    return found


def _too_exposed(order: DrillOrder, shepherd: ServiceId, holdings: Sequence[Holding]) -> list[str]:
    if not holdings:
        return [f"{shepherd} holds nothing, nothing would be shown: name another Shepherd"]
    if len(holdings) > order.files_max:
        return [
            f"{shepherd} holds more than {order.files_max} files: name one that holds less, or allow more (--files)"
        ]
    found = []
    none_left = [item for item in holdings if not item.elsewhere]
    one_left = [item for item in holdings if item.elsewhere == 1]
    if none_left:
        cure = "give them more copies (chelonia modify <LN> set states neededReplicas 2), or name another Shepherd"
        found.append(f"{len(none_left)} files could not be read meanwhile, {_names(none_left)}: {cure}")
    if len(one_left) > order.one_left_max:
        cure = f"allow it (--one-left {len(one_left)}), give them more copies, or name another Shepherd"
        found.append(f"{len(one_left)} files would be left with one copy, {_names(one_left)}: {cure}")
    return found


def _too_small(shepherd: ServiceId, holdings: Sequence[Holding], scene: Scene) -> list[str]:
    """Reasons why the other Shepherds cannot take the copies that replace these."""
    others = {s: node.view for s, node in scene.nodes.items() if s != shepherd and node.view.accepting}
    found = []
    needed = max((item.wanted for item in holdings), default=1)
    if len(others) < needed:
        found.append(f"{len(others)} other Shepherds take copies, files want up to {needed}: add one, or free space")
    domains = {view.domain or s for s, view in others.items()}
    if len(domains) < LEFT_MIN:
        found.append(f"the others are in {len(domains)} failure domain: add a Shepherd in another")
    size, free = sum(max(item.size, 0) for item in holdings), sum(view.free_bytes for view in others.values())
    if free < 2 * size:
        found.append(
            f"{size} bytes would be copied, the others have {free} free, half of which may be used: free space"
        )
    return found


def spare_copies(holdings: Iterable[Holding], scene: Scene, shepherd: ServiceId) -> list[Holding]:
    """Return the copies here that a drill may damage, in order of reference. Each is of a user's file with all wanted
    copies, all verified, at least `LEFT_MIN` elsewhere. A Shepherd without a copy has room for another."""
    room = sorted(
        (n.view.free_bytes for s, n in scene.nodes.items() if s != shepherd and n.view.accepting), reverse=True
    )
    spare = [
        item
        for item in holdings
        if item.sound and item.spare and item.elsewhere >= max(LEFT_MIN, item.wanted - 1)
        if 0 < item.size < 2**40 and not item.guid.startswith("sys:")
        if len(room) > item.elsewhere and room[item.elsewhere] >= 2 * item.size
    ]
    return sorted(spare, key=lambda item: item.reference)


def holding(
    blob: StoredObject, reference: ReferenceId, shepherd: ServiceId, nodes: Mapping[ServiceId, NodeHealth]
) -> Holding:
    """Return the facts that a drill needs about a blob with a copy on a Shepherd."""

    def sure(where: ServiceId) -> bool:
        node = nodes.get(where)
        return node is not None and node.present and node.proven and node.steady

    facts, places = facts_of(blob), locations_of(blob)
    good = [loc for loc, state in places if state is ReplicaState.ALIVE and sure(loc.shepherd)]
    elsewhere = {loc.shepherd for loc in good if loc.shepherd != shepherd}
    sound = any(loc.shepherd == shepherd and loc.reference == reference for loc in good)
    return Holding(
        facts.blob, reference, facts.guid, facts.name, facts.size, facts.wanted, len(elsewhere), sound,
        spare=len(good) == len(places) >= facts.wanted,
    )  # fmt: skip


def _names(items: Sequence[Holding]) -> str:
    shown = ", ".join(item.name or item.blob for item in items[:NAMES_SHOWN])
    return shown + (", ..." if len(items) > NAMES_SHOWN else "")


# --- progress ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DrillView:
    """A running drill as the repair leader sees it.

    - `present`: whether its Shepherd is present
    - `answered_ms`: instant when it confirmed that it is not silent, and does nothing more of the drill; 0: not yet
    - `exposed`: number of its files by copies left
    - `touched`: files that were exposed at least for a moment
    - `searching`: repair still goes through the Shepherd's replicas, so that more files may be exposed than counted
    - `others_away`: other Shepherds that are away
    - `state`: state of the damaged copy as stored, None when it is gone
    - `good`: other verified copies of its file, on present, proven and steady Shepherds
    - `wanted`: copies its file should have, 0 when the file is gone
    """

    present: bool
    exposed: Mapping[int, int]
    touched: int = 0
    searching: bool = False
    others_away: tuple[ServiceId, ...] = ()
    state: ReplicaState | None = None
    good: int = 0
    wanted: int = 0
    answered_ms: int = 0


def begin(order: DrillOrder, last: Drill, made: Drill, settings: LibrarianSettings) -> Drill:
    """Return the drill that begins at `made.began_ms`, after the `last` one."""
    until = Ms(made.began_ms + duration_ms(order, settings))
    deadline = Ms(until + order.within_ms)
    assert order.action is not DrillAction.STOP, "a stop begins nothing"
    assert made.began_ms <= until < deadline, "`check_order` has seen it: the harm ends by itself, and is healed then"
    return replace(
        made, number=last.number + 1, action=order.action, stage=DrillStage.RUNNING, by=order.by,
        until_ms=until, deadline_ms=deadline,
    )  # fmt: skip


def progressed(drill: Drill, view: DrillView, now: Ms) -> Drill:
    """Return the drill after a look at it. Where `recalled_ms` is newly set, its Shepherd has to answer again."""
    assert drill.running, "a drill that has ended does not go on"
    after = _looked_at(drill, view, now)
    _check_progress(drill, after)
    return after


def _check_progress(before: Drill, after: Drill) -> None:
    """Assert the invariants of a look, whatever it sees and whichever way the clock goes."""
    for was, now in zip((before.noticed_ms, before.recalled_ms), (after.noticed_ms, after.recalled_ms), strict=True):
        assert was in (0, now), "what has been seen stays seen, when it was"
    assert after.touched >= before.touched, "what was found exposed was exposed"
    assert after.running or after.ended_ms, "what has ended has done so at a time"
    assert after.stage is not DrillStage.HEALED or not after.why, "who called it off is told so"
    assert after.stage is not DrillStage.LATE or after.why, "what is late is told why"


def _looked_at(drill: Drill, view: DrillView, now: Ms) -> Drill:
    looks = looked(drill, view.exposed, now)
    drill = replace(drill, touched=max(drill.touched, view.touched), looks=looks)
    drill = _silence(drill, view, now) if drill.action is DrillAction.SILENCE else _corruption(drill, view, now)
    if drill.running and now > drill.deadline_ms:
        left = sum(view.exposed.values()) or int(bool(drill.blob and drill.noticed_ms))
        missed = "no damage was found" if drill.blob else "the Shepherd is not back yet"
        why = drill.why or (f"{left} files are not whole yet" if left else missed)
        return replace(drill, stage=DrillStage.LATE, ended_ms=now, why=why)
    return drill


def called_off(drill: Drill, why: str, now: Ms) -> Drill:
    """Return the drill called off: its Shepherd is told to end it until it confirms that; then, when all is whole, it
    is over."""
    return replace(drill, recalled_ms=drill.recalled_ms or now, why=drill.why or why)


def _silence(drill: Drill, view: DrillView, now: Ms) -> Drill:
    whole = not (view.exposed or view.searching)
    if not (drill.noticed_ms or view.present):
        drill = replace(drill, noticed_ms=now)
    if drill.touched and whole and not drill.whole_ms:
        drill = replace(drill, whole_ms=now)
    if not drill.recalled_ms:
        if now < drill.until_ms and view.others_away:
            return called_off(drill, f"{', '.join(view.others_away)} went away meanwhile", now)
        # At its end, too: it may have begun late, and its Shepherd may not be missed yet.
        return replace(drill, recalled_ms=now) if drill.whole_ms or now >= drill.until_ms else drill
    if not (view.present and view.answered_ms and whole):
        return drill
    if not drill.noticed_ms:
        drill = replace(drill, why=drill.why or "the Shepherd was never found silent")
    stage = DrillStage.CALLED_OFF if drill.why else DrillStage.HEALED
    return replace(drill, stage=stage, whole_ms=drill.whole_ms or now, ended_ms=now)


def _corruption(drill: Drill, view: DrillView, now: Ms) -> Drill:
    if not drill.noticed_ms and view.state is not ReplicaState.ALIVE:
        drill = replace(drill, noticed_ms=now)
    if not view.wanted:
        return replace(drill, stage=DrillStage.CALLED_OFF, ended_ms=now, why="the file was deleted meanwhile")
    if drill.noticed_ms and view.good >= view.wanted:
        stage = DrillStage.CALLED_OFF if drill.why else DrillStage.HEALED
        return replace(drill, stage=stage, whole_ms=now, ended_ms=now)
    if view.answered_ms and not drill.noticed_ms and now >= view.answered_ms + NOTICED_MS:
        return replace(drill, stage=DrillStage.CALLED_OFF, ended_ms=now)  # it was not done
    return drill


# --- storage ----------------------------------------------------------------------------------------------------------


def stored_drill(record: StoredObject) -> Drill:
    """Return the present or last drill from the repair record."""
    return msgspec.convert(record.sections.get(DRILL, {}), Drill, strict=False)


def storing(drill: Drill) -> list[Element]:
    """Return the change that stores a drill in place of the one before."""
    texts = {name: _text(getattr(drill, name)) for name in Drill.__struct_fields__}
    facts = {name: text for name, text in texts.items() if text}
    assert stored_drill(StoredObject(REPAIR_OBJECT, 1, {DRILL: facts})) == drill, "a drill is read as it was written"
    return [
        put(REPAIR_OBJECT, DRILL, name, text) if text else drop(REPAIR_OBJECT, DRILL, name)
        for name, text in texts.items()
    ]


def _text(value: object) -> str:
    """One fact of a drill as stored; 0 is stored as ""."""
    return str(value.value if isinstance(value, DrillAction | DrillStage) else value or "")
