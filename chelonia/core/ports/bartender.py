"""The Bartender port: the users' operations, with the original's names and answers.

Every outcome carries the original's status string (`core.status` chooses it by kind). The kind and the cause beside it
let a client of ours exit with the right code and name the cure. The port `Files` has uploads that put
bytes first, so that no name exists before they are durable.
"""

from __future__ import annotations

from typing import Annotated, Protocol

import msgspec
from msgspec import Meta

from chelonia.core import bounds
from chelonia.core.caller import Call
from chelonia.core.metadata import Filter, Triple

Texts = Annotated[tuple[str, ...], Meta(max_length=bounds.BULK_ELEMENTS_MAX)]


class Outcome(msgspec.Struct, frozen=True):
    """Answer to one request element. `kind` is "" on success, else the `Kind`'s value; `cause` names the cure.

    On success `cause` may be a note for the user.
    """

    request_id: str
    status: str
    kind: str = ""
    cause: str = ""


class NameRequest(msgspec.Struct, frozen=True):
    """A request for one Logical Name: stat, delFile, unlink, unmakeCollection, unmakeMountpoint."""

    request_id: str
    ln: str


class StatOutcome(msgspec.Struct, frozen=True):
    """Answer to stat. `metadata`: empty when not found; one triple `error` / reason / text when not allowed."""

    request_id: str
    metadata: tuple[Triple, ...]
    kind: str = ""
    cause: str = ""


class ListRequest(msgspec.Struct, frozen=True):
    """A collection to list. `after`/`limit` page it (limit 0: whole, up to the bound of the old operation)."""

    request_id: str
    ln: str
    after: str = ""
    limit: int = 0


class ListedEntry(msgspec.Struct, frozen=True):
    """One entry of a listing; `name` is relative to the listed collection, with `/` when recursive.

    Without the caller's `read` right on the child, `metadata` holds only `entry/type`, `states/size` and times.
    """

    name: str
    guid: str
    metadata: tuple[Triple, ...]


class ListOutcome(msgspec.Struct, frozen=True):
    """`status`: `found`, `not found`, `is a file`, `denied`, ...; `after` continues a paged listing, "" at its end."""

    request_id: str
    status: str
    entries: tuple[ListedEntry, ...] = ()
    after: str = ""
    kind: str = ""
    cause: str = ""


class UndeleteRequest(msgspec.Struct, frozen=True):
    """undelete: a deleted file's former name (of several the last deleted), or `<GUID>`. `target_ln` "": that name."""

    request_id: str
    ln: str
    target_ln: str = ""


class DeletedEntry(msgspec.Struct, frozen=True):
    """A deleted file or collection that is kept until `until_ms`.

    `name`: relative to the listed collection, else a Logical Name; `type`: `file` or `collection`.
    """

    name: str
    guid: str
    owner: str
    size: int
    deleted_ms: int
    until_ms: int
    type: str = "file"


class ListDeletedOutcome(msgspec.Struct, frozen=True):
    """`status` as of `list`; `after` continues a paged listing, "" at its end (a page may be empty before it)."""

    request_id: str
    status: str
    entries: tuple[DeletedEntry, ...] = ()
    after: str = ""
    kind: str = ""
    cause: str = ""


class MakeRequest(msgspec.Struct, frozen=True):
    """makeCollection, or makeMountpoint when `url` is not empty."""

    request_id: str
    ln: str
    metadata: tuple[Triple, ...] = ()
    url: str = ""


class MoveRequest(msgspec.Struct, frozen=True):
    """move: `preserve_original` makes a hard link."""

    request_id: str
    source_ln: str
    target_ln: str
    preserve_original: bool = False


class PutFileRequest(msgspec.Struct, frozen=True):
    """putFile: metadata must hold states/size, checksum, checksumType, neededReplicas. `replace`: overwrite a file."""

    request_id: str
    ln: str
    metadata: tuple[Triple, ...]
    protocols: Texts
    replace: bool = False


