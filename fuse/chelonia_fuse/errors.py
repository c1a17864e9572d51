"""Failures for programs, as an errno, and for the log, as a line with the file and the cure. Pure."""

from __future__ import annotations

import errno
from typing import Final

from chelonia.core.errors import CheloniaError, Kind

AGAIN: Final = frozenset(
    {
        Kind.NETWORK, Kind.TIMEOUT, Kind.UNAVAILABLE, Kind.OUTCOME_UNKNOWN, Kind.READ_ONLY, Kind.BUSY, Kind.CANCELLED,
        Kind.NO_SHEPHERD, Kind.NO_REPLICA, Kind.CONFLICT, Kind.INCOMPLETE, Kind.CHECKSUM, Kind.BAD_TICKET,
        Kind.EXPIRED, Kind.UNTRUSTED, Kind.ALREADY_DONE, Kind.NOT_ALIVE,
    }
)  # fmt: skip
"""Failures that pass: the whole operation may be tried again. Proxies and CRLs expire during a mount, and are
renewed."""
_NUMBERS: Final = dict.fromkeys(AGAIN, errno.EIO) | {Kind.CANCELLED: errno.EINTR}
"""Kinds for which programs expect another errno than the table of kinds has."""
_QUIET: Final = frozenset(
    {
        Kind.NOT_FOUND, Kind.EXISTS, Kind.NO_PARENT, Kind.NOT_A_COLLECTION, Kind.NOT_A_FILE, Kind.NOT_EMPTY,
        Kind.PRECONDITION, Kind.BAD_NAME, Kind.INVALID_TARGET,
    }
)  # fmt: skip
"""Ordinary answers, which are not logged: programs get them all the time."""


def errno_of(error: CheloniaError) -> int:
    """Return the errno of a failure."""
    if error.kind is Kind.BAD_NAME and "bytes" in error.cause:
        return errno.ENAMETOOLONG
    return _NUMBERS.get(error.kind, error.meaning.errno)


def line_of(error: CheloniaError, op: str, path: str) -> str:
    """Return the line for the log; "" when there is none."""
    if error.kind in _QUIET:
        return ""
    return f"{op} {path}: {error.kind.value}: {error.cause or 'no reason was given'}{_cure(error.kind)}"


def _cure(kind: Kind) -> str:
    if kind is Kind.DENIED:
        return " (`chelonia policy` shows and changes who may what)"
    if kind in (Kind.UNTRUSTED, Kind.EXPIRED, Kind.BAD_CONFIG):
        return " (`chelonia doctor` shows what is wrong with certificates; renewed ones are taken up within seconds)"
    if kind in AGAIN:
        return " (it may pass; `chelonia mount --status` shows what waits)"
    return ""
