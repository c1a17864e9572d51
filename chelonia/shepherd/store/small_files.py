"""Small replicas that are files, as all were before there were segments, move into segments.

They move folder by folder, once after each start, some at a time. An uncommitted, rotten or unreadable one stays a
file: a later start or the scrub deals with it. Invariants:
- A moving replica is always on stable storage: its file goes after its entry was synced.
- No replica is changed, erased or set aside while it moves.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Sequence
from typing import Final

from chelonia.core.errors import CheloniaError
from chelonia.core.ids import ReferenceId
from chelonia.core.ports.shepherd import PREFIXES
from chelonia.shepherd.store import segment_format as layout
from chelonia.shepherd.store.blobs_files import FileBlobs
from chelonia.shepherd.store.blobs_segments import BlobSegments, Entry
from chelonia.wire import records

log = logging.getLogger(__name__)

TOGETHER_MAX: Final = 32
"""Files that move together, at most 2 MiB: they share two syncs, and erasures wait for them."""


class SmallFiles:
    """Moves small replicas out of files.

    Args:
        bytes_max: the largest replica that moves; with 0 none does.
    """

    def __init__(self, files: FileBlobs, segments: BlobSegments, bytes_max: int) -> None:
        self._files, self._segments, self._bytes_max = files, segments, bytes_max
        self._folders = list(reversed(PREFIXES)) if bytes_max else []
        self._found: list[ReferenceId] = []
        self._moved = 0
        self.leaving: dict[ReferenceId, None] = {}
        """Replicas that have moved, and whose files are not known to be removed durably."""

    def move(self) -> bool:
        """Move some, or look into the next folder; False when there is nothing to do now. Blocks. Raises: OSError."""
        if self._found:
            return self._move_some(self._found[-TOGETHER_MAX:])
        if self._folders:
            self._found = self._files.committed_files(self._folders[-1], self._bytes_max)
            self._folders.pop()  # only now: where listing fails it is tried again
            return True
        if self._moved:
            log.info("small replicas moved from files into segments number=%d", self._moved)
            self._moved = 0
        return False

    def _move_some(self, references: Sequence[ReferenceId]) -> bool:
        if self._files.free_bytes() < 2 * TOGETHER_MAX * self._bytes_max:
            return False
        with self._files.moving, self._segments.still():
            entries = [entry for entry in map(self._entry, references) if entry is not None]
            if entries:
                self._segments.add(entries)
            left = {reference: None for reference in self.leaving if reference in self._segments}
            self.leaving = left | {entry.header.reference: None for entry in entries}
            self._files.take_away(tuple(self.leaving))
            self.leaving = {}
        self._moved += len(entries)
        del self._found[-len(references) :]
        return True

    def _entry(self, reference: ReferenceId) -> Entry | None:
        found = None if reference in self._segments else self._files.whole(reference)
        if found is None:
            return None
        record, data = found
        with contextlib.suppress(CheloniaError):
            facts = records.decode_facts(record)
            if len(data) == facts.size and hashlib.sha256(data).hexdigest() == facts.checksums.sha256:
                return Entry(layout.header_of(reference, record, data, committed=True), record + data)
        return None
