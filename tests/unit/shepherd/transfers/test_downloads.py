"""GET: the right to read under each ticket, and the consequences of a damaged replica."""

from typing import Any

import pytest
from awscrt import checksums as crt

from chelonia.core import bounds
from chelonia.core.cluster.replicas import Checksums
from chelonia.core.contents.extents import ByteRange
from chelonia.core.errors import Kind
from chelonia.core.ids import ReferenceId
from chelonia.core.ports.shepherd import GetRequest, Turl, TurlOutcome
from chelonia.shepherd.store.checksums import Hasher
from chelonia.wire import tickets
from tests.sim.virtual_loop import virtual
from tests.support.failing import fails, kind_of
from tests.support.shepherd import BARTENDER, EVE, JOE, World, checksums, numbered, read_all, served
from tests.support.turls import parse_turl

DATA = b"the quick brown fox" * 1000


async def ask(world: World, reference: ReferenceId, **how: Any) -> TurlOutcome:
    (outcome,) = await world.service.get(BARTENDER, (GetRequest("r", reference, ("http",), **how),))
    return outcome


async def ticket_of(world: World, reference: ReferenceId, **how: Any) -> Turl:
    return parse_turl((await ask(world, reference, **how)).turl)


@served
async def test_a_live_replica_is_offered_with_its_checksum_and_read(world: World) -> None:
    reference = await world.store(DATA)
    outcome = await ask(world, reference)
    assert (outcome.checksum_type, outcome.checksum) == ("md5", checksums(DATA).md5)
    assert await read_all(world, parse_turl(outcome.turl)) == DATA


@served
async def test_all_checksums_are_told_that_were_measured_as_far_as_the_record_can_be_read(world: World) -> None:
    reference = await world.store(DATA)
    download = await world.service.open(JOE, await ticket_of(world, reference))
    told = await download.reader.checksums()
    assert told.crc64nvme == f"{crt.crc64nvme(DATA):016x}"
    assert not told.conflicts(checksums(DATA))
    assert told.sha256 == checksums(DATA).sha256
    world.blobs.damage_record(reference)
    assert await download.reader.checksums() == download.checksums


@served
async def test_offers_are_refused_in_the_originals_words(world: World) -> None:
    reference = await world.store(DATA)
    (wrong,) = await world.service.get(BARTENDER, (GetRequest("r", reference, ("byteio",)),))
    assert wrong.error == "no supported protocol found"
    unknown = await ask(world, ReferenceId(numbered("c", 9)))
    assert (unknown.error, unknown.kind) == ("file is not alive", "not-alive")
    assert await kind_of(world.service.get(JOE, ())) is Kind.DENIED


@served
async def test_a_bound_ticket_reads_any_ranges_until_it_expires_and_survives_a_restart(world: World) -> None:
    ticket = await ticket_of(world, await world.store(DATA), dn=JOE.dn, lifetime_ms=5000)
    assert await read_all(world, ticket) == DATA
    await world.restart()
    download = await world.service.open(JOE, ticket)
    assert not download.single_use
    assert b"".join([c async for c in download.reader.read(ByteRange(4, 5))]) == DATA[4:9]
    assert await kind_of(world.service.open(EVE, ticket)) is Kind.BAD_TICKET
    await world.pass_ms(5000)
    assert await kind_of(world.service.open(JOE, ticket)) is Kind.EXPIRED


@served
async def test_a_ticket_of_nobody_that_is_asked_for_so_reads_ranges_as_well(world: World) -> None:
    ticket = await ticket_of(world, await world.store(DATA), ranges=True, lifetime_ms=5000)
    for caller in (EVE, JOE):
        download = await world.service.open(caller, ticket)
        assert not download.single_use
        assert b"".join([c async for c in download.reader.read(ByteRange(4, 5))]) == DATA[4:9]
    await world.restart()
    assert await read_all(world, ticket) == DATA
    await world.pass_ms(5000)
    assert await kind_of(world.service.open(JOE, ticket)) is Kind.EXPIRED


