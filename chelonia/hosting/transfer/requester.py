"""The port of a transfer to the program that runs it: a Bartender, a pool of connections, a clock.

The SDK's `Client` is one; a door binds its own. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from chelonia.core.caller import Call
from chelonia.core.ports.files import Change, Done, Failure, Files, Look, Looked
from chelonia.core.timing.clock import Clock
from chelonia.hosting.net.http_client import HttpClient
from chelonia.hosting.transfer.call_batches import CallBatches

Trouble = Callable[[str, str], None]
"""Called for each failure that will be tried again, with its target and its reason."""

Progress = Callable[[int], None]
"""Called with the number of bytes just moved (negative when a transfer starts over)."""


A = TypeVar("A")
R = TypeVar("R")


class Requester(Protocol):
    """The Bartender and the connections that a transfer uses."""

    files: Files
    http: HttpClient
    clock: Clock
    trouble: Trouble

    @property
    def writes(self) -> CallBatches[Change, Done | Failure]:
        """Batches that send small files."""

    @property
    def looks(self) -> CallBatches[Look, Looked | Failure]:
        """Batches of looks, which bring small files, and the places of others."""

    def new_call(self) -> Call:
        """Return the context of one request."""

    async def settled(self, ask: Callable[[Call, tuple[R, ...]], Awaitable[tuple[A, ...]]], request: R) -> A:
        """Make a request of one element, and repeat it under the same key while its answer is a passing failure."""
