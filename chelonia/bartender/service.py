"""The Bartender: the users' front end. It decides who may do what, and keeps nothing.

Every operation is a bulk call served by `bulk.answer_all`: each element is walked, decided (`rights`) and handed to
the Librarian as one transact; its answer is the original's string with kind and cause beside it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial

from chelonia.bartender import audit, deleted, listing, modify, names, transfers
from chelonia.bartender.access_keys import AccessKeysService
from chelonia.bartender.bulk import BulkOperation, ElementCall, answer_all
from chelonia.bartender.files.service import FilesService
from chelonia.bartender.grouped import GroupedCalls
from chelonia.bartender.ports import Ports
from chelonia.bartender.settings import BartenderSettings
from chelonia.bartender.shepherds import Shepherds
from chelonia.bartender.storing import Storing
from chelonia.core import bounds, status
from chelonia.core.caller import Call
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.limits import LimitCounts
from chelonia.core.metadata import Filter
from chelonia.core.operations.bartender import BARTENDER
from chelonia.core.operations.rows import PortMethod
from chelonia.core.ports.bartender import (
    AddReplicaRequest,
    CommitPutRequest,
    GetFileRequest,
    ListDeletedOutcome,
    ListOutcome,
    ListRequest,
    MakeRequest,
    ModifyRequest,
    MoveRequest,
    NameRequest,
    Outcome,
    PutFileRequest,
    StartPutOutcome,
    StartPutRequest,
    StatOutcome,
    TransferOutcome,
    UndeleteRequest,
)
from chelonia.core.ports.librarian import Librarian
from chelonia.core.ports.shepherd import Directory
from chelonia.core.rights.access import admit, guarded
from chelonia.core.timing.clock import Clock, Ids

_LOG = logging.getLogger(__name__)


def _check(_: object, call: Call, row: PortMethod) -> None:
    """Let a caller in, or note that he was refused. Raises: DENIED."""
    try:
        admit(call, row)
    except CheloniaError as error:
        audit.record(call, row.name, "", action=row.name, decision="denied", rule=error.cause)
        raise


@guarded(BARTENDER, _check)
class BartenderService:
    """Implements `core.ports.bartender.Bartender` over a Librarian and the Shepherds."""

    def __init__(
        self, librarian: Librarian, directory: Directory, clock: Clock, ids: Ids, settings: BartenderSettings
    ) -> None:
        """Bind the service to its world; nothing is started and nothing is kept."""
        shepherds = Shepherds(librarian, directory, clock, ids, settings)
        storing = Storing(shepherds, clock, settings)
        self._ports = Ports(librarian, shepherds, clock, ids, settings, storing, GroupedCalls(shepherds))
        walk = partial(listing.stat_walked, self._ports)
        self._stat = BulkOperation(
            "stat", partial(listing.stat, self._ports), listing.stat_refused, _ln, walk=walk, keyed=False
        )
        self.files = FilesService(self._ports)
        self.keys = AccessKeysService(self._ports)

    @property
    def limits(self) -> LimitCounts:
        """What it counts when a bound is reached."""
        return self._ports.limits

    async def stat(self, call: Call, requests: tuple[NameRequest, ...]) -> tuple[StatOutcome, ...]:
        """Return all metadata of entries the caller may read."""
        return await answer_all(self._ports, call, self._stat, requests)

    async def list(
        self, call: Call, requests: tuple[ListRequest, ...], needed: Filter, recursive: bool
    ) -> tuple[ListOutcome, ...]:
        """List collections; `needed` filters each child's metadata. Raises: TOO_LARGE for a filter without measure."""
        if len(needed) > bounds.FILTER_MAX:
            cause = f"{len(needed)} needed metadata elements, at most {bounds.FILTER_MAX} are taken; ask for sections"
            raise CheloniaError(Kind.TOO_LARGE, "list", "", cause)
        act = partial(listing.list_collection, self._ports, needed, recursive)
        operation = BulkOperation("list", act, _list_refused, _list_ln, side_by_side=bounds.LISTS_SIDE_BY_SIDE_MAX)
        if self._ports.lists.is_full(call):
            self._ports.limits.hit("lists_per_caller")
            _LOG.info("listing waits for others of the same caller who=%r request=%s", call.dn, call.request_id)
        async with self._ports.lists.one(call):
            return await answer_all(self._ports, call, operation, requests)

    async def make_collection(self, call: Call, requests: tuple[MakeRequest, ...]) -> tuple[Outcome, ...]:
        """Make collections."""
        operation = _making("makeCollection", partial(names.make_collection, self._ports))
        return await answer_all(self._ports, call, operation, requests)

    async def unmake_collection(self, call: Call, requests: tuple[NameRequest, ...]) -> tuple[Outcome, ...]:
        """Remove empty collections."""
        operation = _naming("unmakeCollection", partial(names.unmake_collection, self._ports))
        return await answer_all(self._ports, call, operation, requests)

    async def make_mountpoint(self, call: Call, requests: tuple[MakeRequest, ...]) -> tuple[Outcome, ...]:
        """Make mount points."""
        operation = _making("makeMountpoint", partial(names.make_mountpoint, self._ports))
        return await answer_all(self._ports, call, operation, requests)

    async def unmake_mountpoint(self, call: Call, requests: tuple[NameRequest, ...]) -> tuple[Outcome, ...]:
        """Remove mount points."""
        operation = _naming("unmakeMountpoint", partial(names.unmake_mountpoint, self._ports))
        return await answer_all(self._ports, call, operation, requests)

    async def move(self, call: Call, requests: tuple[MoveRequest, ...]) -> tuple[Outcome, ...]:
        """Rename, move or hard-link entries, one after another."""
        operation = BulkOperation(
            "move",
            partial(names.move, self._ports),
            lambda request, text, error: _refused(request.request_id, text, error),
            lambda request: f"{request.source_ln}\0{request.target_ln}\0{request.preserve_original}",
            recalled=lambda request: Outcome(request.request_id, status.success("move")),
            ordered=lambda _: "/",
        )
        return await answer_all(self._ports, call, operation, requests)

    async def put_file(self, call: Call, requests: tuple[PutFileRequest, ...]) -> tuple[TransferOutcome, ...]:
        """Begin uploads the original's way: a pending name and a TURL."""
        operation: BulkOperation[PutFileRequest, TransferOutcome] = BulkOperation(
            "putFile",
            partial(transfers.put_file, self._ports),
            lambda request, text, error: _no_transfer(request.request_id, text, error),
            lambda request: request.ln,
            ordered=lambda request: request.ln,
        )
        return await answer_all(self._ports, call, operation, requests)

    async def get_file(self, call: Call, requests: tuple[GetFileRequest, ...]) -> tuple[TransferOutcome, ...]:
        """Give TURLs to read files."""
        operation: BulkOperation[GetFileRequest, TransferOutcome] = BulkOperation(
            "getFile",
            partial(transfers.get_file, self._ports),
            lambda request, text, error: _no_transfer(request.request_id, text, error),
            lambda request: request.ln,
        )
        return await answer_all(self._ports, call, operation, requests)

    async def add_replica(
        self, call: Call, requests: tuple[AddReplicaRequest, ...], protocols: tuple[str, ...]
    ) -> tuple[TransferOutcome, ...]:
        """Give TURLs for further replicas. Raises: DENIED to whoever is no approved Shepherd."""
        operation: BulkOperation[AddReplicaRequest, TransferOutcome] = BulkOperation(
            "addReplica",
            partial(transfers.add_replica, self._ports, protocols),
            lambda request, text, error: _no_transfer(request.request_id, text, error),
            lambda request: request.guid,
        )
        return await answer_all(self._ports, call, operation, requests)

    async def del_file(self, call: Call, requests: tuple[NameRequest, ...]) -> tuple[Outcome, ...]:
        """Remove files under all their names."""
        operation = _naming("delFile", partial(names.del_file, self._ports))
        return await answer_all(self._ports, call, operation, requests)

    async def unlink(self, call: Call, requests: tuple[NameRequest, ...]) -> tuple[Outcome, ...]:
        """Drop single names."""
        operation = _naming("unlink", partial(names.unlink, self._ports))
        return await answer_all(self._ports, call, operation, requests)

    async def undelete(self, call: Call, requests: tuple[UndeleteRequest, ...]) -> tuple[Outcome, ...]:
        """Bring deleted files back."""
        operation: BulkOperation[UndeleteRequest, Outcome] = BulkOperation(
            "undelete",
            partial(deleted.undelete, self._ports),
            lambda request, text, error: _refused(request.request_id, text, error),
            lambda request: f"{request.ln}\0{request.target_ln}",
            recalled=lambda request: Outcome(request.request_id, status.success("undelete")),
            ordered=lambda _: "/",
        )
        return await answer_all(self._ports, call, operation, requests)

    async def list_deleted(self, call: Call, requests: tuple[ListRequest, ...]) -> tuple[ListDeletedOutcome, ...]:
        """List deleted files that are kept."""
        act = partial(deleted.list_deleted, self._ports)
        operation = BulkOperation("listDeleted", act, _list_deleted_refused, _list_ln)
        return await answer_all(self._ports, call, operation, requests)

    async def modify(self, call: Call, requests: tuple[ModifyRequest, ...]) -> tuple[Outcome, ...]:
        """Change whitelisted metadata, states and policies."""
        operation: BulkOperation[ModifyRequest, Outcome] = BulkOperation(
            "modify",
            partial(modify.modify, self._ports),
            lambda request, text, error: _refused(request.change_id, text, error),
            _modify_subject,
            recalled=lambda request: Outcome(request.change_id, "unset" if request.change_type == "unset" else "set"),
            ordered=lambda request: request.ln,
        )
        return await answer_all(self._ports, call, operation, requests)

    async def start_put(self, call: Call, requests: tuple[StartPutRequest, ...]) -> tuple[StartPutOutcome, ...]:
        """Begin bytes-first uploads."""
        operation = BulkOperation("startPut", partial(transfers.start_put, self._ports), _no_start, _start_ln)
        return await answer_all(self._ports, call, operation, requests)

    async def commit_put(self, call: Call, requests: tuple[CommitPutRequest, ...]) -> tuple[Outcome, ...]:
        """Give durable bytes their name."""
        operation: BulkOperation[CommitPutRequest, Outcome] = BulkOperation(
            "commitPut",
            partial(transfers.commit_put, self._ports),
            lambda request, text, error: _refused(request.request_id, text, error),
            lambda request: request.put,
            recalled=lambda request: Outcome(request.request_id, status.success("commitPut")),
        )
        return await answer_all(self._ports, call, operation, requests)


