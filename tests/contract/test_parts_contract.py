"""The contract of the port `Files`: uploads in parts (worlds: `tests/support/files_worlds.py`)."""

from __future__ import annotations

import asyncio
import hashlib

from msgspec import structs

from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.contents.extents import Extent
from chelonia.core.contents.parts import AFTER_KEY, PartPlace, UploadId, listing_mark
from chelonia.core.errors import Kind
from chelonia.core.ports.files import (
    Arrived,
    Content,
    Done,
    Drop,
    Listing,
    Make,
    Move,
    Open,
    Over,
    Part,
    Placed,
    Placing,
    Remove,
    Removing,
    Seal,
    Set,
    Setting,
    Splice,
    UploadParts,
    Uploads,
    Want,
    When,
)
from chelonia.core.rights.scopes import ADDING, READING, Scope
from chelonia.core.values import replace
from tests.contract.test_contents_contract import lay, shape
from tests.sim.virtual_loop import run_virtual
from tests.support.failing import fails
from tests.support.files_worlds import (
    ServiceWorld,
    World,
    applied,
    at,
    collection,
    done,
    looked,
    on_service,
    played,
    there,
    write,
)
from tests.support.stage import EVE, JOE, NOBODY, all_sums

NOBODYS = UploadId("1700000000000.00000000-0000-4000-8000-0000000000aa")


async def opened(world: World, name: str, within: str = "/", call: Call = JOE, **more: object) -> UploadId:
    answer = await done(world, Open(at(name), at(within), 2, **more), call)  # type: ignore[arg-type]
    assert answer.upload
    assert answer.attributes is None
    return answer.upload


async def sent(world: World, name: str, data: bytes, call: Call = JOE, **more: object) -> Arrived:
    placing = Placing(at(name), len(data), wanted=2, piece=True, **more)  # type: ignore[arg-type]
    (placed,) = await world.files.place(call, (placing,))
    assert isinstance(placed, Placed), placed
    return await world.arrive(placed, data)


async def part(world: World, name: str, upload: UploadId, number: int, data: bytes, **more: object) -> str:
    """Upload a part; returns its etag."""
    arrived = await sent(world, name, data, **more)  # type: ignore[arg-type]
    md5 = hashlib.md5(data).hexdigest()
    etag = (await done(world, Part(at(name), upload, number, arrived, etag=md5))).etag
    assert etag == md5
    return etag


async def sealed(world: World, name: str, upload: UploadId, *order: tuple[int, str], **more: object) -> Done | Kind:
    return await applied(world, Seal(at(name), upload, order, **more))  # type: ignore[arg-type]


def etag_of(*parts: bytes) -> str:
    joined = b"".join(hashlib.md5(data).digest() for data in parts)
    return f"{hashlib.md5(joined).hexdigest()}-{len(parts)}"


async def listed(world: World, name: str = "/", call: Call = JOE, **more: object) -> list[tuple[str, UploadId]]:
    page = await world.files.uploads(call, Uploads(at(name), **more))  # type: ignore[arg-type]
    return [(each.key, each.upload) for each in page.uploads]


@played
async def test_bytes_that_were_placed_as_a_part_become_that_part_alone(world: World) -> None:
    upload, other = await opened(world, "/f"), await opened(world, "/f")
    arrived = await sent(world, "/f", b"second", part=PartPlace(upload, 2))
    for change in (Part(at("/f"), upload, 1, arrived), Part(at("/f"), other, 2, arrived)):
        assert await applied(world, change) is Kind.BAD_REQUEST
    placing = Placing(at("/f"), 6, wanted=2, piece=True, part=PartPlace(upload, 2))
    (placed,) = await world.files.place(JOE, (placing,))
    assert isinstance(placed, Placed)
    laid = Content((Extent(0, 6, placed.blob),), (await world.arrive(placed, b"second"),))
    assert await applied(world, Splice(at("/f"), laid)) is Kind.BAD_REQUEST
    await done(world, Part(at("/f"), upload, 2, arrived))


