"""Strategies for every message of the four ports, made from the ports' own type hints.

Each is made once: making it takes longer than all examples of a message.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec
from hypothesis import strategies as st

from chelonia.core.cluster.replicas import Checksums
from chelonia.core.ids import Guid
from chelonia.core.metadata import StoredObject, Triple
from chelonia.core.names import LogicalName
from chelonia.core.ports.bartender import Bartender, MakeRequest
from chelonia.core.ports.librarian import HealthSummary, ReportAnswer, Traversal
from chelonia.core.ports.shepherd import GetRequest, PutRequest, ReplicaStatOutcome
from chelonia.core.values import replace
from tests.unit.wire.samples import field_names

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["", "\\", "\x00", "\r\n", "\ufffe", " a ", "<&>]]>", '"', "\\u0041"]
)
HEX = st.text("0123456789abcdef", max_size=8)
NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/"), min_size=1, max_size=8).filter(
    lambda name: name not in (".", "..")
)
GUIDS = st.one_of(st.just("0"), st.uuids().map(str)).map(Guid)
NAME_PARTS = st.lists(NAMES, max_size=3).map(tuple)
SECTIONS = st.dictionaries(TEXT, st.dictionaries(TEXT, TEXT, min_size=1, max_size=3), max_size=3)
COUNTS = st.dictionaries(TEXT, st.integers(0, 1001), max_size=2)
INT = st.integers(-1, 2**53)


@cache
def of(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a type, as the ports use it."""
    if isinstance(hint, typing.NewType):
        return of(hint.__supertype__)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple and args[-1] is Ellipsis:
        return st.lists(of(args[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*[of(arg) for arg in args])
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*[st.none() if arg is type(None) else of(arg) for arg in args])
    if origin is Mapping:
        if args[1] is int:
            return COUNTS
        return SECTIONS if typing.get_origin(args[1]) is Mapping else st.dictionaries(TEXT, of(args[1]), max_size=3)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return st.sampled_from(hint)
    if dataclasses.is_dataclass(hint) or (isinstance(hint, type) and issubclass(hint, msgspec.Struct)):
        return _value(hint)
    return {str: TEXT, bytes: st.binary(max_size=12), int: INT, bool: st.booleans(), type(None): st.none()}[hint]


@cache
def arguments(method: Any) -> st.SearchStrategy[tuple[Any, ...]]:
    """Argument tuples of a port method."""
    if method is Bartender.make_collection:
        return st.tuples(st.lists(st.builds(MakeRequest, TEXT, TEXT, of(tuple[Triple, ...])), max_size=3).map(tuple))
    hints = typing.get_type_hints(method)
    return st.tuples(*[of(hint) for name, hint in hints.items() if name not in ("call", "return")])


@cache
def results(method: Any) -> st.SearchStrategy[Any]:
    return of(typing.get_type_hints(method)["return"])


def _value(cls: Any) -> st.SearchStrategy[Any]:
    if cls is LogicalName:
        return st.builds(LogicalName, GUIDS, NAME_PARTS, st.booleans())
    if cls is StoredObject:
        return st.builds(StoredObject, TEXT, st.integers(0, 2**53), SECTIONS, COUNTS)
    if cls is Traversal:
        hints = typing.get_type_hints(cls)
        return st.builds(cls, of(hints["steps"]), st.booleans(), of(hints["last"]), NAME_PARTS)
    hints = typing.get_type_hints(cls)
    fields = {name: of(hints[name]) for name in field_names(cls)}
    if cls in (GetRequest, PutRequest):
        fields["lifetime_ms"] = st.integers(0, 2**40)
    if cls is ReportAnswer:
        fields["next_report_ms"] = st.integers(-1, 2**40)
    if cls is HealthSummary:
        fields["replicas"] = COUNTS
    if cls is Checksums:  # SOAP does not know the others
        fields = {name: fields[name] for name in ("sha256", "md5", "adler32")}
    for name in ("sha256", "md5", "adler32"):
        if name in fields:
            fields[name] = HEX
    made = st.builds(cls, **fields)
    return made.map(_as_sent) if cls is ReplicaStatOutcome and "found" in fields else made


def _as_sent(outcome: ReplicaStatOutcome) -> ReplicaStatOutcome:
    """A missing replica has no fields; a present one has none spelled None, the original's word for unknown."""
    if not outcome.found:
        return ReplicaStatOutcome(outcome.request_id, outcome.reference, False)
    spelled = {name: "" for name in outcome.__struct_fields__[2:] if getattr(outcome, name) == "None"}
    return replace(outcome, size=max(outcome.size, -1), **spelled)
