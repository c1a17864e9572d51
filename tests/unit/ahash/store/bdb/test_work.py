"""Work that waits for a thread, and work done at once instead."""

import threading
import time

from chelonia.ahash.store.bdb.work import BRIEF_S, CALM_S, DOUBT_FACTOR, REST_FACTOR, STALL_S, Briefness, WorkQueue

MANY = 20_000


def work_off(work: WorkQueue[int], done: list[int], count: int) -> None:
    while len(done) < count:
        if work.wait(0.05):
            with work.turn:
                while work:
                    done.append(work.take())


def test_nothing_is_lost_and_the_order_stays() -> None:
    work, done = WorkQueue[int](), list[int]()
    thread = threading.Thread(target=work_off, args=(work, done, MANY))
    thread.start()
    for number in range(MANY):
        work.put(number)
    thread.join(30)
    assert done == list(range(MANY))


def test_what_is_done_on_the_spot_keeps_its_place_too() -> None:
    work, done = WorkQueue[int](), list[int]()
    thread = threading.Thread(target=work_off, args=(work, done, MANY))
    thread.start()
    for number in range(MANY):
        if work.take_turn():
            done.append(number)
            work.turn.release()
        else:
            work.put(number)
    thread.join(30)
    assert done == list(range(MANY))


def test_nobody_is_alone_while_something_waits_or_somebody_works() -> None:
    work = WorkQueue[int]()
    assert work.take_turn()
    assert not work.take_turn(), "somebody is at work"
    work.turn.release()
    work.put(1)
    assert not work.take_turn(), "something waits"
    assert work.wait(0)
    with work.turn:
        assert work.take() == 1
    assert work.take_turn()


def test_what_was_left_is_found_without_a_bell() -> None:
    work = WorkQueue[int]()
    work.put(1)
    work.put(2)
    assert work.wait(0)
    assert work.take() == 1
    assert work.wait(0)
    assert work.take() == 2
    assert not work.wait(0)
    work.put(3)
    assert work.wait(0)


def test_a_bell_that_was_not_needed_ends_no_wait() -> None:
    work, began_s = WorkQueue[int](), time.monotonic()
    work.put(1)
    assert work.wait(0)
    assert work.take() == 1
    assert not work.wait(0.05)
    assert time.monotonic() - began_s >= 0.05, "who waited took this for silence"


def test_after_what_was_not_brief_nothing_is_expected_to_be_for_a_while() -> None:
    brief, long_s = Briefness(), 2 * BRIEF_S
    brief.note(1.0, 1.0 + long_s)
    assert not brief.expected(1.0 + long_s + DOUBT_FACTOR * long_s - 0.001)
    assert brief.expected(1.0 + long_s + DOUBT_FACTOR * long_s + 0.001)


def test_what_took_less_long_does_not_shorten_the_doubt() -> None:
    brief = Briefness()
    brief.note(0.0, 1.0)
    brief.note(1.0, 1.0 + 2 * BRIEF_S)
    brief.note(1.1, 1.1 + BRIEF_S / 2)
    assert not brief.expected(1.0 + DOUBT_FACTOR - 0.001)
    assert brief.expected(1.0 + DOUBT_FACTOR + 0.001)


def test_after_a_brief_piece_comes_a_brief_rest() -> None:
    brief = Briefness()
    brief.note(0.0, BRIEF_S)
    assert not brief.expected(BRIEF_S)
    assert brief.expected(BRIEF_S + REST_FACTOR * BRIEF_S)


def test_after_a_stall_a_master_waits_for_a_calm_disk() -> None:
    brief, stalled_s = Briefness(of_master=True), 2 * STALL_S
    brief.note(100.0, 100.0 + stalled_s)
    brief.note(101.0, 101.0)  # the writer's are brief again
    assert not brief.expected(100.0 + stalled_s + CALM_S - 0.001)
    assert brief.expected(100.0 + stalled_s + CALM_S + 0.001)
    brief.note(200.0, 200.0 + CALM_S)
    assert not brief.expected(200.0 + CALM_S + DOUBT_FACTOR * CALM_S - 0.001), "after a longer one for longer"


def test_a_master_goes_on_right_after_a_brief_piece() -> None:
    brief = Briefness(of_master=True)
    brief.note(0.0, BRIEF_S)
    assert brief.expected(BRIEF_S)


def test_who_finds_only_then_that_something_waits_leaves_the_turn() -> None:
    work = WorkQueue[int]()
    turn = work.turn

    class Late:
        """The turn; while it is taken, another thread queues work."""

        release = staticmethod(turn.release)

        def acquire(self, blocking: bool = True) -> bool:
            work.put(1)
            return turn.acquire(blocking)

    work.turn = Late()  # type: ignore[assignment]
    assert not work.take_turn()
    assert not turn.locked()
