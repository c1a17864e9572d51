"""What we read in Berkeley DB's replication frames: kind and term. All else in them is the library's.

A frame is a control buffer and a record. The control buffer is nine u32, big-endian: replication version, log version,
LSN (file, offset), kind, generation, seconds, nanoseconds, flags.
Source: Berkeley DB 5.3, `src/dbinc/rep.h` (kinds), `src/rep/rep_automsg.c` (`__rep_control`).
"""

from __future__ import annotations

import enum
from typing import Final


class FrameKind(enum.IntEnum):
    """The kinds of frame that mean something to us."""

    DUPMASTER = 6
    FILE_FAIL = 8
    BULK_PAGE = 5
    NEWCLIENT = 15
    NEWMASTER = 17
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


SYNCHRONISING: Final = frozenset(
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
    """The kind of a frame (0: too short to tell)."""
    return int.from_bytes(control[16:20], "big") if len(control) >= 24 else 0
