"""`chelonia admin rebuild` for administrators."""

from __future__ import annotations

import json
from typing import Any

import pytest

from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ports.librarian import RebuildStatus
from chelonia_clients.arguments import UsageError
from tests.support.admin_cli import run_as
from tests.support.bartender import FakeBartender
from tests.support.failing import fails
from tests.unit.clients.faking import administrator_on

COUNTS = {"objects restored": 5, "replicas found": 9}


class Slow:
    """A Librarian whose rebuild takes some looks."""

    def __init__(self, *stages: RebuildStatus) -> None:
        self._stages = list(stages)
        self.begun: list[bool] = []
        self.late: list[str] = []
        self.refuses: CheloniaError | None = None

    async def rebuild(self, call: Call, begin: bool, late: str = "") -> RebuildStatus:
        self.begun.append(begin)
        self.late.append(late)
        if begin and self.refuses is not None:
            raise self.refuses
        return self._stages.pop(0) if len(self._stages) > 1 else self._stages[0]


async def run(librarian: Slow, monkeypatch: pytest.MonkeyPatch, **flags: Any) -> tuple[int, str]:
    said = await run_as(administrator_on(FakeBartender(), librarian), monkeypatch, "rebuild", **flags)
    return said.code, said.stdout


async def test_it_is_begun_once_watched_and_its_findings_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    librarian = Slow(
        RebuildStatus("looking for snapshots", 1),
        RebuildStatus("looking for snapshots", 3),
        RebuildStatus("restoring names", 2, 5),
        RebuildStatus("done", counts=COUNTS, notes=("https://s4/Shepherd is away: what only it holds is not found",)),
    )
    code, said = await run(librarian, monkeypatch)
    assert code == 0
    assert librarian.begun == [True, False, False, False]
    assert "- https://s4/Shepherd is away" in said
    assert "replicas found         9" in said


async def test_a_rebuild_that_has_stopped_says_why_and_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    code, said = await run(Slow(RebuildStatus("failed", cause="network: no answer")), monkeypatch, as_json=True)
    document = json.loads(said)
    assert (code, document["stage"], document["cause"]) == (1, "failed", "network: no answer")


async def test_a_librarian_that_was_started_again_meanwhile_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    librarian = Slow(RebuildStatus("beginning"), RebuildStatus("reading records", 1, 2), RebuildStatus("idle"))
    with fails(Kind.CANCELLED, match="give the command again"):
        await run(librarian, monkeypatch)


async def test_what_a_rebuild_that_has_ended_found_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    librarian = Slow(RebuildStatus("done", counts=COUNTS, notes=("no replica was found of '/f'",)))
    librarian.refuses = CheloniaError(Kind.NOT_EMPTY, "rebuild", "/", "this namespace has entries")
    code, said = await run(librarian, monkeypatch)
    assert (code, librarian.begun) == (0, [True, False])
    assert "no replica was found of '/f'" in said


async def test_a_namespace_that_is_in_use_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    librarian = Slow(RebuildStatus("idle"))
    librarian.refuses = CheloniaError(Kind.NOT_EMPTY, "rebuild", "/", "this namespace has entries")
    with pytest.raises(CheloniaError, match="has entries"):
        await run(librarian, monkeypatch)


async def test_one_shepherd_that_came_late_is_told_of_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    librarian = Slow(RebuildStatus("reading records", 1), RebuildStatus("done", counts={"replicas found": 9}))
    code, said = await run(librarian, monkeypatch, late="https://s4/Shepherd")
    assert (code, librarian.begun, librarian.late) == (0, [True, False], ["https://s4/Shepherd", ""])
    assert "https://s4/Shepherd has told all it knows" in said
    librarian.refuses = CheloniaError(
        Kind.CONFLICT, "rebuild", "https://s4/Shepherd", "it has told all it knows already"
    )
    with pytest.raises(CheloniaError, match="already"):
        await run(librarian, monkeypatch, late="https://s4/Shepherd")
    with pytest.raises(UsageError):
        await run(librarian, monkeypatch, late="")
