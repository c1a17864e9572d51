"""Rights and results of every operation on names, and the defects of the original that must not come back."""

from typing import Any

import pytest

from chelonia.core.caller import Call, Role
from chelonia.core.errors import Kind
from chelonia.core.ids import Guid
from chelonia.core.metadata import StoredObject, Triple
from chelonia.core.names import LogicalName
from chelonia.core.ports.bartender import MoveRequest, NameRequest
from chelonia.core.ports.files import TOP, Done, Inline, Move, Remove, Removing, Write
from chelonia.core.ports.librarian import ModifyEntry
from tests.support.failing import fails, failure_kind
from tests.support.files_worlds import at
from tests.support.stage import ADMIN, BARTENDER_DN, BARTENDER_ID, EVE, JOE, NOBODY, Stage, scene

GATEWAY = "gateway is not configured. Bartender does not support mount points"


async def grant(stage: Stage, ln: str, actions: str, call: Call = EVE) -> None:
    assert await stage.modify(ln, "set", "policy", call.dn, actions) == "set"


# --- rights ----------------------------------------------------------------------------------------------------------


@scene
async def test_making_needs_add_entry_on_the_parent_only(stage: Stage) -> None:
    await stage.make("/a")
    await grant(stage, "/a", "+addEntry")
    assert (await stage.make("/a/b", EVE)).status == "done"
    assert (await stage.stat("/a/b", EVE))["entry"]["owner"] == EVE.dn
    assert (await stage.stat("/a/b", JOE)) == {"error": {"permission denied": "you are not allowed to read"}}
    assert (await stage.make("/b", EVE)).status == "failed to add child to parent"


@scene
async def test_a_new_file_far_below_reads_few_of_the_policies_above_it(stage: Stage) -> None:
    """It read those of all collections up to the root, for the default policy of one: 9 MB for a file of a byte."""
    await stage.add_shepherds("s1", "s2", "s3")
    rules = tuple(Triple("policy", f"/CN={'x' * 1000}{n}", "+read") for n in range(90))
    await stage.make("/c", metadata=(*rules, Triple("defaultPolicy", "ALL", "+read")))
    deep, get, read = "/c" + "/d" * 100, stage.ahash.get, list[StoredObject]()

    async def noted(*args: Any) -> tuple[StoredObject, ...]:
        found = await get(*args)
        read.extend(found)
        return found

    stage.ahash.get = noted  # type: ignore[method-assign]
    for name in ("f", "g"):
        read.clear()
        write = Write(at(f"{deep}/{name}"), inline=Inline(b"x"), parents=True)
        assert isinstance((await stage.bartender.files.apply(JOE, (write,)))[0], Done)
        assert (await stage.stat(f"{deep}/{name}"))["policy"] == {"ALL": "+read"}
    assert sum(stored.weight for stored in read) < 200_000


@scene
async def test_del_file_needs_delete_on_the_file(stage: Stage) -> None:
    await stage.put_file("/f", needed=0)
    await grant(stage, "/", "+removeEntry +addEntry +read")
    assert await stage.name_op("delFile", "/f", EVE) == "denied"
    await grant(stage, "/f", "+delete")
    assert await stage.name_op("delFile", "/f", EVE) == "deleted"


@scene
async def test_unlink_needs_remove_entry_or_delete(stage: Stage) -> None:
    for name in ("f", "g", "h"):
        await stage.put_file(f"/{name}", needed=0)
    assert await stage.name_op("unlink", "/f", EVE) == "denied"
    await grant(stage, "/f", "+delete")
    assert await stage.name_op("unlink", "/f", EVE) == "unset"
    await grant(stage, "/", "+removeEntry")
    assert await stage.name_op("unlink", "/g", EVE) == "unset"
    await grant(stage, "/", "-removeEntry")
    assert await stage.name_op("unlink", "/h", EVE) == "denied"


