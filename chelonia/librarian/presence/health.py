"""The presence of Shepherds: heartbeats in memory, and the transitions that a repair leader should write.

A state machine with time passed in: `now` is monotonic, `wall` is the wall clock. Each Librarian hears heartbeats for
itself; only the leader writes (`node/state`). A Librarian that has heard a Shepherd within the lease knows that it is
there; any other believes what is stored. The leader alone, after a whole lease of listening, calls a Shepherd away.

Invariants:
- A Shepherd is called away only after a lease in which this Librarian ran, since its start and since it began to lead.
- One not heard since its start is called away, or given up, only after `start_grace_ms`: all may have been off.
- A Librarian that stood still (SIGSTOP, a paused machine) listens anew for a lease (`listening.py`).
- A message of an older boot changes nothing.
- A Shepherd that one Librarian cannot hear is not away for the others.
- A Shepherd that comes and goes takes nothing new until it has been steady for a while.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

from chelonia.core.cluster.healing import HealingWord
from chelonia.core.cluster.placement import DRAINING, NODE_ALIVE, NODE_MAINTENANCE, NODE_OFFLINE, NODE_WAITING
from chelonia.core.cluster.replicas import Location
from chelonia.core.ids import Dn, Ms, ServiceId, is_uuid
from chelonia.core.ports.librarian import Arriving, Heartbeat, NodeView
from chelonia.core.values import replace
from chelonia.librarian.presence.failure_evidence import FailureEvidence
from chelonia.librarian.presence.identity import older
from chelonia.librarian.presence.listening import Listening

_UNHEARD: Final = Heartbeat(ServiceId(""), 0, 0, 0, 0, 0, accepting=False, domain="", verify_key="")


@dataclass(frozen=True, slots=True)
class StoredNode:
    """A Shepherd in the A-Hash (section `node`); `state` is "" when none was ever written.

    `left_until_ms`: it announced its end, and counts as in maintenance until then. `drain_ms`: time since which its
    copies are to leave, 0 when they are not.
    """

    dn: Dn = Dn("")
    state: str = ""
    since_ms: Ms = Ms(0)
    maintenance_until_ms: Ms = Ms(0)
    domain: str = ""
    verify_key: str = ""
    approved: bool = True
    left_until_ms: Ms = Ms(0)
    drain_ms: Ms = Ms(0)

    @property
    def excused_until_ms(self) -> Ms:
        """End of its absence as announced by an administrator or by itself."""
        return max(self.maintenance_until_ms, self.left_until_ms)


@dataclass(frozen=True, slots=True)
class HeartbeatNews:
    """News of a heartbeat: the Shepherd was away before, has started anew, announces other facts than are stored, or
    has just compared its inventory."""

    returned: bool
    new_boot: bool
    changed: bool
    compared: bool = False


@dataclass(frozen=True, slots=True)
class Transition:
    """A stored state to write: `state` is `alive` or `offline`. `left`: the Shepherd announced its end."""

    shepherd: ServiceId
    state: str
    before: str
    left: bool = False

    def __post_init__(self) -> None:
        assert self.state in (NODE_ALIVE, NODE_OFFLINE), "presence is written, neither plans nor approval"
        assert self.state != self.before, "a transition changes the state"
        assert self.state == NODE_OFFLINE or not self.left, "who has announced its end is not alive"


class RecordedHealth(NamedTuple):
    """Facts in a view of a Shepherd that are not in the table: its store on record, and its trouble."""

    store: str = ""
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class FlapRule:
    """A Shepherd that has come back `returns_max` times within `window_ms` is not steady until the window is over."""

    returns_max: int = 3
    window_ms: int = 600_000

    def __post_init__(self) -> None:
        assert self.returns_max > 0, "one that never came back is steady"


def steady_from(returns: Sequence[Ms], rule: FlapRule) -> Ms:
    """Return when a Shepherd with these returns (ordered times) counts as steady; 0 when it always did."""
    assert all(one <= other for one, other in pairwise(returns)), "returns are in order"
    if len(returns) < rule.returns_max:
        return Ms(0)
    return Ms(returns[-rule.returns_max] + rule.window_ms)


def unsteady(returns: Mapping[ServiceId, Sequence[Ms]], rule: FlapRule, now: Ms) -> frozenset[ServiceId]:
    """Return the Shepherds that come and go: their replicas are replaced as if they were away, and they take none.

    Args:
        returns: ordered times of the returns of every Shepherd.
    Returns: none when more than half of all would be. Then it is the network, or this Librarian, and to distrust all
        would stop all writing.
    """
    found = {shepherd for shepherd, at in returns.items() if now < steady_from(at, rule)}
    return frozenset() if 2 * len(found) > len(returns) else frozenset(found)


@dataclass(slots=True)
class _ShepherdHealth:
    stored: StoredNode
    returns: deque[Ms]
    beat: Heartbeat | None = None
    heard_ms: Ms | None = None
    heard_ran_ms: int = 0

    def take(self, stored: StoredNode) -> None:
        """Take over the stored state; an announced end counts also before it is written."""
        if self.beat is not None and self.beat.leaving:
            stored = replace(stored, left_until_ms=max(stored.left_until_ms, self.stored.left_until_ms))
        self.stored = stored


class HealthTable:
    """The Shepherds as one Librarian sees them. `start_grace_ms`: time that a Shepherd, not heard since this Librarian
    started, gets to start too."""

    def __init__(self, lease_ms: int, started_ms: Ms, rule: FlapRule = FlapRule(), *, start_grace_ms: int = 0) -> None:
        assert start_grace_ms >= 0, "the grace begins with the start"
        self._lease_ms = lease_ms
        self._rule = rule
        self.listening = Listening(lease_ms, started_ms)
        self._grace_until = Ms(started_ms + start_grace_ms)
        self._leading = False
        self.evidence = FailureEvidence(lease_ms)
        self._nodes: dict[ServiceId, _ShepherdHealth] = {}

    # --- events -------------------------------------------------------------------------------------------------------

    def load(self, stored: Mapping[ServiceId, StoredNode]) -> None:
        """Take over the state in the A-Hash; forget Shepherds that are no longer registered."""
        fresh = {}
        for shepherd in sorted(stored):
            node = fresh[shepherd] = self._nodes.get(shepherd) or self._new(stored[shepherd])
            node.take(stored[shepherd])
        self._nodes = fresh

    def note(self, shepherd: ServiceId, **written: Any) -> None:
        """Take over the facts just written of one Shepherd, unless it has been forgotten meanwhile."""
        node = self._nodes.get(shepherd)
        if node is not None:
            node.take(replace(node.stored, **written))

    def _new(self, stored: StoredNode) -> _ShepherdHealth:
        return _ShepherdHealth(stored, deque(maxlen=self._rule.returns_max))

    def lead(self, now: Ms) -> None:
        """Lead repair from now on: listen for a whole lease before calling any Shepherd away."""
        self._leading = True
        self.listening.anew(now)

    def follow(self) -> None:
        """Lead repair no longer."""
        self._leading = False

    def comes_back(self, beat: Heartbeat, now: Ms) -> bool:
        """Return whether the Shepherd of a heartbeat was away, has started anew, or was not heard before."""
        # One that was not heard since this Librarian started counts as present all the same: no ground to believe it.
        return not self.present(beat.shepherd, now) or self.last_beat(beat.shepherd).boot != beat.boot

    def beat(self, beat: Heartbeat, now: Ms) -> HeartbeatNews | None:
        """Note a heartbeat. Returns None when the Shepherd is not approved or the message is of an older boot."""
        node = self._nodes.get(beat.shepherd)
        if node is None or not node.stored.approved:
            return None
        if node.beat is not None and (older(beat, node.beat) or _after_farewell(beat, node.beat)):
            return None
        assert node.heard_ms is None or node.heard_ms <= now, "what is heard now is the newest"
        returned = not self.present(beat.shepherd, now)
        new_boot = node.beat is not None and beat.boot != node.beat.boot
        compared = bool(beat.compared) and (node.beat is None or node.beat.compared != beat.compared)
        was_present = node.stored.state and not (node.beat is not None and node.beat.leaving)
        if was_present and (returned or new_boot):
            node.returns.append(now)
        if beat.leaving:
            self.evidence.left(beat.shepherd, now)
        else:
            self.evidence.heartbeat(beat.shepherd)
        node.beat, node.heard_ms, node.heard_ran_ms = beat, now, self.listening.ran(now)
        announced = (beat.domain, beat.verify_key)
        return HeartbeatNews(returned, new_boot, announced != (node.stored.domain, node.stored.verify_key), compared)

    def excuse(self, shepherd: ServiceId, until_ms: Ms) -> None:
        """Wait for a Shepherd that announced its end until then, also before that is written."""
        node = self._nodes[shepherd]
        node.stored = replace(node.stored, left_until_ms=until_ms)

    # --- queries ------------------------------------------------------------------------------------------------------

    def stored(self, shepherd: ServiceId) -> StoredNode | None:
        """Return the state of a Shepherd in the A-Hash, None when it is not registered."""
        node = self._nodes.get(shepherd)
        return node.stored if node else None

    def shepherds(self) -> tuple[ServiceId, ...]:
        """Return all approved Shepherds, in order."""
        return tuple(shepherd for shepherd, node in self._nodes.items() if node.stored.approved)

    def verify_key(self, shepherd: ServiceId) -> str:
        """Return the key that checks a Shepherd's receipts, "" when none is known or it is not approved."""
        node = self._nodes.get(shepherd)
        if node is None or not node.stored.approved:
            return ""
        return node.beat.verify_key if node.beat else node.stored.verify_key

    def last_beat(self, shepherd: ServiceId) -> Heartbeat:
        """Return the last heartbeat of a Shepherd, an empty one when none was heard."""
        node = self._nodes.get(shepherd)
        return node.beat if node is not None and node.beat is not None else _UNHEARD

    def arriving(self) -> dict[Location, Arriving]:
        """Return the copies whose bytes arrive, by the last heartbeats of approved Shepherds, ordered by Shepherd.
        Malformed blob ids are left out, for they would spoil the call that asks for all blobs."""
        latest = (node.beat for node in self._nodes.values() if node.beat is not None and node.stored.approved)
        copies = ((beat.shepherd, copy) for beat in latest for copy in beat.arriving if is_uuid(copy.blob))
        return {Location(shepherd, copy.reference): copy for shepherd, copy in copies}

    def present(self, shepherd: ServiceId, now: Ms) -> bool:
        """Return whether a Shepherd can be expected to answer."""
        node = self._nodes.get(shepherd)
        if node is None or not node.stored.approved:
            return False
        if self._fresh(shepherd, node, now):
            return True
        if self.evidence.is_away(shepherd, now):
            return False
        return node.stored.state == NODE_ALIVE and not (self._leading and self._overdue(node, now))

    def awaited_ms(self, shepherd: ServiceId) -> Ms:
        """Return the end (monotonic) of the grace for a Shepherd not heard since this Librarian started; 0 once heard.
        It holds however long the Shepherd had been away before: all may have been off."""
        node = self._nodes.get(shepherd)
        return self._grace_until if node is not None and node.heard_ms is None else Ms(0)

    def proven(self, shepherd: ServiceId, now: Ms, generation: int) -> bool:
        """Return whether this Librarian heard a Shepherd within the lease, which has compared its inventory in its
        present boot with the metadata of this generation."""
        node = self._nodes.get(shepherd)
        if node is None or not node.stored.approved or node.beat is None or not self._within_lease(node, now):
            return False
        return node.beat.compared == generation and not self.evidence.is_gone(shepherd)

    def heard_ms(self, shepherd: ServiceId) -> Ms | None:
        """Return when a Shepherd was last heard, None when it never was."""
        node = self._nodes.get(shepherd)
        assert node is None or (node.beat is None) == (node.heard_ms is None), "what was heard was heard at a time"
        return node.heard_ms if node else None

    def word(self, shepherd: ServiceId, now: Ms, margin_ms: int = 0) -> HealingWord:
        """Return this Librarian's own word on a Shepherd, now or, without another heartbeat, in `margin_ms`."""
        node = self._nodes.get(shepherd)
        if node is None or not node.stored.approved:
            return HealingWord.UNKNOWN
        if self.evidence.is_gone(shepherd):
            return HealingWord.GONE
        if self._within_lease(node, Ms(now + margin_ms)):
            return HealingWord.HEARD
        return HealingWord.SILENT if self._overdue(node, now, margin_ms) else HealingWord.UNKNOWN

    def missed(self, now: Ms, margin_ms: int) -> tuple[ServiceId, ...]:
        """Return the Shepherds stored as alive whose lease will have run out in `margin_ms`, ordered by service id. The
        leader asks the other Librarians before it calls such a Shepherd away."""
        assert margin_ms >= 0, "a lease that has run out is missed already"
        return tuple(
            shepherd
            for shepherd, node in self._nodes.items()
            if node.stored.state == NODE_ALIVE
            and not self.evidence.is_away(shepherd, now)
            and self.word(shepherd, now, margin_ms) in (HealingWord.SILENT, HealingWord.GONE)
        )

    def unsure(self, now: Ms) -> tuple[ServiceId, ...]:
        """Return the Shepherds stored as alive, but not known to be heard within the lease, ordered by service id."""
        stored = ((s, node) for s, node in self._nodes.items() if node.stored.state == NODE_ALIVE)
        return tuple(s for s, node in stored if node.stored.approved and not self._fresh(s, node, now))

    def unheard(self, now: Ms) -> tuple[ServiceId, ...]:
        """Return the Shepherds that this Librarian does not hear, ordered by service id; another may hear them."""
        return tuple(s for s in self.shepherds() if self.word(s, now) in (HealingWord.SILENT, HealingWord.GONE))

    def unsteady(self, now: Ms) -> frozenset[ServiceId]:
        """Return the approved Shepherds that come and go."""
        returns = {shepherd: node.returns for shepherd, node in self._nodes.items() if node.stored.approved}
        return unsteady(returns, self._rule, now)

    def steady_from(self, shepherd: ServiceId) -> Ms:
        """Return when a Shepherd counts as steady if it does not come back once more; 0 when unknown."""
        node = self._nodes.get(shepherd)
        return steady_from(node.returns, self._rule) if node else Ms(0)

    def transitions(self, now: Ms) -> tuple[Transition, ...]:
        """Return the states that a leader should write, ordered by service id."""
        out = []
        for shepherd, node in self._nodes.items():
            stored = node.stored.state
            if not node.stored.approved:
                continue
            if self._fresh(shepherd, node, now):
                if stored != NODE_ALIVE:
                    out.append(Transition(shepherd, NODE_ALIVE, stored))
            elif stored == NODE_ALIVE and (self.evidence.is_away(shepherd, now) or self._overdue(node, now)):
                left = node.beat is not None and node.beat.leaving
                out.append(Transition(shepherd, NODE_OFFLINE, stored, left))
        return tuple(out)

    def views(
        self, now: Ms, wall: Ms, recorded: Callable[[ServiceId], RecordedHealth] = lambda _: RecordedHealth()
    ) -> tuple[NodeView, ...]:
        """Return all Shepherds, ordered by service id. `recorded`: further facts of one; its trouble goes first."""
        shaky = self.unsteady(now)
        views = (self._view(shepherd, now, wall, recorded(shepherd)) for shepherd in self._nodes)
        trouble = (
            "it comes and goes: nothing new is given to it until it has been steady for "
            f"{self._rule.window_ms // 1000} s"
        )
        return tuple(
            replace(view, accepting=False, trouble=view.trouble or trouble) if view.shepherd in shaky else view
            for view in views
        )

    def _view(self, shepherd: ServiceId, now: Ms, wall: Ms, recorded: RecordedHealth) -> NodeView:
        node = self._nodes[shepherd]
        stored, beat = node.stored, node.beat if node.stored.approved else None
        here = self.present(shepherd, now)
        just_noticed = stored.approved and not here and stored.state == NODE_ALIVE  # not yet written
        return NodeView(
            shepherd=shepherd,
            dn=stored.dn,
            state=_state(stored, here, wall),
            since_ms=wall if just_noticed else stored.since_ms,
            boot=beat.boot if beat else 0,
            free_bytes=beat.free_bytes if beat else 0,
            total_bytes=beat.total_bytes if beat else 0,
            replicas=beat.replicas if beat else 0,
            accepting=beat is not None and beat.accepting and not stored.drain_ms,
            domain=beat.domain if beat else stored.domain,
            maintenance_until_ms=stored.excused_until_ms,
            store=recorded.store,
            reclaimable_bytes=beat.reclaimable_bytes if beat else 0,
            trouble=recorded.trouble,
            drain=DRAINING if stored.drain_ms else "",
        )

    def _fresh(self, shepherd: ServiceId, node: _ShepherdHealth, now: Ms) -> bool:
        if self.evidence.is_away(shepherd, now):
            return False
        return self._within_lease(node, now) or self.evidence.is_vouched(shepherd, now)

    def _within_lease(self, node: _ShepherdHealth, now: Ms) -> bool:
        return node.heard_ms is not None and now - node.heard_ms < self._lease_ms

    def _overdue(self, node: _ShepherdHealth, now: Ms, margin_ms: int = 0) -> bool:
        silent_ms = self.listening.ran(now) - max(self.listening.since, node.heard_ran_ms) + margin_ms
        starting = node.heard_ms is None and now + margin_ms < self._grace_until
        return silent_ms >= self._lease_ms and not starting and not self.listening.stalled(now)


def _state(stored: StoredNode, here: bool, wall: Ms) -> str:
    if not stored.approved:
        return NODE_WAITING
    if stored.excused_until_ms > wall:
        return NODE_MAINTENANCE
    return NODE_ALIVE if here else NODE_OFFLINE


def _after_farewell(beat: Heartbeat, last: Heartbeat) -> bool:
    """Whether a farewell has overtaken this heartbeat."""
    return last.leaving and beat.boot == last.boot and not beat.leaving
