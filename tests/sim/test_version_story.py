"""Allowed answers in the model of a key in a bucket that keeps versions."""

from __future__ import annotations

import pytest

from tests.sim.model import Violation
from tests.sim.version_story import KeyOp, VersionStory


def told(story: VersionStory, op: KeyOp, answer: str) -> None:
    """Begin and answer one operation, while no other is under way."""
    story.begin(op)  # type: ignore[arg-type]
    story.answered(op, answer)  # type: ignore[arg-type]


def erased_once() -> VersionStory:
    """A key whose only version is gone."""
    story = VersionStory({1: 7, 3: 8})
    told(story, KeyOp(1, "put", content=7), "done")
    told(story, KeyOp(2, "erase", target=1), "done")
    return story


def test_an_erasure_of_what_is_gone_gives_the_key_to_a_put_that_was_broken_off() -> None:
    """Seed 9720424 of `versions`: the door does so, and the model did not."""
    story, put = erased_once(), KeyOp(3, "put", content=8)
    story.begin(put)  # type: ignore[arg-type]
    story.settled(put)  # type: ignore[arg-type]
    told(story, KeyOp(4, "read"), "read 0")
    told(story, KeyOp(5, "erase", target=1), "done")
    told(story, KeyOp(6, "read"), "read 8")


def test_markers_that_go_at_the_same_time_leave_the_key_to_the_newest_version() -> None:
    story = VersionStory({1: 7})
    told(story, KeyOp(1, "put", content=7), "done")
    for marker in (2, 3):
        told(story, KeyOp(marker, "remove"), "done")
    erasures = [KeyOp(4, "erase", target=2), KeyOp(5, "erase", target=3)]
    for op in erasures:
        story.begin(op)  # type: ignore[arg-type]
    for op in erasures:
        story.answered(op, "done")  # type: ignore[arg-type]
    with pytest.raises(Violation):
        told(story, KeyOp(6, "read"), "read 0")
