"""One request of the plain door: its method, caller and entry, and how its answer is counted.

It translates HTTP and WebDAV (class 1, 2, 3) into the port `Files`, and carries bytes by the port `Bytes`. It never
decides about rights. Every failure is its kind's status (`core.errors`) with a line that names the cure.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ANONYMOUS
from chelonia.core.values import replace
from chelonia.hosting.doors.plain import changes, content, delegation, frame, locks, macaroons, pages, properties, trash
from chelonia.hosting.doors.plain.parts import DoorParts, Exchange, requested
from chelonia.hosting.doors.tokens.bearer import signs_in, token_of
from chelonia.hosting.metrics import Metrics
from chelonia.hosting.net.http_messages import AccessNote, HttpRequest, HttpResponse, error_answer, text_answer

log = logging.getLogger("chelonia.plain")

CallOf = Callable[[HttpRequest], Awaitable[Call]]
"""Returns the call of a request. Raises: BAD_TICKET, EXPIRED, UNTRUSTED when its token does not hold."""
Handler = Callable[[DoorParts, Exchange], Awaitable[HttpResponse]]


async def _post(parts: DoorParts, exchange: Exchange) -> HttpResponse:
    """Answer POST: the forms of pages, requests for tokens, delegation."""
    kind, query = exchange.header("Content-Type").partition(";")[0].strip().lower(), exchange.request.query
    if kind == content.FORM_FILE:
        return await content.add(parts, exchange)
    if kind == trash.FORM and trash.TRASH in query:
        return await trash.bring_back(parts, exchange)
    if kind == trash.FORM and pages.LINK in query:
        return await pages.link(parts, exchange)
    if kind == delegation.SOAP and delegation.DELEGATION in query:
        return await delegation.post(parts.third.delegations, exchange)
    if kind == macaroons.REQUEST:
        return await macaroons.post(parts, exchange)
    return text_answer(415, f"POST here asks for a token: Content-Type {macaroons.REQUEST}\n")


METHODS: Final[dict[str, Handler]] = {
    "GET": content.get,
    "HEAD": content.get,
    "PUT": content.put,
    "DELETE": changes.delete,
    "MKCOL": changes.mkcol,
    "MOVE": changes.move,
    "COPY": changes.copy,
    "PROPFIND": properties.propfind,
    "PROPPATCH": properties.proppatch,
    "LOCK": locks.lock,
    "UNLOCK": locks.unlock,
    "POST": _post,
}
BY_TOKEN: Final = "token"
"""The operation in errors of a token itself."""
ALLOW: Final = ", ".join((*METHODS, "OPTIONS"))


class PlainDoor:
    """Serves the namespace at `/` of its listener."""

    def __init__(self, parts: DoorParts, call_of: CallOf, metrics: Metrics) -> None:
        self._parts = parts
        self._call_of = call_of
        self._metrics = metrics

    async def serve(self, request: HttpRequest) -> HttpResponse:
        started, kind, dn = time.perf_counter(), "", request.peer.dn
        handler = METHODS.get(request.method)
        try:
            if handler is None:
                answer = _no_entrys(request)
            else:
                call = await self._call_of(request)
                dn, place = call.dn, requested(request)
                tokens, etag = await locks.submitted(self._parts, request, call, place)
                answer = await handler(self._parts, Exchange(request, call, place, tokens, etag))
        except CheloniaError as error:
            kind = error.kind.value
            _log_refusal(request, dn, error)
            answer = frame.refused(request, _refusal(request, error), request.peer.dn)
        finally:
            method = "other" if handler is None else request.method
            self._metrics.operation("plain", method, kind, time.perf_counter() - started)
        return replace(answer, accessed=AccessNote(dn, request.method, kind))


def _log_refusal(request: HttpRequest, dn: str, error: CheloniaError) -> None:
    fields = request.method, request.path, request.request_id, dn, error
    log.info("refused %s path=%r request=%s who=%r error=%s", *fields)


def _no_entrys(request: HttpRequest) -> HttpResponse:
    """Answer a method that is about no entry, or that this door does not take."""
    if request.method == "OPTIONS":
        return HttpResponse(200, (("Allow", ALLOW), ("DAV", "1, 2, 3"), ("MS-Author-Via", "DAV")))
    return text_answer(405, f"this door takes {ALLOW}\n", (("Allow", ALLOW),))


def _refusal(request: HttpRequest, error: CheloniaError) -> HttpResponse:
    """Answer a refused request. A program without a credential gets a challenge to sign in (RFC 7617). A browser gets
    none: it would show a dialogue in place of the page with the reader's choices."""
    answer, schemes = error_answer(error), list[str]()
    if error.op == BY_TOKEN:  # RFC 6750 section 3.1: the token is refused, not the request
        schemes.append('Bearer realm="Chelonia", error="invalid_token"')
    nobody = error.kind is Kind.DENIED and request.peer.dn == ANONYMOUS and not token_of(request)
    if signs_in(request) if schemes else nobody and not frame.is_browser(request):
        schemes.append('Basic realm="Chelonia: the password of a share link", charset="UTF-8"')
    challenges = tuple(("WWW-Authenticate", each) for each in schemes)
    return replace(answer, status=401, headers=(*answer.headers, *challenges)) if schemes else answer
