"""Removals show all they take along, before and after, and a slip removes nothing."""

from __future__ import annotations

import json

import pytest

from chelonia.core.metadata import TYPE_SPECIAL, TYPE_SYMLINK
from chelonia.core.names import parse_ln
from chelonia.core.ports.files import Make, Setting
from chelonia.hosting.transfer.call_batches import CALL_FILES_MAX
from chelonia_clients.verbs import removing
from tests.support.bartender import JOE, FakeBartender
from tests.unit.clients.faking import Command


@pytest.fixture
def linked(fake: FakeBartender) -> FakeBartender:
    """`/t/f` is `/u/other` too; `/t/g` has one name."""
    for ln in ("/t", "/t/c", "/u"):
        fake.add_collection(ln)
    fake.add_file("/t/f", b"one")
    fake.add_file("/t/c/g", b"two")
    fake.link("/t/f", "/u/other")
    return fake


def test_what_has_two_names_in_a_tree_goes_by_either(chelonia: Command, linked: FakeBartender) -> None:
    """The name that went with the other was not found, and that counted as a failure."""
    linked.link("/t/f", "/t/c/f")
    told = chelonia("delFile", "-r", "/t")
    assert (told.code, told.err) == (0, ""), told
    assert linked.names() == ["/u"]


@pytest.mark.parametrize("verb", ["rm", "delFile"])
def test_what_only_a_mount_makes_goes_with_its_tree(chelonia: Command, linked: FakeBartender, verb: str) -> None:
    """A symlink was refused as no file, and kept the tree."""
    linked.cluster.change(Make(parse_ln("/t/c/link"), TYPE_SYMLINK, target="g"), JOE)
    linked.cluster.change(Make(parse_ln("/t/pipe"), TYPE_SPECIAL, setting=Setting(mode=0o010644)), JOE)
    told = chelonia(verb, "-r", "/t")
    assert (told.code, told.err) == (0, ""), told
    assert "/t" not in linked.names()


def test_of_what_stays_no_other_name_is_said_to_have_gone(chelonia: Command, linked: FakeBartender) -> None:
    linked.deny("/t/f")
    told = chelonia("delFile", "-r", "/t")
    assert told.code == 4
    assert "/u/other" in linked.names()
    assert "/u/other" not in told.out


@pytest.mark.parametrize("verb", ["rm", "delFile"])
@pytest.mark.parametrize(("ln", "gone"), [("/t", ["/t", "/t/c", "/t/c/d", "/t/c/d/f", "/t/c/g", "/t/f"]),
                                          ("/t/c", ["/t/c", "/t/c/d", "/t/c/d/f", "/t/c/g"])])  # fmt: skip
def test_a_collection_that_has_another_name_keeps_what_is_in_it(
    chelonia: Command, linked: FakeBartender, verb: str, ln: str, gone: list[str]
) -> None:
    """It was emptied under its other name too."""
    linked.add_collection("/t/c/d")
    linked.add_file("/t/c/d/f", b"three")
    linked.link("/t/c", "/u/c")
    before = [name for name in linked.names() if verb == "rm" or ln == "/t/c" or name != "/u/other"]
    planned = chelonia(verb, "-nr", ln)
    assert not any(name in planned.out for name in ("/t/c/", "/u/c"))
    assert chelonia(verb, "-r", ln).code == 0
    assert linked.names() == [name for name in before if name not in gone]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The questions at a terminal, where each answer is the list's first entry; a question takes its place."""
    answers: list[str] = []

    def ask(question: str) -> str:
        answer = answers.pop(0)
        answers.append(question)
        return answer

    monkeypatch.setattr(removing, "at_a_terminal", lambda: True)
    monkeypatch.setattr(removing, "ask", ask)
    return answers


def test_all_names_that_went_are_told_afterwards(chelonia: Command, linked: FakeBartender) -> None:
    assert chelonia("delFile", "/t/f").lines == ["/t/f: deleted.", "/u/other: deleted, it was the same file."]
    assert linked.names() == ["/t", "/t/c", "/t/c/g", "/u"]


