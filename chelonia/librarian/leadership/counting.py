"""Counting for quotas: of files older than a quota, or of all files again, while users go on writing.

A transact names a counter as `counting`. From then on every change adds to that counter, and logs once what its file
counted before. The leader's pass adds up the entries without a log record, and the logged sizes of the others. The sum
is the state at that transact; one more transact joins it with the counter, which has the changes since.
Invariants: the pass only reads until then; one that breaks off begins again, for the log stays true.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from chelonia.core import bounds
from chelonia.core.ids import CONTENT_PREFIX, QUOTAS_OBJECT, ObjectId, is_uuid
from chelonia.core.metadata import Needed, StoredObject
from chelonia.core.ports.ahash import Element
from chelonia.core.values import replace
from chelonia.librarian.context import LibrarianContext
from chelonia.librarian.leadership.lease.act import Leading
from chelonia.librarian.metadata.elements import add, erase, put
from chelonia.librarian.namespace.quotas import decide
from chelonia.librarian.namespace.quotas.act import Quotas
from chelonia.librarian.namespace.quotas.decide import (
    Change,
    Held,
    QuotaAccount,
    Table,
    changed,
    counter_object,
    log_object,
)

_LOG = logging.getLogger(__name__)
_HELD = (Needed("entry"), Needed("parents"), Needed("states", "size"), Needed("content"), Needed("tally", "bytes"))


class CountedFiles:
    """The files that were counted, sorted, 16 bytes each."""

    def __init__(self) -> None:
        self._ids = bytearray()

    def add(self, file: ObjectId) -> None:
        """Add a file; ids come in order."""
        self._ids += _short(file)

    def has(self, file: str) -> bool:
        """Return whether a file was counted."""
        short = _short(file)
        at = bisect_left(self, short)
        return at < len(self) and self[at] == short

    def __len__(self) -> int:
        return len(self._ids) // 16

    def __getitem__(self, at: int) -> bytes:
        return bytes(self._ids[at * 16 : at * 16 + 16])


def _short(file: str) -> bytes:
    return bytes.fromhex(file.removeprefix(CONTENT_PREFIX).replace("-", ""))


@dataclass(slots=True)
class Total:
    """Bytes and files that were there when a counter was named."""

    bytes: int = 0
    files: int = 0
    _seen: tuple[CountedFiles, CountedFiles] = field(default_factory=lambda: (CountedFiles(), CountedFiles()))

    def add(self, file: ObjectId, size: int) -> None:
        """Add a file or open upload without a log record."""
        self._seen[_is_upload(file)].add(file)
        self.add_noted(file, size)

    def add_noted(self, file: str, size: int) -> None:
        """Add a file or open upload by its log record."""
        self.bytes += size
        self.files += not _is_upload(file)

    def has(self, file: str) -> bool:
        """Return whether a file was added before its first log record."""
        return self._seen[_is_upload(file)].has(file)


def _is_upload(file: str) -> bool:
    return file.startswith(CONTENT_PREFIX)


class Counting:
    """One Librarian's pass over all entries."""

    def __init__(self, context: LibrarianContext, leading: Leading, quotas: Quotas) -> None:
        self._on = context
        self._leading = leading
        self._quotas = quotas

    async def step(self) -> None:
        """Count all entries for every quota that needs it."""
        table = await self._quotas.table(self._on.call)
        totals = {account.counting: Total() for account in table.accounts.values() if account.counting}
        if not totals or not await self._entries(totals):
            return
        for counter, total in totals.items():
            await self._noted(counter, total)
        counters = list(totals)
        for start in range(0, len(counters), bounds.QUOTAS_RECOUNTED):
            await self._join(
                {counter: totals[counter] for counter in counters[start : start + bounds.QUOTAS_RECOUNTED]}
            )

    async def _entries(self, totals: Mapping[str, Total]) -> bool:
        """Add up all files without a log record; returns whether the pass came to the end."""
        async for ids in self._on.records.object_pages(self._on.call, "", bounds.REFERENCES_PAGE):
            if not self._leading.now:
                return False
            while not await self._page([each for each in ids if is_uuid(each) or _is_upload(each)], totals):
                pass
            await self._tidied(ids)
            await self._on.world.clock.sleep(self._on.settings.survey_page_ms // 10)
        return True

    async def _tidied(self, ids: Sequence[ObjectId]) -> None:
        """Drop logs of counters that count by now: who was to drop them ended before."""
        counters = [counter for each in ids if (counter := decide.counter_of_log(each))]
        if counters:
            # It is newer than `ids`: it has all counters whose logs had begun by then, but those that count since.
            table = await self._quotas.table(self._on.call)
            counting = {account.counting for account in table.accounts.values()}
            for counter in [each for each in counters if each not in counting]:
                await self._quotas.clear_log(self._on.call, counter)

    async def _page(self, ids: Sequence[ObjectId], totals: Mapping[str, Total]) -> bool:
        """Add up a page; False, with nothing added, when collections moved or quotas changed meanwhile."""
        records, call = self._on.records, self._on.call
        table = await self._quotas.table(call)
        entries = await records.get(call, ids, _HELD)
        found = [(entry.id, side) for entry in entries if (side := decide.held(entry)) is not None]
        if await self._quotas.enrol(call, [side.owner for _, side in found]):
            return False
        counts = [pair for file, side in found for pair in await self._counts(table, file, side, totals)]
        files = dict[str, list[ObjectId]]()
        for counter, file in counts:
            files.setdefault(counter, []).append(file)
        noted = {counter: await self._noted_of(counter, some) for counter, some in files.items()}
        if await self._quotas.table(call) != table:
            return False
        sizes = {file: side.bytes for file, side in found}
        for counter, file in counts:
            if file not in noted[counter]:
                totals[counter].add(file, sizes[file])
        return True

    async def _counts(
        self, table: Table, file: ObjectId, side: Held, totals: Mapping[str, Total]
    ) -> list[tuple[str, ObjectId]]:
        trees = await self._quotas.trees(self._on.call, table, side.parents)
        logged = decide.to_log((Change(file, side, None),), table, trees)
        return [(counter, file) for counter, _ in logged if counter in totals]

    async def _noted_of(self, counter: str, files: Sequence[ObjectId]) -> set[str]:
        """Those of these files that have a log record."""
        out = set[str]()
        for start in range(0, len(files), bounds.FILTER_MAX):
            needed = tuple(Needed("named", file) for file in files[start : start + bounds.FILTER_MAX])
            out |= (
                (await self._on.records.one(self._on.call, log_object(counter), needed))
                .sections.get("named", {})
                .keys()
            )
        return out

    async def _noted(self, counter: str, total: Total) -> None:
        """Add the logged sizes of files, except of those that were counted before they were logged."""
        pages = self._on.records.pages(self._on.call, log_object(counter), "named", bounds.PAGE_ENTRIES_MAX)
        async for items in pages:
            for file, value in items:
                size = decide.parse_logged(value)
                if size is not None and not total.has(file):
                    total.add_noted(file, size)

    async def _join(self, totals: Mapping[str, Total]) -> None:
        """Put the counters in force; log those that said something else before."""
        while self._leading.now:
            table = await self._quotas.table(self._on.call)
            joined = [account for account in table.accounts.values() if account.counting in totals]
            elements, found = changed(table), list[tuple[QuotaAccount, str]]()
            for account in joined:
                total = totals[account.counting]
                found.append((account, await self._differs(account, total)))
                elements += _joined(account, total)
            if not joined or await self._leading.apply(elements):
                for account, differs in found:
                    if differs:
                        _LOG.warning("quota-wrong: that of %s said %s; it is set right", account.quota.of, differs)
                    _LOG.info("the quota of %s counts", account.quota.of)
                break
        else:
            return  # another one leads, and needs the log
        for counter in totals:
            await self._quotas.clear_log(self._on.call, counter)

    async def _differs(self, account: QuotaAccount, total: Total) -> str:
        """The error of a counter in words; "" when it is right. Both were read at one moment."""
        if not account.counter:
            return ""
        ids = [counter_object(each) for each in (account.counter, account.counting)]
        old, new = await self._on.records.get(self._on.call, ids, (Needed("tally"),))
        counted = [_number(old, prop) for prop in ("bytes", "files")]
        true = [_number(new, "bytes") + total.bytes, _number(new, "files") + total.files]
        return "" if counted == true else f"{counted[0]} bytes and {counted[1]} files, not {true[0]} and {true[1]}"


def _joined(account: QuotaAccount, total: Total) -> list[Element]:
    """The change that puts the new counter in force."""
    counter = account.counting
    return [
        put(QUOTAS_OBJECT, "tally", account.key, replace(account, counter=counter, counting="").record),
        add(counter_object(counter), "tally", "bytes", total.bytes),
        add(counter_object(counter), "tally", "files", total.files),
        *([erase(counter_object(account.counter))] if account.counter else []),
    ]


def _number(counter: StoredObject, prop: str) -> int:
    return int(counter.value("tally", prop, "0"))
