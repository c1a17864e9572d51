"""The SOAP door of one service: request bytes to a call on its port, and the result back to bytes.

It checks the roles that the registry grants before it decodes arguments; the Bartender judges its users itself.
Failures are Faults. An unexpected one is a Fault INTERNAL with the request id; the log alone has the stack trace.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.cluster.position import Horizon
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ANONYMOUS
from chelonia.core.rights.access import check_access
from chelonia.core.timing.jobs import CAUSE
from chelonia.core.values import replace
from chelonia.hosting.doors.calls import call_of, note_fault
from chelonia.hosting.doors.connection_shares import owner_of
from chelonia.hosting.doors.grants import RoleRegistry
from chelonia.hosting.doors.large_bodies import LargeBodies, LargeBody
from chelonia.hosting.doors.reading import is_reading, while_connected
from chelonia.hosting.doors.turnstile import Turnstile
from chelonia.hosting.metrics import Metrics
from chelonia.hosting.net.http_messages import HttpRequest, HttpResponse, Whole, error_answer, read_whole, text_answer
from chelonia.wire import positions, soap
from chelonia.wire.operations.table import Service
from chelonia.wire.web.headers import POSITION_HEADER
from chelonia.wire.wsdl import wsdl

log = logging.getLogger("chelonia.soap")

Message = soap.SoapRequest | soap.InformationRequest
Done = Callable[[HttpRequest, str, Sequence[Any]], None]


@dataclass(frozen=True, slots=True)
class SoapParts:
    """Parts that a node's SOAP doors share. `horizon`: answers carry its newest position, at or after their own."""

    registry: RoleRegistry
    metrics: Metrics
    horizon: Horizon = field(default_factory=Horizon)


