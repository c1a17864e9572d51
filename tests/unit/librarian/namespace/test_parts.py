"""Uploads in parts at the Librarian: sealing that breaks off anywhere, its leftovers, and expiry."""

from __future__ import annotations

import asyncio
import hashlib
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.cluster.replicas import Checksums
from chelonia.core.contents.parts import UploadId, parse_upload
from chelonia.core.contents.uploads import BeginPut, CommitFile, CopyFile, OpenUpload, PutPart, SealUpload
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import PENDING_OBJECT, ROOT, Guid, Ms, ObjectId, RequestKey, content_object
from chelonia.core.names import parse_ln
from chelonia.core.ports.ahash import AHash, ChangeType
from chelonia.core.ports.librarian import Delete, SetWanted, Unmake
from chelonia.core.values import replace
from chelonia.librarian.metadata.contents import DISCARDED, SEALED, content_of
from chelonia.librarian.metadata.elements import drop
from chelonia.librarian.namespace.parts.decide import parse_part
from tests.sim.virtual_loop import virtual
from tests.support.ahash import LIBRARIAN
from tests.support.failing import fails
from tests.support.librarian import BARTENDER, JOE, Bench, bench, keyed, sound
from tests.support.namespace_snapshot import NamespaceSnapshot
from tests.support.paper import paper

NAME = parse_ln("/f")
OPEN_MS = 60_000
Order = tuple[tuple[int, str], ...]


def begin(b: Bench, **facts: Any) -> BeginPut:
    expires = Ms(b.clock.now_ms() + OPEN_MS)
    blank = BeginPut(ROOT, "f", NAME, JOE, {}, 2, -1, Checksums(), expires, named=False)
    return replace(blank, **facts)


async def opened(b: Bench, **facts: Any) -> UploadId:
    return await b.service.open_upload(BARTENDER, OpenUpload(begin(b, **facts), ROOT, "f"))


async def put(b: Bench, upload: UploadId, number: int, size: int = 7, adler32: str = "") -> tuple[int, str]:
    """A part that has arrived; its number and etag."""
    piece = begin(b, piece=True)
    begun = await b.service.begin_put(BARTENDER, piece)
    sums = Checksums("ab" * 32, hashlib.md5(str(number).encode()).hexdigest(), adler32)
    held = tuple(replace(b.receipt(begun.blob, s, size=size), checksums=sums) for s in b.shepherds[:2])
    return number, await b.service.put_part(BARTENDER, PutPart(upload, number, CommitFile(piece, begun, held)))


async def filled(b: Bench, *numbers: int) -> tuple[UploadId, Order]:
    upload = await opened(b)
    return upload, tuple([await put(b, upload, number) for number in numbers])


async def seal(b: Bench, upload: UploadId, order: Order, **facts: Any) -> Guid:
    return await b.service.seal_upload(BARTENDER, SealUpload(upload, begin(b, **facts), order))


def ends(seen: NamespaceSnapshot, file: Guid) -> list[int]:
    """The ends of a file's extents."""
    content = content_object(content_of(seen.get(ObjectId(file))))
    return [int(key, 16) + 1 for key in sorted(seen.section(content, "extents"))]


class Failing:
    """An A-Hash that applies some transacts and then none: the Librarian's process ends."""

    def __init__(self) -> None:
        self.left = 10**9

    def over(self, ahash: AHash) -> AHash:
        self._ahash = ahash
        return self  # type: ignore[return-value]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ahash, name)

    async def transact(self, *args: Any) -> Any:
        if self.left <= 0:
            raise CheloniaError(Kind.UNAVAILABLE, "transact", cause="killed")
        self.left -= 1
        return await self._ahash.transact(*args)


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    for bound in ("PARTS_PAGE", "DELETE_WIDE_MAX", "BLOBS_PAGE", "FILTER_MAX"):
        monkeypatch.setattr(bounds, bound, 2)


