"""The answers to users about a few names, checked against a tree that exists only in the model.

Several users work on the same names at once; some never learn the outcome of an operation. `Story` keeps every state
that the tree could be in, given all requests and answers so far. An operation takes effect at one moment between its
beginning and its answer. When its outcome is unknown, it does so at any later one, or never. This is a linearizability
check, made as the run goes.

An answer that no possible state explains is a `Violation`. Examples: an acknowledged change that is not there, a
deleted file that is back, a revoked right that still works, a refusal that took effect. An upload has two moments. At
its beginning it learns which file it replaces; at its end it replaces that one, under its name of that moment. Files
are identified by the operation that made them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from msgspec import Struct

from chelonia.core.values import replace

NOTHING = 0
CONFIGS_MAX = 40_000
"""Possible states kept of one group of names; beyond it, the answers to its users are no longer checked."""
READS = ("read", "stat", "see")
"""Operations without effect: one without an answer shows nothing."""
UPLOADS = ("put", "put_file")
GUESSED = ("put", "put_file", "undelete")
"""Operations whose refusal may have a cause outside the model: a reservation, an order of deletion."""
CERTAIN_REFUSALS = ("not-found", "denied")
"""Refusals that need a state to explain them; others may come from a reservation outside the model."""


class Violation(AssertionError):
    """An invariant broke; the message is the evidence."""


@dataclass(frozen=True, slots=True)
class Op:
    """One request of a user. `name`, `other`: indexes of names; `value`: of the change. `target`: another user.
    `after`: maps a file's content to its content after the change."""

    id: int
    user: int
    kind: str
    name: int
    other: int = 0
    content: int = 0
    wanted: int = 0
    value: str = ""
    target: int = -1
    after: Callable[[int], int] | None = None

    def __str__(self) -> str:
        what = dict.fromkeys(("move", "link", "copy", "over", "exchange"), self.other)
        what |= {"note": self.value, "lay": self.value, "cut": self.value, "wanted": self.wanted, "bar": self.target}
        detail = what.get(self.kind, self.content or "")
        return f"{self.kind} {self.name} {detail} by user {self.user}"


class File(Struct, frozen=True, cache_hash=True):
    """A file in the model; `barred`: users who have lost the right to delete it."""

    content: int
    owner: int
    wanted: int
    note: str = ""
    barred: tuple[int, ...] = ()

    def bars(self, user: int) -> bool:
        """Whether this user may not delete or replace it."""
        return user in self.barred and user != self.owner


class Tree(Struct, frozen=True, cache_hash=True):
    """One possible state: for each name the file it leads to (`NOTHING`: none), and the files. `trash`: deleted files
    with the names they had, None where none is kept."""

    names: tuple[int, ...]
    files: tuple[tuple[int, File], ...] = ()
    trash: tuple[tuple[int, File, tuple[int, ...]], ...] | None = None

    def file(self, fid: int) -> File | None:
        """A file, None when it does not exist."""
        return dict(self.files).get(fid)

    def named(self, name: int, fid: int) -> Tree:
        """The tree in which `name` leads to `fid`; a file without a name is gone."""
        return self._leading(tuple(fid if index == name else old for index, old in enumerate(self.names)))

    def holding(self, fid: int, file: File) -> Tree:
        """The tree with this file in this state."""
        files = sorted({**dict(self.files), fid: file}.items(), key=lambda item: item[0])
        return Tree(self.names, tuple(files), self.trash)

    def exchanged(self, name: int, other: int) -> Tree:
        """The tree in which each of two names leads to what the other led to."""
        names = {name: self.names[other], other: self.names[name]}
        return self._leading(tuple(names.get(index, old) for index, old in enumerate(self.names)))

    def without(self, fid: int) -> Tree:
        """The tree without a file and its names."""
        return self._leading(tuple(NOTHING if old == fid else old for old in self.names))

    def back(self, fid: int, name: int) -> Tree:
        """The tree with a file from the trash under a name."""
        [file] = [file for old, file, _ in self.trash or () if old == fid]
        rest = tuple(item for item in self.trash or () if item[0] != fid)
        return replace(self.holding(fid, file), trash=rest).named(name, fid)

    def deleted(self, name: int, owner: int) -> list[int]:
        """The files in the trash that this owner finds under a name."""
        return [fid for fid, file, names in self.trash or () if file.owner == owner and name in names]

    def _leading(self, names: tuple[int, ...]) -> Tree:
        files = tuple(item for item in self.files if item[0] in names)
        if self.trash is None or len(files) == len(self.files):
            return Tree(names, files, self.trash)
        gone = [
            (fid, file, tuple(index for index, old in enumerate(self.names) if old == fid))
            for fid, file in self.files
            if fid not in names
        ]
        return Tree(names, files, tuple(sorted((*self.trash, *gone), key=lambda item: item[0])))


