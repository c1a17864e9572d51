"""Bad certificates at every door: each is refused, with a line in the log, whatever other callers do."""

import signal
import ssl
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest

from chelonia.core.errors import CheloniaError, Kind
from chelonia.hosting.net import certificates
from chelonia.hosting.net.certificates import CertificateAuthority, Issued, KeyKind, make_proxy, subject_hashes
from chelonia_clients.client import new_call
from tests.cluster.harness import Away, Cluster, Files, now_ms
from tests.cluster.load import fetch, put, until_live
from tests.support.polling import poll, poll_async
from tests.unit.hosting.grid import publish_to

BASE = "/DC=org/DC=chelonia/O=Dev"
SUBJECT = f"{BASE}/CN=Jane Doe"
DOORS = ["ahash", "librarian", "bartender", "shepherd1", "turl"]


def foreign(cluster: Cluster, scratch: Path) -> Issued:
    return other_ca(scratch, "/O=Elsewhere/CN=Other CA").issue_user("/O=Elsewhere/CN=Jane Doe", now_ms())


def revoked_before(cluster: Cluster, scratch: Path) -> Issued:
    issued = cluster.ca.issue_user(f"{BASE}/CN=Revoked Early", now_ms())
    cluster.ca.revoke(issued.certificate, now_ms())
    sighup(cluster)
    return issued


def forbidden_proxy(cluster: Cluster, scratch: Path) -> Issued:
    """A proxy with a policy beside `inheritAll`, which RFC 3820 section 3.8.2 forbids."""
    language = b"\x30\x0f\x30\x0d\x06\x08\x2b\x06\x01\x05\x05\x07\x15\x01\x04\x01x"
    with patch.object(certificates, "proxy_cert_info", lambda _: language):
        return make_proxy(cluster.ca.issue_user(SUBJECT, now_ms()), now_ms())


def other_ca(scratch: Path, subject: str) -> CertificateAuthority:
    return CertificateAuthority.create(scratch / "other", subject, now_ms(), kind=KeyKind.P256)


@pytest.mark.parametrize("make", [foreign, revoked_before, forbidden_proxy])
def test_a_bad_certificate_is_refused_at_every_door(
    cluster: Cluster, tmp_path: Path, make: Callable[[Cluster, Path], Issued]
) -> None:
    files = written(make(cluster, tmp_path), tmp_path)
    for door in DOORS:
        poll(lambda door=door: refused(cluster, url_of(cluster, door), files), 30.0, what=f"{door} refuses")  # type: ignore[misc]
        assert refused(cluster, url_of(cluster, door), files)
    poll(lambda: all(told(cluster, name) for name in ("core", "shepherd1")), what="a line in the log")


def told(cluster: Cluster, name: str) -> bool:
    """Whether a node has logged that it refused a certificate."""
    log = cluster.log_of(name)
    return "handshake-refused" in log or "untrusted" in log


@pytest.mark.parametrize("door", ["ahash", "librarian", "shepherd1"])
def test_a_control_listener_demands_a_certificate(cluster: Cluster, door: str) -> None:
    assert refused(cluster, cluster.url(door), Files())


@pytest.mark.parametrize("hangup", [True, False], ids=["SIGHUP", "by itself"])
async def test_a_certificate_revoked_while_in_use_is_cut_off(cluster: Cluster, tmp_path: Path, hangup: bool) -> None:
    issued = cluster.ca.issue_user(f"{BASE}/CN=Revoked {hangup}", now_ms())
    files, proxy = tmp_path / "revoked.pem", tmp_path / "proxy.pem"
    issued.write_proxy(files)
    make_proxy(issued, now_ms()).write_proxy(proxy)
    async with (
        cluster.client(Files(files, files), retry_ms=0) as client,
        cluster.client(Files(proxy, proxy), retry_ms=0) as by_proxy,
        cluster.client("user2") as other,
    ):
        await client.stat("/")
        await by_proxy.stat("/")
        cluster.ca.revoke(issued.certificate, now_ms())
        if hangup:
            sighup(cluster)

        async def cut() -> bool:
            kinds = []
            for one in (client, by_proxy):
                try:
                    await one.stat("/")
                except CheloniaError as error:
                    kinds.append(error.kind)
            # a compact connection is cut without a word: its server's log says why
            return len(kinds) == 2 and set(kinds) <= {Kind.UNTRUSTED, Kind.NETWORK}

        await poll_async(cut, 30.0, what="open connections of the revoked are refused")
        await other.stat("/")


