"""Verbs that look: stat, list, ls. The original's lines to the letter, and forms for programs beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from chelonia.core.cluster.replicas import PROVEN, ReplicaState
from chelonia.core.errors import CheloniaError, ExitCode, Kind
from chelonia.core.metadata import Needed
from chelonia_clients.arguments import Arguments, UsageError
from chelonia_clients.client import SHORT, DirectoryEntry, described
from chelonia_clients.output import human_size, original_status, printable, table
from chelonia_clients.session import Session

WHY: Final = {
    " LOST": "no good copy is left anywhere; an administrator may know of a disk that has one (what-was-lost.md)",
    " unreachable": "it is not lost, all Shepherds with a good copy are away now",
}
LINES_AT_ONCE = 1000
"""Entries aligned together, so that a long listing begins to show before it is whole."""

Show = Callable[[Sequence[DirectoryEntry]], None]


async def stat(session: Session, arguments: Arguments) -> None:
    """Print all metadata of entries (`stat`)."""
    out = session.out
    for text in arguments.operands:
        try:
            metadata = await session.client().stat(session.ln(text))
        except CheloniaError as error:
            out.failure(error, _original_line(text, error), ln=text)
            continue
        out.write(f"'{text}': found")
        for section in sorted(metadata):
            out.write(f"  {section}")
            for name, value in sorted(metadata[section].items()):
                out.write(f"    {name}: {value}" + (_readable(value) if section == "timestamps" else ""))
        if why := unreadable(metadata):
            out.notify(f"'{text}':{why}: {WHY[why]}")
        out.result(ln=text, **facts_of(described(text, metadata.get("entry", {}).get("GUID", ""), metadata)))


def _original_line(text: str, error: CheloniaError) -> str:
    """The original's line for this failure; "" where its words would hide the cause."""
    if error.kind is Kind.NOT_FOUND:
        return f"'{text}': not found"
    return "" if error.meaning.exit_code is ExitCode.NETWORK else f"'{text}': {original_status('stat', error)}"


def _readable(seconds: str) -> str:
    try:
        return f"  ({time_text(float(seconds))})"
    except (ValueError, OverflowError, OSError):
        return ""


async def list_(session: Session, arguments: Arguments) -> None:
    """List collections (`list`)."""
    for text in arguments.operands:
        with session.out.trying(f"'{text}': ", "list", ln=text):
            await _list_one(session, arguments, text)


async def ls(session: Session, arguments: Arguments) -> None:
    """List collections, by default the root; other entries show themselves (`ls`)."""
    for text in arguments.operands or ("/",):
        try:
            await _list_one(session, arguments, text)
        except CheloniaError as error:
            if error.kind not in (Kind.NOT_A_COLLECTION, Kind.IN_MOUNTPOINT):
                session.out.failure(error, ln=text)
                continue
            await _list_itself(session, arguments, text)


async def _list_one(session: Session, arguments: Arguments, text: str) -> None:
    ln, out = session.ln(text), session.out
    client, recursive = session.client(), arguments.has("--recursive")
    if arguments.has("--long") or arguments.has("--format"):
        entries = client.list(ln, recursive=recursive, needed=(*SHORT, Needed("locations")))
    elif recursive and not out.as_json:
        entries = client.names(ln, recursive=True)
    else:  # one collection mostly has few entries: loading the code for names alone would take longer
        entries = client.list(ln, recursive=recursive, needed=SHORT)
    show, plain = shower(session, arguments, text)
    facts: list[dict[str, object]] = []
    waiting: list[DirectoryEntry] = []
    headed = plain
    async for entry in session.below(ln, entries) if recursive else entries:
        if not headed:
            out.write(f"'{text}': collection")
            headed = True
        if out.as_json:
            facts.append({"name": entry.name, **facts_of(entry)})
            continue
        waiting.append(entry)
        if len(waiting) >= LINES_AT_ONCE:
            show(waiting)
            waiting = []
    if not headed:
        out.write(f"'{text}': collection")
        out.write("    empty.")
    show(waiting)
    out.result(ln=text, type="collection", entries=facts)


async def _list_itself(session: Session, arguments: Arguments, text: str) -> None:
    with session.out.trying(ln=text):
        metadata = await session.client().stat(session.ln(text))
        entry = described(text, metadata.get("entry", {}).get("GUID", ""), metadata)
        show, _ = shower(session, arguments, "")
        show([entry])
        session.out.result(ln=text, type=entry.type, entries=[{"name": entry.name, **facts_of(entry)}])


