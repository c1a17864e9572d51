"""Access control: the entry that a Logical Name led to, and the caller's rights there.

`core.rights.policy.decide` decides, fail-closed, on the entry's own policy alone: following a path needs no right, and
a missing name answers "not found" to everybody. Administrators pass, and the audit log says so; a token narrows them
too (`core.rights.scopes`). Every decision yields the (entry, version) it was based on. The Librarian makes them
conditions of its transact, so a revoked right is not used.

Rights per operation (the original's, corrected):
- stat, list, getFile: `read` on the entry
- make*, putFile: `addEntry` on the parent; replacing a file: `delete` on it
- delFile, unmake*: `delete` on the entry
- unlink and the source of a move: `removeEntry` on the parent or `delete` on the entry (as in a sticky directory)
- the target of a move: `addEntry`; a hard link: also `read` on the entry, to a collection only administrators
- modify: the right of its section
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from chelonia.bartender import audit
from chelonia.core.caller import Call, Role
from chelonia.core.contents.uploads import Expect
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Guid
from chelonia.core.metadata import (
    TYPE_COLLECTION,
    TYPE_FILE,
    TYPE_MOUNTPOINT,
    TYPE_SPECIAL,
    TYPE_SYMLINK,
    Filter,
    Needed,
    StoredObject,
)
from chelonia.core.names import LogicalName
from chelonia.core.ports.librarian import Traversal
from chelonia.core.rights.policy import Action, Decision, decide
from chelonia.core.rights.scopes import narrowed_to

RIGHTS: Filter = (
    Needed("entry"), Needed("policy"), Needed("defaultPolicy"), Needed("states"), Needed("parents"), Needed("node"),
)  # fmt: skip
"""Sections of an entry that decide; never its names, so the cost does not grow with a collection's width."""

_VISIBLE = (TYPE_FILE, TYPE_COLLECTION, TYPE_MOUNTPOINT, TYPE_SYMLINK, TYPE_SPECIAL)


class FoundEntry(msgspec.Struct, frozen=True):
    """An entry that a Logical Name led to. `about`: the name in it that is made or removed, to which scopes apply."""

    ln: LogicalName
    object: StoredObject
    about: LogicalName | None = None

    @property
    def guid(self) -> Guid:
        return Guid(self.object.id)

    @property
    def type(self) -> str:
        """`file`, `collection`, `mountpoint`, `symlink` or `special`."""
        return self.object.value("entry", "type")

    @property
    def owner(self) -> str:
        return self.object.value("entry", "owner")

    def section(self, name: str) -> Mapping[str, str]:
        """Return one section of the entry, empty when unset."""
        return self.object.sections.get(name, {})


def is_visible(stored: StoredObject) -> bool:
    """Whether users may know of this object: it exists, and is no pending upload or deleted entry."""
    return stored.exists and stored.value("entry", "type") in _VISIBLE


def existing(ln: LogicalName, walked: Traversal) -> FoundEntry:
    """Return the entry called `ln`. Raises: NOT_FOUND; IN_MOUNTPOINT when the name goes on behind a mount point."""
    if walked.complete and is_visible(walked.last):
        return FoundEntry(ln, walked.last)
    if not walked.complete and walked.last.value("entry", "type") == TYPE_MOUNTPOINT:
        raise CheloniaError(Kind.IN_MOUNTPOINT, subject=str(ln), cause="nothing behind a mount point is reachable here")
    raise CheloniaError(Kind.NOT_FOUND, subject=str(ln), cause="there is no such name")


def parent_of_new(ln: LogicalName, walked: Traversal) -> FoundEntry:
    """Return the collection in which `ln` can be made.

    Raises: EXISTS, IN_MOUNTPOINT, NO_PARENT, INVALID_TARGET (the name is a bare GUID), NOT_A_COLLECTION (something
    else is in the way).
    """
    last = walked.last
    if walked.complete and (ln.parts or is_visible(last)):
        raise CheloniaError(Kind.EXISTS, subject=str(ln), cause="there is already an entry of this name")
    if not ln.parts:
        raise CheloniaError(Kind.INVALID_TARGET, subject=str(ln), cause="a new entry needs a name inside a collection")
    if last.value("entry", "type") == TYPE_MOUNTPOINT:
        raise CheloniaError(Kind.IN_MOUNTPOINT, subject=str(ln), cause="nothing can be made behind a mount point")
    if is_visible(last) and (found := last.value("entry", "type")) != TYPE_COLLECTION:
        cause = f"{LogicalName(ln.start, ln.parts[: -len(walked.rest)])} is a {found}, not a collection"
        raise CheloniaError(Kind.NOT_A_COLLECTION, subject=str(ln), cause=cause)
    if len(walked.rest) != 1 or not is_visible(last):
        raise CheloniaError(Kind.NO_PARENT, subject=str(ln), cause=f"make the collection {ln.parent} first")
    return FoundEntry(ln.parent, last, ln)


