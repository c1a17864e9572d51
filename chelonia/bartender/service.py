"""The Bartender: the users' front end. It decides the rights of callers, and keeps nothing.

Every operation is a bulk call served by `bulk.answer_all`. It walks each element, decides on it (`rights`) and hands it
to the Librarian as one transact. The answer is the original's string with kind and cause beside it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from chelonia.bartender import audit, deleted, listing, modify, names, transfers
from chelonia.bartender.access_keys import AccessKeysService
from chelonia.bartender.bulk import BulkOperation, ElementCall, Outcomes, answer_all, named_together
from chelonia.bartender.files.service import FilesService
from chelonia.bartender.grouped import GroupedCalls
from chelonia.bartender.ports import Ports
from chelonia.bartender.rights import RIGHTS
from chelonia.bartender.settings import BartenderSettings
from chelonia.bartender.shepherds import Shepherds
from chelonia.bartender.storing import Storing
from chelonia.core import bounds, status
from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.limits import LimitCounts
from chelonia.core.metadata import TYPE_COLLECTION, TYPE_MOUNTPOINT, Filter
from chelonia.core.names import LogicalName
from chelonia.core.operations.bartender import BARTENDER
from chelonia.core.operations.rows import PortMethod
from chelonia.core.ports.bartender import (
    AddReplicaRequest,
    ListDeletedOutcome,
    ListOutcome,
    ListRequest,
    MakeRequest,
    ModifyRequest,
    NameRequest,
    Outcome,
    StatOutcome,
    TransferOutcome,
    UndeleteRequest,
)
from chelonia.core.ports.librarian import Librarian, Traversal
from chelonia.core.ports.shepherd import Directory
from chelonia.core.rights.access import admit, guarded
from chelonia.core.timing.clock import Clock, Ids

R = TypeVar("R")
A = TypeVar("A")
Act = Callable[[Ports, ElementCall, R], Awaitable[A]]
"""A function that serves one element."""
Method = Callable[["BartenderService", Call, tuple[R, ...]], Coroutine[Any, Any, tuple[A, ...]]]
"""An operation of the port."""
Walk = Callable[[Ports, Call, Sequence[Any]], Awaitable[dict[LogicalName, Traversal]]]
"""A function that follows the names of elements together."""
Together = Callable[[Ports, Sequence[ElementCall], Sequence[Any]], Awaitable[Outcomes]]
"""A function that serves several elements in one step."""


def _check(_: object, call: Call, row: PortMethod) -> None:
    try:
        admit(call, row)
    except CheloniaError as error:
        audit.record(call, row.name, "", action=row.name, decision="denied", rule=error.cause)
        raise


def _answering(outcome: Callable[..., A]) -> Callable[[Any, str, CheloniaError], A]:
    """Return a function that answers failed elements: by their ids, with the original's words, kind and cause."""

    def answer(request: Any, text: str, error: CheloniaError) -> A:
        cause = ": ".join(part for part in (error.subject, error.cause) if part)
        return outcome(_id(request), text, kind=error.kind.value, cause=cause)

    return answer


def _id(request: Any) -> str:
    return str(request.change_id if isinstance(request, ModifyRequest) else request.request_id)


def _ln(request: Any) -> str:
    return str(request.ln)


_RIGHTS_OF_NAMES = partial(named_together, needed=RIGHTS)
_AND_ABOVE = partial(named_together, needed=RIGHTS, parents=True)
"""Walks of all names of a call together, for the decisions on changes of names."""


def _made(request: MakeRequest) -> str:
    return f"{request.ln}\0{request.url}"


def _modified(request: ModifyRequest) -> str:
    change = f"{request.change_type}\0{request.section}\0{request.property}\0{request.value}"
    return f"{request.ln}\0{change}"


def _restored(request: UndeleteRequest) -> str:
    return f"{request.ln}\0{request.target_ln}"


def _everywhere(_: object) -> str:
    """Return the root: every name is below it, so such elements run one after another."""
    return "/"


def _change(
    op: str,
    act: Act[R, None],
    subject: Callable[[R], str] = _ln,
    *,
    ordered: Callable[[R], str] = _ln,
    walk: Walk | None = None,
    together: Together | None = None,
) -> Method[R, Outcome]:
    """Return a method that changes entries. An element whose first try has applied gets the answer of that.

    Args: as the fields of `BulkOperation`.
    """

    def applied(request: R) -> Outcome:
        return Outcome(_id(request), status.success(op))

    async def answered(ports: Ports, turn: ElementCall, request: R) -> Outcome:
        await act(ports, turn, request)
        return applied(request)

    more: dict[str, Any] = {"ordered": ordered, "recalled": applied}
    return _bulk(op, answered, _answering(Outcome), subject, walk=walk, together=together, **more)


def _remove(op: str, together: Together | None = None) -> Method[NameRequest, Outcome]:
    return _change(op, partial(names.remove, op), walk=_RIGHTS_OF_NAMES, together=together)


