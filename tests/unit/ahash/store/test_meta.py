"""A store's records about itself: founding, checking, migrating."""

import pytest

from chelonia.ahash.store import layout, meta
from chelonia.core.cluster.position import Position
from chelonia.core.errors import Kind
from tests.support.failing import fails
from tests.support.memory_store import MemoryStore


def test_a_fresh_store_takes_the_clusters_name_and_keeps_it() -> None:
    store = MemoryStore()
    assert meta.prepare(store, "north") == Position("north", 1, 0)
    assert meta.prepare(store, "") == Position("north", 1, 0)
    with fails(Kind.WRONG_CLUSTER):
        meta.prepare(store, "south")


def test_a_fresh_store_without_a_cluster_is_refused() -> None:
    store = MemoryStore()
    with fails(Kind.BAD_CONFIG):
        meta.prepare(store, "")
    assert store.scan(b"", b"\xff", 10) == []


def of_format(number: int) -> MemoryStore:
    """A store in another format."""
    store = MemoryStore()
    meta.prepare(store, "c")
    store.commit({layout.META_FORMAT: layout.encode_value(str(number)), b"kept": b"1"}, [])
    return store


def test_an_older_format_is_migrated() -> None:
    store = of_format(1)
    meta.prepare(store, "c")
    assert meta.read_number(store, layout.META_FORMAT) == layout.FORMAT == 2
    assert store.get(b"kept") == b"1"


def test_a_new_generation_is_later_than_every_position_before() -> None:
    store = MemoryStore()
    before = meta.prepare(store, "c")
    meta.raise_generation(store)
    assert meta.read_position(store) > Position(before.cluster, before.generation, 10**9)


def test_a_cluster_that_begins_again_does_so_once_whenever_the_process_dies() -> None:
    """The mark is removed after it: a process that died in between could never be started again."""
    store = MemoryStore()
    meta.found_again(store, "north 7")
    assert store.number == 1, "in one commit: half of it would be a first generation"
    meta.found_again(store, "north 7")
    assert meta.read_position(store) == Position("north", 8, 0)
    for other in ("north 6", "south 7"):
        with fails(Kind.BAD_CONFIG):
            meta.found_again(store, other)


@pytest.mark.parametrize(("found", "cure"), [(1, "stop all replicas"), (3, "start a newer version")])
def test_a_replica_migrates_nothing(found: int, cure: str) -> None:
    store = of_format(found)
    before = dict(store.scan(b"", b"\xff" * 9, 1000))
    with fails(Kind.BAD_CONFIG, match=cure):
        meta.check_format(store)
    assert dict(store.scan(b"", b"\xff" * 9, 1000)) == before
    meta.check_format(of_format(layout.FORMAT))
