"""Everything a memory store holds, as one snapshot for the invariants."""

from __future__ import annotations

from chelonia.ahash.store import layout
from chelonia.core.ids import ObjectId
from chelonia.core.metadata import StoredObject
from tests.support.memory_store import MemoryStore
from tests.support.namespace_snapshot import NamespaceSnapshot

_ALL = 1 << 30


class Dump:
    """Makes snapshots of one store after another. It reads only records that have changed since the last one."""

    def __init__(self) -> None:
        self._store: MemoryStore | None = None
        self._number = -1
        self._seen = NamespaceSnapshot(())
        self._headers: dict[bytes, tuple[bytes, StoredObject]] = {}

    def snapshot(self, store: MemoryStore) -> NamespaceSnapshot:
        """The objects of a store, wide sections included; not to be changed."""
        if store is not self._store or store.number != self._number:
            self._seen = NamespaceSnapshot(self._objects(store))
            self._store, self._number = store, store.number
        return self._seen

    def _objects(self, store: MemoryStore) -> list[StoredObject]:
        headers = {}
        found: dict[ObjectId, StoredObject] = {}
        for key, value in store.scan(b"H\0", b"H\1", _ALL):
            known = self._headers.get(key)
            if known is None or known[0] is not value:
                known = value, StoredObject(ObjectId(key[2:].decode()), *layout.decode_header(value))
            headers[key] = known
            found[known[1].id] = known[1]
        self._headers = headers
        for object_id, wide in _wide(store).items():
            narrow = found.get(object_id, StoredObject(object_id, 1))
            found[object_id] = StoredObject(object_id, narrow.version, {**narrow.sections, **wide})
        return list(found.values())


def _wide(store: MemoryStore) -> dict[ObjectId, dict[str, dict[str, str]]]:
    found: dict[bytes, dict[bytes, dict[str, str]]] = {}
    for key, value in store.scan(b"W\0", b"W\1", _ALL):
        _, object_id, section, prop = key.split(b"\0", 3)
        found.setdefault(object_id, {}).setdefault(section, {})[prop.decode()] = layout.decode_value(value)
    return {
        ObjectId(object_id.decode()): {section.decode(): properties for section, properties in sections.items()}
        for object_id, sections in found.items()
    }
