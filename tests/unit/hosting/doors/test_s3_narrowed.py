"""The S3 door and boto3 with keys narrowed to some rights of their owner."""

from __future__ import annotations

import asyncio
import contextlib
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from chelonia.core.caller import Call
from chelonia.core.contents.parts import UploadPage
from chelonia.core.ids import ROOT, Dn, Ms
from chelonia.core.metadata import TYPE_COLLECTION
from chelonia.core.names import LogicalName
from chelonia.core.ports.access_keys import AccessKey, IssuedKey
from chelonia.core.ports.files import Make, Uploads
from chelonia.core.rights.scopes import ADDING, CHANGING, READING, Scope
from chelonia.hosting.doors.s3.door import S3Door
from chelonia.hosting.doors.s3.parts import S3Parts
from chelonia.hosting.metrics import Metrics
from chelonia.hosting.net.clock import SystemClock
from tests.support.cluster import MemoryCluster
from tests.support.door_parts import door_parts
from tests.unit.hosting.doors.test_plain_door import MemoryBytes
from tests.unit.hosting.listening import plain

JOE = Dn("/CN=joe")
SCOPES = {
    "ALL": (),
    "READ": (Scope(READING),),
    "LAB": (Scope((*READING, *CHANGING), ("lab",)),),
    "ADD": (Scope((*READING, *ADDING), ("lab",)),),
    "RUN": (Scope((*READING, *CHANGING), ("lab", "run")),),
    "ADDS": (Scope(ADDING, ("lab", "run")),),
    "FILE": (Scope(READING, ("lab", "run", "a")),),
    "BOTH": (Scope(READING, ("own", "a")), Scope(READING, ("lab", "run")), Scope(READING, ("lab", "a"))),
}
DATA = b"some bytes"


class Keys:
    async def find(self, key_id: str) -> IssuedKey | None:
        return IssuedKey(AccessKey(key_id, JOE, Ms(0), scopes=SCOPES[key_id]), "secret")


@contextlib.asynccontextmanager
async def clients() -> AsyncIterator[Callable[[str], Any]]:
    """Clients by the rights of their key, of a door with the buckets `lab` and `own`."""
    files = MemoryCluster(JOE)
    for name in ("lab", "own"):
        await files.apply(Call(dn=JOE), (Make(LogicalName(ROOT, (name,)), TYPE_COLLECTION),))
    parts = door_parts(files, MemoryBytes(files), Dn("/CN=front"), 2)
    door = S3Door(S3Parts(parts, Keys(), SystemClock(), LogicalName(ROOT, ())), Metrics())
    async with plain(door.serve) as server:
        yield lambda key: boto3.client(
            "s3", endpoint_url=f"http://127.0.0.1:{server.port}", region_name="us-east-1", aws_access_key_id=key,
            aws_secret_access_key="secret",
            config=Config(s3={"addressing_style": "path"}, signature_version="s3v4", retries={"max_attempts": 0}),
        )  # fmt: skip


def denied(call: Callable[..., Any], **asked: Any) -> bool:
    """Whether it is refused for lack of rights."""
    try:
        call(**asked)
    except ClientError as error:
        return bool(error.response["ResponseMetadata"]["HTTPStatusCode"] == 403)
    return False


