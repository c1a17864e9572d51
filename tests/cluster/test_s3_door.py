"""The S3 door on real daemons: boto3 with keys of its own, streamed bodies, races, and what other doors see of it."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import botocore.auth
import pytest
from awscrt import checksums
from botocore.auth import S3SigV4Auth, get_current_datetime
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.cluster.harness import Cluster
from tests.cluster.test_attack import FULL, OF_ONE_OWNER, PATIENT, limited, many, until_closed
from tests.support.polling import patience, poll

COMMAND = str(Path(sys.executable).parent / "chelonia")
DATA = os.urandom(3_000_000)


def run(cluster: Cluster, *words: str, who: str = "user") -> list[dict[str, Any]]:
    """Run a command with --json; returns its results."""
    command = [COMMAND, "--cluster", str(cluster.root / "cluster.json"), "--as", who, "--json", *words]
    done = subprocess.run(command, capture_output=True, check=False, timeout=60 * patience())
    assert done.returncode == 0, done
    told = json.loads(done.stdout)
    return list(told["results"] if isinstance(told, dict) else told)


def client_of(cluster: Cluster, key: tuple[str, str]) -> Any:
    """boto3's client with this access key (id, secret)."""
    bundle = cluster.root / "s3-ca.pem"
    if not bundle.exists():
        bundle.write_bytes(b"".join(each.read_bytes() for each in sorted(cluster.ca_dir.glob("*.0"))))
    config = Config(s3={"addressing_style": "path"}, signature_version="s3v4", retries={"max_attempts": 1})
    return boto3.client(
        "s3", endpoint_url=cluster.s3_url, verify=str(bundle), region_name="us-east-1", config=config,
        aws_access_key_id=key[0], aws_secret_access_key=key[1],
    )  # fmt: skip


def key_of(cluster: Cluster, who: str = "user") -> tuple[str, str]:
    """A new access key of a user."""
    (issued,) = run(cluster, "s3", "key", "create", who=who)
    return issued["id"], issued["secret"]


@pytest.fixture(scope="module")
def clients(cluster: Cluster) -> Callable[..., Any]:
    """A function that returns boto3's client of a user, or of the access key `key` (id, secret)."""
    made: dict[str, Any] = {}

    def client(who: str = "user", key: tuple[str, str] | None = None) -> Any:
        if who not in made or key is not None:
            made[who] = client_of(cluster, key or key_of(cluster, who))
        return made[who]

    return client


@pytest.fixture(scope="module")
def s3(clients: Callable[..., Any]) -> Any:
    return clients()


@pytest.fixture
def bucket(s3: Any, request: pytest.FixtureRequest) -> Iterator[str]:
    """A bucket of the test's own; it is emptied and removed, so that nothing implied can have stayed."""
    name = hashlib.md5(request.node.name.encode()).hexdigest()
    s3.create_bucket(Bucket=name)
    yield name
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=name):
        keys = [{"Key": each["Key"]} for each in page.get("Contents", ())]
        if keys:
            assert "Errors" not in s3.delete_objects(Bucket=name, Delete={"Objects": keys, "Quiet": True})
    s3.delete_bucket(Bucket=name)


def refused(call: Callable[..., Any], **arguments: Any) -> tuple[int, str]:
    """Status and code of a refusal."""
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    answer = caught.value.response
    return answer["ResponseMetadata"]["HTTPStatusCode"], answer["Error"]["Code"]


