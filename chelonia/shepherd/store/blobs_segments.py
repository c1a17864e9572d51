"""Small replicas in segments: appended together, one sync for all writers that wait, wiped in their place.

`places` has the place of each; an orderly end notes them, and after a crash the headers are read. Calls block, come
from several threads, and raise OSError when the disk fails. Layout: docs/formats/replica-store.md. Invariants:
- A replica is in `places` only when its entry is on stable storage; it leaves `places` before it is wiped.
- A crash during a move can leave two entries of one replica: one is wiped before anything else is done to it.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from chelonia.core import bounds
from chelonia.core.cluster.replicas import ReplicaFacts
from chelonia.core.contents.extents import ByteRange
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ReferenceId
from chelonia.core.ports.shepherd import PREFIX_CHARS, SmallReplica, StoredReplica
from chelonia.core.values import replace
from chelonia.durable_files import sync_path
from chelonia.shepherd.store import blobs_segment_start as start
from chelonia.shepherd.store import segment_format as layout
from chelonia.shepherd.store.blobs_segment_file import UNREADABLE, SegmentFile, make_segment
from chelonia.shepherd.store.blobs_segment_start import FOLDER, Found, Known, name_of
from chelonia.shepherd.store.segment_format import BLOCK_BYTES, EntryHeader, Place
from chelonia.wire import records

T = TypeVar("T")

log = logging.getLogger(__name__)

DAMAGE: Final = (*UNREADABLE, errno.ENOENT, errno.ESTALE)
"""Errors that mean the bytes are gone or rotten."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry to add: a header, and the record and bytes that it describes."""

    header: EntryHeader
    body: bytes


