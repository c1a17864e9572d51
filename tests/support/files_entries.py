"""What the memory twin of `Files` keeps of an entry and of an open upload."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from chelonia.core.cluster.replicas import Checksums
from chelonia.core.contents.extents import Extent
from chelonia.core.ids import Dn, Guid
from chelonia.core.ports.files import Attributes, Open
from chelonia.core.rights.locks import Lock


@dataclass
class Node:
    """One entry: its attributes, what users wrote, its names inside (of a collection) and its bytes (of a file)."""

    attributes: Attributes
    user: dict[str, str] = field(default_factory=dict)
    policy: dict[str, str] = field(default_factory=dict)
    inside: dict[str, Guid] = field(default_factory=dict)
    data: bytes = b""
    extents: tuple[Extent, ...] | None = None
    checksums: Checksums = Checksums()
    locks: dict[str, Lock] = field(default_factory=dict)
    etag: str = ""
    names_changed: int = 0

    @property
    def type(self) -> str:
        return self.attributes.type


@dataclass
class Opened:
    """An open upload: its change, by whom, and the parts that have arrived."""

    change: Open
    owner: Dn
    within: Guid
    parts: dict[int, tuple[str, bytes]] = field(default_factory=dict)
    checksums: dict[str, str] = field(default_factory=dict)
    etags: dict[str, str] = field(default_factory=dict)  # of parts whose sender has said it

    def etag(self, number: int) -> str:
        put, data = self.parts[number]
        return self.etags[put] or hashlib.sha256(data).hexdigest()[:32]
