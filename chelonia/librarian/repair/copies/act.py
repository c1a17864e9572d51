"""One repair copy, from its claim to its receipt: get a place on the target, order a holder to push, record the result.

The claim (location `creating`) is in the metadata before this begins. It is renewed while bytes arrive
(`claims.decide`), and the copy is waited for as long. When a Shepherd refuses, the claim is taken back, so that no
location names a copy that never was. Where the outcome is unknown, the claim expires at once. The planner decides anew
from what is stored. A copy that came through all the same is not lost: its Shepherd reports it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from chelonia.core.cluster.replicas import PROTOCOL_HTTP, Location, Receipt, ReplicaState
from chelonia.core.errors import CheloniaError, Kind, kind_from_wire
from chelonia.core.ids import Ms, ServiceId, shepherd_object
from chelonia.core.metadata import Needed, StoredObject
from chelonia.core.ports.ahash import Element
from chelonia.core.ports.shepherd import CopyOrder, Purpose, PutRequest
from chelonia.core.timing.clock import done_within, within
from chelonia.librarian.metadata.blobs import blob_of, facts_of
from chelonia.librarian.metadata.elements import drop, file_record, is_, put
from chelonia.librarian.metadata.records import LibrarianIdentity, PlannedTransact, Records
from chelonia.librarian.namespace.uploads.act import FileUploads, same_bytes
from chelonia.librarian.repair.claims.decide import GIVEN_UP
from chelonia.librarian.world import World

_LOG = logging.getLogger(__name__)

_UNKNOWN = (Kind.NETWORK, Kind.UNAVAILABLE, Kind.TIMEOUT, Kind.OUTCOME_UNKNOWN)
"""Failures of a push after which it may still go on."""


@dataclass(frozen=True, slots=True)
class CopyJob:
    """A copy to make: the blob as read, the holder that pushes, the new location, and the end of its claim."""

    blob: StoredObject
    source: Location
    target: Location
    until_ms: Ms

    @property
    def shepherds(self) -> tuple[ServiceId, ServiceId]:
        """Both ends."""
        return self.source.shepherd, self.target.shepherd

    def claim(self) -> list[Element]:
        """Return the claim: location, end and the target's record, before any byte moves."""
        key, obj = str(self.target), self.blob.id
        return [
            put(obj, "locations", key, ReplicaState.CREATING.value),
            put(obj, "claims", key, str(self.until_ms)),
            file_record(self.target, blob_of(self.blob)),
        ]

    def unclaim(self) -> list[Element]:
        """Return the removal of the claim: no part of the copy exists, or its Shepherd will report it."""
        key, blob, reference = str(self.target), blob_of(self.blob), self.target.reference
        creating, recorded = is_("locations", key, ReplicaState.CREATING.value), is_("file", reference, blob)
        return [
            drop(self.blob.id, "locations", key, creating),
            drop(self.blob.id, "claims", key),
            drop(shepherd_object(self.target.shepherd), "file", reference, recorded),
        ]

    def expired(self) -> list[Element]:
        """Return the end of the claim: whether bytes still arrive is unknown."""
        creating = is_("locations", str(self.target), ReplicaState.CREATING.value)
        return [put(self.blob.id, "claims", str(self.target), GIVEN_UP, creating)]


@dataclass(frozen=True, slots=True)
class HeldUp:
    """The Shepherd at which a copy failed: spare it for a while, or, when it was only `busy` with others, ask soon."""

    shepherd: ServiceId
    busy: bool


