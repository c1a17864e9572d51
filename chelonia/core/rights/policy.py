"""The original's high-level policy, which decides each action on an entry, fail-closed.

An entry's `policy` section maps an identity (DN, `VOMS:<vo>`, `ALL`, `ANONYMOUS`) to a list like `+read -delete`.
`VOMS:<vo>` and `VOMS:/<vo>/<group>[/Role=<role>]` match a caller with that attribute or one below it, by whole
components. Any matching `-` wins; nothing matching means no. The owner has every action unless a rule for `ALL`,
`ANONYMOUS` or a VO denies it; a rule for his own DN is ignored. Anything malformed denies.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ANONYMOUS


class Action(enum.Enum):
    """The seven actions of the policy language."""

    READ = "read"
    ADD_ENTRY = "addEntry"
    REMOVE_ENTRY = "removeEntry"
    DELETE = "delete"
    MODIFY_POLICY = "modifyPolicy"
    MODIFY_STATES = "modifyStates"
    MODIFY_METADATA = "modifyMetadata"


ALL = "ALL"
VOMS_PREFIX = "VOMS:"
DEFAULT_POLICY_SECTION = "defaultPolicy"
"""Section of a collection: the policy given to entries made inside it."""

_ACTIONS = {action.value: action for action in Action}


class Decision(msgspec.Struct, frozen=True):
    """Whether the action is allowed, and the rule that decided it (`identity: list`), for the audit log."""

    allowed: bool
    rule: str


def decide(action: Action, dn: str, attributes: tuple[str, ...], *, owner: str, policy: Mapping[str, str]) -> Decision:
    """Decide one action on one entry.

    Args:
        dn: the caller's DN or `ANONYMOUS`; attributes: verified groups and roles (`/<vo>/<group>/Role=<role>`).
        owner: the entry's `entry/owner` (empty: nobody); policy: its `policy` section.
    Returns: a denial unless some rule allows and no matching rule denies.
    """
    granted = ""
    if owner and dn == owner and dn != ANONYMOUS:
        granted = "owner"
    for identity in sorted(policy):
        if identity == owner and granted == "owner":
            continue
        if not _matches(identity, dn, attributes):
            continue
        signs = _signs(policy[identity], action)
        if "-" in signs:
            return Decision(False, f"{identity}: {policy[identity]}")
        if "+" in signs:
            granted = granted or f"{identity}: {policy[identity]}"
    return Decision(bool(granted), granted or "no rule allows it")


def with_rules(policy: Mapping[str, str], rules: Mapping[str, str]) -> dict[str, str]:
    """Return a policy with these rules in place of all but those of groups, which stay."""
    return {identity: actions for identity, actions in policy.items() if identity.startswith(VOMS_PREFIX)} | dict(rules)


def opens_no_more(policy: Mapping[str, str], *others: Mapping[str, str]) -> bool:
    """Whether one of the others has each grant of a policy, for its identity or `ALL`. The policy keeps their denials
    of what it grants, too. Then it allows nobody an action that none of the others allows him."""
    for action in Action:
        granted, denied = _signed("+", action, policy), _signed("-", action, policy)
        given, withheld = (set[str]().union(*(_signed(sign, action, each) for each in others)) for sign in "+-")
        if granted and not ((ALL in given or granted <= given) and withheld <= denied):
            return False
    return True


def check_policy_rule(identity: str, actions: str) -> None:
    """Refuse a policy rule without a meaning.

    Raises: BAD_REQUEST unless the identity is a DN, `VOMS:<vo>`, `ALL` or `ANONYMOUS`. Each word of `actions` must be
    `+` or `-` with one of the seven names, too.
    """
    valid = identity in (ALL, ANONYMOUS) or identity.startswith("/") or identity.removeprefix(VOMS_PREFIX).strip("/")
    named = identity.startswith(("/", VOMS_PREFIX)) and identity.isprintable()  # as all DNs and groups are
    if not valid or not (named or identity in (ALL, ANONYMOUS)):
        cause = "an identity is a DN (/...), VOMS:<vo>, VOMS:/<vo>/<group>, ALL or ANONYMOUS"
        raise CheloniaError(Kind.BAD_REQUEST, subject=identity[:80], cause=cause)
    for word in actions.split():
        if word[0] not in "+-" or word[1:] not in _ACTIONS:
            cause = f"{word!r} is not + or - followed by one of: {' '.join(_ACTIONS)}"
            raise CheloniaError(Kind.BAD_REQUEST, subject=identity[:80], cause=cause)
    parsed = {action.value for action in Action if _signs(actions, action)}
    assert parsed == {word[1:] for word in actions.split()}, "what is accepted speaks of its actions and no others"


def _signed(sign: str, action: Action, policy: Mapping[str, str]) -> set[str]:
    """Return the identities of which a policy says this of `action`."""
    return {identity for identity, actions in policy.items() if sign in _signs(actions, action)}


def _matches(identity: str, dn: str, attributes: tuple[str, ...]) -> bool:
    if identity == ALL:
        return True
    if identity.startswith(VOMS_PREFIX):
        group = identity.removeprefix(VOMS_PREFIX).strip("/")
        whole = f"/{group}"
        return bool(group) and any(each == whole or each.startswith(whole + "/") for each in attributes)
    return identity == dn


def _signs(actions: str, action: Action) -> set[str]:
    """Return the signs given to `action`; a malformed word denies everything it could have meant."""
    signs: set[str] = set()
    for word in actions.split():
        if word[0] not in "+-":
            signs.add("-")
        elif word[1:] == action.value:
            signs.add(word[0])
    return signs
