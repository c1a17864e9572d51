"""Whole trees kept the same: existing files are not moved again, excluded ones are left alone, a dry run does
nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import cast

import pytest

from chelonia.core.errors import Kind
from chelonia.core.timing.pacing import Pace
from chelonia.hosting.net.http_client import HttpClient
from chelonia.hosting.transfer.front import HttpBytes
from chelonia_clients.choosing import Choice
from chelonia_clients.mirroring import sync_up
from chelonia_clients.throttle import limited
from tests.support.bartender import FakeBartender
from tests.support.clocks import QuickClock
from tests.support.failing import fails
from tests.unit.clients.faking import Command, client_on
from tests.unit.hosting.test_front import DATA as REPLICA
from tests.unit.hosting.test_front import SOURCES, WHOLE, Replicas

UP = ("sync", "d", "chelonia:/d")
DOWN = ("sync", "chelonia:/d", "d")


@pytest.fixture
def tree() -> Path:
    """Two files in two directories, and an empty one."""
    top = Path("d")
    (top / "a" / "b").mkdir(parents=True)
    (top / "empty").mkdir()
    (top / "a" / "f").write_bytes(b"one")
    (top / "a" / "b" / "g").write_bytes(b"two")
    return top


def moved(fake: FakeBartender) -> int:
    """The number of uploads since the last call."""
    count = sum(op == "write" for op, _ in fake.calls)
    fake.calls.clear()
    return count


def test_a_second_sync_moves_nothing_and_a_third_what_has_changed(
    chelonia: Command, fake: FakeBartender, tree: Path
) -> None:
    assert chelonia(*UP).lines[-1] == "2 uploaded (6 B), 0 unchanged"
    assert fake.names() == ["/d", "/d/a", "/d/a/b", "/d/a/b/g", "/d/a/f", "/d/empty"]
    assert moved(fake) == 2
    assert chelonia(*UP).lines == ["0 uploaded (0 B), 2 unchanged"]
    assert moved(fake) == 0
    (tree / "a" / "f").write_bytes(b"four")
    assert chelonia(*UP).lines == ["'d/a/f' (4 bytes) uploaded to '/d/a/f'.", "1 uploaded (4 B), 1 unchanged"]
    assert fake.data("/d/a/f") == b"four"


def test_a_tree_that_broke_off_is_gone_on_with(chelonia: Command, fake: FakeBartender, tree: Path) -> None:
    """`put -r` does so as `sync`, and refuses differing files without -f."""
    chelonia(*UP)
    fake.remove("/d/a/f")
    moved(fake)
    again = chelonia("put", "-r", "d", "/")
    assert again.code == 0
    assert again.lines == ["'d/a/f' (3 bytes) uploaded to '/d/a/f'.", "'d/a/b/g' is there already."]
    assert moved(fake) == 1
    (tree / "a" / "f").write_bytes(b"four")
    refused = chelonia("put", "-r", "d", "/")
    assert (refused.code, "it is there, and differs from d/a/f; -f overwrites it" in refused.err) == (5, True)
    assert chelonia("put", "-rf", "d", "/").code == 0
    assert moved(fake) == 1


def test_the_same_bytes_with_another_time_only_get_the_time(chelonia: Command, fake: FakeBartender, tree: Path) -> None:
    chelonia(*UP)
    moved(fake)
    os.utime(tree / "a" / "f", (1000, 1000))
    assert chelonia(*UP).lines == ["0 uploaded (0 B), 2 unchanged"]
    assert moved(fake) == 0
    assert float(fake.found("/d/a/f")["timestamps"]["modified"]) == 1000


def test_bytes_that_changed_under_the_same_time_are_found_by_checksum(
    chelonia: Command, fake: FakeBartender, tree: Path
) -> None:
    chelonia(*UP)
    before = (tree / "a" / "f").stat().st_mtime_ns
    (tree / "a" / "f").write_bytes(b"ONE")
    os.utime(tree / "a" / "f", ns=(before, before))
    assert chelonia(*UP).lines == ["0 uploaded (0 B), 2 unchanged"]
    assert chelonia(*UP, "--checksum").lines[-1] == "1 uploaded (3 B), 1 unchanged"


def test_what_is_gone_at_the_source_goes_only_when_asked(chelonia: Command, fake: FakeBartender, tree: Path) -> None:
    chelonia(*UP)
    (tree / "a" / "b" / "g").unlink()
    (tree / "a" / "b").rmdir()
    assert chelonia(*UP).lines == ["0 uploaded (0 B), 1 unchanged"]
    dry = chelonia(*UP, "--delete", "-n")
    assert dry.lines[-1] == "0 would be uploaded (0 B), 1 unchanged, 2 would be removed"
    assert "/d/a/b/g" in fake.names()
    said = chelonia(*UP, "--delete").lines
    assert said == ["'/d/a/b/g' removed.", "'/d/a/b' removed.", "0 uploaded (0 B), 1 unchanged, 2 removed"]
    assert fake.names() == ["/d", "/d/a", "/d/a/f", "/d/empty"]


def test_a_collection_that_has_another_name_keeps_what_is_in_it(
    chelonia: Command, fake: FakeBartender, tree: Path
) -> None:
    """It was emptied under its other name too."""
    fake.add_collection("/u")
    for name in ("mine", "other"):
        fake.add_collection(f"/u/{name}")
        fake.add_file(f"/u/{name}/f", b"kept")
    fake.add_collection("/d")
    fake.link("/u/other", "/d/other")
    fake.link("/u/mine", "/d/empty")
    assert chelonia(*UP, "--delete").code == 0
    assert "/d/other" not in fake.names()
    assert "/u/other/f" in fake.names()
    assert "/u/mine/f" not in fake.names(), "this one is on both sides"


def test_nothing_is_removed_when_something_failed(chelonia: Command, fake: FakeBartender, tree: Path) -> None:
    fake.add_collection("/d")
    fake.add_file("/d/old", b"x")
    (tree / "bad\n").write_bytes(b"")
    assert chelonia(*UP, "--delete").code == 2
    assert "/d/old" in fake.names()


@pytest.mark.parametrize("left", [False, True])
async def test_nothing_counts_as_gone_once_the_directory_itself_is(
    fake: FakeBartender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: bool
) -> None:
    """As when its disk is unmounted while files are sent; another directory is at its place then."""
    monkeypatch.chdir(tmp_path)
    for name in ("d", "d/a", "d/b"):
        Path(name).mkdir()
    fake.add_collection("/d")
    fake.add_file("/d/old", b"x")
    done = []
    with fails(Kind.CONFLICT):
        async for each in sync_up(client_on(fake), Path("d"), "/d", delete=True):
            done.append(each.target)
            if each.target == "/d/b":
                Path("d").rename("away")
                if left:
                    Path("d").mkdir()
    assert done == ["/d", "/d/a", "/d/b"]
    assert "/d/old" in fake.names()


def test_behind_a_link_that_is_skipped_nothing_counts_as_gone(
    chelonia: Command, fake: FakeBartender, tree: Path
) -> None:
    """The link's directory may be on another disk that is not mounted now."""
    chelonia(*UP)
    (tree / "a").rename("elsewhere")
    (tree / "empty").rmdir()
    for target in ("../none", "a", "../elsewhere"):
        (tree / "a").symlink_to(target)
        ran = chelonia(*UP, "--delete")
        assert (ran.code, "/d/a/b/g" in fake.names(), "/d/a/f" in fake.names()) == (0, True, True), target
        (tree / "a").unlink()
    assert "/d/empty" not in fake.names()


