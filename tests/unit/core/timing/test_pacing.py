"""A pace: so much a second, and no pause made up for."""

from chelonia.core.ids import Ms
from chelonia.core.timing.pacing import Pace


def test_a_pace_spreads_bytes_over_time() -> None:
    pace = Pace(1_000)
    assert pace.wait_ms(Ms(0)) == 0
    pace.spend(2_000, Ms(0))
    assert pace.wait_ms(Ms(500)) == 1_500
    assert pace.wait_ms(Ms(2_000)) == 0
    pace.spend(100, Ms(10_000))
    assert pace.wait_ms(Ms(10_000)) == 100, "a pause is not made up for"
    slow = Pace(0.5)
    slow.spend(1, Ms(0))
    assert slow.wait_ms(Ms(0)) == 2_000
