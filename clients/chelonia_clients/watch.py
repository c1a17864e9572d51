"""A trace of the stubs' messages (`chelonia -x`), and a notice of answers that do not come.

It stands in for the client under the stubs alone, so file bytes never pass through it, and of tickets only TURLs.
Messages in the compact encoding are shown as JSON: service, method and arguments, then the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import msgspec

from chelonia.hosting.net.compact_client import CompactClient, PendingCall
from chelonia.hosting.net.http_client import target_of
from chelonia.wire import compact

LinePrinter = Callable[[str], None]
"""Prints one line or message for a person."""
SILENCE_MS: Final = 2_000
"""Time after which a missing answer is worth a note: no request of a healthy cluster takes as long."""


class WatchedCompact:
    """The part of `CompactClient` that stubs use."""

    def __init__(self, client: CompactClient, trace: LinePrinter | None, silent: LinePrinter | None) -> None:
        """`trace`: called with all messages; `silent`: with the target of each answer later than `SILENCE_MS`."""
        self._client = client
        self._trace = trace
        self._silent = silent

    def open_connection(self, url: str) -> None:
        """Do nothing: every call goes through `ask`."""

    async def ask(self, url: str, asking: PendingCall) -> compact.IncomingAnswer:
        """Make one call. Raises: as `CompactClient.ask`."""
        words, silent = asking.words, self._silent or (lambda target: None)
        if self._trace is not None:
            self._print(self._trace, f"> {words.service}.{words.method} {url}", words.args)
        note = asyncio.get_running_loop().call_later(SILENCE_MS / 1000, silent, target_of(url))
        try:
            answered = await self._client.ask(url, asking)
        finally:
            note.cancel()
        if self._trace is not None:
            body = answered.failure or msgspec.msgpack.decode(answered.result)
            self._print(self._trace, f"< {'failed' if answered.failure else 'ok'}", body)
        return answered

    def _print(self, write: LinePrinter, head: str, body: Any) -> None:
        for line in (head, *msgspec.json.format(msgspec.json.encode(body)).decode().splitlines()):
            write(line)
