"""Which Shepherds are there: heartbeats in memory, and the transitions a repair leader should write.

A state machine with time passed in: `now` is monotonic, `wall` is the wall clock. Each Librarian hears heartbeats for
itself; only the leader's word is written (`node/state`). Who has heard a Shepherd within the lease knows it is there;
who has not believes what is stored, except the leader, who after a whole lease of listening says that it is away.

Invariants:
- A Shepherd is called away only after a lease in which this Librarian ran, since its start and since it began to lead.
- One that it has not heard since its start is called away, or given up, only after `start_grace_ms`: all may have been
  off, and some take longer to start.
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
from typing import Any, NamedTuple

from chelonia.core.cluster.healing import HealingWord
from chelonia.core.cluster.placement import DRAINING, NODE_ALIVE, NODE_MAINTENANCE, NODE_OFFLINE, NODE_WAITING
from chelonia.core.cluster.replicas import Location
from chelonia.core.ids import Dn, Ms, ServiceId, is_uuid
from chelonia.core.ports.librarian import Arriving, Heartbeat, NodeView
from chelonia.core.values import replace
from chelonia.librarian.presence.failure_evidence import FailureEvidence
from chelonia.librarian.presence.identity import older
from chelonia.librarian.presence.listening import Listening


@dataclass(frozen=True, slots=True)
class StoredNode:
    """What the A-Hash says of a Shepherd (`node` section); `state` is "" when nothing was ever written.

    `left_until_ms`: it ended by itself, saying so, and is waited for until then, as in maintenance.
    `drain_ms`: since when its copies are to leave, 0 when they are not.
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
        """Until when its absence is announced, by an administrator or by itself."""
        return max(self.maintenance_until_ms, self.left_until_ms)


@dataclass(frozen=True, slots=True)
class Heard:
    """What a heartbeat told: the Shepherd was away before, started anew, announces other facts than are stored, or has
    just compared its inventory."""

    returned: bool
    new_boot: bool
    changed: bool
    compared: bool = False


@dataclass(frozen=True, slots=True)
class Transition:
    """A stored state to be written: `state` is `alive` or `offline`. `left`: it has said itself that it ends."""

    shepherd: ServiceId
    state: str
    before: str
    left: bool = False


class RecordedHealth(NamedTuple):
    """What a view of a Shepherd says that the table does not know: its store on record, and its trouble."""

    store: str = ""
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class FlapRule:
    """A Shepherd that has come back `returns_max` times within `window_ms` is not steady until the window is over."""

    returns_max: int = 3
    window_ms: int = 600_000


def steady_from(returns: Sequence[Ms], rule: FlapRule) -> Ms:
    """From when on a Shepherd counts as steady that came back at these times (ordered); 0 when it always did."""
    assert all(one <= other for one, other in pairwise(returns)), "returns are in order"
    if len(returns) < rule.returns_max:
        return Ms(0)
    return Ms(returns[-rule.returns_max] + rule.window_ms)


