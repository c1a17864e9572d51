"""The upload half of the Librarian: reserves names, checks receipts, turns durable bytes into files.

`uploads.decide` and `blobs` decide. A receipt counts only with a valid signature by the key that its Shepherd
announced: nobody vouches for another's copy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from chelonia.core import bounds
from chelonia.core.caller import Call, Role
from chelonia.core.cluster.replicas import Receipt
from chelonia.core.contents.uploads import BeginPut, Begun, CommitFile, Committed
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BlobId, Guid, Ms, ServiceId, blob_object, shepherd_object
from chelonia.core.metadata import Needed, StoredObject
from chelonia.core.ports.ahash import Element
from chelonia.core.values import replace
from chelonia.librarian.metadata.blobs import NewBlob, facts_of
from chelonia.librarian.metadata.elements import check, expectations, unset
from chelonia.librarian.metadata.records import PlannedTransact, Records
from chelonia.librarian.metadata.seal import seal, sealed
from chelonia.librarian.namespace import tree
from chelonia.librarian.namespace.names import Names, entry_id, fresh
from chelonia.librarian.namespace.uploads import decide as uploads
from chelonia.librarian.namespace.uploads.decide import Overwritten, PendingUpload
from chelonia.librarian.presence.receipt_audit import ReceiptAudit
from chelonia.librarian.world import World
from chelonia.wire.receipts import vouched

VerifyKey = Callable[[ServiceId], str]
"""Returns the key that a Shepherd announced, "" when it has none or is not approved."""


class FileUploads:
    """Begins and commits uploads."""

    def __init__(
        self, records: Records, world: World, names: Names, verify_key: VerifyKey, receipt_audit: ReceiptAudit
    ) -> None:
        self._records = records
        self._world = world
        self._names = names
        self._verify_key = verify_key
        self.receipt_audit = receipt_audit
        self.record_key = ""
        """The cluster's key (hex) for seals, "" before the start."""

    async def begin_put(self, call: Call, request: BeginPut) -> Begun:
        """Make the ids of an upload and reserve its name, if it is named. Raises: QUOTA, and as `uploads.begin_put`."""
        tree.check_wanted(request.wanted)
        if not request.replaces:
            await self._names.quotas.check_room(call, request.owner, request.ln, request.size)
        if not request.named:
            return self._begun(request, request.replaces or self._guid(), BlobId(self._world.ids.uuid()))
        guid, blob = self._guid(), BlobId(self._world.ids.uuid())
        begun = self._begun(request, guid, blob)

        async def build() -> PlannedTransact:
            slot = await self._names.slot(call, request.parent, request.name)
            elements = uploads.begin_put(request, begun, slot, self._now())
            return PlannedTransact(elements, memo=f"{guid} {blob}")

        first = (await self._records.apply(call, build)).memo.split(" ")
        return self._begun(request, Guid(first[0]), BlobId(first[-1]))

    def _begun(self, request: BeginPut, guid: Guid, blob: BlobId) -> Begun:
        def sealed_as(name: str) -> str:
            return seal(self.record_key, blob, guid, name=name, owner=request.owner, wanted=request.wanted)

        part_seal = sealed_as(request.recorded_place) if request.recorded_place else ""
        return Begun(guid, blob, sealed_as(request.recorded), part_seal)

    def begun_blob(self, request: CommitFile, guid: Guid, wanted: int, name: str = "") -> NewBlob:
        """Return the blob of an upload that became the file `guid`, sealed anew where its facts have changed."""
        new = uploads.begun_blob(request, self._now())
        name = name or new.facts.name
        if (new.facts.guid, new.facts.wanted, new.facts.name) == (guid, wanted, name):
            return new
        return self._sealed(replace(new, facts=replace(new.facts, guid=guid, wanted=wanted, name=name)))

    def check_begun(self, call: Call, request: CommitFile) -> None:
        """Refuse bytes with other ids or facts than they were begun with. Raises: BAD_REQUEST, as `_check_receipts`."""
        begin, begun = request.begin, request.begun
        tree.check_wanted(begin.wanted)
        self._check_receipts(call, request.receipts)
        name, owner, wanted = begin.recorded, begin.owner, begin.wanted
        if not sealed(self.record_key, begun.seal, begun.blob, begun.guid, name=name, owner=owner, wanted=wanted):
            cause = "these ids were not begun here for this name, owner and count; begin again"
            raise CheloniaError(Kind.BAD_REQUEST, "commitFile", name, cause)

    def _sealed(self, new: NewBlob) -> NewBlob:
        """The blob of an upload under a reserved name, sealed for its file: its Shepherds' records name the upload."""
        f = new.facts
        own = seal(self.record_key, f.blob, f.guid, name=f.name, owner=f.owner, wanted=f.wanted)
        return replace(new, facts=replace(f, seal=own))

    async def commit_put(self, call: Call, guid: Guid, receipts: tuple[Receipt, ...]) -> Committed:
        """Turn a pending upload into a file; a repetition gets the first answer."""
        self._check_receipts(call, receipts)
        call = call.strongly()  # the Shepherd has not seen the answer with the name

        async def build() -> PlannedTransact:
            pending = PendingUpload(await self._records.one(call, entry_id(guid)))
            done = await self._already(call, pending, guid, receipts)
            if done:
                return PlannedTransact((), memo=done)
            new = self._sealed(pending.new_blob(receipts, self._now()))
            slot, over = await asyncio.gather(
                self._names.slot(call, pending.parent, pending.name), self._overwritten(call, pending.replaces)
            )
            uploads.check_pending(pending, slot)
            memo = f"{new.facts.guid} {new.facts.blob}"
            if over is None:
                return await self._names.draft(
                    call, uploads.commit_new(pending, slot, new, self._now()), memo, pending.entry
                )
            return await self._names.draft(
                call, uploads.commit_over(pending, slot, over, new, self._now()), memo, over.file
            )

        memo = (await self._records.apply(call, build)).memo
        await self.receipt_audit.written(receipts)
        return _committed(memo)

    async def _already(self, call: Call, pending: PendingUpload, guid: Guid, receipts: tuple[Receipt, ...]) -> str:
        """The memo of this very commit when it went through before.

        Raises: NOT_FOUND for an unknown upload; CHECKSUM when other bytes became the file, for a name begun twice under
        one key has two TURLs.
        """
        if tree.type_of(pending.entry) == "pending":
            return ""
        blob = receipts[0].blob if receipts else BlobId("")
        found = await self._records.one(call, blob_object(blob), (Needed("blob"),))
        if found.exists and not all(same_bytes(receipt, found) for receipt in receipts):
            raise CheloniaError(Kind.CHECKSUM, "commitPut", guid, "other bytes were committed for this upload before")
        if not found.exists:
            cause = "the upload's name was given up, superseded or has expired; begin again"
            raise CheloniaError(Kind.NOT_FOUND, "commitPut", guid, cause)
        return f"{found.value('blob', 'file')} {blob}"

    async def commit_file(self, call: Call, request: CommitFile) -> Committed:
        """Make the file of a bytes-first upload, or swap the bytes of the one it replaces."""
        begin, begun = request.begin, request.begun
        self.check_begun(call, request)
        guid = begin.replaces or (self._guid() if request.renew else begun.guid)
        memo = f"{guid} {begun.blob}"

        async def build(first: bool) -> PlannedTransact:
            new = self.begun_blob(request, guid, begin.wanted)
            over = await self._overwritten(call, begin.replaces) if begin.replaces else None
            if over is not None:
                if begun.blob in tree.blobs_of(over.file):
                    return PlannedTransact((), memo)  # a repeat without a request key
                if not first:
                    await self._check_unused(call, new)
                given = tree.given_sections(begin.sections)
                elements = uploads.overwrite(over, new, given, self._now(), request.policy)
                elements += tree.left_over(over.file, given, anew=begin.anew)
                elements = expectations(begin.expect) + elements + await self._overtaken(call, begin, presumed=first)
                return await self._names.draft(call, elements, memo, over.file)
            # The Bartender has just read the collection: read it again only when the transact finds it otherwise.
            names = self._names
            slot = (
                names.presumed(begin.parent, begin.name) if first else await names.slot(call, begin.parent, begin.name)
            )
            if not slot.child and not first:
                await self._check_unused(call, new)
            return await self._names.draft(
                call, uploads.commit_file(request, slot, new, self._now()), memo, fresh(guid)
            )

        outcome, left = await self._records.carry_out(call, build)
        await self.receipt_audit.written(request.receipts)
        done = _committed(outcome.memo)
        return Committed(done.guid, done.blob, left[0]) if left else done

    async def _check_unused(self, call: Call, new: NewBlob) -> None:
        """Find out whether used receipts made the transact fail. Raises: ALREADY_DONE."""
        ids = [shepherd_object(location.shepherd) for location in new.locations]
        used = tuple(Needed("file", location.reference) for location in new.locations)
        uploads.check_unused(await self._records.get(call, ids, used))

    async def _overtaken(self, call: Call, begin: BeginPut, *, presumed: bool) -> list[Element]:
        """Give up the owner's own earlier upload to the same name: it must not overwrite newer bytes when it ends late.
        `presumed`: there is none, until the transact finds one."""
        if presumed and begin.parent:
            return [check(entry_id(begin.parent), unset("pending", begin.name))]
        slot = await self._names.slot(call, begin.parent, begin.name) if begin.parent else None
        if slot is None or slot.pending is None or slot.pending.value("entry", "owner") != begin.owner:
            return []
        return tree.supersede(slot, begin.owner, self._now())

    async def _overwritten(self, call: Call, guid: Guid) -> Overwritten | None:
        if not guid:
            return None
        file = await self._records.one(call, entry_id(guid))
        return Overwritten(file, await self._names.blobs(call, file))

    def _check_receipts(self, call: Call, receipts: tuple[Receipt, ...]) -> None:
        """Raises: BAD_REQUEST (too many), DENIED (another's receipts), and as `check_receipt`."""
        if len(receipts) > bounds.RECEIPTS_MAX:
            raise CheloniaError(Kind.BAD_REQUEST, subject="receipts", cause=f"at most {bounds.RECEIPTS_MAX}")
        shepherds = [receipt.location.shepherd for receipt in receipts]
        if call.has(Role.SHEPHERD) and receipts and call.service_id not in shepherds:
            cause = f"{call.service_id} has given no receipt itself"
            raise CheloniaError(Kind.DENIED, "commitPut", receipts[0].blob, cause)
        for receipt in receipts:
            self.check_receipt(receipt)

    def check_receipt(self, receipt: Receipt) -> None:
        """Check that the Shepherd which a receipt names has signed it. Raises: UNTRUSTED; NO_SHEPHERD for an unknown
        one: it was forgotten while a Bartender still gave it bytes."""
        shepherd = receipt.location.shepherd
        key = self._verify_key(shepherd)
        if not key:
            cause = f"no approved Shepherd {shepherd} is known; send the bytes again"
            raise CheloniaError(Kind.NO_SHEPHERD, "commitPut", receipt.blob, cause)
        if not self._world.verifier.verify(key, *vouched(receipt)):
            raise CheloniaError(Kind.UNTRUSTED, "commitPut", receipt.blob, f"not signed by {shepherd}")

    def _guid(self) -> Guid:
        return Guid(self._world.ids.uuid())

    def _now(self) -> Ms:
        return self._world.clock.now_ms()


def _committed(memo: str) -> Committed:
    """The answer from the stored memo: the same for the first try and every retry."""
    guid, _, blob = memo.partition(" ")
    return Committed(Guid(guid), BlobId(blob))


def same_bytes(receipt: Receipt, blob: StoredObject) -> bool:
    """Return whether a receipt is for the bytes that a blob object describes."""
    facts = facts_of(blob)
    return receipt.blob == facts.blob and receipt.size == facts.size and receipt.checksums.agrees(facts.checksums)
