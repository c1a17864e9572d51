"""A small language for message bodies: one description gives encoder, decoder and XSD.

A `Record` is a sequence of parts. Each is bound to an attribute of a core dataclass, a parameter of a port method, or a
position of a hand-written pair of functions. Parts are plain data, which a `Codec` goes through. Decoding goes by local
name and is liberal: any prefix, any order, unknown elements ignored. Encoding emits the prefix of its service, parts in
order. It leaves out optional parts at their defaults, so that our additions to the original show only when set.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from operator import attrgetter
from typing import Any, Final, get_type_hints

import msgspec

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.metadata import Triple
from chelonia.wire.xml import Node, escape, leaf, local_name, text_of


class Missing(enum.Enum):
    """The one value for a required element that is missing."""

    REQUIRED = "required"


REQUIRED: Final = Missing.REQUIRED

_PLACES: Final = {"section": 0, "property": 1, "value": 2}


# --- text forms ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Form:
    """The spelling of a value as text. `words`: the only texts allowed."""

    xsd: str
    write: Callable[[Any], str]
    read: Callable[[str], Any]
    words: tuple[str, ...] = ()


def enum_form(kind: type[enum.Enum]) -> Form:
    """Return the form of an enum of strings."""
    words = tuple(str(member.value) for member in kind)
    known: dict[str, enum.Enum] = {str(member.value): member for member in kind}

    def read(text: str) -> enum.Enum:
        found = known.get(text.strip())
        if found is None:
            raise ValueError(f"one of: {', '.join(words)}")
        return found

    return Form("string", lambda value: str(value.value), read, words=words)


def _read_int(text: str) -> int:
    text = text.strip()
    if not 1 <= len(text) <= 20 or not text.removeprefix("-").isdigit() or not text.isascii():
        raise ValueError("an integer")
    number = int(text)
    if not -(2**63) <= number < 2**63:
        raise ValueError("an integer of 64 bits")
    return number


def _read_bool(text: str) -> bool:
    word = text.strip().lower()
    if word in ("1", "true"):
        return True
    if word in ("0", "false"):
        return False
    raise ValueError("1 or 0")


def _read_yes(text: str) -> bool:
    word = text.strip().lower()
    if word not in ("yes", "no"):
        raise ValueError("yes or no")
    return word == "yes"


STR: Final = Form("string", str, str)
INT: Final = Form("long", str, _read_int)
BOOL: Final = Form("boolean", lambda value: "1" if value else "0", _read_bool)
YES_NO: Final = Form("string", lambda value: "yes" if value else "no", _read_yes, words=("yes", "no"))
TRUE_FALSE: Final = Form("string", lambda value: "True" if value else "False", _read_bool, words=("True", "False"))


# --- descriptions --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class One:
    """A leaf, or a nested record. `omit`: left out at its default."""

    name: str
    attr: str
    of: Form | Record = STR
    default: Any = REQUIRED
    omit: bool = False


@dataclass(frozen=True, slots=True)
class Many:
    """A leaf or nested record repeated up to `limit` times."""

    name: str
    attr: str
    of: Form | Record = STR
    limit: int = bounds.XML_ELEMENTS_MAX


@dataclass(frozen=True, slots=True)
class ListOf:
    """One element around a repeated part. `required`: it must be there; `omit`: left out when empty. `deep`: its items
    may be at any depth below the record, as in the original's A-Hash."""

    name: str
    of: Many
    required: bool = False
    omit: bool = False
    deep: bool = False

    @property
    def attr(self) -> str:
        """The attribute of the list's items."""
        return self.of.attr


@dataclass(frozen=True, slots=True)
class Metadata:
    """`metadataList/metadata*{section,property,value}` as triples, or as sections when `sections`.

    `bare`: the children of `metadataList` carry no prefix (the original's `list` answer).
    """

    attr: str
    sections: bool = False
    bare: bool = False
    name: str = "metadataList"


@dataclass(frozen=True, slots=True)
class TextContent:
    """The record's own text: it has no elements."""

    attr: str
    form: Form


Part = One | Many | ListOf | Metadata | TextContent


@dataclass(frozen=True, slots=True)
class Record:
    """A sequence of parts, and the functions that turn them into one value and back.

    `make` takes the values by position; `slots` has the position of each part. `take` returns them in the order of the
    parts. `start`: the default by position (`REQUIRED`: must be read). `places`: parts with an element of their own, by
    its name, with their positions; `around`: those read from the record's own element.
    """

    parts: tuple[Part, ...]
    make: Callable[..., Any]
    take: Callable[[Any], Sequence[Any]]
    slots: tuple[int, ...]
    start: tuple[Any, ...]
    places: dict[str, tuple[One | Many | ListOf | Metadata, int]] = field(init=False, compare=False)
    around: list[tuple[ListOf | TextContent, int]] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "places", {})
        object.__setattr__(self, "around", [])
        for part, slot in zip(self.parts, self.slots, strict=True):
            if isinstance(part, TextContent) or (isinstance(part, ListOf) and part.deep):
                self.around.append((part, slot))
            else:
                self.places[part.name] = (part, slot)


