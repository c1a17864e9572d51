"""Signs receipts with the host's key and checks those of other Shepherds.

RSA keys sign with PSS and SHA-256, elliptic curves with ECDSA and SHA-256, Ed25519 by itself. Signatures travel as
base64 text, keys as PEM. It never decides whether a key is a Shepherd's: the Librarian compares it with the key that
this Shepherd announced on its authenticated connection.
"""

from __future__ import annotations

import base64
import functools
from collections import OrderedDict
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa

from chelonia.core.errors import CheloniaError, Kind

KEYS_MAX: Final = 1024
"""Parsed keys kept: about one per Shepherd."""
KEY_TEXT_MAX: Final = 8192
VERIFIED_MAX: Final = 256
"""Valid signatures kept: receipts that share one come together."""

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey

_PSS = padding.PSS(mgf=padding.MGF1(hashes.SHA256()), salt_length=32)


class HostSigner:
    """Signs with one private key."""

    def __init__(self, key: PrivateKey) -> None:
        self._key = key
        public = key.public_key()
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        self._pem = public.public_bytes(serialization.Encoding.PEM, form).decode("ascii")

    def sign(self, message: bytes) -> str:
        """Return the signature as base64 text."""
        return base64.b64encode(_sign(self._key, message)).decode("ascii")

    def verify_key(self) -> str:
        """Return the public key in PEM."""
        return self._pem


class KeyVerifier:
    """A `Verifier` of signatures that keeps parsed keys and the last valid signatures."""

    def __init__(self) -> None:
        self._verified: OrderedDict[tuple[str, bytes, str], None] = OrderedDict()

    def verify(self, verify_key: str, message: bytes, signature: str) -> bool:
        claim = (verify_key, message, signature)
        if claim not in self._verified:
            if not _is_right(verify_key, message, signature):
                return False
            self._verified[claim] = None
            if len(self._verified) > VERIFIED_MAX:
                self._verified.popitem(last=False)
        return True


def _is_right(verify_key: str, message: bytes, signature: str) -> bool:
    try:
        raw = base64.b64decode(signature, validate=True)
        match _public_key(verify_key) if len(verify_key) <= KEY_TEXT_MAX else None:
            case rsa.RSAPublicKey() as key:
                key.verify(raw, message, _PSS, hashes.SHA256())
            case ec.EllipticCurvePublicKey() as key:
                key.verify(raw, message, ec.ECDSA(hashes.SHA256()))
            case ed25519.Ed25519PublicKey() as key:
                key.verify(raw, message)
            case _:
                return False
    except (InvalidSignature, UnsupportedAlgorithm, ValueError):
        return False
    return True


@functools.lru_cache(KEYS_MAX)
def _public_key(pem: str) -> object:
    """Raises: ValueError, UnsupportedAlgorithm."""
    return serialization.load_pem_public_key(pem.encode("ascii"))


def load_signer(key_file: Path) -> HostSigner:
    """Return a signer of a PEM key file. Raises: BAD_CONFIG for one that cannot be read, or a key of another kind."""
    try:
        key = serialization.load_pem_private_key(key_file.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise CheloniaError(Kind.BAD_CONFIG, "load key", str(key_file), str(error)) from error
    if not isinstance(key, PrivateKey):
        cause = "the key is neither RSA, elliptic curve nor Ed25519"
        raise CheloniaError(Kind.BAD_CONFIG, "load key", str(key_file), cause)
    return HostSigner(key)


def _sign(key: PrivateKey, message: bytes) -> bytes:
    if isinstance(key, rsa.RSAPrivateKey):
        return key.sign(message, _PSS, hashes.SHA256())
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return key.sign(message, ec.ECDSA(hashes.SHA256()))
    return key.sign(message)
