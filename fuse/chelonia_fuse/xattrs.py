"""Extended attributes: `user.*` as users' metadata, `chelonia.*` as the cluster's facts about a file.

Stored: property `x:<name>` of section `metadata`, value `t<text>` or `b<base64>`. Source: docs/formats/metadata.md.
"""

from __future__ import annotations

import base64
import errno
import json
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlsplit

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.metadata import TYPE_FILE
from chelonia.core.names import LogicalName
from chelonia.core.ports.files import Looked, Set, Want
from chelonia_fuse.cluster import MountedCluster
from chelonia_fuse.inodes import ROOT, Inode

USER: Final = "user."
STORED: Final = "x:"
CHECKSUM, LOCATIONS, HEALTH = "chelonia.checksum", "chelonia.locations", "chelonia.health"
STATUS: Final = "system.chelonia"
"""Attribute with the mount's status. For other prefixes the kernel first requests the entry's attributes, to check
rights, also while the cluster is away."""


class Xattrs:
    """Extended attributes of one mount. `status`: returns the value of `STATUS` of its root."""

    def __init__(self, cluster: MountedCluster, status: Callable[[], Mapping[str, object]]) -> None:
        self._cluster = cluster
        self._status = status

    async def get(self, inode: Inode, name: str) -> bytes:
        """Return one value. Raises: OSError ENODATA, ENOTSUP."""
        if name == STATUS and inode.number == ROOT:
            return json.dumps(self._status()).encode()
        if inode.gone or not name.startswith((USER, "chelonia.")):
            raise OSError(errno.ENODATA if name.startswith(USER) else errno.ENOTSUP, name)  # so `ls` tries once only
        place, is_file = LogicalName(inode.guid, ()), inode.attributes.type == TYPE_FILE
        if name.startswith(USER):
            values = (await self._cluster.look(place, Want.USER)).user
            stored = values.get(STORED + name.removeprefix(USER))
            if stored is None:
                raise OSError(errno.ENODATA, name)
            return decoded(stored)
        if name == CHECKSUM and is_file:
            sums = (await self._cluster.look(place, Want.CHECKSUMS)).checksums
            kinds = ("sha256", "md5", "adler32")
            found = next(((kind, value) for kind in kinds if (value := getattr(sums, kind))), None)
            if found is None:
                raise OSError(errno.ENODATA, name)
            return ":".join(found).encode()
        if name in (LOCATIONS, HEALTH) and is_file:
            looked = await self._cluster.look(place, Want.SOURCES)
            return (locations(looked) if name == LOCATIONS else health(looked)).encode()
        raise OSError(errno.ENODATA, name)

    async def names(self, inode: Inode) -> list[str]:
        """Return the names of users' attributes, without the cluster's."""
        if inode.gone:
            return []
        # Programs that copy (`rsync -X`, `cp --preserve=xattr`, `tar --xattrs`) fail if they cannot set all of them.
        user = (await self._cluster.look(LogicalName(inode.guid, ()), Want.USER)).user
        return [USER + name.removeprefix(STORED) for name in sorted(user) if name.startswith(STORED)]

    async def set(self, inode: Inode, name: str, value: bytes | None) -> None:
        """Set a value, or remove it (None). Raises: OSError ENOTSUP, EPERM, EINVAL, ENODATA, E2BIG."""
        if name.startswith("chelonia."):
            raise OSError(errno.EPERM, "the cluster says it; it cannot be set")
        if not name.startswith(USER) or (inode.gone and value is not None):
            raise OSError(errno.ENOTSUP, name)
        if name == USER:
            raise OSError(errno.EINVAL, "it has no name")
        if value is None:
            await self.get(inode, name)
        stored = None if value is None else encoded(value)
        change = Set(LogicalName(inode.guid, ()), user={STORED + name.removeprefix(USER): stored})
        try:
            done = await self._cluster.change(change)
        except CheloniaError as error:
            if error.kind is Kind.TOO_LARGE:
                raise OSError(errno.E2BIG, error.cause) from error  # EFBIG is of files
            raise
        if done.attributes is not None:
            inode.learn(done.attributes)


def encoded(value: bytes) -> str:
    """Encode a value for the store."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = ""
    return "t" + text if text.isprintable() and (text or not value) else "b" + base64.b64encode(value).decode()


def decoded(stored: str) -> bytes:
    """Decode a stored value."""
    return base64.b64decode(stored[1:]) if stored.startswith("b") else stored[1:].encode()


def locations(looked: Looked) -> str:
    """Return the Shepherds from which a file can be read, nearest first; one line for each of several blobs."""
    if looked.sources or not looked.blobs:
        return " ".join(urlsplit(source).netloc for source in looked.sources)
    each = (" ".join(urlsplit(source).netloc for source in sources) for sources in looked.blobs.values())
    return "\n".join(each)


def health(looked: Looked) -> str:
    """Return in words how many of the wanted copies can be read; of several blobs the one with the fewest counts."""
    if not looked.attributes.size and not looked.blobs and not looked.sources:
        return "it has no bytes to keep copies of"
    counts = [len(sources) for sources in looked.blobs.values()] or [len(looked.sources)]
    return f"{min(counts)} of {looked.attributes.wanted} copies can be read"
