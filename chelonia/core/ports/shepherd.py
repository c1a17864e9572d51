"""The Shepherd port: one storage node's control operations, its data plane, and what it needs from the world.

`get put stat delete toggleReport` are the original's operations; `copy` orders a push to another Shepherd, `scrub`
an immediate check. Bytes move only under tickets that this Shepherd itself signed (`wire.tickets`).
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

from chelonia.core.caller import Call
from chelonia.core.cluster.drills import ShepherdDrill
from chelonia.core.cluster.position import Position
from chelonia.core.cluster.replicas import Checksums, Receipt, ReplicaFacts, ReplicaState
from chelonia.core.contents.extents import ByteRange
from chelonia.core.ids import BlobId, Ms, ReferenceId, ServiceId


class Purpose(enum.Enum):
    """Why bytes are put: decides what the last byte triggers."""

    PENDING = "pending"
    """A user's upload to a pending name: the Shepherd commits it at the Librarian before it answers."""
    RECEIPT = "receipt"
    """A user's bytes-first upload: the receipts go back to the user's client."""
    REPLICA = "replica"
    """Another Shepherd's copy (fan-out or repair): the receipt goes back to that Shepherd."""


class GetRequest(msgspec.Struct, frozen=True):
    """Ask for a TURL to read a replica. `dn`: the user it will be bound to; empty: anyone, one full body, or with
    `ranges` as often as he likes until it expires. `spans`: the bytes it is for, in ranges within one of these alone;
    empty, or where they are all there are: all."""

    request_id: str
    reference: ReferenceId
    protocols: tuple[str, ...]
    dn: str = ""
    address: str = ""
    lifetime_ms: int = 0
    ranges: bool = False
    spans: tuple[ByteRange, ...] = ()


class PutRequest(msgspec.Struct, frozen=True):
    """Ask for a TURL to write a replica, and reserve its space.

    `guid checksum checksumType size protocol acl` are the original's properties (`facts.size` -1: not known).
    `reference`: chosen by the Librarian when it claimed this location, else "". `forward`: TURLs on other Shepherds
    to write at the same time; `spare`: TURLs to use when one of those fails; `durable`: copies (this one included)
    that must be on stable storage before success is answered.
    """

    request_id: str
    facts: ReplicaFacts
    purpose: Purpose
    protocols: tuple[str, ...]
    reference: ReferenceId = ReferenceId("")
    dn: str = ""
    address: str = ""
    lifetime_ms: int = 0
    forward: tuple[str, ...] = ()
    spare: tuple[str, ...] = ()
    durable: int = 1


class TurlOutcome(msgspec.Struct, frozen=True):
    """Answer to `get` or `put`: a TURL, or `error` in the original's words (`kind` is the `Kind`'s value)."""

    request_id: str
    turl: str = ""
    protocol: str = ""
    reference: ReferenceId = ReferenceId("")
    checksum: str = ""
    checksum_type: str = ""
    error: str = ""
    kind: str = ""


@dataclass(frozen=True, slots=True)
class SmallBlob:
    """A whole blob of at most `bounds.INLINE_BYTES_MAX`, to be stored. `facts`: its checksums as announced; MD5 and
    Adler-32 are measured where they are announced. `named`: earlier replicas of the same Shepherd that a transact has
    named since; what it is not told so it learns by its reports."""

    facts: ReplicaFacts
    data: bytes = field(repr=False)
    named: tuple[ReferenceId, ...] = ()


class StoreOutcome(msgspec.Struct, frozen=True):
    """Answer to `store`: a receipt, or why there is none (`kind` is the `Kind`'s value)."""

    receipt: Receipt | None = None
    error: str = ""
    kind: str = ""


@dataclass(frozen=True, slots=True)
class FetchOutcome:
    """Answer to `fetch`: all bytes of a replica, checked, or why not."""

    data: bytes | None = field(default=None, repr=False)
    error: str = ""
    kind: str = ""


class MeasuredOutcome(msgspec.Struct, frozen=True):
    """Answer to `sums`: what the record beside a replica says of its bytes; `size` -1: it is not here, or not whole."""

    size: int = -1
    checksums: Checksums = Checksums()


