"""Bounds that were reached: each time counts, and the log says so now and then."""

import pytest

from chelonia.core.limits import LOG_MS, LimitCounts


def test_limits_are_counted_each_time_and_logged_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    now = [0]
    counts = LimitCounts(lambda: now[0])
    for second in range(15):
        now[0] = second * LOG_MS // 10
        counts.met("connections", "10.0.0.1", "it was refused")
    counts.met("locks", "/CN=Joe", "it was refused")
    assert counts.reached == {"connections": 15, "locks": 1}
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3, "a bound says nothing for another"
    assert "times_since_last_line=9" in lines[1]
