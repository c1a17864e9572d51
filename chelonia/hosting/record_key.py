"""The file of the cluster's record key, beside a Librarian's own key: it outlives every A-Hash.

With the key a rebuild tells the cluster's own snapshots and records from forged ones; without it, it can verify none.
The file is written once, when a Librarian first reads the key from the A-Hash, and never overwritten.
"""

from __future__ import annotations

from pathlib import Path

from chelonia.core.errors import CheloniaError, Kind
from chelonia.durable_files import write_file
from chelonia.hosting.config import read_secret


def load_record_key(path: str) -> str:
    """Return the key (hex), "" without a file or a configured path. Raises: BAD_CONFIG when it is no key."""
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
    """Write the key unless the file exists. Raises: BAD_CONFIG when it cannot be written."""
    if not path or Path(path).exists():
        return
    try:
        write_file(Path(path), f"{key}\n".encode(), 0o600)
    except OSError as error:
        cause = (
            f"cannot be written ({error.strerror}); let the daemon write there, or set record_key_file to another place"
        )
        raise CheloniaError(Kind.BAD_CONFIG, "write record key", path, cause) from error
