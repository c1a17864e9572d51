"""Uploads in parts, for the port `Files`: the rights to open, fill, seal, drop and see one.

An upload belongs to its opener: only he adds parts and seals. Rights to the name are decided when it is opened, and
anew, on the state of that moment, when it is sealed. Before that, nothing of it has a name.
"""

from __future__ import annotations

from collections.abc import Sequence

from chelonia.bartender.bulk import ElementCall
from chelonia.bartender.client_metadata import accepted, merged
from chelonia.bartender.files.attributes import DESCRIBED, setting_triples, user_triples
from chelonia.bartender.files.changing import done
from chelonia.bartender.files.writing import arrived_bytes, guid_of, may_begin, ready_to_write
from chelonia.bartender.ports import Ports
from chelonia.bartender.rights import RIGHTS, FoundEntry, Judge, existing
from chelonia.bartender.transfers import overtaken, unnamed
from chelonia.core import bounds
from chelonia.core.contents.parts import PartPage, PartsUpload, UploadPage, listing_mark
from chelonia.core.contents.uploads import CommitFile, OpenUpload, PutPart, SealUpload
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ANONYMOUS, Ms
from chelonia.core.metadata import TYPE_COLLECTION, TYPE_FILE, from_triples
from chelonia.core.names import LogicalName
from chelonia.core.ports.files import Done, Drop, Open, Part, Seal, UploadParts, Uploads, Write
from chelonia.core.rights.policy import Action
from chelonia.core.values import replace


async def open_upload(ports: Ports, turn: ElementCall, change: Open) -> Done:
    """Open an upload, if the caller may write the name now. Raises: as `place`."""
    if not 1 <= change.wanted <= bounds.REPLICAS_WANTED_MAX:
        cause = f"1 to {bounds.REPLICAS_WANTED_MAX} copies can be asked for, not {change.wanted}"
        raise CheloniaError(Kind.BAD_REQUEST, subject=str(change.place), cause=cause)
    own = from_triples(setting_triples(change.setting))
    given = accepted(user_triples(change.user), TYPE_FILE, "open.metadata")
    found = await may_begin(ports, turn, change, "open")
    within = await _collection(ports, turn, change.within)
    expires = Ms(ports.clock.now_ms() + bounds.UPLOAD_OPEN_MS)
    begin = unnamed(ports, turn, change.place, change.wanted)
    begin = replace(begin, replaces=guid_of(found), sections=merged(given, own), expires_ms=expires)
    order = OpenUpload(begin, within.guid, "/".join(change.place.parts[len(change.within.parts) :]))
    return Done(upload=await ports.librarian.open_upload(turn.service, order))


async def put_part(ports: Ports, turn: ElementCall, change: Part) -> Done:
    """Make an arrived piece of the caller's a part."""
    token, receipts = arrived_bytes(ports, turn, change, change.content, piece=True)
    piece = CommitFile(token.begin, token.begun, receipts)
    part = PutPart(change.upload, change.number, piece, change.checksum, change.etag)
    return Done(etag=await ports.librarian.put_part(turn.service, part))


async def seal(ports: Ports, turn: ElementCall, change: Seal) -> Done:
    """Make parts the content of the file, if the caller still may and his conditions hold."""
    write = Write(change.place, user=change.user or None, parents=change.parents, when=change.when)
    write = replace(write, policy=change.policy, default_of=change.default_of, within=change.within)
    ready, replaced = await ready_to_write(ports, turn, write, unnamed(ports, turn, change.place, 0))
    order = SealUpload(change.upload, ready, change.order, change.least, change.policy, described=True)
    try:
        entry = await ports.librarian.seal_upload(turn.service, order)
    except CheloniaError as error:
        if error.kind is not Kind.NOT_FOUND:  # that is the upload
            error = await overtaken(ports, turn, change.place, error)
        raise error
    return done(entry, made=replaced is None)


async def drop(ports: Ports, turn: ElementCall, change: Drop) -> Done:
    """Drop an upload."""
    await _page(ports, turn, UploadParts(change.place, change.upload, limit=1), Action.REMOVE_ENTRY)
    await ports.librarian.drop_upload(turn.service, change.upload)
    return Done()


