"""Everything a memory store holds, as one snapshot for the invariants."""

from __future__ import annotations

from chelonia.ahash import layout
from chelonia.ahash.store_memory import MemoryStore
from chelonia.core.ids import ObjectId
from chelonia.core.metadata import StoredObject
from chelonia.librarian.invariants import Snapshot

_ALL = 1 << 30


def snapshot(store: MemoryStore) -> Snapshot:
    """The objects of a store, wide sections included."""
    versions: dict[ObjectId, int] = {}
    found: dict[ObjectId, dict[str, dict[str, str]]] = {}
    for key, value in store.scan(b"H\0", b"H\1", _ALL):
        object_id = ObjectId(key[2:].decode())
        versions[object_id], found[object_id] = layout.decode_header(value)
    for key, value in store.scan(b"W\0", b"W\1", _ALL):
        object_id = ObjectId(key.split(b"\0")[1].decode())
        section, prop = layout.wide_name(key)
        found.setdefault(object_id, {}).setdefault(section, {})[prop] = layout.decode_value(value)
    return Snapshot(StoredObject(key, versions.get(key, 1), sections) for key, sections in found.items())
