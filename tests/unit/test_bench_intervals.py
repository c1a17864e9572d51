"""The intervals that `make bench` judges by."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def intervals() -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "bench" / "intervals.py"
    spec = importlib.util.spec_from_file_location("bench_intervals", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("count", "rank", "coverage"), [(6, 0, 0.96875), (10, 1, 0.978515625), (12, 2, 0.961426), (36, 11, 0.971)]
)
def test_an_interval_is_made_of_order_statistics_and_covers_95_percent(
    intervals: ModuleType, count: int, rank: int, coverage: float
) -> None:
    samples = [float(value) for value in range(count)]
    found = intervals.median_interval(samples[::2] + samples[1::2])
    assert (found.low, found.high) == (samples[rank], samples[-1 - rank])
    assert found.median == (count - 1) / 2
    assert found.coverage == pytest.approx(coverage, abs=0.001)


def test_a_bar_is_met_by_the_near_end_of_the_interval_alone(intervals: ModuleType) -> None:
    samples = [1.0] * 10 + [9.0] * 2
    assert intervals.check("x", "at most", 1.0, samples).met
    assert not intervals.check("x", "at most", 1.0, [*samples, 9.0, 9.0]).met
    assert not intervals.check("x", "at least", 2.0, samples).met
    assert intervals.check("x", "at least", 1.0, samples).met


def test_fewer_than_ten_blocks_are_no_evidence(intervals: ModuleType) -> None:
    assert not intervals.check("x", "at most", 2.0, [1.0] * 9).counts
    assert intervals.check("x", "at most", 2.0, [1.0] * 10).counts
