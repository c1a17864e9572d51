"""The Shepherd port: one storage node's control operations, its data plane, and the ports that it needs itself.

`get put stat delete toggleReport` are the original's operations; `copy` orders a push to another Shepherd, `scrub`
an immediate check. Bytes move only under tickets that this Shepherd itself signed (`wire.tickets`).
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final, Protocol

import msgspec

from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.cluster.drills import ShepherdDrill
from chelonia.core.cluster.position import Position
from chelonia.core.cluster.replicas import Checksums, Receipt, ReplicaFacts, ReplicaState
from chelonia.core.contents.extents import ByteRange
from chelonia.core.ids import BlobId, Ms, ReferenceId, ServiceId


class Purpose(enum.Enum):
    """The purpose of uploaded bytes, which decides the effect of the last one."""

    PENDING = "pending"
    """A user's upload to a pending name: the Shepherd commits it at the Librarian before it answers."""
    RECEIPT = "receipt"
    """A user's bytes-first upload: the receipts go back to the user's client."""
    REPLICA = "replica"
    """Another Shepherd's copy (fan-out or repair): the receipt goes back to that Shepherd."""


class GetRequest(msgspec.Struct, frozen=True):
    """A request for a TURL to read a replica. `dn`: the user to bind it to; empty: any holder may read one full body,
    or with `ranges` any number until it expires. `spans`: the ticket is for ranges within one of these alone; empty, or
    if they cover all bytes: for all."""

    request_id: str
    reference: ReferenceId
    protocols: tuple[str, ...]
    dn: str = ""
    address: str = ""
    lifetime_ms: int = 0
    ranges: bool = False
    spans: tuple[ByteRange, ...] = ()


