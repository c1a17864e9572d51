"""Calls of the A-Hash port on their way from another replica to the master: one hop, over the links of replicas.

A request is the method, the caller's context and the arguments. An answer is a result, an error, or "not master":
nothing was carried out. All use the compact encoding (`wire.compact`). The master believes a replica about its caller's
roles, which that has checked.
Invariants: an outstanding call ends once: by its answer, its peer's loss, or its deadline. A change that may have been
carried out is never reported as failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.cluster.position import Position
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.limits import LimitCounts
from chelonia.core.operations.ahash import AHASH
from chelonia.core.timing.clock import Clock, done_within
from chelonia.wire import compact

METHODS: Final = {name: method for name, method in compact.methods(AHASH).items() if name != "backup"}
"""Methods that replicas forward: the whole port but `backup`, which each replica does for itself."""
FORWARDED_BYTES_MAX: Final = bounds.PEER_MESSAGE_BYTES_MAX // 2
"""Bytes of a call or its answer: far more than a client sends or reads, and with its envelope surely one message."""


class ForwardedCall(msgspec.Struct, frozen=True):
    """A call of the port on its way to the master."""

    method: str
    call: Call
    arguments: tuple[Any, ...]


class _CallMessage(msgspec.Struct, array_like=True, frozen=True):
    method: str
    call: Call
    arguments: msgspec.Raw


class _AnswerMessage(msgspec.Struct, array_like=True, frozen=True):
    """The answer to a forwarded call. `carried_out` False: the peer is not master, nothing was done."""

    carried_out: bool
    result: msgspec.Raw = compact.NOTHING
    failure: compact.WireError | None = None
    position: Position | None = None


_REQUEST: Final = msgspec.msgpack.Decoder(_CallMessage)
_ANSWER: Final = msgspec.msgpack.Decoder(_AnswerMessage)
NOT_MASTER: Final = compact.encode(_AnswerMessage(carried_out=False))


class NotCarriedOut(CheloniaError):
    """A forwarded call that was certainly not carried out: the caller may repeat it, keyed or not."""


def encode_request(request: ForwardedCall) -> bytes:
    """Encode a call. Raises: BAD_REQUEST for text that is not UTF-8; TOO_LARGE, as for a result."""
    return _bounded(compact.encode(_CallMessage(request.method, request.call, compact.encode_args(request.arguments))))


def decode_request(data: bytes) -> ForwardedCall:
    """Decode a call. Raises: BAD_REQUEST."""
    request = compact.decode(_REQUEST, data, "a forwarded call")
    method = METHODS.get(request.method)
    if method is None:
        raise CheloniaError(Kind.BAD_REQUEST, "forward", cause=f"{request.method[:64]!r} is not forwarded")
    return ForwardedCall(request.method, request.call, compact.decode_args(method, request.arguments))


def encode_result(result: Any, position: Position | None) -> bytes:
    """Encode a result and its position. Raises: TOO_LARGE: a larger message would cost the link to the replica."""
    return _bounded(compact.encode(_AnswerMessage(True, msgspec.Raw(compact.encode(result)), None, position)))


def _bounded(data: bytes) -> bytes:
    if len(data) > FORWARDED_BYTES_MAX:
        raise CheloniaError(Kind.TOO_LARGE, "ahash", cause=f"{len(data)} bytes: ask for less")
    return data


def encode_error(error: CheloniaError, position: Position | None) -> bytes:
    """Encode an error that the service raised."""
    return compact.encode(_AnswerMessage(True, compact.NOTHING, compact.WireError.of(error), position))


def decode_answer(method: str, data: bytes) -> tuple[Any, Position | None]:
    """Return the result and its position. Raises: as the service; `NotCarriedOut`, or INTERNAL when unreadable."""
    try:
        answer = compact.decode(_ANSWER, data, "an answer")
        whole = answer.carried_out and answer.failure is None
        result = compact.decode(METHODS[method].result, answer.result, f"the answer to {method}") if whole else None
    except CheloniaError as error:  # the call may have been carried out: it was not bad
        raise CheloniaError(
            Kind.INTERNAL, method, cause=f"the master's answer cannot be read: {error.cause}"
        ) from error
    if not answer.carried_out:
        raise NotCarriedOut(Kind.UNAVAILABLE, method, cause="the replica asked is not master: retry")
    if answer.failure is not None:
        raise answer.failure.error()
    return result, answer.position


Send = Callable[[int, int, bytes], bool]
"""Send a request (peer, number, bytes); False: there is no connection, nothing was sent."""


@dataclass(frozen=True, slots=True)
class _Outstanding:
    """A call that `peer` is carrying out."""

    peer: int
    method: str
    future: asyncio.Future[bytes]

    def fail(self, cause: str) -> None:
        """End the call as OUTCOME_UNKNOWN: `peer` may have carried it out."""
        if not self.future.done():
            cause = f"{cause}: retry with the same request key"
            self.future.set_exception(CheloniaError(Kind.OUTCOME_UNKNOWN, self.method, cause=cause))
            self.future.exception()  # its caller may have been cancelled in the same moment


class Forwarder:
    """The calls of this replica that a master is carrying out.

    Args: `run`: a number that no other process has. Numbers of calls begin with it: a master may still answer a call of
    the process before, on the link of this one.
    """

    def __init__(self, send: Send, clock: Clock, limits: LimitCounts | None = None, *, run: int = 0) -> None:
        self._send = send
        self._clock = clock
        self._limits = limits or LimitCounts()
        self._last = run << 32
        self._outstanding: dict[int, _Outstanding] = {}

    async def forward(self, peer: int, request: ForwardedCall, timeout_ms: int) -> tuple[Any, Position | None]:
        """Have `peer` carry out a call.

        Raises: the error that `peer` answered, `NotCarriedOut`, OUTCOME_UNKNOWN when no answer came.
        """
        body = encode_request(request)
        if len(self._outstanding) >= bounds.FORWARDED_MAX:
            self._limits.met("calls_forwarded", f"replica {peer}", "a call to it was refused")
            raise NotCarriedOut(Kind.UNAVAILABLE, request.method, cause="too many calls wait for the master: retry")
        self._last += 1
        number, future = self._last, asyncio.get_running_loop().create_future()
        assert number not in self._outstanding, "an answer is to one call"
        call = self._outstanding[number] = _Outstanding(peer, request.method, future)
        try:
            if not self._send(peer, number, body):
                raise NotCarriedOut(Kind.UNAVAILABLE, request.method, cause=f"no connection to replica {peer}: retry")
            if not await done_within(self._clock, future, timeout_ms):
                call.fail(f"replica {peer} did not answer in time")
            return decode_answer(request.method, future.result())
        finally:
            del self._outstanding[number], call, future  # which holds the failure that holds this frame

    def answered(self, peer: int, number: int, data: bytes) -> None:
        """Take an answer; drop it if no call waits for it, or it comes from another peer."""
        call = self._outstanding.get(number)
        if call is not None and call.peer == peer and not call.future.done():
            call.future.set_result(data)

    def lost(self, peer: int) -> None:
        """End the calls of `peer`, which is gone or no longer master: it may have carried them out."""
        for call in self._outstanding.values():
            if call.peer == peer:
                call.fail(f"replica {peer} was lost as master")
