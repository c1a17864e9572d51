"""The segments at a start: the place of each replica, from the notes of an orderly end or from the headers.

After a crash, half-written entries are cut off or wiped, in the newest segment alone: all others were synced.
A damaged entry costs only itself: the next one is found behind it. Blocks that cannot be read are passed over and kept,
and nothing is noted at the next end. Calls block. Layout: docs/formats/replica-store.md.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from chelonia.core.ids import ReferenceId
from chelonia.core.ports.shepherd import MARK, NO_NOTES, PREFIX_CHARS, PREFIXES
from chelonia.durable_files import sync_path
from chelonia.shepherd.store import blobs_notes
from chelonia.shepherd.store import segment_format as layout
from chelonia.shepherd.store.blobs_segment_file import SegmentFile
from chelonia.shepherd.store.segment_format import BLOCK_BYTES, EntryHeader, Place

log = logging.getLogger(__name__)

FOLDER: Final = "segments"
_SUFFIX: Final = ".segment"
_PLACE_BYTES: Final = 16
Places = dict[str, dict[ReferenceId, int]]


@dataclass(slots=True)
class Known:
    """A segment.

    Args:
        key: the key in its headers, b"" when nothing in it can be read.
        end: offset of the next entry, bytes.
        live: blocks in use.
        pending: additions that are not known to be durable yet.
        appendable: whether more is added to it.
        unreadable: some blocks could not be read at the start. It is kept: the next start may be able to.
    """

    number: int
    key: bytes
    end: int
    live: int = 0
    pending: int = 0
    appendable: bool = True
    unreadable: bool = False


@dataclass(slots=True)
class Found:
    """Segments and the places in them, by prefix of reference; `unclean`: the last end left no notes that hold."""

    places: Places = field(default_factory=lambda: {prefix: {} for prefix in PREFIXES})
    known: dict[int, Known] = field(default_factory=dict)
    unclean: bool = False


def name_of(number: int) -> str:
    """Return the name of a segment's file."""
    return f"{number:08d}{_SUFFIX}"


def numbers(root: Path) -> list[int]:
    """Return the numbers of the segments in a store's directory, in order. Raises: OSError."""
    try:
        names = os.listdir(root / FOLDER)
    except FileNotFoundError:
        return []
    found = (name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX))
    return sorted(int(number) for number in found if number.isdecimal() and name_of(int(number)) == number + _SUFFIX)


