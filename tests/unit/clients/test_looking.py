"""Looking at trees, for people and for pipes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chelonia.core.errors import Kind
from chelonia.core.metadata import TYPE_SPECIAL, TYPE_SYMLINK
from chelonia.core.names import parse_ln
from chelonia.core.ports.files import Make, Remove, Removing, Setting
from tests.support.bartender import JOE, FakeBartender
from tests.support.clocks import QuickClock
from tests.unit.clients.faking import Command


@pytest.fixture
def tree(fake: FakeBartender) -> FakeBartender:
    for ln in ("/d", "/d/c", "/d/c/e"):
        fake.add_collection(ln)
    fake.add_file("/d/big", b"x" * 3000, "1000")
    fake.add_file("/d/c/small file", b"x", "2000")
    fake.told["/d/big"] = {"locations": {"https://s1/S r": "alive", "https://s2/S r": "offline"}}
    return fake


@pytest.mark.parametrize("words", [("du",), ("find",), ("tree",), ("ls", "-r"), ("cat",), ("get",)])
def test_after_one_that_fails_the_others_are_looked_at(
    chelonia: Command, fake: FakeBartender, words: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    fake.add_collection("/d")
    fake.add_file("/d/f", b"is in /d")
    last = {"cat": ("/d/f",), "get": ("/d/f", "-")}.get(words[0], ("/d",))
    ran = chelonia(*words, "/none", *last)
    assert (ran.code, "'/none': there is no such name" in ran.err) == (3, True)
    assert "/d" in ran.out + capfd.readouterr().out


@pytest.mark.parametrize(
    "words",
    [("du", "/d"), ("find", "/d", "--name", "big"), ("tree", "/d"), ("ls", "-r", "/d"), ("ls", "-rl", "/d"),
     ("watch", "/d", "--for", "1m"), ("policy", "-r", "/d", "clear", "ALL")],
)  # fmt: skip
def test_what_may_not_be_looked_into_is_told_once_and_fails(
    chelonia: Command, tree: FakeBartender, words: tuple[str, ...]
) -> None:
    tree.deny("/d/c")
    ran = chelonia(*words)
    assert (ran.code, ran.err.count("'/d/c': you may not read it")) == (4, 1)
    assert chelonia("ls", "/d").code == 0


def test_du_sums_below_each_collection(chelonia: Command, tree: FakeBartender) -> None:
    assert [line.split() for line in chelonia("du", "/d").lines] == [
        ["1", "1", "/d/c"], ["0", "0", "/d/c/e"], ["3001", "2", "/d"]
    ]  # fmt: skip
    assert chelonia("du", "-sh", "/d").lines == ["2.9 KiB     2           /d"]
    assert json.loads(chelonia("--json", "du", "-s", "/d").out)["results"] == [
        {"ok": True, "ln": "/d", "size": 3001, "files": 2}
    ]


def test_find_takes_what_fits_all_conditions(chelonia: Command, tree: FakeBartender) -> None:
    assert chelonia("find", "/d", "--type", "file").lines == ["/d/big", "/d/c/small file"]
    assert chelonia("find", "/d", "--name", "s*").lines == ["/d/c/small file"]
    assert chelonia("find", "/d", "--larger", "1K").lines == ["/d/big"]
    assert chelonia("find", "/d", "--smaller", "1K", "--older", "1d").lines == ["/d/c/small file"]
    assert chelonia("find", "/d", "--newer", "1d").lines == ["/d/c", "/d/c/e"]
    assert chelonia("find", "/d", "--type", "f", "-0").out == "/d/big\0/d/c/small file\0"
    assert chelonia("find", "/d", "--type", "nonsense").code == 2
    assert chelonia("find", "/none").code == 3


def test_find_knows_what_a_mount_makes(chelonia: Command, tree: FakeBartender) -> None:
    tree.cluster.change(Make(parse_ln("/d/c/link"), TYPE_SYMLINK, target="../big"), JOE)
    tree.cluster.change(Make(parse_ln("/d/pipe"), TYPE_SPECIAL, setting=Setting(mode=0o010644)), JOE)
    for kind in ("symlink", "l"):
        assert chelonia("find", "/d", "--type", kind).lines == ["/d/c/link"]
    assert chelonia("find", "/d", "--type", "special").lines == ["/d/pipe"]


def test_tree_draws(chelonia: Command, tree: FakeBartender) -> None:
    assert chelonia("tree", "/d").lines == [
        "/d", "├── big", "└── c/", "    ├── e/", "    └── small file", "", "2 collections, 2 files"
    ]  # fmt: skip


def test_ls_for_pipes(chelonia: Command, tree: FakeBartender) -> None:
    assert chelonia("ls", "-1", "/d").lines == ["big", "c"]
    assert chelonia("ls", "-r0", "/d").out == "/d/big\0/d/c\0/d/c/e\0/d/c/small file\0"
    assert chelonia("ls", "--format", "{size}\\t{copies}/{wanted}\\t{path}", "/d").lines == [
        "3000\t1/3\t/d/big", "-\t-/-\t/d/c"
    ]  # fmt: skip
    assert chelonia("ls", "--format", "{time} {name}", "/d/big").lines == ["1970-01-01T00:16:40Z big"]
    assert chelonia("ls", "--format", "{nope}", "/d").code == 2
    assert "2.9 KiB" in chelonia("ls", "-lh", "/d").out


def test_stat_shows_times_as_people_read_them_and_numbers_for_programs(chelonia: Command, tree: FakeBartender) -> None:
    assert "    modified: 1000.000000000  (1970-01-01 00:16:40Z)" in chelonia("stat", "/d/big").lines
    [told] = json.loads(chelonia("--json", "stat", "/d/big").out)["results"]
    assert (told["size"], told["modified"], told["type"]) == (3000, 1000.0, "file")


def test_what_keeps_from_looking_stands_alone(chelonia: Command, fake: FakeBartender) -> None:
    fake.failures = [Kind.UNAVAILABLE]
    ran = chelonia("stat", "/d")
    assert (ran.code, ran.out) == (7, "")


def test_watch_tells_what_comes_changes_and_goes(
    chelonia: Command, tree: FakeBartender, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.unit.clients.faking import QuickClock

    steps = [lambda: tree.add_file("/d/new", b""), lambda: tree.remove("/d/big")]
    sleep = QuickClock.sleep

    async def change(self: QuickClock, duration_ms: int) -> None:
        await sleep(self, duration_ms)
        if steps:
            steps.pop(0)()

    monkeypatch.setattr(QuickClock, "sleep", change)
    assert chelonia("watch", "/d", "--every", "1s", "--for", "5s").lines == ["+ /d/new", "- /d/big"]


def test_a_collection_is_called_one_where_a_directory_of_its_name_is_here(chelonia: Command, tmp_path: Path) -> None:
    assert chelonia("mkdir", "/tree").code == 0
    (tmp_path / "tree").mkdir()
    for words in (("get", "/tree"), ("get", "/tree", "other")):
        ran = chelonia(*words)
        assert (ran.code, "-r downloads it" in ran.err) == (5, True), ran.err


def test_a_name_without_its_slash_is_shown_with_it(chelonia: Command) -> None:
    assert "starts with /, as '/data' does" in chelonia("ls", "data").err


def test_a_collection_shows_its_default_policy_beside_its_own(chelonia: Command, fake: FakeBartender) -> None:
    """A user who cannot read a new file looks here: the collection's own rules do not hold for it."""
    fake.add_collection("/c")
    assert chelonia("modify", "/c", "set", "defaultPolicy", "ALL", "+read").code == 0
    assert chelonia("policy", "/c").lines[-1] == "  default policy of new entries: ALL: +read"
    fake.add_file("/c/f", b"")
    fake.cluster.change(Remove(parse_ln("/c"), Removing.MARK))
    told = chelonia("policy", "/c").lines
    assert told[-1] == "  default policy of new entries: as in the collection above; it is only part of S3's keys"
    assert not any("+read" in line for line in told)
