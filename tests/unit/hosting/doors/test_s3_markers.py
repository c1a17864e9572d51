"""The S3 door on a cluster in memory: delete markers, while other requests change the same key."""

from __future__ import annotations

import asyncio
import re

import pytest

from chelonia.core.caller import Call
from chelonia.core.ids import ROOT
from chelonia.core.names import LogicalName
from chelonia.core.ports.files import Change, Done, Failure, Inline, Move, Set, Write
from tests.unit.hosting.doors.test_s3_races import Meanwhile, meanwhile
from tests.unit.hosting.doors.test_s3_versions import EVE, JOE, OFF, ON, Door, Heard, door, kept

__all__ = ["door", "kept", "meanwhile"]


def test_what_goes_behind_a_marker_that_is_erased_before_has_its_key_again(
    kept: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing shows a marker before it has taken the key. Nobody could read the key, though no marker was left."""
    version, apply, told = kept.put("k", b"one"), kept.files.apply, list[Heard]()

    async def erasing(call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        if isinstance(changes[0], Move) and not told:
            told.append(await kept._ask("GET", "/lab?versions", b"", JOE, {}))
            (marker,) = re.findall("<DeleteMarker>.*<VersionId>(.*?)<.*</DeleteMarker>", told[0].body.decode())
            told.append(await kept._ask("DELETE", f"/lab/k?versionId={marker}", b"", JOE, {}))
        return await apply(call, changes)

    monkeypatch.setattr(kept.files, "apply", erasing)
    assert kept.ask("DELETE", "/lab/k").status == 204
    assert [each.status for each in told] == [200, 204]
    assert kept.ask("GET", "/lab/k").body == b"one"
    assert kept.history() == [("k", version, "*")]


def test_a_refused_removal_leaves_the_key_to_the_version_before(kept: Door, meanwhile: Meanwhile) -> None:
    """Its marker had the key while the newest version went. The one before could not be read then, and who may only add
    to the bucket had removed it."""
    rules: dict[str, str | None] = {EVE: "+read +addEntry"}
    asyncio.run(kept.files.apply(Call(dn=JOE), (Set(LogicalName(ROOT, ("lab",)), policy=rules),)))
    kept.put("k", b"one")
    newest = kept.put("k", b"two")
    told = meanwhile(Move, ("DELETE", f"/lab/k?versionId={newest}"))
    assert kept.ask("DELETE", "/lab/k", who=EVE).status == 403
    assert [each.status for each in told] == [204]
    assert kept.ask("GET", "/lab/k").body == b"one"


@pytest.mark.parametrize("state", [ON, OFF])
def test_a_removal_takes_what_the_key_has_in_its_other_place(kept: Door, state: str) -> None:
    """The file of a name was removed; then a reader found the one that it had hidden, which was kept apart."""
    assert kept.ask("PUT", "/lab?versioning", state).status == 200
    kept.put("k/below", b"x")
    kept.put("k", b"apart")
    assert kept.ask("DELETE", "/lab/k/below").status == 204
    other = Write(LogicalName(ROOT, ("lab", "k")), inline=Inline(b"by another door", 2))
    asyncio.run(kept.files.apply(Call(dn=JOE), (other,)))
    assert kept.ask("DELETE", "/lab/k").status == 204
    assert kept.ask("GET", "/lab/k").status == 404
    left = ["marker*", "", ""] if state == ON else ["marker*"]
    assert [mark for key, _, mark in kept.history() if key == "k"] == left
    assert not [name for name in kept.files.names() if name.startswith(("/lab/k", "/lab/※keys"))]


@pytest.mark.parametrize("state", [ON, OFF])
def test_a_removal_takes_the_directory_that_was_there_before_bytes(kept: Door, state: str) -> None:
    assert kept.ask("PUT", "/lab?versioning", state).status == 200
    for data in (b"", b"bytes"):
        assert kept.ask("PUT", "/lab/d/", data).status == 200
    assert kept.ask("DELETE", "/lab/d/").status == 204
    assert kept.ask("GET", "/lab/d/").status == 404
    assert "/lab/d" not in kept.files.names()


@pytest.mark.parametrize("state", [ON, OFF])
def test_a_removal_takes_nothing_that_came_after_it_to_the_other_place(
    kept: Door, meanwhile: Meanwhile, state: str
) -> None:
    kept.put("k", b"old")
    assert kept.ask("PUT", "/lab?versioning", state).status == 200
    told = meanwhile(Move, ("PUT", "/lab/k/below", "x"), ("PUT", "/lab/k", "new"), after=True)
    assert kept.ask("DELETE", "/lab/k").status == 204
    assert [each.status for each in told] == [200, 200]
    assert kept.ask("GET", "/lab/k").body == b"new"
