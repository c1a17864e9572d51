"""Typed stubs of the four ports over SOAP: what a caller holds when the service is not in its own process.

A `Channel` carries calls to one service that may have several instances: it stays with one while it answers, goes on
to the next when it does not, asks the next beside it when it is silent (frozen, or cut off), and repeats a call within
a deadline with the same request key, so that a change applies once. Context travels in headers: `X-Request-Id`,
`Chelonia-Request-Key`, `Chelonia-Service` where one certificate serves several services, and `Chelonia-Read-After` with
the newest position that any answer told, so that instances that differ in how far they are show one history. Errors
arrive as they left the other side; those of the transport name target and cure.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from chelonia.core import ahash, bartender, librarian, shepherd
from chelonia.core.caller import Call
from chelonia.core.drills import DrillOrder, DrillStatus, ShepherdDrill
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.healing import ForgetPage, HealOrder, HealStatus, Word
from chelonia.core.ids import BlobId, Guid, Ms, ObjectId, ReferenceId, RequestKey, ServiceId
from chelonia.core.metadata import Filter, StoredObject
from chelonia.core.names import LogicalName
from chelonia.core.position import Horizon, Position, later
from chelonia.core.replicas import Receipt
from chelonia.core.timing.clock import Clock, Ids
from chelonia.core.timing.racing import Race
from chelonia.hosting.net.compact_client import Asking, CompactClient, Silent
from chelonia.hosting.net.http_client import HttpClient, Received, Sending, Unreachable, raise_for_status, target_of
from chelonia.wire import compact, positions, soap
from chelonia.wire.headers import (
    POSITION_HEADER,
    READ_AFTER_HEADER,
    REQUEST_ID_HEADER,
    REQUEST_KEY_HEADER,
    SERVICE_HEADER,
    STRONG_HEADER,
)
from chelonia.wire.operations import Service
from chelonia.wire.operations_ahash import AHASH
from chelonia.wire.operations_bartender import BARTENDER
from chelonia.wire.operations_librarian import LIBRARIAN
from chelonia.wire.operations_shepherd import SHEPHERD

T = TypeVar("T")

AGAIN: Final = frozenset({Kind.NETWORK, Kind.UNAVAILABLE, Kind.OUTCOME_UNKNOWN, Kind.TIMEOUT, Kind.READ_ONLY})
"""Failures after which the same call may be made again, elsewhere or later."""
_UNHEARD: Final = frozenset({Kind.NETWORK, Kind.TIMEOUT, Kind.UNTRUSTED})
"""Failures that may be the transport's."""
ONCE: Final = frozenset({"change", "regroup", "backup"})
"""Operations without a request key that must not be repeated once they may have arrived."""
KEYED: Final = frozenset(
    {
        "new", "modify_metadata", "remove", "make_entry", "begin_put", "commit_put", "commit_file", "unlink", "delete",
        "unmake", "move", "set_wanted", "make_collection", "unmake_collection", "make_mountpoint", "unmake_mountpoint",
        "put_file", "del_file", "modify", "start_put", "drill",
    }
)  # fmt: skip
"""Changes that get a request key of their own when the caller gave none, because a retry must apply once."""


COMPACT: Final = frozenset({AHASH.name})
"""Services asked in the compact encoding where they offer it: a profile shows XML as their cost, and they check
every count and size themselves (SOAP's codec checks them for others)."""
AHASH_HEDGE_MS: Final = 400
"""Below this a replica of the A-Hash that is well has answered somebody; an election takes as long."""
AHASH_READ_HEDGE_MS: Final = 120
"""The same for reads, most of which any replica can answer at once: many times what one takes on a busy host."""
READS: Final = frozenset({"get", "walk", "scan", "objects"})
"""Operations of the A-Hash that change nothing and are brief: another replica is asked sooner."""
COMPACT_MS: Final = 60_000
"""How long an answer in the compact encoding is waited for."""
READING_MS: Final = 15 * 60 * 1000
"""How long the answer to what reads whole replicas, or many records, is waited for."""
COPY_MS: Final = 365 * 24 * 3_600 * 1000
"""How long the answer to `copy` is waited for here, as good as for ever: who asks gives up when the claim is over."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How hard a channel tries.

    `retry_ms`: for how long after the first failure a call is repeated (0: every instance is asked once);
    `pause_ms`: between two rounds over all instances; `read_ms`: for one answer (0: the client's default);
    `hedge_ms`: an instance that has answered nobody for so long has the next one asked beside it;
    `hedge_read_ms`: the same for `READS` (0: as for all).
    """

    retry_ms: int = 10_000
    pause_ms: int = 200
    read_ms: int = 0
    hedge_ms: int = 1_000
    hedge_read_ms: int = 0


