"""Contents of files: the pure decisions against a bytearray, and the Librarian's part of their life."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.cluster.replicas import Checksums, ReplicaFacts
from chelonia.core.contents.extents import Extent, laid
from chelonia.core.contents.uploads import BeginPut, SpliceFile
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import (
    PENDING_OBJECT,
    ROOT,
    BlobId,
    ContentId,
    Dn,
    Guid,
    Ms,
    ObjectId,
    RequestKey,
    content_object,
)
from chelonia.core.metadata import Filter, StoredObject
from chelonia.core.names import parse_ln
from chelonia.core.ports.ahash import AHash, ChangeType, Element, TransactOutcome
from chelonia.core.ports.librarian import Delete, SetWanted, Undelete
from chelonia.core.values import replace
from chelonia.librarian.metadata.blobs import NewBlob
from chelonia.librarian.metadata.contents import content_of, extent_record, parse_extent
from chelonia.librarian.metadata.elements import drop
from chelonia.librarian.metadata.records import PlannedTransact, Records
from chelonia.librarian.namespace import view
from chelonia.librarian.namespace.contents import decide
from chelonia.librarian.namespace.contents.decide import FileContent
from chelonia.librarian.recovery import invariants
from chelonia.librarian.settings import LibrarianSettings
from tests.sim.virtual_loop import virtual
from tests.support.failing import fails
from tests.support.librarian import ADMIN, BARTENDER, HOUR, LIBRARIAN, Bench, bench, everything, pieced, sound, spliced
from tests.support.namespace_snapshot import NamespaceSnapshot, broken, sum_rules
from tests.support.paper import paper

GUID = Guid("00000000-0000-4000-8000-00000000000f")
MOST = 60


class Model:
    """One file as stored, changed by elements alone; and its bytes, changed as POSIX says."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, dict[str, str]]] = defaultdict(lambda: defaultdict(dict))
        self.objects[GUID]["entry"] = {"type": "file", "GUID": GUID}
        self.objects[GUID]["states"] = {"size": "0", "neededReplicas": "2"}
        self.blobs: dict[str, bytes] = {}
        self.bytes = bytearray()
        self.numbers = 0

    def stored(self, object_id: str) -> StoredObject:
        sections = {name: dict(props) for name, props in self.objects.get(object_id, {}).items() if props}
        return StoredObject(ObjectId(object_id), 1 if sections else 0, sections)

    def apply(self, elements: list[Element]) -> None:
        for e in elements:
            if e.change is ChangeType.SET:
                self.objects[e.object][e.section][e.property] = e.value
            elif e.change is ChangeType.UNSET:
                self.objects[e.object][e.section].pop(e.property, None)
            elif e.change is ChangeType.DELETE:
                self.objects.pop(e.object, None)

    def extents(self) -> list[Extent]:
        content = content_of(self.stored(GUID))
        stored = self.stored(content_object(content)).sections.get("extents", {}) if content else {}
        return [parse_extent(key, stored[key]) for key in sorted(stored)]

    def read(self) -> bytes:
        out = bytearray(int(self.stored(GUID).value("states", "size")))
        for e in self.extents():
            out[e.at : e.end] = self.blobs[e.blob][e.skip : e.skip + e.length]
        return bytes(out)

    def splice(self, pieces: list[tuple[int, bytes]], size: int, *, whole: bool) -> None:
        """Lay pieces over the file, all of one new blob."""
        self.numbers += 1
        blob, ids = BlobId(f"b{self.numbers}"), ContentId(f"c{self.numbers}")
        data, extents = b"", []
        for at, body in pieces:
            extents.append(Extent(at, len(body), blob, len(data)))
            data += body
        new = [self._blob(blob, data)] if data else []
        begin = BeginPut(Guid(""), "f", parse_ln("/f"), Dn("/CN=joe"), {}, 2, -1, Checksums(), Ms(0), named=False)
        request = SpliceFile(begin, (), tuple(extents), size, whole)
        self.apply(decide.splice(request, self._held(request), new, ids, Ms(7)))
        self._model(pieces, size, whole=whole)

    def _blob(self, blob: BlobId, data: bytes) -> NewBlob:
        self.blobs[blob] = data
        facts = ReplicaFacts(blob, GUID, "piece of /f", Dn("/CN=joe"), len(data), Checksums("x"), 2, Ms(7), "seal")
        return NewBlob(facts, ())

    def _held(self, request: SpliceFile) -> FileContent:
        """The content as the shell reads it: only the extents that meet the change."""
        file = self.stored(GUID)
        size, content = int(file.value("states", "size")), content_of(file)
        span = decide.span_of(request, size)
        there = tuple(e for e in self.extents() if e.end > span.at and e.at < span.end)
        if decide.begins_anew(request, span):
            there = ()
        blobs = tuple(self.stored(f"blob:{blob}") for blob in dict.fromkeys(e.blob for e in there))
        return FileContent(file, self.stored(content_object(content)), size, there, blobs)

    def _model(self, pieces: list[tuple[int, bytes]], size: int, *, whole: bool) -> None:
        if whole:
            self.bytes = bytearray()
        for at, body in pieces:
            self.bytes.extend(bytes(max(0, at + len(body) - len(self.bytes))))
            self.bytes[at : at + len(body)] = body
        if size >= 0:
            self.bytes = self.bytes[:size]
            self.bytes.extend(bytes(size - len(self.bytes)))

    def check(self) -> None:
        assert self.read() == bytes(self.bytes)
        content = content_of(self.stored(GUID))
        obj = self.stored(content_object(content))
        look = NamespaceSnapshot([self.stored(key) for key in self.objects])
        extents = sorted(obj.sections.get("extents", {}).items())
        assert not list(invariants.extent_rules(look, obj.id, extents))
        assert not list(sum_rules(obj))
        assert not list(invariants.named_rules(look, obj.id, obj.sections.get("named", {}).items()))
        named = set(obj.sections.get("named", {}))
        left = {blob for key in self.objects if key.startswith("content:") and key != obj.id
                for blob in self.objects[key]["named"]}  # fmt: skip
        alive = {key.removeprefix("blob:") for key, found in self.objects.items() if key.startswith("blob:") and found}
        assert alive == named | left, "a blob lives as long as something names it"