def test_objects_come_back_as_they_were_put(cluster: Cluster, s3: Any, bucket: str) -> None:
    for key, data in (("empty", b""), ("one/byte", b"x"), ("some/where/large", DATA)):
        put = s3.put_object(Bucket=bucket, Key=key, Body=data, ContentType="text/x", Metadata={"run": "7"})
        got = s3.get_object(Bucket=bucket, Key=key)
        assert got["Body"].read() == data
        assert got["ETag"] == put["ETag"] == f'"{hashlib.md5(data).hexdigest()}"'
        assert (got["ContentType"], got["Metadata"]) == ("text/x", {"run": "7"})
        assert s3.head_object(Bucket=bucket, Key=key)["ContentLength"] == len(data)
    ranged = s3.get_object(Bucket=bucket, Key="some/where/large", Range="bytes=100-199")
    assert (ranged["ContentRange"], ranged["Body"].read()) == (f"bytes 100-199/{len(DATA)}", DATA[100:200])
    url = s3.generate_presigned_url("get_object", {"Bucket": bucket, "Key": "some/where/large"})
    several = cluster.request("GET", url, "anonymous", headers={"Range": "bytes=0-9, 2000000-2000099"})
    boundary = several.headers["content-type"].removeprefix("multipart/byteranges; boundary=").encode()
    pieces = [piece.partition(b"\r\n\r\n")[2] for piece in several.body.split(b"--" + boundary)[1:-1]]
    assert (several.status, pieces) == (206, [DATA[:10] + b"\r\n", DATA[2_000_000:2_000_100] + b"\r\n"])
    assert refused(s3.get_object, Bucket=bucket, Key="one/byte", Range="bytes=5-9") == (416, "InvalidRange")
    assert refused(s3.get_object, Bucket=bucket, Key="nothing") == (404, "NoSuchKey")
    assert refused(s3.put_object, Bucket="no-such-bucket", Key="k", Body=b"") == (404, "NoSuchBucket")


def test_a_head_that_is_too_long_is_a_refusal_of_its_own_to_boto3(s3: Any, bucket: str) -> None:
    assert refused(s3.put_object, Bucket=bucket, Key="k", Body=b"x", Metadata={"a": "x" * 40_000}) == (431, "431")
    assert refused(s3.head_object, Bucket=bucket, Key="k")[0] == 404