@pytest.mark.usefixtures("small_pages")
async def test_sealing_that_breaks_off_anywhere_is_seen_by_nobody_and_can_be_done_again() -> None:
    steps = 0
    while True:
        failing = Failing()
        async with bench(wrap=failing.over) as b:
            old, _ = await b.file("f")
            before = await b.stored(old)
            upload, order = await filled(b, 1, 2, 3, 4, 5)
            failing.left = steps
            (answer,) = await asyncio.gather(seal(b, upload, order[:4], replaces=old), return_exceptions=True)
            if answer == old:
                break
            assert isinstance(answer, CheloniaError), answer
            assert answer.kind is Kind.UNAVAILABLE
            failing.left = 10**9
            assert await b.stored(old) == before
            await sound(b)
            if steps % 2:  # another order, after parts have changed
                order = (order[0], await put(b, upload, 3), order[4])
                await sound(b)
            assert await seal(b, upload, order, replaces=old) == old
            assert ends(await sound(b), old) == [7 * (n + 1) for n in range(len(order))]
        steps += 1
    assert steps == 5, "a mark, a page for each two of five parts, and the file"


async def test_uploads_go_with_the_collection_that_lists_them() -> None:
    async with bench() as b:
        box = await b.collection("box")
        order = OpenUpload(begin(b, parent=box, ln=parse_ln("/box/f")), box, "f")
        content = content_object(parse_upload(await b.service.open_upload(BARTENDER, order))[1])
        await b.service.unmake(BARTENDER, Unmake(box))
        assert await b.names() == {}
        assert (await b.stored(content)).value("content", "state") == DISCARDED
        await sound(b)


class Crossing(Failing):
    """An A-Hash for two callers: the first looks for extents to clear once the second has laid its own. The second
    seals once those are cleared."""

    def __init__(self) -> None:
        super().__init__()
        self.seals: Any = None
        self.second: asyncio.Task[Guid] | None = None
        self.laid, self.cleared = asyncio.Event(), asyncio.Event()

    async def scan(self, call: Call, obj: ObjectId, section: str, *args: Any) -> Any:
        if section == "extents" and self.second is None:
            self.second = asyncio.create_task(self.seals())
            await self.laid.wait()
        return await self._ahash.scan(call, obj, section, *args)

    async def transact(self, call: Call, key: str, elements: Any, *args: Any) -> Any:
        said = {(each.section, each.property, each.value) for each in elements}
        if asyncio.current_task() is self.second and ("content", "state", SEALED) in said:
            self.laid.set()
            await self.cleared.wait()
        answer = await self._ahash.transact(call, key, elements, *args)
        if "extents" in {each.section for each in elements} and asyncio.current_task() is not self.second:
            self.cleared.set()
            await asyncio.gather(*filter(None, (self.second,)), return_exceptions=True)
        return answer


async def test_of_two_that_seal_an_upload_of_the_same_parts_neither_clears_what_the_other_lays() -> None:
    """The second had sealed a file of no bytes."""
    crossing = Crossing()
    async with bench(wrap=crossing.over) as b:
        upload, order = await filled(b, 1, 2)
        crossing.seals = lambda: seal(b, upload, order)
        answers = await asyncio.gather(seal(b, upload, order), return_exceptions=True)
        crossing.cleared.set()
        assert crossing.second is not None
        answers += await asyncio.gather(crossing.second, return_exceptions=True)
        [file] = [each for each in answers if isinstance(each, str)]
        assert ends(await sound(b), Guid(file)) == [7, 14]


async def test_what_is_overwritten_before_the_sweep_has_met_it_breaks_nothing() -> None:
    async with bench() as b:
        file = await seal(b, *await filled(b, 1))
        b.clock.advance(5)
        upload, order = await filled(b, 2)
        assert await seal(b, upload, order, replaces=file) == file
        await sound(b)


class Losing(Failing):
    """An A-Hash whose master is lost under each transact from now on: the next master answers those with a key."""

    async def transact(self, call: Call, key: str, *args: Any) -> Any:
        if self.left <= 0 and not key:
            raise CheloniaError(Kind.OUTCOME_UNKNOWN, "transact", cause="the master was lost")
        return await self._ahash.transact(call, key, *args)


@pytest.mark.usefixtures("small_pages")
async def test_a_master_that_is_lost_breaks_off_no_request_of_several_transacts() -> None:
    losing = Losing()
    async with bench(wrap=losing.over) as b:
        box = await b.collection("box")
        place = {"parent": box, "ln": parse_ln("/box/f")}
        opening = OpenUpload(begin(b, **place), box, "f")
        await b.service.open_upload(BARTENDER, opening)
        upload, order = await filled(b, 1, 2, 3, 4, 5)
        losing.left = 0
        file = await b.service.seal_upload(keyed("seal"), SealUpload(upload, begin(b, **place), order))
        copy = await b.service.copy_file(keyed("copy"), CopyFile(file, begin(b)))
        await b.service.set_wanted(keyed("want"), SetWanted(copy, 3))
        await b.service.delete(keyed("delete"), Delete(file))
        await b.service.unmake(keyed("unmake"), Unmake(box))
        assert ends(await sound(b), copy) == [7, 14, 21, 28, 35]
        assert await b.names() == {"f": copy}


