"""Port of the replicated engine: what the replication protocol may ask of it, and what it tells.

Every replica of the A-Hash holds one engine. On the master it takes commits; on the others it applies what the master
sends. It decides nothing: who is master, what is durable and who may read is the protocol's (`protocol.py`), from the
events below. Frames between engines are opaque here but for the term and the record's kind.
Words: `replica` a number > 0, the same on every host, never reused; `term` one mastership (Berkeley DB's replication
generation); `sequence` the count of commits (`core.ports.ahash.Position.sequence`). A term has nothing to do with
`Position.generation`, which rises when a backup is restored.
`members` of an event is the membership record in our log as of then, as it is stored; None: there is none, or it could
not be read. It comes with what it belongs to: who read it later might be refused, or read another.
Invariants: events are told in the order in which the engine did what they tell; `SyncedCommit` is posted
before any later change of role, and before `commit` returns, or `sync` after `write_at_once`; `Flushed` only after the
replica's own log is synced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

import msgspec

from chelonia.ahash.store.layout import StoreState
from chelonia.ahash.store.port import Store


class LogPosition(msgspec.Struct, frozen=True, order=True):
    """A place in the log of one term. Only tokens of the same term tell whether one log holds what another has."""

    term: int
    file: int
    offset: int


class SyncedCommit(msgspec.Struct, frozen=True):
    """Master: a commit of ours is synced here. It ends at `token`; nothing is said about other replicas."""

    sequence: int
    token: LogPosition


class Flushed(msgspec.Struct, frozen=True):
    """Not master: our log equals that of the term's master up to `token`, and is synced here. To be acknowledged."""

    token: LogPosition
    sequence: int
    members: bytes | None = None


class MasterHere(msgspec.Struct, frozen=True):
    """We are master: commits are taken. Until the first one `state` is what stands here, and `mark` the newest mark in
    our log (as it is stored; None: there is none)."""

    term: int
    state: StoreState
    mark: bytes | None = None
    members: bytes | None = None


class MasterThere(msgspec.Struct, frozen=True):
    """Another replica is master; we follow it from now on."""

    replica: int
    term: int


class Ready(msgspec.Struct, frozen=True):
    """We hold what the master had when we began to follow it."""

    members: bytes | None = None


class Refilling(msgspec.Struct, frozen=True):
    """Our contents are being replaced by a copy of the master's: until `Ready` we hold nothing."""


class Demoted(msgspec.Struct, frozen=True):
    """We were master and are no longer: no `SyncedCommit` of that term follows."""

    members: bytes | None = None


class CheckpointDue(msgspec.Struct, frozen=True):
    """Master: we make a checkpoint soon. It has the others write their changed pages, and until then they acknowledge
    nothing: they had better begin now."""


class WantElection(msgspec.Struct, frozen=True):
    """The engine met a reason for an election; `elect` starts one."""


class ElectionFailed(msgspec.Struct, frozen=True):
    """An election asked for with `elect` came to nothing here; another may be asked for. `newer`: because others hold a
    newer one, which may need our vote."""

    reason: str
    newer: bool = False


class Failed(msgspec.Struct, frozen=True):
    """The engine cannot go on: the process must end. Recovery runs in the next one."""

    reason: str


Event = (
    SyncedCommit
    | Flushed
    | MasterHere
    | MasterThere
    | Ready
    | Refilling
    | Demoted
    | CheckpointDue
    | WantElection
    | ElectionFailed
    | Failed
)

Send = Callable[[int | None, bytes, bytes], None]
"""Send (control, record) to a replica, None for all. Called on any thread, returns at once, may drop."""


class LogNotes(Protocol):
    """What a replica writes down beside its log, in the event loop, and what outlives its process.

    Attributes:
        run: a number that no other process of any replica has.
    """

    run: int

    @property
    def known(self) -> tuple[int, ...]:
        """What `note_known` was last called with; zeros: never."""

    def note_known(self, known: tuple[int, ...]) -> None:
        """Write down (term, replica, run, sequence) of a commit that is acknowledged. Not a system call."""

    @property
    def promised_ms(self) -> int:
        """What `promise` was last called with; 0: never."""

    def promise(self, lease_ms: int) -> None:
        """Write down how long grants last from now on, on stable storage. Raises: OSError."""


