"""Strangers and users with many connections to running daemons, and the service left for all others meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from urllib.parse import urlsplit

import pytest
from cryptography import x509

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError
from chelonia.core.ids import Guid
from chelonia.core.ports.bartender import NameRequest
from chelonia.hosting.net.certificates import CertificateAuthority
from chelonia.hosting.net.identity import subject_dn
from chelonia.wire import soap
from chelonia.wire.operations.bartender import BARTENDER
from chelonia.wire.operations.librarian import LIBRARIAN
from tests.cluster.harness import Cluster, Files, now_ms
from tests.support.polling import poll

ROOT_ENTRY = soap.encode_request(LIBRARIAN, "get", ((Guid("0"),), ()))
STAT = soap.encode_request(BARTENDER, "stat", ((NameRequest("0", "/"),),))
LARGE = STAT.replace(b"</soap-env:Body>", b"<!--" + b" " * 100_000 + b"--></soap-env:Body>")
PATIENT = {"first_request_ms": 600_000}
"""Connections without a request stay, however slowly they are made."""
FULL = PATIENT | {"connections_max": 60, "connections_reserved": 10, "connections_per_address_max": 60}
OF_ONE_OWNER = 20


@contextlib.contextmanager
def many(cluster: Cluster, url: str, who: str, count: int, sent: bytes = b"") -> Iterator[list[ssl.SSLSocket]]:
    """Open so many connections, each with these bytes sent; those that the server cuts off stay in the list."""
    context, address = cluster.context(who), ("127.0.0.1", urlsplit(url).port or 0)
    with contextlib.ExitStack() as held:
        opened = []
        for _ in range(count):
            plain = held.enter_context(socket.create_connection(address, 15))
            with contextlib.suppress(OSError):  # refused, or cut for the next one
                secured = held.enter_context(context.wrap_socket(plain, server_hostname="localhost"))
                opened.append(secured)
                secured.sendall(sent)
        yield opened


def half_sent(path: str, announced: int = 1_000_000, sent: int = 70_000) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: text/xml\r\nContent-Length: {announced}\r\n\r\n"
    return head.encode() + b" " * sent


def open_now(cluster: Cluster, connection: ssl.SSLSocket) -> bool:
    """Whether the other end still holds a connection, without an answer on it."""
    connection.settimeout(0.05)
    try:
        return connection.recv(1) != b""
    except TimeoutError:
        return True
    except OSError:
        return False


def until_closed(cluster: Cluster, held: Sequence[ssl.SSLSocket], most: int = 0) -> None:
    """Wait until the other end holds at most so many of these."""
    poll(lambda: sum(open_now(cluster, one) for one in held) <= most, what="the others are closed")


def limited(cluster: Cluster, limits: dict[str, int]) -> None:
    """Start the core again with other limits."""
    cluster.reconfigure("core", limits=limits)
    poll(lambda: cluster.soap(cluster.url("bartender"), STAT, "user").status == 200, 60, tolerate=(OSError,))


def test_no_number_of_connections_shuts_anybody_out(own_cluster: Callable[..., Cluster]) -> None:
    cluster = own_cluster(shepherds=1)
    url = cluster.url("bartender")
    limited(cluster, PATIENT | {"connections_per_address_max": OF_ONE_OWNER, "connections_per_dn_max": OF_ONE_OWNER})
    for who, limit in (("anonymous", "connections of one address"), ("user2", "connections of one DN")):
        with many(cluster, url, who, OF_ONE_OWNER + 20) as held:
            assert cluster.soap(url, STAT, "user").status == 200
            assert cluster.soap(url, STAT, who).status == 200
            until_closed(cluster, held, OF_ONE_OWNER)
        cluster.until_met("core", limit)

    limited(cluster, FULL)
    with many(cluster, url, "user2", 70), many(cluster, url, "anonymous", 70):
        for who in ("user", "admin", "service"):
            assert cluster.soap(url, STAT, who).status == 200
    cluster.until_met("core", "connections")

    limited(cluster, {"first_request_ms": 1_000})
    with (
        cluster.connected(url, "service") as known,
        many(cluster, url, "anonymous", 1) as held,
        many(cluster, url, "user2", 1, half_sent(urlsplit(url).path, sent=0)[:20]) as begun,
    ):
        until_closed(cluster, (*held, *begun))
        assert open_now(cluster, known), "an approved service takes its time"
    cluster.until_met("core", "time to the first request")


@pytest.mark.parametrize(("door", "who"), [("bartender", "user2"), ("librarian", "user")])
def test_half_sent_messages_stop_nobody_else(cluster: Cluster, door: str, who: str) -> None:
    url = cluster.url(door)
    sent = half_sent(urlsplit(url).path)
    with many(cluster, url, who, bounds.SOAP_LARGE_BODIES_MAX + 1, sent):
        if door == "bartender":
            assert cluster.soap(url, LARGE, "user").status == 200
        padded = ROOT_ENTRY.replace(b"</soap-env:Body>", b"<!--" + b" " * 100_000 + b"--></soap-env:Body>")
        assert cluster.soap(cluster.url("librarian"), padded, "admin").status == 200
    limit = "large messages of one caller" if door == "bartender" else "bytes of a caller without a role"
    cluster.until_met("core", limit)


def test_a_second_ca_is_warned_of_and_cannot_be_the_administrator(
    own_cluster: Callable[..., Cluster], expect_log: Callable[..., None]
) -> None:
    cluster = own_cluster(shepherds=1)
    expect_log("event=ca-unlimited")  # of our own client, which trusts the same CAs
    cluster.expect_log("event=ca-unlimited")
    other = CertificateAuthority.create(cluster.root / "other", "/DC=org/O=Elsewhere/CN=Users CA", now_ms())
    for path in other.trust_dir.glob("*.[0r]*"):  # not its signing policy
        (cluster.ca_dir / path.name).write_bytes(path.read_bytes())
    proxy, url = cluster.root / "forged.pem", cluster.url("librarian")
    admin = x509.load_pem_x509_certificate((cluster.root / "certs" / "admin-cert.pem").read_bytes())
    other.issue_user(subject_dn(admin), now_ms()).write_proxy(proxy)
    cluster.signal("core", signal.SIGHUP)
    poll(lambda: "event=ca-unlimited" in cluster.log_of("core"), 60, what="the core trusts the second CA")
    assert cluster.soap(url, ROOT_ENTRY, "admin").status == 200
    answer = cluster.soap(url, ROOT_ENTRY, Files(proxy, proxy))
    assert "[trust] issuers does not name" in answer.text

    def alive() -> bool:
        return any(node.state == "alive" for node in asyncio.run(cluster.nodes()).values())

    poll(alive, 60, what="services under their own CA are taken", tolerate=(CheloniaError,))

    cluster.expect_log("event=ca-unusable")
    for path in other.trust_dir.glob("*.0"):
        (cluster.ca_dir / path.name).with_suffix(".signing_policy").write_text("allow everything\n")
    cluster.signal("core", signal.SIGHUP)

    def said() -> str:
        return cluster.soap(url, ROOT_ENTRY, Files(proxy, proxy)).text

    poll(lambda: "line 1 is not understood" in said(), 60, what="its policy cannot be read")
    assert str(cluster.root) not in said(), "a stranger learns nothing of our folders"
