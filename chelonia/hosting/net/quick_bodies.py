"""Loads aiohttp in half the time, and has the heap use memory again, for processes of ours that move bodies.

aiohttp reads the system's CAs twice at import, which we never trust. glibc gives each buffer of a body back to the
kernel, which clears its pages for the next one. That takes a fifth of a stream's CPU. Both concern the whole process,
so a program that is not ours, which only uses the SDK, does without.
"""

from __future__ import annotations

import contextlib
import ctypes
import ssl
from collections.abc import Iterator
from typing import Final

__all__ = ["aiohttp", "trim_heaps"]

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_KEPT_BYTES: Final = 8 * 1024 * 1024
"""Freed memory that stays at the end of a heap."""
_BUFFER_BYTES: Final = 2 * 1024 * 1024
"""Largest buffer that comes from a heap: twice the size of a chunk."""
_HEAPS: Final = 2
"""Heaps of the process: else each thread gets one, up to eight per processor, and each keeps its freed memory."""


@contextlib.contextmanager
def _without_cas() -> Iterator[None]:
    ssl.SSLContext.set_default_verify_paths = lambda self: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        del ssl.SSLContext.set_default_verify_paths  # the inherited one is back


def trim_heaps() -> None:
    """Give the free pages of the heaps back to the kernel."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


with contextlib.suppress(AttributeError):  # not every C library has it
    ctypes.CDLL(None).mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _BUFFER_BYTES)
    ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _HEAPS)
with _without_cas():
    import aiohttp