@scene
async def test_unmake_needs_delete_on_the_collection(stage: Stage) -> None:
    await stage.make("/a")
    await grant(stage, "/", "+removeEntry")
    assert await stage.name_op("unmakeCollection", "/a", EVE) == "denied"
    await grant(stage, "/a", "+delete")
    assert await stage.name_op("unmakeCollection", "/a", EVE) == "removed"


@scene
async def test_move_needs_add_entry_there_and_remove_entry_here(stage: Stage) -> None:
    await stage.make("/from")
    await stage.make("/to")
    await stage.put_file("/from/f", needed=0)
    assert await stage.move("/from/f", "/to/f", EVE) == "adding child to parent denied"
    await grant(stage, "/to", "+addEntry")
    assert await stage.move("/from/f", "/to/f", EVE) == "denied to remove original link"
    await grant(stage, "/from", "+removeEntry")
    assert await stage.move("/from/f", "/to/f", EVE) == "moved"
    assert (await stage.stat("/to/f"))["entry"]["owner"] == JOE.dn


@scene
async def test_a_hard_link_needs_read_on_the_entry(stage: Stage) -> None:
    await stage.make("/to")
    await stage.put_file("/f", needed=0)
    await grant(stage, "/to", "+addEntry")
    assert await stage.move("/f", "/to/f", EVE, link=True) == "adding child to parent denied"
    await grant(stage, "/f", "+read")
    assert await stage.move("/f", "/to/f", EVE, link=True) == "moved"


@pytest.mark.parametrize("policy", ["+read read", "<Permit/>", "+read\t*", "-read +read"])
@scene
async def test_a_policy_that_cannot_be_understood_denies(stage: Stage, policy: str) -> None:
    """The original permitted when its evaluator failed."""
    await stage.put_file("/f", needed=0)
    guid = await stage.guid("/f")
    await write_policy(stage, guid, EVE.dn, policy)
    assert "error" in await stage.stat("/f", EVE)
    await write_policy(stage, guid, "<ALL>", "+read")
    assert "error" in await stage.stat("/f", NOBODY)


async def write_policy(stage: Stage, guid: str, identity: str, actions: str) -> None:
    """Write a policy past the Bartender's checks, as a broken or older writer would."""
    call = Call(BARTENDER_DN, (Role.BARTENDER,), BARTENDER_ID)
    change = ModifyEntry("1", Guid(guid), "set", "policy", identity, actions)
    assert (await stage.librarian.modify_metadata(call, (change,)))[0].success == "set"


@scene
async def test_administrators_pass_and_the_log_says_so(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "chelonia.audit")
    await stage.make("/a")
    caplog.clear()
    assert (await stage.stat("/a", ADMIN))["entry"]["type"] == "collection"
    assert await stage.name_op("unmakeCollection", "/a", ADMIN) == "removed"
    lines = [record.getMessage() for record in caplog.records if record.name == "chelonia.audit"]
    assert len(lines) == 2
    assert all('decision="administrator"' in line and ADMIN.dn in line for line in lines)


