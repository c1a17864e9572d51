"""Files beside a Berkeley DB environment: the lock that gives it to one process, the commit counter, its owner.

The counter is a witness outside the log: a log that recovers to less has lost acknowledged commits.
Layouts: `docs/formats/store.md`.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn
from chelonia.durable_files import write_file


class CommitCounter:
    """The number of the last commit, kept outside the environment, to notice a log that lost its end.

    Two slots of 64 bytes, written in turn and in place, each one line: `chelonia-commits 1 <generation> <sequence>
    <CRC-32 of what stands before it>`. The larger valid one counts. Written after every commit, synced the first time
    and at checkpoints: after a power loss it may be behind, never ahead. A replica counts by term instead of generation
    (file `acked`), and keeps other numbers in others (`PeerNotes`). The file is mapped: noting a number is no system
    call, as it happens before every acknowledgement.
    """

    SLOT_BYTES: Final = 64
    SECTOR_BYTES: Final = 512

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._next = 0
        self.value: tuple[int, ...] = (0, 0)
        found = [parse_slot(os.pread(self._file, self.SECTOR_BYTES, n * self.SECTOR_BYTES)) for n in (0, 1)]
        size = os.fstat(self._file).st_size
        if size < 2 * self.SECTOR_BYTES:
            os.pwrite(self._file, bytes(2 * self.SECTOR_BYTES - size), size)
            self.sync()
        self._map = mmap.mmap(self._file, 2 * self.SECTOR_BYTES)
        for slot, value in enumerate(found):
            if value is not None and value >= self.value:
                self.value, self._next = value, 1 - slot

    def note(self, *numbers: int) -> None:
        """Write the number of a commit that is synced."""
        if numbers != self.value:
            slot, first = format_slot(*numbers), not any(self.value)
            start = self._next * self.SECTOR_BYTES
            self._map[start : start + len(slot)] = slot
            self.value, self._next = numbers, 1 - self._next
            if first:  # replicas without a witness do not vote: were it lost at all of them, there would be no master
                self.sync()

    def sync(self) -> None:
        """Put the counter on stable storage."""
        if self._file >= 0:
            os.fdatasync(self._file)

    def close(self) -> None:
        if self._file >= 0:
            self._map.close()
            os.close(self._file)
            self._file = -1


class PeerNotes:
    """Notes of a replica beside its log: `known`, `promised` and `acked`, in files of those names.

    Attributes:
        run: a number that no other process has.
        acked: the newest commit that it vouched for.
    """

    def __init__(self, directory: Path) -> None:
        self.run = int.from_bytes(os.urandom(4), "big") or 1
        self.acked = CommitCounter(directory / "acked")
        self._known = CommitCounter(directory / "known")
        self._promised = CommitCounter(directory / "promised")

    @property
    def known(self) -> tuple[int, ...]:
        return self._known.value if len(self._known.value) == 4 else (0, 0, 0, 0)

    def note_known(self, known: tuple[int, ...]) -> None:
        """See `LogNotes`: only a witness, so it is not synced at once."""
        self._known.note(*known)

    @property
    def promised_ms(self) -> int:
        return self._promised.value[1]

    def promise(self, lease_ms: int) -> None:
        self._promised.note(self._promised.value[0] + 1, lease_ms)
        self._promised.sync()

    def sync(self) -> None:
        """Put the witnesses on stable storage."""
        self.acked.sync()
        self._known.sync()

    def close(self) -> None:
        for counter in (self.acked, self._known, self._promised):
            counter.close()


def last_counted(path: Path) -> tuple[int, ...]:
    """Return the numbers of a counter without opening it for writing; (0, 0) when it has none."""
    slots = (path.read_bytes()[n * CommitCounter.SECTOR_BYTES :] for n in (0, 1))
    return max((value for value in map(parse_slot, slots) if value is not None), default=(0, 0))


def format_slot(*numbers: int) -> bytes:
    """Return one slot of the counter, padded with blanks to 64 bytes."""
    text = f"chelonia-commits 1 {' '.join(map(str, numbers))} "
    return f"{text}{zlib.crc32(text.encode()):08x}\n".encode().ljust(CommitCounter.SLOT_BYTES)


def parse_slot(data: bytes) -> tuple[int, ...] | None:
    """Return the numbers in the line of a slot; None when it is empty or damaged."""
    line = data.partition(b"\n")[0]
    words = line.split()[2:-1]
    if len(words) < 2 or not all(word.isdigit() for word in words):
        return None
    numbers = tuple(map(int, words))
    return numbers if format_slot(*numbers).rstrip() == line else None


def make_private(directory: Path) -> None:
    """Make a directory that only its owner may enter."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.chmod(0o700)


def take_lock(path: Path) -> int:
    """Lock the file until the descriptor returned is closed. Raises: UNAVAILABLE, naming the process that has it."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = os.pread(lock, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(lock)
        cause = f"process {owner} has this directory open: stop it, or give each A-Hash its own directory"
        raise CheloniaError(Kind.UNAVAILABLE, "ahash", str(path.parent), cause) from error
    os.pwrite(lock, f"{os.getpid():<31}\n".encode(), 0)
    return lock


def was_killed(path: Path) -> bool:
    """Return whether the last holder of this lock did not free it in order (`free_lock`)."""
    return path.exists() and path.stat().st_size > 0


def free_lock(lock: int, *, in_order: bool) -> None:
    """Free a lock. The next holder sees by `was_killed` whether it was `in_order`."""
    if in_order:
        os.ftruncate(lock, 0)
    os.close(lock)


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """The owner of a directory: replica, cluster and name."""

    replica: int
    cluster: str
    dn: Dn


def claim_directory(path: Path, own: PeerIdentity) -> None:
    """Write the owner of a directory to its file `path`, or check it. Raises: BAD_CONFIG for another replica's."""
    text = f"chelonia-replica 1\n{own.replica}\n{own.cluster}\n{own.dn}\n"
    try:
        found = path.read_text()
    except FileNotFoundError:
        write_file(path, text.encode(), 0o600)
        return
    if found != text:
        owner = ", ".join(found.splitlines()[1:])
        cause = (
            f"the directory belongs to replica {owner}, this is {own.replica}, {own.cluster}, {own.dn}:"
            f" point each replica at its own directory, or remove {path} if this replica was renamed"
        )
        raise CheloniaError(Kind.BAD_CONFIG, "ahash", str(path.parent), cause)


def read_lease(path: Path) -> int | None:
    """Return the longest time, in ms, of this replica's grants, written before the first; None: unreadable.

    0 without the file: earlier releases had the shortest leases there are.
    """
    try:
        words = path.read_text().split()
    except FileNotFoundError:
        return 0
    except UnicodeDecodeError:
        return None
    return int(words[2]) if words[:2] == ["chelonia-lease", "1"] and words[2:3] and words[2].isdecimal() else None


def write_lease(path: Path, lease_ms: int) -> None:
    """Write the longest time of this replica's grants from now on. Raises: OSError."""
    write_file(path, f"chelonia-lease 1 {lease_ms}\n".encode(), 0o600)
