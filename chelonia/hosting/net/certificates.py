"""A certificate authority for tests, demos and small sites, and RFC 3820 proxies for everybody.

Makes CA, host, user and proxy certificates, CRLs and signing policies, and lays them out as grid software expects
below one directory, `/etc/grid-security` by example:
- `certificates/<hash>.0` `<hash>.r0` `<hash>.signing_policy`, for both OpenSSL hash styles
- `hostcert.pem` 0444, `hostkey.pem` 0400
- `ca/`, closed to others: the CA's own key and CRL

It never decides about trust. It replaces files whole (`durable_files`): a reader sees the old or the new one.
The instant is passed in; serial numbers come from one place, `_serial`.
"""

from __future__ import annotations

import enum
import fcntl
import hashlib
import ipaddress
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID
from OpenSSL import crypto

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn, Ms
from chelonia.durable_files import write_file
from chelonia.hosting.net.identity import (
    INHERIT_ALL,
    LIMITED,
    PROXY_CERT_INFO,
    has_issued,
    name_from_dn,
    proxy_cert_info,
    proxy_language,
    render_dn,
    subject_dn,
)
from chelonia.hosting.net.tls import crl_signed

DAY_S: Final = 24 * 3600
CA_LIFETIME_S: Final = 10 * 365 * DAY_S
CERTIFICATE_LIFETIME_S: Final = 395 * DAY_S
"""13 months, as grid CAs give."""
PROXY_LIFETIME_S: Final = 12 * 3600
"""12 hours, the default of proxy tools."""
CRL_LIFETIME_S: Final = 30 * DAY_S
BACKDATE_S: Final = 300
"""Certificates begin this much earlier, for peers whose clock is behind."""
RSA_BITS: Final = 2048
SAME_HASH_MAX: Final = 100
"""CAs whose subjects share one 32-bit hash."""

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
PublicKey = rsa.RSAPublicKey | ec.EllipticCurvePublicKey


