"""The verb of a word, and the parsing of the words after it."""

from __future__ import annotations

from pathlib import Path

import pytest

from chelonia_clients.arguments import GLOBAL, Flag, UsageError, parse, split_verb
from chelonia_clients.cli import EVERYDAY, usage, usage_of
from chelonia_clients.verbs.finding import ORIGINAL, REMOVING, WHOLE, find_verb, suggest
from chelonia_clients.verbs.table import VERBS

RECURSIVE, NUMBER = Flag("--recursive", "", "-r"), Flag("--parallel", "", "-j", "N")


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("stat STA status", "stat"),
        ("makeCollection make mak MKDIR mkd makecoll", "makeCollection"),
        ("makeMountPoint makemount MAKEMOUNTPOINT makmount", "makeMountPoint"),
        ("unmakeCollection unmake rmdir UNMAKECOLLECTION", "unmakeCollection"),
        ("unmakeMountPoint unmount", "unmakeMountPoint"),
        ("list lis listing LIST", "list"),
        ("ls LS", "ls"),
        ("move mov", "move"),
        ("mv", "mv"),
        ("putFile put PUTFILE", "putFile"),
        ("getFile get getx", "getFile"),
        ("delFile delfile", "delFile"),
        ("rm", "rm"),
        ("modify mod", "modify"),
        ("policy pol", "policy"),
        ("unlink UNLINK", "unlink"),
        ("credentialsDelegation cre", "credentialsDelegation"),
        ("removeCredentials", "removeCredentials"),
        ("doctor doc", "doctor"),
        ("undelete und undel", "undelete"),
        ("find fin", "find"),
        ("sync", "sync"),
    ],
)
def test_three_letters_in_any_case_choose_the_verb(words: str, name: str) -> None:
    for word in words.split():
        verb = find_verb(word)
        assert verb is not None
        assert verb.name == name


@pytest.mark.parametrize("word", ["", "x", "pu", "frobnicate", "mountmake", "compare", "dock", "synchronise"])
def test_other_words_are_no_verbs(word: str) -> None:
    assert find_verb(word) is None


def test_every_verb_is_reached_by_its_own_name_and_stands_in_the_usage() -> None:
    assert {verb.name for verb in (*ORIGINAL.values(), *WHOLE.values())} <= {verb.name for verb in VERBS}
    assert {verb.name for verb in VERBS} >= REMOVING
    for verb in VERBS:
        assert find_verb(verb.name) is verb
        assert verb.name in "\n".join(usage())


def test_what_is_typed_every_day_stands_first_and_is_a_verb() -> None:
    line = usage()[2]
    assert line.split()[2:] == list(EVERYDAY)
    assert all(find_verb(word) for word in EVERYDAY)


@pytest.mark.parametrize("word", ["del", "delete", "remove", "rem", "unl", "unm", "unmmount", "delfil", "rmd"])
def test_a_verb_that_removes_takes_its_whole_name(word: str) -> None:
    assert find_verb(word) is None


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("fsck", "admin fsck"), ("copy", "cp"), ("chmod", "policy"), ("lss", "ls"), ("drill", "admin drill"),
        ("delete", "rm (one name) or delFile (a file with all its names)"), ("unl", "unlink"),
        ("remov", "removeCredentials"), ("mkdri", "mkdir"), ("mirror", "sync"), ("getfile", "getFile"),
        ("tre", "tree"),
    ],
)  # fmt: skip
def test_what_is_no_verb_may_have_been_meant_as_one(word: str, meant: str) -> None:
    assert suggest(word) == f" Did you mean {meant}?"


def test_what_is_like_nothing_is_told_as_such() -> None:
    assert suggest("xyzzy") == ""


def test_options_before_the_verb_are_global_and_the_rest_is_left_alone() -> None:
    options, verb, rest = split_verb(["-v", "-v", "-z", "f", "-bhttps://x/B", "--json", "list", "-r", "/"])
    assert verb == "list"
    assert rest == ("-r", "/")
    assert options.flags == {
        "--verbose": ("yes", "yes"),
        "--config": ("f",),
        "--bartender": ("https://x/B",),
        "--json": ("yes",),
    }


@pytest.mark.parametrize(
    ("words", "literal", "operands", "mine", "others"),
    [
        (["/a", "-r", "/b", "--json"], False, ("/a", "/b"), {"--recursive"}, {"--json"}),
        (["-rj4", "/a"], False, ("/a",), {"--recursive", "--parallel"}, set()),
        (["--parallel=4", "--", "-r"], False, ("-r",), {"--parallel"}, set()),
        (["fsck", "-v"], False, ("fsck",), set(), {"--verbose"}),
        (["-", "/a"], False, ("-", "/a"), set(), set()),
        (["-r", "/a", "set", "Jane Doe", "-read", "--json"], True, ("/a", "set", "Jane Doe", "-read"), {"--recursive"},
         {"--json"}),
        (["/a", "set", "s", "p", "-5"], True, ("/a", "set", "s", "p", "-5"), set(), set()),
    ],
)  # fmt: skip
def test_words_after_a_verb(
    words: list[str], literal: bool, operands: tuple[str, ...], mine: set[str], others: set[str]
) -> None:
    own, rest = parse(words, (RECURSIVE, NUMBER), literal=literal)
    assert own.operands == operands
    assert set(own.flags) == mine
    assert set(rest.flags) == others


@pytest.mark.parametrize("words", [["-q"], ["--nope"], ["-j"], ["--parallel"], ["--json=1"], ["-x"]])
def test_what_is_no_option_is_refused_by_name(words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        parse(words, (RECURSIVE, NUMBER), literal=False)
    assert words[0].partition("=")[0] in caught.value.cause


def test_the_manual_has_every_verb_and_option() -> None:
    manual = (Path(__file__).parents[4] / "docs" / "cli.md").read_text("utf-8")
    for verb in VERBS:
        assert f"\n## {verb.name}\n" in manual
        for flag in verb.flags:
            assert (flag.short or flag.name) in manual
    for flag in GLOBAL:
        assert flag.name in manual


def test_help_of_a_topic_has_its_forms_options_and_examples() -> None:
    admin = find_verb("admin")
    assert admin is not None
    shown = "\n".join(usage_of(admin, ("quota",)))
    assert "admin quota recount" in shown
    assert "chelonia admin quota set default --bytes 100G" in shown
    options = shown.partition("Options:\n")[2].partition("\n\n")[0]
    assert [line.split()[0] for line in options.splitlines()] == ["--files", "--bytes"]
    assert "admin node" not in shown


def test_help_of_a_topic_finds_options_that_its_forms_leave_out() -> None:
    admin, put = find_verb("admin"), find_verb("put")
    assert admin is not None
    assert put is not None
    drill = "\n".join(usage_of(admin, ("drill",)))
    assert "--dry-run" in drill
    assert "--bytes" not in drill
    assert "Options:" not in usage_of(admin, ("jobs",))
    assert usage_of(admin, ("nonsense",)) == usage_of(admin)
    assert usage_of(put, ("/etc/hosts", "/f")) == usage_of(put)
