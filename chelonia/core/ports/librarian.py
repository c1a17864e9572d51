"""The Librarian port: the namespace, the uploads that become names, and what Shepherds report.

`new get traverseLN modifyMetadata remove report` are the original's operations. The others make every namespace
operation one transact: the Bartender decides who may, and hands over the versions it decided on (`Expect`); the
Librarian conditions the transact on them, so that a revoked right is not used and a lost race is a CONFLICT.
Stored layout of every object: `docs/formats/metadata.md`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Annotated, Protocol

import msgspec
from msgspec import Meta

from chelonia.core import bounds
from chelonia.core.caller import Call, Role
from chelonia.core.cluster.drills import DrillOrder, DrillStatus
from chelonia.core.cluster.healing import ForgetPage, HealingWord, HealOrder, HealStatus
from chelonia.core.cluster.position import Position
from chelonia.core.cluster.quotas import Quota, QuotaUse
from chelonia.core.cluster.replicas import Checksums, Receipt, ReplicaState
from chelonia.core.contents.below import Below, BelowPage
from chelonia.core.contents.extents import ExtentPage
from chelonia.core.contents.parts import PartPage, UploadId, UploadPage
from chelonia.core.contents.uploads import (
    BeginPut,
    Begun,
    CommitFile,
    Committed,
    CopyFile,
    Expect,
    OpenUpload,
    PutPart,
    SealUpload,
    SpliceFile,
)
from chelonia.core.ids import BlobId, Dn, Guid, Ms, ObjectId, ReferenceId, ServiceId
from chelonia.core.metadata import TYPE_FILE, Filter, Sections, StoredObject, Triple
from chelonia.core.names import LogicalName
from chelonia.core.ports.access_keys import SealedKey

NOBODY = ServiceId("")


# --- the original's operations -------------------------------------------------------------------------------------


class NewRequest(msgspec.Struct, frozen=True):
    """`new`: make an entry object without a name. Metadata must hold `entry/type`; `entry/GUID` is optional."""

    request_id: str
    metadata: tuple[Triple, ...]


class NewOutcome(msgspec.Struct, frozen=True):
    """`success`: `success`, `failed: no type given`, `failed: entry exists`, `failed: <reason>`."""

    request_id: str
    guid: str
    success: str


class TraversedStep(msgspec.Struct, frozen=True):
    """One component followed: its name (empty for the start) and where it led."""

    part: str
    guid: Guid


class Traversal(msgspec.Struct, frozen=True):
    """How far a Logical Name could be followed.

    `steps` starts with the start itself (`part` = "" or the GUID as written). `complete`: nothing is left in `rest`.
    `last` is the whole object where the walk ended, with `locations` as readers see them (`offline` included); its
    version is 0 when that object does not exist.
    """

    steps: tuple[TraversedStep, ...]
    complete: bool
    last: StoredObject
    rest: tuple[str, ...] = ()

    @property
    def guid(self) -> Guid:
        """The entry where the walk ended."""
        return Guid(self.last.id)


class ModifyEntry(msgspec.Struct, frozen=True):
    """`change_type`: `set`, `unset`, `add` (set if unset) or `setifvalue=<v>` (set if it is `<v>` now)."""

    change_id: str
    guid: Guid
    change_type: str
    section: str
    property: str
    value: str
    expect: Expect = ()


class ModifyOutcome(msgspec.Struct, frozen=True):
    """`success`: `set`, `unset`, `condition failed`, `failed: <reason>`."""

    change_id: str
    success: str


class RemoveOutcome(msgspec.Struct, frozen=True):
    """`success`: `removed`, `failed: <reason>`."""

    request_id: str
    success: str


class ReportedReplica(msgspec.Struct, frozen=True):
    """One replica's state in a report; size and checksums when `alive`. `blob` may be empty from an old client."""

    guid: str
    reference: ReferenceId
    state: ReplicaState
    blob: BlobId = BlobId("")
    size: int = -1
    checksums: Checksums = Checksums()


