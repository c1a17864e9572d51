"""Versions of keys: their ids, and where a bucket keeps those that are not the newest. Pure.

They are in the collection `※versions` of their bucket, under the key as `wire.s3.apart` writes it, a blank, and an
order: hexadecimal digits that fall with time, so that of one key the newest comes first. A file is a version that had
the key until the one of this order came; a symlink is a delete marker, and its target is the marker's id.
Invariants: paths order as keys do, then by age; `named` undoes `path_of`.
"""

from __future__ import annotations

import re
from typing import Final

from chelonia.wire.s3 import apart

COLLECTION: Final = f"{apart.RESERVED}versions"
NULL: Final = "null"
"""The version of what was written while the bucket kept none: at most one of each key."""
ENABLED, SUSPENDED = "Enabled", "Suspended"
CUT: Final = 56
"""Characters of the key in one name: at most 224 bytes, and 27 of marks and order."""
ORDER: Final = 24
"""Characters of an order."""
_ORDER: Final = re.compile(f"[0-9a-f]{{{ORDER}}}")
_LAST_NS: Final = (1 << 63) - 1


def order_of(ns: int, random: str) -> str:
    """The order of an instant (ns since the epoch), with 8 random digits, so that no two are the same."""
    return f"{max(_LAST_NS - ns, 0):016x}{random[:8]:0>8}"


def instant_of(version: str) -> int:
    """The instant that the order of a version was made of, in ns since the epoch; 0 of what is no order."""
    return _LAST_NS - int(version[:16], 16) if _ORDER.fullmatch(version) else 0


def path_of(key: str, order: str) -> tuple[str, ...]:
    """The names below a bucket of a version of a key."""
    return (COLLECTION, *f"{begins(key)} {order}".split("/"))


def begins(beginning: str) -> str:
    """What the paths below `COLLECTION` begin with, of all keys that begin so."""
    return apart.prefix_of(beginning, CUT)


def behind(key: str) -> str:
    """What follows all versions of a key, and comes before those of any key behind it."""
    return f"{begins(key)}!" if key else ""


def named(path: str) -> tuple[str, str] | None:
    """Key and order that a path below `COLLECTION` is of; None: nobody keeps a version so."""
    text, _, order = path.rpartition(" ")
    key = apart.key_of(text, CUT)
    return None if key is None or len(order) not in (ORDER, ORDER + 1) else (key, order)