@dataclass(frozen=True, slots=True)
class Link:
    """What every channel of a process shares.

    `service_id`: the caller's own, where its certificate serves several; `trouble`: told target and reason of each
    failure after which a call is repeated; `horizon`: the newest position that services told this process;
    `compact`: asks in the compact encoding where it is offered.
    """

    client: HttpClient
    clock: Clock
    ids: Ids
    service_id: ServiceId = ServiceId("")
    trouble: Callable[[str, str], None] | None = None
    horizon: Horizon = field(default_factory=Horizon)
    strong: bool = False
    """Whether every call reads the newest acknowledged state: for who forgets positions between two calls."""
    compact: CompactClient | None = None


def _is_answer(error: BaseException | None) -> bool:
    """Whether a try has come to an end that another instance would only repeat."""
    return not (isinstance(error, CheloniaError) and (error.kind in AGAIN or error.kind is Kind.UNTRUSTED))


class Channel:
    """Carries calls to one service, over one or several URLs of it."""

    def __init__(self, link: Link, service: Service, urls: Sequence[str], patience: Patience | None = None) -> None:
        """Raises: BAD_CONFIG without a URL."""
        if not urls:
            raise CheloniaError(Kind.BAD_CONFIG, service.name, cause=f"no URL of a {service.name} is known")
        self._link = link
        self._service = service
        self._patience = patience or Patience()
        start = int(link.ids.uniform() * len(urls))
        self._urls = [*urls[start:], *urls[:start]]
        self._current = 0
        self._heard: dict[str, int] = {}
        self._compact = compact.methods(service) if link.compact is not None and service.name in COMPACT else {}

    async def call(self, call: Call, method: str, *args: Any, _as: type[T] | None = None) -> T:
        """Make one call of the port method `method`. Raises: what the service raised, NETWORK, TIMEOUT, UNTRUSTED."""
        if self._link.strong:
            call = call.strongly()
        if method in KEYED and not call.request_key:
            call = call.keyed(RequestKey(self._link.ids.uuid()))
        give_up = self._link.clock.monotonic_ms() + self._patience.retry_ms
        tried = hopeless = 0
        while True:
            current = self._current
            try:
                answer: T = await self._ask(current, call, method, args)
                return answer
            except CheloniaError as error:
                tried += 1
                hopeless += isinstance(error, Unreachable)
                if hopeless == tried >= len(self._urls) or not self._may_repeat(error, method, tried, give_up):
                    raise
                if self._link.trouble is not None:
                    self._link.trouble(target_of(self._urls[current]), error.cause)
            if self._current == current:  # another call may have gone on already
                self._current = (current + 1) % len(self._urls)
            if tried % len(self._urls) == 0:
                await self._link.clock.sleep(self._patience.pause_ms)

    def _may_repeat(self, error: CheloniaError, method: str, tried: int, give_up: int) -> bool:
        if method in ONCE:
            return False
        if tried < len(self._urls):
            return not _is_answer(error)
        return error.kind in AGAIN and self._link.clock.monotonic_ms() + self._patience.pause_ms < give_up

    async def _ask(self, first: int, call: Call, method: str, args: tuple[Any, ...]) -> Any:
        """Ask one instance, and the next beside it for as long as the last one asked is silent; the first to answer
        is the one to stay with."""
        url, client = self._urls[first], self._link.compact
        hedge_ms = 0
        if len(self._urls) > 1 and method not in ONCE:
            hedge_ms = (self._patience.hedge_read_ms if method in READS else 0) or self._patience.hedge_ms

        def trying(number: int) -> Coroutine[Any, Any, Any]:
            return self._once(self._urls[number], call, method, args)

        standing = client.standing(url) if client is not None and method in self._compact else None
        if standing is None:
            return await (self._race(first, trying, trying(first), (hedge_ms, hedge_ms)) if hedge_ms else trying(first))
        try:  # what is answered soon needs no task and no timer of its own
            answer = self._unpacked(await standing.ask(self._asking(call, method, args, hedge_ms)), url, method)
        except Silent as silent:
            begun = self._packed(silent.rest, url, call, method, args)
            return await self._race(first, trying, begun, (0, hedge_ms))
        except CheloniaError as error:
            if not self._goes_by_soap(error, url):
                raise
            answer = await self._by_soap(url, call, method, args)
        if hedge_ms:
            self._current = first
        return answer

    async def _race(
        self, first: int, trying: Callable[[int], Coroutine[Any, Any, Any]], begun: Coroutine[Any, Any, Any],
        pauses_ms: tuple[int, int],
    ) -> Any:  # fmt: skip
        """Wait for what was `begun` with one instance, `trying` others beside it: after the first pause if it has been
        silent, after the second each further one."""
        pause_ms, hedge_ms = pauses_ms
        left = [(first + step) % len(self._urls) for step in range(1, len(self._urls))]
        async with Race[int, Any](self._link.clock) as race:
            race.begin(first, begun)
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
        """Whether an instance has answered nobody for a while: one call that takes long is no sign of trouble."""
        heard = self._heard.get(url)
        return heard is None or self._link.clock.monotonic_ms() - heard >= hedge_ms

    def _heard_from(self, url: str, error: CheloniaError | None = None) -> None:
        """Note when an instance answered, be it with a failure; where there is but one nobody asks."""
        if len(self._urls) > 1 and (error is None or error.kind not in _UNHEARD):
            self._heard[url] = self._link.clock.monotonic_ms()

    async def _once(self, url: str, call: Call, method: str, args: tuple[Any, ...]) -> Any:
        """Ask one instance."""
        client = self._link.compact
        if client is None or method not in self._compact or not client.speaks(url):
            return await self._by_soap(url, call, method, args)
        return await self._packed(client.ask(url, self._asking(call, method, args)), url, call, method, args)

    def _asking(self, call: Call, method: str, args: tuple[Any, ...], silent_ms: int = 0) -> Asking:
        after = later(call.read_after, self._link.horizon.newest)
        words = compact.Asking(
            0, self._service.name, method, call.request_id, call.request_key, self._link.service_id, after,
            call.strong, args,
        )  # fmt: skip
        return Asking(words, self._patience.read_ms or COMPACT_MS, silent_ms)

    async def _packed(
        self, answer: Awaitable[compact.Answered], url: str, call: Call, method: str, args: tuple[Any, ...]
    ) -> Any:
        """What came of asking in the compact encoding; by SOAP where it is not spoken. Raises: as `Connection.ask`."""
        try:
            return self._unpacked(await answer, url, method)
        except CheloniaError as error:
            if not self._goes_by_soap(error, url):
                raise
            return await self._by_soap(url, call, method, args)

    def _unpacked(self, answered: compact.Answered, url: str, method: str) -> Any:
        if answered.position is not None:
            self._saw(answered.position)
        result = compact.decode_result(self._compact[method], answered)
        self._heard_from(url)
        return result

    def _goes_by_soap(self, error: CheloniaError, url: str) -> bool:
        """Whether that instance does not speak the compact encoding: it is asked by SOAP from now on."""
        if error.kind is not Kind.NOT_SUPPORTED or error.op != "compact":
            self._heard_from(url, error)
            return False
        assert self._link.compact is not None
        self._link.compact.by_soap(url)
        return True

    async def _by_soap(self, url: str, call: Call, method: str, args: tuple[Any, ...]) -> Any:
        body = soap.encode_request(self._service, method, args)
        sending = Sending("POST", url, self._headers(call), body, read_idle_ms=self._patience.read_ms)
        try:
            received = await self._link.client.request(sending)
        except CheloniaError as error:
            self._heard_from(url, error)
            raise
        self._heard_from(url)
        self._note_position(received)
        if received.headers.get("Content-Type", "").startswith("text/xml"):
            return soap.decode_response(self._service, method, received.body)
        raise_for_status(received.status, received.headers, received.body, method)
        raise CheloniaError(Kind.BAD_XML, method, cause=f"HTTP {received.status} without an XML answer")

    def _saw(self, position: Position) -> None:
        """Shepherds keep no metadata: what they say of it is hearsay and would bind this whole process."""
        if self._service.name != SHEPHERD.name:
            self._link.horizon.saw(position)

    def _note_position(self, received: Received) -> None:
        told = received.headers.get(POSITION_HEADER, "")
        if told:
            try:
                self._saw(positions.from_header(told))
            except CheloniaError as error:
                raise CheloniaError(Kind.BAD_XML, self._service.name, cause=error.cause) from error

    def _headers(self, call: Call) -> dict[str, str]:
        headers = {"Content-Type": soap.CONTENT_TYPE, "SOAPAction": '""'}
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