@scene
async def test_the_log_tells_the_rule_and_the_caller_what_he_may_know(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    await stage.put_file("/f", needed=0)
    await grant(stage, "/f", "-delete")
    caplog.set_level("INFO", "chelonia.audit")
    caplog.clear()
    (outcome,) = await stage.bartender.del_file(EVE, (NameRequest("1", "/f"),))
    assert f'rule="{EVE.dn}: -delete"' in caplog.text
    assert 'decision="denied"' in caplog.text
    assert 'request="r"' in caplog.text
    assert "-delete" not in outcome.cause
    assert "lacks delete on /f" in outcome.cause
    await grant(stage, "/f", "+read -delete")
    (outcome,) = await stage.bartender.del_file(EVE, (NameRequest("1", "/f"),))
    assert f"{EVE.dn}: +read -delete" in outcome.cause


@scene
async def test_refused_metadata_is_in_the_log(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "chelonia.audit")
    await stage.make("/a", metadata=(Triple("locations", "https://evil/Shepherd r", "alive"),))
    line = caplog.records[-1].getMessage()
    assert 'decision="denied"' in line
    assert "locations" in line
    assert JOE.dn in line


@scene
async def test_nobody_can_forge_a_line_of_the_audit_log(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "chelonia.audit")
    await stage.make('/a" decision="allowed')
    assert any('ln="/"' in record.getMessage() for record in caplog.records)
    await stage.stat('/a" decision="allowed', EVE)
    line = [record.getMessage() for record in caplog.records if record.name == "chelonia.audit"][-1]
    assert line.count(' decision="') == 1
    assert 'decision="denied"' in line


@scene
async def test_a_right_revoked_between_decision_and_change_is_not_used(stage: Stage) -> None:
    await stage.put_file("/f", needed=0)
    await grant(stage, "/f", "+delete")

    async def revoke() -> None:
        await grant(stage, "/f", "-delete")

    stage.between.before["delete"] = revoke
    assert await stage.name_op("delFile", "/f", EVE) == "denied"
    assert await stage.exists("/f")


@scene
async def test_an_entry_that_only_changed_is_decided_again(stage: Stage) -> None:
    await stage.put_file("/f", needed=0)

    async def touch() -> None:
        await stage.modify("/f", "set", "metadata", "k", "v")

    stage.between.before["delete"] = touch
    assert await stage.name_op("delFile", "/f") == "deleted"
    assert len(stage.between.named("delete")) == 2


# --- names that cannot be spelled ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ln", ["1", "2", "3", "sys:services", "sys:tree", "blob:12345678-0000-4000-8000-000000000000", "a/b"]
)
@scene
async def test_system_objects_cannot_be_named(stage: Stage, ln: str) -> None:
    (stat,) = await stage.bartender.stat(ADMIN, (NameRequest("1", ln),))
    assert (stat.metadata, stat.kind) == ((), "bad-name")
    assert (await stage.make(ln, ADMIN)).status == "failed to create new librarian entry"
    assert await stage.name_op("delFile", ln, ADMIN) == "nosuchLN"
    assert await stage.name_op("unlink", ln, ADMIN) == "no such LN"
    assert await stage.modify(ln, "set", "metadata", "k", "v", ADMIN) == "no such LN"
    assert await stage.move(ln, "/x", ADMIN) == "nosuchLN"
    assert await stage.move("/", ln, ADMIN) == "invalidtarget"


@pytest.mark.parametrize("name", ["..", "a\0b", "a\nb", "x" * 256, "\ud800"])
@scene
async def test_one_name_law(stage: Stage, name: str) -> None:
    outcome = await stage.make("/" + name)
    assert (outcome.status, outcome.kind) == ("failed to create new librarian entry", "bad-name")
    await stage.put_file("/f", needed=0)
    assert await stage.move("/f", "/" + name) == "invalidtarget"
    assert (await stage.put_file("/" + name, needed=0)).kind == "bad-name"


@scene
async def test_guid_names(stage: Stage) -> None:
    await stage.make("/a")
    guid = await stage.guid("/a")
    assert (await stage.make(f"{guid}/b")).status == "done"
    assert await stage.list(guid) == ("found", ["b"])
    assert (await stage.make(guid)).status == "LN exists"
    unknown = "12345678-0000-4000-8000-000000000000"
    assert (await stage.make(unknown)).status == "cannot create collection without a parent collection"
    assert (await stage.put_file(unknown, needed=0)).status == "cannot create a file without a parent collection"
    assert (await stage.make(unknown + "/x")).status == "parent does not exist"
    assert await stage.name_op("unlink", guid) == "nothing to unlink"
    assert await stage.move(guid, "/c") == "invalidtarget"


