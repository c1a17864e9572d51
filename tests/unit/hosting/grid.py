"""A small grid for tests: a CA, a host and users on disk, and TLS handshakes in memory."""

from __future__ import annotations

import ssl
import time
from pathlib import Path

from cryptography.hazmat.primitives import hashes, serialization

from chelonia.core.ids import Ms
from chelonia.durable_files import write_file
from chelonia.hosting.net import certificates
from chelonia.hosting.net.certificates import (
    CertificateAuthority,
    Issued,
    KeyKind,
    PrivateKey,
    make_key,
    make_proxy,
    publish,
    publish_whole,
)
from chelonia.hosting.net.identity import name_from_dn
from chelonia.hosting.net.tls import ClientCertificate, TlsSettings, TlsStore
from tests.support.clocks import QuickClock

DAY_MS = 24 * 3600 * 1000
JANE = "/O=Grid/OU=Test/CN=Jane Doe"
HOST = "/O=Grid/OU=Hosts/CN=localhost"
P256 = KeyKind.P256


def real_now_ms() -> Ms:
    return Ms(time.time_ns() // 1_000_000)


def closed_pem(key: PrivateKey, password: bytes) -> bytes:
    """A user's private key, encrypted with a password."""
    how = serialization.BestAvailableEncryption(password)
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how)


def ca_below(above: CertificateAuthority, directory: Path, subject: str, now_ms: Ms) -> CertificateAuthority:
    """Make a subordinate CA in another directory; its certificate is published there and in that of the one above."""
    key = make_key(above.kind)
    names = name_from_dn(subject), above.certificate.subject
    builder = certificates._builder(*names, key.public_key(), now_ms, certificates.CA_LIFETIME_S)
    cert = certificates._as_ca(builder, key.public_key(), above.issued.key).sign(above.issued.key, hashes.SHA256())
    made = CertificateAuthority(directory, Issued((cert, *above.issued.chain), key), above.kind)
    made.issued.write(directory / "ca" / "cacert.pem", directory / "ca" / "cakey.pem")
    made.finish(now_ms)
    publish(above.trust_dir, made.certificate)
    return made


def publish_to(ca: CertificateAuthority, trust_dir: Path) -> None:
    """Copy a CA's certificate, CRL and signing policy into another trust directory."""
    publish_whole(trust_dir, ca.certificate, (ca.directory / "ca" / "crl.pem").read_bytes())


OTHER_CA = "/O=Other/CN=Other CA"


def publish_unlimited(root: Path, trust_dir: Path) -> None:
    """Make `OTHER_CA` below `root`; publish its certificate, without its signing policy, in another trust directory."""
    other = CertificateAuthority.create(root, OTHER_CA, real_now_ms(), kind=P256)
    for path in other.trust_dir.glob("*.0"):
        write_file(trust_dir / path.name, path.read_bytes(), 0o444)


class Grid:
    """One CA with a host certificate; users are made on demand."""

    def __init__(self, root: Path, subject: str = "/O=Grid/CN=Test CA") -> None:
        self.root = root
        self.clock = QuickClock(real_now_ms())  # OpenSSL looks at the real one
        self.now = self.clock.now_ms()
        self.ca = CertificateAuthority.create(root / "grid-security", subject, self.now, kind=P256)
        self.files = 0
        self.host_files = root / "grid-security" / "hostcert.pem", root / "grid-security" / "hostkey.pem"
        self.ca.issue_host(HOST, ["localhost", "127.0.0.1"], self.now).write(*self.host_files)

    @property
    def trust_dir(self) -> Path:
        return self.ca.trust_dir

    def user(self, subject: str = JANE) -> Issued:
        return self.ca.issue_user(subject, self.now)

    def proxy(self, issued: Issued, depth: int = 1, *, limited: bool = False) -> Issued:
        for _ in range(depth):
            issued = make_proxy(issued, self.now, kind=P256, limited=limited)
        return issued

    def settings(self, issued: Issued | None = None, trust_dir: Path | None = None) -> TlsSettings:
        """Settings of a peer holding `issued`; the host's without it."""
        trust_dir = trust_dir or self.trust_dir
        if issued is None:
            return TlsSettings(cert=self.host_files[0], key=self.host_files[1], ca_dir=trust_dir)
        self.files += 1
        path = self.root / f"credential{self.files}.pem"
        issued.write_proxy(path)
        return TlsSettings(proxy=path, ca_dir=trust_dir)

    def server(self) -> TlsStore:
        return TlsStore(self.settings(), self.clock.now_ms)

    def client(self, issued: Issued | None) -> TlsStore:
        """A client holding `issued`, anonymous without it."""
        settings = TlsSettings(ca_dir=self.trust_dir) if issued is None else self.settings(issued)
        return TlsStore(settings, self.clock.now_ms)

    def meet(self, issued: Issued | None, store: TlsStore | None = None) -> tuple[TlsStore, ssl.SSLObject]:
        """Shake hands with a listener as `issued` (anonymously without); return the listener's side."""
        store = store or self.server()
        listener = store.server_context(ClientCertificate.OPTIONAL)
        _, server_side = handshake(listener, self.client(issued).client_context())
        return store, server_side


def handshake(
    server: ssl.SSLContext, client: ssl.SSLContext, host: str = "localhost", session: ssl.SSLSession | None = None
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Shake hands in memory and pass one byte from server to client (so TLS 1.3 tickets arrive).

    Returns: client's side, server's side. Raises what either side raises, the server's first.
    """
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_side = client.wrap_bio(down, up, server_hostname=host, session=session)
    server_side = server.wrap_bio(up, down, server_side=True)
    pending = [client_side, server_side]
    for _ in range(10):
        for side in tuple(pending):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            pending.remove(side)
        if not pending:
            break
    assert not pending, "the handshake did not end"
    server_side.write(b"x")
    assert client_side.read(1) == b"x"
    return client_side, server_side
