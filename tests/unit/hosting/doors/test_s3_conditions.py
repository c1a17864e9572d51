"""The S3 door on a cluster in memory: changes on a condition that cross others, where a bucket keeps or has kept
versions."""

from __future__ import annotations

import asyncio

import pytest

from chelonia.core.caller import Call
from chelonia.core.contents.extents import ByteRange
from chelonia.core.contents.parts import PartPage
from chelonia.core.errors import Kind
from chelonia.core.ids import ROOT
from chelonia.core.names import LogicalName, parse_ln
from chelonia.core.ports.files import (
    Arrived,
    Change,
    Clone,
    Done,
    Failure,
    Inline,
    Listed,
    Listing,
    Looked,
    Move,
    Placing,
    Remove,
    Removing,
    Set,
    Setting,
    Write,
)
from chelonia.hosting.doors.plain.parts import DoorParts, Exchange
from chelonia.hosting.doors.s3 import multipart, objects, versions
from chelonia.hosting.doors.s3.parts import Ask, S3Parts
from tests.unit.hosting.doors.test_s3_races import Meanwhile, meanwhile, parted
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


def test_a_removal_on_a_condition_takes_what_the_key_has_in_its_other_place(door: Door) -> None:
    """The next reader found the directory that had been there before bytes, though the removal was done."""
    for data in (b"", b"bytes"):
        assert door.ask("PUT", "/lab/d/", data).status == 200
    etag = door.ask("HEAD", "/lab/d/").headers["ETag"]
    assert door.ask("DELETE", "/lab/d/", If_Match='"other"').status == 412
    assert door.ask("GET", "/lab/d/").body == b"bytes"
    assert door.ask("DELETE", "/lab/d/", If_Match=etag).status == 204
    assert door.ask("GET", "/lab/d/").status == 404
    assert "/lab/d" not in door.files.names()


def test_a_removal_on_a_condition_takes_nothing_that_came_after_it_to_the_other_place(
    door: Door, meanwhile: Meanwhile
) -> None:
    door.put("k/below", b"x")
    door.put("k", b"apart")
    assert door.ask("DELETE", "/lab/k/below").status == 204
    other = Write(LogicalName(ROOT, ("lab", "k")), inline=Inline(b"by another door", 2))
    asyncio.run(door.files.apply(Call(dn=JOE), (other,)))
    etag = door.ask("HEAD", "/lab/k").headers["ETag"]
    told = meanwhile(Remove, ("PUT", "/lab/k", "new"), after=True)
    assert door.ask("DELETE", "/lab/k", If_Match=etag).status == 204
    assert [each.status for each in told] == [200]
    assert door.ask("GET", "/lab/k").body == b"new"


@pytest.mark.parametrize("before", ["", "version", "marker"])
@pytest.mark.parametrize("conditional", [False, True])
def test_a_null_version_removed_on_a_condition_leaves_one_that_waits_for_the_key(
    kept: Door, meanwhile: Meanwhile, before: str, *, conditional: bool
) -> None:
    """It went with the one that met the condition: a write was lost that was acknowledged."""
    if before:
        kept.put("k", b"before")
    if before == "marker":
        assert kept.ask("DELETE", "/lab/k").status == 204
    assert kept.ask("PUT", "/lab?versioning", OFF).status == 200
    kept.put("k", b"first")
    etag = kept.ask("HEAD", "/lab/k").headers["ETag"]
    told = meanwhile(Move, ("DELETE", "/lab/k?versionId=null"), If_Match=etag)
    fields = {"If_Match": etag} if conditional else {}
    left, refused = (b"before", 412) if before == "version" else (b"", 404)
    assert kept.ask("PUT", "/lab/k", b"new", **fields).status == (refused if conditional else 200)
    assert [each.status for each in told] == [204]
    now = kept.ask("GET", "/lab/k")
    assert (now.body if now.status == 200 else b"") == (left if conditional else b"new")
    assert [version for _, version, _ in kept.history()].count("null") == (not conditional)