@played
async def test_a_part_is_called_as_its_sender_says_or_by_half_of_its_sha256(world: World) -> None:
    upload = await opened(world, "/f")
    measured = await part(world, "/f", upload, 1, b"measured")
    arrived = await sent(world, "/f", b"unmeasured")
    unmeasured = (await done(world, Part(at("/f"), upload, 2, arrived))).etag
    assert unmeasured == hashlib.sha256(b"unmeasured").hexdigest()[:32]
    made = await sealed(world, "/f", upload, (1, measured), (2, unmeasured))
    assert isinstance(made, Done)
    of_both = hashlib.md5(bytes.fromhex(measured + unmeasured)).hexdigest()
    assert (await there(world, "/f")).attributes.etag == f"{of_both}-2"


@played
async def test_parts_become_a_file_in_their_order_whenever_they_came(world: World) -> None:
    upload = await opened(world, "/f", setting=Setting(mode=0o600), user={"k": "v"})
    etags = {n: await part(world, "/f", upload, n, data) for n, data in ((9, b"last!"), (2, b"one"), (5, b"two"))}
    assert await looked(world, "/f") is Kind.NOT_FOUND
    made = await sealed(world, "/f", upload, *((n, etags[n]) for n in (2, 5, 9)))
    assert isinstance(made, Done)
    assert made.made
    seen = await there(world, "/f", Want.USER)
    assert seen.attributes == made.attributes
    assert (seen.attributes.size, seen.attributes.mode, seen.attributes.wanted) == (11, 0o600, 2)
    assert (seen.user, seen.attributes.etag) == ({"k": "v"}, etag_of(b"one", b"two", b"last!"))
    assert await shape(world, "/f") == [(0, 3, 0), (3, 3, 0), (6, 5, 0)]
    assert await listed(world) == []
    assert await applied(world, Part(at("/f"), upload, 1, await sent(world, "/f", b"late"))) is Kind.NOT_FOUND


@played
async def test_what_a_sender_measured_is_told_of_parts_and_of_the_file(world: World) -> None:
    upload, given = await opened(world, "/f", user={"k": "v", "of": "the upload"}), ("crc32:0000000a", "")
    for number, checksum in enumerate(given, 1):
        arrived = await sent(world, "/f", b"abc")
        await done(world, Part(at("/f"), upload, number, arrived, checksum))
    page = await world.files.parts(JOE, UploadParts(at("/f"), upload))
    assert tuple(each.checksum for each in page.parts) == given
    assert page.user == {"k": "v", "of": "the upload"}
    bad = Part(at("/f"), upload, 3, await sent(world, "/f", b"abc"), "crc32: a b")
    assert await applied(world, bad) is Kind.BAD_REQUEST
    etag = hashlib.sha256(b"abc").hexdigest()[:32]
    assert isinstance(await sealed(world, "/f", upload, (1, etag), (2, etag), user={"of": "the seal"}), Done)
    seen = await there(world, "/f", Want.USER | Want.CHECKSUMS | Want.EXTENTS)
    assert seen.user == {"k": "v", "of": "the seal"}
    assert [seen.sums.get(each.blob, {}) for each in seen.extents] == [{"crc32": "0000000a"}, {}]
    assert not (await there(world, "/f", Want.EXTENTS)).sums


@played
async def test_checksums_are_told_by_who_has_measured_the_bytes(world: World) -> None:
    assert isinstance(await write(world, "/one", b"one blob"), Done)
    upload, data = await opened(world, "/several"), (b"first ", b"and second", b"!")
    order = [(n, await part(world, "/several", upload, n, each)) for n, each in enumerate(data, 1)]
    assert isinstance(await sealed(world, "/several", upload, *order), Done)
    for name, whole in (("/one", b"one blob"), ("/several", b"".join(data))):
        known, crcs = (await there(world, name, Want.MEASURED)).checksums, all_sums(whole)
        assert (known.crc32c, known.crc64nvme) == (crcs.crc32c, crcs.crc64nvme)
        assert not (await there(world, name, Want.CHECKSUMS)).checksums.crc32c


@played
async def test_a_part_that_is_put_again_replaces_the_first_and_parts_not_named_go(world: World) -> None:
    upload = await opened(world, "/f")
    old = await part(world, "/f", upload, 1, b"wrong")
    new = await part(world, "/f", upload, 1, b"right!")
    await part(world, "/f", upload, 2, b"not named")
    assert await sealed(world, "/f", upload, (1, old)) is Kind.INCOMPLETE
    assert isinstance(await sealed(world, "/f", upload, (1, new)), Done)
    assert await shape(world, "/f") == [(0, 6, 0)]