@scene
async def test_nothing_is_made_inside_a_file(stage: Stage) -> None:
    await stage.put_file("/f", needed=0)
    for ln in ("/f/x", "/f/x/y"):
        made = await stage.make(ln)
        assert (made.status, made.cause) == ("parent does not exist", f"{ln}: /f is a file, not a collection")
    assert (await stage.make("/c/x")).cause == "/c/x: make the collection /c first"
    assert (await stage.put_file("/f/x", needed=0)).status == "parent does not exist"
    assert await stage.move("/f", "/f/x") == "invalidtarget"
    await stage.put_file("/g", needed=0)
    assert await stage.move("/g", "/f/") == "invalidtarget"


# --- links and cycles ------------------------------------------------------------------------------------------------


@scene
async def test_hard_links_to_collections_are_for_administrators(stage: Stage) -> None:
    """joe could link /b into /c/ and /c into /b/ in the original: a cycle."""
    for ln in ("/b", "/c"):
        await stage.make(ln)
    assert await stage.move("/b", "/c/", link=True) == "adding child to parent denied"
    assert await stage.move("/b", "/c/", ADMIN, link=True) == "moved"
    assert await stage.move("/c", "/b/", ADMIN, link=True) == "invalidtarget"
    assert await stage.move("/c", "/c/b/x", ADMIN) == "invalidtarget"
    assert await stage.name_op("unlink", "/c/b") == "unset"
    assert await stage.exists("/b")


@scene
async def test_move_to_itself_and_into_itself(stage: Stage) -> None:
    await stage.make("/a")
    await stage.make("/a/b")
    assert await stage.move("/a", "/a") == "targetexists"
    assert await stage.move("/a", "/a/") == "invalidtarget"
    assert await stage.move("/a/b", "/a/") == "targetexists"
    assert await stage.move("/a", "/a/b/c") == "invalidtarget"
    assert await stage.move("/", "/a/r") == "invalidtarget"
    assert await stage.move("/a/b", "/no/") == "invalidtarget"


@scene
async def test_renaming_into_a_new_name(stage: Stage) -> None:
    await stage.make("/a")
    await stage.put_file("/a/f", needed=0)
    assert await stage.move("/a", "/z") == "moved"
    assert await stage.list("/z") == ("found", ["f"])
    assert await stage.move("/z/f", "/") == "moved"
    assert await stage.list("/") == ("found", ["f", "z"])


# --- mount points ----------------------------------------------------------------------------------------------------


@scene
async def test_mount_points(stage: Stage) -> None:
    assert (await stage.mount("/m")).status == "done"
    assert (await stage.mount("/m")).status == "LN exists"
    found = await stage.stat("/m")
    assert (found["entry"]["type"], found["mountpoint"]) == (
        "mountpoint",
        {"externalURL": "gsiftp://se.example.org/data"},
    )
    assert (await stage.make("/m/x")).status == "cannot create collection in mountpoint"
    assert (await stage.make("/m/x/y")).status == "cannot create collection in mountpoint"
    assert (await stage.mount("/m/x")).status == "cannot create anything in mountpoint"
    assert (await stage.put_file("/m/x", needed=0)).status == GATEWAY
    assert (await stage.get_file("/m/x")).status == GATEWAY
    assert (await stage.list("/m"))[0] == GATEWAY
    assert (await stage.list("/m/x"))[0] == GATEWAY
    assert await stage.name_op("delFile", "/m/x") == GATEWAY
    assert await stage.stat("/m/x") == {}
    await stage.put_file("/f", needed=0)
    assert await stage.move("/f", "/m/x") == "moving into a mountpoint is not supported"
    assert await stage.move("/f", "/m/") == "moving into a mountpoint is not supported"
    assert await stage.move("/m/x", "/y") == "nosuchLN"
    assert await stage.name_op("delFile", "/m") == "nosuchLN"
    assert await stage.name_op("unmakeMountpoint", "/f") == "no such LN"
    assert await stage.name_op("unmakeMountpoint", "/m", EVE) == "denied"
    assert await stage.name_op("unmakeMountpoint", "/m") == "removed"


