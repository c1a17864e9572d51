"""modify: the whitelist, the right of each section, the rules of states."""

import msgspec
import pytest

from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.metadata import TYPE_FILE, TYPE_SYMLINK
from chelonia.core.ports.bartender import ModifyRequest
from chelonia.core.ports.files import Done, Failure, Inline, Look, Looked, Make, Remove, Removing, Set, Write
from chelonia.core.rights.locks import Lock
from chelonia.core.rights.scopes import CHANGING, READING, Scope
from chelonia.core.values import replace
from tests.support.failing import failure_kind
from tests.support.files_worlds import at
from tests.support.stage import EVE, JOE, NOBODY, Stage, scene


@scene
async def test_user_metadata(stage: Stage) -> None:
    await stage.make("/a")
    assert await stage.modify("/a", "set", "metadata", "k", "v") == "set"
    assert await stage.modify("/a", "add", "metadata", "k", "w") == "condition failed"
    assert await stage.modify("/a", "add", "metadata", "k2", "w") == "set"
    assert await stage.modify("/a", "setifvalue=x", "metadata", "k", "w") == "condition failed"
    assert await stage.modify("/a", "setifvalue=v", "metadata", "k", "w") == "set"
    assert await stage.modify("/a", "unset", "metadata", "k2") == "unset"
    assert (await stage.stat("/a"))["metadata"] == {"k": "w"}
    assert await stage.modify("/zz", "set", "metadata", "k", "v") == "no such LN"


@scene
async def test_metadata_of_one_entry_is_bounded(stage: Stage) -> None:
    """A listing carries a thousand entries: unbounded metadata of each would exhaust the memory of every service."""
    await stage.make("/a")
    large = "x" * bounds.VALUE_BYTES_MAX
    assert await stage.modify("/a", "set", "metadata", "k", large) == "set"
    assert await stage.modify("/a", "set", "metadata", "k", large) == "set"
    assert await stage.modify("/a", "set", "metadata", "k2", large) != "set"
    assert await stage.modify("/a", "unset", "metadata", "k") == "unset"
    assert await stage.modify("/a", "set", "metadata", "k2", large) == "set"


@pytest.mark.parametrize(
    ("section", "prop", "value"), [("metadata", "k", "v"), ("policy", EVE.dn, "-read"), ("states", "closed", "yes")]
)
@scene
async def test_a_collection_that_was_only_part_of_a_name_stays_once_it_is_changed(
    stage: Stage, section: str, prop: str, value: str
) -> None:
    """It went with the last entry in it, and what was set of it with it: also what it forbade."""
    await stage.bartender.files.apply(JOE, (Make(at("/a/b/link"), TYPE_SYMLINK, target="x", parents=True),))
    assert await stage.modify("/a/b", "set", section, prop, value) == "set"
    await stage.bartender.files.apply(JOE, (Remove(at("/a/b/link"), Removing.KEY),))
    assert (await stage.stat("/a/b"))[section][prop] in (value, "broken")


@pytest.mark.parametrize(
    ("section", "prop", "value"),
    [
        ("metadata", "k", "v" * (bounds.VALUE_BYTES_MAX + 1)),
        ("timestamps", "modified", "never"),
        ("states", "neededReplicas", "2"),
        ("states", "size", "1"),
        ("states", "closed", "half"),
    ],
)
@scene
async def test_a_refused_change_makes_no_collection_stay(stage: Stage, section: str, prop: str, value: str) -> None:
    await stage.bartender.files.apply(JOE, (Make(at("/a/b/link"), TYPE_SYMLINK, target="x", parents=True),))
    assert await stage.modify("/a/b", "set", section, prop, value) != "set"
    await stage.bartender.files.apply(JOE, (Remove(at("/a/b/link"), Removing.KEY),))
    assert not await stage.exists("/a")


@scene
async def test_the_time_of_a_collection_stays_as_set_until_its_names_change(stage: Stage) -> None:
    """It was stored, and shown to nobody: each look and listing had the time of the last change of its names."""
    await stage.make("/a")
    await stage.make("/a/b")
    assert await stage.modify("/a", "set", "timestamps", "modified", "12.5") == "set"

    async def modified() -> int:
        (seen,) = await stage.bartender.files.look(JOE, (Look(at("/a")),))
        assert isinstance(seen, Looked)
        return seen.attributes.modified_ns

    assert await modified() == 12_500_000_000
    await stage.make("/a/c")
    assert await modified() == stage.clock.now_ms() * 1_000_000


