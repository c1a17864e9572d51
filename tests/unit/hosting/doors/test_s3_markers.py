"""The S3 door on a cluster in memory: delete markers, while other requests change the same key."""

from __future__ import annotations

import asyncio
import re

import pytest

from chelonia.core.caller import Call
from chelonia.core.ids import ROOT
from chelonia.core.names import LogicalName
from chelonia.core.ports.files import Change, Done, Failure, Move, Set
from tests.unit.hosting.doors.test_s3_races import Meanwhile, meanwhile
from tests.unit.hosting.doors.test_s3_versions import EVE, JOE, Door, Heard, door, kept

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