class ReplicaStatOutcome(msgspec.Struct, frozen=True):
    """Answer to `stat`; every field "None" on the wire when the reference is unknown (`found` False)."""

    request_id: str
    reference: ReferenceId
    found: bool
    state: str = ""
    checksum_type: str = ""
    checksum: str = ""
    acl: str = ""
    size: int = -1
    guid: str = ""
    local_id: str = ""


class Authority(msgspec.Struct, frozen=True):
    """Metadata position an order is based on: a Shepherd obeys none from another cluster or from an older one."""

    position: Position


class DeleteOutcome(msgspec.Struct, frozen=True):
    """`status`: `deleted` (also for what is not there) or `nosuchfile: <why it was refused>`; `kind`: of a refusal."""

    request_id: str
    status: str
    kind: str = ""


class CopyOrder(msgspec.Struct, frozen=True):
    """Push the replica `reference` to `turl` on another Shepherd."""

    reference: ReferenceId
    turl: str


class ShepherdStatus(msgspec.Struct, frozen=True):
    """State of one Shepherd, for administrators and tests.

    `store`: id of its store; `trouble`: why it is not ready, "" when it is. Reclaimable: `quarantined_bytes` by
    `discard`; by themselves `unfinished_bytes`, of uploads that were not committed in their time.
    """

    shepherd: ServiceId
    boot: int
    replicas: int
    free_bytes: int
    total_bytes: int
    reporting: bool
    quarantined: int
    scrubbed: int = 0
    damaged: int = 0
    store: str = ""
    trouble: str = ""
    quarantined_bytes: int = 0
    unfinished_bytes: int = 0


class ScrubOrder(msgspec.Struct, frozen=True):
    """Which replicas to check now.

    Args:
        references: exactly these; empty: all that the rest of this lets through, in order of reference.
        after: continue after this reference.
        before_ms: only those last checked before (wall clock); 0: however lately. A start forgets earlier checks.
        suspicious: only those that are damaged, or that something has been said against.
    """

    references: tuple[ReferenceId, ...] = ()
    after: str = ""
    before_ms: Ms = Ms(0)
    suspicious: bool = False


class Damaged(msgspec.Struct, frozen=True):
    """A replica found damaged, and how."""

    reference: ReferenceId
    blob: BlobId
    damage: str


class ScrubPage(msgspec.Struct, frozen=True):
    """What was checked: as much as the rate of the scrub lets through in a moment.

    `checked` replicas of `bytes` together; `after` continues, "" when all is done; `left`: how many may still come.
    """

    checked: int
    bytes: int
    damaged: tuple[Damaged, ...]
    after: str
    left: int


class Question(msgspec.Struct, frozen=True):
    """Which bytes of a replica are to be proven."""

    reference: ReferenceId
    spans: tuple[ByteRange, ...]


class Challenge(msgspec.Struct, frozen=True):
    """What every holder of the same bytes answers alike, and nobody can answer without them.

    `nonce`: hex, fresh for each challenge, so that no answer can be kept instead of the bytes.
    """

    nonce: str
    questions: tuple[Question, ...]


RECORDS_ASIDE = "aside "
"""`after` of `Shepherd.records` where those in quarantine begin."""


class ReplicaRecord(msgspec.Struct, frozen=True):
    """What a Shepherd's disk says of one replica, for a rebuild.

    - `state`: `alive` (whole, by its length) or `invalid`
    - `committed`: a transact has named its blob
    - `aside`: it is in quarantine
    - `facts` None: its record is missing or damaged
    """

    reference: ReferenceId
    state: ReplicaState
    committed: bool
    aside: bool
    facts: ReplicaFacts | None


class RecordPage(msgspec.Struct, frozen=True):
    """A page of a Shepherd's records. `after` continues it; empty when this is the last page."""

    items: tuple[ReplicaRecord, ...]
    after: str


