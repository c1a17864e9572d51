"""The locks of a Berkeley DB store: for readers of one state, and for work that must be alone with the library.

`Gate`: users pass it shared, a change of role or a synchronisation exclusively; that waits for those inside and lets
nobody in. Without it the library would look only once a second whether everybody has left. Not re-entrant.
`OneState`: readers hold the state one at a time; a change waits for one of them at most.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


class OneState:
    """The contents that readers see: they change only while no reader holds them."""

    __slots__ = ("_held", "_number", "_turnstile")

    def __init__(self) -> None:
        self._held, self._turnstile = threading.Lock(), threading.Lock()
        self._number = 0

    @contextmanager
    def reading(self) -> Iterator[None]:
        with self._turnstile:  # a change waits holding it, so that readers in turn cannot starve it
            pass
        with self._held:
            yield

    def changing(self) -> OneState:
        """Return the lock for `with state.changing():`, during which no reader holds the state."""
        return self

    def __enter__(self) -> None:  # no generator: every commit and every frame comes this way
        with self._turnstile:
            self._held.acquire()
        self._number += 1

    def __exit__(self, *_: object) -> None:
        self._held.release()

    def change_at_once(self, work: Callable[[], T]) -> T | None:
        """Run `work` while `changing`, unless that had to wait; None: not run."""
        if self._turnstile.locked() or not self._held.acquire(blocking=False):
            return None
        self._number += 1
        try:
            return work()
        finally:
            self._held.release()

    @property
    def held(self) -> bool:
        """Whether somebody reads or changes it now."""
        return self._held.locked()

    def at_once(self, work: Callable[[int], T]) -> T | None:
        """Run `work` with the number of the state; see `Store.at_once`."""
        if self._turnstile.locked() or not self._held.acquire(blocking=False):
            return None
        try:
            return work(self._number)
        finally:
            self._held.release()


class Gate:
    """Shared as a context manager (`with gate:`); `with gate.exclusive():` alone."""

    __slots__ = ("_changed", "_inside", "_lock", "_shut")

    def __init__(self) -> None:
        self._lock = threading.Lock()  # taken itself where nobody waits: a condition's is behind two calls in Python
        self._changed = threading.Condition(self._lock)
        self._inside = 0
        self._shut = False

    def __enter__(self) -> None:
        with self._lock:
            while self._shut:
                self._changed.wait()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._shut and not self._inside:
                self._changed.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep everybody else out while held."""
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