def _bulk(
    op: str,
    act: Act[R, A],
    fail: Callable[[R, str, CheloniaError], A],
    subject: Callable[[R], str] = _ln,
    *,
    walk: Walk | None = None,
    together: Together | None = None,
    **more: Any,
) -> Method[R, A]:
    """Return a method that serves its elements one by one. `more`: further fields of its `BulkOperation`."""

    async def serve(self: BartenderService, call: Call, requests: tuple[R, ...]) -> tuple[A, ...]:
        follow = partial(walk, self._ports) if walk is not None else None
        joint = partial(together, self._ports) if together is not None else None
        operation = BulkOperation(op, partial(act, self._ports), fail, subject, walk=follow, together=joint, **more)
        return await answer_all(self._ports, call, operation, requests)

    return serve


@guarded(BARTENDER, _check)
class BartenderService:
    """Implements `core.ports.bartender.Bartender` over a Librarian and the Shepherds."""

    def __init__(
        self, librarian: Librarian, directory: Directory, clock: Clock, ids: Ids, settings: BartenderSettings
    ) -> None:
        """Bind the service to its ports. Starts nothing."""
        shepherds = Shepherds(librarian, directory, clock, ids, settings)
        storing, fetching = Storing(shepherds, clock, settings), GroupedCalls(shepherds, clock, settings.hedge_ms)
        counts = LimitCounts(clock.monotonic_ms)
        self._ports = Ports(librarian, shepherds, clock, ids, settings, storing, fetching, counts)
        walk = partial(named_together, self._ports)
        self._stat = BulkOperation(
            "stat", partial(listing.stat, self._ports), listing.stat_refused, _ln, walk=walk, keyed=False
        )
        self.files = FilesService(self._ports)
        self.keys = AccessKeysService(self._ports)

    @property
    def limits(self) -> LimitCounts:
        """The counts of bounds that it has reached."""
        return self._ports.limits

    async def stat(self, call: Call, requests: tuple[NameRequest, ...]) -> tuple[StatOutcome, ...]:
        return await answer_all(self._ports, call, self._stat, requests)

    async def list(
        self, call: Call, requests: tuple[ListRequest, ...], needed: Filter, recursive: bool
    ) -> tuple[ListOutcome, ...]:
        """List collections; `needed` filters each child's metadata. Raises: TOO_LARGE for a filter of too many."""
        if len(needed) > bounds.FILTER_MAX:
            cause = f"{len(needed)} needed metadata elements, at most {bounds.FILTER_MAX} are taken; ask for sections"
            self._ports.limits.met("filter", call.dn, f"listing {call.request_id} was refused")
            raise CheloniaError(Kind.TOO_LARGE, "list", "", cause)
        act, width = partial(listing.list_collection, self._ports, needed, recursive), bounds.LISTS_SIDE_BY_SIDE_MAX
        operation = BulkOperation("list", act, _answering(ListOutcome), _ln, side_by_side=width)
        if self._ports.lists.is_full(call):
            self._ports.limits.met("lists_per_caller", call.dn, f"listing {call.request_id} waits for his others")
        async with self._ports.lists.one(call):
            return await answer_all(self._ports, call, operation, requests)

    make_collection = _change("makeCollection", partial(names.make, TYPE_COLLECTION), _made, walk=_RIGHTS_OF_NAMES)
    make_mountpoint = _change("makeMountpoint", partial(names.make, TYPE_MOUNTPOINT), _made)
    unmake_collection = _remove("unmakeCollection")
    unmake_mountpoint = _remove("unmakeMountpoint")
    move = _change(
        "move", names.move,
        lambda request: f"{request.source_ln}\0{request.target_ln}\0{request.preserve_original}", ordered=_everywhere,
    )  # fmt: skip
    put_file = _bulk("putFile", transfers.put_file, _answering(TransferOutcome), ordered=_ln)
    get_file = _bulk("getFile", transfers.get_file, _answering(TransferOutcome))

    async def add_replica(
        self, call: Call, requests: tuple[AddReplicaRequest, ...], protocols: tuple[str, ...]
    ) -> tuple[TransferOutcome, ...]:
        act = partial(transfers.add_replica, self._ports, protocols)
        operation: BulkOperation[AddReplicaRequest, TransferOutcome] = BulkOperation(
            "addReplica", act, _answering(TransferOutcome), lambda request: request.guid
        )
        return await answer_all(self._ports, call, operation, requests)

    del_file = _remove("delFile", together=partial(names.each_together, partial(names.removal, "delFile")))
    unlink = _change("unlink", names.unlink, walk=_AND_ABOVE, together=partial(names.each_together, names.name_removal))
    undelete = _change("undelete", deleted.undelete, _restored, ordered=lambda request: request.target_ln or request.ln)
    list_deleted = _bulk("listDeleted", deleted.list_deleted, _answering(ListDeletedOutcome))
    modify = _bulk("modify", modify.modify, _answering(Outcome), _modified, ordered=_ln, recalled=modify.applied)
