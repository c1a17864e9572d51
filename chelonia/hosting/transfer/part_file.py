"""The file that a download writes to, beside its target: hidden, and gone at the end unless it was given that name.

That of large bytes stays when their download breaks off, and the next download of the same bytes to the same place
begins with it. Nobody takes its bytes on trust: they are hashed again with the rest. Where another process has it, or
it is not this user's own, a new file is written, as for small bytes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, cast

from chelonia.core.errors import CheloniaError, Kind

KEPT_BYTES: Final = 16 * 1024 * 1024
"""Bytes from this size on stay when a download breaks off: less is fetched anew within a second or a few."""
_PREFIX: Final = ".chelonia."
_SUFFIX: Final = ".part"


@contextlib.contextmanager
def part_file(target: Path, whole: str = "") -> Iterator[tuple[BinaryIO, Path]]:
    """A file beside the target, at its start. `whole`: tells the bytes from all others; "": they are not kept.

    Raises: OSError from the local disk.
    """
    kept = _kept(target, whole) if whole else None
    file, path = kept or _new(target)
    with file:
        try:
            yield file, path
        except BaseException as error:  # it goes while it is held: who comes next makes a file of his own
            if kept is None or not _goes_on(error):
                path.unlink(missing_ok=True)
            raise


def is_kept(name: str) -> bool:
    """Whether a file of this name is what a download has left."""
    return re.fullmatch(r"\.chelonia\.[0-9a-f]{16}\.[0-9a-f]{16}\.part", name) is not None


def _goes_on(error: BaseException) -> bool:
    """Whether the next download may begin with what has come: not with wrong bytes, nor on a disk that is full."""
    if isinstance(error, CheloniaError):
        return error.kind not in (Kind.CHECKSUM, Kind.CONFLICT)
    return not isinstance(error, OSError)


def _new(target: Path) -> tuple[BinaryIO, Path]:
    descriptor, name = tempfile.mkstemp(prefix=_PREFIX, suffix=_SUFFIX, dir=target.parent)
    return os.fdopen(descriptor, "wb"), Path(name)


def _kept(target: Path, whole: str) -> tuple[BinaryIO, Path] | None:
    """The file of these bytes, held; those of other bytes for the same target go. None: it cannot be had."""
    ours = f"{_PREFIX}{_digest(target.name)}."
    path = target.with_name(f"{ours}{_digest(whole)}{_SUFFIX}")
    with contextlib.suppress(OSError), os.scandir(target.parent) as entries:
        for entry in entries:
            if entry.name.startswith(ours) and entry.name != path.name and (other := _held(Path(entry.path))):
                with other:
                    os.unlink(entry.path)
    file = _held(path, os.O_CREAT)
    return None if file is None else (file, path)


def _held(path: Path, create: int = 0) -> BinaryIO | None:
    """A file of this user's own, locked; None where it is not, another process has it, or it has lost its name."""
    try:
        descriptor = os.open(path, create | os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    file = cast(BinaryIO, os.fdopen(descriptor, "r+b"))
    try:
        found = os.fstat(file.fileno())
        if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_nlink == 1:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(found, os.lstat(path)):
                return file
    except OSError:
        pass
    file.close()
    return None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]