def sighup(cluster: Cluster) -> None:
    for name in cluster.names:
        cluster.signal(name, signal.SIGHUP)


def written(issued: Issued, scratch: Path) -> Files:
    path = scratch / "bad.pem"
    issued.write_proxy(path)
    return Files(path, path)


def url_of(cluster: Cluster, door: str) -> str:
    return f"{cluster.data_url('shepherd1')}/healthz" if door == "turl" else cluster.url(door)


def refused(cluster: Cluster, url: str, files: Files) -> bool:
    """Whether a caller is turned away: in the handshake, or by the first answer."""
    try:
        answer = cluster.request("GET", url, files)
    except (ssl.SSLError, ConnectionError, OSError):
        return True
    return answer.status == 403 and answer.kind in ("untrusted", "expired")


async def test_a_second_ca_takes_the_place_of_the_first_while_the_cluster_works(
    own_cluster: Callable[..., Cluster],
) -> None:
    """docs/operate/certificate-authority-lost.md, step by step; once both CAs are named, nothing is started again."""
    cluster = own_cluster()
    trust, certs = cluster.ca_dir, cluster.root / "certs"
    async with cluster.client("user") as client:
        await put(client, "/before", b"under the first CA", 2)

    first = cluster.ca
    new = CertificateAuthority.create(cluster.root / "second", f"{BASE}/CN=Second CA", now_ms(), kind=KeyKind.P256)
    publish_to(new, trust)
    for name in cluster.names:
        cluster.reconfigure(name, trust={"issuers": [first.issued.dn, new.issued.dn]})
    await cluster.until_serving(*cluster.shepherd_names)
    cluster.expect_log("certificates not reloaded")  # a reload between a certificate and its key keeps the old ones
    for name in cluster.names:
        host = new.issue_host(f"{BASE}/CN=host/{name}", ["localhost", "127.0.0.1", "::1"], now_ms())
        host.write(certs / f"{name}-cert.pem", certs / f"{name}-key.pem")
    stale = cluster.root / "stale"
    stale.mkdir()
    for part in ("cert", "key"):
        (stale / f"{part}.pem").write_bytes((certs / f"user-{part}.pem").read_bytes())
    for who, subject in (("user", SUBJECT), ("admin", f"{BASE}/CN=Dev Admin")):
        new.issue_user(subject, now_ms()).write(certs / f"{who}-cert.pem", certs / f"{who}-key.pem")
    reloaded(cluster)
    cluster.expect_log("event=ca-un(usable|limited)")  # a reload while its files go one by one trusts it no more
    for path in [path for path in trust.iterdir() if path.stem in subject_hashes(first.certificate)]:
        path.unlink()
    reloaded(cluster)

    async def whole() -> bool:
        async with cluster.ports("admin") as ports:
            return [node.state for node in await ports.librarian.nodes(new_call())] == ["alive"] * len(
                cluster.shepherd_names
            )

    await poll_async(whole, 60.0, tolerate=Away, what="every Shepherd is heard under its new certificate")
    async with cluster.client("user") as client:
        assert await fetch(client, "/before") == b"under the first CA"
        await put(client, "/after", b"under the second", 2)
        await until_live(client, "/after", 2)
    old = Files(stale / "cert.pem", stale / "key.pem")
    for door in DOORS:
        poll(lambda door=door: refused(cluster, url_of(cluster, door), old), 30.0, what=f"{door} refuses")  # type: ignore[misc]


def reloaded(cluster: Cluster) -> None:
    """Have every node read its certificates again, and wait until all have."""
    before = {name: cluster.log_of(name).count("tls-reloaded") for name in cluster.names}
    for name in cluster.names:
        cluster.signal(name, signal.SIGHUP)
    for name, count in before.items():
        poll(lambda name=name, count=count: cluster.log_of(name).count("tls-reloaded") > count, 40.0, what=name)  # type: ignore[misc]