def test_what_is_left_out_is_left_alone_on_both_sides(chelonia: Command, fake: FakeBartender, tree: Path) -> None:
    fake.add_collection("/d")
    fake.add_collection("/d/build")
    for ln in ("/d/build/x", "/d/keep.tmp", "/d/old"):
        fake.add_file(ln, b"x")
    (tree / "new.tmp").write_bytes(b"")
    words = ("--delete", "--exclude", "*.tmp", "--exclude", "build/")
    assert chelonia(*UP, *words).lines[-1] == "2 uploaded (6 B), 0 unchanged, 1 removed"
    assert "/d/build/x" in fake.names()
    assert "/d/keep.tmp" in fake.names()
    assert not {"/d/old", "/d/new.tmp"} & set(fake.names())


def test_down_is_the_same_the_other_way(chelonia: Command, fake: FakeBartender) -> None:
    fake.add_collection("/d")
    fake.add_collection("/d/c")
    fake.add_file("/d/c/f", b"one", "1000.5")
    assert chelonia(*DOWN, "-n").lines[-1] == "1 would be downloaded (3 B), 0 unchanged"
    assert not Path("d").exists()
    assert chelonia(*DOWN).lines[-1] == "1 downloaded (3 B), 0 unchanged"
    assert Path("d/c/f").stat().st_mtime == 1000.5
    assert chelonia(*DOWN).lines == ["0 downloaded (0 B), 1 unchanged"]
    os.utime("d/c/f", (5, 5))
    assert chelonia(*DOWN).lines == ["0 downloaded (0 B), 1 unchanged"]
    assert Path("d/c/f").stat().st_mtime == 1000.5
    Path("d/extra").mkdir()
    Path("d/extra/f").write_bytes(b"")
    assert chelonia(*DOWN, "--delete").lines[-1] == "0 downloaded (0 B), 1 unchanged, 2 removed"
    assert sorted(path.name for path in Path("d").iterdir()) == ["c"]


