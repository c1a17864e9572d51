"""What programs are told when something fails: an errno; and a line in the log with the file and the cure. Pure."""

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
"""Failures that pass: what failed with one may be tried again as a whole. Proxies and CRLs end while it is mounted, and
are renewed."""
_NUMBERS: Final = dict.fromkeys(AGAIN, errno.EIO) | {Kind.CANCELLED: errno.EINTR}
"""Where a program expects something else of a file than the table of kinds says."""
_QUIET: Final = frozenset(
    {
        Kind.NOT_FOUND, Kind.EXISTS, Kind.NO_PARENT, Kind.NOT_A_COLLECTION, Kind.NOT_A_FILE, Kind.NOT_EMPTY,
        Kind.PRECONDITION, Kind.BAD_NAME, Kind.INVALID_TARGET,
    }
)  # fmt: skip
"""Answers, not troubles: programs ask for them all the time."""


def errno_of(error: CheloniaError) -> int:
    """The errno of a failure."""
    if error.kind is Kind.BAD_NAME and "bytes" in error.cause:
        return errno.ENAMETOOLONG
    return _NUMBERS.get(error.kind, error.meaning.errno)


def line_of(error: CheloniaError, op: str, path: str) -> str:
    """What to write into the log; "" when there is nothing to tell."""
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
