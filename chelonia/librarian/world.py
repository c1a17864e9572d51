"""What a Librarian needs of the world beside the A-Hash: time, fresh ids, Shepherds, signatures, its settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from chelonia.core.caller import Call
from chelonia.core.ids import ANONYMOUS, Dn, RequestKey, ServiceId
from chelonia.core.limits import LimitCounts
from chelonia.core.ports.librarian import Librarian
from chelonia.core.ports.shepherd import Carrier, Directory, Verifier
from chelonia.core.timing.clock import Clock, Ids
from chelonia.librarian.settings import LibrarianSettings


class Neighbours(Protocol):
    """The other services of the cluster, as one Librarian reaches them."""

    def librarian(self, service: ServiceId) -> Librarian:
        """Another Librarian. Calls raise NETWORK or TIMEOUT when it does not answer."""

    async def refused(self, service: ServiceId) -> bool:
        """Whether nobody listens at a service's address: the process is not there. False when that cannot be told."""


@dataclass(frozen=True, slots=True)
class World:
    """Ports and settings of one Librarian. Without `neighbours` it neither knocks at doors nor asks other Librarians: a
    Shepherd is away when its lease has run out here."""

    directory: Directory
    verifier: Verifier
    clock: Clock
    ids: Ids
    settings: LibrarianSettings
    neighbours: Neighbours | None = None
    carrier: Carrier | None = None
    """Without it the Librarian keeps no bytes of its own: no snapshots, and no rebuild."""
    strain: Callable[[], float] | None = None
    """Milliseconds by which this process lately runs late, on average; without it healing yields to nobody."""
    limits: LimitCounts = field(default_factory=LimitCounts)

    def step(self, call: Call) -> Call:
        """A call for one transact of several that a request takes: with a key of its own, so that the A-Hash carries it
        out though its master is lost meanwhile. The last one has the request's."""
        return call.keyed(RequestKey(self.ids.uuid()))

    def owner(self, dn: str) -> Dn:
        """The owner to record for an entry whose maker gave none."""
        return Dn(dn) if dn else ANONYMOUS
