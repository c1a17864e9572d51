"""Messages between replicas, as bytes: one byte for the kind, then fixed fields, big-endian, then a tail of bytes.

The transport does the framing. Bytes that are not exactly one message raise BAD_REQUEST, and the connection closes: too
short, too long, unknown kind, undefined flag. Layout and golden bytes: docs/formats/replication.md.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, assert_never

import msgspec
from msgspec.structs import astuple

from chelonia.ahash.group.log_vouching import Vouched, VouchedCommit
from chelonia.ahash.store.replicated_port import LogPosition
from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind

VERSION: Final = 5
"""Version of these messages, in `Hello`; a replica refuses peers of another one."""


class Hello(msgspec.Struct, frozen=True):
    """The first message of either side: its replica and cluster, its process, and the newest record it knows.

    `nonce` differs at every start of the process. `membership` is the number of that record.
    `round_trip_ms`: the distance that the sender's leases and waits suit; a group has one.
    """

    version: int
    cluster: str
    replica: int
    nonce: bytes
    membership: int
    round_trip_ms: int = bounds.ROUND_TRIP_MS


class EngineFrame(msgspec.Struct, frozen=True):
    """A frame from engine to engine. `master`: the sender is master, or is just becoming so; `term`: the frame's."""

    master: bool
    term: int
    control: bytes
    record: bytes


class Beat(msgspec.Struct, frozen=True):
    """A master's heartbeat, sent periodically and whenever more has become durable.

    Args:
        sent_ms: the master's clock; 0: it only announces what is durable, and wants no echo.
        term, first, base: the term, the sequence of its first commit, and the `vouched` of its log before it.
        durable: sequence up to which all is durable; 0: the term is not open.
        head: sequence of the last commit.
        lease_ms: how long an echo of it should bind, if longer than usual: processes wait for a processor.
    """

    sent_ms: int
    term: int
    first: int
    base: Vouched
    durable: int
    head: int
    lease_ms: int = 0


class Ack(msgspec.Struct, frozen=True):
    """The part of this term's log that a follower has on stable storage; `sequence` is the last commit in it."""

    token: LogPosition
    sequence: int


class Echo(msgspec.Struct, frozen=True):
    """A follower's answer to a beat: it is bound for a lease. Repeats its last ack of this term, should that be lost.

    `trusted` False: the replica has lost its contents and is not synchronised yet, so it does not count. `lease_ms`:
    for how long it is bound, if longer than usual.
    """

    sent_ms: int
    term: int
    trusted: bool
    ack: Ack | None
    lease_ms: int = 0


class Stand(msgspec.Struct, frozen=True):
    """A notice of a replica without a master: it stands for election, or may not follow the master it sends this to.

    `vouched`: the commit that it vouches for. `seen`: the newest (term, replica) that it has followed or held.
    `unproven`: its log ends in a term that may never have opened. `voter`: by its own membership record it votes; the
    receiver goes by its own, which may be newer.
    """

    vouched: Vouched
    seen: tuple[int, int]
    unproven: bool
    voter: bool


class Resign(msgspec.Struct, frozen=True):
    """The sender's term has ended: it answers nothing in it any more. Its followers are free."""

    term: int


class CallFrame(msgspec.Struct, frozen=True):
    """A request forwarded to the master; `id` is the caller's."""

    id: int
    body: bytes


class AnswerFrame(msgspec.Struct, frozen=True):
    """The answer to a forwarded request."""

    id: int
    body: bytes


class Goodbye(msgspec.Struct, frozen=True):
    """The sender closes the connection for this reason."""

    reason: str


class Ping(msgspec.Struct, frozen=True):
    """A measurement of the distance. `sent_us`: the sender's clock."""

    sent_us: int


class Pong(msgspec.Struct, frozen=True):
    """The answer to a `Ping`, at once."""

    sent_us: int


class CheckpointNear(msgspec.Struct, frozen=True):
    """The master of `term` makes a checkpoint soon: followers write their changed pages now, not when it comes."""

    term: int


class Past(msgspec.Struct, frozen=True):
    """The history of the sender's log. It comes first on a connection, before a term's first beat, and with a `Stand`.

    `number` rises with each `Past` of a process. `known`: the newest commit that it knows to be acknowledged. `held`:
    the proven terms in its log, oldest first, each with its last commit; its own present term has an open end.
    """

    number: int
    known: VouchedCommit
    held: tuple[VouchedCommit, ...]


