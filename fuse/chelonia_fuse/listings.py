"""What a large directory was told to hold, kept on the disk: who reads it to its end before he looks at what is in it
(`find`, `du`, `rm -r`) would have to ask for each entry.

Decides which lookups it serves. Never tells that a name is not there. What this mount has changed since is not served.
Of an entry 8 bytes are in memory.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import structs

from chelonia.core.metadata import TYPE_COLLECTION
from chelonia.core.names import entry_key
from chelonia.core.ports.files import Attributes, Named

HEARD_NS: Final = 30 * 10**9
"""How old what a listing told may be when it serves for a lookup."""
SERVES: Final = 5
"""For so many times as long as it has taken a listing serves for lookups: one costs as much more than an entry. It may
not be at its end: `find` and `du` read 100 000 entries, look at them, and read on."""
LISTED_MAX: Final = 1 << 19
"""Entries of a listing that is kept: more than can be listed and looked at within `HEARD_NS`. They take 100 MB."""
BLOCK: Final = 32
"""Entries that are read together."""
_ENTRIES: Final = msgspec.msgpack.Decoder(list[tuple[str, msgspec.Raw]])
_TOLD: Final = msgspec.msgpack.Decoder(tuple[object, ...])


class LargeListing:
    """The entries of one directory, in the order of their keys: a name, and for a directory it ends in `/`."""

    def __init__(self, file: int, began_ns: int) -> None:
        """`file`: the descriptor of an empty one, that is nobody else's; closed with this."""
        self._file = file
        self._began_ns = began_ns
        self._until_ns = 0
        self._firsts: list[str] = []
        self._ends = array("Q", [0])
        self._asked = array("q")
        self._gone = bytearray()
        self._changed: set[str] = set()

    def add(self, entries: Sequence[Named], asked_ns: int, now_ns: int) -> None:
        """Take a page in; `asked_ns`: when it was asked for, monotonic."""
        if self._file < 0:
            return
        if len(self._asked) * BLOCK + len(entries) > LISTED_MAX:
            self.close()
            return
        blocks = [
            [(_key(each), structs.astuple(each.attributes)) for each in entries[start : start + BLOCK]]
            for start in range(0, len(entries), BLOCK)
        ]
        for block in map(msgspec.msgpack.encode, blocks):
            self._write(block)
        self._firsts += [block[0][0] for block in blocks]
        self._asked.extend([asked_ns] * len(blocks))
        self._gone.extend(bytes(len(blocks) * BLOCK // 8))
        self._until_ns = now_ns + SERVES * (now_ns - self._began_ns)

    def change(self, name: str, now_ns: int) -> None:
        """Take note that something else is known of a name, as this mount has changed it."""
        if self._firsts and now_ns > self._until_ns:
            self.close()
        found = [at for key in (name, name + "/") if (at := self._place(key)) is not None]
        for number, _ in found:
            self._gone[number // 8] |= 1 << number % 8
        if not found and self._file >= 0:  # a page on its way may tell of what was before
            self._changed.add(name)
            if len(self._changed) > LISTED_MAX // BLOCK:
                self.close()

    def find(self, name: str, now_ns: int) -> tuple[Attributes, int] | None:
        """What a name leads to, and when that was asked for."""
        if now_ns > self._until_ns:
            return None
        for key in (name, name + "/"):
            at = self._place(key)
            if at is None or name in self._changed or self._gone[at[0] // 8] >> at[0] % 8 & 1:
                continue
            asked_ns = self._asked[at[0] // BLOCK]
            return (Attributes(*_TOLD.decode(at[1])), asked_ns) if now_ns - asked_ns < HEARD_NS else None  # type: ignore[arg-type]
        return None

    def close(self) -> None:
        """Serve no more, and let go of the file."""
        if self._file >= 0:
            os.close(self._file)
        self._file, self._until_ns = -1, -1
        self._firsts, self._changed = [], set()

    def _place(self, key: str) -> tuple[int, msgspec.Raw] | None:
        """The number of an entry, and what was told of it."""
        block = bisect_right(self._firsts, key) - 1
        if block < 0 or self._file < 0:
            return None
        start, end = self._ends[block : block + 2]
        try:
            entries = _ENTRIES.decode(os.pread(self._file, end - start, start))
        except (OSError, msgspec.DecodeError):
            self.close()
            return None
        return next(((block * BLOCK + n, told) for n, (each, told) in enumerate(entries) if each == key), None)

    def _write(self, block: bytes) -> None:
        try:
            if self._file >= 0 and os.write(self._file, block) < len(block):
                self.close()
        except OSError:  # a full disk
            self.close()
        self._ends.append(self._ends[-1] + len(block))


def _key(entry: Named) -> str:
    return entry_key(entry.name, entry.attributes.type == TYPE_COLLECTION)
