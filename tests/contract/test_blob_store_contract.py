"""The BlobStore contract, on every engine: what is visible when, what survives a crash, what a full disk does."""

import asyncio
import os
import resource
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from chelonia.core import bounds
from chelonia.core.cluster.replicas import Checksums, ReplicaFacts
from chelonia.core.contents.extents import ByteRange
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BlobId, Dn, Guid, Ms, ReferenceId
from chelonia.core.ports.shepherd import MARK, BlobStore, Notes, SmallReplica
from chelonia.core.values import replace
from chelonia.shepherd.store import blobs_files
from chelonia.shepherd.store import segment_format as layout
from chelonia.shepherd.store.blobs_files import FileBlobs
from chelonia.shepherd.store.blobs_local import LocalBlobs
from chelonia.shepherd.store.blobs_segments import Entry
from chelonia.wire import records
from chelonia.wire.crcs import BlockCrcs
from tests.support.failing import fails
from tests.support.memory_blobs import MemoryBlobs

REF = ReferenceId("aaaaaaaa-0000-4000-8000-000000000001")
OTHER = ReferenceId("bbbbbbbb-0000-4000-8000-000000000002")


def facts(size: int, name: str = "/a") -> ReplicaFacts:
    blob, guid = BlobId("cccccccc-0000-4000-8000-000000000003"), Guid("dddddddd-0000-4000-8000-000000000004")
    return ReplicaFacts(blob, guid, name, Dn("/CN=joe"), size, Checksums("aa", "bb", "cc"), 2, Ms(5), "seal")


@dataclass
class Engine:
    """One engine and the faults a test can give it. `reopen(crash)`: the process ends, and starts again."""

    store: BlobStore
    reopen: Callable[[bool], BlobStore]
    flood: Callable[[], None]
    truncate: Callable[[ReferenceId, int], None]
    grow: Callable[[ReferenceId, bytes], None]
    lose: Callable[[ReferenceId], None]
    damage_record: Callable[[ReferenceId], None]


def memory_engine(_: Path) -> Engine:
    store = MemoryBlobs()

    def reopen(_: bool) -> MemoryBlobs:
        store.crash()
        return store

    def flood() -> None:
        store.capacity = store.used_bytes() + 10

    return Engine(store, reopen, flood, store.truncate, store.grow, store.lose, store.damage_record)


def files_engine(folder: Path) -> Engine:
    opened = [FileBlobs(folder)]

    def reopen(_: bool) -> FileBlobs:
        opened[-1].close()
        opened.append(FileBlobs(folder))
        return opened[-1]

    def flood() -> None:
        opened[-1]._min_free_bytes = 1 << 62

    def file(reference: ReferenceId, suffix: str = "") -> Path:
        return folder / "replicas" / reference[:2] / (reference + suffix)

    def truncate(reference: ReferenceId, size: int) -> None:
        with file(reference).open("r+b") as handle:
            handle.truncate(size)

    def grow(reference: ReferenceId, more: bytes) -> None:
        with file(reference).open("ab") as handle:
            handle.write(more)

    def damage_record(reference: ReferenceId) -> None:
        for suffix in (".record", ".uncommitted"):
            if file(reference, suffix).exists():
                file(reference, suffix).write_bytes(b"CHLR garbage")

    return Engine(opened[0], reopen, flood, truncate, grow, lambda r: file(r).unlink(), damage_record)


