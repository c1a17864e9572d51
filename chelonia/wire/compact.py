"""The compact encoding: calls of services, SDK and CLI as frames of MessagePack, many at once on one connection.

It has the same ports, methods and value types as SOAP, at a tenth of its cost. SOAP stays the public face: peers speak
this only if both ends of a TLS connection agree on it (ALPN `PROTOCOL`). No I/O here.

A frame is a length (4 bytes, big-endian) and that many bytes of MessagePack:
- call:   `[number, service, method, request id, request key, service id, read after, strong, [argument, ...]]`
- answer: `[number, result, null, position]` or `[number, null, [kind, op, subject, cause], position]`; a failure with
  number 0 answers every call

Replicas of the A-Hash put the same arguments, results and failures into messages of their own
(`chelonia.ahash.group.forwarding`). The caller numbers its calls; answers come in any order. Value types are maps by
field name. Decoders ignore unknown fields, and missing ones have their defaults, so one version of skew is harmless.
See `docs/formats/compact.md`.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Final, Generic, TypeVar

import msgspec

from chelonia.core import bounds
from chelonia.core.cluster.position import Position
from chelonia.core.errors import CheloniaError, Kind, kind_from_wire
from chelonia.core.operations.rows import PortMethod, PortTable

A = TypeVar("A")
T = TypeVar("T")
PROTOCOL: Final = "chelonia-compact/1"
"""The name under which both ends agree on this encoding (RFC 7301)."""
SOAP_ALONE: Final = frozenset({"heartbeat"})
"""Methods without a compact form: a Librarian takes the end of the HTTP connection for the end of the Shepherd."""
LENGTH_BYTES: Final = 4
HEAD_BYTES: Final = 10
"""Bytes of a frame that hold the call's number: the first of the array, and at most nine of the number."""
_SHORT_ARRAY: Final = 0x9
_SHORT_NUMBER_MAX: Final = 0x7F
EVERY_CALL: Final = 0
"""Number of a failure that ends a connection on which no call has begun; callers count from 1."""
NOTHING: Final = msgspec.Raw(msgspec.msgpack.encode(None))


class FramedCall(msgspec.Struct, Generic[A], array_like=True):
    """One call, numbered by the connection it leaves on. The sender encodes its `args` with it in one pass.

    The receiver decodes them only after it has found the method and checked the caller's right.
    """

    number: int
    service: str
    method: str
    request_id: str
    request_key: str
    service_id: str
    read_after: Position | None
    strong: bool
    args: A


IncomingCall = FramedCall[msgspec.Raw]
OutgoingCall = FramedCall[tuple[Any, ...]]


class WireError(msgspec.Struct, array_like=True, frozen=True):
    """An error as it crosses the wire."""

    kind: str
    op: str
    subject: str
    cause: str

    @classmethod
    def of(cls, error: CheloniaError) -> WireError:
        """Return the form of an error."""
        return cls(error.kind.value, error.op, error.subject, error.cause)

    def error(self) -> CheloniaError:
        return CheloniaError(kind_from_wire(self.kind), self.op, self.subject, self.cause)


class FramedAnswer(msgspec.Struct, Generic[A], array_like=True, frozen=True):
    """The answer to a call. The receiver decodes its `result` once it knows the call."""

    number: int
    result: A
    failure: WireError | None
    position: Position | None


IncomingAnswer = FramedAnswer[msgspec.Raw]


CALL_BYTES_MAX: Final = bounds.SOAP_BODY_BYTES_MAX
ANSWER_BYTES_MAX: Final = 4 * bounds.SOAP_BODY_BYTES_MAX
"""Largest answer, as of our clients by SOAP."""


