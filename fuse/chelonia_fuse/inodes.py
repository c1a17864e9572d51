"""The inodes that the kernel knows: numbers, names, how often each was looked up. Pure.

An inode's number comes from its GUID, so it is the same after every mount. Names are those that were last seen here;
they serve to write a path into messages and records, and to find what a name on this mount leads to.
Invariants: a number is never given to two entries at a time; the root is number 1 and is never forgotten.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from itertools import islice
from sys import intern
from typing import TYPE_CHECKING, Final

from msgspec import structs

from chelonia.core import bounds
from chelonia.core.ids import Dn, Guid
from chelonia.core.metadata import TYPE_COLLECTION
from chelonia.core.names import LogicalName
from chelonia.core.ports.files import Attributes
from chelonia_fuse.listings import LargeListing
from chelonia_fuse.names import NOTHING, KnownNames, Told
from chelonia_fuse.options import INODES

if TYPE_CHECKING:
    from chelonia_fuse.copies import CachedCopy

ROOT: Final = 1
_BITS: Final = 62
LAGS_NS: Final = 1_000_000_000
"""How far a listing, which tells no versions of files, may be behind a look or a change that was answered."""
UNWRITTEN_NS: Final = 1
"""The access time of a file whose bytes are still to come, from a mount that does not wait for them."""
AWAITED_S: Final = 3.0
"""How long after such a file was made other mounts wait for its bytes, at most."""
AT_ONCE: Final = 8
"""This share of those that may be known goes at once: while any goes, the kernel takes attributes of a listing for old,
and asks for those of each entry."""
TOLD_MAX, LARGE_MAX = 8, 4
"""Collections of which parts that were told are kept, and of which listings of several pages."""


@dataclass(slots=True, eq=False)
class Inode:
    """One entry that the kernel knows.

    Args:
        attributes: as last told by the cluster.
        names: `(number of the parent, name)`, as seen on this mount.
        lookups: the kernel's count; opens: files open now.
        gone: the last name was taken away here while it was open.
        shown: the etag of the bytes that the kernel may have in its cache.
        touched_ns: when this mount last changed its names, or what is in the collection.
        learned_ns: when the attributes were told with their version, monotonic.
        heard_ns: when the listing was asked for that told of it last, monotonic.
        known_names: of a collection: see `children`.
        told_size: the size that the kernel was last told.
        made_ns: when this mount asked to make it, monotonic; 0: it did not.
    """

    number: int
    attributes: Attributes
    names: tuple[tuple[int, str], ...] = ()
    lookups: int = 0
    opens: int = 0
    gone: bool = False
    shown: str = ""
    touched_ns: int = 0
    learned_ns: int = 0
    heard_ns: int = 0
    known_names: KnownNames | None = None
    told_size: int = -1
    made_ns: int = 0
    copy: CachedCopy | None = None

    @property
    def guid(self) -> Guid:
        """Of the entry."""
        return self.attributes.guid

    @property
    def children(self) -> KnownNames:
        """Which names in this collection are known."""
        if self.known_names is None:
            self.known_names = KnownNames()
        return self.known_names

    def learn(self, attributes: Attributes) -> None:
        """Take what the cluster says, unless something newer is known."""
        if attributes.version >= self.attributes.version:
            self.attributes = _sharing(attributes, attributes.version)
            self.learned_ns = time.monotonic_ns()

    def hear(self, attributes: Attributes, asked_ns: int) -> None:
        """Take what a listing says that was asked for at a monotonic time: without a version, times decide."""
        known, since_ns = self.attributes, asked_ns - self.learned_ns
        if attributes.version:
            self.learn(attributes)
        elif since_ns > LAGS_NS or (since_ns > 0 and attributes.changed_ns >= known.changed_ns):
            self.attributes = _sharing(attributes, known.version)


class Inodes:
    """All inodes that the kernel knows, by number, GUID and name."""

    def __init__(self, root: Attributes, place: LogicalName, kept_max: int = INODES) -> None:
        """`place`: what is mounted; `kept_max`: how many are known before the oldest go."""
        self._place = place
        self._kept_max = kept_max
        self.root = Inode(ROOT, root, lookups=1)
        self._by_number = {ROOT: self.root}
        self._elsewhere = {root.guid: self.root}  # those whose number is not their GUID's
        self._children: dict[tuple[int, str], Inode] = {}
        self._new = 0
        self._told: deque[KnownNames] = deque()
        self._large: deque[KnownNames] = deque()

    def __len__(self) -> int:
        return len(self._by_number)

    def get(self, number: int) -> Inode:
        return self._by_number[number]

    def seen(self, attributes: Attributes, parent: int = 0, name: str = "") -> Inode:
        """The inode of an entry, made when it is new here; `name` leads to it."""
        inode = self._known(self._at(attributes.guid), attributes, parent, name)
        inode.learn(attributes)
        return inode

    def listed(self, attributes: Attributes, parent: int, name: str, asked_ns: int) -> Inode:
        """The inode of an entry of a listing, as `seen`; `asked_ns`: when it was asked for, monotonic."""
        inode = self._at(attributes.guid)
        if inode is not None:
            inode.hear(attributes, asked_ns)
        inode = self._known(inode, attributes, parent, name)
        inode.heard_ns = asked_ns
        return inode

    def _at(self, guid: Guid) -> Inode | None:
        inode = self._by_number.get(number_of(guid))
        return inode if inode is not None and inode.guid == guid else self._elsewhere.get(guid)

    def _known(self, inode: Inode | None, attributes: Attributes, parent: int, name: str) -> Inode:
        if inode is None:
            inode = Inode(self._number(attributes.guid), _sharing(attributes, attributes.version))
            self._by_number[inode.number] = inode
            if inode.number != number_of(inode.guid):
                self._elsewhere[inode.guid] = inode
            self._new += 1
        if name:
            self.name(inode, parent, name)
        return inode

    def told(self, inode: Inode, told: Told) -> None:
        """Keep what was told of the names in a collection; of a few only, as entries take room."""
        inode.children.listed(told)
        self._told.append(inode.children)
        if len(self._told) > TOLD_MAX and (oldest := self._told.popleft()) not in self._told:
            oldest.told = NOTHING

    def told_large(self, inode: Inode, listing: LargeListing) -> None:
        """Keep a listing of several pages of a collection; of a few only, as each has a file."""
        children = inode.children
        if children.large is not None:
            children.large.close()
        children.large = listing
        self._large.append(children)
        if len(self._large) > LARGE_MAX and (oldest := self._large.popleft()) not in self._large and oldest.large:
            oldest.large.close()
            oldest.large = None

    def named(self, parent: int, name: str) -> Inode | None:
        """What a name was last seen to lead to."""
        return self._children.get((parent, name))

    def name(self, inode: Inode, parent: int, name: str) -> None:
        key = (parent, name)
        if inode.names[:1] == (key,):
            return
        self.unname(parent, name)
        inode.names = (key, *inode.names)  # the newest first: others may have taken those before away
        self._children[key] = inode

    def unname(self, parent: int, name: str) -> None:
        inode = self._children.pop((parent, name), None)
        if inode is not None:
            inode.names = tuple(each for each in inode.names if each != (parent, name))

    def doubt(self, inode: Inode) -> None:
        """What was told of it is past: what has its names is asked."""
        inode.learned_ns = inode.heard_ns = 0
        for number, name in inode.names:
            if (above := self._by_number.get(number)) is not None:
                above.children.change(name, time.monotonic_ns())

    def forget(self, number: int, count: int) -> Inode | None:
        """Lower the kernel's count. Returns: the inode, when it is no longer known."""
        inode = self._by_number.get(number)
        if inode is None or number == ROOT:
            return None
        inode.lookups -= count
        return self.drop(inode)

    @property
    def crowded(self) -> bool:
        """Whether the kernel lets go of less than it was asked to: a listing is to tell it of no more."""
        return len(self) > self._kept_max + 2 * self._kept_max // AT_ONCE

    def too_many(self) -> list[tuple[int, str]]:
        """Names, as `(number of the parent, name)`, that the kernel may let go of: those of the oldest files, that
        nobody has open. Those that were looked through come last the next time."""
        names = list[tuple[int, str]]()
        share = self._kept_max // AT_ONCE
        if self._new < share or len(self) <= self._kept_max:
            return names
        most, self._new = min(2 * self._new, len(self) - self._kept_max + share), 0
        for inode in list(islice(self._by_number.values(), most)):
            self._by_number[inode.number] = self._by_number.pop(inode.number)
            if inode.attributes.type != TYPE_COLLECTION and not inode.opens:
                names += inode.names
        return names

    def drop(self, inode: Inode) -> Inode | None:
        """Let go of an inode that neither the kernel nor a commit needs. Returns: it, when it went just now."""
        if self._by_number.get(inode.number) is not inode:
            return None  # it went before, and another one may have its number
        if inode.lookups > 0 or inode.opens > 0 or (inode.copy is not None and inode.copy.busy):
            return None
        for parent, name in inode.names:
            above = self._by_number.get(parent)
            if inode.learned_ns and above is not None and above.known_names and above.known_names.large:
                above.known_names.large.change(name, time.monotonic_ns())  # it told of what was before
            self.unname(parent, name)
        del self._by_number[inode.number]
        self._elsewhere.pop(inode.guid, None)
        return inode

    def place(self, inode: Inode) -> LogicalName:
        """Where it is: by its names where they are known up to the root, else by its GUID. Deeper than the name law
        allows, where programs get step by step, its collection is told by its GUID."""
        parts: list[str] = []
        at = inode
        while at is not self.root:
            if not at.names:
                return LogicalName(inode.guid, ())
            if len(parts) > bounds.LN_DEPTH_MAX:
                return self.entry(inode)
            (number, name), *_ = at.names
            parts.append(name)
            above = self._by_number.get(number)
            if above is None:
                return LogicalName(inode.guid, ())
            at = above
        place = LogicalName(self._place.start, (*self._place.parts, *reversed(parts)))
        is_long = len(place.parts) > bounds.LN_DEPTH_MAX or len(str(place).encode()) > bounds.LN_BYTES_MAX
        return self.entry(inode) if is_long else place

    def entry(self, inode: Inode) -> LogicalName:
        """One of its names, in the collection that has it; by its GUID where none is known."""
        for number, name in inode.names:
            if (above := self._by_number.get(number)) is not None:
                return LogicalName(above.guid, (name,))
        return LogicalName(inode.guid, ())

    def _number(self, guid: Guid) -> int:
        number = number_of(guid)
        while number in self._by_number or number <= ROOT:
            number += 1
        return number


def _sharing(attributes: Attributes, version: int) -> Attributes:
    """The same of a version, with one text for what many entries have in common."""
    kind, owner = intern(attributes.type), Dn(intern(attributes.owner))
    return structs.replace(attributes, version=version, type=kind, owner=owner)


def number_of(guid: Guid) -> int:
    """The number of an entry on every mount, unless another one has it."""
    return int(guid[-17:].replace("-", ""), 16) % (1 << _BITS)  # `UUID` takes four times as long


def is_unwritten(known: Attributes, now_ns: int) -> bool:
    """Whether a file was made a moment ago and its bytes are still to come."""
    young = now_ns - known.created_ns < AWAITED_S * 1e9
    return young and known.accessed_ns == UNWRITTEN_NS and known.size == 0 and known.etag == f"{known.guid}-0"
