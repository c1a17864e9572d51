"""The A-Hash service: takes requests in the event loop, queues changes for one committer, sends reads to readers.

It decides nothing about meaning. The event loop waits for no lock of the store and does only brief work on it.
Changes wait in one queue; those in it when the committer is free become one transaction (group commit). Its answers
pass the `Durability` gate together, outside all queues, which delays the next batch by `GATHER_MS` at most.
Reads run beside the committer and see only committed state, one state per call. The event loop does brief reads itself
while no commit is under way.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, field
from typing import Any, Final, ParamSpec, Protocol, TypeVar

import msgspec

from chelonia.ahash import engine, reads
from chelonia.ahash.below import read_below
from chelonia.ahash.committer import (
    ChangeJob,
    CommitLimits,
    Committer,
    Job,
    NotBriefError,
    Outcome,
    RecallJob,
    RecordJob,
    TransactJob,
)
from chelonia.ahash.settings import AHashSettings
from chelonia.ahash.store import meta
from chelonia.ahash.store.port import Durability, Executor, LocalDurability, Reader, Store, StoredState
from chelonia.core import bounds
from chelonia.core.caller import Call, Role
from chelonia.core.cluster.position import Position
from chelonia.core.contents.below import Below, BelowPage
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Ms, ObjectId, RequestKey, parse_request_key
from chelonia.core.limits import LimitCounts
from chelonia.core.metadata import Filter, StoredObject
from chelonia.core.operations.ahash import AHASH
from chelonia.core.ports.ahash import (
    AHashStatus,
    ChangeOutcome,
    ChangeType,
    Element,
    GroupChange,
    ObjectPage,
    Page,
    PagesSeen,
    TransactOutcome,
    Walk,
    WalkOutcome,
)
from chelonia.core.rights.access import admit, guarded
from chelonia.core.timing.clock import Clock
from chelonia.core.timing.eager import Turn, begin
from chelonia.core.timing.jobs import Job as BackgroundJob
from chelonia.core.timing.jobs import Jobs, Next, Wait
from chelonia.core.values import replace

P = ParamSpec("P")
T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)
_LOG = logging.getLogger(__name__)
BRIEF_MS: Final = 8
"""Time of a read or commit in the event loop after which the next ones go to the threads for a while."""
HAND_OVER_FACTOR: Final = 10
"""Length of that while, as a multiple of the time taken."""
BRIEF_OBJECTS: Final = 200
"""Objects, or walks, that one call may read in the event loop."""
BRIEF_READ_MS: Final = 20
"""Time that they may take there. It depends on what users have stored: a stat of 200 deep paths took 0.4 s, and a
master's beats waited."""
BRIEF_ELEMENTS: Final = 200
"""Elements that one batch may commit there. None of them is a `DELETE`, which may remove a thousand properties."""
BRIEF_BYTES: Final = 512 * 1024
"""Bytes of their properties and values, about: 3 ms of CPU, as for so many small elements; the largest values take
44 ms. And bytes of the records that they read: an object is written anew with all that it has."""
GATHER_MS: Final = 2
"""Longest wait of a batch for the one before it: a few times what neighbouring replicas take. Those of distant replicas
overlap."""
_DELETE: Final = ChangeType.DELETE
_BACKUP_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}\Z", re.ASCII)


class _Waiting(msgspec.Struct, frozen=True):
    """A job in the queue and the future that its caller awaits.

    Args: `weight`: its elements, at least 1; `size`: about their bytes. `brief`: whether it has no `DELETE`.
    """

    job: Job
    weight: int
    size: int
    brief: bool
    answer: asyncio.Future[Outcome]


@dataclass(slots=True)
class _Flight:
    batch: list[_Waiting]
    outcomes: Awaitable[tuple[list[Outcome], Position]]


@dataclass(slots=True)
class _ChangeQueue:
    """Changes waiting for the committer; `open`: whether it takes more."""

    waiting: deque[_Waiting] = field(default_factory=deque)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    open: bool = False


