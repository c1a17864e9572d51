"""The S3 door on a cluster in memory: requests for a bucket that is removed while they are under way."""

from __future__ import annotations

import asyncio

import pytest

from chelonia.core.caller import Call
from chelonia.core.ids import ROOT
from chelonia.core.metadata import TYPE_COLLECTION
from chelonia.core.names import LogicalName
from chelonia.core.ports.files import (
    Change,
    Clone,
    Done,
    Failure,
    Make,
    Open,
    Placed,
    Placing,
    Remove,
    Removing,
    Seal,
    Write,
)
from tests.unit.hosting.doors.test_s3_races import Meanwhile, meanwhile, parted
from tests.unit.hosting.doors.test_s3_versions import EVE, JOE, ON, Door, Heard, door, kept

__all__ = ["door", "kept", "meanwhile"]

LARGE = b"large" * 20_000


@pytest.mark.parametrize("key", ["k", "d/k", "d//k"])
@pytest.mark.parametrize("versioned", [False, True])
@pytest.mark.parametrize(("change", "data"), [(Write, b"small"), (Write, LARGE), (Clone, b"")])
def test_an_object_is_not_stored_in_a_bucket_that_is_removed(
    door: Door, meanwhile: Meanwhile, change: type[Change], data: bytes, key: str, *, versioned: bool
) -> None:
    """It made the bucket anew, as an implied collection of the root's owner."""
    assert not versioned or door.ask("PUT", "/lab?versioning", ON).status == 200
    assert door.ask("PUT", "/other").status == 200
    assert door.ask("PUT", "/other/z", b"source").status == 200
    told = meanwhile(change, ("DELETE", "/lab"))
    fields = {"x_amz_copy_source": "other/z"} if change is Clone else {}
    answer = door.ask("PUT", f"/lab/{key}", data, **fields)
    assert (answer.status, answer.texts("Code"), [each.status for each in told]) == (404, ["NoSuchBucket"], [204])
    assert door.files.names() == ["/other", "/other/z"]


def test_neither_a_directory_nor_a_marker_is_made_in_a_bucket_that_is_removed(kept: Door, meanwhile: Meanwhile) -> None:
    for method, target in ("PUT", "/lab/d/"), ("PUT", "/lab/d/e/"), ("DELETE", "/lab/k"):
        meanwhile(Make, ("DELETE", "/lab"))
        answer = kept.ask(method, target)
        assert (answer.status, answer.texts("Code")) == (404, ["NoSuchBucket"])
        assert kept.files.names() == []
        assert kept.ask("PUT", "/lab").status == 200
        assert kept.ask("PUT", "/lab?versioning", ON).status == 200


def test_each_key_of_a_bulk_deletion_is_told_of_a_bucket_that_is_removed(kept: Door, meanwhile: Meanwhile) -> None:
    """Of the first one the answer was that there is no such key."""
    meanwhile(Make, ("DELETE", "/lab"))
    answer = kept.ask(
        "POST", "/lab?delete", "<Delete><Object><Key>k</Key></Object><Object><Key>l</Key></Object></Delete>"
    )
    assert (answer.status, answer.texts("Code")) == (200, ["NoSuchBucket"] * 2)
    assert kept.files.names() == []


@pytest.mark.parametrize("change", [Open, Seal])
def test_no_upload_is_opened_or_completed_in_a_bucket_that_is_removed(
    door: Door, meanwhile: Meanwhile, change: type[Change]
) -> None:
    target, whole = parted(door, "d/k")
    meanwhile(change, ("DELETE", "/lab"))
    answer = door.ask("POST", "/lab/d/k?uploads") if change is Open else door.ask("POST", target, whole)
    assert (answer.status, answer.texts("Code")) == (404, ["NoSuchBucket"])
    assert door.files.names() == []


def test_bytes_for_a_bucket_that_is_removed_are_refused_by_its_name(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer was that access is denied, to a user who may not make buckets."""
    place = door.files.place

    async def cross(call: Call, asks: tuple[Placing, ...]) -> tuple[Placed | Failure, ...]:
        await door._ask("DELETE", "/lab", b"", JOE, {})
        return await place(call, asks)

    door.files.allow("/lab", **{EVE: "+read +addEntry"})
    monkeypatch.setattr(door.files, "place", cross)
    answer = door.ask("PUT", "/lab/d/k", LARGE, who=EVE)
    assert (answer.status, answer.texts("Code")) == (404, ["NoSuchBucket"])


def test_a_directory_that_is_made_while_its_bucket_is_removed_keeps_that(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collection that a refused write had left was removed with the bucket, though it was a directory by then."""
    place = LogicalName(ROOT, ("lab", "d", "k"))
    left = (Make(place, TYPE_COLLECTION, parents=True), Remove(place, Removing.NAME))
    asyncio.run(door.files.apply(Call(dn=JOE), left))
    apply, told = door.files.apply, list[Heard]()

    async def crossed(call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        if not told and isinstance(changes[0], Remove) and changes[0].place.name == "d":
            told.append(await door._ask("PUT", "/lab/d/", b"", JOE, {}))
        return await apply(call, changes)

    monkeypatch.setattr(door.files, "apply", crossed)
    assert door.ask("DELETE", "/lab").texts("Code") == ["BucketNotEmpty"]
    assert [each.status for each in told] == [200]
    assert door.ask("HEAD", "/lab/d/").status == 200