class Report(msgspec.Struct, frozen=True):
    """What changed on one Shepherd since report `number` - 1 of the same incarnation (`boot`).

    Report 1 of a new boot follows anything of an older boot. `number` 0: an unnumbered heartbeat of the old form.
    `store`: the store it speaks of, "" from older software; a report of another store than the recorded one is refused.
    """

    shepherd: ServiceId
    boot: int
    number: int
    replicas: Annotated[tuple[ReportedReplica, ...], Meta(max_length=bounds.REPORT_ENTRIES_MAX)]
    store: str = ""


class ReportAnswer(msgspec.Struct, frozen=True):
    """What became of a report.

    `accepted`: the number of the last report applied (the sender repeats from there). `unknown`: references whose
    blob the namespace does not know (never erased for that alone). `next_report_ms`: when to be heard again; -1 asks
    for a reconciliation, as in the original. To the first report of a boot, also when it is repeated: `before_boot`,
    `before_number`: the last one applied before it that was not itself the first of a boot, of the same store; 0 when
    none was, or nobody knows. `obeyed`: the sequence of the newest order to erase that it has confirmed. To one of an
    earlier boot than has reported: `before_boot`, that one, and 0.
    """

    accepted: int
    next_report_ms: int
    unknown: tuple[ReferenceId, ...] = ()
    all_files: tuple[str, ...] = ()
    before_boot: int = 0
    before_number: int = 0
    obeyed: int = 0


# --- the transactional namespace -----------------------------------------------------------------------------------


class MakeEntry(msgspec.Struct, frozen=True):
    """Make an entry and its name at once. `parent` "" makes the root. `sections`: policy, metadata, states, ...
    `described`: the answer is the entry, and not its GUID alone."""

    parent: Guid
    name: str
    type: str
    owner: Dn
    sections: Sections
    expect: Expect = ()
    described: bool = False


class Unlink(msgspec.Struct, frozen=True):
    """Drop one name. The last name of a file takes the file with it, as `Delete` does."""

    parent: Guid
    name: str
    child: Guid
    expect: Expect = ()


class Delete(msgspec.Struct, frozen=True):
    """Remove a file or mount point with all its names. A file is kept in the trash for a while, then erased."""

    guid: Guid
    expect: Expect = ()


class Undelete(msgspec.Struct, frozen=True):
    """Bring a file, or an empty collection, back from the trash under one name; its other former names stay free."""

    guid: Guid
    parent: Guid
    name: str
    expect: Expect = ()


class Trashed(msgspec.Struct, frozen=True):
    """A file or collection in the trash, under one of its former names: `name` in `parent`, which may be there too.

    `until_ms`: when it is erased; `size` -1 when not known; `type`: what it was.
    """

    guid: Guid
    owner: Dn
    parent: Guid
    name: str
    size: int
    deleted_ms: Ms
    until_ms: Ms
    type: str = TYPE_FILE


class TrashPage(msgspec.Struct, frozen=True):
    """A page of the trash, ordered by former parent and name, of one name in the order of deletion. `after` continues
    it; empty when this is the last page."""

    entries: tuple[Trashed, ...]
    after: str


class Unmake(msgspec.Struct, frozen=True):
    """Remove an empty collection and its names. It is kept in the trash for a while."""

    guid: Guid
    expect: Expect = ()


class MoveEntry(msgspec.Struct, frozen=True):
    """Give `child` the name `target_name` in `target_parent`; drop the source name unless `keep` (hard link).

    `over`: `refuse`, `replace` or `exchange`, as of `core.ports.files.Over`: what becomes of the entry `there`, which
    has the name now ("" where nothing has it). `described`: the answer is the entry after it.
    """

    child: Guid
    source_parent: Guid
    source_name: str
    target_parent: Guid
    target_name: str
    keep: bool
    expect: Expect = ()
    over: str = "refuse"
    there: Guid = Guid("")
    described: bool = False


class ChangeEntry(msgspec.Struct, frozen=True):
    """Set and unset several properties of one entry at once; `timestamps/changed` follows. The sections are those that
    `MakeEntry` may give. `described`: the answer is the entry after it."""

    guid: Guid
    put: tuple[Triple, ...] = ()
    drop: tuple[tuple[str, str], ...] = ()
    expect: Expect = ()
    described: bool = False


