"""A position in one header field: `<generation>.<sequence>.<cluster>`, the cluster percent-encoded.

Golden: cluster `grid/ä`, generation 2, sequence 1046 is `2.1046.grid%2F%C3%A4`. See `docs/formats/README.md`.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote, unquote

from chelonia.core.cluster.position import Position
from chelonia.core.errors import CheloniaError, Kind

_FORM: Final = re.compile(r"(\d{1,18})\.(\d{1,18})\.([!-~]{1,256})\Z", re.ASCII)


def to_header(position: Position) -> str:
    """Return the position as a field value."""
    return f"{position.generation}.{position.sequence}.{quote(position.cluster, safe='')}"


def from_header(text: str) -> Position:
    """Read a field value. Raises: BAD_REQUEST."""
    found = _FORM.match(text)
    if found is None:
        cause = f"{text[:80]!r} is no position: repeat what an answer said, or leave it out"
        raise CheloniaError(Kind.BAD_REQUEST, cause=cause)
    return Position(unquote(found[3]), int(found[1]), int(found[2]))
