"""Third-party copies by COPY: the header fields of the request, and the lines that report progress. Pure.

`Source` has this server fetch, `Destination` on another host has it send. It passes `TransferHeader<Name>` to the other
server as `<Name>`. The answer is 202 with a marker every few seconds and `success:` or `failure:` as its last line.
Source: the WLCG document "HTTP Third Party Copy".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from chelonia.core.errors import CheloniaError, Kind

PREFIX: Final = "transferheader"
HEADERS_MAX: Final = 20
"""Header fields passed on to the other server."""
_OURS: Final = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "expect", "range", "te", "upgrade"}
)
"""Fields of the message itself, which only this server sets."""
_SCHEMES: Final = {"https": "https", "davs": "https"}


@dataclass(frozen=True, slots=True)
class Remote:
    """The other end of a copy: its URL (https), and header fields for it; `verified`: its checksum must be known."""

    url: str
    headers: tuple[tuple[str, str], ...] = ()
    verified: bool = False


def remote(url: str, fields: Iterable[tuple[str, str]]) -> Remote:
    """Return the other end of a COPY. Raises: BAD_REQUEST."""
    passed, verified = [], False
    for name, value in fields:
        low = name.lower()
        if low == "requirechecksumverification":
            verified = value.strip().lower() == "true"
        elif low.startswith(PREFIX) and len(low) > len(PREFIX) and low.removeprefix(PREFIX) not in _OURS:
            passed.append((name[len(PREFIX) :], value))
    if len(passed) > HEADERS_MAX:
        raise CheloniaError(Kind.BAD_REQUEST, "COPY", cause=f"more than {HEADERS_MAX} TransferHeader fields")
    return Remote(url_of(url), tuple(passed), verified)


def url_of(text: str) -> str:
    """Return the URL of the other end, as https. Raises: BAD_REQUEST for other text."""
    try:
        parsed = urlsplit(text.strip())
        whole = bool(parsed.hostname) and (parsed.port is None or parsed.port > 0)
    except ValueError:
        parsed, whole = urlsplit(""), False
    if not whole or parsed.scheme not in _SCHEMES or parsed.username or parsed.fragment or not text.isprintable():
        cause = "the other end is https://host/path or davs://host/path, without a user"
        raise CheloniaError(Kind.BAD_REQUEST, "COPY", cause=cause)
    return parsed._replace(scheme=_SCHEMES[parsed.scheme]).geturl()


def marker(now_ms: int, moved: int) -> bytes:
    """Return a progress marker: bytes moved by this time."""
    return (
        f"Perf Marker\n    Timestamp: {now_ms // 1000}\n    Stripe Index: 0\n"
        f"    Stripe Bytes Transferred: {moved}\n    Total Stripe Count: 1\nEnd\n"
    ).encode()


def ended(failure: str = "") -> bytes:
    """Return the last line."""
    line = " ".join("".join(each if each.isprintable() else " " for each in failure).split())
    return f"failure: {line}\n".encode() if failure else b"success: Created\n"
