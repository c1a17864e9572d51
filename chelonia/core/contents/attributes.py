"""The attributes of a stored entry. Pure.

Stored: `posix` (`mode`, `uid`, `gid`, `device`, decimal; `accessed` as the times), `timestamps` (`created`, `modified`,
`changed`: Unix seconds with up to nine decimals), `node/target`, `mountpoint/externalURL`, `tally/changed`. Source:
`docs/formats/metadata.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from chelonia.core.ids import Dn, Guid
from chelonia.core.metadata import TYPE_FILE, TYPE_MOUNTPOINT, StoredObject
from chelonia.core.ports.files import UNSET, Attributes

NS_PER_S: Final = 1_000_000_000


def attributes_of(stored: StoredObject) -> Attributes:
    """Return the attributes of an entry that was read with all sections that hold them."""
    sections = stored.sections
    entry, states = sections.get("entry", NONE), sections.get("states", NONE)
    times, posix = sections.get("timestamps", NONE), sections.get("posix", NONE)
    kind, node = entry.get("type", ""), sections.get("node", NONE)
    modified, changed = ns_of(times.get("modified", "")), sections.get("tally", NONE).get("changed", "")
    renamed = _number(changed.partition(" ")[0], 0) * 1_000_000 if changed else 0  # a name was added, or taken away
    if renamed and times.get("set") != changed:
        modified = renamed if "set" in times else max(modified, renamed)
    return Attributes(
        guid=Guid(stored.id),
        type=kind,
        version=stored.version,
        owner=Dn(entry.get("owner", "")),
        size=_number(states.get("size", ""), 0),
        etag=etag_of(stored),
        modified_ns=modified,
        changed_ns=max(modified, renamed, ns_of(times["changed"]) if "changed" in times else 0),
        accessed_ns=(ns_of(posix["accessed"]) if "accessed" in posix else 0) or modified,
        created_ns=ns_of(times.get("created", "")),
        mode=_number(posix.get("mode", ""), UNSET) if posix else UNSET,
        uid=_number(posix.get("uid", ""), UNSET) if posix else UNSET,
        gid=_number(posix.get("gid", ""), UNSET) if posix else UNSET,
        device=_number(posix.get("device", ""), 0) if posix else 0,
        links=max(1, len(sections.get("parents", NONE))),
        target=stored.value("mountpoint", "externalURL") if kind == TYPE_MOUNTPOINT else node.get("target", ""),
        wanted=_number(states.get("neededReplicas", ""), 0),
        implied=node.get("implied") == "yes",
    )


NONE: Final[Mapping[str, str]] = {}
"""A section that an entry does not have."""


def etag_of(stored: StoredObject) -> str:
    """Return the etag of a file's bytes: its writer's, else its blob's id, or its content's id and number of splices.
    That of a file that never had bytes is its GUID and 0. That of anything else names its state: GUID and version, and
    of a collection the stamp of the last change of its names."""
    sections = stored.sections
    if sections.get("entry", NONE).get("type") != TYPE_FILE:
        stamp = stored.value("tally", "changed")
        return f"{stored.id}-{stored.version}" + (f"-{stamp.replace(' ', '-')}" if stamp else "")
    own = bytes_of(stored)
    given, _, of = sections.get("states", NONE).get("etag", "").partition(" ")
    return given if given and of == own else own or f"{stored.id}-{stored.version}"


def bytes_of(stored: StoredObject) -> str:
    """Return the etag of a file's bytes without regard to their writer's; "" of a file whose bytes are not known."""
    content, blobs = stored.sections.get("content", NONE).get("id"), stored.sections.get("blobs", NONE)
    if content:
        return f"{content}-{stored.value('content', 'splices')}"
    own = "-".join([blobs[ordinal] for ordinal in sorted(blobs)])
    return f"{stored.id}-0" if not own and is_empty(stored) else own


def laid_on(stored: StoredObject) -> tuple[str, int]:
    """Return what a piece of a file is laid on: its content and number of splices. Of a file of one blob these are that
    blob and 0, without bytes "" and 0."""
    content, blobs = stored.value("content", "id"), stored.sections.get("blobs", NONE)
    return (content, int(stored.value("content", "splices") or "0")) if content else ("-".join(blobs.values()), 0)


def is_spliced(etag: str, before: str) -> bool:
    """Whether bytes of this etag, of which a splice over the bytes of etag `before` is a part, are its very result."""
    content, _, count = etag.rpartition("-")
    known, _, splices = before.rpartition("-")
    return count == (str(int(splices) + 1) if known == content and splices.isdecimal() else "1")


def is_empty(stored: StoredObject) -> bool:
    """Whether a file was made without bytes and has had none since: it has neither blobs nor a content."""
    has = stored.sections.get("blobs") or stored.value("content", "id")
    return stored.value("entry", "type") == TYPE_FILE and not has and stored.value("states", "size") == "0"


def is_implied(stored: StoredObject) -> bool:
    """Whether a collection was made only as part of a longer name."""
    return stored.value("node", "implied") == "yes"


def ns_of(text: str) -> int:
    """Return Unix seconds with up to nine decimals as nanoseconds; 0 for an invalid time."""
    if not text:
        return 0
    whole, _, part = text.partition(".")
    if not (whole.isascii() and whole.isdigit()) or not ((part.isascii() and part[:9].isdigit()) or not part):
        return 0
    return int(whole) * NS_PER_S + int(part[:9].ljust(9, "0") or "0")


def _number(text: str, otherwise: int) -> int:
    return int(text) if text.isascii() and text.isdigit() else otherwise
