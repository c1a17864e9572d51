"""Small bytes in messages, with Shepherds that fail: no caller waits for one, and only durable bytes get a name."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from chelonia.bartender.files.writing import record_type
from chelonia.bartender.shepherds import AWAY_MS, LOOK_MS, UNHEARD_MS
from chelonia.core.caller import Call
from chelonia.core.cluster.fleet import Fleet
from chelonia.core.cluster.placement import NODE_OFFLINE, Demand
from chelonia.core.cluster.replicas import Checksums
from chelonia.core.contents.extents import ByteRange, Extent
from chelonia.core.contents.parts import PartPlace, UploadId
from chelonia.core.contents.uploads import PIECE_OF, PiecePlace, parse_part_name, parse_piece_name
from chelonia.core.errors import Kind
from chelonia.core.ids import Dn, Ms, RequestKey, ServiceId
from chelonia.core.ports.files import (
    ANY,
    INLINED,
    Change,
    Clone,
    Content,
    Done,
    Failure,
    Inline,
    Look,
    Looked,
    Make,
    Move,
    Open,
    Over,
    Placed,
    Placing,
    Remove,
    Removing,
    Set,
    Splice,
    Want,
    When,
    Write,
)
from chelonia.core.ports.librarian import NodeView
from chelonia.core.ports.shepherd import SmallBlob, StoreOutcome
from chelonia.core.values import replace
from tests.support.failing import failure_kind
from tests.support.files_worlds import at
from tests.support.stage import ADMIN, JOE, Stage, scene

DATA = b"small bytes"


async def write(stage: Stage, wanted: int = 3) -> Done | Failure:
    (answer,) = await stage.bartender.files.apply(JOE, (Write(at("/f"), inline=Inline(DATA, wanted)),))
    return answer


async def read(stage: Stage, want: Want = Want.BYTES) -> Looked | Failure:
    (answer,) = await stage.bartender.files.look(JOE, (Look(at("/f"), want),))
    return answer


def holders(stage: Stage) -> list[int]:
    """The number of small blobs that each Shepherd got."""
    return sorted(len(each.small) for each in stage.shepherds.values())


@scene
async def test_all_copies_are_stored_at_once(stage: Stage) -> None:
    await stage.add_shepherds("s1", "s2", "s3", "s4")
    assert isinstance(await write(stage), Done)
    assert holders(stage) == [0, 1, 1, 1]
    assert len((await stage.stat("/f", ADMIN))["locations"]) == 3


@scene
async def test_what_goes_together_goes_under_no_request_key_of_one_of_them(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.add_shepherds("s1")
    shepherd, keys = stage.named("s1"), list[str]()
    store = shepherd.store

    async def noted(call: Call, blobs: tuple[SmallBlob, ...]) -> tuple[StoreOutcome, ...]:
        keys.append(call.request_key)
        return await store(call, blobs)

    monkeypatch.setattr(shepherd, "store", noted)
    writes = [Write(at(name), inline=Inline(DATA, 1)) for name in ("/f", "/g")]
    answers = await stage.bartender.files.apply(JOE.keyed(RequestKey("k")), tuple(writes))
    assert all(isinstance(answer, Done) for answer in answers)
    assert keys == [""]


@scene
async def test_who_refuses_or_does_not_answer_has_another_in_his_place(stage: Stage) -> None:
    await stage.add_shepherds("s1", "s2", "s3")
    stage.named("s1").refuses, stage.named("s2").down = "no space", True
    failed = await write(stage, 2)
    assert failure_kind(failed) is Kind.NO_SHEPHERD
    assert not await stage.exists("/f")
    stage.named("s2").down = False
    assert isinstance(await write(stage, 2), Done)
    assert len((await stage.stat("/f", ADMIN))["locations"]) == 2


@pytest.mark.parametrize("silent", [False, True])
@scene
async def test_more_than_were_chosen_are_asked_before_too_few_have_it(stage: Stage, silent: bool) -> None:
    """Unreachable hosts count as there until the Librarians have noticed."""
    await stage.add_shepherds("s1", "s2", "s3", "s4", "s5")
    for name in ("s1", "s2"):
        shepherd = stage.named(name)
        shepherd.down, shepherd.slow_ms = not silent, 60_000 if silent else 0
    for n in range(5):
        (answer,) = await stage.bartender.files.apply(JOE, (Write(at(f"/f{n}"), inline=Inline(DATA, 2)),))
        assert isinstance(answer, Done)


@scene
async def test_where_all_are_slow_no_more_than_were_chosen_store_it(stage: Stage) -> None:
    await stage.add_shepherds("s1", "s2", "s3", "s4", "s5")
    for shepherd in stage.shepherds.values():
        shepherd.slow_ms = 2_900  # of 3000 that each is given
    assert isinstance(await write(stage, 2), Done)
    assert sum(each.stores for each in stage.shepherds.values()) == 3


@scene
async def test_not_all_are_asked_for_what_all_refuse(stage: Stage) -> None:
    await stage.add_shepherds(*(f"s{number}" for number in range(1, 9)))
    for shepherd in stage.shepherds.values():
        shepherd.refuses = "no space"
    failed = await write(stage, 2)
    assert isinstance(failed, Failure)
    assert failed.kind is Kind.NO_SPACE
    assert sum(each.stores for each in stage.shepherds.values()) == 3 + 2


@pytest.mark.parametrize(("full", "kind"), [(2, Kind.NO_SPACE), (1, Kind.NO_SHEPHERD)])
@scene
async def test_a_full_cluster_is_not_taken_for_one_that_is_away(stage: Stage, full: int, kind: Kind) -> None:
    """A mount keeps closed files while too few Shepherds are there, but reports a full cluster to programs."""
    await stage.add_shepherds(*(f"s{number}" for number in range(full)), free=0, accepting=False)
    failed = await write(stage, 2)
    assert isinstance(failed, Failure)
    assert failed.kind is kind
    (placed,) = await stage.bartender.files.place(JOE, (Placing(at("/g"), 100_000, wanted=2),))
    assert isinstance(placed, Failure)
    assert placed.kind is kind


@scene
async def test_shepherds_that_are_not_heard_of_yet_are_waited_for_a_little(stage: Stage) -> None:
    """A Librarian that has just started, or was frozen, knows none for a moment."""
    for name in ("s1", "s2"):
        await stage.approve_shepherd(name)
    began_ms = stage.clock.monotonic_ms()
    assert isinstance(await write(stage, 2), Failure)
    assert UNHEARD_MS <= stage.clock.monotonic_ms() - began_ms < UNHEARD_MS + 2 * LOOK_MS
    writing = asyncio.ensure_future(write(stage, 2))
    await stage.clock.sleep(UNHEARD_MS // 2)
    await stage.add_shepherds("s1", "s2")
    assert isinstance(await writing, Done)


@scene
async def test_who_finds_one_shepherd_hears_what_it_could_take(stage: Stage) -> None:
    await stage.add_shepherds("s1")
    failed = await write(stage, 3)
    assert isinstance(failed, Failure)
    assert failed.cause.startswith("1 of 2 Shepherds that are needed can take it now; ")
    assert failed.cause.endswith(", or ask for one copy (`chelonia put --replicas 1`)")
    assert isinstance(await write(stage, 1), Done)


@scene
async def test_a_piece_is_recorded_as_one_and_never_as_the_file(stage: Stage) -> None:
    await stage.add_shepherds("s1")
    content = Content((Extent(0, len(DATA), INLINED),), inline=Inline(DATA, 1))
    for change in (Write(at("/f"), inline=Inline(DATA, 1)), Splice(at("/f"), content)):
        (answer,) = await stage.bartender.files.apply(JOE, (change,))
        assert isinstance(answer, Done)
    whole, piece = [blob.facts for blob in stage.named("s1").small.values()]
    expected = f"{PIECE_OF}{whole.blob}-0 of {len(DATA)} bytes at 0+{len(DATA)}: /f"
    assert (whole.name, piece.name) == ("/f", expected)


SIZE = len(DATA)


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (Content((Extent(SIZE, 4, INLINED), Extent(SIZE + 9, 7, INLINED, 4))), f"{SIZE}+4,{SIZE + 9}+7"),
        (Content((Extent(0, 5, INLINED, SIZE - 5), Extent(5, SIZE - 5, INLINED))), ""),
        (Content((Extent(0, SIZE - 1, INLINED),)), ""),
        (Content((Extent(5, SIZE, INLINED),), whole=True), ""),
        (Content((Extent(0, 1, INLINED), Extent(1, SIZE - 1, INLINED, 1)), size=SIZE), f"0+1,1+{SIZE - 1}"),
        (Content((Extent(0, SIZE, INLINED),), size=SIZE), f"0+{SIZE}"),
        (Content(tuple(Extent(2 * n, 1, INLINED, n) for n in range(11))), ",".join(f"{2 * n}+1" for n in range(11))),
    ],
    ids=["append", "other order", "not all of it", "whole", "in two", "over it", "many"],
)  # fmt: skip
@scene
async def test_a_piece_in_the_message_is_recorded_with_its_place(stage: Stage, content: Content, place: str) -> None:
    await stage.add_shepherds("s1")
    for change in (Write(at("/f"), inline=Inline(DATA, 1)), Splice(at("/f"), replace(content, inline=Inline(DATA, 1)))):
        (answer,) = await stage.bartender.files.apply(JOE, (change,))
        assert isinstance(answer, Done), answer
    whole, piece = [blob.facts for blob in stage.named("s1").small.values()]
    expected = f"{PIECE_OF}{whole.blob}-0 of {SIZE} bytes at {place}: /f" if place else f"{PIECE_OF}/f"
    assert (whole.name, piece.name) == ("/f", expected)


@scene
async def test_a_piece_that_makes_its_file_or_gives_it_another_size_has_no_place(stage: Stage) -> None:
    await stage.add_shepherds("s1")
    made, cut = Content((Extent(0, SIZE, INLINED),)), Content((Extent(0, SIZE, INLINED),), size=SIZE)
    grown, zeros = Content((Extent(SIZE, SIZE, INLINED),)), Content((Extent(0, SIZE, INLINED),), size=3 * SIZE)
    etags = list[str]()
    for content in (made, grown, cut, zeros):
        change = Splice(at("/f"), replace(content, inline=Inline(DATA, 1)))
        (answer,) = await stage.bartender.files.apply(JOE, (change,))
        assert isinstance(answer, Done), answer
        etags.append(answer.attributes.etag)
    names = [blob.facts.name for blob in stage.named("s1").small.values()]
    placed = f"{PIECE_OF}{etags[0]} of {SIZE} bytes at {SIZE}+{SIZE}: /f"
    assert names == [f"{PIECE_OF}/f", placed, *2 * [f"{PIECE_OF}/f"]]


@scene
async def test_a_piece_is_recorded_with_the_place_that_its_sender_states(stage: Stage) -> None:
    await stage.add_shepherds("s1")
    (answer,) = await stage.bartender.files.apply(JOE, (Write(at("/f"), inline=Inline(DATA, 1)),))
    assert isinstance(answer, Done)
    spans = (ByteRange(7, 3), ByteRange(100, 2))
    (placed,) = await stage.bartender.files.place(JOE, (Placing(at("/f"), 5, wanted=1, piece=True, at=spans),))
    assert isinstance(placed, Placed), placed
    [asked], [whole] = stage.named("s1").puts.values(), stage.named("s1").small.values()
    assert parse_piece_name(asked.facts.name) == PiecePlace(whole.facts.blob, 0, SIZE, spans)
    for none in (
        Placing(at("/f"), 5, wanted=1, at=spans),
        Placing(at("/f"), 6, wanted=1, piece=True, at=spans),
        Placing(at("/f"), 5, wanted=1, piece=True, at=spans[::-1]),
        Placing(at("/f"), 0, wanted=1, piece=True, at=(ByteRange(7, 0),)),
        Placing(at("/f"), -1, wanted=1, piece=True, at=(ByteRange(2**63 - 1, 1),)),
        Placing(at("/f"), -1, wanted=1, piece=True, at=tuple(ByteRange(n, 1) for n in range(33))),
    ):
        (refused,) = await stage.bartender.files.place(JOE, (none,))
        assert isinstance(refused, Failure)
        assert refused.kind is Kind.BAD_REQUEST


@scene
async def test_a_part_is_recorded_with_its_place(stage: Stage) -> None:
    await stage.add_shepherds("s1")
    (opened,) = await stage.bartender.files.apply(JOE, (Open(at("/f"), at("/"), 1),))
    assert isinstance(opened, Done)
    where = PartPlace(opened.upload, 7)
    (placed,) = await stage.bartender.files.place(JOE, (Placing(at("/f"), 5, wanted=1, piece=True, part=where),))
    assert isinstance(placed, Placed)
    [asked] = stage.named("s1").puts.values()
    assert parse_part_name(asked.facts.name) == (where, "/f")
    assert parse_part_name(f"{PIECE_OF}/f") is None
    for none in (PartPlace(UploadId("x"), 1), PartPlace(opened.upload, 0)):
        (refused,) = await stage.bartender.files.place(JOE, (Placing(at("/f"), 5, wanted=1, piece=True, part=none),))
        assert isinstance(refused, Failure)


@pytest.mark.parametrize(("away_ms", "is_waited_for"), [(AWAY_MS - 2 * UNHEARD_MS, True), (AWAY_MS, False)])
@scene
async def test_only_shepherds_that_went_lately_are_waited_for(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, away_ms: int, is_waited_for: bool
) -> None:
    began_ms = stage.clock.monotonic_ms()
    since_ms = Ms(stage.clock.now_ms() - away_ms)
    away = [NodeView(ServiceId(name), Dn("/CN=x"), NODE_OFFLINE, since_ms) for name in ("s1", "s2")]

    async def nodes(*_: object) -> tuple[NodeView, ...]:
        return tuple(away)

    monkeypatch.setattr(stage.librarian, "nodes", nodes)
    assert isinstance(await write(stage, 2), Failure)
    assert (stage.clock.monotonic_ms() > began_ms) == is_waited_for


@scene
async def test_shepherds_that_can_take_nothing_are_not_waited_for(stage: Stage) -> None:
    await stage.add_shepherds("s1", "s2", accepting=False)
    began_ms = stage.clock.monotonic_ms()
    assert isinstance(await write(stage, 2), Failure)
    assert stage.clock.monotonic_ms() == began_ms


@scene
async def test_one_that_answers_less_than_it_was_asked_has_another_in_its_place(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: object) -> tuple[()]:
        return ()

    await stage.add_shepherds("s1", "s2", "s3")
    assert isinstance(await write(stage), Done)
    for name in ("s1", "s2"):
        monkeypatch.setattr(stage.named(name), "fetch", nothing)
        monkeypatch.setattr(stage.named(name), "store", nothing)
    looked = await read(stage)
    assert isinstance(looked, Looked)
    assert looked.data == DATA
    (failed,) = await stage.bartender.files.apply(JOE, (Write(at("/g"), inline=Inline(DATA, 3)),))
    assert isinstance(failed, Failure)


@scene
async def test_one_of_many_that_is_refused_has_another_and_the_others_wait_for_nobody(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.add_shepherds("s1", "s2", "s3")

    def picky(store: Callable[..., Awaitable[tuple[StoreOutcome, ...]]]) -> Callable[..., Awaitable[object]]:
        async def some(call: Call, blobs: tuple[SmallBlob, ...]) -> tuple[StoreOutcome, ...]:
            given = await store(call, blobs)
            return tuple(
                o if b.data == DATA else StoreOutcome(kind="no-space") for o, b in zip(given, blobs, strict=True)
            )

        return some

    for name in ("s1", "s2"):
        monkeypatch.setattr(stage.named(name), "store", picky(stage.named(name).store))
    writes = [Write(at(f"/{n}"), inline=Inline(DATA if n != "b" else b"other", 2)) for n in "abc"]
    answers = await stage.bartender.files.apply(JOE, tuple(writes))
    assert [type(answer) for answer in answers] == [Done, Failure, Done]
    stage.named("s3").slow_ms, before = 2500, stage.clock.monotonic_ms()

    async def waited_ms(one: Write) -> int:
        await stage.bartender.files.apply(JOE, (one,))
        return stage.clock.monotonic_ms() - before

    first, refused, last = await asyncio.gather(*map(waited_ms, writes))
    assert max(first, last) < 500 < 2500 <= refused


@scene
async def test_what_does_not_fit_together_is_stored_apart(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    await stage.add_shepherds("s1", "s2", "s3")
    choose, sizes = Fleet.choose, list[int]()

    def nearly_full(fleet: Fleet, demand: Demand, *rest: Any) -> tuple[ServiceId, ...]:
        sizes.append(demand.size)
        return choose(fleet, demand, *rest) if demand.size <= 2 * len(DATA) else ()

    monkeypatch.setattr(Fleet, "choose", nearly_full)
    writes = tuple(Write(at(f"/{n}"), inline=Inline(DATA, 2)) for n in "abcdef")
    assert all(isinstance(answer, Done) for answer in await stage.bartender.files.apply(JOE, writes))
    assert max(sizes) == 6 * len(DATA)


@scene
async def test_shepherds_hear_once_what_was_named_of_what_they_stored(stage: Stage) -> None:
    await stage.add_shepherds("s1", "s2")
    write, piece = Write(at("/f"), inline=Inline(DATA, 2)), replace(PIECE, inline=Inline(DATA, 2))
    for change in (write, Splice(at("/f"), piece), replace(write, place=at("/h"))):
        assert isinstance((await stage.bartender.files.apply(JOE, (change,)))[0], Done)
    for each in stage.shepherds.values():
        first, second, _ = each.small
        assert [blob.named for blob in each.small.values()] == [(), (first,), (second,)]


@scene
async def test_what_a_repeat_stored_again_is_not_called_named(stage: Stage) -> None:
    """The transact of the first try named its own copies: a Shepherd that counted others as files' kept them."""
    await stage.add_shepherds("s1")
    change, joe = (Write(at("/f"), inline=Inline(DATA, 1)),), JOE.keyed(RequestKey("k"))

    async def meanwhile() -> None:
        assert isinstance((await stage.bartender.files.apply(joe, change))[0], Done)

    stage.between.before["commit_file"] = meanwhile
    assert isinstance((await stage.bartender.files.apply(joe, change))[0], Done)
    assert isinstance((await stage.bartender.files.apply(JOE, (Write(at("/g"), inline=Inline(DATA, 1)),)))[0], Done)
    _, second, _ = small = stage.named("s1").small
    (location,) = (await stage.stat("/f", ADMIN))["locations"]
    assert location.endswith(second)
    assert [blob.named for blob in small.values()] == [(), (), (second,)]