class PutRequest(msgspec.Struct, frozen=True):
    """A request for a TURL to write a replica, and for space.

    `guid checksum checksumType size protocol acl` are the original's properties (`facts.size` -1: unknown).
    `reference`: chosen by the Librarian when it claimed this location, else "". `forward`: TURLs on other Shepherds
    to write at the same time. `spare`: TURLs to use when one of those fails. `durable`: copies (this one included)
    that must be on stable storage before the Shepherd answers with success.
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
    """A whole blob to store, of at most `bounds.INLINE_BYTES_MAX`. `facts`: with announced checksums; the Shepherd
    measures MD5 and Adler-32 only where announced. `named`: earlier replicas of this Shepherd that a transact has named
    since; it learns of others by its reports."""

    facts: ReplicaFacts
    data: bytes = field(repr=False)
    named: tuple[ReferenceId, ...] = ()


class StoreOutcome(msgspec.Struct, frozen=True):
    """Answer to `store`: a receipt, or an error (`kind` is the `Kind`'s value)."""

    receipt: Receipt | None = None
    error: str = ""
    kind: str = ""


@dataclass(frozen=True, slots=True)
class FetchOutcome:
    """Answer to `fetch`: all bytes of a replica, checked, or an error."""

    data: bytes | None = field(default=None, repr=False)
    error: str = ""
    kind: str = ""


class MeasuredOutcome(msgspec.Struct, frozen=True):
    """Answer to `sums`: facts of the record beside a replica; `size` -1: it is not here, or not whole."""

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
    """Metadata position of an order: a Shepherd obeys none from another cluster or from an older position."""

    position: Position


class DeleteOutcome(msgspec.Struct, frozen=True):
    """`status`: `deleted` (also if it was not there) or `nosuchfile: <reason of refusal>`; `kind`: of a refusal."""

    request_id: str
    status: str
    kind: str = ""


class CopyOrder(msgspec.Struct, frozen=True):
    """An order to push the replica `reference` to `turl` on another Shepherd."""

    reference: ReferenceId
    turl: str


class ShepherdStatus(msgspec.Struct, frozen=True):
    """State of one Shepherd, for administrators and tests.

    `store`: id of its store; `trouble`: why it is not ready, "" when it is. `quarantined_bytes`: `discard` reclaims
    them. `unfinished_bytes`: of uploads not committed in time; the Shepherd reclaims them itself.
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
    """The replicas to check now.

    Args:
        references: exactly these; empty: all that the other fields allow, in order of reference.
        after: continue after this reference.
        before_ms: only those last checked before (wall clock); 0: all. A start forgets earlier checks.
        suspicious: only those that are damaged, or suspected to be.
    """

    references: Annotated[tuple[ReferenceId, ...], msgspec.Meta(max_length=bounds.BULK_ELEMENTS_MAX)] = ()
    after: str = ""
    before_ms: Ms = Ms(0)
    suspicious: bool = False


class Damaged(msgspec.Struct, frozen=True):
    """A replica found damaged, and how."""

    reference: ReferenceId
    blob: BlobId
    damage: str


class ScrubPage(msgspec.Struct, frozen=True):
    """The outcome of a check of as many replicas as the rate of the scrub allows in a moment.

    `checked` replicas of `bytes` in total; `after` continues, "" when all is done. `left`: most that may follow.
    """

    checked: int
    bytes: int
    damaged: tuple[Damaged, ...]
    after: str
    left: int


class Question(msgspec.Struct, frozen=True):
    """The bytes of a replica to prove."""

    reference: ReferenceId
    spans: tuple[ByteRange, ...]


class Challenge(msgspec.Struct, frozen=True):
    """A challenge that all holders of the same bytes answer alike, and nobody can answer without them.

    `nonce`: hex, fresh for each challenge, so that no stored answer can replace the bytes.
    """

    nonce: str
    questions: tuple[Question, ...]


RECORDS_ASIDE = "aside "
"""`after` of `Shepherd.records` for the first record in quarantine."""


class ReplicaRecord(msgspec.Struct, frozen=True):
    """A Shepherd's record of one replica, for a rebuild.

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
    """Control operations of a storage node. Any may raise DENIED. No call with a list of more than
    `bounds.BULK_ELEMENTS_MAX` elements comes in: both encodings refuse it."""

    async def get(self, call: Call, requests: tuple[GetRequest, ...]) -> tuple[TurlOutcome, ...]:
        """Issue read tickets. Bartenders, Librarians."""

    async def put(self, call: Call, requests: tuple[PutRequest, ...]) -> tuple[TurlOutcome, ...]:
        """Reserve space and issue write tickets. Bartenders, Librarians."""

    async def store(self, call: Call, blobs: tuple[SmallBlob, ...]) -> tuple[StoreOutcome, ...]:
        """Put whole small blobs from the message on stable storage, under references of this Shepherd's choice. It
        refuses a blob that it has. Bartenders. Raises: TOO_LARGE beyond `bounds.STORED_CALL_BYTES_MAX` in all."""

    async def fetch(self, call: Call, references: tuple[ReferenceId, ...]) -> tuple[FetchOutcome, ...]:
        """Read whole small replicas, checked against their records. Bartenders. Raises: as `store`."""

    async def sums(self, call: Call, references: tuple[ReferenceId, ...]) -> tuple[MeasuredOutcome, ...]:
        """Return all checksums measured on the arrival of replicas. Bartenders. Raises: DENIED, BAD_REQUEST."""

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
        """Push a replica; returns the other Shepherd's receipt. Raises: NOT_ALIVE, NETWORK, BAD_TICKET, CHECKSUM; BUSY
        when one of both has as many copies under way as it may. Its subject is the sender when it is that one."""

    async def drill(self, call: Call, order: ShepherdDrill) -> int:
        """Carry out a drill on this Shepherd, or end its silence. Librarians only, with authority as for `delete`.

        Returns the milliseconds of silence left. Raises: DENIED, CONFLICT while it is silent already or is
        not sound, NOT_ALIVE when the copy is not here whole.
        """

    async def prove(self, call: Call, challenge: Challenge) -> tuple[str, ...]:
        """Prove that replicas are here. Returns digests of the requested bytes, in order, "" for a replica that is not
        here whole. Librarians only. Raises: BAD_REQUEST beyond the bounds of a challenge."""

    async def scrub(self, call: Call, references: tuple[ReferenceId, ...]) -> int:
        """Check these replicas now (all when empty); returns how many are damaged."""

    async def scrub_page(self, call: Call, order: ScrubOrder) -> ScrubPage:
        """Check some replicas now, at the rate of the scrub. Administrators. Raises: UNAVAILABLE without its disk."""

    async def discard(self, call: Call, references: tuple[ReferenceId, ...]) -> int:
        """Erase these from quarantine, where nobody reads them; returns how many were there. Administrators only."""

    async def readmit(self, call: Call) -> int:
        """Bring whole replicas back from quarantine, and report them to the namespace again. Those it knows become
        copies, the others are set aside again. Returns how many came back. Librarians, administrators."""

    async def status(self, call: Call) -> ShepherdStatus:
        """Describe this node."""

    async def records(self, call: Call, after: str, limit: int) -> RecordPage:
        """Return a page of the records beside the replicas, those in quarantine last. Librarians, administrators."""


# --- the data plane: what the HTTP door calls ----------------------------------------------------------------------


class Turl(msgspec.Struct, frozen=True):
    """The parts of a TURL: `base` is `https://host:port`, "" in a request, which names a path only. The ticket is good
    only for the replica in the path."""

    base: str
    reference: ReferenceId
    ticket: str


class Upload(msgspec.Struct, frozen=True):
    """One PUT.

    - `length`: declared body length or -1
    - `offset`: position of this body's start in the file (resume)
    - `total`: declared size of the whole file or -1
    - `announced`: the sender's checksums of the whole file
    """

    turl: Turl
    body: AsyncIterator[bytes]
    length: int = -1
    offset: int = 0
    total: int = -1
    announced: Checksums = Checksums()


class Uploaded(msgspec.Struct, frozen=True):
    """The outcome of a PUT.

    `complete` False: `offset` bytes are kept, continue there. `receipts`: one per durable copy.
    """

    complete: bool
    offset: int
    receipts: tuple[Receipt, ...] = ()
    guid: str = ""
    checksums: Checksums = Checksums()


class Download(msgspec.Struct, frozen=True):
    """An open replica to read: facts of the whole, and a reader of one range at a time.

    `created_ms` is when the file was put; `single_use`: the ticket is good for one whole body. `spans`: the ticket is
    for ranges within one of these, and the answer has no checksum; empty: for all bytes.
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
        """Yield the bytes of `span` in chunks of at most `bounds.CHUNK_BYTES`. Raises: NOT_ALIVE when some are missing
        (truncated or unreadable); the replica is then checked at once."""

    async def checksums(self) -> Checksums:
        """Return all checksums measured when it was stored, as far as its record is readable. Raises: UNAVAILABLE."""

    async def close(self, *, complete: bool) -> None:
        """Release the replica; `complete` False gives a single-use ticket back."""


class ShepherdData(Protocol):
    """The data plane: PUT and GET on tickets."""

    async def receive(self, call: Call, upload: Upload) -> Uploaded:
        """Take one PUT body to stable storage, forward it, and act on its purpose before answering.

        Raises: BAD_TICKET, EXPIRED, ALREADY_DONE, CHECKSUM, NO_SPACE, and

        - INCOMPLETE: `length` was not met; the received bytes are kept for a resume
        - TOO_LARGE: longer than the ticket's size
        - BAD_RANGE: the offset is not where it left off, or a required checksum was not measured up to there
        - BUSY: a repair copy for which there is no place
        """

    async def offset(self, call: Call, turl: Turl) -> int:
        """Return how many bytes of an interrupted upload are kept; -1 when complete. Raises: BAD_TICKET, EXPIRED."""

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
        each block, if measured."""

    async def suspend(self) -> None:
        """Keep the written bytes for a later resume; a start discards them. Where it fails, `abort` discards them."""

    async def abort(self) -> None:
        """Discard the written bytes."""


@dataclass(frozen=True, slots=True)
class SmallReplica:
    """A whole small replica, for `BlobStore.store_whole`."""

    reference: ReferenceId
    facts: ReplicaFacts
    data: bytes = field(repr=False)


class StoredReplica(msgspec.Struct, frozen=True):
    """A replica found on disk at start.

    `facts` None: its record is missing or unreadable; `size`: bytes on disk, -1 when only the record is.
    `committed`: a transact has named its blob (`BlobStore.settle`).
    """

    reference: ReferenceId
    facts: ReplicaFacts | None
    size: int
    committed: bool = True


PREFIX_CHARS: Final = 2
PREFIXES: Final = tuple(f"{number:02x}" for number in range(16**PREFIX_CHARS))
"""The 256 parts of a pass over all replicas: the first characters of their references."""


class Notes(msgspec.Struct, frozen=True):
    """Notes on replicas.

    Args:
        parts: by the first characters of their references.
        behind: number of notes after those that are in order of reference: they slow a start down.
        mark: the last note of `MARK`, b"" for none.
    """

    parts: Mapping[str, dict[ReferenceId, bytes]]
    behind: int
    mark: bytes = b""


MARK: Final = ReferenceId("mark")
"""Name of a note about all notes before it."""
NO_NOTES: Final = Notes({}, 0)


class Scanned(msgspec.Struct, frozen=True):
    """The replicas found on disk at start whose references begin alike.

    Args:
        prefix: the first characters of their references.
        known: notes of replicas with record and bytes, neither read nor measured; in no order. The caller may keep it.
        uncommitted: those of `known` whose blob no transact has named.
        read: all others, in order of reference.
    """

    prefix: str
    known: dict[ReferenceId, bytes]
    uncommitted: frozenset[ReferenceId]
    read: Sequence[StoredReplica]


class StoreIdentity(msgspec.Struct, frozen=True):
    """The owner of a disk's replicas: written when the store is made, read again to check that it is still there.

    Args:
        store: id of the store, a UUID; never changes.
        service: the Shepherd it belongs to.
        cluster: the cluster that has accepted it, "" until one has.
        replaces: an administrator has put it in the place of whatever store this Shepherd had before.
    """

    store: str
    service: ServiceId
    cluster: str = ""
    replaces: bool = False


Check = Callable[[int, bytes], None]
"""Called with an offset in a replica and the bytes there, fresh in the processor's cache: may refuse them."""


def unchecked(at: int, data: bytes) -> None:
    """Accept all bytes."""


class BlobStore(Protocol):
    """The storage of replicas' bytes. One contract suite runs on every engine."""

    async def identity(self) -> StoreIdentity | None:
        """Read the store's identity from the medium; None when there is none (a fresh, emptied or unmounted disk).
        Raises: UNAVAILABLE when the medium fails, BAD_CONFIG when the identity is unreadable, or the replicas' folder
        is gone."""

    async def identify(self, identity: StoreIdentity) -> None:
        """Write the store's identity durably."""

    async def probe(self) -> None:
        """Write to the medium itself, not to a cache. Raises: UNAVAILABLE, READ_ONLY; a full one does not fail."""

    async def create(self, reference: ReferenceId, *, resume: bool = False) -> BlobWriter:
        """Open a writer; with `resume` continue an upload that `suspend` kept (offset 0 when there is none)."""

    async def store_whole(self, replicas: Sequence[SmallReplica]) -> None:
        """Put whole new replicas on stable storage under their names: all are durable when it returns.

        Raises: NO_SPACE, UNAVAILABLE: then none of them is there.
        """

    def read(self, reference: ReferenceId, span: ByteRange, check: Check = unchecked) -> AsyncIterator[bytes]:
        """Yield the bytes of `span`, each chunk (of `bounds.CHUNK_BYTES`, but for the last) after its check. Raises:
        NOT_ALIVE when some are missing or unreadable; errors of `check`."""

    def at_hand(self, reference: ReferenceId, size: int) -> bytes | None:
        """Return all `size` bytes of a replica if that needs no wait for the medium. None: `read` it, or it is gone."""

    async def facts(self, reference: ReferenceId) -> ReplicaFacts | None:
        """Read the record of a replica again; None when it is missing or damaged."""

    async def blocks(self, reference: ReferenceId) -> bytes:
        """Return the CRC of each block of a replica (`crcs.BlockCrcs`) from its record; b"" where it has none."""

    async def spoil(self, reference: ReferenceId) -> bool:
        """Change one byte in the middle of a replica, durably and without a trace, for drills. False: it has none."""

    async def trim(self, reference: ReferenceId, size: int) -> None:
        """Cut a longer replica off, durably, after its first `size` bytes."""

    async def settle(self, references: tuple[ReferenceId, ...]) -> None:
        """Note that these replicas are committed: a transact has named their blobs. A crash may lose the note."""

    async def quarantined(self, after: str = "", limit: int = 0) -> tuple[StoredReplica, ...]:
        """Return quarantined replicas in order of reference: `limit` (0: all) of those after `after`."""

    async def count_quarantined(self) -> int:
        """Return how many replicas are in quarantine, without reading any."""

    async def erase(self, reference: ReferenceId) -> bool:
        """Remove bytes and record durably, wherever they are (kept upload and quarantine too). False: there were none.
        Raises: CONFLICT when something in their place can be neither removed nor set aside."""

    async def quarantine(self, reference: ReferenceId) -> None:
        """Set bytes and record aside, out of reach of readers, for a person to look at."""

    async def discard(self, reference: ReferenceId) -> bool:
        """Remove a replica durably from quarantine only: one brought back meanwhile stays. False: it was not there."""

    async def reinstate(self, reference: ReferenceId) -> StoredReplica | None:
        """Bring a replica back from quarantine, as committed: the namespace names it. None when it is not there."""

    def scan(self, notes: Notes = NO_NOTES) -> AsyncIterator[Scanned]:
        """Yield every replica on disk, page by page in order of reference, and finish what a crash interrupted. It
        consumes `notes`, and of replicas in them checks only that record and bytes exist."""

    async def sizes(self, references: Sequence[ReferenceId]) -> tuple[int, ...]:
        """Return the number of bytes of each of these replicas, -1 where there are none."""

    async def notes(self, head: bytes = b"") -> Notes:
        """Return the notes on replicas, each behind `head`. A crash may lose some or all, but none is ever wrong; some
        may be of replicas that are gone."""

    async def note(self, notes: Mapping[ReferenceId, bytes]) -> None:
        """Store notes on replicas, b"" to remove one. Only a note of `MARK`, with all before it, is durable at once."""

    async def note_anew(self, pages: AsyncIterable[Mapping[ReferenceId, bytes]]) -> None:
        """Replace all notes by these, best in order of reference: after a crash, by all of them or by none."""

    async def space(self) -> tuple[int, int]:
        """Return (free, total) bytes usable for replicas."""


class Transfers(Protocol):
    """Moves bytes to other Shepherds."""

    async def push(
        self, turl: str, body: AsyncIterator[bytes], length: int, offset: int = 0, *, patient: bool = False
    ) -> Uploaded:
        """PUT `body` (of `length` bytes, -1 unknown, starting at `offset`) to `turl` with this node's credentials.

        `patient`: the sender checks itself that the other side lives, and waits for the answer until it comes. Of a
        body that is taken slowly, megabytes are still on their way when the last byte has been handed over here.
        Raises: the other side's error, NETWORK, TIMEOUT.
        """

    async def offset(self, turl: str) -> int:
        """Return how many bytes of an interrupted push the other side has; -1 when it is complete."""


class Carrier(Protocol):
    """Moves whole small blobs to and from Shepherds, for services that keep bytes of their own there."""

    async def put(self, turl: str, body: bytes) -> tuple[Receipt, ...]:
        """PUT `body` to `turl`; returns the receipts. Raises: the other side's error, NETWORK, TIMEOUT."""

    async def get(self, turl: str, size_max: int) -> bytes:
        """GET all of `turl`. Raises: TOO_LARGE beyond `size_max` bytes, and as `put`."""


class Signer(Protocol):
    """Signs receipts with this node's key."""

    def sign(self, message: bytes) -> str:
        """Return the signature as text."""

    def verify_key(self) -> str:
        """Return the public key (PEM) that checks it, as announced in heartbeats."""


class Verifier(Protocol):
    """Checks receipts against the key a Shepherd announced."""

    def verify(self, verify_key: str, message: bytes, signature: str) -> bool:
        """Whether `signature` is `verify_key`'s over `message`; malformed input is False."""


class Directory(Protocol):
    """Finds the services of the cluster by id; in-process when they share the daemon, else by a stub."""

    def shepherd(self, service: ServiceId) -> Shepherd:
        """Return the control port of a Shepherd. Its calls raise NETWORK or TIMEOUT when it does not answer."""


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
        """Return the state as last saved, or None on a fresh disk."""

    def save(self, state: ShepherdState) -> None:
        """Write durably (returns when it is on stable storage)."""
