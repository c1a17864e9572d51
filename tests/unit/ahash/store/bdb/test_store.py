"""The Berkeley DB engine alone: files, locks, crashes, full disks, damage."""

import asyncio
import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from berkeleydb import db as bdb

from chelonia.ahash.committer import CommitLimits, Committer, TransactJob
from chelonia.ahash.settings import AHashSettings
from chelonia.ahash.store import layout, meta
from chelonia.ahash.store.bdb import environment
from chelonia.ahash.store.bdb.checkpoints import OVERDUE
from chelonia.ahash.store.bdb.environment import PAGE_BYTES, BdbSettings, translate
from chelonia.ahash.store.bdb.files import CommitCounter, PeerIdentity, format_slot, parse_slot
from chelonia.ahash.store.bdb.replicated import ReplicatedStore
from chelonia.ahash.store.bdb.store import BdbStore
from chelonia.core.caller import Call, Role
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn, Ms, ObjectId, RequestKey
from chelonia.core.ports.ahash import TransactOutcome
from tests.support.ahash import LIBRARIAN, SMALL, HandClock, add, no_panic, open_store, put, serving
from tests.support.failing import fails
from tests.support.polling import patience

ROOT = Path(__file__).parents[5]
ADMIN = Call(Dn("/CN=admin"), (Role.ADMINISTRATOR,))
NO_KEY = RequestKey("")


def opened(directory: Path, settings: BdbSettings = SMALL) -> BdbStore:
    return BdbStore(directory, settings, no_panic)


def committer(store: BdbStore) -> Committer:
    meta.prepare(store, "test")
    return Committer(store, CommitLimits(1000, 0))


def write(writer: Committer, turn: int) -> None:
    element = put("o", "entries", f"{turn:05}", "x" * 100)
    (outcome,) = writer.commit((TransactJob("librarian", NO_KEY, (element,)),), Ms(turn))
    assert isinstance(outcome, TransactOutcome)
    assert outcome.applied


def crash_image(store_directory: Path, target: Path) -> Path:
    """The files after a crash now: nothing is closed."""
    return Path(shutil.copytree(store_directory, target))


def refusal(directory: Path) -> CheloniaError:
    with pytest.raises(CheloniaError) as caught:
        opened(directory)
    return caught.value


# --- opening ---------------------------------------------------------------------------------------------------------


def test_contents_survive_closing_and_opening(tmp_path: Path) -> None:
    store = opened(tmp_path / "a")
    store.commit({b"k": b"v"}, [])
    store.close()
    again = opened(tmp_path / "a")
    assert again.get(b"k") == b"v"
    again.close()


def test_contents_survive_a_crash(tmp_path: Path) -> None:
    store = opened(tmp_path / "a")
    store.commit({b"k": b"v"}, [])
    again = opened(crash_image(tmp_path / "a", tmp_path / "b"))
    assert again.get(b"k") == b"v"
    again.close()
    store.close()


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(mode=0o755)
    store = opened(tmp_path / "a")
    store.commit({b"k": b"v"}, [])
    modes = {path.name: path.stat().st_mode & 0o077 for path in (tmp_path / "a", *(tmp_path / "a").rglob("*"))}
    store.close()
    assert not any(modes.values()), modes


def test_the_engine_takes_memory_as_it_is_needed(tmp_path: Path) -> None:
    """Locks and mutexes for the largest possible number took 15 MiB beside an empty store."""
    env = environment.make_environment(BdbSettings(), lambda *event: None)
    environment.open_environment(env, tmp_path, 0)
    tree = environment.new_tree(env)
    tree.open(environment.TREE, dbtype=bdb.DB_BTREE, flags=bdb.DB_CREATE | bdb.DB_AUTO_COMMIT)
    assert env.mutex_stat()["regsize"] + env.lock_stat()["regsize"] < 8 << 20
    assert env.mutex_stat()["mutex_inuse"] > environment.CACHE_MUTEXES, "the lists of cached pages are guarded"
    for _ in range(2):  # what changes a page that is there locks it until the end
        txn = env.txn_begin()
        environment.write(tree, txn, {b"%05d" % number: bytes(900) for number in range(10_000)}, ())
        held = env.lock_stat()["nlocks"]
        txn.commit()
    assert held > 3000
    assert env.mutex_stat()["mutex_inuse"] > 3000
    tree.close()
    env.close()


