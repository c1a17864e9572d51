"""The one writer: batches, failing engines, expiry of request keys."""

import itertools
from collections.abc import Iterable, Mapping, Sequence

import pytest

from chelonia.ahash.committer import (
    READ_TOGETHER_MAX,
    SWEEP_MIN,
    ChangeJob,
    CommitLimits,
    Committer,
    Job,
    NotBriefError,
    TransactJob,
)
from chelonia.ahash.store import layout, meta
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Ms, ObjectId, RequestKey
from chelonia.core.ports.ahash import ChangeStatus, Element, TransactOutcome
from tests.support.ahash import add, check, is_set, put
from tests.support.memory_store import MemoryStore

NOW = Ms(1_000_000)


class CountingStore(MemoryStore):
    """Counts commits, and fails those that touch a poisoned key with the error a test chose."""

    commits = 0
    poison = b"nothing"
    error = Kind.INTERNAL
    applied_before_failing = False

    def commit(self, puts: Mapping[bytes, bytes], deletes: Iterable[bytes], term: int | None = None) -> None:
        poisoned = any(self.poison in key for key in puts)
        if not poisoned or self.applied_before_failing:
            super().commit(puts, deletes)
            self.commits += 1
        if poisoned:
            raise CheloniaError(self.error, "ahash", "store", "as the test wants it")


def made(store: MemoryStore) -> Committer:
    meta.prepare(store, "test")
    return Committer(store, CommitLimits(key_keep_ms=1000, min_free_bytes=0))


def job(*elements: Element, key: str = "") -> TransactJob:
    return TransactJob("librarian", RequestKey(key), elements)


def test_a_batch_is_one_commit_and_one_position() -> None:
    store = CountingStore()
    committer = made(store)
    before = store.commits
    jobs: list[Job] = [job(add("o", "s", "n", 1)) for _ in range(50)]
    outcomes = committer.commit((*jobs, ChangeJob((put("p", "s", "q", "v"),))), NOW)
    assert store.commits == before + 1
    assert {o.position.sequence for o in outcomes if isinstance(o, TransactOutcome)} == {1}
    assert committer.position.sequence == 1
    assert committer.objects == 2


def test_a_commit_whose_end_nobody_knows_is_told_so_even_when_the_store_cannot_be_read_any_more() -> None:
    """With an answer to retry elsewhere, a caller might take it for a change that did not happen."""

    class Panicking(CountingStore):
        def commit(self, puts: Mapping[bytes, bytes], deletes: Iterable[bytes], term: int | None = None) -> None:
            try:
                super().commit(puts, deletes)
            except CheloniaError:
                self.close()
                raise

    store = Panicking()
    committer = made(store)
    store.poison, store.error = b"bad", Kind.OUTCOME_UNKNOWN
    (outcome,) = committer.commit((job(put("bad", "s", "p", "v")),), NOW)
    assert isinstance(outcome, CheloniaError)
    assert outcome.kind is Kind.OUTCOME_UNKNOWN


def test_a_batch_that_changes_nothing_is_no_commit() -> None:
    store = CountingStore()
    committer = made(store)
    before = store.commits
    outcomes = committer.commit((job(check("o")), job(put("o", "s", "p", "v", is_set("s", "p")))), NOW)
    assert [o.applied for o in outcomes if isinstance(o, TransactOutcome)] == [True, False]
    assert store.commits == before
    assert committer.position.sequence == 0


def test_a_refusal_that_rests_on_the_batch_stands_at_its_commit() -> None:
    committer = made(MemoryStore())
    first, second = committer.commit((job(put("o", "s", "p", "v")), job(check("o", is_set("s", "q")))), NOW)
    assert isinstance(first, TransactOutcome)
    assert isinstance(second, TransactOutcome)
    assert not second.applied
    assert second.position == first.position


def test_an_engine_error_fails_only_the_request_that_causes_it() -> None:
    store = CountingStore()
    committer = made(store)
    store.poison = b"bad"
    outcomes = committer.commit(
        (job(add("o", "s", "n", 1)), job(put("bad", "s", "p", "v")), job(add("o", "s", "n", 1))), NOW
    )
    assert isinstance(outcomes[1], CheloniaError)
    assert outcomes[1].kind is Kind.INTERNAL
    assert [o.applied for o in outcomes if isinstance(o, TransactOutcome)] == [True, True]
    assert layout.decode_header(store.get(layout.header_key(ObjectId("o"))) or b"") == (2, {"s": {"n": "2"}})
    assert committer.position.sequence == 2
    assert committer.objects == 1


