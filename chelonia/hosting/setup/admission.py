"""Decisions and messages of `cheloniad admit` and `join`, by which a host joins a cluster.

The token that `admit` prints is the whole of the trust between the two hosts. Half of it is a digest of the door's
certificate: the newcomer identifies the door before it sends anything. Half is a secret, which only its receiver has. A
token is for one host and lives as long as the `admit` that made it. A new certificate has the name that the
administrator gave, and of the request only the public key.

Messages are lines of JSON within TLS: one `AdmissionRequest`, then an `AdmissionStatus` each until one is final. An
empty line then acknowledges the offer.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ids import Dn, Ms
from chelonia.core.ports.ahash import PeerView
from chelonia.hosting.net.identity import is_for, names_of, subject_dn
from chelonia.hosting.setup.first_config import ClusterFacts

PREFIX: Final = "chelonia1-"
PIN_BYTES, SECRET_BYTES = 16, 16
LINE_BYTES_MAX: Final = 64 << 10
"""Longest line of the conversation; certificates are 2 KiB each."""
WRONG_TOKENS_MAX: Final = 10
"""Wrong secrets after which a door closes, as somebody guesses. One of 2^128 is right."""
SKEW_MAX_MS: Final = 10_000
"""Largest difference between two hosts' clocks: certificates, tickets and leases of files go by them."""
RSA_BITS_MIN: Final = 2048
VERSION: Final = 1
_AT_WORK: Final = ("master", "follower")


@dataclass(frozen=True, slots=True)
class AdmissionToken:
    """A token that the administrator carries from `admit` to `join`. `pin`: of the door's certificate."""

    pin: bytes
    secret: bytes

    def __str__(self) -> str:
        """Return the token as it is printed and typed."""
        return PREFIX + base64.b32encode(self.pin + self.secret).decode().rstrip("=").lower()


class AdmissionRequest(msgspec.Struct, frozen=True):
    """A newcomer's request. `csr`: PEM; `certificate`: PEM, when a CA has certified the key already."""

    version: int
    secret: str
    host: str
    csr: str
    certificate: str
    time_ms: int


class Offer(ClusterFacts, frozen=True, kw_only=True):
    """The facts of the cluster, and those and the files of the host that is admitted.

    - `replica`: the number of its replica
    - `bartender_secret`: the same on all hosts
    - `certificate`, with chain, and the cluster's `ca` and `crl`: PEM, each "" when the site has its own
    """

    dn: Dn
    replica: int
    bartender_secret: str
    certificate: str = ""
    ca: str = ""
    crl: str = ""


class AdmissionStatus(msgspec.Struct, frozen=True):
    """State of a request: `waiting` for the administrator, `refused` with a `cause`, or `admitted` with an `offer`."""

    state: str
    cause: str = ""
    offer: Offer | None = None


@dataclass(frozen=True, slots=True)
class Expected:
    """The host that the administrator admits.

    - `dn`: "" until the site's certificate shows it
    - `members`: of the A-Hash, the newcomer's own earlier replica under `dn` included
    - `taken`: identities of others
    - `address`: of its replica
    """

    host: str
    dn: Dn
    secret: bytes
    address: str
    members: Sequence[PeerView]
    taken: Sequence[Dn]


def pin_of(certificate: bytes) -> bytes:
    """Return the digest of a certificate (DER) for a token."""
    return hashlib.sha256(certificate).digest()[:PIN_BYTES]


def parse_token(text: str) -> AdmissionToken:
    """Read a token as it was typed. Raises: BAD_REQUEST."""
    cause = f"a token is what `cheloniad admit` prints: {PREFIX} and 52 letters and digits, all of them"
    body = text.strip().lower().removeprefix(PREFIX)
    try:
        raw = base64.b32decode(body.upper() + "=" * (-len(body) % 8))
    except (binascii.Error, ValueError) as error:
        raise CheloniaError(Kind.BAD_REQUEST, "join", "token", cause) from error
    if len(raw) != PIN_BYTES + SECRET_BYTES or not text.strip().lower().startswith(PREFIX):
        raise CheloniaError(Kind.BAD_REQUEST, "join", "token", cause)
    return AdmissionToken(raw[:PIN_BYTES], raw[PIN_BYTES:])