@pytest.mark.parametrize("url", ["", "nonsense", "http://", "gsiftp://a b/", "http://[", "x:\n", "//host/path"])
@scene
async def test_a_mount_point_needs_a_url(stage: Stage, url: str) -> None:
    assert (await stage.mount("/m", url)).kind == "bad-request"
    assert not await stage.exists("/m")


# --- client metadata is a whitelist ----------------------------------------------------------------------------------

DANGEROUS = [
    ("locations", "https://evil/Shepherd ref"),
    ("parents", "0/elsewhere"),
    ("entries", "name"),
    ("entry", "GUID"),
    ("entry", "anything"),
    ("blobs", "00000000"),
    ("put", "expires_ms"),
    ("pending", "x"),
    ("states", "closed"),
    ("states", "anything"),
    ("mountpoint", "externalURL"),
    ("timestamps", "deleted"),
    ("anything", "else"),
    ("policy", ""),
    ("", ""),
]


@pytest.mark.parametrize(("section", "prop"), DANGEROUS)
@scene
async def test_what_users_may_not_say_of_new_entries(stage: Stage, section: str, prop: str) -> None:
    given = (Triple(section, prop, "3"),)
    made = await stage.make("/a", metadata=given)
    assert (made.status, made.kind) == ("failed to create new librarian entry", "denied")
    put = await stage.put_file("/f", needed=0, more=given)
    assert (put.status, put.kind) == ("failed to create new librarian entry", "denied")
    assert await stage.list("/") == ("found", [])


@scene
async def test_what_the_server_sets_itself_is_ignored(stage: Stage) -> None:
    forced = (
        Triple("entry", "type", "mountpoint"),
        Triple("entry", "owner", EVE.dn),
        Triple("timestamps", "created", "1"),
    )
    allowed = (
        Triple("states", "closed", "no"), Triple("metadata", "k", "v"), Triple("timestamps", "modified", "1234.5"),
        Triple("policy", EVE.dn, "+read"), Triple("defaultPolicy", "ALL", "-delete"),
    )  # fmt: skip
    assert (await stage.make("/a", metadata=forced + allowed)).status == "done"
    found = await stage.stat("/a")
    assert found["entry"] == {"type": "collection", "owner": JOE.dn, "GUID": found["entry"]["GUID"]}
    assert found["timestamps"]["created"] != "1"
    assert found["timestamps"]["modified"] == "1234.5"
    assert found["metadata"] == {"k": "v"}
    assert found["policy"] == {EVE.dn: "+read"}
    assert found["defaultPolicy"] == {"ALL": "-delete"}


@pytest.mark.parametrize(
    "triple",
    [Triple("policy", "joe", "+read"), Triple("policy", "ALL", "read"), Triple("defaultPolicy", "ALL", "+fly"),
     Triple("timestamps", "modified", "yesterday"), Triple("metadata", "k", "\ud800"),
     Triple("timestamps", "modified", "")],
)  # fmt: skip
@scene
async def test_malformed_values_are_refused(stage: Stage, triple: Triple) -> None:
    assert (await stage.make("/a", metadata=(triple,))).kind == "bad-request"


@scene
async def test_metadata_is_bounded(stage: Stage) -> None:
    too_long, too_wide = Triple("metadata", "k", "v" * 65537), Triple("metadata", "k" * 2049, "v")
    many = tuple(Triple("metadata", str(number), "v") for number in range(1001))
    for given in ((too_long,), (too_wide,), many):
        assert (await stage.make("/a", metadata=given)).kind == "too-large"
    assert (await stage.make("/a", metadata=many[:1000])).status == "done"


