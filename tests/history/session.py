"""Checks each client's promises at any instance: it reads its own writes, and never goes backwards.

This holds of every read, local or strong; local reads promise nothing more. A client's token is the newest position it
knows. Positions come from its own acknowledged changes, from answers that state theirs, and from the values it has
read. A value's position is that of the change that wrote it, or later. A read must not return a value that an
acknowledged change had replaced at or before the token. Answers without a position are so still held to the positions
of writes. Several changes may share a position (one commit holds many): between those no order is claimed.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.history.records import History, Op, Operation, Outcome, by_client

At = tuple[int, int]
"""(generation, sequence)."""

START: At = (-1, 0)
END: At = (1 << 62, 0)


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise: the operation, and its fault."""

    operation: Operation
    what: str

    def __str__(self) -> str:
        o = self.operation
        return f"client {o.client}, {o.op.value} of {o.key} at {o.call} -> {o.value!r}: {self.what}"


@dataclass(slots=True)
class _KeyHistory:
    """The facts about one key: for each value the first and last position at which it can have been written."""

    first: dict[str | None, At] = field(default_factory=lambda: {None: START})
    last: dict[str | None, At] = field(default_factory=lambda: {None: START})
    acknowledged: list[At] = field(default_factory=list)
    versions: dict[int, str | None] = field(default_factory=dict)

    def replaced(self, value: str | None, until: At) -> bool:
        """Whether an acknowledged change has certainly replaced `value` at or before `until`."""
        after = bisect.bisect_right(self.acknowledged, self.last[value])
        return after < len(self.acknowledged) and self.acknowledged[after] <= until


def check(history: History) -> list[Violation]:
    """Return every broken promise, in the order of clients and of their operations."""
    keys = _gather(history.operations)
    found: list[Violation] = []
    found += _one_cluster(history.operations)
    for operations in by_client(history.operations).values():
        found += _Session(keys).check(operations)
    return found


def _at(operation: Operation) -> At | None:
    position = operation.position
    return None if position is None else (position.generation, position.sequence)


def _gather(operations: Iterable[Operation]) -> dict[str, _KeyHistory]:
    keys: dict[str, _KeyHistory] = {}
    reads: list[Operation] = []
    for operation in operations:
        key = keys.setdefault(operation.key, _KeyHistory())
        at = _at(operation)
        if operation.op is Op.READ:
            reads.append(operation)
        elif operation.outcome is Outcome.OK and at is not None:
            key.first[operation.value] = key.last[operation.value] = at
            key.acknowledged.append(at)
        elif operation.outcome is not Outcome.UNMET:
            key.first[operation.value], key.last[operation.value] = START, END
    for key in keys.values():
        key.acknowledged.sort()
    for operation in reads:  # a read of a value at a position proves that it was written by then
        key, at = keys[operation.key], _at(operation)
        if at is not None and operation.value in key.last and key.first[operation.value] <= at:
            key.last[operation.value] = min(key.last[operation.value], at)
    return keys


def _one_cluster(operations: Iterable[Operation]) -> list[Violation]:
    named = [operation for operation in operations if operation.position is not None]
    clusters = {operation.position.cluster for operation in named if operation.position is not None}
    if len(clusters) <= 1:
        return []
    return [Violation(named[0], f"answers come from different clusters: {', '.join(sorted(clusters))}")]


class _Session:
    """One client's way through the history."""

    def __init__(self, keys: dict[str, _KeyHistory]) -> None:
        self._keys = keys
        self._token: At = START
        self._versions: dict[str, int] = {}
        self._coming: list[tuple[int, At]] = []

    def check(self, operations: Iterable[Operation]) -> list[Violation]:
        """Return the faults of these operations, which are one client's, in order."""
        found = []
        for operation in operations:
            self._learn(operation.call)
            what = self._read(operation) if operation.op is Op.READ else self._change(operation)
            if what:
                found.append(Violation(operation, what))
        return found

    def _learn(self, now: int) -> None:
        """Take in the answers up to `now`: the client learns of an abandoned change only much later."""
        self._token = max([self._token, *(at for back, at in self._coming if back <= now)])
        self._coming = [(back, at) for back, at in self._coming if back > now]

    def _change(self, operation: Operation) -> str:
        at = _at(operation)
        if operation.back is None or at is None:
            return ""
        before = self._token
        self._coming.append((operation.back, at))
        # A repeated request is answered with the position of its first try, which may lie behind.
        return f"answered at {at}, behind {before}" if operation.tries == 1 and at < before else ""

    def _read(self, operation: Operation) -> str:
        key, at = self._keys[operation.key], _at(operation)
        if operation.value not in key.first:
            return "nobody wrote this value"
        before = self._token
        self._token = max(self._token, at or START, key.first[operation.value])
        if at is not None and at < before:
            return f"answered at {at}, behind {before}"
        if at is not None and at < key.first[operation.value]:
            return f"answered at {at}, but written only at {key.first[operation.value]}"
        if key.replaced(operation.value, self._token):
            return f"replaced before {self._token}, which this client knows of"
        return self._version(operation, key)

    def _version(self, operation: Operation, key: _KeyHistory) -> str:
        version = operation.object_version
        if version is None:
            return ""
        before = self._versions.get(operation.key, 0)
        self._versions[operation.key] = max(before, version)
        if version < before:
            return f"version {version}, after version {before}"
        if key.versions.setdefault(version, operation.value) != operation.value:
            return f"version {version} was also read as {key.versions[version]!r}"
        return ""