class Splitter:
    """Cuts a stream of bytes into frames of at most `bytes_max`, which may change between two of them. It skips larger
    ones of at most `passed_max`."""

    def __init__(self, bytes_max: int, passed_max: int = 0) -> None:
        self.bytes_max = bytes_max
        self.passed: list[int] = []
        """Numbers of the calls whose frames were skipped; the caller refuses them and takes them out."""
        self.passed_max = passed_max
        self._passing = 0
        self.kept = bytearray()
        """Bytes of an incomplete frame."""

    @property
    def amid(self) -> bool:
        """Whether a frame is incomplete."""
        return bool(self.kept or self._passing)

    def feed(self, data: bytes) -> Iterable[bytes]:
        """Return the frames that are complete now.

        Raises, now or while iterating: TOO_LARGE, BAD_REQUEST (a skipped frame is no call): close the connection.
        """
        if self._passing:
            data, self._passing = data[self._passing :], max(0, self._passing - len(data))
        if not self.kept and int.from_bytes(data[:LENGTH_BYTES]) == len(data) - LENGTH_BYTES <= self.bytes_max:
            return (data[LENGTH_BYTES:],)  # mostly one whole frame comes
        return self._frames(data)

    def _frames(self, data: bytes) -> Iterator[bytes]:
        if self.kept:
            self.kept += data
            if self._end(self.kept, 0) is None:
                return  # copy nothing before its frame is complete: large ones come in many parts
            data = bytes(self.kept)
            self.kept.clear()
        at = 0
        try:
            while (end := self._end(data, at)) is not None:
                if end - at - LENGTH_BYTES > self.bytes_max:
                    self.passed.append(_number_of(data[at + LENGTH_BYTES : at + LENGTH_BYTES + HEAD_BYTES]))
                    self._passing = max(0, end - len(data))
                else:
                    yield data[at + LENGTH_BYTES : end]
                at = end
        finally:
            self.kept += data[at:]

    def _end(self, data: bytes | bytearray, at: int) -> int | None:
        """The end of the frame that begins `at`; None: it is incomplete, and not known as one to skip."""
        have = len(data) - at - LENGTH_BYTES
        if have < 0:
            return None
        size = int.from_bytes(data[at : at + LENGTH_BYTES])
        if size > max(self.bytes_max, self.passed_max):
            raise CheloniaError(Kind.TOO_LARGE, "compact", cause=f"a frame has at most {self.bytes_max} bytes")
        enough = HEAD_BYTES if size > self.bytes_max else size
        return at + LENGTH_BYTES + size if have >= min(enough, size) else None


def _number_of(head: bytes) -> int:
    """The number of a call from its first bytes. Raises: BAD_REQUEST unless it is in one of the short forms."""
    width = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}.get(head[1], 0)
    if head[0] >> 4 != _SHORT_ARRAY or (not width and head[1] > _SHORT_NUMBER_MAX):
        raise CheloniaError(Kind.BAD_REQUEST, "compact", cause="this is not a call")
    return int.from_bytes(head[2 : 2 + width]) if width else head[1]


