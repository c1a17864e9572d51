"""The Librarian's own bytes on Shepherds, as blobs like any other: written whole, read whole.

A system object names them in place of a file; repair, scrub and the outboxes treat them as all others. The record
beside each replica is sealed like a file's, and its name states size and SHA-256: by that a rebuild knows which to
trust.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Iterable, Sequence
from typing import Final

from chelonia.core import bounds
from chelonia.core.cluster.fleet import Fleet
from chelonia.core.cluster.placement import Demand
from chelonia.core.cluster.replicas import PROTOCOL_HTTP, Checksums, Location, Receipt, ReplicaFacts
from chelonia.core.errors import CheloniaError, Kind, kind_from_wire
from chelonia.core.ids import SNAPSHOTS_OBJECT, BlobId, Guid, ServiceId
from chelonia.core.ports.shepherd import Carrier, GetRequest, Purpose, PutRequest
from chelonia.core.timing.clock import within
from chelonia.librarian.context import LibrarianContext
from chelonia.librarian.metadata.blobs import NewBlob, agreed
from chelonia.librarian.metadata.seal import seal
from chelonia.librarian.namespace.uploads.act import FileUploads
from chelonia.wire.snapshots import measured_name

_LOG = logging.getLogger(__name__)

SURE_COPIES: Final = 2
"""Copies on stable storage before a blob counts as stored, where there are as many Shepherds."""


class InternalBlobs:
    """Stores and reads the Librarian's own blobs."""

    def __init__(self, context: LibrarianContext, uploads: FileUploads, carrier: Carrier) -> None:
        self._on = context
        self._uploads = uploads
        self._carrier = carrier

    @property
    def record_key(self) -> str:
        """The cluster's key (hex), which authenticates these blobs."""
        return self._uploads.record_key

    @property
    def ready(self) -> bool:
        """Whether any Shepherd takes bytes now."""
        return bool(self._targets(1, 0))

    def _targets(self, wanted: int, size: int) -> Sequence[ServiceId]:
        return Fleet(self._on.nodes.views()).choose(Demand(wanted, size), self._on.world.ids.uniform)

    async def store(self, body: bytes, name: str) -> NewBlob:
        """Store bytes on as many Shepherds as snapshots want. Raises: NO_SHEPHERD when too few took them."""
        facts = self._facts(body, name)
        targets = self._targets(facts.wanted, facts.size)
        took = await asyncio.gather(*(self._put(shepherd, facts, body) for shepherd in targets))
        receipts = [receipt for receipt in took if receipt is not None]
        if len(receipts) < max(1, min(SURE_COPIES, len(targets))):
            cause = f"{len(receipts)} of {len(targets)} Shepherds took the bytes"
            raise CheloniaError(Kind.NO_SHEPHERD, "keep", name, cause)
        kept = agreed(receipts, facts.blob, facts.size, facts.checksums)
        return NewBlob(facts, tuple(receipt.location for receipt in kept))

    def _facts(self, body: bytes, name: str) -> ReplicaFacts:
        settings, blob = self._on.settings, BlobId(self._on.world.ids.uuid())
        guid, owner, wanted = Guid(SNAPSHOTS_OBJECT), settings.root_owner, settings.snapshot_copies
        sums = Checksums(sha256=hashlib.sha256(body).hexdigest())
        name = measured_name(name, len(body), sums.sha256)
        return ReplicaFacts(
            blob=blob,
            guid=guid,
            name=name,
            owner=owner,
            size=len(body),
            checksums=sums,
            wanted=wanted,
            created_ms=self._on.wall,
            seal=seal(self._uploads.record_key, blob, guid, name=name, owner=owner, wanted=wanted),
        )

    async def _put(self, shepherd: ServiceId, facts: ReplicaFacts, body: bytes) -> Receipt | None:
        try:
            return await within(self._on.world.clock, self._on.settings.claim_ms, self._put_one(shepherd, facts, body))
        except CheloniaError as error:
            _LOG.info("shepherd %s does not keep %s: %s", shepherd, facts.name, error)
            return None

    async def _put_one(self, shepherd: ServiceId, facts: ReplicaFacts, body: bytes) -> Receipt | None:
        request = PutRequest(
            request_id=facts.blob,
            facts=facts,
            purpose=Purpose.REPLICA,
            protocols=(PROTOCOL_HTTP,),
            lifetime_ms=self._on.settings.claim_ms,
        )
        answer = (await self._on.world.directory.shepherd(shepherd).put(self._on.call, (request,)))[0]
        if not answer.turl:
            raise CheloniaError(kind_from_wire(answer.kind), "put", shepherd, answer.error or "no TURL")
        receipts = await self._carrier.put(answer.turl, body)
        for receipt in receipts:
            self._uploads.check_receipt(receipt)
        return next((receipt for receipt in receipts if receipt.location.shepherd == shepherd), None)

    async def read(self, locations: Iterable[Location], facts: ReplicaFacts) -> bytes:
        """Return the bytes of a blob from the first holder of intact ones. Raises: NO_REPLICA."""
        for location in locations:
            try:
                body = await within(self._on.world.clock, self._on.settings.claim_ms, self._get(location))
            except CheloniaError as error:
                _LOG.info("%s is not read from %s: %s", facts.name, location.shepherd, error)
                continue
            found = Checksums(sha256=hashlib.sha256(body).hexdigest())
            if len(body) == facts.size and not found.conflicts(facts.checksums):
                return body
            _LOG.info("%s on %s is damaged", facts.name, location.shepherd)
        raise CheloniaError(Kind.NO_REPLICA, "read", facts.name, "no Shepherd has its bytes right")

    async def _get(self, location: Location) -> bytes:
        request = GetRequest(
            request_id=location.reference,
            reference=location.reference,
            protocols=(PROTOCOL_HTTP,),
            lifetime_ms=self._on.settings.claim_ms,
        )
        answer = (await self._on.world.directory.shepherd(location.shepherd).get(self._on.call, (request,)))[0]
        if not answer.turl:
            raise CheloniaError(kind_from_wire(answer.kind), "get", location.shepherd, answer.error or "no TURL")
        return await self._carrier.get(answer.turl, bounds.SNAPSHOT_BLOB_BYTES_MAX)
