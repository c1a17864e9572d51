"""Limits of one user, or of one Shepherd that lies, at running daemons.

They cannot keep a node busy, reserve all space, have false copies believed, or write on an administrator's screen.
"""

from __future__ import annotations

import re
import shutil
import socket
import ssl
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest

from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.cluster.replicas import Location, ReplicaState
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BlobId, ObjectId, ReferenceId, RequestKey, ServiceId
from chelonia.core.metadata import Needed, Triple
from chelonia.core.ports.bartender import ListRequest, NameRequest
from chelonia.core.ports.librarian import Heartbeat, Report, ReportedReplica
from chelonia.core.values import replace
from chelonia.librarian.metadata.elements import outbox_record, shepherd_object
from chelonia.wire import soap
from chelonia.wire.operations.ahash import AHASH
from chelonia.wire.operations.bartender import BARTENDER
from tests.cluster.harness import Cluster, now_ms
from tests.cluster.load import locations, put, turl_for_get, turl_for_put, until_live
from tests.support.polling import poll, poll_async
from tests.support.shepherd import checksums

NOTHING = (Needed("metadata", "no such property"),)
FAT = tuple(Triple("policy", f"/CN=user {number:01900}", "+read") for number in range(60))
"""Rules that a service reads with each entry, to decide its reader's rights: 115 KB, the largest accepted number."""
ELEMENTS = 64
NOBODYS = "6f9619ff-8b86-4d01-b42d-00cf4fc964ff"
MIB = 1024 * 1024


# --- work ------------------------------------------------------------------------------------------------------------


async def test_a_listing_that_shows_nothing_ends_with_what_it_may_read_and_with_its_client(cluster: Cluster) -> None:
    async with cluster.client("user") as client:
        await client.make_collection("/fat")
        for number in range(40):
            await client.make_collection(f"/fat/{number}", FAT)
    url = cluster.url("bartender")
    asked = tuple(ListRequest(str(number), "/fat") for number in range(ELEMENTS))
    body = soap.encode_request(BARTENDER, "list", (asked, NOTHING, False))
    outcomes = soap.decode_response(BARTENDER, "list", cluster.soap(url, body, "user").body)
    assert [outcome.kind for outcome in outcomes].count(Kind.TOO_LARGE.value) > ELEMENTS // 2
    cluster.until_met("core", "read_bytes")
    path, length = urlsplit(url).path, len(body)
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: text/xml\r\nContent-Length: {length}\r\n\r\n".encode()

    def leaves() -> bool:
        with cluster.connected(url, "user") as connection:
            connection.sendall(head + body)
        return "limit='readers_gone'" in cluster.log_of("core")

    poll(leaves, what="the work of a client that has gone is ended")
    cluster.until_met("core", "readers_gone")


