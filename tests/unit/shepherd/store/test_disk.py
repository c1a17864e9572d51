"""Facts that only real files show: a full disk, a second process, records of newer software, the state file."""

import asyncio
import errno
import gc
import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from chelonia.core.contents.extents import ByteRange
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ReferenceId, ServiceId
from chelonia.core.ports.shepherd import ShepherdState, SmallReplica, StoreIdentity
from chelonia.shepherd.store import blobs_files, store_state
from chelonia.shepherd.store.blobs_files import COMMITTED, UNCOMMITTED, FileBlobs
from chelonia.shepherd.store.blobs_local import LocalBlobs
from chelonia.shepherd.store.store_state import StateFile, locked
from chelonia.wire import records
from tests.support.failing import fails
from tests.support.shepherd import numbered, request

REF = ReferenceId(numbered("a", 1))
STATE = ShepherdState(5, b"\x01" * 32, "cluster-1", 2, 9, {"scrub_cursor": REF})


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


async def write(store: FileBlobs | LocalBlobs, reference: ReferenceId, data: bytes) -> None:
    writer = await store.create(reference)
    await writer.write(data)
    await writer.commit(request(data).facts)


@pytest.mark.needs_tmpfs
async def test_a_really_full_disk_refuses_and_gets_its_space_back(small_disk: Path) -> None:
    store = FileBlobs(small_disk)
    free, _ = await store.space()
    writer = await store.create(REF)
    for _ in range(free // 200_000):
        await writer.write(b"x" * 200_000)
    with fails(Kind.NO_SPACE):
        await writer.write(b"x" * 200_000)
    assert (await store.space())[0] == free
    await write(store, REF, b"small")
    store.close()


@pytest.mark.needs_tmpfs
async def test_the_reserve_is_refused_before_the_disk_is_full(small_disk: Path) -> None:
    store = FileBlobs(small_disk, min_free_bytes=500_000)
    with fails(Kind.NO_SPACE):
        await write(store, REF, b"x" * 700_000)
    stat = os.statvfs(small_disk)
    assert stat.f_bavail * stat.f_frsize > 500_000
    store.close()


async def test_a_number_whose_closing_fails_is_not_closed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is free then, and soon a connection's."""
    store, close = FileBlobs(tmp_path), os.close
    writer = await store.create(REF)
    await writer.write(b"x")
    with open(os.devnull) as other:
        own = writer._fd

        def failing(fd: int) -> None:
            close(fd)
            if fd == own:
                monkeypatch.undo()
                os.dup2(other.fileno(), own)
                raise OSError(errno.EIO, "no")

        monkeypatch.setattr(os, "close", failing)
        with pytest.raises(CheloniaError):
            await writer.commit(request(b"x").facts)
    os.close(own)
    store.close()


@pytest.mark.parametrize("call", ["close", "replace"])
async def test_a_suspended_upload_is_kept_or_nothing_of_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Else it stays until the next start. A file that cannot be closed has been synced before."""
    store, real = FileBlobs(tmp_path), getattr(os, call)
    writer = await store.create(REF)
    await writer.write(b"x")
    own = {"close": writer._fd, "replace": store.incoming(REF, ".writing")}[call]

    def failing(first: Any, *rest: Any) -> None:
        if first == own:
            monkeypatch.undo()
            if call == "close":
                real(own)
            raise OSError(errno.EIO, "no")
        real(first, *rest)

    monkeypatch.setattr(os, call, failing)
    with fails(Kind.UNAVAILABLE) if call == "replace" else nullcontext():
        await writer.suspend()
    await writer.abort()
    assert os.listdir(tmp_path / "incoming") == ([f"{REF}.kept"] if call == "close" else [])
    store.close()


async def test_what_is_thrown_away_is_not_closed_while_it_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number is another file's soon after; and only asyncio reported a failed sync."""
    told, store = list[object](), FileBlobs(tmp_path)
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["message"]))

    def failing(fd: int) -> None:
        assert os.fstat(fd).st_size == 10
        raise OSError(errno.EIO, "gone")

    monkeypatch.setattr(blobs_files, "SYNC_EVERY_BYTES", 10)
    monkeypatch.setattr(blobs_files.os, "fdatasync", failing)
    writer = await store.create(ReferenceId(numbered("c", 1)))
    await writer.write(b"0123456789")
    await writer.abort()
    del writer
    gc.collect()
    assert told == []
    store.close()


