"""One fixed message of each kind, with a value in every field."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Mapping
from typing import Any

import msgspec

from chelonia.core.cluster.replicas import Checksums
from chelonia.core.ids import Guid, ObjectId
from chelonia.core.metadata import StoredObject, Triple
from chelonia.core.names import LogicalName
from chelonia.core.ports.bartender import Bartender, MakeRequest
from chelonia.core.ports.librarian import Traversal

TEXT = "an <é> & a 'b'"
SECTIONS = {"entry": {"type": "file", "owner": "/O=Grid/CN=joe"}, "metadata": {"k": TEXT}}


def of(hint: Any) -> Any:
    """A value of a type, as the ports use it."""
    if isinstance(hint, typing.NewType):
        return of(hint.__supertype__)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple and args[-1] is Ellipsis:
        return (of(args[0]), of(args[0]))
    if origin is tuple:
        return tuple(of(arg) for arg in args)
    if origin in (typing.Union, types.UnionType):
        return of(next(arg for arg in args if arg is not type(None)))
    if origin is Mapping:
        return SECTIONS if args[1] is not int else {"alive": 7}
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return next(iter(hint))
    if dataclasses.is_dataclass(hint) or (isinstance(hint, type) and issubclass(hint, msgspec.Struct)):
        return _value(hint)
    return {str: TEXT, bytes: b"\x00\xff", int: 7, bool: True, type(None): None}[hint]


def arguments(method: Any) -> tuple[Any, ...]:
    if method is Bartender.make_collection:
        return ((MakeRequest("0", "/a", (Triple("states", "closed", "no"),)),),)
    hints = typing.get_type_hints(method)
    return tuple(of(hint) for name, hint in hints.items() if name not in ("call", "return"))


def result(method: Any) -> Any:
    """An answer of a port method."""
    return of(typing.get_type_hints(method)["return"])


def _value(cls: Any) -> Any:
    if cls is LogicalName:
        return LogicalName(Guid("0"), ("a", "b"))
    if cls is StoredObject:
        return StoredObject(ObjectId("0"), 7, SECTIONS, {"entries": 1001})
    hints = typing.get_type_hints(cls)
    values = {name: of(hints[name]) for name in field_names(cls)}
    if cls is Traversal:
        values["rest"] = ("c", "d")
    if cls is Checksums:
        values |= {"crc32c": "", "crc64nvme": ""}  # SOAP does not know them
    return cls(**values)


def field_names(cls: Any) -> tuple[str, ...]:
    """The names of the fields of a struct or a dataclass."""
    if issubclass(cls, msgspec.Struct):
        return cls.__struct_fields__
    return tuple(field.name for field in dataclasses.fields(cls))
