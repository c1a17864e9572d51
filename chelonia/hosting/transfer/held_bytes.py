"""Bytes held back from a consumer who cannot give them back, until all of them are verified.

Decides which bytes may be handed over, and whether another replica begins with the same ones. Never hands over the last
bytes before the caller has verified all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from chelonia.core.errors import CheloniaError, Kind
from chelonia.hosting.transfer.requester import Progress

if TYPE_CHECKING:
    from chelonia.wire.crcs import Hash


class HeldBytes:
    """A buffer between the replicas of `subject` and one consumer: at most about `hold` bytes, and the digest of those
    handed over, begun as `empty`. `progress` is called with the number of bytes handed over."""

    def __init__(self, subject: str, hold: int, empty: Hash, progress: Progress | None = None) -> None:
        self._subject = subject
        self._hold = hold
        self._progress = progress
        self._empty = empty
        self._given = empty.copy()
        self._given_bytes = 0
        self._pieces: deque[bytes] = deque()
        self._bytes = 0
        self._again = empty.copy()
        self._skip = 0

    def digest(self) -> str:
        """Return the digest of all bytes taken, hex."""
        whole = self._given.copy()
        for piece in self._pieces:
            whole.update(piece)
        return whole.digest().hex()

    def start_over(self) -> None:
        """Drop the bytes held, which are wrong, and expect the file's first bytes next."""
        self._pieces.clear()
        self._bytes, self._skip, self._again = 0, self._given_bytes, self._empty.copy()

    def take(self, chunk: bytes) -> Iterator[bytes]:
        """Take the next bytes; yields those that may be handed over. Raises: CHECKSUM where others were before."""
        if self._skip:
            repeated, chunk = chunk[: self._skip], chunk[self._skip :]
            self._again.update(repeated)
            self._skip -= len(repeated)
            if not self._skip and self._again.digest() != self._given.digest():
                cause = f"the {self._given_bytes} bytes handed over are not how this replica begins; read it anew"
                raise CheloniaError(Kind.CHECKSUM, "get", self._subject, cause)
        if chunk:
            self._pieces.append(chunk)
            self._bytes += len(chunk)
        while self._pieces and self._bytes - len(self._pieces[0]) >= self._hold:
            self._given.update(self._pieces[0])
            yield self._hand_over()

    def rest(self) -> Iterator[bytes]:
        """Yield the rest, once all is verified; call nothing after it."""
        assert not self._skip, "verified, though the bytes handed over have not been compared"
        while self._pieces:
            yield self._hand_over()

    def _hand_over(self) -> bytes:
        piece = self._pieces.popleft()
        self._bytes -= len(piece)
        self._given_bytes += len(piece)
        if self._progress is not None:
            self._progress(len(piece))
        return piece
