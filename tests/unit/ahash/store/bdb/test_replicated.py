"""The replicated engine: three in one process, wired directly. Links and protocol have tests of their own."""

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from berkeleydb import db as bdb

from chelonia.ahash.store import layout, meta
from chelonia.ahash.store.bdb import work as store_bdb_work
from chelonia.ahash.store.bdb.environment import PAGE_BYTES, BdbSettings
from chelonia.ahash.store.bdb.files import CommitCounter, PeerIdentity, last_counted
from chelonia.ahash.store.bdb.frames import FrameKind, frame_kind
from chelonia.ahash.store.bdb.page_files import LogFiles
from chelonia.ahash.store.bdb.replicated import ReplicatedStore
from chelonia.ahash.store.bdb.store import BdbStore
from chelonia.ahash.store.layout import StoreState
from chelonia.ahash.store.replicated_port import (
    Demoted,
    ElectionFailed,
    Failed,
    Flushed,
    LogPosition,
    MasterHere,
    MasterThere,
    Ready,
    SyncedCommit,
    WantElection,
)
from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn
from tests.support.ahash import SMALL, no_panic
from tests.support.failing import fails
from tests.support.polling import poll
from tests.support.replicas import Wired


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Wired]:
    wired = Wired(tmp_path, SMALL)
    wired.engines[1].found()
    wired.wait(1, MasterHere)
    for replica in (2, 3):
        wired.wait(replica, Ready)
    yield wired
    wired.close_all()


def put(engine: ReplicatedStore, sequence: int, value: bytes = b"v") -> None:
    state = layout.encode_state(StoreState(sequence, 0))
    engine.commit({b"k%06d" % sequence: value, layout.META_STATE: state}, [])


def last_token(wired: Wired, replica: int) -> LogPosition:
    kinds = (SyncedCommit, Flushed)
    return next(event.token for event in reversed(wired.seen[replica]) if isinstance(event, kinds))


def sequence_at(engine: ReplicatedStore) -> int:
    """The replica's sequence; -1: it is being synchronised and cannot be read."""
    try:
        data = engine.get(layout.META_STATE)
    except CheloniaError as error:
        if error.kind is not Kind.UNAVAILABLE:
            raise
        return -1
    return 0 if data is None else layout.decode_state(data).sequence


def caught_up(wired: Wired, sequence: int) -> None:
    poll(lambda: all(sequence_at(engine) == sequence for engine in wired.engines.values()), what=f"commit {sequence}")


def vote_for_each_other(wired: Wired, *replicas: int) -> int:
    """Hold an election among these; returns the winner, when it has won."""
    before = {replica: len(wired.seen[replica]) for replica in replicas}
    tries = dict.fromkeys(replicas, 0)
    for replica in replicas:
        wired.engines[replica].elect(len(replicas), len(replicas), 200, 100)

    def winner() -> int:
        for replica in replicas:
            if any(isinstance(event, MasterHere) for event in wired.seen[replica][before[replica] :]):
                return replica
            if any(isinstance(event, ElectionFailed) for event in wired.seen[replica][before[replica] :]):
                before[replica] = len(wired.seen[replica])
                tries[replica] += 1  # ever longer: elections that are out of step end each other at once
                wired.engines[replica].elect(len(replicas), len(replicas), 200 + 100 * tries[replica], 100)
        return 0

    return poll(winner, 30, what="a winner")  # on a busy machine an election is held again and again


# --- replication -----------------------------------------------------------------------------------------------------


def test_followers_vouch_for_what_the_master_committed(group: Wired) -> None:
    for sequence in range(1, 101):
        put(group.engines[1], sequence)
    caught_up(group, 100)
    here = poll(lambda: (e := [event for event in group.seen[1] if isinstance(event, SyncedCommit)])[99:] and e)
    assert [event.sequence for event in here] == list(range(1, 101))
    assert [event.token for event in here] == sorted({event.token for event in here})
    for replica in (2, 3):
        poll(lambda replica=replica: last_token(group, replica) == here[-1].token, what="everything vouched for")
        told = [event.token for event in group.seen[replica] if isinstance(event, Flushed)]
        assert told == sorted(set(told))


