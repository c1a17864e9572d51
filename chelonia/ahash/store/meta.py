"""The facts of a store about itself: format number, cluster, generation. The A-Hash checks them before it serves.

It refuses a newer format, and migrates an older one in one commit together with its new number.
The generation rises whenever the store is restored from a backup; `raise_generation` starts a new one.
"""

from __future__ import annotations

from typing import Final

from chelonia.ahash.store import layout
from chelonia.ahash.store.layout import StoreState
from chelonia.ahash.store.port import Reader, Store
from chelonia.core.cluster.position import Position
from chelonia.core.errors import CheloniaError, Kind

FOUNDED: Final = (1, 0)
"""Generation and sequence of a store that was just founded."""


def prepare(store: Store, cluster: str) -> Position:
    """Make a fresh store ours, or check and migrate an existing one.

    Args: `cluster` names the cluster of a fresh store; empty: take the store's own.
    Returns: the position of the store.
    Raises: BAD_CONFIG (newer format, fresh without a cluster), WRONG_CLUSTER.
    """
    if not is_prepared(store):
        _found(store, cluster)
    found = read_number(store, layout.META_FORMAT)
    if found > layout.FORMAT:
        cause = f"the store has format {found}, this program knows up to {layout.FORMAT}: start a newer version of it"
        raise CheloniaError(Kind.BAD_CONFIG, "ahash", "store", cause)
    if found < layout.FORMAT:  # format 1 is 2 without some wide sections: only the number changes
        store.commit({layout.META_FORMAT: layout.encode_value(str(layout.FORMAT))}, ())
    position = read_position(store)
    if cluster and position.cluster != cluster:
        cause = f"the store belongs to cluster {position.cluster}, not to {cluster}: point it at its own directory"
        raise CheloniaError(Kind.WRONG_CLUSTER, "ahash", "store", cause)
    return position


def is_prepared(store: Reader) -> bool:
    """Return whether a store belongs to a cluster; a fresh one takes any."""
    return store.get(layout.META_FORMAT) is not None


def check_format(store: Reader) -> None:
    """Refuse a store in a group that has another format. Raises: BAD_CONFIG, with the cure."""
    # A migration is a commit outside the count of commits, and replicas of the older program would read what it wrote.
    found = read_number(store, layout.META_FORMAT)
    if found == layout.FORMAT:
        return
    cure = "start a newer version of it"
    if found < layout.FORMAT:
        cure = (
            "a group is not migrated while it runs: stop all replicas, start one of them alone with this program once, "
            "and begin the group anew from it (docs/operate/ahash-replicas.md)"
        )
    cause = f"the store has format {found}, this program works with {layout.FORMAT}: {cure}"
    raise CheloniaError(Kind.BAD_CONFIG, "ahash", "store", cause)


def read_position(store: Reader) -> Position:
    """Return the position of a prepared store."""
    cluster = layout.decode_value(store.get(layout.META_CLUSTER) or b"")
    return Position(cluster, read_number(store, layout.META_GENERATION), read_state(store).sequence)


def read_state(store: Reader) -> StoreState:
    """Return the counts that every commit rewrites; zeros in a store that is not prepared."""
    data = store.get(layout.META_STATE)
    return StoreState(0, 0) if data is None else layout.decode_state(data)


def read_number(store: Reader, key: bytes) -> int:
    """Return a number among the store's facts. Raises: INTERNAL when missing or damaged."""
    text = layout.decode_value(store.get(key) or b"")
    if not text.isdigit():
        raise CheloniaError(Kind.INTERNAL, "ahash", "store", f"its own record {key!r} is damaged: restore a backup")
    return int(text)


def raise_generation(store: Store, least: int = 0) -> None:
    """Begin a new generation, at least `least`, of a store restored from a backup; take it out of its group."""
    generation = max(read_number(store, layout.META_GENERATION) + 1, least)
    group = (layout.META_TERM, layout.META_MEMBERS)
    store.commit({layout.META_GENERATION: layout.encode_value(str(generation))}, group)


def found_again(store: Store, word: str) -> None:
    """Make a fresh store the next generation of a cluster whose metadata are all lost, unless it has just been made so.

    Args: `word`: `<cluster> <generation>` that its Shepherds saw last.
    Raises: BAD_CONFIG when `word` is not of that form, or the store is not fresh.
    """
    cluster, _, generation = word.strip().partition(" ")
    if not cluster or not generation.isdecimal():
        raise CheloniaError(Kind.BAD_CONFIG, "ahash", "restored", "it holds '<cluster> <generation>', or nothing")
    began = Position(cluster, int(generation) + 1, 0)
    if not is_prepared(store):
        _found(store, cluster, began.generation)
    elif read_position(store) != began:  # else the process died before it removed the mark
        cause = "this store has metadata; an empty file `restored` announces a backup, an empty directory a rebuild"
        raise CheloniaError(Kind.BAD_CONFIG, "ahash", "restored", cause)


def _found(store: Store, cluster: str, generation: int = 1) -> None:
    if not cluster:
        raise CheloniaError(Kind.BAD_CONFIG, "ahash", "store", "a fresh store needs the name of its cluster")
    facts = {
        layout.META_FORMAT: layout.encode_value(str(layout.FORMAT)),
        layout.META_CLUSTER: layout.encode_value(cluster),
        layout.META_GENERATION: layout.encode_value(str(generation)),
        layout.META_STATE: layout.encode_state(StoreState(0, 0)),
    }
    store.commit(facts, ())
