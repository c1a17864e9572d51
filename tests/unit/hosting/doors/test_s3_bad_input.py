"""The S3 door's answers to requests that no honest client sends: an error with the reason, and no change."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
import zlib
from collections.abc import Callable
from urllib.parse import parse_qs, quote, urlsplit
from xml.etree import ElementTree

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chelonia.core.caller import Call
from chelonia.core.ids import ANONYMOUS, ROOT
from chelonia.core.metadata import TYPE_COLLECTION, TYPE_FILE, TYPE_MOUNTPOINT, TYPE_SPECIAL, TYPE_SYMLINK
from chelonia.core.names import LogicalName
from chelonia.core.ports.files import (
    Change,
    Content,
    Inline,
    Look,
    Looked,
    Make,
    Placed,
    Placing,
    Remove,
    Removing,
    Reserving,
    Set,
    Setting,
    Splice,
    Write,
)
from chelonia.hosting.doors.s3 import objects
from chelonia.wire.s3 import versions
from tests.unit.hosting.doors.test_s3_versions import EVE, JOE, ON, Door, Heard, door

__all__ = ["door"]
TWO = "<Part><PartNumber>{}</PartNumber><ETag>{}</ETag></Part><Part><PartNumber>{}</PartNumber><ETag>{}</ETag></Part>"


def told(answer: object) -> tuple[int, str]:
    """Status and code of a refusal."""
    status, body = answer.status, answer.body.decode()  # type: ignore[attr-defined]
    return status, (re.findall("<Code>([^<]*)</Code>", body) or [""])[0]


@pytest.mark.parametrize("bucket", ["tc", "Data", "a_b", "10.0.0.1", "※keys"])
def test_a_collection_whose_name_no_bucket_has_is_none(door: Door, bucket: str) -> None:
    asyncio.run(door.files.apply(Call(dn=JOE), (Make(LogicalName(ROOT, (bucket,)), TYPE_COLLECTION),)))
    place = quote(f"/{bucket}")
    for method, path in (
        ("PUT", "/k"),
        ("GET", "/k"),
        ("HEAD", ""),
        ("GET", ""),
        ("POST", "/k?uploads"),
        ("DELETE", "/k"),
    ):
        assert door.ask(method, f"{place}{path}", b"").status == 400, (method, path)
    assert told(door.ask("PUT", f"{place}/k", b"x")) == (400, "InvalidBucketName")


def completed(door: Door, key: str, upload: str, parts: str) -> tuple[int, str]:
    body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>"
    return told(door.ask("POST", f"/lab/{key}?uploadId={upload}", body))


@pytest.mark.parametrize("number", ["0", "-1", "10001", "999999999999", "1.0", "%31%00", "", "%D9%A1"])
def test_a_part_has_a_number_from_1_to_10000(door: Door, number: str) -> None:
    upload = door.opened("k")
    assert told(door.ask("PUT", f"/lab/k?partNumber={number}&uploadId={upload}", b"x")) == (400, "InvalidArgument")
    assert door.ask("GET", f"/lab/k?uploadId={upload}").texts("PartNumber") == []


def test_parts_come_in_order_each_once_and_are_those_that_arrived(door: Door) -> None:
    upload = door.opened("k")
    one, two = (
        door.ask("PUT", f"/lab/k?partNumber={n}&uploadId={upload}", bytes([n]) * 5_242_880).headers["ETag"]
        for n in (1, 2)
    )
    refusals = {
        TWO.format(2, two, 1, one): (400, "InvalidPartOrder"),
        TWO.format(1, one, 1, one): (400, "InvalidPartOrder"),
        TWO.format(1, two, 2, one): (400, "InvalidPart"),
        TWO.format(1, one, 3, two): (400, "InvalidPart"),
        TWO.format(1, one, 10_001, two): (400, "InvalidPart"),
        TWO.format(0, one, 1, one): (400, "InvalidPart"),
        "<Part><PartNumber>1</PartNumber></Part>": (400, "MalformedXML"),
        "": (400, "MalformedXML"),
    }
    for parts, expected in refusals.items():
        assert completed(door, "k", upload, parts) == expected, parts
    assert door.ask("GET", "/lab/k").status == 404
    assert completed(door, "k", upload, TWO.format(1, one, 2, two)) == (200, "")


def test_an_upload_is_of_one_key(door: Door) -> None:
    upload = door.opened("k")
    etag = door.ask("PUT", f"/lab/k?partNumber=1&uploadId={upload}", b"x").headers["ETag"]
    part = f"<Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part>"
    for key, of in (("other", upload), ("k", f"k{upload}"), ("k", "../x"), ("k", upload.upper() + "0"), ("k", "v")):
        assert told(door.ask("PUT", f"/lab/{key}?partNumber=1&uploadId={of}", b"y")) == (404, "NoSuchUpload"), of
        assert told(door.ask("GET", f"/lab/{key}?uploadId={of}")) == (404, "NoSuchUpload"), of
        assert completed(door, key, of, part) == (404, "NoSuchUpload"), of
        assert told(door.ask("DELETE", f"/lab/{key}?uploadId={of}")) == (404, "NoSuchUpload"), of
    assert completed(door, "k", upload, part) == (200, "")


@pytest.mark.parametrize(
    ("key", "status"),
    [
        ("a" * 1024, 200), ("a" * 1025, 400), ("%C3%A9" * 512, 200), ("%C3%A9" * 513, 400), ("/" * 1024, 200),
        ("a/" * 512, 200), ("%00", 200), ("%7F%01", 200), ("..", 200), ("%FF", 400), ("%ED%A0%80", 400),
        ("a%F4%90%80%80", 400), ("%E2%80%BBversions/x", 200), ("%E2%80%BBkeys", 200),
    ],
)  # fmt: skip
def test_keys_at_every_limit_come_back_or_are_refused(door: Door, key: str, status: int) -> None:
    answer = door.ask("PUT", f"/lab/{key}", b"bytes")
    assert answer.status == status, answer
    if status == 200:
        assert door.ask("GET", f"/lab/{key}").body == b"bytes"
        assert len(door.ask("GET", "/lab?list-type=2&encoding-type=url").texts("Key")) == 1
        assert door.ask("DELETE", f"/lab/{key}").status == 204
    assert door.ask("GET", "/lab?list-type=2&encoding-type=url").texts("Key") == []
    assert door.ask("DELETE", "/lab").status == 204, "nothing implied has stayed"


NONSENSE: dict[str, Callable[[Door], object]] = {
    "a query of many fields": lambda door: door.ask("GET", "/lab?" + "&".join(f"a{n}=" for n in range(300))),
    "a number of keys that is none": lambda door: door.ask("GET", "/lab?max-keys=-1"),
    "a token of somebody else": lambda door: door.ask("GET", "/lab?list-type=2&continuation-token=%FF%FE"),
    "tags without end": lambda door: door.ask(
        "PUT", "/lab/k", b"x", x_amz_tagging="&".join(f"a{n}=b" for n in range(99))
    ),
    "user metadata without end": lambda door: door.ask("PUT", "/lab/k", b"x", x_amz_meta_a="x" * 3000),
    "a length that is not so": lambda door: door.ask("PUT", "/lab/k", b"x", x_amz_content_sha256="0" * 64),
    "a coding that is none": lambda door: door.ask("PUT", "/lab/k", b"x", x_amz_content_sha256="STREAMING-X"),
    "chunks without a signature": lambda door: door.ask(
        "PUT", "/lab/k", b"x", x_amz_content_sha256="STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
    ),
    "a checksum that is none": lambda door: door.ask("PUT", "/lab/k", b"x", x_amz_checksum_crc32="nonsense"),
    "an MD5 that is not so": lambda door: door.ask("PUT", "/lab/k", b"x", Content_MD5="1B2M2Y8AsgTpgAmY7PhCfg=="),
    "an entity": lambda door: door.ask("POST", "/lab?delete", '<!DOCTYPE a [<!ENTITY b "c">]><Delete>&b;</Delete>'),
    "a deletion of 1001": lambda door: door.ask(
        "POST", "/lab?delete", f"<Delete>{'<Object><Key>k</Key></Object>' * 1001}</Delete>"
    ),
    "a version without a name": lambda door: door.ask("GET", "/lab/k?versionId="),
    "a version that no header field can tell": lambda door: door.ask("DELETE", "/lab/k?versionId=a%0D%0Ab"),
    "an upload that is no text": lambda door: door.ask(
        "POST",
        "/lab/k?uploadId=%80",
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>x</ETag></Part></CompleteMultipartUpload>",
    ),
    "tags that are no text": lambda door: door.ask("PUT", "/lab/k", b"x", x_amz_tagging="a=\udcff"),
}


@pytest.mark.parametrize("what", NONSENSE)
def test_nonsense_is_refused_and_changes_nothing(door: Door, what: str) -> None:
    answer = NONSENSE[what](door)
    status, code = told(answer)
    assert 400 <= status < 500, answer
    assert code
    assert door.ask("GET", "/lab?list-type=2").texts("Key") == []
    assert door.ask("DELETE", "/lab").status == 204


ODD = st.text(st.sampled_from("/?&=%#;+ .:a\\\x00\x7fé※"), max_size=30)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(["GET", "PUT", "POST", "DELETE", "HEAD", "OPTIONS", "BREW"]), ODD, ODD, ODD)
def test_whatever_is_asked_is_answered(door: Door, method: str, path: str, query: str, value: str) -> None:
    """It never answers with an internal error, nor about another bucket than the named one."""
    fields = {"Range": value, "If_Match": value, "x_amz_copy_source": value, "x_amz_acl": value[:10]}
    target = f"/nowhere/{path}?{query}".encode("utf-8", "replace").decode("latin-1").replace("\x00", "%00")
    answer = door.ask(method, target, b"body", JOE, **{k: v.encode().decode("latin-1") for k, v in fields.items()})
    assert 200 <= answer.status < 502, answer
    assert answer.status != 500, answer
    assert door.ask("GET", "/").texts("Name") == ["lab"]


def test_who_has_not_signed_and_may_not_write_is_told_before_his_body_is_wanted(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def placed(*_: object) -> None:
        raise AssertionError("the body was taken")

    monkeypatch.setattr(objects, "for_write", placed)
    assert told(door.ask("PUT", "/lab/k", b"bytes", who=ANONYMOUS)) == (403, "AccessDenied")


def test_what_users_say_of_an_object_is_no_header_field_of_their_own_and_runs_nowhere(door: Door) -> None:
    door.put("k.html", b"<script>")
    answer = door.ask("GET", "/lab/k.html?response-content-type=text/html")
    assert (answer.headers["Content-Type"], answer.headers["X-Content-Type-Options"]) == ("text/html", "nosniff")
    assert answer.headers["Content-Security-Policy"] == "sandbox"
    for text in ("a%0d%0aSet-Cookie:%20b", "%00", "%ff"):
        assert told(door.ask("GET", f"/lab/k.html?response-content-type={text}")) == (400, "InvalidArgument")
    door.write_user("k.html", '{"headers":{"Set-Cookie":"a=b","Content-Type":"a"},"version":"x y"}')
    answer = door.ask("GET", "/lab/k.html")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "binary/octet-stream")
    assert "Set-Cookie" not in answer.headers


PROMISES = [
    ("x_amz_server_side_encryption", "AES256"),
    ("x_amz_server_side_encryption", "aws:kms"),
    ("x_amz_server_side_encryption_customer_algorithm", "AES256"),
    ("x_amz_copy_source_server_side_encryption_customer_algorithm", "AES256"),
    ("x_amz_object_lock_mode", "COMPLIANCE"),
    ("x_amz_object_lock_legal_hold", "ON"),
]


@pytest.mark.parametrize(("field", "value"), PROMISES)
def test_what_asks_to_be_encrypted_or_locked_is_not_stored_without(door: Door, field: str, value: str) -> None:
    for method, target in (("PUT", "/lab/k"), ("POST", "/lab/k?uploads"), ("GET", "/lab/k")):
        assert told(door.ask(method, target, b"", **{field: value})) == (501, "NotImplemented"), target
    assert door.ask("GET", "/lab/k").status == 404
    assert door.ask("GET", "/lab?uploads").texts("Key") == []


def test_a_bucket_with_locks_is_not_made_without(door: Door) -> None:
    assert told(door.ask("PUT", "/locked", x_amz_bucket_object_lock_enabled="true")) == (501, "NotImplemented")
    assert door.ask("HEAD", "/locked").status == 404
    assert door.ask("PUT", "/lab/k", b"x", x_amz_object_lock_legal_hold="OFF").status == 200
    assert door.ask("PUT", "/lab/k", b"x", x_amz_server_side_encryption_bucket_key_enabled="false").status == 200


UNKNOWN = [
    ("PUT", "/lab/k?renameObject"), ("PUT", "/lab/k?annotation&annotationName=n"), ("GET", "/lab/k?annotation"),
    ("DELETE", "/lab/k?annotation&annotationName=n"), ("DELETE", "/lab/k?notYetKnown"), ("GET", "/lab?session"),
    ("PUT", "/lab?abac"), ("GET", "/lab?abac"), ("PUT", "/lab?metadataJournalTable"), ("DELETE", "/lab?metadataTable"),
    ("DELETE", "/empty?metadataConfiguration"), ("POST", "/lab?metadataConfiguration"), ("PUT", "/new?notYetKnown"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "target"), UNKNOWN)
def test_what_is_asked_of_a_part_that_is_not_offered_is_not_done_to_the_whole(
    door: Door, method: str, target: str
) -> None:
    """A deletion of an object's annotation deleted the object; a rename of one left it empty."""
    door.put("k", b"bytes")
    door.ask("PUT", "/empty")
    assert told(door.ask(method, target, b"" if method == "POST" else b"note")) == (501, "NotImplemented")
    assert door.ask("GET", "/lab/k").body == b"bytes"
    assert door.ask("GET", "/").texts("Name") == ["empty", "lab"]


