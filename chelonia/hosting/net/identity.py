"""Identifies the peer of a TLS connection: the end entity at the root of a proxy chain.

Decides the identity of a peer from the chain that OpenSSL verified, and keeps it for resumed sessions, which carry no
chain. Never verifies signatures itself, never grants rights; VOMS attributes count as far as `Attests` says.

Invariants: an identity comes from a verified chain seen in a full handshake. Validity, revocation and trust anchors
are checked again at each use. A proxy whose policy we do not understand is refused (RFC 3820 section 3.8.2).

DN form: Globus slash form in certificate order (`/DC=org/O=Grid/CN=Jane Doe`); a multi-valued RDN joins its parts by
`+`. Bytes of the UTF-8 value outside printable ASCII, and the backslash, become `\\xHH` as OpenSSL and Globus write
them. A `/` or `+` inside a value stays as it is (`CN=host/a.example.org` is everyday grid usage). Where the rest reads
like `type=`, it becomes `\\x2F` or `\\x2B`. So the text is unambiguous and `parse_dn` is its exact inverse.
"""

from __future__ import annotations

import hashlib
import logging
import re
import ssl
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import ANONYMOUS, Dn, Ms
from chelonia.core.values import replace

IDENTITIES_MAX: Final = 4096
"""Identities kept for resumed sessions, about 10 KiB each; the least recently used goes first."""
VOMS_NOTES_MAX: Final = 4096
"""Logged reasons to ignore VOMS attributes, by DN; beyond it one may be logged again."""
FOREVER: Final = Ms(2**63 - 1)
"""Later than any certificate can say."""

PROXY_CERT_INFO: Final = x509.ObjectIdentifier("1.3.6.1.5.5.7.1.14")
LENGTH_BYTES_MAX: Final = 2
"""Bytes of an element's length in a proxyCertInfo (DER): its policy may have up to 64 KiB."""
VOMS_ATTRIBUTES: Final = x509.ObjectIdentifier("1.3.6.1.4.1.8005.100.100.5")
INHERIT_ALL: Final = bytes.fromhex("2b06010505071501")
"""A policy language of proxies, as DER has object identifiers: 1.3.6.1.5.5.7.21.1."""
LIMITED: Final = bytes.fromhex("2b060104019b5001010109")
"""1.3.6.1.4.1.3536.1.1.1.9."""
INDEPENDENT: Final = bytes.fromhex("2b06010505071502")
"""1.3.6.1.5.5.7.21.2: a proxy with rights that its user does not have."""

Chain = Sequence[x509.Certificate]
"""Certificates from the leaf to the trust anchor, the anchor included."""
ChainCheck = Callable[[Chain, Ms], Ms]
"""Raises UNTRUSTED if a verified chain is not acceptable at an instant: CRLs, signing policies, anchors.

Returns until when (exclusive) the verdict holds unless something is loaded anew: the first CRL's end, or `FOREVER`.
"""
TlsObject = ssl.SSLObject | ssl.SSLSocket
"""Results of `transport.get_extra_info('ssl_object')`, on asyncio and on uvloop."""
Rdn = tuple[tuple[str, str], ...]
"""One relative distinguished name: (short name or dotted OID, value) pairs."""

_SHORT_NAMES: Final = {
    "2.5.4.3": "CN",
    "2.5.4.4": "SN",
    "2.5.4.5": "serialNumber",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "street",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "2.5.4.12": "title",
    "2.5.4.13": "description",
    "2.5.4.15": "businessCategory",
    "2.5.4.17": "postalCode",
    "2.5.4.41": "name",
    "2.5.4.42": "GN",
    "2.5.4.43": "initials",
    "2.5.4.44": "generationQualifier",
    "2.5.4.45": "x500UniqueIdentifier",
    "2.5.4.46": "dnQualifier",
    "2.5.4.65": "pseudonym",
    "2.5.4.97": "organizationIdentifier",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
    "1.2.840.113549.1.9.1": "emailAddress",
    "1.2.840.113549.1.9.2": "unstructuredName",
}
_OIDS: Final = {name.lower(): oid for oid, name in _SHORT_NAMES.items()} | {
    "e": "1.2.840.113549.1.9.1",
    "email": "1.2.840.113549.1.9.1",
    "userid": "0.9.2342.19200300.100.1.1",
    "s": "2.5.4.8",
}
_TYPE: Final = r"(?:[A-Za-z][A-Za-z0-9]*|[0-9]+(?:\.[0-9]+)+)="
_SEPARATOR: Final = rf"[/+](?={_TYPE})"
_ESCAPE: Final = rb"\\x([0-9A-Fa-f]{2})"
_log = logging.getLogger(__name__)


