"""A store in the format before contents: opened in place, read as it is, and spliced."""

from __future__ import annotations

import asyncio
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from chelonia.ahash.store import layout, meta
from chelonia.core.contents.below import Below
from chelonia.core.contents.summaries import SUMMARISED, summary_of
from chelonia.core.ids import ROOT, Guid, ObjectId
from chelonia.hosting.net.clock import SystemClock
from tests.support import librarian
from tests.support.ahash import LIBRARIAN, open_store
from tests.support.librarian import BARTENDER, Bench, SequentialIds, bench, spliced
from tests.support.namespace_snapshot import NamespaceSnapshot, broken
from tests.support.paper import Paper, PaperShepherd
from tests.support.polling import poll_async

MADE = Path(__file__).parents[2] / "support/stores/format_1.tar.xz"
"""`data/f` with two copies, a deleted file, an upload that is not complete; by the last program of format 1."""


async def everything(b: Bench) -> NamespaceSnapshot:
    ids = (await b.ahash.objects(LIBRARIAN)).ids
    return NamespaceSnapshot(await b.ahash.get(LIBRARIAN, ids))


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The store, for the Librarians that a test makes."""
    with tarfile.open(MADE) as packed:
        packed.extraction_filter = getattr(tarfile, "fully_trusted_filter", None)  # ours; Python 3.11.2 has none
        packed.extractall(tmp_path)
    monkeypatch.setattr(librarian, "MemoryStore", lambda: open_store("bdb", tmp_path))
    later = SequentialIds(7)
    later._count = 1000  # ids that the store does not have yet
    monkeypatch.setattr(librarian, "SequentialIds", lambda: later)
    return tmp_path


async def test_a_store_of_format_1_is_opened_in_place(kept: Path) -> None:
    store = open_store("bdb", kept)
    assert meta.read_number(store, layout.META_FORMAT) == 1
    store.close()
    async with bench() as b:
        assert broken(await everything(b)) == ()
        (data,) = (await b.names()).values()
        before = await b.stored((await b.names(ObjectId(data)))["f"])  # type: ignore[arg-type]
        assert before.sections["blobs"]
        await spliced(b, "f", before.id, 7)  # type: ignore[arg-type]
        assert broken(await everything(b)) == ()
        assert (await b.stored(before.id)).value("states", "size") == "14"
    store = open_store("bdb", kept)
    assert meta.read_number(store, layout.META_FORMAT) == layout.FORMAT == 2
    store.close()


async def test_a_file_of_one_blob_is_stored_as_in_format_1(kept: Path) -> None:
    """A file made now has the objects and records of one of format 1, but for ids, name and the seal made of these.
    Only its collection has more: the summary of the name, and `tally/changed`."""
    async with bench() as b:
        (data,) = (await b.names()).values()
        collection = dict((await b.stored(data)).sections)
        old = (await b.names(Guid(data)))["f"]
        old_blob = (await b.stored(old)).value("blobs", "00000000")
        new, new_blob = await b.file("new", Guid(data))

        def as_old(values: Mapping[str, str]) -> dict[str, str]:
            pairs = {new: old, new_blob: old_blob, f"{data}/new": f"{data}/f"}
            for this, that in pairs.items():
                values = {key.replace(this, that): value.replace(this, that) for key, value in values.items()}
            return dict(values)

        async def stored(object_id: str) -> dict[str, dict[str, str]]:
            return {name: as_old(values) for name, values in (await b.stored(object_id)).sections.items()}

        assert await stored(new) == await stored(old)
        facts, old_facts = await stored(f"blob:{new_blob}"), await stored(f"blob:{old_blob}")
        assert facts["blob"].pop("seal") != old_facts["blob"].pop("seal")
        assert facts == old_facts
        for name, records in (await b.everything()).items():
            made = {reference: blob for reference, blob in records.items() if blob == new_blob}
            assert as_old(made) == {reference: blob for reference, blob in records.items() if blob == old_blob}, name
        changed = dict((await b.stored(data)).sections)
        assert {name for name in changed if changed[name] != collection.get(name)} == {"entries", "summaries", "tally"}
        assert (list(changed["summaries"]), list(changed["tally"])) == (["new"], ["changed"])
        assert changed["entries"] == collection["entries"] | {"new": new}


async def test_files_of_format_1_are_listed_by_reading_them_until_the_leader_has_written_their_summaries(
    kept: Path,
) -> None:
    ask = Below(ROOT, needed=SUMMARISED, summaries=True)
    async with bench() as b:
        before = {leaf.path: leaf for leaf in (await b.service.below(BARTENDER, ask)).leaves}
        assert list(before) == ["data/", "data/f"]
        assert before["data/f"].object is not None
    shepherds = Paper()
    async with bench(clock=SystemClock(), directory=shepherds) as b:
        shepherds.shepherds = {each: PaperShepherd(shepherds, each) for each in b.shepherds}
        running = asyncio.create_task(b.service.run())

        async def told() -> str:
            return {leaf.path: leaf.summary for leaf in (await b.service.below(BARTENDER, ask)).leaves}["data/f"]

        await poll_async(told, 30, what="a summary")
        assert await told() == summary_of(before["data/f"].object)
        assert broken(await everything(b)) == ()
        await b.service.stop()
        await running