class SetWanted(msgspec.Struct, frozen=True):
    """Change a file's number of wanted replicas on the file and on its blobs at once."""

    guid: Guid
    wanted: int
    expect: Expect = ()


# --- nodes ---------------------------------------------------------------------------------------------------------


class Arriving(msgspec.Struct, frozen=True):
    """A claimed copy that a Shepherd is taking: `here` of its bytes have arrived."""

    reference: ReferenceId
    blob: BlobId
    here: int


class Heartbeat(msgspec.Struct, frozen=True):
    """A Shepherd's sign of life, kept in memory by each Librarian it reaches.

    - `boot` rises with every start
    - `reported` is the number of its last report
    - `verify_key` is the public key (PEM) that checks its receipts
    - `version` is the software's
    - `compared` is the generation of the metadata with which this boot has compared its inventory and reported every
      difference (0: not yet): until then what the metadata says of its replicas is hearsay, and no other copy is
      given up for it

    Who speaks: `store` is the id of its store ("" from older software), `boots` the boots before this one on the same
    disk, newest first, `replaces` that an administrator has put this store in the place of another. `trouble` says
    why it can tell nothing of its replicas now: such a Shepherd counts as away. `leaving`: this is the last one of this
    boot. `starting`: it has not looked through its disk yet, and its address refuses. `reclaimable_bytes`: of
    quarantine, unfinished uploads and what waits to be erased. `arriving`: the copies whose bytes are coming in.
    `copies_at_once_max`: repair copies that it sends, and as many that it takes, at once by its own configuration; 0:
    older software.
    """

    shepherd: ServiceId
    boot: int
    reported: int
    free_bytes: int
    total_bytes: int
    replicas: int
    accepting: bool
    domain: str
    verify_key: str
    version: str = ""
    compared: int = 0
    store: str = ""
    boots: tuple[int, ...] = ()
    replaces: bool = False
    trouble: str = ""
    reclaimable_bytes: int = 0
    leaving: bool = False
    starting: bool = False
    arriving: tuple[Arriving, ...] = ()
    copies_at_once_max: int = 0


REFUSED_STORE = "store"
"""`HeartbeatAnswer.refused`: the cluster knows this Shepherd with another store; an administrator must decide."""
REFUSED_TWIN = "twin"
"""`HeartbeatAnswer.refused`: another process is alive under this identity; asking again may succeed later."""
REFUSED_FORGOTTEN = "forgotten"
"""`HeartbeatAnswer.refused`: an administrator has declared this Shepherd lost for good."""


class HeartbeatAnswer(msgspec.Struct, frozen=True):
    """What a Librarian answers to a heartbeat.

    - `lease_ms`: without another heartbeat in this time the Shepherd counts as away
    - `known`: it is approved
    - `accepted`: number of the last report applied for this boot, 0 where this Librarian has heard of none
    - `position`: newest metadata position seen
    - `refused`: a word of `REFUSED_...` when it does not count as this Shepherd's heartbeat, and `cause` why
    - `copy_bytes_per_s_max`: of all repair copies it sends together, and as many of all it takes, 0: no limit
    - `copies_at_once_max`: repair copies that it may send, and as many that it may take, at once, 0: as it is
      configured
    """

    lease_ms: int
    known: bool
    accepted: int
    position: Position
    refused: str = ""
    cause: str = ""
    copy_bytes_per_s_max: int = 0
    copies_at_once_max: int = 0


class NodeView(msgspec.Struct, frozen=True):
    """A Shepherd as the cluster sees it. `state`: `alive`, `offline`, `maintenance` or `waiting` (not approved).

    `drain`: `draining` while its copies are to leave, `drained` once none is left and it may go; "" otherwise.
    `trouble`: what a person should know of it: its disk is gone, a second process claims its name, its store changed,
    it comes and goes.
    """

    shepherd: ServiceId
    dn: Dn
    state: str
    since_ms: Ms
    boot: int = 0
    free_bytes: int = 0
    total_bytes: int = 0
    replicas: int = 0
    accepting: bool = False
    domain: str = ""
    maintenance_until_ms: Ms = Ms(0)
    store: str = ""
    reclaimable_bytes: int = 0
    trouble: str = ""
    drain: str = ""


