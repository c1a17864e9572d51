"""Downloads of large files come in slices, several at once, and over one connection when one of these has failed."""

from __future__ import annotations

import asyncio
import contextlib
import tracemalloc
from collections.abc import AsyncGenerator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chelonia.core.caller import Call
from chelonia.core.contents.extents import ByteRange, Extent
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BlobId, Dn, Guid
from chelonia.core.ports.files import Attributes, Look, Looked
from chelonia.core.values import replace
from chelonia.hosting.transfer import slices
from chelonia.hosting.transfer.download import download
from chelonia.hosting.transfer.slices import AT_ONCE, QUICK_MS, SLICE_BYTES, in_slices
from tests.support.ahash import HandClock
from tests.support.bartender import FakeBartender, Fault
from tests.support.clocks import QuickClock
from tests.support.failing import fails
from tests.unit.clients.faking import client_on

SLICE = 4000
DATA = bytes(range(251)) * 100
CUT = [f"bytes={at}-{min(at + SLICE, len(DATA)) - 1}" for at in range(0, len(DATA), SLICE)]


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chelonia.hosting.transfer.download.SLICE_BYTES", SLICE)
    monkeypatch.setattr(slices, "SLICE_BYTES", SLICE)
    monkeypatch.setattr(slices, "NEAR_MS", -1)


async def fetched(fake: FakeBartender, target: Path) -> list[tuple[str, str]]:
    """Download, check the bytes and their count; returns the requests: (host, span)."""
    moved: list[int] = []
    await download(client_on(fake), "/f", target, progress=moved.append)
    assert target.read_bytes() == DATA
    assert sum(moved) == len(DATA)
    return [(host, span) for _, host, span in fake.store.asked]


async def test_all_slices_come_from_the_replica_that_gave_the_first(fake: FakeBartender, tmp_path: Path) -> None:
    fake.add_file("/f", DATA)
    assert await fetched(fake, tmp_path / "f") == [("s1", span) for span in CUT]


async def test_a_small_file_is_asked_for_as_one(fake: FakeBartender, tmp_path: Path) -> None:
    fake.add_file("/f", DATA[: 2 * SLICE])
    await download(client_on(fake), "/f", tmp_path / "f")
    assert fake.store.asked == [("GET", "s1", "")]


async def test_what_a_broken_slice_lacks_comes_over_one_connection_from_another(
    fake: FakeBartender, tmp_path: Path
) -> None:
    fake.add_file("/f", DATA)
    fake.store.faults = [Fault(), Fault(), Fault(after=1000, kind=Kind.NETWORK)]
    asked = await fetched(fake, tmp_path / "f")
    assert asked[-1] == ("s2", f"bytes={2 * SLICE + 1000}-")
    assert set(asked[:-1]) <= {("s1", span) for span in CUT}


async def test_a_replica_that_does_not_answer_leaves_the_slices_to_another(fake: FakeBartender, tmp_path: Path) -> None:
    fake.add_file("/f", DATA)
    fake.store.faults = [Fault(kind=Kind.NETWORK)]
    assert await fetched(fake, tmp_path / "f") == [("s1", CUT[0]), *(("s2", span) for span in CUT)]


async def test_wrong_bytes_in_slices_are_blamed_on_who_gave_them(fake: FakeBartender, tmp_path: Path) -> None:
    fake.add_file("/f", DATA)
    fake.store.rotten, fake.store.rotten_from = ["s1"], 3 * SLICE
    asked = await fetched(fake, tmp_path / "f")
    assert asked == [*(("s1", span) for span in CUT), ("s2", "")]


