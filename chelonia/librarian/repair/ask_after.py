"""Questions about copies that may never have come: their claims are over, and no verified copy is left.

A Shepherd that lacks such a copy compares its part of the metadata with its disk (`chelonia/shepherd/node.py`,
`doubt`). It brings back copies from quarantine, and reports those that never came.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence

from chelonia.core.bounds import BULK_ELEMENTS_MAX
from chelonia.core.cluster.replicas import Location
from chelonia.core.errors import CheloniaError
from chelonia.core.ids import ReferenceId, ServiceId
from chelonia.core.timing.clock import within
from chelonia.librarian.context import LibrarianContext

_LOG = logging.getLogger(__name__)


async def ask_after(on: LibrarianContext, places: Iterable[Location]) -> None:
    """Have present Shepherds look for these copies; a later survey asks the others."""
    by_shepherd: dict[ServiceId, list[ReferenceId]] = {}
    for place in places:
        if on.nodes.present(place.shepherd):
            by_shepherd.setdefault(place.shepherd, []).append(place.reference)
    await asyncio.gather(*(ask_one(on, shepherd, references) for shepherd, references in by_shepherd.items()))


async def ask_one(on: LibrarianContext, shepherd: ServiceId, references: Sequence[ReferenceId]) -> bool:
    """Have a Shepherd look for copies; returns whether it has answered within a lease."""
    named = tuple((reference, reference) for reference in references[:BULK_ELEMENTS_MAX])
    try:
        await within(on.world.clock, on.settings.lease_ms, on.world.directory.shepherd(shepherd).stat(on.call, named))
    except CheloniaError as error:
        _LOG.info("shepherd %s does not say whether it has copies of which nobody knows: %s", shepherd, error)
        return False
    return True
