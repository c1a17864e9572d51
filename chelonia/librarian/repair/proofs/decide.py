"""The credibility of copies when a good one is to be given up. Pure.

A Shepherd's word (its reports, its `stat`) is what it believes, and a lying one says what it likes. So the holders of a
blob answer a challenge that needs the bytes (docs/formats/proofs.md), and an answer counts only if two give it. Nobody
here knows the right one, but two Shepherds give the same wrong one only if they conspire.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from chelonia.core import bounds
from chelonia.core.cluster.replicas import Location
from chelonia.core.contents.extents import ByteRange
from chelonia.librarian.repair.plan.decide import SURPLUS, BlobPlan


def needed(plan: BlobPlan) -> bool:
    """Return whether a plan gives a good copy up. Damaged and missing ones go on the word of the others."""
    return any(removal.reason == SURPLUS for removal in plan.removals)


def questioned(plan: BlobPlan) -> tuple[Location, ...]:
    """Return the copies that answer for each other: those that stay, and the good ones that go."""
    out = (*plan.witnesses, *(removal.location for removal in plan.removals if removal.reason == SURPLUS))
    assert len({*out}) == len(out), "nobody answers twice: what goes does not vouch for itself"
    return out


def spans(size: int, draw: Callable[[], float]) -> tuple[ByteRange, ...]:
    """Return the ranges to ask for: all of a small blob, pieces at random places of a larger one.

    Args:
        draw: a fresh number in [0, 1) that nobody can guess.
    """
    if size <= bounds.PROOF_BYTES_MAX:
        return (ByteRange(0, size),) if size > 0 else ()
    piece = bounds.PROOF_BYTES_MAX // bounds.PROOF_SPANS
    pieces = tuple(ByteRange(int(draw() * (size - piece + 1)), piece) for _ in range(bounds.PROOF_SPANS))
    assert all(0 <= each.offset <= size - each.length for each in pieces), "what is asked for is there"
    return pieces


def agreed(answers: Mapping[Location, str]) -> frozenset[Location]:
    """Return the copies whose Shepherds have given the one answer that two or more Shepherds have given.

    Args:
        answers: by copy; "" or missing for one that could not answer.
    Returns: none when no two agree, or when there are two such answers.
    """
    by_answer: dict[str, list[Location]] = {}
    for location, answer in answers.items():
        if answer:
            by_answer.setdefault(answer, []).append(location)
    backed = [found for found in by_answer.values() if len({location.shepherd for location in found}) > 1]
    return frozenset(backed[0]) if len(backed) == 1 else frozenset()
