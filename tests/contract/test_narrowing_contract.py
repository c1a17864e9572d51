"""A narrowed call does what policies allow and a scope covers, in every method of the port `Files`.

Not in the compact encoding: no message says how a call is narrowed."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from chelonia.core.caller import Call, Role
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.names import LogicalName, parse_ln
from chelonia.core.ports.access_keys import LINK_PREFIX
from chelonia.core.ports.files import (
    Done,
    Listing,
    Look,
    Make,
    Move,
    Over,
    Placed,
    Placing,
    Remove,
    Reserving,
    Set,
    Setting,
    Want,
)
from chelonia.core.rights.access import check_access
from chelonia.core.rights.locks import Lock
from chelonia.core.rights.policy import Action
from chelonia.core.rights.scopes import ADDING, CHANGING, READING, Scope, Share
from chelonia.wire.shares import verify
from tests.sim.virtual_loop import run_virtual
from tests.support.failing import fails, failure_kind
from tests.support.files_worlds import (
    World,
    applied,
    at,
    collection,
    done,
    looked,
    names,
    on_service,
    played,
    there,
    write,
)
from tests.support.stage import EVE, JOE, KEY, NOBODY


@pytest.fixture
def play() -> Callable[[Callable[[World], Awaitable[None]]], None]:
    return lambda test: run_virtual(on_service(test))


def narrowed(call: Call, *scopes: tuple[tuple[Action, ...], str]) -> Call:
    made = tuple(Scope(actions, parse_ln(path).parts) for actions, path in scopes)
    return msgspec.structs.replace(call, scopes=made, via="link 1")


async def filled(world: World) -> None:
    for name in ("/a", "/a/b", "/ab", "/c"):
        await collection(world, name)
    for name in ("/a/f", "/ab/f"):
        assert isinstance(await write(world, name), Done)


@played
async def test_reading_goes_as_far_as_the_path_by_whole_names(world: World) -> None:
    await filled(world)
    reader = narrowed(JOE, (READING, "/a"))
    assert await looked(world, "/a/f", reader, Want.SOURCES) != Kind.DENIED
    assert (await world.files.list(reader, Listing(at("/a")))).entries
    for name in ("/ab/f", "/", "/c", "/missing"):
        assert await looked(world, name, reader) is Kind.DENIED
    with fails(Kind.DENIED, match="read on /a"):
        await world.files.list(reader, Listing(at("/ab")))


@played
async def test_a_name_that_begins_with_a_guid_lies_in_no_scope(world: World) -> None:
    await filled(world)
    entries = (await world.files.list(JOE, Listing(at("/")))).entries
    guid = next(entry.attributes.guid for entry in entries if entry.name == "a")
    (answer,) = await world.files.look(narrowed(JOE, (READING, "/a")), (Look(LogicalName(guid, ("f",))),))
    assert failure_kind(answer) is Kind.DENIED


@played
async def test_reading_changes_nothing(world: World) -> None:
    await filled(world)
    reader = narrowed(JOE, (READING, "/a"))
    (placed,) = await world.files.place(reader, (Placing(at("/a/new"), 1),))
    assert failure_kind(placed) is Kind.DENIED
    for change in (
        Make(at("/a/d"), "collection"),
        Set(at("/a/f"), Setting(mode=0o600)),
        Set(at("/a/f"), policy={"ALL": "+read"}),
        Move(at("/a/f"), at("/a/g")),
        Remove(at("/a/f")),
    ):
        assert await applied(world, change, reader) is Kind.DENIED, change
    assert await names(world, "/a") == ["b", "f"]


@played
async def test_a_name_is_reserved_as_far_as_a_file_may_be_written(world: World) -> None:
    """Its TURL is good for any holder, and names the file: so a name that could not be written may not be reserved."""
    await filled(world)
    adder, reader = narrowed(JOE, (ADDING, "/a")), narrowed(JOE, (READING, "/a"))
    for caller, name in ((adder, "/ab/new"), (adder, "/a/f"), (adder, "/new"), (reader, "/a/new"), (reader, "/a/f")):
        (refused,) = await world.files.place(caller, (Placing(at(name), 5, wanted=2, reserving=Reserving()),))
        assert failure_kind(refused) is Kind.DENIED, name
    (placed,) = await world.files.place(adder, (Placing(at("/a/new"), 5, wanted=2, reserving=Reserving()),))
    assert isinstance(placed, Placed)
    assert await looked(world, "/a/new") is Kind.NOT_FOUND
    await world.arrive(placed, b"bytes")
    assert (await there(world, "/a/new")).attributes.owner == JOE.dn


@played
async def test_adding_replaces_and_removes_nothing(world: World) -> None:
    await filled(world)
    adder = narrowed(JOE, (ADDING, "/a"))
    assert isinstance(await write(world, "/a/new", call=adder), Done)
    assert isinstance(await applied(world, Make(at("/a/d"), "collection"), adder), Done)
    assert await write(world, "/a/new", call=adder) is Kind.DENIED
    assert await applied(world, Remove(at("/a/new")), adder) is Kind.DENIED
    assert await write(world, "/ab/new", call=adder) is Kind.DENIED
    assert await looked(world, "/a/new", adder) is Kind.DENIED


@played
async def test_a_move_needs_both_ends(world: World) -> None:
    await filled(world)
    changer = narrowed(JOE, (CHANGING, "/a"))
    assert await applied(world, Move(at("/a/f"), at("/c/f")), changer) is Kind.DENIED
    taker = narrowed(JOE, ((Action.READ, Action.REMOVE_ENTRY), "/a"), (CHANGING, "/ab"))
    assert await applied(world, Move(at("/a/f"), at("/ab/f"), Over.EXCHANGE), taker) is Kind.DENIED, "one comes to /a"
    assert await applied(world, Move(at("/ab/f"), at("/a/g")), changer) is Kind.DENIED
    assert isinstance(await applied(world, Move(at("/a/f"), at("/a/b/f")), changer), Done)
    both = narrowed(JOE, (CHANGING, "/a"), (ADDING, "/c"))
    assert isinstance(await applied(world, Move(at("/a/b/f"), at("/c/f")), both), Done)
    assert await applied(world, Move(at("/c/f"), at("/a/f")), both) is Kind.DENIED
    assert await applied(world, Move(at("/c/f"), at("/a/b"), Over.EXCHANGE), both) is Kind.DENIED


@played
async def test_a_file_alone_may_be_written_and_removed(world: World) -> None:
    await filled(world)
    one = narrowed(JOE, (CHANGING, "/c/one"))
    assert isinstance(await write(world, "/c/one", call=one), Done)
    assert isinstance(await write(world, "/c/one", b"again", call=one), Done)
    assert await write(world, "/c/one2", call=one) is Kind.DENIED
    assert await applied(world, Set(at("/c/one"), policy={"ALL": "+read"}), one) is Kind.DENIED
    assert isinstance(await applied(world, Remove(at("/c/one")), one), Done)


@played
async def test_a_scope_gives_no_right_and_takes_an_administrators_too(world: World) -> None:
    await filled(world)
    assert await looked(world, "/a/f", narrowed(EVE, (READING, "/a"))) is Kind.DENIED
    admin = msgspec.structs.replace(EVE, roles=(Role.ADMINISTRATOR,))
    assert await looked(world, "/a/f", narrowed(admin, (READING, "/a"))) is not Kind.DENIED
    assert await looked(world, "/ab/f", narrowed(admin, (READING, "/a"))) is Kind.DENIED
    assert await applied(world, Remove(at("/a/f")), narrowed(admin, (READING, "/a"))) is Kind.DENIED


@played
async def test_rights_are_judged_when_they_are_used(world: World) -> None:
    await filled(world)
    await done(world, Set(at("/a/f"), policy={EVE.dn: "+read"}))
    link = narrowed(EVE, (READING, "/a/f"))
    assert await looked(world, "/a/f", link) is not Kind.DENIED
    await done(world, Set(at("/a/f"), policy={EVE.dn: None}))
    assert await looked(world, "/a/f", link) is Kind.DENIED


@played
async def test_a_token_that_may_not_take_a_lock_ends_none(world: World) -> None:
    await write(world, "/f")
    await done(world, Set(at("/f"), locks=(Lock("urn:a", lasts_ms=60_000),)))
    reader = narrowed(JOE, (READING, "/"))
    for ends in (Lock("urn:a"), Lock("urn:a", lasts_ms=90_000)):
        assert await applied(world, Set(at("/f"), locks=(ends,)), reader) is Kind.DENIED
    assert [each.token for each in (await there(world, "/f", Want.LOCKS)).locks] == ["urn:a"]
    await filled(world)
    await done(world, Set(at("/c"), locks=(Lock("urn:c", lasts_ms=60_000),)))
    about = narrowed(JOE, ((Action.READ, Action.MODIFY_METADATA), "/"))
    assert await applied(world, Set(at("/c"), locks=(Lock("urn:c"),)), about) is Kind.DENIED


def test_the_audit_log_tells_token_and_scopes(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: World) -> None:
        await filled(world)
        with caplog.at_level(logging.INFO, "chelonia.audit"):
            await looked(world, "/a/f", narrowed(JOE, (READING, "/a")))
            await looked(world, "/ab/f", narrowed(JOE, (READING, "/a")))
        allowed, denied = (line for line in caplog.messages if "link 1" in line)
        assert 'decision="allowed"' in allowed
        assert 'via="link 1" narrowed="read on /a"' in allowed
        assert 'decision="denied" rule="the token allows read on /a"' in denied

    run_virtual(on_service(scenario))


def test_a_narrowed_call_reaches_files_alone() -> None:
    call = narrowed(msgspec.structs.replace(JOE, roles=(Role.ADMINISTRATOR,)), (READING, "/a"))
    check_access(call, "files", "look")
    for service, operation in (("bartender", "stat"), ("librarian", "health")):
        with pytest.raises(CheloniaError, match="reaches files only"):
            check_access(call, service, operation)


def test_a_token_is_given_for_what_its_giver_may_by_his_own_name() -> None:
    async def scenario(world: World) -> None:
        await filled(world)
        await done(world, Set(at("/a/f"), policy={"VOMS:atlas": "+read"}))
        shared = await world.files.share(JOE, Share(at("/a"), READING, 60_000))
        assert shared.link == f"https://door:1/a/?authz={shared.token}"
        told = verify(KEY, shared.token, 0)
        assert (told.dn, told.scope) == (JOE.dn, Scope(READING, ("a",)))
        assert told.expires_ms == shared.expires_ms == told.issued_ms + 60_000
        capped = await world.files.share(JOE, Share(at("/a/new"), ADDING, 10**12, capped=True))
        assert verify(KEY, capped.token, 0).expires_ms < 10**12 + told.issued_ms
        await done(world, Set(at("/a"), policy={EVE.dn: "+addEntry"}))
        all_that_he_may = Share(at("/a"), (*READING, *CHANGING), 60_000, capped=True)
        assert (
            verify(KEY, (await world.files.share(EVE, all_that_he_may)).token, 0).scope.actions
            == all_that_he_may.actions
        )
        for hours, kept in (3, False), (4, True):  # gfal2 asks for 3 hours, for each file
            asked = await world.files.share(JOE, Share(at("/a"), READING, hours * 3_600_000, capped=True))
            assert verify(KEY, asked.token, 0).id.startswith(LINK_PREFIX) is kept
        member = msgspec.structs.replace(EVE, attributes=("/atlas",))
        refusals = (
            (EVE, msgspec.structs.replace(all_that_he_may, capped=False), Kind.DENIED),
            (EVE, Share(at("/a"), capped=True), Kind.DENIED),
            (EVE, Share(at("/a")), Kind.DENIED),
            (NOBODY, Share(at("/a")), Kind.DENIED),
            (narrowed(JOE, (READING, "/a")), Share(at("/a")), Kind.DENIED),
            (member, Share(at("/a/f")), Kind.DENIED),
            (JOE, Share(at("/a"), (Action.MODIFY_POLICY,)), Kind.BAD_REQUEST),
            (JOE, Share(at("/a"), ()), Kind.BAD_REQUEST),
            (JOE, Share(at("/a"), READING, 0), Kind.BAD_REQUEST),
            (JOE, Share(at("/a"), READING, 10**12), Kind.BAD_REQUEST),
            (JOE, Share(at("/missing")), Kind.NOT_FOUND),
        )
        for call, ask, kind in refusals:
            with pytest.raises(CheloniaError) as refused:
                await world.files.share(call, ask)
            assert refused.value.kind is kind, (call.dn, ask)

    run_virtual(on_service(scenario))