@played
async def test_what_is_sealed_is_not_sealed_of_other_parts(world: World) -> None:
    """The second caller's answer was `done`, but the file was the first one's."""

    upload = await opened(world, "/f")
    one, two = await part(world, "/f", upload, 1, b"one"), await part(world, "/f", upload, 2, b"two")
    assert isinstance(await sealed(world, "/f", upload, (1, one), (2, two)), Done)
    assert await sealed(world, "/f", upload, (1, one)) is Kind.NOT_FOUND
    assert (await there(world, "/f")).attributes.etag == etag_of(b"one", b"two")


@played
async def test_a_file_that_is_there_keeps_its_identity_and_gets_the_parts(world: World) -> None:
    before = await write(world, "/f", b"0123456789", user={"old": "1"})
    assert isinstance(before, Done)
    assert before.attributes is not None
    upload = await opened(world, "/f", user={"new": "2"})
    etag = await part(world, "/f", upload, 1, b"parts")
    assert (await there(world, "/f")).attributes == before.attributes
    done_ = await sealed(world, "/f", upload, (1, etag))
    assert isinstance(done_, Done)
    assert not done_.made
    seen = await there(world, "/f", Want.USER)
    assert (seen.attributes.guid, seen.attributes.size) == (before.attributes.guid, 5)
    assert (seen.user, seen.attributes.etag) == ({"new": "2"}, etag_of(b"parts"))
    (told,) = (await world.files.list(JOE, Listing(at("/")))).entries
    assert (told.attributes.size, told.attributes.etag) == (5, seen.attributes.etag)
    assert isinstance(await lay(world, "/f", (5, b"more")), Done)
    after = (await there(world, "/f")).attributes
    assert (after.size, after.etag == seen.attributes.etag) == (9, False)
    await write(world, "/f", b"whole")
    assert (await there(world, "/f")).attributes.etag not in (after.etag, seen.attributes.etag)


@played
async def test_parts_come_with_their_rules(world: World) -> None:
    upload = await opened(world, "/f")
    etag = await part(world, "/f", upload, 1, b"parts")
    assert isinstance(await sealed(world, "/f", upload, (1, etag), policy={EVE.dn: "+read"}), Done)
    assert (await there(world, "/f", Want.POLICY)).policy == {EVE.dn: "+read"}
    await done(world, Set(at("/f"), policy={"ALL": "+read", "VOMS:/vo": "+read"}))
    upload = await opened(world, "/f")
    etag = await part(world, "/f", upload, 1, b"private")
    assert isinstance(await sealed(world, "/f", upload, (1, etag), policy={}), Done)
    assert (await there(world, "/f", Want.POLICY)).policy == {"VOMS:/vo": "+read"}


@played
async def test_what_is_no_order_of_parts_seals_nothing(world: World) -> None:
    upload = await opened(world, "/f")
    one, two = await part(world, "/f", upload, 1, b"one"), await part(world, "/f", upload, 2, b"two")
    assert await sealed(world, "/f", upload) is Kind.BAD_REQUEST
    assert await sealed(world, "/f", upload, (2, two), (1, one)) is Kind.BAD_REQUEST
    assert await sealed(world, "/f", upload, (1, one), (1, one)) is Kind.BAD_REQUEST
    assert await sealed(world, "/f", upload, (0, one)) is Kind.BAD_REQUEST
    assert await sealed(world, "/f", upload, (1, one), (10_001, two)) is Kind.BAD_REQUEST
    assert await sealed(world, "/f", upload, *((n, one) for n in range(1, 10_002))) is Kind.TOO_LARGE
    assert await sealed(world, "/f", upload, (1, one), (3, two)) is Kind.INCOMPLETE
    assert await sealed(world, "/f", upload, (1, two), (2, two)) is Kind.INCOMPLETE
    assert await sealed(world, "/f", upload, (1, one), (2, two), least=4) is Kind.BAD_REQUEST
    assert await sealed(world, "/f", NOBODYS, (1, one)) is Kind.NOT_FOUND
    assert await sealed(world, "/f", UploadId("../x"), (1, one)) is Kind.NOT_FOUND
    assert await looked(world, "/f") is Kind.NOT_FOUND
    assert isinstance(await sealed(world, "/f", upload, (1, one), (2, two), least=3), Done)


