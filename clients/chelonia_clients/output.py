"""The output of a command: lines for people or one JSON document, and the exit code.

Data goes to stdout, messages to stderr. The exit code is that of the first failure; all operands are tried whatever
happens to one of them.
"""

from __future__ import annotations

import errno
import json
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TextIO

from chelonia.core import status
from chelonia.core.errors import CheloniaError, ExitCode, Kind
from chelonia.core.names import excerpt


class AnswerLost(Exception):
    """A failure to write the answer, which ends the command. `error`: for the user."""

    def __init__(self, error: OSError) -> None:
        cause = error.strerror or str(error)
        super().__init__(cause)
        self.error = CheloniaError(Kind.INTERNAL, "write", "standard output", cause)


@contextmanager
def answering() -> Iterator[None]:
    """Write to standard output within the context. Raises: AnswerLost; BrokenPipeError when the reader has gone."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise AnswerLost(error) from error


@dataclass(slots=True)
class Output:
    """The results of one command. `as_json`: text is kept back and `finish` prints the document."""

    stdout: TextIO
    stderr: TextIO
    as_json: bool = False
    verbose: int = 0
    exit_code: int = 0
    results: list[dict[str, Any]] = field(default_factory=list)
    document: dict[str, Any] = field(default_factory=dict)
    error: dict[str, Any] | None = None
    before: Callable[[], None] | None = None
    """Clears the terminal's last line, before anything is written there."""

    def write(self, *lines: str) -> None:
        """Print lines of the answer, for people. Raises: AnswerLost, BrokenPipeError."""
        if not self.as_json:
            self._write_text("".join(printable(line) + "\n" for line in lines))

    def emit(self, text: str) -> None:
        """Print text for programs, unescaped. Raises: AnswerLost, BrokenPipeError; BAD_CONFIG if it has no encoding."""
        if not self.as_json:
            _check_letters(text, self.stdout.encoding or "utf-8")
            self._write_text(text)

    def notify(self, *lines: str) -> None:
        """Print lines about the work, for people."""
        if self.before is not None:
            self.before()
        self.stderr.write("".join(printable(line) + "\n" for line in lines))
        self.stderr.flush()

    def result(self, **facts: Any) -> None:
        """Add one result, for programs."""
        if self.as_json:
            self.results.append({"ok": True, **facts})

    @contextmanager
    def trying(self, head: str = "", op: str = "", /, **facts: Any) -> Iterator[None]:
        """Report a failure within the context, and go on after it; with `op`, `head` and the original's words too."""
        try:
            yield
        except CheloniaError as error:
            self.failure(error, head + original_status(op, error) if op else "", **facts)

    def failure(self, error: CheloniaError, line: str = "", **facts: Any) -> None:
        """Report a failure: `line` as the original has it (stdout), the cause on stderr, and its exit code."""
        if line:
            self.write(line)
        self.notify(describe(error))
        if error.kind in (Kind.UNTRUSTED, Kind.EXPIRED) and self.error is None:
            self.notify("`chelonia doctor` looks at certificates, CAs and clocks, and names the cure.")
        self.blame(error)
        if self.as_json:
            self.results.append({"ok": False, **facts, "error": error_facts(error)})

    def blame(self, error: CheloniaError) -> None:
        """Set exit code and error of the document, unless an earlier failure has."""
        self.exit_code = self.exit_code or int(error.meaning.exit_code)
        self.error = self.error or error_facts(error)

    def finish(self, verb: str) -> None:
        """Print the JSON document, with `as_json`. Raises: AnswerLost, BrokenPipeError."""
        if self.as_json:
            head = {"verb": verb, "ok": self.exit_code == 0, "exit_code": self.exit_code}
            why = {"error": self.error} if self.error is not None else {}
            whole = {**head, **why, "results": self.results, **self.document}
            self._write_text(json.dumps(whole, indent=2) + "\n")

    def _write_text(self, text: str) -> None:
        with answering():
            if self.before is not None and self.stdout.isatty():
                self.before()
            self.stdout.write(text)


def _check_letters(text: str, encoding: str) -> None:
    try:
        text.encode(encoding)
    except UnicodeEncodeError as error:
        letters = printable(excerpt(text[error.start : error.end]))
        cause = f"{encoding}, the encoding of this locale, has no letters for {letters}; LC_ALL=C.UTF-8 has all"
        raise CheloniaError(Kind.BAD_CONFIG, "write", "standard output", cause) from error


def record_facts(record: object) -> dict[str, Any]:
    """Return a record of a port for programs: its fields by name, enums as their values."""
    import msgspec  # here: commands without a connection start without it

    facts: dict[str, Any] = msgspec.to_builtins(record)
    return facts


def describe(error: CheloniaError) -> str:
    """Return one line: `chelonia: <op> '<subject>': <cause> (<kind>)`."""
    quoted = error.subject if error.subject.startswith(("'", '"')) else f"'{error.subject}'"
    action = error.op + (f" {quoted}" if error.subject else "")
    cause = error.cause.removeprefix(f"{error.subject}: ") if error.subject else error.cause
    parts = ["chelonia", action.strip(), cause or "failed"]
    return ": ".join(part for part in parts if part) + f" ({error.kind.value})"


def error_facts(error: CheloniaError) -> dict[str, Any]:
    """Return an error for programs."""
    code = error.meaning.errno
    return {
        "kind": error.kind.value,
        "errno": errno.errorcode.get(code, str(code)),
        "exit_code": int(error.meaning.exit_code),
        "op": error.op,
        "subject": error.subject,
        "cause": error.cause,
        "retryable": error.meaning.retryable,
    }


def original_status(op: str, error: CheloniaError) -> str:
    """Return the original's answer for this failure of `op`; the name of a kind that no server answers."""
    if error.meaning.exit_code in (ExitCode.NETWORK, ExitCode.USAGE) and op != "stat":
        return f"failed: {error.kind.value}"
    return status.failure(op, error.kind, error.subject, error.cause)


def human_size(size: int) -> str:
    """Return a number of bytes with at most four digits and a binary unit."""
    value, units = float(size), ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{size} B" if units[0] == "B" else f"{value:.1f} {units[0]}"


def counted(count: int, noun: str) -> str:
    """Return a count in words: 1 file, 2 files."""
    return f"{count} {noun}" + ("" if count == 1 else "s")


def table(rows: Sequence[tuple[str, ...]], right: frozenset[int] = frozenset()) -> list[str]:
    """Return lines of aligned columns, two blanks apart; columns in `right` are right-aligned."""
    widths = [max(map(_width, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if index in right else cell + " " * (width - _width(cell))
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def _width(text: str) -> int:
    """Columns on a terminal: wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def printable(line: str) -> str:
    """Return a line fit for a terminal and for JSON: bytes that are no text, and control characters, are escaped.

    Names in the cluster have no control characters, but values, service ids and local names may. Escaped, they send no
    sequence to a terminal, and forge no line.
    """
    if line.isprintable():
        return line
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in line)
