"""Proofs that a replica is here: a digest over a fresh nonce, the blob's id, and the bytes that the challenge names.

Every holder of the same bytes computes the same digest, so holders can check each other; without the bytes nobody can.
A challenge is bounded in replicas and bytes, whatever the size of a blob. Layout: docs/formats/proofs.md.
"""

from __future__ import annotations

import hashlib
from typing import Final

from chelonia.core import bounds
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ports.shepherd import Challenge, Question
from chelonia.shepherd.node import ShepherdNode

DOMAIN: Final = b"chelonia proof 1\n"
NONCE_CHARS_MAX: Final = 128


def check_challenge(challenge: Challenge) -> None:
    """Refuse a challenge that costs more than any Librarian sends. Raises: BAD_REQUEST."""
    sizes = (sum(max(span.length, 0) for span in question.spans) for question in challenge.questions)
    many = len(challenge.questions) > bounds.PROOF_QUESTIONS_MAX or len(challenge.nonce) > NONCE_CHARS_MAX
    if many or any(size > bounds.PROOF_BYTES_MAX for size in sizes):
        limits = f"{bounds.PROOF_QUESTIONS_MAX} replicas and {bounds.PROOF_BYTES_MAX} bytes of each"
        raise CheloniaError(Kind.BAD_REQUEST, "prove", cause=f"one challenge asks for at most {limits}")


async def proof(node: ShepherdNode, nonce: str, question: Question) -> str:
    """Return the digest (hex SHA-256) of one replica, "" when it is not here whole or a span is not within it.
    One whose bytes cannot be read is checked at once."""
    held = node.index.get(question.reference)
    if held is None or not held.alive:
        node.doubt(question.reference)
        return ""
    digest = hashlib.sha256(DOMAIN + f"{nonce}\n{held.blob}\n".encode())
    for span in question.spans:
        if span.offset < 0 or span.length < 0 or span.offset + span.length > held.size:
            return ""
        digest.update(f"{span.offset} {span.length}\n".encode())
        try:
            async for chunk in node.ports.blobs.read(held.reference, span):
                digest.update(chunk)
        except CheloniaError as error:
            if error.kind is not Kind.NOT_ALIVE:
                raise
            node.suspect(held.reference)
            return ""
    return digest.hexdigest()
