"""The original's answer strings, one table per Bartender operation, chosen by `Kind` and never by text.

Clients of the original compare these strings, so they are kept to the letter. Where the original has no string for a
failure, the operation's catch-all (`internal error (...)`, `failed: ...`) carries the kind's wire name.
`move.source` and `<op>.metadata` are phases of an operation with strings of their own.
Source: the operation table of the original Bartender.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from chelonia.core.errors import Kind

GATEWAY_ABSENT = "gateway is not configured. Bartender does not support mount points"
"""Answer of the original behind a mount point when it has no gateway."""
NO_SUPPORTED_PROTOCOL = "no supported protocol found"

_K = Kind


@dataclass(frozen=True, slots=True)
class Phrases:
    """The strings with which one operation answers.

    `other` is the catch-all, with `{kind}`; the operation's own strings (`by_kind`) may use `{subject}`.
    """

    success: str
    other: str
    by_kind: dict[Kind, str] = field(default_factory=dict)


def _making(noun: str, mountpoint: str) -> dict[Kind, str]:
    return {
        _K.EXISTS: "LN exists",
        _K.NOT_FOUND: "parent does not exist",
        _K.NO_PARENT: "parent does not exist",
        _K.NOT_A_COLLECTION: "parent does not exist",
        _K.INVALID_TARGET: f"cannot create {noun} without a parent collection",
        _K.IN_MOUNTPOINT: mountpoint,
        _K.DENIED: "failed to add child to parent",
        _K.CONFLICT: "failed to add child to parent",
        _K.BAD_REQUEST: "failed to create new librarian entry",
        _K.BAD_NAME: "failed to create new librarian entry",
        _K.TOO_LARGE: "failed to create new librarian entry",
        _K.MISSING_METADATA: "missing metadata {subject}",
        _K.NO_SHEPHERD: "no suitable shepherd found",
        _K.NO_SPACE: "no suitable shepherd found",
        _K.NO_PROTOCOL: "no suitable shepherd found",
    }


_FILE = _making("a file", GATEWAY_ABSENT)
_COLLECTION = _making("collection", "cannot create collection in mountpoint")
_MOUNTPOINT = _making("mountpoint", "cannot create anything in mountpoint")
_REFUSED_METADATA = {_K.DENIED: "failed to create new librarian entry"}
_GONE = {_K.NOT_FOUND: "no such LN", _K.BAD_NAME: "no such LN", _K.IN_MOUNTPOINT: "no such LN", _K.DENIED: "denied"}
_INTERNAL = "internal error ({kind})"
_FAILED = "failed: {kind}"

PHRASES: dict[str, Phrases] = {
    "stat": Phrases("", "error checking permission", {_K.DENIED: "permission denied"}),
    "list": Phrases(
        "found",
        _INTERNAL,
        {
            _K.NOT_FOUND: "not found",
            _K.BAD_NAME: "not found",
            _K.DENIED: "denied",
            _K.NOT_A_COLLECTION: "is a file",
            _K.IN_MOUNTPOINT: GATEWAY_ABSENT,
            _K.TOO_LARGE: "internal error ({cause})",
        },
    ),
    "getFile": Phrases(
        "done",
        _INTERNAL,
        {
            _K.NOT_FOUND: "not found",
            _K.BAD_NAME: "not found",
            _K.DENIED: "denied",
            _K.NOT_A_FILE: "is not a file",
            _K.NO_REPLICA: "file has no valid replica",
            _K.NOT_ALIVE: "error while getting TURL (file is not alive)",
            _K.NO_PROTOCOL: f"error while getting TURL ({NO_SUPPORTED_PROTOCOL})",
            _K.NETWORK: "error while getting TURL (network)",
            _K.NOT_SUPPORTED: "error while getting TURL ({cause})",  # the original's clients read nothing else
            _K.IN_MOUNTPOINT: GATEWAY_ABSENT,
        },
    ),
    "putFile": Phrases("done", _INTERNAL, _FILE),
    "putFile.metadata": Phrases("done", _INTERNAL, _FILE | _REFUSED_METADATA),
    "addReplica": Phrases(
        "done",
        _INTERNAL,
        {
            _K.NO_SHEPHERD: "no suitable shepherd found",
            _K.NO_SPACE: "no suitable shepherd found",
            _K.NO_PROTOCOL: "no suitable shepherd found",
            _K.NOT_FOUND: "not found",
            _K.BAD_NAME: "not found",
            _K.NOT_A_FILE: "is not a file",
            _K.DENIED: "denied",
        },
    ),
    "delFile": Phrases(
        "deleted",
        _INTERNAL,
        {
            _K.NOT_FOUND: "nosuchLN",
            _K.BAD_NAME: "nosuchLN",
            _K.NOT_A_FILE: "nosuchLN",
            _K.DENIED: "denied",
            _K.IN_MOUNTPOINT: GATEWAY_ABSENT,
        },
    ),
    "undelete": Phrases("restored", _FAILED, _GONE | {_K.EXISTS: "LN exists", _K.NO_PARENT: "parent does not exist"}),
    "listDeleted": Phrases("found", _FAILED, {_K.NOT_FOUND: "not found", _K.BAD_NAME: "not found"}),
    "unlink": Phrases(
        "unset",
        _FAILED,
        _GONE | {_K.NOTHING_TO_UNLINK: "nothing to unlink", _K.NOT_EMPTY: "failed: collection is not empty"},
    ),
    "makeCollection": Phrases("done", "internal error", _COLLECTION),
    "makeCollection.metadata": Phrases("done", "internal error", _COLLECTION | _REFUSED_METADATA),
    "makeMountpoint": Phrases("done", "internal error", _MOUNTPOINT),
    "makeMountpoint.metadata": Phrases("done", "internal error", _MOUNTPOINT | _REFUSED_METADATA),
    "unmakeCollection": Phrases(
        "removed", _FAILED, _GONE | {_K.NOT_A_COLLECTION: "no such LN", _K.NOT_EMPTY: "collection is not empty"}
    ),
    "unmakeMountpoint": Phrases("removed", _FAILED, _GONE | {_K.INVALID_TARGET: "no such LN"}),
    "move": Phrases(
        "moved",
        "failed adding child to parent",
        {
            _K.NOT_FOUND: "nosuchLN",
            _K.BAD_NAME: "invalidtarget",
            _K.EXISTS: "targetexists",
            _K.INVALID_TARGET: "invalidtarget",
            _K.NO_PARENT: "invalidtarget",
            _K.NOT_A_COLLECTION: "invalidtarget",
            _K.DENIED: "adding child to parent denied",
            _K.IN_MOUNTPOINT: "moving into a mountpoint is not supported",
        },
    ),
    "move.source": Phrases(
        "moved",
        "failed to remove original link",
        {
            _K.NOT_FOUND: "nosuchLN",
            _K.BAD_NAME: "nosuchLN",
            _K.DENIED: "denied to remove original link",
            _K.INTERNAL: "error while removing original link",
        },
    ),
    "modify": Phrases(
        "set",
        _FAILED,
        {
            _K.NOT_FOUND: "no such LN",
            _K.BAD_NAME: "no such LN",
            _K.IN_MOUNTPOINT: "no such LN",
            _K.DENIED: "denied",
            _K.CONFLICT: "condition failed",
        },
    ),
}
"""Every operation of the Bartender (and its phases) and its strings."""


def success(op: str) -> str:
    """Return the string with which `op` answers success."""
    return PHRASES[op].success


def failure(op: str, kind: Kind, subject: str = "", cause: str = "") -> str:
    """Return the string with which `op` answers a failure of `kind`. Total over both (a test proves it)."""
    phrases = PHRASES[op]
    text = phrases.by_kind.get(kind, phrases.other)
    for field_name, value in (("{kind}", kind.value), ("{subject}", subject), ("{cause}", cause)):
        text = text.replace(field_name, value)
    return text.strip()