@pytest.mark.parametrize("algorithm", ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"])
def test_checksums_trail_a_stream_and_come_back(s3: Any, bucket: str, algorithm: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=DATA[:100_000], ChecksumAlgorithm=algorithm)
    got = s3.get_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")
    assert got[f"Checksum{algorithm}"]
    assert got["Body"].read() == DATA[:100_000]
    with pytest.raises(ClientError, match="BadDigest"):
        s3.put_object(Bucket=bucket, Key="bad", Body=b"x", ChecksumSHA256="A" * 43 + "=")
    assert refused(s3.head_object, Bucket=bucket, Key="bad")[0] == 404


def test_listings_by_prefix_delimiter_and_page(s3: Any, bucket: str) -> None:
    apart = ["a", "a//3", "b/", "c//d/e", "c//d/f", "ü//y"]
    keys = sorted(["a/1", "a/2", "a-b", "a.b/1", "b", "c/d/e", "c/d/f", "z/", "ü/x", *apart], key=str.encode)
    for key in sorted(keys, key=apart.__contains__):
        s3.put_object(Bucket=bucket, Key=key, Body=b"x" if key == "b/" else b"")

    def listed(operation: str, size: int, **asked: Any) -> list[str]:
        pages = s3.get_paginator(operation).paginate(Bucket=bucket, PaginationConfig={"PageSize": size}, **asked)
        return [
            name
            for page in pages
            for name in sorted(
                [each["Key"] for each in page.get("Contents", ())]
                + [each["Prefix"] for each in page.get("CommonPrefixes", ())],
                key=str.encode,
            )
        ]

    for operation in ("list_objects_v2", "list_objects"):
        for size in (1, 3, 1000):
            assert listed(operation, size) == keys
            assert listed(operation, size, Delimiter="/") == ["a", "a-b", "a.b/", "a/", "b", "b/", "c/", "z/", "ü/"]
            assert listed(operation, size, Prefix="c/", Delimiter="/") == ["c//", "c/d/"]
            assert listed(operation, size, Prefix="a", Delimiter="b") == ["a", "a-b", "a.b", "a//3", "a/1", "a/2"]
            assert listed(operation, size, Prefix="c/d/") == ["c/d/e", "c/d/f"]
    assert listed("list_objects_v2", 2, StartAfter="a/1") == keys[keys.index("a/2") :]
    assert listed("list_objects_v2", 1000, Prefix="none") == []


def test_a_key_is_any_text(cluster: Cluster, s3: Any, bucket: str) -> None:
    keys = ["n/a", "n", "n/a/b", "d/", "/lead", "a//b", ".", "../x", "\x01\x7f\x80", " ", "※keys/=n", "é." * 300]
    for key in keys:
        s3.put_object(Bucket=bucket, Key=key, Body=key.encode(), Metadata={"nr": str(keys.index(key))})
    for key in keys:
        got = s3.get_object(Bucket=bucket, Key=key)
        assert (got["Body"].read(), got["Metadata"]) == (key.encode(), {"nr": str(keys.index(key))})
    assert [each["Key"] for each in s3.list_objects_v2(Bucket=bucket)["Contents"]] == sorted(keys, key=str.encode)
    s3.copy_object(Bucket=bucket, Key="a//c", CopySource={"Bucket": bucket, "Key": "a//b"})
    assert cluster.request("GET", f"{cluster.files_url}/{bucket}/%E2%80%BBkeys/=a.~.~c").body == b"a//b"
    assert refused(s3.put_object, Bucket=bucket, Key="n", Body=b"", IfNoneMatch="*") == (412, "PreconditionFailed")
    assert refused(s3.put_object, Bucket=bucket, Key="k" * 1025, Body=b"") == (400, "KeyTooLongError")
    upload = {"Bucket": bucket, "Key": "a//b"} | {
        "UploadId": s3.create_multipart_upload(Bucket=bucket, Key="a//b")["UploadId"]
    }
    assert [each["Key"] for each in s3.list_multipart_uploads(Bucket=bucket, Prefix="a/")["Uploads"]] == ["a//b"]
    parts = [{"PartNumber": 1, "ETag": s3.upload_part(PartNumber=1, Body=b"part", **upload)["ETag"]}]
    s3.complete_multipart_upload(MultipartUpload={"Parts": parts}, **upload)
    assert s3.get_object(Bucket=bucket, Key="a//b")["Body"].read() == b"part"
    for key in (*keys, "a//c"):
        s3.delete_object(Bucket=bucket, Key=key)
    assert cluster.request("GET", f"{cluster.files_url}/{bucket}/%E2%80%BBkeys").status == 404


def test_an_object_of_parts_is_seen_when_it_is_complete(s3: Any, bucket: str) -> None:
    first, where = os.urandom(5 * 1024 * 1024), {"Bucket": bucket, "Key": "in/parts"}
    upload = where | {"UploadId": s3.create_multipart_upload(**where, Metadata={"a": "1"})["UploadId"]}
    s3.put_object(Bucket=bucket, Key="source", Body=DATA)
    etags = [
        s3.upload_part_copy(PartNumber=2, CopySource={"Bucket": bucket, "Key": "source"}, CopySourceRange="bytes=5-14",
                            **upload)["CopyPartResult"]["ETag"],
        s3.upload_part(PartNumber=1, Body=first, **upload)["ETag"],
    ]  # fmt: skip
    assert [(each["PartNumber"], each["Size"]) for each in s3.list_parts(**upload)["Parts"]] == [
        (1, len(first)),
        (2, 10),
    ]
    assert [each["Key"] for each in s3.list_multipart_uploads(Bucket=bucket)["Uploads"]] == ["in/parts"]
    assert refused(s3.head_object, **where)[0] == 404
    order = [{"PartNumber": n, "ETag": etag} for n, etag in zip((2, 1), etags, strict=True)]

    def complete(parts: list[dict[str, Any]]) -> Any:
        return s3.complete_multipart_upload(MultipartUpload={"Parts": parts}, **upload)

    assert refused(complete, parts=order) == (400, "InvalidPartOrder")
    assert refused(complete, parts=[{"PartNumber": 3, "ETag": etags[0]}]) == (400, "InvalidPart")
    whole = complete(order[::-1])
    assert complete(order[::-1])["ETag"] == whole["ETag"]  # its answer may have been lost
    digests = hashlib.md5(first).digest() + hashlib.md5(DATA[5:15]).digest()
    assert whole["ETag"] == f'"{hashlib.md5(digests).hexdigest()}-2"'
    got = s3.get_object(**where)
    assert (got["Body"].read(), got["Metadata"]) == (first + DATA[5:15], {"a": "1"})
    assert s3.get_object(**where, Range="bytes=5242878-5242881")["Body"].read() == first[-2:] + DATA[5:7]
    assert s3.get_object(**where)["ChecksumCRC64NVME"] == whole["ChecksumCRC64NVME"]  # boto3 checks it by itself
    other = where | {"UploadId": s3.create_multipart_upload(**where)["UploadId"]}
    s3.abort_multipart_upload(**other)
    assert refused(s3.list_parts, **other) == (404, "NoSuchUpload")


def test_an_object_of_parts_has_the_checksum_that_was_asked_for(cluster: Cluster, s3: Any, bucket: str) -> None:
    first, second = os.urandom(5 * 1024 * 1024), b"the last part"
    sums = [hashlib.sha256(data).digest() for data in (first, second)]
    composite = base64.b64encode(hashlib.sha256(b"".join(sums)).digest()).decode() + "-2"
    told = [base64.b64encode(each).decode() for each in sums]
    where = {"Bucket": bucket, "Key": "summed"}
    upload = where | {"UploadId": s3.create_multipart_upload(**where, ChecksumAlgorithm="SHA256")["UploadId"]}
    parts = []
    for number, data in enumerate((first, second), 1):
        put = s3.upload_part(PartNumber=number, Body=data, ChecksumAlgorithm="SHA256", **upload)
        parts.append({"PartNumber": number, "ETag": put["ETag"], "ChecksumSHA256": put["ChecksumSHA256"]})
    wrong = {"ChecksumAlgorithm": "CRC32", "PartNumber": 3, "Body": b"x"}
    assert refused(s3.upload_part, **wrong, **upload) == (400, "InvalidRequest")
    listed = s3.list_parts(**upload)
    assert [each["ChecksumSHA256"] for each in listed["Parts"]] == told
    assert (listed["ChecksumAlgorithm"], listed["ChecksumType"]) == ("SHA256", "COMPOSITE")
    lie = [parts[0], parts[1] | {"ChecksumSHA256": told[0]}]

    def complete(parts: list[Any], **more: Any) -> Any:
        return s3.complete_multipart_upload(MultipartUpload={"Parts": parts}, **more, **upload)

    assert refused(complete, parts=lie) == (400, "InvalidPart")
    assert refused(complete, parts=parts, ChecksumSHA256="bad") == (400, "BadDigest")
    assert refused(complete, parts=parts, MpuObjectSize=1) == (400, "InvalidRequest")
    whole = complete(parts, ChecksumSHA256=composite)
    assert (whole["ChecksumSHA256"], whole["ChecksumType"]) == (composite, "COMPOSITE")
    assert complete(parts, ChecksumSHA256=composite)["ChecksumSHA256"] == composite
    assert s3.get_object(**where, PartNumber=2)["ChecksumSHA256"] == told[1]
    known = s3.get_object_attributes(**where, ObjectAttributes=["Checksum", "ObjectParts"])
    assert (known["Checksum"]["ChecksumSHA256"], known["Checksum"]["ChecksumType"]) == (composite, "COMPOSITE")
    assert [each["ChecksumSHA256"] for each in known["ObjectParts"]["Parts"]] == told
    crc = checksums.crc32c(second, checksums.crc32c(first))
    head = cluster.request("HEAD", f"{cluster.files_url}/{bucket}/summed", headers={"Want-Digest": "crc32c"})
    assert f"crc32c={crc:08x}" in head.headers["digest"]


def test_conditions_hold_for_writers_too(s3: Any, bucket: str) -> None:
    once = {"Bucket": bucket, "Key": "once", "IfNoneMatch": "*"}
    with ThreadPoolExecutor(6) as pool:
        tries = [pool.submit(s3.put_object, Body=b"%d" % n, **once) for n in range(6)]
    failed = [each.exception() for each in tries if each.exception() is not None]
    assert [each.response["Error"]["Code"] for each in failed] == ["PreconditionFailed"] * 5  # type: ignore[union-attr]
    assert [each.response["Error"]["Condition"] for each in failed] == ["If-None-Match"] * 5  # type: ignore[union-attr]
    etag = s3.head_object(Bucket=bucket, Key="once")["ETag"]
    s3.put_object(Bucket=bucket, Key="once", Body=b"next", IfMatch=etag)
    assert refused(s3.put_object, Bucket=bucket, Key="once", Body=b"late", IfMatch=etag) == (412, "PreconditionFailed")
    assert refused(s3.get_object, Bucket=bucket, Key="once", IfMatch=etag) == (412, "PreconditionFailed")
    now = s3.head_object(Bucket=bucket, Key="once")["ETag"]
    assert refused(s3.get_object, Bucket=bucket, Key="once", IfNoneMatch=now) == (304, "304")


def test_many_that_write_one_key_all_succeed(s3: Any, bucket: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: s3.put_object(Bucket=bucket, Key="a/key", Body=b"%d" % n), range(16)))
    assert s3.get_object(Bucket=bucket, Key="a/key")["Body"].read().isdigit()


