"""Two front ends of the S3 door and boto3, whose endpoint is a name with both addresses: one is overloaded."""

from __future__ import annotations

import asyncio
import socket
from typing import Any
from unittest.mock import AsyncMock

import boto3
import pytest
from botocore.config import Config

from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ROOT, Dn, Ms
from chelonia.core.metadata import TYPE_COLLECTION
from chelonia.core.names import LogicalName
from chelonia.core.ports.access_keys import AccessKey, IssuedKey
from chelonia.core.ports.files import Make
from chelonia.hosting.doors.http_server import HttpServer, ListenSettings
from chelonia.hosting.doors.s3.door import S3Door
from chelonia.hosting.doors.s3.parts import S3Parts
from chelonia.hosting.metrics import Metrics
from chelonia.hosting.net.clock import SystemClock
from tests.support.cluster import MemoryCluster
from tests.support.door_parts import door_parts
from tests.unit.hosting.doors.test_plain_door import MemoryBytes
from tests.unit.hosting.listening import PLAIN

JOE, SECRET = Dn("/CN=joe"), "secret"
BUSY = "127.0.0.1"
FREE = "127.0.0.2"


class OneKey:
    async def find(self, key_id: str) -> IssuedKey | None:
        return IssuedKey(AccessKey(key_id, JOE, Ms(0), Ms(0), ""), SECRET)


def door_of(files: MemoryCluster, metrics: Metrics | None = None) -> S3Door:
    plain = door_parts(files, MemoryBytes(files), Dn("/CN=front"), 2)
    return S3Door(S3Parts(plain, OneKey(), SystemClock(), LogicalName(ROOT, ())), metrics or Metrics())


async def test_boto3_goes_on_at_another_front_end(monkeypatch: pytest.MonkeyPatch) -> None:
    busy, free = MemoryCluster(JOE), MemoryCluster(JOE)
    overloaded = AsyncMock(side_effect=CheloniaError(Kind.BUSY, cause="more to do than it can"))
    monkeypatch.setattr(busy, "look", overloaded)
    first = HttpServer(door_of(busy).serve, ListenSettings(BUSY, 0, None, False), PLAIN)
    await first.start()
    second = HttpServer(door_of(free).serve, ListenSettings(FREE, first.port, None, False), PLAIN)
    await second.start()
    await free.apply(Call(dn=JOE), (Make(LogicalName(ROOT, ("lab",)), TYPE_COLLECTION),))
    lookups = 0

    def both(host: str, port: int, *_: object, **__: object) -> list[Any]:
        """The addresses from a name server that rotates them."""
        nonlocal lookups
        lookups += 1
        addresses = (BUSY, FREE) if lookups % 2 else (FREE, BUSY)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr("urllib3.util.connection.socket.getaddrinfo", both)
    client = boto3.client(
        "s3", endpoint_url=f"http://s3.example.org:{first.port}", region_name="us-east-1",
        aws_access_key_id="KEY", aws_secret_access_key=SECRET,
        config=Config(retries={"total_max_attempts": 2, "mode": "standard"}, s3={"addressing_style": "path"}),
    )  # fmt: skip

    def asked() -> bytes:
        client.put_object(Bucket="lab", Key="k", Body=b"bytes")
        return bytes(client.get_object(Bucket="lab", Key="k")["Body"].read())

    try:
        assert await asyncio.to_thread(asked) == b"bytes"
        assert overloaded.await_count > 0
        assert lookups > 1, "a busy front end lets its clients go"
    finally:
        monkeypatch.undo()
        await second.stop(1000)
        await first.stop(1000)
