"""The S3 door on a cluster in memory: changes on a condition that cross others, where a bucket keeps or has kept
versions."""

from __future__ import annotations

import pytest

from chelonia.core.caller import Call
from chelonia.core.ports.files import Change, Done, Failure, Listed, Listing, Move, Remove
from tests.unit.hosting.doors.test_s3_races import Meanwhile, meanwhile
from tests.unit.hosting.doors.test_s3_versions import JOE, OFF, ON, Door, Heard, door, kept

__all__ = ["door", "kept", "meanwhile"]


@pytest.mark.parametrize(
    ("method", "before"),
    [
        ("PUT", ""),
        ("PUT", "null"),
        ("PUT", "version"),
        ("PUT", "marker"),
        ("PUT", "version over null"),
        ("DELETE", "null"),
        ("DELETE", "version"),
        ("DELETE", "version over null"),
    ],
)
def test_a_change_on_a_condition_leaves_a_version_that_waits_for_the_key(
    kept: Door, meanwhile: Meanwhile, method: str, before: str
) -> None:
    """It took that for an older one: a write was lost that was acknowledged, though the condition said that there had
    been none."""
    if before == "version over null":
        assert kept.ask("PUT", "/lab?versioning", OFF).status == 200
        kept.put("k", b"first")
        assert kept.ask("PUT", "/lab?versioning", ON).status == 200
    if before.startswith("version"):
        kept.put("k", b"before")
    assert kept.ask("PUT", "/lab?versioning", OFF).status == 200
    if before == "null":
        kept.put("k", b"before")
    elif before == "marker":
        assert kept.ask("DELETE", "/lab/k").status == 204
    exists = before not in ("", "marker")
    fields = {"If_Match": kept.ask("HEAD", "/lab/k").headers["ETag"]} if exists else {"If_None_Match": "*"}
    told = meanwhile(Move, (method, "/lab/k", "conditional"), **fields)
    assert kept.ask("PUT", "/lab/k", b"last").status == 200
    assert [each.status for each in told] == [200 if method == "PUT" else 204]
    assert kept.ask("GET", "/lab/k").body == b"last"
    assert [version for _, version, _ in kept.history()].count("null") == 1
    others = [name for name in kept.files.names() if name.startswith("/lab/※versions/")]
    assert len(others) == before.startswith("version"), "no other null version is left"


def test_a_write_on_a_condition_removes_the_null_version_behind_the_one_that_met_it(kept: Door) -> None:
    assert kept.ask("PUT", "/lab?versioning", OFF).status == 200
    kept.put("k", b"first")
    assert kept.ask("PUT", "/lab?versioning", ON).status == 200
    kept.put("k", b"before")
    assert kept.ask("PUT", "/lab?versioning", OFF).status == 200
    etag = kept.ask("HEAD", "/lab/k").headers["ETag"]
    assert kept.ask("PUT", "/lab/k", b"last", If_Match=etag).status == 200
    assert len(kept.kept_names()) == 1, "the version alone"


def test_a_version_that_is_removed_on_a_condition_is_not_looked_for_again(
    kept: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others gave the key two versions before another could have it: the answer was that there is no such version."""
    kept.put("k", b"one")
    assert kept.ask("DELETE", "/lab/k").status == 204
    kept.put("k", b"two")
    newest, apply, listing = kept.ask("HEAD", "/lab/k"), kept.files.apply, kept.files.list
    removed, told, due = list[Change](), list[Heard](), [b"three", b"four"]

    async def noted(call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        answers = await apply(call, changes)
        removed.extend(change for change in changes if isinstance(change, Remove))
        return answers

    async def late(call: Call, ask: Listing) -> Listed:
        now = [due.pop(0) for _ in range(len(due)) if removed]
        told.extend([await kept._ask("PUT", "/lab/k", data, JOE, {}) for data in now])
        return await listing(call, ask)

    monkeypatch.setattr(kept.files, "apply", noted)
    monkeypatch.setattr(kept.files, "list", late)
    answer = kept.ask("DELETE", f"/lab/k?versionId={newest.version}", If_Match=newest.headers["ETag"])
    assert ([each.status for each in told], answer.status) == ([200, 200], 204)
    assert kept.ask("GET", "/lab/k").body == b"four"
