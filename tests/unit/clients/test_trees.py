"""Walks of whole trees: the requests, how many entries at a time, and their order."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.metadata import Triple
from chelonia_clients import transfers
from chelonia_clients.client import DirectoryEntry
from chelonia_clients.removal import remove_tree
from chelonia_clients.steps import TransferResult
from chelonia_clients.transfers import LISTED_MS, TreeOptions, put_tree
from tests.support.bartender import FakeBartender
from tests.unit.clients.faking import Command, client_on
from tests.unit.clients.test_transfers import DATA, make_tree


async def test_below_what_is_new_nothing_is_asked_for(fake: FakeBartender, tmp_path: Path) -> None:
    """Far away each request counts: a new tree needs one look, and one call for each collection."""
    make_tree(tmp_path / "t")
    async for done in put_tree(client_on(fake), tmp_path / "t", "/t"):
        assert done.error is None
    said = [op for op, _ in fake.calls]
    assert (said.count("list"), said.count("makeCollection")) == (1, 4)
    made = len(fake.names())
    async for done in put_tree(client_on(fake), tmp_path / "t", "/t", TreeOptions(dry_run=True)):
        assert done.same or done.type == "collection"
    assert len(fake.names()) == made


async def test_what_was_asked_for_long_before_is_asked_for_again(
    fake: FakeBartender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work before it may take hours, and others may have stored something there meanwhile."""
    for name in ("a", "b"):
        (tmp_path / "t" / name).mkdir(parents=True)
    (tmp_path / "t" / "b" / "f").write_bytes(b"bytes")
    os.utime(tmp_path / "t" / "b" / "f", (1_000_000_000.25, 1_000_000_000.25))
    for ln in ("/t", "/t/a", "/t/b"):
        fake.add_collection(ln)
    client, told = client_on(fake), list[str]()
    names = client.names

    async def slow(ln: str, *, recursive: bool = False) -> AsyncIterator[DirectoryEntry]:
        async for entry in names(ln):
            yield entry
        told.append(ln)
        if ln == "/t/a":
            while "/t/b" not in told:
                await asyncio.sleep(0)
            fake.add_file("/t/b/f", b"bytes", "1000000000.250")
            await client.clock.sleep(LISTED_MS)

    monkeypatch.setattr(client, "names", slow)
    done = [each async for each in put_tree(client, tmp_path / "t", "/t")]
    assert [(each.error, each.same) for each in done] == [(None, False)] * 3 + [(None, True)]


