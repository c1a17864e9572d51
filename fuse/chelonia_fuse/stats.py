"""Attributes as a kernel sees them: mode, numbers, sizes, times. Pure."""

from __future__ import annotations

import stat
from typing import Final, NamedTuple

import msgspec

from chelonia.core.metadata import TYPE_COLLECTION, TYPE_FILE, TYPE_MOUNTPOINT, TYPE_SPECIAL, TYPE_SYMLINK
from chelonia.core.ports.files import UNSET, Attributes
from chelonia_fuse.inodes import UNWRITTEN_NS, Inode
from chelonia_fuse.options import Options

BLOCK: Final = 512
_KINDS: Final = {
    TYPE_FILE: (stat.S_IFREG, 0o644),
    TYPE_COLLECTION: (stat.S_IFDIR, 0o755),
    TYPE_MOUNTPOINT: (stat.S_IFLNK, 0o777),
    TYPE_SYMLINK: (stat.S_IFLNK, 0o777),
    TYPE_SPECIAL: (stat.S_IFIFO, 0o644),
}


class Shown(NamedTuple):
    """The fields of `stat`; a tuple, as a listing makes very many."""

    number: int
    mode: int
    links: int
    uid: int
    gid: int
    device: int
    size: int
    accessed_ns: int
    modified_ns: int
    changed_ns: int


def shown(inode: Inode, options: Options, *, uid: int, gid: int) -> Shown:
    """Return the fields of `stat` for an inode. `uid`, `gid`: for an entry without owner or group."""
    attributes, copy = inode.attributes, inode.copy
    size, modified, changed = size_of(attributes), attributes.modified_ns, attributes.changed_ns
    if copy is not None and (copy.changed or inode.gone):
        own = copy.setting
        kept = {name: getattr(own, name) for name in ("mode", "uid", "gid", "accessed_ns")}
        attributes = msgspec.structs.replace(
            attributes, **{name: value for name, value in kept.items() if value is not None}
        )
        size = copy.staged.size
        modified = modified if copy.modified_ns is None else copy.modified_ns
        changed = max(changed, copy.written_ns)
    return Shown(
        inode.number,
        mode_of(attributes, options.umask),
        0 if inode.gone else 1 if attributes.type == TYPE_COLLECTION else attributes.links,
        options.uid if options.uid >= 0 else uid if attributes.uid == UNSET else attributes.uid,
        options.gid if options.gid >= 0 else gid if attributes.gid == UNSET else attributes.gid,
        attributes.device,
        size,
        attributes.accessed_ns if attributes.accessed_ns > UNWRITTEN_NS else modified,
        max(modified, inode.touched_ns) if attributes.type == TYPE_COLLECTION else modified,
        max(changed, inode.touched_ns),
    )


def mode_of(known: Attributes, umask: int = -1) -> int:
    """Return type and permission bits."""
    kind, otherwise = _KINDS.get(known.type, (stat.S_IFREG, 0o644))
    bits = otherwise if known.mode == UNSET else stat.S_IMODE(known.mode)
    if known.type == TYPE_SPECIAL and known.mode != UNSET:
        kind = stat.S_IFMT(known.mode) or kind
    if known.type in (TYPE_SYMLINK, TYPE_MOUNTPOINT):
        bits = otherwise
    return kind | (bits & ~umask if umask >= 0 else bits)


def size_of(known: Attributes) -> int:
    """Return the size in bytes; for a link that of its target's text."""
    return len(known.target.encode()) if known.type in (TYPE_SYMLINK, TYPE_MOUNTPOINT) else known.size