def test_of_a_tree_too_also_for_programs(chelonia: Command, linked: FakeBartender) -> None:
    told = json.loads(chelonia("--json", "delFile", "-r", "/t").out)
    assert [(each["ln"], each.get("elsewhere", False)) for each in told["results"]] == [
        ("/t/c/g", False), ("/t/f", False), ("/t/c", False), ("/t", False), ("/u/other", True),
    ]  # fmt: skip
    assert linked.names() == ["/u"]


@pytest.mark.parametrize("root", ["/", "//", "0", "0/", "chelonia:/", "chelonia:0"])
def test_the_root_is_not_removed_whatever_it_is_called(chelonia: Command, linked: FakeBartender, root: str) -> None:
    before = linked.names()
    for verb in ("rm", "delFile"):
        told = chelonia(verb, "-r", root)
        assert (told.code, "the root is not removed" in told.err) == (2, True), told
    assert linked.names() == before


def test_rm_takes_one_name_and_leaves_the_others(chelonia: Command, linked: FakeBartender) -> None:
    assert chelonia("rm", "/t/f").lines == ["/t/f: deleted."]
    assert "/u/other" in linked.names()


def test_at_a_terminal_one_is_asked_and_no_leaves_all_as_it_is(
    chelonia: Command, linked: FakeBartender, asked: list[str]
) -> None:
    asked.append("n")
    refused = chelonia("rm", "-r", "/t")
    assert asked == ["Remove 2 files (6 B), 2 collections? [y/N] "]
    assert refused.code != 0
    assert {"/t/f", "/t/c/g", "/t/c", "/t"} <= set(refused.err.split())
    assert "/t/f" in linked.names()
    asked[:] = [""]
    assert chelonia("delFile", "/t/f").code != 0
    assert asked == ["Remove 1 file (3 B), 1 other name? [y/N] "]
    assert "/t/f" in linked.names()
    asked[:] = ["y"]
    assert chelonia("delFile", "/t/f").code == 0
    assert "/u/other" not in linked.names()


@pytest.mark.parametrize("line", ["rm -r -y /t", "rm -rf /t", "rm /t/f", "delFile /t/c/g"])
def test_who_says_yes_or_names_one_name_is_not_asked(
    chelonia: Command, linked: FakeBartender, asked: list[str], line: str
) -> None:
    assert chelonia(*line.split()).code == 0
    assert asked == []


def test_a_dry_run_shows_all_and_removes_nothing(chelonia: Command, linked: FakeBartender) -> None:
    before = linked.names()
    assert chelonia("rm", "-nr", "/t").lines == ["/t/c/g", "/t/f", "/t/c", "/t"]
    assert chelonia("delFile", "-n", "/t/f").lines == ["/t/f", "/u/other  (another name of one of these files)"]
    assert linked.names() == before


def test_patterns_name_what_fits_and_a_name_with_such_signs_means_itself(
    chelonia: Command, fake: FakeBartender
) -> None:
    for ln in ("/a1", "/a2", "/b1", "/a*"):
        fake.add_file(ln, b"")
    assert chelonia("rm", "/a*").lines == ["/a*: deleted."]
    assert chelonia("rm", "/a?", "/none*").lines == ["/a1: deleted.", "/a2: deleted."]
    assert chelonia("rm", "/none*").code == 3
    assert fake.names() == ["/b1"]


def test_patterns_over_collections(chelonia: Command, fake: FakeBartender) -> None:
    for ln in ("/d", "/d/x", "/d/x/y"):
        fake.add_collection(ln)
    for ln in ("/d/f.a", "/d/x/f.a", "/d/x/y/f.a", "/d/x/y/f.b"):
        fake.add_file(ln, b"1")
    assert chelonia("ls", "-1", "/d/*/f.a").lines == ["/d/x/f.a"]
    assert chelonia("ls", "-1", "/d/**/f.a").lines == ["/d/f.a", "/d/x/f.a", "/d/x/y/f.a"]
    assert chelonia("cat", "/d/x/y/*").out == ""
    assert chelonia("get", "chelonia:/d/x/y/f.*", ".").code == 0


