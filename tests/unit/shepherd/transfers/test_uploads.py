"""PUT: offers, refusals and their reasons, the effects of the last byte, and the remains of a failure."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec import structs

from chelonia.core import bounds
from chelonia.core.bounds import CHUNK_BYTES
from chelonia.core.caller import Call
from chelonia.core.cluster.replicas import Checksums
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ReferenceId
from chelonia.core.ports.librarian import Arriving
from chelonia.core.ports.shepherd import Authority, Purpose, Upload, Uploaded
from chelonia.core.values import replace
from chelonia.shepherd.transfers import uploads
from tests.sim.virtual_loop import virtual
from tests.support.failing import fails, kind_of
from tests.support.shepherd import (
    EVE,
    JOE,
    LIBRARIAN,
    World,
    broken_body,
    checksums,
    numbered,
    request,
    served,
    two,
)
from tests.support.turls import parse_turl

DATA = bytes(range(256)) * 1000
LARGE = bytes(range(256)) * (CHUNK_BYTES * 3 // 256) + b"tail"
CLAIMED = ReferenceId(numbered("c", 1))


async def peer_turl(peer: World, data: bytes, **how: Any) -> str:
    return (await peer.put(request(data, **how))).turl


# --- offers --------------------------------------------------------------------------------------------------------


@served
async def test_a_put_is_answered_with_a_turl_and_reserves_its_space(world: World) -> None:
    world.blobs.capacity = 1000
    first = await world.put(request(b"x" * 600, 1))
    assert (first.error, first.protocol) == ("", "http")
    assert first.turl.startswith(f"https://s1:6000/turl/{first.reference}?ticket=")
    second = await world.put(request(b"x" * 600, 2))
    assert (second.error, second.kind) == ("not enough space", "no-space")
    assert (await world.put(request(b"x" * 400, 3))).error == ""


@served
async def test_a_full_disk_refuses_without_going_through_what_is_promised(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 18 000 uploads open each refusal cost 29 ms, in which no other request was served."""
    world.blobs.capacity = 1000
    assert (await world.put(request(b"x" * 900, 1))).error == ""
    world.blobs.capacity = 500
    monkeypatch.setattr(uploads, "make_room", None)
    assert (await world.put(request(b"x" * 501, 2))).error == "not enough space"
    assert "space_promised" not in world.limits.reached, "it is the disk, and no limit"


@served
async def test_a_repair_copy_takes_the_place_that_an_upload_of_the_same_file_has_not_begun_to_use(world: World) -> None:
    """A Bartender reserves more places than the upload uses; on a nearly full disk the file's third copy finds room."""
    world.blobs.capacity = 1000
    assert (await world.put(request(b"x" * 600, 1))).error == ""
    assert (await world.put(request(b"x" * 600, 2))).error == "not enough space"
    copy = await world.put(request(b"x" * 600, 1, reference=CLAIMED))
    assert copy.error == ""
    assert (await world.send(parse_turl(copy.turl), b"x" * 600)).complete


@served
async def test_an_upload_that_does_not_begin_loses_its_space_but_not_its_ticket(world: World) -> None:
    world.blobs.capacity = 1000
    idle = await world.put(request(b"x" * 600, 1))
    await world.pass_ms(world.settings.reserve_ms + 1)
    assert (await world.put(request(b"x" * 600, 2))).error == ""
    assert (await world.send(parse_turl(idle.turl), b"x" * 600)).complete