@served
@pytest.mark.parametrize("how", [{"dn": JOE.dn}, {}])
async def test_a_ticket_for_some_bytes_gives_no_others_and_no_word_of_them(world: World, how: dict[str, Any]) -> None:
    """Bytes that a file no longer has are still in its blob."""
    reference = await world.store(DATA)
    spans = (ByteRange(0, 10), ByteRange(12, 5))
    ticket = await ticket_of(world, reference, spans=spans, lifetime_ms=5000, **how)
    download = await world.service.open(JOE, ticket)
    assert (download.spans, download.single_use, download.size) == (spans, False, len(DATA))
    assert download.checksums == await download.reader.checksums() == Checksums()
    for span in (*spans, ByteRange(3, 7), ByteRange(16, 1)):
        assert b"".join([c async for c in download.reader.read(span)]) == DATA[span.offset : span.end]
    for span in (ByteRange(9, 2), ByteRange(10, 1), ByteRange(0, 17), ByteRange(17, 1), ByteRange(0, len(DATA))):
        with fails(Kind.BAD_TICKET):
            await anext(aiter(download.reader.read(span)))
    await world.restart()
    assert (await world.service.open(JOE, ticket)).spans == spans


@served
async def test_a_ticket_for_all_bytes_is_like_any(world: World) -> None:
    reference = await world.store(DATA)
    download = await world.service.open(JOE, await ticket_of(world, reference, spans=(ByteRange(0, len(DATA)),)))
    assert (download.spans, download.single_use, download.checksums) == ((), True, checksums(DATA))


