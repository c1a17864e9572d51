"""Operations on names: make and unmake collections and mount points, move and link, delete and unlink.

Each decides rights on the result of one walk, and hands the Librarian one transact, conditioned on the versions it
decided on. No operation can leave half a change behind.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from chelonia.bartender.bulk import CALL_FAILED, ElementCall, Outcomes, led
from chelonia.bartender.client_metadata import accepted, merged, new_policies
from chelonia.bartender.ports import Ports
from chelonia.bartender.rights import RIGHTS, FoundEntry, Judge, existing, is_visible, parent_of_new
from chelonia.core import bounds
from chelonia.core.caller import Call, Role
from chelonia.core.contents.attributes import is_implied
from chelonia.core.contents.uploads import Expect
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ANONYMOUS, Guid
from chelonia.core.metadata import TYPE_COLLECTION, TYPE_FILE, TYPE_MOUNTPOINT, Needed, Sections, StoredObject, Triple
from chelonia.core.names import LogicalName, check_ln, parse_ln
from chelonia.core.ports.bartender import MakeRequest, MoveRequest, NameRequest
from chelonia.core.ports.librarian import Delete, MakeEntry, MoveEntry, Traversal, Unlink, Unmake
from chelonia.core.rights.policy import DEFAULT_POLICY_SECTION, Action, opens_no_more
from chelonia.core.values import replace

_KIND: Final = (Needed("entry"), Needed("node", "implied"))
_RULED_MAX: Final = 8
"""Collections read at once with all their rules."""
EntryRemoval = tuple[FoundEntry, FoundEntry | None, Expect]
"""An entry to remove, its collection if only one name goes, and the versions that the removal rests on."""


async def make(entry_type: str, ports: Ports, turn: ElementCall, request: MakeRequest) -> None:
    """Make a collection, which inherits its parent's default policy, or a mount point for an external URL."""
    op = "makeCollection"
    own: Sections = {"states": {"closed": "no"}}
    if entry_type == TYPE_MOUNTPOINT:
        check_url(request.url)
        op, own = "makeMountpoint", {"mountpoint": {"externalURL": request.url}}
    ln = parse_ln(request.ln)
    (walked,) = await led(ports, turn, ln, needed=RIGHTS)
    parent = parent_of_new(ln, walked)
    expect = Judge(turn.user, op).require(Action.ADD_ENTRY, parent)
    given = accepted(request.metadata, entry_type, f"{op}.metadata")
    giver = await giving(ports, turn, walked)
    check_opens_nothing(Judge(turn.user, op), parent, giver, given)
    policies, rests = inherited(giver, entry_type)
    sections, expect = merged(policies, given, own), tuple(dict.fromkeys((*expect, *rests)))
    made = MakeEntry(parent.guid, ln.name, entry_type, turn.user.dn, sections, expect)
    await ports.librarian.make_entry(turn.service, made)


def inherited(giver: StoredObject, entry_type: str) -> tuple[Sections, Expect]:
    """Return the policies that a new entry inherits from a collection, and the versions that they rest on."""
    return new_policies(giver.sections, entry_type), ((Guid(giver.id), giver.version),)


async def giving(ports: Ports, turn: ElementCall, walked: Traversal, *, of: LogicalName | None = None) -> StoredObject:
    """Return the collection whose default policy a new entry inherits where a walk ended.

    `of`: a collection to inherit from instead, as far as it is there. If the caller may neither read it nor add to it,
    it has no sections here: rules would tell him what he may not see.
    """
    if of is not None:
        check_ln(of)
        (walked,) = await ports.librarian.traverse(turn.service, (of,), RIGHTS)
    giver = walked.last if _gives(walked.last) else await _giver(ports, turn, walked)
    shown = of is None or any(
        Judge(turn.user, "inherit").may(action, FoundEntry(of, giver)) for action in (Action.ADD_ENTRY, Action.READ)
    )
    return giver if shown else replace(giver, sections={})


def opens_nothing(policy: Mapping[str, str], default: Mapping[str, str], *above: StoredObject) -> bool:
    """Whether a new entry with this policy allows nobody what these collections, or its default policy, do not."""
    return all(opens_no_more(policy, default, each.sections.get("policy", {})) for each in above)


