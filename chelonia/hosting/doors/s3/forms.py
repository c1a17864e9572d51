"""Uploads by a browser's form: POST of a bucket.

The file goes on to Shepherds as it comes. Its last piece waits until the form has ended and the policy allows its size,
so nothing else is ever stored whole.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

from chelonia.core.values import replace
from chelonia.hosting.doors.plain.sending import file_in, held_back
from chelonia.hosting.doors.s3 import objects
from chelonia.hosting.doors.s3.parts import Ask, S3Parts, url_of, xml_answer
from chelonia.hosting.doors.s3.signing import signed_by
from chelonia.hosting.doors.s3.versions import Headers
from chelonia.hosting.net.http_messages import AccessNote, HttpResponse
from chelonia.wire.s3 import answers, checksums, facts, forms, keys, requests
from chelonia.wire.s3.checksums import Measured
from chelonia.wire.s3.errors import S3Error
from chelonia.wire.s3.forms import FormDecoder
from chelonia.wire.s3.keys import Target
from chelonia.wire.s3.operations import check_promises

_NAME: Final = "${filename}"


@dataclass(frozen=True, slots=True)
class _Bounds:
    least: int = 0
    most: int = -1


async def post(parts: S3Parts, ask: Ask) -> HttpResponse:
    """Answer POST of a bucket: an object from a form, signed by its policy, or of `ANONYMOUS`."""
    request = ask.exchange.request
    decoder = FormDecoder(forms.boundary_of(request.headers.get("Content-Type", "")))
    sent, fields = await file_in(request.body, decoder), decoder.fields
    if not fields.get("key"):
        raise S3Error("InvalidArgument", "Bucket POST must contain a field named 'key'.")
    check_promises(fields)
    key = keys.check_key(fields["key"].replace(_NAME, decoder.base_name))
    call, bounds = ask.exchange.call, _Bounds()
    claim = forms.claim_of(fields)
    if claim is not None:
        issued = await parts.keys.find(claim.access_key)
        if issued is None:
            cause = "The AWS Access Key Id you provided does not exist in our records."
            raise S3Error("InvalidAccessKeyId", cause, claim.access_key)
        claim.verify(issued.secret)
        signed = {**fields, "key": key, "bucket": ask.target.bucket}
        bounds = _Bounds(*forms.check_policy(claim.policy, signed, parts.clock.now_ms()))
        call = signed_by(call, issued.key)
    checksum, value = next(iter(checksums.named(fields).items()), ("", ""))
    measured = Measured(checksum=checksum, value=value)
    body = held_back(_file(sent, measured, bounds))
    posted = replace(request, headers={**fields, "x-amz-acl": fields.get("acl", "")}, body=body, length=-1)
    made = replace(
        ask,
        target=Target(ask.target.bucket, key),
        measured=measured,
        exchange=replace(ask.exchange, request=posted, call=call),
    )
    tags = requests.tagging(fields["tagging"].encode()) if fields.get("tagging") else {}
    done = await objects.stored(parts, made, facts.facts_from(fields.items(), tags))
    answer = _answer(parts, replace(ask, target=made.target), done.headers, fields)
    return replace(answer, accessed=AccessNote(call.dn, ask.operation))


async def _file(sent: AsyncIterator[bytes], measured: Measured, bounds: _Bounds) -> AsyncIterator[bytes]:
    """Yield the bytes of a file, and check its size and checksums. Raises: S3Error."""
    async for data in sent:
        measured.update(data)
        if 0 <= bounds.most < measured.size:
            raise S3Error("EntityTooLarge", f"the policy allows at most {bounds.most} bytes")
        yield data
    if measured.size < bounds.least:
        raise S3Error("EntityTooSmall", f"the policy asks for at least {bounds.least} bytes")
    measured.check({})


def _answer(parts: S3Parts, ask: Ask, stored: Headers, fields: dict[str, str]) -> HttpResponse:
    bucket, key, url = ask.target.bucket, ask.target.key, url_of(parts, ask)
    etag, headers = dict(stored)["ETag"], (*stored, ("Location", url))
    onward = fields.get("success_action_redirect", "") or fields.get("redirect", "")
    if onward.lower().startswith(("http://", "https://")) and onward.isascii() and onward.isprintable():
        query = urlencode({"bucket": bucket, "key": key, "etag": etag})
        page, mark, part = onward.partition("#")
        onward = f"{page}{'&' if '?' in page else '?'}{query}{mark}{part}"
        return HttpResponse(303, (*stored, ("Location", onward)), b"", 0)
    match fields.get("success_action_status", ""):
        case "201":
            return xml_answer(answers.posted(url, bucket, key, etag), *headers, status=201)
        case "200":
            return HttpResponse(200, headers, b"", 0)
        case _:
            return HttpResponse(204, headers)
