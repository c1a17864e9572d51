"""What a process of ours that moves bodies loads first: aiohttp in half the time, and a heap that uses memory again.

aiohttp reads the system's CAs twice at import, which we never trust. glibc gives each buffer of a body back to the
kernel and asks for it anew, which clears its pages: a fifth of the CPU of a stream. These are matters of the whole
process, so a program that is not ours, which only uses the SDK, does without.
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
"""So much freed memory stays at the end of a heap."""
_BUFFER_BYTES: Final = 2 * 1024 * 1024
"""Buffers up to this size come from a heap: twice what a chunk has."""
_HEAPS: Final = 2
"""Each thread would get one of its own, up to eight for each processor, and each keeps what was freed in it."""


@contextlib.contextmanager
def _without_cas() -> Iterator[None]:
    ssl.SSLContext.set_default_verify_paths = lambda self: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        del ssl.SSLContext.set_default_verify_paths  # the one it inherits is there again


def trim_heaps() -> None:
    """Give back to the kernel whatever pages of the heaps are free."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


with contextlib.suppress(AttributeError):  # not every C library has it
    ctypes.CDLL(None).mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _BUFFER_BYTES)
    ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _HEAPS)
with _without_cas():
    import aiohttp