def test_a_null_version_with_an_old_time_that_is_removed_on_a_condition_leaves_the_key_to_the_one_before(
    kept: Door,
) -> None:
    kept.put("k", b"before")
    assert kept.ask("PUT", "/lab?versioning", OFF).status == 200
    kept.put("k", b"null")
    touched = Set(LogicalName(ROOT, ("lab", "k")), setting=Setting(modified_ns=1))
    asyncio.run(kept.files.apply(Call(dn=JOE), (touched,)))
    etag = kept.ask("HEAD", "/lab/k").headers["ETag"]
    assert kept.ask("DELETE", "/lab/k?versionId=null", If_Match=etag).status == 204
    assert kept.ask("GET", "/lab/k").body == b"before"


def test_a_null_version_that_goes_behind_a_marker_is_not_removed_without_a_word(
    kept: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It went as an older one than itself; then there was none that met the condition, and the answer was 404."""
    assert kept.ask("PUT", "/lab?versioning", OFF).status == 200
    kept.put("k", b"x")
    assert kept.ask("PUT", "/lab?versioning", ON).status == 200
    etag, listing, told = kept.ask("HEAD", "/lab/k").headers["ETag"], kept.files.list, list[Heard]()

    async def late(call: Call, ask: Listing) -> Listed:
        monkeypatch.setattr(kept.files, "list", listing)
        told.append(await kept._ask("DELETE", "/lab/k", b"", JOE, {}))
        return await listing(call, ask)

    monkeypatch.setattr(kept.files, "list", late)
    assert kept.ask("DELETE", "/lab/k?versionId=null", If_Match=etag).status == 204
    assert [each.status for each in told] == [204]
    assert [mark for _, _, mark in kept.history()] == ["marker*"]


@pytest.mark.parametrize("state", [ON, OFF])
def test_a_write_on_a_condition_whose_version_an_erasure_has_given_the_key_is_done(
    kept: Door, meanwhile: Meanwhile, state: str
) -> None:
    """A null version was not found there. The answer was a conflict, though it had the key."""
    version = kept.put("k", b"before")
    etag = kept.ask("HEAD", "/lab/k").headers["ETag"]
    assert kept.ask("PUT", "/lab?versioning", state).status == 200
    told = meanwhile(Move, ("DELETE", f"/lab/k?versionId={version}"))
    assert kept.ask("PUT", "/lab/k", b"new", If_Match=etag).status == 200
    assert [each.status for each in told] == [204]
    assert kept.ask("GET", "/lab/k").body == b"new"


@pytest.mark.parametrize("key", ["k", "a//k", "d/"])
def test_of_two_that_remove_a_key_on_a_condition_one_is_told_that_it_has(
    door: Door, meanwhile: Meanwhile, key: str
) -> None:
    """Both were: who takes a task or a lock by removing it shared it with another."""
    door.put(key, b"" if key == "d/" else b"x")
    condition = {"If_Match": door.ask("HEAD", f"/lab/{key}").headers["ETag"]}
    told = meanwhile(Remove, ("DELETE", f"/lab/{key}"), **condition)
    late = door.ask("DELETE", f"/lab/{key}", **condition)
    assert [each.status for each in told] == [204]
    assert (late.status, late.texts("Code")) == (404, ["NoSuchKey"])


@pytest.mark.parametrize("is_current", [False, True])
def test_of_two_that_remove_a_version_on_a_condition_one_is_told_that_it_has(
    kept: Door, monkeypatch: pytest.MonkeyPatch, *, is_current: bool
) -> None:
    version, found, told = kept.put("k", b"x"), versions.found, list[Heard]()
    if not is_current:
        kept.put("k", b"newer")
    target = f"/lab/k?versionId={version}"
    etag = kept.ask("HEAD", target).headers["ETag"]

    async def crossed(parts: S3Parts, ask: Ask) -> tuple[Ask, Looked]:
        seen = await found(parts, ask)
        monkeypatch.setattr(versions, "found", found)
        told.append(await kept._ask("DELETE", target, b"", JOE, {"If-Match": etag}))
        return seen

    monkeypatch.setattr(versions, "found", crossed)
    late = kept.ask("DELETE", target, If_Match=etag)
    assert [each.status for each in told] == [204]
    assert (late.status, late.texts("Code")) == (404, ["NoSuchVersion"])


def test_a_version_that_is_removed_on_a_condition_is_not_looked_for_again(
    kept: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others gave the key two versions before another could have it: the answer was that there is no such version."""
    kept.put("k", b"one")
    assert kept.ask("DELETE", "/lab/k").status == 204
    kept.put("k", b"two")
    newest, apply, listing = kept.ask("HEAD", "/lab/k"), kept.files.apply, kept.files.list
    removed, told, due = list[Change](), list[Heard](), [b"three", b"four"]
    (marker,) = [parse_ln(name) for name in kept.files.names() if "※versions/=k" in name and not name.endswith("-")]

    async def noted(call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        answers = await apply(call, changes)
        if isinstance(changes[0], Remove) and not removed:
            removed.extend(changes)
            await apply(Call(dn=JOE), (Remove(marker, Removing.KEY),))  # another removal is about to give the key on
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


@pytest.mark.parametrize("data", [b"small", b"large" * 20_000])
def test_an_upload_from_before_a_bucket_kept_versions_overwrites_none(
    door: Door, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    """One that takes minutes replaced in its place what had been written as a version meanwhile."""
    sent, told = objects.for_write, list[Heard]()

    async def crossed(parts: DoorParts, exchange: Exchange, placing: Placing) -> tuple[Arrived, Inline | None]:
        monkeypatch.setattr(objects, "for_write", sent)
        for target, body in ("/lab?versioning", ON.encode()), ("/lab/k", b"version"):
            told.append(await door._ask("PUT", target, body, JOE, {}))
        return await sent(parts, exchange, placing)

    monkeypatch.setattr(objects, "for_write", crossed)
    late = door.ask("PUT", "/lab/k", data)
    assert (late.status, late.texts("Code")) == (503, ["ServiceUnavailable"])
    assert [each.status for each in told] == [200, 200]
    assert door.ask("GET", f"/lab/k?versionId={told[1].version}").body == b"version"
    assert door.ask("PUT", "/lab/k", data).status == 200
    assert len(door.history()) == 2


def test_a_copy_of_bytes_from_before_a_bucket_kept_versions_overwrites_none(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many files may have the bytes of the source that they are copied, which takes minutes as well."""
    apply, carried, told = door.files.apply, objects.carried, list[Heard]()
    door.put("source", b"copied")

    async def unshared(call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        return (Failure(Kind.TOO_LARGE),) if isinstance(changes[0], Clone) else await apply(call, changes)

    async def crossed(parts: S3Parts, source: Ask, entry: Looked, span: ByteRange, placing: Placing) -> Arrived:
        for target, body in ("/lab?versioning", ON.encode()), ("/lab/k", b"version"):
            told.append(await door._ask("PUT", target, body, JOE, {}))
        return await carried(parts, source, entry, span, placing)

    monkeypatch.setattr(door.files, "apply", unshared)
    monkeypatch.setattr(objects, "carried", crossed)
    late = door.ask("PUT", "/lab/k", x_amz_copy_source="lab/source")
    assert (late.status, late.texts("Code")) == (503, ["ServiceUnavailable"])
    assert [each.status for each in told] == [200, 200]
    assert door.ask("GET", f"/lab/k?versionId={told[1].version}").body == b"version"


def test_a_completion_from_before_a_bucket_kept_versions_overwrites_none(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads up to ten thousand parts before the object is there."""
    (target, whole), all_parts, told = parted(door), multipart._all_parts, list[Heard]()

    async def crossed(parts: S3Parts, ask: Ask) -> PartPage:
        monkeypatch.setattr(multipart, "_all_parts", all_parts)
        for other, body in ("/lab?versioning", ON.encode()), ("/lab/k", b"version"):
            told.append(await door._ask("PUT", other, body, JOE, {}))
        return await all_parts(parts, ask)

    monkeypatch.setattr(multipart, "_all_parts", crossed)
    late = door.ask("POST", target, whole)
    assert (late.status, late.texts("Code")) == (503, ["ServiceUnavailable"])
    assert [each.status for each in told] == [200, 200]
    assert door.ask("GET", f"/lab/k?versionId={told[1].version}").body == b"version"
    assert door.ask("POST", target, whole).status == 200
    assert len(door.history()) == 2