class TransferOutcome(msgspec.Struct, frozen=True):
    """Answer to putFile, getFile, addReplica: `turl` under `protocol` when `status` is `done`.

    getFile also returns size and checksums, so that the client can verify the bytes. `turls` are further replicas
    to fall back on, nearest first.
    """

    request_id: str
    status: str
    turl: str = ""
    protocol: str = ""
    turls: tuple[str, ...] = ()
    size: int = -1
    checksum: str = ""
    checksum_type: str = ""
    kind: str = ""
    cause: str = ""


class GetFileRequest(msgspec.Struct, frozen=True):
    """getFile for one Logical Name. NOT_SUPPORTED unless the file is of one blob: one without bytes is not."""

    request_id: str
    ln: str
    protocols: Texts


class AddReplicaRequest(msgspec.Struct, frozen=True):
    """addReplica: for Shepherds only; the answer names a Shepherd that has no replica of the file yet."""

    request_id: str
    guid: str


class ModifyRequest(msgspec.Struct, frozen=True):
    """modify: `change_type` as in the Librarian (`set unset add setifvalue=<v>`)."""

    change_id: str
    ln: str
    change_type: str
    section: str
    property: str
    value: str


class Bartender(Protocol):
    """The users' front end. Faults (bad XML, too large, unavailable) are raised; everything else is an outcome."""

    async def stat(self, call: Call, requests: tuple[NameRequest, ...]) -> tuple[StatOutcome, ...]:
        """Return all metadata of entries the caller may read."""

    async def list(
        self, call: Call, requests: tuple[ListRequest, ...], needed: Filter, recursive: bool
    ) -> tuple[ListOutcome, ...]:
        """List collections; `needed` filters each child's metadata."""

    async def make_collection(self, call: Call, requests: tuple[MakeRequest, ...]) -> tuple[Outcome, ...]:
        """Make collections."""

    async def unmake_collection(self, call: Call, requests: tuple[NameRequest, ...]) -> tuple[Outcome, ...]:
        """Remove empty collections."""

    async def make_mountpoint(self, call: Call, requests: tuple[MakeRequest, ...]) -> tuple[Outcome, ...]:
        """Make mount points."""

    async def unmake_mountpoint(self, call: Call, requests: tuple[NameRequest, ...]) -> tuple[Outcome, ...]:
        """Remove mount points."""

    async def move(self, call: Call, requests: tuple[MoveRequest, ...]) -> tuple[Outcome, ...]:
        """Rename, move or hard-link entries."""

    async def put_file(self, call: Call, requests: tuple[PutFileRequest, ...]) -> tuple[TransferOutcome, ...]:
        """Begin uploads the original's way: a pending name and a TURL."""

    async def get_file(self, call: Call, requests: tuple[GetFileRequest, ...]) -> tuple[TransferOutcome, ...]:
        """Return TURLs to read files."""

    async def add_replica(
        self, call: Call, requests: tuple[AddReplicaRequest, ...], protocols: tuple[str, ...]
    ) -> tuple[TransferOutcome, ...]:
        """Return TURLs for further replicas. Shepherds only."""

    async def del_file(self, call: Call, requests: tuple[NameRequest, ...]) -> tuple[Outcome, ...]:
        """Remove files under all their names."""

    async def undelete(self, call: Call, requests: tuple[UndeleteRequest, ...]) -> tuple[Outcome, ...]:
        """Restore deleted files. For their owners, and administrators."""

    async def list_deleted(self, call: Call, requests: tuple[ListRequest, ...]) -> tuple[ListDeletedOutcome, ...]:
        """List the caller's deleted files that are kept: of collections, or with an empty name all."""

    async def unlink(self, call: Call, requests: tuple[NameRequest, ...]) -> tuple[Outcome, ...]:
        """Drop single names."""

    async def modify(self, call: Call, requests: tuple[ModifyRequest, ...]) -> tuple[Outcome, ...]:
        """Change whitelisted metadata, states and policies."""