def check_opens_nothing(judge: Judge, parent: FoundEntry, giver: StoredObject, given: Sections) -> None:
    """Refuse rules that `ANONYMOUS` gives to a new entry, where they allow more than its collection. Raises: DENIED."""
    if judge.call.dn != ANONYMOUS:
        return
    default = giver.sections.get(DEFAULT_POLICY_SECTION, {})
    for name in given.keys() & {"policy", DEFAULT_POLICY_SECTION}:
        if not opens_nothing({**default, **given[name]}, default, parent.object, giver):
            place = FoundEntry(parent.about or parent.ln, parent.object)
            raise judge.refuse(place, "nobody owns what ANONYMOUS makes: it grants what its collection grants, no more")


async def kept(
    ports: Ports, turn: ElementCall, walked: Traversal
) -> tuple[tuple[Triple, ...], tuple[tuple[str, str], ...], Expect]:
    """Return what makes an implied collection one for its own sake: triples to set, properties to remove, and the
    versions that they rest on. Its default policy is the one that counts in it now."""
    giver = await _giver(ports, turn, walked)
    default, before = (each.sections.get(DEFAULT_POLICY_SECTION, {}) for each in (giver, walked.last))
    put = tuple([Triple(DEFAULT_POLICY_SECTION, *rule) for rule in sorted(default.items())])
    drop = [(DEFAULT_POLICY_SECTION, identity) for identity in sorted(before.keys() - default.keys())]
    return put, (*drop, ("node", "implied")), ((walked.guid, walked.last.version), (Guid(giver.id), giver.version))


async def _giver(ports: Ports, turn: ElementCall, walked: Traversal) -> StoredObject:
    """Return the collection whose default policy counts where a walk ended: the nearest that exists for its own sake,
    there or above. An implied one has what counted when it was made."""
    found, above = walked.last, [step.guid for step in reversed(walked.steps[:-1])]
    while not _gives(found):
        above = above or [Guid(pair.partition("/")[0]) for pair in sorted(found.sections.get("parents", ()))[:1]]
        if not above:
            break
        if len(above) > _RULED_MAX:  # users may have written much of each
            kinds = await ports.librarian.get(turn.service, tuple(above), _KIND)
            above = [Guid(next(filter(_gives, kinds), kinds[-1]).id)]
        entries = await ports.librarian.get(turn.service, tuple(above), RIGHTS)
        found, above = next(filter(_gives, entries), entries[-1]), []
    return found


def _gives(found: StoredObject) -> bool:
    return found.value("entry", "type") == TYPE_COLLECTION and not is_implied(found)


async def remove(op: str, ports: Ports, turn: ElementCall, request: NameRequest) -> None:
    """Remove an empty collection, a mount point (but not its target), or a file under all its names."""
    found, _, expect = await removal(op, ports, turn, request)
    try:
        if found.type == TYPE_COLLECTION:
            await ports.librarian.unmake(turn.service, Unmake(found.guid, expect))
        else:
            await ports.librarian.delete(turn.service, Delete(found.guid, expect))
    except CheloniaError as error:
        raise _in_users_words(error, found.ln) from error


async def removal(op: str, ports: Ports, turn: ElementCall, request: NameRequest) -> EntryRemoval:
    """Return the entry that `remove` is to take. Raises: the error that it fails with."""
    ln = parse_ln(request.ln)
    (walked,) = await led(ports, turn, ln, needed=RIGHTS)
    found = existing(ln, walked)
    expect = Judge(turn.user, op).require(Action.DELETE, found)
    wanted, kind = _REMOVED[op]
    if found.type != wanted:
        raise CheloniaError(kind, subject=str(ln), cause=f"it is a {found.type}, not a {wanted}")
    return found, None, expect


_REMOVED = {
    "unmakeCollection": (TYPE_COLLECTION, Kind.NOT_A_COLLECTION),
    "unmakeMountpoint": (TYPE_MOUNTPOINT, Kind.INVALID_TARGET),
    "delFile": (TYPE_FILE, Kind.NOT_A_FILE),
}
"""The type that an operation removes, and the error for any other."""