class SoapDoor:
    """Serves one service.

    `url`: its public address, for the WSDL; `capacity`: a Shepherd's disk, for LIDI. `done`: called after each
    operation that succeeded, with the request, the operation's name, its arguments.
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
        self._strangers = Turnstile(bounds.SOAP_STRANGER_PAUSE_MS)
        self._large_of_services = LargeBodies()
        self._large = LargeBodies(per_owner=bounds.SOAP_LARGE_BODIES_PER_OWNER_MAX)

    async def serve(self, request: HttpRequest) -> HttpResponse:
        """Answer one request: POST is SOAP, GET with `?wsdl` the description."""
        if request.method in ("GET", "HEAD"):
            if any(key.lower() == "wsdl" for key in request.query):
                return HttpResponse(
                    200, (("Content-Type", soap.CONTENT_TYPE),), wsdl(self._service, self._url).encode()
                )
            return text_answer(200, f"{self._service.type_name}: POST SOAP 1.1 here; ?wsdl describes it\n")
        if request.method != "POST":
            return text_answer(405, "this is a SOAP endpoint: POST\n", (("Allow", "GET, HEAD, POST"),))
        answer = await self._post(request)
        newest = self._parts.horizon.newest
        if newest is None:
            return answer
        return replace(answer, headers=(*answer.headers, (POSITION_HEADER, positions.to_header(newest))))

    async def _post(self, request: HttpRequest) -> HttpResponse:
        started = time.perf_counter()
        operation, kind = "unreadable", ""
        try:
            _check_program(request)
            call = await call_of(request, self._parts.registry)
            with self._slot(call) as slot:
                body = await self._body(request, call, slot)

                def may(name: str) -> None:
                    nonlocal operation
                    operation = name
                    if self._service.name != "bartender":  # the Bartender judges users itself
                        check_access(call, self._service.name, name)

                message = await self._decoded(body, may, call)
                if isinstance(message, soap.InformationRequest):
                    operation = soap.LIDI
                    return _xml(200, await self._information())
                CAUSE.set(message.operation.method)
                work = getattr(self._port, message.operation.method)(call, *message.args)
                if is_reading(self._service.name, message.operation.method):
                    work = while_connected(work, request.when_closed)
                result = await work
                if self._done is not None:
                    self._done(request, operation, message.args)
                return _xml(200, soap.encode_response(self._service, message, result))
        except CheloniaError as error:
            kind = error.kind.value
            if error.kind is Kind.CANCELLED:
                self._parts.metrics.limits.met("readers_gone", request.peer.dn, "its listing was ended")
            note_fault(self._service.name, operation, request.request_id, request.peer, error)
            return _fault(error)
        except Exception:
            kind = Kind.INTERNAL.value
            log.exception("failed service=%s op=%s request=%s", self._service.name, operation, request.request_id)
            cause = f"an internal failure; the log has it under request {request.request_id}"
            return _fault(CheloniaError(Kind.INTERNAL, operation, cause=cause))
        finally:
            self._parts.metrics.operation(self._service.name, operation, kind, time.perf_counter() - started)

    def _slot(self, call: Call) -> AbstractContextManager[LargeBody]:
        """Return a context for a message of this caller, which takes a slot if it is large."""
        owner = owner_of(call.dn, call.address)
        pool = self._large_of_services if call.roles else self._large
        return pool.one(owner, lambda limit: self._parts.metrics.limits.met(limit, owner, "a large message was ended"))

    async def _body(self, request: HttpRequest, call: Call, slot: LargeBody) -> bytes:
        """Return the body, within the caller's limit. Raises: DENIED, UNAVAILABLE, and as `read_whole`."""
        loop, owner = asyncio.get_running_loop(), owner_of(call.dn, call.address)
        stranger = not call.roles and self._service.name != "bartender"
        anonymous = call.dn == ANONYMOUS and not stranger
        limit = bounds.SOAP_SMALL_BYTES if stranger or anonymous else bounds.SOAP_BODY_BYTES_MAX
        try:
            async with asyncio.timeout(None) as arrival:
                slot.give_up = lambda: arrival.reschedule(loop.time())
                whole = Whole(limit, large=lambda size: slot.grow(size, loop.time()))
                return await read_whole(request, whole)
        except TimeoutError as error:
            cause = "other large messages waited and this came slowest: try again in a moment, or send less at once"
            raise CheloniaError(Kind.UNAVAILABLE, cause=cause) from error
        except CheloniaError as error:
            if error.kind is Kind.TIMEOUT:
                self._parts.metrics.limits.met("time of a message", owner, "it was refused")
            if anonymous and error.kind is Kind.TOO_LARGE:
                self._parts.metrics.limits.met("bytes of a message without a certificate", owner, "it was refused")
                cause = f"without a certificate a message has at most {limit} bytes: show one, or ask for less at once"
                raise CheloniaError(Kind.TOO_LARGE, cause=cause) from error
            if stranger and error.kind is Kind.TOO_LARGE:
                self._parts.metrics.limits.met("bytes of a caller without a role", call.dn, "the message was refused")
                cause = f"{call.dn} is not registered and approved here: what it sends has at most {limit} bytes"
                raise CheloniaError(Kind.DENIED, self._service.name, cause=cause) from error
            raise
        finally:
            slot.give_up = None

    async def _decoded(self, body: bytes, may: Callable[[str], None], call: Call) -> Message:
        """Decode a message, so that neither a large one nor many without a certificate hold up the others."""
        owner = owner_of(call.dn, call.address)
        if call.dn == ANONYMOUS and await self._strangers.through(owner):
            self._parts.metrics.limits.met("messages of strangers at once", owner, "the message waited")
        try:
            if len(body) > bounds.SOAP_DECODED_AT_ONCE_BYTES:
                return await asyncio.to_thread(soap.decode_request, self._service, body, may)
            return soap.decode_request(self._service, body, may)
        except CheloniaError as error:
            if error.kind is Kind.TOO_LARGE:
                self._parts.metrics.limits.met("parts of a message", owner, f"it was refused: {error.cause}")
            raise

    async def _information(self) -> bytes:
        capacity = await self._capacity() if self._capacity is not None else None
        return soap.encode_lidi(self._service, capacity)


def _check_program(request: HttpRequest) -> None:
    """Refuse what a web page has its browser send: the reader's certificate comes with it. Raises: DENIED."""
    if "Origin" in request.headers or "Sec-Fetch-Site" in request.headers:
        raise CheloniaError(Kind.DENIED, "post", cause="this is for programs: no page of a browser calls operations")


def _xml(status: int, body: bytes) -> HttpResponse:
    return HttpResponse(status, (("Content-Type", soap.CONTENT_TYPE),), body)


def _fault(error: CheloniaError) -> HttpResponse:
    """Return a Fault; for TOO_LARGE, TIMEOUT and INCOMPLETE with HTTP's own status, and the connection closes."""
    plain = error_answer(error)
    if error.kind in (Kind.TOO_LARGE, Kind.TIMEOUT, Kind.INCOMPLETE):
        return HttpResponse(plain.status, (("Content-Type", soap.CONTENT_TYPE),), soap.encode_fault(error), close=True)
    return _xml(soap.FAULT_STATUS, soap.encode_fault(error))
