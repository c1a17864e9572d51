"""Clients we did not write, against TURLs: curl with ranges, resume, proxies, 100-continue; ARC's absolute targets."""

import os
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.cluster.harness import Cluster
from tests.cluster.load import fetch, put, turl_for_get, turl_for_put
from tests.support.polling import patience

pytestmark = pytest.mark.capability("command:curl")

DATA = os.urandom(3_000_000)


def curl(cluster: Cluster, *arguments: str, who: str = "user") -> subprocess.CompletedProcess[bytes]:
    """Run curl as a caller; `-w` puts the status behind the body."""
    files = cluster.files(who)
    identity = ["--cert", str(files.cert), "--key", str(files.key)] if files.cert else []
    longest = str(round(20 * patience()))
    command = ["curl", "--silent", "--show-error", "--max-time", longest, "--capath", str(cluster.ca_dir), *identity]
    return subprocess.run([*command, *arguments], capture_output=True, check=False)


async def test_curl_gets_the_whole_and_any_range(cluster: Cluster, tmp_path: Path) -> None:
    async with cluster.client("user") as client:
        await put(client, "/curled", DATA)
        turl = await turl_for_get(client, "/curled")
    assert curl(cluster, turl).stdout == DATA
    assert curl(cluster, "-r", "0-9", turl).stdout == DATA[:10]
    assert curl(cluster, "-r", "1000000-1999999", turl).stdout == DATA[1_000_000:2_000_000]
    assert curl(cluster, "-r", "-7", turl).stdout == DATA[-7:]
    assert curl(cluster, "-r", "2999990-", turl).stdout == DATA[-10:]
    several = curl(cluster, "-i", "-r", "0-1,100-101", turl).stdout
    assert b"206 Partial Content" in several
    assert b"multipart/byteranges" in several
    assert b"Content-Range: bytes 100-101/3000000" in several
    beyond = curl(cluster, "-i", "-r", "3000000-", turl).stdout
    assert b" 416 " in beyond.splitlines()[0]
    assert b"content-range: bytes */3000000" in beyond.lower()
    half = tmp_path / "half"
    half.write_bytes(DATA[:1_234_567])
    assert curl(cluster, "-C", "-", "-o", str(half), turl).returncode == 0
    assert half.read_bytes() == DATA


async def test_curl_uploads_with_100_continue(cluster: Cluster, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(DATA)
    async with cluster.client("user") as client:
        turl = await turl_for_put(client, "/curl-put", DATA)
        sent = curl(cluster, "-v", "-H", "Expect: 100-continue", "-T", str(source), turl)
        assert b"100 Continue" in sent.stderr
        assert b" 201 " in sent.stderr
        assert await fetch(client, "/curl-put") == DATA
        refused = curl(cluster, "-v", "-H", "Expect: 100-continue", "-T", str(source), f"{turl}x")
        assert b"100 Continue" not in refused.stderr
        assert b" 403 " in refused.stderr


async def test_bodies_that_come_with_their_header_fields_are_taken(cluster: Cluster) -> None:
    """A client that does not pause sends header fields and body as one; none of it may be cut off."""
    async with cluster.client("user") as client:
        for number in range(10):
            turl = await turl_for_put(client, f"/at-once-{number}", DATA)
            parts = urlsplit(turl)
            head = f"PUT {parts.path}?{parts.query} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(DATA)}\r\n\r\n"
            assert cluster.exchange(turl, head.encode() + DATA).status == 201


async def test_curl_uploads_a_stream_of_unknown_length(cluster: Cluster, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(DATA)
    async with cluster.client("user") as client:
        turl = await turl_for_put(client, "/curl-chunked", DATA)
        sent = curl(cluster, "-i", "-H", "Transfer-Encoding: chunked", "-T", str(source), turl)
        assert b" 201 " in sent.stdout
        assert await fetch(client, "/curl-chunked") == DATA


async def test_a_proxy_certificate_is_its_user(cluster: Cluster, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(DATA)
    async with cluster.client("user") as client, cluster.client("proxy") as by_proxy:
        writing = await turl_for_put(client, "/by-proxy", DATA)
        assert b"201" in curl(cluster, "-i", "-T", str(source), writing, who="proxy").stdout
        reading = await turl_for_get(by_proxy, "/by-proxy")
        assert curl(cluster, reading, who="proxy").stdout == DATA
        assert curl(cluster, reading, who="user").stdout == DATA
        assert curl(cluster, "-f", reading, who="user2").returncode == 22
        assert (await client.stat("/by-proxy"))["entry"]["owner"].endswith("/CN=Jane Doe")


async def test_absolute_targets_are_accepted(cluster: Cluster) -> None:
    """ARC's clients put the whole URL into the request line, as one would to a proxy."""
    async with cluster.client("user") as client:
        await put(client, "/absolute", b"absolute bytes")
        turl = await turl_for_get(client, "/absolute")
        host = urlsplit(turl).netloc
        answer = cluster.exchange(turl, f"GET {turl} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        assert (answer.status, answer.body) == (200, b"absolute bytes")
        turl = await turl_for_put(client, "/absolute2", b"to store")
        head = f"PUT {turl} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 8\r\nConnection: close\r\n\r\n"
        assert cluster.exchange(turl, head.encode() + b"to store").status == 201
        assert await fetch(client, "/absolute2") == b"to store"
        bartender = cluster.url("bartender")
        head = f"GET {bartender}?wsdl HTTP/1.1\r\nHost: {urlsplit(bartender).netloc}\r\nConnection: close\r\n\r\n"
        assert b"definitions" in cluster.exchange(bartender, head.encode()).body
