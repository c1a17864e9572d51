"""The grammar of the command line: options, operands, and nothing else.

Short options stand before a verb (the original's) or after it (the verb's own, -h and -v), long ones anywhere up to
`--`. Verbs whose operands may begin with `-` (policy, modify) take short options only before their first operand.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from chelonia.core.bounds import FILE_BYTES_MAX
from chelonia.core.errors import CheloniaError, Kind


@dataclass(frozen=True, slots=True)
class Flag:
    """An option. `name`: its long spelling. `value`: the name of its argument, "" for a switch. `short`: like `-r`."""

    name: str
    help: str
    short: str = ""
    value: str = ""

    @property
    def spelled(self) -> str:
        """Its spelling for people: `-j, --parallel N`."""
        names = ", ".join(part for part in (self.short, self.name) if part)
        return f"{names} {self.value}".rstrip()


@dataclass(frozen=True, slots=True)
class Arguments:
    """Arguments of a command line: `operands` in order; `flags` by long name, with all values, "yes" for a switch."""

    operands: tuple[str, ...]
    flags: dict[str, tuple[str, ...]]

    def has(self, name: str) -> bool:
        return name in self.flags

    def value(self, name: str, default: str = "") -> str:
        """Return the option's last value."""
        return self.flags[name][-1] if name in self.flags else default


GLOBAL: tuple[Flag, ...] = (
    Flag("--verbose", "more detail; twice: show where an error came from", "-v"),
    Flag("--trace", "print messages to stderr, as JSON", "-x"),
    Flag("--config", "user configuration in place of ~/.arc/client.conf", "-z", "PATH"),
    Flag("--bartender", "Bartender to use (may be repeated)", "-b", "URL"),
    Flag("--insecure", "not supported: TLS is always checked", "-w"),
    Flag("--json", "print one JSON document in place of text"),
    Flag("--cluster", "a cluster by its name in client.toml, or cluster.json of `cheloniad dev`", "", "FILE"),
    Flag("--as", "as whom to use the cluster file: user user2 admin service anonymous", "", "NAME"),
    Flag("--anonymous", "show no certificate"),
    Flag("--librarian", "Librarian to use for admin verbs", "", "URL"),
    Flag("--ahash", "A-Hash to use for `admin ahash` (may be repeated)", "", "URL"),
    Flag("--proxy", "proxy certificate", "", "FILE"),
    Flag("--cert", "user certificate", "", "FILE"),
    Flag("--key", "its key", "", "FILE"),
    Flag("--ca-dir", "directory of CA certificates", "", "DIR"),
    Flag("--ca-file", "file of CA certificates", "", "FILE"),
    Flag("--no-progress", "never draw a progress bar"),
    Flag("--help", "how to use it", "-h"),
    Flag("--version", "print the version"),
)


class UsageError(CheloniaError):
    """A command line that makes no sense."""

    def __init__(self, cause: str) -> None:
        super().__init__(Kind.BAD_REQUEST, cause=cause)


_UNIT_BYTES: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}
_UNIT_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_rate(text: str) -> int:
    """Return the bytes per second of `0`, `500K`, `50M`, `50M/s`, `1G`. Raises: UsageError."""
    rate = amount(text.removesuffix("/s"))
    if rate >= 0:
        return rate
    raise UsageError(f"a rate is like 500K, 50M or 1G (bytes per second), or 0 for no limit; not {text!r}")


def parse_size(text: str, flag: str) -> int:
    """Return the bytes of `100`, `500K`, `50M`, `1g`, `2T`, `1P`. Raises: UsageError."""
    size = amount(text)
    if size < 0:
        raise UsageError(f"{flag} takes a size like 100, 500K, 50M or 1G, not {text!r}")
    return size


def parse_count(text: str, flag: str) -> int:
    """Return a number like `100`, `100k` or `2M`, by thousands. Raises: UsageError."""
    match = re.fullmatch(r"([0-9]{1,12})([kKM]?)", text)
    if match is None:
        raise UsageError(f"{flag} takes a number like 100, 100k or 2M, not {text!r}")
    return int(match[1]) * {"": 1, "K": 1_000, "M": 1_000_000}[match[2].upper()]


def amount(text: str) -> int:
    """Return the bytes of a size as people write it; -1 for other text, or for more than a file may have."""
    match = re.fullmatch(r"([0-9]{1,19})([KMGTP]?)(?:I?B)?", text.upper())
    size = int(match[1]) * _UNIT_BYTES[match[2]] if match else -1
    return size if size <= FILE_BYTES_MAX else -1