def test_a_condition_that_is_not_looked_at_is_refused(door: Door) -> None:
    door.put("k", b"bytes")
    for field in ("x_amz_if_match_size", "x_amz_if_match_last_modified_time"):
        assert told(door.ask("DELETE", "/lab/k", **{field: "5"})) == (501, "NotImplemented")
    assert told(door.ask("PUT", "/lab/k", b"more", x_amz_write_offset_bytes="0")) == (501, "NotImplemented")
    for condition in ("<Size>4</Size>", "<LastModifiedTime>Sat, 01 Jan 2022 00:00:00 GMT</LastModifiedTime>"):
        body = f"<Delete><Object><Key>k</Key>{condition}</Object></Delete>"
        assert told(door.ask("POST", "/lab?delete", body)) == (501, "NotImplemented")
    for owner, expected in ((EVE, (403, "AccessDenied")), (JOE, (200, ""))):
        fields = {"x_amz_copy_source": "/lab/k", "x_amz_source_expected_bucket_owner": owner}
        assert told(door.ask("PUT", "/lab/copy", **fields)) == expected
        assert told(door.ask("PUT", f"/lab/p?partNumber=1&uploadId={door.opened('p')}", **fields)) == expected
    assert door.ask("GET", "/lab/k").body == b"bytes"


