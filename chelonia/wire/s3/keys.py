"""What a request is about: bucket and key, in path style or by virtual host, and which of them are lawful. Pure.

A bucket is a collection right below the configured one; a key is the path of a file below its bucket. Keys are taken
that are Logical Names as every door has them; others are refused with the clause they break.
Source: "Bucket naming rules" and "Object key names", Amazon S3 User Guide.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_to_bytes

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError
from chelonia.core.names import LogicalName, check_name
from chelonia.wire.s3.errors import S3Error

KEY_BYTES_MAX: Final = 1024
"""Of a key, in UTF-8."""
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]\Z")


@dataclass(frozen=True, slots=True)
class Target:
    """Bucket and key of a request; both empty: the service itself, an empty key: the bucket itself."""

    bucket: str = ""
    key: str = ""


def target_of(path: str, host: str, domain: str) -> Target:
    """What a request's raw path and `Host` speak of. `domain`: whose subdomains are buckets, "": none.

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
    """Whether a bucket may be called so."""
    if not _BUCKET.match(name) or ".." in name or ".-" in name or "-." in name:
        return False
    try:
        ipaddress.IPv4Address(name)
    except ValueError:
        return not name.startswith(("xn--", "sthree-")) and not name.endswith(("-s3alias", "--ol-s3"))
    return False


def check_bucket(name: str) -> str:
    """Return the name of a bucket. Raises: S3Error."""
    if not is_bucket_name(name):
        cause = "The specified bucket is not valid: 3 to 63 small letters, digits, dots and hyphens"
        raise S3Error("InvalidBucketName", cause, name[:80])
    return name


def place_of(bucket: LogicalName, key: str) -> LogicalName:
    """The entry of a key in a bucket. Raises: S3Error naming the clause that the key breaks."""
    if len(key.encode("utf-8", "surrogatepass")) > KEY_BYTES_MAX:
        raise S3Error("KeyTooLongError", f"Your key is too long: at most {KEY_BYTES_MAX} bytes", key[:80])
    parts = key.split("/")
    try:
        for part in parts:
            check_name(part)
    except CheloniaError as error:
        cause = f"this key cannot be a name here: between slashes, {error.cause}"
        raise S3Error("InvalidObjectName", cause, ascii(key[:80])) from error
    if len(bucket.parts) + len(parts) > bounds.LN_DEPTH_MAX:
        raise S3Error("InvalidObjectName", f"a key has at most {bounds.LN_DEPTH_MAX} levels", key[:80])
    return LogicalName(bucket.start, (*bucket.parts, *parts))