@pytest.mark.usefixtures("small_pages")
@virtual
async def test_parts_that_were_not_named_go_and_the_file_stays() -> None:
    async with paper() as p:
        upload, order = await filled(p.b, 1, 2, 3, 4, 5, 6)
        file = await seal(p.b, upload, order[1::2])

        async def swept() -> bool:
            seen = await sound(p.b)
            content = content_object(parse_upload(upload)[1])
            return not seen.section(content, "parts") and not seen.section(PENDING_OBJECT, "due")

        await p.until(swept, 60_000)
        seen = await sound(p.b)
        assert len(seen.blobs()) == 3
        assert ends(seen, file) == [7, 14, 21]
        await p.b.service.delete(BARTENDER, Delete(file))


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("sealing", [False, True])
@virtual
async def test_an_upload_that_nobody_seals_goes_with_its_time(sealing: bool) -> None:
    async with paper() as p:
        upload, order = await filled(p.b, 1, 2, 3, 4, 5)
        if sealing:
            with fails(Kind.NO_PARENT):
                await seal(p.b, upload, order, parent=Guid("00000000-0000-4000-8000-00000000dead"))
        await sound(p.b)
        assert (await p.b.service.uploads(BARTENDER, ROOT, "", "", 0)).uploads
        await asyncio.sleep(OPEN_MS / 1000)

        async def gone() -> bool:
            seen = await sound(p.b)
            return not [key for key in seen.objects if key.startswith(("content:", "blob:"))]

        await p.until(gone, 120_000)
        seen = await sound(p.b)
        assert not seen.section(PENDING_OBJECT, "due")
        assert not seen.section(ObjectId(ROOT), "uploads")
        with fails(Kind.NOT_FOUND):
            await seal(p.b, upload, order)


async def test_a_part_that_comes_while_its_upload_is_sealed_is_in_it_or_refused() -> None:
    for turns in range(12):
        async with bench() as b:
            upload, order = await filled(b, 1, 2)
            sealing = asyncio.create_task(seal(b, upload, order))
            for _ in range(turns):
                await asyncio.sleep(0)
            (late,) = await asyncio.gather(put(b, upload, 2, size=9), return_exceptions=True)
            file = await sealing
            seen = await sound(b)
            assert ends(seen, file)[-1] in ((14, 16) if isinstance(late, tuple) else (14,))


class Replacing(Failing):
    """An A-Hash: once, before it records the order of the extents to lay, something happens."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], Awaitable[object]] | None = None

    async def transact(self, call: Call, key: str, elements: Any, *args: Any) -> Any:
        says = any((e.section, e.property, e.change) == ("content", "order", ChangeType.SET) for e in elements)
        if says and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
        return await self._ahash.transact(call, key, elements, *args)


async def test_a_part_that_is_replaced_before_its_order_is_begun_is_not_sealed() -> None:
    replacing = Replacing()
    async with bench(wrap=replacing.over) as b:
        upload, order = await filled(b, 1, 2)
        replacing.meanwhile = lambda: put(b, upload, 2, size=9)
        file = await seal(b, upload, order)
        assert replacing.meanwhile is None
        assert ends(await sound(b), file) == [7, 16]


class BegunAnew(Failing):
    """An A-Hash: once, when the first extents are laid, something happens."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], Awaitable[object]] | None = None

    async def transact(self, call: Call, key: str, elements: Any, *args: Any) -> Any:
        answer = await super().transact(call, key, elements, *args)
        lays = any(e.section == "extents" and e.change is ChangeType.SET for e in elements)
        if lays and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
        return answer


