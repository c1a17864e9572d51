"""Asking after copies whose receipts are of another start than the one heard of now.

A receipt may be committed long after it was given (an A-Hash that took nothing meanwhile). If its Shepherd has started
again since, with an older image of its disk or another disk, it has compared its inventory too soon to miss the copy.
Asked for one that it does not have, it compares again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from chelonia.core.caller import Call
from chelonia.core.clock import within
from chelonia.core.errors import CheloniaError
from chelonia.core.ids import ServiceId
from chelonia.core.replicas import Receipt
from chelonia.librarian.world import World

_LOG = logging.getLogger(__name__)

HeardBoot = Callable[[ServiceId], int]
"""The start of a Shepherd that was last heard of, 0 for none."""


class Rechecking:
    """One Librarian's questions after copies it has just written down."""

    def __init__(self, world: World, call: Call, heard_boot: HeardBoot) -> None:
        self._world = world
        self._call = call
        self._heard_boot = heard_boot

    async def written(self, receipts: Iterable[Receipt]) -> None:
        """These receipts have been committed. What a Shepherd answers it acts on itself; one that is silent now will
        compare when it starts again."""
        old = [receipt for receipt in receipts if self._heard_boot(receipt.location.shepherd) not in (0, receipt.boot)]
        await asyncio.gather(*map(self._ask, old))

    async def _ask(self, receipt: Receipt) -> None:
        location = receipt.location
        shepherd = self._world.directory.shepherd(location.shepherd)
        asked = shepherd.stat(self._call, ((location.reference, location.reference),))
        try:
            await within(self._world.clock, self._world.settings.lease_ms, asked)
        except CheloniaError as error:
            _LOG.info("shepherd %s does not answer for %s: %s", location.shepherd, location.reference, error)
