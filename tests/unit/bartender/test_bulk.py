"""Bulk calls: order among relatives, keys of elements, the recall rule, and when a call as a whole fails."""

import asyncio
import gc
import tracemalloc
import weakref
from contextlib import AsyncExitStack

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chelonia.bartender.bulk import BulkOperation, ElementCall, answer_all, element_key, waves
from chelonia.core import bounds
from chelonia.core.caller import Call, Role
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import RequestKey, parse_request_key
from chelonia.core.limits import LimitCounts
from chelonia.core.ports.access_keys import NewKey
from chelonia.core.ports.bartender import MakeRequest, NameRequest
from chelonia.core.ports.librarian import ModifyEntry
from tests.support.failing import fails
from tests.support.stage import BARTENDER_DN, BARTENDER_ID, EVE, JOE, Stage, keyed, scene

LOST = CheloniaError(Kind.OUTCOME_UNKNOWN, "transact", "", "the answer was lost")


def cut(*names: str) -> list[list[str]]:
    return [list(names[first:last]) for first, last in waves(names, lambda name: name)]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ((), [[]]),
        (("/a", "/b", "/c"), [["/a", "/b", "/c"]]),
        (("/a", "/a/b", "/a/c"), [["/a"], ["/a/b", "/a/c"]]),
        (("/a/b", "/a"), [["/a/b"], ["/a"]]),
        (("/a", "/a"), [["/a"], ["/a"]]),
        (("/a/b", "/a/bc", "/ab"), [["/a/b", "/a/bc", "/ab"]]),
        (("/", "/a"), [["/"], ["/a"]]),
        (("/a", "//a/", "/b"), [["/a"], ["//a/", "/b"]]),
        (("bad", "bad", "/x"), [["bad"], ["bad", "/x"]]),
    ],
)
def test_relatives_wait_for_each_other(names: tuple[str, ...], expected: list[list[str]]) -> None:
    assert cut(*names) == expected


def test_a_call_of_a_thousand_deep_names_stays_cheap() -> None:
    names = tuple("/" + "/".join(f"{n}.{depth}" for depth in range(250)) for n in range(200))
    tracemalloc.start()
    try:
        assert len(cut(*names)) == 1
        assert tracemalloc.get_traced_memory()[1] < 32 * 1024 * 1024
    finally:
        tracemalloc.stop()


@given(st.lists(st.sampled_from(["/", "/a", "/b", "/a/a", "/a/b", "/a/a/a", "0/b", "?"]), max_size=12))
def test_waves_cover_everything_in_order(names: list[str]) -> None:
    assert [name for wave in cut(*names) for name in wave] == names


@scene
async def test_parents_before_children_in_one_call(stage: Stage) -> None:
    names = ["/a", "/a/b", "/a/b/c", "/d", "/d/e", "/a/x"]
    requests = tuple(MakeRequest(str(i), name) for i, name in enumerate(names))
    outcomes = await stage.bartender.make_collection(JOE, requests)
    assert [(outcome.request_id, outcome.status) for outcome in outcomes] == [(str(i), "done") for i in range(6)]


@scene
async def test_many_unrelated_elements_share_the_committer(stage: Stage) -> None:
    requests = tuple(MakeRequest(str(i), f"/c{i}") for i in range(200))
    outcomes = await stage.bartender.make_collection(JOE, requests)
    assert {outcome.status for outcome in outcomes} == {"done"}
    assert len((await stage.list("/"))[1]) == 200


