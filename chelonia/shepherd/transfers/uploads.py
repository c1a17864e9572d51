"""The upload side: space and tickets (`offer`), bytes (`receive`), and the purpose that they are for.

The table of open uploads is in memory: a restart ends their tickets, and clients need new TURLs. One ticket completes
once. Its answer is kept until the ticket expires, or very many others are complete; the same client's repeat with the
same bytes gets it again.
An upload lasts while its bytes arrive, and for its ticket's time after the last of them.
Story: docs/design/002-protocols.md, "Write". Invariants:
- An upload has at most one body at a time.
- Nothing is visible before it is verified and durable.
- Once the last byte is here the rest happens even if the client goes away.
- Bytes whose purpose could not be fulfilled are kept as uncommitted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import islice

from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.cluster.replicas import PROTOCOL_HTTP, Checksums, Receipt
from chelonia.core.contents.extents import ByteRange
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ANONYMOUS, BlobId, Dn, Ms, ReferenceId, ServiceId, parse_reference
from chelonia.core.ports.librarian import Arriving
from chelonia.core.ports.shepherd import Purpose, PutRequest, Turl, TurlOutcome, Upload, Uploaded
from chelonia.core.status import NO_SUPPORTED_PROTOCOL
from chelonia.core.values import replace
from chelonia.shepherd.node import ShepherdNode
from chelonia.shepherd.rules.open_uploads import NOBODY, Crowd, OpenUploads, TicketedUpload
from chelonia.shepherd.rules.promises import Promise, make_room
from chelonia.shepherd.store import lifecycle
from chelonia.shepherd.store.checksums import Hasher
from chelonia.shepherd.store.lifecycle import KeptReplica, Phase
from chelonia.shepherd.transfers import ticket_gate as gate
from chelonia.shepherd.transfers.forwarding import Fanout, at_pace, not_awaited, push_copy
from chelonia.shepherd.transfers.intake import Intake
from chelonia.shepherd.waiting import settled
from chelonia.wire.tickets import Ticket

log = logging.getLogger(__name__)

_CROWDED = {Crowd.OF_OWNER: "too many uploads of this owner are open", Crowd.OF_ALL: "too many uploads are open"}
_OUTCOME_OPEN = (Kind.OUTCOME_UNKNOWN, Kind.NETWORK, Kind.TIMEOUT, Kind.UNAVAILABLE, Kind.READ_ONLY, Kind.CANCELLED)
"""Failures of a commit after which it is repeated with the same request key."""


@dataclass(slots=True)
class ShepherdUpload:
    """One upload from its ticket to its end.

    `ends_ms`: monotonic; a wall clock that steps neither ends uploads nor keeps their space for ever.

    - `written`: bytes received
    - `hasher`: checksums so far of the kept bytes
    - `sender`, `announced`: sender of the last body, and the checksums he sent with it
    - `receipts`: one per durable copy
    - `untried`: (TURL, whether bytes may be there already) of copies still to be made
    """

    request: PutRequest
    reference: ReferenceId
    nonce: str
    ends_ms: int
    reserved_until_ms: int
    phase: Phase = Phase.OPEN
    written: int = 0
    hasher: Hasher | None = None
    sender: Dn = ANONYMOUS
    announced: Checksums = Checksums()
    withdrawn: bool = False
    gave_way: bool = False
    """Whether its space went to another upload, whose owner was promised less."""
    receipts: dict[ServiceId, Receipt] = field(default_factory=dict)
    untried: tuple[tuple[str, bool], ...] = ()
    answer: Uploaded | None = None

    @property
    def size(self) -> int:
        """Bytes announced for the replica, -1 when unknown."""
        return self.request.facts.size

    def reserved_bytes(self, now_ms: int) -> int:
        """Return the space promised and not yet used. An upload that does not begin in time loses its claim, not its
        ticket: repeated requests without a byte cannot fill a disk."""
        begun = self.phase in (Phase.RECEIVING, Phase.KEPT)
        waiting = self.phase is Phase.OPEN and now_ms < self.reserved_until_ms
        return max(self.size - self.written, 0) if (begun or waiting) and not self.gave_way else 0

    def promise(self, now_ms: int) -> Promise:
        """Return the promise of its space."""
        return _promise(self.request, self.reference, self.reserved_bytes(now_ms), self.phase is Phase.RECEIVING)


class ShepherdUploads:
    """The upload side of one Shepherd."""

    def __init__(self, node: ShepherdNode) -> None:
        self._node = node
        self._pending: dict[ReferenceId, ShepherdUpload] = {}
        self._open = OpenUploads()
        self._stored: dict[ReferenceId, None] = {}
        """Uploads whose bytes are stored, the earliest first; some may be forgotten already."""
        self._taking: dict[ReferenceId, tuple[ShepherdUpload, Intake]] = {}
        """Uploads whose bytes are coming in now."""
        self._withdrawn: dict[ReferenceId, None] = {}
        """References ordered to be erased, the earliest first: a later request for one comes too late."""
        self._left: dict[ReferenceId, None] = {}
        """Withdrawn uploads whose bytes came after their erasure and may still be here."""

    # --- tickets --------------------------------------------------------------------------------------------------

    async def offer(self, requests: tuple[PutRequest, ...]) -> tuple[TurlOutcome, ...]:
        """Reserve space and issue a TURL per request, or answer in the original's words why not.

        Raises: BAD_REQUEST for a reference that is no UUID; BUSY when no repair copy would find a place here now.
        """
        claimed = [request.reference for request in requests if request.reference]
        for reference in claimed:
            parse_reference(reference)
        if claimed:
            async with self._node.taking.one("put"):
                pass  # taken again when its bytes come
        if self._node.disk.unready:
            why = f"not ready: {self._node.disk.unready}"
            return tuple(TurlOutcome(r.request_id, error=why, kind=Kind.UNAVAILABLE.value) for r in requests)
        free, _ = await self._node.ports.blobs.space()
        outcomes: list[TurlOutcome] = []
        for request in requests:
            refusal = self.refusal(request, free)
            if refusal is None:
                outcomes.append(self._ticket(request))
            else:
                error, kind = refusal
                outcomes.append(TurlOutcome(request.request_id, error=error, kind=kind.value))
        return tuple(outcomes)

    def pending(self, reference: ReferenceId) -> ShepherdUpload | None:
        """Return the upload called `reference` while its bytes are not a replica yet, else None."""
        pending = self._pending.get(reference)
        if pending is None or pending.phase in (Phase.STORED, Phase.DONE):
            return None
        return pending

    def arriving(self) -> tuple[Arriving, ...]:
        """Return the claimed copies whose bytes are coming in, the earliest first, as many as a heartbeat carries."""
        claimed = ((p, intake) for p, intake in self._taking.values() if p.request.reference)
        receiving = islice(claimed, bounds.ARRIVING_MAX)
        return tuple(Arriving(p.reference, p.request.facts.blob, intake.arrived) for p, intake in receiving)

    def withdraw(self, reference: ReferenceId) -> None:
        """Withdraw an upload. Its ticket ends, a body on its way is refused from its next bytes on, and later requests
        for its reference are refused."""
        self._withdrawn[reference] = None
        if len(self._withdrawn) > bounds.UPLOADS_REMEMBERED_MAX:
            del self._withdrawn[next(iter(self._withdrawn))]
        pending = self._pending.pop(reference, None)
        self._open.end(reference)
        if pending is not None:
            pending.withdrawn = True

    def expire(self) -> tuple[ReferenceId, ...]:
        """Forget uploads whose time is over; returns those whose bytes are to be erased, and withdrawn ones."""
        now_ms = self._node.ports.clock.monotonic_ms()
        busy = (Phase.RECEIVING, Phase.FINISHING)
        late = [p for p in self._pending.values() if p.ends_ms <= now_ms and p.phase not in busy]
        for pending in late:
            del self._pending[pending.reference]
            self._open.end(pending.reference)
            self._stored.pop(pending.reference, None)
        left, self._left = self._left, {}
        return *left, *(p.reference for p in late if p.phase is Phase.KEPT)

    def refusal(self, request: PutRequest, free: int) -> tuple[str, Kind] | None:
        """Make room for an upload; returns why it is refused, None when it is not. `free`: bytes of the disk."""
        if PROTOCOL_HTTP not in request.protocols:
            return NO_SUPPORTED_PROTOCOL, Kind.NO_PROTOCOL
        if request.reference in self._withdrawn:
            return "it was ordered to be erased", Kind.EXPIRED
        index = self._node.index
        old = self._pending.get(request.reference)
        busy = old is not None and old.phase not in (Phase.OPEN, Phase.KEPT)
        if busy or request.reference in index or index.live_copy(request.facts.blob) is not None:
            return "already have this file", Kind.EXISTS
        if old is None and (crowd := self._crowded(request)) is not None:
            self._node.ports.limits.met(crowd.value, request.facts.owner, "an upload was refused")
            return _CROWDED[crowd], Kind.UNAVAILABLE
        size = max(request.facts.size, 0)
        if not self._node.settings.accepting or max(size, 1) > free:
            return "not enough space", Kind.NO_SPACE
        if max(size, 1) <= free - self._open.bytes_max:
            return None  # enough even if all use what they have announced
        try:
            wanted = _promise(request, request.reference, size, False)
            ended = make_room(wanted, free, self._promises(old, request.facts.blob))
        except CheloniaError as error:
            self._node.ports.limits.met("space_promised", request.facts.owner, "an upload was refused")
            return error.cause, error.kind
        for reference in ended:
            did = f"space is kept no longer for {reference}: less was asked for"
            self._node.ports.limits.met("promises_ended", request.facts.owner, did)
            self._pending[reference].gave_way = True
        return None

    def _crowded(self, request: PutRequest) -> Crowd | None:
        crowd = self._open.crowded(_owner(request), self._node.ports.clock.monotonic_ms())
        self._forget()
        return crowd

    def _forget(self) -> None:
        for reference in self._open.forgotten():
            del self._pending[reference]

    def _promises(self, but: ShepherdUpload | None, blob: BlobId) -> list[Promise]:
        """Promises to uploads other than `but`, and other than those of `blob` that have not begun."""
        now_ms = self._node.ports.clock.monotonic_ms()  # of one blob one copy is kept here
        return [
            pending.promise(now_ms)
            for pending in map(self._pending.__getitem__, self._open)
            if pending is not but and not (pending.phase is Phase.OPEN and pending.request.facts.blob == blob)
        ]

    def _ticket(self, request: PutRequest) -> TurlOutcome:
        node = self._node
        reference = request.reference or ReferenceId(node.ports.ids.uuid())
        lifetime_ms = gate.lifetime_ms(node, request.lifetime_ms)
        expires_ms = Ms(node.ports.clock.now_ms() + (gate.COPY_TICKET_MS if request.reference else lifetime_ms))
        now_ms = node.ports.clock.monotonic_ms()
        reserved_until_ms = now_ms + node.settings.reserve_ms
        nonce = node.ports.ids.token(8).hex()
        pending = ShepherdUpload(request, reference, nonce, now_ms + lifetime_ms, reserved_until_ms)
        pending.untried = tuple((turl, False) for turl in request.spare)
        old = self._pending.get(reference)
        if old is not None:
            pending.phase, pending.written, pending.hasher = old.phase, old.written, old.hasher
        self._pending[reference] = pending
        self._open.add(TicketedUpload(reference, _owner(request), max(request.facts.size, 0), reserved_until_ms))
        sums = request.facts.checksums
        ticket = Ticket(
            method=gate.PUT,
            reference=reference,
            blob=request.facts.blob,
            boot=node.state.boot,
            size=request.facts.size,
            sha256=sums.sha256,
            md5=sums.md5,
            adler32=sums.adler32,
            dn=Dn(request.dn),
            address=request.address,
            purpose=request.purpose.value,
            single_use=True,
            expires_ms=expires_ms,
            nonce=pending.nonce,
        )
        return TurlOutcome(request.request_id, gate.turl(node, ticket), PROTOCOL_HTTP, reference)

    # --- bytes ----------------------------------------------------------------------------------------------------

    async def offset(self, call: Call, turl: Turl) -> int:
        """Return how many bytes of an upload are kept; -1 when it is complete. Raises: BAD_TICKET, EXPIRED;
        UNAVAILABLE while the disk is not there, so that no sender waits in vain."""
        pending = self._admitted(call, turl)
        if pending.phase in (Phase.STORED, Phase.DONE):
            return -1
        if trouble := self._node.disk.trouble:
            raise CheloniaError(Kind.UNAVAILABLE, gate.PUT, pending.reference, trouble)
        return pending.written if pending.phase is Phase.KEPT else 0

    async def receive(self, call: Call, upload: Upload) -> Uploaded:
        """Receive one body, that of a repair copy once there is a place. Raises: see `ShepherdData.receive`."""
        pending = self._admitted(call, upload.turl)
        if not pending.request.reference or pending.phase not in (Phase.OPEN, Phase.KEPT):
            return await self._receive(call, pending, upload)
        async with (
            self._node.taking.one(gate.PUT) as place,
            aclosing(place.while_coming(self._node.ports.clock, upload.body)) as coming,
            aclosing(at_pace(coming, self._node.taking_pace, self._node.ports.clock)) as body,
        ):  # the ticket may have expired while it waited for the place
            return await self._receive(call, self._admitted(call, upload.turl), replace(upload, body=body))

    async def _receive(self, call: Call, pending: ShepherdUpload, upload: Upload) -> Uploaded:
        if pending.phase in (Phase.RECEIVING, Phase.FINISHING):
            cause = "another request is sending or completing this upload; wait for it, then repeat"
            raise CheloniaError(Kind.CONFLICT, gate.PUT, pending.reference, cause)
        if pending.phase in (Phase.STORED, Phase.DONE):
            return await self._repeated(call, pending, upload)
        _check_lengths(pending, upload)
        return await self._received(call, pending, upload)

    def _admitted(self, call: Call, turl: Turl) -> ShepherdUpload:
        ticket = gate.admit(self._node, call, turl, gate.PUT)
        pending = self._pending.get(ticket.reference)
        if pending is None or pending.nonce != ticket.nonce:
            raise gate.closed(ticket.reference, ticket.blob)
        return pending

    async def _received(self, call: Call, pending: ShepherdUpload, upload: Upload) -> Uploaded:
        resumed = pending.phase is Phase.KEPT and upload.offset > 0
        pending.phase = Phase.RECEIVING
        self._open.begin(pending.reference)
        try:
            intake = await self._intake(pending, upload, resumed)
        except BaseException:
            self._broke_off(pending)
            raise
        pending.sender, pending.announced = call.dn, upload.announced
        self._taking[pending.reference] = pending, intake
        try:
            await intake.take(_while_open(pending, upload.body))
            whole = self._is_whole(pending, upload, intake.writer.offset)
        except BaseException as error:
            await asyncio.shield(self._node.background.start(self._interrupted(pending, intake, error)))
            if intake.write_failed:
                await self._node.disk.look(hard=True)
            raise
        finally:
            self._taking.pop(pending.reference, None)
            self._prolong(pending)
        if not whole:
            await asyncio.shield(self._node.background.start(self._interrupted(pending, intake, None)))
            return Uploaded(False, pending.written, guid=pending.request.facts.guid)
        pending.phase = Phase.FINISHING
        return await asyncio.shield(self._node.background.start(self._finish(call, pending, intake)))

    async def _intake(self, pending: ShepherdUpload, upload: Upload, resumed: bool) -> Intake:
        node, request = self._node, pending.request
        owes_md5 = _owes_md5(request, upload.announced)
        writer = await node.ports.blobs.create(pending.reference, resume=resumed)
        hasher = (pending.hasher if resumed else None) or Hasher(md5=owes_md5)
        pending.written, pending.hasher = writer.offset, None
        if not writer.offset == hasher.size == upload.offset or hasher.md5 < owes_md5:
            await writer.abort()
            pending.written = 0
            raise CheloniaError(Kind.BAD_RANGE, gate.PUT, pending.reference, "nothing is kept; start at byte 0")
        straight = request.forward if not resumed else ()
        pending.untried = tuple((turl, False) for turl in request.spare)
        if resumed:  # the forwards have at most the bytes from before the interruption
            pending.untried = tuple((turl, True) for turl in request.forward) + pending.untried
        fanout = Fanout(node, straight, _expected(pending, upload))
        return Intake(node.ports.worker, writer, hasher, fanout, _expected(pending, upload))

    def _prolong(self, pending: ShepherdUpload) -> None:
        lifetime_ms = gate.lifetime_ms(self._node, pending.request.lifetime_ms)
        pending.ends_ms = max(pending.ends_ms, self._node.ports.clock.monotonic_ms() + lifetime_ms)

    def _is_whole(self, pending: ShepherdUpload, upload: Upload, arrived: int) -> bool:
        """Whether the last byte is here. Raises: INCOMPLETE when the body was shorter than it said."""
        expected = _expected(pending, upload)
        if upload.length >= 0 and arrived < upload.offset + upload.length:
            cause = f"the body ended after {arrived - upload.offset} of {upload.length} bytes; continue at {arrived}"
            raise CheloniaError(Kind.INCOMPLETE, gate.PUT, pending.reference, cause)
        if arrived >= expected:
            return True
        if upload.total >= 0 and upload.length >= 0:
            return False
        cause = f"{arrived} of {expected} bytes arrived; continue at {arrived}"
        raise CheloniaError(Kind.INCOMPLETE, gate.PUT, pending.reference, cause)

    async def _interrupted(self, pending: ShepherdUpload, intake: Intake, error: BaseException | None) -> None:
        """Keep the arrived bytes, or discard them when they can never become the replica."""
        hopeless = isinstance(error, CheloniaError) and error.kind is Kind.TOO_LARGE
        kept = 0
        try:
            if hopeless or intake.write_failed or pending.withdrawn:
                await intake.give_up()
            else:
                kept, pending.hasher = await intake.keep(), intake.hasher
        finally:  # also when the disk fails
            pending.written = kept
            self._broke_off(pending)
        if pending.withdrawn:  # perhaps while `keep` ran, after the erasure
            await self._erase_withdrawn(pending.reference)
        if error is not None:
            log.info("upload interrupted reference=%s kept=%d error=%r", pending.reference, pending.written, error)

    async def _erase_withdrawn(self, reference: ReferenceId) -> None:
        """Erase what came of a withdrawn upload. Where that fails, `expire` names it: its order is not repeated."""
        self._left[reference] = None
        await self._node.ports.blobs.erase(reference)
        self._left.pop(reference, None)

    def _broke_off(self, pending: ShepherdUpload) -> None:
        pending.phase = Phase.KEPT if pending.written else Phase.OPEN
        if pending.phase is Phase.OPEN:
            self._open.broke_off(pending.reference)
            self._forget()

    # --- after the last byte --------------------------------------------------------------------------------------

    async def _finish(self, call: Call, pending: ShepherdUpload, intake: Intake) -> Uploaded:
        try:
            held = await self._store(pending, intake)
        except BaseException:
            try:
                await intake.give_up()
            finally:
                pending.written = 0
                self._broke_off(pending)
            raise
        return await self._fulfil(call, pending, held, intake.fanout)

    async def _store(self, pending: ShepherdUpload, intake: Intake) -> KeptReplica:
        """Verify and make durable. Raises: CHECKSUM, EXPIRED (withdrawn), NO_SPACE, UNAVAILABLE."""
        node, request = self._node, pending.request
        expected, commit_within_ms = request.facts, 0
        if request.lifetime_ms > 0 and not request.reference:
            took_ms = node.ports.clock.now_ms() - expected.created_ms
            commit_within_ms = max(took_ms, 0) + request.lifetime_ms
        measured = intake.hasher.checksums()
        for known in (expected.checksums, pending.announced):
            if known.conflicts(measured):
                raise wrong_checksum(pending.reference, known, measured)
        _check_open(pending)
        sums = measured.with_more(expected.checksums)  # an MD5 that is known of bytes with this SHA-256
        facts = replace(expected, size=intake.writer.offset, checksums=sums, commit_within_ms=commit_within_ms)
        releasing = node.background.start(intake.release())
        await intake.writer.commit(facts, intake.hasher.blocks())
        await releasing
        keep_until_ms = pending.ends_ms + node.settings.unknown_grace_ms
        held = lifecycle.arrived(pending.reference, facts, keep_until_ms, node.ports.clock.now_ms())
        if pending.withdrawn:
            await self._erase_withdrawn(pending.reference)
            _check_open(pending)
        # A claimed copy is expected; a transact is about to name any other, so its report can wait for that.
        node.took((held,), 0 if pending.request.reference else node.settings.uncommitted_report_ms)
        (pending.receipts[node.id],) = node.receipts((held,))
        return held

    async def _fulfil(
        self, call: Call, pending: ShepherdUpload, held: KeptReplica, fanout: Fanout | None = None
    ) -> Uploaded:
        """Fulfil the purpose of the upload. On failure the bytes stay, uncommitted, and the client may repeat."""
        try:
            if fanout is not None:
                await _gather_receipts(pending, held, fanout)
            await self._complete_copies(pending, held)
            _check_open(pending)
            receipts = tuple(pending.receipts.values())
            if pending.request.purpose is Purpose.PENDING:
                await self._commit(call, held, receipts)
        except BaseException:
            pending.phase = Phase.STORED
            raise
        finally:
            self._remember(pending)
        pending.answer = Uploaded(True, held.size, receipts, held.guid, held.checksums)
        pending.phase = Phase.DONE
        pending.request, pending.untried = replace(pending.request, forward=(), spare=()), ()
        return pending.answer

    def _remember(self, pending: ShepherdUpload) -> None:
        """Remember a stored upload; the earliest ones are forgotten when there are too many."""
        self._open.end(pending.reference)
        self._stored.pop(pending.reference, None)
        self._stored[pending.reference] = None
        while len(self._stored) > bounds.UPLOADS_REMEMBERED_MAX:
            earliest = next(iter(self._stored))
            del self._stored[earliest]
            forgotten = self._pending.get(earliest)
            if forgotten is not None and forgotten.phase in (Phase.STORED, Phase.DONE):
                del self._pending[earliest]

    async def _complete_copies(self, pending: ShepherdUpload, held: KeptReplica) -> None:
        """Push to spares until enough copies are durable. Raises: UNAVAILABLE when there are not enough."""
        wanted = pending.request.durable
        again: list[tuple[str, bool]] = []
        while len(pending.receipts) < wanted and pending.untried:
            (turl, resume), *rest = pending.untried
            pending.untried = tuple(rest)
            push = asyncio.ensure_future(push_copy(self._node, turl, held, resume=resume))
            try:
                if why := await not_awaited(self._node, turl, push):
                    log.info("spare copy not waited for reference=%s: %s", held.reference, why)
                    again.append((turl, True))  # another spare may be faster
                else:
                    receipt = push.result()
                    pending.receipts[receipt.location.shepherd] = receipt
            except CheloniaError as error:
                log.info("spare copy failed reference=%s error=%s", held.reference, error)
                again.append((turl, True))
            finally:
                await settled(push)
        pending.untried = (*pending.untried, *again)
        if len(pending.receipts) < wanted:
            have = len(pending.receipts)
            cause = f"{have} of {wanted} copies are on stable storage; the bytes are kept here, repeat the request"
            raise CheloniaError(Kind.UNAVAILABLE, gate.PUT, held.reference, cause)

    async def _commit(self, call: Call, held: KeptReplica, receipts: tuple[Receipt, ...]) -> None:
        """Turn the pending name into the file; repeat it under the same request key when the answer was lost."""
        node = self._node
        own = node.own_call(call.request_id, f"commit/{held.reference}")
        deadline_ms = node.ports.clock.monotonic_ms() + node.settings.commit_deadline_ms
        while True:
            try:
                await node.ports.librarians.commit_put(own, held.guid, receipts)
                break
            except CheloniaError as error:
                if error.kind not in _OUTCOME_OPEN or node.ports.clock.monotonic_ms() >= deadline_ms:
                    raise
                log.info("commit is asked for again reference=%s error=%s", held.reference, error)
            await node.ports.clock.sleep(node.settings.commit_retry_ms)
        node.listed(held.reference)

    # --- repeats --------------------------------------------------------------------------------------------------

    async def _repeated(self, call: Call, pending: ShepherdUpload, upload: Upload) -> Uploaded:
        """Answer the sender's repeat of a complete upload as before. Raises: ALREADY_DONE for others; CONFLICT."""
        held = self._node.index.get(pending.reference)
        if held is None or call.dn != pending.sender or not await self._same_bytes(held, upload):
            cause = "this upload is complete and its ticket used; to write again ask for a new TURL"
            raise CheloniaError(Kind.ALREADY_DONE, gate.PUT, pending.reference, cause)
        if pending.answer is not None:
            return pending.answer
        if pending.phase is not Phase.STORED:
            raise CheloniaError(Kind.CONFLICT, gate.PUT, pending.reference, "it is being completed; repeat later")
        pending.phase = Phase.FINISHING
        return await asyncio.shield(self._node.background.start(self._fulfil(call, pending, held)))

    async def _same_bytes(self, held: KeptReplica, upload: Upload) -> bool:
        """Whether a repeated body is what the replica has from its offset to the end."""
        left = held.size - upload.offset
        if upload.length not in (-1, left):
            return False
        worker, sent = self._node.ports.worker, Hasher(md5=bool(held.checksums.md5))
        async for chunk in upload.body:
            await sent.feed(worker, chunk)
            if sent.size > left:
                return False
        if sent.size != left:
            return False
        if not upload.offset:
            return sent.checksums().agrees(held.checksums)
        stored = Hasher(md5=False, combining=False)
        async for chunk in self._node.ports.blobs.read(held.reference, ByteRange(upload.offset, left)):
            await stored.feed(worker, chunk)
        return stored.checksums().agrees(sent.checksums())


