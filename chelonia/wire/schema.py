"""A small language for message bodies: one description gives encoder, decoder and XSD.

A `Record` is a sequence of parts, each bound to an attribute of a core dataclass (or to a parameter of a port method,
or to a position of a hand-written pair of functions). Parts are plain data; `compile_record` turns them into closures
once, at import. Decoders go by local name and are liberal: any prefix, any order, unknown elements ignored. Encoders
emit the prefix of their service, parts in order; an optional part at its default is left out, so that what the
original never had never shows unless it says something.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Any, Final, get_type_hints

import msgspec

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.metadata import Triple
from chelonia.wire.xml import Node, escape, leaf, local_name, text_of


class Missing(enum.Enum):
    """The one value that stands for an element that must be there and was not."""

    REQUIRED = "required"


REQUIRED: Final = Missing.REQUIRED

_PLACES: Final = {"section": 0, "property": 1, "value": 2}

Encode = Callable[[Any], str]
Decode = Callable[[Node], Any]
_Into = Callable[[Node, list[Any]], None]


# --- text forms ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Form:
    """How a value is spelled as text. `plain`: the text never needs escaping. `words`: the only texts allowed."""

    xsd: str
    write: Callable[[Any], str]
    read: Callable[[str], Any]
    plain: bool = True
    words: tuple[str, ...] = ()


def enum_form(kind: type[enum.Enum]) -> Form:
    """The values of an enum of strings."""
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


STR: Final = Form("string", str, str, plain=False)
INT: Final = Form("long", str, _read_int)
BOOL: Final = Form("boolean", lambda value: "1" if value else "0", _read_bool)
YES_NO: Final = Form("string", lambda value: "yes" if value else "no", _read_yes, words=("yes", "no"))
TRUE_FALSE: Final = Form("string", lambda value: "True" if value else "False", _read_bool, words=("True", "False"))


# --- descriptions --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Text:
    """A leaf. `omit`: left out when it has its default."""

    name: str
    attr: str
    form: Form = STR
    default: Any = REQUIRED
    omit: bool = False


@dataclass(frozen=True, slots=True)
class Texts:
    """A leaf repeated any number of times."""

    name: str
    attr: str
    form: Form = STR
    limit: int = bounds.BULK_ELEMENTS_MAX


@dataclass(frozen=True, slots=True)
class Child:
    """A nested record. With `default` None the element is left out for None."""

    name: str
    attr: str
    record: Record
    default: Any = REQUIRED


@dataclass(frozen=True, slots=True)
class Children:
    """A nested record repeated any number of times."""

    name: str
    attr: str
    record: Record
    limit: int = bounds.XML_ELEMENTS_MAX


@dataclass(frozen=True, slots=True)
class ListOf:
    """One element around a repeated part. `required`: it must be there; `omit`: left out when empty."""

    name: str
    of: Texts | Children
    required: bool = False
    omit: bool = False

    @property
    def attr(self) -> str:
        """The attribute of what is listed."""
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
class AnyDepth:
    """Written as `name/leaf*`; read from leaves at any depth below the record, as the original's A-Hash did."""

    name: str
    leaf: str
    attr: str
    limit: int = bounds.BULK_ELEMENTS_MAX


@dataclass(frozen=True, slots=True)
class TextContent:
    """The record's own text: it has no elements."""

    attr: str
    form: Form


Part = Text | Texts | Child | Children | ListOf | Metadata | AnyDepth | TextContent


@dataclass(frozen=True, slots=True)
class Record:
    """A sequence of parts and how they become one value.

    `make` takes the values in the order of `slots`-indexed positions; `take` gives them in the order of the parts.
    `start` holds, per position, the default (`REQUIRED`: must be read).
    """

    parts: tuple[Part, ...]
    make: Callable[..., Any]
    take: Callable[[Any], Sequence[Any]]
    slots: tuple[int, ...]
    start: tuple[Any, ...]