class Shepherd(Protocol):
    """Control operations of a storage node. Any may raise DENIED, and BAD_REQUEST beyond `bounds.BULK_ELEMENTS_MAX`."""

    async def get(self, call: Call, requests: tuple[GetRequest, ...]) -> tuple[TurlOutcome, ...]:
        """Issue read tickets. Bartenders, Librarians."""

    async def put(self, call: Call, requests: tuple[PutRequest, ...]) -> tuple[TurlOutcome, ...]:
        """Reserve space and issue write tickets. Bartenders, Librarians."""

    async def store(self, call: Call, blobs: tuple[SmallBlob, ...]) -> tuple[StoreOutcome, ...]:
        """Put whole small blobs on stable storage, in the message, under references of this Shepherd's choice; a blob
        that is here already is refused. Bartenders. Raises: TOO_LARGE beyond `bounds.STORED_CALL_BYTES_MAX` in all."""

    async def fetch(self, call: Call, references: tuple[ReferenceId, ...]) -> tuple[FetchOutcome, ...]:
        """Read whole small replicas, checked against their records. Bartenders. Raises: as `store`."""

    async def sums(self, call: Call, references: tuple[ReferenceId, ...]) -> tuple[MeasuredOutcome, ...]:
        """All checksums that were measured of replicas when they came. Bartenders. Raises: DENIED, BAD_REQUEST."""

    async def stat(self, call: Call, references: tuple[tuple[str, ReferenceId], ...]) -> tuple[ReplicaStatOutcome, ...]:
        """Describe replicas by (request id, reference). Raises: UNAVAILABLE without its disk."""

    async def delete(
        self, call: Call, references: tuple[tuple[str, ReferenceId], ...], authority: Authority | None
    ) -> tuple[DeleteOutcome, ...]:
        """Erase replicas. Librarians only, and only with an authority at least as new as any seen before.

        Raises: UNAVAILABLE without its disk: some may be erased then, and none is confirmed.
        """

    async def toggle_report(self, call: Call, on: bool) -> bool:
        """Stop or resume heartbeats and reports (a test hook). Returns whether reporting is on now."""

    async def copy(self, call: Call, order: CopyOrder) -> Receipt:
        """Push a replica; returns the other Shepherd's receipt. Raises: NOT_ALIVE, NETWORK, BAD_TICKET, CHECKSUM;
        BUSY where one of both has as many copies under way as it may: the subject is the sender when it is that one."""

    async def drill(self, call: Call, order: ShepherdDrill) -> int:
        """Do what a drill asks of this Shepherd, or end its silence. Librarians only, with authority as for `delete`.

        Returns for how many more milliseconds it is silent. Raises: DENIED, CONFLICT while it is silent already or is
        not sound, NOT_ALIVE when the copy is not here whole.
        """

    async def prove(self, call: Call, challenge: Challenge) -> tuple[str, ...]:
        """Prove that replicas are here: digests over what is asked of each, in order, "" of those that are not here
        whole. Librarians only. Raises: BAD_REQUEST for more than is ever asked."""

    async def scrub(self, call: Call, references: tuple[ReferenceId, ...]) -> int:
        """Check these replicas now (all when empty); returns how many were found damaged."""

    async def scrub_page(self, call: Call, order: ScrubOrder) -> ScrubPage:
        """Check some replicas now, at the rate of the scrub. Administrators. Raises: UNAVAILABLE without its disk."""

    async def discard(self, call: Call, references: tuple[ReferenceId, ...]) -> int:
        """Erase these from quarantine, where nobody reads them; returns how many were there. Administrators only."""

    async def readmit(self, call: Call) -> int:
        """Bring back from quarantine what is whole, and ask the namespace about it again: what it knows becomes a copy,
        what it does not is set aside again. Returns how many were brought back. Administrators only."""

    async def status(self, call: Call) -> ShepherdStatus:
        """Describe this node."""

    async def records(self, call: Call, after: str, limit: int) -> RecordPage:
        """A page of what stands beside the replicas, those in quarantine last. Librarians, administrators."""


# --- the data plane: what the HTTP door calls ----------------------------------------------------------------------


class Turl(msgspec.Struct, frozen=True):
    """The parts of a TURL: `base` is `https://host:port`, "" in a request, which names a path only. A ticket is good
    for the replica that the path names, and for no other."""

    base: str
    reference: ReferenceId
    ticket: str


class Upload(msgspec.Struct, frozen=True):
    """One PUT.

    - `length`: declared body length or -1
    - `offset`: where in the file this body starts (resume)
    - `total`: declared size of the whole file or -1
    - `announced`: checksums of the whole file, as the sender has them
    """

    turl: Turl
    body: AsyncIterator[bytes]
    length: int = -1
    offset: int = 0
    total: int = -1
    announced: Checksums = Checksums()