RIGHTS = [
    ("modifyMetadata", "metadata", "k", "v"),
    ("modifyMetadata", "timestamps", "modified", "12.5"),
    ("modifyPolicy", "policy", "ALL", "+read"),
    ("modifyPolicy", "defaultPolicy", "ALL", "+read"),
    ("modifyStates", "states", "closed", "yes"),
]
ALL_RIGHTS = ("read", "addEntry", "removeEntry", "delete", "modifyPolicy", "modifyStates", "modifyMetadata")


@pytest.mark.parametrize(("right", "section", "prop", "value"), RIGHTS)
@scene
async def test_each_section_has_its_right(stage: Stage, right: str, section: str, prop: str, value: str) -> None:
    await stage.make("/a")
    others = " ".join("+" + other for other in ALL_RIGHTS if other != right)
    await stage.modify("/a", "set", "policy", EVE.dn, others)
    assert await stage.modify("/a", "set", section, prop, value, EVE) == "denied"
    await stage.modify("/a", "set", "policy", EVE.dn, "+" + right)
    assert await stage.modify("/a", "set", section, prop, value, EVE) == "set"


FORBIDDEN = [
    ("entry", "owner"), ("entry", "GUID"), ("entry", "type"), ("parents", "0/x"), ("entries", "x"),
    ("locations", "u r"), ("blobs", "00000000"), ("put", "seal"), ("pending", "x"), ("mountpoint", "externalURL"),
    ("timestamps", "created"),
    ("states", "size"), ("states", "checksum"), ("states", "checksumType"), ("states", ""), ("metadata", ""),
    ("x", "y"), ("", ""), ("node", "state"), ("lease", "holder"),
]  # fmt: skip


@pytest.mark.parametrize(("section", "prop"), FORBIDDEN)
@scene
async def test_everything_else_is_denied_even_to_the_owner(stage: Stage, section: str, prop: str) -> None:
    """`modify states checksum` made every holder of the original erase its replica."""
    await stage.put_file("/f", needed=0)
    before = await stage.stat("/f")
    for change in ("set", "unset", "add", "setifvalue="):
        assert await stage.modify("/f", change, section, prop, "1") == "denied"
    assert await stage.stat("/f") == before


@pytest.mark.parametrize(
    ("section", "prop", "value"),
    [("policy", "joe", "+read"), ("policy", "ALL", "read"), ("policy", "<", "+read"), ("defaultPolicy", "ALL", "+fly"),
     ("timestamps", "modified", "now"), ("timestamps", "modified", "18446744073"), ("metadata", "k", "\ud800")],
)  # fmt: skip
@scene
async def test_malformed_values(stage: Stage, section: str, prop: str, value: str) -> None:
    await stage.make("/a")
    assert await stage.modify("/a", "set", section, prop, value) == "failed: bad-request"
    assert section not in await stage.stat("/a") or section == "timestamps"


@scene
async def test_an_unknown_change_is_refused(stage: Stage) -> None:
    """The original dropped it silently."""
    await stage.make("/a")
    assert await stage.modify("/a", "replace", "metadata", "k", "v") == "failed: bad-request"


@scene
async def test_policies_can_be_cleared_and_taken_away(stage: Stage) -> None:
    await stage.make("/a")
    assert await stage.modify("/a", "set", "policy", EVE.dn, "+read") == "set"
    assert await stage.modify("/a", "set", "policy", EVE.dn, "") == "set"
    assert "error" in await stage.stat("/a", EVE)
    assert await stage.modify("/a", "unset", "policy", EVE.dn) == "unset"
    assert EVE.dn not in (await stage.stat("/a")).get("policy", {})


@scene
async def test_default_policy_is_for_collections(stage: Stage) -> None:
    await stage.put_file("/f", needed=0)
    assert await stage.modify("/f", "set", "defaultPolicy", "ALL", "+read") == "denied"
    assert await stage.modify("/", "set", "defaultPolicy", "ALL", "+read") == "set"


@scene
async def test_needed_replicas(stage: Stage) -> None:
    await stage.add_shepherds("s1", "s2")
    await stage.file("/f")
    assert await stage.modify("/f", "set", "states", "neededReplicas", "4") == "set"
    assert (await stage.stat("/f"))["states"]["neededReplicas"] == "4"
    assert len(stage.between.named("set_wanted")) == 1
    for value in ("0", "33", "-1", "many", "", "٣", "10000"):
        assert await stage.modify("/f", "set", "states", "neededReplicas", value) == "failed: bad-request"
    assert await stage.modify("/f", "setifvalue=3", "states", "neededReplicas", "2") == "condition failed"
    assert await stage.modify("/f", "setifvalue=4", "states", "neededReplicas", "2") == "set"
    assert await stage.modify("/f", "unset", "states", "neededReplicas", "2") == "denied"
    assert await stage.modify("/", "set", "states", "neededReplicas", "2") == "denied"


