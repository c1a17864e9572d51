"""The times of a follower's announcements: at once after a change, then less and less often."""

from pathlib import Path

from chelonia.ahash.store.bdb.frames import FrameKind, frame_kind
from chelonia.ahash.store.bdb.sync_progress import ANNOUNCE_MS, ANNOUNCE_MS_MAX, ANNOUNCED_MS, Announcements
from chelonia.ahash.store.replicated_port import Ready
from tests.support.ahash import SMALL
from tests.support.polling import poll
from tests.support.replicas import Wired


def due_ms(announcements: Announcements, since_ms: int, until_ms: int, *, ready: bool) -> list[int]:
    """The times of its announcements, with looks as often as the replication thread's where no frame comes."""
    asked = range(since_ms, until_ms, ANNOUNCE_MS)
    return [now_ms - since_ms for now_ms in asked if announcements.are_due(now_ms, ready=ready)]


def test_who_is_not_synchronised_announces_itself_less_and_less_often() -> None:
    announcements = Announcements()
    found = due_ms(announcements, 0, 10_000, ready=False)
    assert found[:6] == [0, 100, 300, 700, 1500, 3100]
    assert found[6] - found[5] == found[7] - found[6] == ANNOUNCE_MS_MAX, "but it never ceases to"
    announcements.connected(10_000, ready=False)
    assert len(due_ms(announcements, 10_000, 13_000, ready=False)) <= 2, "who is asked for more does not begin anew"


def test_another_master_is_told_at_once() -> None:
    announcements = Announcements()
    due_ms(announcements, 0, 10_000, ready=False)
    announcements.begin_anew()
    assert due_ms(announcements, 10_000, 10_500, ready=False) == [0, 100, 300]


def test_who_is_synchronised_announces_itself_while_a_connection_is_new() -> None:
    announcements = Announcements()
    assert due_ms(announcements, 0, 1000, ready=True) == []
    for since_ms in (1000, 20_000):
        announcements.connected(since_ms, ready=True)
        found = due_ms(announcements, since_ms, since_ms + 10_000, ready=True)
        assert found[:4] == [0, 100, 300, 700]
        assert found[-1] < ANNOUNCED_MS


def test_a_replica_begins_anew_with_each_master_and_once_it_is_synchronised(tmp_path: Path) -> None:
    """Frames from the time of rare announcements may be lost: a new connection counts as new for a second."""
    wired, begun = Wired(tmp_path, SMALL), list[bool]()
    engine = wired.engines[3]

    class Noted(Announcements):
        def begin_anew(self) -> None:
            begun.append(engine._ready)

    engine._announcements = Noted()
    wired.engines[1].found()
    wired.wait(3, Ready)
    wired.close_all()
    assert {*begun} == {False, True}


def test_an_announcement_is_answered_and_passed_on_to_nobody(tmp_path: Path) -> None:
    wired, kinds = Wired(tmp_path, SMALL), list[int]()

    def note(sender: int, peer: int, control: bytes) -> bool:
        kinds.append(frame_kind(control))
        return True

    wired.engines[1].found()
    for replica in (2, 3):
        wired.wait(replica, Ready)
    wired.sent = note
    wired.engines[3].peer_up(1)
    poll(lambda: {FrameKind.NEWCLIENT, FrameKind.NEWMASTER} <= set(kinds), what="the master answers")
    wired.close_all()
    assert FrameKind.NEWSITE not in kinds
