"""Turns the DN of a connection into the roles of a call.

Roles have two sources:
- the node's configuration, always known, so that a cluster can start and an administrator can get in
- the cluster's registry of approved services, read every few seconds and, at a bounded pace, for an unknown DN

A service that the registry calls withdrawn or forgotten has no role by configuration either. Fail-closed: after
`keep_ms` without the registry only the configured identities have roles. A caller's own word never grants anything.
Where one DN serves several services (two Shepherds of a host), the header `Chelonia-Service` chooses among its ids.
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
    """The roles of a DN here. `unsure`: none are known, and the registry cannot be read: it may have been approved."""

    roles: tuple[Role, ...] = ()
    service_id: ServiceId = ServiceId("")
    unsure: bool = False


@dataclass(frozen=True, slots=True)
class RegistryPace:
    """Pauses between reads of the registry.

    - `refresh_ms`: between two reads, also after a refused one, and between two for the same unknown caller
    - `miss_ms`: at least between two for any unknown callers; after a failure it grows, to `AWAY_TIMES` as much at most
    - `keep_ms`: time for which the last read counts while the registry is away
    """

    refresh_ms: int = 5_000
    miss_ms: int = 500
    keep_ms: int = 60_000


AWAY_TIMES: Final = 4
"""All nodes ask a registry that is away, and the nodes that bring it back have to answer each of them."""
READ_S_MAX: Final = 20.0
"""Time for a read of the registry: some Librarians in turn, each with 5 s. An A-Hash of this process may hang."""
NOTHING, UNSURE = RoleGrant(), RoleGrant(unsure=True)
STRANGERS_MAX = 10_000
"""Callers kept as not registered: users, mostly."""


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
        self._backoff = Backoff(self._pace.miss_ms, self._pace.miss_ms * AWAY_TIMES)
        self._reading: asyncio.Task[bool] | None = None
        self._strangers: dict[Dn, int] = {}
        self._last_read: list[ServiceRecord] = []
        self._set_records(self._configured)

    def _set_records(self, records: Iterable[ServiceRecord]) -> None:
        self._records = _by_dn(records)
        self._grants: dict[Dn, RoleGrant] = {}

    async def grant(self, dn: Dn, service: str = "", issuer: str = "") -> RoleGrant:
        """Return the roles of `dn`, whose certificate is of `issuer`; `service` chooses among its registered ids.

        Raises: UNTRUSTED when it has roles, but `issuer` may not vouch for roles.
        """
        cached = self.known(dn, service, issuer)
        if cached is not None:
            return cached
        if self._worth_reading(dn):
            await self.refresh()
            if dn not in self._records:
                self._remember_stranger(dn)
        unread = self._source is not None and (self._read_at < 0 or not self._reachable)
        return self.known(dn, service, issuer) or (UNSURE if unread else NOTHING)

    def known(self, dn: Dn, service: str = "", issuer: str = "") -> RoleGrant | None:
        """Return `grant` without a read of the registry; None: the registry might know more by now."""
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
        """Return the services of a role, as configured and as in the last read of the registry, however old."""
        every = (record for record in (*self._named, *self._last_read) if record.role is role)
        return tuple(dict.fromkeys(record.service_id for record in every if record.service_id))

    def has_role(self, identity: Identity) -> bool:
        """Return whether a peer is already known to have a role here. Raises: UNTRUSTED, as `grant`."""
        grant = self.known(identity.dn, issuer=identity.issuer)
        return grant is not None and bool(grant.roles)

    def _worth_reading(self, dn: Dn) -> bool:
        """Return whether a read might find an unknown caller; no caller waits for a registry that is away."""
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
        """Read the registry now; return whether that worked. Callers share one read, which none ends by giving up."""
        if self._source is None:
            return False
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read(self._source))
        return await asyncio.shield(self._reading)

    async def _read(self, source: Source) -> bool:
        self._tried_at = self._clock.monotonic_ms()
        try:
            async with asyncio.timeout(READ_S_MAX):
                records = tuple(await source())
        except (CheloniaError, TimeoutError) as error:
            self._waiting = isinstance(error, CheloniaError) and error.kind is Kind.DENIED
            if self._reachable and self._waiting:
                log.info("waiting for approval: chelonia admin node approve, or services in [trust] error=%s", error)
            elif self._reachable:
                log.info("registry unreachable, configured identities go on error=%r", error)
            self._reachable = False
            return False
        self._reachable, self._waiting = True, False
        self._read_at = self._clock.monotonic_ms()
        self._last_read = [record for record in records if record.approved]
        refused = {
            (record.role, record.dn, record.service_id) for record in records if record.withdrawn or record.forgotten
        }
        self._named = tuple(
            record
            for record in self._configured
            if record.role is Role.ADMINISTRATOR or (record.role, record.dn, record.service_id) not in refused
        )
        self._set_records((*self._named, *self._last_read))
        return True

    async def step(self) -> Next:
        """Read the registry: a job's step."""
        read = await self.refresh()
        self._forget_old()
        if read or self._waiting:
            self._backoff.worked()
            return Wait(self._pace.refresh_ms)
        return Wait(self._backoff.failed())

    def _forget_old(self) -> None:
        if self._read_at >= 0 and self._clock.monotonic_ms() - self._read_at > self._pace.keep_ms:
            log.warning("registry unreachable for %d ms: only configured identities have roles", self._pace.keep_ms)
            self._set_records(self._named)
            self._read_at = -1


def _by_dn(records: Iterable[ServiceRecord]) -> dict[Dn, tuple[ServiceRecord, ...]]:
    out: dict[Dn, tuple[ServiceRecord, ...]] = {}
    for record in records:
        if record.approved and record not in out.get(record.dn, ()):
            out[record.dn] = (*out.get(record.dn, ()), record)
    return out


def _choose(records: tuple[ServiceRecord, ...], service: str) -> RoleGrant:
    """Grant all records' roles, and the id asked for, else a Shepherd's (those report on themselves), else the
    first."""
    roles = tuple(role for role in Role if any(record.role == role for record in records))
    ids = [record.service_id for record in records if record.service_id]
    shepherds = [record.service_id for record in records if record.role == Role.SHEPHERD]
    chosen = ServiceId(service) if service in ids else next(iter((*shepherds, *ids)), ServiceId(""))
    return RoleGrant(roles, chosen)