@pytest.mark.parametrize("name", ["sha512", "md5", "xxhash64"])
def test_a_checksum_that_is_not_measured_is_refused(door: Door, name: str) -> None:
    assert told(door.ask("PUT", "/lab/k", b"x", **{f"x_amz_checksum_{name}": "AAAA"})) == (400, "InvalidRequest")
    assert door.ask("GET", "/lab/k").status == 404


def test_a_copy_has_the_checksum_that_is_asked_for(door: Door) -> None:
    """The request was ignored: the copy had its source's checksum, or none."""
    sums = {name: base64.b64encode(digest(b"bytes").digest()).decode() for name, digest in
            (("sha1", hashlib.sha1), ("sha256", hashlib.sha256))}  # fmt: skip
    assert door.ask("PUT", "/lab/k", b"bytes", x_amz_checksum_sha1=sums["sha1"]).status == 200
    for name, algorithm in (("plain", ""), ("same", "SHA1"), ("other", "SHA256")):
        asked = {"x_amz_checksum_algorithm": algorithm} if algorithm else {}
        copied = door.ask("PUT", f"/lab/{name}", x_amz_copy_source="lab/k", **asked)
        kind = algorithm or "SHA1"
        assert (copied.texts(f"Checksum{kind}"), copied.texts("ChecksumType")) == (
            [sums[kind.lower()]],
            ["FULL_OBJECT"],
        )
        got = door.ask("GET", f"/lab/{name}", x_amz_checksum_mode="ENABLED")
        assert (got.body, got.headers[f"x-amz-checksum-{kind.lower()}"]) == (b"bytes", sums[kind.lower()])
    (upload,) = door.ask("POST", "/lab/parts?uploads", x_amz_checksum_algorithm="SHA256").texts("UploadId")
    assert door.ask("POST", f"/lab/parts?uploadId={upload}", door.part("parts", upload, b"bytes")).status == 200
    copied = door.ask("PUT", "/lab/whole", x_amz_copy_source="lab/parts", x_amz_checksum_algorithm="SHA256")
    assert copied.texts("ChecksumSHA256") == [sums["sha256"]], "not that of its parts' checksums"
    unknown = door.ask("PUT", "/lab/x", x_amz_copy_source="lab/k", x_amz_checksum_algorithm="MD4")
    assert told(unknown) == (400, "InvalidRequest")
    door.write_user("k", "")
    assert door.ask("PUT", "/lab/k", x_amz_copy_source="lab/k", x_amz_checksum_algorithm="sha256",
                    x_amz_metadata_directive="REPLACE").texts("ChecksumSHA256") == [sums["sha256"]]  # fmt: skip