def test_a_copy_keeps_or_changes_what_is_known(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="from", Body=b"bytes", Metadata={"a": "1"}, Tagging="t=1")
    source = {"Bucket": bucket, "Key": "from"}
    s3.copy_object(Bucket=bucket, Key="d/to", CopySource=source)
    got = s3.get_object(Bucket=bucket, Key="d/to")
    assert (got["Body"].read(), got["Metadata"], got["TagCount"]) == (b"bytes", {"a": "1"}, 1)
    s3.copy_object(Bucket=bucket, Key="from", CopySource=source, MetadataDirective="REPLACE", Metadata={"b": "2"})
    assert s3.head_object(Bucket=bucket, Key="from")["Metadata"] == {"b": "2"}
    assert refused(s3.copy_object, Bucket=bucket, Key="from", CopySource=source) == (400, "InvalidRequest")
    assert refused(s3.copy_object, Bucket=bucket, Key="x", CopySource={"Bucket": bucket, "Key": "no"})[1] == "NoSuchKey"


def test_a_full_quota_of_a_bucket_refuses_what_adds_to_it(cluster: Cluster, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="first", Body=DATA[:600_000])
    quota = ("admin", "quota")
    run(cluster, *quota, "set", f"/{bucket}", "--bytes", "1000000", who="admin")
    upload = {"Bucket": bucket, "Key": "parts"}
    try:
        poll(lambda: all(use["counted"] for use in run(cluster, *quota, "list", who="admin")), 60, what="it is counted")
        upload |= {"UploadId": s3.create_multipart_upload(**upload)["UploadId"]}
        more, source = DATA[:600_000], {"Bucket": bucket, "Key": "first"}
        full = (403, "QuotaExceeded")
        assert refused(s3.put_object, Bucket=bucket, Key="more", Body=more) == full
        assert refused(s3.copy_object, Bucket=bucket, Key="copy", CopySource=source) == full
        assert refused(s3.upload_part, PartNumber=1, Body=more, **upload) == full
        assert refused(s3.upload_part_copy, PartNumber=1, CopySource=source, **upload) == full
        assert [each["Key"] for each in s3.list_objects_v2(Bucket=bucket)["Contents"]] == ["first"]
        s3.delete_object(**source)
        parts = [{"PartNumber": 1, "ETag": s3.upload_part(PartNumber=1, Body=more, **upload)["ETag"]}]
        s3.complete_multipart_upload(MultipartUpload={"Parts": parts}, **upload)
        assert refused(s3.put_object, Bucket=bucket, Key="more", Body=more) == full
        s3.put_object(Bucket=bucket, Key="more", Body=more[:400_000])
    finally:
        run(cluster, *quota, "remove", f"/{bucket}", who="admin")


