"""Notes about replicas in one file, so that a start need not read a record for each: appended to, rewritten when old.

The file is a row of blocks: length (4 bytes, little endian), then `CHLN`, BLAKE2b-64 of the rest, version byte (1), a
msgpack map of reference -> bytes (empty: forgotten). Later blocks go before earlier ones. Nothing is synced: a block
that is torn or damaged is cut off with all behind it, and costs that start a record for each replica they spoke of.
Calls block. Layout: docs/formats/replica-store.md.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, cast

from chelonia.core.errors import CheloniaError
from chelonia.core.ids import ReferenceId
from chelonia.wire import records

NAME: Final = "notes"
BLOCK_NOTES_MAX: Final = 10_000
"""Notes of one block: what a torn one can cost."""
_MAGIC: Final = b"CHLN"
_NOTES: Final = records.Format("notes of replicas", dict[str, bytes], 1)
_LENGTH_BYTES: Final = 4


def read(root: Path) -> dict[ReferenceId, bytes]:
    """What was noted last of each replica; nothing when there is no file. Raises: OSError."""
    try:
        raw = (root / NAME).read_bytes()
    except FileNotFoundError:
        return {}
    found: dict[str, bytes] = {}
    at = 0
    while at < len(raw):
        end = at + _LENGTH_BYTES + int.from_bytes(raw[at : at + _LENGTH_BYTES], "little")
        try:
            found.update(_NOTES.decode(records.check_out(_MAGIC, raw[at + _LENGTH_BYTES : end], _NOTES.name)))
        except CheloniaError:  # torn or damaged, or by newer software: what it said is read from the records
            os.truncate(root / NAME, at)  # what is appended from now on must be found
            break
        at = end
    for reference in [reference for reference, note in found.items() if not note]:
        del found[reference]
    return cast(dict[ReferenceId, bytes], found)


def append(root: Path, notes: Mapping[ReferenceId, bytes]) -> None:
    """Add notes behind the others. Raises: OSError."""
    _write(root / NAME, notes, os.O_APPEND)


def rewrite(root: Path, notes: Mapping[ReferenceId, bytes]) -> None:
    """Put these notes in the place of all others. Raises: OSError."""
    draft = root / (NAME + ".new")
    _write(draft, notes, os.O_TRUNC)
    os.replace(draft, root / NAME)


def _write(path: Path, notes: Mapping[ReferenceId, bytes], how: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | how, 0o600)
    items = list(notes.items())
    with os.fdopen(fd, "wb") as file:
        for start in range(0, len(items), BLOCK_NOTES_MAX):
            body: dict[str, bytes] = dict(items[start : start + BLOCK_NOTES_MAX])
            block = records.check_in(_MAGIC, _NOTES.encode(body))
            file.write(len(block).to_bytes(_LENGTH_BYTES, "little") + block)
