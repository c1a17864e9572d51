"""Links between the replicas of a group: one mutual-TLS connection per pair, messages behind their length.

The replica with the higher id dials. The other end must show the certificate of a member, and its HELLO must name this
member, this cluster and our version. Other connections are closed with one line in the log.
On the wire: length (u32, big-endian), then one message (`peer_messages.py`). The links read only HELLO, GOODBYE, and
PING and PONG, which measure distances; of other messages only the kind.
Invariants:
- Nothing blocks the event loop; a link whose peer reads nothing is dropped when its queue is full.
- No message is handed over before its sender's HELLO was checked.
- A replica has at most one link, the newest.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, cast

from chelonia.ahash.group import peer_messages
from chelonia.ahash.group.membership import Member, Membership
from chelonia.ahash.group.peer_messages import AnswerFrame, Beat, CallFrame, Goodbye, Hello, Ping, Pong
from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn
from chelonia.core.timing.clock import Clock
from chelonia.core.timing.jobs import Job, Jobs, Next, Wait, every
from chelonia.core.timing.pacing import Backoff

_LOG = logging.getLogger(__name__)

BACKOFF_MIN_MS: Final = 50
BACKOFF_MAX_MS: Final = 1_000
HANDSHAKE_S: Final = 5.0
"""Time for the TLS handshake, and again for the HELLO."""
RECHECK_MS: Final = 10_000
"""Between two checks of open links: certificates may expire or be revoked, a message may stay incomplete."""
PING_MS: Final = 1_000
"""Between two measurements of the distance to each peer."""
TRIPS_KEPT: Final = 30
"""Measurements of which the least counts: delays of a busy host are no distance."""
IDLE_S: Final = 1
"""Time between the system's probes of an idle link: they end the link of a process that is gone."""
UNTAKEN_MS: Final = 5000
"""Time that sent bytes may stay unconfirmed before TCP gives up the connection."""
_PORT: Final = re.compile(r":\d+\b")
SAME_LINE_S: Final = 10.0
"""Least time between equal lines about refusals in the log."""
LENGTH_BYTES: Final = 4
_HELLO: Final = bytes((peer_messages.number(Hello),))
_OURS: Final = frozenset(bytes((peer_messages.number(kind),)) for kind in (Goodbye, Ping, Pong))
_GATHERED: Final = frozenset(peer_messages.number(kind) for kind in (CallFrame, AnswerFrame, Beat))


class Receiver(Protocol):
    """The user of the links, which call it on the event loop."""

    def up(self, peer: int) -> None:
        """Note a new link to `peer`, whose HELLO was checked."""

    def down(self, peer: int) -> None:
        """Note that the link to `peer` is gone."""

    def message(self, peer: int, data: bytes) -> None:
        """Take a message of `peer`. Raises: CheloniaError when it is none: the link then closes."""


