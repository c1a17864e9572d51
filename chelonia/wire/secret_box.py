"""Texts that only services with the cluster's key can read or make: AES-256-GCM under a key derived from that."""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

NONCE_BYTES: Final = 12


class SecretBox:
    """Encrypts for one purpose. `context` names it: another purpose has another key."""

    def __init__(self, token_key: bytes, context: bytes) -> None:
        self._cipher = AESGCM(hmac.digest(token_key, context, hashlib.sha256))

    def encrypt(self, text: str, nonce: bytes, bound: bytes = b"") -> bytes:
        """Return the nonce and the encrypted text. `nonce`: `NONCE_BYTES` random bytes. `bound`: data outside that have
        to be the same when it is read."""
        assert len(nonce) == NONCE_BYTES, "of the length that `decrypt` cuts off"
        return nonce + self._cipher.encrypt(nonce, text.encode(), bound)

    def decrypt(self, raw: bytes, bound: bytes = b"") -> str | None:
        """Return the text; None where another key, purpose or `bound` was used, or bytes have changed."""
        try:
            return self._cipher.decrypt(raw[:NONCE_BYTES], raw[NONCE_BYTES:], bound).decode()
        except (ValueError, InvalidTag):
            return None
