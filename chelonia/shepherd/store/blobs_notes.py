"""Notes about replicas in one file, so that a start need not read a record for each: appended to, and written anew in
order of reference when many are behind, for objects that lie in memory as they are gone through are gone through fast.

The file is a row of blocks: length (4 bytes, little endian), then `CHLN`, BLAKE2b-64 of the rest, version byte (2), a
msgpack map of reference -> bytes (empty: forgotten). Later blocks go before earlier ones. What is appended is synced
with the next note of `mark`, which speaks of all before it: a block that is torn or damaged is cut off with all behind
it, and costs that start a record for each replica they spoke of.
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
"""What takes its place when it is whole."""
BLOCK_NOTES_MAX: Final = 10_000
"""Notes of one block: what a torn one can cost."""
SYNC_EVERY_BYTES: Final = 16 * 1024 * 1024
"""The disk gets what was written this often, so that a file written anew holds no other sync up."""
_MAGIC: Final = b"CHLN"
_NOTES: Final = records.Format("notes of replicas", dict[str, bytes], 2, {1: dict})
"""Version 1 had no marks, and notes also of what nobody had committed or been told of: before a comparison has settled
a mark, nothing follows from them but what the record says that they speak of."""
_LENGTH_BYTES: Final = 4


def read(root: Path, head: bytes = b"") -> Notes:
    """What was noted last of each replica, each behind `head`; nothing when there is no file. Raises: OSError."""
    return gather(_blocks(root / NAME), head)


def gather(blocks: Iterable[Mapping[ReferenceId, bytes]], head: bytes) -> Notes:
    """The last note of each replica in these blocks, each behind `head`. A million pass through here at a start."""
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
    """Add notes behind the others, all or none; many go to the disk in pieces, and with a mark all. Raises: OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_APPEND, 0o600)
    try:
        before = os.fstat(fd).st_size
        try:
            written = sum([write_all(fd, block) for block in _encoded(list(notes.items()))])
        except OSError:
            os.ftruncate(fd, before)  # what is appended from now on must be found
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
    """Write all of it; returns how many bytes. Raises: OSError, when some may have been written."""
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
            except CheloniaError:  # torn or damaged, or by newer software: what it said is read from the records
                os.truncate(path, at)  # what is appended from now on must be found
                return
            yield cast(dict[ReferenceId, bytes], block)
            at += _LENGTH_BYTES + length