def test_a_hole_of_any_size_is_read_in_part_and_copied_by_reference(door: Door) -> None:
    """One command makes it at another door. A copy of it with another checksum read it without end."""
    size = 2**63 - 1
    door.files.change(Splice(LogicalName(ROOT, ("lab", "hole")), Content(size=size)), Call(JOE))
    assert door.ask("PUT", "/lab/copy", x_amz_copy_source="lab/hole").status == 200
    for key in ("hole", "copy"):
        got = door.ask("GET", f"/lab/{key}", Range=f"bytes={size - 3}-")
        assert (got.status, got.body, got.headers["Content-Range"][-19:]) == (206, bytes(3), str(size))
        assert door.ask("GET", f"/lab/{key}", Range=f"bytes={size}-").status == 416
    summed = door.ask("PUT", "/lab/summed", x_amz_copy_source="lab/hole", x_amz_checksum_algorithm="SHA256")
    assert told(summed) == (400, "InvalidRequest")
    upload = door.opened("parts")
    part = door.ask("PUT", f"/lab/parts?partNumber=1&uploadId={upload}", x_amz_copy_source="lab/hole")
    assert told(part)[0] == 507
    assert door.ask("GET", "/lab?list-type=2").texts("Key") == ["copy", "hole"]


def test_a_bucket_goes_though_writes_that_were_refused_have_left_collections_for_their_keys(door: Door) -> None:
    """They are invisible, and kept the bucket from going: a client that deletes all versions of a key at once met
    this."""
    call, lab = Call(dn=JOE), LogicalName(ROOT, ("lab",))
    for name in ("d/e/f", "d/g"):
        place = LogicalName(ROOT, ("lab", *name.split("/"), "k"))
        asyncio.run(door.files.apply(call, (Make(place, TYPE_COLLECTION, parents=True), Remove(place, Removing.NAME))))
    assert door.ask("GET", "/lab").texts("Key") == []
    door.put("other", b"")
    full = door.ask("DELETE", "/lab")
    assert told(full) == (409, "BucketNotEmpty")
    assert "older versions and delete markers" in full.texts("Message")[0], (
        "no list of objects shows what is in the way"
    )
    assert door.ask("DELETE", "/lab/other").status == 204
    asyncio.run(door.files.apply(call, (Make(lab.child("own"), TYPE_COLLECTION),)))
    assert told(door.ask("DELETE", "/lab")) == (409, "BucketNotEmpty")
    assert door.ask("DELETE", "/lab/own/").status == 204
    assert door.ask("DELETE", "/lab").status == 204


