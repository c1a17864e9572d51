"""Messages and bodies no honest client sends, at the real doors: a clear answer, a log line, nothing lost or leaked."""

import asyncio
import base64
import contextlib
import hashlib
import http.client
import socket
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ports.bartender import NameRequest
from chelonia.wire import soap
from chelonia.wire.operations.bartender import BARTENDER
from tests.cluster.harness import Answer, Cluster, read_answer
from tests.cluster.load import fetch, put, turl_for_put, until_live
from tests.support.polling import patience, poll

STAT = soap.encode_request(BARTENDER, "stat", ((NameRequest("0", "/"),),))
HEAD = f'<e:Envelope xmlns:e="{soap.ENVELOPE}"><e:Body>'.encode()
TAIL = b"</e:Body></e:Envelope>"
BOMB = b'<!DOCTYPE b [<!ENTITY a "ha">' + b"".join(
    b'<!ENTITY %c "%s">' % (98 + n, b"&%c;" % (97 + n) * 10) for n in range(10)
)


@dataclass(frozen=True)
class Case:
    """A body, and what must be said of it."""

    name: str
    body: bytes
    kind: str = "bad-xml"
    status: int = 500
    says: str = ""


CASES = [
    Case("nothing", b""),
    Case("no XML", b"GET me a file, please"),
    Case("truncated", STAT[:-30]),
    Case("two roots", STAT + STAT[STAT.index(b"<soap-env") :]),
    Case("not UTF-8", STAT.replace(b">/<", b">\xff\xfe<")),
    Case("NUL", STAT.replace(b">/<", b">/\x00<")),
    Case("a DTD", b"<!DOCTYPE e [ <!ELEMENT e ANY> ]>" + HEAD + TAIL),
    Case("an entity bomb", BOMB + b"]>" + HEAD + b"<x>&k;</x>" + TAIL),
    Case("a foreign entity", b'<!DOCTYPE e [<!ENTITY x SYSTEM "file:///etc/passwd">]>' + HEAD + b"<x>&x;</x>" + TAIL),
    Case("a little deep", HEAD + b"<x>" * 100 + b"</x>" * 100 + TAIL, kind="too-large", status=413),
    Case("very deep", HEAD + b"<x>" * 300_000 + b"</x>" * 300_000 + TAIL, kind="too-large", status=413),
    Case("many elements", HEAD + b"<x/>" * 250_000 + TAIL, kind="too-large", status=413),
    Case("too large", HEAD + b" " * bounds.SOAP_BODY_BYTES_MAX + TAIL, kind="too-large", status=413),
    Case("an empty Body", HEAD + TAIL),
    Case("SOAP 1.2", STAT.replace(soap.ENVELOPE.encode(), soap.SOAP_12.encode()), says="SOAP 1.1"),
    Case("an unknown operation", STAT.replace(b"stat", b"format"), kind="unknown-operation", says="wrong request"),
    Case(
        "another namespace",
        STAT.replace(BARTENDER.namespace.encode(), b"urn:other"),
        kind="unknown-operation",
        says=f"wrong namespace. expected: {BARTENDER.namespace}",
    ),
    Case(
        "a header to be understood",
        STAT.replace(
            b"<soap-env:Body>",
            b'<soap-env:Header><x soap-env:mustUnderstand="1"/></soap-env:Header><soap-env:Body>',
        ),
        kind="not-supported",
    ),
    Case(
        "too many at once",
        soap.encode_request(BARTENDER, "stat", (tuple(NameRequest(str(n), "/") for n in range(1001)),)),
        kind="too-large",
        status=413,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_bad_message_gets_a_clear_fault(cluster: Cluster, case: Case) -> None:
    before = time.monotonic()
    answer = cluster.soap(cluster.url("bartender"), case.body)
    assert (answer.status, answer.kind) == (case.status, case.kind), answer.text[:500]
    assert case.says in answer.text
    assert "root:" not in answer.text
    assert "Traceback" not in answer.text
    assert time.monotonic() - before < 15 * patience(), "it took too long"
    assert "fault service=bartender" in cluster.log_of("core")
    assert cluster.soap(cluster.url("bartender"), STAT).status == 200


@pytest.mark.parametrize("door", ["ahash", "librarian", "shepherd1"])
@pytest.mark.parametrize("name", ["truncated", "an entity bomb", "very deep", "too large", "another namespace"])
def test_the_other_doors_are_as_hard(cluster: Cluster, door: str, name: str) -> None:
    case = next(case for case in CASES if case.name == name)
    answer = cluster.soap(cluster.url(door), case.body, "admin")
    assert (answer.status, answer.kind) == (case.status, case.kind)


# --- HTTP ---


def request_bytes(cluster: Cluster, head: str, body: bytes = b"") -> bytes:
    """A request to the Bartender, head as given; `{path}` and `{host}` are filled in."""
    parts = urlsplit(cluster.url("bartender"))
    return head.format(path=parts.path, host=parts.netloc).replace("\n", "\r\n").encode() + body


@pytest.mark.parametrize(
    ("head", "statuses"),
    [
        ("POST {path} HTTP/1.1\nHost: {host}\nContent-Length: many\n\n", {400}),
        ("POST {path} HTTP/1.1\nHost: {host}\nContent-Length: -5\n\n", {400}),
        ("POST {path} HTTP/1.1\nHost: {host}\nContent-Length: 5\nContent-Length: 6\n\nabcdef", {400}),
        ("POST {path} HTTP/1.1\nHost: {host}\nContent-Length: 5\nTransfer-Encoding: chunked\n\n0\n\n", {400}),
        ("POST {path} HTTP/1.1\nHost: {host}\nTransfer-Encoding: chunked\n\nzz\nabc\n0\n\n", {400}),
        ("GET {path} HTTP/1.1\nHost: {host}\nX-Long: " + "x" * 40_000 + "\n\n", {431}),
        ("GET {path}?" + "x" * 40_000 + " HTTP/1.1\nHost: {host}\n\n", {431}),
        ("BREW {path} HTTP/1.1\nHost: {host}\n\n", {400, 405}),
        ("DELETE {path} HTTP/1.1\nHost: {host}\n\n", {405}),
        ("GET /nothing HTTP/1.1\nHost: {host}\n\n", {404}),
        ("POST /nothing HTTP/1.1\nHost: {host}\nContent-Length: 0\n\n", {404}),
        ("GET /../../etc/passwd HTTP/1.1\nHost: {host}\n\n", {400, 404}),
        ("\x01\x02\x03\n\n", {400}),
    ],
    ids=lambda value: value[:60] if isinstance(value, str) else "",
)
def test_malformed_http_is_refused(cluster: Cluster, head: str, statuses: set[int]) -> None:
    answer = cluster.exchange(cluster.url("bartender"), request_bytes(cluster, head))
    assert answer.status in statuses, answer.text[:300]
    assert "Traceback" not in answer.text
    assert cluster.soap(cluster.url("bartender"), STAT).status == 200


def test_plain_http_to_a_tls_port_is_cut_off(cluster: Cluster) -> None:
    port = urlsplit(cluster.url("bartender")).port
    with socket.create_connection(("127.0.0.1", port), 10) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        plain.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            assert b"200" not in plain.recv(1000)
    assert cluster.soap(cluster.url("bartender"), STAT).status == 200


def test_a_message_shorter_than_declared_is_not_obeyed(cluster: Cluster) -> None:
    made = soap.encode_request(BARTENDER, "unmake_collection", ((NameRequest("0", "/short"),),))
    head = f"POST {{path}} HTTP/1.1\nHost: {{host}}\nContent-Length: {len(made) + 10}\n\n"
    assert ended(cluster, request_bytes(cluster, head, made)) in (None, 400)
    assert cluster.soap(cluster.url("bartender"), STAT).status == 200


def test_what_follows_a_message_is_not_taken_for_part_of_it(cluster: Cluster) -> None:
    head = f"POST {{path}} HTTP/1.1\nHost: {{host}}\nContent-Length: {len(STAT)}\n\n"
    with cluster.connected(cluster.url("bartender")) as connection:
        connection.sendall(request_bytes(cluster, head, STAT + b"and more of it\r\n\r\n"))
        first = read_answer(connection)
        assert first.status in (200, 400)
        with contextlib.suppress(OSError, http.client.HTTPException):
            assert first.status == 400 or read_answer(connection).status == 400


def ended(cluster: Cluster, sent: bytes) -> int | None:
    """Send and end the connection; the status that came, None when nothing did."""
    try:
        return cluster.exchange(cluster.url("bartender"), sent, end=True).status
    except (OSError, http.client.HTTPException):
        return None


# --- bodies of uploads ---

DATA = bytes(range(256)) * 500
WRONG_MD5 = base64.b64encode(hashlib.md5(b"other").digest()).decode()
WRONG_SHA = base64.b64encode(hashlib.sha256(b"other").digest()).decode()


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-MD5": WRONG_MD5},
        {"Digest": f"sha-256={WRONG_SHA}"},
        {"Digest": "adler32=00000001"},
        {"Repr-Digest": f"sha-256=:{WRONG_SHA}:"},
    ],
    ids=lambda headers: next(iter(headers.items()))[0] + next(iter(headers.values()))[:8],
)
async def test_bytes_that_do_not_match_their_announced_checksum_are_not_kept(
    cluster: Cluster, headers: dict[str, str]
) -> None:
    ln = f"/sums-{abs(hash(tuple(headers.items())))}"
    async with cluster.client("user") as client:
        turl = await turl_for_put(client, ln, DATA)
        answer = cluster.request("PUT", turl, body=DATA, headers=headers)
        assert (answer.status, answer.kind) == (400, "checksum"), answer.text
        assert await client.exists(ln) == ""
        turl = await turl_for_put(client, ln, DATA)
        assert cluster.request("PUT", turl, body=DATA).status == 201
        assert await fetch(client, ln) == DATA