# --- and back again ---


def test_a_whole_tree_comes_back_under_its_names(chelonia: Command, linked: FakeBartender) -> None:
    linked.remove("/u/other")
    before = set(linked.names())
    chelonia("rm", "-r", "/t")
    lost = chelonia("undelete", "/t/c/g")
    assert (lost.code, "there is no /t/c; if it was deleted, `undelete -r /t/c` restores it" in lost.err) == (3, True)
    listed = [line.split()[-1] for line in chelonia("undelete", "--list").lines[1:]]
    assert sorted(listed) == ["/t/", "/t/c/", "/t/c/g", "/t/f"]
    back = chelonia("undelete", "-r", "/t")
    assert back.lines[-1] == "2 files and 2 collections restored"
    assert set(linked.names()) == before
    assert chelonia("undelete", "-r", "/t").lines == ["0 files and 0 collections restored"]
    assert chelonia("undelete", "-r", "/none").code == 3


def test_a_collection_that_comes_back_empty_names_the_command_for_its_entries(
    chelonia: Command, linked: FakeBartender
) -> None:
    """It said "restored" of a whole tree, and brought one empty collection back."""
    chelonia("rm", "-r", "/t")
    back = chelonia("undelete", "/t")
    assert back.lines == ["Restoring '/t': restored"]
    assert "its entries are still deleted; `chelonia undelete -r /t` restores them" in back.err
    chelonia("undelete", "-r", "/t")
    chelonia("delFile", "/t/c/g")
    assert chelonia("undelete", "/t/c/g").err == "", "a file"
    chelonia("mkdir", "/e")
    chelonia("rm", "-r", "/e")
    assert chelonia("undelete", "/e").err == "", "it had no entries"


def test_into_a_collection_that_was_made_in_its_place(chelonia: Command, linked: FakeBartender) -> None:
    linked.remove("/u/other")
    chelonia("rm", "-r", "/t")
    chelonia("mkdir", "/t")
    assert chelonia("undelete", "-r", "/t").lines[-1] == "2 files and 1 collection restored"
    assert {"/t/f", "/t/c/g"} <= set(linked.names())


def test_what_does_not_come_back_with_a_tree_is_told_by_its_name(chelonia: Command, linked: FakeBartender) -> None:
    linked.remove("/u/other")
    chelonia("rm", "-r", "/t")
    linked.add_file("/t/f", b"in its place")
    left = chelonia("undelete", "-r", "/t")
    assert "undelete '/t/f': " in left.err


def test_a_part_of_a_tree_brings_what_is_above_it_along(chelonia: Command, linked: FakeBartender) -> None:
    chelonia("rm", "-r", "/t")
    assert chelonia("undelete", "-r", "/t/c").lines == [
        "/t: restored.", "/t/c: restored.", "/t/c/g: restored.", "1 file and 2 collections restored",
    ]  # fmt: skip
    assert "/t/f" not in linked.names()


def test_the_files_of_a_tree_come_back_in_few_calls(chelonia: Command, fake: FakeBartender) -> None:
    names = [f"/t/f{number:03}" for number in range(200)]
    fake.add_collection("/t")
    for ln in names:
        fake.add_file(ln, b"1")
    chelonia("rm", "-r", "/t")
    assert chelonia("undelete", "-r", "/t").lines == [
        "/t: restored.", *(f"{ln}: restored." for ln in names), "200 files and 1 collection restored",
    ]  # fmt: skip
    assert set(names) <= set(fake.names())
    calls = {call.request_key for op, call in fake.calls if op == "undelete"}
    assert len(calls) <= 2 * len(names) // CALL_FILES_MAX
