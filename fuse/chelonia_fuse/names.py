"""Names of a directory that are known to be there, or not to be, without a request. Pure.

Decides which answer serves a lookup, and which part of a directory is worth a listing. A listing serves programs that
look at name after name, and those that make files in a directory that was made here. No answer older than `VALID_NS`
serves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from chelonia.core.ports.files import Attributes
from chelonia_fuse.listings import LargeListing

VALID_NS: Final = 1_000_000_000
"""How long names and attributes of an answer are valid."""
_ASKED_MIN: Final = 2
"""Lookups that needed a request, within `VALID_NS`, before a listing is worth it."""
_WINDOW_MIN: Final = 64
_WINDOW_MAX: Final = 1000
"""Entries of a listing for lookups in order of names; doubled with each."""
_WORTH: Final = 16
"""Cost of a lookup, in entries of a listing."""
_PASSED_MIN, _PASSED_MAX = 4, 256
"""Lookups without a listing after one that served too few; doubled with each. In another order than that of names, as
`find` looks in a large directory, each second name is still behind the one before."""
_CHANGED_MAX: Final = 2000
_REFUSED_NS: Final = 30 * VALID_NS
"""Time after a failed listing in which none is tried."""


@dataclass(frozen=True, slots=True)
class ListedPart:
    """A part of a directory listed whole: all keys in (after, until], requested at a monotonic time. A key is a name,
    and for a directory it ends in `/`. `until` "": to the end."""

    after: str = ""
    until: str = ""
    asked_ns: int = -VALID_NS
    entries: Mapping[str, Attributes] = field(default_factory=dict)

    def has(self, name: str, now_ns: int) -> bool:
        """Whether it covers a name, as a file or a directory."""
        if now_ns - self.asked_ns >= VALID_NS:
            return False
        key = name.encode()
        return self.after.encode() < key and (not self.until or key + b"/" <= self.until.encode())


NOTHING: Final = ListedPart()


@dataclass(slots=True, eq=False)
class KnownNames:
    """Known names of one directory.

    Args:
        part: the last listed part; listing: whether another one is on its way.
        changed: names that this mount has changed, and when: earlier listings do not serve for them.
        served: lookups that were answered from it.
        large: the last listing of several pages.
    """

    part: ListedPart = NOTHING
    large: LargeListing | None = None
    listing: bool = False
    changed: dict[str, int] = field(default_factory=dict)
    served: int = 0
    _forgot_ns: int = -1
    _refused_ns: int = -_REFUSED_NS
    _whole: int | None = None
    _asked: list[int] = field(default_factory=list)
    _last: str = ""
    _window: int = 0
    _pass: int = 0
    _passed: int = 0

    def has(self, name: str, now_ns: int) -> bool:
        """Whether a lookup can be answered, with the entry or with its absence."""
        return self.part.has(name, now_ns) and self.changed.get(name, -1) < self.part.asked_ns

    def asked(self, name: str, now_ns: int) -> tuple[str, int] | None:
        """Note a lookup that needs a request. Returns: the path after which to list, and how many entries, if that
        pays: from this name on, or from the first. The caller lists them, and clears `listing` at the end."""
        self._asked = [at for at in self._asked[-_WINDOW_MIN:] if now_ns - at < VALID_NS] + [now_ns]
        in_order, self._last = name.encode() > self._last.encode(), name
        if len(self._asked) < _ASKED_MIN or self.listing or now_ns < self._refused_ns + _REFUSED_NS:
            return None
        if self._whole is None or 0 <= self._whole <= _WORTH * len(self._asked):
            self.listing = True
            return "", _WINDOW_MIN if self._whole is None else _WINDOW_MAX
        return self._in_order(name) if in_order else None

    def _in_order(self, name: str) -> tuple[str, int] | None:
        """Start and length of a listing for lookups in order of names, unless the last one served too few."""
        if self._passed < self._pass:
            self._passed += 1
            return None
        if self._window and self.served * _WORTH < self._window:
            self._pass, self._passed = min(max(_PASSED_MIN, 2 * self._pass), _PASSED_MAX), 0
            self._window = 0
            return None
        self._pass = 0 if self._window else self._pass
        self._window, self.served = min(max(_WINDOW_MIN, 2 * self._window), _WINDOW_MAX), 0
        self.listing = True
        return _before(name), self._window

    def refused(self, now_ns: int) -> None:
        """Note that it could not be listed."""
        self._refused_ns = now_ns

    def change(self, name: str, now_ns: int) -> None:
        """Note that this mount has changed what a name leads to."""
        if self.large is not None:
            self.large.change(name, now_ns)
        if len(self.changed) >= _CHANGED_MAX:
            self.changed = {each: at for each, at in self.changed.items() if now_ns - at < VALID_NS}
            if len(self.changed) >= _CHANGED_MAX:
                self.changed, self.part, self._forgot_ns = {}, NOTHING, now_ns
        self.changed[name] = now_ns

    def listed(self, part: ListedPart) -> None:
        """Take in a listed part, requested at most `VALID_NS` ago."""
        self.part = part if part.asked_ns > self._forgot_ns else NOTHING
        if not part.after:
            self._whole = -1 if part.until else len(part.entries)

    def made(self, asked_ns: int) -> None:
        """Note that the directory was made here, empty."""
        self.listed(ListedPart(asked_ns=asked_ns))


def _before(name: str) -> str:
    """A path that stands before a name, with next to nothing between them; "" where there is none."""
    last = ord(name[-1]) - 1
    return name[:-1] + (chr(last) + "\U0010ffff" if last > ord(" ") and not 0xD800 <= last <= 0xDFFF else "")
