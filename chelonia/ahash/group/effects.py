"""The output of the replication protocol: roles, effects, status. Plain values; `protocol.py` makes them.

The shell carries effects out in their order: in a term first `OpenTerm`, then `ProveTerm`, then `TermOpened`;
`TermEnded` always comes last.
"""

from __future__ import annotations

import enum

import msgspec

from chelonia.ahash.group.log_vouching import TermMark, Vouched
from chelonia.ahash.group.peer_messages import Message


class PeerRole(enum.Enum):
    """The role of a replica. `OPENING`: master of a term that is not open yet."""

    ALONE = "alone"
    FOLLOWER = "follower"
    OPENING = "opening"
    MASTER = "master"


class Admission(enum.Enum):
    """The decision on an engine frame: `PASS` it to the engine, `HOLD` it until we follow its sender, `DROP` it."""

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
    """Commit the first record of our term: `mark` under its key (`layout.META_TERM`). Commit nothing else before
    `ProveTerm`."""

    mark: TermMark


class ProveTerm(msgspec.Struct, frozen=True):
    """A majority has joined our term: commit its second record, `sequence`, which changes nothing. Commit nothing else
    before `TermOpened`."""

    term: int
    sequence: int


class TermOpened(msgspec.Struct, frozen=True):
    """A majority can prove that it joined our term: take requests from now on."""

    term: int


class TermEnded(msgspec.Struct, frozen=True):
    """Our term is over: requests waiting in it get OUTCOME_UNKNOWN. Follows every `OpenTerm` in the end."""

    term: int
    reason: str


class Durable(msgspec.Struct, frozen=True):
    """All commits up to `sequence` in `term` are durable: ask `covers` for every waiter."""

    term: int
    sequence: int


class FollowerSees(msgspec.Struct, frozen=True):
    """The master we follow announced how far its open term is durable (0: it is not open)."""

    term: int
    sequence: int


class Trusted(msgspec.Struct, frozen=True):
    """This replica holds again all it may have acknowledged: it counts from now on."""


class Promises(msgspec.Struct, frozen=True):
    """Write down how long grants of this replica may last from now on, before sending anything else."""

    lease_ms: int


class WritePages(msgspec.Struct, frozen=True):
    """The master we follow makes a checkpoint soon: have the engine `write_pages`."""


Effect = (
    Send | Process | AskElection | StepDown | Announce | OpenTerm | ProveTerm | TermOpened | TermEnded | Durable
    | FollowerSees | Trusted | WritePages | Promises
)  # fmt: skip
Effects = tuple[Effect, ...]


class PeerStatus(msgspec.Struct, frozen=True):
    """A member that this replica is connected to. `acked`: as master, the last sequence it acknowledged in our term."""

    replica: int
    acked: int


class GroupStatus(msgspec.Struct, frozen=True):
    """The state of a replica, for status and metrics. `master` None: none is known.

    - `lease_ms`: rest of our own lease, 0 without one
    - `vouched`: our newest commit of a term proven open
    - `parted`: replicas with another history: each side lacks an acknowledged commit of the other
    - `terms_begun`: masterships of this process
    - `stretch`: wanted duration of our leases, as a multiple of the usual one
    - `acked`: last sequence that we acknowledged in the term we follow
    """

    role: PeerRole
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