pieces = st.lists(st.tuples(st.integers(0, MOST), st.binary(min_size=1, max_size=9)), max_size=3)


def apart(some: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """The pieces that do not overlap earlier ones, in order."""
    out: list[tuple[int, bytes]] = []
    for at, body in sorted(some):
        if not out or at >= out[-1][0] + len(out[-1][1]):
            out.append((at, body))
    return out


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(pieces, st.one_of(st.just(-1), st.integers(0, MOST + 10)), st.booleans()), max_size=8))
def test_splices_do_to_a_file_what_writes_do_to_bytes(splices: list[tuple[list[tuple[int, bytes]], int, bool]]) -> None:
    model = Model()
    for some, size, whole in splices:
        laid_down = [(at, body) for at, body in apart(some) if size < 0 or at + len(body) <= size]
        model.splice(laid_down, size, whole=whole)
        model.check()


@given(st.integers(0, 2**62), st.integers(1, 2**20), st.integers(0, 2**40))
def test_an_extent_reads_as_it_was_written(at: int, length: int, skip: int) -> None:
    extent = Extent(at, length, BlobId("b"), skip)
    key, value = extent_record(extent)
    assert parse_extent(key, value) == extent
    assert len(key) == 16


@pytest.mark.parametrize("record", [("0", "b 0 1"), (f"{4:016x}", "b 0 6"), (f"{4:016x}", "b -1 2"), ("x", "b 0 1")])
def test_what_is_no_extent_is_not_read(record: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match=r"extent|literal|invalid|unpack"):
        parse_extent(*record)


def test_an_extent_covers_several_and_splits_one() -> None:
    a, b = BlobId("a"), BlobId("b")
    there = (Extent(0, 4, a), Extent(4, 4, a, 10), Extent(10, 4, a, 20))
    assert laid(there, (Extent(2, 9, b),), 14) == (Extent(0, 2, a), Extent(2, 9, b), Extent(11, 3, a, 21))
    assert laid(there, (Extent(1, 1, b),), 3) == (Extent(0, 1, a), Extent(1, 1, b), Extent(2, 1, a, 2))


