"""The ports of the Bartender's operations: the other services, time, chance and settings."""

from __future__ import annotations

from dataclasses import dataclass, field

from chelonia.bartender.grouped import GroupedCalls
from chelonia.bartender.queues import Places, Queues
from chelonia.bartender.settings import BartenderSettings
from chelonia.bartender.shepherds import Shepherds
from chelonia.bartender.storing import Storing
from chelonia.core import bounds
from chelonia.core.caller import Call, Role
from chelonia.core.limits import LimitCounts
from chelonia.core.ports.librarian import Librarian
from chelonia.core.timing.clock import Clock, Ids


@dataclass(frozen=True, slots=True)
class Ports:
    """The Bartender's view of the world."""

    librarian: Librarian
    shepherds: Shepherds
    clock: Clock
    ids: Ids
    settings: BartenderSettings
    storing: Storing
    fetching: GroupedCalls
    limits: LimitCounts = field(default_factory=LimitCounts)
    places: Places = field(default_factory=Places)
    lists: Queues = field(default_factory=lambda: Queues(bounds.LISTS_PER_CALLER_MAX))

    def own(self, call: Call) -> Call:
        """Return the Bartender's own call on behalf of a user's."""
        return call.as_service(self.settings.dn, Role.BARTENDER, self.settings.service_id)
