"""Lookups of names: from recent answers where these have the name, else from the cluster.

For a program that looks at name after name the next ones are listed, which costs less than a request for each.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.names import LogicalName, check_name
from chelonia_fuse.behind import WriteBehind
from chelonia_fuse.cluster import MountedCluster
from chelonia_fuse.errors import AGAIN
from chelonia_fuse.inodes import Inode, Inodes
from chelonia_fuse.names import VALID_NS, KnownNames, ListedPart

VALID_S: Final = VALID_NS / 1e9


class Lookups:
    """Lookups of one mount."""

    def __init__(self, cluster: MountedCluster, inodes: Inodes, behind: WriteBehind) -> None:
        self._cluster = cluster
        self._behind = behind
        self._inodes = inodes
        self._listings: dict[KnownNames, asyncio.Future[None]] = {}

    async def lookup(self, parent: Inode, name: str) -> Inode:
        """Return the inode that a name leads to. Raises: NOT_FOUND, DENIED."""
        inode = await self._found(parent, name)
        if inode.gone:  # unless that answer is old, it was brought back, or has another name after all
            inode = await self._looked(parent, name, None)
            inode.gone = False
        return inode

    async def _found(self, parent: Inode, name: str) -> Inode:
        check_name(name)
        if self._serves(parent, name) is not None:
            return self._answered(parent, name)
        large = parent.children.large
        if large is not None and not parent.gone and (found := large.find(name, time.monotonic_ns())) is not None:
            return self._inodes.listed(found[0], parent.number, name, found[1])
        known = self._inodes.named(parent.number, name)
        if await self._is_listed(parent, name):
            return self._answered(parent, name)
        return await self._looked(parent, name, known)

    async def _is_listed(self, parent: Inode, name: str) -> bool:
        """Whether a listing that is made for this lookup, or is on its way, covers the name."""
        began_ns, children = time.monotonic_ns(), parent.children
        if self._cluster.is_away:
            return False
        if (part := children.asked(name, began_ns)) is not None:
            self._listings[children] = asyncio.ensure_future(self._list(parent, *part))
        if (listing := self._listings.get(children)) is not None:
            await asyncio.wait([listing])
        fresh = children.part.asked_ns >= began_ns and children.has(name, time.monotonic_ns())
        return not parent.gone and (fresh or self._serves(parent, name) is not None)

    async def _looked(self, parent: Inode, name: str, known: Inode | None) -> Inode:
        try:
            looked = await self._cluster.look(LogicalName(parent.guid, (name,)), spare=known is not None)
        except CheloniaError as error:
            if error.kind in AGAIN and known is not None:
                return known  # while the cluster is away known entries are shown, and local bytes read
            if error.kind is Kind.NOT_FOUND:
                self._inodes.unname(parent.number, name)
            raise
        return self._inodes.seen(looked.attributes, parent.number, name)

    def age_s(self, parent: Inode, name: str) -> float:
        """Return the age of the answer just given for a name."""
        asked_ns = self._serves(parent, name)
        return 0.0 if asked_ns is None else (time.monotonic_ns() - asked_ns) / 1e9

    def _serves(self, parent: Inode, name: str) -> int | None:
        """The monotonic time of the request whose answer serves for a name; None: there is none."""
        names, now_ns = parent.known_names, time.monotonic_ns()
        if names is None or parent.gone or not names.has(name, now_ns):
            return None
        if name not in names.part.entries and (
            not self._behind.is_busy() or self._inodes.named(parent.number, name) is not None
        ):
            return None  # another mount may have made it; only a program that makes many files finds out by making it
        return names.part.asked_ns

    def _answered(self, parent: Inode, name: str) -> Inode:
        part = parent.children.part
        parent.children.served += 1
        if (attributes := part.entries.get(name)) is None:
            self._inodes.unname(parent.number, name)
            raise CheloniaError(Kind.NOT_FOUND, "lookup", name)
        return self._inodes.listed(attributes, parent.number, name, part.asked_ns)

    async def _list(self, parent: Inode, after: str, limit: int) -> None:
        """List a part of a directory; after a failure lookups go on without it."""
        children, asked_ns = parent.children, time.monotonic_ns()
        try:
            page = await self._cluster.page(LogicalName(parent.guid, ()), after, limit)
        except CheloniaError:
            children.refused(time.monotonic_ns())
            return
        finally:
            children.listing = False
            del self._listings[children]
        entries = {each.name: each.attributes for each in page.entries}
        self._inodes.keep_part(parent, ListedPart(after, page.after, asked_ns, entries))
