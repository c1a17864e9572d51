"""Keys of which one is part of the other, written to the S3 door at the same time, in a bucket that keeps versions."""

from __future__ import annotations

from typing import Any

import pytest

from chelonia.core.caller import Call
from chelonia.core.ports.files import Change, Clone, Done, Failure, Make, Move, Remove, Seal, Write
from tests.unit.hosting.doors.test_s3_races import Meanwhile, meanwhile, write
from tests.unit.hosting.doors.test_s3_versions import JOE, ON, Door, Heard, door, kept

__all__ = ["door", "kept", "meanwhile"]


@pytest.mark.parametrize(("key", "other"), [("k", "k/below"), ("k/below", "k")])
@pytest.mark.parametrize("change", [Write, Clone, Seal])
def test_a_version_takes_no_other_keys_place_away(
    kept: Door, meanwhile: Meanwhile, change: type[Change], key: str, other: str
) -> None:
    """A version of `k` changed names with the collection that `k/below` had just made, which was lost among the
    versions then. One of `k/below` was refused with 400, and stayed as a version that never had its key."""
    kept.put("z", b"new")
    upload = kept.opened(key)
    whole = kept.part(key, upload, b"new")
    told = meanwhile(Move, ("PUT", f"/lab/{other}", "other"))
    write(kept, change, f"/lab/{key}?uploadId={upload}", whole, key)
    assert [each.status for each in told] == [200]
    assert kept.ask("GET", f"/lab/{key}").body == b"new"
    assert kept.ask("GET", f"/lab/{other}").body == b"other"
    assert [(name, mark) for name, _, mark in kept.history()] == [("k", "*"), ("k/below", "*"), ("z", "*")]