async def test_bytes_that_do_not_match_the_checksum_of_putfile_are_not_kept(cluster: Cluster) -> None:
    async with cluster.client("user") as client:
        turl = await turl_for_put(client, "/lied", DATA)
        answer = cluster.request("PUT", turl, body=DATA[::-1])
        assert (answer.status, answer.kind) == (400, "checksum")
        assert await client.exists("/lied") == ""


async def test_a_body_longer_than_the_ticket_is_refused(cluster: Cluster) -> None:
    async with cluster.client("user") as client:
        turl = await turl_for_put(client, "/longer", DATA)
        answer = refused_early(cluster, turl, DATA + b"more")
        assert (answer.status, answer.kind) == (413, "too-large")
        assert await client.exists("/longer") == ""


async def test_a_body_shorter_than_declared_names_nothing_and_can_be_continued(cluster: Cluster) -> None:
    data = DATA * 200  # more than buffers on the way can hold: when all but a byte is sent, much of it has arrived
    async with cluster.client("user") as client:
        turl = await turl_for_put(client, "/shorter", data)
        cut_off(cluster, turl, data[:-1], len(data))
        assert await client.exists("/shorter") == ""
        offset = await asyncio.to_thread(kept, cluster, turl)
        assert 0 < offset < len(data)
        part = {"Content-Range": f"bytes {offset}-{len(data) - 1}/{len(data)}"}
        assert cluster.request("PUT", turl, body=data[offset:], headers=part).status == 201
        assert await fetch(client, "/shorter") == data
        await until_live(client, "/shorter", 2)


