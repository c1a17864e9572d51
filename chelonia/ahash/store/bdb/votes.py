"""The votes of an election that reach Berkeley DB: no more than it keeps room for.

The library counts votes in a list as long as the largest number of sites that a vote of this election names. For one
vote more it writes past the end into foreign memory, and the process ends at any time after.
We name no more sites than the votes we need, so that nobody waits for a replica that is gone; more may vote.
So each voter passes once in each election, and one seat stays for our own vote. An election needs no further votes.
Source: Berkeley DB 5.3, `src/rep/rep_elect.c` (`__rep_tally`, `__rep_grow_sites`, `__rep_vote1`, `__rep_vote2`), and
`src/rep/rep_automsg.c` (`__rep_vote_info`: seven u32, big-endian; the election's number and its sites come first).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final

from chelonia.ahash.store.bdb.frames import FrameKind, frame_kind
from chelonia.core import bounds

ELECTIONS_KEPT: Final = 64
"""A vote in an older election than all of these is not passed on."""
_VOTE: Final = struct.Struct(">II")
_VOTE_BYTES: Final = 20
_VERSION_MIN: Final = 5
"""Least replication version of a frame: before Berkeley DB 4.7 votes had another layout."""


@dataclass(slots=True)
class _Election:
    sites: int = 0
    voters: dict[int, set[int]] = field(default_factory=lambda: {FrameKind.VOTE1: set(), FrameKind.VOTE2: set()})


class Ballot:
    """The votes that reached one environment. The caller has the library for itself, and is not master."""

    def __init__(self) -> None:
        self._elections: dict[int, _Election] = {}

    def cast(self, record: bytes) -> None:
        """Note our own vote as it leaves: the library has room for the sites that it names."""
        number, sites = _VOTE.unpack_from(record)
        election = self._election(number)
        if election is not None:
            election.sites = max(election.sites, sites)

    def admits(self, sender: int, control: bytes, record: bytes) -> bool:
        """Return whether a frame may pass to the library; a frame that is no vote always may."""
        kind = frame_kind(control)
        if kind not in (FrameKind.VOTE1, FrameKind.VOTE2):
            return True
        if len(record) < _VOTE_BYTES or int.from_bytes(control[:4], "big") < _VERSION_MIN:
            return False
        number, sites = _VOTE.unpack_from(record)
        election = self._election(number)
        if election is None or sites > bounds.REPLICAS_MAX:
            return False
        voters, seats = election.voters[kind], max(election.sites, sites)
        if sender in voters or len(voters) + 1 >= seats:
            return False
        voters.add(sender)
        election.sites = seats
        return True

    def _election(self, number: int) -> _Election | None:
        if number not in self._elections:
            self._elections[number] = _Election()
            if len(self._elections) > ELECTIONS_KEPT:
                del self._elections[min(self._elections)]
        return self._elections.get(number)