class Identity(msgspec.Struct, frozen=True):
    """A peer whose chain has been verified, or one without a certificate.

    Fields:
    - `dn` end-entity subject in slash form, or `ANONYMOUS`
    - `attributes` verified VOMS attributes
    - `issuer` the CA that issued the end-entity certificate, `serial` its number in hex
    - `limited` whether a limited proxy is anywhere in the chain
    - `not_before_ms`, `not_after_ms` the window in which every certificate of the chain is valid
    - `fingerprint` SHA-256 of the leaf's DER in hex, for logs
    - `host` whether the end entity's certificate is for a host, as any service's is
    """

    dn: Dn
    attributes: tuple[str, ...] = ()
    issuer: Dn = Dn("")
    limited: bool = False
    not_before_ms: Ms = Ms(0)
    not_after_ms: Ms = Ms(0)
    fingerprint: str = ""
    serial: str = ""
    host: bool = False

    @property
    def anonymous(self) -> bool:
        """Whether the peer showed no certificate."""
        return self.dn == ANONYMOUS


class Attested(msgspec.Struct, frozen=True):
    """VOMS attributes of a chain that count, until an instant (exclusive), and reasons why others do not."""

    attributes: tuple[str, ...] = ()
    until_ms: Ms = FOREVER
    reasons: tuple[str, ...] = ()


Attests = Callable[[Chain, Ms], Attested]
"""Judges the attribute certificates in a verified chain at an instant."""


def attests_nothing(chain: Chain, now_ms: Ms) -> Attested:
    """Return no attributes: a client does not use those of servers."""
    return Attested()


NOBODY: Final = Identity(ANONYMOUS)
"""The identity of a peer that showed no certificate."""


class _JudgedIdentity(msgspec.Struct, frozen=True):
    """One kept identity, the chain it was read from, and the last verdict on it.

    The verdict holds in round `judged` of `IdentityCache.judge_again`, until `good_until_ms` (exclusive).
    """

    identity: Identity
    chain: Chain
    judged: int = -1
    good_until_ms: Ms = Ms(0)


