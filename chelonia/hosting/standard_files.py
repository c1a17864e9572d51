"""Standard files that a process was started without (`>&-`): each becomes a file that refuses use.

Otherwise the next file or socket takes the number: output goes into it, and the event loop aborts when it closes it.
"""

from __future__ import annotations

import os
import sys
from typing import Final

_REFUSING: Final = (
    ("stdin", "r", os.O_WRONLY), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_RDWR),
)  # fmt: skip
"""Mode and flags of each, in the order of their numbers. Standard error takes all: nobody would see its refusal."""


def open_standard_files() -> None:
    """Open the standard files that are closed. Call this before anything else is opened."""
    for name, mode, flags in _REFUSING:
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, flags)
            setattr(sys, name, os.fdopen(descriptor, mode, errors="backslashreplace", closefd=False))
