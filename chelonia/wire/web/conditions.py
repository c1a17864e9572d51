"""HTTP's conditional header fields, as conditions of the port `Files`. Pure. Source: RFC 9110 section 13."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC
from email.utils import formatdate, parsedate_to_datetime
from functools import lru_cache
from typing import Final

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ports.files import When

NS_PER_S: Final = 1_000_000_000
TAGS_MAX: Final = 1000
"""Etags of one field: as many as fit into the header fields of a request."""


def quoted(etag: str) -> str:
    """Return an etag as a header field shows it."""
    return f'"{etag}"'


def http_date(ns: int) -> str:
    """Return an instant as `Last-Modified` shows it, rounded down to the second."""
    return _http_date(ns // NS_PER_S)


@lru_cache(maxsize=1024)  # the files of a listing mostly came in the same minutes
def _http_date(seconds: int) -> str:
    return formatdate(seconds, usegmt=True)


def when_of(headers: Mapping[str, str]) -> When:
    """Return the conditions in `If-Match`, `If-None-Match` and `If-Unmodified-Since`. Raises: BAD_REQUEST."""
    match, none = headers.get("If-Match", ""), headers.get("If-None-Match", "")
    tags, not_tags = _tags(match, weak=False), _tags(none)
    for name, named in (("If-Match", tags), ("If-None-Match", not_tags)):
        if name in headers and not named:  # its client has lost the etag: no condition is not what it meant
            raise CheloniaError(Kind.BAD_REQUEST, cause=f"{name} names no etag, nor *")
    since = headers.get("If-Unmodified-Since", "")
    return When(
        absent="*" in not_tags,
        present="*" in tags,
        etags=() if "*" in tags else tags,
        not_etags=() if "*" in not_tags else not_tags,
        unmodified_since_ns=_instant(since) if since and not match else -1,
    )


def is_fresh(headers: Mapping[str, str], etag: str, modified_ns: int) -> bool:
    """Return whether a reader has this already (304), by `If-None-Match`, or without it `If-Modified-Since`."""
    none, since = headers.get("If-None-Match", ""), headers.get("If-Modified-Since", "")
    if none:
        tags = _tags(none)
        return "*" in tags or etag in tags
    return bool(since) and 0 <= modified_ns // NS_PER_S * NS_PER_S <= _instant(since)


def range_asked(headers: Mapping[str, str], etag: str, modified_ns: int) -> str:
    """Return the `Range` if `If-Range` is absent or names the present version; else "" for all bytes."""
    condition = headers.get("If-Range", "").strip()
    counts = not condition or condition in (quoted(etag), http_date(modified_ns))
    return headers.get("Range", "") if counts else ""


def _tags(field: str, *, weak: bool = True) -> tuple[str, ...]:
    """The opaque tags of a field. Unless `weak`, a weak tag keeps its mark and so matches none of ours.

    Source: RFC 9110 section 13.1.1.
    """
    mark = "W/" if weak else ""
    tags = tuple(tag.strip().removeprefix(mark).strip('"') for tag in field.split(",") if tag.strip())
    if len(tags) > TAGS_MAX:
        raise CheloniaError(Kind.BAD_REQUEST, cause=f"at most {TAGS_MAX} etags in one field")
    return tags


def _instant(text: str) -> int:
    """The end of the second of an HTTP date, in ns since 1970, not before that. -1 for other text: ignore the field."""
    try:
        moment = parsedate_to_datetime(text)
    except (TypeError, ValueError, OverflowError):
        return -1
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(int(moment.timestamp()), 0) * NS_PER_S + NS_PER_S - 1
