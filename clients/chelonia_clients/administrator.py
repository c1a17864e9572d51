"""The SDK for administrators: what they ask of Librarians, A-Hashes and Shepherds, each over its own port.

`chelonia_clients.connect` makes one. A user's `Client` has none of this, and asks Bartenders alone; who may do what is
decided by the services, whatever asks them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

import msgspec

from chelonia.core.cluster.drills import DrillOrder, DrillStatus
from chelonia.core.cluster.healing import ForgetPage, HealOrder, HealStatus
from chelonia.core.cluster.quotas import Quota, QuotaUse
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn, Guid, Ms, ServiceId
from chelonia.core.ports.ahash import AHash
from chelonia.core.ports.librarian import HealthSummary, Librarian, NodeView, ServiceRecord
from chelonia.core.ports.shepherd import Shepherd
from chelonia.core.timing.clock import Clock
from chelonia.core.timing.jobs import NodeJobs
from chelonia.hosting.net.clock import SystemClock
from chelonia.hosting.net.http_client import HttpClient, Sending, raise_for_status
from chelonia_clients.client import new_call

JOBS_MS: Final = 5_000
"""How long a node is waited for that should say how its jobs get on: one may be stuck."""


@dataclass(frozen=True, slots=True)
class AdministratorPorts:
    """What an administrator speaks to.

    Args:
        shepherd: gives the control port of a Shepherd.
        librarian: None when no URL of one is known.
        ahashes: every A-Hash that is known, by URL.
    """

    shepherd: Callable[[ServiceId], Shepherd]
    librarian: Librarian | None = None
    ahashes: Mapping[str, AHash] = field(default_factory=dict)


class Administrator:
    """An administrator's connection. Use as an async context manager, inside one event loop."""

    def __init__(self, ports: AdministratorPorts, http: HttpClient, clock: Clock | None = None) -> None:
        """Bind to ports, all of which use the connections of `http`."""
        self._ports = ports
        self.http = http
        self.clock: Clock = clock or SystemClock()

    async def __aenter__(self) -> Administrator:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.close()

    @property
    def librarian(self) -> Librarian:
        """The Librarian. Raises: BAD_CONFIG when no URL of one is known."""
        if self._ports.librarian is None:
            cause = "no Librarian is known: give --librarian URL, set CHELONIA_LIBRARIAN_URL, or name a --cluster file"
            raise CheloniaError(Kind.BAD_CONFIG, "admin", cause=cause)
        return self._ports.librarian

    @property
    def ahashes(self) -> Mapping[str, AHash]:
        """Every A-Hash that is known, by URL. Raises: BAD_CONFIG when none is."""
        if not self._ports.ahashes:
            cause = "no A-Hash is known: give --ahash URL, set CHELONIA_AHASH_URL, or name a --cluster file"
            raise CheloniaError(Kind.BAD_CONFIG, "admin", cause=cause)
        return self._ports.ahashes

    def shepherd(self, service: ServiceId) -> Shepherd:
        """The control port of a Shepherd."""
        return self._ports.shepherd(service)

    async def nodes(self) -> tuple[NodeView, ...]:
        """All Shepherds known, by service id. Raises: BAD_CONFIG without a Librarian, DENIED."""
        return await self.librarian.nodes(new_call())

    async def services(self) -> tuple[ServiceRecord, ...]:
        """All registered identities, approved or waiting. Raises: as `nodes`."""
        return await self.librarian.services(new_call())

    async def health(self) -> HealthSummary:
        """The state of repair. Raises: as `nodes`."""
        return await self.librarian.health(new_call())

    async def heal_status(self) -> HealStatus:
        """How far healing is, and when all will be whole. Raises: as `nodes`."""
        return await self.librarian.heal_status(new_call())

    async def heal_order(self, order: HealOrder) -> HealStatus:
        """Pause, resume or limit healing, for all Librarians. Raises: as `nodes`, and BAD_REQUEST."""
        return await self.librarian.heal_order(new_call(), order)

    async def quotas(self) -> tuple[QuotaUse, ...]:
        """All quotas, with what is used. Raises: as `nodes`."""
        return await self.librarian.quotas(new_call(), Dn(""), Guid(""))

    async def set_quota(self, quota: Quota) -> QuotaUse:
        """Set a quota, or remove one, which bounds nothing. Raises: as `nodes`, and BAD_REQUEST, NOT_FOUND."""
        return await self.librarian.set_quota(new_call(), quota)

    async def recount_quotas(self) -> None:
        """Have all that quotas count counted anew. Raises: as `nodes`."""
        await self.librarian.recount_quotas(new_call())

    async def drill(self, order: DrillOrder) -> DrillStatus:
        """Begin a drill, say whether one may begin, or call it off. Raises: as `nodes`, and CONFLICT, BAD_REQUEST."""
        return await self.librarian.drill(new_call(), order)

    async def drill_status(self) -> DrillStatus:
        """The present or last drill. Raises: as `nodes`."""
        return await self.librarian.drill_status(new_call())

    def node_urls(self, records: Sequence[ServiceRecord]) -> tuple[str, ...]:
        """The base URLs of the approved among these services, and of the A-Hashes that are known."""
        ids = [*self._ports.ahashes, *(record.service_id for record in records if record.approved)]
        parts = {urlsplit(url) for url in ids if url}
        # An id without a port is no address: it names a client, as the `service` identity of `cheloniad dev`.
        return tuple(sorted({f"{part.scheme}://{part.netloc}" for part in parts if part.port}))

    async def jobs(self, node: str) -> NodeJobs:
        """The background jobs of a node, by its base URL. Raises: NETWORK, DENIED, ..."""
        answer = await self.http.request(Sending("GET", f"{node}/jobs", read_idle_ms=JOBS_MS))
        raise_for_status(answer.status, answer.headers, answer.body, "jobs")
        try:
            return msgspec.json.decode(answer.body, type=NodeJobs)
        except msgspec.MsgspecError as error:
            cause = "its answer is no list of jobs; is it of another version?"
            raise CheloniaError(Kind.BAD_REQUEST, "jobs", node, cause) from error

    async def approve(self, record: ServiceRecord) -> None:
        """Approve (or, with `approved` False, withdraw) a service. Raises: as `nodes`."""
        await self.librarian.approve(new_call(), record)

    async def maintenance(self, shepherd: str, duration_ms: int) -> Ms:
        """Announce planned absence from now on (0 ends it); return until when. Raises: as `nodes`, NOT_FOUND."""
        until = Ms(self.clock.now_ms() + duration_ms if duration_ms else 0)
        await self.librarian.maintenance(new_call(), ServiceId(shepherd), until)
        return until

    async def drain(self, shepherd: str, *, on: bool) -> None:
        """Have a Shepherd emptied, or no longer. Raises: as `nodes`, NOT_FOUND."""
        await self.librarian.drain(new_call(), ServiceId(shepherd), on)

    async def forget(self, shepherd: str, *, check_only: bool, accept_loss: bool) -> AsyncGenerator[ForgetPage, None]:
        """Declare a Shepherd lost for good, page by page, or only say what would be lost with it.

        The last page says whether it is `forgotten`. Raises: as `nodes`, NOT_FOUND, CONFLICT while it is alive.
        """
        after = ""
        while True:
            page = await self.librarian.forget(new_call(), ServiceId(shepherd), after, check_only, accept_loss)
            yield page
            after = page.after
            if not after:
                return
