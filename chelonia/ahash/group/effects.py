"""What the replication protocol asks for and tells: roles, effects, status. Plain values; `protocol.py` makes them.

The shell carries effects out in their order. `OpenTerm` comes first in a term, then `ProveTerm`, `TermOpened`;
`TermEnded` last, and always.
"""

from __future__ import annotations

import enum

import msgspec

from chelonia.ahash.group.log_vouching import TermMark, Vouched
from chelonia.ahash.group.peer_messages import Message


class ReplicaRole(enum.Enum):
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


class Send(msgspec.Struct, frozen=True):
    """Send `message` to `peer`."""

    peer: int
    message: Message


class Process(msgspec.Struct, frozen=True):
    """Hand a frame of `peer` to the engine (`process`)."""

    peer: int
    control: bytes
    record: bytes


class AskElection(msgspec.Struct, frozen=True):
    """Have the engine hold an election (`elect`)."""

    sites: int
    votes: int
    valid_ms: int
    wait_ms: int


class StepDown(msgspec.Struct, frozen=True):
    """Have the engine become a follower (`step_down`); log the reason."""

    reason: str


class Announce(msgspec.Struct, frozen=True):
    """Have the engine announce itself to `peer` (`peer_up`)."""

    peer: int


class OpenTerm(msgspec.Struct, frozen=True):
    """Commit the first record of our term: `mark` under its key (`layout.META_TERM`), nothing else. Then nothing until
    `ProveTerm`."""

    mark: TermMark


class ProveTerm(msgspec.Struct, frozen=True):
    """A majority has joined our term: commit its second record, `sequence`, which changes nothing. Then nothing until
    `TermOpened`."""

    term: int
    sequence: int


class TermOpened(msgspec.Struct, frozen=True):
    """A majority can prove that our term was joined: requests may be taken."""

    term: int


class TermEnded(msgspec.Struct, frozen=True):
    """Our term is over: whoever waits in it is told OUTCOME_UNKNOWN. Follows every `OpenTerm` in the end."""

    term: int
    reason: str


class Durable(msgspec.Struct, frozen=True):
    """All commits up to `sequence` in `term` are durable: ask `covers` for every waiter."""

    term: int
    sequence: int


class FollowerSees(msgspec.Struct, frozen=True):
    """The master we follow told how far its open term is durable (0: it is not open)."""

    term: int
    sequence: int


class Trusted(msgspec.Struct, frozen=True):
    """This replica holds again what it may have acknowledged: it counts from now on."""


class Promises(msgspec.Struct, frozen=True):
    """Write down, before anything else is sent, that what this replica grants from now on lasts so long."""

    lease_ms: int


class WritePages(msgspec.Struct, frozen=True):
    """The master we follow makes a checkpoint soon: have the engine `write_pages`."""


Effect = (
    Send | Process | AskElection | StepDown | Announce | OpenTerm | ProveTerm | TermOpened | TermEnded | Durable
    | FollowerSees | Trusted | WritePages | Promises
)  # fmt: skip
Effects = tuple[Effect, ...]


class PeerStatus(msgspec.Struct, frozen=True):
    """A member that this replica is connected to. `acked`: as master, the last sequence it told to hold in our term."""

    replica: int
    acked: int


class ReplicaStatus(msgspec.Struct, frozen=True):
    """For status and metrics. `master` None: none is known.

    - `lease_ms`: left of our own lease, 0 without
    - `vouched`: our newest commit of a term proven open
    - `parted`: replicas that acknowledged what we lack, and lack what we did
    - `terms_begun`: masterships of this process
    - `stretch`: how many times as long as usual our leases are to last
    - `acked`: what we acknowledged of the term that we follow
    """

    role: ReplicaRole
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
    parted: tuple[int, ...] = ()
    terms_begun: int = 0
    stretch: int = 1
    acked: int = 0
