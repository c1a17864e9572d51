"""The number of votes of an election that Berkeley DB gets."""

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from chelonia.ahash.store.bdb.frames import FrameKind, frame_kind
from chelonia.ahash.store.bdb.votes import ELECTIONS_KEPT, Ballot
from chelonia.ahash.store.replicated_port import MasterHere, Ready
from chelonia.core import bounds
from tests.support.ahash import SMALL
from tests.support.polling import poll
from tests.support.replicas import Wired


def control(kind: FrameKind, version: int = 7) -> bytes:
    return struct.pack(">9I", version, 19, 0, 0, kind, 1, 0, 0, 0)


def vote(election: int, sites: int) -> bytes:
    return struct.pack(">7I", election, sites, 2, 100, 0, 1, 1)


def heard(ballot: Ballot, election: int, sites: int, *senders: int, kind: FrameKind = FrameKind.VOTE1) -> list[int]:
    return [sender for sender in senders if ballot.admits(sender, control(kind), vote(election, sites))]


def test_a_seat_is_left_for_our_own_vote() -> None:
    assert heard(Ballot(), 7, 2, 2, 3) == [2]
    assert heard(Ballot(), 7, 3, 2, 3, 4, 5) == [2, 3]
    assert heard(Ballot(), 7, 1, 2) == []


def test_nobody_is_heard_twice_in_one_election() -> None:
    ballot = Ballot()
    assert heard(ballot, 7, 3, 2, 2) == [2]
    assert heard(ballot, 8, 3, 2) == [2]


def test_elections_are_counted_apart_in_whatever_order_they_come() -> None:
    ballot = Ballot()
    assert heard(ballot, 7, 2, 2) == [2]
    assert heard(ballot, 8, 2, 3) == [3]
    assert heard(ballot, 7, 2, 3) == []


def test_the_vote_that_names_most_sites_says_how_much_room_there_is() -> None:
    ballot = Ballot()
    assert heard(ballot, 7, 2, 2, 3) == [2]
    assert heard(ballot, 7, 3, 3) == [3]
    assert heard(ballot, 7, 2, 4) == []


def test_a_vote_that_is_not_passed_on_makes_no_room() -> None:
    ballot = Ballot()
    assert heard(ballot, 7, 2, 2) == [2]
    assert heard(ballot, 7, 4, 2) == []
    assert heard(ballot, 7, 2, 3) == []


def test_votes_for_a_winner_have_as_much_room_as_votes_for_an_election() -> None:
    ballot = Ballot()
    assert heard(ballot, 7, 0, 2, kind=FrameKind.VOTE2) == []
    ballot.cast(vote(7, 3))
    assert heard(ballot, 7, 0, 2, 3, 4, kind=FrameKind.VOTE2) == [2, 3]
    assert heard(ballot, 7, 3, 2, 3, 4) == [2, 3]


def test_what_is_no_vote_is_passed_on() -> None:
    assert Ballot().admits(2, control(FrameKind.NEWMASTER), b"")


@pytest.mark.parametrize(
    ("version", "record"), [(7, b""), (7, vote(7, 3)[:19]), (4, vote(7, 3)), (7, vote(7, bounds.REPLICAS_MAX + 1))]
)
def test_votes_that_make_no_sense_are_not_passed_on(version: int, record: bytes) -> None:
    assert not Ballot().admits(2, control(FrameKind.VOTE1, version), record)


def test_elections_of_long_ago_are_forgotten_and_have_no_voters_any_more() -> None:
    ballot = Ballot()
    for election in range(1, ELECTIONS_KEPT + 2):
        assert heard(ballot, election, 2, 2) == [2]
    assert heard(ballot, 1, 2, 2, 3) == []
    assert heard(ballot, 2, 2, 2, 3) == []


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Wired]:
    wired = Wired(tmp_path, SMALL, count=2)
    wired.engines[1].found()
    wired.wait(1, MasterHere)
    wired.wait(2, Ready)
    yield wired
    wired.close_all()


def test_the_library_is_told_of_no_more_votes_than_it_keeps_room_for(group: Wired) -> None:
    votes: list[tuple[bytes, bytes]] = []
    engine = group.engines[2]
    process = engine.process

    def note(sender: int, control: bytes, record: bytes) -> None:
        if frame_kind(control) == FrameKind.VOTE1:
            votes.append((control, record))
        else:
            process(sender, control, record)

    engine.process = note  # type: ignore[method-assign]
    asked = group.open(3)
    group.wait(3, Ready)
    group.close(1)
    asked.elect(2, 2, 200, 100)
    poll(lambda: votes, what="a vote")
    for sender in (3, 4, 5, 6):
        process(sender, *votes[0])
    poll(lambda: engine._bytes_taken == engine._bytes_queued, what="all frames are taken")
    found = engine._open_env().rep_stat()
    assert found["election_nsites"] == 1, "one seat is its own, there are two in all"