async def test_a_file_of_several_blobs_comes_in_slices_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    half, asked = len(DATA) // 2, list[tuple[str, ByteRange]]()
    known = Attributes(Guid("g"), "file", 1, Dn("/CN=a"), len(DATA), "etag", 10**18, created_ns=10**18)
    extents = (Extent(0, half, BlobId("one")), Extent(half, len(DATA) - half, BlobId("two")))
    blobs = {BlobId("one"): ("https://s1/one",), BlobId("two"): ("https://s2/two",)}
    there = Looked(known, extents=extents, told=len(DATA), blobs=blobs)

    class Bytes:
        def __init__(self, *_: object) -> None: ...

        async def get(self, sources: tuple[str, ...], span: ByteRange) -> AsyncGenerator[bytes, None]:
            asked.append((sources[0], span))
            first = 0 if sources == blobs[BlobId("one")] else half
            yield DATA[first + span.offset : first + span.offset + span.length]

    async def look(call: Call, look: Look, brings: int) -> Looked:
        return there

    monkeypatch.setattr("chelonia.hosting.transfer.front.HttpBytes", Bytes)
    looks = SimpleNamespace(send=look)
    requester: Any = SimpleNamespace(files=None, http=None, clock=HandClock(), looks=looks, new_call=Call)
    await download(requester, "/f", tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == DATA
    ends = sorted({*range(0, len(DATA), SLICE), half, len(DATA)})
    cut = [ByteRange(start, end - start) for start, end in pairwise(ends)]
    of_two = [replace(span, offset=span.offset - half) for span in cut if span.offset >= half]
    first = [("https://s1/one", span) for span in cut if span.offset < half]
    assert sorted(asked, key=lambda each: (each[0], each[1].offset)) == first + [("https://s2/two", s) for s in of_two]


async def test_bytes_of_several_blobs_are_not_put_together_of_two_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If such a file is overwritten with the same number of bytes, nothing else may differ."""
    known = Attributes(Guid("g"), "file", 1, Dn("/CN=a"), 2000, "one", 10**18)
    extents = (Extent(0, 1000, BlobId("a")), Extent(1000, 1000, BlobId("b")))
    blobs = {BlobId("a"): ("https://s1/a",), BlobId("b"): ("https://s1/b",)}
    versions = [replace(known, etag=etag) for etag in ("one", "two")]

    class Bytes:
        def __init__(self, *_: object) -> None: ...

        async def get(self, sources: tuple[str, ...], span: ByteRange) -> AsyncGenerator[bytes, None]:
            if sources == blobs[BlobId("b")]:
                raise CheloniaError(Kind.NETWORK)
            yield DATA[span.offset : span.offset + span.length]

    async def look(call: Call, look: Look, brings: int) -> Looked:
        return Looked(versions.pop(0), extents=extents, told=2000, blobs=blobs)

    async def files_look(call: Call, looks: tuple[Look, ...]) -> tuple[Looked, ...]:
        return (Looked(known, extents=extents, told=2000, blobs=blobs),)

    monkeypatch.setattr("chelonia.hosting.transfer.front.HttpBytes", Bytes)
    looks, files = SimpleNamespace(send=look), SimpleNamespace(look=files_look)
    requester: Any = SimpleNamespace(
        files=files, http=None, clock=QuickClock(), looks=looks, new_call=Call, trouble=lambda *_: None
    )
    with fails(Kind.CONFLICT, match="overwritten meanwhile"):
        await download(requester, "/f", tmp_path / "f")
    assert not versions


class Bodies:
    """Slices that come when the test releases them, with counts of begun and ended ones."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.ended = 0
        self.let = asyncio.Event()

    async def read(self, span: ByteRange) -> AsyncGenerator[bytes, None]:
        self.begun.append(span.offset // SLICE)
        try:
            await self.let.wait()
            yield DATA[span.offset : span.offset + span.length]
        finally:
            self.ended += 1


@pytest.mark.parametrize(("took_ms", "then"), [(0, AT_ONCE), (QUICK_MS + 1, 1)])
async def test_slices_are_asked_for_together_while_they_come_quickly(took_ms: int, then: int) -> None:
    bodies, clock = Bodies(), HandClock()
    coming = in_slices(bodies.read, ByteRange(0, len(DATA)), clock)
    first = asyncio.ensure_future(anext(coming))
    while not bodies.begun:
        await asyncio.sleep(0)
    assert bodies.begun == [0]
    clock.now += took_ms
    bodies.let.set()
    assert await first == DATA[:SLICE]
    assert await anext(coming) == DATA[SLICE : 2 * SLICE]
    assert bodies.begun == list(range(1 + then))
    await coming.aclose()
    assert bodies.ended == len(bodies.begun)


async def test_where_the_first_slice_came_at_once_the_rest_is_asked_for_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "NEAR_MS", 0)
    bodies = Bodies()
    bodies.let.set()
    async with contextlib.aclosing(in_slices(bodies.read, ByteRange(7, len(DATA) - 7), HandClock())) as coming:
        assert b"".join([piece async for piece in coming]) == DATA[7:]
    assert bodies.begun == [0, 1]
    assert bodies.ended == 2


async def test_a_file_of_any_size_takes_no_memory_for_its_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """One command makes a hole of 8 EiB: a list of all its slices before the first read ended the process."""
    monkeypatch.setattr(slices, "SLICE_BYTES", SLICE_BYTES)
    tracemalloc.start()
    try:

        async def read(span: ByteRange) -> AsyncGenerator[bytes, None]:
            yield b"x"

        async with contextlib.aclosing(in_slices(read, ByteRange(0, 2**42), HandClock())) as coming:
            assert await anext(coming) == b"x"
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1024 * 1024


async def test_what_breaks_a_slice_off_is_told_after_the_bytes_before_it() -> None:
    async def read(span: ByteRange) -> AsyncGenerator[bytes, None]:
        yield b"x" * (span.length - 1)
        if span.offset >= 2 * SLICE:
            raise CheloniaError(Kind.NETWORK)
        yield b"x"

    got = list[int]()

    async def take() -> None:
        async with contextlib.aclosing(in_slices(read, ByteRange(0, len(DATA)), HandClock())) as coming:
            async for piece in coming:
                got.append(len(piece))

    with pytest.raises(CheloniaError):
        await take()
    assert sum(got) == 3 * SLICE - 1


async def test_a_file_of_several_blobs_that_breaks_off_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = Attributes(Guid("g"), "file", 1, Dn("/CN=a"), 2000, "one", 10**18)
    extents = (Extent(0, 1000, BlobId("a")), Extent(1000, 1000, BlobId("b")))
    there = Looked(
        known, extents=extents, told=2000, blobs={BlobId("a"): ("https://s1/a",), BlobId("b"): ("https://s1/b",)}
    )
    asked = list[tuple[str, ByteRange]]()

    class Bytes:
        def __init__(self, *_: object) -> None: ...

        async def get(self, sources: tuple[str, ...], span: ByteRange) -> AsyncGenerator[bytes, None]:
            asked.append((sources[0], span))
            first = 1000 if sources == ("https://s1/b",) else 0
            if len(asked) == 2:
                yield DATA[first : first + 300]
                raise CheloniaError(Kind.INCOMPLETE)
            yield DATA[first + span.offset : first + span.offset + span.length]

    async def look(call: Call, look: Look, brings: int) -> Looked:
        return there

    monkeypatch.setattr("chelonia.hosting.transfer.front.HttpBytes", Bytes)
    requester: Any = SimpleNamespace(
        files=None, http=None, clock=QuickClock(), looks=SimpleNamespace(send=look), new_call=Call,
        trouble=lambda *_: None,
    )  # fmt: skip
    await download(requester, "/f", tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == DATA[:2000]
    spans = [("https://s1/a", ByteRange(0, 1000)), ("https://s1/b", ByteRange(0, 1000))]
    assert asked == [*spans, ("https://s1/b", ByteRange(300, 700))], "what has come is not asked for again"
