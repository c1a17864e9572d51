"""A disk that forgets: files and directories in memory, of which a power cut leaves the synced state.

Decides what survives a cut; never touches a real file system (`power.py` mounts it). Invariants: bytes are safe once
their file was synced, names once their directory was. Of all else a cut keeps nothing, or anything, page by page.
- `Loss.ALL`: nothing unsynced survives.
- `Loss.BYTES`: all names survive, as after delayed allocation, and no unsynced page.
- `Loss.SOME`: of unsynced pages of 4 KiB and changes of directories each survives or not, in any order (POSIX).
- `Loss.LATEST`: changes of directories survive up to a moment, as with a journal; pages as with `SOME`.

`journal`: a sync of anything makes all earlier changes of directories safe, as ext4 and xfs do. Without it only that of
the directory does.
"""

from __future__ import annotations

import errno
import random
import stat
import time
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

PAGE: Final = 4096
UNLINKED_MAX: Final = 200
"""Nodes without a name that are freed together."""


class Loss(Enum):
    """The losses of a cut."""

    ALL = "all"
    BYTES = "bytes"
    SOME = "some"
    LATEST = "latest"


_BARE: Final = (Loss.ALL, Loss.BYTES)
"""Losses in which no unsynced page survives."""


@dataclass(slots=True)
class Node:
    """A file or directory now. `before`: the content of unsynced pages at their last sync.

    `safe_size`: the size then (-1: clean).
    `doomed`: pages that a failed sync has lost, though they can still be read.
    """

    number: int
    mode: int
    data: bytearray = field(default_factory=bytearray)
    names: dict[str, int] = field(default_factory=dict)
    safe_names: dict[str, int] = field(default_factory=dict)
    before: dict[int, bytes] = field(default_factory=dict)
    doomed: dict[int, bytes] = field(default_factory=dict)
    safe_size: int = -1
    links: int = 1
    opens: int = 0
    time_ns: int = field(default_factory=time.time_ns)

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.mode)


@dataclass(slots=True)
class _Change:
    """One atomic change of directories: (directory, name) to the new node."""

    names: dict[tuple[int, str], int | None]