class IdentityCache:
    """Identities by SHA-256 of the leaf: bounded, filled at full handshakes only, checked again at each use."""

    def __init__(
        self,
        check: ChainCheck,
        now_ms: Callable[[], Ms],
        attests: Attests = attests_nothing,
    ) -> None:
        """Take the trust check, the clock, and the judge of VOMS attributes."""
        self._check = check
        self._now_ms = now_ms
        self._attests = attests
        self._cached: OrderedDict[bytes, _JudgedIdentity] = OrderedDict()
        self._round = 0
        self._voms_noted: OrderedDict[str, None] = OrderedDict()

    def identify(self, tls: TlsObject | None) -> Identity:
        """Return the identity of the peer of `tls`; cheap enough for each request.

        Args:
            tls: the connection after its handshake; None for a connection without TLS.
        Returns: the identity; `NOBODY` for a peer without a certificate and without TLS.
        Raises: EXPIRED if the chain is outside its validity now. UNTRUSTED if it is revoked, breaks a signing policy,
            lost its trust anchor, or carries a proxy policy we do not know. UNTRUSTED, too, if the session was resumed
            and its identity is no longer kept: the cause says to reconnect.
        Source: RFC 3820 for proxies; RFC 8446 section 2.2 for resumption without certificates.
        """
        leaf = tls.getpeercert(True) if tls is not None else None
        if tls is None or leaf is None:
            return NOBODY
        key = hashlib.sha256(leaf).digest()
        cached = self._cached.get(key)
        if cached is not None:
            try:
                return self._use(key, cached)
            except CheloniaError:
                if tls.session_reused:
                    raise
        return self._use(key, self._read_identity(tls, key))

    def judge_again(self) -> None:
        """Void all verdicts, and keep the identities. Call this when CRLs, policies or CAs were loaded anew."""
        self._round += 1

    def _use(self, key: bytes, entry: _JudgedIdentity) -> Identity:
        """Check `entry` at this instant and keep it as the most recently used; forget it if it is refused."""
        now_ms, judged = self._now_ms(), self._round  # a reload in another thread may end the round while we judge
        holds = entry.judged == judged and entry.identity.not_before_ms <= now_ms < entry.good_until_ms
        if not holds:
            try:
                check_validity(entry.chain, now_ms)
                until_ms = min(self._check(entry.chain, now_ms), entry.identity.not_after_ms)
                attested = self._attests(entry.chain, now_ms) if _shows_attributes(entry.chain) else Attested()
            except CheloniaError:
                self._cached.pop(key, None)
                raise
            self._note_ignored(entry.identity.dn, attested.reasons)
            identity = replace(entry.identity, attributes=attested.attributes)
            until_ms = min(until_ms, attested.until_ms)
            entry = replace(entry, identity=identity, judged=judged, good_until_ms=until_ms)
        self._cached[key] = entry
        self._cached.move_to_end(key)
        while len(self._cached) > IDENTITIES_MAX:
            self._cached.popitem(last=False)
        return entry.identity

    def _read_identity(self, tls: TlsObject, key: bytes) -> _JudgedIdentity:
        """Read the identity from a connection that has its verified chain."""
        chain = tuple(load_certificate(der) for der in verified_chain(tls))
        if not chain and tls.session_reused:
            cause = "a resumed TLS session whose identity is no longer known here: reconnect with a full handshake"
            raise CheloniaError(Kind.UNTRUSTED, "identify", "", cause)
        if not chain:
            raise CheloniaError(Kind.UNTRUSTED, "identify", "", "the peer's certificate chain was not verified")
        identity = identity_of_chain(chain)
        assert identity.fingerprint == key.hex(), "the verified chain must begin with the peer's certificate"
        return _JudgedIdentity(identity, chain)

    def _note_ignored(self, dn: Dn, reasons: tuple[str, ...]) -> None:
        """Log once each reason why a peer's VOMS attributes are ignored."""
        for reason in reasons:
            note = f'dn="{dn}" reason={reason!a}'
            if note in self._voms_noted:
                continue
            self._voms_noted[note] = None
            while len(self._voms_noted) > VOMS_NOTES_MAX:
                self._voms_noted.popitem(last=False)
            _log.info("event=voms-ignored %s", note)


def _shows_attributes(chain: Chain) -> bool:
    return any(_extension(cert, VOMS_ATTRIBUTES) for cert in chain)


def identity_of_chain(chain: Chain) -> Identity:
    """Return the identity that a verified chain stands for.

    Args:
        chain: verified certificates, leaf first, at least one.
    Raises: UNTRUSTED for a chain without an end entity, a CA, an empty subject, or a proxy policy other than inheritAll
        and limited.
    Source: RFC 3820 sections 2.3 and 3.8.
    """
    assert chain, "a verified chain has at least its leaf"
    depth, limited = _proxies(chain)
    if depth == len(chain):
        raise CheloniaError(Kind.UNTRUSTED, "identify", "", "the chain holds proxies only, no end-entity certificate")
    entity = chain[depth]
    dn = subject_dn(entity)
    if is_ca(entity):
        raise CheloniaError(Kind.UNTRUSTED, "identify", dn, "a CA certificate is no identity; use one issued by it")
    if not dn:
        raise CheloniaError(Kind.UNTRUSTED, "identify", "", "the end-entity certificate has an empty subject")
    return Identity(
        dn=dn,
        issuer=render_dn(entity.issuer),
        limited=limited,
        not_before_ms=max(instant_ms(cert.not_valid_before_utc) for cert in chain),
        not_after_ms=min(instant_ms(cert.not_valid_after_utc) for cert in chain),
        fingerprint=fingerprint(chain[0]).hex(),
        serial=f"{entity.serial_number:x}",
        host=bool(names_of(entity)),
    )


