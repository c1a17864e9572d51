"""The one writer: evaluates a batch of requests in order and commits it as one store transaction.

It runs on the executor's writer, or in the event loop while the writer rests (`Store.write_at_once`).
Invariants:
- No outcome leaves before the commit: an unmet condition or an error may also rest on changes of the same batch.
- An engine error aborts the batch. The requests then run one by one, so that a bad one fails alone.
- An applied transact keeps its outcome under (scope, request key) until it expires. Each batch removes a bounded
  number of expired outcomes, the oldest first.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, islice

import msgspec

from chelonia.ahash import engine
from chelonia.ahash.engine import Overlay
from chelonia.ahash.store import layout, meta
from chelonia.ahash.store.layout import KeptOutcome, StoreState
from chelonia.ahash.store.port import Store
from chelonia.core.cluster.position import Position
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Ms, RequestKey
from chelonia.core.ports.ahash import ChangeOutcome, Element, TransactOutcome

SWEEP_MIN = 64
"""Expired request keys that a batch removes at least, and most keys in one record of the expiry index. A large batch
removes twice as many as it has jobs."""
READ_TOGETHER_MAX = 128
"""Records that a batch reads before it begins: they may be large, so more would take much memory."""
READ_AT_ONCE = 32
"""Of these, those that one call of the store reads: 128 of 110 KB take 14 ms of CPU."""


class TransactJob(msgspec.Struct, frozen=True):
    """A `transact` waiting for the committer. `scope`: the callers that share its request key (`Call.key_scope`)."""

    scope: str
    key: RequestKey
    elements: tuple[Element, ...]
    memo: str = ""


class ChangeJob(msgspec.Struct, frozen=True):
    """A `change` waiting for the committer."""

    elements: tuple[Element, ...]


class RecallJob(msgspec.Struct, frozen=True):
    """A `recall`. The queue has it answered after every transact that came before it."""

    scope: str
    key: RequestKey


class RecordJob(msgspec.Struct, frozen=True):
    """A record of the store's own, waiting for the committer."""

    key: bytes
    value: bytes


Job = TransactJob | ChangeJob | RecallJob | RecordJob
Outcome = TransactOutcome | tuple[ChangeOutcome, ...] | CheloniaError | None
"""The result of a job; None is a recall that found nothing."""


class NotBriefError(Exception):
    """There is more to do than the event loop may. Nothing has changed."""


@dataclass(frozen=True, slots=True)
class CommitLimits:
    """Args: `key_keep_ms`: how long to keep outcomes; `min_free_bytes`: free space below which to refuse changes."""

    key_keep_ms: int
    min_free_bytes: int