Message = (
    Hello
    | EngineFrame
    | Beat
    | Ack
    | Echo
    | Stand
    | Resign
    | CallFrame
    | AnswerFrame
    | Goodbye
    | Ping
    | Pong
    | CheckpointNear
    | Past
)

_HELLO: Final = struct.Struct(">BHIQ16sH")
_ENGINE: Final = struct.Struct(">BBII")
_VOUCHED = "IIQ"
_BEAT: Final = struct.Struct(">BQIQ" + _VOUCHED + "QQH")
_TOKEN = "IIIQ"
_ACK: Final = struct.Struct(">B" + _TOKEN)
_ECHO: Final = struct.Struct(">BQIBH" + _TOKEN)
_STAND: Final = struct.Struct(">BB" + _VOUCHED + "II")
_TERM: Final = struct.Struct(">BI")
_CALL: Final = struct.Struct(">BQ")
_PING: Final = struct.Struct(">BQ")
_PAST: Final = struct.Struct(">BIB")
_REACHED: Final = struct.Struct(">IIIQ")

_KINDS: Final[tuple[type, ...]] = (
    Hello, EngineFrame, Beat, Ack, Echo, Stand, Resign, CallFrame, AnswerFrame, Goodbye, Ping, Pong, CheckpointNear,
    Past,
)  # fmt: skip
_KIND: Final = {kind: number for number, kind in enumerate(_KINDS, start=1)}
"""Numbers of the kinds, in order from 1; append only."""

_MASTER, _TRUSTED, _ACKED, _UNPROVEN, _VOTER = 1, 1, 2, 1, 2
_NO_ACK: Final = (0, 0, 0, 0)


def number(kind: type[Message]) -> int:
    """Return the first byte of messages of this kind."""
    return _KIND[kind]


def encode(message: Message) -> bytes:
    """Return the bytes of a message."""
    kind = _KIND[type(message)]
    match message:
        case EngineFrame(master, term, control, record):
            return _ENGINE.pack(kind, _MASTER if master else 0, term, len(control)) + control + record
        case Ack(token, sequence):
            return _ACK.pack(kind, token.term, token.file, token.offset, sequence)
        case Beat(sent_ms, term, first, base, durable, head, lease_ms):
            began = (base.term, base.replica, base.sequence)
            return _BEAT.pack(kind, sent_ms, term, first, *began, durable, head, lease_ms)
        case Echo(sent_ms, term, trusted, ack, lease_ms):
            flags = (_TRUSTED if trusted else 0) | (_ACKED if ack else 0)
            fields = (ack.token.term, ack.token.file, ack.token.offset, ack.sequence) if ack else _NO_ACK
            return _ECHO.pack(kind, sent_ms, term, flags, lease_ms, *fields)
        case CallFrame(id_, body) | AnswerFrame(id_, body):
            return _CALL.pack(kind, id_) + body
        case Stand(vouched, seen, unproven, voter):
            flags = (_UNPROVEN if unproven else 0) | (_VOTER if voter else 0)
            return _STAND.pack(kind, flags, vouched.term, vouched.replica, vouched.sequence, *seen)
        case Resign(term) | CheckpointNear(term):
            return _TERM.pack(kind, term)
        case Hello(version, cluster, replica, nonce, membership, round_trip_ms):
            return _HELLO.pack(kind, version, replica, membership, nonce, round_trip_ms) + cluster.encode()
        case Ping(sent_us) | Pong(sent_us):
            return _PING.pack(kind, sent_us)
        case Past(number_, known, held):
            reached = (_REACHED.pack(*astuple(each)) for each in (known, *held))
            return _PAST.pack(kind, number_, len(held)) + b"".join(reached)
        case Goodbye(reason):
            return bytes((kind,)) + reason.encode()
        case _:
            assert_never(message)


def decode(data: bytes) -> Message:
    """Decode a message. Raises: BAD_REQUEST when it is not exactly one; TOO_LARGE."""
    if len(data) > bounds.PEER_MESSAGE_BYTES_MAX:
        raise CheloniaError(Kind.TOO_LARGE, "replication", "", f"a message of {len(data)} bytes")
    reader = _READERS.get(data[0]) if data else None
    if reader is None:
        raise CheloniaError(Kind.BAD_REQUEST, "replication", "", f"no message begins with {data[:1]!r}")
    try:
        return reader(data)
    except (struct.error, UnicodeDecodeError, ValueError) as error:
        raise CheloniaError(Kind.BAD_REQUEST, "replication", "", f"not a message: {error}") from error