def verified_chain(tls: TlsObject) -> tuple[bytes, ...]:
    """Return the chain OpenSSL verified, as DER, leaf first; empty after a resumption or without verification.

    The one place that knows the interpreter's private name: public from Python 3.13, private on 3.11 and 3.12.
    """
    public: Callable[[], Sequence[bytes]] | None = getattr(tls, "get_verified_chain", None)
    if public is not None:
        return tuple(public() or ())
    inner: Any = getattr(tls, "_sslobj", None)
    if inner is None:
        return ()
    return tuple(ssl.PEM_cert_to_DER_cert(cert.public_bytes()) for cert in inner.get_verified_chain() or ())


def check_validity(chain: Chain, now_ms: Ms) -> None:
    """Refuse a chain in which a certificate is not valid at `now_ms`.

    Raises: EXPIRED for one past its end; UNTRUSTED for one before its begin.
    """
    for cert in chain:
        if now_ms >= instant_ms(cert.not_valid_after_utc):
            cause = f"the certificate expired at {_iso(cert.not_valid_after_utc)}: renew it"
            raise CheloniaError(Kind.EXPIRED, "identify", subject_dn(cert), cause)
        if now_ms < instant_ms(cert.not_valid_before_utc):
            cause = f"the certificate is valid only from {_iso(cert.not_valid_before_utc)}: check the clocks"
            raise CheloniaError(Kind.UNTRUSTED, "identify", subject_dn(cert), cause)


def load_certificate(der: bytes) -> x509.Certificate:
    """Parse one certificate, and prove its subject and extensions readable.

    Raises: UNTRUSTED if it cannot be read.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a peer's odd certificate must not become a warning of ours
            cert = x509.load_der_x509_certificate(der)
            _ = cert.subject, cert.issuer, cert.extensions
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        raise CheloniaError(Kind.UNTRUSTED, "identify", "", f"a certificate cannot be read: {error}") from error
    return cert


def subject_dn(cert: x509.Certificate) -> Dn:
    """Return the certificate's subject in slash form; empty for an empty subject."""
    return render_dn(cert.subject)


def fingerprint(cert: x509.Certificate) -> bytes:
    """Return the SHA-256 of the certificate's DER, 32 bytes."""
    return hashlib.sha256(cert.public_bytes(Encoding.DER)).digest()


def proxy_language(cert: x509.Certificate) -> bytes | None:
    """Return the policy language of a proxy (content of a DER object identifier); None for one that is no proxy.

    Raises: UNTRUSTED if the proxyCertInfo extension is malformed.
    Source: RFC 3820 section 3.8 (ProxyCertInfo).
    """
    extension = _extension(cert, PROXY_CERT_INFO)
    if extension is None:
        return None
    try:
        if not extension.critical:
            raise ValueError("it is not critical")
        return _policy_language(extension.value.value)
    except (ValueError, IndexError) as error:
        raise CheloniaError(Kind.UNTRUSTED, "identify", "", f"malformed proxyCertInfo: {error}") from error


def proxy_cert_info(language: bytes) -> bytes:
    """Return the extension with this language, without a policy; any number of proxies may follow."""
    return _der(0x30, _der(0x30, _der(0x06, language)))