async def test_a_collection_that_somebody_makes_meanwhile_is_put_into(
    fake: FakeBartender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tree(tmp_path / "t")
    client = client_on(fake)
    make = client.make_collection

    async def late(ln: str, metadata: Sequence[Triple] = ()) -> str:
        await make(ln)
        return await make(ln, metadata)

    monkeypatch.setattr(client, "make_collection", late)
    done = [each async for each in put_tree(client, tmp_path / "t", "/t")]
    assert [each.error for each in done] == [None] * len(done)
    assert fake.data("/t/sub/x") == (tmp_path / "t" / "sub" / "x").read_bytes()


async def test_of_a_tree_that_would_be_new_nothing_is_made_by_who_only_asks(
    fake: FakeBartender, tmp_path: Path
) -> None:
    make_tree(tmp_path / "t")
    done = [each async for each in put_tree(client_on(fake), tmp_path / "t", "/t", TreeOptions(dry_run=True))]
    assert [each.error for each in done] == [None] * 7
    assert fake.names() == []
    assert "makeCollection" not in [op for op, _ in fake.calls]


async def test_below_what_may_not_be_looked_into_it_is_asked_what_is_there(fake: FakeBartender, tmp_path: Path) -> None:
    make_tree(tmp_path / "t")
    client = client_on(fake)
    async for done in put_tree(client, tmp_path / "t", "/t"):
        assert done.error is None
    fake.deny("/t/sub")
    fake.calls.clear()
    done = [each async for each in put_tree(client, tmp_path / "t", "/t", TreeOptions(dry_run=True))]
    assert [each.error for each in done] == [None] * 7
    assert [op for op, _ in fake.calls].count("list") == 4, "of each collection"


async def test_directories_are_asked_for_ahead_and_whoever_leaves_waits_for_none(
    fake: FakeBartender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(12):
        (tmp_path / "t" / str(number)).mkdir(parents=True)
    client = client_on(fake)
    async for done in put_tree(client, tmp_path / "t", "/t"):
        assert done.error is None
    asked, names, all_asked = list[str](), client.names, asyncio.Event()

    async def never(ln: str, *, recursive: bool = False) -> AsyncIterator[DirectoryEntry]:
        asked.append(ln)
        if len(asked) == 1 + 6:
            all_asked.set()
        if ln != "/t":
            await asyncio.Event().wait()
        async for entry in names(ln):
            yield entry

    monkeypatch.setattr(client, "names", never)
    walking = asyncio.ensure_future(anext(put_tree(client, tmp_path / "t", "/t")))
    async with asyncio.timeout(60):
        await all_asked.wait()
        walking.cancel()
        await asyncio.wait((walking,))
    assert len(asked) == 1 + 6


async def test_of_a_deep_tree_no_more_is_asked_for_ahead_than_memory_can_bear(
    fake: FakeBartender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entries beside each directory that the walk enters wait until that one is done."""
    directory, depth = tmp_path / "t", 20
    for _ in range(depth):
        for name in "abcdef":
            (directory / name).mkdir(parents=True)
        directory /= "a"
    client, waiting, most = client_on(fake), dict[str, int](), 0
    monkeypatch.setattr(transfers, "LISTED_MAX", 1_000)

    async def names(ln: str, *, recursive: bool = False) -> AsyncIterator[DirectoryEntry]:
        for number in range(100):
            yield DirectoryEntry(str(number))
        waiting[ln] = 100

    monkeypatch.setattr(client, "names", names)
    async for done in put_tree(client, tmp_path / "t", "/t"):
        waiting.pop(done.target, None)
        most = max(most, sum(waiting.values()))
    assert not waiting
    assert 1_000 <= most <= 1_000 + 6 * 100


async def test_of_a_tree_no_collection_goes_before_those_in_it_have_gone(
    fake: FakeBartender, monkeypatch: pytest.MonkeyPatch
) -> None:
    for ln in ("/t", "/t/a", "/t/b", "/t/a/c", "/t/a/c/d"):
        fake.add_collection(ln)
    client = client_on(fake)
    unmake = client.unmake_collection

    async def slowly(ln: str) -> str:
        for _ in range(20 * ln.count("/")):
            await asyncio.sleep(0)
        return await unmake(ln)

    monkeypatch.setattr(client, "unmake_collection", slowly)
    gone = [done async for done in remove_tree(client, "/t")]
    assert [done.error for done in gone] == [None] * 5
    assert fake.names() == []


async def test_what_somebody_puts_into_a_tree_that_is_removed_stays_and_is_told(
    fake: FakeBartender, monkeypatch: pytest.MonkeyPatch
) -> None:
    for ln in ("/t", "/t/a"):
        fake.add_collection(ln)
    client = client_on(fake)
    unmake = client.unmake_collection

    async def late(ln: str) -> str:
        fake.add_file("/t/new", DATA)
        return await unmake(ln)

    monkeypatch.setattr(client, "unmake_collection", late)
    left = [done async for done in remove_tree(client, "/t")][-1]
    assert left.error is not None
    assert (left.source, left.error.kind) == ("/t", Kind.NOT_EMPTY)


@pytest.mark.parametrize(
    ("words", "sync"),
    [
        (("put", "-r", "t", "/new"), "t chelonia:/new"), (("get", "-r", "/tree", "new"), "chelonia:/tree new"),
        (("put", "-r", "t", "/tree"), ""), (("get", "-r", "/tree", "t"), ""),
    ],
)  # fmt: skip
def test_a_tree_that_failed_in_part_names_the_command_for_the_rest(
    chelonia: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: tuple[str, ...], sync: str
) -> None:
    """The same command made the tree once more, inside the first one; into a place that was there it does not."""

    async def partly(*_: object) -> AsyncIterator[TransferResult]:
        yield TransferResult("file", "b", "/new/b")
        yield TransferResult("file", "a", "/new/a", error=CheloniaError(Kind.QUOTA, "put", "/new/a"))

    monkeypatch.chdir(tmp_path)
    Path("t").mkdir()
    chelonia("mkdir", "/tree")
    monkeypatch.setattr("chelonia_clients.verbs.transfer.put_tree", partly)
    monkeypatch.setattr("chelonia_clients.verbs.transfer.get_tree", partly)
    failed = chelonia(*words)
    hint = [f"chelonia: to try again what failed: chelonia sync {sync}"] if sync else []
    assert (failed.code, failed.err.splitlines()[1:]) == (6, hint)
