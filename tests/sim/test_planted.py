"""The simulator must find bugs that are put in on purpose: those that few seeds show, here; all, by
`python -m tests.sim.planted`."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator

import pytest

from tests.sim.planted import BUGS, hunt, planted
from tests.sim.scenario_swarm import swarm
from tests.sim.virtual_loop import run_virtual

SEEDS = range(1, 31)
QUICK = {
    "wrong-domain": (1, 2),
    "no-fsync": (1, 9),
    "erase-first": (1, 2),
    "unlink-file": (9,),
    "note-early": (5,),
    "first-owner": (2,),
    "mixed-parts": (4,),
    "forgets-upload": (1,),
    "lives-on": (1,),
    "reads-nothing": (6,),
    "first-name": (5,),
    "together-done": (6,),
}
"""Seeds that show a bug, tried before the others, of which some need thirty."""


@pytest.fixture(autouse=True)
def _no_logs() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_bug_is_caught(name: str) -> None:
    """If changed services or a changed simulator make these seeds miss it, look for a reason first."""
    found = hunt(name, (*QUICK[name], *SEEDS))
    assert found.seeds, f"{BUGS[name].what}: not found by {len(SEEDS)} seeds"
    assert found.violation


def test_a_planted_bug_is_gone_afterwards() -> None:
    with planted("erase-first"), planted("no-fsync"):
        pass
    run_virtual(swarm(1))


@pytest.mark.parametrize("name", BUGS)
def test_every_bug_can_be_planted(name: str) -> None:
    """Each patch replaces a value, or an existing function of the same parameters: else every seed would catch it, by a
    `TypeError`."""
    for each in BUGS[name].patches():
        if not callable(found := getattr(each.getter(), each.attribute)):
            assert type(found) is type(each.new)
            continue
        replaced = inspect.signature(found).parameters.values()
        given = [p for p in replaced if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        named = [p.name for p in replaced if p.kind is p.KEYWORD_ONLY]
        inspect.signature(each.new).bind(*given, **dict.fromkeys(named))
    with planted(name):
        pass