def record(cls: type[Any], *described: Part | str) -> Record:
    """Describe a dataclass or struct: every part is bound to a field by `attr`; other fields keep their defaults.

    A string has the fields, in order, of leaves that follow from them: the form from the type, the name from the
    field's, in camel case, unless it is told (`field=name`). With `?` behind it an element is left out at its default.
    """
    fields = msgspec.structs.fields(cls) if issubclass(cls, msgspec.Struct) else dataclasses.fields(cls)
    order = [field.name for field in fields]
    start = [_field_default(field) for field in fields]
    hints, defaults = get_type_hints(cls), dict(zip(order, start, strict=True))
    parts = tuple(
        part if not isinstance(part, str) else _leaf(part, hints, defaults)
        for told in described
        for part in (told.split() if isinstance(told, str) else (told,))
    )
    slots = tuple(order.index(part.attr) for part in parts)
    for part, slot in zip(parts, slots, strict=True):
        start[slot] = _part_default(part, start[slot])
    getter = attrgetter(*(part.attr for part in parts))
    take: Callable[[Any], Sequence[Any]] = getter if len(parts) > 1 else lambda value: (getter(value),)
    return Record(parts, cls, take, slots, tuple(start))


_ACRONYMS: Final = {"id": "ID", "ln": "LN", "guid": "GUID", "url": "URL", "turl": "TURL"}


def _leaf(word: str, hints: Mapping[str, Any], defaults: Mapping[str, Any]) -> Text:
    attr, _, name = word.removesuffix("?").partition("=")
    if not name:
        first, *rest = attr.split("_")
        name = _ACRONYMS.get(first, first) + "".join(_ACRONYMS.get(each, each.capitalize()) for each in rest)
    kind = getattr(hints[attr], "__supertype__", hints[attr])
    form = enum_form(kind) if issubclass(kind, enum.Enum) else {bool: BOOL, int: INT}.get(kind, STR)
    return Text(name, attr, form, defaults[attr], omit=True) if word.endswith("?") else Text(name, attr, form)


def shaped(make: Callable[..., Any], take: Callable[[Any], Sequence[Any]], *parts: Part) -> Record:
    """Describe a value by two functions: `make(*values)` and `take(value)`, both in the order of the parts."""
    start = tuple(_part_default(part, REQUIRED) for part in parts)
    return Record(parts, make, take, tuple(range(len(parts))), start)


def single(part: Part) -> Record:
    """Describe a value that is one part."""
    return shaped(lambda value: value, lambda value: (value,), part)


def arguments(method: Callable[..., Any], *parts: Part) -> Record:
    """Describe the arguments of a port method (after `self` and `call`); the value is their tuple.

    A parameter is bound by name; its default, if any, is that of an absent element.
    """
    names, defaults = _parameters(method)
    slots = tuple(names.index(part.attr) for part in parts)
    if sorted(slots) != list(range(len(names))):
        raise TypeError(f"{method.__qualname__}: parts {slots} do not cover {names}")
    start = list(defaults)
    for part, slot in zip(parts, slots, strict=True):
        start[slot] = _part_default(part, start[slot])
    return Record(parts, _tuple, lambda args: [args[slot] for slot in slots], slots, tuple(start))


def whole_argument(method: Callable[..., Any], of: Record) -> Record:
    """Describe a port method of one argument whose parts stand directly in the request."""
    names, _ = _parameters(method)
    if len(names) != 1:
        raise TypeError(f"{method.__qualname__} has parameters {names}, not one")
    return Record(of.parts, lambda *values: (of.make(*values),), lambda args: of.take(args[0]), of.slots, of.start)


def _tuple(*values: Any) -> tuple[Any, ...]:
    return values


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
        case Text() | Child():
            return inherited if part.default is REQUIRED else part.default
        case Texts() | Children() | AnyDepth():
            return ()
        case ListOf():
            return REQUIRED if part.required else ()
        case Metadata():
            return {} if part.sections else ()
        case TextContent():
            return REQUIRED


# --- compiling -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Codec:
    """Both directions of a record: `encode` gives the inner XML, `decode` takes the element around it."""

    encode: Encode
    decode: Decode


