"""Notes about replicas in one file, so that a start need not read a record for each.

The file is appended to, and written anew in order of reference when many notes are behind. A start then goes through
its memory from end to end. The file is a row of blocks, and later blocks override earlier ones. A block is: length (4
bytes, little endian), `CHLN`, BLAKE2b-64 of the rest, version byte (2), a msgpack map of reference -> bytes (empty:
forgotten).
Appended notes are synced with the next note of `mark`, which vouches for all before it. A torn or damaged block is cut
off with all behind it; the start then reads a record for each replica that they noted.
Calls block. Layout: docs/formats/replica-store.md.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, cast

from chelonia.core.errors import CheloniaError
from chelonia.core.ids import ReferenceId
from chelonia.core.ports.shepherd import MARK, PREFIX_CHARS, Notes
from chelonia.wire import records

NAME: Final = "notes"
DRAFT: Final = "notes.new"
"""Notes written anew, until they are complete and replace the others."""
BLOCK_NOTES_MAX: Final = 10_000
"""Notes of one block, all of which a torn one can cost."""
SYNC_EVERY_BYTES: Final = 16 * 1024 * 1024
"""Bytes between two syncs, so that a file written anew holds up no other sync."""
_MAGIC: Final = b"CHLN"
_NOTES: Final = records.Format("notes of replicas", dict[str, bytes], 2, {1: dict})
"""Version 1 had no marks, and also notes of uncommitted and unreported replicas. Until a comparison has settled a mark,
such a note proves no more than a record does."""
_LENGTH_BYTES: Final = 4


def read(root: Path, head: bytes = b"") -> Notes:
    """Read the last note of each replica, each behind `head`; empty when there is no file. Raises: OSError."""
    return gather(_blocks(root / NAME), head)


def gather(blocks: Iterable[Mapping[ReferenceId, bytes]], head: bytes) -> Notes:
    """Return the last note of each replica in these blocks, each behind `head`. A start passes a million through it."""
    parts: defaultdict[str, dict[ReferenceId, bytes]] = defaultdict(dict)
    behind, last, mark = 0, "", b""
    for whole in blocks:
        block = {reference: note for reference, note in whole.items() if reference != MARK} if MARK in whole else whole
        mark = whole.get(MARK, mark)
        if not block:
            continue
        behind += len(block) if behind or next(iter(block)) < last else 0
        last = max(block)
        for reference, note in block.items():
            if note:
                parts[reference[:PREFIX_CHARS]][reference] = head + note
            else:
                parts[reference[:PREFIX_CHARS]].pop(reference, None)
    return Notes(parts, behind, mark)


def append(path: Path, notes: Mapping[ReferenceId, bytes]) -> None:
    """Append notes, all or none; synced with a mark, else every `SYNC_EVERY_BYTES`. Raises: OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_APPEND, 0o600)
    try:
        before = os.fstat(fd).st_size
        try:
            written = sum([write_all(fd, block) for block in _encoded(list(notes.items()))])
        except OSError:
            os.ftruncate(fd, before)  # notes behind a torn block would not be found
            raise
        if MARK in notes or (before + written) // SYNC_EVERY_BYTES > before // SYNC_EVERY_BYTES:
            os.fdatasync(fd)
    finally:
        os.close(fd)


def _encoded(items: Sequence[tuple[ReferenceId, bytes]]) -> Iterator[bytes]:
    for start in range(0, len(items), BLOCK_NOTES_MAX):
        block = records.check_in(_MAGIC, _NOTES.encode(dict(items[start : start + BLOCK_NOTES_MAX])))
        yield len(block).to_bytes(_LENGTH_BYTES, "little") + block


def write_all(fd: int, data: bytes) -> int:
    """Write all of `data`; returns its length. Raises: OSError, when some may have been written."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    return len(data)


def _blocks(path: Path) -> Iterator[dict[ReferenceId, bytes]]:
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        at, size = 0, os.fstat(file.fileno()).st_size
        while at < size:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            raw = file.read(min(length, size - at))
            try:
                block = _NOTES.decode(records.check_out(_MAGIC, raw, _NOTES.name))
            except CheloniaError:  # torn or damaged, or by newer software: the records are read instead
                os.truncate(path, at)  # notes behind it would not be found
                return
            yield cast(dict[ReferenceId, bytes], block)
            at += _LENGTH_BYTES + length