def parse_duration(text: str, flag: str = "--for") -> int:
    """Return the milliseconds of `90s`, `30m`, `2h`, `3d`. Raises: UsageError."""
    match = re.fullmatch(r"(0*[1-9][0-9]{0,8})([smhd])", text)  # some take 0 for "no end"
    if match is None:
        raise UsageError(f"{flag} takes a time like 90s, 30m, 2h or 3d, not {text!r}")
    return int(match[1]) * _UNIT_MS[match[2]]


def split_verb(words: Sequence[str]) -> tuple[Arguments, str, tuple[str, ...]]:
    """Split a command line. Returns: the options before the verb, the verb ("" when there is none), and all after it.

    Raises: UsageError.
    """
    reader = _OptionReader(GLOBAL, shorts=GLOBAL)
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        reader.option(rest)
    if rest and rest[0] == "--":
        rest.pop(0)
    verb = rest.pop(0) if rest else ""
    return Arguments((), reader.flags), verb, tuple(rest)


def parse(words: Sequence[str], own: Sequence[Flag], *, literal: bool) -> tuple[Arguments, Arguments]:
    """Parse the words after a verb.

    Args: `own`: the verb's options; `literal`: words with one `-` after the first operand are operands.
    Returns: the verb's arguments, and the global options among them. Raises: UsageError.
    """
    everywhere = (flag for flag in GLOBAL if flag.name in ("--help", "--verbose"))
    reader = _OptionReader((*own, *GLOBAL), shorts=(*everywhere, *own))
    rest, operands = list(words), list[str]()
    while rest:
        word = rest[0]
        if word == "--":
            operands.extend(rest[1:])
            break
        is_number = word[1:].replace(".", "", 1).isdigit()
        is_operand = not word.startswith("-") or word == "-" or (is_number and not reader.knows(word))
        if is_operand or (literal and operands and not reader.knows(word)):
            operands.append(rest.pop(0))
        else:
            reader.option(rest)
    names = {flag.name for flag in own}
    flags = {name: value for name, value in reader.flags.items() if name in names}
    others = {name: value for name, value in reader.flags.items() if name not in names}
    return Arguments(tuple(operands), flags), Arguments((), others)


def merge(first: Arguments, second: Arguments) -> Arguments:
    """Merge the global options from before and after the verb."""
    flags = dict(first.flags)
    for name, values in second.flags.items():
        flags[name] = (*flags.get(name, ()), *values)
    return Arguments((), flags)


class _OptionReader:
    """Reads options off the front of a list of words."""

    def __init__(self, longs: Sequence[Flag], shorts: Sequence[Flag]) -> None:
        self._known = {flag.name: flag for flag in longs} | {flag.short: flag for flag in shorts if flag.short}
        self.flags: dict[str, tuple[str, ...]] = {}

    def knows(self, word: str) -> bool:
        """Whether `word` is a long option, or a digit that is an option."""
        return word.partition("=")[0] in self._known and (word.startswith("--") or word[1:].isdigit())

    def option(self, rest: list[str]) -> None:
        """Read one word of options, and its value. Raises: UsageError."""
        word = rest.pop(0)
        if word.startswith("--"):
            name, is_given, value = word.partition("=")
            self._take(name, value if is_given else None, rest)
            return
        letters = word[1:]
        for index, letter in enumerate(letters):
            flag = self._known.get(f"-{letter}")
            if flag is not None and flag.value:
                self._take(flag.short, letters[index + 1 :] or None, rest)
                return
            self._take(f"-{letter}", None, rest)

    def _take(self, name: str, value: str | None, rest: list[str]) -> None:
        flag = self._known.get(name)
        if flag is None:
            raise self._unknown(name)
        if not flag.value:
            if value is not None:
                raise UsageError(f"option {name} takes no value")
            value = "yes"
        elif value is None:
            if not rest:
                raise UsageError(f"option {name} needs a {flag.value}")
            value = rest.pop(0)
        self.flags[flag.name] = (*self.flags.get(flag.name, ()), value)

    def _unknown(self, name: str) -> UsageError:
        import difflib  # here: hardly a command needs it

        if long := next((flag.name for flag in GLOBAL if flag.short == name), ""):
            return UsageError(f"{name} goes before the verb; after it, write {long}")
        near = difflib.get_close_matches(name, self._known, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return UsageError(f"option {name} is not known here (a name that begins with - goes after --){hint}")