class Uploaded(msgspec.Struct, frozen=True):
    """What a PUT achieved.

    `complete` False: `offset` bytes are kept, continue there. `receipts`: one per durable copy.
    """

    complete: bool
    offset: int
    receipts: tuple[Receipt, ...] = ()
    guid: str = ""
    checksums: Checksums = Checksums()


class Download(msgspec.Struct, frozen=True):
    """An open replica to be read: facts of the whole, and a reader of one range at a time.

    `created_ms` is when the file was put; `single_use`: the ticket is good for one whole body. `spans`: the ticket is
    for ranges within one of these, and no checksum is told; empty: for all bytes.
    """

    size: int
    checksums: Checksums
    created_ms: Ms
    blob: BlobId
    reader: RangeReader
    single_use: bool = False
    spans: tuple[ByteRange, ...] = ()


class RangeReader(Protocol):
    """Reads ranges of an open replica."""

    def read(self, span: ByteRange) -> AsyncIterator[bytes]:
        """Yield the bytes of `span` in chunks of at most `bounds.CHUNK_BYTES`. Raises: NOT_ALIVE when they are not
        all there (truncated or unreadable); the replica is then checked at once."""

    async def checksums(self) -> Checksums:
        """All that were measured when it was stored, as far as its record can be read. Raises: UNAVAILABLE."""

    async def close(self, *, complete: bool) -> None:
        """Release the replica; `complete` False gives a single-use ticket back."""


class ShepherdData(Protocol):
    """The data plane: PUT and GET on tickets."""

    async def receive(self, call: Call, upload: Upload) -> Uploaded:
        """Take one PUT body to stable storage, forward it, and do what its purpose asks before answering.

        Raises: BAD_TICKET, EXPIRED, ALREADY_DONE, CHECKSUM, NO_SPACE, and

        - INCOMPLETE: `length` was not met; what came is kept for a resume
        - TOO_LARGE: longer than the ticket's size
        - BAD_RANGE: the offset is not where it left off, or a checksum is owed that was not measured until there
        - BUSY: a repair copy for which there is no place
        """

    async def offset(self, call: Call, turl: Turl) -> int:
        """How many bytes of an interrupted upload are kept; -1 when it is complete. Raises: BAD_TICKET, EXPIRED."""

    async def open(self, call: Call, turl: Turl) -> Download:
        """Open the replica of a read ticket. Raises: BAD_TICKET, EXPIRED, ALREADY_DONE, NOT_ALIVE."""


# --- what a Shepherd needs from the world --------------------------------------------------------------------------


class BlobWriter(Protocol):
    """An upload in progress. Nothing of it is visible as a replica before `commit` returns."""

    @property
    def offset(self) -> int:
        """Bytes written so far (an interrupted upload resumes here)."""

    async def write(self, chunk: bytes) -> None:
        """Append. Raises: NO_SPACE."""

    async def commit(self, facts: ReplicaFacts, blocks: bytes = b"") -> None:
        """Put bytes and record on stable storage under their final name; durable when it returns. `blocks`: the CRC of
        each block, where they were measured."""

    async def suspend(self) -> None:
        """Keep what was written for a later resume; a start throws it away."""

    async def abort(self) -> None:
        """Throw away what was written."""


@dataclass(frozen=True, slots=True)
class SmallReplica:
    """All of a small replica: what `BlobStore.store_whole` writes at once."""

    reference: ReferenceId
    facts: ReplicaFacts
    data: bytes = field(repr=False)


class StoredReplica(msgspec.Struct, frozen=True):
    """A replica found on disk at start.

    `facts` None: its record is missing or unreadable; `size`: bytes that are there, -1 when only the record is;
    `committed`: a transact has named its blob (`BlobStore.settle`).
    """

    reference: ReferenceId
    facts: ReplicaFacts | None
    size: int
    committed: bool = True


PREFIX_CHARS: Final = 2
PREFIXES: Final = tuple(f"{number:02x}" for number in range(16**PREFIX_CHARS))
"""Replicas are gone through in 256 parts, by the first characters of their references."""


class Notes(msgspec.Struct, frozen=True):
    """What was noted of replicas.

    Args:
        parts: by what their references begin with.
        behind: how many notes stand behind those that are in order of reference: a start takes longer with them.
        mark: the last note of `MARK`, b"" for none.
    """

    parts: Mapping[str, dict[ReferenceId, bytes]]
    behind: int
    mark: bytes = b""


