"""The port by which a door moves bytes between a client and Shepherds, for the places that `core.ports.files` names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final, Protocol

from chelonia.core.contents.extents import ByteRange
from chelonia.core.ports.files import Arrived, Placed

PATIENT: Final = 2
"""The `start` of a body that cannot be sent again: a short silence does not end it."""


class Bytes(Protocol):
    """Bytes to and from Shepherds."""

    async def put(self, placed: Placed, body: AsyncIterator[bytes], size: int, start: int = PATIENT) -> Arrived:
        """Send a body of `size` bytes (-1: unknown) to its place, until enough copies are on stable storage.

        Args: `start`: how often a repeatable body was sent before. The wait for a silent Shepherd grows with it.
        Raises: errors of `body`, NO_SPACE, CHECKSUM, NETWORK, TIMEOUT: then no name means these bytes.
        """

    def get(self, sources: tuple[str, ...], *spans: ByteRange) -> AsyncIterator[bytes]:
        """Yield the bytes of `spans`, in order, from any source that answers. Where one breaks off, another goes on.

        Raises: NO_REPLICA, NETWORK, TIMEOUT, INCOMPLETE when none has the rest.
        """