@scene
async def test_names_of_one_call_are_followed_together_and_again_if_they_wait_for_their_turn(stage: Stage) -> None:
    for name in ("/a", "/b"):
        await stage.make(name)
        await stage.modify(name, "set", "policy", EVE.dn, "+read")
    places, requests = stage.bartender._ports.places, (NameRequest("1", "/a"), NameRequest("2", "/b"))
    guid = await stage.guid("/a")
    before = len(stage.between.named("traverse")) + 1
    assert [outcome.kind for outcome in await stage.bartender.stat(EVE, requests)] == ["", ""]
    assert len(stage.between.named("traverse")) == before
    async with AsyncExitStack() as taken:
        for _ in range(bounds.ELEMENTS_AT_WORK_MAX):
            await taken.enter_async_context(places.one(JOE, LimitCounts(), stage.clock))
        asked = asyncio.create_task(stage.bartender.stat(EVE, requests))
        while len(stage.between.named("traverse")) == before:
            await asyncio.sleep(0)
        revoked = ModifyEntry("1", guid, "set", "policy", EVE.dn, "-read")
        await stage.librarian.modify_metadata(Call(BARTENDER_DN, (Role.BARTENDER,), BARTENDER_ID), (revoked,))
    assert [outcome.kind for outcome in await asked] == [Kind.DENIED.value, ""]


@scene
async def test_deletions_of_one_call_are_followed_together_and_anew_when_things_changed(stage: Stage) -> None:
    for number in range(6):
        await stage.make(f"/c{number}")
    names = iter(range(6))
    for drop in (stage.bartender.unlink, stage.bartender.unmake_collection):
        requests = tuple(NameRequest(f"{n}", f"/c{n}") for n in (next(names), next(names)))
        before = len(stage.between.named("traverse"))
        assert [outcome.kind for outcome in await drop(JOE, requests)] == ["", ""]
        assert len(stage.between.named("traverse")) == before + 1

    async def meanwhile() -> None:
        await stage.modify("/", "set", "policy", EVE.dn, "-removeEntry")

    await stage.modify("/", "set", "policy", EVE.dn, "+removeEntry")
    stage.between.before["unlink"] = meanwhile
    requests = (NameRequest("1", "/c4"), NameRequest("2", "/c5"))
    assert [outcome.kind for outcome in await stage.bartender.unlink(EVE, requests)] == [Kind.DENIED.value] * 2


@scene
async def test_elements_fail_by_themselves(stage: Stage) -> None:
    requests = tuple(MakeRequest(ln, ln) for ln in ("/a", "/no/x", "/a", "bad", "/b"))
    outcomes = await stage.bartender.make_collection(JOE, requests)
    assert [outcome.kind for outcome in outcomes] == ["", "no-parent", "exists", "bad-name", ""]


# --- removals together ------------------------------------------------------------------------------------------------


async def removed(stage: Stage, *names: str, call: Call = JOE) -> list[str]:
    """The answers to a bulk deletion."""
    requests = tuple(NameRequest(name, name) for name in names)
    return [outcome.kind for outcome in await stage.bartender.del_file(call, requests)]


@scene
async def test_files_of_one_call_go_in_one_transact(stage: Stage) -> None:
    names = [f"/f{number}" for number in range(bounds.REMOVED_TOGETHER_MAX + 5)]
    for name in names:
        await stage.put_file(name, needed=0)
    assert await removed(stage, *names) == [""] * len(names)
    assert len(stage.between.named("unlink_all")) == 2
    assert not stage.between.named("delete")
    assert (await stage.list("/"))[1] == []


@scene
async def test_what_cannot_go_with_the_others_is_answered_for_itself(stage: Stage) -> None:
    for name in ("/a", "/b", "/linked", "/theirs", "/c"):
        await stage.put_file(name, needed=0)
    await stage.make("/d")
    await stage.move("/linked", "/other", link=True)
    for name in ("/a", "/b", "/linked", "/d", "/c"):
        await stage.modify(name, "set", "policy", EVE.dn, "+delete")
    names = ("/a", "/no", "/linked", "/theirs", "/d", "bad", "/b", "/a", "/c")
    kinds = ["", "not-found", "", "denied", "not-a-file", "bad-name", "", "not-found", ""]
    assert await removed(stage, *names, call=EVE) == kinds
    assert await removed(stage, "/other", "/theirs", "/d") == ["not-found", "", "not-a-file"]
    assert (await stage.list("/"))[1] == ["d"]


