"""What a store knows of itself: founding, checking, migrating."""

import pytest

from chelonia.ahash.store import layout, meta
from chelonia.core.cluster.position import Position
from chelonia.core.errors import CheloniaError, Kind
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


def test_an_older_format_is_migrated_step_by_step() -> None:
    store = MemoryStore()
    meta.prepare(store, "c", target=1)
    store.commit({b"old": b"1"}, [])
    steps: dict[int, meta.Migration] = {
        1: lambda reader: {b"newer": (reader.get(b"old") or b"") + b"2", b"old": None},
        2: lambda reader: {b"newest": (reader.get(b"newer") or b"") + b"3", b"newer": None},
    }
    meta.prepare(store, "c", target=3, migrations=steps)
    assert (store.get(b"newest"), store.get(b"newer"), store.get(b"old")) == (b"123", None, None)
    assert meta.read_number(store, layout.META_FORMAT) == 3
    meta.prepare(store, "c", target=3, migrations={})


def test_an_old_format_that_nothing_migrates_is_refused() -> None:
    store = MemoryStore()
    meta.prepare(store, "c", target=1)
    with pytest.raises(CheloniaError, match="no longer migrates"):
        meta.prepare(store, "c", target=3, migrations={})


def test_a_new_generation_is_later_than_every_position_before() -> None:
    store = MemoryStore()
    before = meta.prepare(store, "c")
    meta.raise_generation(store)
    assert meta.read_position(store) > Position(before.cluster, before.generation, 10**9)


@pytest.mark.parametrize(("found", "cure"), [(1, "stop all replicas"), (3, "start a newer version")])
def test_a_replica_migrates_nothing(found: int, cure: str) -> None:
    store = MemoryStore()
    meta.prepare(store, "c", target=found, migrations={})
    before = dict(store.scan(b"", b"\xff" * 9, 1000))
    with pytest.raises(CheloniaError, match=cure) as refused:
        meta.check_format(store, target=2)
    assert refused.value.kind is Kind.BAD_CONFIG
    assert dict(store.scan(b"", b"\xff" * 9, 1000)) == before
    meta.check_format(store, target=found)
