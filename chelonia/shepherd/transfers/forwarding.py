"""Copies to other Shepherds: written along with an upload (`Fanout`), or pushed from the stored replica (`push_copy`).

A copy that takes no byte for `forward_stall_ms` is dropped, and a spare replaces it. While the receipt of a copy is
due, the sender probes the other side on another connection. It waits for a busy disk, but not for a frozen process.
Nobody vouches for another's copy: it counts when the other Shepherd's own receipt names the same blob, size, checksums.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Coroutine
from typing import Any, Final

from chelonia.core.cluster.replicas import Checksums, Receipt
from chelonia.core.contents.extents import ByteRange
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BlobId
from chelonia.core.ports.shepherd import Uploaded
from chelonia.core.timing.clock import Clock, done_within
from chelonia.core.timing.pacing import Pace
from chelonia.shepherd.node import ShepherdNode
from chelonia.shepherd.store.lifecycle import KeptReplica
from chelonia.shepherd.waiting import settled

log = logging.getLogger(__name__)

PART_MS: Final = 250
"""Longest pause between bytes of a paced copy, so that the other side sees that it lives."""
ASK_MS: Final = 15_000
"""Interval between two probes of the other side of a repair copy, and the time limit of each."""
_PASSING: Final = (Kind.NETWORK, Kind.TIMEOUT, Kind.INCOMPLETE, Kind.UNAVAILABLE, Kind.CONFLICT, Kind.BAD_RANGE)
"""Failures of a push after which it is resumed where it left off."""
_SILENT: Final = (Kind.TIMEOUT, Kind.UNAVAILABLE)
"""Failures of a probe that mean the other side is frozen, or its disk does not answer."""
_LOST: Final = (*_SILENT, Kind.NETWORK, Kind.BAD_TICKET)
"""Failures of a probe that end a repair copy. Its machine may be off, or back without the upload, and the connection
that carried the bytes need not break for that."""


def receipt_of(answer: Uploaded, blob: BlobId, size: int, checksums: Checksums) -> Receipt:
    """Return the receipt in `answer` for these bytes. Raises: CHECKSUM when there is none."""
    for receipt in answer.receipts:
        if receipt.blob == blob and receipt.size == size and receipt.checksums.agrees(checksums):
            return receipt
    raise CheloniaError(Kind.CHECKSUM, "copy", blob, "the other Shepherd gave no receipt for the bytes that were sent")


async def push_copy(
    node: ShepherdNode, turl: str, held: KeptReplica, *, resume: bool = False, paced: bool = False
) -> Receipt:
    """Push a stored replica to `turl`, resuming after interruptions; returns the other side's receipt.

    Args:
        resume: query first how many bytes the other side has already.
        paced: it is a repair copy, and keeps within the rate of these.
    Raises: NOT_ALIVE when our own copy cannot be read, the other side's error, NETWORK, TIMEOUT, CHECKSUM.
    """
    for left in range(node.settings.copy_tries - 1, -1, -1):
        try:
            offset = await node.ports.transfers.offset(turl) if resume else 0
            answer = await _push_from(node, turl, held, offset, paced=paced)
            return receipt_of(answer, held.blob, held.size, held.checksums)
        except CheloniaError as error:
            if error.kind in (Kind.NOT_ALIVE, Kind.CHECKSUM):
                node.suspect(held.reference)
            busy = error.kind is Kind.BUSY and resume  # else the other side has no bytes yet that would be lost
            if not (error.kind in _PASSING or busy) or left == 0:
                raise
            log.info("push interrupted reference=%s tries_left=%d error=%s", held.reference, left, error)
        resume = True
        await node.ports.clock.sleep(node.settings.copy_retry_ms)
    raise AssertionError("copy_tries is at least 1")


async def _push_from(node: ShepherdNode, turl: str, held: KeptReplica, offset: int, *, paced: bool) -> Uploaded:
    if offset < 0:  # complete on the other side: an empty body at the end gets its answer again
        offset = held.size
    if offset > held.size:
        raise CheloniaError(Kind.CHECKSUM, "copy", held.reference, "the other side holds more bytes than there are")
    length = held.size - offset
    body = node.ports.blobs.read(held.reference, ByteRange(offset, length))
    if paced:
        body = at_pace(body, node.sending_pace, node.ports.clock)
        answer = await _while_alive(node, turl, node.ports.transfers.push(turl, body, length, offset, patient=True))
    else:
        answer = await node.ports.transfers.push(turl, body, length, offset)
    if not answer.complete:
        raise CheloniaError(Kind.INCOMPLETE, "copy", held.reference, f"{answer.offset} of {held.size} bytes arrived")
    return answer


async def at_pace(body: AsyncIterator[bytes], pace: Pace, clock: Clock) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of `body`; all bodies of one pace together keep within its rate of the moment, 0: no limit."""
    async for chunk in body:
        rest = chunk
        while rest and (rate := pace.per_s_max):
            part, rest = rest[: _part_bytes(rate)], rest[_part_bytes(rate) :]
            pace.spend(len(part), clock.monotonic_ms())
            yield part
            await clock.sleep(pace.wait_ms(clock.monotonic_ms()))
        if rest:
            yield rest