class ReadingStore(CountingStore):
    """Records which keys are read one by one; a damaged one cannot be read at all."""

    def __init__(self) -> None:
        super().__init__()
        self.singly: list[bytes] = []
        self.damaged = b""
        self.bytes_read = 0

    def get(self, key: bytes) -> bytes | None:
        self.singly.append(key)
        return super().get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if self.damaged in keys:
            raise CheloniaError(Kind.INTERNAL, "ahash", "store", "a page is damaged")
        found = super().get_many(keys)
        self.bytes_read += sum(len(each or b"") for each in found)
        return found


def test_what_the_jobs_of_a_batch_name_is_read_at_once_up_to_a_bound() -> None:
    store = ReadingStore()
    committer = made(store)
    names = [f"o{n:03}" for n in range(READ_TOGETHER_MAX // 2 + 1)]
    store.singly.clear()
    committer.commit(tuple(job(put(name, "s", "p", "v"), key=name) for name in names[:-1]), NOW)
    assert store.singly == []
    committer.commit(tuple(job(put(name, "s", "p", "w"), key=name) for name in names), NOW)
    assert len(store.singly) == 2, "the outcome and the object of the last one, when it is its turn"


def test_a_batch_that_is_to_be_brief_reads_no_more_before_it_says_that_it_is_not() -> None:
    """It read all that its jobs name first: 128 entries of 110 KB took 14 ms of CPU in the event loop."""
    store, size, some = ReadingStore(), 60_000, 8
    committer = made(store)
    jobs = tuple(job(add(f"o{n}", "s", "n", 1), key=str(n)) for n in range(READ_TOGETHER_MAX // 2))
    committer.commit(tuple(job(put(f"o{n}", "s", "p", "x" * size)) for n in range(len(jobs))), NOW)
    store.bytes_read = 0
    with pytest.raises(NotBriefError):
        committer.commit(jobs, NOW, some * size)
    assert store.bytes_read < 3 * some * size
    assert committer.position.sequence == 1
    assert all(isinstance(each, TransactOutcome) and each.applied for each in committer.commit(jobs, NOW))


def test_a_brief_batch_with_a_request_that_fails_is_left_to_the_writer() -> None:
    """Its requests run one by one then, each a commit of its own: up to 200 of them in the event loop."""
    store = CountingStore()
    committer = made(store)
    store.poison, before = b"bad", store.commits
    jobs = (job(add("o", "s", "n", 1)), job(put("bad", "s", "p", "v")), job(add("o", "s", "n", 1)))
    with pytest.raises(NotBriefError):
        committer.commit(jobs, NOW, 1000)
    assert (store.commits, committer.position.sequence) == (before, 0)


def test_a_record_that_cannot_be_read_fails_only_the_request_that_names_it() -> None:
    store = ReadingStore()
    committer = made(store)
    store.damaged = layout.header_key(ObjectId("bad"))
    good, bad, also = committer.commit(tuple(job(put(name, "s", "p", "v")) for name in ("a", "bad", "c")), NOW)
    assert isinstance(good, TransactOutcome)
    assert isinstance(bad, CheloniaError)
    assert isinstance(also, TransactOutcome)
    assert (good.applied, bad.kind, also.applied) == (True, Kind.INTERNAL, True)


@pytest.mark.parametrize("kind", [Kind.READ_ONLY, Kind.UNAVAILABLE])
def test_a_store_that_takes_nothing_fails_the_batch_once(kind: Kind) -> None:
    store = CountingStore()
    committer = made(store)
    store.poison, store.error = b"bad", kind
    outcomes = committer.commit((job(add("o", "s", "n", 1)), job(put("bad", "s", "p", "v"))), NOW)
    assert [o.kind for o in outcomes if isinstance(o, CheloniaError)] == [kind, kind]
    assert committer.position.sequence == 0


@pytest.mark.parametrize("applied", [True, False])
def test_after_an_unknown_outcome_it_stands_where_the_store_stands(applied: bool) -> None:
    store = CountingStore()
    committer = made(store)
    store.poison, store.error, store.applied_before_failing = b"bad", Kind.OUTCOME_UNKNOWN, applied
    (outcome,) = committer.commit((job(add("bad", "s", "n", 1), key="k"),), NOW)
    assert isinstance(outcome, CheloniaError)
    assert outcome.kind is Kind.OUTCOME_UNKNOWN
    assert committer.position.sequence == int(applied)
    store.poison = b"nothing"
    (again,) = committer.commit((job(add("bad", "s", "n", 1), key="k"),), NOW)
    assert isinstance(again, TransactOutcome)
    assert again.recalled is applied
    assert layout.decode_header(store.get(layout.header_key(ObjectId("bad"))) or b"")[1] == {"s": {"n": "1"}}


def test_expired_keys_are_removed_a_bounded_number_at_a_time() -> None:
    store = MemoryStore()
    committer = made(store)
    committer.commit(tuple(job(add("o", "s", "n", 1), key=f"k{i}") for i in range(200)), NOW)
    later = Ms(NOW + 1001)
    left = [200]
    for _ in range(5):
        committer.commit((job(add("o", "s", "n", 1)),), later)
        left.append(len(store.scan(b"R\0", b"R\1", 1000)))
    assert all(before - after < 2 * SWEEP_MIN for before, after in itertools.pairwise(left))
    assert left[-1] == 0
    assert store.scan(b"X\0", b"X\1", 1000) == []


def test_the_keys_of_one_batch_share_records_of_the_index() -> None:
    store = MemoryStore()
    made(store).commit(tuple(job(add("o", "s", "n", 1), key=f"k{i}") for i in range(100)), NOW)
    assert [len(value) // layout.DIGEST_BYTES for _, value in store.scan(b"X\0", b"X\1", 1000)] in ([63, 35], [35, 63])


def test_keys_of_an_index_of_before_are_removed_too() -> None:
    """That index had a record for each key."""
    store = MemoryStore()
    committer = made(store)
    committer.commit((job(add("o", "s", "n", 1), key="one"), job(add("o", "s", "n", 1), key="two")), NOW)
    [(key, value)] = store.scan(b"X\0", b"X\1", 9)
    first, second = layout.expiry_digests(key, value)
    expires = Ms(NOW + 1000)
    store.commit({layout.expiry_key(expires, first): b"", layout.expiry_key(expires, second): b""}, [])
    committer.commit((job(add("o", "s", "n", 1)),), Ms(NOW + 1001))
    assert store.scan(b"R\0", b"R\1", 9) == []
    assert store.scan(b"X\0", b"X\1", 9) == []


def test_keys_that_are_still_kept_are_not_removed() -> None:
    store = MemoryStore()
    committer = made(store)
    committer.commit((job(add("o", "s", "n", 1), key="early"),), NOW)
    committer.commit((job(add("o", "s", "n", 1), key="late"),), Ms(NOW + 600))
    committer.commit((job(add("o", "s", "n", 1)),), Ms(NOW + 1001))
    assert len(store.scan(b"R\0", b"R\1", 1000)) == 1
    (late,) = committer.commit((job(add("o", "s", "n", 1), key="late"),), Ms(NOW + 1001))
    assert isinstance(late, TransactOutcome)
    assert late.recalled


def test_after_a_start_keys_of_before_are_kept_for_their_whole_time() -> None:
    """The clock may have been set meanwhile, or be another replica's."""
    store = MemoryStore()
    made(store).commit((job(add("o", "s", "n", 1), key="early"),), NOW)
    began = Ms(NOW + 86_400_000)
    committer = Committer(store, CommitLimits(key_keep_ms=1000, min_free_bytes=0), began)
    for now, recalled in ((began, True), (Ms(began + 999), True), (Ms(began + 1000), False)):
        (again,) = committer.commit((job(add("o", "s", "n", 1), key="early"),), now)
        assert isinstance(again, TransactOutcome)
        assert again.recalled is recalled
        assert len(store.scan(b"R\0", b"R\1", 1000)) == 1


def test_change_is_refused_whole_when_nothing_may_be_written() -> None:
    store = MemoryStore()
    meta.prepare(store, "test")
    committer = Committer(store, CommitLimits(1000, min_free_bytes=100))
    store.free = 99
    (outcome,) = committer.commit((ChangeJob((put("o", "s", "p", "v"),)),), NOW)
    assert isinstance(outcome, CheloniaError)
    assert outcome.kind is Kind.READ_ONLY
    store.free = 100
    (outcome,) = committer.commit((ChangeJob((put("o", "s", "p", "v"),)),), NOW)
    assert isinstance(outcome, tuple)
    assert outcome[0].status is ChangeStatus.SET


def test_an_error_that_is_an_outcome_holds_no_frame_of_its_batch() -> None:
    store = ReadingStore()
    committer = made(store)
    outcomes = committer.commit((job(put("a", "s", "p", "text")), job(add("a", "s", "p", 1))), NOW)
    store.damaged = layout.header_key(ObjectId("b"))
    outcomes += committer.commit((job(put("b", "s", "p", "v")),), NOW)
    store.poison, store.error = layout.header_key(ObjectId("c")), Kind.UNAVAILABLE
    outcomes += committer.commit((job(put("c", "s", "p", "v")),), NOW)
    errors = [outcome for outcome in outcomes if isinstance(outcome, CheloniaError)]
    assert [error.kind for error in errors] == [Kind.BAD_REQUEST, Kind.INTERNAL, Kind.UNAVAILABLE]
    assert [error.__traceback__ for error in errors] == [None] * 3
