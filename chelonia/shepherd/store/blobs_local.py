"""Replicas on a local disk: small ones in segments, all others as files. Layers above cannot tell them apart.

A small replica that arrives whole goes into a segment. So does an upload that ends while it is small; it is held in
memory until then. A job moves small replicas that are files into segments.
Replicas in quarantine and suspended uploads are always files: a person may have to look at them.
Layout: docs/formats/replica-store.md. Reasoning: docs/design/017-small-replicas.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from chelonia.core import bounds
from chelonia.core.cluster.replicas import ReplicaFacts
from chelonia.core.contents.extents import ByteRange
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ReferenceId, parse_reference
from chelonia.core.ports.shepherd import (
    NO_NOTES,
    BlobWriter,
    Check,
    Notes,
    Scanned,
    SmallReplica,
    StoreIdentity,
    unchecked,
)
from chelonia.core.timing.jobs import Job, Next, Wait
from chelonia.core.values import replace
from chelonia.shepherd.store import segment_format as layout
from chelonia.shepherd.store import store_state
from chelonia.shepherd.store.blobs_files import COMMITTED, UNCOMMITTED, FileBlobs
from chelonia.shepherd.store.blobs_segments import BlobSegments
from chelonia.shepherd.store.small_files import SmallFiles

MOVE_MS: Final = 100
"""Pause between two moves out of a segment that is given up: at most 10 MiB a second."""
LOOK_MS: Final = 10_000
"""Pause between two looks for such a segment."""
_GONE: Final = "its segments/ is gone"


class LocalBlobs:
    """A `BlobStore`: the engine of a Shepherd's disk.

    Args:
        root, min_free_bytes, still_ms: as of `FileBlobs`.
        small_bytes_max: largest replica that goes into a segment; 0: none do, and those that are there stay.
        segment_bytes: size at which another segment is begun.

    Raises: BAD_CONFIG when another process uses the directory, or its replicas are gone.
    """

    def __init__(
        self,
        root: Path,
        *,
        min_free_bytes: int = 0,
        small_bytes_max: int = bounds.INLINE_BYTES_MAX,
        segment_bytes: int = bounds.SEGMENT_BYTES,
        still_ms: int = bounds.DISK_STILL_MS,
    ) -> None:
        assert small_bytes_max <= layout.DATA_BYTES_MAX, "what is larger is a file"
        files = self._files = FileBlobs(root, min_free_bytes=min_free_bytes, still_ms=still_ms)
        self._root = root
        self._small_bytes_max = small_bytes_max
        self._begun = self._scanned = False
        self._identity_lock = threading.Lock()
        """Lock of writes to the store's identity."""
        self._erasing = asyncio.Lock()
        self._to_erase: dict[ReferenceId, None] = {}
        self._erased = set[ReferenceId]()
        try:
            self._segments = BlobSegments(root, self._note_segments, segment_bytes)
            self._check_segments()
            self._small_files = SmallFiles(files, self._segments, small_bytes_max)
        except BaseException:
            files.close()
            raise
        # These have nothing to do with segments.
        self.probe, self.space = files.probe, files.space
        self.notes, self.note, self.note_anew = files.notes, files.note, files.note_anew
        self.quarantined, self.count_quarantined = files.quarantined, files.count_quarantined
        self.discard, self.reinstate = files.discard, files.reinstate

    def close(self) -> None:
        """Wait for running calls, note the places in segments, and let another process have the directory."""
        self._files.close(self._segments.close)

    def job(self) -> Job:
        """Return the job that gives up mostly empty segments, and moves small files into segments, bit by bit."""

        def move() -> bool:
            return self._segments.compact() or (self._scanned and self._small_files.move())

        async def step() -> Next:
            return Wait(MOVE_MS if await self._files.run(move, long=True) else LOOK_MS)

        return Job("segments", step, Wait(LOOK_MS))

    # --- whose it is ------------------------------------------------------------------------------------------------

    async def identity(self) -> StoreIdentity | None:
        found = await self._files.identity()
        if found is not None and not await self._files.answered(self._segments.is_here):
            raise CheloniaError(Kind.BAD_CONFIG, "open store", str(self._root), _GONE)
        return found

    async def identify(self, identity: StoreIdentity) -> None:
        def write() -> None:
            with self._identity_lock:  # the first segment may be noted in the identity before `in_use` is true
                has_segments = self._segments.in_use or store_state.has_segments(self._root)
                store_state.write_identity(self._root, identity, segments=has_segments)

        await self._files.run(write)

    def _check_segments(self) -> None:
        """Raises: BAD_CONFIG when the identity says that there are segments, and there are none."""
        if self._segments.in_use:
            self._note_segments()
        elif store_state.has_segments(self._root):
            raise CheloniaError(Kind.BAD_CONFIG, "open store", str(self._root), f"{_GONE}: {store_state.PUT_BACK}")

    def _note_segments(self) -> None:
        """Note in the identity that the store is not complete without its segments."""
        with self._identity_lock:
            if not store_state.has_segments(self._root):
                identity = store_state.read_identity(self._root)
                if identity is not None:
                    store_state.write_identity(self._root, identity, segments=True)

    # --- taking -----------------------------------------------------------------------------------------------------

    async def create(self, reference: ReferenceId, *, resume: bool = False) -> BlobWriter:
        """Open a writer; with `resume` continue a kept upload. Raises: UNAVAILABLE, NO_SPACE on a failing disk."""
        if not self._small_bytes_max or resume:  # a kept upload is a file
            return await self._files.create(reference, resume=resume)
        await self._files.forget_kept(reference)
        return SmallWriter(self, self._files, reference, self._small_bytes_max)

    async def store_whole(self, replicas: Sequence[SmallReplica]) -> None:
        """Put whole new replicas on stable storage, all or none. Raises: NO_SPACE, UNAVAILABLE."""
        largest = max((len(each.data) for each in replicas), default=0)
        if not self._small_bytes_max or largest > self._small_bytes_max:
            await self._files.store_whole(replicas)
            return
        for each in replicas:
            parse_reference(each.reference)

        def work() -> None:
            if self._files.free_bytes() < sum(len(each.data) for each in replicas):
                raise OSError(errno.ENOSPC, "the reserve of free space is reached")
            self._segments.store(replicas)

        await self._files.run(work)

    async def settle(self, references: tuple[ReferenceId, ...]) -> None:
        small = [reference for reference in references if reference in self._segments]
        try:
            if small:
                await self._files.run(lambda: self._segments.settle(small))
        finally:
            others = tuple(reference for reference in references if reference not in self._segments)
            if others:
                await self._files.settle(others)

    # --- reading ----------------------------------------------------------------------------------------------------

    async def read(self, reference: ReferenceId, span: ByteRange, check: Check = unchecked) -> AsyncIterator[bytes]:
        if reference not in self._segments:
            try:
                async for chunk in self._files.read(reference, span, check):
                    yield chunk
                return
            except CheloniaError:
                if reference not in self._segments:
                    raise
        if span.length:  # it may have moved here meanwhile, before its first and only chunk was read
            data = await self._files.run(lambda: self._segments.read(reference, span))
            check(span.offset, data)
            yield data

    def at_hand(self, reference: ReferenceId, size: int) -> bytes | None:
        """Return all `size` bytes when the page cache has them, else None: they have to be read."""
        return self._segments.at_hand(reference, size)

    async def facts(self, reference: ReferenceId) -> ReplicaFacts | None:
        if reference not in self._segments:
            found = await self._files.facts(reference)
            if found is not None or reference not in self._segments:
                return found
        return await self._files.run(lambda: self._segments.facts(reference))

    async def blocks(self, reference: ReferenceId) -> bytes:
        if reference not in self._segments:
            found = await self._files.blocks(reference)
            if found or reference not in self._segments:
                return found
        return await self._files.run(lambda: self._segments.blocks(reference))

    async def sizes(self, references: Sequence[ReferenceId]) -> tuple[int, ...]:
        others = [reference for reference in references if reference not in self._segments]
        found = dict(zip(others, await self._files.sizes(others), strict=True)) if others else {}

        def measured() -> tuple[int, ...]:
            lengths = dict[int, int]()
            return tuple(
                found[each] if found.get(each, -1) >= 0 else self._segments.size(each, lengths) for each in references
            )  # fmt: skip

        return await self._files.run(measured)

    # --- changing ---------------------------------------------------------------------------------------------------

    async def spoil(self, reference: ReferenceId) -> bool:
        if reference not in self._segments:
            with contextlib.suppress(CheloniaError):
                return await self._files.spoil(reference)
        return await self._files.run(lambda: self._segments.spoil(reference))

    async def trim(self, reference: ReferenceId, size: int) -> None:
        if reference in self._segments:
            await self._files.run(lambda: self._segments.trim(reference, size))
        else:
            await self._files.trim(reference, size)

    async def erase(self, reference: ReferenceId) -> bool:
        """Remove bytes and record durably, wherever they are; False when there was nothing.

        One thread erases at a time; small replicas whose erasures wait go together."""
        small = self._segments.holds(reference)
        try:
            if small:
                self._to_erase[reference] = None
                await asyncio.sleep(0)  # erasures requested at the same time join this batch
            async with self._erasing:
                if reference in self._to_erase:
                    batch, self._to_erase, self._erased = tuple(self._to_erase), {}, set()
                    self._erased = set(await self._files.run(lambda: self._erase_small(batch)))
                if small and reference in self._erased:
                    return True
                if small:  # something is in its way, or beside it
                    await self._files.run(lambda: self._segments.erase(reference))
                found = await self._files.erase(reference) or small
            return await self.erase(reference) if not small and reference in self._segments else found
        finally:  # a cancelled erasure is not carried out later: its order may not hold then
            self._to_erase.pop(reference, None)
            self._erased.discard(reference)

    def _erase_small(self, references: Sequence[ReferenceId]) -> list[ReferenceId]:
        """Erase from segments; returns those of which nothing is left."""
        try:
            self._segments.erase(*references)
        except OSError:
            return []  # each is then tried by itself: none fails for another's bytes
        return [reference for reference in references if not self._is_beside(reference)]

    def _is_beside(self, reference: ReferenceId) -> bool:
        """Whether it also has a kept upload, a copy in quarantine, or perhaps a file left over when it moved."""
        files = self._files
        places = (files.incoming(reference, ".kept"), files.aside(reference), files.replica(reference))
        return reference in self._small_files.leaving or any(map(os.path.lexists, places))

    async def quarantine(self, reference: ReferenceId) -> None:
        """Set bytes and record aside, as files."""
        if reference not in self._segments:
            await self._files.quarantine(reference)
        if reference not in self._segments:  # else it is a small one, or became one meanwhile
            return

        def work() -> None:
            with self._segments.still():
                if reference not in self._segments:
                    return  # erased meanwhile
                record, data, committed = self._segments.salvaged(reference)
                self._files.put_aside(reference, record, data, committed=committed)
                self._segments.erase(reference)

        await self._files.run(work)

    # --- a start ----------------------------------------------------------------------------------------------------

    async def scan(self, notes: Notes = NO_NOTES) -> AsyncIterator[Scanned]:
        if not self._begun and await self._files.run(self._segments.load, long=True):
            await self._finish_setting_aside()
        self._begun, self._scanned = True, False
        lengths = dict[int, int]()
        async for page in self._files.scan(notes):
            if self._segments.places[page.prefix]:
                noted = notes.parts.get(page.prefix, {})
                join = partial(self._joined, page, noted, lengths)
                yield await self._files.run(join, long=True)
            else:
                yield page
        self._scanned = True

    def _joined(self, page: Scanned, noted: dict[ReferenceId, bytes], lengths: dict[int, int]) -> Scanned:
        """A page of files, joined with the replicas in segments."""
        segments, places = self._segments, self._segments.places[page.prefix]
        page = self._once(page, places)
        here = {each: note for each, note in noted.items() if each in places and segments.size(each, lengths) >= 0}
        segments.name_alike(page.prefix, here)
        open_ = {each for each in here if not layout.unpack(places[each]).committed}
        rest = [segments.stored(each, lengths) for each in list(places) if each not in here]
        known = noted if len(here) == len(noted) else {**page.known, **here}
        read = sorted([*page.read, *rest], key=lambda stored: stored.reference)
        return replace(page, known=known, uncommitted=page.uncommitted | open_, read=read)

    def _once(self, page: Scanned, places: Mapping[ReferenceId, int]) -> Scanned:
        """A page of files without those that are in a segment too, after a crash while they moved. The file is removed
        if the entry is whole, else the entry."""
        read = {stored.reference for stored in page.read}
        twice = (places.keys() & page.known.keys()) | (places.keys() & read)
        if not twice:
            return page
        moved = {each for each in twice if self._segments.is_whole(each)}
        self._files.take_away(sorted(moved))
        for reference in twice - moved:
            self._segments.erase(reference)
        known = {each: note for each, note in page.known.items() if each not in moved}
        rest = [stored for stored in page.read if stored.reference not in moved]
        return replace(page, known=known, uncommitted=page.uncommitted - moved, read=rest)

    async def _finish_setting_aside(self) -> None:
        """Remove one copy of replicas that are both in a segment and in quarantine, after a crash in between."""
        for stored in await self._files.quarantined():
            if stored.reference in self._segments:
                if await self._files.run(lambda stored=stored: self._is_aside(stored.reference)):  # type: ignore[misc]
                    await self._files.run(lambda stored=stored: self._segments.erase(stored.reference))  # type: ignore[misc]
                else:
                    await self._files.discard(stored.reference)

    def _is_aside(self, reference: ReferenceId) -> bool:
        """Whether quarantine has the same bytes and record as the segment: after a power cut it may have zeros."""
        place = self._files.aside(reference)
        records = (Path(f"{place}{suffix}") for suffix in (COMMITTED, UNCOMMITTED))
        with contextlib.suppress(OSError, CheloniaError):
            record, data, _ = self._segments.raw(reference)
            return place.read_bytes() == data and any(each.exists() and each.read_bytes() == record for each in records)
        return False


