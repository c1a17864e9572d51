"""Files told by the summaries beside their names: who may read them, decided without reading them.

A summary names owner and policy by what stands for both. One file of each such kind is read the first time, and what
stands for its rights is made again from what was read: so nothing is believed that the metadata do not say. What does
not come out the same has just changed, and is read itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec import structs

from chelonia.bartender.below import RecursiveWalk
from chelonia.bartender.rights import RIGHTS
from chelonia.core.contents.below import Leaf
from chelonia.core.contents.summaries import attributes_in, rights_in, rights_of
from chelonia.core.ids import Dn, Guid, ObjectId
from chelonia.core.metadata import Filter, StoredObject
from chelonia.core.ports.files import UNSET, Attributes, Named
from chelonia.core.rights.policy import Action

RIGHTS_KEPT: Final = 4096
"""Pairs of an owner and a policy that are remembered: a few kilobytes each at most, most far less."""


@dataclass(slots=True)
class RightsKnown:
    """Owners and policies, by what stands for them."""

    by_name: dict[str, tuple[Dn, Mapping[str, str]]] = field(default_factory=dict)

    async def learn(self, walk: RecursiveWalk, leaves: Sequence[Leaf], needed: Filter) -> list[Leaf]:
        """The leaves that are entries; those whose rights cannot be told are read. Afterwards all others are known."""
        entries = [leaf for leaf in leaves if not leaf.sums_up]
        strange: dict[str, Guid] = {}
        for leaf in entries:
            if leaf.summary and (rights := rights_in(leaf.summary)) not in self.by_name:
                strange.setdefault(rights, _guid(leaf))
        if not strange:
            return entries
        for stored in await walk.ports.librarian.get(walk.turn.service, tuple(strange.values()), RIGHTS):
            self._keep(Dn(stored.value("entry", "owner")), stored.sections.get("policy", {}))
        again = [leaf for leaf in entries if leaf.summary and rights_in(leaf.summary) not in self.by_name]
        read = await walk.ports.librarian.get(walk.turn.service, tuple(map(_guid, again)), needed) if again else ()
        walk.turn.room.read(read)
        instead: dict[str, StoredObject] = {leaf.path: each for leaf, each in zip(again, read, strict=True)}
        told = [Leaf(leaf.path, instead[leaf.path]) if leaf.path in instead else leaf for leaf in entries]
        return [leaf for leaf in told if leaf.object is None or leaf.object.exists]

    def _keep(self, owner: Dn, policy: Mapping[str, str]) -> None:
        while len(self.by_name) >= RIGHTS_KEPT:
            del self.by_name[next(iter(self.by_name))]
        self.by_name[rights_of(owner, policy)] = (owner, policy)


@dataclass(frozen=True, slots=True)
class ReadableCollection:
    """Decides for the files of one page; of those with equal rights once, unless the caller's token goes by names."""

    walk: RecursiveWalk
    known: RightsKnown
    decided: dict[str, bool] = field(default_factory=dict)

    def named(self, leaf: Leaf) -> Named:
        """A file of the listing, as the caller may know it."""
        rights = rights_in(leaf.summary)
        attributes = attributes_in(leaf.summary, self.known.by_name[rights][0])
        allowed = self.decided.get(rights)
        if allowed is None:
            allowed = self._may(leaf, rights)
        return Named(leaf.path, attributes if allowed else public(attributes))

    def _may(self, leaf: Leaf, rights: str) -> bool:
        owner, policy = self.known.by_name[rights]
        stored = StoredObject(ObjectId(_guid(leaf)), 1, {"entry": {"type": "file", "owner": owner}, "policy": policy})
        allowed = self.walk.judge.may(Action.READ, self.walk.found(leaf.path, stored))
        if not self.walk.judge.call.scopes:
            self.decided[rights] = allowed
        return allowed


def public(known: Attributes) -> Attributes:
    """What everybody is told who may list the collection."""
    return structs.replace(
        known, owner=Dn(""), etag="", mode=UNSET, uid=UNSET, gid=UNSET, device=0, links=1, target="", wanted=0
    )


def _guid(leaf: Leaf) -> Guid:
    return Guid(leaf.summary.partition(" ")[0])