class KeyKind(enum.Enum):
    """Kinds of key pairs."""

    RSA = "rsa-2048"
    P256 = "p-256"


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate with its key.

    Fields: `chain` leaf first, without the trust anchor; `key` of the leaf.
    """

    chain: tuple[x509.Certificate, ...]
    key: PrivateKey

    @property
    def certificate(self) -> x509.Certificate:
        return self.chain[0]

    @property
    def dn(self) -> Dn:
        """The leaf's subject in slash form (a proxy's own subject, with its extra CN)."""
        return subject_dn(self.chain[0])

    def write(self, cert_file: Path, key_file: Path, owner: tuple[int, int] | None = None) -> None:
        """Write the chain (mode 0444) and the key (0400, PKCS #8), which `owner` may read (as of `write_file`)."""
        for path in (key_file, cert_file):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_file(key_file, key_pem(self.key), 0o400, owner)
        write_file(cert_file, chain_pem(self.chain), 0o444)

    @property
    def proxy_pem(self) -> bytes:
        """All in one: leaf, key, rest of the chain, in the order Globus wrote them."""
        return chain_pem(self.chain[:1]) + key_pem(self.key) + chain_pem(self.chain[1:])

    def write_proxy(self, path: Path) -> None:
        """Write one proxy file, mode 0600."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, self.proxy_pem, 0o600)


@dataclass(frozen=True, slots=True)
class CertificateAuthority:
    """A certificate authority on disk: `directory/ca` is its own, `directory/certificates` is for others.

    Fields: `directory` the grid-security root, `issued` the CA's certificate (with the chain above it) and key,
    `kind` of the keys it makes for others.
    """

    directory: Path
    issued: Issued
    kind: KeyKind = KeyKind.RSA

    @classmethod
    def create(
        cls,
        directory: Path,
        subject: str,
        now_ms: Ms,
        *,
        kind: KeyKind = KeyKind.RSA,
        crl_lifetime_s: int = CRL_LIFETIME_S,
    ) -> CertificateAuthority:
        """Make a self-signed CA, publish it with an empty CRL and its signing policy.

        Args:
            directory: the grid-security root, made if missing; must hold no CA yet. A key without certificate, which
                a process that was killed here leaves behind, becomes the CA's; a CRL of an earlier CA is replaced.
            subject: DN in slash form.
        Raises: BAD_CONFIG if a CA is there already; BAD_REQUEST if `subject` is no DN.
        """
        if cls.is_in(directory):
            raise CheloniaError(Kind.BAD_CONFIG, "make CA", str(directory), "there is a CA in this directory already")
        name = name_from_dn(subject)
        (directory / "ca").mkdir(parents=True, exist_ok=True, mode=0o700)
        key = key_at(directory / "ca" / "cakey.pem", kind)
        builder = _builder(name, name, key.public_key(), now_ms, CA_LIFETIME_S)
        made = cls(directory, Issued((_as_ca(builder, key.public_key(), key).sign(key, hashes.SHA256()),), key), kind)
        write_file(directory / "ca" / "cacert.pem", chain_pem(made.issued.chain), 0o444)
        made.finish(now_ms, crl_lifetime_s)
        return made

    @classmethod
    def is_in(cls, directory: Path) -> bool:
        """Return whether a CA was made in `directory`."""
        return (directory / "ca" / "cacert.pem").exists()

    @classmethod
    def load(cls, directory: Path) -> CertificateAuthority:
        """Open the CA made in `directory`. Raises: BAD_CONFIG if it is missing or cannot be read."""
        folder = directory / "ca"
        try:
            chain = x509.load_pem_x509_certificates((folder / "cacert.pem").read_bytes())
        except FileNotFoundError as error:
            cause = (
                "there is no CA: its directory is the one that was given to `cheloniad ca init`, or the grid directory"
            )
            raise CheloniaError(Kind.BAD_CONFIG, "load CA", str(folder), f"{cause} of `init`") from error
        except (OSError, ValueError) as error:
            raise CheloniaError(Kind.BAD_CONFIG, "load CA", str(folder), str(error)) from error
        key = load_key(folder / "cakey.pem")
        kind = KeyKind.RSA if isinstance(key, rsa.RSAPrivateKey) else KeyKind.P256
        return cls(directory, Issued(tuple(chain), key), kind)

    @property
    def certificate(self) -> x509.Certificate:
        return self.issued.certificate

    @property
    def trust_dir(self) -> Path:
        """The directory of CA files that peers read."""
        return self.directory / "certificates"

    def issue_host(
        self,
        subject: str,
        names: Sequence[str],
        now_ms: Ms,
        *,
        lifetime_s: int = CERTIFICATE_LIFETIME_S,
        key: PrivateKey | None = None,
    ) -> Issued:
        """Make a host (service) certificate, good for both ends of a connection.

        Args:
            subject: DN in slash form.
            names: DNS names and IP addresses for the SAN, at least one.
            lifetime_s: validity in seconds; negative makes one that has expired already.
            key: the key to certify; a new one if None.
        Raises: BAD_REQUEST if `subject` is no DN or `names` is empty.
        """
        if not names:
            raise CheloniaError(Kind.BAD_REQUEST, "issue host", subject, "a host certificate names at least one host")
        key = key or make_key(self.kind)
        return Issued(self.certify(subject, names, now_ms, key.public_key(), lifetime_s=lifetime_s), key)

    def issue_user(
        self, subject: str, now_ms: Ms, *, lifetime_s: int = CERTIFICATE_LIFETIME_S, key: PrivateKey | None = None
    ) -> Issued:
        """Make a user certificate (client authentication). Arguments and errors as `issue_host`."""
        key = key or make_key(self.kind)
        return Issued(self.certify(subject, (), now_ms, key.public_key(), lifetime_s=lifetime_s), key)

    def revoke(self, cert: x509.Certificate, now_ms: Ms) -> None:
        """Put `cert` on the CRL and publish it; revoking twice keeps the first instant.

        Raises: BAD_REQUEST if this CA did not issue it.
        """
        if not has_issued(self.certificate, cert):  # other CAs may have its name
            cause = f"it was issued by another CA, {render_dn(cert.issuer)}: name the directory of that one"
            raise CheloniaError(Kind.BAD_REQUEST, "revoke", subject_dn(cert), cause)
        with self._alone():
            revoked = self._revoked()
            revoked.setdefault(cert.serial_number, _instant(now_ms))
            self._write_crl(revoked, now_ms)

    def write_crl(self, now_ms: Ms, *, lifetime_s: int | None = None) -> None:
        """Sign and publish the CRL again, with the certificates revoked so far.

        Args:
            now_ms: when it is issued.
            lifetime_s: seconds until `nextUpdate` (None: as long as the CRL before); one in the past needs an earlier
                `now_ms`.
        """
        with self._alone():
            self._write_crl(self._revoked(), now_ms, lifetime_s)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other processes from the CRL: what one of them revoked meanwhile would be lost."""
        with open(
            os.open(self.directory / "ca" / "lock", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600), "wb"
        ) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def renew(self, now_ms: Ms) -> CertificateAuthority:
        """Sign the CA's own certificate anew, with its subject and key: all it has issued stays good.

        It replaces the old one, also in the trust directory, and signs the CRL again.
        Raises: BAD_REQUEST if another CA has issued the CA's certificate and has to sign it.
        """
        old = self.certificate
        if old.issuer != old.subject:
            raise CheloniaError(Kind.BAD_REQUEST, "renew CA", str(self.issued.dn), "the CA above it has to sign it")
        public = self.issued.key.public_key()
        builder = _as_ca(_builder(old.subject, old.subject, public, now_ms, CA_LIFETIME_S), public, self.issued.key)
        cert = builder.sign(self.issued.key, hashes.SHA256())
        renewed = CertificateAuthority(self.directory, Issued((cert,), self.issued.key), self.kind)
        write_file(self.directory / "ca" / "cacert.pem", chain_pem((cert,)), 0o444)
        for path in publish(self.trust_dir, old):  # in its place
            write_file(path, chain_pem((cert,)), 0o444)
        renewed.write_crl(now_ms)
        return renewed

    def finish(self, now_ms: Ms, crl_lifetime_s: int = CRL_LIFETIME_S) -> None:
        """Make and publish the files that a killed `create` left out; present ones stay."""
        if self._crl() is None:
            self.write_crl(now_ms, lifetime_s=crl_lifetime_s)
        published = publish(self.trust_dir, self.certificate)
        if not all(_crl_of(path).exists() for path in published):
            publish_crl(self.trust_dir, self.certificate, (self.directory / "ca" / "crl.pem").read_bytes())
        if not all(path.with_suffix(".signing_policy").exists() for path in published):
            publish_policy(self.trust_dir, self.certificate, (_namespace(self.certificate),))

    def certify(
        self,
        subject: str,
        names: Sequence[str],
        now_ms: Ms,
        public: PublicKey,
        *,
        lifetime_s: int = CERTIFICATE_LIFETIME_S,
    ) -> tuple[x509.Certificate, ...]:
        """Certify a key whose private half may be elsewhere, as `issue_host`, without names as `issue_user`.

        Returns: the chain, leaf first.
        """
        builder = _builder(name_from_dn(subject), self.certificate.subject, public, now_ms, lifetime_s)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_key_usage(public), critical=True)
        usage = [*([ExtendedKeyUsageOID.SERVER_AUTH] if names else []), ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(usage), critical=False)
        builder = _identifiers(builder, public, self.issued.key)
        if names:
            san = x509.SubjectAlternativeName([_general_name(name) for name in names])
            builder = builder.add_extension(san, critical=False)
        cert = builder.sign(self.issued.key, hashes.SHA256())
        above = self.issued.chain if self.certificate.issuer != self.certificate.subject else ()
        return (cert, *(ca for ca in above if ca.issuer != ca.subject))

    @property
    def crl_due(self) -> datetime:
        """The instant from which all of this CA is refused, unless it signs the CRL again."""
        crl = self._crl()
        assert crl is not None
        assert crl.next_update_utc is not None, "we have written it"
        return crl.next_update_utc

    def _crl(self) -> x509.CertificateRevocationList | None:
        """Return the present CRL; one that an earlier CA of this directory has signed is none."""
        path = self.directory / "ca" / "crl.pem"
        found = x509.load_pem_x509_crl(path.read_bytes()) if path.exists() else None
        return found if found is not None and crl_signed(found, self.certificate) else None

    def _revoked(self) -> dict[int, datetime]:
        """Return the serial numbers on the present CRL, and when each was revoked."""
        return {entry.serial_number: entry.revocation_date_utc for entry in self._crl() or ()}

    def _write_crl(self, revoked: dict[int, datetime], now_ms: Ms, lifetime_s: int | None = None) -> None:
        """Sign a CRL and publish it in the CA's trust directory."""
        number, lifetime = 1, timedelta(seconds=CRL_LIFETIME_S if lifetime_s is None else lifetime_s)
        if (old := self._crl()) is not None:  # one without entries is false
            number = old.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number + 1
            lifetime = lifetime if lifetime_s is not None else self.crl_due - old.last_update_utc
        now = _instant(now_ms)
        builder = x509.CertificateRevocationListBuilder().issuer_name(self.certificate.subject)
        builder = builder.last_update(now).next_update(now + lifetime)
        builder = builder.add_extension(x509.CRLNumber(number), critical=False)
        for serial, when in revoked.items():
            entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(when).build()
            builder = builder.add_revoked_certificate(entry)
        pem = builder.sign(self.issued.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        write_file(self.directory / "ca" / "crl.pem", pem, 0o444)
        publish_crl(self.trust_dir, self.certificate, pem)


def make_proxy(
    issuer: Issued,
    now_ms: Ms,
    *,
    lifetime_s: int = PROXY_LIFETIME_S,
    limited: bool = False,
    kind: KeyKind = KeyKind.RSA,
    key: PrivateKey | None = None,
) -> Issued:
    """Make an RFC 3820 proxy, one deeper than `issuer` (a user's or host's certificate, or a proxy).

    Args:
        issuer: gives the proxy its rights; its chain goes behind the proxy's.
        lifetime_s: validity in seconds, never beyond the issuer's own end; negative makes an expired one.
        limited: make a limited proxy; below a limited one every proxy is limited.
        kind: of the new key, unless `key` is given.
    Source: RFC 3820 section 3.
    """
    parent = issuer.certificate
    limited = limited or proxy_language(parent) == LIMITED
    key = key or make_key(kind)
    serial = _serial()
    common_name = x509.NameAttribute(x509.NameOID.COMMON_NAME, str(serial))
    name = x509.Name([*parent.subject.rdns, x509.RelativeDistinguishedName([common_name])])
    info = proxy_cert_info(LIMITED if limited else INHERIT_ALL)
    public = key.public_key()
    builder = _builder(name, parent.subject, public, now_ms, lifetime_s, serial, parent.not_valid_after_utc)
    builder = builder.add_extension(_key_usage(public), critical=True)
    builder = builder.add_extension(x509.UnrecognizedExtension(PROXY_CERT_INFO, info), critical=True)
    cert = builder.sign(issuer.key, hashes.SHA256())
    return Issued((cert, *issuer.chain), key)


def make_key(kind: KeyKind) -> PrivateKey:
    """Make a fresh key pair; RSA-2048 takes about 100 ms, P-256 none to speak of."""
    if kind is KeyKind.P256:
        return ec.generate_private_key(ec.SECP256R1())
    return rsa.generate_private_key(65537, RSA_BITS)


def publish(trust_dir: Path, cert: x509.Certificate) -> tuple[Path, ...]:
    """Put a CA certificate into a trust directory under both hash styles; return the files, new style first."""
    trust_dir.mkdir(parents=True, exist_ok=True)
    pem = cert.public_bytes(serialization.Encoding.PEM)
    return tuple(_place(trust_dir, stem, pem) for stem in subject_hashes(cert))


def publish_crl(trust_dir: Path, cert: x509.Certificate, crl: bytes) -> None:
    """Put a CA's CRL (PEM) beside the CA's certificate in a trust directory, both hash styles."""
    for path in publish(trust_dir, cert):
        write_file(_crl_of(path), crl, 0o444)


def publish_policy(trust_dir: Path, cert: x509.Certificate, namespace: Sequence[str]) -> None:
    """Write a CA's signing policy into a trust directory, both hash styles.

    Args:
        namespace: patterns of the subjects the CA may sign, at least one; no quotes inside.
    Source: the EACL subset that grid CAs publish (`access_id_CA`, `pos_rights`, `cond_subjects`).
    """
    assert namespace, "a signing policy without a subject would forbid everything"
    assert not any(mark in pattern for pattern in namespace for mark in "'\""), "patterns hold no quotes"
    subjects = " ".join(f'"{pattern}"' for pattern in namespace)
    text = (
        f"access_id_CA   X509    '{subject_dn(cert)}'\npos_rights     globus  CA:sign\n"
        f"cond_subjects  globus  '{subjects}'\n"
    )
    for stem in subject_hashes(cert):
        write_file(trust_dir / f"{stem}.signing_policy", text.encode(), 0o444)


def publish_whole(trust_dir: Path, cert: x509.Certificate, crl: bytes) -> None:
    """Put a CA's certificate, its CRL (PEM) and its signing policy into a trust directory, both hash styles."""
    publish(trust_dir, cert)
    publish_crl(trust_dir, cert, crl)
    publish_policy(trust_dir, cert, (_namespace(cert),))


def subject_hashes(cert: x509.Certificate) -> tuple[str, str]:
    """Return the names, 8 hex digits each, under which OpenSSL looks for a CA.

    The first is for 1.0 and later (SHA-1 of the canonical name), the second for older ones (MD5 of DER).
    """
    new = crypto.X509.from_cryptography(cert).subject_name_hash()
    digest = hashlib.md5(cert.subject.public_bytes(), usedforsecurity=False).digest()
    return f"{new:08x}", f"{int.from_bytes(digest[:4], 'little'):08x}"


def chain_pem(chain: Sequence[x509.Certificate]) -> bytes:
    """Return certificates as PEM, in the order given."""
    return b"".join(cert.public_bytes(serialization.Encoding.PEM) for cert in chain)


def key_pem(key: PrivateKey) -> bytes:
    """Return a private key as PKCS #8 PEM, without a password."""
    encryption = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)


