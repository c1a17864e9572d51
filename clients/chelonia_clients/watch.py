"""Shows the messages of stubs as they pass (`chelonia -x`), and says which answers do not come.

It stands in for the client under the stubs alone, so bytes of files never pass through it, and of tickets only TURLs.
What travels in the compact encoding is shown as JSON: service, method and arguments, then the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import msgspec

from chelonia.hosting.net.compact_client import CompactClient, PendingCall
from chelonia.hosting.net.http_client import target_of
from chelonia.wire import compact

T = TypeVar("T")
Teller = Callable[[str], None]
"""Takes one line or message for a person."""
SILENCE_MS: Final = 2_000
"""An answer that takes longer is worth a note: no request of a healthy cluster does."""


def keep_still(message: str) -> None:
    """The `Teller` of programs that want no messages."""


class MessageWatch(msgspec.Struct, frozen=True):
    """Who is told of messages, if anybody, and of the target of each answer that does not come for `SILENCE_MS`."""

    tell: Teller | None
    silent: Teller

    def say(self, head: str, text: Callable[[T], str], body: T) -> None:
        """Tell a message, line by line, and what its body is as text."""
        if self.tell is not None:
            for line in (head, *text(body).splitlines()):
                self.tell(line)

    async def over(self, url: str, answer: Awaitable[T]) -> T:
        """Wait for an answer. Raises: what comes of it."""
        note = asyncio.get_running_loop().call_later(SILENCE_MS / 1000, self.silent, target_of(url))
        try:
            return await answer
        finally:
            note.cancel()


class WatchedCompact:
    """The part of `CompactClient` that stubs use."""

    def __init__(self, client: CompactClient, watch: MessageWatch) -> None:
        self._client = client
        self._watch = watch

    def open_connection(self, url: str) -> None:
        """Every call goes through `ask`."""

    async def ask(self, url: str, asking: PendingCall) -> compact.IncomingAnswer:
        """Make one call. Raises: as `CompactClient.ask`."""
        words = asking.words
        self._watch.say(f"> {words.service}.{words.method} {url}", _json, words.args)
        answered = await self._watch.over(url, self._client.ask(url, asking))
        self._watch.say(f"< {'failed' if answered.failure else 'ok'}", _told, answered)
        return answered


def _told(answered: compact.IncomingAnswer) -> str:
    return _json(answered.failure or msgspec.msgpack.decode(answered.result))


def _json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value)).decode()