def parse_request(line: bytes) -> AdmissionRequest:
    """Read a request. Raises: BAD_REQUEST."""
    try:
        request = msgspec.json.decode(line, type=AdmissionRequest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CheloniaError(Kind.BAD_REQUEST, "join", cause=f"this is no request to join: {error}") from error
    if request.version != VERSION:
        cause = f"version {request.version} of joining is asked for, here it is {VERSION}: install the same release"
        raise CheloniaError(Kind.BAD_REQUEST, "join", cause=cause)
    return request


def parse_answer(line: bytes) -> AdmissionStatus:
    """Read an answer. Raises: BAD_REQUEST."""
    try:
        return msgspec.json.decode(line, type=AdmissionStatus)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        cause = f"this is no answer of `cheloniad admit`: {error}"
        raise CheloniaError(Kind.BAD_REQUEST, "join", cause=cause) from error


def line_of(message: AdmissionRequest | AdmissionStatus) -> bytes:
    """Return a message as a line."""
    return msgspec.json.encode(message) + b"\n"


def knows_secret(request: AdmissionRequest, secret: bytes) -> bool:
    """Return whether a request has the token's secret, in the same time whatever was sent."""
    return hmac.compare_digest(request.secret.encode("utf-8", "replace"), secret.hex().encode())


def judge(request: AdmissionRequest, expected: Expected, now_ms: Ms) -> x509.CertificateSigningRequest:
    """Check the request of a newcomer that knows the secret.

    Returns: the signing request, whose key is the newcomer's own.
    Raises: BAD_REQUEST, CONFLICT, EXISTS, UNTRUSTED with the cure.
    """
    if request.host != expected.host:
        cause = f"this token admits {expected.host}: run `cheloniad admit {request.host[:80]}` for a token of its own"
        raise CheloniaError(Kind.UNTRUSTED, "join", request.host[:80], cause)
    skew = request.time_ms - now_ms
    if abs(skew) > SKEW_MAX_MS:
        cause = f"its clock is {abs(skew) // 1000} s {'ahead' if skew > 0 else 'behind'}: run NTP on both hosts"
        raise CheloniaError(Kind.CONFLICT, "join", request.host, cause)
    check_free(expected)
    return _checked_csr(request)


def check_free(expected: Expected) -> None:
    """Check that the newcomer's name, address and identity are free, and it is no member at work. Raises: EXISTS."""
    if not expected.dn:  # the site's certificate, which shows who the member at this address is, is still to come
        return
    for view in expected.members:
        if view.dn == expected.dn and view.role in _AT_WORK:
            cause = (
                f"replica {view.replica} of the A-Hash has this name and is at work ({view.role}): admit another name, "
                f"or first stop it, or take it out with `chelonia admin ahash remove {view.replica}`"
            )
            raise CheloniaError(Kind.EXISTS, "admit", expected.host, cause)
        if (view.address == expected.address) != (view.dn == expected.dn):
            cause = (
                f"replica {view.replica} of the A-Hash is {view.dn} at {view.address}: take it out first, with "
                f"`chelonia admin ahash remove {view.replica}`, or give the new host a name of its own"
            )
            raise CheloniaError(Kind.EXISTS, "admit", expected.host, cause)
    if expected.dn in expected.taken:
        cause = f"{expected.dn} is somebody else's identity here: a host needs one of its own"
        raise CheloniaError(Kind.EXISTS, "admit", expected.host, cause)


def may_be_his(members: Sequence[PeerView], address: str) -> bool:
    """Return whether a member at a newcomer's address may be its own earlier replica, whatever the certificate."""
    return any(view.address == address and view.role not in _AT_WORK for view in members)


def replica_of(members: Sequence[PeerView], dn: Dn) -> int:
    """Return the replica that a host has already, 0: none."""
    return next((view.replica for view in members if view.dn == dn), 0)


def own_certificate(request: AdmissionRequest, csr: x509.CertificateSigningRequest) -> tuple[x509.Certificate, ...]:
    """Return the certificate that a newcomer brings, leaf first. Raises: UNTRUSTED, BAD_REQUEST.

    The signing request proves that the key is its own; the caller checks the CA.
    """
    try:
        chain = tuple(x509.load_pem_x509_certificates(request.certificate.encode()))
    except ValueError as error:
        cause = f"its host certificate cannot be read: {error}"
        raise CheloniaError(Kind.BAD_REQUEST, "join", request.host, cause) from error
    if _public(chain[0].public_key()) != _public(csr.public_key()):
        cause = f"it has not the key of the certificate {subject_dn(chain[0])}: hostcert.pem and hostkey.pem must fit"
        raise CheloniaError(Kind.UNTRUSTED, "join", request.host, cause)
    if not is_for(chain[0], request.host):
        names = ", ".join(names_of(chain[0])) or "nobody"
        cause = f"its certificate names {names}, not {request.host}: it needs that as subject alternative name"
        raise CheloniaError(Kind.UNTRUSTED, "join", request.host, cause)
    return chain


def fingerprint(csr: x509.CertificateSigningRequest) -> str:
    """Return the fingerprint of the newcomer's key, which both ends show for people to compare."""
    digest = hashlib.sha256(_public(csr.public_key())).hexdigest()[:32]
    return ":".join(digest[at : at + 4] for at in range(0, len(digest), 4))


def _checked_csr(request: AdmissionRequest) -> x509.CertificateSigningRequest:
    try:
        csr = x509.load_pem_x509_csr(request.csr.encode())
        good = csr.is_signature_valid
    except ValueError as error:
        cause = f"its certificate request cannot be read: {error}"
        raise CheloniaError(Kind.BAD_REQUEST, "join", request.host, cause) from error
    if not good:
        raise CheloniaError(Kind.UNTRUSTED, "join", request.host, "its certificate request is not signed by its key")
    key = csr.public_key()
    strong = isinstance(key, ec.EllipticCurvePublicKey) and key.curve.key_size >= 256
    if not strong and not (isinstance(key, rsa.RSAPublicKey) and key.key_size >= RSA_BITS_MIN):
        cause = f"its key is too weak, or of another kind: RSA from {RSA_BITS_MIN} bits, or elliptic from 256"
        raise CheloniaError(Kind.BAD_REQUEST, "join", request.host, cause)
    return csr


def _public(key: object) -> bytes:
    if not isinstance(key, rsa.RSAPublicKey | ec.EllipticCurvePublicKey):
        raise CheloniaError(Kind.BAD_REQUEST, "join", cause="a key is RSA or elliptic")
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
