"""The identity behind a heartbeat: whether it comes from the Shepherd it names. Pure; time is passed in.

Each Shepherd has one store on record, the first one heard. Another is refused until an administrator, on the Shepherd's
own node, orders that it takes the first one's place.

- While a Shepherd is heard, nobody else speaks in its name. A process with another boot is its restart only if its disk
  remembers the boot that is heard.
- A replaced store comes back only by a later start of its own, for a message of an earlier one may be late.
- One that seems older than the store on record has to insist on its place for a lease.
- No two stores have a boot in common, for boots tell starts apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from chelonia.core import bounds
from chelonia.core.ids import SHEPHERD_PREFIX, Ms, ServiceId, shepherd_object
from chelonia.core.metadata import StoredObject
from chelonia.core.ports.ahash import Element
from chelonia.core.ports.librarian import REFUSED_STORE, REFUSED_TWIN, Heartbeat
from chelonia.librarian.metadata.elements import as_read, drop, put

BURNT: Final = (
    "this Shepherd was declared lost for good (admin node forget) and is never accepted again under this name; "
    "to use the machine again, start it with an empty disk and another id"
)
"""Reason for refusing a forgotten identity."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """The stores on record of a Shepherd: the present one ("" for none) with its boot when recorded. `replaced`: former
    ones, newest first, with their last known boots."""

    store: str = ""
    boot: int = 0
    replaced: Mapping[str, int] = field(default_factory=dict)


def read(shepherd: StoredObject) -> Recorded:
    """Return the stores on record in a Shepherd's object."""
    assert shepherd.id.startswith(SHEPHERD_PREFIX), "a Shepherd was read"
    words = shepherd.value("node", "replaced").split()
    replaced = {store: int(boot) for store, boot in zip(words[::2], words[1::2], strict=True)}
    return Recorded(shepherd.value("node", "store"), int(shepherd.value("node", "store_boot", "0")), replaced)


def recording(beat: Heartbeat, before: Recorded, last_boot: int) -> tuple[Recorded, list[Element]]:
    """Record the store of a heartbeat, on condition that the record is as `before`; its reports begin anew.
    `last_boot`: the latest known boot of the store that it replaces."""
    assert beat.store, "what is recorded is a store"
    assert beat.store != before.store, "the store on record needs no recording"
    replaced = {store: boot for store, boot in before.replaced.items() if store != beat.store}
    if before.store:
        replaced = {before.store: max(before.boot, last_boot), **replaced}
    after = Recorded(beat.store, beat.boot, dict(islice(replaced.items(), bounds.STORES_REPLACED_KEPT)))
    obj = shepherd_object(beat.shepherd)
    elements = [
        put(obj, "node", "store", after.store, as_read("node", "store", before.store)),
        put(obj, "node", "store_boot", str(after.boot)),
    ]
    if before.store:
        as_it_was = as_read("node", "replaced", _text(before.replaced))
        elements += [drop(obj, "report", name) for name in ("boot", "number", "obeyed")]
        elements.append(put(obj, "node", "replaced", _text(after.replaced), as_it_was))
    return after, elements


def _text(replaced: Mapping[str, int]) -> str:
    return " ".join(f"{store} {boot}" for store, boot in replaced.items())


@dataclass(frozen=True, slots=True)
class Judgement:
    """The decision on a heartbeat.

    `refused`: a value of `HeartbeatAnswer.refused`, with its `cause`; `alarm`: a person should know. `record`: record
    its store for this Shepherd, if the record is still the one that was judged by.
    """

    refused: str = ""
    cause: str = ""
    alarm: bool = False
    record: bool = False

    def __post_init__(self) -> None:
        assert bool(self.refused) == bool(self.cause), "a refusal says why"
        assert self.refused or not self.alarm, "what is taken alarms nobody"
        assert not (self.refused and self.record), "what is refused is not recorded"


def judge(
    beat: Heartbeat, recorded: Recorded, living: Heartbeat | None, *, settled: bool, insists: bool = False
) -> Judgement:
    """Decide about a heartbeat.

    Args:
        recorded: the stores on record.
        living: the last heartbeat taken, if within the lease, else None.
        settled: its boot has been heard for a lease or longer, so an older one is no message that was late.
        insists: this start has reported for a lease, without a lease of silence, that its store replaces another, and
            nobody else was taken meanwhile.
    """
    other = living is not None and (beat.boot != living.boot or living.store not in ("", beat.store))
    if living is not None and other and beat.store:
        twin = _twin(beat, living, settled)
        if twin is not None:
            return twin
    if not beat.store or beat.store == recorded.store:
        return Judgement()
    if not recorded.store:
        return Judgement(record=True)
    if not beat.replaces:
        cause = f"the cluster knows {beat.shepherd} with store {recorded.store}, this is store {beat.store}"
        return Judgement(REFUSED_STORE, cause, alarm=True)
    if beat.boot <= recorded.replaced.get(beat.store, -1):
        cause = (
            f"store {recorded.store} has taken the place of store {beat.store} since this start (boot {beat.boot}); "
            "if its disk was put back, start it again, with the clock right"
        )
        return Judgement(REFUSED_STORE, cause)
    if beat.boot in (recorded.boot, *recorded.replaced.values()):
        cause = (
            f"another store of {beat.shepherd} has had boot {beat.boot}; unless this message was late, start it again"
        )
        return Judgement(REFUSED_TWIN, cause)
    if beat.boot < recorded.boot and not insists:
        cause = (
            f"store {recorded.store} was recorded with a later start (boot {recorded.boot}, this is boot {beat.boot}); "
            "unless this message was late, it is taken when it has been said for a lease"
        )
        return Judgement(REFUSED_TWIN, cause)
    return Judgement(record=True)