def test_too_many_extents_are_refused_with_a_cure() -> None:
    model = Model()
    model.splice([(0, b"x")], -1, whole=False)
    content = content_object(content_of(model.stored(GUID)))
    model.objects[content]["content"]["extents"] = str(bounds.CONTENT_EXTENTS_MAX)
    with fails(Kind.TOO_LARGE, match="anew"):
        model.splice([(5, b"y")], -1, whole=False)


# --- the Librarian --------------------------------------------------------------------------------------------------


async def test_a_splice_takes_the_first_blob_over_and_lets_go_of_what_is_covered() -> None:
    async with bench() as b:
        file, first = await b.file("f")
        assert await spliced(b, "f", file, 7, key="k") == file
        stored = await b.stored(file)
        assert "blobs" not in stored.sections
        assert stored.sections["states"] == {"size": "14", "neededReplicas": "2"}
        seen = await sound(b)
        assert seen.value(ObjectId(f"blob:{first}"), "blob", "content") == content_of(stored)
        await spliced(b, "f", file, 0)
        await sound(b)
        assert not (await b.stored(f"blob:{first}")).exists
        assert "replaced" in (await b.outbox(b.shepherds[0])).values()


async def test_extents_are_told_with_the_places_of_their_blobs() -> None:
    async with bench() as b:
        file = await spliced(b, "f", Guid(""), 0, 7, 20)
        page = await b.service.extents(BARTENDER, file, 8, 21)
        assert [(e.at, e.end) for e in page.extents] == [(7, 14), (20, 27)]
        assert (page.size, page.until, len(page.blobs)) == (27, 21, 2)
        assert all(set(place.locations.values()) == {"alive"} for place in page.blobs)
        (shown,) = await b.service.get(BARTENDER, (file,))
        assert len(shown.sections["locations"]) == 2
        assert "content" not in shown.sections


def test_a_file_of_several_blobs_is_shown_as_safe_as_the_one_that_is_worst_off() -> None:
    def blob(name: str, *states: str) -> StoredObject:
        places = {f"https://s{n}/Shepherd {name}": state for n, state in enumerate(states, 1)}
        return StoredObject(ObjectId(f"blob:{name}"), 1, {"locations": places})

    well, hurt = blob("a", "alive", "alive"), blob("b", "alive", "invalid")
    assert list(view.weakest_locations((well, hurt, well), lambda _: True).values()) == ["alive", "invalid"]
    assert list(view.weakest_locations((well, blob("c")), lambda _: True)) == []
    away = view.weakest_locations((well, hurt), lambda shepherd: shepherd != "https://s1/Shepherd")
    assert list(away.values()) == ["offline", "invalid"]


async def test_all_blobs_of_a_file_want_what_it_wants() -> None:
    async with bench() as b:
        file = await spliced(b, "f", Guid(""), 0, 7, 20)
        await b.service.set_wanted(BARTENDER, SetWanted(file, 3))
        seen = await sound(b)
        assert {blob.value("blob", "wanted") for blob in seen.blobs()} == {"3"}
        await spliced(b, "f", file, 30)
        seen = await sound(b)
        assert {blob.value("blob", "wanted") for blob in seen.blobs()} == {"3"}


async def test_at_no_moment_a_file_wants_other_copies_than_its_blobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash in between left it different until fsck mended it. Found by `copies` seed 8."""
    async with bench() as b:
        file, attempt = await spliced(b, "f", Guid(""), 0, 7, 20), Records.attempt

        async def looked_at(self: Records, call: Call, draft: PlannedTransact) -> TransactOutcome:
            outcome = await attempt(self, call, draft)
            await sound(b)
            return outcome

        monkeypatch.setattr(Records, "attempt", looked_at)
        await b.service.set_wanted(BARTENDER, SetWanted(file, 3))
        assert {blob.value("blob", "wanted") for blob in (await sound(b)).blobs()} == {"3"}


async def test_a_deleted_file_of_several_blobs_comes_back_whole() -> None:
    async with bench(settings=replace(LibrarianSettings.dev(ADMIN.dn), trash_keep_ms=HOUR)) as b:
        file = await spliced(b, "f", Guid(""), 0, 7, 20)
        before = await b.service.extents(BARTENDER, file, 0, 30)
        await b.service.delete(BARTENDER, Delete(file))
        await sound(b)
        with fails(Kind.NOT_FOUND):
            await b.service.extents(BARTENDER, file, 0, 30)
        await b.service.undelete(BARTENDER, Undelete(file, ROOT, "again"))
        await sound(b)
        assert await b.service.extents(BARTENDER, file, 0, 30) == before


async def test_a_race_of_splices_leaves_one_order() -> None:
    async with bench() as b:
        file, _ = await b.file("f")
        await asyncio.gather(*(spliced(b, "f", file, at) for at in (3, 5, 7, 7, 0)))
        seen = await sound(b)
        content = seen.objects[content_object(content_of(await b.stored(file)))]
        assert content.value("content", "splices") == "5"


class _Between:
    """An A-Hash: once, before its answer about a content's use of some blobs, something happens."""

    def __init__(self, inner: AHash) -> None:
        self.inner = inner
        self.meanwhile: Callable[[], Awaitable[object]] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def get(self, call: Call, ids: tuple[ObjectId, ...], needed: Filter = ()) -> tuple[StoredObject, ...]:
        if self.meanwhile is not None and any(need.section == "named" for need in needed):
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
        return await self.inner.get(call, ids, needed)


