"""Stubs of the six ports, for callers in another process than the service.

One generic stub serves every port: its methods come from `core.operations`, its type is the port's Protocol. The first
call loads what its port needs: most commands call one port of six.

A `Channel` carries calls to one service that may have several instances. It stays with one while that answers, and goes
on to the next when it does not. It calls the next beside one that is silent (frozen, or cut off). It repeats a call
within a deadline with the same request key, so that a change applies once. Errors arrive as they left the other side;
those of the transport name target and cure.

Context travels in headers: `X-Request-Id`, `Chelonia-Request-Key`, and `Chelonia-Service` where one certificate serves
several services. `Chelonia-Read-After` has the newest position of all answers, so that instances show one history.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from chelonia.core.caller import Call
from chelonia.core.cluster.position import Horizon, Position, later
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import RequestKey, ServiceId
from chelonia.core.operations.rows import PortMethod, PortTable, Retry
from chelonia.core.timing.clock import Clock, Ids
from chelonia.core.timing.racing import Race, beside
from chelonia.hosting.net.clock import SystemClock, SystemIds
from chelonia.hosting.net.compact_client import CompactClient, PendingCall, Silent
from chelonia.hosting.net.http_client import (
    ClientLimits,
    HttpClient,
    Received,
    Sending,
    Unreachable,
    raise_for_status,
    target_of,
)
from chelonia.hosting.net.tls import TlsStore
from chelonia.wire import compact, positions
from chelonia.wire.web.headers import (
    ERROR_HEADER,
    POSITION_HEADER,
    READ_AFTER_HEADER,
    REQUEST_ID_HEADER,
    REQUEST_KEY_HEADER,
    SERVICE_HEADER,
    STRONG_HEADER,
)

if TYPE_CHECKING:
    from chelonia.core.ports.access_keys import AccessKeys
    from chelonia.core.ports.ahash import AHash
    from chelonia.core.ports.bartender import Bartender
    from chelonia.core.ports.files import Files
    from chelonia.core.ports.librarian import Librarian
    from chelonia.core.ports.shepherd import Shepherd
    from chelonia.wire.operations.table import Service

AGAIN: Final = frozenset({Kind.NETWORK, Kind.UNAVAILABLE, Kind.OUTCOME_UNKNOWN, Kind.TIMEOUT, Kind.READ_ONLY})
"""Failures after which the same call may be made again, elsewhere or later."""
_UNHEARD: Final = frozenset({Kind.NETWORK, Kind.TIMEOUT, Kind.UNTRUSTED})
"""Failures that may be the transport's."""
_OTHER_DOOR: Final = (404, 405, 415)
"""Statuses of a listener that serves something else at this path: nothing, or a door of users."""
AHASH_HEDGE_MS: Final = 400
"""A healthy replica of the A-Hash has answered some call by then; an election takes as long."""
AHASH_READ_HEDGE_MS: Final = 120
"""The same for reads, most of which any replica can answer at once: many times what one takes on a busy host."""
COMPACT_MS: Final = 60_000
"""Longest wait for an answer in the compact encoding."""


class RetryLimits(msgspec.Struct, frozen=True):
    """Limits of a channel's tries.

    - `retry_ms`: time after the first failure in which a call is repeated (0: every instance is called once)
    - `pause_ms`: between two rounds over all instances
    - `read_ms`: for one answer (0: the client's default), unless the operation takes longer
    - `hedge_ms`: silence of an instance after which the next is called beside it
    - `hedge_read_ms`: the same for brief operations (0: as for all)
    """

    retry_ms: int = 10_000
    pause_ms: int = 200
    read_ms: int = 0
    hedge_ms: int = 1_000
    hedge_read_ms: int = 0


class Link(msgspec.Struct, frozen=True):
    """Parts that all channels of a process share.

    - `service_id`: the caller's own, where its certificate serves several
    - `trouble`: called with target and reason of each failure after which a call is repeated
    - `horizon`: the newest position in services' answers to this process
    - `compact`: for all calls that have a compact encoding; None: all go by SOAP
    """

    client: HttpClient
    clock: Clock
    ids: Ids
    service_id: ServiceId = ServiceId("")
    trouble: Callable[[str, str], None] | None = None
    horizon: Horizon = msgspec.field(default_factory=Horizon)
    strong: bool = False
    """Whether every call reads the newest acknowledged state: for callers that keep no positions between calls."""
    compact: CompactClient | None = None


def open_link(tls: TlsStore, limits: ClientLimits | None = None) -> Link:
    """Return a link with connections of its own, in both encodings. Its `client` closes them."""
    clock = SystemClock()
    client = HttpClient(functools.cache(tls.client_context), limits)
    client.compact = CompactClient(tls.client_context(speaks=compact.PROTOCOL), client.round_trips)
    client.renew = tls.reload_if_changed
    return Link(client, clock, SystemIds(), compact=client.compact)


