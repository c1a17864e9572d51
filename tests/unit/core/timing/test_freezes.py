"""The detection of a frozen process, and a watcher's reasons to doubt itself."""

from __future__ import annotations

import pytest

from chelonia.core.timing.freezes import BUSY_MS, GRACE_MS, LATE_MS, LOOK_MS, FreezeDetector, still_after_ms

LIMIT = 800
MISSED = 200
"""The time of two of its eight signs."""


@pytest.mark.parametrize(
    ("lease_ms", "heartbeat_ms", "limit_ms"),
    [(5000, 2000, 4000), (1000, 250, 800), (0, 2000, 4000), (1, 0, 1), (0, 0, 1)],
)
def test_the_limit_lies_within_the_lease(lease_ms: int, heartbeat_ms: int, limit_ms: int) -> None:
    assert still_after_ms(lease_ms, heartbeat_ms) == limit_ms


def heard_at(now_ms: int) -> FreezeDetector:
    """A process that goes on after its last sign, seen by a watcher when two are missing."""
    watch = FreezeDetector()
    watch.heard(now_ms, LIMIT)
    assert watch.wait_ms(now_ms) == MISSED
    assert not watch.stopped(now_ms + MISSED, 3)
    return watch


def stopped(watch: FreezeDetector, now_ms: int) -> bool:
    """The verdict on a process that uses no CPU, by a second look `LOOK_MS` after the first."""
    return watch.stopped(now_ms - LOOK_MS, 7) or watch.stopped(now_ms, 7)


def test_nothing_is_said_before_the_first_sign() -> None:
    watch = FreezeDetector()
    assert watch.wait_ms(10**9) is None
    assert not stopped(watch, 10**9)


def test_silence_for_the_limit_is_standing_still_and_is_said_once() -> None:
    watch = heard_at(1000)
    assert watch.wait_ms(1200) == 600 - LOOK_MS
    assert not watch.stopped(1799 - LOOK_MS, 7)
    assert not watch.stopped(1800 - LOOK_MS, 7), "it is looked for the first time whether it works"
    assert watch.wait_ms(1801 - LOOK_MS) == LOOK_MS - 1
    assert watch.stopped(1800, 7)
    assert not stopped(watch, 5000)
    assert watch.wait_ms(5000) is None


def test_every_sign_begins_the_time_anew_also_after_standing_still() -> None:
    watch = heard_at(1000)
    assert not watch.stopped(1800 - LOOK_MS, 7)
    watch.heard(1700, LIMIT)
    assert not watch.stopped(1800, 7)
    assert not watch.stopped(1900, 7)
    assert stopped(watch, 2500)
    watch.heard(9000, 2 * LIMIT)
    assert watch.wait_ms(9000) == MISSED, "signs are no farther apart where the limit is longer"
    assert not watch.stopped(9000 + MISSED, 7)
    assert stopped(watch, 9000 + 2 * LIMIT)


@pytest.mark.parametrize("late_ms", [0, LATE_MS + 1])
def test_who_was_stopped_is_not_waited_for_once_two_signs_are_missing(late_ms: int) -> None:
    watch = FreezeDetector()
    watch.heard(1000, LIMIT)
    assert not watch.stopped(1000 + MISSED - 1, None), "one sign may be late"
    assert watch.stopped(1000 + MISSED + late_ms, None)
    assert watch.wait_ms(3000) is None
    watch.heard(5000, LIMIT)
    assert not watch.stopped(5000 + MISSED, 7)
    assert not watch.stopped(5800 - LOOK_MS, 7)
    assert watch.stopped(5800, None), "it is seen at each look"


def test_who_works_is_only_busy_until_it_has_served_nobody_for_very_long() -> None:
    watch, now_ms = heard_at(1000), 1800 - LOOK_MS
    while now_ms < 1800 + BUSY_MS:
        assert not watch.stopped(now_ms, now_ms)
        assert watch.wait_ms(now_ms) == LOOK_MS
        now_ms += LOOK_MS
    assert watch.stopped(now_ms, now_ms)
    watch.heard(20_000, LIMIT)
    assert not watch.stopped(20_000 + MISSED, 5)
    assert not watch.stopped(20_800 - LOOK_MS, 5)
    assert not watch.stopped(20_800, 6), "it worked before it was stopped"
    assert watch.stopped(20_800 + LOOK_MS, 6)


def test_a_watcher_that_is_late_looks_again_and_hears_what_was_late_with_him() -> None:
    watch, late_ms = heard_at(1000), 1800 - LOOK_MS + LATE_MS + 1
    assert not watch.stopped(late_ms, 7)
    assert watch.wait_ms(late_ms) == GRACE_MS
    watch.heard(late_ms + 1, LIMIT)
    assert not watch.stopped(late_ms + GRACE_MS, 7)


def test_a_watcher_that_was_late_and_then_is_not_says_so() -> None:
    watch, late_ms = heard_at(1000), 1800 - LOOK_MS + LATE_MS + 1
    assert not watch.stopped(late_ms, 7)
    assert not watch.stopped(late_ms + GRACE_MS + LATE_MS + 1, 7), "late again"
    assert stopped(watch, late_ms + 2 * GRACE_MS + LATE_MS + 1 + LOOK_MS)
