"""The listing of a large directory, kept on disk for lookups. Programs that read a directory to its end before they
look at its entries (`find`, `du`, `rm -r`) would otherwise cost a request for each.

Decides which lookups it serves. Never answers that a name is not there, and serves no entry that this mount has changed
since. It takes 8 bytes of memory for each entry.
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

FRESH_NS: Final = 30 * 10**9
"""Age up to which a listed entry serves for a lookup."""
SERVES: Final = 5
"""How long a listing serves, in multiples of the time it took: a lookup costs as much more than an entry. It serves
before its end, too: `find` and `du` read 100 000 entries, look at them, and read on."""
LISTED_MAX: Final = 1 << 19
"""Entries of a kept listing: more than can be listed and looked at within `FRESH_NS`. They take 100 MB."""
BLOCK: Final = 32
"""Entries read together."""
_ENTRIES: Final = msgspec.msgpack.Decoder(list[tuple[str, msgspec.Raw]])
_ATTRIBUTES: Final = msgspec.msgpack.Decoder(tuple[object, ...])


class LargeListing:
    """The entries of one directory, in the order of their keys: a name, and for a directory it ends in `/`."""

    def __init__(self, file: int, began_ns: int) -> None:
        """`file`: the descriptor of an empty file of its own, closed with this listing."""
        self._file = file
        self._began_ns = began_ns
        self._until_ns = 0
        self._firsts: list[str] = []
        self._ends = array("Q", [0])
        self._asked = array("q")
        self._gone = bytearray()
        self._changed: set[str] = set()

    def add(self, entries: Sequence[Named], asked_ns: int, now_ns: int) -> None:
        """Add a page; `asked_ns`: monotonic time of its request."""
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
        """Note that a name is known otherwise, as when this mount has changed it."""
        if self._firsts and now_ns > self._until_ns:
            self.close()
        found = [at for key in (name, name + "/") if (at := self._place(key)) is not None]
        for number, _ in found:
            self._gone[number // 8] |= 1 << number % 8
        if not found and self._file >= 0:  # a page on its way may have the earlier state
            self._changed.add(name)
            if len(self._changed) > LISTED_MAX // BLOCK:
                self.close()

    def find(self, name: str, now_ns: int) -> tuple[Attributes, int] | None:
        """Return the attributes of a name, and the monotonic time of the request for them; None: not served."""
        if now_ns > self._until_ns:
            return None
        for key in (name, name + "/"):
            at = self._place(key)
            if at is None or name in self._changed or self._gone[at[0] // 8] >> at[0] % 8 & 1:
                continue
            asked_ns = self._asked[at[0] // BLOCK]
            return (Attributes(*_ATTRIBUTES.decode(at[1])), asked_ns) if now_ns - asked_ns < FRESH_NS else None  # type: ignore[arg-type]
        return None

    def close(self) -> None:
        """Serve no more, and close the file."""
        if self._file >= 0:
            os.close(self._file)
        self._file, self._until_ns = -1, -1
        self._firsts, self._changed = [], set()

    def _place(self, key: str) -> tuple[int, msgspec.Raw] | None:
        """The number of an entry, and its encoded attributes."""
        block = bisect_right(self._firsts, key) - 1
        if block < 0 or self._file < 0:
            return None
        start, end = self._ends[block : block + 2]
        try:
            entries = _ENTRIES.decode(os.pread(self._file, end - start, start))
        except (OSError, msgspec.DecodeError):
            self.close()
            return None
        return next(
            ((block * BLOCK + n, attributes) for n, (each, attributes) in enumerate(entries) if each == key), None
        )

    def _write(self, block: bytes) -> None:
        try:
            if self._file >= 0 and os.write(self._file, block) < len(block):
                self.close()
        except OSError:  # a full disk
            self.close()
        self._ends.append(self._ends[-1] + len(block))


def _key(entry: Named) -> str:
    return entry_key(entry.name, entry.attributes.type == TYPE_COLLECTION)
