"""The operation of a request, by its method, target and the subresource in its query. And the header fields that ask
for features the door does not offer. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from chelonia.wire.s3.errors import S3Error
from chelonia.wire.s3.keys import Target

UNSET: Final = {
    "encryption": "ServerSideEncryptionConfigurationNotFoundError",
    "lifecycle": "NoSuchLifecycleConfiguration",
    "object-lock": "ObjectLockConfigurationNotFoundError",
    "policy": "NoSuchBucketPolicy",
    "publicAccessBlock": "NoSuchPublicAccessBlockConfiguration",
    "website": "NoSuchWebsiteConfiguration",
}
"""Settings that no bucket has, and the error for a request of one."""
EMPTY: Final = {
    "accelerate": "AccelerateConfiguration",
    "logging": "BucketLoggingStatus",
    "notification": "NotificationConfiguration",
}
"""Settings that are always empty, and the document for a request of one."""
_BUCKET: Final = {
    ("GET", ""): "ListObjects",
    ("GET", "location"): "GetBucketLocation",
    ("GET", "acl"): "GetBucketAcl",
    ("GET", "cors"): "GetBucketCors",
    ("GET", "tagging"): "GetBucketTagging",
    ("GET", "uploads"): "ListMultipartUploads",
    ("GET", "versioning"): "GetBucketVersioning",
    ("GET", "versions"): "ListObjectVersions",
    ("GET", "requestPayment"): "GetBucketRequestPayment",
    ("HEAD", ""): "HeadBucket",
    ("PUT", ""): "CreateBucket",
    ("PUT", "acl"): "PutBucketAcl",
    ("PUT", "cors"): "PutBucketCors",
    ("PUT", "tagging"): "PutBucketTagging",
    ("PUT", "versioning"): "PutBucketVersioning",
    ("DELETE", ""): "DeleteBucket",
    ("DELETE", "cors"): "DeleteBucketCors",
    ("DELETE", "tagging"): "DeleteBucketTagging",
    ("POST", "delete"): "DeleteObjects",
    ("POST", ""): "PostObject",
}
_OBJECT: Final = {
    ("GET", ""): "GetObject",
    ("GET", "acl"): "GetObjectAcl",
    ("GET", "tagging"): "GetObjectTagging",
    ("GET", "attributes"): "GetObjectAttributes",
    ("GET", "uploadId"): "ListParts",
    ("HEAD", ""): "HeadObject",
    ("PUT", ""): "PutObject",
    ("PUT", "acl"): "PutObjectAcl",
    ("PUT", "tagging"): "PutObjectTagging",
    ("PUT", "uploadId"): "UploadPart",
    ("POST", "uploads"): "CreateMultipartUpload",
    ("POST", "uploadId"): "CompleteMultipartUpload",
    ("DELETE", ""): "DeleteObject",
    ("DELETE", "tagging"): "DeleteObjectTagging",
    ("DELETE", "uploadId"): "AbortMultipartUpload",
}
_SUBRESOURCES: Final = frozenset(
    {name for table in (_BUCKET, _OBJECT) for _, name in table if name} | set(UNSET) | set(EMPTY)
    | {"abac", "analytics", "annotation", "intelligent-tiering", "inventory", "legal-hold", "metadataConfiguration",
       "metadataTable", "metrics", "ownershipControls", "policyStatus", "replication", "restore", "retention", "select",
       "session", "torrent"}
)  # fmt: skip
_OF_A_WRITE: Final = frozenset({"partNumber", "uploadId", "versionId", "x-id"})
"""Fields in the query of a write beside its subresource and its signature."""
OTHER: Final = "Other"
PREFLIGHT: Final = "PreflightRequest"
"""The operation of a browser before a page's request, whatever that will be."""
PROMISES: Final = {
    "x-amz-server-side-encryption": "encryption by the server is not offered by this door: encrypt before you upload",
    "x-amz-copy-source-server-side-encryption": "what this door keeps is not encrypted by a customer's key",
    "x-amz-object-lock": "locks are not offered by this door: whoever may remove an object can",
    "x-amz-bucket-object-lock": "locks are not offered by this door: whoever may remove an object can",
    "x-amz-if-match-": "this door removes on the condition of an ETag alone: If-Match",
    "x-amz-write-offset-bytes": "this door writes objects whole: append to the file by another door",
}
"""Beginnings of header fields that ask for more protection than the door gives, or limit a write, and the refusal.

Requests for less, like a storage class, get more than they ask for."""
_BEGINS: Final = tuple(PROMISES)


def check_promises(fields: Mapping[str, str]) -> None:
    """Refuse header fields whose sender would believe his bytes encrypted, locked or left alone. Raises: S3Error."""
    for name, value in fields.items():
        lower = name.lower()
        if lower.startswith(_BEGINS) and value.lower() not in ("", "false", "off"):
            raise S3Error("NotImplemented", next(PROMISES[begin] for begin in _BEGINS if lower.startswith(begin)))


def _is_signed(name: str) -> bool:
    return name.lower().startswith("x-amz-")


def operation_of(method: str, target: Target, query: Mapping[str, str], *, copies: bool) -> tuple[str, str]:
    """Return the name of an operation, as Amazon has it, and its subresource.

    Args: `copies`: the request names a source to copy.
    Raises: S3Error for an operation that the door does not offer.
    """
    if method == "OPTIONS":
        return PREFLIGHT, ""
    asked = next((name for name in query if name in _SUBRESOURCES), "")
    if not asked and method not in ("GET", "HEAD"):  # a subresource that Amazon adds later is not done to the whole
        asked = next((name for name in query if not (query[name] or name in _OF_A_WRITE or _is_signed(name))), "")
    if not target.bucket:
        if method == "GET" and not target.key:
            return "ListBuckets", ""
        raise S3Error("MethodNotAllowed", "The specified method is not allowed against this resource.")
    table = _OBJECT if target.key else _BUCKET
    name = table.get((method, asked), "")
    if name:
        return {"PutObject": "CopyObject", "UploadPart": "UploadPartCopy"}.get(name, name) if copies else name, asked
    if not target.key and asked and (asked in UNSET or asked in EMPTY) and method in ("GET", "DELETE"):
        return "GetBucketSetting" if method == "GET" else "DeleteBucketSetting", asked
    if asked:
        raise S3Error("NotImplemented", f"{asked} is not offered by this door")
    raise S3Error("MethodNotAllowed", "The specified method is not allowed against this resource.")