def test_what_a_key_puts_every_other_door_sees(cluster: Cluster, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="d/file", Body=b"by S3")
    url = f"{cluster.files_url}/{bucket}/d"
    assert cluster.request("GET", f"{url}/file").body == b"by S3"
    assert cluster.request("PUT", f"{url}/file", body=b"by the plain door").status == 204
    got = s3.get_object(Bucket=bucket, Key="d/file")
    assert got["Body"].read() == b"by the plain door"
    assert got["ETag"] != f'"{hashlib.md5(b"by S3").hexdigest()}"'
    s3.delete_object(Bucket=bucket, Key="d/file")
    assert cluster.request("GET", url).status == 404  # it was there for the key alone


def test_a_bucket_keeps_versions_whoever_writes_at_once(s3: Any, bucket: str) -> None:
    where = {"Bucket": bucket, "Key": "a/k"}
    s3.put_object(**where, Body=b"old")
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    with ThreadPoolExecutor(6) as pool:
        made = list(pool.map(lambda n: s3.put_object(**where, Body=DATA[: n * 50_000])["VersionId"], range(6)))
    s3.delete_object(**where)
    listed = s3.list_object_versions(Bucket=bucket)
    assert sorted(each["VersionId"] for each in listed["Versions"]) == sorted((*made, "null"))
    for n, version in enumerate(made):
        assert s3.get_object(**where, VersionId=version)["Body"].read() == DATA[: n * 50_000]
    assert s3.get_object(**where, VersionId="null")["Body"].read() == b"old"
    assert refused(s3.head_object, **where)[0] == 404
    known = [{"Key": "a/k", "VersionId": each["VersionId"]} for each in (*listed["Versions"], *listed["DeleteMarkers"])]
    assert "Errors" not in s3.delete_objects(Bucket=bucket, Delete={"Objects": known})