def _is_answer(error: BaseException | None) -> bool:
    """Return whether a try has come to an end that another instance would only repeat."""
    return not (isinstance(error, CheloniaError) and (error.kind in AGAIN or error.kind is Kind.UNTRUSTED))


class ChannelMethod(msgspec.Struct, frozen=True, eq=False):
    """One method of a channel, made for its first call. `form`: its compact encoding (None: only SOAP). `read_ms`,
    `hedge_ms`: as in `RetryLimits`; 0: the client's default, and no instance beside it."""

    name: str
    row: PortMethod
    form: compact.Method | None
    read_ms: int
    hedge_ms: int


class Channel:
    """Carries calls to one service, over one or several URLs of it."""

    def __init__(
        self, link: Link, service: Service | str, urls: Sequence[str], patience: RetryLimits | None = None
    ) -> None:
        """Args: service: its module's name in `core.operations`, or its SOAP form. Raises: BAD_CONFIG without a URL."""
        self._form = None if isinstance(service, str) else service
        self.table = _rows_of(service) if isinstance(service, str) else service.table
        self._name = self.table.name
        if not urls:
            raise CheloniaError(Kind.BAD_CONFIG, self._name, cause=f"no URL of a {self._name} is known")
        self._link = link
        self._patience = patience or RetryLimits()
        start = int(link.ids.uniform() * len(urls))
        self._urls = [*urls[start:], *urls[:start]]
        self._current = 0
        self._answered_ms: dict[str, int] = {}
        self._methods: dict[str, ChannelMethod] = {}

    async def call(self, call: Call, method: str, *args: Any) -> Any:
        """Make one call of the port method `method`. Raises: the service's error, NETWORK, TIMEOUT, UNTRUSTED."""
        assert not call.scopes, "no encoding tells how a call is narrowed: its door stands beside the service"
        if self._link.strong:
            call = call.strongly()
        operation = self._method(method)
        row = operation.row
        if row.retry is Retry.KEYED and not call.request_key:
            call = call.keyed(RequestKey(self._link.ids.uuid()))
        elif row.retry is Retry.KEY_ARGUMENT and not args[0]:
            args = (RequestKey(self._link.ids.uuid()), *args[1:])
        give_up = self._link.clock.monotonic_ms() + (0 if row.answer_ms else self._patience.retry_ms)
        tried = hopeless = 0
        while True:
            current = self._current
            try:
                return await self._ask(current, call, operation, args)
            except CheloniaError as error:
                tried += 1
                hopeless += isinstance(error, Unreachable)
                if hopeless == tried >= len(self._urls) or not self._may_repeat(error, row, tried, give_up):
                    raise
                if self._link.trouble is not None:
                    self._link.trouble(target_of(self._urls[current]), error.cause)
            if self._current == current:  # another call may have gone on already
                self._current = (current + 1) % len(self._urls)
            if tried % len(self._urls) == 0:
                await self._link.clock.sleep(self._patience.pause_ms)

    def _may_repeat(self, error: CheloniaError, row: PortMethod, tried: int, give_up: int) -> bool:
        if row.retry is Retry.ONCE:
            return False
        if tried < len(self._urls):
            return not _is_answer(error)
        return error.kind in AGAIN and self._link.clock.monotonic_ms() + self._patience.pause_ms < give_up

    async def _ask(self, first: int, call: Call, method: ChannelMethod, args: tuple[Any, ...]) -> Any:
        """Call one instance, and the next beside it while the last one is silent; stay with the first to answer."""
        url, client, hedge_ms = self._urls[first], self._link.compact, method.hedge_ms

        def trying(number: int) -> Coroutine[Any, Any, Any]:
            return self._once(self._urls[number], call, method, args)

        if hedge_ms and method.row.retry is Retry.KEYED and self._name == "files":
            async with beside(self._ask_after(url, call, hedge_ms // 2)):
                return await self._race(first, trying, trying(first), (hedge_ms, hedge_ms))
        connection = client.open_connection(url) if client is not None and method.form is not None else None
        if connection is None:
            return await (self._race(first, trying, trying(first), (hedge_ms, hedge_ms)) if hedge_ms else trying(first))
        try:  # a quick answer needs no task and no timer of its own
            answer = self._unpacked(await connection.ask(self._asking(call, method, args, hedge_ms)), url, method)
        except Silent as silent:
            return await self._race(first, trying, self._packed(silent.rest, url, method), (0, hedge_ms))
        if hedge_ms:
            self._current = first
        return answer

    async def _ask_after(self, url: str, call: Call, pause_ms: int) -> None:
        """Look at no entry, again and again: a busy instance answers, so that no other one stores the bytes too."""
        look = self._method("look")
        while True:
            await self._link.clock.sleep(pause_ms)
            with suppress(CheloniaError):
                await self._once(url, call, look, ((),))

    async def _race(
        self, first: int, trying: Callable[[int], Coroutine[Any, Any, Any]], started: Coroutine[Any, Any, Any],
        pauses_ms: tuple[int, int],
    ) -> Any:  # fmt: skip
        """Wait for the call `started` with one instance, `trying` others beside it while the last one is silent. The
        next comes after the first pause, each further one after the second."""
        pause_ms, hedge_ms = pauses_ms
        left = [(first + step) % len(self._urls) for step in range(1, len(self._urls))]
        async with Race[int, Any](self._link.clock) as race:
            race.begin(first, started)
            last = first
            while True:
                ended = await race.ended(pause_ms if left else None)
                pause_ms = hedge_ms
                if ended is not None and (not race.running or _is_answer(ended[1].exception())):
                    self._current = ended[0]
                    return ended[1].result()
                if left and (last not in race.running.values() or self._silent(self._urls[last], hedge_ms)):
                    last = left.pop(0)
                    race.begin(last, trying(last))

    def _silent(self, url: str, hedge_ms: int) -> bool:
        """Return whether an instance has answered no call for a while: one long call is no sign of trouble."""
        answered_ms = self._answered_ms.get(url)
        return answered_ms is None or self._link.clock.monotonic_ms() - answered_ms >= hedge_ms

    def _note_answer(self, url: str, error: CheloniaError | None = None) -> None:
        """Note when one of several instances answered, even with a failure."""
        if len(self._urls) > 1 and (error is None or error.kind not in _UNHEARD):
            self._answered_ms[url] = self._link.clock.monotonic_ms()

    async def _once(self, url: str, call: Call, method: ChannelMethod, args: tuple[Any, ...]) -> Any:
        client = self._link.compact
        if client is None or method.form is None:
            return await self._by_soap(url, call, method, args)
        return await self._packed(client.ask(url, self._asking(call, method, args)), url, method)

    def _asking(self, call: Call, method: ChannelMethod, args: tuple[Any, ...], silent_ms: int = 0) -> PendingCall:
        assert method.form is not None, "else it is asked by SOAP"
        after = later(call.read_after, self._link.horizon.newest)
        words = compact.FramedCall(
            0, self._name, method.name, call.request_id, call.request_key, self._link.service_id, after,
            call.strong, method.form.packed(args),
        )  # fmt: skip
        return PendingCall(words, method.read_ms or COMPACT_MS, silent_ms)

    def _method(self, name: str) -> ChannelMethod:
        cached = self._methods.get(name)
        if cached is not None:
            return cached
        row, patience = self.table.by_method[name], self._patience
        form = None if name in compact.SOAP_ALONE else compact.method_of(row)
        hedge_ms = 0
        if len(self._urls) > 1 and row.retry is not Retry.ONCE:
            hedge_ms = (patience.hedge_read_ms if row.brief else 0) or patience.hedge_ms
        made = self._methods[name] = ChannelMethod(name, row, form, row.answer_ms or patience.read_ms, hedge_ms)
        return made

    async def _packed(self, answer: Awaitable[compact.IncomingAnswer], url: str, method: ChannelMethod) -> Any:
        return self._unpacked(await answer, url, method)

    def _unpacked(self, answered: compact.IncomingAnswer, url: str, method: ChannelMethod) -> Any:
        """Return the result in an answer of the compact encoding. Raises: as the service did."""
        assert method.form is not None, "else it is asked by SOAP"
        if answered.position is not None:
            self._saw(answered.position)
        self._note_answer(url)
        return compact.decode_result(method.form, answered)

    @property
    def _soap(self) -> Service:
        """The SOAP form, loaded at its first use."""
        if self._form is None:
            form = importlib.import_module(f"chelonia.wire.operations.{self._name}")
            self._form = cast("Service", getattr(form, self._name.upper()))
        return self._form

    async def _by_soap(self, url: str, call: Call, operation: ChannelMethod, args: tuple[Any, ...]) -> Any:
        from chelonia.wire import soap

        method = operation.name
        body = soap.encode_request(self._soap, method, args)
        sending = Sending(
            "POST",
            url,
            self._headers(call) | {"Content-Type": soap.CONTENT_TYPE},
            body,
            read_idle_ms=operation.read_ms,
        )
        try:
            received = await self._link.client.request(sending)
        except CheloniaError as error:
            self._note_answer(url, error)
            raise
        self._note_answer(url)
        self._note_position(received)
        if received.headers.get("Content-Type", "").startswith("text/xml"):
            return soap.decode_response(self._soap, method, received.body)
        if received.status in _OTHER_DOOR and ERROR_HEADER not in received.headers:
            cause = f"HTTP {received.status}: no {self._name} answers here; is this the right port?"
            raise CheloniaError(Kind.BAD_CONFIG, method, target_of(url), cause)
        raise_for_status(received.status, received.headers, received.body, method)
        raise CheloniaError(Kind.BAD_XML, method, cause=f"HTTP {received.status} without an XML answer")

    def _saw(self, position: Position) -> None:
        """Note a position, unless a Shepherd's: it keeps no metadata, so its word is hearsay."""
        if self._name != "shepherd":
            self._link.horizon.saw(position)

    def _note_position(self, received: Received) -> None:
        header = received.headers.get(POSITION_HEADER, "")
        if header:
            try:
                self._saw(positions.from_header(header))
            except CheloniaError as error:
                raise CheloniaError(Kind.BAD_XML, self._name, cause=error.cause) from error

    def _headers(self, call: Call) -> dict[str, str]:
        headers = {"SOAPAction": '""'}
        if call.request_id:
            headers[REQUEST_ID_HEADER] = call.request_id
        if call.request_key:
            headers[REQUEST_KEY_HEADER] = call.request_key
        after = later(call.read_after, self._link.horizon.newest)
        if after is not None:
            headers[READ_AFTER_HEADER] = positions.to_header(after)
        if call.strong:
            headers[STRONG_HEADER] = "1"
        if self._link.service_id:
            headers[SERVICE_HEADER] = self._link.service_id
        return headers


class _RemotePort:
    """A port whose methods are calls on `channel`, which the first one makes."""

    def __init__(self, make: Callable[[], Channel]) -> None:
        self._make = make

    @functools.cached_property
    def channel(self) -> Channel:
        """The channel of all methods: it knows which instances answer."""
        return self._make()

    def __getattr__(self, name: str) -> Any:
        """Return a method of the port, kept for its next call. Raises: AttributeError for any other name."""
        row = self.channel.table.by_method.get(name)
        if row is None:
            raise AttributeError(name)
        ask = self.__dict__[name] = _asking(self.channel, row)
        return ask


def _asking(channel: Channel, row: PortMethod) -> Callable[..., Coroutine[Any, Any, Any]]:
    call_by, method, count = channel.call, row.method, len(row.arguments)

    def ask(call: Call, *args: Any, **named: Any) -> Coroutine[Any, Any, Any]:
        if named or len(args) != count:
            args = row.filled(args, named)
        return call_by(call, method, *args)

    return ask


def remote(link: Link, service: Service | str, urls: Sequence[str], patience: RetryLimits) -> Any:
    """Return a service's port whose methods are calls on a `Channel`. Raises: BAD_CONFIG without a URL."""
    channel = functools.partial(Channel, link, service, urls, patience)
    if not urls:
        channel()
    return _RemotePort(channel)


def _rows_of(port: str) -> PortTable:
    return cast(PortTable, getattr(importlib.import_module(f"chelonia.core.operations.{port}"), port.upper()))


def remote_ahash(link: Link, urls: Sequence[str], patience: RetryLimits | None = None) -> AHash:
    """Return an A-Hash elsewhere. A transact without a key gets a new one: a repeated call must apply once."""
    hedged = RetryLimits(hedge_ms=AHASH_HEDGE_MS, hedge_read_ms=AHASH_READ_HEDGE_MS)
    return cast("AHash", remote(link, "ahash", urls, patience or hedged))


def remote_librarian(link: Link, urls: Sequence[str], patience: RetryLimits | None = None) -> Librarian:
    """Return a Librarian elsewhere."""
    return cast("Librarian", remote(link, "librarian", urls, patience or RetryLimits()))


def remote_shepherd(link: Link, urls: Sequence[str], patience: RetryLimits | None = None) -> Shepherd:
    """Return a Shepherd elsewhere, which is called once: callers have others."""
    return cast("Shepherd", remote(link, "shepherd", urls, patience or RetryLimits(retry_ms=0)))


def remote_files(link: Link, urls: Sequence[str], patience: RetryLimits | None = None) -> Files:
    """Return the port `Files` of a Bartender elsewhere."""
    return cast("Files", remote(link, "files", urls, patience or RetryLimits()))


def remote_keys(link: Link, urls: Sequence[str]) -> AccessKeys:
    """Return the port `AccessKeys` of a Bartender elsewhere."""
    return cast("AccessKeys", remote(link, "access_keys", urls, RetryLimits()))


def remote_bartender(link: Link, urls: Sequence[str], patience: RetryLimits | None = None) -> Bartender:
    """Return a Bartender elsewhere."""
    return cast("Bartender", remote(link, "bartender", urls, patience or RetryLimits()))
