"""Requests of browsers on behalf of pages of other origins, and a bucket's rules for the answers (CORS).

This node reads rules in its own name, as a browser's preflight has no signature. The answer says whether a page of an
origin may use a bucket, and nothing else of it. A bucket that does not exist answers as one without rules.
"""

from __future__ import annotations

from collections.abc import Sequence

from chelonia.core.errors import CheloniaError
from chelonia.core.ids import ANONYMOUS
from chelonia.core.names import LogicalName
from chelonia.core.ports.files import Look, Looked, Want
from chelonia.core.values import replace
from chelonia.hosting.doors.plain.parts import own_call
from chelonia.hosting.doors.s3.parts import Ask, S3Parts, note_facts, read_xml, readable_bucket, xml_answer
from chelonia.hosting.doors.s3.signing import call_of
from chelonia.hosting.net.http_messages import HttpRequest, HttpResponse
from chelonia.wire.s3 import answers, facts, requests
from chelonia.wire.s3.cors import VARY, CorsRule, allowed
from chelonia.wire.s3.errors import S3Error


async def get(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer GET of a bucket's rules."""
    rules = facts.facts_of((await readable_bucket(parts, ask)).user).cors
    if not rules:
        raise S3Error("NoSuchCORSConfiguration", "The CORS configuration does not exist")
    return xml_answer(answers.cors(rules))


async def put(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer PUT of a bucket's rules."""
    await note_facts(parts, ask, cors=tuple(await read_xml(ask, requests.cors)))
    return HttpResponse(200, (), b"", 0)


async def delete(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer DELETE of a bucket's rules."""
    await note_facts(parts, ask, cors=())
    return HttpResponse(204, (), b"", 0)


async def preflight(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer OPTIONS: whether a page may send the request that its browser describes. Raises: S3Error."""
    origin, method = ask.header("Origin"), ask.header("Access-Control-Request-Method")
    if not origin or not method:
        cause = "Insufficient information. Origin request header needed: this is what browsers ask for pages"
        raise S3Error("BadRequest", cause)
    names = [name.strip() for name in ask.header("Access-Control-Request-Headers").split(",")]
    rules = await _rules(parts, ask.exchange.request, ask.bucket)
    fields = allowed(rules, origin, method, [name for name in names if name])
    if not fields:
        cause = "CORSResponse: This CORS request is not allowed: its bucket has no rule for this origin and method"
        raise S3Error("AccessForbidden", cause)
    return HttpResponse(200, fields, b"", 0)


async def across(parts: S3Parts, request: HttpRequest, bucket: str, answer: HttpResponse) -> HttpResponse:
    """Return an answer that a browser may show to a page of another origin, if the bucket has a rule for it."""
    origin = request.headers.get("Origin", "")
    if not origin or not bucket or request.method == "OPTIONS":
        return answer
    method = request.headers.get("Access-Control-Request-Method", "") or request.method  # as Amazon reads both
    fields = allowed(await _rules(parts, request, parts.root.child(bucket)), origin, method)
    return replace(answer, headers=(*answer.headers, *(fields or (VARY,))))  # VARY: a cache keeps it from other origins


async def _rules(parts: S3Parts, request: HttpRequest, bucket: LogicalName) -> Sequence[CorsRule]:
    """Return a bucket's rules; () also when they cannot be read now, of which a page learns nothing."""
    call = own_call(parts.plain, call_of(request, ANONYMOUS))
    try:
        (answer,) = await parts.plain.files.look(call, (Look(bucket, Want.USER),))
    except CheloniaError:
        return ()
    return facts.facts_of(answer.user).cors if isinstance(answer, Looked) else ()
