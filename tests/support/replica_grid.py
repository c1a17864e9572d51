"""Certificates for replicas: one CA, one host certificate per replica on loopback."""

import time
from pathlib import Path

from chelonia.ahash.group.transport_replication import LinkTrust
from chelonia.core.ids import Dn, Ms
from chelonia.hosting.ahash_replica import trust_of
from chelonia.hosting.net.certificates import CertificateAuthority, Issued, KeyKind
from chelonia.hosting.net.tls import TlsSettings, TlsStore

CA = "/O=Grid/CN=Test CA"


def now_ms() -> Ms:
    return Ms(time.time_ns() // 1_000_000)


def replica_dn(replica: int) -> Dn:
    return Dn(f"/O=Grid/CN=ahash {replica}")


class ReplicaGrid:
    """A CA in `directory`; it makes certificates on request."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        made = (directory / "ca" / "ca" / "cakey.pem").exists()
        self.ca = (
            CertificateAuthority.load(directory / "ca")
            if made
            else CertificateAuthority.create(directory / "ca", CA, now_ms(), kind=KeyKind.P256)
        )

    def issue(self, name: str, dn: str, lifetime_s: int = 3600) -> TlsSettings:
        """A host certificate in files called `name`."""
        return self.write(name, self.ca.issue_host(dn, ("127.0.0.1",), now_ms(), lifetime_s=lifetime_s))

    def write(self, name: str, issued: Issued) -> TlsSettings:
        cert, key = self.directory / f"{name}.pem", self.directory / f"{name}.key"
        if not cert.exists():
            issued.write(cert, key)
        return TlsSettings(cert=cert, key=key, ca_dir=self.ca.trust_dir)

    def replica(self, replica: int) -> TlsSettings:
        """The certificate of a replica, made once."""
        name = f"replica-{replica}"
        cert = self.directory / f"{name}.pem"
        if cert.exists():
            return TlsSettings(cert=cert, key=self.directory / f"{name}.key", ca_dir=self.ca.trust_dir)
        return self.issue(name, replica_dn(replica))


def link_trust(settings: TlsSettings) -> LinkTrust:
    """The TLS of links."""
    return trust_of(TlsStore(settings, now_ms))
