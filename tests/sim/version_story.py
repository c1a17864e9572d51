"""The answers about one key of a bucket that keeps versions, checked against the key's possible states.

It is as `model.Story`, for versions that are put, removed, brought back and erased. The door does each in a few steps,
and readers see each step. A version is stored beside the key before it gets it; a delete marker is made before the
hidden version goes behind it. A request that fails, or whose front end dies, may stop after any step. Then there is one
version or marker more, and never one less. So a state is the key's version, and the others beside it in order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from chelonia.core.values import replace
from tests.sim.model import DONE, NOTHING, Story

VERSION, MARKER, HELD = "version", "marker", "held"
"""Entries beside a key: a version, a delete marker, or the place of one that is not stored yet."""
Kept = tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class KeyOp:
    """One operation on a key: `put`, `restore`, `remove`, `erase`, `read`, `see`. `target`: the operation whose
    version, or marker, is brought back, erased or seen."""

    id: int
    kind: str
    content: int = 0
    target: int = 0

    def __str__(self) -> str:
        return f"{self.kind} {self.target or self.content or ''}"


class Key(Struct, frozen=True, cache_hash=True):
    """One possible state: the operation whose version has the key, and the entries beside it, newest first."""

    current: int = NOTHING
    kept: Kept = ()

    def has(self, op: int) -> bool:
        """Whether the version of an operation is there."""
        return op == self.current or (op, VERSION) in self.kept

    def shown(self) -> Kept:
        """The entries beside the key in a listing."""
        return tuple(each for each in self.kept if each[1] != HELD)

    def put_in(self, old: tuple[int, str], *new: tuple[int, str]) -> Key:
        """The state with another entry in a place."""
        at = self.kept.index(old)
        return replace(self, kept=(*self.kept[:at], *new, *self.kept[at + 1 :]))


class Phase(Struct, frozen=True, cache_hash=True):
    """The progress of an operation: `name` of its step, the entries it `saw` beside the key before, its `result`."""

    name: str = ""
    saw: Kept = ()
    result: str = ""


class VersionStory(Story):
    """All answers about one key. `contents`: of each operation that made a version."""

    begun = Phase()

    def __init__(self, contents: dict[int, int]) -> None:
        super().__init__(0)
        self._configs: Any = {(Key(), ())}
        self._contents = contents

    def listed(self, current: int, kept: Iterable[tuple[int, str]], unknown: Iterable[int]) -> bool:
        """Whether a listing of a key at rest can be explained; 0 stands for a marker that no answer named."""
        told, nameless = (current, tuple(kept)), set(unknown)

        def seen(key: Key) -> tuple[int, Kept]:
            kept = ((0 if kind == MARKER and op in nameless else op, kind) for op, kind in key.shown())
            return key.current, tuple(kept)

        self._configs = {config for config in self._reachable() if seen(config[0]) == told}
        return not self.checked or bool(self._configs)

    def told(self) -> str:
        """The last requests and answers, and the possible states."""
        return f"{'; '.join(self._told)}; possible: {[key for key, _ in self._configs][:3]}"

    def steps(self, op: Any, at: Any, tree: Any) -> list[Any]:
        return list(_STEPS[op.kind](op, at, tree, self._contents))

    def explains(self, op: Any, at: Any, told: str) -> bool:
        return bool(at.result != DONE if told == "refused" else at.result == told)

    def _finish(self, op: Any, fits: Any) -> None:
        super()._finish(op, fits)
        held = (op.id, HELD)
        self._configs = {(key.put_in(held) if held in key.kept else key, ats) for key, ats in self._configs}


Steps = Iterable[tuple[Phase, Key]]


def _drawn(op: KeyOp, key: Key, saw: Kept) -> Steps:
    """Draw the order of a new entry: before all those there; of two drawn at once either is first."""
    for at in range(len(key.kept) + 1):
        yield Phase("drawn", saw), replace(key, kept=(*key.kept[:at], (op.id, HELD), *key.kept[at:]))
        if at < len(key.kept) and key.kept[at][1] != HELD:
            return


def _put(op: KeyOp, at: Phase, key: Key, contents: dict[int, int]) -> Steps:
    del contents
    mine = (op.id, VERSION)
    if not at.name:
        if op.kind == "restore" and not key.has(op.target):
            return [(Phase(result="none"), key)]
        return _drawn(op, key, ())
    if at.name == "drawn":
        return [(Phase("stored"), key.put_in((op.id, HELD), mine))]
    if mine not in key.kept:  # an erasure has moved it to the key
        return [(Phase(result=DONE), key)] if key.current == op.id else []
    gone = key.put_in(mine, *(((key.current, VERSION),) if key.current else ()))
    return [(Phase(result=DONE), replace(gone, current=op.id)), (Phase(result="left"), key.put_in(mine))]


def _remove(op: KeyOp, at: Phase, key: Key, contents: dict[int, int]) -> Steps:
    del contents
    mine = (op.id, MARKER)
    if not at.name:
        return _drawn(op, key, ((key.current, VERSION),) if key.current else ())
    if at.name == "drawn":
        return [(Phase("marked", at.saw), key.put_in((op.id, HELD), mine))]
    again = (Phase(), key.put_in(mine))
    if not at.saw:
        return [(Phase(result=DONE), key), again]
    if at.saw != ((key.current, VERSION),):
        return [again]
    return [(Phase(result=DONE), replace(key.put_in(mine, mine, *at.saw), current=NOTHING)), again]


def _erase(op: KeyOp, at: Phase, key: Key, contents: dict[int, int]) -> Steps:
    del contents
    begin = (Phase(), key)
    if not at.name:
        name = "of key" if key.current == op.target else "beside, no key" if not key.current else "beside"
        return [(Phase(name, key.shown()[:2]), key)]
    if at.name == "gone":
        return [(Phase(result=DONE), _given_on(key))]
    if at.name == "of key":
        return _erase_current(op, at, key)
    mine = next((each for each in key.shown() if each[0] == op.target), None)
    if key.current == op.target:
        return [begin]
    if mine is None:
        given = _given_on(key)
        return [(Phase(result=DONE) if given == key else Phase(), given)]
    back = at.saw[1] if at.name == "beside, no key" and len(at.saw) > 1 and at.saw[0] == mine else (0, MARKER)
    if mine[1] == MARKER and back[1] == VERSION:
        if key.current or back not in key.kept:
            return [begin]
        return [(Phase("last"), replace(key.put_in(back), current=back[0]))]
    done, gone = (Phase(result=DONE), key.put_in(mine)), (Phase("gone"), key.put_in(mine))
    if mine[1] == MARKER:
        return [gone]
    return [done, gone] if at.name == "beside, no key" else [done]


def _erase_current(op: KeyOp, at: Phase, key: Key) -> Steps:
    if key.current != op.target:
        return [(Phase(), key)]
    if not at.saw or at.saw[0][1] == MARKER:
        return [(Phase("gone") if at.saw else Phase(result=DONE), replace(key, current=NOTHING))]
    if at.saw[0] not in key.kept:
        return [(Phase(), key)]
    swapped = key.put_in(at.saw[0], (op.target, VERSION))
    return [(Phase("last"), replace(swapped, current=at.saw[0][0]))]


def _given_on(key: Key) -> Key:
    """The state in which the newest version has the key, where none has it and no marker is newer. That version may be
    of a put that broke off, or is still under way."""
    newest = next(iter(key.shown()), (NOTHING, MARKER))
    return key if key.current or newest[1] == MARKER else replace(key.put_in(newest), current=newest[0])


def _read(op: KeyOp, at: Phase, key: Key, contents: dict[int, int]) -> Steps:
    del op, at
    return [(Phase(result=f"read {contents.get(key.current, NOTHING)}"), key)]


def _see(op: KeyOp, at: Phase, key: Key, contents: dict[int, int]) -> Steps:
    del at
    found = contents[op.target] if key.has(op.target) else NOTHING
    return [(Phase(result=f"see {found}"), key)]


_STEPS = {"put": _put, "restore": _put, "remove": _remove, "erase": _erase, "read": _read, "see": _see}
