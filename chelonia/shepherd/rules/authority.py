"""Whether an order to erase may be obeyed. Pure.

An order counts only with a position in the history of the Shepherd's own cluster. That must be at least as new as any
it has obeyed, and of no older generation than any it has seen. Otherwise metadata that were lost or restored from an
old backup could erase bytes that they have forgotten.
"""

from __future__ import annotations

from chelonia.core.cluster.position import Position
from chelonia.core.ports.shepherd import Authority, ShepherdState
from chelonia.core.values import replace


def refusal(state: ShepherdState, authority: Authority | None) -> str:
    """Return why the order must be refused, "" when it may be obeyed."""
    if authority is None or not authority.position.cluster:
        return "the order names no metadata position"
    position = authority.position
    if why := revoked(state, position):
        return why
    if state.cluster and position.generation == state.generation and position.sequence < state.sequence:
        return f"sequence {position.sequence} is older than {state.sequence}, which was obeyed before"
    return ""


def revoked(state: ShepherdState, position: Position) -> str:
    """Return why a begun order must not go on, "" when it may: newer orders of its generation do not end it."""
    if not state.cluster:
        return ""  # the first order teaches the cluster, as a first heartbeat would
    if position.cluster != state.cluster:
        return f"the order comes from cluster {position.cluster}, this Shepherd belongs to {state.cluster}"
    if position.generation < state.generation:
        return f"generation {position.generation} is older than {state.generation}, which was seen before"
    return ""


def obeyed(state: ShepherdState, position: Position) -> ShepherdState:
    """Return the state after obeying an order of this position; unchanged when the order is refused by now."""
    if refusal(state, Authority(position)):
        return state
    after = replace(state, cluster=position.cluster, generation=position.generation, sequence=position.sequence)
    assert not refusal(after, Authority(position)), "what was begun with an order goes on with it"
    assert state.generation <= after.generation, "no generation is seen that is older than one before"
    return after


def seen(state: ShepherdState, position: Position) -> ShepherdState | None:
    """Return the state after a heartbeat answered with `position`; None when the answer is of another cluster.

    A first answer sets the cluster, a newer generation resets the sequence; the caller saves both durably.
    """
    if not position.cluster:
        return state
    if state.cluster and position.cluster != state.cluster:
        return None
    if not state.cluster:
        return replace(state, cluster=position.cluster, generation=position.generation, sequence=0)
    if position.generation > state.generation:
        return replace(state, generation=position.generation, sequence=0)
    return state
