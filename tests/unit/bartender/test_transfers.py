"""putFile, bytes first, getFile, addReplica: the Shepherds chosen, the senders allowed, the bytes left behind."""

import base64
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from chelonia.bartender import put_token
from chelonia.bartender.put_token import PutToken, decode, encode
from chelonia.bartender.settings import BartenderSettings
from chelonia.bartender.shepherds import Shepherds
from chelonia.core.caller import Call
from chelonia.core.cluster.replicas import Checksums
from chelonia.core.contents.extents import ByteRange, Extent
from chelonia.core.contents.uploads import NO_PLACE, BeginPut, Begun, PiecePlace
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ANONYMOUS, BlobId, Dn, Guid, Ms
from chelonia.core.metadata import Triple
from chelonia.core.names import parse_ln
from chelonia.core.ports.bartender import (
    AddReplicaRequest,
    GetFileRequest,
    NameRequest,
    PutFileRequest,
)
from chelonia.core.ports.files import (
    ANY,
    INLINED,
    Arrived,
    Content,
    Done,
    Failure,
    Inline,
    Look,
    Looked,
    Placed,
    Placing,
    Splice,
    Want,
    When,
    Write,
)
from chelonia.core.ports.librarian import Heartbeat, NodeView
from chelonia.core.ports.shepherd import Purpose
from chelonia.core.values import replace
from chelonia.wire import armour, receipts
from tests.support.failing import fails, failure_kind
from tests.support.stage import (
    BARTENDER_DN,
    BARTENDER_ID,
    EVE,
    GIB,
    HTTP,
    JOE,
    KEY,
    NOBODY,
    Stage,
    facts,
    keyed,
    scene,
)

SHEPHERDS = ("s1", "s2", "s3", "s4")


async def place(stage: Stage, ln: str, call: Call = JOE, *, needed: int = 2, replaces: bool = True) -> Placed | Failure:
    ask = Placing(parse_ln(ln), 5, wanted=needed, when=ANY if replaces else When(absent=True))
    return (await stage.bartender.files.place(call, (ask,)))[0]


async def placed(stage: Stage, ln: str, call: Call = JOE, *, needed: int = 2) -> Placed:
    found = await place(stage, ln, call, needed=needed)
    assert isinstance(found, Placed), found
    return found


async def name(
    stage: Stage, ln: str, put: str, texts: tuple[str, ...], call: Call = JOE, *, user: dict[str, str] | None = None
) -> str:
    """Give bytes that have arrived their name. Returns: the kind of the failure, "" when there is none."""
    write = Write(parse_ln(ln), Arrived(put, texts), user=user)
    (done,) = await stage.bartender.files.apply(call, (write,))
    return done.kind.value if isinstance(done, Failure) else ""


async def sent(stage: Stage, begun: Placed) -> tuple[str, ...]:
    return tuple(receipts.to_text(receipt) for receipt in await stage.upload(begun.turl))


async def write(stage: Stage, ln: str, begun: Placed, call: Call = JOE, *, user: dict[str, str] | None = None) -> str:
    """Send the bytes, and give them their name."""
    return await name(stage, ln, begun.put, await sent(stage, begun), call, user=user)


