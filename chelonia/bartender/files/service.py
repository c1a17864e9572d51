"""The service of `core.ports.files.Files`: `bulk` judges, keys and answers each element by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from chelonia.bartender.bulk import (
    BulkOperation,
    ElementCall,
    Outcomes,
    answer_all,
    gathered,
    together,
)
from chelonia.bartender.files import changing, inlined, parts, reading, sharing, writing
from chelonia.bartender.files.attributes import DESCRIBED
from chelonia.bartender.files.summarised import RightsCache
from chelonia.bartender.names import EntryRemoval
from chelonia.bartender.ports import Ports
from chelonia.bartender.rights import FoundEntry, Judge, check_within, is_visible
from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.contents.attributes import attributes_of, bytes_of
from chelonia.core.contents.parts import PartPage, UploadPage
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.metadata import StoredObject
from chelonia.core.names import LogicalName, check_ln
from chelonia.core.operations.files import FILES
from chelonia.core.ports.files import (
    TOP,
    Change,
    Clone,
    Done,
    Drop,
    Failure,
    Listed,
    Listing,
    Look,
    Looked,
    Make,
    Move,
    Open,
    Over,
    Part,
    Placed,
    Placing,
    Remove,
    Removing,
    Seal,
    Set,
    Space,
    Splice,
    UploadParts,
    Uploads,
    Want,
    Write,
)
from chelonia.core.ports.librarian import Traversal
from chelonia.core.rights.access import guarded
from chelonia.core.rights.scopes import Share, Shared
from chelonia.core.values import replace

R = TypeVar("R")
A = TypeVar("A")

FEW: Final = 2
"""Most elements of a call that is served with others: a larger one is a batch of its own."""
_SLOW: Final = Want.MEASURED
"""Wants that make a look slow: it is served alone, so that it delays no others."""


@guarded(FILES)
class FilesService:
    """Implements `Files`. It keeps nothing but owners and policies, by their digests."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._rights = RightsCache()
        self._look: BulkOperation[Look, Looked | Failure] = replace(
            _asking("look", partial(reading.look, ports)),
            walk=partial(reading.walked, ports),
            side_by_side=bounds.LOOKED_TOGETHER_MAX,
        )
        self._change: BulkOperation[Change, Done | Failure] = BulkOperation(
            "apply",
            self._apply,
            _failure,
            repr,
            recalled=_recalled,
            ordered=_ordered,
            walk=self._walked,
            together=self._removed,
            joins=_joins,
            marked=_marked,
        )
        self._looks = {strong: gathered(ports, self._look) for strong in (False, True)}
        kinds = [(strong, kind) for strong in (False, True) for kind in (Write, Remove)]
        self._changes = {each: gathered(ports, self._change) for each in kinds}

    async def look(self, call: Call, asks: tuple[Look, ...]) -> tuple[Looked | Failure, ...]:
        if len(asks) <= FEW and call.read_after is None and all(_SLOW not in ask.want for ask in asks):
            return await self._looks[call.strong].ask((call, asks))
        return await answer_all(self._ports, call, self._look, asks)

    async def list(self, call: Call, ask: Listing) -> Listed:
        return await self._one(call, "list", partial(reading.listed, self._ports, self._rights), ask)

    async def place(self, call: Call, asks: tuple[Placing, ...]) -> tuple[Placed | Failure, ...]:
        return await self._answered(call, "place", partial(writing.place, self._ports), asks)

    async def apply(self, call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        # A repeated write has the same key in other company, but a removal would have another. Only doors make calls
        # that are the first under their key, and they repeat no removal under it.
        if call.is_first and call.read_after is None and (kind := _brief(changes)) is not None:
            answers = await self._changes[call.strong, kind].ask((call, changes))
        else:
            answers = await answer_all(self._ports, call, self._change, changes)
        return await self._described(call, changes, answers)

    async def share(self, call: Call, ask: Share) -> Shared:
        return await self._one(call, "share", partial(sharing.share, self._ports), ask)

    async def uploads(self, call: Call, ask: Uploads) -> UploadPage:
        return await self._one(call, "uploads", partial(parts.uploads, self._ports), ask)

    async def parts(self, call: Call, ask: UploadParts) -> PartPage:
        return await self._one(call, "parts", partial(parts.listed, self._ports), ask)

    async def space(self, call: Call, place: LogicalName = TOP) -> Space:
        return await self._one(call, "space", partial(reading.space, self._ports), Look(place))

    async def _apply(self, turn: ElementCall, change: Change) -> Done:
        _check(turn, change)
        try:
            answer = await self._applying(turn, change)
        except CheloniaError:
            await changing.undo(self._ports, turn)
            raise
        if answer.attributes is None:  # a first try has applied; nothing need be left
            await changing.undo(self._ports, turn)
        return answer

    def _applying(self, turn: ElementCall, change: Change) -> Awaitable[Done]:
        match change:
            case Make():
                return changing.make(self._ports, turn, change)
            case Write():
                change.check()
                if change.inline is not None:
                    return inlined.write(self._ports, turn, change, change.inline)
                return writing.write(self._ports, turn, change)
            case Splice():
                change.check()
                if change.content.inline is not None:
                    return inlined.splice(self._ports, turn, change, change.content.inline)
                return writing.splice(self._ports, turn, change)
            case Clone():
                return writing.copy(self._ports, turn, change)
            case Open():
                return parts.open_upload(self._ports, turn, change)
            case Part():
                return parts.put_part(self._ports, turn, change)
            case Seal():
                return parts.seal(self._ports, turn, change)
            case Drop():
                return parts.drop(self._ports, turn, change)
            case Set():
                return changing.set_attributes(self._ports, turn, change)
            case Move():
                return changing.move(self._ports, turn, change)
            case Remove():
                return changing.remove(self._ports, turn, change)

    async def _removed(self, turns: Sequence[ElementCall], changes: Sequence[Change]) -> Outcomes:
        removals = [change for change in changes if isinstance(change, Remove)]
        assert len(removals) == len(changes), "nothing else joins"

        async def decide(turn: ElementCall, change: Remove) -> EntryRemoval:
            _check(turn, change)
            return await changing.removal(self._ports, turn, change)

        return await changing.remove_together(self._ports, turns, removals, decide)

    async def _walked(self, service: Call, changes: Sequence[Change]) -> dict[LogicalName, Traversal]:
        """Walk the names of changes, and the collections above those that go. The transacts depend on what it finds."""
        places = [change.place for change in changes if isinstance(change, Write | Splice | Make | Set | Remove)]
        places += [change.place.parent for change in changes if isinstance(change, Remove)]
        needed = changing.WRITTEN if any(isinstance(change, Set) for change in changes) else DESCRIBED
        return await together(self._ports, service, places, needed)

    async def _described(
        self, call: Call, changes: Sequence[Change], answers: Sequence[Done | Failure]
    ) -> tuple[Done | Failure, ...]:
        """Add the attributes of changed entries to answers without them, by one walk for all. Those of a repeated
        change only if its entry still has the name, and the bytes that it gave it."""
        wanted = {n: place for n, change in enumerate(changes) if (place := _after(change, answers[n])) is not None}
        if not wanted:
            return tuple(answers)
        service = self._ports.own(call)
        memos = await asyncio.gather(*(self._memo(call, n, changes[n]) for n in wanted))
        walks = await self._ports.librarian.traverse(service, tuple(wanted.values()), DESCRIBED)
        described = list(answers)
        for n, memo, walked in zip(wanted, memos, walks, strict=True):
            done, entry = answers[n], walked.last
            if is_visible(entry) and walked.complete and _is_of(memo, entry) and isinstance(done, Done):
                described[n] = done = replace(done, attributes=attributes_of(entry))
                if isinstance(changes[n], Set | Move):
                    described[n] = changing.readable(Judge(call, "apply"), FoundEntry(wanted[n], entry), done)
        return tuple(described)

    async def _memo(self, call: Call, index: int, change: Change) -> str:
        """Return the memo of a change that a request key has applied, "" if there is none."""
        key = self._change.key(call, index, change)
        return await self._ports.librarian.recall(self._ports.own(call).keyed(key)) or "" if key else ""

    async def _answered(
        self, call: Call, name: str, act: Callable[[ElementCall, R], Awaitable[A]], asks: Sequence[R]
    ) -> tuple[A | Failure, ...]:
        return await answer_all(self._ports, call, _asking(name, act), asks)

    async def _one(self, call: Call, name: str, act: Callable[[ElementCall, R], Awaitable[A]], ask: R) -> A:
        """Return the answer to one request. Raises: the error that it failed with."""
        (answer,) = await self._answered(call, name, act, (ask,))
        if isinstance(answer, Failure):
            raise answer.error(name)
        return answer


def _asking(name: str, act: Callable[[ElementCall, R], Awaitable[A]]) -> BulkOperation[R, A | Failure]:
    """Return an operation without a request key: it changes nothing, or gives another link each time (`share`)."""
    return BulkOperation(name, _checked(act), _failure, repr, keyed=False)


def _checked(act: Callable[[ElementCall, R], Awaitable[A]]) -> Callable[[ElementCall, R], Awaitable[A]]:
    """Return `act` behind the checks of `_check`."""

    def checked(turn: ElementCall, ask: R) -> Awaitable[A]:
        _check(turn, ask)
        return act(turn, ask)

    return checked


def _check(turn: ElementCall, ask: object) -> None:
    """Check that names are lawful, as encoded ones are unparsed, and in the caller's scopes. Raises: BAD_NAME, DENIED,
    BAD_REQUEST."""
    for name in _names(ask):
        check_ln(name)
        if turn.user.scopes:
            check_within(turn.user, type(ask).__name__.lower(), name)
    _check_bound(ask)


def _names(ask: Any) -> tuple[LogicalName, ...]:
    if isinstance(ask, Move):
        return ask.source, ask.target
    return (ask.place, ask.source) if isinstance(ask, Clone) else (ask.place,)


def _check_bound(ask: Any) -> None:
    """Refuse a `within` that is no collection above the name. Raises: BAD_REQUEST."""
    within = getattr(ask, "within", None)
    if within is None:
        return
    place, depth = ask.place, len(within.parts)
    if (place.start, place.parts[:depth]) != (within.start, within.parts) or depth == len(place.parts):
        cause = f"{within} is no collection above it"
        raise CheloniaError(Kind.BAD_REQUEST, subject=str(place), cause=cause)


def _failure(ask: object, text: str, error: CheloniaError) -> Failure:
    return Failure(error.kind, error.subject, error.cause)


def _recalled(change: Change) -> Done | Failure:
    """Return the answer to a repeated change that had applied. `made` where it could not have applied otherwise. An
    opened upload whose answer was lost expires."""
    if isinstance(change, Remove):
        return Done()
    if isinstance(change, Open):
        return Failure(Kind.CONFLICT, str(change.place), "the upload was opened before; open another")
    if isinstance(change, Move):
        return Done(made=change.over is Over.REFUSE)
    exclusive = isinstance(change, Write | Splice | Clone | Seal) and change.when.absent
    return Done(made=exclusive or isinstance(change, Make))


def _after(change: Change, answer: Done | Failure) -> LogicalName | None:
    """Return the name of a changed entry; None where there is none, or the answer has its attributes."""
    if isinstance(answer, Failure) or answer.attributes or isinstance(change, Remove | Open | Part | Drop):
        return None
    return change.target if isinstance(change, Move) else change.place


def _is_of(memo: str, entry: StoredObject) -> bool:
    """Return whether an entry is the one that a memo names, with the bytes that it names; "" names none."""
    guid, _, etag = memo.partition(" ")
    return guid in ("", entry.id) and etag in ("", bytes_of(entry))


def _brief(changes: Sequence[Change]) -> type[Write] | type[Remove] | None:
    """Return the kind of a call small enough to be served with others; None: it is served alone."""
    if len(changes) > FEW:
        return None
    if all(isinstance(change, Remove) for change in changes):
        return Remove
    return Write if all(isinstance(change, Write) and change.inline is not None for change in changes) else None


def _joins(change: Change) -> bool:
    """Whether a change can be one of several in one transact."""
    return isinstance(change, Remove) and change.what not in (Removing.COLLECTION, Removing.MARK)


def _marked(change: Change) -> str:
    if not isinstance(change, Write | Splice):
        return ""
    mark = change.mark if isinstance(change, Write) else change.content.mark
    return f"{mark} {change.when.guid or change.place}" if mark else ""


def _ordered(change: Change) -> LogicalName:
    """Return the name whose relatives wait for this change; one with two names waits for all."""
    return TOP if isinstance(change, Move | Clone) else change.place
