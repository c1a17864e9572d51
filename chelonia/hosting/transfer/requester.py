"""What a transfer needs of the program that runs it: a Bartender to ask, a pool of connections, a clock.

The SDK's `Client` is one; a door binds its own. Nothing is decided here.
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
"""Notified of each failure that will be tried again: its target and its reason."""

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
        """What sends small files."""

    @property
    def looks(self) -> CallBatches[Look, Looked | Failure]:
        """What asks for small files, and where to read others."""

    def new_call(self) -> Call:
        """The context of one request."""

    async def settled(self, ask: Callable[[Call, tuple[R, ...]], Awaitable[tuple[A, ...]]], request: R) -> A:
        """Make one request of one element, again under the same key while its answer is that of a passing trouble."""
