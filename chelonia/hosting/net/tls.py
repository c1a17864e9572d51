"""TLS contexts for both ends, their trust, and the renewal of both while connections live.

OpenSSL verifies signatures, validity, purposes, proxy chains (RFC 3820) and server names in the handshake. This module
adds, on the chain OpenSSL verified, what it cannot say clearly or per CA: CRLs and signing policies (`Trust.check`).

CRLs are checked here and only here. OpenSSL's VERIFY_CRL_CHECK_LEAF looks at the leaf alone, which for a proxy means
nothing; VERIFY_CRL_CHECK_CHAIN demands a CRL from every CA. Rule: each certificate but proxies and the anchor is
checked against the CRLs of its issuer. A CA without a CRL is not checked. A CRL that has expired, cannot be read or is
not signed by its CA refuses all of that CA. Same for signing policies: none = no limit, unreadable = refuse.
A client runs these checks inside the handshake, before it sends a byte of a request. A server runs them at each request
(`TlsStore.identify`), so that it can answer with the reason instead of a reset.

Reload: the contexts handed out are shells that make each new connection from the newest contexts. Tickets of older
contexts no longer resume; the new trust judges open connections at their next request. A reload that fails raises and
leaves everything as it was.
"""

from __future__ import annotations

import enum
import functools
import itertools
import logging
import os
import re
import ssl
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn, Ms
from chelonia.hosting.net.identity import (
    FOREVER,
    Attests,
    Chain,
    Identity,
    IdentityCache,
    TlsObject,
    attests_nothing,
    canonical_dn,
    check_validity,
    fingerprint,
    identity_of_chain,
    instant_ms,
    load_certificate,
    names_of,
    proxy_language,
    render_dn,
    subject_dn,
)
from chelonia.hosting.net.tls_handshake import AlertingObject, PartingObject, shortened
from chelonia.wire import compact

HTTP: Final = "http/1.1"
"""Protocol after a handshake unless both ends agree on another (RFC 7301)."""
TLS_1_2_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Ciphers of TLS 1.2: forward secrecy and authenticated encryption, no CBC, no SHA-1. TLS 1.3 has no other."""
DAY_MS: Final = 24 * 3600 * 1000
TRUST_FILE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Largest file of a trust directory: the largest CRLs of grid CAs are a few MiB."""
X509_V_ERR_CERT_HAS_EXPIRED: Final = 10
UNLIMITED: Final = (
    "it has no signing policy, so it may issue every name (but those that [trust] issuers keeps for other CAs): "
    "write one"
)
_KEY_MODES: Final = (0o400, 0o600)
_TRUST_FILE: Final = r"[0-9a-f]{8}\.r?[0-9]{1,3}\Z|.*\.signing_policy\Z"
_CA_FILE: Final = r"[0-9a-f]{8}\.[0-9]{1,3}\Z"
_CRL_FILE: Final = r"[0-9a-f]{8}\.r[0-9]{1,3}\Z"
_POLICY_LINE: Final = r"(access_id_\w+|pos_rights|neg_rights|cond_\w+)\s+(\S+)\s+(\S.*)\Z"
_PEM_CRL: Final = rb"(?s)-----BEGIN X509 CRL-----.+?-----END X509 CRL-----"
_PEM_CERTIFICATE: Final = b"-----BEGIN CERTIFICATE-----"
_CURES: Final = {
    18: "it is self-signed and not in the trust directory",
    19: "its root CA is not in the trust directory",
    20: "its CA is not in the trust directory",
    21: "its CA is not in the trust directory",
}
_log = logging.getLogger(__name__)


