"""A Shepherd's small durable facts: its state (boot number, ticket secret, newest authority), and its store's identity.

They are in two files. Each is JSON of one object with `format` 1 (the second also 2), mode 0600, replaced as a whole
(`durable_files`). The state may be lost; the identity goes with the replicas.
Calls block, so threads make them. Layout: docs/formats/replica-store.md.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import asdict

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ports.shepherd import ShepherdState, StoreIdentity
from chelonia.durable_files import write_file

FORMAT: Final = 1
IDENTITY: Final = "store.json"
"""The file with a store's identity."""
LOCK: Final = "lock"
"""The file that a process locks to use the store."""
WITH_SEGMENTS: Final = 2
"""Format of the identity once some replicas are in segments: older software has to refuse the store."""
PUT_BACK: Final = (
    "mount or put back what was there; if the replicas are lost for good, "
    "`cheloniad accept-store` says so to the cluster"
)
"""Advice for a store that is not complete."""


class StateFile:
    """Keeps `ShepherdState` in the file `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> ShepherdState | None:
        """Read the state as last saved, None on a fresh disk. Raises: BAD_CONFIG when damaged or of a newer format."""
        try:
            raw = self._path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            return _decode(json.loads(raw))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            cause = f"damaged ({error}); put it back from a backup, or remove it: open tickets end, replicas stay"
            raise CheloniaError(Kind.BAD_CONFIG, "load state", str(self._path), cause) from error

    def save(self, state: ShepherdState) -> None:
        """Write durably; returns when it is on stable storage. Raises: UNAVAILABLE when the disk fails or is full."""
        try:
            _replace(self._path, _encode(state))
        except OSError as error:
            cause = f"the state cannot be saved: {error.strerror}; free space on its disk or mend it"
            raise CheloniaError(Kind.UNAVAILABLE, "save state", str(self._path), cause) from error


def read_identity(root: Path) -> StoreIdentity | None:
    """Read the identity of the store in `root`, None when it has none. Raises: BAD_CONFIG when damaged; OSError."""
    path = root / IDENTITY
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        content = json.loads(raw)
        _check_format(content, WITH_SEGMENTS)
        return msgspec.convert({name: content[name] for name in StoreIdentity.__struct_fields__}, StoreIdentity)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        cause = f"damaged ({error}); put it back from a backup, or run `cheloniad accept-store`: replicas stay"
        raise CheloniaError(Kind.BAD_CONFIG, "read store", str(path), cause) from error


def has_segments(root: Path) -> bool:
    """Whether the identity of the store in `root` says that it has segments. Raises: OSError."""
    try:
        return bool(json.loads((root / IDENTITY).read_bytes())["format"] == WITH_SEGMENTS)
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return False  # `read_identity` reports what is wrong with it


def write_identity(root: Path, identity: StoreIdentity, *, segments: bool = False) -> None:
    """Write durably the identity of the store in `root`, and whether it has segments. Raises: OSError."""
    content = {"format": WITH_SEGMENTS if segments else FORMAT, **asdict(identity)}
    _replace(root / IDENTITY, _json(content))


def _replace(path: Path, content: bytes) -> None:
    with held(path.parent) as root:
        write_file(root / path.name, content, 0o600)


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content, indent=1, sort_keys=True).encode() + b"\n"


def _check_format(content: dict[str, Any], newest: int = FORMAT) -> None:
    if content["format"] not in range(FORMAT, newest + 1):
        cause = f"format {content['format']} is not {newest}; run the software version that wrote it, or a newer one"
        raise CheloniaError(Kind.BAD_CONFIG, "load state", "", cause)


def _encode(state: ShepherdState) -> bytes:
    return _json({"format": FORMAT, **asdict(state), "ticket_secret": state.ticket_secret.hex()})


def _decode(content: dict[str, Any]) -> ShepherdState:
    _check_format(content)
    content["ticket_secret"] = bytes.fromhex(content["ticket_secret"])
    return msgspec.convert({name: content[name] for name in ShepherdState.__struct_fields__}, ShepherdState)


@contextlib.contextmanager
def held(root: Path) -> Iterator[Path]:
    """Yield a path of the store's directory that stays on its disk. A file made there never lands in the directory
    below a disk that has just gone. Raises: OSError where no process has locked a store."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.stat(LOCK, dir_fd=fd)
        yield Path(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


@contextlib.contextmanager
def locked(root: Path) -> Iterator[None]:
    """Lock the directory as the engine does. Raises: BAD_CONFIG when another process uses it."""
    fd = lock_directory(root)
    try:
        yield
    finally:
        os.close(fd)


def lock_directory(root: Path) -> int:
    """Lock a store until the returned descriptor is closed. Raises: as `locked`."""
    fd = os.open(root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        cause = "another process uses this directory: stop it, or give each Shepherd its own"
        raise CheloniaError(Kind.BAD_CONFIG, "open store", str(root), cause) from error
    return fd