class At(Struct, frozen=True, cache_hash=True):
    """The progress of an operation: not begun, `bound` to a file (`NOTHING`: to a new one), or done with `result`."""

    bound: int = -1
    result: str = ""


BEGUN = At()
DONE = "done"
Config = tuple[Tree, tuple[tuple[int, At], ...]]


class Story:
    """The answers to all users of one group of names, and every tree that explains them. `trash`: deleted files are
    kept for the whole run."""

    begun: At = BEGUN

    def __init__(self, names: int, *, trash: bool = False) -> None:
        self._configs: set[Config] = {(Tree((NOTHING,) * names, trash=() if trash else None), ())}
        self._pending: dict[int, Op] = {}
        self._begun: set[int] = set()
        self._told: deque[str] = deque(maxlen=30)
        self._broken = ""
        self.checked = True

    @property
    def open(self) -> int:
        """Operations that may still take effect."""
        return len(self._pending)

    def begin(self, op: Op) -> None:
        self._told.append(f"#{op.id} {op} ...")
        self._pending[op.id] = op
        self._begun.add(op.id)
        self._configs = {(tree, (*ats, (op.id, self.begun))) for tree, ats in self._configs}

    def answered(self, op: Op, told: str) -> None:
        """Note an answer, which ends the operation: `done`, the content read, or `refused <kind>`. Raises:
        Violation."""
        self._told.append(f"#{op.id} {op} -> {told}")
        self._finish(op, lambda at: self.explains(op, at, told))
        if self.checked and not self._configs:
            self._broken = self._broken or f"nobody can have been told this: {'; '.join(self._told)}"
            raise Violation(self._broken)

    def unknown(self, op: Op) -> None:
        """Note that the user does not know; the operation may take effect at any time until it is `settled`."""
        self._told.append(f"#{op.id} {op} -> ?")
        if op.kind in READS:
            self.settled(op)

    def settled(self, op: Op) -> None:
        """Note that no part of the operation is under way: it has taken effect, or never will."""
        if op.id in self._pending:
            self._finish(op, lambda _: True)

    def copied(self) -> Story:
        """A copy of the story so far, to be continued another time."""
        copy = Story(0)
        copy._configs, copy._pending = set(self._configs), dict(self._pending)
        copy._told, copy.checked, copy._begun = deque(self._told, maxlen=30), self.checked, set(self._begun)
        return copy

    def unjudged(self) -> None:
        """Check no answer from now on."""
        self._configs, self.checked = set(), False

    @staticmethod
    def since(tree: Tree) -> Story:
        """A story that begins with this tree."""
        story = Story(0)
        story._configs = {(tree, ())}
        return story

    def cut_off(self) -> None:
        """Note that the operations under way have happened, or never will."""
        self._told.append("restored")
        for op in list(self._pending.values()):
            self.settled(op)

    def contents(self, name: int) -> set[int]:
        """The possible contents of a name now."""
        self._configs = self._reachable()
        files = [tree.file(tree.names[name]) for tree, _ in self._configs]
        return {file.content if file else NOTHING for file in files}

    def can_come_back(self, owner: int) -> list[int]:
        """The names that certainly lead nowhere, and under which the owner certainly finds a deleted file."""
        self._configs = self._reachable()
        trees = [tree for tree, _ in self._configs]
        names = range(len(trees[0].names)) if trees and self.checked else ()
        return [name for name in names if all(not t.names[name] and t.deleted(name, owner) for t in trees)]

    def steps(self, op: Op, at: At, tree: Tree) -> list[tuple[At, Tree]]:
        """The possible next moments of an operation: its progress then, and the tree."""
        return steps(op, at, tree)

    def explains(self, op: Op, at: At, told: str) -> bool:
        """Whether an operation with this progress may get this answer."""
        return _explains(op, at, told)

    # --- the possible states ----------------------------------------------------------------------------------------

    def _finish(self, op: Op, fits: Callable[[At], bool]) -> None:
        reachable = self._reachable()
        self._configs = {
            (tree, tuple(item for item in ats if item[0] != op.id)) for tree, ats in reachable if fits(dict(ats)[op.id])
        }
        del self._pending[op.id]

    def _reachable(self) -> set[Config]:
        """Every state that pending operations can have made of the possible ones by now. States that operations begun
        before the last call can make are already among them: only newer ones have to act on these."""
        seen, begun = set(self._configs), self._begun
        waiting = [then for config in self._configs for then in self._next(config, begun)] if begun else []
        self._begun = set()
        while waiting and len(seen) < CONFIGS_MAX:
            config = waiting.pop()
            if config not in seen:
                seen.add(config)
                waiting += self._next(config, self._pending)
        if waiting:
            self.unjudged()
            return set()
        return seen

    def _next(self, config: Config, acting: Collection[int]) -> Iterator[Config]:
        tree, ats = config
        for index, (op_id, at) in enumerate(ats):
            if not at.result and op_id in acting:
                for after, then in self.steps(self._pending[op_id], at, tree):
                    yield then, (*ats[:index], (op_id, after), *ats[index + 1 :])


