"""Any frame between a master and a follower may be lost, doubled or late: the follower acknowledges in the end.

Three engines in one process, wired directly.
"""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from chelonia.ahash.store import layout
from chelonia.ahash.store.bdb.replicated import ReplicatedStore
from chelonia.ahash.store.layout import StoreState
from chelonia.ahash.store.replicated_port import Flushed, MasterHere, MasterThere, Ready
from tests.support.ahash import SMALL
from tests.support.polling import poll
from tests.support.replicas import Wired

FRAMES = 10
"""A returning replica and its master exchange at least so many frames; each test spoils one."""


def put(engine: ReplicatedStore, sequence: int, value: bytes = b"v") -> None:
    state = layout.encode_state(StoreState(sequence, 0))
    engine.commit({b"k%06d" % sequence: value, layout.META_STATE: state}, [])


def acknowledged(wired: Wired, replica: int, after: int = 0) -> int:
    """The newest commit that a follower acknowledged."""
    return max((e.sequence for e in wired.seen[replica][after:] if isinstance(e, Flushed)), default=-1)


class Tampered(Wired):
    """Counts frames between replicas 1 and 3; number `at` is lost, doubled, or late."""

    def __init__(self, directory: Path) -> None:
        self.at, self.how, self.count = -1, "", 0
        self._late: list[threading.Timer] = []
        super().__init__(directory, SMALL)
        self.sent = self.tamper

    def tamper(self, sender: int, peer: int, control: bytes) -> bool:
        if {sender, peer} != {1, 3}:
            return True
        self.count += 1
        return self.count - 1 != self.at or self.how != "lost"

    def open(self, replica: int) -> ReplicatedStore:
        engine = super().open(replica)
        take = engine.process

        def process(sender: int, control: bytes, record: bytes) -> None:
            if self.count - 1 == self.at and {sender, replica} == {1, 3} and self.how == "late":
                self._late.append(threading.Timer(0.06, take, (sender, control, record)))
                self._late[-1].start()
                return
            take(sender, control, record)
            if self.count - 1 == self.at and {sender, replica} == {1, 3} and self.how == "twice":
                take(sender, control, record)

        engine.process = process  # type: ignore[method-assign]
        return engine

    def close_all(self) -> None:
        for timer in self._late:
            timer.join()
        super().close_all()


@pytest.fixture
def tampered(tmp_path: Path) -> Iterator[Tampered]:
    wired = Tampered(tmp_path)
    wired.engines[1].found()
    wired.wait(1, MasterHere)
    for replica in (2, 3):
        wired.wait(replica, Ready)
    yield wired
    wired.close_all()


@pytest.mark.parametrize("how", ["lost", "twice", "late"])
def test_who_comes_back_acknowledges_whatever_frame_is_tampered_with(tampered: Tampered, how: str) -> None:
    sequence = 0
    for at in range(FRAMES):
        tampered.close(3)
        for _ in range(3):
            sequence += 1
            put(tampered.engines[1], sequence)
        tampered.at, tampered.how, tampered.count = at, how, 0
        tampered.open(3)

        def caught_up() -> bool:
            nonlocal sequence
            if tampered.count > tampered.at:
                sequence += 1  # a group at work: whoever is ready acknowledges the next commit
                put(tampered.engines[1], sequence)
            return acknowledged(tampered, 3) >= sequence - 2

        poll(caught_up, what=f"replica 3 with frame {at} {how}")


def test_two_masters_of_one_generation_are_told_apart(tmp_path: Path) -> None:
    """A late winner of an election takes the generation of the election after its own: that of another master."""
    wired = Wired(tmp_path, SMALL)
    wired.cut = {2}
    wired.engines[1].found()
    wired.wait(3, Ready)
    put(wired.engines[1], 1)
    poll(lambda: acknowledged(wired, 3) == 1)
    wired.cut = {1}
    seen = len(wired.seen[3])
    wired.engines[2].found()
    assert wired.wait(2, MasterHere) == wired.wait(1, MasterHere) == MasterHere(1, StoreState(0, 0))
    wired.engines[3].peer_up(2)
    for sequence in (1, 2, 3):
        put(wired.engines[2], sequence, b"another")
    wired.wait(3, MasterThere, seen)
    poll(lambda: acknowledged(wired, 3, seen) == 3, what="what the other committed")
    told = [event for event in wired.seen[3][seen:] if isinstance(event, (MasterThere, Ready, Flushed))]
    assert told[0] == MasterThere(2, 1)
    assert isinstance(told[1], Ready)
    assert wired.engines[3].get(b"k000001") == b"another"
    wired.close_all()
