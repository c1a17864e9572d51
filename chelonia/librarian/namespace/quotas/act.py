"""Quotas carried out: the table of all quotas, the counters that a change touches, and setting quotas.

A Librarian never trusts its memory of the table: each transact that counts rests on the table's version and the tree
epoch of its decision. So nobody has to be notified of a new quota, and without quotas a change costs one condition.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.cluster.quotas import EACH_USER, UNCHANGED, Quota, QuotaUse
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import QUOTAS_OBJECT, ROOT, TREE_OBJECT, Dn, Guid, ObjectId, RequestKey, parse_guid
from chelonia.core.metadata import TYPE_COLLECTION, Needed
from chelonia.core.names import LogicalName
from chelonia.core.ports.ahash import Element, Unmet, Walk
from chelonia.core.values import replace
from chelonia.librarian.metadata.elements import check, drop, erase, is_, put
from chelonia.librarian.metadata.records import PlannedTransact, Records
from chelonia.librarian.namespace import tree
from chelonia.librarian.namespace.quotas import decide
from chelonia.librarian.namespace.quotas.decide import Change, Held, QuotaAccount, Table, Trees, changed
from chelonia.librarian.namespace.summaries import Changed
from chelonia.librarian.world import World

ANCESTORS_MAX: Final = 10_000
"""Collections above one collection that are read, at most: far above any sane tree."""
KNOWN_MAX: Final = 100_000
"""Collections whose quotas are remembered, at most."""
_COUNTERS: Final = (Needed("tally"),)


async def ancestors(records: Records, call: Call, start: Guid) -> frozenset[Guid]:
    """Return every collection above `start`, itself included, through all parents. Raises: TOO_LARGE."""
    seen: dict[Guid, None] = {start: None}
    level = [start]
    while level:
        if len(seen) > ANCESTORS_MAX:
            raise CheloniaError(Kind.TOO_LARGE, "move", start, f"more than {ANCESTORS_MAX} collections above it")
        ids = [ObjectId(parse_guid(guid)) for guid in level]
        found = await records.get(call, ids, (Needed("parents"),))
        above = dict.fromkeys(parent for entry in found for parent, _ in tree.names_of(entry))
        level = [guid for guid in above if guid not in seen]
        seen.update(dict.fromkeys(level))
    return frozenset(seen)


class Quotas:
    """The quotas as one Librarian knows them."""

    def __init__(self, records: Records, world: World) -> None:
        self._records = records
        self._world = world
        self._table: Table | None = None
        self._above: dict[Guid, frozenset[Guid]] = {}

    # --- counting what changes --------------------------------------------------------------------------------------

    async def counted(self, call: Call, changed: Sequence[Changed]) -> list[Element]:
        """Return what a transact with these changes needs for quotas. Raises: TOO_LARGE for one user too many."""
        changes, moves = decide.changes_of(changed), decide.moves_of(changed)
        if not changes and not moves:
            return []
        known, above = self._table or await self.table(call), self._above
        table, new = self._with(known, [change.after.owner for change in changes if change.after is not None])
        out = decide.resting(table, new)
        if table.trees:
            for collection, before, later in moves:
                trees = await self._trees(call, table, above, before | later)
                if _joined(trees, before) != _joined(trees, later):
                    out.append(decide.stays_empty(collection))
        if table.accounts and changes:
            trees = await self._trees(call, table, above, decide.parents_of(changes))
            out += decide.counted(table, changes, trees)
            out += await self._logged(call, changes, table, trees)
        return out

    def _with(self, table: Table, owners: Iterable[Dn]) -> tuple[Table, list[QuotaAccount]]:
        """The table with accounts for owners whom the default quota binds, and the new accounts."""
        table, new = decide.with_owners(table, owners, self._world.ids.uuid)
        if new:
            _check_count(table, 0)
        return table, new

    async def spared(self, call: Call, collection: Guid) -> list[Element]:
        """Return what the removal of a collection needs that stays if it has a quota. Raises: NOT_EMPTY."""
        table = self._table or await self.table(call)
        if collection in table.trees and collection in (table := await self.table(call)).trees:  # not by a stale table
            raise CheloniaError(Kind.NOT_EMPTY, "unmake", collection, "it has a quota")
        return decide.resting(table)

    async def enrol(self, call: Call, owners: Iterable[Dn]) -> bool:
        """Give owners whom the default quota binds an account; returns whether any had none."""
        found = False

        async def build() -> PlannedTransact:
            nonlocal found
            table = await self.table(call)
            _, new = self._with(table, owners)
            found = found or bool(new)
            return PlannedTransact(changed(table, new) if new else ())

        await self._records.apply(call.keyed(RequestKey("")), build)
        return found

    async def _logged(self, call: Call, changes: Sequence[Change], table: Table, trees: Trees) -> list[Element]:
        records = {}
        for counter, change in decide.to_log(changes, table, trees):
            obj = decide.log_object(counter)
            found = await self._records.one(call, obj, (Needed("named", change.file),))
            records[counter, change.file] = found.value("named", change.file)
        return decide.logged(changes, table, trees, records)

    async def unmet(self, call: Call, unmet: Unmet) -> bool:
        """Read anew after a transact that counts was refused; returns whether only a stale table was the cause.

        Raises: QUOTA, OTHER_TREE.
        """
        if unmet.change_id == decide.TABLE:
            await self.table(call)
            return True
        if unmet.change_id == decide.BORDER:
            raise decide.other_tree(unmet.condition_id)
        if unmet.change_id.startswith(decide.OVER):
            key = unmet.change_id.removeprefix(decide.OVER)
            table, _ = self._with(await self.table(call), decide.owners_of(key))
            account = table.accounts.get(key)
            if account is not None:
                raise self._refused((await self.uses(call, (account,)))[0], unmet.condition_id)
        return False

    def _refused(self, use: QuotaUse, more: str) -> CheloniaError:
        error = decide.refused(use, more)
        self._world.limits.met("quota", use.name, f"a change was refused: {error.cause}")
        return error

    async def table(self, call: Call) -> Table:
        """Return all quotas as they are now."""
        head, epoch = await self._records.get(call, (QUOTAS_OBJECT, TREE_OBJECT), (Needed("quotas"), Needed("epoch")))
        last = self._table or Table()
        accounts = last.accounts
        if head.version != last.version:
            accounts = await self._accounts(call)
        found = Table(head.version, accounts, epoch.value("epoch", "tree"))
        if found != self._table:
            self._table, self._above = found, {}
        return found

    async def _accounts(self, call: Call) -> dict[str, QuotaAccount]:
        pages = self._records.pages(call, QUOTAS_OBJECT, "tally", bounds.PAGE_ENTRIES_MAX)
        return decide.parse_accounts({key: value async for items in pages for key, value in items})

    async def trees(self, call: Call, table: Table, parents: Iterable[Guid]) -> Trees:
        """Return, for each collection, which of it and those above have a quota."""
        return await self._trees(call, table, self._above if table is self._table else {}, parents)

    async def _trees(
        self, call: Call, table: Table, above: dict[Guid, frozenset[Guid]], parents: Iterable[Guid]
    ) -> Trees:
        """`above`: cache for the epoch of `table`, which grows here."""
        if not table.trees:
            return {}
        out = {}
        for parent in sorted(parents):
            if parent not in above:
                if len(above) >= KNOWN_MAX:
                    above.clear()
                above[parent] = table.trees & await ancestors(self._records, call, parent)
            out[parent] = above[parent]
        return out

    # --- reporting ----------------------------------------------------------------------------------------------------

    async def uses(self, call: Call, accounts: Sequence[QuotaAccount]) -> tuple[QuotaUse, ...]:
        """Return quotas with their use."""
        ids = [decide.counter_object(account.counter or account.counting) for account in accounts]
        out = []
        for account, counter in zip(accounts, await self._records.get(call, ids, _COUNTERS), strict=True):
            size, files = (int(counter.value("tally", prop, "0")) for prop in ("bytes", "files"))
            name = account.quota.user or await self._name(call, account.quota.tree)
            out.append(QuotaUse(account.quota, size, files, bool(account.counter), name, account.implied))
        return tuple(out)

    async def _name(self, call: Call, guid: Guid) -> str:
        """A Logical Name of a collection; from its GUID where it has none up to the root."""
        parts, at = list[str](), guid
        while at != ROOT and len(parts) < bounds.LN_DEPTH_MAX:
            names = tree.names_of(await self._records.one(call, ObjectId(at), (Needed("parents"),)))
            if not names:
                break
            at, name = names[0]
            parts.insert(0, name)
        return str(LogicalName(at, tuple(parts)))

    async def listed(self, call: Call, owner: Dn, within: Guid) -> tuple[QuotaUse, ...]:
        """Return the quotas that count what `owner` writes into collection `within`; with neither all, by key."""
        table = await self.table(call)
        accounts = [table.accounts[key] for key in sorted(table.accounts)]
        if owner or within:
            accounts = await self._binding(call, table, Held(owner, 0, frozenset((within,) if within else ())))
        return await self.uses(call, [account for account in accounts if not account.quota.bounds_nothing])

    async def _binding(self, call: Call, table: Table, side: Held) -> list[QuotaAccount]:
        trees = await self.trees(call, table, side.parents)
        table, _ = self._with(table, (side.owner,) if side.owner else ())
        return decide.accounts_of(table, side, trees)

    async def check_room(self, call: Call, owner: Dn, name: LogicalName, size: int) -> None:
        """Refuse bytes for a new file before they are sent, as things stand. Raises: QUOTA."""
        known = self._table
        if known is not None and (not known.accounts or await self._full(call, known, owner, name, size) is None):
            return
        full = await self._full(call, await self.table(call), owner, name, size)  # a stale table refuses nobody
        if full is not None:
            too_large = 0 <= full.quota.bytes < full.bytes + size
            raise self._refused(full, f", and this takes {size} bytes more" if too_large else "")

    async def _full(self, call: Call, table: Table, owner: Dn, name: LogicalName, size: int) -> QuotaUse | None:
        """A quota into which a new file does not fit."""
        if not table.accounts:
            return None
        parents = frozenset[Guid]()
        if table.trees:
            steps = tuple((part + "/",) for part in name.parts[:-1])
            (walked,) = await self._records.walk(call, (Walk(ObjectId(name.start), steps),), (Needed("entry"),))
            parents = frozenset((Guid(walked.last.id),))
        uses = await self.uses(call, await self._binding(call, table, Held(owner, 0, parents)))
        return next((use for use in uses if not use.takes(size)), None)

    # --- setting ----------------------------------------------------------------------------------------------------

    async def set(self, call: Call, wanted: Quota) -> QuotaUse:
        """Set a quota, or remove one (no bound): the default quota, if any, then binds a user. Files are counted soon.

        Raises: BAD_REQUEST, NOT_FOUND (no such collection, no quota to remove), TOO_LARGE.
        """
        check_quota(wanted)
        key, fresh = decide.account_key(wanted), self._world.ids.uuid()
        account = QuotaAccount(wanted.over(Quota()))
        name = "default" if wanted.user == EACH_USER else wanted.user
        if wanted.tree and wanted.bounds_nothing:
            name = await self._name(call, wanted.tree)

        async def build() -> PlannedTransact:
            nonlocal account
            table = await self.table(call)
            old = table.accounts.get(key)
            elements, quota = changed(table), wanted.over(old.quota if old is not None else Quota())
            if quota.bounds_nothing:
                if old is None and quota.user == EACH_USER and any(each.implied for each in table.accounts.values()):
                    return PlannedTransact(())  # a removal broke off: what it left follows
                if old is None or old.implied:
                    raise CheloniaError(Kind.NOT_FOUND, "quota", name, "it has no quota of its own")
                default = table.accounts.get(decide.DEFAULT)
                if default is not None and quota.user not in ("", EACH_USER):
                    account = replace(old, quota=replace(default.quota, user=quota.user), implied=True)
                    return PlannedTransact(changed(table, (account,)), memo=key)
                account = replace(old, quota=quota)
                return PlannedTransact([*elements, *_removed(old)], memo=key)
            if old is None:
                _check_count(table, 1)
            account = QuotaAccount(quota, old.counter, old.counting) if old else QuotaAccount(quota, "", fresh)
            elements += await self._collection(call, quota.tree)
            return PlannedTransact([*elements, put(QUOTAS_OBJECT, "tally", key, account.record)], memo=key)

        await self._records.apply(call, build)
        if account.quota.bounds_nothing:
            await self.clear_log(call, account.counting)
            if wanted.user == EACH_USER:
                await self._disenrol(call)
            return QuotaUse(account.quota, 0, 0, counted=True, name=name)
        await self.table(call)
        return (await self.uses(call, (account,)))[0]

    async def _disenrol(self, call: Call) -> None:
        """Remove the accounts of a default quota that was removed; when one is set meanwhile, the rest stay."""
        removed = list[QuotaAccount]()

        async def build() -> PlannedTransact:
            table = await self.table(call)
            implied = [account for account in table.accounts.values() if account.implied]
            removed[:] = [] if decide.DEFAULT in table.accounts else implied[: bounds.QUOTAS_RECOUNTED]
            elements = [element for account in removed for element in _removed(account)]
            return PlannedTransact([*changed(table), *elements] if removed else ())

        while True:
            await self._records.apply(call.keyed(RequestKey("")), build)
            if not removed:
                return
            for account in removed:
                await self.clear_log(call, account.counting)

    async def _collection(self, call: Call, guid: Guid) -> list[Element]:
        if not guid:
            return []
        entry = await self._records.one(call, ObjectId(parse_guid(guid)), tree.ENTRY)
        if not tree.visible(entry):
            raise CheloniaError(Kind.NOT_FOUND, "quota", guid, "no such collection")
        if tree.type_of(entry) != TYPE_COLLECTION:
            cause = f"it is a {tree.type_of(entry)}; a quota is a collection's, or a user's"
            raise CheloniaError(Kind.NOT_A_COLLECTION, "quota", guid, cause)
        return [check(entry.id, is_("entry", "type", TYPE_COLLECTION))]

    async def recount(self, call: Call, *, forget: bool = False) -> None:
        """Have all counters counted anew; until then the known counts hold or, with `forget`, none."""
        keys = sorted((await self.table(call)).accounts)
        for start in range(0, len(keys), bounds.QUOTAS_RECOUNTED):
            some = keys[start : start + bounds.QUOTAS_RECOUNTED]
            await self._recount(call.keyed(RequestKey("")), some, forget=forget)

    async def _recount(self, call: Call, keys: Sequence[str], *, forget: bool) -> None:
        given_up: list[str] = []

        async def build() -> PlannedTransact:
            table = await self.table(call)
            again = [table.accounts[key] for key in keys if key in table.accounts]
            given_up[:] = [account.counting for account in again if account.counting]
            erased = [*given_up, *(account.counter for account in again if forget and account.counter)]
            elements = [erase(decide.counter_object(counter)) for counter in erased]
            for account in again:
                current = "" if forget else account.counter
                fresh = replace(account, counter=current, counting=self._world.ids.uuid())
                elements.append(put(QUOTAS_OBJECT, "tally", fresh.key, fresh.record))
            return PlannedTransact([*changed(table), *elements] if again else ())

        await self._records.apply(call, build)
        for counter in given_up:
            await self.clear_log(call, counter)

    async def clear_log(self, call: Call, counter: str) -> None:
        """Drop the log that was kept while a counter was counted."""
        obj = decide.log_object(counter)
        while counter:
            page = await self._records.scan(call, obj, "named", "", bounds.DELETE_WIDE_MAX)
            if not page.items:
                return
            await self._records.attempt(
                call.keyed(RequestKey("")), PlannedTransact([drop(obj, "named", file) for file, _ in page.items])
            )


def _removed(account: QuotaAccount) -> list[Element]:
    """The change that removes an account and its counters."""
    counters = [erase(decide.counter_object(each)) for each in (account.counter, account.counting) if each]
    return [drop(QUOTAS_OBJECT, "tally", account.key), *counters]


def _check_count(table: Table, more: int) -> None:
    """Raises: TOO_LARGE when there are too many quotas."""
    if len(table.accounts) + more > bounds.QUOTAS_MAX:
        raise CheloniaError(Kind.TOO_LARGE, "quota", cause=f"{bounds.QUOTAS_MAX} quotas are kept: remove some")


def check_quota(quota: Quota) -> None:
    """Refuse a quota without one owner or with bounds out of range. Raises: BAD_REQUEST."""
    if bool(quota.user) == bool(quota.tree):
        raise CheloniaError(Kind.BAD_REQUEST, "quota", cause="a quota is either a user's or a collection's")
    if not all(UNCHANGED <= bound <= bounds.FILE_BYTES_MAX for bound in (quota.bytes, quota.files)):
        cause = f"bounds are -1 (none) to {bounds.FILE_BYTES_MAX}"
        raise CheloniaError(Kind.BAD_REQUEST, "quota", quota.of, cause)
    if not decide.is_kept(quota.user):
        cause = f"a DN has at most {bounds.QUOTA_DN_BYTES_MAX} bytes here"
        raise CheloniaError(Kind.BAD_REQUEST, "quota", quota.user[:80], cause)


def _joined(trees: Trees, parents: Iterable[Guid]) -> frozenset[Guid]:
    return frozenset(tree for parent in parents for tree in trees[parent])
