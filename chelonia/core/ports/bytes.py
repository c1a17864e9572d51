"""The port by which a door moves bytes between a client and Shepherds, for the places that `core.ports.files` names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final, Protocol

from chelonia.core.contents.extents import ByteRange
from chelonia.core.errors import CheloniaError, Kind
from chelonia.core.ports.files import Arrived, Placed

PATIENT: Final = 2
"""The `start` of a body that cannot be sent again: a short silence does not end it."""

_PLACE_ENDED: Final = (Kind.BAD_TICKET, Kind.EXPIRED, Kind.ALREADY_DONE)
"""A Shepherd's refusals of a place that it gave a moment ago."""


def put_failure(error: CheloniaError) -> CheloniaError:
    """Return the failure of `Bytes.put` for a Shepherd's refusal. A place ends when its Shepherd restarts or gives the
    upload up. The client was not refused anything: it is UNAVAILABLE, and another place takes the bytes."""
    if error.kind not in _PLACE_ENDED:
        return error
    return CheloniaError(Kind.UNAVAILABLE, error.op, error.subject, f"a Shepherd's ticket has ended: {error.cause}")


class Bytes(Protocol):
    """Bytes to and from Shepherds."""

    async def put(self, placed: Placed, body: AsyncIterator[bytes], size: int, start: int = PATIENT) -> Arrived:
        """Send a body of `size` bytes (-1: unknown) to its place, until enough copies are on stable storage.

        Args: `start`: how often a repeatable body was sent before. The wait for a silent Shepherd grows with it.
        Raises: errors of `body`, NO_SPACE, CHECKSUM, NETWORK, TIMEOUT, UNAVAILABLE (also when the place has ended):
        then no name means these bytes.
        """

    def get(self, sources: tuple[str, ...], *spans: ByteRange) -> AsyncIterator[bytes]:
        """Yield the bytes of `spans`, in order, from any source that answers. Where one breaks off, another goes on.

        Raises: NO_REPLICA, NETWORK, TIMEOUT, INCOMPLETE when none has the rest.
        """
