"""An open directory, read page by page, so that changes in it neither repeat nor skip entries that stay.

Keeps the last two pages; for an older position the page is listed anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from chelonia.core.names import LogicalName
from chelonia.core.ports.files import Listed, Named
from chelonia_fuse.cluster import MountedCluster
from chelonia_fuse.inodes import Inode, Inodes
from chelonia_fuse.listings import LargeListing
from chelonia_fuse.names import ListedPart

_PAGES_KEPT: Final = 2
"""Pages kept: the kernel requests entries again that did not fit into a program's buffer."""
_AHEAD_NS: Final = 500_000_000
"""Age at which a page that was requested ahead is requested again."""


@dataclass(frozen=True, slots=True, eq=False)
class _PageAhead:
    after: str
    asked_ns: int
    page: asyncio.Future[Listed]


@dataclass(slots=True, eq=False)
class OpenDirectory:
    """An open directory.

    Args:
        shown: entries that are kept, in order; `first`: the position of the first of them.
        pages: position of each page's first entry, and the name after which it begins.
        after: the mark of the next page; `ended`: there is none.
        asked_ns: monotonic time of the last page's request; `began_ns`: of the first one's.
        ahead: the next page, requested ahead for a reader of several.
        large: a listing of several pages, for lookups; `scratch`: makes a file for it.
    """

    inode: Inode
    shown: list[Named] = field(default_factory=list)
    first: int = 0
    pages: list[tuple[int, str]] = field(default_factory=list)
    after: str = ""
    ended: bool = False
    asked_ns: int = 0
    began_ns: int = 0
    ahead: _PageAhead | None = None
    large: LargeListing | None = None
    scratch: Callable[[], int] | None = None

    @property
    def age_s(self) -> float:
        """Age of the last page, from its request."""
        return (time.monotonic_ns() - self.asked_ns) / 1e9

    @property
    def is_empty(self) -> bool:
        """Whether it was read to its end, and is empty."""
        return self.ended and not self.shown

    async def entries(
        self, cluster: MountedCluster, inodes: Inodes, start: int, accept: Callable[[Named, Inode | None, int], bool]
    ) -> None:
        """Hand entries from position `start` on to `accept`, until it takes no more; without inodes while there are too
        many."""
        if start < self.first or start == 0:
            self._back_to(start)
        while True:
            while start >= self.first + len(self.shown) and not self.ended:
                await self._page(cluster, inodes)
            if start >= self.first + len(self.shown):
                if len(self.pages) == 1 and not self.inode.gone:
                    entries = {each.name: each.attributes for each in self.shown}
                    inodes.keep_part(self.inode, ListedPart(asked_ns=self.asked_ns, entries=entries))
                return
            entry = self.shown[start - self.first]
            inode = None
            if self.large is None or not inodes.crowded:  # the kernel forgets no entry of a directory being listed
                inode = inodes.listed(entry.attributes, self.inode.number, entry.name, self.asked_ns)
            if not accept(entry, inode, start + 1):
                return
            start += 1

    def _back_to(self, start: int) -> None:
        if self.pages:
            at = bisect_right(self.pages, start, key=lambda page: page[0]) - 1
            self.first, self.after = self.pages[at]
            del self.pages[at:]
        self.large = None
        self.shown, self.ended = [], False

    async def _page(self, cluster: MountedCluster, inodes: Inodes) -> None:
        if self.inode.gone:
            self.ended = True
            return
        self.pages.append((self.first + len(self.shown), self.after))
        if len(self.pages) >= _PAGES_KEPT:
            kept = self.pages[-_PAGES_KEPT][0]
            self.shown, self.first = self.shown[max(0, kept - self.first) :], max(kept, self.first)
        ahead = self.ahead
        if ahead is None or ahead.after != self.after or time.monotonic_ns() - ahead.asked_ns > _AHEAD_NS:
            self.close()
            ahead = self._ask(cluster)
        self.ahead, self.asked_ns = None, ahead.asked_ns
        self.began_ns = self.began_ns if self.first or self.shown else self.asked_ns
        listed = await ahead.page
        self.shown.extend(listed.entries)
        self.after, self.ended = listed.after, not listed.after
        self._keep(listed, inodes)
        if len(self.pages) > 1 and not self.ended:
            self.ahead = self._ask(cluster)

    def _keep(self, listed: Listed, inodes: Inodes) -> None:
        if len(self.pages) == 1 and not self.ended and self.scratch is not None:
            with contextlib.suppress(OSError):
                self.large = LargeListing(self.scratch(), self.began_ns)
                inodes.keep_large(self.inode, self.large)
        if self.large is not None:
            self.large.add(listed.entries, self.asked_ns, time.monotonic_ns())

    def _ask(self, cluster: MountedCluster) -> _PageAhead:
        page = asyncio.ensure_future(cluster.page(LogicalName(self.inode.guid, ()), self.after))
        return _PageAhead(self.after, time.monotonic_ns(), page)

    def close(self) -> None:
        """Give up the page requested ahead: the reader has stopped."""
        if self.ahead is not None:
            self.ahead.page.add_done_callback(lambda page: page.cancelled() or page.exception())
            self.ahead.page.cancel()
            self.ahead = None
