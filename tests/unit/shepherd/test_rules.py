"""The pure parts: the replica's local life, the journal, the index, authority, pacing, checksums."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chelonia.core.cluster.position import Position
from chelonia.core.cluster.replicas import Checksums, ReplicaState
from chelonia.core.ids import BlobId, Guid, Ms, ReferenceId, ServiceId
from chelonia.core.ports.librarian import ReportedReplica
from chelonia.core.ports.shepherd import Authority, Scanned, ShepherdState, StoredReplica
from chelonia.core.values import replace
from chelonia.shepherd.rules import authority, scrub
from chelonia.shepherd.rules.journal import Describe, Journal
from chelonia.shepherd.rules.reconciling import Reconciling
from chelonia.shepherd.rules.scrub import RoundPace, ScrubRound
from chelonia.shepherd.store import compact_rows as rows
from chelonia.shepherd.store import lifecycle
from chelonia.shepherd.store.checksums import OFF_LOOP_BYTES_MIN, Hasher
from chelonia.shepherd.store.index import Index
from chelonia.shepherd.store.lifecycle import Fate, KeptReplica
from tests.support.shepherd import InlineWorker, numbered, request

A, B, C = (ReferenceId(numbered("a", number)) for number in (1, 2, 3))
DATA = b"data"
FACTS = request(DATA).facts


def held(reference: ReferenceId = A, **how: object) -> KeptReplica:
    return replace(lifecycle.arrived(reference, FACTS, 1000, Ms(5)), **how)  # type: ignore[arg-type]


# --- lifecycle -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "state"),
    [
        (StoredReplica(A, FACTS, 4), ReplicaState.ALIVE),
        (StoredReplica(A, FACTS, 3), ReplicaState.INVALID),
        (StoredReplica(A, FACTS, -1), ReplicaState.INVALID),
        (StoredReplica(A, None, 4), ReplicaState.INVALID),
    ],
)
def test_what_a_start_finds(stored: StoredReplica, state: ReplicaState) -> None:
    assert lifecycle.found(stored, 0).state is state


def test_a_check_moves_between_alive_and_invalid_only() -> None:
    damaged = lifecycle.checked(held(), False, Ms(9))
    assert (damaged.state, damaged.checked_ms) == (ReplicaState.INVALID, 9)
    assert lifecycle.checked(damaged, False, Ms(9)).state is ReplicaState.INVALID
    assert lifecycle.checked(damaged, True, Ms(9)).state is ReplicaState.ALIVE


@pytest.mark.parametrize(
    ("committed", "since_ms", "now_ms", "fate"),
    [
        (False, -1, 999, Fate.ASK_AGAIN),
        (False, -1, 1000, Fate.SET_ASIDE),
        (True, -1, 10_000, Fate.ASK_AGAIN),
        (True, 10_000, 10_499, Fate.ASK_AGAIN),
        (True, 10_000, 10_500, Fate.SET_ASIDE),
    ],
)
def test_the_fate_of_what_the_namespace_does_not_know(committed: bool, since_ms: int, now_ms: int, fate: Fate) -> None:
    replica = held(committed=committed, unknown_since_ms=since_ms)
    assert lifecycle.unknown(replica, now_ms, 500)[1] is fate


def test_being_known_again_forgets_the_doubt() -> None:
    doubted, _ = lifecycle.unknown(held(committed=True), 100, 500)
    known = lifecycle.acknowledged(doubted, None)
    assert lifecycle.unknown(known, 700, 500)[1] is Fate.ASK_AGAIN


def test_a_word_that_something_was_named_counts_of_what_just_came_alone() -> None:
    doubted, _ = lifecycle.unknown(held(), 100, 500)
    brought_back = lifecycle.found(StoredReplica(A, FACTS, 4), 1000)  # as by an old image, and erased in between
    assert [*map(lifecycle.is_named, (held(), doubted, brought_back))] == [True, False, False]
    assert not lifecycle.is_named(lifecycle.unproven(held()))


def test_an_invalid_replica_vouches_for_nothing() -> None:
    reported = lifecycle.reported(held(state=ReplicaState.INVALID))
    assert (reported.size, reported.checksums) == (-1, Checksums())
    assert lifecycle.reported(held()).checksums == FACTS.checksums


# --- journal -------------------------------------------------------------------------------------------------------


def journal() -> Journal:
    return Journal(ServiceId("https://s1/Shepherd"), 7)


def alive(reference: ReferenceId) -> ReportedReplica:
    return lifecycle.reported(held(reference))


def test_one_report_is_in_flight_and_changes_meanwhile_go_into_the_next() -> None:
    book = begun()
    book.note(A, 0)
    first = book.take(0, 10, alive)
    assert first is not None
    assert (first.boot, first.number, [r.reference for r in first.replicas]) == (7, 3, [A])
    book.note(B, 0)
    book.note(A, 0)
    assert book.take(5, 10, alive) == first
    assert book.answered(3).done == first
    second = book.take(6, 10, alive)
    assert second is not None
    assert (second.number, [r.reference for r in second.replicas]) == (4, [A, B])


def test_a_report_not_accepted_is_repeated_and_a_repeats_answer_says_so() -> None:
    book = begun()
    book.note(A, 0)
    first = book.take(0, 10, alive)
    assert book.answered(2).done is None
    assert book.take(1, 10, alive) == first
    settled = book.answered(3)
    assert (settled.done, settled.first_try, settled.diverged) == (first, False, False)
    assert book.take(2, 10, alive) is None


def test_what_is_told_stays_so_while_later_changes_are_on_their_way() -> None:
    book = begun()
    book.note(A, 5)
    assert not book.all_accepted(5)
    book.take(5, 10, alive)
    assert not book.all_accepted(5), "on its way, not accepted"
    book.answered(3)
    assert book.all_accepted(5)
    book.note(B, 6)
    assert book.all_accepted(5)
    book.take(6, 10, alive)
    assert book.all_accepted(5)
    assert not book.all_accepted(6)


def test_a_number_from_another_past_renumbers_the_content() -> None:
    book = begun()
    book.note(B, 0)
    book.take(0, 10, alive)
    assert book.answered(57).diverged
    again = book.take(0, 10, alive)
    assert again is not None
    assert (again.number, [r.reference for r in again.replicas]) == (58, [B])
    assert book.answered(58).done == again


@pytest.mark.parametrize("boot", [7, 9])
def test_what_was_in_flight_when_numbers_begin_anew_comes_behind_the_first(boot: int) -> None:
    """A first report never has contents: no start is trusted by it."""
    book = begun()
    book.note(A, 0)
    book.note_gone(B, FACTS.blob, 0)
    book.take(0, 10, here(A))
    if boot == 7:
        assert book.answered(0).diverged
    else:
        book.begin_anew(boot)
    assert not book.all_accepted(0)
    first = book.take(1, 10, here(A))
    assert first is not None
    assert (first.boot, first.number, first.replicas) == (boot, 1, ())
    book.answered(1)
    second = book.take(1, 10, here(A))
    assert second is not None
    states = [(r.reference, r.state) for r in second.replicas]
    assert (second.number, states) == (2, [(A, ReplicaState.ALIVE), (B, ReplicaState.DELETED)])
    book.answered(2)
    assert book.take(2, 10, here(A)) is None


def here(*references: ReferenceId) -> Describe:
    """Only these are here."""
    return lambda reference: alive(reference) if reference in references else None


def begun() -> Journal:
    """A journal whose first two reports were accepted."""
    book = journal()
    for number in (1, 2):
        book.take(0, 10, alive)
        book.answered(number)
    return book


def test_a_report_waits_until_it_is_due_and_takes_no_more_than_allowed() -> None:
    book = begun()
    book.note(A, 100)
    book.note(B, 50)
    book.note(C, 70)
    assert book.next_due() == 50
    assert book.take(49, 10, alive) is None
    report = book.take(100, 2, alive)
    assert report is not None
    assert [r.reference for r in report.replicas] == [B, C]
    book.answered(3)
    book.note(A, 60)
    assert book.next_due() == 60


def test_an_erased_replica_is_reported_gone_only_after_a_report_that_said_otherwise() -> None:
    book = begun()
    book.note(A, 0)
    book.erased(A, FACTS.blob, 0)
    assert book.take(0, 10, lambda reference: None) is None
    book.note(A, 0)
    book.take(0, 10, alive)
    book.erased(A, FACTS.blob, 0)
    book.answered(3)
    after = book.take(0, 10, lambda reference: None)
    assert after is not None
    assert [r.state for r in after.replicas] == [ReplicaState.DELETED]


def test_an_empty_report_moves_the_numbers_now_or_a_while_after_the_last() -> None:
    book = begun()
    book.outdated(1_000, 500)
    assert book.next_due() == 1_000
    assert book.all_accepted(2_000), "nothing has to be told"
    report = book.take(1_000, 10, alive)
    assert report is not None
    assert (report.number, report.replicas, book.sent) == (3, (), 3)
    assert book.all_accepted(999), "nor does what is on its way tell anything"
    book.outdated(1_100, 500)
    book.answered(3)
    assert book.take(1_499, 10, alive) is None
    book.note(A, 1_200)
    assert book.take(1_300, 10, alive) is not None
    book.answered(4)
    assert book.next_due() is None, "another report has moved them"


def test_a_boot_sends_a_first_report_though_it_has_nothing_to_tell() -> None:
    """Until it is accepted, a late report of an earlier boot could still be. A second one, which has a mark, follows at
    once."""
    book = journal()
    assert book.all_accepted(0) is False
    for number in (1, 2):
        report = book.take(5, 10, alive)
        assert report is not None
        assert (report.number, report.replicas) == (number, ())
        book.answered(number)
        assert book.all_accepted(0) is True
    assert book.take(5, 10, alive) is None


def test_what_is_erased_before_the_first_report_is_told_as_gone() -> None:
    """A late report of an earlier boot may have brought it back."""
    book = journal()
    book.erased(A, FACTS.blob, 0)
    book.take(0, 10, here())
    book.answered(1)
    report = book.take(0, 10, here())
    assert report is not None
    assert [(r.reference, r.state) for r in report.replicas] == [(A, ReplicaState.DELETED)]


def test_what_came_back_and_was_listed_otherwise_is_told_as_gone_no_more() -> None:
    book = begun()
    book.note_gone(A, FACTS.blob, 0)
    assert book.reports_gone(A)
    book.forget(A)
    assert not book.reports_gone(A)
    book.note(A, 0)
    assert book.take(0, 10, lambda reference: None) is None, "nothing is left of the news that it is gone"


# --- index ---------------------------------------------------------------------------------------------------------


def test_the_index_finds_by_exact_blob_and_in_order() -> None:
    index = Index()
    other = BlobId(FACTS.blob + "2")
    for reference in (C, A, B):
        index.put(held(reference))
    index.put(held(B, blob=other))
    index.put(held(A, state=ReplicaState.INVALID))
    live = index.live_copy(FACTS.blob)
    assert live is not None
    assert live.reference == C
    found = index.live_copy(other)
    assert found is not None
    assert found.reference == B
    assert index.live_copy(BlobId(FACTS.blob[:-1])) is None
    assert index.references("", "") == [A, B, C]
    assert index.references(A, B) == [B]
    assert (len(index), index.total_bytes) == (3, 12)
    index.remove(C)
    assert index.live_copy(FACTS.blob) is None
    assert (index.remove(C), len(index), index.total_bytes) == (None, 2, 8)


SPREAD = [ReferenceId(numbered(kind, number)) for kind in "a7f" for number in range(4)]


@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from(SPREAD), st.integers(0, 3)), max_size=40),
    st.lists(st.sampled_from([*SPREAD, "", "aa", "g"]), min_size=1, max_size=4),
)
def test_the_index_agrees_with_a_plain_dict(steps: list[tuple[bool, ReferenceId, int]], marks: list[str]) -> None:
    index, plain = Index(), dict[ReferenceId, KeptReplica]()
    for turn, (add, reference, size) in enumerate(steps):
        if add:
            plain[reference] = held(reference, size=size, blob=BlobId(f"blob{size}"))
            index.put(plain[reference])
        else:
            assert index.remove(reference) == plain.pop(reference, None)
        if turn % 3 == 0:
            check_order(index, plain, marks[turn % len(marks)])
    for mark in marks:
        check_order(index, plain, mark)
    assert (len(index), index.total_bytes) == (len(plain), sum(h.size for h in plain.values()))
    for size in range(4):
        assert (index.live_copy(BlobId(f"blob{size}")) is not None) == any(h.size == size for h in plain.values())


def check_order(index: Index, plain: Mapping[ReferenceId, KeptReplica], mark: str) -> None:
    later = [reference for reference in sorted(plain) if reference > mark]
    assert index.following(mark, len(plain)) == [plain[reference] for reference in later]
    assert index.following(mark, 2) == [plain[reference] for reference in later[:2]]
    assert index.references(mark, "7f") == [reference for reference in later if reference <= "7f"]
    assert index.references("", mark or "0") == [reference for reference in sorted(plain) if reference <= (mark or "0")]
    assert index.sizes_after(mark, 2) == {reference: plain[reference].size for reference in later[:2]}
    assert list(index.notes_after(mark, 5)) == later[:5]
    assert index.count_after(mark) == len(later)
    turn = [*later, *sorted(plain), None]
    assert index.after(mark) == (plain[turn[0]] if turn[0] is not None else None)


@given(
    st.builds(
        KeptReplica,
        st.just(A),
        st.sampled_from([BlobId(""), BlobId("b1"), FACTS.blob]),
        st.sampled_from([Guid(""), FACTS.guid, Guid("0")]),
        st.integers(-1, 1 << 50),
        st.builds(
            Checksums, st.sampled_from(["", "ab" * 32, "abc"]), st.text(max_size=40), st.sampled_from(["", "0a"])
        ),
        st.integers(0, 1 << 50).map(Ms),
        st.sampled_from([ReplicaState.ALIVE, ReplicaState.INVALID]),
        st.booleans(),
        st.integers(0, 1 << 50),
        st.integers(-1, 1 << 50),
        st.integers(0, 1 << 50).map(Ms),
        st.booleans(),
    )
)
def test_a_row_is_the_replica(replica: KeptReplica) -> None:
    row = rows.pack(replica)
    assert rows.unpack(replica.reference, row) == replica
    assert rows.size_of(row) == replica.size
    assert rows.blob_of(row) == rows.shorten(replica.blob)
    assert rows.blobs_of([row, row]) == [rows.shorten(replica.blob)] * 2
    assert rows.sizes_together([row, row]) == 2 * replica.size
    assert rows.unpack(A, rows.uncommitted(row)) == replace(replica, committed=False)
    assert bool(rows.facts_of(row)) == bool(replica.blob)
    if facts := rows.facts_of(row):
        fresh = replace(replica, state=ReplicaState.ALIVE, committed=True, keep_until_ms=77, listed=True)
        found = rows.unpack(A, rows.at_rest(77) + facts)
        assert found == replace(fresh, unknown_since_ms=-1, checked_ms=Ms(0))
    told = (rows.facts_of(row) if replica.listed else b"") or rows.OPEN
    assert rows.note_of(row) == (told if replica.alive else rows.DAMAGED)


def noted(facts: Mapping[ReferenceId, bytes], *references: ReferenceId) -> dict[ReferenceId, bytes]:
    return {reference: rows.at_rest(77) + facts[reference] for reference in references}


def test_what_was_learned_by_an_earlier_start_fills_the_index() -> None:
    before, after = Index(), Index()
    for reference in (B, A, C):
        before.put(held(reference, size=3, listed=True))
    before.remove(C)
    facts = before.changes(10)
    assert (facts[C], before.changes(10)) == (b"", {})
    before.put(held(A, size=3, listed=True, unknown_since_ms=5))
    assert before.changes(10) == {}, "what is noted is the same"
    before.put(held(B, state=ReplicaState.INVALID, size=3))
    before.put(held(A, size=3))
    assert before.changes(10) == {B: rows.DAMAGED, A: rows.OPEN}
    after.load(Scanned("aa", noted(facts, A, B), frozenset({B}), []))
    assert after.references("", "") == [A, B]
    assert (len(after), after.total_bytes, after.changes(10)) == (2, 6, {})
    loaded = after.get(B)
    assert loaded is not None
    assert (loaded.alive, loaded.committed, loaded.keep_until_ms, loaded.blob) == (True, False, 77, FACTS.blob)
    live = after.live_copy(FACTS.blob)
    assert live is not None
    assert live.reference == A


def test_pages_of_blobs_that_are_there_once_or_twice_are_found_by_blob() -> None:
    before, after = Index(), Index()
    blobs = {A: "1", B: "2", C: "1"}
    for reference, number in blobs.items():
        before.put(held(reference, blob=BlobId(f"00000000-0000-4000-8000-00000000000{number}"), listed=True))
    facts = before.changes(10)
    far = ReferenceId(numbered("b", 1))
    after.load(Scanned("bb", {far: noted(facts, C)[C]}, frozenset(), []))
    after.load(Scanned("aa", noted(facts, C, B, A), frozenset(), []))
    for reference in (A, far, C, B):
        kept = after.get(reference)
        assert kept is not None
        assert after.live_copy(kept.blob) is not None
        after.remove(reference)
    assert after.live_copy(BlobId("00000000-0000-4000-8000-000000000001")) is None


# --- reconciling ---------------------------------------------------------------------------------------------------


def test_where_differences_are_enough_the_next_start_may_rely_on_the_notes_from_the_first_answer_on() -> None:
    start = Reconciling()
    assert start.begin("", 3)
    assert (start.settled(3), start.proven(3)) == (True, False)
    assert start.looked_at(9)
    assert (start.settled(3), start.proven(3), start.settled(4)) == (True, True, False)


# --- authority -----------------------------------------------------------------------------------------------------


def test_a_heartbeat_teaches_cluster_and_generation_but_not_the_sequence() -> None:
    fresh = ShepherdState(1, b"")
    learned = authority.seen(fresh, Position("c", 2, 50))
    assert learned == ShepherdState(1, b"", "c", 2, 0)
    assert authority.seen(learned, Position("", 0, 0)) == learned
    assert authority.seen(learned, Position("d", 9, 9)) is None
    obeyed = authority.obeyed(learned, Position("c", 2, 60))
    assert authority.refusal(obeyed, Authority(Position("c", 2, 59)))
    assert authority.refusal(obeyed, Authority(Position("c", 2, 60))) == ""
    restored = authority.seen(obeyed, Position("c", 3, 10))
    assert restored == ShepherdState(1, b"", "c", 3, 0)
    assert authority.refusal(restored, Authority(Position("c", 2, 999)))
    assert authority.refusal(restored, Authority(Position("c", 3, 11))) == ""


# --- pacing --------------------------------------------------------------------------------------------------------


def test_a_round_of_slots_fills_the_period_in_proportion_to_bytes() -> None:
    index = Index()
    sizes = [0, 1_000_000, 3_000_000, 50_000]
    for number, size in enumerate(sizes):
        index.put(held(ReferenceId(numbered("a", number)), size=size))
    pace = RoundPace(1_000_000, 1 << 30)
    slots = [scrub.slot_ms(size, index, pace) for size in sizes]
    assert 999_990 <= sum(slots) <= 1_000_000
    assert slots[2] > slots[1] > slots[3] > slots[0] > 0
    assert scrub.slot_ms(3_000_000, index, RoundPace(10, 1_000_000)) >= 3_000


def test_the_round_visits_all_suspicion_first() -> None:
    index, turn = Index(), ScrubRound(cursor=A)
    for reference in (A, B, C):
        index.put(held(reference))
    turn.suspect(C)
    turn.suspect(ReferenceId(numbered("e", 1)))
    assert turn.next_suspect(index) == index.get(C)
    assert turn.next_suspect(index) is None
    assert [turn.next_in_turn(index) for _ in range(4)] == [index.get(r) for r in (B, C, A, B)]
    assert turn.cursor == B


# --- checksums -----------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=50), max_size=8))
def test_checksums_do_not_depend_on_the_pieces(pieces: list[bytes]) -> None:
    parts, whole = Hasher(), Hasher()
    for piece in pieces:
        parts.update(piece)
    whole.update(b"".join(pieces))
    assert parts.checksums() == whole.checksums()
    assert parts.size == whole.size


async def test_known_checksums_of_a_large_piece() -> None:
    hasher = Hasher()
    await hasher.feed(InlineWorker(), b"\0" * OFF_LOOP_BYTES_MIN)
    sums = hasher.checksums()
    assert sums.md5 == "ec87a838931d4d5d2e94a04644788a55"
    assert sums.sha256 == "8a39d2abd3999ab73c34db2476849cddf303ce389b35826850f9a700589b4a90"
    assert sums.adler32 == "003c0001"
