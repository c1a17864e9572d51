"""Reports of health are never better than the truth: each is compared with a reader's result.

Each kind of damage is done to one copy of a file and to all copies of another. A scrub and a survey later, fsck,
status, `ls -l`, `stat`, `heal status` and the metrics name exactly the unreadable files. Each copy reported alive has
the file's bytes. `make honest` does this also for files of other sizes, and to two copies of three.
"""

from __future__ import annotations

import asyncio
import http.client
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.cluster.replicas import ReplicaState
from chelonia.core.errors import CheloniaError
from chelonia.core.ids import Guid, ReferenceId
from chelonia.core.metadata import Needed
from chelonia.core.ports.shepherd import GetRequest
from chelonia.hosting.net.http_client import Sending
from chelonia_clients.client import SHORT, Client
from chelonia_clients.verbs import listing as verbs
from tests.cluster.harness import Cluster, Ports
from tests.cluster.load import fetch, locations, put, until_live
from tests.support.damages import DAMAGES, SWAPPED_WITH_EMPTY, flip
from tests.support.polling import patience, poll, poll_async

TOLD_S = 90.0
"""A survey (10 s) after the scrub, and both once more for their consequences, on a busy machine."""


LOSE_ALL = {
    "flip",
    "flip_first",
    "flip_last",
    "truncate",
    "empty",
    "other_bytes",
    "flip_and_grow",
    "remove",
    "remove_both",
    "spliced",
}
"""Kinds of damage that certainly lose a file when every copy has it; some others leave the bytes readable."""
EXPECTED = (
    "is lost, no verified copy|replica damaged|replica is invalid|replica missing|check impossible|erasure|"
    "bytes behind the end of a replica cut off|wrong bytes of a replica"
)


HARMED = {"one": 1, "all": 3}
"""How many of the three copies of the files in each collection are harmed."""
MORE_HARMED = HARMED | {"two": 2}
"""The same in the long tests."""
SPLICED = "spliced"
"""A file of two blobs; the worst one is harmed as by `flip`."""
RENAMED = "flip_last"
"""A file that was written under another name."""


def content(name: str, size: int) -> bytes:
    """The bytes of a file; size 0: tens of thousands, of which some come in messages and others over TURLs."""
    return (name.encode() * 5_000)[:size] if size else name.encode() * 5_000


async def filled(cluster: Cluster, client: Client, size: int, harmed: dict[str, int]) -> dict[str, bytes]:
    """Store a file with three copies for each kind of damage and each number of copies to be harmed."""
    files = {"/well": b"well"}
    for name in [damage.__name__ for damage in DAMAGES]:
        others = b"" if name == SWAPPED_WITH_EMPTY else content("another file", size)
        files |= {f"/{of}/{name}": content(name, size) for of in harmed}
        files |= {f"/{of}/{name}-other": others for of in harmed if name.startswith("swap")}
    for collection in harmed:
        await client.make_collection(f"/{collection}")
    at_once = asyncio.Semaphore(8)

    async def store(ln: str, data: bytes) -> None:
        async with at_once:
            first = "/elsewhere" if ln == f"/all/{RENAMED}" else ln
            await put(client, first, data, 3)
            if first != ln:
                await client.move(first, ln)

    await asyncio.gather(*(store(ln, data) for ln, data in files.items()))
    for collection in harmed:
        ln, data = f"/{collection}/{SPLICED}", SPLICED.encode() * 50_000
        await put(client, ln, data, 3)
        more = {"Content-Range": f"bytes {len(data)}-{2 * len(data) - 1}/*"}
        assert cluster.request("PUT", f"{cluster.files_url}{ln}", body=data, headers=more).status == 204
        files[ln] = data + data
    return files


async def harm(cluster: Cluster, places: dict[str, list[str]], harmed: dict[str, int]) -> None:
    """Do every kind of damage, to so many copies."""
    for collection, copies in harmed.items():
        for damage, name in [*((each, each.__name__) for each in DAMAGES), (flip, SPLICED)]:
            ln = f"/{collection}/{name}"
            beside = places.get(f"{ln}-other", places["/well"])
            for place, other in list(zip(places[ln], beside, strict=True))[:copies]:
                damage(cluster.replica_file(place), cluster.replica_file(other))


