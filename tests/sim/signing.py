"""Signatures of the simulator: they show who signed, without the cost of keys."""

from __future__ import annotations

import hashlib


class SimSigner:
    """Signs with a name instead of a key: only its owner does so in the simulator."""

    def __init__(self, name: str) -> None:
        self._name = name

    def sign(self, message: bytes) -> str:
        """A digest of name and message."""
        return hashlib.sha256(self._name.encode() + message).hexdigest()

    def verify_key(self) -> str:
        return self._name


class SimVerifier:
    """Checks `SimSigner`'s signatures."""

    def verify(self, verify_key: str, message: bytes, signature: str) -> bool:
        return SimSigner(verify_key).sign(message) == signature
