"""The parts of Berkeley DB's replication frames that we read: kind and term. All else in them is the library's.

A frame is a control buffer and a record. The control buffer is nine u32, big-endian: replication version, log version,
LSN (file, offset), kind, generation, seconds, nanoseconds, flags.
The log records of one commit travel as one frame, a bundle. The library sends the same with DB_REP_CONF_BULK, except
for the flag to sync at every record. For each log record it has: length, LSN (file, offset), length again, each u32,
big-endian; then the log record.
Source: Berkeley DB 5.3, `src/dbinc/rep.h` (kinds, flags), `src/rep/rep_automsg.c` (`__rep_control`, `__rep_bulk`),
`src/rep/rep_util.c` (`__rep_bulk_message`), `src/rep/rep_log.c` (`__rep_log_split`).
"""

from __future__ import annotations

import enum
import struct
import threading
from typing import Final

import msgspec

from chelonia.ahash.store.replicated_port import LogPosition


class Frame(msgspec.Struct, frozen=True):
    """A frame of another replica's engine."""

    sender: int
    control: bytes
    record: bytes


class FrameKind(enum.IntEnum):
    """The kinds of frame that we know."""

    BULK_LOG = 4
    BULK_PAGE = 5
    DUPMASTER = 6
    FILE_FAIL = 8
    LOG = 11
    LOG_MORE = 12
    NEWCLIENT = 15
    NEWFILE = 16
    NEWMASTER = 17
    NEWSITE = 18
    PAGE = 19
    PAGE_FAIL = 20
    PAGE_MORE = 21
    PAGE_REQ = 22
    REREQUEST = 23
    UPDATE = 25
    UPDATE_REQ = 26
    VERIFY = 27
    VERIFY_FAIL = 28
    VOTE1 = 30
    VOTE2 = 31


_SYNCHRONISING: Final = frozenset(
    {
        FrameKind.BULK_PAGE,
        FrameKind.DUPMASTER,
        FrameKind.FILE_FAIL,
        FrameKind.NEWMASTER,
        FrameKind.PAGE,
        FrameKind.PAGE_FAIL,
        FrameKind.PAGE_MORE,
        FrameKind.REREQUEST,
        FrameKind.UPDATE,
        FrameKind.VERIFY,
        FrameKind.VERIFY_FAIL,
    }
)
"""Frames on which the library may lock everybody out: to roll back, or to take a whole copy."""


def frame_kind(control: bytes) -> int:
    """Return the kind of a frame (0: it is too short)."""
    return int.from_bytes(control[16:20], "big") if len(control) >= 24 else 0


def may_roll_back(control: bytes, *, by_master: bool) -> bool:
    """Return whether the library may lock everybody out for a frame, to roll back or replace our contents."""
    kind = frame_kind(control)
    return kind in _SYNCHRONISING or (kind == FrameKind.NEWCLIENT and by_master)


LOG: Final = FrameKind.LOG.to_bytes(4, "big")
"""The kind of a frame that carries one record of the log, as it stands in `control[16:20]`."""
_BULK_LOG: Final = FrameKind.BULK_LOG.to_bytes(4, "big")
BRIEF_BYTES: Final = 16 * 1024
"""Size of a bundle up to which it takes a fraction of a millisecond to apply, when its pages are in the cache."""
_FLUSH: Final = 0x02
"""Flag of a control buffer: sync on applying it. A bundle has none, or every record would be synced; a replica syncs
before it vouches anyway."""
_HEAD: Final = struct.Struct(">I8sI")
_LENGTHS: Final = struct.Struct(">I8xI")


class Bundle:
    """Log records of one term, in order, gathered to travel together."""

    __slots__ = ("_first", "_last", "_parts", "size")

    def __init__(self) -> None:
        self._first = self._last = b""
        self._parts: list[bytes] = []
        self.size = 0
        """Bytes of the records gathered so far."""

    def add(self, control: bytes, record: bytes) -> None:
        """Gather one more frame. A master calls it for every log record that it writes."""
        size = len(record)
        if not self._parts:
            self._first = control
        self._last = control
        self._parts += (_HEAD.pack(size, control[8:16], size), record)
        self.size += size

    def take(self) -> tuple[bytes, bytes] | None:
        """Return the gathered records as one frame (control, record), a single one as it was; None: there are none."""
        first, parts, self._parts, self.size = self._first, self._parts, [], 0
        if len(parts) <= 2:
            return (first, parts[1]) if parts else None
        flags = int.from_bytes(self._last[32:36], "big") & ~_FLUSH
        return b"".join((first[:16], _BULK_LOG, first[20:32], flags.to_bytes(4, "big"))), b"".join(parts)


def is_whole(control: bytes, record: bytes) -> bool:
    """Return whether a bundle holds whole records, by their lengths; True for other frames."""
    if control[16:20] != _BULK_LOG:
        return True
    at, end, head, read = 0, len(record), _LENGTHS.size, _LENGTHS.unpack_from
    try:
        while at < end:
            size, again = read(record, at)
            if size != again:
                return False
            at += head + size
    except struct.error:
        return False
    return at == end


def is_brief(control: bytes, record: bytes) -> bool:
    """Return whether a frame is a small bundle, quick to apply: a commit of few records. A checkpoint comes alone."""
    return control[16:20] == _BULK_LOG and len(record) <= BRIEF_BYTES


class TokenMark(threading.local):
    """Notes of the transport callback for the thread that called into the library."""

    token: LogPosition | None = None
    """Position of the last permanent record sent: our own commit's."""
    gathered: Bundle | None = None
    """Records of the commit that this thread makes, which travel together; None: it makes none."""
    late: bool = False
    """Whether commits of this thread are synced later; it holds the state meanwhile."""

    def take(self) -> LogPosition | None:
        """Return the token and forget it, so that none is used twice."""
        token, self.token = self.token, None
        return token
