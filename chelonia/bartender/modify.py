"""modify: the whitelist of properties that users may change, and the right each needs.

`metadata/*` and `timestamps/modified` need modifyMetadata; `policy/*` and a collection's `defaultPolicy/*` need
modifyPolicy. `states/neededReplicas` and `states/closed` need modifyStates and follow rules of their own. Size and
checksum change only with new bytes: changing them would make every holder doubt its replica.
"""

from __future__ import annotations

from dataclasses import dataclass

from chelonia.bartender.bulk import ElementCall
from chelonia.bartender.client_metadata import check_count, check_text, check_value, check_volume, is_settable, merged
from chelonia.bartender.names import kept
from chelonia.bartender.ports import Ports
from chelonia.bartender.rights import RIGHTS, FoundEntry, Judge, existing, versions
from chelonia.core import bounds, status
from chelonia.core.contents.attributes import is_implied
from chelonia.core.contents.uploads import Expect
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import RequestKey
from chelonia.core.metadata import TYPE_COLLECTION, TYPE_FILE, Needed, Triple
from chelonia.core.names import parse_ln
from chelonia.core.ports.bartender import ModifyRequest, Outcome
from chelonia.core.ports.librarian import ChangeEntry, SetWanted, Traversal
from chelonia.core.ports.librarian import ModifyEntry as Change
from chelonia.core.rights.policy import DEFAULT_POLICY_SECTION, Action
from chelonia.core.values import replace

_READ = (*RIGHTS, Needed("metadata"), Needed("timestamps"))
"""Sections that a change reads: those that decide the right, and those that it may enlarge."""

SET, UNSET, ADD, SET_IF = "set", "unset", "add", "setifvalue="

_ACTIONS = {
    "metadata": Action.MODIFY_METADATA,
    "timestamps": Action.MODIFY_METADATA,
    "policy": Action.MODIFY_POLICY,
    DEFAULT_POLICY_SECTION: Action.MODIFY_POLICY,
    "states": Action.MODIFY_STATES,
}

_CLOSING = {"yes": ("no", "yes"), "no": ("no",)}
"""`states/closed`: new value -> values it may have now. Closing is one-way; only the system sets `broken`."""


@dataclass(frozen=True, slots=True)
class _DecidedChange:
    """One change, with the entry and versions that its decision rests on; `walked`: the walk that found the entry."""

    request: ModifyRequest
    found: FoundEntry
    expect: Expect
    walked: Traversal


def applied(request: ModifyRequest) -> Outcome:
    """Return the answer to a change that has applied."""
    return Outcome(request.change_id, "unset" if request.change_type == UNSET else "set")


async def modify(ports: Ports, turn: ElementCall, request: ModifyRequest) -> Outcome:
    """Change one property of one entry."""
    change_type = request.change_type
    if change_type not in (SET, UNSET, ADD) and not change_type.startswith(SET_IF):
        cause = "changeType is set, unset, add or setifvalue=<value>"
        raise CheloniaError(Kind.BAD_REQUEST, subject=change_type[:80], cause=cause)
    ln = parse_ln(request.ln)
    (walked,) = await ports.librarian.traverse(turn.service, (ln,), _READ)
    found = existing(ln, walked)
    judge = Judge(turn.user, "modify")
    action = _ACTIONS.get(request.section)
    if action is None:
        raise judge.refuse(found, f"section {request.section[:80]!r} is written by the system only")
    decided = _DecidedChange(request, found, judge.require(action, found), walked)
    match (request.section, request.property):
        case ("states", "neededReplicas"):
            return await _set_wanted(ports, turn, decided)
        case ("states", "closed") if found.type == TYPE_COLLECTION:
            return await _close(ports, turn, judge, decided)
        case _ if is_settable(request.section, request.property, found.type):
            if change_type != UNSET:
                check_value(Triple(request.section, request.property, request.value))
            check_text(Triple(request.section, request.property, request.value))
            _check_growth(request, found)
            return await _change(ports, turn, decided)
        case _:
            name = f"{request.section}/{request.property}"[:80]
            raise judge.refuse(found, f"{name} of a {found.type} is written by the system only")


def _check_growth(request: ModifyRequest, found: FoundEntry) -> None:
    """Refuse a change that would make the entry's metadata too large. Raises: TOO_LARGE."""
    if request.change_type == UNSET:
        return
    changed = {request.section: {request.property: request.value}}
    after = merged(found.object.sections, changed)
    check_volume(after)
    if request.property not in found.section(request.section):
        check_count({request.section: after[request.section]})


