"""The manual page of `cheloniad`, made from its command line. As a program, it writes the page to a file (docs/man)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from chelonia.hosting.cheloniad import parser_of

FILES = """/etc/chelonia/*.toml: a configuration for each node. print-config shows every key of one.
.br
/usr/share/doc/chelonia: of the Debian package, with the pages docs/operate/*.md that errors name."""


def page() -> str:
    """Return the page in roff, section 8."""
    lines = [
        '.TH CHELONIAD 8 "" "chelonia" "System Administration"',
        ".SH NAME",
        r"cheloniad \- run and set up the nodes of a Chelonia storage cluster",
        ".SH SYNOPSIS",
        r".B cheloniad",
        _text("COMMAND [OPTION ...]"),
        ".SH DESCRIPTION",
        "Runs one node of a cluster, or a whole cluster for tests; sets hosts up and checks their configurations.",
        ".SH COMMANDS",
        *_commands(parser_of(), "cheloniad"),
        ".SH EXIT STATUS",
        "0 done, 1 it failed, 2 it was called wrongly or the configuration is refused.",
        ".SH FILES",
        FILES,
        ".SH SEE ALSO",
        "chelonia(1)",
    ]
    return "\n".join(lines) + "\n"


def _commands(parser: argparse.ArgumentParser, called: str) -> Iterator[str]:
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            continue
        helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
        for name, inner in action.choices.items():
            yield f".SS {_text(f'{called} {name}')}"
            yield _text(_sentence(inner.description or helps.get(name, "")))
            for option in inner._actions:
                if not isinstance(option, argparse._HelpAction | argparse._SubParsersAction):
                    yield from _option(option)
            yield from _commands(inner, f"{called} {name}")


def _option(option: argparse.Action) -> Iterator[str]:
    value = option.metavar or (option.dest.upper() if option.option_strings and option.nargs != 0 else option.dest)
    spelled = ", ".join(option.option_strings) or str(value)
    yield ".TP"
    yield _text(spelled + (f" {value}" if option.option_strings and option.nargs != 0 else ""))
    words = (option.help or "").replace("%(default)s", str(option.default))
    yield _text(_sentence(words + (" (required)" if option.required and option.option_strings else "")))


def _sentence(text: str) -> str:
    text = " ".join(text.split())
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".") if text else "."


def _text(text: str) -> str:
    """Return text escaped for roff."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-")
    return r"\&" + escaped if escaped.startswith((".", "'")) else escaped


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), "utf-8")
