"""Fill the stopped cluster below a directory with many small files, in minutes instead of hours.

A file that was really put is the pattern. Each new file gets the pattern's records under other ids, in the A-Hash's own
layout and store, a thousand files to a commit. The Shepherd's own store code writes the replicas, and notes them as a
running Shepherd does. One thing differs from a running cluster: nothing is synced until the end.

The first Shepherd gets a copy of every file; of every EVERYth a second one goes to another Shepherd, in turn.

Usage: filling.py DIRECTORY FILES EVERY BYTES [STORE]. Files of so many bytes, every EVERYth with a second copy.
STORE: a first Shepherd's store that an earlier run has filled; it is moved.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from chelonia.ahash.store import layout, meta
from chelonia.ahash.store.bdb.environment import BdbSettings
from chelonia.ahash.store.bdb.store import BdbStore
from chelonia.core.cluster.replicas import Checksums, Location, ReplicaFacts, ReplicaState
from chelonia.core.ids import BlobId, Guid, ObjectId, ReferenceId, ServiceId, blob_object
from chelonia.core.metadata import StoredObject
from chelonia.core.ports.shepherd import StoredReplica
from chelonia.core.values import replace
from chelonia.hosting.config import load_config
from chelonia.librarian.metadata.blobs import FIRST_ORDINAL, NewBlob, facts_of, file_states, make_blob
from chelonia.shepherd.store import compact_rows as rows
from chelonia.shepherd.store import lifecycle
from chelonia.shepherd.store.blobs_files import FileBlobs
from chelonia.shepherd.store.index import Index
from chelonia.shepherd.store.lifecycle import KeptReplica

T = TypeVar("T")
AT_ONCE = 1000
COLLECTION, PATTERN = "full", "pattern"
CACHE_BYTES = 1 << 30


class _Inline(FileBlobs):
    """The files engine without its threads: there is nobody to wait for."""

    async def run(self, fn: Callable[[], T]) -> T:
        return fn()

    async def _acquire(self, fn: Callable[[], tuple[int, T]]) -> tuple[int, T]:
        return fn()


class _Shepherd:
    """A Shepherd to fill. `found`: (reference, facts) of the replicas that its store already had."""

    def __init__(self, config: Path, data: bytes, filled: Path | None) -> None:
        section = load_config(config).shepherd
        assert section is not None
        self.id = ServiceId(section.id)
        root = Path(section.data_dir)
        for name in ("replicas", "notes") if filled else ():
            target = root / name
            shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)
            shutil.move(filled / name, target)
        self.store = _Inline(root)
        self._data = data
        self._index = Index()
        self._fresh: list[ReferenceId] = []

    async def found(self) -> Iterator[KeptReplica]:
        """The replicas that its store already has."""
        notes = await self.store.notes(rows.at_rest(0))
        here = [noted async for page in self.store.scan(notes) for noted in page.known.items()]
        return (rows.unpack(reference, row) for reference, row in here)

    async def write(self, facts: ReplicaFacts) -> ReferenceId:
        """Store a replica; returns its reference."""
        reference = ReferenceId(str(uuid.uuid4()))
        writer = await self.store.create(reference)
        await writer.write(self._data)
        await writer.commit(facts)
        held = lifecycle.found(StoredReplica(reference, facts, len(self._data)), 0)
        self._index.put(lifecycle.acknowledged(held, ReplicaState.ALIVE))
        self._fresh.append(reference)
        return reference

    async def settle(self) -> None:
        """Mark what was written as committed, and note it."""
        await self.store.settle(tuple(self._fresh))
        self._fresh.clear()
        while changes := self._index.changes(AT_ONCE):
            await self.store.note(changes)


class _Records:
    """The A-Hash's records of new files, made after the pattern of one."""

    def __init__(self, store: BdbStore, every: int, data: bytes) -> None:
        self._store, self._every, self._size = store, every, len(data)
        self._sums = Checksums(hashlib.sha256(data).hexdigest())
        self._root = layout.decode_value(self._got(layout.wide_key(ObjectId("0"), "entries", f"{COLLECTION}/")))
        entry = layout.decode_value(self._got(layout.wide_key(ObjectId(self._root), "entries", PATTERN)))
        self._entry = layout.decode_header(self._got(layout.header_key(ObjectId(entry))))
        blob = BlobId(self._entry[1]["blobs"][FIRST_ORDINAL])
        _, sections = layout.decode_header(self._got(layout.header_key(blob_object(blob))))
        self._facts = facts_of(StoredObject(blob_object(blob), 1, sections))

    def facts(self, number: int, held: KeptReplica | None) -> ReplicaFacts:
        """The facts of file `number`, or of a replica that is already there."""
        name, wanted = f"/{COLLECTION}/f{number:07d}", 2 if number % self._every == 0 else 1
        facts = replace(self._facts, name=name, wanted=wanted)
        if held is not None:
            return replace(facts, blob=held.blob, guid=held.guid, size=held.size, checksums=held.checksums)
        ids = BlobId(str(uuid.uuid4())), Guid(str(uuid.uuid4()))
        return replace(facts, blob=ids[0], guid=ids[1], size=self._size, checksums=self._sums)

    def of(self, new: NewBlob) -> Iterator[tuple[bytes, bytes]]:
        facts, (version, entry) = new.facts, self._entry
        name = facts.name.rpartition("/")[2]
        states = {key: value for key, value in entry["states"].items() if key != "checksum"}
        sections = {
            **entry,
            "entry": {**entry["entry"], "GUID": facts.guid},
            "parents": {f"{self._root}/{name}": "parent"},
            "states": file_states(states, new),
            "blobs": {FIRST_ORDINAL: facts.blob},
        }
        yield layout.header_key(ObjectId(facts.guid)), layout.encode_header(version, sections)
        yield layout.wide_key(ObjectId(self._root), "entries", name), layout.encode_value(facts.guid)
        blob: layout.MutableSections = {}
        for element in make_blob(new):
            if element.object == new.object and element.property:
                blob.setdefault(element.section, {})[element.property] = element.value
            elif element.property:
                yield (
                    layout.wide_key(element.object, element.section, element.property),
                    layout.encode_value(facts.blob),
                )
        yield layout.header_key(new.object), layout.encode_header(1, blob)

    def commit(self, files: Sequence[NewBlob]) -> None:
        state = meta.read_state(self._store)
        state = layout.StoreState(state.sequence + 1, state.objects + 2 * len(files))
        puts = dict(sorted(record for new in files for record in self.of(new)))
        self._store.commit({**puts, layout.META_STATE: layout.encode_state(state)}, ())
        if self._store.upkeep_due():
            self._store.upkeep()  # else the log stays as a whole

    def _got(self, key: bytes) -> bytes:
        found = self._store.get(key)
        assert found is not None, f"the pattern is not there: {key!r}"
        return found