class Committer:
    """Evaluates and commits batches, one after the other. Not thread-safe.

    Args: `began_ms`: the time at its start; `term`: see `Store.commit`.
    """

    def __init__(self, store: Store, limits: CommitLimits, began_ms: int = 0, term: int | None = None) -> None:
        self._store = store
        self._term = term
        self._limits = limits
        # Earlier starts and other replicas may have had other clocks: their outcomes stay a whole `key_keep_ms` longer.
        self._forget_from_ms = Ms(began_ms + limits.key_keep_ms)
        self.position = meta.read_position(store)
        """Position of the last commit."""
        self.objects = meta.read_state(store).objects
        """Number of objects in the store."""
        self._sweep_next_ms = Ms(0)
        self.writable = True
        """Whether there is room for changes, as of the last look at the free space."""

    def check_space(self) -> bool:
        """Look at the free space. Return whether there is room for changes."""
        self.writable = self._store.free_bytes() >= self._limits.min_free_bytes
        return self.writable

    def commit(self, jobs: tuple[Job, ...], now_ms: Ms, bytes_max: int = 0) -> list[Outcome]:
        """Apply the jobs in order and make them durable. Return one outcome per job, in their order.

        Args: `now_ms`: a steady time that continues from `began_ms`; setting the clock must not expire a key.
        `bytes_max`: bytes of records that the jobs may read, and write anew; 0: any number.
        Raises: NotBriefError when they are more, or when each job has to run alone.
        """
        try:
            return self._commit(jobs, now_ms, bytes_max)
        except CheloniaError as error:
            if error.kind is not Kind.INTERNAL:
                return [error.with_traceback(None)] * len(jobs)
            if bytes_max:
                raise NotBriefError from error
        return [self._commit_alone(job, now_ms) for job in jobs]

    def _commit_alone(self, job: Job, now_ms: Ms) -> Outcome:
        try:
            return self._commit((job,), now_ms)[0]
        except CheloniaError as error:
            return error.with_traceback(None)

    def _commit(self, jobs: tuple[Job, ...], now_ms: Ms, bytes_max: int = 0) -> list[Outcome]:
        forget_ms = now_ms if now_ms >= self._forget_from_ms else 0
        overlay = _BatchOverlay(self._store, jobs, bytes_max)
        batch = _Batch(overlay, self.position, forget_ms, now_ms + self._limits.key_keep_ms)
        writable = self.check_space()
        outcomes = [batch.run(job, writable) for job in jobs]
        assert writable or not batch.kept, "what is refused leaves no outcome"
        batch.index()
        if writable and forget_ms and now_ms >= self._sweep_next_ms:
            self._sweep(batch.overlay, now_ms, max(SWEEP_MIN, 2 * len(jobs)))
        if batch.overlay.pending:
            self._write(batch.overlay)
        return outcomes

    def _write(self, overlay: Overlay) -> None:
        state = StoreState(self.position.sequence + 1, self.objects + overlay.objects)
        overlay.put(layout.META_STATE, layout.encode_state(state))
        puts = {key: value for key, value in overlay.pending.items() if value is not None}
        deletes = [key for key, value in overlay.pending.items() if value is None]
        try:
            self._store.commit(puts, deletes, self._term)
        except CheloniaError as error:
            if error.kind is Kind.OUTCOME_UNKNOWN:
                with suppress(CheloniaError):  # a store that panicked cannot be read: what is not known stays unknown
                    self._set_state(meta.read_state(self._store))
            raise
        self._set_state(state)

    def _set_state(self, state: StoreState) -> None:
        self.position = Position(self.position.cluster, self.position.generation, state.sequence)
        self.objects = state.objects

    def _sweep(self, overlay: Overlay, now_ms: Ms, limit: int) -> None:
        removed = 0
        for index_key, others in overlay.scan(layout.EXPIRY_PREFIX, layout.expiry_key(now_ms, b""), limit):
            if removed >= limit:
                break
            overlay.put(index_key, None)
            for digest in layout.expiry_digests(index_key, others):
                removed += 1
                kept_key = layout.outcome_key(digest)
                data = overlay.get(kept_key)
                if data is not None and layout.decode_outcome(data).expires_ms < now_ms:
                    overlay.put(kept_key, None)
        self._sweep_next_ms = now_ms if removed >= limit else Ms(now_ms + 1000)


class _BatchOverlay(Overlay):
    """The overlay of a batch. It reads the first records that its jobs name together, the others one by one.

    Its transacts may read `bytes_max` bytes, each time counted; 0: any number. Raises: NotBriefError when the first
    records have more.
    """

    __slots__ = ("_found", "_left")

    def __init__(self, store: Store, jobs: tuple[Job, ...], bytes_max: int) -> None:
        super().__init__(store)
        self._found: dict[bytes, bytes | None] = {}
        self._left = most = bytes_max or sys.maxsize
        keys = tuple(dict.fromkeys(islice(chain.from_iterable(map(_named, jobs)), READ_TOGETHER_MAX)))
        for start in range(0, len(keys), READ_AT_ONCE):
            some = keys[start : start + READ_AT_ONCE]
            found = store.get_many(some)
            self._found.update(zip(some, found, strict=True))
            most -= sum([len(data) for data in found if data])
            if most < 0:
                raise NotBriefError

    def get(self, key: bytes) -> bytes | None:
        # One function: every record that a transact reads comes here.
        if key in self.pending:
            data = self.pending[key]
        elif key in self._found:
            data = self._found[key]
        else:
            data = self._below.get(key)
        if data is not None:
            self._left -= len(data)
            if self._left < 0:
                raise NotBriefError
        return data


