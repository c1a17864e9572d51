"""Settings of a door, as stored sections of an entry. Pure. `core.contents.attributes` reads them.

Stored: `posix` (`mode`, `uid`, `gid`, `device`, decimal; `accessed` as the times), `timestamps` (`created`, `modified`,
`changed`: Unix seconds with up to nine decimals), `node/target`, `mountpoint/externalURL`. Source:
`docs/formats/metadata.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from chelonia.bartender.rights import RIGHTS
from chelonia.core import bounds
from chelonia.core.cluster.replicas import Checksums
from chelonia.core.contents.attributes import NS_PER_S
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import BlobId
from chelonia.core.metadata import Filter, Needed, StoredObject, Triple
from chelonia.core.ports.files import LEAVE, Setting

DESCRIBED: Final[Filter] = (
    *RIGHTS, Needed("timestamps"), Needed("posix"), Needed("mountpoint"), Needed("blobs"), Needed("content"),
    Needed("locks"), Needed("tally", "changed"),
)  # fmt: skip
"""Sections of an entry that its attributes, and rights, need."""

MODE_MAX: Final = 0o177777
ID_MAX: Final = 2**32 - 2
"""Largest id of a user or group: 2**32 - 1 means "leave it" in POSIX."""


def etag_fact(etag: str, blob: BlobId) -> dict[str, dict[str, str]]:
    """Return the section that stores a writer's etag for the bytes of a blob; later bytes have another blob."""
    return {"states": {"etag": f"{etag} {blob}"}} if etag else {}


def checksums_of(stored: StoredObject) -> Checksums:
    """Return the checksum of record of a file, in its field."""
    kind, value = stored.value("states", "checksumType"), stored.value("states", "checksum")
    fields = {kind: value} if kind in ("sha256", "md5", "adler32") else {}
    return Checksums(**fields)


def setting_triples(setting: Setting) -> tuple[Triple, ...]:
    """Return the triples of a setting. Raises: BAD_REQUEST for a number out of bounds."""
    if setting == LEAVE:
        return ()
    numbers = (
        ("mode", setting.mode, MODE_MAX),
        ("uid", setting.uid, ID_MAX),
        ("gid", setting.gid, ID_MAX),
        ("device", setting.device, 2**63 - 1),
    )
    out = []
    for name, value, most in numbers:
        if value is not None:
            _check(name, value, most)
            out.append(Triple("posix", name, str(value)))
    if setting.accessed_ns is not None:
        out.append(Triple("posix", "accessed", time_text(setting.accessed_ns, "accessed")))
    if setting.modified_ns is not None:
        out.append(Triple("timestamps", "modified", time_text(setting.modified_ns, "modified")))
    return tuple(out)


def user_triples(user: Mapping[str, str]) -> tuple[Triple, ...]:
    """Return users' metadata as triples."""
    return tuple(Triple("metadata", name, value) for name, value in sorted(user.items()))


def rule_triples(policy: Mapping[str, str]) -> tuple[Triple, ...]:
    """Return the rules of a policy as triples."""
    return tuple(Triple("policy", identity, actions) for identity, actions in sorted(policy.items()))


def time_text(ns: int, name: str) -> str:
    """Return nanoseconds as Unix seconds with nine decimals. Raises: BAD_REQUEST outside 1970 to `TIME_S_MAX`."""
    _check(name, ns, (bounds.TIME_S_MAX + 1) * NS_PER_S - 1)
    return f"{ns // NS_PER_S}.{ns % NS_PER_S:09d}"


def _check(name: str, value: int, most: int) -> None:
    if not 0 <= value <= most:
        raise CheloniaError(Kind.BAD_REQUEST, subject=name, cause=f"{name} is 0 to {most}, not {value}")
