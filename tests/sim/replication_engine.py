"""A model of the replicated engine: the logs under Berkeley DB's base replication, without any of its own protection.

- A commit succeeds on any master, alone or not; its record travels before it is synced.
- A client accepts any newer NEWMASTER: it cuts its log back to the part shared with that master and takes the rest.
- Elections compare generation of the last record, length of the log, and a number drawn once for the election.
- The winner may call `rep_start` at any later time. It takes a generation above all others, or another master's.
- A client turns from one such master to the other, and is notified of each generation once.
- A far-behind client gives its log up before it receives a copy. A crash loses unsynced records.

Times are microseconds of the world. Every step is a callback of its own, so that a freeze or a crash falls between any
two. Source: the study of libdb 5.3 under `src/rep` in docs/design/003-berkeley-db.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from zlib import crc32

from chelonia.ahash.group.log_vouching import NOWHERE, LogEnd, VouchedCommit
from chelonia.ahash.store import layout
from chelonia.ahash.store.layout import StoreState
from chelonia.ahash.store.replicated_port import (
    Demoted,
    ElectionFailed,
    Event,
    Failed,
    Flushed,
    LogPosition,
    MasterHere,
    MasterThere,
    Ready,
    Refilling,
    SyncedCommit,
    WantElection,
)
from chelonia.core.values import replace

if TYPE_CHECKING:
    from tests.sim.page_rot import RottenPage
    from tests.sim.replication import Process

COPY_BEHIND = 12
"""A client that lacks more records than this may be sent a copy instead."""

Op = tuple[str, str, Any]
"""(request key, key, value); keys `mark` and `members` hold those records."""


@dataclass(slots=True, eq=False)
class Record:
    """One record of a log: a commit, or (no operations) the one that `rep_start(MASTER)` itself writes. `written_ms`:
    when its master wrote it, where a check asks."""

    term: int
    sequence: int
    ops: tuple[Op, ...] = ()
    written_ms: int = 0


@dataclass(slots=True)
class Disk:
    """The state that outlives a crash: records up to `synced`, generations, and the witness of acknowledged commits."""

    log: list[Record] = field(default_factory=list)
    synced: int = 0
    gen: int = 0
    egen: int = 1
    witness: tuple[int, int] = (0, 0)
    whole: bool = True
    """False from the moment the log is given up, or was lost, until it is synchronised again."""
    promised_ms: int = 0
    known: VouchedCommit = NOWHERE
    """The commit that a process knew to be acknowledged."""
    rot: list[RottenPage] = field(default_factory=list)
    suspect: bool = False
    """Its engine panicked: the next start reads all pages."""
    ends_at: int = 0
    """Where its log is damaged, 0: nowhere."""

    def copy(self) -> Disk:
        return replace(self, log=list(self.log))


@dataclass(slots=True)
class State:
    """The sum of the records."""

    sequence: int = 0
    values: dict[str, Any] = field(default_factory=dict)
    requests: set[str] = field(default_factory=set)

    def apply(self, record: Record) -> None:
        self.sequence = record.sequence
        for request, key, value in record.ops:
            self.values[key] = value
            self.requests.add(request)


_Word = tuple[int, int, int, int]
"""A vote's candidate: (term of the last record, length of the log, a number of this election, replica)."""


@dataclass(slots=True)
class _Election:
    egen: int
    sites: int
    votes: int
    wait_us: int
    words: dict[int, _Word]
    for_us: set[int] = field(default_factory=set)
    phase: int = 1


