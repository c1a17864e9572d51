"""Bulk calls: each element gets its own answer, and applies at most once.

The one wrapper around every operation. It gives each element its own request key, and repeats it when an entry changed
between decision and transact. Before it answers a failure, it calls `recall`: if a first try has applied, that is the
answer. It turns errors into the original's strings, and raises one only when it could serve nothing at all.
Elements with related names run in order, others side by side. Elements that an operation can do `together` take one
step; those that fail there are served singly, as if nothing had been tried.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from msgspec import Struct

from chelonia.bartender import audit
from chelonia.bartender.ports import Ports
from chelonia.core import bounds, status
from chelonia.core.caller import Call
from chelonia.core.cluster.replicas import Receipt
from chelonia.core.contents.uploads import BeginPut, Begun
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import RequestKey
from chelonia.core.metadata import Filter, StoredObject, Triple
from chelonia.core.names import LogicalName, parse_ln
from chelonia.core.ports.librarian import Traversal
from chelonia.core.timing.eager import side_by_side
from chelonia.core.timing.gathering import BatchLimits, Gathering, Pending
from chelonia.core.timing.pacing import Backoff
from chelonia.core.values import replace

ATTEMPTS_MAX = 6
"""Tries of one element whose entries keep changing; then its answer is CONFLICT."""
SIDE_BY_SIDE_MAX = 16
"""Elements of one call in work at once: fills a commit batch without letting one call crowd out others."""
CALLS_TOGETHER, CALLS_TOGETHER_MAX, CALL_WAITS_MS = 16, 1000, 10
"""Small calls served as one, such batches beside each other, and the wait (ms) for those at work. It is shorter than a
disk's sync, as slow ones would hold it up."""
RETRY_MS, RETRY_MS_MAX = 10, 160
"""First and longest pause before another try; jittered."""

ELEMENTS_PER_TRIPLE, MARKUP_PER_TRIPLE = 4, 80
"""XML elements of one triple in an answer, and the characters of their tags."""
ELEMENTS_PER_ENTRY = 5
"""XML elements of one listed entry, without its triples."""

CALL_FAILED = frozenset(
    {Kind.UNAVAILABLE, Kind.OUTCOME_UNKNOWN, Kind.NETWORK, Kind.TIMEOUT, Kind.READ_ONLY, Kind.WRONG_CLUSTER}
)
"""Failures of the cluster, not of an element: raised when every element failed so."""
_NEVER_APPLIED = frozenset({Kind.BAD_REQUEST, Kind.BAD_NAME, Kind.MISSING_METADATA, Kind.TOO_LARGE})

_BETWEEN_SERVICES = ("librarian.", "shepherd.", "ahash.", "connect", "identify")
"""Starts of the operations in refusals of one service by another: for want of a role, or for its certificate."""

_OF_AN_ENTRY = frozenset({"unlink", "delete", "unmake", "move", "changeEntry", "modifyMetadata", "setWanted"})
"""Operations of the Librarian on an entry that a walk has just found. If it is gone, or has lost the name, the
Bartender walks again: another entry may have replaced it, and the name was never free."""

R = TypeVar("R")
A = TypeVar("A")


class NamedRequest(Protocol):
    """A request with one name."""

    @property
    def ln(self) -> str:
        """The name as it came."""


