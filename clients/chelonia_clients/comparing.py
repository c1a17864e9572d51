"""Comparison of a local file with a file in the cluster, so that an equal one need not be sent again."""

from __future__ import annotations

import asyncio
import enum
import hashlib
import os
import stat
from pathlib import Path
from typing import Final

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.hosting.transfer.download import new_hash
from chelonia_clients.client import Client, DirectoryEntry

TIME_S: Final = 0.002
"""Difference below which times are the same: they are kept to the millisecond."""


class Verdict(enum.Enum):
    """The result of a comparison. `RETIMED`: the same bytes with another modification time."""

    SAME = "same"
    RETIMED = "retimed"
    OTHER = "other"


async def compare(client: Client, path: Path, ln: str, entry: DirectoryEntry, *, checksum: bool) -> Verdict:
    """Compare a local file with the entry of the cluster that was listed as `entry` and is called `ln`.

    Size and modification time decide, or the checksum where the times differ; `checksum`: always the checksum. Without
    a known checksum the files differ. Raises: OSError from the local file, CheloniaError.
    """
    found = await asyncio.to_thread(os.stat, path)
    if entry.type != "file" or not stat.S_ISREG(found.st_mode) or found.st_size != entry.size:
        return Verdict.OTHER
    timed = entry.modified_s is not None and abs(entry.modified_s - kept_time(found)) < TIME_S
    if timed and not checksum:
        return Verdict.SAME
    try:
        states = (await client.stat(ln)).get("states", {})
    except CheloniaError as error:
        if error.kind not in (Kind.NOT_FOUND, Kind.DENIED):
            raise
        return Verdict.OTHER
    measured = await asyncio.to_thread(measure, path, states.get("checksumType", ""))
    if not measured or measured != states.get("checksum"):
        return Verdict.OTHER
    return Verdict.SAME if timed else Verdict.RETIMED


def kept_time(found: os.stat_result) -> float:
    """Return a local file's modification time, Unix seconds, or the nearest one that the cluster can keep."""
    return min(max(0.0, found.st_mtime), float(bounds.TIME_S_MAX))


def measure(path: Path, kind: str) -> str:
    """Return a local file's checksum as the cluster writes it; "" for an unknown kind. Raises: OSError."""
    if kind != "adler32" and kind not in hashlib.algorithms_available:
        return ""
    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, lambda: new_hash(kind)).hexdigest()  # type: ignore[arg-type, return-value]
