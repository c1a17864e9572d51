"""The manual page of the `chelonia` command, made from the table of its verbs. As a program: writes it to a file."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from chelonia_clients.arguments import GLOBAL, Flag
from chelonia_clients.verbs.table import VERBS, Verb


def page(version: str) -> str:
    """Return the page in roff, section 1."""
    lines = [
        f'.TH CHELONIA 1 "" "chelonia {version}" "User Commands"',
        ".SH NAME",
        r"chelonia \- use a Chelonia storage cluster",
        ".SH SYNOPSIS",
        r".B chelonia",
        _text("[options] <verb> [<arguments>]"),
        ".SH DESCRIPTION",
        "Works with files, collections and access rules of a Chelonia cluster. Where the cluster is, and who one is,",
        "comes from options, the environment and configuration files: chelonia doctor shows it, chelonia setup writes",
        "it down.",
        ".SH VERBS",
    ]
    for verb in VERBS:
        lines += _verb(verb)
    lines += [".SH OPTIONS", *_flags(GLOBAL)]
    lines += [
        ".SH EXIT STATUS",
        "0 done, 1 other, 2 usage, 3 not found, 4 denied, 5 conflict, 6 quota, 7 network, 8 checksum, 130 interrupted.",
        ".SH FILES",
        _text("~/.config/chelonia/client.toml, ~/.arc/client.conf"),
    ]
    return "\n".join(lines) + "\n"


def _verb(verb: Verb) -> Iterator[str]:
    yield f".SS {_text(verb.name)}"
    yield _text(verb.summary[:1].upper() + verb.summary[1:] + ".")
    for form in verb.synopsis.split(" | ") if verb.name == "admin" else (verb.synopsis,):
        yield ".PP"
        yield _text(f"chelonia {verb.name} {form}".rstrip())
    yield from _flags(verb.flags)
    if verb.examples:
        yield from (".PP", "Examples:", ".PP", ".nf", *(_text(f"  chelonia {text}") for text in verb.examples), ".fi")


def _flags(flags: Sequence[Flag]) -> Iterator[str]:
    for flag in flags:
        yield from (".TP", _text(flag.spelled), _text(flag.help))


def _text(text: str) -> str:
    """Text escaped for roff."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-")
    return r"\&" + escaped if escaped.startswith((".", "'")) else escaped


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(sys.argv[2]), "utf-8")