@dataclass(slots=True)
class AnswerRoom:
    """The room left in one call's answer, for no client of ours reads a larger message. Also what may still be read for
    it: a filter that shows nothing does not make a call cheap."""

    elements: int = bounds.XML_ELEMENTS_MAX
    characters: int = bounds.SOAP_BODY_BYTES_MAX
    unread: int = bounds.READ_BYTES_MAX
    carried: int = bounds.INLINE_CALL_BYTES_MAX

    def take(self, entries: int, triples: Iterable[Triple]) -> None:
        """Take room for that many entries with all these triples. Raises: TOO_LARGE; from then on there is none."""
        for triple in triples:
            self.elements -= ELEMENTS_PER_TRIPLE
            self.characters -= MARKUP_PER_TRIPLE + len(triple.section) + len(triple.property) + len(triple.value)
        self.elements -= entries * ELEMENTS_PER_ENTRY
        self.check()

    def read(self, objects: Iterable[StoredObject]) -> None:
        """Count what was read. Raises: TOO_LARGE; from then on nothing is read."""
        self.weigh(sum(stored.weight for stored in objects))

    def weigh(self, characters: int) -> None:
        """Count so many characters as read. Raises: as `read`."""
        self.unread -= characters
        self.check()

    def carry(self, size: int) -> bool:
        """Take room for `size` bytes of a file if there is enough, and return whether there is."""
        fits = size <= self.carried
        self.carried -= size if fits else 0
        return fits

    def check(self) -> None:
        """Refuse to go on when the room is used up. Raises: TOO_LARGE."""
        if self.unread < 0:
            cause = f"this call read over {bounds.READ_BYTES_MAX >> 20} MiB: list fewer names, or by page (limit)"
            raise CheloniaError(Kind.TOO_LARGE, cause=cause)
        if self.elements < 0 or self.characters < 0:
            self.elements = -1
            cause = "the answer to this call is too large for one message: ask for less at once (limit, or fewer names)"
            raise CheloniaError(Kind.TOO_LARGE, cause=cause)


class StoredBytes(Struct, frozen=True):
    """Small bytes on stable storage: their upload as it began, its ids, and the receipts."""

    begin: BeginPut
    begun: Begun
    receipts: tuple[Receipt, ...]


class ElementCall(Struct, frozen=True):
    """One element in work: the user's call, and the Bartender's own with the element's request key.

    - `room` is shared by all elements of the call
    - `stored`: the bytes of this element that an earlier try has stored
    - `walked`: walks of the call's names, made just before its first try
    - `made`: collections made on the way to a name, the last one below the others
    """

    user: Call
    service: Call
    room: AnswerRoom = msgspec.field(default_factory=AnswerRoom)
    stored: list[StoredBytes] = msgspec.field(default_factory=list)
    walked: dict[LogicalName, Traversal] = msgspec.field(default_factory=dict)
    made: list[LogicalName] = msgspec.field(default_factory=list)


Outcomes = dict[int, CheloniaError | None]
"""Results of elements tried together, by their index in the step, None if applied. Missing ones are served singly."""


class JointStep(Struct, frozen=True):
    """Elements from `first` on that were tried together, under a request key of their own. `walked`: the walks of their
    names, also where they are only in work at once."""

    first: int = 0
    key: RequestKey = RequestKey("")
    outcomes: Outcomes = msgspec.field(default_factory=dict)
    walked: dict[LogicalName, Traversal] = msgspec.field(default_factory=dict)

    def has_applied(self, number: int) -> bool:
        """Return whether the element of this index in the call has applied with the others."""
        place = number - self.first
        return place in self.outcomes and self.outcomes[place] is None


@dataclass(frozen=True, slots=True)
class BulkOperation(Generic[R, A]):
    """The functions that serve the elements of one operation.

    - `act` serves one
    - `fail` makes the answer (request, status, error)
    - `subject` is the text that the request key is bound to
    - `recalled` makes the answer when a first try has applied (None: not a change)
    - `ordered` names the Logical Name whose relatives must wait for it (None: elements are independent)
    - `side_by_side`: elements in work at once
    - `walk`: follows names of those at once, by the Bartender's own call
    - `keyed`: False where nothing is changed
    - `together`: serves those that `joins` accepts in one step; its memo has their indices
    - `marked`: the caller's own identifier of an element, which is its request key in any call; "" if it has none
    """

    name: str
    act: Callable[[ElementCall, R], Awaitable[A]]
    fail: Callable[[R, str, CheloniaError], A]
    subject: Callable[[R], str]
    recalled: Callable[[R], A] | None = None
    ordered: Callable[[R], str | LogicalName] | None = None
    side_by_side: int = SIDE_BY_SIDE_MAX
    walk: Callable[[Call, Sequence[R]], Awaitable[dict[LogicalName, Traversal]]] | None = None
    keyed: bool = True
    together: Callable[[Sequence[ElementCall], Sequence[R]], Awaitable[Outcomes]] | None = None
    joins: Callable[[R], bool] = bool
    marked: Callable[[R], str] = lambda _: ""

    def key(self, call: Call, index: int, request: R) -> RequestKey:
        """Return the request key of an element of a call; "" where there is none."""
        if not self.keyed:
            return RequestKey("")
        if marked := self.marked(request):
            return element_key(call.keyed(RequestKey("marked")), self.name, 0, marked)
        return element_key(call, self.name, index, self.subject(request))

    def chunks(self, requests: Sequence[R]) -> Iterator[tuple[range, bool]]:
        """Yield the ranges of elements in work at once, in order, and whether each may go together."""
        for start, last in waves(requests, self.ordered):
            while start < last:
                end = start
                if self.together is not None:
                    most = min(start + bounds.REMOVED_TOGETHER_MAX, last)
                    end = next((n for n in range(start, most) if not self.joins(requests[n])), most)
                joined = end - start > 1
                end = end if joined else min(start + self.side_by_side, last)
                yield range(start, end), joined
                start = end


