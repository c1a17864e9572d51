"""Challenges: before a good copy is given up, the holders of those that stay prove to have the bytes.

`proofs.decide` says what to ask, and which answers to believe. One call goes to each Shepherd for all blobs of a batch;
a silent one proves nothing. A Shepherd checks at once a copy that differs from the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from chelonia.core import bounds
from chelonia.core.cluster.replicas import Location
from chelonia.core.errors import CheloniaError
from chelonia.core.ids import BlobId, ReferenceId, ServiceId
from chelonia.core.metadata import StoredObject
from chelonia.core.ports.shepherd import Challenge, Question
from chelonia.core.timing.clock import within
from chelonia.librarian.context import LibrarianContext
from chelonia.librarian.metadata.blobs import facts_of
from chelonia.librarian.repair.plan.decide import BlobPlan
from chelonia.librarian.repair.proofs import decide as proofs

_LOG = logging.getLogger(__name__)

NONCE_BYTES = 32
PROVE_MS = 10_000
"""Time that one Shepherd may take: some hundreds of disk reads."""


class Proving:
    """One Librarian's challenges."""

    def __init__(self, context: LibrarianContext) -> None:
        self._on = context

    async def proven(self, plans: Sequence[BlobPlan], blobs: Mapping[BlobId, StoredObject]) -> frozenset[Location]:
        """Return the copies of these plans that have proven themselves."""
        nonce = self._on.world.ids.token(NONCE_BYTES).hex()
        questions: dict[ServiceId, list[Question]] = {}
        for plan in plans:
            spans = proofs.spans(facts_of(blobs[plan.blob]).size, self._on.world.ids.uniform)
            for location in proofs.questioned(plan):
                questions.setdefault(location.shepherd, []).append(Question(location.reference, spans))
        answers = await asyncio.gather(*(self._ask(shepherd, nonce, batch) for shepherd, batch in questions.items()))
        digests = {location: digest for answer in answers for location, digest in answer.items()}
        sure: set[Location] = set()
        odd: dict[ServiceId, list[ReferenceId]] = {}
        for plan in plans:
            own = {location: digests.get(location, "") for location in proofs.questioned(plan)}
            agreed = proofs.agreed(own)
            sure |= agreed
            for location in (location for location, digest in own.items() if digest and location not in agreed):
                odd.setdefault(location.shepherd, []).append(location.reference)
        await asyncio.gather(*(self._doubt(shepherd, references) for shepherd, references in odd.items()))
        return frozenset(sure)

    async def _ask(self, shepherd: ServiceId, nonce: str, questions: Sequence[Question]) -> dict[Location, str]:
        """The answers of one Shepherd, {} when it gives none."""
        port, found = self._on.world.directory.shepherd(shepherd), dict[Location, str]()
        try:
            for start in range(0, len(questions), bounds.PROOF_QUESTIONS_MAX):
                part = tuple(questions[start : start + bounds.PROOF_QUESTIONS_MAX])
                answer = await within(self._on.world.clock, PROVE_MS, port.prove(self._on.call, Challenge(nonce, part)))
                for question, digest in zip(part, answer, strict=False):
                    found[Location(shepherd, question.reference)] = digest
        except CheloniaError as error:
            _LOG.info("shepherd %s proves nothing of its copies: %s", shepherd, error)
            return {}
        return found

    async def _doubt(self, shepherd: ServiceId, references: Sequence[ReferenceId]) -> None:
        """Have copies checked that differ from others of the same blob."""
        _LOG.info("shepherd %s: %d copies are not as others are, or nobody confirms them", shepherd, len(references))
        port = self._on.world.directory.shepherd(shepherd)
        try:
            await within(self._on.world.clock, PROVE_MS, port.scrub(self._on.call, tuple(references)))
        except CheloniaError as error:
            _LOG.info("shepherd %s does not check them now: %s", shepherd, error)