@played
async def test_what_is_no_part_is_refused(world: World) -> None:
    upload = await opened(world, "/f")
    for number in (0, -1, bounds.PARTS_MAX + 1):
        arrived = await sent(world, "/f", b"x")
        assert await applied(world, Part(at("/f"), upload, number, arrived)) is Kind.BAD_REQUEST
    assert await applied(world, Part(at("/f"), NOBODYS, 1, await sent(world, "/f", b"x"))) is Kind.NOT_FOUND
    elsewhere = await sent(world, "/g", b"elsewhere")
    assert await applied(world, Part(at("/f"), upload, 1, elsewhere)) is Kind.BAD_REQUEST
    other = await opened(world, "/g")
    assert await applied(world, Part(at("/g"), upload, 1, await sent(world, "/g", b"x"))) is Kind.NOT_FOUND
    assert await applied(world, Part(at("/g"), other, 1, elsewhere)) != Kind.BAD_REQUEST
    assert await applied(world, Part(at("/g"), other, 2, elsewhere)) is Kind.BAD_REQUEST  # it is a part already
    for etag in ("0" * 31, "0" * 33, "g" * 32, "A" * 32, "0" * 32 + "\n"):
        wrong = Part(at("/f"), upload, 1, await sent(world, "/f", b"x"), etag=etag)
        assert await applied(world, wrong) is Kind.BAD_REQUEST
    (whole,) = await world.files.place(JOE, (Placing(at("/f"), 1, wanted=2),))
    assert isinstance(whole, Placed)
    whole_one = await world.arrive(whole, b"w")
    assert await applied(world, Part(at("/f"), upload, 1, whole_one)) is Kind.BAD_REQUEST
    assert (await world.files.parts(JOE, UploadParts(at("/f"), upload))).parts == ()


@played
async def test_an_upload_is_its_openers(world: World) -> None:
    await done(world, Set(at("/"), policy={EVE.dn: "+addEntry"}))
    upload = await opened(world, "/f")
    etag = await part(world, "/f", upload, 1, b"joe's")
    evil = await sent(world, "/f", b"eve's", EVE)
    assert await applied(world, Part(at("/f"), upload, 2, evil), EVE) is Kind.NOT_FOUND
    assert await applied(world, Part(at("/f"), upload, 2, evil)) is Kind.BAD_TICKET
    assert await applied(world, Seal(at("/f"), upload, ((1, etag),)), EVE) is Kind.NOT_FOUND
    assert await applied(world, Drop(at("/f"), upload), EVE) is Kind.DENIED
    with fails(Kind.DENIED):
        await world.files.parts(EVE, UploadParts(at("/f"), upload))
    hers = await opened(world, "/g", call=EVE)
    assert await applied(world, Drop(at("/g"), hers)) == Done()
    assert await listed(world) == [("f", upload)]


@played
async def test_it_may_be_sealed_for_another_name(world: World) -> None:
    upload = await opened(world, "/f")
    etag = await part(world, "/f", upload, 1, b"bytes")
    await done(world, Seal(at("/c/g"), upload, ((1, etag),), parents=True))
    assert await looked(world, "/f") is Kind.NOT_FOUND
    assert await shape(world, "/c/g") == [(0, 5, 0)]
    assert await listed(world) == []


@played
async def test_rights_are_decided_anew_when_it_is_sealed(world: World) -> None:
    await done(world, Set(at("/"), policy={EVE.dn: "+addEntry"}))
    upload = await opened(world, "/f", call=EVE)
    etag = (await done(world, Part(at("/f"), upload, 1, await sent(world, "/f", b"eve's", EVE)), EVE)).etag
    assert await applied(world, Open(at("/f"), at("/"))) != Kind.DENIED
    await done(world, Set(at("/"), policy={EVE.dn: None}))
    assert await applied(world, Open(at("/g"), at("/")), EVE) is Kind.DENIED
    assert await applied(world, Seal(at("/f"), upload, ((1, etag),)), EVE) is Kind.DENIED
    assert await looked(world, "/f") is Kind.NOT_FOUND


@played
async def test_an_upload_that_is_given_up_leaves_nothing(world: World) -> None:
    upload = await opened(world, "/f")
    etag = await part(world, "/f", upload, 1, b"bytes")
    assert await applied(world, Drop(at("/g"), upload)) is Kind.NOT_FOUND
    await done(world, Drop(at("/f"), upload))
    assert await applied(world, Drop(at("/f"), upload)) is Kind.NOT_FOUND
    assert await sealed(world, "/f", upload, (1, etag)) is Kind.NOT_FOUND
    assert await listed(world) == []
    assert await looked(world, "/f") is Kind.NOT_FOUND


