"""Changes of the port `Files`: each is judged on one walk and handed to the Librarian as one transact.

The transact is conditioned on the versions of the judged entries and of those of a `When`. If one has changed, `bulk`
judges the change anew. No change can stay half done. Implied parents of a refused one are removed again, unless this
process ends just then.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from itertools import takewhile

from chelonia.bartender.bulk import ElementCall, Outcomes, led
from chelonia.bartender.client_metadata import (
    accepted,
    check_count,
    check_text,
    check_value,
    check_volume,
    merged,
)
from chelonia.bartender.files import locking
from chelonia.bartender.files.attributes import DESCRIBED, setting_triples, user_triples
from chelonia.bartender.files.summarised import public
from chelonia.bartender.names import EntryRemoval, check_url, giving, inherited, kept, may_link, parent_of, together
from chelonia.bartender.ports import Ports
from chelonia.bartender.rights import FoundEntry, Judge, existing, is_visible, parent_of_new, versions
from chelonia.core import bounds
from chelonia.core.contents.attributes import attributes_of, is_implied
from chelonia.core.contents.uploads import Expect
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn, Guid, RequestKey
from chelonia.core.metadata import (
    TYPE_COLLECTION,
    TYPE_FILE,
    TYPE_MOUNTPOINT,
    TYPE_SPECIAL,
    TYPE_SYMLINK,
    Filter,
    Needed,
    Sections,
    StoredObject,
    Triple,
    from_triples,
)
from chelonia.core.names import LogicalName
from chelonia.core.ports.files import ANY, LEAVE, Done, Make, Move, Over, Remove, Removing, Set, When
from chelonia.core.ports.librarian import ChangeEntry, Delete, MakeEntry, Traversal, Unlink, Unmake
from chelonia.core.ports.librarian import MoveEntry as MoveOrder
from chelonia.core.rights.policy import DEFAULT_POLICY_SECTION, Action
from chelonia.core.values import replace

WRITTEN: Filter = (*DESCRIBED, Needed("metadata"))
"""Sections of an entry that attributes, rights, and the bounds of users' metadata need."""

_KEYS = (Removing.KEY, Removing.OBJECT)
"""Removals after which empty implied collections go, too."""


async def make(ports: Ports, turn: ElementCall, change: Make) -> Done:
    """Make an entry without bytes."""
    own = _own_sections(change)
    given = accepted(user_triples(change.user), change.type, "make.metadata")
    walked = await walk(ports, turn, change.place, parents=change.parents, within=change.within)
    found = seen(change.place, walked)
    judge = Judge(turn.user, "make")
    required(judge, change.when, change.place, found)
    parent = parent_of_new(change.place, walked)
    expect = judge.require(Action.ADD_ENTRY, parent)
    expect += await locking.unlocked(ports, turn, change.when, change.place, walked, names=True)
    policies, rests = inherited(await giving(ports, turn, walked, of=change.default_of), change.type)
    sections, expect = merged(policies, given, own), tuple(dict.fromkeys((*expect, *rests)))
    entry = MakeEntry(parent.guid, change.place.name, change.type, turn.user.dn, sections, expect, described=True)
    return done(await ports.librarian.make_entry(turn.service, entry), made=True)


async def set_attributes(ports: Ports, turn: ElementCall, change: Set) -> Done:
    """Change attributes, user metadata and rights of one entry, together."""
    (walked,) = await led(ports, turn, change.place, needed=WRITTEN)
    found = existing(change.place, walked)
    judge = Judge(turn.user, "set")
    required(judge, change.when, change.place, found)
    put, drop = _changes(change)
    expect: Expect = pinned(change.when, found)
    if change.setting != LEAVE or change.user or not (change.policy or change.locks):
        expect += judge.require(Action.MODIFY_METADATA, found)
    if change.policy:
        expect += judge.require(Action.MODIFY_POLICY, found)
    lasts = change.setting != LEAVE or bool(change.user or change.policy)  # a lock ends
    if lasts:
        expect += await locking.unlocked(ports, turn, change.when, change.place, walked, names=False)
    if change.locks:
        taken, ended, rests = await locking.changed(ports, turn, change, found, walked)
        put, drop, expect = (*put, *taken), (*drop, *ended), (*expect, *rests)
    after = merged(found.object.sections, from_triples(put))
    check_volume(after)
    check_count({t.section: after[t.section] for t in put if t.property not in found.section(t.section)})
    if not (put or drop):
        return Done()
    if lasts and is_implied(found.object):  # now it exists for its own sake
        default, gone, rests = await kept(ports, turn, walked)
        put, drop, expect = (*put, *default), (*drop, *gone), (*expect, *rests)
    order = ChangeEntry(found.guid, put, drop, tuple(dict.fromkeys(expect)), described=True)
    return readable(judge, found, done(await ports.librarian.change_entry(turn.service, order)))


