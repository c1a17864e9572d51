"""The S3 door on a cluster in memory, for users who may not read all of a bucket."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ANONYMOUS, ROOT, Dn
from chelonia.core.names import LogicalName
from chelonia.core.ports.files import Change, Done, Failure, Listed, Listing, Set
from chelonia.core.values import replace
from tests.unit.hosting.doors.test_s3_versions import EVE, JOE, OFF, ON, Door, door, kept

__all__ = ["door", "kept"]


def test_who_may_not_read_a_bucket_is_told_no_version_by_what_others_have_asked(kept: Door) -> None:
    version = kept.put("k", b"x")
    asyncio.run(kept.files.apply(Call(dn=JOE), (Set(LogicalName(ROOT, ("lab", "k")), policy={EVE: "+read"}),)))
    assert kept.ask("GET", "/lab/k").version == version
    hers = kept.ask("GET", "/lab/k", who=EVE)
    assert (hers.status, hers.version) == (200, "")
    assert kept.ask("GET", "/lab/k").version == version


def test_a_stranger_learns_not_which_versions_there_are(kept: Door) -> None:
    """One that there is not was answered with success."""
    version = kept.put("k", b"x")
    for each in (version, version[:-1] + ("0" if version[-1] != "0" else "1"), "null"):
        for key in ("k", "none"):
            assert kept.ask("DELETE", f"/lab/{key}?versionId={each}", who=EVE).status == 403, (key, each)
    assert kept.ask("DELETE", "/lab/none?versionId=null").status == 204


def test_a_stranger_learns_not_which_versions_a_directory_has(kept: Door) -> None:
    kept.put("d/k", b"x")
    assert kept.ask("DELETE", "/lab/d/").status == 204
    (marker,) = [version for key, version, _ in kept.history() if key == "d/"]
    for each in (marker, marker[:-1] + ("0" if marker[-1] != "0" else "1"), "null"):
        assert kept.ask("DELETE", f"/lab/d/?versionId={each}", who=EVE).status == 403, each
    assert kept.ask("DELETE", "/lab/d/?versionId=null").status == 204


@pytest.mark.parametrize("versioned", [False, True])
def test_a_stranger_learns_no_etag_by_a_bulk_deletion(door: Door, *, versioned: bool) -> None:
    """A bucket that keeps versions told him whether he had guessed it, and so the bytes."""
    assert not versioned or door.ask("PUT", "/lab?versioning", ON).status == 200
    etag, codes = door.ask("PUT", "/lab/k", b"secret").headers["ETag"], list[str]()
    for guess in (etag, "0" * 32):
        listed = f"<Delete><Object><Key>k</Key><ETag>{guess}</ETag></Object></Delete>"
        codes += door.ask("POST", "/lab?delete", listed, who=EVE).texts("Code")
    assert codes == ["AccessDenied"] * 2
    assert door.ask("GET", "/lab/k").body == b"secret"


def test_what_is_kept_apart_is_listed_to_the_buckets_owner_whoever_wrote_it(door: Door) -> None:
    allowed: dict[str, str | None] = {EVE: "+read +addEntry"}
    asyncio.run(door.files.apply(Call(dn=JOE), (Set(LogicalName(ROOT, ("lab",)), policy=allowed),)))
    assert door.ask("PUT", "/lab/a//b", b"hers", who=EVE).status == 200
    assert door.ask("GET", "/lab?list-type=2").texts("Key") == ["a//b"]
    assert door.ask("PUT", "/lab/a//c", b"his").status == 200


def test_who_may_not_see_what_has_a_key_does_not_hide_it(door: Door) -> None:
    door.put("n/x", b"x")
    door.put("n", b"his, kept apart")
    door.ask("DELETE", "/lab/n/x")
    asyncio.run(door.files.apply(Call(dn=JOE), (Set(LogicalName(ROOT, ("lab",)), policy={EVE: "+addEntry"}),)))
    assert door.ask("PUT", "/lab/n", b"hers", who=EVE).status == 403
    assert door.ask("PUT", "/lab/free", b"hers", who=EVE).status == 200
    assert door.ask("GET", "/lab/n").body == b"his, kept apart"


def test_who_may_not_look_writes_where_what_he_does_not_see_is_not_in_the_way(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    door.put("a", b"his")
    asyncio.run(door.files.apply(Call(dn=JOE), (Set(LogicalName(ROOT, ("lab",)), policy={EVE: "+addEntry"}),)))
    assert door.ask("PUT", "/lab/a/b", b"hers", who=EVE).status == 200
    inner, meanwhile = door.files.apply, list[str]()

    async def apply(call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        if meanwhile:
            await door._ask("PUT", f"/lab/{meanwhile.pop()}", b"x", JOE, {})
        return await inner(call, changes)

    monkeypatch.setattr(door.files, "apply", apply)
    for key, made in ("k", "k/below"), ("l/below", "l"):
        meanwhile.append(made)
        assert door.ask("PUT", f"/lab/{key}", b"hers", who=EVE).status == 503, "it is to be sent again"
        assert door.ask("PUT", f"/lab/{key}", b"hers", who=EVE).status == 200


def test_a_list_may_grant_to_the_buckets_owner(door: Door) -> None:
    asyncio.run(door.files.apply(Call(dn=JOE), (Set(LogicalName(ROOT, ("lab",)), policy={EVE: "+read +addEntry"}),)))
    assert door.ask("PUT", "/lab/k", b"hers", who=EVE, x_amz_acl="bucket-owner-read").status == 200
    assert door.ask("GET", "/lab/k?acl", who=EVE).texts("ID") == [EVE, EVE, JOE]


def form(**fields: str) -> str:
    """The body of a browser's form, of `multipart/form-data; boundary=B`."""
    part = '--B\r\nContent-Disposition: form-data; name="{}"\r\n\r\n{}\r\n'
    return "".join(part.format(*each) for each in (*fields.items(), ("file", "bytes"))) + "--B--"