def followed_at_once(group: Wired, count: int = 20) -> int:
    """Make some commits that all follow; returns how many of them replica 2 had when they were made."""
    found = 0
    for sequence in range(1, count + 1):
        put(group.engines[1], sequence)
        found += group.engines[2].applied() == sequence
        caught_up(group, sequence)
    return found


def test_a_brief_commit_is_followed_by_whoever_brings_it(group: Wired, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_bdb_work, "BRIEF_S", 10.0)
    monkeypatch.setattr(store_bdb_work, "REST_FACTOR", 0.0)
    assert followed_at_once(group) > 10, "now and then the thread is at work"
    here = poll(lambda: [event for event in group.seen[1] if isinstance(event, SyncedCommit)][19:])
    poll(lambda: last_token(group, 2) == here[0].token, what="everything vouched for")


def test_a_brief_commit_waits_for_no_reader_where_it_is_brought(group: Wired, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_bdb_work, "BRIEF_S", 10.0)
    monkeypatch.setattr(store_bdb_work, "REST_FACTOR", 0.0)
    followed_at_once(group)
    with group.engines[2].reading():
        put(group.engines[1], 21)
        assert group.engines[2].applied() == 20
    caught_up(group, 21)


def test_commits_that_come_one_upon_the_other_are_synced_together(
    group: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_bdb_work, "BRIEF_S", 10.0)
    engine, backlog, count = group.engines[2], list[tuple[int, bytes, bytes]](), 50
    with monkeypatch.context() as patch:
        patch.setattr(engine, "process", lambda *frame: backlog.append(frame))
        for sequence in range(1, count + 1):
            put(group.engines[1], sequence)
    seen = len(group.seen[2])
    for frame in backlog:
        engine.process(*frame)
    caught_up(group, count)
    assert 1 <= sum(isinstance(event, Flushed) for event in group.seen[2][seen:]) < count / 2


def test_who_cannot_go_on_follows_nothing_any_more(group: Wired, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_bdb_work, "BRIEF_S", 10.0)
    engine, applied = group.engines[2], list[Any]()

    def fail() -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(engine, "_look_after_logs", fail)
    group.wait(2, Failed)
    monkeypatch.setattr(engine, "_apply", applied.append)
    put(group.engines[1], 1)
    assert not applied


def test_on_a_slow_disk_commits_are_followed_by_the_thread(group: Wired, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_bdb_work, "BRIEF_S", 0.0)
    monkeypatch.setattr(store_bdb_work, "DOUBT_FACTOR", 1e6)
    put(group.engines[1], 1)
    caught_up(group, 1)
    followed: list[str] = []
    apply = group.engines[2]._apply

    def note(frame: Any) -> tuple[Any, Any]:
        followed.append(threading.current_thread().name)
        return apply(frame)

    monkeypatch.setattr(group.engines[2], "_apply", note)
    put(group.engines[1], 2)
    caught_up(group, 2)
    assert set(followed) == {"ahash-replication"}


def test_what_a_commit_writes_to_the_log_travels_as_one_frame(group: Wired) -> None:
    put(group.engines[1], 1)
    caught_up(group, 1)
    frames: list[tuple[int, int]] = []

    def note(sender: int, peer: int, control: bytes) -> bool:
        if sender == 1 and frame_kind(control) in (FrameKind.BULK_LOG, FrameKind.LOG):
            frames.append((peer, frame_kind(control)))
        return True

    group.sent = note
    puts = {b"many%03d" % n: b"x" * 100 for n in range(100)}
    group.engines[1].commit(puts | {layout.META_STATE: layout.encode_state(StoreState(2, 0))}, [])
    caught_up(group, 2)
    assert frames == [(2, FrameKind.BULK_LOG), (3, FrameKind.BULK_LOG)]
    assert group.engines[3].get_many(sorted(puts)) == [b"x" * 100] * 100