@guarded(AHASH)
class AHashService:
    """The centralised A-Hash: `core.ports.ahash.AHash` over one store. `start` before use, `close` when done."""

    def __init__(
        self,
        store: Store,
        executor: Executor,
        clock: Clock,
        settings: AHashSettings,
        durability: Durability | None = None,
    ) -> None:
        self._store = store
        self._executor = executor
        self._clock = clock
        self._settings = settings
        self._durability = durability or LocalDurability()
        self._began = (clock.now_ms(), clock.monotonic_ms())
        self._queue = _ChangeQueue()
        self._commit_began_ms = self._upkeep_began_ms = 0
        self.limits = LimitCounts(clock.monotonic_ms)
        self._committer: Committer | None = None
        self._tasks: tuple[asyncio.Task[None], ...] = ()
        self._writing = asyncio.Lock()
        """Held by the batches under way, and by the store's upkeep, during which nothing may be committed."""
        self._upkeep_due = asyncio.Event()
        rest = Wait(settings.upkeep_interval_ms)
        self.jobs = Jobs(clock, (BackgroundJob("upkeep", self._upkeep, rest, news=self._upkeep_due, loud=True),))
        self._answering: set[asyncio.Task[None]] = set()
        self._was_writable = True
        self.pages_seen: Callable[[], PagesSeen | None] = lambda: None
        """Report of the page scrub; the node that runs one sets it."""
        self._hand_over_until_ms = 0
        self._last_position = (-1, Position("", 0, 0))

    @property
    def takes_changes(self) -> bool:
        """Whether there is room for changes, as of the last look at the free space."""
        return self._was_writable

    async def start(self) -> None:
        """Check and migrate the store, then take requests.

        Raises: BAD_CONFIG, WRONG_CLUSTER, UNAVAILABLE; the caller still has to close store and executor then.
        """
        self._committer = await self._executor.run_write(self._prepare)
        self._queue.open = True
        self._note_writable(self._committer.writable)
        self._tasks = (asyncio.create_task(self._commit_loop()), asyncio.create_task(self.jobs.run()))
        _LOG.info("ahash started at %s", self._committer.position)

    async def run(self) -> None:
        """Start the service unless it is started. Return when it was closed; raise the error that stopped it."""
        if not self._tasks:
            await self.start()
        await self._tasks[0]

    async def watch(self) -> None:
        """Return when the service was retired; raise the error that stopped it."""
        committing = self._tasks[:1]
        if committing:
            await asyncio.wait(committing)  # cancelling this watch does not cancel the service
            committing[0].result()

    async def follow(self) -> None:
        """Take only reads, of a store that others change.

        Raises: INTERNAL (the store is not prepared), UNAVAILABLE.
        """
        limits = CommitLimits(self._settings.key_keep_ms, self._settings.min_free_bytes)

        def load() -> Committer:
            with self._store.reading():
                return Committer(self._store, limits)

        self._committer = await self._executor.run_read(load)

    @property
    def position(self) -> Position:
        """Position of the last commit of this service. Raises: UNAVAILABLE unless started."""
        return self._started().position

    async def retire(self) -> None:
        """Refuse further changes, finish and answer those taken. The caller has to close store and executor."""
        self._queue.open = False
        self._queue.wake.set()
        tasks, self._tasks = self._tasks, ()
        if tasks:
            committing, jobs = tasks
            await asyncio.wait((committing,))
            async with self._writing:
                jobs.cancel()
            await asyncio.wait((jobs,))
        self._committer = None

    async def close(self) -> None:
        """Retire and close the store. Safe to call twice."""
        if not self._tasks:
            return
        await self.retire()
        await self._executor.run_write(self._store.close)
        await self._executor.close()

    async def get(self, call: Call, ids: tuple[ObjectId, ...], needed: Filter = ()) -> tuple[StoredObject, ...]:
        return await self._read_items(_getting(ids, needed), len(ids))

    def at_once(self, call: Call, method: str, arguments: tuple[Any, ...]) -> Any:
        """Answer one of `BRIEF` in the event loop without waiting; return None if the caller must await the method.

        Returns, raises: as the method; OUTCOME_UNKNOWN when the caller has to ask elsewhere.
        """
        admit(call, AHASH.by_method[method])
        if (count := len(arguments[0])) > BRIEF_OBJECTS:
            return None
        read, holds, committer = _BRIEF[method](*arguments), self._durability.holds, self._started()

        def work(state: StoredState) -> Any:
            return self._brief(read, state, count) if holds(self._position_at(committer, state)) else None

        return self._run_at_once(self._store.at_once, work)

    async def change(self, call: Call, elements: tuple[Element, ...]) -> tuple[ChangeOutcome, ...]:
        engine.check_change(elements)
        outcome = await self._submit(ChangeJob(elements), elements)
        assert isinstance(outcome, tuple)
        return outcome

    async def transact(
        self, call: Call, key: RequestKey, elements: tuple[Element, ...], memo: str = ""
    ) -> TransactOutcome:
        engine.check_transact(elements)
        if key:
            parse_request_key(key)
        engine.check_size(memo, bounds.MEMO_BYTES_MAX, "a memo")
        outcome = await self._submit(TransactJob(call.key_scope(Role.LIBRARIAN), key, elements, memo), elements)
        assert isinstance(outcome, TransactOutcome)
        return outcome

    async def recall(self, call: Call, key: RequestKey) -> TransactOutcome | None:
        outcome = await self._submit(RecallJob(call.key_scope(Role.LIBRARIAN), parse_request_key(key)))
        assert outcome is None or isinstance(outcome, TransactOutcome)
        return outcome

    async def walk(self, call: Call, walks: tuple[Walk, ...], needed: Filter = ()) -> tuple[WalkOutcome, ...]:
        return await self._read_items(_walking(walks, needed), len(walks))

    async def scan(
        self, call: Call, object_id: ObjectId, section: str, after: str = "", limit: int = bounds.PAGE_ENTRIES_MAX
    ) -> Page:
        """See `core.ports.ahash.AHash.scan`; a limit above `bounds.PAGE_ENTRIES_MAX` is lowered to it."""
        _check_id(object_id)
        engine.check_text(section, bounds.NAME_BYTES_MAX, "a section")
        if after:
            engine.check_text(after, bounds.PROPERTY_BYTES_MAX, "a property")
        if limit < 1:
            raise CheloniaError(Kind.BAD_REQUEST, "scan", object_id[:80], "a page has at least one entry")
        size = min(limit, bounds.PAGE_ENTRIES_MAX)
        return await self._read(lambda store: reads.read_page(store, object_id, section, after, size))

    async def below(self, call: Call, ask: Below) -> BelowPage:
        """See `core.ports.ahash.AHash.below`; a limit above `bounds.BELOW_ENTRIES_MAX` is lowered to it."""
        _check_below(ask)
        ask = replace(ask, limit=min(ask.limit, bounds.BELOW_ENTRIES_MAX))
        return await self._read(lambda store: read_below(store, ask))

    async def put_record(self, key: bytes, value: bytes) -> Position:
        """Write a record of the store's own under a key of `layout`. Return its position once it is durable."""
        outcome = await self._submit(RecordJob(key, value))
        assert isinstance(outcome, TransactOutcome)
        return outcome.position

    async def objects(self, call: Call, after: str = "", limit: int = bounds.PAGE_ENTRIES_MAX) -> ObjectPage:
        """See `core.ports.ahash.AHash.objects`; a limit above `bounds.PAGE_ENTRIES_MAX` is lowered to it."""
        if after:
            engine.check_text(after, bounds.PROPERTY_BYTES_MAX, "an object id")
        if limit < 1:
            raise CheloniaError(Kind.BAD_REQUEST, "objects", after[:80], "a page has at least one id")
        size = min(limit, bounds.PAGE_ENTRIES_MAX)
        return await self._read(lambda store: reads.read_ids(store, after, size))

    async def regroup(self, call: Call, change: GroupChange) -> AHashStatus:
        """Refuse: this A-Hash is alone. See `core.ports.ahash.AHash.regroup`."""
        cause = "this A-Hash is alone: configure a group, it begins with what is stored here"
        raise CheloniaError(Kind.NOT_SUPPORTED, "regroup", change.address, cause)

    async def status(self, call: Call) -> AHashStatus:
        committer = self._started()

        def look() -> AHashStatus:
            free = self._store.free_bytes()
            writable = free >= self._settings.min_free_bytes
            return AHashStatus(committer.position, "master", writable, committer.objects, free, pages=self.pages_seen())

        return await self._read(lambda store: look())

    async def backup(self, call: Call, name: str) -> str:
        self._started()
        target = backup_path(self._settings.backup_dir, name)
        await self._executor.run_apart(lambda: self._store.backup(target))
        return target

    def _prepare(self) -> Committer:
        meta.prepare(self._store, self._settings.cluster)
        limits = CommitLimits(self._settings.key_keep_ms, self._settings.min_free_bytes)
        committer = Committer(self._store, limits, self._steady_ms(), self._durability.term)
        committer.check_space()
        return committer

    def _steady_ms(self) -> Ms:
        """The wall clock at our start plus the monotonic time since: setting the clock does not move it."""
        wall_ms, monotonic_ms = self._began
        return Ms(wall_ms + self._clock.monotonic_ms() - monotonic_ms)

    def _started(self) -> Committer:
        if self._committer is None:
            raise CheloniaError(Kind.UNAVAILABLE, "ahash", "", "not started yet or shut down: retry")
        return self._committer

    async def _read_items(self, read: _ItemsRead[R_co], count: int) -> R_co:
        committer = self._started()

        def read_now(state: StoredState) -> tuple[R_co, Position] | None:
            answer = self._brief(read, state, count)
            return None if answer is None else (answer, self._position_at(committer, state))

        found = self._run_at_once(self._store.at_once, read_now) if count <= BRIEF_OBJECTS else None
        if found is None:
            return await self._read(read)
        answer, position = found
        await self._durability.wait(position)
        return answer

    async def _read(self, work: Callable[[Reader], T]) -> T:
        committer = self._started()

        def read() -> tuple[T, Position]:
            with self._store.reading():
                return work(self._store), _position_of(committer, self._store)

        answer, position = await self._executor.run_read(read)
        await self._durability.wait(position)
        return answer

    def _brief(self, read: _ItemsRead[R_co], store: Reader, count: int) -> R_co | None:
        """Return the result of a read in the event loop; None: it takes long, and a reader thread has to do it."""
        if count == 1:
            return read(store)  # an item is read as a whole
        monotonic_ms = self._clock.monotonic_ms
        until_ms = monotonic_ms() + BRIEF_READ_MS

        def while_brief(items: Iterable[T]) -> Iterator[T]:
            is_late = False
            for item in items:
                if is_late:
                    raise NotBriefError
                yield item
                is_late = monotonic_ms() >= until_ms

        try:
            return read(store, while_brief)
        except NotBriefError:
            # Not again at once: this call comes here twice more, and others with as much may wait.
            self._hand_over_until_ms = max(self._hand_over_until_ms, monotonic_ms() + BRIEF_READ_MS)
            return None

    def _run_at_once(self, at_once: Callable[[Callable[P, T]], T | None], work: Callable[P, T]) -> T | None:
        """Do brief work of the store in the event loop; None: not done, a reader or the writer has to.

        Two hand-overs between threads cost more than most reads. Work that waited long for a disk sends the next work
        to the threads, for ten times as long. Work that only waited for a processor does not: readers would wait too.
        """
        monotonic_ms = self._clock.monotonic_ms
        began_ms = monotonic_ms()
        if began_ms < self._hand_over_until_ms:
            return None
        found = at_once(work)
        ended_ms = monotonic_ms()
        if ended_ms - began_ms >= BRIEF_MS and self._executor.waited():
            self._hand_over_until_ms = ended_ms + HAND_OVER_FACTOR * (ended_ms - began_ms)
        return found

    def _position_at(self, committer: Committer, state: StoredState) -> Position:
        """The position of a state, cached: many reads see the same one."""
        number, position = self._last_position
        if number != state.number:
            position = _position_of(committer, state)
            self._last_position = state.number, position
        return position

    async def _submit(self, job: Job, elements: tuple[Element, ...] = ()) -> Outcome:
        if not self._queue.open:
            raise CheloniaError(Kind.UNAVAILABLE, "ahash", "", "not started yet or shutting down: retry")
        if len(self._queue.waiting) >= self._settings.queue_max:
            self.limits.met("changes_waiting", f"{len(self._queue.waiting)} before it", "a change was refused")
            raise CheloniaError(Kind.UNAVAILABLE, "ahash", "", "too many changes are waiting: retry later")
        brief, size = True, 0
        for element in elements:
            brief = brief and element.change is not _DELETE
            size += len(element.property) + len(element.value)
        waiting = _Waiting(job, max(1, len(elements)), size, brief, asyncio.get_running_loop().create_future())
        self._queue.waiting.append(waiting)
        self._queue.wake.set()
        outcome = await waiting.answer
        if isinstance(outcome, CheloniaError):
            # A fresh error for each caller: the traceback of a shared one would grow.
            raise CheloniaError(outcome.kind, outcome.op, outcome.subject, outcome.cause)
        return outcome

    async def _commit_loop(self) -> None:
        try:
            while True:
                await self._gather()
                async with self._writing:
                    flight = self._take_off()
                    while flight is not None:
                        flight = await self._land(flight)
                if self._queue.waiting:
                    continue
                if not self._queue.open:
                    return
                self._queue.wake.clear()
                await self._queue.wake.wait()
        finally:
            self._queue.open = False
            _refuse(self._queue.waiting)

    def _take_off(self) -> _Flight | None:
        batch: list[_Waiting] = []
        weight = 0
        waiting = self._queue.waiting
        while waiting and len(batch) < self._settings.batch_max:
            weight += waiting[0].weight
            if batch and weight > self._settings.batch_elements_max:
                break
            batch.append(waiting.popleft())
        if not batch:
            return None
        jobs = tuple(item.job for item in batch)
        committer, now_ms = self._started(), self._steady_ms()

        def commit(bytes_max: int = 0) -> tuple[list[Outcome], Position]:
            return committer.commit(jobs, now_ms, bytes_max), committer.position

        def commit_briefly() -> tuple[list[Outcome], Position] | None:
            try:
                return commit(BRIEF_BYTES)
            except NotBriefError:
                return None

        try:
            self._commit_began_ms = self._clock.monotonic_ms()
            small = weight <= BRIEF_ELEMENTS and sum(item.size for item in batch) <= BRIEF_BYTES
            brief = small and all(item.brief for item in batch)
            made = self._run_at_once(self._store.write_at_once, commit_briefly) if brief else None
            return _Flight(batch, self._executor.run_write(commit) if made is None else self._sync(made))
        except BaseException:
            self._commit_began_ms = 0
            _refuse(deque(batch))
            raise

    async def _sync(self, made: tuple[list[Outcome], Position]) -> tuple[list[Outcome], Position]:
        """Sync a commit of the event loop after sending it to the other replicas, which sync meanwhile."""
        try:
            self._executor.catch_up()
            await Turn()
            if self._store.sync_at_once():
                self._executor.catch_up()
            else:
                await self._executor.run_write(self._store.sync)
        except CheloniaError as error:
            outcomes, position = made
            cause = f"it may not be on the disk ({error.cause}): retry with the same request key"
            return [CheloniaError(Kind.OUTCOME_UNKNOWN, "ahash", "store", cause)] * len(outcomes), position
        return made

    async def _land(self, flight: _Flight) -> _Flight | None:
        """Await the commit of a batch, begin to answer it, and hand the next one to the committer."""
        try:
            outcomes, position = await flight.outcomes
        except BaseException:
            _refuse(deque(flight.batch))
            raise
        finally:
            self._commit_began_ms = 0
        answering = begin(self._answer(flight.batch, outcomes, position))
        if answering is not None:
            self._answering.add(answering)
            answering.add_done_callback(self._answering.discard)
        self._note_writable(self._started().writable)
        if self._store.upkeep_due():
            self._upkeep_due.set()
            return None
        return None if self._answering else self._take_off()

    async def _gather(self) -> None:
        """Let changes gather while a batch waits to be durable: a commit costs replicas the same, however large."""
        # So calls that arrive one by one, as each takes long to decode, share commits too.
        if self._answering and self._queue.waiting:
            await asyncio.wait(self._answering, timeout=GATHER_MS / 1000)

    async def _answer(self, batch: list[_Waiting], outcomes: list[Outcome], position: Position) -> None:
        """Answer all callers of a batch after one wait for its durability."""
        try:
            await self._durability.wait(position)
        except CheloniaError as error:
            outcomes = [error] * len(batch)
        except BaseException:
            _refuse(deque(batch))
            raise
        for item, outcome in zip(batch, outcomes, strict=True):
            if not item.answer.done():
                item.answer.set_result(outcome)

    async def _upkeep(self) -> Next:
        if self._store.upkeep_due():
            async with self._writing:
                self._upkeep_began_ms = self._clock.monotonic_ms()
                try:
                    await self._executor.run_write(self._store.upkeep)
                finally:
                    self._upkeep_began_ms = 0
        return Wait(self._settings.upkeep_interval_ms)

    @property
    def committing_ms(self) -> int:
        """Milliseconds that the batch with the committer has taken so far; 0 without one."""
        return self._clock.monotonic_ms() - self._commit_began_ms if self._commit_began_ms else 0

    @property
    def upkeep_ms(self) -> int:
        """Milliseconds that the present upkeep, for which all changes wait, has taken so far; 0 without one."""
        return self._clock.monotonic_ms() - self._upkeep_began_ms if self._upkeep_began_ms else 0

    def _note_writable(self, writable: bool) -> None:
        if writable != self._was_writable:
            self._was_writable = writable
            if writable:
                _LOG.info("ahash takes changes again: there is free space")
            else:
                _LOG.warning("ahash is read-only: less than %d bytes free", self._settings.min_free_bytes)


