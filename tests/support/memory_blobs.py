"""A Shepherd's replicas and state in memory: the twin of the files engine, with faults to order.

The object is the disk: it survives a Shepherd's restart. `crash` loses data that is not yet durable. `flip`, `lose`,
`truncate` and `damage_record` are faults of disks; `capacity` is its size.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chelonia.core import bounds
from chelonia.core.cluster.replicas import ReplicaFacts
from chelonia.core.contents.extents import ByteRange
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ReferenceId, parse_reference
from chelonia.core.ports.shepherd import (
    MARK,
    NO_NOTES,
    PREFIX_CHARS,
    Check,
    Notes,
    Scanned,
    ShepherdState,
    SmallReplica,
    StoredReplica,
    StoreIdentity,
    unchecked,
)
from chelonia.core.values import replace
from chelonia.shepherd.store import blobs_notes
from chelonia.wire import records


@dataclass(frozen=True, slots=True)
class MemoryReplica:
    """A replica on it; `data` None: its record alone."""

    data: bytes | None
    facts: ReplicaFacts | None
    committed: bool
    blocks: bytes = b""


class MemoryBlobs:
    """The memory engine. `capacity`: bytes it can hold; `identity`: its store's from the beginning."""

    def __init__(self, capacity: int = 1 << 40, identity: StoreIdentity | None = None) -> None:
        self.capacity = capacity
        self._replicas: dict[ReferenceId, MemoryReplica] = {}
        self._set_aside: dict[ReferenceId, MemoryReplica] = {}
        self._suspended: dict[ReferenceId, bytes] = {}
        self._writers: dict[ReferenceId, MemoryWriter] = {}
        self._identity = identity
        self._notes: list[Mapping[ReferenceId, bytes]] = []
        self._synced = 0
        self._gone: tuple[Any, ...] | None = None
        self.broken = False
        """Cached reads still work; all else fails."""

    # --- faults ---------------------------------------------------------------------------------------------------

    def crash(self) -> None:
        """End the process: uploads are lost, also kept ones. Their writers are dead."""
        for writer in self._writers.values():
            writer.dead = True
        self._writers.clear()
        self._suspended.clear()

    @property
    def unsynced_notes(self) -> int:
        """How many writes of notes could still be lost."""
        return len(self._notes) - self._synced

    def lose_notes(self, count: int) -> None:
        """Lose the last writes of notes, as in a power cut. `count`: at most `unsynced_notes`."""
        assert 0 <= count <= self.unsynced_notes, "what is synced stays"
        del self._notes[len(self._notes) - count :]
        self._synced = len(self._notes)

    def drop_notes(self) -> None:
        """Remove the file of notes, as a person might."""
        self._notes, self._synced = [], 0

    def flip(self, reference: ReferenceId, at: int = 0) -> None:
        """Rot: change one bit of a replica."""
        data = bytearray(self.data(reference))
        data[at] ^= 1
        self._replicas[reference] = replace(self._replicas[reference], data=bytes(data))

    def truncate(self, reference: ReferenceId, size: int) -> None:
        """Lose the end of a replica."""
        self._replicas[reference] = replace(self._replicas[reference], data=self.data(reference)[:size])

    def grow(self, reference: ReferenceId, more: bytes) -> None:
        """Put bytes behind the end of a replica."""
        self._replicas[reference] = replace(self._replicas[reference], data=self.data(reference) + more)

    def lose(self, reference: ReferenceId) -> None:
        """Lose a replica's bytes; its record stays."""
        self._replicas[reference] = replace(self._replicas[reference], data=None)

    def places(self, reference: ReferenceId) -> tuple[MemoryReplica | None, MemoryReplica | None]:
        """A replica as it is among the others, and set aside."""
        return self._replicas.get(reference), self._set_aside.get(reference)

    def put_back(self, reference: ReferenceId, places: tuple[MemoryReplica | None, MemoryReplica | None]) -> None:
        """Undo what was done to a replica, as a power cut may. `places`: as they were."""
        for place, kept in zip((self._replicas, self._set_aside), places, strict=True):
            place.pop(reference, None)
            if kept is not None:
                place[reference] = kept

    def damage_record(self, reference: ReferenceId) -> None:
        self._replicas[reference] = replace(self._replicas[reference], facts=None, committed=True)

    def vanish(self) -> None:
        """Unmount the disk: an empty directory takes its place."""
        self._gone = (self._replicas, self._set_aside, self._suspended, self._identity, self._notes)
        self._replicas, self._set_aside, self._suspended, self._identity, self._notes = {}, {}, {}, None, []
        self._synced = 0

    def come_back(self) -> None:
        """Mount the disk again."""
        assert self._gone is not None
        self._replicas, self._set_aside, self._suspended, self._identity, self._notes = self._gone
        self._synced = len(self._notes)
        self._gone = None

    def data(self, reference: ReferenceId) -> bytes:
        """The bytes of a replica, set aside or not."""
        return (self._replicas.get(reference) or self._set_aside[reference]).data or b""

    def references(self) -> tuple[ReferenceId, ...]:
        """The replicas on disk, in order."""
        return tuple(sorted(self._replicas))

    def record(self, reference: ReferenceId) -> ReplicaFacts | None:
        """The record on disk now; None when it is missing or damaged."""
        kept = self._replicas.get(parse_reference(reference))
        return kept.facts if kept else None

    def aside(self) -> tuple[StoredReplica, ...]:
        """The replicas set aside now, in order of reference."""
        return tuple(_stored(reference, self._set_aside[reference]) for reference in sorted(self._set_aside))

    def kept_uploads(self) -> tuple[ReferenceId, ...]:
        """Interrupted uploads kept by `suspend`, in order."""
        return tuple(sorted(self._suspended))

    # --- the port -------------------------------------------------------------------------------------------------

    async def identity(self) -> StoreIdentity | None:
        """The identity of this store; None when it has none."""
        return self._identity

    async def identify(self, identity: StoreIdentity) -> None:
        self._identity = identity

    async def probe(self) -> None:
        """Write to the medium. Raises: UNAVAILABLE when it is `broken`."""
        if self.broken:
            raise CheloniaError(Kind.UNAVAILABLE, "disk", "", "the disk of this Shepherd failed")

    async def create(self, reference: ReferenceId, *, resume: bool = False) -> MemoryWriter:
        """Open a writer; with `resume` continue the kept bytes."""
        kept = self._suspended.pop(parse_reference(reference), b"")
        writer = MemoryWriter(self, reference, kept if resume else b"")
        self._writers[reference] = writer
        return writer

    async def store_whole(self, replicas: Sequence[SmallReplica]) -> None:
        """Put whole new replicas under their names. Raises: NO_SPACE, UNAVAILABLE; then it keeps none of them."""
        await self.probe()
        if self.used_bytes() + sum(len(each.data) for each in replicas) > self.capacity:
            raise CheloniaError(Kind.NO_SPACE, "write", "", "the disk of this Shepherd is full")
        for each in replicas:
            self.publish(parse_reference(each.reference), each.data, each.facts)

    async def read(self, reference: ReferenceId, span: ByteRange, check: Check = unchecked) -> AsyncIterator[bytes]:
        """Yield the bytes of `span`. Raises: NOT_ALIVE when fewer are there; as `check`."""
        offset, end = span.offset, span.offset + span.length
        while offset < end:
            kept = None if self.broken else self._replicas.get(parse_reference(reference))
            data = (kept.data if kept else None) or b""
            want = min(bounds.CHUNK_BYTES, end - offset)
            if len(data) < offset + want:
                raise CheloniaError(Kind.NOT_ALIVE, "read", reference, f"bytes missing after {len(data)}")
            check(offset, data[offset : offset + want])
            yield data[offset : offset + want]
            offset += want

    def at_hand(self, reference: ReferenceId, size: int) -> bytes | None:
        """A whole replica, as from a cache, of every other reference; None: it has to be read."""
        found = None if self.broken or int(reference[-1], 16) % 2 else self._replicas.get(reference)
        return found.data if found is not None and found.data is not None and len(found.data) == size else None

    async def facts(self, reference: ReferenceId) -> ReplicaFacts | None:
        """Read the record again; None when it is missing or damaged."""
        return self.record(reference)

    async def blocks(self, reference: ReferenceId) -> bytes:
        """The CRC of each block; b"" where none were stored, or the record is damaged."""
        kept = self._replicas.get(parse_reference(reference))
        return records.decode_blocks(records.encode_facts(kept.facts, kept.blocks)) if kept and kept.facts else b""

    async def spoil(self, reference: ReferenceId) -> bool:
        """Change one byte in the middle of a replica; False when it has none."""
        size = len(self.data(parse_reference(reference)))
        if size:
            self.flip(reference, size // 2)
        return size > 0

    async def trim(self, reference: ReferenceId, size: int) -> None:
        """Cut a replica off behind its first `size` bytes."""
        self.truncate(parse_reference(reference), size)

    async def settle(self, references: tuple[ReferenceId, ...]) -> None:
        """Note that these replicas are committed."""
        for reference in references:
            kept = self._replicas.get(parse_reference(reference))
            if kept is not None:
                self._replicas[reference] = replace(kept, committed=True)

    def unsettle(self, references: tuple[ReferenceId, ...]) -> None:
        """Lose the note that these are committed."""
        for reference in references:
            if (kept := self._replicas.get(reference)) is not None:
                self._replicas[reference] = replace(kept, committed=False)

    async def erase(self, reference: ReferenceId) -> bool:
        """Remove bytes and record, wherever they are; False when there was nothing."""
        places = (self._replicas, self._set_aside, self._suspended)
        found = [place.pop(parse_reference(reference), None) is not None for place in places]
        return any(found)

    async def quarantine(self, reference: ReferenceId) -> None:
        kept = self._replicas.pop(parse_reference(reference), None)
        if kept is not None:
            self._set_aside[reference] = kept

    async def discard(self, reference: ReferenceId) -> bool:
        """Remove a replica that was set aside, and only such; False when it was not there."""
        return self._set_aside.pop(parse_reference(reference), None) is not None

    async def reinstate(self, reference: ReferenceId) -> StoredReplica | None:
        """Bring back, as committed, a replica that was set aside; None when its bytes are not there."""
        kept = self._set_aside.get(parse_reference(reference))
        if kept is None or kept.data is None:
            return None
        self._replicas[reference] = replace(self._set_aside.pop(reference), committed=True)
        return _stored(reference, self._replicas[reference])

    async def quarantined(self, after: str = "", limit: int = 0) -> tuple[StoredReplica, ...]:
        """The replicas set aside, in order of reference: `limit` (0: all) behind the reference `after`."""
        return tuple([each for each in self.aside() if each.reference > after][: limit or None])

    async def count_quarantined(self) -> int:
        """How many replicas are set aside."""
        return len(self._set_aside)

    async def scan(self, notes: Notes = NO_NOTES) -> AsyncIterator[Scanned]:
        """Every replica, in order of reference; of noted ones with record and bytes only that."""
        pages: dict[str, list[StoredReplica]] = {}
        for reference in sorted(self._replicas):
            pages.setdefault(reference[:PREFIX_CHARS], []).append(_stored(reference, self._replicas[reference]))
        for prefix, stored in pages.items():
            noted = notes.parts.get(prefix, {})
            here = [each for each in stored if each.reference in noted and each.size >= 0]
            known = {each.reference: noted[each.reference] for each in here}
            uncommitted = frozenset(each.reference for each in here if not each.committed)
            yield Scanned(prefix, known, uncommitted, [each for each in stored if each not in here])

    async def sizes(self, references: Sequence[ReferenceId]) -> tuple[int, ...]:
        """How many bytes are there, -1 where none are."""
        kept = [self._replicas.get(reference) for reference in references]
        return tuple(-1 if each is None or each.data is None else len(each.data) for each in kept)

    async def notes(self, head: bytes = b"") -> Notes:
        """The notes of replicas, each behind `head`."""
        return blobs_notes.gather(self._notes, head)

    async def note(self, notes: Mapping[ReferenceId, bytes]) -> None:
        """Note something of replicas, b"" to forget it."""
        self._notes.append(dict(notes))
        if MARK in notes:
            self._synced = len(self._notes)

    async def note_anew(self, pages: AsyncIterable[Mapping[ReferenceId, bytes]]) -> None:
        """Note this, and forget all else."""
        self._notes = [dict(page) async for page in pages]
        self._synced = len(self._notes)

    async def space(self) -> tuple[int, int]:
        """(free, total) bytes usable for replicas."""
        return max(self.capacity - self.used_bytes(), 0), self.capacity

    # --- for the writer -------------------------------------------------------------------------------------------

    def used_bytes(self) -> int:
        """Bytes of replicas, set-aside replicas and uploads."""
        used = sum(map(len, self._suspended.values()))
        for place in (self._replicas, self._set_aside):
            used += sum([len(kept.data) for kept in place.values() if kept.data is not None])
        return used + sum([len(writer.buffer) for writer in self._writers.values()])

    def publish(self, reference: ReferenceId, data: bytes, facts: ReplicaFacts, blocks: bytes = b"") -> None:
        self._replicas[reference] = MemoryReplica(data, facts, committed=False, blocks=blocks)

    def release(self, writer: MemoryWriter, keep: bytes | None = None) -> None:
        """End an upload; `keep` is what to resume from."""
        if self._writers.get(writer.reference) is writer:
            del self._writers[writer.reference]
        if keep is not None:
            self._suspended[writer.reference] = keep


class MemoryWriter:
    """One upload into memory. `dead` after a crash: its calls have no effect any more."""

    def __init__(self, store: MemoryBlobs, reference: ReferenceId, start: bytes) -> None:
        self._store = store
        self.reference = reference
        self.buffer = bytearray(start)
        self.dead = False

    @property
    def offset(self) -> int:
        return len(self.buffer)

    async def write(self, chunk: bytes) -> None:
        """Append. Raises: NO_SPACE (the upload is thrown away)."""
        self._check_alive()
        if self._store.used_bytes() + len(chunk) > self._store.capacity:
            await self.abort()
            raise CheloniaError(Kind.NO_SPACE, "write", self.reference, "the disk of this Shepherd is full")
        self.buffer += chunk

    async def commit(self, facts: ReplicaFacts, blocks: bytes = b"") -> None:
        """Put bytes and record under their final name."""
        self._check_alive()
        assert facts.size == len(self.buffer), f"record says {facts.size} bytes, {len(self.buffer)} were written"
        self._store.release(self)
        self._store.publish(self.reference, bytes(self.buffer), facts, blocks)

    async def suspend(self) -> None:
        """Keep the bytes for a later resume."""
        if not self.dead:
            self._store.release(self, bytes(self.buffer))

    async def abort(self) -> None:
        if not self.dead:
            self._store.release(self)

    def _check_alive(self) -> None:
        if self.dead:
            raise CheloniaError(Kind.CANCELLED, "write", self.reference, "this Shepherd has crashed")


def _stored(reference: ReferenceId, kept: MemoryReplica) -> StoredReplica:
    return StoredReplica(reference, kept.facts, -1 if kept.data is None else len(kept.data), kept.committed)


class MemoryState:
    """Keeps `ShepherdState` in memory; the object is the disk."""

    def __init__(self) -> None:
        self.state: ShepherdState | None = None

    def load(self) -> ShepherdState | None:
        """The state as last saved, or None."""
        return self.state

    def save(self, state: ShepherdState) -> None:
        self.state = state