class ChunkedAuth(S3SigV4Auth):
    """Signs a body in chunks."""

    def payload(self, request: AWSRequest) -> str:
        return "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"

    def chunk(self, request: AWSRequest, seed: str, data: bytes) -> tuple[str, bytes]:
        """The signature of a chunk, and the chunk."""
        digests = [seed, hashlib.sha256(b"").hexdigest(), hashlib.sha256(data).hexdigest()]
        head = ["AWS4-HMAC-SHA256-PAYLOAD", request.context["timestamp"], self.credential_scope(request)]
        signature = self.signature("\n".join([*head, *digests]), request)
        return signature, f"{len(data):x};chunk-signature={signature}\r\n".encode() + data + b"\r\n"


def test_an_upload_that_breaks_off_leaves_nothing(cluster: Cluster, s3: Any, bucket: str) -> None:
    url = s3.generate_presigned_url("put_object", {"Bucket": bucket, "Key": "cut"})
    parts = urlsplit(url)
    head = f"PUT {parts.path}?{parts.query} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Length: 1000\r\n\r\n"
    with cluster.connected(url, "anonymous") as connection:
        connection.sendall(head.encode() + DATA[:400])
    told = f"refused PUT path='/{bucket}/cut' .*the connection ended before the body did"
    poll(lambda: re.search(told, cluster.log_of("core")), 60, what="the door misses the rest")
    assert refused(s3.head_object, Bucket=bucket, Key="cut")[0] == 404

    auth = ChunkedAuth(s3._request_signer._credentials, "s3", "us-east-1")
    url = f"{cluster.s3_url}/{bucket}/chunks"
    request = AWSRequest("PUT", url, {"x-amz-decoded-content-length": "6"})
    auth.add_auth(request)
    first, body = auth.chunk(request, request.headers["Authorization"].rpartition("=")[2], b"chunks")
    headers = dict(request.headers.items())
    answer = cluster.request("PUT", url, "anonymous", body=body, headers=headers)
    assert (answer.status, b"<Code>IncompleteBody</Code>" in answer.body) == (400, True)
    assert refused(s3.head_object, Bucket=bucket, Key="chunks")[0] == 404
    body += auth.chunk(request, first, b"")[1]
    assert cluster.request("PUT", url, "anonymous", body=body, headers=headers).status == 200
    assert s3.get_object(Bucket=bucket, Key="chunks")["Body"].read() == b"chunks"


def test_what_a_wrong_clock_signs_is_refused(
    cluster: Cluster, s3: Any, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, auth = f"{cluster.s3_url}/{bucket}/k", S3SigV4Auth(s3._request_signer._credentials, "s3", "us-east-1")

    def put(minutes: int) -> tuple[int, list[bytes]]:
        now = get_current_datetime() + timedelta(minutes=minutes)
        monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda: now)
        request = AWSRequest("PUT", url, data=b"x")
        auth.add_auth(request)
        answer = cluster.request("PUT", url, "anonymous", body=b"x", headers=dict(request.headers.items()))
        return answer.status, re.findall(b"<Code>(.*?)</Code>", answer.body)

    assert put(-20) == put(20) == (403, [b"RequestTimeTooSkewed"])
    assert refused(s3.head_object, Bucket=bucket, Key="k")[0] == 404
    assert put(-10) == (200, [])