@pytest.mark.parametrize("size", [0, *(pytest.param(size, marks=pytest.mark.long) for size in (3, 60_000, 2_500_000))])
async def test_no_teller_is_rosier_than_what_a_reader_gets(own_cluster: Callable[..., Cluster], size: int) -> None:
    cluster, harmed = own_cluster(small_as_files=True), MORE_HARMED if size else HARMED
    cluster.expect_log(EXPECTED)
    async with cluster.client("user", retry_ms=0) as client:
        files = await filled(cluster, client, size, harmed)
        places = {ln: sorted(await until_live(client, ln, 3)) for ln in files}
        kept = cluster.replica_file(places["/all/flip"][0])
        sound = kept.read_bytes()
        await harm(cluster, places, harmed)
        at_once = {ln: by_the_door(cluster, ln) or by_the_door(cluster, ln) for ln in files}
        assert {ln for ln, got in at_once.items() if got not in ("", files[ln])} == set(), "wrong bytes, handed over"
        assert {ln for ln, got in at_once.items() if not got and files[ln] and not ln.startswith("/all/")} == set()
        lost = await until_told(cluster, client, files, places)
        assert {ln for ln in lost if not ln.startswith("/all/")} == set()
        assert {f"/all/{name}" for name in LOSE_ALL} <= lost
        assert {"/all/grow", "/all/swap_with_empty-other"}.isdisjoint(lost)
        told_to_people(cluster, lost)
        assert await not_whole(cluster, client, files) == []

        kept.write_bytes(sound)
        back = lost - {"/all/flip"}
        assert await until_told(cluster, client, files, places) == back
        told_to_people(cluster, back)


def by_the_door(cluster: Cluster, ln: str) -> bytes | str:
    """The bytes of a file as the plain door has them; "" where it has none, or breaks off."""
    try:
        answer = cluster.request("GET", cluster.files_url + ln)
    except (http.client.HTTPException, OSError):
        return ""
    return answer.body if answer.status == 200 else ""


async def not_whole(cluster: Cluster, client: Client, files: dict[str, bytes]) -> list[str]:
    """Return the copies reported alive from which a reader gets other bytes, or none."""
    found = []
    async with cluster.ports("core") as ports:
        for ln in [ln for ln in files if not ln.endswith(SPLICED)]:
            for place, state in (await locations(client, ln)).items():
                if state == ReplicaState.ALIVE.value:
                    asked = GetRequest("0", ReferenceId(place.split()[1]), ("http",), lifetime_ms=60_000)
                    [reading] = await ports.shepherds[cluster.named(place)].get(Call(), (asked,))
                    got = await client.http.request(Sending("GET", reading.turl)) if reading.turl else None
                    if got is None or got.body != files[ln]:
                        found.append(f"{ln} {place}: {reading.error}")
    return found


async def until_told(
    cluster: Cluster, client: Client, files: dict[str, bytes], places: dict[str, list[str]]
) -> set[str]:
    """Scrub, and wait until every report names exactly the unreadable files. The lost ones then list only copies that
    once existed. Returns the names of the lost files."""
    seen: dict[str, Any] = {}

    async def honest() -> bool:
        seen["read"] = await unreadable(client, files)
        async with cluster.ports("admin") as ports:
            seen.update(await tellers(cluster, ports, client, files))
        listed = [(ln, place) for ln in seen["read"] for place in await locations(client, ln)]
        seen["never were"] = [(ln, place) for ln, place in listed if place not in places[ln]]
        names, count = ("fsck", "stat", "ls"), ("heal status", "metrics")
        seen["to be named"] = min(len(seen["read"]), bounds.LOST_NAMES_SHOWN)
        return (
            not seen["never were"]
            and seen["named"] <= seen["read"]
            and len(seen["named"]) == seen["to be named"]
            and all(seen[each] == seen["read"] for each in names)
            and all(seen[n] == len(seen["read"]) for n in count)
        )

    async with cluster.ports("admin") as ports:
        await asyncio.gather(*(ports.shepherds[name].scrub(Call(), ()) for name in cluster.shepherd_names))
    try:
        await poll_async(honest, TOLD_S, interval=1.0, what="all tellers agree with the reader")
    except AssertionError as error:
        raise AssertionError(f"{error}\n" + "\n".join(f"{key}: {value}" for key, value in seen.items())) from error
    return set(seen["read"])


async def unreadable(client: Client, files: dict[str, bytes]) -> set[str]:
    async def fails(ln: str) -> bool:
        try:
            assert await fetch(client, ln) == files[ln], f"{ln}: wrong bytes were handed over"
        except CheloniaError:
            return True
        return False

    failed = await asyncio.gather(*(fails(ln) for ln in files))
    return {ln for ln, bad in zip(files, failed, strict=True) if bad}


