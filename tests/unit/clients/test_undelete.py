"""undelete: lists what was deleted, and brings it back."""

from __future__ import annotations

import json

import pytest

from tests.support.bartender import FakeBartender
from tests.unit.clients.faking import Command


def test_what_was_deleted_is_listed_and_comes_back(chelonia: Command, fake: FakeBartender) -> None:
    fake.add_collection("/a")
    for name in ("/z", "/a/x", "/a/y"):
        fake.add_file(name, b"abc")
        guid = fake.cluster.guid(name)  # of the last one, in the end
        assert chelonia("rm", name).code == 0
    lines = chelonia("undelete", "--list").lines
    assert [line.split()[-1] for line in lines] == ["NAME", "/z", "/a/x", "/a/y"]
    assert [line.split()[-1] for line in chelonia("undelete", "--list", "/a").lines] == ["NAME", "x", "y"]
    assert chelonia("undelete", "/a/x").lines == ["Restoring '/a/x': restored"]
    again = chelonia("undelete", "/a/x")
    assert (again.code, again.lines) == (3, ["Restoring '/a/x': no such LN"])
    assert chelonia("undelete", guid, "/a/old").lines == [f"Restoring '{guid}' as '/a/old': restored"]
    fake.add_file("/z", b"new")
    taken = chelonia("undelete", "/z")
    assert (taken.code, taken.lines) == (5, ["Restoring '/z': LN exists"])
    assert fake.names() == ["/a", "/a/old", "/a/x", "/z"]
    assert chelonia("undelete", "--list", "/a").lines[0].startswith("nothing that was deleted from /a is kept; ")
    missing = chelonia("undelete", "--list", "/none")
    assert (missing.code, "if it was deleted, `undelete -r /none` restores" in missing.err) == (3, True)
    assert chelonia("undelete").code == 2
    document = json.loads(chelonia("--json", "undelete", "--list").out)
    assert [result["name"] for result in document["results"]] == ["/z"]


@pytest.mark.parametrize("name", ["/a/x", "chelonia:/a/x"])
def test_what_was_deleted_with_its_collection_says_how_it_comes_back(
    chelonia: Command, fake: FakeBartender, name: str
) -> None:
    fake.add_collection("/a")
    fake.add_file("/a/x", b"abc")
    assert chelonia("rm", "-r", "/a").code == 0
    told = chelonia("undelete", name)
    assert told.code == 3
    assert "a; if it was deleted, `undelete -r " in told.err
