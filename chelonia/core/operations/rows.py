"""What a row of a table says of an operation, and how a table is put together."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from chelonia.core import bounds
from chelonia.core.caller import Role

EVERYONE: Final = tuple(Role)
"""Stands for every caller, also one without a role; compared by identity."""


class Retry(enum.Enum):
    """What a stub may do after a failure that may be the transport's."""

    IDEMPOTENT = "idempotent"
    """It may be asked again."""
    KEYED = "keyed"
    """It may be asked again under the call's request key; a call without one is given one."""
    KEY_ARGUMENT = "key argument"
    """The same, with the key as first argument."""
    ONCE = "once"
    """It may have been carried out, so it is not asked again."""


class PortMethod(msgspec.Struct, frozen=True, eq=False):
    """One row. `name`: on the wire; `roles`: who may call it, or `EVERYONE`.

    `brief`: changes nothing and is answered soon, so another instance is asked sooner. `answer_ms`: how long one answer
    may take (0: as the stub is told); what may take so long is asked once. `ends`: it only reads, and may be long: its
    work ends with the caller's connection, where that of a change is finished, for its effects.
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
    """How many elements each argument that is a list may have."""

    @property
    def method(self) -> str:
        """Its name in the port."""
        return self.function.__name__

    def filled(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """All arguments in order, as a call by position and by name gives them. Raises: TypeError, as a call would."""
        count = len(self.arguments)
        first = count - len(self.defaults)
        if not named and first <= len(args) <= count:
            return args + self.defaults[len(args) - first :]
        known = {**dict(zip(self.arguments[first:], self.defaults, strict=True)), **named}
        left = self.arguments[len(args) :]
        if len(args) > count or not (set(named) <= set(left) <= set(known)):
            raise TypeError(f"{self.service}.{self.method} takes {', '.join(self.arguments) or 'no arguments'}")
        return (*args, *(known[name] for name in left))


class PortTable(msgspec.Struct, frozen=True, eq=False):
    """One port: the name of its service and its methods, by their names in the port and on the wire."""

    name: str
    by_method: Mapping[str, PortMethod]
    by_name: Mapping[str, PortMethod]


Row = Callable[[str], PortMethod]
"""A row that does not know its service yet."""


def row(
    function: Callable[..., Any], *roles: Role, retry: Retry = Retry.IDEMPOTENT, name: str = "",
    brief: bool = False, answer_ms: int = 0, ends: bool = False, many: int = bounds.BULK_ELEMENTS_MAX,
) -> Row:  # fmt: skip
    """Describe one method of a port; `name` on the wire only where it is not the method's in camel case."""
    parameters = list(inspect.signature(function).parameters.values())[2:]  # without self and call
    first, *rest = function.__name__.split("_")
    named = name or first + "".join(word.capitalize() for word in rest)
    arguments = tuple(parameter.name for parameter in parameters)
    defaults = tuple(p.default for p in parameters if p.default is not inspect.Parameter.empty)
    who = EVERYONE if roles == EVERYONE else roles
    told = (arguments, defaults, many)
    return lambda service: PortMethod(service, named, function, who, retry, brief, answer_ms, ends, *told)


def table(service: str, *rows: Row) -> PortTable:
    """Put a table together."""
    methods = [described(service) for described in rows]
    found = PortTable(service, {m.method: m for m in methods}, {m.name: m for m in methods})
    assert len(found.by_method) == len(found.by_name) == len(methods), "every method and every name once"
    return found
