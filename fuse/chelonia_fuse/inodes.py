"""The inodes that the kernel knows: numbers, names, how often each was looked up. Pure.

An inode's number comes from its GUID, so it is the same after every mount. Its names are those last seen here: they
make paths for messages and records, and serve lookups by name.
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
from chelonia_fuse.names import NOTHING, KnownNames, ListedPart
from chelonia_fuse.options import INODES

if TYPE_CHECKING:
    from chelonia_fuse.copies import CachedCopy

ROOT: Final = 1
_BITS: Final = 62
LAGS_NS: Final = 1_000_000_000
"""How far a listing, which has no versions of files, may be behind an answered look or change."""
UNWRITTEN_NS: Final = 1
"""Access time that marks a file whose bytes are still to come, from a mount that does not wait for them."""
AWAITED_S: Final = 3.0
"""How long after such a file was made other mounts wait for its bytes, at most."""
AT_ONCE: Final = 8
"""Known entries are forgotten in portions of one in so many. While any is forgotten, the kernel treats attributes of a
listing as old, and requests those of each entry."""
LISTED_PARTS_MAX, LARGE_MAX = 8, 4
"""Collections with a kept part of a listing, and with a kept listing of several pages."""


@dataclass(slots=True, eq=False)
class Inode:
    """One entry that the kernel knows.

    Args:
        attributes: the cluster's last answer.
        names: `(number of the parent, name)`, as seen on this mount.
        lookups: the kernel's count; opens: files open now.
        gone: its last name was removed here while it was open.
        shown: the etag of the bytes that the kernel may have in its cache.
        touched_ns: when this mount last changed its names, or the entries of the collection.
        learned_ns: monotonic time of the last answer that had attributes with their version.
        listed_ns: monotonic time of the request for the last listing that had it.
        known_names: of a collection: see `children`.
        kernel_size: the size that the kernel last got.
        made_ns: monotonic time of this mount's request to make it; 0: there was none.
        beside: how often what was written here went beside it, for changes by others.
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
    listed_ns: int = 0
    known_names: KnownNames | None = None
    kernel_size: int = -1
    made_ns: int = 0
    beside: int = 0
    copy: CachedCopy | None = None

    @property
    def guid(self) -> Guid:
        """GUID of the entry."""
        return self.attributes.guid

    @property
    def children(self) -> KnownNames:
        """Known names in this collection."""
        if self.known_names is None:
            self.known_names = KnownNames()
        return self.known_names

    def learn(self, attributes: Attributes) -> None:
        """Take attributes that the cluster answers, unless newer ones are known."""
        if attributes.version >= self.attributes.version:
            self.attributes = _sharing(attributes, attributes.version)
            self.learned_ns = time.monotonic_ns()

    def learn_listed(self, attributes: Attributes, asked_ns: int) -> None:
        """Take attributes of a listing requested at a monotonic time: without a version, times decide."""
        old, since_ns = self.attributes, asked_ns - self.learned_ns
        if attributes.version:
            self.learn(attributes)
        elif since_ns > LAGS_NS or (since_ns > 0 and attributes.changed_ns >= old.changed_ns):
            self.attributes = _sharing(attributes, old.version)