@served
async def test_a_ticket_is_checked_once_for_each_request(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    ticket = await ticket_of(world, await world.store(DATA), dn=JOE.dn)
    sign, signed = tickets._mac, list[bytes]()

    def counted(secret: bytes, signing: bytes) -> bytes:
        signed.append(signing)
        return sign(secret, signing)

    monkeypatch.setattr(tickets, "_mac", counted)
    assert await read_all(world, ticket) == DATA
    assert len(signed) == 1


@served
async def test_an_unbound_ticket_is_good_for_one_full_body(world: World) -> None:
    reference = await world.store(DATA)
    ticket = await ticket_of(world, reference)
    download = await world.service.open(EVE, ticket)
    assert download.single_use
    assert await kind_of(world.service.open(JOE, ticket)) is Kind.ALREADY_DONE
    await download.reader.close(complete=False)
    assert await read_all(world, ticket) == DATA
    await world.service.tidy()
    assert await kind_of(world.service.open(JOE, ticket)) is Kind.ALREADY_DONE
    other = await ticket_of(world, reference)
    await world.restart()
    assert await kind_of(world.service.open(JOE, other)) is Kind.BAD_TICKET


@served
async def test_a_range_beyond_the_end_is_refused(world: World) -> None:
    download = await world.service.open(JOE, await ticket_of(world, await world.store(DATA)))
    with fails(Kind.BAD_RANGE):
        await anext(aiter(download.reader.read(ByteRange(len(DATA), 1))))


@pytest.mark.expect_log("replica is invalid")
@virtual
async def test_a_truncated_replica_is_not_alive_and_checked_at_once() -> None:
    world = await World(scrub_period_ms=10**9).start(run=True)
    reference = await world.store(DATA)
    ticket = await ticket_of(world, reference, dn=JOE.dn)
    world.blobs.truncate(reference, 100)
    assert await kind_of(read_all(world, ticket)) is Kind.NOT_ALIVE
    await world.pass_ms(100)
    assert await world.state_of(reference) == "invalid"
    assert (reference, "invalid") in world.librarian.states()
    assert (await ask(world, reference)).error == "file is not alive"
    assert await kind_of(world.service.open(JOE, ticket)) is Kind.NOT_ALIVE


BLOCK = bounds.CHECKED_BLOCK_BYTES
LARGE = bytes(range(251)) * (21 * BLOCK // 251)
"""Twenty blocks and a part of one: more than one chunk."""


async def part(world: World, turl: Turl, offset: int, length: int) -> bytes:
    download = await world.service.open(JOE, turl)
    return b"".join([chunk async for chunk in download.reader.read(ByteRange(offset, length))])


@served
async def test_any_part_of_a_replica_is_what_was_stored(world: World) -> None:
    turl = await ticket_of(world, await world.store(LARGE), dn=JOE.dn)
    ends = (0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 16 * BLOCK - 1, 16 * BLOCK, 16 * BLOCK + 1, len(LARGE) - 1, len(LARGE))
    for start in ends:
        for end in ends:
            if start <= end:
                assert await part(world, turl, start, end - start) == LARGE[start:end], (start, end)


@pytest.mark.expect_log("replica is invalid")
@virtual
async def test_no_byte_of_a_block_that_has_rotted_leaves_and_the_replica_is_checked_at_once() -> None:
    world = await World(scrub_period_ms=10**9).start(run=True)
    reference = await world.store(LARGE)
    turl = await ticket_of(world, reference, dn=JOE.dn)
    await part(world, turl, 0, 1)  # the CRCs are known from here on
    world.blobs.flip(reference, 17 * BLOCK + 5)
    assert await part(world, turl, 0, 17 * BLOCK) == LARGE[: 17 * BLOCK]
    assert await part(world, turl, 18 * BLOCK, 10) == LARGE[18 * BLOCK :][:10]
    assert await kind_of(part(world, turl, 17 * BLOCK, 1)) is Kind.NOT_ALIVE
    assert await kind_of(part(world, turl, 0, len(LARGE))) is Kind.NOT_ALIVE
    await world.pass_ms(100)
    assert await world.state_of(reference) == "invalid"


@virtual
async def test_a_replica_whose_record_tells_no_crcs_is_read_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Older software did not store them; the scrub compares the whole of it."""
    monkeypatch.setattr(Hasher, "blocks", lambda _: b"")
    world = await World(scrub_period_ms=10**9).start()
    turl = await ticket_of(world, await world.store(LARGE), dn=JOE.dn)
    assert await part(world, turl, 3, 2 * BLOCK) == LARGE[3:][: 2 * BLOCK]


@pytest.mark.expect_log("replica is invalid")
@virtual
async def test_no_byte_of_a_replica_without_a_readable_record_leaves_and_it_is_checked_at_once() -> None:
    """A disk that loses the record may have lost bytes beside it, and nothing here can tell."""
    world = await World(scrub_period_ms=10**9).start(run=True)
    reference = await world.store(LARGE)
    turl = await ticket_of(world, reference, dn=JOE.dn)
    world.blobs.damage_record(reference)
    world.blobs.flip(reference, 5)
    assert await kind_of(part(world, turl, 0, len(LARGE))) is Kind.NOT_ALIVE
    await world.pass_ms(100)
    assert await world.state_of(reference) == "invalid"


@pytest.mark.expect_log("replica is invalid")
@virtual
async def test_crcs_that_could_not_be_read_once_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await World(scrub_period_ms=10**9).start(run=True)
    reference = await world.store(LARGE)
    turl = await ticket_of(world, reference, dn=JOE.dn)

    async def unreadable(_: ReferenceId) -> bytes:
        return b""

    with monkeypatch.context() as patch:
        patch.setattr(world.blobs, "blocks", unreadable)
        assert await part(world, turl, 0, 1) == LARGE[:1]
    world.blobs.flip(reference, 5)
    assert await kind_of(part(world, turl, 0, 1)) is Kind.NOT_ALIVE


@virtual
async def test_crcs_of_what_was_read_last_are_kept_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "BLOCK_CRCS_KEPT_BYTES", 3 * (4 * 21 + 36))
    world = await World().start()
    turls = [await ticket_of(world, await world.store(LARGE, number), dn=JOE.dn) for number in range(1, 5)]
    asked, read = list[ReferenceId](), world.blobs.blocks

    async def blocks(reference: ReferenceId) -> bytes:
        asked.append(reference)
        return await read(reference)

    monkeypatch.setattr(world.blobs, "blocks", blocks)
    one, two, three, four = turls
    for turl in (one, two, three, one, two, three, four, three, two, one):
        assert await part(world, turl, BLOCK, 1) == LARGE[BLOCK:][:1]
    assert asked == [turl.reference for turl in (one, two, three, four, one)]
