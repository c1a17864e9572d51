"""Requests of a mount to the cluster, over the port `Files` and the byte port: no other module here knows them.

Each call has a deadline. A change is keyed, so it applies once however often it is tried. Changes that come together
share calls.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from chelonia.core import bounds
from chelonia.core.cluster.replicas import Checksums
from chelonia.core.contents.extents import ByteRange, Extent
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BlobId, Guid
from chelonia.core.names import LogicalName
from chelonia.core.ports.bytes import Bytes
from chelonia.core.ports.files import (
    INLINED,
    NOTHING_ARRIVED,
    Arrived,
    Attributes,
    Change,
    Content,
    Done,
    Failure,
    Files,
    Inline,
    Listed,
    Listing,
    Look,
    Looked,
    Placing,
    Setting,
    Space,
    Splice,
    Want,
    When,
    Write,
    good,
)
from chelonia.hosting.net.clock import SystemClock
from chelonia.hosting.transfer.call_batches import CallBatches
from chelonia.hosting.transfer.file_reader import FileReader
from chelonia_clients.client import new_call
from chelonia_fuse.crowding import CommitCrowd
from chelonia_fuse.errors import AGAIN
from chelonia_fuse.staging import Plan

DEADLINE_S: Final = 30.0
"""Deadline of one request: several times what a failover takes."""
_AWAY: Final = (Kind.NETWORK, Kind.TIMEOUT, Kind.UNTRUSTED, Kind.EXPIRED)
A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Saving:
    """A commit: its place, plan and condition. `body`: returns the plan's bytes, anew with each call. `etag`: the mark
    of the change, and the etag of a file that is written anew; "": none, and the cluster chooses."""

    place: LogicalName
    plan: Plan
    body: Callable[[], AsyncIterator[bytes]]
    wanted: int
    setting: Setting
    when: When
    etag: str = ""


@dataclass(slots=True)
class MountedCluster:
    """The ports of the cluster. `wanted`: copies of a new file. `is_away`: a call was not answered, and none was since
    it was sent. Callers that can do without an answer send nothing then; `FileCommitter.work_off` finds the end."""

    files: Files
    transfers: Bytes
    wanted: int
    is_away: bool = False
    _answers: int = 0
    _crowd: CommitCrowd = field(default_factory=CommitCrowd)
    _looks: CallBatches[Look, Looked | Failure] = field(init=False)
    _changes: CallBatches[Change, Done | Failure] = field(init=False)
    _commits: CallBatches[Change, Done | Failure] = field(init=False)

    def __post_init__(self) -> None:
        self._looks = CallBatches(self.files.look, SystemClock(), again_ms=0)
        self._changes = CallBatches(self.files.apply, SystemClock())
        self._commits = CallBatches(self.files.apply, SystemClock(), again_ms=0)  # `FileCommitter` tries again itself

    async def look(
        self, place: LogicalName, want: Want = Want.NOTHING, span: ByteRange | None = None, *, spare: bool = False
    ) -> Looked:
        """Look at one entry; `spare`: the caller can do without an answer. Raises: NOT_FOUND, DENIED, ..."""
        if spare and self.is_away:
            raise CheloniaError(Kind.NETWORK, "look", str(place), "the cluster did not answer a moment ago")
        return good(await self._answer(self._looks.send(new_call(), Look(place, want, span)), "look", place), "look")

    async def page(self, place: LogicalName, after: str, limit: int = 0) -> Listed:
        """Return a page of a collection; `limit` 0: of the usual length. Raises: NOT_FOUND, DENIED, ..."""
        return await self._answer(self.files.list(new_call(), Listing(place, after, limit)), "list", place)

    async def _answer(self, work: Awaitable[A], op: str, place: LogicalName) -> A:
        """Return an answer, and note whether the cluster is away. A refusal is an answer, unless it may pass."""
        before = self._answers
        try:
            answer = await _in_time(work, op, place)
        except CheloniaError as error:
            if error.kind in _AWAY:
                self.is_away |= self._answers == before  # else it has answered others meanwhile
            elif error.kind not in AGAIN:
                self._answered()
            raise
        self._answered()
        return answer

    def _answered(self) -> None:
        self.is_away = False
        self._answers += 1

    async def space(self, top: LogicalName) -> Space:
        """Return the space of the cluster, and the quotas that bind below a collection."""
        return await self._answer(self.files.space(new_call(), top), "statfs", top)

    async def change(self, change: Change) -> Done:
        """Apply one change. Raises: its failure."""
        place = getattr(change, "place", None) or change.source  # type: ignore[union-attr]
        return good(await self._answer(self._changes.send(new_call(), change), "apply", place), "apply")

    async def _commit(self, change: Write | Splice) -> Attributes:
        """Apply a commit. Raises: its failure; PRECONDITION too if it has applied before, and is no more to be seen."""
        async with self._crowd.together():
            answer = await self._answer(self._commits.send(new_call(), change), "apply", change.place)
        done = good(answer, "apply")
        if done.attributes is None:
            raise CheloniaError(Kind.PRECONDITION, "apply", str(change.place), "others have its name or bytes by now")
        return done.attributes

    async def make_file(self, place: LogicalName, setting: Setting) -> Done:
        """Make an empty file where there is none. Raises: PRECONDITION when there is one."""
        self._crowd.makes()
        content = Content(size=0, whole=True)
        return await self.change(Splice(place, content, setting, when=When(absent=True)))

    def read(self, place: LogicalName, looked: Looked, span: ByteRange) -> AsyncGenerator[bytes, None]:
        """Yield bytes of a file that was looked at with SOURCES. Raises: NO_REPLICA, INCOMPLETE, NETWORK, ..."""
        return FileReader(self.files, self.transfers, new_call(), place).get(looked, span)  # type: ignore[return-value]

    async def save(self, saving: Saving, tried: list[BlobId]) -> Attributes:
        """Send bytes, and commit them to a file. `tried`: gets the blobs they are sent as.

        Raises: PRECONDITION and other failures of the change or of sending.
        """
        place, plan = saving.place, saving.plan
        if not plan.ranges:
            content = Content(size=plan.size, whole=plan.whole, mark=saving.etag)
        elif plan.length <= bounds.INLINE_BYTES_MAX:
            inline = await _inline(saving)
            if plan.plain:
                return await self._commit(_write(saving, inline=inline))
            content = _content(saving, INLINED, inline=inline)
        else:
            at = tuple(ByteRange(start, end - start) for start, end in plan.ranges) if plan.adds else ()
            placing = Placing(place, plan.length, wanted=saving.wanted, piece=not plan.plain, at=at)
            (answer,) = await self._answer(self.files.place(new_call(), (placing,)), "place", place)
            placed = good(answer, "place")
            tried.append(placed.blob)
            arrived = await self.transfers.put(placed, saving.body(), plan.length, len(tried) - 1)
            if plan.plain:
                return await self._commit(_write(saving, arrived))
            content = _content(saving, placed.blob, arrived)
        return await self._commit(Splice(place, content, saving.setting, when=saving.when))

    async def has_applied(self, guid: Guid, mark: str) -> bool:
        """Return whether a commit of this mark to a file has applied, within 10 minutes. Raises: NETWORK, ..."""
        place = LogicalName(guid, ())
        change = Splice(place, Content(mark=mark), when=When(present=True, absent=True, guid=guid))  # which never is
        answer = await self._answer(self._commits.send(new_call(), change), "apply", place)
        if isinstance(answer, Failure) and answer.kind in AGAIN:
            raise answer.error("apply")
        return isinstance(answer, Done)


def _write(saving: Saving, arrived: Arrived = NOTHING_ARRIVED, inline: Inline | None = None) -> Write:
    return Write(
        saving.place, arrived, saving.setting, when=saving.when, etag=saving.etag, inline=inline, mark=saving.etag
    )


async def _inline(saving: Saving) -> Inline:
    data = b"".join([chunk async for chunk in saving.body()])
    return Inline(data, saving.wanted, Checksums(hashlib.sha256(data).hexdigest()))


def _content(saving: Saving, blob: BlobId, *arrived: Arrived, inline: Inline | None = None) -> Content:
    plan = saving.plan
    return Content(_extents(plan, blob), arrived, plan.size, plan.whole, inline, mark=saving.etag)


def new_etag() -> str:
    """Return an etag that no other bytes have."""
    return str(new_call().request_key)


def _extents(plan: Plan, blob: BlobId) -> tuple[Extent, ...]:
    out, skip = [], 0
    for start, end in plan.ranges:
        out.append(Extent(start, end - start, blob, skip))
        skip += end - start
    return tuple(out)


async def _in_time(work: Awaitable[A], op: str, place: LogicalName) -> A:
    try:
        async with asyncio.timeout(DEADLINE_S):
            return await work
    except TimeoutError as error:
        cause = f"the cluster did not answer within {DEADLINE_S:.0f} s"
        raise CheloniaError(Kind.TIMEOUT, op, str(place), cause) from error