def is_ca(cert: x509.Certificate) -> bool:
    """Return whether basicConstraints says the certificate may sign others."""
    try:
        return cert.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def has_issued(issuer: x509.Certificate, cert: x509.Certificate) -> bool:
    """Return whether a CA has signed a certificate, valid still or not."""
    try:
        cert.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def render_dn(name: x509.Name) -> Dn:
    """Render a name in slash form (see the module's description); empty for an empty name."""
    return Dn("".join("/" + "+".join(_render_part(part) for part in rdn) for rdn in name.rdns))


def parse_dn(text: str) -> tuple[Rdn, ...]:
    """Read a DN in slash form: the inverse of `render_dn`.

    Also takes what people type: raw non-ASCII letters, any case of the short names, `E`/`Email` and `USERID`.
    Returns: the RDNs in order, each with canonical short names (dotted OIDs where there is none) and plain values.
    Raises: BAD_REQUEST if `text` is no DN.
    """
    cuts = [match.start() for match in re.finditer(_SEPARATOR, text)]
    if not cuts or cuts[0] != 0 or text[0] != "/":
        raise CheloniaError(Kind.BAD_REQUEST, "parse DN", text[:200], "a DN looks like /O=Grid/CN=Jane Doe")
    rdns: list[list[tuple[str, str]]] = []
    for begin, end in zip(cuts, [*cuts[1:], len(text)], strict=True):
        kind, _, value = text[begin + 1 : end].partition("=")
        if text[begin] == "/":
            rdns.append([])
        rdns[-1].append((_canonical_type(kind, text), _unescape(value, text)))
    return tuple(tuple(rdn) for rdn in rdns)


def names_of(cert: x509.Certificate) -> tuple[str, ...]:
    """Return the DNS names and addresses that a certificate is for."""
    try:
        names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return (*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress)))


def is_for(cert: x509.Certificate, host: str) -> bool:
    """Return whether TLS clients accept a certificate for a host in lower case. Source: RFC 9525 section 6.3."""
    accepted = (host, "*." + host.partition(".")[2])
    return any(name.lower() in accepted for name in names_of(cert))


def name_from_dn(text: str) -> x509.Name:
    """Build the X.509 name that `text` renders. Raises: BAD_REQUEST if it is no DN or breaks X.520 lengths."""
    try:
        rdns = [
            x509.RelativeDistinguishedName(
                x509.NameAttribute(x509.ObjectIdentifier(_OIDS.get(kind.lower(), kind)), value) for kind, value in rdn
            )
            for rdn in parse_dn(text)
        ]
    except ValueError as error:
        raise CheloniaError(Kind.BAD_REQUEST, "parse DN", text[:200], str(error)) from error
    return x509.Name(rdns)


def canonical_dn(text: str) -> Dn:
    """Return `text`, a DN as people type it, as `render_dn` would write it. Raises: BAD_REQUEST if it is no DN."""
    return Dn("".join("/" + "+".join(f"{kind}={escape_value(value)}" for kind, value in rdn) for rdn in parse_dn(text)))


def _proxies(chain: Chain) -> tuple[int, bool]:
    """Count the proxies at the head of `chain`; return also whether one of them is limited."""
    limited = False
    for depth, cert in enumerate(chain):
        language = proxy_language(cert)
        if language is None:
            return depth, limited
        if language not in (INHERIT_ALL, LIMITED):
            label = "1.3.6.1.5.5.7.21.2 (independent)" if language == INDEPENDENT else language.hex()
            cause = f"proxy policy language {label} is not supported: make an ordinary RFC 3820 proxy"
            raise CheloniaError(Kind.UNTRUSTED, "identify", subject_dn(cert), cause)
        limited = limited or language == LIMITED
    return len(chain), limited


def _extension(cert: x509.Certificate, oid: x509.ObjectIdentifier) -> x509.Extension[x509.UnrecognizedExtension] | None:
    """Return an extension that `cryptography` does not know; None if absent."""
    return next((extension for extension in cert.extensions if extension.oid == oid), None)


