"""Links between replicas, over real sockets and TLS on loopback."""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from chelonia.ahash.group import peer_messages
from chelonia.ahash.group import transport_replication as transport
from chelonia.ahash.group.membership import Member, Membership
from chelonia.ahash.group.peer_messages import CallFrame, CheckpointNear, Goodbye, Hello
from chelonia.ahash.group.transport_replication import LinkIdentity, LinkTrust, ReplicationLinks
from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn
from chelonia.core.values import replace
from chelonia.hosting.net.clock import SystemClock
from tests.support.far_links import FarLinks
from tests.support.polling import patience, poll_async
from tests.support.ports import free_ports
from tests.support.replica_grid import ReplicaGrid, link_trust, replica_dn


@dataclass
class Heard:
    """A receiver that remembers messages, and refuses those that begin with 0xff."""

    events: list[str] = field(default_factory=list)
    messages: list[tuple[int, bytes]] = field(default_factory=list)

    def up(self, peer: int) -> None:
        self.events.append(f"up {peer}")

    def down(self, peer: int) -> None:
        self.events.append(f"down {peer}")

    def message(self, peer: int, data: bytes) -> None:
        if data[:1] == b"\xff":
            raise CheloniaError(Kind.BAD_REQUEST, "replication", "", "no message begins with that")
        self.messages.append((peer, data))


@dataclass
class Node:
    links: ReplicationLinks
    heard: Heard
    port: int = 0


