"""The entry of the `cheloniad` command: where only the client is installed, it prints a sentence, not a traceback."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from chelonia.hosting.standard_files import open_standard_files

OURS: Final = ("chelonia", "chelonia_clients")
"""Packages that no extra installs: where one is missing, something else is wrong."""
NEEDED: Final = (
    "cheloniad runs the nodes of a cluster, and its libraries are not installed here ({}). "
    "In a checkout: pip install '.[server]' (it needs a C compiler and libdb5.3-dev). "
    "To use a cluster, `chelonia` is enough."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `cheloniad`; return the exit code."""
    open_standard_files()
    try:
        from chelonia.hosting import cheloniad  # here: its libraries may be missing

        return cheloniad.main(argv)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in OURS:
            raise
        sys.stderr.write(NEEDED.format(error.name) + "\n")
        return 2
