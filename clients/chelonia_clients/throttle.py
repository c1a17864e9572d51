"""A limit on the bytes that files take each second, for all transfers of one client together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

from chelonia.core.timing.clock import Clock
from chelonia.core.timing.pacing import Pace
from chelonia.core.values import replace
from chelonia.hosting.net.http_client import HttpClient, Received, Sending, Streaming
from chelonia.hosting.transfer.call_batches import inline_bytes

if TYPE_CHECKING:
    from chelonia.core.caller import Call
    from chelonia.core.ports.files import Change, Done, Failure, Files, Look, Looked
    from chelonia_clients.client import Client

T = TypeVar("T")

PIECE: Final = 64 * 1024
"""Bytes sent at once: a slow line is not idle for long."""


def limit(client: Client, bytes_per_s: int) -> None:
    """Limit all files that a client moves to `bytes_per_s`, up and down together."""
    pace = Pace(bytes_per_s)
    client.http = limited(client.http, pace, client.clock)
    client.files = cast("Files", _LimitedFiles(client.files, pace, client.clock))


def limited(http: HttpClient, pace: Pace, clock: Clock) -> HttpClient:
    """Return the same connections, over which files travel at a pace."""
    return cast(HttpClient, _LimitedHttp(http, pace, clock))


class _Limited(Generic[T]):
    """A port, a connection, or an answer (`behind`), whose calls that move bytes pause."""

    def __init__(self, behind: T, pace: Pace, clock: Clock) -> None:
        self._behind = behind
        self._pace = pace
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._behind, name)  # calls that move no bytes

    async def _paced(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for chunk in chunks:
            for start in range(0, len(chunk), PIECE):
                piece = chunk[start : start + PIECE]
                if wait := self._pace.wait_ms(self._clock.monotonic_ms()):
                    await self._clock.sleep(wait)
                self._pace.spend(len(piece), self._clock.monotonic_ms())
                yield piece


class _LimitedFiles(_Limited["Files"]):
    """The port `Files`, with a pause after messages that carry small files."""

    async def apply(self, call: Call, changes: tuple[Change, ...]) -> tuple[Done | Failure, ...]:
        """As `Files.apply`."""
        answers = await self._behind.apply(call, changes)
        await self._pause(sum(map(inline_bytes, changes)))
        return answers

    async def look(self, call: Call, looks: tuple[Look, ...]) -> tuple[Looked | Failure, ...]:
        """As `Files.look`."""
        answers = await self._behind.look(call, looks)
        await self._pause(sum(len(getattr(each, "data", None) or b"") for each in answers))
        return answers

    async def _pause(self, size: int) -> None:
        self._pace.spend(size, self._clock.monotonic_ms())
        if size and (wait := self._pace.wait_ms(self._clock.monotonic_ms())):
            await self._clock.sleep(wait)


class _LimitedHttp(_Limited[HttpClient]):
    """The part of `HttpClient` that transfers use."""

    async def request(self, sending: Sending) -> Received:
        """Send a request, a streamed body at the pace. Raises: as `HttpClient.request`."""
        if sending.body is None or isinstance(sending.body, bytes):
            return await self._behind.request(sending)
        return await self._behind.request(replace(sending, body=self._paced(sending.body)))

    @asynccontextmanager
    async def stream(self, sending: Sending) -> AsyncIterator[Streaming]:
        """Receive, at the pace. Raises: as `HttpClient.stream`."""
        async with self._behind.stream(sending) as answer:
            yield cast(Streaming, _LimitedAnswer(answer, self._pace, self._clock))


class _LimitedAnswer(_Limited[Streaming]):
    """The part of `Streaming` that downloads use."""

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body at the pace. Raises: as `Streaming.chunks`."""
        return self._paced(self._behind.chunks())