@scene
async def test_a_repeat_of_an_exclusive_change_says_that_it_made_it(stage: Stage) -> None:
    """The first answer was lost; then WebDAV answered the winner of a race that he had overwritten a file (204)."""
    await stage.add_shepherds("s1")
    only = When(absent=True)
    write = Write(at("/f"), inline=Inline(DATA, 1), when=only)
    assert isinstance((await stage.bartender.files.apply(JOE, (replace(write, place=at("/g")),)))[0], Done)
    changes = (write, Make(at("/d"), "collection"), replace(write, when=ANY), Move(at("/g"), at("/h")))
    for repeat in range(2):
        told = []
        for number, change in enumerate(changes):
            told += await stage.bartender.files.apply(JOE.keyed(RequestKey(f"k{number}")), (change,))
        assert [isinstance(done, Done) and done.made for done in told] == [True, True, False, True], f"try {repeat}"


@scene
async def test_a_slow_one_is_not_waited_for_once_the_bytes_are_durable(stage: Stage) -> None:
    await stage.add_shepherds("s1", "s2", "s3")
    stage.named("s2").slow_ms = 2000
    before = stage.clock.monotonic_ms()
    assert isinstance(await write(stage), Done)
    assert stage.clock.monotonic_ms() - before < 500
    assert len((await stage.stat("/f", ADMIN))["locations"]) == 2


