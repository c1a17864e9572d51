"""Rights to files of a listing, decided by the summaries beside their names, without reading the files.

A summary has a digest of owner and policy. The first time, one file of each digest is read, and its digest computed
anew from owner and policy, so that only the metadata decide. If that does not yield the digest of a summary, its file
has just changed, and is read itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec import structs

from chelonia.bartender.below import RecursiveWalk
from chelonia.bartender.rights import RIGHTS
from chelonia.core import bounds
from chelonia.core.contents.below import Leaf
from chelonia.core.contents.summaries import (
    COMMON_WORD,
    GUID_WORD,
    attributes_in,
    numbers_in,
    rights_in,
    rights_of,
    words_of,
)
from chelonia.core.ids import Dn, Guid, ObjectId
from chelonia.core.metadata import Filter, StoredObject
from chelonia.core.ports.files import UNSET, Attributes, Named
from chelonia.core.rights.policy import Action

PageLeaf = tuple[Leaf, Sequence[str]]
"""An entry of a page, and the words of its summary; without words, the leaf has the entry itself."""
_READ: Final[Sequence[str]] = ()
Rights = Mapping[str, tuple[Dn, Mapping[str, str]]]
"""Owners and policies of a page by the common words of its files; those in memory by the digest alone."""
RIGHTS_KEPT: Final = 4096
"""Pairs of an owner and a policy that are kept in memory."""
POLICY_KEPT_MAX: Final = 8 * 1024
"""Characters of a policy that is kept: most have far fewer, and all of them together are some megabytes."""
READ_TOGETHER: Final = bounds.PAGE_BYTES_MAX // bounds.USER_METADATA_BYTES_MAX
"""Files read at once: no more than a page may read, however long their policies are."""


@dataclass(frozen=True, slots=True)
class LearnedPage:
    """A page of a listing with all that its files' rights rest on. `leaves`: those that it is made of, all or the first
    ones: a page of long policies ends early."""

    leaves: Sequence[Leaf]
    entries: Sequence[PageLeaf]
    rights: Rights


@dataclass(slots=True)
class RightsCache:
    """Owners and policies kept from one page to the next, by their digests."""

    by_name: dict[str, tuple[Dn, Mapping[str, str]]] = field(default_factory=dict)

    async def learn(self, walk: RecursiveWalk, leaves: Sequence[Leaf], needed: Filter) -> LearnedPage:
        """Return the entries among the leaves, and the rights of those with summaries. Unknown ones are read. Raises:
        TOO_LARGE once the call has read too much."""
        page = [(leaf, words_of(leaf.summary) if leaf.summary else _READ)
                for leaf in leaves if leaf.summary or not leaf.sums_up]  # fmt: skip
        commons, one_of = dict[str, str](), dict[str, Guid]()
        for _, words in page:
            if words:
                commons.setdefault(words[COMMON_WORD], words[GUID_WORD])
        by_common = {common: rights_in(common) for common in commons}
        for common, guid in commons.items():  # of equal rights one will do
            one_of.setdefault(by_common[common], Guid(guid))
        found = {name: self.by_name[name] for name in one_of if name in self.by_name}  # before others replace them
        first = {name: guid for name, guid in one_of.items() if name not in found}
        read = await _read(walk, tuple(first.values()), RIGHTS, bounds.PAGE_BYTES_MAX)
        for stored in read:
            found |= self._kept(Dn(stored.value("entry", "owner")), stored.sections.get("policy", {}))
        unread = set(tuple(first)[len(read) :])
        if unread:
            ends = next(leaf for leaf, words in page if words and by_common[words[COMMON_WORD]] in unread)
            leaves = leaves[: leaves.index(ends)]
            page = page[: [leaf for leaf, _ in page].index(ends)]
        rights = {common: found[name] for common, name in by_common.items() if name in found}
        guids = {
            leaf.path: Guid(words[GUID_WORD]) for leaf, words in page if words and words[COMMON_WORD] not in rights
        }
        if not guids:
            return LearnedPage(leaves, page, rights)
        fresh = dict(zip(guids, await _read(walk, tuple(guids.values()), needed), strict=True))
        page = [(Leaf(leaf.path, fresh[leaf.path]), _READ) if leaf.path in fresh else (leaf, words)
                for leaf, words in page]  # fmt: skip
        there = [(leaf, words) for leaf, words in page if leaf.object is None or leaf.object.exists]
        return LearnedPage(leaves, there, rights)

    def _kept(self, owner: Dn, policy: Mapping[str, str]) -> Rights:
        name = rights_of(owner, policy)
        if sum(map(len, policy)) + sum(map(len, policy.values())) <= POLICY_KEPT_MAX:
            while len(self.by_name) >= RIGHTS_KEPT:
                del self.by_name[next(iter(self.by_name))]
            self.by_name[name] = (owner, policy)
        return {name: (owner, policy)}


async def _read(
    walk: RecursiveWalk, guids: tuple[Guid, ...], needed: Filter, most: int = bounds.READ_BYTES_MAX + 1
) -> list[StoredObject]:
    """Read entries in order, some at once; no more once they have `most` bytes. Raises: TOO_LARGE."""
    found, weight = list[StoredObject](), 0
    while len(found) < len(guids) and weight < most:
        some = await walk.ports.librarian.get(walk.turn.service, guids[len(found) : len(found) + READ_TOGETHER], needed)
        walk.turn.room.read(some)
        weight += sum(stored.weight for stored in some)
        found += some
    return found


@dataclass(frozen=True, slots=True)
class ReadableCollection:
    """Decisions for the files of one page: one for all with equal rights, unless the caller's token goes by names."""

    walk: RecursiveWalk
    rights: Rights
    decided: dict[str, bool] = field(default_factory=dict)
    numbers: dict[str, tuple[int, int, int, int, int]] = field(default_factory=dict)

    def named(self, path: str, words: Sequence[str]) -> Named:
        """Return a file of the listing by the words of its summary, as the caller may know it."""
        common = words[COMMON_WORD]
        numbers = self.numbers.get(common)
        if numbers is None:
            numbers = self.numbers[common] = numbers_in(common)
        attributes = attributes_in(words, self.rights[common][0], numbers)
        allowed = self.decided.get(common)
        if allowed is None:
            allowed = self._may(path, words)
        return Named(path, attributes if allowed else public(attributes))

    def _may(self, path: str, words: Sequence[str]) -> bool:
        guid, common = ObjectId(words[GUID_WORD]), words[COMMON_WORD]
        owner, policy = self.rights[common]
        stored = StoredObject(guid, 1, {"entry": {"type": "file", "owner": owner}, "policy": policy})
        allowed = self.walk.judge.may(Action.READ, self.walk.found(path, stored))
        if not self.walk.judge.call.scopes:
            self.decided[common] = allowed
        return allowed


def public(attributes: Attributes) -> Attributes:
    """Return the attributes that every caller may know who may list the collection."""
    return structs.replace(
        attributes, owner=Dn(""), etag="", mode=UNSET, uid=UNSET, gid=UNSET, device=0, links=1, target="", wanted=0
    )
