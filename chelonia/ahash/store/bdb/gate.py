"""Who waits for whom at a Berkeley DB store: readers of one state, and what must be alone with the library.

`Gate`: the library waits for a change of role or a synchronisation by looking once a second whether everybody has left.
So everybody leaves first, here: users pass shared, a change of role exclusively, and it waits for those inside while it
lets nobody in. Not re-entrant: a thread that is inside must not enter again.
`OneState`: readers hold what is stored, one at a time; who changes it waits for one of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


class OneState:
    """What is stored, as readers see it: it changes only while no reader holds it."""

    __slots__ = ("_held", "_number", "_turnstile")

    def __init__(self) -> None:
        self._held, self._turnstile = threading.Lock(), threading.Lock()
        self._number = 0

    @contextmanager
    def reading(self) -> Iterator[None]:
        with self._turnstile:  # who changes the state waits holding it, so that readers in turn cannot starve them
            pass
        with self._held:
            yield

    def changing(self) -> OneState:
        """`with state.changing():` no reader holds the state meanwhile."""
        return self

    def __enter__(self) -> None:  # no generator: every commit and every frame comes this way
        with self._turnstile:
            self._held.acquire()
        self._number += 1

    def __exit__(self, *_: object) -> None:
        self._held.release()

    def change_at_once(self, work: Callable[[], T]) -> T | None:
        """Do what is to be done while `changing`, or nothing, if somebody would have to be waited for: None."""
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
        """See `Store.at_once`; `work` is given the number of the state."""
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