def find(root: Path) -> Found:
    """Find the place of every replica; finish changes that a crash interrupted. Raises: OSError, NOT_SUPPORTED."""
    folder, found = root / FOLDER, Found()
    for number in numbers(root):
        file = SegmentFile(folder / name_of(number))
        end = max(-(-file.size() // BLOCK_BYTES), 1) * BLOCK_BYTES
        found.known[number] = Known(number, file.key() or b"", end, appendable=file.is_sound())
    if not found.known:
        return found
    found.unclean = not _take_notes(folder, found)
    if found.unclean:
        for known in found.known.values():
            _take_headers(folder, known, found)
        _cut_tail(folder, found.known[max(found.known)], found.places)
    for places in found.places.values():
        for packed in places.values():
            place = layout.unpack(packed)
            found.known[place.segment].live += place.blocks
    return found


def note(folder: Path, known: Mapping[int, Known], places: Mapping[str, Mapping[ReferenceId, int]]) -> None:
    """Note all places durably. Raises: OSError."""
    path = folder / blobs_notes.NAME
    path.unlink(missing_ok=True)
    for part in places.values():
        if part:
            encoded = {reference: packed.to_bytes(_PLACE_BYTES, "little") for reference, packed in part.items()}
            blobs_notes.append(path, encoded)
    lengths = {number: (folder / name_of(number)).stat().st_size for number in known}
    blobs_notes.append(path, {MARK: msgspec.msgpack.encode(lengths)})
    sync_path(folder)


def count_committed(root: Path) -> int:
    """Count the committed replicas in the segments of a store that is not in use; changes nothing. Raises: OSError."""
    count = 0
    for number in numbers(root):
        file = SegmentFile(root / FOLDER / name_of(number))
        count += sum(header is not None and header.committed for _, header in file.walk(file.key()))
    return count


def _take_notes(folder: Path, found: Found) -> bool:
    """Take places from the notes, and remove these; returns whether they were of these segments."""
    notes = NO_NOTES
    with contextlib.suppress(OSError):  # else the headers say it
        notes = blobs_notes.read(folder)
    lengths = {number: (folder / name_of(number)).stat().st_size for number in found.known}
    holds = bool(notes.mark) and notes.mark == msgspec.msgpack.encode(lengths)
    if holds:
        for prefix, part in notes.parts.items():
            found.places[prefix] = {each: int.from_bytes(packed, "little") for each, packed in part.items()}
    (folder / blobs_notes.NAME).unlink(missing_ok=True)
    sync_path(folder)
    return holds


def _take_headers(folder: Path, known: Known, found: Found) -> None:
    file, damaged, torn = SegmentFile(folder / name_of(known.number)), 0, 0
    file.sync(added=False)  # entries read here may be in memory alone, and are relied on from now on
    for block, header in file.walk(known.key or None):
        if header is None:
            damaged += 1
            continue
        place = header.place(known.number, block)
        if known.number == max(found.known) and _is_torn(file, header, place):
            file.wipe(place.at, place.end)
            torn += 1
            continue
        _keep_one(folder, header.reference, place, found.places)
    if file.unreadable:
        known.unreadable, known.appendable = True, False
        log.warning("segment %d: what cannot be read in it is passed over until the next start", known.number)
    if torn:
        log.info("segment %d: %d replicas that were being written at the last end are wiped", known.number, torn)
    if damaged:
        text = "segment %d: %d damaged blocks of %d bytes are passed over; what was in them is lost"
        (log.info if known.number == max(found.known) else log.warning)(text, known.number, damaged, BLOCK_BYTES)


def _is_torn(file: SegmentFile, header: EntryHeader, place: Place) -> bool:
    """Whether an entry of the newest segment was being written at the crash."""
    raw = b"" if header.committed else file.look(place.size, place.at)
    return bool(raw) and not layout.is_whole(header, raw[layout.HEADER_BYTES :])


def _keep_one(folder: Path, reference: ReferenceId, place: Place, places: Places) -> None:
    """Keep one entry of a replica that was being moved: the later one if it is whole."""
    part = places[reference[:PREFIX_CHARS]]
    if reference not in part:
        part[reference] = layout.pack(place)
        return
    earlier = layout.unpack(part[reference])
    kept, other = (place, earlier) if _is_whole(folder, place) else (earlier, place)
    file = SegmentFile(folder / name_of(other.segment))
    file.wipe(other.at, other.end)
    file.sync(added=False)
    committed = place.committed or earlier.committed
    part[reference] = layout.pack(kept._replace(committed=committed))
    if committed and not kept.committed:
        kept_file = SegmentFile(folder / name_of(kept.segment))
        os.pwrite(kept_file.fd, bytes((layout.COMMITTED,)), kept.at + layout.STATE_AT)


def _is_whole(folder: Path, place: Place) -> bool:
    file = SegmentFile(folder / name_of(place.segment))
    raw = file.look(place.size, place.at)
    header = layout.decode_header(raw, None)
    return header is not None and layout.is_whole(header, raw[layout.HEADER_BYTES :])


def _cut_tail(folder: Path, newest: Known, places: Places) -> None:
    """Cut off the bytes behind the last entry of the newest segment, which were being written, if it is appendable."""
    if not newest.appendable:
        return
    own = (layout.unpack(packed) for part in places.values() for packed in part.values())
    newest.end = max((place.end for place in own if place.segment == newest.number), default=BLOCK_BYTES)
    file = SegmentFile(folder / name_of(newest.number))
    if file.size() > newest.end:
        log.info("segment %d: cut off at %d, %d bytes", newest.number, newest.end, file.size() - newest.end)
        os.ftruncate(file.fd, newest.end)
        os.fsync(file.fd)