@scene
async def test_a_change_that_meets_another_stores_its_bytes_once(stage: Stage) -> None:
    await stage.add_shepherds("s1", "s2", "s3")
    assert isinstance(await write(stage), Done)

    async def meanwhile() -> None:
        await stage.bartender.files.apply(JOE, (Set(at("/f"), user={"a": "b"}),))

    stage.between.before["commit_file"] = meanwhile
    assert isinstance(await write(stage), Done)
    assert holders(stage) == [2, 2, 2]


@scene
async def test_where_names_lead_is_asked_once_for_a_call_and_anew_when_it_changed(stage: Stage) -> None:
    await stage.add_shepherds("s1", "s2", "s3")
    writes = tuple(Write(at(name), inline=Inline(DATA, 3)) for name in ("/f", "/g"))
    empty = tuple(Splice(at(name), Content(size=0, whole=True), when=When(absent=True)) for name in ("/d", "/e"))
    for number, changes in enumerate((writes, empty)):
        assert all(isinstance(done, Done) for done in await stage.bartender.files.apply(JOE, changes))
        assert len(stage.between.named("traverse")) == number + 1

    async def meanwhile() -> None:
        await stage.bartender.files.apply(JOE, (Set(at("/f"), user={"a": "b"}), Set(at("/g"), user={"a": "b"})))

    stage.between.before["commit_file"] = meanwhile
    assert all(isinstance(done, Done) for done in await stage.bartender.files.apply(JOE, writes))
    twice = await stage.bartender.files.apply(JOE, (replace(writes[0], when=When(absent=True)), writes[0], writes[0]))
    assert [type(each) for each in twice] == [Failure, Done, Done]