def test_a_url_that_was_signed_works_without_a_key(cluster: Cluster, s3: Any, bucket: str) -> None:
    def ask(method: str, url: str, body: bytes = b"") -> tuple[int, bytes]:
        parts = urlsplit(url)
        connection = http.client.HTTPSConnection(
            "localhost", parts.port, context=cluster.context("anonymous"), timeout=30 * patience()
        )
        connection.request(method, f"{parts.path}?{parts.query}", body or None)
        with contextlib.closing(connection):
            answer = connection.getresponse()
            return answer.status, answer.read()

    where = {"Bucket": bucket, "Key": "a key"}
    assert ask("PUT", s3.generate_presigned_url("put_object", where), b"signed")[0] == 200
    url = s3.generate_presigned_url("get_object", where)
    assert ask("GET", url) == (200, b"signed")
    assert ask("GET", url.replace("Signature=", "Signature=0"))[0] == 400
    assert ask("DELETE", url)[0] == 403


def test_a_browsers_form_is_signed_by_its_policy(cluster: Cluster, s3: Any, bucket: str) -> None:
    conditions = [["starts-with", "$x-amz-meta-run", ""], ["content-length-range", 1, 2_000_000]]
    form = s3.generate_presigned_post(bucket, "form/${filename}", Conditions=conditions)
    parts = urlsplit(form["url"])

    def posted(data: bytes, **more: str) -> int:
        fields = {**form["fields"], "x-amz-meta-run": "7", **more}
        one = '--BB\r\nContent-Disposition: form-data; name="{}"\r\n\r\n{}\r\n'
        pairs = "".join(one.format(*pair) for pair in fields.items())
        head = f'{pairs}--BB\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
        connection = http.client.HTTPSConnection(
            "localhost", parts.port, context=cluster.context("anonymous"), timeout=30 * patience()
        )
        kind = {"Content-Type": "multipart/form-data; boundary=BB"}
        connection.request("POST", parts.path, head.encode() + data + b"\r\n--BB--\r\n", kind)
        with contextlib.closing(connection):
            return connection.getresponse().status

    assert posted(DATA[:1_500_000]) == 204
    got = s3.get_object(Bucket=bucket, Key="form/f")
    assert (got["Body"].read(), got["Metadata"]) == (DATA[:1_500_000], {"run": "7"})
    assert posted(DATA) == 400
    assert [posted(b"x", key="other"), posted(b"x", acl="public-read")] == [403, 403]
    assert posted(b"x", policy=form["fields"]["policy"][:-4]) == 403
    assert s3.head_object(Bucket=bucket, Key="form/f")["ContentLength"] == 1_500_000


def test_rights_are_those_of_the_keys_owner(
    cluster: Cluster, clients: Callable[..., Any], s3: Any, bucket: str
) -> None:
    s3.put_object(Bucket=bucket, Key="mine", Body=b"x")
    other = clients("user2")
    assert refused(other.put_object, Bucket=bucket, Key="mine", Body=b"theirs") == (403, "AccessDenied")
    assert refused(other.delete_object, Bucket=bucket, Key="mine") == (403, "AccessDenied")
    assert refused(other.create_bucket, Bucket=bucket) == (409, "BucketAlreadyExists")
    wrong = clients("nobody", key=("A" * 20, "no such secret"))
    assert refused(wrong.get_object, Bucket=bucket, Key="mine") == (403, "InvalidAccessKeyId")
    (issued,) = run(cluster, "s3", "key", "create", "--note", "a test")
    falsely = clients("falsely", key=(issued["id"], "not its secret"))
    assert refused(falsely.get_object, Bucket=bucket, Key="mine") == (403, "SignatureDoesNotMatch")
    assert issued["id"] in [key["id"] for key in run(cluster, "s3", "key", "list")]
    run(cluster, "s3", "key", "revoke", issued["id"])
    assert issued["id"] not in [key["id"] for key in run(cluster, "s3", "key", "list")]


def test_an_administrator_gives_and_takes_back_keys_of_others(
    cluster: Cluster, clients: Callable[..., Any], s3: Any, bucket: str
) -> None:
    owner = s3.get_bucket_acl(Bucket=bucket)["Owner"]["ID"]
    (given,) = run(cluster, "admin", "s3", "key", "create", owner, "--note", "given", who="admin")
    other = clients("given", key=(given["id"], given["secret"]))
    assert (given["dn"], other.get_bucket_acl(Bucket=bucket)["Owner"]["ID"]) == (owner, owner)
    assert given["id"] in [key["id"] for key in run(cluster, "admin", "s3", "key", "list", who="admin")]
    run(cluster, "admin", "s3", "key", "revoke", given["id"], who="admin")
    poll(lambda: refused_now(other.head_bucket, Bucket=bucket), 30, what="what it signs is refused")


