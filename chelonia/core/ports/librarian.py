"""The Librarian port: the namespace, the uploads that become names, and the reports of Shepherds.

`new get traverseLN modifyMetadata remove report` are the original's operations. The others make every namespace
operation one transact. The Bartender decides the caller's rights, and hands over the versions it decided on (`Expect`).
The Librarian makes them conditions of the transact, so that a revoked right is not used and a lost race is a CONFLICT.
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
    """`new`: an entry object to make without a name. Metadata must hold `entry/type`; `entry/GUID` is optional."""

    request_id: str
    metadata: tuple[Triple, ...]


class NewOutcome(msgspec.Struct, frozen=True):
    """`success`: `success`, `failed: no type given`, `failed: entry exists`, `failed: <reason>`."""

    request_id: str
    guid: str
    success: str


class TraversedStep(msgspec.Struct, frozen=True):
    """One component followed: its name (empty for the start) and the entry it led to."""

    part: str
    guid: Guid


class Traversal(msgspec.Struct, frozen=True):
    """The part of a Logical Name that could be followed.

    `steps` starts with the start itself (`part` = "" or the GUID as written). `complete`: nothing is left in `rest`.
    `last` is the whole object where the walk ended, with `locations` as readers see them (`offline` included). Its
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
    """Changes on one Shepherd since report `number` - 1 of the same boot.

    Report 1 of a new boot follows any report of an older boot. `number` 0: an unnumbered heartbeat of the old form.
    `store`: the reported store, "" from older software; the Librarian refuses one that differs from the recorded one.
    """

    shepherd: ServiceId
    boot: int
    number: int
    replicas: Annotated[tuple[ReportedReplica, ...], Meta(max_length=bounds.REPORT_ENTRIES_MAX)]
    store: str = ""


class ReportAnswer(msgspec.Struct, frozen=True):
    """The answer to a report.

    - `accepted`: the number of the last report applied; the sender repeats from there
    - `unknown`: references whose blob the namespace does not know (never erased for that alone)
    - `next_report_ms`: when to report again; -1 requests a reconciliation, as in the original
    - `before_boot`, `before_number`: answers to the first report of a boot, also a repeated one. They name the last
      report of the same store applied before it that was not a first one; 0 when none is known.
      To a report of an older boot they are the newest boot that has reported, and 0
    - `obeyed`: the sequence of the newest order to erase that the Shepherd has confirmed
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
    """An entry to make together with its name. `parent` "" makes the root. `sections`: policy, metadata, states, ...
    `described`: the answer is the entry, not its GUID alone."""

    parent: Guid
    name: str
    type: str
    owner: Dn
    sections: Sections
    expect: Expect = ()
    described: bool = False


class Unlink(msgspec.Struct, frozen=True):
    """One name to remove. The last name of a file takes the file with it, as `Delete` does."""

    parent: Guid
    name: str
    child: Guid
    expect: Expect = ()


class Delete(msgspec.Struct, frozen=True):
    """A file or mount point to remove with all its names. A file stays in the trash for a while, then it is erased."""

    guid: Guid
    expect: Expect = ()


class Undelete(msgspec.Struct, frozen=True):
    """A file, or empty collection, to restore from the trash under one name; its other former names stay free."""

    guid: Guid
    parent: Guid
    name: str
    expect: Expect = ()


class Trashed(msgspec.Struct, frozen=True):
    """A file or collection in the trash, under one of its former names: `name` in `parent`, which may be there too.

    `until_ms`: when it is erased; `size` -1 when unknown. `type`: its former type.
    """

    guid: Guid
    owner: Dn
    parent: Guid
    name: str
    size: int
    deleted_ms: Ms
    until_ms: Ms
    type: str = TYPE_FILE

    @property
    def mark(self) -> str:
        """The mark from which a page goes on behind it."""
        return former_key(self.parent, self.name, self.deleted_ms, self.guid)


def former_key(parent: str, name: str, deleted: int, guid: str) -> str:
    """Return the property of the index of former names: ordered by collection, name, time of deletion."""
    return f"{parent}/{name}/{deleted:013d} {guid}"


class TrashPage(msgspec.Struct, frozen=True):
    """A page of the trash, ordered by former parent and name, of one name in the order of deletion. `after` continues
    it; empty when this is the last page."""

    entries: tuple[Trashed, ...]
    after: str


class Unmake(msgspec.Struct, frozen=True):
    """An empty collection to remove with its names. It stays in the trash for a while. `spares`: a quota keeps it, and
    open uploads in parts that it lists; else they are given up with it."""

    guid: Guid
    expect: Expect = ()
    spares: bool = False


class MoveEntry(msgspec.Struct, frozen=True):
    """A new name for `child`: `target_name` in `target_parent`. The source name goes unless `keep` (hard link).

    `over`: `refuse`, `replace` or `exchange`, as in `core.ports.files.Over`: for the entry `there`, which
    has the name now ("" where nothing has it). `described`: the answer is the moved entry.
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
    """Properties of one entry to set and unset together; `timestamps/changed` follows. The sections are those that
    `MakeEntry` may give. `described`: the answer is the changed entry."""

    guid: Guid
    put: tuple[Triple, ...] = ()
    drop: tuple[tuple[str, str], ...] = ()
    expect: Expect = ()
    described: bool = False


