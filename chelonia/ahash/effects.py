"""What the replication protocol asks for and tells: roles, effects, status. Plain values; `protocol.py` makes them.

The shell carries effects out in their order. `OpenTerm` comes first in a term, then `ProveTerm`, `TermOpened`;
`TermEnded` last, and always.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from chelonia.ahash.peer_messages import Message
from chelonia.ahash.standing import TermMark, Vouched


class Role(enum.Enum):
    """What a replica is. `OPENING`: master of a term that is not open yet."""

    ALONE = "alone"
    FOLLOWER = "follower"
    OPENING = "opening"
    MASTER = "master"


class Admission(enum.Enum):
    """What becomes of an engine frame: `PASS` to the engine now, `HOLD` until its sender is followed, `DROP`."""

    PASS = "pass"
    HOLD = "hold"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class Send:
    """Send `message` to `peer`."""

    peer: int
    message: Message


@dataclass(frozen=True, slots=True)
class Process:
    """Hand a frame of `peer` to the engine (`process`)."""

    peer: int
    control: bytes
    record: bytes


@dataclass(frozen=True, slots=True)
class AskElection:
    """Have the engine hold an election (`elect`)."""

    sites: int
    votes: int
    valid_ms: int
    wait_ms: int


@dataclass(frozen=True, slots=True)
class StepDown:
    """Have the engine become a follower (`step_down`); log the reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class Announce:
    """Have the engine announce itself to `peer` (`peer_up`)."""

    peer: int


@dataclass(frozen=True, slots=True)
class OpenTerm:
    """Commit the first record of our term: `mark` under its key (`layout.META_TERM`), nothing else. Then nothing until
    `ProveTerm`."""

    mark: TermMark


@dataclass(frozen=True, slots=True)
class ProveTerm:
    """A majority has joined our term: commit its second record, `sequence`, which changes nothing. Then nothing until
    `TermOpened`."""

    term: int
    sequence: int


@dataclass(frozen=True, slots=True)
class TermOpened:
    """A majority can prove that our term was joined: requests may be taken."""

    term: int


@dataclass(frozen=True, slots=True)
class TermEnded:
    """Our term is over: whoever waits in it is told OUTCOME_UNKNOWN. Follows every `OpenTerm` in the end."""

    term: int
    reason: str


@dataclass(frozen=True, slots=True)
class Durable:
    """All commits up to `sequence` in `term` are durable: ask `covers` for every waiter."""

    term: int
    sequence: int


@dataclass(frozen=True, slots=True)
class FollowerSees:
    """The master we follow told how far its open term is durable (0: it is not open)."""

    master: int
    term: int
    sequence: int


@dataclass(frozen=True, slots=True)
class Trusted:
    """This replica holds again what it may have acknowledged: it counts from now on."""


Effect = (
    Send | Process | AskElection | StepDown | Announce | OpenTerm | ProveTerm | TermOpened | TermEnded | Durable
    | FollowerSees | Trusted
)  # fmt: skip
Effects = tuple[Effect, ...]


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """A member as this replica sees it. `acked`: as master, the last sequence it told to hold in our term."""

    replica: int
    connected: bool
    acked: int


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """For status and metrics. `master` None: none is known. `lease_ms`: left of our own lease, 0 without; `vouched`:
    our newest commit of a term proven open."""

    role: Role
    master: int | None
    term: int
    trusted: bool
    ready: bool
    durable: int
    head: int
    lease_ms: int
    membership: int
    vouched: Vouched
    peers: tuple[PeerStatus, ...]