def record(cls: type[Any], *described: Part | str) -> Record:
    """Describe a dataclass or struct: every part is bound to a field by `attr`; other fields keep their defaults.

    A string names fields that become leaves, in order. The form follows from the field's type. The name is the field's
    in camel case, unless given as `field=name`. With `?` behind it the leaf is left out at its default.
    """
    fields = msgspec.structs.fields(cls) if issubclass(cls, msgspec.Struct) else dataclasses.fields(cls)
    order = [field.name for field in fields]
    start = [_field_default(field) for field in fields]
    hints, defaults = get_type_hints(cls), dict(zip(order, start, strict=True))
    parts = tuple(
        part if not isinstance(part, str) else _leaf(part, hints, defaults)
        for item in described
        for part in (item.split() if isinstance(item, str) else (item,))
    )
    slots = tuple(order.index(part.attr) for part in parts)
    for part, slot in zip(parts, slots, strict=True):
        start[slot] = _part_default(part, start[slot])
    getter = attrgetter(*(part.attr for part in parts))
    take: Callable[[Any], Sequence[Any]] = getter if len(parts) > 1 else lambda value: (getter(value),)
    return Record(parts, cls, take, slots, tuple(start))


_ACRONYMS: Final = {"id": "ID", "ln": "LN", "guid": "GUID", "url": "URL", "turl": "TURL"}


def _leaf(word: str, hints: Mapping[str, Any], defaults: Mapping[str, Any]) -> One:
    attr, _, name = word.removesuffix("?").partition("=")
    if not name:
        first, *rest = attr.split("_")
        name = _ACRONYMS.get(first, first) + "".join(_ACRONYMS.get(each, each.capitalize()) for each in rest)
    kind = getattr(hints[attr], "__supertype__", hints[attr])
    form = enum_form(kind) if issubclass(kind, enum.Enum) else {bool: BOOL, int: INT}.get(kind, STR)
    return One(name, attr, form, defaults[attr], omit=True) if word.endswith("?") else One(name, attr, form)


def shaped(make: Callable[..., Any], take: Callable[[Any], Sequence[Any]], *parts: Part) -> Record:
    """Describe a value by two functions: `make(*values)` and `take(value)`, both in the order of the parts."""
    start = tuple(_part_default(part, REQUIRED) for part in parts)
    return Record(parts, make, take, tuple(range(len(parts))), start)


def single(part: Part) -> Record:
    """Describe a value that is one part."""
    return shaped(lambda value: value, lambda value: (value,), part)


def arguments(method: Callable[..., Any], *parts: Part) -> Record:
    """Describe the arguments of a port method (after `self` and `call`); the value is their tuple.

    A part is bound to a parameter by name; the parameter's default, if any, stands for an absent element.
    """
    names, defaults = _parameters(method)
    slots = tuple(names.index(part.attr) for part in parts)
    if sorted(slots) != list(range(len(names))):
        raise TypeError(f"{method.__qualname__}: parts {slots} do not cover {names}")
    start = list(defaults)
    for part, slot in zip(parts, slots, strict=True):
        start[slot] = _part_default(part, start[slot])
    return Record(parts, lambda *values: values, lambda args: [args[slot] for slot in slots], slots, tuple(start))


def whole_argument(method: Callable[..., Any], of: Record) -> Record:
    """Describe a port method of one argument whose parts are directly in the request."""
    names, _ = _parameters(method)
    if len(names) != 1:
        raise TypeError(f"{method.__qualname__} has parameters {names}, not one")
    return Record(of.parts, lambda *values: (of.make(*values),), lambda args: of.take(args[0]), of.slots, of.start)


@cache
def _parameters(method: Callable[..., Any]) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    parameters = list(inspect.signature(method).parameters.values())[2:]
    empty = inspect.Parameter.empty
    return tuple(p.name for p in parameters), tuple(REQUIRED if p.default is empty else p.default for p in parameters)


def _field_default(field: dataclasses.Field[Any] | msgspec.structs.FieldInfo) -> Any:
    missing = (dataclasses.MISSING, msgspec.NODEFAULT)
    if field.default_factory not in missing:
        return field.default_factory()
    return REQUIRED if field.default in missing else field.default


def _part_default(part: Part, inherited: Any) -> Any:
    match part:
        case One():
            return inherited if part.default is REQUIRED else part.default
        case Many():
            return ()
        case ListOf():
            return REQUIRED if part.required else ()
        case Metadata():
            return {} if part.sections else ()
        case TextContent():
            return REQUIRED