def shower(session: Session, arguments: Arguments, top: str) -> tuple[Show, bool]:
    """Return the function that shows entries below `top`, and whether it is for programs (without a head line).

    Raises: UsageError for a format that names an unknown column.
    """
    out, form = session.out, arguments.value("--format")
    if form:
        line = _formatter(form, arguments, top)
        return (lambda entries: out.emit("".join(line(entry) for entry in entries))), True
    if arguments.has("--nul"):
        return (lambda entries: out.emit("".join(path_of(top, entry.name) + "\0" for entry in entries))), True
    if arguments.has("--one"):
        return (lambda entries: out.write(*(entry.name for entry in entries))), True
    return (lambda entries: _show(session, arguments, entries)), False


def _formatter(form: str, arguments: Arguments, top: str) -> Callable[[DirectoryEntry], str]:
    template = form.replace("\\t", "\t").replace("\\n", "\n").replace("\\0", "\0")
    human = arguments.has("--human")

    def line(entry: DirectoryEntry) -> str:
        shown = {name: printable(value) for name, value in _columns(entry, top, human=human).items()}
        return template.format_map(shown) + ("" if template.endswith(("\n", "\0")) else "\n")

    try:
        line(DirectoryEntry(""))
    except (KeyError, ValueError, IndexError, AttributeError) as error:
        fields = " ".join(f"{{{name}}}" for name in _columns(DirectoryEntry(""), top, human=human))
        raise UsageError(f"--format takes text with {fields}, not {form!r}") from error
    return line


def _columns(entry: DirectoryEntry, top: str, *, human: bool) -> dict[str, str]:
    return {
        "name": entry.name.rpartition("/")[2],
        "path": path_of(top, entry.name),
        "type": entry.type,
        "size": _size(entry, human=human),
        "copies": "-" if without_copies(entry.metadata) else str(_alive(entry)),
        "wanted": entry.metadata.get("states", {}).get("neededReplicas", "-"),
        "time": _time(entry).replace(" ", "T"),
        "guid": entry.guid,
    }


def path_of(top: str, name: str) -> str:
    """Return the whole name of an entry listed as `name` below `top` ("": the name is whole)."""
    return f"{top.rstrip('/')}/{name}" if top else name


def _show(session: Session, arguments: Arguments, entries: Sequence[DirectoryEntry]) -> None:
    if not entries:
        return
    if arguments.has("--long"):
        human = arguments.has("--human")
        lines = table([_long(entry, human=human) for entry in entries], frozenset({0, 1}))
    else:
        lines = table([(entry.name, f"<{entry.type}>") for entry in entries])
    for line in lines:
        session.out.write(f"  {line}")


def _long(entry: DirectoryEntry, *, human: bool) -> tuple[str, ...]:
    states = entry.metadata.get("states", {})
    copies = f"{_alive(entry)}/{states.get('neededReplicas', '?')}{unreadable(entry.metadata)}"
    return (
        _size(entry, human=human),
        "-" if without_copies(entry.metadata) else copies,
        _time(entry),
        f"<{entry.type}>",
        entry.name,
    )


def _alive(entry: DirectoryEntry) -> int:
    return sum(state == "alive" for state in entry.metadata.get("locations", {}).values())


def _size(entry: DirectoryEntry, *, human: bool) -> str:
    if entry.type != "file" or entry.size < 0:
        return "-"
    return human_size(entry.size) if human else str(entry.size)


def _time(entry: DirectoryEntry) -> str:
    return "-" if entry.modified_s is None else time_text(entry.modified_s)


def time_text(seconds: float) -> str:
    """Return a time as people read it, UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def without_copies(metadata: Mapping[str, Mapping[str, str]]) -> bool:
    """Whether the metadata show no copies: of an entry that is no file, has no bytes, or that the user may not read."""
    states = metadata.get("states", {})
    if metadata.get("entry", {}).get("type") != "file":
        return True
    return not metadata.get("locations") and ("neededReplicas" not in states or states.get("size") == "0")


def unreadable(metadata: Mapping[str, Mapping[str, str]]) -> str:
    """Return ` LOST` or ` unreachable` for a file that nobody can read now, by the states of its copies; else ""."""
    states = set(metadata.get("locations", {}).values())
    if without_copies(metadata) or states & {state.value for state in PROVEN}:
        return ""
    return " unreachable" if ReplicaState.OFFLINE.value in states else " LOST"


def facts_of(entry: DirectoryEntry) -> dict[str, object]:
    """Return an entry for programs: numbers as numbers, and all `metadata` as the cluster keeps it, as text."""
    return {
        "type": entry.type,
        "guid": entry.guid,
        "size": entry.size if entry.size >= 0 else None,
        "modified": entry.modified_s,
        "metadata": entry.metadata,
    }
