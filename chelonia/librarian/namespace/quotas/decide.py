"""Quotas as pure decisions: the additions of a transact to the counters of its files' quotas.

A decision of the namespace knows nothing of quotas: the same transact adds the difference that it makes to counters.
Counters are added to and compared, never written, so that any number of writers under one quota do not conflict.

Invariants:
- Such a transact rests on the version of the table and, where a collection has a quota, on the tree epoch. So it counts
  for exactly the quotas that there are.
- A file counts while it has a name: for its owner, and once for every collection with a quota above any of its names.
- With a default quota, each owner of a file has an account once all files have been counted. An owner without one gets
  it by the transact that gives him a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from chelonia.core import bounds
from chelonia.core.cluster.quotas import EACH_USER, Quota, QuotaUse
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import CONTENT_PREFIX, QUOTA_PREFIX, QUOTAS_OBJECT, TREE_OBJECT, Dn, Guid, ObjectId
from chelonia.core.metadata import TYPE_COLLECTION, TYPE_FILE, StoredObject
from chelonia.core.ports.ahash import ChangeType, Condition, ConditionType, Element
from chelonia.core.values import replace
from chelonia.librarian.metadata.contents import OPEN
from chelonia.librarian.metadata.elements import add, as_read, check, put, version
from chelonia.librarian.namespace.summaries import Changed
from chelonia.librarian.namespace.tree import names_of, type_of

TABLE: Final = "quotas"
"""Change id of the element that rests on the table and the tree epoch: unmet means that both must be read again."""
OVER: Final = "quota "
"""Prefix of the change id of an element that rests on a quota having room; its account follows."""
BORDER: Final = "quota border"
"""Change id of the element that rests on a collection being empty."""
_USER, _TREE = "user ", "tree "
_NONE: Final = "-"
_LOG: Final = ":before"
_UNBOUND: Final = Quota()
DEFAULT: Final = _USER + EACH_USER
"""Property of the default quota. Its counter counts nothing: it states that all owners of files have an account."""


@dataclass(frozen=True, slots=True)
class QuotaAccount:
    """A quota as stored. `counter`: in force, "" for none; `counting`: its successor while existing files are counted.
    No successor is "" too. `implied`: its bounds are those of the default quota."""

    quota: Quota
    counter: str = ""
    counting: str = ""
    implied: bool = False

    @property
    def key(self) -> str:
        """Property of the table."""
        return account_key(self.quota)

    @property
    def record(self) -> str:
        """Value in the table."""
        bounds = f"{_NONE} {_NONE}" if self.implied else f"{self.quota.bytes} {self.quota.files}"
        value = f"{self.counter or _NONE} {self.counting or _NONE} {bounds}"
        assert parse_account(self.key, value, self.quota) == self, "a quota is read as it was written"
        return value


def account_key(quota: Quota) -> str:
    """Return the property of a quota in the table."""
    assert bool(quota.user) is not bool(quota.tree), "a quota is of a user or of a tree, never of both"
    return _USER + quota.user if quota.user else _TREE + quota.tree


def owners_of(key: str) -> tuple[Dn, ...]:
    """Return the owner with this property in the table; nothing for that of a tree."""
    return (Dn(key.removeprefix(_USER)),) if key.startswith(_USER) else ()


def parse_accounts(records: Mapping[str, str]) -> dict[str, QuotaAccount]:
    """Read the table. Raises: ValueError for a malformed quota."""
    default = parse_account(DEFAULT, records[DEFAULT]).quota if DEFAULT in records else _UNBOUND
    return {key: parse_account(key, value, default) for key, value in records.items()}


def bounds_alone(records: Mapping[str, str]) -> dict[str, str]:
    """Return the quotas among these records that somebody has set, as records that are not counted yet."""
    accounts = parse_accounts(records).values()
    return {each.key: replace(each, counter="", counting="").record for each in accounts if not each.implied}


def parse_account(key: str, value: str, default: Quota = _UNBOUND) -> QuotaAccount:
    """Read a quota. Raises: ValueError when malformed."""
    counter, counting, size, files = value.split(" ")
    kind, _, of = key.partition(" ")
    user, tree = (of, "") if kind + " " == _USER else ("", of)
    implied = size == _NONE
    bounds = (default.bytes, default.files) if implied else (int(size), int(files))
    quota = Quota(Dn(user), Guid(tree), *bounds)
    if not of or account_key(quota) != key:
        raise ValueError(f"no quota: {key} {value}")
    counter, counting = ("" if each == _NONE else each for each in (counter, counting))
    return QuotaAccount(quota, counter, counting, implied)


def counter_object(counter: str) -> ObjectId:
    """Return the A-Hash object of a counter: section `tally`, `bytes` and `files`."""
    return ObjectId(QUOTA_PREFIX + counter)


def log_object(counter: str) -> ObjectId:
    """Return the log of a counter that is being counted: section `named`, by file what it counted before a change."""
    return ObjectId(f"{QUOTA_PREFIX}{counter}{_LOG}")


def counter_of_log(obj: ObjectId) -> str:
    """Return the counter of a log; "" for any other object."""
    is_log = obj.startswith(QUOTA_PREFIX) and obj.endswith(_LOG)
    return obj.removeprefix(QUOTA_PREFIX).removesuffix(_LOG) if is_log else ""


@dataclass(frozen=True, slots=True)
class Table:
    """All quotas, of one version (0: there have never been any); `epoch`: of the tree, read before `Trees`."""

    version: int = 0
    accounts: Mapping[str, QuotaAccount] = field(default_factory=dict)
    epoch: str = ""

    @property
    def trees(self) -> frozenset[Guid]:
        """Collections that have a quota."""
        return frozenset(account.quota.tree for account in self.accounts.values() if account.quota.tree)


class Held(msgspec.Struct, frozen=True):
    """A file's share in quotas: its bytes, its owner, the collections of its names. An open upload counts the bytes of
    its parts, for its owner in the collection that lists it, and no file."""

    owner: Dn
    bytes: int
    parents: frozenset[Guid]
    files: int = 1


class Change(msgspec.Struct, frozen=True):
    """The change of one file's share; None: there is no file, or it has no name."""

    file: ObjectId
    before: Held | None
    after: Held | None