def test_a_large_commit_leaves_while_it_is_written(group: Wired) -> None:
    sizes: list[int] = []
    process = group.engines[2].process

    def note(sender: int, control: bytes, record: bytes) -> None:
        sizes.append(len(record))
        process(sender, control, record)

    group.engines[2].process = note  # type: ignore[method-assign]
    put(group.engines[1], 1, b"x" * 4 * bounds.REPLICA_BUNDLE_BYTES)
    caught_up(group, 1)
    assert max(sizes) < 2 * bounds.REPLICA_BUNDLE_BYTES
    assert sum(sizes) > 4 * bounds.REPLICA_BUNDLE_BYTES


def test_the_membership_record_comes_with_what_is_told(group: Wired) -> None:
    put(group.engines[1], 1)
    caught_up(group, 1)
    state = layout.encode_state(StoreState(2, 0))
    records = {layout.META_MEMBERS: b"another", layout.META_TERM: b"mark", layout.META_STATE: state}
    group.engines[1].commit(records, [])

    def told() -> dict[int, bytes | None]:
        return {event.sequence: event.members for event in group.seen[2] if isinstance(event, Flushed)}

    assert poll(lambda: 2 in told() and told()) | {0: None} == {0: None, 1: None, 2: b"another"}
    group.engines[1].step_down()
    assert group.wait(1, Demoted) == Demoted(b"another")
    group.engines[2].found()
    assert group.wait(2, MasterHere) == MasterHere(2, StoreState(2, 0), b"mark", b"another")
    assert group.wait(1, Ready) == Ready(b"another")


def test_a_follower_takes_no_commit(group: Wired) -> None:
    with fails(Kind.UNAVAILABLE):
        put(group.engines[2], 1)


def test_a_commit_for_another_term_is_refused(group: Wired) -> None:
    engine = group.engines[1]
    with fails(Kind.UNAVAILABLE):
        engine.commit({b"k": b"v"}, [], 2)
    engine.commit({b"k": b"v"}, [], 1)
    assert engine.get(b"k") == b"v"


def test_the_longer_log_wins_and_the_term_rises(group: Wired) -> None:
    put(group.engines[1], 1)
    caught_up(group, 1)
    group.cut = {3}
    put(group.engines[1], 2)
    poll(lambda: sequence_at(group.engines[2]) == 2)
    group.close(1)
    group.cut = set()
    assert vote_for_each_other(group, 2, 3) == 2
    put(group.engines[2], 3)
    caught_up(group, 3)
    poll(lambda: last_token(group, 2).term == last_token(group, 3).term > 1)
    assert MasterThere(2, last_token(group, 3).term) in group.seen[3]


def test_a_master_that_returns_follows_and_what_it_alone_had_is_gone(group: Wired) -> None:
    put(group.engines[1], 1)
    caught_up(group, 1)
    group.cut = {1}
    put(group.engines[1], 2, b"alone")
    winner = vote_for_each_other(group, 2, 3)
    put(group.engines[winner], 2, b"together")
    group.cut = set()
    group.engines[1].step_down()
    group.wait(1, Demoted)
    group.engines[1].peer_up(winner)
    group.wait(1, Ready)
    poll(lambda: group.engines[1].get(b"k000002") == b"together", what="the group's commit in the place of its own")
    poll(lambda: last_token(group, 1) == last_token(group, winner), what="it vouches in the new term")


def test_of_two_masters_the_older_gives_way(group: Wired) -> None:
    group.cut = {1}
    newer = vote_for_each_other(group, 2, 3)
    group.cut = set()
    for replica in (2, 3):
        group.engines[replica].peer_up(1)
    group.engines[1].peer_up(newer)
    put(group.engines[newer], 1)
    group.wait(1, Demoted)
    group.wait(1, WantElection)
    group.wait(1, Ready)
    caught_up(group, 1)
    assert not any(isinstance(event, Demoted) for event in group.seen[newer])


