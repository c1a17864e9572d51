"""The SDK for administrators: their requests to Librarians, A-Hashes and Shepherds, each over its own port.

`chelonia_clients.connect` makes one. A user's `Client` has none of this, and speaks to Bartenders alone. The services
decide who may do what, whatever program calls them.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from chelonia.core.caller import Call
from chelonia.core.cluster.healing import ForgetPage
from chelonia.core.cluster.quotas import QuotaUse
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn, Guid, Ms, ServiceId
from chelonia.core.ports.ahash import AHash
from chelonia.core.ports.librarian import Librarian, ServiceRecord
from chelonia.core.ports.shepherd import Shepherd
from chelonia.core.timing.clock import Clock
from chelonia.core.timing.jobs import NodeJobs
from chelonia.hosting.net.clock import SystemClock
from chelonia.hosting.net.http_client import HttpClient
from chelonia.hosting.net.node_jobs import jobs_of, node_urls
from chelonia_clients.client import new_call

P = ParamSpec("P")
T = TypeVar("T")


def _unknown(service: str) -> str:
    name = service.replace("-", "").lower()
    return (
        f"no {service} is known: give --{name} URL, set CHELONIA_{name.upper()}_URL, write it down by `chelonia setup "
        f"NAME --{name} URL`, or name a --cluster file"
    )


def _asks(
    method: Callable[Concatenate[Librarian, Call, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Administrator, P], Coroutine[Any, Any, T]]:
    """A method that calls the Librarian's own of that name. Raises: BAD_CONFIG too, when no Librarian is known."""

    @functools.wraps(method)
    async def ask(self: Administrator, /, *args: P.args, **named: P.kwargs) -> T:
        return cast(T, await getattr(self.librarian, method.__name__)(new_call(), *args, **named))

    return ask


class Administrator:
    """An administrator's connection. Use as an async context manager, inside one event loop."""

    def __init__(
        self,
        http: HttpClient,
        shepherd: Callable[[ServiceId], Shepherd],
        librarian: Librarian | None,
        ahashes: Mapping[str, AHash],
        clock: Clock | None = None,
    ) -> None:
        """Bind to ports, all of which use the connections of `http`.

        Args:
            shepherd: returns the control port of a Shepherd.
            librarian: None when no URL of one is known.
            ahashes: every known one, by URL.
        """
        self.shepherd = shepherd
        self._librarian = librarian
        self._ahashes = ahashes
        self.http = http
        self.clock: Clock = clock or SystemClock()

    async def __aenter__(self) -> Administrator:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.close()

    @property
    def librarian(self) -> Librarian:
        """The Librarian. Raises: BAD_CONFIG when no URL of one is known."""
        if self._librarian is None:
            raise CheloniaError(Kind.BAD_CONFIG, "admin", cause=_unknown("Librarian"))
        return self._librarian

    @property
    def ahashes(self) -> Mapping[str, AHash]:
        """Every A-Hash that is known, by URL. Raises: BAD_CONFIG when none is."""
        if not self._ahashes:
            raise CheloniaError(Kind.BAD_CONFIG, "admin", cause=_unknown("A-Hash"))
        return self._ahashes

    nodes = _asks(Librarian.nodes)
    services = _asks(Librarian.services)
    health = _asks(Librarian.health)
    heal_status = _asks(Librarian.heal_status)
    heal_order = _asks(Librarian.heal_order)
    drill = _asks(Librarian.drill)
    drill_status = _asks(Librarian.drill_status)
    approve = _asks(Librarian.approve)
    set_quota = _asks(Librarian.set_quota)
    recount_quotas = _asks(Librarian.recount_quotas)

    async def quotas(self) -> tuple[QuotaUse, ...]:
        return await self.librarian.quotas(new_call(), Dn(""), Guid(""))

    def node_urls(self, records: Sequence[ServiceRecord]) -> tuple[str, ...]:
        """Return the base URLs of the approved among these services, and of the known A-Hashes."""
        return node_urls([*self._ahashes, *(record.service_id for record in records if record.approved)])

    async def jobs(self, node: str) -> NodeJobs:
        """Return the background jobs of a node, by its base URL. Raises: NETWORK, DENIED, ..."""
        return await jobs_of(self.http, node)

    async def maintenance(self, shepherd: str, duration_ms: int) -> Ms:
        """Announce a planned absence from now on (0 ends it); return its end, 0 for none. Raises: NOT_FOUND."""
        until = Ms(self.clock.now_ms() + duration_ms if duration_ms else 0)
        await self.librarian.maintenance(new_call(), ServiceId(shepherd), until)
        return until

    async def drain(self, shepherd: str, *, on: bool) -> None:
        """Have a Shepherd emptied, or no longer. Raises: NOT_FOUND."""
        await self.librarian.drain(new_call(), ServiceId(shepherd), on)

    async def forget(self, shepherd: str, *, check_only: bool, accept_loss: bool) -> AsyncGenerator[ForgetPage, None]:
        """Declare a Shepherd lost for good, page by page; with `check_only` only list what would be lost with it.

        The last page says whether it is `forgotten`. Raises: NOT_FOUND, CONFLICT while it is alive.
        """
        after = ""
        while True:
            page = await self.librarian.forget(new_call(), ServiceId(shepherd), after, check_only, accept_loss)
            yield page
            after = page.after
            if not after:
                return
