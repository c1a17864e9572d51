"""What a Librarian needs of the world beside the A-Hash: time, fresh ids, Shepherds, signatures, its settings."""

from __future__ import annotations

from dataclasses import dataclass

from chelonia.core.clock import Clock, Ids
from chelonia.core.ids import ANONYMOUS, Dn
from chelonia.core.shepherd import Directory, Verifier
from chelonia.librarian.settings import LibrarianSettings


@dataclass(frozen=True, slots=True)
class World:
    """Ports and settings of one Librarian."""

    directory: Directory
    verifier: Verifier
    clock: Clock
    ids: Ids
    settings: LibrarianSettings

    def owner(self, dn: str) -> Dn:
        """The owner to record for an entry whose maker gave none."""
        return Dn(dn) if dn else ANONYMOUS