class InventoryItem(msgspec.Struct, frozen=True):
    """What the namespace believes of one replica on a Shepherd; `state` None when its blob is gone."""

    reference: ReferenceId
    blob: BlobId
    state: ReplicaState | None


class InventoryPage(msgspec.Struct, frozen=True):
    """An ordered page of a Shepherd's replicas. `after` continues it; empty when this is the last page."""

    items: tuple[InventoryItem, ...]
    after: str


class ServiceRecord(msgspec.Struct, frozen=True):
    """A registered service identity. `forgotten`: it was declared lost for good and is never accepted again;
    `withdrawn`: an administrator said no, and may approve it yet. Neither approved nor one of these, it waits."""

    role: Role
    dn: Dn
    service_id: ServiceId
    approved: bool
    forgotten: bool = False
    withdrawn: bool = False


class HealthSummary(msgspec.Struct, frozen=True):
    """Repair as this Librarian sees it; that of the leader is the whole picture.

    - `exposed`: blobs with fewer verified copies than wanted
    - `queued`: blobs to be planned, or waiting for a place
    - `copying`: copies under way
    - `erasing`: erasures found in the outboxes
    - `replicas`: by state, `offline` included, as the leader's last whole pass over all blobs counted them
    - `paused_by`: who paused healing, "" while it goes on
    - `held_back`: blobs whose surplus the rate guard does not let go, because more would be erased than anybody has
      asked for
    - `waits_for`: as in `HealStatus`
    """

    leader: str
    is_leader: bool
    position: Position
    exposed: int
    queued: int
    copying: int
    erasing: int
    replicas: Mapping[str, int] = msgspec.field(default_factory=dict)
    paused_by: str = ""
    paused_ms: Ms = Ms(0)
    held_back: int = 0
    waits_for: str = ""


class Severity(enum.Enum):
    """How bad a finding of fsck is."""

    DAMAGE = "damage"
    """Something is lost: bytes without a good copy, a file without its blob. Nothing here can bring it back."""
    DISAGREEMENT = "disagreement"
    """Records that should agree do not: no interrupted operation leaves this behind."""
    WORK = "work"
    """What healing has still to do: not a fault, and gone by itself."""


class Finding(msgspec.Struct, frozen=True):
    """One thing that fsck found: which invariant (`rule`) is broken at which object, and there at which `subject`
    (a name, a location, a reference; "" for the object itself). `mendable`: a safe repair is known."""

    object: ObjectId
    rule: str
    subject: str
    severity: Severity
    text: str
    mendable: bool = False

    def __str__(self) -> str:
        return f"{self.object}: {self.text}"


class FsckPage(msgspec.Struct, frozen=True):
    """What a piece of fsck found. `cursor` continues it, "" at the end; `examined`: objects looked at in this piece;
    `objects`: about how many there are (0: not known, as below a collection)."""

    findings: tuple[Finding, ...]
    cursor: str
    examined: int
    objects: int = 0


class Mended(msgspec.Struct, frozen=True):
    """What became of a finding that was to be repaired: `done` and what was done, or why nothing was."""

    done: bool
    what: str


class RebuildStatus(msgspec.Struct, frozen=True):
    """A rebuild as it stands.

    - `stage`: `idle`, what it is at, `done` or `failed` (then `cause` says why)
    - `done` of `total` in this stage (0: not known)
    - `counts`: what was found by kind
    - `notes`: what a person should know
    """

    stage: str
    done: int = 0
    total: int = 0
    counts: Mapping[str, int] = msgspec.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    cause: str = ""