def test_a_disk_without_room_for_the_settings_of_the_engine_ends_no_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", full)
    opened(tmp_path / "a").close()


def test_a_second_opener_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    store = opened(tmp_path / "a")
    error = refusal(tmp_path / "a")
    assert error.kind is Kind.UNAVAILABLE
    assert f"process {os.getpid()} " in error.cause
    store.commit({b"k": b"v"}, [])
    store.close()
    opened(tmp_path / "a").close()


async def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    store = open_store("bdb", tmp_path)
    meta.prepare(store, "test")
    store.commit({layout.META_FORMAT: layout.encode_value(str(layout.FORMAT + 1))}, ())
    with fails(Kind.BAD_CONFIG, match="newer version"):
        async with serving(store):
            pass
    store.close()


async def test_objects_and_request_keys_survive_a_restart(tmp_path: Path) -> None:
    clock, key = HandClock(), RequestKey("k")
    async with serving(open_store("bdb", tmp_path), clock) as service:
        first = await service.transact(LIBRARIAN, key, (add("o", "s", "n", 1),), "note")
    async with serving(open_store("bdb", tmp_path), clock) as service:
        again = await service.transact(LIBRARIAN, key, (add("o", "s", "n", 1),), "note")
        (found,) = await service.get(LIBRARIAN, (ObjectId("o"),))
        status = await service.status(LIBRARIAN)
    assert (again.position, again.memo, again.recalled) == (first.position, "note", True)
    assert found.value("s", "n") == "1"
    assert status.position == first.position
    assert status.objects_estimate == 1


# --- damage ----------------------------------------------------------------------------------------------------------


def damaged_log(tmp_path: Path) -> Path:
    store = opened(tmp_path / "a")
    writer = committer(store)
    for turn in range(50):
        write(writer, turn)
    image = crash_image(tmp_path / "a", tmp_path / "b")
    store.close()
    log = image / "db" / "log.0000000001"
    data = bytearray(log.read_bytes())
    middle = len(data.rstrip(b"\0")) * 3 // 4  # the first half tells how the tree was made
    data[middle : middle + 64] = b"\xa5" * 64
    log.write_bytes(data)
    return image


def test_a_log_that_lost_its_end_is_noticed(tmp_path: Path) -> None:
    image = damaged_log(tmp_path)
    error = refusal(image)
    assert error.kind is Kind.BAD_CONFIG
    assert "(1, 50) was acknowledged" in error.cause
    assert f"remove {image / 'commits'}" in error.cause
    assert refusal(image).kind is Kind.BAD_CONFIG, "it does not pass the second time either"


def test_the_loss_can_be_accepted(tmp_path: Path) -> None:
    image = damaged_log(tmp_path)
    refusal(image)
    (image / "commits").unlink()
    store = opened(image)
    assert 0 < meta.read_state(store).sequence < 50
    store.close()


def damage_pages(directory: Path, marker: bytes) -> None:
    """Flip one bit in every page that holds `marker`."""
    pages = directory / "db" / "store.db"
    data = bytearray(pages.read_bytes())
    for start in range(0, len(data), PAGE_BYTES):
        if marker in data[start : start + PAGE_BYTES]:
            data[start + 4000] ^= 0x01
    pages.write_bytes(data)


def filled_and_closed(directory: Path) -> None:
    store = opened(directory)
    committer(store)
    store.commit({b"k%05d" % i: b"x" * 100 for i in range(5000)}, [])
    store.close()


def test_a_damaged_page_panics_and_whoever_hosts_it_is_told_once(tmp_path: Path) -> None:
    filled_and_closed(tmp_path / "a")
    damage_pages(tmp_path / "a", b"k04000")
    reasons: list[str] = []
    store = BdbStore(tmp_path / "a", SMALL, reasons.append)
    for _ in range(2):
        with fails(Kind.UNAVAILABLE):
            store.scan(b"", b"z", 5000)
    with fails(Kind.UNAVAILABLE):
        store.commit({b"k": b"v"}, [])
    [reason] = reasons
    assert "restore a backup" in reason
    store.close()


