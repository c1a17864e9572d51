"""Extended attributes: `user.*` as users' metadata, `chelonia.*` as what the cluster knows of a file.

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
"""The kernel asks for the attributes of what has any other, to judge who may read it: while the cluster is away too."""


class Xattrs:
    """Extended attributes of one mount. `status`: what `STATUS` of its root tells."""

    def __init__(self, cluster: MountedCluster, status: Callable[[], Mapping[str, object]]) -> None:
        self._cluster = cluster
        self._status = status

    async def get(self, inode: Inode, name: str) -> bytes:
        """One value. Raises: OSError ENODATA, ENOTSUP."""
        if name == STATUS and inode.number == ROOT:
            return json.dumps(self._status()).encode()
        if inode.gone or not name.startswith((USER, "chelonia.")):
            raise OSError(errno.ENODATA if name.startswith(USER) else errno.ENOTSUP, name)  # so `ls` asks once only
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
        """The names that are kept with it. What the cluster knows is not among them: programs that copy (`rsync -X`,
        `cp --preserve=xattr`, `tar --xattrs`) fail where they cannot set all that is listed."""
        if inode.gone:
            return []
        user = (await self._cluster.look(LogicalName(inode.guid, ()), Want.USER)).user
        return [USER + name.removeprefix(STORED) for name in sorted(user) if name.startswith(STORED)]

    async def set(self, inode: Inode, name: str, value: bytes | None) -> None:
        """Set a value, or take it away (None). Raises: OSError ENOTSUP, EPERM, EINVAL, E2BIG."""
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
    """A value as it is stored."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = ""
    return "t" + text if text.isprintable() and (text or not value) else "b" + base64.b64encode(value).decode()


def decoded(stored: str) -> bytes:
    """A stored value."""
    return base64.b64decode(stored[1:]) if stored.startswith("b") else stored[1:].encode()


def locations(looked: Looked) -> str:
    """The Shepherds from which a file can be read, nearest first; of a file of several blobs, those of each."""
    if looked.sources or not looked.blobs:
        return " ".join(urlsplit(source).netloc for source in looked.sources)
    each = (" ".join(urlsplit(source).netloc for source in sources) for sources in looked.blobs.values())
    return "\n".join(each)


def health(looked: Looked) -> str:
    """How many copies can be read, of how many wanted; of a file of several blobs, of that which has the fewest."""
    if not looked.attributes.size and not looked.blobs and not looked.sources:
        return "it has no bytes to keep copies of"
    counts = [len(sources) for sources in looked.blobs.values()] or [len(looked.sources)]
    return f"{min(counts)} of {looked.attributes.wanted} copies can be read"
