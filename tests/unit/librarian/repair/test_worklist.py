"""The order of healing: the queue by danger, rounds and their cursors, timers."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chelonia.core.cluster.healing import Endangered, NodeCursor
from chelonia.core.cluster.replicas import Location
from chelonia.core.ids import BlobId, Ms, ReferenceId, ServiceId
from chelonia.librarian.repair.progress.decide import END, RepairRound
from chelonia.librarian.repair.worklist import QueuedBlob, Worklist

A, B = ServiceId("https://h/Shepherd"), ServiceId("https://h/Shepherd2")


def waiting(name: str, live: int = 1, created: int = 0, target: ServiceId = A) -> QueuedBlob:
    what = Endangered(BlobId(name), f"/{name}", live, 3, 100, Ms(created))
    return QueuedBlob(what, ((target, (B,)),))


def every(found: QueuedBlob) -> bool:
    return True


def queue(work: Worklist) -> list[str]:
    return [found.blob for found in work.endangered(100)]


# --- blobs and the queue ----------------------------------------------------------------------------------------------


def test_each_blob_is_given_once_in_the_order_in_which_it_became_known() -> None:
    work = Worklist()
    work.mark([BlobId("a"), BlobId("b"), BlobId("a")])
    work.unmark(BlobId("b"))
    assert work.take(10) == ["a"]
    work.stick(BlobId("stuck"))
    assert (work.dirty, len(work)) == (0, 1)
    work.unstick()
    assert work.take(10) == ["stuck"]


def test_the_fewest_copies_come_first_then_the_oldest() -> None:
    work = Worklist()
    for found in (waiting("young", 2, 9), waiting("old", 2, 1), waiting("dire", 1, 50)):
        work.park(found)
    assert queue(work) == ["dire", "old", "young"]
    work.park(waiting("young", 0, 9))
    assert queue(work) == ["young", "dire", "old"], "what changed is in one place only"
    work.unpark(1, every)
    assert work.take(10) == ["young"]
    work.settle(BlobId("dire"))
    assert queue(work) == ["old"]


def test_a_copy_is_let_go_on_only_where_there_is_room_for_it() -> None:
    work = Worklist()
    work.park(waiting("dire", 1, target=B))
    work.park(waiting("calm", 2, target=A))
    work.unpark(5, lambda found: found.ways[0][0] == A)
    assert work.take(10) == ["calm"]
    assert queue(work) == ["dire"]


# --- rounds -----------------------------------------------------------------------------------------------------------


def pages(work: Worklist, *blobs: str, per_page: int = 2) -> None:
    """Answer every page of the round through A: references are `r` and the blob."""
    while work.next_page() is not None:
        page(work, *blobs, per_page=per_page)


def page(work: Worklist, *blobs: str, per_page: int) -> None:
    """Answer the next one."""
    asked = work.next_page()
    assert asked is not None
    rest = [blob for blob in blobs if f"r{blob}" > asked[1]]
    found, more = rest[:per_page], len(rest) > per_page
    work.paged(A, asked[1], [BlobId(blob) for blob in found], f"r{found[-1]}" if more else "")


def cursor(work: Worklist) -> str:
    return work.cursors()[A][1].after


def test_the_cursor_stays_where_something_lacks_and_moves_on_when_it_does_not() -> None:
    work = Worklist()
    work.begin(RepairRound(A, Ms(7), kept=True))
    pages(work, *"abcdef")
    assert cursor(work) == ""
    for blob in "cdab":
        work.settle(BlobId(blob))
    assert cursor(work) == "rd"
    work.stick(BlobId("e"))
    work.settle(BlobId("f"))
    assert cursor(work) == "rd", "what cannot be helped now is not behind it"
    assert work.rounds() == (NodeCursor(A, "rd", True),)


def test_a_page_that_was_read_is_not_looked_through_before_its_blobs_are_planned() -> None:
    work = Worklist()
    work.begin(RepairRound(A))
    pages(work, "a", "b")
    assert work.rounds() == (NodeCursor(A, "", False),)
    work.settle(BlobId("a"))
    assert work.rounds() == (NodeCursor(A, "", False),)
    work.settle(BlobId("b"))
    assert work.rounds() == ()


def test_a_round_that_is_done_has_its_cursor_at_the_end() -> None:
    work = Worklist()
    work.begin(RepairRound(A, Ms(7), kept=True))
    pages(work, "a")
    work.settle(BlobId("a"))
    assert cursor(work) == END
    assert work.rounds() == ()
    assert work.goes_through(A, Ms(7))
    assert not work.goes_through(A, Ms(8)), "another loss"
    work.begin(RepairRound(A, Ms(7), END, kept=True))
    assert work.next_page() is None


def test_a_round_begun_anew_starts_again_and_late_answers_to_the_old_one_count_for_nothing() -> None:
    work = Worklist()
    work.begin(RepairRound(A))
    work.paged(A, "", [BlobId("a")], "ra")
    assert work.next_page() == (A, "ra")
    work.begin(RepairRound(A))
    work.paged(A, "ra", [BlobId("b")], "rb")
    assert work.next_page() == (A, "")
    assert work.take(9) == ["a"]
    work.leave_nodes()
    assert work.next_page() is None


def test_what_is_lost_is_gone_through_before_what_is_only_looked_at() -> None:
    work = Worklist()
    work.begin(RepairRound(B))
    work.begin(RepairRound(A, Ms(7), "r5", kept=True))
    assert work.next_page() == (A, "r5")


def test_a_full_queue_leaves_the_less_endangered_to_later_pages_and_comes_back_to_them() -> None:
    work = Worklist(queue_max=4)
    work.begin(RepairRound(A, Ms(7), kept=True))
    pages(work, *"abcdefgh")
    for blob in work.take(100):
        work.park(waiting(blob, 1 if blob == "h" else 2))
    assert work.full
    assert queue(work) == ["h", "a", "b", "c"], "the most endangered of all are in it, wherever they were found"
    assert cursor(work) == "", "a and b are open"
    for blob in "hab":
        work.settle(BlobId(blob))
    assert cursor(work) == "rb", "c, and d which was left"
    work.refill()
    assert work.next_page() == (A, "rb")
    pages(work, *"abcdefgh")
    for blob in work.take(100):
        work.park(waiting(blob, 2))
    assert queue(work)[0] == "c", "earlier rounds first"
    for blob in "cdefgh":
        work.settle(BlobId(blob))
        work.refill()
        pages(work, *"abcdefgh")
        for found in work.take(100):
            work.settle(BlobId(found))
    assert cursor(work) == END


@pytest.mark.parametrize("count", [400, 1600])
def test_what_was_left_is_found_again_without_reading_all_the_rest_each_time(count: int) -> None:
    names = [f"{number:04d}" for number in range(count)]
    left, read, per_page = set(names), 0, 8
    work = Worklist(queue_max=40)
    work.begin(RepairRound(A, Ms(7), kept=True))
    while left:
        work.refill()
        while work.next_page() and not work.full:
            page(work, *names, per_page=per_page)
            read += 1
            for blob in work.take(per_page):
                if blob in left:
                    work.park(waiting(blob, 1))
                else:
                    work.settle(blob)
        done = queue(work)[0]
        left.remove(done)
        work.settle(BlobId(done))
    assert read <= 3 * count / per_page


def test_what_came_between_in_a_page_that_was_left_pushes_nothing_out() -> None:
    work = Worklist(queue_max=1)
    work.begin(RepairRound(A, Ms(7), kept=True))
    pages(work, "a", "d", per_page=2)
    for blob in work.take(9):
        work.park(waiting(blob, 1))
    work.settle(BlobId("a"))
    work.refill()
    pages(work, "a", "b", "c", "d", per_page=2)
    assert set(work.take(9)) == {"a", "b", "c", "d"}


def test_what_waited_while_its_page_was_read_again_is_found_when_it_is_left_after_all() -> None:
    work = Worklist(queue_max=4)
    work.begin(RepairRound(A, Ms(7), kept=True))
    pages(work, *"aefgh", *"xyz", per_page=5)
    for blob in "xyz":
        work.settle(BlobId(blob))
        work.unmark(BlobId(blob))
    for blob in work.take(9):
        work.park(waiting(blob, 2 if blob == "a" else 1))
    for blob in "fgh":
        work.settle(BlobId(blob))
    work.refill()
    pages(work, *"abcdefgh", *"xyz", per_page=2)  # b, c and d have come in between
    for blob in work.take(9):
        if blob in "fgh":
            work.settle(blob)
        elif blob in "abcd":
            work.park(waiting(blob, 0))
    assert "e" not in queue(work), "it is left for the others"
    for blob in "abcd":
        work.settle(BlobId(blob))
    work.refill()
    pages(work, *"abcdefgh", *"xyz", per_page=2)
    assert "e" in work.take(9)


def test_what_an_event_found_endangered_is_never_left_out() -> None:
    work = Worklist(queue_max=1)
    work.begin(RepairRound(A, Ms(7), kept=True))
    pages(work, "a")
    work.take(1)
    work.park(waiting("a", 2))
    work.park(waiting("event", 2, 5))
    assert queue(work) == ["a", "event"]


def surveyed(work: Worklist, *blobs: str, shepherd: ServiceId = A) -> list[str]:
    """The blobs planned because the survey found them short, each with a replica at `shepherd`."""
    work.surveyed({BlobId(blob): (Location(shepherd, ReferenceId(f"r{blob}")),) for blob in blobs})
    return list(work.take(100))


def test_what_a_round_will_come_to_the_survey_leaves_to_it() -> None:
    work = Worklist(queue_max=4)
    work.begin(RepairRound(A, Ms(7), "rb", kept=True))
    assert surveyed(work, "a", "b", "c") == ["a", "b"], "before the cursor it was found whole"
    page(work, *"abcdefgh", per_page=2)
    for blob in work.take(100):
        work.park(waiting(blob))
    assert surveyed(work, *"cdefgh") == ["c", "d"], "its first page was read, the others not yet"
    assert surveyed(work, "h", shepherd=B) == ["h"], "no round goes through what is there"


def test_what_a_round_left_for_later_the_survey_leaves_to_it_and_nothing_else() -> None:
    work = Worklist(queue_max=2)
    work.begin(RepairRound(A, Ms(7), kept=True))
    pages(work, *"abcdefgh")
    for blob in work.take(100):
        work.park(waiting(blob))
    assert queue(work) == ["a", "b"]
    assert surveyed(work, *"abcdefgh") == ["a", "b"], "the others are in pages that will be read again"
    for blob in "ab":
        work.settle(BlobId(blob))
    work.refill()
    page(work, *"abcdefgh", per_page=2)
    for blob in work.take(100):
        work.settle(blob)
    assert surveyed(work, *"abcdefgh") == ["a", "b", "c", "d"], "the page with c and d was read again"
    work.leave_nodes()
    assert surveyed(work, *"efgh") == ["e", "f", "g", "h"], "nobody comes back to them"


def test_a_survey_does_not_fill_the_queue_beyond_its_size_with_what_rounds_will_find() -> None:
    names, most = [f"{number:04d}" for number in range(1000)], 40
    work = Worklist(queue_max=most)
    work.begin(RepairRound(A, Ms(7), kept=True))
    left, copied = set(names), 0
    for start in range(0, 4000, 10):
        work.refill()
        if work.next_page() and not work.ample:
            page(work, *names, per_page=10)
        begin = start % len(names)
        work.surveyed(
            {BlobId(name): [Location(A, ReferenceId(f"r{name}"))] for name in names[begin : begin + 10] if name in left}
        )
        for blob in work.take(100):
            if blob in left:
                work.park(waiting(blob))
            else:
                work.settle(blob)
        assert work.queued <= most + 10
        for done in queue(work)[:5]:
            work.settle(BlobId(done))
            left.remove(done)
            copied += 1
    assert not left
    assert copied == len(names)


def test_what_the_survey_finds_that_wants_no_copy_is_planned_whatever_a_round_will_come_to() -> None:
    work = Worklist()
    work.begin(RepairRound(A))
    work.surveyed({BlobId("a"): ()})
    assert work.take(9) == ["a"]


@given(
    lives=st.lists(st.integers(0, 3), min_size=1, max_size=25),
    queue_max=st.integers(1, 6),
    per_page=st.integers(1, 4),
    order=st.randoms(use_true_random=False),
)
def test_every_blob_is_copied_whatever_the_order_and_the_cursor_never_passes_one_that_lacks(
    lives: list[int], queue_max: int, per_page: int, order: object
) -> None:
    names = [f"{number:03d}" for number in range(len(lives))]
    lacking = {name: live for name, live in zip(names, lives, strict=True) if live < 3}
    work = Worklist(queue_max)
    work.begin(RepairRound(A, Ms(7), kept=True))
    for _ in range(10 * len(names) + 10):
        pages(work, *names, per_page=per_page)
        for blob in work.take(1000):
            if blob in lacking:
                work.park(waiting(blob, lacking[blob]))
            else:
                work.settle(blob)
        assert len(queue(work)) <= queue_max
        assert all(f"r{name}" > cursor(work) for name in lacking)
        if found := queue(work):
            assert lacking[found[0]] == min(lacking.values()), "the most endangered of all comes first"
            done = found[order.randrange(len(found))]  # type: ignore[attr-defined]
            del lacking[done]
            work.settle(BlobId(done))
        work.refill()
    assert not lacking
    assert cursor(work) == END


# --- timers -----------------------------------------------------------------------------------------------------------


def test_how_much_of_a_loss_was_read_is_told_by_where_its_references_are() -> None:
    work = Worklist()
    assert (work.read_share, work.unplanned) == (1.0, 0)
    work.begin(RepairRound(B, kept=False))
    work.begin(RepairRound(A, Ms(5), "80000000-0000", kept=True))
    assert work.read_share == 0.0
    work.paged(A, "80000000-0000", [BlobId("a"), BlobId("b")], "c0000000-0000")
    assert (work.read_share, work.unplanned) == (0.5, 2)
    work.mark([BlobId("of an event")])
    work.take(1)
    assert work.unplanned == 1
    work.paged(A, "c0000000-0000", [], "")
    assert work.read_share == 1.0


def test_a_reference_that_is_no_uuid_leaves_the_share_of_what_was_read_a_share() -> None:
    found = RepairRound(A, Ms(5), "80000000-0000", kept=True)
    found.took("of another time")
    assert 0 <= found.share <= 1


def test_timers_ring_once_at_the_earliest_time_set() -> None:
    work = Worklist()
    work.blob_at(Ms(50), BlobId("a"))
    work.blob_at(Ms(20), BlobId("a"))
    work.blob_at(Ms(70), BlobId("a"))
    work.node_at(Ms(30), A)
    assert work.ring(Ms(19)) == ()
    assert work.dirty == 0
    assert work.ring(Ms(30)) == (A,)
    assert work.take(9) == ["a"]


@pytest.mark.parametrize("after", ["", "r5", END])
def test_a_cursor_says_where_a_round_began(after: str) -> None:
    fresh = RepairRound(A, Ms(1), after, kept=True)
    assert fresh.cursor == NodeCursor(A, after, after == END)


def test_who_was_let_go_on_keeps_its_room_until_it_is_planned() -> None:
    work = Worklist()
    for name in ("a", "b", "c"):
        work.park(waiting(name))

    def room(slots: int) -> Callable[[QueuedBlob], bool]:
        left = [None] * slots
        return lambda found: bool(left) and left.pop() is None

    work.unpark(9, room(2))
    assert work.take(9) == ["a", "b"]
    work.unpark(9, room(2))
    assert work.dirty == 0, "both slots are as good as taken"
    work.planned(BlobId("a"))
    work.unpark(9, room(2))
    assert work.take(9) == ["c"]