@scene
async def test_one_that_changes_meanwhile_is_judged_anew_and_takes_no_other_along(stage: Stage) -> None:
    names = ("/a", "/b", "/c")
    for name in names:
        await stage.put_file(name, needed=0)
        await stage.modify(name, "set", "policy", EVE.dn, "+delete")

    async def revoked() -> None:
        await stage.modify("/b", "unset", "policy", EVE.dn)

    stage.between.before["unlink_all"] = revoked
    assert await removed(stage, *names, call=EVE) == ["", "denied", ""]
    assert (await stage.list("/"))[1] == ["b"]


@scene
async def test_removals_whose_answer_was_lost_are_answered_as_done_and_never_done_again(stage: Stage) -> None:
    for name in ("/a", "/b"):
        await stage.put_file(name, needed=0)
    stage.between.after["unlink_all"] = LOST
    call = keyed(JOE, "k")
    assert await removed(stage, "/a", "/no", "/b", call=call) == ["", "not-found", ""]
    await stage.put_file("/a", needed=0)
    assert await removed(stage, "/a", "/no", "/b", call=call) == ["", "not-found", ""]
    assert await stage.exists("/a")  # it is a new one
    await stage.move("/a", "/linked", link=True)
    await stage.modify("/", "set", "policy", EVE.dn, "+removeEntry")
    assert await removed(stage, "/a", "/no", "/b", call=call) == ["", "not-found", ""]
    assert await stage.exists("/a")  # also where it could not go with others


@scene
async def test_what_went_by_itself_does_not_go_again_with_others(stage: Stage) -> None:
    for name in ("/a", "/b"):
        await stage.put_file(name, needed=0)
        await stage.move(name, f"{name}2", link=True)  # what has two names cannot go with others
    call, requests = keyed(JOE, "k"), (NameRequest("1", "/a"), NameRequest("2", "/b"))
    assert [outcome.kind for outcome in await stage.bartender.unlink(call, requests)] == ["", ""]
    await stage.move("/a2", "/a")
    assert [outcome.kind for outcome in await stage.bartender.unlink(call, requests)] == ["", ""]
    assert await stage.exists("/a")


@scene
async def test_where_nobody_knows_what_went_together_nothing_goes_by_itself(stage: Stage) -> None:
    for name in ("/a", "/b"):
        await stage.put_file(name, needed=0)
    await stage.move("/a", "/a2", link=True)
    stage.between.after["unlink_all"] = LOST
    call, requests = keyed(JOE, "k"), (NameRequest("1", "/a"), NameRequest("2", "/b"))
    assert [outcome.kind for outcome in await stage.bartender.unlink(call, requests)] == ["outcome-unknown", ""]
    assert not stage.between.named("unlink")
    assert [outcome.kind for outcome in await stage.bartender.unlink(call, requests)] == ["", ""]
    assert (await stage.list("/"))[1] == ["a2"]


@scene
async def test_removals_of_which_nobody_can_say_whether_they_applied_are_told_so_until_somebody_can(
    stage: Stage,
) -> None:
    for name in ("/a", "/b"):
        await stage.put_file(name, needed=0)
    stage.between.after |= {"unlink_all": LOST, "recall": LOST}
    call = keyed(JOE, "k")
    assert sorted(await removed(stage, "/a", "/b", call=call)) == ["", "outcome-unknown"]
    assert await removed(stage, "/a", "/b", call=call) == ["", ""]
    assert not stage.between.named("delete")


@scene
async def test_a_librarian_that_cannot_take_names_together_takes_each(stage: Stage) -> None:
    for name in ("/a", "/b"):
        await stage.put_file(name, needed=0)
    stage.between.before["unlink_all"] = unknown_operation
    assert await removed(stage, "/a", "/b") == ["", ""]


async def unknown_operation() -> None:
    raise CheloniaError(Kind.NOT_SUPPORTED, "unlinkAll", "", "an older Librarian")


# --- request keys ----------------------------------------------------------------------------------------------------