async def fill(directory: Path, files: int, every: int, data: bytes, filled: Path | None) -> None:
    os.fsync = os.fdatasync = lambda fd: None
    core = load_config(directory / "conf" / "core.toml")
    assert core.ahash is not None
    first, *others = (
        _Shepherd(directory / "conf" / f"shepherd{n}.toml", data, filled if n == 1 else None) for n in (1, 2, 3)
    )
    store = BdbStore(Path(core.ahash.data_dir), BdbSettings(cache_bytes=CACHE_BYTES), print)
    records, held = _Records(store, every, data), await first.found() if filled else iter(())
    for start in range(0, files, AT_ONCE):
        batch = []
        for number in range(start, min(start + AT_ONCE, files)):
            there = next(held, None)
            facts = records.facts(number, there)
            locations = [Location(first.id, there.reference if there else await first.write(facts))]
            if facts.wanted > 1:
                other = others[number // every % len(others)]
                locations.append(Location(other.id, await other.write(facts)))
            batch.append(NewBlob(facts, tuple(locations)))
        for shepherd in (first, *others):
            await shepherd.settle()
        records.commit(batch)
        if start % (50 * AT_ONCE) == 0:
            print(f"  {start + len(batch)} files are there", flush=True)
    store.close()
    for shepherd in (first, *others):
        shepherd.store.close()


if __name__ == "__main__":
    _directory, _files, _every, _bytes, *_store = sys.argv[1:]
    _data = b"x" * int(_bytes)
    asyncio.run(fill(Path(_directory), int(_files), int(_every), _data, Path(_store[0]) if _store else None))
    os.sync()