class SetWanted(msgspec.Struct, frozen=True):
    """A file's number of wanted replicas, to change on the file and on its blobs together."""

    guid: Guid
    wanted: int
    expect: Expect = ()


# --- nodes ---------------------------------------------------------------------------------------------------------


class Arriving(msgspec.Struct, frozen=True):
    """A claimed copy that a Shepherd receives: `here` of its bytes have arrived."""

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
      difference (0: not yet). Until then the metadata on its replicas are unconfirmed, and no other copy is given up
      for them
    - `store` is the id of its store ("" from older software); `replaces`: an administrator put it in another's place
    - `boots` are the boots before this one on the same disk, newest first
    - `trouble`: why it cannot report on its replicas now: such a Shepherd counts as away
    - `leaving`: this is the last heartbeat of this boot; `starting`: its disk is not scanned, and its address refuses
    - `reclaimable_bytes`: of quarantine, unfinished uploads and replicas waiting for erasure
    - `arriving`: the copies whose bytes are arriving
    - `copies_at_once_max`: repair copies that it sends, and as many that it takes, at once by its own configuration;
      0: older software
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
"""`HeartbeatAnswer.refused`: another process is alive under this identity; a later heartbeat may succeed."""
REFUSED_FORGOTTEN = "forgotten"
"""`HeartbeatAnswer.refused`: an administrator has declared this Shepherd lost for good."""


class HeartbeatAnswer(msgspec.Struct, frozen=True):
    """A Librarian's answer to a heartbeat.

    - `lease_ms`: without another heartbeat in this time the Shepherd counts as away
    - `known`: it is approved
    - `accepted`: number of the last report applied for this boot, 0 where this Librarian knows of none
    - `position`: newest metadata position seen
    - `refused`: a word of `REFUSED_...` when it does not count as this Shepherd's heartbeat, and `cause` why
    - `copy_bytes_per_s_max`: of all repair copies it sends together, and as many of all it takes, 0: no limit
    - `copies_at_once_max`: repair copies that it may send, and as many that it may take, at once, 0: as configured
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
    `trouble`: for a person: its disk is gone, a second process claims its name, its store changed, it comes and goes.
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
    """The metadata of one replica on a Shepherd; `state` None when its blob is gone."""

    reference: ReferenceId
    blob: BlobId
    state: ReplicaState | None


class InventoryPage(msgspec.Struct, frozen=True):
    """An ordered page of a Shepherd's replicas. `after` continues it; empty when this is the last page."""

    items: tuple[InventoryItem, ...]
    after: str


class ServiceRecord(msgspec.Struct, frozen=True):
    """A registered service identity. `forgotten`: declared lost for good, and never accepted again. `withdrawn`: an
    administrator refused it, and may still approve it. Neither approved nor one of these, it waits."""

    role: Role
    dn: Dn
    service_id: ServiceId
    approved: bool
    forgotten: bool = False
    withdrawn: bool = False