def _policy_language(value: bytes) -> bytes:
    """Read ProxyCertInfo ::= SEQUENCE { [INTEGER (0..MAX)], SEQUENCE { OBJECT IDENTIFIER, [OCTET STRING] } }.

    Raises: ValueError for what RFC 3820 section 3.8 forbids: a negative path length, a policy beside inheritAll.
    """
    body, behind = _expect(value, 0x30)
    if body[0] == 0x02:
        length, body = _expect(body, 0x02)
        if not length or length[0] & 0x80:
            raise ValueError("the path length is negative")
    policy, after = _expect(body, 0x30)
    language, rest = _expect(policy, 0x06)
    if rest and language == INHERIT_ALL:
        raise ValueError("a policy beside inheritAll")
    if rest:
        rest = _expect(rest, 0x04)[1]
    if behind or after or rest:
        raise ValueError("bytes behind its end")
    return language


def _der(tag: int, content: bytes) -> bytes:
    """Encode one DER element of at most 127 bytes."""
    assert len(content) < 0x80, "its length is one byte"
    return bytes((tag, len(content))) + content


def _expect(data: bytes, tag: int) -> tuple[bytes, bytes]:
    """Split one DER element with `tag` off `data`: (content, rest). Raises: ValueError if it is not there whole."""
    if data[0] != tag:
        raise ValueError(f"tag {tag:#x} expected, {data[:1].hex()} found")
    length, at = data[1], 2
    if length >= 0x80:  # the long form, in as few bytes as possible
        count = length & 0x7F
        at += count
        length = int.from_bytes(data[2:at], "big")
        if not 1 <= count <= LENGTH_BYTES_MAX or length < max(0x80, 1 << 8 * (count - 1)):
            raise ValueError(f"its length is no DER, or too long: {data[1:4].hex()}")
    if at + length > len(data):
        raise ValueError("truncated")
    return data[at : at + length], data[at + length :]


def _render_part(part: x509.NameAttribute[str | bytes]) -> str:
    oid = part.oid.dotted_string
    return f"{_SHORT_NAMES.get(oid, oid)}={escape_value(part.value)}"


def escape_value(value: str | bytes) -> str:
    """Write a value so that it is printable ASCII and cannot be read as a further part of the DN."""
    data = value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")
    text = "".join(chr(byte) if 0x20 <= byte < 0x7F and byte != 0x5C else f"\\x{byte:02X}" for byte in data)
    return re.sub(_SEPARATOR, lambda match: f"\\x{ord(match[0]):02X}", text)


_BACKSLASH: Final = "a backslash is written \\x5C; what openssl shows as \\/ is written /"


def _unescape(value: str, whole: str) -> str:
    """Undo `escape_value`. Raises: BAD_REQUEST on a stray backslash or bytes that are not UTF-8."""
    data = value.encode("utf-8", "surrogatepass")
    if b"\\" in re.sub(_ESCAPE, b"", data):
        raise CheloniaError(Kind.BAD_REQUEST, "parse DN", whole[:200], _BACKSLASH)
    try:
        return re.sub(_ESCAPE, lambda match: bytes.fromhex(match[1].decode()), data).decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheloniaError(Kind.BAD_REQUEST, "parse DN", whole[:200], f"not UTF-8: {error.reason}") from error


def _canonical_type(kind: str, whole: str) -> str:
    """Return the one spelling of an attribute type. Raises: BAD_REQUEST for an unknown name."""
    oid = kind if "." in kind else _OIDS.get(kind.lower())
    if oid is None:
        raise CheloniaError(Kind.BAD_REQUEST, "parse DN", whole[:200], f"unknown attribute type {kind}")
    return _SHORT_NAMES.get(oid, oid)


def instant_ms(when: datetime) -> Ms:
    """Return an instant in milliseconds since the epoch."""
    return Ms(round(when.timestamp() * 1000))


def _iso(when: datetime) -> str:
    """Return an instant as people read it, UTC."""
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")