def unsteady(returns: Mapping[ServiceId, Sequence[Ms]], rule: FlapRule, now: Ms) -> frozenset[ServiceId]:
    """The Shepherds that come and go: what they hold is replaced as if they were away, and they take nothing new.

    Args:
        returns: of every Shepherd, when it came back, ordered.
    Returns: nobody when more than half of all would be: then it is the network, or this Librarian, and to distrust
        everybody would stop all writing.
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
        """Take over what is stored; a goodbye counts also while it is not yet written."""
        if self.beat is not None and self.beat.leaving:
            stored = replace(stored, left_until_ms=max(stored.left_until_ms, self.stored.left_until_ms))
        self.stored = stored


class HealthTable:
    """The Shepherds as one Librarian sees them. `start_grace_ms`: how long one that was not heard since this Librarian
    started may take to start, too."""

    def __init__(self, lease_ms: int, started_ms: Ms, rule: FlapRule = FlapRule(), *, start_grace_ms: int = 0) -> None:
        self._lease_ms = lease_ms
        self._rule = rule
        self.listening = Listening(lease_ms, started_ms)
        self._grace_until = Ms(started_ms + start_grace_ms)
        self._leading = False
        self.evidence = FailureEvidence(lease_ms)
        self._nodes: dict[ServiceId, _ShepherdHealth] = {}

    # --- what is told to it -----------------------------------------------------------------------------------------

    def load(self, stored: Mapping[ServiceId, StoredNode]) -> None:
        """Take over what the A-Hash says now; Shepherds that are no longer registered are forgotten."""
        fresh = {}
        for shepherd in sorted(stored):
            known = fresh[shepherd] = self._nodes.get(shepherd) or self._new(stored[shepherd])
            known.take(stored[shepherd])
        self._nodes = fresh

    def note(self, shepherd: ServiceId, **written: Any) -> None:
        """Take over what was just written of one Shepherd, unless it has been forgotten meanwhile."""
        node = self._nodes.get(shepherd)
        if node is not None:
            node.take(replace(node.stored, **written))

    def _new(self, stored: StoredNode) -> _ShepherdHealth:
        return _ShepherdHealth(stored, deque(maxlen=self._rule.returns_max))

    def lead(self, now: Ms) -> None:
        """This Librarian leads repair from now on: it listens for a whole lease before it calls anybody away."""
        self._leading = True
        self.listening.anew(now)

    def follow(self) -> None:
        """This Librarian no longer leads repair."""
        self._leading = False

    def comes_back(self, beat: Heartbeat, now: Ms) -> bool:
        """Whether this is heard of a Shepherd that was away, has been started anew, or was not heard before."""
        # Whoever was not heard since this Librarian started counts as present all the same: no ground to believe him.
        return not self.present(beat.shepherd, now) or self.boot(beat.shepherd) != beat.boot

    def beat(self, beat: Heartbeat, now: Ms) -> Heard | None:
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
        was_there = node.stored.state and not (node.beat is not None and node.beat.leaving)
        if was_there and (returned or new_boot):
            node.returns.append(now)
        if beat.leaving:
            self.evidence.left(beat.shepherd, now)
        else:
            self.evidence.heard(beat.shepherd)
        node.beat, node.heard_ms, node.heard_ran_ms = beat, now, self.listening.ran(now)
        announced = (beat.domain, beat.verify_key)
        return Heard(returned, new_boot, announced != (node.stored.domain, node.stored.verify_key), compared)

    def excuse(self, shepherd: ServiceId, until_ms: Ms) -> None:
        """It has said goodbye: it is waited for until then, from now on and not only once that is written."""
        node = self._nodes[shepherd]
        node.stored = replace(node.stored, left_until_ms=until_ms)

    # --- what it knows ----------------------------------------------------------------------------------------------

    def stored(self, shepherd: ServiceId) -> StoredNode | None:
        """What the A-Hash says of a Shepherd, None when it is not registered."""
        node = self._nodes.get(shepherd)
        return node.stored if node else None

    def shepherds(self) -> tuple[ServiceId, ...]:
        """All approved Shepherds, in order."""
        return tuple(shepherd for shepherd, node in self._nodes.items() if node.stored.approved)

    def verify_key(self, shepherd: ServiceId) -> str:
        """The key that checks a Shepherd's receipts, "" when none is known or it is not approved."""
        node = self._nodes.get(shepherd)
        if node is None or not node.stored.approved:
            return ""
        return node.beat.verify_key if node.beat else node.stored.verify_key

    def boot(self, shepherd: ServiceId) -> int:
        """The start of a Shepherd that was last heard of, 0 for none."""
        node = self._nodes.get(shepherd)
        return node.beat.boot if node is not None and node.beat is not None else 0

    def compared(self, shepherd: ServiceId) -> int:
        """The generation of the metadata with which a Shepherd said last that it agrees, 0 for none."""
        node = self._nodes.get(shepherd)
        return node.beat.compared if node is not None and node.beat is not None else 0

    def copies_at_once_max(self, shepherd: ServiceId) -> int:
        """How many repair copies a Shepherd sends and takes at once by its own configuration, 0 when it did not say."""
        node = self._nodes.get(shepherd)
        return max(node.beat.copies_at_once_max, 0) if node is not None and node.beat is not None else 0

    def arriving(self) -> dict[Location, Arriving]:
        """The copies whose bytes are coming in, as approved Shepherds told last, ordered by Shepherd; what can be no
        blob is left out: it is asked for together with those of others."""
        latest = (node.beat for node in self._nodes.values() if node.beat is not None and node.stored.approved)
        told = ((beat.shepherd, copy) for beat in latest for copy in beat.arriving if is_uuid(copy.blob))
        return {Location(shepherd, copy.reference): copy for shepherd, copy in told}

    def starting(self, shepherd: ServiceId) -> bool:
        """Whether a Shepherd said last that it is still starting: its address refuses until it has."""
        node = self._nodes.get(shepherd)
        return node is not None and node.beat is not None and node.beat.starting

    def present(self, shepherd: ServiceId, now: Ms) -> bool:
        """Whether a Shepherd can be expected to answer."""
        node = self._nodes.get(shepherd)
        if node is None or not node.stored.approved:
            return False
        if self._fresh(shepherd, node, now):
            return True
        if self.evidence.is_away(shepherd, now):
            return False
        return node.stored.state == NODE_ALIVE and not (self._leading and self._overdue(node, now))

    def awaited_ms(self, shepherd: ServiceId) -> Ms:
        """Until when (monotonic) a Shepherd that was not heard since this Librarian started may still be starting, too,
        however long it had been away before: all may have been off. 0: it was heard."""
        node = self._nodes.get(shepherd)
        return self._grace_until if node is not None and node.heard_ms is None else Ms(0)

    def proven(self, shepherd: ServiceId, now: Ms, generation: int) -> bool:
        """Whether a Shepherd was heard within the lease, by this Librarian, and has compared its inventory in its
        present boot with the metadata of this generation."""
        node = self._nodes.get(shepherd)
        if node is None or not node.stored.approved or node.beat is None or not self._heard(node, now):
            return False
        return node.beat.compared == generation and not self.evidence.is_gone(shepherd)

    def heard_ms(self, shepherd: ServiceId) -> Ms | None:
        """When a Shepherd was last heard, None when it never was."""
        node = self._nodes.get(shepherd)
        return node.heard_ms if node else None

    def word(self, shepherd: ServiceId, now: Ms, margin_ms: int = 0) -> HealingWord:
        """What this Librarian knows of a Shepherd by itself, or will know in `margin_ms` if it hears nothing more."""
        node = self._nodes.get(shepherd)
        if node is None or not node.stored.approved:
            return HealingWord.UNKNOWN
        if self.evidence.is_gone(shepherd):
            return HealingWord.GONE
        if self._heard(node, Ms(now + margin_ms)):
            return HealingWord.HEARD
        return HealingWord.SILENT if self._overdue(node, now, margin_ms) else HealingWord.UNKNOWN

    def missed(self, now: Ms, margin_ms: int) -> tuple[ServiceId, ...]:
        """Who is stored as alive, but will not have been heard within the lease in `margin_ms` from now: others are to
        be asked before it is called away. Ordered by service id."""
        return tuple(
            shepherd
            for shepherd, node in self._nodes.items()
            if node.stored.state == NODE_ALIVE
            and not self.evidence.is_away(shepherd, now)
            and self.word(shepherd, now, margin_ms) in (HealingWord.SILENT, HealingWord.GONE)
        )

    def unsure(self, now: Ms) -> tuple[ServiceId, ...]:
        """Who is stored as alive, and was not heard within the lease, as far as is known: it is still to be listened
        for, or to be written down as away. Ordered by service id."""
        stored = ((s, node) for s, node in self._nodes.items() if node.stored.state == NODE_ALIVE)
        return tuple(s for s, node in stored if node.stored.approved and not self._fresh(s, node, now))

    def unheard(self, now: Ms) -> tuple[ServiceId, ...]:
        """Who is away as far as this Librarian hears: somebody may hear it again. Ordered by service id."""
        return tuple(s for s in self.shepherds() if self.word(s, now) in (HealingWord.SILENT, HealingWord.GONE))

    def unsteady(self, now: Ms) -> frozenset[ServiceId]:
        """The approved Shepherds that come and go."""
        returns = {shepherd: node.returns for shepherd, node in self._nodes.items() if node.stored.approved}
        return unsteady(returns, self._rule, now)

    def steady_from(self, shepherd: ServiceId) -> Ms:
        """From when on a Shepherd counts as steady, if it does not come back once more; 0 when it is not known."""
        node = self._nodes.get(shepherd)
        return steady_from(node.returns, self._rule) if node else Ms(0)

    def transitions(self, now: Ms) -> tuple[Transition, ...]:
        """The states a leader should write, ordered by service id."""
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
        self, now: Ms, wall: Ms, told: Callable[[ServiceId], RecordedHealth] = lambda _: RecordedHealth()
    ) -> tuple[NodeView, ...]:
        """All Shepherds, ordered by service id. `told`: what else is said of one; its trouble comes first."""
        shaky = self.unsteady(now)
        views = (self._view(shepherd, now, wall, told(shepherd)) for shepherd in self._nodes)
        trouble = (
            "it comes and goes: nothing new is given to it until it has been steady for "
            f"{self._rule.window_ms // 1000} s"
        )
        return tuple(
            replace(view, accepting=False, trouble=view.trouble or trouble) if view.shepherd in shaky else view
            for view in views
        )

    def _view(self, shepherd: ServiceId, now: Ms, wall: Ms, told: RecordedHealth) -> NodeView:
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
            store=told.store,
            reclaimable_bytes=beat.reclaimable_bytes if beat else 0,
            trouble=told.trouble,
            drain=DRAINING if stored.drain_ms else "",
        )

    def _fresh(self, shepherd: ServiceId, node: _ShepherdHealth, now: Ms) -> bool:
        if self.evidence.is_away(shepherd, now):
            return False
        return self._heard(node, now) or self.evidence.is_vouched(shepherd, now)

    def _heard(self, node: _ShepherdHealth, now: Ms) -> bool:
        return node.heard_ms is not None and now - node.heard_ms < self._lease_ms

    def _overdue(self, node: _ShepherdHealth, now: Ms, margin_ms: int = 0) -> bool:
        silent_ms = self.listening.ran(now) - max(self.listening.since, node.heard_ran_ms) + margin_ms
        starting = node.heard_ms is None and now + margin_ms < self._grace_until
        return silent_ms >= self._lease_ms and not starting and not self.listening.stood_still(now)


def _state(stored: StoredNode, here: bool, wall: Ms) -> str:
    if not stored.approved:
        return NODE_WAITING
    if stored.excused_until_ms > wall:
        return NODE_MAINTENANCE
    return NODE_ALIVE if here else NODE_OFFLINE


def _after_farewell(beat: Heartbeat, last: Heartbeat) -> bool:
    """Whether a heartbeat was overtaken by the one that said goodbye."""
    return last.leaving and beat.boot == last.boot and not beat.leaving
