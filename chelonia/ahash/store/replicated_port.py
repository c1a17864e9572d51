"""Port of the replicated engine: the commands of the replication protocol, and the events it gets back.

Every replica of the A-Hash has one engine. The master's takes commits; the others apply what the master sends. It
decides nothing: the protocol (`group/protocol.py`) decides from the events who is master, what is durable, who may
read. Frames between engines are opaque here but for the term and the record's kind.
- `replica`: a number > 0, the same on every host, never reused.
- `term`: one mastership (Berkeley DB's replication generation); `Position.generation` is another thing.
- `sequence`: the count of commits (`core.ports.ahash.Position.sequence`).
- `members` of an event: the stored membership record in our log as of then; None: there is none, or it could not be
  read. The event carries it because a later read might be refused, or find another.
Invariants:
- Events come in the order in which the engine acted.
- `SyncedCommit` comes before any later change of role, and before `commit` (or `sync`, after `write_at_once`) returns.
- `Flushed` comes only after the replica's own log is synced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

import msgspec

from chelonia.ahash.store.layout import StoreState
from chelonia.ahash.store.port import Store


class LogPosition(msgspec.Struct, frozen=True, order=True):
    """A place in the log of one term. Positions of different terms cannot be compared."""

    term: int
    file: int
    offset: int


class SyncedCommit(msgspec.Struct, frozen=True):
    """Master: a commit of ours, which ends at `token`, is synced here. Other replicas may not have it."""

    sequence: int
    token: LogPosition


class Flushed(msgspec.Struct, frozen=True):
    """Not master: our log equals that of the term's master up to `token`, and is synced: we may acknowledge it."""

    token: LogPosition
    sequence: int
    members: bytes | None = None


class MasterHere(msgspec.Struct, frozen=True):
    """We are master and take commits. `state` is our contents before the first one; `mark` the newest stored mark in
    our log, or None."""

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
    """A copy of the master's contents is replacing ours: until `Ready` we hold nothing."""


class Demoted(msgspec.Struct, frozen=True):
    """We were master and are no longer: no `SyncedCommit` of that term follows."""

    members: bytes | None = None


class CheckpointDue(msgspec.Struct, frozen=True):
    """Master: we make a checkpoint soon. The others should begin to write their changed pages: at the checkpoint they
    have to, and acknowledge nothing meanwhile."""


class WantElection(msgspec.Struct, frozen=True):
    """The engine met a reason for an election; `elect` starts one."""


class ElectionFailed(msgspec.Struct, frozen=True):
    """An election of `elect` came to nothing here; another may follow. `newer`: others hold a newer one, which may need
    our vote."""

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
    """Notes of a replica beside its log, written in the event loop; they outlive the process.

    Attributes:
        run: a number that no other process of any replica has.
    """

    run: int

    @property
    def known(self) -> tuple[int, ...]:
        """Argument of the last `note_known`; zeros: there was none."""

    def note_known(self, known: tuple[int, ...]) -> None:
        """Write down (term, replica, run, sequence) of an acknowledged commit. Not a system call."""

    @property
    def promised_ms(self) -> int:
        """Argument of the last `promise`; 0: there was none."""

    def promise(self, lease_ms: int) -> None:
        """Write down on stable storage how long grants last from now on. Raises: OSError."""


class ReplicatedEngine(Store, Protocol):
    """A `Store` in a group. Commands return at once; the engine's threads carry them out in order.

    `newest_term`: the newest term it had heard of before it was opened; it takes nothing of older ones.
    `get`, `scan` may raise UNAVAILABLE while the replica synchronises.
    """

    newest_term: int

    @property
    def notes(self) -> LogNotes:
        """Notes beside the log."""

    def start(self, events: Callable[[Event], None], send: Send) -> None:
        """Begin as a follower. Call it once; any thread may call `events` and `send`."""

    def found(self) -> None:
        """Become master without an election: for the very first start of the very first replica."""

    def process(self, sender: int, control: bytes, record: bytes) -> None:
        """Take a frame of the engine of `sender`, or drop it when too many wait: engines ask again."""

    def peer_up(self, peer: int) -> None:
        """Announce ourselves on a new connection to `peer`, unless we are master."""

    def elect(self, sites: int, votes: int, valid_ms: int, wait_ms: int) -> None:
        """Hold an election among `sites` that needs `votes`, unless one is being held.

        A win is void after `valid_ms`. Each of the two phases waits up to `wait_ms` for silent replicas.
        Ends with `MasterHere`, `MasterThere` or `ElectionFailed`.
        """

    def step_down(self) -> None:
        """Become a follower; `Demoted` when done."""

    def write_pages(self) -> None:
        """Write changed pages now, beside all else: the master's next checkpoint is near."""

    def rouse(self, still_ms: int) -> None:
        """Announce ourselves, or begin anew if nothing at all moved since the last call.

        Args: `still_ms`: for how long the engine has vouched for nothing, though its master has more.
        """

    def set_voter(self, voter: bool) -> None:
        """Set whether this replica may be elected."""

    def commit(self, puts: Mapping[bytes, bytes], deletes: Iterable[bytes], term: int | None = None) -> None:
        """Commit as master, synced locally only: see `Store.commit`.

        Args: `term`: the term to commit in; no change of role can come between its check and the commit. A batch
            decided in an earlier term would overwrite the commits of another master since.
        Raises: UNAVAILABLE (not master, or of another term).
        """

    def applied(self) -> int:
        """Return the sequence of the last commit visible to readers here."""

    def trusted(self) -> bool:
        """Return whether opening found everything this replica ever acknowledged, or it has received that since.

        Else it must neither vote, acknowledge nor serve until `Ready`.
        """


_OF_MASTERS: Final = frozenset({4, 5, 6, 11, 12, 16, 17, 19, 20, 21, 24, 25, 27, 28})
"""Kinds of frame that only a master sends, or a replica becoming one: records, pages, claims, answers to requests."""


def frame_of_master(control: bytes) -> bool:
    """Return whether the sender was master, or becoming master, when it sent this frame.

    Source: Berkeley DB 5.3, `src/dbinc/rep.h`: BULK_LOG, BULK_PAGE, DUPMASTER, LOG, LOG_MORE, NEWFILE, NEWMASTER,
    PAGE, PAGE_FAIL, PAGE_MORE, START_SYNC, UPDATE, VERIFY, VERIFY_FAIL. Replicas ask only the master.
    """
    return len(control) >= 24 and int.from_bytes(control[16:20], "big") in _OF_MASTERS


def frame_term(control: bytes) -> int:
    """Return the term that an engine frame belongs to (0: it names none).

    Source: Berkeley DB 5.3, `__rep_control`: version, log version, LSN (file, offset), type, generation; each u32.
    """
    return int.from_bytes(control[20:24], "big") if len(control) >= 24 else 0