@played
async def test_a_condition_is_judged_when_it_is_sealed_and_the_upload_stays(world: World) -> None:
    upload = await opened(world, "/f")
    etag = await part(world, "/f", upload, 1, b"bytes")
    await write(world, "/f", b"somebody was here first")
    assert await sealed(world, "/f", upload, (1, etag), when=When(absent=True)) is Kind.PRECONDITION
    assert (await there(world, "/f")).attributes.size == 23
    second = await part(world, "/f", upload, 2, b" more")
    assert isinstance(await sealed(world, "/f", upload, (1, etag), (2, second)), Done)
    assert (await there(world, "/f")).attributes.size == 10


@played
async def test_uploads_are_listed_by_key_and_then_by_their_opening(world: World) -> None:
    await collection(world, "/b")
    names = ("/b/k", "/b/a/z", "/b/k", "/b/k2", "/b/a")
    uploads = []
    for name in names:
        uploads.append((name[3:], await opened(world, name, "/b", parents=True)))
        await asyncio.sleep(0.002)
    order = sorted(uploads, key=lambda pair: listing_mark(*pair))
    assert [key for key, _ in order] == ["a", "a/z", "k", "k", "k2"]
    assert await listed(world, "/b") == order
    assert await listed(world) == []
    assert await listed(world, "/b", prefix="k") == order[2:]
    assert await listed(world, "/b", after="k" + AFTER_KEY) == order[4:]
    assert await listed(world, "/b", after=listing_mark(*order[2])) == order[3:]
    page = await world.files.uploads(JOE, Uploads(at("/b"), limit=2))
    assert [(each.key, each.upload) for each in page.uploads] == order[:2]
    assert all(each.owner == JOE.dn for each in page.uploads)
    assert await listed(world, "/b", after=page.after) == order[2:]
    with fails(Kind.DENIED):
        await world.files.uploads(EVE, Uploads(at("/b")))


@played
async def test_parts_are_listed_by_number_in_pages(world: World) -> None:
    upload = await opened(world, "/f")
    etags = {n: await part(world, "/f", upload, n, b"x" * n) for n in (30, 7, 12)}
    ask = UploadParts(at("/f"), upload, limit=2)
    first = await world.files.parts(JOE, ask)
    assert [(each.number, each.size, each.etag) for each in first.parts] == [(7, 7, etags[7]), (12, 12, etags[12])]
    second = await world.files.parts(JOE, replace(ask, after=first.after))
    assert ([each.number for each in second.parts], second.after) == ([30], 0)
    with fails(Kind.NOT_FOUND):
        await world.files.parts(JOE, UploadParts(at("/g"), upload))
    for wrong in ({"limit": -1}, {"after": -1}):
        with fails(Kind.BAD_REQUEST):
            await world.files.parts(JOE, UploadParts(at("/f"), upload, **wrong))


@played
async def test_an_upload_is_opened_where_it_can_be_listed_and_the_name_written(world: World) -> None:
    await collection(world, "/b")
    await collection(world, "/b/c")
    for place, within in (("/b/f", "/c"), ("/b", "/b"), ("/b/f", "/b/f"), ("/b/f", "/b/c")):
        assert await applied(world, Open(at(place), at(within))) is Kind.BAD_REQUEST
    assert await applied(world, Open(at("/b/c"), at("/b"))) is Kind.NOT_A_FILE
    assert await applied(world, Open(at("/b/x/y"), at("/b"))) is Kind.NO_PARENT
    assert await applied(world, Open(at("/b/f"), at("/b")), EVE) is Kind.DENIED
    many = {str(n): "v" for n in range(bounds.UPLOAD_USER_METADATA_MAX + 1)}
    assert await applied(world, Open(at("/b/f"), at("/b"), user=many)) is Kind.TOO_LARGE
    upload = await opened(world, "/b/x/y", "/b", parents=True)
    etag = await part(world, "/b/x/y", upload, 1, b"deep", parents=True)
    assert await sealed(world, "/b/x/y", upload, (1, etag)) is Kind.NO_PARENT
    assert isinstance(await sealed(world, "/b/x/y", upload, (1, etag), parents=True), Done)
    assert (await there(world, "/b/x/y")).attributes.size == 4


