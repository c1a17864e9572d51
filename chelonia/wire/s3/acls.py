"""S3's access control lists as policies of ours, and back. Pure.

Everybody (`AllUsers`) is `ALL`, an owner of a key is his DN. `READ` of a bucket lists it, of an object gets it; `WRITE`
of a bucket puts and removes objects; `READ_ACP` comes with reading; `WRITE_ACP` changes rights. What a policy says
beyond that is not shown. Source: "Access control list (ACL) overview", Amazon S3 User Guide.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from chelonia.core.rights.policy import ALL
from chelonia.wire.s3.errors import S3Error

EVERYBODY: Final = "http://acs.amazonaws.com/groups/global/AllUsers"
_ACTIONS: Final = {
    "READ": ("read",),
    "WRITE": ("addEntry", "removeEntry"),
    "READ_ACP": ("read",),
    "WRITE_ACP": ("modifyPolicy",),
    "FULL_CONTROL": ("read", "addEntry", "removeEntry", "delete", "modifyMetadata", "modifyPolicy"),
}
_CANNED: Final[Mapping[str, tuple[str, ...]]] = {
    "private": (),
    "public-read": ("READ",),
    "public-read-write": ("READ", "WRITE"),
    "bucket-owner-read": (),
    "bucket-owner-full-control": (),
}

Grant = tuple[str, str]
"""Who - a DN, or `EVERYBODY` - and which permission."""


def canned(name: str) -> tuple[Grant, ...]:
    """The grants of a canned list, without the owner's. Raises: S3Error."""
    if name not in _CANNED:
        raise S3Error("InvalidArgument", f"this door has the canned lists {', '.join(_CANNED)}")
    return tuple((EVERYBODY, permission) for permission in _CANNED[name])


def policy_of(grants: Iterable[Grant], owner: str, there: Mapping[str, str]) -> dict[str, str | None]:
    """What has to change of a policy for these grants to hold: rules of everybody and of persons; others stay.

    Raises: S3Error for a permission or a grantee that is none.
    """
    rights: dict[str, set[str]] = {}
    for who, permission in grants:
        identity = ALL if who == EVERYBODY else who
        if permission not in _ACTIONS or not (identity == ALL or identity.startswith("/")):
            raise S3Error("InvalidArgument", "a grant is of READ, WRITE, READ_ACP, WRITE_ACP or FULL_CONTROL, to a DN "
                                             "or to all users")  # fmt: skip
        if identity != owner:
            rights.setdefault(identity, set()).update(_ACTIONS[permission])
    gone = {name: None for name in there if (name == ALL or name.startswith("/")) and name not in rights}
    return {**gone, **{name: " ".join(f"+{each}" for each in sorted(actions)) for name, actions in rights.items()}}


def grants_of(policy: Mapping[str, str], owner: str) -> tuple[Grant, ...]:
    """The grants that a policy amounts to, the owner's first."""
    grants = [(owner, "FULL_CONTROL")]
    for identity, rule in sorted(policy.items()):
        if identity == owner or not (identity == ALL or identity.startswith("/")):
            continue
        allowed = {word.removeprefix("+") for word in rule.split() if word.startswith("+")}
        who = EVERYBODY if identity == ALL else identity
        if allowed >= set(_ACTIONS["FULL_CONTROL"]):
            grants.append((who, "FULL_CONTROL"))
            continue
        names = ("READ", "WRITE", "WRITE_ACP")
        grants += [(who, name) for name in names if allowed >= set(_ACTIONS[name])]
    return tuple(grants)