async def test_a_declared_length_below_the_ticket_is_no_complete_upload(cluster: Cluster) -> None:
    async with cluster.client("user") as client:
        turl = await turl_for_put(client, "/declared", DATA)
        answer = cluster.request("PUT", turl, body=DATA[:1000])
        assert answer.status in (308, 400)
        assert await client.exists("/declared") == ""


async def test_metadata_out_of_range_is_refused(cluster: Cluster) -> None:
    async with cluster.client("user") as client:
        for size in (-2, 1 << 80):
            with pytest.raises(CheloniaError) as caught:
                await turl_for_put(client, "/odd-size", DATA, size=size)
            assert caught.value.kind in (Kind.BAD_REQUEST, Kind.MISSING_METADATA, Kind.TOO_LARGE, Kind.NO_SHEPHERD)
        for replicas in (-1, 1000):
            with pytest.raises(CheloniaError) as caught:
                await turl_for_put(client, "/odd-count", DATA, replicas)
            assert caught.value.kind in (Kind.BAD_REQUEST, Kind.MISSING_METADATA, Kind.TOO_LARGE)
        await put(client, "/after-odd", DATA)


def refused_early(cluster: Cluster, turl: str, body: bytes) -> Answer:
    """PUT with `Expect: 100-continue`, which a refusal answers at once."""
    return cluster.request("PUT", turl, body=body, headers={"Expect": "100-continue"})


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
