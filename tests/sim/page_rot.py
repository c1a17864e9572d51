"""Rot in the pages of an A-Hash replica.

Its engine panics when it comes to a rotten page, as Berkeley DB does. The files are then given up and filled by the
others (`chelonia.ahash.store.bdb.damaged`, docs/design/003 and 009).

A page is a run of keys. A page in the cache is read as it was until the process ends, and is mended when it is written.
Any other panics its reader or writer, the replication thread too. A start reads the pages that the end of the log
changes, and after a panic all pages. The end of a log may rot as well: recovery then stops there.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chelonia.core.errors import CheloniaError, Kind

if TYPE_CHECKING:
    from tests.sim.ahash_group import SimReplica
    from tests.sim.replication_engine import Disk, Record
    from tests.sim.world import World

PAGE_KEYS_MAX = 12
CACHED = 0.2
"""The share of damaged pages that the process has in its cache."""
IN_OBJECTS = 0.8
"""The share of rotten pages that hold users' entries and Shepherds' reports, not outcomes of requests: those are most
keys."""
_OBJECTS = (b"H\0", b"W\0")
OF_LOGS = 0.15
"""The share of rot that is in the end of the log."""
END_RECORDS = 20
"""So many records of the log may not be in the pages on the disk yet: a start reads the pages that they change."""
FILLED_WITHIN_MS = 200_000
ENDS_WITHIN_S = 2.0
"""A process whose engine has panicked ends within this time, unless it is frozen."""


class EnginePanicked(CheloniaError):
    """The engine came to a damaged page: only a new process can go on."""

    def __init__(self) -> None:
        super().__init__(Kind.UNAVAILABLE, "ahash", "store", "the engine panicked; the process restarts: retry")


@dataclass(slots=True, frozen=True)
class RottenPage:
    """The keys from `low` to before `high` cannot be read from the disk."""

    low: bytes
    high: bytes
    cached: bool

    def meets(self, start: bytes, end: bytes) -> bool:
        """Whether it has any key from `start` to `end`, this one included."""
        return self.low <= end and start < self.high


def spoil(disk: Disk, keys: list[bytes], rng: random.Random) -> str:
    """Damage a page of a running replica, or the end of its log. Returns: the kind of damage."""
    if rng.random() < OF_LOGS:
        disk.ends_at = max(1, len(disk.log) - rng.randint(1, END_RECORDS))
        return f"log from {disk.ends_at} of {len(disk.log)}"
    objects = [number for number, key in enumerate(keys) if key.startswith(_OBJECTS)]
    first = rng.choice(objects) if objects and rng.random() < IN_OBJECTS else rng.randrange(len(keys))
    after = first + rng.randint(1, PAGE_KEYS_MAX)
    high = keys[after] if after < len(keys) else b"\xff"
    page = RottenPage(keys[first], high, rng.random() < CACHED)
    disk.rot.append(page)
    return f"{page.low!r} cached={page.cached}"


def reaches(disk: Disk, start: bytes, end: bytes) -> RottenPage | None:
    """The page that a read of these keys panics at."""
    return next((page for page in disk.rot if not page.cached and page.meets(start, end)), None)


def write(disk: Disk, keys: Iterable[bytes]) -> None:
    """Write these keys: cached pages go to the disk whole. Raises: EnginePanicked."""
    for key in keys:
        if reaches(disk, key, key):
            raise EnginePanicked
        disk.rot = [page for page in disk.rot if not page.meets(key, key)]


def start(disk: Disk) -> tuple[Disk, str]:
    """Start a new process on a disk. Returns: its disk, an empty one where the store was given up, and the damage
    found."""
    wrong = ""
    if 0 < disk.ends_at < len(disk.log):
        wrong = f"its log ends at {disk.ends_at} instead of {len(disk.log)}"
        del disk.log[disk.ends_at :]
        disk.synced = min(disk.synced, disk.ends_at)
    disk.ends_at = 0
    disk.rot = [RottenPage(page.low, page.high, cached=False) for page in disk.rot]
    if disk.rot and (disk.suspect or any(reaches(disk, key, key) for key in _changed(disk.log[-END_RECORDS:]))):
        return given_up(disk), "a page is damaged"
    disk.suspect = False
    return disk, wrong


def must_have_ended(replica: SimReplica) -> None:
    """Check that a process whose engine panicked has ended."""
    if not replica.node.over(replica.context) and not replica.node.frozen:
        replica.world.unexpected(replica.node.name, AssertionError("it goes on with an engine that has panicked"))


def given_up(disk: Disk) -> Disk:
    """An empty store beside the notes of the old one."""
    return type(disk)(whole=False, witness=disk.witness, known=disk.known, promised_ms=disk.promised_ms)


def _changed(records: Iterable[Record]) -> Iterable[bytes]:
    for record in records:
        for puts, deletes, _ in record.ops:
            yield from puts  # type: ignore[misc]
            yield from deletes  # type: ignore[misc]


async def scrubbed(world: World) -> str:
    """Replace, one after the other, the replicas whose scrub has reported damage, as an administrator does. Returns:
    the faults after it; every replica has to hold all records."""
    group = world.group
    assert group is not None
    for host in [host for host in world.hosts if host.replica]:
        if group.places[host.replica].disk.rot:
            world.note(f"SCRUBBED {host.node.name}")
            await world.crash_host(host)
            group.places[host.replica].disk.suspect = True
            await world.restart_host(host)
        since_ms = world.clock.monotonic_ms()
        while left := _lacks(world, host.replica):
            if world.clock.monotonic_ms() - since_ms > FILLED_WITHIN_MS:
                return f"{host.node.name} {left}"
            await world.clock.sleep(500)
    return ""


def _lacks(world: World, own: int) -> str:
    group = world.group
    assert group is not None
    group.look_all()
    place = group.places[own]
    if place.mastership is None or place.engine is None or not place.mastership.replica.trusted:
        return "does not take part again"
    held, decided = place.engine.contents(), world.store.contents()
    return "" if held == decided else f"differs in {sorted(held.items() ^ decided.items())[:2]}"