def load_key(path: Path) -> PrivateKey:
    """Read a private key that has no password. Raises: BAD_CONFIG with the reason."""
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise CheloniaError(Kind.BAD_CONFIG, "read key", str(path), str(error)) from error
    if not isinstance(key, PrivateKey):
        raise CheloniaError(Kind.BAD_CONFIG, "read key", str(path), "the key is neither RSA nor elliptic curve")
    return key


def key_at(path: Path, kind: KeyKind) -> PrivateKey:
    """Return the key in a file; write a new one there (0400) when there is none. Raises: BAD_CONFIG."""
    if path.exists():
        try:
            return load_key(path)
        except CheloniaError as error:
            cause = f"there is a key without its certificate, and it cannot be used ({error.cause}): move it away"
            raise CheloniaError(error.kind, "make certificate", str(path), cause) from error
    key = make_key(kind)
    write_file(path, key_pem(key), 0o400)
    return key


def _serial() -> int:
    """Return a new serial number: 159 random bits, so that two CAs of a name do not collide (RFC 5280, 4.1.2.2)."""
    return x509.random_serial_number()


def _instant(now_ms: Ms) -> datetime:
    """Return an instant as a UTC datetime in whole seconds, as certificates hold it."""
    return datetime.fromtimestamp(now_ms // 1000, UTC)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: PublicKey,
    now_ms: Ms,
    lifetime_s: int,
    serial: int | None = None,
    end: datetime | None = None,
) -> x509.CertificateBuilder:
    """Begin a certificate with names, key, serial number and validity; `end` caps the validity."""
    begin = _instant(now_ms) - timedelta(seconds=BACKDATE_S)
    until = _instant(now_ms) + timedelta(seconds=lifetime_s)
    until = until if end is None else min(until, end)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(serial or _serial())
    return builder.not_valid_before(min(begin, until - timedelta(seconds=1))).not_valid_after(until)