class AskedElement(Struct, Generic[R], frozen=True):
    """One element: the caller's call, its index there, and the room of the answer. `service`: the Bartender's own call
    for it, without a request key."""

    call: Call
    service: Call
    index: int
    request: R
    room: AnswerRoom


class CallAnswers(Generic[A]):
    """The answers to one call, as its elements are served."""

    def __init__(self, ports: Ports, call: Call, count: int) -> None:
        self.call = call
        self.service = ports.own(call).keyed(RequestKey(""))
        self.room = AnswerRoom()
        self.left = count
        self._ports = ports
        self._answers: list[Any] = [None] * count
        self._cluster_errors: list[CheloniaError] = []

    def elements(self, requests: Sequence[R]) -> list[AskedElement[R]]:
        """Return the elements of these requests."""
        return [AskedElement(self.call, self.service, n, each, self.room) for n, each in enumerate(requests)]

    def put(self, index: int, answer: A, error: CheloniaError | None) -> None:
        """Store the answer to an element."""
        self.left -= 1
        self._answers[index] = answer
        if error is not None and error.kind in CALL_FAILED:
            self._cluster_errors.append(error)
        if error is not None and error.kind is Kind.TOO_LARGE and self.room.unread >= 0:
            self._ports.limits.met("too_large", self.call.dn, f"{self.call.request_id} was refused: {error.cause}")

    def whole(self, op: str) -> tuple[A, ...]:
        """Return all answers. Raises: the first error, when every element failed because of the cluster."""
        if self.room.unread < 0:
            self._ports.limits.met("read_bytes", self.call.dn, f"{op} {self.call.request_id} was ended")
        if self._cluster_errors and len(self._cluster_errors) == len(self._answers):
            raise self._cluster_errors[0]
        return tuple(self._answers)


async def answer_all(ports: Ports, call: Call, operation: BulkOperation[R, A], requests: Sequence[R]) -> tuple[A, ...]:
    """Serve every element.

    Returns: answers in the order of `requests`.
    Raises: TOO_LARGE for too many elements; the first error when every element failed because of the cluster.
    """
    if len(requests) > bounds.BULK_ELEMENTS_MAX:
        cause = f"at most {bounds.BULK_ELEMENTS_MAX} elements in one call"
        raise CheloniaError(Kind.TOO_LARGE, operation.name, "", cause)
    answers: CallAnswers[A] = CallAnswers(ports, call, len(requests))
    await _answer_each(ports, operation, answers.elements(requests), answers.put)
    return answers.whole(operation.name)


AskedCall = tuple[Call, tuple[R, ...]]
"""A call, and its requests."""


def gathered(ports: Ports, operation: BulkOperation[R, A]) -> Gathering[AskedCall[R], tuple[A, ...]]:
    """Return a gathering that serves calls of one operation together, by `answer_calls`."""
    limits: BatchLimits[AskedCall[R]] = BatchLimits(CALLS_TOGETHER, CALLS_TOGETHER_MAX, CALL_WAITS_MS)
    return Gathering(partial(answer_calls, ports, operation), ports.clock, limits)