def _named(job: Job) -> Iterator[bytes]:
    """Keys of the records that a job reads in any case."""
    if isinstance(job, TransactJob | RecallJob) and job.key:
        yield layout.outcome_key(layout.request_digest(job.scope, job.key))
    if isinstance(job, TransactJob | ChangeJob):
        yield from map(layout.header_key, dict.fromkeys([element.object for element in job.elements]))


@dataclass(slots=True)
class _Batch:
    """A batch being evaluated, on the state at `before`. Its outcomes expire at `expires_ms`; it ignores those that
    expired before `forget_ms`."""

    overlay: Overlay
    before: Position
    forget_ms: int
    expires_ms: int
    kept: list[bytes] = field(default_factory=list)

    @property
    def position(self) -> Position:
        """Position of this batch's answers: that of its own commit as soon as it has something to commit."""
        before = self.before
        return Position(before.cluster, before.generation, before.sequence + 1) if self.overlay.pending else before

    def run(self, job: Job, writable: bool) -> Outcome:
        try:
            match job:
                case TransactJob():
                    return self._recall(job) or self._transact(job, writable)
                case ChangeJob():
                    _check_writable(writable, "change")
                    return engine.change(self.overlay, job.elements)
                case RecallJob():
                    return self._recall(job)
                case RecordJob():
                    self.overlay.put(job.key, job.value)
                    return TransactOutcome(True, self.position)
        except CheloniaError as error:
            if error.kind in (Kind.INTERNAL, Kind.UNAVAILABLE):
                raise
            return error.with_traceback(None)  # else it would hold the frames of its batch, which hold it

    def _transact(self, job: TransactJob, writable: bool) -> TransactOutcome:
        _check_writable(writable, "transact")
        unmet = engine.transact(self.overlay, job.elements)
        if unmet:
            return TransactOutcome(False, self.position, unmet)
        if job.key:
            self._keep(job)
        return TransactOutcome(True, self.position, memo=job.memo)

    def _keep(self, job: TransactJob) -> None:
        digest = layout.request_digest(job.scope, job.key)
        expires_ms = Ms(self.expires_ms)
        kept = KeptOutcome(self.before.generation, self.before.sequence + 1, expires_ms, job.memo)
        self.overlay.put(layout.outcome_key(digest), layout.encode_outcome(kept))
        self.kept.append(digest)

    def index(self) -> None:
        """Index the batch's outcomes by expiry, many in one record: each record costs every replica."""
        for start in range(0, len(self.kept), SWEEP_MIN):
            digests = self.kept[start : start + SWEEP_MIN]
            self.overlay.put(*layout.expiry_record(Ms(self.expires_ms), digests))

    def _recall(self, job: TransactJob | RecallJob) -> TransactOutcome | None:
        if not job.key:
            return None
        data = self.overlay.get(layout.outcome_key(layout.request_digest(job.scope, job.key)))
        if data is None:
            return None
        kept = layout.decode_outcome(data)
        if kept.expires_ms < self.forget_ms:
            return None
        position = Position(self.before.cluster, kept.generation, kept.sequence)
        return TransactOutcome(True, position, memo=kept.memo, recalled=True)


def _check_writable(writable: bool, op: str) -> None:
    if not writable:
        cause = "the metadata disk is nearly full: free space or enlarge it; reading goes on"
        raise CheloniaError(Kind.READ_ONLY, op, "ahash", cause)
