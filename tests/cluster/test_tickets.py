"""Tickets in TURLs, at a real Shepherd: good once, for one thing, in one pair of hands, for a while."""

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from chelonia.core.caller import Call
from chelonia.core.cluster.replicas import Checksums, ReplicaFacts
from chelonia.core.ids import BlobId, Dn, Guid, Ms, ReferenceId
from chelonia.core.ports.bartender import GetFileRequest
from chelonia.core.ports.shepherd import GetRequest, Purpose, PutRequest
from chelonia_clients.client import Client, new_call
from tests.cluster.harness import Away, Cluster, now_ms
from tests.cluster.load import fetch, put, turl_for_put, until_live
from tests.support.polling import poll, poll_async

DATA = bytes(range(256)) * 40


async def turl_for_get(client: Client, ln: str) -> str:
    [answer] = await client.bartender.get_file(new_call(), (GetFileRequest("0", ln, ("http",)),))
    assert answer.turl, answer
    return answer.turl


def altered(turl: str) -> list[str]:
    """TURLs whose tickets were touched: a character changed at several places, one cut off, one added, none left."""
    head, _, ticket = turl.partition("ticket=")
    other = {True: "A", False: "B"}
    spots = (0, 5, len(ticket) // 2, len(ticket) - 5)
    bent = [ticket[:n] + other[ticket[n] != "A"] + ticket[n + 1 :] for n in spots]
    return [f"{head}ticket={bad}" for bad in (*bent, ticket[:-4], ticket + "AAAA", "", "x" * 9000)]


async def test_an_altered_ticket_opens_nothing(cluster: Cluster) -> None:
    async with cluster.client("user") as client:
        await put(client, "/altered", DATA)
        for turl in altered(await turl_for_get(client, "/altered")):
            answer = cluster.request("GET", turl)
            assert answer.status == 403, turl[-40:]
            assert answer.kind == "bad-ticket"
        for turl in altered(await turl_for_put(client, "/altered2", DATA)):
            assert cluster.request("PUT", turl, body=DATA).status == 403
        assert await client.exists("/altered2") == ""


async def test_a_ticket_is_of_no_use_to_another_user(cluster: Cluster) -> None:
    async with cluster.client("user") as client:
        await put(client, "/mine", DATA)
        reading, writing = await turl_for_get(client, "/mine"), await turl_for_put(client, "/mine2", DATA)
        for thief in ("user2", "anonymous", "admin", "shepherd2"):
            answer = cluster.request("GET", reading, thief)
            assert (answer.status, answer.kind) == (403, "bad-ticket")
            assert DATA[:100] not in answer.body
            assert cluster.request("PUT", writing, thief, body=DATA).status == 403
        assert cluster.request("GET", reading).body == DATA
        assert cluster.request("GET", reading, "proxy").body == DATA, "the user's proxy is the user"
        assert cluster.request("PUT", writing, body=DATA).status == 201


async def test_a_ticket_is_for_one_method_and_one_shepherd(cluster: Cluster) -> None:
    async with cluster.client("user") as client:
        await put(client, "/method", DATA)
        reading, writing = await turl_for_get(client, "/method"), await turl_for_put(client, "/method2", DATA)
        assert cluster.request("PUT", reading, body=b"x" * len(DATA)).status == 403
        assert cluster.request("GET", writing).status == 403
        own = cluster.named(reading)
        for name in cluster.shepherd_names:
            if name != own:
                parts = urlsplit(reading)
                elsewhere = f"{cluster.data_url(name)}{parts.path}?{parts.query}"
                assert cluster.request("GET", elsewhere).status == 403
        assert await fetch(client, "/method") == DATA


async def test_a_completed_upload_cannot_be_replayed(cluster: Cluster) -> None:
    async with cluster.client("user") as client:
        turl = await turl_for_put(client, "/replayed", DATA)
        assert cluster.request("PUT", turl, body=DATA).status == 201
        other = cluster.request("PUT", turl, body=DATA[::-1])
        assert other.status in (400, 403, 409), other.text
        again = cluster.request("PUT", turl, body=DATA)
        assert again.status in (201, 409), again.text
        assert await fetch(client, "/replayed") == DATA
        await until_live(client, "/replayed", 2)
        await client.del_file("/replayed")
        late = cluster.request("PUT", turl, body=DATA)
        assert late.status != 201 or await client.exists("/replayed") == ""


async def test_a_ticket_bound_to_nobody_is_good_for_one_body(cluster: Cluster) -> None:
    async with cluster.client("user") as client, cluster.client("anonymous") as stranger:
        await put(client, "/once", DATA)
        turl = await turl_for_get(stranger, "/once")
        assert cluster.request("GET", turl, "anonymous").body == DATA
        again = cluster.request("GET", turl, "anonymous")
        assert (again.status, again.kind) == (409, "already-done")


async def test_an_expired_ticket_is_refused(cluster: Cluster) -> None:
    async with cluster.client("user") as client, cluster.ports("core") as ports:
        await put(client, "/soon", DATA)
        place = min(await until_live(client, "/soon", 2))
        name, reference = cluster.named(place), ReferenceId(place.split()[1])
        dn = Dn("/DC=org/DC=chelonia/O=Dev/CN=Jane Doe")
        wishes = [GetRequest("0", reference, ("http",), dn=dn, lifetime_ms=ms) for ms in (600_000, 1_000)]
        [lasting] = await ports.shepherds[name].get(Call(), (wishes[0],))
        assert cluster.request("GET", lasting.turl).body == DATA
        [reading] = await ports.shepherds[name].get(Call(), (wishes[1],))
        blob = BlobId("00000000-0000-4000-8000-000000000001")
        facts = ReplicaFacts(blob, Guid(blob), "/x", dn, len(DATA), Checksums(), 1, Ms(0))
        put_wish = PutRequest("0", facts, Purpose.RECEIPT, ("http",), dn=dn, lifetime_ms=1_000)
        [writing] = await ports.shepherds[name].put(Call(), (put_wish,))
        poll(lambda: cluster.request("GET", reading.turl).kind == "expired", 20.0)
        answer = cluster.request("GET", reading.turl)
        assert (answer.status, answer.kind) == (403, "expired")
        poll(lambda: cluster.request("PUT", writing.turl, body=DATA).status == 403, 20.0)


async def test_bytes_that_nobody_commits_are_set_aside_after_their_ticket_however_often_it_is_killed_and_are_counted(
    own_cluster: Callable[..., Cluster],
) -> None:
    cluster, name = own_cluster(small_as_files=True), "shepherd1"
    cluster.reconfigure(name, shepherd={"tuning": {"unknown_grace_ms": 4_000}})
    await cluster.until_alive(name)
    blob = BlobId("00000000-0000-4000-8000-000000000001")
    facts = ReplicaFacts(blob, Guid(blob), "/x", Dn("/CN=a"), len(DATA), Checksums(), 1, now_ms())
    async with cluster.ports("core", retry_ms=10_000) as ports:
        wish = PutRequest("0", facts, Purpose.RECEIPT, ("http",), lifetime_ms=6_000)
        [writing] = await ports.shepherds[name].put(Call(), (wish,))
        assert cluster.request("PUT", writing.turl, "anonymous", body=DATA).status == 201
        for _ in range(2):
            cluster.wait_restarted(name, cluster.kill(name))
            await cluster.until_serving(name)
        kept = cluster.replica_file(f"{cluster.url(name)} {writing.reference}").exists()
        assert kept or now_ms() > facts.created_ms + 10_000, "set aside before its time"
        aside = cluster.data_dir(name) / "quarantine" / writing.reference
        await poll_async(lambda: exists(aside), 60.0, what="it is set aside")

        async def told() -> bool:
            return (await cluster.nodes())[name].reclaimable_bytes == len(DATA)

        await poll_async(told, 60.0, tolerate=Away, what="its space is counted")


async def exists(path: Path) -> bool:
    return path.exists()


@pytest.mark.parametrize("query", ["", "?ticket=", "?ticket=nonsense", "?other=1", "?ticket=a&ticket=b"])
def test_without_a_ticket_there_is_nothing(cluster: Cluster, query: str) -> None:
    url = f"{cluster.data_url('shepherd1')}/turl/00000000-0000-4000-8000-000000000001{query}"
    for method in ("GET", "HEAD", "PUT"):
        assert cluster.request(method, url, body=b"x" if method == "PUT" else b"").status == 403


def test_tickets_are_in_no_log(cluster: Cluster) -> None:
    for name in cluster.names:
        assert "ticket=" not in cluster.log_of(name)