async def answer_calls(
    ports: Ports, operation: BulkOperation[R, A], calls: Sequence[Pending[AskedCall[R], tuple[A, ...]]]
) -> None:
    """Serve several calls as one, each in its caller's name. Each gets its answers, as by `answer_all`, when its own
    elements are done. All must want equally new reads."""
    elements: list[AskedElement[R]] = []
    owners: list[tuple[CallAnswers[A], asyncio.Future[tuple[A, ...]]]] = []
    for each in calls:
        call, requests = each.asked
        if not requests:
            each.answer.set_result(())
        answers: CallAnswers[A] = CallAnswers(ports, call, len(requests))
        elements += answers.elements(requests)
        owners += [(answers, each.answer)] * len(requests)

    def put(number: int, answer: A, error: CheloniaError | None) -> None:
        answers, waiting = owners[number]
        answers.put(elements[number].index, answer, error)
        if answers.left or waiting.done():
            return
        try:
            waiting.set_result(answers.whole(operation.name))
        except CheloniaError as failed:
            waiting.set_exception(failed)

    await _answer_each(ports, operation, elements, put)


async def _answer_each(
    ports: Ports,
    operation: BulkOperation[R, A],
    elements: Sequence[AskedElement[R]],
    put: Callable[[int, A, CheloniaError | None], None],
) -> None:
    """Serve elements; `put` gets the answer to each, by its index in `elements`. While all places are taken, it
    serves those of each caller apart: nobody waits for another's turn."""

    async def apart(own: list[int]) -> None:
        some = [elements[number] for number in own]
        await _answer_each(ports, operation, some, lambda at, answer, error: put(own[at], answer, error))

    for indexes, joined in operation.chunks([each.request for each in elements]):
        wait = joined or indexes.stop < len(elements)  # some would, until others are served
        if wait and ports.places.is_full and len(callers := _by_caller(elements, indexes.start)) > 1:
            await side_by_side([apart(own) for own in callers])
            return
        chunk, joint = elements[indexes.start : indexes.stop], JointStep(indexes.start)
        if joined:
            joint = await _served_together(ports, operation, indexes.start, chunk)
        elif operation.walk is not None and len(chunk) > 1:
            joint.walked.update(await operation.walk(chunk[0].service, [each.request for each in chunk]))
        alone = []
        for number in indexes:
            if operation.recalled is not None and joint.has_applied(number):
                put(number, operation.recalled(elements[number].request), None)
            else:
                alone.append(_serve(ports, operation, elements[number], joint, number, put))
        for first in range(0, len(alone), operation.side_by_side):
            await side_by_side(alone[first : first + operation.side_by_side])


def _by_caller(elements: Sequence[AskedElement[R]], start: int) -> list[list[int]]:
    """Return the indices of each caller's elements from `start` on."""
    callers = dict[str, list[int]]()
    for number in range(start, len(elements)):
        callers.setdefault(elements[number].call.waits_as, []).append(number)
    return list(callers.values())


async def together(
    ports: Ports, service: Call, names: Iterable[LogicalName], needed: Filter = ()
) -> dict[LogicalName, Traversal]:
    """Walk all names at once. Returns nothing where that fails: each element then meets the error itself."""
    distinct = tuple(dict.fromkeys(names))
    try:
        walks = await ports.librarian.traverse(service, distinct, needed) if distinct else ()
    except CheloniaError:
        return {}
    return dict(zip(distinct, walks, strict=True))


async def named_together(
    ports: Ports, service: Call, requests: Sequence[NamedRequest], *, needed: Filter = (), parents: bool = False
) -> dict[LogicalName, Traversal]:
    """Walk the names of requests, and with `parents` the collections above. Returns nothing if one is no name."""
    try:
        names = [parse_ln(request.ln) for request in requests]
    except CheloniaError:
        return {}
    return await together(ports, service, (*names, *(name.parent for name in names if parents)), needed)


async def led(ports: Ports, turn: ElementCall, *names: LogicalName, needed: Filter = ()) -> tuple[Traversal, ...]:
    """Return where names lead: by the walk of the whole call, or by a new one."""
    if all(name in turn.walked for name in names):
        return tuple([turn.walked[name] for name in names])
    return await ports.librarian.traverse(turn.service, names, needed)


