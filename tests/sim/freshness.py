"""What may be told of the metadata where several copies of them answer: nothing older than who asks has seen, to a
strong call nothing older than what was decided when it was asked, and of no replica that nobody knows it while the
metadata have it on record all along.

`Decided` remembers every version that each object had; `Fresh` stands before a replica of the A-Hash, `Sure` before a
Librarian, and they hold against that whatever is answered. They change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from chelonia.ahash.store import layout
from chelonia.core.caller import Call
from chelonia.core.cluster.position import later
from chelonia.core.ids import ObjectId, ReferenceId, shepherd_object
from chelonia.core.metadata import Filter, StoredObject
from chelonia.core.ports.librarian import Report, ReportAnswer
from tests.sim.process import Node

_HEADER = b"H\0"
_VERSION = msgspec.msgpack.Decoder(tuple[int, msgspec.Raw])

Found = Callable[[str], None]
"""Told of what should not have been answered."""


class Decided:
    """The versions that objects had, since the metadata began or were put back. `look`: takes in what is durable and
    was not seen yet."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look
        self._sequence = 0
        self._generation = 0
        self._versions: dict[ObjectId, list[tuple[int, int]]] = {}

    def begin(self, contents: Mapping[bytes, bytes]) -> None:
        """The metadata are these; what was before does not count any more."""
        self._versions.clear()
        self.add(contents, ())

    def add(self, puts: Mapping[bytes, bytes], deletes: Iterable[bytes]) -> None:
        """This was decided."""
        if layout.META_STATE in puts:
            self._sequence = layout.decode_state(puts[layout.META_STATE]).sequence
        if layout.META_GENERATION in puts:
            self._generation = int(layout.decode_value(puts[layout.META_GENERATION]))
        for key, value in puts.items():
            if key.startswith(_HEADER):
                self._had(key, _VERSION.decode(value[len(layout.TAG) :])[0])
        for key in deletes:
            if key.startswith(_HEADER):
                self._had(key, 0)

    def _had(self, key: bytes, version: int) -> None:
        self._versions.setdefault(layout.header_id(key), []).append((self._sequence, version))

    def least(self, call: Call, node: Node) -> int:
        """The sequence that an answer to this call has to have seen at least, 0 for any."""
        shown = later(call.read_after, node.horizon.newest)
        seen = shown.sequence if shown is not None and shown.generation == self._generation else 0
        return max(seen, self._sequence) if call.strong else seen

    def fits(self, obj: StoredObject, least: int) -> bool:
        """Whether this object was so at `least` or later."""
        if self._had_since(obj, least):
            return True
        self._look()  # the answer may come before anybody has looked what it rests on
        return self._had_since(obj, least)

    def _had_since(self, obj: StoredObject, least: int) -> bool:
        had = self._versions.get(obj.id, [(0, 0)])
        before = [version for sequence, version in had if sequence <= least][-1:] or [0]
        return obj.version in (*before, *(version for sequence, version in had if sequence > least))


class Fresh:
    """A replica of the A-Hash as everybody reaches it."""

    def __init__(self, ahash: Any, node: Node, decided: Decided, found: Found) -> None:
        self._ahash, self._node, self._decided, self._found = ahash, node, decided, found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ahash, name)

    async def get(self, call: Call, ids: tuple[ObjectId, ...], needed: Filter = ()) -> Sequence[StoredObject]:
        """Read, and look whether that was not too old."""
        least = self._decided.least(call, self._node)
        answer: Sequence[StoredObject] = await self._ahash.get(call, ids, needed)
        for obj in answer:
            if not self._decided.fits(obj, least):
                how = "strongly" if call.strong else "by one who has seen more"
                self._found(f"{self._node.name} answers {obj.id} in version {obj.version}, asked {how}: {least}")
        return answer


class Sure:
    """A Librarian as Shepherds report to it. `record`: the blob that the metadata name for a replica, "" for none."""

    def __init__(self, librarian: Any, record: Callable[[ObjectId, ReferenceId], str], found: Found) -> None:
        self._librarian, self._record, self._found = librarian, record, found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._librarian, name)

    async def report(self, call: Call, report: Report) -> ReportAnswer:
        """Report, and look whether nothing is called unknown that was on record all the while: it is set aside."""
        obj = shepherd_object(report.shepherd)
        before = {replica.reference: self._record(obj, replica.reference) for replica in report.replicas}
        answer: ReportAnswer = await self._librarian.report(call, report)
        for reference in answer.unknown:
            if before.get(reference) and self._record(obj, reference) == before[reference]:
                self._found(f"{report.shepherd} is told that nobody knows {reference}, which is on record")
        return answer
