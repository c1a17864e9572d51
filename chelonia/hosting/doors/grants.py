"""Who is what: turns the DN of a connection into the roles of a call.

Two sources: identities named in the node's configuration (always known, so that a cluster can start and an
administrator can get in), and the cluster's registry of approved services, read every few seconds and, at a bounded
pace, when an unknown DN calls. A service that the registry calls withdrawn or forgotten is not known by configuration
either. Fail-closed: when the registry has not been reachable for `keep_ms`, only the configured identities have roles,
and nobody can say whether others do. What a caller says of itself never grants
anything; where one DN serves several services (one host certificate, two Shepherds), the header `Chelonia-Service`
chooses among its registered ids.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final

from chelonia.core.caller import Role
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ANONYMOUS, Dn, ServiceId
from chelonia.core.ports.librarian import ServiceRecord
from chelonia.core.timing.clock import Clock
from chelonia.core.timing.jobs import Next, Wait
from chelonia.core.timing.pacing import Backoff
from chelonia.hosting.net.identity import Identity

log = logging.getLogger("chelonia.registry")

Source = Callable[[], Awaitable[Iterable[ServiceRecord]]]
"""Reads the cluster's registry. Raises CheloniaError when it cannot be reached."""


@dataclass(frozen=True, slots=True)
class RoleGrant:
    """What a DN may act as here. `unsure`: nothing, as far as is known: the registry could not be read."""

    roles: tuple[Role, ...] = ()
    service_id: ServiceId = ServiceId("")
    unsure: bool = False


@dataclass(frozen=True, slots=True)
class RegistryPace:
    """How often the registry is read.

    - `refresh_ms` between two reads, and between two because of the same unknown caller
    - `miss_ms` at least between two because of any unknown callers, and after one that found nobody, then longer,
      `AWAY_TIMES` as long at most (after one that was refused: `refresh_ms`)
    - `keep_ms` for how long what was read last counts when the registry is away
    """

    refresh_ms: int = 5_000
    miss_ms: int = 500
    keep_ms: int = 60_000


AWAY_TIMES: Final = 4
"""All nodes ask a registry that is away, and whoever is to bring it back has to answer each of them."""
NOTHING, UNSURE = RoleGrant(), RoleGrant(unsure=True)
STRANGERS_MAX = 10_000
"""Callers remembered as not registered: users, mostly."""