class Listener(Protocol):
    """Accepts connections, and bounds those of strangers before their handshakes."""

    @property
    def port(self) -> int:
        """Return the port, also where the system has chosen it."""

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises: OSError."""

    def stop(self) -> None:
        """Accept no more connections."""


@dataclass(frozen=True, slots=True)
class LinkTrust:
    """TLS for links, which demands a certificate of the other end, and `identify`, which returns its name.

    `listener` makes a `Listener` from a maker of protocols, which gets connections after their handshakes. `identify`
    raises CheloniaError for a certificate that is not, or no longer, valid.
    """

    listener: Callable[[Callable[[], asyncio.BaseProtocol]], Listener]
    client: ssl.SSLContext
    identify: Callable[[ssl.SSLObject], Dn]


@dataclass(frozen=True, slots=True)
class LinkIdentity:
    """Our identity: id, cluster, 16 bytes that differ at every start, and the round trip that the group is set to."""

    replica: int
    cluster: str
    nonce: bytes
    round_trip_ms: int = bounds.ROUND_TRIP_MS


class ReplicationLinks:
    """All links of one replica: its `PeerLinks`."""

    def __init__(
        self, own: LinkIdentity, membership: Membership, trust: LinkTrust, receiver: Receiver, clock: Clock
    ) -> None:
        self._own = own
        self._membership = membership
        self._trust = trust
        self._receiver = receiver
        self._links: dict[int, _PeerLink] = {}
        self._open: set[_PeerLink] = set()
        self._diallers: dict[int, tuple[Member, Job]] = {}
        self._listener = trust.listener(lambda: _PeerLink(self, None))
        self.jobs = Jobs(
            clock,
            [
                Job("recheck peers", every(RECHECK_MS, self._recheck_all), Wait(RECHECK_MS)),
                Job("measure peers", every(PING_MS, self._measure_all), Wait(PING_MS)),
            ],
        )
        self._watching: asyncio.Task[None] | None = None
        self._logged: dict[str, float] = {}
        self._loop = asyncio.get_running_loop()

    async def start(self, host: str, port: int) -> int:
        """Listen, and begin to dial. Returns: the port listened on."""
        await self._listener.start(host, port)
        self._watching = asyncio.create_task(self.jobs.run())
        self.set_membership(self._membership)
        return self._listener.port

    def set_membership(self, membership: Membership) -> None:
        self._membership = membership
        for replica, (member, dialling) in list(self._diallers.items()):
            if not _same(membership.member(replica), member):
                self.jobs.drop(dialling)
                del self._diallers[replica]
        for link in list(self._open):
            if link.member is not None and not _same(membership.member(link.member.replica), link.member):
                link.refuse("it is no member any more, or has another name or address")
        for member in membership.members:
            if member.replica < self._own.replica and member.replica not in self._diallers:
                dialling = self._dialling(member)
                self._diallers[member.replica] = (member, dialling)
                self.jobs.add(dialling)

    def send(self, peer: int, data: bytes) -> bool:
        """Queue a message. Return False when there is no link."""
        assert len(data) <= bounds.PEER_MESSAGE_BYTES_MAX, "its receiver would close the link"
        link = self._links.get(peer)
        if link is None:
            return False
        link.write(data)
        return True

    def peers(self) -> tuple[int, ...]:
        """Return the linked replicas, in order."""
        return tuple(sorted(self._links))

    def round_trip_ms(self, peer: int) -> int | None:
        """Return the least round trip to a peer in the last half minute; None: unknown."""
        link = self._links.get(peer)
        return None if link is None else link.round_trip_ms

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        self._listener.stop()
        for link in list(self._open):
            link.part("it is stopping")
        await asyncio.gather(*(link.closed for link in list(self._open)))

    # --- dialling --------------------------------------------------------------------------------------------------

    def _dialling(self, member: Member) -> Job:
        assert member.replica < self._own.replica, "of a pair one dials"
        backoff = Backoff(BACKOFF_MIN_MS, BACKOFF_MAX_MS)
        return Job(f"dial replica {member.replica}", partial(self._dial, member, backoff), Wait(BACKOFF_MAX_MS))

    async def _dial(self, member: Member, backoff: Backoff) -> Next:
        link = _PeerLink(self, member)
        try:
            await self._connect(link, member)
            await asyncio.shield(link.closed)
        except (OSError, ssl.SSLError, CheloniaError) as error:
            self.complain(f"replica {member.replica} at {member.address} is not reached: {error}", logging.INFO)
        if link.greeted:
            backoff.worked()
        return Wait(backoff.failed())

    async def _connect(self, link: _PeerLink, member: Member) -> None:
        host, _, port = member.address.rpartition(":")
        host = host.strip("[]")
        async with asyncio.timeout(2 * HANDSHAKE_S):
            await self._loop.create_connection(
                lambda: link, host, int(port), ssl=self._trust.client, server_hostname=host,
                ssl_handshake_timeout=HANDSHAKE_S,
            )  # fmt: skip

    async def _recheck_all(self) -> None:
        for link in list(self._open):
            link.recheck()

    async def _measure_all(self) -> None:
        for link in self._links.values():
            link.ping()

    # --- called by links --------------------------------------------------------------------------------------------

    def hello(self) -> bytes:
        """Return our HELLO."""
        own = self._own
        number = self._membership.number
        hello = Hello(peer_messages.VERSION, own.cluster, own.replica, own.nonce, number, own.round_trip_ms)
        return peer_messages.encode(hello)

    def identify(self, tls: ssl.SSLObject) -> Member:
        """Return the member at the other end. Raises: UNTRUSTED, or as `LinkTrust.identify`."""
        if tls.version() != "TLSv1.3":
            raise CheloniaError(Kind.UNTRUSTED, "replication", "", f"replicas speak TLS 1.3, this is {tls.version()}")
        dn = self._trust.identify(tls)
        found = next((member for member in self._membership.members if member.dn == dn), None)
        if found is None or found.replica == self._own.replica:
            cause = "this certificate is not that of another member"
            if self._membership.number == 1:  # none was read from the store
                cause += ": until this replica is filled, these are those in `replicas` of its configuration alone"
            raise CheloniaError(Kind.UNTRUSTED, "replication", dn, cause)
        return found

    def check_hello(self, hello: Hello, member: Member) -> str:
        """Return why to refuse the peer; empty: it is welcome.

        Of two processes with one identity the first stays: the second may lack commits that the first acknowledged. The
        link of a process that is gone ends at the latest when the system misses confirmations.
        """
        own = self._own
        reason = peer_messages.refuse_hello(hello, own.cluster, member.replica, round_trip_ms=own.round_trip_ms)
        linked = self._links.get(member.replica)
        if not reason and linked is not None and linked.nonce != hello.nonce:
            reason = f"another process is replica {member.replica} already, at {linked.address}: stop one of the two"
        return reason

    def opened(self, link: _PeerLink) -> None:
        """Add a connection whose peer is not known yet."""
        self._open.add(link)

    def established(self, link: _PeerLink, replica: int) -> None:
        """Make this, whose HELLO was checked, the link to `replica`."""
        assert link.greeted, "nothing is taken of one whose HELLO was not checked"
        old = self._links.pop(replica, None)
        if old is not None:
            old.part("a newer connection takes its place")
            self._receiver.down(replica)
        self._links[replica] = link
        _LOG.info("replica %d is linked to replica %d", self._own.replica, replica)
        self._receiver.up(replica)
        link.ping()

    def received(self, replica: int, data: bytes) -> None:
        """Pass on a message from `replica`. Raises: CheloniaError."""
        self._receiver.message(replica, data)

    def lost(self, link: _PeerLink) -> None:
        """Remove a connection that is gone."""
        self._open.discard(link)
        replica = link.member.replica if link.member is not None else 0
        if self._links.get(replica) is link:
            del self._links[replica]
            _LOG.info("replica %d lost its link to replica %d", self._own.replica, replica)
            self._receiver.down(replica)

    def complain(self, line: str, level: int = logging.WARNING) -> None:
        """Log a line unless the same one, whatever its port, was logged within `SAME_LINE_S`."""
        now = time.monotonic()
        self._logged = {text: at for text, at in self._logged.items() if now - at < SAME_LINE_S}
        text = _PORT.sub("", line)
        if text not in self._logged:
            self._logged[text] = now
            _LOG.log(level, "%s", line)


class _PeerLink(asyncio.Protocol):
    """One connection. `expected`: the member that we dialled; None: we accepted it."""

    def __init__(self, links: ReplicationLinks, expected: Member | None) -> None:
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.member: Member | None = None
        self.greeted = False
        self.nonce = b""
        self.address = ""
        self._links = links
        self._expected = expected
        self._transport: asyncio.Transport | None = None
        self._in = bytearray()
        self._out: list[bytes] = []
        self._ending = False
        self._hurry: asyncio.TimerHandle | None = None
        self._pieces = self._pieces_seen = 0
        """Pieces received of incomplete messages: now, and at the last recheck."""
        self._trips_us: deque[int] = deque(maxlen=TRIPS_KEPT)
        self.round_trip_ms: int | None = None
        """The least recent measurement; None: none yet. Other threads read it too."""

    # --- the event loop's ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Identify the peer after the TLS handshake, and send our HELLO."""
        self._transport = cast(asyncio.Transport, transport)
        self.address = _address(transport.get_extra_info("peername"))
        self._links.opened(self)
        _tune(transport.get_extra_info("socket"))
        try:
            self.member = self._links.identify(transport.get_extra_info("ssl_object"))
        except CheloniaError as error:
            self._refuse_unknown(str(error))
            return
        if self._expected is not None and not _same(self.member, self._expected):
            self._refuse_unknown(f"it shows the certificate of replica {self.member.replica}")
            return
        self._hurry = asyncio.get_running_loop().call_later(HANDSHAKE_S, self.refuse, "it said no HELLO")
        self.write(self._links.hello())

    def data_received(self, data: bytes) -> None:
        """Take the complete messages out of the stream."""
        if self._ending:
            return
        waiting: bytes | bytearray = data
        if self._in:
            self._in += data
            self._pieces += 1
            waiting = self._in
        start = 0
        try:
            while (end := self._end_of_message(waiting, start)) is not None:
                self._take(bytes(waiting[start + LENGTH_BYTES : end]))
                start = end
        except CheloniaError as error:
            self.refuse(str(error))
        if self._over():
            self._in.clear()
        elif waiting is self._in:
            del self._in[:start]
        else:
            self._in += waiting[start:]
            self._pieces += 1

    def eof_received(self) -> bool:
        """Close, as the other end does."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._ending and (self._in or exc is not None):
            place = " within a message" if self._in else ""
            self._links.complain(f"{self._name()} was cut off{place}: {exc or 'it closed'}", logging.INFO)
        self._ending = True
        self._stop_hurrying()
        self._links.lost(self)
        if not self.closed.done():
            self.closed.set_result(None)

    # --- messages ---------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send a message. Calls, answers and beats leave together at the end of the loop's turn."""
        if self._ending:
            return
        self._out.append(len(data).to_bytes(LENGTH_BYTES, "big") + data)
        if data[0] not in _GATHERED:
            self._flush()
        elif len(self._out) == 1:
            asyncio.get_running_loop().call_soon(self._flush)

    def part(self, reason: str) -> None:
        """Close after a GOODBYE with the reason."""
        if not self._ending and self._transport is not None:
            self.write(peer_messages.encode(Goodbye(reason)))
            self._flush()
            self._ending = True
            self._stop_hurrying()
            self._transport.close()
            # a peer that reads nothing does not read the end either
            asyncio.get_running_loop().call_later(HANDSHAKE_S, self._transport.abort)

    def refuse(self, reason: str) -> None:
        """Close for a fault of the peer, with one line in the log."""
        if not self._ending:
            self._links.complain(f"{self._name()} is refused: {reason}")
            self.part(reason)

    def ping(self) -> None:
        """Begin a measurement of the distance to the peer."""
        self.write(peer_messages.encode(Ping(_now_us())))

    def recheck(self) -> None:
        """Check again the certificate, and that the rest of an incomplete message still comes."""
        if self._ending or self._transport is None or self.member is None:
            return
        stopped, self._pieces_seen = self._in and self._pieces == self._pieces_seen, self._pieces
        if stopped:
            self.refuse("it stopped within a message")
            return
        try:
            found = self._links.identify(self._transport.get_extra_info("ssl_object"))
        except CheloniaError as error:
            self.refuse(str(error))
        else:
            if not _same(found, self.member):
                self.refuse("its certificate is another member's now")

    def _refuse_unknown(self, reason: str) -> None:
        """Close a connection of a stranger, without giving the reason."""
        self._links.complain(f"a connection from {self.address} is refused: {reason}")
        self._ending = True
        assert self._transport is not None
        self._transport.close()

    def _end_of_message(self, waiting: bytes | bytearray, start: int) -> int | None:
        """The end of the message that begins at `start`; None: it is not complete. Raises: TOO_LARGE."""
        if self._ending or len(waiting) - start < LENGTH_BYTES:
            return None
        length = int.from_bytes(waiting[start : start + LENGTH_BYTES], "big")
        limit = bounds.PEER_MESSAGE_BYTES_MAX if self.greeted else bounds.PEER_HELLO_BYTES_MAX
        if length > limit:
            raise CheloniaError(Kind.TOO_LARGE, "replication", "", f"it announces a message of {length} bytes")
        end = start + LENGTH_BYTES + length
        return end if len(waiting) >= end else None

    def _take(self, data: bytes) -> None:
        assert self.member is not None
        if self.greeted and data[:1] not in _OURS:
            if data[:1] == _HELLO:
                raise CheloniaError(Kind.BAD_REQUEST, "replication", "", "it said HELLO twice")
            self._links.received(self.member.replica, data)
            return
        message = peer_messages.decode(data)
        if isinstance(message, Goodbye):
            self._links.complain(f"{self._name()} closes: {message.reason[:200]}", logging.INFO)
            self._ending = True
            assert self._transport is not None
            self._transport.close()
        elif isinstance(message, Hello):
            self._greet(message, self.member)
        elif isinstance(message, Ping) and self.greeted:
            self.write(peer_messages.encode(Pong(message.sent_us)))
        elif isinstance(message, Pong) and self.greeted:
            self._trips_us.append(max(0, _now_us() - message.sent_us))
            self.round_trip_ms = min(self._trips_us) // 1000
        else:
            raise CheloniaError(Kind.BAD_REQUEST, "replication", "", "its first message is no HELLO")

    def _greet(self, hello: Hello, member: Member) -> None:
        assert not self.greeted, "HELLO is said once"
        if reason := self._links.check_hello(hello, member):
            self.refuse(reason)
            return
        self.greeted, self.nonce = True, hello.nonce
        self._stop_hurrying()
        self._links.established(self, member.replica)

    def _flush(self) -> None:
        if self._out and self._transport is not None and not self._ending and not self._transport.is_closing():
            self._transport.write(b"".join(self._out))
            if self._transport.get_write_buffer_size() > bounds.PEER_QUEUE_BYTES_MAX:
                self._links.complain(f"{self._name()} takes nothing: its link is given up")
                self._ending = True
                self._transport.abort()
        self._out.clear()

    def _over(self) -> bool:
        return self._ending

    def _name(self) -> str:
        peer = f"replica {self.member.replica}" if self.member is not None else "a stranger"
        return f"{peer} at {self.address}"

    def _stop_hurrying(self) -> None:
        if self._hurry is not None:
            self._hurry.cancel()
            self._hurry = None


def _same(one: Member | None, other: Member) -> bool:
    """Whether it is the same replica at the same place; its vote does not matter here."""
    return one is not None and (one.replica, one.dn, one.address) == (other.replica, other.dn, other.address)


def _now_us() -> int:
    return time.monotonic_ns() // 1000


def _tune(raw: Any) -> None:
    """Set the socket to send small messages at once, and to notice a dead peer."""
    if raw is None:
        return
    with suppress(OSError):  # the connection is gone already
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_S)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, IDLE_S)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNTAKEN_MS)


def _address(peername: Any) -> str:
    return f"{peername[0]}:{peername[1]}" if isinstance(peername, tuple) else "somewhere"