async def test_an_order_that_another_has_begun_anew_is_not_sealed_before_its_extents_are_laid() -> None:
    """The first had laid them; a part came, so a second caller with the same order cleared them, and had not laid its
    own."""
    anew = BegunAnew()
    async with bench(wrap=anew.over) as b:
        upload, order = await filled(b, 1, 2)

        async def crossing() -> None:
            await put(b, upload, 3)
            anew.left = 2  # he begins, and dies
            with pytest.raises(CheloniaError):
                await seal(b, upload, order)
            anew.left = 10**9

        anew.meanwhile = crossing
        file = await seal(b, upload, order)
        assert anew.meanwhile is None
        assert ends(await sound(b), file) == [7, 14]


async def test_sealing_twice_is_sealing_once() -> None:
    async with bench() as b:
        upload, order = await filled(b, 1, 2)
        file = await seal(b, upload, order)
        assert await seal(b, upload, order, replaces=file) == file
        with fails(Kind.NOT_FOUND):
            await seal(b, upload, order)
        await sound(b)


async def test_what_is_opened_over_a_file_that_goes_is_sealed_as_another() -> None:
    """With the GUID, it would get the file's versions anew, and readers of the former file would not notice."""
    async with bench() as b:
        old, _ = await b.file("f")
        upload = await opened(b, replaces=old)
        order = (await put(b, upload, 1),)
        await b.service.delete(keyed("gone"), Delete(old))
        assert await seal(b, upload, order) != old
        await sound(b)


@pytest.mark.parametrize("over", [False, True])
@virtual
async def test_an_upload_of_a_version_that_did_not_note_whose_guid_it_may_have_is_sealed_all_the_same(
    over: bool,
) -> None:
    """It may have been opened over a file that is gone, so a new file of it has another GUID than its parts state."""

    async with paper() as p:
        old = (await p.b.file("f"))[0] if over else Guid("")
        upload = await opened(p.b, replaces=old)
        content = content_object(parse_upload(upload)[1])
        await p.b.ahash.transact(LIBRARIAN, RequestKey("before"), [drop(content, "content", "fresh")])
        order = (await put(p.b, upload, 1), await put(p.b, upload, 2))
        said = (await p.b.stored(content)).value("content", "file")
        file = await seal(p.b, upload, order, replaces=old)
        assert file == old if over else file not in ("", said)
        assert await seal(p.b, upload, order, replaces=file) == file

        async def swept() -> bool:
            return not (await sound(p.b)).section(content, "parts")

        await p.until(swept, 60_000)
        assert ends(await sound(p.b), file) == [7, 14]
        await p.b.service.delete(keyed("gone"), Delete(file))
        await sound(p.b)


async def test_a_file_of_parts_has_the_adler32_that_they_make() -> None:
    async with bench() as b:
        upload = await opened(b)
        order = tuple([await put(b, upload, n, adler32=f"{zlib.adler32(b'seven b'):08x}") for n in (1, 2)])
        file = await seal(b, upload, order)
        states = (await b.stored(file)).sections["states"]
        assert (states["checksumType"], states["checksum"]) == ("adler32", f"{zlib.adler32(b'seven b' * 2):08x}")
        await sound(b)


async def test_what_two_seal_at_once_is_sealed_once() -> None:
    async with bench() as b:
        upload, order = await filled(b, *range(1, 9))
        both = await asyncio.gather(seal(b, upload, order), seal(b, upload, order[::2]), return_exceptions=True)
        files = [each for each in both if isinstance(each, str)]
        assert len(files) == 1
        assert len(ends(await sound(b), Guid(files[0]))) in (4, 8)


async def test_parts_of_more_bytes_than_a_file_may_have_are_refused() -> None:
    async with bench() as b:
        upload = await opened(b)
        await put(b, upload, 1, 2**62)
        with fails(Kind.TOO_LARGE):
            await put(b, upload, 2, 2**62)
        await sound(b)


async def test_blobs_of_an_upload_want_what_it_wants_and_are_nobodys_file() -> None:
    async with bench() as b:
        upload, _ = await filled(b, 1)
        seen = await sound(b)
        (blob,) = seen.blobs()
        assert blob.value("blob", "wanted") == "2"
        assert blob.value("blob", "content") == parse_upload(upload)[1]
        assert await b.names() == {}


def test_parts_are_stored_as_documented() -> None:
    """The golden record of docs/formats/metadata.md."""
    for adler32 in ("06090125", "-"):
        record = ("00007", f"b 5 1700000000000 0123456789abcdef0123456789abcdef {adler32}")
        assert parse_part(*record).record == record