@pytest.mark.expect_log("WARNING .*frames of replica 2 wait")
def test_frames_that_are_not_taken_are_dropped_beyond_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(bounds, "REPLICA_FRAME_BYTES_QUEUED_MAX", 3_000_000)
    engine = ReplicatedStore(tmp_path / "a", SMALL, identity())
    for _ in range(10):
        engine.process(2, bytes(36), bytes(1_000_000))
    assert len(engine._work) == 3
    assert sum("frames of replica 2 wait" in line for line in caplog.messages) == 1, "one line for all of them"
    engine.close()


# --- elections -------------------------------------------------------------------------------------------------------


def test_who_gave_up_its_office_is_not_elected_among_equals(group: Wired) -> None:
    """Berkeley DB decides between equal logs by chance: a master that hands over would win again and again."""
    master = 1
    for sequence in range(1, 7):
        put(group.engines[master], sequence)
        caught_up(group, sequence)
        seen = len(group.seen[master])
        group.engines[master].step_down()
        group.wait(master, Demoted, seen)
        other = 2 if master == 1 else 1
        assert vote_for_each_other(group, master, other) == other
        master = other


def test_an_election_won_too_long_ago_is_void(group: Wired) -> None:
    group.close(1)
    for replica in (2, 3):
        group.engines[replica].elect(2, 2, -1, 100)
    failures = [group.wait(replica, ElectionFailed) for replica in (2, 3)]
    assert any("too late" in str(failure) for failure in failures)
    assert not any(isinstance(event, MasterHere) for replica in (2, 3) for event in group.seen[replica])
    vote_for_each_other(group, 2, 3)


def test_an_election_that_meets_a_newer_one_ends_at_once(group: Wired) -> None:
    group.close(1)
    group.sent = lambda sender, peer, control: 2 not in (sender, peer)
    for _ in range(2):
        seen = len(group.seen[3])
        group.engines[3].elect(2, 2, 200, 100)
        group.wait(3, ElectionFailed, seen)
    sent = list[tuple[int, int]]()
    group.sent = lambda sender, peer, control: sent.append((sender, frame_kind(control))) is None
    group.engines[2].elect(2, 2, 3000, 1500)
    poll(lambda: (2, FrameKind.VOTE1) in sent, what="the older election")
    group.engines[3].elect(2, 2, 3000, 1500)
    assert group.wait(2, ElectionFailed) == ElectionFailed("a newer election is held", newer=True)
    vote_for_each_other(group, 2, 3)


def test_who_has_no_vote_holds_no_election(group: Wired) -> None:
    group.engines[2].set_voter(False)
    group.engines[2].elect(2, 2, 200, 100)
    assert group.wait(2, ElectionFailed) == ElectionFailed("this replica has no vote")


# --- trust -----------------------------------------------------------------------------------------------------------


def identity(replica: int = 1, dn: str = "/CN=1") -> PeerIdentity:
    return PeerIdentity(replica, "test", Dn(dn))


@pytest.mark.parametrize("other", [identity(2), identity(dn="/CN=2"), PeerIdentity(1, "other", Dn("/CN=1"))])
def test_the_directory_of_another_replica_is_refused(tmp_path: Path, other: PeerIdentity) -> None:
    ReplicatedStore(tmp_path / "a", SMALL, identity()).close()
    with fails(Kind.BAD_CONFIG, match="belongs to replica 1, test, /CN=1"):
        ReplicatedStore(tmp_path / "a", SMALL, other)
    ReplicatedStore(tmp_path / "a", SMALL, identity()).close()


def test_an_empty_directory_is_trusted_only_when_synchronised(group: Wired, tmp_path: Path) -> None:
    put(group.engines[1], 1)
    caught_up(group, 1)
    group.close(2)
    shutil.rmtree(tmp_path / "2")
    group.cut = {2}
    engine = group.open(2)
    assert not engine.trusted()
    engine.elect(2, 2, 200, 100)
    assert "until it is synchronised" in str(group.wait(2, ElectionFailed))
    group.cut = set()
    engine.peer_up(1)
    group.wait(2, Ready)
    assert engine.trusted()
    assert engine.get(b"k000001") == b"v"