def _naming(
    op: str, act: Callable[[ElementCall, NameRequest], Awaitable[Outcome]]
) -> BulkOperation[NameRequest, Outcome]:
    return BulkOperation(
        op,
        act,
        lambda request, text, error: _refused(request.request_id, text, error),
        _ln,
        recalled=lambda request: Outcome(request.request_id, status.success(op)),
        ordered=_ln,
    )


def _making(
    op: str, act: Callable[[ElementCall, MakeRequest], Awaitable[Outcome]]
) -> BulkOperation[MakeRequest, Outcome]:
    return BulkOperation(
        op,
        act,
        lambda request, text, error: _refused(request.request_id, text, error),
        lambda request: f"{request.ln}\0{request.url}",
        recalled=lambda request: Outcome(request.request_id, status.success(op)),
        ordered=lambda request: request.ln,
    )


def _ln(request: NameRequest) -> str:
    return request.ln


def _list_ln(request: ListRequest) -> str:
    return request.ln


def _start_ln(request: StartPutRequest) -> str:
    return request.ln


def _modify_subject(request: ModifyRequest) -> str:
    what = f"{request.change_type}\0{request.section}\0{request.property}\0{request.value}"
    return f"{request.ln}\0{what}"


def _cause(error: CheloniaError) -> str:
    return ": ".join(part for part in (error.subject, error.cause) if part)


def _refused(request_id: str, text: str, error: CheloniaError) -> Outcome:
    return Outcome(request_id, text, error.kind.value, _cause(error))


def _no_transfer(request_id: str, text: str, error: CheloniaError) -> TransferOutcome:
    return TransferOutcome(request_id, text, kind=error.kind.value, cause=_cause(error))


def _no_start(request: StartPutRequest, text: str, error: CheloniaError) -> StartPutOutcome:
    return StartPutOutcome(request.request_id, text, kind=error.kind.value, cause=_cause(error))


def _list_refused(request: ListRequest, text: str, error: CheloniaError) -> ListOutcome:
    return ListOutcome(request.request_id, text, kind=error.kind.value, cause=_cause(error))


def _list_deleted_refused(request: ListRequest, text: str, error: CheloniaError) -> ListDeletedOutcome:
    return ListDeletedOutcome(request.request_id, text, kind=error.kind.value, cause=_cause(error))