class Engine:
    """The engine of one process. `process` is a frame's arrival; frames are tuples `(kind, gen, ...)`."""

    MARK: Any = "mark"
    MEMBERS: Any = "members"
    STATE: Any = "state"

    def __init__(self, process: Process, disk: Disk) -> None:
        self._process = process
        self._disk = disk
        self._own = process.own
        self.state = State()
        self._rebuild()
        self.is_master = False
        self.gen = disk.gen
        self._egen = max(disk.egen, disk.gen + 1)
        self._master: int | None = None
        self._told = (0, 0)
        self._in_step = False
        self._ready = False
        self._ready_due = False
        self._first_sync = False
        self._begun = False
        self._flush_due = False
        self._election: _Election | None = None
        self._early: dict[int, _Word] = {}
        self._won_at: int | None = None
        self._jobs: list[tuple[tuple[Op, ...], Callable[[int], None]]] = []
        self._busy = False
        self._demote_due = False

    # ------------------------------------------------------------------------------------------------------ the port

    def end(self) -> LogEnd:
        """Mark and sequence as the store shows them."""
        return LogEnd(self.state.values.get(self.MARK), self.state.sequence)

    def reach(self) -> tuple[int, int]:
        """(newest term in the log, sequence): what the witness keeps."""
        return (self.end().newest[0], self.state.sequence)

    def trusted(self) -> bool:
        """Whether the log holds all that its witness says."""
        return self._disk.whole and self.reach() >= self._disk.witness

    def members(self) -> Any:
        """The membership record in the log; None: there is none."""
        return self.state.values.get(self.MEMBERS)

    def found(self) -> None:
        """Become master without an election."""
        self._later(0, self._become_master)

    def elect(self, sites: int, votes: int, wait_ms: int) -> None:
        """Hold an election. Nothing here bounds the age of a won mandate."""
        if self.is_master or self._election is not None or self._won_at is not None:
            return
        if not self._disk.whole:
            self._post(ElectionFailed("no whole log"))
            return
        if self._first_sync:  # Berkeley DB would vote without electing us until the process restarts
            self._post(Failed("the first synchronisation did not end: restart"))
            return
        egen = self._egen
        self._disk.egen = egen + 1
        mine = self._word()
        self._election = _Election(egen, sites, votes, wait_ms * 1000, {**self._early, self._own: mine})
        self._early = {}
        self._process.world.point("vote", self._process)
        self._send(None, "VOTE1", egen, mine)
        self._later(self._election.wait_us, self._phase_ends, self._election, 1)
        self._later(500, self._count, self._election)

    def step_down(self) -> None:
        """Become a client as soon as no commit is under way."""
        self._later(200, self._demote)

    def peer_up(self, peer: int) -> None:
        if not self.is_master:
            self._send(peer, "NEWCLIENT")

    @property
    def queued(self) -> Iterator[Op]:
        """The operations that its thread has still to commit, even after the protocol has dropped them."""
        return (op for ops, _ in self._jobs for op in ops)

    def commit(self, term: int, ops: tuple[Op, ...], done: Callable[[int], None]) -> bool:
        """Queue a commit for this term; `done(sequence)` once it is synced here. False: it is not master of it."""
        if not self.is_master or term != self.gen or self._demote_due:
            return False
        self._jobs.append((ops, done))
        if not self._busy:
            self._later(50, self._pump)
            self._busy = True
        return True

    def process(self, sender: int, frame: tuple[Any, ...]) -> None:
        """Process a frame that the protocol let pass."""
        kind, gen, *rest = frame
        if gen < self.gen and kind not in ("NEWCLIENT", "VOTE1", "MASTER_REQ"):
            return
        if gen > self.gen:
            if self.is_master:
                self._later(0, self._demote)
                self._post(WantElection())
                return
            if kind in ("VOTE1", "VOTE2", "ALIVE"):
                self._set_gen(gen)
                self._master = None
            elif kind != "NEWMASTER":
                self._send(sender, "MASTER_REQ")
                return
        getattr(self, "_on_" + kind.lower())(sender, gen, *rest)

    # ---------------------------------------------------------------------------------------------------- as a client

    def _on_newmaster(self, sender: int, gen: int, end: int) -> None:
        if self.is_master:
            self._later(0, self._demote)
            return
        if (gen, sender) != (self.gen, self._master):
            self._set_gen(gen)
            self._master = sender
            self._ready = self._in_step = False
            self._first_sync, self._begun = not self._begun, True
            self._end_election("")
            if gen != self._told[0]:  # the library notifies once of a generation, whichever master it follows then
                self._come_under(sender)
        self._check_claim(sender)
        if end > len(self._disk.log):  # request the records that a broken connection lost
            self._in_step = False
        if not self._in_step:
            self._send(sender, "SYNC_REQ", tuple(self._disk.log))

    def _check_claim(self, sender: int) -> None:
        """As `ReplicatedStore` does."""
        if self._told != (self.gen, sender):
            self._come_under(sender)

    def _come_under(self, master: int) -> None:
        self._told = (self.gen, master)
        self._post(MasterThere(master, self.gen))

    def _on_sync(self, sender: int, gen: int, common: int, records: tuple[Record, ...]) -> None:
        if self.is_master or sender != self._master or self._in_step:
            return
        disk = self._disk
        if common > len(disk.log):  # an answer to a request from before the log was given up
            return
        lacking = len(records)
        if lacking > COPY_BEHIND and disk.log and self._process.world.may_lose(self._own):
            disk.whole = False
            disk.log.clear()
            disk.synced = 0
            self._rebuild()
            self._post(Refilling())
            self._process.world.point("copy", self._process)
            self._later(self._process.world.random.randrange(20_000, 200_000), self._ask_again, gen)
            return
        if common < len(disk.log):
            del disk.log[common:]
            disk.synced = min(disk.synced, common)
            self._rebuild()
            disk.witness = min(disk.witness, self.reach())
        for record in records:
            disk.log.append(record)
            self.state.apply(record)
        self._in_step = True
        self._ready_due = True
        self._schedule_flush()

    def _ask_again(self, gen: int) -> None:
        if gen == self.gen and self._master is not None and not self._in_step:
            self._send(self._master, "SYNC_REQ", ())

    def _on_log(self, sender: int, gen: int, index: int, record: Record) -> None:
        disk = self._disk
        if self.is_master or sender != self._master:
            return
        if not self._in_step or index > len(disk.log):
            self._in_step = False
            self._send(sender, "SYNC_REQ", tuple(disk.log))
            return
        if index == len(disk.log):
            disk.log.append(record)
            self.state.apply(record)
            self._schedule_flush()

    def _schedule_flush(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            self._later(self._process.world.random.randrange(100, 1500), self._flush, self.gen, self._master)

    def _flush(self, gen: int, master: int | None) -> None:
        self._flush_due = False
        if self.is_master or (gen, master) != (self.gen, self._master) or not self._in_step:
            return
        disk = self._disk
        disk.synced = len(disk.log)
        disk.witness = self.reach()
        self._process.world.point("flush", self._process)
        if self._ready_due:
            self._ready_due = False
            self._ready = disk.whole = True
            self._first_sync = False
            self._post(Ready(self.members()))
        self._post(Flushed(LogPosition(gen, 1, disk.synced), self.state.sequence, self.members()))

    # --------------------------------------------------------------------------------------------------- as the master

    def _on_sync_req(self, sender: int, gen: int, theirs: tuple[Record, ...]) -> None:
        if not self.is_master:
            return
        log = self._disk.log
        common = 0
        for ours, other in zip(log, theirs, strict=False):
            if ours is not other:
                break
            common += 1
        self._send(sender, "SYNC", common, tuple(log[common:]))

    def _on_newclient(self, sender: int, gen: int) -> None:
        if self.is_master:
            self._send(sender, "NEWMASTER", len(self._disk.log))

    _on_master_req = _on_newclient

    def _become_master(self) -> None:
        """`rep_start(MASTER)`: if late, it takes the generation of a later election, whose winner may have begun, or
        may yet."""
        world = self._process.world
        late = self._won_at is not None and world.now_us - self._won_at > 5_000
        self._won_at = None
        gen = max(self.gen + 1, self._egen)
        self._set_gen(max(gen, world.newest_gen + world.random.randrange(2)) if late else gen)
        self.is_master = True
        self._master = None
        self._in_step = self._ready = False
        self._disk.log.append(Record(self.gen, self.state.sequence))
        self._send(None, "NEWMASTER", len(self._disk.log))
        self._send(None, "LOG", len(self._disk.log) - 1, self._disk.log[-1])
        found = self.state.values.get(self.STATE)
        state = StoreState(self.state.sequence, 0) if found is None else layout.decode_state(found)
        self._post(MasterHere(self.gen, state, self.state.values.get(self.MARK), self.members()))

    def _pump(self) -> None:
        """Commit all waiting operations as one record, synced once; a request key applies once."""
        jobs, self._jobs = self._jobs, []
        ops = {op[0]: op for job_ops, _ in jobs for op in job_ops if not self._applied(op[0])}
        if not ops:
            self._committed(jobs, None)
            return
        record = Record(self.gen, self.state.sequence + 1, tuple(ops.values()))
        log = self._disk.log
        log.append(record)
        self._process.world.point("commit", self._process)
        self._send(None, "LOG", len(log) - 1, record)
        self._later(self._process.world.random.randrange(100, 1500), self._committed, jobs, record)

    def _applied(self, request: str) -> bool:
        return request in self.state.requests

    def _committed(self, jobs: list[tuple[tuple[Op, ...], Callable[[int], None]]], record: Record | None) -> None:
        if record is not None:
            self._disk.synced = len(self._disk.log)
            self.state.apply(record)
            self._disk.witness = self.reach()
            self._process.world.point("sync", self._process)
            self._post(SyncedCommit(record.sequence, LogPosition(self.gen, 1, self._disk.synced)))
        for _, done in jobs:
            done(self.state.sequence)
        self._busy = False
        if self._demote_due:
            self._demote()
        elif self._jobs:
            self._busy = True
            self._later(50, self._pump)

    def _demote(self) -> None:
        if not self.is_master:
            return
        if self._busy:
            self._demote_due = True
            return
        self._demote_due = self.is_master = False
        self._jobs.clear()
        self._post(Demoted(self.members()))
        self._process.world.point("demoted", self._process)
        self._send(None, "NEWCLIENT")

    # ------------------------------------------------------------------------------------------------------- elections

    def _word(self) -> _Word:
        """This replica's vote. Every replica draws a new number for each election to decide between equal logs."""
        log = self._disk.log
        tie = crc32(f"{self._own} {self._egen}".encode())
        return (log[-1].term if log else 0, len(log), tie, self._own)

    def _on_vote1(self, sender: int, gen: int, egen: int, word: _Word) -> None:
        if self.is_master:
            self._send(sender, "NEWMASTER", len(self._disk.log))
            return
        if egen < self._egen:
            self._send(sender, "ALIVE", self._egen)
            return
        self._raise_egen(egen)
        if self._election is None:
            self._early[sender] = word
            self._post(WantElection())
        elif self._election.phase == 1:
            self._election.words[sender] = word
            self._count(self._election)

    def _on_vote2(self, sender: int, gen: int, egen: int) -> None:
        election = self._election
        if election is not None and election.egen == egen:
            election.for_us.add(sender)
            self._win(election)

    def _on_alive(self, sender: int, gen: int, egen: int) -> None:
        self._raise_egen(egen)
        self._post(WantElection())

    def _raise_egen(self, egen: int) -> None:
        if egen > self._egen:
            self._egen = egen
            self._early = {}
            self._end_election("a later one is held", newer=True)

    def _count(self, election: _Election) -> None:
        if self._election is election and election.phase == 1 and len(election.words) >= election.sites:
            self._cast(election)

    def _cast(self, election: _Election) -> None:
        election.phase = 2
        winner = max(election.words.values())[3]
        if winner == self._own:
            election.for_us.add(self._own)
            self._win(election)
        else:
            self._process.world.point("vote2", self._process)
            self._send(winner, "VOTE2", election.egen)
        self._later(election.wait_us, self._phase_ends, election, 2)

    def _phase_ends(self, election: _Election, phase: int) -> None:
        if self._election is not election or election.phase != phase:
            return
        if phase == 1 and len(election.words) >= election.votes:
            self._cast(election)
        else:
            self._end_election("too few votes")

    def _win(self, election: _Election) -> None:
        if self._election is election and self._own in election.for_us and len(election.for_us) >= election.votes:
            self._election = None
            self._won_at = self._process.world.now_us
            self._later(0, self._become_master)
            self._process.world.point("elected", self._process)

    def _end_election(self, reason: str, *, newer: bool = False) -> None:
        if self._election is not None:
            self._egen = max(self._egen, self._election.egen + 1)
            self._election = None
            if reason:
                self._post(ElectionFailed(reason, newer))

    # ------------------------------------------------------------------------------------------------------------ ends

    def _set_gen(self, gen: int) -> None:
        self.gen = self._disk.gen = gen
        self._egen = max(self._egen, gen + 1)
        world = self._process.world
        world.newest_gen = max(world.newest_gen, gen)

    def _rebuild(self) -> None:
        self.state = State()
        for record in self._disk.log:
            self.state.apply(record)

    def _post(self, event: Event) -> None:
        self._process.on_event(event)

    def _send(self, peer: int | None, kind: str, *rest: Any) -> None:
        self._process.send_frame(peer, (kind, self.gen, *rest))

    def _later(self, delay_us: int, step: Callable[..., None], *arguments: Any) -> None:
        self._process.engine_later(delay_us, step, *arguments)
