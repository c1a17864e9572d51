"""Keys that cannot be Logical Names, and the collection of a bucket that keeps them apart.

A key is kept apart when it is no path of lawful names: `a//b`, `dir/` with bytes, `..`, control characters. So is a key
whose place is taken: `a` beside `a/b`. It is spelled in lawful names so that their byte order is that of the keys:

    up to %         % and two hexadecimal digits, as in a URL
    /               .~
    .               .}  before a character from } on, else as it is
    U+007F-U+00A0   U+00A0 and two hexadecimal digits
    any other       as it is

The text is cut into names of `CUT` characters. Each begins with `=`, and all but the last end with `+`.
Invariants: `key_of` undoes `path_of`; paths order as their keys do. The path of a key begins with `prefix_of` of each
of its beginnings. Pure.
"""

from __future__ import annotations

import re
from itertools import takewhile
from typing import Final

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError
from chelonia.core.names import check_name

RESERVED: Final = "\N{REFERENCE MARK}"
"""Beginning of names right below a bucket that are no keys; keys that begin so are kept apart themselves."""
COLLECTION: Final = f"{RESERVED}keys"
"""Name of the collection that has the keys kept apart."""
CUT: Final = 63
"""Characters of one name: at most 252 bytes, and the two marks, of the 255 that a name may have."""
AFTER: Final = "\U0010ffff"
"""Character that sorts behind every one that a key may go on with."""
_LOW, _HIGH = "%", "\xa0"
_ESCAPED: Final = re.compile("[\x00-%/\x7f-\xa0]|\\.(?=[}-\U0010ffff])")
_ESCAPES: Final = re.compile("%([0-9A-F]{2})|\xa0([0-9A-F]{2})|\\.([~}])")


def is_name(key: str, depth: int) -> bool:
    """Return whether a key is a path of lawful names, in a bucket whose own path has `depth` names."""
    parts = key.removesuffix("/").split("/")
    if key.startswith(RESERVED) or depth + len(parts) > bounds.LN_DEPTH_MAX:
        return False
    return all(map(_is_lawful, parts))


def collections_of(key: str, depth: int) -> tuple[str, ...]:
    """Return the names before the last slash of a key, up to the first that is none; `depth` as in `is_name`."""
    names = [] if key.startswith(RESERVED) else key.split("/")[:-1]
    return tuple(takewhile(_is_lawful, names[: bounds.LN_DEPTH_MAX - depth]))


def path_of(key: str) -> tuple[str, ...]:
    """Return the names below a bucket under which a key is kept apart."""
    return (COLLECTION, *prefix_of(key).split("/"))


def prefix_of(beginning: str, cut: int = CUT) -> str:
    """Return the common beginning of paths below `COLLECTION`, for keys with this `beginning`; `cut`: see `CUT`."""
    text = _ESCAPED.sub(_escape, beginning)
    names = [f"={text[at : at + cut]}" for at in range(0, len(text), cut)]
    return "+/".join(names)


def key_of(path: str, cut: int = CUT) -> str | None:
    """Return the key of a path below `COLLECTION`; None if it is the path of no key."""
    names = path.split("/")
    text = "".join(name[1:].removesuffix("+") if at < len(names) - 1 else name[1:] for at, name in enumerate(names))
    key = _ESCAPES.sub(_unescape, text)
    return key if key and prefix_of(key, cut) == path else None


def _is_lawful(name: str) -> bool:
    try:
        check_name(name)
    except CheloniaError:
        return False
    return True


def _escape(found: re.Match[str]) -> str:
    char = found[0]
    if char == "/":
        return ".~"
    if char == ".":
        return ".}"
    return f"{_LOW if char <= _LOW else _HIGH}{ord(char):02X}"


def _unescape(found: re.Match[str]) -> str:
    low, high, dot = found.groups()
    return {"~": "/", "}": "."}[dot] if dot else chr(int(low or high, 16))