def is_kept(owner: Dn) -> bool:
    """Return whether a user may have a quota: the DN is part of a property's name."""
    return len(owner.encode("utf-8", "surrogatepass")) <= bounds.QUOTA_DN_BYTES_MAX


def with_owners(table: Table, owners: Iterable[Dn], fresh: Callable[[], str]) -> tuple[Table, list[QuotaAccount]]:
    """Return the table with an account of the default quota for each owner without one, and the new accounts.

    While the default quota is being counted, so are the new accounts; otherwise they begin with nothing. An owner whose
    DN is too long gets none. Args: `fresh`: names a counter.
    """
    default, new = table.accounts.get(DEFAULT), list[QuotaAccount]()
    if default is None:
        return table, new
    for owner in sorted({owner for owner in owners if _USER + owner not in table.accounts and is_kept(owner)}):
        account, counter = QuotaAccount(replace(default.quota, user=owner), implied=True), fresh()
        named = replace(account, counting=counter) if default.counting else replace(account, counter=counter)
        new.append(named)
    return (replace(table, accounts={**table.accounts, **{each.key: each for each in new}}) if new else table), new


Trees = Mapping[Guid, frozenset[Guid]]
"""By collection: which of it and those above have a quota."""


def held(entry: StoredObject) -> Held | None:
    """Return the share of an entry or an open upload in quotas; None for what counts nothing."""
    if entry.id.startswith(CONTENT_PREFIX):
        return _uploading(entry)
    if type_of(entry) != TYPE_FILE:
        return None
    parents = frozenset([parent for parent, _ in names_of(entry)])
    if not parents:
        return None
    size = entry.value("states", "size")
    return Held(
        Dn(entry.value("entry", "owner")),
        min(int(size), bounds.QUOTA_FILE_BYTES_MAX) if size.isdecimal() else 0,
        parents,
    )


def _uploading(content: StoredObject) -> Held | None:
    size = int(content.value("tally", "bytes", "0"))
    if content.value("content", "state") != OPEN or not size:
        return None
    within = Guid(content.value("content", "within"))
    return Held(Dn(content.value("content", "owner")), size, frozenset((within,)), 0)


def changes_of(changed: Iterable[Changed]) -> list[Change]:
    """Return the changes of a transact that quotas count."""
    found = (Change(entry.id, held(entry), held(later)) for entry, later in changed)
    return [change for change in found if change.before != change.after]


def moves_of(changed: Iterable[Changed]) -> list[tuple[ObjectId, frozenset[Guid], frozenset[Guid]]]:
    """Return the collections that a transact gives other parents, with their parents before and after."""
    out = []
    for entry, later in changed:
        if type_of(entry) == type_of(later) == TYPE_COLLECTION:
            before, now = (frozenset(parent for parent, _ in names_of(each)) for each in (entry, later))
            if before != now:
                out.append((entry.id, before, now))
    return out


def parents_of(changes: Iterable[Change]) -> frozenset[Guid]:
    """Return all collections that names of changed files are in."""
    sides = [side for change in changes for side in (change.before, change.after) if side is not None]
    return frozenset(parent for side in sides for parent in side.parents)


def accounts_of(table: Table, side: Held | None, trees: Trees) -> list[QuotaAccount]:
    """Return the quotas that a file counts for, in order of their keys."""
    if side is None:
        return []
    keys = {_USER + side.owner}
    for parent in side.parents:
        keys |= {_TREE + tree for tree in trees.get(parent, ())}
    found = [table.accounts[key] for key in sorted(keys) if key in table.accounts]
    assert all(account.key in keys for account in found), "the table has each quota under its own key"
    return found