@pytest.mark.parametrize(
    ("now", "value", "status"),
    [("no", "no", "set"), ("no", "yes", "set"), ("no", "broken", "denied"), ("no", "0", "denied"), ("no", "", "denied"),
     ("yes", "yes", "set"), ("yes", "no", "denied"), ("yes", "broken", "denied"),
     ("broken", "yes", "denied"), ("broken", "no", "denied"), ("broken", "broken", "denied")],
)  # fmt: skip
@scene
async def test_closing(stage: Stage, now: str, value: str, status: str) -> None:
    await stage.make("/a")
    if now != "no":
        await stage.modify("/a", "set", "states", "closed", "yes")
    if now == "broken":
        await stage.make("/a/b")
    assert (await stage.stat("/a"))["states"]["closed"] == now
    assert await stage.modify("/a", "set", "states", "closed", value) == status
    assert (await stage.stat("/a"))["states"]["closed"] == (value if status == "set" else now)


@scene
async def test_closing_is_for_collections_and_always_has_a_value(stage: Stage) -> None:
    await stage.put_file("/f", needed=0)
    await stage.make("/a")
    assert await stage.modify("/f", "set", "states", "closed", "yes") == "denied"
    assert await stage.modify("/a", "unset", "states", "closed", "no") == "denied"
    assert await stage.modify("/a", "setifvalue=yes", "states", "closed", "yes") == "condition failed"
    assert await stage.modify("/a", "setifvalue=no", "states", "closed", "yes") == "set"


@scene
async def test_a_collection_broken_meanwhile_is_not_closed_again(stage: Stage) -> None:
    await stage.make("/a")
    await stage.modify("/a", "set", "states", "closed", "yes")

    async def break_it() -> None:
        await stage.make("/a/b")

    stage.between.before["modify_metadata"] = break_it
    assert await stage.modify("/a", "set", "states", "closed", "yes") == "denied"
    assert (await stage.stat("/a"))["states"]["closed"] == "broken"


@scene
async def test_a_right_to_modify_revoked_meanwhile(stage: Stage) -> None:
    await stage.make("/a")
    await stage.modify("/a", "set", "policy", EVE.dn, "+modifyMetadata")

    async def revoke() -> None:
        await stage.modify("/a", "set", "policy", EVE.dn, "")

    stage.between.before["modify_metadata"] = revoke
    assert await stage.modify("/a", "set", "metadata", "k", "v", EVE) == "denied"
    assert "metadata" not in await stage.stat("/a")


@scene
async def test_modification_times_can_be_kept(stage: Stage) -> None:
    await stage.put_file("/f", needed=0)
    assert (await stage.stat("/f"))["entry"]["type"] == TYPE_FILE
    assert await stage.modify("/f", "set", "timestamps", "modified", "1234567890.123456789") == "set"
    assert (await stage.stat("/f"))["timestamps"]["modified"] == "1234567890.123456789"


@scene
async def test_every_change_of_a_bulk_call_is_answered(stage: Stage) -> None:
    await stage.make("/a")
    requests = (
        ModifyRequest("1", "/a", "set", "metadata", "k", "v"), ModifyRequest("2", "/a", "set", "entry", "owner", "x"),
        ModifyRequest("3", "/no", "set", "metadata", "k", "v"),
        ModifyRequest("4", "/a", "setifvalue=v", "metadata", "k", "w"),
    )  # fmt: skip
    outcomes = await stage.bartender.modify(JOE, requests)
    assert [(outcome.request_id, outcome.status) for outcome in outcomes] == [
        ("1", "set"), ("2", "denied"), ("3", "no such LN"), ("4", "set"),
    ]  # fmt: skip


@scene
async def test_a_new_file_with_fewer_rules_than_it_would_have_needs_no_right_to_change_them(stage: Stage) -> None:
    await stage.add_shepherds("s1", "s2")
    writer = msgspec.structs.replace(JOE, scopes=(Scope((*READING, *CHANGING), ("a",)),), via="key K")

    async def written(name: str, policy: dict[str, str]) -> Kind | None:
        change = Write(at(name), inline=Inline(b"x", 2), policy=policy)
        (answer,) = await stage.bartender.files.apply(writer, (change,))
        return answer.kind if isinstance(answer, Failure) else None

    await stage.make("/a")
    assert await stage.modify("/a", "set", "defaultPolicy", "ALL", "+read") == "set"
    assert await written("/a/private", {}) is None
    assert "policy" not in await stage.stat("/a/private")
    assert await written("/a/private", {}) is None, "it changes nothing"
    assert await written("/a/same", {"ALL": "+read"}) is None
    assert await written("/a/same", {}) is Kind.DENIED
    assert await written("/a/more", {"ALL": "+read +delete"}) is Kind.DENIED
    assert await stage.modify("/a", "set", "defaultPolicy", EVE.dn, "-read") == "set"
    assert await written("/a/allowed", {"ALL": "+read"}) is Kind.DENIED, "what denies goes"


