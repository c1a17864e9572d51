"""Access, cell by cell: every operation, every role."""

import pytest

from chelonia.core.caller import Call, Role
from chelonia.core.cluster.position import Position
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn, Ms, RequestKey, ServiceId
from chelonia.core.operations.rows import EVERYONE
from chelonia.core.operations.tables import TABLES
from chelonia.core.rights.access import ACCESS, check_access, own_shepherd
from chelonia.core.rights.scopes import READING, Scope
from chelonia.core.values import replace
from tests.support.failing import fails

L, B, S, A = Role.LIBRARIAN, Role.BARTENDER, Role.SHEPHERD, Role.ADMINISTRATOR

EXPECTED: dict[str, dict[str, set[Role]]] = {
    "ahash": {
        "get": {L, A}, "change": {L}, "transact": {L}, "recall": {L}, "walk": {L, A}, "scan": {L, A}, "status": {L, A},
        "below": {L, A},
        "objects": {L, A}, "regroup": {A}, "backup": {A},
    },
    "librarian": {
        "new": {B}, "get": {B, A}, "traverseLN": {B, A}, "modifyMetadata": {B}, "remove": {B}, "report": {S},
        "makeEntry": {B}, "beginPut": {B}, "commitPut": {S}, "commitFile": {B},
        "splice": {B}, "extents": {B, A}, "unlink": {B}, "unlinkAll": {B},
        "openUpload": {B}, "putPart": {B}, "sealUpload": {B}, "copyFile": {B},
        "dropUpload": {B}, "uploads": {B, A}, "parts": {B, A},
        "delete": {B},
        "undelete": {B}, "trash": {B, A}, "rebuild": {A},
        "unmake": {B}, "move": {B}, "setWanted": {B}, "changeEntry": {B}, "below": {B, A}, "recall": {B},
        "accessKey": {B}, "accessKeys": {B}, "keepAccessKey": {B}, "dropAccessKey": {B},
        "quotas": {B, A}, "setQuota": {A}, "recountQuotas": {A},
        "hearing": {L, A}, "consider": {L, A}, "inventory": {S, A}, "nodes": {B, L, A}, "services": {B, L, S, A},
        "approve": {A}, "maintenance": {A}, "drain": {A}, "forget": {A},
        "drill": {L, A}, "drillStatus": {B, L, A},
        "healStatus": {B, L, A}, "healOrder": {A}, "health": {B, L, A}, "fsck": {A}, "mend": {A},
    },
    "shepherd": {
        "get": {B, L}, "put": {B, L}, "store": {B}, "fetch": {B}, "sums": {B}, "stat": {B, L, A},
        "delete": {L}, "toggleReport": {A},
        "copy": {L}, "scrub": {L, A}, "status": {B, L, A}, "drill": {L}, "prove": {L},
        "records": {L, A}, "scrubPage": {A}, "discard": {A}, "readmit": {L, A},
    },
    "bartender": {"addReplica": {S}},
}  # fmt: skip
"""Written out a second time on purpose: a change of the table must be a change here too."""

OPEN = {
    "files": {"look", "list", "place", "apply", "share", "uploads", "parts", "space"},
    "keys": {"create", "list", "revoke"},
    "librarian": {"heartbeat"},
    "bartender": {
        "stat", "list", "makeCollection", "unmakeCollection", "makeMountpoint", "unmakeMountpoint", "move", "putFile",
        "getFile", "delFile", "unlink", "undelete", "listDeleted", "modify",
    },
}  # fmt: skip
"""Operations open to everyone; a heartbeat is a new Shepherd's request for approval."""

CELLS = [(service, op, role) for service, row in EXPECTED.items() for op in row for role in Role]


def call(*roles: Role) -> Call:
    return Call(dn=Dn("/O=Grid/CN=host"), roles=roles)


def allowed(caller: Call, service: str, operation: str) -> bool:
    try:
        check_access(caller, service, operation)
    except CheloniaError as error:
        return error.kind is not Kind.DENIED
    return True


@pytest.mark.parametrize(("service", "operation", "role"), CELLS)
def test_cell(service: str, operation: str, role: Role) -> None:
    assert allowed(call(role), service, operation) == (role in EXPECTED[service][operation])


@pytest.mark.parametrize(("service", "operation"), sorted(ACCESS))
def test_users_may_call_no_service_operation(service: str, operation: str) -> None:
    assert not allowed(call(), service, operation)


def test_no_row_is_missing_from_these_expectations() -> None:
    assert {(service, op) for service, row in EXPECTED.items() for op in row} == set(ACCESS)


def test_only_what_is_meant_to_be_is_open_to_everyone() -> None:
    for service, port in TABLES.items():
        assert {row.name for row in port.by_method.values() if row.roles is EVERYONE} == OPEN.get(service, set())


@pytest.mark.parametrize(("service", "operation"), [(name, op) for name, row in OPEN.items() for op in sorted(row)])
def test_what_is_open_may_be_called_without_a_role(service: str, operation: str) -> None:
    assert allowed(Call(), service, operation)


@pytest.mark.parametrize("operation", ["invented", "", "transact "])
@pytest.mark.parametrize("service", ["ahash", "librarian", "shepherd", "bartender", "invented"])
def test_an_operation_without_a_row_is_for_nobody(service: str, operation: str) -> None:
    assert not allowed(call(*Role), service, operation)


def test_a_refusal_names_who_may() -> None:
    with pytest.raises(CheloniaError, match=r"not registered and approved as bartender, administrator"):
        check_access(call(), "librarian", "get")


def test_a_shepherd_speaks_for_itself_only() -> None:
    own = Call(dn=Dn("/CN=a"), roles=(S,), service_id=ServiceId("https://a/Shepherd"))
    own_shepherd(own, ServiceId("https://a/Shepherd"), "report")
    for other in ("https://a/Shepherd2", "https://a/Shepher", "https://b/Shepherd", ""):
        with fails(Kind.DENIED):
            own_shepherd(own, ServiceId(other), "report")


def test_an_administrator_may_ask_about_any_shepherd() -> None:
    own_shepherd(call(A), ServiceId("https://b/Shepherd"), "inventory")


def test_a_call_that_is_to_read_the_newest_is_the_same_in_all_else() -> None:
    call = Call(
        Dn("/CN=joe"), (B,), ServiceId("https://b/Bartender"), ("/lab",), "::1", "request", RequestKey("key"),
        Position("cluster", 1, 2), carrier=Dn("/CN=b"), scopes=(Scope(READING),), via="link", credential="1 /CN=ca",
        is_first=True, unsure=True, until_ms=Ms(7), turn="/CN=ann",
    )  # fmt: skip
    assert call.strongly() == replace(call, strong=True)