@pytest.mark.expect_log("replica 2 recovered commit 1, but vouched for 9")
def test_what_recovers_to_less_than_it_vouched_for_is_not_trusted(group: Wired, tmp_path: Path) -> None:
    put(group.engines[1], 1)
    caught_up(group, 1)
    group.close(2)
    witness = CommitCounter(tmp_path / "2" / "acked")
    witness.note(1, 9)
    witness.close()
    group.cut = {2}
    engine = group.open(2)
    assert not engine.trusted()
    group.cut = set()
    engine.peer_up(1)
    group.wait(2, Ready)
    assert engine.trusted()
    for sequence in range(2, 10):
        put(group.engines[1], sequence)
    caught_up(group, 9)
    group.close(2)
    assert group.open(2).trusted()


def test_a_replica_that_was_only_restarted_is_trusted(group: Wired) -> None:
    put(group.engines[1], 1)
    caught_up(group, 1)
    group.close(3)
    group.cut = {3}
    assert group.open(3).trusted()


def test_losing_the_master_within_the_first_synchronisation_costs_no_process(group: Wired) -> None:
    put(group.engines[1], 1)
    caught_up(group, 1)
    group.close(3)
    group.sent = lambda sender, peer, control: peer != 3 or frame_kind(control) != FrameKind.UPDATE
    engine = group.open(3)
    engine.set_voter(True)
    poll(lambda: engine._initialising, what="it asks for a copy")
    group.close(1)
    group.sent = lambda sender, peer, control: True
    winner = vote_for_each_other(group, 2, 3)
    put(group.engines[winner], 2)
    caught_up(group, 2)
    assert not any(isinstance(event, Failed) for event in group.seen[3])
    group.close(3)
    assert group.open(3).trusted()


# --- damage ----------------------------------------------------------------------------------------------------------


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


def damage_the_log(database: Path) -> None:
    flip(min(database.glob("log.*")), 200)