@played
async def test_parts_without_bytes_make_a_file_without_bytes(world: World) -> None:
    upload = await opened(world, "/f")
    etag = await part(world, "/f", upload, 1, b"")
    assert isinstance(await sealed(world, "/f", upload, (1, etag)), Done)
    seen = (await there(world, "/f")).attributes
    assert (seen.size, seen.etag) == (0, etag_of(b""))
    assert isinstance(await lay(world, "/f", (0, b"now")), Done)


@played
async def test_an_empty_collection_goes_with_the_uploads_it_lists(world: World) -> None:
    await done(world, Make(at("/b"), "collection"))
    upload = await opened(world, "/b/f", "/b")
    etag = await part(world, "/b/f", upload, 1, b"bytes")
    await done(world, Remove(at("/b"), Removing.COLLECTION))
    await done(world, Make(at("/b"), "collection"))
    assert await listed(world, "/b") == []
    assert await sealed(world, "/b/f", upload, (1, etag)) is Kind.NOT_FOUND


def test_a_token_reaches_uploads_below_its_path_and_no_others() -> None:
    async def scenario(world: World) -> None:
        await collection(world, "/b")
        upload, outside = await opened(world, "/b/f", "/b"), await opened(world, "/g")
        reads, adds = (structs.replace(JOE, scopes=(Scope(a, ("b",)),), via="link 1") for a in (READING, ADDING))
        assert await applied(world, Drop(at("/b/f"), upload), reads) is Kind.DENIED
        assert await applied(world, Drop(at("/g"), outside), adds) is Kind.DENIED
        assert await applied(world, Open(at("/g"), at("/"), 2), adds) is Kind.DENIED
        assert await applied(world, Open(at("/b/h"), at("/b"), 2), reads) is Kind.DENIED
        own = await opened(world, "/b/h", "/b", call=adds)
        etag = (await done(world, Part(at("/b/h"), own, 1, await sent(world, "/b/h", b"x", adds)), adds)).etag
        assert await applied(world, Seal(at("/b/h"), own, ((1, etag),)), reads) is Kind.DENIED
        await done(world, Seal(at("/b/h"), own, ((1, etag),)), adds)
        await done(world, Drop(at("/b/f"), upload), adds)
        assert await listed(world) == [("g", outside)]

    run_virtual(on_service(scenario))  # type: ignore[arg-type]


@played
async def test_an_upload_outlives_the_last_key_beside_it(world: World) -> None:
    """Its collection, which was only a part of that key, took all its parts along."""
    await write(world, "/a/b/key", parents=True)
    upload = await opened(world, "/a/b/large", "/a/b")
    etag = await part(world, "/a/b/large", upload, 1, b"part")
    await done(world, Remove(at("/a/b/key"), Removing.KEY))
    assert await listed(world, "/a/b") == [("large", upload)]
    assert isinstance(await sealed(world, "/a/b/large", upload, (1, etag)), Done)
    await done(world, Remove(at("/a/b/large"), Removing.KEY))
    assert await looked(world, "/a") is Kind.NOT_FOUND


@played
async def test_a_refused_move_over_a_collection_leaves_its_uploads(world: World) -> None:
    await collection(world, "/d")
    await write(world, "/f")
    upload = await opened(world, "/d/large", "/d")
    assert await applied(world, Move(at("/f"), at("/d"), Over.REPLACE)) is Kind.NOT_A_FILE
    assert await listed(world, "/d") == [("large", upload)]


def test_who_loses_the_right_to_a_collection_meanwhile_leaves_its_uploads() -> None:
    async def scenario(world: World) -> None:
        assert isinstance(world, ServiceWorld)
        for name in ("/d", "/e"):
            await collection(world, name)
        upload = await opened(world, "/d/large", "/d")

        async def revoked() -> None:
            await done(world, Set(at("/d"), policy={EVE.dn: None}))

        await done(world, Set(at("/"), policy={EVE.dn: "+addEntry"}))
        await done(world, Set(at("/e"), policy={EVE.dn: "+delete"}))
        for op, change in (("unlink", Remove(at("/d"))), ("move", Move(at("/e"), at("/d"), Over.REPLACE))):
            await done(world, Set(at("/d"), policy={EVE.dn: "+delete"}))
            world.stage.between.before[op] = revoked
            assert await applied(world, change, EVE) is Kind.DENIED
            assert await listed(world, "/d") == [("large", upload)]

    run_virtual(on_service(scenario))  # type: ignore[arg-type]