def test_one_directory_serves_one_process(tmp_path: Path) -> None:
    store = FileBlobs(tmp_path)
    with fails(Kind.BAD_CONFIG, match="another process"):
        FileBlobs(tmp_path)
    store.close()
    FileBlobs(tmp_path).close()


async def test_records_of_newer_software_stop_the_start_and_condemn_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileBlobs(tmp_path)
    await write(store, REF, b"abc")

    def newer(raw: bytes) -> Any:
        raise CheloniaError(Kind.NOT_SUPPORTED, "", "replica record", "written as version 2")

    monkeypatch.setattr(records, "decode_facts", newer)
    with fails(Kind.NOT_SUPPORTED):
        [page async for page in store.scan()]
    store.close()


@pytest.mark.parametrize(
    ("code", "kind"), [(errno.EIO, Kind.NOT_ALIVE), (errno.EMFILE, Kind.UNAVAILABLE), (errno.EACCES, Kind.UNAVAILABLE)]
)
async def test_only_the_mediums_errors_condemn_a_replica(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: Kind
) -> None:
    store = FileBlobs(tmp_path)
    await write(store, REF, b"abc")

    def failing(*_: Any) -> bytes:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pread", failing)
    with fails(kind):
        [chunk async for chunk in store.read(REF, ByteRange(0, 3))]
    store.close()


class Crash(BaseException):
    """The end of the process."""


@pytest.mark.parametrize("what", ["erase", "quarantine", "reinstate"])
async def test_a_crash_in_the_middle_leaves_nothing_that_looks_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Before any change of the directory, a kill leaves the next start a whole replica, or none."""
    for steps in range(20):
        store = FileBlobs(tmp_path / str(steps))
        await write(store, REF, b"abc")
        await store.settle((REF,))
        if what == "reinstate":
            await store.quarantine(REF)
        with monkeypatch.context() as patch:
            crash_before(patch, steps)
            try:
                await getattr(store, what)(REF)
                done = True
            except Crash:
                done = False
        store.close()
        store = FileBlobs(tmp_path / str(steps))
        found = [(stored.size, stored.facts is not None) async for page in store.scan() for stored in page.read]
        aside = [(stored.size, stored.facts is not None) for stored in await store.quarantined()]
        store.close()
        left = found + aside
        assert left == [(3, True)] or (what == "erase" and not left)
        assert not (done and what == "erase" and left)
        if done:
            assert steps >= 2
            return
    raise AssertionError("it never came to its end")


@pytest.mark.parametrize("moment", range(6))
async def test_an_erasure_takes_a_record_away_that_is_settled_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    """It counted as a failing disk, or a record without bytes stayed."""
    store = FileBlobs(tmp_path)
    await write(store, REF, b"abc")
    with monkeypatch.context() as patch:
        settled_before(tmp_path, patch, moment)
        assert await store.erase(REF)
    store.close()
    assert list(tmp_path.rglob(f"{REF}*")) == []


@pytest.mark.parametrize("moment", range(3))
async def test_what_is_set_aside_takes_its_record_along_that_is_settled_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    store = FileBlobs(tmp_path)
    await write(store, REF, b"abc")
    with monkeypatch.context() as patch:
        settled_before(tmp_path, patch, moment)
        await store.quarantine(REF)
    [aside] = await store.quarantined()
    assert aside.facts is not None
    store.close()
    assert {path.parent.name for path in tmp_path.rglob(f"{REF}*")} == {"quarantine"}


def settled_before(root: Path, patch: pytest.MonkeyPatch, moment: int) -> None:
    """Have another thread settle the replica before one of the operation's steps."""
    [record] = root.rglob(f"{REF}{UNCOMMITTED}")
    steps = list(range(moment + 1))

    def stepping(real: Any) -> Any:
        def call(*args: Any) -> Any:
            if steps and steps.pop(0) == moment:
                with suppress(FileNotFoundError):
                    record.rename(record.with_suffix(COMMITTED))
            return real(*args)

        return call

    patch.setattr(os, "replace", stepping(os.replace))
    patch.setattr(os.path, "lexists", stepping(os.path.lexists))