@asynccontextmanager
async def between() -> AsyncIterator[tuple[Bench, _Between]]:
    made: list[_Between] = []

    def wrap(inner: AHash) -> AHash:
        made.append(_Between(inner))
        return made[-1]  # type: ignore[return-value]

    async with bench(wrap=wrap) as b:
        yield b, made[-1]


async def test_a_splice_between_the_reads_of_another_is_only_another() -> None:
    async with between() as (b, ahash):
        file = await spliced(b, "f", Guid(""), 0, 7, 20)
        ahash.meanwhile = lambda: spliced(b, "f", file, 0)
        await spliced(b, "f", file, 0)
        seen = await sound(b)
        assert seen.objects[content_object(content_of(await b.stored(file)))].value("content", "splices") == "3"


async def test_a_content_of_damaged_records_is_not_written_into_and_says_the_cure() -> None:
    async with bench() as b:
        file = await spliced(b, "f", Guid(""), 0, 7, 20)
        obj = content_object(content_of(await b.stored(file)))
        named = (await b.ahash.scan(LIBRARIAN, obj, "named")).items
        lost = tuple(drop(obj, "named", blob) for blob, _ in named)
        assert (await b.ahash.transact(LIBRARIAN, RequestKey(""), lost)).applied
        with pytest.raises(CheloniaError, match="fsck"):
            await spliced(b, "f", file, 0)


async def test_a_piece_is_no_file_and_another_name_no_excuse() -> None:
    async with bench() as b:
        file, _ = await b.file("f")
        begin, piece = await pieced(b, "f", file)
        forged = replace(piece, begin=replace(begin, piece=False))
        with fails(Kind.BAD_REQUEST):
            await b.service.commit_file(BARTENDER, forged)
        lies = replace(piece, begin=replace(begin, ln=parse_ln("/g")))
        with fails(Kind.BAD_REQUEST):
            await b.service.splice(BARTENDER, SpliceFile(begin, (lies,), (Extent(0, 7, piece.begun.blob),)))
        await sound(b)


@pytest.mark.parametrize("keep_ms", [0, 60_000])
@virtual
async def test_a_content_goes_with_its_file_page_by_page(keep_ms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "BLOBS_PAGE", 2)
    monkeypatch.setattr(bounds, "DELETE_WIDE_MAX", 2)

    settings = replace(LibrarianSettings.dev(ADMIN.dn), trash_keep_ms=keep_ms)
    async with paper(settings=settings) as p:
        file = await spliced(p.b, "f", Guid(""), 0, 7, 14, 21, 28)
        await p.b.service.delete(BARTENDER, Delete(file))
        await sound(p.b)
        await asyncio.sleep(keep_ms / 1000)

        async def gone() -> bool:
            seen = await everything(p.b)
            assert broken(seen) == ()
            return not [key for key in seen.objects if key.startswith(("content:", "blob:"))]

        await p.until(gone, 120_000)
        assert not (await everything(p.b)).section(PENDING_OBJECT, "due")


def test_extents_are_stored_as_documented() -> None:
    """The golden record of docs/formats/metadata.md."""
    assert extent_record(Extent(10, 5, BlobId("b"), 3)) == ("000000000000000e", "b 3 5")
