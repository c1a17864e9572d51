"""One request of the S3 door: its signer, its operation, and how its answer is counted.

The door never decides about rights: it translates S3 into the port `Files`, and carries bytes by the port `Bytes`.
Every failure is an S3 error (`wire.s3.errors`) with a line that names the cure.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ANONYMOUS
from chelonia.core.values import replace
from chelonia.hosting.doors.plain.parts import Exchange
from chelonia.hosting.doors.s3 import acls, buckets, cors, forms, listing, multipart, narrowed, object_parts, objects
from chelonia.hosting.doors.s3.parts import Ask, S3Parts, in_own_name, lost
from chelonia.hosting.doors.s3.parts import check_bucket as bucket_of
from chelonia.hosting.doors.s3.signing import signable_of, unsigned, verified
from chelonia.hosting.metrics import Metrics
from chelonia.hosting.net.http_messages import AccessNote, HttpRequest, HttpResponse
from chelonia.wire.s3 import errors
from chelonia.wire.s3.answers import XML
from chelonia.wire.s3.errors import S3Error
from chelonia.wire.s3.facts import is_id, is_text
from chelonia.wire.s3.keys import Target, check_bucket, check_key, target_of
from chelonia.wire.s3.operations import OTHER, PREFLIGHT, check_promises, operation_of
from chelonia.wire.s3.sigv4 import Signable

log = logging.getLogger("chelonia.s3")

Handler = Callable[[S3Parts, Ask], Awaitable[HttpResponse]]

OPERATIONS: Final[dict[str, Handler]] = {
    "ListBuckets": buckets.list_all,
    "CreateBucket": buckets.create,
    "HeadBucket": buckets.head,
    "DeleteBucket": buckets.delete,
    "GetBucketLocation": buckets.location,
    "GetBucketSetting": buckets.setting,
    "DeleteBucketSetting": buckets.no_setting,
    "GetBucketVersioning": buckets.versioning,
    "PutBucketVersioning": buckets.set_versioning,
    "GetBucketCors": cors.get,
    "PutBucketCors": cors.put,
    "DeleteBucketCors": cors.delete,
    PREFLIGHT: cors.preflight,
    "GetBucketRequestPayment": buckets.payment,
    "GetBucketTagging": buckets.get_tags,
    "PutBucketTagging": buckets.put_tags,
    "DeleteBucketTagging": buckets.delete_tags,
    "ListObjects": listing.list_objects,
    "GetBucketAcl": acls.get,
    "PutBucketAcl": acls.put,
    "GetObjectAcl": acls.get,
    "PutObjectAcl": acls.put,
    "ListObjectVersions": listing.list_versions,
    "DeleteObjects": listing.delete_objects,
    "PostObject": forms.post,
    "GetObject": objects.get,
    "HeadObject": objects.get,
    "GetObjectAttributes": object_parts.attributes,
    "PutObject": objects.put,
    "CopyObject": objects.copy,
    "DeleteObject": objects.delete,
    "CreateMultipartUpload": multipart.create,
    "UploadPart": multipart.put_part,
    "UploadPartCopy": multipart.copy_part,
    "CompleteMultipartUpload": multipart.complete,
    "AbortMultipartUpload": multipart.abort,
    "ListParts": multipart.list_parts,
    "ListMultipartUploads": multipart.list_uploads,
    "GetObjectTagging": objects.get_tags,
    "PutObjectTagging": objects.put_tags,
    "DeleteObjectTagging": objects.delete_tags,
}


class S3Door:
    """Serves buckets and keys at `/` of its listener."""

    def __init__(self, parts: S3Parts, metrics: Metrics) -> None:
        self._parts = parts
        self._metrics = metrics

    async def serve(self, request: HttpRequest) -> HttpResponse:
        """Answer a request; a refusal is an answer too."""
        started, kind, operation, bucket, dn, code = time.perf_counter(), "", OTHER, "", ANONYMOUS, ""
        ids = (("x-amz-request-id", request.request_id), ("x-amz-id-2", request.request_id))
        try:
            signable = signable_of(request)
            target = target_of(signable.path, request.headers.get("Host", ""), self._parts.domain)
            bucket = target.bucket
            check_key(target.key)
            query = dict(signable.asked)
            copies = "x-amz-copy-source" in request.headers
            name, subresource = operation_of(request.method, target, query, copies=copies)
            handler = OPERATIONS.get(name)
            operation = name if handler is not None else OTHER
            if not is_text((*query, *query.values())):
                raise S3Error("InvalidArgument", "the query is not UTF-8")
            if "versionId" in query and not is_id(query["versionId"]):
                raise S3Error("InvalidArgument", "Invalid version id specified")
            ask = await self._ask(request, signable, target, query, (name, subresource))
            dn = ask.exchange.call.dn
            if handler is None:
                raise S3Error("NotImplemented", f"{name} is not offered by this door")
            check_promises(request.headers)
            await narrowed.check_owner(self._parts, ask)
            answer = await _answered(self._parts, handler, ask)
            answer = replace(answer, headers=(*ids, *answer.headers))
        except CheloniaError as error:
            kind, code = error.kind.value, errors.code_of(error)
            log.info("refused %s path=%r request=%s error=%s", request.method, request.path, request.request_id, error)
            answer = self._refusal(request, error, ids)
        finally:
            self._metrics.operation("s3", operation, kind, time.perf_counter() - started)
        answer = replace(answer, accessed=answer.accessed or AccessNote(dn, operation, code))
        return await cors.across(self._parts, request, bucket, answer) if "Origin" in request.headers else answer

    async def _ask(
        self, request: HttpRequest, signable: Signable, target: Target, query: dict[str, str], named: tuple[str, str]
    ) -> Ask:
        found = unsigned(request) if named[0] == PREFLIGHT else await verified(self._parts, request, signable)
        bucket = self._parts.root.child(check_bucket(target.bucket)) if target.bucket else self._parts.root
        exchange = Exchange(found.request, found.call, bucket)
        return Ask(exchange, target, query, found.measured, bucket, *named)

    def _refusal(self, request: HttpRequest, error: CheloniaError, ids: tuple[tuple[str, str], ...]) -> HttpResponse:
        code = errors.code_of(error)
        ids = (*ids, *error.fields) if isinstance(error, S3Error) else ids
        status = errors.status_of(code) if code in errors.CODES else error.meaning.http
        if request.method == "HEAD":
            return HttpResponse(status, (*ids, *XML), b"", 0, error.kind is Kind.BUSY)
        retry = (("Retry-After", "1"),) if status == 503 else ()
        body = errors.error_body(error, request.path, request.request_id, request.headers)
        # The next connection may lead to another front end.
        return HttpResponse(status, (*ids, *XML, *retry), body, close=error.kind is Kind.BUSY)


async def _answered(parts: S3Parts, handler: Handler, ask: Ask) -> HttpResponse:
    """Answer a request. Raises: NoSuchBucket where that has gone meanwhile; ServiceUnavailable as `lost`."""
    try:
        return await handler(parts, ask)
    except CheloniaError as error:
        if error.kind is Kind.NO_PARENT and ask.operation != "CreateBucket":
            await bucket_of(parts, in_own_name(parts, ask))
        fields = ask.exchange.request.headers
        error = lost(error, conditional=any(name.lower() in errors.CONDITIONS for name in fields))
        raise error
