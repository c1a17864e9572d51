"""What every part of healing stands on: the A-Hash, the Shepherds as seen here, the world, whose name it calls in."""

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
    """Shared by the parts of one Librarian's healing."""

    records: Records
    nodes: NodeTable
    world: World
    call: Call

    @property
    def settings(self) -> LibrarianSettings:
        """How this Librarian is set up."""
        return self.world.settings

    @property
    def now(self) -> Ms:
        """Monotonic milliseconds: for intervals."""
        return self.world.clock.monotonic_ms()

    @property
    def wall(self) -> Ms:
        """Wall-clock milliseconds: for what is stored."""
        return self.world.clock.now_ms()