@scene
async def test_an_answer_tells_the_file_as_it_is(stage: Stage) -> None:
    await stage.add_shepherds("s1", "s2", "s3")
    for _ in range(3):
        done, looked = await write(stage), await read(stage)
        assert isinstance(done, Done)
        assert isinstance(looked, Looked)
        assert done.attributes == looked.attributes


@scene
async def test_bytes_are_read_from_whoever_has_them(stage: Stage) -> None:
    await stage.add_shepherds("s1", "s2", "s3")
    await write(stage)
    stage.named("s1").down, stage.named("s2").refuses = True, "damaged"
    found = await read(stage)
    assert isinstance(found, Looked)
    assert found.data == DATA
    stage.named("s3").down = True
    without = await read(stage)
    assert isinstance(without, Looked)
    assert without.data is None
    failed = await read(stage, Want.BYTES | Want.SOURCES)
    assert failure_kind(failed) is Kind.NO_REPLICA


@pytest.mark.parametrize(
    ("sums", "kind"),
    [(Checksums(), "sha256"), (Checksums("a", "b"), "sha256"), (Checksums(md5="b", adler32="c"), "md5"),
     (Checksums(adler32="c"), "adler32")],
)  # fmt: skip
def test_the_strongest_checksum_that_was_declared_is_on_record(sums: Checksums, kind: str) -> None:
    assert record_type(sums) == kind


