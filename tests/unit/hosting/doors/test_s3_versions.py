"""The S3 door on a cluster in memory: answers and versions of a bucket that keeps versions."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pytest
from multidict import CIMultiDict

from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ROOT, Dn, Ms, RequestKey
from chelonia.core.names import LogicalName
from chelonia.core.ports.access_keys import IssuedKey
from chelonia.core.ports.files import (
    Change,
    Clone,
    Done,
    Failure,
    Listed,
    Listing,
    Look,
    Looked,
    Move,
    Remove,
    Set,
    Setting,
)
from chelonia.core.values import replace
from chelonia.hosting.doors.s3 import door as s3_door
from chelonia.hosting.doors.s3 import multipart
from chelonia.hosting.doors.s3.door import S3Door
from chelonia.hosting.doors.s3.parts import S3Parts
from chelonia.hosting.doors.s3.signing import Verified, verified
from chelonia.hosting.metrics import Metrics
from chelonia.hosting.net.clock import SystemClock
from chelonia.hosting.net.http_messages import HttpRequest, Peer
from chelonia.wire.s3.sigv4 import Signable
from tests.support.cluster import MemoryCluster
from tests.support.door_parts import door_parts
from tests.support.strength import noted
from tests.unit.hosting.doors.test_plain_door import MemoryBytes

JOE, EVE = Dn("/CN=joe"), Dn("/CN=eve")
ON = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
OFF = ON.replace("Enabled", "Suspended")


@dataclass
class Heard:
    status: int
    headers: CIMultiDict[str]
    body: bytes

    @property
    def version(self) -> str:
        return self.headers.get("x-amz-version-id", "")

    def texts(self, name: str) -> list[str]:
        return re.findall(f"<{name}>([^<]*)</{name}>", self.body.decode())


class NoKeys:
    async def find(self, key_id: str) -> IssuedKey | None:
        return None


class Door:
    """An S3 door with the bucket `lab`; it accepts any caller's stated identity."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def trusting(parts: S3Parts, request: HttpRequest, signable: Signable) -> Verified:
            known = await verified(parts, request, signable)
            return replace(known, call=replace(known.call, dn=Dn(request.headers["X-Who"])))

        monkeypatch.setattr(s3_door, "verified", trusting)
        self.files = MemoryCluster(JOE)
        self.plain = door_parts(self.files, MemoryBytes(self.files), Dn("/CN=front"), 2)
        self.door = S3Door(S3Parts(self.plain, NoKeys(), SystemClock(), LogicalName(ROOT, ())), Metrics())
        assert self.ask("PUT", "/lab").status == 200

    def ask(self, method: str, target: str, body: bytes | str = b"", who: Dn = JOE, **headers: str) -> Heard:
        data = body.encode() if isinstance(body, str) else body
        return asyncio.run(self._ask(method, target, data, who, headers))

    async def _ask(self, method: str, target: str, body: bytes, who: Dn, headers: dict[str, str]) -> Heard:
        async def chunks() -> AsyncIterator[bytes]:
            if body:
                yield body

        fields = CIMultiDict({"Host": "se:1", "X-Who": who, **{k.replace("_", "-"): v for k, v in headers.items()}})
        path = unquote(target.partition("?")[0])
        request = HttpRequest(
            method, path, {}, fields, Peer(address="127.0.0.1"), chunks(), len(body), "r", target=target
        )
        answer = await self.door.serve(request)
        data = answer.body if isinstance(answer.body, bytes) else b"".join([piece async for piece in answer.body])
        return Heard(answer.status, CIMultiDict(answer.headers), data)

    def kept_names(self) -> list[str]:
        """The names in the bucket's collection of versions."""
        page = asyncio.run(self.files.list(Call(dn=JOE), Listing(LogicalName(ROOT, ("lab", "※versions")))))
        return [each.name for each in page.entries]

    def put(self, key: str, data: bytes) -> str:
        answer = self.ask("PUT", f"/lab/{key}", data)
        assert answer.status == 200, answer
        return answer.version

    def write_user(self, key: str, facts: str) -> None:
        """Write an object's facts as another door can, in the place of this one's."""
        change = Set(LogicalName(ROOT, ("lab", key)), user={"s3": facts})
        (done,) = asyncio.run(self.files.apply(Call(dn=JOE), (change,)))
        assert isinstance(done, Done), done

    def opened(self, key: str) -> str:
        (upload,) = self.ask("POST", f"/lab/{key}?uploads").texts("UploadId")
        return upload

    def part(self, key: str, upload: str, data: bytes) -> str:
        """Upload the only part. Returns: the body that completes the upload."""
        etag = self.ask("PUT", f"/lab/{key}?partNumber=1&uploadId={upload}", data).headers["ETag"]
        told = f"<Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part>"
        return f"<CompleteMultipartUpload>{told}</CompleteMultipartUpload>"

    def history(self, query: str = "") -> list[tuple[str, str, str]]:
        """Key, version and mark of each, in the order of the listing."""
        told = self.ask("GET", f"/lab?versions&{query}").body.decode()
        found = re.findall(r"<(Version|DeleteMarker)>(.*?)</\1>", told)
        out = []
        for kind, text in found:
            key, version, latest = (re.findall(f"<{n}>(.*?)</{n}>", text)[0] for n in ("Key", "VersionId", "IsLatest"))
            out.append((key, version, ("marker" if kind == "DeleteMarker" else "") + ("*" if latest == "true" else "")))
        return out


