"""The effect of each parameter of a request to the S3 door on its answer."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from urllib.parse import quote, unquote

import pytest

from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ANONYMOUS, ROOT
from chelonia.core.names import LogicalName
from chelonia.core.ports.files import Change, Done, Failure, Move, Over, Set, Setting
from chelonia.hosting.doors.s3 import multipart
from tests.unit.hosting.doors.test_s3_bad_input import told
from tests.unit.hosting.doors.test_s3_races import Meanwhile, meanwhile
from tests.unit.hosting.doors.test_s3_versions import EVE, JOE, OFF, ON, Door, Heard, door

__all__ = ["door", "meanwhile"]
DATA = bytes(range(256)) * 4
PAST, FUTURE = "Thu, 01 Jan 2015 00:00:00 GMT", "Thu, 01 Jan 2099 00:00:00 GMT"
SHA256 = base64.b64encode(hashlib.sha256(DATA).digest()).decode()


@pytest.fixture
def filled(door: Door) -> Door:
    """The door with an object that has every kind of property."""
    more = {"x_amz_meta_a": "1", "x_amz_tagging": "t=1", "Cache_Control": "no-cache", "x_amz_checksum_sha256": SHA256}
    assert door.ask("PUT", "/lab/k", DATA, JOE, **more).status == 200
    change = Set(LogicalName(ROOT, ("lab", "k")), Setting(modified_ns=1_600_000_000_000_000_000))
    asyncio.run(door.files.apply(Call(dn=JOE), (change,)))
    return door


def keys(answer: Heard) -> list[str]:
    return answer.texts("Key") + answer.texts("Prefix")[1:]


def test_every_answer_has_the_id_of_its_request(filled: Door) -> None:
    for answer in (filled.ask("GET", "/lab/k"), filled.ask("GET", "/lab/none"), filled.ask("HEAD", "/lab/none")):
        assert (answer.headers["x-amz-request-id"], answer.headers["x-amz-id-2"]) == ("r", "r")
    assert filled.ask("GET", "/lab/none").texts("RequestId") == ["r"]


def test_the_owner_of_the_bucket_is_who_the_client_takes_for_him(filled: Door) -> None:
    for method, target in (("GET", "/lab/k"), ("PUT", "/lab/k"), ("GET", "/lab"), ("DELETE", "/lab/k")):
        assert told(filled.ask(method, target, x_amz_expected_bucket_owner=EVE)) == (403, "AccessDenied")
    assert filled.ask("GET", "/lab/k", x_amz_expected_bucket_owner=JOE).body == DATA


def test_several_ranges_come_as_they_were_asked_for(filled: Door) -> None:
    answer = filled.ask("GET", "/lab/k", Range="bytes=100-109, 0-4,-3")
    parts = re.findall(rb"Content-Range: bytes (\d+)-(\d+)/1024\r\n\r\n", answer.body, re.IGNORECASE)
    assert (answer.status, parts) == (206, [(b"100", b"109"), (b"0", b"4"), (b"1021", b"1023")])
    assert answer.headers["Content-Type"].startswith("multipart/byteranges")
    assert filled.ask("GET", "/lab/k", Range="bytes=1-2", If_Range='"other"').body == DATA


def test_what_the_answer_says_is_overridden_by_who_has_signed(filled: Door) -> None:
    target = "/lab/k?response-content-type=a/b&response-cache-control=private"
    answer = filled.ask("GET", target)
    assert (answer.headers["Content-Type"], answer.headers["Cache-Control"]) == ("a/b", "private")
    assert filled.ask("PUT", "/lab/k?acl", x_amz_acl="public-read").status == 200
    assert filled.ask("GET", "/lab/k", who=ANONYMOUS).body == DATA
    assert told(filled.ask("GET", target, who=ANONYMOUS)) == (400, "InvalidRequest")


def test_checksums_are_told_to_who_asks(filled: Door) -> None:
    field = "x-amz-checksum-sha256"
    assert filled.ask("HEAD", "/lab/k", x_amz_checksum_mode="ENABLED").headers[field] == SHA256
    assert field not in filled.ask("HEAD", "/lab/k").headers
    assert field not in filled.ask("GET", "/lab/k", Range="bytes=0-1", x_amz_checksum_mode="ENABLED").headers


@pytest.mark.parametrize(("fields", "status"), [
    ({"x_amz_copy_source_if_match": '"other"'}, 412), ({"x_amz_copy_source_if_unmodified_since": PAST}, 412),
    ({"x_amz_copy_source_if_modified_since": FUTURE}, 412), ({"x_amz_copy_source_if_none_match": "*"}, 412),
    ({"x_amz_copy_source_if_modified_since": PAST}, 200), ({"x_amz_copy_source_if_match": "*"}, 200),
])  # fmt: skip
def test_a_source_is_as_its_conditions_say(filled: Door, fields: dict[str, str], status: int) -> None:
    assert filled.ask("PUT", "/lab/copy", b"", JOE, x_amz_copy_source="lab/k", **fields).status == status
    upload = filled.opened("parts")
    target = f"/lab/parts?partNumber=1&uploadId={upload}"
    assert filled.ask("PUT", target, b"", JOE, x_amz_copy_source="lab/k", **fields).status == status


def test_a_copy_has_the_facts_of_its_source_or_of_its_own_request(filled: Door) -> None:
    own = {"x_amz_meta_b": "2", "x_amz_tagging": "u=2", "Cache_Control": "private"}
    for more, meta, tag, control in (
        ({}, "a", "t", "no-cache"), ({"x_amz_metadata_directive": "REPLACE"}, "b", "t", "private"),
        ({"x_amz_tagging_directive": "REPLACE"}, "a", "u", "no-cache"),
    ):  # fmt: skip
        assert filled.ask("PUT", "/lab/copy", b"", JOE, x_amz_copy_source="lab/k", **own, **more).status == 200
        head = filled.ask("HEAD", "/lab/copy").headers
        assert ([name for name in head if name.startswith("x-amz-meta-")], head["Cache-Control"]) == (
            [f"x-amz-meta-{meta}"], control
        )  # fmt: skip
        assert filled.ask("GET", "/lab/copy?tagging").texts("Key") == [tag]


def test_an_object_is_copied_onto_itself_with_something_new_alone(filled: Door) -> None:
    for more, status in (
        ({}, 400), ({"x_amz_storage_class": "STANDARD_IA"}, 200), ({"x_amz_checksum_algorithm": "SHA1"}, 200),
        ({"x_amz_metadata_directive": "REPLACE"}, 200),
    ):  # fmt: skip
        assert filled.ask("PUT", "/lab/k", b"", JOE, x_amz_copy_source="lab/k", **more).status == status
    assert "x-amz-checksum-sha1" in filled.ask("GET", "/lab/k", x_amz_checksum_mode="ENABLED").headers


def test_a_part_is_copied_of_a_range(filled: Door) -> None:
    upload = filled.opened("p")
    target = f"/lab/p?partNumber=1&uploadId={upload}"
    copied = filled.ask("PUT", target, x_amz_copy_source="lab/k", x_amz_copy_source_range="bytes=5-14")
    assert copied.texts("ETag") == [f'"{hashlib.md5(DATA[5:15]).hexdigest()}"']
    assert filled.ask("GET", f"/lab/p?uploadId={upload}").texts("Size") == ["10"]
    for span, code in (("bytes=5-1024", "InvalidRange"), ("5-14", "InvalidArgument"), ("bytes=5-", "InvalidArgument")):
        assert told(filled.ask("PUT", target, x_amz_copy_source="lab/k", x_amz_copy_source_range=span))[1] == code


def test_a_listing_begins_and_tells_as_it_is_asked(door: Door) -> None:
    for key in ("a", "b", "c/d", "c/e"):
        door.put(key, b"")
    assert keys(door.ask("GET", "/lab?list-type=2&start-after=a")) == ["b", "c/d", "c/e"]
    assert keys(door.ask("GET", "/lab?marker=b")) == ["c/d", "c/e"]
    assert keys(door.ask("GET", "/lab?list-type=2&delimiter=/&start-after=a")) == ["b", "c/"]
    assert [len(door.ask("GET", f"/lab?{query}").texts("ID")) for query in (
        "list-type=2", "list-type=2&fetch-owner=true", ""
    )] == [0, 4, 4]  # fmt: skip
    first = door.ask("GET", "/lab?list-type=2&max-keys=3")
    assert (len(keys(first)), first.texts("IsTruncated"), first.texts("KeyCount")) == (3, ["true"], ["3"])
    assert keys(door.ask("GET", f"/lab?list-type=2&continuation-token={first.texts('NextContinuationToken')[0]}")) == [
        "c/e"
    ]
    assert told(door.ask("GET", "/", who=ANONYMOUS)) == (403, "AccessDenied")


def test_a_bulk_deletion_tells_all_or_failures_alone_and_has_an_end(filled: Door) -> None:
    doomed = "<Object><Key>k</Key></Object>"
    quiet = filled.ask("POST", "/lab?delete", f"<Delete><Quiet>true</Quiet>{doomed}</Delete>")
    assert (quiet.status, quiet.texts("Key")) == (200, [])
    assert filled.ask("GET", "/lab/k").status == 404
    assert filled.ask("POST", "/lab?delete", f"<Delete>{doomed * 1000}</Delete>").status == 200
    assert told(filled.ask("POST", "/lab?delete", f"<Delete>{doomed * 1001}</Delete>")) == (400, "MalformedXML")


def test_a_key_is_removed_on_the_condition_of_its_etag(filled: Door) -> None:
    assert told(filled.ask("DELETE", "/lab/k", If_Match='"other"')) == (412, "PreconditionFailed")
    assert filled.ask("DELETE", "/lab/k", If_Match=f'"{hashlib.md5(DATA).hexdigest()}"').status == 204
    assert told(filled.ask("DELETE", "/lab/k", If_Match="*")) == (404, "NoSuchKey")


def test_a_version_is_removed_on_the_condition_of_its_etag(door: Door) -> None:
    assert door.ask("PUT", "/lab?versioning", ON).status == 200
    older, newer = ((each, door.put("k", each)) for each in (b"one", b"two"))
    for (data, version), other in ((older, newer[0]), (newer, older[0])):
        etag, wrong = (hashlib.md5(each).hexdigest() for each in (data, other))
        target = f"/lab/k?versionId={version}"
        assert told(door.ask("DELETE", target, If_Match=f'"{wrong}"')) == (412, "PreconditionFailed")
        listed = f"<Object><Key>k</Key><VersionId>{version}</VersionId><ETag>{wrong}</ETag></Object>"
        assert door.ask("POST", "/lab?delete", f"<Delete>{listed}</Delete>").texts("Code") == ["PreconditionFailed"]
        assert door.ask("GET", target).body == data
        assert door.ask("DELETE", target, If_Match=f'"{etag}"').status == 204
        assert told(door.ask("DELETE", target, If_Match=f'"{etag}"'))[0] == 404


def test_what_replaces_the_null_version_meanwhile_does_not_go_on_the_condition_of_the_other(
    door: Door, meanwhile: Meanwhile
) -> None:
    """It went for good: the condition had been checked of the version that it replaced."""
    assert door.ask("PUT", "/lab?versioning", ON).status == 200
    door.put("k", b"kept")
    assert door.ask("PUT", "/lab?versioning", OFF).status == 200
    etag = door.ask("PUT", "/lab/k", b"null").headers["ETag"]
    crossed = meanwhile(Move, ("PUT", "/lab/k", "newer"), over=Over.EXCHANGE)
    assert told(door.ask("DELETE", "/lab/k?versionId=null", If_Match=etag)) == (412, "PreconditionFailed")
    assert [each.status for each in crossed] == [200]
    assert door.ask("GET", "/lab/k").body == b"newer"


def test_a_directory_that_another_has_changed_meanwhile_is_not_marked_anew(door: Door, meanwhile: Meanwhile) -> None:
    """If-Match counted for a look at it, and for its making, but not where it was there."""
    assert door.ask("PUT", "/lab/d/").status == 200
    etag = door.ask("HEAD", "/lab/d/").headers["ETag"]
    meanwhile(Set, ("PUT", "/lab/d/"), x_amz_meta_by="another")
    assert door.ask("PUT", "/lab/d/", If_Match=etag, x_amz_meta_by="me").status == 412
    assert door.ask("HEAD", "/lab/d/").headers["x-amz-meta-by"] == "another"


def test_who_set_no_condition_and_always_loses_may_send_again(filled: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """He was told that a condition does not hold: no client tries again then."""
    tags = "<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>"
    etag, doomed = filled.ask("GET", "/lab/k").headers["ETag"], "<Object><Key>k</Key>{}</Object>"

    async def lost(call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        refused = any(isinstance(change, Set | Move) for change in changes)
        return (Failure(Kind.PRECONDITION, cause="its version is 7"),) if refused else await apply(call, changes)

    apply = filled.files.apply
    monkeypatch.setattr(filled.files, "apply", lost)
    for target, body in (("/lab/k?tagging", tags), ("/lab?tagging", tags), ("/lab?versioning", ON)):
        assert told(filled.ask("PUT", target, body)) == (503, "ServiceUnavailable"), target
    monkeypatch.setattr(filled.files, "apply", apply)
    assert filled.ask("PUT", "/lab?versioning", ON).status == 200
    monkeypatch.setattr(filled.files, "apply", lost)
    for method, body in (("PUT", b"new"), ("DELETE", b"")):
        assert told(filled.ask(method, "/lab/k", body)) == (503, "ServiceUnavailable"), method
        assert told(filled.ask(method, "/lab/k", body, If_Match=etag))[0] in (409, 412), method
    for condition, code in (("", "ServiceUnavailable"), (f"<ETag>{etag}</ETag>", "PreconditionFailed")):
        listed = f"<Delete>{doomed.format(condition)}</Delete>"
        assert filled.ask("POST", "/lab?delete", listed).texts("Code") == [code]


@pytest.mark.parametrize("value", ["", ","])
def test_a_condition_that_names_no_etag_is_no_leave_to_overwrite_or_remove(filled: Door, value: str) -> None:
    """Its client has lost the etag; no condition is not what it meant."""
    for method, target, name in (
        ("PUT", "/lab/k", "If_Match"), ("PUT", "/lab/k", "If_None_Match"), ("DELETE", "/lab/k", "If_Match"),
        ("PUT", "/lab/k2", "x_amz_copy_source_if_match"), ("PUT", "/lab/k2", "x_amz_copy_source_if_none_match"),
    ):  # fmt: skip
        more = {"x_amz_copy_source": "/lab/k"} if target == "/lab/k2" else {}
        answer = filled.ask(method, target, b"" if more else b"other", **more, **{name: value})
        assert told(answer) == (400, "InvalidRequest"), name
    doomed = "<Delete><Object><Key>k</Key><ETag></ETag></Object></Delete>"
    assert told(filled.ask("POST", "/lab?delete", doomed)) == (400, "MalformedXML")
    assert filled.ask("GET", "/lab/k").body == DATA
    assert filled.ask("GET", "/lab/k2").status == 404


@pytest.mark.parametrize("name", ["If_Match", "if_match"])
def test_a_read_is_conditional_however_its_fields_are_spelled(filled: Door, name: str) -> None:
    assert told(filled.ask("GET", "/lab/k", **{name: '"other"'})) == (412, "PreconditionFailed")


def test_all_parts_but_the_last_have_5_mib(door: Door) -> None:
    upload, etags = door.opened("p"), list[str]()
    for number in (1, 2):
        etags.append(door.ask("PUT", f"/lab/p?partNumber={number}&uploadId={upload}", b"small").headers["ETag"])
    listed = "".join(
        f"<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>" for number, etag in enumerate(etags, 1)
    )
    whole = f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>"
    assert told(door.ask("POST", f"/lab/p?uploadId={upload}", whole)) == (400, "EntityTooSmall")
    assert door.ask("GET", f"/lab/p?uploadId={upload}&max-parts=1").texts("PartNumber") == ["1"]
    assert door.ask("GET", f"/lab/p?uploadId={upload}&part-number-marker=1").texts("PartNumber") == ["2"]


def test_an_object_tells_of_its_parts_as_many_as_are_asked_for(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multipart, "PART_BYTES_MIN", 1)
    upload, listed = door.opened("p"), ""
    for number in (1, 2, 3):
        etag = door.ask("PUT", f"/lab/p?partNumber={number}&uploadId={upload}", b"x" * number).headers["ETag"]
        listed += f"<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>"
    whole = f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>"
    assert door.ask("POST", f"/lab/p?uploadId={upload}", whole).status == 200
    asked = {"x_amz_object_attributes": "ObjectParts", "x_amz_max_parts": "2"}
    first = door.ask("GET", "/lab/p?attributes", b"", JOE, **asked)
    assert (first.texts("Size"), first.texts("IsTruncated"), first.texts("PartsCount")) == (["1", "2"], ["true"], ["3"])
    rest = door.ask("GET", "/lab/p?attributes", b"", JOE, **asked, x_amz_part_number_marker="2")
    assert (rest.texts("Size"), rest.texts("IsTruncated")) == (["3"], ["false"])
    assert door.ask("GET", "/lab/p?partNumber=2").body == b"xx"


def test_who_is_busy_says_when_to_come_again(filled: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    async def busy(*_: object) -> None:
        raise CheloniaError(Kind.BUSY, cause="more to do than it can")

    monkeypatch.setattr(filled.files, "look", busy)
    answer = filled.ask("GET", "/lab/k")
    assert (told(answer), answer.headers["Retry-After"]) == ((503, "SlowDown"), "1")


def test_open_uploads_come_in_pages_by_prefix_and_delimiter(door: Door) -> None:
    opened = [(key, door.opened(quote(key))) for key in ("a", "a", "b/1", "b/2", "b//3", "c d", "z")]
    whole = sorted(opened, key=lambda pair: (pair[0].encode(), pair[1]))
    for size in (1, 2, 3):
        for delimiter, wanted in (("", whole), ("/", [*whole[:2], ("b/", ""), *whole[-2:]])):
            found, query, pages = list[tuple[str, str]](), "", 0
            while pages < 9:
                told = door.ask("GET", f"/lab?uploads&delimiter={delimiter}&max-uploads={size}{query}")
                found += zip(told.texts("Key"), told.texts("UploadId"), strict=True)
                found += [(prefix, "") for prefix in told.texts("Prefix")[1:]]
                marks = told.texts("NextKeyMarker") + told.texts("NextUploadIdMarker")
                pages += 1
                if told.texts("IsTruncated") == ["false"]:
                    assert marks == []
                    break
                query = f"&key-marker={quote(marks[0])}&upload-id-marker={marks[1]}"
                assert told.texts("MaxUploads") == [str(size)]
            assert (sorted(found), pages) == (sorted(wanted), -(-len(wanted) // size))
    told = door.ask("GET", f"/lab?uploads&prefix=c&encoding-type=url&key-marker=a&upload-id-marker={whole[1][1]}")
    names = "Key", "KeyMarker", "UploadIdMarker", "EncodingType", "Prefix"
    assert [told.texts(name) for name in names] == [["c%20d"], ["a"], [whole[1][1]], ["url"], ["c"]]
    assert told.texts("Initiated") != ["1970-01-01T00:00:00.000Z"]


@pytest.mark.parametrize("delimiter", ["%00", "/" * 300])
def test_a_listing_sums_up_by_what_no_name_holds(door: Door, delimiter: str) -> None:
    for key in ("a", f"b{delimiter}x", f"b{delimiter}y", "c/d"):
        door.put(key, b"x")
    told = door.ask("GET", f"/lab?list-type=2&encoding-type=url&delimiter={delimiter}")
    assert (told.status, told.texts("Key")) == (200, ["a", "c/d"])
    assert told.texts("Prefix") == ["", f"b{delimiter}"]


def test_open_uploads_of_keys_that_are_no_names_come_in_pages(door: Door) -> None:
    keys = sorted(("\x00", "a", "a", "a\x00", "a\x00", "a\x01\x01", "a\x01z", "a/b", "b", "\x02"))
    for key in keys:
        door.opened(quote(key, safe=""))
    found, query = list[str](), ""
    while len(found) <= len(keys):
        told = door.ask("GET", f"/lab?uploads&encoding-type=url&max-uploads=1{query}")
        found += map(unquote, told.texts("Key"))
        if told.texts("IsTruncated") == ["false"]:
            break
        (key,), (upload,) = told.texts("NextKeyMarker"), told.texts("NextUploadIdMarker")
        query = f"&key-marker={key}&upload-id-marker={upload}"
    assert found == keys
    for prefix in ("\x00", "a\x00", "a\x01", "a"):
        told = door.ask("GET", f"/lab?uploads&encoding-type=url&prefix={quote(prefix)}")
        assert list(map(unquote, told.texts("Key"))) == [key for key in keys if key.startswith(prefix)]


def test_a_version_to_go_on_behind_is_one_of_a_key(door: Door) -> None:
    assert told(door.ask("GET", "/lab?versions&version-id-marker=null")) == (400, "InvalidArgument")


def test_a_directory_that_is_a_copy_has_no_version_of_its_source(door: Door) -> None:
    """It told the version of the empty object that it is a copy of; and its own facts could not be replaced."""
    assert door.ask("PUT", "/lab?versioning", ON).status == 200
    door.put("empty", b"")
    assert door.ask("PUT", "/lab/d/", x_amz_copy_source="lab/empty").status == 200
    assert door.ask("HEAD", "/lab/d/").version == "null"
    anew = {"x_amz_metadata_directive": "REPLACE", "x_amz_meta_a": "1"}
    assert door.ask("PUT", "/lab/d/", x_amz_copy_source="lab/d/", **anew).status == 200
    assert door.ask("HEAD", "/lab/d/").headers["x-amz-meta-a"] == "1"
    assert [key for key, _, _ in door.history()] == ["d/", "empty"]
