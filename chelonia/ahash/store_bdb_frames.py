"""What we read in Berkeley DB's replication frames: kind and term. All else in them is the library's.

A frame is a control buffer and a record. The control buffer is nine u32, big-endian: replication version, log version,
LSN (file, offset), kind, generation, seconds, nanoseconds, flags.
The log records of one commit travel as one frame of ours, a bundle: its control buffer is that of the first record up
to the generation, with the kind BUNDLE; its record is, for each of them, the lengths of its two parts (u32) and they.
Source: Berkeley DB 5.3, `src/dbinc/rep.h` (kinds), `src/rep/rep_automsg.c` (`__rep_control`).
"""

from __future__ import annotations

import enum
import struct
import threading
from collections.abc import Iterator, Sequence
from typing import Final

from chelonia.ahash.engine_port import BUNDLE, Token


class FrameKind(enum.IntEnum):
    """The kinds of frame that mean something to us."""

    BULK_PAGE = 5
    DUPMASTER = 6
    FILE_FAIL = 8
    LOG = 11
    NEWCLIENT = 15
    NEWFILE = 16
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


class TokenMark(threading.local):
    """What the transport callback leaves for the thread that called into the library."""

    token: Token | None = None
    """Of the last record sent that asks to be made permanent: our own commit's."""
    gathered: list[tuple[bytes, bytes]] | None = None
    """Records of the commit that this thread makes, which travel together; None: it makes none."""
    gathered_bytes: int = 0

    def take(self) -> Token | None:
        """Read the token and forget it: none is ever told twice."""
        token, self.token = self.token, None
        return token


BUNDLED: Final = frozenset({FrameKind.LOG, FrameKind.NEWFILE})
"""What is sent in bundles: what a commit writes to the log."""
_LENGTHS: Final = struct.Struct(">II")


def bundle(frames: Sequence[tuple[bytes, bytes]]) -> tuple[bytes, bytes]:
    """One frame that carries at least one (control, record), all of one term, in order."""
    if len(frames) == 1:
        return frames[0]
    first = frames[0][0]
    control = b"".join((first[:16], BUNDLE.to_bytes(4, "big"), first[20:24]))
    parts = (part for frame in frames for part in (_LENGTHS.pack(len(frame[0]), len(frame[1])), *frame))
    return control, b"".join(parts)


def unbundle(control: bytes, record: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The frames in a frame: itself, unless it is a bundle. Raises: ValueError where it is none that `bundle` made."""
    if frame_kind(control) != BUNDLE:
        yield control, record
        return
    at = 0
    while at < len(record):
        if at + _LENGTHS.size > len(record):
            raise ValueError("a bundle is cut short")
        control_bytes, record_bytes = _LENGTHS.unpack_from(record, at)
        middle = at + _LENGTHS.size + control_bytes
        at = middle + record_bytes
        inner = record[middle - control_bytes : middle]
        if at > len(record) or frame_kind(inner) not in BUNDLED or inner[20:24] != control[20:24]:
            raise ValueError("a bundle holds what is no record of its term")
        yield inner, record[middle:at]