def test_what_may_not_be_read_is_not_taken_for_an_empty_collection(chelonia: Command, fake: FakeBartender) -> None:
    for name in ("/d", "/d/secret", "/d/open"):
        fake.add_collection(name)
    fake.add_file("/d/secret/f", b"one", "1000")
    chelonia(*DOWN)
    fake.deny("/d/secret")
    for words in ((*DOWN, "--delete"), ("get", "-r", "/d", "again/"), ("cp", "-r", "chelonia:/d", "chelonia:/e")):
        told = chelonia(*words)
        assert (told.code, "/d/secret" in told.err) == (4, True), words
    assert Path("d/secret/f").read_bytes() == b"one"
    assert chelonia(*DOWN, "--delete", "--exclude", "secret/").code == 0
    assert Path("d/secret/f").read_bytes() == b"one"


def test_diff_and_removals_tell_what_may_not_be_looked_into(chelonia: Command, fake: FakeBartender) -> None:
    for name in ("/d", "/d/secret"):
        fake.add_collection(name)
    fake.add_file("/d/secret/f", b"one", "1000")
    Path("d").mkdir()
    fake.deny("/d/secret")
    for words in (("diff", "d", "/d"), ("sync", "--delete", "d", "chelonia:/d")):
        told = chelonia(*words)
        assert (told.code, "'/d/secret': you may not read it" in told.err) == (4, True), words
    assert chelonia("diff", "--exclude", "secret/", "d", "/d").code == 0
    Path("d/secret").mkdir()
    Path("d/secret/f").write_bytes(b"one")
    told = chelonia("diff", "d", "/d")
    assert (told.code, told.lines, told.err.count("you may not read it")) == (4, [], 1), (
        "nobody knows whether it differs"
    )


def test_a_collection_is_not_copied_into_itself_by_whatever_name(chelonia: Command, fake: FakeBartender) -> None:
    for name in ("/a", "/a/b", "/ab"):
        fake.add_collection(name)
    itself = fake.cluster.guid("/a")
    for source, target in (
        ("/a", "/a/b"),
        (itself, "/a/b"),
        ("/a", f"{itself}/b"),
        ("/a", f"{itself}/c"),
    ):
        ran = chelonia("cp", "-r", f"chelonia:{source}", f"chelonia:{target}")
        assert (ran.code, "not copied into itself" in ran.err) == (5, True), ran.err
    assert fake.names() == ["/a", "/a/b", "/ab"]
    assert chelonia("cp", "-r", f"chelonia:{itself}", "chelonia:/abc").code == 0


def test_get_of_a_tree_again_moves_only_what_is_missing(chelonia: Command, fake: FakeBartender) -> None:
    fake.add_collection("/d")
    for name in ("f", "g"):
        fake.add_file(f"/d/{name}", b"one", "1000")
    chelonia("get", "-r", "/d", "d")
    Path("d/g").unlink()
    fake.store.asked.clear()
    again = chelonia("get", "-r", "/d", ".").lines
    assert again == ["'/d/f' is there already.", "'/d/g' (3 bytes) downloaded as 'd/g'."]


@pytest.mark.parametrize("words", [("d", "e"), ("chelonia:/d", "chelonia:/e"), ("d", "/e")])
def test_one_side_is_in_the_cluster_and_says_so(chelonia: Command, words: tuple[str, str]) -> None:
    refused = chelonia("sync", *words)
    assert (refused.code, "chelonia:/path" in refused.err) == (2, True)


def test_a_source_that_is_not_there_removes_nothing(chelonia: Command, fake: FakeBartender) -> None:
    fake.add_collection("/d")
    fake.add_file("/d/f", b"x")
    assert chelonia(*UP, "--delete").code == 3
    assert fake.names() == ["/d", "/d/f"]
    assert chelonia("sync", "--delete", "chelonia:/none", "d").code == 3


