"""The Store port's contract, on every engine: an ordered map of bytes with atomic commits."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chelonia.ahash.store.port import Store
from chelonia.core.errors import Kind
from tests.support.ahash import ENGINES, open_store
from tests.support.failing import fails
from tests.support.memory_store import MemoryStore


@pytest.fixture(params=ENGINES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opened = open_store(request.param, tmp_path)
    yield opened
    opened.close()


def contents(store: Store) -> list[tuple[bytes, bytes]]:
    return store.scan(b"", b"\xff" * 64, 100_000)


def test_what_is_put_is_read(store: Store) -> None:
    store.commit({b"b": b"2", b"a": b"", b"\0": b"\xff" * 100_000}, [])
    assert store.get(b"a") == b""
    assert store.get(b"absent") is None
    assert store.get_many([b"\0", b"absent", b"b"]) == [b"\xff" * 100_000, None, b"2"]


def test_a_commit_puts_and_deletes_together(store: Store) -> None:
    store.commit({b"a": b"1", b"b": b"2"}, [])
    store.commit({b"b": b"3", b"c": b"4"}, [b"a", b"absent"])
    assert contents(store) == [(b"b", b"3"), (b"c", b"4")]


def test_a_brief_read_is_made_at_once_unless_the_state_is_held(store: Store) -> None:
    store.commit({b"a": b"1"}, [])
    assert store.at_once(lambda state: state.get(b"a")) == b"1"
    with pytest.raises(ZeroDivisionError):
        store.at_once(lambda state: 1 // 0)
    with store.reading():
        assert store.get(b"a") == b"1"
    if not isinstance(store, MemoryStore):  # where nothing else runs meanwhile
        with store.reading():
            assert store.at_once(lambda state: state.get(b"a")) is None
    assert store.at_once(lambda state: state.scan(b"", b"b", 9)) == [(b"a", b"1")]


def test_states_that_differ_have_different_numbers(store: Store) -> None:
    def look() -> tuple[int, bytes | None] | None:
        return store.at_once(lambda state: (state.number, state.get(b"a")))

    found = []
    for value in (b"1", b"2", b"1"):
        store.commit({b"a": value}, [])
        found += [look(), look()]
    assert found[::2] == found[1::2]
    assert len(set(found)) == 3


def test_a_scan_is_in_byte_order_and_bounded(store: Store) -> None:
    keys = [bytes([i, j]) for i in (0, 1, 127, 128, 255) for j in (0, 7, 200)]
    store.commit(dict.fromkeys(reversed(keys), b"v"), [])
    assert [key for key, _ in contents(store)] == keys
    assert [key for key, _ in store.scan(keys[2], keys[9], 100)] == keys[2:9]
    assert [key for key, _ in store.scan(keys[2], keys[9], 3)] == keys[2:5]
    assert store.scan(keys[2], keys[2], 5) == []
    assert store.scan(b"", b"\xff\xff", 0) == []
    assert store.scan(b"\xff\xff", b"\xff\xff\xff", 5) == []


def test_a_large_commit(store: Store) -> None:
    store.commit({b"k%06d" % i: b"x" * 100 for i in range(10_000)}, [])
    store.commit({}, [b"k%06d" % i for i in range(0, 10_000, 2)])
    assert len(contents(store)) == 5000


def test_keys_of_any_length(store: Store) -> None:
    keys = sorted([b"x" * length for length in (1, 100, 2000, 5000, 20_000)])
    store.commit({key: key for key in keys}, [])
    assert contents(store) == [(key, key) for key in keys]


def test_a_closed_store_refuses(store: Store) -> None:
    store.close()
    store.close()
    for use in (lambda: store.get(b"a"), lambda: store.commit({b"a": b"1"}, []), lambda: store.scan(b"", b"z", 1)):
        with fails(Kind.UNAVAILABLE):
            use()


def test_upkeep_keeps_everything(store: Store) -> None:
    store.commit({b"a": b"1"}, [])
    store.upkeep()
    assert not store.upkeep_due()
    assert contents(store) == [(b"a", b"1")]
    assert store.free_bytes() > 0


KEYS = st.binary(min_size=1, max_size=3)
COMMITS = st.lists(st.tuples(st.dictionaries(KEYS, st.binary(max_size=5)), st.lists(KEYS)), max_size=8)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(commits=COMMITS, start=KEYS, end=KEYS, limit=st.integers(0, 5))
def test_it_behaves_as_a_sorted_dictionary(
    store: Store, commits: list[tuple[dict[bytes, bytes], list[bytes]]], start: bytes, end: bytes, limit: int
) -> None:
    model = dict(contents(store))
    for puts, deletes in commits:
        kept = [key for key in deletes if key not in puts]
        store.commit(puts, kept)
        model.update(puts)
        for key in kept:
            model.pop(key, None)
    assert contents(store) == sorted(model.items())
    assert store.scan(start, end, limit) == [item for item in sorted(model.items()) if start <= item[0] < end][:limit]
