"""Messages and bodies no honest client sends, at the real doors: a clear answer, a log line, nothing lost or leaked."""

import asyncio
import contextlib
import socket
from urllib.parse import urlsplit

import pytest

from chelonia.core import bounds
from chelonia.core.ports.bartender import NameRequest
from chelonia.wire import soap
from chelonia.wire.operations.bartender import BARTENDER
from tests.cluster.harness import Cluster
from tests.cluster.load import fetch, turl_for_put, until_live
from tests.support.polling import poll

STAT = soap.encode_request(BARTENDER, "stat", ((NameRequest("0", "/"),),))
HEAD = f'<e:Envelope xmlns:e="{soap.ENVELOPE}"><e:Body>'.encode()
TAIL = b"</e:Body></e:Envelope>"
BOMB = b'<!DOCTYPE b [<!ENTITY a "ha">' + b"".join(
    b'<!ENTITY %c "%s">' % (98 + n, b"&%c;" % (97 + n) * 10) for n in range(10)
)
CASES = {
    "truncated": (STAT[:-30], "bad-xml", 500),
    "an entity bomb": (BOMB + b"]>" + HEAD + b"<x>&k;</x>" + TAIL, "bad-xml", 500),
    "very deep": (HEAD + b"<x>" * 300_000 + b"</x>" * 300_000 + TAIL, "too-large", 413),
    "too large": (HEAD + b" " * bounds.SOAP_BODY_BYTES_MAX + TAIL, "too-large", 413),
    "another namespace": (STAT.replace(BARTENDER.namespace.encode(), b"urn:other"), "unknown-operation", 500),
}
"""Bodies, and the kind and status of the answer."""
DATA = bytes(range(256)) * 100_000
"""More than buffers on the way can hold: when all but a byte is sent, much of it has arrived."""


@pytest.mark.parametrize("door", ["bartender", "ahash", "librarian", "shepherd1"])
@pytest.mark.parametrize("name", CASES)
def test_a_bad_message_gets_a_clear_fault_at_every_door(cluster: Cluster, door: str, name: str) -> None:
    body, kind, status = CASES[name]
    answer = cluster.soap(cluster.url(door), body, "admin")
    assert (answer.status, answer.kind) == (status, kind), answer.text[:500]
    node = door if door == "shepherd1" else "core"
    assert f"fault service={door.rstrip('1')}" in cluster.log_of(node)
    assert cluster.soap(cluster.url("bartender"), STAT).status == 200


def test_plain_http_to_a_tls_port_is_cut_off(cluster: Cluster) -> None:
    port = urlsplit(cluster.url("bartender")).port
    with socket.create_connection(("127.0.0.1", port), 10) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        plain.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            assert b"200" not in plain.recv(1000)
    assert cluster.soap(cluster.url("bartender"), STAT).status == 200


async def test_a_body_shorter_than_declared_names_nothing_and_can_be_continued(cluster: Cluster) -> None:
    async with cluster.client("user") as client:
        turl = await turl_for_put(client, "/shorter", DATA)
        cut_off(cluster, turl, DATA[:-1], len(DATA))
        assert await client.exists("/shorter") == ""
        offset = await asyncio.to_thread(kept, cluster, turl)
        assert 0 < offset < len(DATA)
        part = {"Content-Range": f"bytes {offset}-{len(DATA) - 1}/{len(DATA)}"}
        assert cluster.request("PUT", turl, body=DATA[offset:], headers=part).status == 201
        assert await fetch(client, "/shorter") == DATA
        await until_live(client, "/shorter", 2)


def cut_off(cluster: Cluster, turl: str, part: bytes, length: int) -> None:
    """Declare the whole body, send a part, and hang up."""
    parts = urlsplit(turl)
    head = f"PUT {parts.path}?{parts.query} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Length: {length}\r\n\r\n"
    with cluster.connected(turl) as connection:
        connection.sendall(head.encode() + part)


def kept(cluster: Cluster, turl: str) -> int:
    """How many bytes of an interrupted upload the Shepherd has kept, once it has noticed."""

    def look() -> int:
        return int(cluster.request("HEAD", turl).headers.get("chelonia-offset", "0"))

    return poll(look, 40.0, what="the Shepherd keeps what came")
