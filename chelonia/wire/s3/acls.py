"""S3's access control lists as policies of ours, and back. Pure.

Everybody (`AllUsers`) is `ALL`, signed requests (`AuthenticatedUsers`) are `ALL` without `ANONYMOUS`, a person is a DN.
`READ` of a bucket lists it, of an object gets it. `WRITE` of a bucket puts and removes objects. `READ_ACP` comes with
reading; `WRITE_ACP` changes rights. Lists do not show other rules of a policy.
Source: "Access control list (ACL) overview", Amazon S3 User Guide.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from chelonia.core.ids import ANONYMOUS
from chelonia.core.rights.policy import ALL
from chelonia.wire.s3.errors import S3Error
from chelonia.wire.s3.facts import is_text

EVERYBODY: Final = "http://acs.amazonaws.com/groups/global/AllUsers"
AUTHENTICATED: Final = "http://acs.amazonaws.com/groups/global/AuthenticatedUsers"
GROUPS: Final = (EVERYBODY, AUTHENTICATED)
_ACTIONS: Final = {
    "READ": ("read",),
    "WRITE": ("addEntry", "removeEntry"),
    "READ_ACP": ("read",),
    "WRITE_ACP": ("modifyPolicy",),
    "FULL_CONTROL": ("read", "addEntry", "removeEntry", "delete", "modifyMetadata", "modifyPolicy"),
}
Grant = tuple[str, str]
"""Grantee (a DN, one of `GROUPS`, or `BUCKET_OWNER`) and permission."""
BUCKET_OWNER: Final = "bucket-owner"
_CANNED: Final[Mapping[str, tuple[Grant, ...]]] = {
    "private": (),
    "public-read": ((EVERYBODY, "READ"),),
    "public-read-write": ((EVERYBODY, "READ"), (EVERYBODY, "WRITE")),
    "authenticated-read": ((AUTHENTICATED, "READ"),),
    "bucket-owner-read": ((BUCKET_OWNER, "READ"),),
    "bucket-owner-full-control": ((BUCKET_OWNER, "FULL_CONTROL"),),
}
ACL: Final = "x-amz-acl"
GRANTS_MAX: Final = 100
"""Grants of one list: as many as rules of a policy."""
_FIELDS: Final = {f"x-amz-grant-{name.lower().replace('_', '-')}": name for name in _ACTIONS}
_GRANTEE: Final = re.compile(r'\s*(id|uri|emailAddress)\s*=\s*(?:"([^"]*)"|([^",]*))\s*(?:,|\Z)')


def granted(field: Callable[[str], str | None]) -> tuple[Grant, ...] | None:
    """Return the grants in header fields, by a canned list or by grantee; None: there are none. Raises: S3Error."""
    name, headers = field(ACL), {each: text for each in _FIELDS if (text := field(each))}
    if name and headers:
        raise S3Error("InvalidRequest", "Specifying both Canned ACLs and Header Grants is not allowed")
    grants = [(grantee, _FIELDS[each]) for each, text in headers.items() for grantee in _grantees(each, text)]
    if len(grants) > GRANTS_MAX:
        raise S3Error("InvalidArgument", f"a list has at most {GRANTS_MAX} grants")
    return canned(name) if name else tuple(grants) if headers else None


def _grantees(name: str, text: str) -> list[str]:
    found, at = list[str](), 0
    while at < len(text) and is_text((text,)):
        each = _GRANTEE.match(text, at)
        if each is None:
            break
        if each[1] == "emailAddress":
            raise by_address()
        grantee = (each[2] or each[3] or "").strip()
        if grantee not in GROUPS and not _is_person(grantee):
            break
        found, at = [*found, grantee], each.end()
    if not found or at < len(text):
        raise S3Error("InvalidArgument", f'{name} is id="<DN>" or uri="<group>", and more behind commas')
    return found


def _is_person(grantee: str) -> bool:
    """Return whether a rule can be of this DN."""
    return grantee.startswith("/") and grantee.isprintable()


def by_address() -> S3Error:
    """Return the refusal of a grantee named by e-mail address."""
    return S3Error("UnresolvableGrantByEmailAddress", "persons are known by their DN alone: give it as ID")


def canned(name: str) -> tuple[Grant, ...]:
    """Return the grants of a canned list, without the owner's. Raises: S3Error."""
    if name not in _CANNED:
        raise S3Error("InvalidArgument", f"this door has the canned lists {', '.join(_CANNED)}")
    return _CANNED[name]


def policy_of(grants: Iterable[Grant], owner: str, existing: Mapping[str, str]) -> dict[str, str | None]:
    """Return the changes of a policy that make these grants hold: rules of all and of persons; those of groups stay.
    No changes: they hold.

    Raises: S3Error for an unknown permission or grantee.
    """
    rights: dict[str, set[str]] = {}
    public: set[str] = set()
    for grantee, permission in grants:
        identity = ALL if grantee in GROUPS else grantee
        if permission not in _ACTIONS or not (identity == ALL or _is_person(identity)):
            raise S3Error("InvalidArgument", "a grant is of READ, WRITE, READ_ACP, WRITE_ACP or FULL_CONTROL, to a DN "
                                             "or to all users")  # fmt: skip
        if identity != owner:
            rights.setdefault(identity, set()).update(_ACTIONS[permission])
        public.update(_ACTIONS[permission] if grantee == EVERYBODY else ())
    rules = {name: " ".join(f"+{each}" for each in sorted(actions)) for name, actions in rights.items()}
    if signed := sorted(rights.get(ALL, public) - public):
        rules[ANONYMOUS] = " ".join(f"-{each}" for each in signed)
    identities = (name for name in existing if name in (ALL, ANONYMOUS) or name.startswith("/"))
    changed = {name: rule for name, rule in rules.items() if rule != existing.get(name, "")}
    return {**{name: None for name in identities if name not in rules}, **changed}


def grants_of(policy: Mapping[str, str], owner: str) -> tuple[Grant, ...]:
    """Return the grants in a policy: of groups, the owner, other persons."""
    grants: list[Grant] = []
    everybody = _allowed(policy.get(ALL, ""))
    signed = {word.removeprefix("-") for word in policy.get(ANONYMOUS, "").split() if word.startswith("-")} & everybody
    holders = [(dn, _allowed(rule)) for dn, rule in sorted(policy.items()) if dn.startswith("/") and dn != owner]
    groups = ((EVERYBODY, everybody - signed), (AUTHENTICATED, everybody if signed else set()))
    for grantee, allowed in (*groups, (owner, set(_ACTIONS["FULL_CONTROL"])), *holders):
        names = ("FULL_CONTROL",) if allowed >= set(_ACTIONS["FULL_CONTROL"]) else ("READ", "WRITE", "WRITE_ACP")
        grants += [(grantee, name) for name in names if allowed >= set(_ACTIONS[name])]
    return tuple(grants)


def _allowed(rule: str) -> set[str]:
    return {word.removeprefix("+") for word in rule.split() if word.startswith("+")}
