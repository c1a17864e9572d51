"""Logical Names: `/a/b`, `<GUID>` or `<GUID>/a/b`, and the one name law for every door.

A name is UTF-8 of 1 to 255 bytes without `/`, NUL or control characters, and is neither `.` nor `..`. As in the
original, empty components and `.` are dropped (`//`, `/./`), and a missing start means the root. A trailing slash is
remembered because `move` and `putFile` read it as "into". In `entries` a collection has the key `name/` and anything
else `name`, so that a recursive walk has the byte order of S3 keys.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import Final

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ROOT, Guid, is_guid

_NO_NAMES: Final = ("", ".", "..")
EXCERPT: Final = 80
"""Characters of an invalid name that a message shows: a line of a terminal."""


@dataclass(frozen=True, slots=True)  # no struct: `chelonia ls --help` starts faster without msgspec
class LogicalName:
    """A parsed Logical Name: its start, the names to follow from there, and whether it ended with a slash."""

    start: Guid
    parts: tuple[str, ...]
    into: bool = False

    @property
    def name(self) -> str:
        """The last component; empty when the name is a bare start."""
        return self.parts[-1] if self.parts else ""

    @property
    def parent(self) -> LogicalName:
        """The name without its last component. A bare start is its own parent."""
        return LogicalName(self.start, self.parts[:-1])

    def child(self, name: str) -> LogicalName:
        """Return the Logical Name of `name` inside this one."""
        return LogicalName(self.start, (*self.parts, name))

    def __str__(self) -> str:
        """Canonical text: `/a/b` from the root, else `<GUID>/a/b`, without a trailing slash."""
        head = "" if self.start == ROOT else self.start
        return "/".join((head, *self.parts)) or "/"


def check_name(name: str) -> str:
    """Return `name` if it obeys the name law. Raises: BAD_NAME, saying which clause it breaks."""
    is_short = name not in _NO_NAMES and len(name) <= bounds.NAME_BYTES_MAX
    if is_short and name.isascii() and name.isprintable() and "/" not in name:
        return name  # nearly all, in a third of the time
    reason = _broken_clause(name)
    if reason:
        raise CheloniaError(Kind.BAD_NAME, subject=excerpt(name), cause=reason)
    return name


def excerpt(text: str) -> str:
    """Return the start of an invalid name for a message: quoted, ASCII only, at most `EXCERPT` characters of it."""
    return ascii(text[:EXCERPT]) + ("..." if len(text) > EXCERPT else "")


def parse_ln(text: str) -> LogicalName:
    """Parse a Logical Name.

    Returns: the parsed name; `""` and `"/"` both mean the root.
    Raises: BAD_NAME when a component breaks the name law, the start is not a GUID, or a bound is exceeded.
    """
    if len(text.encode("utf-8", "surrogatepass")) > bounds.LN_BYTES_MAX:
        raise CheloniaError(Kind.BAD_NAME, subject=excerpt(text), cause=f"longer than {bounds.LN_BYTES_MAX} bytes")
    head, _, rest = text.partition("/")
    if head and not is_guid(head):
        cause = (
            f"a Logical Name starts with /, as {excerpt('/' + text)} does, or with a GUID (0 or a UUID in lower case)"
        )
        raise CheloniaError(Kind.BAD_NAME, subject=excerpt(text), cause=cause)
    parts = tuple(check_name(part) for part in rest.split("/") if part not in ("", "."))
    if len(parts) > bounds.LN_DEPTH_MAX:
        raise CheloniaError(Kind.BAD_NAME, subject=excerpt(text), cause=f"deeper than {bounds.LN_DEPTH_MAX}")
    return LogicalName(Guid(head) if head else ROOT, parts, into=text.endswith("/"))


def check_ln(name: LogicalName) -> None:
    """Refuse a Logical Name that another program sent as values and that no text parses to. Raises: BAD_NAME."""
    if _is_plain(name):
        return
    parsed = parse_ln(str(name))
    if (parsed.start, parsed.parts) != (name.start, name.parts):
        raise CheloniaError(Kind.BAD_NAME, subject=excerpt(str(name)), cause="its parts are no names")


def _is_plain(name: LogicalName) -> bool:
    """Whether a Logical Name is lawful at first sight: most are, and each request brings one."""
    parts, text = name.parts, "/".join(name.parts)
    if not (text.isascii() and text.isprintable() and text.count("/") == max(0, len(parts) - 1)):
        return False
    for part in parts:
        if part in _NO_NAMES or len(part) > bounds.NAME_BYTES_MAX:
            return False
    is_small = len(parts) <= bounds.LN_DEPTH_MAX and len(text) < bounds.LN_BYTES_MAX - len(name.start)
    return is_small and is_guid(name.start)


def entry_key(name: str, is_collection: bool) -> str:
    """Return the property of `entries` under which an entry called `name` is stored."""
    return name + "/" if is_collection else name


def entry_name(key: str) -> str:
    """Return the name that users see of a property of `entries`."""
    return key.removesuffix("/")


def _broken_clause(name: str) -> str:
    try:
        size = len(name.encode("utf-8"))
    except UnicodeEncodeError:
        return "not valid UTF-8"
    if not 1 <= size <= bounds.NAME_BYTES_MAX:
        return f"a name has 1 to {bounds.NAME_BYTES_MAX} bytes, this has {size}"
    if name in (".", ".."):
        return "'.' and '..' are not names"
    if "/" in name:
        return "a name has no '/'"
    if not name.isprintable() and any(unicodedata.category(char) == "Cc" for char in name):
        return "a name has no control characters"
    return ""