async def uploads(ports: Ports, turn: ElementCall, ask: Uploads) -> UploadPage:
    """Return a page of the open uploads of a collection."""
    _check_limit(ask.place, ask.limit)
    found = await _collection(ports, turn, ask.place)
    Judge(turn.user, "uploads").require(Action.READ, found)
    shown, after = list[PartsUpload](), ask.after
    limit = min(ask.limit or bounds.PAGE_ENTRIES_MAX, bounds.PAGE_ENTRIES_MAX)
    while len(shown) <= limit:
        page = await ports.librarian.uploads(turn.service, found.guid, ask.prefix, after, 0)
        shown += await _shown(ports, turn, ask.place, page)
        after = page.after
        if not after:
            break
    # A page counts no hidden ones, and goes on behind none: that mark has its key.
    last = shown[limit - 1] if len(shown) > limit else None
    return UploadPage(tuple(shown[:limit]), listing_mark(last.key, last.upload) if last is not None else "")


async def _shown(ports: Ports, turn: ElementCall, place: LogicalName, page: UploadPage) -> tuple[PartsUpload, ...]:
    """Return the uploads of a page that the caller may know. Raises: TOO_LARGE once the call has read too much."""
    turn.room.weigh(sum([len(each.key) + len(each.upload) for each in page.uploads]))
    others = [each for each in page.uploads if each.owner != turn.user.dn or each.owner == ANONYMOUS]
    closed = await _closed(ports, turn, place, others)
    hidden = {each.upload for each in others if not closed.isdisjoint(_above(each))}
    return tuple([each for each in page.uploads if each.upload not in hidden])


async def _closed(
    ports: Ports, turn: ElementCall, place: LogicalName, others: Sequence[PartsUpload]
) -> set[tuple[str, ...]]:
    """Return the collections above the keys of others' uploads that the caller may not read, by their paths below
    `place`. Raises: TOO_LARGE once the call has read too much."""
    judge, closed = Judge(turn.user, "uploads"), set[tuple[str, ...]]()
    paths = dict.fromkeys([path for each in others for path in _above(each)])
    places = [LogicalName(place.start, (*place.parts, *path)) for path in paths]
    for first in range(0, len(places), bounds.BULK_ELEMENTS_MAX):
        some = places[first : first + bounds.BULK_ELEMENTS_MAX]
        walks = await ports.librarian.traverse(turn.service, tuple(some), RIGHTS)
        turn.room.read([walked.last for walked in walks])
        for ln, walked in zip(some, walks, strict=True):
            if walked.complete and not judge.may(Action.READ, FoundEntry(ln, walked.last)):
                closed.add(ln.parts[len(place.parts) :])
    return closed


def _above(upload: PartsUpload) -> list[tuple[str, ...]]:
    """Return the paths of the collections between an upload's file and the collection that lists it."""
    names = tuple(upload.key.split("/"))
    return [names[:depth] for depth in range(1, len(names))]


async def listed(ports: Ports, turn: ElementCall, ask: UploadParts) -> PartPage:
    """Return a page of the parts of an upload."""
    _check_limit(ask.place, min(ask.limit, ask.after))
    return await _page(ports, turn, ask, Action.READ)


async def _page(ports: Ports, turn: ElementCall, ask: UploadParts, action: Action) -> PartPage:
    """Return parts to the opener of an upload, or a caller with this right to the collection that lists it."""
    page = await ports.librarian.parts(turn.service, ask.upload, ask.after, ask.limit)
    if page.place != ask.place:
        cause = "there is no such upload for this name"
        raise CheloniaError(Kind.NOT_FOUND, subject=ask.upload[:80], cause=cause)
    scopes = turn.user.scopes
    if page.owner == turn.user.dn:
        if scopes and not any(scope.covers(each, ask.place) for scope in scopes for each in (action, Action.ADD_ENTRY)):
            cause = f"the token allows neither {action.value} nor addEntry there"
            raise CheloniaError(Kind.DENIED, subject=str(ask.place), cause=cause)
    else:
        within = await _collection(ports, turn, LogicalName(page.within, ()))
        Judge(turn.user, "uploads").require(action, within)
    return page


async def _collection(ports: Ports, turn: ElementCall, place: LogicalName) -> FoundEntry:
    (walked,) = await ports.librarian.traverse(turn.service, (place,), DESCRIBED)
    found = existing(place, walked)
    if found.type != TYPE_COLLECTION:
        raise CheloniaError(Kind.NOT_A_COLLECTION, subject=str(place), cause=f"it is a {found.type}")
    return found


def _check_limit(place: LogicalName, limit: int) -> None:
    if limit < 0:
        raise CheloniaError(Kind.BAD_REQUEST, subject=str(place), cause="limits and numbers of parts are 0 or more")