def test_a_bucket_is_made_with_its_tags_or_not_at_all(door: Door) -> None:
    form = "<CreateBucketConfiguration>{}</CreateBucketConfiguration>"
    tags = "<Tags><Tag><Key>a</Key><Value>1</Value></Tag><Tag><Key>b</Key><Value/></Tag></Tags>"
    assert door.ask("PUT", "/new", form.format(tags)).status == 200
    assert door.ask("GET", "/new?tagging").texts("Key") == ["a", "b"]
    directory = "<Location><Name>z</Name><Type>AvailabilityZone</Type></Location>"
    assert told(door.ask("PUT", "/dir", form.format(directory))) == (501, "NotImplemented")
    assert door.ask("HEAD", "/dir").status == 404


def posted(door: Door, fields: dict[str, str]) -> Heard:
    """Return the answer to a form with a file of one byte."""
    form = "".join(
        f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in (*fields.items(), ("file", "x"))
    )
    return door.ask("POST", "/lab", f"{form}--b--\r\n", Content_Type="multipart/form-data; boundary=b")


def test_a_form_that_asks_to_be_encrypted_is_refused(door: Door) -> None:
    answer = posted(door, {"key": "k", "x-amz-server-side-encryption": "AES256"})
    assert told(answer) == (501, "NotImplemented")
    assert door.ask("GET", "/lab/k").status == 404


