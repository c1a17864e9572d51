"""Write locks of the port `Files`: those that cover an entry, their effect on changes, and the right to take one.

Only a change that names its locks (`When.tokens`) looks at them: they are an agreement among the clients of doors that
know them. Such a change depends on the versions of all entries it looked at, so that it notices a new lock.

A lock keeps others out, so taking or refreshing one needs the right to what it prevents: `delete` on the entry. For a
lock of one file alone `modifyMetadata` is enough. The owner of an entry and administrators may end any lock on it.
"""

from __future__ import annotations

from chelonia.bartender.bulk import ElementCall
from chelonia.bartender.ports import Ports
from chelonia.bartender.rights import FoundEntry, Judge, versions
from chelonia.core import bounds
from chelonia.core.caller import Role
from chelonia.core.contents.uploads import Expect
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ANONYMOUS, Guid, Ms
from chelonia.core.metadata import TYPE_COLLECTION, Filter, Needed, StoredObject, Triple
from chelonia.core.names import LogicalName
from chelonia.core.ports.files import Set, When
from chelonia.core.ports.librarian import Traversal
from chelonia.core.rights.locks import Lock, check_beside, check_held, check_new, from_text, to_text
from chelonia.core.rights.policy import Action
from chelonia.core.values import replace

_LOCKS: Filter = (Needed("locks"),)


def locks_of(stored: StoredObject, now: Ms, root: LogicalName) -> tuple[Lock, ...]:
    """Return the locks of an entry that have not expired."""
    texts = sorted(stored.sections.get("locks", {}).items())
    return tuple(lock for token, text in texts if (lock := from_text(token, text, now, root)) is not None)


async def above(
    ports: Ports, turn: ElementCall, place: LogicalName, walked: Traversal
) -> tuple[tuple[Lock, ...], Expect]:
    """Return the locks of the collections above an entry, or above a name without one, and their versions."""
    steps = walked.steps[:-1] if walked.complete else walked.steps
    stored = await ports.librarian.get(turn.service, tuple(step.guid for step in steps), _LOCKS)
    now = ports.clock.now_ms()
    found = [
        lock for n, each in enumerate(stored) for lock in locks_of(each, now, LogicalName(place.start, place.parts[:n]))
    ]
    return tuple(found), tuple((Guid(each.id), each.version) for each in stored)


async def unlocked(
    ports: Ports, turn: ElementCall, when: When, place: LogicalName, walked: Traversal, *, names: bool
) -> Expect:
    """Refuse a change of what others have locked. `names`: the name itself comes or goes, so the collection changes.

    Returns: the versions that this depends on. Raises: LOCKED.
    """
    if when.tokens is None:
        return ()
    inherited, expect = await above(ports, turn, place, walked)
    deep = tuple(lock for lock in inherited if lock.deep)
    if walked.complete:
        check_held((*locks_of(walked.last, ports.clock.now_ms(), place), *deep), when.tokens, turn.user.dn)
    if names:
        beside = tuple(lock for lock in inherited if lock.deep or lock.root == place.parent)
        check_held(beside, when.tokens, turn.user.dn)
    return expect


async def changed(
    ports: Ports, turn: ElementCall, change: Set, found: FoundEntry, walked: Traversal
) -> tuple[list[Triple], list[tuple[str, str]], Expect]:
    """Return what taking, refreshing and releasing locks sets and removes, and the versions that it depends on.

    Raises: LOCKED (another's is in the way), PRECONDITION (there is no such lock), DENIED, BAD_REQUEST, TOO_LARGE.
    """
    now, put = ports.clock.now_ms(), list[Triple]()
    held = {lock.token: lock for lock in locks_of(found.object, now, change.place)}
    inherited, expect = await above(ports, turn, change.place, walked)
    deep = tuple(lock for lock in inherited if lock.deep)
    judge = Judge(turn.user, "lock")
    for lock in change.locks:
        current = held.get(lock.token)
        if current is not None:
            _may_end(turn, judge, found, current, refreshes=bool(lock.lasts_ms))
        elif not lock.lasts_ms:
            cause = "there is no lock of this token here: it may have ended"
            raise CheloniaError(Kind.PRECONDITION, subject=str(change.place), cause=cause)
        if lock.lasts_ms or turn.user.scopes:  # a token that may not take a lock cannot end one
            expect += _may_take(judge, found)
        if not lock.lasts_ms:
            del held[lock.token]
            continue
        check_new(lock)
        check_beside(lock, (*held.values(), *deep))
        held[lock.token] = replace(lock, owner=turn.user.dn)
        put.append(Triple("locks", lock.token, to_text(held[lock.token], now)))
    if len(held) > bounds.LOCKS_PER_ENTRY_MAX:
        ports.limits.met("locks", turn.user.dn, "a lock was refused")
        cause = f"it has {len(held)} locks, at most {bounds.LOCKS_PER_ENTRY_MAX} are kept; give some up, or wait"
        raise CheloniaError(Kind.TOO_LARGE, subject=str(change.place), cause=cause)
    return put, [("locks", token) for token in found.section("locks") if token not in held], (*expect, *versions(found))


def _may_take(judge: Judge, found: FoundEntry) -> Expect:
    """Require the right to lock an entry. Only in a collection is there anything below, however deep the lock goes."""
    if found.type == TYPE_COLLECTION:
        return judge.require(Action.DELETE, found)
    return judge.require_one(((Action.DELETE, found), (Action.MODIFY_METADATA, found)))


def _may_end(turn: ElementCall, judge: Judge, found: FoundEntry, lock: Lock, *, refreshes: bool) -> None:
    """Refuse another's lock, unless the owner of the entry or an administrator ends it. Raises: DENIED."""
    dn = turn.user.dn
    owns = found.owner == dn and dn != ANONYMOUS
    if lock.owner == dn or (not refreshes and (owns or turn.user.has(Role.ADMINISTRATOR))):
        return
    raise judge.refuse(found, f"the lock is of {lock.owner}")