@pytest.mark.parametrize(("want", "strong"), [(Want.NOTHING, False), (Want.SOURCES, True), (Want.BYTES, True)])
@scene
async def test_what_lasts_is_not_given_on_rights_of_before(stage: Stage, want: Want, strong: bool) -> None:
    await stage.add_shepherds("s1")
    await write(stage, 1)
    stage.between.calls.clear()
    await read(stage, want)
    assert {args[0].strong for args in stage.between.named("traverse")} == {strong}


@scene
async def test_small_files_of_one_call_are_read_from_one_shepherd_and_from_another_when_it_is_silent(
    stage: Stage,
) -> None:
    await stage.add_shepherds("s1", "s2", "s3")
    names = ("/f", "/g", "/h", "/i")
    await stage.bartender.files.apply(JOE, tuple(Write(at(name), inline=Inline(DATA, 3)) for name in names))
    for silent in ((), ("s1", "s2")):
        for shepherd in stage.shepherds.values():
            shepherd.callers.clear()
        for name in silent:
            stage.named(name).slow_ms = 60_000
        began = stage.clock.monotonic_ms()
        for looked in await stage.bartender.files.look(JOE, tuple(Look(at(name), Want.BYTES) for name in names)):
            assert isinstance(looked, Looked)
            assert looked.data == DATA
        assert stage.clock.monotonic_ms() - began <= 4 * stage.settings.hedge_ms
        assert sum(len(shepherd.callers) for shepherd in stage.shepherds.values()) <= 1 + len(silent)