class TaggedUnion:
    """A list of values of one of several types, each in a map under the name of its type: `{"Write": {...}}`."""

    def __init__(self, kinds: Iterable[type]) -> None:
        fields = [(each.__name__, each | None, None) for each in kinds]
        self.one = msgspec.defstruct("Choice", fields, omit_defaults=True, frozen=True)
        self.many: Any = types.GenericAlias(tuple, (self.one, ...))
        """Type of the list on the wire."""

    def pack(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the values as they go over the wire."""
        return tuple(self.one(**{type(value).__name__: value}) for value in values)

    def unpack(self, items: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the values that came over the wire. Raises: BAD_REQUEST unless each is of one of the types."""
        given = [[value for value in msgspec.structs.astuple(item) if value is not None] for item in items]
        if any(len(values) != 1 for values in given):
            names = ", ".join(self.one.__struct_fields__)
            raise CheloniaError(Kind.BAD_REQUEST, "compact", cause=f"an element is one of {names}, under that name")
        return tuple(value for (value,) in given)


class Method(msgspec.Struct, frozen=True, eq=False):
    """One method of a port: its row, and the coding of its arguments and result. `choices`: for each argument that is a
    list of one of several types; `chosen`: for the result."""

    name: str
    row: PortMethod
    arguments: msgspec.msgpack.Decoder[Any]
    result: msgspec.msgpack.Decoder[Any]
    choices: Mapping[int, TaggedUnion]
    chosen: TaggedUnion | None

    def packed(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return arguments as they go over the wire."""
        if not self.choices:
            return args
        return tuple(self.choices[n].pack(arg) if n in self.choices else arg for n, arg in enumerate(args))

    def packed_result(self, result: Any) -> Any:
        """Return a result as it goes over the wire."""
        return result if self.chosen is None else self.chosen.pack(result)


def methods(table: PortTable) -> dict[str, Method]:
    """Return the methods of a port by name: the rows of its table, except `SOAP_ALONE`."""
    return {row.method: method_of(row) for row in table.by_method.values() if row.method not in SOAP_ALONE}


def method_of(row: PortMethod) -> Method:
    """Return one method by its row."""
    hints = typing.get_type_hints(row.function, include_extras=True)
    most = msgspec.Meta(max_length=row.many)
    choices = {n: choice for n, name in enumerate(row.arguments) if (choice := _choice(hints[name])) is not None}
    given = [choices[n].many if n in choices else hints[name] for n, name in enumerate(row.arguments)]
    given = [Annotated[hint, most] if _is_list(hint) else hint for hint in given]
    arguments = tuple[tuple(given)] if given else tuple[()]  # type: ignore[misc]
    chosen = _choice(hints["return"])
    result = hints["return"] if chosen is None else chosen.many
    decoders = msgspec.msgpack.Decoder(arguments), msgspec.msgpack.Decoder(result)
    return Method(row.method, row, *decoders, choices, chosen)


def encode_asked(asked: FramedCall[Any]) -> bytes:
    """Encode the frame of a call. Raises: TOO_LARGE; BAD_REQUEST for text that is not UTF-8."""
    return _frame(asked, CALL_BYTES_MAX)


def encode_args(args: tuple[Any, ...]) -> msgspec.Raw:
    """Encode the arguments of a call. Raises: BAD_REQUEST for text that is not UTF-8."""
    return msgspec.Raw(encode(args))


def encode_result(number: int, result: Any, position: Position | None) -> bytes:
    """Encode the frame of an answer; `position`: its position, if known. Raises: TOO_LARGE."""
    return _frame(FramedAnswer(number, result, None, position), ANSWER_BYTES_MAX)


def encode_failure(number: int, error: CheloniaError, position: Position | None) -> bytes:
    """Encode the frame of a failure."""
    return _frame(FramedAnswer(number, None, WireError.of(error), position), ANSWER_BYTES_MAX)


def decode_asked(frame: bytes) -> IncomingCall:
    """Decode a call. Raises: BAD_REQUEST when it is none: the other end does not speak this."""
    return decode(_ASKED, frame, "a call")


def decode_answered(frame: bytes) -> IncomingAnswer:
    """Decode an answer. Raises: BAD_REQUEST."""
    return decode(_ANSWERED, frame, "an answer")


def decode_args(method: Method, raw: msgspec.Raw) -> tuple[Any, ...]:
    """Decode the arguments of a call. Raises: BAD_REQUEST; TOO_LARGE for a list with too many elements."""
    args: tuple[Any, ...] = decode(method.arguments, raw, f"the arguments of {method.name}")
    if not method.choices:
        return args
    return tuple(method.choices[n].unpack(arg) if n in method.choices else arg for n, arg in enumerate(args))


def decode_result(method: Method, answered: IncomingAnswer) -> Any:
    """Decode the result of an answer. Raises: the error that the other side answered; BAD_REQUEST."""
    if answered.failure is not None:
        raise answered.failure.error()
    result = decode(method.result, answered.result, f"the answer to {method.name}")
    return result if method.chosen is None else method.chosen.unpack(result)


def encode(value: Any) -> bytes:
    """Encode any of our values. Raises: BAD_REQUEST for text that is not UTF-8."""
    try:
        return _ENCODER.encode(value)
    except UnicodeEncodeError as error:
        raise CheloniaError(Kind.BAD_REQUEST, "compact", cause="all text is valid UTF-8") from error


def decode(decoder: msgspec.msgpack.Decoder[T], data: bytes | msgspec.Raw, label: str) -> T:
    """Decode a value, called `label` in errors. Raises: BAD_REQUEST, also when nested too deep; TOO_LARGE."""
    try:
        return decoder.decode(data)
    except _UNREADABLE as error:
        kind = Kind.TOO_LARGE if _OVER_LONG in str(error) else Kind.BAD_REQUEST
        raise CheloniaError(kind, "compact", cause=f"this is not {label}: {error}") from error


_OVER_LONG: Final = "of length <="
"""Part of msgspec's message about a list longer than its `max_length`."""


_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_ENCODER: Final = msgspec.msgpack.Encoder()
_ASKED: Final = msgspec.msgpack.Decoder(IncomingCall)
_ANSWERED: Final = msgspec.msgpack.Decoder(IncomingAnswer)


def _choice(hint: Any) -> TaggedUnion | None:
    """The coding of a list of one of several types; None for any other type."""
    each = typing.get_args(hint)[0] if _is_list(hint) else None
    is_union = typing.get_origin(each) in (typing.Union, types.UnionType)
    kinds = [kind for kind in typing.get_args(each) if kind is not types.NoneType] if is_union else []
    return TaggedUnion(kinds) if len(kinds) > 1 else None


def _is_list(hint: Any) -> bool:
    return typing.get_origin(hint) is tuple and typing.get_args(hint)[-1] is Ellipsis


def _frame(value: FramedCall[Any] | FramedAnswer[Any], bytes_max: int) -> bytes:
    body = encode(value)
    size = len(body)
    if size > bytes_max:
        raise CheloniaError(Kind.TOO_LARGE, "compact", cause=f"{size} bytes, at most {bytes_max}: ask for less")
    return size.to_bytes(LENGTH_BYTES) + body