async def _change(ports: Ports, turn: ElementCall, decided: _DecidedChange) -> Outcome:
    request = decided.request
    if is_implied(decided.found.object):  # from now on it exists for its own sake
        put, drop, rests = await kept(ports, turn, decided.walked)
        own = ChangeEntry(decided.found.guid, put, drop, rests)
        await ports.librarian.change_entry(turn.service.keyed(RequestKey("")), own)
        return await modify(ports, turn, request)
    change = Change(
        change_id=request.change_id,
        guid=decided.found.guid,
        change_type=request.change_type,
        section=request.section,
        property=request.property,
        value=request.value,
        expect=decided.expect,
    )
    (outcome,) = await ports.librarian.modify_metadata(turn.service, (change,))
    match outcome.success:
        case "set" | "unset":
            return applied(request)
        case "condition failed" if request.change_type == ADD or request.change_type.startswith(SET_IF):
            return await _unmet(ports, turn, request)
        case "condition failed":
            raise CheloniaError(Kind.CONFLICT, subject=request.ln, cause="it changed at the same time; try again")
        case text:
            await _check_unchanged(ports, turn, decided)
            return Outcome(request.change_id, text, Kind.INTERNAL.value, text)


async def _check_unchanged(ports: Ports, turn: ElementCall, decided: _DecidedChange) -> None:
    """Check that the decision still stands after a failure without a kind. Raises: CONFLICT when it does not."""
    (current,) = await ports.librarian.get(turn.service, (decided.found.guid,), RIGHTS)
    if current.version != decided.found.object.version:
        raise CheloniaError(Kind.CONFLICT, subject=decided.request.ln, cause="it changed at the same time; try again")


async def _set_wanted(ports: Ports, turn: ElementCall, decided: _DecidedChange) -> Outcome:
    request, found = decided.request, decided.found
    if found.type != TYPE_FILE:
        raise CheloniaError(Kind.DENIED, subject=str(found.ln), cause=f"a {found.type} has no replicas")
    text = request.value
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= bounds.REPLICAS_WANTED_MAX):
        cause = f"neededReplicas is 1 to {bounds.REPLICAS_WANTED_MAX}"
        raise CheloniaError(Kind.BAD_REQUEST, subject=text[:80], cause=cause)
    _only_set(request)
    if not _holds(request, found.object.value("states", "neededReplicas")):
        return await _unmet(ports, turn, request)
    expect = versions(found) if request.change_type != SET else decided.expect
    await ports.librarian.set_wanted(turn.service, SetWanted(found.guid, int(text), expect))
    note = await ports.shepherds.shortage(turn.service, int(text))
    return Outcome(request.change_id, status.success("modify"), cause=note)


async def _close(ports: Ports, turn: ElementCall, judge: Judge, decided: _DecidedChange) -> Outcome:
    request, found = decided.request, decided.found
    _only_set(request)
    current = found.object.value("states", "closed", "no")
    if current not in _CLOSING.get(request.value, ()):
        raise judge.refuse(found, f"a collection with closed={current} cannot become closed={request.value[:80]!r}")
    if not _holds(request, current):
        return await _unmet(ports, turn, request)
    # Conditioned on the version always: between the look and the change the collection may have been broken.
    asked = replace(request, change_type=SET)
    return await _change(ports, turn, replace(decided, request=asked, expect=versions(found)))


def _only_set(request: ModifyRequest) -> None:
    if request.change_type in (UNSET, ADD):
        cause = f"states/{request.property} always has a value: use set or setifvalue="
        raise CheloniaError(Kind.DENIED, subject=request.ln, cause=cause)


def _holds(request: ModifyRequest, current: str) -> bool:
    return request.change_type == SET or request.change_type.removeprefix(SET_IF) == current


async def _unmet(ports: Ports, turn: ElementCall, request: ModifyRequest) -> Outcome:
    """Answer a condition that does not hold, unless this very request's first try made it so."""
    if turn.service.request_key and await ports.librarian.recall(turn.service) is not None:
        return Outcome(request.change_id, status.success("modify"))
    cause = f"{request.section}/{request.property} has another value"
    return Outcome(request.change_id, "condition failed", Kind.CONFLICT.value, cause)
