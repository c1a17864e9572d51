"""A Shepherd that comes back reports differences; with an old copy of its disk it compares everything."""

import shutil
from collections.abc import Callable
from functools import partial

from chelonia.core.caller import Call
from chelonia.core.ids import ServiceId, shepherd_object
from chelonia.shepherd.store import blobs_notes
from chelonia.shepherd.store import compact_rows as rows
from chelonia.shepherd.store import note_mark as mark
from chelonia.shepherd.store.note_mark import AcceptedReport, NoteMark
from tests.cluster.harness import Cluster
from tests.cluster.load import fetch, locations, put, until_live
from tests.support.polling import poll, poll_async

NAME = "shepherd1"
DEADLINE_S = 60.0
OF_AN_IMAGE = ("its notes go up to", "it has confirmed erasures that its state knows nothing of")
"""The second where the deleted file's bytes were erased after the image was made."""
DATA = {f"/back/{number}": bytes([number]) * 20_000 for number in range(8)}


def first_said(cluster: Cluster, since: int) -> str:
    """How it was first reconciled with the namespace since then (characters of its log), "" when it was not yet. Only
    the first counts: a request for a copy that it has lost makes it compare again."""
    lines = cluster.log_of(NAME)[since:].splitlines()
    return next((line.partition("inventory compared ")[2] for line in lines if "inventory compared " in line), "")


def pages_compared(cluster: Cluster) -> int:
    text = cluster.request("GET", f"{cluster.data_url(NAME)}/metrics", "admin").body.decode()
    [line] = [line for line in text.splitlines() if line.startswith("chelonia_shepherd_inventory_pages ")]
    return int(float(line.split()[1]))


def listed(cluster: Cluster) -> int:
    """The number of replicas that its notes mark as listed in the namespace."""
    parts = blobs_notes.read(cluster.data_dir(NAME)).parts.values()
    return sum(note not in (rows.OPEN, rows.DAMAGED) for part in parts for note in part.values())


def last_mark(cluster: Cluster) -> NoteMark:
    """The end of its notes."""
    return mark.decode(blobs_notes.read(cluster.data_dir(NAME)).mark) or NoteMark("", 0, AcceptedReport())


async def has_no_order(cluster: Cluster) -> bool:
    """Whether it has confirmed all erasures that it was ordered."""
    async with cluster.ports("service") as ports:
        page = await ports.ahash.scan(Call(strong=True), shepherd_object(ServiceId(cluster.url(NAME))), "erase")
    return not page.items


def kill_again(cluster: Cluster) -> None:
    """kill -9 what `started_again` has started."""
    process = cluster.by_hand.pop(NAME)
    process.kill()
    process.wait()


def later_start(before: AcceptedReport, sent: AcceptedReport) -> bool:
    """Whether a report of a later start has been accepted: all reports before the last one were."""
    return sent.boot > before.boot and sent.number > 2


async def started_again(cluster: Cluster) -> str:
    """Start it; returns how it was reconciled."""
    since = len(cluster.log_of(NAME))
    cluster.start_node(NAME)
    await cluster.until_serving(NAME)
    return poll(lambda: first_said(cluster, since), DEADLINE_S, what="it is reconciled")


async def test_a_killed_shepherd_tells_what_differs_and_an_old_disk_is_compared_whole(
    own_cluster: Callable[..., Cluster],
) -> None:
    cluster = own_cluster(restart=False, small_as_files=True)
    cluster.expect_log("replica missing|another process is alive")  # while the one that was killed is not missed yet
    async with cluster.client("user") as client:
        await client.make_collection("/back")
        for ln, data in DATA.items():
            await put(client, ln, data, 3)
        for ln in DATA:
            await until_live(client, ln, 3)
        lost, deleted, *_ = DATA
        [place] = [place for place in await locations(client, lost) if place.startswith(cluster.url(NAME))]
        compared = "inventory compared whole"
        poll(lambda: compared in cluster.log_of(NAME), DEADLINE_S, what="its first start compares")
        poll(lambda: listed(cluster) >= len(DATA), DEADLINE_S, what="what it was told is noted")

        cluster.kill(NAME)
        file = cluster.replica_file(place)
        for path in (file, *file.parent.glob(f"{file.name}.*")):
            path.unlink()
        await client.del_file(deleted)
        await put(client, "/back/new", b"new", 2)
        said = await started_again(cluster)
        assert said.startswith("by differences=")
        assert 1 <= int(said.split()[1].removeprefix("differences=")) < len(DATA), "but what was about to be noted"
        assert f"replica missing reference={file.name} blob=" in cluster.log_of(NAME)
        for ln, data in {**DATA, "/back/new": b"new"}.items():
            if ln != deleted:
                await until_live(client, ln, 2 if ln == "/back/new" else 3)
                assert await fetch(client, ln) == data
        assert place not in await locations(client, lost)

        poll(lambda: last_mark(cluster).settled, DEADLINE_S, what="a reader's doubt about the lost copy is settled")
        # An order to erase that comes before its first heartbeat makes it compare all, as an old disk would have to.
        poll(lambda: "replica erased" in cluster.log_of(NAME), DEADLINE_S, what="what was removed is erased")
        await poll_async(partial(has_no_order, cluster), what="and that is confirmed, or the order comes again")
        # The Librarian may have asked for the lost copy, which it had just committed: then one start compares all.
        kill_again(cluster)
        await started_again(cluster)
        poll(lambda: last_mark(cluster).settled, DEADLINE_S, what="its notes say so")
        kill_again(cluster)
        home = cluster.data_dir(NAME)
        image = home.with_name("image")
        shutil.copytree(home, image)
        before = last_mark(cluster).sent
        assert (await started_again(cluster)).startswith("by differences=")
        await put(client, "/back/later", b"later", 3)
        await until_live(client, "/back/later", 3)
        [later] = [place for place in await locations(client, "/back/later") if place.startswith(cluster.url(NAME))]
        poll(lambda: later_start(before, last_mark(cluster).sent), DEADLINE_S, what="the copy has moved its numbers")
        kill_again(cluster)
        shutil.rmtree(home)
        image.rename(home)
        said = await started_again(cluster)
        assert said.startswith("whole ")
        assert any(word in said for word in OF_AN_IMAGE)
        poll(lambda: pages_compared(cluster) >= 1, tolerate=ValueError, what="a page was compared")
        await until_live(client, "/back/later", 3)
        assert later not in await locations(client, "/back/later")
        assert await fetch(client, "/back/later") == b"later"
