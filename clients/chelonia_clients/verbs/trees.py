"""Verbs that look at whole trees: du, find, tree, watch."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Final

from chelonia.core.metadata import Filter, Needed
from chelonia_clients.arguments import Arguments, UsageError, parse_duration, parse_size
from chelonia_clients.choosing import name_fits
from chelonia_clients.client import SHORT, DirectoryEntry
from chelonia_clients.completing import VALUES
from chelonia_clients.output import counted, human_size
from chelonia_clients.session import Session
from chelonia_clients.verbs.listing import facts_of, path_of, shower

EVERY_MS: Final = 2_000
"""Interval of `watch`."""
TYPES: Final = VALUES["--type"]
SHORT_TYPES: Final = {"d": "collection", "l": "symlink"}
"""Names of find(1) that are no beginnings of ours."""
Fits = Callable[[DirectoryEntry], bool]
Entries = AsyncGenerator[DirectoryEntry, None]


async def du(session: Session, arguments: Arguments) -> None:
    """Print the sums of files' own bytes, without copies (`du`); a file with two names below counts twice."""
    human, out = arguments.has("--human"), session.out

    async def add_up(text: str, entries: Entries) -> None:
        sums: dict[str, list[int]] = {"": [0, 0]}
        async for entry in entries:
            above = [*_collections_of(entry.name)]
            if entry.type == "collection":
                sums.setdefault(entry.name, [0, 0])
            for name in above if entry.type == "file" else ():
                size, files = sums.setdefault(name, [0, 0])
                sums[name] = [size + max(0, entry.size), files + 1]
        names = [] if arguments.has("--summary") else sorted(sums, key=lambda name: f"{name}/")[1:]
        for name in (*names, ""):
            size, files = sums[name]
            where = path_of(text, name) if name else text
            out.write(f"{human_size(size) if human else size}\t{files}\t{where}".expandtabs(12))
            out.result(ln=where, size=size, files=files)

    await _each_tree(session, arguments, add_up)


def _collections_of(name: str) -> list[str]:
    """The collections above a listed name, the top as ""."""
    parts = name.split("/")[:-1]
    return ["", *("/".join(parts[:depth]) for depth in range(1, len(parts) + 1))]


async def find(session: Session, arguments: Arguments) -> None:
    """Print names below collections that fit all conditions (`find`)."""
    fits = _conditions(arguments)

    async def look(text: str, entries: Entries) -> None:
        show, plain = shower(session, arguments, text)
        async for entry in entries:
            if not fits(entry):
                continue
            if plain:
                show([entry])
            else:
                session.out.write(path_of(text, entry.name))
            session.out.result(ln=path_of(text, entry.name), **facts_of(entry))

    await _each_tree(session, arguments, look, (*SHORT, Needed("locations")) if arguments.has("--format") else ())


def _conditions(arguments: Arguments) -> Fits:
    """The conditions of the options on an entry. Raises: UsageError."""
    conditions: list[Fits] = []
    if name := arguments.value("--name"):
        conditions.append(lambda entry: name_fits(entry.name.rpartition("/")[2], name))
    if kind := arguments.value("--type"):
        whole = next((each for each in TYPES if each.startswith(kind)), SHORT_TYPES.get(kind, ""))
        if not whole:
            raise UsageError(f"--type takes {', '.join(TYPES)}, not {kind!r}")
        conditions.append(lambda entry: entry.type == whole)
    if larger := arguments.value("--larger"):
        least = parse_size(larger, "--larger")
        conditions.append(lambda entry: entry.type == "file" and entry.size > least)
    if smaller := arguments.value("--smaller"):
        most = parse_size(smaller, "--smaller")
        conditions.append(lambda entry: entry.type == "file" and 0 <= entry.size < most)
    if newer := arguments.value("--newer"):
        after = time.time() - parse_duration(newer, "--newer") / 1000
        conditions.append(lambda entry: entry.modified_s is not None and entry.modified_s > after)
    if older := arguments.value("--older"):
        before = time.time() - parse_duration(older, "--older") / 1000
        conditions.append(lambda entry: entry.modified_s is not None and entry.modified_s < before)
    return lambda entry: all(fits(entry) for fits in conditions)


async def tree(session: Session, arguments: Arguments) -> None:
    """Draw the entries below collections (`tree`)."""
    files = collections = 0

    async def draw(text: str, entries: Entries) -> None:
        nonlocal files, collections
        below: dict[str, list[DirectoryEntry]] = {}
        async for entry in entries:
            below.setdefault(entry.name.rpartition("/")[0], []).append(entry)
            files += entry.type == "file"
            collections += entry.type == "collection"
            session.out.result(ln=path_of(text, entry.name), **facts_of(entry))
        session.out.write(text)
        _draw(session, below, "", "", human=arguments.has("--human"))

    await _each_tree(session, arguments, draw)
    session.out.write("", f"{counted(collections, 'collection')}, {counted(files, 'file')}")


def _draw(session: Session, below: dict[str, list[DirectoryEntry]], top: str, indent: str, *, human: bool) -> None:
    entries = below.get(top, [])
    for entry in entries:
        last = entry is entries[-1]
        size = f"  [{human_size(entry.size)}]" if human and entry.size >= 0 else ""
        end = "/" if entry.type == "collection" else ""
        session.out.write(f"{indent}{'└── ' if last else '├── '}{entry.name.rpartition('/')[2]}{end}{size}")
        _draw(session, below, entry.name, indent + ("    " if last else "│   "), human=human)


async def watch(session: Session, arguments: Arguments) -> None:
    """Print changes below collections until it is interrupted, or --for is over (`watch`)."""
    every = parse_duration(arguments.value("--every"), "--every") if arguments.has("--every") else EVERY_MS
    ends = parse_duration(arguments.value("--for")) if arguments.has("--for") else 0
    clock = session.client().clock
    began = clock.monotonic_ms()
    before = await _seen(session, arguments)
    while not ends or clock.monotonic_ms() - began < ends:
        await clock.sleep(every)
        now = await _seen(session, arguments)
        _report_changes(session, before, now)
        before = now


async def _seen(session: Session, arguments: Arguments) -> dict[str, tuple[str, str, int, float | None]]:
    return {
        path_of(ln, entry.name): (entry.type, entry.guid, entry.size, entry.modified_s)
        for ln in map(session.ln, arguments.operands or ("/",))
        async for entry in session.below(ln, session.client().names(ln, recursive=True))
    }


def _report_changes(session: Session, before: Mapping[str, object], now: Mapping[str, object]) -> None:
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name):
            sign, word = ("+", "new") if name not in before else ("-", "gone") if name not in now else ("~", "changed")
            session.out.write(f"{sign} {name}")
            session.out.result(ln=name, change=word)
    session.out.stdout.flush()


async def _each_tree(
    session: Session, arguments: Arguments, act: Callable[[str, Entries], Awaitable[None]], needed: Filter = ()
) -> None:
    """Call `act` with each operand and all entries below it; an operand that cannot be listed, as a file, is a failure.

    `needed`: metadata to read of each entry beside those of every listing; for programs the usual ones at least.
    """
    needed = needed or (SHORT if session.out.as_json else ())
    for text in arguments.operands or ("/",):
        with session.out.trying(ln=text):
            ln = session.ln(text)
            client = session.client()
            listing = client.list(ln, recursive=True, needed=needed) if needed else client.names(ln, recursive=True)
            async with aclosing(session.below(ln, listing)) as entries:
                await act(ln, entries)
