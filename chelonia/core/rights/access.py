"""The access guard: the roles of `core.operations`, checked in one place, tested cell by cell.

`guarded` puts the check in front of every operation of a service, so that none can be without it. A role may be
restricted further: a Shepherd reports only for its own service id (`own_shepherd`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from chelonia.core.caller import Call, Role
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ServiceId
from chelonia.core.operations.files import FILES
from chelonia.core.operations.rows import EVERYONE, PortMethod, PortTable
from chelonia.core.operations.tables import TABLES
from chelonia.core.rights.scopes import narrowed_to

T = TypeVar("T")

ACCESS: Final[dict[tuple[str, str], tuple[Role, ...]]] = {
    (port.name, row.name): row.roles
    for port in TABLES.values()
    for row in port.by_method.values()
    if row.roles is not EVERYONE
}
"""The operations that are not for everyone, by service and name on the wire, and the roles that may call each."""
assert all(ACCESS.values()), "an operation that nobody may call is none"
assert FILES.name not in {service for service, _ in ACCESS}, (
    "what a token reaches asks for no role: it bears its giver's"
)


def check_access(call: Call, service: str, operation: str) -> None:
    """Refuse a call that the table does not allow. Raises: as `admit`."""
    port = TABLES.get(service)
    row = port.by_name.get(operation) if port is not None else None
    if row is None:
        raise _refusal(call, service, operation, ())
    admit(call, row)


def admit(call: Call, row: PortMethod) -> None:
    """Refuse a call of an operation by a caller with none of its roles. Raises: DENIED, naming the roles; UNAVAILABLE
    while the caller's roles cannot be read."""
    allowed = row.roles
    if call.scopes and row.service != FILES.name:
        cause = f"a token narrowed to {narrowed_to(call.scopes)} reaches files only; use a certificate"
        raise CheloniaError(Kind.DENIED, f"{row.service}.{row.name}", "", cause)
    if allowed is EVERYONE:
        return
    for role in call.roles:  # no generator: each read comes here three times
        if role in allowed:
            return
    raise _refusal(call, row.service, row.name, allowed)


def _refusal(call: Call, service: str, operation: str, allowed: tuple[Role, ...]) -> CheloniaError:
    if call.unsure:
        cause = "who is approved as what cannot be read now: try again"
        return CheloniaError(Kind.UNAVAILABLE, f"{service}.{operation}", call.dn, cause)
    names = ", ".join(role.value for role in allowed) or "nobody"
    cause = f"{call.dn} is not registered and approved as {names}"
    return CheloniaError(Kind.DENIED, f"{service}.{operation}", "", cause)


def guarded(
    port: PortTable, check: Callable[[Any, Call, PortMethod], None] | None = None
) -> Callable[[type[T]], type[T]]:
    """Make a service check every call of an operation of `port` before its handler begins.

    Args: `check`: gets the service, the call and the row; begins with `admit` and may add to it.
    """

    def with_guard(service: type[T]) -> type[T]:
        for method, row in port.by_method.items():  # a row without a handler is an AttributeError at import
            setattr(service, method, _guard(getattr(service, method), row, check))
        return service

    return with_guard


def _guard(handler: Any, row: PortMethod, check: Callable[[Any, Call, PortMethod], None] | None) -> Any:
    @functools.wraps(handler)
    def checked(self: Any, call: Call, *args: Any, **named: Any) -> Coroutine[Any, Any, Any]:
        try:
            if check is None:
                admit(call, row)
            else:
                check(self, call, row)
        except CheloniaError as error:
            return _refused(error)  # raised where the call is awaited, as if the handler had refused it
        return handler(self, call, *args, **named)  # type: ignore[no-any-return]

    return checked


async def _refused(error: CheloniaError) -> None:
    raise error


def own_shepherd(call: Call, shepherd: ServiceId, operation: str) -> None:
    """Refuse a Shepherd that speaks of another. Raises: DENIED."""
    if call.has(Role.SHEPHERD) and call.service_id != shepherd and not call.has(Role.ADMINISTRATOR):
        cause = f"{call.dn} is registered as {call.service_id or 'no Shepherd'}"
        raise CheloniaError(Kind.DENIED, operation, shepherd, cause)
