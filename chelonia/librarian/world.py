"""The ports of a Librarian beside the A-Hash: time, fresh ids, Shepherds, signatures, settings."""

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
        """Return another Librarian. Its calls raise NETWORK or TIMEOUT when it does not answer."""

    async def refused(self, service: ServiceId) -> bool:
        """Return whether a service's address refuses connections: its process is gone. False when that is uncertain."""


@dataclass(frozen=True, slots=True)
class World:
    """Ports and settings of one Librarian. Without `neighbours` it tries no addresses and queries no other Librarians:
    a Shepherd is away when its lease has run out here."""

    directory: Directory
    verifier: Verifier
    clock: Clock
    ids: Ids
    settings: LibrarianSettings
    neighbours: Neighbours | None = None
    carrier: Carrier | None = None
    """Reader and writer of bytes on Shepherds. Without it the Librarian takes no snapshots and cannot rebuild."""
    loop_lag: Callable[[], float] | None = None
    """Milliseconds by which this process runs late, a recent average; without it healing never slows down."""
    limits: LimitCounts = field(default_factory=LimitCounts)

    def step(self, call: Call) -> Call:
        """Return a call with a key of its own, for a transact of several in a request but the last, which keeps the
        request's. With the key the A-Hash carries it out although it loses its master meanwhile."""
        return call.keyed(RequestKey(self.ids.uuid()))

    def owner(self, dn: str) -> Dn:
        """Return the owner to record for an entry; ANONYMOUS where its maker gave none."""
        return Dn(dn) if dn else ANONYMOUS
