"""Files committed after they were closed, and names answered without a request."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.names import parse_ln
from chelonia.core.ports.files import Change, Done, Failure, Over, Setting, Write
from chelonia.core.values import replace
from chelonia_fuse import behind, committing, filesystem
from chelonia_fuse.cluster import MountedCluster
from chelonia_fuse.inodes import UNWRITTEN_NS, is_unwritten
from chelonia_fuse.journal import JournalRecord
from chelonia_fuse.names import VALID_NS, KnownNames, ListedPart
from tests.support.cluster import MemoryCluster
from tests.support.polling import poll_async
from tests.unit.fuse.mounts import OWNER, Trial, mounted, without_haste

NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    without_haste(monkeypatch)


@pytest.fixture
async def mount(memory: MemoryCluster, tmp_path: Path) -> Trial:
    return await many(await mounted(memory, tmp_path / "one"))


@pytest.fixture
async def other(mount: Trial, memory: MemoryCluster, tmp_path: Path) -> Trial:
    return await mounted(memory, tmp_path / "two")


async def many(trial: Trial) -> Trial:
    """A mount on which a program makes many files."""
    for n in range(behind.MANY):
        await trial.write(f"many{n}", b"x", flags=NEW)
    await trial.committer.behind.drained()
    return trial


def held(mount: Trial, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Commits behind `close` wait for the event."""
    go, act = asyncio.Event(), mount.committer.behind.act

    async def later(inode: object) -> bool:
        await go.wait()
        return await act(inode)  # type: ignore[arg-type]

    mount.committer.behind.act = later
    return go