def refuse_hello(hello: Hello, cluster: str, replica: int, *, round_trip_ms: int) -> str:
    """Return why we refuse a peer that sent `hello` on the connection of `replica`; empty: it is welcome."""
    if hello.version != VERSION:
        return f"it speaks version {hello.version} of the replication messages, this one {VERSION}"
    if hello.cluster != cluster:
        return f"it belongs to cluster {hello.cluster[:64]}, not to {cluster}"
    if hello.replica != replica:
        return f"it says to be replica {hello.replica}, but its certificate is that of replica {replica}"
    if hello.round_trip_ms != round_trip_ms:
        peer_ms, own_ms = hello.round_trip_ms, round_trip_ms
        return f"its ahash.tuning.round_trip_ms is {peer_ms}, here it is {own_ms}: set the same on all replicas"
    return ""


def _read_hello(data: bytes) -> Hello:
    _, version, replica, membership, nonce, round_trip_ms = _HELLO.unpack_from(data)
    return Hello(version, data[_HELLO.size :].decode(), replica, nonce, membership, round_trip_ms)


def _read_engine(data: bytes) -> EngineFrame:
    _, flags, term, length = _ENGINE.unpack_from(data)
    end = _ENGINE.size + length
    if end > len(data):
        raise ValueError("the control part is cut short")
    return EngineFrame(_flag(flags, _MASTER), term, data[_ENGINE.size : end], data[end:])


def _read_beat(data: bytes) -> Beat:
    _, sent_ms, term, first, base_term, base_replica, base_sequence, *rest = _BEAT.unpack(data)
    return Beat(sent_ms, term, first, Vouched(base_term, base_replica, base_sequence), *rest)


def _read_ack(data: bytes) -> Ack:
    _, term, file, offset, sequence = _ACK.unpack(data)
    return Ack(LogPosition(term, file, offset), sequence)


def _read_echo(data: bytes) -> Echo:
    _, sent_ms, term, flags, lease_ms, *fields = _ECHO.unpack(data)
    acked = _flag(flags & ~_TRUSTED, _ACKED)
    if not acked and tuple(fields) != _NO_ACK:
        raise ValueError("an ack that says it is none")
    ack = Ack(LogPosition(fields[0], fields[1], fields[2]), fields[3]) if acked else None
    return Echo(sent_ms, term, bool(flags & _TRUSTED), ack, lease_ms)


def _read_stand(data: bytes) -> Stand:
    _, flags, term, replica, sequence, seen_term, seen_replica = _STAND.unpack(data)
    voter = _flag(flags & ~_UNPROVEN, _VOTER)
    return Stand(Vouched(term, replica, sequence), (seen_term, seen_replica), bool(flags & _UNPROVEN), voter)


def _number(kind: Callable[[int], Message], layout: struct.Struct) -> Callable[[bytes], Message]:
    """A reader of messages that are one number."""
    return lambda data: kind(layout.unpack(data)[1])


def _with_body(kind: type[CallFrame | AnswerFrame]) -> Callable[[bytes], Message]:
    return lambda data: kind(_CALL.unpack_from(data)[1], data[_CALL.size :])


def _read_past(data: bytes) -> Past:
    known, *held = (VouchedCommit(*fields) for fields in _REACHED.iter_unpack(data[_PAST.size :]))
    _, number, count = _PAST.unpack_from(data)
    if len(held) != count:
        raise ValueError(f"{len(held)} terms instead of {count}")
    return Past(number, known, tuple(held))


def _flag(flags: int, known: int) -> bool:
    if flags & ~known:
        raise ValueError(f"unknown flags {flags:#x}")
    return bool(flags)


_READERS: Final[dict[int, Callable[[bytes], Message]]] = dict(
    enumerate(
        (
            _read_hello, _read_engine, _read_beat, _read_ack, _read_echo, _read_stand, _number(Resign, _TERM),
            _with_body(CallFrame), _with_body(AnswerFrame), lambda data: Goodbye(data[1:].decode()),
            _number(Ping, _PING), _number(Pong, _PING), _number(CheckpointNear, _TERM), _read_past,
        ),
        start=1,
    )
)  # fmt: skip
assert _READERS.keys() == set(_KIND.values()), "what is written is read"
assert bounds.TERMS_REMEMBERED_MAX < 1 << 8, "one byte counts the terms of a past"
