"""The replicated Berkeley DB engine: one environment, and the thread that replicates it.

It carries out the protocol's decisions (`replicated_port.py`) by the base replication API, over the links of others.
Directory: as that of `bdb/store.py`, and `replica` (its owner), `suspect` (it panicked: its pages have to be read).
`acked` in it has term and sequence of the newest commit that this replica vouched for.
Order of calls, and why: `docs/design/009`. Breaking any of these invariants has cost acknowledged commits:
- It vouches for contents (`SyncedCommit`, `Flushed`) only after syncing them, and only in their own term: a new master
  may have rolled them back.
- It votes only when electable, and only with whole contents: the library ignores the log of an unelectable voter. So it
  neither votes nor vouches before its first synchronisation (`Ready`).
- The replication thread takes frames and commands one at a time, in their order. The receiving thread applies only a
  brief bundle, while nothing waits and the replication thread rests.
- Only the replication thread makes it master, before any further frame, on a young election, and only if no other
  master appeared since.
- Roles change only when nobody is inside the library (`bdb/gate.py`).
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from berkeleydb import db as bdb

from chelonia.ahash.store import layout, meta
from chelonia.ahash.store.bdb import environment
from chelonia.ahash.store.bdb.checkpoints import Checkpoints, PageWriter
from chelonia.ahash.store.bdb.commits import Commits
from chelonia.ahash.store.bdb.elections import Elections, Order
from chelonia.ahash.store.bdb.environment import BdbSettings, Errors, TreeState
from chelonia.ahash.store.bdb.files import (
    PeerIdentity,
    PeerNotes,
    claim_directory,
    free_lock,
    make_private,
    take_lock,
    was_killed,
)
from chelonia.ahash.store.bdb.frames import Frame, FrameKind, frame_kind, is_brief, is_whole, may_roll_back
from chelonia.ahash.store.bdb.gate import Gate, OneState
from chelonia.ahash.store.bdb.kept_logs import KeptLogs
from chelonia.ahash.store.bdb.store import BdbStore
from chelonia.ahash.store.bdb.sync_progress import ANNOUNCE_MS, Announcements, SyncProgress
from chelonia.ahash.store.bdb.work import Briefness, WorkQueue
from chelonia.ahash.store.layout import StoreState
from chelonia.ahash.store.port import StoredState
from chelonia.ahash.store.replicated_port import (
    CheckpointDue,
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
    Send,
    SyncedCommit,
    WantElection,
    frame_term,
)
from chelonia.ahash.store.store_threads import REPLICATION_ROUND_S, AtWork
from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind

_LOG = logging.getLogger(__name__)
T = TypeVar("T")

UNSENT: Final = frozenset({FrameKind.DUPMASTER, FrameKind.NEWSITE})
"""Frames that stay here. DUPMASTER deposes every master, also the newer of two; NEWSITE, each replica's answer to each
announcement, announces a site that all know."""
REFILL: Final = "move it away and start this replica on an empty directory, the others fill it"
"""The cure for damaged files of a replica."""
TRIES_MAX: Final = 5
"""Attempts at one use of the tree: each may find a handle that a synchronisation made useless, or lose a deadlock."""


class ReplicatedStore:
    """A `ReplicatedEngine` on Berkeley DB. Opening recovers; it takes nothing before `start`.

    Args: `before_office`: called between the election's check and becoming master, where tests stop the process.
    Raises: UNAVAILABLE (another process has the directory), BAD_CONFIG (another replica's), INTERNAL (recovery failed).
    """

    def __init__(
        self,
        directory: Path,
        settings: BdbSettings,
        identity: PeerIdentity,
        before_office: Callable[[], None] = lambda: None,
    ) -> None:
        self._directory = directory
        self._settings = settings
        self._own = identity.replica
        self._before_office = before_office
        self._state = OneState()
        self._gate = Gate()
        self._logs = KeptLogs(directory, settings, self._gate, self._open_env)
        self._commits = Commits(lambda control, record: self._send(None, control, record), self._panic)
        self._work: WorkQueue[Frame | Callable[[], None]] = WorkQueue()
        self._brief = Briefness()
        self._bytes_queued = self._bytes_taken = 0  # one written by the receiver, the other by the holder of the turn
        thread = threading.Thread(target=self._replicate, name="ahash-replication", daemon=True)
        self.replication = AtWork(thread, REPLICATION_ROUND_S)
        self._post: Callable[[Event], None] = lambda event: None
        self._send: Send = lambda peer, control, record: None
        self._panicked = self._closed = False
        # written by the holder of the turn at `_work`, read elsewhere
        self._master: int | None = None
        self._term = 0
        self._ready = self._copied = False
        self._readable = True
        self._pending: LogPosition | None = None
        self._frame_term = 0
        self._complaint = ""
        # written by several threads, each time in one assignment
        self._initialising = self._rousing = False
        self._progress = SyncProgress()
        self._announcements = Announcements()
        self._refills = 0
        self._applied = 0
        self._pages = PageWriter(directory / "db" / environment.TREE, self._gate, lambda: self._env)
        self._checkpoints = Checkpoints(settings, self._pages, lambda: self._post(CheckpointDue()))
        self._env: Any = None
        self._tree: Any = None
        if (directory / "restored").exists():
            BdbStore(directory, settings, _LOG.error).close()  # a backup: it begins its new generation by itself
        make_private(directory)
        make_private(directory / "db")
        self._killed = was_killed(directory / "lock")
        self._lock = take_lock(directory / "lock")
        try:
            claim_directory(directory / "replica", identity)
            self.notes = PeerNotes(directory)
            with environment.opening(directory, REFILL):
                self._elections = Elections(
                    self._open_environment(),
                    self._refusal,
                    lambda failure: self._post(failure),  # noqa: PLW0108 - who is told is known at the start only
                )
                self.newest_term = int(self._open_env().rep_stat()["gen"])
                self._trusted = self._find_trust()
        except BaseException:
            self._release()
            raise

    # --- commands of the protocol ----------------------------------------------------------------------------------

    def start(self, events: Callable[[Event], None], send: Send) -> None:
        self._post, self._send = events, send
        if self._panicked:  # in a read before: not reported yet
            self._post(Failed(self._complaint))
        self._work.put(self._follow)
        self.replication.thread.start()
        self._elections.start()

    def found(self) -> None:

        def take() -> None:
            self._trusted = True
            self._take_office()

        self._work.put(take)

    def process(self, sender: int, control: bytes, record: bytes) -> None:
        bytes_waiting, waiting = self._bytes_queued - self._bytes_taken, len(self._work)
        full = bytes_waiting >= bounds.REPLICA_FRAME_BYTES_QUEUED_MAX or waiting >= bounds.REPLICA_FRAMES_QUEUED_MAX
        if not full and frame_kind(control) != FrameKind.DUPMASTER:
            self._bytes_queued += len(record)
            if not self._follow_at_once(frame := Frame(sender, control, record)):
                self._work.put(frame)
        elif full:
            self._complain(f"more frames of replica {sender} wait than are kept: more are dropped", logging.WARNING)

    def peer_up(self, peer: int) -> None:
        del peer  # the announcement goes to all: a replica that knows us already answers with nothing new
        self._announcements.connected(_now_ms(), ready=self._ready)
        self._work.put(self._announce)

    def elect(self, sites: int, votes: int, valid_ms: int, wait_ms: int) -> None:
        self._elections.request(Order(sites, votes, valid_ms, wait_ms))

    def step_down(self) -> None:
        self._work.put(self._leave_office)

    def write_pages(self) -> None:
        self._pages.request()

    def rouse(self, still_ms: int) -> None:
        """Have the replication thread look to itself; no such call waits for another."""
        if not self._rousing:
            self._rousing = True
            self._work.put(lambda: self._look_to_itself(still_ms))

    def set_voter(self, voter: bool) -> None:
        self._elections.voter = voter
        self._work.put(self._elections.set_priority)

    def applied(self) -> int:
        """Sequence of the last commit visible to readers here, as of the last one vouched for."""
        return self._applied

    def trusted(self) -> bool:
        return self._trusted

    # --- Store -----------------------------------------------------------------------------------------------------

    def get(self, key: bytes) -> bytes | None:
        return self.get_many((key,))[0]

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._use(lambda tree: [tree.get(key) for key in keys])

    def scan(self, start: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        return self._use(lambda tree: environment.scan(tree, start, end, limit))

    def reading(self) -> AbstractContextManager[None]:
        return self._state.reading()

    def at_once(self, work: Callable[[StoredState], T]) -> T | None:
        # waits at no gate: a change of role takes the state before it shuts the gate
        return self._state.at_once(lambda number: self._use(lambda tree: work(TreeState(tree, number))))

    def commit(self, puts: Mapping[bytes, bytes], deletes: Iterable[bytes], term: int | None = None) -> None:
        """Apply all or nothing; it is synced here and reported as `SyncedCommit` when this returns."""
        deletes = tuple(deletes)

        def work(tree: Any) -> None:
            if self._master != self._own or term not in (None, self._term):
                cause = "this replica is not the master (of that term) any more: ask the master"
                raise CheloniaError(Kind.UNAVAILABLE, "ahash", "store", cause)
            self._commit(tree, puts, deletes)

        with nullcontext() if self._commits.late else self._state.changing():
            self._use(work)
        self._checkpoints.changed(puts)

    def _commit(self, tree: Any, puts: Mapping[bytes, bytes], deletes: Iterable[bytes]) -> None:
        """Commit within the gate: no change of role comes between commit and `SyncedCommit`, unless that is late."""
        state = puts.get(layout.META_STATE)
        sequence = self._applied if state is None else layout.decode_state(state).sequence
        token = self._commits.make(self._env, tree, puts, deletes)
        if token is not None:  # else it changed nothing
            self._commits.made(sequence, token)
            if not self._commits.late:
                self._report_synced()

    def _report_synced(self) -> None:
        """Vouch for the commits of our term that are synced now, within the gate."""
        for sequence, token in self._commits.synced(self._term if self._master == self._own else 0):
            self._applied = sequence
            self._vouch(sequence)
            self._post(SyncedCommit(sequence, token))

    def write_at_once(self, work: Callable[[], T]) -> T | None:
        return self._state.change_at_once(lambda: self._write_now(work))

    def _write_now(self, work: Callable[[], T]) -> T | None:
        if self._master != self._own or not self._commits.brief.expected(time.monotonic()):
            return None
        return self._commits.synced_later(work)

    def sync_at_once(self) -> bool:
        """See `Store.sync_at_once`. It does not wait for a change of role, which holds the state."""
        began_s = time.monotonic()
        if self._state.held or not self._commits.brief.expected(began_s):
            return False
        self.sync()
        return True

    def sync(self) -> None:
        """Sync the commits of the event loop and report them; step down if that fails."""
        began_s = time.monotonic()
        try:
            with Errors(self._panic, Kind.OUTCOME_UNKNOWN, Kind.OUTCOME_UNKNOWN), self._gate:
                if self._commits.untold:
                    self._open_env().log_flush()
                    self._report_synced()
        except CheloniaError:
            self.step_down()
            raise
        self._commits.note_sync(began_s)

    def upkeep_due(self) -> bool:
        """Return whether to make a checkpoint. Only a master makes them; followers take them from its log."""
        return self._master == self._own and self._env is not None and self._checkpoints.is_due()

    def upkeep(self) -> None:
        """Write a checkpoint, remove logs beyond those kept, sync the notes."""
        self._checkpoints.made()
        with Errors(self._panic), self._gate:
            if self._open_env() and self._master == self._own:
                self._env.txn_checkpoint()
        self._logs.remove()
        self.notes.sync()

    def backup(self, target: str) -> None:
        environment.write_backup(target, self._copy)

    def _copy(self, partial: Path) -> None:
        with self._logs.lock, Errors(self._panic, full=Kind.NO_SPACE):
            before = self._history()
            environment.copy_environment(self._open_env(), partial)
        if self._history() != before:  # pages of one history with the log of another
            cause = "the replica came under another master while it was copied: try again"
            raise CheloniaError(Kind.UNAVAILABLE, "backup", cause=cause)

    def _history(self) -> tuple[int | None, int, int]:
        """A value that stays the same until a rollback or refill."""
        return self._master, self._term, self._refills

    def free_bytes(self) -> int:
        """Return the bytes of the file system that are free for users other than root."""
        return shutil.disk_usage(self._directory).free

    def close(self) -> None:
        """Stop the threads, wait for a running backup and release everything; safe to call twice."""
        self._closed = True
        self._work.put(lambda: None)  # wakes the replication thread
        self._elections.stop()
        self._pages.close()
        if self.replication.thread.is_alive():
            self.replication.thread.join()
        with self._logs.lock, self._work.turn, self._state.changing(), self._gate.exclusive():
            self._release()

    # --- opening and closing ---------------------------------------------------------------------------------------

    def _open_environment(self) -> Any:
        self._env = environment.open_replicated(
            self._directory / "db", self._settings, self._own, self._transport, self._on_event
        )
        return self._env

    def _find_trust(self) -> bool:
        """Whether recovery found all commits that this replica vouched for.

        A directory without a witness of them is new, wiped, or was never synchronised: False.
        """
        self._open_tree(create=False)
        environment.clear_suspicion(self._directory, self._tree, killed=self._killed)
        self._killed = False
        self._applied = self._state_of(self._tree).sequence
        if self._applied < self.notes.acked.value[1]:
            _LOG.warning(
                "ahash replica %d recovered commit %d, but vouched for %d: it takes part again when synchronised",
                self._own, self._applied, self.notes.acked.value[1],
            )  # fmt: skip
        return self.notes.acked.value[0] > 0 and self._tree is not None and self._applied >= self.notes.acked.value[1]

    def _drop_tree(self) -> None:
        """Close the handle; the next use opens another."""
        # An old handle must not read what a synchronisation replaced. The library dates handles in whole seconds: one
        # opened in the same second passes for alive, and reads a file that is gone.
        old, self._tree = self._tree, None
        if old is not None:
            with suppress(bdb.DBError):  # a dead one says so in any call
                old.close()

    def _open_tree(self, create: bool) -> None:
        """Open the tree where it exists, or `create` it."""
        self._drop_tree()
        tree = environment.new_tree(self._env)
        flags = bdb.DB_THREAD | bdb.DB_AUTO_COMMIT | (bdb.DB_CREATE if create else 0)
        try:
            tree.open(environment.TREE, dbtype=bdb.DB_BTREE, flags=flags, mode=0o600)
        except bdb.DBNoSuchFileError:
            tree.close()
        except bdb.DBError:
            with suppress(bdb.DBError):
                tree.close()
            raise
        else:
            self._tree = tree

    def _release(self) -> None:
        for handle in (self._tree, self._env):
            try:
                if handle is not None:
                    handle.close()
            except bdb.DBError as error:
                _LOG.log(logging.INFO if self._panicked else logging.WARNING, "closing Berkeley DB: %s", error)
        self._tree = self._env = None
        if hasattr(self, "notes"):
            self.notes.close()
        if self._lock >= 0:
            free_lock(self._lock, in_order=not self._killed)
            self._lock = -1

    # --- using the tree --------------------------------------------------------------------------------------------

    def _use(self, work: Callable[[Any], T]) -> T:
        """Run `work` on the tree within the gate; replace a dead handle, try again after a lost deadlock."""
        for _ in range(TRIES_MAX):
            if self._replaced():  # checked before the gate too, which a synchronisation passes at every frame
                break
            tree = None
            try:
                with self._gate:
                    self._open_env()
                    if self._replaced():
                        break
                    tree = self._tree
                    if tree is not None:
                        return work(tree)
            except bdb.DBRepHandleDeadError:
                pass
            except bdb.DBLockDeadlockError:
                continue
            except bdb.DBRepLockoutError:
                break
            except (bdb.DBError, MemoryError) as error:
                raise environment.translate(error, self._panic) from error
            self._replace(tree)
            if self._tree is None:
                break
        raise CheloniaError(Kind.UNAVAILABLE, "ahash", "store", "this replica is being synchronised: retry")

    def _replaced(self) -> bool:
        """Whether a synchronisation is under way, and our contents must not be read."""
        return not self._readable

    def _replace(self, dead: Any) -> None:
        """Open the tree again unless another thread just did; not in a synchronisation: the library would wait."""
        with self._gate.exclusive():
            if self._tree is dead and self._readable and self._env is not None and not self._panicked:
                with suppress(bdb.DBRepLockoutError, bdb.DBRepHandleDeadError, bdb.DBLockDeadlockError):
                    self._open_tree(create=False)

    def _open_env(self) -> Any:
        if self._env is None or self._panicked:
            cause = "the store is closed or its engine panicked; the process restarts: retry"
            raise CheloniaError(Kind.UNAVAILABLE, "ahash", "store", cause)
        return self._env

    @staticmethod
    def _state_of(tree: Any) -> StoreState:
        return StoreState(0, 0) if tree is None else meta.read_state(tree)

    def _visible(self) -> tuple[int, bytes | None] | None:
        """The sequence and membership record that readers see; None: they cannot be read now."""
        try:
            return self._use(lambda tree: (self._state_of(tree).sequence, tree.get(layout.META_MEMBERS)))
        except CheloniaError as error:
            _LOG.info("ahash replica %d cannot tell now where it stands: %s", self._own, error)
            return None

    def _vouch(self, sequence: int) -> None:
        """Write down that we vouch for this commit; only a witness, so a failure is no error."""
        if (self._term, sequence) < self.notes.acked.value:
            return
        try:
            self.notes.acked.note(self._term, sequence)
        except OSError as error:
            _LOG.warning("the witness of what was acknowledged could not be written: %s", error)

    # --- the replication thread ------------------------------------------------------------------------------------

    def _replicate(self) -> None:
        """Take frames and commands in order; sync and vouch once for all that waited."""
        try:
            while not self._closed:
                waiting = self._work.wait(ANNOUNCE_MS / 1000)
                with self._work.turn:
                    if waiting:
                        self._drain()
                    elif self._announcements.are_due(_now_ms(), ready=self._ready):
                        self._carry_out(self._announce)
                    self._carry_out(self._flush)
                    self._carry_out(self._look_after_logs)
        except (bdb.DBError, CheloniaError, OSError) as error:
            self._panic(f"Berkeley DB: {error!r}")
        finally:
            if not self._closed:  # without this thread nothing is acknowledged, and no master can step down
                self._panic("the replication thread has ended")

    def _drain(self) -> None:
        """Take the work that waits and that comes meanwhile, up to a bound."""
        for _ in range(bounds.REPLICA_FRAMES_PER_FLUSH_MAX):
            if not self._work:
                return
            self._carry_out(self._work.take())
            self._carry_out(self._take_office_if_won)

    def _follow_at_once(self, frame: Frame) -> bool:
        """Apply, sync and vouch for a brief bundle on the thread that received it; False: it has to wait.

        A brief bundle neither rolls back nor writes a checkpoint. It has to wait for a thread, election or reader.
        """
        began_s = time.monotonic()
        if not (is_brief(frame.control, frame.record) and self._work.take_turn()):
            return False
        at_rest = False
        try:
            at_rest = self._brief.expected(began_s) and self._is_follower_at_rest()
            if at_rest:
                self._carry_out(frame)
                self._carry_out(self._flush)
                self._brief.note(began_s, time.monotonic())
        except (bdb.DBError, CheloniaError, OSError) as error:
            self._panic(f"Berkeley DB: {error!r}")
        finally:
            self._work.turn.release()
        return at_rest

    def _is_follower_at_rest(self) -> bool:
        """Whether this follows a master, and neither an election nor a reader is at work."""
        follows = self._ready and self._master != self._own and not (self._closed or self._panicked)
        return follows and not (self._elections.turn.locked() or self._state.held)

    def _carry_out(self, item: Frame | Callable[[], None]) -> None:
        self.replication.begins()
        try:
            if isinstance(item, Frame):
                self._process(item)
            else:
                item()
        except (bdb.DBError, MemoryError) as error:
            if isinstance(error, bdb.DBNoSpaceError) or environment.is_damage(error):
                raise
            self._complain(str(error))

    def _complain(self, line: str, level: int = logging.ERROR) -> None:
        """Log a line unless it was the last one."""
        if line != self._complaint:
            self._complaint = line
            _LOG.log(level, "ahash replication: %s", line)

    def _process(self, frame: Frame) -> None:
        self._bytes_taken += len(frame.record)
        self._frame_term = frame_term(frame.control)
        was_ready = self._ready
        if not is_whole(frame.control, frame.record):
            _LOG.error("ahash replication: replica %d sent half a bundle", frame.sender)
            return
        with self._elections.turn:
            if self._master == self._own:
                answer = self._apply(frame)
            elif not self._elections.ballot.admits(frame.sender, frame.control, frame.record):
                return
            else:
                with self._state.changing():
                    answer = self._follow_frame(frame)
        self._obey(answer)
        if self._copied:
            self._copied = False
            self._ready = self._ready or bool(self._env.rep_stat()["startup_complete"])
        if self._ready and not was_ready:
            self._synchronised()

    def _follow_frame(self, frame: Frame) -> tuple[Any, Any]:
        if self._ready and not may_roll_back(frame.control, by_master=frame.sender == self._master):
            return self._apply(frame)
        with self._gate.exclusive():
            self._drop_tree()
            return self._apply(frame)

    def _apply(self, frame: Frame) -> tuple[Any, Any]:
        answer: tuple[Any, Any] = self._env.rep_process_message(frame.control, frame.record, frame.sender)
        if frame_kind(frame.control) == FrameKind.NEWMASTER and self._master != self._own:
            self._check_claim(frame.sender)
        return answer

    def _check_claim(self, sender: int) -> None:
        """Follow the claimant if the library does. It reports only the first master of a generation, and once."""
        found = self._env.rep_stat()
        changed = self._master != sender or (self._ready and not found["startup_complete"])
        if changed and (found["master"], found["gen"]) == (sender, self._frame_term):
            self._come_under(sender)

    def _obey(self, answer: tuple[Any, Any]) -> None:
        result, lsn = answer
        if result == bdb.DB_REP_ISPERM:
            token = LogPosition(self._frame_term, int(lsn[0]), int(lsn[1]))
            if token.term == self._term and self._master not in (None, self._own):
                self._pending = token
        elif result == bdb.DB_REP_DUPMASTER:
            self._leave_office()
            self._post(WantElection())
        elif result == bdb.DB_REP_HOLDELECTION:
            self._elections.superseded()
            self._post(WantElection())
        elif result == bdb.DB_REP_JOIN_FAILURE:
            _LOG.error("ahash replica %d cannot be synchronised by Berkeley DB", self._own)

    def _synchronised(self) -> None:
        self._env.log_flush()
        self._readable = True
        self._initialising = False
        self._trusted = True
        self._announcements.begin_anew()
        self._applied, members = self._visible() or (0, None)
        self._vouch(self._applied)
        self._elections.retire(retiring=False)
        shutil.rmtree(self._directory / environment.DAMAGED, ignore_errors=True)
        self._post(Ready(members))

    def _flush(self) -> None:
        """Sync the applied commits and vouch for them, unless another term may have rolled them back."""
        token = self._pending
        if token is None or not self._ready:
            return
        if token.term == self._term:
            began_s = time.monotonic()
            self._env.log_flush()
            self._brief.note(began_s, time.monotonic())
            found = self._visible()
            if found is None:
                return
            self._applied, members = found
            self._vouch(self._applied)
            self._post(Flushed(token, self._applied, members))
        self._pending = None

    def _look_after_logs(self) -> None:
        """Remove old logs of a follower now and then; a master does so with its checkpoints."""
        if self._master != self._own and self._logs.is_due():
            self._logs.remove()
            self.notes.sync()

    def _follow(self) -> None:
        with self._state.changing(), self._gate.exclusive():
            self._env.rep_start(bdb.DB_REP_CLIENT)

    def _announce(self) -> None:
        if self._master != self._own:
            self._env.rep_start(bdb.DB_REP_CLIENT)

    def _leave_office(self) -> None:
        if self._master != self._own:
            return
        try:
            with self._state.changing(), self._gate.exclusive():
                self._master, self._ready, self._pending = None, False, None
                self._env.rep_start(bdb.DB_REP_CLIENT)
        except bdb.DBError as error:
            self._panic(f"the office cannot be left: {error}")
            raise
        self._elections.retire(retiring=True)
        _LOG.info("ahash replica %d is no longer master of term %d", self._own, self._term)
        _, members = self._visible() or (0, None)
        self._post(Demoted(members))

    def _take_office_if_won(self) -> None:
        if self._elections.take_mandate():
            self._before_office()
            try:
                self._take_office()
            except bdb.DBRepUnavailError as error:
                self._post(ElectionFailed(f"Berkeley DB: {error}"))
            except bdb.DBError as error:
                self._panic(f"the office cannot be taken: {error}")
                raise

    def _take_office(self) -> None:
        if self._master == self._own:  # a founder may be elected before its protocol knows that it is master
            return
        with self._state.changing(), self._gate.exclusive():
            self._env.rep_start(bdb.DB_REP_MASTER)
            found = self._env.rep_stat()
            if found["status"] != bdb.DB_REP_MASTER:
                self._post(ElectionFailed("Berkeley DB was busy and did not become master"))
                return
            self._master, self._term, self._ready, self._pending = self._own, found["gen"], True, None
            self._open_tree(create=True)
            state, tree = self._state_of(self._tree), self._tree
            self._applied = state.sequence
            event = MasterHere(self._term, state, tree.get(layout.META_TERM), tree.get(layout.META_MEMBERS))
        self._initialising, self._readable = False, True
        self._elections.retire(retiring=False)
        self._vouch(self._applied)
        _LOG.info("ahash replica %d is master of term %d from commit %d", self._own, self._term, self._applied)
        self._post(event)

    # --- elections ---------------------------------------------------------------------------------------------------

    def _refusal(self) -> str:
        """The reason why this replica must not vote now; empty: it may."""
        if not self._elections.voter:
            return "this replica has no vote"
        if not self._trusted:
            return "this replica has no vote until it is synchronised"
        if self._initialising:
            self._work.put(self._begin_anew)
            return "the master was lost during the first synchronisation: the environment is opened again"
        return ""

    def _look_to_itself(self, still_ms: int) -> None:
        """Begin anew if nothing moved since the last call: no commit, and no copy of log or pages."""
        self._rousing = False
        if self._master == self._own:
            return None
        if not self._progress.is_still(self._env.rep_stat(), self._master, self._term, self._applied, self._ready):
            return self._announce()
        problem = f"has vouched for nothing for {still_ms // 1000} s ({self._progress.description}): it is opened again"
        cure = f"if this comes again and again, stop it, and as for {self._directory}: {REFILL}"
        _LOG.warning("ahash replica %d %s; %s", self._own, problem, cure)
        return self._open_again()

    def _begin_anew(self) -> None:
        """Open again a replica that lost its master while synchronising, unless a copy is replacing it by now."""
        if self._initialising and self._trusted:
            self._open_again()

    def _open_again(self) -> None:
        """Open the environment again, as a new process would, unless a backup or an election is under way."""
        if not self._logs.lock.acquire(blocking=False):
            return
        try:
            with self._elections.turn, self._state.changing(), self._gate.exclusive():
                if self._elections.inside:
                    return
                self._drop_tree()
                with environment.opening(self._directory, REFILL):
                    self._env.close()
                    self._elections.serve(self._open_environment())
                    self._trusted = self._find_trust()
                self._master, self._ready, self._copied, self._pending = None, False, False, None
                self._initialising, self._readable = False, True
                self._env.rep_start(bdb.DB_REP_CLIENT)
        finally:
            self._logs.lock.release()
        _LOG.info("ahash replica %d opened its environment again, at commit %d", self._own, self._applied)
        if not self._trusted:
            self._post(Refilling())

    # --- called by the library, on any thread; may not call it ------------------------------------------------------

    def _transport(self, env: Any, control: bytes, record: bytes, lsn: tuple[int, int], peer: int, flags: int) -> int:
        """Pass a frame on. Return 0 always: this callback does not know whether a majority has a commit."""
        del env
        if self._commits.gather(control, record, lsn, peer, flags):
            return 0
        kind = frame_kind(control)
        if kind == FrameKind.VOTE1:
            self._elections.ballot.cast(record)
        self._elections.frame_sent()
        if kind == FrameKind.UPDATE_REQ:
            self._initialising, self._ready, self._readable = True, False, False
            self._refills += 1
        elif kind == FrameKind.PAGE_REQ and self._trusted:
            self._trusted = False
            self._post(Refilling())
        if kind not in UNSENT:
            self._commits.send_gathered()
            self._send(None if peer == bdb.DB_EID_BROADCAST else peer, control, record)
        return 0

    def _on_event(self, env: Any, event: int, info: Any) -> None:
        del env
        if event == bdb.DB_EVENT_REP_ELECTED:
            self._elections.won()
            self._work.put(lambda: None)  # wakes the replication thread
        elif event == bdb.DB_EVENT_REP_NEWMASTER and info != self._own:
            self._come_under(info)
        elif event == bdb.DB_EVENT_REP_STARTUPDONE:
            self._ready = True
        elif event == bdb.DB_EVENT_REP_INIT_DONE:
            self._copied = True
        elif event == bdb.DB_EVENT_PANIC:
            cause = "Berkeley DB panicked: recovery runs at the next start"
            self._panic(f"{cause}; if {self._directory} fails then too: {REFILL}")

    def _come_under(self, master: int) -> None:
        self._elections.overtaken()
        self._announcements.begin_anew()
        self._master, self._term, self._ready, self._pending = master, self._frame_term, False, None
        self._readable = False
        self._post(MasterThere(master, self._term))

    def _panic(self, reason: str) -> None:
        """Refuse everything from now on and report it, once."""
        if reason != self._complaint:
            self._complaint = reason
            _LOG.info("ahash replica %d cannot go on: %s", self._own, reason)
        if not self._panicked:
            self._panicked = True
            environment.suspect(self._directory)
            self._post(Failed(reason))


def _now_ms() -> int:
    return int(1000 * time.monotonic())
