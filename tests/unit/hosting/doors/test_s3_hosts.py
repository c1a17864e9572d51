"""Buckets named by the host of a request, as boto3 does it."""

from __future__ import annotations

import asyncio
import socket
import urllib.request
from typing import Any

import boto3
import pytest
from botocore.config import Config

from chelonia.core.caller import Call
from chelonia.core.ids import ROOT, Dn
from chelonia.core.metadata import TYPE_COLLECTION
from chelonia.core.names import LogicalName
from chelonia.core.ports.files import Make
from chelonia.hosting.doors.s3.door import S3Door
from chelonia.hosting.doors.s3.parts import S3Parts
from chelonia.hosting.metrics import Metrics
from chelonia.hosting.net.clock import SystemClock
from tests.support.cluster import MemoryCluster
from tests.support.door_parts import door_parts
from tests.unit.hosting.doors.test_plain_door import MemoryBytes
from tests.unit.hosting.doors.test_s3_busy import JOE, SECRET, OneKey
from tests.unit.hosting.listening import plain

DOMAIN = "s3.example.org"


@pytest.mark.parametrize("style", ["virtual", "path"])
async def test_a_bucket_may_stand_in_the_host_or_in_the_path(monkeypatch: pytest.MonkeyPatch, style: str) -> None:
    files, hosts = MemoryCluster(JOE), set[str]()
    for name in ("lab", "other.data"):
        await files.apply(Call(dn=JOE), (Make(LogicalName(ROOT, (name,)), TYPE_COLLECTION),))

    def here(host: str, port: int, *_: object, **__: object) -> list[Any]:
        hosts.add(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    def asked(port: int) -> None:
        s3 = boto3.client(
            "s3", endpoint_url=f"http://{DOMAIN}:{port}", region_name="us-east-1", aws_access_key_id="KEY",
            aws_secret_access_key=SECRET, config=Config(s3={"addressing_style": style}, signature_version="s3v4"),
        )  # fmt: skip
        for bucket in ("lab", "other.data"):
            s3.put_object(Bucket=bucket, Key="lab/a b", Body=b"bytes")
            assert s3.get_object(Bucket=bucket, Key="lab/a b")["Body"].read() == b"bytes"
            assert [each["Key"] for each in s3.list_objects_v2(Bucket=bucket)["Contents"]] == ["lab/a b"]
            url = s3.generate_presigned_url("get_object", {"Bucket": bucket, "Key": "lab/a b"})
            with urllib.request.urlopen(url) as answer:
                assert answer.read() == b"bytes"
            parts = {"Bucket": bucket, "Key": "lab/a b"}
            parts["UploadId"] = s3.create_multipart_upload(**parts)["UploadId"]
            part = {"ETag": s3.upload_part(**parts, PartNumber=1, Body=b"part")["ETag"], "PartNumber": 1}
            done = s3.complete_multipart_upload(**parts, MultipartUpload={"Parts": [part]})
            assert done["Location"] == url.partition("?")[0].replace("http:", "https:")
        assert [each["Name"] for each in s3.list_buckets()["Buckets"]] == ["lab", "other.data"]

    parts = door_parts(files, MemoryBytes(files), Dn("/CN=front"), 2)
    door = S3Door(S3Parts(parts, OneKey(), SystemClock(), LogicalName(ROOT, ()), DOMAIN), Metrics())
    async with plain(door.serve) as server:
        monkeypatch.setattr(socket, "getaddrinfo", here)
        monkeypatch.setattr("urllib3.util.connection.socket.getaddrinfo", here)
        await asyncio.to_thread(asked, server.port)
        monkeypatch.undo()
    assert (f"lab.{DOMAIN}" in hosts) is (style == "virtual")
