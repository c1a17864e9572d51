"""The port by which a door moves bytes between a client and Shepherds, for the places that `core.ports.files` names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final, Protocol

from chelonia.core.contents.extents import ByteRange
from chelonia.core.ports.files import Arrived, Placed

PATIENT: Final = 2
"""The `start` of what cannot be sent again: nobody is given up for a short silence."""


class Bytes(Protocol):
    """Bytes to and from Shepherds."""

    async def put(self, placed: Placed, body: AsyncIterator[bytes], size: int, start: int = PATIENT) -> Arrived:
        """Send a body of `size` bytes (-1: not known) to where it was placed. `start`: how often it was sent before,
        where it can be sent again: a Shepherd that takes nothing and says nothing is waited for longer each time.

        Returns: once it is on stable storage as often as it must be.
        Raises: what `body` raised, NO_SPACE, CHECKSUM, NETWORK, TIMEOUT: then no name means these bytes.
        """

    def get(self, sources: tuple[str, ...], *spans: ByteRange) -> AsyncIterator[bytes]:
        """Yield the bytes of `spans`, one after another, from whichever source answers, going on at another where one
        breaks off.

        Raises: NO_REPLICA, NETWORK, TIMEOUT, INCOMPLETE when none has the rest.
        """