class ClientCertificate(enum.Enum):
    """Whether a listener's peers must show a certificate; without one they are `ANONYMOUS`."""

    REQUIRED = ssl.CERT_REQUIRED
    OPTIONAL = ssl.CERT_OPTIONAL


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Files of certificates, keys and CAs.

    Fields:
    - `cert`, `key` PEM files (the certificate's may hold its chain)
    - `proxy` one file with proxy, key and chain, which wins over both
    - `ca_dir` a directory in the `/etc/grid-security/certificates` layout
    - `ca_file` PEM CAs (and CRLs) in one file
    - `password` of an encrypted key, typed by a person, never from a configuration

    Without `cert` and `proxy` only clients can be made, and they are anonymous.
    """

    cert: Path | None = None
    key: Path | None = None
    proxy: Path | None = None
    ca_dir: Path | None = None
    ca_file: Path | None = None
    password: bytes | None = field(default=None, repr=False)

    @property
    def own_files(self) -> tuple[Path, Path] | None:
        """Certificate file and key file; None for an anonymous client."""
        if self.proxy is not None:
            return self.proxy, self.proxy
        if self.cert is not None:
            return self.cert, self.key or self.cert
        return None


class SigningPolicy(msgspec.Struct, frozen=True):
    """Limits of one CA: `ca` its DN, `patterns` of subjects in slash form (`*` any text, `?` one character)."""

    ca: Dn
    patterns: tuple[str, ...]

    def allows(self, subject: Dn) -> bool:
        return any(_pattern(pattern).fullmatch(subject) for pattern in self.patterns)


class Crl(msgspec.Struct, frozen=True):
    """A revocation list as read: `source` file name, `revoked` serial numbers, `next_update_ms` when it expires.

    `signers`: SHA-256 of the CA certificates in the trust directory whose key verifies its signature.
    `problem`: reason not to rely on it (an unknown extension, no end); empty if there is none.
    """

    source: str
    crl: x509.CertificateRevocationList
    revoked: frozenset[int]
    issued_ms: Ms
    next_update_ms: Ms
    signers: frozenset[bytes]
    problem: str = ""


class Trust(msgspec.Struct, frozen=True):
    """Everything read from a trust directory or CA file, at one moment; never changes.

    Fields: `cas` certificates. `crls`, `policies`, `problems` by the DN of their CA; `problems` names unreadable files,
    which refuse all of that CA. `anchors` names and keys of the CAs.
    """

    cas: tuple[x509.Certificate, ...]
    crls: Mapping[str, tuple[Crl, ...]]
    policies: Mapping[str, tuple[SigningPolicy, ...]]
    problems: Mapping[str, str]
    anchors: frozenset[bytes]

    @property
    def unlimited(self) -> tuple[Dn, ...]:
        """The CAs that may issue another's names: those without a signing policy, where there are several."""
        names = sorted({subject_dn(cert) for cert in self.cas})
        return tuple(ca for ca in names if ca not in self.policies) if len(names) > 1 else ()

    def check(self, chain: Chain, now_ms: Ms) -> Ms:
        """Refuse a chain that OpenSSL verified but a CRL or a signing policy forbids.

        Args:
            chain: leaf first, trust anchor last.
        Returns: when the first CRL relied on expires; `FOREVER` if none was.
        Raises: UNTRUSTED naming the certificate, the CA and the file that refuses it.
        """
        if _authority(chain[-1]) not in self.anchors:
            raise _refused(chain[-1], "the trust anchor is not, or no longer, in the trust directory")
        pairs = [pair for pair in itertools.pairwise(chain) if proxy_language(pair[0]) is None]
        return min((self._check_one(cert, issuer, now_ms) for cert, issuer in pairs), default=FOREVER)

    def _check_one(self, cert: x509.Certificate, issuer: x509.Certificate, now_ms: Ms) -> Ms:
        """Check one certificate that a CA issued; return when the CRL relied on expires."""
        ca = subject_dn(issuer)
        if problem := self.problems.get(ca):
            raise _refused(cert, f"CA {ca} cannot be relied on: {problem}")
        crls = self.crls.get(ca)
        until_ms = _check_revoked(cert, issuer, crls, now_ms) if crls else FOREVER
        if reason := self.beyond(ca, subject_dn(cert)):
            raise _refused(cert, reason)
        return until_ms

    def beyond(self, ca: Dn, subject: Dn) -> str:
        """Return why a CA may not sign a subject, by its signing policy; empty when it may."""
        policies = self.policies.get(ca, ())
        if not policies or any(policy.allows(subject) for policy in policies):
            return ""
        allowed = " ".join(f'"{pattern}"' for policy in policies for pattern in policy.patterns)
        return f"the signing policy of CA {ca} allows only {allowed}"


class TlsStore:
    """The TLS side of one process: contexts for listeners and clients, identities of peers, and renewal of all."""

    def __init__(self, settings: TlsSettings, now_ms: Callable[[], Ms], attests: Attests = attests_nothing) -> None:
        """Read everything once; `attests` judges peers' VOMS attributes. Raises: as `reload`."""
        self._settings = settings
        self._now_ms = now_ms
        self._contexts: dict[_Key, ssl.SSLContext] = {}
        self._identities = IdentityCache(self._check, now_ms, attests=attests)
        self._stamp = _stamp(settings)
        self._own = load_own_chain(settings, now_ms())
        self.trust = _loaded_trust(settings)
        """The trust last loaded."""

    @property
    def own_identity(self) -> Identity | None:
        """Identity of this process to its peers; None without a certificate."""
        return identity_of_chain(self._own) if self._own else None

    @property
    def own_names(self) -> tuple[str, ...]:
        """Hosts that this process's certificate is for."""
        return names_of(self._own[0]) if self._own else ()

    def identify(self, tls: TlsObject | None) -> Identity:
        """Return the peer's identity; call this at each request. Raises: as `IdentityCache.identify`."""
        return self._identities.identify(tls)

    def server_context(self, client_certificate: ClientCertificate) -> ssl.SSLContext:
        """Return a context for a listener, good for the life of the process: new handshakes use the files last loaded.

        Raises: BAD_CONFIG if there is no certificate.
        """
        return self._live(client_certificate, ssl.PROTOCOL_TLS_SERVER)

    def client_context(self, *, speaks: str = HTTP) -> ssl.SSLContext:
        """Return a context for a client, good for the life of the process; `speaks`: the protocol that it offers.

        Its handshakes check the server's name against the SAN, and its chain against CRLs and signing policies.
        Failures are `ssl.SSLCertVerificationError`; `handshake_error` makes them readable.
        """
        return self._live(speaks, ssl.PROTOCOL_TLS_CLIENT)

    def anonymous_context(self) -> ssl.SSLContext:
        """Return as `client_context`, for a client that never shows a certificate."""
        return self._live(_NOBODY, ssl.PROTOCOL_TLS_CLIENT)

    def reload(self) -> None:
        """Read all files again and use them for new handshakes and for the next request of open connections.

        Raises: BAD_CONFIG, UNTRUSTED or EXPIRED naming the file; everything stays as it was.
        """
        stamp = _stamp(self._settings)
        own = load_own_chain(self._settings, self._now_ms())
        trust = _loaded_trust(self._settings)
        contexts = {key: self._build(key, trust) for key in self._contexts}
        self._stamp, self._own, self.trust, self._contexts = stamp, own, trust, contexts
        self._identities.judge_again()
        crls = sum(map(len, trust.crls.values()))
        _log.info("event=tls-reloaded cas=%d crls=%d policies=%d", len(trust.cas), crls, len(trust.policies))

    def reload_if_changed(self) -> bool:
        """Reload if a file was added, removed or replaced since; return whether. Raises: as `reload`."""
        if _stamp(self._settings) == self._stamp:
            return False
        self.reload()
        return True

    def days_left(self) -> dict[str, float]:
        """Return the days until the first one of a sort expires, negative afterwards.

        Returns: keys `certificate` (own chain), `ca`, `crl`, each present only where there is one.
        """
        crls = [crl.next_update_ms for crls in self.trust.crls.values() for crl in crls]
        ends = {"certificate": _ends(self._own), "ca": _ends(self.trust.cas), "crl": crls}
        return {name: (min(all_ms) - self._now_ms()) / DAY_MS for name, all_ms in ends.items() if all_ms}

    def _check(self, chain: Chain, now_ms: Ms) -> Ms:
        return self.trust.check(chain, now_ms)

    def _live(self, key: _Key, protocol: ssl._SSLMethod) -> ssl.SSLContext:
        """Return a shell around the context for `key`; build that now, so that errors show here."""
        self._current(key)
        shell = _LiveContext(protocol)
        shell.current = functools.partial(self._current, key)
        return shell

    def _current(self, key: _Key) -> ssl.SSLContext:
        if key not in self._contexts:
            self._contexts[key] = self._build(key, self.trust)
        return self._contexts[key]

    def _build(self, key: _Key, trust: Trust) -> ssl.SSLContext:
        """Make the context for one listener sort or one kind of client."""
        if isinstance(key, ClientCertificate):
            return make_server_context(self._settings, trust, key)
        settings, speaks = (TlsSettings(), HTTP) if key == _NOBODY else (self._settings, key)
        return make_client_context(settings, trust, self._identities.identify, speaks=speaks)


_Key = ClientCertificate | str
"""Use of a context: a listener, or clients that speak this."""
_NOBODY: Final = ""
"""Clients that show no certificate."""


def make_server_context(settings: TlsSettings, trust: Trust, client_certificate: ClientCertificate) -> ssl.SSLContext:
    """Build a listener's context from files read now. Raises: BAD_CONFIG if there is no usable certificate."""
    if settings.own_files is None:
        raise CheloniaError(Kind.BAD_CONFIG, "TLS", "", "a listener needs a certificate and a key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sslobject_class = AlertingObject
    context.verify_mode = client_certificate.value
    context.num_tickets = 1  # FFmpeg closes with the second of two unread: a reset takes the end of its file away
    _furnish(context, settings, trust, (HTTP, compact.PROTOCOL))
    return context


def make_client_context(
    settings: TlsSettings, trust: Trust, inspect: Callable[[TlsObject], object], *, speaks: str = HTTP
) -> ssl.SSLContext:
    """Build a client's context; `inspect` looks at the peer as the last step of each handshake.

    Raises: BAD_CONFIG if there is a certificate and OpenSSL refuses it.
    """
    context = _InspectingContext(ssl.PROTOCOL_TLS_CLIENT)
    context.inspect = inspect
    context.hostname_checks_common_name = False
    _furnish(context, settings, trust, (speaks,))
    return context


def _authority(ca: x509.Certificate) -> bytes:
    """Return a CA's name and key, by which it is known: a connection may be older than its renewed certificate."""
    return ca.subject.public_bytes() + _spki(ca.public_key())


def load_trust(settings: TlsSettings) -> Trust:
    """Read a trust directory, or a file of CAs (`ca_dir` and `ca_file` may both be given).

    A CA file that cannot be read is left out with a warning; CRLs and policies that cannot be read refuse their CA.
    Raises: BAD_CONFIG if nothing is configured, readable, or no CA is found.
    """
    files = _trust_files(settings)
    cas = [(path, cert) for path in files if not _is_crl(path) and not _is_policy(path) for cert in _read_cas(path)]
    if not cas:
        where = " ".join(str(path) for path in (settings.ca_dir, settings.ca_file) if path) or "no ca_dir, no ca_file"
        cause = "no CA certificate found: put CAs there as <hash>.0 (c_rehash), or name another directory"
        raise CheloniaError(Kind.BAD_CONFIG, "TLS", where, cause)
    certs = tuple({fingerprint(cert): cert for _, cert in cas}.values())
    problems: dict[str, str] = {}
    crls = _read_crls(files, cas, problems)
    policies = _read_policies(files, cas, problems)
    return Trust(certs, crls, policies, problems, frozenset(map(_authority, certs)))


def _loaded_trust(settings: TlsSettings) -> Trust:
    """Return as `load_trust`; log the CAs that may issue every name."""
    trust = load_trust(settings)
    for ca in trust.unlimited:
        _log.warning('event=ca-unlimited ca="%s" reason="%s"', ca, UNLIMITED)
    return trust


def _unusable(path: Path, error: OSError | ValueError, cas: _Cas, problems: dict[str, str]) -> None:
    """Note that a file's CAs cannot be relied on. Peers see its name alone; the log has its path."""
    kind = "CRL" if _is_crl(path) else "signing policy" if _is_policy(path) else "CA file"
    reason = error.strerror if isinstance(error, OSError) else str(error)
    for cert in _owners(path, cas):
        ca = subject_dn(cert)
        problems[ca] = f"{kind} {path.name} cannot be read: {reason}"
        _log.warning('event=ca-unusable ca="%s" file="%s" reason="%s"', ca, path, reason)


def load_own_chain(settings: TlsSettings, now_ms: Ms) -> Chain:
    """Read this side's certificate chain, and prove it usable: file modes, key, validity.

    Returns: leaf first as in the file; empty for an anonymous client.
    Raises: BAD_CONFIG for missing files, modes, or a key that does not match; EXPIRED or UNTRUSTED by the clock.
    """
    if settings.own_files is None:
        return ()
    cert_file, key_file = settings.own_files
    check_key_mode(key_file)
    try:
        chain = tuple(x509.load_pem_x509_certificates(cert_file.read_bytes()))
    except (OSError, ValueError) as error:
        raise CheloniaError(Kind.BAD_CONFIG, "TLS", str(cert_file), f"cannot read a certificate: {error}") from error
    if load_key_public(key_file, settings.password) != _spki(chain[0].public_key()):
        raise CheloniaError(Kind.BAD_CONFIG, "TLS", str(key_file), f"the key does not belong to {cert_file}")
    try:
        check_validity(chain, now_ms)
    except CheloniaError as error:
        raise CheloniaError(error.kind, "TLS", str(cert_file), f"{error.cause} ({error.subject})") from error
    return chain


def load_key_public(key_file: Path, password: bytes | None) -> bytes:
    """Return the public half (DER) of the private key in a PEM file.

    Raises: BAD_CONFIG if it cannot be read, is encrypted without a password, or the password is wrong.
    """
    try:
        data = key_file.read_bytes()
        password = password if b"ENCRYPTED" in data else None
        # Unproved: only its public half is used, and to prove primes costs as much as all the rest of a connection.
        key = serialization.load_pem_private_key(data, password, unsafe_skip_rsa_key_validation=True)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        cause = f"cannot read the key: {getattr(error, 'strerror', '') or error}"
        raise CheloniaError(Kind.BAD_CONFIG, "TLS", str(key_file), cause) from error
    return _spki(key.public_key())


def check_key_mode(key_file: Path) -> None:
    """Refuse a key that others may read, or that is none. Raises: BAD_CONFIG with the cure."""
    try:
        mode = stat.S_IMODE(key_file.stat().st_mode)
    except OSError as error:
        raise CheloniaError(Kind.BAD_CONFIG, "TLS", str(key_file), error.strerror or str(error)) from error
    if _is_certificate(key_file):
        cause = "it holds a certificate, not a key: were the names of the two files swapped?"
        raise CheloniaError(Kind.BAD_CONFIG, "TLS", str(key_file), cause)
    if mode not in _KEY_MODES:
        cause = f"the key's mode is {mode:04o}, it must be 0400 or 0600: chmod 0400 {key_file}"
        raise CheloniaError(Kind.BAD_CONFIG, "TLS", str(key_file), cause)


def _is_certificate(key_file: Path) -> bool:
    """Return whether a file has a certificate in place of a key; False when it cannot be read."""
    try:
        data = key_file.read_bytes()
    except OSError:
        return False
    return b"BEGIN CERTIFICATE" in data and b"PRIVATE KEY" not in data


def parse_signing_policy(text: str) -> tuple[SigningPolicy, ...]:
    """Read a `.signing_policy` file: the EACL subset that grid CAs use.

    Blocks of `access_id_CA X509 '<DN>'`, `pos_rights globus CA:sign`, `cond_subjects globus '"<pattern>" ...'`;
    blocks for other than CAs are left out.
    Raises: ValueError naming the line that is not understood; `neg_rights` is never understood.
    """
    policies: list[SigningPolicy] = []
    ca: Dn | None = None
    may_sign = False
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = re.match(_POLICY_LINE, line.strip())
        if match is None or match[1] == "neg_rights":
            raise ValueError(f"line {number} is not understood: {line.strip()[:80]}")
        key, value = match[1], match[3].strip().strip("'\"")
        if key.startswith("access_id_"):
            ca, may_sign = (_policy_dn(value) if key == "access_id_CA" else None), False
        elif key == "pos_rights":
            may_sign = may_sign or value == "CA:sign"
        elif ca is not None and may_sign and key == "cond_subjects":
            policies.append(SigningPolicy(ca, _patterns(match[3])))
        elif ca is not None and may_sign:
            raise ValueError(f"line {number}: condition {key} is not supported")
    return tuple(policies)


def handshake_error(error: BaseException, peer: str = "") -> CheloniaError:
    """Return what went wrong in a TLS handshake, and whose certificate was refused.

    Args:
        error: of the connection attempt (aiohttp's wrappers included).
        peer: host and port or URL, for the reader.
    Returns: UNTRUSTED, EXPIRED, or NETWORK for failures that concern no certificate.
    """
    causes = tuple(_causes(error))
    for cause in causes:
        if isinstance(cause, CheloniaError):
            return cause
    for cause in causes:
        code = getattr(cause, "verify_code", None)  # aiohttp's wrapper is of the same class without having one
        if isinstance(cause, ssl.SSLCertVerificationError) and code is not None:
            kind = Kind.EXPIRED if code == X509_V_ERR_CERT_HAS_EXPIRED else Kind.UNTRUSTED
            cure = _CURES.get(code, "")
            text = f"the peer's certificate is refused: {cause.verify_message or cause}"
            return CheloniaError(kind, "connect", peer, f"{text}: {cure}" if cure else text)
        reason = getattr(cause, "reason", None) or ""  # which aiohttp's wrapper lacks as well
        if isinstance(cause, ssl.SSLError) and _is_refusal(reason):
            text = f"the peer refuses our certificate: {_readable(reason)}"
            if "CERTIFICATE_REQUIRED" in reason:
                text = "the peer asks for a certificate, and none was shown"
            return CheloniaError(Kind.UNTRUSTED, "connect", peer, text)
    return CheloniaError(Kind.NETWORK, "connect", peer, str(error) or type(error).__name__)


class _LiveContext(ssl.SSLContext):
    """A shell that hands each new connection to the newest context. The interpreter requires a subclass.

    It holds no certificate and no CA: a connection past its method, as of a blocking socket, finishes no handshake.
    """

    current: Callable[[], ssl.SSLContext]

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """Wrap as `ssl.SSLContext.wrap_bio`; asyncio and uvloop call this for each connection."""
        return shortened(self.current().wrap_bio(incoming, outgoing, server_side, server_hostname, session))


class _InspectingObject(PartingObject):
    """A connection whose handshake ends with a look at the peer."""

    def do_handshake(self) -> None:
        """Finish the handshake, then inspect the peer; raise a refusal as the error that event loops expect."""
        super().do_handshake()
        context = self.context
        assert isinstance(context, _InspectingContext)
        try:
            context.inspect(self)
        except CheloniaError as refusal:
            error = ssl.SSLCertVerificationError(1, f"certificate refused: {refusal}")
            error.verify_code, error.verify_message = 1, str(refusal)
            raise error from refusal


class _InspectingContext(ssl.SSLContext):
    """A context whose connections look at the peer as the last step of the handshake; for event loops alone."""

    sslobject_class = _InspectingObject

    inspect: Callable[[TlsObject], object]


def _furnish(context: ssl.SSLContext, settings: TlsSettings, trust: Trust, protocols: Sequence[str]) -> None:
    """Set the options of both ends; `protocols` to speak, the first that both know (ALPN)."""
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(TLS_1_2_CIPHERS)
    context.verify_flags |= ssl.VerifyFlags.VERIFY_ALLOW_PROXY_CERTS
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols(list(protocols))
    context.load_verify_locations(cadata=b"".join(cert.public_bytes(serialization.Encoding.DER) for cert in trust.cas))
    if settings.own_files is None:
        return
    cert_file, key_file = settings.own_files
    try:
        # a callback, even for plain keys: without one OpenSSL would ask the terminal
        context.load_cert_chain(cert_file, key_file, password=lambda: settings.password or b"")
    except (OSError, ValueError) as error:
        raise CheloniaError(Kind.BAD_CONFIG, "TLS", str(cert_file), f"OpenSSL refuses it: {error}") from error


def _check_revoked(cert: x509.Certificate, issuer: x509.Certificate, crls: Sequence[Crl], now_ms: Ms) -> Ms:
    """Check one certificate against the newest CRL that its issuer signed; return when that expires."""
    ca = subject_dn(issuer)
    signed = [crl for crl in crls if fingerprint(issuer) in crl.signers or crl_signed(crl.crl, issuer)]
    if not signed:
        names = " ".join(sorted(crl.source for crl in crls))
        raise _refused(cert, f"the CRL of CA {ca} ({names}) is not signed by that CA")
    newest = max(signed, key=lambda crl: crl.issued_ms)
    if newest.problem:
        raise _refused(cert, f"the CRL of CA {ca} ({newest.source}) cannot be used: {newest.problem}")
    if now_ms >= newest.next_update_ms:
        raise _refused(
            cert,
            f"the CRL of CA {ca} ({newest.source}) has expired: run fetch-crl, or `cheloniad ca crl` of your own CA",
        )
    if cert.serial_number in newest.revoked:
        raise _refused(cert, f"the certificate was revoked by CA {ca}")
    return newest.next_update_ms


def _refused(cert: x509.Certificate, cause: str) -> CheloniaError:
    return CheloniaError(Kind.UNTRUSTED, "identify", subject_dn(cert), cause)


def _trust_files(settings: TlsSettings) -> list[Path]:
    """Return the files of the trust, in a fixed order. Raises: BAD_CONFIG if the directory cannot be listed."""
    files: list[Path] = []
    if settings.ca_dir is not None:
        try:
            names = sorted(os.listdir(settings.ca_dir))
        except OSError as error:
            cause = f"cannot list the CA directory: {error.strerror}"
            raise CheloniaError(Kind.BAD_CONFIG, "TLS", str(settings.ca_dir), cause) from error
        files += [settings.ca_dir / name for name in names if re.match(_TRUST_FILE, name)]
    return files + ([settings.ca_file] if settings.ca_file else [])


def _is_crl(path: Path) -> bool:
    return bool(re.match(_CRL_FILE, path.name))


def _is_policy(path: Path) -> bool:
    return path.suffix == ".signing_policy"


def _read(path: Path) -> bytes:
    """Return a trust file's bytes. Raises: OSError, ValueError if it is too large."""
    if path.stat().st_size > TRUST_FILE_BYTES_MAX:
        raise ValueError(f"larger than {TRUST_FILE_BYTES_MAX} bytes")
    return path.read_bytes()


def _read_cas(path: Path) -> list[x509.Certificate]:
    """Return the CA certificates in one file (PEM, several allowed, or DER); none, with a warning, if it is unreadable.

    A file that was removed after the directory was listed is none without a warning, as it would be a moment later.
    """
    try:
        data = _read(path)
        certs = x509.load_pem_x509_certificates(data) if _PEM_CERTIFICATE in data else [load_certificate(data)]
        return [load_certificate(cert.public_bytes(serialization.Encoding.DER)) for cert in certs]
    except (OSError, ValueError, CheloniaError) as error:
        if os.path.lexists(path):
            _log.warning('event=ca-skipped file="%s" reason="%s"', path, error)
        return []


_Cas = Sequence[tuple[Path, x509.Certificate]]


def _owners(path: Path, cas: _Cas) -> list[x509.Certificate]:
    """Return the CAs of a CRL or policy file by its name: `<hash>.r0` belongs to every `<hash>.N`."""
    return [cert for ca_path, cert in cas if ca_path == path or ca_path.name.split(".")[0] == path.name.split(".")[0]]


def _read_crls(files: Iterable[Path], cas: _Cas, problems: dict[str, str]) -> dict[str, tuple[Crl, ...]]:
    """Return all CRLs by the DN of their CA; an unreadable file becomes a problem of the CAs it is named for."""
    found: dict[str, dict[bytes, Crl]] = {}
    for path in files:
        bundle = not _is_crl(path)
        if bundle and (_is_policy(path) or re.match(_CA_FILE, path.name)):
            continue
        try:
            data = _read(path)
            blocks = re.findall(_PEM_CRL, data) or ([] if bundle else [data])
            crls = [_load_crl(block, path, cas) for block in blocks]
        except (OSError, ValueError) as error:
            _unusable(path, error, cas, problems)
            continue
        for crl in crls:
            owners = [] if bundle else [subject_dn(cert) for cert in _owners(path, cas)]
            for ca in {render_dn(crl.crl.issuer), *owners}:
                found.setdefault(ca, {})[crl.crl.fingerprint(hashes.SHA256())] = crl
    return {ca: tuple(crls.values()) for ca, crls in found.items()}


def _load_crl(data: bytes, path: Path, cas: _Cas) -> Crl:
    """Parse one CRL (PEM or DER). Raises: ValueError."""
    pem = data.lstrip().startswith(b"-----BEGIN")
    crl = x509.load_pem_x509_crl(data) if pem else x509.load_der_x509_crl(data)
    unknown = [extension.oid.dotted_string for extension in crl.extensions if extension.critical]
    end = crl.next_update_utc
    problem = f"critical extension {unknown[0]} is not supported" if unknown else ""
    return Crl(
        source=path.name,
        crl=crl,
        revoked=frozenset(entry.serial_number for entry in crl),
        issued_ms=instant_ms(crl.last_update_utc),
        next_update_ms=instant_ms(end) if end else Ms(0),
        signers=frozenset(fingerprint(cert) for _, cert in cas if cert.subject == crl.issuer and crl_signed(crl, cert)),
        problem=problem or ("" if end else "it has no nextUpdate"),
    )


def crl_signed(crl: x509.CertificateRevocationList, issuer: x509.Certificate) -> bool:
    """Return whether a CA has signed a CRL; one with a key of another kind than the signature has not."""
    try:
        return crl.is_signature_valid(issuer.public_key())  # type: ignore[arg-type]
    except (TypeError, ValueError, UnsupportedAlgorithm):
        return False


def _read_policies(files: Iterable[Path], cas: _Cas, problems: dict[str, str]) -> dict[str, tuple[SigningPolicy, ...]]:
    """Return all signing policies by the DN of their CA; several files for one CA add up."""
    found: dict[str, dict[SigningPolicy, None]] = {}
    for path in filter(_is_policy, files):
        try:
            policies = parse_signing_policy(_read(path).decode("utf-8"))
        except (OSError, ValueError) as error:
            _unusable(path, error, cas, problems)
            continue
        for cert in _owners(path, cas):
            # a file for this CA that names it nowhere allows it nothing
            found.setdefault(subject_dn(cert), {})
        for policy in policies:
            found.setdefault(policy.ca, {})[policy] = None
    return {ca: tuple(policies) or (SigningPolicy(Dn(ca), ()),) for ca, policies in found.items()}


def _policy_dn(text: str) -> Dn:
    """Return a DN from a policy file in our spelling; as it stands if it has unknown types."""
    try:
        return canonical_dn(text)
    except CheloniaError:
        return Dn(text)


def _patterns(text: str) -> tuple[str, ...]:
    """Return the subject patterns of a `cond_subjects` value, with types and letters in our spelling of DNs."""
    inner = text.strip().strip("'")
    found = re.findall(r'"([^"]*)"', inner) or [inner.strip()]
    return tuple(_respell(pattern) for pattern in found if pattern)


def _respell(pattern: str) -> str:
    """Spell old type names and non-ASCII letters in a pattern as `render_dn` does."""
    pattern = re.sub(r"/(?:E|Email|emailAddress)=", "/emailAddress=", pattern, flags=re.IGNORECASE)
    pattern = re.sub(r"/(?:USERID|UID)=", "/UID=", pattern, flags=re.IGNORECASE)
    return "".join(chr(byte) if byte < 0x80 else f"\\x{byte:02X}" for byte in pattern.encode())


@functools.lru_cache(maxsize=1024)
def _pattern(pattern: str) -> re.Pattern[str]:
    """Compile a policy pattern: `*` any text, `?` one character, all else as it stands."""
    wild = {"*": ".*", "?": "."}
    return re.compile("".join(wild.get(mark) or re.escape(mark) for mark in pattern), re.DOTALL)


def _spki(key: Any) -> bytes:
    """Return a public key as DER SubjectPublicKeyInfo, to compare keys."""
    data = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    assert isinstance(data, bytes)
    return data


def _ends(certs: Iterable[x509.Certificate]) -> list[Ms]:
    return [instant_ms(cert.not_valid_after_utc) for cert in certs]


def _stamp(settings: TlsSettings) -> tuple[tuple[str, int, int, int], ...]:
    """Return name, time, size and inode of each file: they show a change."""
    paths = [*_trust_files(settings), *(settings.own_files or ())]
    return tuple(_stamp_of(path) for path in paths)


def _stamp_of(path: Path) -> tuple[str, int, int, int]:
    """Return name, mtime (ns), size and inode of one file; zeros if it is gone."""
    try:
        found = path.stat()
    except OSError:
        return str(path), 0, 0, 0
    return str(path), found.st_mtime_ns, found.st_size, found.st_ino


def _causes(error: BaseException) -> Iterable[BaseException]:
    """Yield an error and those below it: causes, contexts and the errors that aiohttp carries."""
    queue: list[BaseException] = [error]
    seen: set[int] = set()
    while queue:
        current = queue.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        below = [current.__cause__, current.__context__]
        below += [getattr(current, name, None) for name in ("certificate_error", "os_error")]
        queue += [item for item in below if isinstance(item, BaseException)]


def _is_refusal(reason: str) -> bool:
    """Return whether an OpenSSL reason is the peer's alert about our certificate."""
    return "ALERT" in reason and any(word in reason for word in ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED"))


def _readable(reason: str) -> str:
    """Return `TLSV13_ALERT_CERTIFICATE_REQUIRED` as `certificate required`."""
    return reason.partition("ALERT_")[2].replace("_", " ").lower() or reason
