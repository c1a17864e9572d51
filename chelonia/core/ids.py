"""Identifiers as types, and the spelling each must have on the wire.

Ids come from an injected source (`core.timing.clock.Ids`), never from here; this module only names and checks them.
Entries are named by a GUID (`0` for the root, else a lower-case UUID). System objects live under `sys:`, blobs
under `blob:`, contents under `content:`. No Logical Name can spell these prefixes, so no user can name the objects.
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
    """Return the A-Hash object that holds the facts and locations of `blob`."""
    return ObjectId(BLOB_PREFIX + blob)


def blob_id(obj: ObjectId) -> BlobId:
    """Return the blob that `obj` holds."""
    return BlobId(obj.removeprefix(BLOB_PREFIX))


def content_object(content: ContentId) -> ObjectId:
    """Return the A-Hash object that holds the extents of `content`."""
    return ObjectId(CONTENT_PREFIX + content)


def content_id(obj: ObjectId) -> ContentId:
    """Return the content that `obj` holds."""
    return ContentId(obj.removeprefix(CONTENT_PREFIX))


def shepherd_object(shepherd: ServiceId) -> ObjectId:
    """Return a Shepherd's object: replicas (`file`), erasure outbox (`erase`), `report` number, `node` state."""
    return ObjectId(SHEPHERD_PREFIX + shepherd)


SERVICES_OBJECT = ObjectId("sys:services")
"""Registered identities: section = role, property = `<service id> <DN>`, value `approved`, `waiting`, `withdrawn`."""
TREE_OBJECT = ObjectId("sys:tree")
"""Section `epoch`, property `tree`: every move or link of a collection bumps it."""
REPAIR_OBJECT = ObjectId("sys:repair")
"""Section `lease`, properties `holder` and `until_ms`: the Librarian that leads repair."""
TRASH_OBJECT = ObjectId("sys:trash")
"""Deleted files that are kept: `due` lists them by the time they go, `formerly` by where they were."""
PENDING_OBJECT = ObjectId("sys:pending")
"""Uploads that are not complete: `due` lists them by the time their reservation ends."""
SNAPSHOTS_OBJECT = ObjectId("sys:snapshots")
"""Namespace snapshots: `snapshot` names manifest and segments by time, `blobs` every blob that holds any of them."""
REBUILD_OBJECT = ObjectId("sys:rebuild")
"""The last rebuild from bytes. Section `rebuild`: `state` (`running`, `done`), `begun_ms` and the records it went by.
Section `shepherds`: those that have reported all they know (`told`), and those it did without (`away`)."""
OVERWRITTEN_OBJECT = ObjectId("sys:overwritten")
"""Kept while a rebuild runs, and for as long as it misses a Shepherd. Section `formerly`: blobs that newer bytes of
their file (the value) have replaced, deleted blobs and entries (value `deleted`), and notes of pieces of files."""
QUOTAS_OBJECT = ObjectId("sys:quotas")
"""Quotas: `tally` names each with its bounds and counters; every change of them changes the object's version."""
QUOTA_PREFIX = "sys:quota:"
CLUSTER_OBJECT = ObjectId("sys:cluster")
"""Section `cluster`: `id`, `generation`, `created_ms`, `record_key` (signs replica records)."""