def steps(op: Op, at: At, tree: Tree) -> list[tuple[At, Tree]]:
    """The possible next moments of an operation: its progress then, and the tree."""
    if op.kind != "undelete":
        return [step(op, at, tree)]
    found = tree.deleted(op.name, op.user)
    if tree.names[op.name] or not found:
        return [(At(result="refused"), tree)]
    return [(At(result=DONE), tree.back(fid, op.name)) for fid in found]


def step(op: Op, at: At, tree: Tree) -> tuple[At, Tree]:
    """The next moment of an operation: its progress then, and the tree."""
    fid = tree.names[op.name]
    file = tree.file(fid)
    if op.kind in UPLOADS:
        return _upload(op, at, tree)
    if op.kind == "read":
        return At(result=f"read {file.content if file else NOTHING}"), tree
    if op.after is not None:
        return _lay(op, op.after, file, tree)
    if file is None:
        return At(result="refused not-found"), tree
    match op.kind:
        case "over" if tree.names[op.other] == fid:
            return At(result=DONE), tree
        case "exchange" if not tree.names[op.other]:
            return At(result="refused not-found"), tree
        case "exchange":
            return At(result=DONE), tree.exchanged(op.name, op.other)
        case "copy":
            return _copy(op, file, tree)
        case "stat":
            return At(result=f"stat {file.wanted} {file.note}"), tree
        case "move" | "link" if tree.names[op.other]:
            return At(result="refused exists"), tree
        case "move" | "over":
            return At(result=DONE), tree.named(op.other, fid).named(op.name, NOTHING)
        case "link":
            return At(result=DONE), tree.named(op.other, fid)
        case "unlink":
            return At(result=DONE), tree.named(op.name, NOTHING)
        case "delete" if file.bars(op.user):
            return At(result="refused denied"), tree
        case "delete":
            return At(result=DONE), tree.without(fid)
    return At(result=DONE), tree.holding(fid, _changed(op, file))


def _lay(op: Op, after: Callable[[int], int], there: File | None, tree: Tree) -> tuple[At, Tree]:
    """Lay bytes over those of the file, or make one."""
    if there is None:
        made = tree.holding(op.id, File(after(NOTHING), op.user, op.wanted))
        return At(result=DONE), made.named(op.name, op.id)
    if there.bars(op.user):
        return At(result="refused denied"), tree
    return At(result=DONE), tree.holding(tree.names[op.name], replace(there, content=after(there.content)))


def _copy(op: Op, source: File, tree: Tree) -> tuple[At, Tree]:
    """Give the other name the bytes of the file, its properties, and as many copies."""
    there, target = tree.file(tree.names[op.other]), tree.names[op.other]
    if there is not None and there.bars(op.user):
        return At(result="refused denied"), tree
    if target == tree.names[op.name]:
        return At(result="refused"), tree
    if there is None:
        made = tree.holding(op.id, File(source.content, op.user, source.wanted, source.note))
        return At(result=DONE), made.named(op.other, op.id)
    kept = replace(there, content=source.content, wanted=source.wanted, note=source.note)
    return At(result=DONE), tree.holding(target, kept)


def _changed(op: Op, file: File) -> File:
    match op.kind:
        case "note":
            return replace(file, note=op.value)
        case "wanted":
            return replace(file, wanted=op.wanted)
        case "bar":
            return replace(file, barred=tuple(sorted({*file.barred, op.target})))
        case "unbar":
            return replace(file, barred=tuple(user for user in file.barred if user != op.target))
    raise AssertionError(op.kind)


def _upload(op: Op, at: At, tree: Tree) -> tuple[At, Tree]:
    fid = tree.names[op.name] if at.bound < 0 else at.bound
    file = tree.file(fid)
    decided = at.bound >= 0 and op.kind == "put_file"  # the right was decided when the name was reserved
    if file is not None and file.bars(op.user) and not decided:
        return At(result="refused denied"), tree
    if at.bound < 0:
        return At(bound=fid), tree
    if fid and file is None:
        return At(result="refused not-found"), tree
    if file is not None:
        return At(result=DONE), tree.holding(fid, replace(file, content=op.content, wanted=op.wanted))
    if tree.names[op.name]:
        return At(result="refused exists"), tree
    made = tree.holding(op.id, File(op.content, op.user, op.wanted))
    return At(result=DONE), made.named(op.name, op.id)


def _explains(op: Op, at: At, told: str) -> bool:
    kind = told.removeprefix("refused ")
    if kind == told or (kind in CERTAIN_REFUSALS and op.kind not in GUESSED):
        return at.result == told
    return at.result != DONE
