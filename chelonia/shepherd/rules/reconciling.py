"""How a start is reconciled with the namespace, and how far that has come. Pure; times are monotonic, in ms.

The answer to its first report decides. By differences from the notes it is reconciled once all sizes are checked; by
the whole inventory once that is compared. Any part may request that comparison, with a reason, at any time.
Each holds for one generation of the metadata: that of the decision, or of the beginning of the comparison.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class Reconciling:
    """The reconciliation of one start.

    Args:
        begun: its first report was accepted.
        why: why the whole inventory is to be compared, "" when it is not.
        in_doubt: somebody relied on a replica that is not here.
        comparing: the whole inventory is being compared, for a reason that makes it unreliable until then.
        believed: the generation under which differences are enough, until all sizes have been checked.
        generation, at_ms: the generation of the metadata it was last reconciled with, None before, and when.
    """

    begun: bool = False
    why: str = ""
    in_doubt: bool = False
    comparing: bool = False
    believed: int | None = None
    generation: int | None = None
    at_ms: int = 0

    def ask(self, why: str) -> None:
        """Request a comparison of the whole inventory; the first reason stays."""
        self.why = self.why or why

    def begin(self, why: str, generation: int) -> bool:
        """Begin, once the first report is accepted, under metadata of this generation. Returns whether differences are
        enough: neither `why` nor an earlier request speaks against it."""
        self.ask(why)
        self.begun = True
        self.believed = None if self.why else generation
        return not self.why

    def looked_at(self, now_ms: int) -> bool:
        """Note that all sizes have been checked. Returns whether that completes a reconciliation by differences."""
        if self.believed is None or self.why:
            return False
        assert self.begun, "the answer to the first report says under which metadata"
        self.generation, self.at_ms, self.believed = self.believed, now_ms, None
        return True

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Hold while the whole inventory is compared. Requests and doubts that come meanwhile have it compared again;
        earlier ones are settled only when it succeeds."""
        assert not self.comparing, "one comparison at a time"
        asked, doubted = self.why, self.in_doubt
        self.why, self.in_doubt, self.believed = "", False, None
        self.comparing = bool(asked) or doubted
        try:
            yield
        except BaseException:
            self.ask(asked)
            self.in_doubt = self.in_doubt or doubted
            raise
        finally:
            self.comparing = False

    def compared(self, generation: int, now_ms: int) -> None:
        """Note that the whole inventory was compared."""
        self.generation, self.at_ms = generation, now_ms

    def why_whole(self, generation: int, now_ms: int, retry_ms: int) -> str:
        """Return why to compare the whole inventory under metadata of this generation, "" for no reason. A doubt counts
        only once `retry_ms` have passed since the last reconciliation."""
        if self.why:
            return self.why
        if self.generation != generation:  # an order to erase may have brought it before a heartbeat did
            return "other metadata were put back"
        if self.in_doubt and now_ms - self.at_ms >= retry_ms:
            return "it was asked for a replica that it does not have"
        return ""

    def proven(self, generation: int) -> bool:
        """Whether it is reconciled with metadata of this generation, but for reports still to be accepted."""
        return self.begun and not self._open and self.generation == generation

    def settled(self, generation: int) -> bool:
        """Whether the next start may rely on the notes under metadata of this generation."""
        return not self._open and generation in (self.believed, self.generation)

    @property
    def _open(self) -> bool:
        return bool(self.why) or self.in_doubt or self.comparing