class RemoteAHash:
    """`core.ahash.AHash` over SOAP."""

    def __init__(self, link: Link, urls: Sequence[str], patience: Patience | None = None) -> None:
        hedged = Patience(hedge_ms=AHASH_HEDGE_MS, hedge_read_ms=AHASH_READ_HEDGE_MS)
        self._channel = Channel(link, AHASH, urls, patience or hedged)
        self._ids = link.ids

    async def get(self, call: Call, ids: tuple[ObjectId, ...], needed: Filter = ()) -> tuple[StoredObject, ...]:
        """See the port."""
        return await self._channel.call(call, "get", ids, needed)

    async def change(self, call: Call, elements: tuple[ahash.Element, ...]) -> tuple[ahash.ChangeOutcome, ...]:
        """See the port; never repeated by itself."""
        return await self._channel.call(call, "change", elements)

    async def transact(
        self, call: Call, key: RequestKey, elements: tuple[ahash.Element, ...], memo: str = ""
    ) -> ahash.TransactOutcome:
        """See the port. An empty key is replaced by a fresh one: a repeated call must apply once."""
        own = key or RequestKey(self._ids.uuid())
        return await self._channel.call(call, "transact", own, elements, memo)

    async def recall(self, call: Call, key: RequestKey) -> ahash.TransactOutcome | None:
        """See the port."""
        found: ahash.TransactOutcome | None = await self._channel.call(call, "recall", key)
        return found

    async def walk(
        self, call: Call, walks: tuple[ahash.Walk, ...], needed: Filter = ()
    ) -> tuple[ahash.WalkOutcome, ...]:
        """See the port."""
        return await self._channel.call(call, "walk", walks, needed)

    async def scan(
        self, call: Call, object_id: ObjectId, section: str, after: str = "", limit: int = 1000
    ) -> ahash.Page:
        """See the port."""
        return await self._channel.call(call, "scan", object_id, section, after, limit)

    async def backup(self, call: Call, name: str) -> str:
        """See the port; never repeated by itself."""
        return await self._channel.call(call, "backup", name)

    async def regroup(self, call: Call, change: ahash.GroupChange) -> ahash.AHashStatus:
        """See the port; never repeated by itself."""
        return await self._channel.call(call, "regroup", change)

    async def objects(self, call: Call, after: str = "", limit: int = 1000) -> ahash.ObjectPage:
        """See the port."""
        return await self._channel.call(call, "objects", after, limit)

    async def status(self, call: Call) -> ahash.AHashStatus:
        """See the port."""
        return await self._channel.call(call, "status")


