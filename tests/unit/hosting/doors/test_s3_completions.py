"""Completions of uploads in parts that come again, as after a lost answer."""

from __future__ import annotations

import asyncio

import pytest

from chelonia.core.caller import Call
from chelonia.core.errors import Kind
from chelonia.core.ids import ROOT, Dn
from chelonia.core.names import LogicalName
from chelonia.core.ports.files import Change, Done, Failure, Listed, Listing, Look, Looked, Move, Remove, Seal, Set
from chelonia.wire.s3 import versions
from tests.unit.hosting.doors.test_s3_races import Meanwhile, door, kept, meanwhile, parted
from tests.unit.hosting.doors.test_s3_versions import EVE, JOE, OFF, Door

__all__ = ["door", "kept", "meanwhile"]


def test_who_completes_again_is_told_the_version_though_it_was_overwritten(kept: Door, meanwhile: Meanwhile) -> None:
    kept.put("k", b"one")
    target, whole = parted(kept)
    version = kept.ask("POST", target, whole).version
    assert version != ""
    for after in ("nothing", "PUT", "DELETE"):
        if after != "nothing":
            assert kept.ask(after, "/lab/k", b"newer").status in (200, 204)
        again = kept.ask("POST", target, whole)
        assert (again.status, again.version) == (200, version), after
    erasing = kept.history()[1][1]
    looked = meanwhile(Seal, ("DELETE", f"/lab/k?versionId={erasing}"))
    assert kept.ask("POST", target, whole).version == version
    assert looked == [] or looked[0].status == 204
    kept.ask("DELETE", f"/lab/k?versionId={version}")
    assert kept.ask("POST", target, whole).texts("Code") == ["NoSuchUpload"]


def test_who_completes_again_is_told_the_version_though_a_copy_of_it_is_the_null_one(kept: Door) -> None:
    """The answer had none, as that of the copy, which has its bytes and its etag."""
    target, whole = parted(kept)
    version = kept.ask("POST", target, whole).version
    assert kept.ask("PUT", "/lab?versioning", OFF).status == 200
    source = {"x_amz_copy_source": f"/lab/k?versionId={version}", "x_amz_metadata_directive": "REPLACE"}
    assert kept.ask("PUT", "/lab/k", **source).version == ""
    again = kept.ask("POST", target, whole)
    assert (again.status, again.version) == (200, version)


def test_who_completes_again_is_told_no_copy_of_it_that_is_erased_meanwhile(
    kept: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The erasure exchanged the copy with the upload's version, which was about to be looked at."""
    target, whole = parted(kept)
    version = kept.ask("POST", target, whole).version
    source = {"x_amz_copy_source": "/lab/k", "x_amz_metadata_directive": "REPLACE"}
    copy = kept.ask("PUT", "/lab/k", **source).version
    apply, look, erased = kept.files.apply, kept.files.look, list[Change]()

    async def first_half(call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        if isinstance(changes[0], Remove):
            erased.append(changes[0])
            return (Failure(Kind.UNAVAILABLE),)
        return await apply(call, changes)

    async def crossing(call: Call, asks: tuple[Look, ...]) -> tuple[Looked | Failure, ...]:
        if versions.COLLECTION in asks[0].place.parts and not erased:
            await kept._ask("DELETE", f"/lab/k?versionId={copy}", b"", JOE, {})
        return await look(call, asks)

    monkeypatch.setattr(kept.files, "apply", first_half)
    monkeypatch.setattr(kept.files, "look", crossing)
    again = kept.ask("POST", target, whole)
    assert (again.status, again.version, len(erased)) == (200, version, 1)


def test_an_upload_whose_version_moves_while_it_is_looked_for_is_completed(
    kept: Door, meanwhile: Meanwhile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer was a conflict, though the version had had its key and was kept."""
    version, _, upload = kept.put("k", b"one"), [kept.put("z", data) for data in (b"1", b"2")], kept.opened("k")
    whole, listing, listed = kept.part("k", upload, b"two"), kept.files.list, list[Listing]()
    told = meanwhile(Move, ("DELETE", f"/lab/k?versionId={version}"))

    async def late(call: Call, ask: Listing) -> Listed:
        page = await listing(call, ask)
        listed.extend([ask] if told else [])
        if len(listed) == 2:  # between a look at the older versions and one at the key
            told.append(await kept._ask("PUT", "/lab/k", b"three", JOE, {}))
        return page

    monkeypatch.setattr(kept.files, "list", late)
    answer = kept.ask("POST", f"/lab/k?uploadId={upload}", whole)
    assert ([each.status for each in told], answer.status) == ([204, 200], 200)
    assert [each for key, each, _ in kept.history() if key == "k"] == [told[1].version, answer.version]


def test_who_may_only_add_and_completes_again_is_told_his_own_version(kept: Door) -> None:
    """He was refused, as the older versions are in a collection that he may not read."""
    bob, target = Dn("/CN=bob"), "/lab/k?uploadId="
    rules: dict[str, str | None] = {EVE: "+addEntry", bob: "+addEntry"}
    asyncio.run(kept.files.apply(Call(dn=JOE), (Set(LogicalName(ROOT, ("lab",)), policy=rules),)))
    target += kept.ask("POST", "/lab/k?uploads", who=EVE).texts("UploadId")[0]
    etag = kept.ask("PUT", f"{target}&partNumber=1", b"part", who=EVE).headers["ETag"]
    whole = f"<Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part>"
    whole = f"<CompleteMultipartUpload>{whole}</CompleteMultipartUpload>"
    version = kept.ask("POST", target, whole, who=EVE).version
    assert version != ""
    for after in (b"", b"newer"):
        if after:
            kept.put("k", after)
        again = kept.ask("POST", target, whole, who=EVE)
        assert (again.status, again.version) == (200, version), after
        assert kept.ask("POST", target, whole, who=bob).texts("Code") == ["NoSuchUpload"]
