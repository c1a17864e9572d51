"""Checks of answers about the metadata where several copies of them answer.

- No answer is older than its caller has already seen.
- A strong call gets no answer older than the state decided when it began.
- No replica is reported unknown while the metadata have it on record throughout.

`Decided` remembers every version of each object. `Fresh` stands before a replica of the A-Hash, `Sure` before a
Librarian. They check every answer against it, and change nothing.
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
from chelonia.core.ports.ahash import Page
from chelonia.core.ports.librarian import Report, ReportAnswer
from tests.sim.process import Node
from tests.support.memory_store import SortedRecords

_HEADER, _WIDE = b"H\0", b"W\0"
_VERSION = msgspec.msgpack.Decoder(tuple[int, msgspec.Raw])

Found = Callable[[str], None]
"""Called with a description of each wrong answer."""


class Decided:
    """The versions that objects had, since the metadata began or were put back. `look`: takes in durable changes not
    yet seen."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look
        self._sequence = 0
        self._generation = 0
        self._versions: dict[ObjectId, list[tuple[int, int]]] = {}
        self._names = SortedRecords()
        self._since: dict[bytes, int] = {}
        """The time since which each record of a large section has been there without a break."""

    def begin(self, contents: Mapping[bytes, bytes]) -> None:
        """Begin with these metadata; earlier ones no longer count."""
        self._versions.clear()
        self._names = SortedRecords()
        self._since.clear()
        self.add(contents, ())

    def add(self, puts: Mapping[bytes, bytes], deletes: Iterable[bytes]) -> None:
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
        wide = {key: b"" for key in puts if key.startswith(_WIDE)}
        gone = [key for key in deletes if key.startswith(_WIDE)]
        self._names.write(wide, gone)
        for key in wide:
            self._since.setdefault(key, self._sequence)
        for key in gone:
            self._since.pop(key, None)

    def left_out(self, pages: tuple[ObjectId, str, str], page: Page, least: int) -> str:
        """A name that this page (object, section, after which) leaves out though it has been there since `least`."""
        self._look()
        obj, section, after = pages
        start, end = layout.wide_range(obj, section)
        told, last = dict(page.items), page.after
        for key, _ in self._names.scan(start, end, 1 << 30):
            name = layout.wide_name(key)[1]
            if after < name and (not last or name <= last) and self._since[key] <= least and name not in told:
                return name
        return ""

    def _had(self, key: bytes, version: int) -> None:
        self._versions.setdefault(layout.header_id(key), []).append((self._sequence, version))

    def least(self, call: Call, node: Node) -> int:
        """The sequence that an answer to this call has to have seen at least, 0 for any."""
        shown = later(call.read_after, node.horizon.newest)
        seen = shown.sequence if shown is not None and shown.generation == self._generation else 0
        return max(seen, self._sequence) if call.strong else seen

    def fits(self, obj: StoredObject, least: int) -> bool:
        """Whether the object had this state at `least` or later."""
        if self._had_since(obj, least):
            return True
        self._look()  # the answer may come before anybody has looked what it rests on
        return self._had_since(obj, least)

    def _had_since(self, obj: StoredObject, least: int) -> bool:
        had = self._versions.get(obj.id, [(0, 0)])
        before = [version for sequence, version in had if sequence <= least][-1:] or [0]
        return obj.version in (*before, *(version for sequence, version in had if sequence > least))


class Fresh:
    """A replica of the A-Hash in front of all its callers."""

    def __init__(self, ahash: Any, node: Node, decided: Decided, found: Found) -> None:
        self._ahash, self._node, self._decided, self._found = ahash, node, decided, found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ahash, name)

    async def get(self, call: Call, ids: tuple[ObjectId, ...], needed: Filter = ()) -> Sequence[StoredObject]:
        """Read, and check that the answer is not too old."""
        least = self._decided.least(call, self._node)
        answer: Sequence[StoredObject] = await self._ahash.get(call, ids, needed)
        for obj in answer:
            if not self._decided.fits(obj, least):
                how = "strongly" if call.strong else "by one who has seen more"
                self._found(f"{self._node.name} answers {obj.id} in version {obj.version}, asked {how}: {least}")
        return answer

    async def scan(self, call: Call, object_id: ObjectId, section: str, after: str = "", limit: int = 1000) -> Page:
        """Read a page, and check that it is whole."""
        least = self._decided.least(call, self._node)
        page: Page = await self._ahash.scan(call, object_id, section, after, limit)
        if name := self._decided.left_out((object_id, section, after), page, least):
            self._found(f"{self._node.name} leaves {name!r} out of {object_id} {section}, which is there since {least}")
        return page


class Sure:
    """A Librarian in front of its Shepherds. `record`: the blob that the metadata name for a replica, "" for none."""

    def __init__(self, librarian: Any, record: Callable[[ObjectId, ReferenceId], str], found: Found) -> None:
        self._librarian, self._record, self._found = librarian, record, found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._librarian, name)

    async def report(self, call: Call, report: Report) -> ReportAnswer:
        """Report, and check that no replica on record throughout is called unknown: it would be set aside."""
        obj = shepherd_object(report.shepherd)
        before = {replica.reference: self._record(obj, replica.reference) for replica in report.replicas}
        answer: ReportAnswer = await self._librarian.report(call, report)
        for reference in answer.unknown:
            if before.get(reference) and self._record(obj, reference) == before[reference]:
                self._found(f"{report.shepherd} is told that nobody knows {reference}, which is on record")
        return answer
