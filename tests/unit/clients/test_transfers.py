"""Uploads and downloads when things go wrong: never half a file, never a wrong one, one change for one request."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import tempfile
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Ms
from chelonia.core.names import check_name, parse_ln
from chelonia.core.ports.files import Change, Done, Failure, Write
from chelonia.core.values import replace
from chelonia.hosting.net.http_client import HttpClient, Received, Sending
from chelonia.hosting.transfer.download import download, read
from chelonia.hosting.transfer.hedging import ReplicaChoice, opened
from chelonia.hosting.transfer.stall_watch import StallWatch
from chelonia.hosting.transfer.upload import Source, UploadOptions, bytes_source, upload
from chelonia_clients.client import merge_actions
from chelonia_clients.local_files import to_ln, to_local
from chelonia_clients.local_sources import file_source, span_source, stream_of
from chelonia_clients.output import printable
from chelonia_clients.parted import upload_local, upload_stream
from chelonia_clients.removal import remove_tree
from chelonia_clients.sync import SyncClient
from chelonia_clients.transfers import TreeOptions, copy_tree, get_tree, put_tree
from tests.support.bartender import FakeBartender, FakeStore, Fault
from tests.support.clocks import QuickClock
from tests.support.failing import fails
from tests.support.polling import patience, poll_async
from tests.unit.clients.faking import client_on

DATA = bytes(range(256)) * 80


async def test_a_broken_download_goes_on_where_it_broke_on_another_replica(fake: FakeBartender, tmp_path: Path) -> None:
    fake.add_file("/f", DATA)
    fake.store.faults = [Fault(after=3000, kind=Kind.INCOMPLETE), Fault(after=2000, kind=Kind.NETWORK)]
    moved: list[int] = []
    got = await download(client_on(fake), "/f", tmp_path / "f", progress=moved.append)
    assert (tmp_path / "f").read_bytes() == DATA
    assert fake.store.asked == [("GET", "s1", ""), ("GET", "s2", "bytes=3000-"), ("GET", "s3", "bytes=5000-")]
    assert sum(moved) == got.size == len(DATA)


@pytest.mark.parametrize("size", [0, 5, 3 * bounds.CHUNK_BYTES + 1])
async def test_a_download_appears_with_its_time_and_the_usual_rights_whatever_its_size(
    fake: FakeBartender, tmp_path: Path, size: int
) -> None:
    fake.add_file("/f", bytes(size))
    fake.store.faults = [Fault(after=size // 2, kind=Kind.NETWORK)]
    (tmp_path / "usual").touch()
    await download(client_on(fake), "/f", tmp_path / "f", mtime_s=1_000_000.5)
    found = (tmp_path / "f").stat()
    assert (found.st_size, found.st_mtime, found.st_mode) == (size, 1_000_000.5, (tmp_path / "usual").stat().st_mode)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["f", "usual"]


async def test_a_replica_that_says_nothing_costs_no_more_than_a_moment(fake: FakeBartender, tmp_path: Path) -> None:
    fake.add_file("/f", DATA)
    fake.store.faults = [Fault(stall=True)]
    before = time.perf_counter()
    await download(client_on(fake), "/f", tmp_path / "f")
    assert time.perf_counter() - before < 5 * patience()
    assert (tmp_path / "f").read_bytes() == DATA
    assert [host for _, host, _ in fake.store.asked] == ["s1", "s2"]


async def test_who_is_far_away_has_the_time_of_the_way(fake: FakeBartender, tmp_path: Path) -> None:
    """No second Shepherd is tried beside it, and no probe sent, within the time of a new connection."""
    fake.store.round_trips.keep("https://bartender", 2_000)
    fake.add_file("/f", DATA)
    fake.store.faults = [Fault(stall=True, stall_s=1.0)] * 2
    await download(client_on(fake), "/f", tmp_path / "f")
    await upload(client_on(fake), bytes_source(DATA), "/g")
    assert [method for method, _, _ in fake.store.asked] == ["GET", "PUT"]


async def test_the_time_of_the_way_comes_on_top_of_the_patience_with_bytes(fake: FakeBartender) -> None:
    fake.store.round_trips.keep("https://s1", 100)
    told = list[int]()

    @contextlib.asynccontextmanager
    async def stream(sending: Sending) -> AsyncIterator[SimpleNamespace]:
        told.append(sending.read_idle_ms)
        yield SimpleNamespace(status=200)

    http = cast(HttpClient, SimpleNamespace(round_trips=fake.store.round_trips, stream=stream))
    for url in ("https://s1/turl/x", "https://elsewhere/turl/x"):
        async with opened(http, ReplicaChoice([url], 500), {}):
            pass
    assert told == [900, 900], "who is not known is as far as the farthest"


async def test_a_download_goes_on_as_long_as_bytes_come(fake: FakeBartender, tmp_path: Path) -> None:
    fake.add_file("/f", DATA)
    fake.store.faults = [Fault(after=1, kind=Kind.TIMEOUT)] * 19
    await download(client_on(fake), "/f", tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == DATA


async def test_all_that_say_nothing_are_told_when_patience_is_over(fake: FakeBartender, monkeypatch: Any) -> None:
    monkeypatch.setattr("chelonia.hosting.transfer.hedging.HEDGE_MS", 1)
    monkeypatch.setattr("chelonia.hosting.transfer.download.PATIENCE_MS", (1,))
    fake.add_file("/f", DATA)
    fake.store.faults = [Fault(stall=True)] * 30
    with fails(Kind.TIMEOUT, match="did not answer in time"):
        async for _ in read(client_on(fake), "/f"):
            pass
    assert len(fake.store.asked) == 12


async def test_wrong_bytes_start_over_on_the_next_replica(fake: FakeBartender, tmp_path: Path) -> None:
    fake.add_file("/f", DATA)
    fake.store.faults = [Fault(flip=True)]
    await download(client_on(fake), "/f", tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == DATA


async def test_who_gave_wrong_bytes_is_asked_no_more_and_others_are_waited_for(
    fake: FakeBartender, tmp_path: Path
) -> None:
    """The good copy's Shepherd counts as away for a moment."""
    fake.add_file("/f", DATA)
    fake.store.rotten = ["s1"]
    fake.offered = [(1,), (1,), (1, 2)]
    await download(client_on(fake), "/f", tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == DATA
    assert [host for _, host, _ in fake.store.asked] == ["s1", "s2"]


async def test_where_all_bytes_are_wrong_they_are_fetched_once_from_each(fake: FakeBartender, tmp_path: Path) -> None:
    fake.add_file("/f", DATA)
    fake.store.rotten = ["s1", "s2", "s3"]
    with fails(Kind.CHECKSUM):
        await download(client_on(fake), "/f", tmp_path / "f")
    assert [host for _, host, _ in fake.store.asked] == ["s1", "s2", "s3"]


async def test_bytes_of_two_replicas_that_do_not_fit_tell_against_neither(fake: FakeBartender, tmp_path: Path) -> None:
    fake.add_file("/f", DATA)
    fake.store.rotten = ["s1"]
    fake.store.faults = [Fault(after=3000, kind=Kind.NETWORK)]
    fake.offered = [(1, 2), (1, 2)]
    await download(client_on(fake), "/f", tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == DATA
    assert [host for _, host, _ in fake.store.asked] == ["s1", "s2", "s1", "s2"]


async def test_expired_turls_are_asked_for_once_more(fake: FakeBartender, tmp_path: Path) -> None:
    fake.add_file("/f", DATA)
    fake.store.faults = [Fault(kind=Kind.EXPIRED)] * 3
    await download(client_on(fake), "/f", tmp_path / "f")
    assert [op for op, _ in fake.calls] == ["look", "look"]


@pytest.mark.parametrize("fault", [Fault(after=1000, kind=Kind.NETWORK), Fault(flip=True)])
async def test_a_download_that_fails_leaves_the_old_file_and_nothing_else(
    fake: FakeBartender, tmp_path: Path, fault: Fault
) -> None:
    fake.add_file("/f", DATA)
    (tmp_path / "f").write_bytes(b"old")
    fake.store.faults = [fault] + [replace(fault, after=0)] * 30
    with fails(fault.kind or Kind.CHECKSUM):
        await download(client_on(fake), "/f", tmp_path / "f", overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    assert (tmp_path / "f").read_bytes() == b"old"


async def test_a_download_takes_the_place_of_no_device_pipe_or_directory(fake: FakeBartender, tmp_path: Path) -> None:
    fake.add_file("/f", DATA)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "to-pipe").symlink_to("pipe")
    (tmp_path / "directory").mkdir()
    before = sorted((path.name, path.lstat().st_mode) for path in tmp_path.iterdir())
    for name in ("pipe", "to-pipe", "directory"):
        with pytest.raises(CheloniaError) as caught:
            await download(client_on(fake), "/f", tmp_path / name, overwrite=True)
        assert (caught.value.kind, caught.value.subject) == (Kind.NOT_A_FILE, str(tmp_path / name))
    assert sorted((path.name, path.lstat().st_mode) for path in tmp_path.iterdir()) == before


async def test_a_download_goes_where_a_symbolic_link_leads(fake: FakeBartender, tmp_path: Path) -> None:
    fake.add_file("/f", DATA)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to("elsewhere/f")
    for _ in range(2):  # to what is not there yet, then to what is
        await download(client_on(fake), "/f", tmp_path / "link", overwrite=True)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "elsewhere" / "f").read_bytes() == DATA


async def test_a_file_overwritten_during_its_download_is_no_mixture(fake: FakeBartender, tmp_path: Path) -> None:
    fake.add_file("/f", DATA)
    fake.store.faults = [Fault(after=1000 * n, kind=Kind.NETWORK) for n in (3, 2, 2)]

    def overwrite(moved: int) -> None:
        if len(fake.store.asked) == 3:
            fake.add_file("/f", b"other")

    with fails(Kind.CONFLICT):
        await download(client_on(fake), "/f", tmp_path / "f", progress=overwrite)
    assert list(tmp_path.iterdir()) == []


async def read_whole(fake: FakeBartender) -> bytes:
    return b"".join([chunk async for chunk in read(client_on(fake), "/f")])


async def test_a_streamed_read_goes_on_from_another_replica_and_hands_over_no_wrong_byte(fake: FakeBartender) -> None:
    fake.add_file("/f", DATA)
    fake.store.faults = [Fault(after=3000, kind=Kind.NETWORK)]
    assert await read_whole(fake) == DATA
    fake.store.rotten = ["s1", "s2"]
    assert await read_whole(fake) == DATA
    fake.store.faults = [Fault(after=3000, kind=Kind.NETWORK)]  # of a rotten one, so that the sum of two is wrong
    assert await read_whole(fake) == DATA


async def test_a_streamed_read_fails_only_where_no_replica_is_right(fake: FakeBartender) -> None:
    fake.add_file("/f", DATA)
    fake.store.rotten = ["s1", "s2", "s3"]
    reading = read(client_on(fake), "/f")
    with fails(Kind.CHECKSUM):
        await anext(reading)


async def test_a_streamed_read_longer_than_what_is_held_goes_on_if_what_it_handed_over_was_right(
    fake: FakeBartender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chelonia.core.bounds.READ_HELD_BYTES", 1000)
    fake.add_file("/f", DATA)
    fake.store.rotten, fake.store.rotten_from = ["s1", "s2"], len(DATA) - 500
    moved: list[int] = []
    assert b"".join([chunk async for chunk in read(client_on(fake), "/f", moved.append)]) == DATA
    assert sum(moved) == len(DATA)
    fake.store.rotten_from = 0
    with fails(Kind.CHECKSUM, match="read it anew"):
        await read_whole(fake)


@pytest.mark.parametrize("held", [1000, 1 << 20])
async def test_a_streamed_read_hashes_its_bytes_once(
    fake: FakeBartender, monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    monkeypatch.setattr("chelonia.core.bounds.READ_HELD_BYTES", held)
    fake.add_file("/f", DATA)
    hashed = list[int]()

    class Counted:
        def __init__(self) -> None:
            self._hash = hashlib.sha256()

        def update(self, data: bytes) -> None:
            hashed.append(len(data))
            self._hash.update(data)

        def __getattr__(self, name: str) -> object:
            return getattr(self._hash, name)

        def copy(self) -> Counted:
            new = Counted()
            new._hash = self._hash.copy()
            return new

    monkeypatch.setattr("chelonia.hosting.transfer.download.hashlib", SimpleNamespace(sha256=Counted))
    monkeypatch.setattr("chelonia.hosting.transfer.download.new_hash", lambda kind: Counted())
    assert await read_whole(fake) == DATA
    assert sum(hashed) == len(DATA)


async def test_a_broken_upload_starts_again_and_names_the_file_once(fake: FakeBartender, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(DATA)
    fake.store.faults = [Fault(after=1, kind=Kind.NETWORK), Fault(after=1, kind=Kind.EXPIRED)]
    moved: list[int] = []
    options = UploadOptions(replicas=2, mtime_s=12.5, progress=moved.append)
    stored = await upload_local(client_on(fake), file_source(tmp_path / "f"), "/f", options)
    assert fake.data("/f") == DATA
    assert sum(moved) == stored.size == len(DATA)
    assert [op for op, _ in fake.calls] == ["place", "place", "place", "write"]
    assert fake.found("/f")["timestamps"]["modified"] == "12.500000000"


@pytest.mark.parametrize("how", ["frozen", "stuck"])
async def test_an_upload_leaves_a_shepherd_that_has_gone_silent_or_whose_disk_does_not_answer(
    fake: FakeBartender, how: str
) -> None:
    fake.store.faults = [Fault(stall=True, stall_s=30)]
    setattr(fake.store, how, ["s1", "s2", "s3"])
    before = time.perf_counter()
    await upload(client_on(fake), bytes_source(DATA), "/f")
    assert time.perf_counter() - before < 5 * patience()
    assert fake.data("/f") == DATA
    assert [method for method, _, _ in fake.store.asked] == ["PUT", "HEAD", "PUT"]


async def test_an_upload_waits_for_a_shepherd_that_is_busy_but_lives(fake: FakeBartender) -> None:
    fake.store.faults = [Fault(stall=True, stall_s=1.0)]
    await upload(client_on(fake), bytes_source(DATA), "/f")
    assert fake.data("/f") == DATA
    methods = [method for method, _, _ in fake.store.asked]
    assert methods.count("PUT") == 1
    assert methods.count("HEAD") >= 1


def test_patience_with_an_upload_goes_with_the_link_and_with_each_start() -> None:
    clock, store = QuickClock(), FakeStore()

    def patience(start: int, moved: int, elapsed_ms: int) -> float:
        watch = StallWatch(cast(HttpClient, store), clock, start, lambda: moved)
        watch._moved_ms = Ms(watch._began_ms + elapsed_ms)
        return watch._patience_ms("https://s1/turl/x")

    mib = 1024 * 1024
    assert patience(0, 0, 0) == 250
    assert patience(1, 0, 0) == 1000
    assert patience(0, 1000 * mib, 10_000) == 250
    assert patience(0, 100 * mib, 100_000) == 5000
    assert patience(0, 100 * mib, 10_000_000) == 30_000
    store.round_trips.keep("https://bartender", 100)
    assert (patience(0, 0, 0), patience(1, 0, 0)) == (650, 2600)


async def test_for_a_name_that_is_taken_no_bytes_are_sent(fake: FakeBartender) -> None:
    fake.add_file("/f", b"theirs")
    with fails(Kind.EXISTS):
        await upload(client_on(fake), bytes_source(DATA), "/f")
    assert fake.store.asked == []


async def test_too_few_shepherds_for_a_moment_are_waited_for(fake: FakeBartender) -> None:
    fake.failures = [Kind.NO_SHEPHERD] * 3
    await upload(client_on(fake), bytes_source(DATA), "/f")
    assert fake.data("/f") == DATA
    fake.failures = [Kind.NO_REPLICA] * 2
    assert b"".join([chunk async for chunk in read(client_on(fake), "/f")]) == DATA


async def test_an_upload_that_fails_leaves_the_old_file(fake: FakeBartender) -> None:
    fake.add_file("/f", b"old")
    fake.store.faults = [Fault(after=1, kind=Kind.NETWORK)] * 10
    with fails(Kind.NETWORK):
        await upload(client_on(fake), bytes_source(DATA), "/f", UploadOptions(replace=True))
    assert fake.data("/f") == b"old"


@pytest.mark.parametrize("wanted", [True, False])
async def test_an_upload_that_may_replace_does_so_with_what_was_made_meanwhile(
    fake: FakeBartender, monkeypatch: pytest.MonkeyPatch, wanted: bool
) -> None:

    client = client_on(fake)
    apply = client.files.apply

    async def raced(call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        """The name was free when the client requested a place for the bytes."""
        if cast(Write, changes[0]).inline is None:
            fake.add_file("/f", b"other")
        return await apply(call, changes)

    monkeypatch.setattr(client.files, "apply", raced)
    with contextlib.nullcontext() if wanted else pytest.raises(CheloniaError, match="-f overwrites it"):
        await upload(client, bytes_source(DATA), "/f", UploadOptions(replace=wanted))
    assert fake.data("/f") == (DATA if wanted else b"other")


async def test_bytes_on_a_shepherd_that_was_forgotten_meanwhile_are_sent_to_others(
    fake: FakeBartender, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_on(fake)
    apply = client.files.apply

    async def refused(call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        if cast(Write, changes[0]).inline is None:
            monkeypatch.undo()
            return (Failure(Kind.NO_SHEPHERD, "/f", "no approved Shepherd"),)
        return await apply(call, changes)

    monkeypatch.setattr(client.files, "apply", refused)
    await upload(client, bytes_source(DATA), "/f")
    assert fake.data("/f") == DATA


async def test_receipts_for_other_bytes_are_a_checksum_error_and_name_nothing(fake: FakeBartender) -> None:
    fake.store.faults = [Fault(flip=True)] * 10
    with fails(Kind.CHECKSUM):
        await upload(client_on(fake), bytes_source(DATA), "/f")
    assert fake.names() == []


async def test_a_pipe_that_is_named_as_a_file_is_uploaded_whole(fake: FakeBartender) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb"), os.fdopen(writing, "wb") as pipe:
        pipe.write(DATA)
        pipe.close()
        stored = await upload_local(client_on(fake), file_source(Path(f"/dev/fd/{reading}")), "/f")
    assert stored.size == len(DATA)
    assert fake.data("/f") == DATA


def test_who_gives_up_a_pipe_ends_though_nobody_writes_to_it() -> None:
    """On Ctrl-C the event loop waited for the read."""
    reading, writing = os.pipe()
    stream = stream_of(lambda: os.fdopen(reading, "rb"))

    async def give_up() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await anext(stream())

    command = threading.Thread(target=lambda: asyncio.run(give_up()), daemon=True)
    command.start()
    command.join(10 * patience())
    ended = not command.is_alive()
    os.close(writing)
    assert ended


async def test_a_pipe_that_somebody_has_made_non_blocking_is_waited_for(fake: FakeBartender) -> None:
    """The parent process shares stdin and may have made it so. An empty pipe counted as its end. Numbers beyond those
    of select(2) are for programs with many open files."""
    low, writing = os.pipe()
    reading = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 1024)
    os.close(low)
    os.set_blocking(reading, False)
    loop = asyncio.get_running_loop()
    with os.fdopen(reading, "rb", closefd=False) as pipe, os.fdopen(writing, "wb", buffering=0) as writer:

        def write() -> None:
            if not writer.closed:
                writer.write(b"late")
                writer.close()

        def read(size: int) -> bytes | None:
            found: bytes | None = pipe.read(size)
            if found is None:
                loop.call_soon_threadsafe(write)
            return found

        file = MagicMock(wraps=pipe, read=read)
        file.__enter__.return_value = file
        stored = await upload_stream(client_on(fake), stream_of(lambda: file), "/f", UploadOptions())
    os.close(reading)
    assert stored.size == len(b"late")
    assert fake.data("/f") == b"late"


async def test_what_the_kernel_makes_up_is_uploaded_whole(fake: FakeBartender) -> None:
    source = Path("/proc/self/limits")
    assert source.stat().st_size == 0
    await upload_local(client_on(fake), file_source(source), "/f")
    assert fake.data("/f") == source.read_bytes()


SMALLER_THAN_SAID = Path("/sys/kernel/uevent_seqnum")


@pytest.mark.skipif(not SMALLER_THAN_SAID.exists(), reason="needs sysfs")
async def test_what_the_kernel_says_is_larger_than_it_is_is_uploaded_whole(fake: FakeBartender) -> None:
    assert SMALLER_THAN_SAID.stat().st_size > len(SMALLER_THAN_SAID.read_bytes())
    stored = await upload_local(client_on(fake), file_source(SMALLER_THAN_SAID), "/f")
    assert stored.size == len(fake.data("/f")) > 0
    assert fake.data("/f").strip().isdigit()


async def test_a_file_of_nothing_but_a_hole_has_its_size(fake: FakeBartender, tmp_path: Path) -> None:
    with (tmp_path / "f").open("wb") as file:
        file.truncate(5000)
    source = file_source(tmp_path / "f")
    assert source.size == 5000
    await upload_local(client_on(fake), source, "/f")
    assert fake.data("/f") == bytes(5000)


@pytest.mark.parametrize("hole", [True, False])
async def test_a_file_cut_off_while_it_is_uploaded_is_not_stored_short(
    fake: FakeBartender, tmp_path: Path, hole: bool
) -> None:
    path, size = tmp_path / "f", 4 * bounds.CHUNK_BYTES
    with path.open("wb") as file:
        file.truncate(size) if hole else file.write(bytes(size))
    sent: list[int] = []

    def cut(moved: int) -> None:
        sent.append(moved)
        os.truncate(path, 2 * bounds.CHUNK_BYTES)

    source = file_source(path)
    with pytest.raises(OSError, match=r"it ended after [0-9]+ of"):
        await upload_local(client_on(fake), source, "/f", UploadOptions(progress=cut))
    assert sum(sent) == 0, "what was sent does not count"
    assert fake.names() == [], "and nothing was named"


async def test_of_a_file_that_grows_comes_what_was_there_at_first(fake: FakeBartender, tmp_path: Path) -> None:
    """A log that grew while it was sent: the error was that the Shepherd had stored other bytes."""
    path, size = tmp_path / "f", 3 * bounds.CHUNK_BYTES
    path.write_bytes(bytes(size))

    def grow(moved: int) -> None:
        if path.stat().st_size == size:
            with path.open("ab") as file:
                file.write(b"more")

    stored = await upload_local(client_on(fake), file_source(path), "/f", UploadOptions(progress=grow))
    assert (stored.size, fake.data("/f")) == (size, bytes(size))
    assert path.stat().st_size > size


async def test_a_file_is_closed_when_nobody_reads_it_any_more_however_often_the_sender_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, size, goes_on = tmp_path / "f", 2 * bounds.CHUNK_BYTES, threading.Event()
    path.write_bytes(bytes(size))
    opened, open_ = list[Any](), Path.open

    class Slow:
        """A file of which the second chunk takes long."""

        def __init__(self) -> None:
            self.file, self.reads = open_(path, "rb", buffering=0), 0
            opened.append(self.file)

        def __enter__(self) -> Slow:
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def seek(self, start: int) -> None:
            self.file.seek(start)

        def read(self, most: int) -> bytes:
            self.reads += 1
            if self.reads > 1:
                assert goes_on.wait(60)
            return self.file.read(most)

    monkeypatch.setattr(Path, "open", lambda *_, **__: Slow())
    chunks = span_source(path, 0, size).open()
    assert len(await anext(chunks)) == bounds.CHUNK_BYTES
    sender = asyncio.ensure_future(anext(chunks))
    for _ in range(3):
        await asyncio.sleep(0)
        sender.cancel()
    await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await sender
    assert not opened[0].closed
    goes_on.set()
    await poll_async(lambda: opened[0].closed, what="it is closed")


async def test_a_file_that_is_opened_when_its_sender_has_gone_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, goes_on, opened, open_ = tmp_path / "f", threading.Event(), list[Any](), Path.open
    path.write_bytes(b"x")

    def slow(*_: object, **__: object) -> Any:
        assert goes_on.wait(60)
        opened.append(open_(path, "rb", buffering=0))
        return opened[0]

    monkeypatch.setattr(Path, "open", slow)
    sender = asyncio.ensure_future(anext(span_source(path, 0, 1).open()))
    await asyncio.sleep(0)
    sender.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sender
    goes_on.set()
    await poll_async(lambda: opened and opened[0].closed, what="it is closed")


async def test_an_empty_file_is_uploaded_empty(fake: FakeBartender, tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    source = file_source(tmp_path / "f")
    assert source.size == 0, "told, so that it is sent at once"
    assert (await upload_local(client_on(fake), source, "/f")).size == 0
    assert fake.data("/f") == b""


async def test_passing_trouble_is_waited_out_under_the_same_key(fake: FakeBartender) -> None:
    fake.failures = [Kind.UNAVAILABLE, Kind.OUTCOME_UNKNOWN]
    await client_on(fake).make_collection("/c")
    keys = {call.request_key for _, call in fake.calls}
    assert (len(fake.calls), len(keys)) == (3, 1)
    await client_on(fake).make_collection("/d")
    assert len({call.request_key for _, call in fake.calls}) == 2


async def test_what_a_retry_cannot_cure_is_told_at_once(fake: FakeBartender) -> None:
    fake.failures = [Kind.DENIED]
    with pytest.raises(CheloniaError):
        await client_on(fake).make_collection("/c")
    assert len(fake.calls) == 1


# --- trees ---


def make_tree(top: Path) -> None:
    (top / "sub" / "empty").mkdir(parents=True)
    (top / "ü b").mkdir()
    for name in ("a", "sub/x", "ü b/y z"):
        (top / name).write_bytes(name.encode())
        os.utime(top / name, (1_000_000_000.25, 1_000_000_000.25))


async def test_a_tree_goes_up_and_comes_back_the_same(fake: FakeBartender, tmp_path: Path) -> None:
    make_tree(tmp_path / "t")
    client, options = client_on(fake), TreeOptions(parallel=3)
    up = [done async for done in put_tree(client, tmp_path / "t", "/t", options)]
    assert [done.error for done in up] == [None] * len(up)
    assert fake.names() == ["/t", "/t/a", "/t/sub", "/t/sub/empty", "/t/sub/x", "/t/ü b", "/t/ü b/y z"]
    down = [done async for done in get_tree(client, "/t", tmp_path / "back", options)]
    assert [done.error for done in down] == [None] * len(down)
    assert contents(tmp_path / "back") == contents(tmp_path / "t")
    assert (tmp_path / "back" / "a").stat().st_mtime == 1_000_000_000.25
    async for done in copy_tree(client, "/t", "/u", options):
        assert done.error is None
    assert fake.data("/u/ü b/y z") == fake.data("/t/ü b/y z")
    gone = [done.source async for done in remove_tree(client, "/t", all_names=False)]
    assert gone[-1] == "/t"
    assert not any(name.startswith("/t") for name in fake.names())


def contents(top: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(top)): path.read_bytes() if path.is_file() else None for path in top.rglob("*")}


async def test_what_cannot_go_is_told_and_the_rest_goes_on(fake: FakeBartender, tmp_path: Path) -> None:
    make_tree(tmp_path / "t")
    (tmp_path / "t" / "link").symlink_to("a")
    (tmp_path / "t" / "b\nc").write_bytes(b"")
    (tmp_path / "t" / os.fsdecode(b"\xff")).write_bytes(b"")
    fake.add_collection("/t")
    fake.add_file("/t/a", b"taken")
    done = {
        d.source.rpartition("/")[2]: d async for d in put_tree(client_on(fake), tmp_path / "t", "/t", TreeOptions())
    }
    failed = {name: d.error.kind for name, d in done.items() if d.error is not None}
    assert failed == {"a": Kind.EXISTS, "b\\nc": Kind.BAD_NAME, "\\udcff": Kind.BAD_NAME}
    assert done["link"].note == "symbolic link: skipped"
    assert fake.data("/t/sub/x") == b"sub/x"


async def test_results_come_in_the_order_of_the_walk(fake: FakeBartender, tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    for number in range(60):
        (tmp_path / "t" / f"{number:02d}").write_bytes(b"x" * (60 - number))
    done = [d.target async for d in put_tree(client_on(fake), tmp_path / "t", "/t", TreeOptions(parallel=5))]
    assert done == ["/t", *(f"/t/{number:02d}" for number in range(60))]


def is_refused(name: str) -> bool:
    with contextlib.suppress(CheloniaError):
        return check_name(name) != name
    return True


NAMES = st.text(min_size=1, max_size=20).filter(lambda s: "/" not in s and "\0" not in s and s not in (".", ".."))


@given(st.lists(NAMES, min_size=1, max_size=4), st.sampled_from(["/", "/base", "/base/"]))
def test_names_map_one_to_one_between_local_paths_and_logical_names(names: list[str], base: str) -> None:
    if any(is_refused(name) for name in names):
        with pytest.raises(CheloniaError):
            to_ln(base, names)
        return
    ln = to_ln(base, names)
    assert parse_ln(ln).parts == (*parse_ln(base).parts, *names)
    assert to_local(Path("/top"), "/".join(names)).relative_to("/top").parts == tuple(names)


@pytest.mark.parametrize("listed", ["..", "a/../../b", "/etc/passwd", "a//b", ".", ""])
def test_no_listed_name_leads_out_of_the_target(listed: str) -> None:
    with pytest.raises(CheloniaError):
        to_local(Path("/top"), listed)


@given(st.text(max_size=30))
def test_what_is_shown_of_a_name_is_printable(name: str) -> None:
    assert printable(name).isprintable()


WORDS = st.lists(st.sampled_from([s + a for s in "+-" for a in ("read", "delete", "addEntry")]), max_size=6)


@given(WORDS, WORDS)
@settings(max_examples=50)
def test_merging_actions_keeps_one_sign_each_and_the_newer_wins(stored: list[str], changes: list[str]) -> None:
    merged = merge_actions(" ".join(stored), " ".join(changes)).split()
    assert len({word[1:] for word in merged}) == len(merged)
    last = {word[1:]: word for word in (*stored, *changes)}
    assert set(merged) == set(last.values())


def test_the_sync_face_does_the_same(fake: FakeBartender) -> None:
    with tempfile.TemporaryDirectory() as folder, SyncClient(client_on(fake)) as client:
        client.make_collections("/a/b")
        client.upload(b"hello", "/a/b/f")
        client.upload(b"more", "/a/b/g")
        assert [entry.name for entry in client.list("/a", recursive=True, page=1)] == ["b", "b/f", "b/g"]
        assert b"".join(client.read("/a/b/f")) == b"hello"
        assert client.download("/a/b/f", Path(folder) / "f").size == 5
        first = next(client.list("/a/b"))
        assert (first.name, first.type, first.size) == ("f", "file", 5)
        with pytest.raises(CheloniaError):
            client.stat("/none")
    client.close()
    assert fake.store.closed


async def test_a_source_is_closed_though_a_sender_that_was_cut_off_is_still_reading_it(
    fake: FakeBartender, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, may_end = asyncio.Event(), asyncio.Event()
    closed: list[str] = []
    senders: list[asyncio.Task[None]] = []

    async def slow() -> AsyncIterator[bytes]:
        try:
            yield b"first"
            reading.set()
            with contextlib.suppress(asyncio.CancelledError):  # as a thread that reads a file is not cut off either
                await asyncio.Event().wait()
            await may_end.wait()
            yield b"second"
        finally:
            closed.append("source")

    async def send(body: AsyncIterator[bytes]) -> None:
        async for _ in body:
            pass

    async def cut_off(sending: Sending) -> Received:
        senders.append(asyncio.create_task(send(cast("AsyncIterator[bytes]", sending.body))))
        await reading.wait()
        senders[0].cancel()
        asyncio.get_running_loop().call_later(0.01, may_end.set)
        raise CheloniaError(Kind.DENIED, cause="the Shepherd changed its mind")

    monkeypatch.setattr(fake.store, "request", cut_off)
    with pytest.raises(CheloniaError, match="changed its mind"):
        await upload(client_on(fake), Source(slow, -1), "/file")
    assert closed == ["source"]
    await asyncio.gather(*senders, return_exceptions=True)


@pytest.mark.parametrize(("mtime_s", "kept_s"), [(-3600, 0), (10**11, bounds.TIME_S_MAX)])
async def test_a_file_of_a_time_that_is_not_kept_goes_up_with_the_nearest(
    fake: FakeBartender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mtime_s: int, kept_s: int
) -> None:
    path, stat = tmp_path / "d" / "f", os.stat
    path.parent.mkdir()
    path.write_bytes(DATA)

    def timed(of: object, **how: bool) -> os.stat_result:  # whatever this disk can keep
        found = stat(of, **how)  # type: ignore[call-overload]
        return os.stat_result((*found[:8], mtime_s, found[9])) if of == path else found

    monkeypatch.setattr(os, "stat", timed)
    for again in (False, True):
        done = [each async for each in put_tree(client_on(fake), tmp_path / "d", "/d", TreeOptions())]
        assert [(each.error, each.same) for each in done if each.type == "file"] == [(None, again)]
    assert float(fake.found("/d/f")["timestamps"]["modified"]) == kept_s