def _position_of(committer: Committer, reader: Reader) -> Position:
    """The position of the state read. The committer's own may lag behind what it just made visible."""
    position, sequence = committer.position, meta.read_state(reader).sequence
    return position if position.sequence == sequence else Position(position.cluster, position.generation, sequence)


def _refuse(batch: deque[_Waiting]) -> None:
    for item in batch:
        if not item.answer.done():
            cause = "the committer stopped before it could say: retry with the same request key"
            item.answer.set_exception(CheloniaError(Kind.OUTCOME_UNKNOWN, "ahash", "", cause))
            item.answer.exception()


def backup_path(directory: str, name: str) -> str:
    """Return the path of a backup. Raises: NOT_SUPPORTED (no directory), BAD_REQUEST: a name is never a path."""
    if not directory:
        cause = "no directory for backups is configured here: name one as `backup_dir` in its [ahash]"
        raise CheloniaError(Kind.NOT_SUPPORTED, "backup", name[:80], cause)
    if not _BACKUP_NAME.match(name):
        cause = "a backup's name is 1 to 100 letters, digits, '.', '-' and '_', and does not begin with '.'"
        raise CheloniaError(Kind.BAD_REQUEST, "backup", ascii(name[:80]), cause)
    return f"{directory}/{name}"


def _getting(ids: tuple[ObjectId, ...], needed: Filter = ()) -> _ItemsRead[tuple[StoredObject, ...]]:
    """The read of a `get`, whose refusals it raises."""
    _check_reading("get", ids, needed)
    for object_id in ids:
        _check_id(object_id)
    return lambda store, each=iter: tuple([reads.read_object(store, object_id, needed) for object_id in each(ids)])


