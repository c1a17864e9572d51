"""The Librarian's access to the A-Hash: reads in its own name, and the loop that turns a decision into a transact.

A decision is built from objects as read. When a condition fails because they changed, the loop reads and builds again,
a few times. It never retries the caller's own expectations (`elements.EXPECT`): they are a CONFLICT.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

import msgspec

from chelonia.core import bounds
from chelonia.core.caller import Call, Role
from chelonia.core.cluster.position import Position
from chelonia.core.contents.below import Below, BelowPage
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn, ObjectId, RequestKey, ServiceId
from chelonia.core.metadata import Filter, StoredObject
from chelonia.core.ports.ahash import AHash, Element, ObjectPage, Page, TransactOutcome, Unmet, Walk, WalkOutcome
from chelonia.core.timing.clock import Clock, Ids
from chelonia.core.timing.jobs import CAUSE
from chelonia.core.timing.pacing import Backoff
from chelonia.librarian.metadata import rebuild_record
from chelonia.librarian.metadata.elements import EXPECT

T = TypeVar("T")

_LOG = logging.getLogger(__name__)

TRIES = 8
"""Rounds of read-decide-transact: in each, somebody else's transact has applied."""
ROUNDS_MAX = 64
"""Rounds in all, those included that cost no try."""

_UNKNOWN = frozenset({Kind.OUTCOME_UNKNOWN, Kind.UNAVAILABLE, Kind.NETWORK, Kind.TIMEOUT})
"""Failures after which a transact may have applied, at an earlier one of its tries."""
PATIENCE_MS: Final = 30_000
"""Time for which `Records` repeats a request that the A-Hash does not answer: an election or a start is shorter."""
PATIENCE_PAUSE_MS: Final = 1_000
"""Pause before the first repetition; it doubles."""

Items = tuple[tuple[str, str], ...]
"""Properties of a wide section with their values."""

Applied = Callable[[tuple[Element, ...]], None]
"""Listener that gets the elements of every transact that applied here, or may have."""


@dataclass(frozen=True, slots=True)
class LibrarianIdentity:
    """Identity of a Librarian: the DN of its certificate and its service id."""

    dn: Dn
    service_id: ServiceId

    def call(self, call: Call = Call()) -> Call:  # noqa: B008 - a frozen value
        """Return a call in this Librarian's own name, carrying on `call`."""
        return call.as_service(self.dn, Role.LIBRARIAN, self.service_id)


class PlannedTransact(msgspec.Struct, frozen=True):
    """A decided transact with the `memo` that answers a retry of its request; `cause`: the reason that it counts under.

    - `unmet`: gets the condition that did not hold. It may raise the error that the condition means, and returns
      whether the next round costs no try: somebody changed what all transacts rest on.
    - `left`: the entries that it changes, as it leaves them
    """

    elements: Sequence[Element]
    memo: str = ""
    cause: str = ""
    unmet: Callable[[Call, Unmet], Awaitable[bool]] | None = None
    left: tuple[StoredObject, ...] = ()


@dataclass(frozen=True, slots=True)
class RetryContext:
    """A clock for pauses, and ids for request keys, under which a repeated change applies once."""

    clock: Clock
    ids: Ids