def crash_before(patch: pytest.MonkeyPatch, steps: int) -> None:
    """Let so many changes of a directory happen, then none."""
    left = [steps]

    def limited(real: Any) -> Any:
        def change(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise Crash
            return real(*args, **kwargs)

        return change

    patch.setattr(os, "replace", limited(os.replace))
    patch.setattr(Path, "unlink", limited(Path.unlink))


async def test_one_that_cannot_be_settled_keeps_no_other_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All behind it stayed uncommitted for as long as it did, and such bytes may be erased by their age."""
    store = LocalBlobs(tmp_path)
    await store.identify(StoreIdentity("store", ServiceId("https://h:1/Shepherd")))
    [_ async for _ in store.scan()]
    bad, good, torn, small = (ReferenceId(numbered("a", number)) for number in (1, 2, 3, 4))
    for reference in (bad, good):
        await write(store, reference, b"x" * 100_000)
    await store.store_whole([SmallReplica(each, request(b"abc").facts, b"abc") for each in (torn, small)])
    write_at, failures = os.pwrite, [OSError(errno.EIO, "a sector is gone")]

    def fails_once(*given: Any) -> int:
        if failures:
            raise failures.pop()
        return write_at(*given)

    (tmp_path / "replicas" / "aa" / f"{bad}{COMMITTED}").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fails_once)
        with fails(Kind.UNAVAILABLE):
            await store.settle((bad, good, torn, small))
    (tmp_path / "replicas" / "aa" / f"{bad}{COMMITTED}").rmdir()
    found = {each.reference: each.committed async for page in store.scan() for each in page.read}
    assert found == {bad: False, good: True, torn: False, small: True}
    store.close()


async def test_the_layout_is_the_documented_one(tmp_path: Path) -> None:
    store = FileBlobs(tmp_path)
    await write(store, REF, b"abc")
    folder = tmp_path / "replicas" / "aa"
    assert sorted(os.listdir(folder)) == [REF, f"{REF}.uncommitted"]
    await store.settle((REF,))
    assert sorted(os.listdir(folder)) == [REF, f"{REF}.record"]
    assert records.decode_facts((folder / f"{REF}.record").read_bytes()) == request(b"abc").facts
    await store.quarantine(REF)
    assert sorted(os.listdir(tmp_path / "quarantine")) == [REF, f"{REF}.record"]
    assert os.listdir(tmp_path / "incoming") == []
    store.close()


async def test_nothing_is_left_in_the_directory_below_a_disk_that_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer has checked the disk just before: the directory below had notes in it."""
    root, away = tmp_path / "disk", tmp_path / "away"
    store, state = FileBlobs(root), StateFile(root / "state.json")

    def go() -> None:
        root.rename(away)
        root.mkdir()

    async def pages() -> AsyncIterator[dict[ReferenceId, bytes]]:
        yield {REF: b"note"}

    with monkeypatch.context() as patched:
        sync = os.fsync
        patched.setattr(store_state.os, "fsync", lambda fd: sync(fd) if away.exists() else go())
        state.save(STATE)
    assert os.listdir(root) == []
    assert StateFile(away / "state.json").load() == STATE
    for write in (store.probe(), store.note({REF: b"note"}), store.note_anew(pages())):
        with fails(Kind.UNAVAILABLE):
            await write
    with fails(Kind.UNAVAILABLE):
        state.save(STATE)
    assert os.listdir(root) == []
    store.close()


def test_the_state_survives_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    with locked(tmp_path):
        assert StateFile(path).load() is None
        StateFile(path).save(STATE)
    assert StateFile(path).load() == STATE
    assert path.stat().st_mode & 0o777 == 0o600
    assert sorted(os.listdir(tmp_path)) == ["lock", "state.json"]
    assert json.loads(path.read_text())["format"] == 1


@pytest.mark.parametrize("content", [b"", b"{}", b'{"format": 2}', b"[]", b'{"format": 1, "boot": "x"}'])
def test_an_unusable_state_file_is_told_and_not_replaced(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(content)
    with fails(Kind.BAD_CONFIG):
        StateFile(path).load()
    assert path.read_bytes() == content
