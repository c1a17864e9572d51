"""Frozen values of the services, made in a third of the time.

The constructor that `dataclasses` writes for a frozen class asks `object.__setattr__` for each field, and a seed makes
tens of thousands of values. Here a value is filled while its class is a twin with the same slots that is not frozen.
What comes out is the same, and as frozen.
"""

from __future__ import annotations

import sys
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

FIELDS_MIN = 4
"""With fewer there is nothing to be gained."""


def hasten(package: str) -> None:
    """Give the frozen dataclasses of all modules of a package that are loaded a faster constructor."""
    for name, module in sorted(sys.modules.items()):
        if name.partition(".")[0] == package:
            for found in list(vars(module).values()):
                if isinstance(found, type) and found.__module__ == name and _fits(found):
                    found.__init__ = _constructor(found)  # type: ignore[misc]


def _fits(cls: Any) -> bool:
    if not is_dataclass(cls) or not cls.__dataclass_params__.frozen or "__slots__" not in vars(cls):
        return False
    own = tuple(field.name for field in fields(cls))
    plain = all(field.init and not field.kw_only for field in fields(cls)) and cls.__slots__ == own
    alone = not cls.__subclasses__() and cls.__bases__ == (object,) and not hasattr(cls, "__post_init__")
    written = "__dataclass_builtins_object__" in cls.__init__.__code__.co_freevars
    return plain and alone and written and len(own) >= FIELDS_MIN


def _constructor(cls: Any) -> Any:
    own = fields(cls)
    names: dict[str, Any] = {
        "_frozen": cls,
        "_open": type(cls.__name__, (), {"__slots__": cls.__slots__}),
        "_become": object.__dict__["__class__"].__set__,
        "_missing": MISSING,
    }
    names |= {f"default_{field.name}": field.default for field in own}
    names |= {f"make_{field.name}": field.default_factory for field in own}
    lines = [f"def __init__(self, {', '.join(map(_parameter, own))}):", " _become(self, _open)"]
    lines += [f" self.{field.name} = {_value(field)}" for field in own]
    exec("\n".join([*lines, " self.__class__ = _frozen"]), names)
    return names["__init__"]


def _parameter(field: Field[Any]) -> str:
    if field.default_factory is not MISSING:
        return f"{field.name}=_missing"
    return field.name if field.default is MISSING else f"{field.name}=default_{field.name}"


def _value(field: Field[Any]) -> str:
    if field.default_factory is MISSING:
        return field.name
    return f"make_{field.name}() if {field.name} is _missing else {field.name}"