@pytest.mark.parametrize("apart_first", [False, True])
def test_of_two_that_find_a_name_taken_and_free_again_neither_hides_the_other(
    kept: Door, monkeypatch: pytest.MonkeyPatch, *, apart_first: bool
) -> None:
    """One version could not be read by its id, and had the key once that was removed."""
    kept.put("k/below", b"x")
    apply, told, stage = kept.files.apply, list[Heard](), ["one"]
    named = list[tuple[Done | Failure, ...]]()

    async def cross(call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        if not isinstance(changes[0], Move) or not stage:
            return await apply(call, changes)
        if stage == ["two"]:  # the second version is about to get the key, in the place of its name
            stage.clear()
            named.extend([await apply(*first)] if apart_first else [])
            return await apply(call, changes)
        stage.clear()  # the first one is, apart
        first[:] = [call, changes]
        told.append(await kept._ask("DELETE", "/lab/k/below", b"", JOE, {}))
        stage.append("two")
        told.append(await kept._ask("PUT", "/lab/k", b"two", JOE, {}))
        return named[0] if named else await apply(call, changes)

    first: list[Any] = []
    monkeypatch.setattr(kept.files, "apply", cross)
    one = kept.put("k", b"one")
    assert [each.status for each in told] == [204, 200]
    for version, data in (one, b"one"), (told[1].version, b"two"):
        assert kept.ask("GET", f"/lab/k?versionId={version}").body == data
    assert kept.ask("DELETE", "/lab/k").status == 204
    assert kept.ask("GET", "/lab/k").status == 404


def test_a_version_that_comes_back_hides_none_in_the_other_place_of_its_key(kept: Door, meanwhile: Meanwhile) -> None:
    """A newer one, which was acknowledged, could be read neither by its key nor by its id."""
    kept.put("d/k", b"one")
    marker = kept.ask("DELETE", "/lab/d/k").version
    told = meanwhile(Move, ("PUT", "/lab/d/k/below", "x"), ("PUT", "/lab/d/k", "two"), ("DELETE", "/lab/d/k/below"))
    assert kept.ask("DELETE", f"/lab/d/k?versionId={marker}").status == 204
    assert [each.status for each in told] == [200, 200, 204]
    assert kept.ask("GET", "/lab/d/k").body == b"two"
    assert kept.ask("GET", f"/lab/d/k?versionId={told[1].version}").body == b"two"
    assert [mark for key, _, mark in kept.history() if key == "d/k"] == ["*", ""]
    assert "/lab/d" not in kept.files.names(), "nothing in it any more"


def test_a_version_comes_back_though_its_name_is_taken_meanwhile(kept: Door, meanwhile: Meanwhile) -> None:
    """The removal of its marker was refused with 400."""
    kept.put("k/below", b"one")
    marker = kept.ask("DELETE", "/lab/k/below").version
    told = meanwhile(Move, ("PUT", "/lab/k", "other"))
    assert kept.ask("DELETE", f"/lab/k/below?versionId={marker}").status == 204
    assert [each.status for each in told] == [200]
    assert kept.ask("GET", "/lab/k/below").body == b"one"
    assert kept.ask("GET", "/lab/k").body == b"other"


@pytest.mark.parametrize("fields", [{}, {"If_None_Match": "*"}])
def test_a_directory_that_meets_a_file_of_its_name_leaves_that_as_it_is(
    kept: Door, meanwhile: Meanwhile, fields: dict[str, str]
) -> None:
    """The file got the metadata of the directory in place of its own, among them its version. The answer was 200, and
    on the condition that there is an object of that key."""
    told = meanwhile(Make, ("PUT", "/lab/k", "file"))
    refused = kept.ask("PUT", "/lab/k/", x_amz_meta_by="me", **fields)
    assert (refused.status, refused.texts("Code")) == (503, ["ServiceUnavailable"])
    found = kept.ask("GET", f"/lab/k?versionId={told[0].version}")
    assert (found.body, found.headers.get("x-amz-meta-by")) == (b"file", None)
    assert kept.ask("PUT", "/lab/k/", x_amz_meta_by="me", **fields).status == 200
    assert [key for key, _, _ in kept.history()] == ["k", "k/"]


@pytest.mark.parametrize(("key", "other"), [("k", "k/below"), ("k/below", "k")])
@pytest.mark.parametrize("change", [Write, Clone, Seal])
@pytest.mark.parametrize("fields", [{}, {"If_None_Match": "*"}])
def test_who_meets_another_key_in_the_way_may_send_again(
    door: Door, meanwhile: Meanwhile, change: type[Change], key: str, other: str, fields: dict[str, str]
) -> None:
    """A completion was refused with 400, so that its client gave the parts up. On the condition the answer was 412,
    though there was no such object."""
    door.put("z", b"new")
    upload, target = door.opened(key), f"/lab/{key}"
    whole = door.part(key, upload, b"new")
    asked: tuple[str, str, str] = ("PUT", target, "new" if change is Write else "")
    asked = ("POST", f"{target}?uploadId={upload}", whole) if change is Seal else asked
    fields = {**fields, "x_amz_copy_source": "lab/z"} if change is Clone else fields
    told = meanwhile(change, ("PUT", f"/lab/{other}", "other"))
    refused = door.ask(*asked, **fields)
    assert [each.status for each in told] == [200]
    assert (refused.status, refused.texts("Code")) == (503, ["ServiceUnavailable"])
    assert door.ask(*asked, **fields).status == 200
    assert door.ask("GET", target).body == b"new"
    assert door.ask("GET", f"/lab/{other}").body == b"other"


def test_a_directory_stays_that_is_made_while_the_last_key_in_it_is_removed(kept: Door, meanwhile: Meanwhile) -> None:
    """It was taken for one that is only part of a key: it went with that, though it was acknowledged."""
    kept.put("d/k", b"x")
    told = meanwhile(Remove, ("PUT", "/lab/d/"))
    assert kept.ask("DELETE", "/lab/d/k").status == 204
    assert [each.status for each in told] == [200]
    assert kept.ask("HEAD", "/lab/d/").status == 200


@pytest.mark.parametrize("versions", [False, True])
@pytest.mark.parametrize("change", [Write, Clone, Seal])
def test_bytes_take_the_place_of_a_directory_on_the_condition_that_it_is_there(
    door: Door, change: type[Change], *, versions: bool
) -> None:
    """The answer was to send them again, for ever; where versions are kept, that there is no such object."""
    assert not versions or door.ask("PUT", "/lab?versioning", ON).status == 200
    assert door.ask("PUT", "/lab/d/").status == 200
    condition = {"If_Match": door.ask("HEAD", "/lab/d/").headers["ETag"]}
    door.put("z", b"new")
    upload = door.opened("d/")
    asked: dict[type[Change], tuple[str, str, str]] = {
        Write: ("PUT", "/lab/d/", "new"),
        Clone: ("PUT", "/lab/d/", ""),
        Seal: ("POST", f"/lab/d/?uploadId={upload}", door.part("d/", upload, b"new")),
    }
    source = {"x_amz_copy_source": "lab/z"} if change is Clone else {}
    assert door.ask(*asked[change], **condition, **source).status == 200
    assert door.ask("GET", "/lab/d/").body == b"new"
    assert door.ask(*asked[Write], **condition).status == 412
