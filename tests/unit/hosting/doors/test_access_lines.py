"""The access log: a line for each request, with the facts that only its door knows."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from chelonia.core.caller import Call
from chelonia.core.ids import ROOT
from chelonia.core.metadata import TYPE_COLLECTION
from chelonia.core.names import LogicalName
from chelonia.core.ports.files import Make
from chelonia.core.values import replace
from chelonia.hosting.doors.http_server import HttpServer, ListenSettings
from chelonia.hosting.doors.plain.door import PlainDoor
from chelonia.hosting.doors.routes import observer
from chelonia.hosting.logging_setup import ACCESS_LOGGER, LogSettings, configure
from chelonia.hosting.metrics import Metrics
from chelonia.hosting.net.http_messages import Door, HttpRequest
from tests.support.cluster import MemoryCluster
from tests.support.door_parts import door_parts
from tests.support.polling import poll_async
from tests.support.process_state import logging_kept
from tests.unit.hosting.doors.test_plain_door import EVE, MemoryBytes
from tests.unit.hosting.doors.test_s3_busy import JOE, SECRET, door_of
from tests.unit.hosting.listening import PLAIN, talk


@pytest.fixture
def lines(tmp_path: Path) -> Iterator[Path]:
    with logging_kept():
        configure(LogSettings(access_file=str(tmp_path / "access.log")), "n1", logging.Logger("another root"))  # noqa: LOG001
        yield tmp_path / "access.log"


@contextlib.asynccontextmanager
async def served(door: Door) -> Any:
    server = HttpServer(door, ListenSettings("127.0.0.1", 0, None, False), replace(PLAIN, observe=observer(Metrics())))
    await server.start()
    try:
        yield server
    finally:
        await server.stop(1000)


async def test_a_line_says_who_has_signed_which_operation_and_how_it_ended(lines: Path) -> None:
    files = MemoryCluster(JOE)
    await files.apply(Call(dn=JOE), (Make(LogicalName(ROOT, ("lab",)), TYPE_COLLECTION),))

    def asked(port: int) -> None:
        client = boto3.client(
            "s3", endpoint_url=f"http://127.0.0.1:{port}", region_name="us-east-1", aws_access_key_id="KEY",
            aws_secret_access_key=SECRET, config=Config(s3={"addressing_style": "path"}),
        )  # fmt: skip
        client.put_object(Bucket="lab", Key="k", Body=b"bytes")
        assert client.get_object(Bucket="lab", Key="k")["Body"].read() == b"bytes"
        with pytest.raises(ClientError):
            client.get_object(Bucket="lab", Key="none")

    metrics = Metrics()
    async with served(door_of(files, metrics).serve) as server:
        await asyncio.to_thread(asked, server.port)
        await talk(server, b"GET /lab/k?X=secret HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        await poll_async(lambda: _told(lines, 4), 10, what="lines of four requests")
    told = [re.sub(r" (ms|request)=\w+", "", line.partition("chelonia.http.access ")[2]) for line in _told(lines, 4)]
    assert "Botocore/" in told[0]
    assert "level=INFO" in _told(lines, 4)[0]
    told = [re.sub(r"agent='[^']+'", "agent='...'", line) for line in told]
    joe = r"who='/CN=joe' from=127.0.0.1 agent='...'"
    assert told[0].startswith("PUT '/lab/k' status=200 body=")
    assert told[0].endswith(f"sent=0 {joe} operation=PutObject")
    assert told[1] == f"GET '/lab/k' status=200 body=0 sent=5 {joe} operation=GetObject"
    assert re.fullmatch(f"GET '/lab/none' status=404 body=0 sent=[0-9]+ {re.escape(joe)} operation=GetObject "
                        "error=NoSuchKey", told[2])  # fmt: skip
    assert re.fullmatch("GET '/lab/k' status=403 body=0 sent=[0-9]+ who='ANONYMOUS' from=127.0.0.1 agent='' "
                        "operation=GetObject error=AccessDenied", told[3])  # fmt: skip
    counted = 'chelonia_requests_total{operation="GetObject",outcome="%s",service="s3"} 1.0'
    exposed = (await metrics.expose()).decode()
    assert all(counted % outcome in exposed for outcome in ("ok", "not-found", "denied"))


async def test_a_line_says_whom_a_token_speaks_for(lines: Path) -> None:
    files = MemoryCluster(JOE)

    async def eve(request: HttpRequest) -> Call:
        return Call(dn=EVE if request.method == "GET" else JOE)

    parts = door_parts(files, MemoryBytes(files), EVE, 2)
    async with served(PlainDoor(parts, eve, Metrics()).serve) as server:
        for words in (b"MKCOL /lab", b"GET /none"):
            await talk(server, words + b" HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        await poll_async(lambda: _told(lines, 2), 10, what="lines of two requests")
    first, second = _told(lines, 2)
    assert "who='/CN=joe'" in first
    assert first.endswith("operation=MKCOL")
    assert "who='/CN=eve'" in second
    assert second.endswith("error=not-found")


async def test_a_reader_who_goes_away_has_a_line_too(lines: Path) -> None:
    files = MemoryCluster(JOE)
    await files.apply(Call(dn=JOE), (Make(LogicalName(ROOT, ("lab",)), TYPE_COLLECTION),))

    async def joe(request: HttpRequest) -> Call:
        return Call(dn=JOE)

    async with served(PlainDoor(door_parts(files, MemoryBytes(files), EVE, 2), joe, Metrics()).serve) as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"PUT /lab/k HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab")
        await writer.drain()
        writer.transport.abort()
        await poll_async(lambda: _told(lines, 1), 10, what="a line")
    assert " sent=-1 " in _told(lines, 1)[0]


def _told(path: Path, count: int) -> list[str]:
    """The lines, once there are so many."""
    found = path.read_text().splitlines() if path.exists() else []
    return found if len(found) == count else []


def test_requests_have_lines_where_they_are_asked_for(lines: Path) -> None:
    """Else each would be one more line in a node's own log."""
    logger, root = logging.getLogger(ACCESS_LOGGER), logging.Logger("another root")  # noqa: LOG001
    for handler in logger.handlers:
        handler.close()
    for settings, told in (
        (LogSettings(), False), (LogSettings(level="DEBUG"), True), (LogSettings(access_file=str(lines)), True),
    ):  # fmt: skip
        configure(settings, "n1", root)
        assert logger.isEnabledFor(logging.INFO) is told, settings