class Copier:
    """Makes repair copies."""

    def __init__(self, records: Records, uploads: FileUploads, identity: LibrarianIdentity, world: World) -> None:
        self._records = records
        self._uploads = uploads
        self._call = identity.call()
        self._world = world

    async def copy(self, job: CopyJob) -> HeldUp | None:
        """Make the copy. Returns: None, or the Shepherd to leave alone for a while."""
        try:
            turl = await within(self._world.clock, self._world.settings.claim_ms, self._place(job))
        except CheloniaError as error:
            return await self._give_up(job, job.target.shepherd, error, started=False)
        try:
            receipt = await self._while_claimed(job, self._push(job, turl))
        except CheloniaError as error:
            return await self._give_up(job, _blamed(job, error), error)
        if receipt is not None:
            await self._done(job, receipt)
        return None

    async def _while_claimed(self, job: CopyJob, push: Coroutine[Any, Any, Receipt]) -> Receipt | None:
        """Await the push while its claim is kept up; None when the target's own report comes before the answer.

        Raises: TIMEOUT when the claim is over, and the errors of the push.
        """
        pushing, claim = asyncio.create_task(push), str(job.until_ms)
        try:
            while not await done_within(self._world.clock, pushing, self._world.settings.claim_ms):
                before, (state, claim) = claim, await self._claimed(job)
                if state == ReplicaState.ALIVE.value:
                    return None
                # a claim not renewed in all its time is over, whatever any clock says
                if state != ReplicaState.CREATING.value or (claim and claim == before):
                    raise CheloniaError(Kind.TIMEOUT, "copy", job.target.shepherd, "its bytes have stopped arriving")
            return pushing.result()
        finally:
            if not pushing.cancel() and not pushing.cancelled():
                pushing.exception()  # retrieved, so that asyncio logs no warning

    async def _claimed(self, job: CopyJob) -> tuple[str, str]:
        """The state and claim of the copy in the metadata now; "" for the claim while they are out of reach."""
        key = str(job.target)
        needed = (Needed("locations", key), Needed("claims", key))
        try:
            blob = await self._records.one(self._call.strongly(), job.blob.id, needed)
        except CheloniaError as error:
            _LOG.info("whether the copy to %s is still claimed is not known, it goes on: %s", job.target, error)
            return ReplicaState.CREATING.value, ""
        return blob.value("locations", key), blob.value("claims", key)

    async def _place(self, job: CopyJob) -> str:
        """A ticket to write the new replica."""
        request = PutRequest(
            request_id=job.target.reference,
            facts=facts_of(job.blob),
            purpose=Purpose.REPLICA,
            protocols=(PROTOCOL_HTTP,),
            reference=job.target.reference,
            lifetime_ms=self._world.settings.claim_ms,
        )
        shepherd = self._world.directory.shepherd(job.target.shepherd)
        answer = (await shepherd.put(self._call, (request,)))[0]
        if not answer.turl:
            raise CheloniaError(kind_from_wire(answer.kind), "put", job.target.shepherd, answer.error or "no TURL")
        return answer.turl

    async def _push(self, job: CopyJob, turl: str) -> Receipt:
        """Have the holder push its replica; returns the target's own receipt."""
        shepherd = self._world.directory.shepherd(job.source.shepherd)
        receipt = await shepherd.copy(self._call, CopyOrder(job.source.reference, turl))
        self._uploads.check_receipt(receipt)
        if receipt.location != job.target or not same_bytes(receipt, job.blob):
            cause = f"the receipt is not for this copy at {job.target}"
            raise CheloniaError(Kind.CHECKSUM, "copy", blob_of(job.blob), cause)
        return receipt

    async def _done(self, job: CopyJob, receipt: Receipt) -> None:
        """Record the copy that the target has vouched for (its own report may have come first)."""
        key, obj = str(receipt.location), job.blob.id
        creating = is_("locations", key, ReplicaState.CREATING.value)
        elements = [put(obj, "locations", key, ReplicaState.ALIVE.value, creating), drop(obj, "claims", key)]
        if (await self._records.attempt(self._call, PlannedTransact(elements))).applied:
            _LOG.info("blob %s at %s: creating -> alive", blob_of(job.blob), key)
            await self._uploads.receipt_audit.written((receipt,))

    async def _give_up(self, job: CopyJob, blame: ServiceId, error: CheloniaError, *, started: bool = True) -> HeldUp:
        """Take the claim back, or let it expire now where the copy may go on; the planner decides anew."""
        _LOG.info("copy of %s from %s to %s is given up: %s", blob_of(job.blob), job.source, job.target, error)
        elements = job.expired() if started and error.kind in _UNKNOWN else job.unclaim()
        await self._records.attempt(self._call, PlannedTransact(elements))
        return HeldUp(blame, error.kind in (Kind.BUSY, Kind.EXISTS))  # it has the copy, or takes it, of another order


def _blamed(job: CopyJob, error: CheloniaError) -> ServiceId:
    if error.kind is Kind.BUSY:
        return job.source.shepherd if error.subject == job.source.shepherd else job.target.shepherd
    of_target = error.kind in (Kind.NO_SPACE, Kind.BAD_TICKET, Kind.CHECKSUM)
    return job.target.shepherd if of_target else job.source.shepherd