def damage_a_page(database: Path) -> None:
    for page in range(1, (database / "store.db").stat().st_size // PAGE_BYTES):
        flip(database / "store.db", page * PAGE_BYTES + 4000)


@pytest.mark.parametrize("damage", [damage_the_log, damage_a_page])
def test_damaged_files_are_refused_with_the_way_back(
    group: Wired, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    for sequence in range(1, 30):
        put(group.engines[1], sequence, b"x" * 9000)
    caught_up(group, 29)
    group.close(3)
    damage(tmp_path / "3" / "db")
    with fails(Kind.INTERNAL, match="start this replica on an empty directory") as refused:
        group.open(3)
    assert str(tmp_path / "3") in refused.value.subject
    shutil.rmtree(tmp_path / "3")
    group.open(3)
    caught_up(group, 29)


def test_a_page_damaged_while_it_runs_is_not_served_and_not_lived_with(group: Wired, tmp_path: Path) -> None:
    """Recovery reads only pages that the log changes: alone it would let the replica in again, to panic again."""
    old = {b"old%04d" % n: b"x" * 500 for n in range(500)}
    group.engines[1].commit(old | {layout.META_STATE: layout.encode_state(StoreState(1, 0))}, [])
    caught_up(group, 1)
    group.engines[1].upkeep()
    put(group.engines[1], 2)
    caught_up(group, 2)
    group.close(3)
    engine = group.open(3)  # nothing is in its cache now
    group.wait(3, Ready)
    pages = tmp_path / "3" / "db" / "store.db"
    flip(pages, pages.read_bytes().index(b"old0250"))
    assert engine.get(b"old0000") == b"x" * 500
    with pytest.raises(CheloniaError, match="panicked"):
        engine.get(b"old0250")
    assert isinstance(group.wait(3, Failed), Failed)
    group.close(3)
    for _ in range(2):
        with pytest.raises(CheloniaError, match="start this replica on an empty directory"):
            group.open(3)
    shutil.rmtree(tmp_path / "3")
    group.open(3)
    caught_up(group, 2)


def test_who_panicked_over_good_pages_takes_part_again(group: Wired, tmp_path: Path) -> None:
    put(group.engines[1], 1)
    caught_up(group, 1)
    group.close(3)
    (tmp_path / "3" / "suspect").touch()
    assert group.open(3).trusted()
    assert not (tmp_path / "3" / "suspect").exists()
    put(group.engines[1], 2)
    caught_up(group, 2)


@pytest.mark.expect_log("replica 3 recovered commit 8, but vouched for 9")
def test_a_damaged_end_of_the_log_is_a_loss_and_not_a_shorter_log(group: Wired, tmp_path: Path) -> None:
    for sequence in range(1, 10):
        put(group.engines[1], sequence)
    caught_up(group, 9)
    group.close(3)
    log = min((tmp_path / "3" / "db").glob("log.*"))
    flip(log, len(log.read_bytes().rstrip(b"\0")) - 20)
    group.cut = {3}
    assert not group.open(3).trusted()


def test_regions_are_memory_and_no_files(group: Wired, tmp_path: Path) -> None:
    """If a page of them had no block yet, a full disk would end the process by a signal, without a message."""
    assert not [*(tmp_path / "1" / "db").glob("__db.0*")]


# --- alone and back --------------------------------------------------------------------------------------------------


def test_a_store_that_was_alone_founds_a_group_and_can_be_alone_again(tmp_path: Path) -> None:
    alone = BdbStore(tmp_path / "1", SMALL, no_panic)
    meta.prepare(alone, "test")
    alone.commit({b"k": b"alone"}, [])
    alone.close()
    ReplicatedStore(tmp_path / "1", SMALL, identity()).close()
    wired = Wired(tmp_path, SMALL, 1)
    assert not wired.engines[1].trusted(), "nothing tells what it vouched for, however often it is opened"
    wired.engines[1].found()
    wired.wait(1, MasterHere)
    assert wired.engines[1].trusted()
    assert wired.engines[1].get(b"k") == b"alone"
    put(wired.engines[1], 1)
    wired.close_all()
    again = BdbStore(tmp_path / "1", SMALL, no_panic)
    assert again.get(b"k000001") == b"v"
    again.commit({b"k": b"alone again"}, [])
    again.close()
    back = Wired(tmp_path, SMALL, 1)
    assert back.engines[1].trusted()
    assert back.engines[1].get(b"k") == b"alone again"
    back.close_all()


def test_a_backup_of_a_replica_begins_a_generation_and_a_group_of_its_own(group: Wired, tmp_path: Path) -> None:
    meta.prepare(group.engines[1], "test")
    put(group.engines[1], 1)
    group.engines[1].commit({layout.META_TERM: b"\x01", layout.META_MEMBERS: b"\x01"}, [])
    caught_up(group, 1)
    for replica in (1, 2):
        group.engines[replica].backup(str(tmp_path / f"copy{replica}"))
        store = ReplicatedStore(tmp_path / f"copy{replica}", SMALL, identity(7))
        assert not store.trusted()
        assert store.get(b"k000001") == b"v"
        assert meta.read_number(store, layout.META_GENERATION) > 1
        assert store.get_many([layout.META_TERM, layout.META_MEMBERS]) == [None, None]
        store.close()


# --- logs ------------------------------------------------------------------------------------------------------------

LOGS = BdbSettings(
    8 << 20, 1 << 20, 128 << 10, checkpoint_log_bytes=1 << 20, checkpoint_interval_ms=100, log_kept_bytes=4 << 20
)


@pytest.fixture
def logging(tmp_path: Path) -> Iterator[tuple[Wired, list[int]]]:
    """A group with small logs, and the kinds of all frames sent."""
    wired = Wired(tmp_path, LOGS)
    kinds: list[int] = []

    def note(sender: int, peer: int, control: bytes) -> bool:
        kinds.append(frame_kind(control))
        return True

    wired.sent = note
    wired.engines[1].found()
    for replica in (2, 3):
        wired.wait(replica, Ready)
    yield wired, kinds
    wired.close_all()


def fill(wired: Wired, start: int, count: int) -> None:
    engine = wired.engines[1]
    for sequence in range(start, start + count):
        put(engine, sequence, b"x" * 50_000)
        if engine.upkeep_due():
            engine.upkeep()


def logs_of(directory: Path) -> int:
    return len(list((directory / "db").glob("log.*")))


def test_logs_are_bounded_and_who_was_away_briefly_takes_what_it_missed(
    logging: tuple[Wired, list[int]], tmp_path: Path
) -> None:
    wired, kinds = logging
    fill(wired, 1, 200)
    caught_up(wired, 200)
    for replica in (2, 3):
        poll(lambda replica=replica: logs_of(tmp_path / str(replica)) <= 7, what=f"few logs at {replica}")
    wired.close(3)
    fill(wired, 201, 50)
    kinds.clear()
    wired.open(3)
    caught_up(wired, 250)
    assert FrameKind.PAGE_REQ not in kinds, "it was not copied anew"
    assert kinds.count(FrameKind.LOG_MORE) >= 3, "2.5 MB in one go: meanwhile its master hears nobody"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_who_was_away_for_longer_than_logs_are_kept_is_copied_anew(
    logging: tuple[Wired, list[int]], tmp_path: Path
) -> None:
    wired, kinds = logging
    wired.close(3)

    def master_removed_logs() -> bool:  # Berkeley DB keeps them for half a minute after a replica was synchronised
        fill(wired, sequence_at(wired.engines[1]) + 1, 25)
        return logs_of(tmp_path / "1") <= 8

    fill(wired, 1, 200)
    poll(master_removed_logs, 60, interval=1)
    kinds.clear()
    wired.open(3)
    wired.wait(3, Ready)
    caught_up(wired, sequence_at(wired.engines[1]))
    assert FrameKind.PAGE_REQ in kinds
    fill(wired, sequence_at(wired.engines[1]) + 1, 60)
    caught_up(wired, sequence_at(wired.engines[1]))
    check_logs(tmp_path)


def test_logs_of_which_a_part_was_taken_back_are_sound(logging: tuple[Wired, list[int]], tmp_path: Path) -> None:
    wired, _ = logging
    fill(wired, 1, 10)
    caught_up(wired, 10)
    wired.cut = {1}
    for sequence in range(11, 71):
        put(wired.engines[1], sequence, b"alone" * 10_000)
    assert logs_of(tmp_path / "1") > 3
    winner = vote_for_each_other(wired, 2, 3)
    wired.cut = set()
    wired.engines[1].step_down()
    wired.wait(1, Demoted)
    wired.engines[1].peer_up(winner)
    wired.wait(1, Ready)
    for sequence in range(11, 111):
        put(wired.engines[winner], sequence, b"together" * 6_000)
    caught_up(wired, 110)
    check_logs(tmp_path)


def check_logs(directory: Path) -> None:
    """The scrub finds nothing wrong with the logs of any replica."""
    for replica in "123":
        logs = LogFiles(directory / replica)
        assert len(logs.names()) > 2
        for name in logs.names():
            at: int | None = 0
            while at is not None:
                look = logs.look(name, at)
                assert not look.flaw, (replica, name, look)
                at = look.then


# --- commits on the event loop ---------------------------------------------------------------------------------------

LOG_FRAMES = (FrameKind.LOG, FrameKind.BULK_LOG)


def put_at_once(engine: ReplicatedStore, sequence: int) -> bool:
    """Whether it was committed, and not yet synced."""

    def work() -> bool:
        put(engine, sequence)
        return True

    return bool(engine.write_at_once(work))


def committed(wired: Wired, replica: int = 1) -> list[int]:
    return [event.sequence for event in wired.seen[replica] if isinstance(event, SyncedCommit)]


def test_a_commit_at_once_leaves_before_it_is_synced_and_is_told_after(
    group: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_bdb_work, "BRIEF_S", 10.0)
    left: list[tuple[int, list[int]]] = []

    def leaves(sender: int, peer: int, control: bytes) -> bool:
        if sender == 1 and frame_kind(control) in LOG_FRAMES:
            left.append((peer, committed(group)))
        return True

    group.sent = leaves
    master = group.engines[1]
    assert put_at_once(master, 1)
    assert {peer for peer, _ in left} == {2, 3}
    assert not any(told for _, told in left), left
    assert sequence_at(master) == 1
    assert master.applied() == 0
    caught_up(group, 1)
    assert committed(group) == []
    assert master.sync_at_once()
    assert committed(group) == [1]
    assert master.applied() == 1
    master.sync()
    put(master, 2)
    assert committed(group) == [1, 2], "each is told once"
    caught_up(group, 2)


def test_what_was_committed_at_once_is_vouched_for_only_when_synced(group: Wired, tmp_path: Path) -> None:
    before = last_counted(tmp_path / "1" / "acked")
    assert put_at_once(group.engines[1], 1)
    assert last_counted(tmp_path / "1" / "acked") == before
    group.engines[1].sync()
    assert last_counted(tmp_path / "1" / "acked")[1] == 1


def test_nothing_is_committed_at_once_by_a_follower_or_while_somebody_reads(group: Wired) -> None:
    assert not put_at_once(group.engines[2], 1)
    with group.engines[1].reading():
        assert not put_at_once(group.engines[1], 1)
        assert not group.engines[1].sync_at_once(), "who changes the role may be waiting"
    assert put_at_once(group.engines[1], 1)
    group.engines[1].sync()
    assert committed(group) == [1]


def test_after_a_slow_sync_commits_are_not_made_at_once(group: Wired, monkeypatch: pytest.MonkeyPatch) -> None:
    assert put_at_once(group.engines[1], 1)
    monkeypatch.setattr(store_bdb_work, "BRIEF_S", 0.0)
    monkeypatch.setattr(store_bdb_work, "DOUBT_FACTOR", 1e9)
    assert group.engines[1].sync_at_once()
    assert not put_at_once(group.engines[1], 2)
    assert not group.engines[1].sync_at_once()


def test_commits_of_the_writer_that_are_slow_keep_the_next_ones_with_it(
    group: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a slow disk every eleventh sync still held up the event loop."""
    monkeypatch.setattr(store_bdb_work, "BRIEF_S", 0.0)
    monkeypatch.setattr(store_bdb_work, "DOUBT_FACTOR", 1e9)
    put(group.engines[1], 1)
    assert not put_at_once(group.engines[1], 2)


def test_a_commit_that_was_not_synced_in_its_term_is_not_told(group: Wired) -> None:
    assert put_at_once(group.engines[1], 1)
    group.engines[1].step_down()
    group.wait(1, Demoted)
    group.engines[1].sync()
    assert committed(group) == []
    winner = vote_for_each_other(group, 1, 2, 3)
    put(group.engines[winner], 2)
    assert committed(group, winner) == [2]
    caught_up(group, 2)


def test_who_cannot_sync_gives_its_office_up(group: Wired, monkeypatch: pytest.MonkeyPatch) -> None:
    master = group.engines[1]
    assert put_at_once(master, 1)
    env = master._env

    class NoSpace:
        def __getattr__(self, name: str) -> Any:
            return getattr(env, name)

        def log_flush(self) -> None:
            raise bdb.DBNoSpaceError(28, "no space")

    monkeypatch.setattr(master, "_env", NoSpace())
    with fails(Kind.OUTCOME_UNKNOWN):
        master.sync()
    group.wait(1, Demoted)
    assert committed(group) == []
    monkeypatch.undo()