async def move(ports: Ports, turn: ElementCall, change: Move) -> Done:
    """Rename, move, link, replace or exchange."""
    source, target = change.source, change.target
    if not source.parts or not target.parts:
        cause = "only an entry with a name can be moved, to a name inside a collection"
        raise CheloniaError(Kind.INVALID_TARGET, subject=str(source), cause=cause)
    if change.keep and change.over is Over.EXCHANGE:
        raise CheloniaError(Kind.BAD_REQUEST, subject=str(target), cause="an exchange keeps no name")
    if change.parents:
        await walk(ports, turn, target, parents=True, within=_above_both(source, target))
    names = (source, source.parent, target, target.parent)
    walks = await ports.librarian.traverse(turn.service, names, DESCRIBED)
    found, source_parent = existing(source, walks[0]), parent_of(source, walks[0], walks[1])
    judge = Judge(turn.user, "move")
    required(judge, change.when, source, found)
    replaced, target_parent = _target(change, walks[2], walks[3])
    expect = (*_pinned_beyond_guid(change.when, found), *judge.require(Action.ADD_ENTRY, target_parent))
    if change.keep:
        expect += may_link(judge, found)
    else:
        expect += judge.require_one(((Action.REMOVE_ENTRY, source_parent), (Action.DELETE, found)))
    if replaced is not None:
        expect += judge.require_one(((Action.REMOVE_ENTRY, target_parent), (Action.DELETE, replaced)))
    for place, walked in ((source, walks[0]), (target, walks[2])):
        expect += await locking.unlocked(ports, turn, change.when, place, walked, names=True)
    if change.over is Over.EXCHANGE:
        expect += judge.require(Action.ADD_ENTRY, source_parent)
    if replaced is not None and replaced.guid == found.guid:
        return Done()  # two names of one file: POSIX rename does nothing
    order = MoveOrder(
        child=found.guid,
        source_parent=source_parent.guid,
        source_name=source.name,
        target_parent=target_parent.guid,
        target_name=target.name,
        keep=change.keep,
        expect=tuple(dict.fromkeys(expect)),
        over=change.over.value,
        there=replaced.guid if replaced is not None else Guid(""),
        described=True,
    )
    return readable(judge, found, done(await ports.librarian.move(turn.service, order), made=replaced is None))


async def remove(ports: Ports, turn: ElementCall, change: Remove) -> Done:
    """Remove a name, a file or an empty collection."""
    place, (found, parent, expect) = change.place, await removal(ports, turn, change)
    match change.what:
        case Removing.NAME | Removing.KEY | Removing.OBJECT:
            assert parent is not None, "a name is in a collection"
            await ports.librarian.unlink(turn.service, Unlink(parent.guid, place.name, found.guid, expect))
            if change.what in _KEYS:
                await _prune(ports, turn, place.parent, parent)
        case Removing.FILE:
            await ports.librarian.delete(turn.service, Delete(found.guid, expect))
        case Removing.COLLECTION:
            await ports.librarian.unmake(turn.service, Unmake(found.guid, expect))
        case Removing.MARK:
            implied = (Triple("node", "implied", "yes"),)
            await ports.librarian.change_entry(turn.service, ChangeEntry(found.guid, implied, (), expect))
            await _prune(ports, turn, place)
    return Done()


async def removal(ports: Ports, turn: ElementCall, change: Remove) -> EntryRemoval:
    """Return the entry that `remove` is to take. Raises: the error that it fails with."""
    place = change.place
    walks = await led(ports, turn, place, place.parent, needed=DESCRIBED)
    found = existing(place, walks[0])
    judge, is_collection = Judge(turn.user, "remove"), found.type == TYPE_COLLECTION
    required(judge, change.when, place, found)
    parent: FoundEntry | None = None
    match change.what:
        case Removing.NAME | Removing.KEY | Removing.OBJECT | Removing.MARK if not place.parts:
            cause = "this is an entry itself, not a name of one"
            raise CheloniaError(Kind.NOTHING_TO_UNLINK, subject=str(place), cause=cause)
        case Removing.FILE if is_collection:
            raise CheloniaError(Kind.NOT_A_FILE, subject=str(place), cause="it is a collection")
        case Removing.COLLECTION if not is_collection:
            raise CheloniaError(Kind.NOT_A_COLLECTION, subject=str(place), cause=f"it is a {found.type}")
        case Removing.KEY | Removing.MARK if is_collection is not (change.what is Removing.MARK):
            raise CheloniaError(Kind.NOT_FOUND, subject=str(place), cause=f"it is a {found.type}")
        case Removing.OBJECT if found.type != TYPE_FILE:
            raise CheloniaError(Kind.NOT_FOUND, subject=str(place), cause=f"it is a {found.type}")
        case Removing.FILE | Removing.COLLECTION:
            rights = judge.require(Action.DELETE, found)
        case _:
            parent = parent_of(place, walks[0], walks[1])
            rights = judge.require_one(((Action.REMOVE_ENTRY, parent), (Action.DELETE, found)))
    free = await locking.unlocked(ports, turn, change.when, place, walks[0], names=True)
    return found, parent, _joined(_pinned_beyond_guid(change.when, found), rights, free)