class Asked:
    """Notes the calls to the A-Hash."""

    def __init__(self, stage: Stage) -> None:
        self.said: list[str] = []
        for name in ("get", "walk", "scan", "transact"):
            setattr(stage.ahash, name, self._noting(name, getattr(stage.ahash, name)))

    def _noting(self, name: str, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def noted(*args: Any) -> Any:
            self.said.append(name)
            return await method(*args)

        return noted

    def taken(self) -> list[str]:
        said, self.said = self.said, []
        return said


@scene
async def test_what_a_file_costs_the_ahash(stage: Stage) -> None:
    """The calls of each step, in order."""
    await stage.add_shepherds(*SHEPHERDS)
    await stage.bartender.stat(JOE, (NameRequest("1", "/"),))
    asked = Asked(stage)
    begun = await placed(stage, "/f")
    assert asked.taken() == ["walk"]
    assert await write(stage, "/f", begun) == ""
    assert asked.taken() == ["walk", "transact"]
    assert (await stage.get_file("/f")).turl
    assert asked.taken() == ["walk"]


# --- putFile ---------------------------------------------------------------------------------------------------------


@scene
async def test_put_file_makes_a_file_of_what_was_uploaded(stage: Stage) -> None:
    await stage.add_shepherds(*SHEPHERDS)
    begun = await stage.put_file("/f", needed=3, more=(Triple("metadata", "colour", "green"),))
    assert (begun.status, begun.protocol) == ("done", "http")
    assert not await stage.exists("/f")
    await stage.upload(begun.turl)
    found = await stage.stat("/f")
    assert found["entry"]["type"] == "file"
    assert found["entry"]["owner"] == JOE.dn
    assert found["metadata"] == {"colour": "green"}
    assert found["states"]["neededReplicas"] == "3"
    assert found["states"]["size"] == "5"
    assert found["states"]["checksum"] == "5" * 32
    assert sorted(found["locations"].values()) == ["alive", "alive"]
    assert not {"blobs", "put", "pending"} & set(found)


@scene
async def test_the_first_shepherd_is_told_of_the_others(stage: Stage) -> None:
    await stage.add_shepherds(*SHEPHERDS)
    begun = await stage.put_file("/f", needed=3, size=7)
    first, request = stage.put_request(begun.turl)
    assert request.purpose is Purpose.PENDING
    assert request.dn == JOE.dn
    assert (request.durable, len(request.forward), len(request.spare)) == (2, 1, 1)
    assert (request.facts.size, request.facts.wanted, request.facts.name) == (7, 3, "/f")
    assert request.facts.seal
    for turl in (*request.forward, *request.spare):
        other, helper = stage.put_request(turl)
        assert other is not first
        assert helper.purpose is Purpose.REPLICA
        assert helper.dn == first.dn  # only the first Shepherd can use it
        assert helper.facts == request.facts
    assert {call.dn for call in first.callers} == {BARTENDER_DN}


@scene
async def test_a_shepherd_that_has_just_come_up_is_used(stage: Stage) -> None:
    assert (await stage.put_file("/f", needed=1)).status == "no suitable shepherd found"
    await stage.add_shepherds("s1")
    assert (await stage.put_file("/f", needed=1)).status == "done"


@scene
async def test_shepherds_that_take_nothing_are_not_asked(stage: Stage) -> None:
    await stage.add_shepherds("full", free=4)
    await stage.add_shepherds("closed", accepting=False)
    assert (await stage.put_file("/f", needed=1, size=5)).status == "no suitable shepherd found"
    assert not any(shepherd.callers for shepherd in stage.shepherds.values())


@scene
async def test_one_copy_wanted_needs_one_shepherd(stage: Stage) -> None:
    await stage.add_shepherds("s1")
    begun = await stage.put_file("/f", needed=1)
    assert stage.put_request(begun.turl)[1].durable == 1
    assert (await stage.put_file("/g", needed=2)).status == "no suitable shepherd found"


@pytest.mark.parametrize("missing", ["size", "checksum", "checksumType", "neededReplicas"])
@scene
async def test_mandatory_metadata(stage: Stage, missing: str) -> None:
    given = tuple(triple for triple in facts() if triple.property != missing)
    (outcome,) = await stage.bartender.put_file(JOE, (PutFileRequest("1", "/f", given, HTTP),))
    assert (outcome.status, outcome.kind) == (f"missing metadata states/{missing}", "missing-metadata")


@pytest.mark.parametrize(
    "wrong",
    [
        ("size", "-1"), ("size", "5.0"), ("size", ""), ("size", "5e3"), ("size", "9" * 20), ("size", "٥"),
        ("neededReplicas", "33"), ("neededReplicas", "-1"), ("neededReplicas", "two"), ("checksumType", "crc32"),
        ("checksumType", ""), ("checksum", "abc"), ("checksum", "g" * 32),
    ],
)  # fmt: skip
@scene
async def test_metadata_that_makes_no_sense(stage: Stage, wrong: tuple[str, str]) -> None:
    await stage.add_shepherds(*SHEPHERDS)
    given = tuple(Triple("states", t.property, wrong[1] if t.property == wrong[0] else t.value) for t in facts())
    (outcome,) = await stage.bartender.put_file(JOE, (PutFileRequest("1", "/f", given, HTTP),))
    assert (outcome.status, outcome.kind) == ("failed to create new librarian entry", "bad-request")
    assert wrong[0] in outcome.cause


@scene
async def test_checksums_are_passed_on_in_canonical_form(stage: Stage) -> None:
    await stage.add_shepherds(*SHEPHERDS)
    given = facts(checksum="ABC", checksum_type="adler32")
    (outcome,) = await stage.bartender.put_file(JOE, (PutFileRequest("1", "/f", given, HTTP),))
    assert stage.put_request(outcome.turl)[1].facts.checksums == Checksums(adler32="00000abc")


@scene
async def test_a_protocol_nobody_speaks(stage: Stage) -> None:
    await stage.add_shepherds(*SHEPHERDS)
    (put,) = await stage.bartender.put_file(JOE, (PutFileRequest("1", "/f", facts(), ("byteio",)),))
    assert put.status == "no suitable shepherd found"
    await stage.file("/f")
    (get,) = await stage.bartender.get_file(JOE, (GetFileRequest("1", "/f", ("byteio",)),))
    assert get.status == "error while getting TURL (no supported protocol found)"


@scene
async def test_a_shepherd_that_does_not_answer_is_passed_over(stage: Stage) -> None:
    await stage.add_shepherds(*SHEPHERDS)
    for name, trouble in (("s1", "down"), ("s2", "slow")):
        stage.named(name).down = trouble == "down"
        stage.named(name).slow_ms = 10**6 if trouble == "slow" else 0
    for number in range(6):
        before = stage.clock.monotonic_ms()
        begun = await stage.put_file(f"/f{number}", needed=2)
        assert begun.status == "done"
        assert stage.clock.monotonic_ms() - before <= 4 * stage.settings.hedge_ms
        first, request = stage.put_request(begun.turl)
        others = [stage.put_request(turl)[0] for turl in request.forward]
        assert {shepherd.dn for shepherd in (first, *others)} == {stage.named("s3").dn, stage.named("s4").dn}


@scene
async def test_who_finds_no_others_to_ask_tells_what_those_asked_have_said(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Librarian that cannot name others is not the reason why too few take the bytes."""
    await stage.add_shepherds(*SHEPHERDS)
    known = Shepherds.nodes

    async def nodes(shepherds: Shepherds, call: Call) -> Sequence[NodeView]:
        if any(stage.named(name).callers for name in SHEPHERDS):
            raise CheloniaError(Kind.UNAVAILABLE, "nodes", cause="the Librarian is gone")
        return await known(shepherds, call)

    monkeypatch.setattr(Shepherds, "nodes", nodes)
    for name in SHEPHERDS:
        stage.named(name).refuses = "not enough space"
    assert (await stage.put_file("/g", needed=2)).status == "no suitable shepherd found"


@pytest.mark.parametrize("number", range(4))
@scene
async def test_a_name_reserved_in_vain_is_free_at_once(stage: Stage, number: int) -> None:
    await stage.add_shepherds(*SHEPHERDS)
    for name in SHEPHERDS[: number + 1]:
        stage.named(name).refuses = "not enough space"
    begun = await stage.put_file("/g", needed=4)
    assert all(len(stage.named(name).callers) <= 1 for name in SHEPHERDS[: number + 1])
    assert (begun.status == "done") == (number < 2)
    if begun.status == "done":
        await stage.upload(begun.turl)
        assert await stage.exists("/g")
        return
    assert begun.status == "no suitable shepherd found"
    assert not await stage.exists("/g")
    await stage.modify("/", "set", "policy", EVE.dn, "+addEntry")
    assert (await stage.make("/g", EVE)).status == "done"  # free for others too


@scene
async def test_a_pending_name_is_his_alone(stage: Stage) -> None:
    await stage.add_shepherds(*SHEPHERDS)
    await stage.modify("/", "set", "policy", EVE.dn, "+addEntry +read")
    first = await stage.put_file("/f")
    assert (await stage.put_file("/f", EVE)).status == "LN exists"
    assert await stage.list("/", EVE) == ("found", [])
    second = await stage.put_file("/f")
    assert second.status == "done"
    with fails(Kind.NOT_FOUND):
        await stage.upload(first.turl)
    await stage.upload(second.turl)
    assert await stage.list("/") == ("found", ["f"])


@scene
async def test_a_pending_name_expires_with_its_tickets(stage: Stage) -> None:
    await stage.add_shepherds(*SHEPHERDS)
    await stage.modify("/", "set", "policy", EVE.dn, "+addEntry")
    begun = await stage.put_file("/f")
    assert stage.put_request(begun.turl)[1].lifetime_ms == stage.settings.put_lifetime_ms
    await stage.clock.sleep(stage.settings.put_lifetime_ms + 1)
    assert (await stage.make("/f", EVE)).status == "done"


@scene
async def test_a_ticket_for_whoever_has_it_ends_with_the_token_that_it_was_given_for(stage: Stage) -> None:
    await stage.add_shepherds(*SHEPHERDS)
    most, of_first = stage.settings.put_lifetime_ms, stage.settings.get_lifetime_ms
    token = replace(JOE, via="share link x", until_ms=Ms(stage.clock.now_ms() + 60_000))
    carried = replace(token, carrier=ANONYMOUS)
    for number, (caller, lasts) in enumerate(((JOE, most), (token, most), (carried, 60_000))):
        begun = await stage.put_file(f"/f{number}", caller)
        assert stage.put_request(begun.turl)[1].lifetime_ms == lasts
    others = [each for shepherd in stage.shepherds.values() for each in shepherd.puts.values() if not each.forward]
    assert {each.lifetime_ms for each in others} == {most}, "between Shepherds bytes go on"
    await stage.upload(begun.turl)
    for caller, lasts in ((JOE, of_first), (carried, 60_000), (replace(carried, until_ms=Ms(1)), 1)):
        for shepherd in stage.shepherds.values():
            shepherd.gets.clear()
        assert (await stage.get_file("/f2", caller)).status == "done"
        assert {each.lifetime_ms for shepherd in stage.shepherds.values() for each in shepherd.gets} == {lasts}


@scene
async def test_turls_are_for_the_bytes_that_a_file_has_and_not_for_what_it_had(stage: Stage) -> None:
    """Cut off or overwritten bytes stay in their blob, and a TURL would let a reader of the file read them."""
    await stage.add_shepherds(*SHEPHERDS)
    name, files = parse_ln("/f"), stage.bartender.files
    begun = await placed(stage, "/f")
    laid = Content((Extent(1, 2, INLINED),), size=4, inline=Inline(b"XY", 2))
    for change in (Write(name, await stage.arrive(begun, b"01234")), Splice(name, laid)):
        (done,) = await files.apply(JOE, (change,))
        assert isinstance(done, Done), done
    (there,) = await files.look(JOE, (Look(name, Want.SOURCES),))
    assert isinstance(there, Looked)
    assert [(each.at, each.length, each.skip) for each in there.extents] == [(0, 1, 0), (1, 2, 0), (3, 1, 3)]
    asked = {request.spans for each in stage.shepherds.values() for request in each.gets}
    assert asked == {(ByteRange(0, 1), ByteRange(3, 1)), (ByteRange(0, 2),)}


@scene
async def test_replacing_keeps_identity_links_and_policy(stage: Stage) -> None:
    await stage.add_shepherds(*SHEPHERDS)
    await stage.file("/f")
    await stage.modify("/f", "set", "policy", EVE.dn, "+read")
    before = await stage.stat("/f")
    begun = await stage.put_file("/f", replace=True, size=9)
    assert begun.status == "done"
    assert await stage.stat("/f") == before  # until the bytes are durable
    await stage.upload(begun.turl, size=9, checksums=Checksums(sha256="9" * 64, md5="9" * 32))
    after = await stage.stat("/f")
    assert after["entry"] == before["entry"]
    assert after["policy"] == before["policy"]
    assert after["states"]["size"] == "9"
    assert after["locations"].keys().isdisjoint(before["locations"])


@scene
async def test_replacing_takes_given_metadata_in_place_of_those_of_the_file(stage: Stage) -> None:
    """They were added to the others, so that an entry could get any number of them."""
    await stage.add_shepherds(*SHEPHERDS)
    for given, expected in (("a", "a"), ("b", "b"), ("", "b")):
        more = (Triple("metadata", given, "1"),) if given else ()
        begun = await stage.put_file("/f", replace=True, size=9, more=more)
        await stage.upload(begun.turl, size=9, checksums=Checksums(sha256="9" * 64, md5="9" * 32))
        assert (await stage.stat("/f"))["metadata"] == {expected: "1"}


@scene
async def test_replacing_needs_delete_on_the_file(stage: Stage) -> None:
    await stage.add_shepherds(*SHEPHERDS)
    await stage.file("/f")
    await stage.modify("/", "set", "policy", EVE.dn, "+addEntry")
    assert (await stage.put_file("/f", EVE, replace=True)).kind == "denied"
    await stage.modify("/f", "set", "policy", EVE.dn, "+delete")
    assert (await stage.put_file("/f", EVE, replace=True)).status == "done"
    assert (await stage.put_file("/f", replace=True, needed=0)).kind == "bad-request"


@scene
async def test_files_take_over_the_default_policy(stage: Stage) -> None:
    await stage.add_shepherds(*SHEPHERDS)
    given = (Triple("defaultPolicy", "ALL", "+read"), Triple("defaultPolicy", EVE.dn, "+delete"))
    await stage.make("/shared", metadata=given)
    await stage.file("/shared/f", more=(Triple("policy", EVE.dn, "+read"),))
    assert (await stage.stat("/shared/f"))["policy"] == {"ALL": "+read", EVE.dn: "+read"}
    await stage.make("/shared/c")
    inner = await stage.stat("/shared/c")
    assert inner["policy"] == inner["defaultPolicy"] == {"ALL": "+read", EVE.dn: "+delete"}


@scene
async def test_rules_that_come_with_bytes_take_the_place_of_the_default_policy(stage: Stage) -> None:
    await stage.add_shepherds(*SHEPHERDS)
    given = (Triple("defaultPolicy", "ALL", "+read"), Triple("defaultPolicy", "VOMS:/vo", "+read"))
    await stage.make("/shared", metadata=given)
    write = Write(parse_ln("/shared/f"), inline=Inline(b"x"), policy={EVE.dn: "+read"})
    assert isinstance((await stage.bartender.files.apply(JOE, (write,)))[0], Done)
    assert (await stage.stat("/shared/f"))["policy"] == {"VOMS:/vo": "+read", EVE.dn: "+read"}
    await stage.modify("/shared", "set", "defaultPolicy", "ALL", "-modifyPolicy")
    (refused,) = await stage.bartender.files.apply(JOE, (replace(write, place=parse_ln("/shared/g")),))
    assert failure_kind(refused) is Kind.DENIED, "what every file there has is not got rid of by writing it"


# --- bytes first -----------------------------------------------------------------------------------------------------


@scene
async def test_bytes_first_writes_nothing_before_the_commit(stage: Stage) -> None:
    await stage.add_shepherds(*SHEPHERDS)
    await stage.make("/a")
    await stage.modify("/a", "set", "defaultPolicy", "ALL", "+read")
    begun = await placed(stage, "/a/f", needed=3)
    assert not await stage.exists("/a/f")
    assert stage.put_request(begun.turl)[1].purpose is Purpose.RECEIPT
    assert await write(stage, "/a/f", begun, user={"k": "v"}) == ""
    found = await stage.stat("/a/f", EVE)
    assert found["metadata"] == {"k": "v"}
    assert found["policy"] == {"ALL": "+read"}
    assert found["states"]["neededReplicas"] == "3"
    assert found["states"]["checksum"]


@scene
async def test_more_copies_than_there_are_shepherds_is_said_at_once(stage: Stage) -> None:
    await stage.add_shepherds(*SHEPHERDS)
    note = "9 copies are wanted, and there are 4 Shepherds: more are made when there are more"
    assert (await placed(stage, "/f", needed=9)).note == note
    assert (await placed(stage, "/g", needed=4)).note == ""


@scene
async def test_any_bartender_of_the_cluster_takes_the_token(stage: Stage) -> None:
    await stage.add_shepherds(*SHEPHERDS)
    begun = await placed(stage, "/f")
    stage.bartender = stage.another_bartender(stage.settings)
    assert await write(stage, "/f", begun) == ""


@scene
async def test_tokens_of_others_are_refused(stage: Stage) -> None:
    await stage.add_shepherds(*SHEPHERDS)
    await stage.modify("/", "set", "policy", EVE.dn, "+addEntry")
    begun = await placed(stage, "/f")
    texts = await sent(stage, begun)
    assert await name(stage, "/f", begun.put, texts, EVE) == "bad-ticket"
    flipped = begun.put[:9] + ("A" if begun.put[9] != "A" else "B") + begun.put[10:]
    for forged in ("", ".", "x.y", flipped, begun.put + "A", begun.put.partition(".")[0], "é." + begun.put):
        assert await name(stage, "/f", forged, texts) == "bad-ticket", forged
    stage.bartender = stage.another_bartender(replace(stage.settings, token_key=b"another cluster's key"))
    assert await name(stage, "/f", begun.put, texts) == "bad-ticket"
    assert not await stage.exists("/f")


@pytest.mark.parametrize("meanwhile", ["overwritten", "moved", "deleted"])
@scene
async def test_a_used_token_does_not_bring_its_bytes_back(stage: Stage, meanwhile: str) -> None:
    """Its receipts are of replicas that have a file, or were ordered to be erased."""
    await stage.add_shepherds(*SHEPHERDS)
    begun = await placed(stage, "/f")
    texts = await sent(stage, begun)
    assert await name(stage, "/f", begun.put, texts) == ""
    if meanwhile == "overwritten":
        assert await write(stage, "/f", await placed(stage, "/f")) == ""
    elif meanwhile == "moved":
        assert await stage.move("/f", "/g") == "moved"
    else:
        assert await stage.name_op("delFile", "/f") == "deleted"
    stood = await stage.list("/")
    assert await name(stage, "/f", begun.put, texts) == "already-done"
    assert await stage.list("/") == stood


@scene
async def test_a_token_expires_when_its_bytes_have_been_there_for_long(stage: Stage) -> None:
    await stage.add_shepherds(*SHEPHERDS)
    begun = await placed(stage, "/f")
    texts = await sent(stage, begun)
    await stage.clock.sleep(stage.settings.put_lifetime_ms + 1)
    assert await name(stage, "/f", begun.put, texts) == "expired"


@scene
async def test_bytes_may_come_for_longer_than_a_token_lasts(stage: Stage) -> None:
    """5 GB at 1 MB/s: all arrived, and then none got its name."""
    await stage.add_shepherds(*SHEPHERDS)
    begun = await placed(stage, "/f")
    await stage.clock.sleep(3 * stage.settings.put_lifetime_ms)
    assert await write(stage, "/f", begun) == ""


@scene
async def test_rights_are_decided_again_at_the_commit(stage: Stage) -> None:
    await stage.add_shepherds(*SHEPHERDS)
    await stage.modify("/", "set", "policy", EVE.dn, "+addEntry")
    begun = await placed(stage, "/f", EVE)
    await stage.modify("/", "set", "policy", EVE.dn, "-addEntry")
    assert await write(stage, "/f", begun, EVE) == "denied"
    assert not await stage.exists("/f")


@scene
async def test_too_few_receipts(stage: Stage) -> None:
    await stage.add_shepherds(*SHEPHERDS)
    begun = await placed(stage, "/f")
    one, *_ = await sent(stage, begun)
    for texts, kind in (
        ((), "bad-request"),
        (("nonsense",), "bad-request"),
        ((one,), "incomplete"),
        ((one, one), "incomplete"),
    ):
        assert await name(stage, "/f", begun.put, texts) == kind
    assert not await stage.exists("/f")


@scene
async def test_replacing_bytes_first(stage: Stage) -> None:
    await stage.add_shepherds(*SHEPHERDS)
    await stage.file("/f")
    guid = await stage.guid("/f")
    assert failure_kind(await place(stage, "/f", replaces=False)) is Kind.PRECONDITION
    assert await write(stage, "/f", await placed(stage, "/f")) == ""
    assert await stage.guid("/f") == guid


@scene
async def test_a_place_needs_a_replica(stage: Stage) -> None:
    assert failure_kind(await place(stage, "/f", needed=0)) is Kind.BAD_REQUEST


def token(name: str = "f") -> PutToken:
    begin = BeginPut(
        parent=Guid("0"), name=name, ln=parse_ln("/" + name), owner=Dn("/CN=ö"), sections={}, wanted=2, size=-1,
        checksums=Checksums(md5="5" * 32), expires_ms=Ms(12), named=False, replaces=Guid(""),
    )  # fmt: skip
    return PutToken(begin, Begun(Guid("g"), BlobId("b"), "seal"), "md5")


@pytest.mark.parametrize("at", [NO_PLACE, PiecePlace("0" * 36, 17, 10_240, (ByteRange(8192, 1), ByteRange(9000, 5)))])
@pytest.mark.parametrize("name", ["f", "naïve ☃", "x" * 255])
def test_a_token_comes_back_as_it_was(name: str, at: PiecePlace) -> None:
    made = replace(token(name), begin=replace(token(name).begin, piece=True, at=at))
    text = encode(made, KEY)
    assert decode(text, KEY) == made
    assert all(char.isalnum() or char in "-_." for char in text)


def test_the_token_of_the_document() -> None:
    document = (Path(__file__).parents[3] / "docs" / "formats" / "put-token.md").read_text("utf-8")
    golden = next(line.strip() for line in document.splitlines() if line.startswith("    eyJ"))
    assert encode(token(), KEY) == golden
    assert decode(golden, KEY) == token()


def test_every_byte_of_a_token_is_authenticated() -> None:
    text = encode(token(), KEY)
    payload = text.partition(".")[0]
    raw = base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4))
    for position in range(0, len(raw), 7):
        other = raw[:position] + bytes([raw[position] ^ 1]) + raw[position + 1 :]
        forged = base64.urlsafe_b64encode(other).rstrip(b"=").decode() + text[len(payload) :]
        with fails(Kind.BAD_TICKET):
            decode(forged, KEY)


@pytest.mark.parametrize("change", [{"wanted": "2"}, {"parent": None}, {"ln": "no name"}, {"blob": 7}, {"size": None}])
def test_a_rightly_signed_token_of_other_fields_is_refused(change: dict[str, Any]) -> None:
    payload = encode(token(), KEY).partition(".")[0]
    fields = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    without = {name: value for name, value in fields.items() if name not in change}
    for altered in (fields | change, without, []):
        text = armour.to_text(json.dumps(altered).encode())
        with fails(Kind.BAD_TICKET):
            decode(f"{text}.{armour.to_text(put_token._mac(text, KEY))}", KEY)


# --- getFile ---------------------------------------------------------------------------------------------------------


@scene
async def test_get_file_names_replicas_and_what_to_expect(stage: Stage) -> None:
    await stage.add_shepherds(*SHEPHERDS)
    await stage.file("/f")
    got = await stage.get_file("/f")
    assert (got.status, got.protocol, got.size) == ("done", "http", 5)
    assert (got.checksum, got.checksum_type) == ("5" * 32, "md5")
    assert len({got.turl, *got.turls}) == 2
    asked = [request for shepherd in stage.shepherds.values() for request in shepherd.gets]
    assert {request.dn for request in asked} == {JOE.dn}


@scene
async def test_get_file_prefers_its_own_domain(stage: Stage) -> None:
    await stage.add_shepherds(*SHEPHERDS)
    await stage.file("/f")
    location = next(iter((await stage.stat("/f"))["locations"]))
    home = location.partition("//")[2].partition(":")[0]
    stage.bartender = stage.another_bartender(replace(stage.settings, domain=home))
    for _ in range(5):
        assert (await stage.get_file("/f")).turl.startswith(f"https://{home}:1/")


@scene
async def test_get_file_falls_back(stage: Stage) -> None:
    await stage.add_shepherds("s1", "s2")
    await stage.file("/f")
    stage.named("s1").down = True
    got = await stage.get_file("/f")
    assert got.turl.startswith("https://s2:1/")
    assert got.turls == ()
    stage.named("s2").refuses = "file is not alive"
    got = await stage.get_file("/f")
    assert (got.status, got.kind) == ("file has no valid replica", "no-replica")


@scene
async def test_a_slow_shepherd_does_not_hold_up_the_answer(stage: Stage) -> None:
    await stage.add_shepherds("s1", "s2")
    await stage.file("/f")
    stage.named("s1").slow_ms = 60_000
    before = stage.clock.monotonic_ms()
    assert (await stage.get_file("/f")).turl.startswith("https://s2:1/")
    assert stage.clock.monotonic_ms() - before <= stage.settings.fallback_grace_ms + 10


@scene
async def test_a_silent_shepherd_costs_an_upload_a_moment_once_and_then_nothing(stage: Stage) -> None:
    await stage.add_shepherds(*SHEPHERDS)
    for silent in SHEPHERDS:
        took = []
        stage.named(silent).slow_ms = 60_000
        for number in range(4):
            before = stage.clock.monotonic_ms()
            assert (await stage.put_file(f"/{silent}-{number}", needed=2)).status == "done"
            took.append(stage.clock.monotonic_ms() - before)
        assert max(took) <= 4 * stage.settings.hedge_ms
        assert sum(ms > 0 for ms in took) <= 1
        stage.named(silent).slow_ms = 0
        await stage.clock.sleep(stage.settings.silent_ms)


@scene
async def test_a_shepherd_that_falls_silent_while_the_others_were_slow_costs_a_moment(stage: Stage) -> None:
    await stage.add_shepherds("s1", "s2", "s3")
    await stage.file("/f", needed=3)
    for name, slow_ms in (("s1", 1), ("s2", 140), ("s3", 140)):
        stage.named(name).slow_ms = slow_ms
    assert (await stage.get_file("/f")).status == "done"  # two of them have let it wait
    for name, slow_ms in (("s1", 60_000), ("s2", 1), ("s3", 1)):
        stage.named(name).slow_ms = slow_ms
    for act in (lambda: stage.get_file("/f"), lambda: stage.put_file("/g", needed=2)):
        before = stage.clock.monotonic_ms()
        assert (await act()).status == "done"
        assert stage.clock.monotonic_ms() - before <= 4 * stage.settings.hedge_ms


@scene
async def test_shepherds_that_are_all_slow_are_waited_for(stage: Stage) -> None:
    await stage.add_shepherds(*SHEPHERDS)
    for name in SHEPHERDS:
        stage.named(name).slow_ms = 1000
    assert (await stage.put_file("/f", needed=2)).status == "done"


@scene
async def test_strangers_read_only_what_they_may(stage: Stage) -> None:
    await stage.add_shepherds("s1", "s2")
    await stage.file("/f")
    assert (await stage.get_file("/f", EVE)).status == "denied"
    assert (await stage.get_file("/f", NOBODY)).status == "denied"
    assert (await stage.get_file("/zz", EVE)).status == "not found"
    assert (await stage.get_file("/")).status == "is not a file"
    await stage.modify("/f", "set", "policy", "ANONYMOUS", "+read")
    assert (await stage.get_file("/f", EVE)).status == "denied"
    carried = replace(NOBODY, carrier=ANONYMOUS)
    for caller, ranges in ((NOBODY, False), (carried, True), (replace(JOE, carrier=ANONYMOUS), True)):
        for shepherd in stage.shepherds.values():
            shepherd.gets.clear()
        assert (await stage.get_file("/f", caller)).status == "done"
        asked = [request for shepherd in stage.shepherds.values() for request in shepherd.gets]
        assert {(request.dn, request.ranges) for request in asked} == {("", ranges)}  # bound to nobody


# --- addReplica ------------------------------------------------------------------------------------------------------


@scene
async def test_add_replica_is_for_shepherds_only(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "chelonia.audit")
    await stage.add_shepherds(*SHEPHERDS)
    await stage.file("/f")
    requests = (AddReplicaRequest("1", await stage.guid("/f")),)
    for call in (JOE, NOBODY, EVE):
        with fails(Kind.DENIED):
            await stage.bartender.add_replica(call, requests, HTTP)
        assert f'who="{call.dn}" op="addReplica"' in caplog.records[-1].getMessage()


@scene
async def test_add_replica_names_a_shepherd_without_one(stage: Stage) -> None:
    await stage.add_shepherds("s1", "s2", "s3")
    await stage.file("/f")
    guid = await stage.guid("/f")
    holders = {text.partition(" ")[0] for text in (await stage.stat("/f"))["locations"]}
    caller = stage.as_shepherd(min(holders).partition("//")[2].partition(":")[0])
    (outcome,) = await stage.bartender.add_replica(
        caller, (AddReplicaRequest("1", guid),), ("http", "byteio", "external")
    )
    assert outcome.status == "done"
    shepherd, request = stage.put_request(outcome.turl)
    assert shepherd.service not in holders
    assert (request.purpose, request.dn, request.facts.guid) == (Purpose.REPLICA, caller.dn, guid)
    assert request.facts.blob
    assert (request.facts.size, request.facts.checksums.md5) == (5, "5" * 32)
    (own,) = await stage.bartender.add_replica(
        stage.as_shepherd(shepherd.dn[-2:]), (AddReplicaRequest("1", guid),), HTTP
    )
    assert own.status == "no suitable shepherd found"  # the caller itself is no answer
    shepherd.down = True
    (outcome,) = await stage.bartender.add_replica(caller, (AddReplicaRequest("1", guid),), HTTP)
    assert outcome.status == "no suitable shepherd found"


@scene
async def test_add_replica_of_what_is_no_file(stage: Stage) -> None:
    await stage.add_shepherds("s1", "s2")
    requests = tuple(
        AddReplicaRequest(guid, guid) for guid in ("0", "12345678-0000-4000-8000-000000000000", "1", "sys:services")
    )
    outcomes = await stage.bartender.add_replica(stage.as_shepherd("s1"), requests, HTTP)
    assert [outcome.kind for outcome in outcomes] == ["not-a-file", "not-found", "bad-name", "bad-name"]


# --- retries ---------------------------------------------------------------------------------------------------------


@scene
async def test_put_file_repeated_under_its_key_gives_a_fresh_turl(stage: Stage) -> None:
    await stage.add_shepherds(*SHEPHERDS)
    first = await stage.put_file("/f", keyed(JOE, "k1"))
    again = await stage.put_file("/f", keyed(JOE, "k1"))
    assert (first.status, again.status) == ("done", "done")
    await stage.upload(again.turl)
    assert await stage.exists("/f")


def test_settings_refuse_a_weak_key() -> None:
    with pytest.raises(AssertionError, match="16 bytes"):
        BartenderSettings(BARTENDER_DN, BARTENDER_ID, b"short")


@pytest.mark.parametrize("of", ["/", "/f"])
@scene
async def test_a_right_that_is_revoked_while_a_commit_is_on_its_way_makes_no_file(stage: Stage, of: str) -> None:
    """The transact depends on the state behind the decision."""
    await stage.add_shepherds(*SHEPHERDS)
    there, right = (True, "delete") if of == "/f" else (False, "addEntry")
    if there:
        await stage.file("/f")
    await stage.modify(of, "set", "policy", EVE.dn, f"+{right}")
    begun = await placed(stage, "/f", EVE)

    async def revoke() -> None:
        await stage.modify(of, "set", "policy", EVE.dn, f"-{right}")

    stage.between.before["commit_file"] = revoke
    assert await write(stage, "/f", begun, EVE) == "denied"
    assert not stage.between.before
    assert await stage.exists("/f") is there


@scene
async def test_where_all_disks_have_trouble_what_is_there_is_read_and_nobody_else_is_asked(
    stage: Stage, expect_log: Callable[..., None]
) -> None:
    """They count as away, and say so themselves: a read-only disk has all its bytes."""
    expect_log("it counts as away: sick")
    await stage.add_shepherds("a", "b")
    await stage.file("/f")
    await stage.clock.sleep(2 * 10**9)  # longer than the lease
    assert (await stage.get_file("/f")).kind == Kind.NO_REPLICA.value
    assert not any(shepherd.gets for shepherd in stage.shepherds.values()), "who is silent is waited for in vain"
    for name in ("a", "b"):
        sick = Heartbeat(stage.named(name).service, 1, 0, 0, 4 * GIB, 0, False, name, "key of " + name, trouble="sick")
        await stage.librarian.heartbeat(stage.as_shepherd(name), sick)
    await stage.clock.sleep(10_000)  # longer than its list of nodes is kept
    assert (await stage.get_file("/f")).status == "done"
