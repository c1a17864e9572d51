"""The target of a request: bucket and key, in path style or by virtual host, and which of them are lawful. Pure.

A bucket is a collection right below the configured one. A key is the path of a file below its bucket. It is kept apart
(`wire.s3.apart`) if it is no path, or the path is taken.
Source: "Bucket naming rules" and "Object key names", Amazon S3 User Guide.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote_to_bytes

from msgspec import Struct

from chelonia.core import bounds
from chelonia.core.names import LogicalName
from chelonia.wire.s3 import apart
from chelonia.wire.s3.errors import S3Error

KEY_BYTES_MAX: Final = 1024
"""Bytes of a key, in UTF-8."""
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]\Z")
_ADDRESS = re.compile(r"\d+(\.\d+){3}\Z", re.ASCII)


class Target(Struct, frozen=True):
    """Bucket and key of a request; both empty: the service itself, an empty key: the bucket itself."""

    bucket: str = ""
    key: str = ""


def target_of(path: str, host: str, domain: str) -> Target:
    """Return the target of a request's raw path and `Host`. `domain`: the one whose subdomains are buckets, "": none.

    Raises: S3Error when the path is not UTF-8.
    """
    try:
        text = unquote_to_bytes(path).decode("utf-8").removeprefix("/")
    except UnicodeDecodeError as error:
        raise S3Error("InvalidURI", "the path is not UTF-8") from error
    name = host.rpartition(":")[0] if re.search(r":\d*\Z", host) else host
    if domain and name.lower().endswith(f".{domain}"):
        return Target(name[: -len(domain) - 1].lower(), text)
    bucket, _, key = text.partition("/")
    return Target(bucket, key)


def is_bucket_name(name: str) -> bool:
    """Return whether `name` is a lawful name of a bucket."""
    if not _BUCKET.match(name) or _ADDRESS.match(name) or ".." in name or ".-" in name or "-." in name:
        return False
    return not name.startswith(("xn--", "sthree-")) and not name.endswith(("-s3alias", "--ol-s3"))


def check_bucket(name: str) -> str:
    """Return the name of a bucket if it is lawful. Raises: S3Error."""
    if not is_bucket_name(name):
        cause = "The specified bucket is not valid: 3 to 63 small letters, digits, dots and hyphens"
        raise S3Error("InvalidBucketName", cause, name[:80])
    return name


def check_key(key: str) -> str:
    """Return a key if it is not too long. Raises: S3Error."""
    if len(key.encode("utf-8", "surrogatepass")) > KEY_BYTES_MAX:
        raise S3Error("KeyTooLongError", f"Your key is too long: at most {KEY_BYTES_MAX} bytes", key[:80])
    return key


def followable(text: str) -> str:
    """Return the longest part of a key, or of a beginning of keys, that can begin a path of names."""
    parts = text.partition("\0")[0].split("/")
    return "/".join(parts[: bounds.LN_DEPTH_MAX])


def home_of(bucket: LogicalName, key: str) -> LogicalName | None:
    """Return the entry that every door knows by a key, with or without a slash at its end; None: it is no name."""
    if not apart.is_name(key, len(bucket.parts)):
        return None
    return LogicalName(bucket.start, (*bucket.parts, *key.removesuffix("/").split("/")))


def collection_of(bucket: LogicalName, key: str) -> LogicalName:
    """Return the collection that a key is in by its own text, as far as that names one."""
    return LogicalName(bucket.start, (*bucket.parts, *apart.collections_of(key, len(bucket.parts))))


def apart_of(bucket: LogicalName, key: str) -> LogicalName:
    """Return the entry of a key that is kept apart."""
    return LogicalName(bucket.start, (*bucket.parts, *apart.path_of(key)))
