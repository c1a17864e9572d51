"""Standard files that a process was started without (`>&-`): each becomes one that refuses what is done with it.

Otherwise the next file or socket that is opened takes the number: answers go into it, and the event loop aborts the
process when it closes it.
"""

from __future__ import annotations

import os
import sys
from typing import Final

_REFUSING: Final = (
    ("stdin", "r", os.O_WRONLY), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_RDWR),
)  # fmt: skip
"""Each in the order of its number; nobody is told of what standard error was closed for, so that one takes all."""


def open_standard_files() -> None:
    """Open those that are closed. To be called before anything else is opened."""
    for name, mode, flags in _REFUSING:
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, flags)
            setattr(sys, name, os.fdopen(descriptor, mode, errors="backslashreplace", closefd=False))