def test_keys_belong_to_user_operation_subject_and_element() -> None:
    call = keyed(JOE, "k" * 128)
    keys = {
        element_key(call, "makeCollection", 0, "/a"),
        element_key(call, "makeCollection", 1, "/a"),
        element_key(call, "makeCollection", 0, "/b"),
        element_key(call, "unlink", 0, "/a"),
        element_key(keyed(EVE, "k" * 128), "makeCollection", 0, "/a"),
        element_key(keyed(JOE, "other"), "makeCollection", 0, "/a"),
    }
    assert len(keys) == 6
    assert all(parse_request_key(key) for key in keys)
    assert element_key(call, "unlink", 7, "/\ud800").endswith("/7")
    assert element_key(JOE, "unlink", 0, "/a") == ""


@scene
async def test_a_change_whose_answer_was_lost_is_answered_as_done(stage: Stage) -> None:
    stage.between.after["make_entry"] = LOST
    requests = (MakeRequest("1", "/a"), MakeRequest("2", "/b"))
    outcomes = await stage.bartender.make_collection(keyed(JOE, "k"), requests)
    assert [outcome.status for outcome in outcomes] == ["done", "done"]


@scene
async def test_a_first_call_that_is_refused_asks_nothing_more(stage: Stage) -> None:
    first = msgspec.structs.replace(keyed(JOE, "k"), is_first=True)
    assert (await stage.make("/a", first)).status == "done"
    assert (await stage.make("/a", msgspec.structs.replace(first, request_key=RequestKey("l")))).status == "LN exists"
    assert not stage.between.named("recall")
    stage.between.after["make_entry"] = LOST
    assert (await stage.make("/b", msgspec.structs.replace(first, request_key=RequestKey("m")))).status == "done"


@scene
async def test_a_repeated_call_is_answered_as_the_first(stage: Stage) -> None:
    call = keyed(JOE, "k")
    for _ in range(2):
        assert (await stage.make("/a", call)).status == "done"
    assert (await stage.make("/a", keyed(JOE, "k2"))).status == "LN exists"
    for _ in range(2):
        assert await stage.modify("/a", "add", "metadata", "k", "v", call) == "set"
    assert await stage.modify("/a", "add", "metadata", "k", "v", keyed(JOE, "k4")) == "condition failed"
    for _ in range(2):
        assert await stage.move("/a", "/b", call) == "moved"
    for _ in range(2):
        assert await stage.name_op("unmakeCollection", "/b", call) == "removed"
    assert await stage.name_op("unmakeCollection", "/b", keyed(JOE, "k3")) == "no such LN"


@scene
async def test_a_repeated_call_is_not_refused_while_nobody_can_say_whether_the_first_applied(stage: Stage) -> None:
    call = keyed(JOE, "k")
    assert (await stage.make("/a", call)).status == "done"
    stage.between.after["recall"] = CheloniaError(Kind.UNAVAILABLE, "recall", "", "the connection was cut")
    with pytest.raises(CheloniaError) as caught:
        await stage.make("/a", call)
    assert caught.value.meaning.retryable
    assert (await stage.make("/a", call)).status == "done"


@scene
async def test_another_users_key_answers_nothing_of_mine(stage: Stage) -> None:
    assert (await stage.make("/a", keyed(JOE, "k"))).status == "done"
    await stage.modify("/", "set", "policy", EVE.dn, "+addEntry")
    assert (await stage.make("/a", keyed(EVE, "k"))).status == "LN exists"


@scene
async def test_a_repeated_removal_by_one_who_lost_the_right(stage: Stage) -> None:
    await stage.put_file("/f", needed=0)
    await stage.modify("/f", "set", "policy", EVE.dn, "+delete")
    assert await stage.name_op("delFile", "/f", keyed(EVE, "k")) == "deleted"
    await stage.put_file("/f", needed=0)
    assert await stage.name_op("delFile", "/f", keyed(EVE, "k")) == "deleted"  # what he did, not the new file
    assert await stage.exists("/f")


# --- when nothing can be served --------------------------------------------------------------------------------------