@pytest.mark.parametrize("versioned", [False, True])
def test_a_strangers_form_gives_the_rights_that_its_bucket_gives(door: Door, *, versioned: bool) -> None:
    """A form with a list was refused."""
    kind = "multipart/form-data; boundary=B"
    assert not versioned or door.ask("PUT", "/lab?versioning", ON).status == 200
    assert door.ask("PUT", "/lab?acl", x_amz_acl="public-read-write").status == 200
    for key, fields, status in (
        ("plain", {"success_action_status": "public-read"}, 204),
        ("d/k", {"acl": "public-read"}, 204),
        ("k", {"acl": "public-read", "success_action_status": "201"}, 201),
        ("own", {"acl": "private"}, 204),
    ):
        assert door.ask("POST", "/lab", form(key=key, **fields), who=ANONYMOUS, content_type=kind).status == status
        assert (door.ask("GET", f"/lab/{key}", who=EVE).status == 200) is (fields.get("acl") == "public-read"), key
    rights = {"x_amz_grant_full_control": f'id="{EVE}"'}
    assert door.ask("PUT", "/lab/hers", b"x", who=ANONYMOUS, **rights).status == 403
    assert door.ask("PUT", "/lab?acl", x_amz_acl="authenticated-read").status == 200
    allowed: dict[str, str | None] = {ANONYMOUS: "+addEntry -read"}
    asyncio.run(door.files.apply(Call(dn=JOE), (Set(LogicalName(ROOT, ("lab",)), policy=allowed),)))
    for acl, status in (("public-read", 403), ("authenticated-read", 204)):
        posted = form(key=acl, acl=acl)
        assert door.ask("POST", "/lab", posted, who=ANONYMOUS, content_type=kind).status == status, acl
        assert (door.ask("GET", f"/lab/{acl}", who=EVE).status == 200) is (status == 204), acl