class RoleRegistry:
    """Grants roles to DNs. `step` keeps it fresh; without a source only the configured identities are known."""

    def __init__(
        self,
        configured: Iterable[ServiceRecord],
        source: Source | None,
        clock: Clock,
        pace: RegistryPace | None = None,
        issuers: Iterable[str] = (),
    ) -> None:
        """`issuers`: the CAs whose certificates may carry roles; empty: any."""
        self._configured = self._named = tuple(configured)
        self._issuers = frozenset(issuers)
        self._source = source
        self._clock = clock
        self._pace = pace or RegistryPace()
        self._read_at = -1
        self._tried_at = -1
        self._reachable, self._waiting = True, False
        self._away = Backoff(self._pace.miss_ms, self._pace.miss_ms * AWAY_TIMES)
        self._reading: asyncio.Task[bool] | None = None
        self._strangers: dict[Dn, int] = {}
        self._last_read: list[ServiceRecord] = []
        self._know(self._configured)

    def _know(self, records: Iterable[ServiceRecord]) -> None:
        self._records = _by_dn(records)
        self._grants: dict[Dn, RoleGrant] = {}

    async def grant(self, dn: Dn, service: str = "", issuer: str = "") -> RoleGrant:
        """The roles of `dn`, whose certificate is of `issuer`; `service` chooses among the ids registered for it.

        Raises: UNTRUSTED when it has roles, and another CA than those that may vouch for roles issued its certificate.
        """
        known = self.known(dn, service, issuer)
        if known is not None:
            return known
        if self._worth_reading(dn):
            await self.refresh()
            if dn not in self._records:
                self._remember_stranger(dn)
        unread = self._source is not None and self._read_at < 0
        return self.known(dn, service, issuer) or (UNSURE if unread else NOTHING)

    def known(self, dn: Dn, service: str = "", issuer: str = "") -> RoleGrant | None:
        """`grant`, as far as nobody has to be asked; None: the registry might know more by now."""
        if issuer and self._issuers and issuer not in self._issuers and dn in self._records:
            cause = f"this name has roles here, and its certificate is of {issuer}, which [trust] issuers does not name"
            raise CheloniaError(Kind.UNTRUSTED, "identify", dn, cause)
        self._forget_old()
        grant = None if service else self._grants.get(dn)
        if grant is None and dn in self._records:
            grant = _choose(self._records[dn], service)
            if not service:
                self._grants[dn] = grant
        return NOTHING if dn == ANONYMOUS else grant

    def registered(self, role: Role) -> tuple[ServiceId, ...]:
        """The services of a role, as the registry said when it was last read, however long ago."""
        every = (record for record in (*self._named, *self._last_read) if record.role is role)
        return tuple(dict.fromkeys(record.service_id for record in every if record.service_id))

    def has_role(self, identity: Identity) -> bool:
        """Whether a peer is known at once to have a role here. Raises: UNTRUSTED, as `grant`."""
        grant = self.known(identity.dn, issuer=identity.issuer)
        return grant is not None and bool(grant.roles)

    def _worth_reading(self, dn: Dn) -> bool:
        """Whether an unknown caller might be known after another read; nobody waits for a registry that is away."""
        if self._source is None or not self._reachable:
            return False
        if self._reading is not None and not self._reading.done():
            return True
        now = self._clock.monotonic_ms()
        if dn in self._strangers and now - self._strangers[dn] < self._pace.refresh_ms:
            return False
        return self._tried_at < 0 or now - self._tried_at >= self._pace.miss_ms

    def _remember_stranger(self, dn: Dn) -> None:
        if len(self._strangers) >= STRANGERS_MAX:
            self._strangers.clear()
        self._strangers[dn] = self._clock.monotonic_ms()

    async def refresh(self) -> bool:
        """Read the registry now; returns whether it could be read. One read serves all who wait for it; who gives up
        waiting does not end it."""
        if self._source is None:
            return False
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read(self._source))
        return await asyncio.shield(self._reading)

    async def _read(self, source: Source) -> bool:
        self._tried_at = self._clock.monotonic_ms()
        try:
            told = tuple(await source())
        except CheloniaError as error:
            self._waiting = error.kind is Kind.DENIED
            if self._reachable and self._waiting:
                log.info("waiting for approval: chelonia admin node approve, or services in [trust] error=%s", error)
            elif self._reachable:
                log.info("registry unreachable, configured identities go on error=%s", error)
            self._reachable = False
            return False
        self._reachable, self._waiting = True, False
        self._read_at = self._clock.monotonic_ms()
        self._last_read = [record for record in told if record.approved]
        refused = {
            (record.role, record.dn, record.service_id) for record in told if record.withdrawn or record.forgotten
        }
        self._named = tuple(
            record
            for record in self._configured
            if record.role is Role.ADMINISTRATOR or (record.role, record.dn, record.service_id) not in refused
        )
        self._know((*self._named, *self._last_read))
        return True

    async def step(self) -> Next:
        """Keep it fresh: a job's step."""
        read = await self.refresh()
        self._forget_old()
        if read or self._waiting:
            self._away.worked()
            return Wait(self._pace.refresh_ms)
        return Wait(self._away.failed())

    def _forget_old(self) -> None:
        if self._read_at >= 0 and self._clock.monotonic_ms() - self._read_at > self._pace.keep_ms:
            log.warning("registry unreachable for %d ms: only configured identities have roles", self._pace.keep_ms)
            self._know(self._named)
            self._read_at = -1


def _by_dn(records: Iterable[ServiceRecord]) -> dict[Dn, tuple[ServiceRecord, ...]]:
    out: dict[Dn, tuple[ServiceRecord, ...]] = {}
    for record in records:
        if record.approved and record not in out.get(record.dn, ()):
            out[record.dn] = (*out.get(record.dn, ()), record)
    return out


def _choose(records: tuple[ServiceRecord, ...], service: str) -> RoleGrant:
    """Roles of all records; the id asked for, else a Shepherd's (only those speak of themselves), else the first."""
    roles = tuple(role for role in Role if any(record.role == role for record in records))
    ids = [record.service_id for record in records if record.service_id]
    shepherds = [record.service_id for record in records if record.role == Role.SHEPHERD]
    chosen = ServiceId(service) if service in ids else next(iter((*shepherds, *ids)), ServiceId(""))
    return RoleGrant(roles, chosen)