async def remove_together(
    ports: Ports,
    turns: Sequence[ElementCall],
    changes: Sequence[Remove],
    decide: Callable[[ElementCall, Remove], Awaitable[EntryRemoval]],
) -> Outcomes:
    """Remove names and files in one transact, each as `decide` allows."""
    turn = turns[0]
    outcomes = await together(ports, turn.service, (decide(*each) for each in zip(turns, changes, strict=True)))
    keys = [changes[n] for n, error in outcomes.items() if error is None and changes[n].what in _KEYS]
    for place in dict.fromkeys([change.place.parent for change in keys]):
        await _prune(ports, turn, place, seen(place, turn.walked[place]) if place in turn.walked else None)
    return outcomes


async def undo(ports: Ports, turn: ElementCall) -> None:
    """Remove the collections made on the way to a refused name, unless others have put something there."""
    if turn.made:
        await _prune(ports, turn, turn.made[-1])
        turn.made.clear()


async def _prune(ports: Ports, turn: ElementCall, place: LogicalName, found: FoundEntry | None = None) -> None:
    """Remove empty implied collections from here upwards. `found`: the first, if known. A quota keeps one, and open
    uploads in parts that it lists. One that cannot be removed now stays, which is no failure of the change before."""
    service = turn.service.keyed(RequestKey(""))
    with contextlib.suppress(CheloniaError):
        while place.parts:
            if found is None:
                found = seen(place, (await ports.librarian.traverse(service, (place,), DESCRIBED))[0])
            if found is None or not is_implied(found.object):
                return
            await ports.librarian.unmake(service, Unmake(found.guid, versions(found), spares=True))
            place, found = place.parent, None


async def walk(
    ports: Ports, turn: ElementCall, place: LogicalName, *, parents: bool, within: LogicalName | None = None
) -> Traversal:
    """Follow a name; with `parents`, first make the missing collections between it and `within`. Raises: as `make`;
    CONFLICT when one can neither be made nor found: an upload holds its name, or it has just gone again."""
    (walked,) = await led(ports, turn, place, needed=DESCRIBED)
    while True:
        if not (parents and lacks_only_parents(place, walked, within)):
            return walked
        missing, cause = len(walked.rest), await _made_implied(ports, turn, place, walked)
        (walked,) = await ports.librarian.traverse(turn.service, (place,), DESCRIBED)
        if cause and len(walked.rest) >= missing:
            raise CheloniaError(Kind.CONFLICT, subject=str(place), cause=cause)


def lacks_only_parents(place: LogicalName, walked: Traversal, within: LogicalName | None) -> bool:
    """Return whether a name leads to a collection, not above `within`, and others are missing between them."""
    reached = len(place.parts) - len(walked.rest)
    is_within = within is None or reached >= len(within.parts)
    return is_within and len(walked.rest) > 1 and walked.last.value("entry", "type") == TYPE_COLLECTION


async def _made_implied(ports: Ports, turn: ElementCall, place: LogicalName, walked: Traversal) -> str:
    """Make the first missing collection above a name. Returns: why it could not, "" if it is made."""
    ln = LogicalName(place.start, place.parts[: -len(walked.rest)])
    above = FoundEntry(ln, walked.last, ln.child(walked.rest[0]))
    expect = Judge(turn.user, "make").require(Action.ADD_ENTRY, above)
    # Nobody meant to own it: those who may use the collection above may use one that is only part of a name. Only a
    # Bartender of before reads the default policy here.
    policies = {name: above.section(name) for name in ("policy", DEFAULT_POLICY_SECTION) if above.section(name)}
    sections = merged(policies, {"states": {"closed": "no"}, "node": {"implied": "yes"}})
    owner = above.object.value("entry", "owner")
    entry = MakeEntry(above.guid, walked.rest[0], TYPE_COLLECTION, Dn(owner), sections, expect)
    try:
        await ports.librarian.make_entry(turn.service.keyed(RequestKey("")), entry)
    except CheloniaError as error:
        if error.kind not in (Kind.EXISTS, Kind.NO_PARENT):  # others have just made it, or removed the one above
            raise
        return error.cause
    turn.made.append(above.ln.child(walked.rest[0]))
    return ""


def seen(place: LogicalName, walked: Traversal) -> FoundEntry | None:
    """Return the entry at the end of a walk, None where the name leads nowhere."""
    return FoundEntry(place, walked.last) if walked.complete and is_visible(walked.last) else None