@pytest.mark.parametrize("versioned", [False, True])
def test_a_list_comes_with_the_bytes(door: Door, monkeypatch: pytest.MonkeyPatch, *, versioned: bool) -> None:
    """It came after them: in between, readers of the former object, or by its bucket's policy, could read the new."""
    assert not versioned or door.ask("PUT", "/lab?versioning", ON).status == 200
    for key in ("z", "k", "copy", "here"):
        assert door.ask("PUT", f"/lab/{key}", b"public", x_amz_acl="public-read").status == 200
        assert door.ask("GET", f"/lab/{key}", who=EVE).status == 200
    inner = door.files.apply

    async def only_bytes(call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        assert not any(isinstance(change, Set) and not change.user for change in changes), "a list of its own"
        return await inner(call, changes)

    monkeypatch.setattr(door.files, "apply", only_bytes)
    assert door.ask("PUT", "/lab/k", b"secret", x_amz_acl="private").status == 200
    assert door.ask("PUT", "/lab/large", b"secret" * 20_000, x_amz_acl="authenticated-read").status == 200
    assert door.ask("PUT", "/lab/copy", x_amz_copy_source="lab/z", x_amz_acl="private").status == 200
    anew = {"x_amz_metadata_directive": "REPLACE", "x_amz_acl": "private"}
    assert door.ask("PUT", "/lab/here", x_amz_copy_source="lab/here", **anew).status == 200
    assert [door.ask("GET", f"/lab/{key}", who=EVE).status for key in ("k", "copy", "here", "large")] == [403] * 3 + [
        200
    ]
    assert door.ask("GET", "/lab/large?acl").texts("Permission") == ["READ", "FULL_CONTROL"]
    assert door.ask("PUT", "/lab/k", b"secret", x_amz_acl="nonsense").status == 400


@pytest.mark.parametrize("versioned", [False, True])
def test_an_object_of_parts_has_the_list_that_its_upload_was_opened_with(door: Door, *, versioned: bool) -> None:
    """The list was ignored: an object requested as private had the rules of the one it replaced, or of its bucket."""
    assert not versioned or door.ask("PUT", "/lab?versioning", ON).status == 200
    assert door.ask("PUT", "/lab/k", b"public", x_amz_acl="public-read").status == 200
    opened = door.ask("POST", "/lab/k?uploads", x_amz_acl="private")
    upload = opened.texts("UploadId")[0]
    whole = door.part("k", upload, b"secret")
    assert door.ask("POST", f"/lab/k?uploadId={upload}", whole).status == 200
    assert [door.ask("GET", "/lab/k", who=who).status for who in (JOE, EVE)] == [200, 403]
    assert door.ask("POST", "/lab/k?uploads", x_amz_acl="nonsense").status == 400


@pytest.mark.parametrize("versioned", [False, True])
def test_header_fields_grant_what_is_written(door: Door, *, versioned: bool) -> None:
    assert not versioned or door.ask("PUT", "/lab?versioning", ON).status == 200
    hers = {"x_amz_grant_read": f'id="{EVE}", id=/CN=ann', "x_amz_grant_full_control": f"id={JOE}"}
    assert door.ask("PUT", "/lab/k", b"for eve", **hers).status == 200
    assert door.ask("PUT", "/lab/copy", x_amz_copy_source="lab/k", **hers).status == 200
    assert door.ask("PUT", "/lab/d/", **hers).status == 200
    (upload,) = door.ask("POST", "/lab/parts?uploads", **hers).texts("UploadId")
    assert door.ask("POST", f"/lab/parts?uploadId={upload}", door.part("parts", upload, b"for eve")).status == 200
    assert door.ask("PUT", "/lab/later", b"for eve").status == 200
    assert door.ask("GET", "/lab/later", who=EVE).status == 403
    assert door.ask("PUT", "/lab/later?acl", **hers).status == 200
    assert door.ask("PUT", "/hers", **hers).status == 200
    assert door.ask("GET", "/hers", who=EVE).status == 200
    for key in ("k", "copy", "parts", "later", "d/"):
        assert door.ask("GET", f"/lab/{key}", who=EVE).status == 200, key
        told = door.ask("GET", f"/lab/{key}?acl")
        assert told.texts("ID") == [JOE, JOE, "/CN=ann", EVE]
        assert told.texts("Permission") == ["FULL_CONTROL", "READ", "READ"]
    nobodys = [door.ask(how, f"/{target}", x_amz_grant_read="id=joe").status
               for how, target in (("POST", "lab/more?uploads"), ("PUT", "other"), ("PUT", "lab/e/"))]  # fmt: skip
    assert nobodys == [400] * 3
    assert [door.ask("GET", target).status for target in ("/other", "/lab/e/")] == [404] * 2
    both = {"x_amz_acl": "private", **hers}
    assert [door.ask("PUT", target, b"", **both).status for target in ("/lab/k", "/lab/k?acl", "/other")] == [400] * 3


@pytest.mark.parametrize("rights", ["+addEntry", "+addEntry +removeEntry"])
@pytest.mark.parametrize("state", [ON, OFF])
def test_who_may_add_to_a_bucket_and_not_read_it_overwrites_nothing(door: Door, rights: str, state: str) -> None:
    assert door.ask("PUT", "/lab?versioning", ON).status == 200
    asyncio.run(door.files.apply(Call(dn=JOE), (Set(LogicalName(ROOT, ("lab",)), policy={EVE: rights}),)))
    first = door.ask("PUT", "/lab/k", b"hers", who=EVE)
    assert (first.status, first.version != "") == (200, True)
    assert door.ask("PUT", "/lab?versioning", state).status == 200
    assert door.ask("GET", "/lab/k", who=EVE).version == "", "who may not read it is told nothing of it"
    second = door.ask("PUT", "/lab/k", b"hers again", who=EVE)
    assert second.status == 200
    asyncio.run(door.files.apply(Call(dn=EVE), (Set(LogicalName(ROOT, ("lab", "k")), policy={JOE: "+read"}),)))
    at = LogicalName(ROOT, ("lab", "※versions", *door.kept_names()))
    asyncio.run(door.files.apply(Call(dn=EVE), (Set(at, policy={JOE: "+read"}),)))
    assert door.ask("GET", f"/lab/k?versionId={first.version}").body == b"hers"
    assert door.history() == [("k", second.version or "null", "*"), ("k", first.version, "")]
    assert door.ask("DELETE", "/lab/k", who=EVE).headers["x-amz-delete-marker"] == "true"
    assert door.ask("GET", f"/lab/k?versionId={first.version}").body == b"hers"


def test_who_may_replace_what_he_may_not_read_overwrites_nothing(kept: Door) -> None:
    first = kept.put("k", b"his")
    for name, rights in (("lab",), "+addEntry"), (("lab", "※versions"), "+addEntry"), (("lab", "k"), "+delete"):
        asyncio.run(kept.files.apply(Call(dn=JOE), (Set(LogicalName(ROOT, name), policy={EVE: rights}),)))
    assert kept.ask("PUT", "/lab/k", b"hers", who=EVE, If_Match='"0"').status == 403
    second = kept.ask("PUT", "/lab/k", b"hers", who=EVE)
    assert (second.status, kept.ask("GET", f"/lab/k?versionId={first}").body) == (200, b"his")
    for query in ("", f"?versionId={second.version}"):
        assert kept.ask("GET", f"/lab/k{query}").status == 403, "what she has written is hers"


def replaced_by_eve(kept: Door, key: str) -> str:
    """Eve replaces joe's object by one that he may not read. Returns: its version."""
    for name, rights in (("lab",), "+addEntry"), (("lab", "※versions"), "+addEntry"), (("lab", key), "+delete"):
        asyncio.run(kept.files.apply(Call(dn=JOE), (Set(LogicalName(ROOT, name), policy={EVE: rights}),)))
    put = kept.ask("PUT", f"/lab/{key}", b"hers", who=EVE)
    assert put.status == 200
    return put.version


def test_a_version_that_the_caller_may_not_see_is_no_less_one(kept: Door) -> None:
    first = kept.put("k", b"his")
    replaced_by_eve(kept, "k")
    assert kept.ask("DELETE", f"/lab/k?versionId={first}").status == 204, "what came after may be another's"
    assert kept.history() == [("k", "null", "*")]
    for method in "PUT", "DELETE":
        newer = kept.ask(method, "/lab/k", b"his" if method == "PUT" else b"").version
        assert kept.ask("DELETE", f"/lab/k?versionId={newer}").status == 204
        assert kept.ask("GET", "/lab/k", who=EVE).body == b"hers"


def test_versions_are_listed_behind_one_of_a_key_that_another_has_now(kept: Door) -> None:
    first, other = kept.put("k", b"his"), kept.put("z", b"his")
    replaced_by_eve(kept, "k")
    assert kept.history(f"key-marker=k&version-id-marker={first}") == [("z", other, "*")]


def test_a_marker_goes_though_another_one_that_the_caller_may_not_see_is_newer(kept: Door) -> None:
    first, marker = kept.put("k", b"his"), kept.ask("DELETE", "/lab/k").version
    for name in ("lab",), ("lab", "※versions"):
        asyncio.run(kept.files.apply(Call(dn=JOE), (Set(LogicalName(ROOT, name), policy={EVE: "+read +addEntry"}),)))
    assert kept.ask("DELETE", "/lab/k", who=EVE).headers["x-amz-delete-marker"] == "true"
    assert kept.ask("DELETE", f"/lab/k?versionId={marker}").status == 204
    assert kept.ask("GET", "/lab/k").status == 404
    assert [version for _, version, _ in kept.history()] == [first]


def test_directories_that_others_change_while_a_bucket_gets_its_list_have_it_too(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    door.put("d/k", b"his")
    apply, refused = door.files.apply, list[Change]()

    async def once(call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        if isinstance(changes[0], Set) and changes[0].place.parts == ("lab", "d") and not refused:
            refused.append(changes[0])
            return (Failure(Kind.CONFLICT, "/lab/d"),)
        return await apply(call, changes)

    monkeypatch.setattr(door.files, "apply", once)
    assert door.ask("PUT", "/lab?acl", x_amz_acl="public-read").status == 200
    assert (len(refused), door.ask("GET", "/lab?list-type=2", who=EVE).texts("Key")) == (1, ["d/k"])


def test_a_bucket_has_no_list_unless_its_directories_have_it(door: Door) -> None:
    door.put("d/k", b"his")
    mine: dict[str, str | None] = {EVE: "+read +modifyPolicy"}
    asyncio.run(door.files.apply(Call(dn=JOE), (Set(LogicalName(ROOT, ("lab",)), policy=mine),)))
    hers = {"x_amz_grant_write_acp": f"id={EVE}", "x_amz_grant_read": f"id={EVE}", "who": EVE}
    refused = door.ask("PUT", "/lab?acl", **hers)
    assert (refused.status, b"/lab/d" in refused.body) == (403, False), "she may not know of it"
    assert door.ask("PUT", "/lab?acl", **{**hers, "who": JOE}).status == 200
    assert door.ask("PUT", "/lab?acl", **{**hers, "x_amz_grant_read_acp": "id=/CN=ann"}).status == 200
    assert door.ask("DELETE", "/lab/d/k").status == 204
    assert door.ask("DELETE", "/lab").status == 204, "it went with its last key, though she may not remove it"


def test_a_bucket_that_is_made_again_keeps_its_rights(door: Door) -> None:
    allowed: dict[str, str | None] = {EVE: "+read"}
    asyncio.run(door.files.apply(Call(dn=JOE), (Set(LogicalName(ROOT, ("lab",)), policy=allowed),)))
    assert door.ask("PUT", "/lab", x_amz_acl="private").status == 200
    assert door.ask("GET", "/lab?list-type=2", who=EVE).status == 200
    taken = door.ask("PUT", "/lab", who=EVE)
    assert (taken.status, taken.texts("Code")) == (409, ["BucketAlreadyExists"]), "who may read it has not made it"
    assert door.ask("PUT", "/new", x_amz_acl="public-read").status == 200
    assert door.ask("GET", "/new?list-type=2", who=EVE).status == 200


LONG = "x" * 100
KEYS = ("d/e/k", "d//k", f"{LONG}//k")
"""Keys of which a part is a collection: by name, kept apart, and kept apart by two names."""


@pytest.mark.parametrize("versioned", [False, True])
def test_who_loses_a_right_on_a_bucket_loses_it_on_what_is_in_its_directories(door: Door, *, versioned: bool) -> None:
    """Anybody went on to write and remove there."""
    assert not versioned or door.ask("PUT", "/lab?versioning", ON).status == 200
    assert door.ask("PUT", "/lab?acl", x_amz_acl="public-read-write").status == 200
    for key in KEYS:
        door.put(key, b"his")
        assert door.ask("PUT", f"/lab/{key}2", b"hers", who=EVE).status == 200
    assert door.ask("PUT", "/lab?acl", x_amz_acl="private").status == 200
    for key in KEYS:
        assert door.ask("PUT", f"/lab/{key}3", b"hers", who=EVE).status == 403, key
        assert door.ask("DELETE", f"/lab/{key}", who=EVE).status == 403, key
        assert door.ask("GET", f"/lab/{key}").body == b"his"
    assert not [key for key in door.ask("GET", "/lab?list-type=2").texts("Key") if key.endswith("/")]


def test_who_gets_a_right_on_a_bucket_gets_it_on_what_is_in_its_directories(door: Door) -> None:
    for key in KEYS:
        door.put(key, b"his")
    assert door.ask("PUT", "/lab/own/").status == 200
    door.put("own/e/k", b"his")
    assert door.ask("PUT", "/lab?acl", x_amz_acl="public-read-write").status == 200
    assert set(KEYS) < set(door.ask("GET", "/lab?list-type=2", who=EVE).texts("Key"))
    for key, status in (*((key, 200) for key in KEYS), ("own/e/k", 403)):
        assert door.ask("PUT", f"/lab/{key}2", b"hers", who=EVE).status == status, key
    for key in (*KEYS, "own/e/k"):
        assert door.ask("DELETE", f"/lab/{key}").status == 204
        assert door.ask("DELETE", f"/lab/{key}2").status == 204
    assert door.ask("GET", "/lab?list-type=2").texts("Key") == ["own/"]
    assert door.ask("DELETE", "/lab/own/").status == 204
    assert door.ask("DELETE", "/lab").status == 204, "its directories went with their last keys"


def test_a_directory_that_is_made_while_a_bucket_gets_its_list_has_it_too(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert door.ask("PUT", "/lab?acl", x_amz_acl="public-read-write").status == 200
    door.put("d/e/k", b"his")
    inner, due = door.files.apply, ["d/a/k", "d/e/a/k"]

    async def apply(call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        if due and isinstance(changes[0], Set) and changes[0].place.parts[1:]:
            assert (await door._ask("PUT", f"/lab/{due.pop(0)}", b"his", JOE, {})).status == 200
        return await inner(call, changes)

    monkeypatch.setattr(door.files, "apply", apply)
    assert door.ask("PUT", "/lab?acl", x_amz_acl="private").status == 200
    assert due == []
    for key in ("d/a/k", "d/e/a/k", "d/e/k"):
        assert door.ask("DELETE", f"/lab/{key}", who=EVE).status == 403, key


def test_a_list_that_broke_off_goes_to_the_directories_when_it_is_sent_again(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert door.ask("PUT", "/lab?acl", x_amz_acl="public-read-write").status == 200
    door.put("d/k", b"his")
    inner = door.files.apply

    async def apply(call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        if changes[0].place.parts[1:]:  # type: ignore[union-attr]
            raise CheloniaError(Kind.UNAVAILABLE)
        return await inner(call, changes)

    with monkeypatch.context() as patch:
        patch.setattr(door.files, "apply", apply)
        assert door.ask("PUT", "/lab?acl", x_amz_acl="private").status == 503
    assert door.ask("PUT", "/lab?acl", x_amz_acl="private").status == 200
    assert door.ask("DELETE", "/lab/d/k", who=EVE).status == 403


@pytest.mark.parametrize("grantee", ["/CN=a\u200bb", "/CN=a\u0085b"])
def test_a_bucket_is_not_made_for_a_list_that_no_policy_can_hold(door: Door, grantee: str) -> None:
    """It was made, and was there without its list when the request came again."""
    to = f"<Grantee><ID>{grantee}</ID></Grantee><Permission>READ</Permission>"
    body = f"<AccessControlPolicy><AccessControlList><Grant>{to}</Grant></AccessControlList></AccessControlPolicy>"
    for method, target in ("PUT", "/new"), ("PUT", "/lab/d/"), ("PUT", "/lab/k"), ("POST", "/lab/k?uploads"):
        assert door.ask(method, target, x_amz_grant_read=f'id="{grantee}"').texts("Code") == ["InvalidArgument"]
    assert door.ask("PUT", "/lab?acl", body).texts("Code") == ["InvalidArgument"]
    assert [door.ask("HEAD", target).status for target in ("/new", "/lab/d/", "/lab/k")] == [404] * 3


def test_a_bucket_is_made_with_its_list_or_made_anew(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request came again, found the caller's own bucket, and was answered as done: the list was never set."""
    inner = door.files.apply

    async def apply(call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        if isinstance(changes[0], Set):
            raise CheloniaError(Kind.UNAVAILABLE)
        return await inner(call, changes)

    with monkeypatch.context() as patch:
        patch.setattr(door.files, "apply", apply)
        assert door.ask("PUT", "/new", x_amz_acl="public-read").status == 503
    assert door.ask("HEAD", "/new").status == 404
    assert door.ask("PUT", "/new", x_amz_acl="public-read").status == 200
    assert door.ask("GET", "/new?list-type=2", who=EVE).status == 200


def test_a_list_of_a_bucket_reads_no_tree_that_has_rights_of_its_own(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("a/k", "own/", *(f"own/{n}/k" for n in range(20)), "own-too/", "own-too/e/k", "ownx/k", "z/k"):
        door.put(key, b"" if key.endswith("/") else b"his")
    inner, pages = door.files.list, list[str]()

    async def short(call: Call, ask: Listing) -> Listed:
        pages.append(ask.after)
        return await inner(call, replace(ask, limit=2))

    with monkeypatch.context() as patch:
        patch.setattr(door.files, "list", short)
        assert door.ask("PUT", "/lab?acl", x_amz_acl="public-read-write").status == 200
    assert len(pages) < 20
    allowed = {key: door.ask("PUT", f"/lab/{key}/hers", b"x", who=EVE).status for key in ("a", "own/3", "own-too/e",
                                                                                       "ownx", "z")}  # fmt: skip
    assert allowed == {"a": 200, "own/3": 403, "own-too/e": 403, "ownx": 200, "z": 200}


@pytest.mark.parametrize("target", ["/lab?acl", "/lab/k?acl"])
def test_of_lists_that_cross_the_last_one_holds(door: Door, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    """Both held together, whom neither of their senders allowed alone."""
    door.put("k", b"his")
    inner, due = door.files.apply, [{"x_amz_grant_read": f"id={EVE}"}]

    async def apply(call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        if due and isinstance(changes[0], Set):
            assert (await door._ask("PUT", target, b"", JOE, due.pop())).status == 200
        return await inner(call, changes)

    monkeypatch.setattr(door.files, "apply", apply)
    assert door.ask("PUT", target, x_amz_grant_read="id=/CN=ann").status == 200
    assert door.ask("GET", target).texts("ID") == [JOE, JOE, "/CN=ann"]


def test_equal_lists_at_once_are_one_change_and_who_always_loses_may_send_again(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of 50 equal lists was a change, and most met 412 in the end: a condition that they had not set."""
    assert door.ask("PUT", "/lab?acl", x_amz_acl="public-read").status == 200

    async def apply(call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        return (Failure(Kind.PRECONDITION, cause="its version is another"),) * len(changes)

    monkeypatch.setattr(door.files, "apply", apply)
    assert door.ask("PUT", "/lab?acl", x_amz_acl="public-read").status == 200
    assert door.ask("PUT", "/lab?acl", x_amz_acl="private").status == 503


def by_default(door: Door, name: str, **rules: str) -> None:
    """Give a collection this default policy, as `chelonia modify` does."""
    stage, gone = door.files.stage, {"ALL", JOE, EVE} - rules.keys()
    for identity in sorted(gone):
        door.files.run(stage.modify(name, "unset", "defaultPolicy", identity, "", Call(dn=JOE)))
    for identity, actions in rules.items():
        assert door.files.run(stage.modify(name, "set", "defaultPolicy", identity, actions, Call(dn=JOE))) == "set"


def stored(door: Door, how: str, key: str) -> None:
    """Make an object: by a request, in parts, or as a copy of `z`."""
    if how == "put":
        assert door.ask("PUT", f"/lab/{key}", b"data").status == 200
    elif how == "copy":
        assert door.ask("PUT", f"/lab/{key}", x_amz_copy_source="lab/z").status == 200
    else:
        upload = door.opened(key)
        assert door.ask("POST", f"/lab/{key}?uploadId={upload}", door.part(key, upload, b"data")).status == 200


@pytest.mark.parametrize("how", ["put", "parts", "copy"])
@pytest.mark.parametrize("versioned", [False, True])
def test_a_new_object_has_the_default_policy_of_its_collection_at_that_time(
    door: Door, how: str, *, versioned: bool
) -> None:
    """It had the one that the collection of versions, of keys kept apart, or of a longer key had been made with."""
    assert not versioned or door.ask("PUT", "/lab?versioning", ON).status == 200
    by_default(door, "/lab", ALL="+read")
    for key in ("z", "p/first", "first//apart"):
        assert door.ask("PUT", f"/lab/{key}", b"data").status == 200
    assert door.ask("PUT", "/lab/d/").status == 200
    keys = ("k", "p/k", "p/q/k", "a//k", "z/below", "d/k", "d/a//k")
    for rules, inner, told in (
        ({}, {"ALL": "+read"}, [403] * 5 + [200] * 2),
        ({"ALL": "+read"}, {}, [200] * 5 + [403] * 2),
    ):
        by_default(door, "/lab", **rules)
        by_default(door, "/lab/d", **inner)
        for key in keys:
            assert door.ask("DELETE", f"/lab/{key}").status == 204
            stored(door, how, key)
        assert [door.ask("GET", f"/lab/{key}", who=EVE).status for key in keys] == told
        assert [door.ask("GET", f"/lab/{key}").status for key in keys] == [200] * len(keys)


def test_a_delete_marker_has_the_default_policy_of_its_key(kept: Door) -> None:
    asyncio.run(kept.files.apply(Call(dn=JOE), (Set(LogicalName(ROOT, ("lab",)), policy={EVE: "+read"}),)))
    by_default(kept, "/lab", ALL="+read")
    assert kept.ask("PUT", "/lab/d/").status == 200
    for key in ("d/k", "k"):
        kept.put(key, b"data")
    by_default(kept, "/lab", ALL="+read")
    by_default(kept, "/lab/d")
    for key in ("d/k", "k"):
        kept.ask("DELETE", f"/lab/{key}")
    told = kept.ask("GET", "/lab?versions", who=EVE).body.decode()
    assert told.count("<DeleteMarker>") == 1


def test_what_a_front_end_does_in_its_own_name_waits_for_its_callers_turn(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that it did so for anybody had one turn: one user's lists kept the versions of all others waiting."""
    waited, own = set[str](), list[str]()
    for name in ("look", "list", "apply"):
        inner = getattr(door.files, name)

        async def counted(call: Call, asked: object, inner: Any = inner) -> object:
            waited.add(call.waits_as)
            own.extend([call.dn] if call.dn == door.plain.dn else [])
            return await inner(call, asked)

        monkeypatch.setattr(door.files, name, counted)
    assert door.ask("PUT", "/lab?versioning", ON).status == 200
    door.put("d/k", b"1")
    door.put("d/k", b"2")
    assert door.ask("PUT", "/lab?acl", x_amz_acl="public-read").status == 200
    assert (waited, len(own) > 2) == ({JOE}, True)
    waited.clear()
    assert door.ask("OPTIONS", "/lab/k", Origin="https://e.org", Access_Control_Request_Method="GET").status == 403
    assert waited == {"127.0.0.1"}, "a stranger waits as his address"


def test_strangers_add_to_a_bucket_that_keeps_versions_and_remove_nothing(kept: Door) -> None:
    """A caller without a certificate owns nothing: an upload was refused with 403, and stayed as a version that never
    had its key. A refused removal left its marker, and removing the newest version left no object then."""
    rules: dict[str, str | None] = {ANONYMOUS: "+addEntry"}
    asyncio.run(kept.files.apply(Call(dn=JOE), (Set(LogicalName(ROOT, ("lab",)), policy=rules),)))
    kept.put("k", b"one")
    newest = kept.put("k", b"two")
    assert kept.ask("PUT", "/lab/new", b"x", who=ANONYMOUS).status == 200
    for method, target in ("PUT", "/lab/new"), ("PUT", "/lab/k"), ("DELETE", "/lab/k"), ("DELETE", "/lab/new"):
        assert kept.ask(method, target, b"y", who=ANONYMOUS).status == 403
    assert [(key, mark) for key, _, mark in kept.history()] == [("k", "*"), ("k", ""), ("new", "*")]
    assert kept.ask("DELETE", f"/lab/k?versionId={newest}").status == 204
    assert kept.ask("GET", "/lab/k").body == b"one"


@pytest.mark.parametrize("who", [EVE, ANONYMOUS])
def test_who_may_not_read_a_bucket_leaves_no_directory_behind(kept: Door, who: Dn) -> None:
    """The last key in one took it along only for a caller who may read it."""
    rules: dict[str, str | None] = {who: "+addEntry +removeEntry"}
    asyncio.run(kept.files.apply(Call(dn=JOE), (Set(LogicalName(ROOT, ("lab",)), policy=rules),)))
    assert kept.ask("PUT", "/lab/d/k", b"x", who=who).status == 200
    assert "/lab/d" in kept.files.names()
    assert kept.ask("DELETE", "/lab/d/k", who=who).status == 204
    assert "/lab/d" not in kept.files.names()
