"""Files of ours that a power cut leaves whole: as they were, or as they were to be.

The one module beside the services that touches a disk: client, mount and setup write their small files by it, too.
"""

from __future__ import annotations

import os
from pathlib import Path

from chelonia.core.errors import CheloniaError, Kind


def write_file(path: Path, data: bytes, mode: int, owner: tuple[int, int] | None = None) -> None:
    """Replace `path` whole and durably, with exactly `mode`, never readable by more on the way.

    Args: `owner`: user and group ids that the file has from its first moment; None: those of this process.
    Raises: BAD_CONFIG where `path` is there and no ordinary file, such as a device; OSError.
    """
    if path.exists() and not path.is_file():
        raise CheloniaError(Kind.BAD_CONFIG, "write", str(path), "it is there and no ordinary file; give another name")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if owner is not None:
                os.fchown(descriptor, *owner)
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)  # a full disk is left without a part
        raise
    sync_path(path.parent)  # a power cut would bring back what was there before


def sync_path(path: Path) -> None:
    """Put a file, or the names in a directory, on stable storage. Raises: OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
