"""A history as JSON lines: a head, then operations and faults in the order in which they began.

Written by the recorder, read by the session checker and by the checker in `checker/`. Every field is explained in
docs/design/010-histories.md. Times are nanoseconds of one clock that never goes back; their zero means nothing.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from chelonia.core.cluster.position import Position

VERSION: Final = 1


class Model(enum.Enum):
    """A key's operations: reads and writes, or conditional changes too."""

    REGISTER = "register"
    CAS = "cas"


class Op(enum.Enum):
    """A client's operation. `CAS`: write `value` if the key holds `expected`."""

    READ = "read"
    WRITE = "write"
    CAS = "cas"


class Level(enum.Enum):
    """The promise of a read: the newest state, or only never to go back behind this client's position."""

    STRONG = "strong"
    LOCAL = "local"


class Outcome(enum.Enum):
    """The answer to a client. `UNKNOWN`: nothing is certain; it may happen at any time after the call, or never."""

    OK = "ok"
    UNMET = "unmet"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of one client on one key; None is an unset value.

    Args:
        client: its number; one client does one thing at a time.
        call, back: times of the request and the answer; `back` None while the outcome is unknown.
        value: the value written, or found by a read; no value is written twice to a key.
        position: the answer's position in the store's history, when it has one.
        object_version: the hidden version of the object, when the answer has it.
        tries: how often it was sent, each time with the same request key `request`.
        cause: why it had to be sent again, or is unknown.
    """

    client: int
    key: str
    model: Model
    op: Op
    call: int
    back: int | None
    outcome: Outcome = Outcome.OK
    value: str | None = None
    expected: str | None = None
    level: Level = Level.STRONG
    position: Position | None = None
    object_version: int | None = None
    tries: int = 1
    request: str = ""
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of the servers, and its time from and to."""

    what: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class History:
    """The record of a run."""

    operations: tuple[Operation, ...]
    faults: tuple[Fault, ...] = ()


def write(path: Path, history: History) -> None:
    rows = [(o.call, _of_operation(o)) for o in history.operations] + [(f.begin, _of_fault(f)) for f in history.faults]
    rows.sort(key=lambda row: row[0])
    lines = [{"type": "history", "version": VERSION}, *(row for _, row in rows)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def read(path: Path) -> History:
    """Read a history. Raises: ValueError, KeyError for malformed ones."""
    head, *rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    if head != {"type": "history", "version": VERSION}:
        raise ValueError(f"{path} is no history of version {VERSION}: {head}")
    return History(
        tuple(_to_operation(row) for row in rows if row["type"] == "operation"),
        tuple(Fault(row["what"], row["call"], row["return"]) for row in rows if row["type"] == "fault"),
    )


def by_client(operations: Iterable[Operation]) -> dict[int, list[Operation]]:
    """The operations of each client in the order in which it did them."""
    found: dict[int, list[Operation]] = {}
    for operation in sorted(operations, key=lambda o: o.call):
        found.setdefault(operation.client, []).append(operation)
    return found


def _of_operation(operation: Operation) -> dict[str, Any]:
    o, position = operation, operation.position
    row: dict[str, Any] = {"type": "operation", "client": o.client, "key": o.key, "model": o.model.value}
    row |= {"op": o.op.value, "level": o.level.value, "call": o.call, "outcome": o.outcome.value, "value": o.value}
    if o.op is Op.CAS:
        row["expected"] = o.expected
    if o.back is not None:
        row["return"] = o.back
    if position is not None:
        row["position"] = [position.cluster, position.generation, position.sequence]
    if o.object_version is not None:
        row["object_version"] = o.object_version
    row["tries"] = o.tries
    return row | {name: text for name, text in (("request", o.request), ("cause", o.cause)) if text}


def _of_fault(fault: Fault) -> dict[str, Any]:
    return {"type": "fault", "what": fault.what, "call": fault.begin, "return": fault.end}


def _to_operation(row: dict[str, Any]) -> Operation:
    position = Position(*row["position"]) if "position" in row else None
    operation: Operation = msgspec.convert({**row, "back": row.get("return"), "position": position}, Operation)
    return operation
