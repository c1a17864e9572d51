"""The file that outlives every A-Hash: the cluster's record key, kept beside a Librarian's own key.

With it a rebuild can tell the cluster's own snapshots and records from forged ones; without it everything it finds is
somebody's word. Written once, when a Librarian first learns the key from the A-Hash; never overwritten.
"""

from __future__ import annotations

import os
from pathlib import Path

from chelonia.core.errors import CheloniaError, Kind
from chelonia.hosting.config import read_secret


def load_record_key(path: str) -> str:
    """The key (hex), "" when no file is configured or it is not there yet. Raises: BAD_CONFIG when it is no key."""
    if not path or not Path(path).exists():
        return ""
    key = read_secret(Path(path)).decode("ascii", "replace")
    try:
        long_enough = len(bytes.fromhex(key)) >= 16
    except ValueError:
        long_enough = False
    if not long_enough:
        cause = "not a record key (hex digits); put the file back as the Librarian wrote it"
        raise CheloniaError(Kind.BAD_CONFIG, "read record key", path, cause)
    return key


def save_record_key(path: str, key: str) -> None:
    """Write the key for the first time. Raises: BAD_CONFIG when the file cannot be written."""
    if not path or Path(path).exists():
        return
    partial = Path(f"{path}.new")
    try:
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as file:
            file.write(key + "\n")
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
    except OSError as error:
        cause = (
            f"cannot be written ({error.strerror}); let the daemon write there, or set record_key_file to another place"
        )
        raise CheloniaError(Kind.BAD_CONFIG, "write record key", path, cause) from error
