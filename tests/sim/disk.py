"""Simulated disks: the memory twins, with faults: slow writes, no space, rot, and crashes in mid write.

`SimDisk` stands in front of a Shepherd's `MemoryBlobs`. Every operation that has returned is durable. One that a crash
interrupts has happened or not, and a commit may leave its record without its bytes. After a sync that failed a power
cut may undo an erasure or a move. It may also bring back a replica that was not acknowledged, whole or torn. `SimStore`
is the A-Hash's store, which may fail while it syncs: then nobody knows whether the commit is there, until it is started
anew.
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from chelonia.core import bounds
from chelonia.core.cluster.position import Horizon
from chelonia.core.cluster.replicas import ReplicaFacts
from chelonia.core.contents.extents import ByteRange
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BlobId, ReferenceId
from chelonia.core.ports.ahash import Position
from chelonia.core.ports.shepherd import (
    NO_NOTES,
    Check,
    Notes,
    Scanned,
    ShepherdState,
    SmallReplica,
    StoredReplica,
    unchecked,
)
from chelonia.core.values import replace
from tests.sim.process import check_alive
from tests.support.memory_blobs import MemoryBlobs, MemoryReplica, MemoryState
from tests.support.memory_store import MemoryStore

T = TypeVar("T")

Erased = Callable[[ReferenceId, int], None]
"""Called for every replica just before its bytes go, with the generation that its Shepherd knew at the request."""

SETTLED_LATE_S = 5.0
"""How late a disk may write data that nobody has synced."""


class SimDisk:
    """`core.ports.shepherd.BlobStore` of one Shepherd; `platter` is what survives its crashes.

    `slow_ms`: how long a write may take at most. `heard`: the newest generation that its Shepherd knows. `forgets`: of
    a lying Shepherd, the share of commits whose bytes it throws away, and `thrown` the blobs of those. `unsynced_ms`:
    how long what was committed may still be lost by a crash; 0 for a disk that syncs. `fails`: how often a sync fails,
    in half of these with effect; `troubles` says which.
    """

    def __init__(self, rng: random.Random, erased: Erased) -> None:
        self.platter = MemoryBlobs()
        self.slow_ms = 0
        self.heard: Callable[[], int] = lambda: 0
        self.forgets = 0.0
        self.thrown: set[BlobId] = set()
        self.unsynced_ms = 0
        self.fails = 0.0
        self.troubles = random.Random(0)
        self._rng = rng
        self._erased = erased
        self._committing: dict[ReferenceId, bool] = {}
        self._recent: dict[ReferenceId, float] = {}
        self._settled: dict[ReferenceId, float] = {}
        self._unsynced: dict[ReferenceId, Any] = {}
        """Erased or moved replicas, not synced: their places in `platter` before, where a power cut may put them."""
        self._unwritten: dict[ReferenceId, Any] = {}
        """Replicas whose commit failed: their places in `platter` after a power cut. An erasure finds none of these."""

    # --- faults -----------------------------------------------------------------------------------------------------

    async def crash(self) -> None:
        """Lose all data that is not durable."""
        self.platter.crash()
        for reference, published in self._committing.items():
            if published and reference in self.platter.references() and self._rng.random() < 0.5:
                self.platter.lose(reference)  # the record came to be, the bytes did not
        self._committing.clear()
        if self._lose_notes(self.platter) or self.fails:
            for reference, places in (self._unwritten | self._unsynced).items():
                if self.troubles.random() < 0.5:
                    self.platter.put_back(reference, places)
        self._unsynced.clear()
        self._unwritten.clear()
        now = asyncio.get_running_loop().time()
        for reference, at in self._recent.items():
            if self.unsynced_ms and now - at < self.unsynced_ms / 1000:
                await self.platter.erase(reference)
        self._recent.clear()
        self._settled.clear()

    async def synced(self, work: Coroutine[Any, Any, T], *, whole: bool = False) -> T:
        """Do work that has to be synced. Raises: UNAVAILABLE when the sync fails; the work happened or not, with
        `whole` not."""
        if not self.fails or self.troubles.random() >= self.fails:
            return await work
        if whole or self.troubles.random() < 0.5:
            work.close()
        else:
            await work
        raise CheloniaError(Kind.UNAVAILABLE, "disk", "", "the disk of this Shepherd failed: a sync")

    async def _moved(self, reference: ReferenceId, work: Coroutine[Any, Any, T]) -> T:
        """Do work that moves or removes a replica: while it is not synced, a power cut may undo it."""
        before = self._unsynced.get(reference, self.platter.places(reference))
        try:
            done = await self.synced(work)
        except CheloniaError:
            if self.platter.places(reference) != before:
                self._unsynced[reference] = before
            raise
        self._unsynced.pop(reference, None)
        return done

    def _torn(self, writer: Any, facts: ReplicaFacts, blocks: bytes) -> Any:
        """The replica of a commit that failed, as a power cut may bring it back: whole or torn.

        Only a small one may be torn: zeros, or nothing, come behind the beginning of its bytes. The bytes of a large
        one are synced before it has a name."""
        data, rng = bytes(writer.buffer), self.troubles
        if data and len(data) <= bounds.INLINE_BYTES_MAX and rng.random() < 0.7:
            kept = rng.randrange(len(data))
            data = data[:kept] + bytes(len(data) - kept if rng.random() < 0.5 else 0)
        return MemoryReplica(data, facts, committed=False, blocks=blocks), None

    @property
    def identity(self) -> Any:
        """See `core.ports.shepherd.BlobStore`: a disk returns its identity at once."""
        return self.platter.identity

    def image(self) -> MemoryBlobs:
        """A copy of the disk, to be put back later."""
        image = copy.deepcopy(self.platter)
        image.crash()
        self._lose_notes(image)
        return image

    def _lose_notes(self, platter: MemoryBlobs) -> bool:
        """In half of the crashes the power goes too, and takes some of the unsynced notes. Returns whether it did."""
        power_goes = self._rng.random() < 0.5
        if power_goes:
            platter.lose_notes(self._rng.randint(0, platter.unsynced_notes))
            now = asyncio.get_running_loop().time()
            young = [each for each, at in self._settled.items() if now - at < SETTLED_LATE_S]
            platter.unsettle(tuple(each for each in young if int(each[0], 16) % 2))
        return power_goes

    def store(self) -> str:
        """The id of the store on it, "" for none."""
        identity = run_now(self.platter.identity())
        return identity.store if identity is not None else ""

    def accept(self) -> None:
        """Accept this as its store from now on, as an administrator does while its Shepherd is down."""
        identity = run_now(self.platter.identity())
        if identity is not None:
            run_now(self.platter.identify(replace(identity, replaces=True)))

    def held(self) -> tuple[StoredReplica, ...]:
        """All replicas on it, for checks."""
        return run_now(self._all())

    async def _all(self) -> tuple[StoredReplica, ...]:
        return tuple([stored async for page in self.platter.scan() for stored in page.read])

    # --- the port ---------------------------------------------------------------------------------------------------

    async def create(self, reference: ReferenceId, *, resume: bool = False) -> _Writer:
        check_alive()
        return _Writer(self, reference, await self.platter.create(reference, resume=resume))

    async def store_whole(self, replicas: Sequence[SmallReplica]) -> None:
        """Make whole replicas, each as an upload makes one; where one fails none is there."""
        try:
            for each in replicas:
                writer = await self.create(each.reference)
                await writer.write(each.data)
                await writer.commit(each.facts)
        except CheloniaError:
            for each in replicas:
                await self.platter.erase(each.reference)
            raise

    async def read(self, reference: ReferenceId, span: ByteRange, check: Check = unchecked) -> AsyncIterator[bytes]:
        await self.lag()
        async for chunk in self.platter.read(reference, span, check):
            yield chunk

    async def facts(self, reference: ReferenceId) -> ReplicaFacts | None:
        check_alive()
        return await self.platter.facts(reference)

    async def blocks(self, reference: ReferenceId) -> bytes:
        """The CRC of each block."""
        check_alive()
        return await self.platter.blocks(reference)

    async def spoil(self, reference: ReferenceId) -> bool:
        """Change a byte of a replica."""
        await self.lag()
        return await self.platter.spoil(reference)

    async def settle(self, references: tuple[ReferenceId, ...]) -> None:
        """Note that these are committed; a power cut takes those that the disk has not written by itself."""
        await self.lag()
        now = asyncio.get_running_loop().time()
        self._settled = {each: at for each, at in self._settled.items() if now - at < SETTLED_LATE_S}
        self._settled |= dict.fromkeys(references, now)
        await self.platter.settle(references)

    async def quarantined(self, after: str = "", limit: int = 0) -> tuple[StoredReplica, ...]:
        check_alive()
        return await self.platter.quarantined(after, limit)

    async def erase(self, reference: ReferenceId) -> bool:
        """Remove a replica; a crash comes before or after. A report meanwhile cannot stop it."""
        heard = self.heard()
        await self.lag()
        self._erased(reference, heard)
        before = self.platter.places(reference)
        gone = await self._moved(reference, self.platter.erase(reference))
        self._recent.pop(reference, None)
        if gone:
            self._unsynced[reference] = before
        await self.lag()
        self._unsynced.pop(reference, None)
        return gone

    async def quarantine(self, reference: ReferenceId) -> None:
        await self.lag()
        await self._moved(reference, self.platter.quarantine(reference))

    async def discard(self, reference: ReferenceId) -> bool:
        """Remove a replica that was set aside."""
        heard = self.heard()
        await self.lag()
        if reference in {stored.reference for stored in await self.platter.quarantined()}:
            self._erased(reference, heard)
        return await self._moved(reference, self.platter.discard(reference))

    async def reinstate(self, reference: ReferenceId) -> StoredReplica | None:
        """Bring back a replica that was set aside."""
        await self.lag()
        return await self._moved(reference, self.platter.reinstate(reference))

    async def note(self, notes: Mapping[ReferenceId, bytes]) -> None:
        """Write notes; a crash comes before or after."""
        await self.lag()
        await self.synced(self.platter.note(notes))
        await self.lag()

    async def note_anew(self, pages: AsyncIterable[Mapping[ReferenceId, bytes]]) -> None:
        """Note this, and forget all else."""
        await self.lag()
        await self.platter.note_anew(pages)

    def scan(self, notes: Notes = NO_NOTES) -> AsyncIterator[Scanned]:
        """Every replica."""
        return self.platter.scan(notes)

    async def space(self) -> tuple[int, int]:
        check_alive()
        return await self.platter.space()

    def __getattr__(self, name: str) -> Any:
        """Newer members of the port, straight from the platter."""
        return getattr(self.platter, name)

    # --- for the writer ---------------------------------------------------------------------------------------------

    async def lag(self) -> None:
        """Take the time a slow disk takes."""
        check_alive()
        if self.slow_ms:
            await asyncio.sleep(self._rng.randint(0, self.slow_ms) / 1000)
            check_alive()

    async def commit(self, reference: ReferenceId, writer: Any, facts: ReplicaFacts, blocks: bytes) -> None:
        """Put bytes and record under their final name: a crash on the way leaves nothing, the record alone, or all.

        Torn bytes never show then: large replicas have no name yet, and a start wipes a small one whose checksum is
        wrong. After a sync that failed they may (`_torn`). Then the next segment has been begun, and the start believes
        the entries of earlier ones."""
        self._committing[reference] = False
        try:
            await self.lag()
            await self.synced(writer.commit(facts, blocks), whole=True)
            self._unwritten.pop(reference, None)
            self._committing[reference] = True
            await self.lag()
        except CheloniaError as error:
            if error.kind is Kind.UNAVAILABLE:
                self._unwritten[reference] = self._torn(writer, facts, blocks)
            raise
        finally:
            self._committing.pop(reference, None)
        self._recent[reference] = asyncio.get_running_loop().time()
        # It may have been erased while the commit was on its way back.
        if self.forgets and self._rng.random() < self.forgets and reference in self.platter.references():
            self.thrown.add(facts.blob)
            self.platter.lose(reference)


class SimState(MemoryState):
    """A Shepherd's state file; `heard`: the newest generation that it has ever stated."""

    heard = 0

    def save(self, state: ShepherdState) -> None:
        self.heard = max(self.heard, state.generation)
        super().save(state)


