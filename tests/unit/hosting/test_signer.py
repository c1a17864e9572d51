"""Receipts' signatures: every key type signs what only its own public key accepts."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from chelonia.core.errors import Kind
from chelonia.hosting.signer import HostSigner, KeyVerifier, PrivateKey, load_signer
from tests.support.failing import fails

KEYS: list[PrivateKey] = [
    rsa.generate_private_key(65537, 2048),
    ec.generate_private_key(ec.SECP256R1()),
    ed25519.Ed25519PrivateKey.generate(),
]


@pytest.mark.parametrize("key", KEYS, ids=["rsa", "ec", "ed25519"])
def test_a_signature_is_good_for_its_message_and_its_key_only(key: PrivateKey) -> None:
    signer, other, verifier = HostSigner(key), HostSigner(ed25519.Ed25519PrivateKey.generate()), KeyVerifier()
    signature = signer.sign(b"message")
    assert verifier.verify(signer.verify_key(), b"message", signature)
    assert not verifier.verify(signer.verify_key(), b"massage", signature)
    assert not verifier.verify(other.verify_key(), b"message", signature)
    assert not verifier.verify(signer.verify_key(), b"message", other.sign(b"message"))


@pytest.mark.parametrize("signature", ["", "!!!", "AAAA", "ü"])
@pytest.mark.parametrize(
    "key", ["", "rubbish", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "ü", "x" * 9000]
)
def test_malformed_input_is_false(key: str, signature: str) -> None:
    assert not KeyVerifier().verify(key, b"message", signature)
    assert not KeyVerifier().verify(HostSigner(KEYS[1]).verify_key(), b"message", signature)


def test_a_signer_is_read_from_a_key_file(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    pem = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    path.write_bytes(KEYS[1].private_bytes(*pem))
    assert load_signer(path).verify_key() == HostSigner(KEYS[1]).verify_key()
    path.write_text("no key")
    with fails(Kind.BAD_CONFIG):
        load_signer(path)