def test_who_looks_at_a_file_that_is_replaced_meanwhile_sees_the_other() -> None:
    """The answer was that there is none, though its name led to a file all the time."""

    async def scenario(world: World) -> None:
        assert isinstance(world, ServiceWorld)
        upload = await opened(world, "/f")
        order = [(n, await part(world, "/f", upload, n, b"part")) for n in (1, 2)]
        await done(world, Seal(at("/f"), upload, tuple(order)))
        await write(world, "/g", b"other")

        async def replaced() -> None:
            await done(world, Move(at("/g"), at("/f"), Over.REPLACE))

        world.stage.between.before["extents"] = replaced
        assert (await there(world, "/f", Want.EXTENTS | Want.SOURCES)).attributes.size == len(b"other")

    run_virtual(on_service(scenario))  # type: ignore[arg-type]


@played
async def test_uploads_in_collections_closed_to_the_caller_are_not_listed(world: World) -> None:
    """Their keys were, though a listing of the collection shows nothing below those."""
    for name in ("/b", "/b/open", "/b/closed"):
        await collection(world, name)
    for name in ("/b", "/b/open"):
        await done(world, Set(at(name), policy={EVE.dn: "+read +addEntry"}))
    for name in ("/b/closed/f", "/b/closed/new/f", "/b/f", "/b/new/f", "/b/open/f"):
        await done(world, Open(at(name), at("/b"), parents=True))
    await done(world, Open(at("/b/hers/f"), at("/b"), parents=True), EVE)
    await collection(world, "/b/hers")

    every = ["closed/f", "closed/new/f", "f", "hers/f", "new/f", "open/f"]
    assert [key for key, _ in await listed(world, "/b")] == every
    assert [key for key, _ in await listed(world, "/b", EVE)] == every[2:]


@played
async def test_a_page_of_uploads_goes_on_without_a_word_of_hidden_ones(world: World) -> None:
    """It went on from the mark of the last one, hidden or not, which has its key: pages of one told all of them."""
    for name in ("/b", "/b/closed"):
        await collection(world, name)
    await done(world, Set(at("/b"), policy={EVE.dn: "+read"}))
    for name in ("/b/a", "/b/closed/f", "/b/closed/g", "/b/z"):
        await opened(world, name, "/b")
    found, after = list[str](), ""
    for _ in range(3):
        page = await world.files.uploads(EVE, Uploads(at("/b"), after=after, limit=1))
        assert "closed" not in page.after
        found, after = [*found, *(each.key for each in page.uploads)], page.after
        if not after:
            break
    assert found == ["a", "z"]


@played
async def test_a_page_of_uploads_counts_no_hidden_ones(world: World) -> None:
    """It was shorter by them: by marks of his own making somebody found out their keys, letter by letter."""
    for name in ("/b", "/b/closed"):
        await collection(world, name)
    await done(world, Set(at("/b"), policy={EVE.dn: "+read"}))
    for name in ("/b/closed/f", "/b/closed/g", "/b/d", "/b/e", "/b/f"):
        await opened(world, name, "/b")
    for after in ("", "closed/e", "closed/f", "closed/ff", "closed/h"):
        page = await world.files.uploads(EVE, Uploads(at("/b"), after=after, limit=2))
        assert [each.key for each in page.uploads] == ["d", "e"], after
    page = await world.files.uploads(EVE, Uploads(at("/b"), prefix="", after=page.after, limit=1))
    assert ([each.key for each in page.uploads], page.after) == (["f"], "")


@played
async def test_uploads_of_strangers_in_a_closed_collection_are_not_listed_to_strangers(world: World) -> None:
    """Each took all for his own: the names in a drop box were told, and the ids by which uploads are changed."""
    for name, actions in (("/b", "+read"), ("/b/box", "+addEntry")):
        await collection(world, name)
        await done(world, Set(at(name), policy={"ALL": actions}))
    upload = await opened(world, "/b/box/f", "/b", NOBODY)
    assert await listed(world, "/b", NOBODY) == []
    assert await listed(world, "/b") == [("box/f", upload)]