async def lost(*_: object, **__: object) -> None:
    raise CheloniaError(Kind.UNAVAILABLE)


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Door:
    return Door(monkeypatch)


@pytest.fixture
def kept(door: Door) -> Door:
    """The same, once the bucket keeps versions."""
    assert door.ask("PUT", "/lab?versioning", ON).status == 200
    return door


def test_what_one_front_end_has_acknowledged_the_next_one_tells(kept: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """S3's clients cannot state how new an answer has to be; Amazon's include everything acknowledged."""
    strong = noted(kept.files, monkeypatch)
    kept.put("k", b"1")
    for method, target in [
        ("GET", "/"), ("GET", "/lab?list-type=2"), ("GET", "/lab?versions"), ("HEAD", "/lab"), ("HEAD", "/lab/k"),
        ("GET", "/lab/k"), ("GET", "/lab/k?acl"), ("DELETE", "/lab/k"),
    ]:  # fmt: skip
        before = len(strong)
        assert kept.ask(method, target).status in (200, 204)
        assert all(strong[before:]), (method, target)
        assert len(strong) > before
    assert all(strong)


def test_a_bucket_says_whether_it_keeps_versions(door: Door) -> None:
    assert door.ask("GET", "/lab?versioning").texts("Status") == []
    assert door.put("k", b"x") == ""
    for told in (ON, OFF):
        assert door.ask("PUT", "/lab?versioning", told).status == 200
        assert door.ask("PUT", "/lab?tagging", "<Tagging><TagSet/></Tagging>").status == 204
        assert door.ask("GET", "/lab?versioning").body.decode().count(told[25:60]) == 1
    assert door.ask("PUT", "/lab?versioning", "<VersioningConfiguration/>").status == 400


@pytest.mark.parametrize("versions", [False, True])
def test_each_change_has_a_request_key_of_its_own(
    door: Door, monkeypatch: pytest.MonkeyPatch, *, versions: bool
) -> None:
    if versions:
        assert door.ask("PUT", "/lab?versioning", ON).status == 200
    apply, seen = door.files.apply, list[RequestKey]()

    async def noting(call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        seen.append(call.request_key)
        return await apply(call, changes)

    monkeypatch.setattr(door.files, "apply", noting)
    for _ in range(2):
        door.put("a/k", b"x")
        assert door.ask("DELETE", "/lab/a/k").status == 204
    assert door.ask("DELETE", "/lab").status == (409 if versions else 204)
    assert len(set(seen)) == len(seen)
    assert all(seen)


@pytest.mark.parametrize("gone", [False, True])
def test_a_front_end_that_has_just_read_keeps_the_versions_that_another_was_told_to_keep(
    door: Door, monkeypatch: pytest.MonkeyPatch, *, gone: bool
) -> None:
    door.put("k", b"old")
    assert door.ask("GET", "/lab/k").version == ""
    other = Door(monkeypatch)
    other.door = S3Door(S3Parts(door.plain, NoKeys(), SystemClock(), LogicalName(ROOT, ())), Metrics())
    assert other.ask("PUT", "/lab?versioning", ON).status == 200
    if gone:
        assert door.ask("DELETE", "/lab/k").headers["x-amz-delete-marker"] == "true"
    else:
        assert door.put("k", b"new") == door.ask("GET", "/lab/k").version != ""
    assert door.ask("GET", "/lab/k?versionId=null").body == b"old"


@pytest.mark.parametrize("key", ["k", "a/b/k", "a//k", "dir/"])
def test_what_is_overwritten_can_still_be_read(kept: Door, key: str) -> None:
    first, second = kept.put(key, b"one"), kept.put(key, b"second")
    assert "" != first != second != ""
    now = kept.ask("GET", f"/lab/{key}")
    assert (now.body, now.version) == (b"second", second)
    for version, data in ((first, b"one"), (second, b"second")):
        got = kept.ask("GET", f"/lab/{key}?versionId={version}")
        assert (got.body, got.version) == (data, version)
        assert kept.ask("HEAD", f"/lab/{key}?versionId={version}").headers["ETag"] == got.headers["ETag"]
    assert kept.history() == [(key, second, "*"), (key, first, "")]
    assert kept.ask("GET", f"/lab/{key}?versionId=none").status == 404
    assert kept.ask("GET", "/lab?list-type=2").texts("Key") == [key]


def test_a_removal_can_be_undone_by_removing_its_marker(kept: Door) -> None:
    first = kept.put("a/k", b"one")
    gone = kept.ask("DELETE", "/lab/a/k")
    assert (gone.status, gone.headers["x-amz-delete-marker"]) == (204, "true")
    nothing = kept.ask("GET", "/lab/a/k")
    assert (nothing.status, nothing.headers["x-amz-delete-marker"], nothing.version) == (404, "true", gone.version)
    assert kept.ask("GET", "/lab?list-type=2&delimiter=/").texts("Prefix") == [""]
    assert kept.history() == [("a/k", gone.version, "marker*"), ("a/k", first, "")]
    assert kept.ask("GET", f"/lab/a/k?versionId={gone.version}").status == 405
    assert kept.ask("GET", f"/lab/a/k?versionId={first}").body == b"one"
    again = kept.ask("DELETE", f"/lab/a/k?versionId={gone.version}")
    assert (again.headers["x-amz-delete-marker"], again.version) == ("true", gone.version)
    assert (kept.ask("GET", "/lab/a/k").body, kept.history()) == (b"one", [("a/k", first, "*")])


@pytest.mark.parametrize("beside", [False, True])
def test_what_comes_back_to_a_key_that_ends_in_a_slash_has_that_key(kept: Door, *, beside: bool) -> None:
    """It got the key without the slash, or could not come back where there was one."""
    first = kept.put("dir/", b"one")
    if beside:
        kept.put("dir/x", b"another")
    gone = kept.ask("DELETE", "/lab/dir/").version
    assert kept.ask("DELETE", f"/lab/dir/?versionId={gone}").status == 204
    assert (kept.ask("GET", "/lab/dir/").body, kept.ask("GET", "/lab/dir/").version) == (b"one", first)
    assert kept.ask("GET", "/lab/dir").status == 404


def test_when_the_newest_version_goes_the_one_before_has_the_key(kept: Door) -> None:
    versions = [kept.put("k", b"%d" % n) for n in range(3)]
    assert kept.ask("DELETE", f"/lab/k?versionId={versions[2]}").version == versions[2]
    assert kept.ask("GET", "/lab/k").body == b"1"
    assert kept.ask("DELETE", f"/lab/k?versionId={versions[0]}").status == 204
    assert kept.history() == [("k", versions[1], "*")]
    assert kept.ask("DELETE", f"/lab/k?versionId={versions[1]}").status == 204
    assert kept.ask("DELETE", f"/lab/k?versionId={versions[1]}").status == 204
    assert kept.ask("DELETE", "/lab").status == 204, "nothing is left in it"


def test_versions_come_in_the_order_of_their_writes_whatever_clocks_say(
    kept: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, versions = SystemClock().now_ms(), list[str]()
    for ahead_ms in (0, 3_600_000, 0, 0, -3_600_000):  # of the front end that gets the request
        told = Ms(now + ahead_ms)
        monkeypatch.setattr(SystemClock, "now_ms", lambda clock, told=told: told)
        versions.append(kept.put("k", b"x"))
    assert [version for _, version, _ in kept.history()] == versions[::-1]


def test_what_follows_a_marker_is_newer_whatever_clocks_say(kept: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a removal by a front end whose clock is ahead, a later put counted as older than its marker."""
    first = kept.put("k", b"one")
    now_ms = SystemClock().now_ms()
    with monkeypatch.context() as ahead:
        ahead.setattr(SystemClock, "now_ms", lambda clock: now_ms + 60_000)
        marker = kept.ask("DELETE", "/lab/k").version
    second, third = kept.put("k", b"two"), kept.put("k", b"three")
    assert [version for _, version, _ in kept.history()] == [third, second, marker, first]
    kept.ask("DELETE", f"/lab/k?versionId={third}")
    assert kept.ask("GET", "/lab/k").body == b"two"


def test_a_time_set_far_ahead_orders_no_version(door: Door) -> None:
    """Beyond the last instant that an order can express, later puts came anywhere."""
    door.put("k", b"null")
    ahead = Setting(modified_ns=(1 << 63) - 1)
    asyncio.run(door.files.apply(Call(dn=JOE), (Set(LogicalName(ROOT, ("lab", "k")), ahead),)))
    assert door.ask("PUT", "/lab?versioning", ON).status == 200
    made = [door.put("k", b"%d" % n) for n in range(6)]
    assert [version for _, version, _ in door.history()] == [*made[::-1], "null"]
    for version in made:
        assert door.ask("DELETE", f"/lab/k?versionId={version}").status == 204
    assert door.history(f"key-marker=k&version-id-marker={made[0]}") == [("k", "null", "*")]


def test_a_marker_that_is_removed_while_another_is_made_brings_nothing_back(
    kept: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, before = kept.put("k", b"one"), kept.ask("DELETE", "/lab/k").version
    apply, made = kept.files.apply, list[str]()

    async def remove(call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        if not made and any(isinstance(change, Move) for change in changes):
            made.append("")
            made[0] = (await kept._ask("DELETE", "/lab/k", b"", JOE, {})).version
        return await apply(call, changes)

    monkeypatch.setattr(kept.files, "apply", remove)
    assert kept.ask("DELETE", f"/lab/k?versionId={before}").status == 204
    assert kept.ask("GET", "/lab/k").status == 404
    assert kept.history() == [("k", made[0], "marker*"), ("k", first, "")]


def test_a_marker_and_the_version_behind_it_that_go_at_once_give_the_key_on(
    kept: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, marker = kept.put("k", b"one"), kept.put("k", b"two"), kept.ask("DELETE", "/lab/k").version
    apply, meanwhile = kept.files.apply, [second]

    async def remove(call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        if isinstance(changes[0], Remove) and meanwhile:
            await kept._ask("DELETE", f"/lab/k?versionId={meanwhile.pop()}", b"", JOE, {})
        return await apply(call, changes)

    monkeypatch.setattr(kept.files, "apply", remove)
    assert kept.ask("DELETE", f"/lab/k?versionId={marker}").status == 204
    assert (kept.ask("GET", "/lab/k").body, kept.history()) == (b"one", [("k", first, "*")])


def test_a_version_is_copied_while_its_key_is_removed(kept: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    first, apply, removed = kept.put("k", b"one"), kept.files.apply, list[str]()

    async def remove(call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        if isinstance(changes[0], Clone) and not removed:
            removed.append((await kept._ask("DELETE", "/lab/k", b"", JOE, {})).version)
        return await apply(call, changes)

    monkeypatch.setattr(kept.files, "apply", remove)
    assert kept.ask("PUT", "/lab/to", x_amz_copy_source=f"lab/k?versionId={first}").status == 200
    assert removed
    assert kept.ask("GET", "/lab/to").body == b"one"


@pytest.mark.parametrize("condition", ["If_Match", ""])
def test_a_version_that_a_removal_has_given_its_key_is_written(
    kept: Door, monkeypatch: pytest.MonkeyPatch, condition: str
) -> None:
    first, apply, doomed = kept.put("k", b"one"), kept.files.apply, [kept.put("k", b"two")]

    async def remove(call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        if isinstance(changes[0], Move) and doomed:
            await kept._ask("DELETE", f"/lab/k?versionId={doomed.pop()}", b"", JOE, {})
        return await apply(call, changes)

    only = {condition: kept.ask("HEAD", "/lab/k").headers["ETag"]} if condition else {}
    monkeypatch.setattr(kept.files, "apply", remove)
    third = kept.ask("PUT", "/lab/k", b"three", **only)
    assert (third.status, kept.ask("GET", "/lab/k").body) == (200, b"three")
    assert kept.history() == [("k", third.version, "*"), ("k", first, "")]


def test_of_two_null_versions_that_are_written_at_once_both_are_told_so(
    kept: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, apply, others = kept.put("k", b"one"), kept.files.apply, [b"theirs"]
    assert kept.ask("PUT", "/lab?versioning", OFF).status == 200

    async def put(call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        if isinstance(changes[0], Move) and others:
            assert (await kept._ask("PUT", "/lab/k", others.pop(), JOE, {})).status == 200
        return await apply(call, changes)

    monkeypatch.setattr(kept.files, "apply", put)
    assert kept.ask("PUT", "/lab/k", b"mine").status == 200
    assert kept.history() == [("k", "null", "*"), ("k", first, "")]


def test_a_removal_of_unknown_outcome_leaves_its_marker(kept: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the newest version of the list differed from the key's own answer."""
    first, apply = kept.put("k", b"one"), kept.files.apply

    async def unheard(call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        answers = await apply(call, changes)
        if isinstance(changes[0], Move):
            raise CheloniaError(Kind.UNAVAILABLE)
        return answers

    monkeypatch.setattr(kept.files, "apply", unheard)
    assert kept.ask("DELETE", "/lab/k").status == 503
    assert [(version, what) for _, version, what in kept.history()][1:] == [(first, "")]
    assert kept.history()[0][2] == "marker*"


@pytest.mark.parametrize("key", ["k", "k" * 200, "a//k"])
def test_a_bucket_goes_once_its_versions_are_gone(kept: Door, key: str) -> None:
    version = kept.put(key, b"x")
    assert kept.ask("DELETE", "/lab").status == 409
    assert kept.ask("DELETE", f"/lab/{key}?versionId={version}").status == 204
    assert kept.ask("DELETE", "/lab").status == 204


def test_what_was_there_before_is_the_null_version(door: Door) -> None:
    door.put("k", b"old")
    assert door.ask("PUT", "/lab?versioning", ON).status == 200
    new = door.put("k", b"new")
    assert door.ask("GET", "/lab/k?versionId=null").body == b"old"
    assert door.ask("PUT", "/lab?versioning", OFF).status == 200
    assert door.put("k", b"newest") == ""
    assert door.history() == [("k", "null", "*"), ("k", new, "")]
    assert door.put("k", b"the very newest") == ""
    assert door.history() == [("k", "null", "*"), ("k", new, "")]
    assert door.ask("DELETE", "/lab/k").version == "null"
    assert door.history() == [("k", "null", "marker*"), ("k", new, "")]
    assert door.ask("GET", f"/lab/k?versionId={new}").body == b"new"


def test_the_listing_comes_in_pages_by_prefix_and_delimiter(kept: Door) -> None:
    keys = sorted(["a", "a/1", "a/2", "a//x", "a!", "b" * 56, "b" * 57, "c/d/e"], key=str.encode)
    made = {key: [kept.put(key, b"%d" % n) for n in range(2)] for key in keys}
    whole = [(key, version, "*" if version == made[key][1] else "") for key in keys for version in made[key][::-1]]
    assert kept.history() == whole
    for size in (1, 3, 4):
        found, query, pages = [], f"max-keys={size}", 0
        while query and pages < 20:
            told = kept.ask("GET", f"/lab?versions&{query}")
            found += kept.history(query)
            marks = (*told.texts("NextKeyMarker"), *told.texts("NextVersionIdMarker"))
            query = f"max-keys={size}&key-marker={marks[0]}&version-id-marker={marks[1]}" if marks else ""
            pages += 1
        assert found == whole
    assert kept.history("prefix=a/") == [each for each in whole if each[0].startswith("a/")]
    told = kept.ask("GET", "/lab?versions&delimiter=/")
    assert told.texts("Prefix")[1:] == ["a/", "c/"]
    assert [each[0] for each in kept.history("delimiter=/")] == [
        "a",
        "a",
        "a!",
        "a!",
        "b" * 56,
        "b" * 56,
        *["b" * 57] * 2,
    ]
    assert kept.history("key-marker=a/2")[0][0] == "b" * 56


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_a_listing_whose_pages_are_removed_as_they_come_finds_all(door: Door, size: int) -> None:
    door.put("a", b"null")
    assert door.ask("PUT", "/lab?versioning", ON).status == 200
    for key in ("a", "a", "b", "b", "b", "c"):
        door.put(key, b"x")
    assert door.ask("DELETE", "/lab/b").status == 204
    found, query = 0, f"max-keys={size}"
    while query:
        told = door.ask("GET", f"/lab?versions&{query}")
        for key, version, _ in door.history(query):
            assert door.ask("DELETE", f"/lab/{key}?versionId={version}").status == 204
            found += 1
        marks = (*told.texts("NextKeyMarker"), *told.texts("NextVersionIdMarker"))
        query = f"max-keys={size}&key-marker={marks[0]}&version-id-marker={marks[1]}" if marks else ""
    assert (found, door.history()) == (8, [])


@pytest.mark.parametrize("change", ["overwrites", "removes"])
def test_a_listing_misses_no_version_that_moves_meanwhile(
    kept: Door, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    first, second = kept.put("k", b"1"), kept.put("k", b"2")
    inner, calls = kept.files.list, 0

    async def listing(call: Call, ask: Listing) -> Listed:
        nonlocal calls
        page, calls = await inner(call, ask), calls + 1
        if calls == due:
            query = "" if change == "overwrites" else f"?versionId={second}"
            await kept._ask("PUT" if change == "overwrites" else "DELETE", f"/lab/k{query}", b"new", JOE, {})
        return page

    for due in range(1, 7):
        with monkeypatch.context() as moving:
            moving.setattr(kept.files, "list", listing)
            seen = [version for _, version, _ in kept.history()]
        assert first in seen, due
        assert len(set(seen)) == len(seen)
        assert change == "removes" or second in seen
        second = kept.put("k", b"again") if change == "removes" else second
        calls = 0


def test_conditions_speak_of_what_has_the_key(kept: Door) -> None:
    first = kept.ask("PUT", "/lab/k", b"one", If_None_Match="*")
    assert first.status == 200
    assert kept.ask("PUT", "/lab/k", b"two", If_None_Match="*").status == 412
    assert kept.ask("PUT", "/lab/k", b"two", If_Match='"0"').status == 412
    assert kept.ask("PUT", "/lab/k", b"two", If_Match=first.headers["ETag"]).status == 200
    assert len(kept.history()) == 2, "what was refused is not kept"


def test_a_version_is_a_source_and_has_tags_of_its_own(kept: Door) -> None:
    first, second = kept.put("k", b"one"), kept.put("k", b"two")
    tags = "<Tagging><TagSet><Tag><Key>a</Key><Value>1</Value></Tag></TagSet></Tagging>"
    assert kept.ask("PUT", f"/lab/k?tagging&versionId={first}", tags).version == first
    assert kept.ask("GET", f"/lab/k?tagging&versionId={first}").texts("Key") == ["a"]
    assert kept.ask("GET", "/lab/k?tagging").texts("Key") == []
    made = kept.ask("PUT", "/lab/k", x_amz_copy_source=f"lab/k?versionId={first}")
    assert (made.status, made.headers["x-amz-copy-source-version-id"]) == (200, first)
    assert kept.ask("GET", "/lab/k").body == b"one"
    assert [each[1] for each in kept.history()] == [made.version, second, first]


@pytest.mark.parametrize(
    ("span", "data"),
    [("", b"one"), ("bytes=1-2", b"ne"), ("bytes=-2", b"InvalidArgument"), ("bytes=1-", b"InvalidArgument"),
     ("bytes=0-0,2-2", b"InvalidArgument"), ("bytes=1-3", b"InvalidRange"), ("bytes=2-1", b"InvalidRange")],
)  # fmt: skip
def test_a_part_is_copied_of_a_version_by_its_range(kept: Door, span: str, data: bytes) -> None:
    first, upload = kept.put("k", b"one"), kept.opened("to")
    kept.put("k", b"two")
    fields = {"x_amz_copy_source": f"lab/k?versionId={first}"} | ({"x_amz_copy_source_range": span} if span else {})
    made = kept.ask("PUT", f"/lab/to?partNumber=1&uploadId={upload}", **fields)
    if made.status != 200:
        assert data.decode() in made.texts("Code")
        return
    assert made.headers["x-amz-copy-source-version-id"] == first
    told = f"<Part><PartNumber>1</PartNumber><ETag>{made.texts('ETag')[0]}</ETag></Part>"
    whole = f"<CompleteMultipartUpload>{told}</CompleteMultipartUpload>"
    assert kept.ask("POST", f"/lab/to?uploadId={upload}", whole).status == 200
    assert kept.ask("GET", "/lab/to").body == data


def test_many_are_removed_by_one_call(kept: Door) -> None:
    first, second = kept.put("k", b"one"), kept.put("k", b"two")
    doomed = f"<Object><Key>k</Key><VersionId>{second}</VersionId></Object><Object><Key>new</Key></Object>"
    told = kept.ask("POST", "/lab?delete", f"<Delete>{doomed}</Delete>")
    assert told.texts("VersionId") == [second]
    (marker,) = told.texts("DeleteMarkerVersionId")
    assert kept.history() == [("k", first, "*"), ("new", marker, "marker*")]


@pytest.mark.parametrize("versions", [False, True], ids=["plain", "versions"])
def test_many_are_removed_only_as_their_etags_say(
    door: Door, request: pytest.FixtureRequest, *, versions: bool
) -> None:
    bucket = request.getfixturevalue("kept") if versions else door
    keys = {"right": b"1", "wrong": b"2", "any": b"3", "plain": b"4"}
    etags = {key: bucket.ask("PUT", f"/lab/{key}", data).headers["ETag"] for key, data in keys.items()}
    asked = {"right": etags["right"], "wrong": etags["right"], "any": "*", "plain": "", "none": etags["right"]}
    doomed = "".join(
        f"<Object><Key>{key}</Key>{f'<ETag>{etag}</ETag>' if etag else ''}</Object>" for key, etag in asked.items()
    )
    told = bucket.ask("POST", "/lab?delete", f"<Delete><Quiet>true</Quiet>{doomed}</Delete>")
    assert dict(zip(told.texts("Key"), told.texts("Code"), strict=True))["wrong"] == "PreconditionFailed"
    assert set(told.texts("Key")) <= {"wrong", "none"}
    assert {key for key in keys if bucket.ask("HEAD", f"/lab/{key}").status == 200} == {"wrong"}


def test_an_upload_in_parts_becomes_a_version(kept: Door) -> None:
    first = kept.put("k", b"one")
    upload = kept.opened("k")
    assert kept.ask("GET", "/lab?uploads").texts("UploadId") == [upload]
    assert kept.ask("GET", f"/lab?uploads&key-marker=k&upload-id-marker={upload}").texts("UploadId") == []
    parts = kept.part("k", upload, b"part")
    second = kept.put("k", b"written meanwhile")
    whole = kept.ask("POST", f"/lab/k?uploadId={upload}", parts)
    assert kept.ask("GET", "/lab/k").body == b"part"
    assert kept.history() == [("k", whole.version, "*"), ("k", second, ""), ("k", first, "")]
    assert kept.ask("POST", f"/lab/k?uploadId={upload}", parts).status == 200  # the answer was lost
    assert len(kept.history()) == 3


def test_an_upload_opened_before_versions_were_kept_becomes_one(door: Door) -> None:
    door.put("k", b"one")
    upload = door.opened("k")
    assert door.ask("PUT", "/lab?versioning", ON).status == 200
    whole = door.ask("POST", f"/lab/k?uploadId={upload}", door.part("k", upload, b"part"))
    assert door.history() == [("k", whole.version, "*"), ("k", "null", "")]
    assert door.ask("GET", "/lab/k?versionId=null").body == b"one"


def test_an_upload_whose_version_waits_for_its_key_is_completed_again(
    kept: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = kept.put("k", b"one")
    upload = kept.opened("k")
    parts = kept.part("k", upload, b"part")
    with monkeypatch.context() as broken:
        broken.setattr(multipart.versions, "settled", lost)
        assert kept.ask("POST", f"/lab/k?uploadId={upload}", parts).status == 503
    assert kept.ask("GET", "/lab/k").body == b"one"
    whole = kept.ask("POST", f"/lab/k?uploadId={upload}", parts)
    assert kept.history() == [("k", whole.version, "*"), ("k", first, "")]


def test_an_upload_is_completed_where_its_key_is_by_then(door: Door) -> None:
    upload = door.opened("k")
    parts = door.part("k", upload, b"part")
    door.put("k/below", b"x")
    assert door.ask("POST", f"/lab/k?uploadId={upload}", parts).status == 200
    assert door.ask("GET", "/lab/k").body == b"part"
    assert door.ask("GET", "/lab?list-type=2").texts("Key") == ["k", "k/below"]


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_a_bucket_that_cannot_be_asked_loses_no_version(
    kept: Door, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    version, look = kept.put("k", b"x"), kept.files.look

    async def cut(call: Call, asks: tuple[Look, ...]) -> tuple[Looked | Failure, ...]:
        answers = zip(asks, await look(call, asks), strict=True)
        return tuple(Failure(Kind.UNAVAILABLE) if len(ask.place.parts) == 1 else told for ask, told in answers)

    with monkeypatch.context() as broken:
        broken.setattr(kept.files, "look", cut)
        assert kept.ask(method, "/lab/k", b"y").status == 503
    assert kept.history() == [("k", version, "*")]


@pytest.mark.parametrize("after", ["a" + "/" * 300, "a%00b", "k" + "/x" * 400])
def test_a_listing_goes_on_behind_any_key(door: Door, after: str) -> None:
    for key in ("a", "b", "z"):
        door.put(key, b"x")
    told = door.ask("GET", f"/lab?list-type=2&start-after={after}")
    assert (told.status, told.texts("Key")) == (200, ["b", "z"] if after[0] == "a" else ["z"])
    assert door.ask("GET", f"/lab?list-type=2&prefix={after}").texts("Key") == []


def test_an_empty_copy_of_a_mark_is_a_mark(door: Door) -> None:
    door.put("from/", b"")
    assert door.ask("PUT", "/lab/to/", x_amz_copy_source="lab/from/").status == 200
    (there,) = asyncio.run(door.files.look(Call(dn=JOE), (Look(LogicalName(ROOT, ("lab", "to"))),)))
    assert isinstance(there, Looked)
    assert there.attributes.type == "collection"


def test_many_are_removed_while_the_master_of_the_a_hash_goes_away(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests without a request key then have an unknown outcome."""
    door.put("k", b"one")
    door.put("l", b"two")
    inner = door.files.apply

    async def apply(call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        return await inner(call, changes) if call.request_key else (Failure(Kind.NETWORK),) * len(changes)

    monkeypatch.setattr(door.files, "apply", apply)
    doomed = "<Object><Key>k</Key></Object><Object><Key>l</Key></Object>"
    told = door.ask("POST", "/lab?delete", f"<Delete>{doomed}</Delete>")
    assert (told.texts("Key"), told.texts("Code")) == (["k", "l"], [])


@pytest.mark.parametrize("shared", [True, False], ids=["by reference", "by its bytes"])
def test_a_copy_is_of_one_state_of_what_is_overwritten(
    door: Door, monkeypatch: pytest.MonkeyPatch, *, shared: bool
) -> None:
    door.ask("PUT", "/lab/from", b"old", x_amz_meta_of="old")
    inner, overwrites = door.files.apply, [1]

    async def apply(call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        if isinstance(changes[0], Clone):
            for _ in range(overwrites.pop() if overwrites else 0):
                await door._ask("PUT", "/lab/from", b"new", JOE, {"x-amz-meta-of": "new"})
            if not shared:
                return (Failure(Kind.NOT_SUPPORTED),)
        return await inner(call, changes)

    monkeypatch.setattr(door.files, "apply", apply)
    assert door.ask("PUT", "/lab/to", x_amz_copy_source="lab/from").status == 200
    made = door.ask("GET", "/lab/to")
    assert (made.body, made.headers["x-amz-meta-of"]) == (b"new", "new")
    only = {"x_amz_copy_source_if_match": made.headers["ETag"]}
    overwrites.append(1)
    assert door.ask("PUT", "/lab/to", x_amz_copy_source="lab/from", **only).status == 200
    door.put("from", b"newer")
    assert door.ask("PUT", "/lab/to", x_amz_copy_source="lab/from", **only).status == 412


def test_a_bucket_tells_the_location_that_its_maker_said(door: Door) -> None:
    where = "<CreateBucketConfiguration><LocationConstraint>eu-1</LocationConstraint></CreateBucketConfiguration>"
    assert door.ask("PUT", "/here", where).status == 200
    assert door.ask("GET", "/here?location").body.decode().count(">eu-1<") == 1
    assert door.ask("HEAD", "/here").headers["x-amz-bucket-region"] == "eu-1"
    assert door.ask("HEAD", "/lab").headers["x-amz-bucket-region"] == "us-east-1"


@pytest.mark.parametrize("times", [1, 3])
def test_a_version_that_moves_while_it_is_asked_for_is_found(
    kept: Door, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    first, look, left = kept.put("k", b"1"), kept.files.look, [times]
    kept.put("k", b"2")

    async def moving(call: Call, asks: tuple[Look, ...]) -> tuple[Looked | Failure, ...]:
        if left[0] and asks[0].place.parts[1:2] == ("※versions",):
            left[0] -= 1
            now = (await kept._ask("GET", "/lab/k", b"", JOE, {})).version
            if now != first:
                await kept._ask("DELETE", f"/lab/k?versionId={now}", b"", JOE, {})
            else:
                await kept._ask("PUT", "/lab/k", b"3", JOE, {})
        return await look(call, asks)

    monkeypatch.setattr(kept.files, "look", moving)
    got = kept.ask("GET", f"/lab/k?versionId={first}")
    assert (got.status, got.body, got.version) == (200, b"1", first)


@pytest.mark.parametrize("method", ["GET", "DELETE", "POST"])
def test_a_version_that_has_its_key_only_while_the_others_are_listed_is_found(
    kept: Door, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """The answer was that there is none, or that it is erased: its key was without it before and afterwards."""
    kept.put("k", b"0")
    upload = kept.opened("k")
    parts = kept.part("k", upload, b"part")
    first, listing = kept.ask("POST", f"/lab/k?uploadId={upload}", parts).version, kept.files.list
    marker = kept.ask("DELETE", "/lab/k").version

    async def listed(call: Call, asked: Listing) -> Listed:
        if asked.limit:
            return await listing(call, asked)
        monkeypatch.setattr(kept.files, "list", listing)
        await kept._ask("DELETE", f"/lab/k?versionId={marker}", b"", JOE, {})
        answers = await listing(call, asked)
        await kept._ask("DELETE", "/lab/k", b"", JOE, {})
        return answers

    monkeypatch.setattr(kept.files, "list", listed)
    if method == "POST":
        again = kept.ask("POST", f"/lab/k?uploadId={upload}", parts)
        assert (again.status, again.version) == (200, first)
        return
    got = kept.ask(method, f"/lab/k?versionId={first}")
    assert (got.status, got.version) == ({"GET": 200, "DELETE": 204}[method], first)
    assert (first in [version for _, version, _ in kept.history()]) is (method == "GET")


def test_what_is_overwritten_while_it_is_read_is_read_to_its_end(kept: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multipart, "PART_BYTES_MIN", 1)
    monkeypatch.setattr(bounds, "EXTENTS_PAGE", 1)
    upload, told = kept.opened("k"), ""
    for number, data in enumerate((b"one", b"two", b"three"), start=1):
        etag = kept.ask("PUT", f"/lab/k?partNumber={number}&uploadId={upload}", data).headers["ETag"]
        told += f"<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>"
    whole = f"<CompleteMultipartUpload>{told}</CompleteMultipartUpload>"
    assert kept.ask("POST", f"/lab/k?uploadId={upload}", whole).status == 200
    get, read = kept.plain.bytes.get, 0

    async def overwritten(*asked: Any) -> AsyncIterator[bytes]:
        nonlocal read
        read += 1
        if read == 2:
            await kept._ask("PUT", "/lab/k", b"new", JOE, {})
        async for piece in get(*asked):
            yield piece

    monkeypatch.setattr(kept.plain.bytes, "get", overwritten)
    assert kept.ask("GET", "/lab/k").body == b"onetwothree"
    assert kept.ask("GET", "/lab/k").body == b"new"


@pytest.mark.parametrize("refusal", [Kind.DENIED, Kind.LOCKED])
def test_a_change_that_is_refused_leaves_nothing(kept: Door, monkeypatch: pytest.MonkeyPatch, refusal: Kind) -> None:
    """Each left an entry of a user who may add and not remove, and its owner could no longer remove the bucket."""
    kept.put("k", b"his")
    kept.put("k", b"his again")
    for name in ("lab",), ("lab", "※versions"), ("lab", "k"):
        asyncio.run(kept.files.apply(Call(dn=JOE), (Set(LogicalName(ROOT, name), policy={EVE: "+read +addEntry"}),)))
    apply, before = kept.files.apply, kept.kept_names()

    async def refusing(call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        if isinstance(changes[0], Move):
            return (Failure(refusal, "/lab/k", "refused"),)
        return await apply(call, changes)

    monkeypatch.setattr(kept.files, "apply", refusing)
    assert kept.ask("DELETE", "/lab/k", who=EVE).status in (403, 409)
    assert kept.kept_names() == before
    assert kept.ask("PUT", "/lab/k", b"hers", who=EVE).status in (403, 409)
    assert kept.kept_names() == before
    assert kept.ask("GET", "/lab/k").body == b"his again"
