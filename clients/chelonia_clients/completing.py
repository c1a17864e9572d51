"""Completion of a command line from the table of verbs, so that no shell script repeats that. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from chelonia_clients.arguments import GLOBAL, Flag
from chelonia_clients.verbs.finding import WHOLE, find_verb
from chelonia_clients.verbs.table import VERBS, Verb

ALIASES: Final = (*WHOLE, "get", "make", "makemount", "put")
"""Other words for verbs that people type."""
VALUES: Final = {
    "--as": ("user", "user2", "admin", "service", "anonymous"),
    "--type": ("file", "collection", "mountpoint", "symlink", "special"),
    "--only": ("read", "upload", "write"),
}
"""Values of options, where they are known."""
_LOCAL: Final = frozenset({"FILE", "PATH", "DIR", "<source>", "<target>", "<directory>"})
_TOKEN: Final = re.compile(r"(?:<[^>]*>|[^\s\[\]<])+")
_OPTIONS: Final = re.compile(r"\[-[^\[\]]*\]")


@dataclass(frozen=True, slots=True)
class Next:
    """Completions. `words`: those that fit. `names`: whether a name in the cluster may follow. `files`: a local one."""

    words: tuple[str, ...] = ()
    names: bool = False
    files: bool = False


def next_word(words: Sequence[str]) -> Next:
    """Return completions of the last of `words`, which are all after `chelonia`; the last may be ""."""
    *before, start = words or ("",)
    verb, operands, owner = _walk(before)
    if owner is not None:
        found = Next(VALUES.get(owner.name, ()), names=owner.value == "LN", files=owner.value in _LOCAL)
    elif start.startswith("-"):
        found = Next(tuple(flag.name for flag in ((*verb.flags, *GLOBAL) if verb else GLOBAL)))
    elif verb is None:
        found = Next() if operands else Next(tuple(sorted({*(verb.name for verb in VERBS), *ALIASES})))
    elif verb.name == "help":
        topic = find_verb(operands[0]) if operands else None
        found = Next(_operand(topic, operands[1:]).words if topic else tuple(each.name for each in VERBS))
    else:
        found = _operand(verb, operands)
    return Next(tuple(word for word in found.words if word.startswith(start)), found.names, found.files)


def _walk(words: Sequence[str]) -> tuple[Verb | None, list[str], Flag | None]:
    """The verb, its operands so far, and the option whose value comes next. An unknown verb leaves one operand."""
    verb, operands, owner, seen = None, list[str](), None, False
    for word in words:
        if owner is not None:
            owner = None
        elif word.startswith("-") and word != "-":
            flags = (*verb.flags, *GLOBAL) if verb else GLOBAL
            owner = next((flag for flag in flags if flag.value and word in (flag.name, flag.short)), None)
        elif not seen:
            verb, seen = find_verb(word), True
            operands += [] if verb else [word]
        else:
            operands.append(word)
    return verb, operands, owner


def _operand(verb: Verb, operands: Sequence[str]) -> Next:
    words: dict[str, None] = {}
    names = files = False
    for form in _forms(verb):
        for token in _after(form, operands):
            for part in token.split("|"):
                names |= "LN" in part or (verb.name in ("cp", "sync") and part in _LOCAL)
                files |= part in _LOCAL
                words.update({} if part.startswith("<") else {part: None})
    return Next(tuple(words), names, files)


def _forms(verb: Verb) -> Iterator[list[str]]:
    """The alternatives of a verb's synopsis, as words and <placeholders>, without options."""
    synopsis, found = verb.synopsis, 1
    while found:  # options stand in options
        synopsis, found = _OPTIONS.subn("", synopsis)
    for form in synopsis.split(" | "):
        yield _TOKEN.findall(form)


def _after(form: Sequence[str], operands: Sequence[str]) -> list[str]:
    """The parts of a form that may follow these operands; none when they do not fit it. A part before `...` may repeat
    any number of times."""
    parts = [[token] for token in form]
    if "..." in form:
        at = form.index("...")
        parts[at : at + 2] = [["...", *form[at - 1 : at], *form[at + 1 : at + 2]]]
    place = 0
    for operand in operands:
        part = parts[place] if place < len(parts) else []
        if not any(token.startswith("<") or operand in token.split("|") for token in part):
            return []
        place += "..." not in part
    return [token for token in (parts[place] if place < len(parts) else ()) if token != "..."]
