"""What one caller may take of the others', at the real doors: space, work, places to wait; and what cannot be true."""

import contextlib
import re
import uuid
from collections.abc import Callable

from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.cluster.replicas import Checksums, ReplicaState
from chelonia.core.errors import CheloniaError
from chelonia.core.ids import BlobId, ReferenceId, ServiceId
from chelonia.core.metadata import Needed, Triple
from chelonia.core.names import parse_ln
from chelonia.core.ports.bartender import GetFileRequest, ListRequest
from chelonia.core.ports.files import Placing
from chelonia.core.ports.librarian import Heartbeat, Report, ReportedReplica
from chelonia.wire import soap
from chelonia.wire.operations.bartender import BARTENDER
from tests.cluster.harness import Cluster
from tests.cluster.load import locations, put, turl_for_put, until_live
from tests.support.polling import poll

FAT = "/limits-fat"


def reached(cluster: Cluster, limit: str, service: str = "bartender") -> float:
    """How often a bound was reached, as the node of `service` shows it."""
    shown = cluster.request("GET", f"{cluster.url(service).rsplit('/', 1)[0]}/metrics", "admin").text
    found = re.search(rf'^chelonia_limits_reached_total\{{limit="{limit}"\}} (\S+)$', shown, re.MULTILINE)
    return float(found[1]) if found else 0.0


async def test_a_listing_ends_with_what_it_may_read_and_with_its_client(cluster: Cluster) -> None:
    """One call of 7 KB kept the node busy for half a minute after its sender had gone, and took 500 MB."""
    rules = [Triple("policy", f"/CN={n:04}" + "x" * 500, "+read") for n in range(bounds.POLICY_RULES_MAX)]
    async with cluster.client("user") as client:
        await client.make_collection(FAT)
        for n in range(60):
            await client.make_collection(f"{FAT}/{n}", rules)
    requests = tuple(ListRequest(str(n), FAT) for n in range(64))
    message = soap.encode_request(BARTENDER, "list", (requests, (Needed("metadata", "none"),), False))
    before = reached(cluster, "read_bytes"), reached(cluster, "readers_gone")
    answer = cluster.soap(cluster.url("bartender"), message)
    assert "this call read over 32 MiB" in answer.text
    assert reached(cluster, "read_bytes") == before[0] + 1
    head = b"POST /Bartender HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(message)
    with contextlib.ExitStack() as open_ones:
        for _ in range(6):
            open_ones.enter_context(cluster.connected(cluster.url("bartender"))).sendall(head + message)
    poll(lambda: reached(cluster, "readers_gone") > before[1], 60.0, what="the work ends with its client")
    async with cluster.client("admin") as other:
        assert [entry.name async for entry in other.list("/")]
    async with cluster.client("user") as client:
        for n in range(60):
            await client.unmake_collection(f"{FAT}/{n}")
        await client.unmake_collection(FAT)


async def test_space_that_one_user_reserves_without_a_byte_is_there_for_another(
    own_cluster: Callable[..., Cluster],
) -> None:
    """25 uploads without a byte shut others out for two minutes, again and again. The user's own wait that long."""
    cluster = own_cluster(shepherds=3)
    free = min(node.free_bytes for node in (await cluster.nodes()).values())
    sizes = [int(free * 0.95) >> n for n in range(13)] * 2
    async with cluster.client("user") as idle:
        for n, size in enumerate(sizes[:25]):
            await idle.files.place(Call(), (Placing(parse_ln(f"/limits-idle{n}"), size, wanted=1),))
    async with cluster.client("admin") as other:
        for n in range(12):
            assert await turl_for_put(other, f"/limits-mine{n}", b"", 1, size=16 << 20)
        data = b"some bytes"
        await put(other, "/limits-stored", data, 2)


async def test_a_ticket_is_for_the_replica_that_the_path_names(cluster: Cluster) -> None:
    async with cluster.client("user") as client:
        turl = await turl_for_put(client, "/limits-path", b"abc", 1)
    path, _, query = turl.partition("?")
    for other in (str(uuid.uuid4()), "a/b/c", ""):
        answer = cluster.request("PUT", f"{path.rpartition('/')[0]}/{other}?{query}", body=b"abc")
        assert (answer.status, answer.kind) == (403, "bad-ticket"), other
    assert cluster.request("PUT", turl, body=b"abc").status == 201


async def test_a_stranger_waits_under_an_address_or_not_at_all(cluster: Cluster) -> None:
    odd = ("", "-", "file:///etc/passwd", "https://[::1", "https://h:1/Shepherd\nhttps://good:1/Shepherd alive")
    async with cluster.ports("user") as ports:
        for service in odd:
            beat = Heartbeat(ServiceId(service), 1, 0, 1, 1, 0, True, "", "")
            with contextlib.suppress(CheloniaError):
                assert not (await ports.librarian.heartbeat(Call(), beat)).known, service
    async with cluster.ports("admin") as ports:
        known = {record.service_id for record in await ports.librarian.services(Call())}
    assert not known & {ServiceId(service) for service in odd if service}


async def test_what_cannot_be_true_is_not_listed(own_cluster: Callable[..., Cluster]) -> None:
    """A Shepherd's key was enough to have three copies of one blob listed, one of them `not-a-uuid`."""
    cluster = own_cluster(shepherds=3, restart=False)
    cluster.expect_log("an entry is refused")
    async with cluster.client("user") as client:
        await put(client, "/f", b"abc", 2)
        there = {cluster.named(location) for location in await until_live(client, "/f", 2)}
        before = reached(cluster, "report_entries", "librarian")
        liar = next(name for name in cluster.shepherd_names if name not in there)
        cluster.kill(liar)
        blob = BlobId(cluster.request("HEAD", await read_turl(cluster, "/f")).headers["etag"].strip('"'))
        replica = ReportedReplica("", ReferenceId("not-a-uuid"), ReplicaState.ALIVE, blob, 3, Checksums(md5="0" * 32))
        bare = [ReportedReplica("", ReferenceId(str(uuid.uuid4())), ReplicaState.ALIVE, blob) for _ in range(3)]
        async with cluster.ports(liar) as ports:
            report = Report(ServiceId(cluster.url(liar)), 10**15, 1, (replica, *bare))
            assert (await ports.librarian.report(Call(), report)).accepted == 1
        assert {cluster.named(location) for location in await locations(client, "/f")} == there
        assert reached(cluster, "report_entries", "librarian") == before + 4


async def read_turl(cluster: Cluster, ln: str) -> str:
    """A TURL to read a file."""
    async with cluster.ports("user") as ports:
        [answer] = await ports.bartender.get_file(Call(), (GetFileRequest("0", ln, ("http",)),))
        return answer.turl
