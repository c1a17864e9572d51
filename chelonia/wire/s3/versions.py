"""Versions of keys: their ids, and the place of those that are not the newest. Pure.

They are in the collection `※versions` of their bucket. Their name is the key as spelled by `wire.s3.apart`, a blank,
and an order. An order is hexadecimal digits that fall with time, so that the newest of a key comes first. A file is a
version that had the key until the version of this order came. A symlink is a delete marker; its target is its id.
Invariants: paths order as keys do, then by age; `named` undoes `path_of`.
"""

from __future__ import annotations

import re
from typing import Final

from chelonia.wire.s3 import apart

COLLECTION: Final = f"{apart.RESERVED}versions"
NULL: Final = "null"
"""Id of the version written while the bucket kept none: each key has at most one."""
ENABLED, SUSPENDED = "Enabled", "Suspended"
CUT: Final = 56
"""Characters of the key in one name: at most 224 bytes, and 27 of marks and order."""
ORDER: Final = 24
"""Characters of an order."""
_ORDER: Final = re.compile(f"[0-9a-f]{{{ORDER}}}")
_LAST_NS: Final = (1 << 63) - 1


def order_of(ns: int, random: str) -> str:
    """Return the order of an instant (ns since the epoch), with 8 random digits, so that no two are the same."""
    return f"{max(_LAST_NS - ns, 0):016x}{random[:8]:0>8}"


def instant_of(version: str) -> int:
    """Return the instant in the order of a version, in ns since the epoch; 0 for other text."""
    return _LAST_NS - int(version[:16], 16) if _ORDER.fullmatch(version) else 0


def path_of(key: str, order: str) -> tuple[str, ...]:
    """Return the names below a bucket of a version of a key."""
    return (COLLECTION, *f"{begins(key)} {order}".split("/"))


def begins(beginning: str) -> str:
    """Return the common beginning of paths below `COLLECTION`, for keys with this beginning."""
    return apart.prefix_of(beginning, CUT)


def behind(key: str) -> str:
    """Return a text that sorts behind all versions of a key, and before those of later keys."""
    return f"{begins(key)}!" if key else ""


def named(path: str) -> tuple[str, str] | None:
    """Return key and order of a path below `COLLECTION`; None if it is the path of no version."""
    text, _, order = path.rpartition(" ")
    key = apart.key_of(text, CUT)
    return None if key is None or len(order) not in (ORDER, ORDER + 1) else (key, order)