def _walking(walks: tuple[Walk, ...], needed: Filter = ()) -> _ItemsRead[tuple[WalkOutcome, ...]]:
    """The read of a `walk`, whose refusals it raises."""
    _check_reading("walk", walks, needed)
    for walk in walks:
        _check_walk(walk)
    return lambda store, each=iter: reads.read_walks(store, each(walks), needed)


class _ItemsRead(Protocol[R_co]):
    """A read of several items; `each` iterates over them, and may raise."""

    def __call__(self, store: Reader, each: Callable[[Iterable[T]], Iterator[T]] = iter) -> R_co:
        """Return what was read."""


_BRIEF: Final[Mapping[str, Callable[..., _ItemsRead[Any]]]] = {"get": _getting, "walk": _walking}
BRIEF: Final = frozenset(_BRIEF)
"""Methods that `at_once` may answer."""


def _check_id(object_id: ObjectId) -> None:
    engine.check_text(object_id, bounds.PROPERTY_BYTES_MAX, "an object id")


def _check_reading(method: str, items: Sized, needed: Filter) -> None:
    _check_count(method, len(items))
    _check_needed(method, needed)


def _check_count(method: str, count: int) -> None:
    if count > bounds.BULK_ELEMENTS_MAX:
        raise CheloniaError(Kind.TOO_LARGE, method, "", f"{count} in one call, at most {bounds.BULK_ELEMENTS_MAX}")


