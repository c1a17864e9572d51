"""The row of an operation in a table, and the table itself."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from chelonia.core import bounds
from chelonia.core.caller import Role

EVERYONE: Final = tuple(Role)
"""Every caller, also one without a role; compared by identity."""


class Retry(enum.Enum):
    """The retries that a stub may make after a failure that may be the transport's."""

    IDEMPOTENT = "idempotent"
    """The stub may send it again."""
    KEYED = "keyed"
    """The stub may send it again under the call's request key, and makes one for a call without."""
    KEY_ARGUMENT = "key argument"
    """The same, with the key as first argument."""
    ONCE = "once"
    """A service may have carried it out already, so the stub does not send it again."""


class PortMethod(msgspec.Struct, frozen=True, eq=False):
    """One row. `name`: on the wire; `roles`: those that may call it, or `EVERYONE`.

    `brief`: changes nothing and is answered soon, so the stub tries another instance sooner. `answer_ms`: longest wait
    for an answer (0: the stub's own); with one, the stub sends the call once. `ends`: a read that may take long: it
    ends with the caller's connection, where a change is finished, for its effects.
    """

    service: str
    name: str
    function: Callable[..., Any]
    roles: tuple[Role, ...]
    retry: Retry
    brief: bool
    answer_ms: int
    ends: bool
    arguments: tuple[str, ...]
    defaults: tuple[Any, ...]
    """Of the last arguments, as many as have one."""
    many: int
    """Most elements of each argument that is a list."""

    @property
    def method(self) -> str:
        """Its name in the port."""
        return self.function.__name__

    def filled(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return all arguments in order, from those by position and by name. Raises: TypeError, as a call would."""
        count = len(self.arguments)
        first = count - len(self.defaults)
        if not named and first <= len(args) <= count:
            return args + self.defaults[len(args) - first :]
        values = {**dict(zip(self.arguments[first:], self.defaults, strict=True)), **named}
        left = self.arguments[len(args) :]
        if len(args) > count or not (set(named) <= set(left) <= set(values)):
            raise TypeError(f"{self.service}.{self.method} takes {', '.join(self.arguments) or 'no arguments'}")
        return (*args, *(values[name] for name in left))


class PortTable(msgspec.Struct, frozen=True, eq=False):
    """One port: the name of its service and its methods, by their names in the port and on the wire."""

    name: str
    by_method: Mapping[str, PortMethod]
    by_name: Mapping[str, PortMethod]


Row = Callable[[str], PortMethod]
"""A row without its service, which `table` adds."""


def row(
    function: Callable[..., Any], *roles: Role, retry: Retry = Retry.IDEMPOTENT, name: str = "",
    brief: bool = False, answer_ms: int = 0, ends: bool = False, many: int = bounds.BULK_ELEMENTS_MAX,
) -> Row:  # fmt: skip
    """Describe one method of a port. `name`: on the wire, where it is not the method's in camel case."""
    parameters = list(inspect.signature(function).parameters.values())[2:]  # without self and call
    first, *rest = function.__name__.split("_")
    named = name or first + "".join(word.capitalize() for word in rest)
    arguments = tuple(parameter.name for parameter in parameters)
    defaults = tuple(p.default for p in parameters if p.default is not inspect.Parameter.empty)
    allowed = EVERYONE if roles == EVERYONE else roles
    signature = (arguments, defaults, many)
    return lambda service: PortMethod(service, named, function, allowed, retry, brief, answer_ms, ends, *signature)


def table(service: str, *rows: Row) -> PortTable:
    """Make the table of a service from its rows."""
    methods = [described(service) for described in rows]
    found = PortTable(service, {m.method: m for m in methods}, {m.name: m for m in methods})
    assert len(found.by_method) == len(found.by_name) == len(methods), "every method and every name once"
    return found