async def test_closing_many_files_takes_few_calls_and_another_mount_waits_for_the_bytes(
    mount: Trial, other: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = held(mount, monkeypatch)
    mount.network.asked.clear()
    for n in range(8):
        await mount.write(f"f{n}", b"bytes", flags=NEW)
    assert mount.network.asked.count("apply") == 8  # each is made at once
    assert await mount.read("f3") == b"bytes"
    reader = asyncio.create_task(other.read("f3"))
    remover = asyncio.create_task(removed(other, "f4"))
    await asyncio.sleep(0.05)
    assert not reader.done()
    assert not remover.done()
    mount.network.asked.clear()
    go.set()
    assert await reader == b"bytes"
    await remover
    await mount.committer.behind.drained()
    assert mount.network.asked.count("apply") < 4
    assert [await other.read(f"f{n}") for n in (0, 7)] == [b"bytes", b"bytes"]
    seen = (await other.find("f0")).attributes
    assert seen.accessed_ns == seen.modified_ns


async def removed(trial: Trial, name: str) -> None:
    await trial.find(name)
    await trial.system.remove(trial.root, name, directory=False)


@pytest.mark.expect_log("is committed now")
async def test_what_was_closed_survives_the_death_of_the_mount(
    mount: Trial, other: Trial, memory: MemoryCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held(mount, monkeypatch)
    for n in range(5):
        await mount.write(f"f{n}", b"bytes %d" % n, flags=NEW)
    await mount.system.remove(mount.root, "f3", directory=False)
    with (tmp_path / "one" / "packed" / "0").open("ab") as torn:
        torn.write(b"torn")
    again = await mounted(memory, tmp_path / "one")
    assert len(again.committer.waiting) == 4
    await again.committer.work_off()
    monkeypatch.undo()
    assert [await other.read(f"f{n}") for n in (0, 1, 2, 4)] == [b"bytes %d" % n for n in (0, 1, 2, 4)]
    listed = await other.system._cluster.page(parse_ln("/"), "")
    assert [each.name for each in listed.entries if not each.name.startswith("many")] == ["f0", "f1", "f2", "f4"]
    assert not list((tmp_path / "one" / "journal").iterdir())


@pytest.mark.expect_log("is committed now")
async def test_the_last_of_two_versions_that_were_closed_survives_the_death_of_the_mount(
    mount: Trial, other: Trial, memory: MemoryCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held(mount, monkeypatch)
    await mount.write("f", b"first", flags=NEW)
    handle = await mount.open("f")
    await mount.system.write(handle, 0, b"second")
    mount.system._cluster.is_away = True  # it waits in the journal, beside the first
    await mount.close(handle)
    again = await mounted(memory, tmp_path / "one")
    await again.committer.work_off()
    assert await other.read("f") == b"second"


def slow_disk(mount: Trial, monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """The first event is set when the journal is written to; the second lets the write end."""
    keep, keeping, go = mount.committer._packed.keep, asyncio.Event(), asyncio.Event()

    async def slowly(record: JournalRecord, data: bytes) -> None:
        keeping.set()
        await go.wait()
        await keep(record, data)

    monkeypatch.setattr(mount.committer._packed, "keep", slowly)
    return keeping, go


async def test_nobody_has_closed_a_file_before_its_last_bytes_are_in_the_journal(
    mount: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = held(mount, monkeypatch)
    await mount.write("f", b"first", flags=NEW)
    one, two = await mount.open("f"), await mount.open("f")
    await mount.system.write(one, 0, b"second")
    keeping, go = slow_disk(mount, monkeypatch)
    closing = [asyncio.create_task(mount.system.flush(one))]
    await keeping.wait()
    closing.append(asyncio.create_task(mount.system.flush(two)))
    for _ in range(9):
        await asyncio.sleep(0)
    assert not any(each.done() for each in closing)
    go.set()
    await asyncio.gather(*closing)
    commits.set()


async def test_what_is_removed_while_it_is_closed_does_not_come_back(
    mount: Trial, memory: MemoryCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeping, go = slow_disk(mount, monkeypatch)
    handle = await mount.open("f", NEW)
    await mount.system.write(handle, 0, b"bytes")
    closing = asyncio.create_task(mount.close(handle))
    await keeping.wait()
    await mount.system.remove(mount.root, "f", directory=False)
    go.set()
    await closing
    await mount.committer.behind.drained()
    again = await mounted(memory, tmp_path / "one")
    assert not again.committer.waiting


async def test_what_is_done_with_a_file_that_waits_for_its_commit(
    mount: Trial, other: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = held(mount, monkeypatch)
    for name in ("moved", "linked", "replaced", "again", "told", "synced"):
        await mount.write(name, name.encode(), flags=NEW)
    await mount.system.rename((mount.root, "moved"), (mount.root, "replaced"), Over.REPLACE)
    assert await other.read("replaced") == b"moved"
    await mount.system.link(await mount.find("linked"), mount.root, "second")
    assert await other.read("second") == b"linked"
    await mount.write("again", b"AG", flags=os.O_RDWR)
    await mount.system.set(await mount.find("told"), Setting(mode=0o600, modified_ns=7))
    handle = await mount.open("synced")
    await mount.system.sync(handle)
    await mount.close(handle)
    assert await other.read("synced") == b"synced"
    go.set()
    await mount.committer.behind.drained()
    assert await other.read("again") == b"AGain"
    seen = (await other.open("told")).inode.attributes
    assert (seen.mode, seen.modified_ns, seen.size) == (0o600, 7, 4)


@pytest.mark.expect_log("cannot be committed: .*their quota")
async def test_programs_hear_of_trouble_once_a_commit_was_refused(mount: Trial, memory: MemoryCluster) -> None:
    apply = memory.apply

    async def refusing(call: object, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        if any(isinstance(change, Write) for change in changes):
            return tuple(Failure(Kind.QUOTA, cause="it is over their quota") for _ in changes)
        return await apply(call, changes)  # type: ignore[arg-type]

    memory.apply = refusing  # type: ignore[assignment, method-assign]
    await mount.write("one", b"1", flags=NEW)
    await mount.committer.behind.drained()
    with pytest.raises(CheloniaError, match="quota"):
        await mount.write("two", b"2", flags=NEW)


@pytest.mark.expect_log("will be committed later|is committed now")
async def test_what_cannot_be_committed_after_it_was_closed_is_told_and_waits(
    mount: Trial, other: Trial, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    go = held(mount, monkeypatch)
    await mount.write("f", b"bytes", flags=NEW)
    mount.network.away = True
    go.set()
    with caplog.at_level(logging.WARNING):
        await mount.committer.behind.drained()
    assert "close /f: " in caplog.text
    mount.network.away = False
    await mount.committer.work_off()
    assert await other.read("f") == b"bytes"


async def test_a_few_files_are_there_for_all_when_they_are_closed(memory: MemoryCluster, tmp_path: Path) -> None:
    mount = await mounted(memory, tmp_path / "few")
    await mount.write("f", b"x", flags=NEW)
    assert not len(mount.committer.behind)
    assert (await mount.find("f")).attributes.size == 1


async def test_a_directory_that_was_made_here_is_known_to_be_empty(mount: Trial, other: Trial) -> None:
    made = await mount.system.make_directory(mount.root, "d", 0o755, OWNER)
    mount.network.asked.clear()
    with pytest.raises(CheloniaError):
        await mount.system.lookups.lookup(made, "f")
    assert mount.network.asked == []
    there = await other.find("d")
    await other.system.create(there, "f", NEW, 0o644, OWNER)
    with pytest.raises(OSError, match="it is there"):  # whatever is known: this is decided in the cluster
        await mount.system.create(made, "f", NEW, 0o644, OWNER)
    assert (await mount.system.lookups.lookup(made, "f")).attributes.size == 0


async def test_who_looks_at_name_after_name_asks_a_few_times(mount: Trial, other: Trial) -> None:
    names = [f"n{n:03d}" for n in range(100)]
    for name in names:
        await mount.write(name, b"12345")
    await mount.committer.behind.drained()
    other.network.asked.clear()
    for name in names[:50]:
        assert (await other.system.lookups.lookup(other.root, name)).attributes.size == 5
    with pytest.raises(CheloniaError):
        await other.system.lookups.lookup(other.root, "n049x")
    assert len(other.network.asked) < 5
    await other.system.remove(other.root, "n060", directory=False)
    with pytest.raises(CheloniaError):  # one's own changes are seen at once
        await other.system.lookups.lookup(other.root, "n060")
    await other.write("n060", b"new")
    assert (await other.system.lookups.lookup(other.root, "n060")).attributes.size == 3


async def test_who_looks_at_many_names_at_a_time_has_them_listed_once(mount: Trial, other: Trial) -> None:
    names = [f"n{n:03d}" for n in range(20)]
    for name in names:
        await mount.write(name, b"12345")
    await mount.committer.behind.drained()
    other.network.asked.clear()
    await asyncio.gather(*(other.system.lookups.lookup(other.root, name) for name in names))
    assert sorted(other.network.asked) == ["list", "look"]


async def test_looks_at_many_files_at_a_time_share_calls(mount: Trial, other: Trial) -> None:
    for n in range(20):
        await mount.write(f"n{n}", b"12345")
    handles = [await other.find(f"n{n}") for n in range(20)]
    other.network.asked.clear()
    await asyncio.gather(*(other.system.open(each, os.O_RDONLY) for each in handles))
    assert len(other.network.asked) < 6


def test_a_listing_for_a_name_in_a_large_directory_begins_with_it() -> None:
    known, now = KnownNames(), 1000
    known.listed(ListedPart("", "m", now - VALID_NS))
    assert known.asked("p1", now) is None
    part = known.asked("p2", now)
    assert part is not None
    assert ListedPart(part[0], "", now).has("p2", now)
    assert "p19" < part[0] < "p2"


def looked_at(names: list[str], page: list[str]) -> tuple[int, int]:
    """How many lookups in a directory that lists as `page` requested a listing, and how many a look."""
    known, listings, looks = KnownNames(), 0, 0
    known.listed(ListedPart("", "m", 0))
    for name in names:
        if known.has(name, now := VALID_NS + 1):
            known.served += 1
        elif (part := known.asked(name, now)) is None:
            looks += 1
        else:
            listings += 1
            known.listing = False
            told = [each for each in page if each > part[0]][: part[1]]
            known.listed(ListedPart(part[0], told[-1], now))
            known.served += 1
    return listings, looks


def test_who_looks_in_order_has_the_next_names_listed_and_who_does_not_asks_for_each() -> None:
    names = [f"n{n:05d}" for n in range(10_000)]
    in_order = looked_at(names, names)
    assert sum(in_order) < 20
    mixed = random.Random(1).sample(names, 5000)
    listings, looks = looked_at(mixed, names)
    assert listings < 30
    assert looks > 4900
    assert sum(looked_at(mixed + names, names)) < sum(looked_at(mixed, names)) + 600  # lookups are in order again


def test_what_was_told_of_a_part_says_nothing_beyond_it_nor_later() -> None:
    known = KnownNames()
    known.listed(ListedPart("b", "dir/", 1000))
    now = 1000 + VALID_NS - 1
    assert [known.has(name, now) for name in ("a", "b", "c", "dir", "dir.x", "e")] == [
        False, False, True, True, True, False,
    ]  # fmt: skip
    assert not known.has("c", now + 1)
    known.change("c", 1500)
    assert not known.has("c", now)
    known.listed(ListedPart("b", "", 1600))
    assert known.has("zzz", now)
    assert known.has("c", now)


def test_a_file_is_awaited_for_a_few_seconds_only(mount: Trial) -> None:
    known = replace(
        mount.root.attributes, type="file", etag=f"{mount.root.guid}-0", accessed_ns=UNWRITTEN_NS, created_ns=10**9
    )
    assert is_unwritten(known, 2 * 10**9)
    assert not is_unwritten(known, 5 * 10**9)
    assert not is_unwritten(replace(known, etag="blob"), 2 * 10**9)


async def test_a_clock_that_is_slow_makes_nobody_wait_for_long(
    mount: Trial, other: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    held(mount, monkeypatch)
    await mount.write("f", b"bytes", flags=NEW)
    slow = SimpleNamespace(time_ns=lambda: time.time_ns() - 3600 * 10**9, monotonic_ns=time.monotonic_ns)
    monkeypatch.setattr(filesystem, "time", slow)
    monkeypatch.setattr(filesystem, "_PAUSE_S", 0.0)
    async with asyncio.timeout(20):
        assert await other.read("f") == b""


async def test_nobody_waits_for_the_bytes_of_a_file_that_stays_empty(mount: Trial, other: Trial) -> None:
    handle = await mount.open("f", NEW)
    mount.network.asked.clear()
    await mount.close(handle)
    assert not mount.network.asked, "nor does who has made it, for that to be said"
    await mount.committer.behind.drained()
    other.network.asked.clear()
    assert await other.read("f") == b""
    assert other.network.asked.count("look") < 5
    seen = (await other.find("f")).attributes
    assert seen.accessed_ns == seen.modified_ns


async def test_renaming_over_a_marked_file_that_has_just_been_removed(
    mount: Trial, other: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    held(mount, monkeypatch)
    await mount.write("marked", b"bytes", flags=NEW)
    await other.write("new", b"new")
    await other.find("marked")
    await mount.system.remove(mount.root, "marked", directory=False)
    await other.system.rename((other.root, "new"), (other.root, "marked"), Over.REPLACE)
    assert await other.read("marked") == b"new"


async def test_the_other_names_of_what_lost_one_are_asked_for_anew(mount: Trial) -> None:
    await mount.write("a", b"x")
    await mount.system.link(await mount.find("a"), mount.root, "b")
    await mount.write("c", b"y")
    for name in "xyz":  # a listing has them all
        with pytest.raises(CheloniaError):
            await mount.find(name)
    await mount.system.rename((mount.root, "c"), (mount.root, "a"), Over.REPLACE)
    assert (await mount.find("b")).attributes.links == 1


async def test_a_name_that_a_listing_does_not_tell_leads_no_more_to_what_has_another_name(
    mount: Trial, other: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chelonia_fuse.names.VALID_NS", 0)
    await mount.write("x", b"first")
    await mount.write("z", b"other")
    moved = await other.find("x")
    await mount.system.rename((mount.root, "x"), (mount.root, "y"), Over.REPLACE)
    assert await other.find("y") is moved
    monkeypatch.undo()
    for name in ("q", "x"):  # the second one requests a listing
        with pytest.raises(CheloniaError):
            await other.find(name)
    await other.system.rename((other.root, "z"), (other.root, "x"), Over.REPLACE)
    assert not moved.gone
    await other.write("y", b"again")
    assert await mount.read("y") == b"again"


async def test_who_is_forgotten_before_it_is_said_that_it_stays_empty_takes_no_other_along(mount: Trial) -> None:
    handle = await mount.open("f", NEW)
    await mount.close(handle)
    mount.system.forget(handle.inode.number, 1)
    again = await mount.find("f")
    assert again is not handle.inode
    await mount.committer.behind.drained()
    assert mount.system.inodes.get(again.number) is again


async def test_two_listings_of_a_directory_that_was_forgotten_meanwhile_end_well(
    mount: Trial, other: Trial, caplog: pytest.LogCaptureFixture
) -> None:
    await mount.system.make_directory(mount.root, "d", 0o755, OWNER)
    go = other.network.late["list"] = asyncio.Event()
    looks, asked = list[asyncio.Task[object]](), other.network.asked
    for _ in range(2):
        directory = await other.find("d")
        looks += [asyncio.create_task(other.system.lookups.lookup(directory, name)) for name in ("a", "b")]
        await poll_async(partial(asked.__contains__, "list"))
        other.system.forget(directory.number, 1)
        asked.clear()
    go.set()
    told = await asyncio.gather(*looks, return_exceptions=True)
    assert [getattr(each, "kind", each) for each in told] == [Kind.NOT_FOUND] * 4
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


@pytest.mark.parametrize("kind", [Kind.QUOTA, Kind.NETWORK])
async def test_what_is_removed_while_its_commit_fails_does_not_wait(
    mount: Trial, monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def failing(_: object, *args: object) -> None:
        begun.set()
        await go.wait()
        raise CheloniaError(kind, cause="it fails")

    with monkeypatch.context() as patch:
        patch.setattr(MountedCluster, "save", failing)
        patch.setattr(committing, "GIVE_UP_S", -1.0)
        await mount.write("f", b"bytes", flags=NEW)
        await begun.wait()
        mount.network.asked.clear()
        removing = asyncio.create_task(mount.system.remove(mount.root, "f", directory=False))
        await poll_async(lambda: "look" in mount.network.asked, what="the removal counts its names")
        go.set()
        await removing
        await mount.committer.behind.drained()
    assert (len(mount.committer.waiting), len(mount.committer.behind)) == (0, 0)
