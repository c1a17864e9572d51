"""Local files and Logical Names: the mapping of names, the walk, and the errors of the local disk.

The mapping is one to one: a local tree uploaded and downloaded again has the same names. A name that the namespace does
not allow (not UTF-8, control characters) is refused alone. A name from the cluster never leads out of the target.
"""

from __future__ import annotations

import enum
import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.names import check_name, excerpt
from chelonia.hosting.transfer.part_file import is_kept
from chelonia_clients.output import printable

_KINDS = {
    errno.ENOENT: Kind.NOT_FOUND,
    errno.EACCES: Kind.DENIED,
    errno.EPERM: Kind.DENIED,
    errno.EEXIST: Kind.EXISTS,
    errno.EISDIR: Kind.NOT_A_FILE,
    errno.ENOTDIR: Kind.NOT_A_COLLECTION,
    errno.ENOSPC: Kind.NO_SPACE,
    errno.EDQUOT: Kind.QUOTA,
    errno.EROFS: Kind.DENIED,
    errno.ENAMETOOLONG: Kind.BAD_NAME,
    errno.ELOOP: Kind.BAD_NAME,
}


class Sort(enum.Enum):
    """The type of a local name."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symbolic link"
    OTHER = "special file"


@dataclass(frozen=True, slots=True)
class LocalEntry:
    """One name in a local directory."""

    name: str
    sort: Sort


def local_path(text: str) -> Path:
    """Return a path as it was typed. Raises: BAD_NAME for an empty one."""
    if not text:  # an empty variable does not mean the current directory
        raise CheloniaError(Kind.BAD_NAME, subject="''", cause="it is empty; the directory you are in is called .")
    return Path(text)


def local_error(error: OSError, op: str, path: Path | str) -> CheloniaError:
    """Translate an error of the local disk into a `CheloniaError`."""
    kind = _KINDS.get(error.errno or 0, Kind.INTERNAL)
    longest = max((len(os.fsencode(part)) for part in Path(path).parts), default=0)
    subject = excerpt(str(path)) if longest > bounds.NAME_BYTES_MAX else printable(str(path))
    return CheloniaError(kind, op, subject, f"local file: {error.strerror or error}")


def scan(directory: Path) -> list[LocalEntry]:
    """List a directory in byte order, as the cluster does, without files of broken downloads. Raises: OSError."""
    with os.scandir(directory) as entries:
        found = [LocalEntry(entry.name, _sort(entry)) for entry in entries if not is_kept(entry.name)]
    if not found and not directory.is_absolute():
        os.getcwd()  # raises in a directory that was removed, which lists as empty
    return sorted(found, key=lambda each: os.fsencode(each.name))


def sizes_in(directory: Path) -> tuple[tuple[int, int], list[Path]]:
    """Return the number of files in a directory and their bytes, and its directories; nothing if it is unreadable."""
    files, size, below = 0, 0, list[Path]()
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                sort = _sort(entry)
                if sort is Sort.DIRECTORY:
                    below.append(directory / entry.name)
                elif sort is Sort.FILE:
                    files, size = files + 1, size + entry.stat(follow_symlinks=False).st_size
    except OSError:
        pass  # the upload itself reports it
    return (files, size), below


def to_ln(base: str, names: Sequence[str]) -> str:
    """Return the Logical Name of a path below `base`. Raises: BAD_NAME for a name the namespace does not allow."""
    return base.rstrip("/") + "".join("/" + check_name(name) for name in names) or "/"


def to_local(base: Path, listed: str) -> Path:
    """Return the local path of a listed name (`a/b/c`) below `base`. Raises: BAD_NAME for one that leads elsewhere."""
    return base.joinpath(*(check_name(name) for name in listed.split("/")))


def _sort(entry: os.DirEntry[str]) -> Sort:
    if entry.is_symlink():
        return Sort.SYMLINK
    if entry.is_dir():
        return Sort.DIRECTORY
    return Sort.FILE if entry.is_file() else Sort.OTHER
