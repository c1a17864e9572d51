"""The SOAP door of one service: request bytes to a call on its port, and what came of it back to bytes.

Who may call is decided by the service itself, on the roles that the registry grants here. Failures are Faults; what
nobody expected is a Fault INTERNAL that names the request id, and a stack trace in the log alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.position import Horizon
from chelonia.core.timing.jobs import CAUSE
from chelonia.hosting.doors.calls import call_of
from chelonia.hosting.doors.faults import note_fault
from chelonia.hosting.doors.grants import Registry
from chelonia.hosting.metrics import Metrics
from chelonia.hosting.net.http_messages import Answer, Request, Whole, error_answer, read_whole, text_answer
from chelonia.wire import positions, soap
from chelonia.wire.headers import POSITION_HEADER
from chelonia.wire.operations import Service
from chelonia.wire.wsdl import wsdl

log = logging.getLogger("chelonia.soap")

Done = Callable[[Request, str, Sequence[Any]], None]

_REFUSALS = (Kind.DENIED, Kind.UNTRUSTED, Kind.WRONG_CLUSTER, Kind.BAD_TICKET)


@dataclass(frozen=True, slots=True)
class SoapParts:
    """What every SOAP door of a node shares. `horizon`: answers tell its newest position, at or after their own."""

    registry: Registry
    metrics: Metrics
    horizon: Horizon = field(default_factory=Horizon)


class LargeBodies:
    """Room for so many large messages at once, so that strangers cannot fill the memory; small ones always pass."""

    def __init__(self, room: int = bounds.SOAP_LARGE_BODIES_MAX) -> None:
        self._room = room

    @contextmanager
    def one(self) -> Iterator[Callable[[], None]]:
        """Give what takes room for one message, until the block ends. Raises: UNAVAILABLE when it is called in vain."""
        taken = 0

        def take() -> None:
            nonlocal taken
            if taken:
                return
            if self._room <= 0:
                cause = "too many large messages are on their way here; try again in a moment, or send less at once"
                raise CheloniaError(Kind.UNAVAILABLE, cause=cause)
            self._room -= 1
            taken = 1

        try:
            yield take
        finally:
            self._room += taken


class SoapDoor:
    """Serves one service.

    `url`: its public address, for the WSDL; `capacity`: a Shepherd's disk, for LIDI; `done`: told of each operation
    that succeeded: the request, the operation's name, its arguments.
    """

    def __init__(
        self,
        service: Service,
        port: object,
        url: str,
        parts: SoapParts,
        capacity: Callable[[], Awaitable[soap.Capacity]] | None = None,
        done: Done | None = None,
    ) -> None:
        self._service = service
        self._port = port
        self._url = url
        self._parts = parts
        self._capacity = capacity
        self._done = done
        self._large = LargeBodies()

    async def serve(self, request: Request) -> Answer:
        """Answer one request: POST is SOAP, GET with `?wsdl` the description."""
        if request.method in ("GET", "HEAD"):
            if any(key.lower() == "wsdl" for key in request.query):
                return Answer(200, (("Content-Type", soap.CONTENT_TYPE),), wsdl(self._service, self._url).encode())
            return text_answer(200, f"{self._service.type_name}: POST SOAP 1.1 here; ?wsdl describes it\n")
        if request.method != "POST":
            return text_answer(405, "this is a SOAP endpoint: POST\n", (("Allow", "GET, HEAD, POST"),))
        with self._large.one() as large:
            answer = await self._post(request, Whole(bounds.SOAP_BODY_BYTES_MAX, large=large))
        newest = self._parts.horizon.newest
        if newest is None:
            return answer
        return replace(answer, headers=(*answer.headers, (POSITION_HEADER, positions.to_header(newest))))

    async def _post(self, request: Request, how: Whole) -> Answer:
        started = time.perf_counter()
        operation, kind = "unreadable", ""
        try:
            body = await read_whole(request, how)
            message = soap.decode_request(self._service, body)
            if isinstance(message, soap.InformationRequest):
                operation = soap.LIDI
                return _xml(200, await self._information())
            operation = message.operation.name
            CAUSE.set(message.operation.method)
            call = await call_of(request, self._parts.registry)
            result = await getattr(self._port, message.operation.method)(call, *message.args)
            if self._done is not None:
                self._done(request, operation, message.args)
            return _xml(200, soap.encode_response(self._service, message, result))
        except CheloniaError as error:
            kind = error.kind.value
            note_fault(self._service.name, operation, request.request_id, request.peer, error)
            return _fault(error)
        except Exception:
            kind = Kind.INTERNAL.value
            log.exception("failed service=%s op=%s request=%s", self._service.name, operation, request.request_id)
            cause = f"an internal failure; the log has it under request {request.request_id}"
            return _fault(CheloniaError(Kind.INTERNAL, operation, cause=cause))
        finally:
            self._parts.metrics.operation(self._service.name, operation, kind, time.perf_counter() - started)

    async def _information(self) -> bytes:
        capacity = await self._capacity() if self._capacity is not None else None
        return soap.encode_lidi(self._service, serving=True, capacity=capacity)


def _xml(status: int, body: bytes) -> Answer:
    return Answer(status, (("Content-Type", soap.CONTENT_TYPE),), body)


def _fault(error: CheloniaError) -> Answer:
    """A Fault; sizes and slow bodies are answered with HTTP's own status around it."""
    plain = error_answer(error)
    if error.kind in (Kind.TOO_LARGE, Kind.TIMEOUT, Kind.INCOMPLETE):
        return Answer(plain.status, (("Content-Type", soap.CONTENT_TYPE),), soap.encode_fault(error), close=True)
    return _xml(soap.FAULT_STATUS, soap.encode_fault(error))