def _twin(beat: Heartbeat, living: Heartbeat, settled: bool) -> Judgement | None:
    if beat.boot < living.boot:
        cause = (
            f"a later start of {beat.shepherd} is alive (boot {living.boot}, this is boot {beat.boot}): "
            "if two processes run as it, stop one"
        )
        return Judgement(REFUSED_TWIN, cause, alarm=settled or beat.boot not in living.boots)
    if living.boot in beat.boots and living.store in ("", beat.store):
        return None
    cause = (
        f"another process is alive as {beat.shepherd} (boot {living.boot}, store {living.store or 'not known'}; "
        f"this is boot {beat.boot}, store {beat.store}); stop one of them, or wait until the other is missed"
    )
    return Judgement(REFUSED_TWIN, cause, alarm=True)


def older(beat: Heartbeat, last: Heartbeat) -> bool:
    """Return whether a message is of an earlier start: of the same store, as only its boots compare, or naming none."""
    return beat.boot < last.boot and beat.store in ("", last.store)


ALARM_KEEP_MS = 600_000
"""Time for which views show a twin, or another store, after it was last heard: longer than anybody takes to look. The
Shepherd's own new start ends it."""


_NOTHING: Final = Recorded()


@dataclass(slots=True)
class _Voice:
    beat: Heartbeat
    since: Ms
    last: Ms


class Voices:
    """The process that speaks for each Shepherd, as one Librarian hears it. `now` is monotonic."""

    def __init__(self, lease_ms: int) -> None:
        assert lease_ms > 0, "a voice is heard for a while"
        self._lease_ms = lease_ms
        self._recorded: dict[ServiceId, Recorded] = {}
        self._voices: dict[ServiceId, _Voice] = {}
        self._claims: dict[ServiceId, tuple[str, int, Ms, Ms]] = {}
        self._newest: dict[ServiceId, tuple[str, int]] = {}
        self._alarms: dict[ServiceId, tuple[str, Ms]] = {}
        self._troubles: dict[ServiceId, str] = {}

    def record(self, shepherd: ServiceId, recorded: Recorded) -> None:
        """Note the stores on record; a claim to the place of the former store does not hold for a new one."""
        if recorded.store != self.recorded(shepherd).store:
            self._claims.pop(shepherd, None)
        self._recorded[shepherd] = recorded

    def recorded(self, shepherd: ServiceId) -> Recorded:
        return self._recorded.get(shepherd, _NOTHING)

    def boot(self, shepherd: ServiceId, store: str) -> int:
        """Return the last boot of this store that was taken here, 0 for none."""
        voice = self._voices.get(shepherd)
        return voice.beat.boot if voice is not None and voice.beat.store == store else 0

    def arrives(self, beat: Heartbeat) -> None:
        """Note the start that speaks, before anything else is awaited."""
        self._newest[beat.shepherd] = beat.store, beat.boot

    def is_overtaken(self, beat: Heartbeat) -> bool:
        """Return whether another start has spoken since a heartbeat came: this one may be over."""
        return self._newest.get(beat.shepherd, (beat.store, beat.boot)) != (beat.store, beat.boot)

    def judge(self, beat: Heartbeat, now: Ms) -> Judgement:
        """Decide about a heartbeat."""
        voice = self._voices.get(beat.shepherd)
        living = voice.beat if voice is not None and now - voice.last < self._lease_ms else None
        settled = voice is not None and now - voice.since >= self._lease_ms
        insists = beat.replaces and now - self._claimed_since(beat, now) >= self._lease_ms
        return judge(beat, self.recorded(beat.shepherd), living, settled=settled, insists=insists)

    def _claimed_since(self, beat: Heartbeat, now: Ms) -> Ms:
        """The time since which this start claims, without a lease of silence, that its store replaces another."""
        store, boot, since, last = self._claims.get(beat.shepherd, ("", 0, now, now))
        if (store, boot) != (beat.store, beat.boot) or now - last > self._lease_ms:
            since = now
        self._claims[beat.shepherd] = (beat.store, beat.boot, since, now)
        return since

    def accept(self, beat: Heartbeat, now: Ms) -> bool:
        """Take a heartbeat as the Shepherd's own; returns whether its trouble, or the end of it, is news."""
        voice = self._voices.get(beat.shepherd)
        if voice is not None and older(beat, voice.beat):
            return False
        since = voice.since if voice is not None and voice.beat.boot == beat.boot else now
        if since == now:  # a new start settles earlier alarms; a process that is still there is refused again
            self._alarms.pop(beat.shepherd, None)
        self._claims.pop(beat.shepherd, None)
        self._voices[beat.shepherd] = _Voice(beat, since, now)
        before = self._troubles.pop(beat.shepherd, "")
        if beat.trouble:
            self._troubles[beat.shepherd] = beat.trouble
        return before != beat.trouble

    def refused(self, beat: Heartbeat, judged: Judgement, now: Ms) -> bool:
        """Refuse a heartbeat; returns whether to notify a person now."""
        assert judged.refused, "the caller takes what was not refused"
        if not judged.alarm:
            return False
        before = self.trouble(beat.shepherd, now)
        self._alarms[beat.shepherd] = (judged.cause, Ms(now + ALARM_KEEP_MS))
        return before != judged.cause

    def trouble(self, shepherd: ServiceId, now: Ms) -> str:
        """Return the trouble of a Shepherd that a person should know, "" for none."""
        text, until = self._alarms.get(shepherd, ("", Ms(0)))
        return text if now < until else self._troubles.get(shepherd, "")