def test_a_caller_is_judged_before_his_arguments_and_a_stranger_sends_little(cluster: Cluster) -> None:
    asked = soap.encode_request(AHASH, "get", ((ObjectId("0"),), ()))
    torn = re.sub(rb"<ahash:get>.*</ahash:get>", b"<ahash:change/>", asked)
    for who, kind in (("service", "bad-xml"), ("user", "denied")):
        assert cluster.soap(cluster.url("ahash"), torn, who).kind == kind
    stat = soap.encode_request(BARTENDER, "stat", ((NameRequest("0", "/"),),))
    escaped = stat.replace(b"<bar:LN>/", b'<bar:LN escaped="1">' + rb"\u0041" * (bounds.SOAP_SMALL_BYTES // 6))
    assert len(escaped) > bounds.SOAP_SMALL_BYTES
    assert cluster.soap(cluster.url("bartender"), escaped, "anonymous").kind == "too-large"


# --- space -----------------------------------------------------------------------------------------------------------


async def test_space_that_one_user_reserves_and_does_not_use_is_there_for_another(cluster: Cluster) -> None:
    size, given = shutil.disk_usage(cluster.root).free // 2, 0
    async with cluster.client("user2") as greedy, cluster.client("user") as other:
        while size > 16 * MIB:
            try:
                await turl_for_put(greedy, f"/reserved-{given}", b"", 1, size=size)
                given += 1
            except CheloniaError as error:
                if error.kind is not Kind.NO_SPACE:
                    raise
                size //= 2
        assert given > 3
        for number in range(12):
            assert await turl_for_put(other, f"/wanted-{number}", b"", 1, size=64 * MIB)
        await put(other, "/stored", b"x" * MIB)
    [name, *_] = [name for name in cluster.shepherd_names if "limit='promises_ended'" in cluster.log_of(name)]
    cluster.until_met(name, "promises_ended")


# --- reports ---------------------------------------------------------------------------------------------------------


async def test_a_report_that_cannot_be_true_is_refused_and_an_order_that_nobody_can_obey_is_dropped(
    own_cluster: Callable[..., Cluster],
) -> None:
    cluster = own_cluster(restart=False)
    cluster.expect_log("an entry is refused|is void|erasure failed")
    async with cluster.client("user") as client, cluster.ports("core") as core:
        await put(client, "/believed", b"x" * 100_000)
        places = [place.partition(" ") for place in await until_live(client, "/believed", 2)]
        honest, reference = ServiceId(places[0][0]), places[0][2]
        page = await core.ahash.scan(Call(), shepherd_object(honest), "file", "", 10)
        blob = BlobId(dict(page.items)[reference])
        [liar] = {cluster.url(name) for name in cluster.shepherd_names} - {place[0] for place in places}
        name = cluster.named(liar)
        boot = (await cluster.nodes())[name].boot
        cluster.kill(name)
        bare = ReportedReplica("", ReferenceId(NOBODYS), ReplicaState.ALIVE, blob)
        entries = (
            bare,
            replace(bare, reference=ReferenceId("not-a-uuid")),
            replace(bare, reference=ReferenceId(NOBODYS[:-1] + "0"), blob=BlobId("a/../b")),
        )
        async with cluster.ports(name) as ports:
            answer = await ports.librarian.report(Call(), Report(ServiceId(liar), boot + 1, 1, entries))
            assert answer.accepted == 1
            assert not [place for place in await locations(client, "/believed") if place.startswith(liar)]
            whole = replace(bare, size=100_000, checksums=checksums(b"x" * 100_000))
            twice = (whole, replace(whole, reference=ReferenceId(NOBODYS[:-1] + "1")))
            answer = await ports.librarian.report(Call(), Report(ServiceId(liar), boot + 1, 2, twice))
            assert (answer.accepted, answer.unknown) == (2, (twice[1].reference,))
        told = [place for place in await locations(client, "/believed") if place.startswith(liar)]
        assert told == [f"{liar} {whole.reference}"], "one copy of a blob on a Shepherd, whatever it says"
    cluster.until_met("core", "report_entries")
    log = cluster.log_of("core")
    assert log.count("an entry is refused") == len(entries)
    assert "without its size or a checksum" in log
    assert f"{twice[1].reference}: not listed, this Shepherd has a copy of {blob} already" in log

    never = outbox_record(Location(honest, ReferenceId("not-a-uuid")), blob, "deleted", now_ms())
    async with cluster.ports("core") as ports:
        assert (await ports.ahash.transact(Call(), RequestKey(""), (never,))).applied

        async def gone() -> bool:
            page = await ports.ahash.scan(Call(), shepherd_object(honest), "erase", "", 10)
            return not page.items

        await poll_async(gone, 60.0, what="the order is dropped")
    cluster.until_met("core", "erasures_void")


# --- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("odd", ["", "file:///etc/passwd", "https://h:1/Shepherd\n", "https://h:1/\x1b[2J"])
async def test_a_stranger_does_not_choose_what_an_administrators_screen_shows(cluster: Cluster, odd: str) -> None:
    async with cluster.ports("user2") as ports, cluster.ports("admin") as admin:
        before = await admin.librarian.services(Call())
        with pytest.raises(CheloniaError) as refused:
            await ports.librarian.heartbeat(Call(), Heartbeat(ServiceId(odd), 1, 0, 1, 1, 0, True, "", ""))
        assert refused.value.kind is Kind.BAD_REQUEST
        assert await admin.librarian.services(Call()) == before


async def test_a_ticket_is_for_the_replica_that_its_turl_names(cluster: Cluster) -> None:
    async with cluster.client("user") as client:
        await put(client, "/named-by-turl", b"x" * 1000)
        reading = await turl_for_get(client, "/named-by-turl")
    head, _, ticket = reading.partition("?")
    folder, _, reference = head.rpartition("/")
    for other in (f"{reference[:-1]}{'0' if reference[-1] != '0' else '1'}", "a/b/c", ""):
        assert cluster.request("GET", f"{folder}/{other}?{ticket}").status in (403, 404), other
    assert cluster.request("GET", reading).status == 200


# --- TLS and HTTP ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("door", ["bartender", "librarian", "shepherd1"])
def test_no_door_agrees_on_cbc_or_undoes_a_coding(cluster: Cluster, door: str) -> None:
    url = cluster.url(door)
    context = cluster.context("admin")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE-ECDSA-AES128-SHA:ECDHE-RSA-AES128-SHA")
    with (
        socket.create_connection(("127.0.0.1", urlsplit(url).port or 0), 15) as plain,
        pytest.raises(ssl.SSLError),
    ):
        context.wrap_socket(plain, server_hostname="localhost")
    sent = (
        f"POST {urlsplit(url).path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n1\r\na\r\n0\r\n\r\n"
    )
    assert cluster.exchange(url, sent.encode(), "admin").status == 501