@served
async def test_one_user_does_not_reserve_all_space_without_a_byte(world: World) -> None:
    """25 `startPut` did so, for as long as they were repeated."""
    world.blobs.capacity = 100_000
    for number in range(1, 26):
        await world.put(request(b"", number, size=60_000 // number, owner=EVE.dn))
    for number in range(31, 43):
        assert (await world.put(request(b"y" * 1000, number))).error == "", number
    assert world.limits.reached["promises_ended"] >= 1
    greedy = await world.put(request(b"", 50, size=99_000, owner=EVE.dn))
    assert greedy.error == "not enough space", "what others have asked for stays"
    assert (await world.put(request(b"", 51, size=99_000, reference=CLAIMED))).error == "", "but for healing"


@served
async def test_a_trickle_keeps_half_of_what_is_free_at_most(world: World) -> None:
    world.blobs.capacity = 10_000
    ticket = await world.ticket(request(b"", 1, size=9_000, owner=EVE.dn))
    release = asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b"x"
        await release.wait()

    sending = asyncio.ensure_future(world.service.receive(JOE, Upload(ticket, slow(), 9_000)))
    await world.pass_ms(100)
    assert (await world.put(request(b"y" * 4000, 2))).error == ""
    assert (await world.put(request(b"y" * 4000, 3, owner=EVE.dn))).error == ""
    sending.cancel()
    await asyncio.wait((sending,))


@virtual
async def test_an_owner_has_so_many_uploads_under_way_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "UPLOADS_OPEN_PER_OWNER_MAX", 3)
    world = await World().start()
    release = asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield DATA[:1]
        await release.wait()

    tickets = [await world.ticket(request(DATA, number, owner=EVE.dn)) for number in range(3)]
    sending = [
        asyncio.ensure_future(world.service.receive(JOE, Upload(ticket, slow(), len(DATA)))) for ticket in tickets
    ]
    await world.pass_ms(100)
    assert (await world.put(request(DATA, 8, owner=EVE.dn))).kind == "unavailable"
    assert (await world.put(request(DATA, 9))).error == ""
    assert (await world.put(request(DATA, 10, owner=EVE.dn, reference=CLAIMED))).error == "", "healing is nobody's own"
    assert world.limits.reached == {"uploads_open_per_owner": 1}
    for each in sending:
        each.cancel()
    await asyncio.wait(sending)


@virtual
async def test_uploads_that_nobody_begins_shut_their_owner_out_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each upload reserves a place at a Shepherd, which it mostly does not need: an hour's places must not fill the
    table."""
    monkeypatch.setattr(bounds, "UPLOADS_OPEN_PER_OWNER_MAX", 3)
    world = await World().start()
    others = await world.ticket(request(DATA, 99, owner=EVE.dn))
    tickets = []
    for number in range(20):
        tickets.append(await world.ticket(request(DATA, number)))
        await world.store(DATA, 100 + number)
    assert not world.limits.reached
    for ticket in (others, *tickets[-4:]):
        assert (await world.send(ticket, DATA)).complete, "the latest can still be begun, and those of others"
    with pytest.raises(CheloniaError, match="ask for a new TURL"):
        await world.send(tickets[0], DATA)


@virtual
async def test_uploads_whose_bytes_are_wrong_are_forgotten_as_those_that_nobody_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounds, "UPLOADS_OPEN_PER_OWNER_MAX", 3)
    world = await World().start()
    tickets = [await world.ticket(request(DATA, number)) for number in range(3)]
    for number in range(3, 10):
        tickets.append(await world.ticket(request(DATA, number)))
        assert await kind_of(world.send(tickets[-1], DATA[:-1] + b"!")) is Kind.CHECKSUM
    with pytest.raises(CheloniaError, match="ask for a new TURL"):
        await world.send(tickets[4], DATA)
    assert (await world.send(tickets[-1], DATA)).complete


@virtual
async def test_a_claimed_copy_that_is_asked_for_again_needs_no_further_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "UPLOADS_OPEN_MAX", 1)
    world = await World().start()
    assert (await world.put(request(DATA, reference=CLAIMED))).error == ""
    assert (await world.put(request(DATA, 2))).error == "too many uploads are open"
    assert (await world.put(request(DATA, reference=CLAIMED))).error == ""


@served
async def test_an_upload_of_which_nothing_is_left_begins_anew_and_waits_as_one_that_has_not_begun(world: World) -> None:
    world.blobs.capacity = 1000
    ticket = await world.ticket(request(b"x" * 900, 1))
    await kind_of(world.service.receive(JOE, Upload(ticket, broken_body(b"x" * 10), 900)))
    await world.blobs.erase(ticket.reference)
    assert await kind_of(world.send(ticket, b"x" * 890, offset=10, total=900)) is Kind.BAD_RANGE
    assert (await world.put(request(b"x" * 600, 2))).error == "", "no space is kept for it"
    assert await world.service.offset(JOE, ticket) == 0


@served
async def test_the_space_of_bytes_that_have_come_is_kept_once(world: World) -> None:
    """Else a large upload that is nearly here would have others refused for twice its size."""
    world.blobs.capacity = 10 * CHUNK_BYTES
    ticket = await world.ticket(request(b"", 1, size=6 * CHUNK_BYTES))
    release = asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b"x" * 5 * CHUNK_BYTES
        await release.wait()

    sending = asyncio.ensure_future(world.service.receive(JOE, Upload(ticket, slow(), 6 * CHUNK_BYTES)))
    await world.pass_ms(100)
    assert (await world.put(request(b"", 2, size=4 * CHUNK_BYTES + 1))).error == "not enough space"
    assert (await world.put(request(b"", 3, size=3 * CHUNK_BYTES))).error == ""
    sending.cancel()
    await asyncio.wait((sending,))


@served
async def test_reserved_space_is_free_again_when_the_ticket_expires(world: World) -> None:
    world.blobs.capacity = 1000
    await world.put(request(b"x" * 600, 1, lifetime_ms=5000))
    await world.pass_ms(5001)
    await world.service.tidy()
    assert (await world.put(request(b"x" * 600, 2))).error == ""


@virtual
async def test_of_complete_uploads_only_the_last_are_remembered() -> None:
    """A busy hour would fill the memory. The ticket of so late a repeat is invalid, and its client starts anew."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounds, "UPLOADS_REMEMBERED_MAX", 3)
        world = await World().start()
        open_ticket = await world.ticket(request(DATA, 9))
        given = [await world.ticket(request(DATA, number)) for number in range(1, 6)]
        answers = [await world.send(ticket, DATA) for ticket in given]
        for ticket in given[:2]:
            assert await kind_of(world.send(ticket, DATA)) is Kind.BAD_TICKET
            assert await kind_of(world.service.offset(JOE, ticket)) is Kind.BAD_TICKET
        assert [await world.send(ticket, DATA) for ticket in given[2:]] == answers[2:]
        assert (await world.send(open_ticket, DATA)).complete


@served
async def test_offers_are_refused_in_the_originals_words(world: World) -> None:
    assert (await world.put(request(DATA, protocols=("gridftp",)))).error == "no supported protocol found"
    await world.store(DATA, 1)
    again = await world.put(request(DATA, 1))
    assert (again.error, again.kind) == ("already have this file", "exists")
    assert (await world.put(request(DATA, 2))).error == ""


@served
async def test_a_claimed_reference_is_used_and_its_upload_can_be_offered_again(world: World) -> None:
    first = await world.put(request(DATA, reference=CLAIMED))
    second = await world.put(request(DATA, reference=CLAIMED))
    assert first.reference == second.reference == CLAIMED
    old, new = (parse_turl(outcome.turl) for outcome in (first, second))
    assert await kind_of(world.send(old, DATA)) is Kind.BAD_TICKET
    assert (await world.send(new, DATA)).complete


@served
async def test_only_bartenders_and_librarians_may_ask(world: World) -> None:
    assert await kind_of(world.service.put(JOE, (request(DATA),))) is Kind.DENIED


# --- tickets -------------------------------------------------------------------------------------------------------


@served
async def test_tickets_are_refused_when_altered_expired_or_in_other_hands(world: World) -> None:
    ticket = await world.ticket(request(DATA, dn=JOE.dn, lifetime_ms=1000))
    bound = await world.ticket(request(DATA, 2, address=JOE.address))
    text, middle = ticket.ticket, len(ticket.ticket) // 2
    altered = text[:middle] + ("A" if text[middle] != "A" else "B") + text[middle + 1 :]
    assert await kind_of(world.send(replace(ticket, ticket=altered), DATA)) is Kind.BAD_TICKET
    assert await kind_of(world.send(replace(ticket, ticket=""), DATA)) is Kind.BAD_TICKET
    for path in ("", "a/b", bound.reference):
        assert await kind_of(world.send(replace(ticket, reference=ReferenceId(path)), DATA)) is Kind.BAD_TICKET
    assert await kind_of(world.send(ticket, DATA, EVE)) is Kind.BAD_TICKET
    assert await kind_of(world.send(bound, DATA, structs.replace(JOE, address="10.9.9.9"))) is Kind.BAD_TICKET
    assert await kind_of(world.service.open(JOE, ticket)) is Kind.BAD_TICKET
    await world.pass_ms(1000)
    assert await kind_of(world.send(ticket, DATA)) is Kind.EXPIRED
    assert world.blobs.references() == ()
    assert (await world.send(bound, DATA)).complete


@virtual
async def test_another_shepherds_ticket_is_refused() -> None:
    first, second = await World("s1").start(), await World("s2").start()
    assert await kind_of(second.send(await first.ticket(request(DATA)), DATA)) is Kind.BAD_TICKET


@served
async def test_after_a_restart_an_old_put_ticket_says_to_ask_for_a_new_one(world: World) -> None:
    ticket = await world.ticket(request(DATA))
    await world.restart()
    with fails(Kind.BAD_TICKET, match="ask for a new TURL"):
        await world.send(ticket, DATA)


# --- bytes ---------------------------------------------------------------------------------------------------------


@virtual
async def test_md5_is_measured_where_it_is_known() -> None:
    world, known = await World().start(), Checksums(md5=checksums(DATA).md5)
    ticket = await world.ticket(request(DATA, checksums=known))
    assert (await world.send(ticket, DATA)).checksums == checksums(DATA)
    second = await world.ticket(request(DATA, 2, checksums=Checksums()))
    assert (await world.send(second, DATA, announced=known)).checksums == checksums(DATA)


@virtual
async def test_a_repair_copy_is_compared_by_its_sha256_and_takes_over_an_md5_that_nobody_measures_again() -> None:
    world, told = await World().start(), replace(checksums(DATA), md5="0" * 32)
    ticket = await world.ticket(request(DATA, reference=CLAIMED, checksums=told))
    assert (await world.send(ticket, DATA)).checksums == told
    others = await world.ticket(request(DATA, 2, reference=ReferenceId(numbered("c", 2)), checksums=told))
    assert await kind_of(world.send(others, DATA[::-1])) is Kind.CHECKSUM
    upload = await world.ticket(request(DATA, 3, checksums=told))
    assert await kind_of(world.send(upload, DATA)) is Kind.CHECKSUM, "what a user announces is measured"


@served
async def test_a_replica_is_stored_with_its_checksums_and_a_receipt(world: World) -> None:
    ticket = await world.ticket(request(LARGE, size=-1, checksums=Checksums()))
    done = await world.send(ticket, LARGE, length=-1)
    assert done.complete
    assert done.checksums == replace(checksums(LARGE), md5="")
    (reference,) = world.blobs.references()
    assert world.blobs.data(reference) == LARGE
    (receipt,) = done.receipts
    assert (receipt.size, receipt.checksums, receipt.location.reference) == (len(LARGE), done.checksums, reference)
    assert receipt.signature.startswith("s1:")
    assert await world.state_of(reference) == "alive"


@served
async def test_an_empty_file_is_stored(world: World) -> None:
    done = await world.send(await world.ticket(request(b"")), b"")
    assert done.complete
    assert done.checksums == checksums(b"")


@served
async def test_a_wrong_checksum_leaves_nothing_and_the_ticket_can_be_used_again(world: World) -> None:
    ticket = await world.ticket(request(DATA))
    assert await kind_of(world.send(ticket, DATA[:-1] + b"!")) is Kind.CHECKSUM
    assert world.blobs.used_bytes() == 0
    assert (await world.send(ticket, DATA)).complete


@served
async def test_the_senders_own_checksum_counts_as_well(world: World) -> None:
    ticket = await world.ticket(request(DATA, checksums=Checksums()))
    for name, digits in (("md5", 32), ("crc32c", 8), ("crc64nvme", 16)):
        wrong = Checksums(**{name: "0" * digits})
        with fails(Kind.CHECKSUM, match=f"{name} of what arrived"):
            await world.send(ticket, DATA, announced=wrong)
    assert world.blobs.used_bytes() == 0
    assert (await world.send(ticket, DATA, announced=Checksums(md5=checksums(DATA).md5))).complete


@pytest.mark.parametrize("how", [{}, {"length": -1}, {"length": -1, "total": len(DATA) + 1}])
@served
async def test_too_many_bytes_are_refused_and_nothing_is_kept(world: World, how: dict[str, Any]) -> None:
    ticket = await world.ticket(request(DATA, checksums=Checksums()))
    assert await kind_of(world.send(ticket, DATA + b"x", **how)) is Kind.TOO_LARGE
    assert world.blobs.used_bytes() == 0
    assert await world.service.offset(JOE, ticket) == 0


@served
async def test_a_body_shorter_than_announced_is_kept_and_resumed(world: World) -> None:
    ticket = await world.ticket(request(DATA))
    assert await kind_of(world.send(ticket, DATA[:1000], length=len(DATA))) is Kind.INCOMPLETE
    assert await world.service.offset(JOE, ticket) == 1000
    assert await kind_of(world.send(ticket, DATA[900:], offset=900)) is Kind.BAD_RANGE
    done = await world.send(ticket, DATA[1000:], offset=1000, total=len(DATA))
    assert done.complete
    assert done.checksums == checksums(DATA)
    assert await world.service.offset(JOE, ticket) == -1


@served
async def test_a_broken_connection_keeps_what_came(world: World) -> None:
    ticket = await world.ticket(request(DATA))
    upload = Upload(ticket, broken_body(DATA[:500]), len(DATA))
    assert await kind_of(world.service.receive(JOE, upload)) is Kind.NETWORK
    assert await world.service.offset(JOE, ticket) == 500
    assert (await world.send(ticket, DATA)).complete, "an upload may also start again from the beginning"


@served
async def test_parts_may_be_sent_one_after_the_other(world: World) -> None:
    ticket = await world.ticket(request(DATA, size=-1, checksums=Checksums()))
    part = await world.send(ticket, DATA[:600], total=len(DATA))
    assert (part.complete, part.offset) == (False, 600)
    whole = await world.send(ticket, DATA[600:], offset=600, total=len(DATA))
    assert whole.checksums.sha256 == checksums(DATA).sha256


@served
async def test_two_bodies_on_one_ticket_are_a_conflict(world: World) -> None:
    ticket = await world.ticket(request(DATA))
    gate = asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield DATA[:10]
        await gate.wait()
        yield DATA[10:]

    first = asyncio.ensure_future(world.service.receive(JOE, Upload(ticket, slow(), len(DATA))))
    await world.pass_ms(10)
    assert await kind_of(world.send(ticket, DATA)) is Kind.CONFLICT
    gate.set()
    assert (await first).complete


@served
async def test_a_full_disk_refuses_and_leaks_nothing(world: World) -> None:
    ticket = await world.ticket(request(DATA, size=-1))
    world.blobs.capacity = 1000
    assert await kind_of(world.send(ticket, DATA)) is Kind.NO_SPACE
    assert world.blobs.used_bytes() == 0
    world.blobs.capacity = 1 << 30
    assert (await world.send(ticket, DATA)).complete


# --- after the last byte -------------------------------------------------------------------------------------------


@served
async def test_a_pending_upload_is_committed_under_its_own_key_before_it_is_answered(world: World) -> None:
    outcome = await world.put(request(DATA, purpose=Purpose.PENDING))
    done = await world.send(parse_turl(outcome.turl), DATA)
    ((call, guid, receipts),) = world.librarian.commits
    assert call.request_key == f"commit/{outcome.reference}"
    assert call.service_id == world.settings.service_id
    assert (guid, receipts) == (numbered("f", 1), done.receipts)


@served
async def test_a_commit_whose_outcome_is_unknown_is_repeated_with_the_same_key(world: World) -> None:
    world.librarian.lose_answers["commit_put"] = 1
    world.librarian.failures["commit_put"] = [Kind.NETWORK, Kind.UNAVAILABLE]
    assert (await world.send(await world.ticket(request(DATA, purpose=Purpose.PENDING)), DATA)).complete
    keys = [call.request_key for call, _, _ in world.librarian.commits]
    assert len(keys) == 2
    assert keys[0] == keys[1]


@served
async def test_a_lost_name_is_told_and_the_bytes_stay_uncommitted(world: World) -> None:
    world.librarian.failures["commit_put"] = [Kind.CONFLICT]
    ticket = await world.ticket(request(DATA, purpose=Purpose.PENDING))
    assert await kind_of(world.send(ticket, DATA)) is Kind.CONFLICT
    (reference,) = world.blobs.references()
    assert await world.state_of(reference) == "alive"
    assert world.librarian.known == {}


@served
async def test_the_commit_goes_on_when_the_client_goes_away(world: World) -> None:
    world.librarian.failures["commit_put"] = [Kind.TIMEOUT]
    ticket = await world.ticket(request(DATA, purpose=Purpose.PENDING))
    sending = asyncio.ensure_future(world.send(ticket, DATA))
    await world.pass_ms(50)
    sending.cancel()
    await asyncio.wait((sending,))
    assert world.librarian.commits == []
    await world.pass_ms(1000)
    assert len(world.librarian.commits) == 1
    assert (await world.send(ticket, DATA)).complete
    assert len(world.librarian.commits) == 1


@served
async def test_the_same_clients_repeat_gets_the_same_answer_and_nobody_elses_does(world: World) -> None:
    ticket = await world.ticket(request(DATA, checksums=Checksums()))
    first = await world.send(ticket, DATA)
    assert await world.send(ticket, DATA) == first
    assert await world.send(ticket, b"", offset=len(DATA), length=0) == first
    assert await kind_of(world.send(ticket, DATA, EVE)) is Kind.ALREADY_DONE
    assert await kind_of(world.send(ticket, DATA[:-1] + b"!")) is Kind.ALREADY_DONE
    assert await kind_of(world.send(ticket, DATA[:-1])) is Kind.ALREADY_DONE
    (reference,) = world.blobs.references()
    assert world.blobs.data(reference) == DATA


@served
async def test_a_crash_between_bytes_and_commit_leaves_an_uncommitted_replica(world: World) -> None:
    world.librarian.failures["commit_put"] = [Kind.NETWORK] * 1000
    ticket = await world.ticket(request(DATA, purpose=Purpose.PENDING))
    sending = asyncio.ensure_future(world.send(ticket, DATA))
    await world.pass_ms(500)
    await world.service.stop()
    await asyncio.wait((sending,))
    await world.restart()
    ((reference, committed),) = [(s.reference, s.committed) async for page in world.blobs.scan() for s in page.read]
    assert not committed
    assert await world.state_of(reference) == "alive"


# --- copies along the way ------------------------------------------------------------------------------------------


@virtual
async def test_bytes_are_forwarded_as_they_come_and_both_receipts_are_answered() -> None:
    first, second = await two()
    turl = await peer_turl(second, LARGE)
    done = await first.send(await first.ticket(request(LARGE, forward=(turl,), durable=2)), LARGE)
    assert [r.signature.split(":")[0] for r in done.receipts] == ["s1", "s2"]
    (reference,) = second.blobs.references()
    assert second.blobs.data(reference) == LARGE
    assert first.transfers.pushes == [(second.base, 0)]


@virtual
async def test_a_stalled_copy_is_dropped_and_a_spare_takes_its_place() -> None:
    first, second = await two()
    frozen = World("s3")
    first.transfers.frozen.append(frozen.base)
    await frozen.start()
    forward, spare = await peer_turl(frozen, LARGE * 3), await peer_turl(second, LARGE * 3)
    wanted = request(LARGE * 3, forward=(forward,), spare=(spare,), durable=2)
    first.librarian.copy_bytes_per_s_max = 1  # of repair: a user does not wait for that
    await first.service.beat()
    before_ms = first.clock.monotonic_ms()
    done = await first.send(await first.ticket(wanted), LARGE * 3)
    assert [r.signature.split(":")[0] for r in done.receipts] == ["s1", "s2"]
    assert first.clock.monotonic_ms() - before_ms == first.settings.forward_stall_ms


@virtual
async def test_a_copy_that_owes_its_receipt_is_waited_for_only_while_it_lives() -> None:
    first, second = await two()
    frozen = World("s3")
    first.transfers.frozen.append(frozen.base)
    await frozen.start()
    forward, spare = await peer_turl(frozen, DATA), await peer_turl(second, DATA)
    before_ms = first.clock.monotonic_ms()
    done = await first.send(await first.ticket(request(DATA, forward=(forward,), spare=(spare,), durable=2)), DATA)
    assert [r.signature.split(":")[0] for r in done.receipts] == ["s1", "s2"]
    assert first.clock.monotonic_ms() - before_ms == first.settings.forward_stall_ms

    slow = World("s4")
    await slow.start()
    first.transfers.peers[slow.base] = slow.service
    first.transfers.slow[slow.base] = 3000
    forward = await peer_turl(slow, DATA, number=2)
    before_ms = first.clock.monotonic_ms()
    done = await first.send(await first.ticket(request(DATA, 2, forward=(forward,), durable=2)), DATA)
    assert [r.signature.split(":")[0] for r in done.receipts] == ["s1", "s4"]
    assert first.clock.monotonic_ms() - before_ms == 3000


@pytest.mark.parametrize(
    ("answer", "lives"),
    [
        (CheloniaError(Kind.UNTRUSTED, "connect", "s3"), False),
        (CheloniaError(Kind.EXPIRED, "connect", "s3"), False),
        (CheloniaError(Kind.EXPIRED, "HEAD"), True),  # the ticket, not the certificate
        (CheloniaError(Kind.CONFLICT, "HEAD"), True),
        (CheloniaError(Kind.UNAVAILABLE, "HEAD"), False),  # its disk does not answer
    ],
    ids=str,
)
@virtual
async def test_a_copy_on_a_shepherd_that_can_serve_no_user_is_not_waited_for(
    answer: CheloniaError, lives: bool
) -> None:
    """Its certificate is refused, so that it reports to no Librarian, or its disk does not answer."""
    first, second = await two()
    refused = World("s3")
    await refused.start()
    first.transfers.peers[refused.base] = refused.service
    first.transfers.slow[refused.base] = 3000
    first.transfers.refused[refused.base] = answer
    forward, spare = await peer_turl(refused, DATA), await peer_turl(second, DATA)
    done = await first.send(await first.ticket(request(DATA, forward=(forward,), spare=(spare,), durable=2)), DATA)
    assert [r.signature.split(":")[0] for r in done.receipts] == ["s1", "s3" if lives else "s2"]


@virtual
async def test_nobody_left_but_a_frozen_shepherd_is_told_soon() -> None:
    first, _ = await two()
    frozen = World("s3")
    first.transfers.frozen.append(frozen.base)
    await frozen.start()
    for number, how in ((1, "forward"), (2, "spare")):
        turl = await peer_turl(frozen, DATA, number=number)
        ticket = await first.ticket(request(DATA, number, durable=2, **{how: (turl,)}))
        before_ms = first.clock.monotonic_ms()
        assert await kind_of(first.send(ticket, DATA)) is Kind.UNAVAILABLE
        assert first.clock.monotonic_ms() - before_ms <= 2 * first.settings.forward_stall_ms


@virtual
async def test_too_few_copies_are_told_the_bytes_kept_and_the_repeat_succeeds() -> None:
    first, second = await two()
    turl = await peer_turl(second, DATA)
    first.transfers.down.append(second.base)
    ticket = await first.ticket(request(DATA, forward=(turl,), durable=2, purpose=Purpose.PENDING))
    assert await kind_of(first.send(ticket, DATA)) is Kind.UNAVAILABLE
    assert len(first.blobs.references()) == 1
    assert first.librarian.commits == []
    first.transfers.down.clear()
    assert len((await first.send(ticket, DATA)).receipts) == 2
    assert len(first.librarian.commits) == 1


@virtual
async def test_after_a_resume_the_copy_is_made_from_the_stored_bytes() -> None:
    first, second = await two()
    turl = await peer_turl(second, LARGE)
    ticket = await first.ticket(request(LARGE, forward=(turl,), durable=2))
    cut = 2 * CHUNK_BYTES
    assert await kind_of(first.send(ticket, LARGE[:cut], length=len(LARGE))) is Kind.INCOMPLETE
    assert second.blobs.references() == ()
    done = await first.send(ticket, LARGE[cut:], offset=cut, total=len(LARGE))
    assert len(done.receipts) == 2
    (reference,) = second.blobs.references()
    assert second.blobs.data(reference) == LARGE


@virtual
async def test_an_upload_with_a_wrong_checksum_never_becomes_a_copy_elsewhere() -> None:
    first, second = await two()
    turl = await peer_turl(second, DATA, checksums=Checksums())
    ticket = await first.ticket(request(DATA, forward=(turl,), durable=2))
    assert await kind_of(first.send(ticket, DATA[::-1])) is Kind.CHECKSUM
    assert second.blobs.references() == ()


@virtual
async def test_a_receipt_for_other_bytes_does_not_count(expect_log: Any) -> None:
    expect_log("copy refused")
    first, second = await two()
    honest = second.service.receive

    async def lying(call: Call, upload: Upload) -> Uploaded:
        answer = await honest(call, upload)
        return replace(answer, receipts=tuple(replace(r, checksums=checksums(b"other")) for r in answer.receipts))

    second.service.receive = lying  # type: ignore[method-assign]
    turl = await peer_turl(second, DATA)
    ticket = await first.ticket(request(DATA, forward=(turl,), durable=2))
    assert await kind_of(first.send(ticket, DATA)) is Kind.UNAVAILABLE


@served
async def test_a_request_that_comes_after_the_order_to_erase_it_is_refused(world: World) -> None:
    """The copy's claim was given up, and its erasure confirmed, before the request for it came."""
    await world.service.delete(LIBRARIAN, (("r", CLAIMED),), Authority(world.librarian.position))
    (outcome,) = await world.service.put(LIBRARIAN, (request(DATA, reference=CLAIMED),))
    assert (outcome.turl, outcome.kind) == ("", "expired")
    (other,) = await world.service.put(LIBRARIAN, (request(DATA),))
    assert other.turl


@served
async def test_an_upload_withdrawn_by_an_order_to_erase_is_refused_from_its_next_bytes_on(world: World) -> None:
    """The rest of a large one may take days."""
    ticket = await world.ticket(request(DATA, reference=CLAIMED))
    gate = asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield DATA[:10]
        await gate.wait()
        yield DATA[10:20]
        await asyncio.Event().wait()

    sending = asyncio.ensure_future(world.service.receive(JOE, Upload(ticket, slow(), len(DATA))))
    await world.pass_ms(10)
    (outcome,) = await world.service.delete(LIBRARIAN, (("r", CLAIMED),), Authority(world.librarian.position))
    assert outcome.status == "deleted"
    gate.set()
    assert await kind_of(sending) is Kind.EXPIRED
    assert world.blobs.used_bytes() == 0
    assert await kind_of(world.send(ticket, DATA)) is Kind.BAD_TICKET


# --- copies that the metadata have claimed ---------------------------------------------------------------------------


async def trickle(data: bytes, *, every_ms: int, ends: bool) -> AsyncIterator[bytes]:
    """A body of one byte at a time; without `ends` its connection breaks where a whole one would end."""
    for start in range(len(data)):
        await asyncio.sleep(every_ms / 1000)
        yield data[start : start + 1]
    if not ends:
        raise CheloniaError(Kind.NETWORK, "PUT", cause="the connection broke")


@served
async def test_heartbeats_tell_how_much_of_a_claimed_copy_is_here(world: World) -> None:
    data = DATA[:200]
    claimed = await world.ticket(request(data, reference=CLAIMED))
    other = await world.ticket(request(data, 2))
    for ticket in (claimed, other):
        upload = Upload(ticket, trickle(data, every_ms=10, ends=True), len(data))
        asyncio.ensure_future(world.service.receive(JOE, upload))  # noqa: RUF006
    await world.service.beat()
    await world.pass_ms(1_005)
    await world.service.beat()
    told = [beat.arriving for beat in world.librarian.beats[-2:]]
    assert told == [(), (Arriving(CLAIMED, request(data).facts.blob, 100),)]
    await world.pass_ms(10 * len(data))
    await world.service.beat()
    assert world.librarian.beats[-1].arriving == ()
    assert CLAIMED in world.blobs.references()


@served
async def test_a_claimed_copy_lasts_as_long_as_its_bytes_arrive(world: World) -> None:
    """Its ticket was for a second, and for a day at most: copies may take longer than either."""
    data = DATA[:100]
    ticket = await world.ticket(request(data, reference=CLAIMED, lifetime_ms=1_000))
    broken = Upload(ticket, trickle(data[:50], every_ms=3_600_000, ends=False), len(data))
    assert await kind_of(world.service.receive(JOE, broken)) is Kind.NETWORK
    await world.pass_ms(900)
    await world.service.tidy()
    assert await world.service.offset(JOE, ticket) == 50
    assert (await world.send(ticket, data[50:], offset=50, total=len(data))).complete


@served
async def test_a_claimed_copy_whose_bytes_have_stopped_ends_with_its_tickets_time(world: World) -> None:
    ticket = await world.ticket(request(DATA, reference=CLAIMED, lifetime_ms=1_000))
    upload = Upload(ticket, broken_body(DATA[:500]), len(DATA))
    assert await kind_of(world.service.receive(JOE, upload)) is Kind.NETWORK
    await world.pass_ms(1_001)
    await world.service.tidy()
    assert await kind_of(world.service.offset(JOE, ticket)) is Kind.BAD_TICKET
    assert world.blobs.used_bytes() == 0


@served
async def test_what_is_kept_of_an_upload_is_not_read_again_to_go_on(world: World) -> None:
    """After a copy that took days that would take hours, in which nothing arrives."""
    ticket = await world.ticket(request(DATA))
    assert await kind_of(world.send(ticket, DATA[:1000], length=len(DATA))) is Kind.INCOMPLETE
    assert (await world.send(ticket, DATA[1000:], offset=1000, total=len(DATA))).checksums == checksums(DATA)


@served
async def test_what_is_kept_is_of_no_use_when_other_sums_are_owed(world: World) -> None:
    ticket = await world.ticket(request(DATA, checksums=Checksums()))
    assert await kind_of(world.send(ticket, DATA[:1000], length=len(DATA))) is Kind.INCOMPLETE
    announced = Checksums(md5=checksums(DATA).md5)
    resumed = world.send(ticket, DATA[1000:], offset=1000, total=len(DATA), announced=announced)
    assert await kind_of(resumed) is Kind.BAD_RANGE
    assert (await world.service.offset(JOE, ticket), world.blobs.used_bytes()) == (0, 0)
    done = await world.send(ticket, DATA, announced=announced)
    assert done.checksums == checksums(DATA)


@served
async def test_what_an_upload_left_goes_though_another_cannot_be_erased_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are forgotten by then: nobody else would erase them before the next start."""
    for number in range(3):
        ticket = await world.ticket(request(DATA, number, lifetime_ms=1_000))
        await kind_of(world.service.receive(JOE, Upload(ticket, broken_body(DATA[:500]), len(DATA))))
    first, erase, tries = world.blobs.kept_uploads()[0], world.blobs.erase, list[ReferenceId]()

    async def failing(reference: ReferenceId) -> bool:
        tries.append(reference)
        if reference == first and tries.count(first) < 3:
            raise CheloniaError(Kind.UNAVAILABLE, "disk", "", "a sync failed")
        return await erase(reference)

    monkeypatch.setattr(world.blobs, "erase", failing)
    await world.pass_ms(2_000)
    await kind_of(world.service.tidy())
    await kind_of(world.service.tidy())
    assert world.blobs.kept_uploads() == (first,), "it holds up no other"
    await world.service.tidy()
    assert world.blobs.kept_uploads() == ()
