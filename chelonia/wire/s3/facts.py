"""The facts that S3 keeps of an object beside its bytes: header fields, user metadata, tags, a checksum. Pure.

All of it is one property of the entry's user metadata, as JSON, so that it changes as one with the bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from chelonia.wire.s3.checksums import ALGORITHMS
from chelonia.wire.s3.cors import CorsRule
from chelonia.wire.s3.errors import S3Error

PROPERTY: Final = "s3"
"""The property of the section `metadata`."""
USER: Final = "x-amz-meta-"
USER_BYTES_MAX: Final = 2048
"""Bytes of the user metadata of one object, names and values: Amazon's bound."""
HEADERS_BYTES_MAX: Final = 8192
KEPT: Final = (
    "Cache-Control", "Content-Disposition", "Content-Encoding", "Content-Language", "Content-Type", "Expires",
    "x-amz-website-redirect-location",
)  # fmt: skip
"""Header fields that answers repeat as they came."""
BINARY: Final = "binary/octet-stream"
"""Media type of an object that came without one."""


class Facts(msgspec.Struct, frozen=True, omit_defaults=True):
    """The facts that the door keeps of an object or bucket beside its bytes.

    - `headers` by name as in `KEPT`
    - `user`: names in lower case, without the prefix
    - `checksum`: name and base64, of the bytes that `etag` names: another door may have put others
    - `version`: of an object, "": null
    - `versioning`: of a bucket, whether it keeps versions
    - `location`: of a bucket, as its creator chose
    - `cors`: of a bucket, its rules
    - `acl`: of an open upload, the canned list for its object; or `grants`: grantees and permissions
    """

    headers: dict[str, str] = {}
    user: dict[str, str] = {}
    tags: dict[str, str] = {}
    checksum: tuple[str, str] = ("", "")
    etag: str = ""
    version: str = ""
    versioning: str = ""
    location: str = ""
    cors: tuple[CorsRule, ...] = ()
    acl: str = ""
    grants: tuple[tuple[str, str], ...] = ()


NOTHING: Final = Facts()
_ENCODER, _DECODER = msgspec.json.Encoder(), msgspec.json.Decoder(Facts)


def facts_of(user: Mapping[str, str]) -> Facts:
    """Return the facts in an object's user metadata; none unless this door can have written them."""
    text = user.get(PROPERTY, "")
    if not text:
        return NOTHING
    try:
        facts = _DECODER.decode(text)
    except (msgspec.MsgspecError, RecursionError):  # a user wrote it
        return NOTHING
    return facts if _is_valid(facts) else NOTHING


def _is_valid(facts: Facts) -> bool:
    """Whether this door can have written it. If a user did, answers show his values."""
    name, value = facts.checksum
    return (
        set(facts.headers) <= set(KEPT)
        and all(is_field(*each) for each in (*facts.headers.items(), *facts.user.items()))
        and all(is_field("x", text) for rule in facts.cors for text in rule.texts)
        and (not name or name in ALGORITHMS)
        and all(_WORD.fullmatch(each) for each in (value, facts.version, facts.location, facts.acl))
    )


def stored(facts: Facts) -> dict[str, str]:
    """Return the user metadata that keep facts."""
    return {PROPERTY: _ENCODER.encode(facts).decode()}


_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")
"""Names of header fields (RFC 9110), and characters that no value may hold. Fields of forms may hold anything."""
_NO_TEXT = re.compile("[\ud800-\udfff]")
_WORD = re.compile(r"[0-9A-Za-z+/=-]*")
"""Ids of versions, checksums in base64, and names of regions."""


def is_field(name: str, value: str) -> bool:
    """Return whether an answer can have a header field of this name and value."""
    return _TOKEN.fullmatch(name) is not None and _CONTROL.search(value) is None


def is_text(texts: Iterable[str]) -> bool:
    """Return whether all texts are UTF-8: header fields and queries may hold other bytes."""
    return not any(_NO_TEXT.search(text) for text in texts)


def is_id(text: str) -> bool:
    """Return whether `text` can be the id of a version."""
    return text != "" and _WORD.fullmatch(text) is not None


def facts_from(fields: Iterable[tuple[str, str]], tags: Mapping[str, str]) -> Facts:
    """Return the facts in the header fields of an upload. Raises: S3Error when they are too large, or no text."""
    kept = {name.lower(): name for name in KEPT}
    headers: dict[str, str] = {}
    user: dict[str, str] = {}
    for name, value in fields:
        lower = name.lower()
        if lower.startswith(USER):
            before = user.get(lower.removeprefix(USER))
            user[lower.removeprefix(USER)] = value if before is None else f"{before},{value}"
        elif lower in kept and value:
            headers[kept[lower]] = value
    codings = [coding.strip() for coding in headers.pop("Content-Encoding", "").split(",")]
    if coding := ", ".join(each for each in codings if each and each.lower() != "aws-chunked"):
        headers["Content-Encoding"] = coding
    _check(user, USER_BYTES_MAX, "user metadata")
    _check(headers, HEADERS_BYTES_MAX, "header fields")
    return Facts(headers, user, dict(tags))


def header_fields(facts: Facts) -> tuple[tuple[str, str], ...]:
    """Return the header fields that show facts."""
    headers = {"Content-Type": BINARY, **facts.headers}
    return (*headers.items(), *((USER + name, value) for name, value in facts.user.items()))


def _check(values: Mapping[str, str], most: int, subject: str) -> None:
    if not all(is_field(*each) for each in values.items()):
        raise S3Error("InvalidArgument", f"the {subject} hold what no header field can: they could not be read again")
    size = sum(len(name.encode()) + len(value.encode()) for name, value in values.items())
    if size > most:
        raise S3Error("MetadataTooLarge", f"the {subject} have {size} bytes, at most {most} are kept with an object")