def test_a_directory_that_was_removed_around_us_is_not_an_empty_one(
    chelonia: Command, fake: FakeBartender, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.add_collection("/d")
    fake.add_file("/d/f", b"x")
    Path("here").mkdir()
    monkeypatch.chdir("here")
    Path.cwd().rmdir()
    for words in (
        ("sync", "--delete", ".", "chelonia:/d"),
        ("put", "-r", ".", "/e"),
        ("put", "-r", ".", "/d"),
        ("diff", ".", "/d"),
    ):
        refused = chelonia(*words)
        assert (refused.code, "(not-found)" in refused.err) == (3, True), refused
    assert "/d/f" in fake.names()


@pytest.mark.parametrize("words", [("sync", "d", "chelonia:/file"), ("put", "-r", "d", "/file")])
def test_a_tree_does_not_go_below_a_file(
    chelonia: Command, fake: FakeBartender, tree: Path, words: tuple[str, ...]
) -> None:
    (tree / "one").write_bytes(b"1")
    chelonia("put", "d/one", "/file")
    ran = chelonia(*words)
    assert (ran.code, fake.names()) == (5, ["/file"])
    assert "it is a file; a tree goes below a collection: name another one, or remove it first" in ran.err


def test_the_space_below_a_name_that_is_not_there_is_none(chelonia: Command) -> None:
    ran = chelonia("quota", "/nix")
    assert (ran.code, ran.lines) == (3, [])


@pytest.mark.parametrize(
    ("words", "cure"),
    [
        (("sync", "f", "chelonia:/d"), "put uploads a file"),
        (("sync", "chelonia:/d/f", "d"), "get downloads a file"),
        (("diff", "f", "/d"), "put uploads a file"),
        (("diff", ".", "/d/f"), "get downloads a file"),
    ],
)
def test_single_files_have_other_verbs(
    chelonia: Command, fake: FakeBartender, words: tuple[str, ...], cure: str
) -> None:
    fake.add_collection("/d")
    fake.add_file("/d/f", b"x")
    Path("f").write_bytes(b"x")
    refused = chelonia(*words)
    assert (refused.code, f"{cure} (not-a-collection)" in refused.err) == (5, True), refused


def test_diff_says_what_is_where_and_exits_with_1(chelonia: Command, fake: FakeBartender, tree: Path) -> None:
    chelonia(*UP)
    assert chelonia("diff", "d", "/d").lines == ["no difference"]
    (tree / "new").write_bytes(b"")
    (tree / "a" / "f").write_bytes(b"longer")
    fake.add_file("/d/old", b"x")
    found = chelonia("diff", "d", "/d")
    assert (found.code, found.lines) == (1, ["+ d/new", "~ d/a/f", "- /d/old"])
    assert chelonia("diff", "d", "/none").code == 3
    assert moved(fake) == 2  # of the sync


def test_json_tells_each_file_and_what_was_done(chelonia: Command, tree: Path) -> None:
    chelonia(*UP)
    (tree / "new").write_bytes(b"1")
    told = json.loads(chelonia("--json", *UP).out)
    files = {each["target"]: each["action"] for each in told["results"] if each["type"] == "file"}
    assert files == {"/d/new": "uploaded", "/d/a/f": "unchanged", "/d/a/b/g": "unchanged"}


@pytest.mark.parametrize(
    ("choice", "path", "takes"),
    [
        (Choice(exclude=("*.tmp",)), "a/b.tmp", False),
        (Choice(exclude=("/x",)), "a/x", True),
        (Choice(exclude=("a/x",)), "a/x", False),
        (Choice(exclude=("build/",)), "build", True),
        (Choice(exclude=("a",)), "a/b/c", False),
        (Choice(exclude=("**/x/*",)), "p/q/x/f", False),
        (Choice(include=("*.root",)), "a/f.root", True),
        (Choice(include=("*.root",)), "a/f", False),
        (Choice(include=("*.root",), exclude=("a",)), "a/f.root", False),
        (Choice(include=("[ab]?",)), "b1", True),
    ],
)
def test_what_a_choice_takes(choice: Choice, path: str, takes: bool) -> None:
    assert choice.takes_below(path.split("/"), collection=False) is takes


async def test_a_file_of_several_blobs_is_read_within_a_limit() -> None:
    """It raised an error of the program."""
    http = limited(cast(HttpClient, Replicas()), Pace(10**12), QuickClock())
    read = HttpBytes(http, QuickClock()).get(SOURCES, WHOLE)
    assert b"".join([chunk async for chunk in read]) == REPLICA


async def test_a_limit_holds_for_all_transfers_together(fake: FakeBartender) -> None:
    from chelonia.hosting.transfer.download import read
    from chelonia.hosting.transfer.upload import bytes_source, upload

    client = client_on(fake)
    clock = QuickClock()
    client.http = limited(client.http, Pace(100_000), clock)
    began = clock.monotonic_ms()
    await upload(client, bytes_source(b"x" * 200_000), "/f")
    assert b"".join([chunk async for chunk in read(client, "/f")]) == b"x" * 200_000
    assert 3000 <= clock.monotonic_ms() - began <= 4000
    assert client.http is not fake.store


def test_a_broken_upload_fails_the_tree_but_not_its_neighbours(
    chelonia: Command, fake: FakeBartender, tree: Path
) -> None:
    chelonia(*UP)
    fake.failures = [Kind.NETWORK]
    assert chelonia(*UP).code == 7


def test_what_the_cluster_has_to_say_of_an_upload_is_told_once(
    chelonia: Command, fake: FakeBartender, tree: Path
) -> None:
    for words in (("put", "-r", "d", "/e", "9"), ("cp", "-r", "chelonia:/e", "chelonia:/f")):
        assert chelonia(*words).err.startswith("note: 9 copies are wanted, and there are 3 Shepherds")