def waves(requests: Sequence[R], ordered: Callable[[R], str | LogicalName] | None) -> list[tuple[int, int]]:
    """Cut a call into runs whose names neither equal nor contain one another.

    Returns: (first, after last) index pairs, in order, covering all requests.
    """
    if ordered is None or len(requests) == 1:
        return [(0, len(requests))]
    cuts: list[int] = [0]
    seen = _Branch()
    for index, request in enumerate(requests):
        path = _path(ordered(request))
        if _is_related(seen, path):
            cuts.append(index)
            seen = _Branch()
        _grow(seen, path)
    return list(zip(cuts, [*cuts[1:], len(requests)], strict=True))


class _Branch(Struct):
    """The names of a wave as a tree, so that a call of deep names costs their length once. `named`: one ends here."""

    named: bool = False
    below: dict[str, _Branch] = msgspec.field(default_factory=dict)


def _is_related(seen: _Branch, path: tuple[str, ...]) -> bool:
    """Whether a name in the tree equals, contains or lies below `path`."""
    branch: _Branch | None = seen
    for part in path:
        branch = branch.below.get(part) if branch is not None else None
        if branch is None:
            return False
        if branch.named:
            return True
    return True


def _grow(seen: _Branch, path: tuple[str, ...]) -> None:
    for part in path:
        below = seen.below.get(part)
        if below is None:
            below = seen.below[part] = _Branch()
        seen = below
    seen.named = True


def element_key(call: Call, op: str, index: int, subject: str) -> RequestKey:
    """Return the request key of one element: the user's, bound to his DN, the operation and its subject.

    Services share one DN towards the store; without this, one user's key could answer another's request.
    """
    if not call.request_key:
        return RequestKey("")
    text = f"{call.dn}\0{op}\0{call.request_key}\0{subject}".encode("utf-8", "surrogatepass")
    return RequestKey(f"{hashlib.sha256(text).hexdigest()[:40]}/{index}")


async def _served_together(
    ports: Ports,
    operation: BulkOperation[R, A],
    first: int,
    elements: Sequence[AskedElement[R]],
) -> JointStep:
    """Try elements together: they take one place, and the walk follows once they have it."""
    assert operation.together is not None, "only of an operation that can"
    assert operation.walk is not None, "what goes together is decided on one walk"
    key, caller, service = _joint_key(operation, first, elements), elements[0].call, elements[0].service
    requests, outcomes, started = [each.request for each in elements], Outcomes(), False
    walked: dict[LogicalName, Traversal] = {}
    try:
        async with ports.places.one(caller, ports.limits, ports.clock):
            started = True
            walked.update(await operation.walk(service, requests))
            keyed = service.keyed(key)
            turns = [ElementCall(each.call, keyed, each.room, walked=walked) for each in elements]
            outcomes = await operation.together(turns, requests)
    except CheloniaError as error:
        failed = error.with_traceback(None)  # a caller that waits too long for his turn fails alone
        outcomes = {n: failed for n, each in enumerate(elements) if started or each.call is caller}
    return JointStep(first, key, outcomes, walked)


def _joint_key(operation: BulkOperation[R, A], first: int, elements: Sequence[AskedElement[R]]) -> RequestKey:
    """Return the request key of elements tried together, bound to all of them and their callers."""
    call, subjects = elements[0].call, [operation.subject(each.request) for each in elements]
    subjects += [f"{each.call.dn}\0{each.call.request_key}" for each in elements if each.call is not call]
    return element_key(call, f"{operation.name} together", first, "\0".join(subjects))