def local_engine(folder: Path) -> Engine:
    """Small replicas in a segment: faults hit the entry of a replica, or the end of the file."""
    opened = [LocalBlobs(folder)]

    def reopen(crash: bool) -> LocalBlobs:
        opened[-1].close()
        if crash:
            (folder / "segments" / "notes").unlink(missing_ok=True)
        opened.append(LocalBlobs(folder))
        return opened[-1]

    def flood() -> None:
        opened[-1]._files._min_free_bytes = 1 << 62

    def segment_of(reference: ReferenceId) -> tuple[Path, layout.Place]:
        place = opened[-1]._segments.place(reference)
        return folder / "segments" / f"{place.segment:08d}.segment", place

    def cut(reference: ReferenceId, size: int) -> None:
        grow(reference, b"")  # so that it is the last
        path, place = segment_of(reference)
        os.truncate(path, place.data_at + size)

    def grow(reference: ReferenceId, more: bytes) -> None:
        record, data, _ = opened[-1]._segments.raw(reference)
        opened[-1]._segments.add([Entry(layout.header_of(reference, record, data + more), record + data + more)])

    def damage_record(reference: ReferenceId) -> None:
        path, place = segment_of(reference)
        with path.open("r+b") as file:
            file.seek(place.at + layout.HEADER_BYTES)
            file.write(b"CHLR garbage")

    return Engine(opened[0], reopen, flood, cut, grow, lambda reference: cut(reference, 0), damage_record)


@pytest.fixture(params=[memory_engine, files_engine, local_engine])
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Engine]:
    made = request.param(tmp_path / "blobs")
    yield made
    if not isinstance(made.store, MemoryBlobs):
        made.reopen(False).close()


async def kept(store: BlobStore, reference: ReferenceId) -> int:
    """The number of bytes kept of an upload, which is then aborted."""
    writer = await store.create(reference, resume=True)
    offset = writer.offset
    await writer.abort()
    return offset


async def write(store: BlobStore, reference: ReferenceId, data: bytes) -> None:
    writer = await store.create(reference)
    await writer.write(data)
    await writer.commit(facts(len(data)))


async def read(store: BlobStore, reference: ReferenceId, offset: int, length: int) -> bytes:
    return b"".join([chunk async for chunk in store.read(reference, ByteRange(offset, length))])


async def scan(store: BlobStore) -> list[tuple[ReferenceId, bool, int, bool]]:
    return [(s.reference, s.facts is not None, s.size, s.committed) async for page in store.scan() for s in page.read]


async def refused(store: BlobStore, reference: ReferenceId, length: int) -> Kind:
    with pytest.raises(CheloniaError) as caught:
        await read(store, reference, 0, length)
    return caught.value.kind