class RemoteLibrarian:
    """`core.librarian.Librarian` over SOAP."""

    def __init__(self, link: Link, urls: Sequence[str], patience: Patience | None = None) -> None:
        self._channel = Channel(link, LIBRARIAN, urls, patience)

    async def new(self, call: Call, requests: tuple[librarian.NewRequest, ...]) -> tuple[librarian.NewOutcome, ...]:
        """See the port."""
        return await self._channel.call(call, "new", requests)

    async def get(self, call: Call, guids: tuple[Guid, ...], needed: Filter = ()) -> tuple[StoredObject, ...]:
        """See the port."""
        return await self._channel.call(call, "get", guids, needed)

    async def traverse(
        self, call: Call, names: tuple[LogicalName, ...], needed: Filter = ()
    ) -> tuple[librarian.Traversal, ...]:
        """See the port."""
        return await self._channel.call(call, "traverse", names, needed)

    async def modify_metadata(
        self, call: Call, requests: tuple[librarian.ModifyRequest, ...]
    ) -> tuple[librarian.ModifyOutcome, ...]:
        """See the port."""
        return await self._channel.call(call, "modify_metadata", requests)

    async def remove(self, call: Call, requests: tuple[tuple[str, Guid], ...]) -> tuple[librarian.RemoveOutcome, ...]:
        """See the port."""
        return await self._channel.call(call, "remove", requests)

    async def report(self, call: Call, report: librarian.Report) -> librarian.ReportAnswer:
        """See the port."""
        return await self._channel.call(call, "report", report)

    async def make_entry(self, call: Call, request: librarian.MakeEntry) -> Guid:
        """See the port."""
        return await self._channel.call(call, "make_entry", request)

    async def begin_put(self, call: Call, request: librarian.BeginPut) -> librarian.Begun:
        """See the port."""
        return await self._channel.call(call, "begin_put", request)

    async def commit_put(self, call: Call, guid: Guid, receipts: tuple[Receipt, ...]) -> librarian.Committed:
        """See the port."""
        return await self._channel.call(call, "commit_put", guid, receipts)

    async def commit_file(self, call: Call, request: librarian.CommitFile) -> librarian.Committed:
        """See the port."""
        return await self._channel.call(call, "commit_file", request)

    async def unlink(self, call: Call, request: librarian.Unlink) -> None:
        """See the port."""
        await self._channel.call(call, "unlink", request, _as=Any)

    async def delete(self, call: Call, request: librarian.Delete) -> None:
        """See the port."""
        await self._channel.call(call, "delete", request, _as=Any)

    async def unmake(self, call: Call, request: librarian.Unmake) -> None:
        """See the port."""
        await self._channel.call(call, "unmake", request, _as=Any)

    async def move(self, call: Call, request: librarian.Move) -> None:
        """See the port."""
        await self._channel.call(call, "move", request, _as=Any)

    async def undelete(self, call: Call, request: librarian.Undelete) -> None:
        """See the port."""
        await self._channel.call(call, "undelete", request, _as=Any)

    async def trash(self, call: Call, under: str, after: str, limit: int) -> librarian.TrashPage:
        """See the port."""
        return await self._channel.call(call, "trash", under, after, limit)

    async def set_wanted(self, call: Call, request: librarian.SetWanted) -> None:
        """See the port."""
        await self._channel.call(call, "set_wanted", request, _as=Any)

    async def entries(self, call: Call, guid: Guid, after: str, limit: int, needed: Filter = ()) -> librarian.EntryPage:
        """See the port."""
        return await self._channel.call(call, "entries", guid, after, limit, needed)

    async def recall(self, call: Call) -> str | None:
        """See the port."""
        found: str | None = await self._channel.call(call, "recall")
        return found

    async def heartbeat(self, call: Call, beat: librarian.Heartbeat) -> librarian.HeartbeatAnswer:
        """See the port."""
        return await self._channel.call(call, "heartbeat", beat)

    async def hearing(self, call: Call, shepherds: tuple[ServiceId, ...]) -> tuple[Word, ...]:
        """See the port."""
        return await self._channel.call(call, "hearing", shepherds)

    async def consider(self, call: Call, blobs: tuple[BlobId, ...]) -> None:
        """See the port."""
        await self._channel.call(call, "consider", blobs)

    async def inventory(self, call: Call, shepherd: ServiceId, after: str, limit: int) -> librarian.InventoryPage:
        """See the port."""
        return await self._channel.call(call, "inventory", shepherd, after, limit)

    async def nodes(self, call: Call) -> tuple[librarian.NodeView, ...]:
        """See the port."""
        return await self._channel.call(call, "nodes")

    async def services(self, call: Call) -> tuple[librarian.ServiceRecord, ...]:
        """See the port."""
        return await self._channel.call(call, "services")

    async def approve(self, call: Call, record: librarian.ServiceRecord) -> None:
        """See the port."""
        await self._channel.call(call, "approve", record, _as=Any)

    async def maintenance(self, call: Call, shepherd: ServiceId, until_ms: Ms) -> None:
        """See the port."""
        await self._channel.call(call, "maintenance", shepherd, until_ms, _as=Any)

    async def drain(self, call: Call, shepherd: ServiceId, on: bool) -> None:
        """See the port."""
        await self._channel.call(call, "drain", shepherd, on, _as=Any)

    async def forget(
        self, call: Call, shepherd: ServiceId, after: str, check_only: bool, accept_loss: bool
    ) -> ForgetPage:
        """See the port."""
        return await self._channel.call(call, "forget", shepherd, after, check_only, accept_loss)

    async def heal_status(self, call: Call) -> HealStatus:
        """See the port."""
        return await self._channel.call(call, "heal_status")

    async def heal_order(self, call: Call, order: HealOrder) -> HealStatus:
        """See the port."""
        return await self._channel.call(call, "heal_order", order)

    async def drill(self, call: Call, order: DrillOrder) -> DrillStatus:
        """See the port."""
        return await self._channel.call(call, "drill", order)

    async def drill_status(self, call: Call) -> DrillStatus:
        """See the port."""
        return await self._channel.call(call, "drill_status")

    async def health(self, call: Call) -> librarian.HealthSummary:
        """See the port."""
        return await self._channel.call(call, "health")

    async def fsck(self, call: Call, below: Guid, cursor: str) -> librarian.FsckPage:
        """See the port."""
        return await self._channel.call(call, "fsck", below, cursor)

    async def rebuild(self, call: Call, begin: bool, late: ServiceId = librarian.NOBODY) -> librarian.RebuildStatus:
        """See the port."""
        return await self._channel.call(call, "rebuild", begin, late)

    async def mend(self, call: Call, findings: tuple[librarian.Finding, ...]) -> tuple[librarian.Mended, ...]:
        """See the port."""
        return await self._channel.call(call, "mend", findings)