class HealthSummary(msgspec.Struct, frozen=True):
    """Repair as this Librarian sees it; the leader's view is complete.

    - `exposed`: blobs with fewer verified copies than wanted
    - `queued`: blobs to be planned, or waiting for a place
    - `copying`: copies under way
    - `erasing`: erasures found in the outboxes
    - `replicas`: by state, `offline` included, as counted in the leader's last whole pass over all blobs
    - `paused_by`: the administrator who paused healing, "" while it goes on
    - `held_back`: blobs whose surplus the rate guard keeps, because more would be erased than users have deleted
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
    """The severity of a finding of fsck."""

    DAMAGE = "damage"
    """Something is lost: bytes without a good copy, a file without its blob. No repair here can bring it back."""
    DISAGREEMENT = "disagreement"
    """Records that should agree do not: no interrupted operation leaves this behind."""
    WORK = "work"
    """Work that healing has yet to do: not a fault, and gone by itself."""


class Finding(msgspec.Struct, frozen=True):
    """One finding of fsck: the broken invariant (`rule`), its object, and the `subject` there (a name, a location, a
    reference; "" for the object itself). `mendable`: a safe repair is known."""

    object: ObjectId
    rule: str
    subject: str
    severity: Severity
    text: str
    mendable: bool = False

    def __str__(self) -> str:
        return f"{self.object}: {self.text}"


class FsckPage(msgspec.Struct, frozen=True):
    """The findings of a piece of fsck. `cursor` continues it, "" at the end; `examined`: objects checked in it.
    `objects`: about how many there are (0: unknown, as below a collection)."""

    findings: tuple[Finding, ...]
    cursor: str
    examined: int
    objects: int = 0


class Mended(msgspec.Struct, frozen=True):
    """The outcome of a repair of a finding: whether it was `done`, and the repair or the reason against it."""

    done: bool
    what: str


class RebuildStatus(msgspec.Struct, frozen=True):
    """The state of a rebuild.

    - `stage`: `idle`, the present stage, `done` or `failed` (then `cause` says why)
    - `done` of `total` in this stage (0: unknown)
    - `counts`: numbers of what it found, by kind
    - `notes`: advice for a person
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
        """Make an entry. Returns: GUID, or as `change_entry`. Raises: EXISTS, NO_PARENT, NOT_A_COLLECTION, CONFLICT."""

    async def begin_put(self, call: Call, request: BeginPut) -> Begun:
        """Begin an upload, in place of its owner's pending one. Raises: EXISTS (also pending), NO_PARENT, CONFLICT."""

    async def commit_put(self, call: Call, guid: Guid, receipts: tuple[Receipt, ...]) -> Committed:
        """Turn a pending upload into a file (Shepherds call this). Raises: NOT_FOUND, EXPIRED, CHECKSUM, CONFLICT."""

    async def commit_file(self, call: Call, request: CommitFile) -> Committed:
        """Make the file of a bytes-first upload. Raises: EXISTS, NO_PARENT, CHECKSUM, CONFLICT."""

    async def splice(self, call: Call, request: SpliceFile) -> Guid | StoredObject:
        """Lay extents over a file or make one of them. Returns: its GUID, or as `change_entry`.

        Raises: as `commit_file`, and BAD_REQUEST (extents that are no content), TOO_LARGE.
        """

    async def extents(self, call: Call, guid: Guid, at: int, end: int) -> ExtentPage:
        """Return the extents of a file that meet [`at`, `end`), at most `bounds.EXTENTS_PAGE`. Raises: NOT_FOUND."""

    async def open_upload(self, call: Call, request: OpenUpload) -> UploadId:
        """Open an upload in parts; its name shows nothing of it. Raises: NO_PARENT, CONFLICT, TOO_LARGE."""

    async def put_part(self, call: Call, request: PutPart) -> str:
        """Take a piece as a part. Returns: its etag.

        Raises: NOT_FOUND (no such upload of this owner for this name), BAD_REQUEST, as `commit_file`.
        """

    async def seal_upload(self, call: Call, request: SealUpload) -> Guid | StoredObject:
        """Make the parts the content of a file, all at once for readers. Returns: as `splice`.

        Raises: NOT_FOUND, INCOMPLETE (a part that is missing, or has another etag), BAD_REQUEST (an invalid order, a
        part that is too small), TOO_LARGE, as `commit_file`.
        """

    async def copy_file(self, call: Call, request: CopyFile) -> Guid | StoredObject:
        """Give a file the bytes of another by reference, all at once for readers. Returns: as `splice`.

        Raises: NOT_FOUND, NOT_A_FILE, NO_REPLICA (a file without known bytes), TOO_LARGE (too many files share a blob
        already), as `commit_file`.
        """

    async def drop_upload(self, call: Call, upload: UploadId) -> None:
        """Drop an upload; its parts go page by page. Raises: NOT_FOUND, CONFLICT."""

    async def uploads(self, call: Call, within: Guid, prefix: str, after: str, limit: int) -> UploadPage:
        """Return the open uploads that a collection lists, of keys that begin with `prefix`."""

    async def parts(self, call: Call, upload: UploadId, after: int, limit: int) -> PartPage:
        """Return the parts of an open upload with numbers above `after`. Raises: NOT_FOUND."""

    async def unlink(self, call: Call, request: Unlink) -> None:
        """Remove one name. Raises: NOT_FOUND, CONFLICT."""

    async def unlink_all(self, call: Call, requests: tuple[Unlink | None, ...]) -> tuple[int, ...]:
        """Remove names together, in one transact: those of entries with a single name, but of no collections.

        Returns: the indices in `requests` of the removed names, also if a first try removed them; the others are
        unchanged, for a call each. The memo of the call's key has these indices, even if there are none.
        """

    async def delete(self, call: Call, request: Delete) -> None:
        """Remove a file with all its names. Raises: NOT_FOUND, NOT_A_FILE, CONFLICT."""

    async def unmake(self, call: Call, request: Unmake) -> None:
        """Remove an empty collection. Raises: NOT_FOUND, NOT_A_COLLECTION, NOT_EMPTY, CONFLICT."""

    async def move(self, call: Call, request: MoveEntry) -> StoredObject | None:
        """Move an entry. Returns: as `change_entry`. Raises: NOT_FOUND, EXISTS, INVALID_TARGET (a cycle), CONFLICT."""

    async def undelete(self, call: Call, request: Undelete) -> None:
        """Restore an entry. Raises: NOT_FOUND (not in the trash), EXISTS, NO_PARENT, NOT_A_COLLECTION, CONFLICT."""

    async def trash(self, call: Call, under: str, after: str, limit: int) -> TrashPage:
        """Return a page of the trash.

        `under`: "" for all, `<GUID>/` for the former entries of a collection, `<GUID>/<name>/` for those of that name
        there, a bare GUID for one file.
        """

    async def change_entry(self, call: Call, request: ChangeEntry) -> StoredObject | None:
        """Change several properties of one entry in one transact.

        Returns: if `described`, the entry with all that makes up its attributes, as the transact left it; None when
        unknown, as after a retry. Raises: NOT_FOUND, BAD_REQUEST, CONFLICT.
        """

    async def set_wanted(self, call: Call, request: SetWanted) -> None:
        """Change the number of wanted replicas. Raises: NOT_FOUND, NOT_A_FILE, CONFLICT."""

    async def below(self, call: Call, ask: Below) -> BelowPage:
        """Return a page of the entries below a collection, as readers see them. Raises: NOT_FOUND."""

    async def access_key(self, call: Call, key_id: str) -> SealedKey | None:
        """Return a user's access key, or None."""

    async def access_keys(self, call: Call) -> tuple[SealedKey, ...]:
        """Return all access keys, ordered by id."""

    async def keep_access_key(self, call: Call, sealed: SealedKey) -> None:
        """Store a new access key. Raises: EXISTS, TOO_LARGE."""

    async def drop_access_key(self, call: Call, key_id: str) -> None:
        """Remove an access key. Raises: NOT_FOUND."""

    async def recall(self, call: Call) -> str | None:
        """Return the memo of an applied namespace operation under this caller's request key, or None."""

    async def heartbeat(self, call: Call, beat: Heartbeat) -> HeartbeatAnswer:
        """Note that a Shepherd is alive."""

    async def hearing(self, call: Call, shepherds: tuple[ServiceId, ...]) -> tuple[HealingWord, ...]:
        """Return this Librarian's own observation of each Shepherd, in order, after a fresh check of each. For other
        Librarians, and administrators."""

    async def consider(self, call: Call, blobs: tuple[BlobId, ...]) -> None:
        """Plan these blobs again: another Librarian found work for the repair leader. At most
        `bounds.BULK_ELEMENTS_MAX`; unknown ones are skipped. For other Librarians, and administrators."""

    async def inventory(self, call: Call, shepherd: ServiceId, after: str, limit: int) -> InventoryPage:
        """Return a page of the replicas that the metadata have on a Shepherd, for its reconciliation after a start."""

    async def nodes(self, call: Call) -> tuple[NodeView, ...]:
        """Return all known Shepherds, ordered by service id."""

    async def services(self, call: Call) -> tuple[ServiceRecord, ...]:
        """Return all registered identities, ordered by role and id. Administrators and services."""

    async def approve(self, call: Call, record: ServiceRecord) -> None:
        """Approve (or with `approved` False, withdraw) a service identity. Administrators only."""

    async def maintenance(self, call: Call, shepherd: ServiceId, until_ms: Ms) -> None:
        """Announce planned absence: no repair for this node before `until_ms` (0 ends it). Administrators only."""

    async def drain(self, call: Call, shepherd: ServiceId, on: bool) -> None:
        """Move all copies off a Shepherd, which takes no new ones (with `on` False: no longer). Administrators only.
        Raises: NOT_FOUND."""

    async def forget(
        self, call: Call, shepherd: ServiceId, after: str, check_only: bool, accept_loss: bool
    ) -> ForgetPage:
        """Declare a Shepherd lost for good, a page at a time. Its locations go, then its orders to erase, and at the
        end its identity, which is never accepted again. Administrators only.

        Args:
            after: `after` of the page before; "" to begin.
            check_only: change nothing, only report what would be lost.
            accept_loss: go on with files whose only verified copy within reach it has; without it they are
                kept, and the Shepherd with them.
        For a Shepherd already forgotten, it goes through the records written of it since.
        Raises: NOT_FOUND; CONFLICT while it is alive.
        """

    async def quotas(self, call: Call, owner: Dn, within: Guid) -> tuple[QuotaUse, ...]:
        """Return the quotas, with their use, that count the bytes `owner` writes into the collection `within`. An empty
        argument is left out; if both are, return all, ordered."""

    async def set_quota(self, call: Call, quota: Quota) -> QuotaUse:
        """Set a quota; one without bounds removes it, and a bound that is `UNCHANGED` stays. Existing files are counted
        soon. Administrators only. Raises: BAD_REQUEST, NOT_FOUND, NOT_A_COLLECTION, TOO_LARGE (too many quotas)."""

    async def recount_quotas(self, call: Call) -> None:
        """Start a recount of all quotas, which corrects them. Administrators only."""

    async def heal_status(self, call: Call) -> HealStatus:
        """Report the state of healing: the repair leader's view where it can be reached."""

    async def heal_order(self, call: Call, order: HealOrder) -> HealStatus:
        """Pause healing, resume it, or limit it, for all Librarians. Administrators only. Raises: BAD_REQUEST."""

    async def drill(self, call: Call, order: DrillOrder) -> DrillStatus:
        """Begin a drill, say whether one may begin, or call off the running one. It goes on by itself.

        Administrators, and for them other Librarians. An order repeated under the same request key gets the outcome of
        the first. Raises: CONFLICT where it would not be safe, naming every reason and its cure; UNAVAILABLE
        while nobody leads repair.
        """

    async def drill_status(self, call: Call) -> DrillStatus:
        """Report the present or last drill: the repair leader's view where it can be reached."""

    async def health(self, call: Call) -> HealthSummary:
        """Report the state of repair."""

    async def fsck(self, call: Call, below: Guid, cursor: str) -> FsckPage:
        """Check the invariants of a piece of the metadata, reading only. Administrators only.

        `below`: an entry, for it and all below it; "" for everything. Changes may go on meanwhile: it reports only what
        it has seen twice. Raises: NOT_FOUND, BAD_REQUEST (an invalid cursor).
        """

    async def mend(self, call: Call, findings: tuple[Finding, ...]) -> tuple[Mended, ...]:
        """Repair the findings of `fsck` with a known safe repair, each in one conditional transact. Administrators."""

    async def rebuild(self, call: Call, begin: bool, late: ServiceId = NOBODY) -> RebuildStatus:
        """Restore an empty namespace from the Shepherds alone, or (`begin` False) report its progress.

        It goes on by itself; begun again it repeats everything, which changes nothing that is right.
        `late`: a Shepherd that it missed, and that is back: it adds only what that one alone knows, while all goes on.
        Administrators only. Raises: NOT_EMPTY when the namespace is none to be rebuilt; NOT_SUPPORTED. With `late`:
        NOT_FOUND when there is no such Shepherd, CONFLICT when no rebuild is through, or another recount is not.
        """