def required(judge: Judge, when: When, place: LogicalName, found: FoundEntry | None) -> None:
    """Refuse a change of an entry that does not meet a `When`.

    Raises: PRECONDITION; DENIED, for an etag or a time, to a caller who may neither read nor change it, met or not.
    """
    if when == ANY:
        return
    there = attributes_of(found.object) if found else None
    tells = when.etags or when.not_etags or when.unmodified_since_ns >= 0
    if found is not None and tells and not when.absent:
        rights = tuple((action, found) for action in (Action.READ, Action.DELETE, Action.MODIFY_METADATA))
        if not any(judge.may(*right) for right in rights):
            judge.require_one(rights)
    when.require(place, there)


def pinned(when: When, found: FoundEntry) -> Expect:
    """Return the version that a `When` was judged on, so that the transact depends on it."""
    return versions(found) if when != ANY else ()


def _pinned_beyond_guid(when: When, found: FoundEntry) -> Expect:
    """As `pinned`, where the transact itself names the entry: a `When` of its GUID alone pins no version."""
    return pinned(replace(when, guid=Guid("")), found) if when != ANY else ()


def done(entry: Guid | StoredObject | None, *, made: bool = False, note: str = "") -> Done:
    """Return the answer to a change, with the attributes of the changed entry, if known."""
    return Done(attributes_of(entry) if isinstance(entry, StoredObject) else None, made=made, note=note)


def readable(judge: Judge, found: FoundEntry, answer: Done) -> Done:
    """Return the answer to a change of an entry, with as much of its attributes as the caller may read."""
    if answer.attributes is None or judge.may(Action.READ, found):
        return answer
    return replace(answer, attributes=public(answer.attributes))


def _joined(*expects: Expect) -> Expect:
    return tuple(dict.fromkeys(pair for expect in expects for pair in expect))


def _own_sections(change: Make) -> Sections:
    """Return the sections that the type of a new entry brings along. Raises: BAD_REQUEST."""
    setting = from_triples(setting_triples(change.setting))
    match change.type:
        case t if t == TYPE_COLLECTION:
            return {**setting, "states": {"closed": "no"}}
        case t if t == TYPE_MOUNTPOINT:
            check_url(change.target)
            return {**setting, "mountpoint": {"externalURL": change.target}}
        case t if t == TYPE_SYMLINK:
            check_text(Triple("node", "target", change.target))
            if not change.target or len(change.target.encode()) > bounds.SYMLINK_BYTES_MAX:
                cause = f"a symlink's target has 1 to {bounds.SYMLINK_BYTES_MAX} bytes"
                raise CheloniaError(Kind.BAD_REQUEST, subject=str(change.place), cause=cause)
            return {**setting, "node": {"target": change.target}}
        case t if t == TYPE_SPECIAL:
            return setting
    cause = f"{change.type!r} cannot be made without bytes; write it"
    raise CheloniaError(Kind.BAD_REQUEST, subject=str(change.place), cause=cause)


def _changes(change: Set) -> tuple[tuple[Triple, ...], tuple[tuple[str, str], ...]]:
    """Return the triples to set and the properties to remove. Raises: BAD_REQUEST, TOO_LARGE."""
    put = list(setting_triples(change.setting))
    drop: list[tuple[str, str]] = []
    for section, values in (("metadata", change.user), ("policy", change.policy)):
        for name, value in sorted(values.items()):
            if value is None:
                drop.append((section, name))
                continue
            triple = Triple(section, name, value)
            check_text(triple)
            check_value(triple)
            put.append(triple)
    if len(put) + len(drop) > bounds.USER_METADATA_MAX:
        cause = f"at most {bounds.USER_METADATA_MAX} properties in one change"
        raise CheloniaError(Kind.TOO_LARGE, subject=str(change.place), cause=cause)
    return tuple(put), tuple(drop)


def _above_both(source: LogicalName, target: LogicalName) -> LogicalName | None:
    """Return the collection above both names, which is there if the source is; None: they begin at different ones."""
    pairs = zip(source.parent.parts, target.parent.parts, strict=False)
    shared = tuple([one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)])
    return LogicalName(target.start, shared) if source.start == target.start else None


def _target(change: Move, walked: Traversal, parent: Traversal) -> tuple[FoundEntry | None, FoundEntry]:
    """Return the entry that a move replaces, if any, and the target's collection. Raises: EXISTS, NOT_FOUND, ..."""
    found = seen(change.target, walked)
    if found is None and change.over is Over.EXCHANGE:
        raise CheloniaError(Kind.NOT_FOUND, subject=str(change.target), cause="an exchange is of two entries")
    if found is None or change.over is Over.REFUSE:
        return None, parent_of_new(change.target, walked)
    return found, parent_of(change.target, walked, parent)