def compile_record(described: Record, prefix: str) -> Codec:
    """Turn a description into closures that write elements under `prefix` (empty: no prefix)."""
    return Codec(_compile_encode(described, prefix), _compile_decode(described))


def _compile_encode(described: Record, prefix: str) -> Encode:
    encoders = tuple(_part_encoder(part, prefix) for part in described.parts)
    take = described.take

    def encode(value: Any) -> str:
        return "".join([write(item) for write, item in zip(encoders, take(value), strict=True)])

    return encode


def _compile_decode(described: Record) -> Decode:
    readers: dict[str, _Into] = {}
    final: list[_Into] = []
    for part, slot in zip(described.parts, described.slots, strict=True):
        if isinstance(part, TextContent | AnyDepth):
            final.append(_whole_reader(part, slot))
        else:
            readers[part.name] = _part_reader(part, slot)
    start, make = list(described.start), described.make
    names = {slot: part for part, slot in zip(described.parts, described.slots, strict=True)}

    def decode(node: Node) -> Any:
        values = start.copy()
        for child in node:
            reader = readers.get(child.tag.rpartition("}")[2])
            if reader is not None:
                reader(child, values)
        for whole in final:
            whole(node, values)
        if REQUIRED in values:
            raise _missing(node, names.get(values.index(REQUIRED)))
        return make(*values)

    return decode


def _missing(node: Node, part: Part | None) -> CheloniaError:
    name = getattr(part, "name", "content")
    return CheloniaError(Kind.BAD_XML, subject=local_name(node)[:80], cause=f"element {name} is missing")


def _tag(prefix: str, name: str) -> str:
    return f"{prefix}:{name}" if prefix else name


def _part_encoder(part: Part, prefix: str) -> Encode:
    match part:
        case Text():
            return _text_encoder(part, prefix)
        case Texts():
            one = _leaf_encoder(_tag(prefix, part.name), part.form)
            return lambda values: "".join([one(value) for value in values])
        case Child():
            return _child_encoder(part, prefix)
        case Children():
            tag, inner = _tag(prefix, part.name), _compile_encode(part.record, prefix)
            return lambda values: "".join([f"<{tag}>{inner(value)}</{tag}>" for value in values])
        case ListOf():
            return _listed_encoder(part, prefix)
        case Metadata():
            return _metadata_encoder(part, prefix)
        case AnyDepth():
            return _listed_encoder(ListOf(part.name, Texts(part.leaf, part.attr)), prefix)
        case TextContent():
            write = part.form.write
            return lambda value: escape(write(value)) or ""


def _leaf_encoder(tag: str, form: Form) -> Encode:
    opening, closing, write = f"<{tag}>", f"</{tag}>", form.write
    if form.plain:
        return lambda value: opening + write(value) + closing
    if form is STR:
        return _string_encoder(tag)
    return lambda value: leaf(tag, write(value))


def _string_encoder(tag: str) -> Encode:
    opening, closing = f"<{tag}>", f"</{tag}>"

    def encode(text: str) -> str:
        escaped = escape(text)
        return leaf(tag, text) if escaped is None else opening + escaped + closing

    return encode


def _text_encoder(part: Text, prefix: str) -> Encode:
    one = _leaf_encoder(_tag(prefix, part.name), part.form)
    if not part.omit:
        return one
    default = part.default
    return lambda value: "" if value == default else one(value)


def _child_encoder(part: Child, prefix: str) -> Encode:
    tag, inner, optional = _tag(prefix, part.name), _compile_encode(part.record, prefix), part.default is None

    def encode(value: Any) -> str:
        return "" if optional and value is None else f"<{tag}>{inner(value)}</{tag}>"

    return encode


def _listed_encoder(part: ListOf, prefix: str) -> Encode:
    tag, inner, omit = _tag(prefix, part.name), _part_encoder(part.of, prefix), part.omit

    def encode(values: Any) -> str:
        return "" if omit and not values else f"<{tag}>{inner(values)}</{tag}>"

    return encode