async def tellers(cluster: Cluster, ports: Ports, client: Client, files: dict[str, bytes]) -> dict[str, Any]:
    """Return the lost files of each report: names, or a count where it gives no full list of names."""
    pages = [await ports.librarian.fsck(Call(), Guid(""), "")]
    while pages[-1].cursor:
        pages.append(await ports.librarian.fsck(Call(), Guid(""), pages[-1].cursor))
    named = [found.text for page in pages for found in page.findings if found.rule == "blob-lost"]
    stated = {ln: verbs.unreadable(await client.stat(ln)) for ln in files}
    shown = [
        f"/{collection}/{entry.name}"
        for collection in dict.fromkeys(ln.split("/")[1] for ln in files if ln.count("/") == 2)
        async for entry in client.list(f"/{collection}", needed=(*SHORT, Needed("locations")))
        if verbs.unreadable(entry.metadata) == " LOST"
    ]
    heal = await ports.librarian.heal_status(Call())
    url = cluster.url("librarian").rsplit("/", 1)[0]
    metrics = cluster.request("GET", f"{url}/metrics", "admin").text
    counted = re.search(r"^chelonia_heal_lost (\S+)", metrics, re.MULTILINE)
    return {
        "fsck": {match[1] for text in named if (match := re.search(r"file (\S+), written", text))},
        "stat": {ln for ln, what in stated.items() if what == " LOST"},
        "ls": set(shown),
        "named": {found.name for found in heal.lost_named},
        "heal status": heal.lost,
        "metrics": counted and float(counted[1]),
    }


def told_to_people(cluster: Cluster, lost: set[str]) -> None:
    """The same in the words of the command."""
    code, fsck, _ = run(cluster, "admin", "fsck")
    assert code == 1
    assert all(f"file {ln}, written" in fsck for ln in lost)
    rows = run(cluster, "ls", "-l", "/all")[1].splitlines()
    assert {f"/all/{row.split()[-1]}" for row in rows if " LOST " in row} == lost
    assert set(re.findall(r"'(\S+)': LOST", run(cluster, "stat", *sorted(lost), "/well")[2])) == lost
    assert f"LOST               {len(lost)} without a verified copy" in run(cluster, "admin", "status")[1]


def run(cluster: Cluster, *words: str) -> tuple[int, str, str]:
    """Run `chelonia`: exit code, stdout, stderr."""
    argv = [sys.executable, "-m", "chelonia_clients.cli", "--cluster", str(cluster.root / "cluster.json"), *words]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=60 * patience(), check=False)
    return ended.returncode, ended.stdout, ended.stderr


async def test_what_is_only_out_of_reach_is_not_called_lost(own_cluster: Callable[..., Cluster]) -> None:
    cluster = own_cluster()
    async with cluster.client("user") as client:
        await put(client, "/only", b"one copy", 1)
        [place] = await until_live(client, "/only", 1)
        holder = cluster.named(place)
        poll(lambda: run(cluster, "admin", "fsck")[0] == 0, TOLD_S, interval=0.5, what="fsck: clean")
        cluster.signal(holder, signal.SIGSTOP)
        try:
            poll(lambda: all_tell_that_it_is_out_of_reach(cluster, "/only"), TOLD_S, interval=0.5)
        finally:
            cluster.signal(holder, signal.SIGCONT)
        poll(lambda: run(cluster, "admin", "fsck")[0] == 0, TOLD_S, interval=0.5, what="fsck: clean again")
        assert await fetch(client, "/only") == b"one copy"
        assert place in await until_live(client, "/only", 1)


def all_tell_that_it_is_out_of_reach(cluster: Cluster, ln: str) -> bool:
    """Whether every report has it as out of reach by now; none has called it lost."""
    code, fsck, _ = run(cluster, "admin", "fsck")
    status = run(cluster, "admin", "status")[1]
    assert "blob-lost" not in fsck
    assert "LOST" not in status
    return (
        (code, "not lost, but not to be read now: 1 file;" in fsck) == (7, True)
        and "unreachable now    1, not lost" in status
        and "0/1 unreachable" in run(cluster, "ls", "-l", ln)[1]
        and "it is not lost" in run(cluster, "stat", ln)[2]
    )
