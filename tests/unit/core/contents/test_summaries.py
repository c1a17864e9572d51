"""Summaries equal the facts in the file, and count for rights only unchanged."""

import pytest
from msgspec import structs

from chelonia.core.contents.attributes import attributes_of
from chelonia.core.contents.summaries import (
    COMMON_WORD,
    NAMES_MAX,
    attributes_in,
    numbers_in,
    rights_in,
    rights_of,
    summary_of,
    words_of,
)
from chelonia.core.ids import Dn, ObjectId
from chelonia.core.metadata import StoredObject

FILE = StoredObject(
    ObjectId("8e0b7f0e-0000-4000-8000-000000000001"),
    7,
    {
        "entry": {"type": "file", "owner": "/CN=x"},
        "timestamps": {"created": "1700000000.123", "modified": "1700000001.000000001", "changed": "1700000002.5"},
        "posix": {"mode": "416", "uid": "0", "accessed": "1700000003"},
        "parents": {"0/a": "parent", "0/b": "parent"},
        "states": {"size": "9223372036854775807", "neededReplicas": "3"},
        "blobs": {"00000000": "blob-1"},
    },
)


def with_(**sections: dict[str, str]) -> StoredObject:
    return StoredObject(FILE.id, FILE.version, {**FILE.sections, **sections})


@pytest.mark.parametrize(
    "file",
    [FILE, with_(posix={}, timestamps={}), with_(content={"id": "c", "splices": "4"}), with_(metadata={"k": "v"})],
)
def test_a_summary_tells_what_reading_the_file_does_but_for_the_version(file: StoredObject) -> None:
    words = words_of(summary_of(file))
    told = attributes_in(words, Dn("/CN=x"), numbers_in(words[COMMON_WORD]))
    assert told == structs.replace(attributes_of(file), version=0)


def test_marks_say_what_a_summary_does_not_tell() -> None:
    for file, marks in (
        (FILE, "f"),
        (with_(metadata={"k": "v"}), "fu"),
        (with_(locks={"t": ""}, metadata={"k": "v"}), "ful"),
    ):
        assert summary_of(file).split(" ")[:2] == [FILE.id, marks]


def test_only_files_with_few_names_have_one() -> None:
    assert summary_of(with_(entry={"type": "collection"})) == ""
    assert summary_of(with_(entry={"type": "trashed"})) == ""
    assert summary_of(with_(parents={f"0/{n}": "parent" for n in range(NAMES_MAX + 1)})) == ""
    assert summary_of(with_(parents={f"0/{n}": "parent" for n in range(NAMES_MAX)}))


def test_rights_are_told_apart_golden() -> None:
    assert rights_of("/CN=x", {}) == "W0PHGJ6wABUlPq2j6DEU"
    assert rights_in(words_of(summary_of(with_(policy={"ALL": "+read"})))[COMMON_WORD]) == rights_of(
        "/CN=x", {"ALL": "+read"}
    )
    kinds = [
        ("a", {}),
        ("", {"a": ""}),
        ("a", {"b": "c"}),
        ("a", {"b": "", "c": ""}),
        ("ab", {"": "c"}),
        ("a", {"bc": ""}),
    ]
    assert len({rights_of(owner, policy) for owner, policy in kinds}) == len(kinds)
