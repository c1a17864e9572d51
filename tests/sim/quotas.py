"""Quotas in a simulated cluster: an administrator sets them, changes them, has them counted anew and removes them
meanwhile.

The used amount of a quota in force must be the real one at every look; nothing may grow beyond its bounds.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from msgspec import structs

from chelonia.core.cluster.quotas import EACH_USER, UNBOUNDED, Quota
from chelonia.core.errors import CheloniaError
from chelonia.core.ids import QUOTAS_OBJECT, ROOT, Dn, Guid, ObjectId, RequestKey
from chelonia.core.metadata import TYPE_FILE, StoredObject
from chelonia.librarian.namespace.quotas.decide import (
    DEFAULT,
    QuotaAccount,
    account_key,
    counter_object,
    parse_accounts,
)
from chelonia.librarian.namespace.tree import names_of, type_of
from tests.sim.model import Violation
from tests.sim.network import Channel
from tests.sim.world import ADMIN, World
from tests.support.namespace_snapshot import NamespaceSnapshot

PAUSE_MS = 12_000
BYTES = (UNBOUNDED, 0, 400, 1_500)
FILES = (UNBOUNDED, 1, 2, 3)
Used = tuple[int, int]


class Quotas:
    """The quotas of one run. `trees`: the names of collections right below the root that may have one."""

    def __init__(self, world: World, rng: random.Random, trees: Sequence[str], users: Sequence[Dn]) -> None:
        self._world, self._rng, self._trees, self._users = world, rng, trees, users
        self._at = world.client("keeper of quotas")
        self._before: dict[QuotaAccount, Used] = {}

    async def run(self, seen: NamespaceSnapshot) -> None:
        """One act after the other, until cancelled; `seen`: with the collections."""
        guids = [Guid(each.id) for each in seen.entries() if {(ROOT, tree) for tree in self._trees} & {*names_of(each)}]
        assert len(guids) == len(self._trees), "each collection is there"
        kept = [*(Quota(tree=guid) for guid in guids), *(Quota(user=user) for user in (*self._users, EACH_USER))]
        while True:
            await self._world.clock.sleep(self._rng.randint(0, PAUSE_MS))
            bounds = self._rng.choice(BYTES), self._rng.choice(FILES)
            quota = structs.replace(self._rng.choice(kept), bytes=bounds[0], files=bounds[1])
            librarian = Channel("librarian", self._world.librarians(ADMIN, self._at), self._at, self._world.ids)
            call = structs.replace(ADMIN, request_key=RequestKey(self._world.ids.uuid()))
            again = self._rng.random() < 0.2
            self._world.note(f"QUOTA {'again' if again else quota}")
            try:
                await (librarian.recount_quotas(call) if again else librarian.set_quota(call, quota))
            except CheloniaError as error:
                self._world.note(f"QUOTA {error}")

    def check(self, seen: NamespaceSnapshot) -> None:
        """Raises: Violation where a quota's usage is wrong, or has grown beyond its bounds."""
        accounts = parse_accounts(seen.section(QUOTAS_OBJECT, "tally"))
        self._check_owners(seen, accounts)
        now = {account: _used(seen, account.quota) for account in accounts.values() if account.counter}
        for account, used in now.items():
            counter = seen.get(counter_object(account.counter))
            told = tuple(int(counter.value("tally", what, "0")) for what in ("bytes", "files"))
            if told != used:
                raise Violation(f"{account} says that (bytes, files) {told} are used, and {used} are")
            before, bounds = self._before.get(account, used), (account.quota.bytes, account.quota.files)
            if any(0 <= most < later > old for most, later, old in zip(bounds, used, before, strict=True)):
                raise Violation(f"{account} has grown beyond its bounds, from {before} to {used}")
        self._before = now

    def _check_owners(self, seen: NamespaceSnapshot, accounts: Mapping[str, QuotaAccount]) -> None:
        if DEFAULT in accounts and accounts[DEFAULT].counter:
            owners = {each.value("entry", "owner") for each in seen.entries() if is_held(each)}
            unbound = sorted(owner for owner in owners if account_key(Quota(user=Dn(owner))) not in accounts)
            if unbound:
                raise Violation(f"the default quota does not bind {unbound}, who have files")

    def restored(self) -> None:
        """Note that older metadata were put back, with their contents."""
        self._before = {}

    def left(self, seen: NamespaceSnapshot) -> str:
        """The quotas still being counted."""
        accounts = parse_accounts(seen.section(QUOTAS_OBJECT, "tally"))
        counting = [key for key, account in accounts.items() if account.counting]
        return f"{counting} are still being counted" if counting else ""


def is_held(entry: StoredObject) -> bool:
    """Whether an entry is a file that has a name."""
    return type_of(entry) == TYPE_FILE and bool(names_of(entry))


def _used(seen: NamespaceSnapshot, quota: Quota) -> Used:
    """Bytes and files, counted over every name."""
    files = [each for each in seen.entries() if is_held(each)]
    mine = [each for each in files if each.value("entry", "owner") == quota.user or quota.tree in _above(seen, each)]
    return sum(int(each.value("states", "size")) for each in mine), len(mine)


def _above(seen: NamespaceSnapshot, entry: StoredObject) -> set[Guid]:
    above = {Guid(parent) for parent, _ in names_of(entry)}
    return above.union(*(_above(seen, seen.get(ObjectId(each))) for each in above))