class SmallWriter:
    """A `BlobWriter`: held in memory while it is small, then written to a file."""

    def __init__(self, store: LocalBlobs, files: FileBlobs, reference: ReferenceId, bytes_max: int) -> None:
        self._store, self._files, self._reference, self._bytes_max = store, files, reference, bytes_max
        self._held = bytearray()
        self._file: BlobWriter | None = None

    @property
    def offset(self) -> int:
        return len(self._held) if self._file is None else self._file.offset

    async def write(self, chunk: bytes) -> None:
        """Append. Raises: NO_SPACE (the upload is discarded), UNAVAILABLE."""
        if self._file is None and len(self._held) + len(chunk) <= self._bytes_max:
            self._held += chunk
        else:
            await (self._file or await self._spilt()).write(chunk)

    async def commit(self, facts: ReplicaFacts, blocks: bytes = b"") -> None:
        """Put bytes and record on stable storage under their final name. Raises: NO_SPACE, UNAVAILABLE."""
        if self._file is not None:
            await self._file.commit(facts, blocks)
            return
        assert facts.size == len(self._held), f"record says {facts.size} bytes, {len(self._held)} were written"
        await self._store.store_whole([SmallReplica(self._reference, facts, bytes(self._held))])

    async def suspend(self) -> None:
        """Keep the written bytes for a later resume. Raises: NO_SPACE, UNAVAILABLE."""
        await (self._file or await self._spilt()).suspend()

    async def abort(self) -> None:
        if self._file is not None:
            await self._file.abort()

    async def _spilt(self) -> BlobWriter:
        """Move the held bytes to a file. Raises: as `create` and `write`."""
        file = self._file = await self._files.create(self._reference)
        held, self._held = bytes(self._held), bytearray()
        if held:
            await file.write(held)
        return file