class _Writer:
    """An upload in progress."""

    def __init__(self, disk: SimDisk, reference: ReferenceId, writer: Any) -> None:
        self._disk, self._reference, self._writer = disk, reference, writer

    @property
    def offset(self) -> int:
        offset: int = self._writer.offset
        return offset

    async def write(self, chunk: bytes) -> None:
        await self._disk.lag()
        await self._writer.write(chunk)

    async def commit(self, facts: ReplicaFacts, blocks: bytes = b"") -> None:
        await self._disk.commit(self._reference, self._writer, facts, blocks)

    async def suspend(self) -> None:
        """Keep the bytes. None are kept if their sync fails: a real store syncs them before it renames their file."""
        check_alive()
        await self._disk.synced(self._writer.suspend(), whole=True)

    async def abort(self) -> None:
        check_alive()
        await self._writer.abort()


def facts_now(platter: MemoryBlobs, reference: ReferenceId) -> ReplicaFacts | None:
    """The record of a replica, for checks."""
    return platter.record(reference)


def run_now(work: Coroutine[Any, Any, T]) -> T:
    """The result of work that does not wait."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("memory does not wait")


class SimStore(MemoryStore):
    """The A-Hash's store. `watch` is called with every commit before it is applied. `unknown` is the probability that a
    commit fails while it syncs, with or without effect; then the store has to be started anew. `failing` is called just
    before."""

    def __init__(self, rng: random.Random, contents: Mapping[bytes, bytes] | None = None) -> None:
        super().__init__(contents)
        self.unknown = 0.0
        self.panicked = asyncio.Event()
        self.watch: Callable[[Mapping[bytes, bytes], Iterable[bytes]], None] = _nobody
        self.failing: Callable[[], None] = lambda: None
        self._rng = rng

    def commit(self, puts: Mapping[bytes, bytes], deletes: Iterable[bytes], term: int | None = None) -> None:
        """Apply all, or fail with or without effect."""
        fails = self.unknown and self._rng.random() < self.unknown
        if not fails or self._rng.random() < 0.5:
            self.watch(puts, deletes)
            super().commit(puts, deletes)
        if fails:
            self.failing()
            self.close()
            self.panicked.set()
            raise CheloniaError(Kind.OUTCOME_UNKNOWN, "commit", "store", "it failed while syncing")

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While held, checks may read it, also when its process no longer may."""
        before, self._open = self._open, True
        try:
            yield
        finally:
            self._open = before

    def contents(self) -> dict[bytes, bytes]:
        """A copy of everything, as a backup has it."""
        return dict(self._contents.values)

    def reopened(self) -> SimStore:
        """Crash, and come back with what was committed."""
        return self.holding(self._contents.values)

    def holding(self, contents: Mapping[bytes, bytes]) -> SimStore:
        """Crash, and come back with these contents."""
        self.close()
        store = SimStore(self._rng, contents)
        store.watch, store.failing, store.free = self.watch, self.failing, self.free
        return store