MARK: Final = ReferenceId("mark")
"""What is noted under this name is about all notes before it."""
NO_NOTES: Final = Notes({}, 0)


class Scanned(msgspec.Struct, frozen=True):
    """The replicas found on disk at start whose references begin alike.

    Args:
        prefix: what they begin with.
        known: record and bytes are there, neither was read or measured; with what was noted of each, in no order. The
            taker may keep it.
        uncommitted: those of `known` of which no transact has named the blob.
        read: all others, in order of reference.
    """

    prefix: str
    known: dict[ReferenceId, bytes]
    uncommitted: frozenset[ReferenceId]
    read: Sequence[StoredReplica]


class StoreIdentity(msgspec.Struct, frozen=True):
    """Whose replicas a disk holds: written when the store is made, read again to see that it is still there.

    Args:
        store: id of the store, a UUID; never changes.
        service: the Shepherd it belongs to.
        cluster: the cluster that has taken it in, "" until one has.
        replaces: an administrator has said that it takes the place of whatever store this Shepherd had before.
    """

    store: str
    service: ServiceId
    cluster: str = ""
    replaces: bool = False


Check = Callable[[int, bytes], None]
"""Told where in a replica bytes begin, and these, while they are fresh in the processor's cache: may refuse them."""


def unchecked(at: int, data: bytes) -> None:
    """Refuse nothing."""


class BlobStore(Protocol):
    """Where replicas' bytes are. One contract suite runs on every engine."""

    async def identity(self) -> StoreIdentity | None:
        """Read from the medium whose store this is; None when nothing says so (a fresh, emptied or unmounted disk).
        Raises: UNAVAILABLE when the medium fails, BAD_CONFIG when what is there cannot be read, or the place of the
        replicas is gone."""

    async def identify(self, identity: StoreIdentity) -> None:
        """Write durably whose store this is."""

    async def probe(self) -> None:
        """Write to the medium and back, not to a cache. Raises: UNAVAILABLE, READ_ONLY when it fails; a full one does
        not."""

    async def create(self, reference: ReferenceId, *, resume: bool = False) -> BlobWriter:
        """Open a writer; with `resume` continue what `suspend` kept (offset 0 when nothing is there)."""

    async def store_whole(self, replicas: Sequence[SmallReplica]) -> None:
        """Put whole new replicas on stable storage under their names: all are durable when it returns.

        Raises: NO_SPACE, UNAVAILABLE: then none of them is there.
        """

    def read(self, reference: ReferenceId, span: ByteRange, check: Check = unchecked) -> AsyncIterator[bytes]:
        """Yield the bytes of `span`, each chunk (of `bounds.CHUNK_BYTES`, but for the last) once it is checked. Raises:
        NOT_ALIVE when fewer are there or they cannot be read; what `check` does."""

    def at_hand(self, reference: ReferenceId, size: int) -> bytes | None:
        """All `size` bytes of a replica, if they can be had without waiting for the medium; None: they are to be
        `read`, or are not there."""

    async def facts(self, reference: ReferenceId) -> ReplicaFacts | None:
        """Read the record of a replica again; None when it is missing or damaged."""

    async def blocks(self, reference: ReferenceId) -> bytes:
        """The CRC of each block of a replica (`crcs.BlockCrcs`), out of its record; b"" where it tells none."""

    async def spoil(self, reference: ReferenceId) -> bool:
        """Change one byte in the middle of a replica, durably and without a trace: for drills. False when it has
        none."""

    async def trim(self, reference: ReferenceId, size: int) -> None:
        """Cut off durably what lies behind the first `size` bytes of a replica, of which there are more."""

    async def settle(self, references: tuple[ReferenceId, ...]) -> None:
        """Note that these replicas are committed: a transact has named their blobs. A crash may take it back."""

    async def quarantined(self, after: str = "", limit: int = 0) -> tuple[StoredReplica, ...]:
        """What was set aside, in order of reference: `limit` (0: all) behind the reference `after`."""

    async def count_quarantined(self) -> int:
        """How many replicas are set aside; none of them is read."""

    async def erase(self, reference: ReferenceId) -> bool:
        """Remove bytes and record durably, wherever they are (kept upload and quarantine too); False when there was
        nothing. Raises: CONFLICT when something in their place can neither be removed nor be set aside."""

    async def quarantine(self, reference: ReferenceId) -> None:
        """Set bytes and record aside, out of reach of readers, for a person to look at."""

    async def discard(self, reference: ReferenceId) -> bool:
        """Remove durably what was set aside, and only that: what has been brought back meanwhile stays. False when it
        was not there."""

    async def reinstate(self, reference: ReferenceId) -> StoredReplica | None:
        """Bring back, as committed, what was set aside: the namespace names it after all. None when it is not there."""

    def scan(self, notes: Notes = NO_NOTES) -> AsyncIterator[Scanned]:
        """Every replica on disk, page by page in order of reference; of those in `notes`, which are given up, only that
        record and bytes are there is looked at. What a crash interrupted is finished."""

    async def sizes(self, references: Sequence[ReferenceId]) -> tuple[int, ...]:
        """How many bytes of these replicas are there, -1 where none are."""

    async def notes(self, head: bytes = b"") -> Notes:
        """What was noted of replicas, each behind `head`. Some or all may be lost after a crash, none is ever wrong; of
        replicas that are gone there may be some."""

    async def note(self, notes: Mapping[ReferenceId, bytes]) -> None:
        """Note something of replicas, b"" to forget it. Not durable at once; with a note of `MARK` it is, and so is all
        that was noted before."""

    async def note_anew(self, pages: AsyncIterable[Mapping[ReferenceId, bytes]]) -> None:
        """Note this, best in order of reference, and forget all else: all or, after a crash, nothing of it."""

    async def space(self) -> tuple[int, int]:
        """(free, total) bytes usable for replicas."""