class Forgetful:
    """The file system. Every call may raise OSError as the system call would."""

    def __init__(self, *, journal: bool = False) -> None:
        self.nodes: dict[int, Node] = {1: Node(1, stat.S_IFDIR | 0o700)}
        self.fail_syncs = 0
        self.syncs = 0
        self._journal = journal
        self._changes: list[_Change] = []
        self._of: dict[int, list[_Change]] = {}
        """The changes that name a directory."""
        self._unlinked: set[int] = set()
        self._next = 2

    # --- what programs do -------------------------------------------------------------------------------------------

    def node(self, number: int) -> Node:
        """Raises: ESTALE."""
        try:
            return self.nodes[number]
        except KeyError:
            raise OSError(errno.ESTALE, "gone") from None

    def find(self, parent: int, name: str) -> Node:
        """Raises: ENOENT."""
        number = self.node(parent).names.get(name)
        if number is None:
            raise OSError(errno.ENOENT, name)
        return self.nodes[number]

    def make(self, parent: int, name: str, mode: int) -> Node:
        """A new file or directory. Raises: EEXIST."""
        if name in self.node(parent).names:
            raise OSError(errno.EEXIST, name)
        made = self.nodes[self._next] = Node(self._next, mode)
        self._next += 1
        self._change({(parent, name): made.number})
        return made

    def link(self, number: int, parent: int, name: str) -> Node:
        """Another name. Raises: EEXIST."""
        if name in self.node(parent).names:
            raise OSError(errno.EEXIST, name)
        self.node(number).links += 1
        self._change({(parent, name): number})
        return self.nodes[number]

    def unlink(self, parent: int, name: str, *, directory: bool) -> None:
        """Raises: ENOENT, ENOTDIR, EISDIR, ENOTEMPTY."""
        found = self.find(parent, name)
        if found.is_directory != directory:
            raise OSError(errno.ENOTDIR if directory else errno.EISDIR, name)
        if found.names:
            raise OSError(errno.ENOTEMPTY, name)
        found.links -= 1
        self._change({(parent, name): None})

    def rename(self, parent: int, name: str, to: int, new: str) -> None:
        """Raises: ENOENT, ENOTEMPTY."""
        moved, replaced = self.find(parent, name), self.node(to).names.get(new)
        if replaced == moved.number:
            return
        if replaced is not None:
            if self.nodes[replaced].names:
                raise OSError(errno.ENOTEMPTY, new)
            self.nodes[replaced].links -= 1
        self._change({(parent, name): None, (to, new): moved.number})

    def read(self, number: int, offset: int, size: int) -> bytes:
        return bytes(self.node(number).data[offset : offset + size])

    def write(self, number: int, offset: int, data: bytes | memoryview) -> None:
        node, end = self.node(number), offset + len(data)
        self._remember(node, offset, end)
        if offset > len(node.data):
            node.data.extend(bytes(offset - len(node.data)))
        node.data[offset:end] = data
        node.time_ns = time.time_ns()

    def resize(self, number: int, size: int) -> None:
        node = self.node(number)
        self._remember(node, min(size, len(node.data)), max(size, len(node.data)))
        if size < len(node.data):
            del node.data[size:]
        else:
            node.data.extend(bytes(size - len(node.data)))
        node.time_ns = time.time_ns()

    def sync(self, number: int) -> None:
        """fsync or fdatasync of a file or directory. Raises: EIO when it is to fail; then the pages are lost."""
        node = self.node(number)
        self.syncs += 1
        if self.fail_syncs:
            self.fail_syncs -= 1
            node.doomed = node.before | node.doomed
            node.before = {}
            raise OSError(errno.EIO, "the disk failed")
        node.before, node.safe_size = {}, -1
        for each in list(self._of) if self._journal else [number] if node.is_directory else []:
            self._make_safe(each)
        if self._journal:
            self._changes.clear()

    def release(self, number: int) -> None:
        """Note that a descriptor is closed."""
        node = self.nodes.get(number)
        if node is not None:
            node.opens -= 1

    # --- the cut ----------------------------------------------------------------------------------------------------

    def cut(self, chance: random.Random, loss: Loss) -> int:
        """Cut the power. Returns: how many unsynced changes there were, of pages and of names."""
        unsynced = sum(map(len, self._of.values())) + sum(
            len(node.before) + len(node.doomed) for node in self.nodes.values()
        )
        for node in self.nodes.values():
            node.names = dict(node.safe_names)
        for change in self._surviving(chance, loss):
            for (directory, name), number in change.names.items():
                if number is None:
                    self.nodes[directory].names.pop(name, None)
                else:
                    self.nodes[directory].names[name] = number
        self._changes.clear()
        self._of.clear()
        self._unlinked.clear()
        for node in self.nodes.values():
            if node.safe_size >= 0 or node.doomed:
                _forget_pages(node, chance, loss)
            node.safe_names, node.opens, node.links = dict(node.names), 0, 0
        self._keep_reachable()
        return unsynced

    def _surviving(self, chance: random.Random, loss: Loss) -> list[_Change]:
        match loss:
            case Loss.ALL:
                return []
            case Loss.BYTES:
                return self._changes
            case Loss.SOME:
                return [change for change in self._changes if chance.random() < 0.5]
            case Loss.LATEST:
                return self._changes[: chance.randint(0, len(self._changes))]

    def _keep_reachable(self) -> None:
        reached, waiting = {1}, [1]
        while waiting:
            for number in self.nodes[waiting.pop()].names.values():
                self.nodes[number].links += 1
                if number not in reached:
                    reached.add(number)
                    waiting.append(number)
        self.nodes = {number: node for number, node in self.nodes.items() if number in reached}

    # --- pieces -----------------------------------------------------------------------------------------------------

    def _change(self, names: dict[tuple[int, str], int | None]) -> None:
        change = _Change(names)
        for (directory, name), number in names.items():
            node = self.nodes[directory]
            if number is None:
                self._unlinked.add(node.names.pop(name))
            else:
                self._unlinked.add(node.names.get(name, number))
                node.names[name] = number
            node.time_ns = time.time_ns()
            self._of.setdefault(directory, []).append(change)
        self._changes.append(change)
        if len(self._unlinked) > UNLINKED_MAX:
            self._let_go()

    def _make_safe(self, number: int) -> None:
        for change in self._of.pop(number, ()):
            for name in [name for name in change.names if name[0] == number]:
                del change.names[name]
        if number in self.nodes:
            self.nodes[number].safe_names = dict(self.nodes[number].names)

    def _let_go(self) -> None:
        """Free the nodes that have no name, now or after any cut, and are not open."""
        self._changes = [change for change in self._changes if change.names]
        held = {number for change in self._changes for number in change.names.values()}
        for node in self.nodes.values():
            held.update(node.safe_names.values())
        for number in self._unlinked:
            node = self.nodes[number]
            if node.links <= 0 and node.opens <= 0 and number not in held:
                del self.nodes[number]
        self._unlinked &= {number for number, node in self.nodes.items() if node.links <= 0}

    def _remember(self, node: Node, start: int, end: int) -> None:
        """Keep the content that the pages from `start` to `end` had at their last sync."""
        if node.safe_size < 0:
            node.safe_size = len(node.data)
        last = min(end, node.safe_size)
        for page in range(start // PAGE, -(-last // PAGE)):
            if page in node.doomed:
                node.before[page] = node.doomed.pop(page)
            elif page not in node.before:
                node.before[page] = bytes(node.data[page * PAGE : (page + 1) * PAGE])


def _forget_pages(node: Node, chance: random.Random, loss: Loss) -> None:
    now, safe_size = node.data, max(node.safe_size, 0) if node.safe_size >= 0 else len(node.data)
    size = safe_size
    if loss not in _BARE and len(now) != safe_size and chance.random() < 0.75:
        low, high = sorted((safe_size, len(now)))
        size = chance.choice((len(now), chance.randint(low, high)))
    kept = bytearray(now[:size].ljust(size, b"\0"))
    lost = dict(node.doomed)
    lost |= {page: old for page, old in node.before.items() if loss in _BARE or chance.random() < 0.5}
    for page, old in lost.items():
        kept[page * PAGE : page * PAGE + len(old)] = old
    for page in range(-(-safe_size // PAGE), -(-size // PAGE)):
        if chance.random() < 0.5:
            kept[page * PAGE : (page + 1) * PAGE] = bytes(min(PAGE, size - page * PAGE))
    node.data, node.before, node.doomed, node.safe_size = kept[:size], {}, {}, -1
