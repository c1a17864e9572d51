"""How a start is reconciled with the namespace, and how far that has come. Pure; times are monotonic, in ms.

The answer to its first report decides. By differences it is reconciled once all bytes have been looked at; by the whole
inventory once that was compared, which whoever has a reason may ask for at any time. Each is of one generation of the
metadata: that of the decision, or of the beginning of the comparison. Under another one nothing is reconciled.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class Reconciling:
    """One start.

    Args:
        begun: its first report was answered.
        why: why the whole inventory is to be compared, "" when it is not.
        in_doubt: somebody relied on a replica that is not here.
        comparing: the whole inventory is being compared, for a reason that makes it unreliable until that is through.
        believed: the generation under which differences are enough, until all bytes have been looked at.
        generation, at_ms: with metadata of which generation it was reconciled last, and when; None before.
    """

    begun: bool = False
    why: str = ""
    in_doubt: bool = False
    comparing: bool = False
    believed: int | None = None
    generation: int | None = None
    at_ms: int = 0

    def ask(self, why: str) -> None:
        """Have the whole inventory compared; the first reason stays."""
        self.why = self.why or why

    def begin(self, why: str, generation: int) -> bool:
        """The first report was answered under metadata of this generation. Returns whether differences are enough:
        there is no reason `why` not, and nobody else had one."""
        self.ask(why)
        self.begun = True
        self.believed = None if self.why else generation
        return not self.why

    def looked_at(self, now_ms: int) -> bool:
        """All bytes have been looked at. Returns whether that was the last thing to do."""
        if self.believed is None or self.why:
            return False
        assert self.begun, "the answer to the first report says under which metadata"
        self.generation, self.at_ms, self.believed = self.believed, now_ms, None
        return True

    @contextmanager
    def whole(self) -> Iterator[None]:
        """While the whole inventory is compared: who asks or doubts meanwhile has it compared again, and who did before
        is answered only when it succeeds."""
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
        """The whole inventory was compared."""
        self.generation, self.at_ms = generation, now_ms

    def why_whole(self, generation: int, now_ms: int, retry_ms: int) -> str:
        """Why to compare the whole inventory under metadata of this generation: asked to, or in doubt (not again and
        again, but after `retry_ms`); else ""."""
        if self.why:
            return self.why
        if self.generation != generation:  # an order to erase may have told of that before a heartbeat did
            return "other metadata were put back"
        if self.in_doubt and now_ms - self.at_ms >= retry_ms:
            return "it was asked for a replica that it does not have"
        return ""

    def proven(self, generation: int) -> bool:
        """Whether it is reconciled with metadata of this generation, but for what is still to be reported."""
        return self.begun and not self._open and self.generation == generation

    def settled(self, generation: int) -> bool:
        """Whether the next start may rely on the notes under metadata of this generation."""
        return not self._open and generation in (self.believed, self.generation)

    @property
    def _open(self) -> bool:
        return bool(self.why) or self.in_doubt or self.comparing
