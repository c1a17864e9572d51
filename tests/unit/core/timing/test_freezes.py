"""When a process is said to stand still, and when its watcher has reason to doubt himself."""

from __future__ import annotations

import pytest

from chelonia.core.timing.freezes import GRACE_MS, LATE_MS, FreezeDetector, still_after_ms

LIMIT = 800


@pytest.mark.parametrize(
    ("lease_ms", "heartbeat_ms", "limit_ms"),
    [(5000, 2000, 4000), (1000, 250, 800), (0, 2000, 4000), (1, 0, 1), (0, 0, 1)],
)
def test_the_limit_lies_within_the_lease(lease_ms: int, heartbeat_ms: int, limit_ms: int) -> None:
    assert still_after_ms(lease_ms, heartbeat_ms) == limit_ms


def heard_at(now_ms: int) -> FreezeDetector:
    watch = FreezeDetector()
    watch.heard(now_ms, LIMIT)
    return watch


def test_nothing_is_said_before_the_first_sign() -> None:
    watch = FreezeDetector()
    assert watch.wait_ms(10**9) is None
    assert not watch.stopped(10**9)


def test_silence_for_the_limit_is_standing_still_and_is_said_once() -> None:
    watch = heard_at(1000)
    assert watch.wait_ms(1100) == 700
    assert not watch.stopped(1799)
    assert watch.wait_ms(1801) == 0
    assert watch.stopped(1800)
    assert not watch.stopped(5000)
    assert watch.wait_ms(5000) is None


def test_every_sign_begins_the_time_anew_also_after_standing_still() -> None:
    watch = heard_at(1000)
    watch.heard(1700, LIMIT)
    assert not watch.stopped(2499)
    assert watch.stopped(2500)
    watch.heard(9000, 2 * LIMIT)
    assert watch.wait_ms(9000) == 2 * LIMIT
    assert watch.stopped(9000 + 2 * LIMIT)


def test_a_watcher_that_is_late_looks_again_and_hears_what_was_late_with_him() -> None:
    watch, late_ms = heard_at(1000), 1800 + LATE_MS + 1
    assert not watch.stopped(late_ms)
    assert watch.wait_ms(late_ms) == GRACE_MS
    watch.heard(late_ms + 1, LIMIT)
    assert not watch.stopped(late_ms + GRACE_MS)


def test_a_watcher_that_was_late_and_then_is_not_says_so() -> None:
    watch, late_ms = heard_at(1000), 1800 + LATE_MS + 1
    assert not watch.stopped(late_ms)
    assert not watch.stopped(late_ms + GRACE_MS + LATE_MS + 1), "late again"
    assert watch.stopped(late_ms + 2 * GRACE_MS + LATE_MS + 1)
