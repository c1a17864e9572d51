"""Attributes to and from the stored sections of an entry. Pure.

Stored: `posix` (`mode`, `uid`, `gid`, `device`, decimal; `accessed` as the times), `timestamps` (`created`, `modified`,
`changed`: Unix seconds with up to nine decimals), `node/target`, `mountpoint/externalURL`. Source:
`docs/formats/metadata.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from chelonia.bartender.rights import RIGHTS
from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.files import UNSET, Attributes, Setting
from chelonia.core.ids import BlobId, Dn, Guid
from chelonia.core.librarian import TYPE_FILE, TYPE_MOUNTPOINT
from chelonia.core.metadata import Filter, Needed, StoredObject, Triple
from chelonia.core.replicas import Checksums

DESCRIBED: Final[Filter] = (
    *RIGHTS, Needed("timestamps"), Needed("posix"), Needed("node"), Needed("mountpoint"), Needed("blobs"),
    Needed("content"), Needed("locks"),
)  # fmt: skip
"""What attributes, and rights, need of an entry."""

NS_PER_S: Final = 1_000_000_000
MODE_MAX: Final = 0o177777
ID_MAX: Final = 2**32 - 2
"""Of a user or group: 2**32 - 1 means "leave it" in POSIX."""


def attributes_of(stored: StoredObject) -> Attributes:
    """The attributes of an entry read with `DESCRIBED`."""
    kind, times, posix = stored.value("entry", "type"), stored.sections.get("timestamps", {}), _posix(stored)
    modified = ns_of(times.get("modified", ""))
    return Attributes(
        guid=Guid(stored.id),
        type=kind,
        version=stored.version,
        owner=Dn(stored.value("entry", "owner")),
        size=_number(stored.value("states", "size"), 0),
        etag=etag_of(stored),
        modified_ns=modified,
        changed_ns=max(modified, ns_of(times.get("changed", ""))),
        accessed_ns=ns_of(posix.get("accessed", "")) or modified,
        created_ns=ns_of(times.get("created", "")),
        mode=_number(posix.get("mode", ""), UNSET),
        uid=_number(posix.get("uid", ""), UNSET),
        gid=_number(posix.get("gid", ""), UNSET),
        device=_number(posix.get("device", ""), 0),
        links=max(1, len(stored.sections.get("parents", {}))),
        target=stored.value("mountpoint" if kind == TYPE_MOUNTPOINT else "node", _TARGET.get(kind, "target")),
        wanted=_number(stored.value("states", "neededReplicas"), 0),
        implied=is_implied(stored),
    )


_TARGET: Final = {TYPE_MOUNTPOINT: "externalURL"}


def etag_of(stored: StoredObject) -> str:
    """What names the bytes of a file: what their writer called them, else the id of the blob, or of the content and how
    often that was spliced. Of anything else, its state: GUID and version."""
    if stored.value("entry", "type") != TYPE_FILE:
        return f"{stored.id}-{stored.version}"
    content, blobs = stored.value("content", "id"), stored.sections.get("blobs", {})
    own = "-".join(blobs[ordinal] for ordinal in sorted(blobs))
    if content:
        own = f"{content}-{stored.value('content', 'splices')}"
    given, _, of = stored.value("states", "etag").partition(" ")
    return given if given and of == own else own or f"{stored.id}-{stored.version}"


def etag_fact(etag: str, blob: BlobId) -> dict[str, dict[str, str]]:
    """What stores the etag that a writer gives to the bytes of a blob; bytes that come later have another blob."""
    return {"states": {"etag": f"{etag} {blob}"}} if etag else {}


def is_implied(stored: StoredObject) -> bool:
    """Whether a collection was made for the sake of a longer name only."""
    return stored.value("node", "implied") == "yes"


def checksums_of(stored: StoredObject) -> Checksums:
    """The checksum of record of a file, in its place."""
    kind, value = stored.value("states", "checksumType"), stored.value("states", "checksum")
    known = {kind: value} if kind in ("sha256", "md5", "adler32") else {}
    return Checksums(**known)


def setting_triples(setting: Setting) -> tuple[Triple, ...]:
    """What a setting writes. Raises: BAD_REQUEST for a number out of bounds."""
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
    """What users wrote, as triples. Raises: TOO_LARGE when there are too many."""
    if len(user) > bounds.USER_METADATA_MAX:
        raise CheloniaError(Kind.TOO_LARGE, subject="metadata", cause=f"at most {bounds.USER_METADATA_MAX} properties")
    return tuple(Triple("metadata", name, value) for name, value in sorted(user.items()))


def ns_of(text: str) -> int:
    """Unix seconds with up to nine decimals, as nanoseconds; 0 for what is no time."""
    whole, _, part = text.partition(".")
    if not (whole.isascii() and whole.isdigit()) or not ((part.isascii() and part[:9].isdigit()) or not part):
        return 0
    return int(whole) * NS_PER_S + int(part[:9].ljust(9, "0") or "0")


def time_text(ns: int, name: str) -> str:
    """Nanoseconds as Unix seconds with nine decimals. Raises: BAD_REQUEST before 1970 or beyond twelve digits."""
    _check(name, ns, 10**12 * NS_PER_S - 1)
    return f"{ns // NS_PER_S}.{ns % NS_PER_S:09d}"


def _posix(stored: StoredObject) -> Mapping[str, str]:
    return stored.sections.get("posix", {})


def _number(text: str, otherwise: int) -> int:
    return int(text) if text.isascii() and text.isdigit() else otherwise


def _check(name: str, value: int, most: int) -> None:
    if not 0 <= value <= most:
        raise CheloniaError(Kind.BAD_REQUEST, subject=name, cause=f"{name} is 0 to {most}, not {value}")