def test_a_form_goes_on_to_a_url_or_says_that_it_is_stored(door: Door) -> None:
    for onward, status in (("http://[", 303), ("https://page/?a=1#done", 303), ("javascript:a", 204), ("//[", 204)):
        fields = {"key": "k", "success_action_redirect": onward}
        answer = posted(door, fields)
        assert answer.status == status
        if "#" in onward:
            url = urlsplit(answer.headers["Location"])
            assert (parse_qs(url.query)["key"], url.fragment) == (["k"], "done")


def test_who_sends_a_form_is_told_the_whole_url_of_its_object(door: Door) -> None:
    """Pages of other hosts keep it; a path would lead to those hosts."""
    fields = {"key": "a b", "success_action_status": "201"}
    answer = posted(door, fields)
    assert (answer.status, answer.headers["Location"]) == (201, "https://se:1/lab/a%20b")
    told = ElementTree.fromstring(answer.body)  # of no namespace, as Amazon's answer to a form
    assert (told.findtext("Location"), told.findtext("Key")) == ("https://se:1/lab/a%20b", "a b")


def test_who_sends_a_form_is_told_what_an_upload_is(door: Door) -> None:
    """minio-go compares the checksum; a version is how a page finds what it has just stored."""
    assert door.ask("PUT", "/lab?versioning", ON).status == 200
    sum_of_x = base64.b64encode(zlib.crc32(b"x").to_bytes(4, "big")).decode()
    for more in ({}, {"success_action_status": "200"}, {"success_action_redirect": "https://page/"}):
        answer = posted(door, {"key": "k", "x-amz-checksum-crc32": sum_of_x, **more})
        assert answer.headers["x-amz-checksum-crc32"] == sum_of_x
        assert answer.version == door.ask("HEAD", "/lab/k").version != ""


