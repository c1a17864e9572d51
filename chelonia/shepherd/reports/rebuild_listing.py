"""Records on this Shepherd's disk, page by page, for a namespace that has to be rebuilt from bytes alone.

Decides nothing: damaged records, uncommitted bytes and quarantine are listed as they are.
"""

from __future__ import annotations

from chelonia.core.cluster.replicas import ReplicaFacts, ReplicaState
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ports.shepherd import RECORDS_ASIDE, RecordPage, ReplicaRecord
from chelonia.shepherd.node import ShepherdNode
from chelonia.shepherd.store.lifecycle import KeptReplica

HERE, ASIDE = "here", RECORDS_ASIDE.strip()
"""First words of `after`: among the replicas, or among those in quarantine."""


async def records_page(node: ShepherdNode, after: str, limit: int) -> RecordPage:
    """Return the records after `<here|aside> <reference>` ("": from the start). Raises: BAD_REQUEST, UNAVAILABLE."""
    where, _, reference = after.partition(" ")
    if where not in ("", HERE, ASIDE):
        raise CheloniaError(Kind.BAD_REQUEST, "records", after[:80], "not where a page of records ended")
    await node.disk.require()
    if where != ASIDE:
        held = node.index.following(reference, limit)
        sizes = await node.ports.blobs.sizes([each.reference for each in held])
        facts = [await node.ports.blobs.facts(each.reference) for each in held]
        items = [
            ReplicaRecord(each.reference, _state(each, fact, size), each.committed, False, fact)
            for each, fact, size in zip(held, facts, sizes, strict=True)
        ]
        return RecordPage(tuple(items), f"{HERE} {held[-1].reference}" if len(held) == limit else f"{ASIDE} ")
    later = await node.ports.blobs.quarantined(reference, limit + 1)
    page = [
        ReplicaRecord(
            each.reference,
            ReplicaState.ALIVE if each.facts and each.size == each.facts.size else ReplicaState.INVALID,
            each.committed,
            True,
            each.facts,
        )
        for each in later[:limit]
    ]
    return RecordPage(tuple(page), f"{ASIDE} {later[limit - 1].reference}" if len(later) > limit else "")


def _state(held: KeptReplica, facts: ReplicaFacts | None, size: int) -> ReplicaState:
    # The index may not know yet that bytes are missing: a start measures them while it serves.
    return held.state if facts is not None and facts.size == size else ReplicaState.INVALID