class Transfers(Protocol):
    """Moves bytes to other Shepherds."""

    async def push(
        self, turl: str, body: AsyncIterator[bytes], length: int, offset: int = 0, *, patient: bool = False
    ) -> Uploaded:
        """PUT `body` (of `length` bytes, -1 unknown, starting at `offset`) to `turl` with this node's credentials.

        `patient`: who sends looks by himself whether the other side lives, and the answer is waited for until it comes:
        of a body that is taken slowly megabytes are still on their way when the last has been handed over here.
        Raises: what the other side answered, NETWORK, TIMEOUT.
        """

    async def offset(self, turl: str) -> int:
        """How many bytes the other side kept of an interrupted push; -1 when it is complete."""


class Carrier(Protocol):
    """Moves whole small blobs to and from Shepherds, for services that keep bytes of their own there."""

    async def put(self, turl: str, body: bytes) -> tuple[Receipt, ...]:
        """PUT `body` to `turl`; returns the receipts. Raises: what the other side answered, NETWORK, TIMEOUT."""

    async def get(self, turl: str, size_max: int) -> bytes:
        """GET all of `turl`. Raises: TOO_LARGE beyond `size_max` bytes, and as `put`."""


class Signer(Protocol):
    """Signs receipts with this node's key."""

    def sign(self, message: bytes) -> str:
        """Return the signature as text."""

    def verify_key(self) -> str:
        """The public key (PEM) that checks it, announced in heartbeats."""


class Verifier(Protocol):
    """Checks receipts against the key a Shepherd announced."""

    def verify(self, verify_key: str, message: bytes, signature: str) -> bool:
        """Whether `signature` is `verify_key`'s over `message`; malformed input is False."""


class Directory(Protocol):
    """Finds the services of the cluster by id; in-process when they share the daemon, else by a stub."""

    def shepherd(self, service: ServiceId) -> Shepherd:
        """The control port of a Shepherd. Calls raise NETWORK or TIMEOUT when it does not answer."""


class ShepherdState(msgspec.Struct, frozen=True):
    """Small durable facts of a Shepherd beside its replicas: boot number, ticket secret, newest authority seen."""

    boot: int
    ticket_secret: bytes
    cluster: str = ""
    generation: int = 0
    sequence: int = 0
    extra: dict[str, str] = msgspec.field(default_factory=dict)


class ShepherdStateFile(Protocol):
    """Keeps `ShepherdState` durably."""

    def load(self) -> ShepherdState | None:
        """The state as last saved, or None on a fresh disk."""

    def save(self, state: ShepherdState) -> None:
        """Write durably (returns when it is on stable storage)."""
