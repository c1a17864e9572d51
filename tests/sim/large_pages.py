"""Memory for simulated worlds on large pages.

A run touches all of its memory over and over, and with pages of 4 KiB finding them takes some of its time. Only where
the kernel has them on request (Linux 6.1 and newer, `transparent_hugepage` not `never`); elsewhere, and where something
fails, only the speed changes.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from pathlib import Path

PAGE = 2 << 20
SMALL_BYTES, SMALL = 32 << 20, 400
"""Memory for Python's small objects, and the size of one."""
OTHER_BYTES, OTHER = 8 << 20, 2_000
"""The same for larger objects."""
PIN_BYTES = 256 << 10
"""One object is kept for so many bytes: the kernel does not take back memory in use."""
MADV_HUGEPAGE, MADV_COLLAPSE = 14, 25
_AREA = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw-p \S+ \S+ 0 +(\[heap\])?$")


def reserve() -> tuple[int, list[bytes]]:
    """Put memory that this process allocates from now on on large pages. Returns: how many bytes are on them, and the
    objects to keep as long as they shall be."""
    pins: list[bytes] = []
    for total, size in ((SMALL_BYTES, SMALL), (OTHER_BYTES, OTHER)):
        filling = [bytes(size) for _ in range(total // size)]
        pins += filling[:: PIN_BYTES // size]
        pins.append(filling[-1])
        del filling
    try:
        return sum(map(_collapsed, _areas())), pins
    except (OSError, AttributeError):
        return 0, pins


def _areas() -> Iterator[tuple[int, int]]:
    """The process's memory that belongs to no file: (start, end) of whole large pages."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        found = _AREA.match(line)
        if found is not None:
            start, end = -(-int(found[1], 16) // PAGE) * PAGE, int(found[2], 16) // PAGE * PAGE
            if start < end:
                yield start, end


def _collapsed(area: tuple[int, int]) -> int:
    start, end = area
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    madvise(start, end - start, MADV_HUGEPAGE)
    return 0 if madvise(start, end - start, MADV_COLLAPSE) else end - start
