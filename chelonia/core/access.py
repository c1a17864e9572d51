"""Who may call what: one table, checked in one place, tested cell by cell.

Rows are (service, operation); the value lists the roles that may call it. An operation without a row may be called
by nobody. What a role may say is narrower still: a Shepherd reports only for its own service id (`own_shepherd`).
"""

from __future__ import annotations

from chelonia.core.caller import Call, Role
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ServiceId

_L, _B, _S, _A = Role.LIBRARIAN, Role.BARTENDER, Role.SHEPHERD, Role.ADMINISTRATOR

ACCESS: dict[tuple[str, str], tuple[Role, ...]] = {
    ("ahash", "get"): (_L, _A),
    ("ahash", "change"): (_L,),
    ("ahash", "transact"): (_L,),
    ("ahash", "recall"): (_L,),
    ("ahash", "walk"): (_L, _A),
    ("ahash", "scan"): (_L, _A),
    ("ahash", "objects"): (_L, _A),
    ("ahash", "regroup"): (_A,),
    ("ahash", "backup"): (_A,),
    ("ahash", "status"): (_L, _A),
    ("librarian", "new"): (_B,),
    ("librarian", "get"): (_B, _A),
    ("librarian", "traverseLN"): (_B, _A),
    ("librarian", "modifyMetadata"): (_B,),
    ("librarian", "remove"): (_B,),
    ("librarian", "report"): (_S,),
    ("librarian", "makeEntry"): (_B,),
    ("librarian", "beginPut"): (_B,),
    ("librarian", "commitPut"): (_S,),
    ("librarian", "commitFile"): (_B,),
    ("librarian", "unlink"): (_B,),
    ("librarian", "delete"): (_B,),
    ("librarian", "undelete"): (_B,),
    ("librarian", "trash"): (_B, _A),
    ("librarian", "unmake"): (_B,),
    ("librarian", "move"): (_B,),
    ("librarian", "setWanted"): (_B,),
    ("librarian", "entries"): (_B, _A),
    ("librarian", "recall"): (_B,),
    ("librarian", "heartbeat"): (_S,),
    ("librarian", "hearing"): (_L, _A),
    ("librarian", "consider"): (_L, _A),
    ("librarian", "inventory"): (_S, _A),
    ("librarian", "nodes"): (_B, _L, _A),
    ("librarian", "services"): (_B, _L, _S, _A),
    ("librarian", "approve"): (_A,),
    ("librarian", "maintenance"): (_A,),
    ("librarian", "drain"): (_A,),
    ("librarian", "forget"): (_A,),
    ("librarian", "healStatus"): (_L, _A),
    ("librarian", "healOrder"): (_A,),
    ("librarian", "drill"): (_L, _A),
    ("librarian", "drillStatus"): (_L, _A),
    ("librarian", "health"): (_B, _L, _A),
    ("librarian", "fsck"): (_A,),
    ("librarian", "mend"): (_A,),
    ("librarian", "rebuild"): (_A,),
    ("shepherd", "get"): (_B, _L),
    ("shepherd", "put"): (_B, _L),
    ("shepherd", "stat"): (_B, _L, _A),
    ("shepherd", "delete"): (_L,),
    ("shepherd", "toggleReport"): (_A,),
    ("shepherd", "copy"): (_L,),
    ("shepherd", "drill"): (_L,),
    ("shepherd", "prove"): (_L,),
    ("shepherd", "scrub"): (_L, _A),
    ("shepherd", "scrubPage"): (_A,),
    ("shepherd", "discard"): (_A,),
    ("shepherd", "readmit"): (_L, _A),
    ("shepherd", "status"): (_B, _L, _A),
    ("shepherd", "records"): (_L, _A),
    ("bartender", "addReplica"): (_S,),
}
"""Service operations and the roles that may call each. Other Bartender operations are for everyone."""

BARTENDER_FOR_EVERYONE = frozenset(
    {
        "stat", "list", "makeCollection", "unmakeCollection", "makeMountpoint", "unmakeMountpoint", "move", "putFile",
        "getFile", "delFile", "unlink", "undelete", "listDeleted", "modify", "startPut", "commitPut",
    }
)  # fmt: skip


def check_access(call: Call, service: str, operation: str) -> None:
    """Refuse a call that the table does not allow.

    Raises: DENIED, naming the roles that may call it.
    """
    if service == "bartender" and operation in BARTENDER_FOR_EVERYONE:
        return
    allowed = ACCESS.get((service, operation), ())
    for role in call.roles:  # no generator: this is asked three times for each read
        if role in allowed:
            return
    names = ", ".join(role.value for role in allowed) or "nobody"
    cause = f"{call.dn} is not registered and approved as {names}"
    raise CheloniaError(Kind.DENIED, f"{service}.{operation}", "", cause)


def own_shepherd(call: Call, shepherd: ServiceId, operation: str) -> None:
    """Refuse a Shepherd that speaks of another. Raises: DENIED."""
    if call.has(Role.SHEPHERD) and call.service_id != shepherd and not call.has(Role.ADMINISTRATOR):
        cause = f"{call.dn} is registered as {call.service_id or 'no Shepherd'}"
        raise CheloniaError(Kind.DENIED, operation, shepherd, cause)