def _nobody(puts: Mapping[bytes, bytes], deletes: Iterable[bytes]) -> None:
    del puts, deletes


class SeenDurability:
    """Durability that reports answered positions to the horizon of a process."""

    term = None

    def __init__(self, inner: SimDurability, horizon: Horizon) -> None:
        self._inner = inner
        self._horizon = horizon

    async def wait(self, position: Position) -> None:
        await self._inner.wait(position)
        self._horizon.saw(position)

    def holds(self, position: Position) -> bool:
        if not self._inner.holds(position):
            return False
        self._horizon.saw(position)
        return True


class SimDurability:
    """Decides when an answer may be given: after a while. Now and then the outcome is `unknown`, effect or not."""

    term = None

    def __init__(self, rng: random.Random) -> None:
        self.lag_ms = 0
        self.unknown = 0.0
        self._rng = rng

    async def wait(self, position: Position) -> None:
        """Wait until the change at `position` is durable."""
        if self.lag_ms:
            await asyncio.sleep(self._rng.randint(0, self.lag_ms) / 1000)
        if self.unknown and self._rng.random() < self.unknown:
            raise CheloniaError(Kind.OUTCOME_UNKNOWN, "ahash", str(position.sequence), "the majority is gone")

    def holds(self, position: Position) -> bool:
        """Whether there is nothing to wait for, and nothing unknown."""
        del position
        return not (self.lag_ms or self.unknown)