def _part_bytes(bytes_per_s_max: float) -> int:
    return max(1, int(bytes_per_s_max) * PART_MS // 1000)


async def _while_alive(node: ShepherdNode, turl: str, push: Coroutine[Any, Any, Uploaded]) -> Uploaded:
    """The answer to a push, however slowly the other side takes it. Raises: TIMEOUT when that side is found dead, or
    does not know the upload; errors of the push."""
    task = asyncio.ensure_future(push)
    try:
        if why := await not_awaited(node, turl, task, paced=True):
            raise CheloniaError(Kind.TIMEOUT, "copy", cause=f"who takes it is not waited for: {why}")
        return task.result()
    finally:
        await settled(task)


async def not_awaited(
    node: ShepherdNode, turl: str, task: asyncio.Task[Any], give_up_ms: int = -1, *, paced: bool = False
) -> str:
    """Wait for `task`, which sends to `turl`, while the other side answers probes with a trusted certificate.

    Args:
        give_up_ms: monotonic; -1: never, while the other side lives.
        paced: it is a repair copy, probed every `ASK_MS`, not twice in `forward_stall_ms`. It ends also when nothing
            listens there, or the upload is not known there.

    Returns: why the wait ended before the task, "" when the task has ended.
    """
    clock, half_ms = node.ports.clock, ASK_MS if paced else node.settings.forward_stall_ms // 2
    dead = _LOST if paced else _SILENT
    while not await done_within(clock, task, half_ms):
        question = asyncio.ensure_future(node.ports.transfers.offset(turl))
        try:
            answered = await done_within(clock, question, half_ms)
            why = _dead(question, dead) if answered else f"asked whether it lives, it has not answered in {half_ms} ms"
        finally:
            await settled(question)
        if not why and 0 <= give_up_ms <= clock.monotonic_ms():
            why = "its time is over"
        if why and not task.done():
            return why
    return ""


def _dead(question: asyncio.Future[int], dead: Collection[Kind]) -> str:
    """Why a probe shows that the other side is dead, "" when it lives."""
    error = question.exception()
    if not isinstance(error, CheloniaError):
        return ""
    # A side whose certificate is refused serves no user, though bytes may still flow over a standing connection.
    # EXPIRED in its answer, not while connecting, is about the ticket: a copy may outlast it.
    refused = error.kind is Kind.UNTRUSTED or (error.kind is Kind.EXPIRED and error.op == "connect")
    return str(error) if refused or error.kind in dead else ""


class Leg:
    """One copy being written along with an upload."""

    def __init__(self, node: ShepherdNode, turl: str, length: int) -> None:
        self.turl = turl
        self._node = node
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(node.settings.forward_queue_chunks)
        self.task = node.background.start(node.ports.transfers.push(turl, self._body(), length))

    async def offer(self, chunk: bytes | None) -> None:
        """Queue a chunk (None: the end); a leg that takes none for `forward_stall_ms` is dropped."""
        if self.task.done():
            return
        if not self._queue.full():
            self._queue.put_nowait(chunk)
            return
        waiting = asyncio.ensure_future(self._queue.put(chunk))
        if await done_within(self._node.ports.clock, waiting, self._node.settings.forward_stall_ms):
            return
        waiting.cancel()
        log.info("copy dropped: it took no byte for %d ms", self._node.settings.forward_stall_ms)
        await settled(self.task)

    async def receipt(self, held: KeptReplica) -> Receipt | None:
        """Wait for the other side's receipt as long as it lives; None when the leg failed."""
        if why := await self._not_awaited():
            log.info("copy dropped: no receipt came reference=%s: %s", held.reference, why)
            await settled(self.task)
        if self.task.cancelled():
            return None
        error = self.task.exception()
        if isinstance(error, CheloniaError):
            log.info("copy failed reference=%s error=%s", held.reference, error)
            return None
        try:
            return receipt_of(self.task.result(), held.blob, held.size, held.checksums)
        except CheloniaError as refusal:
            log.warning("copy refused reference=%s error=%s", held.reference, refusal)
            return None

    async def _not_awaited(self) -> str:
        give_up_ms = self._node.ports.clock.monotonic_ms() + self._node.settings.forward_finish_ms
        return await not_awaited(self._node, self.turl, self.task, give_up_ms)

    async def _body(self) -> AsyncIterator[bytes]:
        while (chunk := await self._queue.get()) is not None:
            yield chunk


class Fanout:
    """The copies written along with one upload.

    Offer the last chunk only when the bytes are verified: a broken or wrong upload then never completes a copy."""

    def __init__(self, node: ShepherdNode, turls: tuple[str, ...], length: int) -> None:
        self._legs = [Leg(node, turl, length) for turl in turls]

    async def offer(self, chunk: bytes | None) -> None:
        """Hand a chunk to every copy still running; None ends them."""
        for leg in self._legs:
            await leg.offer(chunk)

    async def receipts(self, held: KeptReplica) -> tuple[tuple[Receipt, ...], tuple[str, ...]]:
        """Wait for all copies; returns the receipts, and the TURLs of those that failed."""
        answers = await asyncio.gather(*(leg.receipt(held) for leg in self._legs))
        failed = tuple(leg.turl for leg, receipt in zip(self._legs, answers, strict=True) if receipt is None)
        return tuple(receipt for receipt in answers if receipt is not None), failed

    async def cancel(self) -> None:
        """Cancel all copies; none of them becomes complete."""
        for leg in self._legs:
            await settled(leg.task)