def _in_users_words(error: CheloniaError, ln: LogicalName) -> CheloniaError:
    """Return the Librarian's error about a GUID, with the name that the user gave."""
    return CheloniaError(error.kind, error.op, str(ln), error.cause)


async def unlink(ports: Ports, turn: ElementCall, request: NameRequest) -> None:
    """Remove one name; the last name takes the entry with it (a collection only when it is empty)."""
    ln, (found, parent, expect) = parse_ln(request.ln), await name_removal(ports, turn, request)
    assert parent is not None, "a name is in a collection"
    try:
        await ports.librarian.unlink(turn.service, Unlink(parent.guid, ln.name, found.guid, expect))
    except CheloniaError as error:
        raise _in_users_words(error, ln) from error


async def name_removal(ports: Ports, turn: ElementCall, request: NameRequest) -> EntryRemoval:
    """Return the entry whose name `unlink` is to take. Raises: the error that it fails with."""
    ln = parse_ln(request.ln)
    if not ln.parts:
        raise CheloniaError(Kind.NOTHING_TO_UNLINK, subject=str(ln), cause="this is an entry itself, not a name of one")
    walks = await led(ports, turn, ln, ln.parent, needed=RIGHTS)
    found, parent = existing(ln, walks[0]), parent_of(ln, walks[0], walks[1])
    judge = Judge(turn.user, "unlink")
    return found, parent, judge.require_one(((Action.REMOVE_ENTRY, parent), (Action.DELETE, found)))


async def each_together(
    decide: Callable[[Ports, ElementCall, NameRequest], Awaitable[EntryRemoval]],
    ports: Ports,
    turns: Sequence[ElementCall],
    requests: Sequence[NameRequest],
) -> Outcomes:
    """Remove entries with a single name in one transact, each as `decide` allows."""
    decisions = (decide(ports, *each) for each in zip(turns, requests, strict=True))
    return await together(ports, turns[0].service, decisions)


async def together(ports: Ports, service: Call, decisions: Iterable[Awaitable[EntryRemoval]]) -> Outcomes:
    """Remove entries with a single name in one transact."""
    orders: list[Unlink | None] = []
    outcomes = Outcomes()
    for number, decision in enumerate(decisions):
        try:
            found, _, expect = await decision
            orders.append(_of_only_name(found, expect))
        except CheloniaError as error:
            orders.append(None)
            if error.kind is not Kind.CONFLICT:
                outcomes[number] = error.with_traceback(None)
    if len(outcomes) < len(orders):  # also where none of these can go now: a first try may have removed some
        try:
            outcomes |= dict.fromkeys(await _gone_together(ports, service, orders))
        except CheloniaError as error:
            failed = error.with_traceback(None)
            for number in range(len(orders)) if error.kind in CALL_FAILED else ():
                outcomes.setdefault(number, failed)
    return outcomes


async def _gone_together(ports: Ports, service: Call, orders: Sequence[Unlink | None]) -> tuple[int, ...]:
    """Return the indices of the removed names. The others are served singly after this, and never together again."""
    try:
        return await ports.librarian.unlink_all(service, tuple(orders))
    except CheloniaError as error:
        if error.kind in CALL_FAILED or error.kind is Kind.NOT_SUPPORTED:
            raise
        return await ports.librarian.unlink_all(service, (None,) * len(orders))


def _of_only_name(found: FoundEntry, expect: Expect) -> Unlink | None:
    """Return how to remove an entry with its name; None: it has others, or is a collection."""
    names = list(found.section("parents"))
    if len(names) != 1 or found.type == TYPE_COLLECTION:
        return None
    parent, _, name = names[0].partition("/")
    return Unlink(Guid(parent), name, found.guid, expect)