@scene
async def test_a_call_of_which_nothing_can_be_served_is_a_fault(stage: Stage) -> None:
    await stage.ahash.close()
    with pytest.raises(CheloniaError) as caught:
        await stage.make("/a")
    assert caught.value.kind in (Kind.UNAVAILABLE, Kind.OUTCOME_UNKNOWN)
    assert caught.value.meaning.retryable


@scene
async def test_a_call_of_which_something_could_be_served_is_no_fault(stage: Stage) -> None:
    stage.between.after["make_entry"] = LOST
    outcomes = await stage.bartender.make_collection(JOE, (MakeRequest("1", "/a"), MakeRequest("2", "/b")))
    assert sorted(outcome.status for outcome in outcomes) == ["done", "internal error"]
    assert {outcome.kind for outcome in outcomes} == {"", "outcome-unknown"}


@pytest.mark.parametrize(
    ("kind", "op"),
    [
        (Kind.DENIED, "librarian.traverseLN"),
        (Kind.DENIED, "ahash.walk"),
        (Kind.UNTRUSTED, "connect"),
        (Kind.EXPIRED, "connect"),
        (Kind.UNTRUSTED, "identify"),
    ],
)
@scene
async def test_services_that_refuse_one_another_do_not_blame_the_user(stage: Stage, kind: Kind, op: str) -> None:
    stage.between.after["traverse"] = CheloniaError(kind, op, "", "not registered, or its certificate is not good")
    with fails(Kind.UNAVAILABLE, match="administrator can approve"):
        await stage.bartender.del_file(JOE, (NameRequest("1", "/f"),))


@scene
async def test_neither_keys_nor_space_are_refused_for_want_of_a_role_of_the_bartender(stage: Stage) -> None:
    refused = CheloniaError(Kind.DENIED, "librarian.some", "", "not registered and approved as bartender")
    keys, files = stage.bartender.keys, stage.bartender.files
    for method, ask in (
        ("access_key", lambda: keys.find("K" * 20)),
        ("access_key", lambda: keys.revoke(JOE, "K" * 20)),
        ("access_keys", lambda: keys.list(JOE)),
        ("keep_access_key", lambda: keys.create(JOE, NewKey())),
        ("nodes", lambda: files.space(JOE)),
    ):
        stage.between.after[method] = refused
        with fails(Kind.UNAVAILABLE, match="administrator can approve"):
            await ask()


@scene
async def test_entries_that_keep_changing_are_given_up(stage: Stage) -> None:
    await stage.put_file("/f", needed=0)
    number = 0

    async def touch() -> None:
        nonlocal number
        number += 1
        await stage.modify("/f", "set", "metadata", "k", str(number))
        stage.between.before["delete"] = touch

    stage.between.before["delete"] = touch
    (outcome,) = await stage.bartender.del_file(JOE, (NameRequest("1", "/f"),))
    assert outcome.kind == "conflict"
    assert await stage.exists("/f")
    assert 3 <= number <= 20


@scene
async def test_an_empty_call_has_an_empty_answer(stage: Stage) -> None:
    assert await stage.bartender.stat(JOE, ()) == ()
    assert await stage.bartender.move(JOE, ()) == ()


@scene
async def test_an_element_that_fails_after_a_second_try_leaves_nothing_of_its_tries(stage: Stage) -> None:
    """The error of the first try was the context of the last one. Its traceback held the frame that held both: the
    bytes of a small file stayed until the garbage collector came."""

    class Small(bytearray):
        """Bytes of one try."""

    tries = list[weakref.ref[Small]]()

    async def act(_turn: ElementCall, _name: str) -> str:
        data = Small(b"x")
        tries.append(weakref.ref(data))
        raise CheloniaError(Kind.CONFLICT if len(tries) == 1 else Kind.DENIED)

    operation = BulkOperation("put", act, lambda _name, _text, error: error.kind.value, str)
    gc.disable()
    try:
        assert await answer_all(stage.bartender._ports, JOE, operation, ("/f",)) == (Kind.DENIED.value,)
        assert [tried() for tried in tries] == [None, None]
    finally:
        gc.enable()