@pytest.mark.parametrize("further", [2, 0])
@scene
async def test_tickets_for_reading_come_without_asking_every_holder(stage: Stage, further: int) -> None:
    await stage.add_shepherds("s1", "s2", "s3", "s4")
    stage.bartender = stage.another_bartender(replace(stage.settings, fallback_turls=further))
    assert isinstance(await write(stage, 4), Done)
    assert len((await stage.stat("/f"))["locations"]) == 4
    for shepherd in stage.shepherds.values():
        shepherd.callers.clear()
    got = await stage.get_file("/f")
    (looked,) = await stage.bartender.files.look(JOE, (Look(at("/f"), Want.SOURCES),))
    assert isinstance(looked, Looked)
    assert (1 + len(got.turls), len(looked.sources)) == (1 + further, 1 + further)
    assert sum(len(shepherd.callers) for shepherd in stage.shepherds.values()) == 2 * (1 + further)


@scene
async def test_more_copies_than_shepherds_are_remarked_on(stage: Stage) -> None:
    await stage.add_shepherds("s1", "s2")
    done = await write(stage)
    assert isinstance(done, Done)
    assert "3 copies are wanted" in done.note


@scene
async def test_what_comes_together_goes_to_each_shepherd_in_one_call(stage: Stage) -> None:
    await stage.add_shepherds("s1", "s2", "s3")
    names = [at(f"/f{number}") for number in range(8)]
    writes = tuple(Write(name, inline=Inline(DATA + bytes([n]), 3)) for n, name in enumerate(names))
    assert all(isinstance(done, Done) for done in await stage.bartender.files.apply(JOE, writes))
    assert [len(each.callers) for each in stage.shepherds.values()] == [1, 1, 1]
    found = await stage.bartender.files.look(JOE, tuple(Look(name, Want.BYTES) for name in names))
    assert [each.data for each in found if isinstance(each, Looked)] == [DATA + bytes([n]) for n in range(8)]
    assert all(len(each.callers) <= 2 for each in stage.shepherds.values())