def listable(found: FoundEntry) -> None:
    """Refuse to list an entry. Raises: NOT_A_COLLECTION; IN_MOUNTPOINT for a mount point, which is another place."""
    if found.type == TYPE_MOUNTPOINT:
        cause = f"it is a mount point, which stands for {found.object.value('mountpoint', 'externalURL')}"
        raise CheloniaError(Kind.IN_MOUNTPOINT, subject=str(found.ln), cause=cause)
    if found.type != TYPE_COLLECTION:
        raise CheloniaError(Kind.NOT_A_COLLECTION, subject=str(found.ln), cause=f"it is a {found.type}")


def versions(*found: FoundEntry) -> Expect:
    """Return the versions that a decision on these entries was based on."""
    return tuple((each.guid, each.object.version) for each in found)


class Judge(msgspec.Struct, frozen=True):
    """The decisions for one caller in one operation."""

    call: Call
    op: str

    def may(self, action: Action, found: FoundEntry) -> bool:
        """Decide without a log line: for a refusal that only shows less, such as for the children of a listing."""
        return self._covered(action, found) and (
            self.call.has(Role.ADMINISTRATOR) or self._decide(action, found).allowed
        )

    def require(self, action: Action, found: FoundEntry) -> Expect:
        """Demand one right. Returns: the versions that the decision was based on. Raises: DENIED."""
        return self.require_one(((action, found),))

    def require_one(self, choices: tuple[tuple[Action, FoundEntry], ...], *, phase: str = "") -> Expect:
        """Demand any one of these rights; `phase` chooses the status string of a refusal.

        Returns: the versions that the decision was based on; empty for an administrator. Raises: DENIED.
        """
        if self.call.scopes:
            within = tuple(choice for choice in choices if self._covered(*choice))
            if not within:
                raise self._outside(*choices[0], phase)
            choices = within
        if self.call.has(Role.ADMINISTRATOR):
            action, found = choices[0]
            self._record(action, found, "administrator", "administrators may")
            return ()
        for action, found in choices:
            decision = self._decide(action, found)
            if decision.allowed:
                self._record(action, found, "allowed", decision.rule)
                return versions(found)
        for action, found in choices:
            self._record(action, found, "denied", self._decide(action, found).rule)
        raise self._refusal(choices[0][0], choices[0][1], phase)

    def refuse(self, found: FoundEntry, rule: str) -> CheloniaError:
        """Log and return the error for a request that no policy can allow; `rule` says why, also to the caller."""
        audit.record(self.call, self.op, str(found.ln), action="-", decision="denied", rule=rule)
        return CheloniaError(Kind.DENIED, subject=str(found.ln), cause=rule)

    def _covered(self, action: Action, found: FoundEntry) -> bool:
        scopes = self.call.scopes
        return not scopes or any(scope.covers(action, found.about or found.ln) for scope in scopes)

    def _outside(self, action: Action, found: FoundEntry, phase: str) -> CheloniaError:
        rule = f"the token allows {narrowed_to(self.call.scopes)}"
        self._record(action, found, "denied", rule)
        place = str(found.about or found.ln)
        return CheloniaError(Kind.DENIED, phase, place, f"{rule}, not {action.value} on {place}")

    def _decide(self, action: Action, found: FoundEntry) -> Decision:
        return decide(
            action, self.call.dn, self.call.attributes, owner=found.owner, policy=found.section("policy")
        )  # fmt: skip

    def _record(self, action: Action, found: FoundEntry, decision: str, rule: str) -> None:
        audit.record(self.call, self.op, str(found.ln), action=action.value, decision=decision, rule=rule)

    def _refusal(self, action: Action, found: FoundEntry, phase: str) -> CheloniaError:
        """Return the refusal. It names the rule to a caller who may read the policy; others learn the missing right."""
        caller = f"whose token this is ({self.call.via})" if self.call.via else self.call.dn
        cause = f"{caller} lacks {action.value} on {found.ln}"
        if action is not Action.READ and self._decide(Action.READ, found).allowed:
            cause += f" ({self._decide(action, found).rule})"
        return CheloniaError(Kind.DENIED, phase, str(found.ln), f"{cause}; its owner can grant it (chelonia policy)")


def check_within(call: Call, op: str, ln: LogicalName) -> None:
    """Refuse a name outside the caller's scopes, before any answer about it. Raises: DENIED."""
    if not call.scopes or any(scope.holds(ln) for scope in call.scopes):
        return
    rule = f"the token allows {narrowed_to(call.scopes)}"
    audit.record(call, op, str(ln), action="-", decision="denied", rule=rule)
    raise CheloniaError(Kind.DENIED, op, str(ln), f"{rule}, and nothing else")
