"""The S3 door on a cluster in memory: requests about one key that cross. `tests/sim` found most of them."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Callable
from hashlib import sha256

import pytest
from multidict import CIMultiDict

from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import RequestKey
from chelonia.core.ports.files import (
    Change,
    Clone,
    Done,
    Failure,
    Listed,
    Listing,
    Look,
    Looked,
    Make,
    Move,
    Over,
    Part,
    Remove,
    Seal,
    Set,
    Write,
)
from chelonia.core.rights.scopes import CHANGING, READING, Scope
from chelonia.core.values import replace
from chelonia.hosting.doors.s3 import door as s3_door
from chelonia.hosting.doors.s3 import multipart, versions
from chelonia.hosting.doors.s3.parts import S3Parts
from chelonia.hosting.doors.s3.signing import Verified, verified
from chelonia.hosting.net.http_messages import HttpRequest
from chelonia.wire.s3.sigv4 import Signable
from tests.unit.hosting.doors.test_s3_versions import JOE, OFF, ON, Door, Heard, door, kept, lost

__all__ = ["door", "kept"]

Meanwhile = Callable[..., list[Heard]]


@pytest.fixture
def suspended(kept: Door) -> Door:
    """A bucket that has kept versions: of `k` one, below the null version."""
    kept.put("k", b"kept")
    assert kept.ask("PUT", "/lab?versioning", OFF).status == 200
    assert kept.put("k", b"null") == ""
    return kept


@pytest.fixture
def meanwhile(door: Door, monkeypatch: pytest.MonkeyPatch) -> Meanwhile:
    """Have requests answered before, or (`after`) when, the first change of a kind is applied. Returns: the answers.
    `over`: of moves, their handling of an existing target."""

    def crossing(
        kind: type, *requests: tuple[str, ...], after: bool = False, over: Over | None = None, **fields: str
    ) -> list[Heard]:
        apply, told, due = door.files.apply, list[Heard](), list(requests)
        headers = {name.replace("_", "-"): value for name, value in fields.items()}

        async def cross(call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
            fits = isinstance(changes[0], kind) and over in (None, getattr(changes[0], "over", None))
            now = [due.pop(0) for _ in requests if due and fits]
            answers = await apply(call, changes) if after else ()
            for method, target, *body in now:
                told.append(await door._ask(method, target, "".join(body).encode(), JOE, headers))
            return answers or await apply(call, changes)

        monkeypatch.setattr(door.files, "apply", cross)
        return told

    return crossing


def parted(door: Door, key: str = "k", data: bytes = b"part") -> tuple[str, str]:
    """An upload in parts: the target and the body of its completion."""
    upload = door.opened(key)
    return f"/lab/{key}?uploadId={upload}", door.part(key, upload, data)


def write(door: Door, change: type[Change], target: str, whole: str, key: str = "k") -> None:
    """Have a key written by a change of that kind: a copy is of `z`, an upload in parts is completed."""
    if change is Write:
        door.put(key, b"new")
    elif change is Clone:
        assert door.ask("PUT", f"/lab/{key}", x_amz_copy_source="lab/z").status == 200
    else:
        assert door.ask("POST", target, whole).status == 200


def conflicting(door: Door, monkeypatch: pytest.MonkeyPatch, change: type[Change]) -> list[tuple[RequestKey, bool]]:
    """Have the first change of a kind conflict. Returns: of each try its request key, and whether it was the first."""
    apply, tried = door.files.apply, list[tuple[RequestKey, bool]]()

    async def refused(call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        if isinstance(changes[0], change):
            tried.append((call.request_key, call.is_first))
        return (Failure(Kind.CONFLICT, "/lab/k"),) if len(tried) == 1 else await apply(call, changes)

    monkeypatch.setattr(door.files, "apply", refused)
    return tried


@pytest.mark.parametrize("change", [Write, Seal])
def test_what_overwrites_something_that_is_removed_meanwhile_is_done(
    door: Door, monkeypatch: pytest.MonkeyPatch, change: type[Change]
) -> None:
    """The answer was that there is no such key, or no such upload."""
    target, whole = parted(door)
    apply, refused = door.files.apply, list[Change]()

    async def once(call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        if isinstance(changes[0], change) and not refused:
            refused.append(changes[0])
            return (Failure(Kind.NOT_FOUND, "/lab/k", "the file to write is not there any more"),)
        return await apply(call, changes)

    monkeypatch.setattr(door.files, "apply", once)
    answer = door.ask("PUT", "/lab/k", b"part") if change is Write else door.ask("POST", target, whole)
    assert (answer.status, door.ask("GET", "/lab/k").body) == (200, b"part")


def test_a_part_is_called_as_it_is_stored(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Librarian of before `Part.etag` names it by its SHA-256, and completes with nothing else."""
    apply = door.files.apply

    async def older(call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        return await apply(call, tuple(replace(each, etag="") if isinstance(each, Part) else each for each in changes))

    monkeypatch.setattr(door.files, "apply", older)
    target, whole = parted(door)
    assert (door.ask("POST", target, whole).status, door.ask("GET", "/lab/k").body) == (200, b"part")


def test_a_list_is_of_the_version_that_it_came_with(kept: Door, meanwhile: Meanwhile) -> None:
    """It went to the version that had the key by then, and published a file that nobody had made public."""
    told = meanwhile(Write, ("PUT", "/lab/k", "private"))
    public = kept.ask("PUT", "/lab/k", b"public", x_amz_acl="public-read")
    assert kept.ask("GET", f"/lab/k?versionId={told[0].version}").body == b"private"
    assert kept.ask("GET", f"/lab/k?acl&versionId={told[0].version}").texts("Permission") == ["FULL_CONTROL"]
    assert kept.ask("GET", f"/lab/k?acl&versionId={public.version}").texts("Permission") == ["READ", "FULL_CONTROL"]


TAGS = "<Tagging><TagSet><Tag><Key>a</Key><Value>1</Value></Tag></TagSet></Tagging>"


def test_tags_do_not_make_one_version_another(kept: Door, meanwhile: Meanwhile) -> None:
    """A newer version with an equal number of changes got the id of the one seen: two versions had it."""
    for _ in range(2):
        before = kept.put("k", b"before")
    told = meanwhile(Set, ("PUT", "/lab/k", "new"))
    tagged = kept.ask("PUT", "/lab/k?tagging", TAGS)
    assert kept.ask("GET", "/lab/k").version == told[0].version
    assert kept.ask("GET", f"/lab/k?versionId={before}").body == b"before"
    assert kept.ask("GET", f"/lab/k?tagging&versionId={tagged.version}").texts("Value") == ["1"]


def test_facts_that_are_written_anew_are_of_the_bytes_that_were_seen(door: Door, meanwhile: Meanwhile) -> None:
    door.put("k", b"first")
    meanwhile(Set, ("PUT", "/lab/k", "second"))
    anew = {"x_amz_metadata_directive": "REPLACE", "x_amz_meta_a": "1"}
    copied = door.ask("PUT", "/lab/k", x_amz_copy_source="lab/k", **anew)
    assert door.ask("GET", "/lab/k").headers["ETag"].strip('"') in copied.texts("ETag")[0]


def test_versions_of_puts_that_cross_stand_in_the_order_in_which_they_had_the_key(
    kept: Door, meanwhile: Meanwhile
) -> None:
    """The version from before both stood above the one overwritten first, and came back before it."""
    before = kept.put("k", b"before")
    told = meanwhile(Move, ("PUT", "/lab/k", "first"))
    last = kept.put("k", b"last")
    assert [version for _, version, _ in kept.history()] == [last, told[0].version, before]
    assert kept.ask("GET", f"/lab/k?versionId={last}").body == b"last"
    kept.ask("DELETE", f"/lab/k?versionId={last}")
    assert kept.ask("GET", "/lab/k").body == b"first"


def test_what_a_listing_tells_while_puts_cross_stays_and_pages_end_behind_it(kept: Door, meanwhile: Meanwhile) -> None:
    """A version waiting for its key got a newer order, and with it another id than in listings. It is older than that
    of the key's version before it."""
    before = kept.put("k", b"before")
    told = meanwhile(Move, ("GET", "/lab?versions"), ("PUT", "/lab/k", "first"))
    last = kept.put("k", b"last")
    assert last in told[0].texts("VersionId")
    assert last > told[1].version
    newest_first, paged, marks = [last, told[1].version, before], list[str](), ""
    while len(paged) < 4:
        page = kept.ask("GET", f"/lab?versions&max-keys=1{marks}")
        paged += page.texts("VersionId")
        if page.texts("IsTruncated") == ["false"]:
            break
        marks = f"&key-marker=k&version-id-marker={paged[-1]}"
    assert paged == newest_first
    kept.ask("DELETE", "/lab/k")
    assert [version for _, version, _ in kept.history()][1:] == newest_first


def test_a_marker_that_was_taken_back_and_made_anew_keeps_its_id(kept: Door, meanwhile: Meanwhile) -> None:
    kept.put("k", b"one")
    told = meanwhile(Move, ("GET", "/lab?versions"), ("PUT", "/lab/k", "two"))
    marker = kept.ask("DELETE", "/lab/k").version
    assert marker in told[0].texts("VersionId")
    assert [version for _, version, _ in kept.history()][:2] == [marker, told[1].version]


def test_a_marker_that_is_taken_back_leaves_the_key_to_the_version_before(kept: Door, meanwhile: Meanwhile) -> None:
    """The removal of the newest version saw the marker, and gave the key to none: the object was gone for readers."""
    kept.put("k", b"one")
    kept.put("k", b"two")
    newest = kept.ask("HEAD", "/lab/k")
    told = meanwhile(Move, ("DELETE", f"/lab/k?versionId={newest.version}"))
    assert kept.ask("DELETE", "/lab/k", If_Match=newest.headers["ETag"]).status == 412
    assert [each.status for each in told] == [204]
    assert kept.ask("GET", "/lab/k").body == b"one"


def test_a_message_that_is_late_gives_no_other_version_the_key(kept: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its version had swapped places with the key's, which came back instead."""
    kept.put("k", b"one")
    kept.ask("DELETE", "/lab/k")
    apply, late = kept.files.apply, list[tuple[Call, tuple[Change, ...]]]()

    async def crossed(call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        if isinstance(changes[0], Move) and not late:
            late.append((call.keyed(RequestKey("late")), changes))
            await kept._ask("PUT", "/lab/k", b"two", JOE, {})
        return await apply(call, changes)

    monkeypatch.setattr(kept.files, "apply", crossed)
    assert kept.ask("PUT", "/lab/k", b"three").status == 200
    kept.ask("DELETE", "/lab/k")
    before = kept.history()
    (answer,) = asyncio.run(apply(*late[0]))
    assert isinstance(answer, Failure)
    assert kept.history() == before


@pytest.mark.parametrize("change", [Write, Clone, Seal])
def test_a_try_that_is_refused_and_comes_late_is_the_one_that_was_done(
    door: Door, monkeypatch: pytest.MonkeyPatch, change: type[Change]
) -> None:
    """The next try had a request key of its own, so the first could apply after it, over newer data."""
    target, whole = parted(door)
    door.put("z", b"part")
    tried = conflicting(door, monkeypatch, change)
    write(door, change, target, whole)
    key = tried[0][0]
    assert tried == [(key, True), (key, False)]
    assert key != ""


@pytest.mark.parametrize("change", [Make, Set])
def test_a_directory_that_several_make_at_once_is_there_for_all(
    door: Door, monkeypatch: pytest.MonkeyPatch, change: type[Change]
) -> None:
    """Arrow makes those above each of its files, several at a time: it got a conflict, and hung for good."""
    if change is Set:
        assert door.ask("PUT", "/lab/d/", x_amz_meta_by="another").status == 200
    tried = conflicting(door, monkeypatch, change)
    assert door.ask("PUT", "/lab/d/", x_amz_meta_by="me").status == 200
    assert door.ask("HEAD", "/lab/d/").headers["x-amz-meta-by"] == "me"
    assert tried == [(tried[0][0], True), (tried[0][0], False)]


def test_a_directory_that_is_removed_while_it_is_made_again_is_made(door: Door, meanwhile: Meanwhile) -> None:
    """The answer was that there is no such key."""
    door.ask("PUT", "/lab/d/")
    meanwhile(Set, ("DELETE", "/lab/d/"))
    assert door.ask("PUT", "/lab/d/", x_amz_meta_by="me").status == 200
    assert door.ask("HEAD", "/lab/d/").headers["x-amz-meta-by"] == "me"


def test_a_directory_is_made_where_there_are_only_keys_below_it(door: Door, meanwhile: Meanwhile) -> None:
    """With `If-None-Match: *` it was refused, though nobody could get such an object."""
    for name in ("d", "e"):
        door.put(f"{name}/k", b"x")
    assert door.ask("GET", "/lab/d/").status == 404
    only = {"If_None_Match": "*", "x_amz_meta_by": "me"}
    assert door.ask("PUT", "/lab/d/", **only).status == 200
    assert door.ask("HEAD", "/lab/d/").headers["x-amz-meta-by"] == "me"
    assert door.ask("PUT", "/lab/d/", **only).status == 412
    meanwhile(Set, ("PUT", "/lab/e/"), x_amz_meta_by="another")
    assert door.ask("PUT", "/lab/e/", **only).status == 412
    assert door.ask("HEAD", "/lab/e/").headers["x-amz-meta-by"] == "another"


def test_what_is_copied_while_its_key_is_overwritten_is_copied_once(
    kept: Door, meanwhile: Meanwhile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy did not find its source under the key, and copied it from its new place, to another place. A late part
    of the first try then made a second version, once the key had the same bytes again. Found by `versions` seed
    9730242."""
    version, apply, late = kept.put("k", b"one"), kept.files.apply, list[tuple[Call, tuple[Change, ...]]]()
    meanwhile(Clone, ("PUT", "/lab/k", "two"))
    cross = kept.files.apply

    async def copied(call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        if isinstance(changes[0], Clone):
            late.append((call, changes))
        return await cross(call, changes)

    monkeypatch.setattr(kept.files, "apply", copied)
    source = {"x_amz_copy_source": f"/lab/k?versionId={version}", "x_amz_metadata_directive": "REPLACE"}
    assert kept.ask("PUT", "/lab/k", **source).status == 200
    before = kept.history()
    assert (len(late), len(before)) == (1, 3)
    asyncio.run(apply(*late[0]))
    assert kept.history() == before


@pytest.mark.parametrize("change", [Write, Clone])
def test_what_is_late_overwrites_no_version_that_has_its_place(
    kept: Door, monkeypatch: pytest.MonkeyPatch, change: type[Change]
) -> None:
    """The former version of the key is kept where a version waits."""
    older = kept.put("k", b"older")
    kept.put("z", b"newer")
    apply, late = kept.files.apply, list[tuple[Call, tuple[Change, ...]]]()

    async def heard(call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        late.extend([(call, changes)] if isinstance(changes[0], change) else [])
        return await apply(call, changes)

    monkeypatch.setattr(kept.files, "apply", heard)
    copied = {"x_amz_copy_source": "/lab/z"} if change is Clone else {}
    assert kept.ask("PUT", "/lab/k", b"" if copied else b"newer", **copied).status == 200
    (answer,) = asyncio.run(apply(*late[0]))
    assert isinstance(answer, Failure)
    assert kept.ask("GET", f"/lab/k?versionId={older}").body == b"older"


def test_a_put_whose_version_an_erasure_has_given_the_key_is_done(kept: Door, meanwhile: Meanwhile) -> None:
    """The answer was that there is no such key, though the put's version had it."""
    first = kept.put("k", b"one")
    meanwhile(Move, ("DELETE", f"/lab/k?versionId={first}"))
    second = kept.ask("PUT", "/lab/k", b"two")
    assert (second.status, kept.ask("GET", "/lab/k").body) == (200, b"two")
    assert kept.history() == [("k", second.version, "*")]


def test_markers_that_go_at_the_same_time_leave_the_key_to_the_newest_version(kept: Door, meanwhile: Meanwhile) -> None:
    """Neither gave it on: the newer because the older was still there, the older because it had not been first."""
    version = kept.put("k", b"one")
    older, newer = (kept.ask("DELETE", "/lab/k").version for _ in range(2))
    meanwhile(Remove, ("DELETE", f"/lab/k?versionId={newer}"))
    assert kept.ask("DELETE", f"/lab/k?versionId={older}").status == 204
    assert kept.history() == [("k", version, "*")]
    assert kept.ask("GET", "/lab/k").body == b"one"


def test_who_erases_what_never_had_its_key_leaves_that_to_the_next(kept: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(versions, "_named", lost)
        assert [kept.ask("PUT", "/lab/k", data).status for data in (b"one", b"two")] == [503, 503]
    assert kept.ask("GET", "/lab/k").status == 404
    (_, newest, _), (_, older, _) = kept.history()
    kept.ask("DELETE", f"/lab/k?versionId={newest}")
    assert kept.ask("GET", "/lab/k").body == b"one"
    assert kept.history() == [("k", older, "*")]


@pytest.mark.parametrize("change", [Write, Clone, Seal])
def test_what_becomes_the_null_version_overwrites_no_other(
    suspended: Door, meanwhile: Meanwhile, change: type[Change]
) -> None:
    """An erasure of the null version brings the one before back: that was overwritten in its place."""
    [_, (_, before, _)] = suspended.history()
    target, whole = parted(suspended)
    suspended.put("z", b"copied")
    meanwhile(change, ("DELETE", "/lab/k?versionId=null"))
    write(suspended, change, target, whole)
    assert suspended.history()[:2] == [("k", "null", "*"), ("k", before, "")]
    assert suspended.ask("GET", f"/lab/k?versionId={before}").body == b"kept"


@pytest.mark.parametrize("conditional", [False, True])
def test_of_two_null_versions_at_once_one_is_there_and_neither_is_told_that_there_is_no_key(
    suspended: Door, meanwhile: Meanwhile, *, conditional: bool
) -> None:
    fields = {"If_Match": suspended.ask("GET", "/lab/k").headers["ETag"]} if conditional else {}
    told = meanwhile(Move, ("PUT", "/lab/k", "other"))
    answer = suspended.ask("PUT", "/lab/k", b"new", **fields)
    assert (told[0].status, answer.status) == (200, 409 if conditional else 200)
    assert [version for _, version, _ in suspended.history()].count("null") == 1
    assert suspended.ask("GET", "/lab/k").body == b"other"


def test_who_waits_for_the_key_while_his_null_version_goes_is_told_of_the_conflict(
    suspended: Door, meanwhile: Meanwhile
) -> None:
    etag = suspended.ask("GET", "/lab/k").headers["ETag"]
    for fields, status in ({}, 200), ({"If_Match": etag}, 409):
        meanwhile(Move, ("DELETE", "/lab/k?versionId=null"), ("DELETE", "/lab/k?versionId=null"))
        assert suspended.ask("PUT", "/lab/k", b"new", **fields).status == status
        suspended.ask("DELETE", "/lab/k?versionId=null")
        suspended.put("k", b"null")


def test_what_went_behind_a_null_marker_that_is_erased_meanwhile_has_its_key_again(
    kept: Door, meanwhile: Meanwhile
) -> None:
    version = kept.put("k", b"kept")
    assert kept.ask("PUT", "/lab?versioning", OFF).status == 200
    meanwhile(Make, ("DELETE", "/lab/k?versionId=null"), after=True)
    assert kept.ask("DELETE", "/lab/k").status == 204
    assert kept.history() == [("k", version, "*")]
    assert kept.ask("GET", "/lab/k").body == b"kept"


def test_null_versions_that_broke_off_go_with_the_newest(suspended: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """The older one came back."""
    assert suspended.ask("PUT", "/lab?versioning", ON).status == 200
    newest = suspended.put("k", b"newest")
    assert suspended.ask("PUT", "/lab?versioning", OFF).status == 200
    apply = suspended.files.apply

    async def broken(call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        if isinstance(changes[0], Move) and changes[0].over is Over.EXCHANGE:
            raise CheloniaError(Kind.UNAVAILABLE)
        return await apply(call, changes)

    with monkeypatch.context() as breaking:
        breaking.setattr(suspended.files, "apply", broken)
        assert suspended.ask("PUT", "/lab/k", b"waits for ever").status == 503
    shown = [(version, what) for _, version, what in suspended.history()]
    assert [version for version, _ in shown].count("null") == 1
    assert suspended.ask("DELETE", "/lab/k?versionId=null").status == 204
    assert suspended.ask("GET", "/lab/k?versionId=null").status == 404
    assert suspended.history()[0] == ("k", newest, "*")
    assert len(suspended.history()) == 2


def test_a_null_version_is_copied_while_it_is_overwritten(suspended: Door, meanwhile: Meanwhile) -> None:
    """The answer was that its condition does not hold, though it had none."""
    assert suspended.ask("PUT", "/lab?versioning", ON).status == 200
    told = meanwhile(Clone, ("PUT", "/lab/k", "new"))
    assert suspended.ask("PUT", "/lab/to", x_amz_copy_source="lab/k?versionId=null").status == 200
    assert told[0].status == 200
    assert suspended.ask("GET", "/lab/to").body == b"null"


@pytest.mark.parametrize("listed", [False, True])
def test_what_comes_back_to_a_key_that_was_removed_anew_and_is_overwritten_stands_where_it_stood(
    kept: Door, monkeypatch: pytest.MonkeyPatch, listed: bool
) -> None:
    """It stood above versions that had come and gone since. `listed`: it is overwritten after a look at newer ones."""
    one, marker = kept.put("k", b"one"), kept.ask("DELETE", "/lab/k").version
    apply, told = kept.files.apply, list[Heard]()

    async def cross(call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        change = changes[0]
        back = isinstance(change, Move) and change.source.parts[1] == "k"
        if not isinstance(change, Move) or (len(told) != 0 and not (back and listed and len(told) == 2)):
            return await apply(call, changes)
        monkeypatch.setattr(kept.files, "apply", apply)
        if back:
            told.append(await kept._ask("PUT", "/lab/k", b"three", JOE, {}))
        for method in () if back else ("PUT", "DELETE"):
            told.append(await kept._ask(method, "/lab/k", b"two" if method == "PUT" else b"", JOE, {}))
        answers = await apply(call, changes)
        if not listed:
            told.append(await kept._ask("PUT", "/lab/k", b"three", JOE, {}))
        monkeypatch.setattr(kept.files, "apply", cross)
        return answers

    monkeypatch.setattr(kept.files, "apply", cross)
    assert kept.ask("DELETE", f"/lab/k?versionId={marker}").status == 204
    two, anew, three = (each.version for each in told)
    assert [version for _, version, _ in kept.history()] == [three, anew, two, one]


def test_of_two_that_complete_an_upload_to_the_null_version_both_are_told_that_it_is_done(
    suspended: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second looked before the version it should find had come, and the key had a null version before and after."""
    target, whole = parted(suspended)
    look, looks = suspended.files.look, list[Heard]()

    async def crossing(call: Call, asks: tuple[Look, ...]) -> tuple[Looked | Failure, ...]:
        answers = await look(call, asks)
        if sealing and asks[0].place.parts == ("lab", "k") and not looks:
            looks.append(Heard(0, CIMultiDict(), b""))
            looks[0] = await suspended._ask("POST", target, whole.encode(), JOE, {})
        return answers

    apply, sealing = suspended.files.apply, list[bool]()

    async def sealed(call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        if isinstance(changes[0], Seal) and not sealing:
            sealing.append(True)
            return (Failure(Kind.NOT_FOUND, "upload", "it is being sealed"),)
        return await apply(call, changes)

    monkeypatch.setattr(suspended.files, "look", crossing)
    monkeypatch.setattr(suspended.files, "apply", sealed)
    monkeypatch.setattr(multipart, "_is_open", not_so)
    assert (suspended.ask("POST", target, whole).status, looks[0].status) == (200, 200)
    assert suspended.ask("GET", "/lab/k").body == b"part"


@pytest.mark.parametrize("waits", [False, True])
def test_of_two_that_give_a_null_version_its_key_the_second_takes_it_from_nobody(
    suspended: Door, meanwhile: Meanwhile, monkeypatch: pytest.MonkeyPatch, *, waits: bool
) -> None:
    """The second took the null version that the first had replaced for its own, and brought it back: the completed
    object was gone."""
    target, whole = parted(suspended)
    if waits:
        with monkeypatch.context() as broken:
            broken.setattr(multipart.versions, "settled", lost)
            assert suspended.ask("POST", target, whole).status == 503
    apply, refused = suspended.files.apply, list[Change]()

    async def dies(call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        if isinstance(changes[0], Remove) and not refused:
            refused.append(changes[0])
            raise CheloniaError(Kind.UNAVAILABLE)
        return await apply(call, changes)

    monkeypatch.setattr(suspended.files, "apply", dies)
    told = meanwhile(Move, ("POST", target, whole))
    assert (suspended.ask("POST", target, whole).status, told[0].status) == (200, 503)
    assert suspended.ask("GET", "/lab/k").body == b"part"
    assert [version for _, version, _ in suspended.history()].count("null") == 1
    assert suspended.ask("POST", target, whole).status == 200


@pytest.mark.parametrize("looks", [0, 1, 2])
def test_of_two_that_complete_while_the_upload_gets_a_newer_order_both_are_told_its_version(
    kept: Door, monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    """The second got a version that does not exist, or an answer that there is no such upload. `looks`: its looks at
    the upload before."""
    one = kept.put("k", b"one")
    target, whole = parted(kept)
    with monkeypatch.context() as broken:
        broken.setattr(multipart.versions, "settled", lost)
        assert kept.ask("POST", target, whole).status == 503
    kept.put("k", b"newer")
    apply, look, second, told = kept.files.apply, kept.files.look, list[asyncio.Task[Heard]](), list[Heard]()
    reached, seen = {"": True}, list[bool]()

    async def until(what: str) -> None:
        while what not in reached and not (second and second[0].done()):
            await asyncio.sleep(0)

    def begin() -> None:
        second.append(asyncio.ensure_future(kept._ask("POST", target, whole.encode(), JOE, {})))

    async def looked(call: Call, asks: tuple[Look, ...]) -> tuple[Looked | Failure, ...]:
        if second and asyncio.current_task() is second[0] and "※versions" in asks[0].place.parts:
            seen.append(True)
            reached.update({"looks": True} if len(seen) == looks else {})
            await until("moved" if len(seen) == looks else "")
        return await look(call, asks)

    async def changed(call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        change = changes[0]
        if second and asyncio.current_task() is second[0]:
            if isinstance(change, Move) and change.over is Over.EXCHANGE:
                reached["exchanges"] = True
                await until("named")
            return await apply(call, changes)
        if isinstance(change, Move) and change.over is Over.REFUSE and change.target.parts[1] != "k" and not second:
            assert (await kept._ask("DELETE", f"/lab/k?versionId={one}", b"", JOE, {})).status == 204
            if looks:
                begin()
                await until("looks")
            answers = await apply(call, changes)
            reached["moved"] = True
            return answers
        if isinstance(change, Move) and change.over is Over.EXCHANGE and "moved" in reached and not told:
            if not looks:
                begin()
            await until("exchanges")
            reached["named"] = True
            told.append(await second[0])
        return await apply(call, changes)

    monkeypatch.setattr(kept.files, "look", looked)
    monkeypatch.setattr(kept.files, "apply", changed)
    first = kept.ask("POST", target, whole)
    assert (first.status, told[0].status) == (200, 200)
    assert kept.history()[0] == ("k", first.version, "*")
    assert told[0].version == first.version


async def not_so(*_: object) -> bool:
    return False


def test_who_completes_while_his_condition_ceases_to_hold_is_told_of_the_conflict(
    kept: Door, meanwhile: Meanwhile
) -> None:
    """On that answer a client begins another upload, as with Amazon. The other answer, that its condition did not hold,
    made it go on with one that was gone."""
    target, whole = parted(kept)
    meanwhile(Move, ("PUT", "/lab/k", "other"))
    answer = kept.ask("POST", target, whole, If_None_Match="*")
    assert (answer.status, answer.texts("Code")) == (409, ["ConditionalRequestConflict"])
    assert kept.ask("GET", "/lab/k").body == b"other"
    assert len(kept.history()) == 1


def test_who_completes_what_another_gives_up_for_his_condition_is_not_told_that_it_is_done(
    kept: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer had a version, and it was gone."""
    kept.put("k", b"one")
    etag, (target, whole) = kept.ask("HEAD", "/lab/k").headers["ETag"], parted(kept)
    apply, reached, told = kept.files.apply, list[str](), list[Heard]()

    async def cross(call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        if isinstance(changes[0], Move) and not reached:
            reached.append("waits")
            await kept._ask("PUT", "/lab/k", b"other", JOE, {})
        elif isinstance(changes[0], Remove) and reached == ["waits"]:
            reached.append("is refused")
            beside = asyncio.ensure_future(kept._ask("POST", target, whole.encode(), JOE, {}))
            while "second" not in reached:
                await asyncio.sleep(0)
            answers = await apply(call, changes)
            reached.append("removed")
            told.append(await beside)
            return answers
        elif isinstance(changes[0], Move) and reached == ["waits", "is refused"]:
            reached.append("second")
            while "removed" not in reached:
                await asyncio.sleep(0)
        return await apply(call, changes)

    monkeypatch.setattr(kept.files, "apply", cross)
    assert kept.ask("POST", target, whole, If_Match=etag).status == 409
    assert (told[0].status, told[0].texts("Code")) == (409, ["ConditionalRequestConflict"])
    assert kept.ask("POST", target, whole).texts("Code") == ["NoSuchUpload"]
    assert kept.ask("GET", "/lab/k").body == b"other"


def test_the_version_that_was_named_is_told_of_a_bucket_that_keeps_none(door: Door) -> None:
    door.put("k", b"one")
    told = door.ask("POST", "/lab?delete", "<Delete><Object><Key>k</Key><VersionId>null</VersionId></Object></Delete>")
    assert (told.texts("Key"), told.texts("VersionId")) == (["k"], ["null"])


def test_what_got_a_newer_order_and_is_refused_then_leaves_no_version(kept: Door, meanwhile: Meanwhile) -> None:
    kept.put("k", b"x")
    etag = kept.ask("GET", "/lab/k").headers["ETag"]
    reordered = meanwhile(Move, ("PUT", "/lab/k", "y"), after=True, over=Over.REFUSE)
    told = meanwhile(Move, ("PUT", "/lab/k", "x")), reordered
    answer = kept.ask("PUT", "/lab/k", b"z", If_Match=etag)
    assert ([each.status for (each,) in told], answer.status) == ([200, 200], 412)
    assert len(kept.history()) == 3


def test_who_is_refused_a_key_that_his_version_got_meanwhile_is_told_of_the_conflict(
    kept: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer was that there is no such key, though his version had it: the removal of a newer one gave it on."""
    one, apply, markers = kept.put("k", b"one"), kept.files.apply, list[str]()

    async def removing(target: str) -> str:
        monkeypatch.setattr(kept.files, "apply", apply)
        removed = await kept._ask("DELETE", target, b"", JOE, {})
        monkeypatch.setattr(kept.files, "apply", cross)
        return removed.version

    async def cross(call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        if isinstance(changes[0], Move) and not markers:
            markers.append(await removing("/lab/k"))
            await removing(f"/lab/k?versionId={one}")
        elif isinstance(changes[0], Remove):
            await removing(f"/lab/k?versionId={markers[0]}")
        return await apply(call, changes)

    etag = kept.ask("HEAD", "/lab/k").headers["ETag"]
    monkeypatch.setattr(kept.files, "apply", cross)
    answer = kept.ask("PUT", "/lab/k", b"two", If_Match=etag)
    assert (answer.status, answer.texts("Code")) == (409, ["ConditionalRequestConflict"])
    assert kept.ask("GET", "/lab/k").body == b"two"


def test_who_erases_the_null_version_erases_the_one_that_has_come_to_the_key(
    suspended: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No version had the key when it looked; when it listed, another one was waiting to take that one's place."""
    apply, listed = suspended.files.apply, suspended.files.list
    writers: list[asyncio.Task[Heard]] = []
    begun, waits, erased = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def put(body: bytes) -> Heard:
        return await suspended._ask("PUT", "/lab/j", body, JOE, {})

    async def cross(call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        if writers and isinstance(changes[0], Move) and not erased.is_set():
            waits.set()
            await erased.wait()
        return await apply(call, changes)

    async def meanwhile(call: Call, listing: Listing) -> Listed:
        if not begun.is_set():
            begun.set()
            assert (await put(b"first")).status == 200
            writers.append(asyncio.ensure_future(put(b"second")))
            await waits.wait()
        return await listed(call, listing)

    async def scenario() -> list[int]:
        async with asyncio.timeout(60):
            gone = await suspended._ask("DELETE", "/lab/j?versionId=null", b"", JOE, {})
            erased.set()
            return [gone.status, (await writers[0]).status]

    monkeypatch.setattr(suspended.files, "apply", cross)
    monkeypatch.setattr(suspended.files, "list", meanwhile)
    assert asyncio.run(scenario()) == [204, 200]
    assert suspended.ask("GET", "/lab/j").status == 404


def test_what_is_brought_back_while_its_key_is_removed_is_never_seen(kept: Door, meanwhile: Meanwhile) -> None:
    """It was there until it went back, after the answer to the removal (`versions`, seed 9856195)."""
    version = kept.put("k", b"first")
    marker = kept.ask("DELETE", "/lab/k").version
    removed, seen = meanwhile(Move, ("DELETE", "/lab/k")), meanwhile(Move, ("GET", "/lab/k"), after=True)
    assert kept.ask("DELETE", f"/lab/k?versionId={marker}").status == 204
    assert [answer.status for answer in (*removed, *seen)] == [204, 404]
    newer = removed[0].version
    assert kept.history() == [("k", newer, "marker*"), ("k", version, "")]
    assert kept.ask("DELETE", f"/lab/k?versionId={newer}").status == 204
    assert kept.ask("GET", "/lab/k").body == b"first"


def test_tags_are_given_to_the_version_that_was_seen_with_what_else_it_has(
    kept: Door, meanwhile: Meanwhile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The narrowed key makes the door find it by its name, where another version of it may have an equal number of
    changes."""

    async def narrow(parts: S3Parts, request: HttpRequest, signable: Signable) -> Verified:
        known = await verified(parts, request, signable)
        return replace(known, call=replace(known.call, dn=JOE, scopes=(Scope((*READING, *CHANGING), ("lab",)),)))

    monkeypatch.setattr(s3_door, "verified", narrow)
    kept.put("k", b"first")
    old = kept.put("k", b"old")
    meanwhile(Set, ("PUT", "/lab/k", "new"))
    tags = "<Tagging><TagSet><Tag><Key>a</Key><Value>1</Value></Tag></TagSet></Tagging>"
    assert kept.ask("PUT", "/lab/k?tagging", tags).status == 200
    now = kept.ask("GET", "/lab/k")
    assert (now.body, now.version == old) == (b"new", False)
    assert now.headers["x-amz-tagging-count"] == "1"


def test_a_copy_has_the_checksum_of_its_own_bytes(kept: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its source is overwritten before it is read for the checksum; as an older version its bytes are still there."""
    kept.put("from", b"old")
    look, looks = kept.files.look, list[Look]()

    async def looked(call: Call, asks: tuple[Look, ...]) -> tuple[Looked | Failure, ...]:
        looks.extend(ask for ask in asks if ask.place.parts == ("lab", "from"))
        if len(looks) == 2:
            monkeypatch.setattr(kept.files, "look", look)
            await kept._ask("PUT", "/lab/from", b"new", JOE, {})
        return await look(call, asks)

    monkeypatch.setattr(kept.files, "look", looked)
    copied = kept.ask("PUT", "/lab/to", x_amz_copy_source="lab/from", x_amz_checksum_algorithm="SHA256")
    assert (copied.status, len(looks)) == (200, 2)
    made = kept.ask("GET", "/lab/to", x_amz_checksum_mode="ENABLED")
    assert made.headers["x-amz-checksum-sha256"] == b64encode(sha256(made.body).digest()).decode()


def test_settings_of_a_bucket_that_cross_are_all_kept(door: Door, meanwhile: Meanwhile) -> None:
    """The second was refused for a condition that its client had not made, which no client repeats."""
    tags = "<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>"
    crossed = meanwhile(Set, ("PUT", "/lab?tagging", tags))
    assert door.ask("PUT", "/lab?versioning", ON).status == 200
    assert [answer.status for answer in crossed] == [204]
    assert door.ask("GET", "/lab?versioning").texts("Status") == ["Enabled"]
    assert door.ask("GET", "/lab?tagging").texts("Key") == ["a"]


def test_a_setting_is_of_the_bucket_that_was_seen(door: Door, meanwhile: Meanwhile) -> None:
    crossed = meanwhile(Set, ("DELETE", "/lab"))
    assert door.ask("PUT", "/lab?versioning", ON).texts("Code") == ["NoSuchBucket"]
    assert [answer.status for answer in crossed] == [204]