class Inodes:
    """All inodes that the kernel knows, by number, GUID and name."""

    def __init__(self, root: Attributes, place: LogicalName, kept_max: int = INODES) -> None:
        """`place`: the mounted collection; `kept_max`: inodes known before the oldest are forgotten."""
        self._place = place
        self._kept_max = kept_max
        self.root = Inode(ROOT, root, lookups=1)
        self._by_number = {ROOT: self.root}
        self._elsewhere = {root.guid: self.root}  # those whose number is not their GUID's
        self._children: dict[tuple[int, str], Inode] = {}
        self._new = 0
        self._parts: deque[KnownNames] = deque()
        self._large: deque[KnownNames] = deque()

    def __len__(self) -> int:
        return len(self._by_number)

    def get(self, number: int) -> Inode:
        return self._by_number[number]

    def seen(self, attributes: Attributes, parent: int = 0, name: str = "") -> Inode:
        """Return the inode of an entry, made when it is new here; `name` leads to it."""
        inode = self._known(self._at(attributes.guid), attributes, parent, name)
        inode.learn(attributes)
        return inode

    def listed(self, attributes: Attributes, parent: int, name: str, asked_ns: int) -> Inode:
        """Return the inode of an entry of a listing, as `seen`; `asked_ns`: monotonic time of its request."""
        inode = self._at(attributes.guid)
        if inode is not None:
            inode.learn_listed(attributes, asked_ns)
        inode = self._known(inode, attributes, parent, name)
        inode.listed_ns = asked_ns
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

    def keep_part(self, inode: Inode, part: ListedPart) -> None:
        """Keep a listed part of a collection, for at most `LISTED_PARTS_MAX` collections, as entries take room."""
        inode.children.listed(part)
        self._parts.append(inode.children)
        if len(self._parts) > LISTED_PARTS_MAX and (oldest := self._parts.popleft()) not in self._parts:
            oldest.part = NOTHING

    def keep_large(self, inode: Inode, listing: LargeListing) -> None:
        """Keep a listing of several pages of a collection, for at most `LARGE_MAX`, as each has a file."""
        children = inode.children
        if children.large is not None:
            children.large.close()
        children.large = listing
        self._large.append(children)
        if len(self._large) > LARGE_MAX and (oldest := self._large.popleft()) not in self._large and oldest.large:
            oldest.large.close()
            oldest.large = None

    def named(self, parent: int, name: str) -> Inode | None:
        """Return the inode that a name was last seen to lead to."""
        return self._children.get((parent, name))

    def name(self, inode: Inode, parent: int, name: str) -> None:
        key = (parent, name)
        if inode.names[:1] == (key,):
            return
        self.unname(parent, name)
        inode.names = (key, *inode.names)  # the newest first: others may have removed the older ones
        self._children[key] = inode

    def unname(self, parent: int, name: str) -> None:
        inode = self._children.pop((parent, name), None)
        if inode is not None:
            inode.names = tuple(each for each in inode.names if each != (parent, name))

    def doubt(self, inode: Inode) -> None:
        """Treat all answers about it as outdated: its names are looked up anew."""
        inode.learned_ns = inode.listed_ns = 0
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
        """Whether the kernel forgets fewer inodes than requested: a listing adds no more then."""
        return len(self) > self._kept_max + 2 * self._kept_max // AT_ONCE

    def too_many(self) -> list[tuple[int, str]]:
        """Return names, as `(number of the parent, name)`, that the kernel may forget: those of the oldest files that
        are not open. Inodes checked here come last the next time."""
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
        """Remove an inode that neither the kernel nor a commit needs. Returns: it, when it was removed just now."""
        if self._by_number.get(inode.number) is not inode:
            return None  # it was removed before, and another one may have its number
        if inode.lookups > 0 or inode.opens > 0 or (inode.copy is not None and inode.copy.busy):
            return None
        for parent, name in inode.names:
            above = self._by_number.get(parent)
            if inode.learned_ns and above is not None and above.known_names and above.known_names.large:
                above.known_names.large.change(name, time.monotonic_ns())  # it has an earlier state
            self.unname(parent, name)
        del self._by_number[inode.number]
        self._elsewhere.pop(inode.guid, None)
        return inode

    def place(self, inode: Inode) -> LogicalName:
        """Return its place: by its names where they are known up to the root, else by its GUID. Deeper than the name
        law allows, where programs get step by step, it is its name below its collection's GUID."""
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
        """Return one of its names, below the GUID of its collection; its own GUID where none is known."""
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
    """The attributes with a version, and with shared strings for values that many entries have in common."""
    kind, owner = intern(attributes.type), Dn(intern(attributes.owner))
    return structs.replace(attributes, version=version, type=kind, owner=owner)


def number_of(guid: Guid) -> int:
    """Return the number of an entry on every mount, unless another one has it."""
    return int(guid[-17:].replace("-", ""), 16) % (1 << _BITS)  # `UUID` takes four times as long


def is_unwritten(known: Attributes, now_ns: int) -> bool:
    """Whether a file was made a moment ago and its bytes are still to come."""
    young = now_ns - known.created_ns < AWAITED_S * 1e9
    return young and known.accessed_ns == UNWRITTEN_NS and known.size == 0 and known.etag == f"{known.guid}-0"