def _metadata_encoder(part: Metadata, prefix: str) -> Encode:
    inner = "" if part.bare else prefix
    around, one = _tag(prefix, part.name), _tag(inner, "metadata")
    section, prop, value = (_string_encoder(_tag(inner, name)) for name in ("section", "property", "value"))

    def triples(items: Sequence[Triple]) -> str:
        written = [f"<{one}>{section(t.section)}{prop(t.property)}{value(t.value)}</{one}>" for t in items]
        return f"<{around}>{''.join(written)}</{around}>"

    def sections(items: Mapping[str, Mapping[str, str]]) -> str:
        written = []
        for name, properties in items.items():
            head = f"<{one}>{section(name)}"
            written += [f"{head}{prop(p)}{value(v)}</{one}>" for p, v in properties.items()]
        return f"<{around}>{''.join(written)}</{around}>"

    return sections if part.sections else triples


def _part_reader(part: Text | Texts | Child | Children | ListOf | Metadata, slot: int) -> _Into:
    match part:
        case Text():
            read = _leaf_reader(part.name, part.form)
            return lambda node, values: values.__setitem__(slot, read(node))
        case Texts():
            return _repeat_reader(_leaf_reader(part.name, part.form), slot, part)
        case Child():
            inner = _compile_decode(part.record)
            return lambda node, values: values.__setitem__(slot, inner(node))
        case Children():
            return _repeat_reader(_compile_decode(part.record), slot, part)
        case ListOf():
            return _listed_reader(part, slot)
        case Metadata():
            return _metadata_reader(part, slot)


def _leaf_reader(name: str, form: Form) -> Decode:
    if form is STR:
        return text_of
    convert = form.read

    def read(node: Node) -> Any:
        text = text_of(node)
        try:
            return convert(text)
        except ValueError as error:
            raise CheloniaError(Kind.BAD_REQUEST, "", name, f"{text[:80]!a} is not {error}") from None

    return read


def _repeat_reader(read: Decode, slot: int, part: Texts | Children) -> _Into:
    def into(node: Node, values: list[Any]) -> None:
        values[slot] = (*values[slot], read(node))
        _check_limit(part.name, len(values[slot]), part.limit)

    return into


def _listed_reader(part: ListOf, slot: int) -> _Into:
    name, limit = part.of.name, part.of.limit
    read = _leaf_reader(name, part.of.form) if isinstance(part.of, Texts) else _compile_decode(part.of.record)

    def into(node: Node, values: list[Any]) -> None:
        _check_limit(name, len(node), limit)
        values[slot] = tuple([read(child) for child in node if child.tag.rpartition("}")[2] == name])

    return into


def _check_limit(name: str, count: int, limit: int) -> None:
    if count > limit:
        raise CheloniaError(Kind.TOO_LARGE, "", name, f"{count} elements, at most {limit} are taken in one call")


def _metadata_reader(part: Metadata, slot: int) -> _Into:
    def triples(node: Node, values: list[Any]) -> None:
        values[slot] = tuple([Triple(*_triple(child)) for child in node])

    def sections(node: Node, values: list[Any]) -> None:
        gathered: dict[str, dict[str, str]] = {}
        for child in node:
            section, prop, value = _triple(child)
            gathered.setdefault(section, {})[prop] = value
        values[slot] = gathered

    return sections if part.sections else triples


def _triple(node: Node) -> list[str]:
    found = ["", "", ""]
    for child in node:
        place = _PLACES.get(child.tag.rpartition("}")[2])
        if place is not None:
            text = child.text
            found[place] = text if text and "\\" not in text else text_of(child)
    return found


def _whole_reader(part: TextContent | AnyDepth, slot: int) -> _Into:
    if isinstance(part, TextContent):
        read = _leaf_reader(part.attr, part.form)
        return lambda node, values: values.__setitem__(slot, read(node))
    name, limit = part.leaf, part.limit

    def into(node: Node, values: list[Any]) -> None:
        found = tuple(text_of(child) for child in node.iter() if child.tag.rpartition("}")[2] == name)
        _check_limit(name, len(found), limit)
        values[slot] = found

    return into
