"""Every Bartender operation answers something for every kind of failure, in the original's words where it had them."""

import pytest

from chelonia.core import status
from chelonia.core.errors import Kind
from chelonia.core.operations.bartender import BARTENDER


@pytest.mark.parametrize("op", sorted(status.PHRASES))
@pytest.mark.parametrize("kind", list(Kind))
def test_every_operation_answers_every_kind(op: str, kind: Kind) -> None:
    text = status.failure(op, kind, "states/size", "a cause")
    assert text
    assert text != status.success(op)
    assert "{" not in text


def test_every_operation_of_the_bartender_has_phrases() -> None:
    assert set(BARTENDER.by_name) <= set(status.PHRASES)


ORIGINAL = [
    ("list", Kind.NOT_FOUND, "not found"),
    ("list", Kind.NOT_A_COLLECTION, "is a file"),
    ("list", Kind.DENIED, "denied"),
    ("getFile", Kind.NOT_FOUND, "not found"),
    ("getFile", Kind.DENIED, "denied"),
    ("getFile", Kind.NOT_A_FILE, "is not a file"),
    ("getFile", Kind.NO_REPLICA, "file has no valid replica"),
    ("putFile", Kind.EXISTS, "LN exists"),
    ("putFile", Kind.INVALID_TARGET, "cannot create a file without a parent collection"),
    ("putFile", Kind.NO_PARENT, "parent does not exist"),
    ("putFile", Kind.DENIED, "failed to add child to parent"),
    ("putFile", Kind.NO_SHEPHERD, "no suitable shepherd found"),
    ("putFile.metadata", Kind.DENIED, "failed to create new librarian entry"),
    ("addReplica", Kind.NO_SHEPHERD, "no suitable shepherd found"),
    ("delFile", Kind.NOT_FOUND, "nosuchLN"),
    ("delFile", Kind.NOT_A_FILE, "nosuchLN"),
    ("delFile", Kind.DENIED, "denied"),
    ("unlink", Kind.NOT_FOUND, "no such LN"),
    ("unlink", Kind.NOTHING_TO_UNLINK, "nothing to unlink"),
    ("unlink", Kind.DENIED, "denied"),
    ("makeCollection", Kind.EXISTS, "LN exists"),
    ("makeCollection", Kind.NO_PARENT, "parent does not exist"),
    ("makeCollection", Kind.INVALID_TARGET, "cannot create collection without a parent collection"),
    ("makeCollection", Kind.IN_MOUNTPOINT, "cannot create collection in mountpoint"),
    ("makeCollection", Kind.DENIED, "failed to add child to parent"),
    ("makeCollection", Kind.INTERNAL, "internal error"),
    ("makeMountpoint", Kind.IN_MOUNTPOINT, "cannot create anything in mountpoint"),
    ("unmakeCollection", Kind.NOT_FOUND, "no such LN"),
    ("unmakeCollection", Kind.NOT_EMPTY, "collection is not empty"),
    ("unmakeMountpoint", Kind.NOT_FOUND, "no such LN"),
    ("move", Kind.EXISTS, "targetexists"),
    ("move", Kind.INVALID_TARGET, "invalidtarget"),
    ("move", Kind.DENIED, "adding child to parent denied"),
    ("move", Kind.IN_MOUNTPOINT, "moving into a mountpoint is not supported"),
    ("move", Kind.CONFLICT, "failed adding child to parent"),
    ("move.source", Kind.NOT_FOUND, "nosuchLN"),
    ("move.source", Kind.DENIED, "denied to remove original link"),
    ("modify", Kind.NOT_FOUND, "no such LN"),
    ("modify", Kind.DENIED, "denied"),
    ("modify", Kind.CONFLICT, "condition failed"),
]


@pytest.mark.parametrize(("op", "kind", "text"), ORIGINAL)
def test_the_strings_of_the_original_are_kept(op: str, kind: Kind, text: str) -> None:
    assert status.failure(op, kind) == text


def test_missing_metadata_names_the_key() -> None:
    assert status.failure("putFile", Kind.MISSING_METADATA, "states/size") == "missing metadata states/size"


SUCCESS = {
    "list": "found", "getFile": "done", "putFile": "done", "addReplica": "done", "delFile": "deleted",
    "unlink": "unset", "makeCollection": "done", "unmakeCollection": "removed", "makeMountpoint": "done",
    "unmakeMountpoint": "removed", "move": "moved", "modify": "set",
}  # fmt: skip


@pytest.mark.parametrize(("op", "text"), sorted(SUCCESS.items()))
def test_success_in_the_words_of_the_original(op: str, text: str) -> None:
    assert status.success(op) == text
