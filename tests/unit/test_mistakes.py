"""The mistakes planted to try the tests: each can still be made at its place."""

import ast

import pytest

from tests.support.mistakes import CAUGHT_MIN, MISTAKES, ROOT, Mistake, planted

DESIGN = (ROOT / "docs/design/008-simulation.md").read_text()


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda each: each.what)
def test_every_mistake_can_be_planted(mistake: Mistake) -> None:
    ast.parse(planted(mistake))
    assert (ROOT / mistake.test).exists()
    assert f"| {mistake.what} | `{mistake.path}` |" in DESIGN


def test_there_are_twenty() -> None:
    assert len(MISTAKES) == CAUGHT_MIN + 1
