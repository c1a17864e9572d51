"""The namespace half of the Librarian: walks and views for readers, one transact for every change.

`tree`, `uploads.decide`, `blobs` and `view` decide; this shell reads what they need and applies the result. `service`
has checked the caller's role before anything here runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial

from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.contents.attributes import bytes_of, is_implied
from chelonia.core.contents.below import Below, BelowPage, Leaf
from chelonia.core.contents.parts import parse_mark, parse_upload
from chelonia.core.contents.summaries import SUMMARISED
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import (
    ROOT,
    TRASH_OBJECT,
    TREE_OBJECT,
    BlobId,
    ContentId,
    Guid,
    Ms,
    ObjectId,
    RequestKey,
    blob_object,
    content_object,
    is_guid,
    parse_guid,
)
from chelonia.core.metadata import TYPE_COLLECTION, TYPE_FILE, TYPE_TRASHED, Filter, Needed, StoredObject, from_triples
from chelonia.core.names import LogicalName, check_name, entry_name
from chelonia.core.ports.ahash import Element, Linked, Walk, WalkOutcome
from chelonia.core.ports.files import Over
from chelonia.core.ports.librarian import (
    ChangeEntry,
    Delete,
    MakeEntry,
    ModifyEntry,
    ModifyOutcome,
    MoveEntry,
    NewOutcome,
    NewRequest,
    RemoveOutcome,
    SetWanted,
    TrashPage,
    Traversal,
    TraversedStep,
    Undelete,
    Unlink,
    Unmake,
)
from chelonia.core.rights.policy import DEFAULT_POLICY_SECTION
from chelonia.core.values import replace
from chelonia.librarian.metadata.blobs import A_CONTENT, OWNERS, want_copies
from chelonia.librarian.metadata.contents import OPEN, content_of
from chelonia.librarian.metadata.elements import check, drop, expectations, is_, put, unset, version
from chelonia.librarian.metadata.records import Items, PlannedTransact, Records
from chelonia.librarian.namespace import summaries, trash, tree, view
from chelonia.librarian.namespace.parts.decide import Opened, give_up
from chelonia.librarian.namespace.quotas.act import Quotas, ancestors
from chelonia.librarian.namespace.tree import MoveView, Removable, Slot
from chelonia.librarian.world import World

SWEEP_PAGE = 500
"""Expired reservations removed in one transact."""
RULED: Filter = (*tree.ENTRY, Needed("parents"), Needed("node"), Needed(DEFAULT_POLICY_SECTION))
"""Sections that say which default policy counts in a collection."""
_UNMADE: Filter = (*tree.ENTRY, Needed("parents"))
"""Sections of a collection that removing it reads; not its names, which may be many."""
_TRASHED: Filter = (*tree.ENTRY, Needed("states"), Needed("trashed"))
"""Sections that describe an entry in the trash; not what users wrote, which may be much."""
_DESCRIBED: Filter = (*SUMMARISED, Needed("node"), Needed("mountpoint"), Needed("tally", "changed"))
"""Sections that the attributes of any entry are made of."""


class Names:
    """Reads and changes the namespace."""

    def __init__(self, records: Records, world: World, present: view.Present) -> None:
        self._records = records
        self._world = world
        self._present = present
        self.quotas = Quotas(records, world)

    # --- reading ----------------------------------------------------------------------------------------------------

    async def giver(self, call: Call, collection: StoredObject) -> StoredObject:
        """Return the collection whose default policy counts in one that was read with `RULED`. That is the nearest, it
        or one above, that exists for its own sake."""
        while is_implied(collection) and (above := tree.names_of(collection)):
            collection = await self._records.one(call, ObjectId(above[0][0]), RULED)
        return collection

    async def get(self, call: Call, guids: Sequence[Guid], needed: Filter = ()) -> tuple[StoredObject, ...]:
        """Return entries as readers see them, in order of `guids`."""
        entries = await self._records.get(call, [entry_id(guid) for guid in guids], view.stored_filter(needed))
        return await self._shown(call, entries, needed, {})

    async def traverse(self, call: Call, names: Sequence[LogicalName], needed: Filter = ()) -> tuple[Traversal, ...]:
        """Follow Logical Names as far as they lead; `needed` filters the entry where each ends."""
        ends = await self._ends(call, names, needed)
        linked = {blob.id: blob for end in ends for blob in end.linked}
        last = await self._shown(call, [end.last for end in ends], needed, linked)
        out = []
        for name, end, entry in zip(names, ends, last, strict=True):
            if not end.taken and not entry.exists:
                out.append(Traversal((), False, entry, name.parts))
                continue
            steps = [TraversedStep("" if name.start == ROOT else name.start, name.start)]
            steps += [TraversedStep(entry_name(step.property), Guid(step.object)) for step in end.taken]
            rest = name.parts[len(end.taken) :]
            out.append(Traversal(tuple(steps), not rest, entry, rest))
        return tuple(out)

    async def _ends(self, call: Call, names: Sequence[LogicalName], needed: Filter) -> list[WalkOutcome]:
        """Ends of walks through collections; one that stops short is repeated through entries of any kind."""
        linked, needed = view.BLOBS_LINKED if view.asks_locations(needed) else None, view.stored_filter(needed)
        ends = list(await self._records.walk(call, tuple(_walk(name, ("/",), linked) for name in names), needed))
        short = [
            n for n, (name, end) in enumerate(zip(names, ends, strict=True)) if len(end.taken) < len(name.parts) - 1
        ]
        again = await self._records.walk(call, tuple(_walk(names[n], ("/", ""), linked) for n in short), needed)
        for n, end in zip(short, again, strict=True):
            ends[n] = end
        return ends

    async def below(self, call: Call, ask: Below) -> BelowPage:
        """Return a page of what is below a collection, in byte order of path."""
        query = replace(ask, start=entry_id(Guid(ask.start)), needed=view.stored_filter(ask.needed))
        page, top = await asyncio.gather(
            self._records.below(call, query), self._records.one(call, query.start, tree.ENTRY)
        )
        if not tree.visible(top):
            raise CheloniaError(Kind.NOT_FOUND, "below", ask.start, "no such collection")
        crossed = await self._leaves(call, page.crossed, ask.needed)
        return BelowPage(await self._leaves(call, page.leaves, ask.needed), crossed, page.after)

    async def _leaves(self, call: Call, leaves: Sequence[Leaf], needed: Filter) -> tuple[Leaf, ...]:
        entries = [leaf.object for leaf in leaves if leaf.object is not None]
        shown = iter(await self._shown(call, entries, needed, {}))
        return tuple([leaf if leaf.object is None else Leaf(leaf.path, next(shown)) for leaf in leaves])

    async def _shown(
        self, call: Call, entries: Sequence[StoredObject], needed: Filter, linked: Mapping[ObjectId, StoredObject]
    ) -> tuple[StoredObject, ...]:
        """Views of entries; reads their blobs, but `linked` ones, in one call and only for a filter with locations."""
        blobs = dict(linked)
        named: dict[ObjectId, tuple[BlobId, ...]] = {}
        if view.asks_locations(needed):
            files = [entry for entry in entries if tree.type_of(entry) == TYPE_FILE]
            named = {file.id: await self._blobs_shown(call, file) for file in files}
            ids = [blob_object(blob) for some in named.values() for blob in some]
            more = [blob for blob in ids if blob not in blobs]
            found = await self._records.get(call, more, view.BLOBS_LINKED.needed)
            blobs |= dict(zip(more, found, strict=True))
        done, requested, present = dict[int, StoredObject](), view.requested(needed), cache(self._present)
        for entry in entries:
            if id(entry) not in done:  # several walks may end at one entry
                own = [blobs[blob] for blob in map(blob_object, named.get(entry.id, ()))]
                done[id(entry)] = view.shown(entry, requested, view.weakest_locations(own, present))
        return tuple([done[id(entry)] for entry in entries])

    async def _blobs_shown(self, call: Call, file: StoredObject) -> tuple[BlobId, ...]:
        """The blobs whose locations a file shows; of very many the first."""
        content = content_of(file)
        if not content:
            return tree.blobs_of(file)
        page = await self._records.scan(call, content_object(content), "named", "", bounds.BLOBS_SHOWN)
        return tuple(BlobId(blob) for blob, _ in page.items)

    # --- making -----------------------------------------------------------------------------------------------------

    async def make_entry(self, call: Call, request: MakeEntry) -> Guid | StoredObject:
        """Make an entry and its name."""
        guid = Guid(self._world.ids.uuid()) if request.parent else ROOT

        async def build(first: bool) -> PlannedTransact:  # the caller has just read the collection
            slot = await self.slot(call, request.parent, request.name, presumed=first) if request.parent else None
            if slot is None:
                await self._absent(call, ROOT)
            elements = tree.make_entry(request, guid, slot, self._now())
            born = [] if request.parent else [summaries.none_missing()]
            return await self.draft(call, [*elements, *born], guid, fresh(guid))

        outcome, left = await self._records.carry_out(call, build)
        return left[0] if request.described and left else Guid(outcome.memo)

    async def new(self, call: Call, request: NewRequest) -> NewOutcome:
        """Make an entry object without a name (`new` of the original, in one transact)."""
        sections = from_triples(request.metadata)
        entry = sections.pop("entry", {})
        if not entry.get("type"):
            return NewOutcome(request.request_id, "", "failed: no type given")
        guid = Guid(entry.get("GUID", "") or self._world.ids.uuid())
        wanted = MakeEntry(Guid(""), "", entry["type"], self._world.owner(entry.get("owner", "")), sections)

        async def build() -> PlannedTransact:
            await self._absent(call, guid)
            return PlannedTransact(tree.make_entry(wanted, guid, None, self._world.clock.now_ms()), memo=guid)

        try:
            made = (await self._records.apply(call, build)).memo
        except CheloniaError as error:
            if error.kind is Kind.EXISTS:
                return NewOutcome(request.request_id, "", "failed: entry exists")
            return NewOutcome(request.request_id, "", failed(error))
        return NewOutcome(request.request_id, made, "success")

    async def _absent(self, call: Call, guid: Guid) -> None:
        if (await self._records.one(call, entry_id(guid), tree.ENTRY)).exists:
            raise CheloniaError(Kind.EXISTS, subject=guid, cause="an entry with this GUID exists")

    # --- removing ---------------------------------------------------------------------------------------------------

    async def unlink(self, call: Call, request: Unlink) -> None:
        """Drop one name; the last one takes the entry with it."""

        async def build(first: bool) -> PlannedTransact:
            child = await self._records.one(call, entry_id(request.child))
            removable = await self._removable(call, child, ((request.parent, request.name),), presumed=first)
            draft = await self.draft(
                call, tree.unlink(request, removable, self._now(), self._keep_ms), request.child, child
            )
            if tree.type_of(child) == TYPE_COLLECTION and len(tree.names_of(child)) <= 1:
                await self._emptied(call, child, swept=not first)
            return draft

        await self._records.carry_out(call, build)

    async def unlink_all(self, call: Call, requests: Sequence[Unlink | None]) -> tuple[int, ...]:
        """Drop as many names as fit into one transact, each the only one of an entry that is no collection."""
        numbered = {number: request for number, request in enumerate(requests) if request is not None}
        children = await self._records.get(call, [entry_id(request.child) for request in numbered.values()])
        removables = [await self._removable(call, child, presumed=True) for child in children]
        parts = tree.unlink_together(numbered, removables, self._now(), self._keep_ms)
        outcome = None
        if parts:
            draft = await self._joined(call, [*parts.values()], " ".join(map(str, parts)))
            outcome = await self._records.attempt(call, replace(draft, elements=tree.checked_once(draft.elements)))
        if call.request_key and not (outcome and outcome.applied):
            # Each follows in a call of its own; a retry must not find that they can go together after all.
            outcome = await self._records.attempt(call, PlannedTransact(()))
        return tuple(map(int, outcome.memo.split())) if outcome is not None and outcome.applied else ()

    async def delete(self, call: Call, request: Delete) -> None:
        """Remove an entry that is no collection, with all names and replicas."""

        async def build(first: bool) -> PlannedTransact:
            entry = await self._records.one(call, entry_id(request.guid))
            tree.check_removable(entry)
            removable = await self._removable(call, entry, presumed=first)
            elements = expectations(request.expect) + tree.remove_entry(
                removable, "deleted", self._now(), self._keep_ms
            )
            return await self.draft(call, elements, request.guid, entry)

        await self._records.carry_out(call, build)

    async def undelete(self, call: Call, request: Undelete) -> None:
        """Bring an entry back from the trash."""

        async def build() -> PlannedTransact:
            trashed = await self._records.one(call, entry_id(request.guid))
            slot = await self.slot(call, request.parent, request.name)
            return await self.draft(call, tree.undelete(request, trashed, slot, self._now()), request.guid, trashed)

        await self._records.apply(call, build)

    async def trash(self, call: Call, under: str, after: str, limit: int) -> TrashPage:
        """Return a page of the trash: all of it, one former collection or former name, or one file."""
        if is_guid(under):
            file = await self._records.one(call, entry_id(Guid(under)))
            names = tree.names_of(file)[:1] if tree.type_of(file) == TYPE_TRASHED else ()
            return TrashPage(tuple(trash.described(file, parent, name) for parent, name in names), "")
        limit = min(limit if limit > 0 else bounds.PAGE_ENTRIES_MAX, bounds.PAGE_ENTRIES_MAX)
        page = await self._records.scan(call, TRASH_OBJECT, "formerly", max(after, under), limit)
        keys = [key for key, _ in page.items if key.startswith(under)]
        former = [trash.parse_former(key) for key in keys]
        files = await self._records.get(call, [entry_id(guid) for _, _, guid in former], _TRASHED)
        pairs = zip(former, files, strict=True)
        found = [trash.described(file, p, n) for (p, n, _), file in pairs if tree.type_of(file) == TYPE_TRASHED]
        return TrashPage(tuple(found), keys[-1] if page.more and len(keys) == len(page.items) else "")

    async def unmake(self, call: Call, request: Unmake) -> None:
        """Remove an empty collection and its names."""

        async def build(first: bool) -> PlannedTransact:
            entry = await self._records.one(call, entry_id(request.guid), _UNMADE)
            tree.check_unmakable(entry)
            await self._emptied(call, entry, swept=not first, spares=request.spares)
            removable = await self._removable(call, entry, presumed=first)
            elements = expectations(request.expect) + tree.remove_entry(removable, "unmade", self._now(), self._keep_ms)
            elements += await self.quotas.spared(call, request.guid) if request.spares else []
            return await self.draft(call, elements, request.guid)

        await self._records.carry_out(call, build)

    async def remove(self, call: Call, request_id: str, guid: Guid) -> RemoveOutcome:
        """Remove an entry (`remove` of the original, with all its names and replicas)."""
        try:
            entry = await self._records.one(call, entry_id(guid), tree.ENTRY)
            if tree.type_of(entry) == TYPE_COLLECTION:
                await self.unmake(call, Unmake(guid))
            else:
                await self.delete(call, Delete(guid))
        except CheloniaError as error:
            return RemoveOutcome(request_id, failed(error))
        return RemoveOutcome(request_id, "removed")

    async def _emptied(self, call: Call, collection: StoredObject, *, swept: bool = True, spares: bool = False) -> None:
        """Sweep expired reservations and uploads out of a collection whose removal is decided. Raises: NOT_EMPTY when
        anything else is in it. Not `swept`: presume there are none. `spares`: uploads stay."""
        inside = await self._records.scan(call, collection.id, "entries", "", 1)
        if inside.items:
            raise CheloniaError(Kind.NOT_EMPTY, "unmake", collection.id, "the collection is not empty")
        if not swept:
            return
        if spares and (await self._records.scan(call, collection.id, "uploads", "", 1)).items:
            raise CheloniaError(Kind.NOT_EMPTY, "unmake", collection.id, "an upload in parts to it is not complete")
        pending = await self._records.scan(call, collection.id, "pending", "", SWEEP_PAGE)
        elements = tree.sweep_reservations(collection.id, pending.items, self._now())
        if elements:
            await self._records.attempt(self._world.step(call), PlannedTransact(elements))
        await self._without_uploads(call, collection)

    async def _without_uploads(self, call: Call, collection: StoredObject) -> None:
        """Give up the uploads in parts that a collection lists, for it goes."""
        while (listed := await self._records.scan(call, collection.id, "uploads", "", SWEEP_PAGE // 5)).items:
            ids = [content_object(parse_upload(parse_mark(mark)[1])[1]) for mark, _ in listed.items]
            for content in ids:
                await self._records.apply(self._world.step(call), partial(self._give_up_upload, call, content))
            dangling = [drop(collection.id, "uploads", mark) for mark, _ in listed.items]
            await self._records.attempt(self._world.step(call), PlannedTransact(dangling))

    async def _give_up_upload(self, call: Call, content: ObjectId) -> PlannedTransact:
        header = await self._records.one(call, content, (Needed("content"), Needed("tally")))
        if header.value("content", "state") != OPEN:
            return PlannedTransact(())
        return await self.draft(call, give_up(Opened(header), self._now()), "", header)

    async def _removable(
        self, call: Call, entry: StoredObject, extra: Iterable[tuple[Guid, str]] = (), *, presumed: bool = False
    ) -> Removable:
        """Read what removing an entry touches: its parents, and its blobs where the trash does not keep them.
        `presumed`: trust its own record of its names; the transact finds them otherwise."""
        blobs = await self.blobs(call, entry) if self._keep_ms <= 0 else ()
        names = dict.fromkeys((*tree.names_of(entry), *extra))
        if presumed and len(names) == len(tree.names_of(entry)):
            return Removable(entry, tree.leading_to(entry), blobs)
        ids = list(dict.fromkeys(entry_id(parent) for parent, _ in names))
        parents = await self._records.get(call, ids, tree.slot_filter(dict.fromkeys(name for _, name in names)))
        return Removable(entry, {Guid(parent.id): parent for parent in parents}, blobs)

    # --- moving and changing ----------------------------------------------------------------------------------------

    async def move(self, call: Call, request: MoveEntry) -> StoredObject | None:
        """Rename, move or hard-link an entry, or exchange two names."""

        async def build(first: bool) -> PlannedTransact:
            view = await self._move_view(call, request, presumed=first)
            changed = (view.child, view.holder.entry) if view.holder is not None else (view.child,)
            if request.over == Over.EXCHANGE.value and view.holder is not None:
                elements = tree.exchange(request, view)
            else:
                elements = tree.move(request, view, self._now(), self._keep_ms)
                if view.holder is not None and tree.type_of(view.holder.entry) == TYPE_COLLECTION:
                    await self._emptied(call, view.holder.entry, swept=not first)
            return await self.draft(call, self._resting(request, elements, view.child), request.child, *changed)

        _, left = await self._records.carry_out(call, build)
        return left[0] if request.described and left else None

    def _resting(self, request: ChangeEntry | MoveEntry, elements: list[Element], entry: StoredObject) -> list[Element]:
        """Have the answer describe the state that the change rests on."""
        return [*elements, check(entry.id, version(entry.version))] if request.described else elements

    async def _move_view(self, call: Call, request: MoveEntry, *, presumed: bool) -> MoveView:
        epoch, child = await self._records.get(
            call, (TREE_OBJECT, entry_id(request.child)), (Needed("epoch"), *_DESCRIBED)
        )
        above: frozenset[Guid] = frozenset()
        above_source: frozenset[Guid] = frozenset()
        if tree.type_of(child) == TYPE_COLLECTION:
            above = await ancestors(self._records, call, request.target_parent)
        if request.over == Over.EXCHANGE.value:
            above_source = await ancestors(self._records, call, request.source_parent)
        source, slot = await self._both_names(call, request, child, presumed=presumed and not request.there)
        return MoveView(
            child=child,
            source=source,
            target=slot,
            epoch=epoch.value("epoch", "tree"),
            above=above,
            holder=await self._in_the_way(call, request, slot),
            above_source=above_source,
        )

    async def _both_names(
        self, call: Call, request: MoveEntry, child: StoredObject, *, presumed: bool
    ) -> tuple[Slot, Slot]:
        """The names of a move; `presumed`: as the caller saw them, until the transact finds them otherwise."""
        check_name(request.target_name)
        if presumed and (request.source_parent, request.source_name) in tree.names_of(child):
            free = await self.slot(call, request.target_parent, request.target_name, presumed=True)
            return Slot(tree.leading_to(child)[request.source_parent], request.source_name), free
        names = tree.slot_filter(dict.fromkeys((request.source_name, request.target_name)))
        ids = (entry_id(request.source_parent), entry_id(request.target_parent))
        source, target = await self._records.get(call, ids, names)
        slot = await self._with_pending(call, Slot(target, request.target_name))
        return Slot(source, request.source_name), slot

    async def _in_the_way(self, call: Call, request: MoveEntry, target: Slot) -> Removable | None:
        """The entry whose name a move may take. Raises: CONFLICT when it is another than the caller saw."""
        if request.over == Over.REFUSE.value:
            return None
        if request.there == request.child:
            raise CheloniaError(Kind.INVALID_TARGET, "move", request.target_name, "both are names of one entry")
        if target.child != request.there:
            raise CheloniaError(Kind.CONFLICT, "move", request.target_name, "another entry has the name now; try again")
        if not target.child:
            return None
        entry = await self._records.one(call, entry_id(target.child))
        return await self._removable(call, entry, ((request.target_parent, request.target_name),))

    async def change_entry(self, call: Call, request: ChangeEntry) -> StoredObject | None:
        """Change several properties of one entry at once."""

        async def build(_: bool) -> PlannedTransact:
            entry = await self._records.one(call, entry_id(request.guid), _DESCRIBED)
            elements = tree.change_entry(request, entry, self._now())
            return await self.draft(call, self._resting(request, elements, entry), request.guid, entry)

        _, left = await self._records.carry_out(call, build)
        return left[0] if request.described and left else None

    async def set_wanted(self, call: Call, request: SetWanted) -> ContentId:
        """Change how many replicas a file and its blobs want; of a content as many blobs as fit into one transact.
        Returns: the content that has more blobs, all still to be changed; "" for none."""
        more = ContentId("")

        async def build() -> PlannedTransact:
            nonlocal more
            file = await self._records.one(call, entry_id(request.guid), SUMMARISED)
            elements, content = tree.set_wanted(request, file, await self.blobs(call, file)), content_of(file)
            if content:
                page = await self._records.scan(call, content_object(content), "named", "", bounds.PAGE_ENTRIES_MAX)
                elements += await self.wanting(call, content, page.items, request.wanted)
                more = content if page.more else ContentId("")
            return await self.draft(call, elements, request.guid, file)

        await self._records.apply(call, build)
        return more

    async def wanting(self, call: Call, content: ContentId, named: Items, wanted: int) -> list[Element]:
        """Return the change that has blobs of a content want as many copies."""
        ids = [blob_object(BlobId(blob)) for blob, _ in named]
        blobs = await self._records.get(call, ids, (Needed("blob"), Needed(OWNERS)))
        return [each for blob in blobs for each in want_copies(blob, content, A_CONTENT, wanted)]

    async def modify(self, call: Call, request: ModifyEntry) -> ModifyOutcome:
        """Change one property of one entry. Raises: all errors but those of the request itself."""
        try:
            success = await self._modify(call, request)
        except CheloniaError as error:
            if error.kind not in (Kind.BAD_REQUEST, Kind.BAD_NAME, Kind.NOT_FOUND, Kind.NOT_A_FILE):
                raise
            success = failed(error)
        return ModifyOutcome(request.change_id, success)

    async def _modify(self, call: Call, request: ModifyEntry) -> str:
        tree.check_modifiable(request.section, request.property)
        if (request.section, request.property) == ("states", "neededReplicas"):
            return await self._modify_wanted(call, request)
        obj, word, _, value = entry_id(request.guid), *request.change_type.partition("=")
        exists = [is_("entry", "GUID", request.guid)]
        match word:
            case "set" | "unset":
                pass
            case "add":
                exists.append(unset(request.section, request.property))
            case "setifvalue":
                exists.append(is_(request.section, request.property, value))
            case _:
                cause = "a change is set, unset, add or setifvalue=<value>"
                raise CheloniaError(Kind.BAD_REQUEST, "modifyMetadata", request.change_type[:80], cause)
        if word == "unset":
            change, done = drop(obj, request.section, request.property, *exists), "unset"
        else:
            change, done = put(obj, request.section, request.property, request.value, *exists), "set"
        elements = [*expectations(request.expect), change]

        async def build() -> PlannedTransact:
            needed = Needed("tally", "changed"), Needed(request.section, request.property)
            entry = await self._records.one(call, obj, (*SUMMARISED, *needed))
            if not tree.visible(entry):
                raise CheloniaError(Kind.NOT_FOUND, "modifyMetadata", request.guid, "no such entry")
            now = entry.sections.get(request.section, {}).get(request.property)  # "" is a value, too
            if (word == "add" and now is not None) or (word == "setifvalue" and now != value):
                return PlannedTransact((), memo="condition failed")
            if (done, request.section, request.property) == ("set", "timestamps", "modified"):
                return await self.draft(call, [*elements, *tree.time_set(entry)], done, entry)
            return await self.draft(call, elements, done, entry)

        return (await self._records.apply(call, build)).memo

    async def _modify_wanted(self, call: Call, request: ModifyEntry) -> str:
        """The wanted count stands on the file and on its blobs: setting it is `set_wanted`."""
        if request.change_type != "set" or not request.value.isdecimal():
            cause = "neededReplicas can only be set, to a number"
            raise CheloniaError(Kind.BAD_REQUEST, "modifyMetadata", request.value[:80], cause)
        await self.set_wanted(call, SetWanted(request.guid, int(request.value), request.expect))
        return "set"

    # --- reading for several operations -------------------------------------------------------------------------------

    def presumed(self, parent: Guid, name: str) -> Slot:
        """Return a name inside a collection as free, until the transact finds it otherwise. Raises: BAD_NAME."""
        return tree.free_slot(Guid(entry_id(parent)), check_name(name))

    async def slot(self, call: Call, parent: Guid, name: str, *, presumed: bool = False) -> Slot:
        """Read a name inside a collection, and the entry that reserves it, unless it is `presumed` to be free. Raises:
        BAD_NAME."""
        if presumed:
            return self.presumed(parent, name)
        check_name(name)
        found = await self._records.one(call, entry_id(parent), tree.slot_filter((name,)))
        return await self._with_pending(call, Slot(found, name))

    async def _with_pending(self, call: Call, slot: Slot) -> Slot:
        guid = slot.reservation.partition(" ")[0]
        if not guid:
            return slot
        return Slot(slot.parent, slot.name, await self._records.one(call, entry_id(Guid(guid)), tree.ENTRY))

    async def blobs(self, call: Call, file: StoredObject) -> tuple[StoredObject, ...]:
        """Return the blob objects of a file, in order."""
        return await self._records.get(call, [blob_object(blob) for blob in tree.blobs_of(file)])

    async def draft(
        self, call: Call, elements: Sequence[Element], memo: str, *changed: StoredObject
    ) -> PlannedTransact:
        """Return a transact with its consequences for collections, summaries and quotas; `changed`: the entries that it
        changes, each read with `SUMMARISED`."""
        return await self._joined(call, ((elements, changed),), memo)

    async def _joined(self, call: Call, parts: Sequence[tree.JointPart], memo: str) -> PlannedTransact:
        """Decisions about different entries as one transact, each part with the entries that it changes."""
        changed = [summaries.changes(*part) for part in parts]
        elements = [e for (own, _), some in zip(parts, changed, strict=True) for e in summaries.kept(own, some)]
        elements += summaries.stamps(elements, f"{self._now()} {self._world.ids.uuid()[:8]}")
        changes = [change for some in changed for change in some]
        counted = await self.quotas.counted(call, changes)
        left = tuple(StoredObject(later.id, read.version + 1, later.sections) for read, later in changes)
        return PlannedTransact([*elements, *counted], memo, unmet=self.quotas.unmet, left=left)

    @property
    def _keep_ms(self) -> int:
        return self._world.settings.trash_keep_ms

    def _now(self) -> Ms:
        return self._world.clock.now_ms()


def entry_id(guid: Guid) -> ObjectId:
    """Return the object of an entry. Raises: BAD_NAME for what is no GUID: nobody can name a system object."""
    return ObjectId(parse_guid(guid))


def noted(draft: PlannedTransact) -> PlannedTransact:
    """Return a transact that gives its first entry new bytes, with the file's GUID and their etag as its memo."""
    file = draft.left[0]
    return replace(draft, memo=f"{file.id} {bytes_of(file)}")


def noted_guid(memo: str) -> Guid:
    """Return the GUID in a memo."""
    return Guid(memo.partition(" ")[0])


def fresh(guid: Guid) -> StoredObject:
    """Return an entry before it is made."""
    return StoredObject(entry_id(guid), 0)


def failed(error: CheloniaError) -> str:
    """Return an error in the form of the original's operations."""
    return f"failed: {error.cause or error.kind.value}"


def numbered(call: Call, index: int, total: int) -> Call:
    """Return the call of one element of a bulk request: its key gets the element's index."""
    if total == 1 or not call.request_key:
        return call
    return call.keyed(RequestKey(f"{call.request_key}/{index}"))


def _walk(name: LogicalName, on: tuple[str, ...], linked: Linked | None) -> Walk:
    """A walk along `name`: through keys that end as `on` says, to an entry of any kind."""
    kinds = [on] * (len(name.parts) - 1) + [("/", "")]
    steps = tuple(tuple(part + end for end in ends) for part, ends in zip(name.parts, kinds, strict=False))
    return Walk(entry_id(name.start), steps, linked=linked)