class RemoteShepherd:
    """`core.shepherd.Shepherd` over SOAP."""

    def __init__(self, link: Link, urls: Sequence[str], patience: Patience | None = None) -> None:
        self._channel = Channel(link, SHEPHERD, urls, patience or Patience(retry_ms=0))
        self._copying = Channel(link, SHEPHERD, urls, Patience(retry_ms=0, read_ms=COPY_MS))
        self._reading = Channel(link, SHEPHERD, urls, Patience(retry_ms=0, read_ms=READING_MS))

    async def get(self, call: Call, requests: tuple[shepherd.GetRequest, ...]) -> tuple[shepherd.TurlOutcome, ...]:
        """See the port."""
        return await self._channel.call(call, "get", requests)

    async def put(self, call: Call, requests: tuple[shepherd.PutRequest, ...]) -> tuple[shepherd.TurlOutcome, ...]:
        """See the port."""
        return await self._channel.call(call, "put", requests)

    async def stat(
        self, call: Call, references: tuple[tuple[str, ReferenceId], ...]
    ) -> tuple[shepherd.StatOutcome, ...]:
        """See the port."""
        return await self._channel.call(call, "stat", references)

    async def delete(
        self, call: Call, references: tuple[tuple[str, ReferenceId], ...], authority: shepherd.Authority | None
    ) -> tuple[shepherd.DeleteOutcome, ...]:
        """See the port."""
        return await self._channel.call(call, "delete", references, authority)

    async def toggle_report(self, call: Call, on: bool) -> bool:
        """See the port."""
        return await self._channel.call(call, "toggle_report", on)

    async def copy(self, call: Call, order: shepherd.CopyOrder) -> Receipt:
        """See the port."""
        return await self._copying.call(call, "copy", order)

    async def prove(self, call: Call, challenge: shepherd.Challenge) -> tuple[str, ...]:
        """See the port."""
        return await self._reading.call(call, "prove", challenge)

    async def drill(self, call: Call, order: ShepherdDrill) -> int:
        """See the port."""
        return await self._channel.call(call, "drill", order)

    async def scrub(self, call: Call, references: tuple[ReferenceId, ...]) -> int:
        """See the port."""
        return await self._reading.call(call, "scrub", references)

    async def records(self, call: Call, after: str, limit: int) -> shepherd.RecordPage:
        """See the port."""
        return await self._reading.call(call, "records", after, limit)

    async def scrub_page(self, call: Call, order: shepherd.ScrubOrder) -> shepherd.ScrubPage:
        """See the port."""
        return await self._reading.call(call, "scrub_page", order)

    async def discard(self, call: Call, references: tuple[ReferenceId, ...]) -> int:
        """See the port."""
        return await self._reading.call(call, "discard", references)

    async def readmit(self, call: Call) -> int:
        """See the port."""
        return await self._reading.call(call, "readmit")

    async def status(self, call: Call) -> shepherd.ShepherdStatus:
        """See the port."""
        return await self._channel.call(call, "status")