class Records:
    """Reads and transacts in the name of one Librarian. With `patience` it repeats for a while what the A-Hash does not
    answer: for work without a caller who would."""

    def __init__(self, ahash: AHash, identity: LibrarianIdentity, patience: RetryContext | None = None) -> None:
        self._ahash = ahash
        self._patience = patience
        self._identity = identity
        self._listeners: list[Applied] = []
        self.position = Position("", 0, 0)
        """The newest metadata position seen."""
        self.written = Counter[str]()
        """Number of transacts that applied, by the job or operation that made them."""
        self.remembers_deleted = False
        """Whether to record each deleted blob: a Shepherd that a rebuild lacked may come back with its bytes."""
        self.rebuilding = False
        """Whether a rebuild of the namespace is under way: users get nothing of half a namespace."""
        self.run = ""
        """The run of a rebuild that these records serve; once another run has begun, nothing applies."""
        self.restored = asyncio.Event()
        """Set when older metadata were restored since the first answer."""

    def listen(self, listener: Applied) -> None:
        """Call `listener` with every transact that applies here, and with those whose outcome is unknown."""
        self._listeners.append(listener)

    def heed(self, marker: StoredObject) -> None:
        """Follow the record of a rebuild, as read."""
        self.remembers_deleted = rebuild_record.remembers(marker)
        self.rebuilding = rebuild_record.under_way(marker)

    def patiently(self, patience: RetryContext) -> Records:
        """Return patient records of the same A-Hash and listeners, for a rebuild: they record no deletions."""
        patient = Records(self._ahash, self._identity, patience)
        patient._listeners, patient.written = self._listeners, self.written
        return patient

    def _ask(self, request: Callable[[], Awaitable[T]]) -> Awaitable[T]:
        """Call, and call again while patience lasts. Raises: the A-Hash's last error, with the cure."""
        return request() if self._patience is None else self._ask_patiently(request, self._patience.clock)

    async def _ask_patiently(self, request: Callable[[], Awaitable[T]], clock: Clock) -> T:
        backoff = Backoff(PATIENCE_PAUSE_MS, PATIENCE_MS)
        give_up = clock.monotonic_ms() + PATIENCE_MS
        while True:
            try:
                return await request()
            except CheloniaError as error:
                if error.kind not in _UNKNOWN and error.kind is not Kind.READ_ONLY:
                    raise
                if clock.monotonic_ms() >= give_up:
                    cure = "begin again when `chelonia admin ahash status` shows that it serves"
                    cause = f"the A-Hash has not answered for {PATIENCE_MS // 1000} s ({error.cause}): {cure}"
                    raise CheloniaError(error.kind, error.op, error.subject, cause) from error
                _LOG.info("the A-Hash is asked again: %s", error)
            await clock.sleep(backoff.failed())

    async def get(self, call: Call, ids: Sequence[ObjectId], needed: Filter = ()) -> tuple[StoredObject, ...]:
        """Read objects in order of `ids`, in as many calls as that takes."""
        own, step = self._identity.call(call), bounds.BULK_ELEMENTS_MAX
        found: tuple[StoredObject, ...] = ()
        for start in range(0, len(ids), step):
            some = tuple(ids[start : start + step])
            found += await self._ask(partial(self._ahash.get, own, some, needed))
        return found

    async def one(self, call: Call, object_id: ObjectId, needed: Filter = ()) -> StoredObject:
        return (await self.get(call, (object_id,), needed))[0]

    async def walk(self, call: Call, walks: tuple[Walk, ...], needed: Filter = ()) -> tuple[WalkOutcome, ...]:
        """Follow paths."""
        own = self._identity.call(call)
        return await self._ask(lambda: self._ahash.walk(own, walks, needed)) if walks else ()

    async def scan(self, call: Call, object_id: ObjectId, section: str, after: str, limit: int) -> Page:
        """Read a page of a wide section."""
        own = self._identity.call(call)
        return await self._ask(lambda: self._ahash.scan(own, object_id, section, after, limit))

    async def pages(
        self, call: Call, object_id: ObjectId, section: str, limit: int, after: str = ""
    ) -> AsyncIterator[Items]:
        """Yield a whole wide section, or its rest after a property, page by page; nothing when it is empty."""
        more = True
        while more:
            page = await self.scan(call, object_id, section, after, limit)
            after, more = page.after, bool(page.after)
            if page.items:
                yield page.items

    async def below(self, call: Call, ask: Below) -> BelowPage:
        """Read a page of what is below an object."""
        return await self._ask(lambda: self._ahash.below(self._identity.call(call), ask))

    async def objects(self, call: Call, after: str, limit: int) -> ObjectPage:
        """Read a page of the ids of all objects."""
        return await self._ask(lambda: self._ahash.objects(self._identity.call(call), after, limit))

    async def object_pages(self, call: Call, prefix: str, limit: int) -> AsyncIterator[tuple[ObjectId, ...]]:
        """Yield the ids of all objects with this prefix, page by page; nothing when there are none."""
        after, more = prefix, True
        while more:
            page = await self.objects(call, after, limit)
            ids = tuple(each for each in page.ids if each.startswith(prefix))
            after, more = page.after, bool(page.after) and len(ids) == len(page.ids)
            if ids:
                yield ids

    async def count(self, call: Call) -> int:
        """Return about how many objects there are."""
        return (await self._ask(lambda: self._ahash.status(self._identity.call(call)))).objects_estimate

    async def recall(self, call: Call) -> TransactOutcome | None:
        """Return the stored outcome under the call's request key."""
        key = _scoped(call)
        return await self._ask(lambda: self._ahash.recall(self._identity.call(call), key)) if key else None

    async def refresh_position(self, call: Call) -> Position:
        """Read the position of the A-Hash."""
        self._saw((await self._ask(lambda: self._ahash.status(self._identity.call(call)))).position)
        return self.position

    async def attempt(self, call: Call, draft: PlannedTransact) -> TransactOutcome:
        """Try one transact under the call's request key; listeners get it when it applied, or may have. Raises:
        CONFLICT in a run of a rebuild that is not the last."""
        own, key, elements = self._identity.call(call), _scoped(call), tuple(draft.elements)
        if self.remembers_deleted:
            elements = (*elements, *rebuild_record.tombstones(elements))
        elements = (*elements, rebuild_record.is_last(self.run)) if self.run else elements
        if self._patience is not None and not key:
            key = RequestKey(self._patience.ids.uuid())
        try:
            outcome = await self._ask(lambda: self._ahash.transact(own, key, elements, draft.memo))
        except CheloniaError as error:
            if error.kind in _UNKNOWN or self._patience is not None:  # then an earlier try may have applied
                self._notify(elements)
            raise
        self._saw(outcome.position)
        _check_last(outcome)
        if outcome.applied:
            self.written[draft.cause or CAUSE.get()] += 1
            self._notify(elements)
        return outcome

    def _notify(self, elements: tuple[Element, ...]) -> None:
        for listener in self._listeners:
            listener(elements)

    async def apply(self, call: Call, build: Callable[[], Awaitable[PlannedTransact]]) -> TransactOutcome:
        """Carry out a decision that presumes nothing. Returns: its outcome. Raises: as `carry_out`."""
        return (await self.carry_out(call, lambda _: build()))[0]

    async def carry_out(
        self, call: Call, build: Callable[[bool], Awaitable[PlannedTransact]]
    ) -> tuple[TransactOutcome, tuple[StoredObject, ...]]:
        """Build, transact, and build again while others change things in between.

        Args:
            build: gets True in the first round, in which it may presume what nearly always holds. Where the transact
                finds it otherwise, that costs another round.
        Returns: the outcome that applied, and the entries as it left them. A retry gets its first try's memo, no
            entries.
        Raises: errors of `build`, unless the request has applied before; CONFLICT when an expectation is unmet or the
            tries are used up.
        """
        tries = rounds = 0
        while tries < TRIES and rounds < ROUNDS_MAX:
            rounds += 1
            try:
                draft = await build(rounds == 1)
            except CheloniaError:
                before = await self.recall(call)
                if before is None or not before.applied:
                    raise
                return before, ()
            if not draft.elements:
                return TransactOutcome(applied=True, position=self.position, memo=draft.memo), draft.left
            outcome = await self.attempt(call, draft)
            if outcome.applied:
                return outcome, () if outcome.recalled else draft.left
            if outcome.unmet is not None and outcome.unmet.change_id == EXPECT:
                raise CheloniaError(Kind.CONFLICT, cause="what the decision was based on has changed; try again")
            free = outcome.unmet is not None and draft.unmet is not None and await draft.unmet(call, outcome.unmet)
            tries += not free
        raise CheloniaError(Kind.CONFLICT, cause="others keep changing the same entries; try again")

    def _saw(self, position: Position) -> None:
        last = self.position
        if position.cluster == last.cluster and position.generation > last.generation > 0:  # 0: it was empty
            self.restored.set()
        self.position = max(last, position) if position.cluster == last.cluster else position


def _check_last(outcome: TransactOutcome) -> None:
    if outcome.unmet is not None and outcome.unmet.change_id == rebuild_record.RUN:
        cause = "it was begun anew since, perhaps through another Librarian: that one goes on"
        raise CheloniaError(Kind.CONFLICT, "rebuild", cause=cause)


def _scoped(call: Call) -> RequestKey:
    """The request key as the A-Hash gets it: all Librarians share their keys there, their callers must not.

    Bartenders share theirs too (each is bound to its user before): a retry finds its first try through any of them. A
    key that a Shepherd chose answers nobody else.
    """
    if not call.request_key:
        return RequestKey("")
    text = f"{call.key_scope(Role.BARTENDER)}\0{call.request_key}"
    return RequestKey(hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest())