def changed(table: Table, new: Iterable[QuotaAccount] = ()) -> list[Element]:
    """Raise the version of the table, on condition that it is as read, and put `new` into it."""
    counted = replace(add(QUOTAS_OBJECT, "quotas", "number", 1, version(table.version)), change_id=TABLE)
    return [counted, *(put(QUOTAS_OBJECT, "tally", account.key, account.record) for account in new)]


def resting(table: Table, new: Sequence[QuotaAccount] = ()) -> list[Element]:
    """Return the conditions of a transact that counts. `new`: accounts that it adds to the table."""
    elements = [check(QUOTAS_OBJECT, version(table.version), change_id=TABLE)]
    if new:
        elements = changed(table, new)
    if table.trees:
        elements.append(check(TREE_OBJECT, as_read("epoch", "tree", table.epoch), change_id=TABLE))
    return elements


def counted(table: Table, changes: Sequence[Change], trees: Trees) -> list[Element]:
    """Return the additions of changes to the counters, on condition that there is room."""
    assert len({change.file for change in changes}) == len(changes), "a file is as it was once, and once as it will be"
    size, files = dict[str, int](), dict[str, int]()
    for change in changes:
        for side, sign in ((change.before, -1), (change.after, 1)):
            for account in accounts_of(table, side, trees):
                assert side is not None, "what is not there counts for no quota"
                size[account.key] = size.get(account.key, 0) + sign * side.bytes
                files[account.key] = files.get(account.key, 0) + sign * side.files
    assert all(abs(more) <= len(changes) for more in files.values()), "a file counts once for a quota, or not at all"
    elements: list[Element] = []
    for key in sorted(size):
        account = table.accounts[key]
        for prop, added, most in (
            ("bytes", size[key], account.quota.bytes),
            ("files", files[key], account.quota.files),
        ):
            for counter, bound in ((account.counter, most), (account.counting, -1)):
                if added and counter:
                    elements.append(_added(counter, prop, added, bound, OVER + key))
    return elements


def _added(counter: str, prop: str, added: int, most: int, change_id: str) -> Element:
    more = f", and this takes {added} {prop} more"
    most = most if most >= 0 else bounds.FILE_BYTES_MAX  # no counter holds more
    room = (Condition(ConditionType.AT_MOST, "tally", prop, str(most - added), more),) if added > 0 else ()
    return Element(counter_object(counter), ChangeType.ADD, "tally", prop, str(added), room, change_id)


def logged(
    changes: Sequence[Change], table: Table, trees: Trees, records: Mapping[tuple[str, ObjectId], str]
) -> list[Element]:
    """Return log records of files that change while a counter is being counted: what they counted before.

    Args: `records`: their log records, by counter and file; "" where there is none.
    """
    elements = []
    for counter, change in to_log(changes, table, trees):
        if not records[counter, change.file]:
            was = any(a.counting == counter for a in accounts_of(table, change.before, trees))
            value = str(change.before.bytes) if was and change.before is not None else _NONE
            obj = log_object(counter)
            elements.append(put(obj, "named", change.file, value, as_read("named", change.file, "")))
            if change.file.startswith(CONTENT_PREFIX):  # parts that come at once rest on nothing else
                nothing = Condition(ConditionType.AT_MOST, "tally", "bytes", "0")  # unset, or of empty parts
                before = change.before
                elements.append(check(change.file, as_read("tally", "bytes", str(before.bytes)) if before else nothing))
    return elements


def to_log(changes: Sequence[Change], table: Table, trees: Trees) -> list[tuple[str, Change]]:
    """Return the changes to log, each with the counter that is being counted."""
    out = []
    for change in changes:
        sides = [a for side in (change.before, change.after) for a in accounts_of(table, side, trees)]
        out += [(counter, change) for counter in dict.fromkeys(a.counting for a in sides if a.counting)]
    return out


def parse_logged(value: str) -> int | None:
    """Return the bytes that a file counted before, None where it did not count."""
    return int(value) if value.isdecimal() else None


def stays_empty(collection: ObjectId) -> Element:
    """Return the condition that a collection is empty, for one that moves to where other quotas count."""
    sections = ("entries", "uploads")
    nothing = [Condition(ConditionType.EMPTY, section, id=collection) for section in sections]
    return check(collection, *nothing, change_id=BORDER)


def refused(use: QuotaUse, added: str = "") -> CheloniaError:
    """Return the error of a change that does not fit a quota."""
    quota, parts = use.quota, []
    if quota.bytes >= 0:
        parts.append(f"{use.bytes} of {quota.bytes} bytes")
    if quota.files >= 0:
        parts.append(f"{use.files} of {quota.files} files")
    assert parts, "a quota without a limit refuses nobody"
    text = f"the quota of {use.name} would be exceeded: {' and '.join(parts)} are in use{added}"
    return CheloniaError(Kind.QUOTA, subject=use.name, cause=f"{text}; remove some, or ask an administrator for more")


def other_tree(collection: str) -> CheloniaError:
    """Return the error of moving a collection with content between quotas."""
    cause = "other quotas count where it would go: move the files in it, or make it empty first"
    return CheloniaError(Kind.OTHER_TREE, "move", collection, cause)