class BlobSegments:
    """The segments below a store's directory.

    Args:
        on_first: called when the first segment has been made, before anything is in it.
        segment_bytes: size at which the next one is begun.
    """

    def __init__(
        self, root: Path, on_first: Callable[[], None] = lambda: None, segment_bytes: int = bounds.SEGMENT_BYTES
    ) -> None:
        self._folder = root / FOLDER
        self._on_first = on_first
        self._segment_bytes = segment_bytes
        self._adding, self._moving, self._counting = threading.Lock(), threading.RLock(), threading.Lock()
        self._opened: dict[int, SegmentFile] = {}
        self._opening = threading.Lock()
        self._current: SegmentFile | None = None
        self._closed = False
        self._stale: defaultdict[ReferenceId, list[Place]] = defaultdict(list)
        """Entries that have to be wiped, by replica."""
        self._given_up: set[int] = set()
        """Segments with entries that cannot be moved: the scrub will report those."""
        self._loading = threading.Lock()
        self._found: Found | None = None
        self._was_in_use = bool(start.numbers(root))

    def load(self) -> bool:
        """Find the place of every replica, if no call has done so yet; slow after a crash. Returns whether there was no
        orderly end."""
        return self._loaded().unclean

    def _loaded(self) -> Found:
        found = self._found
        if found is None:
            with self._loading:
                found = self._found = self._looked_for()
        return found

    def _looked_for(self) -> Found:
        found = self._found or start.find(self._folder.parent)
        if self._was_in_use and not found.known:
            raise OSError(errno.ENOENT, "the segments are gone", str(self._folder))
        return found

    @property
    def places(self) -> start.Places:
        """Packed place of each replica, by prefix of reference."""
        return self._loaded().places

    @property
    def _known(self) -> dict[int, Known]:
        return self._loaded().known

    def close(self) -> None:
        """Note all places for the next start; nothing can be changed from now on."""
        with self._moving, self._adding:
            unsure = any(known.pending or known.unreadable for known in self._known.values()) if self._found else True
            if not (unsure or self._closed or self._stale) and self._known and self.is_here():
                with contextlib.suppress(OSError):
                    start.note(self._folder, self._known, self.places)
            self._closed = True
            self._current = None
            self._opened.clear()

    @property
    def in_use(self) -> bool:
        """Whether there is any segment."""
        return self._was_in_use or bool(self._known)

    def is_here(self) -> bool:
        """Whether the segments are where they were."""
        if self._found is None:
            return not self._was_in_use or bool(start.numbers(self._folder.parent))
        newest = sorted(self._known, reverse=True)
        return not newest or any((self._folder / name_of(number)).exists() for number in newest)

    def __contains__(self, reference: ReferenceId) -> bool:
        return self._packed(reference) is not None

    def holds(self, reference: ReferenceId) -> bool:
        """Whether any entry of it is here, or has still to be wiped."""
        return reference in self or reference in self._stale

    # --- reading ----------------------------------------------------------------------------------------------------

    def read(self, reference: ReferenceId, span: ByteRange) -> bytes:
        """Read the bytes of `span`. Raises: NOT_ALIVE when fewer are there, or they cannot be read."""
        while (packed := self._packed(reference)) is not None:
            place = layout.unpack(packed)
            want = max(min(span.length, place.data_bytes - span.offset), 0)
            try:
                data = self._read_at(place, place.data_at + span.offset, want)
            except CheloniaError:
                if _same(self._packed(reference), packed):
                    raise
                continue  # it was moved, and its segment given back
            if _same(self._packed(reference), packed):  # else it was moved or wiped while it was read
                if len(data) < span.length:
                    cause = f"bytes missing after {span.offset + len(data)}"
                    raise CheloniaError(Kind.NOT_ALIVE, "read", reference, cause)
                return data
        raise CheloniaError(Kind.NOT_ALIVE, "read", reference, "unreadable: it is not here")

    def at_hand(self, reference: ReferenceId, size: int) -> bytes | None:
        """Return all `size` bytes if they are in memory, of a segment that is open; else None. Never blocks."""
        packed = self._packed(reference) if self._found is not None else None
        if packed is None:
            return None
        place = layout.unpack(packed)
        file = self._opened.get(place.segment)
        data = file.in_memory(size, place.data_at) if file is not None and place.data_bytes == size else None
        return data if _same(self._packed(reference), packed) else None  # it was moved or wiped meanwhile

    def facts(self, reference: ReferenceId) -> ReplicaFacts | None:
        """Read the record; None when it is missing or damaged, and when the header before it is."""
        return self._decoded(reference, records.decode_facts)

    def blocks(self, reference: ReferenceId) -> bytes:
        """Return the CRC of each block, out of the record."""
        return self._decoded(reference, records.decode_blocks) or b""

    def _decoded(self, reference: ReferenceId, decode: Callable[[bytes], T]) -> T | None:
        while (packed := self._packed(reference)) is not None:
            place = layout.unpack(packed)
            header, record = self._front(place)
            if not _same(self._packed(reference), packed):
                continue
            if header is None or header.reference != reference:
                return None
            try:
                return decode(record)
            except CheloniaError as damage:
                if damage.kind is Kind.NOT_SUPPORTED:
                    raise  # written by newer software: nothing is wrong with it
                return None
        return None

    def stored(self, reference: ReferenceId, lengths: dict[int, int]) -> StoredReplica:
        """Return a replica as a scan reports it. `lengths`: as for `size`."""
        facts = self.facts(reference)
        packed = self._packed(reference)
        committed = facts is None or packed is None or layout.unpack(packed).committed
        return StoredReplica(reference, facts, self.size(reference, lengths), committed)

    def size(self, reference: ReferenceId, lengths: dict[int, int]) -> int:
        """Return how many bytes of a replica are there, -1 where none are.

        Args:
            lengths: known lengths of segments, bytes; those looked up here are added.
        """
        packed = self._packed(reference)
        if packed is None:
            return -1
        place = layout.unpack(packed)
        if place.segment not in lengths:
            try:
                lengths[place.segment] = (self._folder / name_of(place.segment)).stat().st_size
            except FileNotFoundError:
                lengths[place.segment] = 0
        available = lengths[place.segment] - place.data_at
        return place.data_bytes if available >= place.data_bytes else available if available > 0 else -1

    def raw(self, reference: ReferenceId) -> tuple[bytes, bytes, bool]:
        """Read (record, data, committed) as they are, whole or not. Raises: as `place`, NOT_ALIVE."""
        place = self.place(reference)
        body = self._read_at(place, place.at + layout.HEADER_BYTES, place.record_bytes + place.data_bytes)
        return body[: place.record_bytes], body[place.record_bytes :], place.committed

    def is_whole(self, reference: ReferenceId) -> bool:
        """Whether record and bytes are as they were written. Raises: OSError when it is not here."""
        header, _ = self._front(self.place(reference))
        with contextlib.suppress(CheloniaError):
            record, data, _ = self.raw(reference)
            return header is not None and layout.is_whole(header, record + data)
        return False

    def salvaged(self, reference: ReferenceId) -> tuple[bytes, bytes, bool]:
        """As `raw`, with zeros for blocks that cannot be read."""
        try:
            return self.raw(reference)
        except CheloniaError as damage:
            if not isinstance(damage.__cause__, OSError) or damage.__cause__.errno not in UNREADABLE:
                raise
        place, entry = self.place(reference), b""
        for at in range(place.at, place.end, BLOCK_BYTES):
            with contextlib.suppress(CheloniaError):
                entry += self._read_at(place, at, BLOCK_BYTES)
            entry = entry.ljust(at + BLOCK_BYTES - place.at, b"\0")
        body = entry[layout.HEADER_BYTES : place.size]
        return body[: place.record_bytes], body[place.record_bytes :], place.committed

    def name_alike(self, prefix: str, noted: Iterable[ReferenceId]) -> None:
        """Use these string objects as references of replicas, so that each is in memory once."""
        part = self.places[prefix]
        self.places[prefix] = {reference: part[reference] for reference in noted} | part

    # --- changing ---------------------------------------------------------------------------------------------------

    def store(self, replicas: Sequence[SmallReplica]) -> None:
        """Put new replicas on stable storage, all or none."""
        entries = list[Entry]()
        for each in replicas:
            record = records.record_of(each.facts, each.data)
            entries.append(Entry(layout.header_of(each.reference, record, each.data), record + each.data))
        self.add(entries)

    def add(self, entries: Sequence[Entry]) -> None:
        """Put entries on stable storage; they replace earlier ones of the same replicas."""
        with self._adding:
            known, file = self._writable(sum(len(each.body) + BLOCK_BYTES for each in entries))
            at, places, written = known.end, list[Place](), list[bytes]()
            for each in entries:
                places.append(each.header.place(known.number, at // BLOCK_BYTES))
                written.append(layout.encode(known.key, each.header, each.body))
                at = places[-1].end
            with self._reopening(known.number):
                change = file.add(b"".join(written), known.end)
            known.end, known.pending = at, known.pending + 1
        try:
            with self._reopening(known.number):
                self._make_durable(file, change, places)
            olds = [self._put(each.header.reference, place) for each, place in zip(entries, places, strict=True)]
        finally:
            with self._adding:
                known.pending -= 1
        if any(olds):
            self._wipe_stale([each.header.reference for each in entries])

    def _make_durable(self, file: SegmentFile, change: int, places: Sequence[Place]) -> None:
        """Raises: OSError; then none of the added entries is there."""
        try:
            file.sync(change, added=True)
            if not file.is_named():  # a start would not find the entries
                raise OSError(errno.ENOENT, "a segment is gone", str(file.path))
        except OSError:
            self._known[places[0].segment].appendable &= not file.broken
            with contextlib.suppress(OSError):
                file.wipe(places[0].at, places[-1].end)
            raise

    def settle(self, references: Iterable[ReferenceId]) -> None:
        """Note of all that it can be noted of that they are committed; not synced. Raises: OSError for the others."""
        failure = None
        with self._moving:
            for reference in references:
                packed = self._packed(reference)
                if packed is not None and not layout.unpack(packed).committed:
                    place = layout.unpack(packed)
                    try:
                        with self._reopening(place.segment):
                            file = self._file(place.segment)
                            os.pwrite(file.fd, bytes((layout.COMMITTED,)), place.at + layout.STATE_AT)
                    except OSError as error:
                        failure = error
                        continue
                    self._part(reference)[reference] = layout.pack(place._replace(committed=True))
        if failure is not None:
            raise failure

    def erase(self, *references: ReferenceId) -> bool:
        """Leave nothing of these replicas, durably, with one sync a segment; False when there was nothing of any."""
        with self._moving:
            for reference in references:
                self._take(reference)
            found = [reference for reference in references if reference in self._stale]
        if found:
            self._wipe_stale(found)
        return bool(found)

    @contextlib.contextmanager
    def still(self) -> Iterator[None]:
        """Keep replicas from being moved, settled or erased within the context."""
        with self._moving:
            yield

    def spoil(self, reference: ReferenceId) -> bool:
        """Change one byte in the middle of a replica, durably; False when it has no bytes."""
        with self._moving:
            place = self.place(reference)
            middle = place.data_at + place.data_bytes // 2
            found = self._read_at(place, middle, 1) if place.data_bytes else b""
            if found:
                file = self._file(place.segment)
                os.pwrite(file.fd, bytes((found[0] ^ 0xFF,)), middle)
                file.sync(added=False)
            return bool(found)

    def trim(self, reference: ReferenceId, size: int) -> None:
        """Cut a replica off durably after its first `size` bytes: it is written again without the others."""
        with self._moving:
            record, data, committed = self.raw(reference)
            assert len(data) >= size, "a replica is cut off behind its end, never made longer"
            self.add(
                [Entry(layout.header_of(reference, record, data[:size], committed=committed), record + data[:size])]
            )

    def compact(self) -> bool:
        """Move some live entries out of a mostly dead segment, or remove an empty one; whether there was one."""
        with self._moving:
            known = self._dying()
            if known is None or self._closed:
                return False
            if not known.live:
                self._drop(known)
                return True
            moved = list[Entry]()
            try:
                moved = self._living(known)
            except OSError as error:
                if error.errno not in DAMAGE or not self.is_here():
                    raise
            if moved:
                self.add(moved)
            else:
                log.warning("segment %d stays: what is left in it cannot be read; the scrub will tell", known.number)
                self._given_up.add(known.number)
            return True

    # --- pieces -----------------------------------------------------------------------------------------------------

    def place(self, reference: ReferenceId) -> Place:
        """Return the place of a replica. Raises: FileNotFoundError when it is not here, as a file would."""
        packed = self._packed(reference)
        if packed is None:
            raise FileNotFoundError(errno.ENOENT, "it is not here", reference)
        return layout.unpack(packed)

    def _part(self, reference: ReferenceId) -> dict[ReferenceId, int]:
        return self.places[reference[:PREFIX_CHARS]]

    def _packed(self, reference: ReferenceId) -> int | None:
        part = self.places.get(reference[:PREFIX_CHARS])
        return None if part is None else part.get(reference)

    def _put(self, reference: ReferenceId, place: Place) -> bool:
        """Set the place of a replica; returns whether it had another before."""
        with self._counting:
            self._known[place.segment].live += place.blocks
        part = self._part(reference)
        old = part.get(reference)
        part[reference] = layout.pack(place)  # at once: a reader finds it in one place or the other
        if old is not None:
            self._outdate(reference, old)
        return old is not None

    def _take(self, reference: ReferenceId) -> None:
        packed = self.places.get(reference[:PREFIX_CHARS], {}).pop(reference, None)
        if packed is not None:
            self._outdate(reference, packed)

    def _outdate(self, reference: ReferenceId, packed: int) -> None:
        place = layout.unpack(packed)
        with self._counting:
            self._known[place.segment].live -= place.blocks
        with self._moving:
            self._stale[reference].append(place)

    def _wipe_stale(self, references: Iterable[ReferenceId]) -> None:
        """Wipe durably the unused entries of these replicas; after a failure `erase` tries again."""
        with self._moving:
            self._check_open()
            wiped = {reference: tuple(self._stale.get(reference, ())) for reference in references}
        changes = dict[SegmentFile, int]()
        for segment, at, end in _holes(place for places in wiped.values() for place in places):
            with self._reopening(segment):
                changes.update(self._wiped(segment, at, end))
        for file, change in changes.items():
            file.sync(change, added=False)
        with self._moving:
            for reference, places in wiped.items():
                left = [each for each in self._stale.pop(reference, ()) if each not in places]
                if left:
                    self._stale[reference] = left

    def _wiped(self, segment: int, at: int, end: int) -> dict[SegmentFile, int]:
        """Wipe bytes of a segment; returns the change to sync, nothing when the segment is gone."""
        try:
            file = self._file(segment)
        except FileNotFoundError:
            if not self.is_here():
                raise  # the disk is away: nothing is known to be gone
            return {}
        return {file: file.wipe(at, end)}

    def _read_at(self, place: Place, at: int, length: int) -> bytes:
        """Raises: NOT_ALIVE when the bytes are rotten or their segment is gone."""
        try:
            with contextlib.suppress(OSError), self._reopening(place.segment):
                return self._file(place.segment).read(length, at)
            return self._file(place.segment).read(length, at)
        except OSError as error:
            if error.errno not in DAMAGE:
                raise
            cause = f"unreadable: {error.strerror}"
            raise CheloniaError(Kind.NOT_ALIVE, "read", name_of(place.segment), cause) from error

    def _front(self, place: Place) -> tuple[EntryHeader | None, bytes]:
        try:
            front = self._read_at(place, place.at, layout.HEADER_BYTES + place.record_bytes)
            key = self._known[place.segment].key
        except (CheloniaError, KeyError):
            return None, b""
        return layout.decode_header(front, key), front[layout.HEADER_BYTES :]

    def _file(self, number: int) -> SegmentFile:
        """A segment, opened if need be. Raises: OSError, ESTALE when another one stands in its place."""
        with self._opening:
            file = self._opened.pop(number, None)
            if file is None:
                if number not in self._known:
                    raise FileNotFoundError(errno.ENOENT, "it was given back", name_of(number))
                file = SegmentFile(self._folder / name_of(number))
                if (file.key() or b"") != self._known[number].key:
                    raise OSError(errno.ESTALE, "another segment stands in its place", str(file.path))
            self._opened[number] = file
            while len(self._opened) > bounds.SEGMENTS_OPEN_MAX:
                del self._opened[next(iter(self._opened))]
            return file

    @contextlib.contextmanager
    def _reopening(self, number: int) -> Iterator[None]:
        try:
            yield
        except OSError:  # it may have been open since before the disk was away
            self._current = None
            with self._opening:
                self._opened.pop(number, None)
            raise

    def _check_open(self) -> None:
        if self._closed:
            raise OSError(errno.ESHUTDOWN, "this store is closed", str(self._folder))

    def _writable(self, length: int) -> tuple[Known, SegmentFile]:
        """The segment for `length` more bytes: the newest, or a new one."""
        self._check_open()
        newest = max(self._known, default=0)
        known, file = self._known.get(newest), self._current
        if known is not None and known.appendable and known.end + length <= max(self._segment_bytes, length):
            with contextlib.suppress(FileNotFoundError):
                self._current = file = file or self._file(newest)
                if not file.broken:
                    return known, file
            if not self.is_here():
                raise OSError(errno.ENOENT, "the segments are gone", str(self._folder))
        if known is not None:  # sync it whole: a start takes only the newest segment for half written
            with contextlib.suppress(OSError):  # the writers that wait for it get their own error
                (file or self._file(newest)).sync(added=True)
        return self._begin(newest + 1)

    def _begin(self, number: int) -> tuple[Known, SegmentFile]:
        if not self._known:
            self._folder.mkdir(exist_ok=True)
            sync_path(self._folder.parent)
        number = max(number, *(other + 1 for other in start.numbers(self._folder.parent)), 1)
        key = os.urandom(layout.KEY_BYTES)
        file = make_segment(self._folder / name_of(number), key)
        if not self._known:
            self._on_first()
        known = self._known[number] = Known(number, key, BLOCK_BYTES)
        self._current = file
        with self._opening:
            self._opened[number] = file
        return known, file

    def _dying(self) -> Known | None:
        """The segment to give up next: not the newest, no entry on its way into it, little left in it."""
        with self._adding:
            newest = max(self._known, default=0)
            stale = {place.segment for places in self._stale.values() for place in places}
            found = [
                known
                for known in self._known.values()
                if known.number != newest
                and not (known.pending or known.unreadable)
                and known.live * BLOCK_BYTES * bounds.SEGMENT_LIVE_SHARE <= known.end
                and known.number not in stale
                and not (known.live and known.number in self._given_up)
            ]
        return min(found, key=lambda known: known.live, default=None)

    def _living(self, known: Known) -> list[Entry]:
        file, moved, size = self._file(known.number), list[Entry](), 0
        for block, header in file.walk(known.key):
            if size >= bounds.SEGMENT_MOVED_BYTES:
                break
            if header is None:
                continue
            packed = self._packed(header.reference)
            if packed is not None and _same(packed, layout.pack(header.place(known.number, block))):
                try:
                    record, data, committed = self.raw(header.reference)
                except CheloniaError:
                    continue  # it cannot be read: it stays
                if layout.is_whole(header, record + data):  # a rotten one stays, too
                    moved.append(Entry(replace(header, committed=committed), record + data))
                    size += len(data) + BLOCK_BYTES
        return moved

    def _drop(self, known: Known) -> None:
        with self._opening:
            self._opened.pop(known.number, None)
        (self._folder / name_of(known.number)).unlink(missing_ok=True)
        sync_path(self._folder)
        with self._adding:
            del self._known[known.number]
        log.info("segment given back number=%d bytes=%d", known.number, known.end)


def _same(one: int | None, other: int) -> bool:
    """Whether two packed places are the same, committed or not."""
    return one is not None and one >> 1 == other >> 1


def _holes(places: Iterable[Place]) -> list[tuple[int, int, int]]:
    """(segment, first byte, end) of the holes to punch: adjacent places are one hole."""
    holes = list[tuple[int, int, int]]()
    for place in sorted(places):
        begin = place.at
        if holes and holes[-1][::2] == (place.segment, place.at):
            begin = holes.pop()[1]
        holes.append((place.segment, begin, place.end))
    return holes
