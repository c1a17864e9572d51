"""Narrowing: the part of a giver's rights that a token, share link or access key leaves.

A call with scopes may do what the policies allow its DN **and** some scope covers: its actions on its path and all
below. Paths are compared by whole components, so `/lab/run1` covers nothing of `/lab/run10`.
Without scopes nothing is narrowed. A narrowed call reaches the port `Files` alone, and administers nothing.
"""

from __future__ import annotations

from typing import Final

import msgspec

from chelonia.core.ids import ROOT, Ms
from chelonia.core.names import LogicalName
from chelonia.core.rights.policy import Action

READING: Final = (Action.READ,)
ADDING: Final = (Action.ADD_ENTRY,)
CHANGING: Final = (Action.ADD_ENTRY, Action.REMOVE_ENTRY, Action.DELETE, Action.MODIFY_METADATA)
"""The actions that a token may grant; none changes policies or states."""
assert {Action.MODIFY_POLICY, Action.MODIFY_STATES}.isdisjoint((*READING, *ADDING, *CHANGING)), "not by a token"


class Scope(msgspec.Struct, frozen=True):
    """These actions on an entry and on all below it. `path`: its components from the root; empty: everything."""

    actions: tuple[Action, ...]
    path: tuple[str, ...] = ()

    def holds(self, place: LogicalName) -> bool:
        """Whether a name is the scope's entry, or lies below it. A name that begins with a GUID lies nowhere."""
        return place.start == ROOT and place.parts[: len(self.path)] == self.path

    def covers(self, action: Action, place: LogicalName) -> bool:
        """Whether this scope allows the action there."""
        return action in self.actions and self.holds(place)

    def __str__(self) -> str:
        """Text for the audit log and for people: `read addEntry on /lab/run1`."""
        return f"{' '.join(action.value for action in self.actions)} on /{'/'.join(self.path)}"


Scopes = tuple[Scope, ...]
NARROWED: Final = frozenset((*READING, *CHANGING))
"""The actions that a token, or a narrowed access key, may allow."""


class Share(msgspec.Struct, frozen=True):
    """A request for a token: `actions` (of `READING` and `CHANGING`) on `place` and all below it, for `lifetime_ms`.
    `capped`: the request may exceed what can be given. The longest lifetime replaces a longer one, and it is enough
    that the giver may do one of the actions there."""

    place: LogicalName
    actions: tuple[Action, ...] = READING
    lifetime_ms: int = 24 * 3_600 * 1000
    capped: bool = False


class Shared(msgspec.Struct, frozen=True):
    """A token that stands for its giver, narrowed: its holder may use it at the plain door until `expires_ms`.
    `url`: of the entry there, without the token; `link`: with it."""

    token: str
    url: str
    link: str
    expires_ms: Ms


def narrowed_to(scopes: Scopes) -> str:
    """Return the actions and paths of scopes as text for people."""
    return "; ".join(map(str, scopes))