def test_a_key_that_looks_like_a_url_is_a_key(door: Door) -> None:
    door.put("http://h/lab/other", b"x")
    assert door.ask("GET", "/lab/http://h/lab/other").body == b"x"
    assert door.ask("GET", "/lab/other").status == 404
    assert door.ask("GET", "http://se:1/lab/http://h/lab/other").body == b"x"


def test_who_has_not_signed_sends_no_large_xml(door: Door) -> None:
    door.put("k", b"x")
    keys = "".join(f"<Object><Key>{n:100}</Key></Object>" for n in range(1000))
    assert door.ask("POST", "/lab?delete", f"<Delete>{keys}</Delete>").status == 200
    for target in ("/lab?delete", "/lab/k?uploadId=x"):
        answer = told(door.ask("POST", target, f"<Delete>{keys}</Delete>", who=ANONYMOUS))
        assert answer == (400, "EntityTooLarge")


def test_of_what_stands_twice_the_first_counts(door: Door) -> None:
    door.put("k", b"x")
    door.ask("POST", "/lab?delete", "<Delete><Object><Key>k</Key><Key>other</Key></Object></Delete>")
    assert door.ask("GET", "/lab/k").status == 404


def test_a_body_whose_checksum_was_announced_and_did_not_come_is_not_stored(door: Door) -> None:
    fields = {"x_amz_content_sha256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER", "x_amz_decoded_content_length": "1"}
    for trailing, expected in ((b"", (400, "InvalidRequest")), (b"x-amz-checksum-crc32:jNwWgw==\r\n", (200, ""))):
        body = b"1\r\nx\r\n0\r\n" + trailing + b"\r\n"
        answer = door.ask("PUT", "/lab/k", body, x_amz_trailer="x-amz-checksum-crc32", **fields)
        assert told(answer) == expected
        assert (door.ask("GET", "/lab/k").status == 200) is (expected[0] == 200)


ALIEN = [
    Make(LogicalName(ROOT, ("lab", "d", "k")), TYPE_SYMLINK, target="run5", parents=True),
    Make(LogicalName(ROOT, ("lab", "d", "k")), TYPE_MOUNTPOINT, target="https://elsewhere/", parents=True),
    Make(LogicalName(ROOT, ("lab", "d", "k")), TYPE_SPECIAL, Setting(mode=0o10644), parents=True),
]


@pytest.mark.parametrize("change", ALIEN)
@pytest.mark.parametrize("rights", ["", "+removeEntry"])
def test_what_is_no_object_is_not_removed_as_one(door: Door, change: Make, rights: str) -> None:
    """A symlink of a mount went with the object that was kept apart for its sake."""
    who = EVE if rights else JOE
    door.files.change(change, Call(dn=JOE))
    for name in ("lab",), ("lab", "d"):
        door.files.change(Set(LogicalName(ROOT, name), policy={EVE: rights}), Call(dn=JOE))
    one = "<Delete><Object><Key>d/k</Key></Object></Delete>"
    for method, target, body in (("DELETE", "/lab/d/k", ""), ("POST", "/lab?delete", one)):
        assert door.ask("PUT", "/lab/d/k", b"apart").status == 200
        assert door.ask("GET", "/lab/d/k").body == b"apart"
        answer = door.ask(method, target, body, who=who)
        assert (answer.status in (200, 204), answer.texts("Error")) == (True, [])
        assert door.ask("GET", "/lab/d/k").status == 404
        (there,) = asyncio.run(door.files.look(Call(dn=JOE), (Look(change.place),)))
        assert isinstance(there, Looked)
        assert there.attributes.type == change.type
        assert door.ask(method, target, body, who=who).status == answer.status, "it is gone already"


