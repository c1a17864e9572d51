"""A Shepherd's small durable facts (boot number, ticket secret, newest authority): a file, and its memory twin.

The file is JSON of one object with `format` 1, mode 0600, replaced as a whole: temporary, fsync, rename, fsync
directory. Layout: docs/formats/replica-store.md. Calls block; the service makes them through its `Worker`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.shepherd import State

FORMAT: Final = 1


class StateFile:
    """Keeps `State` in the file `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> State | None:
        """The state as last saved, None on a fresh disk. Raises: BAD_CONFIG when it is damaged or of a newer format."""
        try:
            raw = self._path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            return _decode(json.loads(raw))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            cause = f"damaged ({error}); put it back from a backup, or remove it: open tickets end, replicas stay"
            raise CheloniaError(Kind.BAD_CONFIG, "load state", str(self._path), cause) from error

    def save(self, state: State) -> None:
        """Write durably; returns when it is on stable storage. Raises: UNAVAILABLE when the disk fails or is full."""
        try:
            self._replace(_encode(state))
        except OSError as error:
            cause = f"the state cannot be saved: {error.strerror}; free space on its disk or mend it"
            raise CheloniaError(Kind.UNAVAILABLE, "save state", str(self._path), cause) from error

    def _replace(self, content: bytes) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        draft = self._path.with_name(self._path.name + ".new")
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(fd)
        os.replace(draft, self._path)
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class MemoryState:
    """Keeps `State` in memory; the object is the disk."""

    def __init__(self) -> None:
        self.state: State | None = None

    def load(self) -> State | None:
        """The state as last saved, or None."""
        return self.state

    def save(self, state: State) -> None:
        """Keep `state`."""
        self.state = state


def _encode(state: State) -> bytes:
    content = {
        "format": FORMAT,
        "boot": state.boot,
        "ticket_secret": state.ticket_secret.hex(),
        "cluster": state.cluster,
        "generation": state.generation,
        "sequence": state.sequence,
        "extra": state.extra,
    }
    return json.dumps(content, indent=1, sort_keys=True).encode() + b"\n"


def _decode(content: dict[str, Any]) -> State:
    if content["format"] != FORMAT:
        cause = f"format {content['format']} is not {FORMAT}; run the software version that wrote it, or a newer one"
        raise CheloniaError(Kind.BAD_CONFIG, "load state", "", cause)
    extra = {str(key): str(value) for key, value in content["extra"].items()}
    return State(
        boot=int(content["boot"]),
        ticket_secret=bytes.fromhex(content["ticket_secret"]),
        cluster=str(content["cluster"]),
        generation=int(content["generation"]),
        sequence=int(content["sequence"]),
        extra=extra,
    )