class Net:
    """Replicas on loopback that know each other's ports."""

    def __init__(self, directory: Path) -> None:
        self.grid = ReplicaGrid(directory)
        self.nodes: dict[int, Node] = {}
        self.ports: dict[int, int] = {}

    def membership(self, *, number: int = 1) -> Membership:
        members = tuple(
            Member(replica, replica_dn(replica), f"127.0.0.1:{port}", True)
            for replica, port in sorted(self.ports.items())
        )
        return Membership(number, members, 9)

    async def start(self, replica: int, cluster: str = "test", trust: LinkTrust | None = None) -> Node:
        heard = Heard()
        self.ports.setdefault(replica, 0)
        links = ReplicationLinks(
            LinkIdentity(replica, cluster, os.urandom(16)), self.membership(),
            trust or link_trust(self.grid.replica(replica)), heard, SystemClock(),
        )  # fmt: skip
        self.ports[replica] = await links.start("127.0.0.1", self.ports[replica])
        self.nodes[replica] = Node(links, heard, self.ports[replica])
        for node in self.nodes.values():
            node.links.set_membership(self.membership())
        return self.nodes[replica]

    async def stop(self, replica: int) -> None:
        await self.nodes.pop(replica).links.close()

    async def dial(self, replica: int, settings: str | int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a hand-made connection to a replica, with the certificate of another one or of this DN."""
        found = self.grid.replica(settings) if isinstance(settings, int) else self.grid.issue("other", settings)
        context = link_trust(found).client
        return await asyncio.open_connection("127.0.0.1", self.ports[replica], ssl=context, server_hostname="127.0.0.1")


@pytest.fixture
async def net(tmp_path: Path) -> AsyncIterator[Net]:
    found = Net(tmp_path)
    yield found
    for replica in list(found.nodes):
        await found.stop(replica)


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def hello(
    replica: int,
    cluster: str = "test",
    version: int = peer_messages.VERSION,
    nonce: bytes = bytes(16),
    round_trip_ms: int = bounds.ROUND_TRIP_MS,
) -> bytes:
    return framed(peer_messages.encode(Hello(version, cluster, replica, nonce, 1, round_trip_ms)))


async def closed(reader: asyncio.StreamReader) -> bytes:
    """The bytes that the other end sent before it closed."""
    return await asyncio.wait_for(reader.read(), 10 * patience())


async def linked(net: Net) -> None:
    await poll_async(
        lambda: all(len(node.links.peers()) == len(net.nodes) - 1 for node in net.nodes.values()), what="all linked"
    )


async def test_who_connects_and_says_nothing_is_bounded_and_keeps_no_member_out(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger at the port could have a master hold any number of connections."""
    monkeypatch.setattr(bounds, "HANDSHAKES_PER_ADDRESS_MAX", 3)
    await net.start(1)
    silent = [await asyncio.open_connection("127.0.0.1", net.ports[1]) for _ in range(9)]
    ends = [asyncio.ensure_future(reader.read()) for reader, _ in silent]
    await poll_async(lambda: sum(end.done() for end in ends) >= 6, 4, what="all but three are closed")
    await net.start(2)
    await poll_async(lambda: net.nodes[1].links.peers() == (2,), what="a member")
    for end, (_, writer) in zip(ends, silent, strict=True):
        end.cancel()
        writer.close()


async def test_all_link_and_messages_arrive_in_order(net: Net) -> None:
    for replica in (1, 2, 3):
        await net.start(replica)
    await linked(net)
    sent = [peer_messages.encode(CallFrame(n, os.urandom(n * 7 % 5000))) for n in range(300)]
    for data in sent:
        assert net.nodes[1].links.send(3, data)
        assert net.nodes[3].links.send(1, data)
    for replica in (1, 3):
        assert net.nodes[2].links.send(replica, sent[0])
    await poll_async(lambda: len(net.nodes[1].heard.messages) == len(net.nodes[3].heard.messages) == 301)
    for replica, peer in ((1, 3), (3, 1)):
        assert [data for who, data in net.nodes[replica].heard.messages if who == peer] == sent
    assert not net.nodes[1].links.send(4, b"x")


async def test_how_far_a_peer_is_is_measured_at_both_ends(net: Net) -> None:
    one, door, far = await net.start(1), free_ports(1)[0], FarLinks(40, 45)
    await far.relay(door, one.port)
    try:
        net.ports[1] = door
        two = await net.start(2)
        for node, peer in ((one, 2), (two, 1)):
            assert node.links.round_trip_ms(3) is None
            await poll_async(lambda node=node, peer=peer: 80 <= (node.links.round_trip_ms(peer) or 0) < 300)
    finally:
        await net.stop(2)
        await far.close()


async def test_a_large_message_arrives(net: Net) -> None:
    await net.start(1)
    await net.start(2)
    await linked(net)
    data = peer_messages.encode(CallFrame(1, bytes(20_000_000)))
    net.nodes[2].links.send(1, data)
    await poll_async(lambda: net.nodes[1].heard.messages == [(2, data)])


async def test_who_restarts_is_linked_again(net: Net) -> None:
    await net.start(1)
    await net.start(2)
    await linked(net)
    for replica in (1, 2):
        await net.stop(replica)
        await net.start(replica)
        await linked(net)
    assert net.nodes[1].heard.events == ["up 2", "down 2", "up 2"]


async def test_what_is_sent_before_it_is_heard_that_a_link_broke_is_dropped_in_silence(
    net: Net, caplog: pytest.LogCaptureFixture
) -> None:
    """The event loop logged a warning for each."""
    await net.start(1)
    await net.start(2)
    await linked(net)
    for link in net.nodes[1].links._open:
        assert link._transport is not None
        link._transport.abort()
    for number in range(20):
        assert net.nodes[1].links.send(2, peer_messages.encode(CheckpointNear(number)))
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


@pytest.mark.expect_log("is refused: replication: /O=Grid/CN=jane: untrusted: this certificate is not that of another")
async def test_a_stranger_of_the_same_authority_gets_nothing(net: Net) -> None:
    await net.start(1)
    reader, writer = await net.dial(1, "/O=Grid/CN=jane")
    writer.write(hello(2))
    assert await closed(reader) == b""
    writer.close()
    assert net.nodes[1].heard.events == []


@pytest.mark.expect_log("is refused: replication: /O=Grid/CN=jane: untrusted")
async def test_who_comes_again_and_again_is_one_line_in_the_log(net: Net, caplog: pytest.LogCaptureFixture) -> None:
    await net.start(1)
    for _ in range(3):
        reader, writer = await net.dial(1, "/O=Grid/CN=jane")
        assert await closed(reader) == b""
        writer.close()
    assert sum("is refused" in record.getMessage() for record in caplog.records) == 1


async def test_a_stranger_without_a_certificate_gets_nothing(net: Net) -> None:
    await net.start(1)
    context = ssl.create_default_context(capath=str(net.grid.ca.trust_dir))

    async def dial() -> None:
        reader, _ = await asyncio.open_connection("127.0.0.1", net.ports[1], ssl=context, server_hostname="127.0.0.1")
        await reader.readexactly(1)

    with pytest.raises((OSError, asyncio.IncompleteReadError)):
        await dial()
    assert net.nodes[1].heard.events == []


REFUSALS: list[tuple[str, Callable[[], bytes]]] = [
    ("it belongs to cluster other", lambda: hello(2, "other")),
    ("it says to be replica 3", lambda: hello(3)),
    ("it speaks version 99", lambda: hello(2, version=99)),
    ("its ahash.tuning.round_trip_ms is 300, here it is 100", lambda: hello(2, round_trip_ms=300)),
    ("its first message is no HELLO", lambda: framed(peer_messages.encode(CallFrame(1, b"x")))),
    ("it announces a message of", lambda: (1 << 20).to_bytes(4, "big") + bytes(100)),
    ("it said HELLO twice", lambda: hello(2) + hello(2)),
    ("no message begins with", lambda: hello(2) + framed(b"\xff")),
    ("it announces a message of", lambda: hello(2) + (bounds.PEER_MESSAGE_BYTES_MAX + 1).to_bytes(4, "big")),
    ("no message begins with", lambda: framed(b"")),
]


@pytest.mark.parametrize(("cause", "sends"), REFUSALS, ids=[f"{n}" for n in range(len(REFUSALS))])
async def test_a_member_that_misbehaves_is_refused_and_the_others_go_on(
    net: Net, cause: str, sends: Callable[[], bytes], expect_log: Callable[..., None]
) -> None:
    expect_log(f"replica 2 at .* is refused: .*{cause}")
    await net.start(1)
    await net.start(3)
    await linked(net)
    net.ports[2] = 1
    for node in net.nodes.values():
        node.links.set_membership(net.membership())
    reader, writer = await net.dial(1, 2)
    writer.write(sends())
    told = await closed(reader)
    goodbye = peer_messages.encode(Goodbye(""))[:1]
    assert goodbye + cause.encode()[:4] in told or cause.encode() in told
    writer.close()
    await poll_async(lambda: 2 not in net.nodes[1].links.peers())
    assert net.nodes[1].links.peers() == (3,)
    assert net.nodes[3].heard.events == ["up 1"]


@pytest.mark.expect_log("is refused: replication: untrusted: replicas speak TLS 1.3, this is TLSv1.2")
async def test_an_older_tls_is_refused(net: Net) -> None:
    await net.start(1)
    settings = net.grid.replica(2)
    context = ssl.create_default_context(capath=str(net.grid.ca.trust_dir))
    assert settings.cert is not None
    context.load_cert_chain(settings.cert, settings.key)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    reader, writer = await asyncio.open_connection("127.0.0.1", net.ports[1], ssl=context, server_hostname="127.0.0.1")
    assert await closed(reader) == b""
    writer.close()


async def test_a_message_cut_off_is_not_handed_over(net: Net) -> None:
    await net.start(1)
    net.ports[2] = 1
    net.nodes[1].links.set_membership(net.membership())
    _, writer = await net.dial(1, 2)
    whole = framed(peer_messages.encode(CallFrame(1, b"whole")))
    writer.write(hello(2) + whole + whole[:-1])
    await poll_async(lambda: net.nodes[1].heard.messages)
    writer.close()
    await poll_async(lambda: net.nodes[1].heard.events == ["up 2", "down 2"])
    assert net.nodes[1].heard.messages == [(2, whole[4:])]


async def test_a_newer_connection_of_a_replica_takes_the_place_of_the_older(net: Net) -> None:
    await net.start(1)
    net.ports[2] = 1
    net.nodes[1].links.set_membership(net.membership())
    first, writer = await net.dial(1, 2)
    writer.write(hello(2))
    await poll_async(lambda: net.nodes[1].links.peers() == (2,))
    _, other = await net.dial(1, 2)
    other.write(hello(2))
    assert b"a newer connection takes its place" in await closed(first)
    assert net.nodes[1].heard.events == ["up 2", "down 2", "up 2"]
    assert net.nodes[1].links.peers() == (2,)
    for each in (writer, other):
        each.close()


@pytest.mark.expect_log("replica 2 at .* is refused: another process is replica 2 already, at 127.0.0.1:.*: stop one")
async def test_of_two_processes_with_one_identity_the_first_stays(net: Net) -> None:
    await net.start(1)
    net.ports[2] = 1
    net.nodes[1].links.set_membership(net.membership())
    _, writer = await net.dial(1, 2)
    writer.write(hello(2))
    await poll_async(lambda: net.nodes[1].links.peers() == (2,))
    reader, other = await net.dial(1, 2)
    other.write(hello(2, nonce=b"x" * 16))
    assert b"another process is replica 2 already" in await closed(reader)
    other.close()
    assert net.nodes[1].heard.events == ["up 2"]
    writer.close()
    await poll_async(lambda: net.nodes[1].links.peers() == ())
    _, other = await net.dial(1, 2)
    other.write(hello(2, nonce=b"x" * 16))
    await poll_async(lambda: net.nodes[1].links.peers() == (2,), what="the other one, when the first is gone")
    other.close()


@pytest.mark.expect_log("replica 2 at .* is refused: it stopped within a message")
async def test_who_stops_within_a_message_is_closed_and_who_is_slow_is_not(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "RECHECK_MS", int(300 * patience()))
    await net.start(1)
    net.ports[2] = 1
    net.nodes[1].links.set_membership(net.membership())
    reader, writer = await net.dial(1, 2)
    message = framed(peer_messages.encode(CallFrame(1, bytes(20))))
    writer.write(hello(2))
    for byte in message:  # far longer than between two looks, but never without progress
        writer.write(bytes((byte,)))
        await asyncio.sleep(0.05)
    await poll_async(lambda: net.nodes[1].heard.messages == [(2, message[4:])])
    writer.write(message[:-1])
    assert b"it stopped within a message" in await closed(reader)
    writer.close()


@pytest.mark.expect_log("replica 2 at .* is refused: it said no HELLO")
async def test_who_says_nothing_is_closed(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    await net.start(1)
    monkeypatch.setattr(transport, "HANDSHAKE_S", 0.2)  # of what is said; that of TLS has its time from the start
    net.ports[2] = 1
    net.nodes[1].links.set_membership(net.membership())
    reader, writer = await net.dial(1, 2)
    assert b"it said no HELLO" in await closed(reader)
    writer.close()


@pytest.mark.expect_log("replica 2 at .* takes nothing: its link is given up")
async def test_a_peer_that_takes_nothing_is_dropped_and_nothing_blocks(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "PEER_QUEUE_BYTES_MAX", 4_000_000)
    await net.start(1)
    net.ports[2] = 1
    net.nodes[1].links.set_membership(net.membership())
    reader, writer = await net.dial(1, 2)
    writer.write(hello(2))
    await poll_async(lambda: net.nodes[1].links.peers() == (2,))
    reader._transport.pause_reading()  # type: ignore[attr-defined]
    data = peer_messages.encode(CallFrame(1, bytes(500_000)))

    async def flood() -> bool:
        return not net.nodes[1].links.send(2, data)

    await poll_async(flood, what="the link is given up")
    assert net.nodes[1].heard.events == ["up 2", "down 2"]
    writer.transport.abort()


@pytest.mark.expect_log("replica 2 at .* is refused: it is no member any more")
@pytest.mark.expect_log("this certificate is not that of another member", optional=True)
async def test_who_is_taken_out_is_cut_off(net: Net) -> None:
    await net.start(1)
    await net.start(2)
    await linked(net)
    del net.ports[2]
    net.nodes[1].links.set_membership(net.membership(number=2))
    await poll_async(lambda: net.nodes[1].heard.events == ["up 2", "down 2"])


@pytest.mark.expect_log("replica 2 at .* is refused: .*expired")
@pytest.mark.expect_log("expired", optional=True)
async def test_a_certificate_that_expires_while_linked_ends_the_link(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "RECHECK_MS", 100)
    await net.start(1)
    short = net.grid.issue("short", replica_dn(2), lifetime_s=1 + round(2 * patience()))  # from the full second before
    await net.start(2, trust=link_trust(short))
    await linked(net)
    await poll_async(lambda: "down 2" in net.nodes[1].heard.events, what="cut off")


@pytest.mark.expect_log("job failed: recheck peers")
@pytest.mark.expect_log("replica 2 at .* is refused: .*revoked")
@pytest.mark.expect_log("revoked", optional=True)
async def test_a_mistake_in_one_look_at_the_certificates_is_not_the_last_look(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "RECHECK_MS", 100)
    trust, found = link_trust(net.grid.replica(1)), list[Exception]()

    def identify(connection: ssl.SSLObject) -> Dn:
        if found:
            raise found.pop() if len(found) > 1 else found[0]
        return trust.identify(connection)

    node = await net.start(1, trust=replace(trust, identify=identify))
    await net.start(2)
    await linked(net)
    found += [CheloniaError(Kind.UNTRUSTED, "identify", cause="it was revoked"), RuntimeError("nobody expected this")]
    await poll_async(lambda: "down 2" in node.heard.events, what="it is looked at again")
    assert node.links.jobs.views("ahash")[0].bugs == 1


@pytest.mark.expect_log("job failed: dial replica 1")
@pytest.mark.expect_log("is refused: it is no member any more", optional=True)
async def test_a_mistake_in_one_try_to_dial_is_not_the_last_try(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resolver raises UnicodeError for an odd host, for example."""
    connect, mistakes = ReplicationLinks._connect, [RuntimeError("nobody expected this")]

    async def mistaken(*args: Any) -> None:
        if mistakes:
            raise mistakes.pop()
        await connect(*args)

    monkeypatch.setattr(ReplicationLinks, "_connect", mistaken)
    await net.start(1)
    node = await net.start(2)
    await linked(net)
    (view,) = [view for view in node.links.jobs.views("ahash") if view.name.startswith("dial")]
    assert (view.name, view.state, view.bugs) == ("dial replica 1", "running", 1)
    node.links.set_membership(Membership(2, (), 9))
    assert not [view for view in node.links.jobs.views("ahash") if view.name.startswith("dial")]


@pytest.mark.expect_log("is refused: it shows the certificate of replica 3")
async def test_who_answers_in_the_place_of_another_is_refused(net: Net) -> None:
    net.ports[3] = 1
    await net.start(1, trust=link_trust(net.grid.replica(3)))
    await net.start(2)
    await poll_async(lambda: net.nodes[2].links._logged, what="a refusal")
    assert net.nodes[2].heard.events == []