class RemoteBartender:
    """`core.bartender.Bartender` over SOAP."""

    def __init__(self, link: Link, urls: Sequence[str], patience: Patience | None = None) -> None:
        self._channel = Channel(link, BARTENDER, urls, patience)

    async def stat(self, call: Call, requests: tuple[bartender.NameRequest, ...]) -> tuple[bartender.StatOutcome, ...]:
        """See the port."""
        return await self._channel.call(call, "stat", requests)

    async def list(
        self, call: Call, requests: tuple[bartender.ListRequest, ...], needed: Filter, recursive: bool
    ) -> tuple[bartender.ListOutcome, ...]:
        """See the port."""
        return await self._channel.call(call, "list", requests, needed, recursive)

    async def make_collection(
        self, call: Call, requests: tuple[bartender.MakeRequest, ...]
    ) -> tuple[bartender.Outcome, ...]:
        """See the port."""
        return await self._channel.call(call, "make_collection", requests)

    async def unmake_collection(
        self, call: Call, requests: tuple[bartender.NameRequest, ...]
    ) -> tuple[bartender.Outcome, ...]:
        """See the port."""
        return await self._channel.call(call, "unmake_collection", requests)

    async def make_mountpoint(
        self, call: Call, requests: tuple[bartender.MakeRequest, ...]
    ) -> tuple[bartender.Outcome, ...]:
        """See the port."""
        return await self._channel.call(call, "make_mountpoint", requests)

    async def unmake_mountpoint(
        self, call: Call, requests: tuple[bartender.NameRequest, ...]
    ) -> tuple[bartender.Outcome, ...]:
        """See the port."""
        return await self._channel.call(call, "unmake_mountpoint", requests)

    async def move(self, call: Call, requests: tuple[bartender.MoveRequest, ...]) -> tuple[bartender.Outcome, ...]:
        """See the port."""
        return await self._channel.call(call, "move", requests)

    async def put_file(
        self, call: Call, requests: tuple[bartender.PutFileRequest, ...]
    ) -> tuple[bartender.TransferOutcome, ...]:
        """See the port."""
        return await self._channel.call(call, "put_file", requests)

    async def get_file(
        self, call: Call, requests: tuple[bartender.GetFileRequest, ...]
    ) -> tuple[bartender.TransferOutcome, ...]:
        """See the port."""
        return await self._channel.call(call, "get_file", requests)

    async def add_replica(
        self, call: Call, requests: tuple[bartender.AddReplicaRequest, ...], protocols: tuple[str, ...]
    ) -> tuple[bartender.TransferOutcome, ...]:
        """See the port."""
        return await self._channel.call(call, "add_replica", requests, protocols)

    async def del_file(self, call: Call, requests: tuple[bartender.NameRequest, ...]) -> tuple[bartender.Outcome, ...]:
        """See the port."""
        return await self._channel.call(call, "del_file", requests)

    async def unlink(self, call: Call, requests: tuple[bartender.NameRequest, ...]) -> tuple[bartender.Outcome, ...]:
        """See the port."""
        return await self._channel.call(call, "unlink", requests)

    async def undelete(
        self, call: Call, requests: tuple[bartender.UndeleteRequest, ...]
    ) -> tuple[bartender.Outcome, ...]:
        """See the port."""
        return await self._channel.call(call, "undelete", requests)

    async def list_deleted(
        self, call: Call, requests: tuple[bartender.ListRequest, ...]
    ) -> tuple[bartender.ListDeletedOutcome, ...]:
        """See the port."""
        return await self._channel.call(call, "list_deleted", requests)

    async def modify(self, call: Call, requests: tuple[bartender.ModifyRequest, ...]) -> tuple[bartender.Outcome, ...]:
        """See the port."""
        return await self._channel.call(call, "modify", requests)

    async def start_put(
        self, call: Call, requests: tuple[bartender.StartPutRequest, ...]
    ) -> tuple[bartender.StartPutOutcome, ...]:
        """See the port."""
        return await self._channel.call(call, "start_put", requests)

    async def commit_put(
        self, call: Call, requests: tuple[bartender.CommitPutRequest, ...]
    ) -> tuple[bartender.Outcome, ...]:
        """See the port."""
        return await self._channel.call(call, "commit_put", requests)