def empty_a_page(directory: Path, marker: bytes) -> bytes:
    """Make the leaf that holds `marker` all zero, as a disk may return lost data. Returns its old content."""
    with (directory / "db" / "store.db").open("r+b") as file:
        data, kind_at, leaf = file.read(), 25, 5
        pages = [at for at in range(0, len(data), PAGE_BYTES) if data[at + kind_at] == leaf]
        lost = next(at for at in pages if marker in data[at : at + PAGE_BYTES])
        file.seek(lost)
        file.write(bytes(PAGE_BYTES))
        return data[lost : lost + PAGE_BYTES]


def test_a_store_with_an_empty_page_does_not_open(tmp_path: Path) -> None:
    """Berkeley DB would loop for ever in a search that reaches it, and hold up all that wait for that."""
    filled_and_closed(tmp_path / "a")
    empty_a_page(tmp_path / "a", b"k04000")
    error = refusal(tmp_path / "a")
    assert error.kind is Kind.INTERNAL
    assert "damaged: restore a backup" in str(error)


def test_a_search_that_comes_to_an_empty_page_ends_its_process(tmp_path: Path) -> None:
    """Only its CPU, used for ever, shows it. The next start does not open."""
    filled_and_closed(tmp_path / "a")
    command = [sys.executable, "-m", "tests.unit.ahash.searching", str(tmp_path / "a"), "k04000"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120 * patience(), check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "ahash-reader-" in ended.stderr
    assert "Put a backup in its place" in ended.stderr
    assert refusal(tmp_path / "a").kind is Kind.INTERNAL


def test_an_empty_page_that_the_tree_does_not_have_is_no_damage(tmp_path: Path) -> None:
    """The file grows before its pages come."""
    filled_and_closed(tmp_path / "a")
    with (tmp_path / "a" / "db" / "store.db").open("ab") as file:
        file.write(bytes(3 * PAGE_BYTES))
    store = opened(tmp_path / "a")
    assert store.get(b"k04000") == b"x" * 100
    store.close()


@pytest.mark.parametrize("begins", ["far before", "at its end"])
def test_a_scan_does_not_end_at_a_page_that_is_empty(tmp_path: Path, begins: str) -> None:
    """Berkeley DB takes it for a hole in the file: the rest of the tree would silently be missing."""
    filled_and_closed(tmp_path / "a")
    reasons: list[str] = []
    store = BdbStore(tmp_path / "a", SMALL, reasons.append)
    first = min(int(key) for key in re.findall(rb"k([0-9]{5})", empty_a_page(tmp_path / "a", b"k04000")))
    start = b"k" if begins == "far before" else b"k%05d\0" % (first - 1)
    assert len(store.scan(b"k", b"k03000", 5000)) == 3000
    with fails(Kind.UNAVAILABLE):
        store.scan(start, b"z", 6000)
    assert "a page of it is empty" in reasons[0]
    store.close()


def test_a_page_that_the_disk_cannot_read_ends_the_process(tmp_path: Path) -> None:
    """Failing requests one by one does not help: a restart may find it whole, or its peers have it."""
    told: list[str] = []
    for error in (bdb.DBPageNotFoundError(-30986, "not found"), bdb.DBError(errno.EIO, "Input/output error")):
        assert translate(error, told.append).kind is Kind.UNAVAILABLE
    assert translate(bdb.DBError(errno.EINVAL, "Invalid argument"), told.append).kind is Kind.INTERNAL
    assert translate(bdb.DBError(), told.append).kind is Kind.INTERNAL
    assert len(told) == 2


def test_a_damaged_page_is_not_backed_up_and_the_store_goes_on(tmp_path: Path) -> None:
    filled_and_closed(tmp_path / "a")
    damage_pages(tmp_path / "a", b"k04000")
    store = BdbStore(tmp_path / "a", SMALL, no_panic)
    with fails(Kind.INTERNAL, match="the copy cannot be read"):
        store.backup(str(tmp_path / "copy"))
    assert not [*tmp_path.glob("copy*")]
    assert store.get(b"k00001") == b"x" * 100
    store.close()


def test_a_backup_disk_that_cannot_be_written_ends_no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unreadable file of the store looks the same: the engine does not name the disk of its error."""
    store = opened(tmp_path / "a")

    class Copying:
        def __init__(self, env: Any) -> None:
            self.env = env

        def __getattr__(self, name: str) -> Any:
            return getattr(self.env, name)

        def backup(self, *_: object) -> None:
            raise bdb.DBError(errno.EIO, "Input/output error")

    monkeypatch.setattr(store, "_env", Copying(store._env))
    with fails(Kind.INTERNAL, match="Input/output error"):
        store.backup(str(tmp_path / "copy"))
    assert not [*tmp_path.glob("copy*")]
    store.commit({b"k": b"v"}, ())
    assert store.get(b"k") == b"v"
    store.close()


def test_a_store_whose_own_records_are_damaged_does_not_open(tmp_path: Path) -> None:
    filled_and_closed(tmp_path / "a")
    damage_pages(tmp_path / "a", layout.META_GENERATION)
    error = refusal(tmp_path / "a")
    assert error.kind is Kind.INTERNAL
    assert "restore a backup" in error.cause


def test_the_counter_survives_damage_to_one_slot(tmp_path: Path) -> None:
    counter = CommitCounter(tmp_path / "commits")
    counter.note(1, 41)
    counter.note(1, 42)
    counter.close()
    data = bytearray((tmp_path / "commits").read_bytes())
    later = data.index(b" 42 ")
    data[later + 1] ^= 0x01
    (tmp_path / "commits").write_bytes(data)
    again = CommitCounter(tmp_path / "commits")
    assert again.value == (1, 41)
    again.note(1, 43)
    again.close()
    assert CommitCounter(tmp_path / "commits").value == (1, 43)


@pytest.mark.parametrize("slot", [b"", b"\0" * 64, b"chelonia-commits 1 1 2 00000000\n".ljust(64)])
def test_a_damaged_slot_counts_for_nothing(slot: bytes) -> None:
    assert parse_slot(slot) is None
    assert parse_slot(format_slot(3, 7)) == (3, 7)


# --- killed under load -----------------------------------------------------------------------------------------------


async def test_killed_under_load_every_acknowledged_transact_is_whole(tmp_path: Path) -> None:
    acknowledged: dict[int, int] = {}
    first = 0
    for round_ in range(4):
        command = [sys.executable, "-m", "tests.unit.ahash.crash_writer", str(tmp_path / "ahash"), str(first)]
        child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(400 + 150 * round_)]
        child.send_signal(signal.SIGKILL)
        rest, _ = child.communicate()
        whole = b"".join(lines) + rest[: rest.rfind(b"\n") + 1]
        for line in whole.splitlines():
            writer, turn = map(int, line.split())
            acknowledged[writer] = turn
        async with serving(open_store("bdb", tmp_path)) as service:
            for writer, turn in acknowledged.items():
                found = await service.get(LIBRARIAN, (ObjectId(f"o{writer}.0"), ObjectId(f"o{writer}.1")))
                there = {int(o.value("s", "turn")) for o in found}
                assert there in ({turn}, {turn + 1}), f"round {round_}: writer {writer} was told {turn}"
                page = await service.scan(LIBRARIAN, ObjectId("list"), "entries", f"{writer}.{first - 1:07}", 1000)
                mine = [int(name[2:]) for name, _ in page.items if name.startswith(f"{writer}.")]
                assert mine == list(range(first, there.pop() + 1))
        first = max(acknowledged.values()) + 2
    assert len(acknowledged) == 4


# --- upkeep and backup -----------------------------------------------------------------------------------------------


def test_checkpoints_keep_the_log_short(tmp_path: Path) -> None:
    settings = BdbSettings(8 << 20, log_file_bytes=1 << 20, log_buffer_bytes=128 << 10, checkpoint_log_bytes=1 << 20)
    store = opened(tmp_path / "a", settings)
    checkpoints = 0
    for turn in range(60):
        store.commit({b"%d.%d" % (turn, i): b"x" * 1000 for i in range(100)}, [])
        if store.upkeep_due():
            store.upkeep()
            checkpoints += 1
    logs = list((tmp_path / "a" / "db").glob("log.*"))
    store.close()
    assert checkpoints >= 60 * 100 * 1000 // (OVERDUE * settings.checkpoint_log_bytes), "at the latest"
    assert len(logs) <= 8, "of 17 without"


async def test_a_service_writes_checkpoints_by_itself(tmp_path: Path) -> None:
    settings = BdbSettings(8 << 20, log_file_bytes=1 << 20, log_buffer_bytes=128 << 10, checkpoint_log_bytes=200_000)
    async with serving(opened(tmp_path / "a", settings)) as service:
        for turn in range(100):
            await service.transact(LIBRARIAN, NO_KEY, (put("o", "s", "p", str(turn) * 30_000),))
        logs = list((tmp_path / "a" / "db").glob("log.*"))
    assert len(logs) <= 3


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "/tmp/x", "a b", "ä", "x" * 101])
async def test_a_backup_is_made_in_its_directory_and_nowhere_else(tmp_path: Path, name: str) -> None:
    settings = AHashSettings(cluster="test", backup_dir=str(tmp_path))
    async with serving(open_store("bdb", tmp_path), settings=settings) as service:
        with fails(Kind.BAD_REQUEST):
            await service.backup(ADMIN, name)
    async with serving(open_store("memory", tmp_path)) as service:
        with fails(Kind.NOT_SUPPORTED):
            await service.backup(ADMIN, "copy")


async def test_a_backup_made_while_writing_is_complete(tmp_path: Path) -> None:
    settings = AHashSettings(cluster="test", backup_dir=str(tmp_path))
    async with serving(open_store("bdb", tmp_path), settings=settings) as service:
        for turn in range(200):
            await service.transact(LIBRARIAN, NO_KEY, (put("o", "entries", f"{turn:05}", "x"), add("o", "s", "n", 1)))
        status = await service.status(LIBRARIAN)
        task = asyncio.create_task(service.backup(ADMIN, "copy"))
        turn = 200
        while not task.done():
            await service.transact(LIBRARIAN, NO_KEY, (put("o", "entries", f"{turn:05}", "x"), add("o", "s", "n", 1)))
            turn += 1
        await task
        with fails(Kind.EXISTS):
            await service.backup(ADMIN, "copy")
    async with serving(opened(tmp_path / "copy")) as restored:
        position = (await restored.status(LIBRARIAN)).position
        page = await restored.scan(LIBRARIAN, ObjectId("o"), "entries")
        (found,) = await restored.get(LIBRARIAN, (ObjectId("o"),), ())
        assert len(page.items) == int(found.value("s", "n")) >= 200
        assert (position.cluster, position.generation > status.position.generation) == ("test", True)
        await restored.transact(LIBRARIAN, NO_KEY, (put("o", "s", "p", "v"),))
    async with serving(opened(tmp_path / "copy")) as again:
        generation = (await again.status(LIBRARIAN)).position.generation
        assert generation == position.generation, "only its first opening begins a generation"


async def test_a_backup_that_is_restored_again_begins_another_generation(tmp_path: Path) -> None:
    """Shepherds that know the generation of the first restore would take the second for the same metadata."""
    settings = AHashSettings(cluster="test", backup_dir=str(tmp_path))
    async with serving(open_store("bdb", tmp_path), settings=settings) as service:
        await service.backup(ADMIN, "copy")
    seen = [1]
    for marked_s in (0, 5, 4, 9):  # the third by a clock that was put back: of an older one Shepherds say so
        shutil.copytree(tmp_path / "copy", tmp_path / str(marked_s))
        os.utime(tmp_path / str(marked_s) / "restored", (marked_s, marked_s))
        async with serving(opened(tmp_path / str(marked_s))) as restored:
            seen.append((await restored.status(LIBRARIAN)).position.generation)
    assert seen == [1, 2, 5, 4, 9]


def test_a_backup_that_fails_leaves_nothing(tmp_path: Path) -> None:
    store = opened(tmp_path / "a")
    (tmp_path / "file").write_text("not a directory")
    for place in ("file", "not-mounted"):
        with fails(Kind.BAD_CONFIG):
            store.backup(str(tmp_path / place / "copy"))
    assert not (tmp_path / "not-mounted").exists()
    store.commit({b"k": b"v"}, [])
    store.close()


async def test_reads_go_on_while_backups_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each took a reader thread: with two of them listings and the status waited until they were done."""
    go_on, copied = threading.Event(), environment.copy_environment

    def slowly(env: Any, target: Path) -> None:
        assert go_on.wait(30)
        copied(env, target)

    monkeypatch.setattr(environment, "copy_environment", slowly)
    settings = AHashSettings(cluster="test", backup_dir=str(tmp_path))
    async with serving(open_store("bdb", tmp_path), settings=settings) as service:
        backups = [asyncio.create_task(service.backup(ADMIN, f"copy{n}")) for n in range(3)]
        pages = [asyncio.create_task(service.scan(LIBRARIAN, ObjectId("o"), "entries")) for _ in range(3)]
        try:
            async with asyncio.timeout(5 * patience()):
                await asyncio.gather(*pages)
        finally:
            go_on.set()
            await asyncio.gather(*backups)
    assert sorted(path.name for path in tmp_path.glob("copy*")) == ["copy0", "copy1", "copy2"]


def test_of_two_backups_of_one_name_the_second_is_refused_and_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where both found no such directory, the one that failed removed what the other had copied."""
    store, target, copied = opened(tmp_path / "a"), str(tmp_path / "copy"), environment.copy_environment
    store.commit({b"k": b"v"}, ())

    def meanwhile(env: Any, partial: Path) -> None:
        with fails(Kind.EXISTS):
            environment.write_backup(target, lambda second: copied(env, second))
        copied(env, partial)

    monkeypatch.setattr(environment, "copy_environment", meanwhile)
    store.backup(target)
    store.close()
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == ["db", "restored"]
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("replicated", [False, True])
def test_closing_waits_for_a_backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, replicated: bool) -> None:
    identity = PeerIdentity(1, "test", Dn("/CN=1"))
    store = ReplicatedStore(tmp_path / "a", SMALL, identity) if replicated else opened(tmp_path / "a")
    copying, go_on, done = threading.Event(), threading.Event(), list[str]()
    copied = environment.copy_environment

    def slowly(env: Any, target: Path) -> None:
        copying.set()
        assert go_on.wait(30)
        done.append("copied")
        copied(env, target)

    def close() -> None:
        store.close()
        done.append("closed")

    monkeypatch.setattr(environment, "copy_environment", slowly)
    with ThreadPoolExecutor(2) as threads:
        backup = threads.submit(store.backup, str(tmp_path / "backup"))
        assert copying.wait(30)
        closing = threads.submit(close)
        closed_early = not wait([closing], timeout=0.3).not_done
        go_on.set()
        closing.result(30)
        with suppress(CheloniaError):  # it looks once more what it copied
            backup.result(30)
    assert not closed_early
    assert done == ["copied", "closed"]


# --- no space --------------------------------------------------------------------------------------------------------


class Scarce(BdbStore):
    """A store whose disk is as full as a test says."""

    free = 1 << 40

    def free_bytes(self) -> int:
        return self.free


@pytest.mark.expect_log("ahash is read-only: less than 1000 bytes free")
async def test_below_its_reserve_of_space_it_only_reads(tmp_path: Path) -> None:
    store = Scarce(tmp_path / "a", SMALL, no_panic)
    key = RequestKey("k")
    async with serving(store, settings=AHashSettings(cluster="test", min_free_bytes=1000)) as service:
        await service.transact(LIBRARIAN, key, (put("o", "s", "p", "v"),))
        store.free = 999
        assert not (await service.status(LIBRARIAN)).writable
        for refused in (
            service.transact(LIBRARIAN, NO_KEY, (put("o", "s", "p", "w"),)),
            service.change(LIBRARIAN, (put("o", "s", "p", "w"),)),
        ):
            with fails(Kind.READ_ONLY):
                await refused
        assert (await service.get(LIBRARIAN, (ObjectId("o"),)))[0].value("s", "p") == "v"
        assert (await service.transact(LIBRARIAN, key, (put("o", "s", "p", "v"),))).recalled
        store.free = 1000
        assert (await service.status(LIBRARIAN)).writable
        assert (await service.transact(LIBRARIAN, NO_KEY, (put("o", "s", "p", "w"),))).applied


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def remount(disk: Path, size: str) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)


def entries(store: BdbStore) -> set[str]:
    return {layout.wide_name(key)[1] for key, _ in store.scan(*layout.wide_range(ObjectId("o")), 10_000)}


@pytest.mark.needs_tmpfs
@pytest.mark.expect_log("last checkpoint failed|closing Berkeley DB", optional=True)
def test_a_disk_that_fills_up_loses_nothing_and_stays_readable(small_disk: Path) -> None:
    settings = BdbSettings(64 << 20, log_file_bytes=1 << 20, log_buffer_bytes=64 << 10)
    store = opened(small_disk / "a", settings)
    writer = committer(store)
    told: set[str] = set()
    failures: list[Kind] = []
    for turn in range(1000):
        job = TransactJob("librarian", NO_KEY, (put("o", "entries", f"{turn:05}", "x" * 60_000),))
        (outcome,) = writer.commit((job,), Ms(0))
        if isinstance(outcome, TransactOutcome):
            told.add(f"{turn:05}")
        elif isinstance(outcome, CheloniaError):
            failures.append(outcome.kind)
        if len(failures) == 5:
            break
    assert set(failures) <= {Kind.READ_ONLY, Kind.OUTCOME_UNKNOWN}
    assert len(failures) == 5
    assert entries(store) >= told, "it stays readable"
    remount(small_disk, "256m")
    write(writer, 70_000)
    assert entries(store) >= told | {"70000"}, "it goes on when space is back"
    again = opened(crash_image(small_disk / "a", small_disk / "b"), settings)
    assert entries(again) >= told | {"70000"}, "nor does a crash after it lose anything"
    again.close()
    store.close()


@pytest.mark.needs_tmpfs
@pytest.mark.expect_log("ahash is read-only")
async def test_it_stops_before_the_disk_is_full_and_goes_on_by_itself(small_disk: Path) -> None:
    settings = AHashSettings(cluster="test", min_free_bytes=10 << 20)
    tiny = BdbSettings(4 << 20, log_file_bytes=1 << 20, log_buffer_bytes=64 << 10)  # no checkpoint, which makes room
    async with serving(opened(small_disk / "a", tiny), settings=settings) as service:
        written: list[str] = []

        async def write_on() -> None:
            while True:
                name = f"{len(written):05}"
                await service.transact(LIBRARIAN, NO_KEY, (put("o", "entries", name, "x" * 30_000),))
                written.append(name)

        with fails(Kind.READ_ONLY):
            await write_on()
        page = await service.scan(LIBRARIAN, ObjectId("o"), "entries")
        assert [name for name, _ in page.items] == written
        assert len(written) > 10
        assert not (await service.status(LIBRARIAN)).writable
        remount(small_disk, "256m")
        await service.transact(LIBRARIAN, NO_KEY, (put("o", "entries", "last", "x"),))
        assert (await service.status(LIBRARIAN)).writable


async def test_a_cluster_that_has_lost_everything_begins_again_as_its_next_generation(tmp_path: Path) -> None:
    (tmp_path / "ahash").mkdir()
    (tmp_path / "ahash" / "restored").write_text("c1 4\n")
    for _ in range(2):  # once; a second opening finds an ordinary store
        async with serving(opened(tmp_path / "ahash"), settings=AHashSettings()) as ahash:
            position = (await ahash.status(LIBRARIAN)).position
            assert (position.cluster, position.generation) == ("c1", 5)
            await ahash.transact(LIBRARIAN, NO_KEY, (put("o", "s", "p", "v"),))
    (tmp_path / "ahash" / "restored").write_text("c1 4")
    with pytest.raises(CheloniaError, match="has metadata"):
        opened(tmp_path / "ahash")


def test_a_word_that_names_no_generation_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ahash").mkdir()
    (tmp_path / "ahash" / "restored").write_text("c1")
    with pytest.raises(CheloniaError, match="<cluster> <generation>"):
        opened(tmp_path / "ahash")
