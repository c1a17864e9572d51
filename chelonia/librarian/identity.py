"""Whether a heartbeat is that of the Shepherd it names: by its store, and by its boot. Pure; time is passed in.

Each Shepherd has one store on record. The first one heard is recorded; another is refused until an administrator, on
the Shepherd's own node, says that it takes the first one's place. While a Shepherd is heard, nobody else speaks in its
name: another process with another boot is its restart only if its disk remembers the boot that is heard.
"""

from __future__ import annotations

from dataclasses import dataclass

from chelonia.core.ids import Ms, ServiceId
from chelonia.core.librarian import REFUSED_STORE, REFUSED_TWIN, Heartbeat


@dataclass(frozen=True, slots=True)
class Judgement:
    """What to do with a heartbeat.

    `refused`: a word of `HeartbeatAnswer.refused`, with its `cause`; `alarm`: a person should know; `record`: write its
    store as this Shepherd's; `replaced`: the store on record until now, when that is another.
    """

    refused: str = ""
    cause: str = ""
    alarm: bool = False
    record: bool = False
    replaced: str = ""


def judge(beat: Heartbeat, recorded: str, living: Heartbeat | None, *, settled: bool) -> Judgement:
    """Decide about a heartbeat.

    Args:
        recorded: the store on record, "" when none is.
        living: the last heartbeat taken, if within the lease, else None.
        settled: its boot has been heard for a lease or longer, so an older one is no message that was late.
    """
    if living is not None and beat.boot != living.boot and beat.store:
        twin = _twin(beat, living, settled)
        if twin is not None:
            return twin
    if not beat.store or beat.store == recorded:
        return Judgement()
    if not recorded:
        return Judgement(record=True)
    if beat.replaces:
        return Judgement(record=True, replaced=recorded)
    cause = f"the cluster knows {beat.shepherd} with store {recorded}, this is store {beat.store}"
    return Judgement(REFUSED_STORE, cause, alarm=True)


def _twin(beat: Heartbeat, living: Heartbeat, settled: bool) -> Judgement | None:
    if beat.boot < living.boot:
        cause = f"a later start of {beat.shepherd} is alive (boot {living.boot}, this is boot {beat.boot})"
        return Judgement(REFUSED_TWIN, cause, alarm=settled or beat.boot not in living.boots)
    if living.boot in beat.boots and living.store in ("", beat.store):
        return None
    cause = (
        f"another process is alive as {beat.shepherd} (boot {living.boot}, store {living.store or 'not known'}; "
        f"this is boot {beat.boot}, store {beat.store}); stop one of them, or wait until the other is missed"
    )
    return Judgement(REFUSED_TWIN, cause, alarm=True)


ALARM_KEEP_MS = 600_000
"""How long a second process of the same name is told after it was last heard: longer than anybody takes to look."""


@dataclass(slots=True)
class _Voice:
    beat: Heartbeat
    since: Ms
    last: Ms


class Voices:
    """Who speaks for each Shepherd, as one Librarian hears it. `now` is monotonic."""

    def __init__(self, lease_ms: int) -> None:
        self._lease_ms = lease_ms
        self._stores: dict[ServiceId, str] = {}
        self._voices: dict[ServiceId, _Voice] = {}
        self._alarms: dict[ServiceId, tuple[str, Ms]] = {}
        self._troubles: dict[ServiceId, str] = {}

    def record(self, shepherd: ServiceId, store: str) -> None:
        """This is the store on record."""
        self._stores[shepherd] = store

    def store(self, shepherd: ServiceId) -> str:
        """The store on record, "" when none is."""
        return self._stores.get(shepherd, "")

    def judge(self, beat: Heartbeat, now: Ms) -> Judgement:
        """Decide about a heartbeat."""
        voice = self._voices.get(beat.shepherd)
        living = voice.beat if voice is not None and now - voice.last < self._lease_ms else None
        settled = voice is not None and now - voice.since >= self._lease_ms
        return judge(beat, self.store(beat.shepherd), living, settled=settled)

    def taken(self, beat: Heartbeat, now: Ms) -> bool:
        """It is the Shepherd's own; returns whether its trouble, or the end of it, is news."""
        voice = self._voices.get(beat.shepherd)
        since = voice.since if voice is not None and voice.beat.boot == beat.boot else now
        self._voices[beat.shepherd] = _Voice(beat, since, now)
        before = self._troubles.pop(beat.shepherd, "")
        if beat.trouble:
            self._troubles[beat.shepherd] = beat.trouble
        return before != beat.trouble

    def refused(self, beat: Heartbeat, judged: Judgement, now: Ms) -> bool:
        """It is not; returns whether a person should be told now."""
        if not judged.alarm:
            return False
        known = self.trouble(beat.shepherd, now)
        self._alarms[beat.shepherd] = (judged.cause, Ms(now + ALARM_KEEP_MS))
        return known != judged.cause

    def trouble(self, shepherd: ServiceId, now: Ms) -> str:
        """What a person should know of a Shepherd, "" when there is nothing."""
        text, until = self._alarms.get(shepherd, ("", Ms(0)))
        return text if now < until else self._troubles.get(shepherd, "")