@pytest.mark.parametrize("size", [0, 5, bounds.CHECKED_BLOCK_BYTES, 3 * bounds.CHECKED_BLOCK_BYTES + 1])
async def test_the_crc_of_each_block_is_told_again(engine: Engine, size: int) -> None:
    data, crcs = b"hello world!" * (size // 12 + 1), BlockCrcs()
    crcs.update(data[:size])
    told = replace(facts(size), checksums=Checksums(crc32c=crcs.digest().hex()))
    writer = await engine.store.create(REF)
    await writer.write(data[:size])
    await writer.commit(told, crcs.blocks())
    await write(engine.store, OTHER, data[:size])
    assert await engine.store.blocks(REF) == crcs.blocks()
    assert await engine.store.blocks(OTHER) in (b"", crcs.blocks())  # none came with it, but the writer may have hashed
    store = engine.reopen(False)
    assert await store.blocks(REF) == crcs.blocks()
    assert await store.facts(REF) == told
    if size == 5:
        engine.damage_record(REF)
        assert await store.blocks(REF) == b""
    assert await store.blocks(ReferenceId("ffffffff-0000-4000-8000-000000000000")) == b""


def opened_below(directory: Path) -> list[str]:
    """The files of a directory that this process has open; others come and go with what earlier tests left."""
    paths = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # it is the one of this list, or closed meanwhile
            paths.append(os.readlink(f"/proc/self/fd/{number}"))
    return sorted(path for path in paths if path.startswith(str(directory)))


@pytest.mark.parametrize("size", [5, 3 * bounds.CHUNK_BYTES])
async def test_whoever_reads_may_refuse_what_is_read_before_it_is_told(
    engine: Engine, size: int, tmp_path: Path
) -> None:
    data = bytes(range(251)) * (size // 251 + 1)
    await write(engine.store, REF, data[:size])
    refused_at, before = size - size // 3, opened_below(tmp_path)

    def check(at: int, chunk: bytes) -> None:
        assert chunk == data[at : at + len(chunk)]
        if at <= refused_at < at + len(chunk):
            raise CheloniaError(Kind.CHECKSUM)

    got = list[bytes]()

    async def take() -> None:
        async for chunk in engine.store.read(REF, ByteRange(0, size), check):
            got.append(chunk)

    with fails(Kind.CHECKSUM):
        await take()
    assert b"".join(got) == data[: refused_at - refused_at % bounds.CHUNK_BYTES]
    assert await read(engine.store, REF, 0, size) == data[:size]
    assert opened_below(tmp_path) == before


async def test_committed_bytes_and_record_read_back(engine: Engine) -> None:
    await write(engine.store, REF, b"hello world")
    assert await read(engine.store, REF, 0, 11) == b"hello world"
    assert await read(engine.store, REF, 6, 3) == b"wor"
    assert await read(engine.store, REF, 11, 0) == b""
    assert await engine.store.facts(REF) == facts(11)
    assert await scan(engine.store) == [(REF, True, 11, False)]


async def test_an_empty_replica_is_a_replica(engine: Engine) -> None:
    await write(engine.store, REF, b"")
    assert await scan(engine.store) == [(REF, True, 0, False)]
    assert await read(engine.store, REF, 0, 0) == b""


async def test_nothing_is_visible_before_commit(engine: Engine) -> None:
    writer = await engine.store.create(REF)
    await writer.write(b"abc")
    assert writer.offset == 3
    assert await scan(engine.store) == []
    assert await refused(engine.store, REF, 3) is Kind.NOT_ALIVE
    await writer.commit(facts(3))
    assert await scan(engine.store) == [(REF, True, 3, False)]


async def test_large_reads_come_in_chunks(engine: Engine) -> None:
    data = bytes(range(256)) * (5 * bounds.CHUNK_BYTES // 512)
    await write(engine.store, REF, data)
    chunks = [chunk async for chunk in engine.store.read(REF, ByteRange(1, len(data) - 1))]
    assert b"".join(chunks) == data[1:]
    assert max(map(len, chunks)) <= bounds.CHUNK_BYTES


async def test_a_reader_may_stop_in_the_middle(engine: Engine) -> None:
    await write(engine.store, REF, b"x" * (2 * bounds.CHUNK_BYTES))
    reader = engine.store.read(REF, ByteRange(0, 2 * bounds.CHUNK_BYTES))
    assert len(await anext(reader)) == bounds.CHUNK_BYTES
    await reader.aclose()  # type: ignore[attr-defined]
    assert await engine.store.erase(REF)


async def test_resume_continues_what_was_suspended(engine: Engine) -> None:
    writer = await engine.store.create(REF)
    await writer.write(b"hello ")
    await writer.suspend()
    writer = await engine.store.create(REF, resume=True)
    assert writer.offset == 6
    await writer.write(b"world")
    await writer.commit(facts(11))
    assert await read(engine.store, REF, 0, 11) == b"hello world"
    assert await kept(engine.store, REF) == 0


async def test_without_resume_an_upload_starts_again(engine: Engine) -> None:
    writer = await engine.store.create(REF)
    await writer.write(b"old")
    await writer.suspend()
    writer = await engine.store.create(REF)
    assert writer.offset == 0
    await writer.write(b"new!")
    await writer.commit(facts(4))
    assert await read(engine.store, REF, 0, 4) == b"new!"


async def test_resume_of_nothing_starts_at_zero(engine: Engine) -> None:
    assert await kept(engine.store, REF) == 0


async def test_abort_leaves_nothing(engine: Engine) -> None:
    writer = await engine.store.create(REF)
    await writer.write(b"abc")
    await writer.abort()
    await writer.abort()  # again: no effect
    assert await kept(engine.store, REF) == 0
    assert await scan(engine.store) == []
    assert not await engine.store.erase(REF)


@pytest.mark.parametrize("crash", [True, False])
async def test_commits_survive_a_start_and_uploads_do_not(engine: Engine, crash: bool) -> None:
    await write(engine.store, REF, b"durable")
    suspended = await engine.store.create(OTHER)
    await suspended.write(b"kept")
    await suspended.suspend()
    running_reference = ReferenceId("eeeeeeee-0000-4000-8000-000000000005")
    running = await engine.store.create(running_reference)
    await running.write(b"torn")
    store = engine.reopen(crash)
    assert await read(store, REF, 0, 7) == b"durable"
    for upload in (OTHER, running_reference):
        assert not await store.erase(upload)
        assert await kept(store, upload) == 0
    assert await scan(store) == [(REF, True, 7, False)]


async def test_settled_replicas_stay_committed(engine: Engine) -> None:
    await write(engine.store, REF, b"one")
    await write(engine.store, OTHER, b"two")
    await engine.store.settle((REF,))
    await engine.store.settle((REF, ReferenceId("eeeeeeee-0000-4000-8000-000000000005")))
    store = engine.reopen(True)
    assert await scan(store) == [(REF, True, 3, True), (OTHER, True, 3, False)]
    assert await store.facts(REF) == facts(3)


async def test_a_record_is_found_though_its_replica_is_settled_while_it_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileBlobs(tmp_path)
    await write(store, REF, b"12345")
    read_whole = blobs_files._read_whole

    def settled_meanwhile(path: str) -> bytes:
        try:
            return read_whole(path)
        except FileNotFoundError:
            blobs_files._settle([path.removesuffix(".record")])
            raise

    monkeypatch.setattr(blobs_files, "_read_whole", settled_meanwhile)
    assert await store.facts(REF) == facts(5)
    store.close()


async def test_erase_removes_a_replica_once(engine: Engine) -> None:
    await write(engine.store, REF, b"abc")
    assert await engine.store.erase(REF)
    assert not await engine.store.erase(REF)
    assert await refused(engine.store, REF, 3) is Kind.NOT_ALIVE
    assert await engine.store.facts(REF) is None
    assert await scan(engine.reopen(True)) == []


async def test_erase_reaches_kept_uploads_and_quarantine(engine: Engine) -> None:
    writer = await engine.store.create(REF)
    await writer.write(b"abc")
    await writer.suspend()
    assert await engine.store.erase(REF)
    assert await kept(engine.store, REF) == 0
    await write(engine.store, REF, b"abc")
    await engine.store.quarantine(REF)
    assert await engine.store.erase(REF)
    assert await engine.store.quarantined() == ()


async def test_quarantine_hides_a_replica_and_keeps_it(engine: Engine) -> None:
    await write(engine.store, REF, b"abc")
    await write(engine.store, OTHER, b"defg")
    await engine.store.settle((OTHER,))
    await engine.store.quarantine(REF)
    await engine.store.quarantine(OTHER)
    assert await refused(engine.store, REF, 3) is Kind.NOT_ALIVE
    store = engine.reopen(True)
    assert await scan(store) == []
    aside = [(s.reference, s.facts == facts(s.size), s.size, s.committed) for s in await store.quarantined()]
    assert aside == [(REF, True, 3, False), (OTHER, True, 4, True)]
    assert await store.count_quarantined() == 2
    for after, limit, found in (
        ("", 1, [REF]),
        (REF, 1, [OTHER]),
        (REF, 0, [OTHER]),
        (OTHER, 5, []),
        ("", 5, [REF, OTHER]),
    ):
        assert [stored.reference for stored in await store.quarantined(after, limit)] == found


async def test_what_was_set_aside_can_be_brought_back_as_committed(engine: Engine) -> None:
    await write(engine.store, REF, b"abc")
    assert await engine.store.reinstate(REF) is None
    assert await engine.store.reinstate(OTHER) is None
    await engine.store.quarantine(REF)
    stored = await engine.store.reinstate(REF)
    assert stored is not None
    assert (stored.reference, stored.facts, stored.size, stored.committed) == (REF, facts(3), 3, True)
    store = engine.reopen(True)
    assert await store.quarantined() == ()
    assert await scan(store) == [(REF, True, 3, True)]
    assert await read(store, REF, 0, 3) == b"abc"


async def test_discarding_reaches_what_is_aside_and_nothing_else(engine: Engine) -> None:
    store = engine.store
    await write(store, REF, b"abc")
    assert not await store.discard(REF)
    assert not await store.discard(OTHER)
    await write(store, OTHER, b"defg")
    await store.quarantine(OTHER)
    assert await store.discard(OTHER)
    assert not await store.discard(OTHER)
    store = engine.reopen(True)
    assert await store.quarantined() == ()
    assert await scan(store) == [(REF, True, 3, False)]
    assert await read(store, REF, 0, 3) == b"abc"


async def test_of_discarding_and_bringing_back_at_once_one_comes_first(engine: Engine) -> None:
    store = engine.store
    for number in range(20):
        reference = ReferenceId(f"aaaaaaaa-0000-4000-8000-{number:012d}")
        await write(store, reference, b"abc")
        await store.quarantine(reference)
        if number % 2:
            discarded, brought = await asyncio.gather(store.discard(reference), store.reinstate(reference))
        else:
            brought, discarded = await asyncio.gather(store.reinstate(reference), store.discard(reference))
        assert discarded is (brought is None)
        assert await store.sizes((reference,)) == ((-1,) if discarded else (3,))
        assert await store.quarantined() == ()


async def test_missing_bytes_are_not_alive(engine: Engine) -> None:
    await write(engine.store, REF, b"0123456789")
    engine.truncate(REF, 4)
    assert await refused(engine.store, REF, 10) is Kind.NOT_ALIVE
    assert await read(engine.store, REF, 0, 4) == b"0123"
    assert await scan(engine.store) == [(REF, True, 4, False)]
    engine.lose(REF)
    assert await refused(engine.store, REF, 1) is Kind.NOT_ALIVE
    assert await scan(engine.store) == [(REF, True, -1, False)]


async def test_bytes_behind_the_end_show_in_the_sizes_and_are_cut_off(engine: Engine) -> None:
    for reference in (REF, OTHER):
        await write(engine.store, reference, b"abc")
        engine.grow(reference, b"defg")
    assert await engine.store.sizes((REF, OTHER)) == (7, 7)
    assert await read(engine.store, REF, 0, 3) == b"abc"
    await engine.store.trim(REF, 3)
    await engine.store.trim(OTHER, 0)
    store = engine.reopen(True)
    assert await store.sizes((REF, OTHER)) == (3, 0)
    assert await read(store, REF, 0, 3) == b"abc"


async def test_a_damaged_record_is_no_record_and_counts_as_committed(engine: Engine) -> None:
    await write(engine.store, REF, b"abc")
    engine.damage_record(REF)
    assert await engine.store.facts(REF) is None
    assert await scan(engine.store) == [(REF, False, 3, True)]


async def test_a_full_disk_refuses_and_leaks_nothing(engine: Engine) -> None:
    await write(engine.store, REF, b"abc")
    engine.flood()
    with fails(Kind.NO_SPACE):
        await write(engine.store, OTHER, b"x" * 100)
    assert not await engine.store.erase(OTHER)
    assert await kept(engine.store, OTHER) == 0
    assert await scan(engine.store) == [(REF, True, 3, False)]
    assert await read(engine.store, REF, 0, 3) == b"abc"


async def test_free_space_shrinks_with_what_is_stored(engine: Engine) -> None:
    free, total = await engine.store.space()
    assert 0 < free <= total


@pytest.mark.parametrize("name", ["", "0", "../../etc/passwd", "AAAAAAAA-0000-4000-8000-000000000001", REF + "/x"])
async def test_a_reference_is_a_uuid(engine: Engine, name: str) -> None:
    reference = ReferenceId(name)
    with fails(Kind.BAD_REQUEST):
        await engine.store.create(reference)
    with pytest.raises(CheloniaError):
        await engine.store.erase(reference)
    with pytest.raises(CheloniaError):
        await read(engine.store, reference, 0, 1)


# --- starts that need not read everything --------------------------------------------------------------------------


async def test_of_known_replicas_only_that_they_are_there_is_looked_at(engine: Engine) -> None:
    third = ReferenceId("aaaaaaaa-0000-4000-8000-000000000003")
    for reference in (REF, OTHER, third):
        await write(engine.store, reference, b"abc")
    await engine.store.settle((REF,))
    engine.damage_record(REF)
    engine.lose(OTHER)
    await engine.store.note({REF: b"1", OTHER: b"2", ReferenceId(REF[:-1] + "9"): b"3"})
    pages = [page async for page in engine.store.scan(await engine.store.notes(b"of "))]
    assert [(page.prefix, page.known) for page in pages if page.known] == [("aa", {REF: b"of 1"})]
    assert not any(page.uncommitted for page in pages)
    assert [(s.reference, s.size) for page in pages for s in page.read] == [(third, 3), (OTHER, -1)]
    pages = [page async for page in engine.store.scan(Notes({"aa": {third: b"3"}}, 0))]
    assert [(page.known, page.uncommitted) for page in pages if page.known] == [({third: b"3"}, {third})]


async def test_what_is_cut_off_shows_in_the_sizes(engine: Engine) -> None:
    for reference in (REF, OTHER):
        await write(engine.store, reference, b"abc")
    engine.truncate(REF, 1)
    assert await engine.store.sizes((OTHER, REF, ReferenceId(REF[:-1] + "9"))) == (3, 1, -1)
    engine.lose(OTHER)
    assert await engine.store.sizes((OTHER,)) == (-1,)
    assert await engine.store.sizes(()) == ()


async def test_a_page_of_what_was_set_aside_reads_only_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred thousand may be in quarantine when a namespace is rebuilt; they are listed page by page."""
    store, read = FileBlobs(tmp_path), list[Path]()
    for reference in (REF, OTHER):
        await write(store, reference, b"abc")
        await store.quarantine(reference)
    reading = blobs_files._read_record
    monkeypatch.setattr(blobs_files, "_read_record", lambda path, decode: read.append(path) or reading(path, decode))
    assert await store.count_quarantined() == 2
    assert read == []
    await store.quarantined(REF, 1)
    assert [path.name for path in read] == [OTHER]
    await store.quarantined("", 1)
    assert [path.name for path in read] == [OTHER, REF]
    store.close()


async def pages(*several: Mapping[ReferenceId, bytes]) -> AsyncIterator[Mapping[ReferenceId, bytes]]:
    for page in several:
        yield page


def together(notes: Notes) -> dict[ReferenceId, bytes]:
    return {reference: note for part in notes.parts.values() for reference, note in part.items()}


async def test_notes_are_given_back_the_last_of_each(engine: Engine) -> None:
    store = engine.store
    assert together(await store.notes()) == {}
    await store.note({REF: b"a", OTHER: b"b"})
    await store.note({REF: b"c"})
    await store.note({OTHER: b""})
    store = engine.reopen(True)
    assert (await store.notes(b"of ")).parts["aa"] == {REF: b"of c"}
    await store.note_anew(pages({OTHER: b"d"}))
    assert together(await engine.reopen(False).notes()) == {OTHER: b"d"}


async def test_notes_that_are_not_in_order_are_counted(engine: Engine) -> None:
    first, *more = (ReferenceId(f"{kind * 8}-0000-4000-8000-000000000001") for kind in "0123")
    await engine.store.note_anew(pages({first: b"0", more[0]: b"1"}, {more[2]: b"3"}))
    assert (await engine.store.notes()).behind == 0
    await engine.store.note({more[1]: b"2", more[2]: b""})
    await engine.store.note({REF: b"4"})
    store = engine.reopen(True)
    notes = await store.notes()
    assert (notes.behind, together(notes)) == (3, {first: b"0", more[0]: b"1", more[1]: b"2", REF: b"4"})
    await store.note_anew(pages(together(notes)))
    assert (await store.notes()).behind == 0
    await store.note_anew(pages())
    assert together(await store.notes()) == {}


async def test_a_crash_while_notes_are_written_anew_leaves_the_old_ones(engine: Engine) -> None:
    async def broken() -> AsyncIterator[Mapping[ReferenceId, bytes]]:
        yield {OTHER: b"b"}
        raise CheloniaError(Kind.UNAVAILABLE)

    await engine.store.note({REF: b"a"})
    with pytest.raises(CheloniaError):
        await engine.store.note_anew(broken())
    store = engine.reopen(True)
    assert together(await store.notes()) == {REF: b"a"}
    await store.note_anew(pages({REF: b"c"}))
    assert together(await store.notes()) == {REF: b"c"}


async def test_a_mark_is_given_back_the_last_one_beside_the_notes(engine: Engine) -> None:
    assert (await engine.store.notes()).mark == b""
    await engine.store.note({REF: b"a", MARK: b"1"})
    await engine.store.note({MARK: b"2"})
    await engine.store.note({OTHER: b"b"})
    store = engine.reopen(False)
    notes = await store.notes()
    assert (notes.mark, together(notes), notes.behind) == (b"2", {REF: b"a", OTHER: b"b"}, 0)
    await store.note_anew(pages({REF: b"c"}, {OTHER: b"d", MARK: b"3"}))
    notes = await store.notes()
    assert (notes.mark, together(notes), notes.behind) == (b"3", {REF: b"c", OTHER: b"d"}, 0)


async def test_a_mark_is_synced_and_all_before_it_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, synced, sync = FileBlobs(tmp_path), list[int](), os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda fd: synced.append(os.fstat(fd).st_size) or sync(fd))
    await store.note({REF: b"a"})
    assert synced == []
    await store.note({OTHER: b"b", MARK: b"1"})
    assert synced == [(tmp_path / "notes").stat().st_size]
    store.close()


async def test_notes_in_memory_are_lost_up_to_the_last_mark() -> None:
    store = MemoryBlobs()
    await store.note({REF: b"a"})
    await store.note({MARK: b"1"})
    assert store.unsynced_notes == 0
    await store.note({REF: b"b"})
    await store.note({OTHER: b"c"})
    store.lose_notes(1)
    assert together(await store.notes()) == {REF: b"b"}
    with pytest.raises(AssertionError):
        store.lose_notes(1)


async def test_notes_of_version_1_are_read(tmp_path: Path) -> None:
    store = FileBlobs(tmp_path)
    block = records.check_in(b"CHLN", records.Format("", dict[str, bytes], 1).encode({REF: b"a"}))
    (tmp_path / "notes").write_bytes(len(block).to_bytes(4, "little") + block)
    await store.note({OTHER: b"b", MARK: b"1"})
    notes = await store.notes()
    assert (together(notes), notes.mark) == ({REF: b"a", OTHER: b"b"}, b"1")
    store.close()


async def test_notes_for_which_there_is_no_space_cost_none_of_those_after_them(tmp_path: Path) -> None:
    store = FileBlobs(tmp_path)
    await store.note({REF: b"a"})
    whole, (soft, hard) = (tmp_path / "notes").stat().st_size, resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (whole + 10, hard))
    try:
        with pytest.raises(CheloniaError):
            await store.note({OTHER: b"b"})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    await store.note({OTHER: b"c"})
    assert together(await store.notes()) == {REF: b"a", OTHER: b"c"}
    store.close()


async def test_what_a_kill_left_of_notes_being_written_anew_is_thrown_away(tmp_path: Path) -> None:
    store = FileBlobs(tmp_path)
    await store.note({REF: b"a"})
    store.close()
    (tmp_path / "notes.new").write_bytes(b"torn")
    store = FileBlobs(tmp_path)
    assert together(await store.notes()) == {REF: b"a"}
    await store.note_anew(pages({OTHER: b"b"}))
    assert together(await store.notes()) == {OTHER: b"b"}
    assert not (tmp_path / "notes.new").exists()
    store.close()


@pytest.mark.parametrize("cut", [1, 30, 50])
async def test_what_is_behind_a_torn_note_is_not_believed(tmp_path: Path, cut: int) -> None:
    store = FileBlobs(tmp_path)
    await store.note({REF: b"a"})
    whole = (tmp_path / "notes").stat().st_size
    await store.note({OTHER: b"b"})
    with (tmp_path / "notes").open("r+b") as file:
        file.truncate(whole + cut)
    assert together(await store.notes()) == {REF: b"a"}
    await store.note({OTHER: b"c"})
    assert together(await store.notes()) == {REF: b"a", OTHER: b"c"}
    raw = bytearray((tmp_path / "notes").read_bytes())
    raw[20] ^= 1
    (tmp_path / "notes").write_bytes(raw)
    assert together(await store.notes()) == {}
    store.close()


async def test_spoiling_changes_one_byte_and_nothing_else_shows_it(engine: Engine) -> None:
    store = engine.store
    await write(store, REF, b"0123456789")
    assert await store.spoil(REF)
    spoilt = await read(store, REF, 0, 10)
    assert [at for at in range(10) if spoilt[at] != b"0123456789"[at]] == [5]
    assert await store.facts(REF) == facts(10)
    await write(store, OTHER, b"")
    assert not await store.spoil(OTHER)
    assert (await scan(engine.reopen(False)))[0] == (REF, True, 10, False)


async def test_whole_replicas_are_there_when_they_are_stored(engine: Engine) -> None:
    small = [SmallReplica(REF, facts(5), b"small"), SmallReplica(OTHER, facts(0, "/b"), b"")]
    await engine.store.store_whole(small)
    store = engine.reopen(True)
    assert await scan(store) == [(REF, True, 5, False), (OTHER, True, 0, False)]
    assert await read(store, REF, 0, 5) == b"small"
    assert await store.facts(OTHER) == facts(0, "/b")


async def test_of_whole_replicas_that_do_not_fit_none_is_there(engine: Engine) -> None:
    engine.flood()
    with fails(Kind.NO_SPACE):
        await engine.store.store_whole([SmallReplica(each, facts(50), bytes(50)) for each in (REF, OTHER)])
    assert await scan(engine.reopen(True)) == []


async def test_what_is_at_hand_is_what_is_read(engine: Engine) -> None:
    """An engine may have no cached replica; one that it has is whole and current."""
    store = engine.store
    assert store.at_hand(REF, 5) is None
    await store.store_whole([SmallReplica(REF, facts(5), b"small"), SmallReplica(OTHER, facts(0, "/b"), b"")])
    assert await read(store, REF, 0, 5) == b"small"
    assert store.at_hand(REF, 5) in (None, b"small")
    assert store.at_hand(REF, 6) is None
    assert store.at_hand(OTHER, 0) in (None, b"")
    await store.spoil(REF)
    assert store.at_hand(REF, 5) in (None, await read(store, REF, 0, 5))
    await store.erase(REF)
    assert store.at_hand(REF, 5) is None