@scene
async def test_what_nobody_owns_gives_nobody_a_say_over_the_locks_of_others(stage: Stage) -> None:
    async def applied(call: Call, change: Write | Set) -> Kind | None:
        (answer,) = await stage.bartender.files.apply(call, (change,))
        return answer.kind if isinstance(answer, Failure) else None

    await stage.add_shepherds("s1", "s2")
    await stage.make("/open")
    assert await stage.modify("/open", "set", "policy", "ANONYMOUS", "+addEntry") == "set"
    assert await stage.modify("/open", "set", "defaultPolicy", "ALL", "+read +delete") == "set"
    assert await applied(NOBODY, Write(at("/open/f"), inline=Inline(b"x", 2))) is None
    assert await applied(JOE, Set(at("/open/f"), locks=(Lock("urn:a", lasts_ms=60_000),))) is None
    assert await applied(NOBODY, Set(at("/open/f"), locks=(Lock("urn:a", lasts_ms=0),))) is Kind.DENIED


@scene
async def test_a_lock_that_was_ended_meanwhile_is_not_refreshed_beside_the_one_that_was_taken_since(
    stage: Stage,
) -> None:
    await stage.put_file("/f", needed=0)

    async def locked(*locks: Lock) -> Done | Failure:
        (answer,) = await stage.bartender.files.apply(JOE, (Set(at("/f"), locks=locks),))
        return answer

    async def another() -> None:
        assert isinstance(await locked(replace(mine, lasts_ms=0), replace(mine, token="urn:b")), Done)

    mine = Lock("urn:a", shared=False, deep=False, note="", lasts_ms=60_000)
    assert isinstance(await locked(mine), Done)
    stage.between.before["change_entry"] = another
    refused = await locked(mine)
    assert failure_kind(refused) is Kind.LOCKED


@pytest.mark.parametrize(
    "kind", [Kind.NETWORK, Kind.TIMEOUT, Kind.BUSY, Kind.WRONG_CLUSTER, Kind.CONFLICT, Kind.DENIED]
)
@scene
async def test_trouble_of_the_cluster_is_no_answer_to_a_change(stage: Stage, kind: Kind) -> None:
    """The answer was that of a mistake in the program, which no client repeats."""
    await stage.make("/a")
    transact = stage.ahash.transact

    async def troubled(*_: object) -> None:
        stage.ahash.transact = transact  # type: ignore[method-assign]
        raise CheloniaError(kind, "ahash.transact", "", "the A-Hash has its own trouble")

    stage.ahash.transact = troubled  # type: ignore[method-assign, assignment]
    request = ModifyRequest("1", "/a", "set", "metadata", "k", "v")
    try:
        answered = (await stage.bartender.modify(JOE, (request,)))[0].kind
    except CheloniaError as error:
        answered = error.kind.value
    seen = {Kind.CONFLICT: "", Kind.DENIED: Kind.UNAVAILABLE.value}  # tried again; not the user's
    assert answered == seen.get(kind, kind.value)


@pytest.mark.parametrize("what", ["write", "modify"])
@scene
async def test_a_change_that_is_done_does_not_fail_for_its_note(stage: Stage, what: str) -> None:
    """The note says whether there are Shepherds enough. Where they could not be read any more, their error was the
    answer."""
    await stage.add_shepherds("s1", "s2")
    await stage.put_file("/f", needed=0)

    async def late() -> None:
        stage.bartender._ports.shepherds._fetched_ms = -1
        stage.between.after["nodes"] = CheloniaError(Kind.UNAVAILABLE, "nodes")

    stage.between.before["commit_file" if what == "write" else "set_wanted"] = late
    if what == "write":
        (answer,) = await stage.bartender.files.apply(JOE, (Write(at("/g"), inline=Inline(b"x", 2)),))
        assert isinstance(answer, Done)
    else:
        assert await stage.modify("/f", "set", "states", "neededReplicas", "2") == "set"
    assert not stage.between.after