def _owner(request: PutRequest) -> Dn:
    return NOBODY if request.reference else request.facts.owner


def _promise(request: PutRequest, reference: ReferenceId, size: int, begun: bool) -> Promise:
    # Only a copy that the metadata have claimed has its reference in the request.
    return Promise(reference, request.facts.owner, size, begun, claimed=bool(request.reference))


async def _gather_receipts(pending: ShepherdUpload, held: KeptReplica, fanout: Fanout) -> None:
    good, failed = await fanout.receipts(held)
    for receipt in good:
        pending.receipts[receipt.location.shepherd] = receipt
    pending.untried = (*pending.untried, *((turl, True) for turl in failed))


def _expected(pending: ShepherdUpload, upload: Upload) -> int:
    """Bytes of the whole replica as announced, -1 when they are not."""
    if pending.size >= 0:
        return pending.size
    if upload.total >= 0:
        return upload.total
    return upload.offset + upload.length if upload.length >= 0 else -1


def _owes_md5(request: PutRequest, announced: Checksums) -> bool:
    """Whether the MD5 is to be measured: the request or the body announces one, or the purpose is `PENDING`. Not for
    the request of a copy that is claimed by its SHA-256: it costs more than all others."""
    checksums = request.facts.checksums
    requested = checksums.md5 and not (request.reference and checksums.sha256)
    return bool(requested or announced.md5) or request.purpose is Purpose.PENDING