# --- names that lead elsewhere by now ---------------------------------------------------------------------------------

SMALL = Inline(DATA, 1)
PIECE = Content((Extent(0, len(DATA), INLINED),), inline=SMALL)


@pytest.mark.parametrize(
    ("method", "change"),
    [
        ("unlink", Remove(at("/f"))),
        ("delete", Remove(at("/f"), Removing.FILE)),
        ("change_entry", Set(at("/f"), user={"a": "b"})),
        ("move", Move(at("/f"), at("/g"))),
        ("move", Move(at("/f"), at("/h"), Over.EXCHANGE)),
        ("commit_file", Write(at("/f"), inline=SMALL)),
        ("splice", Splice(at("/f"), PIECE)),
        ("copy_file", Clone(at("/f"), at("/h"))),
        ("copy_file", Clone(at("/g"), at("/f"))),
    ],
    ids=lambda each: type(each).__name__ if not isinstance(each, str) else each,
)
@scene
async def test_what_meets_a_file_that_another_is_moved_over_is_done_to_that(
    stage: Stage, method: str, change: Change
) -> None:
    """Its name leads to a file all the time, but the answer was `not found`. Found by `copies` seed 9802046."""
    await stage.add_shepherds("s1")
    made = tuple(Write(at(name), inline=SMALL) for name in ("/f", "/new", "/h"))
    assert all(isinstance(done, Done) for done in await stage.bartender.files.apply(JOE, made))

    async def moved_over() -> None:
        (done,) = await stage.bartender.files.apply(JOE, (Move(at("/new"), at("/f"), Over.REPLACE),))
        assert isinstance(done, Done)

    stage.between.before[method] = moved_over
    (answer,) = await stage.bartender.files.apply(JOE, (change,))
    assert isinstance(answer, Done), answer
    assert method not in stage.between.before


@scene
async def test_what_is_gone_by_then_is_told_so(stage: Stage) -> None:
    await stage.put_file("/f", needed=0)

    async def gone() -> None:
        assert await stage.name_op("delFile", "/f") == "deleted"

    stage.between.before["move"] = gone
    (answer,) = await stage.bartender.files.apply(JOE, (Move(at("/f"), at("/g")),))
    assert failure_kind(answer) is Kind.NOT_FOUND


@scene
@pytest.mark.parametrize("change", ["move", "unlink"])
async def test_what_is_to_be_a_certain_entry_may_be_another_version_of_it(stage: Stage, change: str) -> None:
    """Many names of one file, removed at the same time over a slow line, met `conflict`."""
    await stage.add_shepherds("s1")
    files, names = stage.bartender.files, [at("/f"), at("/g"), at("/h")]
    (made,) = await files.apply(JOE, (Write(names[0], inline=Inline(DATA, 1)),))
    assert isinstance(made, Done)
    assert made.attributes is not None
    for name in names[1:]:
        assert isinstance((await files.apply(JOE, (Move(names[0], name, keep=True),)))[0], Done)

    async def meanwhile() -> None:
        assert isinstance((await files.apply(JOE, (Remove(names[1]),)))[0], Done)

    stage.between.calls.clear()
    stage.between.before[change] = meanwhile
    when = When(guid=made.attributes.guid)
    wanted = Move(names[0], at("/i"), when=when) if change == "move" else Remove(names[0], when=when)
    assert isinstance((await files.apply(JOE, (wanted,)))[0], Done)
    assert len(stage.between.named(change)) == (1 if change == "move" else 2), "it was tried again"
