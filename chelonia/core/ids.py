"""Identifiers as types, and the spelling each must have on the wire.

Ids come from an injected source (`core.clock.Ids`), never from here; this module only names and checks them.
Entries are named by a GUID (`0` for the root, else a lower-case UUID). System objects live under `sys:`, blobs
under `blob:`, contents under `content:`, prefixes that no Logical Name can spell, so no user can name them.
"""

from __future__ import annotations

import re
from typing import NewType

from chelonia.core.errors import CheloniaError, Kind

Guid = NewType("Guid", str)
"""Identity of an entry (file, collection or mount point): `0` or a UUID."""
BlobId = NewType("BlobId", str)
"""Identity of one immutable sequence of bytes: a UUID."""
ContentId = NewType("ContentId", str)
"""Identity of the extents of a file of several blobs: a UUID."""
ReferenceId = NewType("ReferenceId", str)
"""Identity of one replica on one Shepherd: a UUID."""
ServiceId = NewType("ServiceId", str)
"""Identity of one service, its public URL (as in the original): `https://host:port/Shepherd`."""
ObjectId = NewType("ObjectId", str)
"""Key of an A-Hash object: a GUID, `blob:<BlobId>`, `content:<ContentId>` or `sys:...`."""
Dn = NewType("Dn", str)
"""Distinguished Name in slash form, or `ANONYMOUS`."""
RequestKey = NewType("RequestKey", str)
"""Client-chosen key (at most 128 printable ASCII characters) under which a change applies once."""
Ms = NewType("Ms", int)
"""Integer milliseconds: since the Unix epoch for instants, plain for durations."""

ROOT = Guid("0")
ANONYMOUS = Dn("ANONYMOUS")
BLOB_PREFIX = "blob:"
CONTENT_PREFIX = "content:"
SHEPHERD_PREFIX = "sys:shepherd:"

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\Z")
_KEY = re.compile(r"[!-~]{1,128}\Z")


def is_uuid(text: str) -> bool:
    """Tell whether `text` is a lower-case UUID."""
    return bool(_UUID.match(text))


def is_guid(text: str) -> bool:
    """Tell whether `text` names an entry: `0` or a lower-case UUID."""
    return text == ROOT or is_uuid(text)


def parse_guid(text: str) -> Guid:
    """Return `text` as a GUID.

    Raises: BAD_NAME if it is neither `0` nor a lower-case UUID (system ids cannot be spelled this way).
    """
    if not is_guid(text):
        raise CheloniaError(Kind.BAD_NAME, subject=text[:80], cause="a GUID is 0 or a UUID in lower case")
    return Guid(text)


def parse_reference(text: str) -> ReferenceId:
    """Return `text` as the id of a replica. Raises: BAD_REQUEST unless it is a lower-case UUID: it names files."""
    if not is_uuid(text):
        raise CheloniaError(Kind.BAD_REQUEST, subject=text[:80], cause="a reference is a UUID in lower case")
    return ReferenceId(text)


def parse_request_key(text: str) -> RequestKey:
    """Return `text` as a request key. Raises: BAD_REQUEST unless 1 to 128 printable ASCII characters."""
    if not _KEY.match(text):
        raise CheloniaError(Kind.BAD_REQUEST, cause="a request key is 1 to 128 printable ASCII characters")
    return RequestKey(text)


def blob_object(blob: BlobId) -> ObjectId:
    """The A-Hash object that holds the facts and locations of `blob`."""
    return ObjectId(BLOB_PREFIX + blob)


def blob_id(obj: ObjectId) -> BlobId:
    """The blob whose object this is."""
    return BlobId(obj.removeprefix(BLOB_PREFIX))


def content_object(content: ContentId) -> ObjectId:
    """The A-Hash object that holds the extents of a file of several blobs."""
    return ObjectId(CONTENT_PREFIX + content)


def content_id(obj: ObjectId) -> ContentId:
    """The content whose object this is."""
    return ContentId(obj.removeprefix(CONTENT_PREFIX))


def shepherd_object(shepherd: ServiceId) -> ObjectId:
    """A Shepherd's A-Hash object: replicas (`file`), erasure outbox (`erase`), `report` number and `node` state."""
    return ObjectId(SHEPHERD_PREFIX + shepherd)


SERVICES_OBJECT = ObjectId("sys:services")
"""Registered identities: section = role, property = `<service id> <DN>`, value `approved`, `waiting`, `withdrawn`."""
TREE_OBJECT = ObjectId("sys:tree")
"""Section `epoch`, property `tree`: bumped by every move or link of a collection."""
REPAIR_OBJECT = ObjectId("sys:repair")
"""Section `lease`: `holder`, `until_ms`: which Librarian leads repair."""
TRASH_OBJECT = ObjectId("sys:trash")
"""Deleted files that are kept: `due` by when they go, `formerly` by where they were."""
PENDING_OBJECT = ObjectId("sys:pending")
"""Uploads that are not complete: `due` by when their reservation ends."""
SNAPSHOTS_OBJECT = ObjectId("sys:snapshots")
"""Namespace snapshots: `snapshot` names manifest and segments by time, `blobs` all blobs that hold any of them."""
REBUILD_OBJECT = ObjectId("sys:rebuild")
"""Section `rebuild`: `state` (`running`, `done`) and `begun_ms` of the last rebuild from bytes, and what it was
made by; section `shepherds`: which have told what they know (`told`), and which it was made without (`away`)."""
OVERWRITTEN_OBJECT = ObjectId("sys:overwritten")
"""While a rebuild goes on, and as long as a Shepherd is missing in it: section `formerly`, the blobs that newer bytes
of their file (value) have replaced, and blobs and entries that were deleted (value `deleted`)."""
QUOTAS_OBJECT = ObjectId("sys:quotas")
"""Quotas: `tally` names each with its bounds and counters; its version changes with every change of them."""
QUOTA_PREFIX = "sys:quota:"
CLUSTER_OBJECT = ObjectId("sys:cluster")
"""Section `cluster`: `id`, `generation`, `created_ms`, `record_key` (signs replica records)."""
