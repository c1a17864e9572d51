"""Patterns of names in the cluster, and the choice of --include and --exclude. Pure.

A pattern has `*`, `?` and `[...]` within one name, and `**` over any number of names. One without `/` is matched with
the last name of a path, at any depth. One with `/` is matched with the whole path from the top of the tree.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from fnmatch import translate
from typing import Final

import msgspec

_MAGIC: Final = frozenset("*?[")


def is_pattern(text: str) -> bool:
    """Whether a name has characters of a pattern."""
    return not _MAGIC.isdisjoint(text)


@functools.lru_cache(maxsize=256)
def _compiled(name: str) -> re.Pattern[str]:
    return re.compile(translate(name))


def name_fits(name: str, pattern: str) -> bool:
    """Whether one name fits one part of a pattern; case matters."""
    return _compiled(pattern).match(name) is not None


def path_fits(path: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether a path fits a pattern, name by name; `**` stands for any number of names."""
    if not pattern:
        return not path
    if pattern[0] == "**":
        return path_fits(path, pattern[1:]) or (bool(path) and path_fits(path[1:], pattern))
    return bool(path) and name_fits(path[0], pattern[0]) and path_fits(path[1:], pattern[1:])


def below_fits(path: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether something below the collection `path` may fit a pattern."""
    if not path:
        return bool(pattern)
    if not pattern:
        return False
    return pattern[0] == "**" or (name_fits(path[0], pattern[0]) and below_fits(path[1:], pattern[1:]))


class Choice(msgspec.Struct, frozen=True):
    """A choice of entries of a tree: all that fit no `exclude`; with `include`, of files only those that fit one.

    An entry that is left out is neither moved nor removed. A collection that is left out leaves out all below it.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def takes(self, path: Sequence[str], *, collection: bool) -> bool:
        """Whether the entry at `path`, names from the top of the tree, is chosen, given that its collections are."""
        if any(_fits(path, pattern, collection=collection) for pattern in self.exclude):
            return False
        return collection or not self.include or any(_fits(path, pattern) for pattern in self.include)

    def takes_below(self, path: Sequence[str], *, collection: bool) -> bool:
        """As `takes`, but check all collections above it too."""
        above = (self.takes(path[:depth], collection=True) for depth in range(1, len(path)))
        return all(above) and self.takes(path, collection=collection)


EVERYTHING: Final = Choice()


def _fits(path: Sequence[str], pattern: str, *, collection: bool = False) -> bool:
    if pattern.endswith("/") and not collection:  # `build/`: only collections
        return False
    parts = pattern.strip("/").split("/")
    if len(parts) == 1 and not pattern.startswith("/"):
        return name_fits(path[-1], parts[0])
    return path_fits(path, parts)
