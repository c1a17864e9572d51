"""A gate between what uses Berkeley DB and what must be alone with it: changes of role and synchronisation.

The library waits for a change of role by looking once a second whether everybody has left. So everybody leaves first,
here: users pass shared, a change of role exclusively, and it waits for those inside while it lets nobody in.
Not re-entrant: a thread that is inside must not enter again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """Shared as a context manager (`with gate:`); `with gate.exclusive():` alone."""

    __slots__ = ("_changed", "_inside", "_shut")

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._inside = 0
        self._shut = False

    def __enter__(self) -> None:
        with self._changed:
            while self._shut:
                self._changed.wait()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._inside -= 1
            if self._shut and not self._inside:
                self._changed.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Nobody else is inside while this is held."""
        with self._changed:
            while self._shut:
                self._changed.wait()
            self._shut = True
            while self._inside:
                self._changed.wait()
        try:
            yield
        finally:
            with self._changed:
                self._shut = False
                self._changed.notify_all()