# --- both directions -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Codec:
    """Both directions of a record, its elements under `prefix` (empty: no prefix)."""

    described: Record
    prefix: str

    def encode(self, value: Any) -> str:
        """Return the inner XML. Raises: BAD_REQUEST when a text is not valid UTF-8."""
        return _encoded(self.described, value, self.prefix)

    def decode(self, node: Node) -> Any:
        """Return the value in the element around the record. Raises: BAD_XML, BAD_REQUEST, TOO_LARGE."""
        return _decoded(self.described, node)


def _encoded(described: Record, value: Any, prefix: str) -> str:
    items = zip(described.parts, described.take(value), strict=True)
    return "".join([_written(part, item, prefix) for part, item in items])


def _written(part: Part, value: Any, prefix: str) -> str:
    match part:
        case One():
            return "" if part.omit and value == part.default else _element(part, value, prefix)
        case Many():
            return "".join([_element(part, one, prefix) for one in value])
        case ListOf():
            return "" if part.omit and not value else _around(_tag(prefix, part.name), _written(part.of, value, prefix))
        case Metadata():
            return _around(_tag(prefix, part.name), _metadata(part, value, "" if part.bare else prefix))
        case TextContent():
            return escape(part.form.write(value)) or ""


def _element(part: One | Many, value: Any, prefix: str) -> str:
    tag, of = _tag(prefix, part.name), part.of
    return leaf(tag, of.write(value)) if isinstance(of, Form) else _around(tag, _encoded(of, value, prefix))


def _metadata(part: Metadata, value: Any, prefix: str) -> str:
    triples = (
        ((section, *pair) for section, properties in value.items() for pair in properties.items())
        if part.sections
        else ((each.section, each.property, each.value) for each in value)
    )
    one, *names = (_tag(prefix, name) for name in ("metadata", *_PLACES))
    return "".join([_around(one, "".join(map(leaf, names, triple))) for triple in triples])


def _tag(prefix: str, name: str) -> str:
    return f"{prefix}:{name}" if prefix else name


def _around(tag: str, inside: str) -> str:
    return f"<{tag}>{inside}</{tag}>"


def _decoded(described: Record, node: Node) -> Any:
    values, places = list(described.start), described.places
    for child in node:
        place = places.get(child.tag.rpartition("}")[2])
        if place is not None:
            part, slot = place
            values[slot] = _read(part, child, values[slot])
    for whole, slot in described.around:
        if isinstance(whole, TextContent):
            values[slot] = _text(node, whole.attr, whole.form)
        else:
            values[slot] = _listed(whole.of, node.iter())
    if REQUIRED in values:
        raise _missing(node, described, values.index(REQUIRED))
    return described.make(*values)


def _read(part: One | Many | ListOf | Metadata, node: Node, before: Any) -> Any:
    """The value in the element of a part; `before`: the values of earlier elements of its name."""
    match part:
        case One():
            return _value(part, node)
        case ListOf():
            return _listed(part.of, node)
        case Metadata():
            return _sections(node) if part.sections else tuple([Triple(*_triple(child)) for child in node])
        case Many():
            _check_limit(part.name, len(before) + 1, part.limit)
            return (*before, _value(part, node))


def _listed(of: Many, nodes: Iterable[Node]) -> tuple[Any, ...]:
    found = [node for node in nodes if node.tag.rpartition("}")[2] == of.name]
    _check_limit(of.name, len(found), of.limit)
    return tuple([_value(of, node) for node in found])


def _value(part: One | Many, node: Node) -> Any:
    return _text(node, part.name, part.of) if isinstance(part.of, Form) else _decoded(part.of, node)


def _text(node: Node, name: str, form: Form) -> Any:
    text = text_of(node)
    try:
        return form.read(text)
    except ValueError as error:
        raise CheloniaError(Kind.BAD_REQUEST, "", name, f"{text[:80]!a} is not {error}") from None


def _sections(node: Node) -> dict[str, dict[str, str]]:
    gathered: dict[str, dict[str, str]] = {}
    for section, prop, value in map(_triple, node):
        gathered.setdefault(section, {})[prop] = value
    return gathered


def _triple(node: Node) -> list[str]:
    found = ["", "", ""]
    for child in node:
        place = _PLACES.get(child.tag.rpartition("}")[2])
        if place is not None:
            found[place] = text_of(child)
    return found


def _missing(node: Node, described: Record, slot: int) -> CheloniaError:
    part = next((part for part, at in zip(described.parts, described.slots, strict=True) if at == slot), None)
    name = getattr(part, "name", "content")
    return CheloniaError(Kind.BAD_XML, subject=local_name(node)[:80], cause=f"element {name} is missing")


def _check_limit(name: str, count: int, limit: int) -> None:
    if count > limit:
        raise CheloniaError(Kind.TOO_LARGE, "", name, f"{count} elements, at most {limit} are taken in one call")