def _check_lengths(pending: ShepherdUpload, upload: Upload) -> None:
    """Refuse a body of the wrong length or offset before reading it. Raises: TOO_LARGE, INCOMPLETE, BAD_RANGE."""
    size, reference = pending.size, pending.reference
    announced = max(upload.total, upload.offset + max(upload.length, 0))
    if 0 <= size < announced:
        raise CheloniaError(Kind.TOO_LARGE, gate.PUT, reference, f"{announced} bytes for a TURL of {size} bytes")
    if 0 <= upload.total < size:
        raise CheloniaError(Kind.INCOMPLETE, gate.PUT, reference, f"{upload.total} bytes for a TURL of {size} bytes")
    if 0 <= upload.total < upload.offset + max(upload.length, 0):
        raise CheloniaError(Kind.BAD_RANGE, gate.PUT, reference, "the range ends after the whole")
    kept = pending.written if pending.phase is Phase.KEPT else 0
    if upload.offset not in (0, kept):
        raise CheloniaError(Kind.BAD_RANGE, gate.PUT, reference, f"{kept} bytes are kept; continue at {kept}, or at 0")


async def _while_open(pending: ShepherdUpload, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the body, and count its bytes, until the upload is withdrawn. Raises: EXPIRED then; errors of the body."""
    async for piece in body:
        _check_open(pending)
        pending.written += len(piece)
        yield piece


def _check_open(pending: ShepherdUpload) -> None:
    if pending.withdrawn:
        cause = "the cluster has withdrawn this upload; ask for a new TURL"
        raise CheloniaError(Kind.EXPIRED, gate.PUT, pending.reference, cause)


def wrong_checksum(reference: ReferenceId, expected: Checksums, measured: Checksums) -> CheloniaError:
    """Return the refusal of bytes that differ from the announced ones."""
    for name in Checksums.__struct_fields__:
        want, got = getattr(expected, name), getattr(measured, name)
        if want and want != got:
            cause = f"{name} of what arrived is {got}, announced was {want}; send it again"
            return CheloniaError(Kind.CHECKSUM, gate.PUT, reference, cause)
    raise AssertionError("the checksums agree")
