"""The context that all parts of healing share: the A-Hash, the Shepherds as seen here, ports, and the own identity."""

from __future__ import annotations

from dataclasses import dataclass

from chelonia.core.caller import Call
from chelonia.core.ids import Ms
from chelonia.librarian.metadata.records import Records
from chelonia.librarian.presence.nodes import NodeTable
from chelonia.librarian.settings import LibrarianSettings
from chelonia.librarian.world import World


@dataclass(frozen=True, slots=True)
class LibrarianContext:
    """Ports and state that the parts of one Librarian's healing share; `call` carries its identity."""

    records: Records
    nodes: NodeTable
    world: World
    call: Call

    @property
    def settings(self) -> LibrarianSettings:
        """Return this Librarian's settings."""
        return self.world.settings

    @property
    def now(self) -> Ms:
        """Return monotonic milliseconds, for intervals."""
        return self.world.clock.monotonic_ms()

    @property
    def wall(self) -> Ms:
        """Return wall-clock milliseconds, for stored times."""
        return self.world.clock.now_ms()
