"""Finds a user's credential and CAs where grid software keeps them, and explains why a chain is refused.

Decides which files are used, in the order the ecosystem agreed on; the environment, home and user id are passed in.
Explicit arguments win and are final: if they are no good, nothing else is tried. From the environment and the default
places the first usable credential wins; `Credential.passed_over` has the better places, with reasons.
Order: explicit proxy, explicit certificate + key; then X509_USER_PROXY, ARC_PROXY_FILE, /tmp/x509up_u<uid>,
X509_USER_CERT + X509_USER_KEY, ARC_CERT_FILE + ARC_KEY_FILE, ~/.globus/usercert.pem + userkey.pem.
CAs: explicit, X509_CERT_DIR, ARC_CA_DIR, ARC_CA_FILE, ~/.globus/certificates, /etc/grid-security/certificates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
from cryptography import x509

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn, Ms
from chelonia.core.values import replace
from chelonia.hosting.net.credential_files import CredentialFiles
from chelonia.hosting.net.identity import identity_of_chain, subject_dn
from chelonia.hosting.net.tls import TlsSettings, Trust, check_key_mode, load_key_public, load_own_chain

SYSTEM_CA_DIR: Final = Path("/etc/grid-security/certificates")
PROXY_DIR: Final = Path("/tmp")
PASSWORD_TRIES_MAX: Final = 3
"""Tries that a person has for a password."""

Prompt = Callable[[Path], bytes | None]
"""Asks a person for the password of an encrypted key file; returns None when the person gives up."""


class CredentialSurroundings(msgspec.Struct, frozen=True):
    """A user's surroundings: `environ` the environment, `home` the directory (None: there is none), `uid` the user id.

    `proxy_dir` and `system_ca_dir` are the places grid software agreed on; other values are for tests.
    """

    environ: Mapping[str, str]
    home: Path | None
    uid: int
    proxy_dir: Path = PROXY_DIR
    system_ca_dir: Path = SYSTEM_CA_DIR


class PassedOver(msgspec.Struct, frozen=True):
    """A place that was examined and not used: `origin` how it was found, `path` the file, `reason` why not."""

    origin: str
    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.path} ({self.origin}): {self.reason}"


@dataclass(frozen=True, slots=True)
class Credential:
    """A usable credential.

    Fields:
    - `cert`, `key` files (the same for a proxy); `is_proxy`
    - `origin` how it was found
    - `dn` end-entity subject
    - `not_after_ms` when the first certificate of the chain expires
    - `passed_over` better places that were no good
    """

    cert: Path
    key: Path
    is_proxy: bool
    origin: str
    dn: Dn
    not_after_ms: Ms
    password: bytes | None = field(default=None, repr=False)
    passed_over: tuple[PassedOver, ...] = ()

    def settings(self, cas: TlsSettings) -> TlsSettings:
        """Return TLS settings with this credential and the CAs of `cas` (as `find_cas` returns them)."""
        if self.is_proxy:
            return replace(cas, proxy=self.cert, cert=None, key=None, password=self.password)
        return replace(cas, proxy=None, cert=self.cert, key=self.key, password=self.password)


class _CredentialPlace(msgspec.Struct, frozen=True):
    """One place to look at; `final` if the user named it, so that nothing else is tried after it."""

    origin: str
    cert: Path
    key: Path
    is_proxy: bool
    final: bool = False


CURE: Final = "make a proxy (arcproxy, voms-proxy-init), or export X509_USER_CERT and X509_USER_KEY"
"""Advice when no credential is usable."""


def find_credential(
    explicit: CredentialFiles, around: CredentialSurroundings, now_ms: Ms, prompt: Prompt | None = None
) -> Credential:
    """Find the credential to use.

    Args:
        explicit: files the user named; final if any is given.
        around: environment, home, user id.
        now_ms: the instant at which it must be valid.
        prompt: asks for the password of an encrypted key; without it encrypted keys are passed over.
    Raises: BAD_CONFIG naming each file tried and why it was refused; EXPIRED if each file that exists has expired.
    """
    passed: list[PassedOver] = []
    kinds: list[Kind] = []
    for place in _places(explicit, around):
        try:
            return replace(_examine(place, around.uid, now_ms, prompt), passed_over=tuple(passed))
        except CheloniaError as error:
            passed.append(PassedOver(place.origin, Path(error.subject or place.cert), error.cause))
            kinds += [] if error.kind is Kind.NOT_FOUND else [error.kind]
            if place.final:
                break
    kind = Kind.EXPIRED if kinds and all(kind is Kind.EXPIRED for kind in kinds) else Kind.BAD_CONFIG
    token = any(name in around.environ for name in ("BEARER_TOKEN", "BEARER_TOKEN_FILE"))
    beside = "; a bearer token is good at URLs alone (gfal-copy, curl --oauth2-bearer)" if token else ""
    cause = f"no usable credential; tried {'; '.join(map(str, passed))}{beside}; {CURE}"
    raise CheloniaError(kind, "find credential", "", cause)


def find_cas(explicit: CredentialFiles, around: CredentialSurroundings) -> TlsSettings:
    """Find the CAs to trust: the first place that is named or exists.

    Returns: settings with `ca_dir` or `ca_file` only.
    Raises: BAD_CONFIG naming each place tried.
    """
    if explicit.ca_dir or explicit.ca_file:
        return TlsSettings(ca_dir=explicit.ca_dir, ca_file=explicit.ca_file)
    tried: list[PassedOver] = []
    for origin, path, is_dir in _ca_places(around):
        if path.is_dir() if is_dir else path.is_file():
            return TlsSettings(ca_dir=path) if is_dir else TlsSettings(ca_file=path)
        tried.append(PassedOver(origin, path, "no such directory" if is_dir else "no such file"))
    cause = "no CA certificates; tried " + "; ".join(map(str, tried)) + ": set X509_CERT_DIR"
    raise CheloniaError(Kind.BAD_CONFIG, "find CAs", "", cause)


def explain_chain(chain: Sequence[x509.Certificate], trust: Trust, now_ms: Ms) -> tuple[str, ...]:
    """Return why a chain would be refused, by OpenSSL's verification and by ours, without a connection.

    Args:
        chain: leaf first; the trust anchor may be left out.
        trust: as `tls.load_trust` returns it.
        now_ms: the instant to judge at.
    Returns: reasons naming the certificate, empty if the chain is accepted.
    """
    if not chain:
        return ("there is no certificate",)
    from OpenSSL import crypto  # here, so that a command whose credential is accepted starts without it

    store = crypto.X509Store()
    store.set_flags(crypto.X509StoreFlags.ALLOW_PROXY_CERTS)
    store.set_time(datetime.fromtimestamp(now_ms / 1000, UTC))
    for cert in trust.cas:
        store.add_cert(crypto.X509.from_cryptography(cert))
    leaf, *others = map(crypto.X509.from_cryptography, chain)
    try:
        verified = crypto.X509StoreContext(store, leaf, others).get_verified_chain()
    except crypto.X509StoreContextError as error:
        return (f"{subject_dn(error.certificate.to_cryptography())}: {error}",)
    try:
        whole = [cert.to_cryptography() for cert in verified]
        trust.check(whole, now_ms)
        identity_of_chain(whole)
    except CheloniaError as error:
        return (f"{error.subject}: {error.cause}",)
    return ()


def explain_file(cert_file: Path, trust: Trust, now_ms: Ms) -> tuple[str, ...]:
    """Return as `explain_chain`, for the certificates in a PEM file; an unreadable file is a reason too."""
    try:
        chain = x509.load_pem_x509_certificates(cert_file.read_bytes())
    except (OSError, ValueError) as error:
        return (f"{cert_file}: cannot read a certificate: {error}",)
    return explain_chain(chain, trust, now_ms)


def _places(explicit: CredentialFiles, around: CredentialSurroundings) -> Iterator[_CredentialPlace]:
    """Yield the places to examine, best first."""
    if explicit.proxy is not None:
        yield _CredentialPlace("named explicitly", explicit.proxy, explicit.proxy, is_proxy=True, final=True)
    elif explicit.cert is not None or explicit.key is not None:
        cert, key = explicit.cert or explicit.key, explicit.key or explicit.cert
        assert cert is not None
        assert key is not None
        yield _CredentialPlace("named explicitly", cert, key, is_proxy=False, final=True)
    else:
        yield from _found_places(around)


def _found_places(around: CredentialSurroundings) -> Iterator[_CredentialPlace]:
    """Yield the places of the environment and the conventions."""
    environ = around.environ
    for name in ("X509_USER_PROXY", "ARC_PROXY_FILE"):
        if environ.get(name):
            yield _CredentialPlace(name, Path(environ[name]), Path(environ[name]), is_proxy=True)
    usual = around.proxy_dir / f"x509up_u{around.uid}"
    yield _CredentialPlace("default proxy", usual, usual, is_proxy=True)
    for cert_name, key_name in (("X509_USER_CERT", "X509_USER_KEY"), ("ARC_CERT_FILE", "ARC_KEY_FILE")):
        if environ.get(cert_name):
            cert = environ[cert_name]
            yield _CredentialPlace(cert_name, Path(cert), Path(environ.get(key_name) or cert), is_proxy=False)
    if around.home is not None:
        globus = around.home / ".globus"
        yield _CredentialPlace("default certificate", globus / "usercert.pem", globus / "userkey.pem", is_proxy=False)


def _ca_places(around: CredentialSurroundings) -> Iterator[tuple[str, Path, bool]]:
    """Yield (origin, path, whether a directory) of each place for CAs, best first."""
    for name, is_dir in (("X509_CERT_DIR", True), ("ARC_CA_DIR", True), ("ARC_CA_FILE", False)):
        if around.environ.get(name):
            yield name, Path(around.environ[name]), is_dir
    if around.home is not None:
        yield "default", around.home / ".globus" / "certificates", True
    yield "default", around.system_ca_dir, True


def _examine(place: _CredentialPlace, uid: int, now_ms: Ms, prompt: Prompt | None) -> Credential:
    """Prove a place usable.

    Raises: NOT_FOUND if a file is missing, otherwise what is wrong with it.
    """
    for path in (place.cert, place.key):
        _check_file(path, uid)
    if place.key == place.cert and not _may_hold_key(place.key):
        cause = "there is no key in it" if place.is_proxy else "there is no key in it, and none was named"
        raise CheloniaError(Kind.BAD_CONFIG, "find credential", str(place.cert), cause)
    password = _password(place.key, prompt)
    settings = TlsSettings(cert=place.cert, key=place.key, password=password)
    chain = load_own_chain(settings, now_ms)
    identity = identity_of_chain(chain)
    return Credential(place.cert, place.key, place.is_proxy, place.origin, identity.dn, identity.not_after_ms, password)


def _check_file(path: Path, uid: int) -> None:
    """Refuse a file that is missing, or neither the user's nor root's. Raises: NOT_FOUND, BAD_CONFIG."""
    try:
        found = path.stat()
    except OSError as error:
        kind = Kind.NOT_FOUND if isinstance(error, FileNotFoundError) else Kind.BAD_CONFIG
        raise CheloniaError(kind, "find credential", str(path), error.strerror or str(error)) from error
    if found.st_uid not in (uid, 0):
        cause = f"it belongs to user {found.st_uid}, not to you: use a copy of your own (install -m 0400)"
        raise CheloniaError(Kind.BAD_CONFIG, "find credential", str(path), cause)


def _may_hold_key(path: Path) -> bool:
    """Return False when a file certainly holds no key; an unreadable one is judged later."""
    try:
        return b"PRIVATE KEY" in path.read_bytes()
    except OSError:
        return True


def _password(key_file: Path, prompt: Prompt | None) -> bytes | None:
    """Prompt for the password of an encrypted key; return None for a plain key.

    Raises: BAD_CONFIG without a prompt, when the person gives up, or after too many wrong passwords.
    """
    check_key_mode(key_file)
    try:
        encrypted = b"ENCRYPTED" in key_file.read_bytes()
    except OSError as error:
        raise CheloniaError(Kind.BAD_CONFIG, "find credential", str(key_file), str(error)) from error
    if not encrypted:
        return None
    for _ in range(PASSWORD_TRIES_MAX):
        password = prompt(key_file) if prompt is not None else None
        if password is None:
            cause = "the key is encrypted and no password was given: make a proxy"
            raise CheloniaError(Kind.BAD_CONFIG, "find credential", str(key_file), cause)
        try:
            load_key_public(key_file, password)
        except CheloniaError:
            continue
        return password
    raise CheloniaError(Kind.BAD_CONFIG, "find credential", str(key_file), "wrong password")
