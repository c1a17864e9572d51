"""A store that the program before contents has made: opened in place, read as it is, and spliced."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from chelonia.ahash.store import layout, meta
from chelonia.core.ids import ObjectId
from tests.support import librarian
from tests.support.ahash import LIBRARIAN, open_store
from tests.support.librarian import Bench, SequentialIds, bench, spliced
from tests.support.namespace_snapshot import NamespaceSnapshot, broken

MADE = Path(__file__).parents[2] / "support/stores/format_1.tar.xz"
"""`data/f` with two copies, a deleted file, an upload that is not complete; by the last program of format 1."""


async def everything(b: Bench) -> NamespaceSnapshot:
    ids = (await b.ahash.objects(LIBRARIAN)).ids
    return NamespaceSnapshot(await b.ahash.get(LIBRARIAN, ids))


async def test_a_store_of_format_1_is_opened_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tarfile.open(MADE) as packed:
        packed.extractall(tmp_path)  # ours
    store = open_store("bdb", tmp_path)
    assert meta.read_number(store, layout.META_FORMAT) == 1
    store.close()
    monkeypatch.setattr(librarian, "MemoryStore", lambda: open_store("bdb", tmp_path))
    later = SequentialIds(7)
    later._count = 1000  # ids that the store does not have yet
    monkeypatch.setattr(librarian, "SequentialIds", lambda: later)
    async with bench() as b:
        assert broken(await everything(b)) == ()
        (data,) = (await b.names()).values()
        before = await b.stored((await b.names(ObjectId(data)))["f"])  # type: ignore[arg-type]
        assert before.sections["blobs"]
        await spliced(b, "f", before.id, 7)  # type: ignore[arg-type]
        assert broken(await everything(b)) == ()
        assert (await b.stored(before.id)).value("states", "size") == "14"
    store = open_store("bdb", tmp_path)
    assert meta.read_number(store, layout.META_FORMAT) == layout.FORMAT == 2
    store.close()