def fetched(url: str, body: bytes | None = None) -> int:
    """The status of a GET, or of a PUT of a body, by a signed URL."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, method="PUT" if body else "GET")) as answer:
            assert answer.read() == DATA
            return 200
    except urllib.error.HTTPError as error:
        return error.code


def posted(form: dict[str, Any], body: bytes) -> int:
    """The status of a signed form, as a browser sends it."""
    fields = [f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
              for name, value in form["fields"].items()]  # fmt: skip
    file = b'--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n' + body + b"\r\n--x--\r\n"
    kind = {"Content-Type": "multipart/form-data; boundary=x"}
    try:
        with urllib.request.urlopen(urllib.request.Request(form["url"], b"".join((*fields, file)), kind)) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def reads_all(s3: Any, where: dict[str, str]) -> None:
    """Whether every read of an object succeeds."""
    got = s3.get_object(**where)
    assert (got["Body"].read(), got["Metadata"]) == (DATA, {"a": "1"})
    assert s3.get_object(**where, Range="bytes=1-2")["Body"].read() == DATA[1:3]
    assert s3.head_object(**where)["ContentLength"] == len(DATA)
    assert s3.get_object_tagging(**where)["TagSet"] == [{"Key": "t", "Value": "1"}]
    assert fetched(s3.generate_presigned_url("get_object", where)) == 200


async def test_a_key_that_reads_does_nothing_else() -> None:
    where = {"Bucket": "lab", "Key": "d/k"}

    def asked(client: Callable[[str], Any]) -> None:
        owner, reader = client("ALL"), client("READ")
        owner.put_object(**where, Body=DATA, Metadata={"a": "1"}, Tagging="t=1")
        reads_all(reader, where)
        assert [each["Name"] for each in reader.list_buckets()["Buckets"]] == ["lab", "own"]
        assert [each["Key"] for each in reader.list_objects_v2(Bucket="lab")["Contents"]] == ["d/k"]
        source = {"CopySource": where, "Bucket": "lab", "Key": "copy"}
        for call, more in (
            (reader.put_object, where), (reader.delete_object, where), (reader.copy_object, source),
            (reader.put_object, {"Bucket": "lab", "Key": "new"}), (reader.create_bucket, {"Bucket": "other"}),
            (reader.put_object_tagging, where | {"Tagging": {"TagSet": []}}),
            (reader.put_object_acl, where | {"ACL": "public-read"}), (reader.create_multipart_upload, where),
            (reader.put_bucket_versioning, {"Bucket": "lab", "VersioningConfiguration": {"Status": "Enabled"}}),
        ):  # fmt: skip
            assert denied(call, **more), more
        form = reader.generate_presigned_post("lab", "d/k")
        assert posted(form, b"changed") == 403
        assert fetched(reader.generate_presigned_url("put_object", where), b"changed") == 403
        errors = reader.delete_objects(Bucket="lab", Delete={"Objects": [{"Key": "d/k"}]})["Errors"]
        assert [each["Code"] for each in errors] == ["AccessDenied"]
        reads_all(owner, where)

    async with clients() as client:
        await asyncio.to_thread(asked, client)


async def test_a_key_of_one_bucket_does_there_all_but_change_rights() -> None:
    def asked(client: Callable[[str], Any]) -> None:
        owner, s3 = client("ALL"), client("LAB")
        for _ in range(2):  # without versions, then with
            where = {"Bucket": "lab", "Key": "a//k"}
            s3.put_object(**where, Body=b"before")
            s3.put_object(**where, Body=DATA, Metadata={"a": "1"})
            s3.put_object_tagging(**where, Tagging={"TagSet": [{"Key": "t", "Value": "1"}]})
            reads_all(s3, where)
            s3.copy_object(Bucket="lab", Key="copy", CopySource=where)
            reads_all(s3, {"Bucket": "lab", "Key": "copy"})
            upload = where | {"UploadId": s3.create_multipart_upload(**where)["UploadId"]}
            part = {"PartNumber": 1, "ETag": s3.upload_part(PartNumber=1, Body=DATA, **upload)["ETag"]}
            s3.complete_multipart_upload(MultipartUpload={"Parts": [part]}, **upload)
            assert s3.get_object(**where)["Body"].read() == DATA
            assert {each["Key"] for each in s3.list_objects_v2(Bucket="lab")["Contents"]} == {"a//k", "copy"}
            assert denied(s3.put_object_acl, **where, ACL="public-read")
            assert denied(s3.put_object, **where, ACL="public-read", Body=b"")
            s3.delete_object(**where)
            s3.put_bucket_versioning(Bucket="lab", VersioningConfiguration={"Status": "Enabled"})
        assert len(s3.list_object_versions(Bucket="lab")["Versions"]) > 3
        owner.put_object(Bucket="own", Key="k", Body=DATA)
        upload = {"Bucket": "lab", "Key": "y"}
        upload["UploadId"] = s3.create_multipart_upload(**upload)["UploadId"]
        theirs = {"Bucket": "own", "Key": "z"}
        theirs["UploadId"] = owner.create_multipart_upload(**theirs)["UploadId"]
        assert posted(s3.generate_presigned_post("lab", "posted"), DATA) == 204
        assert posted(s3.generate_presigned_post("own", "posted"), DATA) == 403
        for call, more in (
            (s3.upload_part_copy, upload | {"PartNumber": 1, "CopySource": {"Bucket": "own", "Key": "k"}}),
            (s3.upload_part, theirs | {"PartNumber": 1, "Body": DATA}), (s3.list_parts, theirs),
            (s3.abort_multipart_upload, theirs), (s3.list_multipart_uploads, {"Bucket": "own"}),
            (s3.get_object, {"Bucket": "own", "Key": "k"}), (s3.put_object, {"Bucket": "own", "Key": "new"}),
            (s3.copy_object, {"Bucket": "lab", "Key": "x", "CopySource": {"Bucket": "own", "Key": "k"}}),
            (s3.list_objects_v2, {"Bucket": "own"}), (s3.head_bucket, {"Bucket": "own"}),
            (s3.delete_bucket, {"Bucket": "own"}),
        ):  # fmt: skip
            assert denied(call, **more), more
        assert [each["Name"] for each in s3.list_buckets()["Buckets"]] == ["lab"]

    async with clients() as client:
        await asyncio.to_thread(asked, client)


async def test_a_key_of_a_part_of_a_bucket_lists_that_part() -> None:
    def listed(s3: Any, **asked: Any) -> list[str]:
        """Keys and common prefixes, over all pages."""
        pages = s3.get_paginator("list_objects_v2").paginate(Bucket="lab", PaginationConfig={"PageSize": 2}, **asked)
        kinds = [page.get(kind, ()) for page in pages for kind in ("Contents", "CommonPrefixes")]
        return [each.get("Key") or each["Prefix"] for found in kinds for each in found]

    def asked(client: Callable[[str], Any]) -> None:
        owner, s3 = client("ALL"), client("RUN")
        assert listed(s3) == [], "nothing is there yet"
        within = [f"run/{name}" for name in ("a", "b/1", "b/2", "b-c", "d//e", "※x", "z")]
        for key in ("a", "ru", "run-1/x", "running", "zz", *within):
            owner.put_object(Bucket="lab", Key=key, Body=DATA)
        by_name = sorted(set(within) - {"run/d//e"}, key=str.encode)  # which is no name
        owner.put_object(Bucket="lab", Key="run/", Body=b"")
        every = ["run/", *by_name]
        for prefix in ("", "r", "run", "run/"):
            assert listed(s3, Prefix=prefix) == every
        assert listed(s3, Delimiter="/") == listed(s3, Prefix="run", Delimiter="/") == ["run/"]
        assert sorted(listed(s3, Prefix="run/", Delimiter="/")) == sorted({*every, "run/b/"} - {"run/b/1", "run/b/2"})
        assert set(listed(s3, Prefix="ru", Delimiter="-")) == {*every, "run/b-"} - {"run/b-c"}
        assert listed(s3, Prefix="run/b/") == ["run/b/1", "run/b/2"]
        assert listed(s3, StartAfter="run/b/1") == every[every.index("run/b/2") :]
        assert listed(s3, StartAfter="q") == every
        assert listed(s3, StartAfter="zz") == listed(s3, Prefix="running") == listed(s3, Prefix="a") == []
        assert [each["Key"] for each in s3.list_objects(Bucket="lab", Prefix="run/b/")["Contents"]] == listed(
            s3, Prefix="run/b/"
        )
        told = s3.list_object_versions(Bucket="lab", Prefix="run/b/")["Versions"]
        assert [(each["Key"], each["VersionId"]) for each in told] == [("run/b/1", "null"), ("run/b/2", "null")]
        assert [each["Key"] for each in client("FILE").list_objects(Bucket="lab")["Contents"]] == ["run/a"]
        assert [each["Name"] for each in s3.list_buckets()["Buckets"]] == ["lab"]
        assert s3.list_buckets(Prefix="o")["Buckets"] == []
        pages = client("BOTH").get_paginator("list_buckets").paginate(PaginationConfig={"PageSize": 1})
        assert [[each["Name"] for each in page["Buckets"]] for page in pages] == [["lab"], ["own"]]
        assert listed(s3, ExpectedBucketOwner=JOE) == every
        assert denied(s3.head_bucket, Bucket="lab", ExpectedBucketOwner="/CN=eve")
        s3.create_bucket(Bucket="lab", ACL="private")  # as rclone does before it uploads a file
        assert denied(s3.create_bucket, Bucket="new")
        s3.head_bucket(Bucket="lab")
        for missing in ("run/none", "run/a/none", "run/none/"):
            with pytest.raises(ClientError, match="404"):
                s3.head_object(Bucket="lab", Key=missing)
            s3.delete_object(Bucket="lab", Key=missing)
        s3.put_object(Bucket="lab", Key="run/b/1", Body=DATA, ACL="private")
        s3.delete_object(Bucket="lab", Key="run/b/1")
        doomed = {"Objects": [{"Key": "run/b/2"}, {"Key": "run/"}]}
        assert "Errors" not in s3.delete_objects(Bucket="lab", Delete=doomed)
        assert listed(s3) == ["run/a", "run/b-c", "run/z", "run/※x"]
        assert s3.get_bucket_location(Bucket="lab")["LocationConstraint"] is None
        for call, more in (
            (s3.list_objects_v2, {"Bucket": "own"}), (s3.head_bucket, {"Bucket": "own"}),
            (s3.get_bucket_acl, {"Bucket": "lab"}), (s3.put_object, {"Bucket": "lab", "Key": "x"}),
            (client("ADDS").list_objects_v2, {"Bucket": "lab"}), (client("ADDS").head_bucket, {"Bucket": "lab"}),
        ):  # fmt: skip
            assert denied(call, **more), more

    async with clients() as client:
        await asyncio.to_thread(asked, client)


async def test_a_key_of_a_part_of_a_bucket_lists_uploads_and_versions_of_that_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone_through = list[str]()

    async def uploads_told(files: MemoryCluster, call: Call, ask: Uploads) -> UploadPage:
        page = await port_uploads(files, call, ask)
        gone_through.extend(each.key for each in page.uploads)
        return page

    port_uploads = MemoryCluster.uploads
    monkeypatch.setattr(MemoryCluster, "uploads", uploads_told)

    def uploads(s3: Any, **asked: Any) -> list[str]:
        """Keys and common prefixes, over all pages."""
        pages = s3.get_paginator("list_multipart_uploads").paginate(
            Bucket="lab", PaginationConfig={"PageSize": 1}, **asked
        )
        kinds = [page.get(kind, ()) for page in pages for kind in ("Uploads", "CommonPrefixes")]
        return [each.get("Key") or each["Prefix"] for found in kinds for each in found]

    def asked(client: Callable[[str], Any]) -> None:
        owner, s3 = client("ALL"), client("RUN")
        assert uploads(s3) == []
        for key in ("a", "run/a", "run/a", "run/b/c", "run/d//e", "running/x", "z"):
            owner.create_multipart_upload(Bucket="lab", Key=key)
        assert uploads(s3) == uploads(s3, Prefix="ru") == ["run/a", "run/a", "run/b/c"]
        assert uploads(s3, Delimiter="/") == ["run/"]
        assert uploads(s3, Prefix="run/b") == ["run/b/c"]
        assert uploads(s3, Prefix="running") == []
        assert uploads(client("FILE")) == ["run/a", "run/a"]
        assert uploads(client("BOTH")) == ["a", "run/a", "run/a", "run/b/c"]
        assert not {"running/x", "z"} & set(gone_through), "others' uploads may be many"
        assert denied(client("ADDS").list_multipart_uploads, Bucket="lab")
        assert denied(s3.list_multipart_uploads, Bucket="own")
        for each in s3.list_multipart_uploads(Bucket="lab")["Uploads"]:  # as `rclone cleanup` does
            s3.abort_multipart_upload(Bucket="lab", Key=each["Key"], UploadId=each["UploadId"])
        assert uploads(owner) == ["a", "run/d//e", "running/x", "z"]
        owner.put_bucket_versioning(Bucket="lab", VersioningConfiguration={"Status": "Enabled"})
        for key in ("a", "run/a", "run/a", "run/b/c"):
            owner.put_object(Bucket="lab", Key=key, Body=DATA)
        told = s3.list_object_versions(Bucket="lab")["Versions"]
        assert [(each["Key"], each["IsLatest"]) for each in told] == [("run/a", True), ("run/b/c", True)]
        for each in told:  # as `rclone --s3-versions` does
            got = s3.get_object(Bucket="lab", Key=each["Key"], VersionId=each["VersionId"])
            assert got["Body"].read() == DATA

    async with clients() as client:
        await asyncio.to_thread(asked, client)


async def test_a_key_that_adds_replaces_nothing() -> None:
    def asked(client: Callable[[str], Any]) -> None:
        owner, s3, run = client("ALL"), client("ADD"), client("RUN")
        s3.put_object(Bucket="lab", Key="run/k", Body=DATA)
        assert denied(s3.put_object, Bucket="lab", Key="run/k", Body=b"")
        assert denied(s3.delete_object, Bucket="lab", Key="run/k")
        run.put_object(Bucket="lab", Key="run/k", Body=b"anew")
        assert run.get_object(Bucket="lab", Key="run/k")["Body"].read() == b"anew"
        assert denied(run.put_object, Bucket="lab", Key="running", Body=b"")
        owner.put_bucket_versioning(Bucket="lab", VersioningConfiguration={"Status": "Enabled"})
        for s3 in (
            run,
            owner,
        ):  # without the right to read the bucket no version is shown; to the owner's other key one is
            got = s3.get_object(Bucket="lab", Key="run/k")
            assert (got["Body"].read(), got.get("VersionId")) == (b"anew", None if s3 is run else "null")

    async with clients() as client:
        await asyncio.to_thread(asked, client)


async def test_a_key_that_adds_does_so_too_where_versions_are_kept_and_leaves_none_of_what_is_refused() -> None:
    def asked(client: Callable[[str], Any]) -> None:
        owner, s3 = client("ALL"), client("ADD")
        owner.put_bucket_versioning(Bucket="lab", VersioningConfiguration={"Status": "Enabled"})
        owner.put_object(Bucket="lab", Key="old", Body=DATA)
        s3.put_object(Bucket="lab", Key="run/new", Body=DATA)
        s3.copy_object(Bucket="lab", Key="copy", CopySource={"Bucket": "lab", "Key": "old"})
        for maker, where in ((s3, {"Bucket": "lab", "Key": "parts"}), (owner, {"Bucket": "lab", "Key": "old"})):
            upload = where | {"UploadId": maker.create_multipart_upload(**where)["UploadId"]}
            part = {"PartNumber": 1, "ETag": maker.upload_part(PartNumber=1, Body=DATA, **upload)["ETag"]}
            refused = denied(s3.complete_multipart_upload, MultipartUpload={"Parts": [part]}, **upload)
            assert refused is (maker is owner)
        assert denied(s3.put_object, Bucket="lab", Key="old", Body=b"")
        assert denied(s3.delete_object, Bucket="lab", Key="old")
        kept = s3.list_object_versions(Bucket="lab")
        assert [each["Key"] for each in kept["Versions"]] == ["copy", "old", "parts", "run/new"]
        assert "DeleteMarkers" not in kept
        assert {each["Key"] for each in s3.list_objects_v2(Bucket="lab")["Contents"]} == {
            "copy", "old", "parts", "run/new"
        }  # fmt: skip
        for key in ("copy", "old", "parts", "run/new"):
            assert s3.get_object(Bucket="lab", Key=key)["Body"].read() == DATA

    async with clients() as client:
        await asyncio.to_thread(asked, client)