async def move(ports: Ports, turn: ElementCall, request: MoveRequest) -> None:
    """Rename, move, or with `preserve_original` hard-link an entry."""
    source, target = _parse_source(request.source_ln), parse_ln(request.target_ln)
    walks = await ports.librarian.traverse(turn.service, (source, source.parent, target), RIGHTS)
    found = _existing_source(source, walks[0])
    target_parent, target_name = _place(target, walks[2], found)
    judge = Judge(turn.user, "move")
    expect = judge.require(Action.ADD_ENTRY, target_parent)
    if request.preserve_original:
        expect += may_link(judge, found)
    source_parent = parent_of(source, walks[0], walks[1])
    if not request.preserve_original:
        choices = ((Action.REMOVE_ENTRY, source_parent), (Action.DELETE, found))
        expect += judge.require_one(choices, phase="move.source")
    order = MoveEntry(
        child=found.guid,
        source_parent=source_parent.guid,
        source_name=source.name,
        target_parent=target_parent.guid,
        target_name=target_name,
        keep=request.preserve_original,
        expect=tuple(dict.fromkeys(expect)),
    )
    await ports.librarian.move(turn.service, order)


def _parse_source(text: str) -> LogicalName:
    try:
        source = parse_ln(text)
    except CheloniaError as error:
        raise CheloniaError(error.kind, "move.source", error.subject, error.cause) from error
    if not source.parts:
        cause = "only an entry with a name can be moved or linked"
        raise CheloniaError(Kind.INVALID_TARGET, subject=str(source), cause=cause)
    return source


def _existing_source(source: LogicalName, walked: Traversal) -> FoundEntry:
    try:
        return existing(source, walked)
    except CheloniaError as error:
        raise CheloniaError(Kind.NOT_FOUND, "move.source", error.subject, error.cause) from error


def _place(target: LogicalName, walked: Traversal, found: FoundEntry) -> tuple[FoundEntry, str]:
    """Return the collection and the name that a move leads to. Raises: EXISTS, INVALID_TARGET, IN_MOUNTPOINT.

    Only the transact can tell that a collection does not go into itself: another move may be under way.
    """
    if target.into and walked.complete and is_visible(walked.last):
        into = FoundEntry(target, walked.last)
        if into.type == TYPE_COLLECTION:
            return into, found.ln.name
        kind = Kind.IN_MOUNTPOINT if into.type == TYPE_MOUNTPOINT else Kind.INVALID_TARGET
        raise CheloniaError(kind, subject=str(target), cause=f"it is a {into.type}, nothing goes into it")
    if target.into and target.parts and walked.last.value("entry", "type") != TYPE_MOUNTPOINT:
        raise CheloniaError(Kind.INVALID_TARGET, subject=str(target), cause="there is no such collection to move into")
    return parent_of_new(target, walked), target.name


def parent_of(ln: LogicalName, walked: Traversal, parent: Traversal) -> FoundEntry:
    """Return the collection that holds the name. Raises: CONFLICT when it changed between the walks of one call."""
    through = walked.steps[-2].guid if len(walked.steps) > 1 else None
    if not parent.complete or not is_visible(parent.last) or parent.guid != through:
        raise CheloniaError(Kind.CONFLICT, subject=str(ln), cause="it was moved at the same time; try again")
    return FoundEntry(ln.parent, parent.last, ln)


def may_link(judge: Judge, found: FoundEntry) -> Expect:
    """Require the right to give an entry one more name. Raises: DENIED."""
    if found.type == TYPE_COLLECTION and not judge.call.has(Role.ADMINISTRATOR):
        raise judge.refuse(found, "only administrators make hard links to collections")
    return judge.require(Action.READ, found)


def check_url(url: str) -> None:
    """Refuse an invalid URL of another store. Raises: BAD_REQUEST."""
    try:
        parts = urlsplit(url)
        valid = bool(parts.scheme and (parts.netloc or parts.path.strip("/"))) and url.isprintable() and " " not in url
    except ValueError:
        valid = False
    if not valid or len(url.encode("utf-8", "surrogatepass")) > bounds.LN_BYTES_MAX:
        cause = "externalURL must be a URL, such as gsiftp://host/path"
        raise CheloniaError(Kind.BAD_REQUEST, subject=ascii(url[:80]), cause=cause)
