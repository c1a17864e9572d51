"""The A-Hash's directories after a power cut, on a file system that forgets unsynced data.

The library does not sync the directory of a new log or tree. It assumes a file system with a journal, as ext4 and xfs
have, where the sync of a file saves its name too.
"""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chelonia.ahash.store import layout
from chelonia.ahash.store.bdb.files import last_counted
from chelonia.ahash.store.bdb.replicated import ReplicatedStore
from chelonia.ahash.store.bdb.store import BdbStore
from chelonia.ahash.store.layout import StoreState
from chelonia.ahash.store.replicated_port import Event, Flushed, MasterHere, Ready, SyncedCommit
from tests.support.ahash import SMALL, no_panic
from tests.support.forgetful import Loss
from tests.support.polling import poll
from tests.support.power import PowerDisk, powered
from tests.support.replicas import Wired
from tests.unit.ahash.store.bdb.test_replicated import vote_for_each_other

SEEDS = range(2)
COMMITS = 2
CUTS = 4


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[PowerDisk]:
    with powered(tmp_path / "disk", journal=True) as made:
        yield made


@pytest.fixture
def group(disk: PowerDisk) -> Iterator[Wired]:
    wired = Wired(disk.point, SMALL)
    try:
        wired.engines[1].found()
        wired.wait(1, MasterHere)
        for replica in (2, 3):
            wired.wait(replica, Ready)
        yield wired
    finally:
        wired.close_all()


def put(engine: ReplicatedStore, sequence: int) -> None:
    state = layout.encode_state(StoreState(sequence, 0))
    engine.commit({b"k%06d" % sequence: b"v", layout.META_STATE: state}, [])


def put_late(engine: ReplicatedStore, sequence: int) -> None:
    """Commit as the event loop does brief changes: one sync for all of them, before any is reported."""
    engine._commits.synced_later(lambda: put(engine, sequence))
    engine.sync()


def images(disk: PowerDisk, target: Path) -> Iterator[Path]:
    """The disk after each kind of cut now."""
    target.mkdir()
    for loss in Loss:
        for seed in SEEDS if loss in (Loss.SOME, Loss.LATEST) else (0,):
            yield disk.image(target / f"{loss.value}{seed}", seed, loss)


def alone(directory: Path) -> BdbStore:
    """A replica's directory as a store of its own, to read its contents."""
    (directory / "replica").unlink(missing_ok=True)
    return BdbStore(directory, SMALL, no_panic)


def test_a_store_alone_has_what_it_has_committed(disk: PowerDisk, tmp_path: Path) -> None:
    store = BdbStore(disk.point / "a", SMALL, no_panic)
    try:
        for turn in range(COMMITS):
            store.commit({b"k%d" % turn: b"v" * 3000}, [])
            for image in images(disk, tmp_path / f"images{turn}"):
                again = BdbStore(image / "a", SMALL, no_panic)
                assert [again.get(b"k%d" % each) for each in range(turn + 1)] == [b"v" * 3000] * (turn + 1)
                again.close()
    finally:
        store.close()


def test_a_store_recovers_from_a_cut_in_the_middle_of_a_checkpoint(disk: PowerDisk, tmp_path: Path) -> None:
    """Any of the pages that it overwrites may be there. One written by half could not be recovered."""
    store = BdbStore(disk.point / "a", SMALL, no_panic)
    taken: list[Path] = []
    try:
        for value in (b"old", b"new"):
            store.commit({b"k%06d" % each: value * 50 for each in range(5000)}, [])
            writing = threading.Thread(target=store.upkeep)
            writing.start()
            while writing.is_alive() and value == b"new" and len(taken) < CUTS:
                taken.append(disk.image(tmp_path / f"image{len(taken)}", len(taken), Loss.SOME))
            writing.join()
    finally:
        store.close()
    assert taken
    for image in taken:
        again = BdbStore(image / "a", SMALL, no_panic)
        assert again.get_many([b"k%06d" % each for each in range(5000)]) == [b"new" * 50] * 5000
        again.close()


class Vouching:
    """Takes an image at the moment at which a replica acknowledges a commit as on its disk."""

    def __init__(self, disk: PowerDisk, target: Path, kind: type[Event]) -> None:
        self._disk = disk
        self._target = target
        self._kind = kind
        self.taken: list[tuple[int, list[Path]]] = []

    def heard(self, post: Any) -> Any:
        def posted(event: Event) -> None:
            if isinstance(event, self._kind):
                sequence = int(event.sequence)  # type: ignore[attr-defined]
                if len(self.taken) < COMMITS and sequence:
                    self.taken.append((sequence, list(images(self._disk, self._target / str(len(self.taken))))))
            post(event)

        return posted


@pytest.mark.parametrize(
    ("replica", "kind", "commit"), [(1, SyncedCommit, put), (1, SyncedCommit, put_late), (2, Flushed, put)]
)
def test_a_replica_has_what_it_vouches_for(
    group: Wired,
    disk: PowerDisk,
    tmp_path: Path,
    replica: int,
    kind: type[Event],
    commit: Callable[[ReplicatedStore, int], None],
) -> None:
    (tmp_path / "images").mkdir()
    vouching = Vouching(disk, tmp_path / "images", kind)
    engine = group.engines[replica]
    engine._post = vouching.heard(engine._post)  # type: ignore[method-assign]
    for sequence in range(1, COMMITS + 1):
        commit(group.engines[1], sequence)
    poll(lambda: vouching.taken and vouching.taken[-1][0] == COMMITS, 60, what="the last is vouched for")
    for sequence, left in vouching.taken:
        for image in left:
            store = alone(image / str(replica))
            assert [store.get(b"k%06d" % each) for each in range(1, sequence + 1)] == [b"v"] * sequence
            store.close()
            assert (0, 0) < last_counted(image / str(replica) / "acked") <= (2**63, sequence)


def test_a_whole_group_that_loses_its_power_has_a_master_again(group: Wired, disk: PowerDisk, tmp_path: Path) -> None:
    """It holds before the first checkpoint too. A replica that does not know its own acknowledgements has no vote."""
    put(group.engines[1], 1)
    poll(lambda: all(any(isinstance(e, Flushed) and e.sequence for e in group.seen[n]) for n in (2, 3)), 30)
    image = disk.image(tmp_path / "image")
    again = Wired(image, SMALL)
    try:
        assert vote_for_each_other(again, 1, 2, 3)
    finally:
        again.close_all()