class ReplicatedEngine(Store, Protocol):
    """A `Store` that is one of a group. Commands return at once and are carried out in order by the engine's threads.

    `heard_term`: the newest term that it had heard of before it was opened: of older ones it takes nothing.
    `get`, `scan` may raise UNAVAILABLE while the replica synchronises.
    """

    heard_term: int

    @property
    def notes(self) -> LogNotes:
        """What is written down beside the log."""

    def start(self, events: Callable[[Event], None], send: Send) -> None:
        """Begin as a follower. Called once; `events` and `send` are called on any thread."""

    def found(self) -> None:
        """Become master without an election: for the very first start of the very first replica."""

    def process(self, sender: int, control: bytes, record: bytes) -> None:
        """Take a frame of the engine of `sender`; dropped when too many wait: engines ask again."""

    def peer_up(self, peer: int) -> None:
        """A connection to `peer` was made: announce ourselves, unless we are master."""

    def elect(self, sites: int, votes: int, valid_ms: int, wait_ms: int) -> None:
        """Hold an election among `sites` that needs `votes`; won later than `valid_ms` after its end, it is void.

        Either of its two phases waits up to `wait_ms` for those who are silent.
        Ends with `MasterHere`, `MasterThere` or `ElectionFailed`. Asked for while one is held: ignored.
        """

    def step_down(self) -> None:
        """Become a follower; `Demoted` when done."""

    def write_pages(self) -> None:
        """The master's next checkpoint is near: write what it would have us write, beside all else."""

    def rouse(self, still_ms: int) -> None:
        """It has vouched for nothing for so long, though its master has more: announce ourselves, or begin anew if
        nothing at all has moved since it was last asked."""

    def set_voter(self, voter: bool) -> None:
        """Whether this replica may be elected."""

    def commit(self, puts: Mapping[bytes, bytes], deletes: Iterable[bytes], term: int | None = None) -> None:
        """That of `Store` with local syncing only, as master; of a `term`: of this very one, checked where no change of
        role can come between.

        A batch was decided on what its term had committed: carried out in a later term of ours it would overwrite
        what another master committed meanwhile. Raises: UNAVAILABLE (not master, or of another term).
        """

    def applied(self) -> int:
        """Sequence of the last commit visible to readers here."""

    def trusted(self) -> bool:
        """Whether everything this replica ever acknowledged was found at opening, or has been received since.

        Else it must neither vote, acknowledge nor serve until `Ready`.
        """


_OF_MASTERS: Final = frozenset({4, 5, 6, 11, 12, 16, 17, 19, 20, 21, 24, 25, 27, 28})
"""Kinds of frame that only a master sends, or who is becoming one: records, pages, claims and answers to requests."""


def frame_of_master(control: bytes) -> bool:
    """Whether its sender was master, or becoming so, when it sent this frame.

    Source: Berkeley DB 5.3, `src/dbinc/rep.h`: BULK_LOG, BULK_PAGE, DUPMASTER, LOG, LOG_MORE, NEWFILE, NEWMASTER,
    PAGE, PAGE_FAIL, PAGE_MORE, START_SYNC, UPDATE, VERIFY, VERIFY_FAIL. No replica asks another than the master.
    """
    return len(control) >= 24 and int.from_bytes(control[16:20], "big") in _OF_MASTERS


def frame_term(control: bytes) -> int:
    """The term that an engine frame belongs to (0: it names none).

    Source: Berkeley DB 5.3, `__rep_control`: version, log version, LSN (file, offset), type, generation; each u32.
    """
    return int.from_bytes(control[20:24], "big") if len(control) >= 24 else 0