def refused_now(call: Callable[..., Any], **arguments: Any) -> bool:
    """Whether it is refused by now."""
    try:
        call(**arguments)
    except ClientError:
        return True
    return False


def test_a_key_may_be_narrowed(cluster: Cluster, clients: Callable[..., Any], s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="d/k", Body=DATA)
    (issued,) = run(cluster, "s3", "key", "create", "--only", "read", "--in", f"/{bucket}")
    assert issued["only"] == f"read on /{bucket}"
    reader = clients("a reader", key=(issued["id"], issued["secret"]))
    assert reader.get_object(Bucket=bucket, Key="d/k", Range="bytes=1-9")["Body"].read() == DATA[1:10]
    assert [each["Key"] for each in reader.list_objects_v2(Bucket=bucket)["Contents"]] == ["d/k"]
    assert refused(reader.put_object, Bucket=bucket, Key="d/k", Body=b"") == (403, "AccessDenied")
    assert refused(reader.delete_object, Bucket=bucket, Key="d/k") == (403, "AccessDenied")
    assert [each["Name"] for each in reader.list_buckets()["Buckets"]] == [bucket]
    assert issued["only"] in [key["only"] for key in run(cluster, "s3", "key", "list")]


@pytest.mark.parametrize("tool", ["aws", "boto3"])
def test_a_printed_configuration_works(cluster: Cluster, s3: Any, bucket: str, tmp_path: Path, tool: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"by its configuration")
    (key,) = run(cluster, "s3", "key", "create")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "XDG_", "CHELONIA"))}
    environ |= {"HOME": str(tmp_path), "AWS_CONFIG_FILE": str(tmp_path / "config")}

    def told(*words: str, **more: str) -> str:
        return subprocess.run(words, env=environ | more, capture_output=True, check=True, text=True).stdout

    asked = (COMMAND, "--cluster", str(cluster.root / "cluster.json"), "--as", "user", "s3", "configure", tool)
    text = told(*asked, AWS_ACCESS_KEY_ID=key["id"], AWS_SECRET_ACCESS_KEY=key["secret"])
    for command in re.findall("^# first: (.*)$", text, re.MULTILINE):
        told("sh", "-c", command)
    (tmp_path / "config").write_text(text if tool == "aws" else "")
    program = text if tool == "boto3" else "import boto3\ns3 = boto3.client('s3')\n"
    program += f"print(s3.get_object(Bucket={bucket!r}, Key='k')['Body'].read().decode())"
    assert told(sys.executable, "-c", program) == "by its configuration\n"


def test_a_canned_list_is_a_policy(cluster: Cluster, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"x", ACL="private")
    url = f"{cluster.files_url}/{bucket}/k"
    assert cluster.request("GET", url, "anonymous").status == 401
    s3.put_object_acl(Bucket=bucket, Key="k", ACL="public-read")
    assert cluster.request("GET", url, "anonymous").body == b"x"
    grants = s3.get_object_acl(Bucket=bucket, Key="k")["Grants"]
    assert [(each["Grantee"]["Type"], each["Permission"]) for each in grants] == [
        ("Group", "READ"), ("CanonicalUser", "FULL_CONTROL"),
    ]  # fmt: skip


def test_idle_connections_of_strangers_shut_no_s3_client_out(own_cluster: Callable[..., Cluster]) -> None:
    """They come from the client's own address. First they exceed its share, then they fill the listener."""
    cluster = own_cluster(shepherds=1)
    known = client_of(cluster, key_of(cluster))
    known.create_bucket(Bucket="lab")
    share = PATIENT | {"connections_per_address_max": OF_ONE_OWNER, "connections_per_dn_max": OF_ONE_OWNER}
    for limits, most, limit in ((share, OF_ONE_OWNER, "connections of one address"), (FULL, 50, "connections")):
        limited(cluster, limits)
        with many(cluster, cluster.s3_url, "anonymous", most + 20) as held:
            for s3 in (known, client_of(cluster, key_of(cluster)), known):
                s3.put_object(Bucket="lab", Key=limit, Body=DATA)
                assert s3.get_object(Bucket="lab", Key=limit)["Body"].read() == DATA
            until_closed(cluster, held, most)
        cluster.until_met("core", limit)