async def _serve(
    ports: Ports,
    operation: BulkOperation[R, A],
    element: AskedElement[R],
    joint: JointStep,
    number: int,
    put: Callable[[int, A, CheloniaError | None], None],
) -> None:
    """Serve the element of this index; `put` gets its answer. One coroutine: each wait of an element passes all those
    around it."""
    place, request = number - joint.first, element.request
    call, key = element.call, operation.key(element.call, element.index, request)
    service = element.service.keyed(key)
    turn = ElementCall(call, service, element.room, walked=joint.walked)
    try:
        turn.room.check()
        if joint_error := joint.outcomes.get(place):
            raise joint_error
        async with ports.places.one(call, ports.limits, ports.clock) as waited:
            if waited:
                turn = replace(turn, walked={})  # the walk may be out of date
            try:
                answer = await operation.act(turn, request)
            except CheloniaError as refused:
                if not _has_moved(refused):
                    raise
                refused.with_traceback(None)  # it becomes the context of the next error, and would hold this frame
                answer = await _again(ports, operation, turn, request)
        return put(number, answer, None)
    except CheloniaError as raised:
        error = raised.with_traceback(None)  # else it holds this frame, which holds it
    # The Librarian answers its own repetitions as the first try: only an outcome unknown to it can have applied.
    repeated = error.kind in CALL_FAILED if call.is_first else error.kind not in _NEVER_APPLIED
    if operation.recalled and key and repeated:
        try:
            if await _has_applied(ports, service, joint, place):
                return put(number, operation.recalled(request), None)
        except CheloniaError as unknown:  # a first try may have applied: this one's error is not the answer yet
            error = error if error.meaning.retryable else unknown
    put(number, *_failed(operation, turn, request, as_seen(error, turn.user)))


async def _has_applied(ports: Ports, service: Call, joint: JointStep, place: int) -> bool:
    if await ports.librarian.recall(service) is not None:
        return True
    memo = await ports.librarian.recall(service.keyed(joint.key)) if joint.key else None
    return memo is not None and str(place) in memo.split()


def _failed(
    operation: BulkOperation[R, A], turn: ElementCall, request: R, error: CheloniaError
) -> tuple[A, CheloniaError | None]:
    if error.kind is Kind.DENIED and error.op.endswith(".metadata"):  # decided without the caller's identity
        subject = operation.subject(request)
        audit.record(turn.user, operation.name, subject, action="metadata", decision="denied", rule=error.cause)
    phase = error.op if error.op in status.PHRASES else operation.name
    text = status.failure(phase, error.kind, error.subject, error.cause) if phase in status.PHRASES else ""
    return operation.fail(request, text, error), error


async def _again(ports: Ports, operation: BulkOperation[R, A], turn: ElementCall, request: R) -> A:
    """Serve an element anew after its entries have changed, with pauses. Raises: CONFLICT when they keep changing."""
    backoff, left = Backoff(RETRY_MS, RETRY_MS_MAX), ATTEMPTS_MAX - 1
    turn = replace(turn, walked={})
    while True:
        await ports.clock.sleep(int(backoff.failed() * (0.5 + ports.ids.uniform())))
        left -= 1
        try:
            return await operation.act(turn, request)
        except CheloniaError as error:
            if not left or not _has_moved(error):
                raise


def _has_moved(error: CheloniaError) -> bool:
    """Whether an entry changed between decision and transact."""
    return error.kind is Kind.CONFLICT or (error.kind is Kind.NOT_FOUND and error.op in _OF_AN_ENTRY)


def as_seen(error: CheloniaError, user: Call) -> CheloniaError:
    """Return the error as the user may see it. Services that refuse one another are the cluster's trouble, not a
    missing right of his. The bearer of a token learns neither which collections have quotas nor their use."""
    if error.kind is Kind.QUOTA and user.scopes:
        cause = "a quota of where it goes, or of whose token this is, is used up: ask who gave you the token"
        return CheloniaError(Kind.QUOTA, error.op, cause=cause)
    if error.kind in (Kind.DENIED, Kind.UNTRUSTED, Kind.EXPIRED) and error.op.startswith(_BETWEEN_SERVICES):
        cause = (
            f"this Bartender, or a service behind it, is not accepted; an administrator can approve it ({error.cause})"
        )
        return CheloniaError(Kind.UNAVAILABLE, error.op, error.subject, cause)
    return error


def _path(ln: str | LogicalName) -> tuple[str, ...]:
    """Return the name as a path; one that does not parse is related to nothing but itself."""
    try:
        parsed = parse_ln(ln) if isinstance(ln, str) else ln
    except CheloniaError:
        return ("", str(ln))
    return (parsed.start, *parsed.parts)
