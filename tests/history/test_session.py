"""The session checker: own writes, never backwards, no unwritten values; and claims that it must not make."""

import pytest

from chelonia.core.cluster.position import Position
from tests.history.records import History, Level, Model, Op, Operation, Outcome
from tests.history.session import check


def at(sequence: int, generation: int = 1, cluster: str = "c") -> Position:
    return Position(cluster, generation, sequence)


def write(
    client: int, call: int, value: str, position: Position | None, *, key: str = "k", tries: int = 1
) -> Operation:
    """Answered five later, or never when there is no position."""
    back, outcome = (call + 5, Outcome.OK) if position else (None, Outcome.UNKNOWN)
    return Operation(client, key, Model.REGISTER, Op.WRITE, call, back, outcome, value, position=position, tries=tries)


def read(
    client: int,
    call: int,
    value: str | None,
    position: Position | None = None,
    *,
    key: str = "k",
    version: int | None = None,
) -> Operation:
    found = Operation(client, key, Model.REGISTER, Op.READ, call, call + 5, value=value, level=Level.LOCAL)
    return Operation(
        **{name: getattr(found, name) for name in found.__slots__} | {"position": position, "object_version": version}
    )


KEPT = {
    "its own write": [write(1, 0, "a", at(1)), read(1, 10, "a")],
    "another's newer write": [write(1, 0, "a", at(1)), write(2, 0, "b", at(2)), read(1, 10, "b")],
    "stale for one who knows no better": [write(1, 0, "a", at(1)), write(1, 10, "b", at(2)), read(2, 20, "a")],
    "either of one commit": [write(1, 0, "a", at(1)), write(2, 0, "b", at(1)), read(1, 10, "b"), read(2, 10, "a")],
    "a change given up may come later": [
        write(1, 0, "a", at(1)),
        write(1, 10, "b", None),
        read(1, 20, "a", at(1)),
        read(1, 30, "b", at(2)),
    ],
    "a change given up and found at the end": [
        write(1, 0, "a", at(1)),
        Operation(1, "k", Model.REGISTER, Op.WRITE, 10, 900, Outcome.OK, "b", position=at(5)),
        read(1, 20, "a", at(3)),
    ],
    "a repeated request's first position": [
        write(1, 0, "a", at(4)),
        write(1, 10, "b", at(3), key="l", tries=2),
    ],
    "a new generation": [write(1, 0, "a", at(9)), write(1, 10, "b", at(1, 2)), read(1, 20, "b", at(1, 2))],
}

BROKEN = {
    "its own write is missing": ([write(1, 0, "a", at(1)), read(1, 10, None)], "replaced"),
    "its own write is gone again": (
        [write(1, 0, "a", at(1)), write(1, 10, "b", at(2)), read(1, 20, "a")],
        "replaced before",
    ),
    "back behind what it has read": (
        [write(1, 0, "a", at(1)), write(1, 10, "b", at(2)), read(2, 20, "b"), read(2, 30, "a")],
        "replaced before",
    ),
    "back behind what it knows of another key": (
        [
            write(1, 0, "a", at(1)),
            write(1, 10, "b", at(2)),
            write(1, 20, "x", at(3), key="l"),
            read(2, 30, "x", key="l"),
            read(2, 40, "a"),
        ],
        "replaced before",
    ),
    "an unknown change seen, then replaced, then back": (
        [write(1, 0, "a", None), read(2, 10, "a", at(1)), write(2, 20, "b", at(2)), read(2, 30, "a")],
        "replaced before",
    ),
    "a position that goes back": (
        [write(1, 0, "a", at(5)), read(1, 10, "a", at(5)), read(1, 20, "a", at(4))],
        "behind",
    ),
    "a position before the value": ([write(1, 0, "a", at(5)), read(2, 10, "a", at(4))], "written only at"),
    "a value nobody wrote": ([write(1, 0, "a", at(1)), read(2, 10, "z")], "nobody wrote"),
    "a version that goes back": (
        [write(1, 0, "a", None), read(2, 10, "a", version=2), read(2, 20, None, version=1)],
        "version 1, after version 2",
    ),
    "one version, two values": (
        [write(1, 0, "a", None), write(1, 0, "b", None), read(1, 10, "a", version=1), read(2, 10, "b", version=1)],
        "also read as",
    ),
    "an answered change behind its client": ([write(1, 0, "a", at(4)), write(1, 10, "b", at(3))], "behind"),
    "an older generation": ([write(1, 0, "a", at(1, 2)), read(1, 10, "a", at(9, 1))], "behind"),
    "another cluster": ([write(1, 0, "a", at(1)), write(2, 0, "b", at(2, 1, "other"))], "different clusters"),
}


@pytest.mark.parametrize("operations", KEPT.values(), ids=KEPT)
def test_what_keeps_the_promises_passes(operations: list[Operation]) -> None:
    assert check(History(tuple(operations))) == []


@pytest.mark.parametrize(("operations", "what"), BROKEN.values(), ids=BROKEN)
def test_what_breaks_a_promise_is_named(operations: list[Operation], what: str) -> None:
    [violation, *_] = check(History(tuple(operations)))
    assert what in str(violation)
