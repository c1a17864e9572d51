"""The A-Hash port's contract, on every engine."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from chelonia.ahash.settings import AHashSettings
from chelonia.core import bounds
from chelonia.core.caller import Call, Role
from chelonia.core.contents.below import Below
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ObjectId, RequestKey
from chelonia.core.metadata import Needed
from chelonia.core.ports.ahash import (
    AHash,
    ChangeOutcome,
    ChangeStatus,
    ChangeType,
    Condition,
    ConditionType,
    Element,
    GroupChange,
    GroupStep,
    Unmet,
    Walk,
)
from chelonia.core.rights.access import ACCESS
from chelonia.core.values import replace
from tests.support.ahash import (
    ENGINES,
    LIBRARIAN,
    OTHER_LIBRARIAN,
    HandClock,
    add,
    check,
    delete,
    empty,
    is_set,
    is_unset,
    is_value,
    isnot_value,
    open_store,
    put,
    serving,
    unset,
    version_is,
)
from tests.support.failing import fails
from tests.support.group import LastingGroup

NO_KEY = RequestKey("")


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LastingGroup]:
    """Three replicas on Berkeley DB, shared by all tests."""
    made = LastingGroup(tmp_path_factory.mktemp("group"))
    yield made
    made.close()


@pytest.fixture(params=[*ENGINES, "master of three", "follower of three"])
async def ahash(request: pytest.FixtureRequest, tmp_path: Path, clock: HandClock) -> AsyncIterator[AHash]:
    if request.param in ENGINES:
        async with serving(open_store(request.param, tmp_path), clock) as service:
            yield service
    else:
        shared: LastingGroup = request.getfixturevalue("group")
        yield shared.fresh(at_master=request.param == "master of three", clock=clock)


async def apply(ahash: AHash, *elements: Element) -> None:
    outcome = await ahash.transact(LIBRARIAN, NO_KEY, elements)
    assert outcome.applied, outcome


async def sections(ahash: AHash, object_id: str) -> dict[str, dict[str, str]]:
    (found,) = await ahash.get(LIBRARIAN, (ObjectId(object_id),))
    return {name: dict(properties) for name, properties in found.sections.items()}


async def version(ahash: AHash, object_id: str) -> int:
    return (await ahash.get(LIBRARIAN, (ObjectId(object_id),)))[0].version


async def fill(ahash: AHash, object_id: str, section: str, names: list[str]) -> None:
    for start in range(0, len(names), 1000):
        await apply(ahash, *(put(object_id, section, name, f"of {name}") for name in names[start : start + 1000]))


# --- atomicity and conditions ----------------------------------------------------------------------------------------


async def test_a_transact_changes_all_its_objects(ahash: AHash) -> None:
    await apply(ahash, put("a", "s", "p", "1"), put("b", "entries", "n", "g"), put("c", "s", "p", ""))
    found = await ahash.get(LIBRARIAN, (ObjectId("c"), ObjectId("nothing"), ObjectId("a"), ObjectId("b")))
    assert [dict(o.sections) for o in found] == [{"s": {"p": ""}}, {}, {"s": {"p": "1"}}, {"entries": {"n": "g"}}]
    assert [o.version for o in found] == [1, 0, 1, 1]


async def test_one_unmet_condition_stops_every_element(ahash: AHash) -> None:
    await apply(ahash, put("a", "s", "p", "1"))
    last = replace(put("c", "s", "p", "1", is_value("s", "p", "1")), change_id="third")
    outcome = await ahash.transact(LIBRARIAN, NO_KEY, (put("a", "s", "p", "2"), put("b", "s", "p", "2"), last))
    assert (outcome.applied, outcome.unmet) == (False, Unmet("third", "is"))
    assert await sections(ahash, "a") == {"s": {"p": "1"}}
    assert await version(ahash, "b") == 0


async def test_conditions_read_the_state_before_the_first_change(ahash: AHash) -> None:
    await apply(ahash, put("a", "s", "p", "old"))
    await apply(ahash, put("a", "s", "p", "new"), check("a", is_value("s", "p", "old")))
    assert await sections(ahash, "a") == {"s": {"p": "new"}}


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        (is_value("s", "p", "v"), True),
        (is_value("s", "p", "w"), False),
        (is_value("s", "absent", ""), False),
        (isnot_value("s", "p", "v"), False),
        (isnot_value("s", "p", "w"), True),
        (isnot_value("s", "absent", "v"), True),
        (is_set("s", "p"), True),
        (is_set("s", "absent"), False),
        (is_unset("s", "p"), False),
        (is_unset("absent", "p"), True),
        (is_value("entries", "n", "g"), True),
        (is_value("entries", "n", "h"), False),
        (isnot_value("entries", "absent", "g"), True),
        (is_set("entries", "n"), True),
        (is_unset("entries", "n"), False),
        (empty("s"), False),
        (empty("absent"), True),
        (empty("entries"), False),
        (empty("pending"), True),
        (version_is(1), True),
        (version_is(2), False),
        (version_is(0), False),
    ],
    ids=str,
)
async def test_each_condition(ahash: AHash, condition: Condition, holds: bool) -> None:
    await apply(ahash, put("o", "s", "p", "v"), put("o", "entries", "n", "g"))
    outcome = await ahash.transact(LIBRARIAN, NO_KEY, (check("o", condition),))
    assert outcome.applied is holds


async def test_conditions_on_an_object_that_does_not_exist(ahash: AHash) -> None:
    await apply(ahash, check("o", version_is(0), empty("entries"), empty("s"), is_unset("s", "p")))
    assert await version(ahash, "o") == 0


async def test_an_emptied_wide_section_is_empty(ahash: AHash) -> None:
    await apply(ahash, put("o", "s", "p", "v"), put("o", "entries", "a", "1"), put("o", "entries", "b", "2"))
    await apply(ahash, unset("o", "entries", "a"), unset("o", "entries", "b"))
    await apply(ahash, delete("o", empty("entries")))
    assert await version(ahash, "o") == 0


# --- changes and versions --------------------------------------------------------------------------------------------


async def test_add_counts_from_zero_in_narrow_and_wide_sections(ahash: AHash) -> None:
    await apply(ahash, add("o", "s", "n", 5), add("o", "s", "n", -7), add("o", "file", "w", 3))
    await apply(ahash, add("o", "s", "n", 1), add("o", "file", "w", 3))
    assert await sections(ahash, "o") == {"s": {"n": "-1"}, "file": {"w": "6"}}


@pytest.mark.parametrize("stored", ["x", "", "1.5", "9" * 19])
async def test_add_to_what_is_no_integer_changes_nothing(ahash: AHash, stored: str) -> None:
    await apply(ahash, put("o", "s", "p", stored))
    with fails(Kind.BAD_REQUEST):
        await ahash.transact(LIBRARIAN, NO_KEY, (put("other", "s", "p", "v"), add("o", "s", "p", 1)))
    assert await version(ahash, "other") == 0


async def test_add_does_not_pass_the_bound(ahash: AHash) -> None:
    await apply(ahash, put("o", "s", "p", str(2**63 - 1)))
    with pytest.raises(CheloniaError, match="bad-request"):
        await ahash.transact(LIBRARIAN, NO_KEY, (add("o", "s", "p", 1),))


async def test_the_version_counts_transacts_that_change_narrow_sections(ahash: AHash) -> None:
    await apply(ahash, put("o", "s", "p", "1"), put("o", "s", "q", "1"))
    assert await version(ahash, "o") == 1
    await apply(ahash, put("o", "s", "p", "2"), unset("o", "s", "q"), add("o", "s", "r", 1))
    assert await version(ahash, "o") == 2
    await apply(ahash, put("o", "entries", "n", "g"), unset("o", "entries", "absent"), unset("o", "s", "absent"))
    assert await version(ahash, "o") == 2
    await apply(ahash, check("o", version_is(2)))
    assert await version(ahash, "o") == 2


async def test_a_wide_property_alone_makes_an_object(ahash: AHash) -> None:
    await apply(ahash, put("o", "file", "r", "b"), put("o", "file", "r2", "b"))
    assert await version(ahash, "o") == 1
    await apply(ahash, unset("o", "file", "r"))
    assert await version(ahash, "o") == 1
    await apply(ahash, unset("o", "file", "r2"))
    assert await version(ahash, "o") == 0


async def test_an_object_goes_with_its_last_property(ahash: AHash) -> None:
    await apply(ahash, put("o", "s", "p", "v"), put("o", "entries", "n", "g"))
    await apply(ahash, unset("o", "s", "p"))
    assert await version(ahash, "o") == 2
    assert await sections(ahash, "o") == {"entries": {"n": "g"}}
    await apply(ahash, unset("o", "entries", "n"))
    assert await version(ahash, "o") == 0


async def test_made_and_unmade_in_one_transact_leaves_nothing(ahash: AHash) -> None:
    await apply(ahash, put("o", "s", "p", "v"), put("o", "entries", "n", "g"), delete("o"))
    assert await version(ahash, "o") == 0
    assert await sections(ahash, "o") == {}


async def test_deleted_and_made_anew_in_one_transact_continues_the_version(ahash: AHash) -> None:
    await apply(ahash, put("o", "s", "p", "v"), put("o", "entries", "n", "g"))
    await apply(ahash, delete("o"), put("o", "t", "q", "w"))
    assert await version(ahash, "o") == 2
    assert await sections(ahash, "o") == {"t": {"q": "w"}}


async def test_delete_takes_a_few_wide_properties_along_and_refuses_many(ahash: AHash) -> None:
    names = [f"n{i:05}" for i in range(bounds.DELETE_WIDE_MAX + 1)]
    await fill(ahash, "o", "entries", names)
    with fails(Kind.TOO_LARGE):
        await ahash.transact(LIBRARIAN, NO_KEY, (delete("o"),))
    await apply(ahash, unset("o", "entries", names[7]))
    await apply(ahash, delete("o"))
    assert await version(ahash, "o") == 0
    assert not (await ahash.scan(LIBRARIAN, ObjectId("o"), "entries")).items


async def test_deleting_one_object_leaves_those_with_similar_names(ahash: AHash) -> None:
    for name in ("o", "o1", "o\x01", "O", "o:"):
        await apply(ahash, put(name, "entries", "n", "g"), put(name, "entriesx", "n", "g"))
    await apply(ahash, delete("o"))
    assert [await version(ahash, name) for name in ("o", "o1", "o\x01", "O", "o:")] == [0, 1, 1, 1, 1]


# --- request keys ----------------------------------------------------------------------------------------------------


async def test_a_retry_applies_once_and_is_answered_as_the_first_try(ahash: AHash) -> None:
    key, element = RequestKey("put/1"), add("o", "s", "n", 1)
    first = await ahash.transact(LIBRARIAN, key, (element,), memo="the note é")
    await apply(ahash, put("p", "s", "p", "v"))
    again = await ahash.transact(LIBRARIAN, key, (element,), memo="another note")
    assert again == replace(first, recalled=True)
    assert (first.memo, first.recalled) == ("the note é", False)
    assert await sections(ahash, "o") == {"s": {"n": "1"}}
    assert await ahash.recall(LIBRARIAN, key) == again


async def test_a_key_is_shared_by_all_librarians(ahash: AHash) -> None:
    key, element = RequestKey("k"), add("o", "s", "n", 1)
    first = await ahash.transact(LIBRARIAN, key, (element,), "note")
    assert await ahash.recall(OTHER_LIBRARIAN, key) == replace(first, recalled=True)
    again = await ahash.transact(OTHER_LIBRARIAN, key, (element,))
    assert again == replace(first, recalled=True)
    assert await sections(ahash, "o") == {"s": {"n": "1"}}


async def test_an_unmet_condition_is_not_kept_under_the_key(ahash: AHash) -> None:
    key, element = RequestKey("k"), put("o", "s", "p", "v", is_set("t", "q"))
    assert not (await ahash.transact(LIBRARIAN, key, (element,))).applied
    assert await ahash.recall(LIBRARIAN, key) is None
    await apply(ahash, put("o", "t", "q", "w"))
    assert (await ahash.transact(LIBRARIAN, key, (element,))).applied


async def test_without_a_key_each_try_applies(ahash: AHash) -> None:
    await apply(ahash, add("o", "s", "n", 1))
    await apply(ahash, add("o", "s", "n", 1))
    assert await sections(ahash, "o") == {"s": {"n": "2"}}


async def test_a_key_is_remembered_ten_minutes_and_then_forgotten(ahash: AHash, clock: HandClock) -> None:
    key, element = RequestKey("k"), add("o", "s", "n", 1)
    await ahash.transact(LIBRARIAN, key, (element,))
    clock.advance(10 * 60 * 1000)
    assert (await ahash.transact(LIBRARIAN, key, (element,))).recalled
    clock.advance(bounds.REQUEST_KEY_KEEP_MS)
    assert await ahash.recall(LIBRARIAN, key) is None
    assert not (await ahash.transact(LIBRARIAN, key, (element,))).recalled
    assert await sections(ahash, "o") == {"s": {"n": "2"}}


async def test_a_key_used_anew_outlives_the_sweep_of_its_first_use(ahash: AHash, clock: HandClock) -> None:
    key, element = RequestKey("k"), add("o", "s", "n", 1)
    await ahash.transact(LIBRARIAN, key, (element,))
    clock.advance(bounds.REQUEST_KEY_KEEP_MS + 1)
    await ahash.transact(LIBRARIAN, key, (element,))
    clock.advance(2000)
    await apply(ahash, put("p", "s", "p", "v"))
    assert await ahash.recall(LIBRARIAN, key) is not None


async def test_the_same_key_many_times_at_once_applies_once(ahash: AHash) -> None:
    tries = (ahash.transact(LIBRARIAN, RequestKey("k"), (add("o", "s", "n", 1),)) for _ in range(20))
    outcomes = await asyncio.gather(*tries)
    assert [o.recalled for o in outcomes].count(False) == 1
    assert {o.position for o in outcomes} == {outcomes[0].position}
    assert await sections(ahash, "o") == {"s": {"n": "1"}}


async def test_a_recall_waits_for_the_transact_before_it(ahash: AHash) -> None:
    first = asyncio.create_task(ahash.transact(LIBRARIAN, RequestKey("k"), (add("o", "s", "n", 1),), "note"))
    await asyncio.sleep(0)
    recalled = await ahash.recall(LIBRARIAN, RequestKey("k"))
    assert recalled is not None
    assert recalled == replace(await first, recalled=True)


# --- reading ---------------------------------------------------------------------------------------------------------

ODD_NAMES = ["a", "B", "é", "e\u0301", "z", "\U0001f422", "ﬀ", "%", " ", "a/", "a.b", "a b", "..", "\x01", "\x7f", "中"]


async def test_pages_follow_the_byte_order_of_utf8(ahash: AHash) -> None:
    for section in ("entries", "narrow"):
        await fill(ahash, "o", section, ODD_NAMES)
        seen: list[str] = []
        after = ""
        while True:
            page = await ahash.scan(LIBRARIAN, ObjectId("o"), section, after, 3)
            assert all(value == f"of {name}" for name, value in page.items)
            seen += [name for name, _ in page.items]
            if not page.more:
                break
            assert len(page.items) == 3
            after = page.items[-1][0]
        assert seen == sorted(ODD_NAMES, key=str.encode)


async def test_a_page_may_start_after_a_name_that_is_not_there(ahash: AHash) -> None:
    await fill(ahash, "o", "entries", ["a", "ab", "b", "c"])
    page = await ahash.scan(LIBRARIAN, ObjectId("o"), "entries", "aa", 2)
    assert ([name for name, _ in page.items], page.more) == (["ab", "b"], True)
    page = await ahash.scan(LIBRARIAN, ObjectId("o"), "entries", "b", 2)
    assert ([name for name, _ in page.items], page.more) == (["c"], False)
    assert (await ahash.scan(LIBRARIAN, ObjectId("absent"), "entries")).items == ()


async def test_a_large_wide_section_is_paged_and_never_cut(ahash: AHash) -> None:
    names = [f"name {i:05}" for i in range(5000)]
    await apply(ahash, put("o", "s", "p", "v"), put("o", "pending", "n", "g"))
    await fill(ahash, "o", "entries", names)
    (whole,) = await ahash.get(LIBRARIAN, (ObjectId("o"),))
    assert dict(whole.sections) == {"s": {"p": "v"}, "pending": {"n": "g"}}
    assert dict(whole.counts) == {"entries": bounds.SECTION_WHOLE_MAX + 1}
    with fails(Kind.TOO_LARGE, match="scan"):
        await ahash.get(LIBRARIAN, (ObjectId("o"),), (Needed("entries"),))
    (point,) = await ahash.get(LIBRARIAN, (ObjectId("o"),), (Needed("entries", names[4321]), Needed("entries", "x")))
    assert dict(point.sections) == {"entries": {names[4321]: f"of {names[4321]}"}}
    seen: list[str] = []
    more = True
    while more:
        page = await ahash.scan(LIBRARIAN, ObjectId("o"), "entries", seen[-1] if seen else "", 10_000)
        assert len(page.items) <= bounds.PAGE_ENTRIES_MAX
        seen += [name for name, _ in page.items]
        more = page.more
    assert seen == names


async def test_a_wide_section_at_the_bound_is_returned_whole(ahash: AHash) -> None:
    await fill(ahash, "o", "entries", [f"{i:04}" for i in range(bounds.SECTION_WHOLE_MAX)])
    for needed in ((), (Needed("entries"),)):
        (found,) = await ahash.get(LIBRARIAN, (ObjectId("o"),), needed)
        assert len(found.sections["entries"]) == bounds.SECTION_WHOLE_MAX
        assert not found.counts


async def test_a_filter_returns_what_it_names(ahash: AHash) -> None:
    await apply(
        ahash, put("o", "s", "p", "1"), put("o", "s", "q", "2"), put("o", "t", "r", "3"), put("o", "file", "f", "4")
    )
    cases = {
        (Needed("s"),): {"s": {"p": "1", "q": "2"}},
        (Needed("s", "q"), Needed("t")): {"s": {"q": "2"}, "t": {"r": "3"}},
        (Needed("file"),): {"file": {"f": "4"}},
        (Needed("absent"), Needed("s", "absent")): {},
    }
    for needed, expected in cases.items():
        (found,) = await ahash.get(LIBRARIAN, (ObjectId("o"),), needed)
        assert {name: dict(properties) for name, properties in found.sections.items()} == expected
        assert found.version == 1


async def test_a_walk_follows_the_first_candidate_that_is_set(ahash: AHash) -> None:
    await apply(ahash, put("0", "entries", "a/", "A"), put("0", "entries", "a", "wrong"), put("A", "entries", "f", "F"))
    await apply(ahash, put("F", "entry", "type", "file"), put("F", "entry", "owner", "me"))
    start = ObjectId("0")
    walks = (
        Walk(start, (("a/", "a"), ("f/", "f"))),
        Walk(start, (("a/",), ("absent/", "absent"), ("f",))),
        Walk(start, ()),
        Walk(ObjectId("absent"), (("a",),)),
    )
    there, partly, nowhere, absent = await ahash.walk(LIBRARIAN, walks, (Needed("entry", "type"),))
    assert [(step.property, step.object) for step in there.taken] == [("a/", "A"), ("f", "F")]
    assert (there.last.id, dict(there.last.sections)) == ("F", {"entry": {"type": "file"}})
    assert ([step.property for step in partly.taken], partly.last.id) == (["a/"], "A")
    assert (nowhere.taken, nowhere.last.id) == ((), "0")
    assert (absent.taken, absent.last.version) == ((), 0)


async def test_a_walk_follows_narrow_sections_too(ahash: AHash) -> None:
    await apply(ahash, put("a", "next", "x", "b"), put("b", "s", "p", "v"))
    (walked,) = await ahash.walk(LIBRARIAN, (Walk(ObjectId("a"), (("y", "x"), ("z",)), "next"),))
    assert [step.object for step in walked.taken] == ["b"]
    assert dict(walked.last.sections) == {"s": {"p": "v"}}


async def test_what_is_below_an_object_comes_in_one_page_of_one_state(ahash: AHash) -> None:
    await apply(ahash, put("0", "entries", "a/", "A"), put("0", "entries", "a.", "F"), put("A", "entries", "x-1", "X"))
    await apply(ahash, put("A", "entries", "x-2", "Y"), put("A", "entries", "z", "Z"), put("Z", "s", "p", "v"))
    page = await ahash.below(LIBRARIAN, Below(ObjectId("0"), limit=3, needed=(Needed("s"),)))
    assert [leaf.path for leaf in page.leaves] == ["a.", "a/", "a/x-1"]
    assert (page.after, page.crossed) == ("a/x-1", ())
    rest = await ahash.below(LIBRARIAN, Below(ObjectId("0"), page.after, delimiter="-", needed=(Needed("s"),)))
    assert [(leaf.path, leaf.object and dict(leaf.object.sections)) for leaf in rest.leaves] == [
        ("a/z", {"s": {"p": "v"}})
    ]
    assert ([leaf.path for leaf in rest.crossed], rest.after) == (["a/"], "")
    summed = await ahash.below(LIBRARIAN, Below(ObjectId("0"), prefix="a/", delimiter="-"))
    assert [(leaf.path, leaf.object is None) for leaf in summed.leaves] == [
        ("a/", False), ("a/x-", True), ("a/z", False),
    ]  # fmt: skip
    for wrong in (Below(ObjectId("0"), limit=0), Below(ObjectId("0"), "a\0"), Below(ObjectId("0"), prefix="\ud800")):
        with fails(Kind.BAD_REQUEST):
            await ahash.below(LIBRARIAN, wrong)


async def test_a_walk_through_a_cycle_ends_with_its_steps(ahash: AHash) -> None:
    await apply(ahash, put("0", "entries", "a/", "0"))
    (walked,) = await ahash.walk(LIBRARIAN, (Walk(ObjectId("0"), (("a/",),) * 64),), (Needed("entry"),))
    assert len(walked.taken) == 64


# --- the original's change -------------------------------------------------------------------------------------------


def old(change: ChangeType, object_id: str, prop: str = "p", value: str = "", *conditions: Condition) -> Element:
    return Element(ObjectId(object_id), change, "s", prop, value, conditions, f"{change.value} {object_id}")


async def test_change_answers_as_the_original_did(ahash: AHash) -> None:
    answers = await ahash.change(
        LIBRARIAN,
        (
            old(ChangeType.SET, "a", "p", "1"),
            old(ChangeType.UNSET, "a", "absent"),
            old(ChangeType.SET, "a", "p", "2", is_value("s", "p", "1"), is_set("s", "absent")),
            old(ChangeType.SET, "a", "q", "3", is_value("s", "p", "1"), isnot_value("s", "absent", "x")),
            old(ChangeType.DELETE, "absent"),
            old(ChangeType.ADD, "a", "p", "1"),
            old(ChangeType.CHECK, "a"),
            old(ChangeType.SET, "a", "p", "4", version_is(1)),
            old(ChangeType.UNSET, "a", "p"),
        ),
    )
    assert answers == (
        ChangeOutcome("set a", ChangeStatus.SET),
        ChangeOutcome("unset a", ChangeStatus.FAILED),
        ChangeOutcome("set a", ChangeStatus.CONDITION_NOT_MET, "isset"),
        ChangeOutcome("set a", ChangeStatus.SET),
        ChangeOutcome("delete absent", ChangeStatus.DELETED),
        ChangeOutcome("add a", ChangeStatus.INVALID),
        ChangeOutcome("check a", ChangeStatus.INVALID),
        ChangeOutcome("set a", ChangeStatus.CONDITION_NOT_MET, "version"),
        ChangeOutcome("unset a", ChangeStatus.UNSET),
    )
    assert await sections(ahash, "a") == {"s": {"q": "3"}}


async def test_change_removes_an_object_with_its_last_property(ahash: AHash) -> None:
    elements = (old(ChangeType.SET, "a", "p", "1"), old(ChangeType.UNSET, "a"), old(ChangeType.DELETE, "a"))
    assert [o.status.value for o in await ahash.change(LIBRARIAN, elements)] == ["set", "unset", "deleted"]
    assert await version(ahash, "a") == 0


async def test_change_fails_where_a_delete_would_be_too_large(ahash: AHash) -> None:
    await fill(ahash, "o", "entries", [f"{i:05}" for i in range(bounds.DELETE_WIDE_MAX + 1)])
    elements = (old(ChangeType.DELETE, "o"), old(ChangeType.SET, "b", "p", "v"))
    assert [o.status.value for o in await ahash.change(LIBRARIAN, elements)] == ["failed", "set"]


# --- bad input -------------------------------------------------------------------------------------------------------

BAD_ELEMENTS = {
    "NUL in id": (put("a\0b", "s", "p", "v"), Kind.BAD_REQUEST),
    "NUL in section": (put("a", "s\0", "p", "v"), Kind.BAD_REQUEST),
    "NUL in property": (put("a", "s", "\0p", "v"), Kind.BAD_REQUEST),
    "no id": (put("", "s", "p", "v"), Kind.BAD_REQUEST),
    "no section": (put("a", "", "p", "v"), Kind.BAD_REQUEST),
    "no property": (unset("a", "s", ""), Kind.BAD_REQUEST),
    "half a surrogate pair": (put("a", "s", "p", "\ud800"), Kind.BAD_REQUEST),
    "long id": (delete("é" * (bounds.PROPERTY_BYTES_MAX // 2 + 1)), Kind.TOO_LARGE),
    "long section": (put("a", "s" * 256, "p", "v"), Kind.TOO_LARGE),
    "long property": (put("a", "s", "p" * (bounds.PROPERTY_BYTES_MAX + 1), "v"), Kind.TOO_LARGE),
    "long value": (put("a", "s", "p", "v" * (bounds.VALUE_BYTES_MAX + 1)), Kind.TOO_LARGE),
    "amount": (Element(ObjectId("a"), ChangeType.ADD, "s", "p", "many"), Kind.BAD_REQUEST),
    "large amount": (Element(ObjectId("a"), ChangeType.ADD, "s", "p", str(2**63)), Kind.BAD_REQUEST),
    "version": (check("a", Condition(ConditionType.VERSION, value="v1")), Kind.BAD_REQUEST),
    "at most": (check("a", Condition(ConditionType.AT_MOST, "s", "p", "few")), Kind.BAD_REQUEST),
    "condition without property": (check("a", is_set("s", "")), Kind.BAD_REQUEST),
    "condition with NUL": (check("a", empty("s\0")), Kind.BAD_REQUEST),
}


@pytest.mark.parametrize("case", BAD_ELEMENTS)
async def test_a_bad_element_is_refused_before_anything_changes(ahash: AHash, case: str) -> None:
    element, kind = BAD_ELEMENTS[case]
    with fails(kind):
        await ahash.transact(LIBRARIAN, NO_KEY, (put("good", "s", "p", "v"), element))
    assert await version(ahash, "good") == 0


@pytest.mark.parametrize("bad", ["\ud800", "a\0b", ""], ids=["surrogate", "NUL", "empty"])
async def test_reads_refuse_names_that_cannot_be_keys(ahash: AHash, bad: str) -> None:
    calls = (
        ahash.get(LIBRARIAN, (ObjectId(bad),)),
        ahash.get(LIBRARIAN, (ObjectId("a"),), (Needed(bad),)),
        ahash.scan(LIBRARIAN, ObjectId(bad), "entries"),
        ahash.scan(LIBRARIAN, ObjectId("a"), bad),
        ahash.walk(LIBRARIAN, (Walk(ObjectId(bad), ()),)),
        ahash.walk(LIBRARIAN, (Walk(ObjectId("a"), ((bad,),)),)),
        ahash.recall(LIBRARIAN, RequestKey(bad)),
    )
    for call in calls:
        with fails(Kind.BAD_REQUEST):
            await call


async def test_bounds_of_calls(ahash: AHash) -> None:
    many = bounds.TRANSACT_ELEMENTS_MAX + 1
    wrong = (
        ahash.transact(LIBRARIAN, NO_KEY, (check("a"),) * many),
        ahash.change(LIBRARIAN, (put("a", "s", "p", "v"),) * many),
        ahash.get(LIBRARIAN, (ObjectId("a"),) * many),
        ahash.walk(LIBRARIAN, (Walk(ObjectId("a"), (("a",),) * (bounds.LN_DEPTH_MAX + 1)),)),
        ahash.transact(LIBRARIAN, NO_KEY, (), "m" * (bounds.MEMO_BYTES_MAX + 1)),
    )
    for call in wrong:
        with fails(Kind.TOO_LARGE):
            await call


async def test_an_object_has_a_bounded_number_of_narrow_properties(ahash: AHash) -> None:
    await fill(ahash, "o", "s", [str(i) for i in range(bounds.OBJECT_PROPERTIES_MAX)])
    with fails(Kind.TOO_LARGE):
        await ahash.transact(LIBRARIAN, NO_KEY, (put("o", "t", "one more", "v"),))
    await apply(ahash, put("o", "s", "5", "changed"), put("o", "entries", "n", "wide ones are not counted"))


async def test_odd_names_and_values_come_back_as_they_went(ahash: AHash) -> None:
    value = "\0 \n \U0001f422 é e\u0301 " + "x" * 1000
    for name in ODD_NAMES:
        await apply(ahash, put(name, f"s{name}", name, value), put(name, "entries", name, value))
    for name in ODD_NAMES:
        assert await sections(ahash, name) == {f"s{name}": {name: value}, "entries": {name: value}}


# --- many callers, access, status ------------------------------------------------------------------------------------


async def test_changes_of_64_callers_apply_one_after_the_other(ahash: AHash) -> None:
    async def caller(me: int) -> list[int]:
        won = []
        for turn in range(10):
            await apply(ahash, add("count", "s", "n", 1), put("log", "entries", f"{me:02}.{turn}", "x"))
            first = put("race", "entries", str(turn), str(me), is_unset("entries", str(turn)))
            if (await ahash.transact(LIBRARIAN, NO_KEY, (first,))).applied:
                won.append(turn)
        return won

    winners = await asyncio.gather(*(caller(me) for me in range(64)))
    assert await sections(ahash, "count") == {"s": {"n": "640"}}
    assert len((await ahash.scan(LIBRARIAN, ObjectId("log"), "entries")).items) == 640
    assert sorted(turn for won in winners for turn in won) == list(range(10))
    held = (await sections(ahash, "race"))["entries"]
    assert all(turn in winners[int(held[str(turn)])] for turn in range(10))


async def test_one_callers_changes_keep_their_order(ahash: AHash) -> None:
    await asyncio.gather(*(apply(ahash, put("o", "s", "p", str(i)), put("o", "s", f"{i}", "")) for i in range(300)))
    assert (await sections(ahash, "o"))["s"]["p"] == "299"


async def test_a_reader_never_sees_half_a_transact(ahash: AHash) -> None:
    async def write() -> None:
        for i in range(100):
            await apply(ahash, put("a", "s", "p", str(i)), put("z", "entries", "p", str(i)))

    writing = asyncio.create_task(write())
    reads = 0
    while not writing.done() or not reads:
        first, second = await ahash.get(LIBRARIAN, (ObjectId("a"), ObjectId("z")))
        assert first.value("s", "p") == second.value("entries", "p")
        reads += 1
        await asyncio.sleep(0)
    await writing


async def regroup_nobody(ahash: AHash, call: Call) -> None:
    """Removing a replica that is not there: a lone A-Hash answers that it has none."""
    with pytest.raises(CheloniaError) as caught:
        await ahash.regroup(call, GroupChange(GroupStep.REMOVE, 99))
    if caught.value.kind not in (Kind.NOT_SUPPORTED, Kind.NOT_FOUND):
        raise caught.value


async def backup_nowhere(ahash: AHash, call: Call) -> None:
    """A backup fails where no directory for backups is configured."""
    with pytest.raises(CheloniaError) as caught:
        await ahash.backup(call, "copy")
    if caught.value.kind is not Kind.NOT_SUPPORTED:
        raise caught.value


OPERATIONS: dict[str, Callable[[AHash, Call], Awaitable[object]]] = {
    "get": lambda a, c: a.get(c, (ObjectId("o"),)),
    "change": lambda a, c: a.change(c, ()),
    "transact": lambda a, c: a.transact(c, NO_KEY, ()),
    "recall": lambda a, c: a.recall(c, RequestKey("k")),
    "walk": lambda a, c: a.walk(c, ()),
    "scan": lambda a, c: a.scan(c, ObjectId("o"), "entries"),
    "below": lambda a, c: a.below(c, Below(ObjectId("o"))),
    "objects": lambda a, c: a.objects(c),
    "regroup": regroup_nobody,
    "backup": backup_nowhere,
    "status": lambda a, c: a.status(c),
}


async def test_only_those_the_table_names_may_call(ahash: AHash) -> None:
    assert set(OPERATIONS) == {operation for service, operation in ACCESS if service == "ahash"}
    for operation, call in OPERATIONS.items():
        for role in (None, *Role):
            caller = Call(roles=() if role is None else (role,))
            if role in ACCESS["ahash", operation]:
                await call(ahash, caller)
                continue
            with fails(Kind.DENIED):
                await call(ahash, caller)


async def test_status_tells_position_and_number_of_objects(ahash: AHash) -> None:
    before = await ahash.status(LIBRARIAN.strongly())
    assert (before.position.cluster, before.position.generation, before.role) == ("test", 1, "master")
    outcome = await ahash.transact(LIBRARIAN, NO_KEY, (put("a", "s", "p", "v"), put("b", "file", "f", "v")))
    await apply(ahash, check("a"))
    status = await ahash.status(LIBRARIAN.strongly())
    assert status.position == outcome.position > before.position
    assert status.objects_estimate == 2
    await apply(ahash, delete("a"), delete("b"), delete("c"))
    status = await ahash.status(LIBRARIAN.strongly())
    assert status.objects_estimate == 0
    assert status.writable
    assert status.free_bytes > 0


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_full_queue_and_a_closed_service_say_retry(engine: str, tmp_path: Path) -> None:
    settings = AHashSettings(cluster="test", queue_max=3, batch_max=1)
    async with serving(open_store(engine, tmp_path), settings=settings) as service:
        tries = (service.transact(LIBRARIAN, NO_KEY, (add("o", "s", "n", 1),)) for _ in range(8))
        answers = await asyncio.gather(*tries, return_exceptions=True)
        refused = [a for a in answers if isinstance(a, CheloniaError)]
        assert refused
        assert {error.kind for error in refused} == {Kind.UNAVAILABLE}
        assert service.limits.reached == {"changes_waiting": len(refused)}
        assert await sections(service, "o") == {"s": {"n": str(8 - len(refused))}}
        last = asyncio.create_task(service.transact(LIBRARIAN, NO_KEY, (add("o", "s", "n", 1),)))
        await asyncio.sleep(0)
        await service.close()
        assert (await last).applied, "what was taken before closing is finished and answered"
        for call in (service.transact(LIBRARIAN, NO_KEY, ()), service.get(LIBRARIAN, (ObjectId("o"),))):
            with fails(Kind.UNAVAILABLE):
                await call


# ------------------------------------------------------------------------------------------------------------- all ids


async def test_all_ids_come_page_by_page_in_byte_order(ahash: AHash) -> None:
    names = ["0", "blob:b", "sys:tree", "é", "a"]
    for name in names:
        await apply(ahash, put(name, "entries" if name == "0" else "s", "p", "v"))
    await apply(ahash, delete("a"))
    seen: list[str] = []
    more, after = True, ""
    while more:
        page = await ahash.objects(LIBRARIAN, after, 2)
        assert len(page.ids) <= 2
        seen, more, after = [*seen, *page.ids], page.more, page.ids[-1]
    assert seen == ["0", "blob:b", "sys:tree", "é"]
    assert (await ahash.objects(LIBRARIAN, "é", 2)).ids == ()
    with pytest.raises(CheloniaError, match="at least one id"):
        await ahash.objects(LIBRARIAN, "", 0)
