"""Drills, exercises on a live cluster: their orders and their status, as two ports pass them.

A Shepherd is silent for a while, or one spare copy is damaged; the repair leader then watches until all is whole.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from chelonia.core import bounds
from chelonia.core.cluster.healing import Exposed
from chelonia.core.cluster.position import Position
from chelonia.core.ids import BlobId, Ms, ReferenceId, ServiceId


class DrillAction(enum.Enum):
    """The action that an administrator orders."""

    SILENCE = "silence"
    """One Shepherd answers nobody and sends no heartbeats for a while."""
    CORRUPT = "corrupt"
    """One byte of one spare copy is changed on its disk."""
    STOP = "stop"
    """The running drill is called off."""


class DrillStage(enum.Enum):
    """The stage of a drill."""

    NONE = "none"
    """There has been no drill."""
    RUNNING = "running"
    HEALED = "healed"
    """All was whole again in time."""
    LATE = "late"
    """All was not whole again in time; healing goes on by itself."""
    CALLED_OFF = "called off"
    """Ended before its purpose was reached: a person ended it, or it was no longer safe."""


class DrillOrder(msgspec.Struct, frozen=True):
    """An administrator's order to the Librarians.

    Args:
        shepherd: the Shepherd to exercise; "": the repair leader chooses.
        duration_ms: of a silence; 0: until lost copies would be replaced, and a minute more.
        within_ms: from the end of the harm to the time when all must be whole again.
        files_max: files that may be exposed.
        one_left_max: of these, files that may be left with one verified copy. None is ever left without.
        check_only: begin nothing, only say whether a drill may begin.
        by: DN of the administrator, filled in by the Librarian that he calls.
    """

    action: DrillAction
    shepherd: ServiceId = ServiceId("")
    duration_ms: int = 0
    within_ms: int = 300_000
    files_max: int = 1_000
    one_left_max: int = 0
    check_only: bool = False
    by: str = ""


class Drill(msgspec.Struct, frozen=True):
    """The stored record of one drill. Instants are of the repair leader's wall clock, 0 before they occur.

    Args:
        id: its id, "" before the first drill; number: drills so far, this one included.
        reference, blob, name: the damaged copy, and its file's name when it was made.
        files: blobs with a copy that nobody can reach meanwhile.
        until_ms: end of the silence by itself; deadline_ms: time by which all has to be whole.
        looks: `<ms since it began>:<left>=<files>,...` of each look that differed from the one before,
            separated by blanks. It counts files with fewer copies than wanted, by copies left; thinned to some tens.
        touched: blobs that the repair leader found exposed.
        noticed_ms: it noticed the harm; whole_ms: all was whole.
        recalled_ms: it let the Shepherd answer again; ended_ms: nothing of the drill is left.
        why: reason for calling it off, or the part that is not whole.
    """

    id: str = ""
    number: int = 0
    action: DrillAction = DrillAction.SILENCE
    stage: DrillStage = DrillStage.NONE
    shepherd: ServiceId = ServiceId("")
    reference: ReferenceId = ReferenceId("")
    blob: BlobId = BlobId("")
    name: str = ""
    by: str = ""
    files: int = 0
    began_ms: Ms = Ms(0)
    until_ms: Ms = Ms(0)
    deadline_ms: Ms = Ms(0)
    noticed_ms: Ms = Ms(0)
    touched: int = 0
    whole_ms: Ms = Ms(0)
    recalled_ms: Ms = Ms(0)
    ended_ms: Ms = Ms(0)
    why: str = ""
    looks: str = ""

    @property
    def running(self) -> bool:
        """Whether the drill has not ended."""
        return self.stage is DrillStage.RUNNING


assert bounds.DRILL_LOOKS_MAX % 2 == 0, "of so many the last is among every second"


def looked(drill: Drill, exposed: Mapping[int, int], now: Ms) -> str:
    """Return the looks at a drill, with one more if it differs from the last."""
    looks = drill.looks.split()
    left = ",".join(f"{live}={files}" for live, files in sorted(exposed.items()) if files)
    if left == (looks[-1].partition(":")[2] if looks else ""):
        return drill.looks
    if len(looks) >= bounds.DRILL_LOOKS_MAX:
        looks = looks[1::2]
    look = f"{now - drill.began_ms}:{left}"
    assert _look_in(look)[1] == {live: files for live, files in exposed.items() if files}, "a look is read as it was"
    return " ".join([*looks, look])


def looks_at(drill: Drill) -> tuple[tuple[int, dict[int, int]], ...]:
    """Return of each look the milliseconds since the drill began, and the files by copies left."""
    return tuple(_look_in(look) for look in drill.looks.split())


def _look_in(look: str) -> tuple[int, dict[int, int]]:
    ms, _, left = look.partition(":")
    pairs = [each.split("=") for each in left.split(",") if each]
    return int(ms), {int(live): int(files) for live, files in pairs}


class DrillStatus(msgspec.Struct, frozen=True):
    """The present or last drill. `exposed`: its files with fewer verified copies than wanted, by copies left; `now_ms`:
    present time of the clock of its instants."""

    drill: Drill
    now_ms: Ms = Ms(0)
    exposed: tuple[Exposed, ...] = ()


class ShepherdDrill(msgspec.Struct, frozen=True):
    """The repair leader's order to one Shepherd, which obeys it only with the authority that an erasure needs.

    `duration_ms`: of a silence; the Shepherd ends it by itself. `reference`, `blob`: the copy to damage. `ends_ms`: the
    drill's deadline, when nobody watches any more; 0: older software does not say.
    """

    action: DrillAction
    drill: str
    position: Position
    duration_ms: int = 0
    reference: ReferenceId = ReferenceId("")
    blob: BlobId = BlobId("")
    ends_ms: Ms = Ms(0)