def _as_ca(builder: x509.CertificateBuilder, key: PublicKey, signer: PrivateKey) -> x509.CertificateBuilder:
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    return _identifiers(builder.add_extension(_key_usage(key, ca=True), critical=True), key, signer)


def _identifiers(builder: x509.CertificateBuilder, key: PublicKey, signer: PrivateKey) -> x509.CertificateBuilder:
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    return builder.add_extension(authority, critical=False)


def _key_usage(key: PublicKey, *, ca: bool = False) -> x509.KeyUsage:
    """Return signing (and RSA key transport) for end entities and proxies, certificates and CRLs for a CA."""
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=not ca and isinstance(key, rsa.RSAPublicKey),
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=ca,
        crl_sign=ca,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    """Return a SAN entry: an IP address if `name` is one, else a DNS name."""
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _namespace(cert: x509.Certificate) -> str:
    """Return the signing policy's pattern of all subjects beside and below the CA's own."""
    return f"{render_dn(x509.Name(cert.subject.rdns[:-1]))}/*"


def _crl_of(published: Path) -> Path:
    return published.with_suffix(f".r{published.suffix[1:]}")


def _place(trust_dir: Path, stem: str, pem: bytes) -> Path:
    """Write `pem` as `<stem>.N`, N being the first number that is free or holds the same bytes."""
    for number in range(SAME_HASH_MAX):
        path = trust_dir / f"{stem}.{number}"
        if path.exists() and path.read_bytes() == pem:
            return path
        if not path.exists():
            write_file(path, pem, 0o444)
            return path
    raise CheloniaError(Kind.BAD_CONFIG, "publish CA", str(trust_dir), f"{SAME_HASH_MAX} CAs share the hash {stem}")
