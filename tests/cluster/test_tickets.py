"""Tickets in TURLs, at a real Shepherd: good once, for one thing, in one pair of hands, for a while."""

from collections.abc import Callable
from pathlib import Path

from chelonia.core.caller import Call
from chelonia.core.cluster.replicas import Checksums, ReplicaFacts
from chelonia.core.ids import BlobId, Dn, Guid
from chelonia.core.names import parse_ln
from chelonia.core.ports.files import Content, Look, Set, Splice, Want, good
from chelonia.core.ports.shepherd import Purpose, PutRequest
from chelonia_clients.client import new_call
from tests.cluster.harness import Away, Cluster, now_ms
from tests.cluster.load import fetch, put, turl_for_get, turl_for_put
from tests.support.polling import poll_async

DATA = bytes(range(256)) * 40


async def test_a_ticket_is_for_one_thing_in_one_pair_of_hands(cluster: Cluster) -> None:
    async with cluster.client("user") as client, cluster.client("anonymous") as stranger:
        await put(client, "/mine", DATA)
        reading, writing = await turl_for_get(client, "/mine"), await turl_for_put(client, "/mine2", DATA)
        head, _, ticket = reading.partition("ticket=")
        other = "A" if ticket[5] != "A" else "B"
        for bad in (f"{ticket[:5]}{other}{ticket[6:]}", "", "x" * 9000):
            answer = cluster.request("GET", f"{head}ticket={bad}")
            assert (answer.status, answer.kind) == (403, "bad-ticket"), bad
        for thief in ("user2", "anonymous", "admin", "shepherd2"):
            answer = cluster.request("GET", reading, thief)
            assert (answer.status, answer.kind) == (403, "bad-ticket")
            assert cluster.request("PUT", writing, thief, body=DATA).status == 403
        assert cluster.request("PUT", reading, body=DATA).status == 403
        assert cluster.request("GET", writing).status == 403
        assert cluster.request("GET", reading, "proxy").body == DATA, "the user's proxy is the user"
        assert cluster.request("PUT", writing, body=DATA).status == 201
        assert await fetch(client, "/mine2") == DATA
        once = await turl_for_get(stranger, "/mine")
        assert cluster.request("GET", once, "anonymous").body == DATA
        assert cluster.request("GET", once, "anonymous").kind == "already-done"


async def test_what_is_cut_off_a_file_is_read_by_no_ticket(cluster: Cluster) -> None:
    async with cluster.client("user") as client, cluster.client("anonymous") as stranger:
        place = parse_ln("/cut")
        await put(client, "/cut", DATA)
        good(await client.settled(client.files.apply, Splice(place, Content(size=100))), "cut")
        good(await client.settled(client.files.apply, Set(place, policy={"ANONYMOUS": "+read"})), "share")
        for reader, who in ((client, "user"), (stranger, "anonymous")):
            assert await fetch(reader, "/cut") == DATA[:100]
            (there,) = await reader.files.look(new_call(), (Look(place, Want.SOURCES),))
            turls = [turl for turls in good(there, "look").blobs.values() for turl in turls]
            assert turls
            for turl in turls:
                assert cluster.request("GET", turl, who, headers={"Range": "bytes=0-99"}).body == DATA[:100]
                for span in ({}, {"Range": "bytes=0-100"}, {"Range": "bytes=-1"}):
                    answer = cluster.request("GET", turl, who, headers=span)
                    assert (answer.status, answer.kind) == (403, "bad-ticket"), span
                assert "repr-digest" not in cluster.request("HEAD", turl, who).headers


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


def test_tickets_are_in_no_log(cluster: Cluster) -> None:
    for name in cluster.names:
        assert "ticket=" not in cluster.log_of(name)
