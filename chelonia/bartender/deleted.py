"""The trash as users see it: their deleted entries, and their restoration.

Only the owner of a deleted entry and administrators may see and restore it, whatever its policy says. The restored name
needs `addEntry`, as any new name. For everybody else the entry does not exist: no page counts it. A call reads only so
many, so the mark of the next page may be another's, and is sealed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from chelonia.bartender import audit
from chelonia.bartender.bulk import ElementCall
from chelonia.bartender.ports import Ports
from chelonia.bartender.rights import RIGHTS, Judge, existing, parent_of_new
from chelonia.core import bounds, status
from chelonia.core.caller import Call, Role
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ANONYMOUS, ROOT, Guid
from chelonia.core.metadata import TYPE_COLLECTION
from chelonia.core.names import LogicalName, parse_ln
from chelonia.core.ports.bartender import DeletedEntry, ListDeletedOutcome, ListRequest, UndeleteRequest
from chelonia.core.ports.librarian import Trashed, Undelete
from chelonia.core.rights.policy import Action
from chelonia.wire import armour
from chelonia.wire.secret_box import NONCE_BYTES, SecretBox

_CONTEXT: Final = b"chelonia deleted entries 1"
_PAGES_READ: Final = 16
"""Pages of the trash that are read for one of the caller's."""


async def list_deleted(ports: Ports, turn: ElementCall, request: ListRequest) -> ListDeletedOutcome:
    """Return the entries that the caller may restore: of one collection, or with an empty name all."""
    under = ""
    if request.ln:
        ln = parse_ln(request.ln)
        under = f"{await _collection(ports, turn, ln)}/"
    limit = request.limit if 0 < request.limit < bounds.PAGE_ENTRIES_MAX else bounds.PAGE_ENTRIES_MAX
    found, after = await _found(ports, turn, under, _after(ports, request.after), limit)
    entries = tuple(_deleted_entry(each, bare=bool(under)) for each in found)
    turn.room.take(2 * len(entries), ())
    return ListDeletedOutcome(request.request_id, status.success("listDeleted"), entries, _mark(ports, after))


async def _found(ports: Ports, turn: ElementCall, under: str, after: str, limit: int) -> tuple[Sequence[Trashed], str]:
    """Return the next entries that the caller may restore, and the mark behind which there are more, or may be.
    Raises: TOO_LARGE once the call has read too much."""
    found = list[Trashed]()
    for _ in range(_PAGES_READ):
        page = await ports.librarian.trash(turn.service, under, after, bounds.PAGE_ENTRIES_MAX)
        turn.room.weigh(sum([len(each.mark) for each in page.entries]))
        found += [each for each in page.entries if _may(turn.user, each)]
        if len(found) > limit:
            return found[:limit], found[limit - 1].mark
        after = page.after
        if not after:
            break
    return found, after


def _mark(ports: Ports, after: str) -> str:
    """Return the mark from which a listing continues: behind an entry that may be another's. "": at its end."""
    return armour.to_text(_box(ports).encrypt(after, ports.ids.token(NONCE_BYTES))) if after else ""


def _after(ports: Ports, mark: str) -> str:
    """Return what a mark stands for: itself, where no Bartender of this version made it."""
    after = _box(ports).decrypt(armour.from_text(mark) or b"")
    return mark if after is None else after


def _box(ports: Ports) -> SecretBox:
    return SecretBox(ports.settings.token_key, _CONTEXT)


async def _collection(ports: Ports, turn: ElementCall, ln: LogicalName) -> Guid:
    """Return the collection to list: an existing one, or by its GUID a deleted one. Raises: NOT_FOUND."""
    if not ln.parts and ln.start != ROOT:
        page = await ports.librarian.trash(turn.service, ln.start, "", 1)
        if any(each.type == TYPE_COLLECTION and _may(turn.user, each) for each in page.entries):
            return ln.start
    (walked,) = await ports.librarian.traverse(turn.service, (ln,), RIGHTS)
    found = existing(ln, walked)
    if found.type != TYPE_COLLECTION:
        raise CheloniaError(Kind.NOT_A_COLLECTION, subject=str(ln), cause=f"it is a {found.type}, not deleted")
    return found.guid


async def undelete(ports: Ports, turn: ElementCall, request: UndeleteRequest) -> None:
    """Restore a file or a collection under its former name, or another."""
    file = await _wanted(ports, turn, request)
    target = parse_ln(request.target_ln) if request.target_ln else LogicalName(file.parent, (file.name,))
    (walked,) = await ports.librarian.traverse(turn.service, (target,), RIGHTS)
    parent = parent_of_new(target, walked)
    expect = Judge(turn.user, "undelete").require(Action.ADD_ENTRY, parent)
    audit.record(turn.user, "undelete", file.guid, action="undelete", decision="allowed", rule=_rule(turn.user, file))
    await ports.librarian.undelete(turn.service, Undelete(file.guid, parent.guid, target.name, expect))


async def _wanted(ports: Ports, turn: ElementCall, request: UndeleteRequest) -> Trashed:
    """Return the entry by its GUID, or the last deleted one of this name. Raises: NOT_FOUND."""
    ln = parse_ln(request.ln)
    under: str = ln.start
    if ln.parts:
        (walked,) = await ports.librarian.traverse(turn.service, (ln.parent,), RIGHTS)
        under = f"{existing(ln.parent, walked).guid}/{ln.name}/"
    found, after = None, ""
    while True:
        page = await ports.librarian.trash(turn.service, under, after, bounds.PAGE_ENTRIES_MAX)
        restorable = [each for each in page.entries if _may(turn.user, each)]
        found, after = restorable[-1] if restorable else found, page.after
        if not after:
            break
    if found is None:
        cause = "no file of yours that was deleted there is kept; `undelete --list` shows what is"
        raise CheloniaError(Kind.NOT_FOUND, subject=str(ln), cause=cause)
    return found


def _may(user: Call, file: Trashed) -> bool:
    return user.has(Role.ADMINISTRATOR) or (file.owner == user.dn != ANONYMOUS)


def _rule(user: Call, file: Trashed) -> str:
    return "owner" if file.owner == user.dn else "administrators may"


def _deleted_entry(file: Trashed, *, bare: bool) -> DeletedEntry:
    name = file.name if bare else f"/{file.name}" if file.parent == ROOT else f"{Guid(file.parent)}/{file.name}"
    return DeletedEntry(name, file.guid, file.owner, file.size, file.deleted_ms, file.until_ms, file.type)
