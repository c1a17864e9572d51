"""Signatures of the simulator: whose word something is, without the cost of keys."""

from __future__ import annotations

import hashlib


class SimSigner:
    """Signs with a name instead of a key: nobody but its owner makes one in the simulator."""

    def __init__(self, name: str) -> None:
        self._name = name

    def sign(self, message: bytes) -> str:
        """A digest of name and message."""
        return hashlib.sha256(self._name.encode() + message).hexdigest()

    def verify_key(self) -> str:
        """The name."""
        return self._name


class SimVerifier:
    """Checks `SimSigner`'s signatures."""

    def verify(self, verify_key: str, message: bytes, signature: str) -> bool:
        """Whether the digest is right."""
        return SimSigner(verify_key).sign(message) == signature
