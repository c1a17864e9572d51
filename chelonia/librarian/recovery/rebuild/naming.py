"""The names of files that were written since the snapshot, restored from their records.

A version of an object is first written among the versions of its key, and its record has that name. Then it exchanges
names with the holder of the key (`hosting/doors/s3/versions.py`). A rebuild does the same, whichever record comes
first. Invariants:

- A file that is not known to be committed, or comes late, takes no key from an entry.
- Nor does a file whose writer may not replace the holder, by rules for him or for all. Anyone who may add entries can
  put a file among the versions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple

from chelonia.core import bounds
from chelonia.core.cluster.replicas import Location, ReplicaFacts
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn, Guid, ObjectId, blob_object
from chelonia.core.metadata import TYPE_COLLECTION, TYPE_FILE, Needed, StoredObject
from chelonia.core.names import LogicalName, parse_ln
from chelonia.core.ports.ahash import Element
from chelonia.core.ports.files import Over
from chelonia.core.ports.librarian import MakeEntry, MoveEntry
from chelonia.core.rights.policy import Action
from chelonia.core.rights.policy import decide as policy
from chelonia.librarian.context import LibrarianContext
from chelonia.librarian.namespace.names import RULED, Names
from chelonia.librarian.namespace.tree import blobs_of, type_of
from chelonia.librarian.recovery.rebuild.decide import NOTHING, new_file
from chelonia.wire.s3 import facts as s3
from chelonia.wire.s3 import keys, versions

_RIGHTS: Final = (Needed("entry"), Needed("policy"))
_STAYS: Final = (Kind.EXISTS, Kind.NOT_FOUND, Kind.CONFLICT, Kind.NOT_A_COLLECTION, Kind.BAD_NAME, Kind.TOO_LARGE)
"""Errors at which a version keeps the name in its record."""


class StagedVersion(NamedTuple):
    """A version as first written: its bucket, its key, and its order."""

    bucket: LogicalName
    key: str
    order: str


class _KeyPlace(NamedTuple):
    parent: Guid
    name: str
    entry: StoredObject


def staged_version(name: str) -> StagedVersion | None:
    """Return the version that the name in a record means; None for any other name, or a version behind a marker."""
    try:
        ln = parse_ln(name)
    except CheloniaError:
        return None
    if versions.COLLECTION not in ln.parts[1:]:
        return None
    at = ln.parts.index(versions.COLLECTION, 1)
    key, order = versions.named("/".join(ln.parts[at + 1 :])) or ("", "")
    bucket = LogicalName(ln.start, ln.parts[:at])
    return StagedVersion(bucket, key, order) if len(order) == versions.ORDER else None


class Naming:
    """Gives files their names. `attempt`: applies elements, False if they do not apply. `report`: counts and notes."""

    def __init__(
        self,
        context: LibrarianContext,
        names: Names,
        attempt: Callable[[Sequence[Element]], Awaitable[bool]],
        report: Callable[[str, str], None],
    ) -> None:
        self._on = context
        self._names = names
        self._attempt = attempt
        self._report = report

    async def file(self, facts: ReplicaFacts, at: Location, *, surely: bool) -> bool:
        """Make a file since the snapshot, under its name; returns False where another entry has that. `surely`: it was
        committed, and nobody uses the namespace."""
        try:
            parent, name = await self._place(parse_ln(facts.name))
        except CheloniaError as error:
            if error.kind is not Kind.BAD_NAME:
                raise
            return False
        staged = staged_version(facts.name)
        user = await self._user(staged) if staged is not None else {}
        if parent is None:
            return False
        within = keys.collection_of(staged.bucket, staged.key) if staged is not None else parse_ln(facts.name).parent
        parent = StoredObject(parent.id, parent.version, {"defaultPolicy": await self._default(within)})
        if not await self._attempt(new_file(facts, at, parent, name, user)):
            return False
        if staged is not None and surely:
            await self._in_order(staged, facts, Guid(parent.id), name)
        return True

    # --- collections ------------------------------------------------------------------------------------------------

    async def _place(self, ln: LogicalName) -> tuple[StoredObject | None, str]:
        """The collection of a name; missing ones above it are made, for administrators alone."""
        if not ln.parts:
            return None, ""
        [walk] = await self._names.traverse(self._on.call, (ln.parent,), RULED)
        if walk.complete and type_of(walk.last) == TYPE_COLLECTION:
            return walk.last, ln.name
        if not walk.steps or type_of(walk.last) != TYPE_COLLECTION:
            return None, ""
        guid = walk.guid
        for part in walk.rest:
            guid = await self._collection(guid, part, ln)
        return StoredObject(ObjectId(guid), 1), ln.name

    async def _default(self, place: LogicalName) -> Mapping[str, str]:
        """The default policy that counts in a collection: that of the nearest which exists for its own sake, there or
        above."""
        [walk] = await self._names.traverse(self._on.call, (place,), RULED)
        found = walk.last
        if type_of(found) != TYPE_COLLECTION and len(walk.steps) > 1:  # a file has the name of the key's collection
            [found] = await self._names.get(self._on.call, [walk.steps[-2].guid], RULED)
        return (await self._names.giver(self._on.call, found)).sections.get("defaultPolicy", {})

    async def _collection(self, parent: Guid, name: str, ln: LogicalName) -> Guid:
        owner = self._on.settings.root_owner
        made = await self._names.make_entry(self._on.call, MakeEntry(parent, name, TYPE_COLLECTION, owner, {}))
        assert not isinstance(made, StoredObject), "it is told only when asked for"
        text = f"the collection {name!r} above {ln} was made anew: its owner and policy are not known"
        self._report("collections made", text)
        return made

    # --- versions of objects ----------------------------------------------------------------------------------------

    async def _user(self, staged: StagedVersion) -> dict[str, str]:
        """The metadata that state the version, where its bucket keeps versions."""
        [walk] = await self._names.traverse(self._on.call, (staged.bucket,), (Needed("metadata"),))
        versioning = s3.facts_of(walk.last.sections.get("metadata", {})).versioning if walk.complete else ""
        return s3.stored(s3.Facts(version=staged.order)) if versioning == versions.ENABLED else {}

    async def _in_order(self, staged: StagedVersion, facts: ReplicaFacts, parent: Guid, name: str) -> None:
        """Give a version its name: its key, or that of the order in which the next one came."""
        now = await self._newer(parent, name, staged) or await self._has_key(staged)
        order = await self._order(now.entry, staged) if now is not None else ""
        if order and order < staged.order:
            now = _KeyPlace(parent, name[: -versions.ORDER] + order, NOTHING)
        if now is None or type_of(now.entry) not in ("", TYPE_FILE):
            return  # a delete marker came after it, or another door has put something else there
        if not await self._may_replace(facts.owner, now):
            text = f"{facts.name} stays there: whether {facts.owner} may replace what has its key is not known"
            self._report("versions behind their key", text)
            return
        holder = Guid(now.entry.id if now.entry.exists else "")
        over = (Over.EXCHANGE if holder else Over.REFUSE).value
        move = MoveEntry(Guid(facts.guid), parent, name, now.parent, now.name, keep=False, over=over, there=holder)
        try:
            await self._names.move(self._on.call, move)
        except CheloniaError as error:
            if error.kind not in _STAYS:
                raise

    async def _may_replace(self, dn: Dn, now: _KeyPlace) -> bool:
        """Whether a user may take a name from its holder, as the Bartender judges a move."""
        if not now.entry.exists:
            return True
        within = await self._on.records.one(self._on.call, ObjectId(now.parent), _RIGHTS)
        choices = (Action.REMOVE_ENTRY, within), (Action.DELETE, now.entry)
        return any(
            policy(action, dn, (), owner=of.value("entry", "owner"), policy=of.sections.get("policy", {})).allowed
            for action, of in choices
        )

    async def _newer(self, parent: Guid, name: str, staged: StagedVersion) -> _KeyPlace | None:
        """The place of the next newer version of a key, among former holders of it."""
        found, prefix = list[tuple[str, str]](), name[: -versions.ORDER]
        pages = self._on.records.pages(
            self._on.call, ObjectId(parent), "entries", bounds.PAGE_ENTRIES_MAX, after=prefix
        )
        async for items in pages:
            found += [item for item in items if item[0] < name and not item[0].endswith("/")]
            if items[-1][0] >= name:
                break
        for place, guid in reversed(found):
            entry = await self._on.records.one(self._on.call, ObjectId(guid))
            if await self._order(entry, staged) != place[len(prefix) :]:  # else it stays where it was staged
                return _KeyPlace(parent, place, entry)
        return None

    async def _has_key(self, staged: StagedVersion) -> _KeyPlace | None:
        """The place of the key itself, by its own name or apart, and its holder."""
        home, apart = keys.home_of(staged.bucket, staged.key), keys.apart_of(staged.bucket, staged.key)
        home = None if staged.key.endswith("/") else home  # there it would be a collection, and have no bytes
        walks = await self._names.traverse(self._on.call, (home or apart, apart), RULED)
        blocked = type_of(walks[0].last) != (TYPE_FILE if walks[0].complete else TYPE_COLLECTION)
        place = apart if home is None or walks[1].complete or blocked else home
        parent, name = await self._place(place)
        if parent is None:
            return None
        walk = walks[place is apart]
        entry = await self._on.records.one(self._on.call, ObjectId(walk.guid)) if walk.complete else NOTHING
        return _KeyPlace(Guid(parent.id), name, entry)

    async def _order(self, entry: StoredObject, staged: StagedVersion) -> str:
        """The order in which a file was written as a version of the same key, by its record; "" for no version."""
        blobs = await self._on.records.get(self._on.call, [blob_object(blob) for blob in blobs_of(entry)])
        version = staged_version(blobs[0].value("blob", "name")) if blobs else None
        return version.order if version is not None and version.key == staged.key else ""