@pytest.mark.parametrize("kind", [TYPE_SYMLINK, TYPE_FILE, TYPE_SPECIAL])
def test_what_is_no_collection_is_no_bucket(door: Door, kind: str) -> None:
    """Objects in it were said to be missing, or the request to be wrong."""
    place = LogicalName(ROOT, ("taken",))
    change: Change = Make(place, kind, target="lab" if kind == TYPE_SYMLINK else "")
    change = Write(place, inline=Inline(b"", 2)) if kind == TYPE_FILE else change
    door.files.change(change, Call(dn=JOE))
    for method, path in (
        ("GET", "/k"),
        ("PUT", "/k"),
        ("PUT", "/a//k"),
        ("DELETE", "/k"),
        ("POST", "/k?uploads"),
        ("GET", ""),
        ("DELETE", ""),
        ("GET", "/k?tagging"),
    ):
        answer = told(door.ask(method, f"/taken{path}", b"x" if method == "PUT" else b""))
        assert answer == (404, "NoSuchBucket"), (method, path)
    assert told(door.ask("PUT", "/taken")) == (409, "BucketAlreadyExists")
    (there,) = asyncio.run(door.files.look(Call(dn=JOE), (Look(place),)))
    assert isinstance(there, Looked)


@pytest.mark.parametrize("target", ["/lab/k", "/lab/k/below", "/lab/k/e/below", "/lab/k/", "/lab/k?uploads"])
@pytest.mark.parametrize("versioned", [False, True])
def test_a_name_that_an_unfinished_upload_holds_is_said_to_be_held(
    door: Door, monkeypatch: pytest.MonkeyPatch, target: str, *, versioned: bool
) -> None:
    """Below it the Bartender tried to make the collection for ever; at it a condition that nobody had made failed."""
    assert not versioned or door.ask("PUT", "/lab?versioning", ON).status == 200
    door.files.change(Set(LogicalName(ROOT, ("lab",)), policy={EVE: "+addEntry"}), Call(dn=JOE))
    held = Placing(LogicalName(ROOT, ("lab", "k")), 5, reserving=Reserving())
    (placed,) = asyncio.run(door.files.place(Call(dn=EVE), (held,)))
    assert isinstance(placed, Placed)
    librarian, tried = door.files.stage.bartender.files._ports.librarian, list[object]()
    make = librarian.make_entry

    async def again(*asked: object) -> object:
        tried.append(asked)
        assert len(tried) < 200, "it tries for ever"
        return await make(*asked)

    monkeypatch.setattr(librarian, "make_entry", again)
    if target.endswith("uploads"):
        upload = door.opened("k")
        answer = door.ask("POST", f"/lab/k?uploadId={upload}", door.part("k", upload, b"x"))
    else:
        answer = door.ask("PUT", target, b"" if target.endswith("/") else b"x")
    assert told(answer) == (409, "OperationAborted")
    assert b"an upload that is not complete holds it" in answer.body
    assert (door.ask("GET", "/lab?list-type=2").texts("Key"), door.history()) == ([], [])


@pytest.mark.parametrize("target", ["a\r\nSet-Cookie: b", "é", "a b", "\ud7ff" * 400])
def test_a_marker_that_another_door_has_made_puts_nothing_into_an_answer(door: Door, target: str) -> None:
    assert door.ask("PUT", "/lab?versioning", ON).status == 200
    door.put("k", b"x")
    marker = door.ask("DELETE", "/lab/k").version
    name = f"{versions.begins('k')} {'0' * 24}"
    made = Make(LogicalName(ROOT, ("lab", versions.COLLECTION, name)), TYPE_SYMLINK, target=target)
    door.files.change(made, Call(dn=JOE))
    answer = door.ask("GET", "/lab/k")
    assert (answer.status, answer.version) == (404, marker)
    assert [version for _, version, _ in door.history()][:1] == [marker]
    assert door.ask("GET", f"/lab/k?versionId={marker}").status == 405
