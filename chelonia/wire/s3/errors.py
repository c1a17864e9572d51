"""Errors as S3's clients know them: a code, its HTTP status, and an XML body that names the cure. Pure.

`core.errors.TABLE` translates errors of the rest of the system; those of this protocol alone are an `S3Error`.
Source: Amazon S3 API Reference, "Error responses".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from chelonia.core.errors import CheloniaError, Kind
from chelonia.wire.xml import leaf

CODES: Final[dict[str, tuple[int, Kind]]] = {
    "AccessForbidden": (403, Kind.DENIED),
    "AccessDenied": (403, Kind.DENIED),
    "AuthorizationHeaderMalformed": (400, Kind.BAD_REQUEST),
    "AuthorizationQueryParametersError": (400, Kind.BAD_REQUEST),
    "BadDigest": (400, Kind.CHECKSUM),
    "BadRequest": (400, Kind.BAD_REQUEST),
    "BucketAlreadyExists": (409, Kind.EXISTS),
    "BucketNotEmpty": (409, Kind.NOT_EMPTY),
    "ConditionalRequestConflict": (409, Kind.CONFLICT),
    "EntityTooLarge": (400, Kind.TOO_LARGE),
    "EntityTooSmall": (400, Kind.BAD_REQUEST),
    "ExpiredToken": (400, Kind.EXPIRED),
    "IncompleteBody": (400, Kind.INCOMPLETE),
    "InsufficientStorage": (507, Kind.NO_SPACE),
    "InternalError": (500, Kind.INTERNAL),
    "InvalidAccessKeyId": (403, Kind.UNTRUSTED),
    "InvalidArgument": (400, Kind.BAD_REQUEST),
    "InvalidBucketName": (400, Kind.BAD_NAME),
    "InvalidDigest": (400, Kind.BAD_REQUEST),
    "InvalidLocationConstraint": (400, Kind.BAD_REQUEST),
    "InvalidObjectName": (400, Kind.BAD_NAME),
    "InvalidPart": (400, Kind.BAD_REQUEST),
    "InvalidPartOrder": (400, Kind.BAD_REQUEST),
    "InvalidPolicyDocument": (400, Kind.BAD_REQUEST),
    "InvalidRange": (416, Kind.BAD_RANGE),
    "InvalidRequest": (400, Kind.BAD_REQUEST),
    "InvalidTag": (400, Kind.BAD_REQUEST),
    "InvalidURI": (400, Kind.BAD_NAME),
    "KeyTooLongError": (400, Kind.BAD_NAME),
    "MalformedACLError": (400, Kind.BAD_XML),
    "MalformedPOSTRequest": (400, Kind.BAD_REQUEST),
    "MalformedXML": (400, Kind.BAD_XML),
    "MaxMessageLengthExceeded": (400, Kind.TOO_LARGE),
    "MetadataTooLarge": (400, Kind.TOO_LARGE),
    "MethodNotAllowed": (405, Kind.UNKNOWN_OPERATION),
    "MissingContentLength": (411, Kind.BAD_REQUEST),
    "MissingSecurityHeader": (400, Kind.BAD_REQUEST),
    "NoSuchBucket": (404, Kind.NOT_FOUND),
    "NoSuchBucketPolicy": (404, Kind.NOT_FOUND),
    "NoSuchCORSConfiguration": (404, Kind.NOT_FOUND),
    "NoSuchKey": (404, Kind.NOT_FOUND),
    "NoSuchLifecycleConfiguration": (404, Kind.NOT_FOUND),
    "NoSuchPublicAccessBlockConfiguration": (404, Kind.NOT_FOUND),
    "NoSuchTagSet": (404, Kind.NOT_FOUND),
    "NoSuchUpload": (404, Kind.NOT_FOUND),
    "NoSuchVersion": (404, Kind.NOT_FOUND),
    "NoSuchWebsiteConfiguration": (404, Kind.NOT_FOUND),
    "NotImplemented": (501, Kind.NOT_SUPPORTED),
    "ObjectLockConfigurationNotFoundError": (404, Kind.NOT_FOUND),
    "OperationAborted": (409, Kind.CONFLICT),
    "PreconditionFailed": (412, Kind.PRECONDITION),
    "QuotaExceeded": (403, Kind.QUOTA),
    "RequestTimeTooSkewed": (403, Kind.EXPIRED),
    "RequestTimeout": (400, Kind.TIMEOUT),
    "ServerSideEncryptionConfigurationNotFoundError": (404, Kind.NOT_FOUND),
    "ServiceUnavailable": (503, Kind.UNAVAILABLE),
    "SignatureDoesNotMatch": (403, Kind.UNTRUSTED),
    "SlowDown": (503, Kind.BUSY),
    "UnresolvableGrantByEmailAddress": (400, Kind.BAD_REQUEST),
    "XAmzContentSHA256Mismatch": (400, Kind.CHECKSUM),
}
"""Code -> HTTP status, and the kind of failure in logs and metrics."""
_CONDITIONS: Final = ("If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since")
CONDITIONS: Final = {
    f"{prefix}{name}".lower(): f"{prefix}{name}" for prefix in ("", "x-amz-copy-source-") for name in _CONDITIONS
}
"""Names of header fields with conditions: in lower case -> as an error shows them."""
_OF_THE_CLUSTER: Final = (
    Kind.TIMEOUT, Kind.INCOMPLETE, Kind.CHECKSUM, Kind.BAD_TICKET, Kind.EXPIRED, Kind.ALREADY_DONE, Kind.UNTRUSTED,
    Kind.WRONG_CLUSTER,
)  # fmt: skip
"""Kinds that say, unless an `S3Error` has them, what went wrong between nodes. They are no fault of the client's."""


class S3Error(CheloniaError):
    """A failure that only this protocol has a name for; `fields`: header fields with more about it."""

    def __init__(self, code: str, cause: str, subject: str = "", fields: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(CODES[code][1], "s3", subject, cause)
        self.code = code
        self.fields = fields


def code_of(error: CheloniaError) -> str:
    """Return the S3 code of any error."""
    if isinstance(error, S3Error):
        return error.code
    return "ServiceUnavailable" if error.kind in _OF_THE_CLUSTER else error.meaning.s3


def status_of(code: str) -> int:
    """Return the HTTP status of a code."""
    return CODES[code][0]


def error_body(error: CheloniaError, resource: str, request_id: str, headers: Iterable[str] = ()) -> bytes:
    """Return the XML of an error.

    Args:
        resource: the requested path; `headers`: names of the request's header fields.
    """
    # A failed condition is named if it was the only one: by it and the message fsspec's s3fs sees that a file exists.
    code, cause = code_of(error), error.cause or error.op or error.kind.value
    conditions: list[str] = []
    if code == "PreconditionFailed":
        cause = f"At least one of the pre-conditions you specified did not hold: {cause}"
        conditions = [CONDITIONS[name.lower()] for name in headers if name.lower() in CONDITIONS]
    fields = [("Code", code), ("Message", cause), ("Resource", resource), ("RequestId", request_id)]
    fields += [("Condition", name) for name in conditions if len(conditions) == 1]
    elements = "".join(leaf(name, text) for name, text in fields)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<Error>{elements}</Error>'.encode()