@scene
async def test_anonymous_makes_what_it_may_and_owns_nothing(stage: Stage) -> None:
    await stage.modify("/", "set", "policy", "ANONYMOUS", "+addEntry +read")
    assert (await stage.make("/a", NOBODY)).status == "done"
    assert (await stage.stat("/a", JOE)) == {"error": {"permission denied": "you are not allowed to read"}}
    assert await stage.name_op("unmakeCollection", "/a", NOBODY) == "denied"


@scene
async def test_what_anonymous_makes_opens_no_more_than_its_collection(stage: Stage) -> None:
    """He owns nothing, and gave what he made any rights: a file for all to read, a collection to be changed by him."""
    await stage.modify("/", "set", "policy", "ALL", "+addEntry")
    for rule in (Triple("policy", "ALL", "+read"), Triple("policy", "ANONYMOUS", "+addEntry +modifyPolicy")):
        assert (await stage.put_file("/f", NOBODY, needed=0, more=(rule,))).kind == "denied", rule
        assert (await stage.make("/c", NOBODY, (rule,))).kind == "denied", rule
    assert (await stage.make("/c", NOBODY, (Triple("defaultPolicy", "ALL", "+read"),))).kind == "denied"
    assert not await stage.exists("/f")
    assert not await stage.exists("/c")
    allowed = (Triple("policy", "ANONYMOUS", "+addEntry"), Triple("policy", "ALL", "-read"))
    assert (await stage.make("/c", NOBODY, (*allowed, Triple("defaultPolicy", "ALL", "+addEntry")))).status == "done"
    await stage.modify("/", "set", "policy", "ALL", "+addEntry +read")
    assert (await stage.put_file("/f", NOBODY, needed=0, more=(Triple("policy", "ALL", "+read"),))).status == "done"
    assert (await stage.stat("/f", EVE))["policy"] == {"ALL": "+read"}


# --- every element of a bulk call ------------------------------------------------------------------------------------


@scene
async def test_a_mount_point_does_not_end_a_bulk_call(stage: Stage) -> None:
    """The original dropped the remaining elements as soon as one hit a mount point."""
    await stage.mount("/m")
    await stage.put_file("/f", needed=0)
    moves = (MoveRequest("a", "/f", "/m/f"), MoveRequest("b", "/f", "/g"), MoveRequest("b", "/g", "/h"))
    outcomes = await stage.bartender.move(JOE, moves)
    assert [(outcome.request_id, outcome.status) for outcome in outcomes] == [
        ("a", "moving into a mountpoint is not supported"), ("b", "moved"), ("b", "moved"),
    ]  # fmt: skip


@scene
async def test_no_call_of_more_elements_than_allowed(stage: Stage) -> None:
    with fails(Kind.TOO_LARGE):
        await stage.bartender.stat(JOE, tuple(NameRequest(str(n), "/") for n in range(1001)))


@pytest.mark.parametrize("what", [Removing.NAME, Removing.KEY, Removing.MARK])
@scene
async def test_what_has_no_name_has_none_to_be_removed(stage: Stage, what: Removing) -> None:
    """For two of these it was a conflict, which clients try again for ever."""
    await stage.put_file("/f", needed=0)
    for place in (LogicalName(await stage.guid("/f"), ()), TOP):
        (answer,) = await stage.bartender.files.apply(JOE, (Remove(place, what),))
        assert failure_kind(answer) is Kind.NOTHING_TO_UNLINK


@pytest.mark.parametrize("source", ["/a/none", "/a/b/none"])
@scene
async def test_a_move_makes_nothing_above_what_its_names_share(stage: Stage, source: str) -> None:
    """It made them, found no source and removed them again: in between, what S3 calls a bucket was back."""
    (failed,) = await stage.bartender.files.apply(JOE, (Move(at(source), at("/a/b/c/f"), parents=True),))
    assert (failure_kind(failed), stage.between.named("make_entry")) == (Kind.NOT_FOUND, [])
