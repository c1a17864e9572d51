"""What a start finds in the segments: where each replica is, from what was noted at an orderly end or from the headers.

After any other end the headers say it. What was being written then is cut off or wiped, in the newest segment alone:
all others were synced. A damaged entry costs only itself: the next one is found behind it. What cannot be read is
passed over and kept, and nothing is noted at the next end. Calls block. Layout: docs/formats/replica-store.md.
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
from chelonia.shepherd.store import blobs_notes
from chelonia.shepherd.store import segment_format as layout
from chelonia.shepherd.store.blobs_segment_file import SegmentFile, sync_directory
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
        key: what its headers carry, b"" when nothing in it can be read.
        end: where the next entry goes, bytes.
        live: blocks in use.
        pending: additions of which nobody knows yet whether they are durable.
        appendable: whether more is added to it.
        unreadable: some of its blocks could not be read at the start: it is kept, for they may be at the next one.
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
    """What is there: places by what references begin with; `unclean`: nothing was noted at the last end."""

    places: Places = field(default_factory=lambda: {prefix: {} for prefix in PREFIXES})
    known: dict[int, Known] = field(default_factory=dict)
    unclean: bool = False


def name_of(number: int) -> str:
    """What a segment's file is called."""
    return f"{number:08d}{_SUFFIX}"


def numbers(root: Path) -> list[int]:
    """The segments in a store's directory, in order. Raises: OSError."""
    try:
        names = os.listdir(root / FOLDER)
    except FileNotFoundError:
        return []
    found = (name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX))
    return sorted(int(number) for number in found if number.isdecimal() and name_of(int(number)) == number + _SUFFIX)


def find(root: Path) -> Found:
    """Where everything is; what a crash interrupted is finished. Raises: OSError, NOT_SUPPORTED for newer segments."""
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
    """Note durably where everything is. Raises: OSError."""
    path = folder / blobs_notes.NAME
    path.unlink(missing_ok=True)
    for part in places.values():
        if part:
            encoded = {reference: packed.to_bytes(_PLACE_BYTES, "little") for reference, packed in part.items()}
            blobs_notes.append(path, encoded)
    lengths = {number: (folder / name_of(number)).stat().st_size for number in known}
    blobs_notes.append(path, {MARK: msgspec.msgpack.encode(lengths)})
    sync_directory(folder)


def count_committed(root: Path) -> int:
    """Committed replicas in the segments of a store that nobody uses; nothing is changed. Raises: OSError."""
    count = 0
    for number in numbers(root):
        file = SegmentFile(root / FOLDER / name_of(number))
        count += sum(header is not None and header.committed for _, header in file.walk(file.key()))
    return count


def _take_notes(folder: Path, found: Found) -> bool:
    """Whether what was noted is of these segments; it holds until something is changed, so it is removed."""
    notes = NO_NOTES
    with contextlib.suppress(OSError):  # else the headers say it
        notes = blobs_notes.read(folder)
    lengths = {number: (folder / name_of(number)).stat().st_size for number in found.known}
    holds = bool(notes.mark) and notes.mark == msgspec.msgpack.encode(lengths)
    if holds:
        for prefix, part in notes.parts.items():
            found.places[prefix] = {each: int.from_bytes(packed, "little") for each, packed in part.items()}
    (folder / blobs_notes.NAME).unlink(missing_ok=True)
    sync_directory(folder)
    return holds


def _take_headers(folder: Path, known: Known, found: Found) -> None:
    file, damaged, torn = SegmentFile(folder / name_of(known.number)), 0, 0
    file.sync(added=False)  # what is read may be in memory alone, and from now on is relied on
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
    """Whether an entry of the newest segment was being written: all others were synced before it was begun."""
    raw = b"" if header.committed else file.look(place.size, place.at)
    return bool(raw) and not layout.is_whole(header, raw[layout.HEADER_BYTES :])


def _keep_one(folder: Path, reference: ReferenceId, place: Place, places: Places) -> None:
    """Of two entries of a replica, which was being moved, keep the later one if it is whole."""
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
    """Cut off what stands behind the last entry of the newest segment, if more is added to it: it was being written."""
    if not newest.appendable:
        return
    own = (layout.unpack(packed) for part in places.values() for packed in part.values())
    newest.end = max((place.end for place in own if place.segment == newest.number), default=BLOCK_BYTES)
    file = SegmentFile(folder / name_of(newest.number))
    if file.size() > newest.end:
        log.info("segment %d: cut off at %d, %d bytes", newest.number, newest.end, file.size() - newest.end)
        os.ftruncate(file.fd, newest.end)
        os.fsync(file.fd)