class Librarian(Protocol):
    """The namespace service. Any method may raise DENIED, UNAVAILABLE, OUTCOME_UNKNOWN, BAD_REQUEST."""

    async def new(self, call: Call, requests: tuple[NewRequest, ...]) -> tuple[NewOutcome, ...]:
        """Make entry objects without names, each in one transact."""

    async def get(self, call: Call, guids: tuple[Guid, ...], needed: Filter = ()) -> tuple[StoredObject, ...]:
        """Return entries, `locations` as readers see them; unknown and pending ones come back with version 0."""

    async def traverse(self, call: Call, names: tuple[LogicalName, ...], needed: Filter = ()) -> tuple[Traversal, ...]:
        """Follow Logical Names as far as they go (`traverseLN`); `needed` filters each `last` (empty: whole).

        A filter keeps the cost of an operation inside a collection independent of how many entries that has.
        """

    async def modify_metadata(self, call: Call, requests: tuple[ModifyEntry, ...]) -> tuple[ModifyOutcome, ...]:
        """Change single properties of entries, each atomically."""

    async def remove(self, call: Call, requests: tuple[tuple[str, Guid], ...]) -> tuple[RemoveOutcome, ...]:
        """Remove entries by (request id, GUID) with all their names and replicas."""

    async def report(self, call: Call, report: Report) -> ReportAnswer:
        """Apply a Shepherd's report about its own replicas, once and in order."""

    async def make_entry(self, call: Call, request: MakeEntry) -> Guid | StoredObject:
        """Returns: its GUID, or as `change_entry`. Raises: EXISTS, NO_PARENT, NOT_A_COLLECTION, CONFLICT."""

    async def begin_put(self, call: Call, request: BeginPut) -> Begun:
        """Raises: EXISTS, NO_PARENT, CONFLICT. A pending name of the same owner is superseded; another's is EXISTS."""

    async def commit_put(self, call: Call, guid: Guid, receipts: tuple[Receipt, ...]) -> Committed:
        """Turn a pending upload into a file (Shepherds call this). Raises: NOT_FOUND, EXPIRED, CHECKSUM, CONFLICT."""

    async def commit_file(self, call: Call, request: CommitFile) -> Committed:
        """Make the file of a bytes-first upload. Raises: EXISTS, NO_PARENT, CHECKSUM, CONFLICT."""

    async def splice(self, call: Call, request: SpliceFile) -> Guid | StoredObject:
        """Lay extents over a file or make one of them. Returns: its GUID, or as `change_entry`.

        Raises: as `commit_file`, and BAD_REQUEST (extents that are no content), TOO_LARGE.
        """

    async def extents(self, call: Call, guid: Guid, at: int, end: int) -> ExtentPage:
        """Tell the extents of a file that meet [`at`, `end`), at most `bounds.EXTENTS_PAGE`. Raises: NOT_FOUND."""

    async def open_upload(self, call: Call, request: OpenUpload) -> UploadId:
        """Open an upload in parts: nothing of it is seen under its name. Raises: NO_PARENT, CONFLICT, TOO_LARGE."""

    async def put_part(self, call: Call, request: PutPart) -> str:
        """Take a piece as a part. Returns: its etag.

        Raises: NOT_FOUND (no such upload of this owner for this name), BAD_REQUEST, as `commit_file`.
        """

    async def seal_upload(self, call: Call, request: SealUpload) -> Guid:
        """Make the parts the content of a file, all at once for readers. Returns: the file.

        Raises: NOT_FOUND, INCOMPLETE (a part that is not there, or has another etag), BAD_REQUEST (an order that is
        none, a part that is too small), TOO_LARGE, as `commit_file`.
        """

    async def copy_file(self, call: Call, request: CopyFile) -> Guid:
        """Give a file the bytes of another by reference, all at once for readers. Returns: the file.

        Raises: NOT_FOUND, NOT_A_FILE, NO_REPLICA (a file whose bytes are not known), TOO_LARGE (a blob is so many
        files' already), as `commit_file`.
        """

    async def drop_upload(self, call: Call, upload: UploadId) -> None:
        """Give an upload up; its parts go page by page. Raises: NOT_FOUND, CONFLICT."""

    async def uploads(self, call: Call, within: Guid, prefix: str, after: str, limit: int) -> UploadPage:
        """The open uploads that a collection lists, of keys that begin with `prefix`."""

    async def parts(self, call: Call, upload: UploadId, after: int, limit: int) -> PartPage:
        """The parts of an open upload with numbers above `after`. Raises: NOT_FOUND."""

    async def unlink(self, call: Call, request: Unlink) -> None:
        """Raises: NOT_FOUND, CONFLICT."""

    async def unlink_all(self, call: Call, requests: tuple[Unlink | None, ...]) -> tuple[int, ...]:
        """Drop names together, in one transact: those that are the only ones of what is no collection.

        Returns: the places in `requests` of those that went, also when a first try had them go; the others are as they
        were, each to be asked for by itself. The memo of the call's key is these places, also where they are none.
        """

    async def delete(self, call: Call, request: Delete) -> None:
        """Raises: NOT_FOUND, NOT_A_FILE, CONFLICT."""

    async def unmake(self, call: Call, request: Unmake) -> None:
        """Raises: NOT_FOUND, NOT_A_COLLECTION, NOT_EMPTY, CONFLICT."""

    async def move(self, call: Call, request: MoveEntry) -> StoredObject | None:
        """Returns: as `change_entry`. Raises: NOT_FOUND, EXISTS, INVALID_TARGET (a cycle), CONFLICT."""

    async def undelete(self, call: Call, request: Undelete) -> None:
        """Raises: NOT_FOUND (not in the trash), EXISTS, NO_PARENT, NOT_A_COLLECTION, CONFLICT."""

    async def trash(self, call: Call, under: str, after: str, limit: int) -> TrashPage:
        """A page of the deleted files that are kept.

        `under`: "" for all, `<GUID>/` for what was in a collection, `<GUID>/<name>/` for what was called so there, and
        a bare GUID for that file.
        """

    async def change_entry(self, call: Call, request: ChangeEntry) -> StoredObject | None:
        """Change several properties of one entry in one transact.

        Returns: if it is to be `described`, what its attributes are made of as the transact has left it; None where
        that is not known, as after a retry. Raises: NOT_FOUND, BAD_REQUEST, CONFLICT.
        """

    async def set_wanted(self, call: Call, request: SetWanted) -> None:
        """Raises: NOT_FOUND, NOT_A_FILE, CONFLICT."""

    async def below(self, call: Call, ask: Below) -> BelowPage:
        """Return a page of what is below a collection, entries as readers see them. Raises: NOT_FOUND."""

    async def access_key(self, call: Call, key_id: str) -> SealedKey | None:
        """A user's access key, None where there is none."""

    async def access_keys(self, call: Call) -> tuple[SealedKey, ...]:
        """All access keys, ordered by id."""

    async def keep_access_key(self, call: Call, sealed: SealedKey) -> None:
        """Store a new access key. Raises: EXISTS, TOO_LARGE."""

    async def drop_access_key(self, call: Call, key_id: str) -> None:
        """Forget an access key. Raises: NOT_FOUND."""

    async def recall(self, call: Call) -> str | None:
        """The memo stored under this caller's request key by a namespace operation that applied, or None."""

    async def heartbeat(self, call: Call, beat: Heartbeat) -> HeartbeatAnswer:
        """Note that a Shepherd lives."""

    async def hearing(self, call: Call, shepherds: tuple[ServiceId, ...]) -> tuple[HealingWord, ...]:
        """Say of each of these Shepherds, in order, what this Librarian knows by itself; each is looked at again
        first. For other Librarians, and administrators."""

    async def consider(self, call: Call, blobs: tuple[BlobId, ...]) -> None:
        """Plan these blobs again: another Librarian found something that the repair leader has to do. At most
        `bounds.BULK_ELEMENTS_MAX`; unknown ones are passed over. For other Librarians, and administrators."""

    async def inventory(self, call: Call, shepherd: ServiceId, after: str, limit: int) -> InventoryPage:
        """What the namespace believes to be on a Shepherd, for its reconciliation after a start."""

    async def nodes(self, call: Call) -> tuple[NodeView, ...]:
        """All Shepherds known, ordered by service id."""

    async def services(self, call: Call) -> tuple[ServiceRecord, ...]:
        """All registered identities, ordered by role and id. Administrators and services."""

    async def approve(self, call: Call, record: ServiceRecord) -> None:
        """Approve (or with `approved` False, withdraw) a service identity. Administrators only."""

    async def maintenance(self, call: Call, shepherd: ServiceId, until_ms: Ms) -> None:
        """Announce planned absence: no repair for this node before `until_ms` (0 ends it). Administrators only."""

    async def drain(self, call: Call, shepherd: ServiceId, on: bool) -> None:
        """Have all copies leave a Shepherd, which takes no new ones (or, with `on` False, no longer). Administrators
        only. Raises: NOT_FOUND."""

    async def forget(
        self, call: Call, shepherd: ServiceId, after: str, check_only: bool, accept_loss: bool
    ) -> ForgetPage:
        """Declare a Shepherd lost for good, a page at a time: its locations go, what it was ordered to erase, and at
        the end its identity, which is never accepted again. Administrators only.

        Args:
            after: where the page before ended; "" to begin.
            check_only: change nothing, only say what would be lost.
            accept_loss: go on with files of which it has the only verified copy within reach; without it they are
                kept, and the Shepherd with them.
        Asked of a Shepherd that is forgotten, it goes through what was written of it since.
        Raises: NOT_FOUND; CONFLICT while it is alive.
        """

    async def quotas(self, call: Call, owner: Dn, within: Guid) -> tuple[QuotaUse, ...]:
        """The quotas that count what `owner` writes into the collection `within` ("" of either: leave it out), with
        what is used; of neither: all, ordered."""

    async def set_quota(self, call: Call, quota: Quota) -> QuotaUse:
        """Set a quota, or remove one, which bounds nothing. Administrators only. What is there already is counted
        soon. Raises: BAD_REQUEST, NOT_FOUND, NOT_A_COLLECTION, TOO_LARGE (so many are kept)."""

    async def recount_quotas(self, call: Call) -> None:
        """Have all that quotas count counted anew, soon, and what differs set right. Administrators only."""

    async def heal_status(self, call: Call) -> HealStatus:
        """Report how far healing is: the repair leader's word where it can be had."""

    async def heal_order(self, call: Call, order: HealOrder) -> HealStatus:
        """Pause healing, resume it, or limit it, for all Librarians. Administrators only. Raises: BAD_REQUEST."""

    async def drill(self, call: Call, order: DrillOrder) -> DrillStatus:
        """Begin a drill, say whether one may begin, or call off the one that runs. It goes on by itself.

        Administrators, and for them other Librarians. Given again under the same request key, an order is answered
        with what came of it. Raises: CONFLICT where it would not be safe, naming every reason and its cure; UNAVAILABLE
        while nobody leads repair.
        """

    async def drill_status(self, call: Call) -> DrillStatus:
        """Report the present or last drill: the repair leader's word where it can be had."""

    async def health(self, call: Call) -> HealthSummary:
        """Report the state of repair."""

    async def fsck(self, call: Call, below: Guid, cursor: str) -> FsckPage:
        """Check the invariants of a piece of the metadata, reading only. Administrators only.

        `below`: an entry, for it and what is below it; "" for everything. Goes on while changes do: what it reports it
        has seen twice. Raises: NOT_FOUND, BAD_REQUEST (a cursor that is none).
        """

    async def mend(self, call: Call, findings: tuple[Finding, ...]) -> tuple[Mended, ...]:
        """Repair what `fsck` found and a safe repair is known for, each in one conditional transact. Administrators."""

    async def rebuild(self, call: Call, begin: bool, late: ServiceId = NOBODY) -> RebuildStatus:
        """Restore an empty namespace from the Shepherds alone, or (`begin` False) tell how far that is.

        It goes on by itself; begun again it goes over everything again, which changes nothing that is right.
        `late`: a Shepherd that it was made without, and is back: only what that one alone knew is brought in, while all
        goes on. Administrators only. Raises: NOT_EMPTY when the namespace is none to be rebuilt; NOT_SUPPORTED; of a
        `late` one NOT_FOUND when there is no such Shepherd, CONFLICT when no rebuild is through, or another recount
        is not.
        """