def _check_needed(method: str, needed: Filter) -> None:
    _check_count(method, len(needed))
    for need in needed:
        engine.check_text(need.section, bounds.NAME_BYTES_MAX, "a section")
        if need.property:
            engine.check_text(need.property, bounds.PROPERTY_BYTES_MAX, "a property")


def _check_below(ask: Below) -> None:
    _check_id(ask.start)
    _check_needed("below", ask.needed)
    for text, label in ((ask.after, "a path"), (ask.prefix, "a prefix"), (ask.delimiter, "a delimiter")):
        if text:
            engine.check_text(text, bounds.LN_BYTES_MAX, label)
    if ask.limit < 1:
        raise CheloniaError(Kind.BAD_REQUEST, "below", ask.start[:80], "a page has at least one entry")


def _check_walk(walk: Walk) -> None:
    _check_id(walk.start)
    engine.check_text(walk.section, bounds.NAME_BYTES_MAX, "a section")
    if walk.linked is not None:
        engine.check_text(walk.linked.section, bounds.NAME_BYTES_MAX, "a section")
        _check_needed("walk", walk.linked.needed)
    if len(walk.steps) > bounds.LN_DEPTH_MAX:
        raise CheloniaError(Kind.TOO_LARGE, "walk", walk.start[:80], f"deeper than {bounds.LN_DEPTH_MAX}")
    for step in walk.steps:
        for candidate in step:
            engine.check_text(candidate, bounds.PROPERTY_BYTES_MAX, "a property")
