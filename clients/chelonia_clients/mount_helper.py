"""`mount.chelonia`, the program of `mount -t chelonia` and fstab: turns their arguments into `chelonia mount`'s."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from chelonia_clients import cli

CONNECTION: Final = ("bartender", "cluster", "as", "proxy", "cert", "key", "ca_dir", "ca_file", "config", "log")
"""Options after `-o` that are options of the command line."""
MOUNT_FAILED: Final = 32
"""Exit code of mount(8)."""


def words_of(argv: Sequence[str]) -> list[str]:
    """Return the words of `chelonia` for `mount.chelonia SPEC DIRECTORY [-sfnvr] [-t type] [-o options]` (mount(8))."""
    operands: list[str] = []
    options: list[str] = []
    left = list(argv)
    while left:
        word = left.pop(0)
        if word in ("-o", "-t", "-N"):
            value = left.pop(0) if left else ""
            options += value.split(",") if word == "-o" else []
        elif word == "-r":
            options.append("ro")
        elif not word.startswith("-"):
            operands.append(word)
    flags: list[str] = []
    rest: list[str] = []
    for option in filter(None, options):
        name, _, value = option.partition("=")
        if name in CONNECTION:
            flags += ["--" + name.replace("_", "-"), value]
        elif name == "anonymous":
            flags.append("--anonymous")
        else:
            rest.append(option)
    given = ["-o", ",".join(rest)] if rest else []
    return ["mount", "--background", *flags, *given, *operands]


def main() -> int:
    """Mount in the background; return once it can be used. With `-f` of mount(8), a trial, do nothing.

    Returns: an exit code of mount(8), whose values are bits.
    """
    if "-f" in sys.argv[1:]:
        return 0
    sys.argv = ["chelonia", *words_of(sys.argv[1:])]
    return MOUNT_FAILED if cli.main() else 0


if __name__ == "__main__":
    sys.exit(main())
